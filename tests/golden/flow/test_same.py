"""`golden.same`: configurations that a check runs next to the canonical one, and that must agree with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.golden_training import Lab, messages, run_in_process

from assay.follow.api import StudyLocation
from assay.golden.flow.each_test import validate_file
from assay.golden.page import build_golden_page
from assay.golden.records import list_ids, load_report
from assay.golden.report.document import build_document
from assay.golden.values import GoldenReport
from assay.show.html import render_html
from assay.show.junit import render_junit
from assay.show.markdown import render_markdown
from assay.show.terminal_report import render_terminal
from assay.values.verdict import VerdictKind

# The noise differs from call to call, and is the same in every execution of the test.
NOISY = r"""
import os, random, sys
here = os.path.dirname(os.path.abspath(__file__))
with open(here + "/calls", "a+") as file:
    file.seek(0)
    rng = random.Random(len(file.read()))
    file.write("x")
mode = os.environ.get("MODE", "")
if mode == "crash":
    sys.exit("out of memory")
for step in range(0, 60, 2) if mode == "other steps" else range(200, 230) if mode == "later" else range(60):
    loss = 2 / (1 + step / 20) * (1 + rng.gauss(0, 1e-4)) * float(os.environ.get("SCALE", "1"))
    if mode == "nan" and step == 40:
        loss = float("nan")
    print(f"step {step}" if mode == "mute" else f"step {step} loss {loss:.9f}", flush=True)
"""
STUDY = r"""
study: demo
command: python3 training.py
metrics: {step: '^step (\d+)', loss: 'loss ({number}|nan)'}
golden:
  segment: 60
  same: SAME
"""


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    monkeypatch.chdir(tmp_path)
    run_in_process(monkeypatch)
    lab = Lab(tmp_path)
    (tmp_path / "training.py").write_text(NOISY)
    return lab


def check(lab: Lab, **same: dict[str, object]) -> GoldenReport:
    lab.write_native(STUDY.replace("  same: SAME\n", ""))
    lab.use_golden()
    lab.write_native(STUDY.replace("SAME", json.dumps(same)))
    return lab.check()


def test_each_configuration_is_judged_and_every_format_has_the_matrix(lab: Lab) -> None:
    whole = check(lab, renamed={"env": {"NAME": "x"}}, normalised={"env": {"SCALE": "1.02"}}, flag={"flags": "--x 1"})
    (report,) = whole.tests
    kinds = {each.name: each.verdict.kind for each in report.same}
    assert kinds == {"renamed": VerdictKind.PASS, "normalised": VerdictKind.FAIL, "flag": VerdictKind.PASS}
    assert report.verdict.kind is VerdictKind.FAIL
    assert report.verdict.comparisons == 4 * 60
    assert "FAIL normalised, segment at 0: loss: +" in messages(report)
    assert all(each.verdict.kind is VerdictKind.PASS for each in report.segments)
    assert report.differs == (), "the canonical configuration is as it was"
    location = StudyLocation(str(lab.folder / "runs"), "golden-demo")
    _, found = load_report(location, list_ids(location)[0][0])
    assert found.same[1].verdict.kind is VerdictKind.FAIL
    page = build_golden_page(location, None)
    assert page.head is not None
    assert page.head.worst == ["normalised loss"]
    document = build_document(whole)
    text = render_terminal(document, width=80)
    assert "Configurations that must agree" in text
    rows = [line.split() for line in text.splitlines() if line.startswith(("  canonical", "  renamed", "  normalised"))]
    assert [row[1] for row in rows] == ["PASS", "PASS", "FAIL"]
    assert "FAIL segment 0 normalised loss: +" in text
    assert max(map(len, text.split("\n\n")[1].splitlines())) <= 80
    for shown in (render_html(document), render_markdown(document)):
        assert "Configurations that must agree" in shown
        assert "SCALE=1.02" in shown
    assert 'classname="demo.normalised.segment 0" name="loss"' in render_junit(document)
    (facts,) = document.facts["tests"]
    assert [each["verdict"] for each in facts["same"]] == ["PASS", "FAIL", "PASS"]


@pytest.mark.parametrize(
    ("mode", "kind", "words"),
    [
        ("crash", VerdictKind.ERROR, "out of memory"),
        ("mute", VerdictKind.ERROR, "the check has no loss"),
        ("other steps", VerdictKind.ERROR, "30 of 60 steps are missing"),
        ("later", VerdictKind.ERROR, "logged none of the golden's 60 steps"),
        ("nan", VerdictKind.FAIL, "the check is nan at step 40"),
    ],
)
def test_what_cannot_be_compared_never_passes(lab: Lab, mode: str, kind: VerdictKind, words: str) -> None:
    (report,) = check(lab, odd={"env": {"MODE": mode}}).tests
    (one,) = report.same
    assert one.verdict.kind is kind
    assert words in messages(report)
    assert report.verdict.kind is kind


def test_a_configuration_that_changes_nothing_is_doubted_and_validate_prints_each(lab: Lab) -> None:
    lab.edit("1e-4", "0")
    (report,) = check(lab, idle={"env": {"UNREAD": "1"}}).tests
    assert report.verdict.kind is VerdictKind.PASS
    assert "idle is equal bit for bit to the recording: does the program read UNREAD=1?" in report.notes
    runs = sorted(path.name for path in (lab.folder / "runs" / "golden-demo").glob("[cs]*-s0"))
    assert [name.split("-2")[0] for name in runs] == ["check", "same-idle"], "rebase takes those of checks"
    lab.write_native(STUDY.replace("SAME", "{a: {env: {SCALE: '2 x'}}, b: {flags: --x 1}}"))
    commands = {mode: text for _, mode, text in validate_file(lab.options()).commands}
    assert commands["same a"] == "SCALE='2 x' python3 training.py"
    assert commands["same b"] == "python3 training.py --x 1"
