"""The state of the machine before, during and after a benchmark: load, clocks, temperature, throttling, processes.

On a farm the wrapper of a run stores this state in a file of the run.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from assay.bench.child_report import load_root
from assay.bench.flow.execution_builder import JobSurroundings
from assay.bench.flow.memory import GpuMemory, TreePeaks, TreeWatch
from assay.bench.values.execution import BENCH_MACHINE_FILE, BENCH_REPORT_FILE, GpuState, Machine
from assay.observe.devices import Devices
from assay.observe.environment import load_cpu
from assay.observe.readings import load_tag
from assay.system import processes
from assay.system.fast_dataclasses import dataclass, field, replace
from assay.system.files import list_names, parse_json, read_text, try_text, write_atomic
from assay.values.environment import Environment
from assay.values.plain import build_plain, parse_strict

BEFORE_S = 0.25  # how long the load of other processes is measured before a run; less than 0.2 s is not enough
_GPU_INTERVAL_S = 2.0  # longest interval of readings; after a run has started its GPUs are read with every tick
_CPUS = "/sys/devices/system/cpu"
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def load_machine(environment: Environment, devices: Devices, gpus: Sequence[int]) -> Machine:
    """Load the current state of the machine. `gpus`: indexes of the GPUs that the benchmark may use."""
    states = load_gpus(devices, gpus)
    physical, sockets = load_topology()
    amd = load_accelerators()
    return replace(
        describe_machine(environment),
        cpu_model=environment.cpu or load_cpu(),
        physical_cpus=physical,
        sockets=sockets,
        governor=load_governor(),
        load_1m=os.getloadavg()[0],
        accelerator_model=choose_model(amd.models or [state.name for state in states]),
        accelerator_count=len(amd.models or states),
        accelerator_driver=amd.driver if amd.models else environment.driver or "",
        gpus=states,
        throttled=find_throttling(states),
        packages=environment.job_packages or environment.packages,
    )


def describe_machine(environment: Environment) -> Machine:
    """Return the machine as a recorded environment describes it."""
    gpus = environment.gpus
    return Machine(
        host=environment.host,
        os=environment.os,
        python=environment.python,
        cpu_model=environment.cpu,
        logical_cpus=environment.cpu_count,
        memory_bytes=environment.memory_bytes,
        accelerator_model=gpus[0].name if gpus else "",
        accelerator_count=len(gpus),
        accelerator_driver=environment.driver or "",
    )


def choose_model(names: Sequence[str]) -> str:
    """Return the first model, but the second one if the first is a Quadro, which only drives the screen."""
    if len(names) > 1 and "Quadro" in names[0]:
        return names[1]
    return names[0] if names else ""


def load_gpus(devices: Devices, indices: Sequence[int], tag: str | None = None) -> tuple[GpuState, ...]:
    """Load the state of the GPUs. The processes of the attempt with this `tag` are not listed."""
    names = {gpu.index: gpu.name for gpu in devices.list()}
    read = ("sm_clock_mhz", "temperature_c", "power_w", "memory_bytes", "utilisation", "throttle")
    states = []
    for index in filter(names.__contains__, indices):
        # with a tag, a process that cannot be read is left out: in a container the driver reports pids of the host. A
        # process that is ending has lost its tag, so the tag is read first, and then whether the process is alive
        pids = [process.pid for process in devices.processes(index)]
        if tag is not None:
            pids = [pid for pid in pids if load_tag(pid) != tag.encode() and processes.process_start(pid) is not None]
        reading = devices.read([index])
        found = {name: getattr(reading, name) for name in read} if reading is not None else {}
        states.append(GpuState(index, names[index], processes=tuple(pids), **found))
    return tuple(states)


def find_throttling(states: Iterable[GpuState]) -> tuple[str, ...]:
    return tuple(sorted({reason for state in states for reason in state.throttle if reason != "application_clocks"}))


def load_topology() -> tuple[int, int]:
    """Return the numbers of physical cores and of sockets; 0 where the kernel does not report them."""
    places = {
        tuple(try_text(f"{_CPUS}/{name}/topology/{key}").strip() for key in ("physical_package_id", "core_id"))
        for name in _list_cpus()
    }
    cores = {place for place in places if all(place)}
    return len(cores), len({socket for socket, _ in cores})


def _list_cpus() -> list[str]:
    return [name for name in list_names(_CPUS) if re.fullmatch(r"cpu\d+", name)]


def load_governor() -> str:
    """Return how the cores choose their clock; empty in most virtual machines."""
    found = {try_text(f"{_CPUS}/{name}/cpufreq/scaling_governor").strip() for name in _list_cpus()} - {""}
    return ",".join(sorted(found))


class CpuMeter:
    """The CPU time that all processes of the machine used between two readings."""

    def __init__(self, path: str | None = None) -> None:
        self._path = path
        self._before = processes.load_cpu_ticks(path)

    def foreign_fraction(self, own_cpu_s: float, cpus: int) -> float | None:
        """Return the fraction of all cores that other processes used; None if the readings are too close together."""
        busy, everything = (
            after - before for after, before in zip(processes.load_cpu_ticks(self._path), self._before, strict=True)
        )
        if everything < 0.2 * _TICKS_PER_S * max(1, cpus):
            return None
        return max(0.0, busy - own_cpu_s * _TICKS_PER_S) / everything


# ---------------------------------------------------------------- AMD, by rocm-smi

_TIMEOUT_S = 20.0
_NAMES = ("card series", "device name", "card model", "card sku")  # the first value that is not a hex number counts


@dataclass(frozen=True, slots=True)
class Accelerators:
    models: tuple[str, ...] = ()
    driver: str = ""


def load_accelerators() -> Accelerators:
    """Load the accelerators by `rocm-smi`; none if it is not on PATH, or if it fails."""
    program = shutil.which("rocm-smi")
    return _ask(program) if program else Accelerators()


@cache
def _ask(program: str) -> Accelerators:
    try:
        words = [program, "--showproductname", "--showdriverversion", "--json"]
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return Accelerators()
    return parse_accelerators(done.stdout.decode("utf-8", "replace"))


def parse_accelerators(text: str) -> Accelerators:
    """Parse rocm-smi's `{"card0": {"Card series": …}, "system": {…}}`, also after warnings; keys differ by version."""
    try:
        content = parse_json(text[text.index("{") :])
    except ValueError:
        return Accelerators()
    found = ((match, fields) for name, fields in content.items() if (match := re.fullmatch(r"card(\d+)", name)))
    models = {}
    for match, fields in found:
        known = _lower(fields)
        names = [known[key] for key in _NAMES if known.get(key, "N/A") != "N/A"]
        plain = (name for name in names if not name.startswith("0x"))
        models[int(match[1])] = next(plain, names[0] if names else "AMD GPU")
    driver = _lower(content.get("system")).get("driver version", "")
    return Accelerators(tuple(models[number] for number in sorted(models)), driver)


