"""Uses the page as a person does: looks for what is labelled, clicks, types, waits for what appears."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

PATIENCE = 90_000  # milliseconds; a busy machine may take that long for what is done in two seconds
RUN = "#history [data-col='0'][role=gridcell]"
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 375, "height": 740}


class PageUser:
    """One browser tab."""

    def __init__(self, page: Any, address: str) -> None:
        self.page = page
        self.host = urlsplit(address).netloc
        self.troubles: list[str] = []
        self.elsewhere: list[str] = []
        page.set_default_timeout(PATIENCE)
        page.on("console", self._note_console)
        page.on("pageerror", lambda error: self.troubles.append(f"uncaught: {error}"))
        page.on("request", self._note_request)
        page.on("requestfailed", lambda request: self._note_failure(request))
        page.goto(address)
        page.locator("button#compare").wait_for()

    @classmethod
    @contextmanager
    def opening(cls, browser: Any, address: str, dark: bool = False, **options: Any) -> Iterator[PageUser]:
        options = {"viewport": DESKTOP, "color_scheme": "dark" if dark else "light", **options}
        context = browser.new_context(**options)
        try:
            yield cls(context.new_page(), address)
        finally:
            context.close()

    def _note_console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.troubles.append(f"{message.type}: {message.text}")

    def _note_request(self, request: Any) -> None:
        parts = urlsplit(request.url)
        if parts.scheme not in ("data", "blob") and parts.netloc != self.host:
            self.elsewhere.append(request.url)

    def _note_failure(self, request: Any) -> None:
        # A page that is closed or left takes its open streams with it.
        if request.failure != "net::ERR_ABORTED":
            self.troubles.append(f"failed: {request.url} ({request.failure})")

    def check_nothing_went_wrong(self) -> None:
        assert not self.troubles, self.troubles
        assert not self.elsewhere, self.elsewhere

    # -- the Compare tab ---------------------------------------------------------------------------------------

    def unfold(self, title: str) -> None:
        self.page.get_by_role("button", name=title).click()

    def choose(self, size: str = "128", steps: int = 2, seed: int | None = None) -> None:
        """Ask for another image."""
        if not self.page.locator("#size").is_visible():
            self.unfold("Image and model")
        self.type_into("#size input", size)
        self.type_into("#steps input[type=number]", str(steps))
        if seed is not None:
            self.type_into("#seed input", str(seed))

    def choose_method(self, name: str) -> None:
        if not self.page.locator("#method").is_visible():
            self.unfold("Merging in detail")
        self.page.locator("#method input").click()
        self.page.get_by_role("option", name=name, exact=True).click()

    def type_into(self, selector: str, text: str) -> None:
        field = self.page.locator(selector)
        field.fill(text)
        field.press("Tab")

    def compare(self) -> None:
        """Press Compare and wait for the next run in the history."""
        runs = self.runs()
        self.page.locator("button#compare").click()
        self.page.locator(RUN).nth(runs).wait_for(state="attached")
        # Gradio hides what it showed of the progress a moment after the result is there.
        self.page.locator("#slider [data-testid=status-tracker].hide").wait_for(state="attached")

    def runs(self) -> int:
        """How many rows the history shows."""
        return int(self.page.locator(RUN).count())

    def figures(self) -> dict[str, str]:
        """The cards with numbers, by title."""
        cards = self.page.locator("#figures dl > div")
        return {card.locator("dt").inner_text(): card.locator("dd").inner_text() for card in cards.all()}

    def message(self, tab: str = "compare") -> str:
        return str(self.page.locator(f"#{tab}-message").text_content()).strip()

    def wait_for_message(self, beginning: str, tab: str = "compare") -> None:
        self.wait_until(f"document.querySelector('#{tab}-message').textContent.trim().startsWith({beginning!r})")

    # -- the whole page ----------------------------------------------------------------------------------------

    def open_tab(self, name: str) -> None:
        self.page.get_by_role("tab", name=name).click()

    def wait_until(self, condition: str) -> None:
        """A condition in the browser's own language."""
        self.page.wait_for_function(f"() => {condition}")

    def until(self, act: Callable[[], None], condition: str) -> None:
        """Act, and once more if nothing comes of it: a click on what is just being rendered is lost."""
        from playwright.sync_api import TimeoutError as NothingCame

        for _ in range(3):
            act()
            try:
                self.page.wait_for_function(f"() => {condition}", timeout=20_000)
            except NothingCame:
                continue
            return
        self.wait_until(condition)

    def overflow(self) -> int:
        """By how many pixels the page is wider than the window."""
        return int(self.page.evaluate("document.documentElement.scrollWidth - window.innerWidth"))
