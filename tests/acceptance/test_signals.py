"""Signals, full disks and bad roots: what runs, what is stopped, what the program says, and how it goes on."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fork_server import ForkedProcess
from tests.study_processes import StudyProcesses, load_json, until

from assay.record.index.sqlite import SqliteIndex
from assay.system.files import index_path
from assay.values.run import State

RUN = "run"  # the name of a study's only run


def write_study(shop: StudyProcesses, script: str, more: str = "") -> None:
    """A study of one run; `{dir}` is the run's directory in the script."""
    shop.write("work.sh", f"dir=$ASSAY_RUN_DIR\n{script}\n")
    shop.write("study.yml", f"study: study\ncommand: bash work.sh\n{more}")


def start(shop: StudyProcesses, *arguments: str) -> ForkedProcess:
    """Begin, and wait until the command says that all of it is up."""
    program = shop.start("--plain", "--slots", "0", *arguments)
    until((shop.dir(RUN) / "up").exists, "the command runs")
    return program


GO = 'touch "$dir/up"; until [ -e "$dir/go" ]; do sleep 0.05; done'


def let_go(shop: StudyProcesses) -> None:
    (shop.dir(RUN) / "go").touch()


# ---------------------------------------------------------------- stopping

POLITE = """
setsid sleep 1000 &
(setsid bash -c '(sleep 1000 & wait) &' &)
bash -c 'sleep 1000' &
touch "$dir/up"; sleep 1000
"""
STUBBORN = """
trap '' TERM INT
setsid bash -c 'trap "" TERM; while :; do sleep 1000; done' &
(setsid bash -c '(trap "" TERM; sleep 1000 & wait) &' &)
touch "$dir/up"; while :; do sleep 1000; done
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_everything_that_a_run_started_is_stopped(shop: StudyProcesses, number: signal.Signals) -> None:
    write_study(shop, f'[ -e "$dir/up" ] && exit 0\n{POLITE}')
    program = start(shop)
    until(lambda: len(shop.processes()) >= 5, "all of its processes are there")
    assert shop.end(program, number) == 130
    assert shop.processes() == {}
    assert shop.states(RUN) == [State.STOPPED]
    stop = load_json(shop.dir(RUN) / "stop.1")
    assert (stop["kind"], stop["why"]) == ("interrupt", f"{number.name} to the supervisor")
    words = shop.words(program)
    assert "1 run: 1 stopped" in words
    assert f"interrupted by {number.name}; continue with: assay run study.yml" in words
    assert shop.run("--slots", "0").code == 0
    assert shop.states(RUN) == [State.STOPPED, State.DONE]


@pytest.mark.services("kills")
def test_what_ignores_signals_is_killed(shop: StudyProcesses) -> None:
    """This takes the whole grace of ten seconds."""
    write_study(shop, STUBBORN)
    program = start(shop)
    until(lambda: len(shop.processes()) >= 5, "all of its processes are there")
    assert shop.end(program, signal.SIGINT) == 130
    assert shop.processes() == {}
    assert shop.states(RUN) == [State.STOPPED]


def test_the_reason_is_written_before_the_first_kill(shop: StudyProcesses) -> None:
    """And a script that answers TERM by saving its work and leaving with 0 has not finished."""
    trap = """trap '[ -e "$dir/stop.1" ] && touch "$dir/saw_it"; exit 0' TERM"""
    write_study(shop, f'[ -e "$dir/saw_it" ] && exit 0\n{trap}\ntouch "$dir/up"; while :; do sleep 0.05; done')
    program = start(shop)
    assert shop.end(program, signal.SIGTERM) == 130
    until((shop.dir(RUN) / "saw_it").exists, "the script saw the reason")
    assert shop.states(RUN) == [State.STOPPED]
    assert shop.run("--slots", "0").code == 0
    assert shop.states(RUN) == [State.STOPPED, State.DONE]


def test_an_interrupt_leaves_the_queue_alone(shop: StudyProcesses) -> None:
    write_study(shop, "exit 0")
    shop.write(
        "study.yml",
        "study: study\ncommand: 'touch \"${ASSAY_RUN_DIR}/up\"; sleep 1000; echo {n}'\nparams: {n: [1, 2, 3]}\n",
    )
    program = shop.start("--plain", "--slots", "0")
    until((shop.dir("n=1") / "up").exists, "the first runs")
    assert shop.end(program, signal.SIGINT) == 130
    assert "3 runs: 1 stopped, 2 not started" in shop.words(program)
    assert next(shop.states(f"n={n}") for n in (1, 2, 3) if shop.dir(f"n={n}").exists()) == [State.STOPPED]
    assert not any((shop.dir(f"n={n}") / "lease.1").exists() for n in (2, 3))


# ---------------------------------------------------------------- leaving


def test_a_hangup_leaves_the_run_running(shop: StudyProcesses) -> None:
    write_study(shop, f"{GO}\nexit 7")
    program = start(shop)
    assert shop.end(program, signal.SIGHUP) == 0
    assert "1 still running" in shop.words(program)
    assert len(shop.processes()) >= 2
    again = shop.start("--plain", "--slots", "0")
    until(lambda: "found run still running" in shop.words(again), "it is found again")
    let_go(shop)
    assert again.wait(60) == 1
    assert shop.states(RUN) == [State.FAILED]
    assert shop.history(RUN).attempts[0].codes == {"run": 7}


def test_closing_the_terminal_leaves_the_run_running(shop: StudyProcesses) -> None:
    """The live view has nowhere to write any more; that is not reported as a bug."""
    write_study(shop, GO)
    (shop.base / "tmp").mkdir()
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(shop.source)
        env = {**shop.env, "TERM": "xterm", "TMPDIR": str(shop.base / "tmp")}
        arguments = [sys.executable, "-m", "assay", "run", "study.yml", "--root", str(shop.root), "--slots", "0"]
        os.execve(sys.executable, arguments, env)
    until((shop.dir(RUN) / "up").exists, "the command runs")
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert list((shop.base / "tmp").iterdir()) == []
    assert len(shop.processes()) >= 2
    let_go(shop)
    assert shop.run("--slots", "0").code == 0
    assert shop.states(RUN) == [State.DONE]


def test_nohup_is_respected(shop: StudyProcesses) -> None:
    write_study(shop, GO)
    arguments = ["nohup", sys.executable, "-m", "assay", "run", "study.yml", "--root", str(shop.root), "--slots", "0"]
    with (shop.base / "out").open("w") as out:
        program = subprocess.Popen(arguments, cwd=shop.source, env=shop.env, stdout=out, stderr=out, text=True)
    shop.started.append(program)
    until((shop.dir(RUN) / "up").exists, "the command runs")
    program.send_signal(signal.SIGHUP)
    let_go(shop)
    assert program.wait(60) == 0
    assert shop.states(RUN) == [State.DONE]


def test_what_ended_without_a_supervisor(shop: StudyProcesses) -> None:
    """It has its true code, and its true time."""
    write_study(shop, f"{GO}\nexit 9")
    assert shop.end(start(shop), signal.SIGKILL) == -signal.SIGKILL
    let_go(shop)
    until(lambda: shop.has_ended(RUN), "the run ended")
    assert shop.states(RUN) == [None]
    os.utime(shop.dir(RUN) / "run.exit.9", (1000.0, 1000.0))
    assert shop.run("--slots", "0").code == 1
    assert load_json(shop.dir(RUN) / "outcome.1")["ended_at"] == 1000.0
    assert shop.states(RUN) == [State.FAILED]
    assert shop.history(RUN).attempts[0].codes == {"run": 9}


def test_detach_and_attach(shop: StudyProcesses) -> None:
    write_study(shop, GO)
    shop.run("--detach", "--slots", "0").ended(0).printed("in the background")
    until((shop.dir(RUN) / "up").exists, "the command runs")
    attached = shop.start("--plain", "--slots", "0")
    until(lambda: "found run still running" in shop.words(attached), "it is found")
    assert attached.poll() is None
    let_go(shop)
    assert attached.wait(60) == 0
    assert shop.states(RUN) == [State.DONE]
    until(lambda: not shop.processes(jobs_only=False), "the supervisor in the background has left")
    assert "1 done" in (shop.root / "study/.assay/supervisor.log").read_text()


def test_what_follows_detach_finds_the_runs(shop: StudyProcesses) -> None:
    """The command returns when its supervisor has started what has a slot, not before the first directory is there."""
    write_study(shop, "sleep 100", "params: {n: [1, 2, 3, 4]}\n")
    for number in range(300):
        shop.write(f"module_{number}.py", "# a snapshot that takes a while\n" * 100)
    assert shop.run("--detach", "--slots", "0").code == 0
    planned, queued, running = (shop.call("stop", f"study/n={n}", "--root", str(shop.root)) for n in (4, 2, 1))
    assert (planned.code, "was not started yet" in planned.err) == (2, True), planned
    assert (queued.code, "stopped before it was started" in queued.out) == (0, True), queued
    assert (running.code, "stopped after" in running.out) == (0, True), running
    until((shop.dir("n=3") / "lease.1").exists, "the next one has its slot")
    assert not (shop.dir("n=2") / "lease.1").exists()  # its supervisor leaves it out
    assert shop.states("n=2") == [State.STOPPED]
    assert shop.call("stop", "study", "--root", str(shop.root)).code == 0
    until(lambda: not shop.processes(jobs_only=False), "the supervisor in the background has left")


def test_what_stop_ended_is_named_and_taken_up_by_the_printed_command(shop: StudyProcesses) -> None:
    write_study(shop, '[ $ASSAY_ATTEMPT_NUMBER = 2 ] || { touch "$dir/up"; sleep 1000; }')
    program = start(shop)
    assert shop.call("stop", "study", "--root", str(shop.root)).code == 0
    assert program.wait(60) == 130
    words = shop.words(program)
    assert "interrupted by assay stop; continue with: assay run study.yml" in words
    assert words.rstrip().endswith(" --retry stopped")
    assert "1 of 1 runs is kept: finished, running, failed, or stopped" in shop.run("--dry-run").out
    assert shop.run("--slots", "0", "--retry", "stopped").code == 0
    assert shop.states(RUN) == [State.STOPPED, State.DONE]


# ---------------------------------------------------------------- metrics

LINES = 2000
# every line is a point but the last, which nothing ends; and some time passes, for supervisors to be killed in
TALKER = f"""
touch "$dir/up"
for ((i = 1; i < {LINES}; i++)); do
  echo "step $i loss $i.5"
  ((i % 40)) || sleep 0.04
