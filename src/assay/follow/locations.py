"""Find output roots, the directories of studies, and the studies and runs that a name on the command line means."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from assay import plugins
from assay.errors import AssayError, FormatError, InfrastructureError, NotFoundError, UsageError, suggest
from assay.record.folders import find_folders, find_foreign_dirs, find_run_dirs, is_foreign_dir, is_run_dir
from assay.system.fast_dataclasses import NamedTuple
from assay.values import layout
from assay.values.hooks import NATIVE

if TYPE_CHECKING:
    from assay.config.settings import Settings

# Showing a table must not load modules that read settings, records and commands: only functions import them.

HOW_TO_START = "write a study file, or see a whole example at work: assay demo"
ALL_RUNS = "*"
_ROOM_BYTES = 1 << 20
_ROOM_FILES = 64


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
    """Return the output root and whether the user chose it: flag, environment, study file, settings, else `./runs`."""
    from assay.config.settings import ENVIRONMENT

    from_environment = settings.root if settings.root_from == ENVIRONMENT["root"] else None
    chosen = flag or from_environment or asked
    if chosen is not None:
        return os.path.abspath(chosen), True
    return settings.root, settings.root_from is not None


def check_writable(location: StudyLocation, another: str = NATIVE.root_hint) -> None:
    """Refuse if there is no access or space, before anything is created. `another`: how to choose another root."""
    path, hint = nearest_parent(location.dir), f"choose another output root: {another}"
    if not os.path.isdir(path):
        raise UsageError(f"the output root {location.root} cannot be made: {path} is not a directory", hint)
    if not os.access(path, os.W_OK | os.X_OK, effective_ids=True):
        raise UsageError(f"the output root {location.root} cannot be written: no permission in {path}", hint)
    space = os.statvfs(path)
    if not space.f_blocks:  # such as /proc; some file systems that can hold files also report no blocks
        import tempfile

        try:
            os.rmdir(tempfile.mkdtemp(prefix=layout.TEMPORARY_PREFIX, dir=path))
        except OSError:
            raise UsageError(f"the file system under {path} cannot hold files", hint) from None
    has_room = not space.f_blocks or space.f_bavail * space.f_frsize >= _ROOM_BYTES
    if not has_room or (space.f_files and space.f_favail < _ROOM_FILES):
        raise InfrastructureError(f"the disk under {path} is full", f"free some space, or {hint}")
    if space.f_flag & os.ST_RDONLY:
        raise UsageError(f"the file system under {path} is read-only", hint)


def nearest_parent(path: str) -> str:
    """Return the path itself, or its nearest parent that exists."""
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return path


def find_studies(root: str) -> Iterator[str]:
    """Yield the names of directories under the root that contain runs of Assay or of other tools."""
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
    """The folders in which studies are searched."""

    main: tuple[str, ...]
    mirrors: tuple[str, ...] = ()  # copies of roots, such as NGC_LOGROOT: used only if no other root has the study
    were_asked: bool = False  # given by --root: a folder of that name in the current folder is ignored if a root has it

    @property
    def all(self) -> list[str]:
        return list(dict.fromkeys((*self.main, *self.mirrors)))


def find_study(name: str, roots: Roots) -> StudyLocation:
    """Find a study by path, or by name under one of the roots; refuse a name that matches several studies."""
    found = find_candidates(name, roots)
    if len(found) > 1:
        paths = [show_path(location.dir) for location in found]
        raise UsageError(f"{name!r} names {len(found)} studies: {', '.join(paths)}", "give the path of one of them")
    if found:
        return found[0]
    known = [study for root in roots.all for study in find_studies(root)]
    raise NotFoundError("study", name, known, None if known else _explain_empty(roots))


def _explain_empty(roots: Roots) -> str:
    return f"there is no study under {', '.join(map(show_path, roots.main))}; {HOW_TO_START}"


def find_candidates(name: str, roots: Roots) -> list[StudyLocation]:
    """Return every study that a name on the command line may mean. A name with a slash is first taken as a path."""
    here = [os.path.abspath(name)]
    if os.sep in name and (locations := _existing(here)):
        return locations
    named = [os.path.join(root, name) for root in roots.main]
    mirrored = [os.path.join(root, name) for root in roots.mirrors]
    if roots.were_asked:
        return _existing(named) or _existing(here)
    return _existing([*named, *here]) or _existing(mirrored)[:1]


def _existing(paths: Sequence[str]) -> list[StudyLocation]:
    """Return the studies among these paths. A study to which several links lead is returned once."""
    studies = {os.path.realpath(path): path for path in reversed(paths) if os.path.isdir(path) and is_study(path)}
    return [StudyLocation(os.path.dirname(path), os.path.basename(path)) for path in reversed(studies.values())]


def show_path(path: str) -> str:
    """Return the path relative to the current folder, in a form that cannot be taken for a study's name."""
    try:
        relative = os.path.relpath(path)
    except FileNotFoundError:  # the current folder is gone
        return path
    if relative == os.curdir or relative.startswith(os.pardir):
        return path
    return relative if os.sep in relative else os.path.join(os.curdir, relative)


