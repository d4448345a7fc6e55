"""Jobs by ssh: a real sshd on loopback, whose root and home are not shared with this machine."""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.contracts.executor import ExecutorContract, Run, Runs, complete, finish, members, start, until
from tests.models.backends.loopback import NEEDS_SSHD
from tests.ssh_hosts import ROOT, Hosts, has_namespaces, open_hosts
from tests.stand_ins import put_programs

from assay.errors import InfrastructureError
from assay.farms import ssh_files, ssh_session
from assay.farms.ssh import SshExecutor
from assay.farms.ssh_jobs import HostAddress, HostSlot, load_liveness, parse_slot
from assay.farms.ssh_session import RefusedError, SshSession
from assay.record import run_directory
from assay.system import processes
from assay.system.fast_dataclasses import replace
from assay.values import layout
from assay.values.run import JobHandle, Liveness

pytestmark = NEEDS_SSHD


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with open_hosts(tmp_path_factory.mktemp("hosts"), "near", "far") as made:
        yield made


@pytest.fixture
def hosts(both: Hosts) -> Iterator[Hosts]:
    yield both
    both.write_config()
    for name, board in both.boards.items():
        if board.process is None:
            board.start()
        shutil.rmtree(both.root(name), ignore_errors=True)


@pytest.fixture
def make(hosts: Hosts) -> Iterator[Callable[..., SshExecutor]]:
    made = []

    def build(*names: str, **more: object) -> SshExecutor:
        made.append(SshExecutor(hosts.farm(*names, **more)))
        return made[-1]

    yield build
    for each in made:
        each.close()


@pytest.fixture
def runs(hosts: Hosts) -> Runs:
    return Runs(Path(tempfile.mkdtemp(dir=hosts.client)))


def there(hosts: Hosts, run: Run, name: str = "near") -> Path:
    return hosts.jobs(name) / "runs" / run.uid


class TestSsh(ExecutorContract):
    @pytest.fixture(autouse=True)
    def surroundings(self, hosts: Hosts) -> None:
        self.hosts = hosts

    @pytest.fixture
    def runs(self, hosts: Hosts) -> Runs:
        return Runs(Path(tempfile.mkdtemp(dir=hosts.client)))

    def another(self) -> SshExecutor:
        return SshExecutor(self.hosts.farm(keep=True))

    def job_dir(self, run: Run) -> str:
        return str(there(self.hosts, run))

    def test_twelve_jobs(self, executor: SshExecutor, runs: Runs) -> None:
        self.run_many(executor, runs, 12)
        assert len(os.listdir(self.hosts.jobs("near") / "code")) == 1, "one copy of the code for all of them"


# ---------------------------------------------------------------- files


def test_everything_comes_back_but_the_code_and_nothing_stays(hosts: Hosts, make, runs: Runs) -> None:
    text = (
        'mkdir -p "$ASSAY_RUN_DIR/deep/er"; head -c 3000000 /dev/urandom > "$ASSAY_RUN_DIR/deep/er/model.pt"; '
        'cd "$ASSAY_RUN_DIR"; sha256sum < deep/er/model.pt > sum; ln -s deep/er/model.pt last.pt; ln -s /etc/hosts no; '
        "ln -s ../checkpoint deep/up; ln -s deep/er z; ln -s z/../../.. out; "
        "printf x > $'odd \\n name'; cat code/mine; cp checkpoint again"
    )
    run = runs.make(text)
    run.path("code/mine").write_text("my code\n")
    run.path("checkpoint").write_text("from an earlier attempt")
    executor = make()
    finish(executor, [start(executor, run)])
    assert run.markers() == {"train.exit.0"}
    assert run.text("train.log") == "my code\n"
    assert run.text("again") == "from an earlier attempt"
    assert run.path("odd \n name").read_text() == "x"
    assert os.readlink(run.path("last.pt")) == "deep/er/model.pt"
    assert os.readlink(run.path("deep/up")) == "../checkpoint"
    assert [os.path.lexists(run.path(name)) for name in ("no", "out")] == [False] * 2, "nothing leads out of the run"
    assert hashlib.sha256(run.path("last.pt").read_bytes()).hexdigest() == run.text("sum").split()[0]
    assert not there(hosts, run).exists()
    assert [name for name in os.listdir(run.dir) if "part" in name] == []


