"""SkipSteps: some denoising steps are not computed at all (`tokenmerge.engine.forecast`); all tokens stay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from tokenmerge.config.base import MergeConfig
from tokenmerge.config.checks import check_flag, check_step_speedup
from tokenmerge.config.interfaces import BlockContext, CannotMerge, Layout, Operators
from tokenmerge.errors import ConfigError
from tokenmerge.methods.sampled_keys import SampledKeys

# What images get that are too short to skip steps. Outliers, because few-step models are known for attention sinks.
SHORT_IMAGES = SampledKeys(outliers=8)


@dataclass(frozen=True, kw_only=True)
class SkipSteps(MergeConfig):
    """Computes one in `step_speedup` denoising steps and forecasts the others.

    Args:
        step_speedup: float above 1, default 2.0. Computes one in this many steps, on average. More is faster and
            further from the image that all steps give. Images of fewer than six steps skip none. Try 1.5 to 3 first.
        sample_keys: bool, default False. Samples keys, as `SampledKeys(outliers=8)` does, in images of fewer than six
            steps. They are then faster and change a little. Longer images are not affected.

    >>> SkipSteps(step_speedup=1.5).step_speedup
    1.5
    """

    step_speedup: float = 2.0
    sample_keys: bool = False

    merges_queries: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_flag("sample_keys", self.sample_keys)
        if self.sample_keys:
            for option in ("parts", "keys", "proportional"):
                object.__setattr__(self, option, getattr(SHORT_IMAGES, option))
        super().__post_init__()
        check_step_speedup(self.step_speedup)
        if self.step_speedup == 1:
            raise ConfigError("step_speedup is 1, so no step would be skipped: use a number above 1, such as 2.")

    @property
    def merges_short_images_only(self) -> bool:
        return True

    @property
    def ratio(self) -> float:
        return 0.0

    @property
    def resamples(self) -> bool:
        return self.sample_keys

    @property
    def refresh_every(self) -> tuple[int, int]:
        return SHORT_IMAGES.refresh_every

    def layout(self, grid: tuple[int, ...], downsample: int = 1, protected: tuple[int, ...] = ()) -> Layout:
        if not self.sample_keys:
            raise CannotMerge("SkipSteps merges no tokens")
        return SHORT_IMAGES.layout(grid, downsample)

    def plan(self, tokens: Tensor, layout: Layout, context: BlockContext, previous: Operators | None) -> Operators:
        return SHORT_IMAGES.plan(tokens, layout, context, previous)
