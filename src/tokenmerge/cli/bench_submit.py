"""`tokenmerge bench --submit`: measures what we cannot measure without a GPU, into one file for an issue."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from tokenmerge.errors import UsageError

STEPS = 20


def run_submit(args: argparse.Namespace, size: tuple[int, int]) -> int:
    from tabulate import tabulate

    from tokenmerge.bench.options import place_and_precision, whole_numbers
    from tokenmerge.bench.subject import load_model, subject_of
    from tokenmerge.bench.submit import submission
    from tokenmerge.cli.files import writable_json
    from tokenmerge.runtime.files import write_atomically
    from tokenmerge.runtime.machine import pinned_threads

    for flag in ("resume", "plot", "compile", "methods"):
        if getattr(args, flag):
            raise UsageError(f"--{flag} is not for --submit, which measures the presets: leave it out.")
    file = writable_json("--submit", args.submit)
    device, dtype = place_and_precision(args)
    blocks = None if args.blocks is None else whole_numbers("--blocks", args.blocks)
    subject = subject_of(load_model(args.model, device, dtype, blocks, args.allow_pickle), size, args.batch)
    settings = {
        "model": args.model,
        "size": list(size),
        "batch": args.batch,
        "blocks": blocks,
        "device": str(device),
        "dtype": str(dtype).removeprefix("torch."),
    }
    with pinned_threads(args.threads):
        found = submission(subject, settings, STEPS, args.repeats, say=lambda text: print(text, file=sys.stderr))
    text = json.dumps(found, indent=1) + "\n"
    write_atomically(file, text)
    if args.json:
        print(text, end="")
        return 0
    print(tabulate(_rows(found), ["what", "method", "speed-up", "PSNR"], disable_numparse=True))
    print(f"\nwritten to {args.submit}: please attach it to an issue. docs/gpu.md says what we expect it to show.")
    return 0


def _rows(found: dict[str, Any]) -> list[list[str]]:
    timed = [
        [found["settings"]["model"], row["method"], f"{row['speedup']:.2f}x", ""] for row in found["generations"][1:]
    ]
    compared = [
        [row["model"], row["method"], "", "identical" if row["psnr"] is None else f"{row['psnr']:.1f} dB"]
        for row in found["images"]
        if "psnr" in row
    ]
    return timed + compared
