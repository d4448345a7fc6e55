"""PerfZero's workspace around real executions: what is brought in, written, shown and sent."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tests.bench_samples import write_module
from tests.compat.perfzero.test_summary import load_schema
from tests.show.json_schema import problems

from assay.bench.flow.archive import find_location, import_files, load_executions
from assay.bench.records import load_execution
from assay.compat.perfzero.flags import parse_flags
from assay.compat.perfzero.flow import PerfzeroConsole, _stoppable, _StoppedError, plot_process_info, run_perfzero
from assay.compat.perfzero.values import Package, PerfzeroReport
from assay.errors import AssayError, ExitCode, UsageError
from assay.launch.sweep import RunHooks

UPLOADS = """
import json, os
def keep(summary): open("kept.jsonl", "a").write(json.dumps(summary) + "\\n")
def refuse(summary): raise RuntimeError("the table is full")
"""


class LabConsole(PerfzeroConsole):
    """Keeps what is printed in the lists of the lab."""

    def __init__(self, lab: Lab) -> None:
        super().__init__(quiet=not lab.is_echoing)
        self.message = lab.said.append  # type: ignore[method-assign]
        self.detail = lab.details.append  # type: ignore[method-assign]
        self.write = lab.shown.append  # type: ignore[method-assign]
        self.warning = lab.warned.append  # type: ignore[method-assign]
        self.error = lab.failed.append  # type: ignore[method-assign]


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
        given = {
            "benchmark_methods": [",".join(methods)],
            "root_data_dir": "data",
            "foreign_limit": "1",  # the machine that tests run on is never quiet
            "timeout": "60s",
            **flags,
        }
        job = parse_flags(given, str(self.folder), {"PERFZERO_MODE": "test"})
        console = LabConsole(self)
        return run_perfzero(job, RunHooks(tick_s=0.05), console, "9.9", ("assay", "perfzero"))

    def summaries(self, report: PerfzeroReport) -> list[dict[str, Any]]:
        folders = [Path(execution.output_dir) for execution in report.executions]
        return [json.loads((folder / "perfzero_summary.json").read_text()) for folder in folders]


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    folder = tmp_path / "lab"
    folder.mkdir()
    write_module(folder)
    (folder / "up.py").write_text(UPLOADS)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("ASSAY_SLOTS_DIR", str(tmp_path / "slots"))
    monkeypatch.setenv("ASSAY_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    return Lab(folder)


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def publish(folder: Path, name: str, text: str) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / ".git").exists():
        git(folder, "init", "-q", "-b", "main")
    (folder / name).write_text(text)
    git(folder, "add", name)
    git(folder, "commit", "-q", "-m", name)
    return git(folder, "rev-parse", "HEAD")


# ---------------------------------------------------------------- what is never begun


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"data_downloads": ["file:///no/such/file"]}, "there is no file or folder"),
        ({"data_downloads": ["ftp://h/x"]}, "ftp:// cannot be used"),
        ({"git_repos": ["/no/such/repository"]}, "cannot be cloned"),
        ({"gcloud_key_file_url": "file:///no/such/key.json"}, "there is no file or folder"),
        ({"output_gcs_url": "gsx://bucket/x"}, "gsx:// cannot be used"),
        ({"output_gcs_url": "file:///proc/nowhere"}, "/proc/nowhere"),
        ({"data_downloads": ["file:///etc/hostname;../../escape"]}, "would be kept outside"),
    ],
)
def test_what_cannot_be_had_is_said_before_anything_runs(lab: Lab, flags: dict[str, Any], words: str) -> None:
    with pytest.raises(AssayError, match=words):
        lab.run("mod.B.fixed", **flags)
    assert not (lab.folder / "runs").exists()
    assert not (lab.folder / "workspace" / "output").exists()


def test_a_checksum_that_does_not_fit(lab: Lab) -> None:
    (lab.folder / "source").write_text("data")
    with pytest.raises(UsageError, match="is not what was expected"):
        lab.run("mod.quick", data_downloads=[f"file://{lab.folder}/source;data;{'0' * 64}"])
    assert not (lab.folder / "data" / "data").exists()


# ---------------------------------------------------------------- every temper


def test_every_failure_is_recorded_and_the_run_goes_on(lab: Lab) -> None:
    names = ["dies", "sleeps", "nan", "never", "raises", "godo", "fixed", "good"]
    report = lab.run(*(f"mod.B.{name}" for name in names), timeout="3s")
    assert report.exit_code is ExitCode.FAILED
    found = dict(zip(names, lab.summaries(report), strict=True))
    schema = load_schema()
    assert {name: list(problems(summary, schema)) for name, summary in found.items()} == {name: [] for name in names}
    results = {name: summary["benchmark_result"] for name, summary in found.items()}
    assert {name for name in names if results[name]["succeeded"]} == {"good"}
    crashed = {name for name in names if found[name]["benchmark_info"]["has_exception"]}
    assert crashed == {"dies", "sleeps", "raises", "godo"}
    assert {name: results[name]["wall_time"] for name in ("sleeps", "never", "raises", "nan", "dies")} == {
        "sleeps": -1,
        "never": -1,
        "raises": -1,
        "nan": "NaN",
        "dies": 1.0,  # what it had reported before it died
    }
    assert "exit code 9" in results["dies"]["findings"][0]
    assert "time limit" in results["sleeps"]["findings"][0]
    assert "never called report_benchmark" in results["never"]["findings"][0]
    assert "did you mean 'good'" in results["godo"]["findings"][0]
    assert results["fixed"]["metrics"] == [{"name": "acc", "value": 0.5, "min_value": 0.9}]
    assert [line.split(" ")[:2] for line in lab.failed] == [["failed", f"mod.B.{name}"] for name in names[:-1]]
    assert lab.failed[2] == "failed mod.B.nan trial 1: wall_time is nan"
    assert "never called report_benchmark" in lab.failed[3]
    assert [line for line in lab.said if line.startswith("done")] == ["done mod.B.good trial 1"]
    told = [summary["process_info"] for name, summary in found.items() if name != "dies"]  # which left without a word
    assert all(process["max_rss"] > 0 for process in told)


def test_a_good_execution_is_complete(lab: Lab) -> None:
    report = lab.run(
        "mod.B.good", execution_label="nightly", platform_name="here", system_name="box", ml_framework_build_label="b"
    )
    assert report.exit_code is ExitCode.OK
    (execution,), (summary,) = report.executions, lab.summaries(report)
    folder = Path(execution.output_dir)
    assert folder.parent == lab.folder / "workspace" / "output"
    assert folder.name == execution.execution_id == summary["execution_id"]
    assert sorted(path.name for path in folder.iterdir()) == [
        "perfzero.log",
        "perfzero_summary.json",
        "process_info.log",
    ]
    assert summary["benchmark_info"]["harness_info"]["version"] == "9.9"
    assert summary["benchmark_info"]["env_vars"] == {"PERFZERO_MODE": "test"}
    assert summary["benchmark_info"]["flags"]["execution_label"] == "nightly"
    assert summary["system_info"]["hostname"] == os.uname().nodename
    assert summary["system_info"]["logical_cpu_count"] == os.cpu_count()
    assert summary["ml_framework_info"]["build_label"] == "b"
    assert json.loads("".join(lab.shown).partition("summary:\n")[2]) == summary
    log = (folder / "perfzero.log").read_text()
    assert "Starting benchmark execution: mod.B.good (trial 1)" in log
    assert json.loads(log.partition("summary:\n")[2]) == summary
    (line,) = map(json.loads, (folder / "process_info.log").read_text().splitlines())
    assert line["rss"] == summary["process_info"]["max_rss"] > 1_000_000
    assert line["vms"] >= line["rss"]


def test_our_own_state_has_real_types(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    own = Package("https://h/assay", "main", "a" * 40, dirty=True, local_commits=46)
    monkeypatch.setattr("assay.compat.perfzero.flow.load_own_package", lambda _file: own)
    (summary,) = lab.summaries(lab.run("mod.B.writes"))
    info = summary["benchmark_info"]["harness_info"]
    assert (info["dirty"], info["local_commits"]) == (True, 46)
    assert list(problems(summary, load_schema())) == []


def test_a_peak_that_lasts_milliseconds_is_seen(lab: Lab) -> None:
    (summary,) = lab.summaries(lab.run("mod.B.large"))
    assert summary["process_info"]["max_rss"] > 120_000_000


def test_the_log_holds_what_the_method_printed(lab: Lab) -> None:
    (lab.folder / "talk.py").write_text("def f():\n    print('grüße')\n    raise ValueError('no luck')\n")
    report = lab.run("talk.f")
    log = Path(report.executions[0].output_dir, "perfzero.log").read_text()
    assert log.index("Starting") < log.index("grüße") < log.index("Traceback") < log.index("ERROR: ValueError: no luck")
    assert "talk.py" in log
    assert "child.py" not in log, "how we came to call it is no news"


def test_a_longer_run_has_readings_of_the_whole_tree(lab: Lab) -> None:
    (lab.folder / "tree.py").write_text(
        "import subprocess, sys\nfrom assay.bench import report_benchmark\n"
        "def f():\n"
        "    child = 'x = bytearray(80_000_000); import time; time.sleep(1.6)'\n"
        "    subprocess.run([sys.executable, '-c', child])\n"
        "    report_benchmark(wall_time=1.0)\n"
    )
    report = lab.run("tree.f")
    lines = [
        json.loads(line) for line in Path(report.executions[0].output_dir, "process_info.log").read_text().splitlines()
    ]
    assert max(line["processes"] for line in lines) >= 2
    assert max(line["rss"] for line in lines) > 80_000_000
    assert lab.summaries(report)[0]["process_info"]["max_rss"] > 80_000_000


def test_one_child_beside_the_method_is_in_the_summary(lab: Lab) -> None:
    (lab.folder / "tree.py").write_text(
        "import subprocess, sys\nfrom assay.bench import report_benchmark\n"
        "def hold(size): return f'b = bytearray({size}); b[::4096] = b[::4096]; import time; time.sleep(1.4)'\n"
        "def f():\n"
        "    held = bytearray(80_000_000); held[::4096] = held[::4096]\n"
        "    subprocess.run([sys.executable, '-S', '-c', hold(80_000_000)])\n"
        "    report_benchmark(wall_time=1.0)\n"
    )
    report = lab.run("tree.f")
    log = Path(report.executions[0].output_dir, "process_info.log").read_text()
    seen = max(json.loads(line)["rss"] for line in log.splitlines())
    told = lab.summaries(report)[0]["process_info"]["max_rss"]
    assert told > 160_000_000
    assert told > seen - 20_000_000  # which has our shells in it


def test_what_a_method_leaves_behind_is_a_warning(lab: Lab) -> None:
    (lab.folder / "left.py").write_text(
        "import subprocess\nfrom assay.bench import report_benchmark\n"
        "def f():\n    subprocess.Popen(['sleep', '300'], start_new_session=True)\n    report_benchmark(wall_time=1.0)\n"
    )
    report = lab.run("left.f")
    assert report.executions[0].succeeded
    assert any("left.f trial 1: it left 1 process running, which Assay ended: sleep" in line for line in lab.warned)


def test_the_model_is_not_that_of_a_quadro(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = lab.folder / "gpus.json"
    gpus.write_text('{"driver": "5", "gpus": [{"name": "Quadro P400"}, {"name": "Tesla V100"}]}')
    monkeypatch.setenv("ASSAY_FAKE_NVML", str(gpus))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    system = lab.summaries(lab.run("mod.B.fixed"))[0]["system_info"]
    assert (system["accelerator_model"], system["accelerator_count"]) == ("Tesla V100", 2)


# ---------------------------------------------------------------- trials and ids


def test_trials_and_a_fixed_id_overwrite_nothing(lab: Lab) -> None:
    report = lab.run("mod.B.writes,mod.quick", benchmark_num_trials="2", execution_id="fixed")
    assert [(e.execution_id, e.method, e.trial) for e in report.executions] == [
        ("fixed", "mod.B.writes", 1),
        ("fixed-2", "mod.quick", 1),
        ("fixed-3", "mod.B.writes", 2),
        ("fixed-4", "mod.quick", 2),
    ]
    assert [summary["benchmark_result"]["trial_id"] for summary in lab.summaries(report)] == [1, 1, 2, 2]
    before = {path: path.read_bytes() for path in (lab.folder / "workspace" / "output").rglob("*") if path.is_file()}
    again = lab.run("mod.B.writes", execution_id="fixed")
    assert again.executions[0].execution_id == "fixed-5"
    assert {path: path.read_bytes() for path in before} == before
    assert set(report.times.executions) == {
        (1, "mod.B.writes"),
        (1, "mod.quick"),
        (2, "mod.B.writes"),
        (2, "mod.quick"),
    }


def test_a_filter_and_a_colon(lab: Lab) -> None:
    report = lab.run("mod.B.filter:wri.*", "mod.B:environment")
    assert [execution.method for execution in report.executions] == ["mod.B.writes", "mod.B.environment"]


# ---------------------------------------------------------------- what is given to constructors


def test_constructor_arguments_data_dir_and_tpu(lab: Lab) -> None:
    (lab.folder / "given.py").write_text(
        "import json\nfrom assay.bench import Benchmark\n"
        "class C(Benchmark):\n"
        "    def __init__(self, **kwargs): self.kwargs = kwargs\n"
        "    def f(self): self.report_benchmark(wall_time=1.0, extras={'kwargs': json.dumps(self.kwargs)})\n"
    )

    def kwargs(**flags: Any) -> dict[str, Any]:
        (summary,) = lab.summaries(lab.run("given.C.f", **flags))
        (extra,) = summary["benchmark_result"]["extras"]
        found: dict[str, Any] = json.loads(extra["value"])
        return found

    found = kwargs(
        perfzero_constructor_args='{"size": 3}', tpu_parameters='{"name": "my-tpu", "version": "2.4"}', execution_id="a"
    )
    data, output = str(lab.folder / "data"), str(lab.folder / "workspace" / "output" / "a")
    assert found == {"output_dir": output, "data_dir": data, "root_data_dir": data, "tpu": "my-tpu", "size": 3}
    assert kwargs(benchmark_class_type="tf_benchmark", perfzero_constructor_args='{"size": 3}') == {"size": 3}
    assert kwargs(scratch_gcs_url="gs://bucket/scratch/", execution_id="b")["output_dir"] == "gs://bucket/scratch/b"
    assert (lab.folder / "workspace" / "output" / "b" / "perfzero_summary.json").exists()


def test_the_tpu_s_version_stands_with_the_packages(lab: Lab) -> None:
    (summary,) = lab.summaries(lab.run("mod.quick", tpu_parameters='{"name": "t", "version": "2.4"}'))
    assert summary["benchmark_info"]["site_package_info"] == {"tpu_version": "2.4"}


# ---------------------------------------------------------------- what is brought in


def test_repositories_are_checked_out_put_on_the_path_and_recorded(lab: Lab) -> None:
    theirs = lab.folder.parent / "theirs" / "models"
    sha = publish(theirs, "bench_models.py", "from mod import B\n")
    flags = {"git_repos": [f"{theirs};main"], "python_path": "models"}
    report = lab.run("bench_models.B.fixed", **flags)
    (summary,) = lab.summaries(report)
    info = summary["benchmark_info"]["site_package_info"]
    assert info == {"models": {"url": str(theirs), "branch": "main", "hash": sha}}
    assert report.executions[0].commit == sha, "the history knows the code that was measured"
    assert load_execution(report.executions[0].run_dir) == report.executions[0]
    (lab.folder / "workspace" / "site-packages" / "models" / "bench_models.py").write_text(
        "from mod import B\nclass Mine(B): pass\n"
    )
    (summary,) = lab.summaries(lab.run("bench_models.Mine.writes", **flags))
    assert summary["benchmark_result"]["succeeded"], "local edits are used"
    assert summary["benchmark_info"]["site_package_info"]["models"]["dirty"] is True
    assert list(problems(summary, load_schema())) == []
    assert lab.warned == []


def test_a_python_path_that_is_not_there_is_refused(lab: Lab) -> None:
    with pytest.raises(UsageError, match=r"--python_path: there is no folder .*modles"):
        lab.run("mod.quick", python_path="modles")


def test_data_is_fetched_once_and_the_older_flag_comes_first(lab: Lab) -> None:
    source = lab.folder / "source"
    source.mkdir()
    (source / "a.txt").write_text("first")
    (source / "b.txt").write_text("second")
    flags = {
        "data_downloads": [f"file://{source}/b.txt;same.txt,file://{source}/"],
        "gcs_downloads": [f"file://{source}/a.txt;same.txt"],
    }
    report = lab.run("mod.B.writes", **flags)
    assert (lab.folder / "data" / "same.txt").read_text() == "first"
    assert (lab.folder / "data" / "source" / "b.txt").read_text() == "second"
    assert Path(report.executions[0].output_dir, "result.txt").read_text() == str(lab.folder / "data")
    assert set(report.times.setup) == {"activate_gcloud_service", "download_data", "checkout_repository"}


def test_the_key_is_there_for_the_method_and_gone_afterwards(lab: Lab) -> None:
    (lab.folder / "key.json").write_text('{"type": "service_account"}')
    (lab.folder / "ask.py").write_text(
        "import os\nfrom assay.bench import report_benchmark\n"
        "def f(): report_benchmark(wall_time=1.0, extras={'key': open(os.environ['GOOGLE_APPLICATION_CREDENTIALS']).read()})\n"
    )
    report = lab.run("ask.f", gcloud_key_file_url=f"file://{lab.folder}/key.json")
    (extra,) = lab.summaries(report)[0]["benchmark_result"]["extras"]
    assert json.loads(extra["value"]) == {"type": "service_account"}
    assert "GOOGLE_APPLICATION_CREDENTIALS" not in os.environ
    kept = [
        path for path in lab.folder.rglob("*.json") if "service_account" in path.read_text() and path.name == "key.json"
    ]
    assert kept == [lab.folder / "key.json"]


# ---------------------------------------------------------------- profiles


def test_a_profile_lies_where_tensorboard_looks(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assay.bench.flow.run.find_py_spy", lambda: None)  # our own sampler is the quicker one
    monkeypatch.setenv("PATH", os.defpath)
    (lab.folder / "busy.py").write_text(
        "import time\nfrom assay.bench import report_benchmark\n"
        "def spin():\n    end = time.time() + 0.4\n    while time.time() < end: sum(range(1000))\n"
        "def f():\n    spin()\n    report_benchmark(wall_time=1.0)\n"
    )
    report = lab.run("busy.f", profiler_enabled_time="0:0.1,0.2:")
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
    assert all(any(trace in line for line in lab.said) for trace in traces), "it is said where they are"


@pytest.mark.parametrize("is_echoing", [False, True])
def test_a_wrong_name_is_said_once(lab: Lab, is_echoing: bool) -> None:
    lab.is_echoing = is_echoing
    report = lab.run("mod.B.godo", "mod.B.raises")
    why = "" if is_echoing else ": B has no method 'godo'; did you mean 'good'?"
    assert lab.failed[0] == f"failed mod.B.godo trial 1{why}"
    assert "no luck" in lab.failed[1]
    (log,) = [Path(each.run_dir, each.log).read_text() for each in report.executions if each.method == "mod.B.godo"]
    assert log.count("has no method 'godo'") == 1
    assert "has no method" in lab.summaries(report)[0]["benchmark_result"]["findings"][0]


@pytest.mark.parametrize(
    "flags",
    [
        {"git_repos": ["https://no-such-host.invalid/x.git"]},
        {"data_downloads": ["https://no-such-host.invalid/x;x"]},
        {"gcloud_key_file_url": "https://no-such-host.invalid/key.json"},
    ],
)
def test_a_host_that_is_not_found_is_one_exit_code_for_all(lab: Lab, flags: dict[str, Any]) -> None:
    with pytest.raises(AssayError, match="no-such-host") as caught:
        lab.run("mod.B.fixed", **flags)
    assert caught.value.exit_code is ExitCode.INTERNAL
    assert not (lab.folder / "runs").exists()


@pytest.mark.parametrize("is_echoing", [False, True])
def test_a_window_that_never_began_is_a_warning(lab: Lab, is_echoing: bool) -> None:
    """Once: what is echoed has our child's own words in it."""
    lab.is_echoing = is_echoing
    report = lab.run("mod.B.writes", profiler_enabled_time="100:101")
    assert report.exit_code is ExitCode.OK
    found = [line.partition("ended after ")[2].partition("; ")[2] for line in lab.warned]
    assert found == ([] if is_echoing else ["the window 100:101 never began"])
    assert "the window 100:101 never began" in Path(report.executions[0].output_dir, "perfzero.log").read_text()


