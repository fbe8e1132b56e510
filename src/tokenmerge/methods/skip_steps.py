"""SkipSteps: some denoising steps are not computed at all (`tokenmerge.engine.forecast`); all tokens stay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from tokenmerge.config.base import MergeConfig
from tokenmerge.config.interfaces import BlockContext, CannotMerge, Layout, Operators
from tokenmerge.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class SkipSteps(MergeConfig):
    """Computes one in `step_speedup` denoising steps and forecasts the others.

    Args:
        step_speedup: float above 1, default 2.0. Computes one in this many steps, on average. More is faster and
            further from the image that all steps give. Images of fewer than six steps skip none. Try 1.5 to 3 first.

    >>> SkipSteps(step_speedup=1.5).step_speedup
    1.5
    """

    step_speedup: float = 2.0

    merges_tokens: ClassVar[bool] = False
    merges_queries: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.step_speedup == 1:
            raise ConfigError("step_speedup is 1, so no step would be skipped: use a number above 1, such as 2.")

    @property
    def ratio(self) -> float:
        return 0.0

    def layout(self, grid: tuple[int, ...], downsample: int = 1, protected: tuple[int, ...] = ()) -> Layout:
        raise CannotMerge("SkipSteps merges no tokens")

    def plan(self, tokens: Tensor, layout: Layout, context: BlockContext, previous: Operators | None) -> Operators:
        raise CannotMerge("SkipSteps merges no tokens")
