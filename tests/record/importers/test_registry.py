"""The list of importers: every kind of file is recognised by its content, and each command names the other."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.command_line import Cli
from tests.finished_study import Bench
from tests.tracking_databases import MLFLOW_TABLES, TRACKIO_TABLES, write_database

from assay.plugins import load
from assay.reading.commands.index import IngestRequest
from assay.record.importers.registry import choose_importer, describe_known, find_importers
from assay.record.importers.sample import Sample


def test_names_and_readers() -> None:
    names = [importer.name for importer in find_importers()]
    assert len(set(names)) == len(names)
    for importer in find_importers():
        assert callable(load(importer.recognise))
        assert bool(importer.load) == (importer.gives != "folders")
        assert not importer.load or callable(load(importer.load))


def test_the_help_names_every_importer_of_runs() -> None:
    text = IngestRequest.OPTIONS["importer"].help
    assert all(importer.name in text for importer in find_importers() if importer.gives == "runs")


def write(name: str, text: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return folder if "/" in name else path

    return make


FILES = {
    "mlperf": write("log", 'x\n:::MLLOG {"key": "run_start"}\n'),
    "asv": write("a.json", '{"results": {}, "commit_hash": "a"}'),
    "perfzero": write("a.json", '{"benchmark_result": {}, "execution_timestamp": 1}'),
    "google-benchmark": write("a.json", '{"context": {}, "benchmarks": []}'),
    "pytest-benchmark": write("a.json", '{"machine_info": {}, "benchmarks": []}'),
    "mlflow": write("0/meta.yaml", "experiment_id: '0'\nname: Default\n"),
    "wandb": write("a.csv", '"Name","State","lr"\n"a","finished","1"\n'),
    "wandb-history": write("a.csv", '"Step","a - loss","a - loss__MIN"\n"1","2","2"\n'),
    "optuna": write("j.log", '{"op_code": 0, "worker_id": "x", "study_name": "s", "directions": [1]}\n'),
    "trackio": lambda folder: write_database(folder / "a.db", TRACKIO_TABLES),
    "assay": write("s/r/run.json", "{}"),
    "runx": write("s/r/hparams.json", "{}"),
    "mlrunner": write("r/param", "_name: x"),
}


@pytest.mark.needs(bench=True, compat=True, exchange=True)
def test_there_is_a_file_for_each() -> None:
    assert set(FILES) == {importer.name for importer in find_importers()}


@pytest.mark.needs(bench=True, compat=True, exchange=True)
@pytest.mark.parametrize("name", FILES)
def test_each_is_recognised_by_its_content(name: str, tmp_path: Path) -> None:
    found = choose_importer(Sample(str(FILES[name](tmp_path))), ["folders", "runs", "results"])
    assert found is not None
    assert found.name == name


@pytest.mark.needs(exchange=True)
def test_databases_are_told_apart_by_their_tables(tmp_path: Path) -> None:
    found = choose_importer(Sample(str(write_database(tmp_path / "a.db", MLFLOW_TABLES))), ["runs"])
    assert found is not None
    assert found.name == "mlflow"
    write_database(tmp_path / "b.db", "CREATE TABLE metrics (a)")
    assert choose_importer(Sample(str(tmp_path / "b.db")), ["runs"]) is None


@pytest.mark.parametrize("data", [b"", b"\0\xff\xfe binary", b"{" * 100_000, b"[1]", b"a,b\n1,2\n", b'"Name\n'])
def test_what_nobody_knows(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(data)
    assert choose_importer(Sample(str(tmp_path / "file")), ["folders", "runs", "results"]) is None
    (tmp_path / "empty").mkdir()
    assert choose_importer(Sample(str(tmp_path / "empty")), ["folders", "runs", "results"]) is None


@pytest.mark.needs(bench=True, exchange=True)
def test_unknown_content_lists_what_is_known(cli: Cli, own_bench: Bench) -> None:
    own_bench.write("notes.txt", "nothing")
    result = cli("index", "ingest", "notes.txt").ended(2)
    assert all(importer.title in result.err for importer in find_importers() if importer.gives != "results")
    assert "pytest-benchmark" in describe_known(["results"])
    assert cli("index", "ingest", "gone.csv").code == 2
    cli("index", "ingest", "notes.txt", "--as", "optun").ended(2, "did you mean 'optuna'")


@pytest.mark.needs(bench=True, exchange=True)
def test_each_command_names_the_other(cli: Cli, own_bench: Bench) -> None:
    own_bench.write("a.json", json.dumps({"machine_info": {}, "benchmarks": []}))
    assert "assay bench import a.json" in cli("index", "ingest", "a.json").err
    own_bench.write("runs.csv", '"Name","State","lr"\n"a","finished","1"\n')
    assert "assay index ingest runs.csv" in cli("bench", "import", "runs.csv").err
    (own_bench.folder / "mlruns" / "0").mkdir(parents=True)
    own_bench.write("mlruns/0/meta.yaml", "experiment_id: '0'\nname: Default\n")
    cli("bench", "import", "mlruns").ended(2, "assay index ingest mlruns")


@pytest.mark.needs(compat=True)
def test_folders_stay_where_they_are(cli: Cli, own_bench: Bench) -> None:
    FILES["runx"](own_bench.folder / "logs")
    assert "leave out --study and --root" in cli("index", "ingest", "logs", "--study", "x").err
