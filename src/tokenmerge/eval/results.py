"""What a run found: for each variant its times and its metrics, with intervals and paired differences; metrics.json."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tokenmerge.eval.experiment import Experiment, ImageChoice
from tokenmerge.eval.metrics.measure import Measurements
from tokenmerge.eval.pairs import Pair
from tokenmerge.eval.records import Record
from tokenmerge.eval.statistics import Estimate, bootstrap_mean, bootstrap_ratio_of_medians
from tokenmerge.eval.variants import BASELINE, Variant
from tokenmerge.runtime.pipelines import TINY_RANDOM


@dataclass(frozen=True)
class Timing:
    """Seconds per image, warm-up excluded, and how they compare with the baseline of the same run."""

    best: float
    median: float
    mean: float
    relative: float  # median as a fraction of the baseline's
    speedup: Estimate  # of medians


@dataclass(frozen=True)
class VariantResult:
    key: str
    name: str
    ratio: float | None
    setting: str
    ours: bool
    config: dict[str, Any] | None
    timing: Timing
    multiply_adds: float  # executed in all calls of the denoiser, mean over images
    saved: float  # times as many in the baseline
    metrics: dict[str, Estimate] = field(default_factory=dict)
    # This variant minus the reference, pair by pair: at the same ratio, and at the same time per image, which lies
    # between two of the reference's ratios; and minus the baseline where that has a value.
    to_reference: dict[str, Estimate] = field(default_factory=dict)
    to_reference_as_fast: dict[str, Estimate] = field(default_factory=dict)
    to_baseline: dict[str, Estimate] = field(default_factory=dict)

    @property
    def label(self) -> str:
        parts = [self.name, *([] if self.ratio is None else [f"r = {self.ratio:g}"])]
        return ", ".join([*parts, *([self.setting] if self.setting else [])])


@dataclass(frozen=True)
class Results:
    experiment: str
    description: str
    model: str
    image: ImageChoice
    reference: str
    pairs: int
    cut_prompts: int
    workers: tuple[str, ...]
    versions: dict[str, str]
    variants: tuple[VariantResult, ...]  # the baseline first
    unavailable: dict[str, str]

    def __str__(self) -> str:
        """All tables as Markdown."""
        from tokenmerge.eval.tables import tables_of  # which is made of results

        return tables_of(self)

    def to_json(self) -> str:
        return json.dumps(_plain(dataclasses.asdict(self)), indent=1, ensure_ascii=False) + "\n"


def results_of(
    experiment: Experiment,
    pairs: Sequence[Pair],
    variants: Sequence[Variant],
    records: Mapping[tuple[str, str], Record],
    measured: Measurements,
) -> Results:
    ids = [pair.id for pair in pairs]
    reference = experiment.reference or experiment.variants[0].name
    used = [records[variant.key, pair_id] for variant in variants for pair_id in ids]
    seconds = {v.key: {pair_id: records[v.key, pair_id].seconds for pair_id in ids} for v in variants}
    values = {**measured.values, "seconds": seconds}
    executed = {v.key: float(np.mean([records[v.key, pair_id].multiply_adds for pair_id in ids])) for v in variants}

    def minus(variant: Variant, others: Mapping[str, float]) -> dict[str, Estimate]:
        paired = _differences(values, variant.key, others, resamples)
        return paired | _differences_of_sets(measured.sets, variant.key, others)

    resamples = experiment.metrics.resamples
    timings = {v.key: _timing(seconds[v.key], seconds[BASELINE.key], resamples) for v in variants}
    return Results(
        experiment=experiment.name,
        description=experiment.description,
        model=_described(experiment.model.name),
        image=experiment.image,
        reference=reference,
        pairs=len(pairs),
        cut_prompts=len({pair.uncut for pair in pairs} - {None}),
        workers=tuple(sorted({record.worker for record in used})),
        versions=used[-1].versions,
        variants=tuple(
            VariantResult(
                key=variant.key,
                name=variant.name,
                ratio=variant.ratio,
                setting=variant.setting,
                ours=variant.acceleration is not None and variant.acceleration.ours,
                config=variant.config_dict(),
                timing=timings[variant.key],
                multiply_adds=executed[variant.key],
                saved=executed[BASELINE.key] / max(1.0, executed[variant.key]),
                metrics=_estimates(variant, measured, resamples),
                to_reference=minus(variant, _at_its_ratio(variant, variants, reference)),
                to_reference_as_fast=minus(variant, _as_fast(variant, variants, reference, timings)),
                to_baseline=minus(variant, {} if variant is BASELINE else {BASELINE.key: 1.0}),
            )
            for variant in variants
        ),
        unavailable=measured.unavailable,
    )


def _described(model: str) -> str:
    return f"{model} (random weights: its images mean nothing)" if model == TINY_RANDOM else model


def _timing(ours: Mapping[str, float], baseline: Mapping[str, float], resamples: int) -> Timing:
    mine, theirs = list(ours.values()), [baseline[pair_id] for pair_id in ours]
    median = float(np.median(mine))
    return Timing(
        best=min(mine),
        median=median,
        mean=float(np.mean(mine)),
        relative=median / float(np.median(theirs)),
        speedup=bootstrap_ratio_of_medians(theirs, mine, resamples),
    )


def _estimates(variant: Variant, measured: Measurements, resamples: int) -> dict[str, Estimate]:
    means = {
        name: bootstrap_mean(list(columns[variant.key].values()), resamples)
        for name, columns in measured.values.items()
        if variant.key in columns
    }
    return means | {name: columns[variant.key] for name, columns in measured.sets.items() if variant.key in columns}


def _at_its_ratio(variant: Variant, variants: Sequence[Variant], reference: str) -> dict[str, float]:
    """The reference variant at the same ratio, if there is one and it is another."""
    for other in variants if variant is not BASELINE else ():
        if other.name == reference and other.ratio == variant.ratio and other.key != variant.key:
            return {other.key: 1.0}
    return {}


def _as_fast(
    variant: Variant, variants: Sequence[Variant], reference: str, timings: Mapping[str, Timing]
) -> dict[str, float]:
    """The two ratios of the reference between which its time per image is this variant's, and how much of each."""
    if variant is BASELINE or variant.name == reference:
        return {}
    curve = sorted((timings[other.key].median, other.key) for other in variants if other.name == reference)
    mine = timings[variant.key].median
    for (faster, at_faster), (slower, at_slower) in itertools.pairwise(curve):
        if faster <= mine <= slower and faster < slower:
            share = (mine - faster) / (slower - faster)
            return {at_faster: 1 - share, at_slower: share}
    return {}


def _differences(
    values: Mapping[str, Mapping[str, Mapping[str, float]]], key: str, others: Mapping[str, float], resamples: int
) -> dict[str, Estimate]:
    """A variant minus a weighted mean of others, pair by pair; nothing where there are none."""
    found = {}
    for name, columns in values.items():
        if others and all(needed in columns for needed in (key, *others)):
            differences = [
                mine - sum(weight * columns[other][pair_id] for other, weight in others.items())
                for pair_id, mine in columns[key].items()
            ]
            found[name] = bootstrap_mean(differences, resamples)
    return found


def _differences_of_sets(
    sets: Mapping[str, Mapping[str, Estimate]], key: str, others: Mapping[str, float]
) -> dict[str, Estimate]:
    """The same for what is measured on all images together, of which no interval is known."""
    return {
        name: Estimate(
            columns[key].value - sum(weight * columns[other].value for other, weight in others.items()),
            math.nan,
            math.nan,
            columns[key].n,
        )
        for name, columns in sets.items()
        if others and all(needed in columns for needed in (key, *others))
    }


def _plain(value: Any) -> Any:
    """JSON has no NaN; an interval that is not known is null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
