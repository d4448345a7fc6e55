"""A started study: its runs as they finish, the best of them, and the view in a notebook."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.finished_study import Bench, until

import assay
from assay import handle as handles
from assay.api import Study, StudyHandle
from assay.errors import ConfigError, NotFoundError, UsageError
from assay.follow.refresh import conclude, load_history
from assay.handle import Expected
from assay.record.run_directory import History
from assay.runs import Run, Runs
from assay.system.fast_dataclasses import replace

pytestmark = pytest.mark.usefixtures("forked_supervisors")
WAIT = "until [ -e '{folder}/{x}' ]; do sleep 0.05; done; echo loss={x}; [ {x} != 3 ]"


def build_study(bench: Bench, **keys: Any) -> Study:
    """Each run ends when a file of the name of its `x` is there; that with 3 fails."""
    keys = {"command": WAIT.replace("{folder}", str(bench.folder)), "params": {"x": [1, 2, 3]}, **keys}
    return Study("waits", metrics={"loss": "loss=({number})"}, resources={"gpus": 0}, **keys)


def release(bench: Bench, *names: int) -> None:
    for name in names:
        (bench.folder / str(name)).touch()


def test_runs_come_as_they_finish(entered_bench: Bench) -> None:
    """A run that is repeated comes after its new attempt."""
    study = build_study(entered_bench)
    handle = study.run(slots=3)
    found: list[Run] = []
    release(entered_bench, 2)
    for number, run in enumerate(handle):
        found.append(run)
        release(entered_bench, *([1], [3], [])[number])
    assert [(run.name, run.state, run.metrics) for run in found] == [
        ("x=2", "done", {"loss": 2}),
        ("x=1", "done", {"loss": 1}),
        ("x=3", "failed", {"loss": 3}),
    ]
    assert not handle.is_running
    assert [run.name for run in handle] == ["x=2", "x=1", "x=3"], "again, from the beginning"
    ended = [run.ended_at or 0.0 for run in found]
    assert ended == sorted(ended)
    assert ended[0] > 0
    handle = study.run(slots=3, retry="failed")
    assert [(run.name, run.attempt) for run in handle if run.state == "failed"] == [("x=3", 2)]
    assert {run.attempt for run in study.run(slots=3, force=True)} == {2, 3}


def test_only_runs_of_this_call(entered_bench: Bench) -> None:
    release(entered_bench, 1, 2, 4)
    study = build_study(entered_bench)
    study.run(slots=3, where="x < 3").wait()
    handle = study.run(slots=3, x=[1, 4])
    assert sorted(run.name for run in handle) == ["x=1", "x=4"]
    assert len(handle.runs) == 3


def test_a_failure_that_is_retried_is_not_the_end(entered_bench: Bench) -> None:
    release(entered_bench, 1, 2, 3)
    handle = build_study(entered_bench, retries=2).run(slots=3)
    assert [(run.attempt, run.state) for run in handle if run.name == "x=3"] == [(3, "failed")]


REPEATED = Expected(repeated=frozenset({handles.State.DONE}))


@pytest.mark.parametrize(
    ("state", "more", "expected", "is_running", "is_finished"),
    [
        ("running", {}, Expected(), True, False),
        ("queued", {}, Expected(), False, False),
        ("pruned", {}, Expected(), True, True),
        ("failed", {"attempt": 1}, Expected(retries=1), True, False),
        ("failed", {"attempt": 1}, Expected(retries=1), False, True),
        ("failed", {"attempt": 2}, Expected(retries=1), True, True),
        ("done", {"ended_at": 1.0}, REPEATED, True, False),
        ("done", {"ended_at": 9e9}, REPEATED, True, True),
    ],
)
def test_when_a_run_counts_as_finished(
    state: str, more: dict[str, Any], expected: Expected, is_running: bool, is_finished: bool
) -> None:
    handle = object.__new__(StudyHandle)
    handle._expected, handle._began_at = expected, 1e9
    assert handle._is_finished(Run("a", state, {}, "", {}, {}, **more), is_running) is is_finished


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_an_interrupted_loop_leaves_the_runs_alone(entered_bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    handle = build_study(entered_bench).run(slots=3)
    release(entered_bench, 1)
    for _ in handle:
        break
    assert handle.is_running
    loop = iter(handle)
    next(loop)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(handle._process, "wait", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            next(loop)
    assert "the runs go on" in capsys.readouterr().err
    release(entered_bench, 2, 3)
    assert handle.wait().states == {"x=1": "done", "x=2": "done", "x=3": "failed"}


def test_a_run_that_ends_while_it_is_read_is_not_lost(entered_bench: Bench) -> None:
    """Its files were read before it ended, its process was looked for after that."""
    release(entered_bench, 1, 2, 3)
    handle = build_study(entered_bench).run(slots=3)
    handle.wait()
    path = handle.runs["x=1"].dir
    history = load_history(path)
    assert history.last is not None
    before = History((replace(history.last, outcome=None, codes={}, ended_at=None),))
    assert conclude(path, before, ("run",)).state is handles.State.DONE
    for file in Path(path).glob("run.exit.*"):
        file.unlink()
    Path(path, "outcome.1").unlink()
    assert conclude(path, before, ("run",)).state is handles.State.LOST


# ---------------------------------------------------------------- best and table


def test_best_and_tables_of_chosen_runs(entered_bench: Bench) -> None:
    command = "echo acc={x}.{seed}"
    keys = {"params": {"x": [1, 2], "seed": [3, 4]}, "metrics": {"acc": "acc=({number})"}, "resources": {"gpus": 0}}
    handle = Study("grid", command=command, **keys).run(slots=2)
    assert handle.wait().ok
    assert handle.best("acc").name == handle.best().name == "x=2,seed=4"
    assert handle.best("acc:min").metrics == {"acc": 1.3}
    assert handle.best("acc", where="x == 1").name == "x=1,seed=4"
    with pytest.raises(NotFoundError, match="acc"):
        handle.best("ac")
    chosen = handle.table(where="seed == 3", sort="x", metrics="acc").splitlines()
    assert [line.split()[0] for line in chosen[2:]] == ["x=1,seed=3", "x=2,seed=3"]
    grouped = handle.table(group_by=["seed"]).splitlines()
    assert [line.split()[:2] for line in grouped[2:]] == [["2", "2"], ["1", "2"]]
    with pytest.raises(UsageError, match="where"):
        handle.table(where="x ==")


def test_there_is_no_best_run_yet(entered_bench: Bench) -> None:
    handle = build_study(entered_bench).run(slots=3)
    with pytest.raises(UsageError, match=r"wait\(\)"):
        handle.best("loss")
    release(entered_bench, 3)
    until(lambda: any(run.state == "failed" for run in handle.runs), "one has failed")
    with pytest.raises(UsageError, match="1 failed"):
        handle.best("loss")
    handle.stop()
    with pytest.raises(UsageError, match=r"no run is done.*1 failed.*\n.*log"):
        handle.best("loss")


@pytest.mark.needs(search=True)
def test_the_best_of_two_objectives_goes_by_the_first(entered_bench: Bench) -> None:
    keys = {"params": {"x": {"uniform": [0, 1]}}, "command": "echo a={x}; echo acc={x}", "resources": {"gpus": 0}}
    metrics = {"a": "a=({number})", "acc": "acc=({number})"}
    search = {"metric": ["a", "acc"], "direction": ["min", "max"], "trials": 5, "sampler": "random"}
    handle = Study(name="two", metrics=metrics, search=search, **keys).run(slots=1)
    assert handle.wait().ok
    assert handle.best().metrics["a"] == min(run.metrics["a"] for run in handle.runs)


# ---------------------------------------------------------------- watching


def test_a_supervisor_that_was_killed_names_a_command_for_its_runs(entered_bench: Bench) -> None:
    handle = build_study(entered_bench).run(root="my runs", slots=3)
    until(lambda: len(handle.runs) == 3 and all(run.state == "running" for run in handle.runs), "they run")
    os.kill(handle._process.pid, signal.SIGKILL)
    outcome = handle.wait()
    assert (outcome.exit_code, set(outcome.states.values())) == (4, {"running"})
    message = outcome.messages.splitlines()[-1]
    assert message == "the supervisor was ended by signal 9; its runs go on: assay ls 'my runs/waits'"
    release(entered_bench, 1, 2, 3)
    until(lambda: {run.state for run in handle.runs} == {"done", "failed"}, "they end")


def test_watching_in_a_terminal_prints_lines(entered_bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    handle = build_study(entered_bench).run(slots=3)
    timer = threading.Timer(0.3, release, [entered_bench, 1, 2, 3])
    timer.start()
    handle.watch()
    timer.join()
    lines = capsys.readouterr().err.splitlines()
    assert {line.split(" after")[0] for line in lines if line.startswith(("finished", "failed"))} == {
        "finished x=1",
        "finished x=2",
        "failed   x=3",
    }
    assert lines[-1].startswith("waits: 3/3 finished: 2 done, 1 failed")


def test_interrupting_the_watching_leaves_the_runs_alone(entered_bench: Bench) -> None:
    program = """
