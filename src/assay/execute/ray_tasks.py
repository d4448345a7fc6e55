"""Jobs as tasks of a Ray cluster: one that exists, or one of this supervisor's own.

The protocol is that of farms (`execute/submit.py`): the lease is published first, `job.sh` takes `token.N` before it
does anything, `end.N` says that it has left. Ray decides where and when; what became of a run is read from its files,
never from a task's result. A task is never repeated by Ray.

Ray is used in a child process, the bridge: Ray ends a process whose cluster has died, installs signal handlers, and
prints. When the supervisor dies, its pipe to the bridge ends. The tasks belong to

- the bridge, where the cluster is its own: they end with it, however the supervisor ended;
- a detached actor, where the cluster exists already: they go on, and the next supervisor asks that actor.

A job lives no longer than the worker that waits for it, since Ray then gives its GPUs to somebody else: a guard, one
for each worker, ends what the job has started. What runs on the nodes is sent by value and needs the standard library
alone; job.sh and the run directory are on a file system that all nodes share.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

from assay.errors import InfrastructureError, MissingExtraError, UsageError
from assay.execute import process
from assay.execute.base import Publish
from assay.execute.submit import SubmitExecutor, load_submit_code
from assay.system import processes
from assay.system.files import read_end
from assay.values import layout
from assay.values.run import JobHandle, JobRequest, Liveness, Usage
from assay.values.study import Farm

_Key = tuple[str, int]  # run directory and attempt
_Ended = tuple[str, float, int]  # what went wrong, CPU seconds, peak bytes
_REFUSED = "refused: "  # begins the text of an end where nothing was started

_LOCAL = "local"
_CONNECT_S = 120.0
_REACH_S = 5.0
_CLOSE_S = 20.0
_RECONNECT_S = 5.0
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 1.0  # between looks at files, where Ray has nothing more to say
_ELSEWHERE_S = 15.0  # a guard on another node has this long to end what a dead worker has started
_LONGEST_FOLDER = 24  # Ray's sockets are about 80 characters below it, and a socket's path has at most 107
_OBJECT_STORE_BYTES = 100_000_000  # tasks that return a few bytes need none; Ray would take a third of the memory
_LOG_TAIL_BYTES = 4096


class RayExecutor(SubmitExecutor):
    """`sizes`: what a cluster of our own pretends to have (num_cpus, num_gpus); Ray looks by itself otherwise."""

    name = "ray"

    def __init__(self, farm: Farm, sizes: Mapping[str, float] | None = None) -> None:
        super().__init__(farm)
        self._sizes = dict(sizes or {})
        self._bridge: _Bridge | None = None
        self._failed_at = -_RECONNECT_S
        self._ends: dict[_Key, _Ended | None] = {}  # of watched jobs; None: Ray does not know it
        self._over_since: dict[_Key, float] = {}

    @classmethod
    def check(cls, farm: Farm) -> None:
        """The connection is kept for the executor that comes next; without one it ends with this process."""
        bridge = _find_bridge(farm, {})
        try:
            _check_demand(farm, bridge)
        except UsageError:
            if not bridge.users:
                bridge.close()
            raise

    @classmethod
    def render_line(cls, farm: Farm, _request: JobRequest, training: str) -> str:
        wanted = ", ".join(f"{name} {amount:g}" for name, amount in _build_demand(farm).items())
        return f"[ray task: {wanted}] {training}"

    # ------------------------------------------------------------ submitting

    def submit(self, request: JobRequest, publish: Publish) -> JobHandle | None:
        bridge = self._connect()
        _check_demand(self.farm, bridge)
        script = os.path.join(request.dir, layout.JOB_FILE)
        if not os.path.isfile(script):
            raise InfrastructureError(f"cannot start {request.name}: {script} is not there")
        handle = replace(process.build_handle(request, self.name), native_id=bridge.cluster)
        if not publish(handle):
            return None
        key = (request.dir, request.attempt)
        self._watched[key] = handle
        try:
            bridge.call("submit", request.tag, _build_job(request), _build_options(self.farm))
        except InfrastructureError as error:
            self._refuse(key, error.message)
            raise InfrastructureError(f"cannot start {request.name}: {error.message}", error.hint) from error
        if bridge.is_shared:  # it waits in the cluster's queue, whatever becomes of us
            _note_submission(key, f"task of the Ray cluster at {bridge.cluster}", 0)
        return handle

    def _refuse(self, key: _Key, message: str) -> None:
        """The cluster may have it all the same: then it finds its token taken, or has taken it and goes on."""
        self._take_token(*key)
        token = self._load_token(*key)
        if token is not None and token.pid == 0:
            self._watched.pop(key, None)
            _note_submission(key, message, 126)

    def is_handed_over(self) -> bool:
        return self._bridge is not None and self._bridge.is_shared

    def refusal(self, handle: JobHandle, run_dir: str) -> str | None:
        if not load_submit_code(run_dir, handle.attempt):
            return None
        said = read_end(os.path.join(run_dir, layout.submit_log_name(handle.attempt)), _LOG_TAIL_BYTES).strip()
        return f"Ray did not start the job: {said}"

    # ------------------------------------------------------------ watching

    def wait(self, timeout_s: float) -> Sequence[JobHandle]:
        deadline, pause_s = time.monotonic() + max(0.0, timeout_s), _SHORTEST_PAUSE_S
        while True:
            left = max(0.0, deadline - time.monotonic())
            self._look(min(left, pause_s) if self._ends else left)
            ended = [key for key in self._ends if self.liveness(self._watched[key], key[0]) is Liveness.GONE]
            if ended or time.monotonic() >= deadline:
                return [self._forget(key) for key in ended]
            pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)

    def _forget(self, key: _Key) -> JobHandle:
        handle, end = self._watched.pop(key), self._ends.pop(key)
        self._over_since.pop(key, None)
        if end is not None and not end[0]:
            self._usage[handle] = Usage(cpu_s=end[1], peak_rss_bytes=end[2])
        return handle

    def _look(self, timeout_s: float) -> None:
        """Ask Ray for the ends of watched jobs; where it cannot be asked, their files are looked at."""
        keys = [key for key in self._watched if key not in self._ends]
        ours = [key for key in keys if self._is_asked(self._watched[key])]
        self._ends.update(dict.fromkeys(set(keys).difference(ours)))
        if ours:
            self._note(self._ask({self._watched[key].tag: key for key in ours}, timeout_s))
        else:
            time.sleep(timeout_s)

    def _note(self, ends: Mapping[_Key, _Ended | None]) -> None:
        for key, end in ends.items():
            self._ends[key] = end
            if end is not None and end[0].startswith(_REFUSED):
                _note_submission(key, end[0].removeprefix(_REFUSED), 126)

    def _ask(self, keys: Mapping[str, _Key], timeout_s: float) -> Mapping[_Key, _Ended | None]:
        """By the attempts' tags: a directory may be removed and made again."""
        try:
            ends: Mapping[str, _Ended | None] = self._connect().call("look", list(keys), timeout_s)
        except InfrastructureError:  # the cluster has died; files say what became of its jobs
            self._drop_bridge()
            return {}
        return {keys[tag]: end for tag, end in ends.items()}

    def _is_shared(self, handle: JobHandle) -> bool:
        return not handle.native_id.startswith(_LOCAL)

    def _is_asked(self, handle: JobHandle) -> bool:
        """Whether the job is on the cluster that we speak to."""
        if self._bridge is None and self._is_shared(handle) and _choose_address(self.farm) != _LOCAL:
            if time.monotonic() - self._failed_at < _RECONNECT_S:
                return False
            try:
                self._connect()
            except (InfrastructureError, UsageError):
                self._failed_at = time.monotonic()
        return self._bridge is not None and handle.native_id == self._bridge.cluster

    def _judge(self, handle: JobHandle, run_dir: str) -> Liveness:
        token = self._load_token(run_dir, handle.attempt)
        is_elsewhere = token is not None and token.pid != 0 and token.host != processes.host_name()
        if (token is not None and not is_elsewhere) or load_submit_code(run_dir, handle.attempt):
            return super()._judge(handle, run_dir)
        if os.path.exists(os.path.join(run_dir, layout.end_name(handle.attempt))):
            return Liveness.GONE
        is_known, is_over = self._find_end(handle, (run_dir, handle.attempt))
        if is_known and not is_over:
            return Liveness.ALIVE
        if is_elsewhere:
            return self._judge_elsewhere((run_dir, handle.attempt)) if is_over else Liveness.UNKNOWN
        if not is_over:
            found = super()._judge(handle, run_dir)
            if found is not Liveness.GONE:
                return found
        self._take_token(run_dir, handle.attempt)  # a worker that is just about to start it will leave
        return super()._judge(handle, run_dir)

    def _judge_elsewhere(self, key: _Key) -> Liveness:
        """The task is over and `end.N` is not there: its node has died, or a guard is still ending the job."""
        since = self._over_since.setdefault(key, time.monotonic())
        return Liveness.GONE if time.monotonic() - since > _ELSEWHERE_S else Liveness.ALIVE

    def _find_end(self, handle: JobHandle, key: _Key) -> tuple[bool, bool]:
        """Whether Ray knows the job; whether it can no longer begin or go on."""
        if self._ends.get(key) is not None:
            return True, True
        if not self._is_asked(handle):
            is_ours = handle.supervisor_pid == os.getpid() and handle.host == processes.host_name()
            return False, is_ours and not self._is_shared(handle)
        found = self._ask({handle.tag: key}, 0.0)
        if key not in found:
            return self._bridge is not None, False
        if found[key] is not None:
            return True, True
        # never submitted, or its owner in the cluster has died and everything that it had
        was_submitted = load_submit_code(*key) == 0
        return False, was_submitted or handle.supervisor_pid == os.getpid()

    # ------------------------------------------------------------ ending

    def cancel(self, jobs: Sequence[tuple[JobHandle, str]], grace_s: float) -> None:
        """By files, so that it needs no connection; what still waits in Ray's queue is taken out where there is one."""
        super().cancel(jobs, grace_s)
        waiting = [handle.tag for handle, run_dir in jobs if self._is_unbegun(run_dir, handle.attempt)]
        if waiting and self._bridge is not None:
            with contextlib.suppress(InfrastructureError):
                self._bridge.call("cancel", waiting)

    def _is_unbegun(self, run_dir: str, attempt: int) -> bool:
        token = self._load_token(run_dir, attempt)
        return token is not None and token.pid == 0

    def close(self) -> None:
        """A cluster of our own ends with its last executor, and its jobs with it."""
        if self._bridge is not None:
            self._bridge.users -= 1
            if self._bridge.users <= 0:
                self._bridge.close()
            self._bridge = None
        super().close()

    # ------------------------------------------------------------ the connection

    def _connect(self) -> _Bridge:
        if self._bridge is not None and not self._bridge.is_open:
            self._drop_bridge()
        if self._bridge is None:
            self._bridge = _find_bridge(self.farm, self._sizes)
            self._bridge.users += 1
        return self._bridge

    def _drop_bridge(self) -> None:
        if self._bridge is not None:
            self._bridge.close()
            self._bridge = None


