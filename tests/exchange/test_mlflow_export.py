"""`assay export mlflow`, read back by MLflow's own client."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from tests.bad_servers import recording
from tests.command_line import Cli
from tests.data_servers import free_port, wait_for_port
from tests.exchange.commands.test_export import make_run
from tests.finished_study import BAD, GOOD, Bench

from assay.exchange.mlflow_export import _clean_name
from assay.record.received import Received, write_received

if find_spec("mlflow") is None:  # not imported yet: each worker collects this file, and one of them runs it
    pytest.skip("mlflow is not installed: pip install 'assay[mlflow]'", allow_module_level=True)

pytestmark = pytest.mark.filterwarnings("ignore")  # MLflow's own warnings are not ours to fix


@pytest.fixture
def client(own_bench: Bench, mlflow_database: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Of the database in the folder `store`, by MLflow's own code, with which its server reads as well."""
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow.tracking import MlflowClient

    (own_bench.folder / "store").mkdir()
    path = shutil.copy(mlflow_database, own_bench.folder / "store" / "mlflow.db")
    return MlflowClient(f"sqlite:///{path}")


def load_runs(client: Any, study: str = "made") -> dict[str, Any]:
    experiment = client.get_experiment_by_name(study)
    return {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}


def load_points(client: Any, run: Any, metric: str) -> list[tuple[int, int, float]]:
    return [(p.step, p.timestamp, p.value) for p in client.get_metric_history(run.info.run_id, metric)]


