"""`assay try` and `assay tries`: real repositories; the runs are those of this process where a process is not the point."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.finished_study import Result
from tests.fork_server import start_assay
from tests.in_process_jobs import run_in_process
from tests.study_processes import until

from assay.cli.main import run
from assay.errors import UsageError
from assay.follow.api import StudyLocation
from assay.gate.passes import digest_command, digest_environment
from assay.gate.tries_ledger import TrySide
from assay.gate.try_command import parse_metric
from assay.gate.try_runs import Result as RunResult
from assay.gate.try_runs import build_spec, load_value, refuse_missing
from assay.values.run import State

# The seed decides the noise, which `salt` makes a side's own; `gain` is what an idea brings.
TRAIN = """\
import random, sys
with open("settings") as file:
    gain, salt = map(float, file.read().split())
print("step 1 val_loss 9.0")
print("val_loss:", 1 - gain + 0.02 * random.Random(int(sys.argv[1]) * 7919 + salt).random())
"""
METRIC = ("--metric", "val_loss:min")
COMMAND = ("--", "python3", "train.py", "{seed}")


def echo(text: str, then: str = "") -> str:
    """A training that prints this, with its seed for each @."""
    return f"import sys, time\nprint({text!r}.replace('@', sys.argv[1]))\n{then}\n"


class Lab:
    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capsys = capsys

    def git(self, *arguments: str) -> str:
        words = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", *arguments]
        return subprocess.run(words, cwd=self.folder, capture_output=True, text=True, check=True).stdout.strip()

    def write(self, *, gain: float = 0.0, salt: int = 0, train: str = TRAIN) -> None:
        (self.folder / "settings").write_text(f"{gain}\n{salt}\n")
        (self.folder / "train.py").write_text(train)

    def commit(self, **settings: Any) -> str:
        self.write(**settings)
        self.git("add", "-A", "--", ".", ":!runs")
        self.git("commit", "-q", "--allow-empty", "-m", "the base")
        return self.git("rev-parse", "HEAD")

    def call(self, *words: str) -> Result:
        self._capsys.readouterr()
        return Result(run(words), *self._capsys.readouterr())

    def attempt(self, *options: str, command: tuple[str, ...] = COMMAND, metric: tuple[str, ...] = METRIC) -> Result:
        most = () if "--seeds" in (*options, *command) else ("--seeds", "5")
        return self.call("try", "an idea", *metric, *most, "-j", "4", *options, *command)

    def load(self, *options: str, **more: Any) -> Any:
        """The code and what `--json` prints."""
        found = self.attempt("--json", *options, **more)
        facts = json.loads(found.out)
        return {**facts, "code": found.code, "notes": "\n".join(facts["notes"])}

    def runs(self) -> set[str]:
        folder = self.folder / "runs" / "try"
        return {path.name for path in folder.iterdir() if not path.name.startswith(".")} if folder.is_dir() else set()

    def refuse(self, found: Result, *texts: str, code: int = 2) -> None:
        assert (found.code, found.out) == (code, ""), found.err
        for text in texts:
            assert text in found.err.replace("\n  ", " ")


@pytest.fixture
def real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Lab:
    """Every run is a job, as it is for users."""
    folder = tmp_path / "lab"
    folder.mkdir()
    monkeypatch.chdir(folder)
    found = Lab(folder, capsys)
    found.git("init", "-q", "-b", "main", "--template=")
    found.commit()
    return found


@pytest.fixture
def lab(real: Lab, monkeypatch: pytest.MonkeyPatch) -> Lab:
    run_in_process(monkeypatch, "train.py")
    return real


def test_an_improvement_is_better_and_nothing_of_the_user_is_touched(lab: Lab) -> None:
    lab.write(gain=0.2, salt=1)
    before = lab.git("status", "--porcelain"), lab.git("rev-parse", "HEAD"), lab.git("stash", "list")
    facts = lab.load("--seeds", "20")
    assert (facts["code"], facts["verdict"], facts["pairs"], facts["metric"]) == (0, "better", 6, "val_loss")
    assert facts["interval"][0] < facts["effect"] < facts["interval"][1] < 0
    assert facts["effect"] == pytest.approx(-0.2, abs=0.02)
    assert facts["commands"] == {"base": "python3 train.py {seed}", "head": "python3 train.py {seed}"}
    assert facts["cost"]["runs"] == facts["cost"]["new_runs"] == 12
    assert [row["seed"] for row in facts["values"]] == [1, 2, 3, 4, 5, 6]
    lab.git("add", "--intent-to-add", "--", "settings")
    assert before == (
        lab.git("status", "--porcelain", "--", ":!runs"),
        lab.git("rev-parse", "HEAD"),
        lab.git("stash", "list"),
    )


def test_worse_the_same_undecided_and_nothing_to_run(lab: Lab) -> None:
    same = lab.load()
    assert (same["code"], same["verdict"], same["pairs"], lab.runs()) == (3, "same", 0, set())
    assert "nothing was run" in same["reason"]
    lab.git("commit", "-q", "--allow-empty", "-m", "another commit of the same files")
    assert lab.attempt("--base", "HEAD~1").code == 3
    assert lab.runs() == set()
    lab.write(gain=-0.2, salt=1)
    assert lab.attempt().code == 1
    assert lab.attempt(metric=("--metric", "val_loss:max")).code == 0
    lab.write(salt=1)
    noise = lab.load("--seeds", "6", "--min-effect", "0.01%")
    assert (noise["code"], noise["verdict"], noise["pairs"]) == (3, "undecided", 6)
    lab.write()
    (lab.folder / "README").write_text("about")
    equal = lab.load()
    assert (equal["code"], equal["verdict"], equal["pairs"]) == (3, "same", 5)
    assert "equal bit for bit" in equal["reason"]


def test_new_files_are_part_of_the_idea_and_ignored_ones_are_on_neither_side(lab: Lab) -> None:
    (lab.folder / ".gitignore").write_text("data\n")
    text = "import os, sys\nif os.path.exists('data'): sys.exit(7)\nprint('val_loss', os.path.exists('bonus') or 2)\n"
    lab.commit(train=text.replace("or 2", "and int(sys.argv[1]) / 10 or 1 + int(sys.argv[1])"))
    (lab.folder / "data").write_text("not in git")
    (lab.folder / "bonus").write_text("")
    assert lab.attempt().code == 0


def test_a_folder_of_the_repository_is_where_the_command_runs_and_seeds_have_an_order(
    real: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run ends last."""
    inner = real.folder / "inner"
    inner.mkdir()
    (inner / "go.sh").write_text('test "$1" != 1 || sleep 0.3\necho "val_loss $(cat ../settings)$1" | head -n 1\n')
    (real.folder / "settings").write_text("1.")
    real.git("add", "-A")
    real.git("commit", "-q", "-m", "base")
    (real.folder / "settings").write_text("0.")
    monkeypatch.chdir(inner)
    facts = real.load("--root", "../runs", command=("--", "sh", "go.sh", "{seed}"))
    assert facts["code"] == 0
    assert facts["values"] == [{"seed": n, "base": float(f"1.{n}"), "head": float(f"0.{n}")} for n in range(1, 6)]
    found = real.attempt("--root", "../runs", command=("--", "sh", "go.sh", "{seed}"))
    assert "assay tries --root ../runs" in found.out
    line = next(line for line in found.out.splitlines() if line.startswith("how the code differs"))
    shown = real.call(*line.partition(": assay ")[2].split())
    assert "\n-1." in shown.out
    assert "\n+0." in shown.out