done
printf 'step {LINES} loss {LINES}.5'
"""
# of each quarter, the supervisor that was started before it was written reads the first points
QUARTERS = TALKER.replace(
    "  echo", '  ((i % 500)) || until [ -e "$dir/quarter.$((i / 500))" ]; do sleep 0.05; done\n  echo'
)
METRICS = "metrics:\n  step: 'step (\\d+)'\n  loss: 'loss ({number})'\n"


def load_series(shop: StudyProcesses) -> tuple[array[float], array[float]]:
    with SqliteIndex(index_path(shop.root, shop.env)) as index:
        series = index.load_series(f"study/{RUN}", "loss")
        return series.steps, series.values


def whole() -> tuple[list[float], list[float]]:
    steps = [float(i) for i in range(1, LINES + 1)]
    return steps, [step + 0.5 for step in steps]


def test_metrics_survive_their_readers(shop: StudyProcesses) -> None:
    """Supervisors are killed one after another while the log grows: each point is there, once."""
    write_study(shop, QUARTERS, METRICS)
    program = start(shop)
    for quarter in (1, 2, 3):
        until(lambda known=500 * (quarter - 1): len(load_series(shop)[1]) > known, "points arrive")
        shop.end(program, signal.SIGKILL)
        program = shop.start("--plain", "--slots", "0")
        (shop.dir(RUN) / f"quarter.{quarter}").touch()
    assert program.wait(60) == 0
    assert tuple(map(list, load_series(shop))) == whole()


def test_two_readers_store_a_point_once(shop: StudyProcesses) -> None:
    """Both adopt the run when its owner dies, and both read its last, unfinished line."""
    waits = 'until [ -e "$dir/killed" ]; do sleep 0.05; done\n'
    write_study(shop, TALKER.replace("printf", f"{waits}printf"), METRICS)
    owner = start(shop)
    both = [shop.start("--plain", "--slots", "0") for _ in range(2)]
    for each in both:
        until(lambda program=each: "found run still running" in shop.words(program), "it is found")
    shop.end(owner, signal.SIGKILL)
    (shop.dir("run") / "killed").touch()
    assert [each.wait(60) for each in both] == [0, 0]
    assert tuple(map(list, load_series(shop))) == whole()


# ---------------------------------------------------------------- disks and roots


@pytest.fixture
def small_disk(shop: StudyProcesses) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk to fill")
    path = shop.base / "disk"
    path.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", path]
    mounted = subprocess.run(words, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"no small disk can be mounted here: {mounted.stderr.strip()}")
    yield path
    subprocess.run(["umount", "-l", path], check=True)


def test_a_disk_that_runs_full(shop: StudyProcesses, small_disk: Path) -> None:
    shop.write("work.sh", 'head -c 400000 /dev/zero > "$ASSAY_RUN_DIR/blob" || exit 3\n')
    shop.write("study.yml", "study: study\ncommand: bash work.sh {n}\nparams: {n: {range: 16}}\n")
    root = small_disk / "runs"
    arguments = ("run", "study.yml", "--root", str(root), "--plain", "--slots", "0")
    full = shop.call(*arguments)
    assert full.code == 4, full.err
    assert "No space left on device" in full.err
    assert "Traceback" not in full.err
    assert "bug in Assay" not in full.err
    over = {path.parent.name: path for path in sorted(root.glob("study/*/outcome.1"))}
    states = {name: load_json(path)["state"] for name, path in over.items()}
    assert 0 < len(over) < 16
    assert set(states.values()) <= {"done", "failed"}
    assert shop.call(*arguments).code in (2, 4)  # still full: reported at once
    before = {name: path.read_bytes() for name, path in over.items()}
    for blob in root.glob("study/*/blob"):
        blob.unlink()
    subprocess.run(["mount", "-o", "remount,size=40m", small_disk], check=True)
    again = shop.call(*arguments, "--retry", "failed")
    assert again.code == 0, again.err
    assert {name: over[name].read_bytes() for name in before} == before
    assert "16 done" in again.err


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        while filler.write(bytes(1 << 16)):
            pass


def test_an_interrupt_on_a_full_disk(shop: StudyProcesses, small_disk: Path) -> None:
    """The reason cannot be written; everything is stopped all the same, and continued later."""
    write_study(shop, f'[ -e "{small_disk}/room" ] && exit 0\n{POLITE}')
    root = small_disk / "runs"
    program = subprocess.Popen(
        [sys.executable, "-m", "assay", "run", "study.yml", "--root", str(root), "--plain", "--slots", "0"],
        cwd=shop.source,
        env=shop.env,
        stderr=subprocess.PIPE,
        text=True,
    )
    run_dir = root / "study" / RUN
    until((run_dir / "up").exists, "the command runs")
    fill(small_disk / "filler")
    program.send_signal(signal.SIGINT)
    _, words = program.communicate(timeout=60)
    assert program.returncode == 130, words
    assert "bug in Assay" not in words
    assert shop.processes() == {}
    (small_disk / "filler").unlink()
    (small_disk / "room").touch()
    assert shop.call("run", "study.yml", "--root", str(root), "--slots", "0").code == 0
