"""`assay try` and `assay tries`: real repositories, real runs."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from assay.cli.main import run
from assay.gate.try_command import parse_metric
from assay.gate.try_runs import build_pattern

# The seed decides the noise, which `salt` makes a side's own; `gain` is what an idea brings.
TRAIN = """\
. ./settings
awk -v seed="$1" -v salt="$salt" -v gain="$gain" 'BEGIN {
  srand(seed * 7919 + salt); rand()
  print "step 1 val_loss 9.0"
  print "val_loss: " 1 - gain + 0.02 * rand()
}'
"""
METRIC = ("--metric", "val_loss:min")
COMMAND = ("--", "sh", "train.sh", "{seed}")


class Result(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def facts(self) -> Any:
        return json.loads(self.out)


class Lab:
    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capsys = capsys

    def git(self, *arguments: str) -> str:
        words = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", *arguments]
        return subprocess.run(words, cwd=self.folder, capture_output=True, text=True, check=True).stdout.strip()

    def write(self, *, gain: float = 0.0, salt: int = 0, train: str = TRAIN) -> None:
        (self.folder / "settings").write_text(f"gain={gain}\nsalt={salt}\n")
        (self.folder / "train.sh").write_text(train)

    def commit(self, **settings: Any) -> str:
        self.write(**settings)
        self.git("add", "-A", "--", ".", ":!runs")
        self.git("commit", "-q", "--allow-empty", "-m", "the base")
        return self.git("rev-parse", "HEAD")

    def call(self, *words: str) -> Result:
        self._capsys.readouterr()
        code = run(words)
        return Result(code, *self._capsys.readouterr())

    def attempt(self, *options: str, command: tuple[str, ...] = COMMAND, metric: tuple[str, ...] = METRIC) -> Result:
        most = () if "--seeds" in (*options, *command) else ("--seeds", "5")
        return self.call("try", "an idea", *metric, *most, "-j", "4", *options, *command)

    def runs(self) -> set[str]:
        folder = self.folder / "runs" / "try"
        return {path.name for path in folder.iterdir() if not path.name.startswith(".")} if folder.is_dir() else set()


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Lab:
    folder = tmp_path / "lab"
    folder.mkdir()
    monkeypatch.chdir(folder)
    found = Lab(folder, capsys)
    found.git("init", "-q", "-b", "main")
    found.commit()
    return found


# ---------------------------------------------------------------- verdicts


def test_an_improvement_is_better_and_nothing_of_the_user_is_touched(lab: Lab) -> None:
    lab.write(gain=0.2, salt=1)
    before = lab.git("status", "--porcelain"), lab.git("rev-parse", "HEAD"), lab.git("stash", "list")
    found = lab.attempt("--json", "--seeds", "20")
    assert found.code == 0
    facts = found.facts
    assert (facts["verdict"], facts["pairs"], facts["metric"]) == ("better", 6, "val_loss")
    assert facts["interval"][0] < facts["effect"] < facts["interval"][1] < 0
    assert facts["effect"] == pytest.approx(-0.2, abs=0.02)
    assert facts["commands"] == {"base": "sh train.sh {seed}", "head": "sh train.sh {seed}"}
    assert facts["cost"]["runs"] == facts["cost"]["new_runs"] == 12
    assert [row["seed"] for row in facts["values"]] == [1, 2, 3, 4, 5, 6]
    lab.git("add", "--intent-to-add", "--", "settings")
    assert before == (
        lab.git("status", "--porcelain", "--", ":!runs"),
        lab.git("rev-parse", "HEAD"),
        lab.git("stash", "list"),
    )


def test_a_worsening_is_worse_and_a_higher_metric_may_be_better(lab: Lab) -> None:
    lab.write(gain=-0.2, salt=1)
    assert lab.attempt().code == 1
    assert lab.attempt(metric=("--metric", "val_loss:max")).code == 0


def test_a_change_that_changes_nothing_is_the_same(lab: Lab) -> None:
    (lab.folder / "README").write_text("about")
    found = lab.attempt("--json")
    assert (found.code, found.facts["verdict"], found.facts["pairs"]) == (3, "same", 5)
    assert "equal bit for bit" in found.facts["reason"]


def test_noise_is_undecided_after_the_last_pair(lab: Lab) -> None:
    lab.write(salt=1)
    found = lab.attempt("--json", "--seeds", "6", "--min-effect", "0.01%")
    assert (found.code, found.facts["verdict"], found.facts["pairs"]) == (3, "undecided", 6)


def test_identical_code_runs_nothing(lab: Lab) -> None:
    found = lab.attempt("--json")
    assert (found.code, found.facts["verdict"], found.facts["pairs"]) == (3, "same", 0)
    assert "nothing was run" in found.facts["reason"]
    assert lab.runs() == set()
    lab.git("commit", "-q", "--allow-empty", "-m", "another commit of the same files")
    assert lab.attempt("--base", "HEAD~1").code == 3
    assert lab.runs() == set()


def test_new_files_are_part_of_the_idea_and_ignored_ones_are_on_neither_side(lab: Lab) -> None:
    (lab.folder / ".gitignore").write_text("data\n")
    lab.commit(train='test ! -e data || exit 7\ntest -e bonus && echo "val_loss 0.5" || echo "val_loss 1.$1"\n')
    (lab.folder / "data").write_text("not in git")
    (lab.folder / "bonus").write_text("")
    assert lab.attempt().code == 0


def test_the_output_root_and_secrets_are_not_part_of_the_idea(lab: Lab) -> None:
    lab.write(gain=0.2, salt=1)
    assert lab.attempt().code == 0
    (lab.folder / ".env").write_text("TOKEN=abc")
    before = lab.runs()
    assert lab.attempt().code == 0  # the runs and the token of the folder change nothing
    assert lab.runs() == before


def test_a_folder_of_the_repository_is_where_the_command_runs(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = lab.folder / "inner"
    inner.mkdir()
    (inner / "go.sh").write_text("cd .. && sh train.sh $1\n")
    lab.commit()
    lab.write(gain=0.2)
    monkeypatch.chdir(inner)
    found = lab.attempt("--root", "../runs", command=("--", "sh", "go.sh", "{seed}"))
    assert found.code == 0
    assert "assay tries --root ../runs" in found.out


def test_two_commits_and_two_environments(lab: Lab) -> None:
    first = lab.git("rev-parse", "HEAD")
    lab.commit(gain=0.2)
    lab.write(gain=-5)
    found = lab.attempt("--a-rev", first, "--b-rev", "HEAD", "--json")
    assert found.code == 0
    assert any("not committed are on neither side" in note for note in found.facts["notes"])
    command = ("--", 'echo "val_loss 1.${EXTRA}{seed}"')
    lab.git("checkout", "-q", "--", ".")
    prefixed = lab.attempt("--a-env", "env EXTRA=5", "--b-env", "env EXTRA=2", "--json", command=command)
    assert (prefixed.code, prefixed.facts["verdict"]) == (0, "better")
    assert prefixed.facts["commands"]["base"].startswith("env EXTRA=5 bash -c ")


def test_a_virtual_environment_is_an_environment(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    for name, text in (("python", ""), ("figure", '#!/bin/sh\necho "val_loss 0.5$1"\n')):
        (tmp_path / "venv" / "bin" / name).write_text(text)
        (tmp_path / "venv" / "bin" / name).chmod(0o755)
    (tmp_path / "venv2" / "bin").mkdir(parents=True)
    for name, text in (("python", ""), ("figure", '#!/bin/sh\necho "val_loss 0.7$1"\n')):
        (tmp_path / "venv2" / "bin" / name).write_text(text)
        (tmp_path / "venv2" / "bin" / name).chmod(0o755)
    sides = ("--a-env", str(tmp_path / "venv2"), "--b-env", str(tmp_path / "venv"))
    assert lab.attempt(*sides, command=("--", "figure", "{seed}")).code == 0


# ---------------------------------------------------------------- the metric


@pytest.mark.parametrize(
    ("text", "metric"),
    [
        ("val_loss 0.{n}", "val_loss:min"),
        ("val_loss=0.{n}", "val_loss:min"),
        ("epoch 3, val_loss: 0.{n} other: 7", "val_loss:min"),
        ("{{'val_loss': 0.{n}}}", "val_loss:min"),
        ("final score -> 0.{n}", "score:min=score -> ({number})"),
        ("my_val_loss 8\nval_loss 0.{n}\nval_loss_ema 9", "val_loss"),
    ],
)
def test_where_the_metric_is_read(lab: Lab, text: str, metric: str) -> None:
    lines = text.format(n="${base}$1").replace("\n", '"; echo "')
    lab.commit(train=f'base=8; echo "{lines}"\n')
    lab.write(train=f'base=5; echo "{lines}"\n')
    found = lab.attempt("--json", metric=("--metric", metric))
    assert found.code == 0, found.err
    assert found.facts["values"][2] == {"seed": 3, "base": 0.83, "head": 0.53}


def test_what_the_script_logs_comes_before_what_it_prints(lab: Lab) -> None:
    script = "import assay, sys\nprint('val_loss 5')\nfor s in range(3): assay.log(step=s, val_loss={v} + int(sys.argv[1]) - s)\n"
    (lab.folder / "train.py").write_text(script.format(v=8))
    lab.commit()
    (lab.folder / "train.py").write_text(script.format(v=7))
    found = lab.attempt("--json", "--seeds", "5", command=("--", sys.executable, "train.py", "{seed}"))
    assert (found.code, found.facts["values"][0]) == (0, {"seed": 1, "base": 7.0, "head": 6.0})


# ---------------------------------------------------------------- failures


def test_an_idea_that_does_not_run_is_worse_at_once(lab: Lab) -> None:
    lab.write(train="echo 'NameError: lr' >&2; exit 1\n")
    found = lab.attempt("--json")
    assert (found.code, found.facts["verdict"], len(found.facts["values"])) == (1, "worse", 2)
    assert any("2 runs of the head failed: NameError: lr (see assay logs " in note for note in found.facts["notes"])
    lab.write(train="exit 3\n")
    assert "2 runs of the head failed: train ended with exit code 3 (see assay logs " in lab.attempt().out


def test_a_seed_that_crashes_or_diverges_counts_as_worse_for_its_side(lab: Lab) -> None:
    lab.write(gain=0.2, salt=1, train=TRAIN + 'test "$1" != 3 || exit 1\ntest "$1" != 5 || echo val_loss nan\n')
    found = lab.attempt("--json", "--seeds", "8")
    assert found.facts["values"][2]["head"] is None
    assert found.facts["pairs"] > 6  # two of six point the other way
    notes = "\n".join(found.facts["notes"])
    assert "1 run of the head failed" in notes
    assert "1 run of the head ended without a finite value" in notes
    assert "counts as worse" in notes


@pytest.mark.parametrize("text", ["val_loss: diverged", "{'val_loss': None, 'step': 3}", "val_loss=N/A"])
def test_a_word_instead_of_the_last_value_is_not_the_value_before_it(lab: Lab, text: str) -> None:
    lab.write(gain=0.2, train=f'{TRAIN}echo "{text}"\n')
    found = lab.attempt("--json")
    assert (found.code, found.facts["verdict"]) == (1, "worse")
    lab.write(train=f'echo "{text}"\n')  # nor is it a name that is missing
    assert lab.attempt("--json").facts["verdict"] == "worse"
    lab.write(gain=0.2, train=f'{TRAIN}echo "val_loss did not improve, None"\n')
    assert lab.attempt("--json").facts["verdict"] == "better"


def refuse(found: Result, *texts: str) -> None:
    assert found.code == 2
    assert found.out == ""
    for text in texts:
        assert text in found.err.replace("\n  ", " ")


def test_a_base_that_does_not_run(lab: Lab) -> None:
    lab.commit(train="cat data\n")
    lab.write()
    refuse(lab.attempt(), "the base", "does not run: cat: data: No such file", "see assay logs ", "absolute paths")


def test_a_metric_that_never_appears(lab: Lab) -> None:
    lab.write(gain=0.2)
    found = lab.attempt(metric=("--metric", "val_los:min"))
    refuse(found, "the base has no metric val_los", "did you mean 'val_loss'", "see what it prints: assay logs ")
    refuse(lab.attempt(metric=("--metric", "x:min=nothing ([0-9]+)")), "the pattern of x finds no number")
    refuse(
        lab.attempt(metric=("--metric", "x:min=val_(loss): (.*)")),
        "the first group of the pattern of x finds no number",
    )
    lab.write(train=TRAIN.replace("val_loss", "loss"))
    refuse(lab.attempt(), "the head has no metric val_loss", "did you mean 'loss'")
    lab.write(train=TRAIN.replace("rand()\n}", 'rand() "it/s"\n}').replace("step 1 val_loss 9.0", ""))
    refuse(lab.attempt(), "what the head prints after val_loss is not a plain number", "--metric 'val_loss:min=REGEX'")


def test_what_failed_in_an_earlier_call_is_run_again(lab: Lab, tmp_path: Path) -> None:
    lab.commit(train=f"cat {tmp_path}/data && sh ./more $1\n")
    (lab.folder / "more").write_text('echo "val_loss 1.$1"\n')
    lab.commit(train=f"cat {tmp_path}/data && sh ./more $1\n")
    (lab.folder / "more").write_text('echo "val_loss 0.$1"\n')
    refuse(lab.attempt(), "does not run")
    (tmp_path / "data").write_text("it is there now\n")
    assert lab.attempt().code == 0


def test_a_time_limit_counts_as_a_failure(lab: Lab) -> None:
    lab.write(train="echo begun; sleep 30\n")
    found = lab.attempt("--timeout", "1s", "--json")
    assert (found.code, found.facts["verdict"]) == (1, "worse")
    assert any("longer than its limit, and printed last: begun" in note for note in found.facts["notes"])


def test_seeds_that_change_nothing_are_said(lab: Lab) -> None:
    lab.commit(train="echo val_loss 1.5 # $1\n")
    lab.write(train="echo val_loss 1.25 # $1\n")
    found = lab.attempt("--json")
    assert found.code == 0
    assert any("the seed changes nothing on the base and the head" in note for note in found.facts["notes"])
    lab.git("checkout", "-q", "HEAD^", "--", ".")
    lab.git("commit", "-q", "-m", "with noise")
    lab.write(train="echo val_loss 0.5 # $1\n")
    assert "the seed changes nothing on the head: its runs are one run" in lab.attempt().out


def test_a_fraction_of_a_metric_near_zero_is_refused(lab: Lab) -> None:
    lab.commit(train='echo "val_loss $((($1 % 3) - 1))"\n')
    lab.write(train='echo "val_loss -$1"\n')
    refuse(lab.attempt(), "val_loss of the base is near zero", "--min-change 0.01")
    assert lab.attempt("--min-change", "0.01").code == 0


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--", "sh", "train.sh"), "the command has no {seed}"),
        ((), "there is no command"),
        (("--base", "nowhere", *COMMAND), "there is no commit 'nowhere'"),
        (("--b-rev", "nowhere", *COMMAND), "there is no commit 'nowhere'"),
        (("--min-effect", "5", *COMMAND), "--min-effect '5' is not a fraction from 0 to below 100%"),
        (("--min-effect", "1%", "--min-change", "1", *COMMAND), "set the same thing"),
        (("--seeds", "4", *COMMAND), "--seeds"),
        (("--a-env", "/no/such/venv", *COMMAND), "--a-env: there is neither a folder nor a program '/no/such/venv'"),
        (("--b-env", ".", *COMMAND), "--b-env: the folder . has no bin/python"),
        pytest.param(("--on", "moon", *COMMAND), "moon", marks=pytest.mark.needs(farms=True)),
        (("--", "no-such-program", "{seed}"), "the program 'no-such-program' was not found"),
    ],
)
def test_what_is_refused(lab: Lab, words: tuple[str, ...], text: str) -> None:
    lab.write(gain=0.2)
    refuse(lab.attempt(command=words), text)
    assert lab.runs() == set()


@pytest.mark.parametrize("metric", ["val_loss:down", "val_loss:min=(", "val_loss:min=loss", ":min", ""])
def test_a_metric_that_cannot_be_read(lab: Lab, metric: str) -> None:
    refuse(lab.attempt(metric=("--metric", metric)), "--metric")


def test_outside_of_git(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plain").mkdir()
    monkeypatch.chdir(tmp_path / "plain")
    refuse(lab.attempt(), "is not in a git repository")
    lab.folder = tmp_path / "plain"
    lab.git("init", "-q")
    refuse(lab.attempt(), "there is no commit 'HEAD'")


def test_without_the_statistics_nothing_is_run(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.write(gain=0.2)
    monkeypatch.setitem(sys.modules, "scipy.special", None)
    refuse(lab.attempt(), "assay try needs an optional part", "pip install 'assay[stats]'")
    assert lab.runs() == set()


# ---------------------------------------------------------------- nothing twice, nothing lost


def test_pairs_are_in_the_order_of_seeds_whichever_run_ends_first(lab: Lab) -> None:
    lab.commit(train='test "$1" != 1 || sleep 1\necho "val_loss 1.$1"\n')
    lab.write(train='echo "val_loss 0.$1"\n')
    rows = lab.attempt("--json").facts["values"]
    assert rows == [{"seed": n, "base": float(f"1.{n}"), "head": float(f"0.{n}")} for n in range(1, 6)]


def test_nothing_is_computed_twice(lab: Lab) -> None:
    lab.write(gain=0.2)
    assert lab.attempt("--json").facts["cost"]["new_runs"] == 10
    again = lab.attempt("--json")
    assert (again.code, again.facts["cost"]["new_runs"], again.facts["pairs"]) == (0, 0, 5)
    lab.write(gain=0.3)
    assert lab.attempt("--json").facts["cost"]["new_runs"] == 5  # the base is there
    lab.git("commit", "-q", "-a", "-m", "the same files as a commit")
    assert lab.attempt("--base", "HEAD~1", "--json").facts["cost"]["new_runs"] == 0
    assert lab.attempt("--base", "HEAD~1", "--json", metric=("--metric", "step:max")).facts["cost"]["new_runs"] == 0


def test_an_interrupted_try_leaves_nothing_behind_and_continues(lab: Lab) -> None:
    lab.write(train='test "$1" != 2 || sleep 61.7\n' + TRAIN)
    words = [sys.executable, "-m", "assay", "try", "slow", *METRIC, "-j", "2", *COMMAND]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    while not any(name.endswith("seed2") for name in lab.runs()):
        time.sleep(0.05)
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130
    assert "continue with: assay try slow" in err
    assert not subprocess.run(["pgrep", "-f", "sleep 61.7"], capture_output=True, text=True, check=False).stdout.strip()


def test_the_code_of_a_run_is_that_of_its_side(lab: Lab) -> None:
    lab.write(gain=0.2)
    found = lab.attempt("--seeds", "5")
    line = next(line for line in found.out.splitlines() if line.startswith("how the code differs"))
    shown = lab.call(*line.partition(": assay ")[2].split())
    assert "-gain=0.0" in shown.out
    assert "+gain=0.2" in shown.out


# ---------------------------------------------------------------- the ledger


def test_the_ledger_lists_what_was_tried_and_keeps_what_is_confirmed(lab: Lab) -> None:
    assert "nothing was tried yet" in lab.call("tries").out
    assert "there is nothing to confirm" in lab.call("tries", "--confirm").err
    lab.write(gain=0.2, salt=1)
    lab.call("try", "a good one", *METRIC, "-j", "4", *COMMAND)
    # with other seeds it is worse: were it the same, it would be kept by chance in some runs of this test
    lab.write(train=f'if [ "$1" -lt 100 ]; then echo val_loss 0.$1; else {TRAIN}fi\n', gain=-0.2, salt=2)
    lab.call("try", "a lucky one", *METRIC, "-j", "4", *COMMAND)
    listed = lab.call("tries")
    assert "a good one" in listed.out
    assert listed.out.count("not yet") == 2
    confirmed = lab.call("tries", "--confirm", "--seeds", "6", "-j", "4", "--json")
    kept = {each["idea"]: each["confirmation"]["is_kept"] for each in confirmed.facts}
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
    assert lab.attempt(command=("--", "sh", "train.sh", "{seed}", "--token", "hf_abcdef0123456789")).code == 0
    text = (lab.folder / "runs" / "try" / ".assay" / "tries.jsonl").read_text()
    assert "abcdef0123456789" not in text
    refuse(lab.call("tries", "--confirm"), "its command has a secret")


def test_seeds_of_the_ledger_are_for_a_confirmation(lab: Lab) -> None:
    refuse(lab.call("tries", "--seeds", "6"), "--seeds is for --confirm")


# ---------------------------------------------------------------- what would make a wrong verdict


def test_the_user_s_own_files_are_not_run_by_both_sides(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.commit()
    lab.write(gain=0.5)
    found = lab.call("try", "idea", *METRIC, "--", "sh", f"{lab.folder}/train.sh", "{seed}")
    assert found.code == 2
    assert "both sides would use it as it is" in found.err
    assert "name it as seen from this folder: train.sh" in found.err
    monkeypatch.setenv("PYTHONPATH", str(lab.folder))
    found = lab.call("try", "idea", *METRIC, *COMMAND)
    assert found.code == 2
    assert "PYTHONPATH leads both sides to your own files" in found.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--metric", "bits_per_byte"), "does not show whether lower or higher is better"),
        ((*METRIC, "--min-change", "nan"), "--min-change nan is not an amount"),
        ((*METRIC, "--min-change", "inf"), "--min-change inf is not an amount"),
    ],
)
def test_what_is_not_said_is_not_guessed(lab: Lab, words: tuple[str, ...], message: str) -> None:
    lab.commit()
    found = lab.call("try", "idea", *words, *COMMAND)
    assert found.code == 2
    assert message in found.err


@pytest.mark.parametrize("text", ["loss: 1,234.5", "loss 12/31", "loss=0x11"])
def test_a_part_of_a_number_is_no_value(text: str) -> None:
    regex = build_pattern(parse_metric("loss:min", "--metric")).regex
    assert re.search(regex, text) is None
    assert re.search(regex, "loss 3, acc 4") is not None


# ---------------------------------------------------------------- what may be used again, and until when


def test_runs_of_another_environment_are_not_used_again(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.write(gain=0.2)
    assert lab.attempt("--json").facts["cost"]["new_runs"] == 10
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    assert lab.attempt("--json").facts["cost"]["new_runs"] == 10


def test_a_package_of_any_name_makes_another_environment(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lab.write(gain=0.2)
    places = [tmp_path / name / "lib/python3.11/site-packages" for name in ("on the path", "of a side")]
    for place in places:
        (place / "einops-0.7.0.dist-info").mkdir(parents=True)
        (place.parents[2] / "bin").mkdir()
        (place.parents[2] / "bin/python").touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{places[0].parents[2]}/bin", prepend=":")
    side = ("--b-env", str(places[1].parents[2]), "--json")
    assert lab.attempt(*side).facts["cost"]["new_runs"] == 10
    assert lab.attempt(*side).facts["cost"]["new_runs"] == 0
    for place, count in zip(places, (10, 5), strict=True):
        (place / "einops-0.7.0.dist-info").rename(place / "einops-0.8.0.dist-info")
        assert lab.attempt(*side).facts["cost"]["new_runs"] == count


def test_an_earlier_run_that_took_longer_than_the_limit_has_failed(lab: Lab) -> None:
    lab.commit(train=f"sleep 0.4\n{TRAIN}")
    lab.write(gain=-0.2)
    assert lab.attempt("--json").facts["verdict"] == "worse"
    found = lab.attempt("--timeout", "0.3s")
    assert found.code == 2
    assert "does not run: it took longer than its limit" in found.err


def test_a_run_that_lost_its_output_is_not_a_failed_one(lab: Lab) -> None:
    lab.write(gain=0.2)
    lab.attempt()
    name = min(lab.runs())
    (lab.folder / "runs" / "try" / name / "train.log").unlink()
    found = lab.attempt()
    assert found.code == 4
    assert f"{name} has lost its output train.log" in found.err
    assert "assay rerun" in found.err


def test_more_seeds_after_a_look_are_noted(lab: Lab) -> None:
    lab.write(salt=3)
    assert not lab.attempt("--seeds", "5", "--json").facts["notes"]
    (note,) = lab.attempt("--seeds", "7", "--json").facts["notes"]
    assert note.startswith("asked before with --seeds 5")


def test_a_budget_ends_a_try_undecided(lab: Lab) -> None:
    slow = TRAIN.replace(". ./settings", ". ./settings; sleep 0.3")
    lab.commit(train=slow)
    lab.write(salt=3, train=slow)
    found = lab.attempt("--seeds", "20", "--budget", "0.0004h", "--json")
    assert (found.code, found.facts["verdict"]) == (3, "undecided")
    assert "the budget of 0.0004h is used" in found.facts["reason"]
    assert 0 < found.facts["cost"]["runs"] < 40
    assert "is not a budget" in lab.attempt("--budget", "much").err


def test_a_submodule_is_noted(lab: Lab) -> None:
    (lab.folder / ".gitmodules").write_text('[submodule "x"]\n  path = x\n  url = ./x\n')
    lab.commit()
    lab.write(gain=0.2)
    assert "the files of submodules are on neither side" in lab.attempt("--json").facts["notes"]


def test_a_ledger_with_an_impossible_time_is_read(lab: Lab) -> None:
    lab.write(gain=0.2)
    lab.attempt()
    ledger = lab.folder / "runs" / "try" / ".assay" / "tries.jsonl"
    line = json.loads(ledger.read_text().splitlines()[0])
    ledger.write_text(json.dumps({**line, "at": 1e300}) + "\n")
    assert lab.call("tries").code == 0
