"""A PostgreSQL server of the tests' own: on loopback, in a private folder, as an unprivileged user."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from tests.services import find_postgres

PASSWORD = "p@ss/w:rd %1"  # each of these characters needs care in an address


class PostgresServer:
    """A server to `start` and `stop` repeatedly. It ends with the process that started it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None

    def address(self, user: str = "assay", password: str = PASSWORD, database: str = "postgres") -> str:
        return f"postgresql://{user}:{quote(password, safe='')}@127.0.0.1:{self.port}/{database}"

    def create(self) -> None:
        secret = self.folder / "password"
        secret.write_text(PASSWORD)
        if os.getuid() == 0:
            nobody = pwd.getpwnam("nobody")
            for path in (self.folder, secret):
                os.chown(path, nobody.pw_uid, nobody.pw_gid)
        options = ["-U", "assay", "-A", "scram-sha-256", f"--pwfile={secret}", "--locale=C", "-E", "UTF8", "--no-sync"]
        command = [*self._prefix(), find_postgres("initdb"), "-D", str(self.folder / "data"), *options]
        subprocess.run(command, env=self._env(), check=True, stdout=subprocess.DEVNULL, timeout=120)

    def start(self) -> None:
        settings = {"listen_addresses": "127.0.0.1", "port": self.port, "unix_socket_directories": "", "fsync": "off"}
        flags = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        command = [*self._prefix(), find_postgres("postgres"), "-D", str(self.folder / "data"), *flags]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, env=self._env(), stdout=log, stderr=log)
        ready = [find_postgres("pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        end = time.monotonic() + 60
        while subprocess.run(ready, check=False).returncode != 0:
            assert time.monotonic() < end, (self.folder / "log").read_text()
            assert self._process.poll() is None, (self.folder / "log").read_text()
            time.sleep(0.02)

    def stop(self) -> None:
        """Stop the server at once: connections are ended, transactions undone."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(60)
            self._process = None

    def sql(self, *statements: str, database: str = "postgres") -> list[tuple[object, ...]]:
        """Execute statements as the superuser; return the result of the last one."""
        import psycopg

        found: list[tuple[object, ...]] = []
        with psycopg.connect(self.address(database=database), autocommit=True) as connection:
            for statement in statements:
                cursor = connection.execute(statement)
                found = cursor.fetchall() if cursor.description else []
        return found

    def _prefix(self) -> list[str]:
        drop = ["--reuid=nobody", f"--regid={pwd.getpwnam('nobody').pw_gid}", "--clear-groups"]
        return ["setpriv", *(drop if os.getuid() == 0 else []), "--pdeathsig=INT"]

    def _env(self) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "HOME": str(self.folder), "LC_ALL": "C"}


@contextmanager
def run_postgres() -> Iterator[PostgresServer]:
    folder = Path(tempfile.mkdtemp(prefix="assay-postgres-"))  # not below pytest's folders: others may not enter those
    server = PostgresServer(folder)
    try:
        server.create()
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
