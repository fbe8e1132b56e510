"""Experiment files: what is read, what is written back, and every mistake a sentence."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmerge.eval.errors import ExperimentError
from tokenmerge.eval.experiment import parse_experiment, read_experiment
from tokenmerge.eval.pairs import make_pairs, seeds_of
from tokenmerge.eval.strict_toml import to_toml
from tokenmerge.eval.variants import variants_of


def test_reads_every_part(experiment_file):
    experiment = read_experiment(experiment_file())
    assert experiment.name == "small"
    assert experiment.image.width == 128
    assert experiment.image.guidance == 2.0
    assert experiment.seeds.values == (7,)
    assert Path(experiment.prompts.file).is_absolute()
    variants = variants_of(experiment)
    assert [v.key for v in variants] == ["baseline", "ToMA_r0.5", "LB_r0.25", "LB_r0.5"]
    assert variants[2].acceleration.config.ratio == 0.25


def test_survives_being_written_and_read_again(experiment_file, tmp_path):
    experiment = read_experiment(experiment_file(("[prompts]", "[prompts]\nlimit = 3")))
    again = tmp_path / "again.toml"
    again.write_text(experiment.to_toml())
    assert read_experiment(again) == experiment


BAD = [
    (("steps = 2", "step = 2"), "[image] has no key 'step': did you mean steps?"),
    (('name = "small"', 'nmae = "small"'), "the experiment has no key 'nmae': did you mean name?"),
    (("[timing]", "[timming]"), "did you mean timing?"),
    (("steps = 2", "steps = 0"), "steps in [image] is 0: it takes a whole number from 1 to 1000."),
    (("steps = 2", "steps = true"), "steps in [image] is True"),
    (("steps = 2", "steps = 2.5"), "steps in [image] is 2.5"),
    (("width = 128", "width = 100000"), "width in [image] is 100000"),
    (("guidance = 2.0", "guidance = nan"), "guidance in [image] is nan"),
    (("guidance = 2.0", 'guidance = "high"'), "guidance in [image] is 'high'"),
    (("values = [7]", "values = [-1]"), "values in [seeds] is -1"),
    (("values = [7]", "values = [7, 7]"), "holds 7 twice"),
    (("values = [7]", "values = [7]\ndraw = 2"), "not both"),
    (("[prompts]", "[prompts]\nlimit = 0"), "limit in [prompts] is 0"),
    (('file = "prompts.txt"', ""), "[prompts] lacks 'file'"),
    (("threads = 1", 'dtype = "int8"'), "dtype in [model] is 'int8'"),
    (('name = "LB"', 'name = "ToMA"'), "two variants are named 'ToMA'"),
    (("ratios = [0.5]", 'ratios = ["half"]'), "ratios in the experiment is 'half': it takes numbers."),
    (("ratios = [0.5]", "ratios = 0.5"), "ratios in the experiment is 0.5: it takes a list"),
    (('name = "small"', 'name = "small"\nreference = "ToDo"'), "reference is 'ToDo', which is no variant"),
    (("[timing]", '[metrics]\nnames = ["psn"]\n[timing]'), "names in [metrics] is 'psn'"),
    (("ratios = [0.5]", "ratios = [0.5"), "is not valid toml"),
]


@pytest.mark.parametrize(("change", "sentence"), BAD, ids=[sentence[:40] for _, sentence in BAD])
def test_a_wrong_file_is_a_sentence(experiment_file, change, sentence):
    with pytest.raises(ExperimentError) as caught:
        read_experiment(experiment_file(change))
    assert sentence in str(caught.value)


WRONG_VARIANTS = [
    (("ratios = [0.5]", "ratios = [1.5]"), "variant 'ToMA': ratio is 1.5"),
    (('method = "toma"', 'method = "tomma"'), "did you mean toma"),
    (('method = "toma"', 'method = "toma"\noptions = { tyle = [4, 4] }'), "no option 'tyle': did you mean tile?"),
    (("ratios = [0.25, 0.5]", "ratios = [0.5, 0.5]"), "share the folder images/LB_r0.5"),
    (('name = "LB"', 'name = "ToMA "'), "share the folder"),
    (('name = "LB"', 'name = "toma"'), "share the folder"),
]


@pytest.mark.parametrize(("change", "sentence"), WRONG_VARIANTS, ids=[s[:40] for _, s in WRONG_VARIANTS])
def test_a_wrong_variant_is_a_sentence(experiment_file, change, sentence):
    with pytest.raises(ExperimentError) as caught:
        variants_of(read_experiment(experiment_file(change)))
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.mkdir(), "is a folder"),
        (lambda path: path.write_bytes(b"\xff\xfe\x00"), "is not text in UTF-8"),
        (lambda path: path.write_text("x = 1\n" * 2_000_000), "a small text"),
    ],
)
def test_an_unreadable_file_is_a_sentence(tmp_path, make, sentence):
    path = tmp_path / "bad.toml"
    make(path)
    with pytest.raises(ExperimentError, match=sentence):
        read_experiment(path)


def test_an_experiment_without_variants_is_refused(tmp_path):
    with pytest.raises(ExperimentError, match="needs between 1 and 200 variants"):
        parse_experiment({"name": "x", "prompts": {"file": "p.txt"}}, tmp_path)


def test_drawn_seeds_do_not_depend_on_how_many_prompts_there_are(experiment_file):
    seeds = read_experiment(experiment_file(("values = [7]", "draw = 2\nstart = 11"))).seeds
    prompts = ["a", "b", "c"]
    cut_of = {prompt: prompt for prompt in prompts}
    assert make_pairs(prompts, seeds, cut_of)[:4] == make_pairs(prompts[:2], seeds, cut_of)
    assert len({seed for index in range(50) for seed in seeds_of(seeds, index)}) == 100
    assert all(0 <= seed < 2**32 for seed in seeds_of(seeds, 0))


plain = st.one_of(st.text(), st.integers(-(2**60), 2**60), st.booleans(), st.floats(allow_nan=False))
values = st.recursive(plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3))


@given(st.dictionaries(st.text(), values, max_size=4))
def test_toml_text_reads_back_as_what_was_written(tables):
    # Surrogates are no characters: nothing can write them.
    try:
        text = to_toml(tables).encode().decode()
    except UnicodeEncodeError:
        return
    assert tomllib.loads(text) == tables
