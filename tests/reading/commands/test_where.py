"""`--where` and patterns in the commands that list, show and act on runs; tables are in test_tables."""

from __future__ import annotations

import json
import signal

import pytest
from tests.finished_study import BAD, GOOD, LONG, STUDY, Bench, until


def list_names(cli, *arguments: str) -> list[str]:
    result = cli("ls", *arguments, "--json")
    assert result.code == 0, result.err
    return [row["name"] for row in json.loads(result.out)]


# ---------------------------------------------------------------- ls


def test_runs_are_listed_by_expression_pattern_and_order(cli) -> None:
    assert sorted(list_names(cli, "fit", "--where", "lr == 0.1")) == ["lr=0.1,n=7", "lr=0.1,n=8"]
    assert sorted(list_names(cli, "fit", "--where", "exit_code != 0")) == ["lr=0.5,n=7", "lr=0.5,n=8"]
    assert sorted(list_names(cli, "fit/*n=7")) == ["lr=0.1,n=7", "lr=0.5,n=7"]
    ordered = [f"lr={lr},n={n}" for n in (8, 7) for lr in (0.5, 0.1)]
    assert list_names(cli, "fit", "--sort", "n:max", "-s", "lr:max") == ordered
    assert list_names(cli, "fit", "--sort", "loss", "--where", "lr == 0.5") == ["lr=0.5,n=7", "lr=0.5,n=8"]


@pytest.mark.needs(plots=True)
@pytest.mark.parametrize("command", ["ls", "sum", "plot"])
def test_no_run_is_an_answer_of_what_lists_runs(cli, command: str) -> None:
    result = cli(command, "fit", "--where", "lr > 3 and state == done")
    assert (result.code, result.out) == (0, "")
    assert result.err.startswith("0 runs: --where 'lr > 3 and state == done': none of 4 runs matches\n  lr: 0.1, 0.5\n")
    if command != "plot":
        assert json.loads(cli(command, "fit", "--json", "--where", "lr > 3").out) == []


@pytest.mark.parametrize("command", ["show", "logs", "best", pytest.param("report", marks=pytest.mark.needs(web=True))])
def test_no_run_is_an_answer_of_what_only_reads(cli, command: str) -> None:
    result = cli(command, "fit", "--where", "lr > 3")
    assert (result.code, result.out) == (0, "")
    assert result.err == "0 runs: --where 'lr > 3': none of 4 runs matches\n  lr: 0.1, 0.5\n"
    assert cli(command, "fit", "--where", "lrr > 3").code == 2
    if command in ("show", "best"):
        assert cli(command, "fit", "--json", "--where", "lr > 3").out == "null\n"


def test_expressions_that_are_given_again_must_all_hold(cli) -> None:
    given = ("--where", "lr == 0.1 or lr == 0.5", "--where", "lr == 0.1", "--where", "n == 7")
    assert list_names(cli, "fit", *given) == ["lr=0.1,n=7"]


def test_a_printed_command_repeats_the_expression(cli, own_bench: Bench) -> None:
    own_bench.write("two.yml", "study: two\ncommand: 'exit {x}'\nparams: {x: [0, 1, 2, 3]}\nresources: {gpus: 0}\n")
    shown = cli("run", "two.yml", "--where", "x > 0", "--where", "x < 3")
    assert "run two.yml --where '(x > 0) and (x < 3)' --retry failed" in shown.err + shown.out, shown.err


@pytest.mark.parametrize("command", ["rerun", "stop", "tag"])
def test_an_empty_choice_is_refused_with_what_there_is(cli, command: str) -> None:
    result = cli(command, "fit", "--where", "lr > 3 and state == done")
    assert (result.code, result.out) == (2, "")
    assert "none of 4 runs matches\n  lr: 0.1, 0.5\n  state: " in result.err


def test_a_wrong_expression_is_shown_and_needs_a_study(cli) -> None:
    assert "\n  n >\n     ^\n" in cli("ls", "fit", "--where", "lr == 0.1", "--where", "n >").err
    assert "did you mean 'lr'?" in cli("ls", "fit", "--where", "lrr > 3").err
    assert "\n  lr >\n      ^\n" in cli("ls", "fit", "--where", "lr >").err
    assert "name one" in cli("ls", "--where", "lr<1").err


