"""What others have put into a model, looked for at the first step of every image: caches, replaced attention."""

from __future__ import annotations

from collections.abc import Iterable

from tokenmerge.engine.compatibility import keeps_outputs, takes_other_keys
from tokenmerge.engine.describe import attention_of, modules_inside
from tokenmerge.engine.program import StackDescription


def look_around(
    stacks: list[StackDescription], chosen: Iterable[str], subsets: bool
) -> tuple[frozenset[str], frozenset[str], bool]:
    """Parts with a cache inside, parts whose attention can read a subset of keys, and whether there is a cache.

    chosen: the parts that merge. subsets: whether full steps are to read a subset of keys at all.
    """
    parts = [(block, part) for stack in stacks for block in stack.merging for part in block.parts]
    cached = frozenset(
        block.path(part)
        for block, part in parts
        if set(part.kinds) <= set(chosen) and keeps_outputs(modules_inside(block, part))
    )
    subset_keys = frozenset(
        block.path(part)
        for block, part in parts
        if subsets and part.own_keys and takes_other_keys(attention_of(block, part))
    )
    blocks = (block.module for stack in stacks for block in stack.stack.blocks)
    return cached, subset_keys, bool(cached) or keeps_outputs(blocks)
