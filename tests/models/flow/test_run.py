"""A check as a run of the study `model`: its directory, its state, its times in the history."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.example_models import ask, picky, until, write_chain
from tests.models.report import model_reports as made

from assay.bench.flow.archive import TimingsWatch, build_result, load_executions
from assay.bench.values.execution import NOT_REPORTED, BenchExecution, BenchResult
from assay.errors import AssayError, InfrastructureError, NotFoundError
from assay.execute.machine_lease import MachineLease
from assay.execute.slots import SlotPool, build_entries
from assay.follow.locations import StudyLocation
from assay.launch.prepared import Report
from assay.launch.sweep import RunHooks
from assay.models.flow.run import Finished, build_spec, build_timings, conclude, is_whole, name_method, run_model
from assay.models.records import load_report
from assay.models.values.flags import RunFlags
from assay.models.values.model import CaseReport, ModelReport, ModelRequest, Step, Target, render_flags
from assay.record.run_directory import load_record
from assay.values.plain import build_plain
from assay.values.state import State
from assay.values.verdict import VerdictKind


@pytest.fixture(autouse=True)
def _location(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def go(request: ModelRequest, **choice: Any) -> Finished:
    return run_model(request, RunFlags(**choice), watch_timings=TimingsWatch)


def end_with(run_dir: Path, state: State, reason: str = "") -> Any:
    """What the launch of one run returns."""
    entry = SimpleNamespace(dir=str(run_dir), state=state, outcome=SimpleNamespace(reason=reason))
    return SimpleNamespace(entries=[entry], problem=None, interrupted=None, notes=[])


def test_what_the_run_could_not_do_is_raised_with_its_hint_and_exit_code(tmp_path: Path) -> None:
    error = {"message": "it needs more", "hint": "install it: pip install 'assay[openvino]'", "exit_code": 2}
    (tmp_path / "error.json").write_text(json.dumps(error))
    with pytest.raises(AssayError, match="it needs more") as caught:
        conclude(end_with(tmp_path, State.FAILED))
    assert (caught.value.hint, caught.value.exit_code) == (error["hint"], 2)


def test_a_process_without_a_report_is_named_with_the_end_of_its_log(tmp_path: Path) -> None:
    (tmp_path / "model.log").write_text("the last thing\n")
    with pytest.raises(InfrastructureError) as caught:
        conclude(end_with(tmp_path, State.FAILED, "killed by SIGKILL"))
    assert caught.value.render() == "the check ended without a report: killed by SIGKILL\n  the last thing"
    (tmp_path / "error.json").write_text("{damaged")
    with pytest.raises(InfrastructureError, match="without a report: beyond its time limit") as caught:
        conclude(end_with(tmp_path, State.TIMEOUT, "beyond its time limit"))
    assert caught.value.exit_code == 1, "the user's own limit"
    with pytest.raises(InfrastructureError, match="not started"):
        conclude(Report((), ()))


@pytest.mark.needs(farms=True)
def test_a_farm_runs_the_check_and_its_times_are_not_this_machine_s(chain: Path, tmp_path: Path) -> None:
    (tmp_path / "assay.toml").write_text("[farms.shell]\nsubmit = 'bash -c {command}'\n")
    finished = go(ask(chain, tmp_path), on="shell")
    assert finished.report is not None
    assert finished.report.verdict.kind is VerdictKind.PASS
    assert json.loads((Path(finished.run_dir) / "lease.1").read_text())["executor"] == "submit"
    assert any("measured on shell" in note for note in finished.notes)
    assert finished.report.origin.endswith("--farm shell")  # what is advised goes there too
    assert not (tmp_path / "runs/bench").exists()
    with pytest.raises(NotFoundError, match="shel"):
        go(ask(chain, tmp_path), on="shel")


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Finished, ModelRequest]:
    """A whole check of a model whose name a shell would take apart, with repeats and a label; `runs` is its root."""
    folder = tmp_path_factory.mktemp("checked")
    request = ask(write_chain(folder / 'it\'s "a" $HOME `x` \\ 名.onnx'), folder, repeats=3)
    return go(request, label="nightly", root=str(folder / "runs")), request


def test_each_check_is_a_run_with_everything_in_it(checked: tuple[Finished, ModelRequest]) -> None:
    finished, request = checked
    assert finished.report is not None
    assert finished.report.verdict.kind is VerdictKind.PASS
    assert finished.report.run_dir == finished.run_dir
    run_dir = Path(finished.run_dir)
    assert run_dir.parent == Path(request.model).parent / "runs" / "model"
    spec = load_record(str(run_dir)).spec
    assert spec.params | {"id": ""} == {
        "model": request.model,
        "goal": "check",
        "reference": "ort",
        "target": "ort:unoptimized",
        "id": "",
    }
    assert spec.tag == "nightly"
    assert load_report(str(run_dir)) == finished.report
    assert (run_dir / "model.exit.0").exists()
    assert (run_dir / "trace.json").exists()
    assert (run_dir / "metrics" / "model.jsonl").exists()


def test_two_checks_at_once_have_a_directory_each(chain: Path, tmp_path: Path) -> None:
    one, two = (build_spec(ask(chain, tmp_path), RunFlags(), StudyLocation(str(tmp_path), "model")) for _ in range(2))
    assert one.name != two.name
    assert one.id != two.id


def test_the_script_of_a_run_repeats_it(checked: tuple[Finished, ModelRequest]) -> None:
    """job.sh is all there is to it. The store has everything: nothing is measured."""
    report = Path(checked[0].run_dir) / "model.json"
    first = report.rename(report.with_name("first.json"))
    done = subprocess.run(["bash", str(report.with_name("job.sh"))], check=False, capture_output=True)
    assert done.returncode == 0
    again = load_report(checked[0].run_dir)
    assert again is not None
    assert (again.model, again.verdict.kind) == (checked[1].model, VerdictKind.PASS)
    assert not is_whole(checked[1], again)
    first.replace(report)  # other tests read it


def test_the_times_of_a_whole_check_are_in_the_history_of_benchmarks(checked: tuple[Finished, ModelRequest]) -> None:
    root = str(Path(checked[0].run_dir).parents[1])
    (execution,) = load_executions(StudyLocation(root, "bench"))
    assert set(execution.result.numbers) == {
        *(f"{name}.{step}_s" for name in ("MatMul_0", "Add_1", "Relu_2", "full_model") for step in ("compile", "run")),
        "wall_time",
    }
    assert len(execution.result.samples["full_model.run_s"]) == 3
    assert execution.label == "nightly"
    assert execution.setup["onnxruntime"]
    assert execution.started_at is not None
    assert execution.ended_at is not None
    assert execution.started_at < execution.ended_at


@pytest.mark.usefixtures("lent")
def test_what_the_history_lacks_is_a_note_and_changes_no_verdict(chain: Path, tmp_path: Path) -> None:
    code = tmp_path / "code"
    subprocess.run(["git", "init", "-q", code], check=True)
    (code / ".git" / "index").write_bytes(b"damaged")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "bench").write_text("a file where a folder should be")
    finished = go(ask(chain, tmp_path, folder=str(code)))
    assert finished.report is not None
    assert finished.report.verdict.kind is VerdictKind.PASS
    assert any("not in the benchmark history" in note for note in finished.notes)
    (note,) = [note for note in finished.notes if "git cannot read" in note]
    assert f"{code}, so no commit is recorded" in note


@pytest.fixture
def slots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ASSAY_SLOTS_DIR", str(tmp_path / "slots"))
    (tmp_path / "slots").mkdir()
    return tmp_path / "slots"


def test_a_request_that_no_command_line_holds_goes_by_a_file(tmp_path: Path, chain: Path, slots: Path) -> None:
    """Linux takes 128 KiB in one argument. The check does not wait for the slots of trainings."""
    files = tuple(f"{tmp_path}/{'x' * 200}{number}" for number in range(800))
    request = ask(chain, tmp_path, only=("Add_1",), origin=tuple(("--input", file) for file in files))
    spec = build_spec(request, RunFlags(), StudyLocation(str(tmp_path / "runs"), "model"))
    assert len(spec.commands[0].text) < 1000
    training = SlotPool(build_entries(["cpu"] * 16), str(slots))
    held = [training.acquire() for _ in range(16)]
    try:
        finished = run_model(request, RunFlags(timeout=60), RunHooks(tick_s=0.1, counts_wait=True))
    finally:
        for each in held:
            assert each is not None
            each.let_go()
        training.close()
    assert finished.report is not None
    assert finished.report.verdict.kind is VerdictKind.PASS
    assert finished.report.origin == render_flags(request.origin)
    assert not (tmp_path / "runs" / "bench").exists(), "some cases are not a whole measurement"


def test_a_request_that_cannot_be_written_is_refused(tmp_path: Path, chain: Path) -> None:
    (tmp_path / "runs").write_text("a file where a folder should be")
    request = ask(chain, tmp_path, origin=(("--input", "x" * 200_000),))
    with pytest.raises(InfrastructureError, match="the request cannot be written"):
        build_spec(request, RunFlags(), StudyLocation(str(tmp_path / "runs"), "model"))


@pytest.mark.parametrize("profiles", [False, True])
def test_the_holder_of_the_machine_is_named_when_the_wait_ends(
    chain: Path, tmp_path: Path, slots: Path, profiles: bool
) -> None:
    """A check waits for a benchmark; one that profiles waits for checks too."""
    other = hold_lease("check" if profiles else "benchmark", slots)
    request = ask(chain, tmp_path, run_profile_dir=str(tmp_path / "p") if profiles else None)
    try:
        with pytest.raises(InfrastructureError) as caught:
            run_model(request, RunFlags(max_wait=0.5), RunHooks(tick_s=0.1))
    finally:
        other.kill()
        other.wait()
        assert other.stdout is not None
        other.stdout.close()
    what = "model checks are running" if profiles else "a benchmark has this machine for itself"
    assert what in caught.value.message
    assert f"in {tmp_path} (pid {other.pid})" in caught.value.message
    assert "ASSAY_MAX_WAIT" in caught.value.render()
    assert caught.value.exit_code == 4


def hold_lease(use: str, slots: Path) -> subprocess.Popen[bytes]:
    code = f"""
