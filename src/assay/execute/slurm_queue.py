"""What Slurm says of our jobs: its commands, and one poller for all jobs of a supervisor.

A call runs beside the supervisor, which is never held up by a controller that does not answer. A call that fails says
nothing: no job is taken for gone because of it. Jobs that `squeue` has forgotten are looked for by `sacct`, where there
is accounting.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Sequence
from typing import IO

from assay.errors import InfrastructureError, UsageError
from assay.system.fast_dataclasses import dataclass

PROGRAMS = ("sbatch", "squeue", "scancel", "scontrol")
VANISHED = "VANISHED"  # Slurm does not know the job any more
_ACTIVE = {
    *("PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "STOPPED", "COMPLETING", "RESIZING", "SIGNALING", "STAGE_OUT"),
    *("REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"),
}
_FIRST_POLLS, _FIRST_PAUSE_S = 3, 0.5
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 15.0
_CALL_S = 60.0  # a controller under load answers late
_ASK_S = 15.0  # where somebody waits for the answer
_ABSENT_POLLS = 2  # a job counts as vanished when it was absent from so many answers in a row


def is_active(state: str) -> bool:
    return state in _ACTIVE


def call(argv: Sequence[str], timeout_s: float = _ASK_S) -> subprocess.CompletedProcess[str]:
    """One command of Slurm; what cannot be started or does not answer ends with a code and its reason, too."""
    try:
        return subprocess.run(
            argv,
            check=False,
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(argv, 124, "", f"no answer within {timeout_s:g} s")
    except OSError as error:
        return subprocess.CompletedProcess(argv, 127, "", str(error.strerror))


def last_words(text: str) -> str:
    """What a command of Slurm complained about, without its own name in front of each line."""
    lines = [re.sub(r"^(?:\w+: )?(?:error: )?", "", line.strip()) for line in text.strip().splitlines()]
    return "; ".join(dict.fromkeys(filter(None, lines[-3:]))) or "it printed nothing"


@dataclass(frozen=True, slots=True)
class SlurmLimits:
    """What the site allows and has."""

    array_size: int  # tasks of one array
    has_accounting: bool


def load_limits() -> SlurmLimits:
    """Raises UsageError where Slurm is not installed here, InfrastructureError where it does not answer."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        raise UsageError(
            f"Slurm is not installed here: {', '.join(missing)} not found on the PATH",
            "install its commands (Debian: apt install slurm-client), or run here: --on local",
        )
    answer = call(("scontrol", "show", "config"))
    if answer.returncode != 0:
        where = os.environ.get("SLURM_CONF")
        raise InfrastructureError(
            f"Slurm does not answer: {last_words(answer.stderr)}",
            "tried `scontrol show config`"
            + (f" with SLURM_CONF={where}" if where else "; SLURM_CONF may name the cluster's slurm.conf")
            + "; or run here: --on local",
        )
    values = dict(re.findall(r"^(\w+)\s*=\s*(\S+)", answer.stdout, re.MULTILINE))
    size = values.get("MaxArraySize", "")
    has_accounting = values.get("AccountingStorageType", "").endswith("slurmdbd")
    return SlurmLimits(max(1, int(size) - 1) if size.isdigit() else 1000, has_accounting)


