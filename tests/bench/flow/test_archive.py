"""Every execution there is: found again after kills, failed when damaged, read from folders of others."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.bench_samples import request

from assay.bench.flow.archive import (
    find_location,
    import_results,
    load_executions,
    load_file_executions,
)
from assay.bench.flow.history import HistoryOptions, build_history, load_histories
from assay.bench.flow.run import run_benchmarks
from assay.bench.values.execution import NOT_OBSERVED, BenchExecution
from assay.errors import AssayError, NotFoundError, UsageError
from assay.record.received import Received, write_received
from assay.show.console import CollectingConsole
from assay.values.environment import GitState


@pytest.fixture
def executions(lab: Path, in_process: None) -> tuple[BenchExecution, ...]:
    return run_benchmarks(request("mod.B.fixed", "mod.B.raises", trials=2)).executions


def test_all_of_them_oldest_first(executions: tuple[BenchExecution, ...]) -> None:
    found = load_executions(find_location("runs"))
    assert [e.execution_id for e in found] == [e.execution_id for e in executions]
    assert [e.method for e in load_executions(find_location("runs"), "B.raises")] == ["mod.B.raises"] * 2
    assert [e.result.wall_time for e in load_executions(find_location("runs"), "fixed")] == [2.0, 2.0]
    with pytest.raises(NotFoundError, match="fixd"):
        load_executions(find_location("runs"), "fixd")
    with pytest.raises(UsageError, match="there is no benchmark under"):
        load_executions(find_location("elsewhere"))


def mark_as_upload(execution: BenchExecution) -> None:
    write_received(execution.run_dir, Received("upload", "192.0.2.7", "upload:ci- token 123abc", 1.0))
    os.utime(execution.run_dir)


def test_uploads_are_not_compared_with_executions_made_here_and_marked_where_there_are_none(
    executions: tuple[BenchExecution, ...],
) -> None:
    uploaded, ours = (execution for execution in executions if execution.method == "mod.B.fixed")
    mark_as_upload(uploaded)
    console = CollectingConsole()
    (found,) = load_executions(find_location("runs"), "fixed", console)
    assert found.execution_id == ours.execution_id
    (said,) = console.lines
    assert said.startswith("1 uploaded run is not ranked with the others; to take it: assay adopt bench/")
    mark_as_upload(ours)
    console = CollectingConsole()
    both = load_executions(find_location("runs"), "fixed", console)
    said = "received: upload from 192.0.2.7 by upload:ci- token 123abc"
    assert [execution.notes[:1] for execution in both] == [(said,), (said,)]
    assert console.lines == [f"2 of 2 executions: {said}"]


def test_a_damaged_one_is_one_that_failed(executions: tuple[BenchExecution, ...]) -> None:
    (Path(executions[0].run_dir) / "benchmark.json").write_text('{"format": 1, "result": 3}')
    console = CollectingConsole()
    found = load_executions(find_location("runs"), "fixed", console)
    assert [each.result.is_measured for each in found] == [False, True]
    assert "benchmark.json is damaged" in console.lines[0]
    assert "benchmark.json is damaged" in found[0].result.findings[0].message


def test_from_a_file_a_run_directory_or_a_folder_of_them(executions: tuple[BenchExecution, ...], lab: Path) -> None:
    run_dir = executions[0].run_dir
    for path in (run_dir, f"{run_dir}/benchmark.json"):
        assert [e.execution_id for e in load_file_executions(path)] == [executions[0].execution_id]
    shutil.copytree("runs/bench", lab / "sent")
    assert len(load_file_executions(str(lab / "sent"))) == 4
    (lab / "empty").mkdir()
    with pytest.raises(UsageError, match="contains no benchmark"):
        load_file_executions(str(lab / "empty"))


def test_one_that_was_never_summed_up_is_made_again(executions: tuple[BenchExecution, ...]) -> None:
    """A supervisor was killed between a child's end and its own writing. Without the machine it would be of an
    environment of its own, without local edits edited code would pass for its commit."""
    run_dir = Path(executions[0].run_dir)
    known = json.loads((run_dir / "environment.json").read_text())

    def load_again(environment: object = None) -> BenchExecution:
        (run_dir / "benchmark.json").unlink(missing_ok=True)
        if environment is not None:
            (run_dir / "environment.json").unlink()  # it may be shared with other runs
            (run_dir / "environment.json").write_text(json.dumps(environment))
        return load_executions(find_location("runs"), "fixed")[0]

    found = load_again()
    assert (found.result.wall_time, found.execution_id) == (2.0, executions[0].execution_id)
    assert (found.setup, found.fingerprint) == (executions[0].setup, executions[0].fingerprint)
    assert found.contaminated == (NOT_OBSERVED,), "not observed is not clean"
    with pytest.raises(UsageError, match="1 left out: not observed"):
        build_history("mod.B.fixed", "wall_time", [found], HistoryOptions(), [])
    assert json.loads((run_dir / "benchmark.json").read_text())["result"]["wall_time"] == 2.0
    assert load_again([]).machine.cpu_model == ""
    record = json.loads((run_dir / "run.json").read_text())
    (run_dir / "run.json").write_text(json.dumps(record | {"commit": "c" * 40}))
    git = {"commit": "c" * 40, "branch": "main", "dirty": True, "diff": "- 1", "untracked": ["x"]}
    found = load_again(known | {"git": git})
    assert found.git == GitState("c" * 40, "main", True, "- 1", ("x",))
    assert str(found.code).startswith("c" * 40 + "+")
    assert load_again(known | {"git": git | {"commit": "d" * 40}}).git is None  # of another tree
    assert load_again(known | {"git": "?"}).git is None


# ---------------------------------------------------------------- files of other tools


def write_google(path: Path, *names: str, real_time: float = 1.0) -> str:
    rows = [{"name": name, "real_time": real_time, "cpu_time": 0.5, "time_unit": "ms"} for name in names]
    path.write_text(json.dumps({"context": {"date": "2024-05-01T10:00:00+00:00"}, "benchmarks": rows}))
    return str(path)


def test_they_are_runs_of_the_study_and_in_its_history(lab: Path) -> None:
    files = [write_google(lab / f"{n}.json", "BM/one", real_time=1.0 + n / 100) for n in range(8)]
    found = import_results(files, "runs", "nightly")
    assert (found.new, found.known, found.methods) == (8, 0, ("BM/one",))
    executions = load_executions(find_location("runs"), "BM/one")
    assert sorted(e.result.wall_time for e in executions) == pytest.approx([(100 + n) / 1e5 for n in range(8)])
    assert {(e.label, e.source) for e in executions} == {("nightly", "google-benchmark")}
    (history,) = load_histories("wall_time", "BM/one", HistoryOptions("runs"))
    assert len(history.series[0].points) == 8
    again = import_results(files[:2], "runs", "another label")
    assert (again.new, again.known) == (0, 2)
    assert {e.label for e in load_executions(find_location("runs"))} == {"nightly"}  # nothing is overwritten


def test_a_file_that_cannot_be_read_adds_nothing_and_holds_up_no_other(lab: Path) -> None:
    bad = lab / "folder" / "bad.json"
    bad.parent.mkdir()
    for text in ("", "{", "{}", "[]", "null", "\x00\x01", "[1, 2]", '{"benchmarks": 3}'):
        bad.write_text(text)
        with pytest.raises(UsageError, match=r"folder/bad\.json cannot be imported"):
            import_results([str(bad)], "runs")
    assert not (lab / "runs" / "bench").exists()
    goods = [write_google(lab / f"{name}.json", f"BM/{name}") for name in ("one", "two")]
    found = import_results([goods[0], str(bad), goods[1]], "runs")
    assert (found.new, found.methods) == (2, ("BM/one", "BM/two"))
    (problem,) = found.problems
    assert problem.startswith(f"{bad} cannot be imported: ")
    (lab / "a.json").write_text("{}")
    with pytest.raises(UsageError, match=r"a\.json cannot.*\n.*bad\.json cannot") as caught:
        import_results(["a.json", str(bad), "nowhere.json"], "runs")
    assert "nowhere.json cannot be read" in caught.value.message, "where none is any good all of them are named"
    assert "known: PerfZero" in (caught.value.hint or "")
    with pytest.raises(AssayError):
        import_results(goods, str(bad))  # a place that cannot be written


def test_a_whole_folder_of_asv(lab: Path) -> None:
    """`assay bench import results/MACHINE/*.json`, as the documents have it."""
    folder = lab / "results" / "box"
    folder.mkdir(parents=True)
    machine = {"arch": "x86_64", "cpu": "AMD", "machine": "box", "num_cpu": "8", "os": "Linux", "version": 1}
    (folder / "machine.json").write_text(json.dumps(machine))
    content = {"commit_hash": "c0ffee", "date": 1, "results": {"suite.time_x": 1.0, "suite.broken": None}}
    (folder / "c0ffee-env.json").write_text(json.dumps(content))
    found = import_results(sorted(map(str, folder.glob("*.json"))), "runs")
    assert (found.new, found.problems, found.failed) == (2, (), ("suite.broken",))
    assert "machine.json: asv's machine.json" in found.notes[0]
    executions = load_executions(find_location("runs"))
    assert {e.setup["cpu_model"] for e in executions} == {"AMD"}
    with pytest.raises(UsageError, match="there is no result"):
        import_results([str(folder / "machine.json")], "runs")


# ---------------------------------------------------------------- ids that others gave


def write_summary(path: Path, execution_id: object = "ID", **fields: Any) -> str:
    result = {"name": "m.C.f", "wall_time": 14.5, "succeeded": True, "trial_id": 1, **fields}
    content = {"execution_id": execution_id, "execution_timestamp": 1550040322.9, "benchmark_result": result}
    path.write_text(json.dumps(content))
    return str(path)


def list_everything(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_an_id_or_a_name_leads_nowhere_else_and_is_kept(lab: Path) -> None:
    ids = [
        "../../../esc",
        "/tmp/esc",
        "a/b",
        "..",
        ".hidden",
        ".",
        "a\nb",
        "x" * 400,
        "é" * 300,
        ".assay",
        "a\u0000b",
        7,
    ]
    root = lab / "deep" / "er" / "root"
    files = [write_summary(lab / f"{n}.json", each) for n, each in enumerate(ids)]
    files += [write_google(lab / "g.json", "../../etc/passwd", "a b/c:d<e>?", "x" * 300, "ünï/1")]
    before = list_everything(lab)
    assert import_results(files, str(root)).new == len(ids) + 4
    outside = {name for name in list_everything(lab) - before if not name.startswith("deep/er/root")}
    assert outside <= {"deep", "deep/er"}
    found = load_executions(find_location(str(root)))
    given = [each for each in found if each.source == "perfzero"]
    assert {each.execution_id.partition("-")[0] for each in given} == set(map(str, ids))
    assert import_results(files, str(root)).known == len(found) == len(ids) + 4


@pytest.mark.parametrize("other", [{"trial_id": 2}, {"wall_time": 99.0}, {"extras": [{"name": "note", "value": "x"}]}])
def test_two_summaries_with_one_id_are_both_there(lab: Path, other: dict[str, Any]) -> None:
    files = [write_summary(lab / "d1.json"), write_summary(lab / "d2.json", **other)]
    assert (import_results(files, "runs").new, import_results(files[::-1], "runs").known) == (2, 2)
    first, second = sorted((e.execution_id for e in load_executions(find_location("runs"))), key=len)
    assert first == "ID"
    assert second.startswith("ID-")
    for path in (lab / "runs" / "bench").glob("ID_*"):
        shutil.rmtree(path)
    assert import_results([files[1]], "runs").known == 1, "it is not taken for a new one when the other is gone"


def test_ids_that_clean_up_alike_stay_apart(lab: Path) -> None:
    files = [write_summary(lab / f"{n}.json", each) for n, each in enumerate(("a/b", "a_b", "a:b"))]
    assert (import_results(files, "runs").new, import_results(files, "runs").known) == (3, 3)
    assert len(load_executions(find_location("runs"))) == 3


def test_a_damaged_execution_is_not_taken_for_the_same(lab: Path) -> None:
    file = write_summary(lab / "s.json")
    import_results([file], "runs")
    (path,) = (lab / "runs" / "bench").glob("ID_*/benchmark.json")
    path.write_text("{")
    assert import_results([file], "runs").new == 1
    assert path.read_text() == "{", "nothing is overwritten"
