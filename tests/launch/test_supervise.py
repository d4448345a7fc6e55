"""The loop with real jobs: time limits, retries, deaths, other hosts, reboots, job.sh by hand; the order of starts."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.study_processes import StudyProcesses, load_json, until

from assay.errors import InfrastructureError
from assay.execute.local import LocalExecutor
from assay.execute.machine_lease import MachineLease
from assay.execute.script import JobText, render_job
from assay.execute.slots import SlotPool, build_entries
from assay.follow.attempts import DEATH, GIVEN_UP, RetryPolicy
from assay.follow.entry import Entry, Event
from assay.launch.supervise import LoopSettings, Supervisor
from assay.record import run_directory
from assay.system import processes
from assay.values import layout
from assay.values.run import Command, Ending, JobHandle, Outcome, RunSpec, State, Stop, Usage

RUN = "run"


def write_study(shop: StudyProcesses, script: str, more: str = "") -> None:
    shop.write("work.sh", f"dir=$ASSAY_RUN_DIR n=$ASSAY_ATTEMPT_NUMBER\n{script}\n")
    shop.write("study.yml", f"study: study\ncommand: bash work.sh\n{more}")


def reasons(shop: StudyProcesses) -> list[str]:
    return [attempt.outcome.reason for attempt in shop.history(RUN).attempts if attempt.outcome]


def edit_lease(shop: StudyProcesses, run: str = RUN, **fields: object) -> None:
    path = shop.dir(run) / "lease.1"
    path.write_text(json.dumps({**load_json(path), **fields}))


def forget_end(shop: StudyProcesses, run: str = RUN) -> None:
    """Remove the end of the first attempt, as if it had ended without a marker before a supervisor concluded it."""
    for path in (*shop.dir(run).glob("run.exit.*"), shop.dir(run) / "outcome.1"):
        path.unlink()


# ---------------------------------------------------------------- time limits

LEFT_BEHIND = "setsid sleep 1000 & (setsid sleep 1000 &) ; sleep 1000"


def test_a_command_has_a_time_limit(shop: StudyProcesses) -> None:
    write_study(shop, LEFT_BEHIND)
    text = "study: study\ncommands:\n  train: {run: bash work.sh, timeout: 1s}\n  test: {run: 'true'}\n"
    shop.write("study.yml", text)
    ended = shop.run("--slots", "0").ended(1)
    assert shop.states(RUN) == [State.TIMEOUT]
    assert reasons(shop) == ["train ran into its time limit"]
    assert "TIMEOUT run" in ended.err
    assert shop.processes() == {}
    assert not (shop.dir(RUN) / "test.log").exists()


def test_a_run_has_a_time_limit(shop: StudyProcesses) -> None:
    """The first command takes a part of the limit, the second one is ended, and the run is retried as allowed."""
    shop.write(
        "study.yml", "study: study\ncommands:\n  train: sleep 0.3\n  test: sleep 1000\ntimeout: 1s\nretries: 1\n"
    )
    assert shop.run("--slots", "0").code == 1
    assert shop.states(RUN) == [State.TIMEOUT, State.TIMEOUT]
    assert [dict(attempt.codes) for attempt in shop.history(RUN).attempts] == [{"train": 0, "test": 124}, {"test": 124}]
    assert shop.processes() == {}


# ---------------------------------------------------------------- retries


def test_an_interrupted_run_is_continued_although_the_clock_went_back(shop: StudyProcesses) -> None:
    write_study(shop, '[ $n -gt 1 ] || { touch "$dir/up"; sleep 1000; }')
    program = shop.start("--plain", "--slots", "0")
    until((shop.dir(RUN) / "up").exists, "it runs")
    assert shop.end(program, signal.SIGINT) == 130
    stop = shop.dir(RUN) / "stop.1"
    stop.write_text(json.dumps({**load_json(stop), "at": time.time() + 3600}))
    assert shop.run("--slots", "0").code == 0
    assert shop.states(RUN) == [State.STOPPED, State.DONE]


def test_retry_stopped(shop: StudyProcesses) -> None:
    """A run that a person stopped is only repeated if a person requests it."""
    write_study(shop, '[ $n -gt 1 ] || { touch "$dir/up"; sleep 1000; }')
    program = shop.start("--plain", "--slots", "0")
    until((shop.dir(RUN) / "up").exists, "it runs")
    stop = {"who": "a person", "why": "enough", "kind": "user", "at": time.time()}
    (shop.dir(RUN) / "stop.1").write_text(json.dumps(stop))
    os.killpg(load_json(shop.dir(RUN) / "lease.1")["pid"], signal.SIGKILL)
    assert program.wait(60) == 1
    assert reasons(shop) == ["enough"]
    assert shop.run("--slots", "0").code == 1
    assert shop.states(RUN) == [State.STOPPED]
    assert shop.run("--slots", "0", "--retry", "stopped").code == 0
    assert shop.states(RUN) == [State.STOPPED, State.DONE]


# ---------------------------------------------------------------- ended by a rule


def test_what_a_dead_supervisor_had_decided_to_end_is_ended_by_the_next(shop: StudyProcesses) -> None:
    write_study(shop, 'touch "$dir/up"; [ $n -gt 1 ] || { (setsid sleep 1000 &); sleep 1000; }', "retries: 2\n")
    program = shop.start("--plain", "--slots", "0")
    until((shop.dir(RUN) / "up").exists, "it runs")
    shop.end(program, signal.SIGKILL)
    stop = {"who": "a rule", "why": "asha rung 3, 41st of 60", "kind": "rule", "at": time.time()}
    (shop.dir(RUN) / "stop.1").write_text(json.dumps(stop))
    assert shop.processes()
    ended = shop.run("--slots", "0", "--plain")
    assert (ended.code, shop.states(RUN), shop.processes()) == (0, [State.PRUNED], {})
    assert reasons(shop) == ["asha rung 3, 41st of 60"]
    assert "1 pruned" in ended.err
    for flags in ((), ("--retry", "failed"), ("--retry", "lost"), ("--retry", "stopped")):
        assert shop.run("--slots", "0", *flags).code == 0
        assert shop.states(RUN) == [State.PRUNED]
    assert shop.run("--slots", "0", "--force").code == 0
    assert shop.states(RUN) == [State.PRUNED, State.DONE]


# ---------------------------------------------------------------- deaths

DIES = "kill -KILL $(ps -o sid= -p $$)"  # kills job.sh, which leads the session


def test_a_death_is_followed_by_another_attempt(shop: StudyProcesses) -> None:
    write_study(shop, f"[ $n -gt 2 ] || {DIES}\nsleep 0.05")
    assert shop.run("--slots", "0").code == 0
    assert shop.states(RUN) == [State.LOST, State.LOST, State.DONE]
    assert reasons(shop)[:2] == [DEATH, DEATH]
    assert shop.processes() == {}


# the first attempt leaves a child in a session of its own; the second looks whether it still sleeps
ORPHAN = f"""
state() {{ cut -d' ' -f3 "/proc/$(cat "$dir/left")/stat" 2>/dev/null; }}
if [ $n = 2 ]; then [ "$(state)" != S ]; exit; fi
setsid sleep 1000 & echo $! > "$dir/left"; until [ "$(state)" = S ]; do sleep 0.03; done
{DIES}
"""


def test_what_a_dead_attempt_left_running_is_ended_first(shop: StudyProcesses) -> None:
    """Two attempts at a time in one directory would overwrite each other's files."""
    write_study(shop, ORPHAN)
    assert shop.run("--slots", "0").code == 0
    assert shop.states(RUN) == [State.LOST, State.DONE]


