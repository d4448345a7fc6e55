"""Observes the machine before, during and after a benchmark, and writes the execution."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from assay.bench.child_report import load_root
from assay.bench.flow.execution_builder import JobContext, build_execution
from assay.bench.records import write_execution, write_points
from assay.bench.values.execution import BENCH_REPORT_FILE, BenchExecution, BenchRequest, BenchVariant
from assay.execute import process
from assay.observe.devices import Devices, load_accelerators
from assay.observe.environment import load_environment
from assay.observe.machine import (
    CpuMeter,
    ForeignLoad,
    add_aftermath,
    load_gpus,
    load_machine,
    load_own_cpu_s,
    open_meter,
)
from assay.observe.memory import GpuMemory, TreePeaks, TreeWatch
from assay.show.console import Console
from assay.study.api import Entry, Observer
from assay.system import processes
from assay.system.processes import load_oom_kills
from assay.values.environment import Environment
from assay.values.machine import GpuState, Machine
from assay.values.run import JobHandle, State, Usage

_GPU_INTERVAL_S = 2.0  # at most; a run that has just started is read with every tick
_BEFORE_S = 0.25  # how long foreign load is measured before the first run: more than the 0.2 s that count as measured


Told = Callable[[BenchExecution, int, int], None]  # an execution that has just ended; which one, of how many


@dataclass(slots=True)
class _Live:
    machine: Machine
    environment: Environment
    meter: CpuMeter | None
    watch: TreeWatch
    memory: GpuMemory
    began: float = field(default_factory=time.time)
    own_cpu_s: float = field(default_factory=load_own_cpu_s)
    oom_kills: int | None = field(default_factory=load_oom_kills)
    next_gpu_reading: float = 0.0
    gpus: dict[int, GpuState] = field(default_factory=dict)  # foreign processes seen during the run
    tree: TreePeaks | None = None  # when the run has ended


class BenchObserver:
    """The supervisor's observer, around its usual one."""

    def __init__(
        self,
        request: BenchRequest,
        variants: Mapping[str, BenchVariant | None],
        told: Told,
        console: Console,
    ) -> None:
        self._request = request
        self._told = told
        self._console = console
        self._variants = variants
        self._devices = Devices()
        self._environments: dict[str, Environment] = {}
        self._live: dict[str, _Live] = {}
        self._handles: dict[str, JobHandle | None] = {}
        self._inner: Observer | None = None
        self._outlook = ForeignLoad(os.cpu_count() or 1)
        self.found: dict[str, BenchExecution] = {}
        self.warnings: list[str] = []  # about the code that is measured, once for each folder

    def around(self, inner: Observer) -> BenchObserver:
        """Before anything runs: slow queries, and the load of other processes."""
        self._inner = inner
        began = time.monotonic()
        self._outlook.mark()
        for folder in {self._find_folder(variant) for variant in self._variants.values()}:
            self._load_environment(folder)
        load_accelerators()
        if self._request.foreign_limit < 1:  # otherwise there is no limit
            time.sleep(max(0.0, began + _BEFORE_S - time.monotonic()))
        return self

    @property
    def inner(self) -> Observer:
        assert self._inner is not None
        return self._inner

    def started(self, entry: Entry) -> None:
        before = None if self._is_disturbed() else self._outlook.mark()
        gpus = _gpus_of(entry)
        report = os.path.join(entry.dir, BENCH_REPORT_FILE)
        watch = TreeWatch(entry.handle.pid if entry.handle else 0, lambda: load_root(report))
        watch.start()
        memory = GpuMemory(self._devices, gpus)
        environment = self._load_environment(self._find_folder(self._variants[entry.spec.name]))
        machine = replace(load_machine(environment, self._devices, gpus), foreign_cpu_before=before)
        self._live[entry.dir] = _Live(machine, environment, open_meter(), watch, memory)
        self._handles[entry.dir] = entry.handle
        self.inner.started(entry)

    def _is_disturbed(self) -> bool:
        """While another run of ours is active; its CPU use is known when it has ended."""
        handles = [handle for handle in self._handles.values() if handle is not None]
        is_disturbed = any(processes.is_alive(handle.pid, handle.start, handle.boot) for handle in handles)
        if is_disturbed:
            self._outlook.forget()
        return is_disturbed

    def tick(self, running: Sequence[Entry], now: float) -> None:
        self.inner.tick(running, now)
        if not running:  # it waits for others to end, which does not disturb it
            self._outlook.forget()
            self._outlook.mark()
        for entry in running:
            live = self._live.get(entry.dir)
            if live is not None and now >= live.next_gpu_reading and _gpus_of(entry):
                live.next_gpu_reading = now + min(_GPU_INTERVAL_S, now - live.began)
                self._read_gpus(entry, live)

    def _read_gpus(self, entry: Entry, live: _Live) -> None:
        live.memory.look(entry.handle.tag if entry.handle else None, live.watch.pids)
        for state in load_gpus(self._devices, _gpus_of(entry), entry.handle.tag if entry.handle else None):
            before = live.gpus.get(state.index)
            throttle = tuple(sorted({*state.throttle, *(before.throttle if before else ())}))
            processes = tuple(sorted({*state.processes, *(before.processes if before else ())}))
            live.gpus[state.index] = replace(state, throttle=throttle, processes=processes)

    def usage(self, entry: Entry) -> Usage | None:
        """The run has ended, and processes that it left are still there: the last reading of their memory."""
        live = self._live.get(entry.dir)
        if live is not None and live.tree is None:
            live.tree = live.watch.finish(find_left_behind(entry))
        return self.inner.usage(entry)

    def ended(self, entry: Entry) -> None:
        live = self._live.pop(entry.dir, None)
        self._handles.pop(entry.dir, None)
        around = self._measure_surroundings(entry, live)
        execution = build_execution(entry.dir, entry.spec, entry.outcome, str(entry.state), around)
        with suppress(OSError):  # a full disk: it can be rebuilt from what the child wrote
            write_execution(entry.dir, execution)
            write_points(entry.dir, execution)
        self.found[entry.dir] = execution
        self.inner.ended(entry)
        self._told(execution, len(self.found), len(self._variants))

    def flush(self) -> None:
        self.inner.flush()

    def _measure_surroundings(self, entry: Entry, live: _Live | None) -> JobContext:
        if live is None:
            limit = self._request.foreign_limit
            return JobContext(foreign_limit=limit, own_peak_bytes=_own_peak_bytes(), is_observed=False)
        tree = live.tree if live.tree is not None else live.watch.finish()
        if live.gpus:
            self._read_gpus(entry, live)
        after = load_gpus(self._devices, _gpus_of(entry), entry.handle.tag if entry.handle else None)
        after = tuple(
            replace(state, processes=live.gpus[state.index].processes) if state.index in live.gpus else state
            for state in after
        )
        seen = [reason for state in live.gpus.values() for reason in state.throttle]
        outcome, now = entry.outcome, load_oom_kills()
        cpu_s = outcome.cpu_s if outcome and outcome.cpu_s else 0.0
        own_s = cpu_s + load_own_cpu_s() - live.own_cpu_s
        foreign = live.meter.foreign_fraction(own_s, live.machine.logical_cpus) if live.meter else None
        variant = self._variants[entry.spec.name]
        git = live.environment.git
        return JobContext(
            machine=add_aftermath(live.machine, after, seen, foreign),
            git=git,
            commit=(variant.commit if variant else None) or (git.commit if git else None),
            foreign_limit=self._request.foreign_limit,
            refuses=self._request.refuse_contaminated,
            own_peak_bytes=_own_peak_bytes(),
            tree=tree,
            gpu=live.memory.peak,
            oom_kills=now - live.oom_kills if now is not None and live.oom_kills is not None else None,
            # the supervisor ended processes that would disturb the next measurement: the run's reason names them
            notes=(f"it {outcome.reason}",) if outcome and outcome.state is State.DONE and outcome.reason else (),
        )

    def _find_folder(self, variant: BenchVariant | None) -> str:
        """Of the measured code: a variant has its own."""
        return (variant.folder if variant else None) or self._request.folder or os.getcwd()

    def _load_environment(self, folder: str) -> Environment:
        if folder not in self._environments:
            self._environments[folder] = load_environment(
                folder, self._request.command_line, self._devices, complain=self._warn
            )
        return self._environments[folder]

    def _warn(self, text: str) -> None:
        self.warnings.append(text)
        self._console.warning(text)


# ---------------------------------------------------------------- processes that a run leaves


def find_left_behind(entry: Entry) -> set[int]:
    """Processes of an attempt that has ended."""
    handle = entry.handle
    if handle is None or handle.host != processes.host_name() or handle.boot != processes.boot_id():
        return set()
    return process.find_members([process.Attempt(handle.pid, handle.start, handle.tag)])


def _own_peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _gpus_of(entry: Entry) -> tuple[int, ...]:
    slot = entry.handle.slot if entry.handle else None
    return tuple(int(part) for part in (slot or "").split(",") if part.strip().isdecimal())
