"""Runs that came from elsewhere: an upload is never executed nor ranked before its owner adopts it; a pull is the
owner's own, and is executed with code that was made here."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path

import pytest
from tests.finished_study import Bench, until

from assay.config.fields import LoadOptions
from assay.errors import FormatError
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
# as many trainings do: a checkpoint that is there is loaded, and loading one may execute anything
TRAIN = """
[ ! -f "$ASSAY_RUN_DIR/last.ckpt" ] || . "$ASSAY_RUN_DIR/last.ckpt"
echo honest >> "$WITNESS"
echo "loss 0.$1"
"""
EVIL = 'echo evil >> "$WITNESS"; echo "loss 0.0001"\n'
RUN = "x=1"
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
        self.finished = finished  # a folder in which both runs of STUDY are done

    def forge(self, change: Change, *, state: str = "interrupted", run: str = RUN, name: str | None = None) -> bytes:
        """An archive with a run that the attacker made from the same file, and then changed."""
        if not self.elsewhere.exists() and self.finished and (self.folder / "mine.yml").read_text() == STUDY:
            shutil.copytree(self.finished, self.elsewhere, symlinks=True)
        elif not self.elsewhere.exists():
            shutil.copytree(self.folder, self.elsewhere, ignore=shutil.ignore_patterns("runs"))
            here, self.folder = self.folder, self.elsewhere
            assert self.assay("run", "mine.yml", "--quiet").returncode == 0
            self.folder = here
            self.witness.unlink()
        copy = self.elsewhere / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.elsewhere / "runs" / "mine" / run, copy)
        if state == "interrupted":
            interrupt(copy)
        change(copy)
        return pack(copy, f"mine/{name or run}")

    def take(self, archive: bytes, sender: Sender = Sender("192.0.2.7", "upload token 123abc")) -> list[StoredRun]:  # noqa: B008
        """As the server does."""
        with make_aside(str(self.root)) as aside:
            path = Path(aside) / "body"
            path.write_bytes(archive)
            return store_archive(str(path), aside, str(self.root), UploadLimits(), sender)

    def executed(self) -> list[str]:
        return self.witness.read_text().split() if self.witness.exists() else []

    def load(self, *words: str) -> object:
        return json.loads(self.assay(*words, "--json").stdout)


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
    (run_dir / "code" / "train.sh").write_text(EVIL)


def evil_next_code(run_dir: Path) -> None:
    shutil.copytree(run_dir / "code", run_dir / "code.next-0123")
    (run_dir / "code.next-0123" / "train.sh").write_text(EVIL)


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


def evil_checkpoint(run_dir: Path) -> None:
    (run_dir / "last.ckpt").write_text(EVIL)


def evil_files(run_dir: Path) -> None:
    for change in (evil_job, evil_code, evil_next_code, evil_checkpoint):
        change(run_dir)


def nothing(_run_dir: Path) -> None:
    """The run as it was."""


EVILS = [evil_files, evil_environment, evil_command, evil_workdir]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    maker = Owner(tmp_path_factory.mktemp("finished"))
    assert maker.assay("run", "mine.yml", "--quiet").returncode == 0
    return maker.folder


@pytest.fixture
def owner(tmp_path: Path, finished: Path) -> Owner:
    return Owner(tmp_path, finished)


# ---------------------------------------------------------------- never executed


@pytest.mark.parametrize("evil", EVILS)
def test_nothing_of_an_uploaded_run_is_executed(owner: Owner, evil: Change) -> None:
    owner.take(owner.forge(evil))
    done = owner.assay("run", "mine.yml")
    assert done.returncode == 0, done.stderr
    assert owner.executed() == ["honest", "honest"]
    assert load_received(str(owner.root / "mine" / RUN)) is None  # made here
    assert is_foreign(str(owner.root / "mine" / f"{RUN}~received"))
    assert f"kept as {RUN}~received, see it: assay show 'mine/{RUN}~received'" in done.stderr.replace('"', "'")


@pytest.mark.parametrize("evil", EVILS)
def test_an_adopted_run_is_continued_with_the_owners_code(owner: Owner, evil: Change) -> None:
    owner.take(owner.forge(evil))
    done = owner.assay("adopt", f"mine/{RUN}", "--file", "mine.yml")
    assert done.returncode == 0, done.stderr
    done = owner.assay("run", "mine.yml")
    assert done.returncode == 0, done.stderr
    assert owner.executed() == ["honest", "honest"]
    found = owner.load("show", f"mine/{RUN}")
    assert (found["state"], len(found["attempts"])) == ("done", 2)  # type: ignore[index,call-overload]
    assert found["received"].keys() == {"how", "from", "by", "at", "adopted_by", "adopted_at"}  # type: ignore[index]


@pytest.mark.parametrize(
    "words",
    [
        ("run", "mine.yml", "--retry", "failed", "--retry", "lost", "--retry", "stopped"),
        ("run", "mine.yml", "--force"),
        ("run", "mine.yml", "--force", "--new-code"),
        ("run", "mine.yml", "--retry", "failed", "x=1"),
    ],
)
def test_no_option_executes_an_upload(owner: Owner, words: tuple[str, ...]) -> None:
    owner.take(owner.forge(evil_files))
    assert owner.assay(*words).returncode == 0
    assert set(owner.executed()) == {"honest"}


@pytest.mark.parametrize("state", ["interrupted", "done"])
def test_rerun_refuses_an_upload_and_says_how_it_is_taken(owner: Owner, state: str) -> None:
    owner.take(owner.forge(evil_checkpoint, state=state))
    for words in ((), ("x=5",), ("start=1",), ("--from", "checkpoint"), ("--new-code",), ("-c", "main")):
        done = owner.assay("rerun", f"mine/{RUN}", *words)
        assert (done.returncode, "assay adopt" in done.stderr, owner.executed()) == (2, True, []), words


def test_rerun_of_a_study_leaves_uploads_out(owner: Owner) -> None:
    owner.assay("run", "mine.yml", "x=2")
    owner.take(owner.forge(evil_job))
    owner.witness.unlink(missing_ok=True)
    done = owner.assay("rerun", "mine")
    assert done.returncode == 0, done.stderr
    assert "uploaded" in done.stderr
    assert owner.executed() == ["honest"]


def test_checkpoints_of_an_adopted_run_are_not_found(owner: Owner) -> None:
    def hide(run_dir: Path) -> None:
        for name in ("last.ckpt", "metrics/last.ckpt", "fake.log/last.ckpt", "main.exit.0/last.ckpt"):
            (run_dir / name).parent.mkdir(exist_ok=True)
            (run_dir / name).write_text(EVIL)

    owner.take(owner.forge(hide))
    assert owner.assay("adopt", f"mine/{RUN}", "--file", "mine.yml").returncode == 0
    done = owner.assay("rerun", f"mine/{RUN}", "--from", "checkpoint")
    assert done.returncode == 2
    assert "has no checkpoint" in done.stderr
    folder = owner.root / "mine" / RUN
    assert {path.relative_to(folder).parts[0] for path in folder.rglob("*.ckpt")} == {"received"}


def test_secrets_are_refused(owner: Owner) -> None:
    with pytest.raises(RefusedUploadError, match="secrets"):
        owner.take(owner.forge(lambda run_dir: (run_dir / "secrets.sh").write_text(EVIL)))


@pytest.mark.parametrize("name", ["received.json", "received/x"])
def test_an_upload_cannot_say_that_it_was_adopted(owner: Owner, name: str) -> None:
    def forge(run_dir: Path) -> None:
        (run_dir / name).parent.mkdir(exist_ok=True)
        (run_dir / name).write_text(json.dumps({"format": 1, "how": "pull", "adopted_at": 1.0}))

    with pytest.raises(RefusedUploadError):
        owner.take(owner.forge(forge))
    assert not (owner.root / "mine").exists()


def test_a_damaged_mark_allows_nothing(owner: Owner) -> None:
    owner.take(owner.forge(evil_job))
    for text in ("", "[]", '{"format": 1, "how": "gift"}', '{"format": 99}', '{"format": 1}', "{"):
        (owner.root / "mine" / RUN / "received.json").write_text(text)
        assert is_foreign(str(owner.root / "mine" / RUN)), text
    assert owner.assay("run", "mine.yml", "--quiet").returncode == 0
    assert owner.executed() == ["honest", "honest"]


# ---------------------------------------------------------------- while the owner works


@pytest.mark.parametrize("state", ["interrupted", "done"])
def test_an_upload_that_comes_between_the_plan_and_the_start(
    owner: Owner, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    owner.enter(monkeypatch)

    def forge(run_dir: Path) -> None:
        evil_job(run_dir)
        forge_best(run_dir)

    archives = [owner.forge(forge, state=state), owner.forge(forge, state=state, run="x=2")]
    original = sweep._build_entries

    def build(*arguments: object) -> object:
        entries = original(*arguments)  # type: ignore[arg-type]
        for archive in archives:
            owner.take(archive)
        assert owner.assay("ls", "mine").returncode == 0  # the index has read it, as after every upload
        return entries

    monkeypatch.setattr(sweep, "_build_entries", build)
    report = sweep.run_study(sweep.prepare(RunOptions("mine.yml", load=LoadOptions())), sweep.RunHooks())
    assert [str(entry.state) for entry in report.entries] == ["done", "done"]
    assert owner.executed() == ["honest", "honest"]
    assert [path.name for path in sorted((owner.root / "mine").glob("*~received"))] == ["x=1~received", "x=2~received"]
    best = json.loads(owner.assay("best", "mine", "--json").stdout)["best"]
    assert (best["run"], best["value"]) == ("mine/x=1", 0.1)  # nothing of the upload is left under this name


def test_an_upload_into_a_study_that_is_supervised(owner: Owner) -> None:
    archive = owner.forge(evil_job, run="x=2")
    owner.write("train.sh", 'while [ ! -f "$WITNESS.go" ]; do sleep 0.05; done\n' + TRAIN)
    supervisor = owner.start("run", "mine.yml", "-j", "1", "--quiet")
    try:
        until((owner.root / "mine" / RUN / "lease.1").exists, "the first run has begun", 60)
        with suppress(RefusedUploadError):  # its directory may be ready, or become so in this moment
            owner.take(archive)
        Path(f"{owner.witness}.go").touch()
        assert supervisor.wait(120) == 0
    finally:
        supervisor.kill()
        supervisor.communicate()
    assert owner.executed() == ["honest", "honest"]


def test_the_lowest_check_refuses_a_lease(owner: Owner) -> None:
    owner.take(owner.forge(evil_job))
    handle = JobHandle("local", "1", "here", 1, 1, "boot", None, 2, 0.0)
    with pytest.raises(FormatError, match=r"upload from 192\.0\.2\.7 by upload token 123abc"):
        run_directory.publish_lease(str(owner.root / "mine" / RUN), handle)
    assert not (owner.root / "mine" / RUN / "lease.2").exists()


def test_stop_never_ends_a_process_that_an_upload_names(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    from assay.system import processes

    victim = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        start = processes.process_start(victim.pid)

        def name(run_dir: Path) -> None:
            lease = json.loads((run_dir / "lease.1").read_text())
            own = {"host": processes.host_name(), "boot": processes.boot_id(), "pid": victim.pid, "start": start}
            own |= {"supervisor_pid": victim.pid, "supervisor_start": start}
            (run_dir / "lease.1").write_text(json.dumps({**lease, **own}))

        owner.take(owner.forge(name))
        owner.enter(monkeypatch)
        assert find_supervisors([str(owner.root / "mine" / RUN)]) == []
        owner.assay("stop", "mine")
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
    owner.enter(monkeypatch)
    owner.take(owner.forge(name))
    (attempt,) = run_directory.load_history(str(owner.root / "mine" / RUN)).attempts
    assert attempt.handle is not None
    assert (attempt.handle.executor, attempt.handle.farm_root, attempt.handle.tag) == ("local", "", "")


def test_a_dry_run_counts_nothing_that_was_uploaded(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    owner.enter(monkeypatch)
    owner.take(owner.forge(nothing, state="done"))
    lines = list(build_dry_lines(sweep.prepare(RunOptions("mine.yml", load=LoadOptions()))))
    assert lines == ["bash train.sh 1", "bash train.sh 2"]


# ---------------------------------------------------------------- other files and flows


@pytest.mark.needs(compat=True)
def test_a_set_of_runx_is_not_continued_with_an_upload(owner: Owner) -> None:
    owner.write(".runx", f"LOGROOT: {owner.root}\nCODE_IGNORE_PATTERNS: '.git,runs'\n")
    owner.write("sweep.yml", "CMD: 'bash train.sh'\nHPARAMS:\n  - x: [1, 2]\n")
    assert owner.assay("runx", "sweep.yml", "-i").returncode == 0
    names = [path.name for path in (owner.root / "sweep").iterdir() if not path.name.startswith(".")]
    victim = owner.root / "sweep" / names[0]
    copy = owner.folder / "copy"
    shutil.copytree(victim, copy)
    shutil.rmtree(victim)
    interrupt(copy)
    evil_job(copy)
    owner.take(pack(copy, f"sweep/{names[0]}"))
    owner.witness.unlink()
    done = owner.assay("run", "sweep.yml")
    assert done.returncode == 0, done.stderr
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
    assert owner.assay("run", "mine.yml", "--quiet").returncode == 0
    trial = owner.root / "mine" / "trial-0001"
    copy = owner.folder / "copy"
    shutil.copytree(trial, copy)
    shutil.rmtree(trial)
    forge_best(copy)
    owner.take(pack(copy, "mine/trial-0001"))
    done = owner.assay("run", "mine.yml", "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["search"]["trials"]["done"] == 3
    assert all(row["trial"] != 1 for row in answer["search"]["best"])


def test_early_stopping_does_not_compare_with_an_upload(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    from assay.follow.locations import StudyLocation
    from assay.follow.opening import open_index
    from assay.follow.refresh import refresh_study
    from assay.search.early_stop import EarlyStop

    owner.enter(monkeypatch)
    owner.write("mine.yml", STUDY + "stop: [{rule: median, metric: loss, direction: min}]\n")
    owner.take(owner.forge(nothing, state="done"))
    study = sweep.prepare(RunOptions("mine.yml", load=LoadOptions())).study
    location = StudyLocation(str(owner.root), "mine")
    with open_index(str(owner.root)) as index:
        refresh_study(index, location, SILENT, stores_points=True)
        early = EarlyStop(study.stop, index, location)
        early._find_stale([])
        assert not early._stale


# ---------------------------------------------------------------- neither counted nor ranked


def forge_best(run_dir: Path) -> None:
    (log,) = (path for path in run_dir.glob("*.log") if path.name != "job.log")
    log.write_text("loss 0.0001\n")


def test_a_forged_run_is_not_the_best(owner: Owner) -> None:
    assert owner.assay("run", "mine.yml", "--quiet").returncode == 0
    owner.take(owner.forge(forge_best, state="done", name="x=9"))
    best = owner.assay("best", "mine", "--json")
    assert json.loads(best.stdout)["best"]["run"] == "mine/x=1"
    assert "1 uploaded run is not ranked with the others; a run that was made here has the same id" in best.stderr
    table = owner.load("sum", "mine")
    assert [row["run"] for row in table] == ["x=1", "x=2", "x=9"]  # type: ignore[index]
    assert table[2]["received"] == "upload from 192.0.2.7 by upload token 123abc"  # type: ignore[index]
    front = owner.assay("sum", "mine", "--pareto", "loss,time", "--json")
    assert "x=9" not in [row["run"] for row in json.loads(front.stdout)]
    grouped = json.loads(owner.assay("sum", "mine", "-g", "x", "--json").stdout)
    assert grouped[0]["n"] == 2
    plot = owner.assay("plot", "mine", "--scatter", "x")
    assert "not ranked" in plot.stderr, plot.stderr


def test_a_study_of_uploads_alone_is_tabled_and_has_no_best(owner: Owner) -> None:
    owner.take(owner.forge(forge_best, state="done"))
    assert [row["run"] for row in owner.load("sum", "mine")] == [RUN]  # type: ignore[attr-defined]
    best = owner.assay("best", "mine")
    assert best.returncode == 1
    said = f"no run that was made here is done yet; 1 uploaded run is not ranked; to take it: assay adopt mine/{RUN}"
    assert f"{said} --file=FILE  # FILE: your study file\n" in best.stderr
    for words in (("sum", "mine"), ("rerun", "mine"), ("adopt", f"mine/{RUN}")):
        assert f"assay adopt mine/{RUN} --file=FILE  # FILE: your study file" in owner.assay(*words).stderr


def test_an_upload_of_a_run_that_was_made_here_is_not_adopted(owner: Owner) -> None:
    owner.take(owner.forge(forge_best, state="done"))
    assert owner.assay("run", "mine.yml", "--quiet").returncode == 0
    done = owner.assay("adopt", f"mine/{RUN}~received")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"is the same run as mine/{RUN}: adopted, it would count twice in means" in done.stderr
    assert owner.load("best", "mine")["counted"] == 2  # type: ignore[index,call-overload]


def test_of_two_uploads_of_one_run_one_is_adopted(owner: Owner) -> None:
    for name in (RUN, "other"):
        owner.take(owner.forge(nothing, state="done", name=name))
    done = owner.assay("adopt", f"mine/{RUN}", "mine/other", "--file", "mine.yml")
    assert (done.returncode, f"is the same run as mine/{RUN}" in done.stderr) == (2, True)
    assert owner.assay("adopt", f"mine/{RUN}", "--file", "mine.yml").returncode == 0
    assert f"is the same run as mine/{RUN}" in owner.assay("adopt", "mine/other").stderr


def test_the_adopt_command_that_is_printed_works(owner: Owner) -> None:
    assert owner.assay("run", "mine.yml", "x=1", "--quiet").returncode == 0
    owner.take(owner.forge(nothing, state="done", run="x=2"))
    advised = owner.assay("best", "mine").stderr.partition("to take it: ")[2].rstrip().split()
    assert owner.assay(*advised[1:]).returncode == 0


def test_an_adopted_run_is_ranked_and_marked(owner: Owner) -> None:
    assert owner.assay("run", "mine.yml", "x=2", "--quiet").returncode == 0
    owner.take(owner.forge(forge_best, state="done", name="x=1 of the board"))
    assert owner.assay("adopt", "mine/x=1 of the board").returncode == 0
    best = owner.assay("best", "mine")
    assert "x=1 of the board" in best.stdout
    assert "upload from 192.0.2.7 by upload token 123abc, adopted" in best.stdout


def test_received_is_in_ls_show_and_json(owner: Owner) -> None:
    owner.take(owner.forge(nothing, state="done"))
    said = "upload from 192.0.2.7 by upload token 123abc"
    assert said in owner.assay("ls", "mine").stdout
    shown = owner.assay("show", f"mine/{RUN}").stdout
    assert said in shown
    assert "by hand" not in shown
    assert "no; not executed or ranked here: its job.sh, code" in shown
    for facts in (owner.load("ls", "mine")[0], owner.load("show", f"mine/{RUN}")):  # type: ignore[index]
        assert facts["received"]["how"] == "upload"  # type: ignore[index,call-overload]
        assert facts["received"]["from"] == "192.0.2.7"  # type: ignore[index,call-overload]
        assert facts["received"]["at"] > 1e9  # type: ignore[index,call-overload]
    assert [run["name"] for run in owner.load("ls", "mine", "--where", "received == 'upload'")] == [RUN]  # type: ignore[attr-defined]
    query = owner.assay("index", "query", "SELECT key, json_extract(received, '$.how') AS how FROM runs", "--json")
    assert json.loads(query.stdout) == [{"key": f"mine/{RUN}", "how": "upload"}], query.stderr


def test_an_upload_goes_by_the_name_of_its_folder(owner: Owner) -> None:
    assert owner.assay("run", "mine.yml", "--quiet").returncode == 0
    owner.take(owner.forge(lambda run_dir: change_record(run_dir, name="x=1"), state="done", name="other"))
    assert sorted(run["name"] for run in owner.load("ls", "mine")) == ["other", "x=1", "x=2"]  # type: ignore[attr-defined]


# ---------------------------------------------------------------- adopting


@pytest.mark.parametrize(
    ("change", "words", "said"),
    [
        (lambda run_dir: change_record(run_dir, id="0" * 16), ("--file", "mine.yml"), "is not one of the 2 runs"),
        (lambda run_dir: change_record(run_dir, params={"x": 7}), ("--file", "mine.yml"), "is not one of the 2 runs"),
        (nothing, (), "your study file is not known"),
        (nothing, ("--file", "gone.yml"), "gone.yml"),
    ],
)
def test_a_run_that_is_not_one_of_the_file_is_refused(
    owner: Owner, change: Change, words: tuple[str, ...], said: str
) -> None:
    owner.take(owner.forge(change))
    before = sorted(os.listdir(owner.root / "mine" / RUN))
    done = owner.assay("adopt", f"mine/{RUN}", *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert sorted(os.listdir(owner.root / "mine" / RUN)) == before
    assert is_foreign(str(owner.root / "mine" / RUN))


def test_an_adopted_run_without_a_command_is_none_of_the_file(owner: Owner) -> None:
    """There is no job.sh to make again: it would be started without one, and be lost each time."""
    owner.take(owner.forge(lambda run_dir: change_record(run_dir, commands=[])))
    assert owner.assay("adopt", f"mine/{RUN}", "--file", "mine.yml").returncode == 0
    done = owner.assay("run", "mine.yml")
    assert (done.returncode, owner.executed()) == (0, ["honest", "honest"]), done.stderr


def test_what_was_made_here_or_adopted_is_not_adopted(owner: Owner) -> None:
    assert owner.assay("run", "mine.yml", "x=2", "--quiet").returncode == 0
    done = owner.assay("adopt", "mine/x=2")
    assert (done.returncode, "was made here" in done.stderr) == (2, True)
    owner.take(owner.forge(nothing, name="other"))
    assert owner.assay("adopt", "mine/other").returncode == 0
    done = owner.assay("adopt", "mine/other")
    assert (done.returncode, "adopted already" in done.stderr) == (2, True)


def test_an_adopted_run_gets_a_uid_of_its_own(owner: Owner) -> None:
    """By its uid the processes of a run are found, and ended."""
    assert owner.assay("run", "mine.yml", "x=2", "--quiet").returncode == 0
    uid = json.loads((owner.root / "mine" / "x=2" / "run.json").read_text())["uid"]
    owner.take(owner.forge(lambda run_dir: change_record(run_dir, uid=uid), name="other"))
    assert owner.assay("adopt", "mine/other").returncode == 0
    folder = owner.root / "mine" / "other"
    assert json.loads((folder / "run.json").read_text())["uid"] != uid
    assert not (folder / "lease.1").exists()


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


def evil_files_of_a_pull(run_dir: Path) -> None:
    evil_job(run_dir)
    evil_code(run_dir)


SEARCHED = "params: {x: {int: [1, 9]}}\nsearch: {trials: 2, metric: loss, sampler: random}"


def push_interrupted(owner: Owner, change: Change, run: str = RUN) -> None:
    owner.forge(nothing, run=run)
    copy = owner.elsewhere / "runs" / "mine" / run
    interrupt(copy)
    change(copy)
    here, owner.folder = owner.folder, owner.elsewhere
    assert owner.assay("push", "mine", "--to", str(here / "shared")).returncode == 0
    owner.folder = here
    assert owner.assay("pull", "mine", "--from", "shared").returncode == 0


@pytest.mark.parametrize("evil", [evil_files_of_a_pull, evil_command, evil_environment])
def test_a_pulled_run_is_continued_with_code_made_here(owner: Owner, evil: Change) -> None:
    push_interrupted(owner, evil)
    done = owner.assay("run", "mine.yml")
    assert done.returncode == 0, done.stderr
    assert owner.executed() == ["honest"]  # x=2 was done
    found = owner.load("show", f"mine/{RUN}")
    assert (found["received"]["how"], len(found["attempts"])) == ("pull", 2)  # type: ignore[index,call-overload]
    assert not (owner.root / "mine" / f"{RUN}~received").exists()


def test_a_pulled_run_keeps_its_checkpoints(owner: Owner) -> None:
    push_interrupted(owner, lambda run_dir: (run_dir / "last.ckpt").write_text("echo resumed >> $WITNESS\n"))
    assert owner.assay("run", "mine.yml", "--quiet").returncode == 0
    assert owner.executed() == ["resumed", "honest"]


def test_a_pulled_trial_is_continued_with_the_command_of_the_file(owner: Owner) -> None:
    """Also where its record has another one, as of an earlier version of the file."""
    owner.write("mine.yml", STUDY.replace("params: {x: [1, 2]}", SEARCHED))

    def forge(run_dir: Path) -> None:
        evil_command(run_dir)
        change_record(run_dir, id="0123456789abcdef")

    push_interrupted(owner, forge, "trial-0000")
    done = owner.assay("run", "mine.yml")
    assert (done.returncode, owner.executed()) == (0, ["honest"]), done.stderr


def test_a_pulled_run_does_not_choose_the_file_that_it_is_adopted_from(owner: Owner) -> None:
    def forge(run_dir: Path) -> None:
        (run_dir / "code" / "evil.yml").write_text(STUDY.replace("bash train.sh {x} [start]", EVIL.strip()))
        change_record(run_dir, source=f"runs/mine/{RUN}/code/evil.yml")

    push_interrupted(owner, forge)
    shutil.rmtree(owner.root / "mine" / "x=2")
    done = owner.assay("adopt", f"mine/{RUN}")
    assert (done.returncode, "your study file is not known" in done.stderr) == (2, True)


def test_pulled_runs_are_ranked_and_marked(owner: Owner) -> None:
    push_interrupted(owner, nothing)
    best = owner.assay("best", "mine", "--json")
    assert json.loads(best.stdout)["best"]["received"]["how"] == "pull"
    done = owner.assay("rerun", "mine/x=2")
    assert (done.returncode, "assay adopt" in done.stderr, owner.executed()) == (2, True, [])
    assert owner.assay("adopt", "mine/x=2", "--file", "mine.yml").returncode == 0
    assert owner.assay("rerun", "mine/x=2", "--quiet").returncode == 0
    assert owner.executed() == ["honest"]


def test_a_pulled_snapshot_is_not_the_code_of_a_run(owner: Owner) -> None:
    """Neither under the hash of the owner's own code, nor by the code that waiting runs were planned with."""
    owner.assay("run", "mine.yml", "x=3", "--quiet", "--root", "probe")
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
        ids = json.loads((run_dir.parent / ".assay" / "codes.json").read_text())
        (run_dir.parent / ".assay" / "codes.json").write_text(
            json.dumps({**ids, "codes": dict.fromkeys(ids["codes"], digest)})
        )

    push_interrupted(owner, forge)
    assert (owner.root / "mine" / ".assay" / "code" / digest / "pulled").exists()
    done = owner.assay("run", "mine.yml", "--force")
    assert done.returncode == 0, done.stderr
    assert set(owner.executed()) == {"honest"}


