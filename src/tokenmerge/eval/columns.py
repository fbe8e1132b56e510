"""How each metric is named, rounded and judged; shared by tables, figures and the page."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tokenmerge.eval.statistics import Estimate


@dataclass(frozen=True)
class Column:
    metric: str
    title: str
    digits: int
    higher_is_better: bool
    meaning: str

    @property
    def arrow(self) -> str:
        return "↑" if self.higher_is_better else "↓"


COLUMNS = (
    Column("psnr", "PSNR", 2, True, "decibels to the unmerged image; equal images count as 100"),
    Column("ssim", "SSIM", 4, True, "structural similarity to the unmerged image"),
    Column("mse", "MSE", 2, False, "mean squared difference to the unmerged image, values from 0 to 255"),
    Column("lpips", "LPIPS", 4, False, "distance of deep features to the unmerged image"),
    Column("dino", "DINO", 4, False, "1 - cosine of DINO features to the unmerged image"),
    Column("fid", "FID", 2, False, "Fréchet distance of all images to all unmerged ones"),
    Column("fid_real", "FID (real)", 2, False, "Fréchet distance of all images to a folder of real ones"),
    Column("clip", "CLIP", 2, True, "100 x cosine of image and prompt"),
)


def shown(value: float, digits: int, sign: bool = False) -> str:
    return "–" if not math.isfinite(value) else f"{value:+.{digits}f}" if sign else f"{value:.{digits}f}"


def shown_estimate(estimate: Estimate, digits: int, sign: bool = False) -> str:
    """A value and its 95 % interval: 31.20 [30.85, 31.55]."""
    value = shown(estimate.value, digits, sign)
    if not (math.isfinite(estimate.low) and math.isfinite(estimate.high)):
        return value
    return f"{value} [{shown(estimate.low, digits, sign)}, {shown(estimate.high, digits, sign)}]"
