"""Runs a page of the documentation as its reader would: writes the files it shows, types its commands, compares.

A block that names a file after its language (```` ```yaml study.yml ````) is written. In a `console` block, each line that
begins with `$ ` is typed into one shell after the other, in one folder; the lines below it are what it must print, with
`…` for any text in a line, and a line `…` alone for any number of lines. A block without output lines accepts any
output. `cd FOLDER` holds for the commands below it.
A command must end with 0, unless `# exits with N` (or `N, M or K`) stands behind it; one with `# Ctrl-C …` is interrupted after some seconds.
A block after `<!-- not executed: REASON -->` is left out.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.fork_server import call_shell

_BLOCK = re.compile(
    r"^(<!-- not executed: .+? -->\n+)?```(\w+)(?: ([\w./-]*\.\w+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
_CODE = re.compile(r"\s+# (?:[^#]+; )?exits with ([\d, or]+)$")
_INTERRUPTED = re.compile(r"\s+# Ctrl-C.*$")
_SOON_S = 3


@dataclass(frozen=True)
class Step:
    command: str
    output: tuple[str, ...]
    codes: tuple[int, ...] = (0,)  # several: its result depends on the machine


def run_page(page: Path, folder: Path, timeout_s: float = 120, programs: str = os.path.dirname(sys.executable)) -> None:
    """Raises AssertionError with the command, what the page shows and what was printed.

    `programs` is the folder that `assay` and `python` are found in.
    """
    env = _build_environment(programs, folder.with_name(f"{folder.name}.slots"))
    here, whole = folder, page.read_text(encoding="utf-8")
    may_fork = True
    for left_out, language, name, text in _BLOCK.findall(whole):
        if left_out:
            continue
        if name:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
        elif language == "console":
            for step in parse_steps(text):
                may_fork = may_fork and "--detach" not in step.command  # no reader types the next command as fast
                _run(step, here, env, timeout_s, may_fork=may_fork)
                if step.command.startswith("cd "):
                    here /= shlex.split(step.command, comments=True)[1]


def parse_steps(text: str) -> list[Step]:
    steps: list[Step] = []
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, *output = part.rstrip("\n").split("\n")
        while command.endswith("\\") and output:
            command += "\n" + output.pop(0).removeprefix("> ")
        code = _CODE.search(command)
        command = _CODE.sub("", command)
        if _INTERRUPTED.search(command):  # the commands of Assay end with 130, and others by the signal
            command = f"timeout -s INT {_SOON_S} env {_INTERRUPTED.sub('', command)}; [[ $? =~ ^(0|124|130)$ ]]"
        codes = tuple(map(int, re.findall(r"\d+", code[1]))) if code else (0,)
        steps.append(Step(command, tuple(output), codes))
    return steps


def matches(shown: tuple[str, ...], printed: str) -> bool:
    """Whether the output is what a page shows. How long something took, as 0:02, differs from one time to the next."""
    texts = [re.sub(r"\b\d+:\d\d\b", r"\\d+:\\d\\d", ".*".join(map(re.escape, line.split("…")))) for line in shown]
    lines = ["(?:.*\n)*" if text == ".*" else f"{text}\n" for text in texts]
    text = "".join(f"{line.rstrip()}\n" for line in printed.splitlines())
    return re.fullmatch("".join(lines), text) is not None


def _run(step: Step, folder: Path, env: dict[str, str], timeout_s: float, *, may_fork: bool) -> None:
    done = call_shell(step.command, cwd=folder, env=env, timeout=timeout_s, is_merged=True, may_fork=may_fork)
    printed = done.stdout
    assert done.returncode in step.codes, f"$ {step.command}\nended with {done.returncode}:\n{printed}"
    shown = "\n".join(step.output)
    assert not step.output or matches(step.output, printed), f"$ {step.command}\nshown:\n{shown}\nprinted:\n{printed}"


def _build_environment(programs: str, slots: Path) -> dict[str, str]:
    """HOME is that of the test session; the slots are the page's own: what other tests run would be named."""
    path = f"{programs}:{os.environ.get('PATH', os.defpath)}"
    return {**os.environ, "PATH": path, "NO_COLOR": "1", "ASSAY_SLOTS_DIR": str(slots)}
