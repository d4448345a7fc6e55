"""The page of a study says what `assay sum` says: cells, order, counts, filters. Then its charts, a run, and two runs."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect
from tests.web.browser.conftest import Opener, Watch, wait_until_drawn
from tests.web.browser.exhibits import SEARCH, SWEEP, Exhibits

pytestmark = pytest.mark.services("browser")

STUDY = f"/studies/{SWEEP}"
FILTER = "lr > 0.005 and best(eval_loss) < 1"
READ = """(table) => {
    const names = [...table.tHead.rows[0].cells].map((cell) => cell.innerText.replace(/[↑↓]/g, "").trim());
    return [...table.tBodies[0].rows].map((row) =>
        Object.fromEntries([...row.cells].map((cell, n) => [names[n], cell.innerText.trim()])));
}"""
PIXELS = "(canvas) => canvas.toDataURL()"  # a screenshot would leave style attributes behind
IS_DRAWN = """(canvas) => new Set(new Uint32Array(
    canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.buffer)).size > 3"""


def read_table(page: Page) -> list[dict[str, str]]:
    """The rows of the table as they stand there, by the names of their columns."""
    rows: list[dict[str, str]] = page.locator("#runs table").evaluate(READ)
    return rows


def read_names(page: Page) -> list[str]:
    return [row["run"] for row in read_table(page)]


def names_of(said: list[dict[str, Any]]) -> list[str]:
    return [row["run"] for row in said]


def head(page: Page, name: str) -> Locator:
    return page.get_by_role("columnheader", name=name, exact=True)


def filter_by(page: Page, text: str) -> None:
    page.get_by_label("Runs where").fill(text)
    page.get_by_label("Runs where").press("Enter")


def expect_count(page: Page, count: int) -> None:
    expect(page.locator("#runs caption")).to_contain_text(f"{count} run{'s' * (count != 1)}")


class TestTable:
    def test_its_cells_are_those_of_the_command(self, open_page: Opener, shown: Exhibits) -> None:
        page = open_page(STUDY)
        rows, said = read_table(page), shown.sum(SWEEP)
        assert names_of(said) == [row["run"] for row in rows]
        for row, expected in zip(rows, said, strict=True):
            for name in ("lr", "hidden", "seed", "eval_acc", "eval_loss", "acc", "loss", "grad_norm", "step"):
                assert float(row[name]) == pytest.approx(expected[name], rel=1e-3, abs=5e-4), name
        expect_count(page, len(said))

    def test_sorted_by_a_click(self, open_page: Opener, shown: Exhibits) -> None:
        page = open_page(STUDY)
        before = read_names(page)
        page.locator("#runs thead").get_by_role("link", name="loss", exact=True).click()
        for word in ("ascending", "descending"):
            expect(page.locator("#runs th[aria-sort]")).to_have_attribute("aria-sort", word)
            expect(page.locator("#runs th[aria-sort]")).to_have_text(re.compile("^(best )?loss"))
            names = names_of(shown.sum(SWEEP, "--sort", "loss"))
            assert read_names(page) == (names if word == "ascending" else names[::-1])
            if word == "ascending":
                page.locator("#runs th[aria-sort] a").click()
        assert "sort=loss" in page.url
        assert read_table(open_page(page.url)) == read_table(page)
        page.go_back()
        expect(page.locator("#runs th[aria-sort]")).to_have_attribute("aria-sort", "ascending")
        assert read_names(page) == names_of(shown.sum(SWEEP, "--sort", "loss:min"))
        page.go_back()
        expect(page.locator("#runs th[aria-sort]")).not_to_have_text(re.compile("^(best )?loss"))
        assert read_names(page) == before

    def test_filtered_as_on_the_command_line(self, open_page: Opener, shown: Exhibits) -> None:
        page = open_page(STUDY)
        said = shown.sum(SWEEP, "--where", FILTER)
        assert 0 < len(said) < len(read_table(page))
        filter_by(page, FILTER)
        expect_count(page, len(said))
        assert read_names(page) == names_of(said)
        page.reload()
        assert read_names(page) == names_of(said)
        assert page.get_by_label("Runs where").input_value() == FILTER

    def test_without_script(self, open_page: Opener, shown: Exhibits) -> None:
        page = open_page(f"{STUDY}?rows=5", java_script_enabled=False)
        page.locator("#runs thead").get_by_role("link", name="loss", exact=True).click()
        said = names_of(shown.sum(SWEEP, "--sort", "loss:min"))
        expect(page.locator("#runs tbody tr")).to_have_count(5)
        assert page.locator("#runs tbody td.name").all_inner_texts() == said[:5]
        page.get_by_role("link", name="Next").click()
        assert page.locator("#runs tbody td.name").all_inner_texts() == said[5:10]
        page.get_by_label("Runs where").fill(FILTER)
        page.get_by_role("button", name="Show", exact=True).click()
        said = names_of(shown.sum(SWEEP, "--sort", "loss:min", "--where", FILTER))
        assert page.locator("#runs tbody td.name").all_inner_texts() == said[:5]
        for box in page.locator("#runs tbody input[type=checkbox]").all()[:2]:
            box.check()
        page.get_by_role("button", name="Compare the marked runs").click()
        expect(page.get_by_role("heading", level=1)).to_contain_text("2 runs")


class TestCharts:
    def test_curves(self, open_page: Opener, shown: Exhibits) -> None:
        page = open_page(f"{STUDY}?tab=curves&metric=loss")
        wait_until_drawn(page)
        canvas = page.locator("[data-curves] canvas")
        expect(canvas).to_have_count(1)
        assert canvas.evaluate(IS_DRAWN)
        first = canvas.evaluate(PIXELS)
        keys = page.get_by_role("list", name="Curves").get_by_role("listitem")
        expect(keys).to_have_count(12)
        page.get_by_label("log y").check()
        page.wait_for_url("**log=1*")
        wait_until_drawn(page)
        assert canvas.evaluate(PIXELS) != first
        page.get_by_label("Smoothing").fill("0.8")
        page.get_by_label("Smoothing").press("Enter")
        page.wait_for_url("**smooth=0.8*")
        expect(page.locator("[data-curves]")).to_contain_text("smoothing")
        page.locator("#x").select_option("step")
        page.wait_for_url("**x=step*")
        expect(page.get_by_role("img", name=re.compile("over step"))).to_have_count(1)
        page.get_by_label("Metric").select_option("acc")
        page.wait_for_url("**metric=acc*")
        expect(page.get_by_role("img", name=re.compile("^acc"))).to_have_count(1)
        page.get_by_label("Mean over").fill("seed")
        page.get_by_label("Mean over").press("Enter")
        expect(keys).to_have_count(6)
        expect(keys.first).to_contain_text("3 runs")
        assert page.locator("[data-curves] canvas").evaluate(IS_DRAWN)

    def test_over_time(self, open_page: Opener, watch: Watch) -> None:
        page = open_page("/studies/logged?tab=curves&metric=loss")
        for x in ("epoch", "time"):
            page.locator("#x").select_option(x)
            page.wait_for_url(f"**x={x}*")
            expect(page.get_by_role("img", name=re.compile(f"over {x}"))).to_have_count(1)
            assert page.locator("canvas").evaluate(IS_DRAWN)
        watch.expected += ["400"]  # a log has no times, and the page says so
        page.goto(f"{STUDY}?tab=curves&metric=loss&x=time")
        expect(page.locator("[data-curves]")).to_contain_text("no times")

    @pytest.mark.parametrize(("tab", "least"), [("scatter", 18), ("slices", 18), ("parallel", 18), ("importance", 3)])
    def test_drawings(self, open_page: Opener, tab: str, least: int) -> None:
        """As many marks as there are runs, or parameters."""
        page = open_page(STUDY)
        page.get_by_role("navigation", name="Views").get_by_role("link", name=tab.capitalize()).click()
        page.wait_for_url(f"**tab={tab}*")
        expect(page.locator("#part svg").first).to_be_visible()
        marks = page.locator("#part svg :is(.point, .one, .bar, .crossed)")
        assert marks.count() >= least
        filter_by(page, "seed == 0")
        page.wait_for_url("**where=*")
        if tab != "importance":
            expect(marks).not_to_have_count(least)
            assert 0 < marks.count() < least * 3

    def test_the_history_of_a_search(self, open_page: Opener, shown: Exhibits) -> None:
        page = open_page(f"/studies/{SEARCH}?tab=history")
        assert page.locator("#part svg .point").count() >= len(shown.sum(SEARCH))


class TestRuns:
    def test_two_are_compared(self, open_page: Opener) -> None:
        page = open_page(STUDY)
        names = [read_names(page)[index] for index in (0, 4)]
        for name in names:
            page.get_by_label(f"Mark {name}").check()
        page.get_by_role("button", name="Compare", exact=True).click()
        page.wait_for_url("**/compare?**")
        expect(page.get_by_role("heading", level=1)).to_contain_text("2 runs")
        for name in names:
            expect(page.locator("main")).to_contain_text(name)
        wait_until_drawn(page)
        assert page.locator("canvas").first.evaluate(IS_DRAWN)
