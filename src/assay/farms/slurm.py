"""Jobs on Slurm: jobs that are started together are one job array; each task runs one `job.sh`, or several (`pack`).

The files of a run are those of every farm (`submit.py`): the lease comes first, `token.N` decides which copy of a job
runs, `end.N` shows that `job.sh` has exited. The files of an array are in `.assay/slurm` of the study:

ID.list        for each task its run directory, its command and, with `resume:`, the name of its `warned.N`, each ended
               by a zero byte
ID.sh          the script that Slurm starts: a task reads its entries of the list
ID.log         the output of `sbatch`: the array's number
ID.exit.CODE   how `sbatch` ended
In a run's directory, `submit.log.N` contains `ID INDEX`: the index is `-` for a run that is submitted alone, and has a
plus sign after it for runs that share a task (`pack`). On several nodes, `.rank.N` in the run's directory is the exit
code of the first rank that has failed, until the command has ended.

A job that Slurm starts again (requeued after a node failed or was needed for others) runs as the next attempt of its
run, unless a supervisor has begun that attempt: see `slurm_queue.py`, also for nodes that do not answer. A supervisor
takes the token of a job that has not begun before it gives the job up.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import select
import shlex
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cache, partial
from itertools import groupby

from assay.errors import AssayError, InfrastructureError, UsageError
from assay.execute import process
from assay.execute.base import EndKind, Publish
from assay.farms import container
from assay.farms import slurm_queue as queue
from assay.farms.engines import LOST_AFTER_S, PYXIS, parse_signal
from assay.farms.slurm_queue import REQUEUED, REQUEUED_BY, SilentNodes, build_exclusion
from assay.farms.submit import (
    SubmitExecutor,
    find_lost_hosts,
    find_unfinished,
    has_numbered,
    load_submit_code,
    read_submit_log,
    write_submission,
)
from assay.farms.submit_lines import build_exec_command
from assay.record import run_directory
from assay.show.formatting import render_duration
from assay.system import processes
from assay.system.fast_dataclasses import dataclass, replace
from assay.system.files import list_names, read_end, read_text, write_new
from assay.values import layout
from assay.values.run import JobHandle, JobRequest, Liveness
from assay.values.study import Farm

_PLACE = r"(?P<id>[0-9a-f]{12}) (?P<index>\d+|-)(?P<packed>\+?)\n"
_ATTEMPT = re.compile(rf"\b{layout.ENV_ATTEMPT_NUMBER}=(\d+)")
_SHORTEST_PAUSE_S = 0.05
_SETTLE_S = 20.0  # how long Slurm may take to report the end of a job
_CANCEL_S = 60.0
_TAIL_BYTES = 4096
_KEPT = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT")  # the variables of a job that sbatch needs as well
_PLAIN_FLAGS = {"partition": "--partition", "account": "--account", "qos": "--qos", "constraint": "--constraint"}
_EXIT_CODES = {
    "4:0": ", where its folder cannot be read or written",
    f"{container.NOT_INSTALLED}:0": ", where apptainer is not installed",
}

# The batch script reads the task's entries of the list; a node that does not see the list lacks the file system. Output
# before job.sh redirects its streams goes to the log of the job.
_SCRIPT = r"""#!/usr/bin/env bash
mapfile -d '' -t -s $((3 * ${{SLURM_ARRAY_TASK_ID:-0}})) -n 3 _task < {list}
[ -n "${{_task[1]}}" ] || exit 4
{requeued}_requeue
exec >> "${{_task[0]}}/{log}" 2>&1
{body}
"""
_RUN = 'eval "${_task[1]}"'
# The batch script for `pack` executes several runs, one after another.
_PACKED = r"""#!/usr/bin/env bash
mapfile -d '' -t -s $((3 * {pack} * ${{SLURM_ARRAY_TASK_ID:-0}})) -n $((3 * {pack})) _tasks < {list}
[ -n "${{_tasks[1]}}" ] || exit 4
{requeued}{body}
for ((_i = 0; _i < ${{#_tasks[@]}}; _i += 3)); do
  (_task=("${{_tasks[@]:_i:3}}"); _requeue +; exec >> "${{_task[0]}}/{log}" 2>&1; eval "${{_task[1]}}")
done
"""
# Slurm signals only the batch shell, which passes the signal to the run's programs, not to shells, which would end.
_FORWARD = r"""_warn() {{ [ -z "${{_task[2]}}" ] || : >> "${{_task[0]}}/${{_task[2]}}"; _tell $$ {signal}; }}
trap '_warn 2>/dev/null' {signal}
eval "${{_task[1]}} &"; _job=$!
while :; do wait $_job; _code=$?; kill -0 $_job 2>/dev/null || exit $_code; done"""
# srun starts each command of the run as every task, with the variables that torch and other libraries read. srun ends
# the other ranks as soon as one has failed, and reports the highest exit code: the first nonzero code is recorded and
# becomes the command's. srun takes the number of processors from SRUN_CPUS_PER_TASK.
_NODES = r"""_assay_srun() {
  local code note=$ASSAY_RUN_DIR/.rank.$ASSAY_ATTEMPT_NUMBER
  srun --kill-on-bad-exit=1 --wait=0 {flags} bash -c 'export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS
    export NODE_RANK=$SLURM_NODEID LOCAL_RANK=$SLURM_LOCALID; _warned=
    {rank}
    [ $_code = 0 ] || { set -C; echo $_code > "$2"; } 2>/dev/null || [ -e "$2" ] || exit $_code
    [ -z "$_warned" ] || exit 0; exit $_code' bash "$1" "$note"
  code=$?; [ ! -s "$note" ] || { code=$(< "$note"); rm -f "$note"; }
  return $code
}
export -f _assay_srun
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_ADDR MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000)) ASSAY_LAUNCH=_assay_srun
[ -z "$SLURM_CPUS_PER_TASK" ] || export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
"""
# With one task on each node, `torchrun train.py` works as on one machine: torchrun reads its options from PET_….
_TORCHRUN = r"""export PET_NNODES=$SLURM_JOB_NUM_NODES PET_RDZV_BACKEND=c10d PET_RDZV_ID=$SLURM_JOB_ID
export PET_RDZV_ENDPOINT=$MASTER_ADDR:$MASTER_PORT
"""
_RANK = '( eval "$1" ); _code=$?'
# srun passes a signal to all processes of the command: shells ignore the signal, and so do programs until they handle
# it. After the signal no rank ends the others, since ranks may take different times to write their parts of a
# checkpoint. The trap runs after the command in the foreground and keeps the command's code; `wait` would change it.
_WARNED_RANK = r"""trap _warned=1 {signal}; ( trap "" {signal}; eval "$1" ); _code=$?
    [ $_code = 0 ] || sleep 0.2  # the signal may reach the program a moment before it reaches us"""


@dataclass(frozen=True, slots=True)
class _Place:
    """The array and the task of an attempt."""

    base: str  # path of the array's files, without suffix
    index: str  # "-": the job is not part of an array
    is_packed: bool = False  # the task executes other runs, too

    def render_task(self, number: str) -> str:
        """Return Slurm's name of the job, `123_4` or `123`."""
        return number + (f"_{self.index}" if self.index != "-" else "")


class SlurmExecutor(SubmitExecutor):
    name = "slurm"

    def __init__(self, farm: Farm) -> None:
        super().__init__(farm)
        self._queue = queue.SlurmQueue()
        self._gathered: list[tuple[JobRequest, JobHandle]] | None = None  # None: jobs are submitted one by one
        self._arrays: dict[int, tuple[int, str]] = {}  # by pidfd: pid and files of every running sbatch
        self._places: dict[tuple[str, int], _Place] = {}
        self._ids: dict[str, str] = {}  # array files -> Slurm's number
        self._begun: dict[tuple[str, int], int] = {}  # first answer of the queue that counts for a begun attempt
        self._noted: Mapping[str, str] = {}
        self._reasons: dict[tuple[str, int], str] = {}  # the last reason that was noted for a job
        self._reported: set[str] = set()
        self._nodes = SilentNodes(farm.options.get("lost_after") or LOST_AFTER_S, self._messages)
        self._cancelled: set[tuple[str, int]] = set()  # jobs that were cancelled in Slurm
        # the image is loaded once for each study folder, since it may have to be pulled
        self._load_image = cache(partial(container.load_image, farm))

    # ------------------------------------------------------------ before

    @classmethod
    def check(cls, farm: Farm) -> None:
        queue.load_limits()
        container.check_container(farm)
        argv = ("sbatch", "--test-only", "--output=/dev/null", *build_flags(farm), "--wrap=true")
        answer = queue.call(argv)
        # a node that is down now may be up later: Slurm refuses or accepts the job when it is submitted
        is_certain = "node configuration is not available" not in answer.stderr or queue.are_all_nodes_up()
        if answer.returncode != 0 and is_certain:
            problem = f"Slurm would refuse the jobs of {farm.name}: {queue.summarize_errors(answer.stderr)}"
            hint = f"tried `{shlex.join(argv)}`"
            raise UsageError(problem, hint)

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
        image = self._load_image(os.path.dirname(request.dir))
        handle = replace(process.build_handle(request, self.name), image=image.record if image else "")
        if not publish(handle):
            return None
        self._watched[request.dir, request.attempt] = handle
        self._waiting.add((request.dir, request.attempt))
        self._pause_s = _SHORTEST_PAUSE_S
        if self._gathered is not None:
            self._gathered.append((request, handle))
        else:
            self._submit_all([(request, handle)])
        return handle

    def _submit_all(self, jobs: Sequence[tuple[JobRequest, JobHandle]]) -> None:
        def kind(job: tuple[JobRequest, JobHandle]) -> tuple[str, str, tuple[str, ...]]:
            return os.path.dirname(job[0].dir), repr(job[0].farm_resources), find_lost_hosts(job[0])

        try:
            size = self._queue.limits.array_size * self._pack if jobs else 1
            for (study_dir, _, hosts), group in groupby(sorted(jobs, key=kind), key=kind):
                requests = [request for request, _ in group]
                for first in range(0, len(requests), size):
                    self._submit_array(study_dir, requests[first : first + size], hosts)
        except AssayError as error:  # no other supervisor submits jobs that this one has leased
            submitted = {base for _, base in self._arrays.values()}
            for run_dir, attempt in [(request.dir, request.attempt) for request, _ in jobs]:
                if (run_dir, attempt) not in self._places or self._places[run_dir, attempt].base not in submitted:
                    write_submission(run_dir, attempt, 126, error.message)
                    self._waiting.discard((run_dir, attempt))
            raise

    def _submit_array(self, study_dir: str, requests: Sequence[JobRequest], avoided: Sequence[str]) -> None:
        folder = os.path.join(study_dir, layout.STUDY_META_DIR, layout.SLURM_DIR)
        number = secrets.token_hex(6)
        base = os.path.join(folder, number)
        try:
            os.makedirs(folder, exist_ok=True)
            tasks = []
            for each in requests:
                warned = layout.numbered_name("warned", each.attempt) if each.begins is not None else ""
                tasks += [each.dir, build_exec_command(self.farm, each), warned]
            write_new(f"{base}.list", "".join(f"{word}\0" for word in tasks).encode("utf-8", "surrogateescape"))
            script = build_script(self.farm, f"{base}.list", self._load_image(study_dir))
            write_new(f"{base}.sh", script.encode("utf-8", "surrogateescape"))
            is_packed = self._pack > 1 and len(requests) > 1
            for count, each in enumerate(requests):
                place = _Place(base, str(count // self._pack) if len(requests) > self._pack else "-", is_packed)
                # the submit log is written before sbatch runs: from now on a job with a lease may start
                path = os.path.join(each.dir, layout.submit_log_name(each.attempt))
                write_new(path, f"{number} {place.index}{'+' if is_packed else ''}\n".encode())
                self._places[each.dir, each.attempt] = place
            argv = [*self._build_sbatch(requests, avoided), f"{base}.sh"]
            text = f"{shlex.join(argv)}\n: > {shlex.quote(base)}.exit.$?\n"
            pid = processes.spawn_session([self._bash, "-c", text], _build_environment(), f"{base}.log", inherit=())
        except OSError as error:
            raise InfrastructureError(f"cannot submit to Slurm: {error.strerror}") from error
        pidfd = os.pidfd_open(pid)
        self._arrays[pidfd] = pid, base
        self._poll.register(pidfd, select.EPOLLIN)

    def _build_sbatch(self, requests: Sequence[JobRequest], avoided: Sequence[str]) -> list[str]:
        flags = build_flags(self.farm, requests[0].farm_resources, min(self._pack, len(requests)))
        throttle = self.farm.options.get("throttle")
        tasks = -(-len(requests) // self._pack)
        last = f"0-{tasks - 1}" + (f"%{throttle}" if throttle else "")
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
            *flags,
            *(build_exclusion(flags, avoided) if avoided else ()),
            *([f"--array={last}"] if tasks > 1 else []),
        ]

    @property
    def _pack(self) -> int:
        return int(self.farm.options.get("pack") or 1)

    def is_handed_over(self) -> bool:
        return not self._arrays and not self._gathered

    def _reap(self) -> None:
        for pidfd, _ in self._poll.poll(0):
            pid, base = self._arrays.pop(pidfd)
            self._poll.unregister(pidfd)
            os.close(pidfd)
            _, status = os.waitpid(pid, 0)
            if os.WIFSIGNALED(status) and self._load_code(base) is None:
                with contextlib.suppress(OSError):
                    write_new(f"{base}.exit.{128 + os.WTERMSIG(status)}", b"")
            if self._load_code(base) != 0:
                for key in [key for key, place in self._places.items() if place.base == base]:
                    self._waiting.discard(key)  # the jobs of the array are polled from now on
            self._pause_s = _SHORTEST_PAUSE_S

    def _start_pending(self) -> None:
        """Read Slurm's newest answer; this executor keeps no jobs that wait for their submission."""
        self._queue.poll(filter(None, [self._find_task(*key) for key in self._watched]))
        if self._queue.reasons is not self._noted:
            self._noted = self._queue.reasons
            self._note_reasons()
            self._note_nodes()
            for key in [key for key in self._waiting if not self._is_pending(*key)]:
                self._waiting.discard(key)

    def _is_pending(self, run_dir: str, attempt: int) -> bool:
        """Return whether the job is in Slurm's queue, is unknown to Slurm yet, or waits for other runs of its task."""
        place, state = self._find_place(run_dir, attempt), self._find_state(run_dir, attempt)
        is_packed = place is not None and place.is_packed
        return not state or state in queue.WAITING or (is_packed and queue.is_active(state))

    def _note_reasons(self) -> None:
        """Record in the submit logs why Slurm does not start jobs, and report each unusual reason once."""
        for run_dir, attempt in self._watched:
            task = self._find_task(run_dir, attempt)
            reason = self._queue.reasons.get(task or "", "")
            known = self._reasons.get((run_dir, attempt), "")
            if reason in ("", known) or (not known and reason in queue.USUAL):
                continue
            self._reasons[run_dir, attempt] = reason
            path = os.path.join(run_dir, layout.submit_log_name(attempt))
            with contextlib.suppress(OSError), open(path, "a", encoding="utf-8") as file:
                if file.tell() < _TAIL_BYTES // 2:  # the tail must contain the first line
                    file.write(f"waits: {reason}\n")
            if reason not in queue.USUAL | self._reported:
                self._reported.add(reason)
                hint = f"; once that is dealt with: scontrol release {task}" if "held" in reason.lower() else ""
                self._messages.append(f"Slurm does not start the job {task}: {reason}{hint}")

    def _note_nodes(self) -> None:
        """Report nodes that do not answer. A job that Slurm started again as the next attempt is no longer watched."""
        runs: dict[str, list[str]] = {}
        for run_dir, attempt in (key for key in self._watched if key not in self._waiting):
            if self._queue.down and (token := self._load_token(run_dir, attempt)) is not None:
                runs.setdefault(token.node, []).append(os.path.basename(run_dir))
            if has_numbered(run_dir, "lease", attempt + 1):
                self._fenced.add((run_dir, attempt))
        self._nodes.note(self._queue.down or {}, runs)

    # ------------------------------------------------------------ the array of an attempt

    @classmethod
    def find_job(cls, handle: JobHandle, run_dir: str) -> str:
        place = _load_place(run_dir, handle.attempt)
        number = _load_number(place.base) if place is not None else None
        return place.render_task(number) if place is not None and number is not None else ""

    @classmethod
    def render_entry(cls, handle: JobHandle, run_dir: str, host: str) -> str:
        """Return a command that enters the job: srun takes the number of an array's task, not its name."""
        task = cls.find_job(handle, run_dir)
        number = f"$(squeue -h -j {task} -o %A)" if "_" in task else task
        return f"srun --jobid={number} --overlap --nodelist={shlex.quote(host)} --pty bash" if task else ""

    def _find_place(self, run_dir: str, attempt: int) -> _Place | None:
        key = run_dir, attempt
        if key not in self._places and (place := _load_place(*key)) is not None:
            self._places[key] = place
        return self._places.get(key)

    def _load_code(self, base: str) -> int | None:
        """Return how sbatch ended; None if it has not ended, as far as is known."""
        if os.path.exists(f"{base}.exit.0"):
            return 0
        folder, name = os.path.split(base)
        found = (each.rpartition(".exit.") for each in list_names(folder))
        return next((int(code) for head, _, code in found if head == name), None)

    def _find_task(self, run_dir: str, attempt: int) -> str | None:
        """Return Slurm's name of the job, `123_4` or `123`; None if the job has no name yet."""
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
        # a job that Slurm has ended is gone; `explain_end` finds out whether its node answered
        is_over = self._queue.down is not None and self._is_over(run_dir, handle.attempt)
        # a job that Slurm is ending, perhaps since a person cancelled it, ends when Slurm reports it
        is_ending = self._find_state(run_dir, handle.attempt) == "COMPLETING"
        is_lost = self._nodes.has_lost(token.node) and not is_ending
        return Liveness.GONE if is_over or is_lost else Liveness.UNKNOWN

    def _is_over(self, run_dir: str, attempt: int) -> bool:
        """Return whether Slurm runs nothing of an attempt that has begun."""
        task = self._find_task(run_dir, attempt)
        return task is not None and self._queue.is_over(task, self._find_beginning(run_dir, attempt))

    def _find_state(self, run_dir: str, attempt: int) -> str:
        """Return the job's state in the newest answer of Slurm; empty if the state is unknown."""
        return self._queue.state(self._find_task(run_dir, attempt) or "") or ""

    def _find_beginning(self, run_dir: str, attempt: int) -> int:
        return self._begun.setdefault((run_dir, attempt), self._queue.next_answer())

    def _explain_silence(self, run_dir: str, attempt: int) -> str | None:
        """Return why an attempt on a silent node is given up; None if the node answers or the job was cancelled."""
        token = self._load_token(run_dir, attempt)
        is_silent = token is not None and token.node in (self._queue.down or {})
        if token is None or not is_silent or self._find_state(run_dir, attempt).startswith("CANCELLED"):
            return None
        task = self._find_task(run_dir, attempt)
        if self._nodes.has_lost(token.node):
            return f"its node {token.host} has not answered Slurm for {render_duration(self._nodes.lost_after_s)}"
        return f"its node {token.host} does not answer Slurm, which has ended its job {task}"

    def _before_token(self, handle: JobHandle, run_dir: str) -> Liveness:
        attempt = handle.attempt
        place = self._find_place(run_dir, attempt)
        is_gathered = any((each.dir, each.attempt) == (run_dir, attempt) for each, _ in self._gathered or ())
        if is_gathered or (place is not None and any(base == place.base for _, base in self._arrays.values())):
            return Liveness.ALIVE
        here = handle.host == processes.host_name()
        is_dead = here and not processes.is_alive(handle.supervisor_pid, handle.supervisor_start, handle.boot)
        code = self._load_code(place.base) if place is not None else None
        if load_submit_code(run_dir, attempt):
            return Liveness.GONE
        if place is None or code is None:  # the supervisor is about to submit the job, or died before that
            return self._give_up(handle, run_dir) if is_dead else Liveness.UNKNOWN
        if code != 0:
            write_submission(run_dir, attempt, code, queue.summarize_errors(read_end(f"{place.base}.log", _TAIL_BYTES)))
            return Liveness.GONE
        task = self._find_task(run_dir, attempt)
        state = self._queue.state(task) if task else queue.VANISHED
        if state is None or self._is_pending(run_dir, attempt):
            return self._wait_in_queue(handle, run_dir)
        return Liveness.UNKNOWN if queue.is_active(state) else self._give_up(handle, run_dir)

    def _give_up(self, handle: JobHandle, run_dir: str) -> Liveness:
        """Take the token of a job that Slurm does not have: a copy of the job that starts later exits."""
        self._take_token(run_dir, handle.attempt)
        return super()._judge(handle, run_dir)

    def refusal(self, _handle: JobHandle, _run_dir: str) -> str | None:
        """Return None: Slurm may take other jobs; `explain_end` explains why a job was refused."""
        return None

    def explain_end(self, handle: JobHandle, run_dir: str) -> tuple[EndKind, str] | None:
        """Explain what Slurm did to an attempt that did not end by itself."""
        refused = super().refusal(handle, run_dir)
        if refused is not None:
            return "interrupt", refused
        if has_numbered(run_dir, "stop", handle.attempt):
            return None
        silence = self._explain_silence(run_dir, handle.attempt)
        if silence is not None:
            self._fenced.add((run_dir, handle.attempt))
            return "fence", silence
        return self._explain_job(handle, run_dir)

    def _explain_job(self, handle: JobHandle, run_dir: str) -> tuple[EndKind, str] | None:
        """Explain from Slurm's record the end of an attempt whose node answers, or that has not begun."""
        task, is_unbegun = self._find_task(run_dir, handle.attempt), self._is_unbegun(run_dir, handle.attempt)
        place = self._find_place(run_dir, handle.attempt)
        # while the task of an ended run executes other runs, Slurm does not know how the ended run ended
        goes_on = place is not None and place.is_packed and queue.is_active(self._find_state(run_dir, handle.attempt))
        command = None if is_unbegun else find_unfinished(run_dir, handle.attempt)
        if task is None or command == "" or goes_on:
            return None
        state = self._queue.wait_for_end(task, self._find_beginning(run_dir, handle.attempt), _SETTLE_S)
        if state is not None and state.startswith("CANCELLED"):
            return "user", f"cancelled in Slurm (job {task})"
        if state == queue.VANISHED and is_unbegun and "_" in task and queue.has_given(task):
            return "user", f"cancelled in Slurm before it began (job {task})"
        if state == "TIMEOUT" and command is not None:
            self._write_time_limit(run_dir, handle, command)
            return None
        note = queue.load_summary(task)
        if note is None:
            return "lost", f"Slurm does not know its job {task} any more"
        said = f"Slurm reports of its job {task}: {note.state}, exit code {note.code}"
        said += (f", on {note.nodes}" if note.nodes else "") + _EXIT_CODES.get(note.code, "")
        return ("taken back" if note.is_taken_back else "lost"), said

    def _write_time_limit(self, run_dir: str, handle: JobHandle, command: str) -> None:
        """Record that Slurm's time limit ended the command, as job.sh records a limit of its own. The limit applies to
        the attempt: with `resume:` the next attempt continues."""
        marker = layout.exit_marker_name(command, handle.attempt, 124)
        warned = [layout.numbered_name("warned", handle.attempt)] if handle.begins is not None else []
        for name in (*warned, marker.replace(".exit.124", ".timeout"), marker):
            with contextlib.suppress(OSError):
                write_new(os.path.join(run_dir, name), b"")

    # ------------------------------------------------------------ ending

    def cancel(self, jobs: Sequence[tuple[JobHandle, str]], grace_s: float) -> None:
        """Write the stop files first, so that jobs end their own processes in the right order; Slurm ends jobs that do
        not react. Attempts that were given up are left out: `end_fenced` has already cancelled them in Slurm."""
        jobs = [job for job in jobs if (job[1], job[0].attempt) not in self._fenced]
        try:
            super().cancel(jobs, grace_s)
        except InfrastructureError:
            self._scancel(jobs)
            self._confirm(jobs, grace_s)
        else:
            self._scancel(jobs)

    def end_fenced(self, handle: JobHandle, run_dir: str) -> None:
        """Cancel the job in Slurm, unless Slurm has started it again: the new copy is the next attempt."""
        key = run_dir, handle.attempt
        stops = [each.stop for each in run_directory.load_history(run_dir).attempts if each.number == handle.attempt]
        if key in self._cancelled or any(stop is None or stop.who == REQUEUED_BY for stop in stops):
            return
        self._cancelled.add(key)
        self._fenced.add(key)
        self._scancel([(handle, run_dir)])

    def _scancel(self, jobs: Sequence[tuple[JobHandle, str]]) -> None:
        """Cancel all jobs with one command, except tasks that other runs still use."""
        dirs = {run_dir for _, run_dir in jobs}
        found = [
            self._find_task(run_dir, handle.attempt)
            for handle, run_dir in jobs
            if not _has_others(self._find_place(run_dir, handle.attempt), dirs)
        ]
        if tasks := [task for task in found if task is not None]:
            queue.call(("scancel", "--quiet", *dict.fromkeys(tasks)), _CANCEL_S)
            self._queue.ask_soon()

    def _run_cancel_command(self, run_dir: str, attempt: int) -> None:
        """Do nothing: `_scancel` cancels all jobs with one command."""

    def _may_still_run(self, handle: JobHandle, run_dir: str) -> bool:
        if not super()._may_still_run(handle, run_dir):
            return False
        if (task := self._find_task(run_dir, handle.attempt)) is not None:
            self._queue.poll((task,))
        return not self._is_over(run_dir, handle.attempt)

    def close(self) -> None:
        for pidfd in self._arrays:
            os.close(pidfd)
        self._arrays.clear()
        super().close()


# ---------------------------------------------------------------- files


def _load_place(run_dir: str, attempt: int) -> _Place | None:
    match = re.match(_PLACE, read_submit_log(run_dir, attempt))
    if match is None:
        return None
    folder = os.path.join(os.path.dirname(run_dir.rstrip("/")), layout.STUDY_META_DIR, layout.SLURM_DIR)
    return _Place(os.path.join(folder, match["id"]), match["index"], bool(match["packed"]))


def _has_others(place: _Place | None, dirs: AbstractSet[str]) -> bool:
    """Return whether the task has a run outside `dirs` that has not ended, which would be cancelled as well."""
    if place is None or not place.is_packed:
        return False
    try:
        words = read_text(f"{place.base}.list").split("\0")
    except OSError:
        return True
    attempts = [(path, _ATTEMPT.search(text)) for path, text in zip(words[::3], words[1::3], strict=False)]
    found = [(path, int(match[1])) for path, match in attempts if match and path not in dirs]
    ours = [(path, number) for path, number in found if (_load_place(path, number) == place)]
    return not all(has_numbered(path, "end", number) for path, number in ours)


def _build_environment() -> dict[str, str]:
    """Return the environment without the variables of this supervisor's job, which sbatch, scripts and srun obey."""
    env = process.base_environment()
    is_inside = "SLURM_JOB_ID" in env
    return {key: env[key] for key in env if not (is_inside and key.startswith("SLURM_")) or key in _KEPT}


def _load_number(base: str) -> str | None:
    """Return the number that sbatch printed."""
    match = re.search(r"^(\d+)(?:;\S+)?$", read_end(f"{base}.log", _TAIL_BYTES), re.MULTILINE)
    return match[1] if match else None


# ---------------------------------------------------------------- texts


def build_flags(farm: Farm, more: Sequence[tuple[str, object]] = (), packed: int = 1) -> list[str]:
    """Return the farm's options for sbatch; `more`: runx's SUBMIT_JOB.*; `packed`: runs of one job."""
    options: Mapping[str, object] = {**farm.options, **dict(more)}
    flags = [f"{flag}={options[key]}" for key, flag in _PLAIN_FLAGS.items() if options.get(key)]
    if seconds := farm.options.get("time"):
        flags.append(f"--time={-int(-seconds * packed // 60)}")  # Slurm counts minutes
    if gpus := options.get("gpus"):
        flags.append(f"--gres=gpu:{gpus}")
    if cpus := options.get("cpus"):
        flags.append(f"--cpus-per-task={cpus}")
    if size := farm.options.get("memory"):
        flags.append(f"--mem={-(-size // 2**20)}M")
    if nodes := _count_nodes(options):
        flags += [f"--nodes={nodes}", f"--ntasks-per-node={options.get('tasks_per_node') or 1}"]
    if signal := parse_signal(farm.options.get("signal", "")):
        flags.append(f"--signal=B:{signal[0]}@{signal[1]}")
    return [*flags, *farm.options.get("flags", ())]


def _count_nodes(options: Mapping[str, object]) -> object:
    """Return the number of nodes of a run whose commands srun starts; None for other runs."""
    return options.get("nodes") or (1 if options.get("tasks_per_node") else None)


def build_script(farm: Farm, list_path: str, image: container.ContainerImage | None = None) -> str:
    body, rank = _RUN, _RANK
    if signal := parse_signal(farm.options.get("signal", "")):
        body = processes.BASH_TELL_PROGRAMS + _FORWARD.format(signal=signal[0])
        rank = _WARNED_RANK.format(signal=signal[0])
    launch = container.build_launch(farm, image) if image is not None else ""
    if _count_nodes(farm.options):
        launch = _build_tasks(farm, image, rank)
    number = os.path.splitext(os.path.basename(list_path))[0]
    requeued = REQUEUED.replace("{id}", number).replace("{by}", REQUEUED_BY).lstrip()
    values = {"list": shlex.quote(list_path), "log": layout.JOB_LOG, "requeued": requeued}
    if (pack := int(farm.options.get("pack") or 1)) > 1:
        return _PACKED.format(pack=pack, body=launch, **values)
    return _SCRIPT.format(body=launch + body, **values)


def _build_tasks(farm: Farm, image: container.ContainerImage | None, rank: str) -> str:
    """Return the part of the script in which srun starts a command as every task, in the container of the farm."""
    tasks = farm.options.get("tasks_per_node") or 1
    flags = shlex.join([f"--ntasks-per-node={tasks}", *farm.options.get("srun_flags", ())])
    flags, inside = f"{flags} {container.build_srun_flags(farm, image)}".rstrip(), ""
    if image is not None and container.choose_runtime(farm) != PYXIS:
        inside, rank = container.build_launch(farm, image), rank.replace("eval", container.CONTAINER_FUNCTION)
    launch = inside + _NODES.replace("{flags}", flags).replace("{rank}", rank)
    return launch + (_TORCHRUN if tasks == 1 else "")
