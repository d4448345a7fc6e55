"""How a run stands, from files alone."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from assay.errors import FormatError
from assay.follow.run_status import find_supervisors, load_status
from assay.record import run_directory
from assay.system import processes
from assay.values import layout
from assay.values.run import Command, JobHandle, Outcome, RunSpec, State


def make_run(folder: Path, commands: tuple[str, ...] = ("train",)) -> str:
    spec = RunSpec("id", "run", {}, tuple(Command(name, "true") for name in commands))
    path = str(folder / "run")
    os.makedirs(path)
    record = run_directory.RunRecord(spec, "study", "uid", 1.0)
    Path(path, "run.json").write_text(run_directory.render_record(record))
    return path


def lease(path: str, **changes: object) -> JobHandle:
    fields = {
        "executor": "local",
        "native_id": "1",
        "host": processes.host_name(),
        "pid": os.getpid(),
        "start": processes.own_start(),
        "boot": processes.boot_id(),
        "slot": None,
        "attempt": 1,
        "started_at": 1.0,
    } | changes
    handle = JobHandle(**fields)  # type: ignore[arg-type]
    assert run_directory.publish_lease(path, handle)
    return handle


@pytest.mark.parametrize(("commands", "state"), [(("train",), State.QUEUED), ((), State.DONE)])
def test_a_run_without_attempts_is_queued_or_of_a_script(
    tmp_path: Path, commands: tuple[str, ...], state: State
) -> None:
    status = load_status(make_run(tmp_path, commands))
    assert (status.state, status.attempt, status.handle) == (state, 0, None)


def test_a_live_process(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    handle = lease(path)
    status = load_status(path)
    assert (status.state, status.handle, status.attempt) == (State.RUNNING, handle, 1)


def test_a_dead_process(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    lease(path, start=1)
    assert load_status(path).state is State.LOST
    Path(path, "train.exit.0").touch()
    assert load_status(path).state is State.DONE
    Path(path, "train.exit.0").rename(Path(path, "train.exit.3"))
    assert load_status(path).state is State.FAILED


def test_what_was_concluded_stands(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    lease(path)
    run_directory.write_outcome(path, Outcome(State.STOPPED, 1, {}, "enough"))
    status = load_status(path)
    assert status.outcome is not None
    assert (status.state, status.outcome.reason) == (State.STOPPED, "enough")


def test_a_repeat_does_not_inherit_a_good_end(tmp_path: Path) -> None:
    path = make_run(tmp_path, ("train", "test"))
    for name in ("train.exit.0", "test.exit.0"):
        Path(path, name).touch()
    lease(path, start=1)
    run_directory.write_outcome(path, Outcome(State.DONE, 1))
    lease(path, start=1, attempt=2, skips=":train:")
    assert load_status(path).state is State.LOST
    Path(path, "test.2.exit.0").touch()
    assert load_status(path).state is State.DONE


def test_damaged_and_missing_files(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    Path(path, "run.json").write_text("{")
    status = load_status(path)
    assert (status.state, status.is_damaged) == (State.DAMAGED, True)
    assert status.outcome.reason.startswith("run.json is damaged: ")
    os.unlink(Path(path, "run.json"))
    assert load_status(path).outcome.reason.startswith("run.json is missing; repair it: mv ")
    with pytest.raises(FormatError, match="cannot be read"):
        load_status(str(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    "change", [{}, {"supervisor_start": 1}, {"host": "elsewhere"}, {"boot": "earlier"}, {"supervisor_pid": 0}]
)
def test_supervisors_that_live_here(tmp_path: Path, change: dict[str, object]) -> None:
    path = make_run(tmp_path)
    parent = os.getppid()
    lease(path, **{"supervisor_pid": parent, "supervisor_start": processes.process_start(parent)} | change)
    assert [(each.pid, each.is_alive) for each in find_supervisors([path])] == ([] if change else [(parent, True)])


def test_an_unreadable_lease_is_a_dead_attempt(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    Path(path, "lease.1").write_text(json.dumps({"nonsense": 1}))
    assert load_status(path).state is State.LOST
    assert find_supervisors([path]) == []


@pytest.mark.parametrize(
    ("host", "start", "boot", "count"),
    [
        (processes.host_name(), 0, processes.boot_id(), 1),
        ("elsewhere", 0, processes.boot_id(), 0),
        (processes.host_name(), 1, processes.boot_id(), 0),
        (processes.host_name(), 0, "earlier", 0),
    ],
)
def test_supervisors_that_have_started_nothing_yet(
    tmp_path: Path, host: str, start: int, boot: str, count: int
) -> None:
    parent = os.getppid()
    began = (processes.process_start(parent) or 0) + start
    (tmp_path / ".assay").mkdir()
    (tmp_path / ".assay" / layout.supervisor_name(host, parent, began)).write_text(boot)
    assert [found.pid for found in find_supervisors([], str(tmp_path))] == [parent] * count
    assert find_supervisors([]) == []
