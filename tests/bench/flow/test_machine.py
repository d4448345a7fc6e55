"""The machine: the load of others, and what counts as trouble."""

from __future__ import annotations

import json
import os
import resource
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from assay.bench.flow.execution_builder import find_contamination
from assay.bench.flow.machine import (
    Accelerators,
    CpuMeter,
    ForeignLoad,
    add_aftermath,
    choose_model,
    load_accelerators,
    load_governor,
    load_gpus,
    load_machine,
    load_own_cpu_s,
    load_topology,
    parse_accelerators,
)
from assay.bench.values.execution import GpuState, Machine
from assay.observe.devices import Devices
from assay.observe.environment import load_environment
from assay.system.processes import load_oom_kills
from assay.values.layout import ENV_ATTEMPT

TICKS = os.sysconf("SC_CLK_TCK")


def write_stat(path: Path, busy_s: float, idle_s: float) -> None:
    path.write_text(f"cpu  {int(busy_s * TICKS)} 0 0 {int(idle_s * TICKS)} 0 0 0 0 0 0\ncpu0 1 2 3\n")


def test_what_others_used(stat: Path) -> None:
    for busy, idle, own, share in (
        (1, 9, 1, 0.0),
        (5, 5, 1, 0.4),
        (1, 9, 3, 0.0),
        (10, 0, 0, 1.0),
        (0.1, 0.1, 0, None),
    ):
        write_stat(stat, 100, 100)
        meter = CpuMeter(str(stat))
        write_stat(stat, 100 + busy, 100 + idle)
        assert meter.foreign_fraction(own, 2) == (share if share is None else pytest.approx(share, abs=0.001))


def test_this_machine_can_be_read() -> None:
    physical, sockets = load_topology()
    assert 0 <= sockets <= physical <= (os.cpu_count() or 1)
    assert isinstance(load_governor(), str)
    assert CpuMeter().foreign_fraction(0, os.cpu_count() or 1) is None
    with open("/proc/vmstat") as file:
        counts = "oom_kill " in file.read()
    kills = load_oom_kills()
    assert (kills is not None and kills >= 0) is counts


def test_contamination() -> None:
    for machine, words in (
        (Machine(), ""),
        (Machine(foreign_cpu=0.05), ""),
        (Machine(foreign_cpu=0.25), "others used 25% of the CPUs"),
        (Machine(foreign_cpu_before=0.05), ""),
        (Machine(foreign_cpu_before=0.3), "others used 30% of the CPUs just before it began"),
        (Machine(foreign_cpu_before=0.3, foreign_cpu=0.01), ""),  # the load during the run decides
        (Machine(throttled=("sw_power_cap",)), ""),
        (Machine(throttled=("hw_slowdown", "sw_power_cap")), "throttled: hw_slowdown"),
        (Machine(gpus=(GpuState(0, "G", processes=(12,)),)), "on the GPU: 12"),
        (Machine(gpus_after=(GpuState(0, "G", processes=(13,)),)), "on the GPU: 13"),
    ):
        found = "; ".join(find_contamination(machine, 0.1))
        assert words in found
        assert bool(words) == bool(found)


def test_our_own_processes_are_not_others(tmp_path: Path) -> None:
    ours = subprocess.Popen(["cat"], stdin=subprocess.PIPE, env={**os.environ, ENV_ATTEMPT: "tag.1"})
    other = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    try:
        content = {"gpus": [{"name": "G", "processes": [{"pid": ours.pid}, {"pid": other.pid}, {"pid": 4_000_000}]}]}
        (tmp_path / "gpus.json").write_text(json.dumps(content))
        devices = Devices({"ASSAY_FAKE_NVML": str(tmp_path / "gpus.json")})
        assert load_gpus(devices, [0], "tag.1")[0].processes == (other.pid,)
        assert load_gpus(devices, [0])[0].processes == (ours.pid, other.pid, 4_000_000)
        assert load_gpus(devices, [5]) == ()
    finally:
        for process in (ours, other):
            process.communicate()


# ---------------------------------------------------------------- the load of others before, throttling during a run


@pytest.fixture
def stat(tmp_path: Path) -> Path:
    write_stat(tmp_path / "stat", 100, 100)
    return tmp_path / "stat"


def test_what_others_did_before_is_measured_from_the_last_mark_that_is_far_enough_back(stat: Path) -> None:
    outlook = ForeignLoad(2, str(stat))
    assert outlook.mark() is None
    write_stat(stat, 101, 100)  # busy for a second
    assert outlook.mark() == pytest.approx(1.0, abs=0.2)
    write_stat(stat, 101, 101)  # and then quiet: what was before counts no more
    assert outlook.mark() == pytest.approx(0.0, abs=0.01)
    outlook.forget()
    write_stat(stat, 200, 101)
    assert outlook.mark() is None, "what is forgotten is not asked"


def test_marks_that_are_close_together_reach_back_farther(stat: Path) -> None:
    """Trials of milliseconds, one after another."""
    outlook = ForeignLoad(2, str(stat))
    shares = []
    for number in range(1, 9):
        outlook.mark()
        write_stat(stat, 100 + 0.05 * number, 100 + 0.05 * number)
        shares.append(outlook.mark())
    assert shares[0] is None
    assert all(share == pytest.approx(0.5, abs=0.2) for share in shares[5:])


