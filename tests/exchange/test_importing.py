"""`assay index ingest` of MLflow's and Trackio's stores, W&B's CSV files and Optuna's journals: written by the tools themselves
where they are installed, and hostile."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.command_line import Cli
from tests.exchange.commands.test_export import make_run
from tests.finished_study import Bench
from tests.tracking_databases import MLFLOW_TABLES, TRACKIO_TABLES, write_database


def load(cli: Cli, study: str) -> dict[str, Any]:
    return {row["name"]: row for row in json.loads(cli("export", "json", study).out)}


def load_series(cli: Cli, study: str) -> dict[tuple[str, str], list[tuple[Any, Any]]]:
    found: dict[tuple[str, str], list[tuple[Any, Any]]] = {}
    for point in json.loads(cli("export", "json", "--series", study).out):
        found.setdefault((point["run"], point["metric"]), []).append((point["step"], point["value"]))
    return found


def refused(cli: Cli, bench: Bench, *arguments: str) -> str:
    """The message; nothing was written, and there is no traceback."""
    result = cli("index", "ingest", *arguments)
    assert result.code == 2, result.err
    assert not re.search("Traceback|bug in Assay", result.err)
    assert not bench.root.exists()
    return result.err


# ---------------------------------------------------------------- MLflow


META = "artifact_uri: x\nexperiment_id: '7'\nrun_id: '{id}'\nrun_name: {name}\nstatus: {status}\nstart_time: 1700000000000\n"


def write_store(folder: Path, name: str = "calm-sun", status: int = 3, id_: str = "a" * 32) -> Path:
    """As MLflow writes it, with one run; the run's folder."""
    experiment = folder / "mlruns" / "7"
    run = experiment / id_
    for part in ("params", "metrics/train", "tags"):
        (run / part).mkdir(parents=True, exist_ok=True)
    (experiment / "meta.yaml").write_text("experiment_id: '7'\nlifecycle_stage: active\nname: my exp\n")
    end = "end_time: 1700000060000\n" if status in (3, 4, 5) else "end_time: null\n"
    (run / "meta.yaml").write_text(META.format(id=id_, name=name, status=status) + end)
    for key, text in {"lr": "0.1", "layers": "[1, 2]", "opt": "adam", "flag": "True", "api_key": "hunter2"}.items():
        (run / "params" / key).write_text(text)
    (run / "metrics" / "train" / "loss").write_text("1700000001000 0.5 1\n1700000002000 nan 2\n")
    (run / "tags" / "team").write_text("vision")
    (run / "tags" / "mlflow.note.content").write_text("a note")
    return run


@pytest.mark.needs(plots=True)
def test_a_store(cli: Cli, own_bench: Bench) -> None:
    write_store(own_bench.folder)
    result = cli("index", "ingest", "mlruns")
    assert result.code == 0, result.err
    assert "my_exp: 1 run from mlflow (1 new, 0 updated, 0 unchanged) under runs" in result.out
    assert "next: assay sum my_exp" in result.out
    (row,) = load(cli, "my_exp").values()
    assert row["name"] == "calm-sun"
    assert {**row["params"], "api_key": ""} == {"lr": 0.1, "layers": [1, 2], "opt": "adam", "flag": True, "api_key": ""}
    assert "hunter2" not in (own_bench.root / "my_exp" / "calm-sun" / "run.json").read_text()
    assert (row["state"], row["seconds"], row["origin"], row["note"]) == ("done", 60.0, "mlflow", "a note")
    assert row["tags"] == ["team=vision"]
    assert load_series(cli, "my_exp") == {("my_exp/calm-sun", "train/loss"): [(1, 0.5), (2, "NaN")]}
    assert re.search(r"imported +from mlflow: .*mlruns", cli("show", "my_exp/calm-sun").out)
    assert json.loads(cli("show", "my_exp/calm-sun", "--json").out)["origin"]["id"] == "a" * 32
    for call in (("rerun",), ("rerun", "lr=1"), ("logs",)):
        cli(call[0], "my_exp/calm-sun", *call[1:]).ended(2, "was imported from mlflow")
    for command in (("ls",), ("sum",), ("plot",), ("sum", "--where", 'lr==0.1 and tag=="team=vision"')):
        assert cli(command[0], "my_exp", *command[1:]).code == 0


