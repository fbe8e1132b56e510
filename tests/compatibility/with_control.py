"""ControlNet, T2I-Adapter and IP-Adapter: images that steer another."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from row import Row
from tiny_models import made
from tiny_pipelines import flux_pipeline, generate, quiet, sdxl, smooth_image, stable_diffusion
from torch import Tensor, nn


def controlnet_for(pipe: Any) -> nn.Module:
    from diffusers import ControlNetModel, FluxControlNetModel

    def build() -> nn.Module:
        if not hasattr(pipe, "transformer"):
            controlnet: nn.Module = ControlNetModel.from_unet(
                pipe.unet, conditioning_embedding_out_channels=(4, 4, 4, 4), load_weights_from_unet=False
            )
            return without_zeros(controlnet)
        config = pipe.transformer.config
        return without_zeros(
            FluxControlNetModel.from_transformer(
                pipe.transformer,
                num_layers=1,
                num_single_layers=1,
                num_attention_heads=config.num_attention_heads,
                attention_head_dim=config.attention_head_dim,
                load_weights_from_transformer=False,
            )
        )

    return made(build)


def without_zeros(model: nn.Module) -> nn.Module:
    """An untrained ControlNet adds nothing: every layer that leads out of it is 0."""
    with torch.no_grad():
        for weight in model.parameters():
            if not weight.any():
                weight.normal_(std=0.1)
    return model


def add_controlnet(pipe: Any) -> Any:
    import diffusers

    name = type(pipe).__name__.removesuffix("Pipeline") + "ControlNetPipeline"
    components = {key: part for key, part in pipe.components.items() if part is not None}
    optional = {"safety_checker": None, "feature_extractor": None, "requires_safety_checker": False}
    flux = {"text_encoder": None, "tokenizer": None, "text_encoder_2": None, "tokenizer_2": None}
    more = {"StableDiffusionPipeline": optional, "FluxPipeline": flux}.get(type(pipe).__name__, {})
    return quiet(getattr(diffusers, name)(**{**more, **components}, controlnet=controlnet_for(pipe)))


def generate_controlled(pipe: Any) -> Tensor:
    name = "control_image" if hasattr(pipe, "transformer") else "image"
    return generate(pipe, **{name: smooth_image()})


def add_t2i_adapter(pipe: Any) -> Any:
    from diffusers import StableDiffusionAdapterPipeline, T2IAdapter

    adapter = made(partial(T2IAdapter, channels=(8, 16), num_res_blocks=1, downscale_factor=8))
    parts = {**pipe.components, "adapter": adapter, "requires_safety_checker": False}
    parts.pop("image_encoder", None)
    return quiet(StableDiffusionAdapterPipeline(**parts))


def ip_adapter_weights(widths: dict[int, int], text: int = 12) -> dict[str, Any]:
    """An IP-Adapter as it stands in a file: four tokens for an image, and keys and values of them for each layer."""
    random = partial(torch.randn, generator=torch.Generator().manual_seed(5))
    layers = {
        f"{number}.{name}.{kind}": random(*shape)
        for number, width in widths.items()
        for name in ("to_k_ip", "to_v_ip")
        for kind, shape in (("weight", (width, text)), ("bias", (width,)))
    }
    projection = {"proj.weight": random(4 * text, 6), "proj.bias": random(4 * text)}
    norm = {"norm.weight": torch.ones(text), "norm.bias": torch.zeros(text)}
    return {"image_proj": {**projection, **norm}, "ip_adapter": layers}


def add_ip_adapter(pipe: Any) -> Any:
    if hasattr(pipe, "transformer"):
        state = ip_adapter_weights(dict.fromkeys(range(2), 24))
        pipe.transformer._load_ip_adapter_weights([state])
        return pipe
    # The UNet's layers are counted with self-attention in between, and have different widths.
    layers = [name.removesuffix(".processor") for name in pipe.unet.attn_processors if "attn2" in name]
    widths = [pipe.unet.get_submodule(layer).to_k.out_features for layer in layers]
    state = ip_adapter_weights({2 * number + 1: width for number, width in enumerate(widths)})
    pipe.load_ip_adapter(state, subfolder="", weight_name="", image_encoder_folder=None)
    return pipe


def generate_with_image(pipe: Any, **more: Any) -> Tensor:
    embedding = torch.randn(1, 1, 6, generator=torch.Generator().manual_seed(9))
    if hasattr(pipe, "transformer"):
        negative = {"negative_ip_adapter_image_embeds": [torch.zeros_like(embedding)]}
        return generate(pipe, ip_adapter_image_embeds=[embedding], **negative)
    guided = torch.cat([torch.zeros_like(embedding), embedding])  # unconditional first
    return generate(pipe, ip_adapter_image_embeds=[guided], **more)


def generate_with_masked_image(pipe: Any) -> Tensor:
    mask = torch.zeros(1, 1, 128, 128)
    mask[..., :64] = 1  # the left half
    return generate_with_image(pipe, cross_attention_kwargs={"ip_adapter_masks": [mask]})


def t2i(pipe: Any) -> Tensor:
    return generate(pipe, image=smooth_image())


MODELS: tuple[tuple[str, Callable[[], Any]], ...] = (
    ("SD 1.5", stable_diffusion),
    ("SDXL", sdxl),
    ("Flux", flux_pipeline),
)
ROWS = [
    *(Row("ControlNet", "one", on, build, add_controlnet, generate_controlled) for on, build in MODELS),
    Row("T2I-Adapter", "full adapter", "SD 1.5", stable_diffusion, add_t2i_adapter, t2i),
    *(Row("IP-Adapter", "without masks", on, build, add_ip_adapter, generate_with_image) for on, build in MODELS),
    Row(
        "IP-Adapter",
        "without masks, sampled keys (`keys=sampled`)",
        *MODELS[2],
        add_ip_adapter,
        generate_with_image,
        options={"keys": "sampled"},
        scopes=("site",),
    ),
    Row(
        "IP-Adapter",
        "without masks, all keys (`keys=all`)",
        *MODELS[2],
        add_ip_adapter,
        generate_with_image,
        options={"keys": "all"},
        scopes=("site",),
    ),
    Row("IP-Adapter", "with masks", *MODELS[0], add_ip_adapter, generate_with_masked_image, scopes=("site",)),
]
