"""The child process that calls Ray, since Ray ends a process whose cluster has died, handles signals, and prints.

When the supervisor dies, its pipe to the bridge ends. The tasks belong to

- the bridge, if the cluster is its own: they end with it, however the supervisor ended. The processes of the bridge
  are one session; a cleanup process, which reads a pipe of the bridge, ends all of them when the bridge is gone;
- a detached actor, if the cluster exists already: they go on, and the next supervisor asks that actor;
- Ray's own job manager, if a dashboard takes Ray Jobs.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partialmethod
from multiprocessing.connection import Connection
from typing import Any

from assay.errors import InfrastructureError
from assay.execute import process
from assay.farms import ray_nodes
from assay.farms.ray_farm import LOCAL, check_address, is_jobs_address, require_ray
from assay.farms.ray_nodes import REFUSED, Ended, Tasks
from assay.system import processes
from assay.system.files import read_end

_CONNECT_S = 120.0
_CLOSE_S = 20.0
_PROBE_S = 20.0
_AGENT_S = 60.0  # how long a new cluster may take until it takes jobs
_LONGEST_FOLDER = 24  # Ray's sockets add about 80 characters, and a socket's path has at most 107
_OBJECT_STORE_BYTES = 100_000_000  # tasks need no object store; Ray would reserve a third of the memory
_LOG_TAIL_BYTES = 4096
_NOTICE_S = 0.5
_NOT_STARTED = "JOB_SUPERVISOR_ACTOR_START_TIMEOUT"  # Ray gave up a job that had waited for its resources
_HEAD = "node:__internal_head__"  # a resource of Ray's head node alone, 1 of it
_TOKEN_HINT = "a cluster with token authentication needs RAY_AUTH_MODE=token here, and its token in ~/.ray/auth_token"
_FEW = 8  # so many jobs are asked for one by one; for more, one answer lists all jobs of the cluster


# ---------------------------------------------------------------- seen from the supervisor


class SilentError(InfrastructureError):
    """Ray has not answered in time; the call may still be executed."""


class Bridge:
    """A child process that is connected to Ray. Executors of the same cluster in this process share a bridge."""

    def __init__(self, key: tuple[Any, ...], address: str, sizes: Mapping[str, float]) -> None:
        self.users = 0
        self.is_open = True
        self.is_shared = address != LOCAL
        self.takes_jobs = is_jobs_address(address)
        self.probed: set[int] = set()  # devices of file systems that the cluster has, too
        self._key = key
        self._number = 0
        base = tempfile.gettempdir()
        short = base if len(base) <= _LONGEST_FOLDER else "/tmp"  # noqa: S108
        self._folder = tempfile.mkdtemp(prefix="assay-ray-", dir=short)
        self._log = os.path.join(self._folder, "log")
        ours, theirs = socket.socketpair()
        with theirs, open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "assay.farms.ray_bridge", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env=_build_environment(self.is_shared),
                start_new_session=True,  # Ctrl-C is for the supervisor
            )
        self._connection = Connection(ours.detach())
        try:
            found = self.call("connect", address, dict(sizes), limit_s=_CONNECT_S)
        except InfrastructureError as error:
            self.close()
            # Ray does not report that a cluster asks for a token, the default of newer versions
            may_need_token = self.is_shared and not os.environ.get("RAY_AUTH_MODE")
            raise InfrastructureError(error.message, error.hint or (_TOKEN_HINT if may_need_token else None)) from error
        except BaseException:
            self.close()
            raise
        self.nodes: list[dict[str, float]] = found["nodes"]
        self.cluster: str = found["cluster"]

    def call(self, name: str, *arguments: Any, limit_s: float | None = None) -> Any:
        """Call a function of the bridge; raise InfrastructureError with Ray's message, or with the end of its log."""
        self._number += 1
        try:
            self._connection.send((self._number, name, arguments))
            while True:
                if limit_s is not None and not self._connection.poll(limit_s):
                    raise SilentError(f"Ray has not answered within {limit_s:g} s")
                number, problem, answer = self._connection.recv()
                if number == self._number:  # other numbers answer a call that was interrupted
                    break
        except (EOFError, OSError) as error:
            self.is_open = False
            last_lines = read_end(self._log, _LOG_TAIL_BYTES).strip().splitlines()[-3:]
            raise InfrastructureError("\n".join(["the connection to Ray has ended", *last_lines])) from error
        if problem is not None:
            raise InfrastructureError(f"Ray: {problem}")
        return answer

    def close(self) -> None:
        _bridges.pop(self._key, None)
        self.is_open = False
        self._connection.close()  # the bridge exits when its pipe ends
        try:
            self._process.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


_bridges: dict[tuple[Any, ...], Bridge] = {}


def find_bridge(address: str, sizes: Mapping[str, float]) -> Bridge:
    key = (address, *sorted(sizes.items()))
    if key in _bridges and _bridges[key].is_open:
        return _bridges[key]
    require_ray(address)
    check_address(address)
    _bridges[key] = Bridge(key, address, sizes)
    return _bridges[key]


