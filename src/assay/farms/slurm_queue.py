"""Slurm's commands, the states of jobs, nodes that do not answer, and jobs that Slurm starts again by itself.

One poller requests the states of all jobs of a supervisor. The commands run in a thread, so that a controller that does
not answer delays no supervisor. A command that fails changes no state: no job counts as gone because of a failure. Jobs
that `squeue` no longer lists are looked up with `sacct`, if the site has accounting.

An attempt on a node that does not answer cannot be observed or ended. Such an attempt is given up after `lost_after`,
or as soon as Slurm ended or requeued its job: a `stop.N` of the kind `fence` is written, which the first copy of the
job obeys when its node sees the folder again, and the next attempt starts on another node.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise

from assay.errors import AssayError, InfrastructureError, UsageError
from assay.show.formatting import render_duration
from assay.system.fast_dataclasses import dataclass, field

PROGRAMS = ("sbatch", "squeue", "scancel", "scontrol")
VANISHED = "VANISHED"  # Slurm does not know the job any more
WAITING = {"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
_ACTIVE = {"CONFIGURING", "RUNNING", "SUSPENDED", "STOPPED", "COMPLETING", "RESIZING", "SIGNALING", "STAGE_OUT"}
# why a job waits for its turn; with any other reason the user may have to do something
USUAL = {"None", "Resources", "Priority", "BeginTime", "Cleaning", "JobArrayTaskLimit", "Dependency"}
_FIRST_POLLS, _FIRST_PAUSE_S = 3, 0.5
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 15.0
_FILTERS = ("SQUEUE_", "SINFO_", "SACCT_")  # a user's own filters (SQUEUE_PARTITION …) would hide jobs and nodes
_CALL_S = 60.0  # a controller under load answers late
_ASK_S = 15.0  # limit if the caller waits for the answer
_NODES = ("sinfo", "--noheader", "--Node", "--states=down,no_respond,unk", "--format=%n|%N")  # nodes that do not answer
_ABSENT_POLLS = 2  # a job counts as vanished when it was absent from this many answers in a row
REQUEUED_BY = "Slurm, which started it again"  # in a `stop.N` that a second copy of the attempt's job wrote
_MOST_NAMED = 3
_EXCLUDE = r"(?:--exclude=?|-x=?)(?P<nodes>.*)"


def is_active(state: str) -> bool:
    return state in _ACTIVE or state in WAITING


def call(argv: Sequence[str], timeout_s: float = _ASK_S) -> subprocess.CompletedProcess[str]:
    """Call a command of Slurm; if it cannot be started or does not answer, the result has a code and the reason."""
    try:
        return subprocess.run(
            argv,
            check=False,
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            env={name: value for name, value in os.environ.items() if not name.startswith(_FILTERS)},
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(argv, 124, "", f"no answer within {timeout_s:g} s")
    except OSError as error:
        return subprocess.CompletedProcess(argv, 127, "", str(error.strerror))


def summarize_errors(text: str) -> str:
    """Return the last errors that a command of Slurm printed, without the command's name in front of each line."""
    lines = [re.sub(r"^(?:\w+: )?(?:error: )?", "", line.strip()) for line in text.strip().splitlines()]
    return "; ".join(dict.fromkeys(filter(None, lines[-3:]))) or "it printed nothing"


@dataclass(frozen=True, slots=True)
class SlurmLimits:
    """Limits and features of a site's Slurm."""

    array_size: int  # tasks of one array
    has_accounting: bool