class SlurmQueue:
    """The states of tasks (`123_4`, `123`) as of the newest answer; after the first few, asks once a second at most."""

    def __init__(self) -> None:
        self.accounts = False  # whether `sacct` may know more
        self._jobs: set[str] = set()  # array ids
        self._states: dict[str, str] = {}
        self._absent: dict[str, int] = {}
        self._answers = 0
        self._followed: dict[str, int] = {}  # array id -> the answer from which on it counts
        self._call: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._began = 0.0
        self._pause_s = _FIRST_PAUSE_S
        self._polls = 0

    def follow(self, job: str) -> None:
        if job not in self._jobs:
            self._jobs.add(job)
            self._followed[job] = self._answers + (2 if self._call is not None else 1)

    def hurry(self) -> None:
        """Something changes now: ask again soon."""
        self._pause_s = _SHORTEST_PAUSE_S

    def state(self, task: str) -> str | None:
        """None: not known yet."""
        if task in self._states:
            return self._states[task]
        return VANISHED if self._absent.get(task, 0) >= _ABSENT_POLLS else None

    def look(self, waiting: Iterable[str]) -> None:
        """Take an answer that has come, and ask again when it is time. `waiting`: tasks that matter."""
        if self._call is not None:
            self._take_answer(waiting)
        elif self._jobs and time.monotonic() - self._began >= self._pause_s:
            self._ask()

    def _ask(self) -> None:
        jobs = ",".join(sorted(self._jobs))
        argv = ("squeue", "--noheader", "--array", "--states=all", f"--jobs={jobs}", "--format=%F_%K|%T")
        self._output, self._errors = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 closed by _forget
        self._began = time.monotonic()
        self._polls += 1
        try:
            self._call = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=self._output, stderr=self._errors)
        except OSError:
            self._forget()
        slower = _FIRST_PAUSE_S if self._polls < _FIRST_POLLS else max(_SHORTEST_PAUSE_S, self._pause_s * 1.5)
        self._pause_s = min(slower, _LONGEST_PAUSE_S)

    def _take_answer(self, waiting: Iterable[str]) -> None:
        assert self._call is not None
        assert self._output is not None
        assert self._errors is not None
        code = self._call.poll()
        if code is None:
            if time.monotonic() - self._began > _CALL_S:
                self._call.kill()
                self._call.wait()
                self._forget()
            return
        self._output.seek(0)
        self._errors.seek(0)
        text, said = self._output.read().decode(errors="replace"), self._errors.read().decode(errors="replace")
        self._forget()
        if code != 0 and "Invalid job id" not in said:  # nothing is known now
            return
        self._answers += 1
        states = dict(
            line.strip().replace("_N/A", "").rpartition("|")[::2] for line in text.splitlines() if "|" in line
        )
        if any(self._states.get(task) != state for task, state in states.items()):
            self.hurry()
        self._states = states
        self._note_absent([task for task in waiting if task not in states])

    def _note_absent(self, tasks: Sequence[str]) -> None:
        counted = [task for task in tasks if self._answers >= self._followed.get(task.partition("_")[0], 0)]
        found = self._load_accounted(counted) if self.accounts and counted else {}
        self._states |= found
        self._absent = {task: self._absent.get(task, 0) + 1 for task in counted if task not in found}

    def _load_accounted(self, tasks: Sequence[str]) -> dict[str, str]:
        what = ("--noheader", "--allocations", "--parsable2", "--format=JobID,State")
        answer = call(("sacct", *what, "-j", ",".join(tasks)))
        lines = (line.split("|") for line in answer.stdout.splitlines()) if answer.returncode == 0 else ()
        return {words[0]: words[1].split()[0] for words in lines if len(words) == 2 and words[1]}

    def settle(self, task: str, limit_s: float) -> str | None:
        """The state of a task whose job.sh has left: waited for, since Slurm notices a moment later."""
        deadline = time.monotonic() + limit_s
        self.follow(task.partition("_")[0])
        while (state := self.state(task)) is None or is_active(state):
            if time.monotonic() > deadline:
                return state
            self._pause_s = min(self._pause_s, _SHORTEST_PAUSE_S)
            self.look((task,))
            time.sleep(0.02)
        return state

    def _forget(self) -> None:
        for file in (self._output, self._errors):
            if file is not None:
                file.close()
        self._call = self._output = self._errors = None

    def close(self) -> None:
        if self._call is not None:
            self._call.kill()
            self._call.wait()
        self._forget()


def load_down_nodes() -> set[str] | None:
    """Nodes that do not answer Slurm, by their short names: what runs there is not known. None: Slurm did not say."""
    answer = call(("sinfo", "--noheader", "--Node", "--format=%n|%T"))
    if answer.returncode != 0:
        return None
    lines = (line.split("|") for line in answer.stdout.splitlines() if "|" in line)
    return {name.partition(".")[0] for name, state in lines if "*" in state or state.startswith(("down", "unknown"))}
