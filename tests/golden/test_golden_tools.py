"""`assay golden` show, rebase, selftest, bisect and its reports: the commands on a little training."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from tests.command_line import Result
from tests.fork_server import start_assay
from tests.golden.two_sides import Repository
from tests.study_processes import until

TRAIN = r"""
import os, random, sys, time
SCALE = 1.0
def flag(name, default):
    return sys.argv[len(sys.argv) - sys.argv[::-1].index(name)] if name in sys.argv else default
start, last, folder = int(flag("--start", 0)), int(flag("--steps", 30)), flag("--out", None)
scale = SCALE * float(os.environ.get("WORSE", "1")) * float(flag("--scale", "1"))
noise = float(os.environ.get("NOISE", "0"))
for step in range(start + 1, last + 1):
    print(f"step {step} loss {scale * (1 + noise * random.gauss(0, 1)) * 10 / step!r}", flush=True)
    time.sleep(float(os.environ.get("PAUSE", "0")))
    if folder and step in (10, 20):
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, f"c{step}")
        open(path, "w").write(str(step))
        print("saved " + path, flush=True)
"""

STUDY = rf"""
study: little
command: {sys.executable} train.py --scale 1
metrics: {{step: 'step (\d+)', loss: 'loss ({{number}})'}}
golden:
  segment: 8
  save: 'saved (\S+)'
  checkpoint: --out
  resume: --from
  start: --start
  length: --steps
  replicas: 3
  selftest:
    env: {{WORSE: ['1.05', '1.0000001']}}
    flags: {{--scale: [x1.1]}}
resources: {{gpus: 0}}
"""


class Golden(Repository):
    def __init__(self, folder: Path) -> None:
        self.folder = folder / "source"
        self.root = folder / "runs"
        self.folder.mkdir()
        self.write("train.py", TRAIN)
        self.write("golden.yml", STUDY)

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def run(self, name: str, *arguments: str, **env: str) -> Result:
        return self.call(name, "golden.yml", "-j", "2", "--quiet", "--root", str(self.root), *arguments, **env)

    def plant(self, culprit: int, count: int, broken: int | None = None) -> list[str]:
        """A history of harmless commits; the `culprit`th scales the loss, the `broken`th one alone cannot run."""
        self.git("init", "-q")
        self.write(".gitignore", "store\n")
        shas = []
        for number in range(count + 1):
            self.write("notes.txt", f"note {number}\n")
            text = TRAIN.replace("SCALE = 1.0", "SCALE = 1.3") if number >= culprit else TRAIN
            self.write("train.py", text if number != broken else "import no_such_module\n")
            shas.append(self.commit(f"change {number}"))
        return shas

    def manifest(self) -> dict[str, object]:
        found: dict[str, object] = json.loads((self.folder / "store" / MANIFEST).read_text())
        return found


MANIFEST = "little_convergence_harness_manifest.json"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `assay golden gather` leaves: the same for every test, so it is gathered once and copied."""
    made = Golden(tmp_path_factory.mktemp("golden"))
    ended = made.run("gather", "-s", "store")
    assert ended.code == 0, ended.out + ended.err
    return made.folder / "store"


@pytest.fixture
def golden(tmp_path: Path) -> Golden:
    return Golden(tmp_path)


@pytest.fixture
def gathered(golden: Golden, store: Path) -> Golden:
    """The folder has a golden recording in `store`."""
    shutil.copytree(store, golden.folder / "store")
    return golden


# ---------------------------------------------------------------- bisect


