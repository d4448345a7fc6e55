"""`assay golden` show, rebase, selftest, bisect and its reports: the commands on a small training with checkpoints."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from tests.command_line import Result
from tests.fork_server import start_assay
from tests.golden.two_sides import MANIFEST, STUDY, TRAIN, TwoSides
from tests.study_processes import until

from assay.code.checkout import Commit
from assay.golden.flow.bisect import _rank, append_trial, load_trials
from assay.golden.results import BisectReport, Tried
from assay.values.verdict import Finding, VerdictKind

CHECKPOINTS = r"""golden:
  segment: 8
  save: 'saved (\S+)'
  checkpoint: --out
  resume: --from
  start: --start
  length: --steps
  gather: --steps 30
  replicas: 3
  selftest: {env: {SCALE: ['1.05', '1.0000001']}, flags: {--scale: [x1.1]}}
"""


class Golden(TwoSides):
    study = STUDY.replace("train.py", "train.py --scale 1").replace("golden: {segment: 12, replicas: 2}\n", CHECKPOINTS)

    def scale(self, scale: float) -> None:
        """Change the program by a scale of its loss."""
        text = TRAIN.replace('("SCALE", "1"))', f'("SCALE", "1")) * {scale}')
        (self.folder / "train.py").write_text(text)

    def loud(self, name: str, *words: str) -> Result:
        return self.call(name, "golden.yml", *words)

    def plant(self, culprit: int, count: int, broken: int | None = None) -> list[str]:
        """A history of harmless commits; the `culprit`th scales the loss, the `broken`th one alone cannot run."""
        shas, program = [], self.folder / "train.py"
        for number in range(count + 1):
            (self.folder / "notes.txt").write_text(f"note {number}\n")
            if number == culprit:
                self.scale(1.3)
            text = program.read_text()
            program.write_text(text if number != broken else "import no_such_module\n")
            shas.append(self.commit(f"change {number}"))
            program.write_text(text)
        return shas

    def load(self) -> Any:
        return json.loads(self.manifest.read_text())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The result of `assay golden gather`: the same for every test, so it is gathered once and copied."""
    lab = Golden(tmp_path_factory.mktemp("golden"))
    lab.gather()
    shutil.rmtree(lab.folder / "runs")
    return lab.folder


@pytest.fixture
def gathered(made: Path, tmp_path: Path) -> Golden:
    """A folder that has a golden recording in its store."""
    found = object.__new__(Golden)
    found.folder = tmp_path / "lab"
    shutil.copytree(made, found.folder)
    return found


@pytest.fixture
def golden(gathered: Golden) -> Golden:
    shutil.rmtree(gathered.folder / "golden")
    return gathered


def test_bisect_finds_the_planted_commit_and_never_touches_the_users_tree(golden: Golden) -> None:
    shas = golden.plant(culprit=5, broken=3, count=6)
    (golden.folder / "train.py").write_text("# work in progress\n")
    before = (golden.git("rev-parse", "HEAD"), golden.git("status", "--porcelain"), golden.git("branch", "-a"))
    ended = golden.run("bisect", "--good", shas[0], "--bad", "HEAD", "--json")
    assert ended.code == 0, ended.out + ended.err
    facts = json.loads(ended.out)
    assert (facts["culprit"]["sha"], facts["culprit"]["subject"]) == (shas[5], "change 5")
    assert facts["culprit"]["authored_at"]
    assert facts["evidence"]["effect"] == pytest.approx(0.3, abs=0.01)
    assert [trial["verdict"] for trial in facts["trials"] if trial["commit"] == shas[3]] == ["ERROR"], "it is skipped"
    assert len(facts["trials"]) <= 7
    after = (golden.git("rev-parse", "HEAD"), golden.git("status", "--porcelain"), golden.git("branch", "-a"))
    assert before == after
    assert (golden.folder / "train.py").read_text() == "# work in progress\n"


