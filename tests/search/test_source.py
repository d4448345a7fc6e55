"""A search as a user meets it: proposals, results, changes of its file, and what cannot go on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.finished_study import Bench, until
from tests.fork_server import ForkedProcess, start_assay

from assay.errors import ConfigError, UsageError
from assay.launch.prepared import RunOptions
from assay.launch.sweep import prepare
from assay.search.optuna_proposals import SearchTrial, SpacePoint
from assay.search.source import find_best
from assay.values.study import Objective

pytest.importorskip("optuna")

STUDY = """
study: tune
command: 'echo "$ASSAY_RUN_NAME" >> {ledger}; echo "loss=$(awk "BEGIN {{print ({x}-3)^2}}")"; echo "time={layers}"'
params: {x: {uniform: [0, 10]}, layers: {int: [1, 4]}, ledger: LEDGER}
metrics: {loss: 'loss=({number})', time: 'time=({number})'}
search: SEARCH
resources: {gpus: 0}
code: live
"""
TPE = "{sampler: tpe, metric: loss, direction: min, trials: 14, seed: 3}"  # the model begins with trial 10
FEW = TPE.replace("14", "3")
LOSS = 'echo "loss='
X, LAYERS = "{uniform: [0, 10]}", "{int: [1, 4]}"
NAMES = [f"trial-{number:04d}" for number in range(60)]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path).enter(monkeypatch)


def write(bench: Bench, search: str = TPE, **changes: str) -> str:
    text = STUDY.replace("SEARCH", search).replace("LEDGER", str(bench.folder / "ledger"))
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    return bench.write("study.yml", text)


def call(bench: Bench, *flags: str, slots: int = 1, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run the study in this process."""
    done = bench.read("run", "study.yml", "-j", str(slots), "--plain", *flags)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


def start(bench: Bench, *flags: str) -> tuple[ForkedProcess, Path]:
    """Run the study in the background; all that it prints is in the file."""
    path = bench.folder / f"log-{len(list(bench.folder.glob('log-*')))}"
    with path.open("w") as log:
        words = ["run", "study.yml", "--plain", *flags]
        return start_assay(words, cwd=bench.folder, env=os.environ | bench.extra, log=log), path


def load(bench: Bench) -> dict[str, Any]:
    found = {}
    for path in sorted((bench.root / "tune").glob("trial-*/run.json")):
        record = json.loads(path.read_text())
        assert record["spec"]["name"] == path.parent.name == f"trial-{record['trial']:04d}"
        params = record["spec"]["params"]
        found[path.parent.name] = (params["x"], params["layers"])
    return found


def ledger(bench: Bench) -> list[str]:
    path = bench.folder / "ledger"
    return sorted(path.read_text().split()) if path.exists() else []


def test_a_search_finds_the_best_and_goes_on_when_more_trials_are_asked_for(bench: Bench) -> None:
    """A dry run shows the space and the next proposal, and writes nothing."""
    write(bench, FEW)
    shown = call(bench, "-n").stdout
    assert all(text in shown for text in ("# space: ", '"uniform": [0.0, 10.0]', "# next: trial-0000"))
    assert not bench.root.exists()
    first = call(bench).stderr
    assert ledger(bench) == NAMES[:3]
    values = {name: (x - 3) ** 2 for name, (x, _) in load(bench).items()}
    assert f"best: {min(values, key=lambda name: values[name])}: loss" in first
    call(bench)
    assert ledger(bench) == NAMES[:3], "nothing is repeated"
    write(bench, TPE.replace("14", "5"))
    shown = call(bench, "-n").stdout
    assert "# next: trial-0003" in shown
    assert [row["name"] for row in json.loads(call(bench, "-n", "--json").stdout)] == NAMES[:4]
    call(bench)
    assert ledger(bench) == NAMES[:5]
    assert f"print ({load(bench)['trial-0003'][0]}-3)" in shown, "what was shown is what ran"


