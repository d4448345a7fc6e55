"""The plugin sends what tests have run to ASSAY_SERVER, and no test fails because of it."""

from __future__ import annotations

import re
import shutil

from tests.golden.test_pytest_plugin import gathered, mark, run_pytest
from tests.web_client import UPLOADER, open_client, server

from assay.exchange.pytest_support import build_session_name

__all__ = ["gathered", "server"]
LINK = re.compile(r"^result: (http://127\.0\.0\.1:\d+(/studies/\S+))$", re.MULTILINE)


def test_runs_of_a_convergence_check_are_sent_and_other_tests_send_nothing(gathered, server, tmp_path, monkeypatch):
    url, root = server
    monkeypatch.delenv("GITHUB_RUN_ID", raising=False)
    shutil.copytree(gathered, tmp_path / "project")
    tests = "import pytest\n\n\n" + mark("training_still_converges") + "def test_without_runs():\n    pass\n"
    (tmp_path / "project" / "test_golden.py").write_text(tests)
    outcomes, printed = run_pytest(tmp_path / "project", ASSAY_SERVER=url, ASSAY_TOKEN=UPLOADER)
    assert outcomes == dict.fromkeys(("test_training_still_converges", "test_without_runs"), "PASSED")
    ((_, link),) = LINK.findall(printed)
    assert "not uploaded" not in printed
    assert "test_training_still_converges-" in link
    with open_client(root) as client:
        assert client.get(link).status_code == 200
        (study,) = client.get("/api/studies").json()
    assert study["counts"]["done"] == study["runs"] > 0


def test_each_session_has_a_study_of_its_own_but_for_those_of_one_job_of_ci(monkeypatch):
    monkeypatch.delenv("GITHUB_RUN_ID", raising=False)
    assert build_session_name() != build_session_name()
    monkeypatch.setenv("GITHUB_RUN_ID", "17")
    assert build_session_name() == build_session_name() == "17.1"