# ---------------------------------------------------------------- other hosts and reboots


def test_a_lease_of_another_host(shop: StudyProcesses) -> None:
    write_study(shop, "exit 0")
    assert shop.run("--slots", "0").code == 0
    forget_end(shop)
    edit_lease(shop, host="elsewhere", pid=os.getpid())
    for arguments in ((), ("--retry", "failed"), ("--force",)):
        shop.run("--slots", "0", *arguments).ended(1, "LOST run: elsewhere has it, which cannot be asked from here")
        assert shop.states(RUN) == [None]
    assert shop.run("--slots", "0", "--retry", "lost").code == 0
    assert shop.states(RUN) == [State.LOST, State.DONE]
    assert reasons(shop)[0] == GIVEN_UP


def test_what_another_host_has_finished_during_the_call_is_not_reported_as_lost(shop: StudyProcesses) -> None:
    """The second run acts as the other host."""
    text = "study: study\ncommand: '[ {n} = 1 ] || touch ../../n=1/run.exit.0'\nparams: {n: [1, 2]}\n"
    shop.write("study.yml", text)
    assert shop.run("--slots", "0").code == 0
    forget_end(shop, "n=1")
    edit_lease(shop, "n=1", host="elsewhere")
    shutil.rmtree(shop.dir("n=2"))
    assert shop.run("--slots", "0").code == 0
    assert shop.states("n=1") == [State.DONE]


