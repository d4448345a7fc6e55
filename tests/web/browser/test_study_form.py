"""What a user does on the page of a study while an answer is on its way, and what the page shows then."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, Route, expect
from tests.web.browser.conftest import Opener, Server, log_in, wait_until_drawn
from tests.web.browser.exhibits import SWEEP

STUDY = f"/studies/{SWEEP}"

pytestmark = pytest.mark.services("browser")


def test_a_click_is_not_lost_while_an_answer_comes(open_page: Opener) -> None:
    """To leave a field asks for new curves; the answer comes between the press and the release of the button."""
    page = open_page(f"{STUDY}?tab=curves&metric=loss")
    wait_until_drawn(page)
    page.get_by_label("Smoothing").fill("0.9")
    box = page.get_by_label("log y").bounding_box()
    assert box
    page.mouse.move(box["x"] + 5, box["y"] + 5)
    with page.expect_response(re.compile("smooth=0.9")):
        page.mouse.down()
    expect(page).to_have_url(re.compile("smooth=0.9"))
    page.mouse.up()
    expect(page.get_by_label("log y")).to_be_checked()
    expect(page).to_have_url(re.compile("smooth=0.9&log=1"))
    wait_until_drawn(page)


def test_back_to_where_the_token_was_asked_for(open_page: Opener, server: Server) -> None:
    page = open_page(f"{STUDY}?sort=loss")
    page.get_by_role("link", name="Actions need a token").click()
    page.get_by_label("Token").fill(server.token)
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(re.escape(f"{STUDY}?sort=loss")))
    expect(page.locator("html")).to_have_attribute("data-access", "write")


def test_what_is_asked_before_runs_are_repeated(open_page: Opener, server: Server) -> None:
    page = open_page("/")
    log_in(page, server)
    page.goto(STUDY)
    page.locator("#runs tbody input").first.check()
    expect(page.get_by_role("button", name="Stop", exact=True)).to_be_hidden()  # nothing runs
    expect(page.get_by_role("button", name="Compare", exact=True)).to_be_disabled()
    expect(page.locator("[data-marked]")).to_have_text("1 marked")
    page.get_by_role("button", name="Run again").click()
    expect(page.get_by_role("dialog")).to_contain_text("each gets a new attempt")
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    page.locator("#runs tbody td.name a").first.click()  # also from its own page
    page.get_by_role("button", name="Run again").click()
    expect(page.get_by_role("dialog")).to_contain_text("It gets a new attempt")
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("dialog")).to_be_hidden()


def test_a_message_names_the_run_and_can_be_read(open_page: Opener, server: Server) -> None:
    page = open_page("/")
    log_in(page, server)
    page.goto(STUDY)

    def answer(route: Route) -> None:
        root = page.locator("[data-root]").get_attribute("data-root")
        route.fulfill(json={"command": f"assay tag -- {root}/{SWEEP}/a=1 good", "said": "good", "code": 0})

    page.route("**/actions", answer)
    page.locator("#runs tbody input").first.check()
    page.get_by_label("Tag or note").fill("good")
    page.get_by_role("button", name="Tag", exact=True).click()
    message = page.locator("#messages p")
    expect(message).to_have_text(re.compile(f"^assay tag -- {SWEEP}/a=1 good"))
    assert _is_on_top(page)


def _is_on_top(page: Page) -> bool:
    return bool(
        page.locator("#messages p").evaluate(
            "(place) => { const box = place.getBoundingClientRect();"
            " return place.contains(document.elementFromPoint(box.left + box.width / 2, box.bottom - 4)); }"
        )
    )
