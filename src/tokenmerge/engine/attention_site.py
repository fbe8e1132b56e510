"""The hooks on the attention of a part: what its keys stand for, where they are, and which of them are left out."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.hooks import RemovableHandle

from tokenmerge.engine.detail import unmerged
from tokenmerge.engine.hooked import Args, Kwargs, argument_names, drop_hooks, given_argument, tokens_of, with_argument
from tokenmerge.engine.inner_attention import Asked, InnerAttention
from tokenmerge.errors import MergeRuntimeError

if TYPE_CHECKING:
    from tokenmerge.engine.part_site import PartSite


class AttentionSite:
    """Tells the attention of one part what it could not know of tokens that were merged."""

    def __init__(self, site: PartSite) -> None:
        self.site = site
        self.part = site.part
        self.block = site.block
        self._module: nn.Module | None = None
        self._arguments: tuple[str, ...] = ()
        self._inner: InnerAttention | None = None  # entered while the attention runs
        self._handles: list[RemovableHandle] = []

    def attach(self, module: nn.Module) -> None:
        """Hook into the attention as it is now. After the part's entrance, which says how many keys are left."""
        self._module = module
        if "self" not in self.part.kinds:
            return
        self._arguments = argument_names(module)
        self._handles = [module.register_forward_pre_hook(self.attend, with_kwargs=True)]
        if self.part.mask == "inside" or self._reads_inside:
            self._handles.append(module.register_forward_hook(self.attended, always_call=True))

    def detach(self, module: nn.Module) -> None:
        """module: the attention as it is now, which may be a copy of the one that was hooked into."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        drop_hooks(module, self)
        self._forget_interrupted()

    def attend(self, module: nn.Module, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs] | None:
        """Tell the attention what its merged tokens stand for, and where they are."""
        if not self.site.active and not (self.site.lends and self.given_all):
            return None
        self._forget_interrupted()
        if self.site.lends:
            self._enter_inner(module, args, kwargs, asked=Asked(None, self._remember_answers))
            return None
        names = self._arguments
        rotary = self.block.block.rotary
        if rotary is not None and self.block.stack.root.config.scope == "site" and not self.given_all:
            name = rotary.attention_argument or rotary.argument
            placed = self.block.placed(given_argument(names, args, kwargs, name))
            args, kwargs = with_argument(names, args, kwargs, name, placed)
        given = given_argument(names, args, kwargs, "attention_mask")
        mask = self._mask(given, args, kwargs)
        read = self._read(args, kwargs)
        asked = self._asked(args, kwargs)
        fewer = read is not None or asked is not None
        if mask is not None or fewer:
            self.refuse_perturbed(module)
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
    def takes_keys_apart(self) -> bool:
        """Would its attention, as it is now, take keys that are not those of its queries?"""
        module = self._module
        return self.part.own_keys and module is not None and not _is_fused(module) and not _is_perturbed(module)

    def refuse_fused(self, module: nn.Module) -> None:
        if _is_fused(module):
            raise MergeRuntimeError(
                f"{self.site.name} makes queries, keys and values by one fused projection, so keys cannot be merged "
                f"apart from queries: call unfuse_qkv_projections(), or merge both alike (ToMA without kv_ratio)."
            )

    def refuse_perturbed(self, module: nn.Module) -> None:
        if _is_perturbed(module):
            raise MergeRuntimeError(
                f"{self.site.name} is perturbed for guidance (PAG) by a processor that attends to a part of the batch "
                f"at a time, so its keys can neither be weighed nor merged apart from queries: leave the block alone "
                f"with skip_blocks, or use proportional=False without kv_ratio."
            )

    @property
    def _reads_inside(self) -> bool:
        """Are some of its keys left out where attention reads them? It makes them of the tokens its queries are of."""
        return self.part.keys_apart and not self.part.own_keys and self.block.stack.root.config.keys_apart

    @property
    def given_all(self) -> bool:
        """Is its attention given all tokens, and queries left out inside too, because keys are of all tokens?"""
        return self._reads_inside and self.block.keys_of_all

    @property
    def _given(self) -> int:
        """How many tokens of the grid its attention is given."""
        return self.block.stack.tokens if self.given_all else self.block.kept

    @property
    def _reads_fewer(self) -> bool:
        """Does it read fewer keys at this step? A ratio that changes may keep all, or as many as other tokens."""
        operators = self.block.operators
        apart = operators.keys_apart or self.given_all
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
        if queries is None or not self.given_all:
            return None
        assert queries.destinations is not None, "what has keys to pick has places for its queries"
        memory = self.site.details.get(self.part.outputs[0])

        def spread(answers: Tensor) -> Tensor:
            return self.site.on_grid(lambda grid: unmerged(queries, grid, memory, picks=True), answers, merged=True)

        return Asked(self._in_sequence(queries.destinations, args, kwargs), spread)

    def _remember_answers(self, answers: Tensor) -> Tensor:
        return self.site.remember(answers, self.part.outputs[0])

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
        even = self.block.even or self.site.thinned is not None
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
        text = given_argument(self._arguments, args, kwargs, "encoder_hidden_states")
        others = tokens_of(args, kwargs).shape[1] - self._given + (0 if text is None else text.shape[1])
        behind = others if self.part.text == "last" else self.block.stack.trailing
        return others - behind, behind


def _is_fused(attention: nn.Module) -> bool:
    """Does one projection make queries, keys and values? Unfusing leaves that in place, and another processor."""
    return type(getattr(attention, "processor", None)).__name__.startswith("Fused")


def _is_perturbed(attention: nn.Module) -> bool:
    """Does perturbed-attention guidance (PAG) have a processor of its own there?"""
    return type(getattr(attention, "processor", None)).__name__.startswith("PAG")


def _for_others(mask: Tensor, before: int, kept: int, behind: int, dtype: torch.dtype) -> Tensor:
    """A model's own mask (..., keys) over keys that are not of the grid; it never hides those of the grid."""
    if mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, -math.inf)
    grid = mask.new_zeros(*mask.shape[:-1], kept)
    return torch.cat([mask[..., :before], grid, mask[..., mask.shape[-1] - behind :]], dim=-1).to(dtype)
