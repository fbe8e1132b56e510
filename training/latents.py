"""Computes the patch autoencoder in closed form and the latents of every image at 128, 256 and 512 px.

    python -m training.latents --work DIR

The encoder projects 8 x 8 patches on their principal components, each divided by sigma ** 0.6, so that the coarse
components keep more weight than the fine ones. The decoder is the ridge regression from 3 x 3 latent pixels back to
the patch in the middle. Writes DIR/autoencoder and DIR/latents_<px>.pt with (N, C, px/8, px/8) float32.
"""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import mse_loss, pad, unfold

from tokenmerge.zoo.patch_autoencoder import PatchAutoencoder
from training.data import work_parser

SIZES = (128, 256, 512)
WHITENING = 0.6
RIDGE = 1e-4


def resized(images: np.ndarray, size: int) -> Tensor:  # (N, 3, size, size) in [-1, 1]
    """Images (N, 256, 256, 3) uint8 at another size, by Lanczos."""
    images = [Image.fromarray(p).resize((size, size), Image.Resampling.LANCZOS) for p in images]
    return torch.from_numpy(np.stack([np.asarray(i) for i in images])).permute(0, 3, 1, 2).float() / 127.5 - 1


def patches_of(images: Tensor, patch: int) -> Tensor:  # (N * H/patch * W/patch, 3 * patch * patch)
    """All square patches of images (N, 3, H, W), channel first within a patch."""
    return unfold(images, patch, stride=patch).transpose(1, 2).flatten(0, 1)


def fit_encoder(model: PatchAutoencoder, images: Tensor) -> None:
    """Principal components of the patches, scaled so that latents have mean square 1 over all channels."""
    patches = patches_of(images, model.patch).double()
    mean = patches.mean(0)
    variance, directions = torch.linalg.eigh((patches - mean).T @ (patches - mean) / len(patches))
    channels = model.config.latent_channels
    sigma, basis = variance.flip(0)[:channels].sqrt(), directions.flip(1)[:, :channels].T  # (C,), (C, D)
    projection = basis / sigma[:, None] ** WHITENING
    projection = projection / (sigma ** (2 - 2 * WHITENING)).mean().sqrt()
    model.encoder.weight.data = projection.view(model.encoder.weight.shape).float()
    model.encoder.bias = nn.Parameter(-(projection @ mean).float())


def fit_decoder(model: PatchAutoencoder, images: Tensor) -> None:
    """Least squares from the 3 x 3 latents around a patch (plus a constant) to its values."""
    around = unfold(pad(model.encoder(images), (1, 1, 1, 1), mode="replicate"), 3)  # (N, 9C, h * w)
    inputs = around.transpose(1, 2).flatten(0, 1).double()
    inputs = torch.cat([inputs, torch.ones_like(inputs[:, :1])], dim=1)
    gram = inputs.T @ inputs
    gram += RIDGE * len(inputs) * torch.eye(len(gram), dtype=gram.dtype)
    solution = torch.linalg.solve(gram, inputs.T @ patches_of(images, model.patch).double())  # (9C + 1, D)
    model.decoder.weight.data = solution[:-1].T.reshape(model.decoder.weight.shape).float()
    model.decoder.bias = nn.Parameter(solution[-1].float())


def main() -> None:
    parser = work_parser("Computes the patch autoencoder and the latents.")
    parser.add_argument("--channels", type=int, default=16, help="latent channels")
    args = parser.parse_args()
    images = np.load(args.work / "images.npz")["images"]
    model = PatchAutoencoder(latent_channels=args.channels)
    with torch.no_grad():
        by_size = {size: resized(images, size) for size in SIZES}
        fit_encoder(model, by_size[256])
        fit_decoder(model, by_size[256])
        for size, images in by_size.items():
            latents = model.encoder(images)
            torch.save(latents.contiguous(), args.work / f"latents_{size}.pt")
            error = mse_loss(model(images).sample.clamp(-1, 1), images)
            print(f"{size} px: {tuple(latents.shape)}, mean square {latents.square().mean():.3f}, "
                  f"reconstruction {10 * torch.log10(4 / error):.1f} dB")  # fmt: skip
    model.save_pretrained(args.work / "autoencoder")


if __name__ == "__main__":
    main()