def test_leases_of_a_power_cut_a_reboot_and_a_pid_given_to_another_process(shop: StudyProcesses) -> None:
    """The attempt counts as lost. A process that now has its pid is neither waited for nor ended."""
    shop.write("study.yml", "study: study\ncommand: echo {n}\nparams: {n: {range: 6}}\n")
    assert shop.run("--slots", "0").code == 0
    runs = [f"n={n}" for n in range(6)]
    for run in runs:
        forget_end(shop, run)
    for run, left in zip(runs, ["", "{", '"text"', '{"pid": 1}'], strict=False):
        (shop.dir(run) / "lease.1").write_text(left)
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as bystander:
        try:
            start = int(Path(f"/proc/{bystander.pid}/stat").read_text().rpartition(")")[2].split()[19])
            edit_lease(shop, "n=4", pid=bystander.pid, start=start, boot="another boot")
            edit_lease(shop, "n=5", pid=bystander.pid, start=start - 1)  # it may have begun in the tick of the job
            assert shop.run("--slots", "0").code == 0
            assert {run: shop.states(run) for run in runs} == {run: [State.LOST, State.DONE] for run in runs}
            assert bystander.poll() is None
        finally:
            bystander.kill()


def test_an_attempt_that_was_not_concluded_is_concluded_by_its_markers(shop: StudyProcesses) -> None:
    """A run is not repeated after a power cut that emptied its outcome, and also on another host."""
    shop.write("study.yml", "study: study\ncommand: exit 6 {n}\nparams: {n: [0, 1, 2]}\n")
    assert shop.run("--slots", "0").code == 1
    for run, left in (("n=0", ""), ("n=1", '{"state": "no such"}')):
        (shop.dir(run) / "outcome.1").write_text(left)
    (shop.dir("n=2") / "outcome.1").unlink()
    edit_lease(shop, "n=2", host="elsewhere")
    assert shop.run("--slots", "0").code == 1
    assert [shop.states(f"n={n}") for n in range(3)] == [[State.FAILED]] * 3


def test_a_directory_that_is_removed_during_the_run(shop: StudyProcesses) -> None:
    """The run counts as lost, its processes are ended, and the others go on; the next call makes it again."""
    shop.write("work.sh", 'touch "$ASSAY_RUN_DIR/up"; [ $1 = 1 ] && until [ -e "$ALL" ]; do sleep 0.05; done')
    shop.write("study.yml", "study: study\ncommand: bash work.sh {n} || true\nparams: {n: [1, 2]}\n")
    program = shop.start("--plain", "--slots", "0")
    until((shop.dir("n=1") / "up").exists, "it runs")
    shutil.rmtree(shop.dir("n=1"))
    (shop.base / "all").touch()
    assert program.wait(60) == 1, shop.words(program)
    assert "LOST n=1: its directory was removed" in shop.words(program)
    assert shop.states("n=2") == [State.DONE]
    assert shop.processes() == {}
    assert shop.run("--slots", "0").code == 0
    assert shop.states("n=1") == [State.DONE]


