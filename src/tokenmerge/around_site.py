"""The hooks on the owner of a stack: merge once for all of it, its projections before and behind the blocks too.

A transformer in a UNet takes an image, normalises it, projects it onto its blocks' width, and adds to the image what
it projects back. Here the image is normalised whole, the rest runs on merged tokens: x + U P(T(M norm(x))).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from tokenmerge.detail import remember, unmerged
from tokenmerge.hooked import Args, Kwargs, tokens_of, with_changed, with_tokens

if TYPE_CHECKING:
    from tokenmerge.stack_site import StackSite


class AroundSite:
    """Runs the owner of a stack on merged tokens, which it takes for an image of one column."""

    def __init__(self, stack: StackSite) -> None:
        self.stack = stack
        self.image: Tensor | None = None  # (B, C, H, W) what the owner was given
        self._handles: list[RemovableHandle] = []

    def attach(self) -> None:
        norm = self.stack.stack.norm
        if norm is None:
            return
        owner = self.stack.stack.owner
        self._handles = [
            owner.register_forward_pre_hook(self.enter, with_kwargs=True),
            norm.register_forward_pre_hook(self.normalise),
            norm.register_forward_hook(self.merge),
            owner.register_forward_hook(self.leave),
        ]

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self.image = None

    def enter(self, owner: nn.Module, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs] | None:
        """Keep the image; the owner adds what it makes to nothing, for the sum is made here."""
        self.image = image = tokens_of(args, kwargs) if self.stack.around else None
        if image is None or self.stack.first.lends:
            return None
        return with_tokens(args, kwargs, image.new_zeros(()).expand(*image.shape[:2], self.stack.first.kept, 1))

    def normalise(self, norm: nn.Module, args: Args) -> Args | None:
        """All tokens count in the mean and the variance of the image."""
        return (self.image,) if self._merges else None

    def merge(self, norm: nn.Module, args: Args, output: Tensor) -> Tensor | None:
        if not self._merges:
            return None
        stack = self.stack
        return stack.first.merge_whole(stack.in_order(_tokens(output))).transpose(1, 2).unsqueeze(-1)

    def leave(self, owner: nn.Module, args: Args, output: Any) -> Any:
        image, self.image = self.image, None
        if image is None:
            return None
        stack = self.stack
        detail = stack.first.detail

        def remembered(whole: Tensor, _: int) -> Tensor:
            assert detail is not None
            remember(detail, stack.in_order(_tokens(whole - image)))
            return whole

        def restored(added: Tensor, _: int) -> Tensor:
            queries = stack.first.operators.queries
            assert queries is not None
            tokens = unmerged(queries, _tokens(added), detail)
            tokens = stack.regions.scatter(tokens) if stack.reorders else tokens
            return image + tokens.transpose(1, 2).reshape(image.shape)

        return with_changed(output, (0,), remembered if stack.first.lends else restored)

    @property
    def _merges(self) -> bool:
        return self.image is not None and not self.stack.first.lends


def _tokens(image: Tensor) -> Tensor:
    """(B, C, H, W) -> (B, H * W, C)"""
    return image.flatten(2).transpose(1, 2)
