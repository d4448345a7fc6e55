"""`assay report`: a study or a verdict as one page."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.bench.test_web_pages import HOSTILE, build
from tests.command_line import Cli
from tests.finished_study import BAD, GOOD, STUDY, Bench
from tests.golden.report.golden_reports import bad_report, good_report
from tests.models.report import model_reports
from tests.models.test_web_pages import write as write_check

from assay.follow.api import StudyLocation
from assay.golden.records import list_ids, write_report
from assay.models.records import MODEL_FILE
from assay.plugins import Plugin

Report = Callable[..., str]


class Page(HTMLParser):
    """What a page would load or execute."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        active = ("src", "href", "action", "srcset", "data", "style")
        used = [(name, value or "") for name, value in attrs if name in active or name.startswith("on")]
        self.found += [f"{tag} {name}" for name, value in used if not (name == "href" and value.startswith("#"))]
        self.found += [tag] if tag in ("script", "link", "iframe", "object", "embed", "img", "form", "base") else []


@pytest.fixture
def report(cli: Cli) -> Report:
    """The page that the command writes to stdout; it is complete, and loads nothing."""

    def call(*arguments: str) -> str:
        result = cli("report", *arguments, "-o", "-")
        assert (result.code, result.err) == (0, "")
        assert result.out.startswith("<!doctype html>")
        assert result.out.endswith("</html>\n")
        assert Page(result.out).found == []
        assert "url(" not in result.out
        assert "@import" not in result.out
        assert "prefers-color-scheme: dark" in result.out
        return result.out

    return call


def headings(page: str) -> list[str]:
    return [re.sub(r"<[^>]+>", "", text).strip() for text in re.findall(r"<h2>(.*?)</h2>", page, re.DOTALL)]


# ---------------------------------------------------------------- studies


def test_a_study_has_all_its_views(report: Report) -> None:
    page = report("fit")
    assert "<title>fit</title>" in page
    assert '<span class="badge done">2 done</span>' in page
    assert '<span class="badge failed">2 failed</span>' in page
    found = headings(page)
    assert found[0].startswith("fit: best of 2 runs by")
    assert [each.partition(" ")[0] for each in found[1:]] == ["Runs", "Curves", "Parameters", "2", "Origin"]
    assert page.count("<svg") >= 4  # a curve, a slice for each of two parameters, the order of finishing
    assert "step 3 loss 1.7 lr 0.5" in page.partition("runs that failed")[2]  # the end of its log
    assert "assay logs" in page
    assert "assay sum" in page
    assert "<code>assay run study.yml</code>" in page


