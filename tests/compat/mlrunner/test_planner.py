"""The names of the runs of an mlrunner study; its documents and commands are in test_study_file.py."""

from __future__ import annotations

import random
from datetime import datetime

from hypothesis import example, given
from hypothesis import strategies as st

from assay.compat.mlrunner.planner import MlrunnerPlanner, build_key, build_name
from assay.compat.originals import MAX_NAME_BYTES
from assay.plan.expand import NameSource
from assay.plan.naming import Draft
from assay.values.study import Study, Sweep

NOW = datetime(2020, 2, 6, 14, 19)  # noqa: DTZ001 - the original's names carry the local time
MLRUNNER = Study("m", "mlrunner", "m.yml", "/project", (), (Sweep({}),))


def name_specs(*specs, exists=None):
    names = NameSource(random.Random(1), NOW, exists=exists) if exists else None
    return MlrunnerPlanner(MLRUNNER, names).name_runs([Draft(0, spec, spec) for spec in specs])


def test_keys_become_camels():
    keys = {
        "norm": "Norm",
        "early-stop": "EaStop",
        "early_stop": "EaStop",
        "a_snake_case_string": "aSnCaString",
        "lr-decay": "lrDecay",  # a word of two letters or fewer stays as it is
        "max-source_len": "MaSource_Len",  # with a dash, only dashes part words
        "conv2d": "Conv2D",
        "LR": "Lr",
        "encoder-ffn-embed-dim": "EnFfEmDim",
    }
    assert {key: build_key(key) for key in keys} == keys


def test_values_are_shown_as_the_original_shows_them():
    values = [
        (True, "T"),
        (False, "F"),
        (1, "1"),
        (0.05, "0.05"),
        (1e-05, "1e-05"),
        (100000.0, "100000"),
        (1234567, "1.23457e+06"),
        (0.1234567, "0.123457"),
        ("data/iwslt14", "data_iwslt14"),
        ("../data/x", "data_x"),
        ("/abs/path", "abs_path"),
        ("./x.y", "x.y"),
        ("1e-4", "1e-4"),
        ("", ""),
        (None, "None"),
        ([1, 2], "[1, 2]"),
        ("x" * 120, "x" * 100),
    ]
    for value, expected in values:
        assert build_name({"p": value}) == f"P_{expected}"


def test_an_existing_path_shows_its_last_part():
    exists = {"/data/sets/cifar", "data/bin/"}.__contains__
    assert build_name({"data": "/data/sets/cifar"}, exists) == "Data_cifar"
    assert build_name({"data": "/data/sets/mnist"}, exists) == "Data_data_sets_mnist"
    assert build_name({"data": "data/bin/"}, exists) == "Data_"
    assert name_specs({"data": "/data/sets/cifar"}, exists=exists) == ["Data_cifar"]


# ---------------------------------------------------------------- different runs never share a directory


def test_names_that_would_be_equal_get_directories_of_their_own():
    """B23"""
    assert name_specs({"lr": 0.1234567}, {"lr": 0.12345671}) == ["Lr_0.123457", "Lr_0.12345671"]
    assert name_specs({"n": 1234567}, {"n": 1234568}) == ["N_1.23457e+06", "N_1234568"]
    alike = {
        "Data_a_b": ({"data": "a/b"}, {"data": "a_b"}),
        "Data_" + "z" * 100: ({"data": "x" + "z" * 100}, {"data": "y" + "z" * 100}),
        "EaStop_1": ({"early-stop": 1}, {"eagle-stop": 1}),
    }
    for name, specs in alike.items():
        first, second = name_specs(*specs)
        assert (first, second[: len(name) + 1]) == (name, f"{name}~")


def test_one_and_one_point_zero_and_true_are_different_runs():
    names = name_specs({"p": 1}, {"p": 1.0}, {"p": True}, {"p": "1"}, {"p": "T"})
    assert names[:3] == ["P_1", "P_1.0", "P_T"]
    assert len(set(names)) == 5


def test_the_same_run_said_twice_keeps_its_name():
    assert name_specs({"lr": 0.1}, {"lr": 0.2}, {"lr": 0.1}) == ["Lr_0.1", "Lr_0.2", "Lr_0.1"]
    names = name_specs({"d": "a/b"}, {"d": "a_b"}, {"d": "a/b"}, {"d": "a_b"})
    assert names[:2] == names[2:]


def test_a_run_may_have_two_names_for_the_same_parameters():
    full = {"norm": "batch", "moment": 0.1, "early-stop": False}
    drafts = [Draft(0, {"norm": "batch", "moment": 0.1}, full), Draft(1, {"norm": "batch", "early-stop": False}, full)]
    assert MlrunnerPlanner(MLRUNNER).name_runs(drafts) == ["Norm_batch-Moment_0.1", "Norm_batch-EaStop_F"]


def test_documents_with_other_defaults_behind_the_same_name_stay_apart():
    drafts = [Draft(0, {"lr": 1}, {"lr": 1, "x": 1}), Draft(1, {"lr": 1}, {"lr": 1, "x": 2})]
    first, second = MlrunnerPlanner(MLRUNNER).name_runs(drafts)
    assert first == "Lr_1"
    assert second.startswith("Lr_1~")


def test_a_name_that_would_be_too_long_for_a_directory_is_cut():
    specs = [{f"parameter-{i}": "v" * 60 + str(tail) for i in range(12)} for tail in range(2)]
    names = name_specs(*specs)
    assert all(len(name.encode()) <= MAX_NAME_BYTES for name in names)
    assert all(name.startswith("Pa0_vvv") for name in names)
    assert names[0] != names[1]
    assert names == name_specs(*specs)
    (name,) = name_specs({f"p{i}": "ü" * 90 for i in range(4)})
    assert len(name.encode()) <= MAX_NAME_BYTES
    assert "�" not in name, "no letter is split"


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**9), 10**9),
    st.floats(),
    st.text(max_size=10),
    st.lists(st.integers(), max_size=3),
)
SPECS = st.dictionaries(st.text(min_size=1, max_size=5), VALUES, max_size=3)


@given(st.lists(SPECS, max_size=6))
@example([{"p": 0.1}, {"p": 0.10000000001}, {"p": "0.1"}])
@example([{"a": "1-B_2"}, {"a": 1, "b": 2}])
@example([{"p": "a/b~"}, {"p": "a_b~"}, {"p": "a_b"}])
@example([{"a/b": 1}, {"p": ["x/y"]}, {".assay": 1}])
def test_naming_is_injective_and_fit_for_a_file_system(specs):
    names = name_specs(*specs)
    owners: dict[str, str] = {}
    for name, spec in zip(names, specs, strict=True):
        assert owners.setdefault(name, repr(sorted(spec.items()))) == repr(sorted(spec.items()))
        assert 0 < len(name.encode("utf-8", "surrogateescape")) <= 255
        assert "/" not in name
        assert "\0" not in name
        assert not name.startswith(".")
    assert name_specs(*specs) == names
