"""What a training run keeps: weights, their moving average, the optimiser and counters, in memory and on disk."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import _muon

from training.exchange import Exchange
from training.quick import computes_bfloat16


class Average:
    """Exponential moving average of the weights, which samples much better than the weights themselves."""

    def __init__(self, model: nn.Module, decay: float, every: int = 4) -> None:
        self.model, self.decay, self.every = model, decay, every
        self.weights = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Follow the model; in the first steps quickly, so that the random start is forgotten."""
        if step % self.every:
            return
        keep = min(self.decay, (1 + step) / (20 + step)) ** self.every
        live = [p.detach() for p in self.model.parameters() if p.requires_grad]
        torch._foreach_lerp_(list(self.weights.values()), live, 1 - keep)


MATRIX_RATE = 3.0  # Muon's rate relative to AdamW's; its steps are scaled to the size of AdamW's


def orthogonalised(matrix: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float) -> Tensor:
    """What Muon makes of a gradient (M, N), as PyTorch computes it but in float32."""
    linear, cubic, quintic = coefficients
    wide = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    x = wide / wide.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        x = linear * x + (cubic * gram + quintic * gram @ gram) @ x
    return x.T if matrix.shape[0] > matrix.shape[1] else x


if not computes_bfloat16():  # PyTorch's own is in bfloat16, which took most of a training step there
    _muon._zeropower_via_newtonschulz = orthogonalised


def build_optimizers(model: nn.Module) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside a transformer's blocks, which then learn from fewer samples; AdamW for the rest.

    The modulation of the blocks is left to AdamW: it starts at zero, and it has one input a sample, not one a token.
    """
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    blocks = ("transformer.transformer_blocks.", "transformer.single_transformer_blocks.")
    matrices = {name for name, p in trained.items() if name.startswith(blocks) and p.ndim == 2 and ".norm" not in name}
    others = [p for name, p in trained.items() if name not in matrices]
    adam = torch.optim.AdamW(others, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.01, fused=True)
    if not matrices:
        return [adam]
    muon = torch.optim.Muon(
        [p for name, p in trained.items() if name in matrices],
        lr=1e-3,
        weight_decay=0.01,
        momentum=0.95,
        ns_steps=4,
        adjust_lr_fn="match_rms_adamw",
    )
    return [adam, muon]


class Run:
    """One training run; `load` and `save` make it survive an interruption at any moment."""

    def __init__(self, model: nn.Module, path: Path, average_decay: float) -> None:
        self.model, self.path = model, path
        self.optimizers = build_optimizers(model)
        self.average = Average(model, average_decay)
        self.exchange: Exchange | None = None
        self.done: dict[str, Any] = {"step": 0, "samples": 0, "core_seconds": 0.0, "at_size": {}}

    def set_rate(self, rate: float) -> None:
        """The learning rate of the next step."""
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate * (MATRIX_RATE if isinstance(optimizer, torch.optim.Muon) else 1.0)

    def load(self, path: Path | None = None) -> None:
        """Go on from this run's file, or from another one, if it exists."""
        path = path or self.path
        if not path.exists():
            return
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        for optimizer, kept in zip(self.optimizers, state.get("optimizers", ()), strict=False):
            optimizer.load_state_dict(kept)
        self.average.weights = state["average"]
        self.done = state["done"]

    def save(self) -> None:
        """Write to a second file first, so that a stop in the middle never costs the old one."""
        state = {
            "model": self.model.state_dict(),
            "average": self.average.weights,
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "done": self.done,
        }
        partial = self.path.with_suffix(".partial")
        torch.save(state, partial)
        os.replace(partial, self.path)
