"""The patch autoencoder: shapes, what the pipelines ask of it, and the closed-form fit."""

from __future__ import annotations

import numpy as np
import torch

from tokenmerge.zoo.patch_autoencoder import PatchAutoencoder
from training.latents import fit_decoder, fit_encoder, resized


def test_encode_gives_one_latent_pixel_per_patch_without_spread() -> None:
    model = PatchAutoencoder(latent_channels=5)
    images = torch.rand(2, 3, 32, 48)
    latents = model.encode(images).latent_dist
    assert latents.mode().shape == (2, 5, 4, 6)
    assert torch.equal(latents.sample(), latents.mode())


def test_decode_gives_pixels_in_both_forms() -> None:
    model = PatchAutoencoder(latent_channels=5)
    latents = torch.rand(2, 5, 4, 6)
    assert model.decode(latents).sample.shape == (2, 3, 32, 48)
    assert torch.equal(model.decode(latents, return_dict=False)[0], model.decode(latents).sample)


def test_pipelines_see_a_patch_of_eight() -> None:
    assert 2 ** (len(PatchAutoencoder().config.block_out_channels) - 1) == 8


def test_fit_is_exact_where_patches_have_few_dimensions() -> None:
    """Images mixed from four patterns have four components, so sixteen channels lose nothing."""
    generator = torch.Generator().manual_seed(0)
    patterns = torch.rand(4, 3, 8, 8, generator=generator)
    weights = torch.rand(6, 4, 4, 4, generator=generator)  # images, patterns, rows, columns
    images = torch.einsum("npij,pcuv->nciujv", weights, patterns).reshape(6, 3, 32, 32) / 4
    model = PatchAutoencoder(latent_channels=4)
    with torch.no_grad():
        fit_encoder(model, images)
        fit_decoder(model, images)
        latents = model.encode(images).latent_dist.mode()
        assert (model(images).sample - images).abs().max() < 1e-2
    assert abs(latents.square().mean().item() - 1) < 1e-3
    assert latents.mean((0, 2, 3)).abs().max() < 1e-3


def test_resized_maps_black_and_white_to_the_ends_of_the_range() -> None:
    images = np.stack([np.zeros((256, 256, 3), np.uint8), np.full((256, 256, 3), 255, np.uint8)])
    half = resized(images, 128)
    assert half.shape == (2, 3, 128, 128)
    assert half[0].unique().tolist() == [-1.0]
    assert half[1].unique().tolist() == [1.0]
