"""What the page shows of a comparison: figures, the history's table, the exported file."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenmerge.runtime.files import write_json
from tokenmerge.web.bounds import Inputs
from tokenmerge.web.runs import Comparison

KEPT_RUNS = 20
HEADERS = ("run", "prompt", "method", "ratio", "size", "seconds", "speed-up", "PSNR", "SSIM")


@dataclass(frozen=True)
class Run:
    """A comparison, and the controls it was made with."""

    number: int
    inputs: Inputs
    comparison: Comparison


def figures(comparison: Comparison) -> str:
    """The numbers of a comparison, as HTML."""
    kept = "kept from before" if comparison.reused else "generated now"
    fidelity = comparison.fidelity
    psnr = "identical" if fidelity.psnr is None else f"{fidelity.psnr:.1f} dB"
    faster = "faster" if comparison.speedup >= 1 else "slower: a small image, or a busy machine"
    cards = (
        ("Unmerged", f"{comparison.unmerged.seconds:.2f} s", kept),
        ("Merged", f"{comparison.merged.seconds:.2f} s", html.escape(comparison.request.label)),
        ("Speed-up", f"{comparison.speedup:.2f}x", faster),
        ("PSNR", psnr, "above 30: hard to distinguish"),
        ("SSIM", f"{fidelity.ssim:.3f}", "1: the same structure"),
    )
    inner = "".join(
        f"<div><dt>{name}</dt><dd>{value}</dd><small>{remark}</small></div>" for name, value, remark in cards
    )
    return f'<dl class="tm-cards">{inner}</dl>'


def table(runs: Sequence[Run]) -> list[list[Any]]:
    """The history, newest first."""
    return [_row(run) for run in reversed(runs)]


def _row(run: Run) -> list[Any]:
    made = run.comparison
    width, height = made.merged.image.size
    psnr = "identical" if made.fidelity.psnr is None else f"{made.fidelity.psnr:.1f}"
    return [
        run.number,
        made.request.image.prompt,
        made.request.preset or made.request.method,
        f"{made.request.ratio:g}",
        f"{width} x {height}",
        f"{made.unmerged.seconds:.2f} → {made.merged.seconds:.2f}",
        f"{made.speedup:.2f}x",
        psnr,
        f"{made.fidelity.ssim:.3f}",
    ]


def export(runs: Sequence[Run], folder: Path) -> Path:
    """The history as a JSON file, oldest first."""
    file = folder / "tokenmerge-history.json"
    write_json(file, [run.comparison.to_dict() for run in runs])
    return file


def message(sentences: Sequence[str] | str, bad: bool = False) -> str:
    """Sentences in a box; nothing for none. Read out by screen readers as it appears."""
    if not sentences:
        return ""
    text = html.escape(sentences if isinstance(sentences, str) else " ".join(sentences))
    kind = ' class="tm-bad" role="alert"' if bad else ' role="status"'
    return f"<p{kind}>{text}</p>"


def progress_message(done: int, count: int) -> str:
    """How many images of a sweep are generated, with a bar."""
    said = f"{done} of {count} merged images are generated."
    return f'<p role="status">{said}<progress value="{done}" max="{count}">{said}</progress></p>'
