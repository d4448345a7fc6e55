"""The state of the machine while a benchmark runs: load, clocks, temperature, throttling, and others on it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from assay.bench.values.execution import GpuState, Machine
from assay.observe.devices import Devices
from assay.observe.environment import load_cpu
from assay.observe.readings import load_tag
from assay.system import processes
from assay.system.fast_dataclasses import dataclass, replace
from assay.system.files import list_names, parse_json, try_text
from assay.values.environment import Environment

FOREIGN_LIMIT = 0.1  # fraction of all cores that others may use before a result counts as contaminated
_CPUS = "/sys/devices/system/cpu"
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# reasons of trouble; clocks that a power limit or an application keeps lower are settings of the machine
TROUBLE = frozenset(["hw_slowdown", "sw_thermal", "hw_thermal", "hw_power_brake"])


def load_machine(environment: Environment, devices: Devices, gpus: Sequence[int]) -> Machine:
    """Load the current state of the machine; `gpus` are those that the benchmark may use."""
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
    """Return the machine in the form in which a record of the environment contains it."""
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
    """Return the first model; but a Quadro before others only drives the screen."""
    if len(names) > 1 and "Quadro" in names[0]:
        return names[1]
    return names[0] if names else ""


def load_gpus(devices: Devices, indices: Sequence[int], tag: str | None = None) -> tuple[GpuState, ...]:
    """Load the state of the GPUs. `tag` is the attempt's: its own processes are not counted among those of others."""
    names = {gpu.index: gpu.name for gpu in devices.list()}
    return tuple(_load_gpu(devices, index, names[index], tag) for index in indices if index in names)


def _load_gpu(devices: Devices, index: int, name: str, tag: str | None) -> GpuState:
    # with a tag, a process that cannot be read is left out: in a container the driver reports pids of the host
    pids = [process.pid for process in devices.processes(index)]
    others = tuple(pid for pid in pids if tag is None or (processes.exists(pid) and load_tag(pid) != tag.encode()))
    reading = devices.read([index])
    if reading is None:
        return GpuState(index, name, processes=others)
    return GpuState(
        index,
        name,
        reading.sm_clock_mhz,
        reading.temperature_c,
        reading.power_w,
        reading.memory_bytes,
        reading.utilisation,
        reading.throttle,
        others,
    )


def find_throttling(states: Iterable[GpuState]) -> tuple[str, ...]:
    return tuple(sorted({reason for state in states for reason in state.throttle if reason != "application_clocks"}))


def load_topology() -> tuple[int, int]:
    """Physical cores and sockets; 0 where the kernel does not report them."""
    cores, sockets = set(), set()
    for name in _list_cpus():
        core = try_text(f"{_CPUS}/{name}/topology/core_id").strip()
        socket = try_text(f"{_CPUS}/{name}/topology/physical_package_id").strip()
        if core and socket:
            cores.add((socket, core))
            sockets.add(socket)
    return len(cores), len(sockets)


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
        """Return the fraction of all cores that others used; None if the time between the readings is too short."""
        busy, everything = (
            after - before for after, before in zip(processes.load_cpu_ticks(self._path), self._before, strict=True)
        )
        if everything < 0.2 * _TICKS_PER_S * max(1, cpus):
            return None
        return max(0.0, busy - own_cpu_s * _TICKS_PER_S) / everything


def find_contamination(machine: Machine, foreign_limit: float = FOREIGN_LIMIT) -> tuple[str, ...]:
    """Describe why a result may have been disturbed by others."""
    found = []
    if machine.foreign_cpu is not None and machine.foreign_cpu > foreign_limit:
        found.append(f"others used {machine.foreign_cpu:.0%} of the CPUs during the run")
    before = machine.foreign_cpu_before
    if machine.foreign_cpu is None and before is not None and before > foreign_limit:
        found.append(f"others used {before:.0%} of the CPUs just before it began, and it was too short to measure more")
    if others := sorted({pid for state in (*machine.gpus, *machine.gpus_after) for pid in state.processes}):
        found.append(f"other processes were on the GPU: {', '.join(map(str, others[:5]))}")
    if trouble := [reason for reason in machine.throttled if reason in TROUBLE]:
        found.append(f"the GPU was throttled: {', '.join(trouble)}")
    return tuple(found)


# ---------------------------------------------------------------- AMD, by rocm-smi

_TIMEOUT_S = 20.0
_NAMES = ("card series", "device name", "card model", "card sku")  # the first value that is more than a number counts


@dataclass(frozen=True, slots=True)
class Accelerators:
    models: tuple[str, ...] = ()
    driver: str = ""


def load_accelerators() -> Accelerators:
    """Load the accelerators; none if there is no `rocm-smi` on PATH, or if it does not answer."""
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
    """Parse `{"card0": {"Card series": …}, "system": {"Driver version": …}}`, at times with warnings before it. The
    spelling of the keys differs between versions."""
    try:
        content = parse_json(text[text.index("{") :])
    except ValueError:
        return Accelerators()
    cards = {int(match[1]): fields for name, fields in content.items() if (match := re.fullmatch(r"card(\d+)", name))}
    system = _lower(content.get("system"))
    return Accelerators(tuple(_name(cards[number]) for number in sorted(cards)), system.get("driver version", ""))


def _name(fields: Any) -> str:
    known = _lower(fields)
    names = [known[key] for key in _NAMES if known.get(key, "N/A") != "N/A"]
    return next((name for name in names if not name.startswith("0x")), names[0] if names else "AMD GPU")


def _lower(fields: Any) -> dict[str, str]:
    items = fields.items() if isinstance(fields, Mapping) else ()
    return {str(key).strip(": ").lower(): str(value).strip() for key, value in items}
