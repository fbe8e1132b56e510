"""`tokenmerge predict`: what a generation would take on a GPU that is not here. Simulated, and labelled so."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenmerge.cli import options
from tokenmerge.errors import TokenMergeError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenmerge.presets import Name
    from tokenmerge.simulate.predict import Generation, Prediction

PRESETS: tuple[Name, ...] = ("quality", "balanced", "fast")
PACKAGE = "tomesd-package"
DEFAULT_DEVICES = "RTX3090,RTX4090,A100,H100"
FEWER = 0.5


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "predict",
        help="what a generation would take on a GPU, simulated",
        description="Record every kernel of a generation without computing anything, and predict what it takes on GPUs "
        "from their peak figures. Nothing is downloaded, and no GPU is needed. Simulated, not measured: docs/gpu.md "
        "says how far it is from published figures.",
        epilog=options.methods_listed(),
        formatter_class=options.HelpFormatter,
    )
    parser.add_argument(
        "--model", default="sdxl", metavar="MODEL", help="sd15, sdxl, flux, ... or a folder (default: sdxl)"
    )
    parser.add_argument("--size", metavar="WIDTHxHEIGHT", help="in pixels (default: what the model was made for)")
    parser.add_argument("--steps", default="28", metavar="N", help="denoising steps (default: 28)")
    parser.add_argument(
        "--batch", metavar="N", help="samples in a call (default: 2 with guidance, 1 if that is built in)"
    )
    parser.add_argument(
        "--methods",
        default=",".join(PRESETS),
        metavar="NAMES",
        help=f"presets, methods (below) with a ratio if wanted, as in toma-tile:0.5, or {PACKAGE}:0.5 "
        f"(default: {','.join(PRESETS)})",
    )
    parser.add_argument(
        "--devices", default=DEFAULT_DEVICES, metavar="NAMES", help=f"GPUs by name (default: {DEFAULT_DEVICES})"
    )
    parser.add_argument("--device-file", type=Path, metavar="FILE", help="a TOML table of other devices")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser


def run(args: argparse.Namespace) -> int:
    from tokenmerge.report.explain import native_size
    from tokenmerge.runtime.denoisers import load_denoiser_on_meta
    from tokenmerge.runtime.generation import MOST_STEPS
    from tokenmerge.simulate.devices import device_named, read_devices
    from tokenmerge.simulate.predict import default_batch, predict, subject_for

    steps = options.read_whole("--steps", args.steps, 1, MOST_STEPS)
    known = read_devices() | (read_devices(args.device_file) if args.device_file else {})
    devices = {name: device_named(name, known) for name in _listed("--devices", args.devices)}
    size = options.read_size(args.size)
    model = load_denoiser_on_meta(args.model)
    batch = default_batch(model) if args.batch is None else options.read_whole("--batch", args.batch, 1, 64)
    height, width = native_size(model) if size is None else (size[1], size[0])
    print("recording kernels ...", file=sys.stderr)
    generations = _generations(subject_for(model, (height, width), batch), steps, _listed("--methods", args.methods))
    predictions = predict(generations, devices)
    setting = {"model": args.model, "size": [height, width], "steps": steps, "batch": batch, "dtype": "bfloat16"}
    if args.json:
        sources = {name: device.source for name, device in devices.items()}
        rows = [prediction.to_dict() for prediction in predictions]
        print(json.dumps({"simulated": True, **setting, "devices": sources, "predictions": rows}, indent=1))
        return 0
    print(
        f"SIMULATED, not measured. {args.model}, {width} x {height} px, {steps} steps, batch {batch}, bfloat16, "
        f"denoiser only."
    )
    print("Seconds, then speed-ups of the whole generation: eager PyTorch / CUDA graphs.\n")
    print(table(predictions))
    return 0


def table(predictions: Sequence[Prediction]) -> str:
    """A row for each method, a column for each device. FLOPs: how many times fewer; kernels: those of a step."""
    devices = list(dict.fromkeys(prediction.device for prediction in predictions))
    return "\n\n".join(_tables(predictions, devices))


def _tables(predictions: Sequence[Prediction], devices: Sequence[str]) -> list[str]:
    """One table, or several if the devices do not fit the terminal beside each other."""
    from tabulate import tabulate

    from tokenmerge.report.terminal import WIDTH

    methods = list(dict.fromkeys(prediction.method for prediction in predictions))
    found = {(prediction.method, prediction.device): prediction for prediction in predictions}
    rows = []
    for method in methods:
        first = found[method, devices[0]]
        cells = [_cell(found[method, device], method == methods[0]) for device in devices]
        rows.append([method, f"{first.multiply_adds_saved:.2f}x", f"{first.launches:,.0f}", *cells])
    whole = tabulate(rows, headers=["method", "FLOPs", "kernels", *devices], disable_numparse=True)
    if len(devices) == 1 or max(map(len, whole.splitlines())) <= WIDTH:
        return [whole]
    half = (len(devices) + 1) // 2
    return [*_tables(predictions, devices[:half]), *_tables(predictions, devices[half:])]


def _cell(prediction: Prediction, is_base: bool) -> str:
    if is_base:
        return f"{prediction.eager_seconds:.3g} / {prediction.graph_seconds:.3g} s"
    return f"{prediction.eager_speedup:.2f}x / {prediction.graph_speedup:.2f}x"


def _generations(subject: Any, steps: int, names: list[str]) -> list[Generation]:
    from tokenmerge.simulate.predict import fewer_steps, unmerged

    base = unmerged(subject, steps)
    return [base, fewer_steps(base, FEWER), *(_generation(subject, steps, name) for name in names)]


def _generation(subject: Any, steps: int, name: str) -> Generation:
    from tokenmerge.methods.named import named_config
    from tokenmerge.presets import preset
    from tokenmerge.simulate.predict import merged, tomesd_package

    method, _, text = name.partition(":")
    ratio = options.read_value(text) if text else None
    try:
        options.check_method(method, [PACKAGE])
        found = next((known for known in PRESETS if known == method), None)
        if found is not None:
            if text:
                raise UsageError("a preset has its own ratio: leave it out, or name a method.")
            return merged(subject, preset(found, subject.model), steps, name)
        if method == PACKAGE:
            return tomesd_package(subject, steps, 0.5 if ratio is None else ratio)
        return merged(subject, named_config(method, ratio), steps, name)
    except TokenMergeError as error:
        raise UsageError(f"--methods {name}: {error}") from None


def _listed(option: str, text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise UsageError(f"{option} is empty: name at least one, separated by commas.")
    if len(set(names)) < len(names):
        raise UsageError(f"{option} names one thing twice ({text}): name each once.")
    return names
