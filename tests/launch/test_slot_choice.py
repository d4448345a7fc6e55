"""Which slots a study gets: those that are given, or those that the machine has."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from assay.config.settings import Settings
from assay.errors import UsageError
from assay.execute.slots import build_entries
from assay.launch.slot_choice import choose_slots
from assay.observe import devices
from assay.system.fast_dataclasses import replace
from assay.values.study import Resources, Study

GIB = 1 << 30
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
NOTHING = Settings("/runs")


def study(slots: tuple[str, ...] | None = None, **resources: int | None) -> Study:
    asked = Resources(**resources)  # type: ignore[arg-type]
    return Study("study", "native", "study.yml", "/", (), (), slots=slots, resources=asked)


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*THREADS, "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A machine with these GPUs, given by their used memory in GiB of 16; None: without a driver."""

    def make(*used: float | None) -> Path:
        path = tmp_path / "nvml.json"
        gpus = [{"memory_bytes": 16 * GIB, "used_bytes": int(each * GIB)} for each in used if each is not None]
        path.write_text(json.dumps({"reason": "no driver"} if None in used else {"gpus": gpus}))
        monkeypatch.setenv("ASSAY_FAKE_NVML", str(path))
        return path

    return make


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)))


class TestGiven:
    def test_who_decides(self, machine) -> None:
        machine(0)
        environment = Settings("/runs", slots=("1",), slots_from="ASSAY_SLOTS")
        file = Settings("/runs", slots=("3",), slots_from="/some/assay.toml")
        assert choose_slots(study(("2",)), ("0",), environment).labels == ("0",)
        assert choose_slots(study(("2",)), None, environment).labels == ("1",)
        assert choose_slots(study(("2",)), None, file).labels == ("2",)
        assert choose_slots(study(), None, file).labels == ("3",)
        assert choose_slots(study(), None, NOTHING).labels == ("0",)

    def test_what_was_named_is_not_looked_at(self, machine) -> None:
        """If a user names a GPU, it is used even if it is busy, or unknown to NVML."""
        machine(15)
        slots = choose_slots(study(), ("0", "9"), NOTHING)
        assert all(slots.usable(entry) for entry in build_entries(slots.labels))
        assert slots.env == {}

    def test_numbers_without_a_gpu_are_named(self, machine) -> None:
        machine(0, 0)
        (warning,) = choose_slots(study(), ("0", "cpu", "1,7", "7", "9", "GPU-ab"), NOTHING).warnings
        assert "GPU 7 and GPU 9 do not exist: this machine has the GPUs 0, 1;" in warning
        assert choose_slots(study(), ("0,1", "cpu"), NOTHING).warnings == ()
        taken_as_given = replace(study(("7",)), dialect="mlrunner")
        assert choose_slots(taken_as_given, None, NOTHING).warnings == ()
        assert choose_slots(taken_as_given, ("7",), NOTHING).warnings != ()
        machine(None)
        assert choose_slots(study(), ("7",), NOTHING).warnings == (), "it may be a device of another vendor"

    @pytest.mark.parametrize(
        ("labels", "cpus", "threads"),
        [
            (("cpu",) * 2, 1, "4"),
            (("cpu",) * 3, 1, "2"),
            (("cpu",) * 16, 1, "1"),
            (("cpu",) * 4, 6, "6"),
            (("cpu",), 1, None),
            (("cpu", "0"), 1, None),
        ],
    )
    def test_cpu_slots_divide_the_cores(
        self, cores: None, labels: tuple[str, ...], cpus: int, threads: str | None
    ) -> None:
        env = choose_slots(study(cpus=cpus), labels, NOTHING).env
        assert env == ({} if threads is None else dict.fromkeys(THREADS, threads))

    def test_what_the_user_has_set_stays(self, cores: None, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OMP_NUM_THREADS", "5")
        assert "OMP_NUM_THREADS" not in choose_slots(study(), ("cpu", "cpu"), NOTHING).env


class TestCpu:
    @pytest.mark.parametrize(("cpus", "count"), [(1, 8), (3, 2), (8, 1), (100, 1)])
    def test_as_many_as_fit(self, machine, cores: None, cpus: int, count: int) -> None:
        machine(None)
        slots = choose_slots(study(cpus=cpus), None, NOTHING)
        assert slots.labels == ("cpu",) * count
        assert slots.env == dict.fromkeys(THREADS, str(cpus))

    def test_asked_for_where_there_are_gpus(self, machine) -> None:
        machine(0, 0)
        assert set(choose_slots(study(gpus=0), None, NOTHING).labels) == {"cpu"}


class TestGpus:
    @pytest.mark.parametrize(
        ("resources", "labels"),
        [
            ({}, ("0", "1", "2")),
            ({"gpus": 2}, ("0,1",)),
            ({"runs_per_gpu": 2}, ("0", "1", "2") * 2),
            ({"gpus": 4}, "asks for 4 GPUs, and 3 can be used here"),
        ],
    )
    def test_all_that_are_there(self, machine, resources: dict[str, int], labels: tuple[str, ...] | str) -> None:
        machine(0, 0, 0)
        if isinstance(labels, str):
            with pytest.raises(UsageError, match=labels):
                choose_slots(study(**resources), None, NOTHING)
            return
        slots = choose_slots(study(**resources), None, NOTHING)
        assert (slots.labels, slots.env) == (labels, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})

    @pytest.mark.parametrize(
        ("used", "text"),
        [(0, "CUDA_VISIBLE_DEVICES names none of this machine"), (None, r"none was found: .*no driver")],
    )
    def test_none(self, machine, monkeypatch: pytest.MonkeyPatch, used: int | None, text: str) -> None:
        machine(used)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
        with pytest.raises(UsageError, match=text) as caught:
            choose_slots(study(gpus=1), None, NOTHING)
        assert "--slots" in caught.value.render()

    def test_the_users_order_of_devices_stays(self, machine, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
        machine(0)
        assert choose_slots(study(), None, NOTHING).env == {}

    @pytest.mark.parametrize(
        ("visible", "labels"),
        [
            ("2", ("2",)),
            ("2, 0", ("0", "2")),
            ("GPU-fake-1", ("1",)),
            ("MIG-a,MIG-b", ("MIG-a", "MIG-b")),
            ("-1", ("cpu",)),
        ],
    )
    def test_those_that_the_user_leaves_visible(
        self, machine, monkeypatch: pytest.MonkeyPatch, visible: str, labels: tuple[str, ...]
    ) -> None:
        machine(0, 0, 0)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert tuple(dict.fromkeys(choose_slots(study(), None, NOTHING).labels)) == labels
        monkeypatch.setenv("ASSAY_SLOT", "1")
        assert choose_slots(study(), None, NOTHING).labels == ("0", "1", "2"), "a run has it"

    @pytest.mark.parametrize(
        ("used", "resources", "free"),
        [
            ((0.0, 1.0), {}, [True, True]),  # 1 GiB is an idle context of another program
            ((0.0, 2.0), {}, [True, False]),
            ((12.0, 13.0), {"gpu_memory_bytes": 4 * GIB}, [True, False]),
            ((8.0, 9.0), {"runs_per_gpu": 2}, [True, False] * 2),
            ((0.0, 10.0), {"gpus": 2}, [False]),  # both must be free
        ],
    )
    def test_what_is_in_use_has_to_wait(
        self, machine, used: tuple[float, ...], resources: dict[str, int], free: list[bool]
    ) -> None:
        machine(*used)
        slots = choose_slots(study(**resources), None, NOTHING)
        assert [slots.usable(entry) for entry in build_entries(slots.labels)] == free

    def test_what_becomes_free_is_used(self, machine) -> None:
        machine(10)
        slots = choose_slots(study(), None, NOTHING)
        entry = build_entries(slots.labels)[0]
        assert not slots.usable(entry)
        machine(0)
        assert slots.usable(entry)


class TestGpusThatCannotBeUsed:
    def test_one_that_is_visible_is_a_warning_not_a_cpu_in_silence(self, machine, tmp_path, monkeypatch) -> None:
        machine(None)
        (tmp_path / "nvidia0").touch()
        monkeypatch.setattr(devices, "DEVICE_FOLDER", str(tmp_path))
        slots = choose_slots(study(), None, NOTHING)
        assert set(slots.labels) == {"cpu"}
        (warning,) = slots.warnings
        assert warning.startswith("this machine has a GPU that cannot be used, so runs use the CPU: ")
        assert "no driver" in warning

    def test_a_machine_without_one_has_nothing_to_warn_of(self, machine, tmp_path, monkeypatch) -> None:
        machine(None)
        monkeypatch.setattr(devices, "DEVICE_FOLDER", str(tmp_path))
        assert choose_slots(study(), None, NOTHING).warnings == ()

    def test_more_memory_than_any_gpu_has_is_an_error_and_more_than_is_free_a_wait(self, machine) -> None:
        machine(15, 15)
        with pytest.raises(UsageError, match="of GPU memory, the largest GPU here has"):
            choose_slots(study(gpu_memory_bytes=17 * GIB), None, NOTHING)
        slots = choose_slots(study(gpu_memory_bytes=12 * GIB), None, NOTHING)
        assert slots.labels == ("0", "1")
        assert not any(slots.usable(entry) for entry in build_entries(slots.labels))
