"""Training steps through a merged model."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from row import Row
from tiny_models import TinyModel, made, tiny
from torch import Tensor, nn

GRID = (8, 8)
STEPS = 3


def train(kind: TinyModel, model: nn.Module) -> Tensor:
    """The losses of a few steps and what the last one gave: a mean hides what merging does to single pixels.

    The model is as it was afterwards, so that it can be trained again.
    """
    start = {name: value.clone() for name, value in model.state_dict().items()}
    inputs = kind.inputs([1, 2], GRID)
    with torch.no_grad():
        goal = torch.tanh(model(**inputs, return_dict=False)[0]) * 0.5
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    losses = []
    for _ in range(STEPS):
        output = model(**inputs, return_dict=False)[0]
        loss = (output - goal).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for name, weight in model.named_parameters():
            assert weight.grad is not None, f"{name} gets no gradient"
        optimizer.step()
        losses.append(loss.detach())
    assert losses[-1] < losses[0], f"the loss does not fall: {losses}"
    model.load_state_dict(start)
    return torch.cat([torch.stack(losses), output.detach().flatten()])


def checkpoint_gradients(model: Any) -> Any:
    model.enable_gradient_checkpointing()
    return model.train()


KINDS = {"SD 1.5": tiny("sd15"), "SDXL": tiny("sdxl"), "Flux": tiny("flux")}
ROWS = [
    Row(
        "training",
        name,
        on,
        partial(made, kind.build),
        switch_on,
        partial(train, kind),
        partial(train, kind),
        changes=False,
        single_steps=True,
        remark="every weight gets a gradient, and the loss falls",
    )
    for name, switch_on in (("a training step", nn.Module.train), ("gradient checkpointing", checkpoint_gradients))
    for on, kind in KINDS.items()
]
