"""One at a time in a folder; and a dead holder holds nothing."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from assay.errors import UsageError
from assay.system.locks import hold, locked

TAKEN = UsageError("somebody else is at work", "wait")
HOLDER = """
import sys
from assay.errors import UsageError
from assay.system.locks import hold
with hold(sys.argv[1], UsageError("taken")):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_folder_is_held_by_one(tmp_path: Path) -> None:
    folder = str(tmp_path / "deep" / "folder")
    with hold(folder, TAKEN), pytest.raises(UsageError, match="somebody else"), hold(folder, TAKEN):
        pytest.fail("two are in it")
    with pytest.raises(OSError, match="of the work itself"), hold(folder, TAKEN):  # the first has left
        raise OSError("of the work itself")
    with hold(folder, TAKEN):  # as has the one that failed
        pass


def test_who_is_killed_holds_nothing(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(UsageError, match="somebody else"), hold(str(tmp_path), TAKEN):
            pytest.fail("it is another's")
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    with hold(str(tmp_path), TAKEN):
        pass


def test_a_place_that_cannot_be_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be made"), hold(str(tmp_path / "file" / "x"), TAKEN):
        pytest.fail("there is no such place")
    (tmp_path / "lock").mkdir()
    with pytest.raises(UsageError, match="cannot be made"), hold(str(tmp_path), TAKEN):
        pytest.fail("its lock is no file")


def test_those_who_merge_wait_for_each_other(tmp_path: Path) -> None:
    path = tmp_path / "count"
    path.write_text("0")

    def add() -> None:
        for _ in range(50):
            with locked(str(tmp_path)):
                path.write_text(str(int(path.read_text()) + 1))

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_text() == "200"
    assert [each.name for each in tmp_path.iterdir()] == ["count"]
