"""The smallest models of every family, of the real classes and with random weights, and calls for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from typing import Any

import torch
from packaging.version import Version
from torch import Tensor, nn

from tokenmerge.models.position_ids import image_ids

Grid = tuple[int, ...]
DIFFUSERS = Version(version("diffusers"))


@dataclass(frozen=True)
class TinyModel:
    """A model and how to call it on a grid of tokens."""

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[Sequence[int], Grid], dict[str, Any]]  # (one seed per sample, grid)
    text: int = 0  # tokens of text in joint attention
    video: bool = False
    scopes: tuple[str, ...] = ("site", "block", "stack")
    merges_keys: bool = True  # does it have self-attention that runs on merged tokens?
    own_keys: bool = False  # can keys be merged apart from queries?
    makes_tokens: tuple[str, ...] = ()  # modules that give the tokens of the grid, by the last part of their names
    makes_positions: tuple[str, ...] = ()  # modules that give rotary embeddings, one row a token
    since: str = "0.35"  # the first release of diffusers that has it

    def grid(self, height: int, width: int) -> Grid:
        return (2, height, width) if self.video else (height, width)

    def call(self, model: nn.Module, seeds: Sequence[int], grid: Grid, timestep: float = 0.5, **more: Any) -> Tensor:
        inputs = self.inputs(seeds, grid)
        inputs["timestep"] = torch.full_like(inputs["timestep"], timestep)
        with torch.no_grad():
            output: Tensor = model(**inputs, **more, return_dict=False)[0]
        return output

    def __str__(self) -> str:
        return self.name


def made(build: Callable[[], nn.Module]) -> nn.Module:
    """The model with weights large enough that every layer matters, the same ones each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build().eval()
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if weight.dim() > 1 and not name.endswith("pos_embed"):
                    weight.mul_(1.5)
    return model


def per_sample(seeds: Sequence[int], *shape: int, salt: int = 0) -> Tensor:
    """(len(seeds), *shape): each sample depends on its own seed alone."""
    made = [torch.randn(*shape, generator=torch.Generator().manual_seed(seed + 1000 * salt)) for seed in seeds]
    return torch.stack(made)


def prompt(seeds: Sequence[int], tokens: int = 5) -> Tensor:
    """(len(seeds), tokens, 12): the very same tensor for the same samples, as a pipeline passes at every step."""
    return _prompt(tuple(seeds), tokens)


@cache
def _prompt(seeds: tuple[int, ...], tokens: int) -> Tensor:
    return per_sample(seeds, tokens, 12, salt=1)


@cache
def places(axes: int, grid: Grid, references: Grid = (), image: float = 1.0) -> Tensor:
    """The ids of an image's tokens, and of a reference's behind them; the very same tensor each time."""
    ids = [image_ids(*grid, axes)]
    if references:
        ids.append(image_ids(*references, axes) + torch.tensor([image, *[0.0] * (axes - 1)]))
    return torch.cat(ids)


@cache
def no_places(*shape: int) -> Tensor:
    """The ids of text, which sits nowhere."""
    return torch.zeros(*shape)


def steps(seeds: Sequence[int]) -> Tensor:
    return torch.full((len(seeds),), 0.5)


# -- Stable Diffusion UNets and PixArt -----------------------------------------------------------------------------


def sd15_unet() -> nn.Module:
    from diffusers import UNet2DConditionModel

    return UNet2DConditionModel(
        sample_size=16,
        block_out_channels=(8, 16),
        down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
        layers_per_block=1,
        cross_attention_dim=12,
        attention_head_dim=2,
        norm_num_groups=4,
    )


def sdxl_unet(time_ids: int = 6) -> nn.Module:
    """`time_ids`: how many numbers describe the picture; the refiner has 5."""
    from diffusers import UNet2DConditionModel

    return UNet2DConditionModel(
        sample_size=16,
        block_out_channels=(8, 8, 16),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        transformer_layers_per_block=(1, 2, 3),
        layers_per_block=1,
        cross_attention_dim=12,
        attention_head_dim=(1, 2, 2),
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=4,
        projection_class_embeddings_input_dim=time_ids * 4 + 8,
        norm_num_groups=4,
    )