def _lower(fields: Any) -> dict[str, str]:
    items = fields.items() if isinstance(fields, Mapping) else ()
    return {str(key).strip(": ").lower(): str(value).strip() for key, value in items}


# ---------------------------------------------------------------- before, during and after one benchmark


@dataclass(slots=True)
class ForeignLoad:
    """Measures the CPU time of other processes before a run begins. A mark is set while no run of ours is active: only
    then does the kernel know the CPU time of all our processes."""

    cpus: int
    path: str | None = None  # path of a file like /proc/stat
    _marks: list[tuple[CpuMeter, float]] = field(default_factory=list)

    def mark(self) -> float | None:
        """Set a mark; return the fraction that other processes used since the last mark that is old enough, or None."""
        own_s = load_own_cpu_s(resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        fractions = [meter.foreign_fraction(own_s - then_s, self.cpus) for meter, then_s in self._marks]
        known = [number for number, share in enumerate(fractions) if share is not None]
        latest = known[-1] if known else None
        if latest is not None:
            del self._marks[:latest]  # marks before the latest one that is old enough are not needed
        meter = open_meter(self.path)
        if meter is not None:
            self._marks.append((meter, own_s))
        return fractions[latest] if latest is not None else None

    def forget(self) -> None:
        """Remove all marks: one of our processes is running, and its CPU time is not known yet."""
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
    """Watches a benchmark from its start to its end; not safe for several threads."""

    def __init__(
        self,
        run_dir: str,
        job: int,
        tag: str | None,
        environment: Environment,
        devices: Devices,
        gpus: tuple[int, ...],
        foreign_before: float | None,
    ) -> None:
        """Watch the shell `job` (a pid) of the attempt `tag`. `foreign_before`: load of other processes before it."""
        report = os.path.join(run_dir, BENCH_REPORT_FILE)
        self.tree = TreeWatch(job, lambda: load_root(report))
        self.tree.start()
        self.tag, self.environment, self.devices, self.gpus = tag, environment, devices, gpus
        self.memory = GpuMemory(devices, gpus)
        self.machine = replace(load_machine(environment, devices, gpus), foreign_cpu_before=foreign_before)
        self.meter = open_meter()
        self.began, self.own_cpu_s, self.oom_kills = time.time(), load_own_cpu_s(), processes.load_oom_kills()
        self.next_reading = 0.0
        self.seen: dict[int, GpuState] = {}  # last state of each GPU, with all foreign processes and throttling seen
        self.peaks: TreePeaks | None = None  # read after the run has ended

    def tick(self, now: float) -> None:
        if self.gpus and now >= self.next_reading:
            self.next_reading = now + min(_GPU_INTERVAL_S, now - self.began)
            self._read_gpus()

    def _read_gpus(self) -> None:
        self.memory.look(self.tag, self.tree.pids)
        for state in load_gpus(self.devices, self.gpus, self.tag):
            before = self.seen.get(state.index, state)
            throttle = tuple(sorted({*state.throttle, *before.throttle}))
            processes = tuple(sorted({*state.processes, *before.processes}))
            self.seen[state.index] = replace(state, throttle=throttle, processes=processes)

    def finish_tree(self, left: Collection[int] = ()) -> None:
        """Read the memory of `left`, the processes that are still alive after the run has ended, for the last time."""
        if self.peaks is None:
            self.peaks = self.tree.finish(left)

    def build_context(self, cpu_s: float) -> JobSurroundings:
        """Build the surroundings after the run has ended. `cpu_s`: the CPU time that the run used."""
        self.finish_tree()
        if self.seen:
            self._read_gpus()
        after = tuple(
            replace(state, processes=self.seen[state.index].processes) if state.index in self.seen else state
            for state in load_gpus(self.devices, self.gpus, self.tag)
        )
        throttled = [reason for state in self.seen.values() for reason in state.throttle]
        own_s, oom_kills = cpu_s + load_own_cpu_s() - self.own_cpu_s, processes.load_oom_kills()
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


def write_context(run_dir: str, context: JobSurroundings) -> None:
    write_atomic(os.path.join(run_dir, BENCH_MACHINE_FILE), json.dumps(build_plain(context)))


def load_context(run_dir: str) -> JobSurroundings:
    """Load the observations of a run on a farm. If the wrapper was killed, or never began, the run was not observed."""
    try:
        content = parse_json(read_text(os.path.join(run_dir, BENCH_MACHINE_FILE), "strict"))
        return parse_strict(JobSurroundings, {**content, "machine": content["machine"]})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return JobSurroundings(is_observed=False)
