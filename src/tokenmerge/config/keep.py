"""A mask of what to keep sharp, such as an inpainting mask: read once and brought to each grid of tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tokenmerge.errors import ConfigError

Mask = Any  # (H, W), of any size: a tensor, an array, or a PIL image


def read_mask(keep: Any) -> Tensor:
    """(H, W) float32 of 0 and 1, on the CPU.

    >>> read_mask(torch.tensor([[0, 255]], dtype=torch.uint8)).tolist()
    [[0.0, 1.0]]
    """
    if hasattr(keep, "convert"):  # a PIL image
        import numpy as np

        keep = torch.from_numpy(np.array(keep.convert("L")))
    try:
        mask = torch.as_tensor(keep).detach().cpu()
        if mask.is_complex():
            raise TypeError("complex numbers are no shades")
    except (TypeError, ValueError, RuntimeError):
        raise ConfigError(
            f"keep is of type {type(keep).__name__}: give an image, an array or a tensor of height x width, white "
            f"(255, 1.0 or True) where the image must stay sharp."
        ) from None
    # Bytes are shades up to 255, unless there are none but 0 and 1: then 1 is white, as in any other type.
    shades = mask.dtype == torch.uint8 and bool((mask > 1).any())
    mask = mask.float() / 255 if shades else mask.float()
    while mask.dim() > 2 and mask.shape[0] == 1:
        mask = mask[0]
    if mask.dim() != 2 or mask.numel() == 0:
        raise ConfigError(f"keep has shape {tuple(mask.shape)}: it takes height x width, one mask for all images.")
    if not bool(((mask >= 0) & (mask <= 1)).all()):
        raise ConfigError("keep holds values below 0, above 1 or not finite: scale it to 0 (black) up to 1 (white).")
    if bool(((mask > 0) & (mask < 1)).any()):
        raise ConfigError(
            "keep has shades of grey, and a token is either kept or merged: threshold it, such as keep=mask > 0.5."
        )
    if not bool(mask.any()):
        raise ConfigError(
            "keep is black throughout, so it would keep nothing: leave it out, or paint white what to keep."
        )
    return mask


def protected_tokens(mask: Tensor | None, grid: tuple[int, ...]) -> tuple[int, ...]:
    """The tokens of a grid that a mask keeps as they are; none without a mask."""
    if mask is None:
        return ()
    return tuple((mask_on_grid(mask, grid) == 1).nonzero().flatten().tolist())


def mask_on_grid(mask: Tensor, grid: tuple[int, ...]) -> Tensor:
    """(H, W) -> (N,): the brightest of the pixels that a token covers, so that no white pixel is lost.

    A video has the same mask in every frame.

    >>> mask_on_grid(torch.tensor([[0.0, 0.0, 0.0, 1.0]]), (1, 2)).tolist()
    [0.0, 1.0]
    """
    frame: Tensor = functional.adaptive_max_pool2d(mask[None, None], grid[-2:])[0, 0]
    return frame.expand(grid).reshape(-1)
