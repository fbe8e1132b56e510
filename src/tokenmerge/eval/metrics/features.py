"""Inception features of every image of a run, computed once and kept in the run folder."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from tokenmerge.eval.metrics.frechet import frechet_distance
from tokenmerge.eval.metrics.images import read_image
from tokenmerge.eval.metrics.inception import InceptionFeatures
from tokenmerge.eval.statistics import Estimate, grouped_jackknife
from tokenmerge.runtime.files import write_atomically

GROUPS = 20
BATCH = 8


class FeatureStore:
    """Features by set of images, each set in one file; a set that has changed is computed again."""

    def __init__(self, folder: Path, network: InceptionFeatures, network_name: str) -> None:
        self._folder = folder
        self._network = network
        self._network_name = network_name

    def features(self, name: str, files: Sequence[Path], identities: Sequence[str]) -> NDArray[np.float32]:
        """(images, 2048) of the files, in their order. `identities` show whether any of them has changed."""
        key = hashlib.sha256("\n".join([self._network_name, *identities]).encode()).hexdigest()
        path = self._folder / f"{name}.npz"
        kept = _read(path, key)
        if kept is not None:
            return kept
        begins = tqdm(range(0, len(files), BATCH), f"FID {name}", delay=2, leave=False)
        rows = [self._of_batch(files[begin : begin + BATCH]) for begin in begins]
        features = np.concatenate(rows)
        buffer = io.BytesIO()
        np.savez(buffer, key=np.array(key), features=features)
        write_atomically(path, buffer.getvalue())
        return features

    def _of_batch(self, files: Sequence[Path]) -> NDArray[np.float32]:
        images = [read_image(file) for file in files]
        if len({image.shape for image in images}) == 1:
            return self._network(torch.stack(images)).numpy()
        return np.concatenate([self._network(image.unsqueeze(0)).numpy() for image in images])


def fid(ours: NDArray[np.float32], theirs: NDArray[np.float32], paired: bool) -> Estimate:
    """FID of two sets with its interval; where they are paired, a pair is left out on both sides."""
    whole = frechet_distance(ours, theirs)
    groups = min(GROUPS if len(ours) <= 1000 else GROUPS // 2, len(ours))
    if len(ours) < 4:
        return Estimate(whole, float("nan"), float("nan"), len(ours))  # nothing can be left out
    left_out = []
    for group in range(groups):
        keep = np.arange(len(ours)) % groups != group
        left_out.append(frechet_distance(ours[keep], theirs[keep] if paired else theirs))
    return grouped_jackknife(whole, left_out, len(ours))


def _read(path: Path, key: str) -> NDArray[np.float32] | None:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return arrays["features"] if str(arrays["key"]) == key else None
    except (OSError, ValueError, KeyError, EOFError, MemoryError, zipfile.BadZipFile):
        return None
