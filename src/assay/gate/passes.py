"""PASS verdicts of earlier gates. A PASS is used again if all that its check depends on is unchanged.

<root>/.gate/<hash of the check's line>/<hash of what it depends on>.json

A check depends on its line, the code (all files of the repository that git does not ignore; without git all files of
the settings file's folder), the environment with its variables, the declared data, and the files and commits that the
line names. The PASS of a check that reads an address or recorded results, or that runs on a farm, is never used again:
inputs of this kind cannot be compared locally. A verdict other than PASS deletes the stored PASS of the same inputs.
"""

from __future__ import annotations

import glob
import json
import os
import re
import shlex
import stat
import sys
import time
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from assay.errors import AssayError, UsageError
from assay.gate.check_execution import CheckOutcome
from assay.gate.gate_settings import GateCheck, GateSettings
from assay.observe.environment import list_installed, load_environment
from assay.show.formatting import render_age
from assay.system.fast_dataclasses import asdict, dataclass
from assay.system.files import blake2b, parse_json, try_text, write_atomic
from assay.system.git import find_git_root, run_git
from assay.values.plain import parse_plain
from assay.values.verdict import VerdictKind

FOLDER = ".gate"
_FORMAT = 1
_LARGE_BYTES = 1 << 28  # a larger file is compared by its size, inode and modification time
# environment variables that differ from one terminal or pipeline to the next, and do not change results
_VOLATILE = (
    r"_|PWD|OLDPWD|SHLVL|TERM\w*|COLUMNS|LINES|TMPDIR|LS_COLORS|PS\d|DISPLAY|WINDOWID|TMUX\w*|STY|MAIL|INVOCATION_ID"
    r"|JOURNAL_STREAM|SSH_\w+|XDG_SESSION_\w+|DBUS_\w+|GITHUB_\w+|RUNNER_\w+|ACTIONS_\w+|CI|CI_\w+|GITLAB_\w+|PYTEST_\w+"
)
_SIDES = {"--git", "--a-rev", "--b-rev", "--a-env", "--b-env"}  # without these, --a-rev compares recorded results
_NAMES = {"code": "the code", "environment": "the environment", "data": "the data", "commits": "a commit it names"}


@dataclass(frozen=True, slots=True)
class Inputs:
    """Digests of what a check depends on."""

    code: str
    environment: str
    data: str
    commits: str

    @property
    def key(self) -> str:
        return _digest(getattr(self, name) for name in _NAMES)


@dataclass(frozen=True, slots=True)
class Kept(Inputs):
    """A PASS of an earlier gate, as stored in its file."""

    line: str
    at: float
    text: str
    cases: int
    format: int


@dataclass(frozen=True, slots=True)
class CheckPlan:
    """The plan for a check: `passed` is used again or, if it is None, the check is executed. `reason` explains why."""

    check: GateCheck
    inputs: Inputs | None
    passed: CheckOutcome | None
    reason: str