def test_a_planned_run_is_queued_and_has_no_metrics(cli, own_bench: Bench) -> None:
    own_bench.run("study: s\ncommand: echo loss 1\nmetrics: {loss: 'loss ({number})'}\nresources: {gpus: 0}\n")
    (name,) = list_names(cli, "s")
    (own_bench.root / "s" / ".assay" / "plan.json").write_text('{"format": 1, "runs": {"later": "0123456789"}}')
    assert list_names(cli, "s", "--where", "state == queued") == ["later"]
    assert list_names(cli, "s", "--where", "loss < 3", "--sort", "loss") == [name]
    assert list_names(cli, "s", "--sort", "loss") == [name, "later"]


# ---------------------------------------------------------------- show and logs


def test_one_run_is_shown(cli) -> None:
    assert "lr=0.1,n=8" in cli("best", "fit/*n=8", "-m", "loss").out
    assert json.loads(cli("show", "fit", "--where", "lr<0.3 and n==7", "--json").out)["name"] == GOOD
    assert cli("logs", "fit", "--where", "lr<0.3 and n==7").out == "acc=0.7\n"
    assert "names 2 runs\n  choose one of: fit/lr=0.1,n=7, fit/" in cli("logs", "fit", "--where", "lr<0.3").err


TALK = r"""
study: talk
commands:
  train: echo "first {x}"; until [ -e GO ]; do sleep 0.05; done; echo "last {x}"
params: {x: [1, 2, 3]}
resources: {gpus: 0}
"""


def test_chosen_runs_are_followed(own_bench: Bench) -> None:
    go = own_bench.folder / "GO"
    runs = own_bench.start("run", own_bench.write("talk.yml", TALK.replace("GO", str(go))), "-j", "3", "--quiet")
    logs = own_bench.root / "talk"
    until(lambda: len([path for path in logs.glob("x=*/train.log") if path.stat().st_size]) == 3, "all runs write")
    chosen = own_bench.start("logs", "-f", "talk", "--where", "x in (1, 3)")
    named = own_bench.start("logs", "-f", "talk/x=[23]")
    assert chosen.stdout is not None
    assert named.stdout is not None
    begin = [chosen.stdout.readline(), named.stdout.readline()]
    go.touch()
    lines = (begin[0] + chosen.stdout.read()).splitlines()
    assert set(lines) == {f"x={x} | {what} {x}" for x in (1, 3) for what in ("first", "last")}
    assert {line[:3] for line in (begin[1] + named.stdout.read()).splitlines()} == {"x=2", "x=3"}
    for process in (runs, chosen, named):
        process.communicate(timeout=60)
        assert process.returncode == 0


# ---------------------------------------------------------------- run


def list_planned(cli, *arguments: str) -> list[str]:
    result = cli("run", "study.yml", "--dry-run", "--json", *arguments)
    assert result.code == 0, result.err
    return [row["name"] for row in json.loads(result.out)]


def test_planned_runs_are_chosen_by_parameters(cli, own_bench: Bench) -> None:
    own_bench.write("study.yml", STUDY)
    assert list_planned(cli, "--where", "n == 7 and state == queued") == [GOOD, BAD]
    assert list_planned(cli, "--where", "not (n == 7 or lr > 0.3)") == ["lr=0.1,n=8"]
    assert not own_bench.root.exists()
    cli("run", "study.yml", "--where", "n == 9").ended(2, "none of 4 runs matches\n  n: 7, 8\n")
    assert "did you mean 'lr'?" in cli("run", "study.yml", "--where", "lrr == 9").err
    assert not own_bench.root.exists()


