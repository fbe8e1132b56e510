"""Checks that a family describes its model rightly. For families of your own (docs/extending.md).

>>> assert not check_family(model, MyFamily())  # doctest: +SKIP
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tokenmerge.config.base import MergeConfig
from tokenmerge.engine.arguments import TokenArgument, token_argument
from tokenmerge.engine.residual import contradictions
from tokenmerge.engine.session import Session
from tokenmerge.errors import TokenMergeError
from tokenmerge.methods.tomesd import ToMeSD
from tokenmerge.models.arguments import argument_names, named_arguments
from tokenmerge.models.base import Block, Family, Part, Stack, chosen_parts
from tokenmerge.models.check import problems_of
from tokenmerge.testing.attention_calls import calling_attention
from tokenmerge.testing.keep_all import Nothing

SCOPES: tuple[Literal["site", "block", "stack"], ...] = ("site", "block", "stack")
PARTS = ("self", "cross", "mlp")
ROUNDING = 1e-3  # of the largest value: what another order of sums may change in an output
FEWEST = 16  # tokens: smaller grids say little about merging


def check_family(model: nn.Module, family: Family, size: tuple[int, int] = (256, 256), batch: int = 2) -> list[str]:
    """What is wrong with a family, a sentence for each thing; an empty list if all that is checked here holds.

    The model is run a dozen times, with and without merging, and left as it was. A description that cannot work is
    reported by itself: nothing is run with it.

    Args:
        model: the model, best with small random weights, on any device that can run it.
        family: the description of it.
        size: height and width of the image in pixels, for `family.example_inputs`. A small one is faster.
        batch: samples of a call. With one, plans of different samples cannot be told apart.
    """
    problems = list(_described(model, family))
    if problems:
        return _distinct(problems)
    try:
        inputs = family.example_inputs(model, size, batch)
        with torch.no_grad():
            before = _output(model(**inputs))
    except Exception as error:  # whatever a model's own code raises
        return [f"the model cannot be called with what example_inputs returns: {_said(error)}."]
    problems = [*_call_read(model, family, inputs), *_grids(model, family, inputs)]
    problems = problems or [*contradictions(model, family.stacks(model), inputs)]
    return _distinct(problems or [*_runs(model, family, inputs, before)])


def _distinct(problems: list[str]) -> list[str]:
    """The problems, each once: blocks of one kind have the same, and so have scopes."""
    kept: dict[str, str] = {}
    for problem in problems:
        kept.setdefault(re.sub(r"\.\d+|scope='\w+'|\d+%", "", problem), problem)
    return list(kept.values())


# -- without merging --------------------------------------------------------------------------------------------------


def _described(model: nn.Module, family: Family) -> Iterator[str]:
    if not family.name:
        yield "the family has no name: set its attribute name, which reports and errors use."
    if not family.recognises(model):
        yield (
            f"the family does not recognise the model: class_name is {family.class_name!r}, and the model is a "
            f"{type(model).__name__}."
        )
    try:
        stacks = family.stacks(model)
    except Exception as error:  # whatever a stranger's code raises
        yield f"stacks fails for this model: {_said(error)}."
        return
    if not any(stack.blocks for stack in stacks):
        yield "stacks returns no blocks, so there is nothing to merge in: return a Stack with the model's blocks."
    yield from problems_of(model, stacks)


def _call_read(model: nn.Module, family: Family, inputs: dict[str, Any]) -> Iterator[str]:
    names = argument_names(model)
    try:
        call = family.read_call((), named_arguments(model, (), inputs))
    except Exception as error:
        yield f"read_call fails for what example_inputs returns: {_said(error)}."
        return
    if call.timestep is None:
        yield (
            f"read_call finds no timestep, so that no step can be told from the next and every call is one image's: "
            f"set timestep to the argument that holds it; the model has {', '.join(names)}."
        )
    others = [name for name in names if name not in (family.latent, family.timestep)]
    if others and family.conditions and not set(family.conditions) & set(names):
        yield (
            f"none of conditions, {family.conditions!r}, is an argument of the model, so that two images or guidance "
            f"branches with equal timesteps share a plan: name those that hold text or labels, of "
            f"{', '.join(others)}; or set it to () if there are none."
        )


def _grids(model: nn.Module, family: Family, inputs: dict[str, Any]) -> Iterator[str]:
    """Whether blocks are given as many tokens as the grid has, which is read from the owner's arguments."""
    found: dict[str, tuple[int, ...]] = {}
    levels: dict[int, tuple[str, tuple[int, ...]]] = {}  # a stack of each level with its grid, by its downsample
    for stack in family.stacks(model):
        seen: list[Tensor] = []
        grids: list[Any] = []
        first = stack.blocks[0]
        argument = token_argument(first)
        handles = [
            first.module.register_forward_pre_hook(
                lambda module, args, kwargs, a=argument, s=seen: s.append(a.given(args, kwargs)), with_kwargs=True
            ),
            stack.owner.register_forward_pre_hook(
                lambda module, args, kwargs, s=stack, g=grids: g.append(_tokens_of(s, module, args, kwargs)),
                with_kwargs=True,
            ),
        ]
        try:
            with torch.no_grad():
                model(**inputs)
        finally:
            for handle in handles:
                handle.remove()
        if not seen or not grids:
            yield f"{first.name} or the owner of its stack is never called: give blocks that the model runs."
            continue
        if isinstance(grids[0], Exception):
            yield f"the grid of stack {stack.name!r} cannot be read from its owner's arguments: {_said(grids[0])}."
            continue
        grid, others = grids[0]
        if len(grid) < 2:
            yield f"stack {stack.name!r} has the grid {grid}: a sequence is one row of tokens, (1, {grid[0]})."
            continue
        problem = _mismatch(first.name, seen[0], grid, others, argument)
        if problem:
            yield problem
        found[stack.name] = grid
        other, finer = levels.setdefault(stack.downsample, (stack.name, grid))
        if math.prod(finer) != math.prod(grid):
            yield (
                f"stacks {other!r} and {stack.name!r} have grids of {finer} and {grid} tokens and the same downsample, "
                f"{stack.downsample}: it is 1 for the finest grid of the model, 2 for one half as fine, then 4."
            )
    largest = max(map(math.prod, found.values()), default=FEWEST)
    if largest < FEWEST:
        yield f"the largest grid has {largest} tokens, too few to merge: give a larger size."