def test_two_commits_and_two_environments(lab: Lab) -> None:
    first = lab.git("rev-parse", "HEAD")
    lab.commit(gain=0.2)
    lab.write(gain=-5)
    facts = lab.load("--a-rev", first, "--b-rev", "HEAD")
    assert facts["code"] == 0
    assert "not committed are on neither side" in facts["notes"]
    lab.commit(train="import os, sys\nprint('val_loss 1.' + os.environ['EXTRA'] + sys.argv[1])\n")
    facts = lab.load("--a-env", "env EXTRA=5", "--b-env", "env EXTRA=2")
    assert (facts["code"], facts["verdict"]) == (0, "better")
    assert facts["commands"]["base"] == "env EXTRA=5 python3 train.py {seed}"
    text = TrySide("", "", "", ("echo {seed}",), "env A=1").build_command(3)
    assert text == "env A=1 bash -c 'echo 3'", "one word is a text for the shell"


def test_a_virtual_environment_is_an_environment(real: Lab, tmp_path: Path) -> None:
    for name, value in (("old", "0.7"), ("new", "0.5")):
        folder = tmp_path / name / "bin"
        folder.mkdir(parents=True)
        for program, text in (("python", ""), ("figure", f'#!/bin/sh\necho "val_loss {value}$1"\n')):
            (folder / program).write_text(text)
            (folder / program).chmod(0o755)
    sides = ("--a-env", str(tmp_path / "old"), "--b-env", str(tmp_path / "new"))
    assert real.attempt(*sides, command=("--", "figure", "{seed}")).code == 0


