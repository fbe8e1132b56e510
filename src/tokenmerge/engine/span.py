"""Spans: merge tokens where they begin, unmerge where they end. One class for parts, blocks, runs, transformers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tokenmerge.engine.arguments import TokenArgument, joined, with_changed
from tokenmerge.engine.carrier import Carrier
from tokenmerge.engine.compatibility import refuse_fused, refuse_perturbed
from tokenmerge.engine.correction import record_full, unmerge_corrected
from tokenmerge.engine.program import SpanRow
from tokenmerge.engine.state import Group, Memory
from tokenmerge.errors import MergeRuntimeError
from tokenmerge.methods.references import plan_of
from tokenmerge.models.arguments import Args, Kwargs, given_argument, with_argument

if TYPE_CHECKING:
    from tokenmerge.engine.session import Session


class Span(Carrier[SpanRow]):
    """Merges tokens where it begins and unmerges them where it ends."""

    def __init__(self, session: Session, name: str, argument: TokenArgument, leaves: TokenArgument) -> None:
        """argument, leaves: how tokens stand in what goes in where it begins, and in what comes out where it ends."""
        super().__init__(session, name)
        self._argument = argument
        self._leaves = leaves
        self._entered: tuple[Tensor, Tensor | None] | None = None  # tokens of the grid, as they came and merged
        self._image: Tensor | None = None  # (B, C, H, W) what a transformer was given
        self._zero: Tensor | None = None  # () what a transformer is given in its place
        self._has_merged = False  # and its tokens were merged since
        self.begin_call()

    def hand(self, row: SpanRow | None, group: Group, memories: dict[int, Memory]) -> None:
        super().hand(row, group, memories)
        self.forget_call()

    def forget_call(self) -> None:
        self._entered = self._image = None
        self._has_merged = False

    # -- the two halves ----------------------------------------------------------------------------------------------

    def enter(self, tokens: Tensor) -> Tensor:
        """(B, L, C) -> (B, L', C): the tokens of the grid merged, if the row says so; others as they are."""
        row = self.row
        assert row is not None
        before, grid, behind = row.given_pieces(tokens)
        if row.act == "record":
            self._entered = (self._own(grid), None) if row.residual else None
            return tokens
        if row.gather:
            assert row.layout.regions is not None
            grid = row.layout.regions.gather(grid)
        if row.refresh and self.group.current.refresh_due:
            self.refresh(grid)
        if row.act == "merge":
            grid = self._merged(grid)
        elif not row.gather:
            return tokens
        tokens = joined(before, grid, behind)
        if row.act == "merge" and not torch.compiler.is_compiling():
            self.session.noted[row] = tokens.shape[1]
        return tokens

    def _merged(self, grid: Tensor) -> Tensor:
        assert self.row is not None
        queries = self.operators.queries
        if queries is None:
            return grid
        merged = queries.merge(grid)
        # Kept until the span ends: x + U(T(Mx) - Mx).
        self._entered = (grid, self._own(merged)) if self.row.residual else None
        return merged

    def _own(self, tokens: Tensor) -> Tensor:
        """Tokens as they are now: a copy, if the block writes into those it is given."""
        assert self.row is not None
        return tokens.clone() if self.row.first.in_place else tokens

    def exit(self, tokens: Tensor, position: int = 0) -> Tensor:
        """(B, L', C) -> (B, L, C): unmerged and corrected, or recorded as it is."""
        row = self.row
        assert row is not None
        entered, self._entered = self._entered, None
        merges = row.act == "merge"
        if row.act == "record":
            grid = row.given_pieces(tokens)[1]
            record_full(self.memories[position], row.in_plan_order(grid if entered is None else grid - entered[0]))
            return tokens
        before, grid, behind = row.pieces(tokens, row.layout.kept if merges else row.layout.tokens)
        queries = self.operators.queries if merges else None
        if queries is not None:
            memory = self.memories.get(position)
            if entered is None:
                grid = unmerge_corrected(queries, grid, memory)
            else:
                assert entered[1] is not None
                grid = entered[0] + unmerge_corrected(queries, grid - entered[1], memory)
        if row.scatter:
            assert row.layout.regions is not None
            grid = row.layout.regions.scatter(grid)
        return row.rejoined(before, grid, behind)

    def refresh(self, grid: Tensor) -> None:
        """Make what is due from the tokens of the grid: new destinations, or new weights for those there are."""
        row, due = self.row, self.group.current
        assert row is not None
        previous = None if due.select_due else due.operators
        seed = self.session.sampling_seed
        context = row.context if seed is None else dataclasses.replace(row.context, seed=seed)
        with _in_full_precision(grid.device):
            due.operators = plan_of(self.session.config, grid, row.layout, context, previous)
        if not torch.compiler.is_compiling() and not row.layout.fixed:
            self.session.count_refresh(selected=previous is None)
        due.select_due = due.weights_due = False

    # -- where tokens come from and go to: hooks ---------------------------------------------------------------------

    def enter_argument(self, module: nn.Module, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs] | None:
        """The tokens are the module's first argument."""
        row = self.row
        if row is None or self._is_on_text():
            return None
        tokens = self._tokens(self._argument, self._argument.given(args, kwargs))
        self._check(tokens)
        if row.separate_keys and row.act == "merge":
            assert row.part is not None
            refuse_fused(self.name, module)
            refuse_perturbed(self.name, module)
            keys = self.operators.keys
            context = tokens if keys is None else keys.merge(tokens)
            args, kwargs = with_argument(self._argument.names, args, kwargs, row.part.context_argument, context)
        return self._argument.write(args, kwargs, self.enter(tokens), row.layout.grid)

    def _is_on_text(self) -> bool:
        """Whether a module that a block calls more than once is called for something else than the image now."""
        assert self.row is not None
        if self.row.part is None or self.row.part.calls == 1:
            return False
        self._on_text = self._calls % self.row.part.calls > 0
        self._calls += 1
        return self._on_text

    def begin_call(self) -> None:
        """Count from the beginning, whatever an interrupt has left."""
        self._calls, self._on_text = 0, False

    def enter_output(self, module: nn.Module, args: Args, output: Any) -> Any:
        """The tokens are the module's output."""
        row = self.row
        if row is None or row.act == "record":
            return None
        assert row.part is not None

        def entered(given: Tensor, _: int) -> Tensor:
            tokens = self.enter(self._check(self._tokens(self._argument, given)))
            return self._argument.as_given(tokens, given.dim(), row.layout.grid)

        return with_changed(output, row.part.outputs, entered)

    def exit_output(self, module: nn.Module, args: Args, output: Any) -> Any:
        """The tokens are the module's output."""
        row = self.row
        if row is None or not row.ends or self._on_text:
            return None

        def left(given: Tensor, position: int) -> Tensor:
            tokens = self.exit(self._tokens(self._leaves, given), position)
            return self._leaves.as_given(tokens, given.dim(), row.layout.grid)

        changed = with_changed(output, row.positions, left)
        return None if row.act == "record" else changed

    def enter_transformer(self, owner: nn.Module, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs] | None:
        """The tokens are an image behind a norm: keep it, and let the owner add what it makes to nothing."""
        row = self.row
        assert row is not None
        image = self._argument.given(args, kwargs)
        self._check_samples(image)
        self._image, self._has_merged = image, False
        if row.act == "record":
            return None
        if given_argument(self._argument.names, args, kwargs, "attention_mask") is not None:
            refuse_image_mask(row.first.name)
        nothing = self._zero_like(image).expand(*image.shape[:2], row.layout.kept, 1)
        return self._argument.write(args, kwargs, nothing)

    def _zero_like(self, image: Tensor) -> Tensor:
        """A single zero, kept from step to step: making one is a launch."""
        if torch.compiler.is_compiling():
            return image.new_zeros(())
        zero = self._zero
        if zero is None or zero.dtype != image.dtype or zero.device != image.device:
            zero = self._zero = image.new_zeros(())
        return zero

    def give_norm_the_image(self, norm: nn.Module, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs] | None:
        return ((self._image,), kwargs) if self._wraps_merged else None

    def merge_behind_norm(self, norm: nn.Module, args: Args, output: Tensor) -> Tensor | None:
        if not self._wraps_merged:
            return None
        self._has_merged = True
        return self.enter(_as_tokens(output)).transpose(1, 2).unsqueeze(-1)

    @property
    def _wraps_merged(self) -> bool:
        return self._image is not None and self.row is not None and self.row.act == "merge"

    def exit_transformer(self, owner: nn.Module, output: Any) -> Any:
        """The owner's output: the image, plus what was made of its tokens."""
        row, image = self.row, self._image
        self._image = None
        if row is None or image is None:
            return None
        if row.act == "record":
            _with_image(output, lambda full: self.exit(_as_tokens(full - image)))
            return None
        if not self._has_merged:
            raise MergeRuntimeError(
                f"{self.name} went on without normalising its input, so that its tokens were not merged: something "
                f"answers in its place. Take that out, or use scope='block' or 'site'."
            )

        def restored(added: Tensor) -> Tensor:
            return image + self.exit(_as_tokens(added)).transpose(1, 2).reshape(image.shape)

        return _with_image(output, restored)

    def _tokens(self, argument: TokenArgument, given: Any) -> Tensor:
        """(B, L, C)"""
        if isinstance(given, Tensor) and (given.dim() > 3 if argument.channels_first else given.dim() == 3):
            return argument.as_tokens(given)
        found = f"of shape {tuple(given.shape)}" if isinstance(given, Tensor) else f"as {type(given).__name__}"
        wanted = "(batch, channels, height, width)" if argument.channels_first else "(batch, tokens, channels)"
        raise MergeRuntimeError(
            f"{self.name} has tokens {found}, and its family says that they come as {wanted}: in the family's Block or "
            f"Part set argument or output to where tokens stand, or channels_first to their form."
        )

    def _check(self, tokens: Tensor) -> Tensor:
        """Tokens that are fewer than the plan is for are refused with the reason that is likely."""
        row = self.row
        assert row is not None
        self._check_samples(tokens)
        if tokens.shape[1] < row.layout.tokens:
            raise MergeRuntimeError(
                f"{self.name} was given {tokens.shape[1]} of the {row.layout.tokens} tokens of its grid. If "
                f"feed-forward chunking is on, turn it off with disable_forward_chunking(), or leave 'mlp' out of "
                f"parts. In a family of your own, grid is wrong: tokenmerge.testing.check_family says how."
            )
        return tokens

    def _check_samples(self, tokens: Tensor) -> None:
        row, samples = self.row, self.session.batch
        assert row is not None
        # Video UNets have frames among their samples.
        if tokens.shape[0] % samples:
            raise MergeRuntimeError(
                f"{row.first.name} was given {tokens.shape[0]} of the {samples} samples of its call, and its plan is "
                f"for all of them. FasterCache does this where guidance doubles the batch: switch it off with "
                f"disable_cache(), or take merging out with handle.remove()."
            )


def refuse_image_mask(block: str) -> None:
    raise MergeRuntimeError(
        f"{block} was given an attention mask over image tokens, which merging cannot follow: leave 'self' out of "
        f"parts."
    )


def _with_image(output: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The owner's output, in each of the forms that diffusers gives it, with its image changed."""
    if dataclasses.is_dataclass(output) and not isinstance(output, type):
        return dataclasses.replace(output, sample=change(output.sample))  # type: ignore[attr-defined]
    return with_changed(output, (0,), lambda image, _: change(image))


def _as_tokens(image: Tensor) -> Tensor:
    """(B, C, H, W) -> (B, H * W, C)"""
    return image.flatten(2).transpose(1, 2)


def _in_full_precision(device: torch.device) -> AbstractContextManager[Any]:
    """Similarities are too close to each other for half precision, into which autocast would bring them."""
    if not torch.amp.is_autocast_available(device.type):  # the meta device has none
        return nullcontext()
    return torch.autocast(device.type, enabled=False)
