"""`tokenmerge generate`: one image, with tokens merged."""

from __future__ import annotations

import argparse
import json
from contextlib import nullcontext
from typing import Any

from tokenmerge.cli import options
from tokenmerge.errors import UsageError


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "generate",
        help="generate one image with merged tokens",
        description="Generate one image with merged tokens. Without --model it works offline, with a small model.",
        epilog=options.methods_listed(),
        formatter_class=options.HelpFormatter,
    )
    options.add_prompt_options(parser)
    options.add_method_options(parser, none_allowed=True)
    options.add_keep_option(parser)
    options.add_model_options(parser)
    group = parser.add_argument_group("the result")
    group.add_argument(
        "--out", default="image.png", metavar="FILE", help="where to write the image, over an older one (image.png)"
    )
    group.add_argument("--json", action="store_true", help="print what was done as JSON")
    return parser


def run(args: argparse.Namespace) -> int:
    wanted = options.read_image_request(args, "generate")
    config = options.read_method(args, none_allowed=True)
    keep = options.read_keep(args.keep)
    if keep is not None and config is None:
        raise UsageError("--keep says what merging must leave alone, and --method none merges nothing: leave one out.")

    from tokenmerge.cli.files import writable_image
    from tokenmerge.cli.report import about_image, print_cut, print_notice
    from tokenmerge.runtime.files import write_image

    file = writable_image(args.out)

    from tokenmerge.api import merged
    from tokenmerge.runtime.generation import check_request
    from tokenmerge.runtime.pipelines import load_pipeline

    loaded = load_pipeline(args.model, args.device, args.dtype, args.allow_pickle)
    print_notice(loaded)
    check_request(loaded, wanted)
    print_cut(loaded, wanted)
    with nullcontext() if config is None else merged(loaded.pipe, config, keep) as handle:
        image, seconds = loaded.generate(wanted, progress="generating")
    used = None if handle is None else handle.config
    about = about_image(loaded, wanted, image.size, args.method, used)
    write_image(file, image, about)
    if args.json:
        print(json.dumps({**about, "seconds": seconds, "file": str(file)}, indent=2))
    else:
        how = options.title_of(args.method, used)
        print(f"{file}: {image.width} x {image.height} px, {how}, {seconds:.2f} s")
    return 0