@pytest.mark.parametrize(
    ("text", "metric", "value"),
    [
        ("val_loss 0.5", "val_loss:min", 0.5),
        ("val_loss 9\nval_loss=0.5", "val_loss:min", 0.5),
        ("epoch 3, val_loss: 0.5 other: 7", "val_loss:min", 0.5),
        ("{'val_loss': 0.5}", "val_loss:min", 0.5),
        ("final score -> 0.5", "score:min=score -> ({number})", 0.5),
        ("my_val_loss 8\nval_loss 0.5\nval_loss_ema 9", "val_loss", 0.5),
        ("loss 3, acc 4", "loss", 3.0),
        ("loss: 1,234.5", "loss", math.nan),  # a part of a number is not a value
        ("loss 0.5\nloss 0,17", "loss", math.nan),
        ("loss 0.5\nloss 0,17", "loss=loss ({number})", math.nan),
        ("loss n/a\nloss 0.5\ndone", r"loss=loss (\S+)", 0.5),
        ("loss 12/31", "loss", None),
        ("loss=0x11", "loss", None),
        ("val_loss 1\nval_loss: diverged", "val_loss", math.nan),  # and not the value before it
        ("val_loss 1\n{'val_loss': None, 'step': 3}", "val_loss", math.nan),
        ("val_loss=N/A", "val_loss", math.nan),
        ("val_loss 1\nval_loss did not improve, None", "val_loss", 1.0),
    ],
)
def test_where_the_metric_is_read(tmp_path: Path, text: str, metric: str, value: float | None) -> None:
    (tmp_path / "train.log").write_text(f"{text}\n")
    wanted = parse_metric(metric, "--metric")
    spec = build_spec(TrySide("c", "", "", ("x",)), 1, wanted)
    assert load_value(str(tmp_path), spec, wanted) == pytest.approx(value, nan_ok=True)
    (tmp_path / "metrics").mkdir()
    (tmp_path / "metrics" / "a1-r0-host-1-1.jsonl").write_text(f'{{"step": 1, "{wanted.name}": 7}}\n')
    logged = load_value(str(tmp_path), spec, wanted)
    assert wanted.pattern or logged == 7, "what the script logs comes before what it prints"


@pytest.mark.parametrize(
    ("text", "metric", "words"),
    [
        ("val_loss 1", "val_los:min", ("the base has no metric val_los", "did you mean 'val_loss'")),
        ("val_loss 1", "x:min=nothing ([0-9]+)", ("the first group of the pattern of x finds no number",)),
        ("val_loss 1", "x:min=val_(loss): (.*)", ("the first group of the pattern of x finds no number",)),
        ("val_loss: 0.5it/s", "val_loss:min", ("is not a plain number", "--metric 'val_loss:min=REGEX'")),
    ],
)
def test_a_metric_that_never_appears(tmp_path: Path, text: str, metric: str, words: tuple[str, ...]) -> None:
    (tmp_path / "train.log").write_text(f"{text}\n")
    wanted = parse_metric(metric, "--metric")
    spec = build_spec(TrySide("c", "", "", ("x",)), 1, wanted)
    with pytest.raises(UsageError) as caught:
        refuse_missing(
            wanted,
            RunResult(None, State.DONE, str(tmp_path), 0, True, spec, ""),
            "the base",
            StudyLocation(str(tmp_path.parent), "try"),
        )
    assert all(each in caught.value.render() for each in (*words, "see what it prints: assay logs "))


def test_an_idea_that_does_not_run_is_worse_at_once(lab: Lab) -> None:
    lab.write(train="import sys\nsys.exit('NameError: lr')\n")
    facts = lab.load()
    assert (facts["code"], facts["verdict"], len(facts["values"])) == (1, "worse", 2)
    assert "2 runs of the head failed: NameError: lr (see assay logs " in facts["notes"]
    lab.write(train="import sys\nsys.exit(3)\n")
    assert "2 runs of the head failed: train ended with exit code 3 (see assay logs " in lab.attempt().out
    lab.write(train=TRAIN.replace("val_loss", "loss"))
    lab.refuse(lab.attempt(), "the head has no metric val_loss", "did you mean 'loss'")


