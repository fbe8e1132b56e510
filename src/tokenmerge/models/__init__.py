"""The model families tokenmerge knows, one small file each."""

from __future__ import annotations

import difflib
import re

from torch import nn

from tokenmerge.errors import ConfigError, UnsupportedModelError
from tokenmerge.models.allegro import AllegroFamily
from tokenmerge.models.auraflow import AuraFlowFamily
from tokenmerge.models.base import Family, is_a
from tokenmerge.models.cogvideox import CogVideoXFamily, ConsisIDFamily
from tokenmerge.models.cogview import CogView3PlusFamily, CogView4Family
from tokenmerge.models.cosmos import CosmosFamily
from tokenmerge.models.dit import DiTFamily
from tokenmerge.models.easyanimate import EasyAnimateFamily
from tokenmerge.models.ernie_image import ErnieImageFamily
from tokenmerge.models.flux import FluxFamily
from tokenmerge.models.flux2 import Flux2Family
from tokenmerge.models.flux3 import Flux3Family
from tokenmerge.models.flux_derived import (
    BriaFamily,
    BriaFiboFamily,
    ChromaFamily,
    LongCatImageFamily,
    OvisImageFamily,
)
from tokenmerge.models.glm_image import GlmImageFamily
from tokenmerge.models.hidream import HiDreamFamily
from tokenmerge.models.hunyuan_dit import HunyuanDiTFamily
from tokenmerge.models.hunyuan_image import HunyuanImageFamily
from tokenmerge.models.hunyuan_video import HunyuanVideoFamily
from tokenmerge.models.hunyuan_video15 import HunyuanVideo15Family
from tokenmerge.models.kandinsky5 import Kandinsky5Family
from tokenmerge.models.krea2 import Krea2Family
from tokenmerge.models.latte import LatteFamily
from tokenmerge.models.ltx import LTXFamily
from tokenmerge.models.ltx2 import LTX2Family
from tokenmerge.models.lumina2 import Lumina2Family
from tokenmerge.models.mochi import MochiFamily
from tokenmerge.models.nucleus import NucleusFamily
from tokenmerge.models.omnigen import OmniGenFamily
from tokenmerge.models.pixart import PixArtFamily
from tokenmerge.models.prx import PRXFamily
from tokenmerge.models.qwen_image import QwenImageFamily
from tokenmerge.models.qwen_image21 import QwenImage21Family
from tokenmerge.models.sana import SanaFamily
from tokenmerge.models.sd3 import SD3Family
from tokenmerge.models.unet import UNetFamily
from tokenmerge.models.unsupported import UNSUPPORTED
from tokenmerge.models.video_unets import AnimateDiffFamily, I2VGenFamily, StableVideoFamily, TextToVideoFamily
from tokenmerge.models.wan import ChronoEditFamily, SkyReelsFamily, WanAnimateFamily, WanFamily, WanVACEFamily
from tokenmerge.models.z_image import ZImageFamily

FAMILIES: list[Family] = [
    UNetFamily(),
    SD3Family(),
    FluxFamily(),
    Flux2Family(),
    PixArtFamily(),
    QwenImageFamily(),
    SanaFamily(),
    AuraFlowFamily(),
    WanFamily(),
    LTXFamily(),
    HunyuanVideoFamily(),
    ZImageFamily(),
    Lumina2Family(),
    BriaFamily(),
    BriaFiboFamily(),
    ChromaFamily(),
    CogView3PlusFamily(),
    CogView4Family(),
    DiTFamily(),
    GlmImageFamily(),
    HunyuanDiTFamily(),
    HunyuanImageFamily(),
    LongCatImageFamily(),
    OvisImageFamily(),
    ErnieImageFamily(),
    Flux3Family(),
    HiDreamFamily(),
    Krea2Family(),
    OmniGenFamily(),
    AllegroFamily(),
    CogVideoXFamily(),
    ConsisIDFamily(),
    CosmosFamily(),
    EasyAnimateFamily(),
    HunyuanVideo15Family(),
    Kandinsky5Family(),
    LatteFamily(),
    LTX2Family(),
    MochiFamily(),
    AnimateDiffFamily(),
    I2VGenFamily(),
    StableVideoFamily(),
    TextToVideoFamily(),
    ChronoEditFamily(),
    SkyReelsFamily(),
    WanAnimateFamily(),
    WanVACEFamily(),
    NucleusFamily(),
    PRXFamily(),
    QwenImage21Family(),
]


for _family in FAMILIES:
    _family.known_residuals = True


def register_family(family: Family) -> None:
    """Make `apply` know one more family of models; a later one goes before earlier ones."""
    if not isinstance(family, Family):
        meant = isinstance(family, type) and issubclass(family, Family)
        advice = f"write {family.__name__}()" if meant else "docs/extending.md has the recipe"
        raise ConfigError(f"family is {family!r}, which is no object of a class derived from Family: {advice}.")
    FAMILIES.insert(0, family)


def family_of(model: nn.Module) -> Family:
    """The family a model belongs to."""
    for family in FAMILIES:
        if family.recognises(model):
            return family
    reason = next((reason for class_name, (_, reason) in UNSUPPORTED.items() if is_a(model, class_name)), None)
    if reason is not None:
        raise UnsupportedModelError(
            f"tokens of {type(model).__name__} are not merged: {reason}. docs/models.md lists the models that are, and "
            f"docs/extending.md has the recipe for a family of your own."
        )
    raise UnsupportedModelError(
        f"{type(model).__name__} is not a model that tokenmerge can merge in. {_nearest(type(model).__name__)} To add "
        f"your own, describe it in about 20 lines with tokenmerge.register_family: docs/extending.md has the recipe, "
        f"and tokenmerge.testing.check_family tests it."
    )


def _nearest(class_name: str) -> str:
    """A sentence that names the family whose class is called most alike, or says where they are listed."""
    classes = {family.class_name: family.name for family in FAMILIES if family.class_name}
    stems = {_stem(known): known for known in reversed(classes)}  # of two with one stem, the family listed first
    near = difflib.get_close_matches(class_name, classes, n=1, cutoff=0.6)
    near = near or [stems[stem] for stem in difflib.get_close_matches(_stem(class_name), stems, n=1, cutoff=0.7)]
    if near:
        return f"The nearest that it knows is {classes[near[0]]} ({near[0]})."
    return (
        f"It knows {len(classes)} families, and none is called like it: docs/models.md lists them, and "
        f"`tokenmerge explain --help` names models."
    )


def _stem(class_name: str) -> str:
    """A class name without what those of most models have in common."""
    return re.sub(r"transformer|condition|model|[23]d", "", class_name.lower()) or class_name.lower()
