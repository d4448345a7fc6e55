"""`assay help`."""

from __future__ import annotations

import contextlib
import io
import json
from typing import Any

import pytest

from assay.cli.main import run
from assay.errors import ExitCode


@pytest.fixture(scope="module")
def described() -> dict[str, Any]:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert run(["help", "--json"]) == 0
    found: dict[str, Any] = json.loads(out.getvalue())
    return found


def find(described: dict[str, Any], command: str) -> dict[str, Any]:
    return next(each for each in described["commands"] if each["command"] == command)


@pytest.mark.needs(bench=True, compat=True, exchange=True, golden=True, models=True)
def test_every_command_is_described(described: dict[str, Any]) -> None:
    commands = [each["command"] for each in described["commands"]]
    assert {"run", "golden check", "bench run", "model cache pull", "export mlflow", "runx", "wait"} <= {*commands}
    assert len(set(commands)) == len(commands)
    assert all(each["summary"] and each["help"] for each in described["commands"])
    assert {int(code) for code in described["exit_codes"]} == {int(code) for code in ExitCode}


@pytest.mark.needs(compat=True, plots=True)
@pytest.mark.needs(search=True)
def test_options_have_types_bounds_and_defaults(described: dict[str, Any]) -> None:
    options = {each["names"][-1]: each for each in find(described, "plot")["options"]}
    text = "With --json: about N points of each line; peaks stay."
    bounds = {"default": 200, "minimum": 2, "maximum": 100_000}
    assert options["--points"] == {"names": ["--points"], "type": "int", "value": "N", **bounds, "help": text}
    assert options["--json"]["type"] == "flag"
    assert options["--x"]["choices"] == ["step", "epoch", "time"]
    launch = find(described, "run")
    assert launch["arguments"][0] == {"names": ["file"], "type": "str", "required": True}
    assert "--search" in {name for each in launch["options"] for name in each["names"]}  # of a plug-in
    assert find(described, "runx")["note"] == "it has the flags of another tool: assay runx --help"


@pytest.mark.needs(golden=True)
def test_one_command_a_group_and_one_that_is_not_there(cli) -> None:
    assert [each["command"] for each in json.loads(cli("help", "--json", "wait").out)["commands"]] == ["wait"]
    golden = [each["command"] for each in json.loads(cli("help", "golden", "--json").out)["commands"]]
    assert golden[0].startswith("golden ")
    refused = cli("help", "--json", "wiat")
    assert (refused.code, refused.out) == (2, "")
    assert "did you mean 'wait'?" in refused.err
    assert cli("help", "ls").out == cli("ls", "--help").out
    assert cli("help").out == cli("--help").out
