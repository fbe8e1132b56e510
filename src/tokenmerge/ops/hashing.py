"""Random numbers that can be repeated: a hash and no generator, so nothing is carried from call to call."""

from __future__ import annotations

from torch import Tensor


def scrambled(numbers: Tensor, seed: int | Tensor) -> Tensor:
    """Random-looking numbers below 2**32, one for each of `numbers`, and on any device the same.

    seed: which random numbers; a tensor () if it changes from step to step and compiled code must not. Sequences of
        neighbouring seeds are one sequence, shifted by one.
    """
    key = (seed * 0x9E3779B1 + 0x85EBCA77) & 0xFFFFFFFF
    mixed = (numbers * 0x9E3779B1 + key) & 0xFFFFFFFF
    for multiplier, shift in ((0x7FEB352D, 16), (0x846CA68B, 15), (0x7FEB352D, 16)):
        mixed = ((mixed ^ (mixed >> shift)) * multiplier) & 0xFFFFFFFF
    return mixed ^ (mixed >> 16)
