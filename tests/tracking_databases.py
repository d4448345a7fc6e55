"""Databases in the form of MLflow and Trackio, as far as they are read; and a real one of MLflow."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

MLFLOW_TABLES = """
CREATE TABLE experiments (experiment_id, name, lifecycle_stage);
CREATE TABLE runs (run_uuid, experiment_id, status, start_time, end_time, lifecycle_stage);
CREATE TABLE params (run_uuid, key, value);
CREATE TABLE tags (run_uuid, key, value);
CREATE TABLE metrics (run_uuid, key, value, timestamp);
INSERT INTO experiments VALUES (7, 'my exp', 'active');
INSERT INTO runs VALUES ('a1', 7, 'FINISHED', 1700000000000, 1700000060000, 'active');
INSERT INTO params VALUES ('a1', 'lr', '0.1');
INSERT INTO metrics VALUES ('a1', 'loss', 0.5, 1700000001000);
"""
TRACKIO_TABLES = """
PRAGMA journal_mode = WAL;
CREATE TABLE metrics (id INTEGER PRIMARY KEY, run_id TEXT, timestamp TEXT, run_name TEXT, step INTEGER, metrics TEXT);
CREATE TABLE configs (id INTEGER PRIMARY KEY, run_id TEXT, run_name TEXT, config TEXT, created_at TEXT, UNIQUE(run_id));
CREATE TABLE system_metrics (id INTEGER PRIMARY KEY, run_id TEXT, timestamp TEXT, run_name TEXT, metrics TEXT);
CREATE TABLE alerts (id INTEGER PRIMARY KEY, title TEXT);
INSERT INTO alerts VALUES (1, 'low');
INSERT INTO metrics VALUES (1, 'f1', '2026-11-17T05:46:54+00:00', 'calm-sun', 0, CAST('{"train":{"loss":1.0},"word":"x"}' AS BLOB));
INSERT INTO metrics VALUES (2, 'f1', '2026-11-17T05:46:56+00:00', 'calm-sun', 1, '{"train":{"loss":"NaN"},"acc":"-Infinity","flag":true}');
INSERT INTO metrics VALUES (3, 'f2', '2026-11-17T05:46:56+00:00', 'calm-sun', 5, '{"acc":1,"shot":{"_type":"trackio.image","file_path":"a.png"}}');
INSERT INTO system_metrics VALUES (1, 'f1', '2026-11-17T05:46:55+00:00', 'calm-sun', '{"gpu":{"0":50.5}}');
INSERT INTO configs VALUES (1, 'f1', 'calm-sun', '{"lr":0.1,"layers":[1,2],"_Username":"me","_Created":"2026-11-17T05:46:50+00:00","_Group":null}', 'x');
"""


def write_database(path: Path, tables: str) -> Path:
    with closing(sqlite3.connect(path)) as database:
        database.executescript(tables)
    return path


@pytest.fixture(scope="session")
def mlflow_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database without runs, as MLflow makes it for `assay export mlflow --to mlflow.db`: that takes a second, so the
    tests copy it."""
    pytest.importorskip("mlflow", reason="pip install 'assay[mlflow]'")
    from assay.exchange.mlflow_export import MlflowRequest, _environment, _open_client

    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    with _environment(request := MlflowRequest(to=str(path))):
        _open_client(request)
    return path
