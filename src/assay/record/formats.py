"""Versioned JSON files: what an older Assay wrote is brought up to date while it is read, never on disk.

Every file of ours is one JSON object with its version under "format". When a kind of file changes, its version
is raised here and a function `update_to_N` turns an object of version N-1 into one of version N; files of
every version ever written are kept in the tests. Keys that are not known are left alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from assay.errors import FormatError
from assay.system.fast_dataclasses import dataclass, field
from assay.values.layout import FORMAT_VERSION

VERSION_KEY = "format"

Content = dict[str, Any]
Update = Callable[[Content], Content]


@dataclass(frozen=True, slots=True)
class Format:
    """A kind of file: the version that is written, the oldest that can be read, and the steps between them."""

    version: int
    remedy: str  # what a user can do about a file that cannot be read
    oldest: int = 1
    updates: Mapping[int, Update] = field(default_factory=dict)  # N -> update_to_N

    def __post_init__(self) -> None:
        steps = set(range(self.oldest + 1, self.version + 1))
        if set(self.updates) != steps:
            raise ValueError(f"versions {self.oldest} to {self.version} need update_to_N for exactly N in {steps}")


FORMATS: Mapping[str, Format] = {  # of runs and studies; a product passes those of its own files
    "run": Format(FORMAT_VERSION, "move the run's directory away and repeat `assay run`: the run is created again"),
    "environment": Format(1, "delete the file: only the run's provenance is lost"),
    "codes": Format(1, "delete the file: runs that have not begun get the current code"),
    "plan": Format(1, "delete the file: only the list of queued runs is lost"),
    "pass": Format(1, "delete the file: the next --force repeats every run"),
    "tags": Format(1, "move the file away, and give the tags and notes again"),
    "search": Format(1, "delete the file: the next `assay run` takes the study's file for the search that was begun"),
    "received": Format(1, "nothing of the run is executed until it is adopted: assay adopt STUDY/RUN"),
    "set": Format(1, "delete the file: the next `assay runx` begins a new set"),
}


def read_versioned(text: str | bytes, kind: str, file: str, formats: Mapping[str, Format] = FORMATS) -> Content:
    """The file's object in the present version, without the version itself. `file` is for messages."""
    known = formats[kind]
    content = _parse_object(text, file, known)
    version = _parse_version(content, kind, file, known)
    for step in range(version + 1, known.version + 1):
        try:
            content = known.updates[step](content)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            what = f"it cannot be brought to format {step} ({type(error).__name__}: {error})"
            raise build_damage(file, what, known) from error
    return content


def render_versioned(content: Mapping[str, Any], kind: str, formats: Mapping[str, Format] = FORMATS) -> str:
    """The text of a file in the present version; the version comes first."""
    return json.dumps(stamp(content, kind, formats)) + "\n"


def stamp(content: Mapping[str, Any], kind: str, formats: Mapping[str, Format] = FORMATS) -> Content:
    """The content with the version of this kind of file, which comes first."""
    if VERSION_KEY in content:
        raise ValueError(f"{VERSION_KEY!r} is taken by the version")
    return {VERSION_KEY: formats[kind].version, **content}


def _parse_object(text: str | bytes, file: str, known: Format) -> Content:
    try:
        content = json.loads(text)
    except UnicodeDecodeError:
        raise build_damage(file, "it is not text", known) from None
    except json.JSONDecodeError as error:
        what = f"line {error.lineno}, column {error.colno}: {error.msg}" if text.strip() else "it is empty"
        raise build_damage(file, what, known) from None
    except RecursionError:
        raise build_damage(file, "it is nested too deeply", known) from None
    except ValueError:  # Python reads 4300 digits at most
        raise build_damage(file, "it has a number with thousands of digits", known) from None
    if not isinstance(content, dict):
        raise build_damage(file, "it does not hold a JSON object", known)
    return content


def _parse_version(content: Content, kind: str, file: str, known: Format) -> int:
    version = content.pop(VERSION_KEY, None)
    if type(version) is not int or version < 1:
        raise build_damage(file, f'it has no version under "{VERSION_KEY}"', known)
    if version > known.version:
        message = (
            f"{file}: a newer Assay wrote this {kind} file (format {version}; this one reads up to {known.version})"
        )
        raise FormatError(message, "upgrade: pip install --upgrade assay")
    if version < known.oldest:
        message = f"{file}: this {kind} file is too old (format {version}; this Assay reads {known.oldest} and up)"
        raise FormatError(message, f"read it with the Assay that wrote it, or {known.remedy}")
    return version


def build_damage(file: str, what: str, known: Format) -> FormatError:
    return FormatError(f"{file} is damaged: {what}", known.remedy)
