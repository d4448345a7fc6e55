"""Every page, in both themes and on a phone: nothing complains, axe finds nothing, nothing is cut off; a picture of each."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from tests.finished_study import until
from tests.services import AXE
from tests.web.browser.conftest import PHONE, Opener, wait_until_drawn
from tests.web.browser.exhibits import PAGES, Exhibits

pytestmark = pytest.mark.services("browser")

# What is pressed by a finger; links within a text are as high as their line, which the rule allows.
TARGETS = "button, select, input, summary, nav a, .tabs a, th a"
FIND_SMALL = """(targets) => [...document.querySelectorAll(targets)].filter((each) => {
    const box = (each.type === "checkbox" ? each.closest("td, th, label") ?? each : each).getBoundingClientRect();
    return each.checkVisibility() && each.type !== "hidden" && box.width > 0 && (box.width < 24 || box.height < 24);
}).map((each) => each.outerHTML.slice(0, 120))"""


# what is wider than the screen, and not inside something that scrolls by itself
FIND_WIDE = """() => document.scrollingElement.scrollWidth <= 360 ? [] : [...document.body.querySelectorAll("*")].filter((each) => {
    for (let up = each.parentElement; up; up = up.parentElement) if (getComputedStyle(up).overflowX !== "visible") return false;
    return each.getBoundingClientRect().right > 360;
}).map((each) => `wider than the screen: ${each.outerHTML.slice(0, 120)}`)"""
CHECK = "(rules) => axe.run(rules.length ? {runOnly: rules} : {}).then((found) => found.violations)"


def find_violations(page: Page, *rules: str) -> list[str]:
    found: list[dict[str, Any]] = page.evaluate(CHECK, rules)
    return [
        f"{each['impact']} {each['id']}: {node['html'][:200]} {node['failureSummary']}"
        for each in found
        for node in each["nodes"]
    ]


@pytest.mark.parametrize("name", PAGES)
def test_every_page(open_page: Opener, shown: Exhibits, pictures: Path, name: str) -> None:
    """In both themes; on a phone it does not scroll sideways as a whole, and what is pressed is large enough."""
    page = open_page(shown.find_page(name), is_allowed=True, color_scheme="light")
    wait_until_drawn(page)
    page.evaluate((AXE / "axe.min.js").read_text())
    problems = find_violations(page)
    if page.locator("h1").count() != 1:
        problems.append("not one title")
    page.screenshot(path=pictures / f"{name}-light.png", full_page=True)
    page.emulate_media(color_scheme="dark")
    problems += find_violations(page, "color-contrast", "link-in-text-block")
    page.screenshot(path=pictures / f"{name}-dark.png", full_page=True)
    page.set_viewport_size(PHONE)
    with suppress(AssertionError):  # charts are drawn again a moment later
        until(lambda: not page.evaluate(FIND_WIDE), "the page is as wide as a phone", 3)
    problems += page.evaluate(FIND_WIDE)
    page.screenshot(path=pictures / f"{name}-phone.png", full_page=True)
    problems += [f"too small: {each}" for each in page.evaluate(FIND_SMALL, TARGETS)]
    problems += find_violations(page, "scrollable-region-focusable", "color-contrast")
    assert not problems, "\n".join(problems)


# Of the README: `ASSAY_SCREENSHOTS=docs/pictures .venv/bin/python -m pytest tests/web/browser -k readme_picture`
README = {
    "study": ("table", "header"),
    "curves": ("bands", ".tabs"),
    "benchmark": ("benchmark", "header"),
    "model": ("model", "figure"),
}


@pytest.mark.parametrize("name", README)
def test_readme_picture(open_page: Opener, shown: Exhibits, pictures: Path, name: str) -> None:
    """A window of 1280 by 800 from this part of the page on, small enough for a repository."""
    kind, start = README[name]
    page = open_page(shown.find_page(kind), color_scheme="light", is_allowed=kind == "benchmark")
    expect(page.locator(start).first).to_be_visible()
    wait_until_drawn(page)
    if start != "header":
        page.locator(start).first.evaluate("(place) => scrollTo(0, place.getBoundingClientRect().top + scrollY - 44)")
    path = pictures / f"readme-{name}.png"
    page.screenshot(path=path)
    assert path.stat().st_size < 150_000
