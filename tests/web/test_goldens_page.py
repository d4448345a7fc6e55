"""The page of the goldens, on a root with a real recording and checks that pass, change and fail."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from tests.golden.lab import Lab
from tests.web.conftest import open_client

from assay.golden.pages import build_drift, build_golden_page, list_goldens
from assay.golden.records import list_ids, load_head, load_report
from assay.study.api import StudyLocation
from assay.values.verdict import VerdictKind

SLUG = "golden-demo"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """A gathering, a check as it was recorded, and one of a training that became worse."""
    lab = Lab(tmp_path_factory.mktemp("goldens"))
    lab.store = lab.folder / "runs" / "store"
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


def test_the_list_has_the_last_verdict_and_those_before(client: TestClient) -> None:
    text = client.get("/goldens").text
    card = text.partition('<li class="card">')[2].partition("</li>")[0]
    head, _, rest = card.partition("</h2>")
    assert 'class="badge FAIL"' in head
    assert "PASS" not in head
    assert 'class="badge PASS"' in rest
    assert "store/demo_convergence_harness_manifest.json" in text


def test_a_check_as_its_report(client: TestClient, lab: Lab) -> None:
    text = client.get(f"/goldens/{SLUG}").text
    assert "Convergence check" in text
    assert text.count("<svg") >= 3  # a curve of each segment, and the drift
    assert 'class="first"' in text  # where it failed
    assert "Drift over checks" in text
    assert "The recording now" in text
    last, before, first = [each for each, _ in list_ids(locate(lab))]
    assert f"check={last}" in text
    passed = client.get(f"/goldens/{SLUG}?check={before}").text
    assert 'class="badge FAIL"' not in passed.partition('id="checks"')[0]
    gathered = client.get(f"/goldens/{SLUG}?check={first}").text
    assert "Golden recording" in gathered
    assert ">PASS<" not in gathered.partition('id="checks"')[0].partition("Drift")[0]  # nothing was judged


def test_what_is_kept_is_what_was_reported(lab: Lab) -> None:
    location = locate(lab)
    (last, _), (before, _), _ = list_ids(location)
    head, report = load_report(location, last)
    assert head.kind is report.verdict.kind is VerdictKind.FAIL
    assert report.segments[0].metrics[0].check[""][0].values
    assert {row.kind for row in load_head(location, before).rows} == {VerdictKind.PASS}


def test_drift_has_a_point_for_each_check(lab: Lab) -> None:
    heads = [load_head(locate(lab), each) for each, mode in reversed(list_ids(locate(lab))) if mode == "check"]
    (section,) = build_drift(heads)
    chart = section.blocks[0]  # type: ignore[union-attr]
    line, *marked = chart.panels[0].curves  # type: ignore[union-attr]
    assert [x for x, _ in line.points] == [1.0, 2.0]
    assert {curve.style for curve in marked} == {"c2 point", "c1 crossed"}


@pytest.mark.parametrize("path", ["golden-dem", "..", ".assay", "golden-demo?check=20200101-000000-000000"])
def test_unknown_names(client: TestClient, path: str) -> None:
    answer = client.get(f"/goldens/{path}", follow_redirects=True)
    assert answer.status_code == 404 or path == ".."
    assert "Traceback" not in answer.text
    if path == "golden-dem":
        assert SLUG in answer.text


def test_a_recording_of_the_store(client: TestClient) -> None:
    text = client.get("/recordings/store/demo_convergence_harness_manifest.json").text
    assert "<svg" in text
    assert ">PASS<" not in text
    for path in ("store/other.json", "../config.yml", "store/../../config.yml", "/etc/passwd"):
        assert client.get(f"/recordings/{path}").status_code == 404


@pytest.mark.parametrize("damage", ["cut", "not gzip", "no report", "empty"])
def test_damaged_reports(lab: Lab, tmp_path: Path, damage: str) -> None:
    """The page shows the others, and says which one cannot be read; nothing becomes a PASS."""
    source = lab.folder / "runs" / SLUG / ".assay" / "golden"
    folder = tmp_path / "runs" / SLUG / ".assay" / "golden"
    folder.mkdir(parents=True)
    for path in source.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    newest = max(folder.glob("*-check*"))
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
        assert client.get("/goldens").status_code == 200
        assert 'class="badge PASS"' not in answer.text.partition('id="checks"')[0].partition("Drift")[0]
    location = StudyLocation(str(tmp_path / "runs"), SLUG)
    assert not build_golden_page(location, None).blocks
    assert len(list_goldens({SLUG: location})) == 1


def test_nothing_is_there(tmp_path: Path) -> None:
    with open_client(tmp_path) as client:
        assert "assay golden gather" in client.get("/goldens").text
