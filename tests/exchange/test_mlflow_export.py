"""`assay export mlflow`, read back by MLflow's own client."""

from __future__ import annotations

import json
import math
import shutil
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.command_line import Cli
from tests.exchange.commands.test_export import make_run
from tests.finished_study import BAD, GOOD, Bench

from assay.exchange.mlflow_export import _clean_name
from assay.record.received import Received, write_received

if find_spec("mlflow") is None:  # not imported yet: each worker collects this file, and one of them runs it
    pytest.skip("mlflow is not installed", allow_module_level=True)


@pytest.fixture
def client(own_bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Of the folder `store`. What MLflow prints and asks for is none of the test's business."""
    for name in ("MLFLOW_ALLOW_FILE_STORE", "MLFLOW_DISABLE_TELEMETRY"):
        monkeypatch.setenv(name, "true")
    from mlflow.tracking import MlflowClient

    return MlflowClient(f"file://{own_bench.folder}/store")


def load_runs(client: Any, study: str = "made") -> dict[str, Any]:
    experiment = client.get_experiment_by_name(study)
    return {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}


def load_points(client: Any, run: Any, metric: str) -> list[tuple[int, int, float]]:
    return [(p.step, p.timestamp, p.value) for p in client.get_metric_history(run.info.run_id, metric)]


def add_lines(bench: Bench, name: str, lines: list[dict[str, object]]) -> None:
    with open(bench.root / "made" / name / "metrics" / "a1-r0-host-1-1.jsonl", "a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


@pytest.mark.filterwarnings("ignore")
class TestStore:
    def test_runs_of_a_study(self, cli: Cli, own_bench: Bench, client: Any) -> None:
        """States, times, parameters, metrics and files of runs that really ran."""

        own_bench.add_finished()
        result = cli("export", "mlflow", "fit", "--to", "store")
        assert result.code == 0, result.err
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

    def test_an_upload_is_marked_and_takes_the_place_of_no_run(self, cli: Cli, own_bench: Bench, client: Any) -> None:
        """Its uid is what its sender wrote: here that of the owner's run."""
        make_run(own_bench, "a", {}, [{"step": 1, "time": 1e9, "loss": 0.5}])
        forged = own_bench.root / "made" / "zz"
        shutil.copytree(own_bench.root / "made" / "a", forged)
        (forged / "metrics" / "a1-r0-host-1-1.jsonl").write_text('{"step": 1, "time": 1e9, "loss": 0.001}\n')
        write_received(str(forged), Received("upload", "192.0.2.7", "upload token 123abc", 1.0))
        assert cli("export", "mlflow", "--to", "store").code == 0
        runs = {run.data.tags["assay.key"]: run for run in load_runs(client).values()}
        assert {key: run.data.metrics["loss"] for key, run in runs.items()} == {"made/a": 0.5, "made/zz": 0.001}
        said = "upload from 192.0.2.7 by upload token 123abc"
        assert [run.data.tags.get("assay.received", "") for _, run in sorted(runs.items())] == ["", said]

    def test_exporting_again_adds_what_is_new(self, cli: Cli, own_bench: Bench, client: Any) -> None:
        make_run(own_bench, "a", {"lr": 0.1}, [{"step": i, "time": 1e9 + i, "loss": i} for i in range(3)])
        make_run(own_bench, "b", {}, [{"step": 1, "loss": 1}])
        cli("export", "mlflow", "--to", "store")
        again = cli("export", "mlflow", "--to", "store")
        assert "2 runs (0 new, 0 updated, 2 unchanged), 0 points" in again.out
        add_lines(
            own_bench, "a", [{"step": 3, "time": 1e9 + 3, "loss": math.nan}, {"step": 4, "time": 1e9 + 4, "acc": 1}]
        )
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
        self, cli: Cli, own_bench: Bench, client: Any, monkeypatch: pytest.MonkeyPatch
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
        assert broken.code == 4
        assert "No space left" in broken.err
        assert sent[-2:] == [5, 5]
        assert "1 run (0 new, 1 updated, 0 unchanged), 5 points" in cli("export", "mlflow", "--to", "store").out
        (run,) = load_runs(client).values()
        assert {name: len(load_points(client, run, name)) for name in ("loss", "acc", "wer")} == dict.fromkeys(
            ("loss", "acc", "wer"), 5
        )

    def test_limits_of_mlflow(self, cli: Cli, own_bench: Bench, client: Any) -> None:
        params = {"long": "x" * 7000, "a$b": 1, "a%b": 2, "../up": 3, "opt": "sgd", "opt/lr": 4, "n" * 300: 5}
        lines: list[dict[str, object]] = [{"step": i, "time": 5, "lo$$": i / 3} for i in range(2500)]
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
        assert len(load_points(client, run, "lo__")) == 2500
        assert load_points(client, run, "x")[0][0] == 0
        assert load_points(client, run, "y")[0][2] == -math.inf
        assert "0 updated" in cli("export", "mlflow", "--to", "store").out

    def test_files_that_were_asked_for(self, cli: Cli, own_bench: Bench, client: Any) -> None:
        make_run(own_bench, "a", {}, [])
        folder = own_bench.root / "made" / "a"
        (folder / "out").mkdir()
        (folder / "out" / "model.pt").write_bytes(b"weights")
        (folder / "secrets.sh").write_text("export KEY=1")
        (folder / "link").symlink_to("/etc/hostname")
        cli("export", "mlflow", "--to", "store", "--artifacts", "out", "--artifacts", "*")
        (run,) = load_runs(client).values()
        top = {each.path for each in client.list_artifacts(run.info.run_id)}
        assert {"run.json", "out"} <= top
        assert not {"secrets.sh", "link"} & top
        assert [each.path for each in client.list_artifacts(run.info.run_id, "out")] == ["out/model.pt"]
        (folder / "out" / "model.pt").write_bytes(b"more weights")
        cli("export", "mlflow", "--to", "store", "--artifacts", "out")
        assert client.list_artifacts(run.info.run_id, "out")[0].file_size == 12
        assert cli("export", "mlflow", "--to", "store", "--artifacts", "../x").code == 2
        assert cli("export", "mlflow", "--to", "store", "--artifacts", "x", "--no-artifacts").code == 2

    def test_without_files_and_with_where(self, cli: Cli, own_bench: Bench, client: Any) -> None:
        make_run(own_bench, "a", {"lr": 0.1}, [])
        make_run(own_bench, "b", {"lr": 0.2}, [])
        assert cli("export", "mlflow", "--to", "store", "--where", "lr>0.1", "--no-artifacts").code == 0
        (run,) = load_runs(client).values()
        assert run.info.run_name == "b"
        assert client.list_artifacts(run.info.run_id) == []
        assert cli("export", "mlflow", "--to", "store", "--where", "lr>1").code == 2

    def test_a_deleted_experiment(self, cli: Cli, own_bench: Bench, client: Any) -> None:
        make_run(own_bench, "a", {}, [])
        cli("export", "mlflow", "--to", "store")
        client.delete_experiment(client.get_experiment_by_name("made").experiment_id)
        result = cli("export", "mlflow", "--to", "store")
        assert result.code == 2
        assert "mlflow experiments restore" in result.err


def test_a_store_that_is_damaged(cli: Cli, own_bench: Bench) -> None:
    make_run(own_bench, "a", {}, [])
    (own_bench.folder / "store" / "5").mkdir(parents=True)
    own_bench.write("store/5/meta.yaml", "experiment_id: '5'\nlifecycle_stage: active\nname: made\n")
    result = cli("export", "mlflow", "--to", "store")
    assert result.code == 4
    assert "MLflow at store refused" in result.err


def test_a_folder_in_the_store_that_is_not_an_experiment(
    cli: Cli, own_bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    make_run(own_bench, "a", {}, [])
    (own_bench.folder / "store" / "1" / "artifacts").mkdir(parents=True)
    result = cli("export", "mlflow", "--to", "store")
    assert result.code == 0
    assert "Traceback" not in result.err + caplog.text


@pytest.mark.filterwarnings("ignore")
def test_a_database(cli: Cli, own_bench: Bench) -> None:
    """It keeps the largest number for an infinity, and one of two equal points."""
    pytest.importorskip("sqlalchemy")
    pytest.importorskip("alembic")
    lines: list[dict[str, object]] = [{"step": 1, "time": 5, "loss": math.nan, "acc": math.inf}, {"step": 2, "loss": 1}]
    make_run(own_bench, "a", {"lr": 0.1}, [*lines, {"step": 2, "loss": 1}])
    first = cli("export", "mlflow", "--to", "sqlite:///x.db", "--no-artifacts")
    assert first.code == 0, first.err
    assert "(1 new, 0 updated, 0 unchanged), 3 points" in first.out
    add_lines(own_bench, "a", [{"step": 3, "loss": 2}])
    again = cli("export", "mlflow", "--to", "sqlite:///x.db", "--no-artifacts")
    assert "(0 new, 1 updated, 0 unchanged), 1 point" in again.out


def test_names() -> None:
    assert _clean_name("train/loss", {"train/loss"}) == "train/loss"
    assert _clean_name("a b.c:d-e", set()) == "a b.c:d-e"
    assert _clean_name("", set()) == "_"
    assert _clean_name("..", set()) == "_."
    assert "/" not in _clean_name("/etc/passwd", set())
    assert len(_clean_name("ü" * 400, set())) == 250


# ---------------------------------------------------------------- where nothing can be sent


def test_the_environment_is_as_before(cli: Cli, own_bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    make_run(own_bench, "a", {}, [])
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    assert cli("export", "mlflow", "--to", "store").code == 0
    assert "MLFLOW_ALLOW_FILE_STORE" not in os.environ


@pytest.mark.parametrize("uri", ["", "http://", "http://[", "nothing://here"])
def test_a_wrong_uri(cli: Cli, own_bench: Bench, uri: str) -> None:
    make_run(own_bench, "a", {}, [])
    result = cli("export", "mlflow", "--to", uri)
    assert result.code == 2
    assert "--to ./mlruns" in result.err


def test_a_server_that_is_not_there(cli: Cli, own_bench: Bench, closed_port: int) -> None:
    make_run(own_bench, "a", {}, [])
    result = cli("export", "mlflow", "--to", f"http://me:hunter2@127.0.0.1:{closed_port}", "--timeout", "2")
    assert (result.code, result.out) == (4, "")
    assert "hunter2" not in result.err
    assert "does not answer" in result.err
    assert "Traceback" not in result.err


def test_a_server_that_never_answers(cli: Cli, own_bench: Bench) -> None:
    make_run(own_bench, "a", {}, [])
    with socket.create_server(("127.0.0.1", 0)) as server:
        result = cli("export", "mlflow", "--to", f"http://127.0.0.1:{server.getsockname()[1]}", "--timeout", "1")
    assert result.code == 4
    assert "does not answer" in result.err


class _Other(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_error(404)

    do_POST = do_GET  # noqa: N815 as the library calls it

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def other_server() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), _Other)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_server_that_is_not_mlflow(cli: Cli, own_bench: Bench, other_server: str) -> None:
    make_run(own_bench, "a", {}, [])
    result = cli("export", "mlflow", "--to", other_server)
    assert result.code == 2
    assert "404" in result.err


def test_without_mlflow_the_message_says_what_to_install(
    cli: Cli, own_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    make_run(own_bench, "a", {}, [])
    monkeypatch.setitem(sys.modules, "mlflow.tracking", None)
    result = cli("export", "mlflow", "--to", "store")
    assert result.code == 2
    assert "pip install 'assay[mlflow]'" in result.err
    assert not Path("store").exists()
