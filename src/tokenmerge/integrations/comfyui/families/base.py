"""What ComfyUI's models have in common: how a call tells its step, its guidance branch and other nodes' patches."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from torch import nn

from tokenmerge.engine.clock import Clock
from tokenmerge.integrations.comfyui.sampling import OVERRIDE, Run, attend_by_pytorch, run_of
from tokenmerge.models.base import Call, Family, signature_of

OPTIONS = "transformer_options"
# Kinds of patches, by the part that they work in. What they look up by position must be in grid order.
PATCHED = {"attn1": "self", "attn2": "cross"}


class ComfyFamily(Family):
    """A family of ComfyUI's modules."""

    latent = "x"
    timestep = "timestep"
    conditions = ()
    known_residuals = True

    def recognises(self, model: nn.Module) -> bool:
        """Whether the model is ComfyUI's: some of its classes have the names of diffusers'."""
        return any(
            kind.__name__ == self.class_name and kind.__module__.startswith("comfy.") for kind in type(model).__mro__
        )

    def read_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
        options = kwargs.get(OPTIONS) or {}
        run = run_of(options)
        return Call(
            timestep=self._noise_left(run, options, kwargs),
            signature=(signature_of(kwargs[self.latent]), self.shape_of(kwargs)),
            positional=_positional(options),
            fixed_order=self.fixed_order(kwargs),
            interleaved=self.interleaved(options, kwargs),
            branch=_branch(options),
            full=not self._merges(run, options),
            repeatable=not _wrapped(options),
            clean=None if run is None else run.clean(options.get("sigmas")),
        )

    def shape_of(self, kwargs: Mapping[str, Any]) -> Hashable:
        """What else than the latent's shape a plan depends on."""
        return None

    def fixed_order(self, kwargs: Mapping[str, Any]) -> str:
        return ""

    def interleaved(self, options: Mapping[str, Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether a ControlNet adds to the tokens between blocks, or a patch stands in a block's place."""
        replaced = options.get("patches_replace", {}).get("dit")
        patched = {"double_block", "single_block"} & {*options.get("patches", {})}
        return bool(replaced or patched) or kwargs.get("control") is not None

    def countable(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Without the patches and wrappers of other nodes: they would work on tensors that have no values."""
        # Others of ComfyUI's attentions ask for the free memory of the device, and "meta" has none.
        return {**kwargs, OPTIONS: {OVERRIDE: attend_by_pytorch}}

    def _noise_left(self, run: Run | None, options: Mapping[str, Any], kwargs: Mapping[str, Any]) -> Any:
        return options.get("sigmas") if run is not None and run.by_sigma else kwargs.get(self.timestep)

    @staticmethod
    def _merges(run: Run | None, options: Mapping[str, Any]) -> bool:
        if run is None:
            # Called without a sampler: by a script that has applied merging to the bare model.
            return "sample_sigmas" not in options
        return run.whole or run.covers(Clock().read(options.get("sigmas")).value)


def _branch(options: Mapping[str, Any]) -> Hashable:
    """The conditionings of a call, and its frames where a video is made in windows; None without a sampler."""
    conditionings = options.get("uuids") or options.get("cond_or_uncond")
    if conditionings is None:
        return None
    window = options.get("context_window")
    return tuple(conditionings), tuple(getattr(window, "index_list", ()))


def _positional(options: Mapping[str, Any]) -> tuple[str, ...]:
    names = {*options.get("patches", {}), *(name for name, each in options.get("patches_replace", {}).items() if each)}
    return tuple(part for kind, part in PATCHED.items() if any(name.startswith(kind) for name in names))


def _wrapped(options: Mapping[str, Any]) -> bool:
    """Whether another node stands around the model itself: a cache such as EasyCache would count a second run."""
    return any(options.get("wrappers", {}).get("diffusion_model", {}).values())
