"""HiDream-I1: `HiDreamImageTransformer2DModel`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tokenmerge.errors import MergeRuntimeError
from tokenmerge.models.base import Call, Part, Rotary, Stack, rows_at
from tokenmerge.models.builders import LatentFamily, Run, first

DOUBLE_PARTS = (
    Part(("self",), "block.attn1", mask="inside", text="last", context_argument="norm_encoder_hidden_states"),
    Part(("mlp",), "block.ff_i"),
)
SINGLE_PARTS = (
    Part(("self",), "block.attn1", mask="inside", text="first", context_argument="norm_encoder_hidden_states"),
    Part(("mlp",), "block.ff_i", text="first"),
)


def _first_rows_at(rows: Tensor, places: Tensor, tokens: int) -> Tensor:
    image, text = rows[:, :tokens], rows[:, tokens:]
    moved = rows_at(image, places, tokens)
    return torch.cat([moved, text.expand(moved.shape[0], *text.shape[1:])], dim=1)


DOUBLE = Run("double_stream_blocks", DOUBLE_PARTS, 0, Rotary("image_rotary_emb", _first_rows_at, per_sample=True))
SINGLE = Run("single_stream_blocks", SINGLE_PARTS, None, Rotary("image_rotary_emb", rows_at, per_sample=True))


class HiDreamFamily(LatentFamily):
    """Double, then single blocks, with text behind the image. Every block reads another layer of the text encoder."""

    name = "HiDream-I1"
    class_name = "HiDreamImageTransformer2DModel"
    timestep = "timesteps"
    conditions = ("encoder_hidden_states_t5", "encoder_hidden_states_llama3", "pooled_embeds")
    always_interleaved = True  # text is joined to the tokens before each block, and cut off behind it by their number
    runs = DOUBLE, SINGLE

    def stacks(self, model: nn.Module) -> list[Stack]:
        return [self.stack(model, DOUBLE), self.stack(model, SINGLE, starts=first)]

    def read_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
        hidden = kwargs["hidden_states"]
        if hidden.dim() == 3 or hidden.shape[-2] != hidden.shape[-1]:
            raise MergeRuntimeError(
                f"HiDream was called with an input of shape {tuple(hidden.shape)}: it pads images that are not square "
                f"to its largest size, which merging cannot follow. Generate a square image, or take merging out with "
                f"handle.remove()."
            )
        return super().read_call(args, kwargs)

    def prepare_meta(self, model: nn.Module) -> None:
        model.unpatchify = lambda tokens, sizes, training: tokens  # type: ignore[assignment]  # it reads the sizes
        # Experts are asked how many tokens each has, which tensors without values cannot say: equally many.
        for module in model.modules():
            if hasattr(module, "moe_infer"):
                module.moe_infer = _EqualShares(module)  # type: ignore[assignment]

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        config: Any = model.config
        t5, llama = config.caption_channels
        # 128 is the length of a prompt.
        return {
            **super().example_inputs(model, size, batch),
            "encoder_hidden_states_t5": self.noise(model, batch, 128, t5),
            "encoder_hidden_states_llama3": self.noise(model, max(config.llama_layers) + 1, batch, 128, llama),
            "pooled_embeds": self.noise(model, batch, config.text_emb_dim),
        }


class _EqualShares:
    """What a layer of experts computes if each has equally many tokens."""

    def __init__(self, layer: Any) -> None:
        self.experts, self.activated = list(layer.experts), layer.num_activated_experts

    def __call__(self, tokens: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
        for expert in self.experts:
            expert(tokens[: tokens.shape[0] * self.activated // len(self.experts)])
        return tokens
