"""What happens when the page is used. Every error ends as a sentence in the page."""

from __future__ import annotations

import logging
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr

from tokenmerge.eval.figures.clusters import short_name
from tokenmerge.runtime.generation import ImageRequest
from tokenmerge.web import bounds, equivalent, inside, sweep
from tokenmerge.web.controls import restored
from tokenmerge.web.recording import Recording, record
from tokenmerge.web.results import KEPT_RUNS, Run, export, figures, message, progress_message, table
from tokenmerge.web.runs import Cancelled, Studio, Watch, sentence_of

logger = logging.getLogger(__name__)

WAITING = "The model is being loaded, or another image is being generated: this one comes after it."
CANCELLED = "Cancelled: nothing more is generated. The last finished result is still shown."
NO_GRID = "No block merged tokens of a flat grid at the steps that were watched, so there is nothing to show."
CAN_CANCEL, CANNOT_CANCEL = gr.update(interactive=True), gr.update(interactive=False)

# Gradio finds its arguments by such a default, and puts in one that reaches the browser.
PROGRESS = gr.Progress()

# By browser tab, how its generation is stopped.
_stops: dict[str, threading.Event] = {}


@dataclass(frozen=True)
class WantedSweep:
    """A sweep as the page asks for it, checked."""

    model: str
    image: ImageRequest
    pairs: list[tuple[str, float | None]]


