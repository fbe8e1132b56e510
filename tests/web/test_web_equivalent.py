"""The Python and the command line that the page offers generate the very image that the page generates."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from small_requests import small

import tokenmerge as tm
from tokenmerge.cli.main import build_parser, main
from tokenmerge.cli.options import read_image_request, read_method
from tokenmerge.methods.named import METHODS
from tokenmerge.web.bounds import controls_of, read
from tokenmerge.web.equivalent import as_command, as_python, constructor
from tokenmerge.web.runs import Watch

ASKED = small(prompt='it\'s a "red" $HOME apple', guidance="3.5", region="stripe", select_every=4, tile=2, seed=7)


@pytest.fixture(scope="module")
def generated(studio: Any) -> Any:
    return studio.compare(read(ASKED), Watch())


def same_pixels(image: Image.Image, file: Path) -> bool:
    with Image.open(file) as saved:
        return np.array_equal(np.asarray(image), np.asarray(saved))


def test_the_python_generates_both_images(generated: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(as_python(generated.request, generated.guidance), "page", "exec"), {})
    assert same_pixels(generated.unmerged.image, tmp_path / "unmerged.png")
    assert same_pixels(generated.merged.image, tmp_path / "merged.png")
    assert not same_pixels(generated.merged.image, tmp_path / "unmerged.png")


def test_the_command_generates_both_images(generated: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(as_command(read(ASKED)))[1:]) == 0
    assert same_pixels(generated.unmerged.image, tmp_path / "compare" / "unmerged.png")
    assert same_pixels(generated.merged.image, tmp_path / "compare" / "merged.png")


@pytest.mark.parametrize("method", METHODS)
def test_the_command_is_read_as_the_same_request(method: str) -> None:
    values = {name: value for name, value in controls_of(method).items() if value is not None}
    request = read(small(method=method, ratio=0.4, **values))
    args = build_parser().parse_args(shlex.split(as_command(request))[1:])
    assert read_method(args) == request.config
    assert read_image_request(args, "compare") == request.image
    assert args.model == request.model


@pytest.mark.parametrize(
    "changes",
    [
        {"parts": ["cross"]},
        {"scope": "stack"},
        {"region": "tile+global", "ratio": 0.05},
        {"prompt": "--help"},
        {"prompt": "; rm -rf /"},
        {"size": "192 x 128", "guidance": "0"},
    ],
)
def test_odd_requests_survive_the_command_line(changes: dict[str, Any]) -> None:
    request = read(small(**changes))
    args = build_parser().parse_args(shlex.split(as_command(request))[1:])
    assert read_method(args) == request.config
    assert read_image_request(args, "compare") == request.image


@pytest.mark.parametrize("method", METHODS)
def test_a_constructor_makes_an_equal_config(method: str) -> None:
    config = METHODS[method].make()
    assert eval(constructor(config), {"tm": tm}) == config