def _tokens_of(stack: Stack, owner: nn.Module, args: Any, kwargs: Any) -> Any:
    """The grid, and how many tokens stand next to it in a block's sequence: None if the family does not say."""
    named = named_arguments(owner, args, kwargs)
    try:
        with_text = any(part.text != "none" for part in stack.blocks[0].parts) or bool(stack.starts((), named))
        return stack.grid((), named), None if with_text else stack.trailing((), named)
    except Exception as error:
        return error


def _mismatch(name: str, tokens: Any, grid: tuple[int, ...], others: int | None, argument: TokenArgument) -> str:
    channels_first = argument.channels_first
    shape = tuple(tokens.shape) if isinstance(tokens, Tensor) else type(tokens).__name__
    wanted = "(batch, channels, height, width)" if channels_first else "(batch, tokens, channels)"
    if not isinstance(tokens, Tensor) or (tokens.dim() < 4 if channels_first else tokens.dim() != 3):
        return (
            f"{name} is given {shape} where tokens should be, as {wanted}: set argument to the one that holds them, or "
            f"channels_first if they come as an image."
        )
    count = argument.as_tokens(tokens).shape[1]
    if count < math.prod(grid):
        return (
            f"{name} is given {count} tokens, and grid returns {grid}, which has {math.prod(grid)}: divide by the "
            f"patch size, at coarser levels also by downsample, or give the stack's own module as owner."
        )
    if others is not None and count > math.prod(grid) + others:
        return (
            f"{name} is given {count} tokens, and grid returns {grid}, which has {math.prod(grid)}: mend the patch "
            f"size, or say what the others are with the part's text or the stack's trailing or starts."
        )
    return ""


# -- with merging -----------------------------------------------------------------------------------------------------


def _runs(model: nn.Module, family: Family, inputs: dict[str, Any], before: Tensor) -> Iterator[str]:
    fixed = any(stack.fixed_order for stack in family.stacks(model))
    scopes = SCOPES[:1] if fixed else SCOPES
    hooks = _hooks(model)
    found = [
        _identity(model, family, inputs, before, scope) or _merging(model, family, inputs, before, scope)
        for scope in scopes
    ]
    if not any(found) and any(part.mask != "none" for _, part in _self_attentions(model, family)):
        found.append(_weights(model, family, inputs))
    found += _without_weights(model, family, inputs)
    yield from filter(None, found)
    after = _run(model, family, None, inputs)
    if isinstance(after, Tensor) and not torch.equal(after, before):
        yield "the model gives another output after merging was taken out: it keeps something from call to call."
    if _hooks(model) != hooks:
        yield "hooks are left on the model after merging was taken out: stacks must return the same modules each time."


