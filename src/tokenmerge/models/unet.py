"""Stable Diffusion 1.x, 2.x, SDXL and its refiner, and Kolors: `UNet2DConditionModel`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from tokenmerge.models.base import Call, Family, Part, Stack, blocks_of, is_a, new_like


class UNetFamily(Family):
    """Every `Transformer2DModel` in the UNet is a stack; its input still has height and width."""

    name = "Stable Diffusion UNet (1.x, 2.x, SDXL, Kolors)"
    class_name = "UNet2DConditionModel"
    latent = "sample"
    transformer = "Transformer2DModel"

    def stacks(self, model: nn.Module) -> list[Stack]:
        found = [(name, module) for name, module in model.named_modules() if is_a(module, self.transformer)]
        # In the order they run: named_modules has the middle last.
        order = ("down_blocks", "mid_block", "up_blocks")
        transformers = dict(sorted(found, key=lambda item: order.index(item[0].split(".")[0])))
        levels = len(model.down_blocks)  # type: ignore[arg-type]
        finest = min((_depth(name, levels) for name in transformers), default=0)
        return [
            Stack(
                name=name,
                level=name.split(".attentions")[0],
                owner=module,
                grid=_grid,
                blocks=blocks_of(model, f"{name}.transformer_blocks", basic_parts),
                downsample=2 ** (_depth(name, levels) - finest),
                norm="norm",
            )
            for name, module in transformers.items()
        ]

    def read_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
        masks = (kwargs.get("cross_attention_kwargs") or {}).get("ip_adapter_masks")
        return replace(super().read_call(args, kwargs), positional=() if masks is None else ("cross",))

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        config: Any = model.config
        new = new_like(model)
        # Kolors has its text projected, and reads 256 tokens of it; 77 is CLIP's sequence length.
        projected = getattr(config, "encoder_hid_dim_type", None) == "text_proj"  # those of videos have none
        text = (256, config.encoder_hid_dim) if projected else (77, _widest(config.cross_attention_dim))
        inputs: dict[str, Any] = {
            "sample": torch.randn(batch, config.in_channels, size[0] // 8, size[1] // 8, **new),
            "timestep": torch.full((), 500.0, device=new["device"]),
            "encoder_hidden_states": torch.randn(batch, *text, **new),
        }
        if getattr(config, "addition_embed_type", None) == "text_time":
            # Six numbers describe the image's size; the rest of the projection's input is the pooled text.
            pooled = config.projection_class_embeddings_input_dim - 6 * config.addition_time_embed_dim
            inputs["added_cond_kwargs"] = {
                "text_embeds": torch.randn(batch, pooled, **new),
                "time_ids": torch.ones(batch, 6, **new),
            }
        return inputs


def basic_parts(block: Any) -> tuple[Part, ...]:
    """The parts of diffusers' `BasicTransformerBlock`, which PixArt has too."""
    # With cross-attention alone, the keys of the first attention are the text's.
    self_attention = Part(("self",), "attn1", own_keys=True, mask="3d")
    first = Part(("self",), "attn1") if block.only_cross_attention else self_attention
    cross = () if block.attn2 is None else (Part(("cross",), "attn2"),)
    return first, *cross, Part(("mlp",), "ff")


def _depth(name: str, levels: int) -> int:
    """How often the UNet has halved its grid where a module stands, by the module's name."""
    where, number, *_ = [*name.split("."), ""]
    if where == "mid_block":
        return levels - 1
    return int(number) if where == "down_blocks" else levels - 1 - int(number)


def _grid(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, ...]:
    hidden = kwargs["hidden_states"]
    return tuple(hidden.shape[-2:])


def _widest(dimension: int | Sequence[int]) -> int:
    return dimension if isinstance(dimension, int) else max(dimension)
