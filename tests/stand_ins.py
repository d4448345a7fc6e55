"""Stand-ins for docker, gcloud and the like: they record how they were called and give prepared answers.

PATH contains nothing else while they are in use, so that no test can reach a real one. They are shell scripts, which
start in a tenth of the time of Python.
"""

from __future__ import annotations

import os
from pathlib import Path
from shlex import quote

import pytest
from tests.command_line import Cli, Result

from assay.cli.main import run

ANSWER = """read left < {counter}
case "{name} $*:$left" in *:0) ;; *{to}*)
  echo $((left - 1)) > {counter}; printf %s {out}; printf %s {err} >&2; exit {code};;
esac
"""


def put_programs(folder: Path, **texts: str) -> str:
    """Write shell scripts into a folder; return a PATH in which they are found first."""
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text if text.startswith("#!") else f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


class StandIns:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self._log = folder / "calls"

    def put(self, *names: str) -> StandIns:
        for name in names:
            head = f"#!/bin/sh\nprintf '%s\\0' $(($# + 1)) {name} \"$@\" >> {quote(str(self._log))}\n"
            (self.folder / name).write_text(head)
            (self.folder / name).chmod(0o755)
        return self

    def answer(self, name: str, to: str = "", *, code: int = 0, out: str = "", err: str = "", times: int = -1) -> None:
        """Prepare what `name` answers to calls that have `to` in them; earlier answers are used first."""
        path = self.folder / name
        counter = self.folder / f"{name}-{path.stat().st_size}"
        counter.write_text(f"{times}\n")
        words = {"counter": quote(str(counter)), "to": quote(to), "out": quote(out), "err": quote(err)}
        with path.open("a") as file:
            file.write(ANSWER.format(name=name, code=code, **words))

    @property
    def calls(self) -> list[list[str]]:
        words = self._log.read_text().split("\0")[:-1] if self._log.exists() else []
        found = []
        while words:
            count = int(words[0])
            found.append(words[1 : count + 1])
            words = words[count + 1 :]
        return found


def use_stand_ins(folder: Path, monkeypatch: pytest.MonkeyPatch, *names: str) -> StandIns:
    monkeypatch.setenv("PATH", str(folder / "bin"))
    return StandIns(folder / "bin").put(*names)


def walk(folder: Path) -> list[str]:
    """List every file and folder below, to show that nothing was written."""
    return sorted(os.path.join(base, name) for base, folders, names in os.walk(folder) for name in [*folders, *names])


def build_call(capfd: pytest.CaptureFixture[str], *words: str) -> Cli:
    """Return a function that calls `assay WORDS …` in this process; `code` is what it has to return."""

    def call(*arguments: str, code: int | None = None) -> Result:
        capfd.readouterr()
        result = Result(run([*words, *arguments]), *capfd.readouterr())
        assert code in (None, result.code), result.err
        return result

    return call
