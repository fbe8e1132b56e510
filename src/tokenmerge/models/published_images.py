"""Published configurations of image models."""

from __future__ import annotations

from tokenmerge.models.architecture import Architecture

ALL_CROSS_ATTENTION = {
    "down_block_types": ("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
    "block_out_channels": (320, 640, 1280, 1280),
}
SD3_SHARED = {
    "sample_size": 128,
    "patch_size": 2,
    "in_channels": 16,
    "out_channels": 16,
    "attention_head_dim": 64,
    "joint_attention_dim": 4096,
    "pooled_projection_dim": 2048,
    "pos_embed_max_size": 192,
}
PIXART_SHARED = {
    "sample_size": 128,
    "patch_size": 2,
    "in_channels": 4,
    "out_channels": 8,
    "num_layers": 28,
    "num_attention_heads": 16,
    "attention_head_dim": 72,
    "cross_attention_dim": 1152,
    "caption_channels": 4096,
    "interpolation_scale": 2,
}
FLUX_SHARED = {
    "patch_size": 1,
    "in_channels": 64,
    "num_layers": 19,
    "num_single_layers": 38,
    "attention_head_dim": 128,
    "num_attention_heads": 24,
    "joint_attention_dim": 4096,
    "pooled_projection_dim": 768,
    "axes_dims_rope": (16, 56, 56),
}

IMAGE_MODELS: dict[str, Architecture] = {
    "sd15": Architecture(
        "Stable Diffusion 1.5",
        "UNet2DConditionModel",
        512,
        {
            **ALL_CROSS_ATTENTION,
            "sample_size": 64,
            "cross_attention_dim": 768,
            "attention_head_dim": 8,
        },
    ),
    "sd21": Architecture(
        "Stable Diffusion 2.1",
        "UNet2DConditionModel",
        768,
        {
            **ALL_CROSS_ATTENTION,
            "sample_size": 96,
            "cross_attention_dim": 1024,
            "attention_head_dim": (5, 10, 20, 20),
            "use_linear_projection": True,
            "upcast_attention": True,
        },
    ),
    "sdxl": Architecture(
        "Stable Diffusion XL base",
        "UNet2DConditionModel",
        1024,
        {
            "sample_size": 128,
            "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
            "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
            "block_out_channels": (320, 640, 1280),
            "transformer_layers_per_block": (1, 2, 10),
            "cross_attention_dim": 2048,
            "attention_head_dim": (5, 10, 20),
            "use_linear_projection": True,
            "addition_embed_type": "text_time",
            "addition_time_embed_dim": 256,
            "projection_class_embeddings_input_dim": 2816,
        },
    ),
    "sdxl-refiner": Architecture(
        "Stable Diffusion XL refiner",
        "UNet2DConditionModel",
        1024,
        {
            "sample_size": 128,
            "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
            "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
            "block_out_channels": (384, 768, 1536, 1536),
            "transformer_layers_per_block": 4,
            "cross_attention_dim": 1280,
            "attention_head_dim": (6, 12, 24, 24),
            "use_linear_projection": True,
            "addition_embed_type": "text_time",
            "addition_time_embed_dim": 256,
            "projection_class_embeddings_input_dim": 2560,
        },
    ),
    "pixart": Architecture(
        "PixArt-alpha, 1024 px",
        "PixArtTransformer2DModel",
        1024,
        {**PIXART_SHARED, "use_additional_conditions": True},
        ("num_layers",),
    ),
    "pixart-sigma": Architecture(
        "PixArt-Sigma, 1024 px",
        "PixArtTransformer2DModel",
        1024,
        {**PIXART_SHARED, "use_additional_conditions": False},
        ("num_layers",),
    ),
    "sd3-medium": Architecture(
        "Stable Diffusion 3 medium",
        "SD3Transformer2DModel",
        1024,
        {**SD3_SHARED, "num_layers": 24, "num_attention_heads": 24, "caption_projection_dim": 1536},
        ("num_layers",),
    ),
    "sd35-medium": Architecture(
        "Stable Diffusion 3.5 medium",
        "SD3Transformer2DModel",
        1024,
        {
            **SD3_SHARED,
            "num_layers": 24,
            "num_attention_heads": 24,
            "caption_projection_dim": 1536,
            "qk_norm": "rms_norm",
            "dual_attention_layers": tuple(range(13)),
            "pos_embed_max_size": 384,
        },
        ("num_layers",),
    ),
    "sd35-large": Architecture(
        "Stable Diffusion 3.5 large",
        "SD3Transformer2DModel",
        1024,
        {
            **SD3_SHARED,
            "num_layers": 38,
            "num_attention_heads": 38,
            "caption_projection_dim": 2432,
            "qk_norm": "rms_norm",
        },
        ("num_layers",),
    ),
    "flux": Architecture(
        "Flux.1 dev",
        "FluxTransformer2DModel",
        1024,
        {**FLUX_SHARED, "guidance_embeds": True},
        ("num_layers", "num_single_layers"),
    ),
    "flux-schnell": Architecture(
        "Flux.1 schnell",
        "FluxTransformer2DModel",
        1024,
        {**FLUX_SHARED, "guidance_embeds": False},
        ("num_layers", "num_single_layers"),
    ),
}