def load_limits() -> SlurmLimits:
    """Load the limits; raise UsageError if Slurm is not installed, InfrastructureError if it does not answer."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        hint = "install its commands (Debian: apt install slurm-client), or run here: --on local"
        raise UsageError(f"Slurm is not installed here: {', '.join(missing)} not found on the PATH", hint)
    where = os.environ.get("SLURM_CONF")
    if where and not os.path.exists(where):  # Slurm's commands would wait for a long time without a message
        raise UsageError(f"SLURM_CONF names {where}, which does not exist", "correct it, or unset SLURM_CONF")
    answer = call(("scontrol", "show", "config"))
    if answer.returncode != 0:
        raise InfrastructureError(
            f"Slurm does not answer: {summarize_errors(answer.stderr)}",
            "tried `scontrol show config`"
            + (f" with SLURM_CONF={where}" if where else "; SLURM_CONF may name the cluster's slurm.conf")
            + "; or run here: --on local",
        )
    values = dict(re.findall(r"^(\w+)\s*=\s*(\S+)", answer.stdout, re.MULTILINE))
    size = values.get("MaxArraySize", "")
    has_accounting = values.get("AccountingStorageType", "").endswith("slurmdbd")
    return SlurmLimits(max(1, int(size) - 1) if size.isdigit() else 1000, has_accounting)


class SlurmQueue:
    """The states of tasks (`123_4`, `123`) in Slurm's newest answer; after the first requests, one a second at most."""

    def __init__(self) -> None:
        self._jobs: set[str] = set()  # array ids
        self._states: dict[str, str] = {}
        self.reasons: dict[str, str] = {}  # task -> why it waits, as Slurm names it
        self.down: dict[str, str] | None = None  # host -> name of each node that does not answer Slurm; None: not known
        self._absent: dict[str, int] = {}
        self._answers = 0
        self._followed: dict[str, int] = {}  # array id -> number of the first answer that counts for it
        self._question: _Question | None = None
        self._began = 0.0
        self._pause_s = _FIRST_PAUSE_S
        self._polls = 0

    @cached_property
    def limits(self) -> SlurmLimits:
        return load_limits()

    def follow(self, job: str) -> None:
        if job not in self._jobs:
            self._jobs.add(job)
            self._followed[job] = self.next_answer()

    def next_answer(self) -> int:
        """Return the number of the first answer to a request that is sent from now on."""
        return self._answers + (2 if self._question is not None else 1)

    def is_over(self, task: str, since: int) -> bool:
        """Return whether a task that has begun no longer runs: it has ended, or waits to be started again. An answer
        before number `since` that reports the task as waiting does not count: the task may have begun afterwards."""
        state = self.state(task)
        if state is None or state in _ACTIVE:
            return False
        return state not in WAITING or self._answers >= since

    def ask_soon(self) -> None:
        """Shorten the pause before the next request: a state is about to change."""
        self._pause_s = _SHORTEST_PAUSE_S

    def state(self, task: str) -> str | None:
        """Return the state of a task; None if the state is not known yet."""
        if task in self._states:
            return self._states[task]
        return VANISHED if self._absent.get(task, 0) >= _ABSENT_POLLS else None

    def poll(self, waiting: Iterable[str]) -> None:
        """Read an answer that has arrived, or send a request if the pause is over. `waiting`: the tasks to look for."""
        if self._question is not None:
            if not self._question.is_alive():
                asked, self._question = self._question, None
                self._read_answer(asked, waiting)
        elif self._jobs and time.monotonic() - self._began >= self._pause_s:
            jobs = ",".join(sorted(self._jobs))
            argv = ("squeue", "--noheader", "--array", "--states=all", f"--jobs={jobs}", "--format=%F_%K|%T|%r")
            self._question = _Question(argv)
            self._question.start()
            self._began = time.monotonic()
            self._polls += 1
            slower = _FIRST_PAUSE_S if self._polls < _FIRST_POLLS else max(_SHORTEST_PAUSE_S, self._pause_s * 1.5)
            self._pause_s = min(slower, _LONGEST_PAUSE_S)

    def _read_answer(self, asked: _Question, waiting: Iterable[str]) -> None:
        is_unknown = asked.jobs.returncode != 0 and "Invalid job id" not in asked.jobs.stderr
        if is_unknown or asked.nodes.returncode != 0:  # whether a node answers decides what the end of its job means
            return
        self._answers += 1
        lines = [line.strip().replace("_N/A", "") for line in asked.jobs.stdout.splitlines() if line.count("|") > 1]
        rows = [line.split("|", 2) for line in lines]
        states = {task: state for task, state, _ in rows}
        self.reasons = {task: reason for task, state, reason in rows if state in WAITING}
        self.down = _parse_nodes(asked.nodes.stdout)
        if any(self._states.get(task) != state for task, state in states.items()):
            self.ask_soon()
        self._states = states
        absent = [task for task in waiting if task not in states]  # a site's own squeue may leave jobs out
        counted = [task for task in absent if self._answers >= self._followed.get(task.partition("_")[0], 0)]
        found = {}
        with contextlib.suppress(AssayError):
            if counted and self.limits.has_accounting:
                found = {task: state.split()[0] for task, state in _load_accounted(counted, "State") if state}
        self._absent = {task: self._absent.get(task, 0) + 1 for task in counted if task not in found}
        doubtful = {task: load_summary(task) for task, count in self._absent.items() if count >= _ABSENT_POLLS}
        self._states |= found | {task: note.state for task, note in doubtful.items() if note is not None and note.state}

    def wait_for_end(self, task: str, since: int, limit_s: float) -> str | None:
        """Wait until Slurm notices that a task whose job.sh has ended is finished, and return its state."""
        deadline = time.monotonic() + limit_s
        self.follow(task.partition("_")[0])
        while not self.is_over(task, since) and time.monotonic() < deadline:
            self._pause_s = min(self._pause_s, _SHORTEST_PAUSE_S)
            self.poll((task,))
            time.sleep(0.02)
        return self.state(task)