# ---------------------------------------------------------------- by hand


def test_job_sh_by_hand_is_a_new_attempt(shop: StudyProcesses) -> None:
    write_study(shop, "[ $n = 2 ]")
    assert shop.run("--slots", "0").code == 1
    by_hand = subprocess.run(["bash", "job.sh"], cwd=shop.dir(RUN), env=shop.env, stdin=subprocess.DEVNULL, check=False)
    assert by_hand.returncode == 0
    assert shop.run("--slots", "0").code == 0
    assert shop.states(RUN) == [State.FAILED, State.DONE]


def test_job_sh_by_hand_while_the_run_waits_in_a_queue(shop: StudyProcesses) -> None:
    """A supervisor that comes later finds the run running, or done, and does not start it a second time."""
    shop.write(
        "work.sh", 'echo "$1 $ASSAY_ATTEMPT" >> "$LEDGER"; [ $1 = 2 ] || until [ -e "$ALL" ]; do sleep 0.05; done'
    )
    shop.write("study.yml", "study: study\ncommand: bash work.sh {n}\nparams: {n: [1, 2]}\n")
    program = shop.start("--plain", "--slots", "0")
    second = shop.dir("n=2")
    until(lambda: (second / "job.sh").exists() and (shop.base / "ledger").exists(), "one runs, the next is made")
    by_hand = subprocess.run(["bash", "job.sh"], cwd=second, env=shop.env, stdin=subprocess.DEVNULL, check=False)
    assert by_hand.returncode == 0
    (shop.base / "all").touch()
    assert program.wait(60) == 0
    lines = (shop.base / "ledger").read_text().split("\n")
    assert [line.split()[0] for line in lines if line] == ["1", "2"]
    assert shop.states("n=2") == [State.DONE]


