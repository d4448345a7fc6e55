"""model.json: what is written is read again, whatever it holds; what is damaged says so."""

from __future__ import annotations

import json
import math
import os
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from assay.errors import FormatError
from assay.models.records import MODEL_FILE, load_report, review, write_report
from assay.models.values.model import CaseReport, Layer, ModelReport, Step, StepEnding, StepOutcome
from assay.models.values.tensors import Element, TensorComparison, Tolerance
from assay.values.verdict import Finding, Verdict, VerdictKind

SAMPLES = Path(__file__).parents[1] / "formats" / "model"


def strategy_for(kind):
    """Every field of every value, from the annotations themselves: a field that is added is tested at once."""
    if is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return st.builds(kind, **{field.name: strategy_for(hints[field.name]) for field in fields(kind)})
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return st.sampled_from(kind)
    return strategy_inside(kind, typing.get_origin(kind), typing.get_args(kind))


def strategy_inside(kind, origin, inner):
    if origin is tuple:
        many = len(inner) == 2 and inner[1] is Ellipsis
        return st.lists(strategy_for(inner[0]), max_size=2).map(tuple) if many else st.tuples(*map(strategy_for, inner))
    if origin is Mapping:
        return st.dictionaries(st.text(max_size=3), strategy_for(inner[1]), max_size=2)
    if {float, str} <= set(inner):  # an element: what JSON has no number for is text there
        return st.floats(allow_nan=False, allow_infinity=False) | st.integers() | st.text(max_size=3)
    return st.one_of(*map(strategy_for, inner)) if inner else PLAIN[kind]


PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    str: st.text(st.characters(codec=None), max_size=5) | st.sampled_from(["NaN", "nan", "/", "../x"]),
    int: st.integers(),
    float: st.floats() | st.sampled_from([math.nan, math.inf, -math.inf, -0.0, 5e-324]),
    bool: st.booleans(),
    type(None): st.none(),
}


def is_same(one, other):
    """Equal and of the same type, where NaN equals NaN and -0.0 is not 0.0."""
    if type(one) is not type(other):
        return False
    if is_dataclass(one):
        return all(is_same(getattr(one, field.name), getattr(other, field.name)) for field in fields(one))
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(is_same(one[name], other[name]) for name in one)
    return repr(one) == repr(other)


def write_and_load(folder, report):
    write_report(str(folder), report)
    return load_report(str(folder))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
@given(strategy_for(ModelReport))
def test_every_field_survives(tmp_path, report):
    assert is_same(write_and_load(tmp_path, report), review(replace(report, run_dir=str(tmp_path))))
    text = (tmp_path / MODEL_FILE).read_text()
    json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


def build_report(run_dir="/runs/model/r1"):
    layer = Layer("m_layer_Conv_0", 0, ("Conv", "Clip"), (0, 1), ("x",), ("y",))
    finding = Finding(
        VerdictKind.FAIL, "m_layer_Conv_0", "y differs", value=math.inf, expected=1.0, interval=(0.1, 0.2)
    )
    comparison = TensorComparison(
        "y",
        Verdict(VerdictKind.FAIL, (finding,), 4),
        ("float32", "float32"),
        ((2, 2), (2, 2)),
        count=4,
        wrong=1,
        max_abs=math.inf,
        mean_abs=math.nan,
        max_ulp=2**62,
        sqnr_db=-math.inf,
        worst=(Element((0, 1), 2**53 + 1, "nan", math.inf, 0.5),),
        tolerance=Tolerance(abs=1e-5, rel=1e-4),
    )
    steps = (
        StepOutcome(
            Step.COMPILE, StepEnding.OK, path="/cache/entries/k/files/m.vmfb", elapsed_s=0.5, cached=True, key="k"
        ),
        StepOutcome(
            Step.RUN,
            StepEnding.CRASH,
            "killed by SIGSEGV",
            path=f"{run_dir}/made/out",
            command=f"tool --out={run_dir}/made/out {run_dir}2/other",
            stderr="Segmentation fault\n",
            profiles=(f"{run_dir}/profile/x.json",),
            times_s=(0.1, 0.2),
        ),
    )
    case = CaseReport(
        "m_layer_Conv_0", "iree", Verdict.of([finding], 4), layer, steps, (comparison,), (comparison,),
        ((f"{run_dir}/tensors/e.npy", f"{run_dir}/tensors/a.npy"), ("/elsewhere/e.npy", run_dir)),
    )  # fmt: skip
    return ModelReport(
        "models/m.onnx", "m", "ort", "iree", (case,), "m_layer_Conv_0", True, (finding,), 2, {"iree": "3.13"}, 1.5,
        run_dir, ("a note",), True,
    )  # fmt: skip