def add_lines(bench: Bench, name: str, lines: list[dict[str, object]]) -> None:
    with open(bench.root / "made" / name / "metrics" / "a1-r0-host-1-1.jsonl", "a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def test_runs_of_a_study(cli: Cli, own_bench: Bench, client: Any) -> None:
    """States, times, parameters, metrics and files of runs that really ran."""
    own_bench.add_finished()
    before = dict(os.environ)
    result = cli("export", "mlflow", "fit", "--to", "store")
    assert result.code == 0, result.err
    assert dict(os.environ) == before
    assert "4 runs (4 new, 0 updated, 0 unchanged), 14 points" in result.out
    runs = load_runs(client, "fit")
    good, bad = runs[GOOD], runs[BAD]
    assert (good.info.status, bad.info.status) == ("FINISHED", "FAILED")
    assert good.data.params == {"lr": "0.1", "n": "7"}
    assert [(step, value) for step, _, value in load_points(client, good, "loss")] == [(1, 3.7), (2, 2.7), (3, 1.7)]
    assert good.data.metrics["test.acc"] == 0.7
    tags = good.data.tags
    assert (tags["assay.key"], tags["assay.state"]) == (f"fit/{GOOD}", "done")
    assert tags["assay.uid"] == json.loads((own_bench.root / "fit" / GOOD / "run.json").read_text())["uid"]
    assert good.info.end_time >= good.info.start_time > 1_600_000_000_000
    names = {each.path for each in client.list_artifacts(good.info.run_id)}
    assert {"run.json", "job.sh", "environment.json", "train.log", "test.log"} <= names
    client.delete_experiment(client.get_experiment_by_name("fit").experiment_id)
    cli("export", "mlflow", "fit", "--to", "store").ended(2, "mlflow experiments restore")


def test_chosen_runs_and_files_and_an_upload_that_takes_the_place_of_no_run(
    cli: Cli, own_bench: Bench, client: Any
) -> None:
    """The uid of an upload is what its sender wrote: here that of the owner's run."""
    make_run(own_bench, "a", {"lr": 0.2}, [{"step": 1, "time": 1e9, "loss": 0.5}])
    make_run(own_bench, "b", {"lr": 0.1}, [])
    folder, forged = own_bench.root / "made" / "a", own_bench.root / "made" / "zz"
    shutil.copytree(folder, forged)
    (forged / "metrics" / "a1-r0-host-1-1.jsonl").write_text('{"step": 1, "time": 1e9, "loss": 0.001}\n')
    write_received(str(forged), Received("upload", "192.0.2.7", "upload token 123abc", 1.0))
    assert cli("export", "mlflow", "--to", "store", "--where", "lr>0.1", "--no-artifacts").code == 0
    runs = {run.data.tags["assay.key"]: run for run in load_runs(client).values()}
    assert {key: run.data.metrics["loss"] for key, run in runs.items()} == {"made/a": 0.5, "made/zz": 0.001}
    said = "upload from 192.0.2.7 by upload token 123abc"
    assert [run.data.tags.get("assay.received", "") for _, run in sorted(runs.items())] == ["", said]
    run_id = runs["made/a"].info.run_id
    assert client.list_artifacts(run_id) == []
    assert "store: 0 runs" in cli("export", "mlflow", "--to", "store", "--where", "lr>1").out
    (folder / "out").mkdir()
    (folder / "out" / "model.pt").write_bytes(b"weights")
    (folder / "secrets.sh").write_text("export KEY=1")
    (folder / "link").symlink_to("/etc/hostname")
    cli("export", "mlflow", "made/a", "--to", "store", "--artifacts", "")  # an empty pattern is no file's
    assert "out" not in {each.path for each in client.list_artifacts(run_id)}
    cli("export", "mlflow", "made/a", "--to", "store", "--artifacts", "out", "--artifacts", "*")
    top = {each.path for each in client.list_artifacts(run_id)}
    assert {"run.json", "out"} <= top
    assert not {"secrets.sh", "link"} & top
    assert [each.path for each in client.list_artifacts(run_id, "out")] == ["out/model.pt"]
    (folder / "out" / "model.pt").write_bytes(b"more weights")
    cli("export", "mlflow", "made/a", "--to", "store", "--artifacts", "out")
    assert client.list_artifacts(run_id, "out")[0].file_size == 12
    for words in (["../x"], ["x", "--no-artifacts"]):
        assert cli("export", "mlflow", "--to", "store", "--artifacts", *words).code == 2


def test_exporting_again_adds_what_is_new(cli: Cli, own_bench: Bench, client: Any) -> None:
    make_run(own_bench, "a", {"lr": 0.1}, [{"step": i, "time": 1e9 + i, "loss": i} for i in range(3)])
    make_run(own_bench, "b", {}, [{"step": 1, "loss": 1}])
    cli("export", "mlflow", "--to", "store")
    again = cli("export", "mlflow", "--to", "store")
    assert "2 runs (0 new, 0 updated, 2 unchanged), 0 points" in again.out
    add_lines(own_bench, "a", [{"step": 3, "time": 1e9 + 3, "loss": math.nan}, {"step": 4, "time": 1e9 + 4, "acc": 1}])
    cli("tag", "made/a", "good")
    grown = cli("export", "mlflow", "--to", "store")
    assert "2 runs (0 new, 1 updated, 1 unchanged), 2 points" in grown.out
    runs = load_runs(client)
    assert len(runs) == 2
    points = load_points(client, runs["a"], "loss")
    assert [step for step, _, _ in points] == [0, 1, 2, 3]
    assert points[2] == (2, 1_000_000_002_000, 2.0)
    assert math.isnan(points[3][2])
    assert runs["a"].data.tags["assay.tags"] == "good"
    assert "0 points" in cli("export", "mlflow", "--to", "store").out


def test_a_call_that_was_interrupted_is_completed(
    cli: Cli, own_bench: Bench, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(own_bench, "a", {"lr": 0.1}, [{"step": i, "loss": i, "acc": i, "wer": i} for i in range(5)])
    from mlflow.tracking import MlflowClient

    sent: list[int] = []
    log_batch = MlflowClient.log_batch

    def fail_later(self: Any, run_id: str, metrics: Any = (), **more: Any) -> Any:
        sent.append(len(metrics))
        if len(sent) == 4:
            raise OSError(28, "No space left on device")
        return log_batch(self, run_id, metrics=metrics, **more)

    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "log_batch", fail_later)
        broken = cli("export", "mlflow", "--to", "store")
    assert (broken.code, "No space left" in broken.err) == (4, True)
    assert sent[-2:] == [5, 5]
    assert "1 run (0 new, 1 updated, 0 unchanged), 5 points" in cli("export", "mlflow", "--to", "store").out
    (run,) = load_runs(client).values()
    assert [len(load_points(client, run, name)) for name in ("loss", "acc", "wer")] == [5, 5, 5]


def test_limits_of_mlflow_and_names(cli: Cli, own_bench: Bench, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assay.exchange.mlflow_export._BATCH_METRICS", 10)
    params = {"long": "x" * 7000, "a$b": 1, "a%b": 2, "../up": 3, "opt": "sgd", "opt/lr": 4, "n" * 300: 5}
    lines: list[dict[str, object]] = [{"step": i, "time": 5, "lo$$": i / 3} for i in range(25)]
    make_run(own_bench, "a", params, [*lines, {"step": 0.5, "x": math.inf}, {"y": -math.inf}])
    result = cli("export", "mlflow", "--to", "store")
    assert result.code == 0, result.err
    assert "'long' has 7000 characters and is cut to 6000" in result.err
    assert "more such changes" in result.err
    (run,) = load_runs(client).values()
    assert len(run.data.params) == len(params)
    assert len(run.data.params["long"]) == 6000
    assert {run.data.params["a_b"], run.data.params["a_b_2"]} == {"1", "2"}
    assert (run.data.params["opt"], run.data.params["opt_lr"]) == ("sgd", "4")
    assert len(load_points(client, run, "lo__")) == 25
    assert load_points(client, run, "x")[0][0] == 0
    assert load_points(client, run, "y")[0][2] == -1.7976931348623157e308  # what its databases keep of it
    assert "0 updated" in cli("export", "mlflow", "--to", "store").out
    for name in ("train/loss", "a b.c:d-e"):
        assert _clean_name(name, {"train/loss"}) == name
    assert [_clean_name(name, set()) for name in ("", "..")] == ["_", "_."]
    assert "/" not in _clean_name("/etc/passwd", set())
    assert len(_clean_name("ü" * 400, set())) == 250


def test_a_database(cli: Cli, own_bench: Bench, mlflow_database: Path) -> None:
    """It keeps the largest number for an infinity, and one of two equal points; files go next to it."""
    lines: list[dict[str, object]] = [{"step": 1, "time": 5, "loss": math.nan, "acc": math.inf}, {"step": 2, "loss": 1}]
    make_run(own_bench, "a", {"lr": 0.1}, [*lines, {"step": 2, "loss": 1}])
    (own_bench.folder / "of others").mkdir()
    shutil.copy(mlflow_database, own_bench.folder / "of others" / "x.db")
    first = cli("export", "mlflow", "--to", "of others/x.db")
    assert first.code == 0, first.err
    assert "(1 new, 0 updated, 0 unchanged), 3 points, 2 files" in first.out
    assert [*own_bench.folder.glob("of others/mlartifacts/made/*/artifacts/run.json")]
    add_lines(own_bench, "a", [{"step": 3, "loss": 2}])
    again = cli("export", "mlflow", "--to", f"sqlite:///{own_bench.folder}/of others/x.db", "--no-artifacts")
    assert "(0 new, 1 updated, 0 unchanged), 1 point" in again.out


def tear(path: Path, empty: Path) -> None:
    path.write_bytes(empty.read_bytes()[:40_000])


def make_newer(path: Path, empty: Path) -> None:
    shutil.copy(empty, path)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE alembic_version SET version_num = 'of-the-future'")


def make_foreign(path: Path, _empty: Path) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE notes (text)")


def make_folder(path: Path, empty: Path) -> None:
    path.mkdir()
    shutil.copy(empty, path / "mlflow.db")


@pytest.mark.parametrize(
    ("make", "code", "message"),
    [
        (lambda path, _: path.write_text("hello " * 1000), 2, "x.db is not a SQLite database that can be used"),
        (tear, 2, "x.db is not a SQLite database that can be used: database disk image is malformed"),
        (make_foreign, 2, "x.db is a database of another program: it has no table experiments"),
        (make_newer, 2, "x.db was made by another version of MLflow"),
        (make_folder, 0, ""),
        (lambda path, _: path.symlink_to("/nowhere/x.db"), 4, "x.db cannot be written: unable to open database file"),
    ],
    ids=["text", "torn", "foreign", "newer", "folder", "broken link"],
)
def test_a_database_that_cannot_be_used(
    cli: Cli, own_bench: Bench, mlflow_database: Path, make: Callable[[Path, Path], object], code: int, message: str
) -> None:
    make_run(own_bench, "a", {}, [])
    make(own_bench.folder / "x.db", mlflow_database)
    result = cli("export", "mlflow", "--to", "x.db", "--no-artifacts")
    assert (result.code, message in result.err, "Traceback" in result.err) == (code, True, False), result.err


def test_a_database_that_is_locked(cli: Cli, own_bench: Bench, mlflow_database: Path) -> None:
    make_run(own_bench, "a", {}, [])
    shutil.copy(mlflow_database, own_bench.folder / "x.db")
    with closing(sqlite3.connect(own_bench.folder / "x.db")) as other:
        other.execute("BEGIN IMMEDIATE")
        result = cli("export", "mlflow", "--to", "x.db", "--timeout", "1")
    assert result.code == 4
    assert "x.db cannot be written: database is locked\n  another program writes to it" in result.err


@pytest.mark.services("frameworks")
def test_a_server_shows_what_was_written(cli: Cli, own_bench: Bench, mlflow_server: MlflowServer) -> None:
    """MLflow's own server opens the database that we wrote, and takes runs by its address as well."""
    own_bench.add_finished()
    assert cli("export", "mlflow", "fit", "--to", mlflow_server.database).code == 0
    with mlflow_server.running() as address:
        found = mlflow_server.ask(address, "runs/search", {"experiment_ids": ["1"]})["runs"]
        assert {run["info"]["run_name"]: run["info"]["status"] for run in found}.items() >= {
            (GOOD, "FINISHED"),
            (BAD, "FAILED"),
        }
        good = next(run for run in found if run["info"]["run_name"] == GOOD)
        assert {each["key"]: each["value"] for each in good["data"]["params"]} == {"lr": "0.1", "n": "7"}
        listed = mlflow_server.ask(address, f"artifacts/list?run_id={good['info']['run_id']}")
        assert {"run.json", "job.sh"} <= {each["path"] for each in listed["files"]}
        assert "(0 new, 0 updated, 4 unchanged)" in cli("export", "mlflow", "fit", "--to", address).out
        make_run(own_bench, "a", {}, [{"step": 1, "loss": 0.5}])
        sent = cli("export", "mlflow", "made", "--to", address)
        assert "(1 new, 0 updated, 0 unchanged), 1 point, 2 files" in sent.out, sent.err


class MlflowServer:
    def __init__(self, folder: Path) -> None:
        self.folder, self.database = folder, str(folder / "mlflow.db")

    @contextmanager
    def running(self) -> Iterator[str]:
        """As `mlflow server` starts it in the folder, less its queue of jobs, which needs all of MLflow."""
        port = free_port()
        command = [sys.executable, "-m", "mlflow", "server", "--port", str(port), "--workers", "1"]
        quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        with open(self.folder / "server.log", "wb") as log:
            process = subprocess.Popen(
                command, cwd=self.folder, env={**os.environ, **quiet}, stdout=log, stderr=log, start_new_session=True
            )
        try:
            wait_for_port(port, process, self.folder / "server.log")
            yield f"http://127.0.0.1:{port}"
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def ask(self, address: str, question: str, content: object = None) -> Any:
        data = None if content is None else json.dumps(content).encode()
        request = Request(f"{address}/api/2.0/mlflow/{question}", data, {"Content-Type": "application/json"})
        with urlopen(request, timeout=60) as answer:
            return json.load(answer)


@pytest.fixture
def mlflow_server(tmp_path: Path) -> MlflowServer:
    (tmp_path / "server").mkdir()
    return MlflowServer(tmp_path / "server")


# ---------------------------------------------------------------- where nothing can be sent


def test_where_nothing_can_be_sent(
    cli: Cli, own_bench: Bench, closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(own_bench, "a", {}, [])
    (own_bench.folder / "mlruns" / "5").mkdir(parents=True)
    own_bench.write("mlruns/5/meta.yaml", "experiment_id: '5'\nlifecycle_stage: active\nname: made\n")
    since = "which MLflow does not open since"

    def refuse(code: int, uri: str, *said: str) -> None:
        result = cli("export", "mlflow", "--to", uri, "--timeout", "1")
        assert (result.code, result.out) == (code, ""), result.err
        assert [words for words in said if words not in result.err] == [], result.err
        assert not [words for words in ("hunter2", "Traceback") if words in result.err]

    for uri in ("", "http://", "http://[", "nothing://here"):
        refuse(2, uri, "--to mlflow.db")
    refuse(2, "mlruns", since, "`mlflow migrate-filestore --source mlruns --target sqlite:///mlflow.db`")
    refuse(2, f"file://{own_bench.folder}/new", since)
    refuse(2, "50%.db", "% or ? in its path")
    refuse(4, f"http://me:hunter2@127.0.0.1:{closed_port}", "does not answer")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        refuse(4, f"http://127.0.0.1:{silent.getsockname()[1]}", "does not answer")
    with recording(lambda _got: (404, b"")) as other:
        refuse(2, other.url, "404")
    monkeypatch.setitem(sys.modules, "mlflow.tracking", None)
    refuse(2, "store", "pip install 'assay[mlflow]'")
    assert not Path("store").exists()
