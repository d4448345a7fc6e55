"""PerfZero's workspace around real executions: what is brought in, written, shown and sent."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.bench_samples import write_module
from tests.compat.perfzero.conftest import Warehouse
from tests.compat.perfzero.test_site_packages import git
from tests.compat.perfzero.test_summary import load_schema
from tests.show.json_schema import problems

from assay.bench.flow.archive import find_location, import_results, load_executions
from assay.bench.records import load_execution
from assay.bench.values.execution import BenchExecution
from assay.compat.perfzero.flags import parse_flags
from assay.compat.perfzero.flow import PerfzeroConsole, _stoppable, _StoppedError, run_perfzero
from assay.compat.perfzero.values import Package, PerfzeroReport
from assay.errors import AssayError, ExitCode, UsageError
from assay.launch.sweep import RunHooks

MODULES = {
    "up.py": """
import json
def keep(summary): open("kept.jsonl", "a").write(json.dumps(summary) + "\\n")
def refuse(summary): raise RuntimeError("the table is full")
""",
    "talk.py": "def f():\n    print('grüße')\n    raise ValueError('no luck')\n",
    "left.py": """
import subprocess
from assay.bench import report_benchmark
def f():
    subprocess.Popen(["sleep", "300"], start_new_session=True)
    report_benchmark(wall_time=1.0)
""",
    "busy.py": """
import time
from assay.bench import report_benchmark
def spin():
    end = time.time() + 0.4
    while time.time() < end: sum(range(1000))
def f():
    spin()
    report_benchmark(wall_time=1.0)
""",
}
THEIRS = """
import json, os
from assay.bench import Benchmark
class C(Benchmark):
    def __init__(self, **kwargs): self.kwargs = kwargs
    def f(self):
        key = open(os.environ["GOOGLE_APPLICATION_CREDENTIALS"]).read()
        self.report_benchmark(wall_time=1.0, extras={"kwargs": json.dumps(self.kwargs), "key": key})
"""


class LabConsole(PerfzeroConsole):
    """Keeps what is printed in the lists of the lab."""

    def __init__(self, lab: Lab) -> None:
        super().__init__(quiet=not lab.is_echoing)
        vars(self).update(message=lab.said.append, detail=lab.details.append, write=lab.shown.append)
        vars(self).update(warning=lab.warned.append, error=lab.failed.append)


class Lab:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.said: list[str] = []
        self.shown: list[str] = []
        self.warned: list[str] = []
        self.details: list[str] = []
        self.failed: list[str] = []
        self.is_echoing = False

    def run(self, *methods: str, **flags: Any) -> PerfzeroReport:
        usual = {"root_data_dir": "data", "foreign_limit": "1", "timeout": "60s"}  # this machine is never quiet
        given = {"benchmark_methods": [",".join(methods)], **usual, **flags}
        job = parse_flags(given, str(self.folder), {"PERFZERO_MODE": "test"})
        return run_perfzero(job, RunHooks(tick_s=0.05), LabConsole(self), "9.9", ("assay", "perfzero"))

    def summaries(self, report: PerfzeroReport) -> list[dict[str, Any]]:
        folders = [Path(execution.output_dir) for execution in report.executions]
        return [json.loads((folder / "perfzero_summary.json").read_text()) for folder in folders]


def make_lab(folder: Path, patch: pytest.MonkeyPatch) -> Lab:
    (folder / "lab").mkdir()
    write_module(folder / "lab")
    for name, text in MODULES.items():
        (folder / "lab" / name).write_text(text)
    patch.chdir(folder / "lab")
    patch.setenv("ASSAY_SLOTS_DIR", str(folder / "slots"))
    patch.setenv("ASSAY_CACHE_DIR", str(folder / "cache"))
    patch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    return Lab(folder / "lab")


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    return make_lab(tmp_path, monkeypatch)


def publish(folder: Path, files: dict[str, str]) -> str:
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "all")
    return git(folder, "rev-parse", "HEAD")


# ---------------------------------------------------------------- what is never begun


@pytest.mark.parametrize(
    ("flags", "words", "code"),
    [
        ({"data_downloads": ["file:///no/such/file"]}, "there is no file or folder", 2),
        ({"data_downloads": ["https://no-such-host.invalid/x;x"]}, "no-such-host", 4),
        ({"data_downloads": [f"/etc/passwd;x;{'0' * 64}"]}, "is not what was expected", 2),
        ({"git_repos": ["/no/such/repository"]}, "cannot be cloned", 2),
        ({"gcloud_key_file_url": "https://no-such-host.invalid/key.json"}, "no-such-host", 4),
        ({"output_gcs_url": "file:///proc/nowhere"}, "/proc/nowhere", 2),
        ({"python_path": "modles"}, r"--python_path: there is no folder .*modles", 2),
        ({"result_upload_methods": "up.keep,up.kep"}, "--result_upload_methods.*no 'kep'\n  did you mean 'keep'", 2),
    ],
)
def test_what_cannot_be_had_is_reported_before_anything_runs(
    lab: Lab, flags: dict[str, Any], words: str, code: int
) -> None:
    with pytest.raises(AssayError, match=words) as caught:
        lab.run("mod.B.fixed", **flags)
    assert caught.value.exit_code == code
    assert not (lab.folder / "runs").exists()
    assert not (lab.folder / "workspace" / "output").exists()
    assert not (lab.folder / "data" / "x").exists()


def test_a_part_that_is_not_installed_is_reported_before_hours_of_benchmarks(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("assay.compat.perfzero.flow._is_installed", lambda _name: False)
    with pytest.raises(UsageError, match="BigQuery"):
        lab.run("mod.B.writes", bigquery_project_name="p", bigquery_dataset_table_name="d.t")
    assert not (lab.folder / "runs").exists()


# ---------------------------------------------------------------- one call with methods that succeed and fail
NAMES = ["dies", "nan", "godo", "fixed", "good"]


class Finished:
    """What one call with many methods has left: the tests below only read it."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.target = lab.folder.parent / "store"
        self.report = lab.run(
            *(f"mod.B.{name}" for name in NAMES), "talk.f", "left.f",
            execution_label="nightly", platform_name="here", system_name="box", ml_framework_build_label="b",
            tpu_parameters='{"name": "t", "version": "2.4"}', output_gcs_url=f"file://{self.target}",
        )  # fmt: skip
        summaries = lab.summaries(self.report)
        pairs = zip(self.report.executions, summaries, strict=True)
        self.found = {execution.method.removeprefix("mod.B."): (execution, each) for execution, each in pairs}

    def folder(self, name: str) -> Path:
        return Path(self.found[name][0].output_dir)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Finished]:
    with pytest.MonkeyPatch.context() as patch:
        yield Finished(make_lab(tmp_path_factory.mktemp("finished"), patch))