def test_secrets_stay_their_owners(hosts: Hosts, make, runs: Runs) -> None:
    run = runs.make("true")
    run.path("secrets.sh").write_text("# secret")
    run.path("secrets.sh").chmod(0o600)
    executor = make(keep=True)
    finish(executor, [start(executor, run)])
    assert (there(hosts, run) / "secrets.sh").stat().st_mode & 0o777 == 0o600
    assert hosts.jobs("near").stat().st_mode & 0o777 == 0o700


def list_all(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Everything below with its mode and content, but what Assay has made."""
    paths = [folder, *(path for path in folder.rglob("*") if ".assay-jobs" not in path.parts)]
    return {
        str(path): (path.stat().st_mode, b"" if path.is_dir() else path.read_bytes())
        for path in paths
        if path.name != ".assay-jobs"
    }


@pytest.mark.parametrize("is_kept", [False, True])
def test_what_the_user_has_in_the_root_stays_as_it_is(hosts: Hosts, make, runs: Runs, is_kept: bool) -> None:
    root = hosts.root("near")
    old = time.time() - 40 * 86400
    uid = "0123456789ab"
    for name in ("code/thesis", f"code/{uid * 2}01234567", "runs/exp1", f"runs/{uid}", ".old-notes", ".new-notes"):
        (root / name).mkdir(parents=True)
        (root / name / "mine").write_text(name)
        os.utime(root / name, (old, old))
    root.chmod(0o755)
    before = list_all(root)
    executor, run = make(keep=is_kept), runs.make("true")
    finish(executor, [start(executor, run)])
    executor.close()
    SshExecutor.check(hosts.farm())
    assert list_all(root) == before
    assert there(hosts, run).exists() is is_kept


def test_in_its_own_folder_only_what_assay_makes_is_removed(hosts: Hosts) -> None:
    SshExecutor.check(hosts.farm())
    jobs, old = hosts.jobs("near"), time.time() - 40 * 86400
    uid = "0123456789ab"
    theirs = [".old-notes", ".new-notes", "code/thesis", "runs/exp1", f"{uid}.1", f"runs/{uid}.tar"]
    ours = [f".old-{uid}.12", f".new-{uid}.12", f"code/{uid * 2}01234567", f"runs/{uid}"]
    notes = [f"never/{uid}.1", "never/mine"]
    for name in (*theirs, *ours):
        (jobs / name).mkdir()
        (jobs / name / "file").touch()
        os.utime(jobs / name, (old, old))
    for name in notes:
        (jobs / name).touch()
        os.utime(jobs / name, (old, old))
    SshExecutor.check(hosts.farm())
    assert [name for name in theirs if not (jobs / name / "file").exists()] == []
    assert [name for name in ours if (jobs / name).exists()] == []
    assert [name for name in notes if (jobs / name).exists()] == ["never/mine"]


def test_a_folder_of_its_name_that_assay_did_not_make_is_refused(hosts: Hosts) -> None:
    jobs = hosts.jobs("near")
    (jobs / "runs/0123456789ab").mkdir(parents=True)
    jobs.chmod(0o755)
    os.utime(jobs / "runs/0123456789ab", (1e9, 1e9))
    before = {str(path): path.stat().st_mode for path in (jobs, *jobs.rglob("*"))}
    with pytest.raises(InfrastructureError, match="was not made by Assay"):
        SshExecutor.check(hosts.farm())
    assert {str(path): path.stat().st_mode for path in (jobs, *jobs.rglob("*"))} == before


@pytest.mark.skipif(not has_namespaces(), reason="a / that can be read only needs root")
@pytest.mark.parametrize("root", ["/", "//", "/./", "/tmp/.."])
def test_the_top_of_the_file_system_is_refused(root: str) -> None:
    script = Path(ssh_session.__file__).with_name("remote.sh").read_text()
    text = 'mount -o remount,ro,bind / && exec bash -c "$1" assay "$2"'
    argv = ["unshare", "--mount", "bash", "-c", text, "-", script, root]
    said = subprocess.run(argv, input=b"1\0hello\0", capture_output=True, check=False).stdout
    assert said == b"Z\x006\0runs are not put into /\0"


def test_what_is_no_name_of_a_run_is_not_removed(hosts: Hosts) -> None:
    session = SshSession(HostAddress("near", ROOT, ("-F", str(hosts.config))))
    session.connect()
    (hosts.jobs("near") / "runs/kept").mkdir()
    for name in ("", ".", "..", "kept", "../code", "0123456789ab/.."):
        with pytest.raises(RefusedError, match="not the name of a run"):
            session.ask("remove", name)
    session.close()
    assert sorted(os.listdir(hosts.jobs("near") / "runs")) == ["kept"]


def test_many_that_connect_at_once(hosts: Hosts) -> None:
    sessions = [SshSession(HostAddress("near", ROOT, ("-F", str(hosts.config)))) for _ in range(8)]
    with ThreadPoolExecutor(len(sessions)) as pool:
        list(pool.map(SshSession.connect, sessions))
    for session in sessions:
        session.close()
    assert [session.refusal for session in sessions] == [""] * len(sessions)
    assert sorted(os.listdir(hosts.root("near"))) == [".assay-jobs"]


def test_logs_and_metrics_are_there_while_it_runs(hosts: Hosts, make, runs: Runs) -> None:
    text = 'echo one; mkdir -p "$ASSAY_RUN_DIR/metrics"; echo "{}" > "$ASSAY_RUN_DIR/metrics/a1-r0-x-1-1.jsonl"; '
    run = runs.make(text + "until [ -e go ]; do sleep 0.02; done; echo two")
    executor = make()
    handle = start(executor, run)
    until(lambda: run.path("train.log").exists() and run.text("train.log") == "one\n", "the log is here")
    until(lambda: run.path("metrics/a1-r0-x-1-1.jsonl").exists(), "the metrics are here")
    assert load_liveness(handle, run.dir) is Liveness.ALIVE
    (there(hosts, run) / "code/go").touch()
    finish(executor, [handle])
    assert run.text("train.log") == "one\ntwo\n"
    assert load_liveness(handle, run.dir) is Liveness.GONE


KINDS = {
    "nothing": "",
    "file": "echo file > out.csv",
    "folder": "mkdir out.csv; echo in > out.csv/f",
    "empty folder": "mkdir out.csv",
    "link": "echo other > other; ln -s other out.csv",
    "link to a folder": "mkdir b; echo in > b/f; ln -s b out.csv",
    "link out of the run": "ln -s /etc/hosts out.csv",
}


def describe(path: Path) -> object:
    if path.is_symlink():
        return f"-> {os.readlink(path)}"
    if path.is_dir():
        return {each.name: describe(each) for each in path.iterdir()}
    return path.read_text() if path.exists() else None


@pytest.mark.parametrize("way", ["between attempts", "while it runs"])
def test_what_changes_its_kind_is_replaced(hosts: Hosts, make, runs: Runs, tmp_path: Path, way: str) -> None:
    executor, made = make(), {}
    for first, second in itertools.permutations(KINDS, 2):
        if second == "nothing" or ("folder" in first and second == "empty folder" and "link" not in first):
            continue  # what only vanishes is not replaced
        if way == "while it runs" and first not in ("file", "link"):
            continue
        if way == "between attempts":
            text = f'if [ "$ASSAY_ATTEMPT_NUMBER" = 1 ]; then {KINDS[first] or ":"}; exit 1; fi; rm -rf out.csv b; '
        else:
            text = f"{KINDS[first] or ':'}; sleep 0.5; rm -rf out.csv b; "
        made[first, second] = runs.make(f'cd "$ASSAY_RUN_DIR"; {text}{KINDS[second]}')
    if way == "between attempts":
        finish(executor, [start(executor, run) for run in made.values()])
    again = {"between attempts": 2, "while it runs": 1}[way]
    finish(executor, [executor.submit(run.request(attempt=again), run.publish) for run in made.values()])
    assert executor.take_messages() == []
    expected = {}
    for kind, text in KINDS.items():
        (tmp_path / kind).mkdir()
        subprocess.run(["bash", "-c", text], cwd=tmp_path / kind, check=True)
        expected[kind] = describe(tmp_path / kind / "out.csv") if kind != "link out of the run" else None
    found = {names: describe(run.path("out.csv")) for names, run in made.items()}
    assert found == {names: expected[names[1]] for names in made}


def test_what_this_side_writes_is_never_replaced(hosts: Hosts, make, runs: Runs) -> None:
    text = 'cd "$ASSAY_RUN_DIR"; rm -rf run.json code lease.1; mkdir run.json; echo x > run.json/f; ln -s x code; '
    run = runs.make(text + "mkdir lease.1; echo x > lease.1/f; echo > submit.exit.1.5; ln -s run.json tags.json")
    run.path("code/mine").write_text("mine")
    before = run.text("run.json")
    executor = make()
    finish(executor, [start(executor, run)])
    assert run.text("run.json") == before
    assert run.text("code/mine") == "mine"
    assert run.path("lease.1").is_file()
    assert not os.path.lexists(run.path("tags.json"))
    assert not run.path("submit.exit.1.5").exists()
    assert run.markers() == {"train.exit.0"}


@pytest.mark.parametrize("when", ["growing", "ended"])
def test_what_cannot_be_stored_here_holds_up_no_other_run(
    hosts: Hosts, make, runs: Runs, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    executor = make(slots=2, lost_after=0.01)
    bad = runs.make('echo x > "$ASSAY_RUN_DIR/bad.csv"; sleep 0.3')
    good = [runs.make("echo fine") for _ in range(4)]
    place = {"growing": ssh_files, "ended": ssh_files.PartialFile}[when]
    name = {"growing": "open_growing", "ended": "open"}[when]
    known = getattr(place, name)

    def fail(*words) -> object:
        run_dir = os.path.dirname(words[0]._target) if when == "ended" else words[0]
        if run_dir == bad.dir:
            raise OSError(errno.ENOSPC, "No space left on device")
        return known(*words)

    monkeypatch.setattr(place, name, fail)
    handle = start(executor, bad)
    finish(executor, [handle, *(start(executor, run) for run in good)])
    assert [run.text("train.log") for run in good] == ["fine\n"] * 4
    assert executor.liveness(handle, bad.dir) is (Liveness.UNKNOWN if when == "ended" else Liveness.GONE)
    said = list(executor.take_messages())
    assert len(said) == 1
    assert bad.dir in said[0]
    assert "No space left" in said[0]
    monkeypatch.undo()
    if when == "ended":
        later = make()
        later.watch(handle, bad.dir)
        finish(later, [handle])
    assert bad.text("bad.csv") == "x\n"
    assert bad.markers() == {"train.exit.0"}


@pytest.mark.skipif(os.geteuid() != 0, reason="its bash gives up what root may do")
def test_what_cannot_be_read_is_named_and_kept(tmp_path: Path) -> None:
    drop = "--bounding-set=-dac_override,-dac_read_search"
    path = put_programs(tmp_path / "programs", bash=f'exec setpriv {drop} {shutil.which("bash")} "$@"')
    with open_hosts(tmp_path / "plain", "near", PATH=path) as hosts:
        text = 'cd "$ASSAY_RUN_DIR"; echo x > ok; echo x > secret; chmod 000 secret; mkdir closed; chmod 000 closed'
        run = Runs(hosts.client).make(text)
        executor = SshExecutor(hosts.farm())
        finish(executor, [start(executor, run)])
        said = " ".join(executor.take_messages())
        executor.close()
        assert run.markers() == {"train.exit.0"}
        assert run.text("ok") == "x\n"
        assert all(word in said for word in ("'closed'", "'secret'", run.dir, run.uid))
        assert (there(hosts, run) / "secret").read_text() == "x\n"


# ---------------------------------------------------------------- connections


def test_a_host_that_goes_away_and_comes_back(hosts: Hosts, make, runs: Runs) -> None:
    executor = make("near", "far", slots=1)
    made = [runs.make("until [ -e go ]; do sleep 0.02; done") for _ in range(3)]
    handles = [start(executor, run) for run in made[:2]]
    assert sorted(str(handle.slot) for handle in handles) == ["far:0", "near:0"]
    assert not executor.has_room()
    by_host = {
        parse_slot(handle.native_id).address.name: (handle, run) for handle, run in zip(handles, made[:2], strict=True)
    }
    for name, (_, run) in by_host.items():
        until((there(hosts, run, name) / "code").is_dir, "it runs")
    messages: list[str] = []
    far, far_run = by_host["far"]
    near, near_run = by_host["near"]
    hosts.stop("far")
    until(lambda: messages.extend(executor.take_messages()) or messages, "the host is missed")
    assert "far" in messages[0]
    assert executor.liveness(far, far_run.dir) is Liveness.ALIVE
    (there(hosts, near_run) / "code/go").touch()
    finish(executor, [near])
    third = start(executor, made[2])
    assert third.slot == "near:0", "not on the host that is away"
    for run, name in ((far_run, "far"), (made[2], "near")):
        until((there(hosts, run, name) / "code").is_dir, "it runs")
        (there(hosts, run, name) / "code/go").touch()
    finish(executor, [third])
    hosts.boards["far"].start()
    finish(executor, [far])
    assert all(run.markers() == {"train.exit.0"} for run in made)
    assert any("answers again" in line for line in executor.take_messages())


def test_hosts_that_cannot_be_used_say_why(hosts: Hosts) -> None:
    hosts.write_config("StrictHostKeyChecking yes\n  UserKnownHostsFile /dev/null")
    for board in hosts.boards.values():
        (board.folder / "known_hosts").unlink(missing_ok=True)
    with pytest.raises(InfrastructureError, match="near is not known") as caught:
        SshExecutor.check(hosts.farm())
    assert "connect once by hand: ssh -F" in str(caught.value.hint)
    hosts.write_config(f"StrictHostKeyChecking accept-new\n  IdentityFile {hosts.folder}/none\n  IdentitiesOnly yes")
    text = hosts.config.read_text()
    hosts.config.write_text("".join(line for line in text.splitlines(True) if "user_key" not in line))
    with pytest.raises(InfrastructureError, match="refuses the connection"):
        SshExecutor.check(hosts.farm())
    hosts.write_config()
    hosts.boards["near"].stop()
    with pytest.raises(InfrastructureError, match="near does not answer"):
        SshExecutor.check(hosts.farm())
    SshExecutor.check(hosts.farm("near", "far"))
    hosts.boards["near"].start()
    blocked = hosts.home("near") / "a file"
    blocked.write_text("")
    with pytest.raises(InfrastructureError, match="cannot run jobs"):
        SshExecutor.check(hosts.farm(root=str(blocked)))


# as csh: a text of several lines is none, whatever quotes are around it
ONE_LINE = 'eval "$(head -n 1 <<< "$SSH_ORIGINAL_COMMAND")"'


def test_login_shells_and_settings_for_terminals(tmp_path: Path) -> None:
    with open_hosts(tmp_path / "plain", "near", settings={"ForceCommand": ONE_LINE}) as hosts:
        SshExecutor.check(hosts.farm())
        hosts.write_config("StrictHostKeyChecking accept-new\n  RequestTTY force\n  RemoteCommand tmux attach")
        SshExecutor.check(hosts.farm())
        board = hosts.boards["near"]
        key = (board.folder / "user_key.pub").read_text()
        (board.folder / "known_hosts").write_text(f"[127.0.0.1]:{board.port} {key}")
        with pytest.raises(InfrastructureError, match="near has another key than before"):
            SshExecutor.check(hosts.farm())


def test_a_token_that_a_full_disk_left_empty_is_not_waited_for(
    hosts: Hosts, make: Callable[..., SshExecutor], runs: Runs
) -> None:
    executor, run = make(), runs.make("touch ran")
    SshExecutor.check(hosts.farm())
    there(hosts, run).mkdir()
    (there(hosts, run) / "token.1").touch()
    assert executor.liveness(complete(executor, run), run.dir) is Liveness.GONE
    assert run.markers() == set()


def test_a_wrong_user_and_a_host_without_programs(hosts: Hosts, tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match="nobody-here@near refuses the connection"):
        SshExecutor.check(hosts.farm("nobody-here@near"))
    with (
        open_hosts(tmp_path / "empty", "near", PATH="/nonexistent") as empty,
        pytest.raises(InfrastructureError, match="near cannot run jobs: it has no bash"),
    ):
        SshExecutor.check(empty.farm())
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("bash", "mkdir", "chmod"):
        (programs / name).symlink_to(shutil.which(name))
    with (
        open_hosts(tmp_path / "few", "near", PATH=str(programs)) as few,
        pytest.raises(InfrastructureError, match="near cannot run jobs in a root: tar is not installed"),
    ):
        SshExecutor.check(few.farm())


@pytest.mark.skipif(not has_namespaces(), reason="a host with a file system of its own needs root")
def test_a_full_and_a_read_only_file_system(tmp_path: Path) -> None:
    with open_hosts(tmp_path / "full", "near", "far", mounts={"near": "size=64k"}) as hosts:
        run = Runs(hosts.client).make("cat ../data | wc -c")
        run.path("data").write_bytes(b"x" * 100_000)
        executor = SshExecutor(hosts.farm("near", "far", slots={"near": 2, "far": 1}))
        first = start(executor, run)
        assert first.slot == "near:0"
        finish(executor, [first])
        assert executor.liveness(first, run.dir) is Liveness.GONE
        assert executor.refusal(first, run.dir) is None, "another host may take it"
        assert "No space left on device" in " ".join(executor.take_messages())
        second = start(executor, run, attempt=2)
        assert second.slot == "far:0"
        finish(executor, [second])
        assert run.text("train.2.log") == "100000\n"
        executor.close()
    with (
        open_hosts(tmp_path / "fixed", "near", mounts={"near": "ro"}) as hosts,
        pytest.raises(InfrastructureError, match="Read-only file system"),
    ):
        SshExecutor.check(hosts.farm())


def test_a_host_that_is_down_at_the_start(hosts: Hosts, make, runs: Runs) -> None:
    hosts.stop("near")
    executor = make("near", "far", slots=1)
    until(executor.has_room, "the other host has answered")
    handle = start(executor, runs.make("true"))
    assert handle.slot == "far:0"
    finish(executor, [handle])
    said: list[str] = []
    until(lambda: said.extend(executor.take_messages()) or said, "it is named")
    assert "near does not answer" in said[0]
    assert said[0].count("try: ssh") == 1
    assert "its runs" not in said[0]


def test_what_was_never_offered_to_a_host_is_given_back(hosts: Hosts, make, runs: Runs) -> None:
    hosts.stop("near")
    executor, run = make("near"), runs.make("true")
    assert executor.liveness(complete(executor, run), run.dir) is Liveness.GONE
    assert run.text("token.1").startswith("- ")


def test_a_clock_that_is_wrong(tmp_path: Path) -> None:
    """Times of the host are shown as they are; what is decided and measured here is measured here."""
    texts = {name: f'exec {shutil.which(name)} -d "3 days ago" "$@"' for name in ("date", "touch")}
    with open_hosts(tmp_path / "slow", "near", PATH=put_programs(tmp_path / "programs", **texts)) as hosts:
        run = Runs(hosts.client).make("date +%s; touch ../result; touch ../train.log")
        executor = SshExecutor(hosts.farm())
        handle = complete(executor, run)
        assert run.markers() == {"train.exit.0"}
        assert int(run.text("train.log")) < time.time() - 86400, "the clock there is another"
        assert run.path("result").exists()
        assert not there(hosts, run).exists()
        history = run_directory.load_history(run.dir)
        assert 0 <= (history.attempts[0].ended_at or 0) - handle.started_at < 60
        executor.close()


def test_what_a_host_refuses_is_said(hosts: Hosts, make, runs: Runs) -> None:
    (hosts.home("near") / "file").write_text("")
    executor = make(root="file")
    run = runs.make("true")
    handle = complete(executor, run)
    assert executor.liveness(handle, run.dir) is Liveness.GONE
    assert "near cannot run jobs" in str(executor.refusal(handle, run.dir))


# ---------------------------------------------------------------- supervisors


def test_a_lease_without_a_job_is_never_run_later(hosts: Hosts, make, runs: Runs) -> None:
    """Its supervisor died at every instant between the lease and the start."""
    for instant in ("lease", "log", "log"):
        run = runs.make("touch ran")
        handle = dead_handle(run, hosts)
        assert run.publish(handle)
        if instant == "log":
            run.path(layout.submit_log_name(1)).touch()
        executor = make()
        executor.watch(handle, run.dir)
        finish(executor, [handle])
        assert executor.liveness(handle, run.dir) is Liveness.GONE
        finish(executor, [start(executor, run, attempt=2)])
        assert run.markers() == {"train.2.exit.0"}


@pytest.mark.parametrize("instant", ["offered", "brought"])
def test_what_never_began_leaves_no_copy_and_does_not_begin_later(hosts: Hosts, make, runs: Runs, instant: str) -> None:
    """The dead supervisor's request may still be on its way, when the next attempt runs elsewhere or is over."""
    run, executor = runs.make("touch ran"), make("near", "far")
    handle = dead_handle(run, hosts)
    assert run.publish(handle)
    run.path(layout.submit_log_name(1)).touch()
    if instant == "brought":
        SshExecutor.check(hosts.farm())
        shutil.copytree(run.dir, there(hosts, run))
        (there(hosts, run) / ".start.1").write_text(f"{2**22 - 1} 1 {processes.boot_id()}\n")
    executor.watch(handle, run.dir)
    finish(executor, [handle])
    assert os.listdir(hosts.jobs("near") / "runs") == []
    session = SshSession(HostAddress("near", ROOT, ("-F", str(hosts.config))))
    session.connect()
    assert session.ask("stage", run.uid, "1", "-", f"ASSAY_ATTEMPT={handle.tag}") == ["started"], "it needs no files"
    session.close()
    assert os.listdir(hosts.jobs("near") / "runs") == []
    finish(executor, [start(executor, run, attempt=2)])
    assert run.markers() == {"train.2.exit.0"}


def dead_handle(run: Run, hosts: Hosts) -> JobHandle:
    options = ("-F", str(hosts.config))
    place = HostSlot(HostAddress("near", ROOT, options)).render()
    here, boot = processes.host_name(), processes.boot_id()
    gone = 2**22 - 1
    return JobHandle("ssh", place, here, 0, 0, boot, "near:0", 1, time.time(), gone, 1, tag=f"{run.uid}.1")


def test_a_copy_that_was_removed_is_lost_or_done_by_what_is_here(hosts: Hosts, make, runs: Runs) -> None:
    run = runs.make("sleep 1000")
    executor = make()
    handle = start(executor, run)
    until(lambda: run.path("token.1").exists(), "it has begun")
    shutil.rmtree(there(hosts, run))
    finish(executor, [handle])
    assert executor.liveness(handle, run.dir) is Liveness.GONE
    assert run.markers() == set()
    executor.cancel([(handle, run.dir)], 1.0)
    assert members(run) == set()


def test_devices_by_slot(hosts: Hosts, make, runs: Runs) -> None:
    executor = make(slots=2, gpus=2)
    made = [runs.make("echo $CUDA_VISIBLE_DEVICES") for _ in range(2)]
    finish(executor, [start(executor, run) for run in made])
    assert sorted(run.text("train.log") for run in made) == ["0,1\n", "2,3\n"]


def test_what_is_sent_while_the_host_is_asked_is_not_gone(
    hosts: Hosts, make, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer of the host is older than what the supervisor that has the lease has noted since."""
    run = runs.make("true")
    ask, seen = SshSession.begin, []

    def begin(self: SshSession, *words: str, may_wait: bool = False) -> None:
        ask(self, *words, may_wait=may_wait)
        if words[0] == "look":
            seen.append(run.path("end.1").exists())
            run.path(layout.submit_exit_name(1, 0)).touch()

    with subprocess.Popen(["sleep", "1000"]) as owner:
        handle = replace(
            dead_handle(run, hosts), supervisor_pid=owner.pid, supervisor_start=processes.process_start(owner.pid)
        )
        assert run.publish(handle)
        monkeypatch.setattr(SshSession, "begin", begin)
        executor = make()
        executor.watch(handle, run.dir)
        finish(executor, [handle])
        owner.kill()
    assert seen == [False, False], "it is asked once more, and then it is gone"


def test_what_is_left_of_an_earlier_attempt_is_ended_before_the_next_one(hosts: Hosts, make, runs: Runs) -> None:
    """Given up by --retry lost, or stopped while its host did not answer."""
    run = runs.make('echo "$ASSAY_ATTEMPT_NUMBER" >> ../ran; [ "$ASSAY_ATTEMPT_NUMBER" = 2 ] || sleep 1000')
    first, second = make(), make()
    start(first, run)
    until((there(hosts, run) / "ran").exists, "it runs")
    first.close()
    finish(second, [start(second, run, attempt=2)])
    assert members(run) == set()
    assert run.path("end.1").exists()
    assert run.text("ran") == "2\n", "the copy of the first attempt was removed"
    assert run.markers() == {"train.2.exit.0"}
    assert not there(hosts, run).exists()


def test_nothing_is_stored_of_an_attempt_that_has_a_successor(hosts: Hosts, make, runs: Runs) -> None:
    """One supervisor has given it up, another one has a connection to its host."""
    run = runs.make("echo one; until [ -e go ]; do sleep 0.02; done; echo two; echo mine > ../result")
    executor = make()
    handle = start(executor, run)
    until(lambda: run.path("train.log").exists() and run.text("train.log"), "it runs")
    assert run.publish(replace(handle, attempt=2))
    (there(hosts, run) / "code/go").touch()
    until((there(hosts, run) / "end.1").exists, "it has ended there")
    executor.end_fenced(handle, run.dir)
    finish(executor, [handle])
    assert run.text("train.log") == "one\n"
    assert not run.path("result").exists()
    assert run.markers() == set()
    assert os.listdir(hosts.jobs("near") / "runs") == []


def test_of_two_supervisors_one_writes_the_files(hosts: Hosts, make, runs: Runs) -> None:
    """What one follows late must not cut what the other has fetched to the end."""
    made = [runs.make("for i in $(seq 200); do echo line $i; done; sleep 0.0$((RANDOM % 9))") for _ in range(6)]
    first, second = make(), make()
    handles = [start(first, run) for run in made]
    for handle, run in zip(handles, made, strict=True):
        second.watch(handle, run.dir)
    finish(first, handles)
    finish(second, handles)
    assert [run.text("train.log").count("\n") for run in made] == [200] * 6
    assert all(run.markers() == {"train.exit.0"} for run in made)


def test_the_names_of_fetched_files_are_flushed_in_each_of_their_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a power cut after the host's copy was removed loses them."""
    (tmp_path / "metrics" / "a").mkdir(parents=True)
    flushed: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: flushed.append(os.readlink(f"/proc/self/fd/{fd}")))
    ssh_files.sync_names(str(tmp_path), ["run.log", "metrics/a/0.jsonl"])
    assert sorted(flushed) == [str(tmp_path), str(tmp_path / "metrics"), str(tmp_path / "metrics" / "a")]
