"""Every command that is advised works when it is pasted into the same folder, and is about the same study."""

from __future__ import annotations

import os
import re
import shlex
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.finished_study import Result
from tests.fork_server import call_shell
from tests.user_folder import UserFolder, open_user_folder

NATIVE = "command: python train.py [lr]\nparams: {lr: [1, 2, 3]}\n"
RUNX = "CMD: python train.py\nHPARAMS: {lr: [1, 2, 3]}\n"
MLRUNNER = "template:\n  train: python train.py {_output} [lr]\nresource: [0]\n---\nlr: [1, 2, 3]\n"
FAILS = '# bash\necho argv "$@"\n[ "${@: -1}" = 1 ] || exit 3\n'  # two of the three


@pytest.fixture
def user(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[UserFolder]:
    with open_user_folder(monkeypatch, capfd) as user:
        user.write("train.py", FAILS)
        yield user


def hints(said: Result) -> list[str]:
    """The commands after `next:` and in the lines below it."""
    found = re.findall(r"^(?:next: |      )(assay .*)$", said.out + said.err, re.MULTILINE)
    assert found, said.err
    return found


def run_dirs(user: UserFolder) -> set[str]:
    return {str(path.parent.relative_to(user.folder)) for path in user.folder.rglob("run.json")}


def attempts(user: UserFolder) -> dict[str, int]:
    return {name: len(list((user.folder / name).glob("lease.*"))) for name in run_dirs(user)}


def check_all(user: UserFolder, commands: list[str], study: str, failing: int) -> None:
    """`study`: the folder that every command is to be about."""
    before = attempts(user)
    names = {Path(name).name for name in before if str(Path(name).parent) == study}
    for command in commands:
        program, *words = shlex.split(command)  # as bash would: the words are plain, or in single quotes
        done = user.assay(*words)
        is_retry = "rerun" in command or "--retry" in command or command.startswith("assay mlrunner")
        assert (program, done.code) == ("assay", 1 if is_retry else 0), f"{command}\n{done.out}{done.err}"
        if words[0] == "ls":
            assert {line.split()[0] for line in done.lines[2 : 2 + len(names)]} == names
    after = attempts(user)
    assert before.keys() == after.keys(), "no command started a study of its own"
    repeated = [name for name in after if after[name] > before[name]]
    assert len(repeated) == failing
    assert all(str(Path(name).parent) == study for name in repeated)


@pytest.mark.parametrize(
    "flags", [[], ["--root", "my runs"], ["--study", "an x"], ["--root", "a/b", "-j", "1", "-c", "run"]]
)
def test_after_failures(user: UserFolder, flags: list[str]) -> None:
    user.write("f.yml", NATIVE)
    said = user.assay("run", "f.yml", *flags, code=1)
    assert str(user.folder) not in "\n".join(hints(said)), "paths are relative to this folder"
    named = dict(zip(flags[::2], flags[1::2], strict=True))
    study = f"{named.get('--root', 'runs')}/{named.get('--study', 'f')}"
    check_all(user, hints(said), study, failing=2)


def test_a_file_whose_name_begins_with_a_dash(user: UserFolder) -> None:
    user.write("-f.yml", NATIVE)
    check_all(user, hints(user.assay("run", "--", "-f.yml")), "runs/-f", failing=2)


def test_the_default_root_is_not_named(user: UserFolder) -> None:
    user.write("f.yml", "command: 'true'\n")
    assert hints(user.well("run", "f.yml")) == ["assay sum f"]
    assert hints(user.well("run", "f.yml", "--root", "runs")) == ["assay sum f"]


@pytest.mark.needs(compat=True)
def test_a_study_of_the_same_name_in_another_root(user: UserFolder) -> None:
    user.write("f.yml", NATIVE)
    user.write("sweep.yml", RUNX)
    user.assay("run", "f.yml", "--study", "sweep")
    user.write(".runx", "LOGROOT: logs\n")
    said = user.assay("runx", "sweep.yml", "-i")
    assert "assay sum logs/sweep" in hints(said)
    check_all(user, hints(said), "logs/sweep", failing=2)
    for command in ("ls", "sum", "stop", "rerun", "logs"):
        other = user.assay(command, "sweep")
        assert (other.code, "runs/sweep, logs/sweep" in other.err) == (2, True), other.err


@pytest.mark.needs(compat=True)
@pytest.mark.parametrize("flags", [["-i"], ["-i", "--exp_name", "mine"], ["-c", "my.runx", "--tag=-t", "--no_cooldir"]])
def test_runx_after_failures(user: UserFolder, flags: list[str]) -> None:
    user.write("sweep.yml", RUNX)
    user.write("my.runx", "LOGROOT: else\n")
    assert user.well("runx", "sweep.yml", "-n").err == ""
    said = user.assay("runx", "sweep.yml", *flags, code=1)
    assert not any("--root" in hint for hint in hints(said))
    name = "mine" if "--exp_name" in flags else "sweep"
    check_all(user, hints(said), f"{'else' if '-c' in flags else 'runs'}/{name}", failing=2)


@pytest.mark.needs(compat=True)
@pytest.mark.parametrize(
    "flags", [[], ["-o", "my out"], ["-y", "p.yaml", "-f"], ["--no-subdir"], ["-c", "train", "-r", "0"], ["-t", "one"]]
)
def test_mlrunner_after_failures(user: UserFolder, flags: list[str]) -> None:
    user.write("p.yaml" if "-y" in flags else "params.yaml", MLRUNNER.replace("---", "---\n_title: one"))
    said = user.assay("mlrunner", *flags, code=1)
    folder = "my out" if "-o" in flags else "output"
    check_all(user, hints(said), f"{folder}/.tasks" if "--no-subdir" in flags else folder, failing=2)


@pytest.mark.needs(compat=True)
def test_mlrunner_that_drew_a_sample(user: UserFolder) -> None:
    user.write("params.yaml", MLRUNNER.replace("[1, 2, 3]", "[2, 3, 4, 5]"))
    check_all(user, hints(user.assay("mlrunner", "--sample", "2")), "output", failing=2)


@pytest.mark.needs(compat=True)
@pytest.mark.needs(farms=True)
def test_after_a_submission(user: UserFolder) -> None:
    user.write("f.yml", NATIVE)
    user.assay("run", "f.yml", "--study", "sweep")
    user.hold()
    user.write("sweep.yml", RUNX)
    user.write(".runx", "LOGROOT: logs\nFARM: big\nbig: {SUBMIT_CMD: submit_job}\n")
    said = user.well("runx", "sweep.yml")
    assert "3 runs are with big now\n" in said.err
    assert hints(said) == ["assay ls logs/sweep"]
    check_all(user, hints(said), "logs/sweep", failing=0)
    user.release()
    user.until_ended("logs/sweep", 3)
    check_all(user, ["assay runx sweep.yml -i --retry failed"], "logs/sweep", failing=2)


@pytest.mark.needs(compat=True)
@pytest.mark.needs(farms=True)
@pytest.mark.parametrize("program", ["no_such_cmd", "./no/such", "~/no-such", "A=1 no_such_cmd -x"])
def test_a_missing_submit_command_is_an_error_at_once(user: UserFolder, program: str) -> None:
    user.write("sweep.yml", RUNX)
    user.write(".runx", f"LOGROOT: logs\nFARM: big\nbig: {{SUBMIT_CMD: '{program}'}}\n")
    for call in (["runx", "sweep.yml"], ["run", "sweep.yml"]):
        said = user.assay(*call, code=2)
        assert said.out == "", "nothing was submitted, so no line is printed"
        assert ".runx:3:1 big: SUBMIT_CMD: the program" in said.err
    assert not (user.folder / "logs").exists()
    assert user.assay("runx", "sweep.yml", "-i").code == 1, "the farm does not matter here"


def test_a_detached_study(user: UserFolder) -> None:
    user.write("-x.yml", "command: sleep 100\n")
    with user.beside("run", "--detach", "--", "-x.yml") as program:
        out, _ = program.communicate(timeout=60)
    ls, stop = hints(Result(0, out, ""))
    assert "running" in call_shell(ls).stdout
    assert call_shell(stop).returncode == 0
    assert "stopped" in call_shell(ls).stdout


@pytest.mark.needs(compat=True)
@pytest.mark.parametrize("call", [["run", "f.yml"], ["runx", "sweep.yml", "-i"], ["mlrunner", "-o", "my out"]])
def test_an_interrupted_study_is_continued(user: UserFolder, call: list[str]) -> None:
    user.write("f.yml", NATIVE)
    text = RUNX.replace("HPARAMS:", "CODE_IGNORE_PATTERNS: GO\nHPARAMS:")
    user.write("sweep.yml", text.replace("train.py", f"{user.folder}/train.py"))
    user.write("params.yaml", MLRUNNER)
    user.write("train.py", f"# bash\n[ -e {user.folder}/GO ] || sleep 100\n")
    with user.beside(*call) as program:
        deadline = time.monotonic() + 60
        # `rglob` raises where a folder has gone
        while not any("lease.1" in names for *_, names in os.walk(user.folder)) and time.monotonic() < deadline:
            time.sleep(0.02)
        program.send_signal(signal.SIGINT)
        _, err = program.communicate(timeout=60)
    assert program.returncode == 130
    (advice,) = re.findall(r"continue with: (assay .*)$", err, re.MULTILINE)
    before = run_dirs(user)
    (user.folder / "GO").touch()
    done = call_shell(advice)
    assert done.returncode == 0, done.stderr
    assert before <= run_dirs(user)
    assert len(run_dirs(user)) == 3, "it was continued, not started again elsewhere"
