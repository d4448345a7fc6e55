"""`assay index`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.finished_study import BAD, GOOD, STUDY, Bench

ORIGINALS = Path(__file__).parents[2] / "formats" / "originals"


def test_status(cli, own_fit: Bench) -> None:
    (fresh,) = json.loads(cli("index", "status", "--json").out)
    assert (fresh["exists"], fresh["unread"], fresh["runs"]) == (False, 4, 0)
    assert "not made yet; 4 runs on disk" in cli("index", "status").out
    cli("ls")
    (known,) = json.loads(cli("index", "status", "--json").out)
    assert (known["exists"], known["unread"], known["runs"], known["metrics"]) == (True, 0, 4, 2)
    assert known["points"] == 4 * 3 + 2
    assert known["size_bytes"] > 0
    assert "runs     4" in cli("index", "status").out


def test_an_index_that_cannot_be_written_is_not_called_built(cli, own_fit: Bench, monkeypatch) -> None:
    monkeypatch.setenv("ASSAY_CACHE_DIR", "/dev/null/cache")
    assert cli("ls", "fit").code == 0
    result = cli("index", "rebuild")
    assert (result.code, result.out) == (4, "")
    assert f"the index of {own_fit.root} cannot be written" in result.err


@pytest.mark.parametrize(("command", "printed"), [("rebuild", "3 runs read\n"), ("gc", "1 run forgotten; ")])
def test_what_is_gone_is_forgotten(cli, own_fit: Bench, command: str, printed: str) -> None:
    cli("ls")
    shutil.rmtree(own_fit.root / "fit" / BAD)
    assert cli("index", command).out.startswith(f"{own_fit.root}: {printed}")
    assert json.loads(cli("index", "status", "--json").out)[0]["runs"] == 3


def test_a_query_in_three_forms(cli, own_fit: Bench) -> None:
    query = "SELECT study, runs, NULL AS missing, x'ff' AS bytes FROM studies"
    (row,) = json.loads(cli("index", "query", query, "--json").out)
    assert row == {"study": "fit", "runs": 4, "missing": None, "bytes": "ff"}
    assert cli("index", "query", query, "--csv").out == "study,runs,missing,bytes\nfit,4,,ff\n"
    shown = cli("index", "query", query).out.split()
    assert shown[:2] == ["study", "runs"]
    assert {"fit", "4", "ff"} <= set(shown)
    assert cli("index", "query", "SELECT key FROM runs WHERE key = 'x'", "--json").out == "[]\n"


def test_a_query_that_is_not_one_is_refused(cli, own_fit: Bench) -> None:
    for statement in ("DELETE FROM runs", "SELECT 1; DELETE FROM runs", "SELECT nothing FROM runs", ""):
        result = cli("index", "query", statement)
        assert (result.code, result.out) == (2, "")
        assert "Traceback" not in result.err
    assert cli("index", "query", "SELECT 1", "--json", "--csv").code == 2
    assert json.loads(cli("index", "query", "SELECT count(*) AS n FROM runs", "--json").out) == [{"n": 4}]


@pytest.mark.needs(exchange=True)
def test_a_server_that_is_not_there_ends_reading_commands_and_no_run(cli, own_bench: Bench, monkeypatch) -> None:
    monkeypatch.setenv("ASSAY_INDEX", "postgresql://someone:s3cret-word@127.0.0.1:1/none")
    study = own_bench.write("one.yml", "study: one\ncommand: 'echo loss 1'\nmetrics: {loss: 'loss ({number})'}\n")
    result = cli("run", study, "--slots", "0").ended(0, "cannot be reached")
    assert "cannot be reached" in cli("run", study, "--slots", "0", "--force", "--quiet").err
    refused = cli("sum", "one").ended(4, "127.0.0.1", "ASSAY_INDEX=local")
    everything = "".join(path.read_text("utf-8", "replace") for path in own_bench.root.rglob("*") if path.is_file())
    assert "s3cret-word" not in result.out + result.err + refused.out + refused.err + everything
    monkeypatch.setenv("ASSAY_INDEX", "local")
    assert "one" in cli("ls").out
    monkeypatch.setenv("ASSAY_INDEX", "somewhere")
    assert cli("sum", "one").code == 2


def test_reparse_with_better_patterns(cli, own_fit: Bench) -> None:
    own_fit.write("better.yml", STUDY.replace("loss: ", "verlust: "))
    result = cli("index", "reparse", "fit", "--file", "better.yml")
    assert result.out == "fit: 4 runs read again: test.acc, verlust (new: verlust; gone: loss)\n"
    assert json.loads(cli("show", GOOD, "--json").out)["metrics"]["verlust"]["count"] == 3
    assert cli("index", "reparse", "fit").out.endswith("(new: loss; gone: verlust)\n")


def test_reparse_passes_a_damaged_run_by(cli, own_fit: Bench) -> None:
    (own_fit.root / "fit" / BAD / "run.json").write_text("{")
    cli("index", "reparse", "fit").ended(0, "damaged").printed("3 runs read again")


def test_reparse_refuses_what_it_cannot_use(cli, bench: Bench) -> None:
    bench.write("none.yml", "study: fit\ncommand: 'true'\n")
    assert "has no metrics" in cli("index", "reparse", "fit", "--file", "none.yml").err
    assert cli("index", "reparse", "fit", "--file", "gone.yml").code == 2
    assert cli("index", "reparse", "fitt").code == 2


@pytest.mark.needs(compat=True)
def test_ingest_of_the_originals(cli, own_bench: Bench) -> None:
    shutil.copytree(ORIGINALS / "runx" / "logs", own_bench.folder / "logs")
    result = cli("index", "ingest", "logs").ended(0)
    assert "1 study, 6 runs (6 by runx) under logs" in result.out
    assert "next: assay sum logs/sweep" in result.out
    assert cli("sum", "logs/sweep").code == 0
    shutil.copytree(ORIGINALS / "mlrunner" / "output", own_bench.folder / "output")
    assert "by mlrunner" in cli("index", "ingest", "output").out


@pytest.mark.needs(compat=True)
def test_ingest_of_nothing(cli, own_bench: Bench) -> None:
    assert "is not a folder" in cli("index", "ingest", "gone").err
    (own_bench.folder / "bare").mkdir()
    cli("index", "ingest", "bare").ended(2, "hparams.json")