def test_a_run_directory_may_be_moved(tmp_path):
    old, new = tmp_path / "r1", tmp_path / "moved"
    old.mkdir()
    write_report(str(old), build_report(str(old)))
    assert str(old) + "/" not in (old / MODEL_FILE).read_text()
    old.rename(new)
    found = load_report(str(new))
    assert found.run_dir == str(new)
    (case,) = found.cases
    assert case.diffs == ((f"{new}/tensors/e.npy", f"{new}/tensors/a.npy"), ("/elsewhere/e.npy", str(new)))
    assert case.steps[1].path == f"{new}/made/out"
    assert case.steps[1].profiles == (f"{new}/profile/x.json",)
    assert case.steps[1].command == f"tool --out={new}/made/out {old}2/other"
    assert found.model == "models/m.onnx"


def test_the_texts_of_a_tool_are_kept_to_the_letter(tmp_path):
    said = f"wrote {tmp_path}/out and ${{ASSAY_RUN_DIR}}/x"
    step = StepOutcome(Step.RUN, StepEnding.OK, stdout=said, stderr=said, message=said)
    report = replace(build_report(), cases=(replace(build_report().cases[0], steps=(step,)),))
    assert write_and_load(tmp_path, report).cases[0].steps == (step,)


def test_numbers_of_numpy_are_written_as_numbers(tmp_path):
    np = pytest.importorskip("numpy")
    base = build_report().cases[0]
    comparison = replace(base.local[0], max_abs=np.float32(0.5), count=np.int64(7), sqnr_db=np.float64("inf"))
    found = write_and_load(tmp_path, replace(build_report(), cases=(replace(base, local=(comparison,)),)))
    assert is_same(found.cases[0].local[0], replace(comparison, max_abs=0.5, count=7, sqnr_db=math.inf))


def test_there_may_be_none_and_writing_replaces_and_leaves_nothing_beside(tmp_path):
    assert load_report(str(tmp_path)) is None
    assert load_report(str(tmp_path / "nowhere")) is None
    write_report(str(tmp_path), build_report())
    assert write_and_load(tmp_path, replace(build_report(), samples=7)).samples == 7
    assert os.listdir(tmp_path) == [MODEL_FILE]


def test_what_a_newer_assay_adds_is_left_out_and_what_an_older_one_lacks_has_its_default(tmp_path):
    write_report(str(tmp_path), build_report())
    path = tmp_path / MODEL_FILE
    content = json.loads(path.read_text())
    content["colour"] = "blue"
    content["cases"][0]["steps"][0]["mood"] = ["good"]
    del content["cases"][0]["accumulated"], content["notes"], content["cases"][0]["local"][0]["tolerance"]
    path.write_text(json.dumps(content))
    found = load_report(str(tmp_path))
    assert found.notes == ()
    assert found.cases[0].accumulated == ()
    assert found.cases[0].local[0].tolerance == Tolerance()


def change(content, path, value):
    """`cases.0.steps` = value; a missing value deletes."""
    *names, last = path.split(".")
    inner: Any = content
    for name in names:
        inner = inner[int(name)] if isinstance(inner, list) else inner[name]
    if value is None:
        del inner[last]
    else:
        inner[last] = value
    return json.dumps(content)


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        ("stem", None, "missing 1 required positional argument: 'stem'"),
        ("stem", 7, "stem is 7"),
        ("confirmed", "yes", "confirmed is 'yes'"),
        ("elapsed_s", 10**400, "int too large"),
        ("cases", [3], r"cases is \[3\]"),
        ("tools", [], r"tools is \[\]"),
        ("cases.0.diffs", [["one"]], r"diffs is \[\['one'\]\]"),
        ("cases.0.steps.0.ending", "exploded", "ending is 'exploded'"),
        ("cases.0.verdict.kind", "GOOD", "kind is 'GOOD'"),
        ("cases.0.local.0.worst.0.expected", [], r"expected is \[\]"),
    ],
)
def test_damage_names_the_file_and_the_trouble(tmp_path, path, value, complaint):
    write_report(str(tmp_path), build_report())
    file = tmp_path / MODEL_FILE
    file.write_text(change(json.loads(file.read_text()), path, value))
    with pytest.raises(FormatError, match=complaint) as caught:
        load_report(str(tmp_path))
    assert str(file) in caught.value.message
    assert "assay model check" in str(caught.value)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff", b'{"format": 99}'])
def test_a_file_that_is_none_of_ours(tmp_path, text):
    (tmp_path / MODEL_FILE).write_bytes(text)
    with pytest.raises(FormatError, match=MODEL_FILE):
        load_report(str(tmp_path))


def test_files_of_every_version_are_read(tmp_path):
    samples = sorted(SAMPLES.glob("v*.json"))
    assert samples
    for sample in samples:
        (tmp_path / MODEL_FILE).write_bytes(sample.read_bytes())
        found = load_report(str(tmp_path))
        expected = build_report(str(tmp_path))
        step = replace(expected.cases[0].steps[1], command=f"tool --out={tmp_path}/made/out /runs/model/r12/other")
        case = replace(expected.cases[0], steps=(expected.cases[0].steps[0], step))
        assert is_same(found, replace(expected, cases=(case,)))
