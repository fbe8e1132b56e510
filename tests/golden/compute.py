"""The rows of the golden record, computed with the code at hand, and how they are compared with recorded ones."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cases import (
    COMPILED_LABELS,
    COMPILED_MODELS,
    CONFIGS,
    COUNTED,
    EXPLAINED,
    EXPLAINED_ELSEWHERE,
    IMAGE_MODELS,
    MASKS,
    MODELS,
    PRESETS,
    GoldenModel,
)
from tiny_models import made, per_sample
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_flop

import tokenmerge as tm

Row = dict[str, Any]
Rows = dict[str, Row]

RECORD = Path(__file__).parent / "record.json"
UNMODIFIED = "unmodified"
TIMESTEPS = [1.0 - step / 8 for step in range(8)]
SEEDS = (1, 2)  # one for each sample
SAMPLED = 6
TOLERANCE = 1e-3
CPU_ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu

# Every group is computed by itself, so that tests of them can run side by side.
GROUPS = (*MODELS, *(f"graphs-{model}" for model in COMPILED_MODELS), *IMAGE_MODELS)


def compute(group: str) -> Rows:
    """All rows of one group, each under "group/label"."""
    if group in MODELS:
        rows = _model_rows(group, MODELS[group])
    elif group in IMAGE_MODELS:
        rows = _image_rows(group)
    else:
        rows = _graph_rows(MODELS[group.removeprefix("graphs-")])
    return {f"{group}/{label}": row for label, row in rows.items()}


class ExecutedMultiplyAdds(TorchDispatchMode):
    """Counts the multiply-adds that really run, and lets every kernel run as it is.

    FlopCounterMode takes operators apart that it does not know, which changes the last bits of results.
    """

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        count = sdpa_flop if func._overloadpacket is CPU_ATTENTION else flop_registry.get(func._overloadpacket)
        if count is not None:
            if count is sdpa_flop:
                args, kwargs = args[:3], {}
            self.total += count(*args, **(kwargs or {}), out_val=result) // 2
        return result


def _model_rows(name: str, model: GoldenModel) -> Rows:
    module = made(model.tiny.build)
    rows = {UNMODIFIED: _run(module, model, counted=True)}
    first = _call(module, model, 0)
    explained, counted = EXPLAINED.get(name, EXPLAINED_ELSEWHERE), COUNTED.get(name, tuple(CONFIGS))
    for label in CONFIGS:
        rows[label] = _row(module, model, label, label in explained, label in counted)
        rows[label]["restored"] = torch.equal(_call(module, model, 0), first)
    return rows


def _row(module: nn.Module, model: GoldenModel, label: str, explained: bool, counted: bool) -> Row:
    torch.manual_seed(0)
    mask = MASKS[label]() if label in MASKS else None
    try:
        with tm.merged(module, CONFIGS[label](), keep=mask) as handle:
            row = _run(module, model, counted)
            if explained:
                # Tuples become the lists that a file gives back.
                row["explanation"] = json.loads(json.dumps(handle.explain().to_dict()))
            return row
    except tm.TokenMergeError as error:
        return {"error": type(error).__name__}  # what it says may change


def _run(module: nn.Module, model: GoldenModel, counted: bool) -> Row:
    counter = ExecutedMultiplyAdds()
    with counter if counted else nullcontext():
        outputs = [_call(module, model, step) for step in range(len(TIMESTEPS))]
    return {**_fingerprint(outputs), **({"multiply_adds": counter.total} if counted else {})}


def _call(module: nn.Module, model: GoldenModel, step: int) -> Tensor:
    """The output at a step, on inputs that drift from step to step; conditioning is the same tensor at all of them."""
    inputs = model.tiny.inputs(SEEDS, model.grid)
    tokens = "sample" if "sample" in inputs else "hidden_states"
    drift = per_sample(SEEDS, *inputs[tokens].shape[1:], salt=7)
    inputs[tokens] = inputs[tokens] + 0.1 * step * drift
    inputs["timestep"] = torch.full_like(inputs["timestep"], TIMESTEPS[step])
    with torch.no_grad():
        output: Tensor = module(**inputs, return_dict=False)[0]
    return output


def _graph_rows(model: GoldenModel) -> Rows:
    from torch._dynamo.utils import counters

    rows = {}
    for label in COMPILED_LABELS:
        torch._dynamo.reset()
        counters.clear()
        module: Any = made(model.tiny.build)
        with tm.merged(module, CONFIGS[label]()):
            module.compile_repeated_blocks(fullgraph=True, backend="eager")
            for step in range(len(TIMESTEPS)):
                _call(module, model, step)
        rows[label] = {"graphs": counters["stats"]["unique_graphs"]}
    torch._dynamo.reset()
    return rows


def _image_rows(name: str) -> Rows:
    from tokenmerge import zoo

    pipe: Any = zoo.load(name)
    pipe.set_progress_bar_config(disable=True)

    def image() -> Row:
        generator = torch.Generator().manual_seed(0)
        arguments = {"num_inference_steps": 6, "height": 256, "width": 256, **IMAGE_MODELS[name]}
        pixels = np.asarray(pipe("red apple", generator=generator, **arguments).images[0])
        return {**_fingerprint([torch.from_numpy(pixels.copy())]), "mean": float(pixels.mean())}

    rows = {UNMODIFIED: image()}
    for label, preset in PRESETS.items():
        with tm.merged(pipe, preset(pipe)):
            rows[label] = image()
    rows[UNMODIFIED]["restored"] = image() == rows[UNMODIFIED]
    return rows


def _fingerprint(outputs: list[Tensor]) -> Row:
    """The sha256 of all bytes, and a few values for machines that round otherwise."""
    flat = torch.cat([output.flatten() for output in outputs])
    places = [(2 * index + 1) * len(flat) // (2 * SAMPLED) for index in range(SAMPLED)]
    return {
        "sha256": hashlib.sha256(flat.numpy().tobytes()).hexdigest(),
        "samples": [float(f"{flat[place].item():.6g}") for place in places],
    }


def differences(recorded: Rows, computed: Rows) -> list[str]:
    """One line for each row that appeared, went or changed, with the fields that did."""
    lines = []
    for name in dict.fromkeys(chain(recorded, computed)):
        if name not in computed:
            lines.append(f"{name}: went")
        elif name not in recorded:
            lines.append(f"{name}: appeared")
        elif changed := _changed(recorded[name], computed[name], _rounds_alike(name, recorded, computed)):
            lines.append(f"{name}: {', '.join(changed)}")
    return lines


def _rounds_alike(name: str, recorded: Rows, computed: Rows) -> bool:
    """Whether the unmodified model computes the same bits here as where it was recorded."""
    unmodified = f"{name.rpartition('/')[0]}/{UNMODIFIED}"
    return recorded.get(unmodified, {}).get("sha256") == computed.get(unmodified, {}).get("sha256")


def _changed(recorded: Row, computed: Row, bit_equal: bool) -> list[str]:
    fields = [field for field in dict.fromkeys(chain(recorded, computed)) if bit_equal or field != "sha256"]
    return list(
        chain.from_iterable(_paths(field, recorded.get(field), computed.get(field), bit_equal) for field in fields)
    )


def _paths(path: str, recorded: Any, computed: Any, bit_equal: bool) -> list[str]:
    """Where two values differ, as dotted paths with both."""
    if isinstance(recorded, Mapping) and isinstance(computed, Mapping):
        keys = dict.fromkeys(chain(recorded, computed))
        return [
            line for key in keys for line in _paths(f"{path}.{key}", recorded.get(key), computed.get(key), bit_equal)
        ]
    if isinstance(recorded, list) and isinstance(computed, list) and path == "explanation.models":
        numbered = [dict(enumerate(values)) for values in (recorded, computed)]
        return _paths(path, *numbered, bit_equal)
    if recorded == computed or (not bit_equal and path in ("samples", "mean") and _near(recorded, computed)):
        return []
    return [f"{path} {_short(recorded)} -> {_short(computed)}"]


def _near(recorded: Any, computed: Any) -> bool:
    if recorded is None or computed is None:
        return False
    return bool(np.allclose(recorded, computed, rtol=TOLERANCE, atol=TOLERANCE * float(np.abs(recorded).max())))


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 24 else f"{text[:12]}..."


def read_record() -> Rows:
    record: Rows = json.loads(RECORD.read_text())
    return record


def write_record(rows: Rows) -> None:
    """One row a line, so that a change of the file shows by name what changed."""
    lines = [f"{json.dumps(name)}: {json.dumps(row, sort_keys=True)}" for name, row in rows.items()]
    RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n")
