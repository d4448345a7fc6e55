"""Choose the slots of a study, which are given or found on this machine."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence

from assay.config.settings import ENVIRONMENT, Settings
from assay.errors import UsageError
from assay.execute.machine_lease import MachineLease
from assay.execute.slots import SlotEntry, SlotPool
from assay.observe.devices import Devices
from assay.show.console import Console
from assay.show.formatting import clean, render_duration, render_size, shorten
from assay.system.fast_dataclasses import dataclass, field, replace
from assay.system.processes import find_folder
from assay.values import layout
from assay.values.environment import Gpu
from assay.values.hooks import NATIVE
from assay.values.study import Resources, Study
from assay.values.units import CPU

NOTICE_S = 3.0  # how long a study waits for a slot before a warning is printed
_MOST_HOLDERS = 3  # holders named in a message
_COMMAND_WIDTH = 100
_FREE_SHARE = 0.9  # a GPU counts as free when this fraction of its memory is free


@dataclass(frozen=True, slots=True)
class HasMemory:
    """Whether a slot's GPUs have enough free memory. Runs of Assay on the same GPU share its memory."""

    devices: Devices
    needed: Mapping[int, int]  # GPU -> bytes

    def __call__(self, entry: SlotEntry) -> bool:
        return all(self.devices.free_memory(int(index)) >= self.needed[int(index)] for index in entry.devices)


