"""Versioned JSON files: every file of Assay is one JSON object with its version under "format".

Unknown keys of a file are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from assay.errors import FormatError
from assay.system.fast_dataclasses import dataclass
from assay.values.layout import FORMAT_VERSION

VERSION_KEY = "format"

Content = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Format:
    """A kind of file. `version` is the one that is written; older versions are read, too."""

    version: int
    remedy: str  # what a user can do about an unreadable file


FORMATS: Mapping[str, Format] = {  # the formats of runs and studies; a product passes its own formats
    "run": Format(FORMAT_VERSION, "move the run's directory away and repeat `assay run`: the run is created again"),
    "environment": Format(1, "delete the file: only the run's provenance is lost"),
    "codes": Format(1, "delete the file: runs that have not begun get the current code"),
    "plan": Format(1, "delete the file: only the list of queued runs is lost"),
    "pass": Format(1, "delete the file: the next --force repeats every run"),
    "tags": Format(1, "move the file away, and give the tags and notes again"),
    "search": Format(1, "delete the file: the next `assay run` takes the study's file for the search that was begun"),
    "received": Format(1, "nothing of the run is executed until it is adopted: assay adopt STUDY/RUN"),
}


def read_versioned(text: str | bytes, kind: str, file: str, formats: Mapping[str, Format] = FORMATS) -> Content:
    """Return the JSON object in the text of a file, without the version. `file` is the file's name in messages."""
    known = formats[kind]
    try:
        content = json.loads(text)
    except UnicodeDecodeError:
        raise build_damage(file, "it is not text", known) from None
    except json.JSONDecodeError as error:
        what = f"line {error.lineno}, column {error.colno}: {error.msg}" if text.strip() else "it is empty"
        raise build_damage(file, what, known) from None
    except RecursionError:
        raise build_damage(file, "it is nested too deeply", known) from None
    except ValueError:  # Python reads at most 4300 digits
        raise build_damage(file, "it has a number with thousands of digits", known) from None
    if not isinstance(content, dict):
        raise build_damage(file, "it does not hold a JSON object", known)
    version = content.pop(VERSION_KEY, None)
    if type(version) is not int or version < 1:
        raise build_damage(file, f'it has no version under "{VERSION_KEY}"', known)
    if version > known.version:
        message = (
            f"{file}: a newer Assay wrote this {kind} file (format {version}; this one reads up to {known.version})"
        )
        raise FormatError(message, "upgrade: pip install --upgrade assay")
    return content


def render_versioned(content: Mapping[str, Any], kind: str, formats: Mapping[str, Format] = FORMATS) -> str:
    """Render a file in the current version, which is its first key."""
    return json.dumps(stamp(content, kind, formats)) + "\n"


def stamp(content: Mapping[str, Any], kind: str, formats: Mapping[str, Format] = FORMATS) -> Content:
    """Return the content with the version of this kind of file as its first key."""
    if VERSION_KEY in content:
        raise ValueError(f"{VERSION_KEY!r} is taken by the version")
    return {VERSION_KEY: formats[kind].version, **content}


def build_damage(file: str, what: str, known: Format) -> FormatError:
    return FormatError(f"{file} is damaged: {what}", known.remedy)
