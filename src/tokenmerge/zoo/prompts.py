"""What happens to prompts of the embedded models on their way into the text encoder.

Both are forward pre-hooks on the text encoders, so the pipelines and tokenizers stay stock and can be saved.
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline
    from torch import nn

WORD_END = "</w>"  # how the CLIP tokenizer marks a token that ends a word


class UnknownWordWarning(UserWarning):
    """A prompt holds words that the embedded model has never seen."""


def unknown_words_message(unknown: Iterable[str], known: frozenset[str]) -> str:
    """One sentence for each unknown word, with up to three near known words.

    >>> unknown_words_message(["hart"], frozenset({"heart", "star"}))
    "The model does not know 'hart' (near words it knows: heart)."
    """
    sentences = []
    for word in unknown:
        near = difflib.get_close_matches(word, sorted(known), n=3, cutoff=0.6)
        hint = f"near words it knows: {', '.join(near)}" if near else "nor any word near it"
        sentences.append(f"The model does not know {word!r} ({hint}).")
    return " ".join(sentences)


def _words(tokenizer: Any, ids: list[int]) -> Iterator[str]:
    """The words of one tokenized prompt, pieces put together again."""
    special = set(tokenizer.all_special_ids)
    pieces: list[int] = []
    for token_id in ids:
        if token_id in special:
            continue
        pieces.append(token_id)
        if tokenizer.convert_ids_to_tokens(token_id).endswith(WORD_END):
            yield tokenizer.decode(pieces)
            pieces = []
    if pieces:  # cut off in the middle of a word
        yield tokenizer.decode(pieces)


def warn_of_unknown_words(pipe: DiffusionPipeline, known: frozenset[str]) -> None:
    """Let the pipeline warn of words outside `known`; punctuation is let through."""
    tokenizer = pipe.tokenizer

    def check(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        rows = (args[0] if args else kwargs["input_ids"]).tolist()
        words = [word for row in rows for word in _words(tokenizer, row)]
        unknown = dict.fromkeys(w for w in words if w not in known and any(c.isalnum() for c in w))
        if unknown:
            warnings.warn(unknown_words_message(unknown, known), UnknownWordWarning, stacklevel=2)

    pipe.text_encoder.register_forward_pre_hook(check, with_kwargs=True)


def trim_padding(text_encoder: nn.Module, length: int) -> None:
    """Let a text encoder read only the first `length` tokens of a row: (B, L) -> (B, length)."""

    def trim(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (args[0][:, :length], *args[1:])

    text_encoder.register_forward_pre_hook(trim)
