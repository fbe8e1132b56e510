"""`tokenmerge bench generation`: whole generations, ours and rivals, as multiply-adds and as ratios of times."""

from __future__ import annotations

import argparse
import json
import statistics
from typing import TYPE_CHECKING, Any

from tokenmerge.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from tokenmerge.bench.generation import Contestant

# Fewer steps first, in this table as in every other. What random weights can show: schedules that are fixed beforehand.
FEWER = tuple(f"fewer-steps:fraction={share}" for share in (0.8, 0.65, 0.5, 0.4, 0.3))
OURS = ("preset:preset=quality", "preset:preset=balanced", "preset:preset=fast")
OF_UNETS = ("deepcache:cache_interval=2", "deepcache:cache_interval=3", "deepcache:cache_interval=5")
OF_TRANSFORMERS = (
    "taylorseer:cache_interval=5",
    "taylorseer-lite:cache_interval=2",
    "taylorseer-lite:cache_interval=3",
    "taylorseer-lite:cache_interval=5",
    "faster-cache",
    "pyramid-attention-broadcast",
)


def add_generation(commands: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        "generation",
        help="whole generations: fewer steps, caches and presets, by multiply-adds and time",
        description="Options that all benchmarks share (--model, --size, --repeats, --out, ...) stand before its name.",
    )
    parser.set_defaults(bench="generation")
    parser.add_argument("--steps", type=int, default=20, help="denoising steps of the model as it is (default: 20)")
    parser.add_argument(
        "--accelerate",
        action="append",
        metavar="NAME:OPTION=VALUE,...",
        help="an acceleration as in experiments, such as deepcache:cache_interval=3; repeat for more (default: fewer "
        "steps, the presets and the rivals whose steps are fixed beforehand)",
    )
    parser.add_argument("--count-only", action="store_true", help="count multiply-adds, build no weights and time none")
    return parser


def run_generation_bench(args: argparse.Namespace, size: tuple[int, int]) -> int:
    import torch

    from tokenmerge.bench.cost import shadow_of
    from tokenmerge.bench.generation import check_contestants, generation_multiply_adds, generation_seconds
    from tokenmerge.bench.options import place_and_precision, whole_numbers
    from tokenmerge.bench.subject import load_model, subject_of
    from tokenmerge.models import published
    from tokenmerge.runtime.machine import describe_machine, pinned_threads

    if args.steps < 1:
        raise UsageError(f"--steps is {args.steps}: it takes a whole number of at least 1.")
    for flag in ("resume", "plot", "compile"):
        if getattr(args, flag):
            raise UsageError(f"--{flag} is not for whole generations: leave it out.")
    device, dtype = place_and_precision(args)
    blocks = None if args.blocks is None else whole_numbers("--blocks", args.blocks)
    if args.count_only:
        subject = subject_of(published.build(args.model, blocks=blocks), size, args.batch)
    else:
        subject = subject_of(load_model(args.model, device, dtype, blocks, args.allow_pickle), size, args.batch)
    contestants = _contestants(args.accelerate, hasattr(subject.model, "down_blocks"))
    check_contestants(contestants, subject)
    shadow = subject if args.count_only else shadow_of(subject)
    executed = {each.name: generation_multiply_adds(shadow, each, args.steps) for each in contestants}
    times: dict[str, list[float]] = {each.name: [] for each in contestants}
    with pinned_threads(args.threads):
        # In every repeat each has its turn, so that a noisy minute hits all alike.
        for _ in range(0 if args.count_only else args.repeats):
            for each in contestants:
                times[each.name].append(generation_seconds(subject, each, args.steps))
    rows = [_row(each.name, executed, times) for each in contestants]
    settings = {"model": args.model, "size": list(size), "batch": args.batch, "steps": args.steps, "blocks": blocks}
    machine = describe_machine(torch.device("cpu") if args.count_only else device)
    result = {"kind": "generation", "settings": settings, "machine": machine, "rows": rows}
    if args.out is not None:
        from tokenmerge.runtime.files import write_atomically

        write_atomically(args.out, json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1) if args.json else _table(rows))
    return 0


def _contestants(words: list[str] | None, unet: bool) -> list[Contestant]:
    from tokenmerge.accelerations.named import named_acceleration
    from tokenmerge.bench.generation import Contestant
    from tokenmerge.cli.options import read_settings

    chosen = words or [*FEWER, *OURS, *(OF_UNETS if unet else OF_TRANSFORMERS)]
    found = [Contestant("none")]
    for word in chosen:
        name, _, options = word.partition(":")
        try:
            acceleration = named_acceleration(name, read_settings(options.split(",") if options else []))
        except ConfigError as error:
            raise UsageError(f"--accelerate {word}: {error}") from None
        found.append(Contestant(word, acceleration))
    if len({each.name for each in found}) < len(found):
        raise UsageError("--accelerate names one acceleration twice: name each once.")
    return found


def _row(name: str, executed: dict[str, int], times: dict[str, list[float]]) -> dict[str, Any]:
    row: dict[str, Any] = {"name": name, "multiply_adds": executed[name], "saved": executed["none"] / executed[name]}
    if times[name]:
        # Repeat by repeat: the two have their turns near one another, so a slow minute slows both.
        ratios = [plain / own for plain, own in zip(times["none"], times[name], strict=True)]
        row |= {"seconds": times[name], "speedup": statistics.median(ratios)}
    return row


def _table(rows: list[dict[str, Any]]) -> str:
    from tabulate import tabulate

    cells = [
        [
            row["name"],
            f"{row['multiply_adds'] / 1e12:,.2f} T",
            f"{row['saved']:.2f}x",
            f"{row['speedup']:.2f}x" if "speedup" in row else "",
        ]
        for row in rows
    ]
    return tabulate(cells, ["method", "multiply-adds", "fewer by", "speed-up"], tablefmt="pipe", disable_numparse=True)
