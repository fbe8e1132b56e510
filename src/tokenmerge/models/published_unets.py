"""Published configurations of UNets that make images. What is not said is as diffusers makes it by default."""

from __future__ import annotations

from typing import Any

from tokenmerge.models.architecture import Architecture

SDXL: dict[str, Any] = {
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
}

UNETS: dict[str, Architecture] = {
    "sd15": Architecture(
        "Stable Diffusion 1.5", "UNet2DConditionModel", 512, {"sample_size": 64, "cross_attention_dim": 768}
    ),
    "sd21": Architecture(
        "Stable Diffusion 2.1",
        "UNet2DConditionModel",
        768,
        {
            "sample_size": 96,
            "cross_attention_dim": 1024,
            "attention_head_dim": (5, 10, 20, 20),
            "use_linear_projection": True,
            "upcast_attention": True,
        },
    ),
    "sdxl": Architecture("Stable Diffusion XL base", "UNet2DConditionModel", 1024, SDXL),
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
            "attention_head_dim": (6, 12, 24, 24),
            "use_linear_projection": True,
            "addition_embed_type": "text_time",
            "addition_time_embed_dim": 256,
            "projection_class_embeddings_input_dim": 2560,
        },
    ),
    "kolors": Architecture(
        "Kolors",
        "UNet2DConditionModel",
        1024,
        {
            **SDXL,
            "projection_class_embeddings_input_dim": 5632,
            "encoder_hid_dim": 4096,
            "encoder_hid_dim_type": "text_proj",
        },
    ),
}
