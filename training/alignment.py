"""Inception features that a transformer's middle is aligned with while it trains, so that it learns from fewer samples.

    python -m training.alignment --work DIR

REPA (Yu et al., 2024) adds a second loss: a projection of the hidden states after an early block is to point in the
direction of a pretrained network's features at the same place. Every photograph's features are computed once and kept
in DIR/photographs/alignment.pt; a frame's are cut from them, as its pixels are cut from the photograph.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, grid_sample, interpolate
from tqdm import tqdm

from training.data import work_parser
from training.inception import NETWORK_SIDE, load_network

LAST_LAYER = "mixed_7"  # the last with 17 x 17 places
DIMENSIONS = 96  # principal components kept of 768
FITTED = 400  # photographs for the components
BATCH = 12


class Projection(nn.Sequential):
    """Hidden states (B, N, width) -> directions (B, N, DIMENSIONS). Trained along, and left out of the export."""

    def __init__(self, width: int) -> None:
        super().__init__(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, DIMENSIONS))

    def loss(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """One minus the mean cosine between projected hidden states (B, N, width) and targets (B, N, DIMENSIONS)."""
        return 1 - cosine_similarity(self(hidden).float(), targets, dim=-1).mean()


def cut_features(maps: Tensor, corners: Tensor, extent: float, flipped: Tensor, side: int) -> Tensor:
    """Features (B, side * side, D) at the token centres of frames, cut from maps (B, D, h, w) of whole photographs.

    `corners` (B, 2) are the frames' top and left, and `extent` their side, as fractions of the photograph.
    """
    steps = (torch.arange(side) + 0.5) / side * extent
    rows, columns = corners[:, :1] + steps, corners[:, 1:] + steps  # (B, side)
    columns = torch.where(flipped[:, None], columns.flip(1), columns)
    grid = torch.stack([columns[:, None, :].expand(-1, side, -1), rows[:, :, None].expand(-1, -1, side)], dim=-1)
    return grid_sample(maps, grid * 2 - 1, padding_mode="border", align_corners=False).flatten(2).transpose(1, 2)


@torch.no_grad()
def feature_maps(network: nn.Module, images: np.ndarray) -> Tensor:  # (B, 768, 17, 17)
    """Features of the middle of the network for images (B, H, W, 3) uint8."""
    pixels = torch.from_numpy(np.ascontiguousarray(images)).permute(0, 3, 1, 2) / 127.5 - 1
    x = interpolate(pixels, size=(NETWORK_SIDE, NETWORK_SIDE), mode="bilinear", antialias=True)
    for name, layer in network.net.layers.named_children():  # type: ignore[union-attr]
        x = layer(x)
        if name == LAST_LAYER:
            break
    return x


def principal_axes(maps: Tensor) -> tuple[Tensor, Tensor]:
    """Mean (768,) and scaled axes (768, DIMENSIONS) of maps (N, 768, h, w): each component has variance 1."""
    rows = maps.transpose(0, 1).flatten(1).T
    mean = rows.mean(0)
    values, vectors = torch.linalg.eigh((rows - mean).T @ (rows - mean) / len(rows))
    top = vectors[:, -DIMENSIONS:]
    # The square root keeps some of the order of the components, and the last ones, mostly noise, small.
    return mean, top * values[-DIMENSIONS:].clamp_min(1e-6) ** -0.25


def main() -> None:
    args = work_parser("Computes the features that photo-flux is aligned with.").parse_args()
    folder: Path = args.work / "photographs"
    images = np.load(folder / "320.npy", mmap_mode="r")
    network = load_network()
    chosen = np.sort(np.random.default_rng(0).permutation(len(images))[:FITTED])
    batches = [images[chosen[start : start + BATCH]] for start in range(0, FITTED, BATCH)]
    mean, axes = principal_axes(torch.cat([feature_maps(network, batch) for batch in tqdm(batches)]))
    maps = []
    for start in tqdm(range(0, len(images), BATCH)):
        found = feature_maps(network, images[start : start + BATCH])
        maps.append(((found.permute(0, 2, 3, 1) - mean) @ axes).permute(0, 3, 1, 2).half())
    torch.save(torch.cat(maps), folder / "alignment.pt")


if __name__ == "__main__":
    main()
