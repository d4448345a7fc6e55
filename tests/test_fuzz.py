"""Whatever is in a file: an answer or one clear message, never a crash report, a hang or a changed table."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from tests import fuzz
from tests.fuzz import FORMATS, Format

Record = Callable[[str, object], None]

QUICK = 4  # inputs of each format in the quick suite, and two that are nested deeply
LONG = int(os.environ.get("INPUTS", "20000"))  # inputs in all
BY_PROCESS = LONG // 10  # of them through the real command
MOST_SHOWN = 5
EXCHANGED = ("store", "mlflow", "trackio", "wandb", "optuna", "runs, by a command")
SEARCHES = ("native study", "searching study", "search")  # with ranges, rules that stop runs, trials


def build_cases(forms: Iterable[Format] = FORMATS) -> list[Any]:
    return [pytest.param(form, id=form.name, marks=list_marks(form.name)) for form in forms]


def list_marks(name: str) -> list[pytest.MarkDecorator]:
    marks = [pytest.mark.needs(search=True)] if name in SEARCHES else []
    marks += [pytest.mark.needs(exchange=True)] if name.startswith(EXCHANGED) else []
    return marks + ([pytest.mark.needs(web=True, plots=True)] if name.endswith(", by a command") else [])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ASSAY_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("ASSAY_SLOTS_DIR", str(tmp_path / "slots"))
    found = tmp_path / "work"
    found.mkdir()
    return found


@pytest.mark.parametrize("form", build_cases())
def test_a_damaged_file_is_never_called_a_bug_of_ours(form: Format, folder: Path) -> None:
    _report(fuzz.run_inputs(form, folder, QUICK, 1), QUICK)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("form", build_cases())
def test_twenty_thousand_damaged_files_are_never_called_bugs_of_ours(
    form: Format, folder: Path, record_property: Record
) -> None:
    count = (LONG - BY_PROCESS) // len(FORMATS) + 1
    _report(fuzz.run_inputs(form, folder, count, _seed()), count, "damaged files", record_property)


def _seed() -> int:
    return int(os.environ.get("ASSAY_FUZZ_SEED", "2"))


def _report(
    faults: Iterable[tuple[bytes, str]], count: int, what: str = "", record: Record = lambda _name, _value: None
) -> None:
    found = [f"{data[:300]!r}\n    {fault}" for data, fault in faults]
    record(what, f"{len(found)} of {count}")
    assert not found, f"{len(found)} of {count}:\n" + "\n".join(found[:MOST_SHOWN])


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("form", build_cases(form for form in FORMATS if form.commands))
def test_two_thousand_damaged_files_through_the_real_command(
    form: Format, folder: Path, record_property: Record
) -> None:
    count = BY_PROCESS // sum(1 for each in FORMATS if each.commands) + 1
    faults = fuzz.run_processes(form, folder, count, _seed())
    _report(faults, count, "damaged files, through the real command", record_property)
