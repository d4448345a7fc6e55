"""Other command line programs, such as docker and gcloud: run in the terminal, or only shown in a dry run."""

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


_INSTALL = {
    "docker": "install it: https://docs.docker.com/engine/install",
    "gcloud": "install the Google Cloud CLI: https://cloud.google.com/sdk/docs/install",
    "lsblk": "install it: apt install util-linux",
    "mdadm": "install it: apt install mdadm",
    "mkfs.ext4": "install it: apt install e2fsprogs",
}
_VERBS = {"docker": 1, "gcloud": 3, "sudo": 1}  # words after the name that form the command: gcloud compute ssh
# Advice for a program's error messages, by program and error to raise: UsageError if this machine is not set up
_FAILURES: dict[tuple[str, type[AssayError]], dict[str, str]] = {
    ("docker", UsageError): {
        "permission denied": 'join its group, then log in again: sudo usermod -a -G docker "$USER"',
        "cannot connect|daemon running": "start it: sudo systemctl start docker",
    },
    ("gcloud", UsageError): {
        "active account selected|auth tokens|reauthentication|auth login": "log in: gcloud auth login",
        r"property \[project\]|project.* not currently set": (
            "give --project=NAME, or set it once: gcloud config set project NAME"
        ),
    },
    ("gcloud", InfrastructureError): {
        "images/family/": "name another image: --image=projects/PROJECT/global/images/NAME",
        "already exists": "assay perfzero cloud status shows it; assay perfzero cloud delete removes it",
        "does not have enough resources|RESOURCE_POOL_EXHAUSTED|stockout": "try another --zone, or later",
        "quota": "ask for more, or take fewer accelerators or another --zone",
        "was not found": "assay perfzero cloud list_all shows all machines; choose with --zone and --username",
    },
}


def ask_tool(argv: Sequence[str]) -> str:
    """Run a program without showing its output, and return the output. Raise AssayError if the program fails."""
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
    """Run a program in the user's terminal, with its output shown live. Raise AssayError if the program fails.

    The program's stderr is also captured, so that a known failure gets advice. `keep_errors=False` is for programs that
    draw on the terminal: without a terminal on stderr such a program prints plain lines.
    """
    program = _find(argv[0])
    sys.stdout.flush()
    sys.stderr.flush()
    with subprocess.Popen([program, *argv[1:]], stderr=subprocess.PIPE if keep_errors else None) as process:
        try:
            errors = _forward(process.stderr) if process.stderr is not None else ""
            code = process.wait()
        except KeyboardInterrupt:  # the program got the signal too: wait while it cleans up
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
        raise UsageError(f"{name} was not found on PATH", _INSTALL.get(name, "install it, or add its folder to PATH"))
    return found


def _forward(stream: IO[bytes]) -> str:
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    kept: list[str] = []
    while chunk := stream.read1(65536):  # type: ignore[attr-defined]
        kept.append(decoder.decode(chunk))
        with contextlib.suppress(BrokenPipeError):  # the program continues without a reader
            sys.stderr.write(kept[-1])
            sys.stderr.flush()
    return "".join(kept)


def build_failure(argv: Sequence[str], code: int, errors: str, is_shown: bool = False) -> AssayError:
    """Return the error for a failed command, with the command's message unless the user has just read it."""
    words = list(argv[: 1 + _VERBS.get(argv[0], 0)])
    name = " ".join(words[: next((i for i, word in enumerate(words) if word.startswith("-")), None)])
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"failed with exit code {code}"
    message = f"{name} {how}" if is_shown or not errors else f"{name} {how}: {errors}"
    for (program, kind), hints in _FAILURES.items():
        for pattern, hint in hints.items():
            if program == argv[0] and re.search(pattern, errors, re.IGNORECASE):
                return kind(message, hint)
    return InfrastructureError(message)


@dataclass(frozen=True, slots=True)
class Tools:
    """Runs programs, or in a dry run only prints their command lines."""

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
        """Return the output of a program; "" in a dry run, which does not use the network."""
        if self.dry_run:
            self.console.print(shlex.join(argv))
            return ""
        if self.debug:
            self.remark(f"$ {shlex.join(argv)}")
        return ask_tool(argv)

    def announce(self, step: str) -> bool:
        """Print a step that is not a command. Return whether to do the step: False in a dry run."""
        if self.dry_run:
            self.console.print(f"# {step}")
        else:
            self.remark(step)
        return not self.dry_run

    def remark(self, text: str) -> None:
        """Print a message about progress, which is not a result, to stderr."""
        self.console.error(text)