def _build_environment(is_shared: bool) -> dict[str, str]:
    """Return the bridge's environment, which the workers of a cluster of our own, and so the jobs, inherit."""
    env = process.base_environment()
    if not is_shared:
        env.pop("RAY_ADDRESS", None)
        env["RAY_USAGE_STATS_ENABLED"] = "0"
    return env


# ---------------------------------------------------------------- the bridge itself


def serve(fd: int) -> None:
    """Answer the supervisor until it closes the pipe or has died."""
    import ray
    from ray import cloudpickle

    for module in (ray_nodes, processes):  # nodes may lack Assay
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    connection = Connection(fd)
    server = _Server(connection)
    with contextlib.suppress(EOFError, OSError):
        while True:
            number, name, arguments = connection.recv()
            answer: tuple[int, str | None, Any]
            try:
                asked = server if hasattr(server, name) else server.tasks
                answer = (number, None, getattr(asked, name)(*arguments))
            except Exception as error:  # noqa: BLE001 the supervisor judges the error
                answer = (number, _explain(error), None)
            connection.send(answer)
    ray.shutdown()
    server.leave()


def _explain(error: Exception) -> str:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return "\n".join(lines[-5:]) or type(error).__name__


class _Server:
    """The functions that the supervisor calls: one method for each message, in this class or in `tasks`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._folder = os.getcwd()  # the folder is this process's own
        self._cleanup: subprocess.Popen[bytes] | None = None
        self.tasks: Any = None

    def connect(self, address: str, sizes: dict[str, float]) -> dict[str, Any]:
        import logging

        import ray

        quiet: dict[str, Any] = {"configure_logging": False, "log_to_driver": False, "logging_level": logging.ERROR}
        if is_jobs_address(address):
            self.tasks, cluster = _Jobs(address), address
        elif address == LOCAL:
            # without this process the agents of a killed cluster exit only after half a minute
            self._cleanup = subprocess.Popen(
                ["bash", "-c", processes.BASH_KEEP_SESSION, str(os.getpid()), self._folder],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            own: dict[str, Any] = {"include_dashboard": False, "object_store_memory": _OBJECT_STORE_BYTES, **sizes}
            ray.init(address=LOCAL, _temp_dir=self._folder, **own, **quiet)
            self.tasks, cluster = Tasks(), f"{LOCAL}:{os.getpid()}"
        else:
            ray.init(address=address, namespace="assay", **quiet)
            self.tasks, cluster = _Detached(), ray.get_runtime_context().gcs_address
        return {"cluster": cluster, "nodes": self.list_nodes()}

    def list_nodes(self) -> list[dict[str, float]]:
        """Return the total resources of each living node."""
        import ray

        if isinstance(self.tasks, _Jobs):
            return self.tasks.list_nodes()
        return [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]

    def list_dead_hosts(self) -> list[str]:
        """Return machines that had nodes of the cluster and have no living one."""
        import ray

        nodes = ray.nodes()  # type: ignore[no-untyped-call]
        living = {node["NodeManagerHostname"] for node in nodes if node["Alive"]}
        return sorted({node["NodeManagerHostname"] for node in nodes} - living)

    def look(self, tags: Sequence[str], timeout_s: float) -> dict[str, Ended | None]:
        """Return the ends of jobs as soon as there is one, or when the supervisor calls or has died."""
        deadline = time.monotonic() + timeout_s
        while True:
            left = max(0.0, deadline - time.monotonic())
            found: dict[str, Ended | None] = self.tasks.look(tags, min(left, _NOTICE_S))
            if found or not left or self._connection.poll(0):
                return found

    def leave(self) -> None:
        """Leave nothing running, also if the supervisor has died."""
        if self._cleanup is not None:
            self._cleanup.communicate()
        else:
            shutil.rmtree(self._folder, ignore_errors=True)


class _Detached:
    """Tasks that outlive this process: an actor in the cluster owns them, and exits after a minute without work.

    The tasks end with the actor, so the actor is on the head node: without that node the cluster is gone anyway.
    """

    def __init__(self) -> None:
        self._actor = self._find()

    def _find(self) -> Any:
        import ray

        settings = {"name": "assay-tasks-2", "namespace": "assay", "lifetime": "detached", "get_if_exists": True}
        head = {_HEAD: 0.001} if _HEAD in ray.cluster_resources() else {}  # type: ignore[no-untyped-call]  # not in older ones
        return ray.remote(Tasks).options(num_cpus=0, max_restarts=0, resources=head, **settings).remote(60.0)

    def _call(self, name: str, *arguments: Any) -> Any:
        import ray

        try:
            return ray.get(getattr(self._actor, name).remote(*arguments), timeout=60.0)
        except ray.exceptions.RayActorError:  # the actor has just exited, or has died with its node
            self._actor = self._find()
            return ray.get(getattr(self._actor, name).remote(*arguments), timeout=60.0)

    submit, cancel = partialmethod(_call, "submit"), partialmethod(_call, "cancel")

    def look(self, tags: Sequence[str], timeout_s: float) -> Any:
        deadline, pause_s = time.monotonic() + timeout_s, 0.01
        while True:
            found = self._call("look", tags, 0.0)
            left = deadline - time.monotonic()
            if found or left <= 0:
                return found
            time.sleep(min(left, pause_s))
            pause_s = min(pause_s * 1.5, 0.5)


class _Jobs:
    """Ray Jobs, by the dashboard of a cluster that this machine is not part of.

    A job's name in Ray is `assay-TAG`. Ray gives up a job that has waited for its resources for fifteen minutes. Such a
    job is submitted again with a number: no copy of it has begun, and if one had, the token would decide between them.
    """

    def __init__(self, address: str) -> None:
        from ray.job_submission import JobSubmissionClient

        self._address = address
        self._client: Any = JobSubmissionClient(address)
        self._sent: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}  # tag → job and options, to submit it again

    def list_nodes(self) -> list[dict[str, float]]:
        from ray.util.state import list_nodes

        nodes = list_nodes(self._address, detail=True, limit=10_000, raise_on_missing_output=False)
        return [dict(node.resources_total) for node in nodes if node.state == "ALIVE"]

    def probe(self, job: dict[str, Any], options: dict[str, Any]) -> str:
        """Return why a node cannot read the job's files; empty if it can, or if a busy cluster has not answered."""
        name = f"assay-probe-{job['tag']}-{os.getpid()}-{time.time_ns()}"
        self._submit(name, {**job, "entry": job["probe"]}, options)
        deadline = time.monotonic() + _PROBE_S
        while not (info := self._client.get_job_info(name)).status.is_terminal():
            if time.monotonic() > deadline:
                self._client.stop_job(name)
                return ""
            time.sleep(0.1)
        return self._find_refusal(info)

    def submit(self, jobs: Sequence[dict[str, Any]], options: dict[str, Any]) -> dict[str, str]:
        refused = {}
        for job in jobs:
            self._sent[job["tag"]] = (job, options)
            try:
                self._submit(f"assay-{job['tag']}", job, options)
            except RuntimeError as error:
                if "already exists" not in str(error):  # submitted again after a call that was interrupted
                    refused[job["tag"]] = _explain(error)
        return refused

    def _submit(self, name: str, job: dict[str, Any], options: dict[str, Any]) -> None:
        wanted = {f"entrypoint_{name}": amount for name, amount in options.items()}
        about = {"job_name": job["name"]}
        deadline = time.monotonic() + _AGENT_S
        while True:
            try:
                self._client.submit_job(entrypoint=job["entry"], submission_id=name, metadata=about, **wanted)
            except RuntimeError as error:
                if "No available agent" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.5)
            else:
                return

    def look(self, tags: Sequence[str], _timeout_s: float) -> dict[str, Ended | None]:
        found: dict[str, Ended | None] = {}
        latest = self._list(tags)
        for tag in tags:
            info = latest.get(tag)
            if info is None:
                found[tag] = None
            elif info.status.is_terminal() and info.error_type == _NOT_STARTED and tag in self._sent:
                self._submit(_next_name(info.submission_id, tag), *self._sent[tag])
            elif info.status.is_terminal():
                self._sent.pop(tag, None)
                found[tag] = (self._find_refusal(info) or info.status.value, 0.0, 0)
        return found

    def _list(self, tags: Sequence[str]) -> dict[str, Any]:
        """Return the last job of each tag."""
        is_few, wanted, latest = len(tags) <= _FEW, set(tags), dict[str, Any]()
        infos = [info for tag in tags for info in self._list_one(tag)] if is_few else self._client.list_jobs()
        for info in sorted(infos, key=lambda info: info.start_time or 0):
            tag = (info.submission_id or "").removeprefix("assay-").partition("-")[0]
            if tag in wanted:
                latest[tag] = info
        return latest

    def _list_one(self, tag: str) -> list[Any]:
        infos, name = list[Any](), f"assay-{tag}"
        with contextlib.suppress(RuntimeError):  # there is no job of this name
            while True:
                infos.append(self._client.get_job_info(name))
                if infos[-1].error_type != _NOT_STARTED:
                    break
                name = _next_name(name, tag)
        return infos

    def _find_refusal(self, info: Any) -> str:
        """Return the message of an entry point that has not found the run; a job may end with the same code."""
        if info.driver_exit_code != 126:
            return ""
        lines = self._client.get_job_logs(info.submission_id).splitlines()
        return next((line for line in lines if line.startswith(REFUSED)), "")

    def cancel(self, tags: Sequence[str]) -> None:
        for info in self._list(tags).values():
            if not info.status.is_terminal():
                self._client.stop_job(info.submission_id)


def _next_name(name: str, tag: str) -> str:
    number = name.removeprefix(f"assay-{tag}").removeprefix("-") or "1"
    return f"assay-{tag}-{int(number) + 1}"


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(int(sys.argv[1]))
