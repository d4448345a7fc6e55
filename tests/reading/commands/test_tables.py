"""`assay sum --tensorboard` and `assay plot`; the tables themselves are tested in test_summary."""

from __future__ import annotations

import json
import sys

import pytest
from tests.finished_study import GOOD, Bench


@pytest.mark.needs(exchange=True)
def test_a_study_for_tensorboard(cli, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRC32C_SW_MODE", "auto")  # tensorboardX sets it on import
    result = cli("sum", "fit", "--tensorboard", "board")
    assert (result.code, result.out) == (0, "4 runs written; show them: tensorboard --logdir board\n")
    assert list((bench.folder / "board" / GOOD).iterdir())


def test_rows_that_were_left_out_are_counted(cli, bench: Bench) -> None:
    result = cli("sum", "fit", "-n", "1")
    assert len(result.out.splitlines()) == 3
    assert result.err.endswith("(3 more rows: leave out -n)\n")
    assert "more row" not in cli("sum", "fit").err


def test_steps_are_integers_in_json(cli, bench: Bench) -> None:
    steps = [row["step"] for row in json.loads(cli("sum", "fit", "--json").out)]
    assert steps == [3, 3, 3, 3]
    assert {type(step) for step in steps} == {int}


EPOCHS = r"""
study: epochs
command: for i in 1 2; do echo "epoch $i acc 0.$i"; done
metrics: {epoch: 'epoch (\d+)', acc: 'acc ({number})'}
resources: {gpus: 0}
"""


def test_epochs_are_called_epochs_where_nothing_else_counts(cli, own_bench: Bench) -> None:
    own_bench.run(EPOCHS)
    assert cli("sum", "epochs").out.split()[:3] == ["run", "acc", "epoch"]
    assert json.loads(cli("sum", "epochs", "--json").out)[0]["epoch"] == 2
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


# ---------------------------------------------------------------- plot


def test_the_most_telling_line_is_drawn_and_named(cli) -> None:
    result = cli("plot", "fit")
    assert result.code == 0
    assert result.out.startswith("fit: loss\n")
    assert "loss (others: test.acc; choose with -m)" in result.err
    assert "lr=0.1 n=7  1.7" in result.out


def test_lists_of_names_may_be_given_again(cli) -> None:
    def load_columns(*words: str) -> set[str]:
        return set(json.loads(cli("sum", "fit", *words, "--json").out)[0])

    both = load_columns("-m", "loss,test.acc")
    assert {"loss", "test.acc"} <= both == load_columns("-m", "loss", "-m", "test.acc")
    assert load_columns("-m", "loss,test.acc", "--ignore", "n", "--ignore", "lr") == both - {"n", "lr"}
    front = [
        cli("sum", "fit", *words).out for words in (["--pareto", "loss,time"], ["--pareto", "loss", "--pareto", "time"])
    ]
    assert front[0] == front[1] != ""
    plots = [cli("plot", "fit", *words).out for words in (["-m", "loss,test.acc"], ["-m", "loss", "-m", "test.acc"])]
    assert plots[0] == plots[1] != ""


def test_a_metric_a_run_and_a_size(cli) -> None:
    out = cli("plot", f"fit/{GOOD}", "-m", "loss", "--width", "50", "--height", "8").out
    assert max(map(len, out.splitlines())) <= 50
    assert "lr=0.5" not in out


def test_groups_and_the_best(cli) -> None:
    out = cli("plot", "fit", "-m", "loss", "-g", "n").out
    assert "lr=0.1  1.75 ± 0.071 (n=2 runs)" in out
    result = cli("plot", "fit", "-m", "loss", "--best", "1")
    assert "the 1 best of 4" in result.err
    assert "n=8" not in result.out


def test_groups_are_those_of_the_table(cli) -> None:
    """Failed runs count in neither, and the numbers are the same."""
    result = cli("plot", "fit", "-m", "loss", "-g", "n")
    assert "lr=0.5  " not in result.out
    assert "lr=0.5: not drawn, since none of its runs is done and has loss" in result.err
    mixed = cli("plot", "fit", "-m", "loss", "-g", "lr")
    assert "n=7  1.7 (n=1 run, 1 not done)" in mixed.out
    table = json.loads(cli("sum", "fit", "-g", "lr", "-m", "loss", "-s", "loss", "--json").out)
    assert [(row["n"], row["n_2"], row["loss"], row["loss_sd"], row["not_done"]) for row in table] == [
        (7, 1, 1.7, None, 1),
        (8, 1, 1.8, None, 1),
    ]


def test_groups_without_a_run_that_is_done(cli) -> None:
    result = cli("plot", "fit/lr=0.5*", "-m", "loss", "-g", "n")
    assert (result.code, "no finished run has loss" in result.err) == (2, True)


def test_files(cli, bench: Bench) -> None:
    result = cli("plot", "fit", "-m", "loss", "-m", "test.acc", "-o", "p.svg")
    assert result.out.splitlines() == ["p-loss.svg", "p-test.acc.svg"]
    assert (bench.folder / "p-loss.svg").read_text().startswith("<?xml")
    assert cli("plot", "fit", "-m", "loss", "--log", "-o", "p.png", "--width", "3", "--height", "2").out == "p.png\n"
    assert (bench.folder / "p.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fit", "-m", "lass"), "did you mean 'loss'?"),
        (("fit", "-g", "N"), "no parameter named 'N'"),
        (("fitt",), "did you mean 'fit'?"),
        (("fit", "-o", "p.txt"), "end the name in png"),
        (("fit", "-o", "p.png", "--width", "800"), "inches"),
        (("fit", "--best", "0"), "--best"),
        (("fit", "--scatter", "lrr"), "did you mean 'lr'?"),
        (("fit", "--scatter", "lr", "--color", "nn"), "no parameter named 'nn'"),
        (("fit", "--scatter", "lr", "--history"), "choose one of --scatter and --history"),
        (("fit", "--history", "-m", "lass"), "did you mean 'loss'?"),
        (("fit", "--history", "-x", "time"), "-x has no meaning for --history"),
        (("fit", "--slices", "--smooth", "0.5"), "--smooth has no meaning for --slices"),
        (("fit", "--color", "lr"), "it is for --scatter and --slices"),
        (("fit", "--params", "lr"), "--params has no meaning for a plot of curves"),
        (("fit", "--parallel"), "add -o parallel.svg"),
        (("fit", "--smooth", "1"), "--smooth"),
        (("fit", "--importance", "--log"), "--log has no meaning for --importance"),
        (("fit", "--importance", "--params", "lr"), "--params has no meaning for --importance"),
        (("fit", "--importance", "-m", "loss"), "importance needs 4 finished runs with loss, and there are 2"),
        (("fit", "--importance", "-m", "lass"), "did you mean 'loss'?"),
        (("fit", "-x", "miles"), "miles"),
        (("fit", "-m", "loss", "-x", "epoch"), "loss has no epochs in these runs"),
        (("fit", "-m", "loss", "-x", "time"), "loss has no times in these runs"),
        (("fit", "-o", "missing/p.html"), "missing/p.html"),
        (("fit", "-o", "p.html", "--width", "8"), "--width"),
    ],
)
def test_what_is_refused(cli, arguments: tuple[str, ...], message: str) -> None:
    result = cli("plot", *arguments)
    assert result.code == 2
    assert message in result.err


