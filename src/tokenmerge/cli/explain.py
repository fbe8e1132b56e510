"""`tokenmerge explain`: what would be merged where, and what it should save. Needs no weights."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from tokenmerge.architectures import ARCHITECTURES
from tokenmerge.cli import options

LARGEST_BATCH = 64


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    rows = [f"  {name.ljust(12)}  {known.title}" for name, known in ARCHITECTURES.items()]
    models = "\n".join(["models:", *rows, "  or anything that `tokenmerge generate --model` takes"])
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "explain",
        help="what would be merged where in a model, and what it saves",
        description="Show block by block what would be merged in a model, and the multiply-adds it saves. Nothing is "
        "downloaded or drawn: the model is built without weights.",
        epilog=f"{models}\n\n{options.methods_listed()}",
        formatter_class=options.HelpFormatter,
    )
    parser.add_argument("--model", metavar="MODEL", help="sd15, sdxl, flux, ... (below), a folder or a hub id")
    parser.add_argument("--size", metavar="WIDTHxHEIGHT", help="in pixels (default: what the model was made for)")
    parser.add_argument(
        "--batch", default="1", metavar="N", help="images at once; guidance doubles them in most models (default: 1)"
    )
    options.add_method_options(parser)
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    return parser


def run(args: argparse.Namespace) -> int:
    config = options.read_method(args)
    assert config is not None
    size = options.read_size(args.size)
    batch = options.read_whole("--batch", args.batch, 1, LARGEST_BATCH)

    from tokenmerge.api import apply
    from tokenmerge.pipelines import load_denoiser_on_meta

    model = load_denoiser_on_meta(args.model)
    handle = apply(model, config)
    print("counting multiply-adds ...", file=sys.stderr)
    explanation = handle.explain(size=None if size is None else (size[1], size[0]), batch=batch)
    print(json.dumps(explanation.to_dict(), indent=2) if args.json else explanation)
    return 0
