"""A Ray cluster of another owner, in a private folder: started for tests, and removed completely."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

from tests.contracts.executor import until
from tests.fork_server import Server

# The program prints its addresses, adds a node for every line, and ends with its input. Ray chooses all ports: by
# default the agents of all clusters of a machine want the same one, and without it a cluster takes no Ray Jobs.
_PROGRAM = """
import json, sys
from ray.cluster_utils import Cluster
small = {"object_store_memory": 80_000_000}
head = {"num_cpus": 4, "num_gpus": 2, "include_dashboard": sys.argv[1] == "dashboard", "no_monitor": True}
ports = {"dashboard_port": None, "dashboard_agent_listen_port": 0}
cluster = Cluster(initialize_head=True, head_node_args=head | ports | small)
print("address", cluster.address, flush=True)
print("dashboard", f"http://{cluster.webui_url}", flush=True)
for line in sys.stdin:
    node = cluster.add_node(**json.loads(line), **small)
    print("node", node.all_processes["raylet"][0].process.pid, flush=True)
cluster.shutdown()
"""
_MARK = "TEST_CLUSTER"  # a variable of every process that a test has started, whatever its title says


class RayCluster:
    def __init__(self, program: subprocess.Popen[str], mark: str) -> None:
        self._program = program
        self.mark = mark
        self.address = self._read("address")
        self.dashboard = self._read("dashboard")

    def _read(self, word: str) -> str:
        assert self._program.stdout is not None
        line = next(line for line in self._program.stdout if line.startswith(f"{word} "))
        return line.split()[1]

    def add_node(self, arguments: str) -> int:
        """Add a node and return the pid of its raylet."""
        assert self._program.stdin is not None
        self._program.stdin.write(arguments + "\n")
        self._program.stdin.flush()
        return int(self._read("node"))

    def kill(self) -> None:
        """All of its processes at once, and those of its jobs."""
        end_marked(self.mark)


@contextlib.contextmanager
def serve_answer() -> Iterator[str]:
    """The address of a server that answers once, and that is not Ray."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            with contextlib.suppress(OSError), server.accept()[0] as connection:
                connection.sendall(b"!")

        thread = threading.Thread(target=answer)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


@contextlib.contextmanager
def start_node(cluster: RayCluster, host: str, resources: str) -> Iterator[str]:
    """Start a node that is another host as far as a program can see; yield the mark of all processes there."""
    mark, ray = uuid.uuid4().hex, str(Path(sys.executable).parent / "ray")
    argv = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', host, ray, "start", "--block"]
    more = [
        f"--address={cluster.address}",
        "--num-cpus=2",
        f"--resources={resources}",
        "--object-store-memory=80000000",
    ]
    program = subprocess.Popen(
        [*argv, *more],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=os.environ | {_MARK: mark},
        text=True,
        start_new_session=True,
    )
    assert program.stdout is not None
    try:
        said = list(itertools.takewhile(lambda line: "runtime started" not in line, program.stdout))
        assert program.poll() is None, said
        yield mark
    finally:
        end_marked(mark)
        program.communicate(timeout=60)


@contextlib.contextmanager
def start_ray(kind: str = "plain", **variables: str) -> Iterator[RayCluster]:
    """Start Ray. `kind`: with "dashboard" it takes Ray Jobs. `variables`: of its environment, which configure Ray."""
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    mark = uuid.uuid4().hex
    program = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"RAY_TMPDIR": folder, "RAY_USAGE_STATS_ENABLED": "0", _MARK: mark} | variables,
        text=True,
        start_new_session=True,
    )
    try:
        yield RayCluster(program, mark)
    finally:
        program.communicate(timeout=60)
        end_marked(mark)
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def marked() -> Iterator[str]:
    """Yield a mark by which everything that is started inside can be found, also what that starts."""
    Server.get("assay")  # the server that forks commands outlives the test, and is started without the mark
    mark, before = uuid.uuid4().hex, os.environ.get(_MARK)
    os.environ[_MARK] = mark
    try:
        yield mark
    finally:
        os.environ.pop(_MARK)
        if before is not None:
            os.environ[_MARK] = before


def find_marked(mark: str) -> dict[int, str]:
    """Return command lines by pid, without dead processes."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{_MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found[int(folder.name)] = (
                    (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                )
    return found


def nothing_is_left(mark: str) -> None:
    until(lambda: not find_marked(mark), f"no process is left: {find_marked(mark)}")


def end_marked(mark: str) -> None:
    """End all processes with a mark. Ray's agents would only notice after half a minute that their node has gone."""
    while found := find_marked(mark):
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
