"""The hook on the owner of a stack of blocks: which grid is it, and what becomes of every block on it?"""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from tokenmerge.config.base import MergeConfig
from tokenmerge.config.keep import mask_on_grid
from tokenmerge.engine.around_site import AroundSite
from tokenmerge.engine.block_site import BlockSite
from tokenmerge.engine.hooked import Args, Kwargs, Pieces, outside_compile
from tokenmerge.engine.plan import Memory
from tokenmerge.engine.thin_keys import key_distance, thinned, thinned_merged
from tokenmerge.errors import ConfigError, MergeRuntimeError
from tokenmerge.methods.interfaces import CannotMerge, Layout, Place
from tokenmerge.models.base import Part, Stack
from tokenmerge.ops.regions import Regions

if TYPE_CHECKING:
    from tokenmerge.engine.root import RootSite


class StackSite:
    """Learns the grid of its blocks and decides, once per grid, what becomes of them."""

    def __init__(self, stack: Stack, root: RootSite) -> None:
        self.stack = stack
        self.root = root
        self.blocks: list[BlockSite] = []  # those not skipped
        self.grid: tuple[int, ...] | None = None
        self.layout: Layout | None = None  # the same for all blocks; None if nothing is merged on this grid
        self.reason = "not called yet"  # why nothing is merged here, where nothing is
        self.entered: tuple[Tensor, Tensor] | None = None  # a run's tokens before and after merging
        self.entered_whole: Tensor | None = None  # a run's tokens at a step that runs whole
        self.tokens = self.trailing = 0
        self.reorders = False
        self.aside: tuple[int, ...] = ()  # tokens that the user's mask keeps as they are
        self.apart = False  # each block gives back all its tokens, because it cannot count on its neighbours
        self.around = False  # merged once around the owner, not at the first and the last block of a run
        self.around_site = AroundSite(self)
        self.can_be_around = False  # as the owner is at this call
        self.runs_again = False  # this call runs whole, and then merged, to tell what that loses
        self._settled_for: Hashable = None
        self._handles: list[RemovableHandle] = []

    def attach(self) -> None:
        self._handles = [self.stack.owner.register_forward_pre_hook(self.enter, with_kwargs=True)]
        self.around_site.attach()
        if self.stack.owner is not self.root.model:
            self._handles.append(self.stack.owner.register_forward_hook(self.leave, with_kwargs=True))
        for block in self.blocks:
            block.attach()

    def follow_changes(self) -> None:
        """Hook into layers that have been replaced since the last call; nothing to do where none has."""
        self.around_site.attach()
        self.can_be_around = self.around_site.possible
        for block in self.blocks:
            for part in block.parts:
                part.attach()

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self.around_site.detach()
        self.entered = self.entered_whole = None
        for block in self.blocks:
            block.detach()
            block.active = block.lends = False
            for part in block.parts:
                part.active = part.lends = False
                part.thinned = None

    def enter(self, module: nn.Module, args: Args, kwargs: Kwargs) -> None:
        if not self.root.attached:
            return
        grid = self.stack.grid(args, kwargs)
        self.trailing = self.stack.trailing(args, kwargs)
        device = next(value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)).device
        # A checkpointed block runs again in the backward pass, by itself.
        checkpointed = torch.is_grad_enabled() and getattr(self.stack.owner, "gradient_checkpointing", False)
        self.apart = self.root.interleaved or checkpointed
        root = self.root
        settled_for = (
            grid,
            device,
            root.positional,
            root.fixed_order,
            root.cached,
            root.thinnable,
            self.apart,
            self.can_be_around,
            root.resting,
            root.ratios,
            root.config.scope,
        )
        if settled_for != self._settled_for:
            self._settled_for = None  # an error on the way leaves nothing settled, for any grid
            self._settle(grid, device)
            self._settled_for = settled_for

    def leave(self, owner: nn.Module, args: Args, kwargs: Kwargs, output: Any) -> None:
        if self.root.attached and self.runs_again and not self.root.again:
            self.root.run_again(owner, args, kwargs)

    @outside_compile
    def _settle(self, grid: tuple[int, ...], device: torch.device) -> None:
        """Fix everything that depends on the grid alone."""
        fixed_order = self.stack.fixed_order or self.root.fixed_order
        if self.root.positional:
            kinds = ", ".join(self.root.positional)
            fixed_order = f"this call looks tokens up by position in {kinds}-attention (IP-Adapter masks do)"
        self.grid = grid
        self.tokens = math.prod(grid)
        if self.root.keep is not None:
            self.aside = tuple(mask_on_grid(self.root.keep, grid).nonzero().flatten().tolist())
        layout = None
        if self.blocks:
            layout, self.reason = self._layout(self.root.step_config, grid)
        self.layout = layout = None if layout is None else layout.to(device)
        if fixed_order and self.root.config.scope != "site" and layout is not None:
            raise MergeRuntimeError(f"{fixed_order}, which merging whole blocks cannot follow: use scope='site'.")
        regions = None if layout is None else layout.regions
        # A padded order is longer than the grid, so tokens cannot stay in it between parts. Keys are picked in any.
        only_keys = layout is None or layout.kept == self.tokens
        stays = fixed_order or only_keys or self._averages
        self.reorders = regions is not None and not (regions.natural or regions.padded or stays)
        if regions is not None:
            self.regions: Regions = regions
        run = ""
        for block in self.blocks:
            block.layout = layout
            block.active = layout is not None and not self.root.resting
            block.lends = layout is not None and self.root.lends
            self._join_run(block)
        self.around = self._can_merge_around()
        for block in self.blocks:
            if layout is not None:
                run = block.block.name if block.first_of_run else run
                block.place = Place(
                    block.block.name,
                    block.index,
                    block.count,
                    self.reorders,
                    self.stack.one_for_batch,
                    block.keys_of_all,
                    self._averages,
                )
                block.group = self.root.plan.group(self._group_key(block, run, grid))
                self._remember(block)
            for part in block.parts:
                merges = layout is not None and self._merges_in(part.part, block)
                merges = merges and part.name not in self.root.cached
                part.active = merges and not self.root.resting
                part.lends = merges and self.root.lends and self.root.config.scope == "site"
                thins = merges and part.name in self.root.thinnable
                part.thinned = self._thinned(block, device) if thins else None

    @property
    def first(self) -> BlockSite:
        return self.blocks[0]

    def _can_merge_around(self) -> bool:
        """Is all of the stack one run, and is nothing needed of its blocks but what the owner gives?"""
        config = self.root.config
        if not self.can_be_around or config.scope != "stack" or self.apart:
            return False
        return len(self.blocks) == len(self.stack.blocks) and all(
            block.layout is not None and block.run_first is self.first for block in self.blocks
        )

    @property
    def _averages(self) -> bool:
        """Whether tiles are averaged, all in the order of the grid: only if full steps calibrate what that loses."""
        return self.root.config.learns and self.layout is not None and self.layout.tiles is not None

    def _layout(self, config: MergeConfig | None, grid: tuple[int, ...]) -> tuple[Layout | None, str]:
        """What a config makes of the grid; or None, and why."""
        tokens = math.prod(grid)
        if config is None:
            return None, "ratio 0 at this step"
        if tokens < config.min_tokens:
            return None, f"{tokens} tokens, fewer than min_tokens={config.min_tokens}"
        try:
            downsample = self.stack.downsample
            if self.root.keep is None:
                layout = config.layout_at(grid, downsample)
            else:
                layout = config.layout_keeping(grid, downsample, self.aside)
        except CannotMerge as reason:
            return None, str(reason)
        except ConfigError as error:
            raise ConfigError(f"{self.stack.name}: {error}") from None
        if layout.kept != layout.kept_keys and not config.keys_apart:
            raise ConfigError(
                f"{type(config).__name__}.layout keeps {layout.kept_keys} keys and {layout.kept} other tokens, but its "
                f"keys_apart is False: a method that merges keys apart has to say so."
            )
        return layout, ""

    def merges_with(self, config: MergeConfig | None) -> bool:
        """Would a config merge anything on the grid of the last call?"""
        return self.grid is not None and self._layout(config, self.grid)[0] is not None

    def _join_run(self, block: BlockSite) -> None:
        """Is it merged together with the block before it?"""
        before = block.before
        block.first_of_run, block.last_of_run, block.run_first = True, True, block
        if before is not None and self.layout is not None:
            block.first_of_run = before.last_of_run = False
            block.run_first = before.run_first

    def _remember(self, block: BlockSite) -> None:
        """Gives a block and its parts a memory of what they return at full steps, if there are such steps."""
        if not self.root.config.whole_every:
            return
        # What the owner gives is not what its blocks give.
        block.detail = self._detail(block, "around" if self.around else "block", block.block.name)
        for part in block.parts:
            part.details = {position: self._detail(block, part.name, position) for position in part.part.outputs}

    def _detail(self, block: BlockSite, *name: str | int) -> Memory:
        memory = self.root.plan.memory(("detail", *name))
        memory.put_in_order(self.reorders)
        memory.outlasts_plans = block.place.averages
        return memory

    def in_order(self, grid: Tensor) -> Tensor:
        """Tokens of a step that runs whole, in the order in which merged steps have them."""
        return self.regions.gather(grid) if self.reorders else grid

    def _merges_in(self, part: Part, block: BlockSite) -> bool:
        if set(part.kinds) & set(self.root.positional):
            return False
        only_keys = block.kept == self.tokens and block.kept_keys < self.tokens
        return part.keys_apart or not only_keys

    def _thinned(self, block: BlockSite, device: torch.device) -> Tensor | None:
        """Which of the tokens it runs on self-attention reads at this step; None where it reads all."""
        assert block.layout is not None
        coarsest = max(site.stack.downsample for site in self.root.stacks)
        side = key_distance(self.stack.downsample, coarsest)
        if self.root.lends:
            return thinned(block.layout.grid, side, device)
        return None if self.root.config.counts_keys else thinned_merged(block.layout, side, device)

    def _group_key(self, block: BlockSite, run: str, grid: tuple[int, ...]) -> Hashable:
        share = self.root.config.share
        where = self.stack.level if share == "level" else ""
        if share == "layer":
            # What is merged once for a run has one plan.
            where = run if self.root.config.scope == "stack" and not self.apart else block.block.name
        # Blocks in region order and blocks in grid order cannot read each other's operators, nor can those that keep
        # more or fewer tokens, or pick keys among others.
        return where, grid, self.reorders, block.kept, block.kept_keys, self.root.config.scope

    def pieces(self, tokens: Tensor, count: int, text_last: bool = False) -> Pieces:
        """Tokens before those of the grid, the `count` of the grid, and those behind; None where there are none."""
        others = tokens.shape[1] - count
        if others == 0:
            return None, tokens, None
        behind = others if text_last else self.trailing
        pieces = torch.split(tokens, [others - behind, count, behind], dim=1)
        return pieces[0] if others > behind else None, pieces[1], pieces[2] if behind else None
