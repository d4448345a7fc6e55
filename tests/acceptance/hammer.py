"""Kills supervisors, job.sh's and commands of a study at random instants, and judges what is left.

The commands keep a ledger of their own in the run directory: a line when they begin, one when they end. While they live
they hold one of as many locks as there are slots, which they take one at a time: a command that finds none has proved
that more jobs run than there are slots. They also hold a lock of their run: a command that does not get it runs beside another
attempt of the same run. No look at the right moment is needed for either.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.conftest import process_environment
from tests.fork_server import ForkedProcess
from tests.study_processes import PATIENCE_S, StudyProcesses, until

from assay.follow.attempts import DEATH, MAX_DEATHS
from assay.record import run_directory
from assay.values.run import State

KILLED = 128 + signal.SIGKILL
SUPERVISORS = 2
RETRIES = 1  # a command that fails is tried once more, and fails again

# A `flock` that is killed itself (a code above 1) is called again. The shell that takes a lock keeps it, and so does its
# `sleep`. Markers are on descriptor 9, below those of the slots: the kernel closes in order, so a marker never outlives
# its slot.
WORK = r"""
name=$1 n=$2 took_s=$3 result=$4
note() { echo "$1 $name $ASSAY_ATTEMPT_NUMBER $ASSAY_ATTEMPT $$ $2" >> "$ASSAY_RUN_DIR/ledger"; }
points() {  # in the log, and as `assay.log` writes them; each value names its attempt
  [ "$name" = train ] || return 0
  mkdir -p "$ASSAY_RUN_DIR/metrics"
  for ((k = $1; k < $1 + 10; k++)); do
    echo "step $k loss $ASSAY_ATTEMPT_NUMBER.$k"
    echo "{\"step\":$k,\"own\":$ASSAY_ATTEMPT_NUMBER.$k}"  >> "$ASSAY_RUN_DIR/metrics/a$ASSAY_ATTEMPT_NUMBER-r0-x-$$-1.jsonl"
  done
}
take() { while flock -n "$1"; code=$?; [ $code -gt 1 ]; do :; done; return $code; }
exec 8>> "$MARKERS/mutex"; until flock 8; do :; done
for ((i = 0; i < SLOTS; i++)); do
  exec 9>> "$MARKERS/$i"
  if take 9; then break; fi
