"""A study that has been run once per module, and the command line in this process."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import pytest
from tests.finished_study import Bench, Result, build_bench, fork_assay
from tests.study_processes import StudyProcesses, open_study_processes

from assay import handle
from assay.cli.main import run

Cli = Callable[..., Result]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return build_bench(tmp_path_factory.mktemp("bench"))


@pytest.fixture
def own_bench(tmp_path: Path) -> Bench:
    """A bench of the test's own, for tests that change what they read."""
    return Bench(tmp_path)


@pytest.fixture
def own_fit(own_bench: Bench, bench: Bench) -> Bench:
    """A bench with a copy of the finished study `fit`, for tests that change it."""
    shutil.copytree(bench.root, own_bench.root, symlinks=True)
    return own_bench


@pytest.fixture
def entered_bench(own_bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A bench that this process uses, for tests that call functions instead of commands."""
    return own_bench.enter(monkeypatch)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[StudyProcesses]:
    """A folder for studies that are executed, interrupted and killed."""
    with open_study_processes(tmp_path) as opened:
        yield opened


@pytest.fixture
def forked_supervisors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the supervisor of `assay.run`: the start of an interpreter is most of what a short study costs."""

    def start(words: Sequence[str], answer: IO[bytes], log: IO[bytes]) -> Any:
        call = ["run", "--json", "--quiet", *words]
        process: Any = fork_assay(call, Path.cwd(), os.environ, answer.fileno(), log.fileno())
        process.terminate = lambda: process.send_signal(signal.SIGTERM)
        return process

    monkeypatch.setattr(handle, "_start_supervisor", start)


@pytest.fixture
def cli(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Call `cli("ls", "fit")` in the folder of the test's own bench, else in that of the module's bench."""
    name = "own_bench" if "own_bench" in request.fixturenames else "bench"
    bench: Bench = request.getfixturevalue(name)
    bench.enter(monkeypatch)

    def call(*arguments: str) -> Result:
        capsys.readouterr()
        code = run(arguments)
        out, err = capsys.readouterr()
        return Result(code, out, err)

    return call
