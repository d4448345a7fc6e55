"""`assay sum --tensorboard`; the tables themselves are tested with the flow."""

from __future__ import annotations

import json

import pytest
from tests.flows.workbench import GOOD, Bench


def test_a_study_for_tensorboard(cli, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRC32C_SW_MODE", "auto")  # tensorboardX sets it on import
    result = cli("sum", "fit", "--tensorboard", "board")
    assert (result.code, result.out) == (0, "4 runs written; look at them: tensorboard --logdir board\n")
    assert list((bench.folder / "board" / GOOD).iterdir())


def test_rows_that_were_left_out_are_said(cli, bench: Bench) -> None:
    result = cli("sum", "fit", "-n", "1")
    assert len(result.out.splitlines()) == 3
    assert result.err.endswith("(3 more rows: leave out -n)\n")
    assert "more row" not in cli("sum", "fit").err


def test_steps_are_integers_in_json(cli, bench: Bench) -> None:
    steps = [row["step"] for row in json.loads(cli("sum", "fit", "--json").out)]
    assert steps == [3, 3, 3, 3]
    assert {type(step) for step in steps} == {int}
