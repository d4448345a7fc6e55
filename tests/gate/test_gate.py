"""`assay gate`: checks that compare files, and one that runs a training."""

from __future__ import annotations

import glob
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import yaml
from tests.fork_server import SETTINGS, ForkedProcess, Server, start_assay, start_settings
from tests.study_processes import until

from assay.cli.main import run
from assay.config.settings import load_settings
from assay.gate import check_execution, passes
from assay.gate.gate_settings import GateCheck, load_gate
from assay.values.study import Position
from assay.values.verdict import VerdictKind

EXAMPLES = Path(__file__).parents[2] / "examples/gate"
GOOD = "golden check --against golden.csv --from good.csv"
BAD = "golden check --against golden.csv --from bad.csv"
CURVE = "step,loss\n" + "".join(f"{step},{1 / step:.6f}\n" for step in range(1, 21))
TRAINED = """
study: train
command: sh train.sh
metrics: {loss: 'loss ({number})'}
golden: {segment: 3}
"""
CHECK = GateCheck("x", ("x",), Position("assay.toml", 1, 1))


class Project:
    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._capsys = folder, capsys
        self.write("golden.csv", CURVE)
        self.write("good.csv", CURVE)
        self.write("bad.csv", CURVE.replace("1.000000", "1.100000"))

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def set(self, *checks: str, **more: Any) -> None:
        lines = [f"checks = {json.dumps(checks)}", *(f"{key} = {json.dumps(value)}" for key, value in more.items())]
        self.write("assay.toml", "\n".join(["[gate]", *lines]))

    def gate(self, *words: str) -> tuple[int, str, str]:
        self._capsys.readouterr()
        return run(["gate", *words]), *self._capsys.readouterr()

    def load(self, *words: str) -> Any:
        """What `--json` prints of the first check."""
        return json.loads(self.gate("--json", *words)[1])["checks"][0]


def fork(words: list[str], cwd: str, env: dict[str, str], stdout: Any, **more: Any) -> Any:
    """A check as a process that was forked, not as a new interpreter."""
    if start_settings(env) != SETTINGS:
        return subprocess.Popen(words, cwd=cwd, env=env, stdout=stdout, **more)
    request = {"words": words[2:], "cwd": cwd, "env": dict(env), "session": True}
    return Server.get("assay").start(request, [stdout.fileno(), stdout.fileno()])


def start_by(monkeypatch: pytest.MonkeyPatch, start: Callable[..., Any]) -> None:
    names = {name: getattr(subprocess, name) for name in ("DEVNULL", "STDOUT", "TimeoutExpired")}
    monkeypatch.setattr(check_execution, "subprocess", SimpleNamespace(**names, Popen=start))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Project:
    monkeypatch.chdir(tmp_path)
    start_by(monkeypatch, fork)
    return Project(tmp_path, capsys)


