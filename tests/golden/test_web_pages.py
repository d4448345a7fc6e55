"""The page of the goldens, on a root with a real recording and checks that pass, change and fail."""

from __future__ import annotations

import gzip
import json
import math
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from tests.golden.report import golden_reports as made
from tests.golden_training import Lab, run_in_process
from tests.web_client import open_client

from assay.errors import NotFoundError
from assay.follow.api import StudyLocation
from assay.golden.page import build_commands, build_drift, build_golden_page, build_report, list_goldens
from assay.golden.records import list_ids, load_head, load_report, write_report
from assay.golden.values import GoldenTestReport, SegmentReport
from assay.values.verdict import SEVERITY, Finding, Verdict, VerdictKind

SLUG = "golden-demo"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """A gathering, a check of the same program, and one of a training that became worse."""
    lab = Lab(tmp_path_factory.mktemp("goldens"))
    lab.store = lab.folder / "runs" / "store"
    with pytest.MonkeyPatch.context() as monkeypatch:
        run_in_process(monkeypatch)
        assert lab.gather().kind is VerdictKind.PASS
        assert lab.check().kind is VerdictKind.PASS
        lab.change(scale=1.5)
        assert lab.check().kind is VerdictKind.FAIL
    return lab


@pytest.fixture(scope="module")
def client(lab: Lab) -> Iterator[TestClient]:
    with open_client(lab.folder / "runs") as client:
        yield client


def locate(lab: Lab) -> StudyLocation:
    return StudyLocation(str(lab.folder / "runs"), SLUG)


def test_the_list_has_the_last_verdict_and_those_before_and_two_checks_are_compared(
    client: TestClient, lab: Lab
) -> None:
    text = client.get("/goldens").text
    card = text.partition('<li class="card">')[2].partition("</li>")[0]
    head, _, rest = card.partition("</h2>")
    assert 'class="badge FAIL"' in head
    assert "PASS" not in head
    assert 'class="badge PASS"' in rest
    assert "store/demo_convergence_harness_manifest.json" in text
    last, before, _ = [each for each, _ in list_ids(locate(lab))]
    text = client.get(f"/goldens/{SLUG}?check={last}&with={before}").text
    table = text.partition("<tbody>")[2].partition("</tbody>")[0]
    assert "badge FAIL" in table
    assert "badge PASS" in table
    assert text.count('class="c2 curve"') >= 1
    assert client.get(f"/goldens/{SLUG}?check={last}&with=20200101-000000-000000").status_code == 404


