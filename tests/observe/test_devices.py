"""NVIDIA's GPUs, by a stand-in for NVML."""

from __future__ import annotations

import functools
import json
import sys
import types

import pytest

from assay.observe import devices as device_module
from assay.observe.devices import ENV_FAKE, Devices, GpuProcess
from assay.values.environment import Gpu
from assay.values.series import GpuReading

GIB = 1 << 30


class Fake:
    def __init__(self, path):
        self.path = path
        self.devices = Devices({ENV_FAKE: str(path)})

    def write(self, content):
        self.path.write_text(content if isinstance(content, str) else json.dumps(content))

    def gpus(self, *entries):
        self.write({"driver": "550.54", "gpus": list(entries)})


@pytest.fixture
def fake(tmp_path):
    return Fake(tmp_path / "nvml.json")


def test_gpus_of_the_fake(fake):
    fake.gpus({"name": "H", "uuid": "GPU-a", "memory_bytes": 80 * GIB, "used_bytes": GIB}, {})
    devices = fake.devices
    assert devices.list()[0] == Gpu(0, "H", "GPU-a", 80 * GIB)
    assert [gpu.index for gpu in devices.list()] == [0, 1]
    assert devices.free_memory(0) == 79 * GIB
    assert (devices.driver(), devices.reason) == ("550.54", None)


def test_the_fake_is_read_again_at_every_call(fake):
    fake.gpus({"memory_bytes": 8 * GIB})
    assert fake.devices.free_memory(0) == 8 * GIB
    fake.gpus(
        {"memory_bytes": 8 * GIB, "used_bytes": 7 * GIB, "processes": [{"pid": 5, "memory_bytes": GIB}, {"pid": 6}]}
    )
    assert fake.devices.free_memory(0) == GIB
    assert fake.devices.processes(0) == (GpuProcess(5, GIB), GpuProcess(6, 0))


def test_a_reading_sums_memory_and_power_and_takes_the_maximum_of_the_rest(fake):
    names = ("used_bytes", "utilisation", "sm_clock_mhz", "temperature_c", "power_w", "throttle")
    one, two = (10, 50, 1000, 60, 100.5, ["b"]), (20, 90.5, 900, 70, 50, ["a", "b"])
    fake.gpus(*(dict(zip(names, each, strict=True)) for each in (one, two)), {"used_bytes": 1000})
    assert fake.devices.read([0, 1]) == GpuReading(30, 90.5, 1000, 70, 150.5, ("a", "b"))
    assert fake.devices.read([]) is None


def test_a_gpu_that_is_not_there_is_no_error_and_the_reason_goes_away_again(fake):
    fake.gpus({})
    assert fake.devices.free_memory(3) == 0
    assert "no GPU 3" in fake.devices.reason
    assert fake.devices.processes(-1) == ()
    assert fake.devices.read([5]) is None
    assert fake.devices.read([0, 5]) is not None
    fake.devices.list()
    assert fake.devices.reason is None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"gpus": [{"memory_bytes": "x"}]}', '{"reason": "no driver"}'])
def test_a_fake_that_is_missing_or_cannot_be_read_has_no_gpus(fake, content):
    assert fake.devices.list() == ()
    assert "nvml.json" in fake.devices.reason
    fake.write(content)
    assert fake.devices.list() == ()
    assert fake.devices.reason


def test_this_machine_has_gpus_or_a_reason():
    devices = Devices({})
    gpus = devices.list()
    assert bool(gpus) == (devices.reason is None)
    assert (devices.read([0]) is not None) == bool(gpus)
    assert bool(devices.driver()) == bool(gpus)


@pytest.fixture
def visible(monkeypatch, tmp_path):
    """As on a machine with a card."""
    (tmp_path / "nvidia0").touch()
    monkeypatch.setattr(device_module, "DEVICE_FOLDER", str(tmp_path))
    return tmp_path


