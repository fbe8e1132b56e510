"""Published configurations of image transformers. What is not said is as diffusers makes it by default."""

from __future__ import annotations

from tokenmerge.models.architecture import Architecture

SD3_MEDIUM = {"num_layers": 24, "num_attention_heads": 24, "caption_projection_dim": 1536, "pos_embed_max_size": 192}
PIXART = {"num_layers": 28, "caption_channels": 4096, "interpolation_scale": 2}
KLEIN = {"guidance_embeds": False}
# The entries by which blocks can be cut.
LAYERS, FLUX = ("num_layers",), ("num_layers", "num_single_layers")

IMAGE_MODELS: dict[str, Architecture] = {
    "pixart": Architecture(
        "PixArt-alpha, 1024 px",
        "PixArtTransformer2DModel",
        1024,
        {**PIXART, "use_additional_conditions": True},
        LAYERS,
    ),
    "pixart-sigma": Architecture(
        "PixArt-Sigma, 1024 px",
        "PixArtTransformer2DModel",
        1024,
        {**PIXART, "use_additional_conditions": False},
        LAYERS,
    ),
    "sd3-medium": Architecture("Stable Diffusion 3 medium", "SD3Transformer2DModel", 1024, SD3_MEDIUM, LAYERS),
    "sd35-medium": Architecture(
        "Stable Diffusion 3.5 medium",
        "SD3Transformer2DModel",
        1024,
        {
            **SD3_MEDIUM,
            "qk_norm": "rms_norm",
            "dual_attention_layers": tuple(range(13)),
            "pos_embed_max_size": 384,
        },
        LAYERS,
    ),
    "sd35-large": Architecture(
        "Stable Diffusion 3.5 large",
        "SD3Transformer2DModel",
        1024,
        {
            "num_layers": 38,
            "num_attention_heads": 38,
            "caption_projection_dim": 2432,
            "qk_norm": "rms_norm",
            "pos_embed_max_size": 192,
        },
        LAYERS,
    ),
    "flux": Architecture(
        "Flux.1 dev",
        "FluxTransformer2DModel",
        1024,
        {"num_layers": 19, "num_single_layers": 38, "guidance_embeds": True},
        FLUX,
    ),
    "flux-schnell": Architecture(
        "Flux.1 schnell", "FluxTransformer2DModel", 1024, {"num_layers": 19, "num_single_layers": 38}, FLUX
    ),
    "flux2": Architecture(
        "Flux.2 dev", "Flux2Transformer2DModel", 1024, {"num_layers": 8, "num_single_layers": 48}, FLUX
    ),
    "flux2-klein-4b": Architecture(
        "Flux.2 Klein 4B",
        "Flux2Transformer2DModel",
        1024,
        {**KLEIN, "num_layers": 5, "num_single_layers": 20, "num_attention_heads": 24, "joint_attention_dim": 7680},
        FLUX,
    ),
    "flux2-klein-9b": Architecture(
        "Flux.2 Klein 9B",
        "Flux2Transformer2DModel",
        1024,
        {**KLEIN, "num_layers": 8, "num_single_layers": 24, "num_attention_heads": 32, "joint_attention_dim": 12288},
        FLUX,
    ),
    "qwen-image": Architecture("Qwen-Image", "QwenImageTransformer2DModel", 1328, {"num_layers": 60}, LAYERS),
    "qwen-image-edit": Architecture("Qwen-Image-Edit", "QwenImageTransformer2DModel", 1024, {"num_layers": 60}, LAYERS),
    "sana": Architecture("Sana 1.6B", "SanaTransformer2DModel", 1024, {"num_layers": 20}, LAYERS),
    "auraflow": Architecture(
        "AuraFlow 0.3",
        "AuraFlowTransformer2DModel",
        1024,
        {"num_mmdit_layers": 4, "num_single_dit_layers": 32, "pos_embed_max_size": 9216},
        ("num_mmdit_layers", "num_single_dit_layers"),
    ),
    "z-image": Architecture("Z-Image", "ZImageTransformer2DModel", 1024, {"n_layers": 30}, ("n_layers",)),
    "z-image-turbo": Architecture("Z-Image Turbo", "ZImageTransformer2DModel", 1024, {"n_layers": 30}, ("n_layers",)),
    "lumina2": Architecture(
        "Lumina-Image 2.0", "Lumina2Transformer2DModel", 1024, {"num_layers": 26, "cap_feat_dim": 2304}, LAYERS
    ),
    "chroma": Architecture(
        "Chroma1 HD", "ChromaTransformer2DModel", 1024, {"num_layers": 19, "num_single_layers": 38}, FLUX
    ),
    "ovis-image": Architecture(
        "Ovis-Image 7B", "OvisImageTransformer2DModel", 1024, {"num_layers": 6, "num_single_layers": 27}, FLUX
    ),
    "longcat-image": Architecture(
        "LongCat-Image", "LongCatImageTransformer2DModel", 1024, {"num_layers": 10, "num_single_layers": 20}, FLUX
    ),
    # Bria's own sizes are not published without an agreement: diffusers' defaults.
    "bria": Architecture(
        "Bria, of diffusers' default size",
        "BriaTransformer2DModel",
        1024,
        {"num_layers": 19, "num_single_layers": 38},
        FLUX,
    ),
    "bria-fibo": Architecture(
        "Bria Fibo",
        "BriaFiboTransformer2DModel",
        1024,
        {"num_layers": 8, "num_single_layers": 38, "in_channels": 48},
        FLUX,
    ),
    "cogview3-plus": Architecture(
        "CogView 3 Plus 3B", "CogView3PlusTransformer2DModel", 1024, {"num_layers": 30}, LAYERS
    ),
    "cogview4": Architecture(
        "CogView 4 6B",
        "CogView4Transformer2DModel",
        1024,
        {"num_layers": 28, "num_attention_heads": 32, "attention_head_dim": 128},
        LAYERS,
    ),
    "glm-image": Architecture(
        "GLM-Image",
        "GlmImageTransformer2DModel",
        1024,
        {"num_layers": 30, "num_attention_heads": 32, "attention_head_dim": 128},
        LAYERS,
    ),
    "hunyuan-image": Architecture(
        "HunyuanImage 2.1",
        "HunyuanImageTransformer2DModel",
        2048,
        {"num_layers": 20, "num_single_layers": 40, "text_embed_2_dim": 1472},
        FLUX,
    ),
    "hunyuan-dit": Architecture(
        "HunyuanDiT 1.2",
        "HunyuanDiT2DModel",
        1024,
        {
            "in_channels": 4,
            "patch_size": 2,
            "sample_size": 128,
            "hidden_size": 1408,
            "num_layers": 40,
            "mlp_ratio": 4.3637,
            "use_style_cond_and_image_meta_size": False,
        },
        LAYERS,
    ),
    "dit": Architecture(
        "DiT-XL/2, 512 px",
        "DiTTransformer2DModel",
        512,
        {"num_layers": 28, "sample_size": 64, "out_channels": 8},
        LAYERS,
    ),
    "krea2": Architecture("Krea 2", "Krea2Transformer2DModel", 1024, {"num_layers": 28}, LAYERS),
    # Its published sizes were not found: those of the class.
    "flux3": Architecture(
        "Flux.3, of diffusers' default size",
        "Flux3Transformer2DModel",
        1024,
        {"num_layers": 5, "num_single_layers": 28},
        FLUX,
    ),
    "omnigen": Architecture(
        "OmniGen",
        "OmniGenTransformer2DModel",
        1024,
        {"num_layers": 32, "rope_scaling": {"long_factor": [1.0] * 48, "short_factor": [1.0] * 48}},
        LAYERS,
    ),
    "ernie-image": Architecture(
        "ERNIE-Image 8B",
        "ErnieImageTransformer2DModel",
        1024,
        {
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "num_layers": 36,
            "ffn_hidden_size": 12288,
            "text_in_dim": 3072,
        },
        LAYERS,
    ),
    "hidream": Architecture(
        "HiDream-I1",
        "HiDreamImageTransformer2DModel",
        1024,
        {
            "patch_size": 2,
            "in_channels": 16,
            "caption_channels": (4096, 4096),
            "llama_layers": (*range(32), *[31] * 16),
            "axes_dims_rope": (64, 32, 32),
        },
    ),
    "qwen-image-2.1": Architecture("Qwen-Image 2.1", "QwenImage21Transformer2DModel", 1024, {"num_layers": 32}, LAYERS),
    "prx": Architecture("PRX 1.2B", "PRXTransformer2DModel", 512, {"depth": 16}, ("depth",)),
    "nucleus-image": Architecture(
        "Nucleus-Image, of diffusers' default size",
        "NucleusMoEImageTransformer2DModel",
        1024,
        {"num_layers": 24, "out_channels": 16},
        LAYERS,
    ),
}