def test_no_command_names_the_copy_of_a_store_that_is_elsewhere(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    head = load_head(locate(lab), list_ids(locate(lab))[0][0])
    assert build_commands(head, "runs")
    monkeypatch.setenv("ASSAY_CACHE_DIR", str(lab.store.parent))
    assert build_commands(head, "runs") == []


def test_a_check_as_its_report(client: TestClient, lab: Lab) -> None:
    text = client.get(f"/goldens/{SLUG}").text
    assert "Convergence check" in text
    assert text.count("<svg") >= 3  # a curve of each segment, and the drift
    assert 'class="first"' in text  # where the check failed
    assert "Drift over checks" in text
    assert "The recording now" in text
    reason = text.partition('<p class="answer">')[2].partition("</p>")[0]
    assert "loss" in reason
    assert "%" in reason
    kinds = re.findall(r'class="badge (\w+)"', text.partition("<tbody>")[2].partition("</tbody>")[0])
    assert kinds[0] == "FAIL"
    assert kinds == sorted(kinds, key=list(map(str, SEVERITY)).index), "what failed is first"
    assert "assay golden check " in text
    assert f"-s {lab.store} -t demo" in text
    assert "assay golden rebase" in text
    last, before, first = [each for each, _ in list_ids(locate(lab))]
    assert f"check={last}" in text
    passed = client.get(f"/goldens/{SLUG}?check={before}").text
    assert 'class="badge FAIL"' not in passed.partition('id="checks"')[0]
    gathered = client.get(f"/goldens/{SLUG}?check={first}").text
    assert "Golden recording" in gathered
    report = gathered.partition("<h1")[2].partition('id="checks"')[0].partition("Drift")[0]
    assert ">PASS<" not in report  # a gathering has judged nothing


def test_runs_without_reports_have_no_verdict(tmp_path: Path, lab: Lab) -> None:
    with open_client(tmp_path) as client:
        assert "assay golden gather" in client.get("/goldens").text, "nothing is there"
    shutil.copytree(lab.folder / "runs" / SLUG, tmp_path / SLUG)
    shutil.rmtree(tmp_path / SLUG / ".assay" / "golden")
    with open_client(tmp_path) as client:
        text = client.get("/goldens").text
        assert "before reports were kept" in text
        assert f'href="/studies/{SLUG}"' in text
        assert not re.search(r"badge (PASS|FAIL)", text)
        assert client.get(f"/goldens/{SLUG}").status_code == 404


def test_drift_has_a_point_for_each_check(lab: Lab) -> None:
    heads = [load_head(locate(lab), each) for each, mode in reversed(list_ids(locate(lab))) if mode == "check"]
    assert {row.kind for row in heads[0].rows} == {VerdictKind.PASS}
    (section,) = build_drift(heads)
    chart = section.blocks[0]  # type: ignore[union-attr]
    line, *marked = chart.panels[0].curves  # type: ignore[union-attr]
    assert [x for x, _ in line.points] == [1.0, 2.0]
    ((style, low, high),) = chart.panels[0].limits  # type: ignore[union-attr]
    assert style == "tolerance"
    assert low == -high < 0  # what the rule allows
    assert {curve.style for curve in marked} == {"c2 point", "c1 crossed"}


def test_a_recording_of_the_store_and_unknown_names(client: TestClient) -> None:
    for path in ("golden-dem", "..", ".assay", "golden-demo?check=20200101-000000-000000"):
        answer = client.get(f"/goldens/{path}", follow_redirects=True)
        assert answer.status_code == 404 or path == ".."
        assert "Traceback" not in answer.text
        assert path != "golden-dem" or SLUG in answer.text
    text = client.get("/recordings/store/demo_convergence_harness_manifest.json").text
    assert "<svg" in text
    assert ">PASS<" not in text
    for path in ("store/other.json", "../config.yml", "store/../../config.yml", "/etc/passwd"):
        assert client.get(f"/recordings/{path}").status_code == 404


def copy_reports(lab: Lab, root: Path) -> Path:
    source, folder = (each / SLUG / ".assay" / "golden" for each in (lab.folder / "runs", root))
    folder.mkdir(parents=True)
    for path in source.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


@pytest.mark.parametrize("damage", ["cut", "not gzip", "no report", "empty"])
def test_damaged_reports(lab: Lab, tmp_path: Path, damage: str) -> None:
    """The page shows the other reports and names the damaged one; nothing becomes a PASS."""
    newest = max(copy_reports(lab, tmp_path / "runs").glob("*-check*"))
    data = newest.read_bytes()
    head = gzip.decompress(data).partition(b"\n")[0] + b"\n"
    newest.write_bytes(
        {"cut": data[: len(data) // 2], "not gzip": b"{}", "no report": gzip.compress(head), "empty": b""}[damage]
    )
    with open_client(tmp_path / "runs") as client:
        answer = client.get(f"/goldens/{SLUG}")
        assert answer.status_code == 200
        assert newest.name in answer.text
        assert "is damaged" in answer.text or "cannot be read" in answer.text
        card = client.get("/goldens").text.partition('<li class="card">')[2]
        title, _, rest = card.partition("</h2>")
        assert '<span class="badge ERROR">damaged</span>' in title  # not the PASS before it
        assert rest.partition("before it")[2].count("badge PASS") == 1
        shown = answer.text.partition("<h1")[2].partition('id="checks"')[0].partition("Drift")[0]
        assert 'class="badge PASS"' not in shown
    location = StudyLocation(str(tmp_path / "runs"), SLUG)
    assert not build_golden_page(location, None).blocks
    assert len(list_goldens({SLUG: location})) == 1


FAILED, PASSED = 0, 1  # indices of the checks, the newest first


@pytest.mark.parametrize(
    ("which", "change", "kind"),
    [
        (FAILED, {"kind": "PASS"}, "FAIL"),
        (FAILED, {"kind": "PASS", "rows": []}, "FAIL"),
        (PASSED, {"comparisons": 0, "rows": []}, "ERROR"),
        (PASSED, {"comparisons": -5}, "ERROR"),
        (PASSED, {"rows": [{"segment": 1, "metric": "loss", "kind": "PASS", "effect": "nan"}]}, "ERROR"),
        (PASSED, {"rows": [{"segment": 1, "metric": "loss", "kind": "PASS", "effect": 0, "interval": ["nan", 1]}]}, "ERROR"),
        (PASSED, {"kind": "FAIL"}, "FAIL"),
    ],
)  # fmt: skip
def test_a_head_is_worth_what_its_report_supports(
    lab: Lab, tmp_path: Path, which: int, change: dict[str, object], kind: str
) -> None:
    """The list, the page and `assay report` show the same verdict and name the contradiction."""
    path = sorted(copy_reports(lab, tmp_path).glob("*-check*"), reverse=True)[which]
    for other in path.parent.glob("*-check*"):
        if other != path:
            other.unlink()
    head, _, body = gzip.decompress(path.read_bytes()).partition(b"\n")
    changed = json.dumps({**json.loads(head), **change, "at": 9e15, "mode": "gather"}).encode()
    path.write_bytes(gzip.compress(changed + b"\n" + body))
    location = StudyLocation(str(tmp_path), SLUG)
    (card,) = list_goldens({SLUG: location})
    assert card.checks[0].kind == kind
    assert card.checks[0].at < time.time()  # the time in the name of the file
    assert card.problems
    with open_client(tmp_path) as client:
        for address in ("/goldens", f"/goldens/{SLUG}"):
            text = client.get(address).text
            assert "badge PASS" not in text.partition("</h2>")[0]
            assert "contradicts itself" in text
        assert text.count(f'badge {kind}"') >= 3  # of the report, the test and the list
    document = build_report(location, None)
    assert document is not None
    assert document.title.startswith(kind)


@pytest.mark.parametrize("verdict", [{"kind": "PASS", "findings": [], "comparisons": 0}, {"kind": "PASS"}])
def test_a_report_that_was_changed_below_its_head(lab: Lab, tmp_path: Path, verdict: dict[str, object]) -> None:
    for path in copy_reports(lab, tmp_path).glob("*-check*"):
        head, _, body = gzip.decompress(path.read_bytes()).partition(b"\n")
        content = json.loads(body)
        content["verdict"] |= verdict
        for segment in content["segments"]:
            segment["verdict"] |= verdict
            for metric in segment["metrics"]:
                metric["verdict"] |= {"kind": "PASS"}
        path.write_bytes(gzip.compress(head + b"\n" + json.dumps(content).encode()))
    location = StudyLocation(str(tmp_path), SLUG)
    (card,) = list_goldens({SLUG: location})
    shown = [str(load_report(location, head.id)[1].verdict.kind) for head in card.checks]
    expected = ["FAIL", "ERROR"] if "comparisons" in verdict else ["FAIL", "PASS"]
    assert [head.kind for head in card.checks] == shown == expected


@pytest.mark.parametrize("part", ["golden", "segments"])
def test_a_report_whose_curves_cannot_be_drawn_is_damaged(lab: Lab, tmp_path: Path, part: str) -> None:
    path = max(copy_reports(lab, tmp_path).glob("*-check*"))
    head, _, body = gzip.decompress(path.read_bytes()).partition(b"\n")
    content = json.loads(body)
    content["golden"]["segments"][0]["tracks"] |= {"odd": {"": []}} if part == "golden" else {}
    content["segments"][0]["metrics"][0] |= {"delta": math.inf} if part == "segments" else {}
    path.write_bytes(gzip.compress(head + b"\n" + json.dumps(content).encode()))
    page = build_golden_page(StudyLocation(str(tmp_path), SLUG), None)
    assert not page.blocks
    assert "is damaged" in page.problems[0]


SAMPLES = Path(__file__).parents[1] / "formats" / "golden-report"


def make_report(*, odd: bool = False) -> GoldenTestReport:
    value = float("nan") if odd else 1.0
    found = (made.FAILED, Finding(VerdictKind.INCONCLUSIVE, "segment at 100: loss", "text", value=value))
    verdict = Verdict.of(found, 20)
    segment = SegmentReport(100, "ckpts/c100", verdict, (made.metric(found),))
    return GoldenTestReport("charlm", "/store/charlm.json", verdict, made.golden(), (segment,), notes=("a note",))


def locate_in(folder: Path) -> StudyLocation:
    return StudyLocation(str(folder), "golden-charlm")


def test_there_and_back(tmp_path: Path) -> None:
    report = make_report()
    write_report(locate_in(tmp_path), "check", "golden.yml", report)
    ((wanted, mode),) = list_ids(locate_in(tmp_path))
    assert mode == "check"
    head, found = load_report(locate_in(tmp_path), wanted)
    assert found == report
    assert head == load_head(locate_in(tmp_path), wanted)
    assert (head.kind, head.source, head.test) == (VerdictKind.FAIL, "golden.yml", "charlm")
    (row,) = head.rows
    assert (row.segment, row.metric, row.effect, row.interval) == (100, "loss", 0.02, (0.015, 0.025))


def test_numbers_that_json_does_not_have(tmp_path: Path) -> None:
    write_report(locate_in(tmp_path), "check", "golden.yml", make_report(odd=True))
    _, found = load_report(locate_in(tmp_path), list_ids(locate_in(tmp_path))[0][0])
    value = found.verdict.findings[1].value
    assert value is not None
    assert math.isnan(value)


def test_two_reports_at_once_are_two(tmp_path: Path) -> None:
    for mode in ("check", "gather", "check"):
        write_report(locate_in(tmp_path), mode, "golden.yml", make_report())  # type: ignore[arg-type]
    assert [mode for _, mode in list_ids(locate_in(tmp_path))] == ["check", "gather", "check"]
    with pytest.raises(NotFoundError):
        load_head(locate_in(tmp_path), "20200101-000000-000000")


@pytest.mark.parametrize("sample", sorted(SAMPLES.glob("*.jsonl")), ids=lambda path: path.stem)
def test_every_version_is_read(tmp_path: Path, sample: Path) -> None:
    folder = tmp_path / "golden-charlm" / ".assay" / "golden"
    folder.mkdir(parents=True)
    (folder / "20260102-030405-000006-check.json.gz").write_bytes(gzip.compress(sample.read_bytes()))
    head, found = load_report(locate_in(tmp_path), "20260102-030405-000006")
    assert head.kind is found.verdict.kind is VerdictKind.FAIL
    assert found.segments[0].metrics[0].check[""][0].values
