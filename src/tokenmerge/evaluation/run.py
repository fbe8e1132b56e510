"""A run from beginning to end: settle the folder, make what is missing, measure, write tables, figures and the page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from tqdm import tqdm

from tokenmerge.evaluation.engine import Engine, work_left
from tokenmerge.evaluation.errors import ExperimentError
from tokenmerge.evaluation.experiment import MOST_IMAGES, Experiment
from tokenmerge.evaluation.pairs import Pair, make_pairs
from tokenmerge.evaluation.prompts import read_prompts
from tokenmerge.evaluation.run_folder import RunFolder
from tokenmerge.evaluation.variants import Variant, variants_of

Say = Callable[[str], None]


def make_images(
    experiment: Experiment, folder: RunFolder, engine_of: Callable[[Experiment], Engine], say: Say
) -> tuple[Experiment, list[Pair], list[Variant]]:
    """Every image of an experiment, in a folder that is locked; images that are there already are left as they are."""
    variants = variants_of(experiment)
    prompts = read_prompts(Path(experiment.prompts.file), experiment.prompts.column, experiment.prompts.limit)
    count = len(prompts) * experiment.seeds.per_prompt * len(variants)
    if count > MOST_IMAGES:
        raise ExperimentError(f"this would be {count:,} images, more than {MOST_IMAGES:,}: lower limit in [prompts].")
    experiment = folder.settle_experiment(experiment, torch.get_num_threads())
    engine = engine_of(experiment)
    try:
        pairs = settled_pairs(experiment, folder, prompts, engine)
        folder.load_records()
        if folder.dropped:
            say(f"{folder.dropped} unfinished records were dropped; their images are made again")
        if cut := sum(pair.uncut is not None for pair in pairs):
            say(f"{cut} of {len(pairs)} prompts were longer than the tokenizer reads and were cut at a comma")
        work = work_left(pairs, variants, folder.records)
        total = len(pairs) * len(variants)
        missing = sum(len(item.variants) for item in work)
        # The bar shows by itself how long is left, counting only what this process makes.
        with tqdm(total=total, initial=total - missing, desc="images", unit="image", disable=not missing) as bar:
            for made in engine.run(work):
                folder.save(made.pair, made.variant, made.picture)
                bar.update()
    finally:
        engine.close()
    return experiment, pairs, variants


def settled_pairs(experiment: Experiment, folder: RunFolder, prompts: Sequence[str], engine: Engine) -> list[Pair]:
    """The pairs of a run, read back where they are known, so that a finished run needs no model."""
    stored = folder.stored_pairs()
    known = {pair.uncut or pair.prompt: pair.prompt for pair in stored}
    unknown = list(dict.fromkeys(prompt for prompt in prompts if prompt not in known))
    if unknown:
        # Refused before a model is loaded, where that can be told.
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
