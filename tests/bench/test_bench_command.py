import json
from pathlib import Path

import pytest
import torch

from tokenmerge.bench import interleave, subject
from tokenmerge.bench.result import Result
from tokenmerge.cli import bench
from tokenmerge.cli.main import Parser
from tokenmerge.errors import TokenMergeError, UsageError

TINY = ["--model", "tiny-random", "--size", "128", "--ratios", "0.5", "--methods", "toma"]


def tokenmerge_bench(*words: str) -> int:
    parser = Parser(prog="tokenmerge")
    bench.add_parser(parser.add_subparsers(parser_class=Parser))
    return bench.run(parser.parse_args(["bench", *words]))


def test_prints_a_table_and_writes_a_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, plot = tmp_path / "result.json", tmp_path / "plot.svg"
    threads = torch.get_num_threads()
    assert tokenmerge_bench(*TINY, "--repeats", "2", "--threads", "1", "--out", str(out), "--plot", str(plot)) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("tiny-random, 128 px, batch 1, float32\n")
    assert "| blocks-deleted |" in printed
    assert "<svg" in plot.read_text()
    result = Result.load(out)
    assert [each.method for each in result.measurements] == ["none", "blocks-deleted", "toma"]
    assert {each.repeats for each in result.measurements} == {2}
    assert result.machine["threads"] == 1
    assert torch.get_num_threads() == threads
    assert result.command == (
        "tokenmerge bench --model tiny-random --size 128 --methods none,toma --batch 1 --ratios 0.5 --repeats 2 "
        f"--device cpu --dtype float32 --threads 1 --out {out}"
    )


def test_an_interrupted_run_is_kept_and_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "result.json"
    words = [*TINY, "--repeats", "3", "--out", str(out)]
    titled = interleave._title

    def stops(measurement: object, repeat: int, repeats: int) -> str:
        if repeat == 1:
            raise KeyboardInterrupt
        return titled(measurement, repeat, repeats)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(interleave, "_title", stops)
        assert tokenmerge_bench(*words) == 130
    assert "--resume goes on" in capsys.readouterr().err
    first = Result.load(out)
    assert {each.repeats for each in first.measurements} == {1}

    with pytest.raises(UsageError, match=r"add --resume .* or --overwrite"):
        tokenmerge_bench(*words)
    assert tokenmerge_bench(*words, "--resume") == 0
    second = Result.load(out)
    assert {each.repeats for each in second.measurements} == {3}
    for before, after in zip(first.measurements, second.measurements, strict=True):
        for phase, times in before.times.items():
            assert after.times[phase][:1] == times
    with pytest.raises(UsageError, match="cannot be mixed"):
        tokenmerge_bench(*words, "--batch", "2", "--resume")


def test_json_is_all_that_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert tokenmerge_bench("ops", "--tokens", "256", "--channels", "8", "--repeats", "1", "--json") == 0
    result = Result.from_dict(json.loads(capsys.readouterr().out))
    assert result.kind == "ops"
    assert result.settings["ratios"] == [0.25, 0.5, 0.75]


def test_options_before_the_name_of_a_nested_command_count(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--repeats", "1", "--json", "scaling", "--sizes", "256", "--methods", "toma-stack"]
    assert tokenmerge_bench(*words) == 0
    result = Result.from_dict(json.loads(capsys.readouterr().out))
    assert result.kind == "scaling"
    assert [(each.method, each.repeats) for each in result.measurements] == [("none", 1), ("toma-stack", 1)]


def test_options_of_methods_are_used_and_written_down(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    words = ["--repeats", "1", "--out", str(out), "--set", "skip_blocks=1", "--set", "tile=8,8"]
    assert tokenmerge_bench(*TINY, *words) == 0
    result = Result.load(out)
    settings = result.measurements[-1].settings
    assert (settings["skip_blocks"], settings["tile"]) == (1, [8, 8])
    assert "--set skip_blocks=1 --set tile=8,8" in result.command


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--model", "sdxk"], "did you mean sdxl"),
        (["--methods", "toma,toam"], "'toam', which is not known: use any of none, tile-mean"),
        (["--methods", "toma,toma"], "one method twice"),
        (["--ratios", "1.5"], "--ratios has 1.5: .* between 0 and 1"),
        (["--ratios", "0"], "--ratios has 0: .* between 0 and 1"),
        (["--ratios", "nan"], "--ratios has nan: .* between 0 and 1"),
        (["--ratios", "half"], "'half': it takes numbers"),
        (["--ratios", ","], "--ratios is empty"),
        (["--ratios", "0.5,0.5"], "one ratio twice"),
        (["--ratios", "0.8"], "the tomesd package merges at most 0.75"),
        (["--set", "skip_block=0"], "did you mean skip_blocks"),
        (["--set", "skip_blocks"], "write OPTION=VALUE"),
        (["--size", "500"], "multiple"),
        (["--size", "big"], "--size is 'big'"),
        (["--repeats", "0"], "--repeats is 0"),
        (["--batch", "0"], "--batch is 0"),
        (["--threads", "0"], "--threads is 0"),
        (["--dtype", "int8"], "dtype is 'int8': use one of float32"),
        (["--device", "nowhere"], "device is 'nowhere', which this machine does not have: use cpu"),
        (["--blocks", "1,x"], "--blocks is '1,x'"),
        (["--blocks", "1,2"], "a UNet whose blocks cannot be cut"),
        (["--model", "tests", "--blocks", "1"], "leave --blocks out"),
        (["--out", "result.txt"], "must end in .json"),
        (["--resume"], "name it with --out"),
        (["--plot", "plot.gif"], "must end in .svg"),
        (["ops", "--tokens", "1000"], "1000, which is not a square"),
        (["ops", "--channels", "-1"], "--channels is '-1'"),
        (["scaling", "--channels", "320"], "640 or 1280"),
        (["scaling", "--sizes", "500"], "multiple"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_words_are_sentences(words: list[str], sentence: str) -> None:
    with pytest.raises(TokenMergeError, match=sentence):
        tokenmerge_bench(*words)


@pytest.mark.parametrize(
    ("gigabytes", "ways"), [(10, r"use --blocks 1,1\.$"), (30, r"use --blocks 1,1 or --dtype bfloat16\.$")]
)
def test_a_model_that_does_not_fit_says_how_it_would(
    monkeypatch: pytest.MonkeyPatch, gigabytes: int, ways: str
) -> None:
    monkeypatch.setattr(subject, "free_memory", lambda device: gigabytes * 10**9)
    with pytest.raises(UsageError, match=rf"flux needs 47\.6 GB .* {gigabytes}\.0 GB are free on cpu: {ways}"):
        tokenmerge_bench("--model", "flux")


def test_an_empty_folder_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(TokenMergeError, match="no model can be loaded from it"):
        tokenmerge_bench("--model", str(tmp_path))