def test_our_own_time_and_that_of_our_children_is_no_load_of_others(
    stat: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = {resource.RUSAGE_SELF: 1.0, resource.RUSAGE_CHILDREN: 1.0}
    usage = lambda who: SimpleNamespace(ru_utime=used[who] / 2, ru_stime=used[who] / 2)  # noqa: E731
    monkeypatch.setattr("assay.bench.flow.machine.resource.getrusage", usage)
    outlook = ForeignLoad(2, str(stat))
    outlook.mark()
    used |= {resource.RUSAGE_SELF: 1.3, resource.RUSAGE_CHILDREN: 1.3}
    write_stat(stat, 100.6, 100.2)
    share = outlook.mark()
    assert share is not None
    assert share < 0.1  # nine tenths, if it counted as load of others
    assert load_own_cpu_s(resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN) == pytest.approx(2.6)


def test_where_the_kernel_does_not_tell_nothing_is_known(stat: Path) -> None:
    for content in (None, "", "cpu one two\n"):
        outlook = ForeignLoad(2, str(stat if content is not None else stat / "none"))
        stat.write_text(content or "")
        assert [outlook.mark(), outlook.mark()] == [None, None]


def test_throttling_of_any_moment_is_kept() -> None:
    machine = Machine(throttled=("sw_thermal",))
    after = (GpuState(0, "G", throttle=("hw_power_brake", "application_clocks")),)
    assert add_aftermath(machine, after, ["sw_power_cap"], 0.1).throttled == (
        "hw_power_brake",
        "sw_power_cap",
        "sw_thermal",
    )


# ---------------------------------------------------------------- AMD, by a stand-in for rocm-smi on PATH


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


def load_beside_nvidia_s(folder: Path) -> Machine:
    gpus = folder / "gpus.json"
    gpus.write_text('{"driver": "550.1", "gpus": [{"name": "Tesla V100"}]}')
    devices = Devices({"ASSAY_FAKE_NVML": str(gpus)})
    return load_machine(load_environment(folder, (), devices), devices, [0])


def test_the_machine_has_them_before_nvidia_s_and_it_is_asked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = load_beside_nvidia_s(tmp_path)
    assert (machine.accelerator_model, machine.accelerator_count) == ("Tesla V100", 1)
    asked = stand_in(tmp_path / "bin", monkeypatch, json.dumps(ANSWER))
    for _ in range(2):
        machine = load_beside_nvidia_s(tmp_path)
        assert (machine.accelerator_model, machine.accelerator_count) == ("AMD Instinct MI210", 2)
        assert machine.accelerator_driver == "6.16.13"
    assert asked.read_text().splitlines() == ["--showproductname --showdriverversion --json"]


def test_one_that_knows_nothing_or_cannot_be_started_leaves_nvidia_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, (answer, code) in enumerate((("", 1), ("no GPU was found", 0), ("{}", 0))):
        stand_in(tmp_path / f"bin{number}", monkeypatch, answer, code)
        assert load_accelerators() == Accelerators()
    machine = load_beside_nvidia_s(tmp_path)
    assert (machine.accelerator_model, machine.accelerator_driver) == ("Tesla V100", "550.1")
    stand_in(tmp_path / "bin", monkeypatch, "")
    (tmp_path / "bin" / "rocm-smi").write_text("#!/nonexistent/interpreter\n")
    assert load_accelerators() == Accelerators()


def test_names_are_spelt_in_many_ways() -> None:
    for fields, name in (
        ({"Card series": "MI100"}, "MI100"),
        ({"Card Series": "MI200", "Card Model": "0x7408"}, "MI200"),  # ROCm 6
        ({"Card series": "0x738c", "Card model": "Radeon Pro VII"}, "Radeon Pro VII"),
        ({"Device Name": "Navi 31", "Card Series": "N/A"}, "Navi 31"),
        ({"Card series": "0x738c"}, "0x738c"),  # a number is better than nothing
        ({}, "AMD GPU"),
        ("odd", "AMD GPU"),
    ):
        assert parse_accelerators(json.dumps({"card0": fields})).models == (name,)
    cards = {f"card{number}": {"Card series": f"GPU {number}"} for number in (10, 2, 0)}
    found = parse_accelerators("WARNING: AMD GPU device(s) is/are in a low-power state\n" + json.dumps(cards))
    assert (found.models, found.driver) == (("GPU 0", "GPU 2", "GPU 10"), ""), "in their order"
    for text in ("", "{", "[1]", "null", '{"system": 5}'):
        assert parse_accelerators(text) == Accelerators()


def test_a_quadro_before_others_is_the_screen_s() -> None:
    for names, model in (
        ([], ""),
        (["Tesla V100"], "Tesla V100"),
        (["Quadro P400", "Tesla V100", "Tesla T4"], "Tesla V100"),
        (["Quadro P400"], "Quadro P400"),
        (["Tesla V100", "Quadro P400"], "Tesla V100"),
    ):
        assert choose_model(names) == model
