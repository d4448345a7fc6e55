"""Look before you leap: what can be known to fail is refused before anything is made."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator

from assay.errors import ConfigError
from assay.study.locations import check_writable
from assay.study.prepared import Prepared
from assay.values.run import SHELL_WORDS, Plan
from assay.values.study import Farm, Problem, Study

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=\S*")
_PLAIN_WORD = re.compile(r"[\w./+@%,:-]+")
# and those whose real program stands further on, or is bash's own
_NOT_TOLD = SHELL_WORDS | {"!", ":", "[", "[[", "echo", "false", "printf", "pwd", "test", "true", "{", "}"}


def check_prepared(prepared: Prepared) -> None:
    """Everything that would be refused anyway, before a door says where the runs go."""
    check_writable(prepared.place, prepared.study.dialect)
    check_executables(prepared.study, prepared.plan)
    if prepared.farm is not None:
        check_farm(prepared.farm, prepared.study)


def check_executables(study: Study, plan: Plan) -> None:
    """Refuse a command whose program is plainly missing: one problem for each program."""
    problems = {}
    path = dict(study.env).get("PATH")
    for program, name in _programs(plan):
        if program not in problems and not _is_there(program, study.folder, path):
            position = next((template.position for template in study.commands if template.name == name), None)
            hint = "install it, correct the name, or give its full path"
            key = {"runx": "CMD", "mlrunner": f"template.{name}"}.get(study.dialect, f"command {name}")
            problems[program] = Problem(f"the program {program!r} was not found", key, position, hint)
    if problems:
        raise ConfigError(list(problems.values()))


def check_farm(farm: Farm, study: Study) -> None:
    """Refuse a submit command whose program is plainly missing: nothing could be submitted."""
    from assay.execute.farm import find_program

    program = find_program(farm)
    if program is None or program in _NOT_TOLD or _is_there(program, os.getcwd(), os.environ.get("PATH")):
        return
    where = f"{farm.name}: SUBMIT_CMD" if study.dialect == "runx" else f"farms.{farm.name}"
    hint = "install it, correct the name, or give its full path; " + (
        "`-i` runs here, without a farm" if study.dialect == "runx" else "`--on local` runs here, without a farm"
    )
    raise ConfigError([Problem(f"the program {program!r} that submits was not found", where, farm.position, hint)])


def _programs(plan: Plan) -> Iterator[tuple[str, str]]:
    seen = set()
    for spec in plan.runs:
        for place, command in enumerate(spec.commands):
            program = first_program(command.text)
            if program and place and os.sep in program and not os.path.isabs(program):
                continue  # an earlier command may build it
            if program and (program, command.name) not in seen:
                seen.add((program, command.name))
                yield program, command.name


def first_program(text: str) -> str | None:
    """The program that a command starts with; None where only the shell can tell."""
    for word in text.split():
        if _ASSIGNMENT.fullmatch(word):
            continue
        return word if _PLAIN_WORD.fullmatch(word) and word not in _NOT_TOLD else None
    return None


def _is_there(program: str, folder: str, path: str | None) -> bool:
    if os.sep in program:
        return os.access(os.path.join(folder, program), os.X_OK)
    return shutil.which(program, path=path) is not None
