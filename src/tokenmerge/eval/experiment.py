"""An experiment: which model, prompts, seeds and variants; read from a toml file and written back as it was run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenmerge.config.checks import LARGEST_SIDE
from tokenmerge.eval.errors import ExperimentError
from tokenmerge.eval.strict_toml import TomlTable, read_toml, to_toml
from tokenmerge.runtime.devices import DTYPES
from tokenmerge.runtime.generation import LARGEST_SEED, MOST_STEPS

FEWER_STEPS = (0.5,)
METRICS = ("mse", "psnr", "ssim", "lpips", "fid", "fid_real", "clip", "dino")
MOST_VARIANTS = 200
MOST_IMAGES = 2_000_000


@dataclass(frozen=True)
class ModelChoice:
    """name: an embedded model, a local folder or a hub id; "" is the package's own default."""

    name: str = ""
    dtype: str = "auto"  # float32 on a CPU, half precision elsewhere
    device: str = "auto"
    threads: int = (
        0  # CPU threads; 0: torch's own choice, written down when the run begins, so that resuming repeats it
    )


@dataclass(frozen=True)
class PromptChoice:
    file: str
    column: str | None = None
    limit: int | None = None


@dataclass(frozen=True)
class SeedChoice:
    """values: each prompt with each of these seeds. Or `draw` seeds a prompt, sampled from the number `start`."""

    values: tuple[int, ...] = ()
    draw: int | None = None  # 1, where nothing is said
    start: int | None = None  # sampled when the run begins and written down, unless given

    @property
    def per_prompt(self) -> int:
        return len(self.values) or self.draw or 1


@dataclass(frozen=True)
class ImageChoice:
    width: int = 512
    height: int = 512
    steps: int = 25
    guidance: float | None = None  # None: the pipeline's own


@dataclass(frozen=True)
class TimingChoice:
    warmup: int = 1  # images per variant that are made and thrown away before any is timed
    warmup_steps: int = 2


@dataclass(frozen=True)
class AlsoChoice:
    """What is applied together with a variant, such as a cache."""

    method: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class VariantChoice:
    """method: one of ours, "preset", or a rival. settings: options that are tried one after the other, as one curve."""

    name: str
    method: str
    ratios: tuple[float, ...] | None = None  # None: the experiment's; empty: the method's options say it all
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: tuple[Mapping[str, Any], ...] = ()
    also: AlsoChoice | None = None


@dataclass(frozen=True)
class MetricChoice:
    """Which metrics, and where their networks are: a local path or a hub id; None looks for an installed package."""

    names: tuple[str, ...] = METRICS
    inception: str | None = None
    lpips: str | None = None
    clip: str | None = None
    dino: str | None = None
    real_images: str | None = None
    resamples: int = 1000


@dataclass(frozen=True)
class FigureChoice:
    hidden_states: bool = False  # k-means of hidden states over blocks and steps (paper Fig. 3)
    destinations: bool = False  # overlap of destinations over steps (paper Fig. 4)
    gallery: int = 300  # at most this many images go into report.html


@dataclass(frozen=True)
class Experiment:
    """Everything that a run is made from."""

    name: str
    prompts: PromptChoice
    variants: tuple[VariantChoice, ...]
    description: str = ""
    ratios: tuple[float, ...] = (0.5,)
    fewer_steps: tuple[float, ...] = FEWER_STEPS  # shares of the steps: the first rows of every table
    reference: str = ""  # the variant that paired differences are taken to; "" is the first
    model: ModelChoice = ModelChoice()
    seeds: SeedChoice = SeedChoice()
    image: ImageChoice = ImageChoice()
    timing: TimingChoice = TimingChoice()
    metrics: MetricChoice = MetricChoice()
    figures: FigureChoice = FigureChoice()

    def to_toml(self) -> str:
        return to_toml(dataclasses.asdict(self))

    def what_makes_images(self) -> dict[str, Any]:
        """The part that decides how an image comes out and how long it takes; the rest may change between runs.

        Prompts and seeds are not in it: the pairs made of them are compared themselves.
        """
        parts = dataclasses.asdict(self)
        return {key: parts[key] for key in ("model", "image", "timing", "ratios", "fewer_steps", "variants")}


def read_experiment(path: Path) -> Experiment:
    """An experiment file. Paths in it count from its own folder."""
    return parse_experiment(_with_base(read_toml(path), path), path.parent)


def _with_base(values: dict[str, Any], path: Path) -> dict[str, Any]:
    """The values of a file over those of the file next to it that it names as its `base`, table by table."""
    name = values.pop("base", None)
    if name is None:
        return values
    if not isinstance(name, str) or Path(name).name != name:
        raise ExperimentError(f"base in {path} is {name!r}: it takes the name of a file in the same folder.")
    under = read_toml(path.parent / name)
    if "base" in under:
        raise ExperimentError(f"{path} has the base {name}, which has a base itself: name one without.")
    tables = {
        key: {**under[key], **value}
        for key, value in values.items()
        if isinstance(value, dict) and isinstance(under.get(key), dict)
    }
    return {**under, **values, **tables}