def show_near(path: str) -> str:
    """Return the path relative to the current folder if the path is inside that folder, else unchanged."""
    relative = os.path.relpath(path)
    return path if relative.startswith(os.pardir) else relative


# ---------------------------------------------------------------- from a name on the command line to studies and runs


class FoundRun(NamedTuple):
    location: StudyLocation
    dir: str

    @property
    def key(self) -> str:
        return self.location.key(self.dir)

    @property
    def words(self) -> tuple[StudyLocation, str]:
        """The study and name of the run, as `show_command` takes them."""
        return self.location, os.path.basename(self.dir)


def find_roots(flag: str | None) -> Roots:
    """Return the root that `flag` names; without a flag, the root of the settings and the roots of other tools."""
    if flag is not None:
        return Roots((os.path.abspath(flag),), were_asked=True)
    from assay.config.settings import load_settings

    settings = load_settings(os.getcwd(), os.environ)
    others = load_foreign_roots()
    return Roots(tuple(dict.fromkeys([settings.root, *others.main])), others.mirrors)


def load_foreign_roots() -> Roots:
    """Return the roots in the settings of other tools, and the copies of these roots."""
    if not any(os.path.isfile(os.path.expanduser(path)) for path in layout.FOREIGN_SETTINGS):
        return Roots(())
    found = []
    for reader in filter(None, (each.roots_reader for each in plugins.find_dialects())):
        try:
            main, mirrors = plugins.load(reader)()
        except UsageError:  # the tool's own settings are wrong
            raise
        except (Exception, SystemExit):  # noqa: BLE001, S112 a plug-in may raise any error
            continue
        found.append((main, mirrors))
    return Roots(tuple(path for main, _ in found for path in main), tuple(path for _, more in found for path in more))


def find_locations(names: Sequence[str], flag: str | None, *, foreign_first: bool = False) -> list[StudyLocation]:
    """Find studies by name, or the only study. `foreign_first`: search names in the roots of other tools first."""
    roots = find_roots(flag)
    if names:
        return [_find_location(name.rstrip("/"), roots, foreign_first and flag is None) for name in names]
    known = [StudyLocation(root, study) for root in roots.all for study in find_studies(root)]
    if not known:
        raise UsageError(f"there is no study under {', '.join(map(show_path, roots.main))}", HOW_TO_START)
    if len(known) > 1:
        raise UsageError("which study?", "one or more of: " + ", ".join(show_study(location) for location in known))
    return known


def _find_location(name: str, roots: Roots, foreign_first: bool) -> StudyLocation:
    if foreign_first:
        others = load_foreign_roots()
        found = [each for each in find_candidates(name, others._replace(were_asked=True)) if each.root in others.main]
        if len(found) == 1:
            return found[0]
    return find_study(name, roots)


# ---------------------------------------------------------------- names of studies in commands of hints


def show_study(location: StudyLocation) -> str:
    """Return the study's name if the name leads to this study from the current folder, else the study's path."""
    try:
        found = find_candidates(location.name, find_roots(None))
    except AssayError:  # invalid settings: a path does not need them
        found = []
    is_it = len(found) == 1 and os.path.realpath(found[0].dir) == os.path.realpath(location.dir)
    return location.name if is_it else show_path(location.dir)