def test_bisect_finds_the_planted_commit_and_never_touches_the_users_tree(golden: Golden) -> None:
    shas = golden.plant(culprit=5, broken=3, count=6)
    (golden.folder / "train.py").write_text("# work in progress\n")
    before = (golden.git("rev-parse", "HEAD"), golden.git("status", "--porcelain"), golden.git("branch", "-a"))
    ended = golden.run("bisect", "--good", shas[0], "--bad", "HEAD", "--json")
    assert ended.code == 0, ended.out + ended.err
    facts = json.loads(ended.out)
    assert facts["culprit"]["sha"] == shas[5]
    assert facts["culprit"]["subject"] == "change 5"
    assert facts["culprit"]["authored_at"]
    assert facts["evidence"]["effect"] == pytest.approx(0.3, abs=0.01)
    assert [trial["verdict"] for trial in facts["trials"] if trial["commit"] == shas[3]] == ["ERROR"], "it is skipped"
    assert len(facts["trials"]) <= 7
    after = (golden.git("rev-parse", "HEAD"), golden.git("status", "--porcelain"), golden.git("branch", "-a"))
    assert before == after
    assert (golden.folder / "train.py").read_text() == "# work in progress\n"


def test_bisect_of_a_golden_without_checkpoints(golden: Golden) -> None:
    text = STUDY.replace("  start: --start\n", "")
    for line in ("  save: 'saved (\\S+)'\n", "  checkpoint: --out\n", "  resume: --from\n"):
        assert line in text
        text = text.replace(line, "")
    golden.write("golden.yml", text)
    shas = golden.plant(culprit=2, count=3)
    ended = golden.run("bisect", "--good", shas[0], "--bad", "HEAD", "--json")
    assert ended.code == 0, ended.out + ended.err
    facts = json.loads(ended.out)
    assert facts["culprit"]["sha"] == shas[2]
    assert facts["evidence"]["effect"] == pytest.approx(0.3, abs=0.01)


def test_bisect_killed_goes_on_where_it_was(gathered: Golden) -> None:
    shas = gathered.plant(culprit=3, count=5)
    where = ("bisect", "golden.yml", "-s", "store", "-j", "2", "--root", str(gathered.root))
    arguments = (*where, "--good", shas[0], "--bad", shas[5])

    def trials() -> list[str]:
        logs = list(gathered.root.glob("golden-little/.assay/bisect-*/log.jsonl"))
        return logs[0].read_text().splitlines() if logs else []

    with (gathered.root.parent / "log").open("w") as log:
        words = ("golden", *arguments)
        program = start_assay(words, cwd=gathered.folder, env={**os.environ, "PAUSE": "0.02"}, log=log)
        until(lambda: len(trials()) >= 2, "two trials")
        program.kill()
        program.wait()
    known = trials()
    ended = gathered.call(*arguments, "--json")
    assert ended.code == 0, ended.out + ended.err
    facts = json.loads(ended.out)
    assert facts["culprit"]["sha"] == shas[3]
    assert facts["resumed"] == len(known)
    assert trials()[: len(known)] == known, "what was known is kept"
    assert len({json.loads(line)["commit"] for line in trials()}) == len(trials()), "nothing is tried twice"
    again = gathered.call(*arguments)
    assert again.code == 0
    assert f"culprit: {shas[3][:12]} 'change 3'" in again.out
    assert "continuing: " in again.err


def test_bisect_reports_when_the_ends_do_not_differ_and_stops(golden: Golden) -> None:
    shas = golden.plant(culprit=99, count=3)
    ended = golden.run("bisect", "--good", shas[0], "--bad", shas[3])
    assert ended.code == 3
    assert "the two ends do not differ: both are good" in ended.out
    assert ended.out.count("PASS") == 2
    swapped = golden.run("bisect", "--good", shas[3], "--bad", shas[0])
    assert swapped.code == 2
    assert "swap --good and --bad" in swapped.err


def test_bisect_skips_what_does_not_build(golden: Golden) -> None:
    shas = golden.plant(culprit=3, count=4)
    build = "! grep -q 'note 2' notes.txt"
    ended = golden.run("bisect", "--good", shas[0], "--bad", shas[4], "--build", build, "--json")
    facts = json.loads(ended.out)
    assert ended.code == 3, "the commit before it cannot be judged"
    assert [commit["sha"] for commit in facts["suspects"]] == shas[2:4]
    assert any("the build ended with exit code 1" in trial["message"] for trial in facts["trials"])


