"""Whether blocks and parts add what they make to the tokens they are given: measured, if a family does not say.

With a residual inside, merging keeps the input and unmerges the rest: x + U(T(Mx) - Mx). Without one, the same formula
would add the input's detail to an output that never had it. Which of the two is nearer is how a small change of the
tokens comes out again: all of it with a residual, hardly any without.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from tokenmerge.engine.arguments import TokenArgument, token_argument
from tokenmerge.models.arguments import Args, Kwargs
from tokenmerge.models.base import Block, Part, Stack

PROBE = 0.05  # of the tokens' standard deviation: above the rounding of bfloat16, and small
HALF = 0.5  # of the change passed on: less is nearer to none than to all

# The kind of a block, and the path of a part in it, or None for the block itself.
Place = tuple[type[nn.Module], str | None]
# A place with all that a family says of it, because a family that was mended is measured again.
Form = tuple[Any, ...]
# What was found, so that a model is measured once and not whenever merging is applied to it.
_measured: WeakKeyDictionary[nn.Module, dict[Form, float]] = WeakKeyDictionary()


def with_residuals(model: nn.Module, stacks: list[Stack], args: Args, kwargs: Kwargs) -> list[Stack]:
    """The stacks with each `residual` that their family leaves open measured, in a run of the model on a call."""
    open_places = {place for place, said in _places(stacks) if said is None}
    forms = {place: form for place, form in _forms(stacks) if place in open_places}
    known = _measured.setdefault(model, {})
    unknown = {place for place, form in forms.items() if form not in known}
    known |= {forms[place]: share for place, share in passed_on(model, stacks, unknown, args, kwargs).items()}
    adds = {place: known[form] > HALF for place, form in forms.items() if form in known}

    def said(block: Block) -> Block:
        kind = type(block.module)
        parts = tuple(
            part if part.residual is not None else dataclasses.replace(part, residual=adds.get((kind, part.module)))
            for part in block.parts
        )
        residual = adds.get((kind, None)) if block.residual is None else block.residual
        return dataclasses.replace(block, parts=parts, residual=residual)

    return [dataclasses.replace(stack, blocks=tuple(map(said, stack.blocks))) for stack in stacks]


def contradictions(model: nn.Module, stacks: list[Stack], kwargs: Kwargs) -> Iterator[str]:
    """A sentence for each kind of block or part of which a family says what measuring denies."""
    said = {place: said for place, said in _places(stacks) if said is not None}
    for place, share in passed_on(model, stacks, set(said), (), kwargs).items():
        if said[place] != (share > HALF):
            kind, part = place
            name = kind.__name__ if part is None else f"{part} of {kind.__name__}"
            yield (
                f"{name} has residual={said[place]}, but passes on {share:.0%} of a small change of its tokens: set "
                f"residual={not said[place]}, or leave it out, with which it is measured at the first call."
            )


def passed_on(
    model: nn.Module, stacks: list[Stack], places: set[Place], args: Args, kwargs: Kwargs
) -> dict[Place, float]:
    """How much of a small change of its tokens comes out of each place: 1 with a residual, near 0 without."""
    wanted = {
        (type(block.module), path): (block, part)
        for stack in stacks
        for block in reversed(stack.blocks)
        for path, part in _measurable(block)
        if (type(block.module), path) in places
    }
    found: dict[Place, float | None] = {}
    hooks = [_probe(place, *where, wanted, found) for place, where in wanted.items()]
    try:
        with torch.no_grad(), torch.random.fork_rng():
            if hooks:
                model.forward(*args, **kwargs)
    except _AllMeasured:
        pass
    finally:
        for hook in hooks:
            hook.remove()
    return {place: share for place, share in found.items() if share is not None}


class _AllMeasured(Exception):
    """Ends the run: the rest of the model has nothing to say."""


def _places(stacks: list[Stack]) -> Iterator[tuple[Place, bool | None]]:
    for stack in stacks:
        for block in stack.blocks:
            yield (type(block.module), None), block.residual
            for part in block.parts:
                yield (type(block.module), part.module), part.residual


def _forms(stacks: list[Stack]) -> Iterator[tuple[Place, Form]]:
    for stack in stacks:
        for block in reversed(stack.blocks):
            for path, part in _measurable(block):
                kind = type(block.module)
                yield (kind, path), (kind, block.argument, block.output, block.channels_first, block.tokens_first, part)


def _measurable(block: Block) -> Iterator[tuple[str | None, Part | None]]:
    """The block, and its parts that are a module each. One that is the block itself is measured as such."""
    yield None, None
    for part in block.parts:
        if part.module and part.enters_at == "input" and part.leaves in ("", part.module):
            yield part.module, part


def _probe(
    place: Place, block: Block, part: Part | None, wanted: dict[Place, Any], found: dict[Place, float | None]
) -> RemovableHandle:
    """A hook that measures one place when it is called first."""
    module = block.module if part is None else block.module.get_submodule(part.module)
    argument = token_argument(block, part)
    count = len(wanted)
    position = (block.output if part is None else part.outputs[0]) or 0

    def measure(module: nn.Module, args: Args, kwargs: Kwargs) -> None:
        if wanted.pop(place, None) is None:
            return
        found[place] = _share(module, argument, position, args, kwargs)
        if len(found) == count:  # a part is done before the block that holds it
            raise _AllMeasured

    return module.register_forward_pre_hook(measure, with_kwargs=True)


def _share(module: nn.Module, argument: TokenArgument, position: int, args: Args, kwargs: Kwargs) -> float | None:
    tokens = argument.given(args, kwargs)
    if not isinstance(tokens, Tensor) or not tokens.is_floating_point() or tokens.is_meta:
        return None
    noise = torch.randn(tokens.shape, generator=torch.Generator().manual_seed(0)).to(tokens)
    noise = noise * tokens.std() * PROBE
    answers = []
    for given in (tokens.clone(), tokens + noise):  # a copy: some blocks write into what they are given
        changed_args, changed_kwargs = _with(argument, args, kwargs, given)
        output = module.forward(*changed_args, **changed_kwargs)
        answer = output if isinstance(output, Tensor) else output[position]
        if not isinstance(answer, Tensor) or answer.shape != tokens.shape:
            return None
        answers.append(answer.double())
    change = noise.double()
    share = float(((answers[1] - answers[0]) * change).sum() / change.square().sum().clamp_min(1e-30))
    return share if share == share else None


def _with(argument: TokenArgument, args: Args, kwargs: Kwargs, given: Tensor) -> tuple[Args, Kwargs]:
    return argument.write(args, kwargs, argument.as_tokens(given), tuple(given.shape[2:]))
