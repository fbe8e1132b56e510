"""The model of an experiment, ready to make images."""

from __future__ import annotations

from tokenmerge.eval.errors import ExperimentError
from tokenmerge.eval.experiment import Experiment
from tokenmerge.eval.image_maker import ImageMaker
from tokenmerge.runtime.pipelines import load_pipeline


def load_maker(experiment: Experiment, allow_pickle: bool = False) -> ImageMaker:
    """Load the experiment's model; what it cannot do shows here, before the first image.

    Pickles are for the person at the keyboard to allow: an experiment, which may be anybody's, cannot.
    """
    model, image = experiment.model, experiment.image
    loaded = load_pipeline(
        model.name or None,
        None if model.device == "auto" else model.device,
        None if model.dtype == "auto" else model.dtype,
        allow_pickle,
    )
    step = loaded.size_step
    for side in ("width", "height"):
        if getattr(image, side) % step:
            near = max(step, round(getattr(image, side) / step) * step)
            raise ExperimentError(
                f"{side} in [image] is {getattr(image, side)}: {loaded.name} makes images whose sides are multiples of "
                f"{step}; use {near}."
            )
    if image.guidance is not None and not loaded.takes("guidance_scale"):
        raise ExperimentError(f"{loaded.name} takes no guidance: leave guidance out of [image].")
    return ImageMaker(experiment, loaded.pipe)
