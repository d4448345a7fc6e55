"""The page of a study says what `assay sum` says: cells, order, counts, filters. Then its charts, a run, and two runs."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, Route, expect
from tests.finished_study import until
from tests.web.browser.conftest import PHONE, Opener, Server, Watch, log_in, wait_until_drawn
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


# ---------------------------------------------------------------- with script: columns that stay, marks and curves


def read_head(page: Page) -> list[str]:
    texts = page.locator("#runs thead th").all_inner_texts()
    return [re.sub(r"[↑↓]", "", text).strip() for text in texts[1:]]


def test_a_choice_of_columns_stays(open_page: Opener) -> None:
    """The choice is in the address, after a reload and on the way back from another page, until it is taken back."""
    page = open_page(f"/studies/{SWEEP}")
    usual = read_head(page)
    assert "time" in usual
    page.locator("#columns summary").click()
    page.get_by_label("time", exact=True).uncheck()
    page.get_by_role("button", name="Show these columns").click()
    expect(page).to_have_url(re.compile("hide=time"))
    expect(page.get_by_role("columnheader", name="time", exact=True)).to_have_count(0)
    page.goto("/studies")
    page.locator(f"[data-study={SWEEP}] h2 a").click()
    expect(page).to_have_url(re.compile("hide=time"))
    expect(page.get_by_role("columnheader", name="time", exact=True)).to_have_count(0)
    page.locator("#columns summary").click()
    page.get_by_role("button", name="Default columns").click()
    expect(page.locator("#runs thead")).to_contain_text("time")
    page.reload()
    assert read_head(page) == usual
    assert "hide" not in page.url


def test_marks_survive_sorting_and_paging(open_page: Opener) -> None:
    page = open_page(f"/studies/{SWEEP}?rows=5")
    bulk = page.locator("[data-bulk]")
    expect(bulk).to_be_hidden()
    first = page.locator("input[name=run]").first
    name = first.get_attribute("value") or ""
    first.check()
    page.get_by_role("link", name="Next").click()
    expect(page.locator("#pages")).to_contain_text("Page 2")
    page.locator("input[name=run]").first.check()
    expect(bulk.locator("[data-marked]")).to_have_text("2 marked")
    expect(bulk.locator("[data-act]")).to_be_hidden()  # no token was given here
    page.locator("#runs thead").get_by_role("link", name="seed").click()
    expect(page).to_have_url(re.compile("sort=seed"))
    expect(bulk.locator("[data-marked]")).to_have_text("2 marked")
    bulk.get_by_role("button", name="Compare").click()
    expect(page).to_have_url(re.compile("/compare"))
    assert name.replace("=", "%3D").replace(",", "%2C") in page.url
    page.go_back()
    expect(bulk.locator("[data-marked]")).to_have_text("2 marked")
    bulk.get_by_role("button", name="Clear marks").click()
    expect(bulk).to_be_hidden()


def test_a_filter_is_marked_where_it_is_wrong_and_goes_with_every_view(open_page: Opener) -> None:
    page = open_page(f"/studies/{SWEEP}")
    field = page.get_by_label("Runs where")
    for text, problem in (("lr <", "lr <"), ("sead == 1", "did you mean 'seed'")):
        field.fill(text)
        field.press("Enter")
        expect(page.locator("#where-problem")).to_contain_text(problem)
        expect(page.get_by_role("alert")).to_contain_text(problem)
        expect(field).to_have_attribute("aria-invalid", "true")
    for text, count in (("", 18), ("seed == 1", 6)):
        field.fill(text)
        field.press("Enter")
        expect(page.locator("#pages")).to_contain_text(f"{count} runs")
        expect(page.locator("#where-problem")).to_have_count(0)
        expect(field).not_to_have_attribute("aria-invalid", "true")
    expect(page.locator("#tab-curves")).to_have_attribute("href", re.compile("where=seed"))
    page.get_by_role("link", name="Scatter").click()
    expect(page.locator("#drawn svg").first).to_be_visible()
    expect(page).to_have_url(re.compile("where=seed"))
    page.locator("#drawn svg :is(circle, path.crossed)").first.click(force=True)
    expect(page).to_have_url(re.compile(r"/runs/.*seed%3D1"))


def test_curves_are_hidden_zoomed_and_read(open_page: Opener) -> None:
    page = open_page(f"/studies/{SWEEP}?tab=curves")
    wait_until_drawn(page)
    page.locator(".charts.grid h2 a").first.click()
    expect(page.locator(".curve-keys")).to_be_visible()
    wait_until_drawn(page)
    keys = page.locator(".curve-keys li")
    colors = page.locator(".swatch path").evaluate_all("(all) => all.map((each) => each.getAttribute('class'))")
    assert len(set(colors)) == keys.count()
    expect(keys.first).to_contain_text("points")
    before = page.locator("canvas").evaluate(PIXELS)
    keys.first.get_by_role("button").click()
    expect(keys.first.get_by_role("button")).to_have_attribute("aria-pressed", "false")
    until(lambda: page.locator("canvas").evaluate(PIXELS) != before, "it is drawn again")
    box = page.locator(".u-over").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 100, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + 300, box["y"] + 60, steps=4)
    page.mouse.up()
    again = page.get_by_role("button", name="Reset zoom")
    expect(again).to_be_visible()
    expect(page).to_have_url(re.compile("#zoom="))
    page.reload()
    wait_until_drawn(page)
    expect(again).to_be_visible()  # the address has the zoom
    again.focus()
    page.keyboard.press("Enter")
    expect(again).to_be_hidden()
    assert "zoom" not in page.url
    assert all("d0" in each for each in colors[:12]), colors  # colours before dashes
    page.locator("details.values summary").click()
    expect(page.locator("details.values tbody tr")).to_have_count(keys.count())
    page.reload()
    wait_until_drawn(page)
    assert page.locator(".swatch path").evaluate_all("(all) => all.map((each) => each.getAttribute('class'))") == colors


def test_the_bar_of_marked_runs(open_page: Opener) -> None:
    """One Tab from the box that was marked; one marked run cannot be compared, and the page shows that."""
    page = open_page(f"/studies/{SWEEP}", is_allowed=True)
    page.locator("input[name=run]").first.check()
    compare = page.get_by_role("button", name="Compare", exact=True)
    expect(compare).to_be_disabled()
    expect(page.get_by_text("mark two or more")).to_be_visible()
    page.locator("input[name=run]").nth(1).check()
    expect(compare).to_be_enabled()
    expect(page.get_by_text("mark two or more")).to_be_hidden()
    page.locator("input[name=run]").nth(1).focus()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="To the actions of the marked runs")).to_be_focused()
    page.keyboard.press("Enter")
    expect(compare).to_be_focused()


def test_the_bar_of_marked_runs_on_a_phone(open_page: Opener) -> None:
    """One line; the actions on demand."""
    page = open_page(f"/studies/{SWEEP}", is_allowed=True, viewport=PHONE)
    page.locator("input[name=run]").first.check()
    bar = page.locator(".bulk")
    size = bar.bounding_box()
    assert size is not None
    clear = bar.get_by_role("button", name="Clear").bounding_box()
    assert clear is not None
    assert size["height"] < 70
    assert clear["x"] + clear["width"] <= size["x"] + size["width"]
    expect(bar.get_by_role("button", name="Tag", exact=True)).to_be_hidden()
    more = bar.get_by_role("button", name="Actions")
    more.click()
    expect(more).to_have_attribute("aria-expanded", "true")
    expect(bar.get_by_role("button", name="Tag", exact=True)).to_be_visible()
    more.click()
    expect(bar.get_by_role("button", name="Tag", exact=True)).to_be_hidden()


def test_several_charts_tell_names_and_values(open_page: Opener) -> None:
    """One legend for all of them; below each the curve at the cursor; two charts are as wide as the page."""
    page = open_page(f"/studies/{SWEEP}?tab=curves")
    wait_until_drawn(page)
    legend = page.locator("[data-shared-legend] .curve-keys li")
    expect(legend.first.get_by_role("link")).to_be_visible()
    names = legend.locator(".of").all_text_contents()
    assert len(names) == len(set(names)) > 1
    chart = page.locator(".chart.small").first
    box = chart.locator(".u-over").bounding_box()
    assert box is not None
    told = chart.locator(".told")
    before = chart.bounding_box()
    for part in range(1, 20):  # somewhere there is a curve
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] * part / 20)
        if told.inner_text():
            break
    assert told.locator(".of").text_content() in names
    expect(told.locator("b")).to_have_text(re.compile(r"^-?[\d.e-]+ at step \d+"))
    assert chart.bounding_box() == before  # nothing moves, and nothing is covered
    page.mouse.move(5, 5)
    expect(told).to_be_empty()
    key = legend.first.get_by_role("button")
    key.click()
    expect(key).to_have_attribute("aria-pressed", "false")
    key.click()
    expect(key).to_have_attribute("aria-pressed", "true")
    cards = [each.bounding_box() for each in page.locator(".charts.grid > section").all()]
    right = max(each["x"] + each["width"] for each in cards if each)
    grid = page.locator(".charts.grid").bounding_box()
    assert grid is not None
    assert right == pytest.approx(grid["x"] + grid["width"], abs=2)


def test_names_that_end_alike_are_not_cut(open_page: Opener) -> None:
    def lengthen(route: Route) -> None:
        found = (answer := route.fetch()).json()
        curves = [{**curve, "name": f"{curve['name']} optimiser={'x' * 60}"} for curve in found["curves"]]
        route.fulfill(response=answer, json={**found, "curves": curves})

    page = open_page(f"/studies/{SWEEP}")
    page.route(re.compile(r"/curves\?"), lengthen)
    page.goto(f"{page.url}?tab=curves")
    wait_until_drawn(page)
    expect(page.locator("[data-shared-legend] .of").first).to_contain_text("xxx")
    assert not page.locator(".of, .of *").evaluate_all(
        "(all) => all.some((each) => each.scrollWidth > each.clientWidth)"
    )


def test_bands_are_drawn_between_their_edges(open_page: Opener) -> None:
    page = open_page(f"/studies/{SWEEP}?tab=curves&metric=loss&group=seed&smooth=0.5")
    wait_until_drawn(page)
    expect(page.locator(".chart")).to_contain_text("mean ± standard deviation")
    expect(page.locator(".chart")).to_contain_text("faint: before smoothing")
    assert page.locator(".curve-keys li").count() == 6  # edges and raw lines have no entries


# ---------------------------------------------------------------- while an answer is on its way


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
    expect(page.locator("#messages p")).to_have_text(re.compile(f"^assay tag -- {SWEEP}/a=1 good"))
    assert _is_on_top(page)


def _is_on_top(page: Page) -> bool:
    return bool(
        page.locator("#messages p").evaluate(
            "(place) => { const box = place.getBoundingClientRect();"
            " return place.contains(document.elementFromPoint(box.left + box.width / 2, box.bottom - 4)); }"
        )
    )
