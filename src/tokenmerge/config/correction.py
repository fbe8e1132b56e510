"""When denoising steps run full, so that the error which merging makes can be measured there and added back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from tokenmerge.config.checks import check_flag, check_names, check_whole
from tokenmerge.config.ratio import is_number
from tokenmerge.errors import ConfigError


@dataclass(frozen=True, repr=False)
class FullSteps:
    """Runs some steps on all tokens and corrects the merged steps that follow.

    A full step also runs merged on the same input. The difference is the merging error. It is stored and added back on
    the merged steps that follow (`tokenmerge.engine.correction`). The first step of an image is always full. The
    correction costs memory for about two outputs of each span of blocks.

    Args:
        every: int, default 6. Runs every this many steps full. A smaller number is slower and closer to the unmerged
            image. Try 3 to 8 first.
        within: float or None, default 0.35. Also runs a step full once this fraction of the noise has been removed
            since the last full step, never two in a row. A smaller number is slower and closer to the unmerged image.
            It matters below about 15 steps. None counts steps alone. Try 0.25 to 0.5 first.
        offload: bool, default False. Keeps what full steps record in the host's memory and copies it to the GPU for
            each span of each step. It frees that much memory of the GPU and is slower. The image is the same. Try it
            if memory runs out.

    >>> FullSteps(every=3)
    FullSteps(every=3, within=0.35)
    """

    every: int = 6
    within: float | None = 0.35
    offload: bool = False

    def __new__(cls, *values: Any, **options: Any) -> Self:
        check_names(cls, (), options)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        check_whole("every", self.every, least=2)
        check_flag("offload", self.offload)
        if self.within is not None and (not is_number(self.within) or not 0 < self.within <= 1):
            raise ConfigError(
                f"within is {self.within!r}: it is a fraction of the noise, a number above 0 and up to 1, such as "
                f"0.35; or None."
            )

    def __repr__(self) -> str:
        offload = ", offload=True" if self.offload else ""
        return f"FullSteps(every={self.every!r}, within={self.within!r}{offload})"


def read_correction(value: Any) -> FullSteps | None:
    """A correction as configs keep it. JSON and the command line give its options as a dictionary."""
    if value is None or isinstance(value, FullSteps):
        return value
    if not isinstance(value, dict):
        raise ConfigError(
            f"correction is {value!r}: it takes FullSteps(every=6, within=0.35), or None for no correction. On the "
            f"command line put it in quotes: --set 'correction={{\"every\": 6}}'."
        )
    return FullSteps(**value)
