"""`assay plot`."""

from __future__ import annotations

import json
import sys

import pytest
from tests.finished_study import GOOD, Bench


def test_the_most_telling_line_is_drawn_and_named(cli) -> None:
    result = cli("plot", "fit").ended(0)
    assert result.out.startswith("fit: loss\n")
    assert "loss (others: test.acc; choose with -m)" in result.err
    assert "lr=0.1 n=7  1.7" in result.out


def test_lists_of_names_may_be_given_again(cli) -> None:
    def load_columns(*words: str) -> set[str]:
        return set(json.loads(cli("sum", "fit", *words, "--json").out)[0])

    both = load_columns("-m", "loss,test.acc")
    assert {"loss", "test.acc"} <= both == load_columns("-m", "loss", "-m", "test.acc")
    assert load_columns("-m", "loss,test.acc", "--ignore", "n", "--ignore", "lr") == both - {"n", "lr"}
    for command, flag, one, other in (("sum", "--pareto", "loss", "time"), ("plot", "-m", "loss", "test.acc")):
        joined = cli(command, "fit", flag, f"{one},{other}").out
        assert joined == cli(command, "fit", flag, one, flag, other).out != ""


def test_a_metric_a_run_and_a_size(cli) -> None:
    out = cli("plot", f"fit/{GOOD}", "-m", "loss", "--width", "50", "--height", "8").out
    assert max(map(len, out.splitlines())) <= 50
    assert "lr=0.5" not in out


def test_groups_are_those_of_the_table(cli) -> None:
    """Failed runs count in neither, and the numbers are the same."""
    result = cli("plot", "fit", "-m", "loss", "-g", "n")
    assert ("lr=0.1  1.75 ± 0.071 (n=2 runs)" in result.out, "lr=0.5  " in result.out) == (True, False)
    assert "lr=0.5: not drawn, since none of its runs is done and has loss" in result.err
    assert "n=7  1.7 (n=1 run, 1 not done)" in cli("plot", "fit", "-m", "loss", "-g", "lr").out
    table = json.loads(cli("sum", "fit", "-g", "lr", "-m", "loss", "-s", "loss", "--json").out)
    rows = [(row["n"], row["n_2"], row["loss"], row["loss_sd"], row["not_done"]) for row in table]
    assert rows == [(7, 1, 1.7, None, 1), (8, 1, 1.8, None, 1)]
    best = cli("plot", "fit", "-m", "loss", "--best", "1")
    assert ("the 1 best of 4" in best.err, "n=8" in best.out) == (True, False)


def test_files(cli, bench: Bench) -> None:
    result = cli("plot", "fit", "-m", "loss", "-m", "test.acc", "-o", "p.svg")
    assert result.out.splitlines() == ["p-loss.svg", "p-test.acc.svg"]
    assert (bench.folder / "p-loss.svg").read_text().startswith("<?xml")
    size = ("--width", "3", "--height", "2")
    assert cli("plot", "fit", "--parallel", "-m", "loss", "-o", "p.png", *size).out == "p.png\n"
    assert (bench.folder / "p.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.needs(search=True)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fit", "-m", "lass"), "did you mean 'loss'?"),
        (("fit", "-g", "N"), "no parameter named 'N'"),
        (("fit/lr=0.5*", "-m", "loss", "-g", "n"), "no finished run has loss"),
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
        (("fit", "-o", "missing/p.html"), "missing/p.html cannot be written: /"),
        (("fit", "-o", "missing/p.png"), "missing/p.png cannot be written: /"),
        (("fit", "-o", "p.html", "--width", "8"), "--width"),
    ],
)
def test_what_is_refused(cli, arguments: tuple[str, ...], message: str) -> None:
    cli("plot", *arguments).ended(2, message)


COUNTED = f"""
study: counted
command: {sys.executable} count.py
params: {{seed: [1, 2]}}
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
    cli("plot", "counted", "-m", "val/acc", "-x", "step").ended(2, "draw it with -x epoch")


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


@pytest.mark.parametrize(
    ("form", "title"),
    [
        (("-m", "test.acc"), "fit: test.acc"),
        (("--scatter", "lr"), "fit: loss by lr"),
        (("--scatter", "lr", "--color", "n"), "n=8"),
        (("--slices",), "fit: loss by each parameter"),
        (("--history",), "fit: loss of each run, in the order of finishing"),
        (("--parallel",), "fit: loss by 2 parameters"),
    ],
)
def test_every_form_in_a_page(cli, bench: Bench, form: tuple[str, ...], title: str) -> None:
    result = cli("plot", "fit", *form, "-m", "loss", "-o", "form.html")
    assert (result.code, result.out) == (0, "form.html\n")
    page = (bench.folder / "form.html").read_text()
    assert (page.startswith("<!doctype html>"), title in page) == (True, True)
    assert page.count("<svg") == (2 if form[0] in ("-m", "--slices") else 1)


def test_nothing_to_plot(cli, own_bench: Bench) -> None:
    (own_bench.root / "empty" / ".assay").mkdir(parents=True)
    assert "no runs yet" in cli("plot", "empty").err
    own_bench.run("study: mute\ncommand: 'true'\nresources: {gpus: 0}\n")
    result = cli("plot", "mute").ended(2, "no metrics in these runs", "assay index reparse ")
    assert result.err.endswith(" --file study.yml\n")