def test_bisect_of_a_golden_without_checkpoints_and_ends_that_do_not_differ(golden: Golden) -> None:
    """The command is the one that a failed check prints."""
    (golden.folder / "golden.yml").write_text(STUDY)
    shas = golden.plant(culprit=2, count=3)
    golden.git("checkout", "-q", shas[0])
    assert golden.run("gather").code == 0
    golden.git("checkout", "-q", shas[3])
    failed = golden.run("check").ended(1)
    (words,) = re.findall(r"which commit it came with: assay golden (.+)", failed.out)
    ended = golden.call(*shlex.split(words), "--json")
    assert ended.code == 0, ended.out + ended.err
    facts = json.loads(ended.out)
    assert facts["culprit"]["sha"] == shas[2]
    assert facts["evidence"]["effect"] == pytest.approx(0.3, abs=0.01)
    same = golden.run("bisect", "--good", shas[0], "--bad", shas[1]).ended(3)
    assert "the two ends do not differ: both are good" in same.out
    assert same.out.count("PASS") == 2
    golden.run("bisect", "--good", shas[3], "--bad", shas[0]).ended(2, "swap --good and --bad")


def test_bisect_killed_goes_on_where_it_was(gathered: Golden, tmp_path: Path) -> None:
    shas = gathered.plant(culprit=3, count=5)
    words = ("bisect", "golden.yml", "-s", "golden", "--good", shas[0], "--bad", shas[5])

    def trials() -> list[str]:
        logs = list(gathered.folder.glob("runs/golden-fit/.assay/bisect-*/log.jsonl"))
        return logs[0].read_text().splitlines() if logs else []

    with (tmp_path / "log").open("w") as log:
        env = {**os.environ, "PAUSE": "0.02"}
        program = start_assay(("golden", *words), cwd=gathered.folder, env=env, log=log)
        until(lambda: len(trials()) >= 2, "two trials")
        program.kill()
        program.wait()
    known = trials()
    ended = gathered.call(*words, "--json")
    assert ended.code == 0, ended.out + ended.err
    facts = json.loads(ended.out)
    assert (facts["culprit"]["sha"], facts["resumed"]) == (shas[3], len(known))
    assert trials()[: len(known)] == known, "what was known is kept"
    assert len({json.loads(line)["commit"] for line in trials()}) == len(trials()), "nothing is tried twice"
    gathered.call(*words).ended(0, "continuing: ").printed(f"culprit: {shas[3][:12]} 'change 3'")


def test_bisect_skips_what_does_not_build(golden: Golden) -> None:
    shas = golden.plant(culprit=3, count=4)
    build = "! grep -q 'note 2' notes.txt"
    ended = golden.run("bisect", "--good", shas[0], "--bad", shas[4], "--build", build, "--json")
    facts = json.loads(ended.out)
    assert ended.code == 3, "the commit before it cannot be judged"
    assert [commit["sha"] for commit in facts["suspects"]] == shas[2:4]
    assert any("the build ended with exit code 1" in trial["message"] for trial in facts["trials"])


def test_a_check_writes_its_report_in_every_form_and_one_may_go_to_stdout(gathered: Golden) -> None:
    ended = gathered.run("check", "--md", "r.md", "--junit", "r.xml", "--html", "r.html", SCALE="1.1")
    assert ended.code == 1, ended.err
    assert "FAIL" in ended.out
    assert (gathered.folder / "r.md").read_text().startswith("## ❌ fit: FAIL")
    top = ET.parse(gathered.folder / "r.xml").getroot()
    assert (top.get("tests"), top.get("failures")) == ("2", "2")
    page = (gathered.folder / "r.html").read_text()
    assert page.count("<svg") == 2
    assert '<rect class="fail"' in page
    ended = gathered.run("check", "--junit", "-").ended(0)
    assert ET.fromstring(ended.out).tag == "testsuites"
    assert "fit: PASS" in ended.err
    for arguments, words in (
        (("--junit", "-", "--md", "-"), "cannot both go to stdout"),
        (("--junit", "-", "--json"), "cannot both go to stdout"),
        (("--html", "no/such/folder/r.html"), "cannot be written"),
    ):
        refused = gathered.run("check", *arguments)
        assert (refused.code, words in refused.err) == (2, True), refused.err