@dataclass(frozen=True, slots=True)
class Slots:
    labels: tuple[str, ...]
    devices: Devices
    usable: Callable[[SlotEntry], bool] = lambda _entry: True
    env: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def choose_slots(study: Study, asked: Sequence[str] | None, settings: Settings) -> Slots:
    """Return the slots of the flag, else of the environment, the study, the settings, or of this machine."""
    devices = Devices()
    from_environment = settings.slots if settings.slots_from == ENVIRONMENT["slots"] else None
    given = asked or from_environment or study.slots or settings.slots
    if given:
        is_foreign = study.dialect != NATIVE.name and bool(study.slots) and not asked and not from_environment
        warnings = () if is_foreign else _find_missing(given, devices)
        # several CPU slots share the cores; a single one, and slots with a GPU, have no limit of threads
        share = max(study.resources.cpus, len(os.sched_getaffinity(0)) // len(given))
        env = _thread_limits(share) if len(given) > 1 and set(given) == {CPU} else {}
        return Slots(tuple(given), devices, env=env, warnings=warnings)
    if study.resources.gpus == 0:
        return _cpu_slots(study.resources, devices)
    is_nested = layout.ENV_SLOT in os.environ  # this command was called by a run, which has one slot
    visible = re.split(r"[,\s]+", "*" if is_nested else os.environ.get("CUDA_VISIBLE_DEVICES", "*"))
    gpus = [gpu for gpu in devices.list() if not {"*", str(gpu.index), gpu.uuid}.isdisjoint(visible)]
    if slices := tuple(word for word in visible if word.startswith("MIG-")):
        return Slots(slices, devices)
    if gpus:
        return _gpu_slots(study.resources, gpus, devices)
    if study.resources.gpus is None:
        why = devices.warning  # a run must not fall back to the CPU silently if a GPU is there
        hint = "assay doctor shows more; resources: {gpus: 0} asks for the CPU"
        text = f"this machine has a GPU that cannot be used, so runs use the CPU: {why} ({hint})"
        return replace(_cpu_slots(study.resources, devices), warnings=(text,) if why is not None else ())
    reason = devices.reason or "CUDA_VISIBLE_DEVICES names none of this machine"
    text = f"each run of {study.name} asks for {study.resources.gpus} GPU(s) and none was found: {reason}"
    hint = "name the GPUs yourself (--slots 0,1), or run on the CPU (--slots cpu:2, or resources: {gpus: 0})"
    raise UsageError(text, hint)


def _find_missing(labels: Sequence[str], devices: Devices) -> tuple[str, ...]:
    """Return a warning about GPUs that do not exist. If NVML finds no GPU, numbers may be devices of other vendors."""
    named = [int(word) for word in dict.fromkeys(",".join(labels).split(",")) if word.isdecimal()]
    found = {gpu.index for gpu in devices.list()} if named else set()
    missing = [f"GPU {index}" for index in named if found and index not in found]
    if not missing:
        return ()
    verb, there = "does" if len(missing) == 1 else "do", ", ".join(map(str, sorted(found)))
    what = f"{' and '.join(missing)} {verb} not exist: this machine has the GPUs {there}"
    return (f"{what}; what runs on such a slot sees no GPU (choose others with --slots)",)


def _cpu_slots(resources: Resources, devices: Devices) -> Slots:
    count = max(1, len(os.sched_getaffinity(0)) // max(1, resources.cpus))
    return Slots((CPU,) * count, devices, env=_thread_limits(resources.cpus))


def _thread_limits(cpus: int) -> dict[str, str]:
    """Limit threads, as parallel runs must not each start one thread per core. Variables of the user are kept."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return {name: str(max(1, cpus)) for name in names if name not in os.environ}


def _gpu_slots(resources: Resources, gpus: Sequence[Gpu], devices: Devices) -> Slots:
    size = resources.gpus or 1
    groups = [gpus[i : i + size] for i in range(0, len(gpus) - size + 1, size)]
    if not groups:
        message = f"each run asks for {size} GPUs, and {len(gpus)} can be used here"
        raise UsageError(message, "ask for fewer: resources: {gpus: N}")
    least = resources.gpu_memory_bytes or 0  # a run can wait for memory that is in use, but not for more than a GPU has
    large = [group for group in groups if all(gpu.memory_bytes >= least for gpu in group)]
    if not large:
        most = max(gpu.memory_bytes for group in groups for gpu in group)
        message = f"each run asks for {render_size(least)} of GPU memory, the largest GPU here has {render_size(most)}"
        raise UsageError(message, "ask for less: resources: {gpu_memory: SIZE}")
    labels = [",".join(str(gpu.index) for gpu in group) for group in large]
    needed = {
        gpu.index: resources.gpu_memory_bytes or int(gpu.memory_bytes * _FREE_SHARE / resources.runs_per_gpu)
        for gpu in gpus
    }
    # NVML counts GPUs by their position on the bus, CUDA by speed without this variable
    env = {} if "CUDA_DEVICE_ORDER" in os.environ else {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    return Slots(tuple(labels) * resources.runs_per_gpu, devices, HasMemory(devices, needed), env)


def describe_holders(pool: SlotPool) -> str:
    """Describe the run (with folder and process, perhaps of another root) or program that holds each slot."""
    found, shown = pool.holders(), []
    for one in found[:_MOST_HOLDERS]:
        name = "run {2} in {0}".format(*one.name.rpartition("/")) if one.is_run else one.name
        shown.append(f"{name} (pid {one.pid}) for {render_duration(max(0.0, time.time() - one.since))}")
    more = [f"{len(found) - _MOST_HOLDERS} more"] if len(found) > _MOST_HOLDERS else []
    return clean("held by " + "; ".join(shown + more)) if found else "its holder cannot be identified"


def describe_lease(lease: MachineLease) -> str:
    """Describe the benchmark or model check that holds the machine lease: command, folder and process."""
    what = "a benchmark has this machine for itself" if lease.blocked_by != "checks" else "model checks are running"
    holders = lease.holders()
    commands = [one for one in holders if not one.is_run] or holders
    found = []
    for one in commands:
        where = f" in {folder}" if (folder := find_folder(one.pid)) else ""
        found.append(f"{shorten(one.name, _COMMAND_WIDTH)}{where} (pid {one.pid})")
    more = [f"{len(found) - _MOST_HOLDERS} more"] if len(found) > _MOST_HOLDERS else []
    return clean(f"{what}: {'; '.join(found[:_MOST_HOLDERS] + more) or 'its process cannot be identified'}")


@dataclass(slots=True)
class WaitNotice:
    """Prints one warning if other programs hold the machine lease, and one if all runs wait for slots of others."""

    console: Console
    has_reported_lease: bool = False
    has_reported_slot: bool = False

    def update(self, leased_s: float, lease: MachineLease | None, waited_s: float, pool: SlotPool | None) -> None:
        if not self.has_reported_lease and lease is not None and leased_s > NOTICE_S:
            self.has_reported_lease = True
            self.console.warning(f"waiting to start: {describe_lease(lease)}")
        if not self.has_reported_slot and pool is not None and waited_s > NOTICE_S:
            self.has_reported_slot = True
            if pool.wait == "device":
                self.console.warning("waiting for a GPU with enough free memory (another one: --slots)")
            else:
                self.console.warning(f"waiting for a slot: {describe_holders(pool)} (other slots: --slots)")
