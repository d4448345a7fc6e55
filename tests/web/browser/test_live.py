"""A sweep while it runs, and what is done to it from the page; each test has a root and a server of its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import Popen
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.finished_study import until
from tests.web.browser.conftest import LIMIT_MS, WIDE, Server, Serving, Watch
from tests.web.browser.exhibits import Exhibits

pytestmark = pytest.mark.services("browser")

# each run waits for a file: a test decides when it goes on
SLOW = r"""
study: slow
command: 'echo "step 1 loss {x}"; while [ ! -e GO/{x} ]; do sleep 0.05; done; echo "step 2 loss 0.{x}"'
params: {x: [1, 2, 3]}
metrics: {step: 'step (\d+)', loss: 'loss ({number})'}
resources: {gpus: 0}
"""


class Workplace:
    """A root of its own with the study `slow`, and the server of it."""

    def __init__(self, folder: Path) -> None:
        self.made = Exhibits(folder)
        self.made.root.mkdir()
        self.go = folder / "go"
        self.go.mkdir()
        (folder / "slow.yml").write_text(SLOW.replace("GO", str(self.go)))

    def start(self) -> Popen[str]:
        return self.made.start("run", "slow.yml", "--root", "runs", "-j", "2", "--quiet")

    def release(self, *runs: int) -> None:
        for run in runs:
            (self.go / str(run)).touch()

    def finish(self) -> None:
        self.release(1, 2, 3)
        self.made.assay("run", "slow.yml", "--root", "runs", "-j", "2", "--quiet")


@pytest.fixture
def place(tmp_path: Path) -> Workplace:
    return Workplace(tmp_path)


@pytest.fixture
def own(place: Workplace) -> Iterator[Server]:
    with Serving(place.made) as server:
        yield server


@pytest.fixture
def open_own(chromium: Browser, own: Server) -> Iterator[Callable[[str], Page]]:
    context = chromium.new_context(viewport=WIDE, base_url=own.address)
    context.set_default_timeout(LIMIT_MS)
    watch = Watch(own.address)
    watch.follow(context)

    def open_own(path: str) -> Page:
        page = context.new_page()
        page.goto(path)
        return page

    yield open_own
    context.close()
    watch.check()


def read_rows(page: Page) -> dict[str, list[str]]:
    return {
        row.locator("td.name").inner_text(): row.locator("td").all_inner_texts()
        for row in page.locator("#runs tbody tr").all()
    }


def wait_for_counts(page: Page, **counts: int) -> None:
    for state, count in counts.items():
        expect(page.locator("#head")).to_contain_text(f"{count} {state}")


def test_a_sweep_is_followed(place: Workplace, open_own: Callable[[str], Page]) -> None:
    """Without a reload the page goes from the first run to the end, and then says what the command says. Rows change in
    place and keep their boxes and the focus."""
    sweep = place.start()
    until((place.made.root / "slow").exists, "the study exists")
    page = open_own("/studies/slow")
    page.evaluate("window.isTheSame = true")
    wait_for_counts(page, running=2, queued=1)
    expect(page.locator("[data-live]")).to_be_visible()
    box = page.locator("input[name=run]").first
    box.check()
    marked = box.get_attribute("value")
    box.focus()
    place.release(1)
    wait_for_counts(page, done=1, running=2)
    expect(page.locator("#runs tbody tr", has_text="x=1")).to_contain_text("0.1")
    assert page.evaluate("document.activeElement.value") == marked
    assert page.locator("input[name=run]:checked").count() == 1
    place.release(2, 3)
    wait_for_counts(page, done=3)
    expect(page.locator("[data-live]")).to_be_hidden()
    said = place.made.sum("slow")

    def is_told() -> bool:
        rows: dict[str, list[str]] = read_rows(page)
        return list(rows) == [row["run"] for row in said] and all(
            any(cell == f"{row['loss']:.4f}"[: len(cell)] and cell for cell in rows[row["run"]]) for row in said
        )

    until(is_told, "the rows are those of the command")
    assert page.evaluate("window.isTheSame")
    assert sweep.wait(30) == 0
    sweep.communicate()


def test_the_list_of_studies_is_live(place: Workplace, open_own: Callable[[str], Page]) -> None:
    page = open_own("/studies")
    expect(page.locator("main")).to_contain_text("no study here yet")
    sweep = place.start()
    expect(page.locator("[data-study=slow]")).to_contain_text("2 running")
    place.release(1, 2, 3)
    expect(page.get_by_role("link", name="slow")).to_be_visible()
    expect(page.locator(".cards .card")).to_contain_text("3 done")
    assert sweep.wait(30) == 0
    sweep.communicate()


def test_actions(place: Workplace, own: Server, open_own: Callable[[str], Page]) -> None:
    """Without the token none is offered. With it: tag, note, run again, stop."""
    place.finish()
    page = open_own("/studies/slow")
    page.get_by_label(re.compile("^Mark x=1")).check()
    expect(page.get_by_role("button", name="Compare", exact=True)).to_be_visible()
    expect(page.get_by_role("button", name="Tag", exact=True)).to_be_hidden()
    page.goto(f"/#token={own.token}")
    expect(page.locator("html")).to_have_attribute("data-access", "write")
    assert own.token not in page.url
    page.goto("/studies/slow")
    expect(page.get_by_text("1 marked")).to_be_visible()
    page.get_by_label("Tag or note").fill("good")
    page.get_by_role("button", name="Tag", exact=True).click()
    expect(page.locator("#messages")).to_contain_text("assay tag")
    expect(page.locator("#runs tbody tr", has_text="x=1")).to_contain_text("good")
    page.get_by_label("Tag or note").fill("look at this one")
    page.get_by_role("button", name="Note", exact=True).click()
    expect(page.locator("#messages")).to_contain_text("assay note")
    rows: list[dict[str, Any]] = place.made.sum("slow", "--where", "tag == good and note ~ '*look*'")
    assert [row["run"] for row in rows] == ["x=1"]

    for path in place.go.iterdir():
        path.unlink()
    page.get_by_role("button", name="Run again").click()
    page.get_by_role("dialog").get_by_role("button", name="Run again").click()
    wait_for_counts(page, running=1)
    page.get_by_role("button", name="Stop all").click()
    page.get_by_role("dialog").get_by_role("button", name="Stop all").click()
    wait_for_counts(page, stopped=1, done=2)


def test_a_wrong_token(own: Server, open_own: Callable[[str], Page], chromium: Browser) -> None:
    context = chromium.new_context(base_url=own.address)
    page = context.new_page()
    page.goto("/login")
    page.get_by_label("Token").fill("not-the-token-of-this-server")
    page.get_by_role("button", name="Use this token").click()
    expect(page.get_by_role("alert")).not_to_be_empty()
    expect(page.locator("html")).to_have_attribute("data-access", "read")
    page.get_by_label("Token").fill(own.token)
    page.get_by_role("button", name="Use this token").click()
    expect(page.locator("html")).to_have_attribute("data-access", "write")
    context.close()


def test_a_run_that_goes_on(place: Workplace, open_own: Callable[[str], Page]) -> None:
    """Its log grows, and its state, its commands and its metrics are renewed, without a reload."""
    started = place.start()
    log = place.made.root / "slow" / "x=1" / "run.log"
    until(lambda: log.exists() and "step 1" in log.read_text(), "the run has begun")
    page = open_own("/studies/slow/runs/x=1")
    expect(page.locator("[data-log] pre")).to_have_text("step 1 loss 1\n")
    expect(page.locator("h1 .badge")).to_have_text("running")
    page.evaluate("window.isTheSame = true")
    facts = page.locator("#facts")
    before = facts.inner_text()
    expect(facts).not_to_have_text(before)  # how long it has been running, though nothing else changes
    place.release(1, 2, 3)
    expect(page.locator("[data-log] pre")).to_contain_text("step 2 loss 0.1")
    expect(page.locator("h1 .badge")).to_have_text("done")
    expect(page.locator("#command-table .badge")).to_have_text("0")
    expect(page.locator("#metric-table")).to_contain_text("0.1")
    assert page.evaluate("window.isTheSame")
    page.locator("[data-log]").get_by_label("Find").fill("STEP")
    page.locator("[data-log]").get_by_role("button", name="Find").click()
    expect(page.locator("[data-count]")).to_have_text("1 of 2 lines")
    page.click("[aria-label='Next match']")
    expect(page.locator("[data-count]")).to_have_text("2 of 2 lines")
    expect(page.locator("[data-log] mark")).to_have_text("step")
    assert started.wait(60) == 0
    started.communicate()


# ---------------------------------------------------------------- without a connection


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
