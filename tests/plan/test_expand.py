"""From a study to its runs, for all three dialects."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.errors import ConfigError, NotFoundError, UsageError
from assay.plan.expand import MAX_RUNS, NameSource, build_plan, select
from assay.values.run import Command, canonical
from assay.values.study import (
    AllFlags,
    Choices,
    CodePolicy,
    CommandTemplate,
    Flag,
    Pattern,
    Placeholder,
    Position,
    Random,
    Resources,
    Study,
    Subset,
    Sweep,
    Text,
)

ECHO = (CommandTemplate("run", (Text("echo "), Flag("a"), Text(" "), Flag("b"))),)


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


# ---------------------------------------------------------------- bad input


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


def test_a_value_that_is_no_case_of_its_alias_is_refused():
    aliased = study(sweep(m=["bog"]), dialect="mlrunner", aliases={"m": {"big": {"a": 1}}})
    with pytest.raises(ConfigError) as caught:
        build_plan(aliased)
    assert "'bog' is not a case of this alias" in str(caught.value)
    assert "did you mean 'big'" in str(caught.value)


# ---------------------------------------------------------------- native


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


def test_a_parameter_is_an_orphan_where_its_command_is_not_chosen():
    commands = (CommandTemplate("train", (Placeholder("a"),)), CommandTemplate("test", (Text("t"),)))
    plan = build_plan(study(sweep(commands=("test",), a=[1]), commands=commands))
    assert [warning.key for warning in plan.warnings] == ["a"]
    assert texts(plan) == ["t"]


def test_the_files_own_warnings_are_kept():
    first = build_plan(study(sweep(z=[1]))).warnings
    assert build_plan(study(sweep(a=[1]), warnings=first)).warnings == first


def test_a_run_carries_what_the_study_says():
    pattern = Pattern("loss", "(.*)")
    plan = build_plan(
        study(
            sweep(a=[1], title="t"),
            commands=(CommandTemplate("run", (Text("echo "), Flag("a")), timeout_s=9.0),),
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
    wanted = {canonical(row) for axes in grids for row in _product(axes)}
    assert {canonical(run.params) for run in plan.runs} == wanted
    assert len(plan.runs) == len(wanted) * repeat
    assert len({run.id for run in plan.runs}) == len({run.name.casefold() for run in plan.runs}) == len(plan.runs)


@given(st.lists(AXES, min_size=1, max_size=3), st.none() | st.builds(Subset, st.integers(1, 20), st.integers()))
def test_a_plan_is_the_same_every_time(grids, subset):
    one = study(*(sweep(**axes) for axes in grids), subset=subset)
    assert build_plan(one) == build_plan(one)


def _product(axes: dict) -> list[dict]:
    found: list[dict] = [{}]
    for name, values in axes.items():
        found = [{**row, name: value} for row in found for value in values]
    return found


def test_adding_a_sweep_changes_no_id():
    before = {run.id for run in build_plan(study(sweep(a=[1, 2]))).runs}
    after = {run.id for run in build_plan(study(sweep(a=[1, 2]), sweep(a=[1], b=[5, 6]))).runs}
    assert before < after


# ---------------------------------------------------------------- runx

RUNX = (CommandTemplate("train", (Text("python t.py "), AllFlags())),)


def runx(*sweeps: Sweep, names: NameSource | None = None, **fields):
    return build_plan(study(*sweeps, dialect="runx", commands=RUNX, **fields), names)


def source(**fields) -> NameSource:
    return NameSource(random.Random(1), datetime(2020, 2, 6, 14, 19, tzinfo=UTC), **fields)


def test_a_repeated_value_is_a_repeated_run_in_runx():
    plan = runx(sweep(a=[48, 48, 64]), sweep(a=[48]))
    assert [(run.params["a"], run.ordinal) for run in plan.runs] == [(48, 0), (48, 1), (64, 0), (48, 2)]
    assert len({run.id for run in plan.runs}) == len({run.name for run in plan.runs}) == 4
    assert not plan.links


def test_what_speaks_to_runx_does_not_reach_the_script():
    axes = {"arch": ["net"], "RUNX.TAG": ["{arch}-x"], "SUBMIT_JOB.NODES": [1, 2], "RUNX.SKIP": [False]}
    plan = runx(sweep(**axes), names=source())
    assert texts(plan) == ["python t.py --arch net"] * 2
    assert [run.tag for run in plan.runs] == ["net-x", "net-x"]
    assert [run.farm_resources for run in plan.runs] == [(("nodes", 1),), (("nodes", 2),)]
    assert all(run.name.startswith("net-x_") for run in plan.runs)
    assert all(dict(run.params) == {"arch": "net"} for run in plan.runs)


def test_skipped_runs_are_left_out():
    plan = runx(sweep(**{"a": [1, 2], "RUNX.SKIP": [True]}), sweep(a=[3]))
    assert [run.params["a"] for run in plan.runs] == [3]


def test_the_first_runs_of_a_large_runx_sweep_are_there_before_the_last():
    plan = runx(sweep(lr=range(1000), wd=range(1000)))
    first = [run.commands[0].text for run in islice(plan.runs, 3)]
    assert first == ["python t.py --lr 0 --wd 0", "python t.py --lr 0 --wd 1", "python t.py --lr 0 --wd 2"]
    assert len(plan.runs._made) == 3
    few = runx(sweep(lr=range(3)))
    assert (len(few.runs), few.runs[-1], list(few.runs)[1:]) == (3, list(few.runs)[2], few.runs[1:])


def test_a_value_that_no_command_can_carry_is_refused_before_the_first_run():
    with pytest.raises(ConfigError, match="NUL"):
        runx(sweep(lr=[1, "a\0"]))


def test_runx_has_no_orphans():
    assert not runx(sweep(a=[1], b=[2])).warnings


# ---------------------------------------------------------------- mlrunner

TEMPLATES = (
    CommandTemplate("train", (Text("t "), Placeholder("norm"), Text(" "), Flag("moment"), Text(" "), Flag("stop"))),
    CommandTemplate("test", (Text("e "), Placeholder("norm"))),
)
DEFAULTS = {"norm": "batch", "moment": 0.1, "stop": False}


def mlrunner(*sweeps: Sweep, **fields):
    return build_plan(study(*sweeps, dialect="mlrunner", commands=TEMPLATES, **{"defaults": DEFAULTS, **fields}))


def test_two_documents_that_name_the_same_run_share_it():
    plan = mlrunner(sweep(norm=["new", "batch"], moment=[0.1, 0.05]), sweep(norm=["batch"], stop=[True, False]))
    assert [run.name for run in plan.runs] == [
        "Norm_new-Moment_0.1", "Norm_new-Moment_0.05", "Norm_batch-Moment_0.1", "Norm_batch-Moment_0.05",
        "Norm_batch-Stop_T",
    ]  # fmt: skip
    assert plan.links == (("Norm_batch-Stop_F", "Norm_batch-Moment_0.1"),)
    assert {run.log_name for run in plan.runs} == {"log.{command}.{time}"}


def test_defaults_fill_what_is_missing_and_are_not_in_the_name():
    (run,) = mlrunner(sweep(moment=[0.5])).runs
    assert dict(run.params) == {"norm": "batch", "moment": 0.5, "stop": False}
    assert [command.text for command in run.commands] == ["t batch --moment 0.5", "e batch"]
    assert run.name == "Moment_0.5"


def test_an_alias_names_the_run_and_gives_way_to_what_it_stands_for():
    plan = mlrunner(
        sweep(kind=["x", "y"]), aliases={"kind": {"x": {"norm": "n", "moment": 1}, "y": {"norm": "m", "moment": 2}}}
    )
    assert [run.name for run in plan.runs] == ["Kind_x", "Kind_y"]
    assert [(run.params["norm"], run.params["moment"], "kind" in run.params) for run in plan.runs] == [
        ("n", 1, False),
        ("m", 2, False),
    ]
    assert not plan.warnings


def test_documents_with_different_commands_for_one_run_are_joined():
    plan = mlrunner(sweep(norm=["a"], commands=("test",)), sweep(norm=["a"], commands=("train",)))
    assert [[command.name for command in run.commands] for run in plan.runs] == [["train", "test"]]
    assert not plan.links


def test_defaults_that_no_command_uses_are_orphans_as_a_documents_own_are():
    plan = mlrunner(sweep(extra=[1]), defaults={**DEFAULTS, "spare": 1})
    assert [warning.key for warning in plan.warnings] == ["extra", "spare"]


# ---------------------------------------------------------------- a part of a study: titles, commands, a sample


def build_titled(**fields) -> Study:
    commands = tuple(CommandTemplate(name, (Text(name),)) for name in ("train", "avg", "test"))
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


def test_a_title_where_nothing_has_one_is_refused():
    untitled = Study("s", "native", "f.yml", "/work", (), (Sweep({}),))
    with pytest.raises(NotFoundError) as caught:
        select(untitled, titles=["x"])
    assert "nothing in f.yml has a title" in caught.value.render()


def test_an_unknown_command_is_refused_with_a_suggestion():
    with pytest.raises(NotFoundError) as caught:
        select(build_titled(), commands=["tset"])
    assert "did you mean 'test'" in caught.value.render()


@pytest.mark.parametrize("sample", [0, -3])
def test_a_sample_of_nothing_is_refused(sample):
    with pytest.raises(UsageError, match="is nothing"):
        select(build_titled(), sample=sample)


def test_nothing_asked_for_is_everything():
    assert select(build_titled()) == build_titled()


def test_a_title_selects_every_sweep_that_has_it():
    assert [list(sweep.axes) for sweep in select(build_titled(), titles=["one"]).sweeps] == [["a"], ["c"]]


def test_commands_keep_the_order_of_the_file_and_override_a_sweeps_own():
    found = select(build_titled(), commands=["test", "train"])
    assert {sweep.commands for sweep in found.sweeps} == {("train", "test")}
    assert [command.name for command in build_plan(found).runs[0].commands] == ["train", "test"]


def test_a_sample_is_drawn_per_sweep_and_follows_from_its_seed():
    found = select(build_titled(), sample=2, seed=5)
    assert found.subset == Subset(2, 5, per_sweep=True)
    assert len(build_plan(found).runs) == 6
    assert build_plan(found) == build_plan(select(build_titled(), sample=2, seed=5))


def test_a_sample_without_a_seed_says_which_one_it_took():
    seeds = {select(build_titled(), sample=2).subset.seed for _ in range(5)}
    assert len(seeds) > 1
