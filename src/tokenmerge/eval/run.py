"""A run from beginning to end: settle the folder, make what is missing, measure, write tables, figures and the page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from tqdm import tqdm

from tokenmerge.errors import TokenMergeError
from tokenmerge.eval.engine import Engine, work_left
from tokenmerge.eval.errors import ExperimentError
from tokenmerge.eval.experiment import MOST_IMAGES, Experiment
from tokenmerge.eval.figures.curves import quality_against_time, quality_and_time_against_ratio
from tokenmerge.eval.figures.grids import grids_of
from tokenmerge.eval.figures.internals import internal_figures
from tokenmerge.eval.metrics.measure import measure
from tokenmerge.eval.pairs import Pair, make_pairs
from tokenmerge.eval.prompts import read_prompts
from tokenmerge.eval.report import gallery_of, report_page
from tokenmerge.eval.results import Results, results_of
from tokenmerge.eval.run_folder import RunFolder
from tokenmerge.eval.tables import tables_of
from tokenmerge.eval.variants import Variant, variants_of
from tokenmerge.runtime.files import write_atomically
from tokenmerge.runtime.machine import library_versions

Say = Callable[[str], None]
Inputs = tuple[list[Variant], list[str]]  # variants and prompts


def inputs_of(experiment: Experiment) -> Inputs:
    """The variants and prompts of an experiment; everything that is wrong with them shows here."""
    variants = variants_of(experiment)
    prompts = read_prompts(Path(experiment.prompts.file), experiment.prompts.column, experiment.prompts.limit)
    count = len(prompts) * experiment.seeds.per_prompt * len(variants)
    if count > MOST_IMAGES:
        raise ExperimentError(f"this would be {count:,} images, more than {MOST_IMAGES:,}: lower limit in [prompts].")
    return variants, prompts


def make_images(
    experiment: Experiment,
    folder: RunFolder,
    engine_of: Callable[[Experiment], Engine],
    say: Say,
    inputs: Inputs | None = None,
) -> tuple[Experiment, list[Pair], list[Variant]]:
    """Every image of an experiment, in a folder that is locked; images that are there already are left as they are.

    inputs: its variants and prompts, if they are not to be made of what the experiment says.
    """
    variants, prompts = inputs or inputs_of(experiment)
    experiment = folder.settle_experiment(experiment, torch.get_num_threads())
    engine = engine_of(experiment)
    try:
        pairs = settled_pairs(experiment, folder, prompts, engine)
        folder.load_records()
        if folder.dropped:
            say(f"{folder.dropped} unfinished records were dropped; their images are made again")
        if cut := len({pair.uncut for pair in pairs} - {None}):
            say(f"{cut} of {len(prompts)} prompts were longer than the tokenizer reads and were cut at a comma")
        work = work_left(pairs, variants, folder.records)
        if work:
            _tell_of_other_versions(folder, say)
        total = len(pairs) * len(variants)
        missing = sum(len(item.variants) for item in work)
        # The bar shows by itself how long is left, counting only what this process makes.
        with tqdm(total=total, initial=total - missing, desc="images", unit="image", disable=not missing) as bar:
            for made in engine.run(work):
                folder.save(made.pair, made.variant, made.image)
                bar.update()
    finally:
        engine.close()
    return experiment, pairs, variants


def _tell_of_other_versions(folder: RunFolder, say: Say) -> None:
    """Images made before and after an upgrade are not made alike."""
    now = library_versions()
    for record in folder.records.values():
        changed = [
            f"{name} {old}, now {now.get(name)}" for name, old in record.versions.items() if now.get(name) != old
        ]
        if changed:
            say(f"images in {folder.path} were made with {', '.join(changed)}: times and images may differ")
            return


def settled_pairs(experiment: Experiment, folder: RunFolder, prompts: Sequence[str], engine: Engine) -> list[Pair]:
    """The pairs of a run, read back where they are known, so that a finished run needs no model."""
    stored = folder.stored_pairs()
    known = {pair.uncut or pair.prompt: pair.prompt for pair in stored}
    unknown = list(dict.fromkeys(prompt for prompt in prompts if prompt not in known))
    if unknown:
        # Refused before a model is loaded, if that can be known.
        _refuse_changed_prompts(experiment, folder, prompts)
        known |= dict(zip(unknown, engine.cut(unknown), strict=True))
    pairs = make_pairs(prompts, experiment.seeds, known)
    folder.settle_pairs(pairs)
    return pairs


def _refuse_changed_prompts(experiment: Experiment, folder: RunFolder, prompts: Sequence[str]) -> None:
    stored = folder.stored_pairs()
    each = experiment.seeds.per_prompt
    known = [pair.uncut or pair.prompt for pair in stored[::each]]
    if list(prompts[: len(known)]) != known[: len(prompts)]:
        folder.settle_pairs(make_pairs(prompts, experiment.seeds, {prompt: prompt for prompt in prompts}))


def evaluate(
    experiment: Experiment,
    out: Path,
    engine_of: Callable[[Experiment], Engine],
    say: Say,
    allow_pickle: bool = False,
    inputs: Inputs | None = None,
) -> Results:
    """Images, metrics.json, tables.md, figures and report.html. May be killed and run again at any point."""
    inputs = inputs or inputs_of(experiment)  # what is wrong shows before a folder is made
    folder = RunFolder(out)
    with folder.locked():
        experiment, pairs, variants = make_images(experiment, folder, engine_of, say, inputs)
        measured = measure(folder, experiment.metrics, pairs, variants, allow_pickle)
        for name, reason in measured.unavailable.items():
            say(f"{name} is left out: {reason}")
        results = results_of(experiment, pairs, variants, folder.records, measured)
        write_atomically(out / "metrics.json", results.to_json())
        write_atomically(out / "tables.md", tables_of(results))
        figures = plot_figures(experiment, folder, pairs, variants, results, say, allow_pickle)
        gallery = gallery_of(out, pairs, variants, folder.records, measured, experiment.figures.gallery)
        write_atomically(out / "report.html", report_page(results, figures, gallery))
    return results


def plot_figures(
    experiment: Experiment,
    folder: RunFolder,
    pairs: Sequence[Pair],
    variants: Sequence[Variant],
    results: Results,
    say: Say,
    allow_pickle: bool = False,
) -> list[tuple[str, str]]:
    """Writes figures/*.svg and returns (caption, svg) of each."""
    drawn: dict[str, tuple[str, str | None]] = {}
    try:
        drawn["quality-time"] = ("Quality against time; numbers are ratios", quality_against_time(results))
        drawn["ratio"] = ("Quality and time against the ratio", quality_and_time_against_ratio(results))
        if experiment.figures.hidden_states or experiment.figures.destinations:
            drawn |= internal_figures(experiment, folder.path / "figures", pairs[0], allow_pickle)
    except TokenMergeError as reason:  # everything else is there already and must not be lost for a figure
        say(f"figures are left out: {str(reason).rstrip('.')}")
    drawn |= grids_of(folder.path, pairs, variants, folder.records)
    figures = [(name, caption, svg) for name, (caption, svg) in drawn.items() if svg is not None]
    for name, _, svg in figures:
        write_atomically(folder.path / "figures" / f"{name}.svg", svg)
    return [(caption, svg) for _, caption, svg in figures]