def _build_job(request: JobRequest) -> dict[str, Any]:
    return {
        "dir": request.dir,
        "script": os.path.join(request.dir, layout.JOB_FILE),
        "end": os.path.join(request.dir, layout.end_name(request.attempt)),
        "tag": request.tag,
        "env": process.request_environment(request),
        "drop": process.OUTER,
        "guard": _GUARD,
        "refused": _REFUSED,
    }


def _note_submission(key: _Key, text: str, code: int) -> None:
    run_dir, attempt = key
    with contextlib.suppress(OSError):  # a full disk: the next look at the lease gives the same
        with open(os.path.join(run_dir, layout.submit_log_name(attempt)), "a", encoding="utf-8") as file:
            file.write(text + "\n")
        with open(os.path.join(run_dir, layout.submit_exit_name(attempt, code)), "ab"):
            pass


# ---------------------------------------------------------------- what a farm's section asks for


def _build_options(farm: Farm) -> dict[str, Any]:
    """Of one task."""
    given = farm.options
    options: dict[str, Any] = {"num_cpus": given.get("cpus", 1), "num_gpus": given.get("gpus", 0)}
    if given.get("memory"):
        options["memory"] = given["memory"]
    if given.get("resources"):
        options["resources"] = dict(given["resources"])
    return options


