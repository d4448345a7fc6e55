"""Where a run is, and whether it is alive, by its lease alone; also if no installed plug-in knows its executor."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from assay.errors import NotFoundError
from assay.execute.local import LocalExecutor
from assay.execute.places import Place, build_executor, load_liveness, load_place, render_place
from assay.system import processes
from assay.values.run import JobHandle, Liveness


def build(executor: str, host: str, pid: int = 0) -> JobHandle:
    return JobHandle(executor, "", host, pid, 0, "boot", None, 1, 0.0)


def test_a_local_run_is_where_its_process_is(tmp_path: Path) -> None:
    handle = build("local", "login", pid=42)
    assert load_place(str(tmp_path), handle) == Place("login")
    assert render_place(load_place(str(tmp_path), handle), handle) == "login, pid 42"
    assert load_place(str(tmp_path), None) == Place(None)


def test_a_local_run_without_its_process_is_gone(tmp_path: Path) -> None:
    assert load_liveness(build("local", processes.host_name(), pid=42), str(tmp_path)) is Liveness.GONE
    assert load_liveness(build("local", "elsewhere", pid=42), str(tmp_path)) is Liveness.UNKNOWN


def test_a_run_of_an_executor_that_is_not_installed_can_be_read(tmp_path: Path) -> None:
    handle = build("moon", "login")
    assert load_place(str(tmp_path), handle) == Place(None, "moon")
    (tmp_path / "token.1").write_text("n2 123 456 boot 1700000000\n")
    assert load_place(str(tmp_path), handle) == Place("n2", "moon")
    assert load_liveness(handle, str(tmp_path)) is Liveness.UNKNOWN


def test_executors_by_name_and_a_suggestion_for_an_unknown_one() -> None:
    executor = build_executor("local")
    assert isinstance(executor, LocalExecutor)
    assert executor.name == "local"
    executor.close()
    with pytest.raises(NotFoundError) as caught:
        build_executor("locla")
    assert "local" in str(caught.value.hint)


def test_only_what_is_asked_for_is_loaded() -> None:
    text = "import sys, assay.execute.places as r; r.build_executor('local'); sys.exit('assay.farms' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", text], check=False).returncode == 0
