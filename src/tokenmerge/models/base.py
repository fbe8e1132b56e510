"""How a model family says where its tokens are. One small file per family fills this in."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tokenmerge.errors import ConfigError, MergeRuntimeError
from tokenmerge.models.arguments import argument_of

# For `Call.fixed_order`.
TIME_PER_TOKEN = "this call gives each token its own timestep"


@dataclass(frozen=True)
class Part:
    """A stretch of a block that can run on merged tokens, from where they enter to where they leave.

    Tokens come as (B, L, C), where the L hold the grid's tokens, perhaps with text before and others behind.
    """

    kinds: tuple[str, ...]  # what it holds: "self", "cross", "mlp"; one of several kinds replaces those of one
    module: str  # tokens are merged at this module's input; "" is the block itself
    leaves: str = ""  # and unmerged at the output of this one; the same module if empty
    enters_at: Literal["input", "output"] = "input"  # "output": merged as they come out of `module`
    # The module that attention takes its mask and position embeddings from, if it is not `module` itself. "" is the
    # block: some call attention as a function.
    attention: str | None = None
    # Takes keys and values for its tokens from `context_argument`, if given. If it makes them of the tokens its queries
    # are of instead, PyTorch's own attention inside it can be made to read fewer.
    own_keys: bool = False
    # How the attention takes an additive mask over keys: "3d" as (B, 1, keys) and "4d" as (B, 1, 1, keys), both as
    # `mask_argument`; "inside" takes none, but calls scaled_dot_product_attention, which is given one; "none" neither.
    mask: Literal["none", "3d", "4d", "inside"] = "none"
    mask_argument: str = "attention_mask"
    cached_keys: bool = False  # keys of what stands before its tokens may come from a cache that the model keeps
    text_mask: bool = False  # the mask that it is given is over text alone; it adds the image's itself
    # The attention's argument for tokens that are not among its first: keys for `own_keys`, text in joint attention.
    context_argument: str = "encoder_hidden_states"
    # Where text stands in a sequence that holds both: "none" says that it never does.
    text: Literal["none", "first", "last"] = "none"
    outputs: tuple[int, ...] = (0,)  # which items hold tokens, if the module returns a tuple
    calls: int = 1  # how often a block calls `module`: the first call is on the image's tokens, others are on text
    rotary: bool = False  # cross-attention that turns its queries by the block's position embeddings
    argument: str = ""  # `module`'s argument that holds the tokens; the first if empty
    channels_first: bool = False  # `module` takes and returns (B, C, H, W), and (B, C, M, 1) too
    tokens_first: bool = False  # `module` takes and returns (L, B, C)
    residual: bool | None = None  # as in `Block`; most parts add nothing to their input, because the block does

    @property
    def can_separate_keys(self) -> bool:
        """Whether it can read other keys than those of its queries, as an argument or inside PyTorch's attention."""
        return self.own_keys or ("self" in self.kinds and self.mask != "none")

    @property
    def attention_path(self) -> str:
        return self.module if self.attention is None else self.attention


@dataclass(frozen=True)
class Rotary:
    """Position embeddings that blocks are given as an argument, one row a token.

    argument: Its name in the block; several names if they come as several arguments, such as ("cos", "sin").
    at: (embedding, places, tokens) -> the embedding with its `tokens` image rows replaced by those at `places`, a (M,)
        or (B, M) tensor; rows of text stay. Of several arguments `embedding` is a tuple, and so is what it returns.
    attention_argument: Its name, or names, in the attention module, if those are others.
    per_sample: Whether it has a batch axis, (B or 1, S, ...), so that each sample can keep its own tokens. With rows of
        (S, D), which all samples share, leave it False: then all samples keep the same tokens.
    """

    argument: str | tuple[str, ...]
    at: Callable[[Any, Tensor, int], Any]
    attention_argument: str | tuple[str, ...] = ""
    per_sample: bool = False


