"""Jobs on Slurm: what is started together is one job array, each task of which runs one `job.sh`.

The files of a run are those of every farm (`submit.py`): the lease comes first, `token.N` decides which copy of a job
runs, `end.N` says that it left. Beside them are the files of an array, in `.assay/slurm` of the study:

ID.list        for each task its run directory and its command, each ended by a zero byte
ID.sh          what Slurm starts: it takes its line of the list
ID.log         what `sbatch` printed: the array's number
ID.exit.CODE   how `sbatch` ended
and `submit.log.N` in a run's directory holds `ID INDEX`; a run that is submitted alone has the index `-`.

A job that Slurm starts again (requeued after a node failed or was needed for others) finds its token taken, and leaves
at once: whether the first copy is dead is for a supervisor to find out, and the run goes on as its next attempt. So
nothing runs twice. Before a supervisor gives up a job that has not begun, it takes the token itself.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import select
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from assay.errors import InfrastructureError, UsageError
from assay.execute import process
from assay.execute.base import EndKind, Publish
from assay.farms.slurm_queue import (
    VANISHED,
    SlurmQueue,
    are_all_nodes_up,
    call,
    is_active,
    is_held,
    load_down_nodes,
    load_limits,
    load_summary,
    summarize_errors,
)
from assay.farms.submit import SubmitExecutor, write_failure
from assay.farms.submit_lines import build_exec_command
from assay.system import processes
from assay.system.fast_dataclasses import dataclass
from assay.system.files import read_end, write_new
from assay.values import layout
from assay.values.run import JobHandle, JobRequest, Liveness
from assay.values.study import Farm
from assay.values.units import parse_duration

_PLACE = r"(?P<id>[0-9a-f]{12}) (?P<index>\d+|-)\n"
_SETTLE_S = 20.0  # how long Slurm may take to say how a job ended
_DOWN_S = 10.0
_CANCEL_S = 60.0
_TAIL_BYTES = 4096
_PLAIN_FLAGS = {"partition": "--partition", "account": "--account", "qos": "--qos", "constraint": "--constraint"}
_SIGNAL = r"(?:SIG)?(?P<name>[A-Z][A-Z0-9]*)@(?P<before>.+)"

# The task's own line of the list; a node that does not see it lacks the file system. What is printed before
# job.sh takes over its streams belongs to its log.
_SCRIPT = r"""#!/usr/bin/env bash
mapfile -d '' -t -s $((2 * ${{SLURM_ARRAY_TASK_ID:-0}})) -n 2 _task < {list}
[ -n "${{_task[1]}}" ] || exit 4
exec >> "${{_task[0]}}/{log}" 2>&1
{body}
"""
_RUN = 'eval "${_task[1]}"'
# Slurm signals the batch shell alone. The run's programs get the signal, its shells do not: it would end most of them.
_FORWARD = r"""trap '_tell $$ {signal} 2>/dev/null' {signal}
eval "${{_task[1]}} &"; _job=$!
while :; do wait $_job; _code=$?; kill -0 $_job 2>/dev/null || exit $_code; done"""
# Each command of the run is started once on every node, with the names that torch and others read. srun passes a signal
# on to all processes of the command: shells ignore it, and so does a program until it handles it.
_NODES = r"""_assay_srun() {
  srun --kill-on-bad-exit=1 --ntasks-per-node=1 bash -c '{ignored}export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS
    export NODE_RANK=$SLURM_NODEID LOCAL_RANK=$SLURM_LOCALID; eval "$1"' bash "$1"
}
export -f _assay_srun
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_ADDR MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000)) ASSAY_LAUNCH=_assay_srun
"""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an attempt is: in which array, as which task."""

    base: str  # path of the array's files, without suffix
    index: str  # "-": a job by itself

    def render_task(self, number: str) -> str:
        """Slurm's name of the job, `123_4` or `123`."""
        return number + (f"_{self.index}" if self.index != "-" else "")


