"""The child, as a process: what it says when it goes well, when it does not, and when it cannot say anything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from assay.bench.benchmark import ENV_BENCH_REPORT
from assay.bench.child_report import load_child_report
from assay.bench.values.execution import ChildReport

MODULE = """
import os, sys, time
from assay.bench import Benchmark, report_benchmark

class B(Benchmark):
    def good(self): self.report_benchmark(wall_time=1.0)
    def dies(self):
        self.report_benchmark(wall_time=2.0)
        os._exit(9)
    def raises(self): raise ValueError("no luck")
    def leaves(self): sys.exit(3)
    def leaves_well(self):
        self.report_benchmark(wall_time=1.0)
        sys.exit(0)
    def busy(self):
        until = time.process_time() + 0.4  # of the processor: so the profiler gets a turn, whatever the load is
        while time.process_time() < until: sum(range(1000))
        self.report_benchmark(wall_time=0.4)

class Bad(Benchmark):
    def __init__(self): raise OSError("no data here")
    def good(self): ...

def quick(): sum(range(10))
def reports(): report_benchmark(throughput=5)
def fails(): raise KeyError("x")
print("a module may print")
"""


def write_spy(folder: Path) -> Path:
    """Writes down how it was called, and leaves when it is interrupted, as py-spy does."""
    spy = folder / "bin" / "py-spy"
    spy.parent.mkdir()
    spy.write_text(
        "#!/usr/bin/env bash\nwhile [ $# -gt 0 ]; do case $1 in --output) out=$2;; --pid) pid=$2;; --format) form=$2;; esac; shift; done\n"
        'trap \'echo "{\\"pid\\": $pid, \\"form\\": \\"$form\\"}" > "$out"; exit 0\' INT\nwhile :; do sleep 0.02; done\n'
    )
    spy.chmod(0o755)
    return spy


@pytest.fixture
def child(tmp_path: Path) -> Any:
    (tmp_path / "mod.py").write_text(MODULE)

    def run(*arguments: str) -> tuple[int, ChildReport, str]:
        report = tmp_path / "report.jsonl"
        done = subprocess.run(
            [sys.executable, "-m", "assay.bench.child", *arguments],
            cwd=tmp_path,
            env={**os.environ, ENV_BENCH_REPORT: str(report)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        run.errors = done.stderr  # type: ignore[attr-defined]
        return done.returncode, load_child_report(str(report)), done.stdout

    return run


def test_a_good_one(child: Any) -> None:
    code, reported, _ = child("run", "mod.B.good")
    assert code == 0
    assert reported.begin["pid"] > 0
    assert reported.reports[0]["wall_time"] == 1.0
    assert reported.end["ok"] is True
    assert reported.end["peaks"]["max_rss"] > 1_000_000
    assert reported.end["wall_s"] >= 0


def test_one_that_dies_leaves_what_it_reported(child: Any) -> None:
    code, reported, _ = child("run", "mod.B.dies")
    assert code == 9
    assert reported.reports[0]["wall_time"] == 2.0
    assert reported.end is None


@pytest.mark.parametrize(
    ("method", "kind", "words"),
    [
        ("mod.B.raises", "ValueError", "no luck"),
        ("mod.Bad.good", "OSError", "no data here"),
        ("mod.B.godo", "NoSuchBenchmark", "did you mean 'good'"),
        ("mod.B.filter:x.*", "NoSuchBenchmark", "no method of mod.B matches"),
        ("mod.B.leaves", "SystemExit", "sys.exit(3)"),
    ],
)
def test_what_goes_wrong_is_reported(child: Any, method: str, kind: str, words: str) -> None:
    code, reported, _ = child("run", method)
    assert code == 1
    assert reported.end["ok"] is False
    assert reported.end["error"]["type"] == kind
    assert words in reported.end["error"]["message"]


@pytest.mark.parametrize(
    ("method", "first"),
    [
        ("mod.B.raises", 'mod.py", line 10, in raises'),
        ("mod.Bad.good", 'mod.py", line 21, in __init__'),
        ("mod.fails", 'mod.py", line 26, in fails'),
        ("broken.f", 'broken.py", line 1, in <module>'),
    ],
)
def test_a_traceback_begins_with_the_user_s_own_frame(child: Any, tmp_path: Path, method: str, first: str) -> None:
    (tmp_path / "broken.py").write_text("import absent_library\n")
    _, reported, _ = child("run", method)
    lines = reported.end["error"]["lines"]
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1].endswith(first)
    assert child.errors.splitlines()[-len(lines) :] == lines
    for ours in ("child.py", "resolve.py", "timing.py", "importlib"):
        assert ours not in child.errors


def test_what_no_frame_of_the_user_raised_is_a_line(child: Any) -> None:
    _, reported, _ = child("run", "mod.Bad.good", '--args={"size": 3}')
    assert reported.end["error"]["lines"] == ["TypeError: the constructor of Bad takes no 'size'"]


def test_the_error_for_a_suite_of_asv_names_the_call_that_runs_it(child: Any, tmp_path: Path) -> None:
    (tmp_path / "suite.py").write_text(
        "class Sort:\n    params = [1, 2]\n    def setup(self, n): ...\n    def time_x(self, n): ...\n"
    )
    code, reported, _ = child("run", "suite.Sort.time_x")
    assert code == 1
    message = reported.end["error"]["message"]
    assert message.startswith("Sort.time_x needs 'n', but a benchmark is called without arguments; it is one of asv")
    assert message.endswith("`assay bench run suite.py::Sort`")


def test_leaving_with_zero_is_well(child: Any) -> None:
    assert child("run", "mod.B.leaves_well")[1].end["ok"] is True


PLAIN = """
import os
class Plain:
    made = 0
    def __init__(self):
        Plain.made += 1
        self.calls = 0
    def sort(self):
        self.calls += 1
        sorted(range(100))
        assert (Plain.made, self.calls > 0) == (1, True)
    @staticmethod
    def still(): sorted(range(100))
    def reports(self):
        from assay.bench import report_benchmark
        report_benchmark(wall_time=5.0)
    def reports_elsewhere(self):
        open(os.environ["TEST_REPORT_FILE_PREFIX"] + "x", "a").write("once ")
    def fails(self): raise KeyError("x")
