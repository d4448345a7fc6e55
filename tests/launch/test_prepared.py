"""A file that is certainly missing is refused before anything is made; what only the shell can know is left to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.errors import ConfigError
from assay.launch.prepared import check_executables, first_program
from assay.values.run import Command, Plan, RunSpec
from assay.values.study import CommandTemplate, Position, Study


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("python train.py", "python"),
        ("  python3.11   -m x", "python3.11"),
        ("CUDA_VISIBLE_DEVICES=1 A=b python train.py", "python"),
        ("./train.sh --x", "./train.sh"),
        ("/usr/bin/env python", "/usr/bin/env"),
        ("g++ x.cc", "g++"),
        # left to the shell
        ("cd x && python train.py", None),
        ("if true; then x; fi", None),
        ("$PYTHON train.py", None),
        ('"my program" x', None),
        ("'a b'/c", None),
        ("(echo)", None),
        ("{ x; }", None),
        ("~/bin/x", None),
        ("echo;ls", None),
        ("A=1", None),
        ("", None),
        ("# a comment", None),
        ("${ASSAY_RUN_DIR}/x", None),
        ("a`b`", None),
        ("x*y?z", None),
        ("\x00|&<>", None),
    ],
)
def test_the_program_of_a_command(text: str, program: str | None) -> None:
    assert first_program(text) == program


def check(folder: Path, *texts: str, env: tuple[tuple[str, str], ...] = (), runs: int = 1) -> None:
    names = ("train", "test", "more")[: len(texts)]
    positions = [Position("study.yml", 2 + i, 3) for i in range(len(names))]
    known = tuple(CommandTemplate(name, (), position=at) for name, at in zip(names, positions, strict=True))
    study = Study("study", "native", "study.yml", str(folder), known, (), env=env)
    commands = tuple(Command(name, text) for name, text in zip(names, texts, strict=True))
    plan = Plan(study, tuple(RunSpec(f"{n}", f"{n}", {}, commands) for n in range(runs)))
    check_executables(study, plan)


def make_program(path: Path) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_what_is_there_or_may_be_built_passes(tmp_path: Path) -> None:
    script = make_program(tmp_path / "go.sh")
    check(tmp_path, "bash x", "./go.sh", f"{script} y")
    check(tmp_path, "bash make.sh", "./built --x")
    tool = make_program(tmp_path / "bin" / "my-tool")
    check(tmp_path, "my-tool", env=(("PATH", str(tool.parent)),))
    with pytest.raises(ConfigError, match="my-tool"):
        check(tmp_path, "my-tool")
    with pytest.raises(ConfigError, match="built"):
        check(tmp_path, "./built --x")
    script.chmod(0o644)
    with pytest.raises(ConfigError, match=r"go\.sh"):
        check(tmp_path, "./go.sh")


def test_every_missing_program_is_named_once_with_its_position(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        check(tmp_path, "nope1 x", "no-such-program --x", "nope1 y", runs=50)
    assert len(caught.value.problems) == 2
    text = caught.value.render()
    assert "study.yml:3:3 command test: the program 'no-such-program' was not found" in text
    assert "give its full path" in text
