"""Profiles end under names that do not depend on the tool."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from assay.errors import InfrastructureError
from assay.models.flow.artifact_builder import ArtifactBuilder, Dumps, Product, Wants
from assay.models.flow.profiling import finish_profiles
from assay.models.graph.tensorfile import write_tensors
from assay.models.profiles import load_profile
from assay.models.store.artifacts import ArtifactStore
from assay.models.values.model import Ending, Job, Step, StepOutcome, Target

COMPILE_CSV = "ID,Start,End,Location,Op Type\nDI0,0,100,x,MatMul\nS0,100,500,x,MatMul\n"
RUNTIME_CSV = "dispatch_name,invocation_id,action_id,timestamp_us,event\nmain,0,0,1.0,start\nmain,0,0,4.0,end\n"


def job(folder: Path, step: Step) -> Job:
    return Job(step, "", "", profile_dir=str(folder), case="net_layer_MatMul_0")


def outcome(step: Step, *profiles: Path, **more: object) -> StepOutcome:
    return StepOutcome(step, Ending.OK, profiles=tuple(map(str, profiles)), **more)


def read_trace(path: Path) -> list[str]:
    """Names of slices, by an independent reader."""
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

    trace = Trace()
    trace.ParseFromString(path.read_bytes())
    return [packet.track_event.name for packet in trace.packet if packet.track_event.name]


def test_a_tools_own_table_is_taken_over(tmp_path):
    (tmp_path / "cycles.csv").write_text(COMPILE_CSV)
    done = finish_profiles(job(tmp_path, Step.COMPILE), outcome(Step.COMPILE, tmp_path / "cycles.csv"))
    assert (tmp_path / "net_layer_MatMul_0_compile.csv").read_text() == COMPILE_CSV
    assert read_trace(tmp_path / "net_layer_MatMul_0_compile.pb") == ["MatMul", "MatMul"]
    assert {Path(path).name for path in done.profiles} == {
        "cycles.csv", "net_layer_MatMul_0_compile.csv", "net_layer_MatMul_0_compile.pb",
    }  # fmt: skip


def test_a_table_that_has_the_right_name_stays_as_it_is(tmp_path):
    path = tmp_path / "net_layer_MatMul_0_runtime.csv"
    path.write_text(RUNTIME_CSV)
    finish_profiles(job(tmp_path, Step.RUN), outcome(Step.RUN, path))
    assert path.read_text() == RUNTIME_CSV
    assert read_trace(tmp_path / "net_layer_MatMul_0_runtime.pb") == ["action 0"]


def test_a_tool_that_tells_nothing_gets_the_steps_times(tmp_path):
    finish_profiles(job(tmp_path, Step.RUN), outcome(Step.RUN, times_s=(0.25, 0.5)))
    text = (tmp_path / "net_layer_MatMul_0_runtime.csv").read_text()
    assert text.splitlines()[1:] == [
        "assay / run,run 0,0,250000000,250000000,", "assay / run,run 1,250000000,750000000,500000000,",
    ]  # fmt: skip
    assert read_trace(tmp_path / "net_layer_MatMul_0_runtime.pb") == ["run 0", "run 1"]


def test_a_second_run_does_not_take_our_table_for_the_tools(tmp_path):
    for elapsed_s in (1.0, 2.0):
        made = tuple(tmp_path.iterdir())
        finish_profiles(job(tmp_path, Step.COMPILE), outcome(Step.COMPILE, *made, elapsed_s=elapsed_s))
    assert "2000000000" in (tmp_path / "net_layer_MatMul_0_compile.csv").read_text()
    assert load_profile(str(tmp_path / "net_layer_MatMul_0_compile.csv")) is None


def test_both_steps_may_share_a_folder(tmp_path):
    (tmp_path / "net_layer_MatMul_0_compile.csv").write_text(COMPILE_CSV)
    finish_profiles(job(tmp_path, Step.RUN), outcome(Step.RUN, *tmp_path.iterdir(), times_s=(0.1,)))
    assert read_trace(tmp_path / "net_layer_MatMul_0_runtime.pb") == ["run 0"]


def test_several_tables_become_one(tmp_path):
    (tmp_path / "a.csv").write_text(COMPILE_CSV)
    (tmp_path / "b.csv").write_text(COMPILE_CSV)
    finish_profiles(job(tmp_path, Step.COMPILE), outcome(Step.COMPILE, tmp_path / "a.csv", tmp_path / "b.csv"))
    assert (tmp_path / "net_layer_MatMul_0_compile.csv").read_text().count("MatMul") == 4


TOOL = """
import os, sys
import numpy as np
outputs, profiles = sys.argv[1:3]
np.save(f"{outputs}/0.npy", np.ones(4, np.float32))
with open(f"{profiles}/p_{os.getpid()}.csv", "w") as stream:
    stream.write("dispatch_name,invocation_id,action_id,timestamp_us,event\\n")
    stream.write(f"run{sys.argv[3]},0,0,1.0,start\\nrun{sys.argv[3]},0,0,4.0,end\\n")
"""


def profile_run(tmp_path: Path, number: int, samples: int = 1) -> None:
    """As a process of its own."""
    (tmp_path / "tool.py").write_text(TOOL)
    run = [sys.executable, "tool.py", "{outputs}", "{profile_dir}", "{run_flags}"]
    options = {"run": run, "version": False, "folder": str(tmp_path)}
    (tmp_path / "model.txt").write_text("model")
    dumps = Dumps(run_profile_dir=str(tmp_path / "prof"))
    with ArtifactBuilder(ArtifactStore(str(tmp_path / "store")), dumps=dumps) as builder:
        for sample in range(samples):
            inputs = tmp_path / f"inputs{sample}"
            write_tensors(inputs, {"x": np.ones(4, np.float32)})
            target = Target("sim", "command", options, run_flags=(str(number + sample),))
            product = Product(str(tmp_path / "model.txt"), "model")
            ran = builder.run(target, product, Product(str(inputs), f"inputs {sample}"), Wants(("y",)), "net")
            assert ran.is_ok, ran


def test_a_folder_that_is_used_twice_tells_of_the_last_run(tmp_path):
    profile_run(tmp_path, 1)
    folder = tmp_path / "prof" / "net"
    (folder / "stale.csv").write_text(RUNTIME_CSV.replace("main", "old"))
    profile_run(tmp_path, 2)
    table = (folder / "net_runtime.csv").read_text()
    assert "run2" in table
    assert "run1" not in table
    trace = (folder / "net_runtime.pb").read_bytes()
    assert b"run2" in trace
    assert b"run1" not in trace
    assert b"old" not in trace


def test_each_sample_has_a_profile(tmp_path):
    profile_run(tmp_path, 1, samples=2)
    folder = tmp_path / "prof" / "net"
    assert "run1" in (folder / "net_runtime.csv").read_text()
    assert "run2" in (folder / "sample_2" / "net_runtime.csv").read_text()


def test_nothing_is_written_where_nobody_asked(tmp_path):
    plain = outcome(Step.RUN)
    assert finish_profiles(Job(Step.RUN, "", "", case="x"), plain) is plain
    assert finish_profiles(job(tmp_path, Step.IMPORT), plain) is plain
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_said(tmp_path):
    with pytest.raises(InfrastructureError, match="cannot be written"):
        finish_profiles(job(tmp_path / "missing", Step.RUN), outcome(Step.RUN))
