"""Native names: readable, safe, and never shared by two different runs."""

from __future__ import annotations

import random
import re
from datetime import datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from assay.plan.naming import (
    MAX_FOREIGN_NAME_BYTES,
    MAX_NAME_BYTES,
    Draft,
    NameSource,
    build_directory_name,
    build_key,
    build_mlrunner_name,
    build_tag,
    fill_tag,
    find_varying,
    name_native,
    name_runs,
)
from assay.values.random_names import ADJECTIVES, ANIMALS
from assay.values.run import canonical, spec_id
from assay.values.study import AllFlags, CommandTemplate, Study, Sweep, Text


def drafts(*params: dict, repeat: int = 1) -> list[Draft]:
    return [
        Draft(0, row, row, id=spec_id((), row, ordinal), ordinal=ordinal) for row in params for ordinal in range(repeat)
    ]


def names(*params: dict, repeat: int = 1) -> list[str]:
    return name_native(drafts(*params, repeat=repeat))


def values(*found: object) -> list[str]:
    return names(*({"x": value} for value in found))


# ---------------------------------------------------------------- hostile values


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("a/b", "x=a_b"), ("../../etc", "x=.._.._etc"), ("a b", "x=a_b"), ("a\nb", "x=a_b"), ("$(rm)", "x=__rm_"),
        ("it's", "x=it_s"), ("größe", "x=größe"), ("学習率", "x=学習率"), ("a~b", "x=a_b"), ("a=b,c", "x=a_b_c"), ("", "x="),
        ("a.", "x=a_"), ("-1", "x=-1"), ("a:b", "x=a_b"), ("🙂", "x=_"), ("\ud800", "x=_"),
    ],
)  # fmt: skip
def test_odd_texts_become_safe_names(value, name):
    assert values(value, "other")[0] == name


@pytest.mark.parametrize(("key", "start"), [(".x", "_.x="), ("-x", "_-x="), ("/x", "_x="), ("", "="), ("a b", "a_b=")])
def test_odd_parameter_names_start_no_name_oddly(key, start):
    found = names({key: 1}, {key: 2})
    assert [name.startswith(start) for name in found] == [True, True]


def test_long_names_are_shortened_and_stay_apart():
    found = values("x" * 500 + "a", "x" * 500 + "b", "é" * 200)
    assert all(len(name.encode()) <= MAX_NAME_BYTES for name in found)
    assert len(set(found)) == 3
    assert all(re.search(r"~[0-9a-f]{8}$", name) for name in found)


@pytest.mark.parametrize(
    "pair",
    [
        ("a/b", "a_b"),
        ("A", "a"),
        (1, "1"),
        (True, "true"),
        (None, "null"),
        (0.1, "0.1"),
        ("É", "é"),
        ("straße", "STRASSE"),
    ],
)
def test_two_runs_that_would_share_a_name_both_get_a_hash(pair):
    found = values(*pair)
    assert all("~" in name for name in found)
    assert len({name.casefold() for name in found}) == 2


def test_texts_that_are_the_same_letters_in_two_encodings_are_kept_apart():
    assert len(set(values("\u00e9", "e\u0301"))) == 2


# ---------------------------------------------------------------- readable names


def test_only_what_varies_is_in_the_name_in_order_of_appearance():
    rows = [{"data": "c", "norm": norm, "lr": lr, "seed": 0} for norm in ("new", "old") for lr in (0.1, 0.05)]
    assert names(*rows) == ["norm=new,lr=0.1", "norm=new,lr=0.05", "norm=old,lr=0.1", "norm=old,lr=0.05"]


def test_a_parameter_that_some_runs_lack_is_in_the_name_of_the_others():
    assert names({"a": 1, "b": 2}, {"a": 1}) == ["b=2", "a=1"]


def test_a_single_combination_is_named_by_its_parameters():
    assert names({"a": 1, "b": "x"}) == ["a=1,b=x"]
    assert names({}) == ["run"], "there is nothing to name it by"
    (long,) = names({f"parameter{number}": "value" for number in range(20)})
    assert len(long.encode()) <= 120


