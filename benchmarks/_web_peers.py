"""For `web.py`: the same data in MLflow, TensorBoard and Aim, and what comes nearest on their pages.

Their stores are filled in the fastest way that leaves what their own programs would: MLflow's tables of SQLite by bulk
inserts through its own models, event files by TensorBoard's record writer, and Aim by its `Run`, which is the only way;
it stores as many runs as it can within its time.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from _web_servers import READ, Server, Size, fill, find_port, start
from measuring import PEERS


class Question(NamedTuple):
    path: str
    body: Mapping[str, Any] | None = None  # JSON, by POST
    form: str = ""  # or this


class Peer(NamedTuple):
    """`page` and `rows`: its list of runs, and what is there when rows are visible; "" where it has none."""

    server: Server
    page: str
    rows: str
    sorted_runs: Callable[[int], Question]
    long_curve: Question
    curves: Question


_FILL_MLFLOW = (
    READ
    + """
import time as clock
import uuid
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
from mlflow.store.tracking.dbmodels import models
store = SqlAlchemyStore(f"sqlite:///{target}", f"{folder}/mlartifacts")
now = int(clock.time() * 1000)
kinds = (models.SqlRun, models.SqlTag, models.SqlParam, models.SqlMetric, models.SqlLatestMetric)
waiting = {kind: [] for kind in kinds}
def flush():
    with store.ManagedSessionMaker() as session:
        for kind in kinds:
            session.bulk_insert_mappings(kind, waiting[kind])
            waiting[kind].clear()
def begin(experiment, name, params):
    run = uuid.uuid4().hex
    waiting[models.SqlRun].append(dict(
        run_uuid=run, name=name, source_type="LOCAL", source_name="", entry_point_name="", user_id="me",
        status="FINISHED", start_time=now, end_time=now + 1000, source_version="", lifecycle_stage="active",
        artifact_uri=f"{folder}/mlartifacts/{run}", experiment_id=int(experiment)))
    waiting[models.SqlTag].append(dict(run_uuid=run, key="mlflow.runName", value=name))
    waiting[models.SqlParam].extend(dict(run_uuid=run, key=key, value=str(value)) for key, value in params.items())
    return run
def log(run, name, values):
    rows = [dict(run_uuid=run, key=name, value=value, timestamp=now + step, step=step, is_nan=False)
            for step, value in enumerate(values)]
    waiting[models.SqlMetric].extend(rows)
    waiting[models.SqlLatestMetric].append(rows[-1])
ids = {"table": store.create_experiment("table"), "long": store.create_experiment("long"),
       "overlay": store.create_experiment("overlay")}
for number, run in enumerate(table):
    found = begin(ids["table"], f"run-{number:05}", run["params"])
    for name, value in run["metrics"].items():
        log(found, name, [value])
    if number % 1000 == 999:
        flush()
ids["long_run"] = begin(ids["long"], "long", {"seed": 0})
log(ids["long_run"], "loss", curve("long"))
flush()
ids["runs"] = []
for number, name in enumerate(curves):
    ids["runs"].append(begin(ids["overlay"], name, {"seed": number}))
    log(ids["runs"][-1], "loss", curve(name))
flush()
json.dump(ids, open(f"{target}.json", "w"))
tell(len(table), len(curve("long")), len(curves))
"""
)


@contextmanager
def serve_mlflow(folder: Path, env: Mapping[str, str], size: Size) -> Iterator[Peer]:
    quiet = {**env, "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true", "MLFLOW_LOGGING_LEVEL": "ERROR"}
    database, port = folder / "mlflow.db", find_port()
    stored = fill(PEERS / "python", _FILL_MLFLOW, folder / "data", database, quiet, size.fill_s)
    ids = json.loads(Path(f"{database}.json").read_text())
    words = [PEERS / "mlflow", "server", "--backend-store-uri", f"sqlite:///{database}", "--port", port]
    words += ["--host", "127.0.0.1", "--workers", "1"]  # one process, as ours
    history = "/ajax-api/2.0/mlflow/metrics/get-history-bulk-interval?metric_key=loss&max_results=1500"
    with start("MLflow", words, port, stored, quiet, folder / "mlflow.log") as server:
        yield Peer(
            server,
            f"/#/experiments/{ids['table']}/runs",
            r"(document.body.innerText.match(/run-\d{5}/) || [])[0]",
            lambda number: Question(
                "/ajax-api/2.0/mlflow/runs/search",
                {
                    "experiment_ids": [ids["table"]],
                    "filter": f"metrics.loss < {0.9 - number / 1e3}",
                    "order_by": [f"metrics.`m{2 + number % 8}` DESC"],
                    "max_results": 50,
                },
            ),
            Question(f"{history}&run_ids={ids['long_run']}"),
            Question(f"{history}&{'&'.join(f'run_ids={run}' for run in ids['runs'])}"),
        )


_FILL_TENSORBOARD = (
    READ
    + """
from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.plugins.hparams.summary_v2 import hparams_pb
from tensorboard.summary.writer.record_writer import RecordWriter
now = 1.7e9
def write(run, events):
    os.makedirs(f"{target}/{run}")
    with open(f"{target}/{run}/events.out.tfevents.1700000000.bench", "wb") as file:
        writer = RecordWriter(file)
        writer.write(event_pb2.Event(wall_time=now, file_version="brain.Event:2").SerializeToString())
        for event in events:
            writer.write(event.SerializeToString())
