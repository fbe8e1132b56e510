"""The tables in benchmarks/README.md, made from the committed result files and from nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenmerge.bench.result import Result
from tokenmerge.bench.tables import machine_line, table_of, title_of
from tokenmerge.errors import UsageError

MARK = "benchmarks"
Named = Sequence[tuple[str, Result]]


def load_results(folder: Path) -> list[tuple[str, Result]]:
    """Every result file of a folder with its name, in the order of their names."""
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise UsageError(
            f"{folder} holds no result files: make one with `tokenmerge bench --out {folder}/sd15-512.json`."
        )
    return [(path.name, Result.load(path)) for path in paths]


def full_text(results: Named) -> str:
    """For the folder of results: every table, with the command that made it."""
    sections = [
        f"## {title_of(result)}\n\n{table_of(result)}\n\n"
        f"`{name}`: {machine_line(result)}. Made by `{result.command}`.\n"
        for name, result in results
    ]
    return "\n".join(sections)
