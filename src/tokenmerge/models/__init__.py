"""The model families tokenmerge knows, one small file each."""

from __future__ import annotations

from torch import nn

from tokenmerge.errors import UnsupportedModelError
from tokenmerge.models.base import Family
from tokenmerge.models.flux import FluxFamily
from tokenmerge.models.pixart import PixArtFamily
from tokenmerge.models.unet import UNetFamily

FAMILIES: list[Family] = [UNetFamily(), PixArtFamily(), FluxFamily()]


def register_family(family: Family) -> None:
    """Make `apply` know one more family of models; a later one goes before earlier ones."""
    FAMILIES.insert(0, family)


def family_of(model: nn.Module) -> Family:
    """The family a model belongs to."""
    for family in FAMILIES:
        if family.recognises(model):
            return family
    known = "; ".join(family.name for family in FAMILIES)
    raise UnsupportedModelError(
        f"{type(model).__name__} is not a model that tokenmerge can merge in. It knows: {known}. "
        f"Another kind can be added with tokenmerge.register_family."
    )
