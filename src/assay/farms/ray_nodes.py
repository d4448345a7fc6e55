"""Functions that run on the nodes of a Ray cluster: sent by value, they need only the standard library and bash.

A job must end with the worker that waits for it, since Ray then gives the worker's GPUs to another job: each worker
has a guard, which ends the processes of the job.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from typing import Any

from assay.system import processes
from assay.system.processes import process_start

Ended = tuple[str, float, int]  # what went wrong, CPU seconds, peak bytes
REFUSED = "refused: "  # the first word of an error text if nothing was started
_HIGHEST_OWN_CODE = 128  # a higher code may mean that a signal ended the job


class Tasks:
    """Starts tasks and keeps their results. `idle_s`: exit after this many seconds without tasks and calls."""

    def __init__(self, idle_s: float = 0.0) -> None:
        import ray

        # Ray starts a new worker for each GPU task, since frameworks keep GPU memory; Assay's workers use no GPU
        self._task = ray.remote(max_retries=0, max_calls=0)(run_job)
        self._refs: dict[str, Any] = {}
        self._ends: dict[str, Ended] = {}
        self._called_at = time.monotonic()
        self._lock = threading.Lock()
        if idle_s:
            threading.Thread(target=self._leave_when_idle, args=(idle_s,), daemon=True).start()

    def submit(self, jobs: Sequence[dict[str, Any]], options: dict[str, Any]) -> dict[str, str]:
        """Submit jobs and return, by tag, the reason for each job that could not be submitted."""
        self._called_at = time.monotonic()
        task = self._task.options(name="assay", **options)
        with self._lock:
            for job in jobs:
                tag = job["tag"]
                if tag not in self._refs and tag not in self._ends:  # a known tag: an interrupted call is repeated
                    limits = _avoid_hosts(job["avoid"], job["demand"]) if job["avoid"] else {}
                    chosen = self._task.options(name="assay", **options, **limits) if limits else task
                    self._refs[tag] = chosen.remote(job)
        return {}

    def look(self, tags: Sequence[str], timeout_s: float) -> dict[str, Ended | None]:
        """Return how tasks ended, leaving out tasks that have not ended; None for an unknown task."""
        self._called_at = time.monotonic()
        found = self._find(tags)
        if not found and timeout_s:
            self._collect(timeout_s)
            found = self._find(tags)
        return found

    def _find(self, tags: Sequence[str]) -> dict[str, Ended | None]:
        self._collect(0.0)
        return {tag: self._ends.get(tag) for tag in tags if tag not in self._refs}

    def _collect(self, timeout_s: float) -> None:
        import ray

        with self._lock:
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
            with self._lock:
                self._ends.setdefault(by_ref[ref], end)
                self._refs.pop(by_ref[ref], None)

    def cancel(self, tags: Sequence[str]) -> None:
        """Cancel tasks whose job has no token yet. A running job is ended by files, not by a message to its worker."""
        import ray

        with self._lock:
            refs = [self._refs[tag] for tag in tags if tag in self._refs]
        for ref in refs:
            ray.cancel(ref, force=False)

    def _leave_when_idle(self, idle_s: float) -> None:
        while True:
            time.sleep(idle_s / 10)
            with contextlib.suppress(Exception):
                self._collect(0.0)
            if not self._refs and time.monotonic() - self._called_at > idle_s:
                os._exit(0)


def _avoid_hosts(hosts: Sequence[str], demand: dict[str, float]) -> dict[str, Any]:
    """Return options that keep a task off hosts on which its run was given up, if another node could run the task. The
    options have node ids, since Ray has no label for the name of a host, and a host that joins again has a new id."""
    import ray

    nodes = [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    avoided = [node["NodeID"] for node in nodes if node["NodeManagerHostname"].partition(".")[0] in hosts]
    others = [node["Resources"] for node in nodes if node["NodeID"] not in avoided]
    can_run = any(all(node.get(name, 0.0) >= amount for name, amount in demand.items()) for node in others)
    return {"label_selector": {"ray.io/node-id": f"!in({', '.join(avoided)})"}} if avoided and can_run else {}


def run_job(job: dict[str, Any]) -> Ended:
    """Start job.sh in a session of its own and wait for it; called in a worker on any node."""
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
    env |= job["env"]
    _inform_guard(job["guard"], job["tag"], 0, job["end"])
    starter = subprocess.Popen(
        [shutil.which("bash") or "/bin/bash", "-c", RUNNER, job["script"], env.pop("ASSAY_ATTEMPT")],
        cwd=job["dir"],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        bufsize=0,
    )
    said: Any = starter.stdout
    _inform_guard(job["guard"], job["tag"], int(said.readline() or 0), job["end"])
    starter.wait()
    _wait_for_output(said.fileno())
    with said:
        words = said.read().decode().split()  # empty: the shell that waits for job.sh was killed
    if not words or (int(words[0]) > _HIGHEST_OWN_CODE and not os.path.exists(job["end"])):
        # the guard ends the processes that a killed job.sh has left; the next job gets a guard of its own
        _guards.pop(os.getpid()).stdin.close()
        deadline = time.monotonic() + 20.0
        while not os.path.exists(job["end"]) and time.monotonic() < deadline:
            time.sleep(0.05)
    else:
        _inform_guard(job["guard"], "", 0, "")
    return "", sum(_parse_minutes(word) for word in words[3:5]), 0


def _wait_for_output(fd: int) -> None:
    """Wait until the job has ended. Exit if the node's raylet has died, so that the worker's guard ends the job."""
    raylet = int(os.environ.get("RAY_RAYLET_PID") or os.getppid())  # the parent may not be the raylet
    watch = select.poll()
    watch.register(fd, select.POLLIN)
    while not watch.poll(1000):
        if process_start(raylet) is None:
            os._exit(1)


def _parse_minutes(text: str) -> float:
    """Return the seconds of a time as bash prints it: `1m2.345s`, with the locale's decimal sign."""
    minutes, _, seconds = text.rstrip("s").replace(",", ".").partition("m")
    return 60 * float(minutes) + float(seconds)


