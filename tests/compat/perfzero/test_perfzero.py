"""`assay perfzero` as its users call it: interrupted, and with TensorFlow's own classes."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.compat.perfzero.test_summary import load_schema
from tests.finished_study import until
from tests.fork_server import call_assay
from tests.services import TF_PYTHON
from tests.show.json_schema import problems

TOP = Path(__file__).parents[3]

LOCAL = """
import time
from assay.bench import Benchmark

class Local(Benchmark):
    def good(self): self.report_benchmark(wall_time=1.5)
    def nan(self): self.report_benchmark(wall_time=1.0, metrics=[{"name": "loss", "value": float("nan")}])
    def wait_for_stop(self):
        open("started", "w").close()
        time.sleep(1000)
"""
# Nothing of Assay in it: as PerfZero's users wrote them.
TENSORFLOW = """
import os
import time

import tensorflow as tf


class MatMul(tf.test.Benchmark):
    def __init__(self, output_dir=None, root_data_dir=None, **kwargs):
        super().__init__()
        self.output_dir = output_dir
        self.root_data_dir = root_data_dir

    def square(self):
        a = tf.random.normal([64, 64])
        began = time.time()
        count = 0
        while time.time() - began < 1.5:
            a = tf.linalg.matmul(a, a) / 100.0
            count += 1
        with open(os.path.join(self.output_dir, "own.log"), "w") as file:
            file.write("done")
        self.report_benchmark(
            iters=count,
            wall_time=time.time() - began,
            throughput=count / 1.5,
            extras={"data": self.root_data_dir, "top": '{"value": 3, "succeeded": true, "description": "words"}'},
            metrics=[
                {"name": "accuracy_top_5", "value": 80, "min_value": 50, "max_value": 99},
                {"name": "accuracy_top_1", "value": 0.0},
            ],
        )

    def low(self):
        self.report_benchmark(iters=1, wall_time=1.0, metrics=[{"name": "accuracy", "value": 0.25, "min_value": 0.5}])

    def never(self):
        pass
