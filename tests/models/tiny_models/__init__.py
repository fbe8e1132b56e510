"""The smallest models of every family, of the real classes and with random weights, and calls for them."""

from __future__ import annotations

from packaging.version import Version

from tiny_models.base import DIFFUSERS, TinyModel, made, per_sample, prompt
from tiny_models.cross_attention import (
    dit,
    dit_inputs,
    hunyuan_dit,
    hunyuan_dit_inputs,
    pixart,
    pixart_inputs,
    sana,
    sana_inputs,
)
from tiny_models.flux_relatives import (
    bria,
    bria_fibo,
    bria_fibo_inputs,
    chroma,
    chroma_inputs,
    inputs_of,
    longcat_image,
    ovis_image,
)
from tiny_models.frames_as_samples import (
    animatediff,
    animatediff_inputs,
    i2vgen,
    i2vgen_inputs,
    latte,
    latte_inputs,
    stable_video,
    stable_video_inputs,
    text_to_video,
    video_unet_inputs,
)
from tiny_models.image_queries import (
    nucleus,
    nucleus_inputs,
    prx,
    prx_inputs,
    qwen_image21,
    qwen_image21_inputs,
)
from tiny_models.joint_attention import (
    auraflow,
    auraflow_inputs,
    flux,
    flux2,
    flux2_inputs,
    flux_inputs,
    qwen_image,
    qwen_inputs,
    sd3,
    sd3_inputs,
)
from tiny_models.more_joint_attention import (
    cogview3_plus,
    cogview4,
    cogview4_inputs,
    cogview_inputs,
    flux3,
    flux3_inputs,
    glm_image,
    glm_image_inputs,
    hidream,
    hidream_inputs,
    hunyuan_image,
    hunyuan_image_inputs,
)
from tiny_models.single_stream import (
    ernie_image,
    ernie_image_inputs,
    krea2,
    krea2_inputs,
    lumina2,
    lumina2_inputs,
    omnigen,
    omnigen_inputs,
    z_image,
    z_image_inputs,
)
from tiny_models.unets import sd15_unet, sdxl_inputs, sdxl_unet, unet_inputs
from tiny_models.video import hunyuan_inputs, hunyuan_video, ltx, ltx_inputs, wan, wan_inputs
from tiny_models.video_cross import (
    allegro,
    allegro_inputs,
    chronoedit,
    cosmos,
    cosmos_inputs,
    kandinsky5,
    kandinsky5_inputs,
    ltx2,
    ltx2_inputs,
    skyreels,
    wan_animate,
    wan_animate_inputs,
    wan_vace,
    wan_vace_inputs,
)
from tiny_models.video_joint import (
    cogvideox,
    cogvideox_inputs,
    consisid,
    easyanimate,
    easyanimate_inputs,
    hunyuan_video15,
    hunyuan_video15_inputs,
    mochi,
    mochi_inputs,
)

__all__ = ["DIFFUSERS", "TINY_MODELS", "TinyModel", "made", "per_sample", "prompt", "tiny"]

