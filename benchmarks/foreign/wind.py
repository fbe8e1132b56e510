"""A diffusion transformer of wind speeds: a day in 288 tokens, and one token of conditions before them.

    pip install --no-deps enerdatasynth==0.8.4

The package (MIT) has the weights and the model's class. Its other modules need packages that are not needed here.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tokenmerge.models.base import Family, Part, Stack, blocks_of

PACKAGE, VERSION = "enerdatasynth", "0.8.4"
WEIGHTS, CODE = "_bundled/checkpoints/wind/1ch/model_checkpoint.pt", "resources/wind/models/models.py"
STEPS, PROMPTS, SEEDS = (4, 10, 25), ((1, 0), (4, 1), (7, 2), (10, 1)), (0, 1)  # prompts: month and wind regime
ALSO = ()
TIMESTEPS, LENGTH, LARGEST = 200, 288, 3.5

PARTS = Part(("self",), "self_attn", text="first"), Part(("mlp",), "linear1", "linear2", text="first")


class WindFamily(Family):
    name = class_name = "TransformerDenoiser"
    latent, timestep, conditions = "x", "t", ("z",)

    def stacks(self, model: nn.Module) -> list[Stack]:
        blocks = blocks_of(model, "transformer.layers", PARTS)
        return [Stack("layers", "layers", model, lambda args, kwargs: (1, kwargs["x"].shape[-1]), blocks)]

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        return {"x": torch.randn(batch, 1, LENGTH), "t": torch.full((batch,), 100), "z": torch.randn(batch, 25)}


FAMILY = WindFamily()


def load() -> nn.Module:
    found = importlib.util.find_spec(PACKAGE)
    if found is None or found.origin is None:
        raise SystemExit(f"pip install --no-deps {PACKAGE}=={VERSION}")
    folder = Path(found.origin).parent
    spec = importlib.util.spec_from_file_location("wind_models", folder / CODE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    saved = torch.load(folder / WEIGHTS, map_location="cpu", weights_only=True)
    names = ("num_conv_blocks", "num_transformer_layers", "num_heads", "kernel_size", "dropout", "hidden_dim")
    names += ("time_emb_dim", "cond_emb_dim", "norm_first")
    model = module.TransformerDenoiser(n_channels=1, cond_dim=25, **{name: saved["config"][name] for name in names})
    model.load_state_dict(saved["model_state_dict"])
    return model.eval()


@torch.no_grad()
def sample(model: nn.Module, prompt: tuple[int, int], seed: int, steps: int) -> Tensor:
    """(1, 1, 288) from 0 to 1: DDIM with the package's schedule and its limits of the clean signal."""
    ramp = torch.cos((torch.arange(TIMESTEPS + 1) / TIMESTEPS + 0.008) / 1.008 * torch.pi / 2) ** 2
    left = torch.cumprod(1 - (1 - ramp[1:] / ramp[:-1]).clamp(1e-5, 0.999), dim=0)
    month, regime = prompt
    z = torch.zeros(1, 25)  # months, days of the week, regimes, and three temperatures that are average
    z[0, [month - 1, 12, 19 + regime]] = 1
    x = torch.randn(1, 1, LENGTH, generator=torch.Generator().manual_seed(seed))
    timesteps = torch.linspace(TIMESTEPS - 1, 0, steps).round().long()
    for step, t in enumerate(timesteps):
        noise, a = model(x, t[None], z), left[t]
        clean = ((x - (1 - a).sqrt() * noise) / a.sqrt()).clamp(-LARGEST, LARGEST)
        noise = (x - a.sqrt() * clean) / (1 - a).sqrt()
        after = left[timesteps[step + 1]] if step + 1 < steps else torch.ones(())
        x = after.sqrt() * clean + (1 - after).sqrt() * noise
    return (x / LARGEST / 2 + 0.5).clamp(0, 1)