def _build_demand(farm: Farm) -> dict[str, float]:
    """The same as Ray lists it for its nodes."""
    options = _build_options(farm)
    demand = {"CPU": options["num_cpus"], "GPU": options["num_gpus"], "memory": options.get("memory", 0)}
    return {name: float(amount) for name, amount in {**demand, **options.get("resources", {})}.items() if amount}


def _check_demand(farm: Farm, bridge: _Bridge) -> None:
    """Refuse what no node could ever give: the task would wait for ever."""
    demand = _build_demand(farm)
    for name, amount in demand.items():
        if amount > 1 and name in ("GPU", "CPU") and amount != int(amount):
            raise UsageError(f"the farm {farm.name} asks for {amount:g} {name}s: above 1, Ray gives whole ones only")
    if any(all(node.get(name, 0.0) >= amount for name, amount in demand.items()) for node in bridge.nodes):
        return
    nodes = "; ".join(sorted({_render_amounts(node, demand) for node in bridge.nodes})) or "no node"
    raise UsageError(
        f"no node of the Ray cluster ({bridge.cluster}) has what the farm {farm.name} asks for: "
        f"{_render_amounts(demand, demand)}",
        f"its nodes have: {nodes}; change the farm's section, or add a node",
    )


def _render_amounts(amounts: Mapping[str, float], names: Iterable[str]) -> str:
    shown = {name: amounts.get(name, 0.0) for name in names}
    return ", ".join(
        f"{_render_bytes(each) if name == 'memory' else f'{each:g}'} {name}" for name, each in shown.items()
    )


