"""What other programs and people's habits depend on, as files: help texts, plans, ids and names of runs, job.sh, tables,
the description of the JSON interface.

A difference is a decision: CHANGELOG.md names it with its reason, and

    python -m pytest tests/test_frozen.py --freeze

writes the files again. Ids, names and job.sh do not change.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import click
import pytest

from assay.cli.main import build_cli, run

TOP = Path(__file__).parent.parent
FROZEN = Path(__file__).parent / "frozen"

Compare = Callable[[str, str], None]  # name of a file, and its text


class File(NamedTuple):
    folder: Path
    name: str
    command: str = "run"

    @property
    def title(self) -> str:
        return "-".join((*self.folder.relative_to(TOP).parts[-2:], Path(self.name).stem))


FILES = [
    File(TOP / "examples/native", "study.yml"),
    File(TOP / "examples/charlm", "sweep.yml"),
    File(TOP / "examples/runx", "sweep.yml", "runx"),
    File(TOP / "examples/mlrunner", "params.yaml", "mlrunner"),
    File(TOP / "tests/formats/originals/runx", "sweep.yml", "runx"),
    File(TOP / "tests/formats/originals/mlrunner", "params.yaml", "mlrunner"),
    *(File(FROZEN / "studies", name) for name in ("farm.yml", "search.yml", "subset.yml", "gpus.runx.yml")),
]
EXECUTED = [file for file in FILES if file.name not in ("farm.yml", "search.yml", "gpus.runx.yml")]
_KEPT_RUNS = ("logs", "output", "runs")  # results that stand beside an original's file


@pytest.fixture
def frozen(request: pytest.FixtureRequest) -> Compare:
    def compare(name: str, text: str) -> None:
        path = FROZEN / name
        if request.config.getoption("--freeze"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert path.read_text().splitlines() == text.splitlines()

    return compare


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, whose `python` does nothing; names that are drawn are always the same."""
    folder = tmp_path / "here"
    (folder / "bin").mkdir(parents=True)
    stub = folder / "bin" / "python"
    stub.write_text("#!/bin/sh\nexit 0\n")
    stub.chmod(0o755)
    drawn = random.Random
    monkeypatch.setattr(random, "Random", lambda *seed: drawn(*(seed or (1,))))
    monkeypatch.setenv("PATH", f"{stub.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("COLUMNS", "200")
    return folder


def enter(file: File, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ignore = shutil.ignore_patterns("__pycache__", *_KEPT_RUNS)
    shutil.copytree(file.folder, here / "study", ignore=ignore)
    monkeypatch.chdir(here / "study")


def clean(text: str, here: Path) -> str:
    """Without what differs from call to call: folders, dates, times, numbers of this process."""
    for folder, name in ((str(here / "study"), "$HERE"), (str(here), "$TMP"), (str(TOP), "$TOP")):
        text = text.replace(folder, name)
    text = re.sub(r"\d{4}\.\d\d\.\d\d_\d\d\.\d\d(\.\d\d)?", "DATE", text)
    text = re.sub(r"\b\d{8}\.\d{6}\b", "DATE", text)
    return re.sub(r"ASSAY_ATTEMPT=\w+", "ASSAY_ATTEMPT=UID", text)


def list_commands(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from list_commands(found, (*path, name))


def render_help(path: tuple[str, ...], command: click.Command) -> str:
    parent: click.Context | None = None
    for word in path[:-1]:
        parent = click.Context(click.Group(word), info_name=word, parent=parent)
    context = click.Context(command, info_name=path[-1], parent=parent, max_content_width=120, terminal_width=120)
    return f"==== {' '.join(path)}\n{command.get_help(context)}\n"


def test_help_texts(frozen: Compare) -> None:
    found = list(list_commands(build_cli(), ("assay",)))
    assert len(found) > 60
    frozen("help.txt", "\n".join(render_help(path, command) for path, command in found))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.title)
def test_the_plan_of_a_file(
    file: File, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], frozen: Compare
) -> None:
    enter(file, here, monkeypatch)
    assert run(["run", file.name, "-n", "--json"]) == 0
    rows = capsys.readouterr().out
    assert json.loads(rows)
    assert run(["run", file.name, "-n"]) == 0
    lines = capsys.readouterr().out
    if file.command != "run":
        words = ["mlrunner", "-y", file.name, "--dry-run"] if file.command == "mlrunner" else ["runx", file.name, "-n"]
        assert run(words) == 0
        lines += f"==== {file.command}\n{capsys.readouterr().out}"
    frozen(f"plans/{file.title}.txt", clean(f"{lines}==== json\n{rows}", here))


@pytest.mark.parametrize("file", EXECUTED, ids=lambda file: file.title)
def test_the_runs_of_a_file(
    file: File, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], frozen: Compare
) -> None:
    enter(file, here, monkeypatch)
    run(["run", file.name, "-j", "2", "--quiet"])
    capsys.readouterr()
    found = sorted((here / "study").rglob("job.sh"))
    assert found
    frozen(f"jobs/{file.title}.txt", "\n".join(clean(render_run(path.parent), here) for path in found))


def render_run(folder: Path) -> str:
    """Folder, the part of run.json that the plan decides, and job.sh; its last part, equal in all runs, as a hash."""
    record = json.loads((folder / "run.json").read_text())
    kept = {key: record[key] for key in ("study", "source", "workdir", "dialect", "spec")}
    job, mark, rest = (folder / "job.sh").read_text().partition("#:on-demand")
    end = f"{mark} {blake2b(rest.encode(), digest_size=8).hexdigest()}\n" if mark else ""
    return f"==== {folder.name}\n{json.dumps(kept)}\n{job}{end}"


@pytest.mark.parametrize("tool", ["runx", "mlrunner"])
def test_tables_of_the_originals(
    tool: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], frozen: Compare
) -> None:
    shutil.copytree(TOP / "tests/formats/originals" / tool, here / "study")
    monkeypatch.chdir(here / "study")
    folder = {"runx": "logs/sweep", "mlrunner": "output"}[tool]
    parts = []
    for words in (["sum", folder], ["sum", folder, "--json"], ["ls", folder, "--json"], ["sum", folder, "--csv"]):
        code = run(words)
        parts.append(f"==== {' '.join(words)}: {code}\n{capsys.readouterr().out}")
    if tool == "runx":
        run(["sumx", "sweep"])
        parts.append(f"==== sumx\n{capsys.readouterr().out}")
    frozen(f"tables/{tool}.txt", clean("".join(parts), here))


def test_the_description_of_the_json_interface(frozen: Compare) -> None:
    from assay.web.app import list_entries
    from assay.web.json_routes import build_document
    from assay.web.site import Site

    document = build_document(list_entries(Site(())))
    if document != json.loads((FROZEN / "openapi.json").read_text()):  # the order of its members means nothing
        frozen("openapi.json", json.dumps(document, indent=1) + "\n")
