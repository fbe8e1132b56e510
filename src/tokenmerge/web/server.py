"""Serves the page: on this machine alone by default, without a request to any other."""

from __future__ import annotations

import os
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tokenmerge.errors import TokenMergeError, UsageError

if TYPE_CHECKING:
    from tokenmerge.web.runs import Studio

LOCAL = "127.0.0.1"
FIRST_PORT, LAST_PORT = 7860, 7959  # the first free one is taken where none is named


@dataclass(frozen=True)
class ServeOptions:
    """Where the page is served, and what it begins with."""

    host: str = LOCAL
    port: int | None = None
    model: str | None = None
    device: str | None = None
    dtype: str | None = None
    allow_pickle: bool = False  # for the model named here, and for none that is named in the page


def serve(options: ServeOptions, ready: Callable[[str], None]) -> None:
    """Serve until interrupted. `ready` is called with the address once the page is up."""
    with serving(options) as address:
        ready(address)
        threading.Event().wait()


@contextmanager
def serving(options: ServeOptions) -> Iterator[str]:
    """The page's address, for as long as the block lasts."""
    _check(options)
    with tempfile.TemporaryDirectory(prefix="tokenmerge-") as folder, _environment(folder):
        try:
            import gradio  # noqa: F401
        except ImportError:
            raise UsageError("the page needs Gradio: pip install 'tokenmerge[web]'.") from None
        from tokenmerge.web.page import build_page
        from tokenmerge.web.runs import Studio
        from tokenmerge.web.theme import STYLE, theme

        studio = Studio(options.device, options.dtype, options.model if options.allow_pickle else None)
        page = build_page(studio, options.model, Path(folder))
        try:
            _, address, _ = page.launch(
                server_name=options.host,
                server_port=options.port,
                prevent_thread_lock=True,
                quiet=True,
                share=False,
                inbrowser=False,
                theme=theme(),
                # Not as `css`: that reaches only what is inside the page, not the margins around it.
                head=f"<style>{STYLE.read_text(encoding='utf-8')}</style>",
                footer_links=[],
                allowed_paths=[],
                max_file_size="1kb",  # nothing on the page takes a file
                state_session_capacity=100,
                enable_monitoring=False,
                run_history=False,
                ssr_mode=False,
                pwa=False,
                mcp_server=False,
            )
        except OSError as error:
            raise UsageError(_cannot_serve(options)) from error
        _load_meanwhile(studio, options.model)
        try:
            yield str(address)
        finally:
            page.close(verbose=False)


@contextmanager
def _environment(folder: str) -> Iterator[None]:
    """What Gradio reads from the environment, for as long as the page is served."""
    wanted = {
        "GRADIO_ANALYTICS_ENABLED": "False",  # nothing may be sent to anyone
        "GRADIO_TEMP_DIR": folder,  # images are handed to the browser as files; they go when the page goes
    }
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _load_meanwhile(studio: Studio, model: str | None) -> None:
    """Load the model while the page is being looked at; what goes wrong is said when the model is first used."""
    from tokenmerge.runtime.pipelines import default_model

    def load() -> None:
        with suppress(TokenMergeError):
            studio.load(model or default_model())

    threading.Thread(target=load, daemon=True).start()


def _cannot_serve(options: ServeOptions) -> str:
    if options.port is not None:
        return f"port {options.port} of {options.host} cannot be used: give another with --port, or leave it out."
    return f"no port from {FIRST_PORT} to {LAST_PORT} of {options.host} is free: give one with --port."


def _check(options: ServeOptions) -> None:
    """Raise before the page is built: its model is loaded in a thread, and the server logs errors about addresses."""
    from tokenmerge.runtime.devices import pick_device, pick_dtype
    from tokenmerge.runtime.pipelines import check_name

    pick_dtype(options.dtype, pick_device(options.device))
    if options.model is not None:
        check_name(options.model)
    try:
        family, _, _, _, address = socket.getaddrinfo(options.host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind(address)
    except (OSError, UnicodeError):
        raise UsageError(
            f"--host is {options.host!r}, which is no address of this machine: use {LOCAL} for this machine alone, or "
            f"0.0.0.0 for everyone who can reach it."
        ) from None