def unet_inputs(seeds: Sequence[int], grid: Grid) -> dict[str, Any]:
    return {
        "sample": per_sample(seeds, 4, *grid),
        "timestep": torch.tensor(0.5),
        "encoder_hidden_states": prompt(seeds),
    }


def sdxl_inputs(seeds: Sequence[int], grid: Grid) -> dict[str, Any]:
    """The first transformer of SDXL is one level down, so the latent is twice the grid."""
    added = {"text_embeds": per_sample(seeds, 8, salt=2), "time_ids": torch.ones(len(seeds), 6)}
    latent = grid[0] * 2, grid[1] * 2
    return {**unet_inputs(seeds, latent), "added_cond_kwargs": added}


def pixart() -> nn.Module:
    from diffusers import PixArtTransformer2DModel

    return PixArtTransformer2DModel(
        sample_size=16,
        num_layers=3,
        patch_size=2,
        attention_head_dim=4,
        num_attention_heads=2,
        in_channels=4,
        out_channels=8,
        cross_attention_dim=8,
        caption_channels=12,
        use_additional_conditions=False,
    )


def pixart_inputs(seeds: Sequence[int], grid: Grid) -> dict[str, Any]:
    return {
        "hidden_states": per_sample(seeds, 4, grid[0] * 2, grid[1] * 2),
        "timestep": steps(seeds),
        "encoder_hidden_states": prompt(seeds),
        "added_cond_kwargs": {"resolution": None, "aspect_ratio": None},
    }


# -- Flux ----------------------------------------------------------------------------------------------------------


def flux(guidance: bool = True, channels: int = 8, out_channels: int | None = None) -> nn.Module:
    from diffusers import FluxTransformer2DModel

    return FluxTransformer2DModel(
        in_channels=channels,
        out_channels=out_channels,
        num_layers=2,
        num_single_layers=3,
        attention_head_dim=12,
        num_attention_heads=2,
        joint_attention_dim=12,
        pooled_projection_dim=8,
        guidance_embeds=guidance,
        axes_dims_rope=(4, 4, 4),
    )


def flux_inputs(
    seeds: Sequence[int], grid: Grid, text: int = 5, channels: int = 8, guidance: bool = True, references: Grid = ()
) -> dict[str, Any]:
    """`references`: the grid of a reference image, whose tokens come behind, as in Kontext."""
    img_ids = places(3, grid, references)
    inputs = {
        "hidden_states": per_sample(seeds, len(img_ids), channels),
        "timestep": steps(seeds),
        "encoder_hidden_states": prompt(seeds, text),
        "pooled_projections": per_sample(seeds, 8, salt=2),
        "img_ids": img_ids,
        "txt_ids": no_places(text, 3),
    }
    return {**inputs, "guidance": torch.full((len(seeds),), 3.5)} if guidance else inputs


# -- other image transformers --------------------------------------------------------------------------------------


def sd3() -> nn.Module:
    """Of SD 3.5's kind: the first blocks have a second attention."""
    from diffusers import SD3Transformer2DModel

    return SD3Transformer2DModel(
        sample_size=24,
        patch_size=2,
        in_channels=4,
        out_channels=4,
        num_layers=3,
        attention_head_dim=4,
        num_attention_heads=2,
        joint_attention_dim=12,
        caption_projection_dim=8,
        pooled_projection_dim=8,
        pos_embed_max_size=24,
        dual_attention_layers=(0, 1),
        qk_norm="rms_norm",
    )


def sd3_inputs(seeds: Sequence[int], grid: Grid) -> dict[str, Any]:
    return {
        "hidden_states": per_sample(seeds, 4, grid[0] * 2, grid[1] * 2),
        "timestep": steps(seeds),
        "encoder_hidden_states": prompt(seeds),
        "pooled_projections": per_sample(seeds, 8, salt=2),
    }


def flux2() -> nn.Module:
    from diffusers import Flux2Transformer2DModel

    return Flux2Transformer2DModel(
        in_channels=8,
        num_layers=2,
        num_single_layers=3,
        attention_head_dim=8,
        num_attention_heads=2,
        joint_attention_dim=12,
        timestep_guidance_channels=8,
        mlp_ratio=2.0,
        axes_dims_rope=(2, 2, 2, 2),
    )


