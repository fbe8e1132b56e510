"""Which tensor is it? Pipelines encode a prompt once a picture and pass that very tensor at every step."""

from __future__ import annotations

import uuid
from collections.abc import Hashable
from typing import Any

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

# A tensor's address may be another's later, and a copy of a model in another process knows none of this one's tensors.
_NAMES: Any = WeakTensorKeyDictionary()


def name_of(tensor: Tensor) -> Hashable:
    """What tells this tensor, unchanged, from every other, also from those with the same values.

    >>> import torch
    >>> tensor = torch.zeros(2)
    >>> name_of(tensor) == name_of(tensor), name_of(tensor) == name_of(torch.zeros(2))
    (True, False)
    """
    name = _NAMES.get(tensor)
    if name is None:
        name = _NAMES[tensor] = uuid.uuid4()
    return name, None if tensor.is_inference() else tensor._version


def names_of(values: tuple[Any, ...]) -> Hashable:
    """`name_of` for every tensor among them."""
    return tuple(name_of(value) for value in values if isinstance(value, Tensor))