def test_repeats_are_counted():
    assert names({"a": 1}, repeat=2) == ["a=1,repeat=0", "a=1,repeat=1"]
    assert names({}, repeat=2) == ["repeat=0", "repeat=1"]
    assert names({"a": 1}, {"a": 2}, repeat=2) == ["a=1,repeat=0", "a=1,repeat=1", "a=2,repeat=0", "a=2,repeat=1"]


def test_values_of_every_kind():
    assert values(True, 1e-5, 10, None, [1, "a", 2.5], "t") == [
        "x=true",
        "x=1e-05",
        "x=10",
        "x=null",
        "x=1+a+2.5",
        "x=t",
    ]


def test_one_and_true_and_one_point_zero_vary():
    assert find_varying(drafts({"a": 1}, {"a": True})) == ["a"]
    assert find_varying(drafts({"a": 1}, {"a": 1.0})) == ["a"]
    assert find_varying(drafts({"a": [1], "b": 0}, {"a": [True], "b": 0})) == ["a"]


# ---------------------------------------------------------------- properties

SCALAR = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=150)
PARAMS = st.dictionaries(st.text(max_size=40), SCALAR | st.lists(SCALAR, max_size=3), max_size=4)
CLOSE = st.dictionaries(
    st.sampled_from(["a", "A", "b"]),
    st.sampled_from(["a", "A", "a/", "a_", 1, 1.0, "1", True, "true", "ß", "ss"]),
    max_size=3,
)


def check_names(rows: list[dict], repeat: int) -> None:
    distinct = list({canonical(row): row for row in rows}.values())
    found = names(*distinct, repeat=repeat)
    assert len({name.casefold() for name in found}) == len(distinct) * repeat
    for name in found:
        assert 0 < len(name.encode()) <= MAX_NAME_BYTES
        assert re.fullmatch(r"[\w=][\w.+@,=~-]*", name)
        assert not name.endswith(".")


@given(st.lists(PARAMS, min_size=1, max_size=8), st.integers(1, 2))
def test_names_are_injective_and_safe(rows, repeat):
    check_names(rows, repeat)


@given(st.lists(CLOSE, min_size=2, max_size=12))
def test_names_are_injective_for_values_that_look_alike(rows):
    check_names(rows, 1)


# ---------------------------------------------------------------- runx names


NOW = datetime(2020, 2, 6, 14, 19)  # noqa: DTZ001 - the original's names carry the local time


class Stuck(random.Random):
    """Draws the same words again and again."""

    def choice(self, seq):
        return seq[0]


def make_study(name: str = "sweep") -> Study:
    command = CommandTemplate("train", (Text("python train.py "), AllFlags()))
    return Study(name, "runx", f"{name}.yml", "/project", (command,), (Sweep({}),))


def make_draft(params: dict | None = None, tag: str | None = None, **more: object) -> Draft:
    return Draft(0, params or {}, params or {}, tag=tag, id="0123", **more)


def name_runx(drafts, *, rng=None, tag=None, cooldir=True, study="sweep"):
    return name_runs(drafts, make_study(study), NameSource(rng or random.Random(1), NOW, tag, cooldir))


def test_there_are_enough_words_for_large_studies():
    assert len(set(ADJECTIVES)) == len(ADJECTIVES) >= 120
    assert len(set(ANIMALS)) == len(ANIMALS) >= 150
    assert not set(ADJECTIVES) & set(ANIMALS)
    assert all(re.fullmatch("[a-z]+", word) for word in (*ADJECTIVES, *ANIMALS))


def test_a_name_is_two_words_and_the_minute():
    (name,) = name_runx([make_draft()])
    assert re.fullmatch(r"[a-z]+-[a-z]+_2020\.02\.06_14\.19", name)