@pytest.mark.parametrize(("sampler", "trials"), [("tpe", 12), ("cmaes", 4), ("qmc", 4)])
def test_two_equal_searches_propose_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sampler: str, trials: int
) -> None:
    """Whether one was stopped in between or not."""
    found = []
    for name, counts in (("whole", [trials]), ("parts", [trials // 2, trials])):
        (tmp_path / name).mkdir()
        bench = Bench(tmp_path / name).enter(monkeypatch)
        for count in counts:
            write(bench, TPE.replace("tpe", sampler).replace("14", str(count)))
            call(bench)
        found.append(load(bench))
    assert found[0] == found[1]


def test_two_supervisors_share_one_search(bench: Bench) -> None:
    write(bench, TPE.replace("14", "8"))
    for program, log in [start(bench, "-j", "2") for _ in range(2)]:
        assert program.wait(60) == 0, log.read_text()
        assert "8 runs: 8 done" in log.read_text()
    assert ledger(bench) == NAMES[:8]
    assert len(set(load(bench).values())) == 8


@pytest.mark.needs(farms=True)
def test_a_farm_gets_no_more_trials_at_once_than_there_are_slots(bench: Bench) -> None:
    busy = "ls busy* 2> /dev/null | wc -l >> seen; touch busy{x}; sleep 0.2; rm busy{x}; "
    write(bench, TPE.replace("14", "4"), **{LOSS: busy + LOSS})
    with (bench.folder / "study.yml").open("a") as file:
        file.write("farms: {away: {submit: 'setsid bash {script} > /dev/null 2>&1 & echo 1'}}\n")
    call(bench, "--on", "away", slots=2)
    assert ledger(bench) == NAMES[:4]
    assert max(int(line) for line in (bench.folder / "seen").read_text().split()) <= 1


def test_several_metrics_give_a_pareto_set(bench: Bench) -> None:
    write(bench, "{metric: [loss, time], direction: [min, max], trials: 6}")
    found = json.loads(call(bench, "--json").stdout)["search"]
    values = [(row["values"]["loss"], row["values"]["time"]) for row in found["best"]]
    assert values
    assert all(not (a[0] <= b[0] and a[1] >= b[1] and a != b) for a in values for b in values)
    assert found["trials"] == {"done": 6, "pruned": 0, "failed": 0, "running": 0}


# ---------------------------------------------------------------- the file changes


def test_a_changed_search_is_refused_with_what_changed_and_how_to_go_on(bench: Bench) -> None:
    write(bench, TPE.replace("14", "5"))
    call(bench)
    other = TPE.replace("14", "5").replace("tpe", "random").replace("seed: 3", "seed: 4")
    write(bench, other, **{"[0, 10]": "[0, 5]", 'echo "time=': 'true; echo "time='})
    before = load(bench)
    refused = call(bench, code=2).stderr
    for text in (
        "sampler: tpe → random",
        "seed: 3 → 4",
        'x: {"uniform": [0.0, 10.0]} → {"uniform": [0.0, 5.0]}',
        "command run: changed",
        "assay run study.yml -j 1 --search continue",
        "assay run study.yml -j 1 --search new",
    ):
        assert text in refused
    assert load(bench) == before
    outside = [name for name, (x, _) in before.items() if x > 5]
    assert outside
    assert outside[0] in call(bench, "--search", "continue").stderr
    assert len(load(bench)) == 5 + len(outside)
    assert all(x <= 5 for name, (x, _) in load(bench).items() if name not in before)
    call(bench)  # from now on this is the search
    assert len(ledger(bench)) == 5 + len(outside)


def test_overrides_make_another_space_and_a_new_search_keeps_the_earlier_trials_as_runs(bench: Bench) -> None:
    write(bench, FEW)
    call(bench)
    refused = call(bench, "x=1,2", code=2).stderr
    assert 'x: {"uniform": [0.0, 10.0]} → [1, 2]' in refused
    assert "assay run study.yml x=1,2 -j 1 --search new" in refused
    call(bench, "--set", "search.trials=5")
    assert ledger(bench) == NAMES[:5]
    call(bench, "x=1,2", "layers=3", "--search", "new")
    assert {(1, 3), (2, 3)} <= set(load(bench).values())
    assert len(ledger(bench)) == 7
    write(bench, "{sampler: random, metric: time, direction: max, trials: 2}")
    call(bench, "--search", "new")
    assert ledger(bench) == NAMES[:9]
    assert "2 runs: 2 done" in call(bench).stderr


def test_a_damaged_record_of_the_search_is_named_with_its_remedy(bench: Bench) -> None:
    write(bench, FEW)
    call(bench)
    path = bench.root / "tune" / ".assay" / "search.json"
    whole = path.read_text()
    for text in ("", "{", "[]", '{"format": 1}', whole.replace('"tpe"', '"bayes"'), whole.replace("[{", "7, [{", 1)):
        path.write_text(text)
        refused = call(bench, code=4).stderr
        assert "search.json is damaged" in refused
        assert "delete the file" in refused
        assert bench.read("sum", "tune").returncode == 0, "a table does not need it"
    path.unlink()
    call(bench)
    assert path.read_text() == whole


def test_pruned_trials_reach_the_sampler_and_are_not_repeated(bench: Bench) -> None:
    write(
        bench,
        TPE.replace("14", "4"),
        **{LOSS: f"echo loss=100; [ {{layers}} = 1 ] || sleep 30; {LOSS}"},
        **{"code: live": "code: live\nstop: {rule: bounds, metric: loss, max: 50}"},
    )
    found = json.loads(call(bench, "--json", slots=4).stdout)
    pruned = sum(layers > 1 for _, layers in load(bench).values())
    assert pruned
    assert found["search"]["trials"]["pruned"] == pruned
    call(bench)
    assert ledger(bench) == NAMES[:4]


# ---------------------------------------------------------------- what cannot go on


def test_a_metric_that_never_appears_ends_the_search_with_the_names_that_do_and_so_do_failures_alone(
    bench: Bench,
) -> None:
    write(bench, TPE.replace("metric: loss", "metric: losss"))
    ended = call(bench, code=1).stderr
    assert len(ledger(bench)) == 1
    assert "did not record losss; it recorded loss, time; did you mean 'loss'" in ended
    write(bench, TPE, **{LOSS: f"exit 3; {LOSS}", "study: tune": "study: bad"})
    assert "no trial has a result and 5 have failed" in call(bench, code=1).stderr
    assert len(ledger(bench)) == 6


def test_a_trial_goes_by_its_best_value_and_one_that_ends_as_nan_has_failed(bench: Bench) -> None:
    """`assay best` and the tables do the same; a loss that was good before the training diverged is not a result."""
    late = 'echo loss=0.5; echo loss=2; [ {layers} != 2 ] || echo loss=nan; echo "again='
    write(bench, TPE.replace("14", "6"), **{LOSS: late})
    found = json.loads(call(bench, "--json", code=1).stdout)["search"]
    diverged = [name for name, (_, layers) in load(bench).items() if layers == 2]
    assert diverged
    assert found["failed"] == dict.fromkeys(diverged, "loss is nan")
    assert {each["values"]["loss"] for each in found["best"]} == {0.5}


def test_failed_trials_count_and_are_repeated_on_request(bench: Bench) -> None:
    write(bench, TPE.replace("14", "6"), **{LOSS: f"[ {{layers}} != 2 ] || [ -e fixed ] || exit 3; {LOSS}"})
    call(bench, code=1)
    bad = [name for name, (_, layers) in load(bench).items() if layers == 2]
    assert bad
    assert len(ledger(bench)) == 6
    (bench.folder / "fixed").touch()
    call(bench, code=1)  # a failed trial is kept
    call(bench, "--retry", "failed")
    assert len(ledger(bench)) == 6 + len(bad)
    assert len(load(bench)) == 6


@pytest.mark.parametrize("search", [TPE, "{sampler: grid, metric: loss}"])
def test_an_exhausted_space_is_a_good_end(bench: Bench, search: str) -> None:
    """A grid needs no count."""
    write(bench, search, **{X: "[1, 2]"})
    assert "every combination has been tried: 8 trials" in call(bench).stderr
    assert sorted(load(bench).values()) == [(x, layers) for x in (1, 2) for layers in (1, 2, 3, 4)]
    call(bench)
    assert len(ledger(bench)) == 8


@pytest.mark.parametrize(
    ("search", "message"),
    [
        ("{metric: loss}", "has no trials"),
        ("{trials: 5}", "has no metric"),
        ("{metric: zzz, trials: 5}", "add `direction: min`"),
        ("{metric: loss, trials: 0}", "search.trials"),
        ("{metric: [loss, time], direction: [min], trials: 5}", "1 directions for 2 metrics"),
        ("{metric: [loss, loss], trials: 5}", "listed twice"),
        ("{metric: [loss, time], sampler: cmaes, trials: 5}", "cmaes takes one metric"),
        ("{metric: loss, sampler: bayes, trials: 5}", "one of tpe, random"),
        ("{metric: loss, sampler: grid}", "not a continuous range"),
        ("{metric: loss, trials: 5}\nsubset: {count: 3}", "does not go with search"),
        ("{metric: loss, trials: 5}\nrepeat: 2", "does not go with search"),
        ("{metrics: [loss, {metric: time, direction: up}], trials: 5}", "search.metrics[1].direction"),
        ("{metric: [], trials: 3}", "does not name a metric"),
        ("{metrics: [], trials: 3}", "search.metrics"),
        ("{metric: los, trials: 3}", "did you mean 'loss'?"),
    ],
)
def test_a_bad_search_is_refused(bench: Bench, search: str, message: str) -> None:
    write(bench, search)
    with pytest.raises(ConfigError) as caught:
        prepare(RunOptions("study.yml"))
    assert message in caught.value.render()
    assert "study.yml:" in caught.value.render()


@pytest.mark.parametrize(
    ("changes", "flags", "message"),
    [
        ({"time: 'time=": "wib: 'time=", "metric: loss, direction: min": "metric: wib"}, [], "add `direction: min`"),
        ({X: "3", LAYERS: "2"}, [], "study.yml:6:9 search: there is nothing to search"),
        (
            {X: "3", LAYERS: "[1, 2]", "metrics:": "when: {layers: 2}\nmetrics:"},
            [],
            "search: there is nothing to search",
        ),
        ({LAYERS: "[1, 2, null]"}, [], "layers is null here"),
        ({}, ["--force"], "--force does not go with a search"),
        ({}, ["--sample", "3"], "--sample does not go with a search"),
        ({}, ["--where", "x<3"], "--where does not go with a search"),
        ({X: "[1, 2]", LAYERS: "1", f"search: {TPE}\n": ""}, ["--search", "new"], "has no search"),
    ],
)
def test_what_cannot_be_searched_is_found_before_anything_is_written(
    bench: Bench, changes: dict[str, str], flags: list[str], message: str
) -> None:
    write(bench, **changes)
    assert message in call(bench, *flags, code=2).stderr
    assert not bench.root.exists()


def test_nothing_to_search_is_reported_before_a_missing_extra_with_a_command_that_works(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    write(bench, "{metric: loss, trials: 5}", **{LAYERS: "2"})
    with pytest.raises(UsageError, match="nothing to search"):
        prepare(RunOptions("study.yml", overrides=("x=3",)))
    assert "pip install 'assay[search]'" in call(bench, code=2).stderr
    assert not bench.root.exists()
    refused = call(bench, "x=3", code=2).stderr
    assert "there is nothing to search: with the x of this call every parameter has one value" in refused
    assert "study.yml:" not in refused
    advised = refused.partition("run it without a search: ")[2].splitlines()[0].split()
    assert bench.read(*advised[1:]).returncode == 0


def test_a_seed_that_a_search_chooses_is_warned_about(bench: Bench) -> None:
    for values, is_chosen in (("{range: 4}", True), ("4", False)):
        write(bench, "{metric: loss, trials: 2}", **{f"layers: {LAYERS}": f"layers: 1, data_seed: {values}"})
        warned = "data_seed: the search chooses the luckiest seed" in call(bench, "-n").stderr
        assert warned == is_chosen


def test_runs_that_are_no_trials_are_reported_not_to_reach_the_sampler(bench: Bench) -> None:
    write(bench, "{metric: loss, trials: 2}")
    call(bench)
    repeat = bench.read("rerun", "tune/trial-0001", "x=3", "--plain")
    assert repeat.returncode == 0, repeat.stderr
    text = "the sampler is not given the results of 1 run of this study that no search proposed: "
    assert text in call(bench).stderr


def test_changed_code_is_reported_with_a_command_that_works(bench: Bench) -> None:
    bench.write("train.py", "echo loss=1\n")
    text = "command: bash train.py {x}\nparams: {x: {int: [1, 9]}}\nmetrics: {loss: 'loss=({number})'}\n"
    bench.write("study.yml", f"study: tune\n{text}search: {{metric: loss, trials: 2}}\nresources: {{gpus: 0}}\n")
    call(bench)
    bench.write("train.py", "echo loss=2\n")
    again = call(bench).stderr
    assert "train.py has changed since" in again
    step = again.strip().splitlines()[-1].split()
    assert step[:2] == ["assay", "rerun"]
    assert bench.read(*step[1:], "--quiet").returncode == 0


def test_a_broken_index_does_not_decide(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results come from the run directories where the index cannot be kept. A pattern that matches nothing is named."""
    write(bench, FEW, **{"{loss: 'loss=": "{accuracy: 'accuracy=({number})', loss: 'loss="})
    monkeypatch.setenv("ASSAY_CACHE_DIR", "/dev/null/nowhere")
    call(bench)
    assert ledger(bench) == NAMES[:3]
    monkeypatch.setenv("ASSAY_CACHE_DIR", bench.extra["ASSAY_CACHE_DIR"])
    ended = call(bench, "--set", "search.trials=4").stderr
    assert "metrics.accuracy matched no number" in ended
    assert "metrics.loss" not in ended


def test_a_folder_with_the_name_of_a_trial_is_left_alone(bench: Bench) -> None:
    """A trial whose directory was made and that was not started is started by the next call."""
    write(bench, FEW)
    (bench.root / "tune" / "trial-0001").mkdir(parents=True)
    call(bench)
    assert ledger(bench) == ["trial-0002", "trial-0003", "trial-0004"]
    for path in (bench.root / "tune" / "trial-0003").glob("*"):
        if path.name not in ("run.json", "job.sh", "environment.json"):
            path.unlink()
    call(bench)
    assert ledger(bench) == ["trial-0002", "trial-0003", "trial-0003", "trial-0004"]


def test_an_interrupted_trial_is_continued_and_not_proposed_again(bench: Bench) -> None:
    write(bench, TPE.replace("14", "4"), **{LOSS: f"[ -e go ] || sleep 60; {LOSS}"})
    program, _ = start(bench, "-j", "1")
    until(lambda: ledger(bench), "the first trial")
    program.send_signal(signal.SIGTERM)
    program.wait(30)
    (bench.folder / "go").touch()
    call(bench)
    assert ledger(bench) == sorted([NAMES[0], *NAMES[:4]])


def test_the_best_of_several_objectives_is_what_nothing_dominates() -> None:
    values = [(1.0, 5.0), (2.0, 2.0), (3.0, 3.0), (5.0, 1.0)]
    trials = [SearchTrial(number, SpacePoint(0, ()), "done", each) for number, each in enumerate(values)]
    small = [Objective("a", "min"), Objective("b", "min")]
    assert [trial.number for trial in find_best(trials, small)] == [0, 1, 3]
    assert [trial.number for trial in find_best(trials, [small[0], Objective("b", "max")])] == [0]
    assert find_best([], small[:1]) == []


# ---------------------------------------------------------------- afterwards


def test_tables_go_by_what_was_searched_for(bench: Bench) -> None:
    write(bench, "{sampler: random, metric: time, direction: max, trials: 5}")
    call(bench)
    layers = {name: layers for name, (_, layers) in load(bench).items()}
    rows = json.loads(bench.read("sum", "tune", "--json").stdout)
    assert [row["time"] for row in rows] == sorted(layers.values(), reverse=True)
    best = json.loads(bench.read("best", "tune", "--json").stdout)
    assert layers[best["best"]["dir"].rpartition("/")[2]] == max(layers.values())


def test_importance_names_what_decides(bench: Bench) -> None:
    write(bench, TPE, **{f"search: {TPE}": "sweep: [{x: [1, 3, 5, 8], layers: [1, 2]}, {x: 2, layers: 3}]"})
    call(bench)
    shown = bench.read("importance", "tune")
    assert shown.returncode == 0, shown.stderr
    lines = [line.split() for line in shown.stdout.splitlines()]
    order = [line[0] for line in lines if line and line[0] in ("x", "layers", "ledger")]
    assert order == ["x", "layers"], "what does not differ is not named"
    found = json.loads(bench.read("importance", "tune", "-m", "time:max", "--json").stdout)
    assert (found["metric"], next(iter(found["importance"]))) == ("time", "layers")
    assert sum(found["importance"].values()) == pytest.approx(1)
    for words, message in (
        (["-m", "los"], "did you mean 'loss'"),
        (["--where", "x==1"], "needs 4 finished runs"),
        (["--where", "x==3 and layers==1"], "needs 4 finished runs"),
    ):
        refused = bench.read("importance", "tune", *words)
        assert (refused.returncode, message in refused.stderr) == (2, True)
    write(bench, TPE, **{X: "1", LAYERS: "1", f"search: {TPE}": "repeat: 4", "study: tune": "study: same"})
    call(bench)
    nothing = bench.read("importance", "same")
    assert (nothing.returncode, "same parameters" in nothing.stderr) == (2, True)


def test_a_trial_that_got_no_better_has_a_result(bench: Bench) -> None:
    """Ended by patience, it is as good as done to the search; ended for others' sake it would not be."""
    text = 'for i in 1 2 3 4 5; do echo step=$i; echo loss=$((i > 2 ? 3 : 4 - i)); done; sleep 300; echo "again='
    write(
        bench,
        TPE.replace("14", "2"),
        **{LOSS: text, "{loss: 'loss=": "{step: 'step=(\\d+)', loss: 'loss="},
        **{"code: live": "code: live\nstop: {rule: patience, metric: loss, patience: 2}"},
    )
    found = json.loads(call(bench, "--json", slots=2).stdout)
    assert [run["state"] for run in found["runs"]] == ["pruned"] * 2
    assert found["search"]["trials"]["done"] == 2
    assert [each["values"] for each in found["search"]["best"]] == [{"loss": 2.0}]


def test_a_trial_whose_record_is_damaged_counts_and_is_named(bench: Bench) -> None:
    write(bench, FEW)
    call(bench)
    record = bench.root / "tune" / "trial-0002" / "run.json"
    for content in ("{", None):
        record.unlink() if content is None else record.write_text(content)
        ended = call(bench, "--search", "continue", code=4).stderr
        assert "not counted" not in ended, "its point is unknown, not outside of the space"
        assert ledger(bench) == NAMES[:3], "no more than were asked for"
        assert "trial-0002 counts as a trial without a result" in ended
    move = ended.partition("make room for another trial: ")[2].splitlines()[0]
    subprocess.run(["bash", "-c", move], cwd=bench.folder, check=True)
    call(bench)
    assert len(ledger(bench)) == 4


def test_trials_of_an_earlier_search_that_goes_on_do_not_count_in_the_new_one(bench: Bench) -> None:
    write(bench, TPE.replace("14", "40"), **{LOSS: f"sleep 0.2; {LOSS}"})
    earlier, _ = start(bench, "-j", "1", "--quiet")
    until(lambda: len(ledger(bench)) >= 2, "the first search has begun")
    write(bench, FEW.replace("seed: 3", "seed: 4"))
    found = json.loads(call(bench, "--search", "new", "--json", slots=2).stdout)  # one is taken
    earlier.send_signal(signal.SIGTERM)
    earlier.wait(60)
    records = [json.loads(path.read_text()) for path in sorted((bench.root / "tune").glob("trial-*/run.json"))]
    mine = {record["spec"]["name"] for record in records if record["search_from"] > 0}
    assert {run["name"] for run in found["runs"]} == mine
    assert len(mine) == 3


def test_the_best_trial_says_which_of_several_sweeps_it_is_of(bench: Bench) -> None:
    sweep = "sweep: [{layers: 1}, {layers: 3}]\ncode: live"
    write(bench, FEW, **{f"layers: {LAYERS}, ": "", "code: live": sweep})
    assert "layers=" in next(line for line in call(bench).stderr.splitlines() if line.startswith("best: "))
