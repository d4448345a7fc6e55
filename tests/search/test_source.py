"""A search as a user meets it: proposals, results, changes of its file, and what cannot go on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.finished_study import Bench, until

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


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def write(bench: Bench, search: str = TPE, **changes: str) -> str:
    text = STUDY.replace("SEARCH", search).replace("LEDGER", str(bench.folder / "ledger"))
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    return bench.write("study.yml", text)


def call(bench: Bench, *flags: str, slots: int = 1) -> subprocess.CompletedProcess[str]:
    return bench.assay("run", "study.yml", "-j", str(slots), "--plain", *flags)


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


NAMES = [f"trial-{number:04d}" for number in range(60)]


def test_a_search_finds_the_best_and_goes_on_when_more_trials_are_asked_for(bench: Bench) -> None:
    write(bench, FEW)
    first = call(bench)
    assert first.returncode == 0, first.stderr
    assert ledger(bench) == NAMES[:3]
    values = {name: (x - 3) ** 2 for name, (x, _) in load(bench).items()}
    best = min(values, key=lambda name: values[name])
    assert f"best: {best}: loss" in first.stderr
    again = call(bench)
    assert again.returncode == 0
    assert ledger(bench) == NAMES[:3], "nothing is repeated"
    write(bench, TPE.replace("14", "5"))
    assert call(bench).returncode == 0
    assert ledger(bench) == NAMES[:5]


@pytest.mark.parametrize(("sampler", "trials"), [("tpe", 12), ("random", 4), ("cmaes", 6), ("qmc", 4)])
def test_two_equal_searches_propose_the_same(bench: Bench, tmp_path: Path, sampler: str, trials: int) -> None:
    """Whether one was stopped in between or not."""
    text = TPE.replace("tpe", sampler)
    write(bench, text.replace("14", str(trials)))
    assert call(bench).returncode == 0
    (tmp_path / "other").mkdir()
    other = Bench(tmp_path / "other")
    for count in (trials // 2, trials):
        write(other, text.replace("14", str(count)))
        assert call(other).returncode == 0
    assert load(other) == load(bench)


def test_several_slots_share_the_trials(bench: Bench) -> None:
    write(bench, TPE.replace("14", "7"))
    assert call(bench, slots=3).returncode == 0
    assert ledger(bench) == NAMES[:7]


def test_two_supervisors_share_one_search(bench: Bench) -> None:
    write(bench, TPE.replace("14", "8"))
    programs = [bench.start("run", "study.yml", "-j", "2", "--plain") for _ in range(2)]
    for program in programs:
        _, err = program.communicate(timeout=60)
        assert program.returncode == 0, err
        assert "8 runs: 8 done" in err
    assert ledger(bench) == NAMES[:8]
    assert len(set(load(bench).values())) == 8


@pytest.mark.needs(farms=True)
def test_a_farm_gets_no_more_trials_at_once_than_there_are_slots(bench: Bench) -> None:
    write(bench, TPE.replace("14", "6"), **{'echo "loss=': 'ls busy* 2> /dev/null | wc -l >> seen; touch busy{x}; sleep 0.2; rm busy{x}; echo "loss='})  # fmt: skip
    text = (bench.folder / "study.yml").read_text()
    farm = "farms: {away: {submit: 'setsid bash {script} > /dev/null 2>&1 & echo 1'}}\n"
    bench.write("study.yml", text + farm)
    assert call(bench, "--on", "away", slots=2).returncode == 0
    assert ledger(bench) == NAMES[:6]
    assert max(int(line) for line in (bench.folder / "seen").read_text().split()) <= 1


def test_a_dry_run_shows_the_space_and_the_next_proposal_and_writes_nothing(bench: Bench) -> None:
    write(bench, FEW)
    shown = call(bench, "-n")
    assert shown.returncode == 0
    assert "# space: " in shown.stdout
    assert '"uniform": [0.0, 10.0]' in shown.stdout
    assert "# next: trial-0000" in shown.stdout
    assert not bench.root.exists()
    call(bench)
    write(bench, TPE.replace("14", "4"))
    shown = call(bench, "-n")
    assert "# next: trial-0003" in shown.stdout
    rows = json.loads(call(bench, "-n", "--json").stdout)
    assert [row["name"] for row in rows] == NAMES[:4]
    call(bench)
    x = load(bench)["trial-0003"][0]
    assert f"print ({x}-3)" in shown.stdout, "what was shown is what ran"


def test_several_metrics_give_a_pareto_set(bench: Bench) -> None:
    write(bench, "{metric: [loss, time], direction: [min, max], trials: 6}")
    done = call(bench, "--json")
    assert done.returncode == 0
    found = json.loads(done.stdout)["search"]
    values = [(row["values"]["loss"], row["values"]["time"]) for row in found["best"]]
    assert values
    assert all(not (a[0] <= b[0] and a[1] >= b[1] and a != b) for a in values for b in values)
    assert found["trials"] == {"done": 6, "pruned": 0, "failed": 0, "running": 0}


# ---------------------------------------------------------------- the file changes


def test_a_changed_search_is_refused_with_what_changed_and_how_to_go_on(bench: Bench) -> None:
    write(bench, TPE.replace("14", "5"))
    assert call(bench).returncode == 0
    write(bench, TPE.replace("14", "5").replace("tpe", "random").replace("seed: 3", "seed: 4"), **{"[0, 10]": "[0, 5]"})
    before = load(bench)
    refused = call(bench)
    assert refused.returncode == 2
    assert "sampler: tpe → random" in refused.stderr
    assert "seed: 3 → 4" in refused.stderr
    assert 'x: {"uniform": [0.0, 10.0]} → {"uniform": [0.0, 5.0]}' in refused.stderr
    assert "assay run study.yml -j 1 --search continue" in refused.stderr
    assert "assay run study.yml -j 1 --search new" in refused.stderr
    assert load(bench) == before
    outside = [name for name, (x, _) in before.items() if x > 5]
    assert outside
    went_on = call(bench, "--search", "continue")
    assert went_on.returncode == 0
    assert outside[0] in went_on.stderr
    assert len(load(bench)) == 5 + len(outside)
    assert all(x <= 5 for name, (x, _) in load(bench).items() if name not in before)
    assert call(bench).returncode == 0, "from now on this is the search"
    assert len(ledger(bench)) == 5 + len(outside)


def test_a_new_search_keeps_the_earlier_trials_as_runs(bench: Bench) -> None:
    write(bench, FEW)
    assert call(bench).returncode == 0
    write(bench, "{sampler: random, metric: time, direction: max, trials: 2}")
    assert call(bench, "--search", "new").returncode == 0
    assert ledger(bench) == NAMES[:5]
    done = call(bench)
    assert done.returncode == 0
    assert "2 runs: 2 done" in done.stderr


def test_a_changed_command_counts_as_a_change(bench: Bench) -> None:
    write(bench, TPE.replace("14", "2"))
    assert call(bench).returncode == 0
    write(bench, TPE.replace("14", "2"), **{'echo "time=': 'true; echo "time='})
    refused = call(bench)
    assert refused.returncode == 2
    assert "command run: changed" in refused.stderr


def test_overrides_make_another_space_and_settings_may_raise_the_trials(bench: Bench) -> None:
    write(bench, FEW)
    assert call(bench).returncode == 0
    refused = call(bench, "x=1,2")
    assert refused.returncode == 2
    assert 'x: {"uniform": [0.0, 10.0]} → [1, 2]' in refused.stderr
    assert "assay run study.yml x=1,2 -j 1 --search new" in refused.stderr
    assert call(bench, "--set", "search.trials=5").returncode == 0
    assert ledger(bench) == NAMES[:5]
    assert call(bench, "x=1,2", "layers=3", "--search", "new").returncode == 0
    assert {(1, 3), (2, 3)} <= set(load(bench).values())
    assert len(ledger(bench)) == 7


def test_a_damaged_record_of_the_search_is_named_with_its_remedy(bench: Bench) -> None:
    write(bench, FEW)
    assert call(bench).returncode == 0
    path = bench.root / "tune" / ".assay" / "search.json"
    whole = path.read_text()
    for text in ("", "{", "[]", '{"format": 1}', whole.replace('"tpe"', '"bayes"'), whole.replace("[{", "7, [{", 1)):
        path.write_text(text)
        refused = call(bench)
        assert refused.returncode != 0
        assert "search.json is damaged" in refused.stderr
        assert "delete the file" in refused.stderr
        assert "Traceback" not in refused.stderr
        assert bench.assay("sum", "tune").returncode == 0, "a table does not need it"
    path.unlink()
    assert call(bench).returncode == 0
    assert path.read_text() == whole


def test_pruned_trials_reach_the_sampler_and_are_not_repeated(bench: Bench) -> None:
    changes = {'echo "loss=': 'echo loss=100; [ {layers} = 1 ] || sleep 30; echo "loss='}
    write(bench, TPE.replace("14", "4"), **changes)  # before the folder's own name is in the text
    text = (bench.folder / "study.yml").read_text()
    (bench.folder / "study.yml").write_text(f"{text}stop: {{rule: bounds, metric: loss, max: 50}}\n")
    ended = call(bench, "--json", slots=4)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    pruned = sum(layers > 1 for _, layers in load(bench).values())
    assert pruned
    assert found["search"]["trials"]["pruned"] == pruned
    assert call(bench).returncode == 0
    assert ledger(bench) == NAMES[:4]


# ---------------------------------------------------------------- what cannot go on


def test_a_metric_that_never_appears_ends_the_search_with_the_names_that_do(bench: Bench) -> None:
    write(bench, TPE.replace("metric: loss", "metric: losss"))
    ended = call(bench)
    assert ended.returncode == 1
    assert len(ledger(bench)) == 1
    assert "did not record losss" in ended.stderr
    assert "loss, time" in ended.stderr
    assert "did you mean 'loss'" in ended.stderr


def test_a_trial_goes_by_its_best_value_and_one_that_ends_as_nan_has_failed(bench: Bench) -> None:
    """`assay best` and the tables do the same; a loss that was good before the training diverged is not a result."""
    late = 'echo loss=0.5; echo loss=2; [ {layers} != 2 ] || echo loss=nan; echo "again='
    write(bench, TPE.replace("14", "6"), **{'echo "loss=': late})
    done = bench.assay("run", "study.yml", "-j", "1", "--json")
    found = json.loads(done.stdout)["search"]
    diverged = [name for name, (_, layers) in load(bench).items() if layers == 2]
    assert diverged
    assert found["failed"] == dict.fromkeys(diverged, "loss is nan")
    assert {each["values"]["loss"] for each in found["best"]} == {0.5}


def test_failed_trials_count_and_are_repeated_on_request(bench: Bench) -> None:
    write(bench, TPE.replace("14", "6"), **{'echo "loss=': '[ {layers} != 2 ] || [ -e fixed ] || exit 3; echo "loss='})
    ended = call(bench)
    bad = [name for name, (_, layers) in load(bench).items() if layers == 2]
    assert bad
    assert ended.returncode == 1
    assert len(ledger(bench)) == 6
    (bench.folder / "fixed").touch()
    assert call(bench).returncode == 1, "a failed trial is kept"
    assert call(bench, "--retry", "failed").returncode == 0
    assert len(ledger(bench)) == 6 + len(bad)
    assert len(load(bench)) == 6


def test_failures_alone_end_the_search(bench: Bench) -> None:
    write(bench, TPE, **{'echo "loss=': 'exit 3; echo "loss='})
    ended = call(bench)
    assert ended.returncode == 1
    assert len(ledger(bench)) == 5
    assert "no trial has a result and 5 have failed" in ended.stderr


def test_an_exhausted_space_is_a_good_end(bench: Bench) -> None:
    write(bench, TPE, **{"{uniform: [0, 10]}": "[1, 2]"})
    ended = call(bench)
    assert ended.returncode == 0
    assert "every combination has been tried: 8 trials" in ended.stderr
    assert sorted(load(bench).values()) == [(x, layers) for x in (1, 2) for layers in (1, 2, 3, 4)]
    assert call(bench).returncode == 0


def test_a_grid_needs_no_count(bench: Bench) -> None:
    write(bench, "{sampler: grid, metric: loss}", **{"{uniform: [0, 10]}": "[1, 2]"})
    assert call(bench).returncode == 0
    assert sorted(load(bench).values()) == [(x, layers) for x in (1, 2) for layers in (1, 2, 3, 4)]


@pytest.mark.parametrize(
    ("search", "message"),
    [
        ("{metric: loss}", "says no trials"),
        ("{trials: 5}", "says no metric"),
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
        ("{metric: [], trials: 3}", "names no metric"),
        ("{metrics: [], trials: 3}", "search.metrics"),
        ("{metric: los, trials: 3}", "did you mean 'loss'?"),
    ],
)
def test_a_bad_search_is_refused(bench: Bench, monkeypatch: pytest.MonkeyPatch, search: str, message: str) -> None:
    bench.enter(monkeypatch)
    write(bench, search)
    with pytest.raises(ConfigError) as caught:
        prepare(RunOptions("study.yml"))
    assert message in caught.value.render()
    assert "study.yml:" in caught.value.render()


@pytest.mark.parametrize("when", ["", "when: {layers: 2}\n"])
def test_a_search_with_nothing_to_search_is_refused(bench: Bench, when: str) -> None:
    changes = {"{uniform: [0, 10]}": "3", "{int: [1, 4]}": "[1, 2]" if when else "2", "metrics:": f"{when}metrics:"}
    write(bench, "{metric: loss, trials: 5}", **changes)
    refused = call(bench)
    assert refused.returncode == 2
    assert "search: there is nothing to search" in refused.stderr
    assert "study.yml:" in refused.stderr
    assert not bench.root.exists()


def test_nothing_to_search_is_reported_before_a_missing_extra(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.enter(monkeypatch)
    monkeypatch.setitem(sys.modules, "optuna", None)
    write(bench, "{metric: loss, trials: 5}", **{"{int: [1, 4]}": "2"})
    with pytest.raises(UsageError, match="nothing to search"):
        prepare(RunOptions("study.yml", overrides=("x=3",)))


def test_an_override_that_leaves_nothing_to_search_is_named_with_the_command(bench: Bench) -> None:
    write(bench, "{metric: loss, trials: 5}", **{"{int: [1, 4]}": "2"})
    refused = call(bench, "x=3")
    assert (refused.returncode, "study.yml:" in refused.stderr) == (2, False)
    assert "there is nothing to search: with the x of this call every parameter has one value" in refused.stderr
    advised = refused.stderr.partition("run it without a search: ")[2].splitlines()[0].split()
    assert bench.assay(*advised[1:]).returncode == 0


def test_a_seed_that_a_search_chooses_is_warned_about(bench: Bench) -> None:
    write(bench, "{metric: loss, trials: 2}", **{"layers: {int: [1, 4]}": "layers: 1, data_seed: {range: 4}"})
    done = call(bench, "-n")
    assert done.returncode == 0, done.stderr
    assert "data_seed: the search chooses the luckiest seed" in done.stderr
    write(bench, "{metric: loss, trials: 2}", **{"layers: {int: [1, 4]}": "layers: 1, data_seed: 4"})
    assert "luckiest" not in call(bench, "-n").stderr


def test_runs_that_are_no_trials_are_reported_not_to_reach_the_sampler(bench: Bench) -> None:
    write(bench, "{metric: loss, trials: 2}")
    assert call(bench).returncode == 0
    repeat = bench.assay("rerun", "tune/trial-0001", "x=3", "--plain")
    assert repeat.returncode == 0, repeat.stderr
    again = call(bench)
    assert again.returncode == 0, again.stderr
    assert "the sampler is not given the results of 1 run of this study that no search proposed: " in again.stderr


def test_a_value_that_a_command_cannot_take_is_found_before_anything_is_written(bench: Bench) -> None:
    write(bench, TPE, **{"{int: [1, 4]}": "[1, 2, null]"})
    refused = call(bench)
    assert refused.returncode == 2
    assert "layers is null here" in refused.stderr
    assert not bench.root.exists()


def test_changed_code_is_reported_with_a_command_that_works(bench: Bench) -> None:
    bench.write("train.py", "print('loss=1')\n")
    text = "command: python train.py {x}\nparams: {x: {int: [1, 9]}}\nmetrics: {loss: 'loss=({number})'}\n"
    bench.write("study.yml", f"study: tune\n{text}search: {{metric: loss, trials: 2}}\nresources: {{gpus: 0}}\n")
    assert call(bench).returncode == 0
    bench.write("train.py", "print('loss=2')\n")
    again = call(bench)
    assert "train.py has changed since" in again.stderr
    step = again.stderr.strip().splitlines()[-1].split()
    assert step[:2] == ["assay", "rerun"]
    assert bench.assay(*step[1:], "--quiet").returncode == 0


def test_a_broken_index_does_not_decide(bench: Bench) -> None:
    """Results come from the run directories where the index cannot be kept."""
    write(bench, FEW)
    bench.extra["ASSAY_CACHE_DIR"] = "/dev/null/nowhere"
    done = call(bench)
    assert done.returncode == 0, done.stderr
    assert ledger(bench) == NAMES[:3]


def test_force_and_sample_do_not_go_with_a_search(bench: Bench) -> None:
    write(bench)
    for flags in (["--force"], ["--sample", "3"], ["--where", "x<3"]):
        refused = call(bench, *flags)
        assert refused.returncode == 2
        assert "does not go with a search" in refused.stderr


def test_without_optuna_nothing_is_written(bench: Bench) -> None:
    (bench.folder / "optuna.py").write_text("raise ImportError")
    write(bench)
    bench.extra["PYTHONPATH"] = str(bench.folder)
    refused = call(bench)
    assert refused.returncode == 2
    assert "pip install 'assay[search]'" in refused.stderr
    assert not bench.root.exists()


def test_a_folder_with_the_name_of_a_trial_is_left_alone(bench: Bench) -> None:
    write(bench, FEW)
    (bench.root / "tune" / "trial-0001").mkdir(parents=True)
    assert call(bench).returncode == 0
    assert ledger(bench) == ["trial-0002", "trial-0003", "trial-0004"]


def test_a_trial_whose_directory_was_made_is_started_by_the_next_call(bench: Bench) -> None:
    write(bench, FEW)
    assert call(bench).returncode == 0
    for path in (bench.root / "tune" / "trial-0002").glob("*"):
        if path.name not in ("run.json", "job.sh", "environment.json"):
            path.unlink()
    assert call(bench).returncode == 0
    assert ledger(bench) == [*NAMES[:3], "trial-0002"]


def test_an_interrupted_trial_is_continued_and_not_proposed_again(bench: Bench) -> None:
    write(bench, TPE.replace("14", "4"), **{'echo "loss=': '[ -e go ] || sleep 60; echo "loss='})
    program = bench.start("run", "study.yml", "-j", "1", "--plain")
    until(lambda: ledger(bench), "the first trial")
    program.terminate()
    program.communicate(timeout=30)
    (bench.folder / "go").touch()
    assert call(bench).returncode == 0
    assert ledger(bench) == sorted([NAMES[0], *NAMES[:4]])


def test_the_best_of_several_objectives_is_what_nothing_dominates() -> None:
    trials = [SearchTrial(number, SpacePoint(0, ()), "done", values) for number, values in enumerate([(1.0, 5.0), (2.0, 2.0), (3.0, 3.0), (5.0, 1.0)])]  # fmt: skip
    small = [Objective("a", "min"), Objective("b", "min")]
    assert [trial.number for trial in find_best(trials, small)] == [0, 1, 3]
    assert [trial.number for trial in find_best(trials, [small[0], Objective("b", "max")])] == [0]
    assert find_best([], small[:1]) == []


# ---------------------------------------------------------------- afterwards


def test_tables_go_by_what_was_searched_for(bench: Bench) -> None:
    write(bench, "{sampler: random, metric: time, direction: max, trials: 5}")
    assert call(bench).returncode == 0
    layers = {name: layers for name, (_, layers) in load(bench).items()}
    rows = json.loads(bench.assay("sum", "tune", "--json").stdout)
    assert [row["time"] for row in rows] == sorted(layers.values(), reverse=True)
    best = json.loads(bench.assay("best", "tune", "--json").stdout)
    assert layers[best["best"]["dir"].rpartition("/")[2]] == max(layers.values())


def test_importance_names_what_decides(bench: Bench) -> None:
    write(bench, TPE.replace("14", "16"))
    assert call(bench, slots=2).returncode == 0
    shown = bench.assay("importance", "tune")
    assert shown.returncode == 0, shown.stderr
    lines = [line.split() for line in shown.stdout.splitlines()]
    order = [line[0] for line in lines if line and line[0] in ("x", "layers", "ledger")]
    assert order == ["x", "layers"], "what does not differ is not named"
    found = json.loads(bench.assay("importance", "tune", "-m", "time:max", "--json").stdout)
    assert next(iter(found["importance"])) == "layers"
    assert sum(found["importance"].values()) == pytest.approx(1)
    unknown = bench.assay("importance", "tune", "-m", "los")
    assert unknown.returncode == 2
    assert "did you mean 'loss'" in unknown.stderr


def test_importance_of_a_grid_and_of_too_little(bench: Bench) -> None:
    grid = STUDY.replace("{uniform: [0, 10]}", "[1, 3, 5]").replace("{int: [1, 4]}", "[1, 2]")
    bench.run(grid.replace("search: SEARCH\n", "").replace("LEDGER", "/dev/null"))
    found = json.loads(bench.assay("importance", "tune", "--json").stdout)
    assert found["metric"] == "loss"
    assert set(found["importance"]) == {"x", "layers"}
    few = bench.assay("importance", "tune", "--where", "x==1")
    assert few.returncode == 2
    assert "needs 4 finished runs" in few.stderr
    same = STUDY.replace("{uniform: [0, 10]}", "1").replace("{int: [1, 4]}", "1").replace("search: SEARCH", "repeat: 5")
    bench.run(same.replace("study: tune", "study: same").replace("LEDGER", "/dev/null"))
    nothing = bench.assay("importance", "same")
    assert nothing.returncode == 2
    assert "same parameters" in nothing.stderr


def test_a_pattern_that_matches_nothing_is_named(bench: Bench) -> None:
    write(bench, FEW, **{"{loss: 'loss=": "{accuracy: 'accuracy=({number})', loss: 'loss="})
    ended = call(bench)
    assert ended.returncode == 0
    assert "metrics.accuracy matched no line" in ended.stderr
    assert "metrics.loss" not in ended.stderr


def test_a_trial_that_got_no_better_has_a_result(bench: Bench) -> None:
    """Ended by patience, it is as good as done to the search; ended for others' sake it would not be."""
    text = 'for i in 1 2 3 4 5 6 7 8; do echo step=$i; echo loss=$((i > 2 ? 3 : 4 - i)); sleep 0.25; done; echo "again='
    change = {'echo "loss=': text, "{loss: 'loss=": "{step: 'step=(\\d+)', loss: 'loss="}
    write(
        bench,
        TPE.replace("14", "2"),
        **change,
        **{"code: live": "code: live\nstop: {rule: patience, metric: loss, patience: 2}"},
    )
    ended = call(bench, "--json", slots=2)
    found = json.loads(ended.stdout)
    assert [run["state"] for run in found["runs"]] == ["pruned"] * 2, ended.stderr
    assert found["search"]["trials"]["done"] == 2
    assert [each["values"] for each in found["search"]["best"]] == [{"loss": 2.0}]