# ---------------------------------------------------------------- where results go


def test_the_folder_is_sent(lab: Lab) -> None:
    target = lab.folder.parent / "store"
    report = lab.run("mod.B.writes", output_gcs_url=f"file://{target}", execution_id="one")
    assert report.exit_code is ExitCode.OK
    assert sorted(path.name for path in (target / "one").iterdir()) == [
        "perfzero.log",
        "perfzero_summary.json",
        "process_info.log",
        "result.txt",
    ]
    sent = json.loads((target / "one" / "perfzero_summary.json").read_text())
    assert sent["benchmark_info"]["output_url"] == f"file://{target}/one/"


def test_upload_methods_are_called_and_what_they_refuse_is_collected(lab: Lab) -> None:
    report = lab.run("mod.B.fixed", "mod.quick", result_upload_methods="up.refuse,up.keep")
    assert report.exit_code is ExitCode.INTERNAL
    kept = [json.loads(line) for line in (lab.folder / "kept.jsonl").read_text().splitlines()]
    assert kept == lab.summaries(report), "one that fails does not keep the others from being called"
    assert len(report.problems) == 2
    assert all(problem in lab.warned for problem in report.problems)
    assert report.problems[0].endswith("up.refuse: RuntimeError: the table is full (up.py:4 in refuse)")
    assert "Traceback" not in "".join(lab.said + lab.warned)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("up.kep", "module up has no 'kep'\n  did you mean 'keep'"),
        ("upp.keep", "No module named 'upp'"),
        ("up.json", "is not a function"),
    ],
)
def test_an_upload_method_that_is_not_there_is_said_before_the_first_method_runs(
    lab: Lab, name: str, words: str
) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        lab.run("mod.B.writes", result_upload_methods=f"up.keep,{name}")
    assert "--result_upload_methods" in caught.value.message
    assert not (lab.folder / "runs").exists()


