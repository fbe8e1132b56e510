"""How a model family tells tokenmerge where its tokens are. One small file per family fills this in."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

Arguments = tuple[Sequence[Any], Mapping[str, Any]]


@dataclass(frozen=True)
class Part:
    """A stretch of a block that can run on merged tokens, from where they enter to where they leave.

    Tokens come as (B, L, C), where the L hold the grid's tokens, perhaps with text before and others behind.
    """

    kinds: tuple[str, ...]  # what it holds: "self", "cross", "mlp"; one of several kinds replaces those of one
    module: str  # tokens are merged at this module's input
    leaves: str = ""  # and unmerged at the output of this one; the same module where empty
    enters_at: Literal["input", "output"] = "input"  # "output": merged as they come out of `module`
    attention: str = ""  # the attention module inside, where it is not `module` itself
    own_keys: bool = False  # takes keys and values for its tokens from `encoder_hidden_states`, if given
    # How the attention takes an additive mask over keys: (B, 1, keys), (B, 1, 1, keys), or not at all.
    mask: Literal["none", "3d", "4d"] = "none"
    text: Literal["none", "first", "last"] = "none"  # where joint attention puts the keys of `encoder_hidden_states`


@dataclass(frozen=True)
class Rotary:
    """Position embeddings that blocks are given as an argument, one row a token."""

    argument: str
    # (embedding, places, tokens) -> the embedding with its `tokens` image rows replaced by those at `places`;
    # rows of text stay. `places` is (M,): such embeddings have no batch axis.
    at: Callable[[Any, Tensor, int], Any]


@dataclass(frozen=True)
class Block:
    """A transformer block: takes (B, L, C) tokens as its first argument or as `hidden_states`, and returns them."""

    name: str
    module: nn.Module
    parts: tuple[Part, ...]
    output: int | None = None  # where the tokens stand, if the block returns a tuple
    rotary: Rotary | None = None


@dataclass(frozen=True)
class Stack:
    """Consecutive blocks on one grid, with nothing added to the tokens in between (but see `Call.interleaved`)."""

    name: str
    level: str  # stacks with the same level share a plan under share="level"
    owner: nn.Module  # called before the blocks, with what is needed to tell the grid
    grid: Callable[[Sequence[Any], Mapping[str, Any]], tuple[int, ...]]
    blocks: tuple[Block, ...]
    one_for_batch: bool = False  # all samples keep the same tokens: rotary embeddings without a batch axis need it
    # Tokens behind the grid's that are never merged, such as those of a reference image.
    trailing: Callable[[Sequence[Any], Mapping[str, Any]], int] = lambda args, kwargs: 0


@dataclass(frozen=True)
class Call:
    """What the root model's arguments say about a call."""

    timestep: float | None
    signature: Hashable  # batch, size, dtype, device: a change of any forgets the plan
    # Parts in which this call looks tokens up by position (IP-Adapter masks do, in cross-attention): those parts
    # are left alone, and tokens stay in grid order.
    positional: tuple[str, ...] = ()
    # Something is added to the tokens between blocks (ControlNets do, in transformers): each block must give back
    # all tokens in grid order.
    interleaved: bool = False


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
