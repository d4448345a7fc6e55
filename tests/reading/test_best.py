"""`assay best`: which run wins, by how much, and what is printed about it."""

from __future__ import annotations

import json
import math
import shlex
from pathlib import Path
from typing import Any

import pytest
from tests.finished_study import GOOD, Bench
from tests.pages import run_page
from tests.reading.test_ranking import column

import assay
from assay.errors import NotFoundError, UsageError
from assay.follow.locations import StudyLocation
from assay.reading.best import BestChoice, build_document, choose_best, describe_best
from assay.record.index.base import IndexTable, RunRow
from assay.record.search_file import SearchFile, write_search
from assay.show.terminal_report import render_terminal
from assay.values.state import State
from assay.values.study import Objective


def table(values: list[float | None], params: list[dict[str, Any]] | None = None, states: str = "") -> IndexTable:
    """Runs named 0, 1, …; a letter of `states` for each: d(one), f(ailed), r(unning)."""
    known = {"d": State.DONE, "f": State.FAILED, "r": State.RUNNING}
    marks = states or "d" * len(values)
    rows = [
        RunRow(f"s/{i}", "s", str(i), "", known[marks[i]], 1, params[i] if params else {"lr": i + 1})
        for i in range(len(values))
    ]
    return IndexTable(rows, {"loss": column("loss", values)})


def choose(data: IndexTable, asked: str | None = None, *group_by: str) -> BestChoice:
    found = choose_best(data, range(len(data.rows)), asked, group_by)
    assert found is not None
    return found


def facts(data: IndexTable, asked: str | None = None, *group_by: str) -> dict[str, Any]:
    choice = choose(data, asked, *group_by)
    run = describe_best(data, range(len(data.rows)), choice.best.run, [StudyLocation("/nowhere", "s")])
    found: dict[str, Any] = build_document(choice, run, data).facts
    return found


@pytest.mark.parametrize(("cause", "winner"), [("final", "s/1"), ("", "s/2")])
def test_a_run_that_a_rule_ended_counts_where_its_result_is_final(cause: str, winner: str) -> None:
    data = table([0.4, 0.1, 0.2])
    data.rows[1] = data.rows[1]._replace(state=State.PRUNED, cause=cause)
    assert facts(data)["best"]["run"] == winner


def test_the_best_run_and_its_margin() -> None:
    found = facts(table([0.4, 0.1, 0.2, None]))
    assert (found["best"]["run"], found["best"]["value"], found["next"]["run"]) == ("s/1", 0.1, "s/2")
    assert (found["margin"], found["relative_margin"]) == pytest.approx((0.1, 0.5))
    assert found["counted"] == 3
    assert facts(table([0.4, 0.1, 0.2]), "loss:max")["best"]["run"] == "s/0"
    alone = facts(table([0.4]))
    assert (alone["margin"], alone["relative_margin"], alone["next"]) == (None, None, None)
    assert facts(table([-1.0, 0.0]))["relative_margin"] is None


@pytest.mark.parametrize(("values", "message"), [((0.0, 0.2), "100%"), ((-1.0, 0.1), "1100%"), ((0.1, 0.1042), "4%")])
def test_percentages_are_written_out(values: tuple[float, float], message: str) -> None:
    data = table([*values])
    choice = choose(data)
    run = describe_best(data, range(2), choice.best.run, [StudyLocation("/nowhere", "s")])
    assert f"({message})" in render_terminal(build_document(choice, run, data))


def test_a_change_that_is_suggested_is_not_there_as_another_kind_of_number(cli, own_bench: Bench) -> None:
    own_bench.run(
        "study: odd\ncommand: echo loss={start}\nparams: {start: [1, 2.0]}\nmetrics: {loss: 'loss=({number})'}\n"
        "resources: {gpus: 0}\n"
    )
    assert "assay rerun odd/start=1 start=3" in cli("best", "odd").out


