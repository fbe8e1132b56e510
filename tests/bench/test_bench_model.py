from pathlib import Path

import pytest
import torch
from torch import nn

from tokenmerge.bench import model_bench
from tokenmerge.bench.contenders import Unmerged
from tokenmerge.bench.cost import multiply_adds, peak_memory, shadow_of
from tokenmerge.bench.interleave import interleave
from tokenmerge.bench.model_bench import ModelTrial, model_trials
from tokenmerge.bench.subject import Subject, load_model
from tokenmerge.engine.session import session_of
from tokenmerge.errors import NothingMergedError, UsageError
from tokenmerge.methods.named import METHODS as NAMED
from tokenmerge.methods.named import named_config

METHODS = ("none", "tomesd-package", "toma", "toma-tile", "tile-mean")
KINDS = {"toma": {"select", "steady"}, "toma-tile": {"select", "steady", "weights"}}
KINDS["tile-mean"] = {"full", "steady"}


def test_measures_each_kind_of_step_of_every_method_on_one_model(subject: Subject) -> None:
    before = subject.call(0).sample
    weights = {name: value.clone() for name, value in subject.model.state_dict().items()}
    trials = model_trials(subject, METHODS, [0.5])
    assert interleave(trials, 2, lambda: None)

    measured = {(trial.measurement.method, trial.measurement.ratio): trial.measurement for trial in trials}
    assert list(measured)[:2] == [("none", None), ("blocks-deleted", None)]
    assert len(measured) == 2 + 4
    for (method, _), measurement in measured.items():
        assert set(measurement.times) == KINDS.get(method, {"steady"})
        assert set(measurement.times) == set(measurement.schedule)
        assert all(len(times) == 2 and min(times) > 0 for times in measurement.times.values())
        assert measurement.peak_memory is not None
        assert measurement.notes == []
    assert measured["tomesd-package", 0.5].settings["max_downsample"] == 1
    assert measured["toma", 0.5].settings["method"] == "ToMA"

    assert session_of(subject.model) is None
    assert torch.equal(subject.call(0).sample, before)
    for name, value in subject.model.state_dict().items():
        assert torch.equal(value, weights[name])


def test_multiply_adds_fall_with_the_ratio_and_refreshes_cost_extra(subject: Subject) -> None:
    halves = model_trials(subject, METHODS, [0.5])
    more = model_trials(subject, ("none", "toma"), [0.75], limit=False)
    trials = [*halves, *more]
    counts = {(trial.measurement.method, trial.measurement.ratio): trial.measurement.multiply_adds for trial in trials}
    none, limit = counts["none", None], counts["blocks-deleted", None]
    half, quarter = counts["toma", 0.5], counts["toma", 0.75]
    assert none is not None
    assert limit is not None
    assert half is not None
    assert quarter is not None
    assert none["steady"] > half["steady"] > quarter["steady"] > limit["steady"]
    assert half["select"] > half["steady"]
    tiles, means = counts["toma-tile", 0.5], counts["tile-mean", 0.9375]
    assert tiles is not None
    assert tiles["select"] > tiles["weights"] > tiles["steady"]
    assert means is not None
    assert means["steady"] < half["steady"] < means["full"]
    package = counts["tomesd-package", 0.5]
    assert package is not None
    assert none["steady"] > package["steady"] > limit["steady"]


def test_every_named_method_that_merges_at_each_step_can_be_measured(subject: Subject) -> None:
    methods = [name for name in NAMED if named_config(name).merge_every == 1]
    assert set(NAMED) - set(methods) == {"toma-released"}
    for trial in model_trials(subject, ("none", *methods), [0.5], limit=False):
        trial.visit()
        assert (
            set(trial.measurement.times)
            == set(trial.measurement.schedule)
            == set(trial.measurement.multiply_adds or ())
        )


def test_turns_are_taken_in_the_same_order_in_every_repeat(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    visited: list[str] = []
    visit = ModelTrial.visit

    def recorded(trial: ModelTrial) -> None:
        visited.append(trial.measurement.method)
        visit(trial)

    monkeypatch.setattr(model_bench.ModelTrial, "visit", recorded)
    interleave(model_trials(subject, ("none", "toma"), [0.5]), 2, lambda: None)
    assert visited == ["none", "blocks-deleted", "toma"] * 2


def test_a_ratio_that_merges_nothing_is_found_before_anything_is_timed(subject: Subject) -> None:
    with pytest.raises(NothingMergedError):
        model_trials(subject, ("none", "toma"), [0.001])


def test_the_tomesd_package_is_refused_where_it_cannot_work() -> None:
    from diffusers import PixArtTransformer2DModel

    from tokenmerge.bench.subject import subject_of

    pixart = PixArtTransformer2DModel(
        num_attention_heads=2,
        attention_head_dim=8,
        num_layers=1,
        cross_attention_dim=16,
        caption_channels=16,
        sample_size=32,
        use_additional_conditions=False,
    ).eval()
    subject = subject_of(pixart, (256, 256), 1)
    with pytest.raises(UsageError, match="Leave it out of --methods"):
        model_trials(subject, ("none", "tomesd-package"), [0.5])
    names = [trial.measurement.method for trial in model_trials(subject, ("none", "toma"), [0.5])]
    assert names == ["none", "blocks-deleted", "toma"]


def test_the_shadow_shares_no_weight_and_leaves_the_model_alone(subject: Subject) -> None:
    shadow = shadow_of(subject)
    assert all(weight.is_meta for weight in shadow.model.parameters())
    assert not any(weight.is_meta for weight in subject.model.parameters())
    assert shadow.call(0).sample.shape == subject.call(0).sample.shape


def test_counts_the_multiply_adds_of_a_linear_layer(subject: Subject) -> None:
    layer = nn.Linear(6, 7, bias=False)
    whole = Subject(layer, subject.family, (8, 8), 1, {"input": torch.randn(5, 6)})
    assert multiply_adds(whole, Unmerged()) == {"steady": 5 * 6 * 7}


def test_peak_memory_of_a_chain_is_two_links() -> None:
    numbers = torch.zeros(250_000)  # a megabyte

    def chain() -> object:
        result = numbers
        for _ in range(5):
            result = result + 1  # needs the last link and the next, and no other
        return result

    peak = peak_memory(torch.device("cpu"), chain)
    assert peak is not None
    assert 2_000_000 <= peak < 2_100_000


def test_a_bare_model_in_a_folder_is_loaded(unet: nn.Module, tmp_path: Path) -> None:
    unet.save_pretrained(tmp_path)  # type: ignore[operator]
    loaded = load_model(str(tmp_path), torch.device("cpu"), torch.float32, blocks=None)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(loaded.parameters(), unet.parameters(), strict=True))