def test_an_upload_stays_one_through_a_shared_place(owner: Owner) -> None:
    owner.take(owner.forge(nothing, state="done"))
    assert owner.assay("push", "mine", "--to", "shared").returncode == 0
    assert owner.assay("pull", "mine", "--from", "shared", "--root", "other").returncode == 0
    assert is_foreign(str(owner.folder / "other" / "mine" / RUN))


@pytest.mark.parametrize("first", ["owner", "upload"])
def test_an_upload_changes_nothing_of_the_owners_run_in_a_shared_place(owner: Owner, first: str) -> None:
    """Also with the uid of that run, which is the case for every run that its owner has uploaded."""
    archive = owner.forge(forge_best, state="done")

    def push_own() -> None:
        here, owner.folder = owner.folder, owner.elsewhere
        assert owner.assay("push", f"mine/{RUN}", "--to", str(here / "shared")).returncode == 0
        owner.folder = here

    def push_upload() -> None:
        assert owner.assay("push", f"mine/{RUN}", "--to", "shared").returncode == 0

    owner.take(archive)
    for push in (push_own, push_upload) if first == "owner" else (push_upload, push_own):
        push()
    assert owner.assay("pull", "mine", "--from", "shared", "--root", "other").returncode == 0
    received = load_received(str(owner.folder / "other" / "mine" / RUN))
    assert received is not None
    assert received.how == "pull"
    assert (owner.folder / "other" / "mine" / RUN / "run.log").read_text() == "loss 0.1\n"