# ---------------------------------------------------------------- reports


def test_a_check_writes_its_report_in_every_form(gathered: Golden) -> None:
    ended = gathered.run("check", "-s", "store", "--md", "r.md", "--junit", "r.xml", "--html", "r.html", WORSE="1.1")
    assert ended.code == 1, ended.err
    assert "FAIL" in ended.out
    assert (gathered.folder / "r.md").read_text().startswith("## ❌ little: FAIL")
    top = ET.parse(gathered.folder / "r.xml").getroot()
    assert (top.get("tests"), top.get("failures")) == ("2", "2")
    page = (gathered.folder / "r.html").read_text()
    assert page.count("<svg") == 2
    assert '<rect class="fail"' in page


def test_one_report_may_go_to_stdout_and_what_cannot_be_written_is_reported_before_anything_runs(
    gathered: Golden,
) -> None:
    ended = gathered.run("check", "-s", "store", "--junit", "-")
    assert ended.code == 0
    assert ET.fromstring(ended.out).tag == "testsuites"
    assert "little: PASS" in ended.err
    for arguments, words in (
        (("--junit", "-", "--md", "-"), "cannot both go to stdout"),
        (("--junit", "-", "--json"), "cannot both go to stdout"),
        (("--html", "no/such/folder/r.html"), "cannot be written"),
    ):
        refused = gathered.run("check", "-s", "store", *arguments)
        assert (refused.code, words in refused.err) == (2, True), refused.err


# ---------------------------------------------------------------- show


def test_show_has_noise_sensitivity_and_origin(gathered: Golden) -> None:
    text = gathered.call("show", "store")
    assert text.code == 0, text.err
    for words in ("recordings  3 of each segment", "1 check", "after 10", "loss"):
        assert words in text.out
    by_file = gathered.call("show", "golden.yml", "-s", "store", "--json", "--html", "golden.html")
    (facts,) = json.loads(by_file.out)
    assert facts["sensitivity"][0]["metric"] == "loss"
    assert facts["sensitivity"][0]["one_check"] == pytest.approx(0.005)
    assert "<svg" in (gathered.folder / "golden.html").read_text()
    assert gathered.call("show", f"store/{MANIFEST}", "-m", "loss").code == 0
    (gathered.folder / "empty").mkdir()
    for arguments, words in (
        (("nowhere",), "nowhere does not exist"),
        (("golden.yml",), "there is no golden recording golden/little_"),
        (("empty",), "there is no golden recording in empty"),
        (("golden.yml", "-s", "empty"), "there is no golden recording"),
    ):
        ended = gathered.call("show", *arguments)
        assert (ended.code, words in ended.err) == (2, True), ended.err


# ---------------------------------------------------------------- rebase


def test_rebase_keeps_the_old_one_the_reason_and_the_drift(gathered: Golden) -> None:
    for scale, reason in (("1.02", "new optimiser"), ("1.04", "new data")):
        gathered.write("train.py", TRAIN.replace("SCALE = 1.0", f"SCALE = {scale}"))
        assert gathered.run("check", "-s", "store").code == 1
        ended = gathered.run("rebase", "-s", "store", "--reason", reason)
        assert ended.code == 0, ended.out + ended.err
        assert gathered.run("check", "-s", "store").code == 0
    history = gathered.manifest()["history"]
    assert isinstance(history, list)
    assert [entry["reason"] for entry in history] == ["new optimiser", "new data"]
    assert history[1]["effects"]["loss"] == pytest.approx(0.02 / 1.02)
    assert history[1]["since_first"]["loss"] == pytest.approx(0.04)
    assert (gathered.folder / "store" / f"{MANIFEST}.1").exists()
    shown = gathered.call("show", "store", "--no-plot")
    assert "new optimiser" in shown.out
    assert "loss has drifted by +4% since the first golden, in 2 rebases" in shown.err


