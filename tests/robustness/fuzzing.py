"""Random configs on random tiny models at random sizes, and what must hold for each of them."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from checks import count_hooks
from hypothesis import strategies as st
from tiny_models import TINY_MODELS, TinyModel, made, tiny
from torch import Tensor, nn

import tokenmerge as tm
from tokenmerge.config.base import PARTS
from tokenmerge.errors import TokenMergeError
from tokenmerge.methods.toma import REGIONS, ReleasedToMA
from tokenmerge.ops.selection import SELECTORS

METHODS: dict[str, type[tm.MergeConfig]] = {
    kind.__name__: kind
    for kind in (tm.TileMean, tm.SampledKeys, tm.ToMA, ReleasedToMA, tm.ToMeSD, tm.ToFu, tm.ToDo, tm.LowerBound)
}
TOMA = ("ToMA", "ReleasedToMA", "LowerBound")


@dataclass(frozen=True)
class Case:
    """One config, one model, and the calls that are made."""

    method: str
    options: Mapping[str, Any]
    model: str
    size: tuple[int, int]  # of the grid, in tokens
    batch: int
    steps: int = 1
    then: tuple[int, int, int] | None = None  # (height, width, batch) of a second generation
    explained: bool = False


@dataclass
class Outcomes:
    """How the cases of a run ended, so that one that only ever refuses cannot pass for a test."""

    counts: Counter[str] = field(default_factory=Counter)

    @property
    def merged(self) -> int:
        return sum(count for outcome, count in self.counts.items() if outcome.startswith("merged"))

    def __str__(self) -> str:
        return "; ".join(f"{count} {outcome}" for outcome, count in sorted(self.counts.items()))


# -- random cases --------------------------------------------------------------------------------------------------


def first_ones(similarity: Tensor, count: int, available: Tensor) -> Tensor:
    """A selector of a user's own."""
    return torch.arange(count).expand(*similarity.shape[:2], count)


def too_few(similarity: Tensor, count: int, available: Tensor) -> Tensor:
    return first_ones(similarity, max(count - 1, 0), available)


def beyond_the_region(similarity: Tensor, count: int, available: Tensor) -> Tensor:
    return first_ones(similarity, count, available) + similarity.shape[2]


def not_whole(similarity: Tensor, count: int, available: Tensor) -> Tensor:
    return first_ones(similarity, count, available).float()


# Values that no option takes; each is a mistake that a person or a file has made.
WRONG = st.sampled_from([None, True, -1, 0, 1.5, float("nan"), float("inf"), 10**30, "", "tile", (), (0,), [[1]], {}])

ratios = st.floats(0.01, 0.99) | st.sampled_from([0.001, 0.25, 0.5, 0.75, 0.999, 1e-300, 1 - 1e-12])
# Ratios that change over the steps.
changing = st.lists(ratios | ratios | st.just(0), min_size=1, max_size=3).map(tuple)
few = st.integers(1, 5)

# What each option is given: mostly what it takes.
OPTIONS: dict[str, st.SearchStrategy[Any]] = {
    "ratio": ratios | ratios | ratios | changing,
    "parts": st.lists(st.sampled_from(["self", "cross", "mlp"]), min_size=1, max_size=3, unique=True).map(tuple),
    "scope": st.sampled_from(["site", "block", "stack"]),
    "keys": st.sampled_from(["merged", "all", "sampled"]),
    "select_every": few | st.sampled_from([(4, 2), (2, 1), (6, 3)]),
    "correction": st.none()
    | st.builds(tm.FullSteps, every=st.integers(2, 4), within=st.sampled_from([None, None, 0.1, 0.35, 1])),
    "proportional": st.booleans(),
    "skip_blocks": st.sampled_from(
        [0] * 20 + [1, 2, 100, (1, 1), ("*",), ("*.0",), ("*0*",), ("down_blocks.*",), None]
    ),
    "min_tokens": st.sampled_from([0, 1, 4, 4, 4, 16, 16, 64, 300]),
    # TileMean, SampledKeys and ToMA
    "region": st.sampled_from(REGIONS),
    "tile": st.tuples(few, few) | st.sampled_from([(2, 2), (4, 4), (1, 1), (8, 8), (2, 4, 4), (10**6, 10**6)]),
    "outliers": st.sampled_from([0, 1, 2, 5, 8, 32, 300]),
    "step_speedup": st.floats(1, 4) | st.sampled_from([1, 1.5, 2, 3, 10, 1e300]),
    "selector": st.sampled_from([*SELECTORS, first_ones, too_few, beyond_the_region, not_whole]),
    # ToMeSD, ToFu and ToDo
    "sx": few,
    "sy": few,
    "per_cell": st.sampled_from([1, 1, 1, 2, 3]),
    "use_rand": st.booleans(),
    "seed": st.sampled_from([0, 1, 2**31, 2**32 - 1, 2**63]),
    "max_downsample": st.sampled_from([1, 2, 4]),
    "prune": st.floats(0, 1) | st.sampled_from([(), (0,), (0, 2), (50,)]),
    "coarser_ratios": st.lists(ratios, max_size=3).map(tuple),
}
# Given in every case, so that most of them merge on grids as small as these.
ALWAYS = {"ratio", "min_tokens", "skip_blocks"}


