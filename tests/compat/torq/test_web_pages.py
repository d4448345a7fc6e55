"""Sessions of Torq's tests, as its client sends them."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.exchange.store.test_mirror import read_tree
from tests.exchange.test_web_pages import Place
from tests.web_client import UPLOADER, open_client

from assay.compat.torq.dashboard import CaseResult, ResultSession, build_archive, publish_session
from assay.exchange import web_pages as uploads
from assay.web.security import Limit

PASSED = {"outcome": "passed", "measurements": {"compilation_time": 1.5}, "metadata": {"compiler": "x 1"}}
FAILED = {"outcome": "failed", "linked_issue": "owner/repo#7", "failed_phase": "call"}
RESULTS = (
    CaseResult("tests/test_a.py::test_mlp[onnx-i8]", PASSED),
    CaseResult("tests/test_a.py::test_cnn", FAILED, "boom\nassert 1 == 2"),
    CaseResult("tests/test_a.py::test_rnn", {"outcome": "xfail"}),
)
FACTS = {"git_commit": "abc123", "git_branch": "refs/heads/main", "workflow_url": "http://ci.example/7"}
SESSION = ResultSession(RESULTS, {**FACTS, "test_plan": "nightly", "batch_name": "sim"})


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    root = tmp_path / "there"
    root.mkdir()
    monkeypatch.setattr(uploads, "RATE", Limit(600))
    with open_client(root) as client:
        yield Place(root, client, root)


class TestTorq:
    def post(self, place: Place, archive: bytes, field: str = "file") -> Any:
        headers = {"authorization": f"Bearer {UPLOADER}"}
        files = {"other": ("x", b"x"), field: ("bundle.zip", archive, "application/zip")}
        return place.client.post("/api/test-sessions/upload_zip/", files=files, headers=headers)

    def test_with_its_own_client(self, server: tuple[str, Path]) -> None:
        address, root = server
        link = publish_session(SESSION, address, {"TORQ_PERF_SERVER_TOKEN": UPLOADER})
        assert link.startswith(f"{address}/test-sessions/torq-nightly~")
        assert link.endswith("/#batch-sim")
        assert len([path for path in (root / "torq-nightly").iterdir() if path.name != ".assay"]) == 3

    def test_each_test_is_a_run(self, place: Place) -> None:
        archive = build_archive(SESSION)
        answer = self.post(place, archive)
        assert answer.status_code == 201, answer.text
        runs = place.client.get("/api/studies/torq-nightly/runs").json()
        by_test = {run["params"]["test"]: run for run in runs}
        assert by_test["test_mlp"]["metrics"] == {"compilation_time": 1.5}
        assert by_test["test_mlp"]["params"]["compiler"] == "x 1"
        assert [by_test[name]["state"] for name in ("test_mlp", "test_cnn", "test_rnn")] == ["done", "failed", "done"]
        failed = place.root / by_test["test_cnn"]["key"]
        assert (failed / "test.log").read_text() == "boom\nassert 1 == 2"
        assert json.loads((failed / "run.json").read_text())["origin"]["issue"] == "owner/repo#7"
        alike = [CaseResult(f"tests/test_a.py::test_mlp[a{mark}b]", PASSED) for mark in "/?*"]
        assert self.post(place, build_archive(ResultSession(alike, FACTS))).status_code == 201, "each has its own name"
        page = place.client.get(f"/test-sessions/{answer.json()['id']}/")
        assert page.status_code == 200
        assert page.text.count("test_") >= 3
        assert self.post(place, archive).status_code == 200  # again: the client tries three times
        assert place.client.get("/test-sessions/nothing~1/").status_code == 404

    @pytest.mark.parametrize(
        "manifest",
        [
            None, b"{", b"[]", b"{}", b'{"test_runs": []}', b'{"test_runs": [{"name": "a"}]}', b'{"test_runs": [1]}',
            b'{"test_runs": [{"name": "a", "outcome": "passed", "failure_log_file": "../../x"}]}',
            b'{"test_runs": [{"name": "a", "outcome": "passed", "profiling_file": "/etc/passwd"}]}',
            b'{"test_runs": [{"name": "a", "outcome": "passed", "measurements": []}]}',
            b'{"test_runs": [{"name": "a", "outcome": "passed"}, {"name": "a", "outcome": "passed"}]}',
            b'{"test_runs": [{"name": "a", "outcome": "passed", "measurements": {"x": 1%s}}]}' % (b"0" * 400),
            b'{"test_runs": [{"name": "a\\ud800", "outcome": "passed"}]}',
            b'{"test_runs": [{"name": "a", "outcome": "passed", "metadata": {"x": "\\ud800"}}]}',
            b'{"test_plan": "\\ud800", "test_runs": [{"name": "a", "outcome": "passed"}]}',
        ],
    )  # fmt: skip
    def test_bad_ones(self, place: Place, manifest: bytes | None) -> None:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("other.txt" if manifest is None else "test_session.json", manifest or b"x")
        answer = self.post(place, buffer.getvalue())
        assert answer.status_code == 400, answer.text
        assert read_tree(place.root) == {}

    def test_metadata_changes_nothing_of_the_test_itself(self, place: Place) -> None:
        evil = {"session": "evil", "test": "other", "module": "x", "outcome": "failed", "size": 10**400, "more": "y"}
        case = CaseResult("tests/test_a.py::test_mlp", {"outcome": "passed", "metadata": evil})
        answer = self.post(place, build_archive(SESSION._replace(results=(case,))))
        assert answer.status_code == 201
        (run,) = place.client.get("/api/studies/torq-nightly/runs").json()
        session = answer.json()["id"].partition("~")[2]
        own = ("module", "test", "session", "outcome", "more")
        assert [run["params"][name] for name in own] == ["tests/test_a.py", "test_mlp", session, "passed", "y"]
        assert place.client.get(f"/models/torq-nightly/sessions/{session}").status_code == 200

    def test_bad_forms(self, place: Place) -> None:
        assert self.post(place, b"not a zip").status_code == 400
        assert self.post(place, build_archive(SESSION), "other").status_code == 400
        headers, form = {"authorization": f"Bearer {UPLOADER}"}, "multipart/form-data; boundary=abc"
        for kind, body, status in (
            ("application/zip", b"x", 415),
            (form, b"", 400),
            (form, b"--abc", 400),
            (form, b'--abc\r\nContent-Disposition: form-data; name="file"\r\n\r\nPK', 400),
        ):
            headers["content-type"] = kind
            answer = place.client.post("/api/test-sessions/upload_zip/", content=body, headers=headers)
            assert answer.status_code == status, kind
        assert read_tree(place.root) == {}
