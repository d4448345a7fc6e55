"""The commands `assay tag` and `assay note`."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from assay.errors import NotFoundError, UsageError, check_known
from assay.follow.locations import find_locations, find_runs
from assay.reading.choosing import find_chosen_runs
from assay.record.folders import find_foreign_dirs, find_run_dirs
from assay.record.tags import Marks, MarksChange, Note, change_marks, check_tag, find_tags_file, load_marks
from assay.show.console import Console
from assay.system.fast_dataclasses import NamedTuple
from assay.values.options import Request, argument, json_option, option, root_option, where_option
from assay.values.plain import render_date

if TYPE_CHECKING:
    from assay.values.where import Where


class _Target(NamedTuple):
    """A study or a run that can be tagged. `name` is the study's name, or `<study>/<run>`."""

    name: str
    dir: str
    is_study: bool = False

    @property
    def file(self) -> str:
        return find_tags_file(self.dir, of_study=self.is_study)


def _find_targets(name: str, where: Where | None, root: str | None) -> list[_Target]:
    """Find the study of this name, else the runs that the name means, also of other tools. With `where`, find runs."""
    if where is not None:
        return [_Target(run.key, run.dir) for run in find_chosen_runs([name], where, root)]
    try:
        return [_Target(each.name, each.dir, is_study=True) for each in find_locations([name], root)]
    except NotFoundError:
        return [_Target(run.key, run.dir) for run in find_runs(name, root, foreign=True)]


def _change_or_load(
    targets: Sequence[_Target], change: MarksChange | None, request: TagRequest | NoteRequest, console: Console
) -> list[tuple[_Target, Marks]]:
    """Change and return the marks of the targets. Without a change, load the marks; for a study, also the marks of its
    runs. With --json, print the marks and return an empty list."""
    listed = [*targets]
    for study in (each for each in targets if each.is_study and change is None):
        folders = (*find_run_dirs(study.dir), *find_foreign_dirs(study.dir))
        listed += [_Target(f"{study.name}/{os.path.basename(folder)}", folder) for folder in folders]
    found = [(each, change_marks(each.file, change) if change else load_marks(each.file)) for each in listed]
    for each, marks in found:
        if marks.problem and change is None:
            console.warning(f"{each.name}: {marks.problem}; move the file away and give its tags again: {each.file}")
    if not request.as_json:
        return found
    console.write_json(
        [
            {
                "name": each.name,
                "kind": "study" if each.is_study else "run",
                "dir": each.dir,
                "tags": list(marks.tags),
                "notes": [note._asdict() for note in marks.notes],
            }
            for each, marks in found
        ]
    )
    return []


# ---------------------------------------------------------------- tag


class TagRequest(Request):
    name: str = argument()
    tags: tuple[str, ...] = argument("[TAG]...", multiple=True, required=False)
    remove: tuple[str, ...] = option(
        "--remove", multiple=True, metavar="TAG", help="Remove this tag; may be given again."
    )
    where: Where | None = where_option()
    as_json: bool = json_option()
    root: str | None = root_option()


def tag(request: TagRequest, console: Console) -> int:
    """Tag NAME: a study, STUDY/RUN, a run's name or id, a folder, or a pattern such as 'STUDY/lr=0.1*'.

    Without TAG, list the tags of NAME; of a study, also those of its runs.
    """
    change = MarksChange(tuple(map(check_tag, request.tags)), request.remove)
    if both := [each for each in request.tags if each in request.remove]:
        raise UsageError(f"{both[0]!r} is to be added and removed")
    targets = _find_targets(request.name, request.where, request.root)
    is_list = not request.tags and not request.remove
    known = (tag for each in targets for tag in load_marks(each.file).tags)
    check_known("tag", request.remove, known if request.remove else ())
    found = _change_or_load(targets, None if is_list else change, request, console)
    shown = [(each, marks) for each, marks in found if marks.tags or not is_list]
    for each, marks in shown or found[:1]:
        console.print(f"{each.name}: {', '.join(marks.tags) or 'no tags'}")
    return 0


# ---------------------------------------------------------------- note


class NoteRequest(Request):
    name: str = argument()
    text: tuple[str, ...] = argument("[TEXT]...", multiple=True, required=False)
    clear: bool = option("--clear", default=False, help="Remove the existing notes; with TEXT, replace them.")
    where: Where | None = where_option()
    as_json: bool = json_option()
    root: str | None = root_option()


def note(request: NoteRequest, console: Console) -> int:
    """Add TEXT with the time to the notes of NAME: a study, or runs as `assay tag` takes them.

    Without TEXT, print the notes of NAME; of a study, also those of its runs.
    """
    text = " ".join(request.text).strip()
    if request.text and not text:
        raise UsageError("the note is empty", "write some text, or leave it out to print the notes")
    targets = _find_targets(request.name, request.where, request.root)
    is_list = not text and not request.clear
    change = MarksChange(note=Note(time.time(), text) if text else None, clear_notes=request.clear)
    found = _change_or_load(targets, None if is_list else change, request, console)
    shown = [(each, marks) for each, marks in found if marks.notes or not is_list]
    for each, marks in shown or found[:1]:
        console.print(f"{each.name}:{'' if marks.notes else ' no notes'}")
        for written in marks.notes:
            moment = f"  {render_date(written.at, '%Y-%m-%d %H:%M')}  "
            console.print_lines(moment + written.text.replace("\n", "\n" + " " * len(moment)))
    return 0
