"""Profiles by the real profilers: what they leave is a Chrome trace with the benchmark's own names in it."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.fork_server import call_assay
from tests.services import TF_PYTHON

PLAIN = """
import time
from assay.bench import Benchmark
class P(Benchmark):
    def busy(self):
        end, busy_until = time.monotonic() + 1.2, time.process_time() + 0.8  # beside others both take longer, as py-spy does
        while time.monotonic() < end or time.process_time() < busy_until:
            self.inner_loop()
            time.sleep(0.001)
        self.report_benchmark(wall_time=1.0)
    def inner_loop(self):
        return sum(i * i for i in range(20_000))
"""
TORCH = """
import time, torch
from assay.bench import Benchmark
class P(Benchmark):
    def busy(self):
        a = torch.ones(64, 64)
        began, windows, was_on = time.monotonic(), 0, False
        while time.monotonic() < began + 2.0 or (windows < 2 and time.monotonic() < began + 60):  # one may begin late
            is_on = torch.autograd._profiler_enabled()
            with torch.profiler.record_function("my_step"):
                a = (a @ a).clamp(max=1.0)
            time.sleep(0.002)  # a window that others make longer holds no million steps
            windows, was_on = windows + (is_on and not was_on), is_on
        self.report_benchmark(wall_time=1.0)
"""
BIN = Path(sys.executable).parent
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
needs_py_spy = pytest.mark.skipif(
    shutil.which("py-spy", path=f"{BIN}{os.pathsep}{os.environ['PATH']}") is None, reason="py-spy is not installed"
)


def run(
    folder: Path, code: str, *flags: str, methods: tuple[str, ...] = ("work.P.busy",), path: str | None = None
) -> dict[str, Any]:
    """The one execution, as JSON."""
    (folder / "work.py").write_text(code)
    env = {
        **os.environ,
        "PATH": path or f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "ASSAY_SLOTS_DIR": str(folder / "slots"),
        "ASSAY_CACHE_DIR": str(folder / "cache"),
    }
    words = ["bench", "run", *methods, "--json", "--foreign-limit", "1", *flags]
    done = call_assay(words, cwd=folder, env=env, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    (execution,) = json.loads(done.stdout)["executions"]
    found: dict[str, Any] = execution
    return found


def load_events(folder: Path, execution: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """As chrome://tracing and ui.perfetto.dev read it: an object with traceEvents, or the list of events itself."""
    content = json.loads((folder / execution["run_dir"] / name).read_text())
    events = content["traceEvents"] if isinstance(content, dict) else content
    assert isinstance(events, list)
    assert events
    for event in events:
        assert isinstance(event["ph"], str)
        assert "name" in event or event["ph"] == "M"
    found: list[dict[str, Any]] = events
    return found


@pytest.mark.services("backends")
@needs_torch
def test_torch_profiles_its_windows(tmp_path: Path) -> None:
    execution = run(tmp_path, TORCH, "--profile", "0.5:1,1.4:")
    assert execution["profiles"] == ["profile/torch-1.json", "profile/torch-2.json"]
    times = []
    for name in execution["profiles"]:
        events = load_events(tmp_path, execution, name)
        assert "aten::mm" in {event.get("name") for event in events}
        times.append([float(event["ts"]) for event in events if event.get("name") == "my_step"])
    assert max(times[0]) < min(times[1]), "each has the steps of its own window"
    assert execution["result"]["wall_time"] == 1.0


@needs_py_spy
def test_py_spy_profiles_its_window(tmp_path: Path) -> None:
    """Without a framework it is taken also from beside the interpreter: the program is called by its path, without its
    folder on PATH."""
    execution = run(tmp_path, PLAIN, "--profile", "0.3:", path="/usr/bin:/bin")
    assert execution["profiles"] == ["profile/py-spy-1.json"]
    names = {str(event.get("name")) for event in load_events(tmp_path, execution, "profile/py-spy-1.json")}
    assert any("inner_loop" in name for name in names)


# ---------------------------------------------------------------- a framework that the method imports itself

INSIDE = """
import time
from assay.bench import Benchmark
class P(Benchmark):
    def busy(self):
        import {module} as framework
        a = framework.ones((64, 64))
        give_up = time.monotonic() + 60
        while not ({is_on}) and time.monotonic() < give_up:  # a busy machine takes its time
            a = framework.matmul(a, a) * 0.01
            time.sleep(0.002)
        end = time.monotonic() + {more_s}
        while time.monotonic() < end:
            a = framework.matmul(a, a) * 0.01
            time.sleep(0.002)
        self.report_benchmark(wall_time=1.0)
"""


@pytest.mark.services("backends")
@needs_torch
def test_torch_that_is_imported_in_the_window_profiles_the_rest_of_it(tmp_path: Path) -> None:
    source = INSIDE.format(module="torch", is_on="framework._C._autograd._profiler_enabled()", more_s=0.5)
    execution = run(tmp_path, source, "--profile", "0.3:")
    assert "profile/torch-1.json" in execution["profiles"]
    names = {event.get("name") for event in load_events(tmp_path, execution, "profile/torch-1.json")}
    assert "aten::matmul" in names


@pytest.mark.services("tensorflow")
def test_tensorflow_that_is_imported_in_the_window_profiles_the_rest_of_it(tmp_path: Path) -> None:
    source = INSIDE.format(module="tensorflow", is_on="True", more_s=4)  # it does not tell
    execution = run(tmp_path, source, "--profile", "0.3:", "--python", TF_PYTHON)
    (plane,) = [name for name in execution["profiles"] if name.endswith(".xplane.pb")]
    assert b"MatMul" in (tmp_path / execution["run_dir"] / plane).read_bytes()
    assert "notes" not in execution["extra"]["profile"]


# ---------------------------------------------------------------- commands


@needs_py_spy
def test_py_spy_looks_at_the_python_of_a_command(tmp_path: Path) -> None:
    """Behind a shell, and started after the window began."""
    (tmp_path / "spin.py").write_text(
        "import time\ndef inner_loop(): return sum(i * i for i in range(20_000))\n"
        "end = time.monotonic() + 1.2\nwhile time.monotonic() < end: inner_loop(); time.sleep(0.004)\n"
    )
    command = f"train=true; {sys.executable} spin.py; true"
    execution = run(tmp_path, PLAIN, "--profile", "0:", "--command", command, methods=())
    assert execution["profiles"] == ["profile/py-spy-1.json"]
    names = {str(event.get("name")) for event in load_events(tmp_path, execution, "profile/py-spy-1.json")}
    assert any("inner_loop" in name for name in names)
