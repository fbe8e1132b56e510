import json
from pathlib import Path

import pytest
from made_results import model_result

from tokenmerge.bench.result import Result
from tokenmerge.errors import UsageError


def test_a_result_comes_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "new" / "result.json"
    model_result().save(path)
    assert Result.load(path) == model_result()
    assert [file.name for file in path.parent.iterdir()] == ["result.json"]


def test_a_failed_write_leaves_the_old_file_whole(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    model_result().save(path)
    broken = model_result()
    broken.settings["model"] = object()  # no JSON
    with pytest.raises(TypeError):
        broken.save(path)
    assert Result.load(path) == model_result()
    assert [file.name for file in tmp_path.iterdir()] == ["result.json"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1}', '{"format": 99}', "not json"])
def test_a_file_that_is_no_result_is_a_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "result.json"
    path.write_text(text)
    with pytest.raises(UsageError, match="is not a result of `tokenmerge bench`"):
        Result.load(path)


def test_only_the_same_run_can_be_continued(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    model_result().save(path)
    earlier = Result.load(path)
    assert model_result().continues(earlier)
    assert not model_result(batch=2).continues(earlier)
    moved = model_result()
    moved.machine = json.loads(json.dumps(moved.machine)) | {"threads": 64}
    assert not moved.continues(earlier)
