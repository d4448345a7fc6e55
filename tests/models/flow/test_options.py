"""From flags and settings to a request, and back to flags that can be pasted."""

from __future__ import annotations

import os
import shlex
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.example_models import save, write_chain

from assay.cli.main import build_cli
from assay.errors import AssayError, UsageError
from assay.models.commands.check import BisectModelRequest, CheckModelRequest
from assay.models.config.settings import parse_tolerance_text
from assay.models.flow.options import (
    ModelFlags,
    build_request,
    build_split_request,
    choose_groups,
    parse_dim,
    parse_range,
    render_tolerances,
)
from assay.models.values.flags import split_words
from assay.models.values.model import InputChoice, Target, Tolerances, render_flags
from assay.models.values.tensors import Tolerance

REQUESTS = {"check": CheckModelRequest, "bisect": BisectModelRequest}


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    body = "<float[1,1,1,1] w = {1}> { c = Conv(x, w)  k = Clip(c)  y = Relu(k) }"
    save(tmp_path, f"g (float[batch,1,2,2] x) => (float[batch,1,2,2] y) {body}").rename(tmp_path / "net.onnx")
    (tmp_path / "empty.onnx").touch()
    return "net.onnx"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"model": "nosuch.onnx", "target": "ort"}, "there is no model nosuch.onnx"),
        ({"model": "empty.onnx", "target": "ort"}, "empty.onnx is not an ONNX model: the file is empty"),
        ({"model": ".", "target": "ort"}, "is a folder"),
        ({}, "which target?"),
        ({"target": "irre"}, "did you mean 'iree'"),
        ({"target": "ort", "reference": "orrt"}, "did you mean 'ort'"),
        ({"target": "ort", "vote": "openvin"}, "did you mean 'openvino'"),
        ({"target": "ort", "ranges": ("x=1",)}, "--range x=1 is not a range"),
        ({"target": "ort", "ranges": ("x=2:1",)}, "is not a range"),
        ({"target": "ort", "ranges": ("x=a:b",)}, "is not a range"),
        ({"target": "ort", "dims": ("batch",)}, "--dim batch is not a size"),
        ({"target": "ort", "dims": ("batch=-1",)}, "is not a size"),
        ({"target": "ort", "inputs": ("nosuch.npy",)}, "there is no nosuch.npy"),
        ({"target": "ort", "inputs": ("x=nosuch.npy",)}, "there is no nosuch.npy"),
        ({"target": "ort", "inputs": (".",), "function": "m:f"}, "not from both"),
        ({"target": "ort", "tolerances": ("rel",)}, "'rel' has no bound"),
        ({"target": "ort", "tolerances": ("rell=1",)}, "did you mean 'rel'"),
        ({"target": "ort", "groups": ("Conv,",)}, "at least two operators"),
        ({"target": "ort", "memory": "big"}, "--memory big is not a size"),
        ({"target": "ort", "tolerances": ("Clip:rel=1",)}, "it is judged together with Conv: name that"),
    ],
)
def test_what_cannot_be_meant_is_reported_before_anything_runs(model: str, flags: dict[str, Any], words: str) -> None:
    with pytest.raises(AssayError) as caught:
        build_request(ModelFlags(**{"model": model, **flags}), "check")
    assert words in caught.value.render()
    assert caught.value.exit_code == 2


def test_quotes_that_are_not_closed_and_wrong_settings_are_named(model: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--compiler-options"):
        split_words("'-O0", "--compiler-options")
    (tmp_path / "assay.toml").write_text("[models]\ntolerance = {rell = 1}\n")
    with pytest.raises(UsageError, match=r"models\.tolerance"):
        build_request(ModelFlags(model, target="ort"), "check")


def test_without_flags_the_defaults_hold(model: str, tmp_path: Path) -> None:
    request = build_request(ModelFlags(model, target="iree"), "check")
    assert request.model == str(tmp_path / "net.onnx")
    assert (request.reference.name, request.target.name) == ("ort", "iree")
    assert request.voter == Target("reference", "reference")
    assert request.inputs == InputChoice()
    assert request.tolerances == Tolerances()
    assert request.groups == (("Conv", "Clip"),)
    assert os.path.isabs(request.store)
    assert request.folder == str(tmp_path)


def test_flags_go_before_settings_key_by_key(model: str, tmp_path: Path) -> None:
    (tmp_path / "assay.toml").write_text(
        '[models]\nreference = "reference"\ntargets = ["openvino"]\nsamples = 4\nseed = 9\ntolerance = {rel = 0.1}\n'
        "ranges.x = [0, 1]\ndims.batch = 2\n[models.models.net]\nsamples = 3\nops.Conv = {abs = 0.5}\n"
    )
    plain = build_request(ModelFlags(model), "check")
    assert (plain.reference.name, plain.target.name, plain.inputs.samples) == ("reference", "openvino", 3)
    assert plain.tolerances.choose("y", "Conv") == Tolerance(abs=0.5, rel=0.1)
    flags = ModelFlags(
        model, "iree", target="ort", samples=1, seed=0, ranges=("y=2:3",), dims=("batch=5",), tolerances=("abs=0.25",)
    )
    request = build_request(flags, "check")
    assert (request.reference.name, request.target.name) == ("iree", "ort")
    assert request.inputs == InputChoice(1, 0, {"x": (0.0, 1.0), "y": (2.0, 3.0)}, {"batch": 5})
    assert request.tolerances.model == Tolerance(abs=0.25, rel=0.1)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("[models.models.net]\nops.Cov = {rel = 1}", "models.models.net.ops: no layer of the model begins with 'Cov'"),
        ("[models.models.net]\ntensors.yy = {rel = 1}", "models.models.net.tensors: no layer of the model makes 'yy'"),
        ("[models]\nops.Softmacks = {rel = 1}", "models.ops: no layer of any model begins with 'Softmacks'"),
        ("[models]\ntensors.logits = {rel = 1}", "models.tensors: no layer of any model makes 'logits'"),
    ],
)
def test_a_mistyped_name_in_the_settings_is_refused(model: str, tmp_path: Path, table: str, words: str) -> None:
    write_chain(tmp_path / "other.onnx")
    (tmp_path / "assay.toml").write_text(table.replace("[models]", '[models]\nfolder = "."') + "\n")
    with pytest.raises(UsageError) as caught:
        build_request(ModelFlags(model, target="ort"), "check")
    assert words in str(caught.value)


