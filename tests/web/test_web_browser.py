"""The page in a real browser: every test ends with a look at the console, and at where requests went."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from page_user import PATIENCE, PHONE, RUN, PageUser

from tokenmerge.web import words


def number(text: str) -> float:
    found = re.search(r"[\d.]+", text)
    assert found is not None, text
    return float(found.group())


def divider_place(user: PageUser) -> float:
    """How far from the left, in per cent, the merged image begins."""
    style = user.page.locator("#slider img").nth(1).get_attribute("style")
    return number(re.search(r"inset\(0px 0px 0px ([\d.]+)%", style)[1])  # type: ignore[index]


def test_it_loads_with_a_word_under_each_control(user: PageUser) -> None:
    assert user.page.title() == "tokenmerge"
    for title in ("Image and model", "Merging in detail"):
        user.unfold(title)
    assert user.page.locator("#preset input:checked").input_value() == "balanced"
    user.wait_until("document.querySelectorAll('#slider img').length >= 2")  # an example, before anything is generated
    assert "An example from the package" in user.page.locator("#figures").inner_text()
    for control in ("prompt", "preset", "method", "size", "steps", "seed", "guidance", "model"):
        assert user.page.locator(f"#{control}").is_visible(), control
    for control in ("tile", "scope", "parts"):
        assert user.page.locator(f"#{control}").is_visible(), control
    for control in ("ratio", "region", "select_every"):  # which tile means do not have
        assert not user.page.locator(f"#{control}").is_visible(), control
    text = user.page.locator("body").inner_text()
    for explanation in (words.TILE, words.STEPS, words.SCOPE, words.PARTS, words.SIZE):
        assert explanation in text


def test_comparing_sliding_history_and_the_same_without_the_page(user: PageUser, tmp_path: Path) -> None:
    user.choose()
    user.choose_method("toma")
    user.page.locator("#ratio").wait_for(state="visible")
    user.compare()
    figures = user.figures()
    assert set(figures) == {"Unmerged", "Merged", "Speed-up", "PSNR", "SSIM"}
    unmerged, merged = number(figures["Unmerged"]), number(figures["Merged"])
    half = 0.0051  # seconds are rounded to hundredths, and the speed-up is of those that are not
    speedup = number(figures["Speed-up"])
    assert (unmerged - half) / (merged + half) - half <= speedup <= (unmerged + half) / (merged - half) + half
    assert "random weights" in user.message()

    # Sliding, by the handle in the image and by the keyboard.
    before = divider_place(user)
    box = user.page.locator("#slider [data-testid=slider]").bounding_box()
    user.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    user.page.mouse.down()
    user.page.mouse.move(box["x"] - 100, box["y"] + box["height"] / 2, steps=4)
    user.page.mouse.up()
    dragged = divider_place(user)
    assert dragged < before - 5
    divider = user.page.locator("#divider input[type=range]")
    divider.focus()
    divider.press("End")
    user.wait_until("parseFloat(document.querySelectorAll('#slider img')[1].style.clipPath.split(' ').pop()) > 90")

    # Moving only the ratio keeps the unmerged image.
    user.type_into("#ratio input[type=number]", "0.25")
    user.compare()
    assert user.page.locator("#figures dl > div").first.inner_text().endswith("kept from before")
    assert user.figures()["Unmerged"] == figures["Unmerged"]
    assert user.runs() == 2

    # The equivalent, copied.
    user.unfold("The same without this page")
    user.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    for button, begins in (("#copy-command", "tokenmerge compare 'red apple'"), ("#copy-python", "import torch")):
        user.page.locator(button).click()
        user.wait_until(f"navigator.clipboard.readText().then(text => text.startsWith({json.dumps(begins)}))")
    copied = user.page.evaluate("navigator.clipboard.readText()")
    assert "tm.ToMA(ratio=0.25)" in copied

    # The history, exported and clicked back.
    with user.page.expect_download() as download:
        user.page.locator("#export").click()
    file = tmp_path / "history.json"
    download.value.save_as(file)
    saved = json.loads(file.read_text())
    assert [entry["config"]["ratio"] for entry in saved] == [0.5, 0.25]
    user.page.locator(RUN).nth(1).click()
    user.wait_for_message("Run 1 is back")
    assert user.page.locator("#ratio input[type=number]").input_value() == "0.5"
    assert user.figures() == figures


def test_a_method_brings_its_own_settings(user: PageUser) -> None:
    user.choose_method("toma")
    user.wait_until("document.querySelector('#preset input:checked').value === 'my own'")
    user.page.locator("#region").wait_for(state="visible")
    user.choose_method("todo")
    user.page.locator("#region").wait_for(state="hidden")
    assert user.page.locator("#parts input").count() == 1
    assert "keys and values downsampled" in user.page.locator("#method").inner_text()


def test_an_example_fills_in_the_prompt(user: PageUser) -> None:
    prompt, _ = words.EXAMPLES[1]
    user.page.get_by_role("button", name=prompt).click()
    user.wait_until(f"document.querySelector('#prompt input, #prompt textarea').value === {json.dumps(prompt)}")


def test_looking_inside(user: PageUser) -> None:
    user.choose()
    user.choose_method("toma")
    user.open_tab("Look inside")
    user.page.locator("#look").click()
    user.page.locator("#stages table").wait_for()
    stages = user.page.locator("#stages").inner_text()
    for stage in ("selection", "weights", "merge", "unmerge", "attention", "MLP", "the rest"):
        assert stage in stages
    for view in ("merges", "weights", "clusters"):
        user.wait_until(f"document.querySelector('#{view} img')?.naturalWidth > 700")
    assert user.page.locator("#overlap svg").count() == 1
    assert "tokens are merged" in user.page.locator("#about-token").inner_text()

    # Another token: clicked, then by its row.
    view = user.page.locator("#merges img")
    box = view.bounding_box()
    corner = {"x": box["width"] * 0.99, "y": box["height"] * 0.01}
    user.until(
        lambda: view.click(position=corner),
        "document.querySelector('#about-token').innerText.includes('row 0, column 15 ')",
    )
    user.type_into("#row input", "5")
    user.wait_until("document.querySelector('#about-token').innerText.includes('row 5, column 15 ')")
    user.type_into("#row input", "99")
    user.wait_until("document.querySelector('#about-token').innerText.includes('Rows run from 0 to 15')")

    # Another block: another view.
    shown = user.page.locator("#merges img").get_attribute("src")
    user.page.locator("#block input").click()
    user.page.get_by_role("option").last.click()
    user.wait_until(f"document.querySelector('#merges img').src !== {json.dumps(shown)}")


def test_sweeping(user: PageUser) -> None:
    user.choose(steps=1)
    user.open_tab("Sweep")
    user.page.locator("#sweep-ratios").get_by_label("0.5", exact=True).uncheck()
    user.page.locator("#sweep-methods").get_by_label("tomesd", exact=True).uncheck()
    user.page.locator("#sweep").and_(user.page.locator("button")).click()
    user.wait_for_message("2 of 2", tab="sweep")
    assert user.page.locator("#sweep-message progress").get_attribute("value") == "2"
    assert user.page.locator("#sweep-grid img").count() == 3
    assert user.page.locator("#sweep-plot svg").count() == 1
    user.page.locator("#sweep-ratios").get_by_label("0.75", exact=True).uncheck()
    user.page.locator("button#sweep").click()
    user.wait_for_message("A sweep needs at least one method and one ratio", tab="sweep")


def test_cancelling(user: PageUser) -> None:
    user.choose(steps=100, size="512", seed=81)  # long enough that nothing ends before it is cancelled
    user.page.locator("button#compare").click()
    user.wait_until("/step [1-9]/.test(document.querySelector('#slider').innerText)")  # progress is live
    user.page.locator("#cancel").click()
    user.wait_for_message("Cancelled")
    assert user.runs() == 0
    assert user.page.locator("#cancel").is_disabled()
    user.choose()  # and the next one is generated
    user.compare()


@pytest.mark.parametrize(
    ("selector", "text", "said"),
    [
        ("#prompt input, #prompt textarea", " ", "The prompt is empty"),
        ("#size input", "banana", "Size is 'banana'"),
        ("#model input", "/no/such/folder", "There is no model folder"),
    ],
)
def test_bad_input_is_a_sentence_in_the_page(user: PageUser, selector: str, text: str, said: str) -> None:
    user.choose()
    user.type_into(selector, text)
    user.page.locator("button#compare").click()
    user.wait_for_message(said)
    assert user.page.locator("#compare-message p").get_attribute("role") == "alert"
    assert "Traceback" not in user.page.locator("body").inner_text()


def test_two_tabs_take_turns(browser: Any, address: str) -> None:
    with PageUser.opening(browser, address) as first, PageUser.opening(browser, address) as second:
        first.choose(steps=100, size="512", seed=91)
        second.choose(seed=92)
        first.page.locator("button#compare").click()
        first.wait_until("/step [1-9]/.test(document.querySelector('#slider').innerText)")
        second.page.locator("button#compare").click()
        second.wait_until("/queue/.test(document.querySelector('#slider').innerText)")  # it sees that it waits
        assert "this one comes after it" in second.message()
        assert second.runs() == 0
        first.page.locator("#cancel").click()
        first.wait_for_message("Cancelled")
        second.wait_until("document.querySelector('#figures dl')")  # and is served once the first has ended
        assert "this one comes after it" not in second.message()
        assert first.runs() == 0  # a tab has its own history
        for user in (first, second):
            user.check_nothing_went_wrong()


def test_a_tab_that_is_closed_draws_no_further(browser: Any, address: str) -> None:
    from tokenmerge.web import handlers

    before = set(handlers._stops)
    with PageUser.opening(browser, address) as user:
        user.choose(steps=100, size="256", seed=93)
        user.page.locator("button#compare").click()
        user.wait_until("/step [1-9]/.test(document.querySelector('#slider').innerText)")
        (stop,) = (event for session, event in handlers._stops.items() if session not in before)
        user.page.close()
        assert stop.wait(timeout=PATIENCE / 1000)


@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_needs_no_sideways_scrolling(browser: Any, address: str, dark: bool) -> None:
    with PageUser.opening(browser, address, dark, viewport=PHONE, has_touch=True) as user:
        user.choose()
        user.compare()
        for tab in ("Compare", "Look inside", "Sweep"):
            user.open_tab(tab)
            assert user.overflow() <= 0, tab
        background = user.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", background)[:3])) < 200) == dark
        user.check_nothing_went_wrong()


def test_everything_is_reached_by_the_keyboard(user: PageUser) -> None:
    user.choose()
    reached = set()
    for _ in range(60):
        user.page.keyboard.press("Tab")
        reached.add(
            user.page.evaluate(
                "document.activeElement.closest('[id]:not([id^=component]):not([id^=html])')?.id || "
                "document.activeElement.innerText"
            )
        )
    wanted = {"prompt", "preset", "compare", "size", "steps", "seed", "guidance", "model", "divider"}
    assert wanted <= {name.split("-")[0] if isinstance(name, str) else name for name in reached}, reached
    user.page.locator("#prompt input, #prompt textarea").focus()
    user.page.keyboard.press("Enter")  # the prompt's own way to press Compare
    user.page.locator("#figures dl").wait_for()