def _render_bytes(size: float) -> str:
    return f"{size / 1e9:.3g} GB"


def _choose_address(farm: Farm) -> str:
    """The farm's own, then Ray's variable; without either a cluster of our own."""
    return str(farm.options.get("address") or os.environ.get("RAY_ADDRESS") or _LOCAL)


def _check_address(address: str) -> None:
    if "://" in address:
        raise UsageError(
            f"the Ray address {address!r} is not supported: jobs and clients over the network would need to copy runs",
            "run `assay` on a machine of the cluster, which shares its file system, with `address: auto`",
        )
    host, _, port = address.rpartition(":")
    if address in (_LOCAL, "auto"):
        return
    if not host or not port.isdigit():
        raise UsageError(f"{address!r} is not a Ray address", "write `auto`, `local` or HOST:PORT, as in 10.0.0.1:6379")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _REACH_S).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InfrastructureError(
            f"there is no Ray cluster at {address}: {reason}", "start one (`ray start --head`), or correct `address`"
        ) from error


# ---------------------------------------------------------------- the bridge, seen from the supervisor


class _Bridge:
    """A child process that is connected to Ray. Executors of the same cluster in this process share one."""

    def __init__(self, key: tuple[Any, ...], address: str, sizes: Mapping[str, float]) -> None:
        self.users = 0
        self.is_open = True
        self.is_shared = address != _LOCAL
        self._key = key
        self._number = 0
        self._folder = _make_folder()
        self._log = os.path.join(self._folder, "log")
        ours, theirs = socket.socketpair()
        with theirs, open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "assay.execute.ray_tasks", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env=_build_bridge_environment(self.is_shared),
                start_new_session=True,  # Ctrl-C is for the supervisor
            )
        self._connection = Connection(ours.detach())
        try:
            found = self.call("connect", address, dict(sizes), self._folder, limit_s=_CONNECT_S)
        except BaseException:
            self.close()
            raise
        self.nodes: list[dict[str, float]] = found["nodes"]
        self.cluster: str = found["cluster"]

    def call(self, name: str, *arguments: Any, limit_s: float | None = None) -> Any:
        """Raises InfrastructureError with Ray's own message, or with the end of its log where it has died."""
        self._number += 1
        try:
            self._connection.send((self._number, name, arguments))
            while True:
                if limit_s is not None and not self._connection.poll(limit_s):
                    raise InfrastructureError(f"Ray has not answered within {limit_s:g} s")
                number, problem, answer = self._connection.recv()
                if number == self._number:  # others were asked for by somebody who was interrupted
                    break
        except (EOFError, OSError) as error:
            self.is_open = False
            said = read_end(self._log, _LOG_TAIL_BYTES).strip().splitlines()[-3:]
            raise InfrastructureError("\n".join(["the connection to Ray has ended", *said])) from error
        if problem is not None:
            raise InfrastructureError(f"Ray: {problem}")
        return answer

    def close(self) -> None:
        _bridges.pop(self._key, None)
        self.is_open = False
        self._connection.close()  # the end of its pipe is what it leaves at
        try:
            self._process.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


