"""A studio with the tiny model, the page served on this machine, and a browser that looks at it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from chromium import MISSING, find_chromium
from page_user import PageUser


@pytest.fixture(scope="session")
def studio() -> Any:
    """Loaded once for all tests; what a test must not find is generated with another seed."""
    from tokenmerge.web.runs import Studio

    return Studio("cpu")


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    """The page as `tokenmerge serve --model tiny-random` serves it."""
    from tokenmerge.web.server import ServeOptions, serving

    with serving(ServeOptions(model="tiny-random", device="cpu")) as address:
        yield address


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Debian's chromium, without a window."""
    api = pytest.importorskip("playwright.sync_api", reason="the browser tests need playwright")
    program = find_chromium()
    if program is None:
        pytest.skip(MISSING)
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def user(browser: Any, address: str) -> Iterator[PageUser]:
    """Someone who has just opened the page. At the end nothing may be wrong in the console, or sent elsewhere."""
    with PageUser.opening(browser, address) as user:
        yield user
        user.check_nothing_went_wrong()
