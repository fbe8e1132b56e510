"""The caches that diffusers has, by name: each reuses or forecasts what blocks gave at earlier steps."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from tokenmerge.accelerations.base import Acceleration, Generation
from tokenmerge.accelerations.restored import restored
from tokenmerge.api import denoisers_of
from tokenmerge.errors import ConfigError, MergeRuntimeError


@dataclass(frozen=True)
class CacheKind:
    """One cache of diffusers.

    Args:
        config: The class in `diffusers.hooks` whose fields are the options.
        own: Options that differ from the defaults of that class, with the reason next to them in `CACHES`.
        adapts: Whether the cache decides by what it sees which steps are computed.
        reads_timestep: Whether it asks for the current timestep.
        calibrates: Whether it needs ratios measured on the model first.
    """

    config: str
    own: Mapping[str, Any] = field(default_factory=dict)
    adapts: bool = False
    reads_timestep: bool = False
    calibrates: bool = False


# Its example stores factors in float32; the default, bfloat16, costs quality and no multiply-adds.
EXACT_FACTORS = {"taylor_factors_dtype": torch.float32}
CACHES: dict[str, CacheKind] = {
    "first-block-cache": CacheKind("FirstBlockCacheConfig", adapts=True),
    "taylorseer": CacheKind("TaylorSeerCacheConfig", EXACT_FACTORS),
    "taylorseer-lite": CacheKind("TaylorSeerCacheConfig", {**EXACT_FACTORS, "use_lite_mode": True}),
    "mag-cache": CacheKind("MagCacheConfig", calibrates=True),
    "faster-cache": CacheKind("FasterCacheConfig", {"tensor_format": "BCHW"}, reads_timestep=True),
    "pyramid-attention-broadcast": CacheKind(
        "PyramidAttentionBroadcastConfig", {"spatial_attention_block_skip_range": 2}, reads_timestep=True
    ),
}


@dataclass(frozen=True)
class DiffusersCache(Acceleration):
    """A cache of diffusers with its options.

    Args:
        name: One of `CACHES`.
        options: Fields of its config class; what is left out has the class's own default.
        ratios: What MagCache measured on the model; see `prepared`.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    ratios: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        known = {entry.name for entry in dataclasses.fields(self._config_class())}
        for option in self.options:
            if option not in known:
                raise ConfigError(f"{self.name} has no option {option!r}: use one of {', '.join(sorted(known))}.")

    @property
    def kind(self) -> CacheKind:
        return CACHES[self.name]

    @property
    def adapts(self) -> bool:  # type: ignore[override]
        return self.kind.adapts

    def settings(self) -> dict[str, Any]:
        return {"cache": self.name, **self.options}

    def misfit(self, pipe: Any) -> str | None:
        if all(hasattr(model, "enable_cache") for model in denoisers_of(pipe)):
            return None
        return f"{self.name} caches the blocks of transformers, and this pipeline denoises with a UNet"

    def prepared(self, pipe: Any, generation: Generation, generate: Callable[[int], object]) -> Acceleration:
        """MagCache with the ratios of this model and number of steps, measured on one generation as its text asks."""
        if not self.kind.calibrates or self.ratios or "mag_ratios" in self.options:
            return self
        # One more than will run: at its last step the cache forgets what it has measured.
        config = self._config_class()(calibrate=True, num_inference_steps=generation.steps + 1)
        seen: dict[str, list[float]] = {}
        (model,) = denoisers_of(pipe)
        with _enabled(model, config) as hooks:
            managers = {id(hook.state_manager): hook.state_manager for hook in hooks}

            def note(*_: Any) -> None:
                for manager in managers.values():
                    seen.update({name: list(state.calibration_ratios) for name, state in manager._state_cache.items()})

            handle = model.register_forward_hook(note)
            try:
                generate(generation.steps)
            finally:
                handle.remove()
        return dataclasses.replace(self, ratios=tuple(next(iter(seen.values()))))

    @contextmanager
    def applied(self, pipe: Any, generation: Generation) -> Iterator[None]:
        (model,) = denoisers_of(pipe)
        options = {**self.kind.own, **self.options}
        if self.kind.calibrates:
            options |= {"num_inference_steps": generation.steps}
            options |= {"mag_ratios": list(self.ratios)} if self.ratios else {}
        if self.name == "faster-cache" and _guided_apart(model, generation):
            options |= {"is_guidance_distilled": True}
        timestep = _Timestep()
        if self.kind.reads_timestep:
            options |= {"current_timestep_callback": lambda: _current(pipe, timestep)}
        with _enabled(model, self._config_class()(**options)) as hooks:
            call = _BranchesApart(hooks, generation.calls_per_step, timestep)
            handle = model.register_forward_pre_hook(call, with_kwargs=True)
            try:
                yield
            finally:
                handle.remove()

    def _config_class(self) -> Any:
        from diffusers import hooks

        found = getattr(hooks, self.kind.config, None)
        if found is None:
            import diffusers

            raise ConfigError(
                f"{self.name} is not in diffusers {diffusers.__version__}: install a newer one, or leave it out."
            )
        return found


@contextmanager
def _enabled(model: Any, config: Any) -> Iterator[list[Any]]:
    """The model with a cache in it; the cache's hooks."""
    with restored(model):
        try:
            model.enable_cache(config)
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigError(f"{type(config).__name__} cannot be used on {type(model).__name__}: {error}") from error
        hooks = _hooks_in(model)
        if not hooks:
            raise MergeRuntimeError(
                f"{type(config).__name__} found nothing to cache in {type(model).__name__}, so nothing would be faster."
            )
        try:
            yield hooks
        finally:
            model.disable_cache()


def _hooks_in(model: nn.Module) -> list[Any]:
    registries = (module.__dict__.get("_diffusers_hook") for module in model.modules())
    return [hook for registry in registries if registry is not None for hook in registry.hooks.values()]


def _guided_apart(model: Any, generation: Generation) -> bool:
    """Whether a call holds one guidance branch, so that FasterCache has no second half of a batch to save."""
    return generation.calls_per_step > 1 or hasattr(model.config, "guidance_embeds")


@dataclass
class _Timestep:
    value: Any = None


def _current(pipe: Any, timestep: _Timestep) -> Any:
    return pipe.current_timestep if hasattr(pipe, "current_timestep") else timestep.value


class _BranchesApart:
    """Before each call: notes the timestep, and hands hooks that know no guidance branches the state of this one.

    Pyramid Attention Broadcast and FasterCache keep one state for a module. If guidance is a second call, each branch
    would get what the other computed. A rival is measured at its best, so here each branch has a state.
    """

    def __init__(self, hooks: list[Any], branches: int, timestep: _Timestep) -> None:
        self._hooks = [hook for hook in hooks if hasattr(hook, "state")]
        self._states: list[list[Any]] = [[type(hook.state)() for hook in self._hooks] for _ in range(branches)]
        self._calls = itertools.count()
        self._timestep = timestep

    def __call__(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        self._timestep.value = kwargs.get("timestep", args[1] if len(args) > 1 else None)
        for hook, state in zip(self._hooks, self._states[next(self._calls) % len(self._states)], strict=True):
            hook.state = state
