"""Goldens, benchmarks with triage by a button, models, sessions and traces, from the list to the last page by clicks."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import Page, expect
from tests.study.workbench import until
from tests.web.browser.conftest import Opener, Watch
from tests.web.browser.exhibits import BENCHMARK, CHANGED_AT, GOLDEN, Exhibits

pytestmark = pytest.mark.services("browser")

MODEL = "tests/testdata/onnx_models/example-cnn.onnx"


def open_subject(open_page: Opener, name: str, *, is_allowed: bool = False) -> Page:
    page = open_page("/studies", is_allowed=is_allowed)
    page.get_by_role("navigation", name="Subjects").get_by_role("link", name=name).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(name)
    return page


def test_goldens(open_page: Opener) -> None:
    """The last check failed; the one before it, a click away, passed."""
    page = open_subject(open_page, "Goldens")
    card = page.locator(".cards .card").first
    expect(card.get_by_role("heading").locator(".badge")).to_have_text("FAIL")
    card.get_by_role("heading").get_by_role("link").click()
    page.wait_for_url(f"**/goldens/{GOLDEN}*")
    expect(page.locator("main .badge.FAIL").first).to_be_visible()
    assert page.locator("main svg .measured").count() > 0
    assert page.locator("main svg .reference").count() > 0
    assert page.locator("main svg .fail").count() > 0  # the windows that failed
    page.go_back()
    card.locator("a.badge", has_text="PASS").click()
    page.wait_for_url("**check=*")
    assert page.locator("main svg .measured").count() > 0
    expect(page.locator("main svg .fail")).to_have_count(0)
    page.goto("/goldens")
    page.get_by_role("link", name=re.compile("manifest.json")).click()
    page.wait_for_url("**/recordings/**")
    assert page.locator("main svg").count() > 0


class TestBenchmarks:
    def test_a_change_is_judged_by_a_button(self, open_page: Opener, shown: Exhibits) -> None:
        page = open_subject(open_page, "Benchmarks", is_allowed=True)
        page.locator(f"a[href*='method={BENCHMARK}']").first.click()
        page.wait_for_url("**/history?**")
        expect(page.get_by_role("heading", level=1).locator(".badge")).to_have_text("FAIL")
        change = page.get_by_role("region", name=f"Change at e{CHANGED_AT:04d}")
        found = re.search(r"\+(\d+\.\d)%", change.inner_text())
        assert found
        assert 19 < float(found[1]) < 21
        change.get_by_label("Note").fill("a new compiler")
        change.get_by_role("button", name="Acknowledge").click()
        expect(change.locator(".badge", has_text="ack")).to_be_visible()
        expect(change).to_contain_text("a new compiler")
        expect(page.get_by_role("heading", level=1).locator(".badge")).not_to_have_text("FAIL")
        kept = shown.assay("bench", "history", "wall_time", BENCHMARK, "--root", "runs", "--json")
        assert "a new compiler" in kept
        change.get_by_role("button", name="Open again").click()
        expect(page.get_by_role("heading", level=1).locator(".badge")).to_have_text("FAIL")

    def test_no_buttons_without_the_token(self, open_page: Opener, shown: Exhibits) -> None:
        page = open_page(shown.find_page("benchmark"))
        expect(page.get_by_role("region", name=re.compile("^Change at"))).to_have_count(1)
        expect(page.get_by_role("button", name="Acknowledge")).to_be_hidden()

    def test_two_sides(self, open_page: Opener) -> None:
        page = open_page("/benchmarks/bench/compare")
        page.get_by_label("Base").fill("before")
        page.get_by_label("Head").fill("after")
        page.get_by_role("button", name="Compare").click()
        page.wait_for_url("**head=after*")
        expect(page.locator("main")).to_contain_text("single_precision")
        expect(page.locator("main .badge").first).to_be_visible()

    def test_environments(self, open_page: Opener) -> None:
        page = open_page(f"/benchmarks/bench/environments?method={BENCHMARK}&by=cpu_model")
        expect(page.locator("main table")).to_contain_text("Example CPU")


class TestModels:
    def test_from_the_list_to_a_tensor(self, open_page: Opener, shown: Exhibits) -> None:
        page = open_subject(open_page, "Models")
        row = page.locator("tr", has_text="scaled")
        expect(row.locator(".badge").first).to_have_text("FAIL")
        expect(row).to_contain_text("Conv_7")
        row.get_by_role("link", name="example-cnn").first.click()
        page.wait_for_url("**/checks/**")
        graph = page.locator("svg.graph")
        layers = json.loads(shown.assay("model", "layers", f"{shown.folder}/models/{MODEL}", "--json"))
        assert graph.locator(".node").count() == len(layers["layers"])
        expect(graph.locator(".firstwrong")).to_contain_text("Conv_7")
        page.locator("a[href*='/tensors?']").first.click()
        page.wait_for_url("**/tensors?**")
        expect(page.get_by_role("heading", level=1)).to_contain_text("Tensor")
        assert page.locator("main svg").count() >= 1

    def test_layer_times(self, open_page: Opener) -> None:
        page = open_subject(open_page, "Models")
        for box in page.get_by_role("checkbox").all():
            box.check()
        page.get_by_role("button", name="Layer times side by side").click()
        page.wait_for_url("**/times?**")
        expect(page.locator("main table")).to_contain_text("Conv_7")

    def test_sessions(self, open_page: Opener) -> None:
        page = open_subject(open_page, "Models")
        page.locator("a[href*='/sessions/']").first.click()
        page.wait_for_url("**/sessions/**")
        expect(page.locator("main")).to_contain_text("tracker#7")
        page.get_by_label("Baseline").select_option(index=0)
        page.get_by_role("button", name="Compare").click()
        page.wait_for_url("**baseline=*")
        expect(page.get_by_role("heading", name=re.compile("^Outcomes"))).to_be_visible()
        expect(page.locator("tr", has_text="test_layer_0").last).to_contain_text("failed")


def test_a_profile_opens_offline(open_page: Opener, watch: Watch) -> None:
    """The watch sees that nobody else is asked; the words of the profile are on the viewer's page."""
    watch.expected += ["GL Driver Message"]  # there is no graphics card
    page = open_subject(open_page, "Traces")
    page.get_by_role("link", name=re.compile("sort_numbers")).first.click()
    page.wait_for_url("**/traces/bench/**")
    with page.context.expect_page() as opened:
        page.get_by_role("link", name="open in speedscope").first.click()
    viewer = opened.value
    viewer.get_by_text("Sandwich").wait_for()
    until(lambda: "py-spy" in viewer.title(), "the profile is shown")