def test_an_upload_method_may_come_with_a_repository(lab: Lab) -> None:
    theirs = lab.folder.parent / "theirs" / "models"
    publish(theirs, "sender.py", "def send(summary): open('sent.txt', 'w').close()\n")
    report = lab.run("mod.quick", git_repos=[str(theirs)], python_path="models", result_upload_methods="sender.send")
    assert report.exit_code is ExitCode.OK
    assert (lab.folder / "sent.txt").exists()


def test_a_store_that_does_not_answer_costs_no_measurement(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked for the first time when there is something to send, and not for ever."""
    pytest.importorskip("gcsfs")
    asked: list[str] = []
    released = threading.Event()

    def open_store(url: str) -> Any:
        asked.append(url)
        assert list((lab.folder / "workspace" / "output").glob("*/perfzero_summary.json"))
        released.wait(60)

    monkeypatch.setattr("assay.exchange.store.object_store._open", open_store)
    monkeypatch.setattr("assay.exchange.store.object_store._ANSWER_S", 0.2)
    report = lab.run("mod.B.writes", output_gcs_url="gs://nope/x", execution_id="one")
    released.set()
    assert report.exit_code is ExitCode.INTERNAL
    assert asked == ["gs://nope/x/one"]
    assert "connecting to gs://nope/x/one (for at most 0.2 s)" in lab.said
    assert "the upload to gs://nope/x of one: gs://nope/x/one cannot be reached: no answer" in report.problems[0]
    assert lab.summaries(report)[0]["benchmark_result"]["succeeded"]


def test_a_store_that_goes_away_loses_no_summary(lab: Lab) -> None:
    target = lab.folder.parent / "store"
    (lab.folder / "vandal.py").write_text(
        f"import shutil\ndef f(summary):\n    shutil.rmtree({str(target)!r})\n    open({str(target)!r}, 'w').close()\n"
    )
    report = lab.run("mod.B.writes", output_gcs_url=f"file://{target}", result_upload_methods="vandal.f")
    assert report.exit_code is ExitCode.INTERNAL
    assert f"the upload to file://{target}" in report.problems[0]
    assert lab.summaries(report)[0]["benchmark_result"]["succeeded"]


class FakeBigQuery(BaseHTTPRequestHandler):
    """Takes rows as BigQuery's own web interface does, or refuses them."""

    rows: ClassVar[list[dict[str, Any]]] = []
    answer: ClassVar[dict[str, Any]] = {}

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        packed = self.headers.get("Content-Encoding") == "gzip"
        self.rows.append({"path": self.path, **json.loads(gzip.decompress(data) if packed else data)})
        body = json.dumps({"kind": "bigquery#tableDataInsertAllResponse", **self.answer}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_words: object) -> None: ...


@pytest.fixture
def bigquery(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[FakeBigQuery]]:
    pytest.importorskip("google.cloud.bigquery")
    server = HTTPServer(("127.0.0.1", 0), FakeBigQuery)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("BIGQUERY_EMULATOR_HOST", f"http://127.0.0.1:{server.server_port}")
    FakeBigQuery.rows, FakeBigQuery.answer = [], {}
    yield FakeBigQuery
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_row_for_each_execution(lab: Lab, bigquery: type[FakeBigQuery]) -> None:
    report = lab.run("mod.B.writes,mod.B.fixed", bigquery_project_name="p", bigquery_dataset_table_name="d.t")
    assert report.problems == ()
    assert report.exit_code is ExitCode.FAILED
    rows = [row["rows"][0]["json"] for row in bigquery.rows]
    assert all("/projects/p/datasets/d/tables/t/insertAll" in row["path"] for row in bigquery.rows)
    assert [row["execution_id"] for row in rows] == [execution.execution_id for execution in report.executions]
    results = [json.loads(row["benchmark_result"]) for row in rows]
    assert [result["succeeded"] for result in results] == [True, False]
    assert results == [summary["benchmark_result"] for summary in lab.summaries(report)]


def test_a_row_that_is_refused_is_a_problem_and_not_a_crash(lab: Lab, bigquery: type[FakeBigQuery]) -> None:
    bigquery.answer = {"insertErrors": [{"index": 0, "errors": [{"reason": "invalid", "message": "no such field"}]}]}
    report = lab.run("mod.B.writes", bigquery_project_name="p", bigquery_dataset_table_name="d.t")
    assert report.exit_code is ExitCode.INTERNAL
    assert "the row in BigQuery's d.t" in report.problems[0]
    assert "no such field" in report.problems[0]
    assert lab.summaries(report)[0]["benchmark_result"]["succeeded"]


def test_a_part_that_is_not_installed_is_said_before_hours_of_benchmarks(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("assay.compat.perfzero.flow._is_installed", lambda _name: False)
    with pytest.raises(UsageError, match="BigQuery"):
        lab.run("mod.B.writes", bigquery_project_name="p", bigquery_dataset_table_name="d.t")
    assert not (lab.folder / "runs").exists()


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


# ---------------------------------------------------------------- the history and the plot


def test_it_is_in_the_history(lab: Lab) -> None:
    lab.run("mod.B.writes", execution_label="nightly", system_name="box", benchmark_num_trials="2")
    found = load_executions(find_location(None), "B.writes")
    assert [(execution.label, execution.trial) for execution in found] == [("nightly", 1), ("nightly", 2)]
    assert found[0].extra["door"] == "perfzero"
    assert found[0].extra["system_name"] == "box"


def test_details_are_for_those_who_ask(lab: Lab) -> None:
    (lab.folder / "workspace" / "site-packages" / "models").mkdir(parents=True)
    lab.run("mod.B.writes", python_path="models")
    assert any("appended to sys.path" in line for line in lab.details)
    assert any(line.endswith("B.writes") for line in lab.details)


def test_the_plot_of_an_execution(lab: Lab) -> None:
    report = lab.run("mod.B.writes")
    line = plot_process_info(f"{report.executions[0].output_dir}/process_info.log", "out.pdf")
    assert line == "out.pdf: 3 pages from 1 reading"
    assert (lab.folder / "out.pdf").read_bytes().startswith(b"%PDF")
    with pytest.raises(UsageError, match="is not a PDF"):
        plot_process_info("x", "out.png")


# ---------------------------------------------------------------- summaries that come back


def test_a_summary_of_an_execution_that_is_here_is_known(lab: Lab) -> None:
    report = lab.run("mod.B.fixed", "mod.B.good", "mod.B.raises", "mod.B.nan", benchmark_num_trials="2")
    files = [os.path.join(each.output_dir, "perfzero_summary.json") for each in report.executions]
    found = import_files(files, None)
    assert (found.new, found.known) == (0, 8)


def test_a_summary_is_judged_as_the_execution_was(lab: Lab) -> None:
    names = ["fixed", "good", "raises", "nan", "never", "dies"]
    report = lab.run(*(f"mod.B.{name}" for name in names))
    files = [os.path.join(each.output_dir, "perfzero_summary.json") for each in report.executions]
    assert import_files(files, "elsewhere").new == len(names)
    ours = {each.method: each for each in report.executions}
    theirs = {each.method: each for each in load_executions(find_location("elsewhere"))}
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
