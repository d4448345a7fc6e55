"""Benchmarks in real processes: every temper gives a recorded result, and the others still run."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.flows.bench.laboratory import request

from assay.errors import ExitCode
from assay.flows.bench.archive import find_place, load_executions
from assay.flows.bench.run import resolve_methods, run_benchmarks
from assay.record.benchmarks import load_execution
from assay.record.index.sqlite import open_index
from assay.values import layout
from assay.values.benchmark import BenchExecution, BenchMethod, BenchVariant, parse_windows


def by_method(executions: tuple[BenchExecution, ...]) -> dict[str, BenchExecution]:
    return {execution.method.rpartition(".")[2]: execution for execution in executions}


def test_every_temper_is_recorded_and_the_others_run(lab: Path) -> None:
    names = ["dies", "killed", "nan", "never", "raises", "sleeps", "godo", "good", "fixed"]
    asked = request(*(f"mod.B.{name}" for name in names), "mod.Bad.good", "absent.f", timeout_s=2)
    report = run_benchmarks(replace(asked, grace_s=0.5))
    assert report.exit_code is ExitCode.FAILED
    assert len(report.executions) == len(names) + 2
    found = by_method(report.executions[: len(names)])
    words = {name: "; ".join(f.message for f in execution.result.findings) for name, execution in found.items()}
    assert found["good"].succeeded
    assert len(found["good"].result.samples["wall_time"]) == 12
    assert "exit code 9" in words["dies"]
    assert found["dies"].result.wall_time == 1.0  # what it had reported is kept
    assert "137" in words["killed"] or "SIGKILL" in words["killed"]
    assert words["nan"] == "wall_time is nan"
    assert "never called report_benchmark" in words["never"]
    assert (found["never"].result.wall_time, found["never"].result.has_exception) == (-1.0, False)
    assert words["raises"] == "ValueError: no luck (mod.py:16)"
    assert "time limit" in words["sleeps"]
    assert "did you mean 'good'" in words["godo"]
    assert "below its minimum" in words["fixed"]
    assert not found["fixed"].result.has_exception
    assert "cannot be made" in report.executions[-2].result.findings[0].message
    assert "no module 'absent'" in report.executions[-1].result.findings[0].message


def test_a_good_execution_is_complete(lab: Path) -> None:
    (execution,) = run_benchmarks(request("mod.B.good", label="here", extra={"door": 1})).executions
    assert execution.method == "mod.B.good"
    assert execution.label == "here"
    assert execution.machine.cpu_model
    assert execution.machine.logical_cpus == os.cpu_count()
    assert execution.machine.python == ".".join(map(str, sys.version_info[:3]))
    assert execution.setup["python"] == "{}.{}".format(*sys.version_info[:2])
    assert execution.fingerprint
    assert execution.peaks.max_rss > 1_000_000
    assert execution.peaks.max_cpu_percent > 0
    assert execution.ended_at >= execution.started_at  # type: ignore[operator]
    assert execution.extra == {"door": 1}
    assert load_execution(execution.run_dir) == execution


def test_it_is_in_the_index_at_once(lab: Path) -> None:
    run_benchmarks(request("mod.B.good", trials=2))
    with open_index(str(lab / "runs")) as index:
        rows = index.load_runs(["bench"])
        summaries = index.load_summaries(["bench"])
    assert [row.params["trial"] for row in rows] == [1, 2]
    for row in rows:
        assert summaries[row.key]["wall_time"].count == 1
        assert summaries[row.key]["samples.wall_time"].count == 12


def test_trials_are_interleaved_and_never_share_a_folder(lab: Path) -> None:
    report = run_benchmarks(
        request("mod.B.good", "mod.quick", trials=2, execution_id="fixed", output_root=str(lab / "out"))
    )
    assert [(e.method, e.trial) for e in report.executions] == [
        ("mod.B.good", 1),
        ("mod.quick", 1),
        ("mod.B.good", 2),
        ("mod.quick", 2),
    ]
    assert [e.execution_id for e in report.executions] == ["fixed", "fixed-2", "fixed-3", "fixed-4"]
    assert len({e.output_dir for e in report.executions}) == 4
    assert os.path.isdir(lab / "out" / "fixed-3")


def test_the_same_id_again_overwrites_nothing(lab: Path) -> None:
    first = run_benchmarks(request("mod.B.fixed", execution_id="same")).executions[0]
    before = Path(first.run_dir, layout.BENCH_FILE).read_bytes()
    (second,) = run_benchmarks(request("mod.B.fixed", execution_id="same")).executions
    assert second.execution_id == "same-2"
    assert Path(first.run_dir, layout.BENCH_FILE).read_bytes() == before
    (lab / "out" / "mine").mkdir(parents=True)
    (third,) = run_benchmarks(request("mod.B.fixed", execution_id="mine", output_root=str(lab / "out"))).executions
    assert third.execution_id == "mine-2"


def test_filters_become_methods(lab: Path) -> None:
    asked = request("mod.B.filter:n.*", "mod.B.nan", "mod.B.filter:zzz.*")
    assert [method.name for method in resolve_methods(replace(asked, folder=str(lab)))] == [
        "mod.B.nan",
        "mod.B.never",
        "mod.B.filter:zzz.*",
    ]
    report = run_benchmarks(request("mod.B.filter:zzz.*"))
    assert "matches 'zzz.*'" in report.executions[0].result.findings[0].message


def test_the_output_dir_and_the_data_dir_are_given(lab: Path) -> None:
    (execution,) = run_benchmarks(request("mod.B.writes", data_dir="/some/data")).executions
    assert Path(execution.output_dir, "result.txt").read_text() == "/some/data"
    assert execution.output_dir == os.path.join(execution.run_dir, "output")


def test_arguments_and_environment_arrive(lab: Path) -> None:
    report = run_benchmarks(request("mod.Sized.one", constructor_args={"size": 7}))
    assert report.executions[0].result.wall_time == 7
    report = run_benchmarks(request("mod.B.environment", env=(("MARK", "it's $HERE"),)))
    assert report.executions[0].result.extras["value"] == "it's $HERE"


def test_commands_are_measured_and_their_output_is_read(lab: Path) -> None:
    good = BenchMethod("sleep 0.2; echo 'loss: 0.5'; echo 'loss: 0.25'", "train", "command")
    bad = BenchMethod("echo oops; exit 3", "broken", "command")
    asked = replace(request(), methods=(good, bad), patterns=(("loss", r"loss: ([\d.]+)"),))
    report = run_benchmarks(asked)
    first, second = report.executions
    assert first.succeeded
    assert first.result.wall_time >= 0.2
    assert first.result.numbers["loss"] == 0.25
    assert first.result.samples["loss"] == (0.5, 0.25)
    assert not second.succeeded
    text = "; ".join(finding.message for finding in second.result.findings)
    assert "exit code 3" in text
    assert "oops" in text
    assert "loss was not found" in text


def test_a_program_may_report_by_itself(lab: Path) -> None:
    program = BenchMethod(
        f"{sys.executable} -c 'from assay.bench import report_benchmark; report_benchmark(throughput=9)'",
        "own",
        "command",
    )
    (execution,) = run_benchmarks(replace(request(), methods=(program,))).executions
    assert execution.result.throughput == 9
    assert execution.result.wall_time > 0


def test_another_interpreter_needs_no_assay(lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    (execution,) = run_benchmarks(request("mod.B.good", python=sys.executable)).executions
    assert execution.succeeded


def test_variants_run_in_turns_in_their_own_folders(lab: Path) -> None:
    variants = []
    for name, value in (("base", 1), ("head", 2)):
        (lab / name).mkdir()
        (lab / name / "other.py").write_text(
            f"from assay.bench import report_benchmark\ndef f(): report_benchmark(wall_time={value})\n"
        )
        variants.append(BenchVariant(name, str(lab / name), f"{value:040x}"))
    report = run_benchmarks(request("other.f", trials=2, variants=tuple(variants)))
    assert [(e.label, e.result.wall_time) for e in report.executions] == [
        ("base", 1),
        ("head", 2),
        ("head", 2),
        ("base", 1),
    ]
    assert report.executions[0].commit == f"{1:040x}"


def test_a_profile_lies_with_the_run(lab: Path) -> None:
    (execution,) = run_benchmarks(request("mod.quick", profile=parse_windows("0:"))).executions
    assert execution.profiles == ("profile/python-1.json",)
    assert json.loads(Path(execution.run_dir, *execution.profiles).read_text())["traceEvents"]


# ---------------------------------------------------------------- a supervisor that was killed


def test_what_a_killed_supervisor_left_is_read_later(lab: Path) -> None:
    (execution,) = run_benchmarks(request("mod.B.fixed")).executions
    os.unlink(os.path.join(execution.run_dir, layout.BENCH_FILE))
    (found,) = load_executions(find_place("runs"))
    assert found.result.wall_time == 2.0
    assert found.execution_id == execution.execution_id
    assert os.path.exists(os.path.join(execution.run_dir, layout.BENCH_FILE))
