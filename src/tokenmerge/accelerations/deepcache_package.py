"""The DeepCache package from PyPI: the inner levels of a UNet are kept for some steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tokenmerge.accelerations.base import Acceleration, Generation, require_package
from tokenmerge.accelerations.restored import restored
from tokenmerge.errors import ConfigError


@dataclass(frozen=True)
class DeepCache(Acceleration):
    """DeepCache with its options.

    Args:
        cache_interval: All levels run once in this many steps. Its text recommends 3.
        cache_branch_id: The outermost part that is kept; 0, which its text recommends, keeps most.
    """

    cache_interval: int = 3
    cache_branch_id: int = 0

    def __post_init__(self) -> None:
        require_package("DeepCache", "DeepCache")
        for name in ("cache_interval", "cache_branch_id"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < (2 if name == "cache_interval" else 0):
                raise ConfigError(f"{name} is {value!r}: it takes a whole number, and an interval of at least 2.")

    def settings(self) -> dict[str, Any]:
        return {
            "package": "DeepCache",
            "cache_interval": self.cache_interval,
            "cache_branch_id": self.cache_branch_id,
        }

    def misfit(self, pipe: Any) -> str | None:
        if getattr(pipe, "unet", None) is None:
            return "DeepCache keeps the inner levels of a UNet, and this pipeline has a transformer"
        return None

    @contextmanager
    def applied(self, pipe: Any, generation: Generation) -> Iterator[None]:
        from DeepCache import DeepCacheSDHelper

        with restored(pipe.unet):
            helper = DeepCacheSDHelper(pipe=pipe)
            helper.set_params(cache_interval=self.cache_interval, cache_branch_id=self.cache_branch_id)
            helper.enable()
            try:
                yield
            finally:
                helper.disable()
