"""Two processes that train one model: each computes on one core, and now and then both move to their mean.

Averaged weights learn almost as from batches twice as large. Unlike threads, the processes never wait for each
other, so that other programs slow down only one of them.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import nn

EVERY = 20  # steps


class Exchange:
    """The weights of worker 0 or 1, in a file that the other one reads."""

    def __init__(self, model: nn.Module, folder: Path, worker: int) -> None:
        self.weights = [p for p in model.parameters() if p.requires_grad]
        self.own, self.other = (folder / f"worker-{number}.pt" for number in (worker, 1 - worker))
        self.seen = self._written()  # what an earlier run has left is of no use

    def _written(self) -> int:
        return self.other.stat().st_mtime_ns if self.other.exists() else 0

    @torch.no_grad()
    def meet(self, step: int) -> None:
        """Every few steps, publish the weights and move halfway to the other worker's, if those are new."""
        if step % EVERY:
            return
        partial = self.own.with_suffix(".partial")
        torch.save([p.detach() for p in self.weights], partial)
        os.replace(partial, self.own)
        written = self._written()
        if written != self.seen:
            self.seen = written
            torch._foreach_lerp_(self.weights, torch.load(self.other, weights_only=True), 0.5)