def test_the_rng_decides():
    drafts = [make_draft() for _ in range(5)]
    first = name_runx(drafts, rng=random.Random(7))
    assert first == name_runx(drafts, rng=random.Random(7))
    assert first != name_runx(drafts, rng=random.Random(8))


def test_the_tag_of_the_command_line_comes_first():
    (name,) = name_runx([make_draft()], tag="mine")
    assert re.fullmatch(r"mine_[a-z]+-[a-z]+_2020\.02\.06_14\.19", name)


def test_runx_tag_overrides_the_command_line():
    names = name_runx([make_draft(tag="own"), make_draft()], tag="mine")
    assert [name.split("_")[0] for name in names] == ["own", "mine"]


def test_a_tag_of_none_is_no_tag():
    for tag in ("None", ""):
        (name,) = name_runx([make_draft(tag=tag)])
        assert "None" not in name
        assert name.count("_") == 2


def test_names_stay_apart_when_the_rng_repeats_itself():
    names = name_runx([make_draft() for _ in range(4)], rng=Stuck())
    slug = f"{ADJECTIVES[0]}-{ANIMALS[0]}_2020.02.06_14.19"
    assert names == [slug, f"{slug}_2", f"{slug}_3", f"{slug}_4"]


def test_ten_thousand_names_are_ten_thousand():
    names = name_runx([make_draft() for _ in range(10_000)])
    assert len(set(names)) == 10_000


def test_no_cooldir_with_several_runs_gives_each_a_directory():
    drafts = [make_draft({"lr": lr}, tag="alex") for lr in (1, 2, 3)]
    assert name_runx(drafts, cooldir=False) == ["alex", "alex_2", "alex_3"]
    assert name_runx([make_draft(), make_draft()], cooldir=False, study="exp") == ["exp", "exp_2"]


def test_no_cooldir_leaves_names_that_were_given_alone():
    drafts = [make_draft(tag=tag) for tag in ("a", "a_2", "a", "a")]
    names = name_runx(drafts, cooldir=False)
    assert names[:2] == ["a", "a_2"]
    assert len(set(names)) == 4


def test_no_cooldir_is_quick_for_many_runs_of_one_tag():
    names = name_runx([make_draft(tag="t") for _ in range(5_000)], cooldir=False)
    assert names[-1] == "t_5000"


def test_without_a_source_names_follow_from_the_run():
    drafts = [Draft(0, {}, {"lr": lr}, id=f"id{lr}") for lr in range(20)]
    names = name_runs(drafts, make_study())
    assert names == name_runs(drafts, make_study())
    assert len(set(names)) == 20


# ---------------------------------------------------------------- tags


def test_a_tag_takes_values_with_dots():
    assert fill_tag("{arch}", {"arch": "resnet.50.v1"}) == "resnet.50.v1"


@pytest.mark.parametrize("value", ["a\\b", "\\1", "\\g<0>", "$&", "[x]", "(.*)", "{lr}"])
def test_a_tag_takes_any_value_literally(value):
    assert fill_tag("x_{arch}_y", {"arch": value, "lr": 1}) == f"x_{value}_y"


@pytest.mark.parametrize("key", ["model.arch", "a+b", "a(b", "a|b", "SUBMIT_JOB.NODES"])
def test_a_tag_finds_keys_with_metacharacters(key):
    assert fill_tag(f"<{{{key}}}>", {key: 3}) == "<3>"


def test_a_dot_in_a_key_is_only_a_dot():
    assert fill_tag("{modelXarch}", {"model.arch": "no"}) == "{modelXarch}"


def test_a_place_that_no_parameter_fills_stays():
    assert fill_tag("{nothing}-{lr}", {"lr": 0.1}) == "{nothing}-0.1"


def test_values_are_shown_as_python_shows_them():
    assert fill_tag("{a}{b}{c}", {"a": True, "b": None, "c": [1, 2]}) == "TrueNone[1, 2]"


def test_a_tag_may_say_what_the_farm_is_asked_for():
    draft = make_draft({"lr": 1}, tag="{SUBMIT_JOB.NODES}nodes-{lr}", farm_resources=(("nodes", 4),))
    assert build_tag(draft) == "4nodes-1"


