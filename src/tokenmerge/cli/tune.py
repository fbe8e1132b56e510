"""`tokenmerge tune`: the fastest config that keeps a quality budget on your prompts."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from tokenmerge.cli import options
from tokenmerge.cli.files import reason
from tokenmerge.errors import UsageError

MOST_PROMPTS = 1000

DESCRIPTION = """\
Generates your prompts unmerged, then with one config after the other, the one with the least work first, and stops at \
the first whose images are close enough. Save it with --out and use it with --config.

  tokenmerge tune "red apple" "old boat" --min-psnr 30 --out config.json
  tokenmerge generate "green pear" --config config.json
"""


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "tune",
        help="find the fastest settings that keep the quality you ask for",
        description=DESCRIPTION,
        formatter_class=options.HelpFormatter,
    )
    parser.add_argument("prompts", metavar="PROMPT", nargs="*", help="what you generate, in quotes; a handful")
    parser.add_argument("--prompts", dest="file", metavar="FILE", help="a text file with a prompt on each line")
    parser.add_argument(
        "--min-psnr", default="30", metavar="DB", help="decibels to the unmerged image, on average (default: 30)"
    )
    parser.add_argument("--seeds", default="1", metavar="N", help="images of each prompt (default: 1)")
    parser.add_argument("--steps", default="20", metavar="N", help="denoising steps (default: 20)")
    parser.add_argument("--size", metavar="WIDTHxHEIGHT", help="in pixels, 768x512 or 512 (default: the model's own)")
    parser.add_argument("--guidance", metavar="X", help="how strictly to follow the prompt (default: the model's own)")
    options.add_model_options(parser)
    parser.add_argument("--out", metavar="FILE", help="where to write the config that was found, as JSON")
    parser.add_argument("--json", action="store_true", help="print all that was tried as JSON instead of a table")
    return parser


def run(args: argparse.Namespace) -> int:
    prompts = _prompts(args)
    min_psnr = _decibels(args.min_psnr)
    seeds = options.read_whole("--seeds", args.seeds, 1, 100)
    asked: dict[str, Any] = {"num_inference_steps": options.read_whole("--steps", args.steps, 1, 1000)}
    size, guidance = options.read_size(args.size), options.read_guidance(args.guidance)
    if size is not None:
        asked["width"], asked["height"] = size

    from tokenmerge.cli.files import writable_folder
    from tokenmerge.cli.report import print_notice
    from tokenmerge.runtime.files import write_json

    file = None if args.out is None else Path(args.out).expanduser()
    if file is not None:
        if file.is_dir():
            raise UsageError(f"--out is {args.out!r}, a folder: give a file, such as config.json.")
        writable_folder(file.parent)

    from tokenmerge.autotune.tune import tune
    from tokenmerge.report.terminal import filled
    from tokenmerge.runtime.generation import ImageRequest, check_request, guidance_arguments
    from tokenmerge.runtime.pipelines import load_pipeline

    loaded = load_pipeline(args.model, args.device, args.dtype, args.allow_pickle)
    print_notice(loaded)
    for prompt in prompts:
        check_request(loaded, ImageRequest(prompt, size=size, guidance=guidance))
    asked |= guidance_arguments(loaded.pipe, guidance)
    found = tune(loaded.pipe, prompts, min_psnr, seeds=range(seeds), **asked)
    if file is not None:
        write_json(file, found.config.to_dict())
    if args.json:
        print(json.dumps({**found.to_dict(), "file": None if file is None else str(file)}, indent=2))
    else:
        print(filled(str(found)))
        if file is not None:
            print(f"Written to {file}: use it with --config {file}")
    return 0


def _prompts(args: argparse.Namespace) -> list[str]:
    prompts = [prompt for prompt in args.prompts if prompt.strip()]
    if args.file is not None:
        try:
            lines = Path(args.file).expanduser().read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--prompts {args.file} cannot be read ({reason(error)}): give a text file.") from None
        prompts += [line.strip() for line in lines if line.strip()]
    if not 0 < len(prompts) <= MOST_PROMPTS:
        raise UsageError(
            f"{len(prompts)} prompts were given, and it takes 1 to {MOST_PROMPTS}: name some, as in "
            f'`tokenmerge tune "red apple" "old boat"`, or give a file with --prompts.'
        )
    return prompts


def _decibels(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 100:
        raise UsageError(f"--min-psnr is {text!r}: it takes decibels above 0 and below 100, such as 30.")
    return value
