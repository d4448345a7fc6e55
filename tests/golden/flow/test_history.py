"""`assay golden history`: nights from kept checks, separated by golden and device, and what people accepted."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from tests.command_line import Cli
from tests.finished_study import Bench
from tests.golden.report.golden_reports import golden
from tests.web_client import open_client

from assay.follow.api import StudyLocation
from assay.golden.records import write_report
from assay.golden.values import GoldenTestReport, MetricReport, Rule, SegmentReport, SegmentRun, Track
from assay.system.fast_dataclasses import replace
from assay.values.run import State
from assay.values.verdict import Finding, Verdict, VerdictKind

pytestmark = pytest.mark.needs(bench=True)

STUDY = "study: charlm\ncommand: 'true'\nmetrics: {loss: 'loss ({number})'}\ngolden: {segment: 4}\n"
LAB = {"cpu": "abacus", "commit": "old"}


@pytest.fixture
def folder(own_bench: Bench) -> Path:
    Path(own_bench.folder, "g.yml").write_text(STUDY)
    return Path(own_bench.folder)


def keep(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    night: int,
    level: float = 1.0,
    *,
    kind: VerdictKind = VerdictKind.PASS,
    origin: dict[str, str] | None = None,
    gathered: str = "2026-01-01",
    hour: int = 12,
) -> None:
    """Keep a check of the night of this number."""
    at = datetime(2026, 3, 1, hour) + timedelta(days=night)  # noqa: DTZ001 in local time, as names of runs
    monkeypatch.setattr("assay.golden.records.time.time", at.timestamp)
    steps, noise = (1, 2, 3, 4), 1 + 1e-4 * ((7 * night) % 5 - 2)
    tracks = [Track(steps, tuple(factor / step for step in steps)) for factor in (1.0, level * noise)]
    verdict = Verdict.of([Finding(kind, "segment at 0: loss", "text")], 4)
    metric = MetricReport(Rule("loss"), verdict, {"": (tracks[0],)}, {"": (tracks[1],)})
    runs = (SegmentRun("/runs/one", State.DONE),)
    report = GoldenTestReport(
        "charlm",
        "/store/charlm.json",
        verdict,
        replace(golden(), provenance={"gathered_at": gathered}),
        (SegmentReport(0, "", verdict, (metric,), runs),),
        origin=LAB if origin is None else origin,
    )
    write_report(StudyLocation(str(folder / "runs"), "golden-charlm"), "check", "g.yml", report)


def test_a_change_is_found_accepted_and_open_again(folder: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for night in range(16):
        bad = night >= 10
        new = {**LAB, "commit": "new"} if bad else LAB
        kind = VerdictKind.FAIL if bad else VerdictKind.PASS
        keep(folder, monkeypatch, night, 1.02 if bad else 1.0, kind=kind, origin=new)
    with open_client(folder / "runs") as client:
        page = client.get("/goldens/golden-charlm").text
        assert re.search(r"abacus: loss \+1.99% \[.*\] since 2026-03-11 \(6 of 16 nights\)", page)
    result = cli("golden", "history", "g.yml").ended(1)
    assert "charlm: FAIL, loss +1.99% [" in result.out
    assert "since 2026-03-11 (6 of 16 nights): commit new instead of old" in result.out
    assert "2 earlier nights; --all shows them" in result.out
    assert "2026-03-01" not in result.out
    assert "2026-03-01" in cli("golden", "history", "g.yml", "--all").out
    accepted = cli("golden", "history", "g.yml", "--accept", "2026-03-11", "--reason", "larger data").ended(0)
    assert "charlm, accepted: 2026-03-11, 2026-03-12, " in accepted.err
    assert "accepted: larger data" in accepted.out
    (facts,) = json.loads(cli("golden", "history", "g.yml", "--json", "--html", "page.html", "--junit", "x.xml").out)
    assert (facts["verdict"], facts["changes"][0]["state"]) == ("PASS", "accepted")
    assert "level of each night" in (folder / "page.html").read_text()
    assert cli("golden", "history", "g.yml", "--withdraw", "2026-03-11").code == 1


def test_a_drift_is_one_sentence(folder: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for night in range(24):
        keep(folder, monkeypatch, night, 1 + 1e-4 * night)
    found = cli("golden", "history", "g.yml").ended(3)
    assert "charlm: CHANGED, loss +0.16% little by little, in 24 nights since 2026-03-01\n" in found.out
    assert "--accept 2026-03-17 --reason" in found.out
    assert cli("golden", "history", "g.yml", "--accept", "last", "--reason", "meant").code == 0


def test_goldens_and_devices_are_never_pooled(folder: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each half alone is quiet; pooled they would show a step."""
    for night in range(8):
        keep(folder, monkeypatch, night, 3.0, gathered="2025-01-01")
        keep(folder, monkeypatch, night + 8, 1.0)
        keep(folder, monkeypatch, night + 16, 2.0, origin={"GPUs": "H200", "cpu": "abacus"})
    result = cli("golden", "history", "g.yml").ended(0)
    assert result.out.count("charlm: PASS, no lasting change in 8 nights") == 2
    assert "8 earlier checks are against another golden, and are not compared" in result.out
    assert "on H200, golden of 2026-01-01" in result.out


def test_checks_of_one_day_are_one_night(folder: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for night in range(6):
        keep(folder, monkeypatch, night, 1.0)
    keep(folder, monkeypatch, 5, 1.2, kind=VerdictKind.FAIL, hour=3)
    (facts,) = json.loads(cli("golden", "history", "g.yml", "--json").out)
    last = facts["nights"][-1]
    assert (len(facts["nights"]), last["runs"], last["kind"], last["good"]) == (6, 2, "FAIL", False)
    assert facts["verdict"] == "INCONCLUSIVE"


def test_no_night_one_night_and_nights_that_cannot_be_read(
    folder: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("golden", "history", "g.yml").ended(2, "no check of charlm is kept in ", "assay golden check g.yml")
    keep(folder, monkeypatch, 0)
    one = cli("golden", "history", "g.yml").ended(3)
    assert "1 night with a level of it: a lasting change shows from 6 on" in one.out
    for night in range(1, 8):
        keep(folder, monkeypatch, night)
    assert cli("golden", "history", "g.yml").code == 0
    files = sorted((folder / "runs/golden-charlm/.assay/golden").iterdir())
    files[3].write_bytes(b"torn")
    damaged = cli("golden", "history", "g.yml").ended(3)
    assert "damaged" in damaged.out
    for path in files:
        path.write_bytes(b"torn")
    assert cli("golden", "history", "g.yml").code == 1


def test_what_is_refused(folder: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(folder, monkeypatch, 0)
    for words, message in (
        (("--accept", "2026-03-02", "--reason", "why"), "2026-03-01"),
        (("--accept", "last"), "--accept and --reason go together"),
        (("--withdraw", "last", "--accept", "last", "--reason", "x"), "without --withdraw"),
        (("-t", "other"), "other"),
    ):
        result = cli("golden", "history", "g.yml", *words)
        assert (result.code, message in result.err) == (2, True), result.err
