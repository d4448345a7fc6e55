"""Tags and notes that people give to a run or a study, in `tags.json` of its directory.

A `tags.json` that another program wrote (a script may write one) has no tags, and is not changed: adding tags fails.
"""

from __future__ import annotations

import os
from typing import Any

from assay.errors import FormatError, InfrastructureError, UsageError
from assay.record.formats import FORMATS, build_damage, read_versioned, render_versioned
from assay.system.fast_dataclasses import NamedTuple
from assay.system.files import parse_json, read_text, write_atomic
from assay.system.locks import locked
from assay.values import layout

MOST_CHARACTERS = 100  # the longest tag


class Note(NamedTuple):
    at: float  # seconds since the epoch
    text: str


class Marks(NamedTuple):
    """The tags and notes of a run or a study. `problem`: why their file could not be read."""

    tags: tuple[str, ...] = ()  # tags without duplicates, in the order in which they were added
    notes: tuple[Note, ...] = ()
    problem: str = ""

    @property
    def note(self) -> str:
        """The texts of all notes, one after another."""
        return "\n".join(note.text for note in self.notes)


NO_MARKS = Marks()


def check_tag(tag: str) -> str:
    """Return the tag itself; raise UsageError if it is not valid."""
    if not tag or len(tag) > MOST_CHARACTERS:
        what = "a tag is empty" if not tag else f"a tag has {len(tag)} characters"
        raise UsageError(what, f"a tag has 1 to {MOST_CHARACTERS} characters; longer text is a note: assay note")
    if not tag.isprintable() or any(character.isspace() or character == "," for character in tag):
        hint = "a tag has no spaces, commas or control characters; text is a note: assay note"
        raise UsageError(f"{tag!r} is not a valid tag", hint)
    return tag


def find_tags_file(folder: str, *, of_study: bool = False) -> str:
    return os.path.join(folder, layout.STUDY_META_DIR, layout.TAGS_FILE) if of_study else f"{folder}/{layout.TAGS_FILE}"


def load_marks(path: str) -> Marks:
    """Load a `tags.json`; return no marks if it does not exist, or another program wrote it."""
    try:
        text = read_text(path)
    except OSError as error:
        is_absent = isinstance(error, FileNotFoundError | NotADirectoryError)
        return NO_MARKS if is_absent else Marks(problem=f"{layout.TAGS_FILE} cannot be read: {error.strerror}")
    try:
        return _parse_marks(text, layout.TAGS_FILE)
    except FormatError as error:
        return Marks(problem=error.message) if _is_ours(text) else NO_MARKS


def _parse_marks(text: str, file: str) -> Marks:
    content = read_versioned(text, "tags", file)
    try:
        tags = tuple(dict.fromkeys(map(_parse_text, content.get("tags", ()))))
        notes = tuple(Note(float(note["at"]), _parse_text(note["text"])) for note in content.get("notes", ()))
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
        raise build_damage(file, "its content does not have the form of tags and notes", FORMATS["tags"]) from error
    return Marks(tags, notes)


def _parse_text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("not a string")
    return value


def _is_ours(text: str) -> bool:
    """Return whether Assay wrote the file. A file that is not JSON may be one of Assay that a power cut damaged."""
    try:
        content = parse_json(text)
    except ValueError:
        return True
    return isinstance(content, dict) and "format" in content


class MarksChange(NamedTuple):
    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    note: Note | None = None
    clear_notes: bool = False


def change_marks(path: str, change: MarksChange) -> Marks:
    """Apply a change to the current content under a lock, so that parallel changes lose nothing; return the marks."""
    folder = os.path.dirname(path)
    try:
        os.makedirs(folder, exist_ok=True)
        with locked(folder):
            try:  # a file of another program is refused, as that program may need it
                known = _parse_marks(read_text(path), path)
            except FileNotFoundError:
                known = NO_MARKS
            tags = dict.fromkeys(tag for tag in (*known.tags, *change.add) if tag not in change.remove)
            notes = () if change.clear_notes else known.notes
            marks = Marks(tuple(tags), (*notes, change.note) if change.note else notes)
            if marks != known:
                fields = {"tags": list(marks.tags), "notes": [note._asdict() for note in marks.notes]}
                write_atomic(path, render_versioned(fields, "tags"))
    except OSError as error:
        hint = "tags and notes are kept in the folder of the run or study"
        raise InfrastructureError(f"{path} cannot be written: {error.strerror}", hint) from error
    return marks
