"""OmniGen: `OmniGenTransformer2DModel`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tokenmerge.models.base import Part, Rotary, cos_sin_at, new_like
from tokenmerge.models.builders import LatentFamily, Run

# Attention is given what the norm returns twice, for queries and for keys.
PARTS = (
    Part(("self",), "input_layernorm", "self_attn", enters_at="output", attention="self_attn", mask="4d", text="first"),
    Part(("mlp",), "mlp", text="first"),
)


class OmniGenFamily(LatentFamily):
    """A language model's blocks on text, given images and the image, which stands last; text never reads the image."""

    name = "OmniGen"
    class_name = "OmniGenTransformer2DModel"
    timestep_rises = True
    conditions = ("input_ids", "input_img_latents")
    runs = (Run("layers", PARTS, rotary=Rotary("image_rotary_emb", cos_sin_at)),)

    def prepare_meta(self, model: nn.Module) -> None:
        # It chooses factors by the largest position, which a tensor without values cannot say.
        config: Any = model.config
        width = config.hidden_size // config.num_attention_heads

        def rows(hidden_states: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
            made = torch.empty(position_ids.shape[-1], width, device="meta")
            return made, made

        model.rope.forward = rows  # type: ignore[union-attr, assignment]

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        config: Any = model.config
        latents = self.latents(model, size, batch)
        rows, columns = latents.shape[2] // config.patch_size, latents.shape[3] // config.patch_size
        # 128 tokens of text, which read those before them, and one of the timestep.
        text, image = 128, rows * columns + 1
        device = new_like(model)["device"]
        mask = torch.ones(batch, text + image, text + image, device=device).tril()
        mask[:, text:] = 1
        return {
            "hidden_states": latents,
            "timestep": self.times(model, batch, 0.5),
            "input_ids": torch.zeros(batch, text, dtype=torch.int64, device=device),
            "input_img_latents": [],
            "input_image_sizes": {},
            "attention_mask": mask,
            "position_ids": torch.arange(text + image, device=device).expand(batch, -1),
        }
