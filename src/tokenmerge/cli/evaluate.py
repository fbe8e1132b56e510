"""`tokenmerge eval`: an experiment file to paired images, metrics, tables, figures and one page."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenmerge.cli.options import HelpFormatter, add_pickle_option
from tokenmerge.errors import UsageError
from tokenmerge.eval import require_packages
from tokenmerge.runtime.plain_text import shown_plainly

if TYPE_CHECKING:
    from tokenmerge.eval.engine import Engine
    from tokenmerge.eval.experiment import Experiment

DESCRIPTION = """\
Generates the same prompt-seed pairs unmerged and with every variant of an experiment. Measures quality and time, and \
writes images, records, tables, figures and a page (report.html) into one folder. A run that was stopped or killed \
continues when the same command is given again.

  tokenmerge eval experiments/toma_table_1.toml --out runs/table1 --limit 8
  tokenmerge eval experiments/toma_table_1.toml --out runs/sdxl --size 1024 --steps 50 \\
      --model stabilityai/stable-diffusion-xl-base-1.0 --prompts prompts.csv --column prompt
"""


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "eval",
        help="compare methods on many prompts: quality, time, tables, a page",
        description=DESCRIPTION,
        formatter_class=HelpFormatter,
    )
    parser.add_argument("experiment", metavar="EXPERIMENT", type=Path, help="an experiment file (.toml)")
    parser.add_argument(
        "--out", metavar="FOLDER", type=Path, required=True, help="the run's folder, created if missing"
    )
    group = parser.add_argument_group("instead of what the experiment says")
    group.add_argument("--model", metavar="MODEL", help="folder of a diffusers model, hub id, or an embedded model")
    group.add_argument("--prompts", metavar="FILE", type=Path, help="a .txt, .csv or .parquet file of prompts")
    group.add_argument("--column", metavar="NAME", help="the column of a csv or parquet file that holds the prompts")
    group.add_argument(
        "--limit", metavar="N", help="take only the first N prompts; may be raised later in the same folder"
    )
    group.add_argument("--seeds", metavar="N", help="sample N seeds for each prompt")
    group.add_argument("--size", metavar="WIDTHxHEIGHT", help="in pixels, 768x512 or 512")
    group.add_argument("--steps", metavar="N", help="denoising steps")
    group.add_argument("--real-images", metavar="FOLDER", type=Path, help="real images, for FID to them")
    add_pickle_option(group)
    group.add_argument(
        "--config", metavar="FILE", type=Path, help="one more variant: a config that `tokenmerge tune` wrote"
    )
    engine = parser.add_argument_group("where it runs")
    engine.add_argument(
        "--engine",
        default="local",
        choices=("local", "ray"),
        help="local: in this process; ray: on a Ray cluster, one model per GPU, or per share of CPUs (default: local)",
    )
    engine.add_argument("--address", metavar="ADDRESS", help="of the Ray cluster, such as auto or ray://host:10001")
    engine.add_argument("--workers", metavar="N", help="Ray workers (default: one per GPU, or one per 4 CPUs)")
    parser.add_argument("--json", action="store_true", help="print metrics.json instead of the tables")
    return parser


def run(args: argparse.Namespace) -> int:
    require_packages("this command")

    from tokenmerge.eval.experiment import read_experiment
    from tokenmerge.eval.run import evaluate
    from tokenmerge.eval.tables import tables_of

    if args.engine != "ray" and (args.address or args.workers):
        raise UsageError("--address and --workers belong to a cluster: add --engine ray, or leave them out.")
    experiment = _with_overrides(read_experiment(args.experiment), args)

    def say(sentence: str) -> None:
        print(f"note: {shown_plainly(sentence)}.", file=sys.stderr)

    # Libraries talk as they like; what a script reads is the result alone.
    with redirect_stdout(sys.stderr):
        results = evaluate(experiment, args.out, lambda settled: _engine(settled, args), say, args.allow_pickle)
    print(results.to_json() if args.json else tables_of(results))
    print(f"Everything is in {args.out}; open {args.out / 'report.html'} to look at it.", file=sys.stderr)
    return 0


def _with_overrides(experiment: Experiment, args: argparse.Namespace) -> Experiment:
    from tokenmerge.cli.options import read_size, read_whole
    from tokenmerge.runtime.generation import MOST_STEPS

    model, prompts, image, metrics = experiment.model, experiment.prompts, experiment.image, experiment.metrics
    if args.model:
        model = dataclasses.replace(model, name=args.model)
    if args.prompts:
        prompts = dataclasses.replace(prompts, file=str(args.prompts.expanduser().resolve()), column=None)
    if args.column:
        prompts = dataclasses.replace(prompts, column=args.column)
    if args.limit:
        prompts = dataclasses.replace(prompts, limit=read_whole("--limit", args.limit, 1, 1_000_000))
    if args.size:
        size = read_size(args.size)
        assert size is not None
        image = dataclasses.replace(image, width=size[0], height=size[1])
    if args.steps:
        image = dataclasses.replace(image, steps=read_whole("--steps", args.steps, 1, MOST_STEPS))
    seeds = experiment.seeds
    if args.seeds:
        seeds = dataclasses.replace(seeds, values=(), draw=read_whole("--seeds", args.seeds, 1, 10_000))
    if args.real_images:
        metrics = dataclasses.replace(metrics, real_images=str(args.real_images.expanduser().resolve()))
    if args.config:
        experiment = _with_variant(experiment, args.config)
    return dataclasses.replace(experiment, model=model, prompts=prompts, seeds=seeds, image=image, metrics=metrics)


def _with_variant(experiment: Experiment, file: Path) -> Experiment:
    """The experiment with a config file as its last variant, named after the file.

    Options that the method has anyway are left out: toml has no word for None, so not all could be written down.
    """
    from tokenmerge.cli.options import read_config
    from tokenmerge.eval.experiment import VariantChoice
    from tokenmerge.methods.named import METHODS

    values = read_config(str(file)).to_dict()
    method = values.pop("method")
    presets = {name: named.make() for name, named in METHODS.items()}
    as_they_come = (name for name, preset in presets.items() if preset == type(preset)())
    name = next((name for name in as_they_come if type(presets[name]).__name__ == method), None)
    if name is None:
        raise UsageError(f"--config {file} has the method {method}, which experiments do not know by a name.")
    own = presets[name].to_dict()
    options = {option: value for option, value in values.items() if value != own[option]}
    variant = VariantChoice(file.stem, name, ratios=(), options=options)
    return dataclasses.replace(experiment, variants=(*experiment.variants, variant))


def _engine(experiment: Experiment, args: argparse.Namespace) -> Engine:
    if args.engine == "ray":
        from tokenmerge.cli.options import read_whole
        from tokenmerge.eval.ray_engine import RayEngine

        workers = None if args.workers is None else read_whole("--workers", args.workers, 1, 10_000)
        return RayEngine(experiment, args.address, workers, args.allow_pickle)
    from tokenmerge.eval.engine import LocalEngine
    from tokenmerge.eval.loading import load_maker

    return LocalEngine(experiment, partial(load_maker, allow_pickle=args.allow_pickle))
