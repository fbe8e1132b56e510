"""The server: this machine alone, no file but its own, and every failure to start a sentence."""

from __future__ import annotations

import json
import socket
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import torch

from tokenmerge.cli.main import main
from tokenmerge.errors import TokenMergeError, UsageError
from tokenmerge.runtime.pipelines import LoadedPipeline
from tokenmerge.web.runs import Studio
from tokenmerge.web.server import LOCAL, ServeOptions, serving


def status(address: str, path: str) -> int:
    try:
        with urllib.request.urlopen(f"{address}{path}") as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_it_listens_on_this_machine_alone(address: str) -> None:
    assert address.startswith(f"http://{LOCAL}:")
    assert status(address, "") == 200
    port = int(address.rstrip("/").rsplit(":", 1)[1])
    others = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), port, socket.AF_INET)} - {LOCAL}
    for other in others:
        if not other.startswith("127."):
            with pytest.raises(OSError, match=r"refused|unreachable"):
                socket.create_connection((other, port), timeout=5)


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        str(Path(__file__)),
        str(Path.cwd() / "pyproject.toml"),
        "../../../../etc/passwd",
        "%2e%2e/%2e%2e/etc/passwd",
    ],
)
def test_it_hands_out_no_file_of_the_machine(address: str, path: str) -> None:
    assert status(address, f"gradio_api/file={path}") in (403, 404)


def test_a_port_that_is_taken_is_a_sentence(address: str) -> None:
    port = int(address.rstrip("/").rsplit(":", 1)[1])
    with pytest.raises(UsageError, match=f"port {port} of {LOCAL} cannot be used"), serving(ServeOptions(port=port)):
        pass


@pytest.mark.parametrize("host", ["not-a-host", "203.0.113.9", "a" * 70, "127.0.0.1:80"])
def test_a_host_that_this_machine_is_not_is_a_sentence(host: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="which is no address of this machine"), serving(ServeOptions(host)):
        pass
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"model": "nowhere"}, "there is no model folder nowhere"),
        ({"model": "sdxl"}, "names an architecture"),
        ({"device": "abacus"}, "which this machine does not have"),
        ({"dtype": "int3"}, "use one of float32"),
    ],
)
def test_what_the_page_could_not_use_is_said_before_it_opens(wrong: dict[str, str], said: str) -> None:
    with pytest.raises(TokenMergeError, match=said), serving(ServeOptions(**wrong)):  # type: ignore[arg-type]
        pass


def test_without_gradio_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gradio", None)
    with pytest.raises(UsageError, match=r"pip install 'tokenmerge\[web\]'"), serving(ServeOptions()):
        pass


@pytest.mark.parametrize("port", ["0", "65536", "http"])
def test_a_port_out_of_bounds_is_a_sentence(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--port", port]) == 2
    assert f"--port is '{port}': it takes a whole number from 1 to 65535." in capsys.readouterr().err


def test_help_says_who_may_open_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["serve", "--help"])
    assert ended.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "127.0.0.1 is this machine alone" in shown
    assert "tokenmerge[web]" in shown


def test_pickles_are_for_the_model_that_the_command_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--allow-pickle"]) == 2
    assert "--allow-pickle is for the model that --model names" in capsys.readouterr().err


def test_a_model_named_in_the_page_gets_no_pickles_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = {}

    def load(name: str, *_: object, allow_pickle: bool) -> LoadedPipeline:
        allowed[name] = allow_pickle
        return LoadedPipeline(None, name, torch.device("cpu"), torch.float32)

    monkeypatch.setattr("tokenmerge.web.runs.load_pipeline", load)
    studio = Studio(pickles_of="mine")
    for name in ("mine", "of/strangers"):
        studio.load(name)
    assert allowed == {"mine": True, "of/strangers": False}


@pytest.mark.parametrize(
    ("control", "value"),
    [("ratio", 7), ("ratio", "much"), ("steps", -3), ("parts", ["nose"]), ("preset", "best"), ("scope", {"a": 1})],
)
def test_values_that_no_browser_sends_leave_no_traceback(control: str, value: object, tmp_path: Path) -> None:
    gradio = pytest.importorskip("gradio")
    from tokenmerge.web.page import build_page

    page = build_page(Studio("cpu"), "tiny-random", tmp_path)
    (component,) = (block for block in page.blocks.values() if getattr(block, "elem_id", None) == control)
    with pytest.raises(gradio.Error) as caught:
        component.preprocess(value)
    assert caught.value.print_exception is False


def call(address: str, event: dict[str, Any], data: list[object]) -> str:
    """What one of the page's events answers if it is called without the page."""
    queued = event["queue"] is not False
    session = f"{event['id']}-{len(data)}"
    body = json.dumps({"data": data, "fn_index": event["id"], "session_hash": session}).encode()
    place = f"{address}gradio_api/{'queue/join' if queued else 'run/predict'}"
    request = urllib.request.Request(place, data=body, headers={"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            said: str = answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.read().decode()
    if queued:
        with urllib.request.urlopen(f"{address}gradio_api/queue/data?session_hash={session}", timeout=60) as stream:
            said = next(line for line in map(bytes.decode, stream) if "process_completed" in line)
    return said


def test_events_called_without_the_page_answer_in_sentences(address: str, capfd: pytest.CaptureFixture[str]) -> None:
    with urllib.request.urlopen(f"{address}config") as config:
        events = [event for event in json.load(config)["dependencies"] if event["backend_fn"] and event["inputs"]]
    assert len(events) > 10
    for event in events:
        assert "Something went wrong inside (ValueError" in call(address, event, []), event["api_name"]
        call(address, event, [None] * len(event["inputs"]))
    (chosen,) = (event for event in events if event["api_name"] == "method_updates")
    assert "There is no method None" in call(address, chosen, [None])
    assert "Traceback" not in capfd.readouterr().err
