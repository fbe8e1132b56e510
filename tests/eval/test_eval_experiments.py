"""The committed experiments: each is read, covers its table, and every config in it runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tokenmerge.accelerations.merging import Merging
from tokenmerge.api import merged
from tokenmerge.eval.experiment import read_experiment
from tokenmerge.eval.prompts import read_prompts
from tokenmerge.eval.variants import variants_of
from tokenmerge.methods.skip_steps import SkipSteps
from tokenmerge.runtime.tiny_random import build_tiny_random

FOLDER = Path(__file__).parents[2] / "experiments"
FILES = sorted(FOLDER.glob("*.toml"))
TABLES = ("1_1", "1_2", "1_3", "1_4", "2", "3_1", "3_2", "4")


def test_there_is_one_for_every_table():
    expected = {f"thesis_{table}" for table in TABLES} | {f"toma_table_{table}" for table in (1, 2, 3, 6, 7, 9, 10)}
    assert {path.stem for path in FILES} >= expected
    listed = (FOLDER / "README.md").read_text()
    assert all(f"`{path.name}`" in listed for path in FILES)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_reads_and_builds(path):
    experiment = read_experiment(path)
    assert len(variants_of(experiment)) > 2
    assert len(read_prompts(Path(experiment.prompts.file), None, 64)) == 64
    assert experiment.model.name in ("emoji-sd", "emoji-sd-4", "photo-flux")


def test_every_front_has_ours_fewer_steps_and_rivals():
    """And its first setting of our presets is a preset by name, so that a file stays valid when a preset changes."""
    for path in FOLDER.glob("front_*.toml"):
        variants = variants_of(read_experiment(path))
        assert variants[1].name == "fewer steps"
        ours = [v.setting for v in variants if v.acceleration and v.acceleration.ours]
        assert ours[0].startswith("preset = ")
        assert len({v.name for v in variants}) >= 5


@torch.inference_mode()
def test_every_config_merges_on_a_small_model():
    """Two guided steps of a tiny UNet on 32 x 32 tokens, with the smallest and the largest ratio of every variant.

    One of the two may be full: some lists of ratios begin with 0, and the second step may be a full one.
    """
    unet = build_tiny_random().unet
    noise, text = torch.randn(1, 4, 32, 32).repeat(2, 1, 1, 1), torch.randn(2, 77, 32)
    inputs = (noise, torch.tensor(400), text)
    before = (noise, torch.tensor(500), text)
    plain, plain_before = unet(*inputs).sample, unet(*before).sample
    for label, config in distinct_configs().items():
        with merged(unet, config):
            same = torch.equal(unet(*before).sample, plain_before) and torch.equal(unet(*inputs).sample, plain)
            assert not same, label
    assert torch.equal(unet(*inputs).sample, plain)


def distinct_configs():
    """Of every variant of every file the first and the last, each config once."""
    found = {}
    for path in FILES:
        variants = [v for v in variants_of(read_experiment(path)) if isinstance(v.acceleration, Merging)]
        first = {variant.name: variant for variant in reversed(variants)}
        last = {variant.name: variant for variant in variants}
        for variant in (*first.values(), *last.values()):
            config = variant.acceleration.config
            if isinstance(config, SkipSteps):  # which merges nothing
                continue
            found.setdefault(repr(config), (f"{path.stem}: {variant.label}", config))
    return dict(found.values())


def test_the_readme_shows_every_key():
    """The example in the README is itself an experiment, and no key of a file goes without a word there."""
    import dataclasses
    import tomllib

    from tokenmerge.eval import experiment as module

    text = (FOLDER / "README.md").read_text().split("```toml\n")[1].split("```")[0]
    values = tomllib.loads(text)
    experiment = module.parse_experiment(values, FOLDER)
    ours = next(v.acceleration for v in variants_of(experiment) if isinstance(v.acceleration, Merging))
    assert ours.config.tile == (4, 4)
    for field in dataclasses.fields(module.Experiment):
        assert field.name in values
    for section in ("model", "prompts", "seeds", "image", "timing", "metrics", "figures"):
        for field in dataclasses.fields(type(getattr(experiment, section))):
            assert f"{field.name} = " in text or field.name == "column", f"{section}.{field.name}"
