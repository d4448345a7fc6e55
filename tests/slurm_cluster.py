"""A real Slurm in a private folder, with two fake GPUs on each node: started for tests, and removed completely.

One node is this machine itself. Several are slurmds on this machine, each with a host name of its own: a job there is
on another host as far as a program can see. The accounting is slurmdbd with a MariaDB of its own.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.services import SBIN

_DAEMONS = (b"munged", b"slurmctld", b"slurmd", b"slurmstepd", b"slurmdbd", b"mariadbd")
_CONF = """\
ClusterName=t
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
GresTypes=gpu
SlurmdParameters=config_overrides
ReturnToService=1
SlurmdTimeout=5
KillWait=3
JobRequeue=1
MpiDefault=none
PartitionName=p Nodes=ALL Default=YES MaxTime=INFINITE PriorityTier=1 State=UP
PartitionName=urgent Nodes=ALL MaxTime=INFINITE PriorityTier=2 State=UP
"""
_NODE = "NodeName={name} NodeHostname={name} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} RealMemory=4000 Gres=gpu:2\n"
_PLAIN = {"JobAcctGatherType": "jobacct_gather/none", "MinJobAge": "300", "MaxArraySize": "1001"}
_ACCOUNTING = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={port}
AccountingStoragePass={folder}/munge.sock
"""
_DBD = """\
DbdHost={host}
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
PidFile={folder}/slurmdbd.pid
LogFile={folder}/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database_port}
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm
"""
_DATABASE_USER = """\
CREATE DATABASE slurm;
CREATE USER slurm@'127.0.0.1' IDENTIFIED BY 'slurm';
GRANT ALL ON slurm.* TO slurm@'127.0.0.1';
"""


def _free_ports(count: int) -> list[int]:
    taken = [socket.socket() for _ in range(count)]
    try:
        for each in taken:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in taken]
    finally:
        for each in taken:
            each.close()


