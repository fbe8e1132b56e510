"""Takes the images of the page that stand in README.md and docs/web.md: `make screenshots`.

python tests/web/take_screenshots.py docs/images
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from chromium import MISSING, find_chromium
from page_user import PHONE, PageUser
from PIL import Image

# Wide enough for two columns, and sharp on a good screen.
DESKTOP = {"viewport": {"width": 1240, "height": 900}, "device_scale_factor": 1.25}
COLOURS = 256  # a quarter of the file, and no difference that anyone sees
LONGEST_DRAWING = 600_000  # milliseconds
ON_A_PHONE = {"viewport": PHONE, "device_scale_factor": 1.5, "has_touch": True, "is_mobile": True}


class Photographer:
    """Uses the page and takes an image of each view."""

    def __init__(self, browser: Any, address: str, folder: Path, size: str, steps: int) -> None:
        self.browser = browser
        self.address = address
        self.folder = folder
        self.size = size
        self.steps = steps

    def take_all(self) -> None:
        self.compare()
        self.controls()
        self.look_inside()
        self.sweep()
        self.error()
        self.waiting()

    @contextmanager
    def opened(self, dark: bool = False, **options: Any) -> Iterator[PageUser]:
        with PageUser.opening(self.browser, self.address, dark, **(options or DESKTOP)) as user:
            user.page.set_default_timeout(LONGEST_DRAWING)
            user.choose(self.size, self.steps)
            user.unfold("Image and model")
            yield user

    def compare(self) -> None:
        for name, dark, options in (
            ("web-compare", False, {}),
            ("web-compare-dark", True, {}),
            ("web-compare-phone", False, ON_A_PHONE),
        ):
            with self.opened(dark, **options) as user:
                user.compare()
                user.page.locator("#preset").get_by_label("fast", exact=True).check()
                user.compare()
                self._shoot(user, name)

    def controls(self) -> None:
        """With everything unfolded."""
        with self.opened() as user:
            user.compare()
            for title in ("Image and model", "Merging in detail", "The same without this page"):
                user.unfold(title)
            user.unfold("What was merged where")
            self._shoot(user, "web-controls")

    def look_inside(self) -> None:
        for name, dark, options in (
            ("web-inside", False, {}),
            ("web-inside-dark", True, {}),
            ("web-inside-phone", False, ON_A_PHONE),
        ):
            with self.opened(dark, **options) as user:
                user.open_tab("Look inside")
                user.page.locator("#look").click()
                user.page.locator("#stages table").wait_for()
                user.wait_until("document.querySelector('#clusters img')?.naturalWidth > 0")
                self._shoot(user, name)

    def sweep(self) -> None:
        for name, dark, options in (("web-sweep", False, {}), ("web-sweep-phone", True, ON_A_PHONE)):
            with self.opened(dark, **options) as user:
                user.open_tab("Sweep")
                user.page.locator("button#sweep").click()
                user.wait_for_message("6 of 6", tab="sweep")
                self._shoot(user, name)

    def error(self) -> None:
        with self.opened() as user:
            user.choose(size="banana", steps=self.steps)
            user.page.locator("button#compare").click()
            user.wait_for_message("Size is 'banana'")
            self._shoot(user, "web-error")

    def waiting(self) -> None:
        """One tab generates, with live progress; another waits in the queue."""
        with self.opened() as first, self.opened() as second:
            for user in (first, second):
                user.choose(self.size, 100, seed=5)
            first.page.locator("button#compare").click()
            first.wait_until("/step [1-9]/.test(document.querySelector('#slider').innerText)")
            self._shoot(first, "web-progress")
            second.page.locator("button#compare").click()
            second.wait_until("/queue/.test(document.querySelector('#slider').innerText)")
            self._shoot(second, "web-queue")
            second.page.locator("#cancel").click()
            first.page.locator("#cancel").click()
            first.wait_for_message("Cancelled")

    def _shoot(self, user: PageUser, name: str) -> None:
        user.page.mouse.move(0, 0)
        user.page.evaluate("document.activeElement.blur(); window.scrollTo(0, 0)")
        user.wait_until("[...document.images].every(image => image.complete && image.naturalWidth > 0)")
        # Two frames later everything has been laid out around what has arrived.
        user.page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        file = self.folder / f"{name}.png"
        user.page.screenshot(path=file, full_page=True, animations="disabled")
        with Image.open(file) as image:
            image.convert("RGB").quantize(COLOURS).save(file, optimize=True)
        print(file, flush=True)


def main() -> None:
    from playwright.sync_api import sync_playwright

    from tokenmerge.web.server import ServeOptions, serving

    parser = argparse.ArgumentParser(description="Takes a screenshot of every view of the page.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", help="default: the embedded model")
    parser.add_argument("--size", default="512 x 512")
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    program = find_chromium()
    if program is None:
        raise SystemExit(MISSING)
    args.folder.mkdir(parents=True, exist_ok=True)
    with serving(ServeOptions(model=args.model)) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        Photographer(browser, address, args.folder, args.size, args.steps).take_all()
        browser.close()


if __name__ == "__main__":
    main()
