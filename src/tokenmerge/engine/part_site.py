"""The hooks on a part of a block: merge before it, unmerge after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from tokenmerge.engine.attention_site import AttentionSite
from tokenmerge.engine.caches import keeps_outputs
from tokenmerge.engine.detail import remember, unmerged
from tokenmerge.engine.hooked import Args, Kwargs, drop_hooks, joined, tokens_of, with_changed, with_tokens
from tokenmerge.engine.plan import Memory
from tokenmerge.errors import MergeRuntimeError
from tokenmerge.models.base import Part

if TYPE_CHECKING:
    from tokenmerge.engine.block_site import BlockSite


class PartSite:
    """Runs one part of a block on merged tokens."""

    def __init__(self, part: Part, block: BlockSite) -> None:
        self.part = part
        self.block = block
        self.active = False  # set when the grid is known
        self.lends = False  # this step runs whole, and what it gives is remembered
        self.thinned: Tensor | None = None  # (K,) the tokens that it takes keys from at this step, of those it runs on
        self.details: dict[int, Memory] = {}  # by where the tokens stand in the output
        self.seen: int | None = None  # tokens the part ran on in its last call, or that its attention was asked for
        self._modules: list[nn.Module] = []
        self._inside: list[nn.Module] = []  # every module between where tokens enter and where they leave
        self._handles: list[RemovableHandle] = []
        self.attention = AttentionSite(self)

    def attach(self) -> None:
        """Hook into the modules as they are now; again where one has been replaced, as LoRA does with layers."""
        modules = self._current_modules()
        if self._modules and all(old is new for old, new in zip(self._modules, modules, strict=True)):
            return
        self.detach()
        self._modules = modules
        entrance, attention, exit_ = modules
        held = [self.block.block.module] if self.part.attention else dict.fromkeys(modules)
        self._inside = [inner for module in held for inner in module.modules()]
        merges_here = self.block.stack.root.config.scope == "site"
        if self.part.own_keys or (merges_here and self.part.enters_at == "input"):
            self._handles.append(entrance.register_forward_pre_hook(self.enter, with_kwargs=True))
        elif merges_here:
            self._handles.append(entrance.register_forward_hook(self.enter_output))
        if merges_here:
            self._handles.append(exit_.register_forward_hook(self.leave))
        self.attention.attach(attention)

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._modules = []
        modules = self._current_modules()
        for module in modules:
            drop_hooks(module, self)
        self.attention.detach(modules[1])

    def _current_modules(self) -> list[nn.Module]:
        part = self.part
        names = part.module, part.attention or part.module, part.leaves or part.module
        return [self.block.block.module.get_submodule(name) for name in names]

    @property
    def name(self) -> str:
        return f"{self.block.block.name}.{self.part.module}"

    @property
    def cached(self) -> bool:
        """Does a cache keep what is computed here? It would give tokens that were merged by a plan long forgotten."""
        inside = (module for module in self._inside if module is not self.block.block.module)
        return keeps_outputs(inside)

    def enter(self, module: nn.Module, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs] | None:
        if not self.active and self.thinned is None:
            return None
        tokens = tokens_of(args, kwargs)
        if self.active:
            operators = self.block.operators
            if self.part.own_keys and operators.keys_apart:
                self.attention.refuse_fused(module)
                self.attention.refuse_perturbed(module)
                keys = tokens if operators.keys is None else operators.keys.merge(tokens)
                kwargs = {**kwargs, "encoder_hidden_states": keys}
            if self.block.stack.root.config.scope == "site":
                tokens = self._merge(tokens)
            args, kwargs = with_tokens(args, kwargs, tokens)
        if self.thinned is not None:
            kwargs = {**kwargs, "encoder_hidden_states": tokens.index_select(1, self.thinned)}
        return args, kwargs

    def enter_output(self, module: nn.Module, args: Args, output: Any) -> Any:
        if not self.active:
            return None
        return with_changed(output, self.part.outputs, lambda tokens, _: self._merge(tokens))

    def leave(self, module: nn.Module, args: Args, output: Any) -> Any:
        if self.attention.given_all:
            return None  # all that was left out is back, and remembered, where attention answers
        if self.lends:
            with_changed(output, self.part.outputs, self.remember)
        queries = self.block.operators.queries if self.active else None
        if queries is None:
            return None

        def restored(tokens: Tensor, position: int) -> Tensor:
            memory = self.details.get(position)
            return self.on_grid(lambda grid: unmerged(queries, grid, memory), tokens, merged=True)

        return with_changed(output, self.part.outputs, restored)

    def remember(self, tokens: Tensor, position: int) -> Tensor:
        stack = self.block.stack
        grid = stack.pieces(tokens, stack.tokens, self.part.text == "last")[1]
        remember(self.details[position], stack.in_order(grid))
        return tokens

    def _merge(self, tokens: Tensor) -> Tensor:
        self._refuse_too_few(tokens)
        queries = self.block.operators.queries
        merged = tokens
        if queries is not None and not self.attention.given_all:
            merged = self.on_grid(queries.merge, tokens, merged=False)
        if not torch.compiler.is_compiling():
            self.seen = tokens.shape[1] - self.block.stack.tokens + self.block.kept
        return merged

    def _refuse_too_few(self, tokens: Tensor) -> None:
        stack = self.block.stack
        if tokens.shape[1] < stack.tokens:
            raise MergeRuntimeError(
                f"{self.block.block.name}.{self.part.module} was given {tokens.shape[1]} of the {stack.tokens} tokens "
                f"of its grid. If feed-forward chunking is on, turn it off with disable_forward_chunking(), or leave "
                f"'mlp' out of parts."
            )

    def on_grid(self, change: Callable[[Tensor], Tensor], tokens: Tensor, merged: bool) -> Tensor:
        stack = self.block.stack
        before, grid, behind = stack.pieces(
            tokens, self.block.kept if merged else stack.tokens, self.part.text == "last"
        )
        return joined(before, change(grid), behind)