# ---------------------------------------------------------------- tokens


# ---------------------------------------------------------------- more ways to start something


@pytest.mark.needs(compat=True)
def test_a_task_of_mlrunner_is_not_continued_with_an_upload(owner: Owner) -> None:
    owner.write("tasks.yml", "template: {train: 'bash train.sh {x}'}\nresource: [cpu]\n---\nx: [1, 2]\n")
    assert owner.assay("run", "tasks.yml", "--quiet").returncode == 0
    study = next(path for path in owner.root.iterdir() if path.is_dir() and not path.name.startswith("."))
    name = min(path.name for path in study.iterdir() if not path.name.startswith("."))
    copy = owner.folder / "copy"
    shutil.move(study / name, copy)
    interrupt(copy)
    evil_job(copy)
    owner.take(pack(copy, f"{study.name}/{name}"))
    owner.witness.unlink()
    done = owner.assay("run", "tasks.yml")
    assert done.returncode == 0, done.stderr
    assert owner.executed() == ["honest"]


def test_a_supervisor_in_the_background_executes_no_upload(owner: Owner) -> None:
    owner.take(owner.forge(evil_job))
    assert owner.assay("run", "mine.yml", "--detach").returncode == 0
    until(lambda: len(owner.executed()) == 2, "both runs have been executed", 60)
    assert owner.executed() == ["honest", "honest"]


def test_the_button_of_the_page_does_not_repeat_an_upload(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.web_client import WRITE, open_client

    owner.enter(monkeypatch)
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
    from assay.golden.flow.artifacts import load_checks
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
    for words in (("report", "mine", "-o", "page.html"), ("best", "mine"), ("adopt", f"mine/{RUN}"), ("rerun", "mine")):
        done = owner.assay(*words)
        page = owner.folder / "page.html"
        said = done.stdout + done.stderr + (page.read_text() if page.exists() else "")
        assert not re.search(r"assay [a-z]+ [^\n]*evil\.yml", said), words
    assert page.exists()
