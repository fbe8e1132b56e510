"""Inputs of the page: what is inside the bounds, and a sentence for what is not."""

from __future__ import annotations

import dataclasses
import json
import shlex
from pathlib import Path

import pytest
from PIL import Image
from small_requests import small

from tokenmerge import TileMean, ToDo, ToMA, ToMeSD
from tokenmerge.cli.main import build_parser
from tokenmerge.cli.options import read_method
from tokenmerge.errors import TokenMergeError, UsageError
from tokenmerge.methods.named import METHODS, named_config
from tokenmerge.presets import NAMES, preset
from tokenmerge.web.bounds import (
    MOST_SWEPT,
    SWEPT,
    controls_of,
    first_sweep,
    read,
    read_size,
    read_sweep,
    settings_beyond,
    swept_acceleration,
)
from tokenmerge.web.equivalent import as_command, as_python


def test_small_inputs_are_toma_as_it_comes() -> None:
    request = read(small())
    assert request.config == ToMA(ratio=0.5)
    assert request.image.size == (128, 128)
    assert request.image.guidance is None


def test_every_control_reaches_the_config() -> None:
    request = read(small(ratio=0.25, region="stripe", parts=["mlp", "self"], select_every=6, tile=2, guidance=" 4.5 "))
    expected = {"region": "stripe", "parts": ("self", "mlp"), "select_every": 6, "tile": 2}
    assert request.config == dataclasses.replace(ToMA(ratio=0.25), **expected)
    assert request.image.guidance == 4.5


@pytest.mark.parametrize("method", METHODS)
def test_a_methods_own_values_make_the_method(method: str) -> None:
    values = {name: value for name, value in controls_of(method).items() if value is not None}
    ratio = named_config(method).ratio
    assert read(small(method=method, ratio=ratio, **values)).config == named_config(method)


def test_options_that_a_method_lacks_are_left_out() -> None:
    assert read(small(method="tomesd", parts=["self"], region="stripe", select_every=1)).config == ToMeSD(ratio=0.5)
    assert read(small(method="todo", parts=["self"], select_every=None)).config == ToDo(ratio=0.5)
    assert read(small(method="tile-mean", scope="stack", tile=2, ratio=None)).config == TileMean(tile=2, scope=None)
    assert settings_beyond("toma", {"region": "tile", "scope": "block", "unheard": 1}) == {"scope": "block"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"prompt": "  "}, "The prompt is empty"),
        ({"prompt": "x" * 1001}, "1001 characters"),
        ({"seed": -1}, "Seed is -1"),
        ({"seed": 2**32}, "whole number from 0 to 4294967295"),
        ({"seed": None}, "Seed is empty"),
        ({"steps": 0}, "Steps is 0"),
        ({"steps": 2.5}, "Steps is 2.5"),
        ({"steps": 101}, "from 1 to 100"),
        ({"steps": float("nan")}, "Steps is nan"),
        ({"steps": float("inf")}, "Steps is inf"),
        ({"size": "banana"}, "Size is 'banana'"),
        ({"size": ""}, "Size is ''"),
        ({"size": "4096"}, "64 to 2048 pixels"),
        ({"size": "100"}, "not a multiple of 8"),
        ({"guidance": "much"}, "Guidance is much"),
        ({"guidance": "31"}, "from 0 to 30"),
        ({"ratio": 1}, "Ratio is 1"),
        ({"ratio": "half"}, "Ratio is half"),
        ({"model": " "}, "No model is named"),
        ({"method": "magic"}, "no method 'magic'"),
        ({"preset": "best"}, "no preset 'best'"),
        ({"parts": []}, "parts is empty"),
        ({"scope": "block", "parts": ["self"]}, "merging whole blocks"),
        ({"tile": 0}, "Tile is 0"),
        ({"select_every": 0}, "New destinations every is 0"),
    ],
)
def test_what_is_outside_is_a_sentence(changes: dict[str, object], said: str) -> None:
    with pytest.raises(TokenMergeError) as caught:
        read(small(**changes))
    assert said in str(caught.value)
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize("text", ["512x768", "512 x 768", " 512×768 px ", "512X768"])
def test_sizes_may_be_written_in_several_ways(text: str) -> None:
    assert read_size(text) == (512, 768)