def test_some_runs_are_started_and_the_rest_later(cli, own_bench: Bench) -> None:
    own_bench.write("study.yml", STUDY)
    first = cli("run", "study.yml", "-j", "2", "--where", "lr == 0.1 and n == 7")
    assert first.code == 0, first.err
    assert list_names(cli, "fit") == [GOOD]
    # by what they are now: a parameter of the plan, a metric and a state of what has run
    assert list_planned(cli, "--where", "loss > 0") == [GOOD]
    assert list_planned(cli, "--where", "state == queued and n == 7") == [BAD]
    second = cli("run", "study.yml", "-j", "2", "--quiet", "--where", "lr == 0.5").ended(1)
    assert "assay run study.yml -j 2 --where 'lr == 0.5' --retry failed" in second.err
    assert sorted(list_names(cli, "fit")) == [GOOD, BAD, "lr=0.5,n=8"]
    third = cli("run", "study.yml", "-j", "2", "--quiet", "--where", "state == failed and n == 7", "--retry", "failed")
    assert third.code == 1
    assert attempts(cli) == {GOOD: 1, BAD: 2, "lr=0.5,n=8": 1}
    assert cli("run", "study.yml", "-j", "2", "--quiet", "--where", f"name == '{GOOD}'", "--force").code == 0
    assert attempts(cli) == {GOOD: 2, BAD: 2, "lr=0.5,n=8": 1}
    cli("run", "study.yml", "-j", "2", "--quiet")
    assert len(list_names(cli, "fit")) == 4
    assert attempts(cli) == {GOOD: 2, BAD: 2, "lr=0.1,n=8": 1, "lr=0.5,n=8": 1}


def test_overridden_runs_are_chosen_like_the_others(cli, own_bench: Bench) -> None:
    own_bench.write("study.yml", STUDY)
    result = cli("run", "study.yml", "lr=0.1,0.2", "-j", "2", "--quiet", "--where", "lr > 0.15 and n == 7")
    assert result.code == 0, result.err
    assert [row["params"]["lr"] for row in json.loads(cli("ls", "fit", "--json").out)] == [0.2]


def attempts(cli) -> dict[str, int]:
    return {row["name"]: row["attempt"] for row in json.loads(cli("ls", "fit", "--json").out)}


@pytest.mark.needs(compat=True)
def test_runs_of_a_runx_file(cli, own_bench: Bench) -> None:
    own_bench.write(".runx", "LOGROOT: runs\nFARM: null\n")
    own_bench.write("sweep.yml", "CMD: 'echo {lr}'\nHPARAMS:\n  lr: [1, 2, 3]\n  logdir: LOGDIR\n")
    result = cli("run", "sweep.yml", "-j", "2", "--quiet", "--where", "lr < 3")
    assert result.code == 0, result.err
    assert len(list_names(cli, "sweep")) == 2
    assert cli("run", "sweep.yml", "-j", "2", "--quiet").code == 0
    assert sorted(row["params"]["lr"] for row in json.loads(cli("ls", "sweep", "--json").out)) == [1, 2, 3]


# ---------------------------------------------------------------- rerun and stop


def test_chosen_runs_are_repeated(cli, own_fit: Bench) -> None:
    assert cli("rerun", "fit", "--quiet", "--where", "state == done and n == 7").code == 0
    assert {name: number for name, number in attempts(cli).items() if number > 1} == {GOOD: 2}


def test_chosen_runs_are_stopped_and_their_supervisor_goes_on(cli, own_bench: Bench) -> None:
    supervisor = own_bench.start("run", own_bench.write("long.yml", LONG), "-j", "2", "--quiet")
    runs = own_bench.root / "long"
    try:
        until(lambda: runs.is_dir() and len(list(runs.glob("x=*/*.log"))) == 4, "two runs have begun")
        result = cli("stop", "long", "--where", "x == 1 and state == running")
        assert result.code == 0, result.err
        assert result.out.startswith("long/x=1: stopped after 0:0")
        assert "long/x=2" not in result.out
        until(lambda: (runs / "x=3" / "lease.1").exists() or list(runs.glob("x=3/*.log")), "the waiting run has begun")
        assert supervisor.poll() is None
    finally:
        supervisor.send_signal(signal.SIGINT)
        supervisor.communicate(timeout=60)


def test_varied_runs_are_found_by_their_parent(cli, own_fit: Bench) -> None:
    assert cli("rerun", f"fit/{GOOD}", "n=9", "--quiet").code == 0
    (name,) = list_names(cli, "fit", "--where", f"parent == 'fit/{GOOD}'")
    assert name not in (GOOD, BAD)
