"""Observes the machine before, during and after a benchmark, and writes the execution."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from assay.bench.flow.execution_builder import JobSurroundings, build_execution
from assay.bench.flow.machine import BEFORE_S, ForeignLoad, MachineWatch, load_accelerators, load_context
from assay.bench.records import write_execution, write_points
from assay.bench.values.execution import BenchExecution, BenchRequest, BenchVariant
from assay.execute import process
from assay.follow.api import Entry, Observer
from assay.observe.devices import Devices
from assay.observe.environment import load_environment
from assay.show.console import Console
from assay.system import processes
from assay.system.fast_dataclasses import dataclass, field, replace
from assay.values.environment import Environment
from assay.values.run import JobHandle, State, Usage

ReportEnd = Callable[[BenchExecution, int, int], None]  # arguments: an ended execution, its number, the total


@dataclass(slots=True)
class BenchObserver:
    """An observer for benchmarks, which wraps the supervisor's usual observer."""

    request: BenchRequest
    variants: Mapping[str, BenchVariant | None]
    report_end: ReportEnd
    console: Console
    inner: Observer = field(init=False)  # set by `around`
    found: dict[str, BenchExecution] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)  # warnings about the measured code, once for each folder
    _devices: Devices = field(default_factory=Devices)
    _environments: dict[str, Environment] = field(default_factory=dict)
    _live: dict[str, tuple[MachineWatch, JobHandle | None]] = field(default_factory=dict)
    _is_idle: bool = False  # whether nothing was running at the last tick
    _outlook: ForeignLoad = field(default_factory=lambda: ForeignLoad(os.cpu_count() or 1))

    def around(self, inner: Observer) -> BenchObserver:
        """Before anything runs, load the environments, which is slow, and measure the load of other processes."""
        self.inner = inner
        if self.request.farm is not None:  # a run on a farm is observed by its wrapper
            return self
        began = time.monotonic()
        self._outlook.mark()
        for folder in {self._find_folder(variant) for variant in self.variants.values()}:
            self._load_environment(folder)
        load_accelerators()
        if self.request.foreign_limit < 1:  # a limit of 1 cannot be exceeded
            time.sleep(max(0.0, began + BEFORE_S - time.monotonic()))
        return self

    def started(self, entry: Entry) -> None:
        if self.request.farm is not None:
            self.inner.started(entry)
            return
        # the CPU time of another run of ours is not known before that run has ended
        others = [other for _, other in self._live.values() if other is not None]
        is_disturbed = any(processes.is_alive(other.pid, other.start, other.boot) for other in others)
        if is_disturbed:
            self._outlook.forget()
        before = None if is_disturbed else self._outlook.mark()
        environment = self._load_environment(self._find_folder(self.variants[entry.spec.name]))
        handle = entry.handle
        job, slot, tag = (handle.pid, handle.slot or "", handle.tag) if handle else (0, "", None)
        gpus = tuple(int(part) for part in slot.split(",") if part.strip().isdecimal())
        watch = MachineWatch(entry.dir, job, tag, environment, self._devices, gpus, before)
        self._live[entry.dir] = watch, handle
        self._is_idle = False
        self.inner.started(entry)

    def tick(self, running: Sequence[Entry], now: float) -> None:
        self.inner.tick(running, now)
        if self._is_idle and not running:  # the supervisor waits for runs of other calls, which do not disturb ours
            self._outlook.forget()
            self._outlook.mark()
        self._is_idle = not running  # a single idle tick may be between two runs
        for entry in running:
            if entry.dir in self._live:
                self._live[entry.dir][0].tick(now)

    def usage(self, entry: Entry) -> Usage | None:
        """After the run has ended, read the memory of its remaining processes for the last time."""
        live, _ = self._live.get(entry.dir, (None, None))
        if live is not None and live.peaks is None:
            handle, left = entry.handle, set[int]()  # processes that are still alive
            if handle is not None and (handle.host, handle.boot) == (processes.host_name(), processes.boot_id()):
                left = process.find_members([process.AttemptProcesses(handle.pid, handle.start, handle.tag)])
            live.finish_tree(left)
        return self.inner.usage(entry)

    def ended(self, entry: Entry) -> None:
        live, _ = self._live.pop(entry.dir, (None, None))
        around = self._measure_surroundings(entry, live)
        execution = build_execution(entry.dir, entry.spec, entry.outcome, str(entry.state), around)
        with suppress(OSError):  # a full disk: the file can be rebuilt from the child's report
            write_execution(entry.dir, execution)
            write_points(entry.dir, execution)
        self.found[entry.dir] = execution
        self.inner.ended(entry)
        self.report_end(execution, len(self.found), len(self.variants))

    def flush(self) -> None:
        self.inner.flush()

    def _measure_surroundings(self, entry: Entry, live: MachineWatch | None) -> JobSurroundings:
        limit = self.request.foreign_limit
        if live is None and self.request.farm is None:
            return JobSurroundings(foreign_limit=limit, own_peak_bytes=_own_peak_bytes(), is_observed=False)
        outcome, variant = entry.outcome, self.variants[entry.spec.name]
        cpu_s = outcome.cpu_s if outcome and outcome.cpu_s else 0.0
        seen = load_context(entry.dir) if live is None else live.build_context(cpu_s)
        return replace(
            seen,
            commit=(variant.commit if variant else None) or seen.commit,
            foreign_limit=limit,
            refuses=self.request.refuse_contaminated,
            own_peak_bytes=0 if live is None else _own_peak_bytes(),
            # the supervisor ended processes that would disturb the next measurement: the run's reason names them
            notes=(f"it {outcome.reason}",) if outcome and outcome.state is State.DONE and outcome.reason else (),
        )

    def _find_folder(self, variant: BenchVariant | None) -> str:
        """Return the folder of the measured code; a variant may have its own folder."""
        return (variant.folder if variant else None) or self.request.folder or os.getcwd()

    def _load_environment(self, folder: str) -> Environment:
        if folder not in self._environments:
            self._environments[folder] = load_environment(
                folder, self.request.command_line, self._devices, complain=self._warn
            )
        return self._environments[folder]

    def _warn(self, text: str) -> None:
        self.warnings.append(text)
        self.console.warning(text)


def _own_peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