def test_a_sweep_is_every_method_at_every_ratio_from_low_to_high() -> None:
    pairs = read_sweep(["tomesd", "toma"], [0.75, "0.25"])
    assert pairs == [("tomesd", 0.25), ("tomesd", 0.75), ("toma", 0.25), ("toma", 0.75)]
    assert read_sweep(["tile-mean"], [0.25, 0.75]) == [("tile-mean", None)]  # it has no ratio
    assert read_sweep(["preset fast", "fewer-steps"], [0.5]) == [("preset fast", None), ("fewer-steps", 0.5)]


def test_a_preset_becomes_the_config_of_the_model() -> None:
    from tokenmerge.runtime.tiny_random import build_tiny_random

    pipe = build_tiny_random()
    for name in NAMES:
        request = read(small(preset=name)).for_model(pipe)
        assert request.config == preset(name, pipe)
        assert request.label == name
        args = build_parser().parse_args(shlex.split(as_command(request))[1:])
        assert read_method(args) == name  # and the command line says the same
        assert f"tm.merged(pipe, {name!r})" in as_python(request, {})


def test_the_page_begins_with_the_preset_balanced() -> None:
    controls = pytest.importorskip("tokenmerge.web.controls")
    assert controls.PRESET == "balanced"


@pytest.mark.parametrize(
    ("model", "cache"),
    [
        ("emoji-sd", "deepcache"),
        ("photo-flux", "first-block-cache"),
        ("my/own", None),
    ],
)
def test_a_sweep_begins_with_ours_and_its_rivals(model: str, cache: str | None) -> None:
    if cache == "deepcache":
        pytest.importorskip("DeepCache")
    chosen = first_sweep(model)
    assert chosen[:3] == ["preset balanced", "tomesd", "fewer-steps"]
    assert chosen[3:] == ([] if cache is None else [cache])
    assert set(chosen) <= set(SWEPT)


def test_the_page_has_an_example_before_anything_is_generated() -> None:
    from tokenmerge.web import example

    images = example.images()
    assert images is not None
    assert images[0].size == images[1].size
    assert "Press Compare for your own" in example.sentence()


@pytest.mark.parametrize(("threads", "psnr", "said"), [(1, 41.2, "1 thread, took"), (2, None, "identical")])
def test_an_example_is_taken_from_a_comparison(
    threads: int, psnr: float | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tokenmerge.web import example

    made = {"prompt": "pears", "seed": 1, "steps": 4, "config": {}, "psnr": psnr, "threads": threads}
    made |= {"model": {"name": "mine", "device": "cpu"}, "best": {"unmerged": 2.0, "merged": 1.0}}
    made |= {"speedup": {"best": 2.0}}
    (tmp_path / "compare.json").write_text(json.dumps(made))
    for name in ("unmerged", "merged"):
        Image.new("RGB", (64, 64)).save(tmp_path / f"{name}.png")
    monkeypatch.setattr(example, "FOLDER", tmp_path / "example")
    example.take(tmp_path)
    assert example.images() is not None
    assert said in example.sentence()


def test_fewer_steps_leave_out_the_fraction() -> None:
    assert swept_acceleration("fewer-steps", 0.75).steps_of(20) == 5


@pytest.mark.parametrize(
    ("methods", "ratios", "said"),
    [
        ([], [0.5], "at least one method"),
        (["toma"], [], "at least one method"),
        (["toma"], [1.5], "Ratio is 1.5"),
        (["magic"], [0.5], "no method 'magic'"),
        (list(METHODS), [0.1, 0.2, 0.3], f"at most {MOST_SWEPT}"),
    ],
)
def test_a_sweep_has_bounds(methods: list[str], ratios: list[float], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read_sweep(methods, ratios)
