"""The load of others before a run begins, and the throttling during it."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from types import SimpleNamespace

import pytest

from assay.bench.flow.machine_watch import ForeignLoad, add_aftermath, load_own_cpu_s
from assay.bench.values.execution import GpuState, Machine

TICKS = os.sysconf("SC_CLK_TCK")


def write_stat(path: Path, busy_s: float, idle_s: float) -> None:
    path.write_text(f"cpu  {int(busy_s * TICKS)} 0 0 {int(idle_s * TICKS)} 0 0 0 0 0 0\ncpu0 1 2 3\n")


@pytest.fixture
def stat(tmp_path: Path) -> Path:
    write_stat(tmp_path / "stat", 100, 100)
    return tmp_path / "stat"


def test_what_others_did_before_is_measured_from_the_last_mark_that_is_far_enough_back(stat: Path) -> None:
    outlook = ForeignLoad(2, str(stat))
    assert outlook.mark() is None
    write_stat(stat, 101, 100)  # busy for a second
    assert outlook.mark() == pytest.approx(1.0, abs=0.2)
    write_stat(stat, 101, 101)  # and then quiet: what was before counts no more
    assert outlook.mark() == pytest.approx(0.0, abs=0.01)
    outlook.forget()
    write_stat(stat, 200, 101)
    assert outlook.mark() is None, "what is forgotten is not asked"


def test_marks_that_are_close_together_reach_back_farther(stat: Path) -> None:
    """Trials of milliseconds, one after another."""
    outlook = ForeignLoad(2, str(stat))
    shares = []
    for number in range(1, 9):
        outlook.mark()
        write_stat(stat, 100 + 0.05 * number, 100 + 0.05 * number)
        shares.append(outlook.mark())
    assert shares[0] is None
    assert all(share == pytest.approx(0.5, abs=0.2) for share in shares[5:])


def test_our_own_time_and_that_of_our_children_is_no_load_of_others(
    stat: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = {resource.RUSAGE_SELF: 1.0, resource.RUSAGE_CHILDREN: 1.0}
    usage = lambda who: SimpleNamespace(ru_utime=used[who] / 2, ru_stime=used[who] / 2)  # noqa: E731
    monkeypatch.setattr("assay.bench.flow.machine_watch.resource.getrusage", usage)
    outlook = ForeignLoad(2, str(stat))
    outlook.mark()
    used |= {resource.RUSAGE_SELF: 1.3, resource.RUSAGE_CHILDREN: 1.3}
    write_stat(stat, 100.6, 100.2)
    share = outlook.mark()
    assert share is not None
    assert share < 0.1  # nine tenths, if it counted as load of others
    assert load_own_cpu_s(resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN) == pytest.approx(2.6)


def test_where_the_kernel_does_not_tell_nothing_is_known(stat: Path) -> None:
    for content in (None, "", "cpu one two\n"):
        outlook = ForeignLoad(2, str(stat if content is not None else stat / "none"))
        stat.write_text(content or "")
        assert [outlook.mark(), outlook.mark()] == [None, None]


def test_throttling_of_any_moment_is_kept() -> None:
    machine = Machine(throttled=("sw_thermal",))
    after = (GpuState(0, "G", throttle=("hw_power_brake", "application_clocks")),)
    assert add_aftermath(machine, after, ["sw_power_cap"], 0.1).throttled == (
        "hw_power_brake",
        "sw_power_cap",
        "sw_thermal",
    )