def test_a_seed_that_crashes_or_diverges_counts_as_worse_for_its_side(lab: Lab) -> None:
    ends = "if sys.argv[1] == '3': sys.exit(1)\nif sys.argv[1] == '5': print('val_loss nan')\n"
    lab.write(gain=0.2, salt=1, train=TRAIN + ends)
    facts = lab.load("--seeds", "7")
    assert facts["values"][2]["head"] is None
    assert facts["pairs"] > 6  # two of six point the other way
    assert "1 run of the head failed" in facts["notes"]
    assert "1 run of the head ended without a finite value" in facts["notes"]
    assert "counts as worse" in facts["notes"]
    lab.write(gain=0.2, train=f"{TRAIN}print('val_loss: diverged')\n")
    assert lab.load()["verdict"] == "worse"


def test_a_base_that_does_not_run_is_run_again_in_the_next_call(lab: Lab, tmp_path: Path) -> None:
    text = f"import sys\nprint(open('{tmp_path}/data').read(), sys.argv[1], sep='')\n"
    lab.commit(train=f"with open('settings') as file: more = file.read()\n{text}")
    lab.write(gain=1, train=text.replace("/data", "/other"))
    (tmp_path / "other").write_text("val_loss 0.")
    lab.refuse(lab.attempt(), "the base", "does not run: FileNotFoundError", "see assay logs ", "absolute paths")
    (tmp_path / "data").write_text("val_loss 1.")
    assert lab.attempt().code == 0


def test_a_time_limit_counts_as_a_failure(real: Lab) -> None:
    real.write(train="import time\nprint('begun', flush=True)\ntime.sleep(30)\n")
    facts = real.load("--timeout", "0.5s")
    assert (facts["code"], facts["verdict"]) == (1, "worse")
    assert "longer than its limit, and printed last: begun" in facts["notes"]


def test_an_earlier_run_that_took_longer_than_the_limit_has_failed(lab: Lab) -> None:
    lab.commit(train=f"import time\ntime.sleep(0.05)\n{TRAIN}")
    lab.write(gain=-0.2)
    assert lab.load()["verdict"] == "worse"
    lab.refuse(lab.attempt("--timeout", "0.03s"), "does not run: it took longer than its limit")


def test_seeds_that_change_nothing_are_named_and_a_fraction_near_zero_is_refused(lab: Lab) -> None:
    lab.commit(train=echo("val_loss 1.5"))
    lab.write(train=echo("val_loss 1.25"))
    facts = lab.load()
    assert (facts["code"], facts["verdict"], facts["interval"]) == (3, "undecided", None), "one pair shows nothing"
    assert facts["reason"].startswith("the seed changes nothing on the base and the head: all pairs are one pair")
    lab.git("checkout", "-q", "HEAD^", "--", ".")
    lab.git("commit", "-q", "-m", "with noise")
    lab.write(train=echo("val_loss 0.5"))
    assert "the seed changes nothing on the head: its runs are one run" in lab.attempt().out
    lab.commit(train="import sys\nprint('val_loss', int(sys.argv[1]) % 3 - 1)\n")
    lab.write(train=echo("val_loss -@"))
    lab.refuse(lab.attempt(), "val_loss of the base is near zero", "--min-change 0.01")
    assert lab.attempt("--min-change", "0.01").code == 0


