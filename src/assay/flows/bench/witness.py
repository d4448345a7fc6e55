"""Looks at the machine when a benchmark begins, while it runs and when it ends; then writes what came of it."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from assay.flows.bench.conclude import Surroundings, build_execution, render_points
from assay.flows.supervise import Entry, Observer
from assay.observe.devices import Devices
from assay.observe.environment import load_environment
from assay.observe.machine import CpuMeter, add_aftermath, load_gpus, load_machine
from assay.observe.readings import TreeSampler
from assay.record.benchmarks import write_execution
from assay.values import layout
from assay.values.benchmark import BenchExecution, BenchRequest, BenchVariant, GpuState, Machine
from assay.values.environment import Environment
from assay.values.run import Usage

POINTS_FILE = "bench.jsonl"  # in metrics/
_LOOK_AT_GPUS_S = 2.0
_EARLY_LOOKS_S = (0.1, 0.2, 0.4, 0.8)

Told = Callable[[BenchExecution, int, int], None]  # an execution that has just ended; which one, of how many


def tell_nobody(_execution: BenchExecution, _number: int, _total: int) -> None:
    """Whoever calls looks at the report."""


@dataclass(slots=True)
class _Live:
    machine: Machine
    environment: Environment
    meter: CpuMeter | None
    sampler: TreeSampler | None = None
    peak_bytes: int = 0  # seen by early looks
    early: list[float] = field(default_factory=list)  # moments of those that are still to come
    next_look: float = 0.0
    gpus: dict[int, GpuState] = field(default_factory=dict)  # strangers seen meanwhile


class Witness:
    """The supervisor's observer, around its usual one."""

    def __init__(self, request: BenchRequest, variants: Mapping[str, BenchVariant | None], told: Told) -> None:
        self._request = request
        self._told = told
        self._variants = variants
        self._devices = Devices()
        self._environments: dict[str, Environment] = {}
        self._live: dict[str, _Live] = {}
        self._inner: Observer | None = None
        self.found: dict[str, BenchExecution] = {}

    def around(self, inner: Observer) -> Witness:
        self._inner = inner
        return self

    @property
    def inner(self) -> Observer:
        assert self._inner is not None
        return self._inner

    def started(self, entry: Entry) -> None:
        environment = self._load_environment(entry)
        machine = load_machine(environment, self._devices, _gpus_of(entry))
        now = time.time()
        self._live[entry.dir] = _Live(machine, environment, _open_meter(), early=[now + s for s in _EARLY_LOOKS_S])
        self.inner.started(entry)

    def tick(self, running: Sequence[Entry], now: float) -> None:
        self.inner.tick(running, now)
        for entry in running:
            live = self._live.get(entry.dir)
            if live is not None and live.early and now >= live.early[0]:
                self._look_early(entry, live, now)
            if live is not None and now >= live.next_look and _gpus_of(entry):
                live.next_look = now + _LOOK_AT_GPUS_S
                self._look_at_gpus(entry, live)

    def _look_early(self, entry: Entry, live: _Live, now: float) -> None:
        """Readings begin after a second: what is killed before that would leave no word of its memory."""
        live.early = [moment for moment in live.early if moment > now]
        if live.sampler is None and entry.handle is not None:
            live.sampler = TreeSampler(entry.handle.pid, entry.handle.tag, start=entry.handle.start)
        reading = live.sampler.sample(now) if live.sampler else None
        live.peak_bytes = max(live.peak_bytes, reading.peak_rss_bytes if reading else 0)

    def _look_at_gpus(self, entry: Entry, live: _Live) -> None:
        for state in load_gpus(self._devices, _gpus_of(entry), entry.handle.tag if entry.handle else None):
            before = live.gpus.get(state.index)
            throttle = tuple(sorted({*state.throttle, *(before.throttle if before else ())}))
            processes = tuple(sorted({*state.processes, *(before.processes if before else ())}))
            live.gpus[state.index] = replace(state, throttle=throttle, processes=processes)

    def usage(self, entry: Entry) -> Usage | None:
        return self.inner.usage(entry)

    def ended(self, entry: Entry) -> None:
        live = self._live.pop(entry.dir, None)
        execution = build_execution(
            entry.dir, entry.spec, entry.outcome, str(entry.state), self._look_around(entry, live)
        )
        with suppress(OSError):  # a full disk: it can be made again from what the child wrote
            write_execution(entry.dir, execution)
            write_points(entry.dir, execution)
        self.found[entry.dir] = execution
        self.inner.ended(entry)
        self._told(execution, len(self.found), len(self._variants))

    def flush(self) -> None:
        self.inner.flush()

    def _look_around(self, entry: Entry, live: _Live | None) -> Surroundings:
        if live is None:
            return Surroundings(extra=self._request.extra, own_peak_bytes=_own_peak_bytes())
        if live.gpus:
            self._look_at_gpus(entry, live)
        after = load_gpus(self._devices, _gpus_of(entry), entry.handle.tag if entry.handle else None)
        after = tuple(
            replace(state, processes=live.gpus[state.index].processes) if state.index in live.gpus else state
            for state in after
        )
        seen = [reason for state in live.gpus.values() for reason in state.throttle]
        cpu_s = entry.outcome.cpu_s if entry.outcome and entry.outcome.cpu_s else 0.0
        foreign = live.meter.foreign_share(cpu_s, live.machine.logical_cpus) if live.meter else None
        variant = self._variants[entry.spec.name]
        git = live.environment.git
        return Surroundings(
            machine=add_aftermath(live.machine, after, seen, foreign),
            git=git,
            commit=(variant.commit if variant else None) or (git.commit if git else None),
            foreign_limit=self._request.foreign_limit,
            refuses=self._request.refuse_contaminated,
            extra=self._request.extra,
            own_peak_bytes=_own_peak_bytes(),
            seen_peak_bytes=live.peak_bytes,
        )

    def _load_environment(self, entry: Entry) -> Environment:
        """Of the code that is measured: a variant has its own."""
        variant = self._variants[entry.spec.name]
        folder = (variant.folder if variant else None) or self._request.folder or os.getcwd()
        if folder not in self._environments:
            self._environments[folder] = load_environment(folder, self._request.command_line, self._devices)
        return self._environments[folder]


def _own_peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _open_meter() -> CpuMeter | None:
    try:
        return CpuMeter()
    except (OSError, ValueError, IndexError):
        return None


def write_points(run_dir: str, execution: BenchExecution) -> None:
    text = render_points(execution)
    if not text:
        return
    folder = os.path.join(run_dir, layout.METRICS_DIR)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, POINTS_FILE), "w", encoding="utf-8") as file:
        file.write(text)


def _gpus_of(entry: Entry) -> tuple[int, ...]:
    slot = entry.handle.slot if entry.handle else None
    return tuple(int(part) for part in (slot or "").split(",") if part.strip().isdecimal())
