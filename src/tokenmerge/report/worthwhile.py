"""What was found worth merging on a machine, and why: a config with the times that it rests on."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tabulate import tabulate

from tokenmerge.config.base import MergeConfig

WHOLE = "all"  # the part of a timing that is about the whole block


@dataclass(frozen=True)
class Timing:
    """One block of a level, unmerged and merged."""

    level: str  # the first of the stacks whose blocks are alike
    blocks: int  # how many are alike
    tokens: int
    part: str  # the only one merged; "all": every part that is worth it, with its share of selecting destinations
    unmerged: float  # seconds
    merged: float
    worthwhile: bool

    @property
    def saving(self) -> float:
        """Share of the block's time that merging saves; below 0 where it costs time."""
        return 1 - self.merged / self.unmerged

    @property
    def verdict(self) -> str:
        # Whether a part is merged is decided for all levels at once, and may go against what it saves in one.
        here = "" if self.part == WHOLE else " here"
        return f"{'merged' if self.worthwhile else 'left alone'}: {_saves(self.saving)}{here}"

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "saving": self.saving}


@dataclass(frozen=True)
class Worthwhile:
    """A config that merges where it pays. Give it to `apply` in the place of a config; `explain()` shows the times."""

    config: MergeConfig
    timings: tuple[Timing, ...]

    def __str__(self) -> str:
        return table_of(self.timings)


def table_of(timings: tuple[Timing, ...]) -> str:
    """A row for each level and part."""
    rows = [
        [
            timing.level,
            str(timing.blocks),
            f"{timing.tokens:,}",
            timing.part,
            f"{timing.unmerged * 1000:.2f}",
            f"{timing.merged * 1000:.2f}",
            timing.verdict,
        ]
        for timing in timings
    ]
    headers = ["level", "blocks", "tokens", "part", "ms unmerged", "ms merged", "verdict"]
    align = ("left", "right", "right", "left", "right", "right", "left")
    return tabulate(rows, headers, tablefmt="simple", disable_numparse=True, colalign=align)


def _saves(share: float) -> str:
    return f"saves {share:.0%}" if share >= 0 else f"costs {-share:.0%} more"