def parse_experiment(values: dict[str, Any], folder: Path) -> Experiment:
    table = TomlTable(values, "the experiment", _names(Experiment))
    experiment = Experiment(
        name=table.text("name"),
        description=table.text("description", ""),
        ratios=table.numbers("ratios", 100) if "ratios" in table else (0.5,),
        fewer_steps=table.numbers("fewer_steps", 20) if "fewer_steps" in table else FEWER_STEPS,
        reference=table.text("reference", ""),
        model=_model(_sub(table, "model", ModelChoice)),
        prompts=_prompts(_sub(table, "prompts", PromptChoice), folder),
        seeds=_seeds(_sub(table, "seeds", SeedChoice)),
        image=_image(_sub(table, "image", ImageChoice)),
        timing=_timing(_sub(table, "timing", TimingChoice)),
        variants=_variants(table.value("variants")),
        metrics=_metrics(_sub(table, "metrics", MetricChoice), folder),
        figures=_figures(_sub(table, "figures", FigureChoice)),
    )
    names = [variant.name for variant in experiment.variants]
    if experiment.reference and experiment.reference not in names:
        raise ExperimentError(
            f"reference is {experiment.reference!r}, which is no variant: use one of {', '.join(map(repr, names))}."
        )
    return experiment


def _names(kind: type) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)]


def _sub(table: TomlTable, key: str, kind: type) -> TomlTable:
    return TomlTable(table.value(key, {}), f"[{key}]", _names(kind))


def _model(table: TomlTable) -> ModelChoice:
    return ModelChoice(
        name=table.text("name", ""),
        dtype=table.choice("dtype", "auto", ("auto", *DTYPES)),
        device=table.text("device", "auto"),
        threads=table.whole("threads", 0, 0, 4096),
    )


def _prompts(table: TomlTable, folder: Path) -> PromptChoice:
    return PromptChoice(
        file=str(_beside(folder, table.text("file"))),
        column=table.text("column") if "column" in table else None,
        limit=table.whole("limit", None, 1, 1_000_000) if "limit" in table else None,
    )


def _seeds(table: TomlTable) -> SeedChoice:
    values = table.wholes("values", 0, LARGEST_SEED, 10_000) if "values" in table else ()
    if values and ("draw" in table or "start" in table):
        raise ExperimentError("[seeds] has values and draw or start: give the seeds, or have them sampled, not both.")
    if len(set(values)) < len(values):
        raise ExperimentError(f"values in [seeds] holds {_twice(values)} twice: each seed once.")
    return SeedChoice(
        values=values,
        draw=table.whole("draw", None, 1, 10_000) if "draw" in table else None,
        start=table.whole("start", None, 0, LARGEST_SEED) if "start" in table else None,
    )


def _image(table: TomlTable) -> ImageChoice:
    return ImageChoice(
        width=table.whole("width", 512, 8, LARGEST_SIDE),
        height=table.whole("height", 512, 8, LARGEST_SIDE),
        steps=table.whole("steps", 25, 1, MOST_STEPS),
        guidance=table.number("guidance", None, 0, 1000) if "guidance" in table else None,
    )


def _timing(table: TomlTable) -> TimingChoice:
    return TimingChoice(table.whole("warmup", 1, 0, 100), table.whole("warmup_steps", 2, 1, MOST_STEPS))


def _variants(value: Any) -> tuple[VariantChoice, ...]:
    if not isinstance(value, list) or not 0 < len(value) <= MOST_VARIANTS:
        raise ExperimentError(
            f"the experiment needs between 1 and {MOST_VARIANTS} variants: add a [[variants]] table with a method."
        )
    variants = tuple(_variant(item, index) for index, item in enumerate(value))
    names = [variant.name for variant in variants]
    if len(set(names)) < len(names):
        raise ExperimentError(f"two variants are named {_twice(names)!r}: give each another name.")
    return variants


def _variant(value: object, index: int) -> VariantChoice:
    table = TomlTable(value, f"[[variants]] number {index + 1}", _names(VariantChoice))
    method = table.text("method")
    settings = table.value("settings", [])
    if not isinstance(settings, list) or not all(isinstance(item, dict) and item for item in settings):
        raise table.wrong("settings", settings, "a list of tables of the method's options")
    return VariantChoice(
        name=table.text("name", method),
        method=method,
        ratios=table.numbers("ratios", 100) if "ratios" in table else None,
        options=_options(table),
        settings=tuple(settings),
        also=_also(table.value("also"), table.where) if "also" in table else None,
    )


def _also(value: object, where: str) -> AlsoChoice:
    table = TomlTable(value, f"also in {where}", _names(AlsoChoice))
    return AlsoChoice(table.text("method"), _options(table))


def _options(table: TomlTable) -> dict[str, Any]:
    options = table.value("options", {})
    if not isinstance(options, dict):
        raise table.wrong("options", options, "a table of the method's options")
    return options


def _metrics(table: TomlTable, folder: Path) -> MetricChoice:
    names = table.texts("names", METRICS, len(METRICS))
    for name in names:
        if name not in METRICS:
            raise table.wrong("names", name, f"some of {', '.join(map(repr, METRICS))}")
    networks = {
        key: _path_or_hub_id(folder, table.text(key)) if key in table else None
        for key in ("inception", "lpips", "clip", "dino")
    }
    real = str(_beside(folder, table.text("real_images"))) if "real_images" in table else None
    return MetricChoice(names, **networks, real_images=real, resamples=table.whole("resamples", 1000, 100, 100_000))


def _figures(table: TomlTable) -> FigureChoice:
    return FigureChoice(
        hidden_states=table.flag("hidden_states", False),
        destinations=table.flag("destinations", False),
        gallery=table.whole("gallery", 300, 0, 2000),
    )


def _beside(folder: Path, path: str) -> Path:
    return (folder / Path(path).expanduser()).resolve()


def _path_or_hub_id(folder: Path, name: str) -> str:
    found = _beside(folder, name)
    return str(found) if found.exists() else name


def _twice(items: Any) -> Any:
    return next(item for item in items if list(items).count(item) > 1)