def test_a_missing_package_is_named_with_its_install_command_if_there_is_a_device(visible, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    devices = Devices({})
    assert devices.list() == ()
    assert "pip install nvidia-ml-py" in devices.reason
    assert devices.warning == devices.reason  # a GPU is there, and is not used
    (visible / "nvidia0").unlink()
    devices = Devices({})
    assert devices.list() == ()
    assert "no GPU is visible" in devices.reason
    assert devices.warning is None


class NVMLError(Exception):
    pass


def build_nvml(*, broken=()):
    """As much of pynvml as we use, with one GPU."""
    nvml = types.ModuleType("pynvml")
    answers = {
        "nvmlInit": None,
        "nvmlDeviceGetCount": 1,
        "nvmlDeviceGetHandleByIndex": "handle",
        "nvmlSystemGetDriverVersion": b"550.54",
        "nvmlDeviceGetName": "H200",
        "nvmlDeviceGetUUID": b"GPU-x",
        "nvmlDeviceGetMemoryInfo": types.SimpleNamespace(total=100, used=30, free=70),
        "nvmlDeviceGetUtilizationRates": types.SimpleNamespace(gpu=55),
        "nvmlDeviceGetCurrentClocksThrottleReasons": 0x1 | 0x4 | 0x40,
        "nvmlDeviceGetClockInfo": 1980,
        "nvmlDeviceGetTemperature": 61,
        "nvmlDeviceGetPowerUsage": 350_500,
        "nvmlDeviceGetComputeRunningProcesses": [types.SimpleNamespace(pid=9, usedGpuMemory=7)],
        "nvmlDeviceGetGraphicsRunningProcesses": [
            types.SimpleNamespace(pid=9, usedGpuMemory=None),
            types.SimpleNamespace(pid=3, usedGpuMemory=None),
        ],
    }
    nvml.NVMLError, nvml.NVML_CLOCK_SM, nvml.NVML_TEMPERATURE_GPU = NVMLError, 1, 0

    def call(*_arguments, name):
        if name in broken:
            raise NVMLError("Not Supported")
        return answers[name]

    for name in answers:
        setattr(nvml, name, functools.partial(call, name=name))
    return nvml


@pytest.mark.usefixtures("visible")
def test_figures_of_the_driver(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", build_nvml())
    devices = Devices({})
    assert devices.list() == (Gpu(0, "H200", "GPU-x", 100),)
    assert (devices.driver(), devices.free_memory(0)) == ("550.54", 70)
    assert devices.processes(0) == (GpuProcess(3, 0), GpuProcess(9, 7))
    assert devices.read([0]) == GpuReading(30, 55.0, 1980, 61, 350.5, ("hw_thermal", "sw_power_cap"))
    assert devices.reason is None
    assert devices.free_memory(1) == 0


@pytest.mark.usefixtures("visible")
def test_figures_that_a_gpu_does_not_offer_are_zero(monkeypatch):
    readings = ("UtilizationRates", "CurrentClocksThrottleReasons", "ClockInfo", "Temperature", "PowerUsage")
    lists = ("ComputeRunningProcesses", "GraphicsRunningProcesses")
    broken = {f"nvmlDeviceGet{each}" for each in (*readings, *lists)}
    monkeypatch.setitem(sys.modules, "pynvml", build_nvml(broken=broken))
    devices = Devices({})
    assert devices.read([0]) == GpuReading(30, 0.0, 0, 0, 0.0)
    assert devices.processes(0) == ()


@pytest.mark.usefixtures("visible")
def test_a_driver_that_does_not_answer_and_a_gpu_that_falls_off_the_bus(monkeypatch):
    broken = {"nvmlInit"}
    monkeypatch.setitem(sys.modules, "pynvml", build_nvml(broken=broken))
    devices = Devices({})
    assert devices.list() == ()
    assert devices.reason == "no NVIDIA driver answers: Not Supported"
    broken.clear()
    devices = Devices({})
    assert len(devices.list()) == 1
    broken.add("nvmlDeviceGetMemoryInfo")
    assert devices.read([0]) is None
    assert devices.free_memory(0) == 0
    assert devices.reason == "GPUs cannot be read: Not Supported"
