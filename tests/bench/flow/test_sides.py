"""Which executions of a side count, and which are compared; baselines: names for executions, which stay."""

from __future__ import annotations

import fcntl
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.bench_repository import Repository, ask
from tests.bench_samples import execution, history, write_archive

from assay.bench.flow.archive import find_location
from assay.bench.flow.compare import CompareOptions, compare_baseline, compare_recorded
from assay.bench.flow.sides import (
    Duel,
    Executions,
    choose_side,
    collect_samples,
    describe_aside,
    describe_code,
    describe_environments,
    describe_invalid,
    find_duels,
    open_trees,
    remove_baseline,
    set_baseline,
)
from assay.bench.records import Baseline, load_named
from assay.bench.values.execution import BenchExecution, BenchReport, parse_method
from assay.errors import FormatError, NotFoundError, UsageError
from assay.show.console import CollectingConsole
from assay.values.environment import GitState
from assay.values.verdict import VerdictKind

KEY = ("m.C.f", "wall_time")
V100, T4 = {"accelerator_model": "V100"}, {"accelerator_model": "T4"}


def some(first: int, count: int, setup: dict[str, str], **fields: Any) -> tuple[BenchExecution, ...]:
    return tuple(execution(first + n, 1.0 + n, setup=setup, **fields) for n in range(count))


MIXED = Executions("old", (*some(0, 3, V100), *some(3, 2, T4)))
HEAD = Executions("new", (*some(10, 4, T4), *some(14, 5, {"accelerator_model": "H200"})))


def told(base: Executions, head: Executions, across: bool = False) -> list[str]:
    return list(describe_environments("m.C.f", base, head, find_duels(KEY, base, head, across=across), across))


def test_the_beginning_of_two_commits_is_refused() -> None:
    abcd, abce = (execution(number, 1.0, commit=f"abc{number:x}".ljust(40, "0")) for number in (0xD1, 0xD2))
    assert choose_side([abcd, abce, abcd], "abcd1") == [abcd, abcd]
    assert choose_side([replace(abcd, label="abcd"), abce], "abcd") == [replace(abcd, label="abcd")]
    with pytest.raises(UsageError, match=f"abcd fits several commits: {abcd.commit}, {abce.commit}"):
        choose_side([abcd, abce], "abcd")


def test_equal_set_ups_meet_and_the_others_are_named() -> None:
    (duel,) = find_duels(KEY, MIXED, HEAD, across=False)
    assert [e.execution_id for e in duel.base] == ["e0003", "e0004"]
    assert [e.execution_id for e in duel.head] == ["e0010", "e0011", "e0012", "e0013"]
    assert (duel.subject, duel.differences) == ("m.C.f wall_time", ())
    assert told(MIXED, HEAD) == [
        "m.C.f: 3 executions of old left out, environment missing on the other side: accelerator_model V100",
        "m.C.f: 5 executions of new left out, environment missing on the other side: accelerator_model H200",
    ]


def test_several_common_set_ups_are_several_duels() -> None:
    duels = find_duels(KEY, MIXED, MIXED, across=False)
    assert [duel.subject for duel in duels] == [
        "m.C.f wall_time (accelerator_model V100)",
        "m.C.f wall_time (accelerator_model T4)",
    ]
    assert [len(duel.base) for duel in duels] == [3, 2]
    assert told(MIXED, MIXED) == ["m.C.f: 2 environments, each compared by itself"]


def test_without_a_common_one_the_differences_are_kept() -> None:
    (duel,) = find_duels(KEY, Executions("old", some(0, 3, V100)), HEAD, across=False)
    assert duel.differences == ("accelerator_model V100 → H200",)
    assert len(duel.head) == 5
    words = told(Executions("old", some(0, 3, V100)), HEAD)
    assert words[0] == "m.C.f: no environment is common to old and new; compare them with --across-setups"
    assert "4 executions of new left out" in words[1]


def test_all_together_where_that_is_wanted_and_it_is_reported() -> None:
    (duel,) = find_duels(KEY, MIXED, HEAD, across=True)
    assert (len(duel.base), len(duel.head), duel.differences) == (5, 9, ())
    assert told(MIXED, HEAD, across=True) == [
        "m.C.f: old mixes 2 environments: 3 with accelerator_model V100; 2 with accelerator_model T4",
        "m.C.f: new mixes 2 environments: 4 with accelerator_model T4; 5 with accelerator_model H200",
    ]
    one, other = Executions("a", some(0, 3, V100)), Executions("b", some(3, 3, T4))
    assert told(one, other, across=True) == [
        "m.C.f: the environments differ (accelerator_model V100 → T4), and are compared nevertheless"
    ]
    assert told(one, one, across=True) == told(one, one) == []


