"""Prompts: every known word is one token, unknown ones are named with near known ones."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from tokenmerge.zoo import UnknownWordWarning
from tokenmerge.zoo.folders import known_words
from tokenmerge.zoo.loading import load_folder
from tokenmerge.zoo.prompts import unknown_words_message


@pytest.fixture(scope="module", params=["fresh_sd", "fresh_photo"])
def pipe(request: pytest.FixtureRequest):  # type: ignore[no-untyped-def]
    return load_folder(request.getfixturevalue(request.param))


def encode(pipe, prompt: str) -> None:  # type: ignore[no-untyped-def]
    """What the pipeline does with a prompt, without generating."""
    if pipe.__class__.__name__ == "FluxPipeline":
        pipe.encode_prompt(prompt, prompt)
    else:
        pipe.encode_prompt(prompt, "cpu", 1, False)


def test_unknown_words_are_listed_with_near_ones(pipe) -> None:  # type: ignore[no-untyped-def]
    with pytest.warns(UnknownWordWarning) as caught:
        encode(pipe, "a Red hart, zebra!")
    assert len(caught) == 1
    message = str(caught[0].message)
    assert "'hart' (near words it knows: heart" in message
    assert "'zebra' (nor any word near it)" in message
    assert "red" not in message.lower().replace("nor any", "")


@pytest.mark.parametrize("prompt", ["", "Red  HEART!", "an emoji of a smiling face with heart-eyes", "a 3D cat"])
def test_known_words_pass_in_silence(pipe, prompt: str) -> None:  # type: ignore[no-untyped-def]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encode(pipe, prompt)


@pytest.mark.parametrize("prompt", ["ünïcödé 🚀 漢字", "x" * 500, "red heart " * 50])
def test_no_prompt_crashes(pipe, prompt: str) -> None:  # type: ignore[no-untyped-def]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnknownWordWarning)
        encode(pipe, prompt)


def test_every_known_word_is_one_token(fresh_sd: Path) -> None:
    tokenizer = load_folder(fresh_sd).tokenizer
    words = known_words(fresh_sd)
    assert {"red", "heart", "cat", "sunglasses"} & words == {"red", "heart", "cat"}
    assert [word for word in words if len(tokenizer.tokenize(word)) != 1] == []


def test_message_offers_at_most_three_words() -> None:
    known = frozenset({"heart", "hearts", "hear", "hearth"})
    assert unknown_words_message(["heartt"], known).count(",") == 2
