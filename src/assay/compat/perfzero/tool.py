"""Other command line tools, such as docker and gcloud: found on PATH and run in the terminal, or only shown."""

from __future__ import annotations

import codecs
import contextlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO

from assay.errors import AssayError, InfrastructureError, UsageError

_HOW_TO_GET = {
    "docker": "install it: https://docs.docker.com/engine/install",
    "gcloud": "install the Google Cloud CLI: https://cloud.google.com/sdk/docs/install",
    "lsblk": "install it: apt install util-linux",
    "mdadm": "install it: apt install mdadm",
    "mkfs.ext4": "install it: apt install e2fsprogs",
}
_END_GRACE_S = 10.0


@dataclass(frozen=True, slots=True)
class ToolResult:
    """How a command ended."""

    code: int
    out: str = ""
    errors: str = ""  # its standard error


@dataclass(frozen=True, slots=True)
class KnownFailure:
    """A known reason of failure: how its message is recognised, and what to do about it."""

    pattern: str
    hint: str
    is_users: bool = False  # the user's machine is not set up, rather than a service that refused


# ---------------------------------------------------------------- one command


def find_tool(name: str) -> str:
    """The path of the program."""
    found = shutil.which(name)
    if found is None:
        raise UsageError(
            f"{name} was not found on PATH", _HOW_TO_GET.get(name, "install it, or add its folder to PATH")
        )
    return found


def ask_tool(argv: Sequence[str]) -> ToolResult:
    """Run it in silence, for its answer."""
    done = subprocess.run(
        [find_tool(argv[0]), *argv[1:]],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    return ToolResult(done.returncode, done.stdout, done.stderr.strip())


def run_tool(argv: Sequence[str], keep_errors: bool = True) -> ToolResult:
    """Run it in the user's terminal: its output is seen as it is written.

    Its errors are kept as well, so that a known cause gets its advice; a tool that draws on the terminal keeps it for
    itself (`keep_errors=False`), or it would fall back to plain lines.
    """
    program = find_tool(argv[0])
    sys.stdout.flush()
    sys.stderr.flush()
    with subprocess.Popen([program, *argv[1:]], stderr=subprocess.PIPE if keep_errors else None) as process:
        try:
            errors = _forward(process.stderr) if process.stderr is not None else ""
            code = process.wait()
        except KeyboardInterrupt:  # the terminal has interrupted the tool as well: let it clean up
            try:
                process.wait(_END_GRACE_S)
            except subprocess.TimeoutExpired:
                process.terminate()
            raise
    return ToolResult(code, "", errors.strip())


def _forward(stream: IO[bytes]) -> str:
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    kept: list[str] = []
    while chunk := stream.read1(65536):  # type: ignore[attr-defined]
        kept.append(decoder.decode(chunk))
        with contextlib.suppress(BrokenPipeError):  # a reader that has left does not stop the tool
            sys.stderr.write(kept[-1])
            sys.stderr.flush()
    return "".join(kept)


# ---------------------------------------------------------------- what went wrong


def build_failure(
    argv: Sequence[str], result: ToolResult, failures: Sequence[KnownFailure] = (), is_shown: bool = False
) -> AssayError:
    """The error of a command that failed: with its own message, unless the user has just read it."""
    known = next((each for each in failures if re.search(each.pattern, result.errors, re.IGNORECASE)), None)
    code = result.code
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"failed with exit code {code}"
    ending = f"{_command_name(argv)} {how}"
    message = ending if is_shown or not result.errors else f"{ending}: {result.errors}"
    kind = UsageError if known is not None and known.is_users else InfrastructureError
    return kind(message, known.hint if known is not None else None)


def _command_name(argv: Sequence[str]) -> str:
    """`gcloud compute instances create`: up to the first option or operand that says which."""
    verbs = {"docker": 1, "gcloud": 3, "sudo": 1}.get(argv[0], 0)
    words = list(argv[: 1 + verbs])
    options = [number for number, word in enumerate(words) if word.startswith("-")]
    return " ".join(words[: options[0]] if options else words)


# ---------------------------------------------------------------- doing, or showing what would be done


@dataclass(frozen=True, slots=True)
class Tools:
    """Does things by way of tools; a dry run shows the command lines and does nothing."""

    dry_run: bool
    show: Callable[[str], None]  # the lines of a dry run
    remark: Callable[[str], None]  # what is being done
    debug: bool = False
    failures: tuple[KnownFailure, ...] = ()

    def do(self, argv: Sequence[str], keep_errors: bool = True) -> None:
        """Run it for its effect, or raise."""
        if self.dry_run:
            self.show(shlex.join(argv))
            return
        self.remark(f"$ {shlex.join(argv)}")
        result = run_tool(argv, keep_errors)
        if result.code:
            raise build_failure(argv, result, self.failures, is_shown=True)

    def ask(self, argv: Sequence[str]) -> str:
        """What it answers, or raise. Nothing in a dry run: it reaches for no network either."""
        if self.dry_run:
            self.show(shlex.join(argv))
            return ""
        if self.debug:
            self.remark(f"$ {shlex.join(argv)}")
        result = ask_tool(argv)
        if result.code:
            raise build_failure(argv, result, self.failures)
        return result.out

    def announce(self, step: str) -> bool:
        """A step that is not a command; whether it is to be done."""
        if self.dry_run:
            self.show(f"# {step}")
        else:
            self.remark(step)
        return not self.dry_run