@dataclass(frozen=True, slots=True)
class _Client:
    """An sbatch that still runs."""

    pid: int
    base: str


class SlurmExecutor(SubmitExecutor):
    name = "slurm"

    def __init__(self, farm: Farm) -> None:
        super().__init__(farm)
        self._queue = SlurmQueue()
        self._gathered: list[tuple[JobRequest, JobHandle]] | None = None  # None: nothing is held back
        self._arrays: dict[int, _Client] = {}  # by pidfd
        self._places: dict[tuple[str, int], _Place] = {}
        self._ids: dict[str, str] = {}  # array files -> Slurm's number
        self._begun: dict[tuple[str, int], int] = {}  # from which answer on the queue knows of an attempt that it began
        self._noted: Mapping[str, str] = {}
        self._reasons: dict[tuple[str, int], str] = {}  # the last one that was noted
        self._reported: set[str] = set()
        self._messages: list[str] = []
        self._down: tuple[float, set[str] | None] = (0.0, None)

    # ------------------------------------------------------------ before

    @classmethod
    def check(cls, farm: Farm) -> None:
        load_limits()
        argv = ("sbatch", "--test-only", "--output=/dev/null", *build_flags(farm), "--wrap=true")
        answer = call(argv)
        # a node that is down now may give what it has later: the submission itself will say
        is_certain = "node configuration is not available" not in answer.stderr or are_all_nodes_up()
        if answer.returncode != 0 and is_certain:
            raise UsageError(
                f"Slurm would refuse the jobs of {farm.name}: {summarize_errors(answer.stderr)}",
                f"tried `{shlex.join(argv)}`",
            )

    @classmethod
    def render_line(cls, farm: Farm, request: JobRequest, command: str) -> str:
        training = layout.show_command(command, request.dir)
        return shlex.join(["sbatch", *build_flags(farm, request.farm_resources), f"--wrap={training}"])

    # ------------------------------------------------------------ submitting

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        self._gathered = []
        try:
            yield
        finally:
            jobs, self._gathered = self._gathered, None
            self._submit_all(jobs)

    def submit(self, request: JobRequest, publish: Publish) -> JobHandle | None:
        if not os.path.isdir(request.dir):
            raise InfrastructureError(f"cannot start {request.name}: {request.dir} is gone")
        handle = process.build_handle(request, self.name)
        if not publish(handle):
            return None
        self._watched[request.dir, request.attempt] = handle
        self._poll_soon()
        if self._gathered is not None:
            self._gathered.append((request, handle))
        else:
            self._submit_all([(request, handle)])
        return handle

    def _submit_all(self, jobs: Sequence[tuple[JobRequest, JobHandle]]) -> None:
        def kind(job: tuple[JobRequest, JobHandle]) -> tuple[str, str]:
            return os.path.dirname(job[0].dir), repr(job[0].farm_resources)

        size = self._queue.limits().array_size if jobs else 1
        for (study_dir, _), group in groupby(sorted(jobs, key=kind), key=kind):
            requests = [request for request, _ in group]
            for first in range(0, len(requests), size):
                self._submit_array(study_dir, requests[first : first + size])

    def _submit_array(self, study_dir: str, requests: Sequence[JobRequest]) -> None:
        folder = os.path.join(study_dir, layout.STUDY_META_DIR, layout.SLURM_DIR)
        number = secrets.token_hex(6)
        base = os.path.join(folder, number)
        try:
            os.makedirs(folder, exist_ok=True)
            tasks = "".join(f"{each.dir}\0{build_exec_command(self.farm, each)}\0" for each in requests)
            write_new(f"{base}.list", tasks.encode("utf-8", "surrogateescape"))
            write_new(f"{base}.sh", build_script(self.farm, f"{base}.list").encode("utf-8", "surrogateescape"))
            indices = [str(index) for index in range(len(requests))] if len(requests) > 1 else ["-"]
            for index, each in zip(indices, requests, strict=True):
                # before sbatch: from here on, the lease means that a job may come
                path = os.path.join(each.dir, layout.submit_log_name(each.attempt))
                write_new(path, f"{number} {index}\n".encode())
                self._places[each.dir, each.attempt] = _Place(base, index)
            argv = [*self._build_sbatch(requests), f"{base}.sh"]
            text = f"{shlex.join(argv)}\n: > {shlex.quote(base)}.exit.$?\n"
            pid = processes.spawn_session(
                [self._bash, "-c", text], process.base_environment(), f"{base}.log", inherit=()
            )
        except OSError as error:
            message = f"cannot submit to Slurm: {error.strerror}"
            for each in requests:
                write_failure(each.dir, each.attempt, 126, message)
            raise InfrastructureError(message) from error
        pidfd = os.pidfd_open(pid)
        self._arrays[pidfd] = _Client(pid, base)
        self._poll.register(pidfd, select.EPOLLIN)

    def _build_sbatch(self, requests: Sequence[JobRequest]) -> list[str]:
        throttle = self.farm.options.get("throttle")
        last = f"0-{len(requests) - 1}" + (f"%{throttle}" if throttle else "")
        name = requests[0].name if len(requests) == 1 else os.path.basename(os.path.dirname(requests[0].dir))
        plain = re.sub(r"[^\w.,=+@-]+", "_", name).lstrip("-.") or "assay"
        return [
            "sbatch",
            "--parsable",
            f"--job-name={plain}",
            "--chdir=/",
            "--output=/dev/null",
            "--open-mode=append",
            "--requeue",
            *build_flags(self.farm, requests[0].farm_resources),
            *([f"--array={last}"] if len(requests) > 1 else []),
        ]

    def is_handed_over(self) -> bool:
        return not self._arrays and not self._gathered

    def _reap(self) -> None:
        for pidfd, _ in self._poll.poll(0):
            client = self._arrays.pop(pidfd)
            self._poll.unregister(pidfd)
            os.close(pidfd)
            _, status = os.waitpid(client.pid, 0)
            if os.WIFSIGNALED(status) and self._load_code(client.base) is None:
                with contextlib.suppress(OSError):
                    write_new(f"{client.base}.exit.{128 + os.WTERMSIG(status)}", b"")
            self._poll_soon()

    def _start_pending(self) -> None:
        """Nothing waits here for its turn; but it is time to look at what Slurm says."""
        self._queue.poll(self._list_tasks())
        if self._queue.reasons is not self._noted:
            self._noted = self._queue.reasons
            self._note_reasons()

    def _note_reasons(self) -> None:
        """Why Slurm does not start a job is reported once, and noted for others, where it is not just its turn."""
        for run_dir, attempt in self._watched:
            task = self._find_task(run_dir, attempt)
            reason = self._queue.reasons.get(task or "", "")
            known = self._reasons.get((run_dir, attempt), "")
            if reason in ("", known) or not (known or is_held(reason)):
                continue
            self._reasons[run_dir, attempt] = reason
            path = os.path.join(run_dir, layout.submit_log_name(attempt))
            with contextlib.suppress(OSError), open(path, "a", encoding="utf-8") as file:
                if file.tell() < _TAIL_BYTES // 2:  # the place of the job is in its first line
                    file.write(f"waits: {reason}\n")
            if is_held(reason) and reason not in self._reported:
                self._reported.add(reason)
                hint = f"; once that is dealt with: scontrol release {task}" if "held" in reason.lower() else ""
                self._messages.append(f"Slurm does not start the job {task}: {reason}{hint}")

    def take_messages(self) -> Sequence[str]:
        messages, self._messages = self._messages, []
        return messages

    def _list_tasks(self) -> list[str]:
        found = (self._find_task(run_dir, attempt) for run_dir, attempt in self._watched)
        return [task for task in found if task is not None]

    def _poll_soon(self) -> None:
        self._pause_s = 0.05

    # ------------------------------------------------------------ the array of an attempt

    @classmethod
    def find_job(cls, handle: JobHandle, run_dir: str) -> str:
        place = _load_place(run_dir, handle.attempt)
        number = _load_number(place.base) if place is not None else None
        return place.render_task(number) if place is not None and number is not None else ""

    def _find_place(self, run_dir: str, attempt: int) -> _Place | None:
        key = run_dir, attempt
        if key not in self._places:
            place = _load_place(run_dir, attempt)
            if place is None:
                return None
            self._places[key] = place
        return self._places[key]

    def _load_code(self, base: str) -> int | None:
        """How sbatch ended; None: it did not, as far as we know."""
        if os.path.exists(f"{base}.exit.0"):
            return 0
        folder, name = os.path.split(base)
        with contextlib.suppress(OSError):
            found = (each.rpartition(".exit.") for each in os.listdir(folder))
            return next((int(code) for head, _, code in found if head == name), None)
        return None

    def _find_task(self, run_dir: str, attempt: int) -> str | None:
        """Slurm's name of the job, `123_4` or `123`; None: it has none."""
        place = self._find_place(run_dir, attempt)
        if place is None:
            return None
        if place.base not in self._ids:
            number = _load_number(place.base)
            if number is None or self._load_code(place.base) != 0:
                return None
            self._ids[place.base] = number
            self._queue.follow(number)
        return place.render_task(self._ids[place.base])

    # ------------------------------------------------------------ watching

    def _judge(self, handle: JobHandle, run_dir: str) -> Liveness:
        found = super()._judge(handle, run_dir)
        token = self._load_token(run_dir, handle.attempt)
        if found is not Liveness.UNKNOWN or token is None or not token.host:
            return found
        # gone where it is over in Slurm's eyes, unless its node is out of Slurm's reach
        is_over = self._is_over(run_dir, handle.attempt)
        return Liveness.GONE if is_over and not self._is_out_of_reach(token.host) else Liveness.UNKNOWN

    def _is_over(self, run_dir: str, attempt: int) -> bool:
        """Whether Slurm runs nothing of an attempt that has begun."""
        task = self._find_task(run_dir, attempt)
        return task is not None and self._queue.is_over(task, self._find_beginning(run_dir, attempt))

    def _find_beginning(self, run_dir: str, attempt: int) -> int:
        return self._begun.setdefault((run_dir, attempt), self._queue.next_answer())

    def _is_out_of_reach(self, host: str) -> bool:
        if time.monotonic() - self._down[0] > _DOWN_S:
            self._down = time.monotonic(), load_down_nodes()
        names = self._down[1]
        return names is None or host.partition(".")[0] in names

    def _before_token(self, handle: JobHandle, run_dir: str) -> Liveness:
        attempt = handle.attempt
        place = self._find_place(run_dir, attempt)
        if self._is_under_way(run_dir, attempt, place):
            return Liveness.ALIVE
        here = handle.host == processes.host_name()
        is_dead = here and not processes.is_alive(handle.supervisor_pid, handle.supervisor_start, handle.boot)
        code = self._load_code(place.base) if place is not None else None
        if place is None or code is None:  # its supervisor is about to submit it, or died before it did
            return self._give_up(handle, run_dir) if is_dead else Liveness.UNKNOWN
        if code != 0:
            self._note_refused(run_dir, attempt, place, code)
            return Liveness.GONE
        task = self._find_task(run_dir, attempt)
        state = self._queue.state(task) if task else VANISHED
        return Liveness.UNKNOWN if state is None or is_active(state) else self._give_up(handle, run_dir)

    def _is_under_way(self, run_dir: str, attempt: int, place: _Place | None) -> bool:
        if any((request.dir, request.attempt) == (run_dir, attempt) for request, _ in self._gathered or ()):
            return True
        return place is not None and any(client.base == place.base for client in self._arrays.values())

    def _give_up(self, handle: JobHandle, run_dir: str) -> Liveness:
        """The token decides: a copy that comes later finds it taken."""
        self._take_token(run_dir, handle.attempt)
        return super()._judge(handle, run_dir)

    def _note_refused(self, run_dir: str, attempt: int, place: _Place, code: int) -> None:
        if not os.path.exists(os.path.join(run_dir, layout.submit_exit_name(attempt, code))):
            write_failure(run_dir, attempt, code, summarize_errors(read_end(f"{place.base}.log", _TAIL_BYTES)))

    def refusal(self, _handle: JobHandle, _run_dir: str) -> str | None:
        """Others may be taken: see `explain_end`."""
        return None

    def explain_end(self, handle: JobHandle, run_dir: str) -> tuple[EndKind, str] | None:
        """What Slurm did to an attempt that did not come to its own end."""
        refused = super().refusal(handle, run_dir)
        if refused is not None:
            return "interrupt", refused
        task, command = self._find_task(run_dir, handle.attempt), find_unfinished(run_dir, handle.attempt)
        if task is None or command == "" or self._is_stopped(run_dir, handle.attempt):
            return None
        state = self._queue.wait_for_end(task, self._find_beginning(run_dir, handle.attempt), _SETTLE_S)
        if state is not None and state.startswith("CANCELLED"):
            return "user", f"cancelled in Slurm (job {task})"
        if state == "TIMEOUT" and command is not None:
            self._write_time_limit(run_dir, handle.attempt, command)
            return None
        note = load_summary(task)
        if note is None:
            return "lost", f"Slurm does not know its job {task} any more"
        said = f"Slurm says of its job {task}: {note.state}, exit code {note.code}, on {note.nodes}"
        said += ", where its folder cannot be read or written" if note.code == "4:0" else ""
        return ("taken back" if note.is_taken_back else "lost"), said

    def _is_stopped(self, run_dir: str, attempt: int) -> bool:
        return os.path.exists(os.path.join(run_dir, layout.stop_name(attempt)))

    def _write_time_limit(self, run_dir: str, attempt: int, command: str) -> None:
        """Slurm's time limit ended it: what job.sh would have written about a limit of its own."""
        marker = layout.exit_marker_name(command, attempt, 124)
        for name in (marker.replace(".exit.124", ".timeout"), marker):
            with contextlib.suppress(OSError):
                write_new(os.path.join(run_dir, name), b"")

    # ------------------------------------------------------------ ending

    def cancel(self, jobs: Sequence[tuple[JobHandle, str]], grace_s: float) -> None:
        """The stop file first: a job ends its own processes in the right order. Slurm ends what does not answer."""
        for handle, run_dir in jobs:
            self._take_token(run_dir, handle.attempt)
        try:
            super().cancel(jobs, grace_s)
        except InfrastructureError:
            self._scancel(jobs)
            self._confirm(jobs, grace_s)
        else:
            self._scancel(jobs)

    def _scancel(self, jobs: Sequence[tuple[JobHandle, str]]) -> None:
        """All by one command; of what has ended already Slurm knows nothing any more."""
        found = [self._find_task(run_dir, handle.attempt) for handle, run_dir in jobs]
        if tasks := [task for task in found if task is not None]:
            call(("scancel", "--quiet", *tasks), _CANCEL_S)
            self._queue.ask_soon()

    def _run_cancel_command(self, run_dir: str, attempt: int) -> None:
        """All of them by one scancel."""

    def _may_still_run(self, handle: JobHandle, run_dir: str) -> bool:
        if not super()._may_still_run(handle, run_dir):
            return False
        if (task := self._find_task(run_dir, handle.attempt)) is not None:
            self._queue.poll((task,))
        return not self._is_over(run_dir, handle.attempt)

    def close(self) -> None:
        self._queue.close()
        for pidfd in self._arrays:
            os.close(pidfd)
        self._arrays.clear()
        super().close()


