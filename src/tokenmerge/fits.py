"""Can this method be put into this model? Where it cannot: why not, and what to use instead."""

from __future__ import annotations

from dataclasses import dataclass

from tokenmerge.config import MergeConfig
from tokenmerge.models.base import Stack, chosen_parts


@dataclass(frozen=True)
class Misfit:
    """Why a method does not fit a model."""

    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.reason}. {self.remedy}."


def misfit(config: MergeConfig, stacks: list[Stack]) -> Misfit | None:
    """Why the method does not fit a model with these stacks; None where it fits."""
    fixed = next((stack.fixed_order for stack in stacks if stack.fixed_order), "")
    if fixed and config.scope != "site":
        return Misfit(f"{fixed}, so whole blocks cannot be merged", "Use scope='site'")
    parts = [part for stack in stacks for block in stack.blocks for part in chosen_parts(block.parts, config.parts)]
    if config.keys_apart and not any(part.own_keys for part in parts):
        return Misfit(
            "keys cannot be merged apart from queries in an attention that takes both from one sequence",
            "Use ToMA without kv_ratio, or ToMeSD",
        )
    return None