@dataclass(frozen=True)
class Block:
    """A transformer block: takes (B, L, C) tokens and returns them."""

    name: str
    module: nn.Module
    parts: tuple[Part, ...]
    output: int | None = None  # where the tokens stand, if the block returns a tuple
    rotary: Rotary | None = None
    in_place: bool = False  # it writes its results into the tokens it is given
    argument: str = ""  # the argument that holds the tokens; the first if empty
    arguments: tuple[str, ...] = ()  # names of its positional arguments, if its forward takes *args
    channels_first: bool = False  # it takes and returns (B, C, H, W), and (B, C, M, 1) too
    tokens_first: bool = False  # it takes and returns (L, B, C)
    residual: bool | None = None  # it returns the tokens it was given plus something; None: measured at the first call

    def path(self, part: Part) -> str:
        """The name of one of its parts."""
        return f"{self.name}.{part.module}" if part.module else self.name

    def form_of(self, part: Part | None) -> Block | Part:
        """What says in which form tokens enter one of its parts: the part, unless that is the block itself."""
        return self if part is None or not part.module else part


def no_tokens(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    return 0


def nowhere(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    return ()


@dataclass(frozen=True)
class Stack:
    """Consecutive blocks on one grid, with nothing added to the tokens in between (but see `Call.interleaved`)."""

    name: str
    level: str  # stacks with the same level share a plan under share="level"
    owner: nn.Module  # called before the blocks, with what is needed to tell the grid
    grid: Callable[[Sequence[Any], Mapping[str, Any]], tuple[int, ...]]
    blocks: tuple[Block, ...]
    # Tokens behind the grid's, such as those of a reference image: never merged, unless `references` are.
    trailing: Callable[[Sequence[Any], Mapping[str, Any]], int] = no_tokens
    # The grids of reference images, in the order in which their tokens, which are all of `trailing`, stand there.
    references: Callable[[Sequence[Any], Mapping[str, Any]], tuple[tuple[int, ...], ...]] = nowhere
    # Where the grid's tokens begin in the sequences of blocks, if they are not the last but for `trailing`: one number
    # for all samples, or one for each, where a padded batch has texts of different lengths before the image.
    starts: Callable[[Sequence[Any], Mapping[str, Any]], tuple[int, ...]] = nowhere
    downsample: int = 1  # how much coarser, per side, its grid is than the finest that the model has
    # Why its blocks need all tokens in grid order, where they do: then only parts can be merged.
    fixed_order: str = ""
    # The owner's module that normalises the (B, C, H, W) it is given, where it does nothing else to all tokens but add
    # what it makes of them.
    norm: str = ""

    @property
    def one_for_batch(self) -> bool:
        """All samples must keep the same tokens: rotary embeddings without a batch axis need it."""
        return any(block.rotary is not None and not block.rotary.per_sample for block in self.blocks)


@dataclass(frozen=True)
class Call:
    """What the root model's arguments say about a call.

    timestep: How much noise is left, in any unit: it falls from step to step towards 0 and is never negative. Progress,
        by which `within` and ratios over the steps go, is 1 - timestep / first timestep. A larger one begins another
        image. For a model whose time rises from 0 to 1 set the family's `timestep_rises`, for one that takes
        log(sigma) / 4 set `timestep_logarithmic`. None if the call has none: then every call is the next step of one
        image. A tensor is read by the engine, without waiting for the device where it can (engine/clock.py): pass it on
        as it came.
    """

    timestep: Any  # a number, a tensor or None
    signature: Hashable  # batch, size, dtype, device: a change of any forgets the plan
    # Parts in which this call looks tokens up by position (IP-Adapter masks do, in cross-attention): those parts
    # are left alone, and tokens stay in grid order.
    positional: tuple[str, ...] = ()
    fixed_order: str = ""  # as in `Stack`, for this call: because each token has its own timestep, say
    # Blocks are left out, or something is added to the tokens between them (ControlNets do, in transformers): each
    # block must give back all tokens in grid order.
    interleaved: bool = False
    # The guidance branch, if the host says so. Then nothing is guessed: every call is of one image until `reset`.
    branch: Hashable = None
    full: bool = False  # this call runs on all tokens, whatever the schedule says
    repeatable: bool = True  # to run it a second time changes nothing elsewhere; a cache would count another step
    # For samplers that add noise: the clean image of this call is the first times its input less the second times its
    # output. Skipped steps then forecast clean images, because outputs follow the new noise.
    clean: tuple[float, float] | None = None


class Family:
    """A family of models that tokenmerge knows. A new one fills in `stacks` and `example_inputs`."""

    name: str = ""
    class_name: str = ""  # of the models, in diffusers or elsewhere
    pixels: int = 8  # of the image, a side, to a latent: how far its autoencoder shrinks images
    video: bool = False  # its grids are of frames, rows and columns
    cannot_weigh: str = ""  # why attention cannot weigh keys by what they stand for, where it cannot
    latent: str = "hidden_states"  # the model's argument that holds the noisy image
    timestep: str = "timestep"  # and the one that says how much noise is left (see `Call.timestep`)
    timestep_rises: bool = False  # it goes from 0 to 1 as noise is removed; in most models it falls
    timestep_logarithmic: bool = False  # it is log(sigma) / 4, as EDM has it
    # Arguments that an image is made from, such as text or labels. They distinguish images, and guidance branches.
    conditions: tuple[str, ...] = ("encoder_hidden_states", "class_labels")
    # Arguments whose values, not only shapes, tell the grid. They are small, and kept as they are for counting.
    positions: tuple[str, ...] = ()
    between_blocks: tuple[str, ...] = ()  # arguments that make a call `interleaved` (see `Call`), if they are given
    always_interleaved: bool = False
    # Tests hold that its blocks add what they make to their input and its parts do not, so neither is measured.
    known_residuals: bool = False

    def recognises(self, model: nn.Module) -> bool:
        """Whether this model is one of the family."""
        return is_a(model, self.class_name)

    @property
    def timestep_unit(self) -> Literal["noise", "rises", "logarithm"]:
        """What the model is given as its timestep. The engine turns it into the noise that is left, on the host."""
        return "rises" if self.timestep_rises else "logarithm" if self.timestep_logarithmic else "noise"

    def stacks(self, model: nn.Module) -> list[Stack]:
        """Where its tokens can be merged."""
        raise NotImplementedError

    def read_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
        """What the root model was called with, by name. `args` is always empty."""
        interleaved = self.always_interleaved or any(kwargs.get(name) is not None for name in self.between_blocks)
        return Call(kwargs.get(self.timestep), self.signature(kwargs), interleaved=interleaved)

    def signature(self, kwargs: Mapping[str, Any]) -> Hashable:
        """`Call.signature`. If other arguments than the latent's shape tell the grid, it holds the grid too."""
        return signature_of(argument_of(kwargs, self.latent, "the family's latent"))

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        """Arguments of a call for an image of height x width pixels, on the model's device, for counting and timing."""
        raise NotImplementedError

    def countable(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a call as the bare architecture takes them: it cannot read an IP-Adapter's images, say."""
        extras = kwargs.get("joint_attention_kwargs")
        if not extras:
            return kwargs
        readable = {name: value for name, value in extras.items() if name != "ip_adapter_image_embeds"}
        return {**kwargs, "joint_attention_kwargs": readable}

    def prepare_meta(self, model: nn.Module) -> None:
        """Make a model on the meta device callable, if its own code asks tensors for values that they lack there."""

    def default_skip(self, blocks: int) -> int:
        """How many of the first blocks are left alone unless the user says otherwise."""
        return 0


def chosen_parts(parts: tuple[Part, ...], kinds: tuple[str, ...], separate_keys: bool = False) -> list[Part]:
    """The parts that hold nothing but the wanted kinds; one that holds several replaces those that hold fewer.

    separate_keys: keys are computed from all tokens, so self-attention is called with them all, and so is whatever else
        is in the same part, if self-attention has no part for it alone.
    """
    if separate_keys and "self" in kinds:
        fewest = min((len(part.kinds) for part in parts if "self" in part.kinds), default=0)
        return [
            part
            for part in parts
            if (len(part.kinds) == fewest if "self" in part.kinds else set(part.kinds) <= set(kinds))
        ]
    wanted = [part for part in parts if set(part.kinds) <= set(kinds)]
    return [part for part in wanted if not any(set(part.kinds) < set(other.kinds) for other in wanted)]


def rows_at(rows: Tensor, places: Tensor, tokens: int) -> Tensor:
    """The last `tokens` rows of a position embedding replaced by those at `places`; rows of text before them stay.

    rows: (S, D), or (B, S, ...) with one batch entry for all samples or one for each; places: (M,), or (B, M) for rows
        with a batch axis.

    >>> rows_at(torch.arange(5.0)[:, None], torch.tensor([2, 0]), 3).flatten().tolist()
    [0.0, 1.0, 4.0, 2.0]
    """
    if not isinstance(rows, Tensor):
        raise MergeRuntimeError(
            f"rows_at is given a {type(rows).__name__} as rotary embedding, not a tensor: use cos_sin_at for a pair, "
            f"or write an `at` of your own."
        )
    axis = 0 if rows.dim() == 2 else 1
    if rows.dim() == places.dim() == 2:
        raise MergeRuntimeError(
            f"a rotary embedding of shape {tuple(rows.shape)} has no batch axis, but its family says per_sample=True, "
            f"with which each sample keeps its own tokens: leave per_sample False, or give rows of (1, tokens, ...)."
        )
    if rows.shape[axis] < tokens:
        raise MergeRuntimeError(
            f"a rotary embedding of shape {tuple(rows.shape)} has {rows.shape[axis]} rows for {tokens} tokens: rows_at "
            f"takes (tokens, D) or (batch, tokens, ...); write an `at` of your own for other forms."
        )
    rows = rows.to(places.device, non_blocking=True)  # some models make them on the host
    before, image = torch.split(rows, [rows.shape[axis] - tokens, tokens], dim=axis)
    if places.dim() == 2:
        samples = torch.arange(places.shape[0], device=places.device)[:, None]
        image = image.expand(places.shape[0], *image.shape[1:])[samples, places]
        before = before.expand(places.shape[0], *before.shape[1:])
    else:
        image = image.index_select(axis, places)
    return torch.cat([before, image], dim=axis)


def cos_sin_at(embedding: tuple[Tensor, Tensor], places: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
    """`rows_at` for the pair of cosines and sines that most models pass."""
    if isinstance(embedding, Tensor):
        raise MergeRuntimeError("cos_sin_at is given one tensor, not a pair of cosines and sines: use rows_at.")
    cos, sin = embedding
    return rows_at(cos, places, tokens), rows_at(sin, places, tokens)


def blocks_of(
    model: nn.Module,
    name: str,
    parts: Part | tuple[Part, ...] | Callable[[Any], tuple[Part, ...]],
    output: int | None = None,
    rotary: Rotary | None = None,
    **more: Any,
) -> tuple[Block, ...]:
    """The blocks that a model holds in a list called `name`, or the one block of that name.

    parts: those of each block, or a function of the block's module. Other options are those of `Block`.
    """
    given = (parts,) if isinstance(parts, Part) else parts
    try:
        found: Any = model.get_submodule(name)
    except AttributeError:
        children = ", ".join(child for child, _ in model.named_children())
        raise ConfigError(f"{type(model).__name__} has no module {name!r}: it has {children}.") from None
    named = [(name, found)]
    if hasattr(found, "__iter__"):
        items = found.items() if isinstance(found, nn.ModuleDict) else enumerate(found)
        named = [(f"{name}.{key}", module) for key, module in items]
    return tuple(
        Block(path, module, given(module) if callable(given) else given, output, rotary, **more)
        for path, module in named
    )


def is_a(model: object, *class_names: str) -> bool:
    """isinstance by name, so that diffusers need not be imported to ask."""
    return any(kind.__name__ in class_names for kind in type(model).__mro__)


def patch_grid(
    patch: int | tuple[int, ...], args: Sequence[Any], kwargs: Mapping[str, Any], name: str = "hidden_states"
) -> tuple[int, ...]:
    """The grid of a model whose first argument, `name`, is the latent, and which makes a token of each patch of it."""
    patches = (patch, patch) if isinstance(patch, int) else patch
    sides = argument_of(kwargs, name, "patch_grid's name").shape[-len(patches) :]
    return tuple(side // length for side, length in zip(sides, patches, strict=True))


def new_like(model: nn.Module) -> dict[str, Any]:
    """The device and dtype of a model's weights, as arguments for a new tensor."""
    like = next(model.parameters())
    return {"device": like.device, "dtype": like.dtype}


def signature_of(tensor: torch.Tensor) -> Hashable:
    return tuple(tensor.shape), tensor.dtype, tensor.device
