"""Stand-ins for docker, gcloud and the like: they write down how they were called and give prepared answers.

PATH holds nothing else while they are in use, so that no test can reach a real one.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.command_line import Cli, Result

from assay.cli.main import run

SCRIPT = """#!{python} -S
import json, os, sys
here, name = os.path.split(os.path.abspath(__file__))
argv = [name, *sys.argv[1:]]
with open(os.path.join(here, "calls.jsonl"), "a") as file:
    file.write(json.dumps({{"argv": argv, "key": os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")}}) + "\\n")
path = os.path.join(here, name + ".json")
with open(path) as file:
    answers = json.load(file)
for answer in answers:
    if answer["to"] in " ".join(argv) and answer["times"]:
        answer["times"] -= 1
        with open(path, "w") as file:
            json.dump(answers, file)
        os.write(1, answer["out"].encode())
        os.write(2, answer["err"].encode())
        sys.exit(answer["code"])
"""


class StandIns:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self._log = folder / "calls.jsonl"

    def put(self, *names: str) -> StandIns:
        for name in names:
            (self.folder / f"{name}.json").write_text("[]")
            (self.folder / name).write_text(SCRIPT.format(python=sys.executable))
            (self.folder / name).chmod(0o755)
        return self

    def answer(self, name: str, to: str = "", *, code: int = 0, out: str = "", err: str = "", times: int = -1) -> None:
        """What `name` says to a call that has `to` in it; answers given later come later."""
        path = self.folder / f"{name}.json"
        answers = [*json.loads(path.read_text()), {"to": to, "code": code, "out": out, "err": err, "times": times}]
        path.write_text(json.dumps(answers))

    @property
    def calls(self) -> list[list[str]]:
        return [record["argv"] for record in self.records]

    @property
    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._log.read_text().splitlines()] if self._log.exists() else []


def use_stand_ins(folder: Path, monkeypatch: pytest.MonkeyPatch, *names: str) -> StandIns:
    monkeypatch.setenv("PATH", str(folder / "bin"))
    return StandIns(folder / "bin").put(*names)


def walk(folder: Path) -> list[str]:
    """Every file and folder below, as a witness that nothing was written."""
    return sorted(os.path.join(base, name) for base, folders, names in os.walk(folder) for name in [*folders, *names])


def build_call(capfd: pytest.CaptureFixture[str], *words: str) -> Cli:
    """Calls `assay WORDS …` in this process."""

    def call(*arguments: str) -> Result:
        capfd.readouterr()
        return Result(run([*words, *arguments]), *capfd.readouterr())

    return call