_bridges: dict[tuple[Any, ...], _Bridge] = {}


def _find_bridge(farm: Farm, sizes: Mapping[str, float]) -> _Bridge:
    address = _choose_address(farm)
    key = (address, *sorted(sizes.items()))
    if key in _bridges and _bridges[key].is_open:
        return _bridges[key]
    _require_ray()
    _check_address(address)
    _bridges[key] = _Bridge(key, address, sizes)
    return _bridges[key]


def _require_ray() -> None:
    from importlib.util import find_spec

    if find_spec("ray") is None:
        raise MissingExtraError("a farm of the kind ray", "ray")


def _make_folder() -> str:
    base = tempfile.gettempdir()
    return tempfile.mkdtemp(prefix="assay-ray-", dir=base if len(base) <= _LONGEST_FOLDER else "/tmp")  # noqa: S108


def _build_bridge_environment(is_shared: bool) -> dict[str, str]:
    """Workers of a cluster of our own, and so the jobs, take over the supervisor's."""
    env = process.base_environment()
    if not is_shared:
        env.pop("RAY_ADDRESS", None)
        env["RAY_USAGE_STATS_ENABLED"] = "0"
    return env


# ---------------------------------------------------------------- the bridge itself


def serve(fd: int) -> None:
    """Answer the supervisor until it closes the pipe, by intent or because it has died."""
    import ray

    connection = Connection(fd)
    bridge = _Server()
    with contextlib.suppress(EOFError, OSError):
        while True:
            number, name, arguments = connection.recv()
            answer: tuple[int, str | None, Any]
            try:
                answer = (number, None, getattr(bridge, name)(*arguments))
            except Exception as error:  # noqa: BLE001 the supervisor decides what it means
                answer = (number, _explain(error), None)
            connection.send(answer)
    ray.shutdown()
    if bridge.folder:  # the supervisor may have died
        shutil.rmtree(bridge.folder, ignore_errors=True)


def _explain(error: Exception) -> str:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return "\n".join(lines[-5:]) or type(error).__name__


class _Server:
    """What the supervisor calls: one method for each message."""

    def __init__(self) -> None:
        self.folder = ""
        self._tasks: Any = None

    def connect(self, address: str, sizes: dict[str, float], folder: str) -> dict[str, Any]:
        self.folder = folder
        import logging

        import ray

        quiet: dict[str, Any] = {"configure_logging": False, "log_to_driver": False, "logging_level": logging.ERROR}
        if address == _LOCAL:
            own: dict[str, Any] = {"include_dashboard": False, "object_store_memory": _OBJECT_STORE_BYTES, **sizes}
            ray.init(address=_LOCAL, _temp_dir=folder, **own, **quiet)
            self._tasks, cluster = Tasks(), f"{_LOCAL}:{os.getpid()}"
        else:
            ray.init(address=address, namespace="assay", **quiet)
            self._tasks, cluster = _Detached(), ray.get_runtime_context().gcs_address
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
        return {"cluster": cluster, "nodes": nodes}

    def submit(self, tag: str, job: dict[str, Any], options: dict[str, Any]) -> None:
        self._tasks.submit(tag, job, options)

    def look(self, tags: Sequence[str], timeout_s: float) -> dict[str, _Ended | None]:
        found: dict[str, _Ended | None] = self._tasks.look(tags, timeout_s)
        return found

    def cancel(self, tags: Sequence[str]) -> None:
        self._tasks.cancel(tags)


