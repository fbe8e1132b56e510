"""What holds for every row: the checks, and what they saw."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from checks import SCOPES, SMALL, count_hooks
from identity import Identity
from row import Row
from torch import Tensor, nn

import tokenmerge as tm
from tokenmerge.api import denoisers_of

NOTHING_MERGED = Identity(skip_blocks=0)
MERGED = tm.ToMA(ratio=0.75, tile=(2, 2), **SMALL)
CORRECTED = tm.ToMA(ratio=0.875, correction=tm.FullSteps(every=2), **SMALL)
# Blocks are hooked alike under scope "block" and "stack".
SWITCHED_ON_LATER = ("site", "stack")


LAYERS = (nn.Linear, nn.quantized.dynamic.Linear)


@dataclass(frozen=True)
class Outcome:
    """What became of a row under one scope: how many tokens layers saw, or why merging was refused."""

    full: float = 0.0
    merged: float = 0.0
    refusal: str = ""

    @property
    def works(self) -> bool:
        return not self.refusal


@dataclass(frozen=True)
class Unmerged:
    """What a row does without merging: everything else is measured against it."""

    plain: Tensor  # before the feature is on
    generated: Tensor
    lengths: list[float]
    hooks: list[int]


@cache
def unmerged(row: Row) -> Unmerged:
    plain = row.warm_up(row.build())
    subject = row.switch_on(row.build())
    with layer_lengths(row.merged(subject)) as lengths:
        generated = row.generate(subject)
    assert generated.isfinite().all()
    return Unmerged(plain, generated, means(lengths), hooks_of(row, subject))


def try_row(row: Row) -> dict[str, Outcome]:
    """Run every check on a row. AssertionError where one fails; an Outcome that says so where merging is refused."""
    expected = unmerged(row)
    if row.changes:
        assert_other(expected.generated, expected.plain, "the feature does nothing, so nothing would be shown")
    subject = row.switch_on(row.build())
    outcomes, generated = {}, {}
    for scope in SCOPES:
        outcomes[scope], generated[scope] = feature_first(row, subject, scope, expected)
    if outcomes["site"].works:
        works_without_a_scope(row, subject, expected)
    for scope in SWITCHED_ON_LATER:
        if outcomes[scope].works:
            later = merging_first(row, scope, expected)
            assert_same(later, generated[scope], row.tolerance, "a merged image depends on what was switched on first")
    return outcomes


def feature_first(row: Row, subject: Any, scope: Any, expected: Unmerged) -> tuple[Outcome, Tensor]:
    """Switched on before `apply`: the same image with an identity plan, another at 0.5, from fewer tokens."""
    try:
        with merged(row, subject, NOTHING_MERGED, scope):
            assert_same(row.generate(subject), expected.generated, row.tolerance, "an identity plan changes the image")
        with merged(row, subject, MERGED, scope):
            with layer_lengths(row.merged(subject)) as lengths:
                generated = row.generate(subject)
            assert torch.equal(row.generate(subject), generated), "a second image depends on the first"
        with merged(row, subject, CORRECTED, scope):
            corrected = row.generate(subject)
            assert torch.equal(row.generate(subject), corrected), "a second image depends on the first"
    except tm.TokenMergeError as refusal:
        assert_as_it_was(row, subject, expected)
        return Outcome(refusal=str(refusal)), expected.generated
    assert_as_it_was(row, subject, expected)
    assert generated.isfinite().all()
    assert corrected.isfinite().all()
    if not row.single_steps:
        assert_other(corrected, expected.generated, "merging with a correction changes nothing")
    assert_other(generated, expected.generated, "merging changes nothing")
    for few, many in zip(means(lengths), expected.lengths, strict=True):
        assert few < 0.95 * many, f"layers see {few:.0f} tokens merged and {many:.0f} unmerged"
    return Outcome(sum(expected.lengths), sum(means(lengths))), generated


def works_without_a_scope(row: Row, subject: Any, expected: Unmerged) -> None:
    """Left to us, the scope is one that works: what can be merged around parts is never refused."""
    with merged(row, subject, CORRECTED, None):
        generated = row.generate(subject)
    if not row.single_steps:
        assert_other(generated, expected.generated, "merging with a correction changes nothing")
    assert_as_it_was(row, subject, expected)


def merging_first(row: Row, scope: Any, expected: Unmerged) -> Tensor:
    """Switched on after `apply`, when an image has been generated merged already."""
    for config in (NOTHING_MERGED, MERGED):
        subject = row.build()
        with merged(row, subject, config, scope):
            row.warm_up(subject)
            subject = row.switch_on(subject)
            generated = row.generate(subject)
            if row.copies:  # the copy is merged too, and not by the handle
                for target in row.merged(subject):
                    assert tm.remove(target), "the copy is not merged"
        if config is NOTHING_MERGED:
            assert_same(generated, expected.generated, row.tolerance, "an identity plan changes the image")
    assert_as_it_was(row, subject, expected)
    return generated


@contextmanager
def merged(row: Row, subject: Any, config: Any, scope: Any) -> Iterator[None]:
    targets = row.merged(subject)
    ratios = row.ratios * len(targets) if len(row.ratios) == 1 else row.ratios
    with ExitStack() as stack:
        for target, ratio in zip(targets, ratios, strict=True):
            options = {name: value for name, value in row.options.items() if hasattr(config, name)}
            changed = dataclasses.replace(config, scope=scope, ratio=ratio, **options)
            stack.enter_context(tm.merged(target, changed))
        yield


def assert_as_it_was(row: Row, subject: Any, expected: Unmerged) -> None:
    assert torch.equal(row.generate(subject), expected.generated), "the image is another after remove()"
    assert hooks_of(row, subject) == expected.hooks, "hooks are left, or lost, after remove()"


def assert_same(one: Tensor, other: Tensor, tolerance: float, what: str) -> None:
    torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance, msg=lambda text: f"{what}: {text}")


def assert_other(one: Tensor, other: Tensor, what: str) -> None:
    assert one.shape != other.shape or (one - other).abs().max() > 1e-3, what


def hooks_of(row: Row, subject: Any) -> list[int]:
    return [count_hooks(model) for target in row.merged(subject) for model in denoisers_of(target)]


@contextmanager
def layer_lengths(targets: list[Any]) -> Iterator[list[list[int]]]:
    """How many tokens each linear layer was given in each call, for every model: what attention and MLP are made of."""
    models = [model for target in targets for model in denoisers_of(target)]
    owners = {id(module): number for number, model in enumerate(models) for module in model.modules()}
    seen: list[list[int]] = [[] for _ in models]

    def note(module: nn.Module, args: tuple[Any, ...]) -> None:
        if isinstance(module, LAYERS) and id(module) in owners and args[0].dim() == 3:
            seen[owners[id(module)]].append(args[0].shape[1])

    hook = nn.modules.module.register_module_forward_pre_hook(note)
    try:
        yield seen
    finally:
        hook.remove()


def means(lengths: list[list[int]]) -> list[float]:
    return [sum(model) / len(model) for model in lengths]
