"""Small random models in ComfyUI's own classes, as ModelPatchers, and what they are sampled with."""

from __future__ import annotations

from typing import Any

import comfy.latent_formats
import comfy.model_base
import comfy.model_management
import comfy.model_patcher
import comfy.ops
import comfy.sample
import comfy.sd
import comfy.supported_models
import torch
from comfy.ldm.flux.model import Flux
from torch import Tensor, nn

TEXT = 7  # tokens
WIDTH = 32  # of the text's embeddings
FLUX: dict[str, Any] = {
    "in_channels": 16,
    "out_channels": 16,
    "patch_size": 2,
    "vec_in_dim": WIDTH,
    "context_in_dim": WIDTH,
    "hidden_size": 128,
    "mlp_ratio": 4.0,
    "num_heads": 1,
    "depth": 2,
    "depth_single_blocks": 3,
    "axes_dim": [16, 56, 56],
    "theta": 10000,
    "qkv_bias": True,
    "guidance_embed": True,
    "txt_ids_dims": [],
}
# As SDXL: nothing on the finest level, deeper transformers further down, Linear projections, a pooled text.
SDXL: dict[str, Any] = {
    "image_size": 32,
    "in_channels": 4,
    "out_channels": 4,
    "model_channels": 32,
    "channel_mult": [1, 2, 2],
    "num_res_blocks": [1, 1, 1],
    "transformer_depth": [0, 1, 2],
    "transformer_depth_output": [0, 0, 1, 1, 2, 2],
    "transformer_depth_middle": 2,
    "context_dim": WIDTH,
    "num_heads": -1,
    "num_head_channels": 32,
    "use_spatial_transformer": True,
    "use_linear_in_transformer": True,
    "legacy": False,
    "num_classes": "sequential",
    "adm_in_channels": 64 + 6 * 256,
}
# As SD 1.5: a transformer on every level, convolutions for projections.
SD15: dict[str, Any] = {
    **SDXL,
    "transformer_depth": [1, 1, 0],
    "transformer_depth_output": [1, 1, 1, 1, 0, 0],
    "transformer_depth_middle": 1,
    "use_linear_in_transformer": False,
    "num_classes": None,
    "adm_in_channels": None,
}


def randomised(model: nn.Module) -> nn.Module:
    """Weights that let every part of a model matter."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(generator=generator)
            weight.mul_(weight[0].numel() ** -0.5) if weight.dim() > 1 else weight.mul_(0.1).add_(1)
    return model


def flux_weights(**changes: Any) -> dict[str, Tensor]:
    model = Flux(**{**FLUX, **changes}, operations=comfy.ops.disable_weight_init, dtype=torch.float32)
    return dict(randomised(model).state_dict())


def flux(**changes: Any) -> Any:
    """Loaded as a user's file is: ComfyUI recognises it by its weights."""
    return comfy.sd.load_diffusion_model_state_dict(flux_weights(**changes))


def unet(config: dict[str, Any]) -> Any:
    kind = comfy.supported_models.SDXL if config["adm_in_channels"] else comfy.supported_models.SD15
    settings = kind({**config, "dtype": torch.float32})
    settings.unet_config = {**config, "dtype": torch.float32}
    base = comfy.model_base.SDXL if config["adm_in_channels"] else comfy.model_base.BaseModel
    return patcher(base(settings))


def patcher(model: Any) -> Any:
    randomised(model.diffusion_model)
    device = comfy.model_management.get_torch_device()
    return comfy.model_patcher.ModelPatcher(model.eval(), load_device=device, offload_device=torch.device("cpu"))


def sdxl() -> Any:
    return unet(SDXL)


def sd15() -> Any:
    return unet(SD15)


def text(seed: int, **extras: Any) -> Any:
    """A conditioning, as CLIPTextEncode makes it."""
    generator = torch.Generator().manual_seed(seed)
    pooled = torch.randn(1, 64, generator=generator)[:, : extras.pop("pooled", 64)]
    return [[torch.randn(1, TEXT, WIDTH, generator=generator), {"pooled_output": pooled, **extras}]]