def show_command(
    words: Sequence[str],
    location: StudyLocation,
    *runs: str,
    options: Sequence[str] = (),
    assignments: Sequence[str] = (),
) -> str:
    """Return a command such as `assay ls STUDY` or `assay logs STUDY/RUN` that works in the current folder."""
    study = show_study(location)
    from assay.values.run import build_command

    names = [os.path.join(study, run) for run in runs] or [study]
    return build_command(("assay", *words), [*names, *assignments], options)


def show_adopt(location: StudyLocation, run: str) -> str:
    """Return the command that adopts a run, with a placeholder if no run made here names the study's file."""
    if next(find_own_files(location), None):
        return show_command(["adopt"], location, run)
    return f"{show_command(['adopt'], location, run, options=['--file=FILE'])}  # FILE: your study file"


def advise_adopting(location: StudyLocation, run: str) -> tuple[str, str]:
    """Return what can be done with a received run, and the command that does it. `assay adopt` refuses a received run
    that has the same id as a run that was made here."""
    from assay.record import run_directory
    from assay.record.received import is_foreign

    record = run_directory.try_record(os.path.join(location.dir, run))
    for run_dir in find_run_dirs(location.dir) if record else ():
        other = run_directory.try_record(run_dir) if os.path.basename(run_dir) != run else None
        if record and other and other.spec.id == record.spec.id and not is_foreign(run_dir):
            compare = show_command(["diff"], location, os.path.basename(run_dir), run)
            return "compare it with the same run, which is here already", compare
    return "take it as a run of your study", show_adopt(location, run)


def find_own_files(location: StudyLocation) -> Iterator[tuple[float, str]]:
    """Yield existing study files of runs made or adopted here, with times. A received run may name any file."""
    from assay.record import run_directory
    from assay.record.received import load_received

    for run_dir in find_run_dirs(location.dir):
        received = load_received(run_dir)
        record = run_directory.try_record(run_dir) if received is None or not received.needs_code else None
        if record is not None and record.source and os.path.isfile(record.source):
            yield record.created_at, record.source


# ---------------------------------------------------------------- runs


def find_patterns(names: Sequence[str], flag: str | None) -> tuple[list[StudyLocation], tuple[tuple[str, str], ...]]:
    """Return the studies for a table, and pairs of a study and a pattern of its runs. There are no pairs, which means
    all runs, if every name is a study. A name is STUDY, STUDY/RUN, STUDY/PATTERN, a run's name or id, or a folder."""
    with suppress(NotFoundError):
        return find_locations(names, flag), ()
    found = [each for name in names for each in _find_pattern(name, flag)]
    return list(dict.fromkeys(location for location, _ in found)), tuple((each.name, run) for each, run in found)


def _find_pattern(name: str, flag: str | None) -> list[tuple[StudyLocation, str]]:
    with suppress(NotFoundError):
        return [(location, ALL_RUNS) for location in find_locations([name], flag)]
    study, slash, pattern = name.rstrip("/").rpartition("/")
    if slash:
        return [(find_study(study, find_roots(flag)), pattern)]
    return [(run.location, os.path.basename(run.dir)) for run in find_runs(name, flag)]


def find_runs(name: str, flag: str | None, *, foreign: bool = False) -> list[FoundRun]:
    """Find `study` (all its runs), `study/run`, a path, a run's name or id, or a pattern such as `study/lr=0.1*`.
    `foreign`: also find directories that only other tools made."""
    roots = find_roots(flag)
    path = os.path.abspath(name)
    study, slash, run = name.rstrip("/").rpartition("/")
    is_path = os.sep in study or study in ("", os.curdir, os.pardir) or not find_candidates(study, roots)
    if is_path and (is_run_dir(path) or (foreign and is_foreign_dir(path))):
        return [FoundRun(StudyLocation(*os.path.split(os.path.dirname(path))), path)]
    if not slash:
        return _find_without_study(name, roots, foreign)
    if is_path and (locations := _existing([path])):  # a study's folder, as `show_study` prints it elsewhere
        return [FoundRun(locations[0], run_dir) for run_dir in _find_dirs(locations[0], foreign)]
    location = find_study(study, roots)
    if matches := _match(location, run, foreign):
        return matches
    from assay.record.run_directory import load_planned

    if run in load_planned(location.dir):
        hint = f"nothing that waits is started after: {show_command(['stop'], location)}"
        raise UsageError(f"{name!r} was not started yet", hint)
    known = [location.key(run_dir) for run_dir in _find_dirs(location, foreign)]
    see_runs = f"see its runs: {show_command(['ls'], location)}"
    raise NotFoundError("run", name, known, suggest(name, known) or see_runs)


