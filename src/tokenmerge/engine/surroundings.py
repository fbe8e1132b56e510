"""What others have put into a model, looked for at the first step of every image: caches, replaced attention."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from tokenmerge.engine.compatibility import keeps_outputs, takes_other_keys
from tokenmerge.engine.program import StackDescription
from tokenmerge.models.base import Block, Part

# Parts with a cache inside, parts whose attention can read a subset of keys, and whether there is a cache.
Surroundings = tuple[frozenset[str], frozenset[str], bool]


def look_around(stacks: list[StackDescription], chosen: Iterable[str], subsets: bool) -> Surroundings:
    """What others have put into these stacks.

    chosen: the parts that merge. subsets: whether full steps are to read a subset of keys at all.
    """
    parts = [(block, part) for stack in stacks for block in stack.merging for part in block.parts]
    cached = frozenset(
        block.path(part)
        for block, part in parts
        if set(part.kinds) <= set(chosen) and keeps_outputs(_modules_inside(block, part))
    )
    subset_keys = frozenset(
        block.path(part)
        for block, part in parts
        if subsets and part.own_keys and takes_other_keys(_attention_of(block, part))
    )
    blocks = (block.module for stack in stacks for block in stack.stack.blocks)
    return cached, subset_keys, bool(cached) or keeps_outputs(blocks)


def _attention_of(block: Block, part: Part) -> nn.Module:
    return block.module.get_submodule(part.attention_path)


def _modules_inside(block: Block, part: Part) -> Iterable[nn.Module]:
    """Every module between where tokens enter a part and where they leave it, without the block itself."""
    names = {part.module, part.leaves or part.module} if part.attention is None else {""}
    modules = [block.module.get_submodule(name) for name in names]
    return (inner for module in modules for inner in module.modules() if inner is not block.module)
