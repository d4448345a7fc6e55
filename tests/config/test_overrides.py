"""`NAME=VALUE` words: typed as in the file, checked against the study, and never a traceback."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from assay.config.fields import LoadOptions
from assay.config.load import load_study
from assay.config.overrides import parse_assignments
from assay.config.source import Problems, parse_documents
from assay.errors import ConfigError
from assay.plan.expand import build_plan
from assay.values.study import Choices, Random, Study

FILE = """
study: s
commands:
  train: python train.py {lr} [epochs] [momentum]
params: {lr: [0.1, 0.01], epochs: 3}
sweep:
  - {opt: sgd, momentum: [0.8, 0.9]}
  - {opt: adam}
"""
ZIPPED = "command: x {a} {b} {c}\nparams: {a: [1, 2], b: [3, 4], c: 0}\nzip: [a, b]\n"
RUNX = "CMD: python train.py\nHPARAMS:\n- {lr: [0.1, 0.2], arch: big}\n- {lr: 5, extra: 1}\n"
MLRUNNER = """
template: {train: 'python train.py [lr] [size] [opt] > {_output}/x'}
resource: [cpu]
default: {size: 3, opt: sgd}
alias: {fast: {a: {opt: adam}, s: {opt: sgd}}}
---
lr: [0.1, 0.2]
---
lr: 1
fast: a
"""


def value_of(text: str, flavour: str = "native") -> object:
    problems = Problems()
    entries = parse_assignments([f"x={text}"], flavour, problems)  # type: ignore[arg-type]
    problems.raise_if_any()
    return entries["x"].node.value


def load(text: str, *overrides: str, settings: tuple[str, ...] = (), **more: object) -> Study:
    options = LoadOptions(overrides=overrides, settings=settings, text=text, cwd="/place", **more)  # type: ignore[arg-type]
    return load_study("f.yml", options)


def complaints(text: str, *overrides: str, settings: tuple[str, ...] = ()) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(text, *overrides, settings=settings)
    return [str(problem) for problem in caught.value.problems]


def names(text: str, *overrides: str) -> list[str]:
    return [spec.name for spec in build_plan(load(text, *overrides)).runs]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.1", 0.1),
        ("1e-4", 1e-4),
        ("007", "007"),
        ("6", 6),
        ("true", True),
        ("null", None),
        ("~", None),
        ("", ""),
        ("abc", "abc"),
        ('"a, b"', "a, b"),
        ("'a, b'", "a, b"),
        ("a b", "a b"),
        ("it's", "it's"),
        ("*.pt", "*.pt"),
        ("a: b", "a: b"),
        ("#1", "#1"),
        ("&x", "&x"),
        ("!x", "!x"),
        ("- x", "- x"),
        ("<<", "<<"),
        ("a=b", "a=b"),
        ("0.1,0.01", [0.1, 0.01]),
        ("0.1, 0.01", [0.1, 0.01]),
        ('"a,b",c', ["a,b", "c"]),
        ("'a,b' , it's,d", ["a,b", "it's", "d"]),
        ("f(1,2", ["f(1", 2]),
        ("a[1,2],b", ["a[1,2]", "b"]),
        ("[a, b]", ["a", "b"]),
        ("[1,2],[3]", [[1, 2], [3]]),
        ("{range: 5}", {"range": 5}),
        ("{a: 'x, y', b: [1, {c: ']'}]}", {"a": "x, y", "b": [1, {"c": "]"}]}),
        (r'"a\",b",c', ['a",b', "c"]),
        ("ü,日", ["ü", "日"]),
        ("[]", []),
    ],
)
def test_values_are_typed_as_in_the_file(text: str, value: object) -> None:
    assert value_of(text) == value
    assert type(value_of(text)) is type(value)


@pytest.mark.parametrize(
    "text", ["0.1", "1e-4", "1e400", "-.inf", "0x1f", "0o17", "010", "yes", "1_000", "2020-01-01", "Null"]
)
@pytest.mark.parametrize("flavour", ["native", "originals"])
def test_a_bare_value_has_the_type_of_the_same_value_in_a_file(text: str, flavour: str) -> None:
    (node,) = parse_documents(f"x: {text}", "f.yml", flavour=flavour)  # type: ignore[arg-type]
    assert repr(value_of(text, flavour)) == repr(node.value["x"])


@pytest.mark.parametrize(
    ("word", "start"),
    [
        ("lr=0.1,,", "lr=0.1,, (column 8) a value is missing"),
        ("lr=,", "lr=, (column 4) a value is missing"),
        ("lr=0.1,", "lr=0.1, (column 8) a value is missing"),
        ("lr=[1", "lr=[1 (column 4) broken YAML: this [ is not closed"),
        ("lr=1,{a: 1", "lr=1,{a: 1 (column 6) broken YAML: this { is not closed"),
        ('lr="a', 'lr="a (column 4) broken YAML'),
        ("lr='a'b", "lr='a'b (column 7) broken YAML"),
        ("lr=[1]]", "lr=[1]] (column 7) broken YAML"),
        ("lr=[*a]", "lr=[*a] (column 5) broken YAML"),
        ("lr=[]", "lr=[] (column 4) lr: the list of values is empty"),
        ("lr", "lr (column 1) is not NAME=VALUE"),
        ("=1", "=1 (column 1) is not NAME=VALUE"),
        ("lr=\udcff", "lr=\udcff (column 1) is not UTF-8"),
        ("lr={range: 0}", "lr={range: 0} (column 12) lr.range: this range contains no number"),
        ("lr={rnge: 5}", "lr={rnge: 5} (column 5) lr.rnge: unknown kind of axis"),
        ("lr={uniform: [0, 1]}", "lr={uniform: [0, 1]} (column 5) lr: a random axis needs a count"),
    ],
)
def test_a_bad_value_is_refused_with_its_column(word: str, start: str) -> None:
    (problem,) = complaints(FILE, word)
    assert problem.startswith(start)


def test_everything_wrong_is_said_at_once_with_the_file() -> None:
    found = complaints("command: x {lr} {typo}\nparams: {lr: 1}\n", "lr=1,,", "lrr=2", "a", settings=("timeot=3",))
    assert len(found) == 5


def test_secrets_are_not_printed() -> None:
    (problem,) = complaints(FILE, "api_key=[hunter2")
    assert "hunter2" not in problem
    (problem,) = complaints(FILE, "password=a,,")
    assert "password=***" in problem


def _near_values() -> st.SearchStrategy[str]:
    marks = st.sampled_from(
        [*"[]{},:'\"\\ #&*!|>%@`~-?=\n\t", "range", "uniform", "1e-4", "null", "<<", "---", "lr", "é", "\udcff"]
    )
    return st.lists(st.one_of(marks, st.characters()), max_size=12).map("".join)


@given(
    st.lists(
        st.builds(lambda name, value: f"{name}={value}", st.sampled_from(["lr", "epochs", "x", ""]), _near_values()),
        max_size=3,
    ),
    _near_values(),
)
@example(["lr={}"], "")
@example(["lr=[" * 300], "")
@example(["lr=[[1,2],[3]],{choice: [[]]}"], "timeout=")
def test_no_word_ends_in_a_traceback(overrides: list[str], setting: str) -> None:
    for text in (FILE, ZIPPED, RUNX, MLRUNNER):
        try:
            study = load(text, *overrides, settings=(f"timeout={setting}", setting))
        except ConfigError as error:
            study = None
            texts = [str(problem) for problem in error.problems]
        assert study.sweeps if study else all(texts)


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs"))),
        lambda inner: st.lists(inner, min_size=1),
        max_leaves=8,
    )
)
def test_json_comes_back_as_it_is(value: object) -> None:
    import json

    assert value_of(json.dumps(value, ensure_ascii=False)) == value


def test_numbers_of_json_come_back() -> None:
    assert value_of("1e-05") == 1e-05
    assert math.isnan(value_of(".nan"))  # type: ignore[arg-type]


def test_an_override_replaces_the_axis_of_every_sweep_that_has_it() -> None:
    study = load(FILE, "lr=0.5", "epochs=6,12", "momentum=0.7")
    assert [list(sweep.axes) for sweep in study.sweeps] == [
        ["lr", "epochs", "opt", "momentum"],
        ["lr", "epochs", "opt"],
    ]
    assert [axis.values for axis in study.sweeps[0].axes.values() if isinstance(axis, Choices)] == [
        (0.5,),
        (6, 12),
        ("sgd",),
        (0.7,),
    ]
    assert study.overrides.keys() == {"lr", "epochs", "momentum"}


def test_a_place_that_only_a_command_names_can_be_filled() -> None:
    study = load("command: x {lr} [seed]\nparams: {a: [1, 2]}\n", "lr=0.1", "seed={range: 2}")
    assert len(build_plan(study).runs) == 4
    noted = FILE.replace("[momentum]", "[momentum] [note]")
    assert all("note" in sweep.axes for sweep in load(noted, "note=hello").sweeps)


def test_ranges_and_choices_are_axes() -> None:
    assert load(FILE, "epochs={range: [1, 4]}").overrides["epochs"].values == (1, 2, 3)  # type: ignore[union-attr]
    assert load(FILE, "epochs={choice: [[1], 2]}").overrides["epochs"].values == ([1], 2)  # type: ignore[union-attr]
    axis = load(FILE, "lr={log_uniform: [0.001, 0.1]}", settings=("subset.count=4",)).overrides["lr"]
    assert isinstance(axis, Random)


def test_an_unknown_parameter_is_refused_with_what_there_is() -> None:
    (problem,) = complaints(FILE, "epoch=6")
    assert "did you mean 'epochs'?" in problem
    assert "lr, epochs, opt, momentum" in problem
    (problem,) = complaints(FILE, "zzzz=6")
    assert "lr, epochs, opt, momentum" in problem
    assert "--set timeout=2h" in complaints(FILE, "timeout=2h")[0]


def test_a_parameter_given_twice_is_refused() -> None:
    assert "lr is given twice" in complaints(FILE, "lr=1", "lr=2")[0]


def test_zipped_parameters() -> None:
    assert names(ZIPPED, "a=7") == ["a=7,b=3", "a=7,b=4"]
    assert names(ZIPPED, "a=7,8") == ["a=7,b=3", "a=8,b=4"]
    (problem,) = complaints(ZIPPED, "a=7,8,9")
    assert problem.startswith("a=7,8,9 (column 3) zipped parameters need equally many values: a has 3, b has 2")


def test_when_that_keeps_nothing_is_refused() -> None:
    file = "command: x {a} {b}\nparams: {a: [1, 2], b: [3, 4]}\nwhen: {a: [1]}\n"
    assert names(file, "a=1,5") == ["a=1,b=3", "a=1,b=4"]
    (problem,) = complaints(file, "a=5")
    assert "a=5" in problem
    assert "leaves no run" in problem
    items = "command: x {a} {b}\nsweep:\n- {a: [1, 2], b: 3, when: {a: 1}}\n- {a: [1, 2], b: 4, when: {a: 2}}\n"
    assert names(items, "a=2") == ["a=2,b=4"]
    assert len(complaints(items, "a=3")) == 2


def test_items_that_become_alike_are_one_run_without_a_warning() -> None:
    file = "command: x {a} {b}\nsweep:\n- {a: 1, b: [3, 4]}\n- {a: 2, b: [3, 4]}\n"
    plan = build_plan(load(file, "a=5"))
    assert [spec.name for spec in plan.runs] == ["a=5,b=3", "a=5,b=4"]
    assert plan.warnings == ()


def test_names_show_what_differs_in_the_file_and_what_was_changed() -> None:
    file = "command: x {lr} {epochs}\nparams: {lr: [0.1, 0.01], epochs: 3}\n"
    assert names(file, "epochs=6") == ["lr=0.1,epochs=6", "lr=0.01,epochs=6"]
    assert names(file, "lr=0.1") == ["lr=0.1"]  # the name that it has without overrides
    assert names(file, "epochs=3") == ["lr=0.1", "lr=0.01"]
    assert names(file, "lr=0.5", "epochs=6") == ["lr=0.5,epochs=6"]
    single = "command: x {lr} {epochs}\nparams: {lr: 0.1, epochs: 3}\n"
    assert names(single) == ["lr=0.1,epochs=3"]
    assert names(single, "epochs=6") == ["epochs=6"]
    assert names(single, "lr=0.1,0.2") == ["lr=0.1", "lr=0.2"]


def test_an_overridden_run_has_the_id_of_the_same_run_in_the_file() -> None:
    file = "command: x {lr} {epochs}\nparams: {lr: [0.1, 0.01], epochs: 3}\n"
    plain = {spec.id for spec in build_plan(load(file)).runs}
    assert {spec.id for spec in build_plan(load(file, "lr=0.1", "epochs=3,4")).runs} & plain


def test_the_base_of_a_repeated_run_takes_the_place_of_the_sweeps() -> None:
    study = load(FILE, "epochs=6,7", base={"lr": 0.1, "epochs": 3, "opt": "sgd", "momentum": 0.8})
    assert [spec.name for spec in build_plan(study).runs] == [
        f"lr=0.1,epochs={epochs},opt=sgd,momentum=0.8" for epochs in (6, 7)
    ]


@pytest.mark.needs(compat=True)
def test_runx_files() -> None:
    study = load(RUNX, "lr=0.5", "RUNX.TAG=new")
    runs = build_plan(study).runs
    assert [spec.commands[0].text for spec in runs] == [
        "python train.py --lr 0.5 --arch big",
        "python train.py --lr 0.5 --arch big --extra 1",
    ]
    assert all(spec.tag == "new" for spec in runs)
    assert "did you mean 'arch'?" in complaints(RUNX, "arc=1")[0]
    assert "random" in complaints(RUNX, "lr={uniform: [0, 1]}")[0]
    assert load(RUNX, "lr=1e-4").overrides["lr"].values == ("1e-4",)  # type: ignore[union-attr] as YAML 1.1 has it


@pytest.mark.needs(compat=True)
def test_mlrunner_files() -> None:
    texts = [spec.commands[0].text for spec in build_plan(load(MLRUNNER, "size=7", "opt=lion")).runs]
    assert len(texts) == 3
    assert all("--size 7 --opt lion" in text for text in texts)
    assert [spec.name for spec in build_plan(load(MLRUNNER, "lr=5")).runs] == ["Lr_5", "Lr_5-Fast_a"]
    assert "size" in complaints(MLRUNNER, "sise=1")[0]
    assert "the alias has no case" in complaints(MLRUNNER, "fast=maybe")[0]


def test_a_range_that_stays_one_text_gives_a_warning_with_a_word_that_works() -> None:
    (found,) = load("command: x {a}\nparams: {a: 1}\n", "a=0..3").warnings
    assert str(found).startswith("a=0..3 (column 3) a: '0..3' is one text\n    for a range write 'a={range: [0, 4]}';")
    assert not load("command: x {a}\nparams: {a: 1}\n", "a={range: [0, 4]}").warnings
    assert not load("command: x {a}\nparams: {a: 1}\n", 'a="0..3"').warnings


def test_settings_are_read_as_in_the_file() -> None:
    settings = ("timeout=2h", "slots=0,1", "code=live", "resources.gpus=2", "retries=1", "env.A=b", "subset.count=2")
    study = load(
        "command: x {a}\nparams: {a: [1, 2, 3]}\nresources: {cpus: 4}\ncode: {ignore: [x]}\n", settings=settings
    )
    assert (study.timeout_s, study.slots, study.retries, study.env) == (7200, ("0", "1"), 1, (("A", "b"),))
    assert study.code.kind == "live"
    assert (study.resources.gpus, study.resources.cpus) == (2, 4)
    assert study.subset is not None
    assert study.subset.count == 2
    assert load("command: x\ntimeout: 2h\n", settings=("timeout=null",)).timeout_s is None
    assert load("command: x\nenv: {A: b, C: d}\n", settings=("env.A=c",)).env == (("A", "c"), ("C", "d"))


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("timeout=soon", "--set timeout=soon (column 15) timeout: must be a duration"),
        ("timeot=2h", "did you mean 'timeout'?"),
        ("lr=0.1", "lr is a parameter: write lr=0.1 without --set"),
        ("params={lr: 1}", "possible: "),
        ("command=x", "possible: "),
        ("resources.gpu=1", "did you mean 'gpus'?"),
        ("resources..gpus=1", "is not the name of a key"),
        ("timeout", "is not NAME=VALUE"),
        ("study=a/b", "cannot name a study"),
    ],
)
def test_a_bad_setting_is_refused(setting: str, text: str) -> None:
    (problem,) = complaints(FILE, settings=(setting,))
    assert "--set" in problem
    assert text in problem


@pytest.mark.parametrize("text", [RUNX, MLRUNNER])
@pytest.mark.needs(compat=True)
def test_settings_of_ours_for_other_tools_files(text: str) -> None:
    study = load(text, settings=("timeout=5m", "retries=2", "code=live", "env.A=b"))
    assert (study.timeout_s, study.retries, study.code.kind, study.env) == (300, 2, "live", (("A", "b"),))
    assert study.code.ignore == load(text).code.ignore
    assert "possible: slots, timeout" in complaints(text, settings=("subset.count=3",))[0]
    assert "without --set" in complaints(text, settings=("lr=3",))[0]
