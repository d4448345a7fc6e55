"""Goldens, benchmarks and models in the browser: finding, choosing, comparing, and judging a change by a button."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Route, expect
from tests.web.browser.conftest import Opener, Server, Serving
from tests.web.browser.exhibits import BENCHMARK, GOLDEN, Exhibits

from assay.bench.records import load_triage

pytestmark = pytest.mark.services("browser")


@pytest.fixture(scope="module")
def own(shown: Exhibits, tmp_path_factory: pytest.TempPathFactory) -> Exhibits:
    """What these tests may change."""
    folder = tmp_path_factory.mktemp("products")
    shutil.copytree(shown.root, folder / "runs", symlinks=True)
    return Exhibits(folder)


@pytest.fixture(scope="module")
def server(own: Exhibits) -> Iterator[Server]:
    with Serving(own) as server:
        yield server


def test_a_change_is_judged_by_a_button(open_page: Opener, own: Exhibits) -> None:
    page = open_page("/benchmarks", is_allowed=True)
    expect(page.locator("#benchmarks > [role=status]")).to_have_count(0)  # everything is judged
    expect(page.locator("svg.spark").first).to_be_visible()
    worse = page.locator("section", has_text="Became worse")
    expect(worse.locator("tr", has_text=BENCHMARK)).to_contain_text("open")
    worse.get_by_role("link", name=BENCHMARK).click()
    change = page.locator("section.change").first
    change.get_by_label("Note").fill("known: the new allocator")
    seen = []

    def look(route: Route) -> None:  # while the command runs: nothing is pressed twice
        buttons = change.get_by_role("button").all()
        seen.append((change.get_by_role("status").inner_text(), {each.is_disabled() for each in buttons}))
        route.continue_()

    page.route("**/api/benchmarks/**", look)
    change.get_by_role("button", name="Acknowledge").click()
    expect(change.get_by_role("status")).to_contain_text("The verdict is PASS")
    assert seen == [("Acknowledge: the command runs …", {True})]
    expect(change).to_be_focused()
    expect(change).to_contain_text("known: the new allocator")
    expect(page.locator("h1")).to_contain_text("PASS")
    (said,) = load_triage(str(own.root / "bench"))
    assert (said.judgement, said.note) == ("ack", "known: the new allocator")
    page.goto("/benchmarks")
    expect(page.locator("section", has_text="Became worse").locator("tr", has_text=BENCHMARK)).to_contain_text("ack")


def test_benchmarks_are_found_while_one_types(open_page: Opener) -> None:
    page = open_page("/benchmarks")
    expect(page.locator("#benchmarks > [role=status]")).to_have_count(0)
    rows = page.locator("table.benchmarks tbody tr:not(.suite)")
    before = rows.count()
    page.get_by_label("Find").press_sequentially("sort")
    expect(rows).to_have_count(1)
    assert before > 1
    expect(page).to_have_url(re.compile(r"[?&]q=sort"))  # to be shared
    page.get_by_label("Find").fill("")
    expect(rows).to_have_count(before)


def test_a_part_of_a_history(open_page: Opener) -> None:
    page = open_page(f"/benchmarks/bench/history?method={BENCHMARK}")
    points = page.locator("figure svg circle")
    expect(points).to_have_count(24)
    page.get_by_role("link", name="only these in the chart").click()
    expect(points).to_have_count(2)
    page.get_by_role("link", name="whole history").click()
    expect(points).to_have_count(24)
    page.get_by_label("log scale").check()
    page.get_by_role("button", name="Show").click()
    expect(page.locator("figure svg", has_text="log scale")).to_be_visible()


def test_two_checks_of_a_golden(open_page: Opener) -> None:
    page = open_page(f"/goldens/{GOLDEN}")
    expect(page.locator("p.answer").first).to_contain_text("%")
    expect(page.locator("svg path.replica").first).to_be_visible()
    page.get_by_label("Compare with").select_option(index=1)
    page.get_by_role("button", name="Show").click()
    expect(page.locator("h1")).to_contain_text("two checks")
    expect(page.locator("svg path.c2").first).to_be_attached()


def test_the_first_wrong_layer(open_page: Opener, shown: Exhibits, pictures: Path) -> None:
    page = open_page(shown.find_page("model"))
    page.get_by_role("link", name="in the graph").click()
    expect(page.locator("svg.graph g.firstwrong")).to_be_in_viewport()
    for place in page.locator(".scroll.tall").all():  # neither is cut without a word
        expect(place.locator("xpath=following-sibling::*[1]")).to_contain_text("scroll for the rest")
        expect(place.locator("xpath=following-sibling::*[1]")).to_be_visible()
    page.get_by_label("Find a layer").fill("conv")
    page.get_by_label("Find a layer").press("Enter")
    rows = page.locator("tr[id^=row-]")
    expect(rows.filter(has_text="first wrong")).to_have_count(1)
    assert all("conv" in each.lower() for each in rows.all_inner_texts())
    rows.get_by_role("link", name="diff").first.click()
    expect(page.get_by_role("heading", name="Worst elements")).to_be_visible()


def test_a_cell_of_the_matrix(open_page: Opener, shown: Exhibits) -> None:
    page = open_page(shown.find_page("session"))
    cell = page.locator("td.worse")
    expect(cell).to_contain_text("worse")
    cell.get_by_role("link").click()
    rows = page.locator("#tests ~ form table tbody tr")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("failed")