class _Detached:
    """The owner of tasks that outlive us: an actor in the cluster. It leaves after a minute without work."""

    def __init__(self) -> None:
        self._actor = self._find()

    def _find(self) -> Any:
        import ray

        settings = {"name": "assay-tasks-1", "namespace": "assay", "lifetime": "detached", "get_if_exists": True}
        return ray.remote(Tasks).options(num_cpus=0, max_restarts=0, **settings).remote(60.0)

    def _call(self, name: str, *arguments: Any) -> Any:
        import ray

        try:
            return ray.get(getattr(self._actor, name).remote(*arguments), timeout=60.0)
        except ray.exceptions.RayActorError:  # it has just left, or has died with its node
            self._actor = self._find()
            return ray.get(getattr(self._actor, name).remote(*arguments), timeout=60.0)

    def submit(self, tag: str, job: dict[str, Any], options: dict[str, Any]) -> None:
        self._call("submit", tag, job, options)

    def look(self, tags: Sequence[str], timeout_s: float) -> Any:
        deadline, pause_s = time.monotonic() + timeout_s, 0.01
        while True:
            found = self._call("look", tags, 0.0)
            left = deadline - time.monotonic()
            if found or left <= 0:
                return found
            time.sleep(min(left, pause_s))
            pause_s = min(pause_s * 1.5, 0.5)

    def cancel(self, tags: Sequence[str]) -> None:
        self._call("cancel", tags)


# ---------------------------------------------------------------- sent to the cluster: the standard library alone


class Tasks:
    """Starts tasks and knows what became of them. `idle_s`: leave after this long without tasks and calls."""

    def __init__(self, idle_s: float = 0.0) -> None:
        import ray

        # GPU tasks get a new worker each time by default, since frameworks keep memory; a worker of ours uses no GPU
        self._task = ray.remote(max_retries=0, max_calls=0)(run_job)
        self._refs: dict[str, Any] = {}
        self._ends: dict[str, _Ended] = {}
        self._called_at = time.monotonic()
        if idle_s:
            threading.Thread(target=self._leave_when_idle, args=(idle_s,), daemon=True).start()

    def submit(self, tag: str, job: dict[str, Any], options: dict[str, Any]) -> None:
        self._called_at = time.monotonic()
        if tag not in self._refs and tag not in self._ends:  # asked for a second time by somebody who was interrupted
            self._refs[tag] = self._task.options(name="assay", **options).remote(job)

    def look(self, tags: Sequence[str], timeout_s: float) -> dict[str, _Ended | None]:
        """The ends of these, as far as they are over; None for one that is not known."""
        self._called_at = time.monotonic()
        found = self._find(tags)
        if not found and timeout_s:
            self._collect(timeout_s)
            found = self._find(tags)
        return found

    def _find(self, tags: Sequence[str]) -> dict[str, _Ended | None]:
        self._collect(0.0)
        return {tag: self._ends.get(tag) for tag in tags if tag not in self._refs}

    def _collect(self, timeout_s: float) -> None:
        import ray

        by_ref = {ref: tag for tag, ref in self._refs.items()}
        if not by_ref:
            time.sleep(timeout_s)
            return
        ready, _ = ray.wait(list(by_ref), num_returns=1 if timeout_s else len(by_ref), timeout=timeout_s)
        for ref in ready:
            try:
                end = ray.get(ref)
            except Exception as error:  # noqa: BLE001 a dead worker or node, a cancelled task
                end = (type(error).__name__, 0.0, 0)
            self._ends[by_ref[ref]] = end
            del self._refs[by_ref[ref]]

    def cancel(self, tags: Sequence[str]) -> None:
        """Only those that hold no token: what runs is ended by its files, and its worker is told by nobody."""
        import ray

        for tag in tags:
            if tag in self._refs:
                ray.cancel(self._refs[tag], force=False)

    def _leave_when_idle(self, idle_s: float) -> None:
        while True:
            time.sleep(idle_s / 10)
            with contextlib.suppress(Exception):
                self._collect(0.0)
            if not self._refs and time.monotonic() - self._called_at > idle_s:
                os._exit(0)