def test_an_environment_that_was_recorded_on_neither_side_is_reported() -> None:
    unknown = Executions("a", some(0, 3, {}))
    assert told(unknown, unknown) == ["m.C.f: the environment was not recorded on either side"]
    (duel,) = find_duels(KEY, unknown, Executions("b", some(3, 3, T4)), across=False)
    assert duel.differences == ("environment not recorded → accelerator_model T4",)


# ---------------------------------------------------------------- invalid


def test_what_is_invalid_for_a_metric_does_not_count_for_it() -> None:
    side = replace(MIXED, invalid={KEY: {"e0000", "e0001"}, ("m.C.g", "wall_time"): {"e0002"}})
    assert [e.execution_id for e in side.having(KEY)] == ["e0002", "e0003", "e0004"]
    assert list(describe_invalid(side, [KEY])) == ["m.C.f wall_time: 2 executions of old left out: declared invalid"]
    assert [side.is_invalid(e) for e in side.found[:3]] == [True, True, False]
    assert list(describe_invalid(MIXED, [KEY])) == []


def test_nothing_left_is_an_empty_side_and_no_other_set_up() -> None:
    side = replace(MIXED, invalid={KEY: {e.execution_id for e in MIXED.found}})
    (duel,) = find_duels(KEY, side, HEAD, across=False)
    assert (duel.base, duel.differences) == ((), ())
    assert collect_samples("old", duel.base, "wall_time", everything=False).values == ()


# ---------------------------------------------------------------- the code


@pytest.mark.parametrize(
    ("head", "words"),
    [
        ({"commit": "a" * 40}, "; the code is the same"),
        ({"commit": "b" * 40}, " and so does the code"),
        ({"commit": "a" * 40, "git": GitState("a" * 40, None, True, "diff")}, " and so does the code"),
        ({"commit": None}, "; whether the code does was not recorded"),
    ],
)
def test_what_is_known_of_the_code_is_reported(head: dict[str, Any], words: str) -> None:
    duel = Duel(KEY, some(0, 2, V100, commit="a" * 40), some(2, 2, T4, **head))
    assert describe_code(duel) == words


def test_what_is_put_aside_is_counted_by_method() -> None:
    found = (*some(0, 2, T4), *some(2, 3, T4, profiles=("trace",)), *some(5, 1, T4, state="stopped"))
    side = Executions("old", found).put_aside(everything=False)
    assert [e.execution_id for e in side.found] == ["e0000", "e0001"]
    assert side.count_aside() == side.count_aside("m.C.f") == {"profiled": 3, "interrupted": 1}
    assert side.count_aside("m.C.g") == {}
    assert side.methods == ["m.C.f"]
    assert list(describe_aside(side)) == [
        "old: 3 profiled executions are left out of 6 (include them with --all)",
        "old: 1 interrupted execution is left out of 6",
    ]
    assert side.put_aside(everything=False) == side, "once is enough"
    assert len(Executions("old", found).put_aside(everything=True).found) == 5


# ---------------------------------------------------------------- checkouts


