"""What is not well is shown at the top of the list of studies and at the navigation."""

from __future__ import annotations

import json
import re
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from tests.bench import test_web_pages as benchmarks
from tests.finished_study import BAD, GOOD, Bench, until
from tests.golden_training import Lab
from tests.models import test_web_pages as models
from tests.models.report.model_reports import bad_report, good_report
from tests.web_client import open_client

from assay.follow.api import StudyLocation
from assay.golden.records import list_ids
from assay.record.received import Received, write_received
from assay.system.files import write_atomic
from assay.values.verdict import VerdictKind
from assay.web.pages import studies
from assay.web.pages.verdicts import count_failed_checks


def look(client: TestClient) -> str:
    """The line of alarms, when everything was looked at."""
    deadline = time.monotonic() + 60
    while 'hx-trigger="every 20s"' not in (text := client.get("/alarms").text) or "not judged yet" in text:
        assert time.monotonic() < deadline, text
        time.sleep(0.05)
    return " ".join(re.sub(r"<[^>]*>", " ", text).split())


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(studies, "_AGE_S", 0.0)


def test_nothing_is_said_where_all_is_well(served: Bench) -> None:
    with open_client(served.root) as client:
        assert look(client) == ""
        assert 'class="alarm' not in client.get("/studies").text


def test_a_golden_check_that_failed(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    lab.gather()
    assert lab.check().kind is VerdictKind.PASS
    with open_client(tmp_path / "runs") as client:
        assert look(client) == ""
        assert "PASS" in client.get("/studies/golden-demo/best").text
        lab.change(scale=1.5)
        assert lab.check().kind is VerdictKind.FAIL
        until(lambda: look(client) == "FAIL 1 golden check", "the failure is found", 60)
        text = client.get("/studies").text
        assert 'href="/goldens/golden-demo"' in text
        assert 'Goldens <span class="alarm">1<span class="hidden"> not passed</span></span>' in text
        assert 'class="alarm"' in client.get("/models").text
        best = client.get("/studies/golden-demo/best").text
        assert "FAIL" in best
        assert "best " not in best  # a run of a golden is never the best
        newest = list_ids(StudyLocation(str(tmp_path / "runs"), "golden-demo"))[0][0]
        (report,) = (tmp_path / "runs").rglob(f"*{newest}*")
        report.write_bytes(b"hi")
        wanted = "ERROR 1 golden check damaged"  # never the PASS before it
        until(lambda: look(client) == wanted, "the damage is found", 60)


@pytest.mark.services("backends")
def test_models_and_benchmarks(tmp_path: Path) -> None:
    models.write(tmp_path, "good_1", good_report())
    with open_client(tmp_path) as client:
        assert look(client) == ""
        models.write(tmp_path, "bad_1", bad_report(), 2e9)
        models.write(tmp_path, "dead_1", None, 2e9)
        benchmarks.build(tmp_path)
        both = "benchmark changes not triaged", "ERROR 2 model checks"
        until(lambda: all(text in look(client) for text in both), "both are found", 60)
        assert "ERROR 1 benchmark" not in look(client)
        write_atomic(str(max((tmp_path / "bench").glob("e00*")) / "benchmark.json"), "{")
        until(lambda: "ERROR 1 benchmark" in look(client), "the damage is found", 60)
        assert "Histories and verdicts" in client.get("/studies/bench/best").text
        assert 'href="/models"' in client.get("/studies/model/best").text


@pytest.mark.parametrize("most", [1, 400])
def test_an_uploaded_pass_does_not_hide_a_failure_that_was_seen_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr("assay.models.pages._MOST_CHECKS", most)  # nor do more of them than a list reads
    bad = bad_report()
    models.write(tmp_path, "bad_1", bad)
    with open_client(tmp_path) as client:
        alarm = look(client)
        assert "1 model check" in alarm
    run_dir = models.write(tmp_path, "good_1", replace(good_report(), model=bad.model, target=bad.target), 2e9)
    write_received(str(run_dir), Received("upload", "192.0.2.7", "upload token 123abc", 2e9))
    with open_client(tmp_path) as client:
        assert look(client) == alarm
        assert "upload from 192.0.2.7 by upload token 123abc" in client.get("/models").text


def test_checks_of_a_study_as_they_were_judged_last(served: Bench, tmp_path: Path) -> None:
    shutil.copytree(served.root / "fit", tmp_path / "fit")
    location = StudyLocation(str(tmp_path), "fit")
    file = tmp_path / "fit" / ".assay" / "verdicts.jsonl"
    file.parent.mkdir(exist_ok=True)
    file.unlink(missing_ok=True)
    assert count_failed_checks(location) == {}

    def judge(kind: str, *runs: str) -> None:
        facts = [{"run": run, "kind": kind, "findings": [], "comparisons": 1} for run in runs]
        with file.open("a") as out:
            out.write(json.dumps({"at": 1e9, "source": "checks", "verdicts": facts}) + "\n")

    judge("FAIL", BAD, GOOD, "deleted")
    assert count_failed_checks(location) == {"FAIL": 2}
    judge("PASS", GOOD)
    with file.open("a") as out:
        out.write('null\n{"source": "checks", "verdicts": [3]}\n{"source": "checks", "verd')
    assert count_failed_checks(location) == {"FAIL": 1}
    with open_client(tmp_path) as client:
        assert look(client) == "FAIL fit: 1 run in its checks"
        assert 'Studies <span class="alarm">1' in client.get("/studies").text


def test_what_cannot_be_judged_is_said_and_hides_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_locations: object) -> None:
        raise KeyError("nobody expects this")

    monkeypatch.setattr("assay.golden.web_pages.list_goldens", fail)
    models.write(tmp_path, "bad_1", bad_report())
    with open_client(tmp_path) as client:
        assert look(client) == "ERROR goldens cannot be judged: KeyError ERROR 1 model check"
        assert client.get("/studies").status_code == 200
