"""The page: what stands where, and what happens when it is used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr

from tokenmerge.runtime.pipelines import default_model
from tokenmerge.web import bounds, controls, example, handlers, words
from tokenmerge.web.handlers import Handlers
from tokenmerge.web.quiet import answer_quietly
from tokenmerge.web.results import HEADERS
from tokenmerge.web.runs import Studio

# One generation at a time, whichever tab of the page or of the browser asks for it.
ONE_AT_A_TIME = {"concurrency_id": "generating", "concurrency_limit": 1}
AT_ONCE = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
QUEUED = {**ONE_AT_A_TIME, "api_visibility": "private"}

COPY = """(text) => {
  if (navigator.clipboard) { navigator.clipboard.writeText(text); return; }
  const area = document.createElement('textarea');
  area.value = text; document.body.append(area); area.select();
  document.execCommand('copy'); area.remove();
}"""


def build_page(studio: Studio, model: str | None, folder: Path) -> gr.Blocks:
    """The whole page. model: the one it begins with, None for the embedded one; folder: for files to download."""
    handle = Handlers(studio, folder)
    with gr.Blocks(title=words.TITLE, analytics_enabled=False, fill_width=True) as page:
        gr.HTML(f'<header class="tm-head"><h1>{words.TITLE}</h1><p>{words.INTRO}</p></header>')
        with gr.Tabs():
            with gr.Tab("Compare", id="compare"):
                asked = _compare_tab(handle, model)
            with gr.Tab("Look inside", id="inside"):
                _inside_tab(handle, asked)
            with gr.Tab("Sweep", id="sweep"):
                _sweep_tab(handle, asked, model)
        page.unload(handlers.leave)
    answer_quietly(page)
    page.queue(default_concurrency_limit=1, api_open=False)
    return page


def _compare_tab(handle: Handlers, model: str | None) -> controls.Controls:
    runs, wanted = gr.State([]), gr.State(None)
    with gr.Row():
        with gr.Column(scale=2, min_width=300):
            asked, compare, cancel = _request(model)
        with gr.Column(scale=3, min_width=300):
            message = gr.HTML(elem_classes="tm-message", elem_id="compare-message")
            slider, texts = _result()
    history = gr.Dataframe(
        headers=list(HEADERS),
        label="Last runs: click one to bring it back",
        interactive=False,
        elem_id="history",
        wrap=False,
        max_height=320,
        buttons=[],
    )
    export = gr.DownloadButton("Export as JSON", size="sm", interactive=False, elem_id="export")
    shown = [slider, *texts]

    for start in (compare.click, asked["prompt"].submit):
        start(handle.begin, asked.ordered, [wanted, message, cancel], **AT_ONCE).then(
            handle.compare,
            [wanted, runs, *asked.ordered],
            [runs, message, cancel, history, export, *shown],
            show_progress="full",
            show_progress_on=slider,
            **QUEUED,
        )
    cancel.click(handlers.cancel, None, message, **AT_ONCE)
    history.select(handle.restore, runs, [message, *shown, *asked.ordered], **AT_ONCE)
    return asked


def _request(model: str | None) -> tuple[controls.Controls, Any, Any]:
    """What is asked for, and the buttons that start it and end it early."""
    first = controls.first_controls()
    with gr.Row():
        compare = gr.Button("Compare", variant="primary", elem_id="compare", scale=3)
        cancel = gr.Button("Cancel", variant="stop", elem_id="cancel", scale=1, min_width=90, interactive=False)
    with gr.Accordion("Image and model", open=False):
        image = controls.image_controls(model)
    with gr.Accordion("Merging in detail", open=False):
        merging = controls.merging_controls()
    asked = controls.in_order([first, image, merging])
    asked["preset"].input(controls.preset_updates, asked["preset"], asked["preset"], **AT_ONCE)
    for name in controls.FOLLOWING:
        asked[name].input(controls.own_preset, None, asked["preset"], **AT_ONCE)
    gr.Examples(
        [list(example) for example in words.EXAMPLES],
        [asked["prompt"], asked["seed"]],
        label="Examples",
        example_labels=[prompt for prompt, _ in words.EXAMPLES],
        api_visibility="private",
    )
    asked["method"].input(
        controls.method_updates,
        asked["method"],
        [asked[name] for name in controls.FOLLOWING],
        **AT_ONCE,
    )
    asked["model"].input(controls.guidance_for, asked["model"], asked["guidance"], **AT_ONCE)
    return asked, compare, cancel


def _result() -> tuple[Any, list[Any]]:
    """The two images, and the texts about them."""
    slider = gr.ImageSlider(
        label="Unmerged | merged",
        type="pil",
        format="png",
        interactive=False,
        value=example.images(),
        max_height=900,
        elem_id="slider",
        buttons=["download", "fullscreen"],
    )
    divider = gr.Slider(0, 100, 50, step=1, label="Divider", info=words.DIVIDER, buttons=[], elem_id="divider")
    figures = gr.HTML(f'<p class="tm-lead">{example.sentence()}</p>', elem_id="figures")
    divider.input(
        lambda place: gr.update(slider_position=place), divider, slider, trigger_mode="always_last", **AT_ONCE
    )
    python, command = _equivalent()
    with gr.Accordion("What was merged where", open=False):
        explained = gr.Code(
            show_line_numbers=False, language=None, label="explain()", interactive=False, elem_id="explained"
        )
    return slider, [figures, python, command, explained]


def _equivalent() -> tuple[Any, Any]:
    """The same as code and as a command, to be copied."""
    with gr.Accordion("The same without this page", open=False):
        with gr.Row():
            copy_python = gr.Button("Copy Python", size="sm", elem_id="copy-python")
            copy_command = gr.Button("Copy command line", size="sm", elem_id="copy-command")
        python = gr.Code(
            show_line_numbers=False,
            language="python",
            label="Python",
            interactive=False,
            elem_id="python",
            wrap_lines=True,
            max_lines=24,
        )
        command = gr.Code(
            show_line_numbers=False,
            language="shell",
            label="Command line",
            interactive=False,
            elem_id="command",
            wrap_lines=True,
            lines=2,
            max_lines=6,
        )
    copy_python.click(None, python, None, js=COPY)
    copy_command.click(None, command, None, js=COPY)
    return python, command


def _inside_tab(handle: Handlers, asked: controls.Controls) -> None:
    recording, token, wanted = gr.State(None), gr.State(None), gr.State(None)
    gr.HTML(f'<p class="tm-lead">{words.INSIDE}</p>')
    with gr.Row():
        look = gr.Button("Look inside", variant="primary", elem_id="look", scale=3)
        cancel = gr.Button("Cancel", variant="stop", elem_id="cancel-look", scale=1, min_width=90, interactive=False)
    message = gr.HTML(elem_classes="tm-message", elem_id="inside-message")
    with gr.Row():
        block = gr.Dropdown([], label="Block", info=words.BLOCK, interactive=True, elem_id="block")
        step = gr.Dropdown([], label="Step", info=words.STEP, interactive=True, elem_id="step")
    with gr.Row():
        with gr.Column(min_width=300):
            merges = _panel("Merged tokens and their destinations", "merges", words.MERGES)
            gr.HTML(f'<p class="tm-note">{words.TOKEN}</p>')
            with gr.Row():
                row = gr.Number(0, label="Row", precision=0, minimum=0, min_width=90, elem_id="row")
                column = gr.Number(0, label="Column", precision=0, minimum=0, min_width=90, elem_id="column")
        with gr.Column(min_width=300):
            weights = _panel("Merge weights of one token", "weights", words.WEIGHT_MAP)
            about = gr.HTML(elem_id="about-token")
    with gr.Row():
        with gr.Column(min_width=300):
            clusters = _panel("Hidden states", "clusters", words.CLUSTERS)
        with gr.Column(min_width=300):
            gr.Markdown("### Overlap of destinations over steps")
            gr.HTML(f'<p class="tm-note">{words.OVERLAP}</p>')
            overlap = gr.HTML(elem_classes="tm-chart", elem_id="overlap")
    gr.Markdown("### Where the time went")
    gr.HTML(f'<p class="tm-note">{words.STAGES}</p>')
    stages = gr.HTML(elem_id="stages")

    views = [merges, weights, about, clusters, overlap, row, column, token]
    look.click(handle.begin, asked.ordered, [wanted, message, cancel], **AT_ONCE).then(
        handle.look,
        wanted,
        [recording, message, cancel, block, step, stages, *views],
        show_progress="full",
        show_progress_on=merges,
        **QUEUED,
    )
    cancel.click(handlers.cancel, None, message, **AT_ONCE)
    for choice in (block, step):
        choice.input(handlers.views, [recording, block, step, token], views, **AT_ONCE)
    merges.select(handlers.point, [recording, block, step], [weights, about, row, column, token], **AT_ONCE)
    for number in (row, column):
        number.input(handlers.token_at, [recording, block, step, row, column], [weights, about, token], **AT_ONCE)


def _panel(label: str, elem_id: str, note: str) -> Any:
    gr.Markdown(f"### {label}")
    gr.HTML(f'<p class="tm-note">{note}</p>')
    return gr.Image(
        label=label,
        show_label=False,
        type="pil",
        format="png",
        interactive=False,
        elem_id=elem_id,
        buttons=["download", "fullscreen"],
        alt_text=label,
    )


def _sweep_tab(handle: Handlers, asked: controls.Controls, model: str | None) -> None:
    wanted = gr.State(None)
    gr.HTML(f'<p class="tm-lead">{words.SWEEP}</p>')
    methods = gr.CheckboxGroup(
        list(bounds.SWEPT),
        value=bounds.first_sweep(default_model() if model is None else model),
        label="Methods",
        info=words.SWEEP_METHODS,
        elem_id="sweep-methods",
    )
    ratios = gr.CheckboxGroup(
        [0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9],
        value=[0.5, 0.75],
        label="Ratios",
        info=words.SWEEP_RATIOS,
        elem_id="sweep-ratios",
    )
    with gr.Row():
        start = gr.Button("Sweep", variant="primary", elem_id="sweep", scale=3)
        cancel = gr.Button("Cancel", variant="stop", elem_id="cancel-sweep", scale=1, min_width=90, interactive=False)
    message = gr.HTML(elem_classes="tm-message", elem_id="sweep-message")
    with gr.Row():
        with gr.Column(min_width=300):
            plot = gr.HTML(elem_classes="tm-chart", elem_id="sweep-plot", min_height=120)
        with gr.Column(min_width=300):
            grid = gr.HTML(elem_id="sweep-grid")

    start.click(handle.begin_sweep, [methods, ratios, *asked.ordered], [wanted, message, cancel], **AT_ONCE).then(
        handle.sweep,
        wanted,
        [message, cancel, plot, grid],
        show_progress="full",
        show_progress_on=plot,
        **QUEUED,
    )
    cancel.click(handlers.cancel, None, message, **AT_ONCE)
