"""Differences to the reference, worked out by hand."""

import pytest

from tokenmerge.eval.experiment import Experiment, PromptChoice, VariantChoice
from tokenmerge.eval.metrics.measure import Measurements
from tokenmerge.eval.pairs import Pair
from tokenmerge.eval.records import Record
from tokenmerge.eval.results import Results, results_of
from tokenmerge.eval.statistics import Estimate
from tokenmerge.eval.tables import tables_of
from tokenmerge.eval.variants import variants_of

PAIRS = [Pair("00000", "a", 1), Pair("00001", "b", 2)]
SECONDS = {"baseline": 5.0, "plain_r0.25": 3.0, "plain_r0.5": 1.0, "between_r0.5": 1.5, "fastest_r0.5": 0.5}
EXECUTED = {key: int(1e9 * seconds) for key, seconds in SECONDS.items()}
PSNR = {"plain_r0.25": (40, 50), "plain_r0.5": (20, 30), "between_r0.5": (28, 37), "fastest_r0.5": (10, 10)}
FID = {"plain_r0.25": 10.0, "plain_r0.5": 30.0, "between_r0.5": 20.0, "fastest_r0.5": 90.0}


@pytest.fixture
def results() -> Results:
    experiment = Experiment(
        name="by hand",
        prompts=PromptChoice(file="prompts.txt"),
        fewer_steps=(),
        variants=(
            VariantChoice("plain", "toma", (0.25, 0.5)),
            VariantChoice("between", "toma-stack", (0.5,)),
            VariantChoice("fastest", "tomesd", (0.5,)),
        ),
    )
    variants = variants_of(experiment)
    records = {
        (v.key, pair.id): Record(
            pair.id,
            v.key,
            v.ratio,
            pair.prompt,
            pair.seed,
            SECONDS[v.key],
            EXECUTED[v.key],
            "x.png",
            1,
            "",
            "here",
            {},
        )
        for v in variants
        for pair in PAIRS
    }
    measured = Measurements(
        values={
            "psnr": {key: dict(zip(("00000", "00001"), map(float, two), strict=True)) for key, two in PSNR.items()}
        },
        sets={"fid": {key: Estimate(value, value, value, 2) for key, value in FID.items()}},
    )
    return results_of(experiment, PAIRS, variants, records, measured)


def of(results: Results, key: str):
    return next(variant for variant in results.variants if variant.key == key)


def test_at_equal_speed_the_reference_lies_between_two_of_its_ratios(results):
    """1.5 s is a quarter of the way from 1 s to 3 s: 25 and 35 dB, and a FID of 25."""
    gained = of(results, "between_r0.5").to_reference_as_fast
    assert gained["psnr"].value == pytest.approx((3 + 2) / 2)
    assert (gained["psnr"].low, gained["psnr"].high) == pytest.approx((2, 3))
    assert gained["fid"].value == pytest.approx(-5)
    assert gained["seconds"].value == pytest.approx(0)


def test_at_the_same_ratio_it_is_the_one_that_keeps_as_many(results):
    assert of(results, "between_r0.5").to_reference["psnr"].value == pytest.approx((8 + 7) / 2)
    assert of(results, "plain_r0.5").to_reference == {}


def test_what_is_faster_than_every_ratio_of_the_reference_is_compared_with_none(results):
    assert of(results, "fastest_r0.5").to_reference_as_fast == {}
    assert of(results, "plain_r0.5").to_reference_as_fast == {}
    equal = tables_of(results).split("at equal speed")[1].split("##")[0]
    assert "between" in equal
    assert "fastest" not in equal


def test_executed_multiply_adds_stand_beside_the_time(results):
    assert of(results, "between_r0.5").saved == pytest.approx(5 / 1.5)
    row = next(line for line in tables_of(results).split("## Time")[1].splitlines() if line.startswith("| fastest"))
    assert "| 0.5 " in row
    assert "10.00x" in row


def test_a_method_without_a_ratio_comes_once_and_is_shown_with_what_its_tile_merges():
    experiment = Experiment(
        name="tiles",
        prompts=PromptChoice(file="prompts.txt"),
        ratios=(0.25, 0.5),
        fewer_steps=(),
        variants=(VariantChoice("means", "tile-mean"), VariantChoice("plain", "toma")),
    )
    found = [(variant.key, variant.ratio) for variant in variants_of(experiment)]
    assert found == [("baseline", None), ("means", 0.9375), ("plain_r0.25", 0.25), ("plain_r0.5", 0.5)]
