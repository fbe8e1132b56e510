"""Every acceleration by the name that experiments and commands use, ours and the rivals': the one table of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tokenmerge.accelerations.base import Acceleration
from tokenmerge.accelerations.cache_dit_package import CacheDit
from tokenmerge.accelerations.deepcache_package import DeepCache
from tokenmerge.accelerations.diffusers_caches import CACHES, DiffusersCache
from tokenmerge.accelerations.fewer_steps import FewerSteps
from tokenmerge.accelerations.merging import Merging, Preset
from tokenmerge.accelerations.tomesd_package import Tomesd
from tokenmerge.errors import ConfigError, hint
from tokenmerge.methods.named import METHODS, named_config
from tokenmerge.presets import NAMES

FEWER_STEPS = "fewer-steps"
PRESET = "preset"
TOMESD = "tomesd-package"


def _cache_dit(mask: str | None = None, taylorseer: int = 1, **options: Any) -> CacheDit:
    return CacheDit(mask, taylorseer, options)


def _preset(preset: str) -> Preset:
    if preset not in NAMES:
        raise ConfigError(f"preset {preset!r} is not known: use one of {', '.join(map(repr, NAMES))}.")
    return Preset(preset)


RIVALS: dict[str, Callable[..., Acceleration]] = {
    FEWER_STEPS: FewerSteps,
    "cache-dit": _cache_dit,
    "deepcache": DeepCache,
    TOMESD: Tomesd,
}


def known_accelerations() -> tuple[str, ...]:
    return (PRESET, *METHODS, *RIVALS, *CACHES)


def named_acceleration(name: str, options: Mapping[str, Any] | None = None, ratio: Any = None) -> Acceleration:
    """An acceleration by name with its options; `ratio` is for methods that merge.

    >>> named_acceleration("fewer-steps", {"fraction": 0.5}).steps_of(20)
    10
    """
    options = dict(options or {})
    if name in METHODS:
        return Merging(named_config(name, ratio, options))
    if ratio is not None and name != TOMESD:
        raise ConfigError(f"{name} has no ratio: leave ratios out.")
    if name in CACHES:
        return DiffusersCache(name, options)
    if name != PRESET and name not in RIVALS:
        raise ConfigError(f"method {name!r} is not known: {hint(name, known_accelerations())}")
    make = _preset if name == PRESET else RIVALS[name]
    if ratio is not None:
        options["ratio"] = ratio
    try:
        return make(**options)
    except TypeError as error:
        raise ConfigError(f"{name} cannot be made of these options: {error}.") from None
