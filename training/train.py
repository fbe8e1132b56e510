"""Trains a model at one size or several; stop it at any time and run the same command again to go on.

    python -m training.train emoji-sd --size 128 --levels 3 --samples 100000
    python -m training.train emoji-sd --size 256 512 --samples 100000
    python -m training.train photo-flux --size 64 128 256 --window 16 --batch 32 --samples 100000

`--levels 3` trains the three innermost levels of `emoji-sd`. With several sizes each step takes one, and larger
images come in smaller batches, so that each size gets the same work; a size named twice is taken twice as often.
`--samples` counts all runs at the first size. `--merge 0.5` trains images of 512 px with half of their tokens merged,
in about half the time; finish without it.
Writes DIR/<model>.pt (weights, averaged weights, optimiser, counters) and appends to DIR/<model>.jsonl.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import signal
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

import tokenmerge
from tokenmerge.zoo import folder_of
from training.courtesy import Courtesy
from training.data import work_parser
from training.emoji_sd import EmojiSD
from training.exchange import Exchange
from training.package import take_over_files, take_over_weights
from training.photographs import TOKEN
from training.quick import compile_blocks, half_precision, quick_operations
from training.recipes import RECIPES
from training.run import Run

WARMUP_STEPS = 20
LOG_STEPS = 50
PAUSE_SECONDS = 2.0
MERGED_SIZE = 512
MERGED_TOKENS = 1024  # levels with fewer are cheap as they are


class Batches(Protocol):
    """Training data at one size."""

    def batch(self, count: int) -> tuple[Tensor, ...]:
        """The arguments of a model's `loss` for `count` samples."""


def learning_rate(peak: float, step_in_run: int, fraction: float, decay: float) -> float:
    """Warm-up at every start, then constant, then a cosine to a twentieth over the last `decay` of the samples."""
    warm = min(1.0, (step_in_run + 1) / WARMUP_STEPS)
    left = max(0.0, min(1.0, (1 - fraction) / decay)) if decay else 1.0
    return peak * warm * (0.05 + 0.95 * 0.5 * (1 - math.cos(math.pi * left)))


@contextmanager
def stop_requests() -> Iterator[list[int]]:
    """A list that gets an entry when the process is asked to end; the step under way is finished and saved."""
    caught: list[int] = []
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, lambda got, _: caught.append(got)) for number in numbers]
    try:
        yield caught
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def wait_while_paused(pause_file: Path | None, run: Run, stopping: list[int]) -> None:
    """Save and sleep while the file exists, so that others can measure; a request to stop ends the wait."""
    if pause_file is None or not pause_file.exists():
        return
    run.save()  # a machine that is switched off in the meantime costs nothing
    while pause_file.exists() and not stopping:
        time.sleep(PAUSE_SECONDS)


def batch_size(args: argparse.Namespace, size: int) -> int:
    """As many samples as keep the number of latent pixels a step that of the first size."""
    first, this = args.size[0], size
    if args.window:  # of larger frames only a window is trained
        first, this = min(first, args.window * TOKEN), min(this, args.window * TOKEN)
    return int(max(1, round(args.batch * (first / this) ** 2)))


def merging(model: nn.Module, ratio: float | None, size: int) -> AbstractContextManager[object]:
    """Tokens merged for one step, where that is wanted and pays."""
    if ratio is None or size < MERGED_SIZE:
        return nullcontext()
    denoiser = model.unet if isinstance(model, EmojiSD) else model.transformer
    return tokenmerge.merged(denoiser, tokenmerge.ToMA(ratio=ratio, min_tokens=MERGED_TOKENS, skip_blocks=0))


def step(args: argparse.Namespace, run: Run, images: Batches, size: int, rate: float) -> float:
    """One optimiser step; returns the loss."""
    run.set_rate(rate)
    samples = batch_size(args, size)
    with (
        merging(run.model, args.merge, size),
        quick_operations(args.half and not args.compile),
        half_precision(args.compile),
    ):
        loss = run.model.loss(*images.batch(samples), args.bias)  # type: ignore[operator]
    loss.backward()
    nn.utils.clip_grad_norm_(run.model.parameters(), 1.0)
    for optimizer in run.optimizers:
        optimizer.step()
        optimizer.zero_grad()
    run.done["step"] += 1
    run.done["samples"] += samples
    if run.exchange is not None:
        run.exchange.meet(run.done["step"])
    run.average.update(run.done["step"])
    return float(loss.detach())


def train(args: argparse.Namespace, run: Run, images: dict[int, Batches]) -> bool:
    """Steps until the first size has its samples, or a signal asks to stop; true when there is no more to do."""
    done, courtesy, first_step = run.done, Courtesy(), run.done["step"]
    losses: dict[int, list[float]] = {size: [] for size in args.size}
    at_size = done["at_size"] = dict.fromkeys(args.size, 0) | done["at_size"]
    began = saved = time.monotonic()
    spent = time.process_time()
    with stop_requests() as stopping:
        while not stopping:
            fraction = max(at_size[args.size[0]] / args.samples, (time.monotonic() - began) / 60 / args.minutes)
            if fraction >= 1:
                break
            rate = learning_rate(args.lr, done["step"] - first_step, fraction, args.decay)
            size = random.choice(args.size)
            losses[size].append(step(args, run, images[size], size, rate))
            at_size[size] += batch_size(args, size)
            if not args.compile:  # another number of threads would compile every block again
                courtesy.look()
            wait_while_paused(args.pause_file, run, stopping)
            spent, before = time.process_time(), spent
            done["core_seconds"] += spent - before
            if done["step"] % LOG_STEPS == 0:
                log(args, run, rate, losses)
                losses = {size: [] for size in args.size}
            if time.monotonic() - saved > args.save_every:
                run.save()
                saved = time.monotonic()
        run.save()
    return not stopping


