"""An autoencoder without training: principal components of square patches, decoded from 3 x 3 neighbours.

It has the interface of diffusers' `AutoencoderKL` as far as the Stable Diffusion and Flux pipelines use it,
and two linear maps instead of two networks, so encoding and decoding cost next to nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from diffusers import ConfigMixin, ModelMixin
from diffusers.configuration_utils import register_to_config
from diffusers.models.autoencoders.vae import DecoderOutput, DiagonalGaussianDistribution
from diffusers.models.modeling_outputs import AutoencoderKLOutput
from torch import Tensor, nn


class PatchAutoencoder(ModelMixin, ConfigMixin):
    """Linear encoder (one latent pixel per patch) and linear decoder (from 3 x 3 latent pixels).

    The decoder looks at the neighbours because a patch decoded alone shows its edges. Weights come from
    `training/latents.py`; the tensors of a fresh instance are random.
    """

    __module__ = "tokenmerge.zoo.autoencoder"  # what saved pipelines name

    @register_to_config
    def __init__(
        self,
        latent_channels: int = 16,
        in_channels: int = 3,
        out_channels: int = 3,
        scaling_factor: float = 1.0,
        shift_factor: float = 0.0,
        # Only the length counts: the pipelines and this class compute the patch size as 2 ** (length - 1).
        block_out_channels: tuple[int, ...] = (1, 1, 1, 1),
        force_upcast: bool = False,
    ) -> None:
        super().__init__()
        self.patch = 2 ** (len(block_out_channels) - 1)
        self.encoder = nn.Conv2d(in_channels, latent_channels, self.patch, stride=self.patch)
        self.decoder = nn.Conv2d(latent_channels, out_channels * self.patch**2, 3, padding=1, padding_mode="replicate")

    def encode(self, x: Tensor, return_dict: bool = True) -> AutoencoderKLOutput | tuple[DiagonalGaussianDistribution]:
        """Images (B, 3, H, W) in [-1, 1] -> a distribution without spread over latents (B, C, H/patch, W/patch)."""
        mean = self.encoder(x)
        # The pipelines ask for a distribution; this one always gives its mean.
        moments = torch.cat([mean, torch.zeros_like(mean)], dim=1)
        latents = DiagonalGaussianDistribution(moments, deterministic=True)
        return AutoencoderKLOutput(latent_dist=latents) if return_dict else (latents,)

    def decode(self, z: Tensor, return_dict: bool = True, **_: Any) -> DecoderOutput | tuple[Tensor]:
        """Latents (B, C, h, w) -> images (B, 3, h * patch, w * patch), about in [-1, 1]."""
        images = nn.functional.pixel_shuffle(self.decoder(z), self.patch)
        return DecoderOutput(sample=images) if return_dict else (images,)

    def forward(self, sample: Tensor, return_dict: bool = True) -> DecoderOutput | tuple[Tensor]:
        """Images there and back: (B, 3, H, W) -> (B, 3, H, W)."""
        return self.decode(self.encode(sample, return_dict=False)[0].mode(), return_dict=return_dict)  # type: ignore[index]
