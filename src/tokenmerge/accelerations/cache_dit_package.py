"""The cache-dit package from PyPI: DBCache, with steps computed by a mask or by how much the first blocks change."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tokenmerge.accelerations.base import Acceleration, Generation, require_package
from tokenmerge.accelerations.restored import restored
from tokenmerge.api import denoisers_of
from tokenmerge.errors import ConfigError

MASKS = ("slow", "medium", "fast", "ultra")


@dataclass(frozen=True)
class CacheDit(Acceleration):
    """cache-dit with its options.

    Args:
        mask: One of its predefined masks of steps, "slow" to "ultra"; None decides by the residual's change.
        taylorseer: Order of its TaylorSeer forecast, 1 or 2; 0 reuses residuals as they are.
        options: Any other fields of its DBCacheConfig.
    """

    mask: str | None = None
    taylorseer: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_package("cache_dit", "cache-dit")
        if self.mask is not None and self.mask not in MASKS:
            raise ConfigError(f"mask is {self.mask!r}: use one of {', '.join(MASKS)}.")
        if self.taylorseer not in (0, 1, 2):
            raise ConfigError(f"taylorseer is {self.taylorseer!r}: it is the order of the forecast, 0, 1 or 2.")
        from cache_dit import DBCacheConfig

        known = {entry.name for entry in dataclasses.fields(DBCacheConfig)}
        for option in self.options:
            if option not in known:
                raise ConfigError(f"cache-dit has no option {option!r}: use one of {', '.join(sorted(known))}.")

    @property
    def adapts(self) -> bool:  # type: ignore[override]
        return self.mask is None or self.options.get("steps_computation_policy", "dynamic") == "dynamic"

    def settings(self) -> dict[str, Any]:
        return {"package": "cache-dit", "mask": self.mask, "taylorseer": self.taylorseer, **self.options}

    def misfit(self, pipe: Any) -> str | None:
        if getattr(pipe, "transformer", None) is None:
            return "cache-dit caches the blocks of transformers, and this pipeline denoises with a UNet"
        return None

    @contextmanager
    def applied(self, pipe: Any, generation: Generation) -> Iterator[None]:
        import cache_dit

        _quiet()
        config = cache_dit.DBCacheConfig(
            **{
                "num_inference_steps": generation.steps,
                "enable_separate_cfg": generation.calls_per_step > 1,
                "steps_computation_mask": None if self.mask is None else _mask(self.mask, generation.steps),
                **self.options,
            }
        )
        order = self.taylorseer
        calibrator = cache_dit.TaylorSeerCalibratorConfig(taylorseer_order=order) if order else None
        (model,) = denoisers_of(pipe)
        with restored(model):
            try:
                cache_dit.enable_cache(pipe, cache_config=config, calibrator_config=calibrator)
            except (ValueError, AssertionError) as error:
                raise ConfigError(f"cache-dit does not fit {type(pipe).__name__}: {error}") from error
            try:
                yield
            finally:
                cache_dit.disable_cache(pipe)


def _quiet() -> None:
    """It logs every step of being switched on and off, each module with its logger."""
    for name in list(logging.root.manager.loggerDict):
        if name.lower().startswith("cache_dit"):
            logging.getLogger(name).setLevel(logging.ERROR)


def _mask(policy: str, steps: int) -> list[int]:
    import cache_dit

    mask: list[int] = cache_dit.steps_mask(total_steps=steps, mask_policy=policy)
    return mask
