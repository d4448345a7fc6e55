"""`assay sum --tensorboard`; the tables themselves are tested with the flow."""

from __future__ import annotations

import json
import sys

import pytest
from tests.study.workbench import GOOD, Bench


def test_a_study_for_tensorboard(cli, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRC32C_SW_MODE", "auto")  # tensorboardX sets it on import
    result = cli("sum", "fit", "--tensorboard", "board")
    assert (result.code, result.out) == (0, "4 runs written; show them: tensorboard --logdir board\n")
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


EPOCHS = r"""
study: epochs
command: for i in 1 2; do echo "epoch $i acc 0.$i"; done
metrics: {epoch: 'epoch (\d+)', acc: 'acc ({number})'}
resources: {gpus: 0}
"""


def test_epochs_are_called_epochs_where_nothing_else_counts(cli, own_bench: Bench) -> None:
    own_bench.run(EPOCHS)
    assert cli("sum", "epochs").out.split()[:3] == ["run", "acc", "epoch"]
    assert json.loads(cli("sum", "epochs", "--json").out)[0]["epoch"] == 2
    assert "epoch\n" in cli("plot", "epochs").out
    own_bench.run(EPOCHS.replace("study: epochs", "study: steps").replace("{epoch:", "{step:"))
    assert cli("sum", "steps").out.split()[:3] == ["run", "acc", "step"]


@pytest.mark.parametrize(
    ("call", "name"), [("epoch=1", "epoch"), ("step=1", "step"), ("step=1, epoch=1", "epoch step")]
)
def test_epochs_that_a_script_logs_are_called_so(cli, own_bench: Bench, call: str, name: str) -> None:
    own_bench.run(
        f"study: s\ncommand: {sys.executable} -c 'import assay; assay.log(acc=1, {call})'\nresources: {{gpus: 0}}\n"
    )
    head = cli("sum", "s").out.splitlines()[0].split()
    assert head[: 2 + len(name.split())] == ["run", "acc", *name.split()]
