"""Profiles that tools write: whatever they hold, and however they were cut off."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from assay.errors import InfrastructureError
from assay.models.flow.artifact_builder import ArtifactBuilder, Dumps, Product, Wants
from assay.models.graph.tensorfile import write_tensors
from assay.models.profiles import finish_profiles, load_profile, parse_ort_profile, parse_profile, parse_runtime_csv
from assay.models.store.artifacts import ArtifactStore
from assay.models.trace import Slice
from assay.models.values.model import Job, Step, StepEnding, StepOutcome, Target

ORT = """[
{"cat" : "Session","pid" :7,"tid" :7,"dur" :154,"ts" :3,"ph" : "X","name" :"model_loading_uri","args" : {}},
{"cat" : "Node","pid" :7,"tid" :7,"dur" :0,"ts" :963,"ph" : "X","name" :"conv1_fence_before","args" : {"op_name" : "Conv"}},
{"cat" : "Node","pid" :7,"tid" :7,"dur" :99,"ts" :964,"ph" : "X","name" :"conv1_kernel_time","args" : {"provider" : "CPUExecutionProvider","input_type_shape" : [{"float":[1,3,8,8]}],"node_index" : "4","output_size" : "2304","op_name" : "Conv","thread_scheduling_stats" : ""}},
{"cat" : "Session","pid" :7,"tid" :7,"dur" :200,"ts" :950,"ph" : "X","name" :"model_run","args" : {}}
]
"""
OPERATORS = """name,op,kernel,start_us,duration_us
x_conv1,Reorder,jit_uni_f32,0.000,22.000
"conv1,a",Convolution,brgconv_avx512_f32,22.000,43.125
"""
COMPILE = """ID,Start,End,Location,Op Type
DI0,0,120,"model.onnx:3",Load
S0,100,900,"model.onnx:3",Conv
DO1,900,1000,,Store
X9,5,6,,
"""
RUNTIME = """dispatch_name,invocation_id,action_id,timestamp_us,event
main,0,1,10.5,begin
main,0,2,11,start
main,0,1,20.5,end
main,0,2,30,END
"""
ANNOTATED = """action_id;job_id;operation;invocation_names;original_operators;total_time;slice_used_0_in_program;slice_used_1_in_program;dma_in_used_in_program;timestamp_start;timestamp_end;location
1;0;conv2d;main;Conv_0;10;1;0;True;100;110;loc(3)
2;0;copy;main;;5;;;;110;115;
"""


# ---------------------------------------------------------------- onnxruntime


def test_onnxruntimes_kernels_and_session() -> None:
    profile = parse_ort_profile(ORT)
    assert [(piece.track, piece.name, piece.start_ns, piece.end_ns) for piece in profile] == [
        (("onnxruntime", "session"), "model_loading_uri", 3_000, 157_000),
        (("onnxruntime", "CPU"), "conv1", 964_000, 1_063_000),
        (("onnxruntime", "session"), "model_run", 950_000, 1_150_000),
    ]
    assert profile[1].args == {
        "op": "Conv",
        "node": "4",
        "provider": "CPUExecutionProvider",
        "inputs": [{"float": [1, 3, 8, 8]}],
        "output_bytes": "2304",
    }
    assert profile[0].args == {}


def test_a_real_profile_of_onnxruntime(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    numpy = pytest.importorskip("numpy")

    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 4]) for name in "xy"]
    nodes = [
        helper.make_node("MatMul", ["x", "x"], ["t"], name="mm"),
        helper.make_node("Neg", ["t"], ["y"], name="neg"),
    ]
    graph = helper.make_graph(nodes, "g", value[:1], value[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "ort")
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    session.run(None, {"x": numpy.eye(4, dtype="float32")})
    profile = load_profile(session.end_profiling())
    kernels = {piece.name: piece for piece in profile if piece.track == ("onnxruntime", "CPU")}
    assert kernels["mm"].args["op"] == "MatMul"
    assert kernels["mm"].end_ns <= kernels["neg"].start_ns
    assert "model_run" in {piece.name for piece in profile}


@pytest.mark.parametrize("end", range(0, len(ORT.rstrip()), 7))
def test_a_profile_that_was_cut_off_shows_what_is_whole(end: int) -> None:
    whole = parse_ort_profile(ORT)
    part = parse_ort_profile(ORT[:end])
    assert part == whole[: len(part)]
    assert len(part) == sum(ORT[:end].count(f'"{name}"') and is_whole(ORT[:end], name) for name in NAMES)


NAMES = ("model_loading_uri", "conv1_kernel_time", "model_run")


def is_whole(text: str, name: str) -> bool:
    (line,) = [line for line in text.splitlines() if f'"{name}"' in line]
    try:
        json.loads(line.rstrip(","))
    except ValueError:
        return False
    return True


def test_events_without_numbers_are_passed_over() -> None:
    text = json.dumps(
        [{"ph": "X", "name": "a", "ts": "soon", "dur": 1}, {"ph": "X", "name": "b", "ts": 1}, {"ph": "M"}]
    )
    assert parse_ort_profile(text) == []


def test_a_chrome_trace_as_an_object_is_read_too() -> None:
    event = {"ph": "X", "name": "a", "cat": "Op", "ts": 1, "dur": 2}
    profile = parse_profile(json.dumps({"traceEvents": [event, 7]}), "t")
    assert profile == [Slice(("onnxruntime", "op"), "a", 1000, 3000)]


# ---------------------------------------------------------------- CSV


def test_operators_of_openvino_and_iree() -> None:
    assert parse_profile(OPERATORS, "m_openvino.csv") == [
        Slice(("openvino",), "x_conv1", 0, 22_000, {"op": "Reorder", "kernel": "jit_uni_f32"}),
        Slice(("openvino",), "conv1,a", 22_000, 65_125, {"op": "Convolution", "kernel": "brgconv_avx512_f32"}),
    ]
    assert parse_profile(OPERATORS, "m_iree.csv")[0].track == ("iree",)
    assert parse_profile(OPERATORS, "m.csv")[0].track == ("operators",)


def test_a_compilers_estimate_has_a_track_for_each_kind_of_unit() -> None:
    profile = parse_profile(COMPILE, "x")
    assert [(piece.track[1], piece.name, piece.start_ns, piece.end_ns) for piece in profile] == [
        ("DMA in", "Load", 0, 120),
        ("slice", "Conv", 100, 900),
        ("DMA out", "Store", 900, 1000),
        ("X", "X9", 5, 6),
    ]
    assert profile[1].args == {"id": "S0", "location": "model.onnx:3", "cycles": 800}


def test_events_of_a_runtime_are_paired() -> None:
    assert parse_runtime_csv(RUNTIME) == [
        Slice(("runtime", "main"), "action 1", 10_500, 20_500, {"invocation": "0", "action": "1"}),
        Slice(("runtime", "main"), "action 2", 11_000, 30_000, {"invocation": "0", "action": "2"}),
    ]


def test_events_that_do_not_pair_are_passed_over() -> None:
    text = (
        "dispatch_name,invocation_id,action_id,timestamp_us,event\n"
        "main,0,1,10,end\nmain,0,2,soon,begin\nmain,0,3,5,pause\nmain,0,4,9,begin\nmain,0,5,9,begin\nmain,0,5,8,end\n"
        "main,0\nmain,0,6,1,begin\nmain,0,6,2,end\n"
    )
    assert [piece.name for piece in parse_runtime_csv(text)] == ["action 6"]


def test_annotated_actions_are_on_every_unit_that_they_used() -> None:
    profile = parse_profile(ANNOTATED, "x")
    by_track = {piece.track[1]: piece for piece in profile if piece.start_ns == 100_000}
    assert set(by_track) == {"operators", "slice 0", "dma in"}
    assert by_track["operators"].name == "Conv_0"
    assert by_track["slice 0"].name == "conv2d"
    assert by_track["slice 0"].args["operators"] == "Conv_0"
    assert by_track["slice 0"].args["location"] == "loc(3)"
    assert [(piece.track[1], piece.name) for piece in profile if piece.start_ns == 110_000] == [("operators", "copy")]


@pytest.mark.parametrize(
    "text",
    [
        "ID,Start,End\nS0,x,5\n",
        "ID,Start,End\nS1,1\n",
        "ID,Start,End\nS0,9,5\n",
        "ID,Start,End\nS0,nan,5\n",
        "ID,Start,End\nS0,-1e308,1e308\n",
        "\n\nID,Start,End\n\n\nS0,x,5\n",
    ],
)
def test_a_bad_line_is_passed_over_and_the_others_are_read(text: str) -> None:
    (piece,) = parse_profile(text + "S7,1,2\n", "p")
    assert piece.args["id"] == "S7"


# ---------------------------------------------------------------- files


@pytest.mark.parametrize(
    ("text", "count"),
    [(ORT, 3), (OPERATORS, 2), (COMPILE, 4), (RUNTIME, 2), (ANNOTATED, 4), ("\ufeff" + COMPILE, 4)],
    ids=["ort", "operators", "compile", "runtime", "annotated", "with a mark"],
)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_file_is_known_by_its_beginning(tmp_path: Path, text: str, count: int, newline: str) -> None:
    path = tmp_path / "some.file"
    path.write_bytes(text.replace("\n", newline).encode())
    profile = load_profile(str(path))
    assert len(profile) == count


@pytest.mark.parametrize(
    "content", [b"", b"hello\nworld\n", b"a,b\n1,2\n", b"\xff\xfe\x00", b'{"a": 1}', b"[]", b"\n\n"]
)
def test_other_files_are_passed_over(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.ireeprof"
    path.write_bytes(content)
    assert load_profile(str(path)) == []


def test_what_cannot_be_opened_is_passed_over(tmp_path: Path) -> None:
    assert load_profile(str(tmp_path / "gone.csv")) == []
    assert load_profile(str(tmp_path)) == []


def test_a_file_beyond_all_measure_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "huge.json"
    path.touch()
    os.truncate(path, 2**40)
    assert load_profile(str(path)) == []


@st.composite
def damaged(draw: st.DrawFn) -> str:
    text = draw(st.sampled_from([ORT, OPERATORS, COMPILE, RUNTIME, ANNOTATED]))
    place = draw(st.integers(0, len(text)))
    return text[:place] + draw(st.text(max_size=3) | st.just('\x00"')) + text[draw(st.integers(place, len(text))) :]


@given(st.text() | damaged())
def test_nothing_that_a_tool_writes_raises(text: str) -> None:
    assert all(piece.duration_ns >= 0 for piece in parse_profile(text, "x"))


COMPILE_CSV = "ID,Start,End,Location,Op Type\nDI0,0,100,x,MatMul\nS0,100,500,x,MatMul\n"
RUNTIME_CSV = "dispatch_name,invocation_id,action_id,timestamp_us,event\nmain,0,0,1.0,start\nmain,0,0,4.0,end\n"


def job(folder: Path, step: Step) -> Job:
    return Job(step, "", "", profile_dir=str(folder), case="net_layer_MatMul_0")


def outcome(step: Step, *profiles: Path, **more: object) -> StepOutcome:
    return StepOutcome(step, StepEnding.OK, profiles=tuple(map(str, profiles)), **more)


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


def test_a_tool_that_shows_nothing_gets_the_steps_times(tmp_path):
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
    assert load_profile(str(tmp_path / "net_layer_MatMul_0_compile.csv")) == []


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


def test_a_folder_that_is_used_twice_has_the_last_run(tmp_path):
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


def test_nothing_is_written_without_a_request(tmp_path):
    plain = outcome(Step.RUN)
    assert finish_profiles(Job(Step.RUN, "", "", case="x"), plain) is plain
    assert finish_profiles(job(tmp_path, Step.IMPORT), plain) is plain
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_reported(tmp_path):
    with pytest.raises(InfrastructureError, match="cannot be written"):
        finish_profiles(job(tmp_path / "missing", Step.RUN), outcome(Step.RUN))
