"""apply, merged, remove and Handle: what a user calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import nn

from tokenmerge.config import MergeConfig
from tokenmerge.errors import AlreadyAppliedError, ConfigError, UnsupportedModelError
from tokenmerge.models import family_of
from tokenmerge.root import RootSite, root_site_of

if TYPE_CHECKING:
    from tokenmerge.explain import Explanation

# Where diffusers pipelines keep the models that denoise.
DENOISERS = ("unet", "transformer", "transformer_2")


class Handle:
    """Merging as applied to one pipeline or model: look at it, reset it, take it out."""

    def __init__(self, roots: list[RootSite], config: MergeConfig) -> None:
        self.config = config
        self._roots = roots

    def explain(self, size: tuple[int, int] | None = None, batch: int | None = None) -> Explanation:
        """What is merged where, and what it should save; after a run also what was measured.

        size: (height, width) of the image in pixels; by default that of the last call, or the model's own.
        """
        from tokenmerge.explain import explain

        return explain(self._roots, size, batch)

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


def apply(pipeline_or_model: Any, config: MergeConfig) -> Handle:
    """Merge tokens in a diffusers pipeline, or in a bare UNet or transformer, from the next call on.

    >>> handle = apply(pipe, ToMA(ratio=0.5))  # doctest: +SKIP
    >>> image = pipe("a photo of a lighthouse").images[0]  # doctest: +SKIP
    >>> handle.remove()  # doctest: +SKIP
    """
    if not isinstance(config, MergeConfig):
        raise ConfigError(f"config is {config!r}: give a method with its options, such as tokenmerge.ToMA(ratio=0.5).")
    models = denoisers_of(pipeline_or_model)
    for model in models:
        if root_site_of(model) is not None:
            raise AlreadyAppliedError(
                f"{type(model).__name__} is merged already: call handle.remove(), or tokenmerge.remove(...), first."
            )
    # Built before any is attached: an error leaves every model as it was.
    roots = [RootSite(model, family_of(model), config) for model in models]
    for root in roots:
        root.attach()
    return Handle(roots, config)


def remove(pipeline_or_model: Any) -> bool:
    """Take merging out of a pipeline or model without its handle, from a copy of it say. True if there was any."""
    roots = [root for model in denoisers_of(pipeline_or_model) if (root := root_site_of(model)) is not None]
    for root in roots:
        root.detach()
    return bool(roots)


@contextmanager
def merged(pipeline_or_model: Any, config: MergeConfig) -> Iterator[Handle]:
    """Merging for the length of a `with` block, taken out at its end whatever happens in it."""
    handle = apply(pipeline_or_model, config)
    try:
        yield handle
    finally:
        handle.remove()


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