def test_show_has_noise_sensitivity_and_origin(gathered: Golden) -> None:
    text = gathered.call("show", "golden")
    assert text.code == 0, text.err
    for words in ("recordings  3 of each segment", "1 check", "after 10", "loss"):
        assert words in text.out
    by_file = gathered.call("show", "golden.yml", "--json", "--html", "golden.html")
    (facts,) = json.loads(by_file.out)
    assert facts["sensitivity"][0]["metric"] == "loss"
    assert facts["sensitivity"][0]["one_check"] == pytest.approx(0.005)
    assert "<svg" in (gathered.folder / "golden.html").read_text()
    assert gathered.call("show", f"golden/{MANIFEST}", "-m", "loss").code == 0
    (gathered.folder / "empty").mkdir()
    for arguments, words in (
        (("nowhere",), "nowhere does not exist"),
        (("golden.yml", "-s", "none"), "there is no golden recording none/fit_"),
        (("empty",), "there is no golden recording in empty"),
        (("golden.yml", "-s", "empty"), "there is no golden recording"),
    ):
        ended = gathered.call("show", *arguments)
        assert (ended.code, words in ended.err) == (2, True), ended.err


def test_rebase_keeps_the_old_one_the_reason_and_the_drift(gathered: Golden) -> None:
    for scale, reason in ((1.02, "new optimiser"), (1.04, "new data")):
        gathered.scale(scale)
        assert gathered.run("check").code == 1
        ended = gathered.run("rebase", "--reason", reason)
        assert ended.code == 0, ended.out + ended.err
        assert gathered.run("check").code == 0
    history = gathered.load()["history"]
    assert [entry["reason"] for entry in history] == ["new optimiser", "new data"]
    assert history[1]["effects"]["loss"] == pytest.approx(0.02 / 1.02)
    assert history[1]["since_first"]["loss"] == pytest.approx(0.04)
    assert (gathered.folder / "golden" / f"{MANIFEST}.1").exists()
    shown = gathered.call("show", "golden", "--no-plot")
    assert "new optimiser" in shown.out
    assert "loss has drifted by +4% since the first golden, in 2 rebases" in shown.err


def test_rebase_refuses_a_silent_widening(gathered: Golden) -> None:
    before = gathered.load()
    ended = gathered.run("rebase", "--reason", "noisier now", NOISE="0.0005").ended(1)
    assert "the noise of loss grows" in ended.out
    assert "--allow-wider" in ended.out
    assert gathered.load() == before
    allowed = gathered.run("rebase", "--reason", "noisier now", "--allow-wider")
    assert allowed.code == 0, allowed.out + allowed.err
    assert "accepted although the noise of loss grows" in allowed.out
    assert gathered.load()["history"][0]["wider"]


FROM_CHECK = ("rebase", "--from", "check", "--reason", "as checked")


def test_rebase_from_the_last_check_takes_its_runs_and_keeps_the_checkpoints(gathered: Golden) -> None:
    before = gathered.load()
    gathered.scale(1.02)
    assert gathered.run("check", "--no-early-stop").code == 1
    gathered.loud(*FROM_CHECK).ended(1).printed("the last check did not pass: accept it with --allow-failed")
    assert gathered.load() == before
    ended = gathered.loud(*FROM_CHECK, "--allow-failed")
    assert ended.code == 0, ended.out + ended.err
    assert "2 runs of the last check are reused" in ended.err
    assert gathered.load()["checkpoints"] == before["checkpoints"]
    assert gathered.run("check").code == 0
    (gathered.folder / "helper.py").write_text("")  # a file that is new to git is in neither commit nor diff
    assert "git does not have all of it: all recordings are made again" in gathered.loud(*FROM_CHECK).err
    (gathered.folder / "helper.py").unlink()
    gathered.scale(1.03)
    assert "no run of a check was made with the current code" in gathered.loud(*FROM_CHECK).err