class Passes:
    """The PASS verdicts of a root."""

    def __init__(self, root: str, settings: GateSettings) -> None:
        self.root, self.settings = root, settings
        self._code = ""
        self._environment = ""

    def plan(
        self, check: GateCheck, more: Sequence[str], flags: Container[str], *, is_fresh: bool = False
    ) -> CheckPlan:
        """Plan a check. `flags`: all flags of the check's command."""
        if reason := _find_unseen((*check.words, *more), flags):
            return CheckPlan(check, None, None, reason)
        inputs, found = self._load_inputs(check), self._load(check)
        if is_fresh or inputs.key not in found:
            return CheckPlan(check, inputs, None, "--fresh" if is_fresh else _explain(inputs, found))
        kept = found[inputs.key]
        text = f"{kept.text}; it passed {render_age(time.time() - kept.at)}"
        passed = CheckOutcome(check, VerdictKind.PASS, text, None, cases=kept.cases, is_reused=True)
        return CheckPlan(check, inputs, passed, "code, environment and data are those of an earlier PASS")

    def keep(self, plan: CheckPlan, outcome: CheckOutcome) -> None:
        """Store a PASS unless its inputs have changed; delete the stored PASS after another verdict. Raises OSError."""
        if plan.inputs is None:
            return
        path = os.path.join(self._find_folder(plan.check), f"{plan.inputs.key}.json")
        if outcome.kind is not VerdictKind.PASS:
            with suppress(FileNotFoundError, NotADirectoryError):
                os.unlink(path)
            return
        self._code = self._environment = ""  # the check may have changed them
        if self._load_inputs(plan.check) != plan.inputs:
            return
        kept = {"format": _FORMAT, "line": plan.check.line, "at": time.time(), **asdict(plan.inputs)}
        kept |= {"text": outcome.text, "cases": outcome.cases}
        os.makedirs(os.path.dirname(path), exist_ok=True)
        write_atomic(path, json.dumps(kept))

    def _find_folder(self, check: GateCheck) -> str:
        return os.path.join(self.root, FOLDER, _digest([check.line]))

    def _load(self, check: GateCheck) -> dict[str, Kept]:
        """Load the stored PASS verdicts of a check by key, the newest last. Damaged files and files of other formats
        are ignored."""
        found, folder = [], self._find_folder(check)
        for name in os.listdir(folder) if os.path.isdir(folder) else ():
            try:
                with open(os.path.join(folder, name), encoding="utf-8") as file:
                    kept = parse_plain(Kept, parse_json(file.read()))
            except (OSError, ValueError, KeyError, TypeError):
                continue
            if (kept.format, kept.line) == (_FORMAT, check.line) and kept.cases > 0 and 0 <= kept.at <= time.time():
                found.append(kept)
        return {each.key: each for each in sorted(found, key=lambda each: each.at)}

    def _load_inputs(self, check: GateCheck) -> Inputs:
        folder = self.settings.folder
        self._code = self._code or _digest_code(folder, self.root)
        self._environment = self._environment or digest_environment(folder)
        named = [path for path in _find_paths(check.words, folder) if not _is_below(self.root, path)]
        data = _digest(_list_contents([*self.settings.data, *named]))
        environment = _digest([self._environment, *_list_packages(_find_programs(check.words, named, folder))])
        return Inputs(self._code, environment, data, _digest(_find_commits(check.words, folder)))


def _explain(inputs: Inputs, found: Mapping[str, Kept]) -> str:
    """Explain why no earlier PASS is used again: name the inputs that differ from those of the newest PASS."""
    if not found:
        return "no PASS of it is kept here"
    last = list(found.values())[-1]
    changed = [name for key, name in _NAMES.items() if getattr(last, key) != getattr(inputs, key)]
    verb = "has" if len(changed) == 1 else "have"
    return f"{' and '.join(changed)} {verb} changed since it passed {render_age(time.time() - last.at)}"


def _find_unseen(words: Sequence[str], flags: Container[str]) -> str:
    """Return why the inputs of a check cannot be compared locally; an empty string if they can."""
    given = {word.partition("=")[0] for word in words}
    if address := next((word for word in words if "://" in word), None):
        return f"what is at {address} may have changed"
    if given & {"--on", "--farm"}:
        return "the environment of a farm is not known here"
    if "--farm" not in flags or ("--a-rev" in flags and not given & _SIDES):
        return "it reads recorded results, which may have changed"
    return ""


def _digest(parts: Iterable[str]) -> str:
    total = blake2b(digest_size=16)
    for part in parts:
        data = part.encode("utf-8", "surrogateescape")
        total.update(b"%d:" % len(data) + data)
    return total.hexdigest()


def _digest_code(folder: str, root: str) -> str:
    """Hash the code. Files that git ignores are data: they count only if they are declared, or named by a check."""
    top, done = find_git_root(folder), None
    for words in (("--recurse-submodules",), ()) if top else ():
        if done is None or done.returncode:
            done = run_git(top, "ls-files", "-z", "--cached", "--others", "--exclude-standard", *words)
    if top and done and done.returncode == 0:
        names = [os.path.join(top, name) for name in sorted(set(done.stdout.split("\0"))) if name]
    else:  # no git, or it refuses: the repository of another user, a damaged index
        names = _list_files(top or folder, root)
    return _digest(_list_contents(name for name in names if not _is_below(name, root)))


def digest_environment(folder: str) -> str:
    """Hash packages, hardware and environment variables except those that `_VOLATILE` matches."""
    found = load_environment(folder, ())
    packages = [f"{name}=={version}" for name, version in {**found.packages, **found.job_packages}.items()]
    packages += _list_packages((sys.executable, "python", "python3"))
    variables = [f"{name}={value}" for name, value in os.environ.items() if not re.fullmatch(_VOLATILE, name)]
    return _digest([found.fingerprint, found.python, found.job_python or "", *sorted(packages), *sorted(variables)])


