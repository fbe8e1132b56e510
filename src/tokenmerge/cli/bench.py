"""`tokenmerge bench`: how fast each method is, on this machine, side by side."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenmerge.cli.bench_generation import add_generation, run_generation_bench
from tokenmerge.cli.options import add_pickle_option
from tokenmerge.errors import UsageError
from tokenmerge.methods.named import METHODS

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from torch import nn

    from tokenmerge.bench.result import Kind
    from tokenmerge.bench.session import MakeTrials

DESCRIPTION = """\
Times merging methods on a model of full size with random weights; nothing is downloaded.
In every repeat each method has its turn on the same model, so that noise hits all alike.

  tokenmerge bench                                    Stable Diffusion 1.5 at 512 px
  tokenmerge bench --model sdxl --ratios 0.5 --out sdxl.json --plot sdxl.svg
  tokenmerge bench --model flux --blocks 1,2          a Flux of 1 double and 2 single blocks
  tokenmerge bench ops                                merge, unmerge and selection alone
  tokenmerge bench scaling                            one block of SDXL from 512 to 2048 px
  tokenmerge bench --model sdxl generation --count-only   whole generations, and rivals
  tokenmerge bench --model sdxl --submit sdxl.json    presets on your GPU, in a file for an issue
  tokenmerge bench table                              put results into benchmarks/README.md
