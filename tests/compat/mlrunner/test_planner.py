"""The runs of an mlrunner study: documents that share them, commands, names."""

from __future__ import annotations

import random
from datetime import datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.plan.test_expand import study, sweep
from tests.plan.test_render import template

from assay.compat.mlrunner.planner import MlrunnerPlanner, build_key, build_name
from assay.compat.originals import MAX_NAME_BYTES
from assay.errors import ConfigError
from assay.plan.expand import NameSource, build_plan
from assay.plan.naming import Draft
from assay.values.study import CommandTemplate, Flag, Placeholder, ShellText, Study, Sweep

NOW = datetime(2020, 2, 6, 14, 19)  # noqa: DTZ001 - the original's names carry the local time

# ---------------------------------------------------------------- runs

TEMPLATES = (
    CommandTemplate(
        "train", (ShellText("t "), Placeholder("norm"), ShellText(" "), Flag("moment"), ShellText(" "), Flag("stop"))
    ),
    CommandTemplate("test", (ShellText("e "), Placeholder("norm"))),
)
DEFAULTS = {"norm": "batch", "moment": 0.1, "stop": False}


def plan_documents(*sweeps: Sweep, **fields):
    return build_plan(study(*sweeps, dialect="mlrunner", commands=TEMPLATES, **{"defaults": DEFAULTS, **fields}))


def test_two_documents_that_name_the_same_run_share_it():
    plan = plan_documents(sweep(norm=["new", "batch"], moment=[0.1, 0.05]), sweep(norm=["batch"], stop=[True, False]))
    assert [run.name for run in plan.runs] == [
        "Norm_new-Moment_0.1", "Norm_new-Moment_0.05", "Norm_batch-Moment_0.1", "Norm_batch-Moment_0.05",
        "Norm_batch-Stop_T",
    ]  # fmt: skip
    assert plan.links == (("Norm_batch-Stop_F", "Norm_batch-Moment_0.1"),)
    assert {run.log_name for run in plan.runs} == {"log.{command}.{time}"}


def test_defaults_fill_what_is_missing_and_are_not_in_the_name():
    (run,) = plan_documents(sweep(moment=[0.5])).runs
    assert dict(run.params) == {"norm": "batch", "moment": 0.5, "stop": False}
    assert [command.text for command in run.commands] == ["t batch --moment 0.5", "e batch"]
    assert run.name == "Moment_0.5"


def test_an_alias_names_the_run_and_gives_way_to_what_it_stands_for():
    plan = plan_documents(
        sweep(kind=["x", "y"]), aliases={"kind": {"x": {"norm": "n", "moment": 1}, "y": {"norm": "m", "moment": 2}}}
    )
    assert [run.name for run in plan.runs] == ["Kind_x", "Kind_y"]
    assert [(run.params["norm"], run.params["moment"], "kind" in run.params) for run in plan.runs] == [
        ("n", 1, False),
        ("m", 2, False),
    ]
    assert not plan.warnings


def test_documents_with_different_commands_for_one_run_are_joined():
    plan = plan_documents(sweep(norm=["a"], commands=("test",)), sweep(norm=["a"], commands=("train",)))
    assert [[command.name for command in run.commands] for run in plan.runs] == [["train", "test"]]
    assert not plan.links


def test_defaults_that_no_command_uses_are_orphans_as_a_documents_own_are():
    plan = plan_documents(sweep(extra=[1]), defaults={**DEFAULTS, "spare": 1})
    assert [warning.key for warning in plan.warnings] == ["extra", "spare"]


# ---------------------------------------------------------------- commands


def render(*pieces, **params) -> str:
    return MlrunnerPlanner(MLRUNNER).render(template(*pieces), params)


def test_a_flag_without_a_value_is_refused():
    with pytest.raises(ConfigError, match="lr has no value"):
        render(ShellText("a "), Flag("lr"))


def test_booleans_are_written_as_python_does():
    assert render(Placeholder("x"), x=True) == "True"
    assert render(ShellText("a "), Flag("x"), x=True) == "a --x"


# ---------------------------------------------------------------- names


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


@pytest.mark.parametrize(
    ("value", "expected"),
    [
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
    ],
)
def test_values_are_shown_as_the_original_shows_them(value, expected):
    assert build_name({"p": value}) == f"P_{expected}"


def test_the_documents_example():
    assert build_name({"norm": "new", "moment": 0.1}) == "Norm_new-Moment_0.1"
    assert build_name({"norm": "batch", "early-stop": True}) == "Norm_batch-EaStop_T"
    assert name_specs({}) == ["default"], "a document without parameters has a name"


def test_an_existing_path_shows_its_last_part():
    exists = {"/data/sets/cifar", "data/bin/"}.__contains__
    assert build_name({"data": "/data/sets/cifar"}, exists) == "Data_cifar"
    assert build_name({"data": "/data/sets/mnist"}, exists) == "Data_data_sets_mnist"
    assert build_name({"data": "data/bin/"}, exists) == "Data_"
    assert name_specs({"data": "/data/sets/cifar"}, exists=exists) == ["Data_cifar"]


# ---------------------------------------------------------------- different runs never share a directory


def test_names_that_would_be_equal_get_directories_of_their_own():
    assert name_specs({"lr": 0.1234567}, {"lr": 0.12345671}) == ["Lr_0.123457", "Lr_0.12345671"]
    assert name_specs({"n": 1234567}, {"n": 1234568}) == ["N_1.23457e+06", "N_1234568"]
    alike = {
        "Data_a_b": ({"data": "a/b"}, {"data": "a_b"}),
        "Data_" + "z" * 100: ({"data": "x" + "z" * 100}, {"data": "y" + "z" * 100}),
        "EaStop_1": ({"early-stop": 1}, {"eagle-stop": 1}),
    }
    for name, specs in alike.items():
        first, second = name_specs(*specs)
        assert first == name
        assert second != name
        assert second.startswith(f"{name}~")


def test_one_and_one_point_zero_and_true_are_different_runs():
    names = name_specs({"p": 1}, {"p": 1.0}, {"p": True}, {"p": "1"}, {"p": "T"})
    assert names[:3] == ["P_1", "P_1.0", "P_T"]
    assert len(set(names)) == 5


def test_the_same_run_said_twice_keeps_its_name():
    assert name_specs({"lr": 0.1}, {"lr": 0.2}, {"lr": 0.1}) == ["Lr_0.1", "Lr_0.2", "Lr_0.1"]
    names = name_specs({"d": "a/b"}, {"d": "a_b"}, {"d": "a/b"}, {"d": "a_b"})
    assert names[0] == names[2]
    assert names[1] == names[3]


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


def test_cutting_never_splits_a_letter():
    (name,) = name_specs({f"p{i}": "ü" * 90 for i in range(4)})
    assert len(name.encode()) <= MAX_NAME_BYTES
    assert "�" not in name


def test_keys_and_lists_with_slashes_stay_in_one_folder():
    names = name_specs({"a/b": 1}, {"p": ["x/y"]}, {".assay": 1})
    assert not any("/" in name or name.startswith(".") for name in names)


def test_ten_thousand_runs_have_ten_thousand_names():
    names = name_specs(*({"lr": i / 3e7, "seed": i} for i in range(10_000)))
    assert len(set(names)) == 10_000


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
