"""apply, merged, remove and Handle: what a user calls."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tokenmerge.config.base import MergeConfig
from tokenmerge.config.checks import check_whole
from tokenmerge.config.keep import Mask, read_mask
from tokenmerge.engine.session import Session, session_of
from tokenmerge.engine.skipping import TimelineOf
from tokenmerge.errors import AlreadyAppliedError, ConfigError, UnsupportedModelError
from tokenmerge.methods.references import check_reference_ratio
from tokenmerge.models import family_of
from tokenmerge.report.worthwhile import Timing, Worthwhile
from tokenmerge.runtime.sampler import SamplerSteps

if TYPE_CHECKING:
    from tokenmerge.report.explanation import Explanation

Config = MergeConfig | Worthwhile | str
# Where diffusers pipelines keep the models that denoise.
DENOISERS = ("unet", "transformer", "transformer_2")


class Handle:
    """Merging as applied to one pipeline or model: look at it, reset it, take it out."""

    def __init__(self, sessions: list[Session], config: MergeConfig, timings: tuple[Timing, ...] = ()) -> None:
        self.config = config
        self._sessions = sessions
        self._timings = timings  # that the config rests on

    def explain(
        self, size: tuple[int, int] | None = None, batch: int | None = None, steps: int | None = None
    ) -> Explanation:
        """What is merged where, and what it should save; after a run also what was measured.

        size: (height, width) of the image in pixels; by default that of the last call, or the model's own.
        steps: denoising steps of the image. With few steps more of them run full, and less is saved. By default, many.
        """
        from tokenmerge.report.explain import explain

        return explain(self._sessions, size, batch, steps, self._timings)

    @contextmanager
    def image(self, name: Hashable) -> Iterator[None]:
        """Says which image, or which guidance branch, the calls in a `with` block belong to.

        For loops that call the model for several images in turns. Other calls are distinguished by their timesteps,
        conditioning and inputs. Call `reset()` before the next generation.

        Args:
            name: any hashable value, the same one at each step of the image.

        >>> with handle.image("left"):  # doctest: +SKIP
        ...     noise = model(latents, timestep, text)
        """
        before = [session.steps.named_branch for session in self._sessions]
        for session in self._sessions:
            session.steps.named_branch = name
        try:
            yield
        finally:
            for session, branch in zip(self._sessions, before, strict=True):
                session.steps.named_branch = branch

    def reset(self) -> None:
        """Forget all plans, as if the next call were the first."""
        for session in self._sessions:
            session.reset()

    def remove(self) -> None:
        """Restore exactly the model that came in. Removing twice does no harm."""
        for session in self._sessions:
            session.detach()

    def __repr__(self) -> str:
        models = ", ".join(type(session.model).__name__ for session in self._sessions)
        return f"<tokenmerge Handle: {self.config!r} on {models}>"


def apply(
    pipeline_or_model: Any,
    config: Config = "balanced",
    keep: Mask | None = None,
    reference_ratio: float = 0.0,
    steps: int | None = None,
) -> Handle:
    """Merge tokens in a diffusers pipeline, or in a bare UNet or transformer, from the next call on.

    config: a preset by name ("quality", "balanced", "fast"), a method with its options, or what `worthwhile` has
        found. By default what is recommended for the model: the preset "balanced".
    keep: a black and white mask of what must stay sharp, as an image, an array or a tensor of height x width and of any
        size. Tokens that hold a white pixel are kept as they are, and the ratio is of the others. For ToMA, TileMean
        and presets, which then merge tokens instead of skipping steps. Of an editing model it is over the image, not
        over those to edit.
    reference_ratio: the fraction of tokens of images to edit (Flux Kontext, Flux.2, Qwen-Image-Edit) that is merged
        away: 0, 0.5, 0.75, 0.875 or 0.9375. By default 0, with which they stay as they are. More is faster, and details
        of those images are copied less exactly. Try 0.5 first.
    steps: how many denoising steps an image has, for models without a pipeline. A pipeline's scheduler says it. Without
        either, fewer steps are skipped, and forecasts are less exact.

    >>> handle = apply(pipe)  # doctest: +SKIP
    >>> image = pipe("a photo of a lighthouse").images[0]  # doctest: +SKIP
    >>> handle.remove()  # doctest: +SKIP
    """
    models = denoisers_of(pipeline_or_model)
    timings = config.timings if isinstance(config, Worthwhile) else ()
    config = config_of(config, pipeline_or_model, keep is not None or bool(reference_ratio))
    if steps is not None:
        check_whole("steps", steps, least=1)
    for model in models:
        if session_of(model) is not None:
            raise AlreadyAppliedError(
                f"{type(model).__name__} is merged already: call handle.remove(), or tokenmerge.remove(...), first."
            )
    # Built before any is attached: an error leaves every model as it was.
    mask, ratio = None if keep is None else read_mask(keep), check_reference_ratio(reference_ratio)
    # Of two models that share the steps, the sampler's last one is the last one's.
    timelines = [None] * (len(models) - 1) + [_timeline_of(pipeline_or_model, steps)]
    sessions = [
        Session(model, family_of(model), config, mask, timeline_of=timeline, reference_ratio=ratio)
        for model, timeline in zip(models, timelines, strict=True)
    ]
    for session in sessions:
        session.attach()
        if pipeline_or_model is not session.model:
            session.steps.clock.watch(pipeline_or_model)
    if _is_compiled(pipeline_or_model):
        # Compiled code looks for hooks when it is made and never again: without this, nothing would be merged.
        torch.compiler.reset()
    return Handle(sessions, config, timings)


def config_of(config: Any, pipeline_or_model: Any, merge_tokens: bool = False) -> MergeConfig:
    """The config that a user gave: by the name of a preset, as a method, or as found by `worthwhile`."""
    if isinstance(config, str):
        from tokenmerge.presets import preset

        return preset(config, pipeline_or_model, merge_tokens)  # type: ignore[arg-type]
    config = config.config if isinstance(config, Worthwhile) else config
    if not isinstance(config, MergeConfig) or type(config) is MergeConfig:
        raise ConfigError(f"config is {config!r}: {_what_to_give(config)}")
    return config


def _what_to_give(config: object) -> str:
    """What to give in the place of something that is no config."""
    if isinstance(config, type) and issubclass(config, MergeConfig) and config is not MergeConfig:
        return f"that is the class, so write {config.__name__}() for its defaults."
    if isinstance(config, dict):
        return "read a saved config with tokenmerge.MergeConfig.from_dict(...) first."
    return (
        "give the name of a preset, such as 'quality', or a method with its options, such as "
        "tokenmerge.ToMA(ratio=0.5)."
    )


def _timeline_of(pipeline_or_model: Any, steps: int | None) -> TimelineOf | None:
    """What is known about the steps of an image: by the caller, or by a pipeline's scheduler."""
    if steps is not None:
        return partial(_as_given, steps)
    return SamplerSteps(pipeline_or_model) if hasattr(pipeline_or_model, "scheduler") else None