@cache
def places_of_each(batch: int, grid: Grid, references: Grid) -> Tensor:
    return places(4, grid, references, image=10.0).expand(batch, -1, -1)


def flux2_inputs(seeds: Sequence[int], grid: Grid, references: Grid = ()) -> dict[str, Any]:
    img_ids = places_of_each(len(seeds), grid, references)
    return {
        "hidden_states": per_sample(seeds, img_ids.shape[1], 8),
        "timestep": steps(seeds),
        "encoder_hidden_states": prompt(seeds),
        "img_ids": img_ids,
        "txt_ids": no_places(len(seeds), 5, 4),
        "guidance": torch.full((len(seeds),), 4.0),
    }


def qwen_image(**more: Any) -> nn.Module:
    from diffusers import QwenImageTransformer2DModel

    return QwenImageTransformer2DModel(
        in_channels=8,
        out_channels=4,
        num_layers=3,
        attention_head_dim=12,
        num_attention_heads=2,
        joint_attention_dim=12,
        axes_dims_rope=(4, 4, 4),
        **more,
    )


def qwen_inputs(seeds: Sequence[int], grid: Grid, references: Grid = ()) -> dict[str, Any]:
    shapes = [(1, *grid), (1, *references)] if references else [(1, *grid)]
    mask = torch.ones(len(seeds), 5, dtype=torch.bool)
    mask[:, 4] = False  # the last token of text is padding
    inputs = {
        "hidden_states": per_sample(seeds, sum(rows * columns for _, rows, columns in shapes), 8),
        "timestep": steps(seeds),
        "encoder_hidden_states": prompt(seeds),
        "encoder_hidden_states_mask": mask,
        "img_shapes": [shapes] * len(seeds),
    }
    return inputs if Version("0.37") <= DIFFUSERS else {**inputs, "txt_seq_lens": [5] * len(seeds)}


def sana() -> nn.Module:
    from diffusers import SanaTransformer2DModel

    return SanaTransformer2DModel(
        sample_size=8,
        in_channels=4,
        out_channels=4,
        num_layers=2,
        attention_head_dim=4,
        num_attention_heads=2,
        num_cross_attention_heads=2,
        cross_attention_head_dim=4,
        cross_attention_dim=8,
        caption_channels=12,
    )


def sana_inputs(seeds: Sequence[int], grid: Grid) -> dict[str, Any]:
    return {
        "hidden_states": per_sample(seeds, 4, *grid),
        "timestep": steps(seeds),
        "encoder_hidden_states": prompt(seeds),
        "encoder_attention_mask": torch.tensor([[1, 1, 1, 1, 0]] * len(seeds)),
    }


def auraflow() -> nn.Module:
    from diffusers import AuraFlowTransformer2DModel

    return AuraFlowTransformer2DModel(
        sample_size=16,
        patch_size=2,
        in_channels=4,
        out_channels=4,
        num_mmdit_layers=2,
        num_single_dit_layers=2,
        attention_head_dim=4,
        num_attention_heads=2,
        joint_attention_dim=12,
        caption_projection_dim=8,
        pos_embed_max_size=1024,
    )


def auraflow_inputs(seeds: Sequence[int], grid: Grid) -> dict[str, Any]:
    return {
        "hidden_states": per_sample(seeds, 4, grid[0] * 2, grid[1] * 2),
        "timestep": steps(seeds),
        "encoder_hidden_states": prompt(seeds),
    }


# -- video ---------------------------------------------------------------------------------------------------------


def wan() -> nn.Module:
    from diffusers import WanTransformer3DModel

    return WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=4,
        out_channels=4,
        text_dim=12,
        freq_dim=8,
        ffn_dim=16,
        num_layers=2,
        cross_attn_norm=True,
        rope_max_seq_len=64,
    )


def wan_inputs(seeds: Sequence[int], grid: Grid) -> dict[str, Any]:
    return {
        "hidden_states": per_sample(seeds, 4, grid[0], grid[1] * 2, grid[2] * 2),
        "timestep": steps(seeds),
        "encoder_hidden_states": prompt(seeds),
    }


