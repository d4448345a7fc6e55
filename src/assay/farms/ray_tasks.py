"""Jobs as tasks of a Ray cluster, an existing one or the supervisor's own, and as Ray Jobs of a remote cluster.

The protocol is that of farms (`farms/submit.py`): the lease is published first, `job.sh` takes `token.N` before it does
anything, `end.N` shows that `job.sh` has exited. Ray decides where and when a job runs; how a run ended is read from
the run's files, never from Ray's report about a task. Ray never repeats a task. job.sh and the run directory are on a
file system that all nodes share.

`ray_bridge` calls Ray, in a child process; `ray_nodes` runs on the nodes; `ray_farm` has the resources of a farm.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from assay.errors import InfrastructureError, UsageError
from assay.execute import process
from assay.execute.base import EndKind, Publish
from assay.execute.script import quote_text
from assay.farms import ray_farm, ray_nodes
from assay.farms.engines import LOST_AFTER_S
from assay.farms.ray_bridge import Bridge, SilentError, find_bridge
from assay.farms.ray_farm import LOCAL
from assay.farms.ray_nodes import REFUSED, Ended
from assay.farms.submit import (
    SubmitExecutor,
    find_lost_hosts,
    find_unfinished,
    has_numbered,
    load_submit_code,
    read_submit_log,
    write_submission,
)
from assay.farms.submit_lines import build_job_command
from assay.farms.waiting import Key
from assay.show.formatting import render_duration
from assay.system import processes
from assay.system.files import write_new
from assay.values import layout
from assay.values.run import JobHandle, JobRequest, Liveness, Usage
from assay.values.study import Farm

_RECONNECT_S = 5.0
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 1.0  # between checks of files, if Ray does not report an end by itself
_ASK_S = 2.0  # between requests to a dashboard about jobs whose files show no end
_SILENCE_S = 5.0  # limit of an answer about tasks, after which the connection to the head is tested
_LOOK_S = 30.0  # limit of a dashboard's answer, and the time until the reason is reported why no job begins
_NODES_S = 5.0  # between requests for the list of living nodes
_ELSEWHERE_S = 15.0  # a guard on another node has this long to end what a dead worker has started
_PROBE_S = 15.0  # between checks whether an unconnected cluster can be reached
_SETTLE_S = 20.0  # how long Ray may take to report the end of a job
_MOST_SILENCE_S = 60.0  # longest time without an answer about tasks; then the connection is closed
_CLUSTER_DEATH_S = 90.0  # Ray's nodes end themselves and their workers when the head was away for 60 s
_BATCH_S = 0.05  # the first of several jobs that are submitted together waits no longer than this for the others


class RayExecutor(SubmitExecutor):
    """`sizes`: the resources of the supervisor's own cluster (num_cpus, num_gpus); by default Ray detects them."""

    name = "ray"

    def __init__(self, farm: Farm, sizes: Mapping[str, float] | None = None) -> None:
        super().__init__(farm)
        self._sizes = dict(sizes or {})
        self._bridge: Bridge | None = None
        self._failed_at = -_RECONNECT_S
        self._ends: dict[Key, Ended | None] = {}  # ends of watched jobs; None: unknown to Ray
        self._over_since: dict[Key, float] = {}
        self._asked_at, self._nodes_at, self._idle_since = 0.0, 0.0, time.monotonic()
        self._dead_hosts: Sequence[str] = ()
        self._probes: dict[str, tuple[float, str]] = {}  # by cluster: time of the last test, why it failed
        self._silent_since: float | None = None  # since when requests about tasks have had no answer
        self._absent_since: dict[str, float] = {}  # by cluster: since when it cannot be reached
        self._taken_back: dict[Key, str] = {}
        self._silences: dict[Key, str] = {}  # by attempt: why it is given up, if its node or cluster does not answer
        self._lost_after_s: float = farm.options.get("lost_after") or LOST_AFTER_S
        self._reported: set[str] = set()
        self._is_gathering = False
        self._gathered: dict[Key, dict[str, Any]] = {}  # jobs whose lease is published and that are not submitted yet
        self._gathered_at = 0.0

    @classmethod
    def check(cls, farm: Farm) -> None:
        """Check that the cluster can run the farm's jobs. The connection is kept for this process's next executor."""
        ray_farm.check_amounts(farm)
        bridge = find_bridge(ray_farm.choose_address(farm), {})
        try:
            _check_demand(farm, bridge)
        except UsageError:
            if not bridge.users:
                bridge.close()
            raise

    @classmethod
    def render_line(cls, farm: Farm, request: JobRequest, command: str) -> str:
        wanted = ", ".join(f"{name} {amount:g}" for name, amount in ray_farm.build_demand(farm).items())
        return f"[ray task: {wanted}] {layout.show_command(command, request.dir)}"

    # ------------------------------------------------------------ submitting

    def submit(self, request: JobRequest, publish: Publish) -> JobHandle | None:
        bridge = self._connect()
        _check_demand(self.farm, bridge)
        script = os.path.join(request.dir, layout.JOB_FILE)
        if not os.path.isfile(script):
            raise InfrastructureError(f"cannot start {request.name}: {script} is not there")
        job = self._prepare(request, bridge)
        handle = replace(process.build_handle(request, self.name), native_id=bridge.cluster)
        if not publish(handle):
            return None
        key = (request.dir, request.attempt)
        self._watched[key] = handle
        self._waiting.add(key)
        self._idle_since = time.monotonic()
        self._gathered[key] = job
        if not self._is_gathering:
            self._send_one(bridge, key, request)
        elif len(self._gathered) == 1:
            self._gathered_at = time.monotonic()
        elif time.monotonic() - self._gathered_at > _BATCH_S:
            self._send(bridge)
        return handle

    @classmethod
    def find_job(cls, handle: JobHandle, _run_dir: str) -> str:
        """Return the name of a Ray Job; for a task, which has no name, the name of its cluster."""
        return f"assay-{handle.tag}" if ray_farm.is_jobs_address(handle.native_id) else handle.native_id

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        self._is_gathering = True
        try:
            yield
        finally:
            self._is_gathering = False
            if self._gathered:
                self._send(self._connect())

    def _send_one(self, bridge: Bridge, key: Key, request: JobRequest) -> None:
        said, hint = None, None
        try:
            self._send(bridge)
        except InfrastructureError as error:
            said, hint = error.message, error.hint
        said = said or self.refusal(self._watched[key], request.dir)
        if said:
            if load_submit_code(*key):
                del self._watched[key]
            raise InfrastructureError(f"cannot start {request.name}: {said}", hint)

    def _send(self, bridge: Bridge) -> None:
        gathered, self._gathered = self._gathered, {}
        try:
            refused = bridge.call("submit", list(gathered.values()), ray_farm.build_options(self.farm))
        except InfrastructureError as error:
            for key in gathered:
                self._refuse(key, error.message)
            raise
        for key, job in gathered.items():
            if job["tag"] in refused:
                self._refuse(key, refused[job["tag"]])
            elif bridge.is_shared:  # the job waits in the cluster's queue, whatever happens to this process
                kind = "job" if bridge.takes_jobs else "task"
                write_submission(*key, 0, f"{kind} of the Ray cluster at {bridge.cluster}")

    def _prepare(self, request: JobRequest, bridge: Bridge) -> dict[str, Any]:
        if not bridge.takes_jobs:
            return _build_job(self.farm, request)
        job = _build_remote_job(self.farm, request)
        device = os.stat(request.dir).st_dev
        if device not in bridge.probed:
            found = bridge.call("probe", job, ray_farm.build_options(self.farm))
            if found:
                problem = f"the Ray cluster {bridge.cluster} does not see the runs: {found.removeprefix(REFUSED)}"
                hint = "choose a folder that this machine and all nodes have at the same path (--root or ASSAY_ROOT)"
                raise InfrastructureError(problem, hint)
            bridge.probed.add(device)
        return job

    def _refuse(self, key: Key, message: str) -> None:
        """Record that a job was not submitted. If the cluster has it nevertheless, the token decides if it runs."""
        self._take_token(*key)
        if self._is_unbegun(*key):
            write_submission(*key, 126, message)

    def is_handed_over(self) -> bool:
        return self._bridge is not None and self._bridge.is_shared and not self._gathered

    def refusal(self, handle: JobHandle, run_dir: str) -> str | None:
        if not load_submit_code(run_dir, handle.attempt):
            return None
        return f"Ray did not start the job: {read_submit_log(run_dir, handle.attempt).strip()}"

    # ------------------------------------------------------------ watching

    def watch(self, handle: JobHandle, run_dir: str) -> None:
        super().watch(handle, run_dir)
        self._waiting.add((run_dir, handle.attempt))

    def wait(self, timeout_s: float) -> Sequence[JobHandle]:
        deadline, pause_s = time.monotonic() + max(0.0, timeout_s), _SHORTEST_PAUSE_S
        while True:
            self._note_begun()
            self._explain_wait()
            self._look(max(0.0, deadline - time.monotonic()), pause_s)
            ended = [key for key in self._ends if self.liveness(self._watched[key], key[0]) is Liveness.GONE]
            if ended or time.monotonic() >= deadline:
                return [self._forget(key) for key in ended]
            pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)

    def _explain_wait(self) -> None:
        """Report why no watched job begins: other jobs use the cluster, or the node that could run the job has left."""
        now, bridge, watched = time.monotonic(), self._bridge, self._watched.items()
        if (
            bridge is None
            or self._silent_since is not None
            or any(key not in self._waiting or each.native_id != bridge.cluster for key, each in watched)
        ):
            self._idle_since = now
        elif watched and now - self._idle_since >= _LOOK_S:
            self._idle_since = now
            with contextlib.suppress(InfrastructureError):
                nodes = bridge.call("list_nodes", limit_s=_PROBE_S)
                self._report_once(ray_farm.refuse_demand(nodes, self.farm, bridge.cluster).render())

    def _forget(self, key: Key) -> JobHandle:
        handle, end = self._watched.pop(key), self._ends.pop(key)
        self._over_since.pop(key, None)
        self._waiting.discard(key)
        self._idle_since = time.monotonic()
        if end is not None and not end[0]:
            self._usage[handle] = Usage(cpu_s=end[1], peak_rss_bytes=end[2])
        return handle

    def _look(self, left_s: float, pause_s: float) -> None:
        """Request the ends of watched jobs from Ray; without a connection, the jobs' files are read."""
        keys = [key for key in self._watched if key not in self._ends]
        ours = [key for key in keys if self._is_asked(self._watched[key])]
        self._ends.update(dict.fromkeys(set(keys).difference(ours)))
        short_s = min(left_s, pause_s)
        if not ours:
            time.sleep(short_s if self._ends else left_s)
        elif self._bridge is not None and self._bridge.takes_jobs:
            self._look_at_files(ours, short_s)
        else:
            self._note(self._ask({self._watched[key].tag: key for key in ours}, short_s if self._ends else left_s))
            self._ends.update(dict.fromkeys(key for key in ours if key not in self._ends and self._is_cut_off(key)))

    def _look_at_files(self, keys: Sequence[Key], pause_s: float) -> None:
        """Read the files of jobs and rarely query a dashboard: each job leaves `end.N`, unless it has died or waits."""
        begun = [key for key in keys if key not in self._waiting]
        ended = [key for key in begun if has_numbered(key[0], "end", key[1])]
        self._ends.update(dict.fromkeys(ended))
        if ended:
            return
        if time.monotonic() - self._asked_at > _ASK_S:
            self._note(self._ask({self._watched[key].tag: key for key in keys}, 0.0))
            self._asked_at = time.monotonic()
        time.sleep(pause_s)

    def _note(self, ends: Mapping[Key, Ended | None]) -> None:
        for key, end in ends.items():
            self._ends[key] = end
            if end is not None and end[0].startswith(REFUSED):
                write_submission(*key, 126, end[0].removeprefix(REFUSED))

    def _ask(self, keys: Mapping[str, Key], timeout_s: float) -> Mapping[Key, Ended | None]:
        """Request the ends of attempts by their tags, since a directory may be removed and made again."""
        try:
            bridge = self._connect()
            patience_s = _LOOK_S if bridge.takes_jobs else _SILENCE_S
            limit_s = timeout_s + patience_s if bridge.is_shared else None
            ends: Mapping[str, Ended | None] = bridge.call("look", list(keys), timeout_s, limit_s=limit_s)
        except InfrastructureError as error:  # the cluster has died; the files show how its jobs ended
            if not isinstance(error, SilentError) or bridge.takes_jobs or not self._is_still_asked(bridge):
                self._drop_bridge()
            return {}
        self._silent_since = None
        return {keys[tag]: end for tag, end in ends.items()}

    def _is_still_asked(self, bridge: Bridge) -> bool:
        """Report a head that does not answer, and return whether to keep the connection. Ray itself waits a minute."""
        now = time.monotonic()
        self._silent_since = self._silent_since or now
        if reason := self._probe(bridge.cluster):
            self._report_absence(bridge.cluster, reason)
        return now - self._silent_since < _MOST_SILENCE_S

    def _is_shared(self, handle: JobHandle) -> bool:
        return not handle.native_id.startswith(LOCAL)

    def _is_asked(self, handle: JobHandle) -> bool:
        """Return whether the job is on the cluster to which this executor is connected."""
        if self._bridge is None and self._is_shared(handle) and ray_farm.choose_address(self.farm) != LOCAL:
            if time.monotonic() - self._failed_at < _RECONNECT_S:
                return False
            try:
                self._connect()
            except (InfrastructureError, UsageError):
                self._failed_at = time.monotonic()
        return self._bridge is not None and handle.native_id == self._bridge.cluster

    def _judge(self, handle: JobHandle, run_dir: str) -> Liveness:
        token = self._load_token(run_dir, handle.attempt)
        other = token.host if token is not None and token.pid != 0 and token.host != processes.host_name() else ""
        if (token is not None and not other) or load_submit_code(run_dir, handle.attempt):
            return super()._judge(handle, run_dir)
        if has_numbered(run_dir, "end", handle.attempt):
            return Liveness.GONE
        is_known, is_over = self._find_end(handle, (run_dir, handle.attempt))
        if is_known and not is_over:
            return Liveness.ALIVE
        if other:
            return self._judge_elsewhere(handle, run_dir, other) if is_over else Liveness.UNKNOWN
        if not is_over:
            found = super()._judge(handle, run_dir)
            if found is not Liveness.GONE:
                return found
        self._take_token(run_dir, handle.attempt)  # a worker that is about to start the job will exit
        return super()._judge(handle, run_dir)

    def _judge_elsewhere(self, handle: JobHandle, run_dir: str, host: str) -> Liveness:
        """Judge a job whose task has ended without `end.N`: its node has died, or a guard is still ending the job."""
        key = run_dir, handle.attempt
        since = self._over_since.setdefault(key, time.monotonic())
        wait_s = min(_ELSEWHERE_S, self._lost_after_s)
        if handle.native_id not in self._absent_since:
            said = f"the node {host} of the Ray cluster has lost its jobs, and does not answer"
            self._silences[key] = f"its node {host} does not answer Ray, which has ended its job"
            self._report_once(f"{said}; they are started again elsewhere after {render_duration(wait_s)}")
        return Liveness.GONE if time.monotonic() - since > wait_s else Liveness.ALIVE

    def _find_end(self, handle: JobHandle, key: Key) -> tuple[bool, bool]:
        """Return whether Ray knows the job, and whether the job can no longer begin or go on."""
        if self._ends.get(key) is not None:
            return True, True
        if not self._is_asked(handle):
            is_ours = handle.supervisor_pid == os.getpid() and handle.host == processes.host_name()
            return False, self._is_cluster_gone(handle, key) if self._is_shared(handle) else is_ours
        found = self._ask({handle.tag: key}, 0.0)
        if key not in found:
            return self._bridge is not None, self._is_cut_off(key)
        if found[key] is not None:
            return True, True
        # the job was never submitted, or its owner in the cluster has died with its tasks
        was_submitted = load_submit_code(*key) == 0
        if was_submitted:
            self._taken_back[key] = f"the Ray cluster at {handle.native_id} does not know it: it was started again"
        return False, was_submitted or handle.supervisor_pid == os.getpid()

    def _is_cut_off(self, key: Key) -> bool:
        """Return whether the job runs on a machine that the cluster has given up. If the machine has frozen or its
        network is down, nothing closes the connection, and Ray ends the job's task only minutes later."""
        token = self._load_token(*key)
        if token is None or self._bridge is None or self._bridge.takes_jobs or self._silent_since is not None:
            return False
        if time.monotonic() - self._nodes_at > _NODES_S:
            self._nodes_at = time.monotonic()
            with contextlib.suppress(InfrastructureError):
                self._dead_hosts = self._bridge.call("list_dead_hosts")
        return token.host in self._dead_hosts

    def _is_cluster_gone(self, handle: JobHandle, key: Key) -> bool:
        """Return whether a job can neither begin nor continue on a cluster to which there is no connection. A job that
        has not begun is taken back as soon as the cluster does not answer; its token shows if it began nevertheless."""
        reason, cluster = self._probe(handle.native_id), f"the Ray cluster at {handle.native_id}"
        is_own = ray_farm.choose_address(self.farm) == LOCAL
        ours = self._bridge.cluster if self._bridge is not None else LOCAL if is_own else ""
        if not reason:
            if ours:
                self._report_once(f"runs of {cluster} are waited for, though the farm's is {ours}")
            return False
        if self._load_token(*key) is not None:
            limit_s = self._report_absence(handle.native_id, reason)
            self._silences[key] = f"{cluster} has not answered for {render_duration(limit_s)}"
            return time.monotonic() - self._absent_since[handle.native_id] > limit_s
        said = f"{cluster} is gone ({reason})"
        self._report_once(f"{said}: " + (f"what waited there goes to {ours}" if ours else "its runs are waited for"))
        if ours:
            self._taken_back[key] = f"it waited in the queue, and {said}"
        return bool(ours)

    def _report_absence(self, cluster: str, reason: str) -> float:
        """Report once that a cluster does not answer; return the time after which the cluster's jobs are given up.
        Jobs go on without a dashboard, but not without the head."""
        is_dashboard = ray_farm.is_jobs_address(cluster)
        limit_s = self._lost_after_s if is_dashboard else min(_CLUSTER_DEATH_S, self._lost_after_s)
        said = f"the Ray cluster at {cluster} does not answer ({reason}): what runs there is given up after"
        self._report_once(f"{said} {render_duration(limit_s)}", cluster)
        return limit_s

    def _probe(self, cluster: str) -> str:
        """Return why the cluster cannot be reached; empty if it can."""
        looked_at, reason = self._probes.get(cluster, (-_PROBE_S, ""))
        if time.monotonic() - looked_at > _PROBE_S:
            reason = ray_farm.find_absence(cluster)
            self._probes[cluster] = time.monotonic(), reason
            if reason:
                self._absent_since.setdefault(cluster, time.monotonic())
            else:
                self._absent_since.pop(cluster, None)
                self._reported.discard(cluster)
        return reason

    def _report_once(self, message: str, about: str = "") -> None:
        """Report a message, unless the same message or one with the same `about` was reported."""
        if (about or message) not in self._reported:
            self._reported.add(about or message)
            self._messages.append(message)

    def explain_end(self, handle: JobHandle, run_dir: str) -> tuple[EndKind, str] | None:
        key = run_dir, handle.attempt
        said, silence = self._taken_back.pop(key, None), self._silences.pop(key, None)
        if said and self._is_unbegun(*key):
            return "taken back", said
        if has_numbered(run_dir, "stop", handle.attempt):
            return None
        if silence is not None and not has_numbered(run_dir, "end", handle.attempt):
            self._fenced.add(key)
            return "fence", silence
        name = self.find_job(handle, run_dir)
        return ("user", f"stopped in Ray (job {name})") if self._was_cancelled(handle, key) else None

    def _was_cancelled(self, handle: JobHandle, key: Key) -> bool:
        """Return whether a person stopped a Ray Job with Ray's command; Ray is queried if the files show no end."""
        has_end = not self._is_unbegun(*key) and find_unfinished(*key) == ""
        if has_end or not ray_farm.is_jobs_address(handle.native_id) or not self._is_asked(handle):
            return False
        deadline = time.monotonic() + _SETTLE_S
        while key not in (ends := self._ask({handle.tag: key}, 0.0)) and time.monotonic() < deadline:
            time.sleep(_SHORTEST_PAUSE_S)
        end = ends.get(key)
        return end is not None and end[0] == "STOPPED"  # the state after `ray job stop`

    # ------------------------------------------------------------ ending

    def cancel(self, jobs: Sequence[tuple[JobHandle, str]], grace_s: float) -> None:
        """Cancel jobs by files, which need no connection; with a connection, Ray's queue drops jobs that wait."""
        super().cancel(jobs, grace_s)
        waiting = [handle.tag for handle, run_dir in jobs if self._is_unbegun(run_dir, handle.attempt)]
        if waiting and self._bridge is not None:
            with contextlib.suppress(InfrastructureError):
                self._bridge.call("cancel", waiting)

    def close(self) -> None:
        """Close the connection; the supervisor's own cluster and its jobs end with the cluster's last executor."""
        if self._bridge is not None:
            self._bridge.users -= 1
            if self._bridge.users <= 0:
                self._bridge.close()
            self._bridge = None
        super().close()

    # ------------------------------------------------------------ the connection

    def _connect(self) -> Bridge:
        if self._bridge is not None and not self._bridge.is_open:
            self._drop_bridge()
        if self._bridge is None:
            self._bridge = find_bridge(ray_farm.choose_address(self.farm), self._sizes)
            self._bridge.users += 1
        return self._bridge

    def _drop_bridge(self) -> None:
        if self._bridge is not None:
            self._bridge.close()
            self._bridge = None
        self._silent_since = None


