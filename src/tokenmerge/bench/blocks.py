"""The limit of what merging can save: the same model with its transformer blocks deleted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn

from tokenmerge.errors import MergeRuntimeError
from tokenmerge.models.base import Family

Key = int | str  # an argument of a block: its position, or its name


@dataclass(frozen=True)
class BlockPass:
    """What a block was seen to do with its tokens: how many it got, and which arguments come out changed."""

    tokens: int
    outputs: tuple[Key | None, ...]  # the argument that each output is a new version of; None where it is None
    as_tuple: bool


def block_modules(model: nn.Module, family: Family) -> dict[str, nn.Module]:
    """Every transformer block by name."""
    return {block.name: block.module for stack in family.stacks(model) for block in stack.blocks}


def observe_blocks(model: nn.Module, family: Family, call: Callable[[], object]) -> dict[str, BlockPass]:
    """Run `call` once and note what each block takes and gives."""
    seen: dict[str, BlockPass] = {}

    def note(name: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        seen[name] = _block_pass(name, args, kwargs, output)

    handles = [
        module.register_forward_hook(partial(note, name), with_kwargs=True)
        for name, module in block_modules(model, family).items()
    ]
    try:
        call()
    finally:
        for handle in handles:
            handle.remove()
    return seen


@contextmanager
def without_blocks(model: nn.Module, family: Family, seen: Mapping[str, BlockPass]) -> Iterator[None]:
    """The model with every block handing its tokens on as they came; restored at the end, weights never touched."""
    modules = [(module, seen[name]) for name, module in block_modules(model, family).items() if name in seen]
    before = [module.__dict__.get("forward") for module, _ in modules]
    try:
        for module, block_pass in modules:
            module.__dict__["forward"] = partial(_hand_on, block_pass)
        yield
    finally:
        for (module, _), forward in zip(modules, before, strict=True):
            if forward is None:
                module.__dict__.pop("forward", None)
            else:
                module.__dict__["forward"] = forward


def _hand_on(block_pass: BlockPass, *args: Any, **kwargs: Any) -> Any:
    outputs = tuple(None if key is None else _argument(key, args, kwargs) for key in block_pass.outputs)
    return outputs if block_pass.as_tuple else outputs[0]


def _block_pass(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any) -> BlockPass:
    as_tuple = isinstance(output, (tuple, list))
    given: dict[Key, Tensor] = {place: value for place, value in enumerate(args) if isinstance(value, Tensor)}
    given.update((name, value) for name, value in kwargs.items() if isinstance(value, Tensor))
    keys: list[Key | None] = []
    for item in output if as_tuple else (output,):
        # Which of several arguments of one shape is handed on makes no difference to time.
        alike = [key for key, value in given.items() if item is not None and value.shape == item.shape]
        if item is not None and not alike:
            raise MergeRuntimeError(
                f"{name} returns something that is none of its arguments in shape, so the model cannot be timed "
                f"without it: leave the limit out with --no-limit."
            )
        keys.append(next((key for key in alike if key not in keys), alike[0]) if alike else None)
    tokens = args[0] if args else kwargs["hidden_states"]
    return BlockPass(tokens.shape[1], tuple(keys), as_tuple)


def _argument(key: Key, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return args[key] if isinstance(key, int) else kwargs[key]
