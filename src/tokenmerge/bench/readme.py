"""The tables in the README files, made from the committed result files and from nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenmerge.bench.result import Result
from tokenmerge.bench.tables import headline_table, machine_line, table_of, title_of
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


def summary_text(results: Named) -> str:
    """For the project's README: the headline table, and where its figures come from."""
    models = [result for _, result in results if result.kind == "model"]
    if not models:
        raise UsageError("there are no results of whole models yet: make one with `tokenmerge bench --out ...`.")
    machines = dict.fromkeys(machine_line(result) for result in models)
    return (
        f"{headline_table(models)}\n\n"
        f"Time of the unmerged model over time with merging, a step on average over the schedule, best of all repeats. "
        f"The limit is the same model with its transformer blocks deleted. Measured on: {'; '.join(machines)}.\n"
    )


def full_text(results: Named) -> str:
    """For the folder of results: every table, with the command that made it."""
    sections = [
        f"## {title_of(result)}\n\n{table_of(result)}\n\n"
        f"`{name}`: {machine_line(result)}. Made by `{result.command}`.\n"
        for name, result in results
    ]
    return "\n".join(sections)