def test_logdir_in_a_tag_is_the_name_of_the_directory():
    (name,) = name_runx([make_draft(tag="x-LOGDIR")], rng=Stuck())
    assert name == f"x-{ADJECTIVES[0]}-{ANIMALS[0]}_2020.02.06_14.19"


# ---------------------------------------------------------------- directories


@pytest.mark.parametrize(
    ("tag", "expected"),
    [
        ("a/b", "a_b"),
        ("../up", "_" + "_up"),
        ("a\nb\tc", "a_b_c"),
        (".hidden", "_hidden"),
        ("größe", "größe"),
        ("a b", "a b"),
    ],
)
def test_a_tag_stays_inside_the_study(tag, expected):
    (name,) = name_runx([make_draft(tag=tag)], cooldir=False)
    assert name == expected


def test_a_long_tag_is_cut_and_keeps_its_identity():
    names = [name_runx([make_draft(tag="ä" * 300 + end)])[0] for end in "xy"]
    assert all(len(name.encode()) <= MAX_FOREIGN_NAME_BYTES for name in names)
    assert all(name.endswith("_2020.02.06_14.19") for name in names)
    heads = {name.partition("~")[2][:8] for name in names}
    assert len(heads) == 2


@given(st.lists(st.one_of(st.none(), st.text(max_size=300)), max_size=20), st.booleans())
def test_names_are_distinct_single_components(tags, cooldir):
    names = name_runx([make_draft(tag=tag) for tag in tags], cooldir=cooldir, rng=Stuck())
    assert len(set(names)) == len(names)
    for name in names:
        assert "/" not in name
        assert "\0" not in name
        assert not name.startswith(".")
        assert 0 < len(name.encode()) <= 255


@given(st.text())
def test_directory_names_fit(text):
    assert len(build_directory_name(text, "_tail").encode()) <= MAX_FOREIGN_NAME_BYTES


# ---------------------------------------------------------------- mlrunner names


MLRUNNER = Study("m", "mlrunner", "m.yml", "/project", (), (Sweep({}),))


def name_mlrunner(*specs, exists=None):
    names = NameSource(random.Random(1), NOW, exists=exists) if exists else None
    return name_runs([Draft(0, spec, spec) for spec in specs], MLRUNNER, names)


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
    assert build_mlrunner_name({"p": value}) == f"P_{expected}"


def test_the_documents_example():
    assert build_mlrunner_name({"norm": "new", "moment": 0.1}) == "Norm_new-Moment_0.1"
    assert build_mlrunner_name({"norm": "batch", "early-stop": True}) == "Norm_batch-EaStop_T"


def test_keys_keep_the_order_of_the_document():
    assert build_mlrunner_name({"b": 1, "a": 2}) == "B_1-A_2"


def test_an_existing_path_shows_its_last_part():
    exists = {"/data/sets/cifar", "data/bin/"}.__contains__
    assert build_mlrunner_name({"data": "/data/sets/cifar"}, exists) == "Data_cifar"
    assert build_mlrunner_name({"data": "/data/sets/mnist"}, exists) == "Data_data_sets_mnist"
    assert build_mlrunner_name({"data": "data/bin/"}, exists) == "Data_"
    assert name_mlrunner({"data": "/data/sets/cifar"}, exists=exists) == ["Data_cifar"]


def test_a_document_without_parameters_has_a_name():
    assert name_mlrunner({}) == ["default"]


# ---------------------------------------------------------------- different runs never share a directory


def test_numbers_that_look_alike_after_six_digits_get_directories_of_their_own():
    assert name_mlrunner({"lr": 0.1234567}, {"lr": 0.12345671}) == ["Lr_0.123457", "Lr_0.12345671"]
    assert name_mlrunner({"n": 1234567}, {"n": 1234568}) == ["N_1.23457e+06", "N_1234568"]


