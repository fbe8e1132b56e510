"""apply, merged, remove and Handle: what a user calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tokenmerge.autotune.worthwhile import Timing, Worthwhile
from tokenmerge.config.base import MergeConfig
from tokenmerge.config.keep import Mask, read_mask
from tokenmerge.engine.root import RootSite, root_site_of
from tokenmerge.errors import AlreadyAppliedError, ConfigError, UnsupportedModelError
from tokenmerge.models import family_of

if TYPE_CHECKING:
    from tokenmerge.report.explanation import Explanation

# Where diffusers pipelines keep the models that denoise.
DENOISERS = ("unet", "transformer", "transformer_2")


class Handle:
    """Merging as applied to one pipeline or model: look at it, reset it, take it out."""

    def __init__(self, roots: list[RootSite], config: MergeConfig, timings: tuple[Timing, ...] = ()) -> None:
        self.config = config
        self._roots = roots
        self._timings = timings  # that the config rests on

    def explain(
        self, size: tuple[int, int] | None = None, batch: int | None = None, steps: int | None = None
    ) -> Explanation:
        """What is merged where, and what it should save; after a run also what was measured.

        size: (height, width) of the image in pixels; by default that of the last call, or the model's own.
        steps: of the picture: of few steps more run whole (`detail_within`), and less is saved. By default, many.
        """
        from tokenmerge.report.explain import explain

        return explain(self._roots, size, batch, steps, self._timings)

    def reset(self) -> None:
        """Forget all plans, as if the next call were the first."""
        for root in self._roots:
            root.plan.forget()

    def remove(self) -> None:
        """Restore exactly the model that came in. Removing twice does no harm."""
        for root in self._roots:
            root.detach()

    def __repr__(self) -> str:
        models = ", ".join(type(root.model).__name__ for root in self._roots)
        return f"<tokenmerge Handle: {self.config!r} on {models}>"


def apply(pipeline_or_model: Any, config: MergeConfig | Worthwhile, keep: Mask | None = None) -> Handle:
    """Merge tokens in a diffusers pipeline, or in a bare UNet or transformer, from the next call on.

    config: a method with its options, or what `worthwhile` has found.
    keep: a black and white mask of what must stay sharp, as an image, an array or a tensor of height x width and of any
        size. Tokens that hold a white pixel are kept as they are, and the ratio is of the others. For ToMA.

    >>> handle = apply(pipe, ToMA(ratio=0.5))  # doctest: +SKIP
    >>> image = pipe("a photo of a lighthouse").images[0]  # doctest: +SKIP
    >>> handle.remove()  # doctest: +SKIP
    """
    timings = config.timings if isinstance(config, Worthwhile) else ()
    config = config.config if isinstance(config, Worthwhile) else config
    if not isinstance(config, MergeConfig):
        raise ConfigError(f"config is {config!r}: give a method with its options, such as tokenmerge.ToMA(ratio=0.5).")
    models = denoisers_of(pipeline_or_model)
    for model in models:
        if root_site_of(model) is not None:
            raise AlreadyAppliedError(
                f"{type(model).__name__} is merged already: call handle.remove(), or tokenmerge.remove(...), first."
            )
    # Built before any is attached: an error leaves every model as it was.
    mask = None if keep is None else read_mask(keep)
    roots = [RootSite(model, family_of(model), config, mask) for model in models]
    for root in roots:
        root.attach()
    if _is_compiled(pipeline_or_model):
        # Compiled code looks for hooks when it is made and never again: without this, nothing would be merged.
        torch.compiler.reset()
    return Handle(roots, config, timings)


def remove(pipeline_or_model: Any) -> bool:
    """Take merging out of a pipeline or model without its handle, from a copy of it say. True if there was any."""
    roots = [root for model in denoisers_of(pipeline_or_model) if (root := root_site_of(model)) is not None]
    for root in roots:
        root.detach()
    return bool(roots)


@contextmanager
def merged(pipeline_or_model: Any, config: MergeConfig | Worthwhile, keep: Mask | None = None) -> Iterator[Handle]:
    """Merging for the length of a `with` block, taken out at its end whatever happens in it."""
    handle = apply(pipeline_or_model, config, keep)
    try:
        yield handle
    finally:
        handle.remove()


def _is_compiled(pipeline_or_model: Any) -> bool:
    """Has torch.compile been used on a denoiser, as a whole or on modules in it?"""
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
    if not models:
        raise UnsupportedModelError(
            f"{type(pipeline_or_model).__name__} is neither a torch model nor a pipeline with a unet or transformer: "
            f"give a diffusers pipeline, or its unet or transformer."
        )
    return models