done
[ $i -lt $SLOTS ] || echo "more jobs than slots: $ASSAY_RUN_DIR $ASSAY_ATTEMPT" >> "$MARKERS/problems"
exec 8>&- 7>> "$ASSAY_RUN_DIR/alone"
take 7 || echo "two attempts at once: $ASSAY_RUN_DIR $ASSAY_ATTEMPT" >> "$MARKERS/problems"
note start 0
points 0
sleep "$took_s"
points 10
note end "$result"
exit "$result"
"""


Planned = dict[str, int]  # what a run will do: its commands with their exit codes, in order


@dataclass(frozen=True)
class Line:
    kind: str
    command: str
    attempt: int
    tag: str
    pid: int
    code: int

    def is_end_of(self, command: str, attempt: int) -> bool:
        return (self.command, self.attempt, self.kind) == (command, attempt, "end")


@dataclass
class Hammer:
    shop: StudyProcesses
    seed: int
    runs: int = 100
    slots: int = 4
    durations_s: tuple[float, ...] = (0.005, 0.02, 0.05, 0.2, 0.2, 0.6, 1.2)  # from half a second on it is followed
    kills: Counter[str] = field(default_factory=Counter)
    killed_jobs: set[str] = field(default_factory=set)  # tags whose job.sh we killed
    killed_commands: set[str] = field(default_factory=set)  # tags of which we killed some other process

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.supervisors: list[ForkedProcess] = []
        self.reader: ForkedProcess | None = None
        self.frozen: dict[int, float] = {}  # pid -> when it may go on
        self.markers = self.shop.base / "markers"
        self.shop.env |= {"MARKERS": str(self.markers), "SLOTS": str(self.slots)}

    # ------------------------------------------------------------ the study

    def write_study(self, number: int) -> None:
        """Short runs, so that much of a supervisor's time is spent where a kill could do harm."""
        self.markers.mkdir(exist_ok=True)
        self.shop.write("work.sh", WORK)
        self.name = f"study{number}"
        self.file = f"{self.name}.yml"
        self.plans = [self._plan() for _ in range(self.runs)]
        text = (
            f"study: {self.name}\n"
            "commands:\n"
            "  train: bash work.sh train {n} {took} {code}\n"
            "  test: if [ {second} != none ]; then bash work.sh test {n} 0.005 {second}; fi\n"
            "params:\n"
            f"  n: {list(range(self.runs))}\n"
            f"  took: {[self.random.choice(self.durations_s) for _ in range(self.runs)]}\n"
            f"  code: {[plan['train'] for plan in self.plans]}\n"
            f"  second: {[plan.get('test', 'none') for plan in self.plans]}\n"
            "zip: [[n, took, code, second]]\n"
            f"retries: {RETRIES}\n"
            "metrics: {step: 'step (\\d+)', loss: 'loss ({number})'}\n"
        )
        self.shop.write(self.file, text)

    def _plan(self) -> Planned:
        code = self.random.choice([0, 0, 0, 0, 3, 77])
        if code == 0 and self.random.random() < 0.3:
            return {"train": 0, "test": self.random.choice([0, 0, 5])}
        return {"train": code}

    # ------------------------------------------------------------ killing

    def sweep(self, kills: int) -> int:
        """Keep two supervisors at work and hit until the study is over or enough was killed; how often we hit."""
        before = self.kills.total()
        try:
            while self.kills.total() - before < kills:
                self._keep_supervisors()
                if not self.supervisors:
                    break
                time.sleep(self.random.choice([0.0, 0.01, 0.05, 0.2]) * self.random.random() * 2)
                self._thaw()
                self._hit()
        finally:
            self._thaw(everything=True)
        return self.kills.total() - before

    def _keep_supervisors(self) -> None:
        """Those that died are started again; one that came to its end has seen all runs end."""
        alive = []
        for supervisor in self.supervisors:
            code = supervisor.poll()
            if code is None:
                alive.append(supervisor)
            elif code != -signal.SIGKILL:
                assert code in (0, 1), self.shop.words(supervisor)
                self.finished = True
        self.supervisors = alive
        while len(self.supervisors) < SUPERVISORS and not self.finished:
            self.supervisors.append(self._start())

    finished = False

    def _start(self) -> ForkedProcess:
        return self.shop.start("--plain", "--slots", f"cpu:{self.slots}", file=self.file)

    def _hit(self) -> None:
        kind = self.random.choices(["supervisor", "job", "command", "freeze", "reader"], [8, 8, 8, 4, 1])[0]
        if kind == "supervisor":
            self._kill_supervisor()
        elif kind == "reader":
            self._replace_reader()
        elif kind == "freeze":
            self._freeze()
        else:
            self._kill_job(kind)

    def _kill_supervisor(self) -> None:
        at_work = [each for each in self.supervisors if self._is_at_work(each.pid)]
        if not at_work and self.random.random() < 0.8:
            return  # a fifth of them dies while it starts; the others are to do something first
        victim = self.random.choice(at_work or self.supervisors)
        self.frozen.pop(victim.pid, None)
        victim.kill()
        victim.wait()
        self.kills["supervisor"] += 1

    def _replace_reader(self) -> None:
        """A table brings the index up to date as well: the one before is killed where it has not ended."""
        if self.reader is not None and self.reader.poll() is None:
            self.reader.kill()
            self.kills["reader"] += 1
        if any(self.shop.root.glob(f"{self.name}/*/run.json")):  # before that there is no study of this name
            self.reader = self.shop.start_other("ls", self.name)

    def _is_at_work(self, pid: int) -> bool:
        """It holds the study's lock, so it is past reading files."""
        with contextlib.suppress(OSError):
            return any(
                "supervisors.lock" in os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")
            )
        return False

    def _freeze(self) -> None:
        victim = self.random.choice(self.supervisors)
        with contextlib.suppress(ProcessLookupError):
            victim.send_signal(signal.SIGSTOP)
            self.frozen[victim.pid] = time.monotonic() + self.random.uniform(0.05, 0.6)

    def _thaw(self, everything: bool = False) -> None:
        for pid, when in list(self.frozen.items()):
            if everything or time.monotonic() >= when:
                del self.frozen[pid]
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def _kill_job(self, kind: str) -> None:
        victims = self._find_victims(kind)
        if not victims:
            return
        pid, environ = self.random.choice(victims)
        variable = next(item for item in environ.split(b"\0") if item.startswith(b"ASSAY_ATTEMPT="))
        tag = variable.decode().partition("=")[2]
        (self.killed_jobs if kind == "job" else self.killed_commands).add(tag)  # before: it may be over in an instant
        with contextlib.suppress(ProcessLookupError):
            if process_environment(pid) == environ:
                os.kill(pid, signal.SIGKILL)
                self.kills[kind] += 1

    def _find_victims(self, kind: str) -> list[tuple[int, bytes]]:
        """On a busy machine the supervisors take a while to start any."""
        for _ in range(50):
            processes = self.shop.processes().items()
            if found := [(pid, environ) for pid, environ in processes if _is_leader(pid) == (kind == "job")]:
                return found
            time.sleep(0.02)
        return []

    # ------------------------------------------------------------ judging

    def finish(self) -> None:
        """Two supervisors come to their end by themselves; another call finds nothing left to do."""
        if self.supervisors:
            self._keep_supervisors()
        if self.reader is not None:
            assert self.reader.wait(PATIENCE_S) in (0, -signal.SIGKILL), self.shop.words(self.reader)
        for supervisor in self.supervisors:
            assert supervisor.wait(PATIENCE_S * 2) in (0, 1), self.shop.words(supervisor)
        self.supervisors = []
        ended = self.shop.run("--plain", "--slots", f"cpu:{self.slots}", file=self.file)
        assert ended.code in (0, 1), ended.err
        self.finished = False

    def judge(self) -> list[str]:
        """Everything that is not as it must be."""
        until(lambda: not self.shop.processes(), "no process with a tag is left", 10.0)
        problems = _lines(self.markers / "problems")
        found = self.shop.run_dirs(self.name)
        if len(found) != self.runs:
            problems.append(f"{len(found)} of {self.runs} run directories")
        for name, path in found.items():
            problems += [f"{self.name}/{name}: {problem}" for problem in self._judge_run(path)]
        problems += self._judge_index()
        meta = self.shop.root / self.name / ".assay"
        problems += [f"{path.name} counts as a run" for path in meta.parent.iterdir() if ".tmp" in path.name]
        return problems

    def _judge_index(self) -> list[str]:
        """What several supervisors wrote is what the directories hold."""
        before, points = {row["name"]: row for row in self._list()}, self._load_points()
        assert self.shop.call("index", "rebuild", "--root", str(self.shop.root)).code == 0
        after, rebuilt = {row["name"]: row for row in self._list()}, self._load_points()
        problems = [] if list(before) == list(after) else ["the index lists the runs in another order after a rebuild"]
        if {metric for _, metric in rebuilt} != {"loss", "own"}:
            problems.append("there are no points to compare")
        for place in sorted(points.keys() | rebuilt.keys()):
            found, expected = points.get(place, []), rebuilt.get(place, [])
            if found != expected:
                problems.append(f"{place}: {len(found)} points {found}, rebuilt {len(expected)} {expected}")
        for name in before.keys() & after.keys():
            keys = [key for key in after[name] if before[name][key] != after[name][key]]
            problems += [f"{name}: {key} is {before[name][key]}, rebuilt {after[name][key]}" for key in keys]
        return problems

    def _list(self) -> list[dict[str, Any]]:
        return json.loads(self.shop.call("ls", self.name, "--root", str(self.shop.root), "--json").out)

    def _load_points(self) -> dict[tuple[str, str], list[tuple[float, float]]]:
        """Run and metric -> step and value of every point, in the order stored."""
        root = str(self.shop.root)
        ended = self.shop.call("export", "json", self.name, "--series", "--root", root)
        assert ended.code == 0, ended.err
        found: dict[tuple[str, str], list[tuple[float, float]]] = {}
        for row in json.loads(ended.out):
            found.setdefault((row["run"], row["metric"]), []).append((row["step"], row["value"]))
        return found

    def _judge_run(self, path: Path) -> list[str]:
        record = run_directory.load_record(str(path))
        plan = self.plans[int(record.spec.params["n"])]
        history = run_directory.load_history(str(path))
        ledger = load_ledger(path)
        problems = judge_ledger(ledger, record.uid)
        for attempt in history.attempts:
            problems += [
                f"attempt {attempt.number}: {text}" for text in self._judge_codes(attempt, plan, ledger, record)
            ]
        last = history.last
        if last is None or last.outcome is None:
            return [*problems, "is not over"]
        problems += [f"attempt {line.attempt} ran after the end" for line in ledger if line.attempt > last.number]
        return problems + judge_attempts(history) + judge_repeats(history, ledger)

    def _judge_codes(
        self, attempt: run_directory.Attempt, plan: Planned, ledger: list[Line], record: run_directory.RunRecord
    ) -> list[str]:
        """Every code is the true one, or that of a kill of ours; nothing ran after a failure."""
        problems = []
        if attempt.outcome is not None and dict(attempt.outcome.codes) != dict(attempt.codes):
            problems.append(f"the outcome says {attempt.outcome.codes}, the markers say {attempt.codes}")
        for command, recorded in attempt.codes.items():
            whole = [line.code for line in ledger if line.is_end_of(command, attempt.number)]
            expected = plan.get(command, 0)
            is_true = recorded == expected and whole == ([expected] if command in plan else [])
            was_killed = recorded == KILLED and f"{record.uid}.{attempt.number}" in self.killed_commands
            if not is_true and not was_killed:
                problems.append(f"{command} would end with {expected}, recorded {recorded}, the ledger has {whole}")
        if attempt.codes.get("train") and "test" in attempt.codes:
            problems.append("test ran although train had failed")
        return problems


