"""Runs, studies and folders in shared storage: `assay push` sends them, and `assay pull` fetches them."""

from __future__ import annotations

import math
import os
import shlex
import shutil
import stat
import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from assay.code.snapshot import PULLED
from assay.errors import FormatError, InfrastructureError, NotFoundError, UsageError
from assay.exchange.store import manifests, mirror
from assay.exchange.store.manifests import FOLDERS, STUDIES, FolderManifest, build_key
from assay.exchange.store.mirror import OutgoingFolder
from assay.exchange.store.remote import Remote
from assay.follow.locations import FoundRun, StudyLocation, find_locations, find_runs, show_path
from assay.follow.opening import open_index_of
from assay.reading.choosing import find_chosen_runs, need_rows
from assay.reading.run_reader import load_fresh_table
from assay.record import run_directory
from assay.record.index.base import IndexTable, MetricColumns, RunRow
from assay.record.received import Received, find_user, write_received
from assay.system.fast_dataclasses import dataclass, replace
from assay.system.files import is_inside, rename, write_new
from assay.system.locks import hold_file
from assay.values import layout
from assay.values.state import State

if TYPE_CHECKING:
    from assay.values.where import Where

_PULLS_AT_ONCE = 4


# ---------------------------------------------------------------- sending


def choose_folders(
    names: Sequence[str], where: Where | None, root: str | None, private: list[str]
) -> list[OutgoingFolder]:
    """Return the folders to send for `names`: studies, runs, or other folders. Copies of study files that only
    their owner may read are not sent, but added to `private`."""
    runs: dict[str, FoundRun] = {}
    folders: list[OutgoingFolder] = []
    for name in names:
        try:
            runs |= {run.dir: run for run in _find_runs(name, where, root)}
        except NotFoundError:
            if not os.path.isdir(name) or where is not None:
                raise
            path = os.path.abspath(name)
            key = build_key(FOLDERS, os.path.basename(path))
            folders.append(OutgoingFolder(key, "folder", os.path.basename(path), path, keeps=True))
    for location in dict.fromkeys(run.location for run in runs.values()):
        chosen = [run for run in runs.values() if run.location == location]
        with open_index_of([location]) as index:
            table = load_fresh_table(index, [location])
        positions = {row.key: i for i, row in enumerate(table.rows)}
        found = [_build_run(run, table, positions[run.key]) for run in chosen if run.key in positions]
        folders.extend((*_build_codes(location, found), _build_study(location, private), *found))
    return folders


def _find_runs(name: str, where: Where | None, root: str | None) -> list[FoundRun]:
    if where is not None:
        return find_chosen_runs([name], where, root)
    runs = find_runs(name, root)
    if not runs:
        find_locations([name], root)
        raise UsageError(f"{name} has no runs yet")
    return runs


def _build_run(run: FoundRun, table: IndexTable, i: int) -> OutgoingFolder:
    row = table.rows[i]
    record = run_directory.try_record(run.dir)
    if record is None:
        raise UsageError(f"{show_path(run.dir)} is damaged: its run.json cannot be read", "leave it out")
    metrics = {
        name: [None if math.isnan(value) else value for value in (column[i] for column in columns[1:])]
        for name, columns in table.metrics.items()
        if i < len(columns.count) and columns.count[i]
    }
    facts = {name: getattr(row, name) for name in ("id", "attempt", "title", "received", "stamp")}
    facts |= {"state": str(row.state), "params": dict(row.params), "tags": list(row.tags), "metrics": metrics}
    facts |= {"uid": record.uid, "code": record.code_hash}
    trees = tuple(sorted(name for name in os.listdir(run.dir) if manifests.CODE_TREE.fullmatch(name)))
    key = build_key(STUDIES, run.location.name, "runs", os.path.basename(run.dir))
    return OutgoingFolder(key, "run", run.key, run.dir, facts, trees, _is_private_to_run, keeps=True)


def _is_private_to_run(name: str) -> bool:
    """Return whether a file is never sent or fetched: code for the next attempt, or facts on how the run came here."""
    return name.startswith(layout.NEXT_CODE_PREFIX) or name.partition("/")[0] in manifests.OF_ARRIVAL


def _build_codes(location: StudyLocation, runs: Sequence[OutgoingFolder]) -> Iterator[OutgoingFolder]:
    """Yield each snapshot of code once; snapshots are sent before the runs that use them."""
    store = os.path.join(location.dir, layout.STUDY_META_DIR, layout.CODE_STORE_DIR)
    for code in sorted({str(run.facts["code"]) for run in runs if run.facts["code"]}):
        if os.path.isdir(os.path.join(store, code)):
            key = build_key(STUDIES, location.name, "code", code)
            yield OutgoingFolder(key, "code", f"{location.name}/{code}", os.path.join(store, code))


