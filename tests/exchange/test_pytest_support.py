"""The plugin sends what tests have run to ASSAY_SERVER, and no test fails because of it."""

from __future__ import annotations

import re

from tests.golden.test_pytest_plugin import MARKED, gathered, plugin, project, run_pytest
from tests.web_client import UPLOADER, open_client, server

__all__ = ["gathered", "plugin", "project", "server"]
pytest_plugins = ["pytester"]
LINK = re.compile(r"^result: (http://127\.0\.0\.1:\d+(/studies/\S+))$", re.MULTILINE)


def test_runs_of_a_convergence_check(pytester, project, plugin, server, monkeypatch):
    url, root = server
    monkeypatch.setenv("ASSAY_SERVER", url)
    monkeypatch.setenv("ASSAY_TOKEN", UPLOADER)
    monkeypatch.delenv("GITHUB_RUN_ID", raising=False)
    pytester.makepyfile(MARKED)
    links = []
    for _ in range(2):  # the next session is another study
        result = run_pytest(pytester, *plugin)
        result.assert_outcomes(passed=1)
        (found,) = LINK.findall(result.stdout.str())
        links.append(found[1])
        assert "not uploaded" not in result.stdout.str()
    assert links[0] != links[1]
    assert all("test_training_still_converges-" in link for link in links)
    with open_client(root) as client:
        assert [client.get(link).status_code for link in links] == [200, 200]
        studies = client.get("/api/studies").json()
    assert len(studies) == 2
    assert all(study["counts"]["done"] == study["runs"] > 0 for study in studies)


def test_other_tests_send_nothing(pytester, plugin, server, monkeypatch):
    monkeypatch.setenv("ASSAY_SERVER", server[0])
    monkeypatch.setenv("ASSAY_TOKEN", UPLOADER)
    pytester.makepyfile("def test_it(): pass\n")
    result = run_pytest(pytester, *plugin)
    result.assert_outcomes(passed=1)
    assert "result:" not in result.stdout.str()
    assert list(server[1].iterdir()) == []
