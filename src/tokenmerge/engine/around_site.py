"""The hooks on the owner of a stack: merge once for all of it, its projections before and behind the blocks too.

A transformer in a UNet takes an image, normalises it, projects it onto its blocks' width, and adds to the image what
it projects back. Here the image is normalised whole, the rest runs on merged tokens: x + U P(T(M norm(x))).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from tokenmerge.engine.detail import remember, unmerged
from tokenmerge.engine.hooked import Args, Kwargs, tokens_of, with_changed, with_tokens
from tokenmerge.errors import MergeRuntimeError

if TYPE_CHECKING:
    from tokenmerge.engine.stack_site import StackSite


class AroundSite:
    """Runs the owner of a stack on merged tokens, which it takes for an image of one column."""

    def __init__(self, stack: StackSite) -> None:
        self.stack = stack
        self.image: Tensor | None = None  # (B, C, H, W) what the owner was given
        self._merged = False  # and it has been merged since
        self._norm: nn.Module | None = None
        self._handles: list[RemovableHandle] = []

    @property
    def possible(self) -> bool:
        """Is the owner one that can run on merged tokens, by a forward of its own? A cache's may leave it out."""
        return bool(self.stack.stack.norm) and "forward" not in vars(self.stack.stack.owner)

    def attach(self) -> None:
        """Hook into the owner and its norm; again where that has been replaced."""
        stack = self.stack.stack
        if not stack.norm or self._norm is stack.owner.get_submodule(stack.norm):
            return
        self.detach()
        self._norm = stack.owner.get_submodule(stack.norm)
        self._handles = [
            stack.owner.register_forward_pre_hook(self.enter, with_kwargs=True),
            self._norm.register_forward_pre_hook(self.normalise),
            self._norm.register_forward_hook(self.merge),
            # First: the hooks of others are to see an image.
            stack.owner.register_forward_hook(self.leave, prepend=True),
        ]

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._norm = self.image = None

    def enter(self, owner: nn.Module, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs] | None:
        """Keep the image; the owner adds what it makes to nothing, for the sum is made here."""
        stack = self.stack
        self._merged = False
        self.image = image = tokens_of(args, kwargs) if stack.around else None
        if image is None or not stack.first.active:
            return None
        return with_tokens(args, kwargs, image.new_zeros(()).expand(*image.shape[:2], stack.first.kept, 1))

    def normalise(self, norm: nn.Module, args: Args) -> Args | None:
        """All tokens count in the mean and the variance of the image."""
        return (self.image,) if self._merges else None

    def merge(self, norm: nn.Module, args: Args, output: Tensor) -> Tensor | None:
        if not self._merges:
            return None
        self._merged = True
        return self.stack.first.merge_whole(self.stack.in_order(_tokens(output))).transpose(1, 2).unsqueeze(-1)

    def leave(self, owner: nn.Module, args: Args, output: Any) -> Any:
        image, self.image = self.image, None
        first = self.stack.first if self.stack.blocks else None
        if image is None or first is None or not (first.active or first.lends):
            return None
        self.refuse_unmerged()

        def remembered(whole: Tensor) -> Tensor:
            assert first.detail is not None
            remember(first.detail, self.stack.in_order(_tokens(whole - image)))
            return whole

        def restored(added: Tensor) -> Tensor:
            assert first.operators.queries is not None
            tokens = unmerged(first.operators.queries, _tokens(added), first.detail)
            tokens = self.stack.regions.scatter(tokens) if self.stack.reorders else tokens
            return image + tokens.transpose(1, 2).reshape(image.shape)

        return _with_image(output, restored if first.active else remembered)

    @property
    def _merges(self) -> bool:
        return self.image is not None and self.stack.first.active

    def refuse_unmerged(self) -> None:
        if self.stack.first.active and not self._merged:
            raise MergeRuntimeError(
                f"{self.stack.stack.name} went on without normalising its input, so that its tokens were not merged: "
                f"something answers in its place. Take that out, or use scope='block' or 'site'."
            )


def _with_image(output: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The owner's output, in each of the forms that diffusers gives it, with its image changed."""
    if dataclasses.is_dataclass(output) and not isinstance(output, type):
        return dataclasses.replace(output, sample=change(output.sample))  # type: ignore[attr-defined]
    return with_changed(output, (0,), lambda image, _: change(image))


def _tokens(image: Tensor) -> Tensor:
    """(B, C, H, W) -> (B, H * W, C)"""
    return image.flatten(2).transpose(1, 2)