import assay, sys
handle = assay.run("study.yml", jobs=3)
print("begun", flush=True)
handle.watch()
print(handle.is_running, flush=True)
"""
    build_study(entered_bench).save("study.yml")
    script = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    until(lambda: len(list(entered_bench.root.glob("waits/*/lease.1"))) == 3, "all runs have begun")
    script.send_signal(signal.SIGINT)
    out, err = script.communicate(timeout=60)
    assert out.splitlines()[0] == "begun"
    assert "the runs go on" in out.splitlines()[1], err
    assert out.splitlines()[2] == "True"
    release(entered_bench, 1, 2, 3)
    until(lambda: sum(run.state == "done" for run in assay.runs("waits")) == 2, "they went on")


NOTEBOOK = """
import json
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

shell = InteractiveShell.instance()
cells = [
    "import assay, assay.handle; assay.handle._REDRAW_S = 0.2",
    "study = assay.Study('nb', command='sleep {t}', params={'t': [0.1, 0.8]}, resources={'gpus': 0})",
    "study.run(slots=2).watch()",
]
with capture_output() as lines:
    for cell in cells:
        shell.run_cell(cell).raise_error()
shell.kernel = object()
with capture_output() as pages:
    for cell in ("handle = study.run(slots=2, force=True)", "handle.watch()"):
        shell.run_cell(cell).raise_error()