def _find_dirs(location: StudyLocation, foreign: bool) -> Iterator[str]:
    yield from find_run_dirs(location.dir)
    if foreign:
        yield from find_foreign_dirs(location.dir)


def _find_without_study(name: str, roots: Roots, foreign: bool) -> list[FoundRun]:
    if find_candidates(name, roots):
        location = find_study(name, roots)
        return [FoundRun(location, run_dir) for run_dir in _find_dirs(location, foreign)]
    locations = [StudyLocation(root, study) for root in roots.all for study in find_studies(root)]
    matches = [run for location in locations for run in _match(location, name, foreign)]
    if matches:
        return matches
    known = [location.name for location in locations]
    known += [os.path.basename(d) for location in locations for d in _find_dirs(location, foreign)]
    hint = suggest(name, known) if locations else _explain_empty(roots)
    if hint is None:  # names of runs contain commas: only studies are listed
        studies = list(dict.fromkeys(location.name for location in locations))
        hint = f"the studies are {', '.join(studies[:12])}{' …' if len(studies) > 12 else ''}"
    raise NotFoundError("study or run", name, known, hint)


def _match(location: StudyLocation, pattern: str, foreign: bool) -> list[FoundRun]:
    from fnmatch import fnmatchcase

    exact = os.path.join(location.dir, pattern)
    if is_run_dir(exact) or (foreign and is_foreign_dir(exact)):
        return [FoundRun(location, exact)]
    found = []
    for run_dir in _find_dirs(location, foreign):
        name = os.path.basename(run_dir)
        if fnmatchcase(name, pattern) or _has_id(run_dir, pattern):
            found.append(FoundRun(location, run_dir))
    return found


def is_run_name(name: str, flag: str | None) -> bool:
    """Whether a run has this name, or matches it as a pattern with * or ?. Ids of runs are not compared."""
    from fnmatch import fnmatchcase

    is_pattern = "*" in name or "?" in name
    locations = [StudyLocation(root, study) for root in find_roots(flag).all for study in find_studies(root)]
    dirs = (run_dir for location in locations for run_dir in find_run_dirs(location.dir))
    names = map(os.path.basename, dirs)
    return any(each == name or (is_pattern and fnmatchcase(each, name)) for each in names)


def _has_id(run_dir: str, start: str) -> bool:
    """Whether the run's id begins with `start`. A run with a damaged run.json has no id and must not raise an error."""
    from assay.record import run_directory

    try:
        return len(start) >= 6 and start.isalnum() and run_directory.load_record(run_dir).spec.id.startswith(start)
    except (FormatError, OSError):
        return False


def find_one_run(name: str, flag: str | None) -> FoundRun:
    return need_one_run(name, find_runs(name, flag))


def names_study(name: str, run: FoundRun) -> bool:
    """Whether a name on the command line means the whole study of the run."""
    return name.rstrip("/") == run.location.name or os.path.abspath(name) == run.location.dir


def need_one_run(name: str, runs: Sequence[FoundRun]) -> FoundRun:
    if len(runs) == 1:
        return runs[0]
    if not runs:
        raise NotFoundError("run", name)
    shown = [os.path.join(show_study(run.location), os.path.basename(run.dir)) for run in runs[:6]]
    listed = ", ".join(shown) + (" …" if len(runs) > 6 else "")
    raise UsageError(f"{name!r} names {len(runs)} runs", f"choose one of: {listed}")
