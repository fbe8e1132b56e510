"""What merging reference tokens costs in a toy editing case: the table in docs/quality.md.

photo-flux was never trained to edit. Here it is given the tokens of a finished image behind its own, as Flux Kontext
is, and its attention reads them. What is measured is how far the result moves if references, the image or both are
merged.

    python benchmarks/toy_editing.py benchmarks/editing/toy-editing.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor

import tokenmerge as tm
from tokenmerge.runtime.fidelity import psnr_of
from tokenmerge.runtime.generation import guidance_arguments
from tokenmerge.runtime.pipelines import load_pipeline
from tokenmerge.testing import Nothing

SIZE, STEPS = 256, 8
# What is generated, and what the reference shows.
CASES = ("granny smith apples", "lemons"), ("carrots", "kiwis")
RATIOS = (0.5, 0.75, 0.9375)


def generate(pipe: Any, prompt: str, seed: int, **more: Any) -> Any:
    settings = {"height": SIZE, "width": SIZE, "num_inference_steps": STEPS, **guidance_arguments(pipe, None), **more}
    return pipe(prompt, generator=torch.Generator().manual_seed(seed), **settings).images[0]


@contextmanager
def editing(transformer: Any, reference: Tensor) -> Iterator[None]:
    """Every call of the transformer also has the tokens of a reference, (1, N, C), behind those of its image."""

    def append(module: Any, args: Any, kwargs: Any) -> Any:
        ids = kwargs["img_ids"]
        behind = ids + torch.tensor([1.0, 0.0, 0.0])
        tokens = kwargs["hidden_states"]
        both = torch.cat([tokens, reference.expand(len(tokens), -1, -1)], dim=1)
        return args, {**kwargs, "hidden_states": both, "img_ids": known.setdefault(id(ids), torch.cat([ids, behind]))}

    def cut(module: Any, args: Any, output: Any) -> Any:
        return (output[0][:, : output[0].shape[1] // 2],)

    known: dict[int, Tensor] = {}  # the same tensor at each step, as a pipeline has it
    hooks = transformer.register_forward_pre_hook(append, with_kwargs=True), transformer.register_forward_hook(cut)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def configs() -> Iterator[tuple[str, tm.MergeConfig, float]]:
    whole = Nothing(scope="stack", tiled=False, min_tokens=0)
    for ratio in RATIOS:
        yield f"references {ratio:g}", whole, ratio
    yield "image 0.5", tm.TileMean(tile=(1, 2), correction=None, min_tokens=0), 0.0
    yield "image 0.75", tm.TileMean(tile=2, correction=None, min_tokens=0), 0.0
    for ratio in (0.0, 0.75):
        yield f"image 0.75 with full steps, references {ratio:g}", tm.TileMean(tile=2, min_tokens=0), ratio


def main(path: str) -> None:
    pipe = load_pipeline("photo-flux", "cpu", "float32").pipe
    pipe.set_progress_bar_config(disable=True)
    rows: dict[str, list[float]] = {}
    saved: dict[str, float] = {}
    for seed, (prompt, shown) in enumerate(CASES):
        reference = generate(pipe, shown, seed, output_type="latent")[None]
        without = generate(pipe, prompt, seed)
        with editing(pipe.transformer, reference):
            unmerged = generate(pipe, prompt, seed)
            rows.setdefault("no reference at all", []).append(psnr_of(unmerged, without))
            for name, config, ratio in configs():
                with tm.merged(pipe, config, reference_ratio=ratio) as handle:
                    rows.setdefault(name, []).append(psnr_of(unmerged, generate(pipe, prompt, seed)))
                    print(name, rows[name][-1], flush=True)
                    if name not in saved:
                        work = handle.explain(steps=STEPS).models[0].multiply_adds
                        saved[name] = 1 - work.average / work.unmerged
    table = [
        {"merged": name, "psnr": round(sum(found) / len(found), 2), "multiply_adds_saved": round(saved.get(name, 0), 3)}
        for name, found in rows.items()
    ]
    made: dict[str, Any] = {"model": "photo-flux", "size": SIZE, "steps": STEPS, "cases": CASES, "rows": table}
    made["versions"] = {name: version(name) for name in ("tokenmerge", "torch", "diffusers")}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(made, file, indent=1)
        file.write("\n")
    for row in table:
        print(*row.values(), sep="  ")


if __name__ == "__main__":
    main(sys.argv[1])