def test_by_hand_and_a_supervisor_at_the_same_moment(shop: StudyProcesses) -> None:
    """If neither start has seen the other, job.sh by hand gives way when it finds the supervisor's lease."""
    write_study(shop, "echo $ASSAY_ATTEMPT >> $LEDGER")
    assert shop.run("--slots", "0").code == 0
    streams = {"stdin": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    by_hand = subprocess.Popen(["bash", "job.sh"], cwd=shop.dir(RUN), env=shop.env, text=True, **streams)
    until((shop.dir(RUN) / "token.2").exists, "the hand has its token")
    run_directory.publish_lease(str(shop.dir(RUN)), replace(shop.history(RUN).attempts[0].handle, attempt=2))
    _, words = by_hand.communicate(timeout=60)
    assert (by_hand.returncode, words) == (4, "a supervisor has just started attempt 2\n")
    assert len((shop.base / "ledger").read_text().splitlines()) == 1


# ---------------------------------------------------------------- markers and what is recorded of a run


def test_a_marker_that_contradicts_the_exit_code_fails_the_run(shop: StudyProcesses) -> None:
    write_study(shop, "touch $dir/run.exit.1")
    assert shop.run("--slots", "0").code == 1
    assert shop.states(RUN) == [State.FAILED]
    assert reasons(shop) == ["run: exit markers contradict each other in attempt 1"]


def test_the_peak_of_a_small_run_is_not_that_of_the_supervisor(shop: StudyProcesses) -> None:
    """exec keeps the peak of the replaced image, here the supervisor's: a smaller peak is unknown."""
    write_study(shop, "true")
    assert shop.run("--slots", "0").code == 0
    outcome = shop.history(RUN).attempts[0].outcome
    assert outcome is not None
    assert (outcome.peak_rss_bytes, outcome.cpu_s is not None) == (None, True)


# ---------------------------------------------------------------- what runs leave running

# the process loses the run's tag when it becomes `sleep`: before that, it is one of the run's processes
OUTLIVES = (
    "env -i setsid sleep 1000 & echo $! > $dir/stray; "
    "until [[ $(tr '\\0' ' ' < /proc/$!/cmdline) = sleep* ]]; do sleep 0.03; done"
)


def stray_of(shop: StudyProcesses, run: str = RUN) -> int:
    return int((shop.dir(run) / "stray").read_text())


def is_running(pid: int) -> bool:
    return processes.process_start(pid) is not None


@pytest.mark.parametrize(("script", "state"), [(OUTLIVES, State.DONE), (f"{OUTLIVES}; exit 3", State.FAILED)])
def test_what_a_finished_run_leaves_running_is_ended_and_named(shop: StudyProcesses, script: str, state: State) -> None:
    write_study(shop, script)
    ended = shop.run("--slots", "0", "--quiet")
    assert shop.states(RUN) == [state]
    assert not is_running(stray_of(shop))
    said = rf"left 1 process running, which Assay ended: sleep 1000 \(pid {stray_of(shop)}\)"
    for text in (reasons(shop)[0], ended.err, shop.call("show", str(shop.dir(RUN))).out):
        assert re.search(said, text), text


def test_leave_running_permits_it_and_frees_the_slot(shop: StudyProcesses) -> None:
    write_study(shop, OUTLIVES, "leave_running: true\nparams: {n: [1, 2]}\n")
    assert shop.run("--slots", "0").code == 0
    strays = [stray_of(shop, name) for name in ("n=1", "n=2")]
    try:
        assert all(map(is_running, strays))
        assert "as leave_running permits: sleep 1000" in shop.history("n=1").attempts[0].outcome.reason
    finally:
        for pid in strays:
            os.kill(pid, signal.SIGKILL)


def test_a_stray_process_blocks_no_slot(shop: StudyProcesses) -> None:
    """A stray process blocks a slot neither for the next run nor for another study under another root."""
    write_study(shop, f"{OUTLIVES.replace('1000', '1000 > /dev/null 2>&1')}", "params: {n: [1, 2]}\n")
    try:
        assert shop.run("--slots", "0").code == 0
        shop.write("next.yml", "study: next\ncommand: 'true'\n")
        assert shop.call("run", "next.yml", "--root", str(shop.base / "other"), "--slots", "0", "--quiet").code == 0
        assert all(is_running(stray_of(shop, name)) for name in ("n=1", "n=2"))
    finally:
        for name in ("n=1", "n=2"):
            os.kill(stray_of(shop, name), signal.SIGKILL)


def test_waiting_for_a_slot_reports_who_holds_it_although_quiet(shop: StudyProcesses) -> None:
    write_study(shop, 'touch "$dir/up"; until [ -e "$dir/go" ]; do sleep 0.05; done')
    first = shop.start("--plain", "--slots", "0")
    until((shop.dir(RUN) / "up").exists, "it runs")
    shop.write("next.yml", "study: next\ncommand: 'true'\n")
    arguments = ("--root", str(shop.base / "other"), "--slots", "0", "--quiet")
    second = shop.start(*arguments, file="next.yml")
    holder = f"held by run {RUN} in {shop.root}/study (pid {load_json(shop.dir(RUN) / 'lease.1')['pid']})"
    until(lambda: f"warning: waiting for a slot: {holder} for " in shop.words(second), "the holder is named")
    (shop.dir(RUN) / "go").touch()
    assert (first.wait(60), second.wait(60)) == (0, 0)


# ---------------------------------------------------------------- the loop by itself


class Silent:
    """An observer that only counts."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def started(self, entry: Entry) -> None:
        self.calls.append(f"started {entry.spec.name}")

    def tick(self, running: object, now: float) -> None:
        pass

    def usage(self, _entry: Entry) -> Usage | None:
        return None

    def ended(self, entry: Entry) -> None:
        self.calls.append(f"ended {entry.spec.name}")

    def flush(self) -> None:
        self.calls.append("flush")


def build_entry(root: Path, name: str, text: str, priority: int = 0, retries: int = 0) -> Entry:
    spec = RunSpec(name, name, {}, (Command("run", text),), priority=priority, retries=retries)
    return Entry(spec, str(root / "study" / name), RetryPolicy(retries=retries))


def create(entry: Entry) -> bool:
    record = run_directory.RunRecord(entry.spec, "study", run_directory.new_uid(), 0.0)
    job = render_job(entry.spec, JobText(record.uid, "study", layout.CODE_DIR))
    entry.record = record
    fill = lambda aside: os.mkdir(os.path.join(aside, layout.CODE_DIR))  # noqa: E731
    return run_directory.write_run_dir(entry.dir, record, job, fill)


def supervise(entries: list[Entry], pool: SlotPool | None = None, **settings: object) -> tuple[Supervisor, Silent]:
    silent = Silent()
    executor = LocalExecutor()
    made = LoopSettings(**{"create": create, "limit": 1, "tick_s": 0.02, **settings})  # type: ignore[arg-type]
    supervisor = Supervisor(entries, executor, pool, silent, made)
    supervisor.run()
    executor.close()
    return supervisor, silent


def test_runs_start_by_priority_and_then_in_order(tmp_path: Path) -> None:
    entries = [build_entry(tmp_path, f"p{p}-{i}", "true", priority=p) for i, p in enumerate([0, 5, -1, 5, 0])]
    _, silent = supervise(entries)
    started = [call.partition(" ")[2] for call in silent.calls if call.startswith("started")]
    assert started == ["p5-1", "p5-3", "p0-0", "p0-4", "p-1-2"]


def test_a_stop_between_the_lease_and_the_gate_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish = run_directory.publish_lease

    def publish_and_stop(run_dir: str, handle: JobHandle) -> bool:
        is_ours = publish(run_dir, handle)
        run_directory.write_stop(run_dir, 1, Stop("a test", "by hand"))
        return is_ours

    monkeypatch.setattr(run_directory, "publish_lease", publish_and_stop)
    entry = build_entry(tmp_path, "a", 'touch "$ASSAY_RUN_DIR/up"')
    _, silent = supervise([entry])
    assert entry.state is State.STOPPED
    assert "started a" not in silent.calls
    assert not (tmp_path / "study/a/up").exists()


def test_events_come_in_order(tmp_path: Path) -> None:
    spec = RunSpec("x", "x", {}, (Command("train", "true"), Command("test", "exit 2")))
    told: list[str] = []

    def listen(event: Event) -> None:
        told.append(f"{event.kind} {event.command} {event.code}".strip())

    supervise([Entry(spec, str(tmp_path / "study/x"), RetryPolicy())], listen=listen)
    expected = ["started  0", "command_started train 0", "command_ended train 0", "command_started test 0"]
    assert told == [*expected, "command_ended test 2", "ended  0"]


def touch_after(run: str, path: Path, ended: list[str]) -> Callable[[Event], None]:
    """A listener that collects the names of runs that end, and makes a file when this one has ended."""

    def listen(event: Event) -> None:
        if event.kind == "ended":
            ended.append(event.entry.spec.name)
            if event.entry.spec.name == run:
                path.touch()

    return listen


def test_other_runs_start_while_a_rule_ends_some(tmp_path: Path) -> None:
    """Two runs that do not end on request are ended together, while the other slot goes on with the rest."""
    go = tmp_path / "go"
    stubborn = f'trap "" TERM; touch "$ASSAY_RUN_DIR/up"; until [ -e "{go}" ]; do sleep 0.05; done'
    entries = [build_entry(tmp_path, name, stubborn, priority=1) for name in ("a", "b")]
    entries += [build_entry(tmp_path, f"q{number}", "true") for number in range(3)]
    ended: list[str] = []

    def prune(going: Sequence[Entry]) -> dict[str, Ending]:
        up = {entry.dir: Ending("bounds: loss nan at step 12") for entry in going if os.path.exists(f"{entry.dir}/up")}
        return up if len(up) == 2 else {}

    supervise(entries, limit=3, grace_s=30.0, prune=prune, listen=touch_after("q2", go, ended))
    assert ended[:3] == ["q0", "q1", "q2"]
    assert sorted(ended[3:]) == ["a", "b"]
    assert [entry.state for entry in entries] == [State.PRUNED] * 2 + [State.DONE] * 3
    assert [entry.outcome.reason for entry in entries[:2] if entry.outcome] == ["bounds: loss nan at step 12"] * 2


def test_other_runs_start_while_what_a_finished_run_left_is_ended(tmp_path: Path) -> None:
    """A left process is ended while the others go on, and this time is not added to the run's."""
    go = tmp_path / "go"
    stubborn = f"""(trap '' TERM; until [ -e "{go}" ]; do sleep 0.05; done) & sleep 0.3"""
    entries = [build_entry(tmp_path, "a", stubborn, priority=1)]
    entries += [build_entry(tmp_path, f"q{number}", "sleep 0.3") for number in range(3)]
    ended: list[str] = []
    supervise(entries, limit=2, grace_s=30.0, listen=touch_after("q2", go, ended))
    assert ended == ["q0", "q1", "q2", "a"]
    outcome = entries[0].outcome
    assert outcome is not None
    assert outcome.state is State.DONE
    assert "which Assay ended" in outcome.reason
    assert outcome.ended_at is not None
    assert outcome.ended_at <= max(each.outcome.ended_at or 0.0 for each in entries[1:] if each.outcome)


def test_a_run_that_finishes_before_it_can_be_ended_is_done(tmp_path: Path) -> None:
    entry = build_entry(tmp_path, "a", "sleep 0.2")
    marker = os.path.join(entry.dir, layout.exit_marker_name("run", 1, 0))

    def prune(going: Sequence[Entry]) -> dict[str, Ending]:
        """Decide when the command has ended, and before the end of job.sh has been seen."""
        for _ in going:
            until(lambda: os.path.exists(marker), "its command has ended")
        return {each.dir: Ending("too bad") for each in going}

    supervise([entry], prune=prune)
    assert entry.state is State.DONE


def test_a_directory_that_cannot_be_made_is_a_problem_and_not_a_crash(tmp_path: Path) -> None:
    entries = [build_entry(tmp_path, name, "true") for name in ("a", "b", "c")]

    def refuse(entry: Entry) -> bool:
        if entry.spec.name != "a":
            raise OSError(28, "No space left on device")
        return create(entry)

    supervisor, _ = supervise(entries, create=refuse)
    assert isinstance(supervisor.problem, InfrastructureError)
    assert "No space left on device" in supervisor.problem.message
    assert [entry.state for entry in entries] == [State.DONE, State.QUEUED, State.QUEUED]


def test_an_outcome_that_cannot_be_written_is_concluded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = build_entry(tmp_path, "a", "exit 3")

    def refuse(_run_dir: str, _outcome: Outcome) -> bool:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(run_directory, "write_outcome", refuse)
    supervisor, silent = supervise([entry])
    assert supervisor.problem is not None
    assert silent.calls.count("ended a") == 1
    assert entry.state is State.FAILED
    monkeypatch.undo()
    again, _ = supervise([replace(entry, finished_here=False)])
    assert (again.problem, again.entries[0].state) == (None, State.FAILED)


def test_markers_written_while_the_files_were_read_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that ends after its files were read and before its process is looked up is not dead: it is done."""
    entry = build_entry(tmp_path, "a", "true")
    supervise([entry])
    os.unlink(os.path.join(entry.dir, "outcome.1"))
    marker = os.path.join(entry.dir, "run.exit.0")
    os.unlink(marker)
    load = run_directory.load_history

    def load_and_end(run_dir: str, names: list[str] | None = None) -> run_directory.History:
        history = load(run_dir, names)
        with open(marker, "w"):
            pass
        return history

    monkeypatch.setattr(run_directory, "load_history", load_and_end)
    late = Entry(entry.spec, entry.dir, RetryPolicy())
    supervise([late])
    assert (late.state, late.attempt) == (State.DONE, 1)


def test_a_lease_that_is_lost_to_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the last look and the claim another supervisor ran the job to its end."""
    entry = build_entry(tmp_path, "a", "echo x >> ran")
    publish = run_directory.publish_lease

    def be_slow(run_dir: str, handle: object) -> bool:
        monkeypatch.setattr(run_directory, "publish_lease", publish)
        supervise([Entry(entry.spec, entry.dir, RetryPolicy(), is_here=True)])
        return publish(run_dir, handle)  # type: ignore[arg-type]

    monkeypatch.setattr(run_directory, "publish_lease", be_slow)
    _, silent = supervise([entry])
    assert Path(entry.dir, "code/ran").read_text() == "x\n"
    assert (entry.state, silent.calls) == (State.DONE, ["flush"])


def test_waiting_counts_towards_the_time_limit(tmp_path: Path) -> None:
    (tmp_path / "slots").mkdir()
    one, other = (SlotPool(build_entries(["0"]), str(tmp_path / "slots")) for _ in range(2))
    held = one.acquire()
    assert held is not None
    entry = build_entry(tmp_path, "x", "true")
    entry.spec = replace(entry.spec, timeout_s=0.1)
    supervisor, _ = supervise([entry], other, limit=None, counts_wait=True)
    assert supervisor.problem is not None
    assert "no slot came free within the time limit of 0.1 s" in supervisor.problem.message
    assert (entry.state, entry.is_here) == (State.QUEUED, False)
    held.let_go()
    for each in (one, other):
        each.close()


def test_a_run_starts_when_the_benchmark_has_ended_and_what_runs_is_not_paused(tmp_path: Path) -> None:
    (tmp_path / "slots").mkdir()
    benchmark, lease = (MachineLease(use, str(tmp_path / "slots")) for use in ("benchmark", "run"))
    first, second = build_entry(tmp_path, "a", "sleep 0.3"), build_entry(tmp_path, "b", "true")
    waits: list[float] = []

    def draw(supervisor: Supervisor) -> None:
        if first.state is State.QUEUED:
            return
        waits.append(supervisor.leased_s)
        if first.state is State.RUNNING and not waits[-1]:
            assert benchmark.try_enter()
        elif first.state is State.DONE and waits[-1]:
            assert (second.state, supervisor.problem) == (State.QUEUED, None)
            benchmark.close()

    supervise([first, second], lease=lease, max_wait_s=60, draw=draw)
    assert (first.state, second.state) == (State.DONE, State.DONE)
    assert max(waits) > 0


def test_the_time_waited_is_taken_off_the_limit(tmp_path: Path) -> None:
    spec = RunSpec("x", "x", {}, (Command("run", "sleep 1000"),), timeout_s=3600)
    (tmp_path / "job.sh").write_text(render_job(spec, JobText("uid", "study", ".")))
    env = {**os.environ, "ASSAY_WAITED": "3599"}
    ended = subprocess.run(["bash", tmp_path / "job.sh"], env=env, timeout=60, capture_output=True, check=False)
    assert ended.returncode == 124
    assert (tmp_path / "run.timeout").exists()
