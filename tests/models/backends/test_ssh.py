"""Boards by ssh: a real sshd on loopback, real locks, real kills."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.example_models import is_running, until
from tests.models.backends import backend_helpers
from tests.models.backends.backend_helpers import write_program
from tests.models.backends.loopback import NEEDS_SSHD, find_port, open_board
from tests.models.backends.test_board import OWNER

from assay.errors import InfrastructureError, UsageError
from assay.models.backends.registry import build_backend
from assay.models.graph.tensorfile import load_tensors, write_tensors
from assay.models.values.model import Job, Step, StepEnding, StepLimits, Target
from assay.models.worker_process import WorkerProcess
from assay.values.plain import build_plain

RUNNER = """#!/bin/sh
# RUNNER INPUT OUTPUT [WORDS]: hands its input on as its output
set -e
cp "$1" "$2"
shift 2
for word in "$@"; do case $word in
    --log=*) echo begin >>"${word#--log=}"; sleep 0.2; echo end >>"${word#--log=}";;
    --say=*) echo "${word#--say=}"; echo "to stderr" >&2;;
    --profile=*) echo name,us >"${word#--profile=}/p.csv";;
    --where) pwd; echo "$0"; echo "MARK=${MARK:-}";;
    --fail) exit 3;;
    --odd) exit 255;;
    --crash) kill -SEGV $$;;
    --hang=*) sleep 1000 & echo "$$ $!" >"${word#--hang=}.new"; mv "${word#--hang=}.new" "${word#--hang=}"; wait;;
    *) echo "what is $word?" >&2; exit 9;;
