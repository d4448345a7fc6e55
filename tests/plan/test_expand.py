"""From a study to its runs."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.errors import ConfigError, NotFoundError, UsageError
from assay.plan.expand import MAX_RUNS, build_plan, select
from assay.values.run import Command, canonical
from assay.values.study import (
    Choices,
    CodePolicy,
    CommandTemplate,
    Flag,
    Pattern,
    Placeholder,
    Position,
    Random,
    Resources,
    ShellText,
    Study,
    Subset,
    Sweep,
)

ECHO = (CommandTemplate("run", (ShellText("echo "), Flag("a"), ShellText(" "), Flag("b"))),)


def sweep(*, named=None, commands=None, title=None, line=1, **axes) -> Sweep:
    built = {
        name: values if isinstance(values, Random) else Choices(tuple(values), Position("f.yml", line, 9))
        for name, values in axes.items()
    }
    return Sweep(built, named=named, commands=commands, title=title, position=Position("f.yml", line, 3))


def study(*sweeps: Sweep, dialect="native", commands=ECHO, **fields) -> Study:
    return Study("s", dialect, "f.yml", "/work", commands, sweeps, **fields)


def texts(plan) -> list[str]:
    return [command.text for run in plan.runs for command in run.commands]


@pytest.mark.needs(compat=True)
def test_a_grid_too_large_to_run_is_refused_before_it_is_listed():
    huge = sweep(**{name: range(1000) for name in "abcd"})
    with pytest.raises(ConfigError, match=r"f.yml:1:3 this study has 1000000000000 runs\n.*subset"):
        build_plan(study(huge))
    with pytest.raises(ConfigError, match="shorten the lists in HPARAMS"):
        build_plan(study(huge, dialect="runx"))
    assert len(build_plan(study(huge, subset=Subset(5))).runs) == 5
    assert MAX_RUNS < 10**12


def test_numbers_of_runs_beyond_all_measure_are_refused():
    drawn = sweep(a=Random("uniform", 0, 1))
    for fields in ({"subset": Subset(10**400)}, {"subset": Subset(10**7)}, {"subset": Subset(1), "repeat": 10**5000}):
        with pytest.raises(ConfigError, match=r"this study has (10000000|countless) runs"):
            build_plan(study(drawn, **fields))
    assert len(build_plan(study(sweep(a=range(3)), subset=Subset(10**400))).runs) == 3


def test_every_place_that_cannot_be_filled_is_said_once():
    commands = (
        CommandTemplate("a", (Placeholder("x"), Placeholder("y")), position=Position("f.yml", 2, 5)),
        CommandTemplate("b", (Placeholder("x"),), position=Position("f.yml", 3, 5)),
    )
    with pytest.raises(ConfigError) as caught:
        build_plan(study(sweep(x=[1], y=[None], z=range(50)), sweep(x=[None], y=[1]), commands=commands))
    found = [str(problem).splitlines()[0] for problem in caught.value.problems]
    assert found == [
        "f.yml:2:5 a: y is null here", "f.yml:2:5 a: x is null here", "f.yml:3:5 b: x is null here",
    ]  # fmt: skip


@pytest.mark.needs(compat=True)
def test_a_value_that_is_no_case_of_its_alias_is_refused():
    aliased = study(sweep(m=["bog"]), dialect="mlrunner", aliases={"m": {"big": {"a": 1}}})
    with pytest.raises(ConfigError) as caught:
        build_plan(aliased)
    assert "'bog' is not a case of this alias" in str(caught.value)
    assert "did you mean 'big'" in str(caught.value)


def test_runs_come_in_the_order_of_the_file():
    plan = build_plan(study(sweep(a=[1, 2], b=["x", "y"]), sweep(a=[3])))
    assert texts(plan) == [
        "echo --a 1 --b x", "echo --a 1 --b y", "echo --a 2 --b x", "echo --a 2 --b y", "echo --a 3",
    ]  # fmt: skip
    assert [run.name for run in plan.runs] == ["a=1,b=x", "a=1,b=y", "a=2,b=x", "a=2,b=y", "a=3"]
    assert not plan.warnings


def test_a_run_said_twice_is_kept_once_with_a_warning():
    plan = build_plan(study(sweep(a=[1, 2, 2]), sweep(line=4, a=[2, 3]), sweep(line=5, a=[1, 2])))
    assert [run.params["a"] for run in plan.runs] == [1, 2, 3]
    assert [str(warning).splitlines()[0] for warning in plan.warnings] == [
        "f.yml:1:9 a: 2 is listed twice",
        "f.yml:4:3 sweep[1]: a run of this item is in the study already and will not run again",
        "f.yml:5:3 sweep[2]: 2 runs of this item are in the study already and will not run again",
    ]
    assert not plan.links


def test_repeat_runs_everything_again_with_its_own_id():
    plan = build_plan(study(sweep(a=[1, 2]), repeat=3))
    assert [(run.params["a"], run.ordinal) for run in plan.runs] == [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2)]
    assert len({run.id for run in plan.runs}) == 6
    assert len(set(texts(plan))) == 2


def test_orphan_parameters_are_warned_about_once():
    plan = build_plan(study(sweep(a=[1], seed=[1, 2]), sweep(line=4, a=[2], seed=[1])))
    assert [str(warning).splitlines()[0] for warning in plan.warnings] == [
        "f.yml:1:9 seed: no command uses this parameter"
    ]


def test_a_parameter_that_no_command_can_name_is_not_advised_to_be_written_into_one():
    first, second = build_plan(study(sweep(a=[1], **{"b c": [1]}), sweep(line=4, a=[2], **{"b.c": [1]}))).warnings
    assert "cannot take it by this name" in str(first)
    assert "write {b.c}" in str(second)


def test_a_parameter_is_an_orphan_where_its_command_is_not_chosen_and_warnings_of_the_file_are_kept():
    commands = (CommandTemplate("train", (Placeholder("a"),)), CommandTemplate("test", (ShellText("t"),)))
    plan = build_plan(study(sweep(commands=("test",), a=[1]), commands=commands))
    assert [warning.key for warning in plan.warnings] == ["a"]
    assert texts(plan) == ["t"]
    assert build_plan(study(sweep(a=[1]), warnings=plan.warnings)).warnings == plan.warnings


def test_a_run_carries_what_the_study_says():
    pattern = Pattern("loss", "(.*)")
    plan = build_plan(
        study(
            sweep(a=[1], title="t"),
            commands=(CommandTemplate("run", (ShellText("echo "), Flag("a")), timeout_s=9.0),),
            metrics=(pattern,),
            resources=Resources(gpus=2),
            timeout_s=5.0,
            retries=3,
            priority=4,
            env=(("A", "b"),),
            code=CodePolicy("live"),
        )
    )
    (run,) = plan.runs
    assert run.commands == (Command("run", "echo --a 1", 9.0),)
    assert (run.title, run.patterns, run.resources, run.timeout_s) == ("t", (pattern,), Resources(gpus=2), 5.0)
    assert (run.retries, run.priority, run.env, run.code) == (3, 4, (("A", "b"),), CodePolicy("live"))
    assert run.log_name == "{command}{suffix}.log"


AXES = st.dictionaries(st.sampled_from("abcd"), st.lists(st.integers(0, 5), min_size=1, max_size=3), max_size=4)


@given(st.lists(AXES, min_size=1, max_size=3), st.integers(1, 2))
def test_every_distinct_combination_is_run_once_per_repeat_under_one_name(grids, repeat):
    plan = build_plan(study(*(sweep(**axes) for axes in grids), repeat=repeat))
    rows = [dict(zip(axes, values, strict=True)) for axes in grids for values in product(*axes.values())]
    wanted = {canonical(row) for row in rows}
    assert {canonical(run.params) for run in plan.runs} == wanted
    assert len(plan.runs) == len(wanted) * repeat
    assert len({run.id for run in plan.runs}) == len({run.name.casefold() for run in plan.runs}) == len(plan.runs)


@given(st.lists(AXES, min_size=1, max_size=3), st.none() | st.builds(Subset, st.integers(1, 20), st.integers()))
def test_a_plan_is_the_same_every_time(grids, subset):
    one = study(*(sweep(**axes) for axes in grids), subset=subset)
    assert build_plan(one) == build_plan(one)


def test_adding_a_sweep_changes_no_id():
    before = {run.id for run in build_plan(study(sweep(a=[1, 2]))).runs}
    after = {run.id for run in build_plan(study(sweep(a=[1, 2]), sweep(a=[1], b=[5, 6]))).runs}
    assert before < after


def build_titled(**fields) -> Study:
    commands = tuple(CommandTemplate(name, (ShellText(name),)) for name in ("train", "avg", "test"))
    sweeps = (
        Sweep({"a": Choices(tuple(range(9)))}, title="one"),
        Sweep({"b": Choices(tuple(range(9)))}, title="two"),
        Sweep({"c": Choices((1,))}, title="one", commands=("test",)),
        Sweep({"d": Choices((1,))}),
    )
    return Study("s", "native", "f.yml", "/work", commands, sweeps, **fields)


def test_an_unknown_title_is_refused_with_a_suggestion():
    with pytest.raises(NotFoundError) as caught:
        select(build_titled(), titles=["tow"])
    assert "no title named 'tow'" in caught.value.render()
    assert "did you mean 'two'" in caught.value.render()
    untitled = Study("s", "native", "f.yml", "/work", (), (Sweep({}),))
    with pytest.raises(NotFoundError, match=r"nothing in f.yml has a title"):
        select(untitled, titles=["x"])


@pytest.mark.parametrize("sample", [0, -3])
def test_a_sample_of_nothing_is_refused(sample):
    with pytest.raises(UsageError, match="is not valid"):
        select(build_titled(), sample=sample)


def test_a_title_selects_every_sweep_that_has_it():
    assert [list(sweep.axes) for sweep in select(build_titled(), titles=["one"]).sweeps] == [["a"], ["c"]]
    assert select(build_titled()) == build_titled()


def test_a_sample_is_drawn_per_sweep_and_follows_from_its_seed():
    found = select(build_titled(), sample=2, seed=5)
    assert found.subset == Subset(2, 5, per_sweep=True)
    assert len(build_plan(found).runs) == 6
    assert build_plan(found) == build_plan(select(build_titled(), sample=2, seed=5))
    seeds = {select(build_titled(), sample=2).subset.seed for _ in range(5)}
    assert len(seeds) > 1, "without a seed one is drawn"
