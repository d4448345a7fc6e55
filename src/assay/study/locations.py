"""Where studies lie: the root, a study's directory, and how a name on the command line leads to one."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from assay.errors import InfrastructureError, NotFoundError, UsageError
from assay.record.folders import find_folders, is_foreign_dir, is_run_dir
from assay.record.folders import find_foreign_dirs as find_foreign_dirs  # noqa: PLC0414 whoever knows places finds it here
from assay.values import layout

if TYPE_CHECKING:
    from assay.config.settings import Settings


HOW_TO_START = "write a study file, or see a whole example at work: assay demo"


class StudyLocation(NamedTuple):
    """A study on disk. A run's key in the index is `<name>/<run>`."""

    root: str
    name: str

    @property
    def dir(self) -> str:
        return os.path.join(self.root, self.name)

    def key(self, run_dir: str) -> str:
        return f"{self.name}/{os.path.basename(run_dir)}"


def choose_root(flag: str | None, asked: str | None, settings: Settings) -> tuple[str, bool]:
    """The output root and whether anybody asked for it: flag, then environment, study file, settings, `./runs`."""
    from assay.config.settings import ENVIRONMENT

    from_environment = settings.root if settings.root_from == ENVIRONMENT["root"] else None
    chosen = flag or from_environment or asked
    if chosen is not None:
        return os.path.abspath(chosen), True
    return settings.root, settings.root_from is not None


HOW_TO_CHOOSE = {  # where the output root is chosen, by the dialect of the file
    "native": "--root DIR",
    "runx": "LOGROOT in .runx",
    "mlrunner": "-o DIR, or --root DIR with `assay run`",
}


def check_writable(location: StudyLocation, dialect: str = "native") -> None:
    """Refuse before anything is made: the nearest existing parent must be a writable directory with room."""
    another = HOW_TO_CHOOSE[dialect]
    path = location.dir
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    if not os.path.isdir(path):
        raise UsageError(
            f"the output root {location.root} cannot be made: {path} is not a directory", f"choose another: {another}"
        )
    if not os.access(path, os.W_OK | os.X_OK, effective_ids=True):
        raise UsageError(
            f"the output root {location.root} cannot be written: no permission in {path}", f"choose another: {another}"
        )
    space = os.statvfs(path)
    if not space.f_blocks and not _can_hold(path):  # /proc and the like; some that do hold files count no blocks either
        raise UsageError(f"the file system under {path} cannot hold files", f"choose another output root: {another}")
    has_room = not space.f_blocks or space.f_bavail * space.f_frsize >= _ROOM_BYTES
    if not has_room or (space.f_files and space.f_favail < _ROOM_FILES):
        raise InfrastructureError(
            f"the disk under {path} is full", f"free some space, or choose another output root: {another}"
        )
    if space.f_flag & os.ST_RDONLY:
        raise UsageError(f"the file system under {path} is read-only", f"choose another output root: {another}")


def _can_hold(path: str) -> bool:
    import tempfile

    try:
        os.rmdir(tempfile.mkdtemp(prefix=layout.TEMPORARY_PREFIX, dir=path))
    except OSError:
        return False
    return True


_ROOM_BYTES = 1 << 20
_ROOM_FILES = 64


def find_studies(root: str) -> Iterator[str]:
    """Names of directories under the root that hold runs of ours or of the originals."""
    try:
        entries = sorted(os.scandir(root), key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if entry.is_dir() and not entry.name.startswith(".") and is_study(entry.path):
            yield entry.name


def is_study(path: str) -> bool:
    if os.path.isdir(os.path.join(path, layout.STUDY_META_DIR)):
        return True
    folders = (os.path.join(path, name) for name in find_folders(path))
    return any(is_run_dir(folder) or is_foreign_dir(folder) for folder in folders)


class Roots(NamedTuple):
    """Where studies are looked for."""

    main: tuple[str, ...]
    mirrors: tuple[str, ...] = ()  # copies of what the others hold, as NGC_LOGROOT: they count where no other has it
    were_asked: bool = False  # by --root: a folder of the same name in the current one is not meant

    @property
    def all(self) -> list[str]:
        return list(dict.fromkeys((*self.main, *self.mirrors)))


def find_study(name: str, roots: Roots) -> StudyLocation:
    """A study by path, or by name under one of the roots; a name that fits several studies is refused."""
    found = find_candidates(name, roots)
    if len(found) > 1:
        paths = [show_path(location.dir) for location in found]
        raise UsageError(f"{name!r} names {len(found)} studies: {', '.join(paths)}", "give the path of one of them")
    if found:
        return found[0]
    known = [study for root in roots.all for study in find_studies(root)]
    where = ", ".join(map(show_path, roots.main))
    raise NotFoundError("study", name, known, None if known else f"there is no study under {where}; {HOW_TO_START}")


def find_candidates(name: str, roots: Roots) -> list[StudyLocation]:
    """Every study that a name on the command line may stand for. What has a slash is a path first."""
    here = [os.path.abspath(name)]
    if os.sep in name and (locations := _existing(here)):
        return locations
    named = [os.path.join(root, name) for root in roots.main]
    mirrored = [os.path.join(root, name) for root in roots.mirrors]
    if roots.were_asked:
        return _existing(named) or _existing(here)
    return _existing([*named, *here]) or _existing(mirrored)[:1]


def _existing(paths: Sequence[str]) -> list[StudyLocation]:
    """The studies among these paths, each once, whatever links lead to it."""
    studies = {os.path.realpath(path): path for path in reversed(paths) if os.path.isdir(path) and is_study(path)}
    return [StudyLocation(os.path.dirname(path), os.path.basename(path)) for path in reversed(studies.values())]


def show_path(path: str) -> str:
    """A path that leads there from the current folder, and cannot be taken for a study's name."""
    try:
        relative = os.path.relpath(path)
    except FileNotFoundError:  # the current folder is gone
        return path
    if relative == os.curdir or relative.startswith(os.pardir):
        return path
    return relative if os.sep in relative else os.path.join(os.curdir, relative)
