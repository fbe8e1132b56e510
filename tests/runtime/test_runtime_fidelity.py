"""PSNR and SSIM against closed forms and against torchmetrics."""

from __future__ import annotations

import math

import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torchmetrics.functional.image import peak_signal_noise_ratio, structural_similarity_index_measure

from tokenmerge.runtime.fidelity import fidelity, mse, pixels_of, psnr, ssim


def smooth_image(seed: int, height: int = 40, width: int = 56) -> Tensor:
    coarse = torch.rand(1, 3, 6, 7, generator=torch.Generator().manual_seed(seed)) * 255
    return nn.functional.interpolate(coarse, (height, width), mode="bilinear")[0].round().to(torch.uint8)


def noisy(image: Tensor, seed: int, spread: float = 6) -> Tensor:
    noise = torch.randn(image.shape, generator=torch.Generator().manual_seed(seed)) * spread
    return (image + noise).clamp(0, 255).round().to(torch.uint8)


def constant(value: int, side: int = 16) -> Tensor:
    return torch.full((3, side, side), value, dtype=torch.uint8)


def test_a_constant_difference_has_its_closed_form() -> None:
    assert mse(constant(0), constant(5)) == 25
    assert psnr(constant(0), constant(5)) == pytest.approx(20 * math.log10(255 / 5), abs=1e-9)
    assert psnr(constant(5), constant(5)) == 100
    assert ssim(constant(5), constant(5)) == pytest.approx(1)


def test_two_flat_images_differ_in_luminance_alone() -> None:
    """Without variance the structure term is 1, and what stays is (2 a b + c) / (a² + b² + c)."""
    a, b = 51 / 255, 204 / 255
    assert ssim(constant(51), constant(204)) == pytest.approx((2 * a * b + 1e-4) / (a * a + b * b + 1e-4))


@pytest.mark.parametrize("spread", [2, 20])
def test_equals_torchmetrics(spread: float) -> None:
    first = smooth_image(0)
    second = noisy(first, 1, spread)
    decibels = peak_signal_noise_ratio(second.double(), first.double(), data_range=255.0)
    assert psnr(first, second) == pytest.approx(float(decibels), abs=1e-4)
    batches = (second.unsqueeze(0).double() / 255, first.unsqueeze(0).double() / 255)
    # torchmetrics pads by reflection: the windows within the image are those 5 pixels from its border.
    _, similarity = structural_similarity_index_measure(*batches, data_range=1.0, return_full_image=True)
    assert ssim(first, second) == pytest.approx(float(similarity[..., 5:-5, 5:-5].mean()), abs=1e-6)


def test_images_smaller_than_the_window_are_compared_too() -> None:
    assert ssim(constant(9, side=8), constant(9, side=8)) == pytest.approx(1)
    assert ssim(smooth_image(0, 8, 8), noisy(smooth_image(0, 8, 8), 1)) < 1


def test_identical_images_have_no_psnr_and_count_as_100_in_a_mean() -> None:
    image = Image.fromarray(smooth_image(0).permute(1, 2, 0).numpy())
    same = fidelity(image, image.convert("RGBA"))
    assert (same.identical, same.psnr, same.finite_psnr) == (True, None, 100)
    assert same.ssim == pytest.approx(1)


def test_images_and_tensors_are_compared_alike() -> None:
    tensors = smooth_image(0), noisy(smooth_image(0), 1)
    images = [Image.fromarray(tensor.permute(1, 2, 0).numpy()) for tensor in tensors]
    assert torch.equal(pixels_of(images[0]), tensors[0])
    found = fidelity(*images)
    assert (found.identical, found.psnr, found.ssim) == (False, psnr(*tensors), ssim(*tensors))