def digest_command(environment: str, prefix: str, words: Iterable[str]) -> str:
    """Hash an environment together with the packages of the environments that a command names by absolute paths."""
    parts = [*shlex.split(prefix), *(part for word in words for part in word.split())]
    paths = [path for path in (part.removeprefix("VIRTUAL_ENV=") for part in parts) if os.path.isabs(path)]
    packages = _list_packages(os.path.join(path, "bin/python") if os.path.isdir(path) else path for path in paths)
    return _digest([environment, *packages]) if packages else environment


def _list_packages(programs: Iterable[str]) -> list[str]:
    return [f"{program} {name}" for program in programs for name in list_installed(program)]


def _hash_file(path: str) -> str:
    """Hash a file with its executable bit; a link counts as its target."""
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            hint = "declare files and folders"
            raise UsageError(f"{path} is not a file: whether it has changed cannot be seen", hint)
        if status.st_size > _LARGE_BYTES:
            return f"{status.st_size} {status.st_ino} {status.st_mtime_ns}"
        with open(path, "rb") as file:
            return f"{status.st_mode & stat.S_IXUSR} {blake2b(file.read(), digest_size=16).hexdigest()}"
    except OSError as error:
        hint = "make it readable; what git ignores is not read"
        raise UsageError(f"{path} cannot be read: {error.strerror}", hint) from error


def _list_files(folder: str, root: str = "") -> list[str]:
    """List the files of a folder except those below `root`; links to folders are followed once."""
    found, seen = [], set()
    for base, folders, names in os.walk(folder, followlinks=True):
        place = os.path.realpath(base)
        if place in seen or (root and _is_below(base, root)):
            folders.clear()
            continue
        seen.add(place)
        found += [os.path.join(base, name) for name in names]
    return sorted(found)


def _list_contents(paths: Iterable[str]) -> Iterator[str]:
    for path in paths:
        if os.path.isdir(path):
            yield from _list_contents(_list_files(path))
        elif os.path.exists(path):
            yield f"{path}\n{_hash_file(path)}"
        else:
            yield f"{path}\nmissing"  # the file was deleted, or is a broken link


def _find_paths(words: Sequence[str], folder: str) -> list[str]:
    """Find the files and folders that a command line names, also in `NAME=PATH`, `PATH:function` and `-sPATH`. A file
    adds the files whose names begin with its name: `net.onnx` adds its weights `net.onnx.data`."""
    texts = {part for word in words for part in (word, word.partition("=")[2], word.partition(":")[0]) if part}
    texts |= {word[2:] for word in words if word[:1] == "-" and word[2:]}
    paths = {os.path.normpath(os.path.join(folder, os.path.expanduser(text))) for text in texts} - {folder}
    more = [found for path in paths if os.path.isfile(path) for found in glob.glob(f"{glob.escape(path)}*")]
    return sorted({*filter(os.path.exists, paths), *more})


def _find_programs(words: Sequence[str], paths: Iterable[str], folder: str) -> list[str]:
    """Find the Python programs that a command line, or a file that it names, may start; `uv run` uses `.venv`."""
    small = [path for path in paths if os.path.isfile(path) and os.path.getsize(path) < 1 << 20]
    texts = [".venv/bin/", *words, *(try_text(path, "replace") for path in small)]
    found = {part for text in texts for part in re.split(r"[^\w.~/+@-]+", text) if "/bin/" in part}
    return sorted(os.path.join(folder, os.path.expanduser(os.path.dirname(part)), "python") for part in found)


def _find_commits(words: Iterable[str], folder: str) -> list[str]:
    """Return the current commits that the words of a command line name; the commit of a branch changes."""
    texts = sorted({text for word in words for text in re.split(r"=|\.\.\.?", word) if text})
    found = []
    for text in texts:
        with suppress(AssayError):
            done = run_git(folder, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{text}^{{commit}}")
            found += [f"{text} {done.stdout.strip()}"] if done.returncode == 0 else []
    return found


def _is_below(path: str, folder: str) -> bool:
    top = os.path.abspath(folder)
    return os.path.commonpath([os.path.abspath(path), top]) == top