def ltx() -> nn.Module:
    from diffusers import LTXVideoTransformer3DModel

    return LTXVideoTransformer3DModel(
        in_channels=8,
        out_channels=8,
        num_attention_heads=2,
        attention_head_dim=8,
        cross_attention_dim=16,
        num_layers=2,
        caption_channels=12,
    )


def ltx_inputs(seeds: Sequence[int], grid: Grid) -> dict[str, Any]:
    frames, height, width = grid
    return {
        "hidden_states": per_sample(seeds, frames * height * width, 8),
        "timestep": steps(seeds),
        "encoder_hidden_states": prompt(seeds),
        "encoder_attention_mask": torch.tensor([[1.0, 1.0, 1.0, 1.0, 0.0]] * len(seeds)),
        "num_frames": frames,
        "height": height,
        "width": width,
        # Position embeddings of a sample depend on its own speed.
        "rope_interpolation_scale": (1 / 24, 32.0, 32.0),
    }


def hunyuan_video(**more: Any) -> nn.Module:
    from diffusers import HunyuanVideoTransformer3DModel

    return HunyuanVideoTransformer3DModel(
        in_channels=4,
        out_channels=4,
        num_attention_heads=2,
        attention_head_dim=8,
        num_layers=2,
        num_single_layers=2,
        num_refiner_layers=1,
        mlp_ratio=2.0,
        patch_size=2,
        text_embed_dim=12,
        pooled_projection_dim=8,
        rope_axes_dim=(2, 4, 2),
        **more,
    )


def hunyuan_inputs(seeds: Sequence[int], grid: Grid) -> dict[str, Any]:
    return {
        "hidden_states": per_sample(seeds, 4, grid[0], grid[1] * 2, grid[2] * 2),
        "timestep": steps(seeds),
        "encoder_hidden_states": prompt(seeds),
        "encoder_attention_mask": torch.tensor([[True, True, True, True, False]] * len(seeds)),
        "pooled_projections": per_sample(seeds, 8, salt=2),
        "guidance": torch.full((len(seeds),), 6000.0),
    }


ALL_TINY_MODELS = [
    TinyModel("sd15", sd15_unet, unet_inputs, own_keys=True, makes_tokens=("proj_in",)),
    TinyModel("sdxl", sdxl_unet, sdxl_inputs, own_keys=True),
    TinyModel("pixart", pixart, pixart_inputs, own_keys=True, makes_tokens=("pos_embed",)),
    TinyModel("flux", flux, flux_inputs, text=5, makes_tokens=("x_embedder",), makes_positions=("pos_embed",)),
    TinyModel("sd3", sd3, sd3_inputs, text=5, makes_tokens=("pos_embed",)),
    TinyModel(
        "flux2",
        flux2,
        flux2_inputs,
        text=5,
        makes_tokens=("x_embedder",),
        makes_positions=("pos_embed",),
        since="0.36",
    ),
    TinyModel(
        "qwen-image",
        qwen_image,
        qwen_inputs,
        text=5,
        makes_tokens=("img_in",),
        makes_positions=("pos_embed",),
    ),
    TinyModel("sana", sana, sana_inputs, scopes=("site",), merges_keys=False),
    TinyModel("auraflow", auraflow, auraflow_inputs, text=13, makes_tokens=("pos_embed",)),  # 8 are registers
    TinyModel("wan", wan, wan_inputs, video=True, makes_tokens=("patch_embedding",), makes_positions=("rope",)),
    TinyModel("ltx", ltx, ltx_inputs, video=True, makes_tokens=("proj_in",), makes_positions=("rope",)),
    TinyModel(
        "hunyuan-video",
        hunyuan_video,
        hunyuan_inputs,
        text=5,
        video=True,
        makes_tokens=("x_embedder",),
        makes_positions=("rope",),
    ),
]
# What an older release of diffusers lacks cannot be tested there.
TINY_MODELS = [model for model in ALL_TINY_MODELS if Version(model.since) <= DIFFUSERS]


def tiny(name: str) -> TinyModel:
    return next(model for model in TINY_MODELS if model.name == name)