def test_every_failure_is_recorded_and_the_run_goes_on(finished: Finished) -> None:
    lab, found = finished.lab, {name: finished.found[name][1] for name in NAMES}
    schema = load_schema()
    assert {name: list(problems(summary, schema)) for name, summary in found.items()} == {name: [] for name in NAMES}
    results = {name: summary["benchmark_result"] for name, summary in found.items()}
    assert {name for name in NAMES if results[name]["succeeded"]} == {"good"}
    assert {name for name in NAMES if found[name]["benchmark_info"]["has_exception"]} == {"dies", "godo"}
    # what one had reported before it died counts
    assert [results[name]["wall_time"] for name in ("godo", "nan", "dies")] == [-1, "NaN", 1.0]
    assert "exit code 9" in results["dies"]["findings"][0]
    assert "did you mean 'good'" in results["godo"]["findings"][0]
    assert results["fixed"]["metrics"] == [{"name": "acc", "value": 0.5, "min_value": 0.9}]
    ended = [line for line in lab.failed if line.startswith("failed mod.B")]
    assert ended[1:3] == [
        "failed mod.B.nan trial 1 nightly: wall_time is nan",
        "failed mod.B.godo trial 1 nightly: B has no method 'godo'; did you mean 'good'?",
    ]
    assert [line.split(" ")[1] for line in ended] == [f"mod.B.{name}" for name in NAMES[:-1]]
    assert [line.split(" ")[1] for line in lab.said if line.startswith("done")] == ["mod.B.good", "left.f"]
    assert finished.found["left.f"][0].succeeded
    words = "left.f trial 1: it left 1 process running, which Assay ended: sleep"
    assert any(words in line for line in lab.warned)