def _as_given(steps: int, first_timestep: float | None) -> tuple[int, None]:
    """The number of steps that the caller gave; the effect of each on the image is not known."""
    return steps, None


def remove(pipeline_or_model: Any) -> bool:
    """Take merging out of a pipeline or model without its handle, from a copy of it say. True if there was any."""
    found = [session_of(model) for model in denoisers_of(pipeline_or_model)]
    sessions = [session for session in found if session is not None]
    for session in sessions:
        session.detach()
    return bool(sessions)


@contextmanager
def merged(
    pipeline_or_model: Any,
    config: Config = "balanced",
    keep: Mask | None = None,
    reference_ratio: float = 0.0,
    steps: int | None = None,
) -> Iterator[Handle]:
    """Merging for the length of a `with` block, taken out at its end whatever happens in it. As `apply` else."""
    handle = apply(pipeline_or_model, config, keep, reference_ratio, steps)
    try:
        yield handle
    finally:
        handle.remove()


def _is_compiled(pipeline_or_model: Any) -> bool:
    """Whether torch.compile has been used on a denoiser, as a whole or on modules in it."""
    given = [pipeline_or_model, *(getattr(pipeline_or_model, name, None) for name in DENOISERS)]
    return any(hasattr(model, "_orig_mod") for model in given) or any(
        module._compiled_call_impl is not None
        for model in denoisers_of(pipeline_or_model)
        for module in model.modules()
    )


def denoisers_of(pipeline_or_model: Any) -> list[nn.Module]:
    """The models of a pipeline that denoise, or the model itself."""
    if isinstance(pipeline_or_model, nn.Module):
        return [getattr(pipeline_or_model, "_orig_mod", pipeline_or_model)]
    found = [getattr(pipeline_or_model, name, None) for name in DENOISERS]
    models = [getattr(model, "_orig_mod", model) for model in found if isinstance(model, nn.Module)]
    if isinstance(pipeline_or_model, str):
        raise UnsupportedModelError(
            f"{pipeline_or_model!r} is a name: load the model first, such as with "
            f"diffusers.DiffusionPipeline.from_pretrained, and give that pipeline."
        )
    if not models:
        raise UnsupportedModelError(
            f"{type(pipeline_or_model).__name__} is neither a torch model nor a pipeline with a unet or transformer: "
            f"give a diffusers pipeline, or its unet or transformer."
        )
    return models
