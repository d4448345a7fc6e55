"""A real Slurm of one node with two fake GPUs, in a private folder: started for tests, and nothing of it is left."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.services import SBIN

_CONF = """\
ClusterName=t
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={first}
SlurmdPort={second}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=0
GresTypes=gpu
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout=5
KillWait=3
MinJobAge=300
MaxArraySize={array}
JobRequeue=1
MpiDefault=none
NodeName={host} NodeAddr=127.0.0.1 CPUs=8 RealMemory=4000 Gres=gpu:2 State=UNKNOWN
PartitionName=p Nodes={host} Default=YES MaxTime=INFINITE State=UP
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
    env: dict[str, str] = field(default_factory=dict)

    @property
    def conf(self) -> str:
        return str(self.folder / "slurm.conf")

    def run(self, *argv: str, timeout: float = 60) -> str:
        done = subprocess.run(
            argv, env=self.env, timeout=timeout, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
        assert done.returncode == 0, (argv, done.stderr)
        return done.stdout

    def start(self, array_size: int) -> None:
        import pwd

        for name in ("state", "spool", "m"):
            (self.folder / name).mkdir()
        (self.folder / "m").chmod(0o700)
        key = self.folder / "m" / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        first, second = _free_ports(2)
        host, user = socket.gethostname().partition(".")[0], pwd.getpwuid(os.getuid()).pw_name
        values = {"host": host, "first": first, "second": second, "user": user, "folder": self.folder}
        (self.folder / "slurm.conf").write_text(_CONF.format(array=array_size, **values))
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
        self.run("slurmctld", "-c", "-f", self.conf)
        self.start_node()

    def start_node(self) -> None:
        self.run("slurmd", "-f", self.conf)
        self.await_idle()

    def await_idle(self) -> None:
        deadline = time.monotonic() + 60
        while True:
            said = subprocess.run(
                ("sinfo", "-h", "-o", "%T"), env=self.env, check=False, capture_output=True, text=True, timeout=60
            )
            if said.stdout.strip() in ("idle", "mixed", "allocated"):
                return
            assert time.monotonic() < deadline, said
            time.sleep(0.05)

    def kill_node(self) -> None:
        """slurmd alone: what it has started goes on."""
        pid = self.load_pid(self.folder / "slurmd.pid")
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        (self.folder / "slurmd.pid").unlink()

    def load_pid(self, path: Path) -> int | None:
        with contextlib.suppress(OSError, ValueError):
            return int(path.read_text())
        return None

    def stop(self) -> None:
        with contextlib.suppress(Exception):
            self.run("scancel", "--me", timeout=20)
        files = (self.folder / "slurmd.pid", self.folder / "slurmctld.pid", self.folder / "m" / "pid")
        pids = [pid for pid in map(self.load_pid, files) if pid is not None]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + 20
        while self.find_processes():
            if time.monotonic() > deadline:
                for pid in self.find_processes():
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
                if is_ours and daemon in (b"munged", b"slurmctld", b"slurmd", b"slurmstepd"):
                    found.append(int(name))
        return found


@contextlib.contextmanager
def start_cluster(array_size: int = 1001) -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="assay-slurm-") as folder:
        cluster = Cluster(Path(folder))
        try:
            cluster.start(array_size)
            yield cluster
        finally:
            cluster.stop()
            assert cluster.find_processes() == []
