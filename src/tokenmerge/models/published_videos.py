"""Published configurations of video models. What is not said is as diffusers makes it by default."""

from __future__ import annotations

from tokenmerge.models.architecture import Architecture

LAYERS = ("num_layers",)
WAN_14B = {"num_layers": 40}
WAN_IMAGE = {**WAN_14B, "in_channels": 36, "image_dim": 1280, "added_kv_proj_dim": 5120}
COGVIDEOX_5B = {"num_attention_heads": 48, "num_layers": 42, "use_rotary_positional_embeddings": True}

VIDEO_MODELS: dict[str, Architecture] = {
    "wan-1.3b": Architecture(
        "Wan 2.1, 1.3 B",
        "WanTransformer3DModel",
        480,
        {"num_attention_heads": 12, "ffn_dim": 8960, "num_layers": 30},
        LAYERS,
    ),
    "wan-14b": Architecture("Wan 2.1 and 2.2, 14 B", "WanTransformer3DModel", 720, WAN_14B, LAYERS),
    "wan-vace-14b": Architecture("Wan VACE, 14 B", "WanVACETransformer3DModel", 720, WAN_14B),
    "wan-animate-14b": Architecture("Wan Animate, 14 B", "WanAnimateTransformer3DModel", 720, WAN_IMAGE),
    "chronoedit-14b": Architecture("ChronoEdit, 14 B", "ChronoEditTransformer3DModel", 720, WAN_IMAGE, LAYERS),
    "skyreels-14b": Architecture(
        "SkyReels V2, 14 B",
        "SkyReelsV2Transformer3DModel",
        544,
        {**WAN_14B, "num_attention_heads": 40, "ffn_dim": 13824},
        LAYERS,
    ),
    "ltx-video": Architecture("LTX-Video, 2 B", "LTXVideoTransformer3DModel", 704, {"num_layers": 28}, LAYERS),
    "ltx2": Architecture("LTX-2, 19 B", "LTX2VideoTransformer3DModel", 768, {"num_layers": 48}, LAYERS),
    "hunyuan-video": Architecture(
        "HunyuanVideo",
        "HunyuanVideoTransformer3DModel",
        720,
        {"num_layers": 20, "num_single_layers": 40},
        ("num_layers", "num_single_layers"),
    ),
    "hunyuan-video-1.5": Architecture(
        "HunyuanVideo 1.5", "HunyuanVideo15Transformer3DModel", 640, {"num_layers": 54}, LAYERS
    ),
    "cogvideox-2b": Architecture("CogVideoX, 2 B", "CogVideoXTransformer3DModel", 480, {"num_layers": 30}, LAYERS),
    "cogvideox-5b": Architecture("CogVideoX, 5 B", "CogVideoXTransformer3DModel", 480, COGVIDEOX_5B, LAYERS),
    # Without the face that it follows.
    "consisid": Architecture(
        "ConsisID", "ConsisIDTransformer3DModel", 480, {**COGVIDEOX_5B, "in_channels": 32}, LAYERS
    ),
    "mochi": Architecture("Mochi 1", "MochiTransformer3DModel", 480, {"num_layers": 48}, LAYERS),
    "allegro": Architecture("Allegro", "AllegroTransformer3DModel", 720, {"num_layers": 32}, LAYERS),
    "easyanimate": Architecture(
        "EasyAnimate 5.1, 12 B",
        "EasyAnimateTransformer3DModel",
        512,
        {"in_channels": 16, "out_channels": 16, "patch_size": 2, "num_layers": 48},
        LAYERS,
    ),
    # Without the channel of the padding mask, which needs torchvision.
    "cosmos2-2b": Architecture(
        "Cosmos Predict 2, 2 B",
        "CosmosTransformer3DModel",
        720,
        {
            "num_attention_heads": 16,
            "num_layers": 28,
            "rope_scale": (1.0, 4.0, 4.0),
            "concat_padding_mask": False,
            "extra_pos_embed_type": None,
        },
        LAYERS,
    ),
    "kandinsky5-lite": Architecture(
        "Kandinsky 5 Lite, 2 B",
        "Kandinsky5Transformer3DModel",
        512,
        {
            "in_visual_dim": 16,
            "out_visual_dim": 16,
            "model_dim": 1792,
            "ff_dim": 7168,
            "num_visual_blocks": 32,
            "visual_cond": True,
        },
        ("num_visual_blocks",),
    ),
    "latte": Architecture(
        "Latte 1",
        "LatteTransformer3DModel",
        512,
        {
            "attention_head_dim": 72,
            "in_channels": 4,
            "out_channels": 8,
            "num_layers": 28,
            "cross_attention_dim": 1152,
            "attention_bias": True,
            "patch_size": 2,
            "activation_fn": "gelu-approximate",
            "norm_type": "ada_norm_single",
            "norm_elementwise_affine": False,
            "caption_channels": 4096,
        },
        LAYERS,
    ),
    "animatediff": Architecture(
        "AnimateDiff on Stable Diffusion 1.5", "UNetMotionModel", 512, {"sample_size": 64, "cross_attention_dim": 768}
    ),
    "svd": Architecture(
        "Stable Video Diffusion", "UNetSpatioTemporalConditionModel", 576, {"sample_size": 96, "num_frames": 14}
    ),
    "text-to-video": Architecture(
        "Text-to-video of ModelScope, 1.7 B", "UNet3DConditionModel", 256, {"sample_size": 32}
    ),
    "i2vgen-xl": Architecture("I2VGen-XL", "I2VGenXLUNet", 704, {"sample_size": 64}),
}
