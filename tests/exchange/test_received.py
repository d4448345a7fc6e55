"""Runs that came from elsewhere: an upload is never executed nor ranked before its owner adopts it; a pull is the
owner's own, and is executed with code that was made here."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
from tests.finished_study import Bench

from assay.config.fields import LoadOptions
from assay.errors import FormatError
from assay.exchange import receive
from assay.exchange.receive import RefusedUploadError, Sender, StoredRun, UploadLimits, make_aside, store_archive
from assay.follow.run_status import find_supervisors
from assay.launch import sweep
from assay.launch.prepared import RunOptions, build_dry_lines
from assay.record import run_directory
from assay.record.received import Received, is_foreign, load_received, set_aside, write_received
from assay.show.console import SILENT
from assay.system.locks import locked
from assay.values.run import JobHandle

STUDY = """
study: mine
command: bash train.sh {x} [start]
params: {x: [1, 2]}
metrics: {loss: 'loss ({number})'}
resources: {gpus: 0}
resume: {param: start, files: ['*.ckpt']}
"""
FOUR = STUDY.replace("[1, 2]", "[1, 2, 3, 4]")  # its first two runs have the ids of those of STUDY
# as many trainings do: a checkpoint that is there is loaded, and loading one may execute anything
TRAIN = """
[ ! -f "$ASSAY_RUN_DIR/last.ckpt" ] || . "$ASSAY_RUN_DIR/last.ckpt"
echo honest >> "$WITNESS"
echo "loss 0.$1"
"""
EVIL = 'echo evil >> "$WITNESS"; echo "loss 0.0001"\n'
RUN = "x=1"
SENDER = "upload from 192.0.2.7 by upload token 123abc"
Change = Callable[[Path], object]


class Owner(Bench):
    """A bench whose runs note what was executed, and others that know the study and may upload."""

    def __init__(self, folder: Path, finished: Path | None = None) -> None:
        super().__init__(folder)
        self.witness = folder / "witness"
        self.extra["WITNESS"] = str(self.witness)
        self.write("train.sh", TRAIN)
        self.write("mine.yml", STUDY)
        self.elsewhere = folder / "elsewhere"
        if finished:
            shutil.copytree(finished, self.elsewhere, symlinks=True)

    def train_elsewhere(self, text: str) -> None:
        """This file is the owner's, and others have executed it."""
        shutil.rmtree(self.elsewhere, ignore_errors=True)
        self.write("mine.yml", text)
        shutil.copytree(self.folder, self.elsewhere)
        with chdir(self.elsewhere):  # as on another machine
            assert self.read("run", "mine.yml", "--quiet").returncode == 0
        self.witness.unlink()

    def forge(self, change: Change, *, state: str = "interrupted", run: str = RUN, name: str | None = None) -> bytes:
        """An archive with a run that the attacker made from the same file, and then changed."""
        copy = self.elsewhere / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.elsewhere / "runs" / "mine" / run, copy)
        if state == "interrupted":
            interrupt(copy)
        change(copy)
        return pack(copy, f"mine/{name or run}")

    def take(self, archive: bytes) -> list[StoredRun]:
        """As the server does."""
        with make_aside(str(self.root)) as aside:
            path = Path(aside) / "body"
            path.write_bytes(archive)
            sender = Sender("192.0.2.7", "upload token 123abc")
            return store_archive(str(path), aside, str(self.root), UploadLimits(), sender)

    def executed(self) -> list[str]:
        return self.witness.read_text().split() if self.witness.exists() else []

    def load(self, *words: str) -> Any:
        return json.loads(self.do(*words, "--json").stdout)

    def do(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = self.read(*words)
        assert done.returncode == code, done.stderr
        return done


def interrupt(run_dir: Path) -> None:
    for path in run_dir.glob("*.exit.0"):
        path.unlink()
    outcome = json.loads((run_dir / "outcome.1").read_text())
    (run_dir / "outcome.1").write_text(json.dumps({**outcome, "state": "stopped", "codes": {}}))
    stop = {"who": "pid 1", "why": "SIGINT", "kind": "interrupt", "at": 1.0}
    (run_dir / "stop.1").write_text(json.dumps(stop))


def pack(folder: Path, key: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path in folder.rglob("*"):
            if path.is_file():
                archive.write(path, f"{key}/{path.relative_to(folder)}")
    return buffer.getvalue()


def change_record(run_dir: Path, **fields: object) -> None:
    record = json.loads((run_dir / "run.json").read_text())
    for name, value in fields.items():
        (record if name in record else record["spec"])[name] = value
    (run_dir / "run.json").write_text(json.dumps(record))


def evil_job(run_dir: Path) -> None:
    job = (run_dir / "job.sh").read_text()
    (run_dir / "job.sh").write_text(job.replace("\n", f"\n{EVIL}", 1))


def evil_code(run_dir: Path) -> None:
    evil_job(run_dir)
    (run_dir / "code" / "train.sh").write_text(EVIL)


def evil_files(run_dir: Path) -> None:
    evil_code(run_dir)
    shutil.copytree(run_dir / "code", run_dir / "code.next-0123")
    (run_dir / "last.ckpt").write_text(EVIL)


def evil_environment(run_dir: Path) -> None:
    (run_dir / "evil.sh").write_text(EVIL)
    change_record(run_dir, env=[["BASH_ENV", "../evil.sh"]])
    (run_dir / "job.sh").unlink()  # so that it would be written again from run.json


def evil_command(run_dir: Path) -> None:
    change_record(run_dir, commands=[["main", EVIL.strip(), None]])
    (run_dir / "job.sh").write_text("")


def evil_workdir(run_dir: Path) -> None:
    (run_dir / "other").mkdir()
    (run_dir / "other" / "train.sh").write_text(EVIL)
    change_record(run_dir, workdir="other")
    (run_dir / "job.sh").unlink()


def forge_best(run_dir: Path) -> None:
    (log,) = (path for path in run_dir.glob("*.log") if path.name != "job.log")
    log.write_text("loss 0.0001\n")


def nothing(_run_dir: Path) -> None:
    """The run as it was."""


EVILS = {"x=1": evil_files, "x=2": evil_environment, "x=3": evil_command, "x=4": evil_workdir}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the four runs of FOUR are done."""
    maker = Owner(tmp_path_factory.mktemp("finished"))
    maker.write("mine.yml", FOUR)
    assert maker.assay("run", "mine.yml", "--quiet").returncode == 0
    return maker.folder


@pytest.fixture
def owner(tmp_path: Path, finished: Path, monkeypatch: pytest.MonkeyPatch) -> Owner:
    monkeypatch.setattr(receive, "_check_metrics", lambda _run_dirs: None)  # by a process: test_web_pages has it
    owner = Owner(tmp_path, finished)
    owner.enter(monkeypatch)
    return owner


# ---------------------------------------------------------------- never executed


def test_nothing_of_an_uploaded_run_is_executed(owner: Owner) -> None:
    owner.write("mine.yml", FOUR)
    for run, evil in EVILS.items():
        owner.take(owner.forge(evil, run=run))
    said = owner.do("run", "mine.yml").stderr.replace('"', "'")
    assert owner.executed() == ["honest"] * 4
    for run in EVILS:
        assert load_received(str(owner.root / "mine" / run)) is None  # made here
        assert is_foreign(str(owner.root / "mine" / f"{run}~received"))
        assert f"kept as {run}~received, see it: assay show 'mine/{run}~received'" in said


def test_an_adopted_run_is_continued_with_the_owners_code(owner: Owner) -> None:
    owner.write("mine.yml", FOUR)
    for run, evil in EVILS.items():
        owner.take(owner.forge(evil, run=run))
    owner.do("adopt", *(f"mine/{run}" for run in EVILS), "--file", "mine.yml")
    owner.do("run", "mine.yml")
    assert owner.executed() == ["honest"] * 4
    for run in EVILS:
        found = owner.load("show", f"mine/{run}")
        assert (found["state"], len(found["attempts"])) == ("done", 2)
        assert found["received"].keys() == {"how", "from", "by", "at", "adopted_by", "adopted_at"}


@pytest.mark.parametrize(
    "words", [("--retry", "failed", "--retry", "lost", "--retry", "stopped", "x=1"), ("--force",), ("--force", "--new-code")]
)  # fmt: skip
def test_no_option_executes_an_upload(owner: Owner, words: tuple[str, ...]) -> None:
    owner.take(owner.forge(evil_files))
    owner.do("run", "mine.yml", *words)
    assert set(owner.executed()) == {"honest"}


def test_rerun_refuses_an_upload_and_says_how_it_is_taken(owner: Owner) -> None:
    owner.take(owner.forge(evil_files))
    owner.take(owner.forge(evil_files, run="x=2", state="done"))
    for run in ("x=1", "x=2"):
        for words in ((), ("x=5",), ("start=1",), ("--from", "checkpoint"), ("--new-code",), ("-c", "main")):
            assert "assay adopt" in owner.do("rerun", f"mine/{run}", *words, code=2).stderr, words
    assert owner.executed() == []
    shutil.rmtree(owner.root)
    owner.do("run", "mine.yml", "x=2", "--quiet")
    owner.take(owner.forge(evil_job))
    owner.witness.unlink()
    assert "uploaded" in owner.do("rerun", "mine").stderr  # which leaves uploads out
    assert owner.executed() == ["honest"]


def test_checkpoints_of_an_adopted_run_are_not_found(owner: Owner) -> None:
    def hide(run_dir: Path) -> None:
        for name in ("last.ckpt", "metrics/last.ckpt", "fake.log/last.ckpt", "main.exit.0/last.ckpt"):
            (run_dir / name).parent.mkdir(exist_ok=True)
            (run_dir / name).write_text(EVIL)

    owner.take(owner.forge(hide))
    owner.do("adopt", f"mine/{RUN}", "--file", "mine.yml")
    assert "has no checkpoint" in owner.do("rerun", f"mine/{RUN}", "--from", "checkpoint", code=2).stderr
    folder = owner.root / "mine" / RUN
    assert {path.relative_to(folder).parts[0] for path in folder.rglob("*.ckpt")} == {"received"}


@pytest.mark.parametrize("name", ["received.json", "received/x", "secrets.sh"])
def test_an_upload_brings_no_secrets_and_cannot_say_that_it_was_adopted(owner: Owner, name: str) -> None:
    def forge(run_dir: Path) -> None:
        (run_dir / name).parent.mkdir(exist_ok=True)
        (run_dir / name).write_text(json.dumps({"format": 1, "how": "pull", "adopted_at": 1.0}))

    with pytest.raises(RefusedUploadError):
        owner.take(owner.forge(forge))
    assert not (owner.root / "mine").exists()


def test_the_lowest_check_refuses_a_lease_and_a_damaged_mark_allows_nothing(owner: Owner) -> None:
    owner.take(owner.forge(evil_job))
    handle = JobHandle("local", "1", "here", 1, 1, "boot", None, 2, 0.0)
    with pytest.raises(FormatError, match=re.escape(SENDER)):
        run_directory.publish_lease(str(owner.root / "mine" / RUN), handle)
    assert not (owner.root / "mine" / RUN / "lease.2").exists()
    for text in ("", "[]", '{"format": 1, "how": "gift"}', '{"format": 99}', '{"format": 1}', "{"):
        (owner.root / "mine" / RUN / "received.json").write_text(text)
        assert is_foreign(str(owner.root / "mine" / RUN)), text
    owner.do("run", "mine.yml", "--quiet")
    assert owner.executed() == ["honest", "honest"]


# ---------------------------------------------------------------- while the owner works


def test_an_upload_that_comes_between_the_plan_and_the_start(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    def forge(run_dir: Path) -> None:
        evil_job(run_dir)
        forge_best(run_dir)

    archives = [owner.forge(forge), owner.forge(forge, state="done", run="x=2")]
    original = sweep._build_entries

    def build(*arguments: object) -> object:
        entries = original(*arguments)  # type: ignore[arg-type]
        for archive in archives:
            owner.take(archive)
        owner.do("ls", "mine")  # the index has read it, as after every upload
        return entries

    monkeypatch.setattr(sweep, "_build_entries", build)
    report = sweep.run_study(sweep.prepare(RunOptions("mine.yml", load=LoadOptions())), sweep.RunHooks())
    assert [str(entry.state) for entry in report.entries] == ["done", "done"]
    assert owner.executed() == ["honest", "honest"]
    assert [path.name for path in sorted((owner.root / "mine").glob("*~received"))] == ["x=1~received", "x=2~received"]
    best = owner.load("best", "mine")["best"]
    assert (best["run"], best["value"]) == ("mine/x=1", 0.1)  # nothing of the upload is left under this name


def test_stop_never_ends_a_process_that_an_upload_names(owner: Owner) -> None:
    from assay.system import processes

    victim = subprocess.Popen(["sleep", "600"])
    try:
        start = processes.process_start(victim.pid)

        def name(run_dir: Path) -> None:
            lease = json.loads((run_dir / "lease.1").read_text())
            own = {"host": processes.host_name(), "boot": processes.boot_id(), "pid": victim.pid, "start": start}
            own |= {"supervisor_pid": victim.pid, "supervisor_start": start}
            (run_dir / "lease.1").write_text(json.dumps({**lease, **own}))

        owner.take(owner.forge(name))
        assert find_supervisors([str(owner.root / "mine" / RUN)]) == []
        owner.read("stop", "mine")
        assert victim.poll() is None
    finally:
        victim.send_signal(signal.SIGKILL)
        victim.wait()


def test_an_upload_never_asks_a_farm(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease of ssh would be asked by `ssh HOST`, with a host that the upload chooses."""

    def name(run_dir: Path) -> None:
        (run_dir / "outcome.1").unlink()
        (run_dir / "stop.1").unlink()
        lease = json.loads((run_dir / "lease.1").read_text())
        given = {"executor": "ssh", "host": "-oProxyCommand=touch evil", "native_id": "-oProxyCommand=touch evil"}
        (run_dir / "lease.1").write_text(json.dumps({**lease, **given, "farm_root": "/etc"}))

    def refuse(*_arguments: object) -> object:
        raise AssertionError("a host was asked")

    monkeypatch.setattr("assay.farms.ssh.SshExecutor.load_liveness", refuse)
    monkeypatch.setattr("assay.farms.submit.SubmitExecutor.load_liveness", refuse)
    owner.take(owner.forge(name))
    (attempt,) = run_directory.load_history(str(owner.root / "mine" / RUN)).attempts
    assert (attempt.handle.executor, attempt.handle.farm_root, attempt.handle.tag) == ("local", "", "")


# ---------------------------------------------------------------- other files and flows


@pytest.mark.needs(compat=True)
@pytest.mark.parametrize(
    ("file", "text", "call"),
    [
        ("sweep.yml", "CMD: 'bash train.sh'\nHPARAMS:\n  - x: [1, 2]\n", ("runx", "sweep.yml", "-i")),
        ("tasks.yml", "template: {train: 'bash train.sh {x}'}\nresource: [cpu]\n---\nx: [1, 2]\n", ("run", "tasks.yml", "--quiet")),
    ],
    ids=["runx", "mlrunner"],
)  # fmt: skip
def test_a_study_of_another_tool_is_not_continued_with_an_upload(
    owner: Owner, file: str, text: str, call: tuple[str, ...]
) -> None:
    owner.write(".runx", f"LOGROOT: {owner.root}\nCODE_IGNORE_PATTERNS: '.git,runs'\n")
    owner.write(file, text)
    owner.do(*call)
    victim = min(path.parent for path in owner.root.glob("*/*/job.sh"))
    copy = owner.folder / "copy"
    shutil.move(victim, copy)
    interrupt(copy)
    evil_job(copy)
    owner.take(pack(copy, f"{victim.parent.name}/{victim.name}"))
    owner.witness.unlink()
    owner.do("run", file)
    assert owner.executed() == ["honest"]
    assert is_foreign(f"{victim}~received")


SEARCH = """
study: mine
command: bash train.sh {x}
params: {x: {range: [0, 9]}}
search: {sampler: random, metric: loss, direction: min, trials: 3, seed: 1}
metrics: {loss: 'loss ({number})'}
resources: {gpus: 0}
"""


def test_an_uploaded_trial_is_none_of_the_search(owner: Owner) -> None:
    owner.write("mine.yml", SEARCH)
    owner.do("run", "mine.yml", "--quiet")
    trial, copy = owner.root / "mine" / "trial-0001", owner.folder / "copy"
    shutil.move(trial, copy)
    forge_best(copy)
    owner.take(pack(copy, "mine/trial-0001"))
    answer = owner.load("run", "mine.yml")
    assert answer["search"]["trials"]["done"] == 3
    assert all(row["trial"] != 1 for row in answer["search"]["best"])


def test_a_dry_run_and_early_stopping_count_nothing_that_was_uploaded(owner: Owner) -> None:
    from assay.follow.locations import StudyLocation
    from assay.follow.opening import open_index
    from assay.follow.refresh import refresh_study
    from assay.search.early_stop import EarlyStop

    owner.write("mine.yml", STUDY + "stop: [{rule: median, metric: loss, direction: min}]\n")
    owner.take(owner.forge(nothing, state="done"))
    prepared = sweep.prepare(RunOptions("mine.yml", load=LoadOptions()))
    assert list(build_dry_lines(prepared)) == ["bash train.sh 1", "bash train.sh 2"]
    location = StudyLocation(str(owner.root), "mine")
    with open_index(str(owner.root)) as index:
        refresh_study(index, location, SILENT, stores_points=True)
        early = EarlyStop(prepared.study.stop, index, location)
        early.prune([])
        assert not early._counts


# ---------------------------------------------------------------- neither counted nor ranked


def test_a_forged_run_is_not_the_best(owner: Owner) -> None:
    owner.do("run", "mine.yml", "--quiet")
    owner.take(owner.forge(forge_best, state="done", name="x=9"))
    best = owner.do("best", "mine", "--json")
    assert (json.loads(best.stdout)["best"]["run"], json.loads(best.stdout)["counted"]) == ("mine/x=1", 2)
    assert "1 uploaded run is not ranked with the others; a run that was made here has the same id" in best.stderr
    table = owner.load("sum", "mine")
    assert [row["run"] for row in table] == ["x=1", "x=2", "x=9"]  # its record says that it is x=1
    assert table[2]["received"] == SENDER
    assert "x=9" not in [row["run"] for row in owner.load("sum", "mine", "--pareto", "loss,time")]
    assert owner.load("sum", "mine", "-g", "x")[0]["n"] == 2
    assert "not ranked" in owner.do("plot", "mine", "--scatter", "x").stderr
    refused = owner.do("adopt", "mine/x=9", code=2)
    assert "is the same run as mine/x=1: adopted, it would count twice in means" in refused.stderr
    assert refused.stdout == ""


def test_a_study_of_uploads_alone_is_shown_with_their_origin_and_has_no_best(owner: Owner) -> None:
    owner.take(owner.forge(forge_best, state="done"))
    assert [row["run"] for row in owner.load("sum", "mine")] == [RUN]
    advice = f"assay adopt mine/{RUN} --file=FILE  # FILE: your study file\n"
    said = "no run that was made here is done yet; 1 uploaded run is not ranked; to take it: "
    assert said + advice in owner.do("best", "mine", code=1).stderr
    for words in (("sum", "mine"), ("rerun", "mine"), ("adopt", f"mine/{RUN}")):
        assert advice.strip() in owner.read(*words).stderr
    assert SENDER in owner.do("ls", "mine").stdout
    shown = owner.do("show", f"mine/{RUN}").stdout
    assert SENDER in shown
    assert "by hand" not in shown
    assert "no; not executed or ranked here: its job.sh, code" in shown
    for facts in (owner.load("ls", "mine")[0], owner.load("show", f"mine/{RUN}")):
        assert (facts["received"]["how"], facts["received"]["from"]) == ("upload", "192.0.2.7")
        assert facts["received"]["at"] > 1e9
    assert [run["name"] for run in owner.load("ls", "mine", "--where", "received == 'upload'")] == [RUN]
    query = "SELECT key, json_extract(received, '$.how') AS how FROM runs"
    assert owner.load("index", "query", query) == [{"key": f"mine/{RUN}", "how": "upload"}]


# ---------------------------------------------------------------- adopting


def test_an_adopted_run_is_ranked_and_marked_and_has_a_uid_of_its_own(owner: Owner) -> None:
    """By its uid the processes of a run are found, and ended. The command that is printed works."""
    owner.do("run", "mine.yml", "x=2", "--quiet")
    uid = json.loads((owner.root / "mine" / "x=2" / "run.json").read_text())["uid"]

    def forge(run_dir: Path) -> None:
        forge_best(run_dir)
        change_record(run_dir, uid=uid)

    owner.take(owner.forge(forge, state="done", name="x=1 of the board"))
    advised = shlex.split(owner.do("best", "mine").stderr.partition("to take it: ")[2])
    owner.do(*advised[1:])
    best = owner.do("best", "mine").stdout
    assert "x=1 of the board" in best
    assert f"{SENDER}, adopted" in best
    folder = owner.root / "mine" / "x=1 of the board"
    assert json.loads((folder / "run.json").read_text())["uid"] != uid
    assert not (folder / "lease.1").exists()
    assert "adopted already" in owner.do("adopt", "mine/x=1 of the board", code=2).stderr
    assert "was made here" in owner.do("adopt", "mine/x=2", code=2).stderr


def test_a_run_that_is_not_one_of_the_file_is_refused(owner: Owner) -> None:
    owner.take(owner.forge(lambda run_dir: change_record(run_dir, id="0" * 16), name="id"))
    owner.take(owner.forge(lambda run_dir: change_record(run_dir, params={"x": 7}), name="params"))
    owner.take(owner.forge(nothing))
    for run, words, said in (
        ("id", ("--file", "mine.yml"), "is not one of the 2 runs"),
        ("params", ("--file", "mine.yml"), "is not one of the 2 runs"),
        (RUN, (), "your study file is not known"),
        (RUN, ("--file", "gone.yml"), "gone.yml"),
    ):
        before = sorted(os.listdir(owner.root / "mine" / run))
        assert said in owner.do("adopt", f"mine/{run}", *words, code=2).stderr
        assert sorted(os.listdir(owner.root / "mine" / run)) == before
        assert is_foreign(str(owner.root / "mine" / run))


def test_an_adopted_run_without_a_command_is_none_of_the_file(owner: Owner) -> None:
    """There is no job.sh to make again: it would be started without one, and be lost each time. Of two uploads of one
    run one is adopted."""
    for name in ("other", "another"):
        owner.take(owner.forge(nothing, state="done", run="x=2", name=name))
    said = "is the same run as mine/"
    assert f"{said}other" in owner.do("adopt", "mine/other", "mine/another", "--file", "mine.yml", code=2).stderr
    owner.do("adopt", "mine/other", "--file", "mine.yml")
    assert f"{said}other" in owner.do("adopt", "mine/another", code=2).stderr
    shutil.rmtree(owner.root)
    owner.take(owner.forge(lambda run_dir: change_record(run_dir, commands=[])))
    owner.do("adopt", f"mine/{RUN}", "--file", "mine.yml")
    owner.do("run", "mine.yml")
    assert owner.executed() == ["honest", "honest"]


def test_two_uploads_of_one_name_both_step_aside(tmp_path: Path) -> None:
    for expected in ("a~received", "a~received-2"):
        (tmp_path / "a").mkdir()
        write_received(str(tmp_path / "a"), Received("upload"))
        assert set_aside(str(tmp_path / "a")) == expected
    long = tmp_path / ("é" * 120)
    long.mkdir()
    write_received(str(long), Received("upload"))
    assert set_aside(str(long)) is not None
    assert set_aside(str(tmp_path / "gone")) is None


def test_a_run_that_another_supervisor_has_begun_is_not_moved_away(tmp_path: Path) -> None:
    run_dir = tmp_path / "a"
    run_dir.mkdir()
    write_received(str(run_dir), Received("upload"))
    with ThreadPoolExecutor(1) as pool:
        with locked(str(run_dir)):  # as the other has it: it sees the upload, moves it and makes its own run
            second = pool.submit(set_aside, str(run_dir))
            wait([second], 0.5)
            run_dir.rename(tmp_path / "a~received")
            run_dir.mkdir()
        assert second.result() is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "a~received"]


# ---------------------------------------------------------------- pulled


def pull_interrupted(owner: Owner, changes: dict[str, Change]) -> None:
    """Runs of another machine, interrupted and then changed, as they come by shared storage."""
    for run, change in changes.items():
        interrupt(owner.elsewhere / "runs" / "mine" / run)
        change(owner.elsewhere / "runs" / "mine" / run)
    with chdir(owner.elsewhere):
        owner.do("push", "mine", "--to", str(owner.folder / "shared"))
    owner.do("pull", "mine", "--from", "shared")


def test_pulled_runs_are_continued_with_code_made_here_and_their_checkpoints(owner: Owner) -> None:
    def save(run_dir: Path) -> None:
        (run_dir / "last.ckpt").write_text("echo resumed >> $WITNESS\n")

    owner.write("mine.yml", FOUR)
    pull_interrupted(owner, {"x=1": evil_code, "x=2": evil_command, "x=3": evil_environment, "x=4": save})
    owner.do("run", "mine.yml")
    assert sorted(owner.executed()) == ["honest"] * 4 + ["resumed"]
    for run in EVILS:
        found = owner.load("show", f"mine/{run}")
        assert (found["received"]["how"], len(found["attempts"])) == ("pull", 2)
    assert not list((owner.root / "mine").glob("*~received"))


def test_a_pulled_trial_is_continued_with_the_command_of_the_file(owner: Owner) -> None:
    """Also where its record has another one, as of an earlier version of the file."""
    searched = "params: {x: {int: [1, 9]}}\nsearch: {trials: 2, metric: loss, sampler: random}"
    owner.train_elsewhere(STUDY.replace("params: {x: [1, 2]}", searched))

    def forge(run_dir: Path) -> None:
        evil_command(run_dir)
        change_record(run_dir, id="0123456789abcdef")

    pull_interrupted(owner, {"trial-0000": forge})
    owner.do("run", "mine.yml")
    assert owner.executed() == ["honest"]


def test_pulled_runs_are_ranked_and_marked_and_do_not_choose_the_file_that_they_are_adopted_from(owner: Owner) -> None:
    def forge(run_dir: Path) -> None:
        (run_dir / "code" / "evil.yml").write_text(STUDY.replace("bash train.sh {x} [start]", EVIL.strip()))
        change_record(run_dir, source=f"runs/mine/{RUN}/code/evil.yml")

    pull_interrupted(owner, {RUN: forge})
    assert owner.load("best", "mine")["best"]["received"]["how"] == "pull"
    assert "assay adopt" in owner.do("rerun", "mine/x=2", code=2).stderr
    assert owner.executed() == []
    owner.do("adopt", "mine/x=2", "--file", "mine.yml")
    owner.do("rerun", "mine/x=2", "--quiet")
    assert owner.executed() == ["honest"]
    for run in ("x=2", "x=3", "x=4"):
        shutil.rmtree(owner.root / "mine" / run)
    assert "your study file is not known" in owner.do("adopt", f"mine/{RUN}", code=2).stderr


def test_a_pulled_snapshot_is_not_the_code_of_a_run(owner: Owner) -> None:
    """Neither under the hash of the owner's own code, nor by the code that waiting runs were planned with."""
    owner.do("run", "mine.yml", "x=3", "--quiet", "--root", "probe")
    (digest,) = [path.name for path in (owner.folder / "probe" / "mine" / ".assay" / "code").iterdir() if path.is_dir()]
    owner.witness.unlink()

    def forge(run_dir: Path) -> None:
        store = run_dir.parent / ".assay" / "code"
        old = json.loads((run_dir / "run.json").read_text())["code_hash"]
        if old != digest:
            shutil.move(store / old, store / digest)
        for path in store.glob("*/tree/train.sh"):
            path.chmod(0o644)
            path.write_text(EVIL)
        for path in run_dir.parent.glob("x=*"):
            change_record(path, code_hash=digest)
        codes = run_dir.parent / ".assay" / "codes.json"
        ids = json.loads(codes.read_text())
        codes.write_text(json.dumps({**ids, "codes": dict.fromkeys(ids["codes"], digest)}))

    pull_interrupted(owner, {RUN: forge})
    assert (owner.root / "mine" / ".assay" / "code" / digest / "pulled").exists()
    owner.do("run", "mine.yml", "--force")
    assert set(owner.executed()) == {"honest"}


def test_an_upload_stays_one_through_a_shared_place_and_changes_nothing_of_the_owners_run(owner: Owner) -> None:
    """Also with the uid of that run, which is the case for every run that its owner has uploaded."""

    def push_own(place: str) -> None:
        with chdir(owner.elsewhere):
            owner.do("push", f"mine/{RUN}", "--to", str(owner.folder / place))

    def push_upload(place: str) -> None:
        owner.do("push", f"mine/{RUN}", "--to", place)

    owner.take(owner.forge(forge_best, state="done"))
    for place, *pushes in (("alone", push_upload), ("first", push_own, push_upload), ("last", push_upload, push_own)):
        for push in pushes:
            push(place)
        owner.do("pull", "mine", "--from", place, "--root", f"from-{place}")
        pulled = owner.folder / f"from-{place}" / "mine" / RUN
        assert is_foreign(str(pulled)) is (place == "alone")
        assert load_received(str(pulled)).how == ("upload" if place == "alone" else "pull")
        assert (pulled / "run.log").read_text() == ("loss 0.0001\n" if place == "alone" else "loss 0.1\n")


def change_lease(run_dir: Path, **fields: object) -> None:
    """As of an attempt that was running when the run was pushed."""
    for name in ("outcome.1", "stop.1"):
        (run_dir / name).unlink()
    lease = json.loads((run_dir / "lease.1").read_text())
    (run_dir / "lease.1").write_text(json.dumps({**lease, **fields}))


def forge_ssh(run_dir: Path) -> None:
    address = {"host": "127.0.0.1", "root": "~/r", "options": ["-oProxyCommand=touch evil"], "slot": 0, "keep": False}
    change_lease(run_dir, executor="ssh", host="elsewhere", boot="x", native_id=json.dumps(address))


def forge_slurm(run_dir: Path) -> None:
    change_lease(run_dir, executor="slurm", native_id="71")
    (run_dir / "submit.log.1").write_text("71\n")
    (run_dir / "submit.exit.1.0").write_text("")


def forge_farm_root(run_dir: Path) -> None:
    secret = Path(os.environ["WITNESS"]).parent / "secret"
    (secret / "mine" / run_dir.name).mkdir(parents=True)
    for folder in (secret, secret / "mine" / run_dir.name):
        (folder / "key").write_text("secret")
    change_lease(run_dir, executor="submit", farm_root=str(secret))


def forge_without_lease(run_dir: Path) -> None:
    change_lease(run_dir)
    (run_dir / "lease.1").unlink()
    (run_dir / "warned.1").write_text("")


def forge_fenced(run_dir: Path) -> None:
    forge_ssh(run_dir)
    stop = {"who": "pid 1", "why": "its host did not answer", "kind": "fence", "at": 1.0}
    (run_dir / "stop.1").write_text(json.dumps(stop))
    (run_dir / "token.1").write_text("127.0.0.1 1 1 boot 1.0")
    (run_dir / "lease.2").write_text((run_dir / "lease.1").read_text().replace('"attempt": 1', '"attempt": 2'))


def add_programs(owner: Owner) -> Path:
    """Programs that contact a host or an engine, and note that they were called."""
    programs = owner.folder / "programs"
    programs.mkdir()
    for name in ("ssh", "scancel", "squeue", "sacct", "sbatch", "scontrol"):
        (programs / name).write_text(f"#!/bin/sh\necho {name} >> '{owner.folder}/contacted'\nexit 255\n")
        (programs / name).chmod(0o755)
    owner.extra["PATH"] = f"{programs}:{os.environ['PATH']}"
    return owner.folder / "contacted"


CALLS = (
    ("ls", "mine"),
    ("show", "mine/{run}"),
    ("logs", "-f", "mine/{run}"),
    ("stop", "mine/{run}", "--grace", "1"),
    ("stop", "mine", "--grace", "1"),
    ("run", "mine.yml", "--quiet"),
    ("adopt", "mine/{run}", "--file", "mine.yml"),
    ("stop", "mine/{run}", "--grace", "1"),
    ("run", "mine.yml", "--quiet", "--retry", "lost"),
)


@pytest.mark.needs(farms=True)
@pytest.mark.parametrize("forge", [forge_ssh, forge_slurm, forge_farm_root, forge_without_lease, forge_fenced])
def test_nothing_that_a_pulled_lease_names_is_contacted(
    owner: Owner, monkeypatch: pytest.MonkeyPatch, forge: Change
) -> None:
    """Neither a host, an engine, a folder nor a process: not before the run is continued here, and not afterwards."""
    monkeypatch.setenv("WITNESS", str(owner.witness))
    contacted = add_programs(owner)
    uid = json.loads((owner.elsewhere / "runs" / "mine" / RUN / "run.json").read_text())["uid"]
    victim = subprocess.Popen(["sleep", "600"], env={"ASSAY_ATTEMPT": f"{uid}.1"})  # the uid is the sender's to choose
    try:
        pull_interrupted(owner, {RUN: forge})
        folder = owner.root / "mine" / RUN
        for call in CALLS:
            done = owner.read(*(word.format(run=RUN) for word in call))
            assert "Traceback" not in done.stderr, call
            assert not contacted.exists(), (call, contacted.read_text())
            assert victim.poll() is None, call
            assert [path for path in folder.rglob("*") if path.is_symlink()] == [], call
        assert owner.load("show", f"mine/{RUN}")["state"] == "done"
    finally:
        victim.kill()
        victim.wait()


def test_stop_ends_no_process_of_a_pulled_run_and_names_its_sender(owner: Owner) -> None:
    from assay.system import processes

    victim = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        start = processes.process_start(victim.pid)

        def name(run_dir: Path) -> None:
            own = {"host": processes.host_name(), "boot": processes.boot_id(), "pid": victim.pid, "start": start}
            change_lease(run_dir, **own, supervisor_pid=victim.pid, supervisor_start=start)

        pull_interrupted(owner, {RUN: name})
        meta = owner.root / "mine" / ".assay"
        assert find_supervisors([str(owner.root / "mine" / RUN)]) == []
        assert owner.load("ls", "mine", "--where", "state == 'lost'")[0]["name"] == RUN
        stopped = owner.do("stop", f"mine/{RUN}", "--grace", "1", code=1)
        assert "was received (pull from" in stopped.stdout + stopped.stderr
        owner.do("adopt", f"mine/{RUN}", "--file", "mine.yml")
        owner.read("stop", "mine", "--grace", "1")
        assert victim.poll() is None
        assert not list(meta.glob("supervisor.*"))
    finally:
        victim.kill()
        victim.wait()


@pytest.mark.needs(farms=True, web=True)
def test_the_button_of_the_page_does_not_contact_the_host_of_a_pulled_run(owner: Owner) -> None:
    from tests.web_client import WRITE, open_client

    contacted = add_programs(owner)
    pull_interrupted(owner, {RUN: forge_ssh})
    with open_client(owner.root) as client:
        client.post("/api/studies/mine/actions", headers=WRITE, json={"action": "stop", "runs": [RUN]})
        assert "ProxyCommand" not in client.get(f"/studies/mine/runs/{RUN}").text
    assert not contacted.exists()


# ---------------------------------------------------------------- more ways to start something


def test_the_button_of_the_page_does_not_repeat_an_upload(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.web_client import WRITE, open_client

    monkeypatch.setattr("assay.web.actions._EARLY_S", 60.0)
    owner.take(owner.forge(evil_job))
    with open_client(owner.root) as client:
        answer = client.post("/api/studies/mine/actions", headers=WRITE, json={"action": "rerun", "runs": [RUN]})
        assert answer.status_code == 409
        assert "assay adopt" in answer.json()["said"]
        page = client.get(f"/studies/mine/runs/{RUN}").text
    assert "assay rerun" not in page
    assert "assay adopt" in page
    assert owner.executed() == []


def test_a_gathering_is_not_continued_from_an_upload(tmp_path: Path) -> None:
    from assay.golden.flow.rebase import load_checks
    from assay.golden.flow.runs import _load_open

    for name in ("gather-1", "check-1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text("{}")
        write_received(str(tmp_path / name), Received("upload"))
    assert _load_open(str(tmp_path / "gather-1"), None) is None  # type: ignore[arg-type]
    assert load_checks(str(tmp_path)) == []


def test_a_hint_never_names_a_file_of_an_upload(owner: Owner) -> None:
    def name(run_dir: Path) -> None:
        (run_dir / "evil.yml").write_text(STUDY)
        change_record(run_dir, source=f"runs/mine/{RUN}/evil.yml")

    owner.take(owner.forge(name, state="done"))
    page = owner.folder / "page.html"
    for words in (("report", "mine", "-o", "page.html"), ("best", "mine"), ("adopt", f"mine/{RUN}"), ("rerun", "mine")):
        done = owner.read(*words)
        said = done.stdout + done.stderr + (page.read_text() if page.exists() else "")
        assert not re.search(r"assay [a-z]+ [^\n]*evil\.yml", said), words
    assert page.exists()