class Handlers:
    """What needs the model, or writes files."""

    def __init__(self, studio: Studio, folder: Path) -> None:
        self.studio = studio
        self.folder = folder

    def begin(self, request: gr.Request, *values: Any) -> tuple[Any, ...]:
        """Check what is asked for before it waits for its turn. Gives (what is wanted or None, message, cancel)."""
        return self._checked(lambda: bounds.read(bounds.Inputs(*values)), request)

    def begin_sweep(self, request: gr.Request, methods: Any, ratios: Any, *values: Any) -> tuple[Any, ...]:
        inputs = bounds.Inputs(*values)

        def read() -> WantedSweep:
            asked = bounds.read(inputs)
            return WantedSweep(asked.model, asked.image, bounds.read_sweep(methods, ratios))

        return self._checked(read, request)

    def _checked(self, read: Callable[[], Any], request: gr.Request) -> tuple[Any, ...]:
        _stop_of(request).clear()
        try:
            return read(), message(WAITING if self.studio.busy else ""), CAN_CANCEL
        except Exception as error:
            return None, _said(error), CANNOT_CANCEL

    def compare(
        self,
        request: gr.Request,
        wanted: bounds.Request | None,
        runs: list[Run],
        progress: gr.Progress = PROGRESS,
        *values: Any,
    ) -> tuple[Any, ...]:
        """Gives (runs, message, cancel, history, export, slider, figures, Python, command line, explanation)."""
        unchanged = [gr.skip()] * 7
        if wanted is None:
            return gr.skip(), gr.skip(), CANNOT_CANCEL, *unchanged
        try:
            made = self.studio.compare(wanted, _watch(request, progress))
        except Exception as error:
            return gr.skip(), _said(error), CANNOT_CANCEL, *unchanged
        number = runs[-1].number + 1 if runs else 1
        runs = [*runs, Run(number, bounds.Inputs(*values), made)][-KEPT_RUNS:]
        # A separate folder, because the browser saves the file under its name.
        file = export(runs, Path(tempfile.mkdtemp(dir=self.folder)))
        download = gr.update(value=str(file), interactive=True)
        return runs, message(made.notes), CANNOT_CANCEL, table(runs), download, *_shown(runs[-1])

    def restore(self, runs: list[Run], event: gr.SelectData) -> list[Any]:
        """Bring a run of the history back: its results and its controls."""
        run = runs[len(runs) - 1 - int(event.index[0])]
        return [message(f"Run {run.number} is back, with all its settings."), *_shown(run), *restored(run.inputs)]

    def look(
        self, request: gr.Request, wanted: bounds.Request | None, progress: gr.Progress = PROGRESS
    ) -> tuple[Any, ...]:
        """Gives (recording, message, cancel, block, step, stages) and what `views` gives."""
        if wanted is None:
            return gr.skip(), gr.skip(), CANNOT_CANCEL, *[gr.skip()] * 11
        try:
            recording = record(self.studio, wanted, _watch(request, progress))
            if not recording.blocks:
                return gr.skip(), message(NO_GRID, bad=True), CANNOT_CANCEL, *[gr.skip()] * 11
        except Exception as error:
            return gr.skip(), _said(error), CANNOT_CANCEL, *[gr.skip()] * 11
        grids = {block: view.grid for (block, _), view in recording.views.items()}
        blocks = [(f"{short_name(name)} ({_by(grids[name])} tokens)", name) for name in recording.blocks]
        steps = [(f"{step + 1} of {wanted.image.steps}", step) for step in recording.steps]
        block, step = recording.blocks[0], recording.steps[len(recording.steps) // 2]
        return (
            recording,
            "",
            CANNOT_CANCEL,
            gr.update(choices=blocks, value=block),
            gr.update(choices=steps, value=step),
            inside.stage_bars(recording.stages),
            *views(recording, block, step, None),
        )

    def sweep(
        self, request: gr.Request, wanted: WantedSweep | None, progress: gr.Progress = PROGRESS
    ) -> Iterator[tuple[Any, ...]]:
        """Gives (message, cancel, plot, grid) after every image."""
        if wanted is None:
            yield gr.skip(), CANNOT_CANCEL, gr.skip(), gr.skip()
            return
        try:
            watch = _watch(request, progress)
            for swept in sweep.sweep(self.studio, wanted.model, wanted.image, wanted.pairs, watch):
                said = progress_message(len(swept.cells), len(wanted.pairs))
                plot = sweep.plot_quality_against_time(swept) if swept.cells else gr.skip()
                yield said, gr.skip(), plot, sweep.plot_grid(swept)
            yield gr.skip(), CANNOT_CANCEL, gr.skip(), gr.skip()
        except Exception as error:
            yield _said(error), CANNOT_CANCEL, gr.skip(), gr.skip()


def cancel(request: gr.Request) -> str:
    """Stop the generation of this browser tab, whether it runs or still waits."""
    _stop_of(request).set()
    return message("Cancelling: the step that is being made is the last.")


def leave(request: gr.Request) -> None:
    """A browser tab was closed: nobody is left to look at what it generates."""
    _stop_of(request).set()
    _stops.pop(request.session_hash or "", None)


def views(recording: Recording | None, block: str, step: int, token: int | None) -> list[Any]:
    """(merges, weights, about the token, clusters, overlap, row, column, token) for a block and a step."""
    if recording is None or (block, step) not in recording.views:
        return [gr.skip()] * 8
    view = recording.views[block, step]
    if token is None or token >= view.tokens:
        token = inside.telling_token(view)
    weights, about = inside.plot_weights(recording.image, view, token)
    key = block, step
    painted = (
        inside.plot_clusters(recording.image, recording.clusters[key], recording.grids[block])
        if key in recording.clusters
        else None
    )
    overlap = inside.plot_overlap(recording.overlaps, block) if recording.overlaps else _note(recording.no_overlaps)
    row, column = divmod(token, view.grid[1])
    return [inside.plot_merges(recording.image, view), weights, _note(about), painted, overlap, row, column, token]


def point(recording: Recording | None, block: str, step: int, event: gr.SelectData) -> list[Any]:
    """(weights, about the token, row, column, token) of the token that was clicked."""
    if recording is None:
        return [gr.skip()] * 5
    view = recording.views[block, step]
    row, column = inside.token_under(view.grid, event.index[0], event.index[1])
    return [*_weights(recording, block, step, row, column)[:2], row, column, row * view.grid[1] + column]


def token_at(recording: Recording | None, block: str, step: int, row: Any, column: Any) -> list[Any]:
    """(weights, about the token, token) of the token with that row and column."""
    if recording is None or row is None or column is None:
        return [gr.skip()] * 3
    return _weights(recording, block, step, int(row), int(column))


def _weights(recording: Recording, block: str, step: int, row: int, column: int) -> list[Any]:
    view = recording.views[block, step]
    rows, columns = view.grid
    if not (0 <= row < rows and 0 <= column < columns):
        return [gr.skip(), _note(f"Rows run from 0 to {rows - 1} here, columns from 0 to {columns - 1}."), gr.skip()]
    token = row * columns + column
    weights, about = inside.plot_weights(recording.image, view, token)
    return [weights, _note(about), token]


def _shown(run: Run) -> list[Any]:
    made = run.comparison
    return [
        (made.unmerged.image, made.merged.image),
        figures(made),
        equivalent.as_python(made.request, made.guidance),
        equivalent.as_command(made.request),
        made.explanation,
    ]


def _said(error: Exception) -> str:
    if isinstance(error, Cancelled):
        return message(CANCELLED)
    logger.debug("shown in the page as a sentence", exc_info=error)
    return message(sentence_of(error), bad=True)


def _watch(request: gr.Request, progress: gr.Progress) -> Watch:
    return Watch(lambda fraction, what: progress(fraction, desc=what), _stop_of(request))


def _stop_of(request: gr.Request) -> threading.Event:
    return _stops.setdefault(request.session_hash or "", threading.Event())


def _by(grid: tuple[int, int]) -> str:
    return " x ".join(map(str, grid))


def _note(text: str) -> str:
    return f'<p class="tm-note">{text}</p>'