def test_settings_may_speak_of_other_models(model: str, tmp_path: Path) -> None:
    """`sum` is in the chain, LSTM is an operator of ONNX, and the chain has a table of its own."""
    write_chain(tmp_path / "chain.onnx")
    (tmp_path / "assay.toml").write_text(
        '[models]\nfolder = "."\nops.LSTM = {rel = 1}\nops.Add = {rel = 1}\ntensors.sum = {rel = 1}\n'
        "[models.models.chain]\ntensors.product = {rel = 1}\n"
    )
    assert build_request(ModelFlags(model, target="ort"), "check").notes == ()
    assert build_request(ModelFlags("chain.onnx", target="ort"), "check").notes == ()


def test_without_models_to_look_at_a_strange_name_is_noted(model: str, tmp_path: Path) -> None:
    (tmp_path / "assay.toml").write_text("[models]\ntensors.logits = {rel = 1}\n[models.models.nett]\nseed = 1\n")
    names, stems = build_request(ModelFlags(model, target="ort"), "check").notes
    assert names == "models.tensors: no layer of any model makes 'logits'; known: k, y"
    assert stems == "models.models.nett: there is no such model; did you mean 'net'?"


def test_a_pasted_command_has_nothing_of_other_models(model: str, tmp_path: Path) -> None:
    (tmp_path / "assay.toml").write_text(
        "[models]\nops.LSTM = {rel = 1}\nops.Conv = {rel = 0.25}\n[models.models.net]\ntensors.y = {ulp = 3}\n"
    )
    request = build_request(ModelFlags(model, target="ort"), "check")
    assert render_flags(request.manner) == (
        "--reference ort --target ort --tolerance Conv:rel=0.25 --tolerance tensor=y:ulp=3"
    )
    (tmp_path / "assay.toml").unlink()
    assert parse_back(model, render_flags(request.manner)).tolerances.choose("y", "Relu") == Tolerance(ulp=3)


def test_flags_for_the_tools_limits_and_places(model: str, tmp_path: Path) -> None:
    (tmp_path / "assay.toml").write_text('[targets.fast]\nlike = "iree"\ncompile_flags = "-O3"\n')
    tools: dict[str, Any] = {"target": "fast", "compile_flags": ("-g",), "run_flags": ("--x",)}
    flags = ModelFlags(model, **tools, compile_timeout_s=5.0, memory="2GiB", ir_dir="ir", output="small.onnx")
    request = build_request(flags, "reduce")
    assert (request.target.compile_flags, request.target.run_flags) == (("-O3", "-g"), ("--x",)), "after its own"
    assert (request.limits.compile_s, request.limits.run_s, request.limits.memory_bytes) == (5.0, 240.0, 2 * 1024**3)
    assert (request.ir_dir, request.output) == (str(tmp_path / "ir"), str(tmp_path / "small.onnx"))


def test_a_setting_that_lets_the_target_vote_is_noted(model: str, tmp_path: Path) -> None:
    (tmp_path / "assay.toml").write_text('[models]\nvote = "iree"\n')
    request = build_request(ModelFlags(model, target="iree"), "check")
    assert request.voter is None
    assert "no second reference votes: vote = 'iree' of the settings" in request.notes[-1]
    assert build_request(ModelFlags(model, target="openvino"), "check").voter == Target(
        "iree", "iree", {"device": "llvm-cpu"}
    )


