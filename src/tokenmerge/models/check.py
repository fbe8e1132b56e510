"""What is wrong with how a family describes a model, in sentences: found without running it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import nn

from tokenmerge.models.arguments import argument_names, takes_argument
from tokenmerge.models.base import Block, Part, Stack

KINDS = ("self", "cross", "mlp")


def problems_of(model: nn.Module, stacks: Iterable[Stack]) -> Iterator[str]:
    """A sentence for each thing in the description that cannot work."""
    modules = set(model.modules())
    seen: set[str] = set()
    for stack in stacks:
        if stack.owner not in modules:
            yield (
                f"the owner of stack {stack.name!r} is no module of the model: give the module whose arguments "
                f"tell the grid, such as the model itself."
            )
        for block in stack.blocks:
            if block.name in seen:
                yield f"two blocks are called {block.name!r}: give each block its own name."
            seen.add(block.name)
            yield from _problems_of_block(block)


def _problems_of_block(block: Block) -> Iterator[str]:
    names = () if block.rotary is None else _several(block.rotary.argument)
    for name in (*names, *_several(block.argument)):
        if not takes_argument(block.module, name, in_kwargs=True):
            yield f"{block.name} takes no argument {name!r}: it takes {_listed(block.module)}."
    for part in block.parts:
        yield from _problems_of_part(block, part)


def _problems_of_part(block: Block, part: Part) -> Iterator[str]:
    where = block.path(part)
    if not part.kinds or not set(part.kinds) <= set(KINDS):
        yield f"{where} holds {part.kinds!r}: kinds are some of {', '.join(map(repr, KINDS))}."
    paths = [path for path in (part.module, part.leaves, part.attention) if path]
    missing = [path for path in paths if not _has(block.module, path)]
    for path in missing:
        children = ", ".join(name for name, _ in block.module.named_children())
        yield f"{block.name} has no module {path!r}: it has {children}."
    if missing or "self" not in part.kinds:
        return
    attention = block.module.get_submodule(part.attention_path)
    name = f"{block.name}.{part.attention_path}".rstrip(".")
    if part.mask in ("3d", "4d") and not takes_argument(attention, part.mask_argument, in_kwargs=False):
        yield (
            f"{name} takes no argument {part.mask_argument!r} for a mask over its keys: it takes {_listed(attention)}. "
            f"Name it with mask_argument; or give mask='inside', if it calls scaled_dot_product_attention and takes no "
            f"mask; or mask='none', with which keys have equal weights."
        )
    if part.mask == "inside" and isinstance(attention, nn.MultiheadAttention):
        yield (
            f"{name} is a MultiheadAttention, whose own attention cannot be reached from outside: give mask='none', "
            f"with which keys have equal weights."
        )
    if part.own_keys and block.form_of(part).channels_first:
        yield f"{name} is channels_first, so it cannot be given separate keys: leave own_keys out."
    elif part.own_keys and not takes_argument(attention, part.context_argument, in_kwargs=False):
        yield (
            f"{name} takes no argument {part.context_argument!r} for separate keys: it takes {_listed(attention)}. "
            f"Name it with context_argument, or leave own_keys out."
        )


def _several(names: str | tuple[str, ...]) -> tuple[str, ...]:
    return names if isinstance(names, tuple) else (names,) if names else ()


def _listed(module: nn.Module) -> str:
    return ", ".join(argument_names(module)) or "arguments that its forward does not name"


def _has(module: nn.Module, path: str) -> bool:
    try:
        module.get_submodule(path)
    except AttributeError:
        return False
    return True