@pytest.mark.parametrize("content", ["{", None])
def test_a_trial_whose_record_is_damaged_counts_and_is_named(bench: Bench, content: str | None) -> None:
    write(bench, FEW)
    assert call(bench).returncode == 0
    record = bench.root / "tune" / "trial-0002" / "run.json"
    record.unlink() if content is None else record.write_text(content)
    ended = call(bench)
    assert ended.returncode == 4
    assert ledger(bench) == NAMES[:3], "no more than were asked for"
    assert "trial-0002 counts as a trial without a result" in ended.stderr
    move = ended.stderr.partition("make room for another trial: ")[2].splitlines()[0]
    subprocess.run(["bash", "-c", move], cwd=bench.folder, check=True)
    assert call(bench).returncode == 0
    assert len(ledger(bench)) == 4


def test_trials_of_an_earlier_search_that_goes_on_do_not_count_in_the_new_one(bench: Bench) -> None:
    write(bench, TPE.replace("14", "40"), **{'echo "loss=': 'sleep 0.2; echo "loss='})
    earlier = bench.start("run", "study.yml", "-j", "1", "--quiet")
    until(lambda: len(ledger(bench)) >= 2, "the first search has begun")
    write(bench, FEW.replace("seed: 3", "seed: 4"))
    found = json.loads(call(bench, "--search", "new", "--json", slots=2).stdout)  # one is taken
    earlier.terminate()
    earlier.communicate(timeout=60)
    records = [json.loads(path.read_text()) for path in sorted((bench.root / "tune").glob("trial-*/run.json"))]
    mine = {record["spec"]["name"] for record in records if record["search_from"] > 0}
    assert {run["name"] for run in found["runs"]} == mine
    assert len(mine) == 3


def test_the_best_trial_says_which_of_several_sweeps_it_is_of(bench: Bench) -> None:
    sweep = "sweep: [{layers: 1}, {layers: 3}]\ncode: live"
    write(bench, FEW, **{"layers: {int: [1, 4]}, ": "", "code: live": sweep})
    ended = call(bench)
    assert ended.returncode == 0, ended.stderr
    assert "layers=" in next(line for line in ended.stderr.splitlines() if line.startswith("best: "))


def test_a_choice_about_a_search_needs_one(bench: Bench) -> None:
    write(bench, TPE, **{"{uniform: [0, 10]}": "[1, 2]", "{int: [1, 4]}": "1", f"search: {TPE}\n": ""})
    refused = call(bench, "--search", "new")
    assert refused.returncode == 2
    assert "has no search" in refused.stderr
