"""`assay.runs`: runs from Python."""

from __future__ import annotations

import json
import math
import shutil
import sys
from pathlib import Path

import pytest
from tests.finished_study import BAD, GOOD, Bench

import assay
from assay.errors import MissingExtraError, NotFoundError, UsageError
from assay.runs import Run, Runs


@pytest.fixture
def runs(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Runs:
    bench.enter(monkeypatch)
    return assay.runs("fit")


def test_runs_are_found_and_named(runs: Runs, bench: Bench) -> None:
    assert len(runs) == 4
    assert (runs[0], runs[-1]) == (next(iter(runs)), list(runs)[-1])
    with pytest.raises(IndexError):
        runs[99]
    run = runs[GOOD]
    assert (run.name, run.state, run.params) == (GOOD, "done", {"lr": 0.1, "n": 7})
    assert run.dir == str(bench.root / "fit" / GOOD)
    assert run.metrics == {"loss": 1.7, "test.acc": 0.7}
    assert run.best == {"loss": 1.7, "test.acc": 0.7}
    assert {each.name for each in runs if each.state == "failed"} == {"lr=0.5,n=7", "lr=0.5,n=8"}
    assert runs[BAD].reason == "train ended with exit code 1"
    assert repr(runs) == f"<4 runs of 'fit' in {str(bench.root)!r}>"


def test_rows_are_flat(runs: Runs) -> None:
    rows = {row["name"]: row for row in runs.rows()}
    assert list(rows[GOOD]) == ["name", "state", "seconds", "lr", "n", "loss", "test.acc", "best loss", "best test.acc"]
    assert rows[GOOD]["best test.acc"] == 0.7
    assert "test.acc" not in rows[BAD]


def test_nothing_hides_anything() -> None:
    run = Run("r", "done", {"name": "p", "loss": 1}, "/d", {"loss": 0.5, "state": 2.0}, {"loss": 0.4})
    (row,) = Runs("s", "/", [run]).rows()
    assert row == {
        "name": "r",
        "state": "done",
        "seconds": None,
        "param name": "p",
        "loss": 1,
        "last loss": 0.5,
        "last state": 2.0,
        "best loss": 0.4,
    }


def test_series_and_logs(runs: Runs) -> None:
    series = runs.series(GOOD, "loss")
    assert (series.steps, series.values) == ([1, 2, 3], [3.7, 2.7, 1.7])
    assert all(map(math.isnan, series.times))
    assert runs.series(runs[GOOD], "test.acc").values == [0.7]
    assert runs[GOOD].log() == "acc=0.7\n"
    assert runs[GOOD].log("train").startswith("step 1")


def test_a_frame(runs: Runs) -> None:
    pytest.importorskip("pandas")
    frame = runs.to_pandas()
    assert frame.index.name == "name"
    assert frame.loc[GOOD, "loss"] == 1.7
    assert math.isnan(frame.loc[BAD, "test.acc"])
    assert len(Runs("empty", "/", []).to_pandas()) == 0


def test_without_pandas(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError) as caught:
        runs.to_pandas()
    assert caught.value.hint == "install it: pip install 'assay[frames]'"


def test_unknown_names(runs: Runs) -> None:
    with pytest.raises(NotFoundError, match="no run named"):
        runs["nothing"]
    with pytest.raises(NotFoundError) as caught:
        runs.series(GOOD, "lass")
    assert caught.value.hint == "did you mean 'loss'?"
    with pytest.raises(NotFoundError, match="no study or run named") as caught:
        assay.runs("nope")
    assert caught.value.__context__ is None
    assert "the studies are fit" in str(caught.value)


def test_another_root_and_a_damaged_run(runs: Runs, bench: Bench, tmp_path: Path) -> None:
    shutil.copytree(bench.root, tmp_path / "copy", symlinks=True)
    (tmp_path / "copy" / "fit" / BAD / "run.json").write_text("{")
    with pytest.warns(UserWarning, match="damaged"):
        found = assay.runs("fit", root=str(tmp_path / "copy"))
    assert [run.state for run in found].count("damaged") == 1
    assert len(found) == 4


def test_some_runs(runs: Runs) -> None:
    good = runs.where("lr < 0.3")
    assert sorted(run.name for run in good) == ["lr=0.1,n=7", "lr=0.1,n=8"]
    assert [run.name for run in good.where("test.acc > 0.75 and max(loss) < 4")] == ["lr=0.1,n=8"]
    assert [run.name for run in assay.runs("fit", where="n == 7 and state == failed")] == [BAD]
    assert sorted(run.name for run in assay.runs("fit/*n=7")) == [GOOD, BAD]
    assert [run.name for run in assay.runs("fit/*n=7", where="lr<0.3")] == [GOOD]
    assert len(runs.where("lr > 3")) == 0
    assert [run.name for run in runs.where("lr > 3").where("lr < 3")] == []
    assert good.series(GOOD, "loss").values == runs.series(GOOD, "loss").values
    assert len(good.rows()) == 2
    with pytest.raises(UsageError, match="did you mean 'lr'"):
        runs.where("lrr > 3")
    with pytest.raises(NotFoundError, match="no run named 'fit/x'"):
        assay.runs("fit/x")


def test_what_no_other_run_beats(runs: Runs) -> None:
    assert [run.name for run in runs.pareto("loss", "test.acc")] == ["lr=0.1,n=7", "lr=0.1,n=8"]
    assert [run.name for run in runs.pareto("loss", "n")] == [GOOD]
    assert [run.name for run in runs.where("n == 8").pareto("loss", "time")] == ["lr=0.1,n=8"]
    assert len(runs.where("state == failed").pareto("loss", "time")) == 0
    with pytest.raises(UsageError, match="two or more"):
        runs.pareto("loss")


def test_nothing_of_a_removed_run_is_mixed_with_the_next_of_its_name(tmp_path: Path) -> None:
    """The directories are the truth: the same study again, in the place of one that was removed."""
    bench = Bench(tmp_path)
    bench.write("again.yml", "study: again\ncommand: cat log\nmetrics: {loss: 'loss ({number})'}\ncode: live\n")
    for losses in ([5, 4, 3], [9, 8, 7, 6, 5], [], [1]):
        nothing = "nothing to read, and longer than all that was there before\n"
        bench.write("log", "".join(f"loss {loss}\n" for loss in losses) or nothing)
        assert bench.assay("run", "again.yml", "--quiet").returncode == 0
        (row,) = json.loads(bench.assay("sum", "again", "--json").stdout)
        assert row.get("loss") == (losses[-1] if losses else None)
        assert row.get("loss_best") == (min(losses) if losses and min(losses) != losses[-1] else None)
        shutil.rmtree(bench.root / "again")


def test_a_directory_that_replaced_another_is_read_from_its_beginning(tmp_path: Path) -> None:
    """Also where another process made it, which has an index of its own."""
    bench, other = Bench(tmp_path), {"ASSAY_CACHE_DIR": str(tmp_path / "other")}
    bench.write("again.yml", "study: again\ncommand: cat log\nmetrics: {loss: 'loss ({number})'}\ncode: live\n")
    bench.write("log", "loss 5\nloss 4\n")
    assert bench.assay("run", "again.yml", "--quiet").returncode == 0
    shutil.rmtree(bench.root / "again")
    bench.write("log", "loss 9\nloss 8\nloss 7\n")
    mine, bench.extra = bench.extra, {**bench.extra, **other}
    assert bench.assay("run", "again.yml", "--quiet").returncode == 0
    bench.extra = mine
    (row,) = json.loads(bench.assay("sum", "again", "--best", "--json").stdout)
    assert (row["loss"], row["loss_best"]) == (7, 7)
    assert "9" in bench.assay("show", "again/run").stdout.partition("Metrics")[2].partition("\n\n")[0]
