"""Programs that somebody else brings: where they are, and which version they are."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence

from assay.errors import InfrastructureError
from assay.models.backends.captured_output import Excerpt

VERSION_S = 10.0  # a program that takes longer to say its version is asked no further


def name_variable(program: str) -> str:
    """`torq-compile` → TORQ_COMPILE."""
    return re.sub(r"\W", "_", program).upper()


def find_program(program: str, env: Mapping[str, str], folder: str) -> list[str]:
    """The words to start it with. First the variable of its name, then PATH; a name with a slash is a path.

    The variable may hold a path, or a command with arguments of its own; a path in it is relative to where one stands,
    not to where the program will run. Raises InfrastructureError.
    """
    if "/" in program:
        path = os.path.normpath(os.path.join(folder, os.path.expanduser(program)))
        if not os.access(path, os.X_OK) or os.path.isdir(path):
            raise InfrastructureError(f"{program} is not a program: {path} {_reason(path)}")
        return [path]
    variable = name_variable(program)
    if env.get(variable):
        return _parse_variable(variable, env[variable], env)
    found = shutil.which(program, path=env.get("PATH"))
    if found is None:
        raise InfrastructureError(
            f"{program} is not to be found: ${variable} is not set, and it is not in PATH",
            f"install it, or export {variable}=/path/to/{program}",
        )
    return [os.path.abspath(found)]


def _parse_variable(variable: str, value: str, env: Mapping[str, str]) -> list[str]:
    words = [value] if os.path.isfile(value) else _split(value)
    found = shutil.which(words[0], path=env.get("PATH")) if words else None
    if found is None:
        raise InfrastructureError(f"${variable} is {value}, which {_reason(words[0] if words else value)}")
    return [os.path.abspath(found), *words[1:]]


def _split(value: str) -> list[str]:
    try:
        return shlex.split(value)
    except ValueError:
        return [value]


def _reason(path: str) -> str:
    if not os.path.exists(path):
        return "does not exist"
    return "is a folder" if os.path.isdir(path) else "may not be executed"


# ---------------------------------------------------------------- versions


def ask_version(words: Sequence[str], env: Mapping[str, str], cwd: str) -> str:
    """What it says when it is asked, in one line; nothing where it does not know the question, or takes long."""
    try:
        done = subprocess.run(
            words, cwd=cwd, env=dict(env), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            timeout=VERSION_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    if done.returncode:
        return ""
    excerpt = Excerpt(2000)
    excerpt.add(done.stdout)
    return " ".join(excerpt.render().split())[:500]
