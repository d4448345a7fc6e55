from __future__ import annotations

import pytest

from assay.bench.values.execution import BenchExecution, BenchReport, BenchResult
from assay.compat.perfzero.values import GitRepo, PerfzeroReport, Workspace, hide_secrets
from assay.errors import ExitCode


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://example.org/tensorflow/models.git", "models"),
        ("https://example.org/tensorflow/models", "models"),
        ("https://example.org/tensorflow/models/", "models"),
        ("git@example.org:team/models.git", "models"),
        ("git@example.org:models.git", "models"),
        ("/some/where/models.v2.git", "models.v2"),
        ("../models", "models"),
        ("/some/.hidden", ".hidden"),
    ],
)
def test_the_folder_of_a_repository(url: str, name: str) -> None:
    assert GitRepo(url).name == name


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("https://user:word@host/x", "https://***@host/x"),
        ("--git_repos=https://token@host/x;main", "--git_repos=https://***@host/x;main"),
        ("a https://one@h/x,https://two@h/y", "a https://***@h/x,https://***@h/y"),
        ("git@host:team/x.git", "git@host:team/x.git"),
        ("https://host/user@home", "https://host/user@home"),
        ("plain", "plain"),
    ],
)
def test_what_is_secret_in_an_address_is_hidden(text: str, hidden: str) -> None:
    assert hide_secrets(text) == hidden


def test_the_workspace() -> None:
    workspace = Workspace("/w")
    assert (workspace.site_packages, workspace.output) == ("/w/site-packages", "/w/output")


def report(succeeded: bool, problems: tuple[str, ...] = (), interrupted: str | None = None) -> PerfzeroReport:
    execution = BenchExecution("e", "m.f", 1, BenchResult("m.f", succeeded), "", "")
    return PerfzeroReport(BenchReport((execution,), interrupted), (execution,), problems=problems)


def test_exit_codes() -> None:
    assert report(True).exit_code is ExitCode.OK
    assert report(False).exit_code is ExitCode.FAILED
    assert report(True, ("the upload failed",)).exit_code is ExitCode.INTERNAL
    assert report(False, ("the upload failed",)).exit_code is ExitCode.INTERNAL
    assert report(False, ("the upload failed",), "SIGINT").exit_code is ExitCode.INTERRUPTED
    assert PerfzeroReport(BenchReport(()), ()).exit_code is ExitCode.FAILED, "nothing that ran is no success"