def _build_study(location: StudyLocation, private: list[str]) -> OutgoingFolder:
    meta = os.path.join(location.dir, layout.STUDY_META_DIR)

    def leaves_out(name: str) -> bool:
        if not manifests.is_shared_of_study(name):
            return True
        is_private = "/" in name and not stat.S_IMODE(os.stat(os.path.join(meta, name)).st_mode) & 0o077
        if is_private:
            private.append(os.path.join(meta, name))
        return is_private

    key = build_key(STUDIES, location.name, "study")
    return OutgoingFolder(key, "study", location.name, meta, leaves_out=leaves_out, keeps=True)


# ---------------------------------------------------------------- the content of shared storage


def find_shared(
    names: Sequence[str], where: Where | None, remote: Remote, damaged: list[FormatError]
) -> list[FolderManifest]:
    """Return the runs and folders in the shared storage for `names`: STUDY, STUDY/RUN, STUDY/PATTERN, or a folder.

    Errors about unreadable runs and folders are added to `damaged`.
    """
    found: dict[tuple[str, str], FolderManifest] = {}
    for name in names:
        for manifest in _find_named(name.rstrip("/"), remote, damaged):
            found[manifest.kind, manifest.name] = manifest
    if where is None:
        return list(found.values())
    runs = [each for each in found.values() if each.kind == "run"]
    return [runs[i] for i in need_rows(where, _build_table(runs))]


def _find_named(name: str, remote: Remote, damaged: list[FormatError]) -> list[FolderManifest]:
    study, slash, pattern = name.partition("/")
    before, exact = len(damaged), build_key(STUDIES, study, "runs", pattern)
    if slash and (found := mirror.load_manifests(remote, [exact], damaged)):
        return found
    keys = [] if len(damaged) > before else remote.find(build_key(STUDIES, study, "runs").removesuffix(".json"))
    named = {key: manifests.read_part(key.rpartition("/")[2].removesuffix(".json")) for key in keys}
    fitting = [key for key, known in named.items() if not slash or known is None or fnmatchcase(known, pattern)]
    runs = mirror.load_manifests(remote, fitting, damaged)
    chosen = [each for each in runs if not slash or fnmatchcase(each.name.partition("/")[2], pattern)]
    if chosen:
        return chosen
    folder = mirror.load_manifests(remote, [build_key(FOLDERS, name)], damaged)
    if folder or len(damaged) > before:
        return folder
    known = [each.name for each in mirror.load_manifests(remote, keys, [])] if slash else list_names(remote)
    hint = None if known else f"{remote.address} holds nothing that assay push has sent"
    raise NotFoundError("run" if slash else "study or folder", name, known, hint)


def list_names(remote: Remote) -> list[str]:
    studies = {key.split("/")[1] for key in remote.find(STUDIES)}
    folders = {key.split("/")[1].removesuffix(".json") for key in remote.find(FOLDERS)}
    return sorted(manifests.read_part(part) or part for part in studies | folders)


def _build_table(runs: Sequence[FolderManifest]) -> IndexTable:
    """Build a table of runs with the values that the sender's index had when the runs were sent."""
    try:
        columns = {}
        for name in dict.fromkeys(name for run in runs for name in run.facts["metrics"]):
            empty = [0.0] * (len(MetricColumns._fields) - 1)
            by_run = zip(*(run.facts["metrics"].get(name) or empty for run in runs), strict=True)
            values = (array("d", [math.nan if each is None else each for each in column]) for column in by_run)
            columns[name] = MetricColumns(name, *values)
        return IndexTable([_build_row(run) for run in runs], columns)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        hint = "fetch them without --where"
        raise FormatError(f"the store's record of its runs is damaged: {error!r}", hint) from error


def _build_row(run: FolderManifest) -> RunRow:
    study, _, name = run.name.partition("/")
    facts = run.facts
    row = RunRow(run.name, study, name, str(facts["id"]), State(facts["state"]), int(facts["attempt"]), facts["params"])
    return row._replace(title=facts["title"], tags=tuple(facts["tags"]), code_hash=facts["code"])


# ---------------------------------------------------------------- fetching


@dataclass(frozen=True, slots=True)
class Pulled:
    path: str
    how: str  # new, updated, unchanged
    files: int  # files that were transferred
    bytes: int
    notes: tuple[str, ...] = ()
    damaged: tuple[FormatError, ...] = ()  # errors about files of the run's study


