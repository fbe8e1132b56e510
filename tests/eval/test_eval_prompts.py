"""Prompt files of every kind, and cutting at a comma."""

from __future__ import annotations

import pytest

from tokenmerge.eval.errors import ExperimentError
from tokenmerge.eval.prompts import cut_prompt, prompt_fits, read_prompts


def test_txt_skips_empty_lines_and_comments(tmp_path):
    path = tmp_path / "p.txt"
    path.write_text("\ufeff# a comment\na cat\n\n  a dog  \nun café\n")
    assert read_prompts(path, None, None) == ["a cat", "a dog", "un café"]
    assert read_prompts(path, None, 2) == ["a cat", "a dog"]


def test_csv_takes_the_named_column(tmp_path):
    path = tmp_path / "p.csv"
    path.write_text('id,Prompt\n1,"a cat, on a mat"\n2,\n3,"a\nb"\n')
    assert read_prompts(path, "Prompt", None) == ["a cat, on a mat", "a\nb"]


def test_parquet_takes_the_named_column(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "p.parquet"
    parquet.write_table(pyarrow.table({"text": ["a", None, "b", "c"], "n": [1, 2, 3, 4]}), path)
    assert read_prompts(path, "text", 2) == ["a", "b"]
    with pytest.raises(ExperimentError, match="no column 'prompt': it has 'text', 'n'"):
        read_prompts(path, "prompt", None)


@pytest.mark.parametrize(
    ("name", "content", "column", "sentence"),
    [
        ("missing.txt", None, None, "does not exist"),
        ("empty.txt", b"", None, "is empty"),
        ("comments.txt", b"# nothing\n\n", None, "is empty"),
        ("empty.csv", b"", "prompt", "is empty"),
        ("p.csv", b"id,text\n1,a\n", "prompt", "has no column 'prompt': it has 'id', 'text'"),
        ("p.csv", b"id,text\n1,a\n", None, "say which holds the prompts"),
        ("p.json", b"[]", None, "must be one of .txt, .csv"),
        ("p.txt", b"\xff\xfe", None, "not text in UTF-8"),
        ("p.parquet", b"not parquet", "text", "not a readable parquet file"),
    ],
)
def test_a_wrong_file_is_a_sentence(tmp_path, name, content, column, sentence):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ExperimentError) as caught:
        read_prompts(path, column, None)
    assert sentence in str(caught.value)


def short(text: str) -> bool:
    return len(text) <= 30


@pytest.mark.parametrize(
    ("prompt", "cut"),
    [
        ("short", "short"),
        ("a cat, on a mat, in the rain, at night, alone", "a cat, on a mat, in the rain"),
        ("one very long description without any comma", "one very long description"),
        ("x" * 40, "x" * 40),
        ("," + "x " * 30, "," + "x " * 14 + "x"),
    ],
)
def test_cuts_at_the_last_comma_that_fits(prompt, cut):
    assert cut_prompt(prompt, short) == cut


def test_the_longest_tokenizer_decides():
    class Words:
        def __init__(self, longest):
            self.model_max_length = longest

        def __call__(self, text, **_):
            return {"input_ids": text.split()}

    class Pipe:
        tokenizer = Words(3)
        tokenizer_2 = Words(5)

    fits = prompt_fits(Pipe())
    assert fits("a b c d e")
    assert not fits("a b c d e f")
    Pipe.tokenizer_2 = Words(int(1e30))
    assert prompt_fits(Pipe())("a " * 1000)

    class Shorter(Pipe):
        def __call__(self, prompt, max_sequence_length=4):
            """A pipeline that gives its tokenizer a shorter length than it could take."""

    assert prompt_fits(Shorter())("a b c d")
    assert not prompt_fits(Shorter())("a b c d e")
