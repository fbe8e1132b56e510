"""The support matrix: model families x methods x scopes, as the registry has them.

python -m tokenmerge.support                     print it
python -m tokenmerge.support README.md           write it between the file's markers
python -m tokenmerge.support README.md --check   fail if the file does not hold it
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from torch import nn

from tokenmerge.config import MergeConfig
from tokenmerge.errors import UsageError
from tokenmerge.fits import misfit
from tokenmerge.methods.named import METHODS
from tokenmerge.models import FAMILIES, UNFIT
from tokenmerge.models.base import Family, Stack

BEGIN, END = "<!-- support:begin -->", "<!-- support:end -->"


def support_matrix() -> str:
    """The matrix in Markdown, with the reasons for what is missing below it."""
    methods = list(dict.fromkeys(type(named.make()) for named in METHODS.values()))
    headers = ["family", "class", "parts", "weighs keys", *(method.__name__ for method in methods)]
    notes: list[str] = []
    lines = [_line(headers), _line(["---"] * len(headers))]
    lines += [_line(_row(family, methods, notes)) for family in FAMILIES if family.class_name]
    lines += [
        _line([name, f"`{class_name}`", "none" + _mark(reason, notes), *["no"] * (len(headers) - 3)])
        for class_name, (name, reason) in UNFIT.items()
    ]
    return "\n".join([*lines, "", *(f"{number}. {note}" for number, note in enumerate(notes, start=1))])


def _row(family: Family, methods: list[type[MergeConfig]], notes: list[str]) -> list[str]:
    stacks = family.stacks(_default_model(family.class_name))
    parts = dict.fromkeys(
        kind for stack in stacks for block in stack.blocks for part in block.parts for kind in part.kinds
    )
    weighs = "no" + _mark(family.cannot_weigh, notes) if family.cannot_weigh else "yes"
    cells = [_cell(method, stacks, notes) for method in methods]
    return [family.name, f"`{family.class_name}`", " ".join(parts), weighs, *cells]


def _default_model(class_name: str) -> nn.Module:
    """A model of that class as diffusers makes it when told nothing, without weights."""
    import diffusers

    with torch.device("meta"):
        model: nn.Module = getattr(diffusers, class_name)()
    return model


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


def with_matrix(text: str) -> str:
    """A document with the matrix between its markers."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise UsageError(f"the file has no {BEGIN} and {END}: put both where the support matrix should stand.")
    return f"{before}{BEGIN}\n{support_matrix()}\n{END}{after}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tokenmerge.support", description="The support matrix.")
    parser.add_argument("file", nargs="?", type=Path, help="a Markdown file with support markers; none prints")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if the file is out of date")
    options = parser.parse_args(arguments)
    if options.file is None:
        print(support_matrix())
        return 0
    text = options.file.read_text(encoding="utf-8")
    try:
        current = with_matrix(text)
    except UsageError as error:
        print(f"{options.file}: {error}", file=sys.stderr)
        return 2
    if not options.check:
        options.file.write_text(current, encoding="utf-8")
    elif current != text:
        print(f"{options.file} is out of date: run python -m tokenmerge.support {options.file}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
