"""Whatever is in a file: an answer or one clear message, never a crash report, a hang or a changed table."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests import fuzz
from tests.fuzz import FORMATS, Format

QUICK = 8  # inputs of each format in the quick suite
LONG = 20_000  # inputs in all
BY_PROCESS = 2_000  # of them through the real command
MOST_SHOWN = 5


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ASSAY_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("ASSAY_SLOTS_DIR", str(tmp_path / "slots"))
    found = tmp_path / "work"
    found.mkdir()
    return found


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_a_damaged_file_is_never_called_a_bug_of_ours(form: Format, folder: Path) -> None:
    _check(form, folder, QUICK, seed=1)


@pytest.mark.long
@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_twenty_thousand_damaged_files_are_never_called_bugs_of_ours(form: Format, folder: Path) -> None:
    seed = int(os.environ.get("ASSAY_FUZZ_SEED", "2"))
    _check(form, folder, (LONG - BY_PROCESS) // len(FORMATS) + 1, seed)


def _check(form: Format, folder: Path, count: int, seed: int) -> None:
    found = [f"{data[:300]!r}\n    {fault}" for data, fault in fuzz.run_inputs(form, folder, count, seed)]
    assert not found, f"{len(found)} of {count}:\n" + "\n".join(found[:MOST_SHOWN])


@pytest.mark.long
@pytest.mark.parametrize("form", [form for form in FORMATS if form.commands], ids=lambda form: form.name)
def test_two_thousand_damaged_files_through_the_real_command(form: Format, folder: Path) -> None:
    import random

    forms = [each for each in FORMATS if each.commands]
    file = form.build(folder)
    data, chance = file.read_bytes(), random.Random(f"{form.name} process")
    for _ in range(BY_PROCESS // len(forms) + 1):
        damaged = fuzz.mutate(data, chance)
        fuzz.put(file, damaged)
        command = [sys.executable, "-m", "assay", *chance.choice(form.commands)]
        done = subprocess.run(command, cwd=folder, capture_output=True, timeout=60, check=False)
        fault = fuzz.judge_answer(done.returncode, done.stderr.decode("utf-8", "replace"))
        assert fault is None, f"{command}\n{damaged[:300]!r}\n{fault}"
