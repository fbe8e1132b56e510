"""Measures every image of a run against its unmerged twin; what has been measured is kept and never measured twice."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from tokenmerge.eval.errors import MetricUnavailable
from tokenmerge.eval.experiment import MetricChoice
from tokenmerge.eval.json_lines import lines_of
from tokenmerge.eval.metrics.features import FeatureStore, fid
from tokenmerge.eval.metrics.images import image_files, read_image
from tokenmerge.eval.metrics.inception import load_inception
from tokenmerge.eval.metrics.lpips import load_lpips
from tokenmerge.eval.metrics.vision import load_clip, load_dino
from tokenmerge.eval.pairs import Pair
from tokenmerge.eval.records import Record
from tokenmerge.eval.run_folder import RunFolder
from tokenmerge.eval.statistics import Estimate
from tokenmerge.eval.variants import BASELINE, Variant
from tokenmerge.runtime import fidelity
from tokenmerge.runtime.devices import pick_device
from tokenmerge.runtime.files import append_line

# Takes the unmerged image, the merged one, (3, H, W) uint8 each, and the prompt.
PairMetric = Callable[[Tensor, Tensor, str], float]


@dataclass
class Measurements:
    """values[metric][variant][pair id]; sets[metric][variant]; and why a metric is missing."""

    values: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    sets: dict[str, dict[str, Estimate]] = field(default_factory=dict)
    unavailable: dict[str, str] = field(default_factory=dict)


def measure(
    folder: RunFolder,
    choice: MetricChoice,
    pairs: Sequence[Pair],
    variants: Sequence[Variant],
    allow_pickle: bool = False,
) -> Measurements:
    """Everything that the experiment asks for and that can be had."""
    device = pick_device(None)
    found = Measurements()
    networks = _pair_metrics(choice, device, found.unavailable)
    kept = _Kept(folder.path / "measurements.jsonl")
    for name, (metric, network) in networks.items():
        # How well an image fits its prompt is asked of the unmerged one too; it has no twin to be compared with.
        columns = variants if name == "clip" else [variant for variant in variants if variant is not BASELINE]
        found.values[name] = _measured(folder, name, metric, network, pairs, columns, kept)
    _measure_sets(folder, choice, pairs, variants, device, found, allow_pickle)
    return found


def _pair_metrics(
    choice: MetricChoice, device: torch.device, unavailable: dict[str, str]
) -> dict[str, tuple[PairMetric, str]]:
    """Metrics by name, each with the name of its network."""
    loaders: dict[str, Callable[[], tuple[PairMetric, str]]] = {
        "mse": lambda: ((lambda a, b, _: fidelity.mse(a, b)), ""),
        "psnr": lambda: ((lambda a, b, _: fidelity.psnr(a, b)), ""),
        "ssim": lambda: ((lambda a, b, _: fidelity.ssim(a, b)), ""),
        "lpips": lambda: _lpips(choice.lpips, device),
        "clip": lambda: _clip(choice.clip, device),
        "dino": lambda: _dino(choice.dino, device),
    }
    metrics = {}
    for name, load in loaders.items():
        if name in choice.names:
            try:
                metrics[name] = load()
            except MetricUnavailable as reason:
                unavailable[name] = str(reason)
    return metrics


def _lpips(path: str | None, device: torch.device) -> tuple[PairMetric, str]:
    network = load_lpips(path).to(device)
    return (lambda a, b, _: network.of_pair(a, b)), path or "installed"


def _clip(name: str | None, device: torch.device) -> tuple[PairMetric, str]:
    network = load_clip(name, device)
    return (lambda _, image, prompt: network.of_image(image, prompt)), str(name)


def _dino(name: str | None, device: torch.device) -> tuple[PairMetric, str]:
    network = load_dino(name, device)
    return (lambda a, b, _: network.of_pair(a, b)), str(name)


def _measured(
    folder: RunFolder,
    name: str,
    metric: PairMetric,
    network: str,
    pairs: Sequence[Pair],
    variants: Sequence[Variant],
    kept: _Kept,
) -> dict[str, dict[str, float]]:
    values: dict[str, dict[str, float]] = {variant.key: {} for variant in variants}
    total = len(pairs) * len(variants)
    with tqdm(total=total, desc=name, unit="image", delay=2, leave=False) as bar:
        for pair in pairs:
            twin = folder.records[BASELINE.key, pair.id]
            for variant in variants:
                record = folder.records[variant.key, pair.id]
                identity = _identity(name, network, twin, record)
                value = kept.values.get(identity)
                if value is None:
                    images = [read_image(folder.path / each.file) for each in (twin, record)]
                    value = metric(images[0], images[1], pair.prompt)
                    kept.add(identity, value)
                values[variant.key][pair.id] = value
                bar.update()
    return values


def _identity(name: str, network: str, twin: Record, record: Record) -> str:
    return json.dumps([name, network, record.variant, record.id, twin.sha256[:16], record.sha256[:16]])


class _Kept:
    """Measurements of earlier runs; a torn last line is one measurement to repeat."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.values: dict[str, float] = {}
        line = b"\n"
        for line in lines_of(path) if path.exists() else []:
            try:
                identity, value = json.loads(line)
                self.values[identity] = float(value)
            except (ValueError, TypeError, RecursionError):
                continue
        if not line.endswith(b"\n"):
            append_line(path, "")

    def add(self, identity: str, value: float) -> None:
        self.values[identity] = value
        append_line(self.path, json.dumps([identity, value]))