"""


@pytest.mark.parametrize("name", ["mod.quick", "plain.Plain.sort", "plain.Plain.still"])
def test_plain_functions_and_methods_are_timed(child: Any, tmp_path: Path, name: str) -> None:
    """On one object: what its constructor prepares is there in every call."""
    (tmp_path / "plain.py").write_text(PLAIN)
    code, reported, _ = child("run", name)
    assert code == 0, child.errors
    (report,) = reported.reports
    assert report["wall_time"] > 0
    assert 0 < report["cpu_time"] < 1
    assert len(report["samples"]["cpu_time"]) == len(report["samples"]["wall_time"]) >= 10


def test_a_function_or_method_that_reports_is_called_once(
    child: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plain.py").write_text(PLAIN)
    _, reported, _ = child("run", "mod.reports")
    assert [report.get("throughput") for report in reported.reports] == [5]
    (tmp_path / "report.jsonl").unlink()
    (report,) = child("run", "plain.Plain.reports")[1].reports
    assert report["wall_time"] == 5.0
    monkeypatch.setenv("TEST_REPORT_FILE_PREFIX", str(tmp_path / "proto_"))
    child("run", "plain.Plain.reports_elsewhere")
    assert (tmp_path / "proto_x").read_text() == "once "


def test_a_plain_method_that_fails_is_a_failure(child: Any, tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(PLAIN)
    code, reported, _ = child("run", "plain.Plain.fails")
    assert (code, reported.reports, reported.end["error"]["type"]) == (1, (), "KeyError")


def test_a_class_that_can_report_has_to(child: Any, tmp_path: Path) -> None:
    """Of ours, of TensorFlow's: silence is a fault of the benchmark."""
    (tmp_path / "silent.py").write_text(
        "class Theirs:\n    def report_benchmark(self): ...\n    def silent(self): ...\n"
    )
    assert child("run", "silent.Theirs.silent")[1].reports == ()


def test_listing_prints_nothing_but_the_list(child: Any) -> None:
    _, _, out = child("list", "mod.B.filter:good", "mod.B.filter:nothing", "absent.B.filter:x")
    found = json.loads(out)
    assert found["mod.B.filter:good"] == [{"text": "mod.B.good", "name": "mod.B.good"}]
    assert "matches" in found["mod.B.filter:nothing"]
    assert "no module" in found["absent.B.filter:x"]


