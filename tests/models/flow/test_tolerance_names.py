"""Tolerances for what is not there."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.models.model_shelf import parse

from assay.config.toml_source import parse_toml
from assay.errors import UsageError
from assay.models.config.settings import ModelSettings, parse_model_settings
from assay.models.flow.tolerance_names import (
    Names,
    drop_strangers,
    find_strange_stems,
    has_strangers,
    join_names,
    keep_known,
    list_names,
    refuse_flags,
    refuse_general,
    refuse_own,
)
from assay.models.graph.graph import build_outline
from assay.models.graph.operators import is_operator

NET = """g (float[1,1,2,2] x, float[1,1,1,1] w) => (float[1,1,2,2] y, float[1,1,2,2] z)
    { c = Conv(x, w) k = Clip(c) y = Relu(k) z = Neg(k) }"""


def read(text: str) -> ModelSettings:
    return parse_model_settings(parse_toml(text, "assay.toml"))


@pytest.fixture(scope="module")
def known() -> Names:
    return list_names(build_outline(parse(NET)))


def test_names_are_what_layers_are_judged_by(known: Names) -> None:
    assert known.operators == {"Conv", "Relu", "Neg"}
    assert known.tensors == {"k", "y", "z"}, "what is inside a group is never compared"
    assert known.leaders == (("Clip", "Conv"),)
    assert known.has_tensor("y[0]"), "an output may be a sequence"
    assert not known.has_tensor("x")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Cov:rel=1", "--tolerance: no layer of the model begins with 'Cov'\n  did you mean 'Conv'?"),
        ("Clip:rel=1", "--tolerance: no layer of the model begins with 'Clip'\n  it is judged together with Conv: name that"),
        ("LSTM:rel=1", "no layer of the model begins with 'LSTM'"),
        ("tensor=x:rel=1", "--tolerance: no layer of the model makes 'x'\n  known: k, y, z"),
        ("tensor=c:rel=1", "no layer of the model makes 'c'"),
    ],
)  # fmt: skip
def test_a_flag_for_nothing_is_refused(text: str, said: str, known: Names) -> None:
    with pytest.raises(UsageError) as caught:
        refuse_flags(["rel=0.5", "Conv:rel=1", "tensor=y:ulp=3", text], known)
    assert said in str(caught.value)


def test_flags_for_what_is_there_pass(known: Names) -> None:
    refuse_flags(["rel=0.5", "Conv:rel=1", "tensor=y:ulp=3", "tensor=k:abs=1"], known)


def test_a_model_s_own_table_is_about_that_model(known: Names) -> None:
    settings = read("models.net.ops.LSTM.rel = 1\nmodels.other.ops.X = {}")
    with pytest.raises(UsageError, match=r"models\.models\.net\.ops: no layer of the model begins with 'LSTM'"):
        refuse_own(settings, "net", known)
    refuse_own(settings, "third", known)


def test_what_is_said_of_all_models_is_in_one_of_them_or_an_operator_of_onnx(known: Names) -> None:
    settings = read("ops = {LSTM = {rel = 1}, Mine = {rel = 1}}\ntensors.t.rel = 1")
    assert has_strangers(settings, known)
    with pytest.raises(UsageError, match=r"models\.ops: no layer of any model begins with 'Mine'"):
        refuse_general(settings, known)
    mine = Names(frozenset({"Mine"}))
    with pytest.raises(UsageError, match=r"models\.tensors: no layer of any model makes 't'"):
        refuse_general(settings, join_names([known, mine]))
    refuse_general(settings, join_names([known, mine, Names(tensors=frozenset({"t"}))]))
    assert not has_strangers(read("ops.Conv.rel = 1\ntensors.y = {}"), known)


def test_joined_names_have_all_of_each(known: Names) -> None:
    both = join_names([known, Names(frozenset({"A"}), frozenset({"t"}), (("Relu", "A"),))])
    assert both == Names(known.operators | {"A"}, known.tensors | {"t"}, (("Clip", "Conv"), ("Relu", "A")))
    assert join_names([]) == Names()


def test_tables_of_models_that_are_not_there_are_told() -> None:
    settings = read("models = {net = {seed = 1}, nett = {seed = 1}, q = {seed = 1}}")
    near, far = find_strange_stems(settings, ["net", *(f"model{number}" for number in range(20))])
    assert near == "models.models.nett: there is no such model; did you mean 'net'?"
    assert far == "models.models.q: there is no such model; it does nothing"


@pytest.mark.parametrize(("name", "known"), [("Conv", True), ("FusedConv", False), ("TreeEnsemble", True), ("Cov", False)])  # fmt: skip
def test_onnx_knows_its_operators(name: str, known: bool) -> None:
    assert is_operator(name) is known


# ---------------------------------------------------------------- for another model


def test_a_smaller_model_is_not_asked_for_what_it_lost(known: Names) -> None:
    manner = "--reference ort --tolerance rel=0.1 --tolerance Conv:rel=1 --tolerance Gemm:rel=1 --target 'a b'"
    manner += " --tolerance tensor=gone:ulp=3 --tolerance tensor=y:ulp=3"
    kept = "--reference ort --tolerance rel=0.1 --tolerance Conv:rel=1 --target 'a b' --tolerance tensor=y:ulp=3"
    assert drop_strangers(manner, known) == kept
    assert drop_strangers("", known) == ""
    assert keep_known(["rel=1", "Gemm:rel=1"], known) == ["rel=1"]


WORDS = st.sampled_from(["rel=1", "Conv:rel=1", "Gemm:rel=1", "tensor=y:ulp=2", "tensor=q:ulp=2"])


@given(st.lists(WORDS), st.lists(st.text(max_size=5).filter(lambda text: text != "--tolerance")))
def test_what_is_left_is_never_refused_and_nothing_else_goes(texts: list[str], others: list[str]) -> None:
    known = Names(frozenset({"Conv"}), frozenset({"y"}))
    words = [*others, *(word for text in texts for word in ("--tolerance", text))]
    kept = shlex.split(drop_strangers(shlex.join(words), known))
    left = [word for index, word in enumerate(kept) if index and kept[index - 1] == "--tolerance"]
    refuse_flags(left, known)
    assert kept[: len(others)] == others
    assert left == [text for text in texts if "Gemm" not in text and "=q" not in text]
