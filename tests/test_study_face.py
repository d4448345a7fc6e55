"""`assay.Study`: the same runs and folders as the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.finished_study import Bench

import assay
from assay.api import Study
from assay.errors import ConfigError, NotFoundError, UsageError

pytestmark = pytest.mark.usefixtures("forked_supervisors")
KEYS: dict[str, Any] = {
    "command": "echo loss={lr}{seed} '{name}'",
    "params": {"lr": np.array([0.1, 0.2]), "seed": range(2), "name": "1e-4, 'a' \"b\""},
    "metrics": {"loss": "loss=({number})"},
    "resources": {"gpus": 0},
}


def test_the_same_runs_as_the_saved_file_gives(entered_bench: Bench) -> None:
    study = Study("grid", **KEYS)
    planned = study.plan()
    assert not entered_bench.root.exists()
    handle = study.run(slots=2)
    assert set(handle.wait().states.values()) == {"done"}
    study.save(entered_bench.folder / "saved.yml")
    shown = entered_bench.assay("run", "saved.yml", "--dry-run", "--json")
    rows = json.loads(shown.stdout)
    assert [(row["name"], row["id"], row["dir"], row["left"]) for row in rows] == [
        (run.name, run.id, run.dir, []) for run in planned.runs
    ]
    assert rows[0]["params"] == {"lr": 0.1, "seed": 0, "name": "1e-4, 'a' \"b\""}
    assert entered_bench.assay("run", "saved.yml", "-j", "2").returncode == 0
    assert {run.attempt for run in handle.runs} == {1}
    assert entered_bench.assay("ls").returncode == 0
    # a changed definition is a changed file
    more = Study("grid", **{**KEYS, "params": {**KEYS["params"], "seed": [1, 2]}})
    left = {run.name: bool(run.left) for run in more.plan().runs}
    assert left == {"lr=0.1,seed=1": False, "lr=0.1,seed=2": True, "lr=0.2,seed=1": False, "lr=0.2,seed=2": True}
    handle = assay.run(more, jobs=2)
    assert len(handle.wait().states) == 4
    assert len(handle.runs) == 6
    assert len(list((entered_bench.root / "grid" / ".assay").glob("files/*.yml"))) == 2


def test_the_hints_name_a_file_that_can_be_run(entered_bench: Bench) -> None:
    handle = Study("bad", command="false {x}", params={"x": [1]}, resources={"gpus": 0}).run(jobs=1)
    assert handle.wait().states == {"x=1": "failed"}
    (file,) = (entered_bench.root / "bad" / ".assay").glob("files/*.yml")
    again = entered_bench.assay(
        "run", str(file.relative_to(entered_bench.folder)), "-j", "1", "--retry", "failed", "--json"
    )
    assert json.loads(again.stdout)["runs"][0]["attempt"] == 2


def test_several_commands_a_name_of_its_own_and_a_root(entered_bench: Bench) -> None:
    study = Study(commands={"train": "true", "test": {"run": "true", "timeout": "1m"}}, root="elsewhere")
    assert study.name == "study"
    (run,) = study.plan().runs
    assert run.left == ("train", "test")
    assert run.dir.startswith(str(entered_bench.folder / "elsewhere" / "study"))


def test_mistakes_are_raised_at_once_by_keyword() -> None:
    with pytest.raises(ConfigError) as caught:
        Study("x", command="a {lrr}", params={"lr": []})
    assert [line for line in str(caught.value).splitlines() if not line.startswith(" ")] == [
        "command: lrr is not a parameter",
        "params.lr: the list of values is empty",
    ]
    with pytest.raises(ConfigError, match=r"study: 'a/b' cannot name a study"):
        Study("a/b", command="true")


def test_warnings_point_to_the_caller_and_a_definition_with_a_secret_is_for_its_owner_alone(
    entered_bench: Bench,
) -> None:
    env = {"HF_TOKEN": "hf_abcdefghijklmnopqrstuvwxyz0123456789"}
    study = Study("x", command="true {a}", params={"a": [1, 1]}, env=env, resources={"gpus": 0})
    assert all(not text.startswith(":") for text in study.plan().warnings)
    with pytest.warns(UserWarning, match=r"^params|^a") as caught:
        study.run(jobs=1).wait()
    assert {each.filename for each in caught} == {__file__}
    (file,) = (entered_bench.root / "x" / ".assay").glob("files/*.yml")
    assert file.stat().st_mode & 0o777 == 0o600


# ---------------------------------------------------------------- overrides


FILE = """\
study: file
command: echo loss={lr} {name} {seed} [slots]
params: {lr: [0.1, 0.2], name: base, seed: 0, slots: 1}
metrics: {loss: 'loss=({number})'}
resources: {gpus: 0}
"""


def test_keywords_are_overrides(entered_bench: Bench) -> None:
    entered_bench.write("study.yml", FILE)
    name = "a, 'b' \"c\" 1e-4 ] # é\n"
    handle = assay.run("study.yml", jobs=2, lr=np.array([0.3, 0.4]), name=name, overrides={"slots": 7})
    assert handle.wait().ok
    found = [run.params for run in handle.runs]
    assert found == [{"lr": lr, "name": name, "seed": 0, "slots": 7} for lr in (0.3, 0.4)]
    record = json.loads(Path(next(iter(handle.runs)).dir, "run.json").read_text())
    assert [text.partition("=")[0] for text in record["overrides"]] == ["slots", "lr", "name"]
    plan = assay.load_study("study.yml", lr=[0.3, 0.4], name=name, overrides={"slots": 7})
    assert [run.left for run in plan.runs] == [(), ()]
    assert [bool(run.left) for run in assay.load_study("study.yml").runs] == [True, True]


def test_a_study_of_python_takes_overrides_settings_and_where(entered_bench: Bench) -> None:
    study = Study("grid", **KEYS)
    with pytest.raises(UsageError, match=r"overrides=\{'seed'"):
        study.run(seed=[5])
    handle = study.run(jobs=2, overrides={"seed": [1]}, where="lr < 0.15", settings={"timeout": "1m"})
    assert list(handle.wait().states) == ["lr=0.1,seed=1"]
    assert len(study.plan(name="x", where="lr < 0.15").runs) == 2


def test_an_unknown_keyword_names_parameters_and_options(entered_bench: Bench) -> None:
    entered_bench.write("study.yml", FILE)
    for wrong, right in (({"names": "x"}, "name"), ({"job": 2}, "jobs")):
        for call in (assay.run, assay.load_study):
            with pytest.raises(NotFoundError, match=f"did you mean .*'{right}'"):
                call("study.yml", **wrong)  # type: ignore[operator]
    with pytest.raises(ConfigError, match=r"lr.*cannot hold"):
        assay.run("study.yml", lr=object())
    with pytest.raises(UsageError, match="where"):
        assay.run("study.yml", where="lr <")
    with pytest.raises(UsageError, match="lr is given twice"):
        assay.load_study("study.yml", lr=2, overrides={"lr": 3})
    assert not entered_bench.root.exists()


def test_a_seed_that_is_ignored_is_a_warning(entered_bench: Bench) -> None:
    entered_bench.write("study.yml", FILE)
    with pytest.warns(UserWarning, match=r"overrides=\{'seed'"):
        assay.run("study.yml", jobs=2, seed=3).wait()


# ---------------------------------------------------------------- every key of the file


@pytest.mark.needs(search=True)
def test_a_search_gives_its_trials_as_they_finish(entered_bench: Bench) -> None:
    pytest.importorskip("optuna", reason="needs optuna: pip install 'assay[search]'")
    study = Study(
        "searched",
        command="echo loss={x}",
        params={"x": {"uniform": [0, 1]}},
        metrics={"loss": "loss=({number})"},
        search={"sampler": "random", "metric": "loss", "direction": "min", "trials": 4, "seed": 0},
        resources={"gpus": 0},
    )
    assert study.plan().runs == ()
    handle = study.run(slots=2)
    found = list(handle)
    assert [run.state for run in found] == ["done"] * 4
    assert handle.best("loss").metrics["loss"] == min(run.metrics["loss"] for run in found)
    assert len(study.plan().runs) == 4


@pytest.mark.needs(search=True)
def test_a_rule_prunes_runs(entered_bench: Bench) -> None:
    command = "echo step 1 loss {x}; [ {x} = 1 ] || sleep 300"
    study = Study(
        "ruled",
        command=command,
        params={"x": [1, 100]},
        metrics={"step": "step ({number})", "loss": "loss ({number})"},
        stop={"rule": "bounds", "metric": "loss", "max": 10},
        resources={"gpus": 0},
    )
    assert {run.name: run.state for run in study.run(slots=2)} == {"x=1": "done", "x=100": "pruned"}


@pytest.mark.needs(search=True)
def test_wrong_words_are_raised_at_once(entered_bench: Bench) -> None:
    study = Study("grid", **KEYS)
    with pytest.raises(NotFoundError, match="continue"):
        study.run(search="contineu")
    with pytest.raises(UsageError, match="notify"):
        study.run(notify="ftp://host")
    assert not entered_bench.root.exists()


@pytest.mark.needs(search=True)
def test_a_changed_search_is_refused_in_terms_of_python(entered_bench: Bench) -> None:
    keys = {"command": "echo a={x}", "metrics": {"a": "a=({number})"}, "resources": {"gpus": 0}}
    search = {"metric": "a", "direction": "min", "trials": 1, "sampler": "random"}
    Study("se", params={"x": {"uniform": [0, 1]}}, search=search, **keys).run(slots=1).wait()
    with pytest.raises(UsageError) as caught:
        Study("se", params={"x": {"uniform": [0, 2]}}, search=search, **keys).run(slots=1)
    assert "study 'se' asks" in str(caught.value)
    assert 'search="continue"' in str(caught.value)
