"""A root with something for every page, made by the commands from `examples`; the history of a benchmark is made up,
since a real one takes days."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.bench_samples import execution
from tests.fork_server import call_assay

from assay.bench.flow.archive import write_as_run
from assay.compat.torq.session_runs import store_session
from assay.follow.api import StudyLocation
from assay.system.fast_dataclasses import replace

EXAMPLES = Path(__file__).parents[3] / "examples"
SWEEP, SEARCH, GOLDEN, SESSIONS = "charlm", "curve-search", "golden-charlm", "torq-nightly"
BENCHMARK, CHANGED_AT = "numpy_bench.MatMul.square", 14  # the one with a history
OTHER = "numpy_bench.MatMul.single_precision"  # the one with two labels

PAGES = {
    "studies": "/studies",
    "table": f"/studies/{SWEEP}",
    "groups": f"/studies/{SWEEP}?group=seed",
    "curves": f"/studies/{SWEEP}?tab=curves",
    "bands": f"/studies/{SWEEP}?tab=curves&metric=loss&group=seed",
    "scatter": f"/studies/{SWEEP}?tab=scatter",
    "slices": f"/studies/{SWEEP}?tab=slices",
    "parallel": f"/studies/{SWEEP}?tab=parallel",
    "importance": f"/studies/{SWEEP}?tab=importance",
    "history": f"/studies/{SEARCH}?tab=history",
    "run": f"/studies/{SWEEP}/runs/{{first}}",
    "run-media": "/studies/logged/runs/x%3D1",
    "compare": f"/studies/{SWEEP}/compare?run={{first}}&run={{second}}",
    "goldens": "/goldens",
    "golden": f"/goldens/{GOLDEN}",
    "recording": "/recordings/store/charlm_convergence_harness_manifest.json",
    "benchmarks": "/benchmarks",
    "benchmark": f"/benchmarks/bench/history?method={BENCHMARK}",
    "environments": "/benchmarks/bench/environments",
    "sides": "/benchmarks/bench/compare?base=before&head=after",
    "models": "/models",
    "model": "/models/model/checks/{scaled}",
    "tensors": "/models/model/checks/{scaled}/tensors?case=example-cnn_layer_Conv_7&number=0",
    "times": "/models/model/times?run={ort}&run={scaled}",
    "session": f"/models/{SESSIONS}/sessions/{{session}}",
    "profiles": "/profiles",
    "profile": "/profiles/bench/{profiled}",
    "login": "/login",
}

SEARCH_STUDY = r"""
study: curve-search
command: python train.py [degree] [noise] [lr] --out {run.dir}/model.json
params: {degree: {int: [1, 6]}, noise: 0.1, lr: {log_uniform: [0.01, 0.3]}}
metrics: {step: 'step (\d+)', loss: 'loss[= ]({number})'}
search: {sampler: random, metric: loss, direction: min, trials: 10, seed: 0}
resources: {gpus: 0}
"""

# what is handed over has a time, which a line of a log has not
LOGGED = """
import sys
import assay
for epoch in range(8):
    assay.log(step=epoch, epoch=epoch, loss=1 / (epoch + float(sys.argv[1])))
from assay import wandb
wandb.init()
table = wandb.Table(columns=["prompt", "picture", "score"])
for i in range(60):
    table.add_data(f"example {i} " * 9, wandb.Image([[i * 4, 200], [0, 90]]), i / 7)
