"""The smallest image transformers that hold text and image in one sequence throughout, and inputs for them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from tiny_models.base import Grid, per_sample, places, prompt, steps


def z_image() -> nn.Module:
    from diffusers import ZImageTransformer2DModel

    return ZImageTransformer2DModel(
        in_channels=4,
        dim=24,
        n_layers=2,
        n_refiner_layers=1,
        n_heads=2,
        n_kv_heads=2,
        cap_feat_dim=12,
        axes_dims=[4, 4, 4],
        axes_lens=[600, 64, 64],
    )


@cache
def texts_of_each(seeds: tuple[int, ...], tokens: int) -> tuple[Tensor, ...]:
    return prompt(seeds, tokens).unbind()


def z_image_inputs(seeds: Sequence[int], grid: Grid, texts: int = 5) -> dict[str, Any]:
    """`texts`: tokens of each, before the model pads them to 32."""
    return {
        "x": list(per_sample(seeds, 4, 1, grid[0] * 2, grid[1] * 2)),
        "t": steps(seeds),
        "cap_feats": list(texts_of_each(tuple(seeds), texts)),
    }


def lumina2() -> nn.Module:
    from diffusers import Lumina2Transformer2DModel

    return Lumina2Transformer2DModel(
        sample_size=16,
        in_channels=4,
        hidden_size=24,
        num_layers=2,
        num_refiner_layers=1,
        num_attention_heads=2,
        num_kv_heads=1,
        multiple_of=8,
        axes_dim_rope=(4, 4, 4),
        axes_lens=(300, 64, 64),
        cap_feat_dim=12,
    )


@cache
def text_mask(lengths: tuple[int, ...], longest: int) -> Tensor:
    """(B, longest), 1 where a token is the text's; the very same tensor each time."""
    return (torch.arange(longest) < torch.tensor(lengths)[:, None]).long()


def lumina2_inputs(seeds: Sequence[int], grid: Grid) -> dict[str, Any]:
    """Texts of 3 to 5 tokens, so that images begin at different places."""
    return {
        "hidden_states": per_sample(seeds, 4, grid[0] * 2, grid[1] * 2),
        "timestep": steps(seeds),
        "encoder_hidden_states": prompt(seeds),
        "encoder_attention_mask": text_mask(tuple(5 - seed % 3 for seed in seeds), 5),
    }


def krea2() -> nn.Module:
    from diffusers import Krea2Transformer2DModel

    return Krea2Transformer2DModel(
        in_channels=8,
        num_layers=2,
        attention_head_dim=12,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=24,
        timestep_embed_dim=8,
        text_hidden_dim=12,
        num_text_layers=2,
        text_num_attention_heads=2,
        text_num_key_value_heads=2,
        text_intermediate_size=12,
        num_layerwise_text_blocks=1,
        num_refiner_text_blocks=1,
        axes_dims_rope=(4, 4, 4),
    )


@cache
def text_and_places(text: int, grid: Grid) -> Tensor:
    return torch.cat([torch.zeros(text, 3), places(3, grid)])


@cache
def text_layers(seeds: tuple[int, ...]) -> Tensor:
    return per_sample(seeds, 5, 2, 12, salt=1)


def krea2_inputs(seeds: Sequence[int], grid: Grid) -> dict[str, Any]:
    return {
        "hidden_states": per_sample(seeds, grid[0] * grid[1], 8),
        "timestep": steps(seeds),
        "encoder_hidden_states": text_layers(tuple(seeds)),
        "position_ids": text_and_places(5, grid),
        "encoder_attention_mask": text_mask((4,) * len(seeds), 5).bool(),
    }


def omnigen() -> nn.Module:
    from diffusers import OmniGenTransformer2DModel

    return OmniGenTransformer2DModel(
        in_channels=4,
        hidden_size=16,
        num_attention_heads=2,
        num_key_value_heads=2,
        intermediate_size=24,
        num_layers=2,
        pad_token_id=0,
        vocab_size=16,
        time_step_dim=8,
        rope_scaling={"long_factor": [1.0] * 4, "short_factor": [1.0] * 4},
        pos_embed_max_size=64,
    )


@cache
def token_ids(seeds: tuple[int, ...]) -> Tensor:
    return torch.tensor([[1 + (seed + token) % 15 for token in range(4)] for seed in seeds])


@cache
def causal_text(batch: int, image: int) -> Tensor:
    """(B, L, L): four tokens of text read those before them, the timestep's and the image's read all but padding."""
    mask = torch.ones(batch, 5 + image, 5 + image).tril()
    mask[:, 4:] = 1
    mask[:, 1:, 0] = 0  # the first token of text is padding
    return mask


def omnigen_inputs(seeds: Sequence[int], grid: Grid) -> dict[str, Any]:
    image = grid[0] * grid[1]
    return {
        "hidden_states": per_sample(seeds, 4, grid[0] * 2, grid[1] * 2),
        "timestep": steps(seeds),
        "input_ids": token_ids(tuple(seeds)),
        "input_img_latents": [],
        "input_image_sizes": {},
        "attention_mask": causal_text(len(seeds), image),
        "position_ids": torch.arange(5 + image).expand(len(seeds), -1),
    }


def ernie_image() -> nn.Module:
    from diffusers import ErnieImageTransformer2DModel

    model: nn.Module = ErnieImageTransformer2DModel(
        hidden_size=24,
        num_attention_heads=2,
        num_layers=2,
        ffn_hidden_size=32,
        in_channels=4,
        out_channels=4,
        text_in_dim=12,
        rope_axes_dim=(4, 4, 4),
    )
    for weight in (model.adaLN_modulation[-1].weight, model.final_linear.weight):  # type: ignore[index, union-attr]
        nn.init.normal_(weight, std=0.2)
    return model


@cache
def text_lengths(batch: int) -> Tensor:
    return torch.full((batch,), 4)


def ernie_image_inputs(seeds: Sequence[int], grid: Grid) -> dict[str, Any]:
    return {
        "hidden_states": per_sample(seeds, 4, *grid),
        "timestep": steps(seeds),
        "text_bth": prompt(seeds),
        "text_lens": text_lengths(len(seeds)),
    }
