"""Values that no browser would send are answered with a sentence, and leave no traceback in the server's log."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import gradio as gr

from tokenmerge.web.runs import sentence_of


def answer_quietly(page: gr.Blocks) -> None:
    """Make every component of a page refuse values that it cannot hold without a traceback."""
    for block in page.blocks.values():
        if hasattr(block, "preprocess"):
            block.preprocess = _refusing(block.preprocess, getattr(block, "label", None) or "this control")


def answered(handler: Callable[..., Any]) -> Callable[..., Any]:
    """A handler whose errors reach the page as a sentence."""

    @functools.wraps(handler)
    def handle(*args: Any, **kwargs: Any) -> Any:
        try:
            return handler(*args, **kwargs)
        except Exception as error:
            raise gr.Error(sentence_of(error), print_exception=False) from None

    return handle


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
