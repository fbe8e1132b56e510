"""Which kernels attention can take with merged keys: what explain() says about it."""

from __future__ import annotations

from collections.abc import Iterator

from tokenmerge.engine.attention import AttentionHook
from tokenmerge.engine.program import AttentionRow
from tokenmerge.engine.session import Session
from tokenmerge.models.attention_backends import UNKNOWN, Backend, backend_of

# On a CUDA device, in this order.
WAYS = {
    "image": "flash kernels without a mask, over image keys and over the others",
    "channel": "flash kernels without a mask, with a channel more for the weights",
    "small": "a mask of a row, because attention is small, or none for backends that take none (flash, cuDNN, Sage)",
    "mask": "a mask of a row, because its processor does not call PyTorch's attention",
}


def attention_kernels(session: Session, ran: Session) -> str:
    """What merging does to the attention kernel; "" if no key has a weight, so that any kernel can be used.

    ran: a session on a twin of the model, which has just run merged.
    """
    modules = {block.name: block.module for stack in session.stacks for block in stack.stack.blocks}
    found = set()
    for hook, row in _weighing(ran):
        backend = backend_of(modules[row.block.name].get_submodule(row.part.attention_path))
        found.add(_way(row, backend, hook.is_small))
    if not found:
        return ""
    ways = "; ".join(text for way, text in WAYS.items() if way in found)
    return f"keys weigh what they stand for (proportional): on a CUDA device {ways}; elsewhere a mask of a row"


def _weighing(session: Session) -> Iterator[tuple[AttentionHook, AttentionRow]]:
    for stack in session.stacks:
        for block in stack.described.merging:
            for carrier, row in stack.rows_of(block):
                if isinstance(carrier, AttentionHook) and row.weighs:
                    yield carrier, row


def _way(row: AttentionRow, backend: Backend, is_small: bool) -> str:
    if backend is UNKNOWN and row.part.mask != "inside":
        return "mask"
    if backend.takes_mask and is_small:
        return "small"
    others = row.part.text != "none" or row.trailing > 0
    return "image" if row.layout.equal_mass and others else "channel"