def test_a_good_execution_is_complete(finished: Finished) -> None:
    (execution, summary), folder = finished.found["good"], finished.folder("good")
    assert folder.parent == finished.lab.folder / "workspace" / "output"
    assert folder.name == execution.execution_id == summary["execution_id"]
    sent = finished.target / execution.execution_id
    names = ["perfzero.log", "perfzero_summary.json", "process_info.log"]
    assert sorted(os.listdir(folder)) == sorted(os.listdir(sent)) == names
    assert json.loads((sent / "perfzero_summary.json").read_text()) == summary
    assert summary["benchmark_info"]["output_url"] == f"file://{finished.target}/{execution.execution_id}/"
    assert summary["benchmark_info"]["harness_info"]["version"] == "9.9"
    assert summary["benchmark_info"]["env_vars"] == {"PERFZERO_MODE": "test"}
    assert summary["benchmark_info"]["flags"]["execution_label"] == "nightly"
    assert summary["benchmark_info"]["site_package_info"] == {"tpu_version": "2.4"}
    assert summary["system_info"]["hostname"] == os.uname().nodename
    assert summary["system_info"]["logical_cpu_count"] == os.cpu_count()
    assert summary["ml_framework_info"]["build_label"] == "b"
    assert any(json.loads(text.partition("summary:\n")[2]) == summary for text in finished.lab.shown)
    log = (folder / "perfzero.log").read_text()
    assert "Starting benchmark execution: mod.B.good (trial 1)" in log
    assert json.loads(log.partition("summary:\n")[2]) == summary
    (line,) = map(json.loads, (folder / "process_info.log").read_text().splitlines())
    assert line["rss"] == summary["process_info"]["max_rss"] > 1_000_000
    assert line["vms"] >= line["rss"]
    assert set(finished.report.setup_s) == {"activate_gcloud_service", "download_data", "checkout_repository"}
    (kept,) = load_executions(find_location(None), "B.good")
    assert (kept.label, kept.trial) == ("nightly", 1)
    assert kept.extra.items() >= {"command": "perfzero", "system_name": "box"}.items()


def test_the_log_holds_what_the_method_printed(finished: Finished) -> None:
    log = (finished.folder("talk.f") / "perfzero.log").read_text()
    assert log.index("Starting") < log.index("grüße") < log.index("Traceback") < log.index("ERROR: ValueError: no luck")
    assert "talk.py" in log
    assert "child.py" not in log, "frames of our own are left out"
    assert any("appended to sys.path" in line for line in finished.lab.details)
    assert any(line.endswith("B.good") for line in finished.lab.details)


def test_a_summary_is_judged_as_the_execution_was(finished: Finished, tmp_path: Path) -> None:
    ours: dict[str, BenchExecution] = {each.method: each for each in finished.report.executions}
    files = [os.path.join(each.output_dir, "perfzero_summary.json") for each in ours.values()]
    known = import_results(files, None)
    assert (known.new, known.known) == (0, len(files)), "an execution that is here"
    assert import_results(files, str(tmp_path)).new == len(files)
    theirs = {each.method: each for each in load_executions(find_location(str(tmp_path)))}
    for method, own in ours.items():
        other = theirs[method]
        assert other.result.is_measured == own.result.is_measured, method
        assert other.succeeded == own.succeeded
        assert str(other.result.numbers) == str({name: own.result.numbers[name] for name in other.result.numbers})
        assert other.result.numbers.keys() == own.result.numbers.keys()
        assert (other.peaks.max_rss, other.machine.host) == (own.peaks.max_rss, own.machine.host)
        assert other.execution_id == own.execution_id
    (found,) = theirs["mod.B.fixed"].result.findings
    assert found.message == "acc is 0.5, below its minimum 0.9"


def test_trials_and_a_fixed_id_overwrite_nothing(lab: Lab) -> None:
    report = lab.run("mod.B.writes", benchmark_num_trials="2", execution_id="fixed")
    assert [(e.execution_id, e.trial) for e in report.executions] == [("fixed", 1), ("fixed-2", 2)]
    assert [summary["benchmark_result"]["trial_id"] for summary in lab.summaries(report)] == [1, 2]
    before = {path: path.read_bytes() for path in (lab.folder / "workspace" / "output").rglob("*") if path.is_file()}
    assert lab.run("mod.B.writes", execution_id="fixed").executions[0].execution_id == "fixed-3"
    assert {path: path.read_bytes() for path in before} == before
    assert set(report.execution_s) == {(1, "mod.B.writes"), (2, "mod.B.writes")}


