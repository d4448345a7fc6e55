"""The frame of the project: versions are pinned plainly, extras are complete, the Makefile says what it can."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from assay.start.demo import NEEDS

TOP = Path(__file__).parent.parent
PROJECT = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def requirement_name(requirement: str) -> str:
    match = re.match(r"[\w.-]+", requirement)
    assert match is not None
    return canonical(match[0])


def pins() -> dict[str, str]:
    lines = (TOP / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonical(name): version for name, version in pairs}


def test_constraints_are_plain_pins() -> None:
    for line in (TOP / "constraints.txt").read_text().splitlines():
        assert line.startswith("#") or re.fullmatch(r"[\w.-]+==[\w.+!]+", line), line


def test_everything_that_is_asked_for_is_pinned() -> None:
    asked = [*PROJECT["dependencies"], *(one for extra in EXTRAS.values() for one in extra)]
    assert {requirement_name(one) for one in asked} - {"assay"} - pins().keys() == set()


def test_the_extra_all_is_every_extra_of_a_user() -> None:
    (everything,) = EXTRAS["all"]
    named = re.fullmatch(r"assay\[(.*)\]", everything)
    assert named is not None
    assert set(named[1].split(",")) == EXTRAS.keys() - {"all", "dev"}


def test_a_plain_install_is_small() -> None:
    names = {requirement_name(one) for one in PROJECT["dependencies"]}
    assert names == {"click", "jinja2", "nvidia-ml-py", "pyyaml"}


def test_the_demo_s_extra_is_all_that_the_demo_needs() -> None:
    """`make demo` installs this extra and nothing else."""
    assert {requirement_name(one) for one in EXTRAS["demo"]} == set(NEEDS)


def test_torch_is_for_developers_only_and_pinned() -> None:
    """An open requirement would bring gigabytes of drivers; users bring their own torch."""
    asking = {name: [one for one in asked if requirement_name(one) == "torch"] for name, asked in EXTRAS.items()}
    assert {name: found for name, found in asking.items() if found} == {"dev": ["torch==2.13.0"]}
    assert pins()["torch"] == "2.13.0"


@pytest.mark.parametrize("arguments", [[], ["help"]])
def test_make_lists_its_targets(arguments: list[str]) -> None:
    result = subprocess.run(["make", *arguments], cwd=TOP, capture_output=True, text=True, check=True, timeout=60)
    listed = set(re.findall(r"^  make ([a-z-]+)", result.stdout, re.MULTILINE))
    names = "bench clean demo docs help lint setup test test-long test-services web"
    assert sorted(listed) == names.split()


def test_make_says_plainly_when_there_is_no_python(tmp_path: Path) -> None:
    """In a copy, with a Python that is too old: nothing is made, and the message says what to do."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_bytes((TOP / name).read_bytes())
    old = tmp_path / "python3.8"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    argv = ["make", "setup", f"PYTHON={old}"]
    result = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode != 0
    assert "Assay needs Python 3.11.4 or newer" in result.stderr
    assert not (tmp_path / ".venv").exists()


def test_continuous_integration_calls_make() -> None:
    path = TOP / ".ci" / "run"
    assert os.access(path, os.X_OK)
    assert "make lint test" in path.read_text()


def test_no_address_or_machine_path_in_the_frame() -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt", ".ci/run", "benchmarks/peers.txt", "CONTRIBUTING.md"):
        text = (TOP / name).read_text()
        assert not re.search(r"https?://|file://|index-url|/home/|/root/", text), name
