"""`assay diff`."""

from __future__ import annotations

import json
import shutil

import pytest
from tests.study.workbench import BAD, GOOD, Bench

OTHER = "lr=0.1,n=8"


def test_what_differs(cli) -> None:
    result = cli("diff", GOOD, OTHER)
    assert result.code == 0
    sections = {part.splitlines()[0]: part for part in result.out.rstrip().split("\n\n")[1:]}
    assert list(sections) == ["Parameters", "Commands", "Environment", "Code", "Metrics"]
    assert [line.split() for line in sections["Parameters"].splitlines()[3:]] == [["n", "7", "8"]]
    assert "(no difference)" in sections["Code"]
    assert [line.split() for line in sections["Metrics"].splitlines()[3:]] == [
        ["loss", "1.7", "1.8", "0.1", "1.7", "1.8", "0.1"],
        ["test.acc", "0.7", "0.8", "0.1", "0.7", "0.8", "0.1"],
    ]


def test_states_and_missing_metrics(cli) -> None:
    facts = json.loads(cli("diff", GOOD, BAD, "--json").out)
    assert facts["state"] == {"first": "done", "second": "failed"}
    assert facts["params"] == {"lr": {"first": 0.1, "second": 0.5}}
    assert facts["metrics"]["test.acc"]["last"] == {"first": 0.7, "second": None, "difference": None}
    assert facts["environment"] == {}


def test_a_run_and_itself(cli) -> None:
    facts = json.loads(cli("diff", GOOD, GOOD, "--json").out)
    assert (facts["params"], facts["commands"], facts["code"], facts["state"]) == ({}, {}, {}, None)
    assert cli("diff", GOOD, GOOD, "--code").out == ""


def test_code_and_environment(cli, own_bench: Bench, bench: Bench) -> None:
    shutil.copytree(bench.root, own_bench.root, symlinks=True)
    run = own_bench.root / "fit" / OTHER
    (run / "code" / "new.py").write_text("a = 1\n")
    (own_bench.root / "fit" / GOOD.rpartition("/")[2] / "code" / "both.py").write_text("b = 1\n")
    (run / "code" / "both.py").write_text("b = 2\n")
    (run / "code" / "blob").write_bytes(b"\0\1")
    fields = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(fields | {"code_hash": "f" * 32}))
    environment = json.loads((run / "environment.json").read_text())
    (run / "environment.json").unlink()  # one file for all runs
    (run / "environment.json").write_text(json.dumps(environment | {"python": "2.7", "packages": {"jax": "9"}}))
    facts = json.loads(cli("diff", GOOD, OTHER, "--json").out)
    assert facts["code"] == {"blob": "only in the second", "new.py": "only in the second", "both.py": "differs"}
    assert facts["environment"]["python"]["second"] == "2.7"
    assert facts["environment"]["package jax"] == {"first": None, "second": "9"}
    lines = cli("diff", GOOD, OTHER, "--code").out.splitlines()
    assert "+a = 1" in lines
    assert "+b = 2" in lines
    assert "blob: only in the second (not text, or too large to show)" in lines


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("fit", GOOD), "names 4 runs"),
        ((GOOD, "nothing"), "no study or run named"),
        ((GOOD, OTHER, "--code", "--json"), "not JSON"),
        ((GOOD,), "SECOND"),
    ],
)
def test_what_is_refused(cli, arguments: tuple[str, ...], said: str) -> None:
    result = cli("diff", *arguments)
    assert result.code == 2
    assert said in result.err
