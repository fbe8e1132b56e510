"""`tokenmerge explain`: what would be merged where, and what it should save. Needs no weights."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from tokenmerge.cli import options
from tokenmerge.models.published import ARCHITECTURES

if TYPE_CHECKING:
    from torch import nn

LARGEST_BATCH = 64


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    width = max(map(len, ARCHITECTURES))
    rows = [f"  {name.ljust(width)}  {known.title}" for name, known in ARCHITECTURES.items()]
    models = "\n".join(["models:", *rows, "  or anything that `tokenmerge generate --model` takes"])
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "explain",
        help="what would be merged where in a model, and what it saves",
        description="Show block by block what would be merged in a model, and the multiply-adds it saves. Nothing is "
        "downloaded or generated: the model is built without weights.",
        epilog=f"{models}\n\n{options.methods_listed()}",
        formatter_class=options.HelpFormatter,
    )
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help="sd15, sdxl, flux, ... (below), a folder or a hub id (default: an embedded model)",
    )
    parser.add_argument("--size", metavar="WIDTHxHEIGHT", help="in pixels (default: what the model was made for)")
    parser.add_argument(
        "--batch", default="1", metavar="N", help="images at once; guidance doubles them in most models (default: 1)"
    )
    parser.add_argument(
        "--steps",
        metavar="N",
        help="denoising steps; with few of them more run full, and less is saved (default: many)",
    )
    options.add_method_options(parser)
    parser.add_argument(
        "--measure",
        action="store_true",
        help="time one block of each level on this machine, and leave alone what merging does not make faster; "
        "needs the memory of the model, and gives architectures random weights",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    return parser


def run(args: argparse.Namespace) -> int:
    config = options.read_method(args)
    assert config is not None
    size = options.read_size(args.size)
    batch = options.read_whole("--batch", args.batch, 1, LARGEST_BATCH)

    from tokenmerge.api import apply
    from tokenmerge.autotune.break_even import worthwhile
    from tokenmerge.presets import preset
    from tokenmerge.report.explain import native_size
    from tokenmerge.report.terminal import filled
    from tokenmerge.runtime.denoisers import load_denoiser_on_meta
    from tokenmerge.runtime.generation import MOST_STEPS

    steps = None if args.steps is None else options.read_whole("--steps", args.steps, 1, MOST_STEPS)
    model = _with_weights(args.model) if args.measure else load_denoiser_on_meta(args.model)
    height, width = native_size(model) if size is None else (size[1], size[0])
    settled = preset(config, model) if isinstance(config, str) else config
    handle = apply(model, worthwhile(model, settled, (height, width), batch) if args.measure else settled)
    print("counting multiply-adds ...", file=sys.stderr)
    explanation = handle.explain(size=(height, width), batch=batch, steps=steps)
    print(json.dumps(explanation.to_dict(), indent=2) if args.json else filled(str(explanation)))
    return 0


def _with_weights(name: str | None) -> nn.Module:
    from tokenmerge.api import denoisers_of
    from tokenmerge.bench.subject import load_model
    from tokenmerge.runtime.devices import pick_device, pick_dtype
    from tokenmerge.runtime.pipelines import load_pipeline

    if name in ARCHITECTURES:
        device = pick_device(None)
        return load_model(name, device, pick_dtype(None, device))
    return denoisers_of(load_pipeline(name).pipe)[0]
