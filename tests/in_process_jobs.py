"""Jobs that are Python scripts, run by the process of the test: a tenth of the work of a job."""

from __future__ import annotations

import ast
import contextlib
import functools
import io
import os
import shlex
import sys
import time
import traceback
import types
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from assay.execute.base import Publish
from assay.execute.local import LocalExecutor
from assay.execute.process import build_handle
from assay.record.run_directory import RunRecord, load_record
from assay.values import layout
from assay.values.run import JobHandle, JobRequest

PROCESS_CHANGES = {"hold_at", "child", "close", "noise"}  # changes about processes and their pipes


class JobsOfThisProcess(LocalExecutor):
    """Runs some of its jobs in this process, which takes a tenth of the time."""

    def finish(self, request: JobRequest, handle: JobHandle, command: str, began: float, code: int) -> None:
        Path(request.dir, layout.exit_marker_name(command, request.attempt, code)).touch()
        times = f"{began:.6f} {command} start\n{time.time():.6f} {command} exit {code}\n"
        Path(request.dir, layout.JOB_LOG).write_text(times)
        self._gone.append(handle)

    def leftovers(self, handle: JobHandle, run_dir: str) -> Sequence[str]:
        return super().leftovers(handle, run_dir) if handle.pid else ()


class InProcessExecutor(JobsOfThisProcess):
    """Runs a training in this process. Anything else is started as a job: another program, a time limit, a training
    that waits, forks or closes its output."""

    def __init__(self, script: str, **options: Any) -> None:
        super().__init__(**options)
        self._script = script

    def submit(self, request: JobRequest, publish: Publish) -> JobHandle | None:
        record = load_record(request.dir)
        folder, env = Path(request.dir, record.workdir), dict(record.spec.env)
        words = shlex.split(record.spec.commands[0].text)
        while words[0] == "env" or "=" in words[0]:
            name, equals, value = words.pop(0).partition("=")
            env |= {name: value} if equals else {}
        if words[:2] == ["bash", "-c"]:
            words = shlex.split(words[2])
        if words[0] not in ("python3", sys.executable) or words[1] != self._script or not _can_run_here(record, folder):
            return super().submit(request, publish)
        handle = build_handle(request, self.name)
        if not publish(handle):
            return None
        began = time.time()
        with surroundings(folder, {**env, "ASSAY_RUN_DIR": request.dir}, words[1:]):
            code = _run_training(record, request, str(folder / words[1]))
        self.finish(request, handle, "train", began, code)
        return handle


def _can_run_here(record: RunRecord, folder: Path) -> bool:
    change = folder / "change.py"
    changes = ast.literal_eval(change.read_text()) if change.exists() else {}
    return record.spec.timeout_s is None and record.spec.private is None and not PROCESS_CHANGES & changes.keys()


def _run_training(record: RunRecord, request: JobRequest, program: str) -> int:
    spec, out, code = record.spec, io.StringIO(), 0
    other = out if spec.log_stream == "both" else io.StringIO()
    module = types.ModuleType("training")
    module.__file__ = program
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(other):
        try:
            exec(_compile(Path(program).read_text(), program), vars(module))
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
            if isinstance(error.code, str):
                print(error.code, file=sys.stderr)
        except Exception:  # noqa: BLE001 a program may end with any error
            traceback.print_exc()
            code = 1
    texts = (other, out) if spec.log_stream == "stderr" else (out, other)
    for template, text in zip((spec.log_name, spec.other_log_name), texts, strict=True):
        Path(request.dir, layout.log_name(template, "train", request.attempt, "")).write_text(text.getvalue())
    return code


@functools.cache
def _compile(text: str, path: str) -> types.CodeType:
    return compile(text, path, "exec")


@contextlib.contextmanager
def surroundings(folder: Path | str, env: Mapping[str, str], words: list[str]) -> Iterator[None]:
    before, argv = dict(os.environ), sys.argv
    os.environ.update(env)
    sys.argv = words
    try:
        with contextlib.chdir(folder), warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # programs that leave their files open
            yield
    finally:
        sys.argv = argv
        os.environ.clear()
        os.environ.update(before)


def run_in_process(monkeypatch: pytest.MonkeyPatch, script: str = "training.py") -> None:
    """Run trainings with this script in this process, for tests of what a log shows."""

    def build(_name: str, **options: Any) -> InProcessExecutor:
        return InProcessExecutor(script, **options)

    monkeypatch.setattr("assay.launch.sweep.build_executor", build)