import time
from assay.execute.machine_lease import MachineLease
assert MachineLease({use!r}, {str(slots)!r}).try_enter()
print("in", flush=True); time.sleep(100)
"""
    other = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert other.stdout is not None
    other.stdout.readline()
    return other


def test_what_a_killed_check_leaves_holds_no_slot_and_a_benchmark_waits_for_it(
    chain: Path, tmp_path: Path, slots: Path
) -> None:
    mark, end = tmp_path / "hangs", tmp_path / "end"
    target = picky(hang="Add", says=str(mark), until=str(end))
    request = ask(chain, tmp_path, target, only=("Add_1", "Relu_2"))
    code = f"""
import json
from assay.models.flow.run import run_model
from assay.models.values.flags import RunFlags
from assay.models.values.model import ModelRequest
from assay.values.plain import parse_plain
run_model(parse_plain(ModelRequest, json.loads({json.dumps(build_plain(request))!r})), RunFlags(jobs=1))
"""
    pool, benchmark = SlotPool(build_entries(["cpu"]), str(slots / "checks")), MachineLease("benchmark", str(slots))
    with subprocess.Popen([sys.executable, "-c", code]) as command:
        until(mark.exists, "the target hangs")
        assert pool.acquire() is None
        command.kill()
    held = pool.acquire()
    assert held is not None
    held.let_go()
    pool.close()
    assert not benchmark.try_enter()
    assert "_picky_check_" in benchmark.holders()[0].name
    end.touch()
    until(benchmark.try_enter, "the check has ended")
    (report,) = (tmp_path / "runs" / "model").glob("*/model.json")  # it went on to its end
    assert [case["steps"][-1]["ending"] for case in json.loads(report.read_text())["cases"]] == ["ok"] * 2
    for each in (pool, benchmark):
        each.close()


REQUEST = ModelRequest("/m.onnx", Target("ort", "ort"), Target("iree", "iree"))


def fresh(case: CaseReport, run_s: float = 0.004) -> CaseReport:
    steps = (made.step(Step.COMPILE, elapsed_s=2.0), made.step(Step.RUN, times_s=(run_s, 2 * run_s)))
    return replace(case, steps=steps)


def measured(run_s: float = 0.004, number: int = 0, **more: object) -> ModelReport:
    cases = (fresh(made.good(0), run_s), fresh(made.whole(), run_s))
    return made.report(*cases, run_dir=f"/runs/m_iree_check_2026-11-15-12-00-00-{number:06}", **more)


def add(root: Path, report: ModelReport, label: str | None = None) -> BenchExecution | None:
    if not is_whole(REQUEST, report):
        return None
    return TimingsWatch().add(str(root), label, str(root), 0.0, print, **build_timings(report))


def times_of(report: ModelReport) -> BenchResult:
    facts = build_timings(report)
    return build_result(**{name: facts[name] for name in ("method", "samples", "wall_time", "succeeded")})


@pytest.mark.parametrize(
    ("request_", "report", "counts"),
    [
        (replace(REQUEST, goal="bisect"), measured(), False),
        (replace(REQUEST, only=("Conv_0",)), measured(), False),
        pytest.param(REQUEST, made.report(made.failed(0)), False, id="no case passed"),
        pytest.param(REQUEST, made.good_report(), False, id="some times are from the cache"),
        (REQUEST, measured(), True),
    ],
)
def test_only_a_whole_check_that_measured_counts(request_: ModelRequest, report: ModelReport, counts: bool) -> None:
    assert is_whole(request_, report) is counts


def test_every_case_and_step_that_is_right_is_a_metric() -> None:
    result = times_of(measured())
    assert result.numbers == {
        "Conv_0.compile_s": 2.0,
        "Conv_0.run_s": 0.004,
        "full_model.compile_s": 2.0,
        "full_model.run_s": 0.004,
        "wall_time": 0.004,
    }
    assert result.samples == {"Conv_0.run_s": (0.004, 0.008), "full_model.run_s": (0.004, 0.008)}
    assert result.succeeded
    wrong = made.report(fresh(made.wrong(1)), fresh(made.good(2)), fresh(made.whole(0.4, VerdictKind.FAIL)))
    assert set(times_of(wrong).numbers) == {"Conv_2.compile_s", "Conv_2.run_s"}
    assert (times_of(wrong).wall_time, times_of(wrong).succeeded) == (NOT_REPORTED, False)
    estimate = times_of(measured(is_estimate=True))
    assert set(estimate.numbers) == {"Conv_0.compile_s", "full_model.compile_s"}
    assert estimate.wall_time == NOT_REPORTED


def test_the_method_has_no_letters_that_a_shell_minds() -> None:
    report = replace(made.report(), stem="my model", target="ort:unoptimized")
    assert name_method(report) == "model.my_model.ort_unoptimized"


def test_another_tool_is_another_set_up_and_the_same_run_counts_once(tmp_path: Path) -> None:
    for _ in range(2):
        add(tmp_path, measured(number=1), "nightly")
    add(tmp_path, measured(number=2, tools={"iree-base-compiler": "3.14.0"}))
    one, two = load_executions(StudyLocation(str(tmp_path), "bench"))
    assert one.fingerprint != two.fingerprint
    assert one.label == "nightly"
    assert one.extra["run"].endswith("-000001")