def log(args: argparse.Namespace, run: Run, rate: float, losses: dict[int, list[float]]) -> None:
    """Append one line for each size to the model's log."""
    with run.path.with_suffix(".jsonl").open("a") as file:
        for size, values in losses.items():
            line = {"size": size, **{key: run.done[key] for key in ("step", "samples", "images")}}
            line |= {"core_seconds": round(run.done["core_seconds"]), "lr": round(rate, 7)}
            if values:
                file.write(json.dumps(line | {"loss": round(sum(values) / len(values), 5)}) + "\n")


def parse() -> argparse.Namespace:
    parser = work_parser("Trains one model.")
    parser.add_argument("model", choices=list(RECIPES))
    parser.add_argument("--size", type=int, nargs="+", required=True, choices=[64, 128, 256, 512], help="pixels a side")
    parser.add_argument("--samples", type=int, required=True, help="samples at the first size, over all runs")
    parser.add_argument("--minutes", type=float, default=math.inf, help="end this run then, with the rate fallen")
    parser.add_argument("--images", type=int, default=None, help="only the first this many of captions.txt")
    parser.add_argument("--levels", type=int, choices=[2, 3, 4], help="only this many inner levels of emoji-sd's UNet")
    parser.add_argument("--batch", type=int, default=16, help="samples a step")
    parser.add_argument("--lr", type=float, default=1e-3, help="peak learning rate")
    parser.add_argument("--decay", type=float, default=0.0, help="last fraction of the samples with falling rate")
    parser.add_argument("--average", type=float, default=0.999, help="decay of the averaged weights")
    parser.add_argument("--bias", type=float, default=0.7, help="below 1: more of the noisy steps")
    parser.add_argument("--merge", type=float, default=None, help="fraction of tokens merged away at 512 px")
    parser.add_argument("--window", type=int, default=None, help="tokens a side at most; photo-flux trains crops above")
    parser.add_argument("--wide", type=float, default=0.0, help="share of photo-flux's steps laid out as for 512 px")
    parser.add_argument("--route", type=float, default=0.0, help="share of tokens past photo-flux's middle blocks")
    parser.add_argument("--align", type=float, default=0.0, help="weight of photo-flux's loss of alignment")
    parser.add_argument("--clear", type=int, default=None, help="photographs of a variety at most, the clearest")
    parser.add_argument("--often", nargs="+", default=(), metavar="CAPTION", help="varieties to sample more often")
    parser.add_argument("--worker", type=int, choices=[0, 1], help="which of two processes this one is; 0 is evaluated")
    parser.add_argument("--half", action="store_true", help="bfloat16 and quicker operations, for CPUs that have it")
    parser.add_argument("--compile", action="store_true", help="bfloat16 in compiled blocks of a Flux transformer")
    parser.add_argument("--from-package", action="store_true", help="without a checkpoint, go on from packaged weights")
    parser.add_argument("--pause-file", type=Path, default=None, help="training sleeps while this file exists")
    parser.add_argument("--save-every", type=float, default=180, help="seconds between checkpoints")
    return parser.parse_args()


def main() -> None:
    args = parse()
    recipe = RECIPES[args.model]
    path = args.work / f"{args.model}.pt"
    own = args.work / f"{args.model}-1.pt" if args.worker else path
    packaged = folder_of(args.model) if args.from_package and not path.exists() else None
    if packaged is not None:
        take_over_files(packaged, recipe.tokenizer_folder(args.work), args.work / recipe.autoencoder)
    tokenizer = recipe.tokenizer(args.work)
    images = {size: recipe.batches(args, tokenizer, size) for size in args.size}
    torch.manual_seed(0)  # two workers start from the same weights
    model = recipe.network(tokenizer)
    if args.levels is not None:
        model.levels = args.levels  # type: ignore[assignment]
    if packaged is not None:
        take_over_weights(packaged, model)
    model.route, model.align = args.route, args.align  # type: ignore[assignment]
    if args.compile:
        compile_blocks(model.transformer)  # type: ignore[arg-type]
    run = Run(model, own, args.average)
    run.load(own if own.exists() else path)
    if args.worker is not None:
        torch.set_num_threads(1)
        run.exchange = Exchange(model, args.work, args.worker)
    run.done["images"] = len(recipe.captions(args.work)[: args.images])
    seed = 2 * run.done["step"] + (args.worker or 0)
    torch.manual_seed(seed)
    random.seed(seed)
    if not train(args, run, images):
        raise SystemExit("Stopped and saved; the same command goes on.")


if __name__ == "__main__":
    main()
