"""What is plainly missing is refused before anything is made; what only the shell can know is left to it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    ],
)
def test_the_program_of_a_command(text: str, program: str | None) -> None:
    assert first_program(text) == program


@given(st.text())
def test_any_text_has_a_plain_program_or_none(text: str) -> None:
    program = first_program(text)
    assert program is None or (program in text.split() and not set(program) & set("$`'\"(){}<>|&;*?~"))


def study_of(folder: Path, env: tuple[tuple[str, str], ...] = (), names: tuple[str, ...] = ("train",)) -> Study:
    commands = tuple(
        CommandTemplate(name, (), position=Position("study.yml", 2 + i, 3)) for i, name in enumerate(names)
    )
    return Study("study", "native", "study.yml", str(folder), commands, (), env=env)


def check(folder: Path, *texts: str, env: tuple[tuple[str, str], ...] = (), runs: int = 1) -> None:
    names = ("train", "test", "more")[: len(texts)]
    study = study_of(folder, env, names)
    commands = tuple(Command(name, text) for name, text in zip(names, texts, strict=True))
    plan = Plan(study, tuple(RunSpec(f"{n}", f"{n}", {}, commands) for n in range(runs)))
    check_executables(study, plan)


def test_what_is_there_passes(tmp_path: Path) -> None:
    script = tmp_path / "go.sh"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    check(tmp_path, "bash x", "./go.sh", f"{script} y")


def test_a_missing_program_is_named_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        check(tmp_path, "bash x", "no-such-program --x", runs=50)
    assert len(caught.value.problems) == 1  # once, not for each run
    text = caught.value.render()
    assert "study.yml:3:3 command test: the program 'no-such-program' was not found" in text
    assert "give its full path" in text


def test_every_missing_program_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        check(tmp_path, "nope1 x", "nope2 x", "nope1 y")
    assert len(caught.value.problems) == 2


def test_a_script_that_may_not_be_executed(tmp_path: Path) -> None:
    (tmp_path / "go.sh").write_text("#!/bin/sh\n")
    with pytest.raises(ConfigError, match=r"go\.sh"):
        check(tmp_path, "./go.sh")


def test_what_an_earlier_command_builds_is_not_missing_yet(tmp_path: Path) -> None:
    check(tmp_path, "make", "./built --x") if os.path.exists("/usr/bin/make") else check(
        tmp_path, "bash make.sh", "./built --x"
    )
    with pytest.raises(ConfigError, match="built"):
        check(tmp_path, "./built --x")


def test_the_path_of_the_study_counts(tmp_path: Path) -> None:
    tool = tmp_path / "bin" / "my-tool"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    check(tmp_path, "my-tool", env=(("PATH", str(tool.parent)),))
    with pytest.raises(ConfigError, match="my-tool"):
        check(tmp_path, "my-tool")