shown = [output.data["text/html"] for output in pages.outputs]
for value in (shell.user_ns["handle"], shell.user_ns["handle"].runs):
    shown.append(shell.display_formatter.format(value)[0]["text/html"])
print(json.dumps({"lines": lines.stderr, "pages": shown}))
"""


def test_a_notebook_shows_a_view_that_is_updated(entered_bench: Bench) -> None:
    pytest.importorskip("IPython", reason="needs IPython: pip install ipython")
    done = subprocess.run([sys.executable, "-c", NOTEBOOK], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout.splitlines()[-1])
    assert "finished t=0.1" in shown["lines"], "without a kernel"
    pages = shown["pages"]
    assert len(pages) >= 4, "the view, its updates, the handle and its runs"
    assert "nb (running)" in pages[0]
    assert "nb (finished)" in pages[-2]
    for page in pages[-2:]:
        assert "t=0.1" in page
        assert "2 done" in page


def test_names_are_escaped_and_long_tables_are_cut() -> None:
    run = Run("<em>&\x1b[31m", "failed", {"p": "<script>"}, "", {"<i>": 1.0}, {})
    other = Run("x", "done", {"p": 2}, "", {}, {})
    html = Runs("<study>", "", [run, other, *[other] * 200])._repr_html_()
    for bad in ("<script", "<em>", "<i>", "<study>", "\x1b"):
        assert bad not in html
    assert "&lt;em&gt;&amp;" in html
    assert "and 102 more" in html
    assert "201 done" in html
    assert Runs("empty", "", [])._repr_html_().count("<table") == 0


# ---------------------------------------------------------------- a study of Python: the same runs and folders as the command line


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
    rows = json.loads(entered_bench.assay("run", "saved.yml", "--dry-run", "--json").stdout)
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
