"""sumx's document: a training script with logx, then the table; results of runx itself; and what can be wrong."""

from __future__ import annotations

import csv
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from tests.user_folder import ORIGINALS, UserFolder, open_user_folder

from assay.compat.runx.sumx import render_sumx
from assay.values.table import Column, Table

TRAIN = """\
import argparse
from assay.logx import logx
parser = argparse.ArgumentParser()
parser.add_argument('--lr', type=float); parser.add_argument('--solver'); parser.add_argument('--logdir')
args = parser.parse_args()
logx.initialize(logdir=args.logdir, coolname=True, hparams=vars(args))
for epoch in range(1, 4):
    logx.metric(phase='val', metrics={'acc': 90 + epoch + 100 * args.lr + 0.5 * (args.solver == 'adam')}, epoch=epoch)
"""
TABLE = """\
        lr    solver  acc   epoch  epoch_time
------  ----  ------  ----  -----  ----------
run4    0.02  adam    99.1  10     5:11
run3    0.02  sgd     99.0  10     5:05
run1    0.01  sgd     98.2  10     5:15
run2    0.01  adam    98.1  10     5:12
"""


@pytest.fixture
def user(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[UserFolder]:
    with open_user_folder(monkeypatch, capfd) as user:
        user.write(".runx", "LOGROOT: logs\n")
        yield user


def write_run(
    user: UserFolder,
    name: str,
    metrics: dict[str, list[float]],
    epoch_s: float = 60.0,
    study: str = "sweep",
    **hparams: Any,
) -> None:
    """A run as runx and logx leave it: one val line per epoch, from 1."""
    user.write(f"logs/{study}/{name}/hparams.json", json.dumps(hparams, indent=4))
    lines = ["start,start/step,0,timestamp,1580998740.0"]
    for number, values in enumerate(zip(*metrics.values(), strict=True), 1):
        pairs = ",".join(f"{metric},{value}" for metric, value in zip(metrics, values, strict=True))
        lines.append(f"val,{pairs},epoch,{number},timestamp,{1580998740.0 + number * epoch_s}")
    user.write(f"logs/{study}/{name}/metrics.csv", "".join(f"{line}\r\n" for line in lines))


def write_documents_runs(user: UserFolder) -> None:
    for name, lr, solver, acc, epoch_s in (
        ("run1", 0.01, "sgd", 98.2, 315),
        ("run2", 0.01, "adam", 98.1, 312),
        ("run3", 0.02, "sgd", 99.0, 305),
        ("run4", 0.02, "adam", 99.1, 311),
    ):
        metrics = {"acc": [*(acc - 9 + epoch for epoch in range(9)), acc]}
        write_run(user, name, metrics, epoch_s, lr=lr, solver=solver, logdir=f"/home/logs/{name}", epochs=10)


def first_column(text: str) -> list[str]:
    return [line.split()[0] for line in text.splitlines()[2:]]


class TestTheDocument:
    def test_a_training_script_with_logx(self, user: UserFolder) -> None:
        user.write("sweep.yml", "CMD: python train.py\nHPARAMS: {lr: 0.01, solver: [sgd, adam], logdir: LOGDIR}\n")
        user.write("train.py", TRAIN)
        user.well("runx", "sweep.yml", "-i")
        head, rule, *rows = user.well("sumx", "sweep", "--sortwith", "acc").lines
        assert head.split() == ["solver", "acc", "epoch", "epoch_time"]
        assert head.startswith("      ")
        assert set(rule) == {"-", " "}
        assert [row.split()[1:] for row in rows] == [["adam", "94.5", "3", "0:00"], ["sgd", "94.0", "3", "0:00"]]

    def test_ignored_fields_csv_and_other_places(self, user: UserFolder) -> None:
        write_documents_runs(user)
        assert user.well("sumx", "logs/sweep/", "-s", "acc").out == TABLE, "a path instead of a name"
        assert user.well("sumx", "sweep", "--ignore", "solver,epoch_time").lines[0].split() == ["lr", "acc", "epoch"]
        user.well("sumx", "sweep", "-s", "acc", "--csv", "out")
        rows = list(csv.reader(user.read("out.csv").splitlines()))
        assert rows[0] == ["run", "lr", "solver", "acc", "epoch", "epoch_time"]
        assert rows[1] == ["run4", "0.02", "adam", "99.1", "10", "311.0"]
        (user.folder / "logs").rename(user.folder / "elsewhere")
        assert user.assay("sumx", "sweep").code == 2
        assert first_column(user.well("sumx", "sweep", "--logroot", "elsewhere", "-s", "acc").out)[0] == "run4"

    def test_on_a_narrow_terminal_long_names_give_way(self, user: UserFolder) -> None:
        """Only there: what is piped on keeps them."""
        for name in ("athletic-wallaby_2020.02.06_14.19", "industrious-chicken_2020.02.06_14.19"):
            write_run(user, name, {"acc": [1.0], "a_metric": [2.0], "loss": [3.0]}, lr=name[:3], solver=name[:5])
        assert "athletic-wallaby_2020.02.06_14.19 " in user.well("sumx", "sweep").out
        program = [sys.executable, "-m", "assay", "sumx", "sweep"]
        words = ["script", "-qec", "stty cols 60; " + shlex.join(program), "/dev/null"]
        env = dict(os.environ)  # readline, which pytest loads, puts COLUMNS into the C library's own environment
        shown = subprocess.run(words, env=env, capture_output=True, text=True, check=True)
        lines = shown.stdout.splitlines()
        assert len(lines) == 4
        assert max(map(len, lines)) <= 60
        assert "~" in lines[2]

    def test_logroot_counts_before_our_own_root_and_several_experiments_are_one_table(self, user: UserFolder) -> None:
        write_run(user, "two", {"acc": [2.0]}, study="b")
        write_run(user, "right", {"acc": [1.0]})
        write_run(user, "wrong", {"acc": [1.0]})
        shutil.move(user.folder / "logs/sweep/wrong", user.folder / "runs/sweep/wrong")
        assert first_column(user.well("sumx", "sweep").out) == ["right"]
        assert first_column(user.well("sumx", "sweep", "b", "-s", "acc").out) == ["b/two", "sweep/right"]


class TestEpochs:
    def test_iterations_of_the_training_are_not_epochs(self, user: UserFolder) -> None:
        """As runx's own mnist example: `train` is counted by iterations, `val` by epochs."""
        script = """\
from assay import script
from assay.logx import logx
logx.initialize(tensorboard=False)
for epoch in (1, 2):
    for step in range(5):
        logx.metric('train', {'loss': 9.0 - step}, 5 * epoch + step)
    logx.metric('val', {'loss': 1.0 / epoch, 'accuracy': 50 * epoch}, epoch)
"""
        user.write("train.py", script)
        user.write("sweep.yml", f"CMD: '{shlex.quote(sys.executable)} train.py'\nHPARAMS: {{lr: 1}}\n")
        user.well("runx", "sweep.yml")
        said = user.well("sumx", "sweep")
        assert [line.split()[-2] for line in said.lines[2:]] == ["2"]
        assert "train" not in said.out

    def test_sorting_by_epoch_and_by_its_time(self, user: UserFolder) -> None:
        write_run(user, "a", {"acc": [1.0, 2.0]}, epoch_s=10)
        write_run(user, "b", {"acc": [1.0, 2.0, 3.0]}, epoch_s=30)
        write_run(user, "c", {"acc": [1.0]}, epoch_s=20)
        asked = {"epoch": "bac", "epoch:min": "cab", "epoch_time": "acb", "epoch time": "acb", "epoch_time:max": "bca"}
        for sort, order in asked.items():
            assert first_column(user.well("sumx", "sweep", "--sortwith", sort).out) == list(order), sort

    def test_metrics_without_times_and_of_other_types(self, user: UserFolder) -> None:
        user.write("logs/sweep/a/hparams.json", "{}")
        user.write("logs/sweep/a/metrics.csv", "start,start/step,0\r\nval,acc,1,epoch,1\r\nval,acc,2,epoch,2\r\n")
        said = user.well("sumx", "sweep")
        assert said.lines[2].split() == ["a", "2", "2", "-"]
        assert "damaged" not in said.err
        # tensors are read, and what is not a number is named
        cells = "acc,tensor(0.2000),loss,\"tensor(0.5000, device='cuda:0')\",name,big"
        user.write("logs/sweep/a/metrics.csv", f"start,start/step,0,timestamp,1\r\nval,{cells},epoch,1,timestamp,3\r\n")
        said = user.well("sumx", "sweep")
        assert said.lines[2].split() == ["a", "0.2", "0.5", "1", "0:02"]
        assert "1 value(s) left out that are not numbers, such as name=big" in said.err


class TestWhichIsBest:
    def test_without_a_wish_the_order_is_that_of_the_values_in_the_table(self, user: UserFolder) -> None:
        write_run(user, "a", {"loss": [0.1, 0.9]})
        write_run(user, "b", {"loss": [0.8, 0.5]})
        write_run(user, "c", {"loss": [0.7, 0.7]})
        assert first_column(user.well("sumx", "sweep").out) == ["b", "c", "a"]
        assert first_column(user.well("sumx", "sweep", "--sortwith", "loss").out) == ["a", "b", "c"]

    def test_a_metric_that_is_left_out_sorts_nothing(self, user: UserFolder) -> None:
        write_run(user, "a", {"acc": [1.0], "loss": [0.1]})
        write_run(user, "b", {"acc": [2.0], "loss": [0.9]})
        assert first_column(user.well("sumx", "sweep", "--ignore", "loss").out) == ["b", "a"]

    def test_the_direction_can_be_said(self, user: UserFolder) -> None:
        write_run(user, "a", {"wer": [1.0]})
        write_run(user, "b", {"wer": [3.0]})
        for sort, order in {"wer:max": ["b", "a"], "wer:min": ["a", "b"], "wer": ["a", "b"]}.items():
            assert first_column(user.well("sumx", "sweep", "--sortwith", sort).out) == order
        assert first_column(user.well("sumx", "sweep", "--sort", "wer:max").out) == ["b", "a"]

    def test_the_best_value_where_it_is_not_the_last(self, user: UserFolder) -> None:
        """B14: as numbers, 100.5 is more than 92."""
        write_run(user, "a", {"acc": [100.5, 91.0]})
        write_run(user, "b", {"acc": [90.0, 92.0]})
        said = user.well("sumx", "sweep", "-s", "acc")
        assert said.lines[0].split() == ["acc", "acc-best", "epoch", "epoch_time"]
        assert [line.split()[:3] for line in said.lines[2:]] == [["a", "91", "100.5"], ["b", "92", "92.0"]]

    def test_several_sort_keys_count_in_their_order(self, user: UserFolder) -> None:
        for name, lr, acc in (("a", 0.5, 1.0), ("b", 0.25, 1.0), ("c", 0.5, 3.0)):
            write_run(user, name, {"acc": [acc]}, lr=lr)
        assert first_column(user.well("sumx", "sweep", "-s", "lr").out)[0] == "b", "also by a parameter"
        assert first_column(user.well("sumx", "sweep", "-s", "lr:max", "-s", "acc").out) == ["c", "a", "b"]
        assert first_column(user.well("sumx", "sweep", "-s", "acc:min", "--sort", "lr").out) == ["b", "a", "c"]


class TestResultsOfTheOriginal:
    @pytest.fixture
    def tree(self, user: UserFolder) -> UserFolder:
        shutil.copytree(ORIGINALS / "runx", user.folder, dirs_exist_ok=True)
        return user

    def test_sumx_tables_them_and_says_each_time_what_is_damaged(self, tree: UserFolder) -> None:
        for _ in range(2):
            said = tree.well("sumx", "sweep", "-s", "acc")
            assert "damaged-lobster_2020.02.06_14.21/hparams.json: not JSON" in said.err
            assert "damaged-lobster_2020.02.06_14.21/metrics.csv: 3 damaged" in said.err
            assert said.err.count("warning") == 2
        assert said.lines[0].split() == ["lr", "solver", "acc", "acc-best", "loss", "miou", "epoch", "epoch_time"]
        rows = {line.split("-")[0]: line.split()[1:] for line in said.lines[2:]}
        assert list(rows) == ["industrious", "damaged", "athletic", "quiet", "arrogant"]
        assert rows["athletic"] == ["0.01", "sgd", "91.00", "91.00", "0.3333", "-", "2", "7:30"]
        assert rows["arrogant"] == ["0.02", "sgd", "89.25", "89.25", "0.8000", "0.5", "1", "21:45"]
        assert rows["quiet"][:2] == ["0.03", "sgd"], "parameters that logx was not given are read from the command"
        assert rows["damaged"][:2] == ["0.04", "sgd"]

    def test_sum_ls_and_ingest_know_them(self, tree: UserFolder) -> None:
        table = tree.well("sum", "sweep").out
        assert "logdir" not in table, "it differs in every run and says nothing"
        assert "athletic-wallaby" in table
        assert "vengeful-jaguar" in tree.well("ls", "sweep").out
        tree.well("index", "ingest", "logs/sweep")

    def test_they_stand_beside_our_own(self, tree: UserFolder) -> None:
        tree.write("sweep.yml", "CMD: python train.py\nHPARAMS: {lr: 0.01, solver: sgd, logdir: LOGDIR}\n")
        tree.write("train.py", TRAIN)
        tree.well("runx", "sweep.yml", "-i")
        assert len(tree.well("sumx", "sweep", "-s", "acc").lines) == 2 + 5 + 1

    def test_a_run_that_gave_logx_no_hparams_is_tabled(self, user: UserFolder) -> None:
        """B18"""
        user.write("sweep.yml", "CMD: python train.py\nHPARAMS: {lr: [1, 2], logdir: LOGDIR}\n")
        text = "import sys\nfrom assay.logx import logx\nlogx.initialize(sys.argv[-1])\n"
        user.write("train.py", f"{text}logx.metric('val', {{'acc': 1}}, 1)\n")
        user.well("runx", "sweep.yml")
        assert user.well("sumx", "sweep").lines[0].split() == ["lr", "acc", "epoch", "epoch_time"]


class TestBadInput:
    def test_refused_with_a_hint(self, user: UserFolder) -> None:
        """B15"""
        write_documents_runs(user)
        wrong = {
            ("sweep", "--sortwith", "axc"): "assay: no metric or parameter named 'axc'\n  did you mean 'acc'?\n",
            ("sweep", "--sortwith", "acc:up"): "acc:min or acc:max",
            ("sweap",): "did you mean 'sweep'?",
            ("sweep", "--csv", "no/such/folder/out"): "cannot write no/such/folder/out.csv",
            (): "the following arguments are required: dirs",
        }
        for words, hint in wrong.items():
            assert hint in user.assay("sumx", *words, code=2).err

    def test_a_run_without_metrics_is_named_where_its_parameters_are_damaged(self, user: UserFolder) -> None:
        write_run(user, "one", {"acc": []})
        assert "logx.metric" in user.assay("sumx", "sweep", code=2).err, "nothing to table yet"
        user.write("logs/sweep/two/hparams.json", "{broken")
        assert "sweep/two/hparams.json: not JSON" in user.assay("sumx", "sweep").err
        write_run(user, "one", {"acc": [1.0]})
        assert user.well("sumx", "sweep").err.count("sweep/two/hparams.json: not JSON") == 1


def test_the_look_of_the_table() -> None:
    columns = Column("run"), Column("lr", digits=None), Column("acc", "number"), Column("epoch_time", "clock")
    head = "        lr    acc   epoch_time\n------  ----  ----  ----------\n"
    rows = [("run4", 0.02, 99.1, 311.0), ("run3", 0.01, 99.0, 305.0)]
    assert render_sumx(Table(columns, rows)) == f"{head}run4    0.02  99.1  5:11\nrun3    0.01  99.0  5:05\n"
    assert render_sumx(Table(columns, [])).split() == ["lr", "acc", "epoch_time", *("-" * n for n in (6, 2, 3, 10))]
