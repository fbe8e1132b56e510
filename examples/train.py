"""Training with merged tokens: a smaller forward and backward pass. The gradients are those of the merged model.

A method without a correction is used, because full steps correct the steps of one image, and training has single steps.
"""

import argparse

import torch
from torch.nn import functional

import tokenmerge as tm


def load(tiny: bool):
    from diffusers import DDPMScheduler, UNet2DConditionModel

    if tiny:
        from tokenmerge.runtime.tiny_random import build_tiny_random

        unet = build_tiny_random().unet
    else:
        unet = UNet2DConditionModel.from_pretrained("stable-diffusion-v1-5/stable-diffusion-v1-5", subfolder="unet")
        unet.to("cuda")
    return unet.train().requires_grad_(True), DDPMScheduler(num_train_timesteps=1000)


def batches(unet, count: int):
    """Random latents and text embeddings: put your data set here."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        latents = torch.randn(2, 4, 32, 32, generator=generator)
        text = torch.randn(2, 16, unet.config.cross_attention_dim, generator=generator)
        yield latents.to(unet.device), text.to(unet.device)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--ratio", type=float, default=0.5)
    parser.add_argument("--tiny", action="store_true", help="a tiny random UNet and five steps, on a CPU")
    args = parser.parse_args(arguments)

    unet, noising = load(args.tiny)
    optimizer = torch.optim.AdamW(unet.parameters(), lr=1e-5)
    losses = []
    with tm.merged(unet, tm.ToMA(ratio=args.ratio)):
        for latents, text in batches(unet, 5 if args.tiny else args.steps):
            noise = torch.randn_like(latents)
            timesteps = torch.randint(0, 1000, (len(latents),), device=latents.device)
            predicted = unet(noising.add_noise(latents, noise, timesteps), timesteps, text).sample
            loss = functional.mse_loss(predicted, noise)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(loss.detach()))
    print(f"{len(losses)} steps, loss {losses[0]:.3f} to {losses[-1]:.3f}")
    return losses


if __name__ == "__main__":
    main()
