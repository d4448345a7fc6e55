"""runx's sets: a finished call is followed by new runs, an interrupted one is continued under its names."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from assay.compat.runx import run_rules as run_sets
from assay.config.settings import Settings
from assay.errors import FormatError
from assay.follow.locations import StudyLocation
from assay.launch.prepared import Prepared, RunOptions
from assay.record import run_directory
from assay.values.run import Command, JobHandle, Outcome, Plan, RunSpec, State, Stop, StopKind
from assay.values.study import Study


def prepare(
    root: Path, names: tuple[str, ...] = ("fresh-a", "fresh-b"), ids: tuple[str, ...] = ("id1", "id2"), **options: bool
) -> Prepared:
    """A call whose runs would get these names; `assay runx` does not keep what is finished."""
    study = Study("study", "runx", "study.yml", "/", (), ())
    specs = tuple(RunSpec(id_, name, {}, (Command("train", "true"),)) for id_, name in zip(ids, names, strict=True))
    asked = RunOptions("study.yml", **{"keeps_finished": False, **options})  # type: ignore[arg-type]
    return Prepared(study, Plan(study, specs), StudyLocation(str(root), "study"), True, None, Settings("/runs"), asked)


def begin(prepared: Prepared) -> Prepared:
    os.makedirs(os.path.join(prepared.location.dir, ".assay"), exist_ok=True)
    return run_sets.pin(run_sets.RunxRules().name_runs(prepared))


def names(prepared: Prepared) -> list[str]:
    return [spec.name for spec in prepared.plan.runs]


def end_all(prepared: Prepared, *ends: tuple[State | None, StopKind | None]) -> None:
    """As if the runs had been executed; a state of None leaves one without a conclusion, its process gone."""
    handle = JobHandle("local", "0", os.uname().nodename, 0, 0, "a boot", None, 1, 0.0)
    for spec, (state, stop) in zip(prepared.plan.runs, ends, strict=True):
        path = prepared.dir_of(spec)
        record = run_directory.RunRecord(spec, "study", run_directory.new_uid(), 0.0)
        assert run_directory.write_run_dir(path, record, "")
        assert run_directory.publish_lease(path, handle)
        if stop:
            run_directory.write_stop(path, 1, Stop("x", "y", stop, 1.0))
        if state:
            run_directory.write_outcome(path, Outcome(state, 1))


def test_a_first_call_that_was_killed_at_once_is_continued(tmp_path: Path) -> None:
    first = begin(prepare(tmp_path))
    assert (first.set_number, names(first)) == (1, ["fresh-a", "fresh-b"])
    content = json.loads((tmp_path / "study/.assay/set.1.json").read_text())
    assert content["runs"] == {"id1": "fresh-a", "id2": "fresh-b"}
    again = begin(prepare(tmp_path, ("other-a", "other-b")))
    assert (again.set_number, names(again)) == (1, ["fresh-a", "fresh-b"])


@pytest.mark.parametrize(
    ("ends", "continues"),
    [
        ([(State.DONE, None), (State.DONE, None)], False),
        ([(State.DONE, None), (State.FAILED, None)], False),
        ([(State.DONE, None), (State.STOPPED, "user")], False),
        ([(State.DONE, None), (State.STOPPED, "interrupt")], True),
        ([(State.DONE, None), (None, None)], True),  # killed, or its supervisor was
    ],
)
def test_what_is_unfinished_is_continued(
    tmp_path: Path, ends: list[tuple[State | None, StopKind | None]], continues: bool
) -> None:
    end_all(begin(prepare(tmp_path)), *ends)
    again = begin(prepare(tmp_path, ("other-a", "other-b")))
    expected = (1, ["fresh-a", "fresh-b"]) if continues else (2, ["other-a", "other-b"])
    assert (again.set_number, names(again)) == expected


def test_other_parameters_are_another_set(tmp_path: Path) -> None:
    begin(prepare(tmp_path))
    again = begin(prepare(tmp_path, ("other-a", "other-b"), ids=("id1", "id3")))
    assert (again.set_number, names(again)) == (2, ["other-a", "other-b"])


@pytest.mark.parametrize("keeps", [True, False])
def test_of_two_calls_at_once_assay_run_joins_the_first_and_assay_runx_begins_another_set(
    tmp_path: Path, keeps: bool
) -> None:
    """Both have looked before either has written. Without random names both would choose the same ones."""
    os.makedirs(tmp_path / "study" / ".assay")
    first, second = (run_sets.RunxRules().name_runs(prepare(tmp_path, keeps_finished=keeps)) for _ in range(2))
    assert names(run_sets.pin(first)) == ["fresh-a", "fresh-b"]
    pinned = run_sets.pin(second)
    expected = (1, ["fresh-a", "fresh-b"]) if keeps else (2, ["fresh-a_2", "fresh-b_2"])
    assert (pinned.set_number, names(pinned)) == expected


def test_a_set_whose_supervisor_lives_is_not_joined_and_that_is_printed(tmp_path: Path) -> None:
    first = begin(prepare(tmp_path))
    with run_sets.held(first):
        assert names(run_sets.RunxRules().name_runs(prepare(tmp_path, keeps_finished=True))) == ["fresh-a", "fresh-b"]
        second = begin(prepare(tmp_path, ("other-a", "other-b")))
    assert (second.set_number, names(second)) == (2, ["other-a", "other-b"])
    assert [problem.message for problem in second.warnings] == [
        "2 runs of earlier calls are still waiting or running, and this call starts new ones"
    ]
    assert first.plan_key != second.plan_key, "each lists what it still has to run"


def test_another_tag_is_another_set(tmp_path: Path) -> None:
    begin(prepare(tmp_path))
    tagged = prepare(tmp_path, ("first_a", "first_b"))
    tagged = begin(replace(tagged, options=replace(tagged.options, tag="first")))
    assert (tagged.set_number, names(tagged)) == (2, ["first_a", "first_b"])
    again = prepare(tmp_path, ("first_c", "first_d"))
    assert run_sets.RunxRules().name_runs(replace(again, options=tagged.options)).set_number == 2
    assert run_sets.RunxRules().name_runs(prepare(tmp_path)).set_number == 1
    assert run_sets.RunxRules().name_runs(prepare(tmp_path, keeps_finished=True)).set_number == 2


def test_the_tenth_set_comes_after_the_ninth(tmp_path: Path) -> None:
    prepared = replace(prepare(tmp_path), set_number=None)
    assert run_sets.pin(prepared) == prepared, "other dialects have no sets"
    assert list(tmp_path.iterdir()) == []
    meta = tmp_path / "study" / ".assay"
    meta.mkdir(parents=True)
    for number in (1, 9, 10):
        fields = {"format": 1, "runs": {"id1": f"a{number}", "id2": f"b{number}"}}
        (meta / f"set.{number}.json").write_text(json.dumps(fields))
    (meta / "set.11.json.abcd.tmp").write_text("half")
    assert names(run_sets.RunxRules().name_runs(prepare(tmp_path))) == ["a10", "b10"]


@pytest.mark.parametrize(
    "fields",
    [
        *('"runs": 5', '"runs": ["a"]', '"runs": {"id1": 5}', '"tag": "a"'),
        *('"runs": {}, "overrides": [1]', '"runs": {}, "overrides": "lr=1"', '"runs": {}, "tag": ["a"]'),
        *('"runs": {"id1": "../../elsewhere"}', '"runs": {"id1": ".assay"}', '"runs": {"id1": ""}'),
    ],
)
def test_a_damaged_set_is_named_and_so_is_one_of_a_newer_assay(tmp_path: Path, fields: str) -> None:
    meta = tmp_path / "study" / ".assay"
    meta.mkdir(parents=True)
    for content in ("", "{", "[]", "{}", f'{{"format": 1, {fields}}}'):
        (meta / "set.1.json").write_text(content)
        with pytest.raises(FormatError, match=r"set\.1\.json is damaged") as caught:
            run_sets.RunxRules().name_runs(prepare(tmp_path))
        assert "delete the file" in caught.value.render()
    (meta / "set.1.json").write_text(f'{{"format": 2, {fields}}}')
    with pytest.raises(FormatError, match="a newer Assay wrote this set file"):
        run_sets.RunxRules().name_runs(prepare(tmp_path))
