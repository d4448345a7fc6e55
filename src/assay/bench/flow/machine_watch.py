"""The state of the machine before, during and after one benchmark; stored in a file if a farm runs it."""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Collection, Iterable

from assay.bench.child_report import load_root
from assay.bench.flow.execution_builder import JobSurroundings
from assay.bench.flow.machine import CpuMeter, find_throttling, load_gpus, load_machine
from assay.bench.flow.memory import GpuMemory, TreePeaks, TreeWatch
from assay.bench.values.execution import BENCH_MACHINE_FILE, BENCH_REPORT_FILE, GpuState, Machine
from assay.observe.devices import Devices
from assay.system.fast_dataclasses import dataclass, field, replace
from assay.system.files import parse_json, write_atomic
from assay.system.processes import load_oom_kills
from assay.values.environment import Environment
from assay.values.plain import build_plain, parse_strict

BEFORE_S = 0.25  # how long the load of others is measured before a run: more than the 0.2 s that count as measured
_GPU_INTERVAL_S = 2.0  # longest interval; a run that has just started is read with every tick


@dataclass(slots=True)
class ForeignLoad:
    """Measures the CPU time of others before a run begins, from moments at which nothing of ours was running: the CPU
    time of our earlier processes is known to the kernel then."""

    cpus: int
    path: str | None = None  # path of a file like /proc/stat
    _marks: list[tuple[CpuMeter, float]] = field(default_factory=list)

    def mark(self) -> float | None:
        """Return the fraction that others used since the last mark that is old enough; None if there is none."""
        own_s = load_own_cpu_s(resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        fractions = [meter.foreign_fraction(own_s - then_s, self.cpus) for meter, then_s in self._marks]
        known = [number for number, share in enumerate(fractions) if share is not None]
        latest = known[-1] if known else None
        if latest is not None:
            del self._marks[:latest]  # marks before it are never needed again
        meter = open_meter(self.path)
        if meter is not None:
            self._marks.append((meter, own_s))
        return fractions[latest] if latest is not None else None

    def forget(self) -> None:
        """Start again: one of our processes is running, and its CPU time is not known yet."""
        self._marks.clear()


def load_own_cpu_s(*whose: int) -> float:
    """Return the CPU time of this process, or of `whose`: `RUSAGE_SELF`, `RUSAGE_CHILDREN` (those that have ended)."""
    used = [resource.getrusage(who) for who in whose or (resource.RUSAGE_SELF,)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def open_meter(path: str | None = None) -> CpuMeter | None:
    try:
        return CpuMeter(path)
    except (OSError, ValueError, IndexError):
        return None


class MachineWatch:
    """Watches a benchmark from its start to its end. It is not safe for several threads."""

    def __init__(
        self,
        run_dir: str,
        job: int,
        environment: Environment,
        devices: Devices,
        gpus: tuple[int, ...],
        foreign_before: float | None,
    ) -> None:
        """Watch the shell with the pid `job`. `foreign_before`: the load of others before it began."""
        report = os.path.join(run_dir, BENCH_REPORT_FILE)
        self.tree = TreeWatch(job, lambda: load_root(report))
        self.tree.start()
        self.environment, self.devices, self.gpus = environment, devices, gpus
        self.memory = GpuMemory(devices, gpus)
        self.machine = replace(load_machine(environment, devices, gpus), foreign_cpu_before=foreign_before)
        self.meter = open_meter()
        self.began, self.own_cpu_s, self.oom_kills = time.time(), load_own_cpu_s(), load_oom_kills()
        self.next_reading = 0.0
        self.seen: dict[int, GpuState] = {}  # foreign processes during the run
        self.peaks: TreePeaks | None = None  # read after the run has ended

    def tick(self, now: float, tag: str | None) -> None:
        if self.gpus and now >= self.next_reading:
            self.next_reading = now + min(_GPU_INTERVAL_S, now - self.began)
            self._read_gpus(tag)

    def _read_gpus(self, tag: str | None) -> None:
        self.memory.look(tag, self.tree.pids)
        for state in load_gpus(self.devices, self.gpus, tag):
            before = self.seen.get(state.index)
            throttle = tuple(sorted({*state.throttle, *(before.throttle if before else ())}))
            processes = tuple(sorted({*state.processes, *(before.processes if before else ())}))
            self.seen[state.index] = replace(state, throttle=throttle, processes=processes)

    def finish_tree(self, left: Collection[int] = ()) -> None:
        """Read the memory of `left`, the processes that are still alive after the run has ended, for the last time."""
        if self.peaks is None:
            self.peaks = self.tree.finish(left)

    def build_context(self, cpu_s: float, tag: str | None) -> JobSurroundings:
        """Build the surroundings after the run has ended. `cpu_s`: the CPU time that the run used."""
        self.finish_tree()
        if self.seen:
            self._read_gpus(tag)
        after = tuple(
            replace(state, processes=self.seen[state.index].processes) if state.index in self.seen else state
            for state in load_gpus(self.devices, self.gpus, tag)
        )
        throttled = [reason for state in self.seen.values() for reason in state.throttle]
        own_s, oom_kills = cpu_s + load_own_cpu_s() - self.own_cpu_s, load_oom_kills()
        foreign = self.meter.foreign_fraction(own_s, self.machine.logical_cpus) if self.meter else None
        git = self.environment.git
        return JobSurroundings(
            machine=add_aftermath(self.machine, after, throttled, foreign),
            git=git,
            commit=git.commit if git else None,
            tree=self.peaks or TreePeaks(),
            gpu=self.memory.peak,
            oom_kills=oom_kills - self.oom_kills if oom_kills is not None and self.oom_kills is not None else None,
        )


def add_aftermath(
    machine: Machine, after: tuple[GpuState, ...], throttled: Iterable[str], foreign: float | None
) -> Machine:
    reasons = {*machine.throttled, *find_throttling(after), *throttled} - {"application_clocks"}
    return replace(machine, gpus_after=after, throttled=tuple(sorted(reasons)), foreign_cpu=foreign)


# ---------------------------------------------------------------- on a farm


def write_context(run_dir: str, context: JobSurroundings) -> None:
    write_atomic(os.path.join(run_dir, BENCH_MACHINE_FILE), json.dumps(build_plain(context)))


def load_context(run_dir: str) -> JobSurroundings:
    """Load the observations of a run on a farm. If the wrapper was killed, or never began, the run was not observed."""
    try:
        with open(os.path.join(run_dir, BENCH_MACHINE_FILE), encoding="utf-8") as file:
            content = parse_json(file.read())
        return parse_strict(JobSurroundings, {**content, "machine": content["machine"]})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return JobSurroundings(is_observed=False)