@st.composite
def options_of(draw: st.DrawFn, method: str) -> dict[str, Any]:
    others = [field.name for field in dataclasses.fields(METHODS[method]) if field.name in OPTIONS.keys() - ALWAYS]
    always = [name for name in sorted(ALWAYS) if METHODS[method].has_option(name)]
    chosen = [*always, *draw(st.lists(st.sampled_from(others), max_size=5, unique=True))]
    options = {name: draw(OPTIONS[name]) for name in chosen}
    care = draw(st.sampled_from([*["some"] * 10, "none", "wrong"]))
    if care == "wrong":
        options[draw(st.sampled_from(chosen))] = draw(WRONG)
    return _agreeing(options, method) if care == "some" else options


def _agreeing(options: dict[str, Any], method: str) -> dict[str, Any]:
    """Without what contradicts itself: left to chance, most configs would be refused and few would merge."""
    if options.get("scope", "site") != "site":
        options["parts"] = PARTS
        options.pop("keys", None)
    if not METHODS[method].merges_queries:
        options = {
            name: value for name, value in options.items() if name not in ("parts", "scope", "keys", "correction")
        }
    if method not in TOMA and isinstance(options.get("select_every"), tuple):
        options["select_every"] = options["select_every"][0]
    if method == "ReleasedToMA":
        options.pop("correction", None)
    if isinstance(options.get("ratio"), float) and method in ("ToMeSD", "ToFu"):
        cell = options.get("sx", 2) * options.get("sy", 2)
        options["per_cell"] = min(options.get("per_cell", 1), max(1, cell - 1))
        options["ratio"] *= 1 - options["per_cell"] / cell
    return options


@st.composite
def sizes(draw: st.DrawFn) -> tuple[int, int]:
    least = draw(st.sampled_from([8, 6, 4, 4, 1]))
    height = draw(st.integers(least, 24))
    return height, draw(st.integers(least, min(24, max(least, 256 // height))))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    method = draw(st.sampled_from(sorted(METHODS)))
    options = draw(options_of(method))
    separate = (not METHODS[method].merges_queries or options.get("keys", "merged") != "merged") and draw(
        st.integers(0, 7)
    ) > 0
    models = [model.name for model in TINY_MODELS if model.merges_keys or not separate]
    then = draw(st.none() | st.tuples(sizes(), st.integers(1, 2)).map(lambda both: (*both[0], both[1])))
    return Case(
        method=method,
        options=options,
        model=draw(st.sampled_from(models)),
        size=draw(sizes()),
        batch=draw(st.integers(1, 3)),
        steps=draw(st.integers(1, 3)),
        then=then,
        explained=draw(st.integers(0, 9)) == 0,
    )


# -- what must hold ------------------------------------------------------------------------------------------------


def check(case: Case) -> str:
    """An error of tokenmerge's own, or finite images of the right shape; and the model as it was. How it ended."""
    model = _model(case.model)
    hooks = count_hooks(model)
    try:
        outcome = _merged_calls(case, model)
        _same_as_before(case, model, hooks)
    except BaseException:
        _model.cache_clear()  # the next case gets a model that this one has not touched
        raise
    return outcome


def _merged_calls(case: Case, model: nn.Module) -> str:
    known = tiny(case.model)
    try:
        config = METHODS[case.method].build(dict(case.options))
    except TokenMergeError:
        return "refused when built"
    try:
        handle = tm.apply(model, config)
    except TokenMergeError:
        return "refused by apply"
    outcome = "refused by a call"
    try:
        generations = [(*case.size, case.batch), *([case.then] if case.then else [])]
        for height, width, batch in generations:
            grid = known.grid(height, width)
            for step in range(case.steps):
                output = known.call(model, range(batch), grid, float(case.steps - step))
                assert output.shape == unmerged(case.model, grid, batch).shape
                assert output.isfinite().all()
                outcome = "merged"
        if case.explained:
            assert str(handle.explain())
    except TokenMergeError:
        return "merged, then refused" if outcome == "merged" else outcome
    finally:
        handle.remove()
    return outcome


def _same_as_before(case: Case, model: nn.Module, hooks: int) -> None:
    grid = tiny(case.model).grid(*case.size)
    assert count_hooks(model) == hooks
    assert torch.equal(tiny(case.model).call(model, range(case.batch), grid), unmerged(case.model, grid, case.batch))


@lru_cache(maxsize=len(TINY_MODELS))
def _model(name: str) -> nn.Module:
    return made(tiny(name).build)


@lru_cache(maxsize=4096)
def unmerged(name: str, grid: tuple[int, ...], batch: int) -> Tensor:
    """What a model that was never merged gives."""
    known: TinyModel = tiny(name)
    return known.call(_untouched(name), range(batch), grid)


@lru_cache(maxsize=len(TINY_MODELS))
def _untouched(name: str) -> nn.Module:
    return made(tiny(name).build)
