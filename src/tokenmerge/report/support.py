"""The support matrix: model families x methods x scopes, as the registry has them.

python -m tokenmerge.report.support                     print it
python -m tokenmerge.report.support README.md           write it between the file's markers
python -m tokenmerge.report.support README.md --check   fail if the file does not hold it
"""

from __future__ import annotations

import sys

from torch import nn

from tokenmerge.config.base import MergeConfig
from tokenmerge.engine.compatibility import misfit
from tokenmerge.methods.named import METHODS
from tokenmerge.methods.toma import ToMA
from tokenmerge.models import FAMILIES, UNFIT
from tokenmerge.models.base import Family, Stack
from tokenmerge.models.published import ARCHITECTURES, build, build_from_config
from tokenmerge.runtime import marked


def support_matrix() -> str:
    """The matrix in Markdown, with the reasons for what is missing below it."""
    kinds = dict.fromkeys(type(named.make()) for named in METHODS.values())
    methods = [kind for kind in kinds if kind.__module__ != ToMA.__module__ or kind is ToMA]  # its variants fit alike
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
    """A published model of that class; or as diffusers makes it when told nothing. Without weights."""
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


if __name__ == "__main__":
    sys.exit(marked.main("tokenmerge.report.support", "support", support_matrix))
