"""The plugin sends what tests have run to ASSAY_SERVER, and no test fails because of it."""

from __future__ import annotations

import re

from tests.golden.test_pytest_plugin import MARKED, gathered, plugin, project, run_pytest
from tests.web_client import UPLOADER, open_client, server

from assay.exchange.pytest_support import build_session_name

__all__ = ["gathered", "plugin", "project", "server"]
pytest_plugins = ["pytester"]
LINK = re.compile(r"^result: (http://127\.0\.0\.1:\d+(/studies/\S+))$", re.MULTILINE)


def test_runs_of_a_convergence_check_are_sent_and_other_tests_send_nothing(
    pytester, project, plugin, server, monkeypatch
):
    url, root = server
    monkeypatch.setenv("ASSAY_SERVER", url)
    monkeypatch.setenv("ASSAY_TOKEN", UPLOADER)
    monkeypatch.delenv("GITHUB_RUN_ID", raising=False)
    pytester.makepyfile(f"{MARKED}\n\ndef test_without_runs(): pass\n")
    result = run_pytest(pytester, *plugin)
    result.assert_outcomes(passed=2)
    ((_, link),) = LINK.findall(result.stdout.str())
    assert "not uploaded" not in result.stdout.str()
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
