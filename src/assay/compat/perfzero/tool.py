"""Other command line programs, such as docker and gcloud: found on PATH and run in the terminal, or only shown."""

from __future__ import annotations

import codecs
import contextlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import IO

from assay.errors import AssayError, InfrastructureError, UsageError
from assay.show.console import Console

_END_GRACE_S = 10.0


@dataclass(frozen=True, slots=True)
class _Failure:
    """A known reason of failure: how its message is recognised, and what to do about it."""

    pattern: str
    hint: str
    is_users: bool = False  # the user's machine is not set up, rather than a service that refused


@dataclass(frozen=True, slots=True)
class _Program:
    how_to_get: str = "install it, or add its folder to PATH"
    verbs: int = 0  # how many words after its name say what it does: `gcloud compute instances create`
    failures: tuple[_Failure, ...] = ()


_PROGRAMS = {
    "docker": _Program(
        "install it: https://docs.docker.com/engine/install",
        1,
        (
            _Failure("permission denied", 'join its group, then log in again: sudo usermod -a -G docker "$USER"', True),
            _Failure("cannot connect|daemon running", "start it: sudo systemctl start docker", True),
        ),
    ),
    "gcloud": _Program(
        "install the Google Cloud CLI: https://cloud.google.com/sdk/docs/install",
        3,
        (
            _Failure(
                "active account selected|auth tokens|reauthentication|auth login", "log in: gcloud auth login", True
            ),
            _Failure(
                r"property \[project\]|project.* not currently set",
                "give --project=NAME, or set it once: gcloud config set project NAME",
                True,
            ),
            _Failure("images/family/", "name another image: --image=projects/PROJECT/global/images/NAME"),
            _Failure("already exists", "assay perfzero cloud status shows it; assay perfzero cloud delete removes it"),
            _Failure("does not have enough resources|RESOURCE_POOL_EXHAUSTED|stockout", "try another --zone, or later"),
            _Failure("quota", "ask for more, or take fewer accelerators or another --zone"),
            _Failure(
                "was not found", "assay perfzero cloud list_all shows all machines; choose with --zone and --username"
            ),
        ),
    ),
    "lsblk": _Program("install it: apt install util-linux"),
    "mdadm": _Program("install it: apt install mdadm"),
    "mkfs.ext4": _Program("install it: apt install e2fsprogs"),
    "sudo": _Program(verbs=1),
}


def ask_tool(argv: Sequence[str]) -> str:
    """Run a program in silence and return what it prints. Raises AssayError where it fails."""
    done = subprocess.run(
        [_find(argv[0]), *argv[1:]],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        raise build_failure(argv, done.returncode, done.stderr.strip())
    return done.stdout


def run_tool(argv: Sequence[str], keep_errors: bool = True) -> None:
    """Run a program in the user's terminal: its output is seen as it is written. Raises AssayError where it fails.

    Its errors are kept as well, so that a known cause gets its advice; a program that draws on the terminal keeps it
    for itself (`keep_errors=False`), or it would fall back to plain lines.
    """
    program = _find(argv[0])
    sys.stdout.flush()
    sys.stderr.flush()
    with subprocess.Popen([program, *argv[1:]], stderr=subprocess.PIPE if keep_errors else None) as process:
        try:
            errors = _forward(process.stderr) if process.stderr is not None else ""
            code = process.wait()
        except KeyboardInterrupt:  # the terminal has interrupted the program as well: let it clean up
            try:
                process.wait(_END_GRACE_S)
            except subprocess.TimeoutExpired:
                process.terminate()
            raise
    if code:
        raise build_failure(argv, code, errors, is_shown=True)


def _find(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise UsageError(f"{name} was not found on PATH", _PROGRAMS.get(name, _Program()).how_to_get)
    return found


def _forward(stream: IO[bytes]) -> str:
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    kept: list[str] = []
    while chunk := stream.read1(65536):  # type: ignore[attr-defined]
        kept.append(decoder.decode(chunk))
        with contextlib.suppress(BrokenPipeError):  # a reader that has left does not stop the program
            sys.stderr.write(kept[-1])
            sys.stderr.flush()
    return "".join(kept)


def build_failure(argv: Sequence[str], code: int, errors: str, is_shown: bool = False) -> AssayError:
    """The error of a command that failed: with its own message, unless the user has just read it."""
    program = _PROGRAMS.get(argv[0], _Program())
    words = list(argv[: 1 + program.verbs])
    name = " ".join(words[: next((i for i, word in enumerate(words) if word.startswith("-")), None)])
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"failed with exit code {code}"
    known = next((each for each in program.failures if re.search(each.pattern, errors, re.IGNORECASE)), None)
    message = f"{name} {how}" if is_shown or not errors else f"{name} {how}: {errors}"
    kind = UsageError if known is not None and known.is_users else InfrastructureError
    return kind(message, known.hint if known is not None else None)


@dataclass(frozen=True, slots=True)
class Tools:
    """Runs programs; a dry run prints their command lines and does nothing."""

    dry_run: bool
    debug: bool = False
    console: Console = field(default_factory=Console)

    def do(self, argv: Sequence[str], keep_errors: bool = True) -> None:
        """Run a program for its effect."""
        if self.dry_run:
            self.console.print(shlex.join(argv))
            return
        self.remark(f"$ {shlex.join(argv)}")
        run_tool(argv, keep_errors)

    def ask(self, argv: Sequence[str]) -> str:
        """What a program answers; nothing in a dry run, which does not use the network."""
        if self.dry_run:
            self.console.print(shlex.join(argv))
            return ""
        if self.debug:
            self.remark(f"$ {shlex.join(argv)}")
        return ask_tool(argv)

    def announce(self, step: str) -> bool:
        """Print a step that is not a command; return whether it is to be done."""
        if self.dry_run:
            self.console.print(f"# {step}")
        else:
            self.remark(step)
        return not self.dry_run

    def remark(self, text: str) -> None:
        """Print what is being done, which is not a result."""
        self.console.error(text)
