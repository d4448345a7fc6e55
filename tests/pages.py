"""Runs a page of the documentation as its reader would: writes the files it shows, types its commands, compares.

A block that names a file after its language (```` ```yaml study.yml ````) is written. In a `console` block, each line that
begins with `$ ` is typed into one shell after the other, in one folder; the lines below it are what it must print, with
`…` for any text in a line, and a line `…` alone for any number of lines. A block without output lines accepts any
output. `cd FOLDER` holds for the commands below it.
A command must end with 0, unless `# exits with N` (or `N, M or K`) stands behind it; one with `# Ctrl-C …` is interrupted when its
first run has begun, or with `# Ctrl-C after the first run` has finished.
A block after `<!-- not executed: REASON -->` is left out.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.fork_server import call_python, call_shell

_BLOCK = re.compile(
    r"^(<!-- not executed: .+? -->\n+)?```(\w+)(?: ([\w./-]*\.\w+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
_CODE = re.compile(r"\s+# (?:[^#]+; )?exits with ([\d, or]+)$")
_INTERRUPTED = re.compile(r"\s+# Ctrl-C( after the first run)?.*$")
_INTERRUPT = """set -m; printed=$(mktemp); env {command} > $printed 2>&1 &
until grep -q '^{line} ' $printed || ! kill -0 $!; do sleep 0.05; done
kill -INT $!; {{ wait $!; }} 2> /dev/null; code=$?; cat $printed; rm $printed; [[ $code =~ ^(0|130)$ ]]"""
_TYPING_S = 0.1  # the time that a reader needs at least for the next command, while a supervisor goes on
_SETTINGS = re.compile(r"env ((?:\w+=[^\s'\"]+ )+)(?=assay )")
_FILTERED = re.compile(r"(assay [^|&;<>$]+) \| ((?:tail|grep) [\w -]+)")
_SCRIPT = re.compile(r"python (\w+\.py(?: [\w./=-]+)*)")


@dataclass(frozen=True)
class Step:
    command: str
    output: tuple[str, ...]
    codes: tuple[int, ...] = (0,)  # several: its result depends on the machine


def run_page(page: Path, folder: Path, timeout_s: float = 600, programs: str = os.path.dirname(sys.executable)) -> None:
    """Run a page. Raises AssertionError with the command, what the page shows and what was printed.

    `programs` is the folder in which `assay` and `python` are found.
    """
    path, slots = f"{programs}:{os.environ.get('PATH', os.defpath)}", folder.with_name(f"{folder.name}.slots")
    env = {**os.environ, "PATH": path, "NO_COLOR": "1", "ASSAY_SLOTS_DIR": str(slots)}  # no slots of other tests
    here, whole = folder, page.read_text(encoding="utf-8")
    is_detached = False
    for left_out, language, name, text in _BLOCK.findall(whole):
        if left_out:
            continue
        if name:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
        elif language == "console":
            for step in parse_steps(text):
                time.sleep(_TYPING_S if is_detached else 0)
                _run(step, here, env, timeout_s)
                is_detached = is_detached or "--detach" in step.command
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
        if interrupted := _INTERRUPTED.search(command):
            line = "finished" if interrupted[1] else "started"
            command = _INTERRUPT.format(command=command[: interrupted.start()], line=line)
        codes = tuple(map(int, re.findall(r"\d+", code[1]))) if code else (0,)
        steps.append(Step(command, tuple(output), codes))
    return steps


def matches(shown: tuple[str, ...], printed: str) -> bool:
    """Whether the output is what a page shows. Durations, as 0:02, differ from one time to the next."""
    texts = [re.sub(r"\b\d+:\d\d\b", r"\\d+:\\d\\d", ".*".join(map(re.escape, line.split("…")))) for line in shown]
    lines = ["(?:.*\n)*" if text == ".*" else f"{text}\n" for text in texts]
    text = "".join(f"{line.rstrip()}\n" for line in printed.splitlines())
    return re.fullmatch("".join(lines), text) is not None


def _run(step: Step, folder: Path, env: dict[str, str], timeout_s: float) -> None:
    code, printed = _call(step.command, folder, env, timeout_s)
    assert code in step.codes, f"$ {step.command}\nended with {code}:\n{printed}"
    shown = "\n".join(step.output)
    assert not step.output or matches(step.output, printed), f"$ {step.command}\nshown:\n{shown}\nprinted:\n{printed}"


def _call(command: str, folder: Path, env: dict[str, str], timeout_s: float) -> tuple[int, str]:
    """The exit code and the output of a line as bash executes it; scripts, and our commands with variables before or a
    filter after them, are forked as plain commands are."""
    if settings := _SETTINGS.match(command):
        command = command[settings.end() :]
        pairs = (text.replace("$PWD", str(folder)).partition("=") for text in settings[1].split())
        env = env | {name: value.replace("$PATH", env["PATH"]) for name, _, value in pairs}
    if script := _SCRIPT.fullmatch(command):
        done = call_python(script[1].split(), cwd=folder, env=env, timeout=timeout_s, is_merged=True)
    elif filtered := _FILTERED.fullmatch(command):
        first = call_shell(filtered[1], cwd=folder, env=env, timeout=timeout_s)
        last = subprocess.run(filtered[2].split(), input=first.stdout, stdout=subprocess.PIPE, text=True, check=False)
        return last.returncode, first.stderr + last.stdout
    else:
        done = call_shell(command, cwd=folder, env=env, timeout=timeout_s, is_merged=True)
    return done.returncode, done.stdout