"""


class Lab:
    def __init__(self, base: Path) -> None:
        self.folder = base / "perfzero"
        self.folder.mkdir()
        self.env = {
            **os.environ,
            "ASSAY_SLOTS_DIR": str(base / "slots"),
            "ASSAY_CACHE_DIR": str(base / "cache"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "assay", "perfzero", *arguments],
            cwd=self.folder, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def call(self, *arguments: str) -> tuple[int, str, str]:
        words = ["perfzero", "--foreign_limit=1", *arguments]
        done = call_assay(words, cwd=self.folder, env=self.env, timeout=280)
        return done.returncode, done.stdout, done.stderr

    def load(self) -> list[dict[str, Any]]:
        """The summaries, each of which fits the schema."""
        paths = sorted((self.folder / "workspace" / "output").glob("*/perfzero_summary.json"))
        found = [json.loads(path.read_text()) for path in paths]
        assert [list(problems(summary, load_schema())) for summary in found] == [[] for _ in found]
        return found


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def test_an_interrupted_call_keeps_what_it_has(lab: Lab) -> None:
    (lab.folder / "local.py").write_text(LOCAL)
    methods = "--benchmark_methods=local.Local.good,local.Local.wait_for_stop,local.Local.nan"
    process = lab.start(methods, "--foreign_limit=1")
    until((lab.folder / "started").exists, "the method waits", 60)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert lab.load()[0]["benchmark_result"]["succeeded"] is True
    assert "what was finished is kept" in err


# ---------------------------------------------------------------- TensorFlow


@pytest.mark.services("tensorflow")
def test_a_class_of_tensorflow_runs_unchanged(lab: Lab) -> None:
    (lab.folder / "tf_bench.py").write_text(TENSORFLOW)
    words = ["--root_data_dir=data", "--profiler_enabled_time=0:0.3,0.5:", "--execution_label=tf"]
    code, _, err = lab.call("--benchmark_methods=tf_bench.MatMul.square", f"--python={TF_PYTHON}", *words)
    assert code == 0, err
    (summary,) = lab.load()
    result = summary["benchmark_result"]
    assert result["wall_time"] > 0
    assert result["iters"] > 0
    assert sorted(result["extras"], key=lambda extra: extra["name"]) == [
        {"name": "data", "value": str(lab.folder / "data")},
        {"name": "top", "value": '{"value": 3, "succeeded": true, "description": "words"}'},
    ]
    metrics = {metric["name"]: metric for metric in result["metrics"]}
    assert metrics["accuracy_top_5"] == {"name": "accuracy_top_5", "value": 80.0, "min_value": 50.0, "max_value": 99.0}
    assert metrics["accuracy_top_1"] == {"name": "accuracy_top_1", "value": 0.0}
    assert metrics["top"] == {"name": "top", "value": 3.0}
    framework = summary["ml_framework_info"]
    assert framework["name"] == "tensorflow"
    assert framework["version"].count(".") == 2
    assert framework["build_version"].startswith("v")
    folder = lab.folder / "workspace" / "output" / summary["execution_id"]
    assert (folder / "own.log").read_text() == "done"
    assert (folder / "proto_MatMul.square").stat().st_size > 0
    planes = sorted((folder / "profiler_data" / "plugins" / "profile").glob("*/*.xplane.pb"))
    assert [plane.parent.name.rpartition("_")[2] for plane in planes] == ["tensorflow-1", "tensorflow-2"]
    assert b"MatMul" in planes[1].read_bytes(), "the open window saw the work"
    assert b"/host:CPU" in planes[0].read_bytes()
    traces = [plane.with_name(plane.name.removesuffix(".xplane.pb") + ".trace.json.gz") for plane in planes]
    events = json.loads(gzip.decompress(traces[1].read_bytes()))["traceEvents"]
    assert any("MatMul" in event["name"] and event["ph"] == "X" for event in events), "the Chrome traces lie beside"
    assert all(str(trace) in err for trace in traces), "and it is said where"


@pytest.mark.services("tensorflow")
def test_what_tensorflow_s_classes_do_wrong_is_recorded(lab: Lab) -> None:
    (lab.folder / "tf_bench.py").write_text(TENSORFLOW)
    code, _, err = lab.call("--benchmark_methods=tf_bench.MatMul.filter:(low|never)", f"--python={TF_PYTHON}")
    assert code == 1, err
    found = {summary["benchmark_result"]["name"].rpartition(".")[2]: summary for summary in lab.load()}
    assert set(found) == {"low", "never"}
    assert not any(summary["benchmark_result"]["succeeded"] for summary in found.values())
    assert not any(summary["benchmark_info"]["has_exception"] for summary in found.values())
    assert found["never"]["benchmark_result"]["wall_time"] == -1
    assert "below its minimum" in found["low"]["benchmark_result"]["findings"][0]


SURVIVOR = """
import tensorflow as tf
from assay.bench.profiling import Profile
from assay.bench.values.execution import parse_windows
import sys, time
profile = Profile(parse_windows("0:0.1,0.15:0.3,0.35:0.5,0.55:0.7,0.75:"), "auto", sys.argv[1])
profile.start()
a, end = tf.random.normal([64, 64]), time.time() + 1.5
while time.time() < end:
    a = tf.linalg.matmul(a, a) / 100.0
print(len(profile.finish()))
"""


@pytest.mark.services("tensorflow")
def test_tensorflow_survives_its_windows(tmp_path: Path) -> None:
    """With a timer's signal instead of a thread its heap is broken within a second, in nine of ten tries."""
    env = {**os.environ, "PYTHONPATH": str(TOP / "src"), "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [TF_PYTHON, "-c", SURVIVOR, str(tmp_path)], env=env, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout.split()[-1]) >= 2