def test_paths_are_put_in_front_or_behind(child: Any, tmp_path: Path) -> None:
    for folder, value in (("first", 1), ("behind", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "other.py").write_text(
            f"from assay.bench import report_benchmark\ndef f(): report_benchmark(wall_time={value})\n"
        )
    _, reported, _ = child("run", "other.f", f"--path={tmp_path}/behind", "--first-path=first")
    assert reported.reports[0]["wall_time"] == 1


@pytest.mark.parametrize(
    ("name", "has_hint"), [("tensorflow", True), ("tensorflow.keras", True), ("onnx", True), ("my_own_module", False)]
)
def test_a_framework_that_is_missing_may_be_there_for_another_interpreter(
    child: Any, tmp_path: Path, name: str, has_hint: bool
) -> None:
    (tmp_path / "needs.py").write_text(f"def f():\n    raise ModuleNotFoundError('not here', name={name!r})\n")
    _, reported, _ = child("run", "needs.f")
    hint = f"; {sys.executable} does not have it: name an interpreter that does with --python PATH"
    assert reported.end["error"]["message"] == "not here" + hint * has_hint


# ---------------------------------------------------------------- profiles


def test_a_window_after_the_end_gives_no_trace(child: Any, tmp_path: Path) -> None:
    _, reported, _ = child("run", "mod.B.good", "--profile=100:200", f"--profile-dir={tmp_path}/profile")
    assert reported.end["ok"] is True
    assert reported.end["profiles"] == []
    (note,) = reported.end["profile_notes"]
    assert note.endswith("; the window 100:200 never began")
    assert f"assay: warning: {note}" in child.errors


def test_py_spy_is_started_with_our_pid(child: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in that writes down how it was called, and leaves when it is interrupted, as py-spy does."""
    spy = write_spy(tmp_path)
    monkeypatch.setenv("PATH", f"{spy.parent}:{os.environ['PATH']}")
    _, reported, _ = child("run", "mod.B.busy", "--profile=0:", "--profiler=py-spy", f"--profile-dir={tmp_path}/p")
    written = json.loads((tmp_path / "p" / "py-spy-1.json").read_text())
    assert written == {"pid": reported.begin["pid"], "form": "chrometrace"}


def test_the_output_of_py_spy_is_reported_only_when_it_fails(
    child: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real one names a file that does not stay where it is."""
    spy = tmp_path / "bin" / "py-spy"
    spy.parent.mkdir()
    monkeypatch.setenv("PATH", f"{spy.parent}:{os.environ['PATH']}")
    head = "#!/usr/bin/env bash\nwhile [ $# -gt 0 ]; do case $1 in --output) out=$2;; esac; shift; done\n"
    wait = (
        'trap \'echo {} > "$out"; echo "Wrote chrome trace to $out" >&2; exit 0\' INT\nwhile :; do sleep 0.02; done\n'
    )
    for program, notes in (
        (wait, None),
        ("echo Permission Denied: try sudo >&2; exit 1\n", ["window 1 has no profile: py-spy wrote none"]),
    ):
        spy.write_text(head + program)
        spy.chmod(0o755)
        (tmp_path / "report.jsonl").unlink(missing_ok=True)
        folder = tmp_path / f"p{len(program)}"
        _, reported, _ = child("run", "mod.B.busy", "--profile=0:", "--profiler=py-spy", f"--profile-dir={folder}")
        assert reported.end["ok"] is True
        found = reported.end.get("profile_notes")
        assert (found and [note.rpartition(": Permission")[0] for note in found]) == notes
        assert "Wrote" not in child.errors


def test_torch_s_profiler_is_used_where_torch_is_loaded(child: Any, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(
        "class profiler:\n"
        "    class ProfilerActivity: CPU, CUDA = 'cpu', 'cuda'\n"
        "    class profile:\n"
        "        def __init__(self, activities): self.said = list(activities)\n"
        "        def start(self): self.said.append('start')\n"
        "        def stop(self): self.said.append('stop')\n"
        "        def export_chrome_trace(self, path): open(path, 'w').write(','.join(self.said))\n"
        "class cuda:\n    is_available = staticmethod(lambda: False)\n    is_initialized = staticmethod(lambda: False)\n"
    )
    (tmp_path / "withtorch.py").write_text("import torch\nfrom mod import B\n")
    _, reported, _ = child("run", "withtorch.B.busy", "--profile=0:0.1", f"--profile-dir={tmp_path}/p")
    assert reported.end["ok"] is True
    assert (tmp_path / "p" / "torch-1.json").read_text() == "cpu,start,stop"


def test_py_spy_is_taken_from_the_given_path(child: Any, tmp_path: Path) -> None:
    """Beside the supervisor's interpreter: it may not be on PATH, nor beside the benchmark's own."""
    spy = write_spy(tmp_path)
    words = ("--profile=0:", f"--profile-dir={tmp_path}/p", f"--py-spy={spy}")
    _, reported, _ = child("run", "mod.B.busy", *words)
    assert reported.end["profiles"] == ["py-spy-1.json"]