def test_the_winner_of_a_search_is_the_one_that_the_search_judged_best(cli, own_bench: Bench) -> None:
    """By `at: last` a run that was good for a while does not win; a metric that is asked for goes by its best value."""
    own_bench.run(
        "study: late\ncommand: printf 'loss %s\\n' {a} {b}\nsweep: [{a: 0.1, b: 0.9}, {a: 0.4, b: 0.3}]\n"
        "metrics: {loss: 'loss ({number})'}\nresources: {gpus: 0}\n"
    )
    write_search(str(own_bench.root / "late"), SearchFile("random", (Objective("loss", "min"),), 0, "last", (), {}))
    assert "(lowest last value)" in cli("best", "late").out
    found = json.loads(cli("best", "late", "--json").out)
    assert (found["best"]["value"], found["next"]["value"], found["margin"]) == (0.3, 0.9, pytest.approx(0.6))
    assert [row["loss"] for row in json.loads(cli("sum", "late", "--json").out)] == [0.3, 0.9]
    assert json.loads(cli("best", "late", "-m", "loss", "--json").out)["best"]["value"] == 0.1


def test_what_is_not_done_does_not_win_and_is_named() -> None:
    found = facts(table([0.4, 0.1, 0.3, 0.2], states="dfdr"))
    assert found["best"]["run"] == "s/2"
    assert [(each["run"], each["state"]) for each in found["uncounted"]] == [("s/1", "failed"), ("s/3", "running")]
    assert facts(table([0.4, 0.5], states="df"))["uncounted"] == []


def test_values_that_are_not_finite_do_not_count() -> None:
    choice = choose(table([math.nan, 0.3, -math.inf]))
    assert (choice.best.name, choice.without) == ("1", 2)
    assert choose_best(table([math.nan]), [0]) is None
    assert choose_best(table([0.1], states="f"), [0]) is None


def test_ties_are_said() -> None:
    found = facts(table([0.1, 0.2, 0.1, 0.1]))
    assert (found["best"]["run"], found["tied"], found["margin"]) == ("s/0", ["2", "3"], 0.0)


SEEDS = [{"lr": lr, "seed": seed} for lr in (1, 2) for seed in (0, 1, 2)]


def test_groups_go_by_their_mean_and_the_standard_error_is_that_of_two_samples() -> None:
    found = facts(table([1.0, 2.0, 3.0, 1.9, 2.0, 2.4], SEEDS), None, "seed")
    best, following = found["groups"]["best"], found["groups"]["next"]
    assert (best["params"], best["mean"], best["n"]) == ({"lr": 1}, 2.0, 3)
    assert (best["sd"], following["mean"]) == pytest.approx((1.0, 2.1))
    assert found["standard_error"] == pytest.approx(math.sqrt(1.0 / 3 + following["sd"] ** 2 / 3))
    assert found["within_spread"] is True
    assert found["best"]["run"] == "s/0"
    assert facts(table([1.0, 1.1, 0.9, 5.0, 5.1, 4.9], SEEDS), None, "seed")["within_spread"] is False


def test_a_group_of_one_run_has_no_spread() -> None:
    data = table([1.0, 2.0, 2.5], [{"lr": 1, "seed": 0}, {"lr": 2, "seed": 0}, {"lr": 2, "seed": 1}])
    choice = choose(data, None, "seed")
    run = describe_best(data, range(3), choice.best.run, [StudyLocation("/nowhere", "s")])
    assert "1 of 2 groups has one run only" in render_terminal(build_document(choice, run, data))
    found = facts(table([1.0, 2.0], [{"lr": 1, "seed": 0}, {"lr": 2, "seed": 0}]), None, "seed")
    assert (found["standard_error"], found["within_spread"]) == (None, None)


def test_what_is_not_known_is_refused() -> None:
    with pytest.raises(NotFoundError, match="no metric named 'los'"):
        choose(table([0.1]), "los")
    with pytest.raises(NotFoundError, match="no metric named 'lr'"):
        choose(table([0.1]), "lr")
    with pytest.raises(NotFoundError, match="no parameter named 'sed'"):
        choose(table([0.1]), None, "sed")
    with pytest.raises(UsageError, match="no run has a metric"):
        choose_best(IndexTable([], {}), [])