esac; done
"""


@pytest.fixture(scope="module")
def board(tmp_path_factory):
    with open_board(tmp_path_factory.mktemp("board")) as made:
        write_program(made.folder / "runner.sh", RUNNER)
        yield made


pytestmark = NEEDS_SSHD


def target_of(board, *words, **options):
    run = [str(board.folder / "runner.sh"), "{inputs}/0.npy", "{outputs}/0.npy", *words, "{run_flags}"]
    return Target("board", "ssh", {"run": run, "version": False, "lock_expiry_s": 5, **board.options, **options})


@pytest.fixture
def make(tmp_path):
    """A job with an artifact and inputs of its own."""
    count = iter(range(1000))

    def job(**more):
        folder = tmp_path / f"job{next(count)}"
        (folder / "made").mkdir(parents=True)
        (folder / "model.bin").write_text("compiled")
        write_tensors(folder / "in", {"a": np.array([1.5, 2.5], np.float32)})
        return Job(
            Step.RUN, str(folder / "model.bin"), str(folder / "made"), str(folder / "in"), ("y",), case="c", **more
        )

    return job


@pytest.fixture
def perform():
    """In this process: quicker, and errors come as they are."""
    made = []

    def work(target, job):
        backend = build_backend(target)
        made.append(backend)
        return backend.perform(job)

    yield work
    for backend in made:
        backend.close()


def left_on(board):
    """What jobs have left: folders and locks; deployed programs may stay."""
    there = [name for name in os.listdir(board.root) if not name.startswith("assay-runners-")]
    return there + [name for name in os.listdir(board.folder) if name.startswith("board.lock")]


def test_no_address():
    with pytest.raises(UsageError, match="target b: there is no address"):
        build_backend(Target("b", "ssh", {"run": "x"}))


def test_boards_that_do_not_answer_or_refuse(board, make, perform, tmp_path):
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "other")], check=True)
    known = ["-o", f"UserKnownHostsFile={tmp_path / 'none'}", "-o", "GlobalKnownHostsFile=/dev/null"]
    strict = ["-F", "/dev/null", "-o", "StrictHostKeyChecking=yes", *known]
    with socket.create_server(("127.0.0.1", 0)) as deaf:  # it listens and sends nothing
        for options, message in (
            ({"port": find_port()}, r"the board .*@127.0.0.1 does not answer: .*Connection refused"),
            ({"port": deaf.getsockname()[1], "connect_timeout_s": 1}, "does not answer"),
            ({"key": str(tmp_path / "other")}, r"refuses the connection: .*Permission denied"),
            ({"ssh_options": strict}, "is not known: Host key verification failed"),
        ):
            with pytest.raises(InfrastructureError, match=message):
                perform(target_of(board, **options), make())


def test_one_dead_board_is_an_outcome_and_the_worker_goes_on(board, make, tmp_path):
    with WorkerProcess(target_of(board, port=find_port()), folder=str(tmp_path / "worker")) as worker:
        outcome = worker.work(make())
        assert outcome.ending is StepEnding.ERROR
        assert "does not answer" in outcome.message
        assert "is it on?" in outcome.hint
        with pytest.raises(InfrastructureError, match="does not answer"):
            worker.identity()


def test_a_program_that_the_board_does_not_have(board):
    with pytest.raises(
        InfrastructureError, match=r"no-such-runner is not on the board .*\n.*deploy = \['no-such-runner'\]"
    ):
        identify(board, run="no-such-runner")


def test_a_held_lock_shows_its_owner_and_since_when(board, make, perform):
    board.lock.mkdir()
    try:
        for name, text in {"owner": OWNER, "token": "other", "beat": str(int(time.time()))}.items():
            (board.lock / name).write_text(text + "\n")
        with pytest.raises(InfrastructureError) as caught:
            perform(target_of(board, lock_wait_s=0, lock_expiry_s=60), make())
    finally:
        shutil.rmtree(board.lock)
    assert "is in use, held by anna on user (process 4711) since 2026-01-02 03:04:05 UTC" in str(caught.value)
    assert str(board.lock) in caught.value.hint


def test_several_at_once_take_turns(board, make, tmp_path):
    log, made = tmp_path / "log", []

    def work(job):
        backend = build_backend(target_of(board, f"--log={log}", lock_wait_s=60))
        made.append(backend.perform(job))
        backend.close()

    threads = [threading.Thread(target=work, args=[make()]) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 3
    assert log.read_text().split() == ["begin", "end"] * 3
    assert left_on(board) == []


def test_inputs_go_there_and_outputs_come_back(board, make, perform, tmp_path):
    array = np.random.default_rng(0).normal(size=(3, 1 << 20))
    write_tensors(tmp_path / "large", {"a": array})
    target = target_of(board, "--say=hello it's", ["--profile={profile_dir}"], "--where", env={"MARK": "it's $HOME"})
    job = replace(make(profile_dir=str(tmp_path / "profile")), inputs=str(tmp_path / "large"))
    made = perform(replace(target, run_flags=("--say=a 'b' $c",)), job)
    np.testing.assert_array_equal(load_tensors(made.path)["y"], array)
    said = made.stdout.splitlines()
    assert (said[0], said[3], said[4]) == ("hello it's", "MARK=it's $HOME", "a 'b' $c")
    assert said[1].startswith(f"{board.root}/assay-")
    assert made.stderr == "to stderr\n" * 2
    assert made.profiles == (str(tmp_path / "profile/p.csv"),)
    assert len(made.times_s) == 1
    assert left_on(board) == []
    assert perform(target_of(board, "--where"), make()).stdout.splitlines()[0] != said[1], "a folder for each job"


def test_a_model_takes_its_external_data_along(board, make, perform, tmp_path):
    """There is no compiler: the model itself goes to the board, with all that belongs to it."""
    backend_helpers.build_external(tmp_path / "m.onnx")
    size = (tmp_path / "weights.bin").stat().st_size
    run = ["sh", "-c", 'ls -l "$(dirname "$0")"; cp "$1" "$2"', "{model}", "{inputs}/0.npy", "{outputs}/0.npy"]
    job = make()
    target = target_of(board, run=run)
    made = perform(target, replace(job, step=Step.COMPILE, source=str(tmp_path / "m.onnx")))
    ran = perform(target, replace(make(), source=made.path))
    assert "model.onnx" in ran.stdout
    assert f" {size} " in ran.stdout


@pytest.mark.parametrize(
    ("word", "words"),
    [
        ("--fail", "runner.sh ended with exit code 3"),
        ("--odd", "runner.sh ended with exit code 255"),
        ("--crash", "exit code 139 (SIGSEGV)"),
        ("--x", "what is --x?"),
    ],
)
def test_a_run_that_fails(board, make, tmp_path, word, words):
    with WorkerProcess(target_of(board, word), folder=str(tmp_path / "worker")) as worker:
        outcome = worker.work(make())
        assert outcome.ending is StepEnding.ERROR
        assert words in outcome.message
        assert word in outcome.command
    assert left_on(board) == []


def test_the_printed_command_repeats_a_failed_run(board, make, tmp_path):
    """The folder on the board is gone by then."""
    job = make()
    with WorkerProcess(
        target_of(board, "--where", "--fail", env={"MARK": "it's me"}), folder=str(tmp_path / "w")
    ) as worker:
        command = worker.work(job).command
    assert left_on(board) == []
    for _ in range(2):
        done = subprocess.run(["bash", "-c", command], cwd="/", capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (3, "")
        assert "MARK=it's me" in done.stdout
        folder = Path(done.stdout.splitlines()[0])
        assert (folder / "outputs" / "0.npy").read_bytes() == (folder / "inputs" / "0.npy").read_bytes()
        assert (folder / "artifact" / "model.bin").read_text() == "compiled"
    for left in board.root.glob("assay-*"):
        if not left.name.startswith("assay-runners-"):
            subprocess.run(["rm", "-r", str(left)], check=True)


def test_programs_are_copied_once_for_each_content(board, make, perform, tmp_path):
    script = tmp_path / "own.sh"
    options = {
        "run": ["sh", "own.sh", "{inputs}/0.npy", "{outputs}/0.npy", "--where"],
        "deploy": ["own.sh"],
        "folder": str(tmp_path),
    }
    places = []
    for text in (RUNNER, RUNNER, RUNNER + "# newer\n"):
        script.write_text(text)
        places.append(perform(target_of(board, **options), make()).stdout.splitlines()[1])
    assert places[0] == places[1] != places[2]
    assert all(Path(place).is_file() for place in places)
    assert Path(places[0]).read_text() == RUNNER
    assert Path(places[0]).parent.stat().st_mode & 0o777 == 0o700


def test_the_identity_depends_on_what_is_copied(board, tmp_path):
    seen = []
    for text in ("1", "2"):
        (tmp_path / "own.sh").write_text(text)
        seen.append(identify(board, run=["own.sh"], deploy=["own.sh"], folder=str(tmp_path)))
    assert seen[0]["board"] == seen[1]["board"]
    assert all(os.uname()[i] in seen[0]["board"] for i in range(5))
    assert seen[0]["deploy: own.sh"] != seen[1]["deploy: own.sh"]


def identify(board, **options):
    backend = build_backend(target_of(board, **options))
    try:
        return dict(backend.identity())
    finally:
        backend.close()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("x.py", ["sh", "{place}/x.py"]),
        ("x.json", ["sh", "--config={place}/x.json"]),
        ("lib/deep/x.so", ["sh", "--lib", "{place}/lib"]),
        ("interpreter", ["{place}/tool"]),
        ("tool", ["{place}/tool", "{artifact}"]),
    ],
)
def test_files_of_the_board_that_are_named_count(board, tmp_path, name, words):
    place = tmp_path / "board"
    write_program(place / "tool", f"#!{place}/interpreter -x\nprogram\n")
    changing = write_program(place / name)
    run = [word.replace("{place}", str(place)) for word in words]
    first = identify(board, run=run)
    assert identify(board, run=run) == first
    changing.write_text("#!/bin/sh\necho 2\n")
    assert identify(board, run=run) != first


def test_a_program_is_looked_for_where_the_targets_path_leads(board, tmp_path):
    for name in ("a", "b"):
        tool = write_program(tmp_path / name / "my-runner", f"#!/bin/sh\n# {name}\n")
        found = identify(board, run=["my-runner"], env={"PATH": f"{tool.parent}:/usr/bin:/bin"})["board: my-runner"]
        assert found.startswith(f"{tool} ")
        assert len(found.split()[-1]) == 64


def test_a_folder_that_jobs_are_made_in_is_not_searched(board):
    assert identify(board, run=["sh", "/"]) == identify(board, run=["sh", str(board.root)])


def test_what_a_run_depends_on_may_be_on_the_board(board, tmp_path, monkeypatch):
    """A board has files that are not here; this one is the same machine, so that ours are looked for elsewhere."""
    there = write_program(tmp_path / "board" / "firmware.bin")
    exists = os.path.exists
    monkeypatch.setattr("assay.models.backends.ssh.os.path.exists", lambda path: path != str(there) and exists(path))
    first = identify(board, depends=[str(there)])
    there.write_text("newer")
    assert identify(board, depends=[str(there)]) != first
    with pytest.raises(UsageError, match="depends: there is no /none/x"):
        identify(board, depends=["/none/x"])


def test_a_time_out_leaves_nothing_on_the_board(board, make, tmp_path):
    with WorkerProcess(target_of(board, f"--hang={tmp_path / 'pids'}"), folder=str(tmp_path / "worker")) as worker:
        outcome = worker.work(make(), StepLimits(run_s=4.0))
        assert outcome.ending is StepEnding.TIMEOUT
        assert "--hang=" in outcome.command, "what it was doing"
        pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
        until(lambda: not any(is_running(pid) for pid in pids), "the processes on the board are gone")
        until(lambda: left_on(board) == [], "folder and lock are gone")


def test_what_a_program_leaves_behind_goes_with_it(board, make, perform, tmp_path):
    script = 'sleep 1000 & echo $! >"$2"; cp "$0" "$1"'
    run = ["sh", "-c", script, "{inputs}/0.npy", "{outputs}/0.npy", str(tmp_path / "pid")]
    perform(target_of(board, run=run), make())
    pid = int((tmp_path / "pid").read_text())
    until(lambda: not is_running(pid), "the child is gone")


def test_a_run_may_take_longer_than_the_lock_lives(board, make, perform, tmp_path):
    run = ["sh", "-c", 'sleep 4; cp "$0" "$1"', "{inputs}/0.npy", "{outputs}/0.npy"]
    made = perform(target_of(board, run=run, lock_expiry_s=1), make())
    assert load_tensors(made.path)["y"].tolist() == [1.5, 2.5]
    assert left_on(board) == []


def test_killing_us_leaves_nothing_on_the_board(board, make, tmp_path):
    request = {"target": build_plain(target_of(board, f"--hang={tmp_path / 'pids'}")), "job": build_plain(make())}
    code = (
        "import json, sys\n"
        "from assay.models.worker_process import WorkerProcess\n"
        "from assay.models.values.model import Job, Target\n"
        "from assay.values.plain import parse_plain\n"
        "request = json.loads(sys.argv[2])\n"
        "WorkerProcess(parse_plain(Target, request['target']), folder=sys.argv[1]).work(parse_plain(Job, request['job']))\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "worker"), json.dumps(request)]) as parent:
        until((tmp_path / "pids").exists, "the job runs on the board")
        pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
        assert all(is_running(pid) for pid in pids)
        parent.kill()
    until(lambda: not any(is_running(pid) for pid in pids), "the processes on the board are gone")
    until(lambda: left_on(board) == [], "folder and lock are gone")


def test_a_connection_that_breaks_is_an_outcome(board, make, tmp_path):
    """The board goes away in the middle of a run; afterwards it is back, and the same worker uses it."""
    target = target_of(board, f"--hang={tmp_path / 'pids'}")
    with WorkerProcess(target, folder=str(tmp_path / "worker")) as worker:
        found = []
        thread = threading.Thread(target=lambda: found.append(worker.work(make(), StepLimits(run_s=120))))
        thread.start()
        until((tmp_path / "pids").exists, "the job runs on the board")
        daemon = board.process.pid  # with a child for each connection
        for pid in Path(f"/proc/{daemon}/task/{daemon}/children").read_text().split():
            os.kill(int(pid), signal.SIGKILL)
        thread.join()
        assert found[0].ending is StepEnding.ERROR
        assert "broke" in found[0].message or "failed" in found[0].message
        until(lambda: left_on(board) == [], "folder and lock are gone")
        (tmp_path / "pids").unlink()
        assert worker.work(make(), StepLimits(run_s=3)).ending is StepEnding.TIMEOUT, "it runs again"
        until(lambda: left_on(board) == [], "folder and lock are gone")
