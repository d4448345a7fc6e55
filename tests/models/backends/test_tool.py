"""Programs by variable and by PATH, and what they say of themselves."""

from __future__ import annotations

import os
import stat
import sys

import pytest

from assay.errors import InfrastructureError
from assay.models.backends.tool import ask_version, find_program, name_variable


def make_program(folder, name, text="#!/bin/sh\necho hello"):
    path = folder / name
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.mark.parametrize(
    ("program", "variable"),
    [("torq-compile", "TORQ_COMPILE"), ("torq-run-module", "TORQ_RUN_MODULE"), ("python3.11", "PYTHON3_11")],
)
def test_the_variable_of_a_program(program, variable):
    assert name_variable(program) == variable


def test_a_program_that_is_nowhere_names_both_places(tmp_path):
    with pytest.raises(InfrastructureError) as caught:
        find_program("torq-compile", {"PATH": str(tmp_path)}, str(tmp_path))
    assert "torq-compile is not to be found: $TORQ_COMPILE is not set, and it is not in PATH" in str(caught.value)
    assert "export TORQ_COMPILE=/path/to/torq-compile" in str(caught.value)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.mkdir(), "is a folder"),
        (lambda path: path.write_text(""), "may not be executed"),
    ],
)
def test_a_variable_that_leads_nowhere(tmp_path, make, reason):
    path = tmp_path / "tool"
    make(path)
    with pytest.raises(InfrastructureError, match=rf"\$MY_TOOL is .*tool, which {reason}"):
        find_program("my-tool", {"PATH": "/bin", "MY_TOOL": str(path)}, str(tmp_path))
    with pytest.raises(InfrastructureError, match=reason):
        find_program("./tool", {}, str(tmp_path))


def test_the_variable_goes_before_path(tmp_path):
    (tmp_path / "bin").mkdir()
    inside, outside = make_program(tmp_path / "bin", "my-tool"), make_program(tmp_path, "other tool")
    env = {"PATH": str(tmp_path / "bin")}
    assert find_program("my-tool", env, "/") == [str(inside)]
    assert find_program("my-tool", {**env, "MY_TOOL": str(outside)}, "/") == [str(outside)]
    assert find_program("my-tool", {**env, "MY_TOOL": ""}, "/") == [str(inside)]


def test_a_variable_may_hold_a_command(tmp_path):
    env = {"PATH": os.environ["PATH"], "MY_TOOL": f"{sys.executable} -u 'a script.py'"}
    assert find_program("my-tool", env, "/") == [sys.executable, "-u", "a script.py"]


def test_a_path_is_relative_to_the_project(tmp_path):
    path = make_program(tmp_path, "tool")
    assert find_program("./tool", {}, str(tmp_path)) == [str(path)]


@pytest.mark.parametrize("given", ["./bin/my-tool", "bin/my-tool --k 1"])
def test_a_path_in_a_variable_is_relative_to_where_one_stands(tmp_path, monkeypatch, given):
    """The program runs elsewhere: there the same words would be another program, or none."""
    (tmp_path / "bin").mkdir()
    path = make_program(tmp_path / "bin", "my-tool")
    monkeypatch.chdir(tmp_path)
    env = {"PATH": "/bin", "MY_TOOL": given}
    assert find_program("my-tool", env, "/") == [str(path), *given.split()[1:]]
    assert find_program("my-tool", {"PATH": "bin"}, "/") == [str(path)]


# ---------------------------------------------------------------- versions


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("echo tool 1.2; echo more", "tool 1.2 more"),
        ("echo no >&2; exit 1", ""),
        ("exec sleep 1000", ""),
        ("yes", ""),
        ("cat; echo asked", "asked"),
    ],
)
def test_versions_are_asked_carefully(tmp_path, monkeypatch, text, said):
    monkeypatch.setattr("assay.models.backends.tool.VERSION_S", 0.5)
    program = make_program(tmp_path, "tool", f"#!/bin/sh\n{text}\n")
    assert ask_version([str(program), "--version"], os.environ, str(tmp_path)) == said


def test_a_version_of_nothing(tmp_path):
    assert ask_version([str(tmp_path / "none")], {}, str(tmp_path)) == ""