# ---------------------------------------------------------------- files


def _load_place(run_dir: str, attempt: int) -> _Place | None:
    match = re.match(_PLACE, read_end(os.path.join(run_dir, layout.submit_log_name(attempt)), _TAIL_BYTES))
    if match is None:
        return None
    folder = os.path.join(os.path.dirname(run_dir.rstrip("/")), layout.STUDY_META_DIR, layout.SLURM_DIR)
    return _Place(os.path.join(folder, match["id"]), match["index"])


def _load_number(base: str) -> str | None:
    """The number that sbatch printed."""
    match = re.search(r"^(\d+)(?:;\S+)?$", read_end(f"{base}.log", _TAIL_BYTES), re.MULTILINE)
    return match[1] if match else None


# ---------------------------------------------------------------- texts


def build_flags(farm: Farm, more: Sequence[tuple[str, object]] = ()) -> list[str]:
    """The options of a farm as sbatch has them; `more`: runx's SUBMIT_JOB.*"""
    options: Mapping[str, object] = {**farm.options, **dict(more)}
    flags = [f"{flag}={options[key]}" for key, flag in _PLAIN_FLAGS.items() if options.get(key)]
    if seconds := farm.options.get("time"):
        flags.append(f"--time={-int(-seconds // 60)}")  # Slurm counts minutes
    if gpus := options.get("gpus"):
        flags.append(f"--gres=gpu:{gpus}")
    if cpus := options.get("cpus"):
        flags.append(f"--cpus-per-task={cpus}")
    if size := farm.options.get("memory"):
        flags.append(f"--mem={-(-size // 2**20)}M")
    if nodes := options.get("nodes"):
        flags += [f"--nodes={nodes}", "--ntasks-per-node=1"]
    if farm.options.get("signal"):
        name, before = parse_signal(farm)
        flags.append(f"--signal=B:{name}@{before}")
    return [*flags, *farm.options.get("flags", ())]


