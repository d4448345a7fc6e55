"""`assay sum --tensorboard` and `assay plot`; the tables themselves are tested in test_summary."""

from __future__ import annotations

import json
import sys

import pytest
from tests.finished_study import GOOD, Bench

from assay.follow.locations import StudyLocation
from assay.reading.commands import tables
from assay.reading.summary import SummaryOptions


def test_tensorboard_gets_the_chosen_runs(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in: the library takes two seconds to import. `docs/how-to/summarise-and-plot.md` has the real one."""

    def write(_index: object, locations: list[StudyLocation], folder: str, options: SummaryOptions) -> int:
        assert options.where is not None
        assert ([each.name for each in locations], folder, options.where.text) == (["fit"], "a board", "n == 7")
        return 2

    monkeypatch.setattr(tables, "require_function", lambda *_words: write)
    result = cli("sum", "fit", "--tensorboard", "a board", "--where", "n == 7")
    assert (result.code, result.out) == (0, "2 runs written; show them: tensorboard --logdir 'a board'\n")


EPOCHS = r"""
study: epochs
command: for i in 1 2; do echo "epoch $i acc 0.$i"; done
metrics: {epoch: 'epoch (\d+)', acc: 'acc ({number})'}
resources: {gpus: 0}
"""


@pytest.mark.needs(plots=True)
def test_epochs_are_called_epochs_where_nothing_else_counts(cli, own_bench: Bench) -> None:
    own_bench.run(EPOCHS)
    assert cli("sum", "epochs").out.split()[:3] == ["run", "acc", "epoch"]
    assert json.loads(cli("sum", "epochs", "--json").out)[0]["epoch"] == 2
    assert "epoch" in cli("ls", "epochs").out.split()
    assert "epoch\n" in cli("plot", "epochs").out
    own_bench.run(EPOCHS.replace("study: epochs", "study: steps").replace("{epoch:", "{step:"))
    assert cli("sum", "steps").out.split()[:3] == ["run", "acc", "step"]


@pytest.mark.parametrize(
    ("call", "name"), [("epoch=1", "epoch"), ("step=1", "step"), ("step=1, epoch=1", "epoch step")]
)
def test_epochs_that_a_script_logs_are_called_so(cli, own_bench: Bench, call: str, name: str) -> None:
    own_bench.run(
        f"study: s\ncommand: {sys.executable} -c 'import assay; assay.log(acc=1, {call})'\nresources: {{gpus: 0}}\n"
    )
    head = cli("sum", "s").out.splitlines()[0].split()
    assert head[: 2 + len(name.split())] == ["run", "acc", *name.split()]


# ---------------------------------------------------------------- which runs


def list_names(cli, *arguments: str) -> list[str]:
    result = cli("sum", *arguments, "--json")
    assert result.code == 0, result.err
    return sorted(row["run"] for row in json.loads(result.out))


def test_a_table_of_some_runs(cli) -> None:
    assert list_names(cli, "fit", "--where", "lr < 0.3") == ["lr=0.1,n=7", "lr=0.1,n=8"]
    assert list_names(cli, "fit", "--where", "test.acc > 0.75 and state == done") == ["lr=0.1,n=8"]
    assert list_names(cli, "fit", "--where", "not state == done", "--state", "failed") == ["lr=0.5,n=7", "lr=0.5,n=8"]
    assert list_names(cli, "fit/lr=0.5*") == ["lr=0.5,n=7", "lr=0.5,n=8"]
    assert list_names(cli, "fit/*n=7", "--where", "lr<0.3") == ["lr=0.1,n=7"]
    assert list_names(cli, GOOD) == [GOOD]


@pytest.mark.needs(plots=True)
@pytest.mark.parametrize("arguments", [("sum", "fit/x*"), ("plot", "fit/x*"), ("sum", "fit/x*", "--where", "lr<3")])
def test_a_pattern_that_fits_no_run(cli, arguments: tuple[str, ...]) -> None:
    result = cli(*arguments)
    assert (result.code, result.out) == (2, "")
    assert "no run named 'fit/x*'" in result.err


@pytest.mark.needs(plots=True)
def test_a_plot_of_some_runs(cli) -> None:
    result = cli("plot", "fit", "-m", "loss", "--where", "lr < 0.3 and n == 7").ended(0)
    assert result.out == cli("plot", f"fit/{GOOD}", "-m", "loss").out
    assert "n=8" in cli("plot", "fit/lr=0.1*", "-m", "loss").out


def test_what_no_other_run_beats(cli, bench: Bench) -> None:
    result = cli("sum", "fit", "--pareto", "loss, test.acc", "--json")
    assert [row["run"] for row in json.loads(result.out)] == ["lr=0.1,n=7", "lr=0.1,n=8"]
    assert result.err == "(the Pareto front: 2 of 2 runs; not compared: 2 not done)\n"
    named = cli("sum", "fit", "--pareto", "n:max,loss:max", "--state", "failed", "--json")
    assert [row["run"] for row in json.loads(named.out)] == ["lr=0.5,n=8"]
    grouped = cli("sum", "fit", "--pareto", "loss,time", "-g", "n", "--json")
    assert [row["lr"] for row in json.loads(grouped.out)] == [0.1]
    assert grouped.err == "(the Pareto front: 1 of 1 group; not compared: 1 without a number for each)\n"


@pytest.mark.parametrize(
    ("names", "message"),
    [("loss", "as in --pareto loss,time"), ("los,time", "did you mean 'loss'?"), ("loss:best,time", "loss:min")],
)
def test_what_cannot_be_weighed(cli, names: str, message: str) -> None:
    result = cli("sum", "fit", "--pareto", names)
    assert (result.code, result.out) == (2, "")
    assert message in result.err


@pytest.mark.needs(plots=True)
def test_curves_as_json(cli) -> None:
    (facts,) = json.loads(cli("plot", "fit", "-m", "loss", "--json").out)
    assert (facts["metric"], facts["x"], len(facts["lines"])) == ("loss", "step", 4)
    first = {"run": f"fit/{GOOD}", "points": 3, "is_thinned": False, "x": [1, 2, 3], "value": [3.7, 2.7, 1.7]}
    assert facts["lines"][0] == first
    ((line, *_),) = (each["lines"] for each in json.loads(cli("plot", "fit", "-m", "loss", "--json", "--points=2").out))
    assert (line["points"], line["is_thinned"], line["x"]) == (3, True, [1, 3])
    ((group, *_),) = (each["lines"] for each in json.loads(cli("plot", "fit", "--json", "-g", "n", "--points=2").out))
    assert (group["group"], group["value"]) == ("lr=0.1", [3.75, 1.75])


@pytest.mark.needs(plots=True)
@pytest.mark.parametrize(
    ("words", "printed"),
    [
        (("--points", "10000000"), "10000000 is not in the range 2<=x<=100000"),
        (("--points", "-3"), "-3 is not in the range"),
        (("-o", "a.svg"), "leave out --json, or -o"),
        (("--history",), "leave out --json, or --history"),
        (("-m", "lss"), "did you mean 'loss'?"),
    ],
)
def test_curves_that_cannot_be_json(cli, words: tuple[str, ...], printed: str) -> None:
    result = cli("plot", "fit", "--json", *words)
    assert (result.code, result.out) == (2, "")
    assert printed in result.err


# ---------------------------------------------------------------- --fields and --limit


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("ls", "--fields", "study,counts.failed"), [{"study": "fit", "counts.failed": 2}]),
        (("ls", f"fit/{GOOD}", "--fields=name,metrics.test.acc"), [{"name": GOOD, "metrics.test.acc": 0.7}]),
        (("ls", "fit/lr=0.5,n=8", "--fields", "metrics.loss"), [{"metrics.loss": 1.8}]),
        (("sum", f"fit/{GOOD}", "--json", "--fields", "run", "--fields", "loss"), [{"run": GOOD, "loss": 1.7}]),
        (("show", f"fit/{GOOD}", "--fields", "state,params.lr"), {"state": "done", "params.lr": 0.1}),
        (("best", "fit", "--fields", "best.run"), {"best.run": "fit/lr=0.1,n=8"}),
    ],
)
def test_only_the_fields_that_were_asked_for(cli, words: tuple[str, ...], shown: object) -> None:
    result = cli(*words)
    assert result.code == 0, result.err
    assert json.loads(result.out) == shown


def test_a_field_that_only_some_rows_have_is_null_in_the_others(cli) -> None:
    rows = json.loads(cli("ls", "fit", "--fields", "metrics.test.acc").out)
    assert sorted(row["metrics.test.acc"] or 0 for row in rows) == [0, 0, 0.7, 0.8]
    assert json.loads(cli("ls", "fit", "--where", "lr > 3", "--fields", "name").out) == []


@pytest.mark.parametrize(
    "words", [("ls", "fit"), ("ls",), ("sum", "fit"), ("best", "fit"), ("show", f"fit/{GOOD}")], ids=" ".join
)
def test_an_unknown_field_is_refused(cli, words: tuple[str, ...]) -> None:
    result = cli(*words, "--fields", "sttudy")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("assay: no field named 'sttudy'")
    if words == ("ls", "fit"):
        assert "did you mean 'metrics.loss'" in cli(*words, "--fields", "metric.loss").err


def test_only_the_first_rows_are_listed(cli) -> None:
    result = cli("ls", "fit", "--limit", "1", "--fields", "name")
    assert json.loads(result.out) == [{"name": "lr=0.1,n=7"}]
    assert result.err == "(3 more rows: leave out -n)\n"
    assert cli("ls", "--limit", "1").err == ""
    table = cli("sum", "fit", "-n", "1")
    assert (len(table.out.splitlines()), table.err) == (3, "(3 more rows: leave out -n)\n")
    assert "more row" not in cli("sum", "fit").err
    for command in (("ls", "fit"), ("sum", "fit")):
        cli(*command, "--limit", "-3").ended(2, "-3 is not in the range x>=1")