def run_job(job: dict[str, Any]) -> _Ended:
    """In a worker, on any node: start job.sh in a session of its own, and wait for it."""
    import resource

    deadline = time.monotonic() + 5.0  # a network file system may show the directory a little later
    while not os.path.isfile(job["script"]):
        if time.monotonic() > deadline:
            where = socket.gethostname()
            text = f"{job['script']} is not there on the node {where}: runs need a folder that all nodes share"
            return f"{job['refused']}{text}", 0.0, 0
        time.sleep(0.1)
    env = {name: value for name, value in os.environ.items() if name not in job["drop"]}
    if env.get("PYTHONBREAKPOINT", "").startswith("ray."):
        del env["PYTHONBREAKPOINT"]
    _tell_guard(job["guard"], job["tag"], 0, job["end"])
    try:
        bash = shutil.which("bash") or "/bin/bash"
        child = subprocess.Popen(
            [bash, job["script"]],
            cwd=job["dir"],
            env={**env, **job["env"]},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        _tell_guard(job["guard"], job["tag"], child.pid, job["end"])
        _await_exit(child.pid)
        _, _, used = os.wait4(child.pid, 0)
        child.returncode = 0  # waited for; what it ended with is in the markers
    finally:
        _tell_guard(job["guard"], "", 0, "")
    own_peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # before exec the child's image was this process
    peak = used.ru_maxrss * 1024 if used.ru_maxrss > own_peak else 0
    return "", used.ru_utime + used.ru_stime, peak


def _await_exit(pid: int) -> None:
    """Until the job has left. Without its raylet a worker's node is dead to Ray: it leaves, and the guard acts."""
    raylet = os.getppid()
    pidfd = os.pidfd_open(pid)
    watch = select.poll()
    watch.register(pidfd, select.POLLIN)
    while not watch.poll(1000):
        if os.getppid() != raylet:
            os._exit(1)
    os.close(pidfd)


_guards: dict[int, Any] = {}


def _find_guard(text: str) -> Any:
    """One for each worker: it notices the end of its pipe when the worker dies, whatever kills it.

    Not a child of the worker, which kills its children when it leaves.
    """
    if os.getpid() not in _guards:
        starter = subprocess.Popen(
            ["bash", "-c", 'bash -c "$0" <&0 &', text],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.waitpid(starter.pid, 0)
        starter.returncode = 0
        _guards[os.getpid()] = starter
    return _guards[os.getpid()]


def _tell_guard(text: str, tag: str, pid: int, end: str) -> None:
    message = b"".join(os.fsencode(field) + b"\0" for field in (tag, str(pid), end))
    for _ in range(2):
        guard = _find_guard(text)
        try:
            guard.stdin.write(message)
            guard.stdin.flush()
        except BrokenPipeError:  # somebody has killed it
            with contextlib.suppress(BrokenPipeError):
                guard.stdin.close()
            del _guards[os.getpid()]
        else:
            return


# job.sh is killed first, so that a command that answers TERM with exit 0 does not pass for finished; its watcher
# outlives it until nothing is left. `_find` is `processes.BASH_FIND_TAGGED`.
_GUARD = (
    processes.BASH_FIND_TAGGED
    + r"""
trap '' TERM INT HUP
unset ASSAY_ATTEMPT; ASSAY_ATTEMPT=
while IFS= read -r -d '' tag && IFS= read -r -d '' pid && IFS= read -r -d '' end; do
  ASSAY_ATTEMPT=$tag leader=$pid file=$end
done
[ -n "$ASSAY_ATTEMPT" ] || exit 0
_find; case " $_pids " in *" $leader "*) kill -KILL "$leader" ;; esac
[ -z "$_pids" ] || kill -TERM $_pids
round=0
while _find; [ -n "$_pids" ] && [ $((round += 1)) -le 60 ]; do
  [ $round -le 20 ] || kill -KILL $_pids
  sleep 0.25
done
[ ! -d "${file%/*}" ] || : > "$file"
"""
)

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(int(sys.argv[1]))
