"""Golden recordings, benchmarks and model checks on real engines: the same verdicts, and the node's own environment."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.bench_samples import write_module
from tests.contracts.executor import until
from tests.engines import FARMS, Engines, start_engines
from tests.example_models import parse
from tests.golden.test_golden_tools import STUDY as GOLDEN
from tests.golden.test_golden_tools import TRAIN

pytestmark = [pytest.mark.services("slurm"), pytest.mark.services("sshd")]

SLURM, SSH = FARMS["slurm"], FARMS["ssh"]
LONG_SSH = pytest.param(SSH, marks=pytest.mark.long)  # a minute each where a connection takes a second


@pytest.fixture(scope="module")
def engines() -> Iterator[Engines]:
    with start_engines() as engines:
        yield engines


def load_leases(root: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(root.glob("*/*/lease.1"))]


# ---------------------------------------------------------------- golden


@pytest.mark.parametrize("farm", [SLURM, LONG_SSH])
def test_a_golden_is_recorded_and_checked_on_a_farm(engines: Engines, tmp_path: Path, farm: str) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "golden.yml").write_text(GOLDEN)
    where = ("golden.yml", "-s", "store", "--on", farm, "--quiet")
    engines.assay(tmp_path, "golden", "gather", *where)
    report = json.loads(engines.assay(tmp_path, "golden", "check", *where, "--json"))
    assert report["verdict"] == "PASS", report
    (tmp_path / "train.py").write_text(f"import os\nos.environ['SCALE'] = '1.3'\n{TRAIN}")
    engines.assay(tmp_path, "golden", "check", *where, code=1)
    executors = {lease["executor"] for lease in load_leases(tmp_path / "runs")}
    assert executors == {"slurm" if farm == SLURM else "ssh"}, "training, replicas and checks"


# ---------------------------------------------------------------- benchmarks


def load_executions(work: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(work.glob("runs/bench/*/benchmark.json"))]


@pytest.mark.parametrize("farm", [SLURM, LONG_SSH])
def test_trials_run_one_at_a_time_and_know_their_machine(engines: Engines, tmp_path: Path, farm: str) -> None:
    write_module(tmp_path)
    methods = ("mod.B.large", "--command", "own=sleep 0.3")
    engines.assay(tmp_path, "bench", "run", *methods, "--trials", "2", "--farm", farm, "--foreign-limit", "1", "-q")
    found = load_executions(tmp_path)
    assert [(each["method"], each["trial"]) for each in found] == [
        ("mod.B.large", 1), ("own", 1), ("mod.B.large", 2), ("own", 2),
    ]  # fmt: skip
    spans = [(each["started_at"], each["ended_at"]) for each in found]
    assert all(ended <= began for (_, ended), (began, _) in pairwise(spans)), "never beside another"
    engines.assay(tmp_path, "bench", "run", *methods, "--foreign-limit", "1", "-q")
    here = load_executions(tmp_path)[-1]
    for each in found:
        assert each["result"]["succeeded"]
        assert each["machine"]["host"] == here["machine"]["host"], "this machine is the node as well"
        assert each["fingerprint"] == here["fingerprint"]
        assert each["contaminated"] == []
        assert each["peaks"]["max_rss"] > 0
    assert min(each["peaks"]["max_rss"] for each in found if each["method"] == "mod.B.large") > 120_000_000


def test_a_trial_waits_for_the_node_s_own_lease(engines: Engines, tmp_path: Path) -> None:
    """The lease is the node's: a benchmark that runs there by itself is not disturbed."""
    write_module(tmp_path)
    words = ("bench", "run", "--command", "own=true", "--farm", SSH, "--max-wait", "0.5s", "--foreign-limit", "1")
    slots = engines.env["ASSAY_SLOTS_DIR"]
    holder = engines.start(tmp_path, "bench", "run", "--command", "long=sleep 300", "--foreign-limit", "1", "-q")
    try:
        until(lambda: list(tmp_path.glob("runs/bench/*/bench.log")) or holder.poll() is not None, "it runs")
        assert holder.poll() is None, holder.communicate()
        out = engines.assay(tmp_path, *words, "--env", f"ASSAY_SLOTS_DIR={slots}", "-q", code=1)
    finally:
        holder.terminate()
        holder.communicate(timeout=120)
    assert "not free" in out


# ---------------------------------------------------------------- models


@pytest.mark.parametrize("farm", [SLURM, SSH])
def test_a_model_is_checked_on_a_farm(engines: Engines, tmp_path: Path, farm: str) -> None:
    onnx = pytest.importorskip("onnx")
    model = parse("m (float[1,4] x) => (float[1,4] z) { y = Relu(x) z = Add(y, x) }")
    onnx.save(model, tmp_path / "m.onnx")
    words = ("model", "check", "m.onnx", "--target", "ort:unoptimized", "--json")
    report = json.loads(engines.assay(tmp_path, *words, "--farm", farm))
    [lease] = load_leases(tmp_path / "runs")
    assert lease["executor"] == ("slurm" if farm == SLURM else "ssh")
    here = json.loads(engines.assay(tmp_path, *words, "--root", "here"))
    assert report["verdict"] == here["verdict"]
    assert os.path.exists(next(tmp_path.glob("runs/model/*/model.json")))
    assert sys.executable not in next(tmp_path.glob("runs/model/*/job.sh")).read_text()