def test_rebase_refuses_a_silent_widening(gathered: Golden) -> None:
    before = gathered.manifest()
    ended = gathered.run("rebase", "-s", "store", "--reason", "noisier now", NOISE="0.0005")
    assert ended.code == 1
    assert "the noise of loss grows" in ended.out
    assert "--allow-wider" in ended.out
    assert gathered.manifest() == before
    allowed = gathered.run("rebase", "-s", "store", "--reason", "noisier now", "--allow-wider")
    assert allowed.code == 0, allowed.out + allowed.err
    assert "accepted although the noise of loss grows" in allowed.out
    (entry,) = gathered.manifest()["history"]  # type: ignore[misc]
    assert entry["wider"]
    assert gathered.run("rebase", "-s", "store", "--reason", "  ").code == 2


def test_rebase_from_the_last_check_takes_its_runs_and_keeps_the_checkpoints(gathered: Golden) -> None:
    gathered.plant(culprit=99, count=0)
    before = gathered.manifest()
    gathered.write("train.py", TRAIN.replace("SCALE = 1.0", "SCALE = 1.02"))
    assert gathered.run("check", "-s", "store", "--no-early-stop").code == 1
    where = ("golden.yml", "-j", "2", "--root", str(gathered.root), "-s", "store")
    refused = gathered.call("rebase", *where, "--from", "check", "--reason", "as checked")
    assert refused.code == 1
    assert "the last check did not pass: accept it with --allow-failed" in refused.out
    assert gathered.manifest() == before
    ended = gathered.call("rebase", *where, "--from", "check", "--reason", "as checked", "--allow-failed")
    assert ended.code == 0, ended.out + ended.err
    assert "2 runs of the last check are reused" in ended.err
    after = gathered.manifest()
    assert after["checkpoints"] == before["checkpoints"]
    assert gathered.run("check", "-s", "store").code == 0
    gathered.write("train.py", TRAIN.replace("SCALE = 1.0", "SCALE = 1.03"))
    other = gathered.call("rebase", *where, "--from", "check", "--reason", "other code")
    assert "no run of a check was made with the current code" in other.err


def test_rebase_from_a_check_that_was_stopped_because_it_failed_is_refused(gathered: Golden) -> None:
    """Outside of git, and with a fault that is in the environment alone: the same code would pass now."""
    before = gathered.manifest()
    assert gathered.run("check", "-s", "store", WORSE="1.2").code == 1
    where = ("golden.yml", "-j", "2", "--root", str(gathered.root), "-s", "store")
    refused = gathered.call("rebase", *where, "--from", "check", "--reason", "x")
    assert refused.code == 1
    assert "the last check did not pass" in refused.out
    assert gathered.manifest() == before
    assert gathered.run("check", "-s", "store").code == 0
    ended = gathered.call("rebase", *where, "--from", "check", "--reason", "x")
    assert ended.code == 0, ended.out + ended.err
    assert "outside of git the code of a check is unknown" in ended.err


# ---------------------------------------------------------------- selftest


def test_selftest_reports_which_faults_would_be_caught(gathered: Golden) -> None:
    ended = gathered.run("selftest", "-s", "store", "--flag", "--scale=x0.99", "--env", "WORSE=nonsense", "--json")
    (facts,) = json.loads(ended.out)
    assert facts["control"] == "PASS"
    assert {each["fault"]: each["result"] for each in facts["faults"]} == {
        "WORSE=1.05": "caught",
        "WORSE=1.0000001": "missed",
        "--scale x1.1": "caught",
        "--scale x0.99": "caught",
        "WORSE=nonsense": "not tried",
    }
    assert ended.code == 1, "one was missed"
    few = gathered.run("selftest", "-s", "store", "--segment", "10")
    assert "segment at 10: 2 of 3 faults would be caught" in few.out
    gathered.write("train.py", TRAIN.replace("SCALE = 1.0", "SCALE = 1.5"))
    worthless = gathered.run("selftest", "-s", "store")
    assert worthless.code == 1
    assert "without any fault the check is FAIL already" in worthless.out
