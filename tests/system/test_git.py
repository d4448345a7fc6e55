"""git follows our options, whatever the user's settings and variables are."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from assay.errors import UsageError
from assay.system.git import GitError, build_environment, is_unreachable, run_git


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    subprocess.run(["git", "init", "--quiet", str(folder)], check=True)
    return folder


def test_what_it_refuses_is_said_and_not_raised(tmp_path: Path) -> None:
    done = run_git(str(tmp_path), "no-such-command")
    assert done.returncode != 0
    assert "no-such-command" in done.stderr
    assert GitError("why").message == str(GitError("why")) == "why"


def test_another_repository_in_the_environment_is_not_looked_at(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    monkeypatch.setenv("GIT_AUTHOR_NAME", "somebody")
    done = run_git(str(repository), "rev-parse", "--show-toplevel")
    assert (done.returncode, done.stdout.strip()) == (0, str(repository))
    environment = build_environment()
    assert "GIT_DIR" not in environment
    assert environment["GIT_AUTHOR_NAME"] == "somebody"


def test_settings_are_ours_and_the_callers(repository: Path) -> None:
    subprocess.run(["git", "config", "core.hooksPath", "hooks"], cwd=repository, check=True)
    assert run_git(str(repository), "config", "core.hooksPath").stdout == "/dev/null\n"
    assert run_git(str(repository), "config", "gc.auto", settings=("gc.auto=0",)).stdout == "0\n"
    assert run_git(str(repository), "config", "gc.auto").stdout == ""


def test_no_git_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="git was not found"):
        run_git(None, "version")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("fatal: unable to access 'https://h/x/': Could not resolve host: h", True),
        ("ssh: Could not resolve hostname h: Name or service not known\nfatal: Could not read from remote", True),
        ("fatal: unable to access 'http://h/': Failed to connect to h port 9: Connection refused", True),
        ("fatal: unable to access 'http://h/': The requested URL returned error: 502", True),
        ("fatal: unable to access 'https://h/': SSL certificate problem: self-signed certificate", True),
        ("fatal: unable to access 'http://h/': The requested URL returned error: 403", False),
        ("fatal: repository 'https://h/ssl-certificate.git/' not found", False),
        ("fatal: repository '/data/early EOF' does not exist", False),
        ("fatal: could not read Username for 'https://h': terminal prompts disabled", False),
        ("ERROR: Repository not found.\nfatal: Could not read from remote repository.", False),
        ("fatal: couldn't find remote ref nowhere", False),
        ("", False),
    ],
)
def test_what_cannot_be_reached_is_told_from_what_is_not_there(text: str, expected: bool) -> None:
    assert is_unreachable(text) is expected
