"""Programs of a target: their command templates, where they are, their versions, and the files that results depend on.

A template is a string, split as in a shell, or a list of words. `{name}` stands for a value, `{{` and `}}` for braces.
If a value is absent (no IR is dumped, no chip was named), the word with its placeholder is left out; words that belong
together are in brackets, `[--dump {ir_dir}]`, or in a list, and left out together. `[[` and `]]` stand for brackets.

The result of a changed tool must never come from the artifact store, so these are hashed by content: the words of a
command, the file or folder that each word names, the interpreter of a script, the programs that a wrapper calls, and
the packages of a Python interpreter. Hashing too much costs a needless run; hashing too little passes a wrong result.
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from assay.errors import InfrastructureError, UsageError, did_you_mean
from assay.system.fast_dataclasses import dataclass
from assay.system.files import is_inside

Value = str | Sequence[str] | None  # a sequence: several arguments; None: absent

OPTIONAL = ("ir_dir", "profile_dir", "chip", "hardware")
_PIECE = re.compile(r"(?P<brace>\{\{|\}\})|\{(?P<name>[A-Za-z_]\w*)\}|(?P<lone>[{}])")


@dataclass(frozen=True, slots=True)
class Template:
    """A command line in parts: the arguments of one part are all there or all left out."""

    parts: tuple[tuple[str, ...], ...]

    @property
    def words(self) -> list[str]:
        return [word for part in self.parts for word in part]

    def expand(self, values: Mapping[str, Value]) -> list[str]:
        """Return the command line with these values."""
        present = [part for part in self.parts if all(values[name] is not None for name in find_names(*part))]
        return [text for part in present for word in part for text in _fill(word, values)]


def parse_template(content: object, known: Sequence[str], where: str) -> Template:
    """Parse a template. Raises UsageError if it is not a command line, or has placeholders that are not in `known`.
    `where` is for messages: `target sim: compile`."""
    if isinstance(content, str):
        parts = tuple(_split_text(content, where))
    elif isinstance(content, list | tuple):
        parts = tuple(_parse_item(item, where) for item in content)
    else:
        raise UsageError(f"{where} must be a string or a list of words, not {content!r}")
    if not parts:
        raise UsageError(f"{where} is empty", 'it is a command line, as in "my-compiler {model} -o {artifact}"')
    template = Template(parts)
    for word in template.words:
        for match in _PIECE.finditer(word):
            if match["lone"]:
                raise UsageError(f"{where}: a lone brace in {word!r}", "write {{ and }} for braces")
            if match["name"] and match["name"] not in known:
                message = f"{where}: {{{match['name']}}} is not known here"
                raise UsageError(message, did_you_mean(match["name"], known) or f"known: {', '.join(known)}")
    return template


def _parse_item(item: object, where: str) -> tuple[str, ...]:
    words = (item,) if isinstance(item, str) else item
    if isinstance(words, list | tuple) and words and all(isinstance(word, str) for word in words):
        return tuple(words)
    raise UsageError(f"{where}: {item!r} is neither a word nor a list of words")


def _split_text(text: str, where: str) -> Iterator[tuple[str, ...]]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{where} cannot be split into words: {error}", "every quote needs its end") from None
    group: list[str] | None = None  # arguments since a bracket was opened; None: no bracket is open
    for word in words:
        opens = word.startswith("[") and not word.startswith("[[")
        closes = word.endswith("]") and not word.endswith("]]")
        if group is None and not opens:
            yield (_unescape(word),)
            continue
        bare = word[1:] if group is None else word
        group = group or []
        group.append(_unescape(bare[:-1] if closes else bare))
        if closes and not any(name in OPTIONAL for name in find_names(*group)):
            asked = ", ".join(f"{{{name}}}" for name in OPTIONAL)
            message = f"{where}: [{' '.join(group)}] asks for nothing that may be absent ({asked})"
            raise UsageError(message, "write [[ ]] for brackets")
        if closes:
            yield tuple(group)
            group = None
    if group is not None:
        raise UsageError(f"{where}: the bracket before {group[0]!r} is never closed", "write [[ for a literal bracket")


def _unescape(word: str) -> str:
    word = word[1:] if word.startswith("[[") else word
    return word[:-1] if word.endswith("]]") else word


def find_names(*words: str) -> list[str]:
    """Return the names of the placeholders in these words."""
    return [match["name"] for word in words for match in _PIECE.finditer(word) if match["name"]]


def fill_text(text: str, values: Mapping[str, Value]) -> str:
    """Return a string with its placeholders filled."""
    return "".join(_fill(text, values))


def _fill(word: str, values: Mapping[str, Value]) -> list[str]:
    """Fill a word with its values: one word, or as many as the value has if the word is a placeholder alone."""
    alone = re.fullmatch(r"\{(\w+)\}", word)
    if alone and not isinstance(values[alone[1]], str):
        return list(values[alone[1]] or ())

    def replace(match: re.Match[str]) -> str:
        if match["brace"]:
            return match["brace"][0]
        value = values[match["name"]]
        return value if isinstance(value, str) else " ".join(value or ())

    return [_PIECE.sub(replace, word)]


VERSION_S = 10.0  # a program that takes longer to print its version counts as having no version


def find_program(program: str, env: Mapping[str, str], folder: str) -> list[str]:
    """Return the command that starts a program: the variable named for it if set, else PATH; a name with a slash is a
    path. The variable may be a path, or a command with arguments; a relative path in it starts at the current
    directory, not where the program will run. Raises InfrastructureError."""
    if "/" in program:
        path = os.path.normpath(os.path.join(folder, os.path.expanduser(program)))
        if not os.access(path, os.X_OK) or os.path.isdir(path):
            raise InfrastructureError(f"{program} is not a program: {path} {_reason(path)}")
        return [path]
    variable = re.sub(r"\W", "_", program).upper()  # TORQ_COMPILE for torq-compile
    value = env.get(variable)
    if value:
        try:
            words = [value] if os.path.isfile(value) else shlex.split(value)
        except ValueError:
            words = [value]
        first = shutil.which(words[0], path=env.get("PATH")) if words else None
        if first is None:
            raise InfrastructureError(f"${variable} is {value}, which {_reason(words[0] if words else value)}")
        return [os.path.abspath(first), *words[1:]]
    found = shutil.which(program, path=env.get("PATH"))
    if found is None:
        raise InfrastructureError(
            f"{program} was not found: ${variable} is not set, and it is not in PATH",
            f"install it, or export {variable}=/path/to/{program}",
        )
    return [os.path.abspath(found)]


def _reason(path: str) -> str:
    if not os.path.exists(path):
        return "does not exist"
    return "is a folder" if os.path.isdir(path) else "may not be executed"


def ask_version(words: Sequence[str], env: Mapping[str, str], cwd: str) -> str:
    """Return a program's version in one line; empty if the program fails, or takes too long."""
    try:
        done = subprocess.run(
            words, cwd=cwd, env=dict(env), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            timeout=VERSION_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "" if done.returncode else " ".join(done.stdout[:2000].decode("utf-8", "replace").split())[:500]


NO_NAME = "\0"  # in place of a value that is not known yet: a word with it names no file
SEARCHED = ("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "PYTHONHOME")  # search paths of programs
_SHELLS = ("sh", "bash", "dash", "ash", "ksh", "zsh", "busybox")
_SCRIPT_BYTES = 64 * 1024  # a larger file is a program, not a wrapper
_FRESH_NS = 2 * 10**9  # within this time a file may change again without a new mtime
_MADE_BY_RUNNING = ("__pycache__", ".git")
_OWN_FOLDER = re.compile(
    r'\$\(\s*dirname\s+(?:--\s+)?"?\$\{?(?:0|BASH_SOURCE(?:\[0\])?)\}?"?\s*\)|`dirname "?\$0"?`|\$\{0%/\*\}'
)
_WORD = re.compile(r"[^\s\"'`;|&<>(){}$=]+")
_hashes: dict[str, tuple[tuple[int, ...], str]] = {}  # path → its stamp when it was read, and its hash


def describe_words(words: Sequence[str], folder: str) -> dict[str, str]:
    """Return the hash of every file and folder that these words name, also after a `=` or `@`. A folder that contains
    the working directory is left out."""
    found = {}
    for name in dict.fromkeys(name for word in words for name in list_names(word)):
        path = os.path.join(folder, os.path.expanduser(name))
        if os.path.isfile(path) or (os.path.isdir(path) and not is_inside(folder, path)):
            found[name] = hash_path(path)
    return found


def describe_program(words: Sequence[str]) -> dict[str, str]:
    """Describe how a program is started, word by word, and the target of its link."""
    real = os.path.realpath(words[0])
    return {"words": " ".join(words) + (f" → {real}" if real != words[0] else "")}


def describe_called(words: Sequence[str], folder: str, env: Mapping[str, str]) -> dict[str, str]:
    """Return hashes of the programs that scripts among the words call, and of packages of Python interpreters."""
    found: dict[str, str] = {}
    paths = [os.path.join(folder, name) for word in words for name in list_names(word)]
    waiting = [path for path in dict.fromkeys(paths) if os.path.isfile(path)]
    seen = set(waiting)
    while waiting:
        path = waiting.pop()
        if os.path.basename(path).startswith("python"):  # a Python interpreter has packages
            prefix = glob.escape(os.path.dirname(os.path.dirname(os.path.abspath(path))))
            patterns = (f"{prefix}{local}/lib*/python3*/*-packages" for local in ("", "/local"))
            folders = sorted(each for pattern in patterns for each in glob.glob(pattern))
            packages = "".join(map(_hash_packages, folders))
            found |= {f"packages of {path}": hashlib.sha256(packages.encode()).hexdigest()[:16]} if packages else {}
        for each in _find_called(path, env):
            if each not in seen:
                seen.add(each)
                waiting.append(each)
                found[each] = hash_path(each)
    return found


def describe_environment(own: Mapping[str, str], folder: str, inherited: Mapping[str, str]) -> dict[str, str]:
    """Describe files and folders that the target's own variables name, and variables with search paths."""
    named = [part for name, value in own.items() if name != "PATH" for part in (value, *value.split(os.pathsep))]
    searched = {name: inherited[name] for name in SEARCHED if inherited.get(name) and name not in own}
    return describe_words(named, folder) | searched


def find_matching(pattern: str, folder: str) -> list[str]:
    """Return the files whose names match a pattern: those of all cases."""
    found = [glob.glob(os.path.join(glob.escape(folder), name)) for name in list_names(pattern)]
    return sorted({path for paths in found for path in paths})


def list_names(word: str) -> Iterator[str]:
    """Yield the parts of a word that may be paths: `x`, `--flag=x`, `-Ix`, `@x`, `x,y`."""
    whole = [word, word.partition("=")[2], word[2:] if re.match(r"-[^-]", word) else ""]
    parts = [part for text in whole for part in re.split(r"[,:;]", text)]
    names = dict.fromkeys([*whole, *parts, *(part.lstrip("@") for part in parts)])
    yield from (name for name in names if name and NO_NAME not in name)


def _find_called(path: str, env: Mapping[str, str]) -> list[str]:
    """Return a script's interpreter, and for a shell script every program and file that its text names."""
    text = _load_script(path)
    if not text:
        return []
    first, _, body = text.partition("\n")
    asked = [word for word in first[2:].split() if not word.startswith("-") and "=" not in word]
    if asked and os.path.basename(asked[0]) == "env":
        asked = asked[1:]
    names = asked[:1]
    if names and os.path.basename(names[0]) in _SHELLS:
        names += _WORD.findall(_OWN_FOLDER.sub(lambda _: os.path.dirname(os.path.abspath(path)), body))
    found = []
    for name in dict.fromkeys(names):
        if os.path.isabs(name):
            found += [os.path.abspath(name)] if os.path.isfile(name) else []
        elif "/" not in name and (program := shutil.which(name, path=env.get("PATH"))):
            found.append(os.path.abspath(program))
    return found


def _load_script(path: str) -> str:
    try:
        with open(path, "rb") as stream:
            content = stream.read(_SCRIPT_BYTES + 1)
    except OSError:
        return ""
    if not content.startswith(b"#!"):
        return ""
    return (content if len(content) <= _SCRIPT_BYTES else content.partition(b"\n")[0]).decode("utf-8", "replace")


def _hash_packages(directory: str) -> str:
    """Return a hash of the RECORD files of packages, read again when a package was added or removed."""

    def read() -> str:
        records = sorted(glob.glob(os.path.join(glob.escape(directory), "*.dist-info", "RECORD")))
        listed = "\n".join(f"{path} {hash_file(path)}" for path in records)
        return hashlib.sha256(listed.encode("utf-8", "surrogateescape")).hexdigest() if records else ""

    return _recall(directory, read)


def hash_path(path: str) -> str:
    """Return the hash of a file, or of everything below a folder."""
    return hash_tree(path)[:16] if os.path.isdir(path) else hash_file(path)


def hash_file(path: str) -> str:
    """Return the hash of a file, read again only if its stamp differs; of an unreadable file the stamp's hash."""

    def read() -> str:
        try:
            with open(path, "rb") as stream:
                return hashlib.file_digest(stream, "sha256").hexdigest()[:16]
        except PermissionError:
            return hashlib.sha256(repr(_build_stamp(path)).encode()).hexdigest()[:16]

    return _recall(path, read)


def _recall(path: str, read: Callable[[], str]) -> str:
    """Return the result of `read`, cached until the path changes."""
    stamp = _build_stamp(path)
    known = _hashes.get(path)
    if known is not None and known[0] == stamp:
        return known[1]
    found = read()
    if time.time_ns() - max(stamp[-2:]) > _FRESH_NS:
        _hashes[path] = (stamp, found)
    return found


def _build_stamp(path: str) -> tuple[int, ...]:
    status = os.stat(path)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def hash_tree(path: str) -> str:
    """Hash names and content of all files; links are followed, each folder once. Folders that programs create
    when they run, such as __pycache__, are left out."""
    total = hashlib.sha256()
    for each in sorted(_walk(path)) if os.path.isdir(path) else [path]:
        sha = hash_file(each) if os.path.isfile(each) else ""
        total.update(repr((os.path.relpath(each, path), sha)).encode("utf-8", "surrogateescape"))
    return total.hexdigest()


def _walk(path: str) -> Iterator[str]:
    seen = set()
    for directory, folders, names in os.walk(path, followlinks=True):
        real = os.path.realpath(directory)
        if real in seen:
            folders[:] = []
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if name not in _MADE_BY_RUNNING)
        yield from (os.path.join(directory, name) for name in names)