def scalar(name, value, step):
    value = summary_pb2.Summary.Value(tag=name, simple_value=value)
    return event_pb2.Event(wall_time=now + step, step=step, summary=summary_pb2.Summary(value=[value]))
for number, run in enumerate(table):
    begin = event_pb2.Event(wall_time=now, summary=hparams_pb(run["params"], start_time_secs=now))
    write(f"table/run-{number:05}", [begin, *(scalar(*item, 1) for item in run["metrics"].items())])
write("curves/long", (scalar("loss", value, step) for step, value in enumerate(curve("long"))))
for name in curves:
    write(f"curves/{name}", (scalar("loss", value, step) for step, value in enumerate(curve(name))))
tell(len(table), len(curve("long")), len(curves))
"""
)


@contextmanager
def serve_tensorboard(folder: Path, env: Mapping[str, str], size: Size) -> Iterator[Peer]:
    """Its own program reads all files in the background: it is asked when it has all runs."""
    port = find_port()
    stored = fill(sys.executable, _FILL_TENSORBOARD, folder / "data", folder / "events", env, size.fill_s)
    words = [sys.executable, "-m", "tensorboard.main", "--logdir", folder / "events", "--port", port]
    words += ["--host", "127.0.0.1"]
    names = [f"curves/curve-{number}" for number in range(size.curves)]
    with start("TensorBoard", words, port, stored, env, folder / "tensorboard.log") as server:
        yield Peer(
            server,
            "",
            "",
            lambda number: Question(
                "/data/plugin/hparams/session_groups",
                {
                    "experimentName": "",
                    "allowedStatuses": ["STATUS_SUCCESS", "STATUS_UNKNOWN", "STATUS_RUNNING", "STATUS_FAILURE"],
                    "colParams": [
                        {"metric": {"group": "", "tag": f"m{2 + number % 8}"}, "order": "ORDER_DESC"},
                        {"metric": {"group": "", "tag": "loss"}, "filterInterval": {"minValue": 0, "maxValue": 0.9}},
                    ],
                    "startIndex": 0,
                    "sliceSize": 50,
                },
            ),
            Question("/data/plugin/scalars/scalars?run=curves%2Flong&tag=loss"),
            Question(
                "/data/plugin/scalars/scalars_multirun",
                form=urlencode([("tag", "loss"), *(("runs", name) for name in names)]),
            ),
        )


_FILL_AIM = (
    READ
    + """
import logging
logging.disable(logging.CRITICAL)
import aim
def begin(study, name, params):
    run = aim.Run(repo=target, experiment=study, system_tracking_interval=None, log_system_params=False,
                  capture_terminal_logs=False)
    run.name = name
    run["params"] = params
    return run
os.makedirs(target, exist_ok=True)
aim.Repo.from_path(target, init=True)
began = time.monotonic()  # to import it and to make a repository does not count
def draw(study, name, share):
    run = begin(study, name, {"seed": 0})
    for step, value in enumerate(curve(name)):
        if step % 1000 == 0 and is_late(share):
            break
        run.track(value, name="loss", step=step)
    run.close()
    return step + 1
points, lines = draw("long", "long", 0.3), 0
for name in curves:
    if is_late(0.6):
        break
    draw("overlay", name, 1.0)
    lines += 1
stored = 0
for number, entry in enumerate(table):
    if is_late():
        break
    run = begin("table", f"run-{number:05}", entry["params"])
    for name, value in entry["metrics"].items():
        run.track(value, name=name, step=1)
    run.close()
    stored += 1
tell(stored, points, lines)
"""
)


@contextmanager
def serve_aim(folder: Path, env: Mapping[str, str], size: Size) -> Iterator[Peer]:
    port, repository = find_port(), folder / "aim"
    quiet = {**env, "AIM_UI_TELEMETRY_ENABLED": "0", "PATH": f"{PEERS}:{env['PATH']}"}
    stored = fill(PEERS / "python", _FILL_AIM, folder / "data", repository, quiet, size.fill_s)
    words = [PEERS / "aim", "up", "--repo", repository, "--host", "127.0.0.1", "--port", port, "-y"]

    def ask_metric(study: str) -> Question:
        query = f"metric.name == 'loss' and run.experiment == '{study}'"
        return Question(f"/api/runs/search/metric/?{urlencode({'q': query, 'p': 1500, 'report_progress': 'false'})}")

    with start("Aim", words, port, stored, quiet, folder / "aim.log") as server:
        yield Peer(
            server,
            "/runs",
            r"(document.body.innerText.match(/run-\d{5}/) || [])[0]",
            lambda number: Question(
                "/api/runs/search/run/?limit=50&report_progress=false&q="
                + quote(f"run.params.lr < {0.05 - number / 1e5}")
            ),
            ask_metric("long"),
            ask_metric("overlay"),
        )


SERVE = {"mlflow": serve_mlflow, "tensorboard": serve_tensorboard, "aim": serve_aim}


def why_missing(module: str) -> str:
    """ "" where it is there."""
    python = sys.executable if module == "tensorboard" else PEERS / "python"
    if not Path(python).exists():
        return f"without {module}: there is no .venv-peers; make bench sets it up"
    tried = subprocess.run([str(python), "-c", f"import {module}"], capture_output=True, text=True, check=False)
    return f"without {module}: {tried.stderr.strip().splitlines()[-1]}" if tried.returncode else ""
