"""Reports that are kept for the page: a written report is read again; files of every version are read."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import pytest
from tests.golden.report.golden_reports import FAILED, golden, metric

from assay.errors import NotFoundError
from assay.follow.api import StudyLocation
from assay.golden.records import list_ids, load_head, load_report, write_report
from assay.golden.values import GoldenTestReport, SegmentReport
from assay.values.verdict import Finding, Verdict, VerdictKind

SAMPLES = Path(__file__).parents[1] / "formats" / "golden-report"


def build_report(*, odd: bool = False) -> GoldenTestReport:
    value = float("nan") if odd else 1.0
    found = (FAILED, Finding(VerdictKind.INCONCLUSIVE, "segment at 100: loss", "text", value=value))
    verdict = Verdict.of(found, 20)
    segment = SegmentReport(100, "ckpts/c100", verdict, (metric(found),))
    return GoldenTestReport("charlm", "/store/charlm.json", verdict, golden(), (segment,), notes=("a note",))


def locate(folder: Path) -> StudyLocation:
    return StudyLocation(str(folder), "golden-charlm")


def test_there_and_back(tmp_path: Path) -> None:
    report = build_report()
    write_report(locate(tmp_path), "check", "golden.yml", report)
    ((wanted, mode),) = list_ids(locate(tmp_path))
    assert mode == "check"
    head, found = load_report(locate(tmp_path), wanted)
    assert found == report
    assert head == load_head(locate(tmp_path), wanted)
    assert (head.kind, head.source, head.test) == (VerdictKind.FAIL, "golden.yml", "charlm")
    (row,) = head.rows
    assert (row.segment, row.metric, row.effect, row.interval) == (100, "loss", 0.02, (0.015, 0.025))


def test_numbers_that_json_does_not_have(tmp_path: Path) -> None:
    write_report(locate(tmp_path), "check", "golden.yml", build_report(odd=True))
    _, found = load_report(locate(tmp_path), list_ids(locate(tmp_path))[0][0])
    value = found.verdict.findings[1].value
    assert value is not None
    assert math.isnan(value)


def test_two_reports_at_once_are_two(tmp_path: Path) -> None:
    for mode in ("check", "gather", "check"):
        write_report(locate(tmp_path), mode, "golden.yml", build_report())  # type: ignore[arg-type]
    assert [mode for _, mode in list_ids(locate(tmp_path))] == ["check", "gather", "check"]
    with pytest.raises(NotFoundError):
        load_head(locate(tmp_path), "20200101-000000-000000")


@pytest.mark.parametrize("sample", sorted(SAMPLES.glob("*.jsonl")), ids=lambda path: path.stem)
def test_every_version_is_read(tmp_path: Path, sample: Path) -> None:
    folder = tmp_path / "golden-charlm" / ".assay" / "golden"
    folder.mkdir(parents=True)
    (folder / "20260102-030405-000006-check.json.gz").write_bytes(gzip.compress(sample.read_bytes()))
    head, found = load_report(locate(tmp_path), "20260102-030405-000006")
    assert head.kind is found.verdict.kind is VerdictKind.FAIL
    assert found.segments[0].metrics[0].check[""][0].values