def test_rebase_from_a_check_that_was_stopped_because_it_failed_is_refused(gathered: Golden) -> None:
    """The folder is not in git, and only the environment has a fault: the same code would pass now."""
    shutil.rmtree(gathered.folder / ".git")
    before = gathered.load()
    assert gathered.run("check", SCALE="1.2").code == 1
    gathered.loud(*FROM_CHECK).ended(1).printed("the last check did not pass")
    assert gathered.load() == before
    assert gathered.run("check").code == 0
    ended = gathered.loud(*FROM_CHECK)
    assert ended.code == 0, ended.out + ended.err
    assert "the code of a check is unknown where git does not have all of it" in ended.err


def test_selftest_reports_which_faults_would_be_caught(gathered: Golden) -> None:
    ended = gathered.run("selftest", "--flag", "--scale=x0.99", "--env", "SCALE=nonsense", "--json")
    (facts,) = json.loads(ended.out)
    assert facts["control"] == "PASS"
    assert {each["fault"]: each["result"] for each in facts["faults"]} == {
        "SCALE=1.05": "caught",
        "SCALE=1.0000001": "missed",
        "--scale x1.1": "caught",
        "--scale x0.99": "caught",
        "SCALE=nonsense": "not tried",
    }
    assert ended.code == 1, "one was missed"
    few = gathered.run("selftest", "--segment", "10")
    assert "segment at 10: 2 of 3 faults would be caught" in few.out
    gathered.scale(1.5)
    gathered.run("selftest").ended(1).printed("without any fault the check is FAIL already")


TRIALS = [
    Tried("a" * 40, VerdictKind.FAIL, "two\nlines, größer", "segment at 9: loss", -0.25, (-1e-300, 2.0), 17.5, 3.25),
    *(Tried(f"{at}" * 40, kind) for at, kind in enumerate(VerdictKind)),
]


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = str(tmp_path / "log.jsonl")
    assert load_trials(path) == []
    for trial in TRIALS:
        append_trial(path, trial)
    assert load_trials(path) == TRIALS


def test_a_line_that_a_kill_cut_short_is_no_trial_and_the_next_one_is_whole(tmp_path: Path) -> None:
    for cut in (0, 1, 30, 60):
        path = tmp_path / f"{cut}.jsonl"
        append_trial(str(path), Tried("a" * 40, VerdictKind.PASS))
        whole = path.read_bytes()
        append_trial(str(path), Tried("b" * 40, VerdictKind.FAIL))
        path.write_bytes(path.read_bytes()[: len(whole) + cut])
        append_trial(str(path), Tried("c" * 40, VerdictKind.ERROR))
        assert [trial.commit[0] for trial in load_trials(str(path))] == ["a", "c"]
    odd = '{"commit": "x"}\n[]\n17\n{"commit": "y", "verdict": "NONSENSE"}\n\n{"commit": "z", "verdict": "PASS"}\n'
    path.write_text(odd)
    assert [trial.commit for trial in load_trials(str(path))] == ["z"]


def test_what_failed_counts_before_what_crashed() -> None:
    crash = Finding(VerdictKind.ERROR, "s", "exit code 1")
    small, large = (Finding(VerdictKind.FAIL, "s", "m", effect=effect) for effect in (0.01, -0.2))
    assert min([crash, small, large], key=_rank) is large
    early = Finding(VerdictKind.FAIL, "s", "m", step=101.0, effect=0.02)
    late = Finding(VerdictKind.FAIL, "s", "m", step=301.0, effect=0.2)
    assert min([crash, late, early], key=_rank) is early, "what comes later may follow from it"
    assert min([crash, Finding(VerdictKind.PASS, "s", "m")], key=_rank) is crash
    assert _rank(Finding(VerdictKind.FAIL, "s", "m", effect=math.inf)) < _rank(large)


def test_skipped_commits_are_counted_once() -> None:
    end = Commit("a" * 40, "s", "n", "d")
    trials = (Tried("x", VerdictKind.ERROR), Tried("x", VerdictKind.ERROR), Tried("y", VerdictKind.PASS))
    assert BisectReport(end, end, "/tmp", 8, trials).skipped == 1
