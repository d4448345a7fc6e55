"""Commits, lasting changes, baselines, the selftest and suites, as people call them."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from typing import Any

import pytest
from tests.bench.commands.test_bench import QUIET, STEP, write_executions, write_history
from tests.bench_repository import Repository
from tests.bench_samples import history
from tests.finished_study import Bench

Cli = Any


@pytest.fixture
def repository(own_bench: Bench) -> Repository:
    return Repository(own_bench.folder)


def test_the_commits_of_a_range_are_a_table(own_bench: Bench, repository: Repository, cli: Cli) -> None:
    commits = repository.costs(1, 2, 3)
    words = ("bench", "run", "--command", "figure=cat figure", "--metric", r"cost=cost ({number})", "--commits")
    result = cli(*words, "main~2..main", "--build", "! grep -q 'cost 2' figure", *QUIET)
    assert result.code == 3
    rows = [line.split() for line in result.out.splitlines()[2:4]]
    assert [row[:4] for row in rows] == [[commits[1][:12], "change", "1", "-"], [commits[2][:12], "change", "2", "1/1"]]
    assert f"skipped: commit {commits[1][:12]} cannot be built" in result.out
    assert "bench history --changes" not in result.out  # one value is no history
    again = cli(*words, "main~2..main", "--skip-existing", "--root", "other root", *QUIET)
    assert "what changed: `assay bench history --changes --root 'other root'`" in again.out
    nothing = cli(*words, "main~2..main", "--build", "false", "--json", *QUIET)
    assert (nothing.code, json.loads(nothing.out)["exit_code"]) == (3, 3)
    found = json.loads(cli(*words, "main~1..main", "--skip-existing", "--json", *QUIET).out)
    assert (found["exit_code"], found["executions"]) == (0, [])
    assert [(each["sha"], each["known"]) for each in found["commits"]] == [(commits[2], 1)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "m.f", "--commits", "main"), "--commits 'main' does not name two commits"),
        (("run", "m.f", "--commits", "main..main"), "main..main has no commit"),
        (("run", "m.f", "--commits", "mian..main"), "there is no commit 'mian'"),
        (("run", "m.f", "--commits", "main~1..main", "--every", "0"), "--every"),
        (("run", "m.f", "--every", "2"), "--every, --skip-existing and --build are for --commits"),
        (("history", "--changes", "--since", "yesterday"), "--since 'yesterday' is neither a duration nor a date"),
        (("history",), "no METRIC is named"),
        (("compare", "--baseline", "mian"), "no baseline named 'mian'"),
        (("compare", "--baseline", "main", "--git", "main~1..main", "m.f"), "--baseline names the base"),
        (("baseline", "set"), "no NAME is given"),
        (("selftest", "m.f", "m.g"), "a selftest is of one benchmark"),
    ],
)
def test_bad_input_is_one_line(
    own_bench: Bench, repository: Repository, cli: Cli, words: tuple[str, ...], message: str
) -> None:
    repository.costs(1, 2)
    write_history(own_bench, [1.0] * 6)
    result = cli("bench", *words)
    assert result.code == 2
    assert message in result.err
    assert result.err.count("\n") <= 4
    assert "Traceback" not in result.err


def test_lasting_changes_have_their_size_commits_and_a_command_that_works(own_bench: Bench, cli: Cli) -> None:
    slower = [replace(each, result=replace(each.result, cpu_time=each.result.wall_time)) for each in history(STEP)]
    other = [replace(each, method="m.C.g", execution_id=f"g{each.execution_id}") for each in history([1.0] * 40)]
    back = [
        replace(each, method="m.C.h", execution_id=f"h{each.execution_id}") for each in history([*STEP, *STEP[:20]])
    ]
    short = [replace(each, method="m.C.k", execution_id=f"k{each.execution_id}") for each in history([1.0] * 3)]
    write_executions(own_bench, [*slower, *other, *back, *short])
    result = cli("bench", "history", "--changes")
    lines = result.out.splitlines()
    assert result.code == 0
    assert lines[0] == "worse m.C.f: wall_time +20.0%, cpu_time +20.0%"
    assert f"{19:x}".ljust(12, "0") + ".." + f"{20:x}".ljust(12, "0") in lines[1]
    assert lines[-1] == "1 lasting change; 4 histories looked at; 1 history too short"  # what came back does not last
    assert cli(*shlex.split(lines[2])[1:]).code == 1
    assert "0 lasting changes" in cli("bench", "history", "--changes", "--since", "30d").out
    assert "1 lasting change;" in cli("bench", "history", "--changes", "--since", "2001-01-01").out
    assert json.loads(cli("bench", "history", "--changes", "--json").out)["changes"][0]["method"] == "m.C.f"
    assert cli("bench", "history", "wall_time", "--since", "30d").code == 2


def test_a_baseline_is_set_listed_compared_with_and_removed(own_bench: Bench, cli: Cli) -> None:
    write_executions(own_bench, [replace(each, label="old") for each in history(STEP[:20])])
    assert cli("bench", "baseline").out.startswith("there is no baseline")
    assert cli("bench", "baseline", "set", "main", "old").out == "main is 20 executions of old\n"
    assert cli("bench", "baseline").out.splitlines()[2].split()[:4] == ["main", "old", "-", "20"]
    newer = [
        replace(each, label="new", execution_id=f"n{each.execution_id}") for each in history(STEP, commit="c" * 40)[20:]
    ]
    write_executions(own_bench, newer)
    result = cli("bench", "compare", "--baseline", "main", "--only", "wall_time")
    assert result.code == 1
    assert "+20.0%" in result.out
    assert "did you mean 'main'?" in cli("bench", "compare", "--baseline", "mian").err
    assert cli("bench", "baseline", "remove", "main").code == 0
    assert json.loads(cli("bench", "baseline", "--json").out) == {}


def test_a_gate_below_the_selftest_is_refused(own_bench: Bench, cli: Cli) -> None:
    result = cli("bench", "selftest", "--command", "nothing=true", "--trials", "6", "--json", *QUIET)
    found = json.loads(result.out)
    assert (found["method"], found["trials"]) == ("nothing", 6)
    assert found["kept"] == (result.code in (0, 3))
    if found["kept"]:  # a busy machine may raise a false alarm
        refused = cli("bench", "compare", "--baseline", "x", "--command", "nothing=true", "--min-effect", "0", "--only", "wall_time")  # fmt: skip
        assert refused.code == 2
        assert "--min-effect 0 is too small: 30 trials on each side show no wall_time effect below" in refused.err
        assert (
            "no baseline" in cli("bench", "compare", "--baseline", "x", "--min-effect", "0").err
        )  # of another benchmark


def test_a_selftest_of_what_does_not_run_measured_nothing(own_bench: Bench, cli: Cli) -> None:
    result = cli("bench", "selftest", "--command", "broken=false", "--trials", "1", *QUIET)
    assert (result.code, result.out.splitlines()[-1]) == (3, "nothing is kept of it: nothing was measured")


def test_a_suite_that_skips_is_neither_good_nor_bad(own_bench: Bench, cli: Cli) -> None:
    (own_bench.folder / "suite").mkdir()
    (own_bench.folder / "suite" / "a.py").write_text(
        "class A:\n    params = [1, 2]\n    def setup(self, n):\n        if n == 2: raise NotImplementedError('not two')\n"
        "    def track_n(self, n): return n\n"
    )
    result = cli("bench", "run", "suite", *QUIET)
    assert result.code == 0
    assert "skipped a.A.track_n(2): not two" in result.out
    assert cli("bench", "run", "suite::a.A.track_n(2)", *QUIET).code == 3
    assert "1 skipped" in cli("bench", "table", "-m", "track_n").err or "skipped" in cli("bench", "table").err