def test_a_split_needs_the_reference_alone(model: str) -> None:
    request = build_split_request(ModelFlags(model, reference="openvino", only=("Conv_1",)))
    assert request.target == request.reference
    assert request.voter is None
    assert request.only == ("Conv_1",)


def test_texts() -> None:
    assert parse_range("a=b=-1.5:2e3") == ("a=b", (-1.5, 2000.0))
    assert parse_dim("batch=4") == ("batch", 4)
    assert parse_dim("image=1x3,8x8") == ("image", (1, 3, 8, 8))
    assert choose_groups(["Conv, Relu", "A,B,C"]) == (("Conv", "Relu"), ("A", "B", "C"))


def test_inputs_from_files(model: str, tmp_path: Path) -> None:
    for name in ("a.npy", "odd=name.npy"):
        (tmp_path / name).write_bytes(b"")
    named = build_request(ModelFlags(model, target="ort", inputs=("x=a.npy",)), "check").inputs
    assert (named.files, named.most) == ((f"x={tmp_path}/a.npy",), None)
    whole = build_request(ModelFlags(model, target="ort", samples=2, inputs=("odd=name.npy",)), "check").inputs
    assert (whole.files, whole.most) == ((f"{tmp_path}/odd=name.npy",), 2)
    assert build_request(ModelFlags(model, target="ort", samples=2), "check").inputs.most is None


def parse_back(model: str, text: str, goal: Any = "check") -> Any:
    """What the command line makes of these flags."""
    cli = build_cli()
    group = cli.get_command(click.Context(cli), "model")
    assert isinstance(group, click.Group)
    command = group.get_command(click.Context(group), goal)
    assert command is not None
    given = command.make_context("assay", [model, *shlex.split(text)]).params
    return build_request(REQUESTS[goal].from_command_line(given), goal)


def test_a_pasted_command_asks_for_the_same(model: str, tmp_path: Path) -> None:
    (tmp_path / "x.npy").write_bytes(b"")
    given_text = (
        "--target iree --reference reference --vote none --tolerance rel=0.1 --tolerance Conv:ulp=3 "
        "--compile-timeout 2m --run-timeout 1.5s --memory 2GB --compiler-options='-O3 -D \"a b\"' --runtime-options=-x "
        "--samples 2 --seed 5 --range 'x y=0:1' --dim batch=3 --group Conv,Relu --input x.npy"
    )
    request = parse_back(model, given_text, "bisect")
    again = parse_back(model, render_flags((*request.manner, *request.origin)), "bisect")
    assert again == request
    assert again.target.compile_flags == ("-O3", "-D", "a b")


def test_bounds_of_the_model_s_own_table_are_repeated(model: str, tmp_path: Path) -> None:
    """Another file, such as what is left of the model, has another name, and would not get them."""
    (tmp_path / "assay.toml").write_text(
        "[models]\ntolerance = {rel = 0.1}\n[models.models.net.tolerance]\nabs = 0.5\n"
    )
    request = build_request(ModelFlags(model, target="ort"), "check")
    assert render_flags(request.manner) == "--reference ort --target ort --tolerance abs=0.5,rel=0.1"
    (tmp_path / "other.onnx").write_bytes(b"x")
    assert parse_back("other.onnx", render_flags(request.manner)).tolerances == request.tolerances
    other = build_request(ModelFlags("other.onnx", target="ort"), "check")
    assert other.manner == (("--reference", "ort"), ("--target", "ort"))


BOUNDS = st.builds(
    Tolerance,
    abs=st.none() | st.floats(0, 1e9),
    rel=st.none() | st.floats(0, 1e9),
    ulp=st.none() | st.integers(0, 10**6),
    int_share=st.none() | st.floats(0, 1),
    allowed_wrong=st.floats(0, 1),
    top_k=st.none() | st.integers(1, 9),
    allow_constant=st.booleans(),
    check_dtype=st.booleans(),
    quantized=st.booleans(),
)


@given(
    BOUNDS, st.dictionaries(st.sampled_from(["Conv", "my.op:X"]), BOUNDS), st.dictionaries(st.just("logits"), BOUNDS)
)
def test_tolerances_survive_being_written_as_flags(model: Tolerance, ops: Any, tensors: Any) -> None:
    """What is left open in an operator's bound comes from the model's: so it is filled first, as settings do."""

    def fill(own: Tolerance) -> Tolerance:
        usual = Tolerance()
        said = {f.name: getattr(model, f.name) for f in fields(own) if getattr(own, f.name) == getattr(usual, f.name)}
        return replace(own, **said)

    whole = Tolerances(model, {op: fill(each) for op, each in ops.items()}, {n: fill(e) for n, e in tensors.items()})
    found = Tolerances()
    for text in render_tolerances(whole):
        found = parse_tolerance_text(text, found)
    assert found.model == whole.model
    for op in whole.by_op:
        assert found.choose("y", op) == whole.by_op[op]
    for name in whole.by_tensor:
        assert found.choose(name) == whole.by_tensor[name]
