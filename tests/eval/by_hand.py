"""Metrics computed a second time, from their definitions and without any code of the package."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import scipy.linalg
import torch
from PIL import Image
from torch import nn


def pixels_of(path: Path) -> np.ndarray:
    return np.asarray(Image.open(path).convert("RGB"), dtype=np.float64)


def by_matrix_square_root(first: np.ndarray, second: np.ndarray) -> float:
    """The formula as it is written, with scipy's square root of a matrix."""
    m1, m2 = first.mean(axis=0), second.mean(axis=0)
    c1, c2 = np.cov(first, rowvar=False), np.cov(second, rowvar=False)
    root = scipy.linalg.sqrtm(c1 @ c2)
    return float(np.sum((m1 - m2) ** 2) + np.trace(c1 + c2 - 2 * np.real(root)))


class Pooled(nn.Module):
    """Stands in for Inception: takes what it takes, gives a few features."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return nn.functional.adaptive_avg_pool2d(images, 2)


def pooled(path: Path) -> np.ndarray:
    """What the stand-in for Inception makes of an image."""
    image = torch.from_numpy(pixels_of(path)).float().permute(2, 0, 1).unsqueeze(0)
    resized = torch.nn.functional.interpolate(image, (299, 299), mode="bilinear", align_corners=False)
    return torch.nn.functional.adaptive_avg_pool2d((resized - 128) / 128, 2).flatten().double().numpy()


def fid_by_hand(first: np.ndarray, second: np.ndarray) -> float:
    """With the square root taken by eigenvalues of a symmetric product, which needs no full rank."""
    c1, c2 = np.cov(first, rowvar=False), np.cov(second, rowvar=False)
    values, vectors = scipy.linalg.eigh(c1)
    root = vectors @ np.diag(np.sqrt(np.clip(values, 0, None))) @ vectors.T
    trace = np.sqrt(np.clip(scipy.linalg.eigvalsh(root @ c2 @ root), 0, None)).sum()
    return float(np.sum((first.mean(0) - second.mean(0)) ** 2) + np.trace(c1) + np.trace(c2) - 2 * trace)


def checkpoint(channels=(4, 5, 6, 7, 8)) -> dict:
    """Weights in the package's layout (height, width, in, out), with few channels."""
    generator = np.random.default_rng(0)

    def random(*shape):
        return generator.standard_normal(shape).astype(np.float32) / 4

    sizes, inputs = (11, 5, 3, 3, 3), (3, *channels)
    net = {
        f"Conv_{i}": {"kernel": random(size, size, inputs[i], inputs[i + 1]), "bias": random(inputs[i + 1])}
        for i, size in enumerate(sizes)
    }
    heads = {f"NetLinLayer_{i}": {"Conv_0": {"kernel": np.abs(random(1, 1, c, 1))}} for i, c in enumerate(channels)}
    return {"AlexNet_0": net, **heads}


def lpips_by_hand(weights: dict, first: np.ndarray, second: np.ndarray) -> float:
    """LPIPS with numpy loops: (3, H, W) in [-1, 1] each."""
    shift, scale = np.array([-0.030, -0.088, -0.188]), np.array([0.458, 0.448, 0.450])

    def convolve(x, kernel, bias, stride, padding):
        x = np.pad(x, ((padding, padding), (padding, padding), (0, 0)))
        size = kernel.shape[0]
        out = [
            [
                np.tensordot(x[i : i + size, j : j + size], kernel, axes=3) + bias
                for j in range(0, x.shape[1] - size + 1, stride)
            ]
            for i in range(0, x.shape[0] - size + 1, stride)
        ]
        return np.maximum(np.array(out), 0)

    def pool(x):
        rows, columns = (x.shape[0] - 3) // 2 + 1, (x.shape[1] - 3) // 2 + 1
        return np.array(
            [[x[2 * i : 2 * i + 3, 2 * j : 2 * j + 3].max((0, 1)) for j in range(columns)] for i in range(rows)]
        )

    def layers(image):
        x = (image.transpose(1, 2, 0) - shift) / scale
        found = []
        for index, (stride, padding) in enumerate([(4, 2), (1, 2), (1, 1), (1, 1), (1, 1)]):
            if index in (1, 2):
                x = pool(x)
            arrays = weights["AlexNet_0"][f"Conv_{index}"]
            x = convolve(x, arrays["kernel"], arrays["bias"], stride, padding)
            found.append(x / (np.sqrt((x**2).sum(-1, keepdims=True)) + 1e-10))
        return found

    total = 0.0
    for index, (a, b) in enumerate(zip(layers(first), layers(second), strict=True)):
        head = weights[f"NetLinLayer_{index}"]["Conv_0"]["kernel"][0, 0, :, 0]
        total += float(np.mean((a - b) ** 2 @ head))
    return total
