"""Who has a lock file open."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from assay.execute.slots import find_holders

WORDS = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"]


@contextmanager
def hold(path: Path, run_dir: str | None = None) -> Iterator[int]:
    """A process that has the file open until the end."""
    env = {key: value for key, value in os.environ.items() if key != "ASSAY_RUN_DIR"}
    env |= {"ASSAY_RUN_DIR": run_dir} if run_dir is not None else {}
    with path.open("w") as file:
        process = subprocess.Popen(
            WORDS, env=env, pass_fds=[file.fileno()], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.communicate()


def test_a_run_is_named_by_its_directory(tmp_path: Path) -> None:
    lock = tmp_path / "cpu.0"
    with hold(lock, "/runs/a b/lr=1") as pid:
        (holder,) = find_holders([str(lock)])
        assert (holder.pid, holder.name) == (pid, "/runs/a b/lr=1")
        assert 0 <= time.time() - holder.since < 600
    assert find_holders([str(lock)]) == []


def test_what_is_no_run_is_named_by_its_command_line(tmp_path: Path) -> None:
    lock = tmp_path / "cpu.0"
    with hold(lock):
        (holder,) = find_holders([str(lock)])
        assert "sys.stdin.read()" in holder.name


def test_several_processes_of_a_run_are_one_and_other_files_do_not_matter(tmp_path: Path) -> None:
    one, other = tmp_path / "0.0", tmp_path / "1.0"
    with hold(one, "/runs/a") as first, hold(one, "/runs/a"), hold(one, "/runs/b"), hold(other, "/runs/c"):
        found = find_holders([str(one)])
        assert [holder.name for holder in found] == ["/runs/a", "/runs/b"]
        assert found[0].pid == first
        assert len(find_holders([str(one), str(other)])) == 3


def test_this_process_itself_is_no_holder(tmp_path: Path) -> None:
    with (tmp_path / "cpu.0").open("w") as file:
        assert find_holders([file.name]) == []
    assert find_holders([]) == []