def test_everything_that_is_brought_in_is_there_for_the_methods(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = lab.folder.parent / "theirs" / "models"
    sha = publish(theirs, {"given.py": THEIRS, "sender.py": "def send(summary): open('sent.txt', 'w').close()\n"})
    source = lab.folder / "source"
    source.mkdir()
    (source / "a.txt").write_text("first")
    (source / "b.txt").write_text("second")
    (lab.folder / "key.json").write_text('{"type": "service_account"}')
    gpus = lab.folder / "gpus.json"
    gpus.write_text('{"driver": "5", "gpus": [{"name": "Quadro P400"}, {"name": "Tesla V100"}]}')
    monkeypatch.setenv("ASSAY_FAKE_NVML", str(gpus))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    own = Package("https://h/assay", "main", "a" * 40, dirty=True, local_commits=46)
    monkeypatch.setattr("assay.compat.perfzero.flow.load_own_package", lambda _file: own)
    flags = {
        "git_repos": [f"{theirs};main"],
        "python_path": "models",
        "result_upload_methods": "sender.send",
        "data_downloads": [f"file://{source}/b.txt;same.txt,file://{source}/"],
        "gcs_downloads": [f"file://{source}/a.txt;same.txt"],
        "gcloud_key_file_url": f"file://{lab.folder}/key.json",
        "perfzero_constructor_args": '{"size": 3}',
    }
    report = lab.run("given.C.f", tpu_parameters='{"name": "my-tpu"}', execution_id="a", **flags)
    (summary,), (execution,) = lab.summaries(report), report.executions
    data, output = str(lab.folder / "data"), str(lab.folder / "workspace" / "output" / "a")
    extras = {extra["name"]: json.loads(extra["value"]) for extra in summary["benchmark_result"]["extras"]}
    kwargs = {"output_dir": output, "data_dir": data, "root_data_dir": data, "tpu": "my-tpu", "size": 3}
    assert extras == {"kwargs": kwargs, "key": {"type": "service_account"}}
    info = summary["benchmark_info"]
    assert info["site_package_info"] == {"models": {"url": str(theirs), "branch": "main", "hash": sha}}
    assert (lab.folder / "sent.txt").exists(), "the function comes with the repository"
    assert execution.commit == sha, "the history knows the code that was measured"
    assert load_execution(execution.run_dir) == execution
    assert (lab.folder / "data" / "same.txt").read_text() == "first", "the older flag comes first"
    assert (lab.folder / "data" / "source" / "b.txt").read_text() == "second"
    assert "GOOGLE_APPLICATION_CREDENTIALS" not in os.environ
    kept = [path for path in lab.folder.rglob("key.json") if "service_account" in path.read_text()]
    assert kept == [lab.folder / "key.json"]
    system = summary["system_info"]
    assert (system["accelerator_model"], system["accelerator_count"]) == ("Tesla V100", 2), "not that of a Quadro"
    assert (info["harness_info"]["dirty"], info["harness_info"]["local_commits"]) == (True, 46)
    edited = lab.folder / "workspace" / "site-packages" / "models" / "given.py"
    edited.write_text(f"{THEIRS}class Mine(C): pass\n")
    report = lab.run("given.Mine.filter:f", scratch_gcs_url="gs://bucket/scratch/", execution_id="b", **flags)
    (summary,) = lab.summaries(report)
    extras = {extra["name"]: json.loads(extra["value"]) for extra in summary["benchmark_result"]["extras"]}
    assert extras["kwargs"]["output_dir"] == "gs://bucket/scratch/b"
    assert summary["benchmark_result"]["succeeded"], "local edits are used"
    assert summary["benchmark_info"]["site_package_info"]["models"]["dirty"] is True
    assert list(problems(summary, load_schema())) == []
    assert lab.warned == []


# ---------------------------------------------------------------- profiles


def test_a_profile_is_where_tensorboard_looks(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assay.bench.flow.run.find_py_spy", lambda: None)  # our own sampler is the quicker one
    monkeypatch.setenv("PATH", os.defpath)
    report = lab.run("busy.f", "mod.B.writes", profiler_enabled_time="0:0.1,0.2:")
    folder = Path(report.executions[0].output_dir, "profiler_data")
    host = os.uname().nodename
    planes = sorted(folder.glob(f"plugins/profile/*/{host}.xplane.pb"))
    assert [plane.parent.name[20:] for plane in planes] == ["python-1", "python-2"]
    assert all(b"spin (busy.py" in plane.read_bytes() for plane in planes)
    assert sorted(map(str, folder.rglob("*.*b"))) == sorted(map(str, planes))
    assert set(map(str, planes)) <= set(report.executions[0].profiles)
    assert any("tensorboard --logdir=" in line for line in lab.said)
    traces = sorted(map(str, folder.glob("plugins/profile/*/*.trace.json.gz")))
    assert len(traces) == 2
    assert all(any(trace in line for line in lab.said) for trace in traces), "their paths are printed"
    assert [line.partition("; ")[2] for line in lab.warned] == ["the window 0.2: never began"]


def test_what_the_child_has_printed_is_not_printed_again(lab: Lab) -> None:
    """With the methods' own output on the screen; the call of `finished` shows what is printed without it."""
    lab.is_echoing = True
    (wrong,) = lab.run("mod.B.godo", profiler_enabled_time="100:101").executions
    assert lab.failed[0] == "failed mod.B.godo trial 1"
    assert Path(wrong.run_dir, wrong.log).read_text().count("has no method 'godo'") == 1
    assert lab.warned == []


# ---------------------------------------------------------------- where results go


def test_a_store_that_does_not_answer_costs_no_measurement(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked for the first time when there is something to send, and not for long."""
    asked: list[str] = []
    released = threading.Event()

    def open_store(url: str) -> Any:
        asked.append(url)
        assert list((lab.folder / "workspace" / "output").glob("*/perfzero_summary.json"))
        released.wait(60)

    monkeypatch.setattr("assay.compat.perfzero.flow.check_target", lambda _url: None)  # it would import gcsfs
    monkeypatch.setattr("assay.exchange.store.object_store._open", open_store)
    monkeypatch.setattr("assay.exchange.store.object_store._ANSWER_S", 0.2)
    report = lab.run("mod.B.writes", output_gcs_url="gs://nope/x", execution_id="one")
    released.set()
    assert report.exit_code is ExitCode.INTERNAL
    assert asked == ["gs://nope/x/one"]
    assert "connecting to gs://nope/x/one (for at most 0.2 s)" in lab.said
    assert "the upload to gs://nope/x of one: gs://nope/x/one cannot be reached: no answer" in report.problems[0]
    assert lab.summaries(report)[0]["benchmark_result"]["succeeded"]


def test_what_cannot_be_sent_is_a_problem_and_loses_no_summary(lab: Lab, warehouse: Warehouse) -> None:
    warehouse.takes, warehouse.errors = 1, [{"reason": "invalid", "message": "no such field"}]
    target = lab.folder.parent / "store"
    (lab.folder / "vandal.py").write_text(
        "import os, shutil\n"
        f"def f(summary):\n    if os.path.isdir({str(target)!r}): shutil.rmtree({str(target)!r})\n"
        f"    open({str(target)!r}, 'w').close()\n"
    )
    flags = {"bigquery_project_name": "p", "bigquery_dataset_table_name": "d.t", "output_gcs_url": f"file://{target}"}
    report = lab.run("mod.B.writes", "mod.B.fixed", **flags, result_upload_methods="up.refuse,up.keep,vandal.f")
    assert report.exit_code is ExitCode.INTERNAL
    kept = [json.loads(line) for line in (lab.folder / "kept.jsonl").read_text().splitlines()]
    assert kept == lab.summaries(report), "one that fails does not prevent the others"
    assert all(problem in lab.warned for problem in report.problems)
    assert "Traceback" not in "".join(lab.said + lab.warned)
    (row,) = [row["json"] for row in warehouse.rows]
    first, second = lab.summaries(report)
    assert row["execution_id"] == report.executions[0].execution_id
    assert json.loads(row["benchmark_result"]) == first["benchmark_result"]
    assert [each["benchmark_result"]["succeeded"] for each in (first, second)] == [True, False]
    full, lost, refused, full_too, lost_too = report.problems
    words = "up.refuse: RuntimeError: the table is full (up.py:4 in refuse)"
    assert all(problem.endswith(words) for problem in (full, full_too))
    assert all(f"the upload to file://{target}" in problem for problem in (lost, lost_too))
    assert "the row in BigQuery's d.t" in refused
    assert "no such field" in refused


def test_a_signal_ends_the_sending_and_reaches_the_loop() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: heard.append(number))

    def send(work: Callable[[], None]) -> None:
        with _stoppable():
            work()

    try:
        with pytest.raises(_StoppedError):
            send(lambda: (os.kill(os.getpid(), signal.SIGINT), time.sleep(5))[0])
        assert heard == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)