@pytest.mark.needs(golden=True)
def test_the_worst_decides_and_is_named(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.set(GOOD, budget="1h")
    code, out, err = project.gate()
    assert code == 0
    assert out.splitlines()[-1] == "gate: PASS, 1 check: 1 PASS"
    assert err == f"1 of 1: assay {GOOD}\n"
    summary = project.folder / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    project.set(GOOD, f"assay {BAD}", "golden check missing.yml")
    code, out, _ = project.gate("--md", "gate.md", "--junit", "gate.xml", "-q", "--fresh")
    assert code == 2
    lines = {line.split()[0]: line for line in out.splitlines() if line.startswith(("PASS", "CHANGED", "ERROR"))}
    assert "good.csv" in lines["PASS"]
    assert "bad.csv" in lines["CHANGED"]
    assert "loss: " in lines["CHANGED"]
    assert "there is no file missing.yml" in lines["ERROR"]
    assert "gate: ERROR, 3 checks: 1 PASS, 1 CHANGED, 1 ERROR" in out
    assert f"  assay {BAD}\n" in out
    assert f"CHANGED {BAD}: loss: " in out
    assert summary.read_text() == (project.folder / "gate.md").read_text()
    assert summary.read_text().startswith("## ❌ Gate: ERROR\n")
    assert f"<details><summary><b>CHANGED</b> {BAD}</summary>" in summary.read_text()
    top = ET.parse(project.folder / "gate.xml").getroot()
    assert [top.get(name) for name in ("tests", "failures", "errors", "skipped")] == ["3", "1", "1", "0"]


@pytest.mark.needs(golden=True)
def test_what_is_worse_than_its_noise_fails(project: Project) -> None:
    (project.folder / "goldens").mkdir()
    for number in (1, 2, 3):
        project.write(f"goldens/golden_{number}.csv", CURVE.replace("0.500000", f"0.50000{number}"))
    project.write("worse.csv", "step,loss\n" + "".join(f"{step},{1.03 / step:.6f}\n" for step in range(1, 21)))
    project.set("golden check --against goldens --from worse.csv", GOOD)
    code, out, _ = project.gate("--json")
    facts = json.loads(out)
    assert (code, facts["verdict"]) == (1, "FAIL")
    found = [(each["verdict"], each["exit_code"], each["reused"]) for each in facts["checks"]]
    assert found == [("FAIL", 1, False), ("PASS", 0, False)]


@pytest.mark.needs(golden=True)
def test_from_a_folder_below(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is printed can be pasted there."""
    project.set(BAD)
    (project.folder / "below").mkdir()
    monkeypatch.chdir(project.folder / "below")
    code, out, _ = project.gate("--root", "its runs")
    line = out.partition("Run one alone\n  ")[2].strip()
    assert line == f"cd .. && env ASSAY_ROOT='{project.folder}/below/its runs' assay {BAD}"
    env = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    assert subprocess.run(["sh", "-c", line], check=False, capture_output=True, env=env).returncode == code == 3


@pytest.mark.parametrize(
    ("code", "report", "kind"),
    [
        (0, "<testsuites/>", VerdictKind.ERROR),  # nothing was compared
        (0, "", VerdictKind.ERROR),
        (0, '<t><testcase name="a"/></t>', VerdictKind.PASS),
        (0, '<t><testcase name="a"><skipped message="CHANGED, allowed: b"/></testcase></t>', VerdictKind.PASS),
        (0, '<t><testcase name="a"><skipped message="INCONCLUSIVE: b"/></testcase></t>', VerdictKind.ERROR),
        (0, '<t><testcase name="a"/><testcase name="b"><failure message="c"/></testcase></t>', VerdictKind.ERROR),
        (0, '<t><testcase name="a"/><testcase name="b"><error message="c"/></testcase></t>', VerdictKind.ERROR),
        (0, '<t><testcase name="a"/><testcase name="b"><skipped message="c"/></testcase></t>', VerdictKind.ERROR),
        (1, '<t><testcase name="a"><failure type="FAIL" message="b"/></testcase></t>', VerdictKind.FAIL),
        (1, '<t><testcase name="a"><error type="ERROR" message="b"/></testcase></t>', VerdictKind.ERROR),
        (3, '<t><testcase name="a"><skipped message="INCONCLUSIVE: b"/></testcase></t>', VerdictKind.INCONCLUSIVE),
        (3, '<t><testcase name="a"><skipped message="inconclusive: b"/></testcase></t>', VerdictKind.INCONCLUSIVE),
        (3, '<t><testcase name="a"><failure type="CHANGED" message="b"/></testcase></t>', VerdictKind.CHANGED),
        (-9, "", VerdictKind.ERROR),
        (4, '<t><testcase name="a"/></t>', VerdictKind.ERROR),
    ],
)
def test_exit_code_and_report(tmp_path: Path, code: int, report: str, kind: VerdictKind) -> None:
    path = tmp_path / "report.xml"
    path.write_text(report)
    outcome = check_execution._judge(CHECK, code, str(path), "", 1.0)
    assert outcome.kind is kind
    assert (outcome.code == 0) is (kind is VerdictKind.PASS)


def test_the_first_of_the_worst_is_the_reason(tmp_path: Path) -> None:
    cases = [("speed", "failure", "slow"), ("run", "error", "killed"), ("loss", "error", "none")]
    written = [f'<testcase name="{name}"><{tag} message="{text}"/></testcase>' for name, tag, text in cases]
    (tmp_path / "report.xml").write_text(f"<t>{''.join(written)}</t>")
    outcome = check_execution._judge(CHECK, 1, str(tmp_path / "report.xml"), "", 1.0)
    assert outcome.text == "run: killed (and 2 more)"


@pytest.mark.needs(golden=True)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_check_is_stopped_with_its_runs(
    project: Project, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    project.write("train.yml", TRAINED)
    project.write("train.sh", "for i in 3 2 1; do echo loss $i; done")
    assert run(["golden", "gather", "train.yml", "-q"]) == 0
    project.write("train.sh", f"touch {project.folder}/begun; sleep 1000")
    project.set("golden check train.yml", GOOD)
    begun = project.folder / "begun"

    class OutOfTime(ForkedProcess):
        def wait(self, timeout: float | None = None) -> int:
            if timeout is not None and timeout > 1000:  # the budget is used up as soon as the training has begun
                until(begun.exists, "it has begun")
                monkeypatch.setattr("assay.gate.gating.time.monotonic", lambda: 1e9)
                raise subprocess.TimeoutExpired("x", timeout)
            return super().wait(timeout)

    def start(*words: Any, **more: Any) -> Any:
        program = fork(*words, **more)
        program.__class__ = OutOfTime
        return program

    with monkeypatch.context() as patch:
        start_by(patch, start)
        code, out, _ = project.gate("--budget", "1h")
    monkeypatch.undo()
    assert code == 3
    assert "it was stopped after" in out
    assert "it was not begun: the budget of" in out
    begun.unlink()
    with (project.folder / "log").open("w+") as log:
        gate = start_assay(["gate", "-q"], cwd=project.folder, env=os.environ, log=log)
        until(begun.exists, "it has begun")
        gate.send_signal(number)
        assert gate.wait(60) == 130
    printed = (project.folder / "log").read_text()
    assert "the gate was interrupted" in printed.splitlines()[2]
    assert f"INCONCLUSIVE {GOOD}: it was not begun: the gate was interrupted" in printed
    folders = [os.readlink(path) for path in glob.glob("/proc/[0-9]*/cwd") if os.path.exists(path)]
    assert not [each for each in folders if each.startswith(f"{project.folder}/runs")]


@pytest.mark.needs(golden=True)
def test_a_pass_is_used_again_until_something_differs(project: Project) -> None:
    project.write("data.bin", "1")
    project.write("code.py", "1")
    project.set(GOOD, data=["data.bin"])
    before = sorted(project.folder.rglob("*"))
    assert "no PASS of it is kept here" in project.gate("--explain")[1]
    assert sorted(project.folder.rglob("*")) == before, "explaining changes nothing"
    assert project.load()["reused"] is False
    again = project.load()
    assert (again["reused"], again["verdict"], again["cases"] > 0) == (True, "PASS", True)
    assert project.gate("--explain")[1].count("reused") == 1
    (kept,) = (project.folder / "runs/.gate").glob("*/*.json")
    whole = kept.read_text()
    timeless = json.dumps({**json.loads(whole), "at": math.nan})
    for damage in ("", "{", "[]", '{"format": 2}', '{"format": 1, "line": 3}', timeless):
        kept.write_text(damage)
        assert project.load("--explain")["executed"] is True, damage
    kept.write_text(whole)
    assert project.load("--fresh")["reused"] is False
    for name, reason in (("code.py", "the code"), ("data.bin", "the data"), ("good.csv", "the data")):
        text = (project.folder / name).read_text()
        project.write(name, text + "\n")
        explained = project.load("--explain")
        assert (explained["executed"], reason in explained["why"]) == (True, True), explained
        project.write(name, text)
    (check,) = load_gate(load_settings()).checks
    found = passes.Passes(str(project.folder / "runs"), load_gate(load_settings()))
    assert found.plan(check, (), ["--farm"]).passed is not None
    plan = found.plan(check, (), ["--farm"], is_fresh=True)
    found.keep(plan, check_execution.CheckOutcome(check, VerdictKind.FAIL, ""))
    assert not kept.exists(), "another verdict of the same inputs takes it back"
    project.set(BAD)
    assert project.gate()[0] == 3
    assert project.load("--explain")["executed"] is True, "only a PASS is kept"


@pytest.mark.needs(models=True)
def test_what_is_in_no_snapshot_counts(
    project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Links, large files, other folders of the repository, the executable bit, a store below the root, the usual
    store, the data of a named file, variables, the user's settings, packages of environments that a command may use."""
    top, folder = project.folder, project.folder / "project"
    subprocess.run(["git", "init", "-q"], check=True, cwd=top)
    (folder / "runs/gold").mkdir(parents=True)
    (folder / "golden").mkdir()
    (top / ".gitignore").write_text("far\nruns\ngolden\n*.data\n.venv\nenvs\n")
    names = ("code.sh", "runs/gold/a", "golden/a", "good.csv", "good.csv.data")
    for name in ("lib.py", "far", *(f"project/{name}" for name in names)):
        (top / name).write_text("1")
    (folder / "good.csv").write_text("command: envs/a/bin/torchrun train.py")
    (folder / "link").symlink_to(top / "far")
    (folder / "large").write_bytes(bytes(11_000_000))
    (folder / "assay.toml").write_text(f'[gate]\nchecks = ["{GOOD} -sruns/gold"]')
    monkeypatch.chdir(folder)
    (check,) = load_gate(load_settings()).checks

    def write_user_settings(text: str) -> None:
        path = Path(os.environ["XDG_CONFIG_HOME"]) / "assay/config.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))

    def install(environment: str, package: str) -> None:
        (folder / environment / "lib/python3.12/site-packages" / f"{package}.dist-info").mkdir(parents=True)
        (folder / environment / "bin").mkdir(exist_ok=True)
        (folder / environment / "bin/python").touch(0o755)

    def look(environment: str = "") -> str:
        found = passes.Passes(str(folder / "runs"), load_gate(load_settings()))
        found._environment = environment  # "": it is looked for
        return found._load_inputs(check).key

    seen = [look("same")]
    assert look("same") == seen[0]
    for change in (
        lambda: (top / "lib.py").write_text("2"),
        lambda: (top / "far").write_text("2"),
        lambda: (folder / "large").write_bytes(bytes(11_000_001)),
        lambda: (folder / "code.sh").chmod(0o755),
        lambda: (folder / "runs/gold/a").write_text("2"),
        lambda: (folder / "golden/a").write_text("2"),
        lambda: (folder / "good.csv.data").write_text("2"),
        (folder / "runs/gold/a").unlink,
        (top / "lib.py").unlink,
        lambda: write_user_settings("[targets.sim]\nrun = 'a'"),
        lambda: write_user_settings("[targets.sim]\nrun = 'b'"),
        lambda: install(".venv", "torch-2.8"),
        lambda: install("envs/a", "torch-2.8"),
        lambda: install("envs/a", "triton-3.1"),
    ):
        change()
        seen.append(look("same"))
    seen.append(look())
    monkeypatch.setenv("RATE", "0.05")
    seen.append(look())
    assert len(set(seen)) == len(seen)
    monkeypatch.setenv("GITHUB_RUN_ID", "7")
    assert look() == seen[-1]
    found = passes.Passes(str(folder / "runs"), load_gate(load_settings()))
    plan = found.plan(check, (), {"--farm"})
    for rate, is_kept in (("0.06", False), ("0.05", True)):  # what the check itself changes
        monkeypatch.setenv("RATE", rate)
        found.keep(plan, check_execution.CheckOutcome(check, VerdictKind.PASS, "passed", None, cases=1))
        assert plan.inputs
        assert (plan.inputs.key in found._load(check)) is is_kept
    (top / ".git/index").write_text("damaged")
    seen = [look("same")]
    (top / "lib.py").write_text("of a repository that git refuses")
    assert look("same") != seen[0]


@pytest.mark.needs(golden=True)
def test_what_cannot_be_written_is_reported(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.set(GOOD)
    (project.folder / "runs").mkdir()
    project.write("runs/.gate", "")
    code, out, err = project.gate()
    assert code == 0, err
    assert "gate: PASS" in out
    assert "this PASS is not kept for the next gate" in err
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(project.folder / "no/such"))
    code, out, err = project.gate()
    assert code == 4
    assert "GITHUB_STEP_SUMMARY" in err
    assert "gate: PASS, 1 check" in out


@pytest.mark.needs(bench=True, golden=True)
@pytest.mark.parametrize(
    ("check", "reason"),
    [
        ("golden check a.yml -s s3://bucket/golden", "what is at s3://bucket/golden may have changed"),
        (f"{GOOD} --on local", "the environment of a farm is not known here"),
        ("bench compare --baseline v1 a.b", "it reads recorded results, which may have changed"),
        ("bench compare old new", "it reads recorded results, which may have changed"),
        ("bench history wall_time a.b", "it reads recorded results, which may have changed"),
        ("bench compare --git=main..HEAD a.b", "no PASS of it is kept here"),
        ("bench compare --a-rev main a.b", "no PASS of it is kept here"),
    ],
)
def test_what_cannot_be_seen_from_here(project: Project, check: str, reason: str) -> None:
    project.set(check)
    assert project.load("--explain") == {"check": check, "executed": True, "why": reason}


def commit(folder: Path, *words: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run(["git", *identity, "commit", "-q", *words], cwd=folder, check=True)


def test_a_branch_that_moves(project: Project) -> None:
    subprocess.run(["git", "init", "-q", "-b", "main"], check=True)
    commit(project.folder, "--allow-empty", "-m", "one")
    words = ("--environment", "main..HEAD", "--git=main", "main@{0}", "it's", "no such")
    before = passes._find_commits(words, str(project.folder))
    commit(project.folder, "--allow-empty", "-m", "two")
    after = passes._find_commits(words, str(project.folder))
    assert [line.split()[0] for line in before] == ["HEAD", "main", "main@{0}"]
    assert not set(before) & set(after)


CHECKED = '[gate]\nchecks = ["golden check a.yml"]\n'
BAD_SETTINGS = [
    ("", "no settings file has a table [gate]"),
    ("gate = 3", "must be"),
    ("[gate]\n", "has no checks"),
    ("[gate]\nchecks = []", "is an empty list"),
    ('[gate]\nchecks = "golden check a.yml"', "must be a list of command lines"),
    ("[gate]\nchecks = [3]", "must be a string"),
    ('[gate]\nchecks = ["golden check \'a"]', "No closing quotation"),
    ('[gate]\nchecks = ["assay"]', "has no command"),
    ('[gate]\nchecks = ["gate"]', "a gate cannot be a check of a gate"),
    ('[gate]\nchecks = ["golden check -- a.yml"]', "it cannot have --"),
    (f'{CHECKED}data = ["/dev/zero"]', "/dev/zero is not a file"),
    ('[gate]\nchecks = ["golden check a", "assay golden check a"]', "twice"),
    ('[gate]\nchecks = ["goldne check a.yml"]', "golden"),
    ('[gate]\nchecks = ["golden chekc a.yml"]', "there is no command `assay golden chekc`\n  did you mean 'check'"),
    ('[gate]\nchecks = ["golden"]', "there is no command `assay golden`\n  known: bisect, blame"),
    ('[gate]\nchecks = ["golden gather a.yml"]', "`assay golden gather` judges nothing"),
    ('[gate]\nchecks = ["bench run a.b"]', "`assay bench run` judges nothing"),
    ('[gate]\nchecks = ["sum study"]', "`assay sum` judges nothing"),
    ('[gate]\nchecks = ["golden check a.yml --sotre b"]', "has no option --sotre"),
    ('[gate]\nchecks = ["golden check a.yml --junit b"]', "has no --junit of its own"),
    (f'{CHECKED}data = ["no*such"]', "'no*such' matches no file"),
    (f'{CHECKED}data = ["nothing/**"]', "'nothing/**' matches no file"),
    ('[gate]\nchecks = ["golden check a\\u0000b"]', "contains a zero byte, which a command line cannot"),
    (f"{CHECKED}budget = 20", "must be a duration"),
    (f'{CHECKED}bugdet = "20m"', "budget"),
]


@pytest.mark.needs(bench=True, golden=True)
def test_bad_settings_and_options(project: Project) -> None:
    for text, message in BAD_SETTINGS:
        project.write("assay.toml", text)
        code, out, err = project.gate("--explain")
        assert (code, out, message in err) == (2, "", True), err
        assert "assay.toml:" in err or not text.startswith("[gate]") or "/dev/zero" in text
    project.set(GOOD)
    code, _, err = project.gate("--budget", "soon")
    assert (code, "--budget 'soon' is not a duration" in err) == (2, True)
    assert not (project.folder / "runs").exists()


def read_steps(name: str) -> list[str]:
    """What a workflow file runs, but for the installation."""
    content = yaml.safe_load((EXAMPLES / name).read_text())
    if name == "gitlab.yml":
        return list(content["gate"]["script"])
    return [step["run"] for step in content["jobs"]["gate"]["steps"] if "run" in step and step["name"] != "install"]


@pytest.mark.needs(golden=True)
@pytest.mark.parametrize(("name", "compared", "code"), [("github.yml", "bad.csv", 3), ("gitlab.yml", "good.csv", 0)])
def test_the_workflow_files(project: Project, name: str, compared: str, code: int, tmp_path: Path) -> None:
    """In a clone that has the base as a branch of its origin alone, as runners make it."""
    project.set(f"golden check --against golden.csv --from {compared}")
    for words in (["init", "-q", "-b", "main"], ["add", "-A"]):
        subprocess.run(["git", *words], cwd=project.folder, check=True)
    commit(project.folder, "-m", "base")
    subprocess.run(["git", "branch", "change"], cwd=project.folder, check=True)
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", "-b", "change", str(project.folder), str(clone)], check=True)
    env = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "GITHUB_BASE_REF": "main",
        "GITHUB_STEP_SUMMARY": str(clone / "gate.md"),
        "CI_MERGE_REQUEST_TARGET_BRANCH_NAME": "main",
    }
    script = "\n".join(["set -e", *read_steps(name)])
    done = subprocess.run(["bash", "-c", script], cwd=clone, env=env, check=False, capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Gate: " in (clone / "gate.md").read_text()
    assert ET.parse(clone / "gate.xml").getroot().get("tests") == "1"