_guards: dict[int, Any] = {}


def _find_guard(text: str) -> Any:
    """Return this worker's guard, which notices the end of its pipe when the worker dies, for whatever reason. The
    guard is not a child of the worker, since a worker that exits kills its children."""
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


def _inform_guard(text: str, tag: str, pid: int, end: str) -> None:
    message = b"".join(os.fsencode(field) + b"\0" for field in (tag, str(pid), end))
    for _ in range(2):
        guard = _find_guard(text)
        try:
            guard.stdin.write(message)
            guard.stdin.flush()
        except BrokenPipeError:  # the guard was killed
            with contextlib.suppress(BrokenPipeError):
                guard.stdin.close()
            del _guards[os.getpid()]
        else:
            return


# ---------------------------------------------------------------- in bash

# RUNNER starts job.sh ($0, with the tag $1), prints its pid, and after its end the exit code and the CPU time. Ray
# kills the children of a worker that exits before the worker itself: job.sh must not be a child, or its commands would
# go on without job.sh until the guard acts, and their ends would not be recorded. The shell that waits for job.sh has
# no tag, since it is not part of the run. With `set -m` bash does not make background processes ignore SIGINT; `setsid`
# does not lead the process group here, so `setsid` never forks.
RUNNER = r"""set -m
{ $(command -v setsid) bash -c 'echo $$ >&3; ASSAY_ATTEMPT=$1 exec bash "$0" 3>&-' "$0" "$1"
  echo $? >&3; times >&3; } 3>&1 > /dev/null &
"""

# The guard takes the token, so that a job.sh that cannot be found yet does not begin. The guard kills job.sh first, so
# that a command that exits with 0 on TERM does not count as finished; the watcher of job.sh ends after all processes of
# the job. `processes.BASH_FIND_TAGGED` defines `_find`.
GUARD = (
    processes.BASH_FIND_TAGGED
    + r"""
trap '' TERM INT HUP
unset ASSAY_ATTEMPT; ASSAY_ATTEMPT=
while IFS= read -r -d '' tag && IFS= read -r -d '' pid && IFS= read -r -d '' end; do
  ASSAY_ATTEMPT=$tag leader=$pid file=$end
done
[ -n "$ASSAY_ATTEMPT" ] || exit 0
set -C; printf -- '- 0 0 - %(%s)T\n' -1 2>/dev/null > "${file%/*}/token.${file##*.}"; set +C
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


# ENTRY is the entry point of a Ray Job, which `sh` runs. A network file system may show the file a little later; on a
# machine that does not share the file system, a file at the same path has another tag.
ENTRY = (
    "f={path}; n=0; until grep -qsxF '# {tag}' \"$f\"; do n=$((n + 1)); [ $n -le 5 ] || {{ "
    'echo "{refused}$f is not there on the node $(hostname): runs need a folder that all nodes share"; exit 126; }}; '
    "sleep 1; done; {then}"
)

# JOB_STARTER starts job.sh in a session of its own, as a worker does. If the starter's shell is killed, by `stop_job`
# or with its worker, the pipe to the guard ends. The guard is not a child of the shell, since Ray kills children.
JOB_STARTER = r"""#!/usr/bin/env bash
# {tag}
exec 9> >(setsid bash -c {guard} > /dev/null 2>&1 <&0 9>&- &)
tell() {{ printf '%s\0' "$@" >&9; }}
tell {tag} 0 {end}
case ${{PYTHONBREAKPOINT:-}} in ray.*) unset PYTHONBREAKPOINT ;; esac
unset {drop}
cd -- {dir} || exit
setsid {command} < /dev/null > /dev/null 2>&1 9>&- &
tell {tag} $! {end}
wait $!; code=$?
[ $code -gt 128 ] || tell '' 0 ''  # killed: the guard ends what is left
exit $code
"""
