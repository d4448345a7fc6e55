"""The leak detector detects leaks, and leaves an honest test alone: seen on real pytest runs of small files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).with_name("conftest.py")


def run_pytest(folder: Path, source: str, **environment: str) -> subprocess.CompletedProcess[str]:
    shutil.copy(CONFTEST, folder / "conftest.py")
    (folder / "test_it.py").write_text("import os, subprocess, sys\nimport pytest\n" + source)
    (folder / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--basetemp", str(folder / "temp")]
    return subprocess.run(
        command, cwd=folder, env=os.environ | environment, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("os.environ['LEFT'] = 'behind'", "environment: LEFT was None, is 'behind'"),
        ("del os.environ['PATH']", "environment: PATH was"),
        ("os.environ['HOME'] = '/elsewhere'", "environment: HOME was"),
        ("os.chdir('/')", "working directory: was"),
    ],
)
def test_a_leak_is_an_error(tmp_path: Path, body: str, complaint: str) -> None:
    result = run_pytest(tmp_path, f"def test_it():\n    {body}\n")
    assert result.returncode == 1, result.stdout
    assert "test_it leaves traces" in result.stdout
    assert complaint in result.stdout


def test_the_next_test_does_not_suffer_from_a_leak(tmp_path: Path) -> None:
    source = "def test_1():\n    os.environ['LEFT'] = 'x'\n    os.chdir('/')\n"
    source += "def test_2():\n    assert 'LEFT' not in os.environ\n    assert os.getcwd() != '/'\n"
    result = run_pytest(tmp_path, source)
    assert "2 passed, 1 error" in result.stdout


def test_a_process_left_behind_is_an_error_and_is_ended(tmp_path: Path) -> None:
    source = (
        "def test_it(tmp_path):\n"
        "    child = subprocess.Popen(['sleep', '600'], env=os.environ | {'ASSAY_ATTEMPT': 'abc.1'},\n"
        "                             start_new_session=True)\n"
        "    (tmp_path.parent.parent / 'pid').write_text(str(child.pid))\n"
        "    child.__class__.__del__ = lambda self: None\n"
    )
    result = run_pytest(tmp_path, source)
    pid = int((tmp_path / "pid").read_text())
    assert f"process {pid} is still running, tagged abc.1" in result.stdout
    assert result.returncode == 1
    assert not is_alive(pid)


def test_a_tagged_process_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    other = subprocess.Popen(
        ["sleep", "600"], env=os.environ | {"ASSAY_ATTEMPT": "other.1", "HOME": str(tmp_path / "other-home")}
    )
    try:
        result = run_pytest(tmp_path, "def test_it():\n    pass\n")
        assert result.returncode == 0, result.stdout
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_an_honest_test_passes(tmp_path: Path) -> None:
    source = (
        "def test_it(monkeypatch, tmp_path):\n"
        "    monkeypatch.setenv('SET', 'x')\n"
        "    monkeypatch.chdir(tmp_path)\n"
        "    subprocess.run(['true'], env=os.environ | {'ASSAY_ATTEMPT': 'abc.1'}, check=True)\n"
    )
    result = run_pytest(tmp_path, source)
    assert result.returncode == 0, result.stdout


def test_nothing_of_the_developer_is_inherited(tmp_path: Path) -> None:
    source = (
        "def test_it(isolated_home):\n"
        "    assert os.environ['HOME'] == str(isolated_home)\n"
        "    assert os.path.expanduser('~') == str(isolated_home)\n"
        "    assert os.environ['XDG_CACHE_HOME'].startswith(str(isolated_home))\n"
        "    assert not [name for name in os.environ if name.startswith(('ASSAY_', 'SLURM_'))]\n"
        "    assert 'CUDA_VISIBLE_DEVICES' not in os.environ\n"
    )
    own = {"HOME": "/somewhere", "ASSAY_ROOT": "/somewhere", "SLURM_JOB_ID": "7", "CUDA_VISIBLE_DEVICES": "3"}
    result = run_pytest(tmp_path, source, XDG_CACHE_HOME="/somewhere", **own)
    assert result.returncode == 0, result.stdout


def test_hostile_paths_exist_and_survive_a_shell_only_when_quoted(hostile_path: Path) -> None:
    assert hostile_path.is_dir()
    (hostile_path / "file").write_text("here")
    found = subprocess.run(["cat", str(hostile_path / "file")], capture_output=True, text=True, check=True)
    assert found.stdout == "here"


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False
