"""How a model family tells tokenmerge where its tokens are. One small file per family fills this in."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import nn

Arguments = tuple[Sequence[Any], Mapping[str, Any]]


@dataclass(frozen=True)
class Part:
    """One stretch of a block that can run on merged tokens: from the input of a module to its output."""

    kind: Literal["self", "cross", "mlp"]
    module: str  # name inside the block
    # Self-attention whose keys may come from elsewhere: it takes `encoder_hidden_states` and an additive
    # `attention_mask` of shape (B, 1, keys).
    own_keys: bool = False


@dataclass(frozen=True)
class Block:
    """A transformer block: takes (B, N, C) tokens as its first argument or as `hidden_states`, returns them."""

    name: str
    module: nn.Module
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Stack:
    """Consecutive blocks on one grid, with nothing added to the tokens in between."""

    name: str
    level: str  # stacks with the same level share a plan under share="level"
    owner: nn.Module  # called before the blocks, with what is needed to tell the grid
    grid: Callable[[Sequence[Any], Mapping[str, Any]], tuple[int, ...]]
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Call:
    """What the root model's arguments say about a call."""

    timestep: float | None
    signature: Hashable  # batch, size, dtype, device: a change of any forgets the plan
    # Something given with this call looks tokens up by position inside blocks (IP-Adapter masks do, in
    # cross-attention): tokens stay in grid order there, and those parts are left alone.
    positional: tuple[str, ...] = ()


class Family(Protocol):
    """A family of models that tokenmerge knows."""

    name: str
    default_skip: int

    def recognises(self, model: nn.Module) -> bool:
        """Is this model one of the family?"""

    def stacks(self, model: nn.Module) -> list[Stack]:
        """Where its tokens can be merged."""

    def read_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
        """What the root model was called with."""

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        """Arguments of a call for an image of height x width pixels, on the model's device, for counting and timing."""


def is_a(model: object, *class_names: str) -> bool:
    """isinstance by name, so that diffusers need not be imported to ask."""
    return any(kind.__name__ in class_names for kind in type(model).__mro__)


def argument(arguments: Arguments, position: int, name: str) -> Any:
    """An argument that callers may pass by position or by name."""
    args, kwargs = arguments
    return args[position] if position < len(args) else kwargs.get(name)


def timestep_value(timestep: Any) -> float | None:
    """The timestep as a number; None where it has no value, as on the meta device.

    Reading it waits for the device once per call of the model, never inside a block.
    """
    if isinstance(timestep, torch.Tensor):
        return None if timestep.is_meta else float(timestep.flatten()[0])
    return None if timestep is None else float(timestep)


def signature_of(tensor: torch.Tensor) -> Hashable:
    return tuple(tensor.shape), tensor.dtype, tensor.device
