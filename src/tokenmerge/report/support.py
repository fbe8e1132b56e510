"""What is supported: model families x methods x scopes, as the registry has them, and transformers that are not.

python -m tokenmerge.report.support                                    print it
python -m tokenmerge.report.support README.md docs/models.md           write it between the files' marks
python -m tokenmerge.report.support README.md docs/models.md --check   fail if a file does not hold it

A file holds the texts whose marks it has: `families`, `support` and `unsupported`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from torch import nn

from tokenmerge.config.base import MergeConfig
from tokenmerge.engine.compatibility import misfit
from tokenmerge.methods.named import METHODS
from tokenmerge.methods.toma import ToMA
from tokenmerge.models import FAMILIES
from tokenmerge.models.base import Family, Stack
from tokenmerge.models.published import ARCHITECTURES, build, build_from_config
from tokenmerge.models.unsupported import UNSUPPORTED
from tokenmerge.runtime import marked


def support_matrix() -> str:
    """The matrix in Markdown, with the reasons for what is missing below it."""
    kinds = dict.fromkeys(type(named.make()) for named in METHODS.values())
    methods = [kind for kind in kinds if kind.__module__ != ToMA.__module__ or kind is ToMA]  # its variants fit alike
    headers = ["family", "class", "parts", "weighs keys", *(method.__name__ for method in methods)]
    notes: list[str] = []
    lines = [_line(headers), _line(["---"] * len(headers))]
    lines += [_line(_row(family, methods, notes)) for family in FAMILIES if family.class_name]
    return "\n".join([*lines, "", *(f"{number}. {note}" for number, note in enumerate(notes, start=1))])


def families_sentence() -> str:
    """The names of all families, for readers who look for theirs."""
    names = [family.name for family in FAMILIES if family.class_name]
    return (
        f"{len(names)} model families: {'; '.join(names)}.\n\n[docs/models.md](docs/models.md) has a table of "
        f"families, methods and scopes. It names the models that `tokenmerge explain` and `bench` build. For every "
        f"other transformer of diffusers it says why it is not supported."
    )


def names_table() -> str:
    """The names of published configurations, with what each is."""
    lines = [_line(["name", "model", "class"]), _line(["---"] * 3)]
    rows = [[f"`{name}`", known.title, f"`{known.class_name}`"] for name, known in ARCHITECTURES.items()]
    return "\n".join([*lines, *map(_line, rows)])


def unsupported_table() -> str:
    """The transformers of diffusers that no family describes, with the reason for each."""
    lines = [_line(["model", "class", "why not"]), _line(["---"] * 3)]
    rows = [
        [name, f"`{class_name}`", f"{reason[0].upper()}{reason[1:]}."]
        for class_name, (name, reason) in UNSUPPORTED.items()
    ]
    return "\n".join([*lines, *map(_line, rows)])


def _row(family: Family, methods: list[type[MergeConfig]], notes: list[str]) -> list[str]:
    stacks = family.stacks(_default_model(family.class_name))
    parts = dict.fromkeys(
        kind for stack in stacks for block in stack.blocks for part in block.parts for kind in part.kinds
    )
    weighs = "no" + _mark(family.cannot_weigh, notes) if family.cannot_weigh else "yes"
    cells = [_cell(method, stacks, notes) for method in methods]
    return [family.name, f"`{family.class_name}`", " ".join(parts), weighs, *cells]


def _default_model(class_name: str) -> nn.Module:
    """A published model of that class; or as diffusers makes it by default. Without weights."""
    name = next((name for name, known in ARCHITECTURES.items() if known.class_name == class_name), None)
    return build_from_config(class_name, {}) if name is None else build(name)


def _cell(method: type[MergeConfig], stacks: list[Stack], notes: list[str]) -> str:
    """The scopes in which a method works, and marks for the reasons why others do not."""
    works: list[str] = []
    marks: dict[str, None] = {}
    for scope in method.scopes:
        unfit = misfit(method.build({"scope": scope, "parts": method.allowed_parts}), stacks)
        if unfit is None:
            works.append(scope)
        else:
            marks[_mark(unfit.reason, notes)] = None
    return (", ".join(works) or "no") + "".join(marks)


def _mark(reason: str, notes: list[str]) -> str:
    note = f"{reason[0].upper()}{reason[1:]}."
    if note not in notes:
        notes.append(note)
    return f" [{notes.index(note) + 1}]"


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


TEXTS: dict[str, Callable[[], str]] = {
    "families": families_sentence,
    "support": support_matrix,
    "names": names_table,
    "unsupported": unsupported_table,
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tokenmerge.report.support",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("files", nargs="*", type=Path, help="Markdown files with marks; none prints")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a file is out of date")
    options = parser.parse_args(arguments)
    if not options.files:
        print("\n\n".join(make() for make in TEXTS.values()))
    current = [_update(path, options.check) for path in options.files]
    return 0 if all(current) or not options.check else 1


def _update(path: Path, check: bool) -> bool:
    """Write the texts whose marks a file has, or with `check` only look; True if it was as it should be."""
    text = path.read_text(encoding="utf-8")
    marks = [mark for mark in TEXTS if f"<!-- {mark}:begin -->" in text]
    updated = [marked.update(path, mark, TEXTS[mark](), check) for mark in marks]
    current = all(updated)
    if check and not current:
        print(f"{path} is out of date: run python -m tokenmerge.report.support {path}", file=sys.stderr)
    return current


if __name__ == "__main__":
    sys.exit(main())
