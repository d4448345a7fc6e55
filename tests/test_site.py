"""The site of the documents needs no network, and what pages and README show was made by scripts from what is there."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from playwright.sync_api import sync_playwright
from tests.services import DOCS_PYTHON, TOP
from tests.test_release import load_script

OUTSIDE = re.compile(r'<(?:script[^>]*src|link[^>]*href|img[^>]*src)="?(?:https?:)?//')
NAMED, FAILED = "reported on (odd seeds): named", "harmless variants: FAIL"  # of benchmarks/trace_faults.py
ROOT_PAGES = {"about.md", "changes.md", "contributing.md", "measured.md", "security.md"}  # made by docs/_site.py


def pages_of(menu: Any) -> list[str]:
    if isinstance(menu, str):
        return [menu]
    return [page for each in (menu.values() if isinstance(menu, dict) else menu) for page in pages_of(each)]


def test_every_page_is_in_the_menu_once() -> None:
    text = (TOP / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    docs = TOP / "docs"
    written = {str(path.relative_to(docs)) for path in docs.rglob("*.md")}
    assert sorted(pages_of(yaml.safe_load(text))) == sorted(written | ROOT_PAGES)


def test_the_figures_are_those_that_the_scripts_measured() -> None:
    report = load_script("benchmarks/_report.py")
    results = report.load_results()
    assert (TOP / "benchmarks" / "README.md").read_text("utf-8") == report.build_page(results), "benchmarks/_report.py"
    assert report.CHART.read_text("utf-8") == report.build_chart(results), "python benchmarks/_report.py"


def test_the_pictures_show_the_page_as_it_is() -> None:
    stored = json.loads((TOP / "docs" / "pictures" / "sources.json").read_text())
    assert stored["sha256"] == load_script("docs/pictures/make.py").hash_sources(), "python docs/pictures/make.py"


def test_the_readme_claims_no_more_faults_than_were_counted() -> None:
    figures = json.loads((TOP / "benchmarks" / "results" / "faults.json").read_text())["figures"]
    assert [each["what"] for each in figures if each["problems"]] == []
    claims = re.findall(
        r"([\d,]+)\s(kill|power cut|full disk|damaged file|hostile request)s", (TOP / "README.md").read_text()
    )
    assert len(claims) == 5
    for number, what in claims:
        assert int(number.replace(",", "")) <= sum(each["tried"] for each in figures if what in each["what"]), what


def test_the_readme_names_the_planted_faults_that_were_measured() -> None:
    figures = json.loads((TOP / "benchmarks" / "results" / "trace_faults.json").read_text())["figures"]
    named, failed = ({each["what"]: each for each in figures}[what] for what in (NAMED, FAILED))
    text = " ".join((TOP / "README.md").read_text("utf-8").split())
    assert re.findall(r"Of (\d+) faults planted in trainings, `assay trace` \[named (\d+)\]", text) == [
        (str(named["tried"]), str(named["hits"]))
    ]
    assert (f"of {failed['tried']} harmless changes it failed none" in text, failed["hits"]) == (True, 0)


def test_the_readme_and_pages_are_short() -> None:
    assert len((TOP / "README.md").read_text("utf-8").split()) <= 1200
    counts = {path.name: len(path.read_text("utf-8").split()) for path in (TOP / "docs").rglob("*.md")}
    assert {name: count for name, count in counts.items() if count > 2400} == {}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [DOCS_PYTHON, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=TOP, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.services("docs")
def test_no_page_loads_anything_from_outside(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 70
    assert [str(page) for page in pages if OUTSIDE.search(page.read_text(encoding="utf-8"))] == []


@pytest.mark.services("docs")
def test_no_table_shows_an_escape(site: Path) -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in site.rglob("*.html"))
    cells = re.findall(r"<td.*?</td>", text, re.DOTALL)
    assert any("<code>--retry failed|lost|stopped</code>" in cell.replace("&#124;", "|") for cell in cells)
    assert [cell for cell in cells if re.search(r"\\(\||&lt;|&#124;)", cell)] == []


@pytest.mark.services("docs", "browser")
def test_a_reader_without_a_network_searches(site: Path) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_context(offline=True).new_page()
        page.goto((site / "index.html").as_uri())
        page.keyboard.press("/")
        page.keyboard.type("early stopping", delay=20)
        found = page.locator(".md-search-result__item h1").first
        found.wait_for(timeout=60_000)
        assert found.inner_text() == "Early stopping"
        browser.close()
