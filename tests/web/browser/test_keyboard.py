"""Without a mouse: everything is reached by Tab and seen when it is; after a swap the focus is where it was."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect
from tests.web.browser.conftest import Opener
from tests.web.browser.exhibits import SWEEP, Exhibits

pytestmark = pytest.mark.services("browser")

STUDY = f"/studies/{SWEEP}"
CONTROLS = "a[href], button, input:not([type=hidden]), select, summary, [tabindex='0']"
# The visible controls, numbered; the n-th element that has the focus says its number.
NUMBER = """(controls) => [...document.querySelectorAll(controls)].filter((each) =>
    each.checkVisibility({visibilityProperty: true}) && !each.disabled && each.tabIndex >= 0
).map((each, number) => { each.dataset.number = number; return each.outerHTML.slice(0, 100); })"""
FOCUS = """() => {
    const each = document.activeElement;
    const style = getComputedStyle(each);
    const isSeen = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0;
    return [each === document.body ? null : each.dataset.number ?? "", isSeen];
}"""


def press_through(page: Page, most: int) -> tuple[set[int], list[str]]:
    """Which numbers Tab comes to, and those that do not show it."""
    reached: set[int] = set()
    unseen = []
    for _ in range(most):
        page.keyboard.press("Tab")
        number, is_seen = page.evaluate(FOCUS)
        if number is None:  # round the page once
            break
        if number != "":
            reached.add(int(number))
        if not is_seen:
            unseen.append(page.evaluate("document.activeElement.outerHTML.slice(0, 100)"))
    return reached, unseen


@pytest.mark.parametrize(
    "name", ["studies", "groups", "bands", "scatter", "run", "benchmark", "models", "profile", "login"]
)
def test_everything_is_reached(open_page: Opener, shown: Exhibits, name: str) -> None:
    page = open_page(shown.find_page(name), is_allowed=True)
    if name == "bands":
        expect(page.get_by_role("list", name="Curves").get_by_role("listitem")).to_have_count(6)
    controls = page.evaluate(NUMBER, CONTROLS)
    reached, unseen = press_through(page, 3 * len(controls) + 10)
    assert not [text for number, text in enumerate(controls) if number not in reached]
    assert not unseen


def test_the_first_link_leads_to_the_content(open_page: Opener) -> None:
    page = open_page(STUDY)
    page.keyboard.press("Tab")
    link = page.get_by_role("link", name="Skip to the content")
    expect(link).to_be_focused()
    box = link.bounding_box()
    assert box
    assert box["x"] >= 0  # on the screen while it has the focus
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()


def test_sorted_and_filtered_by_keys(open_page: Opener) -> None:
    """The focus stays on what was pressed, and a status says what there is now."""
    page = open_page(STUDY)
    link = page.locator("#runs thead").get_by_role("link", name="hidden", exact=True)
    link.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#runs th[aria-sort]")).to_have_text(re.compile("^hidden"))
    expect(link).to_be_focused()
    expect(page.locator("#said")).to_have_text("18 runs, sorted by hidden")
    page.get_by_label("Runs where").focus()
    page.keyboard.type("seed == 1")
    page.keyboard.press("Enter")
    expect(page.locator("#said")).to_have_text("6 runs, sorted by hidden")
    expect(page.get_by_label("Runs where")).to_be_focused()
    page.locator("#runs tbody input").first.focus()
    page.keyboard.press("Space")
    expect(page.get_by_text("1 marked")).to_be_visible()


def test_tabs_by_keys(open_page: Opener) -> None:
    page = open_page(STUDY)
    link = page.get_by_role("navigation", name="Views").get_by_role("link", name="Scatter")
    link.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#part svg").first).to_be_visible()
    expect(link).to_be_focused()
    expect(page.locator("#said")).to_have_text("Scatter")


def test_the_theme_is_kept(open_page: Opener) -> None:
    page = open_page("/studies", color_scheme="light")
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.get_by_label("Theme").select_option("dark")
    page.goto(STUDY)
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light
    page.get_by_label("Theme").select_option("")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == light