def _check_demand(farm: Farm, bridge: Bridge) -> None:
    """Check that a node of the cluster can meet the demand, among the known nodes or those of a new list."""
    ray_farm.check_amounts(farm)
    if ray_farm.can_give(bridge.nodes, farm):
        return
    bridge.nodes = bridge.call("list_nodes")
    if not ray_farm.can_give(bridge.nodes, farm):
        raise ray_farm.refuse_demand(bridge.nodes, farm, bridge.cluster)


def _build_job(farm: Farm, request: JobRequest) -> dict[str, Any]:
    return {
        "avoid": find_lost_hosts(request),
        "demand": ray_farm.build_demand(farm),
        "dir": request.dir,
        "script": os.path.join(request.dir, layout.JOB_FILE),
        "end": layout.numbered_path(request.dir, "end", request.attempt),
        "tag": request.tag,
        "env": process.request_environment(request),
        "drop": process.OUTER,
        "guard": ray_nodes.GUARD,
        "refused": REFUSED,
    }


def _build_remote_job(farm: Farm, request: JobRequest) -> dict[str, Any]:
    """Write `submit.sh.N` into the run directory: the entry point of a Ray Job executes it when the node sees it."""
    path = os.path.join(request.dir, layout.submit_script_name(request.attempt))
    text = ray_nodes.JOB_STARTER.format(
        tag=request.tag,
        guard=quote_text(ray_nodes.GUARD),
        end=shlex.quote(layout.numbered_path(request.dir, "end", request.attempt)),
        drop=" ".join(process.OUTER),
        dir=shlex.quote(request.dir),
        command=build_job_command(farm, request),
    )
    with contextlib.suppress(FileExistsError):
        write_new(path, text.encode("utf-8", "surrogateescape"), 0o777)
    entry = {"path": shlex.quote(path), "tag": request.tag, "refused": REFUSED}
    return {
        "tag": request.tag,
        "name": request.name,
        "entry": ray_nodes.ENTRY.format(**entry, then='exec bash "$f"'),
        "probe": ray_nodes.ENTRY.format(**entry, then="true"),
    }