"""
MODEL_METHODS = ("none", "tomesd-package", "toma", "toma-stack", "tile-mean", "lower-bound")
SCALING_METHODS = ("none", "tomesd-package", "toma", "toma-stack")
INTERRUPTED = 130  # what shells report after Ctrl-C


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add `bench` and its own commands."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "bench",
        help="time merging methods side by side",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(bench="model")
    parser.add_argument(
        "--model",
        default="sd15",
        help="sd15, sd21, sdxl, pixart, sd3-medium, flux, ... with random weights; or emoji-sd, photo-flux "
        "or a folder with a diffusers model (default: sd15)",
    )
    parser.add_argument("--size", help="pixels: 768, or 768x512 for width x height (default: the model's own)")
    parser.add_argument(
        "--methods",
        help=f"any of none, tomesd-package (the one on PyPI), {', '.join(METHODS)} "
        f"(default: {','.join(MODEL_METHODS)})",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="OPTION=VALUE",
        help="an option of the methods, such as skip_blocks=0; repeat for more",
    )
    parser.add_argument(
        "--blocks", help="fewer blocks than the real model has, to fit small memory: 1,2 for Flux, 4 for PixArt or SD3"
    )
    parser.add_argument(
        "--compile",
        nargs="?",
        const="blocks",
        choices=("blocks", "model"),
        help="torch.compile the transformer blocks, or the whole model; each turn compiles again, untimed",
    )
    add_pickle_option(parser)
    parser.add_argument("--no-limit", action="store_true", help="do not time the model with its blocks deleted")
    parser.add_argument(
        "--submit",
        type=Path,
        metavar="FILE",
        help="instead, write times of the presets, images' PSNR, device and versions into one JSON file for an issue",
    )
    _add_common(parser, ratios="0.5,0.75")

    commands = parser.add_subparsers(title="other benchmarks", metavar="NAME")
    ops = commands.add_parser("ops", help="merge, unmerge and selection alone, against the tomesd package")
    ops.set_defaults(bench="ops")
    ops.add_argument("--tokens", default="4096,1024", help="tokens of an image, squares (default: 4096,1024)")
    ops.add_argument("--channels", default="640", help="widths of a token, such as 320,640,1280 (default: 640)")
    _add_common(ops, ratios="0.25,0.5,0.75", nested=True)

    scaling = commands.add_parser("scaling", help="one block of SDXL at growing image sizes")
    scaling.set_defaults(bench="scaling")
    scaling.add_argument("--sizes", default="512,768,1024,1536,2048", help="pixels (default: 512,768,1024,1536,2048)")
    scaling.add_argument("--channels", default="640", help="640 or 1280: which of SDXL's two levels (default: 640)")
    scaling.add_argument(
        "--methods", default=",".join(SCALING_METHODS), help=f"as above (default: {','.join(SCALING_METHODS)})"
    )
    _add_common(scaling, ratios="0.5", nested=True)

    generation = add_generation(commands)
    table = commands.add_parser("table", help="write the tables of benchmarks/README.md from committed results")
    table.set_defaults(bench="table")
    table.add_argument(
        "--results", type=Path, default=Path("benchmarks"), help="folder of results (default: benchmarks)"
    )
    table.add_argument("--check", action="store_true", help="change nothing; exit code 1 if a table is out of date")
    for command in (ops, scaling, generation, table):
        command.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    return parser


def _add_common(parser: argparse.ArgumentParser, ratios: str, nested: bool = False) -> None:
    parser.add_argument("--ratios", default=ratios, help=f"fractions of tokens merged away (default: {ratios})")

    def add(flag: str, default: Any, help: str, **kind: Any) -> None:
        # A nested command must not put its default over what was given before its name.
        parser.add_argument(flag, default=argparse.SUPPRESS if nested else default, help=help, **kind)

    add("--batch", 1, "samples in a call (default: 1)", type=int)
    add("--repeats", 5, "turns of each method (default: 5)", type=int)
    add("--device", None, "cpu, cuda, cuda:1 or mps (default: the best there is)")
    add("--dtype", None, "float32, float16 or bfloat16 (default: float32 on a CPU, half precision elsewhere)")
    add("--threads", None, "CPU threads torch may use (default: as many as it takes by itself)", type=int)
    add("--out", None, "result file (.json), written after every repeat", type=Path)
    add("--resume", False, "continue the result file: measure the repeats it lacks", action="store_true")
    add("--overwrite", False, "replace the result file", action="store_true")
    add("--plot", None, "plot the result into this file (.svg, .png, .pdf); needs matplotlib", type=Path)
    add("--json", False, "print the result as JSON instead of a table", action="store_true")


def run(args: argparse.Namespace) -> int:
    """Run what was asked for; the exit code."""
    commands = {"model": _run_model, "ops": _run_ops, "scaling": _run_scaling, "generation": _run_generation}
    return {**commands, "table": _run_table}[args.bench](args)


def _run_model(args: argparse.Namespace) -> int:
    if args.submit is not None:
        from tokenmerge.bench.subject import default_size as own_size
        from tokenmerge.cli.bench_submit import run_submit

        return run_submit(args, _height_and_width(args.size or str(own_size(args.model))))
    from tokenmerge.bench.contenders import check_methods
    from tokenmerge.bench.model_bench import model_trials
    from tokenmerge.bench.options import fractions, joined, place_and_precision, whole_numbers
    from tokenmerge.bench.subject import default_size, load_model, subject_of
    from tokenmerge.cli.options import read_settings

    ratios = fractions("--ratios", args.ratios)
    methods = _methods(args.methods or ",".join(MODEL_METHODS))
    chosen = read_settings(args.set)
    check_methods(methods, ratios, chosen)
    height, width = _height_and_width(args.size or str(default_size(args.model)))
    blocks = None if args.blocks is None else whole_numbers("--blocks", args.blocks)
    device, dtype = place_and_precision(args)
    _check_outputs(args)
    model = load_model(args.model, device, dtype, blocks, args.allow_pickle)
    if args.methods is None:
        methods = _without_unfit_package(methods, model)
    subject = subject_of(model, (height, width), args.batch)
    settings = {
        "model": args.model,
        "size": [height, width],
        "methods": methods,
        "set": args.set,
        "limit": not args.no_limit,
        "blocks": blocks,
        "compile": args.compile,
    }
    options = {
        "--model": args.model,
        "--size": str(height) if height == width else f"{width}x{height}",
        "--methods": ",".join(methods),
        "--set": args.set,
        "--blocks": None if blocks is None else joined(blocks),
        "--compile": args.compile,
        "--allow-pickle": args.allow_pickle,
        "--no-limit": args.no_limit,
    }

    def make_trials(earlier: Any) -> Any:
        return model_trials(
            subject, methods, ratios, options=chosen, limit=not args.no_limit, how=args.compile, earlier=earlier
        )

    return _measure("model", "bench", args, settings, options, ratios, device, dtype, make_trials)


def _run_ops(args: argparse.Namespace) -> int:
    from tokenmerge.bench.contenders import PACKAGE, check_methods
    from tokenmerge.bench.ops import operation_trials
    from tokenmerge.bench.options import fractions, joined, place_and_precision, whole_numbers

    ratios = fractions("--ratios", args.ratios)
    check_methods([PACKAGE], ratios)
    tokens = whole_numbers("--tokens", args.tokens)
    channels = whole_numbers("--channels", args.channels)
    device, dtype = place_and_precision(args)
    _check_outputs(args)
    settings = {"tokens": tokens, "channels": channels}
    options = {"--tokens": joined(tokens), "--channels": joined(channels)}

    def make_trials(earlier: Any) -> Any:
        return operation_trials(tokens, channels, ratios, args.batch, device, dtype, earlier)

    return _measure("ops", "bench ops", args, settings, options, ratios, device, dtype, make_trials)


def _run_scaling(args: argparse.Namespace) -> int:
    from tokenmerge.bench.contenders import check_methods
    from tokenmerge.bench.one_block import PIXELS_A_TOKEN, build_one_block
    from tokenmerge.bench.options import fractions, joined, listed, place_and_precision
    from tokenmerge.bench.scaling import scaling_trials

    ratios = fractions("--ratios", args.ratios)
    methods = _methods(args.methods or ",".join(SCALING_METHODS))
    check_methods(methods, ratios)
    pixels = [_height_and_width(side)[0] for side in listed(args.sizes)]
    widths = {str(width): width for width in PIXELS_A_TOKEN}
    if args.channels not in widths:
        raise UsageError(f"--channels is {args.channels!r}: SDXL's blocks are 640 or 1280 wide, so give one of these.")
    channels = widths[args.channels]
    device, dtype = place_and_precision(args)
    _check_outputs(args)
    settings = {"sizes": pixels, "channels": channels, "methods": methods}
    options = {"--sizes": joined(pixels), "--channels": channels, "--methods": ",".join(methods)}

    def make_trials(earlier: Any) -> Any:
        model = build_one_block(channels, device, dtype)
        return scaling_trials(model, pixels, methods, ratios, args.batch, earlier)

    return _measure("scaling", "bench scaling", args, settings, options, ratios, device, dtype, make_trials)


def _run_generation(args: argparse.Namespace) -> int:
    from tokenmerge.bench.subject import default_size

    _check_outputs(args)
    return run_generation_bench(args, _height_and_width(args.size or str(default_size(args.model))))


def _run_table(args: argparse.Namespace) -> int:
    from tokenmerge.bench.readme import MARK, full_text, load_results
    from tokenmerge.runtime.marked import update

    page = args.results / "README.md"
    if update(page, MARK, full_text(load_results(args.results)), args.check):
        return 0
    print(f"{page} is out of date: run `tokenmerge bench table`." if args.check else f"{page} updated.")
    return 1 if args.check else 0


def _measure(
    kind: Kind,
    command: str,
    args: argparse.Namespace,
    settings: dict[str, Any],
    options: Mapping[str, Any],
    ratios: list[float],
    device: torch.device,
    dtype: torch.dtype,
    make_trials: MakeTrials,
) -> int:
    """Run trials to a result, and show it."""
    from tokenmerge.bench.options import full_command
    from tokenmerge.bench.plots import plot
    from tokenmerge.bench.session import Output, run_session
    from tokenmerge.bench.tables import machine_line, table_of, title_of
    from tokenmerge.runtime.machine import pinned_threads

    settings |= {
        "batch": args.batch,
        "ratios": ratios,
        "dtype": str(dtype).removeprefix("torch."),
        "device": str(device),
    }
    with pinned_threads(args.threads) as threads:
        words = full_command(command, options, args, settings, threads)
        output = Output(args.out, args.resume, args.overwrite)
        result, finished = run_session(kind, settings, words, device, make_trials, args.repeats, output)
    if args.plot is not None and any(measurement.repeats for measurement in result.measurements):
        plot(result, args.plot)
    if args.json:
        print(json.dumps(result.to_dict(), indent=1))
    else:
        print(f"{title_of(result)}\n\n{table_of(result)}\n\n{machine_line(result)}")
    if not finished:
        kept = (
            f"what was measured is in {args.out}; --resume goes on" if args.out else "with --out it could go on later"
        )
        print(f"Stopped: {kept}.", file=sys.stderr)
        return INTERRUPTED
    return 0


def _height_and_width(text: str) -> tuple[int, int]:
    from tokenmerge.cli.options import read_size

    size = read_size(text)
    assert size is not None
    width, height = size
    return height, width


def _methods(text: str) -> list[str]:
    """The methods named, and the plain model in any case: everything is measured against it."""
    from tokenmerge.bench.contenders import NONE
    from tokenmerge.bench.options import listed

    methods = listed(text)
    return methods if NONE in methods else [NONE, *methods]


def _check_outputs(args: argparse.Namespace) -> None:
    from tokenmerge.bench.plots import require_plotting
    from tokenmerge.bench.session import Output

    Output(args.out, args.resume, args.overwrite).check()
    if args.plot is not None:
        require_plotting(args.plot)


def _without_unfit_package(methods: list[str], model: nn.Module) -> list[str]:
    """Of methods nobody asked for by name, the tomesd package may be left out, but not in silence."""
    from tokenmerge.accelerations.tomesd_package import why_not
    from tokenmerge.bench.contenders import PACKAGE

    reason = why_not(model)
    if reason is None:
        return methods
    print(f"{PACKAGE} is left out: {reason}.", file=sys.stderr)
    return [method for method in methods if method != PACKAGE]