COUNTED = f"""
study: counted
command: {sys.executable} count.py
params: {{lr: [0.1, 0.01], seed: [1, 2]}}
resources: {{gpus: 0}}
"""
COUNTING = """
import assay
for i in range(6):
    assay.log(loss=6 - i, step=10 * i, epoch=i // 3)
assay.log({"val/acc": 0.5}, epoch=1)
assay.log({"val/acc": 0.6}, epoch=2)
"""


def test_over_steps_epochs_and_time(cli, own_bench: Bench) -> None:
    own_bench.write("count.py", COUNTING)
    own_bench.run(COUNTED)
    steps = cli("plot", "counted", "-m", "loss", "-x", "step").out
    assert (steps.count("50"), "step\n" in steps) == (1, True)
    epochs = cli("plot", "counted", "-m", "loss", "-x", "epoch").out
    assert ("1.5" in epochs, "50" in epochs, "epoch\n" in epochs) == (True, False, True)
    assert "time since the start of the run (s)\n" in cli("plot", "counted", "-m", "loss", "-x", "time").out
    assert "n=2 runs" in cli("plot", "counted", "-m", "loss", "-x", "time", "-g", "seed").out
    assert "epoch\n" in cli("plot", "counted", "-m", "val/acc", "-x", "epoch").out, "it has no steps at all"
    refused = cli("plot", "counted", "-m", "val/acc", "-x", "step")
    assert (refused.code, "draw it with -x epoch" in refused.err) == (2, True)


def test_a_smoothed_curve_has_its_last_value_in_the_legend(cli, bench: Bench) -> None:
    assert "1.7" in cli("plot", f"fit/{GOOD}", "-m", "loss", "--smooth", "0.9").out
    assert "n=1 run" in cli("plot", "fit", "-m", "loss", "--smooth", "0.9", "-g", "n", "--where", "lr<0.2 and n==7").out


def test_what_the_parameters_did_on_a_terminal(cli, bench: Bench) -> None:
    scatter = cli("plot", "fit", "--scatter", "lr", "-m", "loss").out
    assert ("done  2 runs" in scatter, "failed  2 runs" in scatter) == (True, True)
    chosen = cli("plot", "fit/lr=0.1*", "--scatter", "n", "-m", "loss").out
    assert ("done  2 runs" in chosen, "failed" in chosen) == (True, False)
    history = cli("plot", "fit", "--history", "-m", "loss", "--where", "lr==0.1").out
    assert ("best so far  1.7" in history, "failed" in history) == (True, False)
    slices = cli("plot", "fit", "--slices", "-m", "loss").out
    assert ("loss by lr" in slices, "loss by n" in slices) == (True, True)


FORMS = [("--scatter", "lr"), ("--scatter", "lr", "--color", "n"), ("--slices",), ("--history",), ("--parallel",)]


