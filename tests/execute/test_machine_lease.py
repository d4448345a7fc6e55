"""The machine lease: a benchmark has the machine to itself, and a dead holder blocks no other process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from assay.execute.machine_lease import MachineLease, Use, keeping_lease
from assay.values.layout import ENV_LEASE


class Leases:
    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.opened: list[MachineLease] = []

    def open(self, use: Use) -> MachineLease:
        self.opened.append(MachineLease(use, self.folder))
        return self.opened[-1]


@pytest.fixture
def leases(tmp_path: Path) -> Iterator[Leases]:
    found = Leases(str(tmp_path))
    yield found
    for lease in found.opened:
        lease.close()


def test_nothing_new_starts_while_a_benchmark_measures(leases: Leases) -> None:
    benchmark, check, sweep, other = (leases.open(use) for use in ("benchmark", "check", "run", "benchmark"))
    assert benchmark.try_enter()
    assert [one.try_enter() for one in (check, sweep, other)] == [False] * 3
    benchmark.close()
    assert [check.try_enter(), sweep.try_enter(), other.try_enter()] == [True, True, False]
    assert other.blocked_by == "checks"


def test_a_benchmark_waits_for_running_checks_and_new_ones_wait_for_it(leases: Leases) -> None:
    running, late, sweep, benchmark = (leases.open(use) for use in ("check", "check", "run", "benchmark"))
    assert running.try_enter()
    assert not benchmark.try_enter()
    assert not late.try_enter()  # or checks that follow one another would keep the benchmark waiting for ever
    assert not sweep.try_enter()
    assert running.try_enter()  # a second attempt of the one that runs
    running.close()
    assert benchmark.try_enter()


def test_checks_and_sweeps_do_not_wait_for_each_other(leases: Leases) -> None:
    assert all(leases.open(use).try_enter() for use in ("check", "run", "check", "run"))


def test_a_dead_benchmark_is_not_waited_for_and_a_living_one_is_named(leases: Leases, tmp_path: Path) -> None:
    code = f"""
from assay.execute.machine_lease import MachineLease
assert MachineLease("benchmark", {str(tmp_path)!r}).try_enter()
print("in", flush=True); input()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        sweep = leases.open("run")
        assert not sweep.try_enter()
        assert [holder.pid for holder in sweep.holders()] == [other.pid]
        other.kill()
    assert sweep.try_enter()


def test_what_a_benchmark_starts_does_not_wait_for_it(leases: Leases, monkeypatch: pytest.MonkeyPatch) -> None:
    benchmark = leases.open("benchmark")
    assert benchmark.try_enter()
    monkeypatch.setenv(ENV_LEASE, benchmark.env[ENV_LEASE])
    assert all(leases.open(use).try_enter() for use in ("check", "run", "benchmark"))
    monkeypatch.setenv(ENV_LEASE, f"{os.getpid()}.1.another-boot")  # a holder that ended long ago
    assert not leases.open("check").try_enter()


def test_between_the_parts_of_a_comparison_nothing_starts(leases: Leases) -> None:
    sweep = leases.open("run")
    with keeping_lease():
        for _ in range(2):
            part = leases.open("benchmark")
            assert part.try_enter()
            part.close()
            assert not sweep.try_enter()
    assert sweep.try_enter()


def test_a_cleaned_temporary_directory_does_not_keep_a_lock_alive(leases: Leases, tmp_path: Path) -> None:
    check, benchmark = leases.open("check"), leases.open("benchmark")
    assert check.try_enter()
    (tmp_path / "lease" / "checks").unlink()
    assert benchmark.try_enter()
    assert not leases.open("check").try_enter()
