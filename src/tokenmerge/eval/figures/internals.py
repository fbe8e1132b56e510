"""Figures that look inside the model while it makes one image: k-means of hidden states, overlap of destinations."""

from __future__ import annotations

from pathlib import Path

from tokenmerge.accelerations.merging import Merging
from tokenmerge.eval.experiment import Experiment
from tokenmerge.eval.figures.clusters import plot_clusters, recorded_hidden_states
from tokenmerge.eval.figures.overlap import overlaps, plot_overlaps, recorded_destinations
from tokenmerge.eval.loading import load_maker
from tokenmerge.eval.pairs import Pair
from tokenmerge.eval.variants import variants_of
from tokenmerge.methods.lower_bound import LowerBound
from tokenmerge.methods.toma import ToMA

CLUSTERS = "hidden-states"
OVERLAP = "destinations"


def internal_figures(
    experiment: Experiment, kept: Path, pair: Pair, allow_pickle: bool = False
) -> dict[str, tuple[str, str | None]]:
    """The figures that the experiment asks for, made of its first pair; those in the folder are not made again."""
    captions = {}
    if experiment.figures.hidden_states:
        captions[CLUSTERS] = f"k-means of hidden states in the image's colours, over blocks and steps: {pair.prompt}"
    if experiment.figures.destinations:
        captions[OVERLAP] = "Destinations that a step shares with the first step of its interval, per block"
    plotted: dict[str, tuple[str, str | None]] = {}
    for name, caption in captions.items():
        file = kept / f"{name}.svg"
        plotted[name] = (caption, file.read_text(encoding="utf-8") if file.exists() else None)
    if all(svg is not None for _, svg in plotted.values()):
        return plotted
    maker = load_maker(experiment, allow_pickle)
    if CLUSTERS in plotted and plotted[CLUSTERS][1] is None:
        with recorded_hidden_states(maker.pipeline, experiment.image.steps) as states:
            image, _ = maker.generate(pair, experiment.image.steps)
        plotted[CLUSTERS] = (captions[CLUSTERS], plot_clusters(states, image))
    if OVERLAP in plotted and plotted[OVERLAP][1] is None:
        with recorded_destinations(maker.pipeline, _toma_of(experiment)) as selections:
            maker.generate(pair, experiment.image.steps)
        plotted[OVERLAP] = (captions[OVERLAP], plot_overlaps(overlaps(selections)))
    return plotted


def _toma_of(experiment: Experiment) -> ToMA:
    """The first ToMA of the experiment, or ToMA with its defaults."""
    accelerations = [variant.acceleration for variant in variants_of(experiment)]
    configs = [acceleration.config for acceleration in accelerations if isinstance(acceleration, Merging)]
    return next(
        (config for config in configs if isinstance(config, ToMA) and not isinstance(config, LowerBound)), ToMA()
    )
