"""`assay export csv`, `json` and `parquet`: what another tool reads back is what the runs hold."""

from __future__ import annotations

import csv
import json
import math
import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest
from tests.command_line import Cli
from tests.finished_study import BAD, GOOD, Bench

from assay.record import run_directory
from assay.values.run import RunSpec


def make_run(
    bench: Bench, name: str, params: dict[str, object], lines: list[dict[str, object]], study: str = "made"
) -> None:
    """A run that a script opened: run.json and a series."""
    spec = RunSpec(name, name, params, ())
    record = run_directory.RunRecord(spec, study, run_directory.new_uid(), 1_700_000_000.5)

    def fill(aside: str) -> None:
        os.mkdir(f"{aside}/metrics")
        text = "".join(json.dumps(line) + "\n" for line in lines)
        Path(aside, "metrics", "a1-r0-host-1-1.jsonl").write_text(text)

    (bench.root / study).mkdir(parents=True, exist_ok=True)
    run_directory.write_run_dir(str(bench.root / study / name), record, "", fill)


# ---------------------------------------------------------------- runs


def test_runs_as_csv_and_json(cli: Cli, bench: Bench) -> None:
    result = cli("export", "csv", "fit")
    assert (result.code, result.err) == (0, "")
    rows = {row["name"]: row for row in csv.DictReader(result.out.splitlines())}
    assert len(rows) == 4
    good, bad = rows[GOOD], rows[BAD]
    assert [good[name] for name in ("key", "study", "state", "lr", "n")] == [f"fit/{GOOD}", "fit", "done", "0.1", "7"]
    assert (good["loss"], good["loss_best"], good["test.acc"]) == ("1.7", "1.7", "0.7")
    assert (bad["state"], bad["exit_code"], bad["test.acc"]) == ("failed", "1", "")
    assert good["started_at"].endswith("Z")
    start, end = (datetime.fromisoformat(good[name]).timestamp() for name in ("started_at", "ended_at"))
    assert start + float(good["seconds"]) == pytest.approx(end, abs=0.002)
    result = cli("export", "json", "fit", "-o", "runs.json")
    assert (result.code, result.out) == (0, "")
    assert "runs.json: 4 runs" in result.err
    facts = {row["name"]: row for row in json.loads((bench.folder / "runs.json").read_text())}
    assert facts[GOOD]["params"] == {"lr": 0.1, "n": 7}
    loss = facts[GOOD]["metrics"]["loss"]
    assert (loss["last"], loss["best"], loss["best_step"], loss["count"]) == (1.7, 1.7, 3, 3)
    assert "test.acc" not in facts[BAD]["metrics"]


def test_parquet_keeps_types(cli: Cli, own_bench: Bench) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    params = {"n": 1, "lr": 0.1, "flag": True, "mixed": 1, "list": [1, 2], "huge": 2**80}
    make_run(own_bench, "a", params, [{"loss": 1}])
    make_run(own_bench, "b", {"n": 2, "lr": 1, "flag": False, "mixed": "x", "huge": 1}, [{"loss": math.nan}])
    assert cli("export", "parquet", "made", "-o", "runs.parquet").code == 0
    table = parquet.read_table(own_bench.folder / "runs.parquet")
    kinds = {field.name: str(field.type) for field in table.schema}
    assert (kinds["n"], kinds["lr"], kinds["flag"], kinds["mixed"]) == ("int64", "double", "bool", "string")
    assert (kinds["list"], kinds["huge"], kinds["created_at"]) == ("string", "string", "timestamp[us, tz=UTC]")
    a, b = table.to_pylist()
    assert (a["n"], a["lr"], a["flag"], a["mixed"], a["list"]) == (1, 0.1, True, "1", "[1, 2]")
    assert a["created_at"].timestamp() == 1_700_000_000.5
    assert b["list"] is None
    assert math.isnan(b["loss"])