def check_pull(found: Sequence[FolderManifest], remote: Remote, root: str, into: str | None) -> Iterator[Pulled]:
    """Yield the results that `pull_all` would have, and raise UsageError for a folder that it would refuse."""
    for manifest in found:
        path = _find_target(manifest, root, into)
        missing = _find_missing(manifest, path, remote.address)
        names = manifest.files if missing is None else missing
        how = "new" if missing is None else "updated" if missing else "unchanged"
        size = sum(manifest.files[name].bytes for name in names if name in manifest.files)
        yield Pulled(path, how, len(names), size)


def _find_target(manifest: FolderManifest, root: str, into: str | None) -> str:
    """Return the path that a folder or a run of shared storage gets on this machine."""
    if manifest.kind == "folder":
        return os.path.abspath(into or manifest.name)
    return os.path.join(root, *manifest.name.split("/"))


def _find_missing(manifest: FolderManifest, path: str, address: str) -> frozenset[str] | None:
    """Return the files of the manifest that are missing at the path, or None if nothing is there."""
    if manifest.kind != "folder":
        return _compare_run(manifest, path, address) if os.path.lexists(path) else None
    if not os.path.isdir(path):
        return None
    return frozenset(n for n, f in manifest.files.items() if not mirror.is_file_of(os.path.join(path, n), f))


def _compare_run(manifest: FolderManifest, path: str, address: str) -> frozenset[str]:
    """Return the files that are missing here, and raise UsageError unless an earlier state of the run is here."""
    record = run_directory.try_record(path)
    shown = show_path(path)
    if record is None or record.uid != manifest.facts.get("uid"):
        what = "is there and is not a run" if record is None else "is another run of the same name"
        raise UsageError(f"{shown} {what}", "move it away, or fetch into another root: --root DIR")
    names, links, _ = mirror.list_folder(path)
    names = [name for name in names if not _is_private_to_run(name)]
    wanted = {name for name, target in manifest.links.items() if not manifests.leads_outside(name, target)}
    missing = {*manifest.files, *(name for name in wanted if links.get(name) != manifest.links[name])}
    others = {*manifest.links, *manifests.find_folders([*manifest.files, *manifest.links])}
    newest_ns = max((file.mtime_ns for file in manifest.files.values()), default=0)
    for name in names:
        file = manifest.files.get(name)
        is_same = file is not None and mirror.is_file_of(os.path.join(path, name), file)
        if is_same:
            missing.discard(name)
        elif name == layout.TAGS_FILE:
            if file is None or os.stat(os.path.join(path, name)).st_mtime_ns > file.mtime_ns:
                missing.discard(name)
        elif file is None and (name in others or manifests.find_folders([name]) & {*manifest.files, *manifest.links}):
            if os.stat(os.path.join(path, name)).st_mtime_ns > newest_ns:
                hint = "move it away"
                raise UsageError(f"{shown} has gone on here: {name} is of another kind than in the store", hint)
        elif file is None or os.stat(os.path.join(path, name)).st_mtime_ns > file.mtime_ns:
            why = "not in the store" if file is None else "newer than in the store"
            hint = f"send it (assay push {shlex.quote(shown)} --to {shlex.quote(address)}), or move it away"
            raise UsageError(f"{shown} has gone on here: {name} is {why}", hint)
    return frozenset(missing)


def pull_all(
    found: Sequence[FolderManifest], remote: Remote, root: str, into: str | None = None
) -> Iterator[Pulled | FormatError]:
    return mirror.try_each(lambda manifest: pull(manifest, remote, root, into), found, _PULLS_AT_ONCE)


def pull(manifest: FolderManifest, remote: Remote, root: str, into: str | None = None) -> Pulled:
    """Fetch a run or folder into a temporary folder, then rename that. If a call is killed, the next call continues."""
    if manifest.kind == "run":  # leave out files that each machine writes itself
        manifest = manifests.rename_files(manifest, lambda name: None if _is_private_to_run(name) else name)
    path = _find_target(manifest, root, into)
    try:
        if manifest.kind == "folder":
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with locked(path):
                return _fetch(manifest, remote, path, _find_missing(manifest, path, remote.address), path + ".pull")
        meta = os.path.join(os.path.dirname(path), layout.STUDY_META_DIR)
        os.makedirs(meta, exist_ok=True)
        with locked(os.path.join(meta, f"{layout.PULL_PREFIX}{os.path.basename(path)}"[:200])):
            missing = _find_missing(manifest, path, remote.address)
            with hold_file(os.path.join(meta, f"{layout.PULL_PREFIX}study.lock"), lambda _fd: None):
                damaged = tuple(_pull_study(manifest, remote, os.path.dirname(path)))
            aside = os.path.join(meta, layout.PULL_PREFIX + (manifest.facts["uid"] or os.path.basename(path)[:200]))
            return replace(_fetch(manifest, remote, path, missing, aside), damaged=damaged)
    except OSError as error:
        raise InfrastructureError(f"{path} cannot be written: {error.strerror or error}") from error