def latent(model: Any, size: tuple[int, int], batch: int = 1) -> Tensor:
    """Of a video with two frames, if the model makes those."""
    kind = model.model.latent_format
    frames = (
        () if kind.latent_dimensions == 2 else (1,) if isinstance(model.model, comfy.model_base.QwenImage) else (2,)
    )
    return torch.zeros(batch, kind.latent_channels, *frames, *size)


def sample(
    model: Any,
    size: tuple[int, int] = (32, 48),
    batch: int = 1,
    steps: int = 4,
    cfg: float = 1.0,
    sampler: str = "euler",
    positive: Any = None,
    negative: Any = None,
    image: Tensor | None = None,
    **others: Any,
) -> Tensor:
    """Latents as KSampler makes them."""
    image = latent(model, size, batch) if image is None else image
    noise = torch.randn(image.shape, generator=torch.Generator().manual_seed(5))
    mask = {"attention_mask": torch.ones(1, TEXT, dtype=torch.long)}  # LTX takes no text without
    extras = mask if isinstance(model.model, comfy.model_base.LTXV) else {}
    positive, negative = positive or text(1, **extras), negative or text(2, **extras)
    result: Tensor = comfy.sample.sample(
        model, noise, steps, cfg, sampler, "simple", positive, negative, image, seed=5, disable_pbar=True, **others
    )
    return result


def qwen_image() -> Any:
    config = {
        "in_channels": 64,
        "out_channels": 16,
        "num_layers": 3,
        "attention_head_dim": 32,
        "num_attention_heads": 2,
        "joint_attention_dim": WIDTH,
        "axes_dims_rope": (8, 12, 12),
    }
    return transformer(comfy.supported_models.QwenImage, comfy.model_base.QwenImage, config)


def lumina() -> Any:
    """As Z-Image: the image is filled up with padding tokens."""
    config = {
        "in_channels": 16,
        "dim": 64,
        "n_layers": 3,
        "n_refiner_layers": 1,
        "n_heads": 2,
        "n_kv_heads": 2,
        "axes_dims": [8, 12, 12],
        "axes_lens": [512, 512, 512],
        "cap_feat_dim": WIDTH,
        "qk_norm": True,
        "pad_tokens_multiple": 32,
        "rope_theta": 256.0,
    }
    return transformer(comfy.supported_models.ZImage, comfy.model_base.Lumina2, config)


def wan() -> Any:
    config = {
        "model_type": "t2v",
        "dim": 64,
        "ffn_dim": 128,
        "num_heads": 2,
        "num_layers": 3,
        "text_dim": WIDTH,
        "in_dim": 16,
        "out_dim": 16,
        "patch_size": (1, 2, 2),
    }
    return transformer(comfy.supported_models.WAN21_T2V, comfy.model_base.WAN21, config)


def sd3() -> Any:
    """As SD 3.5 medium: the first block attends to the image a second time."""
    config = {
        "in_channels": 16,
        "patch_size": 2,
        "depth": 1,
        "num_blocks": 3,
        "input_size": None,
        "adm_in_channels": 64,
        "context_embedder_config": {"target": "torch.nn.Linear", "params": {"in_features": WIDTH, "out_features": 64}},
        "pos_embed_max_size": 64,
        "qk_norm": "rms",
        "x_block_self_attn_layers": [0],
    }
    return transformer(comfy.supported_models.SD3, comfy.model_base.SD3, config)


def ltx() -> Any:
    config = {
        "in_channels": 128,
        "cross_attention_dim": 64,
        "attention_head_dim": 32,
        "num_attention_heads": 2,
        "caption_channels": WIDTH,
        "num_layers": 3,
    }
    return transformer(comfy.supported_models.LTXV, comfy.model_base.LTXV, config)


def transformer(kind: Any, base: Any, config: dict[str, Any]) -> Any:
    settings = kind({**config, "dtype": torch.float32})
    settings.unet_config = {**config, "dtype": torch.float32}
    return patcher(base(settings))