REFUSED: list[tuple[tuple[str, ...], str]] = [
    ((*METRIC, "--", "python3", "train.py"), "the command has no {seed}"),
    (METRIC, "there is no command"),
    ((*METRIC, "--base", "nowhere", *COMMAND), "there is no commit 'nowhere'"),
    ((*METRIC, "--b-rev", "nowhere", *COMMAND), "there is no commit 'nowhere'"),
    ((*METRIC, "--min-effect", "5", *COMMAND), "--min-effect '5' is not a fraction from 0 to below 100%"),
    ((*METRIC, "--min-effect", "1%", "--min-change", "1", *COMMAND), "set the same thing"),
    ((*METRIC, "--min-change", "nan", *COMMAND), "--min-change nan is not an amount"),
    ((*METRIC, "--seeds", "4", *COMMAND), "--seeds"),
    ((*METRIC, "--budget", "much", *COMMAND), "is not a budget"),
    ((*METRIC, "--a-env", "/no/such/venv", *COMMAND), "there is neither a folder nor a program '/no/such/venv'"),
    ((*METRIC, "--b-env", ".", *COMMAND), "--b-env: the folder . has no bin/python"),
    ((*METRIC, "--", "no-such-program", "{seed}"), "the program 'no-such-program' was not found"),
    (("--metric", "bits_per_byte", *COMMAND), "does not show whether lower or higher is better"),
    (("--metric", "val_loss:down", *COMMAND), "is not NAME:min or NAME:max"),
    (("--metric", "val_loss:min=(", *COMMAND), "is not a regular expression"),
    (("--metric", "val_loss:min=loss", *COMMAND), "has no group"),
    (("--metric", "", *COMMAND), "--metric"),
]