ALL_TINY_MODELS = [
    TinyModel("sd15", sd15_unet, unet_inputs, own_keys=True, makes_tokens=("norm",)),
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
    TinyModel(
        "z-image",
        z_image,
        z_image_inputs,
        text=32,
        timestep="t",
        timestep_rises=True,
        since="0.36",
    ),
    TinyModel("lumina2", lumina2, lumina2_inputs, text=4, timestep_rises=True),
    TinyModel("chroma", chroma, chroma_inputs, text=5, since="0.42"),
    TinyModel("longcat-image", longcat_image, inputs_of, text=5, since="0.42"),
    TinyModel("ovis-image", ovis_image, inputs_of, text=5, since="0.42"),
    TinyModel("bria", bria, inputs_of, text=5, since="0.42"),
    TinyModel("bria-fibo", bria_fibo, bria_fibo_inputs, text=5, since="0.42"),
    TinyModel("cogview3-plus", cogview3_plus, cogview_inputs, text=5, since="0.42"),
    TinyModel("cogview4", cogview4, cogview4_inputs, text=5, since="0.42"),
    TinyModel("glm-image", glm_image, glm_image_inputs, text=5, since="0.42"),
    TinyModel("hunyuan-image", hunyuan_image, hunyuan_image_inputs, text=5, since="0.42"),
    TinyModel("dit", dit, dit_inputs, own_keys=True, square=True, makes_tokens=("pos_embed",), since="0.42"),
    TinyModel("krea2", krea2, krea2_inputs, text=5, since="0.42"),
    TinyModel("flux3", flux3, flux3_inputs, text=5, since="0.42"),
    TinyModel("omnigen", omnigen, omnigen_inputs, text=5, timestep_rises=True, since="0.42"),
    TinyModel("ernie-image", ernie_image, ernie_image_inputs, text=5, since="0.42"),
    TinyModel("hidream", hidream, hidream_inputs, text=11, square=True, timestep="timesteps", since="0.42"),
    TinyModel("prx", prx, prx_inputs, text=5, since="0.42"),
    TinyModel("nucleus", nucleus, nucleus_inputs, text=5, since="0.42"),
    TinyModel("qwen-image-2.1", qwen_image21, qwen_image21_inputs, text=3, returns_text=True, even=True, since="0.42"),
    TinyModel("hunyuan-dit", hunyuan_dit, hunyuan_dit_inputs, scopes=("site",), since="0.42"),
    TinyModel("cogvideox", cogvideox, cogvideox_inputs, text=5, video=True, since="0.42"),
    TinyModel("consisid", consisid, cogvideox_inputs, text=5, video=True, since="0.42"),
    TinyModel("mochi", mochi, mochi_inputs, text=5, video=True, separate_keys=False, since="0.42"),
    TinyModel("easyanimate", easyanimate, easyanimate_inputs, text=5, video=True, since="0.42"),
    TinyModel("hunyuan-video-1.5", hunyuan_video15, hunyuan_video15_inputs, text=10, video=True, since="0.42"),
    TinyModel("skyreels", skyreels, wan_inputs, video=True, since="0.42"),
    TinyModel("chronoedit", chronoedit, wan_inputs, video=True, since="0.42"),
    TinyModel(
        "wan-vace", wan_vace, wan_vace_inputs, video=True, read_elsewhere=("site", "block", "stack"), since="0.42"
    ),
    TinyModel("wan-animate", wan_animate, wan_animate_inputs, video=True, since="0.42"),
    TinyModel("cosmos", cosmos, cosmos_inputs, video=True, double=False, timestep_logarithmic=True, since="0.42"),
    TinyModel("kandinsky5", kandinsky5, kandinsky5_inputs, video=True, double=False, since="0.42"),
    TinyModel("ltx2", ltx2, ltx2_inputs, video=True, read_elsewhere=("site",), since="0.42"),
    TinyModel("allegro", allegro, allegro_inputs, video=True, since="0.42"),
    TinyModel("latte", latte, latte_inputs, own_keys=True, since="0.42"),
    TinyModel("animatediff", animatediff, animatediff_inputs, own_keys=True, since="0.42"),
    TinyModel("text-to-video", text_to_video, video_unet_inputs, own_keys=True, since="0.42"),
    TinyModel("i2vgen", i2vgen, i2vgen_inputs, own_keys=True, context=73, since="0.42"),
    TinyModel(
        "stable-video", stable_video, stable_video_inputs, own_keys=True, timestep_logarithmic=True, since="0.42"
    ),
]
# What an older release of diffusers lacks cannot be tested there.
TINY_MODELS = [model for model in ALL_TINY_MODELS if Version(model.since) <= DIFFUSERS]


def tiny(name: str) -> TinyModel:
    return next(model for model in TINY_MODELS if model.name == name)
