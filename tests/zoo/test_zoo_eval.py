"""`tokenmerge eval` and the other commands with an untrained `photo-flux` in the place of the packaged one."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest

from tokenmerge.cli.main import main
from tokenmerge.errors import UsageError
from tokenmerge.runtime.generation import ImageRequest, check_request, guidance_arguments
from tokenmerge.runtime.pipelines import load_pipeline

EXPERIMENT = """
name = "flux"

[model]
name = "photo-flux"
device = "cpu"

[prompts]
file = "prompts.txt"

[seeds]
values = [7]

[image]
width = 256
height = 256
steps = 2
guidance = 3.0

[timing]
warmup = 0

[[variants]]
method = "toma-stack"

[metrics]
names = ["psnr"]

[figures]
hidden_states = true
destinations = true
"""


@pytest.fixture
def embedded(fresh_photo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokenmerge.zoo.folders.WEIGHTS", fresh_photo.parent)


def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What every call of a Flux pipeline was given."""
    from diffusers import FluxPipeline

    given: list[dict[str, Any]] = []
    original = FluxPipeline.__call__

    def noting(self: Any, *args: Any, **kwargs: Any) -> Any:
        given.append(kwargs)
        return original(self, *args, **kwargs)

    noting.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
    monkeypatch.setattr(FluxPipeline, "__call__", noting)
    return given


@pytest.mark.usefixtures("embedded")
def test_an_experiment_runs_and_is_guided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "experiment.toml").write_text(EXPERIMENT)
    (tmp_path / "prompts.txt").write_text("red heart\n" + "red heart, " * 10 + "cat face\n")
    given = calls(monkeypatch)
    assert main(["eval", str(tmp_path / "experiment.toml"), "--out", str(tmp_path / "run")]) == 0
    assert all(call["true_cfg_scale"] == 3 and call["negative_prompt"] == "" for call in given)
    found = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert (found["model"], found["pairs"], found["cut_prompts"]) == ("photo-flux", 2, 1)
    assert 5 < found["variants"][1]["metrics"]["psnr"]["value"] < 99  # another image, of the same noise
    drawn = {file.stem for file in (tmp_path / "run" / "figures").iterdir()}
    assert drawn == {"quality-time", "hidden-states", "destinations"}


@pytest.mark.usefixtures("embedded")
def test_what_flux_would_pass_over_in_silence_is_a_sentence() -> None:
    loaded = load_pipeline("photo-flux", "cpu")
    assert guidance_arguments(loaded.pipe, None) == {"true_cfg_scale": 3.0, "negative_prompt": ""}  # its own
    assert guidance_arguments(loaded.pipe, 3.0, "cat") == {"true_cfg_scale": 3.0, "negative_prompt": "cat"}
    check_request(loaded, ImageRequest("red heart", negative="cat", guidance=3.0))
    with pytest.raises(UsageError, match="photo-flux reads a negative prompt only where guidance is above 1"):
        check_request(loaded, ImageRequest("red heart", negative="cat", guidance=1.0))
    loaded.pipe.transformer.register_to_config(guidance_embeds=True)  # as Flux dev
    assert guidance_arguments(loaded.pipe, 3.0) == {"guidance_scale": 3.0}
    with pytest.raises(UsageError, match="photo-flux is guided without a negative prompt"):
        check_request(loaded, ImageRequest("red heart", negative="cat", guidance=3.0))