def judge_attempts(history: run_directory.History) -> list[str]:
    """Another attempt follows a death or a failure that may be retried, and nothing else."""
    problems = []
    states = [attempt.outcome.state if attempt.outcome else None for attempt in history.attempts]
    reasons = [attempt.outcome.reason if attempt.outcome else "" for attempt in history.attempts]
    for number, (state, reason) in enumerate(zip(states[:-1], reasons, strict=False), 1):
        if state is not State.FAILED and (state, reason) != (State.LOST, DEATH):
            problems.append(f"attempt {number} was followed by another, it is {state} ({reason})")
    failures = states.count(State.FAILED)
    if states[-1] is State.LOST and states[-MAX_DEATHS:] != [State.LOST] * MAX_DEATHS:
        problems.append(f"given up after {states}")
    if failures != 1 + RETRIES if states[-1] is State.FAILED else failures > RETRIES:
        problems.append(f"{failures} failures, then {states[-1]}")
    finished = history.finished_commands()
    if (states[-1] is State.DONE) != (finished == {"train", "test"}):
        problems.append(f"is {states[-1]}, finished are {finished}")
    return problems


def judge_repeats(history: run_directory.History, ledger: list[Line]) -> list[str]:
    """A command that an attempt finished is not executed again."""
    problems = []
    for command in ("train", "test"):
        good = [attempt.number for attempt in history.attempts if attempt.codes.get(command) == 0]
        again = [line.attempt for line in ledger if good and line.command == command and line.attempt > good[0]]
        if len(good) > 1 or again:
            problems.append(f"{command} was finished in attempts {good} and executed again in {again}")
    return problems


def _is_leader(pid: int) -> bool:
    try:
        return os.getsid(pid) == pid
    except ProcessLookupError:
        return False


def load_ledger(path: Path) -> list[Line]:
    parsed = []
    for text in _lines(path / "ledger"):
        kind, command, attempt, tag, pid, code = text.split()
        parsed.append(Line(kind, command, int(attempt), tag, int(pid), int(code)))
    return parsed


def judge_ledger(ledger: list[Line], uid: str) -> list[str]:
    """No attempt was ever executed twice."""
    problems = [
        f"a line with the tag {line.tag} in attempt {line.attempt}"
        for line in ledger
        if line.tag != f"{uid}.{line.attempt}"
    ]
    counts = Counter((line.kind, line.command, line.attempt) for line in ledger)
    return problems + [
        f"{command} of attempt {n} has {count} lines of {kind}"
        for (kind, command, n), count in counts.items()
        if count > 1
    ]


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except FileNotFoundError:
        return []