def test_secrets_of_another_tool_are_not_taken(cli: Cli, own_bench: Bench) -> None:
    run = write_store(own_bench.folder)
    (run / "params" / "hub").write_text('{"api_key": "hunter3"}')
    (run / "tags" / "SLACK_WEBHOOK").write_text("hooks/T1")
    cli("index", "ingest", "mlruns")
    texts = [path.read_text() for path in own_bench.root.rglob("*") if path.is_file()]
    assert [secret for secret in ("hunter2", "hunter3", "hooks/T1") if secret in "".join(texts)] == []


def test_importing_again_adds_what_is_new(cli: Cli, own_bench: Bench) -> None:
    run = write_store(own_bench.folder, status=1)
    cli("index", "ingest", "mlruns")
    (row,) = load(cli, "my_exp").values()
    assert row["state"] == "stopped"
    assert "still running" in row["reason"]
    assert "1 unchanged" in cli("index", "ingest", "mlruns").out
    cli("tag", "my_exp/calm-sun", "--remove", "team=vision")
    write_store(own_bench.folder, status=3)
    with open(run / "metrics" / "train" / "loss", "a") as file:
        file.write("1700000003000 0.25 3\n")
    (run / "metrics" / "acc").write_text("1700000003000 1 3\n")
    (run / "params" / "late").write_text("1")
    write_store(own_bench.folder, "second", id_="b" * 32)
    assert "2 runs from mlflow (1 new, 1 updated, 0 unchanged)" in cli("index", "ingest", "mlruns").out
    rows = load(cli, "my_exp")
    assert (rows["calm-sun"]["state"], rows["calm-sun"]["params"]["late"], rows["calm-sun"]["tags"]) == ("done", 1, [])
    series = load_series(cli, "my_exp")
    assert series["my_exp/calm-sun", "train/loss"] == [(1, 0.5), (2, "NaN"), (3, 0.25)]
    assert series["my_exp/calm-sun", "acc"] == [(3, 1.0)]
    cli("index", "rebuild")
    assert load_series(cli, "my_exp") == series


def test_a_series_that_was_written_again_replaces_the_old(cli: Cli, own_bench: Bench) -> None:
    run = write_store(own_bench.folder)
    cli("index", "ingest", "mlruns")
    (run / "metrics" / "train" / "loss").write_text("1 9 1\n2 8 2\n3 7 3\n")
    assert "1 updated" in cli("index", "ingest", "mlruns").out
    series = load_series(cli, "my_exp")
    assert series == {("my_exp/calm-sun", "train/loss"): [(1, 9.0), (2, 8.0), (3, 7.0)]}
    (run / "metrics" / "train" / "loss").write_text("1 9 1\n")  # points were removed there: ours stay
    assert "1 unchanged" in cli("index", "ingest", "mlruns").out
    assert load_series(cli, "my_exp") == series
    shutil.rmtree(own_bench.root)  # and imported once more
    (run / "metrics" / "train" / "loss").write_text("1 7 1\n2 nan 2\n")
    cli("index", "ingest", "mlruns")
    assert load_series(cli, "my_exp") == {("my_exp/calm-sun", "train/loss"): [(1, 7.0), (2, "NaN")]}


def test_runs_of_one_name_and_names_that_are_paths(cli: Cli, own_bench: Bench) -> None:
    for number, name in enumerate(["same", "same", "../../escape", ".hidden", "-flag", "'/'"]):
        write_store(own_bench.folder, name, id_=f"{number:032d}")
    cli("index", "ingest", "mlruns", "--study", "../out")
    names = sorted(path.name for path in (own_bench.root / "out").iterdir() if path.name[0] != ".")
    assert [name for name in names if not name.startswith(("same", "run-"))] == ["escape", "flag", "hidden"]
    assert len(names) == 6
    assert sorted(path.name for path in own_bench.folder.iterdir()) == ["mlruns", "runs"]
    assert "6 unchanged" in cli("index", "ingest", "mlruns", "--study", "../out").out


def test_a_run_or_an_experiment_alone_and_what_is_deleted(cli: Cli, own_bench: Bench) -> None:
    run = write_store(own_bench.folder)
    meta = (run / "meta.yaml").read_text()
    (run / "meta.yaml").write_text(f"{meta}lifecycle_stage: deleted\n")
    assert "is deleted" in refused(cli, own_bench, "mlruns")
    (run / "meta.yaml").write_text(meta)
    write_store(own_bench.folder, "second", id_="b" * 32)
    assert "my_exp: 1 run from mlflow (1 new" in cli("index", "ingest", str(run)).out
    assert "(1 new, 0 updated, 1 unchanged)" in cli("index", "ingest", str(run.parent), "--root", "runs").out


