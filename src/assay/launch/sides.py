"""The two sides of a comparison, as commands name them: a revision and an environment each, and one farm for both.

Side a is the reference, side b is compared with it. A revision is checked out in its own tree (`code/checkout.py`),
without files that are not in git. An environment is a virtual environment, or shell words before the command.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

from assay.errors import UsageError
from assay.system.git import find_git_root, run_git
from assay.values.options import Request, farm_option, option

_HELP = "Side {}: a virtual environment, or words before the command."
_HINT = "name a virtual environment, or words to put before the command: 'apptainer exec image.sif'"


def parse_environment(text: str, flag: str) -> str:
    """Return the shell words to put before the command; for a virtual environment, the words that activate it."""
    folder = os.path.abspath(os.path.expanduser(text))
    if not text:
        return ""
    if os.path.isdir(folder):
        if not os.path.exists(os.path.join(folder, "bin", "python")):
            raise UsageError(f"{flag}: the folder {text} has no bin/python", _HINT)
        return f'env VIRTUAL_ENV={shlex.quote(folder)} PATH={shlex.quote(folder + "/bin")}:"$PATH"'
    try:
        first = shlex.split(text)[:1]
    except ValueError as error:
        raise UsageError(f"{flag}: {text!r} cannot be read by a shell: {error}", _HINT) from None
    if not first or (os.sep in first[0] and not os.path.exists(os.path.expanduser(first[0]))):
        raise UsageError(f"{flag}: there is neither a folder nor a program {text!r}", _HINT)
    return text


class SideOptions(Request):
    a_rev: str | None = option("--a-rev", metavar="REV", help="Side a: this commit, in a checkout of its own.")
    b_rev: str | None = option("--b-rev", metavar="REV", help="Side b: this commit instead of the files as they are.")
    a_env: str = option("--a-env", metavar="PREFIX", default="", parse=parse_environment, help=_HELP.format("a"))
    b_env: str = option("--b-env", metavar="PREFIX", default="", parse=parse_environment, help=_HELP.format("b"))
    on: str | None = farm_option()


def build_side_command(words: tuple[str, ...], environment: str = "", inside: str = ".") -> str:
    """Return a shell command line for a folder of the code and an environment. A single word is already shell text."""
    text = shlex.join(words) if len(words) > 1 else words[0]
    if environment:
        text = f"{environment} {text if len(words) > 1 else f'bash -c {shlex.quote(text)}'}"
    return text if inside == os.curdir else f"cd {shlex.quote(inside)} && {text}"


def check_paths(words: Sequence[str], folder: str) -> None:
    """Refuse paths that would lead both sides to the user's own files instead of their copies."""
    top = find_git_root(folder)
    if top is None:
        return
    parts = [part for word in words for part in word.split()]
    for path in (part for part in parts if os.path.isabs(part) and _is_tracked(top, part)):
        hint = f"name it as seen from this folder: {os.path.relpath(path, folder)}"
        raise UsageError(f"{path} is a file of the repository: both sides would use it as it is", hint)
    for path in os.environ.get("PYTHONPATH", "").split(os.pathsep):
        if os.path.isabs(path) and _is_tracked(top, path):
            hint = f"write it as seen from this folder: PYTHONPATH={os.path.relpath(path, folder)}"
            raise UsageError(f"PYTHONPATH leads both sides to your own files: {path}", hint)


def _is_tracked(top: str, path: str) -> bool:
    inside = os.path.commonpath([top, os.path.realpath(path)]) == top
    return inside and run_git(top, "ls-files", "--error-unmatch", "--", path).returncode == 0