class _Question(threading.Thread):
    """A thread that requests the states of jobs, then the nodes that do not answer, and ends when both are known."""

    def __init__(self, argv: Sequence[str]) -> None:
        super().__init__(daemon=True)
        self.jobs = self.nodes = subprocess.CompletedProcess(argv, 1, "", "")

    def run(self) -> None:
        self.jobs, self.nodes = call(self.jobs.args, _CALL_S), call(_NODES, _CALL_S)


def has_given(task: str) -> bool:
    """Return whether the controller has given out the number of this job: if it has, a task that the controller does
    not know was cancelled. The controller forgets a task at once that is cancelled while it waits in its array, but not
    a task that has begun."""
    found = re.search(r"^NEXT_JOB_ID\s*=\s*(\d+)", call(("scontrol", "show", "config")).stdout, re.MULTILINE)
    return found is not None and int(found[1]) > int(task.partition("_")[0])


@dataclass(frozen=True, slots=True)
class JobSummary:
    """Slurm's record of a job that has ended."""

    state: str
    code: str  # exit code and signal, `0:9`
    nodes: str
    is_taken_back: bool  # Slurm has restarted the job, or will, or needed its nodes for another one


def load_summary(task: str) -> JobSummary | None:
    """Return the controller's record of a job, else that of the accounting; None if neither knows the job."""
    answer = call(("scontrol", "--oneliner", "show", "job", task))
    if answer.returncode == 0:
        found = dict(re.findall(r" (JobState|ExitCode|NodeList|Restarts)=(\S+)", answer.stdout)[:4])
        state = found.get("JobState", "")
        is_taken_back = found.get("Restarts", "0") != "0" or state == "PREEMPTED"
        return JobSummary(state, found.get("ExitCode", ""), found.get("NodeList", ""), is_taken_back)
    rows = _load_accounted((task,), "State", "ExitCode", "NodeList", flags=("--duplicates",))
    if not rows:
        return None
    _, state, code, nodes = rows[0]  # the oldest row has the end of the copy that had begun
    return JobSummary(state.split()[0], code, nodes, len(rows) > 1 or state.startswith("PREEMPTED"))


def _load_accounted(tasks: Sequence[str], *fields: str, flags: Sequence[str] = ()) -> list[list[str]]:
    """Return a row for each task that sacct knows: its name and the requested fields."""
    what = ("--noheader", "--allocations", "--parsable2", *flags, f"--format=JobID,{','.join(fields)}")
    answer = call(("sacct", *what, "-j", ",".join(tasks)))
    rows = [line.split("|") for line in answer.stdout.splitlines()] if answer.returncode == 0 else []
    return [row for row in rows if len(row) == len(fields) + 1 and row[0] in tasks]


def are_all_nodes_up() -> bool:
    """Return whether Slurm counts each node of the cluster as one that jobs may use."""
    states = load_nodes("%T").values()
    return bool(states) and all(state in ("idle", "mixed", "allocated", "completing") for state in states)


def load_nodes(what: str) -> dict[str, str]:
    """Return a field of each node (`%N`: its name) by the short name of its host; empty if Slurm does not answer."""
    return _parse_nodes(call(("sinfo", "--noheader", "--Node", f"--format=%n|{what}")).stdout)


def _parse_nodes(text: str) -> dict[str, str]:
    lines = (line.split("|") for line in text.splitlines() if "|" in line)
    return {host.partition(".")[0]: value for host, value in lines}


# ---------------------------------------------------------------- nodes that do not answer


@dataclass(slots=True)
class SilentNodes:
    """Measures how long nodes have not answered, and reports when a node stops answering and when it answers again."""

    lost_after_s: float
    messages: list[str]
    _since: dict[str, float] = field(default_factory=dict)

    def note(self, down: Mapping[str, str], runs: Mapping[str, Sequence[str]]) -> None:
        """Record which nodes do not answer (`down`); `runs`: names of runs by the host that has begun them."""
        for host in [host for host in self._since if host not in down]:
            del self._since[host]
            self.messages.append(f"the node {host} answers Slurm again")
        for host in (host for host in runs if host in down and host not in self._since):
            self._since[host] = time.monotonic()
            shown = ", ".join(runs[host][:_MOST_NAMED]) + (", …" if len(runs[host]) > _MOST_NAMED else "")
            self.messages.append(
                f"the node {host} does not answer Slurm; what runs there ({shown}) is started again elsewhere when "
                f"Slurm has ended its job, or after {render_duration(self.lost_after_s)}"
            )

    def has_lost(self, host: str) -> bool:
        """Return whether the node has not answered for so long that its runs are started again elsewhere."""
        since = self._since.get(host)
        return since is not None and time.monotonic() - since >= self.lost_after_s


