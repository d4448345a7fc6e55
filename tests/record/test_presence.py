"""Files that dead supervisors left are removed, and no file of a living one."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from assay.follow.run_status import find_supervisors
from assay.record.presence import STALE_S, announce, load_supervisors, register, remove_stale
from assay.values import layout

# another supervisor, as a process of its own
OTHER = """
import sys
from assay.record.presence import register
with register(sys.argv[1]):
    print("here", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def study(tmp_path: Path) -> Path:
    (tmp_path / ".assay" / "code").mkdir(parents=True)
    return tmp_path


def leave(path: Path, age_s: float = STALE_S + 1, folder: bool = True) -> Path:
    if folder:
        path.mkdir()
        (path / "run.json").write_text("{}")
    else:
        path.write_text("half")
    os.utime(path, (time.time() - age_s,) * 2)
    return path


def test_all_kinds_are_cleared_away(study: Path) -> None:
    meta = study / ".assay"
    left = [
        leave(meta / ".tmp-run"),
        leave(meta / "code" / ".tmp-snapshot"),
        leave(meta / "code" / ".tmp-seen", folder=False),
        leave(meta / "set.1.json.abcd.tmp", folder=False),
    ]
    kept = [
        leave(meta / "code" / "0123"),
        leave(meta / "set.1.json", folder=False),
        leave(study / ".tmp-mine"),
        leave(study / "run"),
    ]
    with register(str(study)):
        assert not any(path.exists() for path in left)
    assert all(path.exists() for path in kept)


def test_what_is_young_stays(study: Path) -> None:
    """On file systems without locks, a process on another host may be writing a young file."""
    young = leave(study / ".assay" / ".tmp-run", age_s=STALE_S - 30)
    with register(str(study)):
        assert young.exists()


def test_nothing_is_touched_while_another_is_there(study: Path) -> None:
    other = subprocess.Popen([sys.executable, "-c", OTHER, str(study)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert other.stdin is not None
    assert other.stdout is not None
    with other:
        assert other.stdout.readline() == b"here\n"
        left = leave(study / ".assay" / ".tmp-run")
        with register(str(study)):
            assert left.exists()
        other.kill()
    with register(str(study)):  # the killed process has lost its lock
        assert not left.exists()


def test_two_at_once(study: Path) -> None:
    with register(str(study)):
        left = leave(study / ".assay" / ".tmp-run")
        with register(str(study)):
            assert left.exists()
        with register(str(study)):
            assert left.exists()


def test_a_link_is_removed_and_not_followed(study: Path, tmp_path: Path) -> None:
    treasure = tmp_path / "treasure"
    treasure.mkdir()
    (treasure / "gold").write_text("")
    link = study / ".assay" / ".tmp-link"
    link.symlink_to(treasure)
    os.utime(link, (0, 0), follow_symlinks=False)
    assert remove_stale(str(study), time.time()) == 1
    assert not link.is_symlink()
    assert (treasure / "gold").exists()


def test_without_a_place_for_the_lock_nothing_is_cleared_and_nothing_fails(tmp_path: Path) -> None:
    with register(str(tmp_path / "gone")):
        pass
    assert list(tmp_path.iterdir()) == []


def test_an_error_passes_through_and_lets_go(study: Path) -> None:
    with pytest.raises(RuntimeError), register(str(study)):
        raise RuntimeError
    left = leave(study / ".assay" / ".tmp-run")
    with register(str(study)):
        assert not left.exists()


def test_a_supervisor_registers_while_it_is_there(study: Path) -> None:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    with register(str(study)):
        (me,) = load_supervisors(str(study))
        assert (me.host, me.pid, me.boot) == (os.uname().nodename, os.getpid(), boot)
        assert f" {me.start} " in Path("/proc/self/stat").read_text()
        with register(str(study)):  # this process registers again
            pass
        assert load_supervisors(str(study)) == [me]
    assert load_supervisors(str(study)) == []


def test_what_the_dead_left_is_cleared_by_the_next_one_alone(study: Path) -> None:
    here = study / ".assay" / layout.supervisor_name(os.uname().nodename, 1, 2)
    elsewhere = study / ".assay" / layout.supervisor_name("elsewhere", 1, 2)
    with register(str(study)):
        here.touch()
        elsewhere.touch()
        with register(str(study)):
            assert here.exists()
    with register(str(study)):
        assert not here.exists()
        assert elsewhere.exists()


def test_no_study_has_no_attendants(tmp_path: Path) -> None:
    assert load_supervisors(str(tmp_path / "gone")) == []


def test_a_child_is_registered_before_it_registers_itself(study: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        announce(str(study), child.pid)
        (found,) = load_supervisors(str(study))
        assert found.pid == child.pid
        assert [each.pid for each in find_supervisors([], str(study))] == [child.pid]
        child.kill()
    assert find_supervisors([], str(study)) == []
    with register(str(study)):  # the files of a dead supervisor are removed
        assert [each.pid for each in load_supervisors(str(study))] == [os.getpid()]


def test_a_supervisor_that_was_announced_is_registered_all_the_time(study: Path) -> None:
    """A supervisor removes the files of dead ones, but not its own: for a moment no supervisor would be found."""
    announce(str(study), os.getpid())
    (path,) = (study / layout.STUDY_META_DIR).glob("supervisor.*")
    before = path.stat()
    with register(str(study)):
        assert path.stat().st_ino == before.st_ino
        assert path.stat().st_ctime_ns == before.st_ctime_ns
        with register(str(study)):
            pass
        assert path.exists()
    assert not path.exists()