def test_a_slash_and_an_underscore_get_directories_of_their_own():
    first, second = name_mlrunner({"data": "a/b"}, {"data": "a_b"})
    assert first == "Data_a_b"
    assert second.startswith("Data_a_b~")


def test_long_texts_with_the_same_end_get_directories_of_their_own():
    first, second = name_mlrunner({"data": "x" + "z" * 100}, {"data": "y" + "z" * 100})
    assert first == "Data_" + "z" * 100
    assert second.startswith(first + "~")


def test_one_and_one_point_zero_and_true_are_different_runs():
    names = name_mlrunner({"p": 1}, {"p": 1.0}, {"p": True}, {"p": "1"}, {"p": "T"})
    assert names[:3] == ["P_1", "P_1.0", "P_T"]
    assert len(set(names)) == 5


def test_the_same_run_said_twice_keeps_its_name():
    assert name_mlrunner({"lr": 0.1}, {"lr": 0.2}, {"lr": 0.1}) == ["Lr_0.1", "Lr_0.2", "Lr_0.1"]
    names = name_mlrunner({"d": "a/b"}, {"d": "a_b"}, {"d": "a/b"}, {"d": "a_b"})
    assert names[0] == names[2]
    assert names[1] == names[3]


def test_a_run_may_have_two_names_for_the_same_parameters():
    full = {"norm": "batch", "moment": 0.1, "early-stop": False}
    drafts = [Draft(0, {"norm": "batch", "moment": 0.1}, full), Draft(1, {"norm": "batch", "early-stop": False}, full)]
    assert name_runs(drafts, MLRUNNER) == ["Norm_batch-Moment_0.1", "Norm_batch-EaStop_F"]


def test_documents_with_other_defaults_behind_the_same_name_stay_apart():
    drafts = [Draft(0, {"lr": 1}, {"lr": 1, "x": 1}), Draft(1, {"lr": 1}, {"lr": 1, "x": 2})]
    first, second = name_runs(drafts, MLRUNNER)
    assert first == "Lr_1"
    assert second.startswith("Lr_1~")


def test_keys_that_shorten_to_the_same_letters_stay_apart():
    first, second = name_mlrunner({"early-stop": 1}, {"eagle-stop": 1})
    assert first == "EaStop_1"
    assert first != second


def test_a_name_that_would_be_too_long_for_a_directory_is_cut():
    specs = [{f"parameter-{i}": "v" * 60 + str(tail) for i in range(12)} for tail in range(2)]
    names = name_mlrunner(*specs)
    assert all(len(name.encode()) <= MAX_FOREIGN_NAME_BYTES for name in names)
    assert all(name.startswith("Pa0_vvv") for name in names)
    assert names[0] != names[1]
    assert names == name_mlrunner(*specs)


def test_cutting_never_splits_a_letter():
    (name,) = name_mlrunner({f"p{i}": "ü" * 90 for i in range(4)})
    assert len(name.encode()) <= MAX_FOREIGN_NAME_BYTES
    assert "�" not in name


def test_keys_and_lists_with_slashes_stay_in_one_folder():
    names = name_mlrunner({"a/b": 1}, {"p": ["x/y"]}, {".assay": 1})
    assert not any("/" in name or name.startswith(".") for name in names)


def test_ten_thousand_runs_have_ten_thousand_names():
    names = name_mlrunner(*({"lr": i / 3e7, "seed": i} for i in range(10_000)))
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
    names = name_mlrunner(*specs)
    owners: dict[str, str] = {}
    for name, spec in zip(names, specs, strict=True):
        assert owners.setdefault(name, repr(sorted(spec.items()))) == repr(sorted(spec.items()))
        assert 0 < len(name.encode("utf-8", "surrogateescape")) <= 255
        assert "/" not in name
        assert "\0" not in name
        assert not name.startswith(".")


@given(st.lists(SPECS, max_size=8))
def test_naming_is_stable(specs):
    assert name_mlrunner(*specs) == name_mlrunner(*specs)
