"""What a config leaves to be merged in a model, before any call: blocks that are skipped, methods that do not fit."""

from __future__ import annotations

import fnmatch
import math
import warnings
from collections.abc import Iterable

from torch import Tensor, nn

from tokenmerge.config.base import MergeConfig
from tokenmerge.engine.compatibility import misfit
from tokenmerge.engine.program import Program, StackDescription
from tokenmerge.engine.schedule import Policy
from tokenmerge.errors import ConfigError, NothingMergedError, NothingMergedWarning
from tokenmerge.models.base import Family, Stack, chosen_parts, nowhere
from tokenmerge.models.check import problems_of


def policy_of(config: MergeConfig) -> Policy:
    """How often a config has things happen."""
    select, weights = config.refresh_every
    correction, skipped = config.correction, config.step_speedup
    if correction is None:
        return Policy(select, weights, config.merge_every, step_speedup=skipped, merges=config.merges_tokens)
    within = math.inf if correction.within is None else correction.within
    return Policy(select, weights, 1, correction.every, within, step_speedup=skipped)


def describe(model: nn.Module, family: Family, config: MergeConfig, stacks: list[Stack]) -> list[StackDescription]:
    """What a config leaves to be merged in each stack of a model."""
    names = [block.name for stack in stacks for block in stack.blocks]
    if not names:
        raise NothingMergedError(
            f"nothing would be merged in this {type(model).__name__}: it has none of the transformer blocks that "
            f"{family.name} models have. Use it as it is."
        )
    skipped = _skipped(config.skip_blocks, family.default_skip(len(names)), names)
    numbers = {name: number for number, name in enumerate(names)}
    coarsest = max(stack.downsample for stack in stacks)
    described = [
        StackDescription(
            stack,
            tuple(block for block in stack.blocks if block.name not in skipped),
            numbers,
            len(names),
            coarsest,
        )
        for stack in stacks
    ]
    if not any(
        chosen_parts(block.parts, config.parts, config.separate_keys) for each in described for block in each.merging
    ):
        raise NothingMergedError(
            f"nothing would be merged in {type(model).__name__}: skip_blocks={config.skip_blocks!r} and "
            f"parts={config.parts!r} leave none of its {len(names)} blocks. Skip fewer blocks, or name parts that the "
            f"model has."
        )
    return described


def refuse_misfit(
    model: nn.Module,
    config: MergeConfig,
    family: Family,
    stacks: list[Stack],
    keep: Tensor | None,
    reference_ratio: float = 0.0,
) -> None:
    problem = next(problems_of(model, stacks), None)
    if problem is not None:
        raise ConfigError(
            f"the family {family.name!r} does not describe this {type(model).__name__}: {problem} "
            f"tokenmerge.testing.check_family lists all that is wrong with a family."
        )
    reason = misfit(config, stacks)
    if reason is not None:
        raise ConfigError(f"{type(config).__name__} does not fit {family.name}: {reason}")
    if keep is not None and not config.takes_mask:
        raise ConfigError(
            f"{type(config).__name__} cannot keep a part of the image as it is: use TileMean or ToMA with keep, or "
            f"leave keep out."
        )
    if reference_ratio and not config.merges_tokens:
        raise ConfigError(
            f"reference_ratio is {reference_ratio:g}, and {type(config).__name__} merges no tokens: use "
            f"TileMean, ToMA or SampledKeys, or leave reference_ratio out."
        )
    if reference_ratio and all(stack.references is nowhere for stack in stacks):
        raise ConfigError(
            f"reference_ratio is {reference_ratio:g}, and {family.name} is given no images to edit behind its own "
            f"tokens: leave reference_ratio out."
        )


def _skipped(choice: int | tuple[int, int] | tuple[str, ...] | None, default: int, names: list[str]) -> set[str]:
    if choice is None or isinstance(choice, int):
        choice = (default if choice is None else choice), 0
    patterns = [item for item in choice if isinstance(item, str)]
    if not patterns:
        first, last = (int(item) for item in choice or (0, 0))  # an empty list skips none
        return {*names[:first], *names[max(0, len(names) - last) :]}
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            raise ConfigError(
                f"skip_blocks has {pattern!r}, which matches no block: names look like {names[0]!r}, and * stands for "
                f"anything."
            )
    return {name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)}


def why_nothing(programs: Iterable[Program]) -> str:
    """Each grid on which nothing is merged, with the reason."""
    reasons = [
        f"{' x '.join(map(str, program.grid))}: {program.reason or 'none of the chosen parts can merge here'}"
        for program in programs
    ]
    return "; ".join(dict.fromkeys(reasons))


def warn_all_was_full(config: MergeConfig) -> None:
    if config.merges_tokens:
        message = (
            "nothing was merged: all steps ran full, because there were too few of them, or too few tokens. Use more "
            "steps or a larger image; or, for models of a single step, a method without a correction, such as "
            "ToMA(ratio=0.5, keys='all')."
        )
    else:
        message = (
            f"no step was skipped, so the images are as without {type(config).__name__}: those of fewer than six steps "
            f"skip none, because each step changes too much. A lower num_inference_steps is faster; or try a method "
            f"that merges tokens, such as ToMA(ratio=0.5, keys='all'), and compare the images."
        )
    warnings.warn(message, NothingMergedWarning, stacklevel=3)