@pytest.mark.filterwarnings("ignore")
def test_a_store_that_mlflow_wrote(cli: Cli, own_bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other stores of these tests are written by hand; this one has what MLflow itself writes."""
    pytest.importorskip("mlflow")
    for name in ("MLFLOW_ALLOW_FILE_STORE", "MLFLOW_DISABLE_TELEMETRY"):
        monkeypatch.setenv(name, "true")
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"file://{own_bench.folder}/mlruns")
    experiment = client.create_experiment("vision/cifar")
    run = client.create_run(experiment, run_name="first").info.run_id
    client.log_param(run, "opt/lr", 0.1)
    for step in range(3):
        client.log_metric(run, "val/acc", step / 2, step=step)
    client.log_metric(run, "diverged", math.inf, step=1)
    client.set_terminated(run, "FAILED")
    client.delete_run(client.create_run(experiment).info.run_id)
    cli("index", "ingest", "mlruns").ended(0)
    (row,) = load(cli, "vision_cifar").values()
    assert (row["name"], row["state"], row["params"]) == ("first", "failed", {"opt/lr": 0.1})
    series = load_series(cli, "vision_cifar")
    assert series["vision_cifar/first", "val/acc"] == [(0, 0.0), (1, 0.5), (2, 1.0)]
    assert series["vision_cifar/first", "diverged"] == [(1, "Infinity")]


@pytest.mark.filterwarnings("ignore")
def test_to_mlflow_and_back(cli: Cli, own_bench: Bench, mlflow_database: Path) -> None:
    """What was exported from this root, and is still here, is not imported again."""
    params = {"lr": 0.1, "text": "1", "none": None, "flag": True, "list": [1, "a"], "huge": "x" * 500}
    points = [{"step": i, "time": 1e9 + i, "loss": 1 / (i + 1), "val/acc": i} for i in range(9)]
    points += [{"step": -i, "time": 1e9, "down": -i} for i in range(3)]  # within a millisecond
    make_run(own_bench, "a", params, points)
    make_run(own_bench, "b", {"lr": 0.2}, [{"step": 1, "loss": math.nan}])
    cli("tag", "made/a", "good")
    before, series = load(cli, "made"), load_series(cli, "made")
    shutil.copy(mlflow_database, own_bench.folder / "store.db")
    cli("export", "mlflow", "made", "--to", "store.db")
    assert "made: 2 runs from mlflow (2 new" in cli("index", "ingest", "store.db", "--root", "back").out
    after = load(cli, "back/made")
    for name, row in before.items():
        for field in ("params", "tags", "state"):
            assert after[name][field] == row[field]
        last, known = ({m: v["last"] for m, v in each["metrics"].items()} for each in (after[name], row))
        assert last == known
    assert load_series(cli, "back/made") == series
    cli("index", "ingest", "store.db").ended(0).printed("2 runs were exported from here")
    shutil.rmtree(own_bench.folder / "runs/made/b")  # gone here: it comes back
    some = cli("index", "ingest", "store.db")
    assert "1 run was exported from here" in some.out
    assert "made: 1 run from mlflow (1 new" in some.out
    assert set(load(cli, "made")) == {"a", "b"}


# ---------------------------------------------------------------- databases: MLflow's and Trackio's


@pytest.mark.filterwarnings("ignore")
def test_a_database_that_mlflow_wrote(
    cli: Cli, own_bench: Bench, mlflow_database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read while MLflow has it open; imported again after it has grown."""
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow.tracking import MlflowClient

    shutil.copy(mlflow_database, own_bench.folder / "mlflow.db")
    client = MlflowClient(f"sqlite:///{own_bench.folder}/mlflow.db")
    experiment = client.create_experiment("vision/cifar")
    run = client.create_run(experiment, run_name="first", tags={"team": "vision"}).info.run_id
    client.log_param(run, "opt/lr", 0.1)
    client.log_param(run, "api_key", "hunter2")
    for step, value in enumerate((0.5, math.nan, math.inf, -math.inf)):
        client.log_metric(run, "val/acc", value, step=step)
    client.delete_run(client.create_run(experiment, run_name="gone").info.run_id)
    client.delete_experiment(client.create_experiment("old"))
    result = cli("index", "ingest", "mlflow.db")
    assert result.code == 0, result.err
    assert re.search("run 'gone' of 'vision/cifar' is deleted(.|\n)*experiment 'old' is deleted", result.err)
    (row,) = load(cli, "vision_cifar").values()
    assert (row["name"], row["state"], row["params"]["opt/lr"], row["tags"]) == (
        "first",
        "stopped",
        0.1,
        ["team=vision"],
    )
    assert row["params"]["api_key"] == "***"
    client.log_metric(run, "val/acc", 0.75, step=4)
    client.set_terminated(run, "FAILED")
    assert "(0 new, 1 updated, 0 unchanged)" in cli("index", "ingest", "mlflow.db").out
    assert load(cli, "vision_cifar")["first"]["state"] == "failed"
    points = [(0, 0.5), (1, "NaN"), (2, "Infinity"), (3, "-Infinity"), (4, 0.75)]
    assert load_series(cli, "vision_cifar") == {("vision_cifar/first", "val/acc"): points}


def test_a_database_of_trackio(cli: Cli, own_bench: Bench) -> None:
    write_database(own_bench.folder / "vision.db", TRACKIO_TABLES)
    result = cli("index", "ingest", "vision.db")
    assert result.code == 0, result.err
    assert "vision: 2 runs from trackio (2 new" in result.out
    for what in ("word (1)", "shot (1)", "alerts (1)", "how a run ended"):
        assert what in result.err
    rows = load(cli, "vision")
    calm = rows.pop("calm-sun")
    (other,) = rows.values()
    assert (calm["params"], calm["state"], calm["seconds"]) == ({"lr": 0.1, "layers": [1, 2]}, "done", 6.0)
    assert (other["params"], other["name"].startswith("calm-sun-")) == ({}, True)
    origin = json.loads(cli("show", "vision/calm-sun", "--json").out)["origin"]
    assert (origin["tool"], origin["id"], origin["username"]) == ("trackio", "f1", "me")
    series = load_series(cli, "vision")
    assert series["vision/calm-sun", "train/loss"] == [(0, 1.0), (1, "NaN")]
    assert series["vision/calm-sun", "acc"] == [(1, "-Infinity")]
    assert series["vision/calm-sun", "flag"] == [(1, 1.0)]
    assert series["vision/calm-sun", "system/gpu/0"] == [(None, 50.5)]
    assert series[f"vision/{other['name']}", "acc"] == [(5, 1.0)]
    assert "2 unchanged" in cli("index", "ingest", "vision.db").out


def test_databases_of_older_versions(cli: Cli, own_bench: Bench) -> None:
    """MLflow's without names of runs, steps and is_nan; Trackio's before runs had ids."""
    write_database(own_bench.folder / "old.db", MLFLOW_TABLES)
    assert "my_exp: 1 run from mlflow (1 new" in cli("index", "ingest", "old.db").out
    assert load_series(cli, "my_exp") == {("my_exp/a1", "loss"): [(0, 0.5)]}
    older = re.sub(r"run_id TEXT, |, UNIQUE\(run_id\)|'f[12]', ", "", TRACKIO_TABLES)
    write_database(own_bench.folder / "tracks.db", older)
    assert "tracks: 1 run from trackio (1 new" in cli("index", "ingest", "tracks.db").out
    assert load(cli, "tracks")["calm-sun"]["metrics"]["acc"]["count"] == 2


def test_a_database_while_it_is_written(cli: Cli, own_bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a log of changes next to it, which is read as well; nothing is left behind. One that stays locked is
    refused."""
    monkeypatch.setattr("assay.exchange.sqlite_file._WAIT_S", 0.1)
    write_database(own_bench.folder / "x.db", MLFLOW_TABLES)
    with closing(sqlite3.connect(own_bench.folder / "x.db")) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert "another program writes to it and has locked it" in refused(cli, own_bench, "x.db")
    write_database(own_bench.folder / "live.db", TRACKIO_TABLES)
    with closing(sqlite3.connect(own_bench.folder / "live.db")) as writer:
        writer.execute(
            "INSERT INTO metrics SELECT 9, run_id, timestamp, run_name, 9, metrics FROM metrics WHERE id = 3"
        )
        writer.commit()
        writer.execute("BEGIN IMMEDIATE")
        assert cli("index", "ingest", "live.db").code == 0
    assert sorted(len(points) for (_, name), points in load_series(cli, "live").items() if name == "acc") == [1, 2]
    assert sorted(path.name for path in own_bench.folder.glob("live*")) == ["live.db"]


# ---------------------------------------------------------------- W&B


TABLE = """\
"Name","State","Notes","User","Tags","Created","Runtime","Sweep","batch","lr","loss","loss","val/acc","_step"
"calm-sun-1","finished","good one","me","a, b","2024-05-01T12:00:00.000Z","90","s1","32","0.1","l1","0.25","0.9","100"
"bold-sky-2","crashed","","me","","2024-05-01T12:00:00.000Z","1m 5s","","64","0.01","l2","NaN","","7"
"bold-sky-2","running","-","me","","2024-05-02T12:00:00.000Z","-","","=1+1","0.01","l2","","0.5","-"
"""
CHART = """\
"Step","calm-sun-1 - loss","calm-sun-1 - loss__MIN","calm-sun-1 - loss__MAX","other - run - loss"
"1","0.5","0.5","0.5","0.75"
"2","0.25","0.25","0.25",""
"""


def test_the_table_of_wandb(cli: Cli, own_bench: Bench) -> None:
    own_bench.write("project.csv", TABLE)
    result = cli("index", "ingest", "project.csv")
    assert result.code == 0, result.err
    assert "project: 3 runs from wandb (3 new" in result.out
    assert "metrics: loss, val/acc, _step" in result.err
    rows = load(cli, "project")
    calm = rows["calm-sun-1"]
    assert calm["params"] == {"batch": 32, "lr": 0.1, "loss": "l1"}
    assert {name: metric["last"] for name, metric in calm["metrics"].items()} == {
        "loss": 0.25,
        "val/acc": 0.9,
        "_step": 100.0,
    }
    assert (calm["state"], calm["seconds"], calm["tags"], calm["note"]) == ("done", 90.0, ["a", "b"], "good one")
    assert calm["metrics"]["loss"]["last_step"] == 100
    assert rows["bold-sky-2"]["state"] == "failed"
    assert rows["bold-sky-2"]["metrics"]["loss"]["last"] == "NaN"
    (third,) = [row for name, row in rows.items() if name.startswith("bold-sky-2-")]
    assert (third["state"], third["params"]["batch"]) == ("stopped", "=1+1")
    assert "3 unchanged" in cli("index", "ingest", "project.csv").out
    own_bench.write("project.csv", TABLE.replace('"running"', '"finished"'))
    assert "1 updated, 2 unchanged" in cli("index", "ingest", "project.csv").out


@pytest.mark.parametrize("order", [("project.csv", "chart.csv"), ("chart.csv", "project.csv")])
def test_a_chart_of_wandb_belongs_to_the_runs_of_its_table(cli: Cli, own_bench: Bench, order: tuple[str, str]) -> None:
    own_bench.write("project.csv", TABLE)
    own_bench.write("chart.csv", CHART)
    for file in (*order, *order):
        assert cli("index", "ingest", file, "--study", "p").code == 0
    rows = load(cli, "p")
    assert len(rows) == 4
    assert rows["calm-sun-1"]["params"]["lr"] == 0.1
    series = load_series(cli, "p")
    assert series["p/calm-sun-1", "loss"] == [(1, 0.5), (2, 0.25)]
    assert series["p/calm-sun-1", "val/acc"] == [(100, 0.9)]
    assert series["p/other_-_run", "loss"] == [(1, 0.75)]


# ---------------------------------------------------------------- Optuna


def open_storage(path: Path) -> tuple[Any, Any]:
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    return optuna, JournalStorage(JournalFileBackend(str(path)))


def write_journal(path: Path, trials: int = 6) -> Any:
    """By Optuna itself: all states, all kinds of parameters."""
    optuna, storage = open_storage(path)
    study = optuna.create_study(
        study_name="tune/it", storage=storage, sampler=optuna.samplers.RandomSampler(0), load_if_exists=True
    )

    def objective(trial: Any) -> float:
        x, n = trial.suggest_float("x", -1, 1), trial.suggest_int("n", 1, 64, log=True)
        trial.suggest_categorical("opt", ["adam", None, 3])
        for step in range(3):
            trial.report(x + step, step)
        trial.set_user_attr("acc", 1 - x * x)
        trial.set_user_attr("who", "me")
        if trial.number == 1:
            raise optuna.TrialPruned
        if trial.number == 2:
            raise RuntimeError("no")
        return float("nan") if trial.number == 3 else x * n

    study.optimize(objective, n_trials=trials, catch=(RuntimeError,))
    return study


@pytest.mark.filterwarnings("ignore")
def test_a_journal_that_optuna_wrote(cli: Cli, own_bench: Bench) -> None:
    study = write_journal(own_bench.folder / "journal.log")
    study.enqueue_trial({"x": 0.5})
    result = cli("index", "ingest", "journal.log")
    assert result.code == 0, result.err
    assert "tune_it: 6 runs from optuna (6 new" in result.out
    assert "had not begun, and were left out: 1" in result.err
    rows, series = load(cli, "tune_it"), load_series(cli, "tune_it")
    states = {"COMPLETE": "done", "PRUNED": "pruned", "FAIL": "failed"}
    for trial in study.trials[:6]:
        row = rows[f"trial-{trial.number:04d}"]
        assert row["params"] == trial.params
        assert row["state"] == states[trial.state.name]
        assert row["metrics"]["acc"]["last"] == trial.user_attrs["acc"]
        values = series[f"tune_it/trial-{trial.number:04d}", "objective_loss_by_step"]
        assert values == list(trial.intermediate_values.items())
        if trial.values:
            assert row["metrics"]["objective_loss"]["last"] == trial.value
        assert row["seconds"] == pytest.approx(
            (trial.datetime_complete - trial.datetime_start).total_seconds(), abs=1e-5
        )
    best = f"trial-{study.best_trial.number:04d}"  # by the objective, not by `acc`, an attribute of the user's
    assert cli("sum", "tune_it").out.splitlines()[2].startswith(best)
    found = cli("best", "tune_it").out
    assert found[found.index("trial-") :].startswith(best), found
    write_journal(own_bench.folder / "journal.log", 2)
    assert "(2 new, 0 updated, 6 unchanged)" in cli("index", "ingest", "journal.log").out


@pytest.mark.filterwarnings("ignore")
def test_a_journal_of_several_studies_and_objectives(cli: Cli, own_bench: Bench) -> None:
    optuna, storage = open_storage(own_bench.folder / "journal.log")
    gone = optuna.create_study(study_name="gone", storage=storage)
    gone.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=1)
    optuna.delete_study(study_name="gone", storage=storage)
    two = optuna.create_study(study_name="two", storage=storage, directions=["minimize", "maximize"])
    two.set_metric_names(["loss", "acc"])
    two.optimize(lambda trial: (trial.suggest_float("x", 0, 1), 0.5), n_trials=2)
    optuna.create_study(study_name="three", storage=storage).add_trial(
        optuna.trial.create_trial(
            params={"y": 2}, distributions={"y": optuna.distributions.IntDistribution(0, 9)}, value=4.0
        )
    )
    assert "two, three: 3 runs from optuna" in cli("index", "ingest", "journal.log").out
    assert sorted(os.listdir(own_bench.root)) == ["three", "two"]
    assert {name: metric["last"] for name, metric in load(cli, "two")["trial-0001"]["metrics"].items()} == {
        "loss": two.trials[1].values[0],
        "acc": 0.5,
    }
    (row,) = load(cli, "three").values()
    assert (row["params"], row["metrics"]["objective_loss"]["last"]) == ({"y": 2}, 4.0)
    assert json.loads(cli("show", "two/trial-0000", "--json").out)["origin"]["directions"] == ["min", "max"]


CREATE = '{"op_code": 0, "worker_id": "w", "study_name": "s", "directions": [1]}\n'
TRIAL = '{"op_code": 4, "worker_id": "w", "study_id": 0, "datetime_start": "2024-05-01T12:00:00"}\n'


# ---------------------------------------------------------------- what is damaged is refused, and nothing is imported

Prepare = Callable[[Path], object]
"""Writes what is damaged into a folder."""


def damage_store(file: str, content: bytes | None) -> Prepare:
    def prepare(folder: Path) -> None:
        run = write_store(folder)
        write_store(folder, "good", id_="b" * 32)
        if content is None:
            (run / file).unlink()
        else:
            (run / file).write_bytes(content)

    return prepare


def damage_database(damage: Prepare) -> Prepare:
    def prepare(folder: Path) -> None:
        write_database(folder / "x.db", MLFLOW_TABLES)
        damage(folder / "x.db")

    return prepare


def write_tables(tables: str, change: str) -> Prepare:
    return lambda folder: write_database(folder / "x.db", f"{tables};{change};")


def write_text(name: str, content: str) -> Prepare:
    return lambda folder: (folder / name).write_bytes(content.encode("utf-8", "surrogateescape"))


def tear(path: Path) -> None:
    """The header is whole, the pages behind it are not."""
    data = path.read_bytes()
    path.write_bytes(data[:4096] + b"\xff" * (len(data) - 4096))


STORES: list[tuple[str, bytes | None, str]] = [
    ("meta.yaml", None, "meta.yaml: it is missing"),
    ("meta.yaml", b"run_id: [1", "meta.yaml: not YAML"),
    ("meta.yaml", b"\xff\xfe\0 run_id:", "it is not text (byte 1)"),
    ("meta.yaml", b"run_id: a\nstatus: 9\n", "status is 9"),
    ("meta.yaml", b"run_id: a\nstatus: 3\nstart_time: soon\n", "start_time is 'soon'"),
    ("metrics/train/loss", b"1700000001000 0.5 1\nnonsense\n", "loss:2: 'nonsense' is not"),
    ("metrics/train/loss", b"1 0.5 1\n" + b"9" * 5_000_000, "loss:2: "),
    ("metrics/train/loss", bytes(range(256)), "loss:1: "),
    ("params/lr", b"x" * 5_000_000, "params/lr: it is longer than 1 MiB"),
]  # fmt: skip
TABLES: list[tuple[str, str, str]] = [
    (MLFLOW_TABLES, "UPDATE runs SET status = 'ODD'", "x.db: run a1: status is 'ODD'"),
    (MLFLOW_TABLES, "UPDATE runs SET start_time = 'soon'", "x.db: run a1: start_time is 'soon'"),
    (MLFLOW_TABLES, "UPDATE metrics SET value = 'low'", "metric 'loss' of run a1 is (0, 'low'"),
    (MLFLOW_TABLES, "ALTER TABLE runs DROP COLUMN status", "the table runs has no column status"),
    (MLFLOW_TABLES, "DELETE FROM runs", "there are no runs in it"),
    (MLFLOW_TABLES, "DROP TABLE params", "found no runs in x.db"),
    (TRACKIO_TABLES, "UPDATE metrics SET metrics = '[1]' WHERE id = 2", "row 2 of metrics is not an object as JSON"),
    (TRACKIO_TABLES, "UPDATE metrics SET metrics = NULL", "row 1 of metrics is not an object as JSON"),
    (TRACKIO_TABLES, "UPDATE configs SET config = x'ff00'", "row 1 of configs is not an object as JSON"),
    (TRACKIO_TABLES, "UPDATE metrics SET step = 'a' WHERE id = 3", "row 3 of metrics has no time and step"),
    (TRACKIO_TABLES, "UPDATE metrics SET timestamp = 'noon'", "row 1 of metrics has no time and step: 'noon'"),
]  # fmt: skip
DATABASES: list[tuple[Prepare, tuple[str, ...], str]] = [
    (tear, (), "x.db: it cannot be read as a SQLite database: database disk image is malformed"),
    (lambda path: path.write_bytes(path.read_bytes()[:5000]), (), "it cannot be read as a SQLite database: "),
    (lambda path: path.write_bytes(b""), (), "known: "),
    (lambda path: path.write_bytes(b""), ("--as", "mlflow"), "x.db: it is empty"),
    (lambda path: path.write_bytes(b"words " * 99), ("--as", "trackio"), "file is not a database"),
    (lambda path: write_database(path, "DROP TABLE metrics"), ("--as", "mlflow"), "it has no table metrics"),
]  # fmt: skip
CSVS: list[tuple[str, str]] = [
    (TABLE.replace('"90"', '"soon"'), "project.csv:2: Runtime is 'soon'"),
    (TABLE.replace('"crashed"', '"gone"'), "project.csv:3: State is 'gone'"),
    (TABLE.replace('"calm-sun-1"', '""'), "project.csv:2: the run has no name"),
    (TABLE.replace('"0.9","100"', '"0.9"'), "project.csv:2: 13 cells, but the header has 14"),
    (TABLE.replace('"lr"', '"loss"'), "project.csv:1: the column 'loss' is there 3 times"),
    (TABLE.replace('"Notes"', '"State"'), "project.csv:1: the column 'State' is there 2 times"),
    (TABLE.replace("good one", "x" * 5_000_000), "project.csv:2: field larger than field limit"),
    (TABLE.replace("good one", "bad\udcff"), "it is not text (byte"),
    (TABLE.partition("\n")[0] + "\n", "there are no runs in it"),
    (CHART.replace('"0.25"', '"low"'), "project.csv:3: calm-sun-1 - loss is 'low'"),
    (CHART.replace('"2"', '"two"'), "project.csv:3: Step is 'two'"),
    (CHART.replace('"1","0.5"', '"1"'), "project.csv:2: 4 cells"),
    (CHART.replace("other - run - loss", "calm-sun-1 - loss"), "is there twice"),
]  # fmt: skip
JOURNALS: list[tuple[str, str]] = [
    (CREATE + TRIAL + '{"op_code": 6, "trial_', "j.log:3: it is not JSON; the file ends in the middle of a line"),
    (CREATE + "[1]\n", "j.log:2: it is not an operation"),
    (CREATE + '{"op_code": 99, "worker_id": "w"}\n', "j.log:2: it is not an operation of Optuna's journal (op_code is 99)"),
    (CREATE + '{"op_code": 4, "worker_id": "w"}\n', "j.log:2: it is not an operation of Optuna's journal ('study_id'"),
    (CREATE + TRIAL + '{"op_code": 6, "trial_id": 0, "state": 7, "values": null}\n', "j.log:3: "),
    (CREATE + TRIAL + '{"op_code": 5, "trial_id": 0, "param_name": "x", "param_value_internal": 1, '
     '"distribution": "{}"}\n', "j.log:3: "),
    (CREATE + TRIAL + '{"op_code": 7, "trial_id": 0, "step": 1, "intermediate_value": "low"}\n', "j.log:3: "),
    (CREATE + '{"x": "' + "y" * 5_000_000 + '"}\n', "j.log:2: it is not an operation"),
    (CREATE + "\udcff\udcfe\n", "j.log:2: it is not text"),
    (CREATE + "{" * 100_000 + "\n", "j.log:2: it is not JSON"),
    (CREATE, "there are no runs in it"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("prepare", "words", "problem"),
    [
        *((damage_store(file, content), ("mlruns",), problem) for file, content, problem in STORES),
        *((write_tables(tables, change), ("x.db",), problem) for tables, change, problem in TABLES),
        *((damage_database(damage), ("x.db", *more), problem) for damage, more, problem in DATABASES),
        *((write_text("project.csv", content), ("project.csv",), problem) for content, problem in CSVS),
        *((write_text("j.log", content), ("j.log",), problem) for content, problem in JOURNALS),
    ],
)
def test_what_is_damaged(cli: Cli, own_bench: Bench, prepare: Prepare, words: tuple[str, ...], problem: str) -> None:
    prepare(own_bench.folder)
    message = refused(cli, own_bench, *words)
    assert problem in message
    assert len(message) < 1000


# ---------------------------------------------------------------- where they go


def test_the_root_and_the_study(cli: Cli, own_bench: Bench) -> None:
    own_bench.write("a.csv", TABLE)
    assert "x: 3 runs" in cli("index", "ingest", "a.csv", "--root", "other", "--study", "x").out
    assert (own_bench.folder / "other" / "x" / "calm-sun-1" / "run.json").exists()
    assert cli("index", "ingest", "a.csv", "--as", "optuna").code == 2
    shutil.copy(own_bench.folder / "a.csv", own_bench.folder / "taken")
    refused_root = cli("index", "ingest", "a.csv", "--root", "taken")
    assert (refused_root.code, "Traceback" in refused_root.err) == (2, False)
    make_run(own_bench, "calm-sun-1", {"mine": 1}, [], study="p")  # a run of ours stays
    cli("index", "ingest", "a.csv", "--study", "p")
    rows = json.loads(cli("export", "json", "p").out)
    assert len(rows) == 4
    assert [row["params"] for row in rows if row["origin"] == "assay"] == [{"mine": 1}]


def test_a_metric_with_the_name_of_a_key(cli: Cli, own_bench: Bench) -> None:
    run = write_store(own_bench.folder)
    for name in ("step", "time", "epoch", "timestamp", "global_step"):
        (run / "metrics" / name).write_text("1700000001000 5 1\n")
    cli("index", "ingest", "mlruns")
    series = load_series(cli, "my_exp")
    names = {metric for _, metric in series}
    assert names == {"train/loss", "step_", "time_", "epoch", "timestamp", "global_step"}
    assert all(points == [(1, 5.0)] for (_, name), points in series.items() if name != "train/loss")