def test_a_second_comparison_waits_for_the_first(lab: Path) -> None:
    repository = Repository(lab)
    repository.costs(10, 11)
    console = CollectingConsole()
    order: list[str] = []
    folders: list[str] = []

    def come_second() -> None:
        with open_trees(ask(), None, console) as checkouts:
            order.append(checkouts.inside[0])
            folders.append(checkouts.folder)

    second = threading.Thread(target=come_second)
    with open_trees(ask(), None):
        second.start()
        while not console.lines:
            time.sleep(0.01)
        order.append("first")
    second.join()
    assert order == ["first", "."]
    assert "waiting for another comparison or search, running in" in console.lines[0]
    with open(f"{folders[0]}/lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # it goes with its owner
    (repository.folder / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be made"), open_trees(ask(root="file"), None):
        pass


# ---------------------------------------------------------------- baselines

OPTIONS = CompareOptions(metrics=("wall_time",))


def add(lab: Path, first: int, values: list[float], **fields: object) -> list[BenchExecution]:
    made = history(values, first, **fields)
    write_archive(lab / "runs", made)
    return made


def noisy(level: float) -> list[float]:
    return [level * (1 + number / 1000) for number in range(8)]


def test_a_baseline_stays_although_newer_executions_come(lab: Path) -> None:
    commit = "a" * 40
    add(lab, 0, noisy(1.0), commit=commit)
    assert len(set_baseline("main", "aaaa", "runs").runs) == 8
    add(lab, 20, noisy(1.5), commit=commit)  # newer, of the same commit: slower
    report = compare_baseline("main", None, None, "runs", OPTIONS)
    assert report.verdict.kind is VerdictKind.FAIL
    assert report.metrics[0].base.executions == 8
    assert report.metrics[0].finding.effect == pytest.approx(0.5, abs=0.02)
    add(lab, 40, noisy(1.0), commit="b" * 40)  # the newest code is compared, not what came between
    assert compare_baseline("main", None, None, "runs", OPTIONS).verdict.kind is VerdictKind.PASS
    assert compare_recorded("main", "bbbb", None, "runs", OPTIONS).verdict.kind is VerdictKind.PASS
    now = BenchReport(tuple(history(noisy(1.5), 60)), interrupted="SIGINT")
    assert compare_baseline("main", lambda: now, None, "runs", OPTIONS).interrupted == "SIGINT"
    remove_baseline("main", "runs")
    assert load_named(find_location("runs").dir, Baseline) == {}


def test_what_is_named_and_gone_is_an_error_and_other_benchmarks_are_noted(lab: Path) -> None:
    names = ("m.C.f", "m.C.g", "m.D.h")
    for number, name in enumerate(names):
        add(lab, 20 * number, noisy(1.0), commit="a" * 40, method=name)
    set_baseline("main", "aaaa", "runs")
    now = BenchReport(tuple(history(noisy(1.0), 90, method="m.C.f")))
    report = compare_baseline("main", lambda: now, None, "runs", OPTIONS, asked=[parse_method("m.C.filter:.*")])
    bad = [finding for finding in report.verdict.findings if finding.kind is VerdictKind.ERROR]
    assert [(finding.subject, finding.message) for finding in bad] == [("m.C.g", "main has it, now does not")]
    assert "main has other benchmarks, which were not executed now: m.D.h" in report.notes
    passed = compare_baseline("main", lambda: now, None, "runs", OPTIONS, asked=[parse_method("m.C.f")])
    assert passed.verdict.kind is VerdictKind.PASS
    assert "main has other benchmarks, which were not executed now: m.C.g, m.D.h" in passed.notes


def test_local_edits_and_failures_are_not_a_baseline(lab: Path) -> None:
    commit = "a" * 40
    edited = GitState(commit, None, True, diff="+ an edit")
    add(lab, 0, [1.0], commit=commit, git=edited)
    with pytest.raises(UsageError, match="no execution of aaaa that could be a baseline"):
        set_baseline("main", "aaaa", "runs")
    (failed,) = add(lab, 1, [1.0], commit="b" * 40)
    failed = replace(failed, execution_id="e0009", result=replace(failed.result, succeeded=False, has_exception=True))
    write_archive(lab / "runs", [failed])
    assert len(set_baseline("main", "bbbb", "runs").runs) == 1
    write_archive(lab / "runs", [replace(failed, execution_id="e0010", label="broken")])
    with pytest.raises(UsageError, match="no execution of broken that could be a baseline: none succeeded"):
        set_baseline("main", "broken", "runs")


def test_a_baseline_that_is_not_there_is_named(lab: Path) -> None:
    add(lab, 0, [1.0, 1.1], label="release")
    set_baseline("release", "release", "runs")
    for call in (
        lambda: compare_baseline("relaese", None, None, "runs", OPTIONS),
        lambda: remove_baseline("relaese", "runs"),
    ):
        with pytest.raises(NotFoundError, match="no baseline named 'relaese'") as refused:
            call()
        assert refused.value.hint == "did you mean 'release'?"
    with pytest.raises(UsageError, match="nothing was executed besides the baseline release"):
        compare_baseline("release", None, None, "runs", OPTIONS)
    with pytest.raises(UsageError, match=r"no execution has the label relaese, and .* is not in a git") as refused:
        set_baseline("main", "relaese", "runs")
    assert refused.value.hint == "did you mean 'release'?"
    with pytest.raises(UsageError, match="is not a name for a baseline"):
        set_baseline("a b", "release", "runs")
    (lab / "runs/bench/.assay/baselines.json").write_text("{")
    with pytest.raises(FormatError, match=r"baselines\.json cannot be read"):
        load_named(find_location("runs").dir, Baseline)
