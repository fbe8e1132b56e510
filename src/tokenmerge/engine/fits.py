"""Can this method be put into this model? Where it cannot: why not, and what to use instead."""

from __future__ import annotations

from dataclasses import dataclass

from tokenmerge.config.base import MergeConfig
from tokenmerge.models.base import Stack, chosen_parts


@dataclass(frozen=True)
class Misfit:
    """Why a method does not fit a model."""

    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.reason}. {self.remedy}."


def suited(config: MergeConfig, stacks: list[Stack]) -> MergeConfig:
    """The config with a scope that a model with these stacks allows, where the choice was left to us."""
    if config.scope is not None:
        return config
    return config.with_scope("site" if _fixed_order(stacks) else config.merged_per)


def misfit(config: MergeConfig, stacks: list[Stack]) -> Misfit | None:
    """Why the method does not fit a model with these stacks; None where it fits."""
    fixed = _fixed_order(stacks)
    if fixed and config.merged_per != "site":
        return Misfit(f"{fixed}, so whole blocks cannot be merged", "Use scope='site'")
    blocks = [block for stack in stacks for block in stack.blocks]
    parts = [part for block in blocks for part in chosen_parts(block.parts, config.parts, config.keys_of_all)]
    if config.keys_apart and not any(part.keys_apart for part in parts):
        return Misfit(
            "it has no self-attention whose keys could be merged apart from queries", "Use ToMA without kv_ratio"
        )
    if config.keys_apart and not config.picks_keys and not any(part.own_keys for part in parts):
        return Misfit(
            "its attention makes queries and keys of the same tokens, so that keys merged apart must be some of them, "
            "as they are",
            "Use a method whose picks_keys says that they are, such as ToMA or ToDo",
        )
    return None


def _fixed_order(stacks: list[Stack]) -> str:
    return next((stack.fixed_order for stack in stacks if stack.fixed_order), "")
