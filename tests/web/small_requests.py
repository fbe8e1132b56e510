"""Requests that cost little: the tiny random model, a small image, few steps."""

from __future__ import annotations

import dataclasses
from typing import Any

from tokenmerge.web.bounds import Inputs

SMALL = Inputs(
    preset="my own",
    prompt="red apple",
    seed=0,
    steps=2,
    size="128",
    guidance="",
    model="tiny-random",
    method="toma",
    ratio=0.5,
    tile=4,
    region="tile",
    scope="site",
    parts=["self", "cross", "mlp"],
    select_every=5,
)


def small(**changes: Any) -> Inputs:
    """The small inputs with some of them changed."""
    return dataclasses.replace(SMALL, **changes)
