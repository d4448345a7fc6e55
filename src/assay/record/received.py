"""`received.json`: a run that came from elsewhere, by an upload to `assay serve` or by `assay pull`.

An upload may come from anyone with a token for uploads: until the user has adopted it (`assay adopt`), nothing of it is
executed, and it is not compared with the study's own runs. A pull is started by the user: its runs are compared, and
are executed after job.sh and code/ were made again on this machine.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Mapping
from itertools import count
from typing import Any, Literal

from assay.errors import FormatError
from assay.record.formats import read_versioned, render_versioned
from assay.system.fast_dataclasses import dataclass
from assay.system.files import read_text, rename, write_atomic
from assay.system.locks import locked
from assay.values import layout
from assay.values.plain import parse_strict

_ASIDE = "~received"
_LONGEST = 230  # the longest name in bytes, so that the suffix fits


@dataclass(frozen=True, slots=True)
class Received:
    how: Literal["upload", "pull"]
    source: str = ""  # the address of the sender
    by: str = ""  # the token's scope and fingerprint, or the user of the pull; never the token
    at: float = 0.0
    adopted_by: str = ""
    adopted_at: float | None = None

    @property
    def is_foreign(self) -> bool:
        """Whether the run is an upload that was not adopted: it is neither executed nor ranked."""
        return self.how == "upload" and self.adopted_at is None

    @property
    def needs_code(self) -> bool:
        """Whether job.sh and code/ of the run were made elsewhere."""
        return self.adopted_at is None

    def build_facts(self) -> dict[str, Any]:
        """Return the fields for received.json, for JSON output and for the index."""
        facts = {"how": self.how, "from": self.source, "by": self.by, "at": self.at}
        adopted = {"adopted_by": self.adopted_by, "adopted_at": self.adopted_at}
        return facts if self.adopted_at is None else {**facts, **adopted}


def load_received(run_dir: str) -> Received | None:
    """Return how a run was received; None if it was made here. An unreadable file counts as an upload: not executed."""
    path = os.path.join(run_dir, layout.RECEIVED_FILE)
    try:
        fields = read_versioned(read_text(path), "received", path)
        return parse_strict(Received, {"source": fields.pop("from", ""), **fields})
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, FormatError, ValueError, TypeError, KeyError, AttributeError):
        return Received("upload", by="unknown: received.json is damaged")


def load_received_facts(run_dir: str) -> dict[str, Any] | None:
    received = load_received(run_dir)
    return received.build_facts() if received else None


def is_foreign(run_dir: str) -> bool:
    """Return whether the run is an upload that was not adopted."""
    received = load_received(run_dir)
    return received is not None and received.is_foreign


def check_executable(run_dir: str) -> None:
    """Raise FormatError if job.sh and code/ were made elsewhere. Every start of an attempt calls this function."""
    received = load_received(run_dir)
    if received is not None and received.needs_code:
        name = "/".join(run_dir.split(os.sep)[-2:])
        raise FormatError(f"{name} was received ({describe(received)}): its job.sh and code/ are not executed")


def write_received(run_dir: str, received: Received) -> None:
    path = os.path.join(run_dir, layout.RECEIVED_FILE)
    write_atomic(path, render_versioned(received.build_facts(), "received"), repair=True)


def describe(received: Received) -> str:
    """Return a text such as `upload from 10.0.0.7 by upload:ci- 3fa2b1`, and whether it was adopted."""
    parts = [f"{word} {text}" for word, text in (("from", received.source), ("by", received.by)) if text]
    return " ".join((received.how, *parts)) + (", adopted" if received.adopted_at is not None else "")


def describe_facts(facts: Mapping[str, Any] | None) -> str:
    """Return the text of `describe` from the facts in the index; empty for a run that was made here."""
    if not facts:
        return ""
    given = {name: value for name, value in facts.items() if name != "from"}
    return describe(Received(source=facts.get("from", ""), **given))


def find_user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # in a container, the user may have no name
        return f"uid {os.getuid()}"


def set_aside(run_dir: str) -> str | None:
    """Rename an upload that was not adopted, so that a new run gets the name; return its new name, None for others."""
    if not is_foreign(run_dir):
        return None
    try:
        with locked(run_dir):  # another supervisor may have renamed the upload, and started a run under its name
            return _move_aside(run_dir) if is_foreign(run_dir) else None
    except FileNotFoundError:
        return None


def _move_aside(run_dir: str) -> str:
    target = _find_aside(run_dir)
    for number in count(2):
        try:
            if not os.path.lexists(target):
                rename(run_dir, target)
                break
        except OSError:
            if not os.path.lexists(target) or not os.path.lexists(run_dir):
                raise
        target = f"{_find_aside(run_dir)}-{number}"
    return os.path.basename(target)


def was_set_aside(run_dir: str) -> bool:
    """Return whether an upload had this name: the index may then have the upload's points under this name."""
    return os.path.lexists(_find_aside(run_dir))


def _find_aside(run_dir: str) -> str:
    folder, name = os.path.split(run_dir)
    return os.path.join(folder, os.fsencode(name)[:_LONGEST].decode(errors="ignore") + _ASIDE)
