"""Profiles that tools write: whatever they hold, and however they were cut off."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.example_models import parse

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


def test_onnxruntimes_kernels_and_session():
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


def test_a_real_profile_of_onnxruntime(tmp_path):
    options = onnxruntime.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "ort")
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    model = parse("g (float[4,4] x) => (float[4,4] y) { [mm] t = MatMul(x, x) [neg] y = Neg(t) }")
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    session.run(None, {"x": np.eye(4, dtype="float32")})
    profile = load_profile(session.end_profiling())
    kernels = {piece.name: piece for piece in profile if piece.track == ("onnxruntime", "CPU")}
    assert kernels["mm"].args["op"] == "MatMul"
    assert kernels["mm"].end_ns <= kernels["neg"].start_ns
    assert "model_run" in {piece.name for piece in profile}


def test_a_profile_that_was_cut_off_shows_what_is_whole():
    whole, lines = parse_ort_profile(ORT), ORT.splitlines(keepends=True)
    ends = [len("".join(lines[: number + 1]).rstrip(",\n")) for number in (1, 3, 4)]  # of lines with a slice
    for end in range(0, len(ORT.rstrip()), 7):
        assert parse_ort_profile(ORT[:end]) == whole[: sum(end >= each for each in ends)]


def test_other_events_are_passed_over_and_a_trace_as_an_object_is_read_too():
    text = json.dumps(
        [{"ph": "X", "name": "a", "ts": "soon", "dur": 1}, {"ph": "X", "name": "b", "ts": 1}, {"ph": "M"}]
    )
    assert parse_ort_profile(text) == []
    event = {"ph": "X", "name": "a", "cat": "Op", "ts": 1, "dur": 2}
    profile = parse_profile(json.dumps({"traceEvents": [event, 7]}), "t")
    assert profile == [Slice(("onnxruntime", "op"), "a", 1000, 3000)]


def test_operators_of_openvino_and_iree():
    assert parse_profile(OPERATORS, "m_openvino.csv") == [
        Slice(("openvino",), "x_conv1", 0, 22_000, {"op": "Reorder", "kernel": "jit_uni_f32"}),
        Slice(("openvino",), "conv1,a", 22_000, 65_125, {"op": "Convolution", "kernel": "brgconv_avx512_f32"}),
    ]
    assert parse_profile(OPERATORS, "m_iree.csv")[0].track == ("iree",)
    assert parse_profile(OPERATORS, "m.csv")[0].track == ("operators",)


def test_a_compilers_estimate_has_a_track_for_each_kind_of_unit():
    profile = parse_profile(COMPILE, "x")
    assert [(piece.track[1], piece.name, piece.start_ns, piece.end_ns) for piece in profile] == [
        ("DMA in", "Load", 0, 120),
        ("slice", "Conv", 100, 900),
        ("DMA out", "Store", 900, 1000),
        ("X", "X9", 5, 6),
    ]
    assert profile[1].args == {"id": "S0", "location": "model.onnx:3", "cycles": 800}


def test_events_of_a_runtime_are_paired_and_those_without_a_partner_are_passed_over():
    assert parse_runtime_csv(RUNTIME) == [
        Slice(("runtime", "main"), "action 1", 10_500, 20_500, {"invocation": "0", "action": "1"}),
        Slice(("runtime", "main"), "action 2", 11_000, 30_000, {"invocation": "0", "action": "2"}),
    ]
    text = (
        "dispatch_name,invocation_id,action_id,timestamp_us,event\n"
        "main,0,1,10,end\nmain,0,2,soon,begin\nmain,0,3,5,pause\nmain,0,4,9,begin\nmain,0,5,9,begin\nmain,0,5,8,end\n"
        "main,0\nmain,0,6,1,begin\nmain,0,6,2,end\n"
    )
    assert [piece.name for piece in parse_runtime_csv(text)] == ["action 6"]


def test_annotated_actions_are_on_every_unit_that_they_used():
    profile = parse_profile(ANNOTATED, "x")
    by_track = {piece.track[1]: piece for piece in profile if piece.start_ns == 100_000}
    assert set(by_track) == {"operators", "slice 0", "dma in"}
    assert by_track["operators"].name == "Conv_0"
    assert by_track["slice 0"].name == "conv2d"
    assert by_track["slice 0"].args["operators"] == "Conv_0"
    assert by_track["slice 0"].args["location"] == "loc(3)"
    assert [(piece.track[1], piece.name) for piece in profile if piece.start_ns == 110_000] == [("operators", "copy")]


@pytest.mark.parametrize("line", ["S0,x,5", "S1,1", "S0,9,5", "S0,nan,5", "S0,-1e308,1e308", "\n"])
def test_a_bad_line_is_passed_over_and_the_others_are_read(line):
    (piece,) = parse_profile(f"\n\nID,Start,End\n{line}\nS7,1,2\n", "p")
    assert piece.args["id"] == "S7"


@pytest.mark.parametrize(
    ("text", "count"),
    [(ORT, 3), (OPERATORS, 2), (COMPILE, 4), (RUNTIME, 2), (ANNOTATED, 4), ("\ufeff" + COMPILE, 4)],
    ids=["ort", "operators", "compile", "runtime", "annotated", "with a mark"],
)
def test_a_file_is_known_by_its_beginning(tmp_path, text, count):
    path = tmp_path / "some.file"
    for newline in ("\n", "\r\n"):
        path.write_bytes(text.replace("\n", newline).encode())
        assert len(load_profile(str(path))) == count


def test_other_files_and_what_cannot_be_opened_are_passed_over(tmp_path):
    path = tmp_path / "model.ireeprof"
    for content in (b"", b"hello\nworld\n", b"a,b\n1,2\n", b"\xff\xfe\x00", b'{"a": 1}', b"[]", b"\n\n"):
        path.write_bytes(content)
        assert load_profile(str(path)) == []
    path.write_text(ORT)
    os.truncate(path, 2**40)  # beyond all measure
    for each in (path, tmp_path / "gone.csv", tmp_path):
        assert load_profile(str(each)) == []


@st.composite
def damaged(draw):
    text = draw(st.sampled_from([ORT, OPERATORS, COMPILE, RUNTIME, ANNOTATED]))
    place = draw(st.integers(0, len(text)))
    return text[:place] + draw(st.text(max_size=3) | st.just('\x00"')) + text[draw(st.integers(place, len(text))) :]


@given(st.text() | damaged())
def test_nothing_that_a_tool_writes_raises(text):
    assert all(piece.duration_ns >= 0 for piece in parse_profile(text, "x"))


NAME = "net_layer_MatMul_0"
COMPILE_CSV = "ID,Start,End,Location,Op Type\nDI0,0,100,x,MatMul\nS0,100,500,x,MatMul\n"
RUNTIME_CSV = "dispatch_name,invocation_id,action_id,timestamp_us,event\nmain,0,0,1.0,start\nmain,0,0,4.0,end\n"


def job(folder, step):
    return Job(step, "", "", profile_dir=str(folder), case=NAME)


def outcome(step, *profiles, **more):
    return StepOutcome(step, StepEnding.OK, profiles=tuple(map(str, profiles)), **more)


def read_trace(path):
    """Names of slices, by an independent reader."""
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

    trace = Trace()
    trace.ParseFromString(path.read_bytes())
    return [packet.track_event.name for packet in trace.packet if packet.track_event.name]


def test_a_tools_own_table_is_taken_over(tmp_path):
    for name in ("cycles.csv", "more.csv"):
        (tmp_path / name).write_text(COMPILE_CSV)
    done = finish_profiles(job(tmp_path, Step.COMPILE), outcome(Step.COMPILE, tmp_path / "cycles.csv"))
    assert (tmp_path / f"{NAME}_compile.csv").read_text() == COMPILE_CSV
    assert read_trace(tmp_path / f"{NAME}_compile.pb") == ["MatMul", "MatMul"]
    assert {Path(path).name for path in done.profiles} == {"cycles.csv", f"{NAME}_compile.csv", f"{NAME}_compile.pb"}
    both = outcome(Step.COMPILE, tmp_path / "cycles.csv", tmp_path / "more.csv")
    finish_profiles(job(tmp_path, Step.COMPILE), both)
    assert (tmp_path / f"{NAME}_compile.csv").read_text().count("MatMul") == 4, "several tables become one"


def test_a_table_that_has_the_right_name_stays_as_it_is_and_is_not_the_other_steps(tmp_path):
    path = tmp_path / f"{NAME}_runtime.csv"
    path.write_text(RUNTIME_CSV)
    finish_profiles(job(tmp_path, Step.RUN), outcome(Step.RUN, path))
    assert path.read_text() == RUNTIME_CSV
    assert read_trace(tmp_path / f"{NAME}_runtime.pb") == ["action 0"]
    finish_profiles(job(tmp_path, Step.COMPILE), outcome(Step.COMPILE, *tmp_path.iterdir(), times_s=(0.1,)))
    assert read_trace(tmp_path / f"{NAME}_compile.pb") == ["compile 0"]


def test_a_tool_that_shows_nothing_gets_the_steps_times(tmp_path):
    """Also the second time: our table is not taken for the tool's."""
    for times_s in ((1.0, 2.0), (0.25, 0.5)):
        finish_profiles(job(tmp_path, Step.RUN), outcome(Step.RUN, *tmp_path.iterdir(), times_s=times_s))
    path = tmp_path / f"{NAME}_runtime.csv"
    assert path.read_text().splitlines()[1:] == [
        "assay / run,run 0,0,250000000,250000000,", "assay / run,run 1,250000000,750000000,500000000,",
    ]  # fmt: skip
    assert read_trace(tmp_path / f"{NAME}_runtime.pb") == ["run 0", "run 1"]
    assert load_profile(str(path)) == []