@dataclass
class Cluster:
    folder: Path
    nodes: Sequence[str]
    cpus: int
    env: dict[str, str] = field(default_factory=dict)
    database: subprocess.Popen[bytes] | None = None

    @property
    def conf(self) -> str:
        return str(self.folder / "slurm.conf")

    def run(self, *argv: str, timeout: float = 60, given: str = "") -> str:
        done = subprocess.run(
            argv, env=self.env, timeout=timeout, check=False, capture_output=True, text=True, input=given
        )
        assert done.returncode == 0, (argv, done.stderr)
        return done.stdout

    def launch(self, folder: Path, *words: str) -> subprocess.Popen[str]:
        """Start assay in a folder of this machine."""
        argv = [sys.executable, "-m", "assay", *words]
        out = subprocess.PIPE
        return subprocess.Popen(argv, cwd=folder, env=self.env, stdout=out, stderr=subprocess.STDOUT, text=True)

    def assay(self, folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "assay", *words]
        env = {**self.env, **env}
        return subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False)

    def start(self, values: Mapping[str, str], *, has_accounting: bool) -> None:
        for name in ("state", "m"):
            (self.folder / name).mkdir()
        (self.folder / "m").chmod(0o700)
        key = self.folder / "m" / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        controller, accounting, database, *ports = _free_ports(3 + len(self.nodes))
        here = {"host": socket.gethostname().partition(".")[0], "user": pwd.getpwuid(os.getuid()).pw_name}
        text = "".join(
            _NODE.format(name=name, port=port, cpus=self.cpus) for name, port in zip(self.nodes, ports, strict=True)
        )
        text += _CONF.format(port=controller, folder=self.folder, **here)
        text += _ACCOUNTING.format(port=accounting, folder=self.folder) if has_accounting else ""
        text += "".join(f"{name}={value}\n" for name, value in {**_PLAIN, **values}.items())
        (self.folder / "slurm.conf").write_text(text)
        (self.folder / "gres.conf").write_text("Name=gpu File=/dev/tty[1-2]\n")
        path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/bin", *SBIN])
        self.env = {**os.environ, "SLURM_CONF": self.conf, "PATH": path}
        munge = self.folder / "m"
        self.run(
            "munged",
            f"--key-file={key}",
            f"--socket={self.folder}/munge.sock",
            f"--pid-file={munge}/pid",
            f"--log-file={munge}/log",
            f"--seed-file={munge}/seed",
            "--force",
        )
        if has_accounting:
            more = {"port": accounting, "database_port": database, "folder": self.folder, **here}
            self._start_accounting(database, _DBD.format(**more))
        self.start_controller("-c")
        for name in self.nodes:
            self._start_slurmd(name)
        self.await_nodes()

    # ------------------------------------------------------------ accounting

    def _start_accounting(self, port: int, conf: str) -> None:
        data, sock = self.folder / "database", self.folder / "database.sock"
        user = pwd.getpwuid(os.getuid()).pw_name
        common = (f"--datadir={data}", f"--user={user}")
        self.run(
            "mariadb-install-db", "--no-defaults", *common, "--skip-test-db", "--auth-root-authentication-method=normal"
        )
        argv = ("mariadbd", "--no-defaults", *common, f"--socket={sock}", "--bind-address=127.0.0.1", f"--port={port}")
        quick = (
            "--innodb-flush-log-at-trx-commit=0",
            "--innodb-buffer-pool-size=8M",
            f"--pid-file={self.folder}/database.pid",
        )
        with (self.folder / "database.log").open("w") as log:
            self.database = subprocess.Popen(
                [*argv, *quick], env=self.env, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        self._until(sock.exists, "MariaDB answers")
        self.run("mariadb", "--no-defaults", f"--socket={sock}", "--user=root", given=_DATABASE_USER)
        path = self.folder / "slurmdbd.conf"
        path.touch(0o600)
        path.write_text(conf)
        self.run("slurmdbd")
        self._until(lambda: self._says(("sacctmgr", "-n", "list", "cluster")) is not None, "slurmdbd answers")
        self.run("sacctmgr", "-i", "add", "cluster", "t")

    # ------------------------------------------------------------ controller

    def start_controller(self, *flags: str) -> None:
        self.run("slurmctld", *flags, "-f", self.conf)

    def stop_controller(self) -> None:
        """Stop with TERM: a controller killed before it saves its jobs starts them again, and drains their node."""
        path = self.folder / "slurmctld.pid"
        pid = self.load_pid(path)
        assert pid is not None
        os.kill(pid, signal.SIGTERM)
        self._until(lambda: pid not in self.find_processes(), "the controller has left")

    # ------------------------------------------------------------ nodes

    def start_node(self, name: str = "") -> None:
        self._start_slurmd(name or self.nodes[0])
        self.await_nodes()

    def _start_slurmd(self, name: str) -> None:
        argv = ["slurmd", "-f", self.conf]
        if name != socket.gethostname().partition(".")[0]:
            mine = () if os.getuid() == 0 else ("--map-current-user", "--keep-caps")
            argv = ["unshare", *mine, "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', name, *argv]
        self.run(*argv)

    def await_nodes(self) -> None:
        self._until(lambda: set(self.load_states()) <= {"idle", "mixed", "allocated", "completing"}, "the nodes are up")

    def load_states(self) -> list[str]:
        """The states of the nodes, as `idle` or `down*`."""
        said = self._says(("sinfo", "-h", "-N", "-p", "p", "-o", "%T"))
        return said.split() if said else ["?"]

    def kill_node(self, name: str = "") -> None:
        """slurmd alone: what it has started goes on."""
        path = self.folder / f"slurmd.{name or self.nodes[0]}.pid"
        pid = self.load_pid(path)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        path.unlink()

    def lose_node(self, name: str) -> None:
        """Set the state that a node has after `SlurmdTimeout`, without the wait. `ReturnToService=1`: a late answer
        does not make the node available again."""
        self.kill_node(name)
        self.run("scontrol", "update", f"nodename={name}", "state=down", "reason=test")

    def find_node(self, name: str) -> None:
        self._start_slurmd(name)
        self._says(("scontrol", "update", f"nodename={name}", "state=resume"))  # or the node is back already
        self.await_nodes()

    def load_pid(self, path: Path) -> int | None:
        with contextlib.suppress(OSError, ValueError):
            return int(path.read_text())
        return None

    def _says(self, argv: Sequence[str]) -> str | None:
        said = subprocess.run(argv, env=self.env, check=False, capture_output=True, text=True, timeout=60)
        return said.stdout if said.returncode == 0 else None

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, (
                what,
                self._says(("sinfo", "-N", "-o", "%N %T %E")),
                [path.read_text()[-1000:] for path in self.folder.glob("*.log")],
            )
            time.sleep(0.05)

    # ------------------------------------------------------------ the end

    def stop(self) -> None:
        with contextlib.suppress(Exception):
            self.run("scancel", "--me", timeout=20)
        for path in (*self.folder.glob("*.pid"), self.folder / "m" / "pid"):
            if (pid := self.load_pid(path)) is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
        if self.database is not None:
            self.database.wait(20)
        deadline = time.monotonic() + 20
        while found := self.find_processes():
            if time.monotonic() > deadline:
                for pid in found:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)

    def find_processes(self) -> list[int]:
        """Daemons and job steps: all have this folder in their command line or environment."""
        needle, found = str(self.folder).encode(), []
        for name in os.listdir("/proc"):
            if not name.isdigit() or int(name) == os.getpid():
                continue
            with contextlib.suppress(OSError):
                command = Path("/proc", name, "cmdline").read_bytes()
                daemon = command.split(b"\0")[0].rpartition(b"/")[2].partition(b":")[0]
                is_ours = needle in command or needle in Path("/proc", name, "environ").read_bytes()
                if is_ours and daemon in _DAEMONS:
                    found.append(int(name))
        return found


@contextlib.contextmanager
def start_cluster(nodes: int = 0, *, cpus: int = 8, has_accounting: bool = False, **values: str) -> Iterator[Cluster]:
    """Start `nodes` nodes with names of their own, n1 and so on; 0: this machine. `values`: settings of slurm.conf."""
    names = [f"n{number}" for number in range(1, nodes + 1)] or [socket.gethostname().partition(".")[0]]
    with tempfile.TemporaryDirectory(prefix="assay-slurm-") as folder:
        cluster = Cluster(Path(folder), names, cpus)
        try:
            cluster.start(values, has_accounting=has_accounting)
            yield cluster
        finally:
            cluster.stop()
            assert cluster.find_processes() == []
