"""tune(): the fastest config that keeps a quality budget on a handful of prompts."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenmerge.api import config_of, merged
from tokenmerge.autotune.generator import Generate, Generator, Pair, generator_of, pairs_of
from tokenmerge.config.base import MergeConfig
from tokenmerge.config.correction import FullSteps
from tokenmerge.config.ratio import is_number, ratio_text
from tokenmerge.errors import ConfigError, NothingMergedError, TokenMergeError
from tokenmerge.methods.sampled_keys import SampledKeys
from tokenmerge.methods.tile_mean import TileMean
from tokenmerge.methods.toma import ToMA
from tokenmerge.report.terminal import fitted
from tokenmerge.runtime.fidelity import PSNR_OF_EQUAL_IMAGES, psnr_of
from tokenmerge.runtime.files import write_json

RATIOS = (0.75, 0.5, 0.25)
TILES = (4, 2)
KEY_TILES: tuple[tuple[int, int], ...] = ((2, 2), (1, 2))  # one key of four, one of two


class BudgetError(TokenMergeError, RuntimeError):
    """No config keeps the budget; `trials` has all that were tried."""

    def __init__(self, sentence: str, trials: tuple[Trial, ...]) -> None:
        super().__init__(sentence)
        self.trials = trials


@dataclass(frozen=True)
class Trial:
    """One config, on every prompt and seed."""

    config: MergeConfig
    work: float  # predicted multiply-adds, as a share of the unmerged model's
    psnr: list[float] = field(default_factory=list)  # decibels to the unmerged image, one for each
    seconds: list[float] = field(default_factory=list)

    @property
    def mean_psnr(self) -> float:
        return statistics.mean(self.psnr)

    def to_dict(self) -> dict[str, Any]:
        return {
            "config": self.config.to_dict(),
            "work": self.work,
            "mean_psnr": self.mean_psnr,
            "psnr": self.psnr,
            "seconds": self.seconds,
        }


@dataclass(frozen=True)
class Tuned:
    """What `tune` found. Print it, save it, or take its `config`."""

    config: MergeConfig
    min_psnr: float
    trials: tuple[Trial, ...]  # from the one with the least work on; the last is the one that was chosen
    unmerged_seconds: list[float]

    @property
    def speedup(self) -> float:
        """Measured on these prompts: median time of the unmerged pipeline over that of the config."""
        return statistics.median(self.unmerged_seconds) / statistics.median(self.trials[-1].seconds)

    def to_dict(self) -> dict[str, Any]:
        return {
            "config": self.config.to_dict(),
            "min_psnr": self.min_psnr,
            "speedup": self.speedup,
            "unmerged_seconds": self.unmerged_seconds,
            "trials": [trial.to_dict() for trial in self.trials],
        }

    def save(self, file: str | Path) -> None:
        """Write the config as JSON; `MergeConfig.from_dict` and `--config` read it."""
        write_json(Path(file), self.config.to_dict())

    def __str__(self) -> str:
        return f"{table_of(self.trials, self.min_psnr)}\n\n{self.speedup:.2f}x, measured: {self.config!r}"


def tune(
    pipe: Any,
    prompts: Sequence[Any],
    min_psnr: float = 30.0,
    *,
    seeds: Sequence[int] = (0,),
    candidates: Sequence[MergeConfig | str] | None = None,
    generate: Generate | None = None,
    progress: bool = True,
    **options: Any,
) -> Tuned:
    """Try configs on your prompts, the one with the least work first, until one keeps the budget.

    min_psnr: decibels to the unmerged image, on average over prompts and seeds. At 30 differences show side by side; at
        40 they hardly do.
    candidates: configs or presets to choose from; None takes a ladder of TileMean, ToMA and SampledKeys that fits
        the model.
    generate: a function (prompt, seed, **options) that generates with the model `pipe` and returns an image, an array
        or a tensor: for models that have no pipeline. Prompts are then whatever it takes, such as labels or None.
    options: anything the pipeline's call takes, such as num_inference_steps, width, height and guidance_scale.

    >>> found = tune(pipe, ["red apple", "old boat"], min_psnr=32, num_inference_steps=20)  # doctest: +SKIP
    >>> found.save("config.json")  # doctest: +SKIP
    """
    pairs = pairs_of(prompts, seeds)
    chosen = None if candidates is None else [config_of(candidate, pipe) for candidate in candidates]
    if not is_number(min_psnr) or not 0 < min_psnr < PSNR_OF_EQUAL_IMAGES:
        raise ConfigError(f"min_psnr is {min_psnr!r}: it takes decibels above 0 and below 100, such as 30.")
    tried: list[Trial] = []
    generator = generator_of(pipe, generate, options)
    with generator.quiet(), _bar(progress) as bar:
        generator.warm_up(*pairs[0])
        ladder = _ladder(pipe, chosen, generator, bar)
        bar.reset(len(pairs) * (1 + len(ladder)))
        bar.set_description("unmerged")
        unmerged = [_timed(generator, pair, bar) for pair in pairs]
        for config, work in ladder:
            bar.set_description(_short(config))
            trial = _try(pipe, config, work, pairs, generator, [image for image, _ in unmerged], bar)
            if trial is None:
                continue
            tried.append(trial)
            if trial.mean_psnr >= min_psnr:
                return Tuned(config, min_psnr, tuple(tried), [seconds for _, seconds in unmerged])
    if not tried:
        raise BudgetError(
            "with this few steps every candidate would run all steps unmerged: increase num_inference_steps or pass "
            "other candidates.",
            (),
        )
    nearest = max(tried, key=lambda trial: trial.mean_psnr)
    raise BudgetError(
        f"none of {len(tried)} configs keeps {min_psnr:g} dB: the nearest is {_short(nearest.config)} with "
        f"{nearest.mean_psnr:.1f} dB. Lower min_psnr, or give milder candidates.",
        tuple(tried),
    )


def default_ladder() -> list[MergeConfig]:
    """From fast to mild: tile means, ToMA with and without a correction, ToMA in self-attention alone, sampled keys."""
    corrections = FullSteps(), FullSteps(every=3), FullSteps(every=2, within=None)
    means = (TileMean(tile=tile, correction=correction) for tile in TILES for correction in corrections)
    kinds: tuple[dict[str, Any], ...] = (
        {"scope": "stack"},
        {"correction": FullSteps(every=4)},
        {"parts": ("self",)},
    )
    selected = (ToMA(ratio=ratio, **kind) for ratio in RATIOS for kind in kinds)
    return [*means, *selected, *(SampledKeys(tile=tile) for tile in KEY_TILES)]


def table_of(trials: Sequence[Trial], min_psnr: float) -> str:
    """A row for each config that was tried."""
    rows = [
        (
            _short(trial.config),
            f"{trial.work:.0%}",
            f"{statistics.median(trial.seconds):.2f}",
            f"{trial.mean_psnr:.1f}",
            f"{min(trial.psnr):.1f}",
            "yes" if trial.mean_psnr >= min_psnr else "no",
        )
        for trial in trials
    ]
    headers = ["config", "multiply-adds", "median s", "mean dB", "worst dB", f"keeps {min_psnr:g} dB"]
    return fitted(rows, headers)


def _ladder(
    pipe: Any, candidates: Sequence[MergeConfig] | None, generator: Generator, bar: Any
) -> list[tuple[MergeConfig, float]]:
    """Configs with the share of work they leave, the least first."""
    given = candidates is not None
    configs = list(candidates) if candidates is not None else default_ladder()
    bar.reset(len(configs))
    bar.set_description("counting work")
    ladder = []
    for config in configs:
        bar.update()
        try:
            ladder.append((config, _work(pipe, config, generator)))
        except (ConfigError, NothingMergedError):
            # A ladder for every model has rungs that do not fit this one; a rung of the user's own has to.
            if given:
                raise
    if not ladder:
        raise ConfigError(
            "there is no candidate that fits this model at this size: give candidates, or a larger image."
        )
    return sorted(ladder, key=lambda rung: rung[1])


def _work(pipe: Any, config: MergeConfig, generator: Generator) -> float:
    with merged(pipe, config, steps=generator.steps) as handle:
        return generator.work(handle)


def _try(
    pipe: Any,
    config: MergeConfig,
    work: float,
    pairs: list[Pair],
    generator: Generator,
    unmerged: list[Any],
    bar: Any,
) -> Trial | None:
    """A config on every pair; None if the images have so few steps that all of them run full."""
    trial = Trial(config, work)
    with merged(pipe, config, steps=generator.steps) as handle:
        for pair, image in zip(pairs, unmerged, strict=True):
            handle.reset()
            made, seconds = _timed(generator, pair, bar)
            trial.psnr.append(psnr_of(image, made))
            trial.seconds.append(seconds)
        sped_up = any(session.merged_calls or session.skipped_calls for session in handle._sessions)
        return trial if sped_up else None


def _timed(generator: Generator, pair: Pair, bar: Any) -> tuple[Any, float]:
    made = generator.timed(*pair)
    bar.update()
    return made


@contextmanager
def _bar(shown: bool) -> Iterator[Any]:
    from tqdm import tqdm

    with tqdm(leave=False, disable=not shown) as bar:
        yield bar


def _short(config: MergeConfig) -> str:
    """The method, how much it merges, and its options that are not the default."""
    plain = type(config)()
    measure = next(name for name in ("ratio", "tile", "step_speedup") if config.has_option(name))
    shown = {measure: ratio_text(config.ratio) if measure == "ratio" else repr(vars(config)[measure])}
    for name, value in vars(config).items():
        if name not in shown and value != getattr(plain, name):
            shown[name] = repr(value)
    return f"{type(config).__name__}({', '.join(f'{name}={value}' for name, value in shown.items())})"
