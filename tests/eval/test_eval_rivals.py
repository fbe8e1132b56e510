"""Rivals as variants of a run: fewer steps first, multiply-adds next to the time, and nothing fails silently."""

from __future__ import annotations

import json
import pickle

import pytest
from test_eval_evaluate import rows_of, run_command

from tokenmerge.accelerations.together import Together
from tokenmerge.errors import TokenMergeError
from tokenmerge.eval.errors import ExperimentError
from tokenmerge.eval.experiment import read_experiment
from tokenmerge.eval.variants import variants_of

RIVALS = """
[metrics]
names = ["psnr"]

[[variants]]
name = "DeepCache"
method = "deepcache"
settings = [{ cache_interval = 2 }, { cache_interval = 9 }]

[[variants]]
name = "ToMeSD and DeepCache"
method = "tomesd-package"
options = { ratio = 0.5 }
also = { method = "deepcache", options = { cache_interval = 2 } }
"""
FOUR_STEPS = ("steps = 2\n", "steps = 4\n")
DEFAULT_FEWER_STEPS = ("fewer_steps = []\n", "")


def test_a_run_with_rivals(experiment_file, tmp_path):
    path = experiment_file(FOUR_STEPS, DEFAULT_FEWER_STEPS, prompts=["a", "b"], more=RIVALS)
    run_command(path, "--out", tmp_path / "run")
    rows = rows_of((tmp_path / "run" / "tables.md").read_text(), "Time")
    names = [row["variant"] for row in rows]
    assert names[:2] == ["baseline", "fewer steps, 2 of 4"]
    assert "DeepCache, cache_interval = 2" in names
    assert "ToMeSD and DeepCache" in names
    saved = {row["variant"]: float(row["fewer by"].removesuffix("x")) for row in rows}
    assert saved["baseline"] == 1
    assert saved["fewer steps, 2 of 4"] == 2
    assert saved["ToMeSD and DeepCache"] > saved["DeepCache, cache_interval = 2"] > 1
    # A second process has nothing left to make, and says the same.
    before = (tmp_path / "run" / "metrics.json").read_bytes()
    run_command(path, "--out", tmp_path / "run")
    assert (tmp_path / "run" / "metrics.json").read_bytes() == before


def test_images_of_fewer_steps_are_those_of_a_run_with_fewer(experiment_file, tmp_path):
    many = experiment_file(FOUR_STEPS, DEFAULT_FEWER_STEPS, prompts=["a"], more='\n[metrics]\nnames = ["psnr"]\n')
    run_command(many, "--out", tmp_path / "many")
    few = experiment_file(prompts=["a"], more='\n[metrics]\nnames = ["psnr"]\n')
    run_command(few, "--out", tmp_path / "few")

    def image(folder, variant):
        records = map(json.loads, (tmp_path / folder / "records.jsonl").read_text().splitlines())
        record = next(record for record in records if record["variant"] == variant)
        from PIL import Image

        return Image.open(tmp_path / folder / record["file"]).tobytes()

    assert image("many", "fewer-steps_2") == image("few", "baseline")


def test_a_rival_that_saves_nothing_is_pointed_out(experiment_file, tmp_path):
    """All levels run at the first step of an interval, and there is but one step."""
    more = RIVALS.split('[[variants]]\nname = "ToMeSD')[0]
    path = experiment_file(("steps = 2\n", "steps = 1\n"), DEFAULT_FEWER_STEPS, prompts=["a"], more=more)
    run_command(path, "--out", tmp_path / "run")
    tables = (tmp_path / "run" / "tables.md").read_text()
    assert "DeepCache, cache_interval = 9 saved nothing: it executed as many multiply-adds as the baseline" in tables
    assert "fewer steps" not in tables


def test_a_rival_that_does_not_fit_ends_the_run_with_a_sentence(experiment_file, tmp_path):
    more = '\n[[variants]]\nname = "TaylorSeer"\nmethod = "taylorseer"\n'
    with pytest.raises(TokenMergeError, match=r"TaylorSeer does not fit .* denoises with a UNet.* Leave it out"):
        run_command(experiment_file(prompts=["a"], more=more), "--out", tmp_path / "run")


def test_variants_travel_to_other_machines(experiment_file):
    variants = variants_of(read_experiment(experiment_file(FOUR_STEPS, DEFAULT_FEWER_STEPS, more=RIVALS)))
    assert pickle.loads(pickle.dumps(variants)) == variants
    assert isinstance(variants[-1].acceleration, Together)


def test_few_steps_have_each_number_of_steps_once(experiment_file):
    shares = ("fewer_steps = []", "fewer_steps = [0.8, 0.65, 0.5, 0.4, 0.3]")
    variants = variants_of(read_experiment(experiment_file(FOUR_STEPS, shares)))
    assert [v.setting for v in variants if v.name == "fewer steps"] == ["3 of 4", "2 of 4", "1 of 4"]


def test_a_file_may_rest_on_another(experiment_file):
    path = experiment_file()
    (path.parent / "longer.toml").write_text('base = "experiment.toml"\nname = "longer"\n\n[image]\nsteps = 9\n')
    base, longer = read_experiment(path), read_experiment(path.parent / "longer.toml")
    assert (longer.name, longer.image.steps, longer.image.width) == ("longer", 9, base.image.width)
    assert longer.variants == base.variants


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('base = "../other.toml"', "file in the same folder"),
        ('base = "none.toml"', "does not exist"),
        ('base = "twice.toml"', "which has a base itself"),
    ],
)
def test_a_wrong_base_is_a_sentence(experiment_file, text, sentence):
    path = experiment_file()
    (path.parent / "twice.toml").write_text('base = "experiment.toml"\n')
    (path.parent / "new.toml").write_text(text)
    with pytest.raises(ExperimentError, match=sentence):
        read_experiment(path.parent / "new.toml")


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ('method = "deepcache"\nsettings = [1]', "settings in .* is \\[1\\]"),
        ('method = "deepcache"\nratios = [0.5]', "deepcache has no ratio"),
        ('method = "deepcache"\nalso = { methd = "toma" }', "methd"),
        ('method = "preset"\noptions = { preset = "best" }', "preset 'best' is not known"),
    ],
)
def test_wrong_variants_are_a_sentence(experiment_file, more, sentence):
    with pytest.raises(ExperimentError, match=sentence):
        variants_of(read_experiment(experiment_file(more=f'\n[[variants]]\nname = "new"\n{more}\n')))
