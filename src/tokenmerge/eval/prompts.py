"""Prompts from a text, csv or parquet file; cut to what the tokenizer reads, at a comma (thesis, section 5.2)."""

from __future__ import annotations

import csv
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenmerge.eval.errors import ExperimentError
from tokenmerge.runtime.generation import LONGEST_PROMPT
from tokenmerge.runtime.plain_text import is_control

MOST_PROMPTS = 1_000_000
LARGEST_FILE = 1_000_000_000  # bytes


def read_prompts(path: Path, column: str | None, limit: int | None) -> list[str]:
    """The first `limit` prompts of a file, in its order. Empty lines and cells are not prompts.

    .txt: a prompt a line, lines that start with # are comments. .csv, .tsv and .parquet: the column named `column`.
    """
    if not path.exists():
        raise ExperimentError(
            f"the prompts file {path} does not exist: give the path of a .txt, .csv or .parquet file."
        )
    if path.is_dir():
        raise ExperimentError(f"the prompts file {path} is a folder: give a .txt, .csv or .parquet file.")
    kind = path.suffix.lower()
    if kind not in READERS:
        raise ExperimentError(f"the prompts file {path} ends in {kind!r}: it must be one of {', '.join(READERS)}.")
    most = MOST_PROMPTS if limit is None else limit
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise ExperimentError(
                f"the prompts file {path} has more than {LARGEST_FILE // 10**6} MB: cut it down to the prompts needed."
            )
        prompts = READERS[kind](path, column, most)
    except UnicodeDecodeError:
        raise ExperimentError(f"the prompts file {path} is not text in UTF-8: save it as UTF-8.") from None
    except csv.Error as error:
        raise ExperimentError(f"the prompts file {path} is not a readable csv: {error}.") from None
    except OSError as error:
        raise ExperimentError(f"the prompts file {path} cannot be read: {error}.") from None
    if not prompts:
        raise ExperimentError(f"the prompts file {path} is empty: it must hold at least one prompt.")
    for number, prompt in enumerate(prompts, 1):
        _check_prompt(path, number, prompt)
    return prompts


def _check_prompt(path: Path, number: int, prompt: str) -> None:
    """Prompts are shown on terminals and in pages, so one that could do something there is refused."""
    if len(prompt) > LONGEST_PROMPT:
        raise ExperimentError(
            f"prompt {number} of {path} has {len(prompt):,} characters: one may have up to {LONGEST_PROMPT:,}."
        )
    if any(map(is_control, prompt)):
        raise ExperimentError(f"prompt {number} of {path} holds a control character: {prompt[:60]!r}. Take it out.")


def _read_txt(path: Path, column: str | None, most: int) -> list[str]:
    prompts: list[str] = []
    with path.open(encoding="utf-8-sig") as lines:
        for line in lines:
            if len(prompts) == most:
                break
            if (prompt := line.strip()) and not prompt.startswith("#"):
                prompts.append(prompt)
    return prompts


def _read_csv(path: Path, column: str | None, most: int) -> list[str]:
    prompts: list[str] = []
    with path.open(encoding="utf-8-sig", newline="") as lines:
        rows = csv.DictReader(lines, delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
        if rows.fieldnames is None:
            return prompts
        name = _checked_column(path, column, list(rows.fieldnames))
        for row in rows:
            if len(prompts) == most:
                break
            if prompt := (row[name] or "").strip():
                prompts.append(prompt)
    return prompts


def _read_parquet(path: Path, column: str | None, most: int) -> list[str]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ExperimentError("parquet files need pyarrow: pip install 'tokenmerge[eval]', or use a csv.") from None
    try:
        with parquet.ParquetFile(path) as file:
            name = _checked_column(path, column, list(file.schema_arrow.names))
            prompts: list[str] = []
            for batch in file.iter_batches(columns=[name], batch_size=4096):
                prompts += [str(cell).strip() for cell in batch.column(0).to_pylist() if cell and str(cell).strip()]
                if len(prompts) >= most:
                    break
    except pyarrow.ArrowException as error:
        raise ExperimentError(f"the prompts file {path} is not a readable parquet file: {error}.") from None
    return prompts[:most]


READERS: dict[str, Callable[[Path, str | None, int], list[str]]] = {
    ".txt": _read_txt,
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".parquet": _read_parquet,
}


def _checked_column(path: Path, column: str | None, columns: list[str]) -> str:
    shown = ", ".join(map(repr, columns[:20]))
    if column is None:
        raise ExperimentError(f"{path} has columns {shown}: say which holds the prompts with column = ....")
    if column not in columns:
        raise ExperimentError(f"{path} has no column {column!r}: it has {shown}.")
    return column


def cut_prompt(prompt: str, fits: Callable[[str], bool]) -> str:
    """The prompt up to its last comma before which everything fits; up to a space where no comma does.

    >>> cut_prompt("a cat, on a mat, in the rain", lambda text: len(text) <= 20)
    'a cat, on a mat'
    >>> cut_prompt("a cat on a mat", lambda text: len(text) <= 10)
    'a cat on a'
    """
    if fits(prompt):
        return prompt
    for delimiter in (",", " "):
        ends = [index for index, character in enumerate(prompt) if character == delimiter and prompt[:index].strip()]
        # Fitting is monotonic, so the last end that fits is found by halving.
        low, high = 0, len(ends)
        while low < high:
            middle = (low + high) // 2
            if fits(prompt[: ends[middle]].rstrip()):
                low = middle + 1
            else:
                high = middle
        if low:
            return prompt[: ends[low - 1]].rstrip()
    return prompt  # one word of too many tokens: the tokenizer truncates it as it does for everybody


def prompt_fits(pipeline: Any) -> Callable[[str], bool]:
    """Whether a pipeline reads a prompt in full; where it has several tokenizers, whether the longest does."""
    tokenizers = [getattr(pipeline, name, None) for name in ("tokenizer", "tokenizer_2", "tokenizer_3")]
    limits = [(int(getattr(t, "model_max_length", 0) or 0), t) for t in tokenizers if t is not None]
    if not limits:
        return lambda prompt: True
    most, tokenizer = max(limits, key=lambda pair: pair[0])
    # SD3 and others read less than their longest tokenizer would.
    length = inspect.signature(pipeline).parameters.get("max_sequence_length") if callable(pipeline) else None
    if length is not None and isinstance(length.default, int):
        most = min(most, length.default)
    # transformers writes 1e30 for "no limit"
    if most not in range(1, 1_000_000):
        return lambda prompt: True
    return lambda prompt: len(tokenizer(prompt, truncation=False, verbose=False)["input_ids"]) <= most
