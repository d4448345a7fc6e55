"""A part of a study: titles, commands, a sample."""

from __future__ import annotations

import pytest

from assay.errors import NotFoundError, UsageError
from assay.plan.expand import build_plan
from assay.plan.select import select
from assay.values.study import Choices, CommandTemplate, Study, Subset, Sweep, Text


def study(**fields) -> Study:
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
        select(study(), titles=["tow"])
    assert "no title named 'tow'" in caught.value.render()
    assert "did you mean 'two'" in caught.value.render()


def test_a_title_where_nothing_has_one_is_refused():
    untitled = Study("s", "native", "f.yml", "/work", (), (Sweep({}),))
    with pytest.raises(NotFoundError) as caught:
        select(untitled, titles=["x"])
    assert "nothing in f.yml has a title" in caught.value.render()


def test_an_unknown_command_is_refused_with_a_suggestion():
    with pytest.raises(NotFoundError) as caught:
        select(study(), commands=["tset"])
    assert "did you mean 'test'" in caught.value.render()


@pytest.mark.parametrize("sample", [0, -3])
def test_a_sample_of_nothing_is_refused(sample):
    with pytest.raises(UsageError, match="is nothing"):
        select(study(), sample=sample)


def test_nothing_asked_for_is_everything():
    assert select(study()) == study()


def test_a_title_selects_every_sweep_that_has_it():
    assert [list(sweep.axes) for sweep in select(study(), titles=["one"]).sweeps] == [["a"], ["c"]]


def test_commands_keep_the_order_of_the_file_and_override_a_sweeps_own():
    found = select(study(), commands=["test", "train"])
    assert {sweep.commands for sweep in found.sweeps} == {("train", "test")}
    assert [command.name for command in build_plan(found).runs[0].commands] == ["train", "test"]


def test_a_sample_is_drawn_per_sweep_and_follows_from_its_seed():
    found = select(study(), sample=2, seed=5)
    assert found.subset == Subset(2, 5, per_sweep=True)
    assert len(build_plan(found).runs) == 6
    assert build_plan(found) == build_plan(select(study(), sample=2, seed=5))


def test_a_sample_without_a_seed_says_which_one_it_took():
    seeds = {select(study(), sample=2).subset.seed for _ in range(5)}
    assert len(seeds) > 1