@pytest.mark.parametrize(
    ("form", "suffix"), [*((form, suffix) for form in FORMS for suffix in ("svg", "html")), (FORMS[0], "pdf")]
)
def test_every_form_in_a_file(cli, bench: Bench, form: tuple[str, ...], suffix: str) -> None:
    result = cli("plot", "fit", *form, "-m", "loss", "-o", f"form.{suffix}")
    assert (result.code, result.out) == (0, f"form.{suffix}\n")
    magic = {"svg": b"<?xml", "pdf": b"%PDF", "html": b"<!doctype html>"}[suffix]
    assert (bench.folder / f"form.{suffix}").read_bytes().startswith(magic)


def test_a_page_holds_every_metric(cli, bench: Bench) -> None:
    assert cli("plot", "fit", "-m", "loss", "-m", "test.acc", "-o", "p.html").out == "p.html\n"
    page = (bench.folder / "p.html").read_text()
    assert (page.count("<svg"), "fit: loss" in page, "fit: test.acc" in page) == (2, True, True)


def test_nothing_to_plot(cli, own_bench: Bench) -> None:
    (own_bench.root / "empty" / ".assay").mkdir(parents=True)
    assert "no runs yet" in cli("plot", "empty").err
    own_bench.run("study: mute\ncommand: 'true'\nresources: {gpus: 0}\n")
    result = cli("plot", "mute")
    assert (result.code, "no metrics in these runs" in result.err) == (2, True)
    assert "assay index reparse " in result.err
    assert result.err.endswith(" --file study.yml\n")


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


@pytest.mark.parametrize("arguments", [("sum", "fit/x*"), ("plot", "fit/x*"), ("sum", "fit/x*", "--where", "lr<3")])
def test_a_pattern_that_fits_no_run(cli, arguments: tuple[str, ...]) -> None:
    result = cli(*arguments)
    assert (result.code, result.out) == (2, "")
    assert "no run named 'fit/x*'" in result.err


def test_a_plot_of_some_runs(cli) -> None:
    result = cli("plot", "fit", "-m", "loss", "--where", "lr < 0.3 and n == 7")
    assert result.code == 0
    assert result.out == cli("plot", f"fit/{GOOD}", "-m", "loss").out
    assert "n=8" in cli("plot", "fit/lr=0.1*", "-m", "loss").out


@pytest.mark.needs(exchange=True)
def test_tensorboard_gets_the_chosen_runs(cli, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRC32C_SW_MODE", "auto")
    result = cli("sum", "fit", "--tensorboard", "board2", "--where", "n == 7 and lr < 0.3")
    assert result.code == 0
    assert [path.name for path in (bench.folder / "board2").iterdir()] == [GOOD]


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


def test_a_table_by_time(cli) -> None:
    seconds = [row["seconds"] for row in json.loads(cli("sum", "fit", "--sort", "time:max", "--json").out)]
    assert seconds == sorted(seconds, reverse=True)


def test_curves_as_json(cli) -> None:
    result = cli("plot", "fit", "-m", "loss", "--json")
    (facts,) = json.loads(result.out)
    assert (facts["metric"], facts["x"], len(facts["lines"])) == ("loss", "step", 4)
    first = {"run": f"fit/{GOOD}", "points": 3, "is_thinned": False, "x": [1, 2, 3], "value": [3.7, 2.7, 1.7]}
    assert facts["lines"][0] == first
    ((line, *_),) = (each["lines"] for each in json.loads(cli("plot", "fit", "-m", "loss", "--json", "--points=2").out))
    assert (line["points"], line["is_thinned"], line["x"]) == (3, True, [1, 3])
    ((group, *_),) = (each["lines"] for each in json.loads(cli("plot", "fit", "--json", "-g", "n", "--points=2").out))
    assert (group["group"], group["value"]) == ("lr=0.1", [3.75, 1.75])


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


@pytest.mark.parametrize(
    "words", [("ls", "fit"), ("ls",), ("sum", "fit"), ("best", "fit"), ("show", f"fit/{GOOD}")], ids=" ".join
)
def test_an_unknown_field_is_refused(cli, words: tuple[str, ...]) -> None:
    result = cli(*words, "--fields", "sttudy")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("assay: no field named 'sttudy'")


def test_a_field_is_suggested(cli) -> None:
    assert "did you mean 'metrics.loss'" in cli("ls", "fit", "--fields", "metric.loss").err
    assert json.loads(cli("ls", "fit", "--where", "lr > 3", "--fields", "name").out) == []


def test_only_the_first_rows_are_listed(cli) -> None:
    result = cli("ls", "fit", "--limit", "1", "--fields", "name")
    assert json.loads(result.out) == [{"name": "lr=0.1,n=7"}]
    assert result.err == "(3 more rows: leave out -n)\n"
    assert cli("ls", "--limit", "1").err == ""
    for command in (("ls", "fit"), ("sum", "fit")):
        refused = cli(*command, "--limit", "-3")
        assert refused.code == 2
        assert "-3 is not in the range x>=1" in refused.err