def build_exclusion(flags: Sequence[str], hosts: Iterable[str]) -> list[str]:
    """Return `--exclude` for the farm's excluded nodes and those on which a run was lost; nothing if no other node
    could run the job. sbatch takes only the last of several options `--exclude`."""
    nodes = [name for host, name in load_nodes("%N").items() if host in set(hosts)]
    if not nodes:
        return []
    excluded: list[str] = []  # the value of the last such option, which may be the next argument
    for flag, following in pairwise([*flags, ""]):
        if match := re.fullmatch(_EXCLUDE, flag):
            excluded = [match["nodes"] or following]
    option = f"--exclude={','.join([*excluded, *nodes])}"
    answer = call(("sbatch", "--test-only", "--output=/dev/null", *flags, option, "--wrap=true"))
    return [option] if answer.returncode == 0 else []


# A job that Slurm starts again runs as the next attempt, unless a supervisor has begun that attempt: one of the two
# links `lease.N`. The new copy exits if the run was stopped, concluded, taken back or has failed, or if the next
# attempt has to begin with a checkpoint; a job that had not begun just begins. The first copy may still run, out of
# Slurm's reach: the first copy is fenced, and the new one gets a job.log of its own.
REQUEUED = r"""
_raise() {  # PLACE: in the run's directory; makes the task that of the next attempt, or ends the job
  local first uid n m host lease done= left name text pattern now=${EPOCHREALTIME:-$(date +%s.%N)}
  pattern='ASSAY_ATTEMPT=([0-9a-f]+)\.([0-9]+)'; [[ ${_task[1]} =~ $pattern ]] || return
  uid=${BASH_REMATCH[1]} first=${BASH_REMATCH[2]} n=$first
  while [ -e "lease.$((n + 1))" ]; do
    n=$((n + 1)); read -r name < "submit.log.$n"; [ "$name" = "$1" ] || exit 0  # a supervisor has submitted it
  done
  lease=$(< "lease.$n") m=$n
  pattern='"skips": "([^"]*)"'; [[ $lease =~ $pattern ]] && done=${BASH_REMATCH[1]}
  if [ -s "token.$n" ]; then
    m=$((n + 1)); read -r host _ < "token.$n"
    [ "$host" != - ] && [ ! -e "stop.$n" ] && [ ! -e "outcome.$n" ] || exit 0
    [ -z "${_task[2]}" ] || exit 0  # a supervisor chooses the checkpoint that it goes on with
    pattern='^([A-Za-z0-9_-]+)\.exit\.([0-9]+)$'; [ "$n" = 1 ] || pattern=${pattern/.exit/.$n\\.exit}
    for name in *.exit.*; do
      [[ $name =~ $pattern ]] || continue
      [ "${BASH_REMATCH[2]}" = 0 ] || exit 0
      done+=:${BASH_REMATCH[1]}:
    done
    pattern='in \*:([A-Za-z0-9_-]+):\*\)' left=
    while IFS= read -r text; do
      [[ $text =~ $pattern ]] && [[ $done != *":${BASH_REMATCH[1]}:"* ]] && left=1
    done < job.sh
    [ -n "$left" ] || exit 0  # all commands have ended well
    text="\"why\": \"Slurm started its job again on $HOSTNAME\", \"kind\": \"fence\", \"at\": ${now/,/.}"
    _publish "stop.$n" "{\"who\": \"{by}\", $text}" || exit 0
    cp job.log ".tmp-log.$m" 2>/dev/null && mv -f ".tmp-log.$m" job.log
    _exchange '"attempt": [0-9]+' "\"attempt\": $m"
    _exchange '"tag": "[^"]*"' "\"tag\": \"$uid.$m\""
    _exchange '"skips": (null|"[^"]*")' "\"skips\": \"$done\""
    _exchange '"started_at": [0-9.]+' "\"started_at\": ${now/,/.}"
    _publish "lease.$m" "$lease" || exit 0
    echo "$1" > "submit.log.$m"
  fi
  text="ASSAY_TIME= ASSAY_DONE='$done' ASSAY_ATTEMPT=$uid.$m ASSAY_ATTEMPT_NUMBER=$m"
  [ "$m" = "$first" ] || _task[1]=${_task[1]/ exec bash / "$text" exec bash }
}
_exchange() { [[ $lease =~ $1 ]] && lease=${lease/"${BASH_REMATCH[0]}"/"$2"}; }
_publish() {
  echo "$2" > ".tmp-$1.$$" && ln ".tmp-$1.$$" "$1" 2>/dev/null
  local code=$?; rm -f ".tmp-$1.$$"; return $code
}
_requeue() {  # SUFFIX of its place: ends the shell where the run goes on without it
  [ "${SLURM_RESTART_COUNT:-0}" != 0 ] || return
  cd -- "${_task[0]}" || exit 4
  _raise "{id} ${SLURM_ARRAY_TASK_ID:--}$1"
}
"""