def parse_signal(farm: Farm) -> tuple[str, int]:
    """`USR1@2m`: the signal, and how many seconds before the time limit it is sent."""
    text = str(farm.options["signal"])
    match = re.fullmatch(_SIGNAL, text)
    seconds = parse_duration(match["before"]) if match else None
    if match is None or not seconds or match["name"] in ("KILL", "STOP"):
        raise UsageError(f"the farm {farm.name} has the signal {text!r}", "write for example signal: USR1@2m")
    return match["name"], max(1, int(seconds))


def build_script(farm: Farm, list_path: str) -> str:
    body, ignored = _RUN, ""
    if farm.options.get("signal"):
        signal = parse_signal(farm)[0]
        body, ignored = processes.BASH_TELL_PROGRAMS + _FORWARD.format(signal=signal), f'trap "" {signal}; '
    if farm.options.get("nodes"):
        body = _NODES.replace("{ignored}", ignored) + body
    return _SCRIPT.format(list=shlex.quote(list_path), log=layout.JOB_LOG, body=body)


def find_unfinished(run_dir: str, attempt: int) -> str | None:
    """The command of an attempt that began and has no end; "": the last one has an end; None: none began."""
    lines = read_end(os.path.join(run_dir, layout.JOB_LOG), _TAIL_BYTES).splitlines()
    last = next((line.split() for line in reversed(lines) if re.match(r"\d+\.\d+ \S+ (?:start|exit)", line)), None)
    if last is None:
        return None
    if last[2] == "exit":
        return ""
    begin = layout.exit_marker_name(last[1], attempt, 0)[:-1]
    with contextlib.suppress(OSError):
        if any(name.startswith(begin) for name in os.listdir(run_dir)):
            return ""
    return last[1]
