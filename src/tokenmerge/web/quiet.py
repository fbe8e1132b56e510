"""Values that no browser would send are answered with a sentence, and leave no traceback in the server's log."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any

import gradio as gr

from tokenmerge.web.runs import sentence_of


def answer_quietly(page: gr.Blocks) -> None:
    """Make a page answer every call with a result or a sentence."""
    page.process_api = _answering(page.process_api)  # type: ignore[method-assign]
    for block in page.blocks.values():
        if hasattr(block, "preprocess"):
            block.preprocess = _refusing(block.preprocess, getattr(block, "label", None) or "this control")


def _answering(process: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Gradio's way from a call to its answer; it prints the traceback of any error but `gr.Error`."""

    @functools.wraps(process)
    async def answer(*args: Any, **kwargs: Any) -> Any:
        try:
            return await process(*args, **kwargs)
        except gr.Error:
            raise
        except Exception as error:
            raise gr.Error(sentence_of(error), print_exception=False) from None

    return answer


def _refusing(preprocess: Callable[[Any], Any], label: str) -> Callable[[Any], Any]:
    @functools.wraps(preprocess)
    def refuse(payload: Any) -> Any:
        try:
            return preprocess(payload)
        except gr.Error as error:
            raise gr.Error(f"{label}: {error.message}", print_exception=False) from None
        except Exception:
            raise gr.Error(f"{label} cannot hold {str(payload)[:100]!r}.", print_exception=False) from None

    return refuse
