"""The commands that a text, a page or a JSON document advises, and the effect that each must have when it is pasted."""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

from tests.finished_study import Bench

READING = ("ls", "sum", "show", "logs", "best", "diff", "report", "plot", "importance", "export", "index")
PRODUCTS = ("golden", "convergence", "bench", "model")
_PLACEHOLDER = re.compile(
    r"\b(STUDY|RUN|FILE|NAME|KEY|VALUE|PARAM|METRIC|DIR|FARM|TRIAL|STORE|METHOD|MODEL|COMMAND)\b|module\.Class|…"
)
_THERE = re.compile(r"cd ('(?:[^']|'\"'\"')*'|\S+) && (?=assay )")


def find_commands(text: str) -> list[str]:
    """Find commands in a text, XML or JSON. Each ends with its line, or with the backtick that it began with."""
    if text.lstrip().startswith("<?xml"):
        lines = html.unescape(re.sub(r"<[^>]*>", "\n", text)).splitlines()
    elif text.lstrip().startswith("<"):
        codes = re.findall(r"<(?:code|pre)[^>]*>(.*?)</(?:code|pre)>", text, re.DOTALL)
        lines = [html.unescape(re.sub(r"<[^>]*>", "", code)) for code in codes]
        rest = re.sub(r"<(code|pre|script|style|title|h1)\b.*?</\1>", "", text, flags=re.DOTALL)
        lines += html.unescape(re.sub(r"<[^>]*>", "\n", rest)).splitlines()
    elif text.lstrip()[:1] in "[{" and (texts := _find_texts(text)):
        lines = texts
    else:
        lines = text.splitlines()
    found = [command for line in lines for command in _find_in_line(line)]
    return list(dict.fromkeys(command for command in found if not _PLACEHOLDER.search(command)))


def _find_texts(text: str) -> list[str]:
    def walk(value: Any) -> list[str]:
        if isinstance(value, dict):
            return [each for inner in value.values() for each in walk(inner)]
        if isinstance(value, list):
            return [each for inner in value for each in walk(inner)]
        return [value] if isinstance(value, str) else []

    try:
        return walk(json.loads(text))
    except ValueError:
        return []


def _find_in_line(line: str) -> list[str]:
    line = re.sub(r"\\(\W|_)", r"\1", line) if re.search(r"\\[`_*]", line) else line  # Markdown's escapes
    quoted = re.findall(r"`(assay [a-z][^`]*)`", line)
    plain = re.search(rf"(?:^|: |next: )\s*((?:{_THERE.pattern})?assay [a-z]+\b.*)$", re.sub(r"`[^`]*`", "", line))
    return [*quoted, *([plain[1].strip()] if plain else [])]


def split(command: str) -> list[str]:
    """Split a command into words as bash does."""
    done = subprocess.run(["bash", "-c", f"printf '%s\\0' {command}"], capture_output=True, check=True)
    return [os.fsdecode(word) for word in done.stdout.split(b"\0")[:-1]]


def find_attempts(folder: Path) -> dict[str, int]:
    """Return by run directory how often it was started."""
    dirs = [path.parent for path in folder.rglob("run.json") if ".assay" not in path.parts]
    return {str(each): len(list(each.glob("lease.*"))) for each in dirs if not each.is_symlink()}


def load_params(run_dir: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(run_dir, "run.json").read_text())["spec"]["params"]
    return found


def find_roots(folder: Path) -> set[Path]:
    return {Path(each).parent.parent for each in find_attempts(folder)}


def paste(bench: Bench, command: str) -> subprocess.CompletedProcess[str]:
    """Execute what a golden, a benchmark or a model printed: it is neither a usage error nor a bug, and its runs are
    next to those of the program that printed it."""
    there = _THERE.match(command)
    if there:
        assert Path(*split(there[1])) == bench.folder
    program, *words = split(command[there.end() :] if there else command)
    assert program == "assay"
    before = find_roots(bench.folder)
    done = bench.assay(*words)
    shown = f"{command}\n{done.stdout}{done.stderr}"
    assert done.returncode in (0, 1, 3), shown
    assert "Traceback" not in shown, shown
    assert find_roots(bench.folder) == before or not before, f"it is another root\n{shown}"
    return done


def check_command(bench: Bench, command: str) -> None:
    """Check that a command works here and has the effect of its kind: a repeat repeats, and starts nothing new."""
    if _THERE.match(command) or command.split()[1] in PRODUCTS:
        paste(bench, command)
        return
    program, *words = split(command)
    assert program == "assay"
    before = find_attempts(bench.folder)
    if words[0] == "serve":
        _check_server(bench, words)
        return
    if words[0] in ("stop", "demo"):  # all runs have finished by now; a demonstration is a study of its own
        return
    done = (bench.read if words[0] in READING else bench.assay)(*words)
    shown = f"{command}\n{done.stdout}{done.stderr}"
    after = find_attempts(bench.folder)
    new = sorted(after.keys() - before.keys())
    again = sorted(each for each in before if after[each] > before[each])
    if words[0] == "rerun":
        names = [word for word in words[1:] if word not in ("--", "--old-code")]
        assignments = [word for word in names[1:] if re.match(r"[^/=]+=", word)]
        assert done.returncode in (0, 1), shown  # 1: the run failed again
        assert "/" in names[0]
        if assignments:
            assert again == [], shown
            assert len(new) <= 1, shown
            (parent,) = (each for each in before if each.endswith(f"/{os.path.normpath(names[0])}"))
            changes = dict(word.split("=", 1) for word in assignments)
            wanted = {name: changes.get(name, str(value)) for name, value in load_params(parent).items()}
            there = [each for each in after if Path(each).parent == Path(parent).parent]
            assert any({k: str(v) for k, v in load_params(each).items()} == wanted for each in new or there), shown
        else:
            assert new == [], shown
            assert [Path(each).name for each in again] == sorted(Path(name).name for name in names), shown
    elif words[0] in ("run", "runx", "mlrunner"):
        assert done.returncode in (0, 1), shown
        assert new == [], f"a new run: {new}\n{shown}"
        if "--retry" not in words:
            assert again == [], shown
    elif words[0] == "adopt":
        assert done.returncode == 0, shown
        assert (new, again) == ([], []), shown
    else:
        assert words[0] in READING, f"what {command} is to do is not known"
        assert done.returncode == 0, shown
        assert (new, again) == ([], []), shown


def _check_server(bench: Bench, words: list[str]) -> None:
    """Check the root alone: the tests of the server execute the command itself."""
    (root,) = (word.removeprefix("--root=") for word in words[1:])
    assert any(Path(each).parent.parent == Path(root) for each in find_attempts(bench.folder))