def _identity(model: nn.Module, family: Family, inputs: Any, before: Tensor, scope: Any) -> str:
    """A method that merges nothing must change nothing."""
    for tiled in (False, True):
        after = _run(model, family, Nothing(scope=scope, tiled=tiled, skip_blocks=0), inputs)
        if isinstance(after, Exception):
            return f"with scope={scope!r} and nothing merged, the model fails: {_said(after)}."
        change = _change(before, after)
        if not change > ROUNDING:
            continue
        if not tiled:
            return (
                f"with scope={scope!r}, a method that merges nothing changes the output by {change:.0%}: tokens stand "
                f"elsewhere in what a block takes or returns (argument, output, outputs, text), or something is added "
                f"to them between blocks (then read_call must return interleaved=True)."
            )
        return (
            f"with scope={scope!r}, the output changes by {change:.0%} if tokens are put into another order: name "
            f"the blocks' position embeddings as a Rotary; give blocks that other modules stand between, such as "
            f"convolutions, a Stack each; or say in the stack's fixed_order why order matters."
        )
    return ""


def _merging(model: nn.Module, family: Family, inputs: Any, before: Tensor, scope: Any) -> str:
    after = _run(model, family, _tomesd(scope), inputs)
    if isinstance(after, Exception):
        return f"with scope={scope!r} and half of the tokens merged, the model fails: {_said(after)}."
    if after.shape != before.shape:
        return f"with scope={scope!r} the output has shape {tuple(after.shape)} and not {tuple(before.shape)}."
    if not after.isfinite().all():
        return f"with scope={scope!r} the merged output is not finite."
    if torch.equal(after, before):
        return f"with scope={scope!r} merging half of the tokens changes nothing: no part of a block runs on them."
    return ""


def _weights(model: nn.Module, family: Family, inputs: Any) -> str:
    """Weights of keys must reach the attention."""
    outputs = [_run(model, family, _tomesd("site", proportional=flag), inputs) for flag in (True, False)]
    failed = next((output for output in outputs if isinstance(output, Exception)), None)
    if failed is not None:
        return f"self-attention by itself cannot be merged: {_said(failed)}."
    if torch.equal(*outputs):  # type: ignore[arg-type]
        return (
            "weights of merged keys have no effect: the attention takes mask_argument and drops it. Give mask='inside' "
            "if it calls scaled_dot_product_attention, or mask='none'."
        )
    return ""


def _without_weights(model: nn.Module, family: Family, inputs: Any) -> list[str]:
    """Attention that could be given weights of keys, and is said to take none."""
    unweighted = {
        block.path(part): block.module.get_submodule(part.attention_path)
        for block, part in _self_attentions(model, family)
        if part.mask == "none" and not family.cannot_weigh
    }
    if not unweighted:
        return []
    return [
        f"{name} calls scaled_dot_product_attention, but its part has mask='none', so keys can neither be weighted nor "
        f"sampled: give mask='inside'. If they must not be, say why in the family's cannot_weigh."
        for name in calling_attention(model, inputs, unweighted)
    ]


def _self_attentions(model: nn.Module, family: Family) -> Iterator[tuple[Block, Part]]:
    for stack in family.stacks(model):
        for block in stack.blocks:
            for part in chosen_parts(block.parts, ("self",)):
                yield block, part


def _tomesd(scope: Any, proportional: bool = True) -> MergeConfig:
    parts = PARTS if scope != "site" else ("self", "mlp", "cross")
    return ToMeSD(
        ratio=0.5, scope=scope, parts=parts, max_downsample=1024, proportional=proportional, min_tokens=0, skip_blocks=0
    )


def _run(model: nn.Module, family: Family, config: MergeConfig | None, inputs: Any) -> Tensor | Exception:
    """The output with a config attached, or what went wrong."""
    session = None
    try:
        if config is not None:
            session = Session(model, family, config)
            session.attach()
        with torch.no_grad():
            return _output(model(**inputs))
    except Exception as error:
        return error
    finally:
        if session is not None:
            session.detach()


def _output(returned: Any) -> Tensor:
    """The first tensor of what a model returns."""
    if isinstance(returned, Tensor):
        return returned
    items = returned.values() if isinstance(returned, dict) else returned
    return next(_output(item) for item in items if isinstance(item, (Tensor, tuple, list, dict)))


def _change(before: Tensor, after: Tensor) -> float:
    if before.shape != after.shape:
        return math.inf
    return float((after - before).abs().max() / before.abs().max().clamp_min(1e-12))


def _hooks(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


def _said(error: BaseException) -> str:
    if isinstance(error, TokenMergeError):
        return str(error).rstrip(".")
    return f"{type(error).__name__}: {error}".rstrip(".")
