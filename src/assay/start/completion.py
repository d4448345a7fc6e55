"""`assay completion`: prints the words that a shell offers after TAB. The scripts in `shells/` call it."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

from assay.errors import InfrastructureError, UsageError
from assay.show.console import Console
from assay.system.files import read_text, write_atomic
from assay.values.options import Group, Request, argument, option

GROUP = Group(
    "Complete commands, options, studies, runs, metrics, columns, targets and farms in the shell.",
    {
        "install": ("assay.start.completion:install", "Complete in new shells from now on: bash, zsh or fish."),
        "words": ("assay.start.completion:words", "Print what may follow LINE; the shell calls this command."),
    },
)
SHELLS = ("bash", "zsh", "fish")
_LONGEST_S = 3  # seconds: the user waits for the words

Complete = Callable[[str], tuple[str, Sequence[tuple[str, str]]]]


# ---------------------------------------------------------------- install


class InstallRequest(Request):
    shell: str | None = argument("[bash|zsh|fish]", required=False, choices=SHELLS)
    only_print: bool = option("--print", default=False, help="Print the script; write nothing.")


def install(request: InstallRequest, console: Console) -> int:
    """Write the completion of bash, zsh or fish ($SHELL by default), and have new shells read it."""
    shell = request.shell or os.path.basename(os.environ.get("SHELL", ""))
    if shell not in SHELLS:
        what = f"$SHELL is {shell}" if shell else "SHELL is not set"
        raise UsageError(f"{what}: the shells are bash, zsh and fish", "name one: assay completion install bash")
    text = read_text(str(Path(__file__).parent / "shells" / f"assay.{shell}"))
    if request.only_print:
        console.write(text)
        return 0
    script, startup = _find_files(shell)
    line = f"source {shlex.quote(str(script))}"
    try:
        script.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(str(script), text)
        console.print(f"wrote {script}")
        if startup is not None and _add_line(startup, line):
            console.print(f"added to {startup}: {line}")
    except OSError as error:
        hint = f"see it, and write it yourself: assay completion install {shell} --print"
        raise InfrastructureError(f"{error.filename} cannot be written: {error.strerror}", hint) from error
    console.print(f"new shells complete now; in this one: {line}")
    return 0


def _find_files(shell: str) -> tuple[Path, Path | None]:
    """Return the paths of the script and of the shell's startup file; None: the shell finds the script without it."""
    home = Path.home()
    if shell == "fish":
        return Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config") / "fish/completions/assay.fish", None
    data = Path(os.environ.get("XDG_DATA_HOME") or home / ".local/share")
    startup = home / ".bashrc" if shell == "bash" else Path(os.environ.get("ZDOTDIR") or home) / ".zshrc"
    return data / "assay" / f"completion.{shell}", startup


def _add_line(path: Path, line: str) -> bool:
    """Append a line unless the file has it; return whether it was added. The file may be a link: it is not replaced."""
    text = read_text(str(path)) if path.exists() else ""
    if line in text.splitlines():
        return False
    start = "\n" if text and not text.endswith("\n") else ""
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{start}{line}\n")
    return True


# ---------------------------------------------------------------- words


class WordsRequest(Request):
    line: str = argument("LINE")
    piece: str | None = argument("[PIECE]", required=False)


def words(request: WordsRequest, console: Console, complete: Complete) -> int:
    """Print what may follow LINE, with a help text after a tab; `files` after a tab: the shell completes files.

    PIECE is the end of LINE that the shell replaces; bash ends words at = and :.
    """
    signal.alarm(_LONGEST_S)  # if a server or a file system does not answer, nothing is offered
    try:
        last, found = complete(request.line)
    finally:
        signal.alarm(0)
    known = len(last) - len(request.piece if request.piece is not None else last)
    console.write("".join(f"{value[known:]}\t{help_text}\n" for value, help_text in found))
    return 0
