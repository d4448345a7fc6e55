"""Which recordings a path names (a file, the files of a folder, the entries of an RCP file), and which of them are of
one environment.

Names that differ in a running number alone are repeats of one environment: `…_h100_1.json` and `…_h100_2.json`. What
differs in anything else (`h100` and `a100`, `0.8.0` and `0.9.0`, 8 and 16 GPUs) is never pooled. A number runs where it
follows a word such as run or seed, where it is a date, or where the names count from 0 or 1 without a gap.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from assay.errors import UsageError
from assay.golden.files.formats import EVENTS, KNOWN, RCP, find_format, load_document, read_head, refuse
from assay.system.fast_dataclasses import dataclass, replace

_WORDS = "run|seed|rep|repeat|replica|night|nightly|job|build|try|trial|attempt"
_COUNTED = re.compile(rf"(?<![a-z])({_WORDS})([-_ ]?)\d+(?![a-z\d]|\.\d)", re.IGNORECASE)
_DATE = re.compile(r"(?<!\d)20\d\d-?[01]\d-?[0-3]\d(?:[-T_ ]?\d{4,6})?(?!\d)")
_NUMBER = re.compile(r"(?<![^-_ /])\d+(?=(?:\.[A-Za-z]\w*)?$|/)|(?<![^/])\d+(?=[-_ ])")  # a last, first or only word
_MARK = "#"
_FLAG = "--environment"
_MOST_FILES = 20_000
_MOST_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Source:
    """One recording, or several of one file. `paths`: of TensorBoard all event files of one folder."""

    name: str
    key: str  # of its environment
    format: str
    paths: tuple[str, ...]
    entry: str = ""  # of an RCP file
    facts: Mapping[str, Any] | None = None


def list_sources(path: str) -> list[Source]:
    """Raises UsageError where there is nothing that is known."""
    if os.path.isdir(path):
        unknown: list[str] = []
        found = list(_list_folder(path, unknown))
        if not found:
            refuse(path, "no file in this folder is of a known format", KNOWN)
        _refuse_siblings(found, unknown)
        return _mark_numbers(found)
    format_ = find_format(path)
    if format_ is None:
        refuse(path, "it is empty" if not read_head(path).strip() else "its format is not known", KNOWN)
    return list(_build_sources(path, os.path.basename(path), format_))


def _refuse_siblings(found: Sequence[Source], unknown: Sequence[str]) -> None:
    """A file that is called as a recording but for its number, and is none, is of a run that crashed."""
    names = {re.sub(r"\d+", _MARK, path) for each in found for path in each.paths}
    for path in unknown:
        if re.search(r"\d", os.path.basename(path)) and re.sub(r"\d+", _MARK, path) in names:
            hint = "did the run crash? Remove the file, or name one file instead of the folder"
            refuse(path, "it is called as a recording, and holds none", hint)


def _list_folder(folder: str, unknown: list[str]) -> Iterator[Source]:
    """Hidden files are not looked at; a file of another kind (a checkpoint, a configuration) is passed over, and added
    to `unknown`."""
    count = 0
    for inner, folders, names in os.walk(folder, onerror=_raise):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        paths = [os.path.join(inner, name) for name in sorted(names) if not name.startswith(".")]
        count += len(paths)
        if count > _MOST_FILES:
            refuse(folder, f"it holds more than {_MOST_FILES} files", "name the folder of one test, or one file")
        formats = {path: find_format(path) for path in paths if os.path.isfile(path)}
        unknown += [path for path in paths if formats.get(path) is None]
        for path, format_ in formats.items():
            if format_ is not None and format_ != EVENTS:
                yield from _build_sources(path, os.path.relpath(path, folder), format_)
        events = tuple(path for path, format_ in formats.items() if format_ == EVENTS)
        if events:
            key = os.path.relpath(inner, folder)
            yield Source(inner, os.path.basename(os.path.abspath(folder)) if key == "." else key, EVENTS, events)


def _raise(error: OSError) -> None:
    refuse(str(error.filename), f"it cannot be read: {error.strerror}")


def _build_sources(path: str, key: str, format_: str) -> Iterator[Source]:
    if format_ != RCP:
        yield Source(path, key, format_, (path,))
        return
    for entry, part in load_document(path).items():
        yield Source(f"{path} {entry}", entry, RCP, (path,), entry, part)


def _mark_numbers(sources: Sequence[Source]) -> list[Source]:
    """Sources with their running numbers as `#` in their keys."""
    keys = [_DATE.sub(_MARK, _COUNTED.sub(rf"\1\2{_MARK}", each.key)) for each in sources]
    for at in (0, -1):  # the first number of a name, or the last one
        templates = [_replace_number(key, at) for key in keys]
        for template in {template for template, number in templates if number is not None}:
            numbers = sorted(number for each, number in templates if each == template and number is not None)
            if len(numbers) > 1 and numbers[0] in (0, 1) and numbers == list(range(numbers[0], numbers[-1] + 1)):
                keys = [template if each == template else key for key, (each, _) in zip(keys, templates, strict=True)]
    return [replace(source, key=key) for source, key in zip(sources, keys, strict=True)]


def _replace_number(key: str, at: int) -> tuple[str, int | None]:
    found = list(_NUMBER.finditer(key))
    if not found:
        return key, None
    match = found[at]
    return key[: match.start()] + _MARK + key[match.end() :], int(match[0])


# ---------------------------------------------------------------- one environment


def choose_sources(
    sources: Sequence[Source], where: str, environment: str | None = None, like: Sequence[str] = (), flag: str = _FLAG
) -> list[Source]:
    """The sources of one environment: the one that is asked for, the only one, or the one that is called as in `like`.
    Raises UsageError with the choices, as values of `flag`."""
    keys = list(dict.fromkeys(each.key for each in sources))
    if environment is not None:
        keys = _match(keys, environment)
    if len(keys) > 1:
        keys = [key for key in keys if _strip(key) in map(_strip, like)] or keys
    if len(keys) == 1:
        return [each for each in sources if each.key == keys[0]]
    names = {each.key: each.key if flag == _FLAG else each.name for each in reversed(sources)}
    what = f"has recordings of {len(keys)} environments, which are never pooled: name one of them"
    if not keys:
        what, keys = f"has no recording of the environment {environment!r}", list(names)
    shown = [f"{flag} {shlex.quote(names[key])}" for key in keys[:_MOST_SHOWN]]
    more = [f"… and {len(keys) - _MOST_SHOWN} more"] if len(keys) > _MOST_SHOWN else []
    raise UsageError(f"{where} {what}", "\n  ".join(["one of:", *shown, *more]))


def _match(keys: Sequence[str], environment: str) -> list[str]:
    exact = [key for key in keys if environment in (key, _strip(key))]
    return exact or [key for key in keys if environment.lower() in key.lower()]


def _strip(key: str) -> str:
    """Without its running number and its extension."""
    return re.sub(rf"[-_ ]?{_MARK}", "", os.path.splitext(key)[0])
