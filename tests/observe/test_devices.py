"""AMD's accelerators, by a stand-in for rocm-smi on PATH."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path

import pytest

from assay.observe import devices as device_module
from assay.observe.devices import ENV_FAKE, Accelerators, Devices, GpuProcess, load_accelerators, parse_accelerators
from assay.observe.environment import load_environment
from assay.observe.machine import choose_model, load_machine
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
    one = {
        "used_bytes": 10,
        "utilisation": 50,
        "sm_clock_mhz": 1000,
        "temperature_c": 60,
        "power_w": 100.5,
        "throttle": ["b"],
    }
    two = {
        "used_bytes": 20,
        "utilisation": 90.5,
        "sm_clock_mhz": 900,
        "temperature_c": 70,
        "power_w": 50,
        "throttle": ["a", "b"],
    }
    fake.gpus(one, two, {"used_bytes": 1000})
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
def test_a_fake_that_cannot_be_read_has_no_gpus(fake, content):
    fake.write(content)
    assert fake.devices.list() == ()
    assert fake.devices.reason


def test_a_missing_fake_has_no_gpus(fake):
    assert fake.devices.list() == ()
    assert "nvml.json" in fake.devices.reason


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


@pytest.mark.usefixtures("visible")
def test_a_missing_package_is_named_with_its_install_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    devices = Devices({})
    assert devices.list() == ()
    assert "pip install nvidia-ml-py" in devices.reason
    assert devices.warning == devices.reason  # a GPU is there, and is not used


def test_without_a_device_file_nothing_is_loaded_and_nothing_is_missing(monkeypatch, tmp_path):
    monkeypatch.setattr(device_module, "DEVICE_FOLDER", str(tmp_path))
    monkeypatch.setitem(sys.modules, "pynvml", None)
    devices = Devices({})
    assert devices.list() == ()
    assert "no GPU is visible" in devices.reason
    assert devices.warning is None


# ---------------------------------------------------------------- the driver's library, played by a module


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
    for name, answer in answers.items():
        setattr(nvml, name, build_call(name, answer, broken))
    return nvml


def build_call(name, answer, broken):
    def call(*arguments):
        if name in broken:
            raise NVMLError("Not Supported")
        return answer

    return call


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
    broken = {
        "nvmlDeviceGetUtilizationRates",
        "nvmlDeviceGetCurrentClocksThrottleReasons",
        "nvmlDeviceGetClockInfo",
        "nvmlDeviceGetTemperature",
        "nvmlDeviceGetPowerUsage",
        "nvmlDeviceGetComputeRunningProcesses",
        "nvmlDeviceGetGraphicsRunningProcesses",
    }
    monkeypatch.setitem(sys.modules, "pynvml", build_nvml(broken=broken))
    devices = Devices({})
    assert devices.read([0]) == GpuReading(30, 0.0, 0, 0, 0.0)
    assert devices.processes(0) == ()


@pytest.mark.usefixtures("visible")
def test_a_driver_that_does_not_answer(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", build_nvml(broken={"nvmlInit"}))
    devices = Devices({})
    assert devices.list() == ()
    assert devices.reason == "no NVIDIA driver answers: Not Supported"


@pytest.mark.usefixtures("visible")
def test_a_gpu_that_falls_off_the_bus(monkeypatch):
    broken = set()
    monkeypatch.setitem(sys.modules, "pynvml", build_nvml(broken=broken))
    devices = Devices({})
    assert len(devices.list()) == 1
    broken.add("nvmlDeviceGetMemoryInfo")
    assert devices.read([0]) is None
    assert devices.free_memory(0) == 0
    assert devices.reason == "GPUs cannot be read: Not Supported"


# ---------------------------------------------------------------- rocm


ANSWER = {
    "card0": {"Card series": "AMD Instinct MI210", "Card model": "0x0c34", "Card vendor": "AMD"},
    "card1": {"Card series": "AMD Instinct MI210", "Card model": "0x0c34", "Card vendor": "AMD"},
    "system": {"Driver version": "6.16.13"},
}


def stand_in(folder: Path, monkeypatch: pytest.MonkeyPatch, answer: str, code: int = 0) -> Path:
    """A rocm-smi that writes down what it was asked."""
    folder.mkdir()
    script = folder / "rocm-smi"
    asked = folder / "asked"
    script.write_text(f"#!/bin/sh\necho \"$*\" >> '{asked}'\ncat <<'END'\n{answer}\nEND\nexit {code}\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    return asked


def test_it_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = stand_in(tmp_path / "bin", monkeypatch, json.dumps(ANSWER))
    for _ in range(3):
        assert load_accelerators() == Accelerators(("AMD Instinct MI210",) * 2, "6.16.13")
    assert asked.read_text().splitlines() == ["--showproductname --showdriverversion --json"]


def test_the_machine_has_them_before_nvidia_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = tmp_path / "gpus.json"
    gpus.write_text('{"driver": "550.1", "gpus": [{"name": "Tesla V100"}]}')
    devices = Devices({"ASSAY_FAKE_NVML": str(gpus)})
    environment = load_environment(tmp_path, (), devices)
    machine = load_machine(environment, devices, [0])
    assert (machine.accelerator_model, machine.accelerator_count) == ("Tesla V100", 1)
    stand_in(tmp_path / "bin", monkeypatch, json.dumps(ANSWER))
    machine = load_machine(environment, devices, [0])
    assert (machine.accelerator_model, machine.accelerator_count) == ("AMD Instinct MI210", 2)
    assert machine.accelerator_driver == "6.16.13"


@pytest.mark.parametrize(("answer", "code"), [("", 1), ("no GPU was found", 0), ("{}", 0)])
def test_one_that_knows_nothing_leaves_nvidia_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, code: int
) -> None:
    stand_in(tmp_path / "bin", monkeypatch, answer, code)
    assert load_accelerators() == Accelerators()
    gpus = tmp_path / "gpus.json"
    gpus.write_text('{"driver": "550.1", "gpus": [{"name": "Tesla V100"}]}')
    devices = Devices({"ASSAY_FAKE_NVML": str(gpus)})
    machine = load_machine(load_environment(tmp_path, (), devices), devices, [0])
    assert (machine.accelerator_model, machine.accelerator_driver) == ("Tesla V100", "550.1")


def test_one_that_cannot_be_started_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path / "bin", monkeypatch, "")
    (tmp_path / "bin" / "rocm-smi").write_text("#!/nonexistent/interpreter\n")
    assert load_accelerators() == Accelerators()


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"Card series": "MI100"}, "MI100"),
        ({"Card Series": "MI200", "Card Model": "0x7408"}, "MI200"),  # ROCm 6
        ({"Card series": "0x738c", "Card model": "Radeon Pro VII"}, "Radeon Pro VII"),
        ({"Device Name": "Navi 31", "Card Series": "N/A"}, "Navi 31"),
        ({"Card series": "0x738c"}, "0x738c"),  # a number is better than nothing
        ({}, "AMD GPU"),
        ("odd", "AMD GPU"),
    ],
)
def test_names_are_spelt_in_many_ways(fields: object, name: str) -> None:
    assert parse_accelerators(json.dumps({"card0": fields})).models == (name,)


def test_cards_are_in_their_order_and_words_before_the_answer_are_passed_over() -> None:
    cards = {f"card{number}": {"Card series": f"GPU {number}"} for number in (10, 2, 0)}
    found = parse_accelerators("WARNING: AMD GPU device(s) is/are in a low-power state\n" + json.dumps(cards))
    assert found.models == ("GPU 0", "GPU 2", "GPU 10")
    assert found.driver == ""


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", '{"system": 5}'])
def test_what_is_no_answer_names_nothing(text: str) -> None:
    assert parse_accelerators(text) == Accelerators()


@pytest.mark.parametrize(
    ("names", "model"),
    [
        ([], ""),
        (["Tesla V100"], "Tesla V100"),
        (["Quadro P400", "Tesla V100", "Tesla T4"], "Tesla V100"),
        (["Quadro P400"], "Quadro P400"),
        (["Tesla V100", "Quadro P400"], "Tesla V100"),
    ],
)
def test_a_quadro_before_others_is_the_screen_s(names: list[str], model: str) -> None:
    assert choose_model(names) == model