def test_a_time_that_no_calendar_has_is_left_out(cli: Cli, own_bench: Bench) -> None:
    make_run(own_bench, "a", {}, [{"loss": 1, "time": 1e300}])
    (record,) = own_bench.root.glob("made/*/run.json")
    record.write_text(json.dumps({**json.loads(record.read_text()), "created_at": 1e300}))
    (row,) = csv.DictReader(cli("export", "csv").out.splitlines())
    assert (row["created_at"], row["loss"]) == ("", "1.0")
    pytest.importorskip("pyarrow")
    assert cli("export", "parquet", "-o", "runs.parquet").code == 0
    assert cli("export", "parquet", "--series", "-o", "series.parquet").code == 0


def test_a_parameter_and_a_metric_of_one_name_and_formulas(cli: Cli, own_bench: Bench) -> None:
    """Formulas are guarded, and left alone on request."""
    params = {"loss": "l1", "state": 3, "params.loss": 0, "text": "=1+1", "low": -1, "+name": 1}
    make_run(own_bench, "a", params, [{"loss": 0.5, "acc": 1}])
    guarded, raw = cli("export", "csv").out, cli("export", "csv", "--raw").out
    (row,) = csv.DictReader(guarded.splitlines())
    assert (row["metrics.loss"], row["metrics.loss_best"], row["acc"]) == ("0.5", "0.5", "1.0")
    assert (row["state"], row["params.state"]) == ("done", "3")
    assert {row["params.loss"], row["params.loss_2"]} == {"l1", "0"}
    assert [text in guarded for text in ("'=1+1", "'+name")] == [True, True]
    assert ("=1+1" in raw, "'" in raw) == (True, False)


def test_tags_and_notes(cli: Cli, own_bench: Bench) -> None:
    make_run(own_bench, "a", {}, [])
    cli("tag", "made/a", "good", "baseline")
    cli("note", "made/a", "kept for the paper")
    (row,) = csv.DictReader(cli("export", "csv").out.splitlines())
    assert row["tags"] == "good,baseline"
    assert "kept for the paper" in row["note"]
    assert json.loads(cli("export", "json").out)[0]["tags"] == ["good", "baseline"]
    parquet = pytest.importorskip("pyarrow.parquet")
    cli("export", "parquet", "-o", "a.parquet")
    assert parquet.read_table(own_bench.folder / "a.parquet")["tags"].to_pylist() == [["good", "baseline"]]


# ---------------------------------------------------------------- series


def test_series_as_csv_and_json(cli: Cli) -> None:
    rows = list(csv.DictReader(cli("export", "csv", "--series", "fit").out.splitlines()))
    mine = [row for row in rows if (row["run"], row["metric"]) == (f"fit/{GOOD}", "loss")]
    assert [(row["step"], row["value"]) for row in mine] == [("1", "3.7"), ("2", "2.7"), ("3", "1.7")]
    points = json.loads(cli("export", "json", "--series", "fit").out)
    assert len(points) == len(rows) == 4 * 3 + 2
    assert points[0] == {"run": f"fit/{GOOD}", "metric": "loss", "step": 1, "value": 3.7, "time": None}


def test_series_that_are_no_numbers_have_no_step_or_no_time(cli: Cli, own_bench: Bench) -> None:
    lines: list[dict[str, object]] = [{"time": 12.5, "loss": math.nan}, {"step": 0.5, "loss": math.inf}]
    make_run(own_bench, "a", {}, lines)
    first, second = json.loads(cli("export", "json", "--series").out)
    assert (first["step"], first["value"], first["time"]) == (None, "NaN", 12.5)
    assert (second["step"], second["value"], second["time"]) == (0.5, "Infinity", None)
    rows = list(csv.DictReader(cli("export", "csv", "--series").out.splitlines()))
    assert [(row["step"], row["value"]) for row in rows] == [("", "nan"), ("0.5", "inf")]
    parquet = pytest.importorskip("pyarrow.parquet")
    cli("export", "parquet", "--series", "-o", "series.parquet")
    got = parquet.read_table(own_bench.folder / "series.parquet").to_pylist()
    assert (got[0]["step"], got[0]["time"].timestamp(), got[1]["time"]) == (None, 12.5, None)


