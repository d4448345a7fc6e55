"""Names of mlrunner runs: the original's, without its collisions."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from assay.plan.draft import Draft
from assay.plan.mlrunner_names import MAX_NAME_BYTES, build_key, build_name, name_runs
from assay.values.study import CommandTemplate, Study, Sweep, Text

STUDY = Study(
    "params", "mlrunner", "params.yaml", "/project", (CommandTemplate("train", (Text("true"),)),), (Sweep({}),)
)


def name_some(*specs, **options):
    return name_runs([Draft(0, spec, spec) for spec in specs], STUDY, **options)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("norm", "Norm"),
        ("early-stop", "EaStop"),
        ("early_stop", "EaStop"),
        ("a_snake_case_string", "aSnCaString"),
        ("lr-decay", "lrDecay"),  # a word of two letters or fewer stays as it is
        ("max-source_len", "MaSource_Len"),  # with a dash, only dashes part words
        ("conv2d", "Conv2D"),
        ("LR", "Lr"),
        ("encoder-ffn-embed-dim", "EnFfEmDim"),
        ("lr", "Lr"),
    ],
)
def test_keys_become_camels(key, expected):
    assert build_key(key) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, "T"),
        (False, "F"),
        (1, "1"),
        (0.1, "0.1"),
        (0.05, "0.05"),
        (1e-05, "1e-05"),
        (100000.0, "100000"),
        (1234567, "1.23457e+06"),
        (0.1234567, "0.123457"),
        ("batch", "batch"),
        ("data/iwslt14", "data_iwslt14"),
        ("../data/x", "data_x"),
        ("/abs/path", "abs_path"),
        ("./x.y", "x.y"),
        ("1e-4", "1e-4"),
        ("", ""),
        (None, "None"),
        ([1, 2], "[1, 2]"),
        ("x" * 120, "x" * 100),
    ],
)
def test_values_are_shown_as_the_original_shows_them(value, expected):
    assert build_name({"p": value}) == f"P_{expected}"


def test_the_documents_example():
    assert build_name({"norm": "new", "moment": 0.1}) == "Norm_new-Moment_0.1"
    assert build_name({"norm": "batch", "early-stop": True}) == "Norm_batch-EaStop_T"


def test_keys_keep_the_order_of_the_document():
    assert build_name({"b": 1, "a": 2}) == "B_1-A_2"


def test_an_existing_path_shows_its_last_part():
    exists = {"/data/sets/cifar", "data/bin/"}.__contains__
    assert build_name({"data": "/data/sets/cifar"}, exists) == "Data_cifar"
    assert build_name({"data": "/data/sets/mnist"}, exists) == "Data_data_sets_mnist"
    assert build_name({"data": "data/bin/"}, exists) == "Data_"
    assert name_some({"data": "/data/sets/cifar"}, exists=exists) == ["Data_cifar"]


def test_a_document_without_parameters_has_a_name():
    assert name_some({}) == ["default"]


# ---------------------------------------------------------------- different runs never share a directory


def test_numbers_that_look_alike_after_six_digits_get_directories_of_their_own():
    assert name_some({"lr": 0.1234567}, {"lr": 0.12345671}) == ["Lr_0.123457", "Lr_0.12345671"]
    assert name_some({"n": 1234567}, {"n": 1234568}) == ["N_1.23457e+06", "N_1234568"]


def test_a_slash_and_an_underscore_get_directories_of_their_own():
    first, second = name_some({"data": "a/b"}, {"data": "a_b"})
    assert first == "Data_a_b"
    assert second.startswith("Data_a_b~")


def test_long_texts_with_the_same_end_get_directories_of_their_own():
    first, second = name_some({"data": "x" + "z" * 100}, {"data": "y" + "z" * 100})
    assert first == "Data_" + "z" * 100
    assert second.startswith(first + "~")


def test_one_and_one_point_zero_and_true_are_different_runs():
    names = name_some({"p": 1}, {"p": 1.0}, {"p": True}, {"p": "1"}, {"p": "T"})
    assert names[:3] == ["P_1", "P_1.0", "P_T"]
    assert len(set(names)) == 5


def test_the_same_run_said_twice_keeps_its_name():
    assert name_some({"lr": 0.1}, {"lr": 0.2}, {"lr": 0.1}) == ["Lr_0.1", "Lr_0.2", "Lr_0.1"]
    names = name_some({"d": "a/b"}, {"d": "a_b"}, {"d": "a/b"}, {"d": "a_b"})
    assert names[0] == names[2]
    assert names[1] == names[3]


def test_a_run_may_have_two_names_for_the_same_parameters():
    full = {"norm": "batch", "moment": 0.1, "early-stop": False}
    drafts = [Draft(0, {"norm": "batch", "moment": 0.1}, full), Draft(1, {"norm": "batch", "early-stop": False}, full)]
    assert name_runs(drafts, STUDY) == ["Norm_batch-Moment_0.1", "Norm_batch-EaStop_F"]


def test_documents_with_other_defaults_behind_the_same_name_stay_apart():
    drafts = [Draft(0, {"lr": 1}, {"lr": 1, "x": 1}), Draft(1, {"lr": 1}, {"lr": 1, "x": 2})]
    first, second = name_runs(drafts, STUDY)
    assert first == "Lr_1"
    assert second.startswith("Lr_1~")


def test_keys_that_shorten_to_the_same_letters_stay_apart():
    first, second = name_some({"early-stop": 1}, {"eagle-stop": 1})
    assert first == "EaStop_1"
    assert first != second


def test_a_name_that_would_be_too_long_for_a_directory_is_cut():
    specs = [{f"parameter-{i}": "v" * 60 + str(tail) for i in range(12)} for tail in range(2)]
    names = name_some(*specs)
    assert all(len(name.encode()) <= MAX_NAME_BYTES for name in names)
    assert all(name.startswith("Pa0_vvv") for name in names)
    assert names[0] != names[1]
    assert names == name_some(*specs)


def test_cutting_never_splits_a_letter():
    (name,) = name_some({f"p{i}": "ü" * 90 for i in range(4)})
    assert len(name.encode()) <= MAX_NAME_BYTES
    assert "�" not in name


def test_keys_and_lists_with_slashes_stay_in_one_folder():
    names = name_some({"a/b": 1}, {"p": ["x/y"]}, {".assay": 1})
    assert not any("/" in name or name.startswith(".") for name in names)


def test_ten_thousand_runs_have_ten_thousand_names():
    names = name_some(*({"lr": i / 3e7, "seed": i} for i in range(10_000)))
    assert len(set(names)) == 10_000


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**9), 10**9),
    st.floats(),
    st.text(max_size=130),
    st.lists(st.integers(), max_size=3),
)
SPECS = st.dictionaries(st.text(min_size=1, max_size=20), VALUES, max_size=4)


@given(st.lists(SPECS, max_size=12))
@example([{"p": 0.1}, {"p": 0.10000000001}, {"p": "0.1"}])
@example([{"a": "1-B_2"}, {"a": 1, "b": 2}])
@example([{"p": "a/b~"}, {"p": "a_b~"}, {"p": "a_b"}])
def test_naming_is_injective_and_fit_for_a_file_system(specs):
    names = name_some(*specs)
    owners: dict[str, str] = {}
    for name, spec in zip(names, specs, strict=True):
        assert owners.setdefault(name, repr(sorted(spec.items()))) == repr(sorted(spec.items()))
        assert 0 < len(name.encode("utf-8", "surrogateescape")) <= 255
        assert "/" not in name
        assert "\0" not in name
        assert not name.startswith(".")


@given(st.lists(SPECS, max_size=8))
def test_naming_is_stable(specs):
    assert name_some(*specs) == name_some(*specs)