wandb.log({"predictions": table, "note": wandb.Html("<h3 style='color: teal'>attention</h3>")})
"""
LOGGED_STUDY = """
study: logged
command: python logged.py {x}
params: {x: [1, 2]}
resources: {gpus: 0}
"""

TARGET = """
[tool.assay.targets.scaled]
backend = "faulty:FaultyBackend"
fault = {kind = "scaled", at = "conv_10"}
"""


@dataclass(frozen=True)
class Exhibits:
    """A folder with copies of the examples, and what they left under `runs`."""

    folder: Path

    @property
    def root(self) -> Path:
        return self.folder / "runs"

    @property
    def environment(self) -> dict[str, str]:
        own = {"ASSAY_SLOTS_DIR": str(self.folder / ".slots"), "ASSAY_CACHE_DIR": str(self.folder / ".cache")}
        return dict(os.environ) | own

    def assay(self, *words: str, within: str = "", code: int = 0) -> str:
        done = call_assay([*words], cwd=self.folder / within, env=self.environment, timeout=120, new_session=True)
        assert done.returncode == code, f"assay {' '.join(words)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "assay", *words],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def list_runs(self, study: str) -> list[str]:
        return sorted(path.name for path in (self.root / study).iterdir() if not path.name.startswith("."))

    def find_page(self, name: str) -> str:
        """The address of one of PAGES."""
        ort, scaled = self.list_runs("model")
        first, second = self.list_runs(SWEEP)[:2]
        profiled = next(run for run in self.list_runs("bench") if "sort_numbers" in run)
        session = self.list_runs(SESSIONS)[-1].partition("-")[0]
        names = {"ort": ort, "scaled": scaled, "first": first, "second": second, "profiled": profiled}
        return PAGES[name].format_map({name: quote(text) for name, text in names.items()} | {"session": session})

    def sum(self, study: str, *words: str) -> list[dict[str, Any]]:
        """What the command says of a study."""
        rows: list[dict[str, Any]] = json.loads(self.assay("sum", study, "--root", "runs", "--json", *words))
        return rows


def build(folder: Path) -> Exhibits:
    made = Exhibits(folder)
    for name in ("charlm", "native", "bench", "models"):
        shutil.copytree(EXAMPLES / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "testdata"))
    made.root.mkdir()
    with ThreadPoolExecutor(3) as pool:  # what waits for processes does not wait for the others
        for each in [pool.submit(step, made) for step in (_sweep, _golden, _model, _bench, _search, _logged)]:
            each.result()
    _write_history(made)
    for number, outcomes in enumerate((("passed", "passed", "xfail"), ("failed", "passed", "xpass", "passed"))):
        _write_session(made, number, outcomes)
    return made


def _sweep(made: Exhibits) -> None:
    """Eighteen runs; those with the smallest learning rate break a bound, so the command ends with 1."""
    words = ("steps=60", "seed=0,1,2", "--root", "../runs", "--quiet", "-j", "2")
    made.assay("run", "sweep.yml", *words, within="charlm", code=1)


def _golden(made: Exhibits) -> None:
    """A recording, a check that passes, and one of another learning rate."""
    file = made.folder / "charlm" / "golden.yml"
    text = file.read_text().replace("replicas: 5", "replicas: 3").partition("  variants:")[0] + "\ntimeout: 5m\n"
    text = text.replace("segment: 60", "segment: 30").replace("--steps 260", "--steps 230")
    file.write_text(text)
    words = ("--root", "../runs", "-s", "../runs/store")
    made.assay("golden", "gather", "golden.yml", *words, within="charlm")
    made.assay("golden", "check", "golden.yml", *words, within="charlm")
    file.write_text(text.replace("--lr 0.01", "--lr 0.012"))
    made.assay("golden", "check", "golden.yml", *words, within="charlm", code=1)


def _model(made: Exhibits) -> None:
    """A target with a fault in the middle of a network."""
    with (made.folder / "models" / "pyproject.toml").open("a") as file:
        file.write(TARGET)
    subprocess.run([sys.executable, "build_models.py"], cwd=made.folder / "models", check=True, capture_output=True)
    model = "tests/testdata/onnx_models/example-cnn.onnx"
    for target, code in (("ort", 0), ("scaled", 1)):
        made.assay("model", "check", model, "--target", target, "--root", "../runs", within="models", code=code)


def _bench(made: Exhibits) -> None:
    """With a profile."""
    method = "numpy_bench.sort_numbers"
    made.assay(
        "bench", "run", method, "--root", "../runs", "--profile", "0:0.5", "--foreign-limit", "1", within="bench"
    )


def _search(made: Exhibits) -> None:
    (made.folder / "native" / "search.yml").write_text(SEARCH_STUDY)
    made.assay("run", "search.yml", "--root", "../runs", "--quiet", "-j", "2", within="native")


def _logged(made: Exhibits) -> None:
    folder = made.folder / "native"
    (folder / "logged.py").write_text(LOGGED)
    (folder / "logged.yml").write_text(LOGGED_STUDY)
    made.assay("run", "logged.yml", "--root", "../runs", "--quiet", "-j", "2", within="native")


def _write_history(made: Exhibits) -> None:
    """Twenty-four days of a method that became a fifth slower on the fifteenth, and two sides of another."""
    location = StudyLocation(str(made.root), "bench")
    sides = ("before", "after")
    for n in range(24):
        factor = (1.2 if n >= CHANGED_AT else 1.0) * (1 + 0.004 * ((7 * n) % 5 - 2))
        _write_execution(location, BENCHMARK, n, 0.01 * factor)
        _write_execution(location, OTHER, 100 + n, 0.006 * factor, label=sides[n >= CHANGED_AT])


def _write_execution(location: StudyLocation, method: str, number: int, value: float, **fields: Any) -> None:
    each = execution(number, value, setup={"cpu_model": "Example CPU"}, **fields)
    at = time.time() - 86400 * (24 - number % 100)
    commit = hashlib.sha256(str(number).encode()).hexdigest()[:40]
    each = replace(each, method=method, result=replace(each.result, name=method), started_at=at, commit=commit)
    assert write_as_run(location, each, each.label)


def _write_session(made: Exhibits, number: int, outcomes: tuple[str, ...]) -> None:
    folder, aside = made.folder / f"session{number}", made.folder / f"aside{number}"
    folder.mkdir()
    aside.mkdir()
    tests: list[dict[str, Any]] = [
        {"module": "test_models", "name": f"test_layer_{n}", "outcome": word, "measurements": {"run_ms": 1.5 + n}}
        for n, word in enumerate(outcomes)
    ]
    tests[2]["linked_issue"] = "tracker#7"
    plan = {"test_plan": "nightly", "batch_name": f"night {number}", "git_commit": "c" * 40, "test_runs": tests}
    (folder / "test_session.json").write_text(json.dumps(plan))
    store_session(str(folder), str(aside), str(made.root), 1.7e9 + 86400 * number)
