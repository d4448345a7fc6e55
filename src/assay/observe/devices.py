"""The machine's NVIDIA GPUs, through NVML.

Without a driver, or without the package `nvidia-ml-py`, there are no GPUs: no method of `Devices` raises, and its
attribute `Devices.reason` names what is missing. For tests, ASSAY_FAKE_NVML names a JSON file, read at every call:

    {"driver": "550.54",
     "gpus": [{"name": "Fake", "uuid": "GPU-0", "memory_bytes": 16000000000, "used_bytes": 0,
               "utilisation": 0, "sm_clock_mhz": 0, "temperature_c": 0, "power_w": 0, "throttle": [],
               "processes": [{"pid": 123, "memory_bytes": 1000}]}]}

Every key is optional; a GPU's index is its position in the list. "reason" instead of "gpus" describes a machine without
GPUs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from operator import methodcaller
from typing import Any, TypeVar

from assay.system.fast_dataclasses import NamedTuple
from assay.system.files import list_names, parse_json
from assay.values.environment import Gpu
from assay.values.series import GpuReading

ENV_FAKE = "ASSAY_FAKE_NVML"
INSTALL_COMMAND = "pip install nvidia-ml-py"
DEVICE_FOLDER = "/dev"
_DEVICE_FILE = r"nvidia[0-9]|dxg$|nvhost-gpu"  # device files of cards, of Windows' Linux subsystem, and of a Jetson

_FAKE_MEMORY_BYTES = 16 << 30
# bits of NVML's clocks-event reasons; the bit of an idle GPU is left out
_THROTTLE_BITS = {
    0x02: "application_clocks",
    0x04: "sw_power_cap",
    0x08: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
    0x100: "display_clocks",
}

T = TypeVar("T")


class GpuProcess(NamedTuple):
    pid: int
    memory_bytes: int  # memory used; 0 if the driver does not report it


class Devices:
    """The current state of the GPUs; the library is opened at the first use."""

    def __init__(self, env: Mapping[str, str] | None = None) -> None:
        self._env = os.environ if env is None else env
        self._source: NvmlSource | FakeSource | None = None
        self._is_open = False
        self.reason: str | None = None  # why there are no GPUs, and what to do; None if nothing is missing

    @property
    def warning(self) -> str | None:
        """Why a GPU of this machine cannot be used; None if nothing is missing, and if the machine has no GPU."""
        return self.reason if self.reason is not None and is_gpu_visible() else None

    def list(self) -> tuple[Gpu, ...]:
        return self._ask(lambda source: source.gpus(), ())

    def driver(self) -> str | None:
        return self._ask(lambda source: source.driver(), None)

    def free_memory(self, index: int) -> int:
        """Return the free bytes; 0 for a GPU that does not exist."""
        return self._ask(lambda source: source.free_bytes(index), 0)

    def processes(self, index: int) -> tuple[GpuProcess, ...]:
        return self._ask(lambda source: source.processes(index), ())

    def read(self, indices: Iterable[int]) -> GpuReading | None:
        """Return one reading of these GPUs: sums of memory and power, else maxima. None if no GPU can be read."""
        readings: list[GpuReading | None] = [self._ask(methodcaller("read", index), None) for index in indices]
        found = [reading for reading in readings if reading is not None]
        if not found:
            return None
        return GpuReading(
            memory_bytes=sum(reading.memory_bytes for reading in found),
            utilisation=max(reading.utilisation for reading in found),
            sm_clock_mhz=max(reading.sm_clock_mhz for reading in found),
            temperature_c=max(reading.temperature_c for reading in found),
            power_w=sum(reading.power_w for reading in found),
            throttle=tuple(sorted({reason for reading in found for reason in reading.throttle})),
        )

    def _ask(self, question: Callable[[NvmlSource | FakeSource], T], otherwise: T) -> T:
        if not self._is_open:
            self._is_open = True
            fake = self._env.get(ENV_FAKE)
            self._source = FakeSource(fake) if fake else self._open_nvml()
        if self._source is None:
            return otherwise
        try:
            answer = question(self._source)
        except (OSError, ValueError, LookupError) as error:
            self.reason = f"GPUs cannot be read: {error}"
            return otherwise
        self.reason = None
        return answer

    def _open_nvml(self) -> NvmlSource | None:
        if not is_gpu_visible():  # without a card, loading the driver's library fails slowly
            self.reason = f"no GPU is visible in {DEVICE_FOLDER} ({DEVICE_FOLDER}/nvidia0)"
            return None
        try:
            return NvmlSource()
        except ImportError:
            self.reason = f"GPUs are not looked at: nvidia-ml-py is not installed ({INSTALL_COMMAND})"
        except OSError as error:
            self.reason = f"no NVIDIA driver answers: {error}"
        return None


def is_gpu_visible() -> bool:
    return any(re.match(_DEVICE_FILE, name) for name in list_names(DEVICE_FOLDER))


class NvmlSource:
    """The GPUs as the driver's library reports them. Values that a GPU does not offer are zero. Calls raise OSError."""

    def __init__(self) -> None:
        import pynvml

        self._nvml: Any = pynvml
        self._call(pynvml.nvmlInit)
        self._handles = [
            self._call(pynvml.nvmlDeviceGetHandleByIndex, index)
            for index in range(self._call(pynvml.nvmlDeviceGetCount))
        ]
        self._gpus = tuple(self._describe(index) for index in range(len(self._handles)))

    def driver(self) -> str | None:
        return _text(self._call(self._nvml.nvmlSystemGetDriverVersion))

    def gpus(self) -> tuple[Gpu, ...]:
        return self._gpus

    def free_bytes(self, index: int) -> int:
        return int(self._call(self._nvml.nvmlDeviceGetMemoryInfo, self._handle(index)).free)

    def processes(self, index: int) -> tuple[GpuProcess, ...]:
        handle = self._handle(index)
        found: dict[int, int] = {}
        for kind in (self._nvml.nvmlDeviceGetComputeRunningProcesses, self._nvml.nvmlDeviceGetGraphicsRunningProcesses):
            for process in self._try([], kind, handle):
                found[process.pid] = max(found.get(process.pid, 0), process.usedGpuMemory or 0)
        return tuple(GpuProcess(pid, memory) for pid, memory in sorted(found.items()))

    def read(self, index: int) -> GpuReading:
        nvml, handle = self._nvml, self._handle(index)
        utilisation = self._try(None, nvml.nvmlDeviceGetUtilizationRates, handle)
        bits = self._try(0, nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
        return GpuReading(
            memory_bytes=int(self._call(nvml.nvmlDeviceGetMemoryInfo, handle).used),
            utilisation=float(utilisation.gpu) if utilisation else 0.0,
            sm_clock_mhz=int(self._try(0, nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM)),
            temperature_c=int(self._try(0, nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU)),
            power_w=self._try(0, nvml.nvmlDeviceGetPowerUsage, handle) / 1000,
            throttle=tuple(name for bit, name in _THROTTLE_BITS.items() if bits & bit),
        )

    def _describe(self, index: int) -> Gpu:
        handle = self._handles[index]
        name = _text(self._call(self._nvml.nvmlDeviceGetName, handle))
        uuid = _text(self._call(self._nvml.nvmlDeviceGetUUID, handle))
        return Gpu(index, name, uuid, int(self._call(self._nvml.nvmlDeviceGetMemoryInfo, handle).total))

    def _handle(self, index: int) -> Any:
        return self._handles[_checked(index, len(self._handles))]

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except self._nvml.NVMLError as error:
            raise OSError(str(error)) from None

    def _try(self, otherwise: Any, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except self._nvml.NVMLError:
            return otherwise


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _checked(index: int, count: int) -> int:
    if not 0 <= index < count:
        raise LookupError(f"there is no GPU {index}, only {count}")
    return index


class FakeSource:
    """The GPUs that the JSON file of ASSAY_FAKE_NVML describes; calls raise OSError, ValueError or LookupError."""

    def __init__(self, path: str) -> None:
        self._path = path

    def driver(self) -> str | None:
        driver = self._load().get("driver")
        return None if driver is None else str(driver)

    def gpus(self) -> tuple[Gpu, ...]:
        return tuple(_fake_gpu(index, entry) for index, entry in enumerate(self._load().get("gpus", ())))

    def free_bytes(self, index: int) -> int:
        entry = self._entry(index)
        return _fake_gpu(index, entry).memory_bytes - int(entry.get("used_bytes", 0))

    def processes(self, index: int) -> tuple[GpuProcess, ...]:
        entries = self._entry(index).get("processes", ())
        return tuple(GpuProcess(int(entry["pid"]), int(entry.get("memory_bytes", 0))) for entry in entries)

    def read(self, index: int) -> GpuReading:
        entry = self._entry(index)
        return GpuReading(
            memory_bytes=int(entry.get("used_bytes", 0)),
            utilisation=float(entry.get("utilisation", 0)),
            sm_clock_mhz=int(entry.get("sm_clock_mhz", 0)),
            temperature_c=int(entry.get("temperature_c", 0)),
            power_w=float(entry.get("power_w", 0)),
            throttle=tuple(entry.get("throttle", ())),
        )

    def _load(self) -> dict[str, Any]:
        with open(self._path, encoding="utf-8") as file:
            content = parse_json(file.read())
        if not isinstance(content, dict):
            raise ValueError(f"{self._path} contains no JSON object")  # noqa: TRY004 (a bad file, not a bad call)
        if "reason" in content:
            raise OSError(content["reason"])
        return content

    def _entry(self, index: int) -> dict[str, Any]:
        entries: list[dict[str, Any]] = self._load().get("gpus", [])
        return entries[_checked(index, len(entries))]


def _fake_gpu(index: int, entry: Mapping[str, Any]) -> Gpu:
    name, uuid = str(entry.get("name", "Fake GPU")), str(entry.get("uuid", f"GPU-fake-{index}"))
    return Gpu(index, name, uuid, int(entry.get("memory_bytes", _FAKE_MEMORY_BYTES)))
