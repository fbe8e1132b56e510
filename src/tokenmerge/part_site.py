"""The hooks on a part of a block: merge before it, unmerge after it, tell its attention what keys stand for."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.hooks import RemovableHandle

from tokenmerge.caches import keeps_outputs
from tokenmerge.detail import remember, unmerged
from tokenmerge.errors import MergeRuntimeError
from tokenmerge.hooked import (
    Args,
    Kwargs,
    argument_names,
    drop_hooks,
    given_argument,
    joined,
    tokens_of,
    with_argument,
    with_changed,
    with_tokens,
)
from tokenmerge.inner_attention import Asked, InnerAttention
from tokenmerge.models.base import Part
from tokenmerge.plan import Memory

if TYPE_CHECKING:
    from tokenmerge.block_site import BlockSite


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
        self._attention_arguments: tuple[str, ...] = ()
        self._inner: InnerAttention | None = None  # entered while the attention runs
        # Where similarity is computed on what self-attention is given, the plan is made where that is made, before
        # whatever else is given it: at the entrance of the part that holds most.
        self._refreshes = block.stack.root.config.signal_of_attention and "self" in part.kinds
        around = (other for other in block.block.parts if set(part.kinds) < set(other.kinds))
        self._signal_part = max((part, *around), key=lambda each: len(each.kinds))
        self._handles: list[RemovableHandle] = []

    def attach(self) -> None:
        """Hook into the modules as they are now; again where one has been replaced, as LoRA does with layers."""
        modules = self._current_modules()
        if self._modules and all(old is new for old, new in zip(self._modules, modules, strict=True)):
            return
        self.detach()
        self._modules = modules
        entrance, attention, exit_, source = modules
        held = [self.block.block.module] if self.part.attention else dict.fromkeys(modules[:3])
        self._inside = [inner for module in held for inner in module.modules()]
        merges_here = self.block.stack.root.config.scope == "site"
        if self._refreshes and self._signal_part.enters_at == "input":
            self._handles.append(source.register_forward_pre_hook(self.see, with_kwargs=True))
        elif self._refreshes:
            self._handles.append(source.register_forward_hook(self.see_output))
        if self.part.own_keys or (merges_here and self.part.enters_at == "input"):
            self._handles.append(entrance.register_forward_pre_hook(self.enter, with_kwargs=True))
        elif merges_here:
            self._handles.append(entrance.register_forward_hook(self.enter_output))
        if merges_here:
            self._handles.append(exit_.register_forward_hook(self.leave))
        if "self" in self.part.kinds:
            # After the entrance, where that is the same module: it has to see how many keys are left.
            self._attention_arguments = argument_names(attention)
            self._handles.append(attention.register_forward_pre_hook(self.attend, with_kwargs=True))
            if self.part.mask == "inside" or self._reads_inside:
                self._handles.append(attention.register_forward_hook(self.attended, always_call=True))

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._modules = []
        for module in self._current_modules():
            drop_hooks(module, self)
        self._forget_interrupted()

    def _current_modules(self) -> list[nn.Module]:
        part = self.part
        names = part.module, part.attention or part.module, part.leaves or part.module, self._signal_part.module
        return [self.block.block.module.get_submodule(name) for name in names]

    @property
    def name(self) -> str:
        return f"{self.block.block.name}.{self.part.module}"

    @property
    def cached(self) -> bool:
        """Does a cache keep what is computed here? It would give tokens that were merged by a plan long forgotten."""
        inside = (module for module in self._inside if module is not self.block.block.module)
        return keeps_outputs(inside)

    def see(self, module: nn.Module, args: Args, kwargs: Kwargs) -> None:
        if self.active:
            self._refresh(tokens_of(args, kwargs))

    def see_output(self, module: nn.Module, args: Args, output: Any) -> None:
        if self.active:
            self._refresh(output if isinstance(output, Tensor) else output[self._signal_part.outputs[0]])

    def enter(self, module: nn.Module, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs] | None:
        if not self.active and self.thinned is None:
            return None
        tokens = tokens_of(args, kwargs)
        if self.active:
            operators = self.block.operators
            if self.part.own_keys and operators.keys_apart:
                self._refuse_fused(module)
                self._refuse_perturbed(module)
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
        if self._given_all:
            return None  # all that was left out is back, and remembered, where attention answers
        if self.lends:
            with_changed(output, self.part.outputs, self._remember)
        queries = self.block.operators.queries if self.active else None
        if queries is None:
            return None

        def restored(tokens: Tensor, position: int) -> Tensor:
            memory = self.details.get(position)
            return self._on_grid(lambda grid: unmerged(queries, grid, memory), tokens, merged=True)

        return with_changed(output, self.part.outputs, restored)

    def _remember(self, tokens: Tensor, position: int) -> Tensor:
        stack = self.block.stack
        grid = stack.pieces(tokens, stack.tokens, self.part.text == "last")[1]
        remember(self.details[position], stack.in_order(grid))
        return tokens

    @torch.no_grad()
    def _refresh(self, tokens: Tensor) -> None:
        if not self.block.refresh_due:
            return
        self._refuse_too_few(tokens)
        signal = self.block.stack.pieces(tokens, self.block.stack.tokens, self.part.text == "last")[1]
        if self.block.stack.root.config.signal == "keys":
            assert self.part.keys is not None, "it was looked for when merging was applied"
            signal = self.part.keys(self._modules[1], signal).to(signal.dtype)
        self.block.refresh(signal)

    def _merge(self, tokens: Tensor) -> Tensor:
        self._refuse_too_few(tokens)
        queries = self.block.operators.queries
        merged = tokens
        if queries is not None and not self._given_all:
            merged = self._on_grid(queries.merge, tokens, merged=False)
        if not torch.compiler.is_compiling():
            self.seen = tokens.shape[1] - self.block.stack.tokens + self.block.kept
        return merged

    @property
    def takes_keys_apart(self) -> bool:
        """Would its attention, as it is now, take keys that are not those of its queries?"""
        return self.part.own_keys and not _is_fused(self._modules[1]) and not _is_perturbed(self._modules[1])

    def _refuse_fused(self, module: nn.Module) -> None:
        if _is_fused(module):
            raise MergeRuntimeError(
                f"{self.name} makes queries, keys and values by one fused projection, so keys cannot be merged apart "
                f"from queries: call unfuse_qkv_projections(), or merge both alike (ToMA without kv_ratio)."
            )

    def _refuse_perturbed(self, module: nn.Module) -> None:
        if _is_perturbed(module):
            raise MergeRuntimeError(
                f"{self.name} is perturbed for guidance (PAG) by a processor that attends to a part of the batch at a "
                f"time, so its keys can neither be weighed nor merged apart from queries: leave the block alone with "
                f"skip_blocks, or use proportional=False without kv_ratio."
            )

    def _refuse_too_few(self, tokens: Tensor) -> None:
        stack = self.block.stack
        if tokens.shape[1] < stack.tokens:
            raise MergeRuntimeError(
                f"{self.block.block.name}.{self.part.module} was given {tokens.shape[1]} of the {stack.tokens} tokens "
                f"of its grid. If feed-forward chunking is on, turn it off with disable_forward_chunking(), or leave "
                f"'mlp' out of parts."
            )

    def _on_grid(self, change: Callable[[Tensor], Tensor], tokens: Tensor, merged: bool) -> Tensor:
        stack = self.block.stack
        before, grid, behind = stack.pieces(
            tokens, self.block.kept if merged else stack.tokens, self.part.text == "last"
        )
        return joined(before, change(grid), behind)

    def attend(self, module: nn.Module, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs] | None:
        """Tell the attention what its merged tokens stand for, and where they are."""
        if not self.active and not (self.lends and self._given_all):
            return None
        self._forget_interrupted()
        if self.lends:
            self._enter_inner(module, args, kwargs, asked=Asked(None, self._remember_answers))
            return None
        names = self._attention_arguments
        rotary = self.block.block.rotary
        if rotary is not None and self.block.stack.root.config.scope == "site" and not self._given_all:
            name = rotary.attention_argument or rotary.argument
            placed = self.block.placed(given_argument(names, args, kwargs, name))
            args, kwargs = with_argument(names, args, kwargs, name, placed)
        given = given_argument(names, args, kwargs, "attention_mask")
        mask = self._mask(given, args, kwargs)
        read = self._read(args, kwargs)
        asked = self._asked(args, kwargs)
        fewer = read is not None or asked is not None
        if mask is not None or fewer:
            self._refuse_perturbed(module)
        if fewer or (mask is not None and self.part.mask == "inside"):
            self._enter_inner(module, args, kwargs, read, mask, asked)
            # One that was given (Qwen-Image's is, in diffusers before 0.39) is in ours, and as long as all tokens.
            ours = mask is not None and given is not None
            return with_argument(names, args, kwargs, "attention_mask", None) if ours else (args, kwargs)
        return (args, kwargs) if mask is None else with_argument(names, args, kwargs, "attention_mask", mask)

    def _enter_inner(
        self,
        module: nn.Module,
        args: Args,
        kwargs: Kwargs,
        read: Tensor | None = None,
        mask: Tensor | None = None,
        asked: Asked | None = None,
    ) -> None:
        length = sum(self._other_keys(args, kwargs)) + self._given
        self._inner = InnerAttention(module, length, read, mask, asked)
        self._inner.enter()

    def _forget_interrupted(self) -> None:
        if self._inner is not None:
            self._inner.leave_late()
            self._inner = None

    def attended(self, module: nn.Module, args: Args, output: Any) -> None:
        """Called even if the attention fails, so that what it was to read never reaches another."""
        inner, self._inner = self._inner, None
        if inner is None:
            return
        inner.leave()
        if output is not None and not inner.used:
            raise MergeRuntimeError(
                f"{self.block.block.name} does not use PyTorch's scaled_dot_product_attention, so its keys can neither "
                f"be weighed by what they stand for nor merged apart from queries: use the native attention backend, "
                f"or proportional=False without kv_ratio."
            )

    @property
    def _reads_inside(self) -> bool:
        """Are some of its keys left out where attention reads them? It makes them of the tokens its queries are of."""
        return self.part.keys_apart and not self.part.own_keys and self.block.stack.root.config.keys_apart

    @property
    def _given_all(self) -> bool:
        """Is its attention given all tokens, and queries left out inside too, because keys are of all tokens?"""
        return self._reads_inside and self.block.keys_of_all

    @property
    def _given(self) -> int:
        """How many tokens of the grid its attention is given."""
        return self.block.stack.tokens if self._given_all else self.block.kept

    @property
    def _reads_fewer(self) -> bool:
        """Does it read fewer keys at this step? A ratio that changes may keep all, or as many as other tokens."""
        operators = self.block.operators
        apart = operators.keys_apart or self._given_all
        return self._reads_inside and apart and operators.keys is not None

    def _read(self, args: Args, kwargs: Kwargs) -> Tensor | None:
        """(B, K) which keys of its sequence the attention reads; None where it reads all."""
        if not self._reads_fewer:
            return None
        keys = self.block.operators.keys
        assert keys is not None
        assert keys.destinations is not None, "misfit refuses methods that do not pick their keys"
        return self._in_sequence(keys.destinations, args, kwargs)

    def _asked(self, args: Args, kwargs: Kwargs) -> Asked | None:
        """Which queries of its sequence the attention is asked; None where it is asked all that it is given."""
        queries = self.block.operators.queries
        if queries is None or not self._given_all:
            return None
        assert queries.destinations is not None, "what has keys to pick has places for its queries"
        memory = self.details.get(self.part.outputs[0])

        def spread(answers: Tensor) -> Tensor:
            return self._on_grid(lambda grid: unmerged(queries, grid, memory, picks=True), answers, merged=True)

        return Asked(self._in_sequence(queries.destinations, args, kwargs), spread)

    def _remember_answers(self, answers: Tensor) -> Tensor:
        return self._remember(answers, self.part.outputs[0])

    def _in_sequence(self, places: Tensor, args: Args, kwargs: Kwargs) -> Tensor:
        """(B, M) among the tokens of the grid -> (B, M + others): the same in the whole sequence, and all others."""
        before, behind = self._other_keys(args, kwargs)
        grid = self._given
        others = torch.arange(before + grid + behind, device=places.device).expand(places.shape[0], -1)
        return torch.cat([others[:, :before], places + before, others[:, before + grid :]], dim=1)

    @property
    def weighs(self) -> bool:
        """Does the attention get weights for what its keys stand for? Not where all are of the grid and equal."""
        stack = self.block.stack
        each_for_itself = self.block.kept_keys == stack.tokens
        alone = self.part.text == "none" and not stack.trailing
        even = self.block.even or self.thinned is not None
        return stack.root.weighs(self.part) and not each_for_itself and not (alone and even)

    def _mask(self, given: Tensor | None, args: Args, kwargs: Kwargs) -> Tensor | None:
        """The additive mask over keys, the merged ones weighted by what they stand for (design: proportional)."""
        keys = self.block.operators.keys
        mass = keys.mass if keys is not None and self.weighs else None
        if keys is None or (mass is None and given is None):
            return None
        if given is not None and self.part.text == "none":
            raise MergeRuntimeError(
                f"{self.block.block.name} was given an attention mask over image tokens, which merging cannot follow: "
                f"leave 'self' out of parts."
            )
        tokens = tokens_of(args, kwargs)
        kept = self.block.kept_keys
        weights = tokens.new_zeros(tokens.shape[0], kept) if mass is None else mass.log().to(tokens.dtype)
        before, behind = self._other_keys(args, kwargs)
        weights = functional.pad(weights, (before, behind))
        weights = weights[:, None] if self.part.mask == "3d" and not self._reads_fewer else weights[:, None, None]
        return weights if given is None else weights + _for_others(given, before, kept, behind, weights.dtype)

    def _other_keys(self, args: Args, kwargs: Kwargs) -> tuple[int, int]:
        """How many keys that are not of the grid stand before and behind those of the grid."""
        if self.part.own_keys:
            return 0, 0
        text = given_argument(self._attention_arguments, args, kwargs, "encoder_hidden_states")
        others = tokens_of(args, kwargs).shape[1] - self._given + (0 if text is None else text.shape[1])
        behind = others if self.part.text == "last" else self.block.stack.trailing
        return others - behind, behind


def _is_fused(attention: nn.Module) -> bool:
    """Does one projection make queries, keys and values?"""
    return getattr(attention, "fused_projections", False) and not hasattr(attention, "to_kv")


def _is_perturbed(attention: nn.Module) -> bool:
    """Does perturbed-attention guidance (PAG) have a processor of its own there?"""
    return type(getattr(attention, "processor", None)).__name__.startswith("PAG")


def _for_others(mask: Tensor, before: int, kept: int, behind: int, dtype: torch.dtype) -> Tensor:
    """A model's own mask (..., keys) over keys that are not of the grid; it never hides those of the grid."""
    if mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, -math.inf)
    grid = mask.new_zeros(*mask.shape[:-1], kept)
    return torch.cat([mask[..., :before], grid, mask[..., mask.shape[-1] - behind :]], dim=-1).to(dtype)