def test_what_is_refused(lab: Lab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In silence on stdout, and before anything is run."""
    lab.write(gain=0.2)
    for words, text in REFUSED:
        lab.refuse(lab.call("try", "idea", *words), text)
    lab.refuse(
        lab.call("try", "idea", *METRIC, "--", "python3", f"{lab.folder}/train.py", "{seed}"),
        "both sides would use it as it is",
        "name it as seen from this folder: train.py",
    )
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", str(lab.folder))
        lab.refuse(lab.attempt(), "PYTHONPATH leads both sides to your own files")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "scipy.special", None)
        lab.refuse(lab.attempt(), "assay try needs an optional part", "pip install 'assay[stats]'")
    lab.refuse(lab.call("tries", "--seeds", "6"), "--seeds is for --confirm")
    assert lab.runs() == set()
    lab.folder = tmp_path / "plain"
    lab.folder.mkdir()
    monkeypatch.chdir(lab.folder)
    lab.refuse(lab.attempt(), "is not in a git repository")
    lab.git("init", "-q")
    lab.refuse(lab.attempt(), "there is no commit 'HEAD'")


@pytest.mark.needs(farms=True)
def test_an_unknown_farm_is_refused(lab: Lab) -> None:
    lab.refuse(lab.attempt("--on", "moon"), "moon")


def test_nothing_is_computed_twice(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    def count(*options: str, **more: Any) -> int:
        return int(lab.load(*options, **more)["cost"]["new_runs"])

    lab.write(gain=0.2)
    assert count() == 10
    again = lab.load()
    assert (again["code"], again["cost"]["new_runs"], again["pairs"]) == (0, 0, 5)
    (lab.folder / ".env").write_text("TOKEN=abc")
    assert count() == 0, "the runs and the secrets of the folder are not part of the idea"
    lab.write(gain=0.3)
    assert count() == 5, "the base is there"
    lab.git("commit", "-q", "-a", "-m", "the same files as a commit")
    assert count("--base", "HEAD~1") == 0
    assert count("--base", "HEAD~1", metric=("--metric", "step:max")) == 0
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    assert count("--base", "HEAD~1") == 10, "another environment"
    name = min(lab.runs())
    (lab.folder / "runs" / "try" / name / "train.log").unlink()
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    for variables in ({}, {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}):  # the run is of one of the two
        with monkeypatch.context() as patch:
            for variable, value in variables.items():
                patch.setenv(variable, value)
            found = lab.attempt("--base", "HEAD~1")
            if found.code:
                break
    lab.refuse(found, f"{name} has lost its output train.log", "assay rerun", code=4)


def test_a_package_of_any_name_makes_another_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    places = [tmp_path / name / "lib/python3.11/site-packages" for name in ("on the path", "of a side")]
    for place in places:
        (place / "einops-0.7.0.dist-info").mkdir(parents=True)
        (place.parents[2] / "bin").mkdir()
        (place.parents[2] / "bin/python").touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{places[0].parents[2]}/bin", prepend=":")

    def look() -> tuple[str, str]:
        machine = digest_environment(str(tmp_path))
        return machine, digest_command(machine, f"env 'VIRTUAL_ENV={places[1].parents[2]}'", ("python", "x"))

    seen = [look()]
    assert look() == seen[0]
    for place, is_same in zip(places, (False, True), strict=True):
        (place / "einops-0.7.0.dist-info").rename(place / "einops-0.8.0.dist-info")
        seen.append(look())
        assert (seen[-1][0] == seen[-2][0], seen[-1][1] == seen[-2][1]) == (is_same, False)


def test_an_interrupted_try_leaves_nothing_behind_and_continues(real: Lab, tmp_path: Path) -> None:
    real.write(train=f"import sys, time\nif sys.argv[1] == '2': time.sleep(617)\n{TRAIN}")
    with (tmp_path / "log").open("w") as log:
        words = ["try", "slow", *METRIC, "-j", "2", *COMMAND]
        process = start_assay(words, cwd=real.folder, env=os.environ, log=log)
        until(lambda: any(name.endswith("seed2") for name in real.runs()), "the second seed")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    assert "continue with: assay try slow" in (tmp_path / "log").read_text()


def test_more_seeds_after_a_look_and_a_budget_are_noted(lab: Lab) -> None:
    (lab.folder / ".gitmodules").write_text('[submodule "x"]\n  path = x\n  url = ./x\n')
    slow = f"import time\ntime.sleep(0.02)\n{TRAIN}"
    lab.commit(train=slow)
    lab.write(salt=3, train=slow)
    assert lab.load()["notes"] == "the files of submodules are on neither side"
    assert "\nasked before with --seeds 5" in lab.load("--seeds", "7")["notes"]
    lab.write(salt=4, train=slow)
    facts = lab.load("--seeds", "20", "--budget", "0.00004h")
    assert (facts["code"], facts["verdict"]) == (3, "undecided")
    assert "the budget of 0.00004h is used" in facts["reason"]
    assert 0 < facts["cost"]["runs"] < 40


def test_the_ledger_lists_what_was_tried_and_keeps_what_is_confirmed(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "nothing was tried yet" in lab.call("tries").out
    assert "there is nothing to confirm" in lab.call("tries", "--confirm").err
    lab.write(gain=0.2, salt=1)
    lab.call("try", "a good one", *METRIC, "-j", "4", *COMMAND)
    # with other seeds it is worse: were it the same, it would be kept by chance in some runs of this test
    lucky = "import sys\nif int(sys.argv[1]) < 100: sys.exit(print('val_loss 0.' + sys.argv[1]))\n"
    lab.write(train=f"{lucky}{TRAIN}", gain=-0.2, salt=2)
    lab.call("try", "a lucky one", *METRIC, "-j", "4", *COMMAND)
    listed = lab.call("tries")
    assert "a good one" in listed.out
    assert listed.out.count("not yet") == 2
    with monkeypatch.context() as narrow:
        narrow.setattr("assay.show.console.terminal_width", lambda _stream: 80)
        assert "(no room here for base, when: widen the terminal, or --json)" in lab.call("tries").out
    confirmed = lab.call("tries", "--confirm", "--seeds", "6", "-j", "4", "--json")
    kept = {each["idea"]: each["confirmation"]["is_kept"] for each in json.loads(confirmed.out)}
    assert kept == {"a good one": True, "a lucky one": False}
    before = lab.runs()
    fresh = [int(name.rpartition("seed")[2]) for name in before if int(name.rpartition("seed")[2]) > 1000]
    assert len(fresh) == 24, "six pairs of each"
    assert len(set(fresh)) == 12, "each try has seeds of its own"
    assert "not kept (p " in lab.call("tries").out
    lab.call("tries", "--confirm", "--seeds", "6", "-j", "4", "--json")
    assert lab.runs() == before


def test_a_secret_of_the_command_is_not_in_the_ledger(lab: Lab) -> None:
    lab.write(gain=0.2)
    assert lab.attempt(command=(*COMMAND, "--token", "hf_abcdef0123456789")).code == 0
    ledger = lab.folder / "runs" / "try" / ".assay" / "tries.jsonl"
    assert "abcdef0123456789" not in ledger.read_text()
    lab.refuse(lab.call("tries", "--confirm"), "its command has a secret")
    line = json.loads(ledger.read_text().splitlines()[0])
    for damage in ({"at": 1e300}, {"a": {**line["a"], "words": []}}):
        ledger.write_text(json.dumps({**line, **damage}) + "\n")
        assert "nothing was tried yet" in lab.call("tries").ended(0).out, "a damaged line is ignored"