# ---------------------------------------------------------------- the command


def test_the_report(cli, bench: Bench) -> None:
    result = cli("best", "fit", "-m", "loss").ended(0)
    assert result.out.startswith("fit: best of 2 runs by loss (lowest)\n\nrun ")
    assert f"run     {GOOD}\nloss    1.7 at step 3\nnext    lr=0.1,n=8: 1.8\nmargin  0.1 (5.6%)\n" in result.out
    assert "train" in result.out
    assert cli("best", "-m", "loss").out == result.out


def test_its_commands_can_be_pasted(cli, own_bench: Bench) -> None:
    own_bench.add_finished()
    hints = [shlex.split(hint)[1:] for hint in json.loads(cli("best", "fit", "-m", "loss", "--json").out)["hints"]]
    assert [words[0] for words in hints] == ["rerun", "show", "logs"]
    for words in hints[1:]:
        assert cli(*words).code == 0
    assert own_bench.assay(*hints[0], "--quiet").returncode == 0
    runs = assay.runs("fit")
    assert len(runs) == 5
    assert {**runs[GOOD].params, "lr": 0.2} in [run.params for run in runs]


def test_as_markdown(cli, bench: Bench) -> None:
    out = cli("best", "fit", "-m", "loss", "--md", "-").out
    assert out.startswith("## fit: best of 2 runs by loss (lowest)\n")
    assert "assay show" in out
    assert cli("best", "fit", "--md", "-", "--json").code == 2


@pytest.mark.needs(compat=True)
def test_runs_of_runx_can_be_the_best(cli, own_bench: Bench) -> None:
    for name, loss in (("a", 0.5), ("b", 0.4)):
        folder = own_bench.root / "old" / name
        folder.mkdir(parents=True)
        (folder / "hparams.json").write_text('{"lr": 0.1}')
        (folder / "metrics.csv").write_text(f"val,loss,{loss},epoch,1,timestamp,5\n")
    found = json.loads(cli("best", "old", "--json").out)
    assert (found["best"]["run"], found["hints"]) == ("old/b", [])


def test_several_metrics_give_the_pareto_set(cli, bench: Bench) -> None:
    result = cli("best", "fit", "-m", "loss", "-m", "test.acc")
    assert result.out.startswith("fit: 2 of 2 runs in the Pareto set by loss (lowest), test.acc (highest)\n\nrun ")
    found = json.loads(cli("best", "fit", "-m", "loss", "-m", "test.acc:min", "--json").out)
    assert [each["run"] for each in found["front"]] == [f"fit/{GOOD}"]
    assert found["front"][0]["values"] == {"loss": 1.7, "test.acc": 0.7}
    assert cli("best", "fit", "-m", "loss", "-m", "time").code == 0
    assert cli("best", "fit", "-m", "loss", "-m", "test.acc", "-g", "n").code == 2
    assert cli("best", "fit", "-m", "loss", "-m", "test.ac").code == 2
    assert cli("best", "fit", "-m", "loss", "-m", "test.acc", "--where", "state==failed").code == 1


FAILS = "study: bad\ncommand: echo 'loss 0.1'; false\nmetrics: {loss: 'loss ({number})'}\nresources: {gpus: 0}\n"


def test_nothing_that_could_win(cli, own_bench: Bench) -> None:
    assert cli("best", "none").code == 2
    own_bench.run(FAILS)
    result = cli("best", "bad")
    assert (result.code, result.out) == (1, "")
    assert "no run is done yet; see them: assay ls bad" in result.err
    own_bench.run("study: silent\ncommand: echo 'x'\nresources: {gpus: 0}\n", file="silent.yml")
    assert cli("best", "silent").code == 2


@pytest.mark.needs(exchange=True)
def test_the_page_is_as_it_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_CACHE_DIR", str(tmp_path / ".cache"))
    run_page(Path(__file__).parents[2] / "docs" / "how-to" / "find-the-best-run.md", tmp_path)
