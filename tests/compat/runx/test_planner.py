"""The runs of a runx study: their names and tags; what a file asks for is in test_study_file.py."""

from __future__ import annotations

import random
import re
from datetime import datetime
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.plan.test_expand import study, sweep
from tests.plan.test_render import received

from assay.compat.originals import MAX_NAME_BYTES
from assay.compat.runx.planner import RunxPlanner, build_tag, fill_logdir, fill_tag
from assay.errors import ConfigError
from assay.plan.expand import NameSource, build_plan
from assay.plan.naming import Draft
from assay.values.random_names import ADJECTIVES, ANIMALS
from assay.values.study import AllFlags, CommandTemplate, ShellText, Study, Sweep

# ---------------------------------------------------------------- runs

RUNX = (CommandTemplate("train", (ShellText("python t.py "), AllFlags())),)


def runx(sweep: Sweep):
    return build_plan(study(sweep, dialect="runx", commands=RUNX))


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


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("LOGDIR", ["{}"]),
        ("--x LOGDIR/a", ["--x", "{}/a"]),
        ("'LOGDIR/a b'", ["{}/a b"]),
        ('"LOGDIR/a b" LOGDIR', ["{}/a b", "{}"]),
        ("['LOGDIR', 'x']", ["[{},", "x]"]),
        ("it\\'s LOGDIR", ["it's", "{}"]),
        ("'a\\' LOGDIR", ["a\\", "{}"]),
        ('"it\'s LOGDIR"', ["it's {}"]),
        ("LOGDIR:LOGDIR/lib", ["{}:{}/lib"]),
    ],
)
def test_logdir_arrives_whole_wherever_it_stands(text, words):
    folder = '/a b/it\'s/"$x"'
    assert received(fill_logdir(text), ASSAY_RUN_DIR=folder) == [word.replace("{}", folder) for word in words]


# ---------------------------------------------------------------- names


NOW = datetime(2020, 2, 6, 14, 19)  # noqa: DTZ001 - the original's names carry the local time


class Stuck(random.Random):
    """Draws the same words again and again."""

    def choice(self, seq):
        return seq[0]


def make_study(name: str = "sweep") -> Study:
    command = CommandTemplate("train", (ShellText("python train.py "), AllFlags()))
    return Study(name, "runx", f"{name}.yml", "/project", (command,), (Sweep({}),))


def make_draft(params: dict | None = None, tag: str | None = None, **more: object) -> Draft:
    return Draft(0, params or {}, params or {}, tag=tag, id="0123", **more)


def name_runx(drafts, *, rng=None, tag=None, cooldir=True, study="sweep"):
    return RunxPlanner(make_study(study), NameSource(rng or random.Random(1), NOW, tag, cooldir)).name_runs(drafts)


def test_there_are_enough_words_for_large_studies():
    assert len(set(ADJECTIVES)) == len(ADJECTIVES) >= 120
    assert len(set(ANIMALS)) == len(ANIMALS) >= 150
    assert not set(ADJECTIVES) & set(ANIMALS)
    assert all(re.fullmatch("[a-z]+", word) for word in (*ADJECTIVES, *ANIMALS))


def test_the_rng_decides():
    drafts = [make_draft() for _ in range(5)]
    first = name_runx(drafts, rng=random.Random(7))
    assert first == name_runx(drafts, rng=random.Random(7))
    assert first != name_runx(drafts, rng=random.Random(8))


def test_runx_tag_overrides_the_command_line():
    names = name_runx([make_draft(tag="own"), make_draft()], tag="mine")
    assert [name.split("_")[0] for name in names] == ["own", "mine"]
    assert re.fullmatch(r"mine_[a-z]+-[a-z]+_2020\.02\.06_14\.19", names[1])
    for tag in ("None", ""):  # no tag
        (name,) = name_runx([make_draft(tag=tag)])
        assert "None" not in name
        assert name.count("_") == 2


def test_names_stay_apart_when_the_rng_repeats_itself():
    names = name_runx([make_draft() for _ in range(4)], rng=Stuck())
    slug = f"{ADJECTIVES[0]}-{ANIMALS[0]}_2020.02.06_14.19"
    assert names == [slug, f"{slug}_2", f"{slug}_3", f"{slug}_4"]
    names = name_runx([make_draft(tag="x-LOGDIR")], rng=Stuck())
    assert names == [f"x-{slug}"], "LOGDIR in a tag is the name of the directory"


def test_no_cooldir_gives_each_run_a_directory():
    drafts = [make_draft({"lr": lr}, tag="alex") for lr in (1, 2, 3)]
    assert name_runx(drafts, cooldir=False) == ["alex", "alex_2", "alex_3"]
    assert name_runx([make_draft(), make_draft()], cooldir=False, study="exp") == ["exp", "exp_2"]
    names = name_runx([make_draft(tag=tag) for tag in ("a", "a_2", "a", "a")], cooldir=False)
    assert names[:2] == ["a", "a_2"], "names that were given are left alone"
    assert len(set(names)) == 4
    assert name_runx([make_draft(tag="t") for _ in range(5_000)], cooldir=False)[-1] == "t_5000"


def test_without_a_source_names_follow_from_the_run():
    drafts = [Draft(0, {}, {"lr": lr}, id=f"id{lr}") for lr in range(20)]
    names = RunxPlanner(make_study()).name_runs(drafts)
    assert names == RunxPlanner(make_study()).name_runs(drafts)
    assert len(set(names)) == 20


# ---------------------------------------------------------------- tags


def test_a_tag_takes_keys_and_values_literally():
    for value in ("resnet.50.v1", "a\\b", "\\1", "\\g<0>", "$&", "(.*)", "{lr}"):
        assert fill_tag("x_{arch}_y", {"arch": value, "lr": 1}) == f"x_{value}_y"
    for key in ("model.arch", "a+b", "a(b", "a|b", "SUBMIT_JOB.NODES"):
        assert fill_tag(f"<{{{key}}}>", {key: 3}) == "<3>"
    assert fill_tag("{modelXarch}", {"model.arch": "no"}) == "{modelXarch}", "a dot in a key is only a dot"
    assert fill_tag("{nothing}-{lr}", {"lr": 0.1}) == "{nothing}-0.1", "what no parameter fills stays"
    assert fill_tag("{a}{b}{c}", {"a": True, "b": None, "c": [1, 2]}) == "TrueNone[1, 2]"


def test_a_tag_may_say_what_the_farm_is_asked_for():
    draft = make_draft({"lr": 1}, tag="{SUBMIT_JOB.NODES}nodes-{lr}", farm_resources=(("nodes", 4),))
    assert build_tag(draft) == "4nodes-1"


# ---------------------------------------------------------------- directories


def test_a_tag_stays_inside_the_study():
    tags = {"a/b": "a_b", "../up": "__up", "a\nb\tc": "a_b_c", ".hidden": "_hidden", "größe": "größe", "a b": "a b"}
    assert {tag: name_runx([make_draft(tag=tag)], cooldir=False)[0] for tag in tags} == tags


def test_a_long_tag_is_cut_and_keeps_its_identity():
    names = [name_runx([make_draft(tag="ä" * 300 + end)])[0] for end in "xy"]
    assert all(len(name.encode()) <= MAX_NAME_BYTES for name in names)
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
