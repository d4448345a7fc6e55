"""The hostile root in a real browser: nothing of it is executed, and the content policy is never needed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser
from tests.web import hostile
from tests.web.browser.conftest import LIMIT_MS, Server, Serving, Watch, wait_until_drawn
from tests.web.browser.exhibits import Exhibits

pytestmark = pytest.mark.services("browser")
STUDY, RUN, OTHER = (quote(name, safe="") for name in (hostile.STUDY, *hostile.NAMES[:2]))
PAGES = (
    "/studies",
    f"/studies/{STUDY}",
    f"/studies/{STUDY}?tab=curves",
    f"/studies/{STUDY}?tab=scatter&param=n",
    f"/studies/{STUDY}/runs/{RUN}",
    f"/studies/{STUDY}/runs/{RUN}?x=time",
    f"/studies/{STUDY}/compare?run={RUN}&run={OTHER}&all=1",
    "/goldens",
    "/goldens/golden-demo",
    "/benchmarks",
    "/models",
    "/models/model/checks/m_1",
    "/profiles",
    f"/profiles/{STUDY}/{RUN}",
    f"/studies/{STUDY}/runs/nothing",
)


@pytest.fixture(scope="module")
def hostile_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder: Path = tmp_path_factory.mktemp("hostile")
    hostile.build(folder)
    with Serving(Exhibits(folder)) as server:
        yield server


def test_nothing_is_executed(chromium: Browser, hostile_server: Server) -> None:
    watch = Watch(hostile_server.address)
    # metrics without times and runs that do not exist are answered with a status, which the browser logs
    watch.expected += ["400: ", "404: ", "status of 400", "status of 404"]
    context = chromium.new_context(base_url=hostile_server.address)
    context.set_default_timeout(LIMIT_MS)
    watch.follow(context)
    page = context.new_page()
    dialogs: list[str] = []
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    page.add_init_script("window.alert = (text) => console.error('executed: ' + text)")
    for path in PAGES:
        page.goto(path)
        if "/runs/" in path and "nothing" not in path:
            page.locator("[data-log] pre").filter(has_text="alert(1)").wait_for()
            page.fill("[data-log] [name=find]", "<script>")
            page.press("[data-log] [name=find]", "Enter")
            page.locator("[data-count]").filter(has_text="1 of 1").wait_for()
        if "curves" in path or "x=time" in path:
            wait_until_drawn(page)
        assert page.locator("img[onerror], [onload], [onmouseover]").count() == 0, path
        assert "alert(1)" not in page.evaluate("[...document.scripts].map((each) => each.text).join()"), path
    context.close()
    assert dialogs == []
    watch.check()


def test_a_logged_page_is_shown_and_does_nothing(chromium: Browser, hostile_server: Server) -> None:
    context = chromium.new_context(base_url=hostile_server.address)
    context.set_default_timeout(LIMIT_MS)
    asked, refused, heard = set[str](), set[str](), list[str]()
    context.on("request", lambda request: asked.add(request.url))
    context.on("requestfailed", lambda request: refused.add(request.url) if request.failure == "csp" else None)
    context.on("console", lambda message: heard.append(message.text))
    page = context.new_page()
    page.add_init_script("window.alert = (text) => console.error('executed: ' + text)")
    page.goto(f"/studies/{STUDY}/runs/{RUN}")
    page.locator("iframe").scroll_into_view_if_needed()
    logged = page.frame_locator("iframe").get_by_text("logged", exact=True)
    assert logged.evaluate("(each) => getComputedStyle(each).color") == "rgb(255, 0, 0)"
    page.frame_locator("iframe").locator("form").wait_for()  # its end
    context.close()
    assert {address for address in asked if not address.startswith(hostile_server.address)} <= refused
    assert any("Blocked script execution" in text for text in heard)
    assert not [text for text in heard if text.startswith("executed")]
