"""`tokenmerge serve`: the page that shows what merging does."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from tokenmerge.cli import options
from tokenmerge.errors import UsageError

LOCAL_NAMES = ("127.0.0.1", "localhost", "::1")


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "serve",
        help="see what merging does, in a browser",
        description="Serve a page that generates the same image unmerged and merged, shows what is merged inside the "
        "model, and sweeps over methods and ratios. It is served to this machine alone, and works offline with a small "
        "model. Needs the extra `web`: pip install 'tokenmerge[web]'.",
        formatter_class=options.HelpFormatter,
    )
    options.add_model_options(parser)
    group = parser.add_argument_group("the page")
    group.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="who may open the page: 127.0.0.1 is this machine alone, 0.0.0.0 is everyone who can reach it "
        "(default: 127.0.0.1)",
    )
    group.add_argument("--port", metavar="N", help="default: the first free one from 7860 on")
    return parser


def run(args: argparse.Namespace) -> int:
    port = None if args.port is None else options.read_whole("--port", args.port, 1, 65_535)
    if args.allow_pickle and args.model is None:
        raise UsageError("--allow-pickle is for the model that --model names: name it, or leave --allow-pickle out.")

    from tokenmerge.web.server import ServeOptions, serve

    def say(address: str) -> None:
        print(f"The page is at {address} (Ctrl+C ends it)", flush=True)
        if args.host not in LOCAL_NAMES:
            print(
                "note: everyone who can reach this machine can use the page, and load models with it.", file=sys.stderr
            )

    try:
        serve(ServeOptions(args.host, port, args.model, args.device, args.dtype, args.allow_pickle), say)
    except KeyboardInterrupt:
        print()
    return 0