@pytest.mark.parametrize(("build", "reason"), [(lambda *_: 1 // 0, "ZeroDivisionError"), (lambda *_: 5, "5")])
def test_a_plug_in_that_cannot_report_is_named(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, build: Callable[..., object], reason: str
) -> None:
    monkeypatch.setattr("assay.web.report_command.load_all", lambda _hook: [(Plugin("bad"), build)])
    monkeypatch.setattr("assay.web.report_command.find_function", lambda _name: pytest.fail("fit is not a file"))
    result = cli("report", "fit", "-o", "-")
    assert (result.code, "<title>fit</title>" in result.out) == (0, True)
    assert f"warning: the plug-in bad cannot report fit: {reason}" in result.err


def test_the_table_is_that_of_sum(report: Report, cli: Cli) -> None:
    rows = json.loads(cli("sum", "fit", "--sort", "loss:max", "--json").out)
    page = report("fit", "--sort", "loss:max")
    table = page[page.index("<h2>Runs") :].partition("</table>")[0]
    shown = [re.sub(r"<[^>]+>", "", cell) for cell in re.findall(r"<tr class=\"plain \"><td[^>]*>(.*?)</td>", table)]
    assert [each["run"] for each in rows] == [each.strip() for each in shown]


def test_runs_are_chosen_as_for_sum(report: Report, cli: Cli) -> None:
    page = report("fit", "--where", "lr<0.2")
    assert GOOD in page
    assert BAD not in page
    assert "failed" not in page.partition("</style>")[2]
    assert "± sd" in report("fit", "-g", "n")
    assert "3 more rows" in report("fit", "-n", "1")
    assert BAD not in report(f"fit/{GOOD}")


def test_names_and_logs_are_escaped(own_bench: Bench, report: Report) -> None:
    trick = "<script>alert(1)</script>"
    text = STUDY.replace("n: [7, 8]", f"n: [7], x: ['{trick}', '<img src=x onerror=y>']")
    own_bench.run(text.replace("acc=0.{n}", "acc=0.{n} {x:q}"))
    (own_bench.folder / "noise").write_text(trick)
    next(own_bench.root.glob("fit/lr=0.5*/train.log")).write_text(f"{trick}\x1b]0;x\x07\n")
    page = report("fit")
    assert "alert(1)" in page
    assert "\x1b" not in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fitt",), "did you mean 'fit'?"),
        (("fit", "--sort", "lass"), "did you mean 'loss'?"),
        (("fit", "-o", "nowhere/x.html"), "cannot be written: /"),
        (("fit", "-o", "."), "cannot be written: it is a folder"),
        (("study.yml",), "is not the report of a golden check"),
        (("fit/none*",), "no run named"),
        (("fit", "-n", "0"), "-n"),
    ],
)
def test_what_cannot_be_reported(cli: Cli, arguments: tuple[str, ...], message: str) -> None:
    result = cli("report", *arguments)
    assert (result.code, result.out) == (2, "")
    assert message in result.err


def test_an_empty_study_no_study_and_one_without_metrics_or_parameters(
    own_bench: Bench, cli: Cli, report: Report
) -> None:
    assert cli("report").code == 2
    (own_bench.root / "none" / ".assay").mkdir(parents=True)
    cli("report", "none").ended(2, "no runs yet")
    own_bench.run("study: bare\ncommand: 'true'\nresources: {gpus: 0}\n")
    assert [each.partition(" ")[0] for each in headings(report("bare"))] == ["Runs", "Origin"]


def test_the_file_is_named_after_what_it_shows(cli: Cli, bench: Bench) -> None:
    assert cli("report", "fit").out == "report-fit.html\n"
    assert (bench.folder / "report-fit.html").stat().st_size > 10_000
    assert cli("report", f"fit/{GOOD}").out == "report-fit-lr=0.1-n=7.html\n"
    assert cli("report", "fit", "-o", "mine.html").out == "mine.html\n"


# ---------------------------------------------------------------- verdicts


def test_golden_checks(own_bench: Bench, cli: Cli, report: Report) -> None:
    location = StudyLocation(str(own_bench.root), "golden-demo")
    os.makedirs(location.dir)
    good, bad = good_report(), bad_report()
    for found in (good, bad):
        write_report(location, "check", "golden.yml", found.tests[0])
    (last, _), (before, _) = list_ids(location)
    assert f"<title>{bad.kind} " in report("golden-demo")
    assert f"<title>{good.kind} " in report(f"golden-demo/{before}")
    kept = Path(location.dir, ".assay", "golden", f"{last}-check.json.gz")
    page = report(str(kept))
    assert "Convergence check" in page
    assert page.count("<svg") >= 2
    assert cli("report", "golden-demo", "--sort", "time").code == 2  # its runs, of which there are none
    kept.write_bytes(kept.read_bytes()[:-20])
    broken = cli("report", "golden-demo")
    assert (broken.code, broken.out) == (4, "")
    assert str(kept) in broken.err


def test_benchmarks(own_bench: Bench, cli: Cli, report: Report) -> None:
    build(own_bench.root)
    page = report("bench")
    assert "Largest changes" in page
    assert headings(page)[0].startswith("m.C.f wall_time")
    assert HOSTILE not in page
    assert "FAIL" in headings(report("bench/m.C.f"))[0]
    assert page.count("<svg") > report("bench/m.C.f").count("<svg")
    assert "Distributions" in report("bench/a..b")
    cli("report", "bench/a..c").ended(2, "label or commit named 'c'")
    assert cli("report", "bench/m.C.ff").code == 2


def test_checks_of_models(own_bench: Bench, cli: Cli, report: Report) -> None:
    bad = model_reports.bad_report()
    good = write_check(own_bench.root, "good_1", model_reports.good_report(), at=1e9)
    write_check(own_bench.root, "bad_1", bad, at=1e9 + 9)
    assert f"<title>{bad.verdict.kind} " in report("model/bad_1")
    assert "<title>PASS " in report(str(good))
    assert report("model").count("<h1>") >= 2
    (good / MODEL_FILE).write_text("{")
    cli("report", "model/good_1").ended(4, str(good))
    report("model")
    assert cli("report", "model/good_2").code == 2
