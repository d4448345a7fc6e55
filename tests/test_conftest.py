"""What `conftest.py` does for every test, seen on one real pytest run of a small file: leaks are found, an honest test
is left alone, services are hidden from tests without the mark, and files stay together in a random order."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.conftest import SLOW_FIRST, find_turn

TESTS = Path(__file__).parent

SOURCE = """
import os, shutil, subprocess, sys
import pytest

@pytest.mark.services('sshd')
def test_with_a_mark(): assert shutil.which('sshd') and shutil.which('ordinary')
def test_without_a_mark(): assert shutil.which('ordinary') and not shutil.which('sshd') and not shutil.which('npm')
@pytest.mark.services('tensorflow')
def test_with_a_service_that_is_missing(): raise AssertionError

def test_sets_a_variable(): os.environ['LEFT'] = 'behind'
def test_after_a_variable(): assert 'LEFT' not in os.environ
def test_deletes_a_variable(): del os.environ['PATH']
def test_changes_a_variable(): os.environ['HOME'] = '/elsewhere'
def test_changes_the_folder(): os.chdir('/')
def test_after_a_folder(): assert os.getcwd() != '/'

def test_leaves_a_process(tmp_path):
    child = subprocess.Popen(['sleep', '600'], env=os.environ | {'ASSAY_ATTEMPT': 'abc.1'}, start_new_session=True)
    (tmp_path.parent.parent / 'pid').write_text(str(child.pid))
    child.__class__.__del__ = lambda self: None

def test_after_a_process(): pass

def test_leaves_a_dead_one():
    os.waitid(os.P_PID, os.spawnlp(os.P_NOWAIT, 'true', 'true'), os.WEXITED | os.WNOWAIT)
def test_after_a_dead_one():
    with pytest.raises(ChildProcessError): os.waitpid(-1, os.WNOHANG)

def test_honest(monkeypatch, tmp_path):
    monkeypatch.setenv('SET', 'x')
    monkeypatch.chdir(tmp_path)
    subprocess.run(['true'], env=os.environ | {'ASSAY_ATTEMPT': 'abc.1'}, check=True)

def test_inherits_nothing(isolated_home):
    assert os.environ['HOME'] == str(isolated_home)
    assert os.path.expanduser('~') == str(isolated_home)
    assert os.environ['XDG_CACHE_HOME'].startswith(str(isolated_home))
    assert not [name for name in os.environ if name.startswith(('ASSAY_', 'SLURM_'))]
    assert 'CUDA_VISIBLE_DEVICES' not in os.environ
"""
DEVELOPER = dict.fromkeys(("HOME", "ASSAY_ROOT", "XDG_CACHE_HOME"), "/somewhere")
DEVELOPER |= {"SLURM_JOB_ID": "7", "CUDA_VISIBLE_DEVICES": "3", "ASSAY_TF_PYTHON": "/nowhere/python"}


class Report:
    def __init__(self, folder: Path, output: str, other: subprocess.Popen[bytes]) -> None:
        self.folder = folder
        self.output = output
        self.other = other

    def complaints(self, test: str) -> str:
        """The report on a test that leaves traces; empty when nothing is."""
        _, found, rest = self.output.partition(f"{test} leaves traces:\n")
        return rest.partition("\n____")[0].partition("\n====")[0] if found else ""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("leaks")
    shutil.copy(TESTS / "conftest.py", folder)
    (folder / "test_it.py").write_text(SOURCE)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    services(*names): needs these\n")
    (folder / "bin").mkdir()
    for name in ("sshd", "ssh", "ssh-keygen", "npm", "ordinary"):
        (folder / "bin" / name).write_text("#!/bin/sh\n")
        (folder / "bin" / name).chmod(0o755)
    return folder


def call_pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = {"PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(TESTS.parent)}
    argv = [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", "--basetemp", str(folder / "temp")]
    return subprocess.run(
        [*argv, *arguments],
        cwd=folder,
        env=os.environ | DEVELOPER | path,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


@pytest.fixture(scope="module")
def report(folder: Path) -> Iterator[Report]:
    tagged = {"ASSAY_ATTEMPT": "other.1", "HOME": str(folder / "other-home")}
    with subprocess.Popen(["sleep", "600"], env=os.environ | tagged) as other:
        done = call_pytest(folder)
        assert done.returncode == 1, done.stdout + done.stderr
        yield Report(folder, done.stdout, other)
        other.kill()


def test_leaks_are_errors_from_which_the_next_test_does_not_suffer(report: Report) -> None:
    for test, complaint in {
        "test_sets_a_variable": "environment: LEFT was None, is 'behind'",
        "test_deletes_a_variable": "environment: PATH was",
        "test_changes_a_variable": "environment: HOME was",
        "test_changes_the_folder": "working directory: was",
    }.items():
        assert complaint in report.complaints(test)
        assert f"ERROR test_it.py::{test}" in report.output
    honest = "honest inherits_nothing with_a_mark without_a_mark after_a_dead_one"
    for test in (*honest.split(), "after_a_variable", "after_a_folder", "after_a_process"):
        assert not report.complaints(f"test_{test}")
        assert f"PASSED test_it.py::test_{test}" in report.output


def test_a_process_left_behind_is_an_error_and_is_ended_and_one_of_others_is_left_alone(report: Report) -> None:
    pid = int((report.folder / "pid").read_text())
    assert f"process {pid} is still running, tagged abc.1" in report.complaints("test_leaves_a_process")
    assert not is_alive(pid)
    assert "tagged other.1" not in report.output
    assert report.other.poll() is None


def test_a_service_that_is_missing_is_skipped_with_the_way_to_install_it(report: Report) -> None:
    assert "tensorflow is missing (/nowhere/python): make .venv-tf/.stamp" in report.output
    assert "ERROR test_it.py::test_with_a_service" not in report.output


def test_a_service_that_is_required_fails_and_the_order_is_printed(folder: Path) -> None:
    done = call_pytest(folder, "--require-services", "--random-order", "-k", "mark or missing")
    assert done.returncode == 1
    assert "ERROR test_it.py::test_with_a_service_that_is_missing" in done.stdout
    assert re.search(r"^random order: --random-order --order-seed=\d+$", done.stdout, re.MULTILINE)
    assert "2 passed" in done.stdout


def test_slow_tests_are_begun_first() -> None:
    items: Any = [SimpleNamespace(nodeid=f"tests/test_{name}.py::test") for name in ("errors", "pages")]
    assert [each.nodeid for each in sorted(items, key=find_turn)] == [each.nodeid for each in reversed(items)]
    for name in SLOW_FIRST:
        assert (TESTS.parent / name).exists(), name


def test_hostile_paths_exist_and_survive_a_shell_only_when_quoted(hostile_path: Path) -> None:
    assert hostile_path.is_dir()
    (hostile_path / "file").write_text("here")
    found = subprocess.run(["cat", str(hostile_path / "file")], capture_output=True, text=True, check=True)
    assert found.stdout == "here"


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_python_on_the_path_is_that_of_this_environment() -> None:
    """With its packages, and started as quickly; not a link to it."""
    argv = ["python3", "-c", "import sys; print(sys.prefix)"]
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip() == sys.prefix
