"""The system's own ssh: the address of a host, and why it could not be reached. ssh never asks a question."""

from __future__ import annotations

import shlex
import shutil
from dataclasses import dataclass

from assay.errors import InfrastructureError, UsageError

NO_HOST = "as in user@host: without spaces, and without a dash at the beginning, which ssh takes for an option"


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a host and how to log in."""

    name: str  # user@host
    port: int | None = None
    key: str = ""
    connect_s: float = 10.0
    options: tuple[str, ...] = ()  # more words for ssh
    root: str = "/tmp"  # noqa: S108 - a folder of the host; new folders in it have random names and are private
    noun: str = "board"  # the word for such a host in messages
    key_hint: str = 'name a key that it knows: key = "~/.ssh/…"'

    def __post_init__(self) -> None:
        if not is_host(self.name):
            raise UsageError(f"{self.name!r} is not the name of a {self.noun}", NO_HOST)

    @property
    def words(self) -> list[str]:
        port = ["-p", str(self.port)] if self.port else []
        key = ["-i", self.key, "-o", "IdentitiesOnly=yes"] if self.key else []
        fixed = {
            "BatchMode": "yes", "ConnectTimeout": f"{max(1, round(self.connect_s))}", "ServerAliveInterval": "5",
            "ServerAliveCountMax": "3", "LogLevel": "ERROR",
        }  # fmt: skip
        return [*self.options, *port, *key, *(word for item in fixed.items() for word in ("-o", "=".join(item)))]

    @property
    def command(self) -> str:
        """The command with which a user connects."""
        port = ["-p", str(self.port)] if self.port else []
        key = ["-i", self.key] if self.key else []
        return shlex.join(["ssh", *self.options, *port, *key, "--", self.name])


def is_host(name: str) -> bool:
    """Whether ssh takes the name for a host, not for an option."""
    return not any(part.startswith("-") for part in name.split("@")) and name.isprintable() and " " not in name


def find_client(noun: str) -> str:
    program = shutil.which("ssh")
    if program is None:
        raise InfrastructureError(f"a {noun} needs ssh, which is not in PATH", "apt-get install openssh-client")
    return program


def explain_connection(address: Address, error_text: str) -> tuple[str, str]:
    """Explain why ssh could not connect, and what to do."""
    reason = error_text.strip().rpartition("\n")[2].removeprefix("ssh: ") or f"no answer within {address.connect_s:g} s"
    where = f"the {address.noun} {address.name}"
    if "Permission denied" in reason:
        return f"{where} refuses the connection: {reason}", address.key_hint
    if "Host key verification failed" in reason:
        what = "has another key than before" if "HAS CHANGED" in error_text else "is not known"
        return f"{where} {what}: {reason}", f"connect once by hand: {address.command}"
    return f"{where} does not answer: {reason}", f"is it on? try: {address.command} true"
