"""Reads what a user typed after `tokenmerge bench`, and writes it out again in full, to be repeated."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tokenmerge.errors import UsageError
from tokenmerge.runtime.devices import pick_device, pick_dtype


def listed(text: str) -> list[str]:
    """Words between commas.

    >>> listed("none, toma")
    ['none', 'toma']
    """
    return [word.strip() for word in text.split(",") if word.strip()]


def whole_numbers(flag: str, text: str) -> list[int]:
    """Whole numbers of at least 1 between commas."""
    words = listed(text)
    if not words or not all(re.fullmatch(r"[1-9]\d*", word) for word in words):
        raise UsageError(f"{flag} is {text!r}: it takes whole numbers of at least 1, with commas between.")
    return [int(word) for word in words]


def fractions(flag: str, text: str) -> list[float]:
    """Numbers between commas."""
    try:
        return [float(word) for word in listed(text)]
    except ValueError:
        raise UsageError(f"{flag} is {text!r}: it takes numbers with commas between, such as 0.5,0.75.") from None


def place_and_precision(args: argparse.Namespace) -> tuple[torch.device, torch.dtype]:
    """The device and dtype to measure on, once all that the benchmarks have in common is found to be right."""
    for flag, value in (("--repeats", args.repeats), ("--batch", args.batch), ("--threads", args.threads)):
        if value is not None and value < 1:
            raise UsageError(f"{flag} is {value}: it takes a whole number of at least 1.")
    device = pick_device(args.device)
    return device, pick_dtype(args.dtype, device)


def full_command(
    command: str, options: Mapping[str, Any], args: argparse.Namespace, settings: Mapping[str, Any], threads: int
) -> str:
    """The command with every default written out, so that it asks for the same on any machine.

    None and False leave an option out, True gives it without a value, a list gives it again for each item.
    """
    shared = {
        "--batch": args.batch,
        "--ratios": joined(settings["ratios"]),
        "--repeats": args.repeats,
        "--device": settings["device"],
        "--dtype": settings["dtype"],
        "--threads": threads,
        "--out": args.out,
    }
    words = ["tokenmerge", *command.split()]
    for flag, value in {**options, **shared}.items():
        if value is True:
            words.append(flag)
        elif isinstance(value, list):
            words += [word for item in value for word in (flag, item)]
        elif value is not None and value is not False:
            words += [flag, str(value)]
    return shlex.join(words)


def joined(numbers: Sequence[float]) -> str:
    return ",".join(f"{number:g}" for number in numbers)