def profile_run(tmp_path, number, samples=1):
    """As a process of its own."""
    np.save(tmp_path / "ones.npy", np.ones(4, np.float32))
    lines = r"dispatch_name,invocation_id,action_id,timestamp_us,event\nrun$2,0,0,1,start\nrun$2,0,0,4,end\n"
    script = f'cp ones.npy "$0/0.npy"; printf "{lines}" >"$1/p_$$.csv"'
    run = ["sh", "-c", script, "{outputs}", "{profile_dir}", "{run_flags}"]
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


def test_a_folder_that_is_used_twice_has_the_last_run_and_each_sample_its_profile(tmp_path):
    profile_run(tmp_path, 1)
    folder = tmp_path / "prof" / "net"
    (folder / "stale.csv").write_text(RUNTIME_CSV.replace("main", "old"))
    profile_run(tmp_path, 2, samples=2)
    for path, number in ((folder, b"run2"), (folder / "sample_2", b"run3")):
        table, trace = (path / "net_runtime.csv").read_bytes(), (path / "net_runtime.pb").read_bytes()
        assert (number in table, number in trace) == (True, True)
        assert not any(word in table + trace for word in (b"run1", b"old"))


def test_nothing_is_written_without_a_request(tmp_path):
    plain = outcome(Step.RUN)
    assert finish_profiles(Job(Step.RUN, "", "", case="x"), plain) is plain
    assert finish_profiles(job(tmp_path, Step.IMPORT), plain) is plain
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_reported(tmp_path):
    with pytest.raises(InfrastructureError, match="cannot be written"):
        finish_profiles(job(tmp_path / "missing", Step.RUN), outcome(Step.RUN))