def test_many_points_are_written_in_pieces(cli: Cli, own_bench: Bench) -> None:
    """More points than one batch holds, in every format."""
    make_run(own_bench, "a", {}, [{"step": i, "loss": i / 2} for i in range(12_001)])
    assert cli("export", "csv", "--series").out.count("\n") == 12_002
    assert len(json.loads(cli("export", "json", "--series").out)) == 12_001
    parquet = pytest.importorskip("pyarrow.parquet")
    cli("export", "parquet", "--series", "-o", "s.parquet")
    table = parquet.read_table(own_bench.folder / "s.parquet")
    assert (table.num_rows, table["value"][12_000].as_py()) == (12_001, 6000.0)


# ---------------------------------------------------------------- chosen runs


def test_where_and_patterns(cli: Cli) -> None:
    rows = json.loads(cli("export", "json", "fit", "--where", "n==7 and state==done").out)
    assert [row["name"] for row in rows] == [GOOD]
    points = json.loads(cli("export", "json", "--series", "fit", "--where", "lr==0.5").out)
    assert {point["run"] for point in points} == {f"fit/{BAD}", "fit/lr=0.5,n=8"}
    named = csv.DictReader(cli("export", "csv", "fit/lr=0.1*").out.splitlines())
    assert [row["n"] for row in named] == ["7", "8"]


def test_no_run_that_matches_is_an_empty_table(cli: Cli, tmp_path: Path) -> None:
    nothing = cli("export", "csv", "fit", "--where", "lr>3")
    assert (nothing.code, nothing.err) == (0, "0 runs: --where 'lr>3': none of 4 runs matches\n  lr: 0.1, 0.5\n")
    assert list(csv.DictReader(nothing.out.splitlines())) == []
    assert nothing.out.startswith("key,")
    for words in (["json"], ["json", "--series"]):
        assert json.loads(cli("export", *words, "fit", "--where", "lr>3").out) == []
    parquet, file = pytest.importorskip("pyarrow.parquet"), tmp_path / "none.parquet"
    for words in ([], ["--series"]):
        assert cli("export", "parquet", "fit", "--where", "lr>3", "-o", str(file), *words).code == 0
        assert parquet.read_table(file).num_rows == 0
    assert cli("export", "csv", "fit", "--where", "lrr>3").code == 2


# ---------------------------------------------------------------- what cannot be exported


def test_nothing_to_export(cli: Cli, own_bench: Bench) -> None:
    (own_bench.root / "empty" / ".assay").mkdir(parents=True)
    result = cli("export", "csv", "empty")
    assert (result.code, result.out) == (2, "")
    assert "no runs yet" in result.err
    make_run(own_bench, "a", {}, [])
    cli("export", "json", "--series", "made").ended(2, "the only run has no metric")
    assert "empty, made" in cli("export", "csv", "nothing-like-it").err


def test_a_file_that_cannot_be_written(cli: Cli, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """An old file stays until the new one is complete."""
    for words in (("csv", "-o", "gone/x.csv"), ("parquet", "-o", "-"), ("parquet",)):
        assert cli("export", words[0], "fit", *words[1:]).code == 2
    (bench.folder / "old.csv").write_text("old")

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("assay.exchange.export.build_csv_row", fail)
    cli("export", "csv", "fit", "-o", "old.csv").ended(4, "old.csv cannot be written: No space left")
    assert (bench.folder / "old.csv").read_text() == "old"
    assert [path.name for path in bench.folder.glob("old.csv*")] == ["old.csv"]
    assert not list(bench.folder.glob("*.tmp"))


def test_without_pyarrow_the_message_says_what_to_install(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    cli("export", "parquet", "fit", "-o", "x.parquet").ended(2, "pip install 'assay[parquet]'")


def test_a_reader_that_stops_reading(bench: Bench) -> None:
    command = f"{sys.executable} -m assay export csv --series fit | head -1"
    env = os.environ | bench.extra
    done = subprocess.run(
        ["bash", "-c", command], cwd=bench.folder, env=env, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("run,metric,step,value,time\n", "")
