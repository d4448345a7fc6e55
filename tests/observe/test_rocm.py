"""AMD's accelerators, by a stand-in for rocm-smi on PATH."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from assay.observe.devices import Devices
from assay.observe.environment import load_environment
from assay.observe.machine import choose_model, load_machine
from assay.observe.rocm import Accelerators, load_accelerators, parse_accelerators

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
