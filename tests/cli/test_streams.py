"""Streams that are closed or full, signals at any moment, and limits of the system."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from tests.finished_study import fork_assay
from tests.fork_server import call_assay

from assay.cli.main import run
from assay.errors import InfrastructureError
from assay.follow import locations

STUDY = "study: z\ncommand: 'echo {x}; [ {x} != 2 ]'\nparams: {x: [1, 2]}\nresources: {gpus: 0}\n"
ASSAY = f"{shlex.quote(sys.executable)} -m assay"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ASSAY_SLOTS_DIR", str(tmp_path / "slots"))
    monkeypatch.setenv("ASSAY_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "z.yml").write_text(STUDY)
    return tmp_path


def shell(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", "-c", text], cwd=folder, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("streams", ["2>&-", "<&- >&- 2>&-", "> /dev/full 2>&1"])
def test_a_study_runs_to_its_end_whatever_its_streams_are(folder: Path, streams: str) -> None:
    done = shell(folder, f"{ASSAY} run z.yml -j 2 {streams}")
    assert done.returncode == 1, done.stderr  # one of the runs fails: that is the study's own exit code
    assert len(list(folder.glob("runs/z/*/outcome.1"))) == 2
    assert {path.name: path.read_text() for path in folder.glob("runs/z/x=1/run.log")} == {"run.log": "1\n"}


def test_a_full_standard_output_is_the_system_s_message_and_4(folder: Path) -> None:
    assert call_assay(["run", "z.yml", "-j", "2", "--quiet"], cwd=folder, env=os.environ, timeout=60).returncode == 1
    for command in ("ls", "sum z", "show z/x=1", "ls --json", "--help"):
        with open("/dev/full", "w") as full, tempfile.TemporaryFile("w+") as err:
            code = fork_assay(command.split(), folder, os.environ, full.fileno(), err.fileno()).wait(60)
            err.seek(0)
            message = "assay: No space left on device: the output could not be written\n"
            assert (code, err.read()) == (4, message), command
    assert shell(folder, f"{ASSAY} ls >&-").returncode == 0


def test_python_s_warnings_about_a_pattern_of_the_user_are_not_printed(folder: Path) -> None:
    (folder / "z.yml").write_text(STUDY + "metrics: {x: '[[1] ?({number})'}\n")
    assert "Warning" not in shell(folder, f"{ASSAY} run -n z.yml; {ASSAY} run z.yml -j 2").stderr


def test_too_few_descriptors_are_reported_as_such(folder: Path) -> None:
    done = shell(folder, f"ulimit -n 64; {ASSAY} run z.yml -j 2 --quiet")
    assert done.returncode == 4
    assert "no more file descriptors: this shell allows 64 open files (raise the limit: ulimit -n 1024)" in done.stderr


@pytest.mark.parametrize("command", ["run ../z.yml", "ls --root ../runs", "sum z", "logs ../runs/z/x=1", "doctor"])
def test_a_folder_that_has_been_removed_is_named(folder: Path, command: str) -> None:
    done = shell(folder, f"mkdir gone && cd gone && rmdir ../gone && {ASSAY} {command}")
    message = "assay: the current folder has been removed; go to another one: cd"
    assert (done.returncode, done.stderr.splitlines()[-1]) == (4, message)


def test_what_another_user_may_not_read_is_named(folder: Path) -> None:
    assert call_assay(["run", "z.yml", "-j", "2", "--quiet"], cwd=folder, env=os.environ, timeout=60).returncode == 1
    log = folder / "runs" / "z" / "x=1" / "run.log"
    log.chmod(0)
    caps = "-dac_override,-dac_read_search"  # by which root reads every file
    words = f"setpriv --bounding-set={caps} --inh-caps={caps}" if os.geteuid() == 0 else ""
    done = shell(folder, f"{words} {ASSAY} logs z/x=1")
    assert (done.returncode, done.stderr) == (4, f"assay: Permission denied: {log}\n")


def test_a_full_disk_is_found_before_anything_starts(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(locations, "_ROOM_BYTES", 1 << 62)  # more than any disk has left
    with pytest.raises(InfrastructureError, match="is full"):
        locations.check_writable(locations.StudyLocation(str(folder), "z"))
    assert run(["run", "z.yml"]) == 4
    assert "is full" in capsys.readouterr().err
    assert not (folder / "runs").exists()


@pytest.mark.parametrize(
    ("number", "wait_s"),
    [(signal.SIGTERM, 0.03), (signal.SIGTERM, 0.1), (signal.SIGTERM, 0.2), (signal.SIGINT, 0.1)],
)
def test_a_signal_at_any_moment_of_the_start_is_130(folder: Path, number: signal.Signals, wait_s: float) -> None:
    """The signal waits until our first line: the interpreter before it is not ours to answer for."""
    first = "import os, sys; sys.argv = ['assay', 'run', 'long.yml', '-j', '1', '--quiet']; import assay.cli; "
    text = first + "print('here', flush=True); from assay.cli.main import main; main()"
    (folder / "long.yml").write_text("study: long\ncommand: sleep 60\nresources: {gpus: 0}\n")
    with subprocess.Popen([sys.executable, "-c", text], cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        time.sleep(wait_s)
        process.send_signal(number)
        assert process.wait(30) == 130
    for lease in folder.glob("runs/long/*/lease.1"):  # what it had started by then, it has stopped
        assert (lease.parent / "stop.1").exists()


def test_importing_the_command_line_changes_no_signal() -> None:
    text = "import signal, assay.cli.main; print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True, env=os.environ)
    assert done.stdout == "True\n"


def test_nothing_is_loaded_before_ctrl_c_is_settled() -> None:
    words = [sys.executable, "-X", "importtime", "-m", "assay", "--version"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=os.environ)
    names = [line.rpartition("|")[2].strip() for line in done.stderr.splitlines()]
    before = names[names.index("assay") + 1 : names.index("assay.cli")]
    assert before == [], "a traceback is all that Ctrl-C gives meanwhile"
