"""Hooks: plain PyTorch forward hooks that put operators into a model.

Four kinds, from the outside in: the root model (which step is it?), the owner of a stack (which grid is it?), a block
(refresh the plan; merge here under scope "block" and "stack"), a part of a block (merge here under scope "site").
All are bound methods of plain objects, so deepcopy copies them with the model and save_pretrained never sees them.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.hooks import RemovableHandle

from tokenmerge.config import CannotMerge, Layout, Operator, Operators, Place
from tokenmerge.errors import ConfigError, MergeRuntimeError
from tokenmerge.models.base import Block, Part, Stack
from tokenmerge.ops.regions import Regions
from tokenmerge.plan import GroupPlan

if TYPE_CHECKING:
    from tokenmerge.root import RootSite

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


class PartSite:
    """Runs one part of a block on merged tokens."""

    def __init__(self, part: Part, block: BlockSite) -> None:
        self.part = part
        self.block = block
        self.active = False  # set when the grid is known
        self.seen: int | None = None  # tokens the part ran on in its last call
        self._modules: list[nn.Module] = []
        self._handles: list[RemovableHandle] = []

    def attach(self) -> None:
        """Hook into the modules as they are now; again where one has been replaced, as LoRA does with layers."""
        modules = self._current_modules()
        if all(old is new for old, new in zip(self._modules, modules, strict=False)) and self._handles:
            return
        self.detach()
        self._modules = modules
        entrance, attention, exit_ = modules
        if self.block.stack.root.config.scope == "site":
            if self.part.enters_at == "input":
                self._handles.append(entrance.register_forward_pre_hook(self.enter, with_kwargs=True))
            else:
                self._handles.append(entrance.register_forward_hook(self.enter_output))
            self._handles.append(exit_.register_forward_hook(self.leave))
        if "self" in self.part.kinds:
            # After the entrance, where that is the same module: it has to see how many keys are left.
            self._handles.append(attention.register_forward_pre_hook(self.attend, with_kwargs=True))

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _current_modules(self) -> list[nn.Module]:
        part = self.part
        names = part.module, part.attention or part.module, part.leaves or part.module
        return [self.block.block.module.get_submodule(name) for name in names]

    def enter(self, module: nn.Module, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs] | None:
        if not self.active:
            return None
        tokens = _tokens(args, kwargs)
        operators = self.block.operators
        if self.part.own_keys and operators.keys is not operators.queries:
            keys = tokens if operators.keys is None else operators.keys.merge(tokens)
            kwargs = {**kwargs, "encoder_hidden_states": keys}
        return _with_tokens(args, kwargs, self._merge(tokens))

    def enter_output(self, module: nn.Module, args: Args, output: Any) -> Any:
        return _with_output(output, 0, self._merge(_output(output, 0))) if self.active else None

    def leave(self, module: nn.Module, args: Args, output: Any) -> Any:
        queries = self.block.operators.queries if self.active else None
        if queries is None:
            return None
        stack = self.block.stack
        merged = _output(output, 0)
        return _with_output(output, 0, stack.on_grid_tokens(queries.unmerge, merged, stack.kept))

    def _merge(self, tokens: Tensor) -> Tensor:
        stack = self.block.stack
        if tokens.shape[1] < stack.tokens:
            raise MergeRuntimeError(
                f"{self.block.block.name}.{self.part.module} was given {tokens.shape[1]} of the {stack.tokens} tokens "
                f"of its grid. If feed-forward chunking is on, turn it off with disable_forward_chunking(), or leave "
                f"'mlp' out of parts."
            )
        queries = self.block.operators.queries
        merged = tokens if queries is None else stack.on_grid_tokens(queries.merge, tokens, stack.tokens)
        if not torch.compiler.is_compiling():
            self.seen = merged.shape[1]
        return merged

    def attend(self, module: nn.Module, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs] | None:
        """Tell the attention what its merged tokens stand for, and where they are."""
        if not self.active:
            return None
        keys = self.block.operators.keys
        kwargs = dict(kwargs)
        if self.block.stack.root.config.scope == "site":
            self.block.place_rotary(kwargs, self.block.operators.queries)
        if keys is None or keys.mass is None or not self.block.stack.root.weighs(self.part):
            return args, kwargs
        if kwargs.get("attention_mask") is not None:
            raise MergeRuntimeError(
                f"{self.block.block.name} was given an attention mask over image tokens, which merging cannot follow: "
                f"leave 'self' out of parts."
            )
        kwargs["attention_mask"] = self._key_weights(keys.mass, _tokens(args, kwargs), kwargs)
        return args, kwargs

    def _key_weights(self, mass: Tensor, tokens: Tensor, kwargs: Kwargs) -> Tensor:
        """log(how many tokens a key stands for), 0 for text and other unmerged tokens (design: proportional)."""
        text = kwargs.get("encoder_hidden_states")
        weights = mass.log().to(tokens.dtype)
        if self.part.text != "none" or not self.part.own_keys:
            extra = 0 if text is None else text.shape[1]
            others = tokens.shape[1] - mass.shape[1]
            behind = self.block.stack.trailing + (extra if self.part.text == "last" else 0)
            weights = functional.pad(weights, (others + extra - behind, behind))
        return weights[:, None] if self.part.mask == "3d" else weights[:, None, None]


class BlockSite:
    """Refreshes the plan where it is due; under scope "block" and "stack" also merges for the whole block."""

    def __init__(self, block: Block, stack: StackSite, index: int, count: int) -> None:
        self.block = block
        self.stack = stack
        self.index = index
        self.count = count
        self.parts = [PartSite(part, self) for part in chosen_parts(block.parts, stack.root.config.parts)]
        self.first_of_run = self.last_of_run = True  # among neighbours that are all merged
        self.active = False
        self.place = Place(block.name, index, count)
        self.group = GroupPlan()
        self._handles: list[RemovableHandle] = []

    def attach(self) -> None:
        self._handles = [
            self.block.module.register_forward_pre_hook(self.enter, with_kwargs=True),
            self.block.module.register_forward_hook(self.leave),
        ]
        for part in self.parts:
            part.attach()

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        for part in self.parts:
            part.detach()

    @property
    def operators(self) -> Operators:
        operators = self.group.current.operators
        assert operators is not None, "a block refreshes its plan before its parts run"
        return operators

    def enter(self, module: nn.Module, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs] | None:
        if not self.active:
            return None
        stack = self.stack
        begins = self.first_of_run or stack.root.interleaved
        tokens = _tokens(args, kwargs)
        kwargs = dict(kwargs)
        if stack.reorders:
            if begins:
                tokens = stack.on_grid_tokens(stack.regions.gather, tokens, stack.tokens)
            self._rotary_at(kwargs, stack.regions.order, stack.tokens)
        scope = stack.root.config.scope
        if scope != "stack" or begins:
            self._refresh(tokens)
            if scope != "site":
                tokens = self._merge(tokens)
        if scope != "site":
            self.place_rotary(kwargs, self.operators.queries)
        return _with_tokens(args, kwargs, tokens)

    def leave(self, module: nn.Module, args: Args, output: Any) -> Any:
        if not self.active:
            return None
        stack = self.stack
        ends = self.last_of_run or stack.root.interleaved
        scope = stack.root.config.scope
        tokens = _output(output, self.block.output)
        if scope == "block" or (scope == "stack" and ends):
            tokens = self._unmerge(tokens)
        if ends and stack.reorders:
            tokens = stack.on_grid_tokens(stack.regions.scatter, tokens, stack.tokens)
        return _with_output(output, self.block.output, tokens)

    def _refresh(self, tokens: Tensor) -> None:
        due = self.group.current
        if not (due.select_due or due.weights_due):
            return
        stack = self.stack
        previous = None if due.select_due else due.operators
        assert stack.layout is not None
        grid_tokens = tokens[:, : stack.tokens]
        due.operators = stack.root.config.plan(grid_tokens, stack.layout, self.place, previous)
        if not torch.compiler.is_compiling():
            stack.root.count_refresh(selected=previous is None)
        due.select_due = due.weights_due = False

    def _merge(self, tokens: Tensor) -> Tensor:
        queries = self.operators.queries
        assert queries is not None
        merged = self.stack.on_grid_tokens(queries.merge, tokens, self.stack.tokens)
        # Kept until the run ends, so that what merging blurred stays sharp: x + U(T(Mx) - Mx).
        self.stack.entered = tokens, merged
        if not torch.compiler.is_compiling():
            for part in self.parts:
                part.seen = merged.shape[1]
        return merged

    def _unmerge(self, output: Tensor) -> Tensor:
        queries = self.operators.queries
        assert queries is not None
        assert self.stack.entered is not None
        tokens, merged = self.stack.entered
        self.stack.entered = None
        return tokens + self.stack.on_grid_tokens(queries.unmerge, output - merged, self.stack.kept)

    def place_rotary(self, kwargs: Kwargs, operator: Operator | None) -> None:
        """Give position embeddings only at the tokens that are left."""
        if self.block.rotary is None or operator is None:
            return
        if operator.destinations is None:
            raise MergeRuntimeError(
                f"{type(self.stack.root.config).__name__} keeps tokens that sit nowhere on the grid, which a model "
                f"with rotary position embeddings cannot use: choose ToMA."
            )
        self._rotary_at(kwargs, operator.destinations[0], self.stack.tokens)

    def _rotary_at(self, kwargs: Kwargs, places: Tensor, tokens: int) -> None:
        rotary = self.block.rotary
        if rotary is None or kwargs.get(rotary.argument) is None:
            return
        trailing = self.stack.trailing
        if trailing:
            places = torch.cat([places, torch.arange(tokens, tokens + trailing, device=places.device)])
        kwargs[rotary.argument] = rotary.at(kwargs[rotary.argument], places, tokens + trailing)


class StackSite:
    """Learns the grid of its blocks and decides, once per grid, what becomes of them."""

    def __init__(self, stack: Stack, root: RootSite) -> None:
        self.stack = stack
        self.root = root
        self.blocks: list[BlockSite] = []  # those not skipped
        self.grid: tuple[int, ...] | None = None
        self.reason = "not called yet"  # why nothing is merged here, where nothing is
        self.entered: tuple[Tensor, Tensor] | None = None  # a run's tokens before and after merging
        self.layout: Layout | None = None
        self.tokens = self.kept = self.trailing = 0
        self.reorders = False
        self._settled_for: Hashable = None
        self._handles: list[RemovableHandle] = []

    def attach(self) -> None:
        self._handles = [self.stack.owner.register_forward_pre_hook(self.enter, with_kwargs=True)]
        for block in self.blocks:
            block.attach()

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        for block in self.blocks:
            block.detach()

    def enter(self, module: nn.Module, args: Args, kwargs: Kwargs) -> None:
        grid = self.stack.grid(args, kwargs)
        self.trailing = self.stack.trailing(args, kwargs)
        device = next(value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)).device
        if (grid, device, self.root.positional) != self._settled_for:
            self._settle(grid, device)
            self._settled_for = grid, device, self.root.positional

    def _settle(self, grid: tuple[int, ...], device: torch.device) -> None:
        """Fix everything that depends on the grid alone."""
        positional = self.root.positional
        self.grid = grid
        self.tokens = math.prod(grid)
        self.layout, self.reason = self._layout(grid)
        if positional and self.root.config.scope != "site" and self.layout is not None:
            raise MergeRuntimeError(
                f"this call looks tokens up by position in {', '.join(positional)}-attention (IP-Adapter masks do), "
                f"which merging whole blocks would shorten: use scope='site'."
            )
        regions = None if self.layout is None else self.layout.regions
        # A padded order is longer than the grid, so tokens cannot stay in it between parts.
        self.reorders = regions is not None and not (regions.natural or regions.padded or positional)
        if self.layout is not None:
            self.kept = self.layout.kept
        if regions is not None:
            self.regions: Regions = regions.to(device)
        for block in self.blocks:
            block.active = self.layout is not None
            block.place = Place(block.block.name, block.index, block.count, self.reorders, self.stack.one_for_batch)
            block.group = self.root.plan.group(self._group_key(block, grid))
            for part in block.parts:
                part.active = block.active and self._merges_in(part.part)

    def _layout(self, grid: tuple[int, ...]) -> tuple[Layout | None, str]:
        config = self.root.config
        if self.tokens < config.min_tokens:
            return None, f"{self.tokens} tokens, fewer than min_tokens={config.min_tokens}"
        try:
            return config.layout(grid), ""
        except CannotMerge as reason:
            return None, str(reason)
        except ConfigError as error:
            raise ConfigError(f"{self.stack.name}: {error}") from None

    def _merges_in(self, part: Part) -> bool:
        assert self.layout is not None
        if set(part.kinds) & set(self.root.positional):
            return False
        only_keys = self.layout.kept == self.layout.tokens and self.layout.kept_keys < self.layout.tokens
        return part.own_keys or not only_keys

    def _group_key(self, block: BlockSite, grid: tuple[int, ...]) -> Hashable:
        share = self.root.config.share
        if share == "layer":
            return block.block.name
        # Blocks in region order and blocks in grid order cannot read each other's operators.
        where = self.stack.level if share == "level" else ""
        return where, grid, self.reorders

    def on_grid_tokens(self, change: Any, tokens: Tensor, count: int) -> Tensor:
        """Apply `change` to the `count` tokens of the grid, leaving text before and other tokens behind as they are."""
        before = tokens.shape[1] - count - self.trailing
        if before == 0 and self.trailing == 0:
            whole: Tensor = change(tokens)
            return whole
        pieces = tokens.split([before, count, self.trailing], dim=1)
        return torch.cat([pieces[0], change(pieces[1]), pieces[2]], dim=1)


def chosen_parts(parts: tuple[Part, ...], kinds: tuple[str, ...]) -> list[Part]:
    """The parts that hold nothing but the wanted kinds; one that holds several replaces those that hold fewer."""
    wanted = [part for part in parts if set(part.kinds) <= set(kinds)]
    return [part for part in wanted if not any(set(part.kinds) < set(other.kinds) for other in wanted)]


def _tokens(args: Args, kwargs: Kwargs) -> Tensor:
    tokens: Tensor = args[0] if args else kwargs["hidden_states"]
    return tokens


def _with_tokens(args: Args, kwargs: Kwargs, tokens: Tensor) -> tuple[Args, Kwargs]:
    return ((tokens, *args[1:]), kwargs) if args else ((), {**kwargs, "hidden_states": tokens})


def _output(output: Any, position: int | None) -> Tensor:
    tokens: Tensor = output if isinstance(output, Tensor) else output[position]
    return tokens


def _with_output(output: Any, position: int | None, tokens: Tensor) -> Any:
    if isinstance(output, Tensor):
        return tokens
    return tuple(tokens if index == position else item for index, item in enumerate(output))