@contextmanager
def locked(path: str, what: str | None = None) -> Iterator[None]:
    def refuse(_fd: int) -> None:
        taken = what or f"another `assay pull` fetches into {os.path.dirname(path)} now"
        raise UsageError(taken, "try again when it is finished")

    with hold_file(path + ".lock", refuse):
        yield


def _fetch(manifest: FolderManifest, remote: Remote, path: str, missing: frozenset[str] | None, aside: str) -> Pulled:
    if missing is not None and not missing:
        shutil.rmtree(aside, ignore_errors=True)
        return Pulled(path, "unchanged", 0, 0)
    fetched = mirror.fetch_files(manifest, aside, remote, path if missing is not None else None, missing)
    if manifest.kind == "run":
        _mark(manifest, remote, aside, path)
    count, names = len(fetched.left_out), ", ".join(fetched.left_out[:3])
    notes = (f"{count} links lead outside and were not made: {names}",) if count else ()
    if missing is None:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        rename(aside, path)
    else:
        ends = {n for n in missing if layout.parse_exit_marker(n) is not None or n.startswith(("outcome.", "end."))}
        move_into(aside, path, [*sorted(missing - ends), *sorted(ends)])  # files about the end of the run come last
        shutil.rmtree(aside)
    how = "new" if missing is None else "updated"
    return Pulled(path, how, fetched.files, fetched.bytes, notes)


def _mark(manifest: FolderManifest, remote: Remote, aside: str, path: str) -> None:
    """Mark a run as received, before its folder has its name. An upload that was not adopted stays an upload.

    A run that was made here and comes back is marked too, since its files are the store's: no file of it is executed.
    """
    received = Received("pull", remote.address, find_user(), time.time())
    if manifests.is_upload(manifest.facts):
        sender = manifest.facts["received"].get("by", "")
        received = replace(received, how="upload", by=f"{sender}, pulled by {received.by}")
    write_received(aside if not os.path.isdir(path) else path, received)


def move_into(aside: str, path: str, names: Sequence[str], *, replaces: bool = True) -> None:
    """Move the files `names` into a folder; with `replaces`, remove a file, link or folder that is in the way."""
    for name in names:
        target = os.path.join(path, name)
        folder = os.path.dirname(target)
        if not is_inside(folder, path):
            raise UsageError(f"{folder} is a link that leads out of {path}", "remove it")
        for above in sorted(manifests.find_folders([name])) if replaces else ():
            found = os.path.join(path, above)
            if os.path.islink(found) or os.path.isfile(found):
                os.unlink(found)
        os.makedirs(folder, exist_ok=True)
        if replaces and os.path.isdir(target) and not os.path.islink(target):
            shutil.rmtree(target)
        rename(os.path.join(aside, name), target)


def _pull_study(run: FolderManifest, remote: Remote, study_dir: str) -> Iterator[FormatError]:
    """Fetch the code of the run and the files of its study that are missing here; nothing is replaced. Errors about
    damage in the store are yielded instead of raised, since the run itself may be complete."""
    study, meta = os.path.basename(study_dir), os.path.join(study_dir, layout.STUDY_META_DIR)
    for pull_part in (_pull_code, _pull_meta):
        try:
            pull_part(remote, study, meta, run.facts.get("code"))
        except FormatError as error:
            yield error


def _pull_code(remote: Remote, study: str, meta: str, code: str | None) -> None:
    target = os.path.join(meta, layout.CODE_STORE_DIR, code or "")
    if not code or os.path.exists(target):
        return
    manifest = mirror.load_manifest(remote, build_key(STUDIES, study, "code", code))
    if manifest is not None:
        aside = os.path.join(meta, f"{layout.PULL_PREFIX}code-{code}")
        mirror.fetch_files(manifest, aside, remote)
        if not os.path.exists(os.path.join(aside, PULLED)):
            write_new(os.path.join(aside, PULLED), "")
        os.makedirs(os.path.dirname(target), exist_ok=True)
        rename(aside, target)


def _pull_meta(remote: Remote, study: str, meta: str, _code: str | None) -> None:
    manifest = mirror.load_manifest(remote, build_key(STUDIES, study, "study"))
    # this machine decides in its own CODES_FILE which code runs get that have not begun
    wanted = [name for name in manifest.files if name != layout.CODES_FILE] if manifest else []
    missing = frozenset(name for name in wanted if not os.path.lexists(os.path.join(meta, name)))
    if manifest is not None and missing:
        aside = os.path.join(meta, f"{layout.PULL_PREFIX}study")
        mirror.fetch_files(manifest, aside, remote, wanted=missing)
        move_into(aside, meta, sorted(missing), replaces=False)
        shutil.rmtree(aside)
