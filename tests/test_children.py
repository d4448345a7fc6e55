"""`python -m assay child NAME`: what job.sh starts."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from assay import __main__
from assay.__main__ import CHILDREN

SOURCE = Path(__main__.__file__).parent

MODULE = """
def lists():
    import sys
    print(sorted({"click", "yaml"} & set(sys.modules)), sys.argv[1:3])
"""


def call_child(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    argv, null = [sys.executable, "-m", "assay", "child", *words], subprocess.DEVNULL
    return subprocess.run(argv, cwd=folder, stdin=null, capture_output=True, text=True, timeout=120, check=False)


def test_only_the_process_of_a_benchmark_loads_what_is_in_the_working_folder() -> None:
    """A `json.py` of the user's would be loaded as ours; a benchmark measures the code that is there."""
    lines = [line for path in SOURCE.rglob("*.py") for line in path.read_text().splitlines() if '"-m", "assay"' in line]
    assert [line for line in lines if '"-P", "-m"' not in line and '"child", "bench"]' not in line] == []


@pytest.mark.parametrize("name", sorted(CHILDREN))
def test_each_child_has_a_program(name: str) -> None:
    module, function = CHILDREN[name].split(":")
    assert callable(getattr(importlib.import_module(module), function))


@pytest.mark.needs(bench=True)
@pytest.mark.parametrize("words", [[], ["banch"]])
def test_a_child_that_does_not_exist(words: list[str], tmp_path: Path) -> None:
    done = call_child(*words, folder=tmp_path)
    assert done.returncode == 2
    assert "bench" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.needs(bench=True, models=True)
@pytest.mark.parametrize(
    "words",
    [
        *([name] for name in ("bench-trial", "model", "worker")),
        *([name, "x", "y", "z"] for name in ("readings", "bench-trial", "model", "worker")),
        *(["model", ".", text] for text in ("{", "{}", "[]", "none.json")),
        *(["model", "none", "{}"], ["bench-trial", ".", ".", "x", "true"], ["bench-trial", "none", ".", "-", "true"]),
        *(["worker", "99"], ["worker", "-1"], ["readings", "1", "x", "tag.1"]),
    ],
)
def test_arguments_that_assay_does_not_give(words: list[str], tmp_path: Path) -> None:
    done = call_child(*words, folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"assay: Assay starts this process itself, as `python -m assay child {words[0]} ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.needs(bench=True)
def test_a_benchmark_sees_its_own_command_line_and_nothing_of_ours(tmp_path: Path) -> None:
    """No click, no yaml: the program under test may bring its own."""
    (tmp_path / "mod.py").write_text(MODULE)
    done = call_child("bench", "run", "mod.lists", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "[] ['run', 'mod.lists']"
