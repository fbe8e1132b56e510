"""The studio: what is generated, what is kept, how far it is, and how it stops."""

from __future__ import annotations

import itertools
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_requests import small

from tokenmerge.api import denoisers_of
from tokenmerge.engine.session import session_of
from tokenmerge.errors import ModelLoadError, NothingMergedError
from tokenmerge.web.bounds import read
from tokenmerge.web.results import Run, export, figures, message, table
from tokenmerge.web.runs import KEPT_UNMERGED, Cancelled, Studio, Watch, sentence_of


def calls_of_the_model(studio: Studio) -> tuple[list[int], Any]:
    """Counts how often the denoiser runs."""
    calls = [0]
    model = denoisers_of(studio.load("tiny-random").pipe)[0]

    def count(*_: Any) -> None:
        calls[0] += 1

    return calls, model.register_forward_pre_hook(count)


def test_only_the_merged_image_is_generated_again_when_the_ratio_moves(studio: Studio) -> None:
    first = studio.compare(read(small(seed=11, ratio=0.5)), Watch())
    studio.compare(read(small(seed=12, ratio=0.25)), Watch())  # so that this ratio is warm
    calls, hook = calls_of_the_model(studio)
    second = studio.compare(read(small(seed=11, ratio=0.25)), Watch())
    hook.remove()
    assert calls[0] == 2  # the merged image's steps, and nothing else
    assert second.unmerged is first.unmerged
    assert (first.reused, second.reused) == (False, True)
    assert not np.array_equal(np.asarray(first.merged.image), np.asarray(second.merged.image))


def test_another_image_is_generated_unmerged_again(studio: Studio) -> None:
    studio.compare(read(small(seed=21, steps=1)), Watch())
    others: list[dict[str, Any]] = [{"prompt": "pear"}, {"steps": 2}, {"seed": 22}, {"guidance": "2"}, {"size": "192"}]
    for changes in others:
        assert not studio.compare(read(small(**{"seed": 21, "steps": 1, **changes})), Watch()).reused, changes


def test_few_unmerged_images_are_kept() -> None:
    studio = Studio("cpu")
    for seed in range(KEPT_UNMERGED + 1):
        studio.unmerged("tiny-random", read(small(steps=1, size="64", seed=seed)).image, Watch())
    kept = [
        studio.has_unmerged("tiny-random", read(small(steps=1, size="64", seed=seed)).image)
        for seed in range(KEPT_UNMERGED + 1)
    ]
    assert kept == [False] + [True] * KEPT_UNMERGED


def test_progress_grows_to_the_whole(studio: Studio) -> None:
    reported: list[tuple[float, str]] = []
    studio.compare(read(small(seed=31, steps=3)), Watch(lambda fraction, what: reported.append((fraction, what))))
    fractions = [fraction for fraction, _ in reported]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1
    assert any(what == "unmerged: step 2 of 3" for _, what in reported)
    assert reported[-1][1] == "toma, ratio 0.5: step 3 of 3"


def test_cancelling_stops_at_the_step_and_leaves_the_model_as_it_was(studio: Studio) -> None:
    stop = threading.Event()
    reported: list[str] = []

    def report(fraction: float, what: str) -> None:
        reported.append(what)
        if what == "toma, ratio 0.5: step 2 of 5":
            stop.set()

    with pytest.raises(Cancelled):
        studio.compare(read(small(seed=41, steps=5)), Watch(report, stop))
    assert reported[-1] == "toma, ratio 0.5: step 2 of 5"
    assert session_of(denoisers_of(studio.load("tiny-random").pipe)[0]) is None
    again = studio.compare(read(small(seed=41, steps=5)), Watch())
    assert again.reused  # the unmerged image was finished before


def test_two_at_once_are_generated_one_after_the_other(studio: Studio) -> None:
    reported: list[str] = []
    requests = [read(small(seed=51, prompt="one")), read(small(seed=52, prompt="two"))]

    def generate(name: str, request: Any) -> None:
        studio.compare(request, Watch(lambda fraction, what: reported.append(name)))

    threads = [threading.Thread(target=generate, args=pair) for pair in zip("ab", requests, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    turns = sum(one != other for one, other in itertools.pairwise(reported))
    assert turns == 1


def test_an_image_too_small_to_merge_is_a_sentence(studio: Studio) -> None:
    with pytest.raises(NothingMergedError) as caught:
        studio.compare(read(small(size="64")), Watch())
    assert sentence_of(caught.value).startswith("Nothing was merged in this call")


def test_a_model_that_is_not_there_is_a_sentence(studio: Studio) -> None:
    with pytest.raises(ModelLoadError) as caught:
        studio.compare(read(small(model="/no/such/folder")), Watch())
    assert sentence_of(caught.value).startswith("There is no model folder /no/such/folder")
    assert studio.compare(read(small()), Watch()).speedup > 0  # and the next one works


def test_an_unexpected_error_is_a_sentence_too() -> None:
    assert sentence_of(ZeroDivisionError("division by zero")).startswith("Something went wrong inside (ZeroDivision")


def test_random_weights_are_named(studio: Studio) -> None:
    assert "random weights" in studio.compare(read(small()), Watch()).notes[0]


def test_history_is_a_table_newest_first_and_a_json_file(studio: Studio, tmp_path: Path) -> None:
    asked = [small(ratio=0.5), small(ratio=0.25, prompt="<b>pear</b>")]
    runs = [Run(number, inputs, studio.compare(read(inputs), Watch())) for number, inputs in enumerate(asked, start=1)]
    rows = table(runs)
    assert [row[0] for row in rows] == [2, 1]
    assert rows[0][1:5] == ["<b>pear</b>", "toma", "0.25", "128 x 128"]
    saved = json.loads(export(runs, tmp_path).read_text())
    assert [entry["config"]["ratio"] for entry in saved] == [0.5, 0.25]
    made = runs[0].comparison
    assert saved[0]["speedup"] == pytest.approx(made.unmerged.seconds / made.merged.seconds)
    assert saved[0]["psnr"] == made.fidelity.psnr
    assert f"{made.fidelity.psnr:.1f} dB" in figures(made)


def test_what_a_user_wrote_is_not_taken_for_html() -> None:
    assert message("<script>alert(1)</script>", bad=True) == (
        '<p class="tm-bad" role="alert">&lt;script&gt;alert(1)&lt;/script&gt;</p>'
    )
    assert message([]) == ""
