"""A folder to run real studies with the real program, and to examine everything that they leave."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.conftest import process_environment
from tests.finished_study import Result
from tests.finished_study import until as until  # noqa: PLC0414 for others
from tests.fork_server import ForkedProcess, call_assay, start_assay

from assay.execute.places import load_liveness
from assay.record import run_directory
from assay.values.run import Liveness, State

PATIENCE_S = 60.0
MARK = "ASSAY_TEST_MARK"  # a variable in the environment of everything that a test starts


@dataclass
class StudyProcesses:
    base: Path
    env: dict[str, str]
    started: list[ForkedProcess] = field(default_factory=list)

    @property
    def source(self) -> Path:
        return self.base / "source"

    @property
    def root(self) -> Path:
        return self.base / "runs"

    def write(self, name: str, text: str) -> Path:
        path = self.source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def write_study(self, command: str, more: str = "") -> None:
        self.write("study.yml", f"study: study\ncommand: {json.dumps(command)}\n{more}")

    # ------------------------------------------------------------ the program

    def start(self, *arguments: str, file: str = "study.yml", **env: str) -> ForkedProcess:
        """Start `assay run FILE` in the background; its output goes to a file."""
        return self.start_other("run", file, *arguments, **env)

    def start_other(self, *arguments: str, **env: str) -> ForkedProcess:
        words = [*arguments, "--root", str(self.root)]
        with (self.base / f"supervisor{len(self.started)}.log").open("w") as log:
            program = start_assay(words, cwd=self.source, env={**self.env, **env}, log=log)
        self.started.append(program)
        return program

    def words(self, program: ForkedProcess) -> str:
        return (self.base / f"supervisor{self.started.index(program)}.log").read_text()

    def run(self, *arguments: str, file: str = "study.yml", **env: str) -> Result:
        """`assay run FILE` to its end."""
        return self.call("run", file, "--root", str(self.root), *arguments, **env)

    def call(self, *arguments: str, **env: str) -> Result:
        done = call_assay(arguments, cwd=self.source, env={**self.env, **env}, timeout=PATIENCE_S)
        return Result(done.returncode, done.stdout, done.stderr)

    def end(self, program: ForkedProcess, number: signal.Signals) -> int:
        """Send a signal and wait for the end; return the exit code."""
        program.send_signal(number)
        return program.wait(PATIENCE_S)

    # ------------------------------------------------------------ what it left

    def dir(self, run: str, study: str = "study") -> Path:
        return self.root / study / run

    def run_dirs(self, study: str = "study") -> dict[str, Path]:
        return {os.path.basename(path): Path(path) for path in run_directory.find_run_dirs(str(self.root / study))}

    def history(self, run: str, study: str = "study") -> run_directory.History:
        return run_directory.load_history(str(self.dir(run, study)))

    def log(self, run: str = "run", attempt: int = 1) -> str:
        return (self.dir(run) / ("run.log" if attempt == 1 else f"run.{attempt}.log")).read_text()

    def code_hash(self, run: str = "run") -> str | None:
        return run_directory.load_record(str(self.dir(run))).code_hash

    def states(self, run: str, study: str = "study") -> list[State | None]:
        """How each attempt ended."""
        return [attempt.outcome.state if attempt.outcome else None for attempt in self.history(run, study).attempts]

    def processes(self, *, jobs_only: bool = True) -> dict[int, bytes]:
        """Live processes that this test started, with their environments; supervisors carry no tag."""
        found = {}
        for name in os.listdir("/proc"):
            if name.isdigit() and (environ := process_environment(int(name))):
                items = environ.split(b"\0")
                is_job = any(item.startswith(b"ASSAY_ATTEMPT=") for item in items)
                if self.mark in items and (is_job or not jobs_only):
                    found[int(name)] = environ
        return found

    def has_ended(self, run: str) -> bool:
        """Whether the last attempt has ended for a supervisor too: a process has no environment while it ends."""
        handle = self.history(run).attempts[-1].handle
        assert handle is not None
        return load_liveness(handle, str(self.dir(run))) is Liveness.GONE and not self.processes()

    @property
    def mark(self) -> bytes:
        return f"{MARK}={self.env[MARK]}".encode()

    def close(self) -> None:
        for program in self.started:
            with contextlib.suppress(ProcessLookupError):
                program.send_signal(signal.SIGCONT)
                program.kill()
            program.wait(PATIENCE_S)
        while left := self.processes(jobs_only=False):
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)


def load_json(path: Path) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(path.read_text())
    return fields


@contextlib.contextmanager
def open_study_processes(tmp_path: Path) -> Iterator[StudyProcesses]:
    base = Path(tempfile.mkdtemp(prefix="assay-test-", dir=_quick_folder(tmp_path)))
    env = {**os.environ, MARK: secrets.token_hex(8)}
    env |= {"ASSAY_SLOTS_DIR": str(base / "slots"), "ASSAY_CACHE_DIR": str(base / "cache")}
    env |= {"ALL": str(base / "all"), "GO": str(base / "go"), "LEDGER": str(base / "ledger")}  # files of the jobs
    shop = StudyProcesses(base, env)
    shop.source.mkdir()
    try:
        yield shop
    finally:
        shop.close()
        shutil.rmtree(base, ignore_errors=True)


def _quick_folder(tmp_path: Path) -> Path:
    """Choose a folder in memory if there is any: on a disk after mass deletion, each new file can take milliseconds."""
    memory = Path("/dev/shm")
    if not memory.is_dir() or not os.access(memory, os.W_OK):
        return tmp_path
    return memory if not os.statvfs(memory).f_flag & os.ST_NOEXEC else tmp_path