def _measure_sets(
    folder: RunFolder,
    choice: MetricChoice,
    pairs: Sequence[Pair],
    variants: Sequence[Variant],
    device: torch.device,
    found: Measurements,
    allow_pickle: bool,
) -> None:
    """FID of each variant's images: to the unmerged ones (thesis), and to real ones (paper)."""
    asked = [name for name in ("fid", "fid_real") if name in choice.names]
    if len(pairs) < 2:
        found.unavailable |= dict.fromkeys(asked, "FID needs two pairs or more")
        return
    try:
        if not asked:
            return
        network = load_inception(choice.inception, device, allow_pickle)
    except MetricUnavailable as reason:
        found.unavailable |= dict.fromkeys(asked, str(reason))
        return
    store = FeatureStore(folder.path / "features", network, choice.inception or "installed")
    if "fid" in asked:
        ours = _run_features(store, folder, pairs, BASELINE)
        found.sets["fid"] = {
            variant.key: fid(_run_features(store, folder, pairs, variant), ours, paired=True)
            for variant in variants
            if variant is not BASELINE
        }
    if "fid_real" in asked:
        try:
            found.sets["fid_real"] = _fid_to_real(store, folder, choice, pairs, variants)
        except MetricUnavailable as reason:
            found.unavailable["fid_real"] = str(reason)


def _run_features(
    store: FeatureStore, folder: RunFolder, pairs: Sequence[Pair], variant: Variant
) -> NDArray[np.float32]:
    records = [folder.records[variant.key, pair.id] for pair in pairs]
    return store.features(variant.key, [folder.path / r.file for r in records], [r.sha256 for r in records])


def _fid_to_real(
    store: FeatureStore, folder: RunFolder, choice: MetricChoice, pairs: Sequence[Pair], variants: Sequence[Variant]
) -> dict[str, Estimate]:
    if choice.real_images is None:
        raise MetricUnavailable("FID to real images needs a folder of them: real_images = ... in [metrics]")
    files = image_files(Path(choice.real_images))
    identities = [f"{file}:{file.stat().st_size}:{file.stat().st_mtime_ns}" for file in files]
    real = store.features("real-images", files, identities)
    return {v.key: fid(_run_features(store, folder, pairs, v), real, paired=False) for v in variants}
