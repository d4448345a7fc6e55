"""A server that ends and is started again while a page is open; a token of a server that has ended."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, expect
from tests.web.browser.conftest import LIMIT_MS, Serving
from tests.web.browser.exhibits import Exhibits

pytestmark = pytest.mark.services("browser")

STUDY = """
study: quick
command: 'echo "loss {x}"'
params: {x: [1, 2]}
metrics: {loss: 'loss ({number})'}
resources: {gpus: 0}
"""


@pytest.fixture
def made(tmp_path: Path) -> Exhibits:
    made = Exhibits(tmp_path)
    made.root.mkdir()
    (tmp_path / "quick.yml").write_text(STUDY)
    made.assay("run", "quick.yml", "--root", "runs", "--quiet")
    return made


@pytest.mark.parametrize("path", ["/studies", "/studies/quick"])
def test_a_lost_connection_is_told(chromium: Browser, made: Exhibits, path: str) -> None:
    """The page shows it in place of "live"; what changed since is shown when the server is there again."""
    context = chromium.new_context()
    context.set_default_timeout(LIMIT_MS)
    with Serving(made) as server:
        page = context.new_page()
        with page.expect_response(re.compile("/events")):
            page.goto(server.at(path))
        page.evaluate("document.querySelector('.live, .title').classList.add('live')")  # as if a run went on
        page.evaluate("document.querySelector('.live').hidden = false")
        expect(page.locator(".live").first).to_be_visible()
        expect(page.locator("#connection")).to_be_empty()
    shown = page.locator("#connection")
    expect(shown).to_have_text(re.compile(r"^No connection since \d\d:\d\d:\d\d; trying again"))
    expect(page.locator(".live").first).to_be_hidden()
    (made.folder / "quick.yml").write_text(STUDY.replace("[1, 2]", "[1, 2, 3]"))
    made.assay("run", "quick.yml", "--root", "runs", "--quiet")
    with Serving(made, urlsplit(server.address).port or 0):
        expect(shown).to_be_empty()
        expect(page.locator("main")).to_contain_text("3 done")
    context.close()


def test_a_token_that_is_not_valid_any_more(chromium: Browser, made: Exhibits) -> None:
    """The page shows it for as long as it is so, and the browser keeps it no longer."""
    context = chromium.new_context()
    context.set_default_timeout(LIMIT_MS)
    with Serving(made) as server:
        page = context.new_page()
        page.goto(server.at("/#token=of-the-server-of-yesterday"))
        expect(page.locator("#access")).to_have_text("The token is not valid any more")
        expect(page.locator("#messages")).to_contain_text("not valid any more")
        page.get_by_role("button", name="Close").click()
        expect(page.locator("#messages")).to_be_empty()
        assert page.evaluate("sessionStorage.getItem('assay-token')") is None
        page.goto(server.at("/studies/quick"))
        expect(page.locator("#access")).to_have_text("The token is not valid any more")
        page.goto(server.at(f"/#token={server.token}"))
        expect(page.locator("#access")).to_have_text("Actions are allowed")
        # one that was valid when the page was loaded
        page.goto(server.at("/studies/quick"))
        page.evaluate("sessionStorage.setItem('assay-token', 'of-the-server-of-yesterday')")
        page.get_by_label("Mark x=1").check()
        page.get_by_label("Tag or note").fill("good")
        page.get_by_role("button", name="Tag", exact=True).click()
        expect(page.locator("#access")).to_have_text("The token is not valid any more")
        assert page.evaluate("sessionStorage.getItem('assay-token')") is None
    context.close()
