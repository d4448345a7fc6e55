"""Finds the files of a folder that are code: the walk obeys ignore patterns, exclusions and size limits."""

from __future__ import annotations

import fnmatch
import os
import re
import stat
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from assay.errors import UsageError
from assay.system.fast_dataclasses import dataclass, field
from assay.system.git import find_git_root, run_git
from assay.values import layout
from assay.values.secrets import build_file_matcher, holds_tokens

_NEVER_CODE = frozenset({".git", "__pycache__", "node_modules"})
_NEVER_LINKED = frozenset({".git", "__pycache__"})  # a run must not write into these folders of the source
_GIVE_UP_FACTOR = 5  # a folder with this many times the allowed files is not read to its end
_ENVIRONMENT_MARK = "pyvenv.cfg"
_GIT_IGNORED = ("ls-files", "--others", "--ignored", "--exclude-standard", "--directory", "-z")
_SEARCHED_ENTRIES, _SEARCHED_DEPTH = 10_000, 3  # limits of the search for studies in a folder that would be linked
_MOST_LINKS = 1_000  # links in place of one folder that cannot be linked as a whole because it contains a study
_GOLDEN_MANIFEST = "_convergence_harness_manifest.json"
_JOB_MARK = b"# Written by Assay."
_LARGEST_TOKENS = 1 << 16
_PICTURES, _MARKED = (".png", ".svg", ".pdf"), 4096  # bytes that are read at either end of a picture

StrPath = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Limits:
    """Files and folders above a limit are linked instead of copied, if links are allowed."""

    file_bytes: int = 10_000_000
    tree_bytes: int = 500_000_000
    tree_files: int = 20_000


@dataclass(frozen=True, slots=True)
class Selection:
    """The files to take. `guess` leaves out what is never code and links what git ignores; `link` allows links."""

    ignore: tuple[str, ...] = ()
    exclude: tuple[StrPath, ...] = ()
    guess: bool = True
    link: bool = True
    limits: Limits = Limits()
    secret: tuple[str, ...] = ()  # patterns of names that are linked, never copied; `!` makes an exception


@dataclass(frozen=True, slots=True)
class FileEntry:
    path: str  # relative to the source
    mode: int  # the nine permission bits
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int

    @property
    def executable(self) -> bool:
        return bool(self.mode & stat.S_IXUSR)

    @property
    def is_private(self) -> bool:
        return not self.mode & (stat.S_IRGRP | stat.S_IROTH)


@dataclass(slots=True)
class Tree:
    """One folder with all files below it that are to be copied."""

    path: str  # relative; "" is the source itself
    files: list[FileEntry] = field(default_factory=list)
    symlinks: list[tuple[str, str]] = field(default_factory=list)  # path, target as in the source
    folders: list[Tree] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)  # neither copied nor linked
    linked: list[str] = field(default_factory=list)  # linked instead of copied
    secret: list[str] = field(default_factory=list)  # linked even if links are not allowed
    mode: int = 0o777  # permission bits of the folder
    holds_study: bool = False  # a study's folder is somewhere below: the folder is not linked as a whole
    count: int = 0  # files in the whole subtree
    bytes: int = 0

    @property
    def is_empty(self) -> bool:
        return not (self.files or self.symlinks or self.folders or self.linked or self.secret)

    def walk(self) -> Iterable[Tree]:
        yield self
        for folder in self.folders:
            yield from folder.walk()


def load_tree(source: StrPath, selection: Selection) -> Tree:
    """Walk the source. Raises UsageError for a missing folder, or one with unreadable files."""
    walker = _Walker(os.fspath(source), selection)
    try:
        tree = walker.walk("")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UsageError(f"the code folder {str(source)!r} does not exist") from error
    if walker.unreadable:
        raise unreadable_error(walker.unreadable)
    return tree


def unreadable_error(paths: Sequence[str]) -> UsageError:
    named = ", ".join(repr(path) for path in paths[:5])
    more = f" and {len(paths) - 5} more" if len(paths) > 5 else ""
    hint = "make them readable, or add them to the ignore patterns"
    return UsageError(f"the code cannot be copied: {named}{more} cannot be read", hint)


class _Walker:
    def __init__(self, source: str, selection: Selection) -> None:
        self.source = source
        self.selection = selection
        self.limits = selection.limits
        self.ignores = build_matcher(selection.ignore)
        self.is_secret = build_file_matcher(selection.secret)
        # device and inode identify a folder under any spelling; a missing folder cannot be entered
        self.excluded: set[tuple[int, int]] = set()
        for path in selection.exclude:
            with suppress(OSError):
                self.excluded.add(_identity(os.stat(path)))
        self.unreadable: list[str] = []
        self.git_ignored: set[str] = set()
        if self._asks_git and find_git_root(source) is not None:
            self._ask_git("")

    @property
    def _asks_git(self) -> bool:
        return self.selection.guess and self.selection.link

    def _ask_git(self, path: str) -> None:
        """Add the paths that git ignores; none without an answer (no git, or the whole folder is ignored)."""
        try:
            answer = run_git(f"{self.source}/{path}", *_GIT_IGNORED)
        except UsageError:
            return
        if answer.returncode == 0:
            prefix = f"{path}/" if path else ""
            self.git_ignored.update(f"{prefix}{name.rstrip('/')}" for name in answer.stdout.split("\0") if name)

    def walk(self, path: str) -> Tree:
        tree = Tree(path)
        for entry in self._scan(path):
            self._add_entry(tree, entry, f"{path}/{entry.name}" if path else entry.name)
            if self.selection.link and path and tree.count > _GIVE_UP_FACTOR * self.limits.tree_files:
                self._link_whole(tree)
                break
        if self.selection.link:
            self._reduce(tree)
        return tree

    def _scan(self, path: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(f"{self.source}/{path}") as entries:
                return sorted(entries, key=lambda entry: os.fsencode(entry.name))
        except PermissionError:
            self.unreadable.append(path or self.source)
            return []

    def _add_entry(self, tree: Tree, entry: os.DirEntry[str], path: str) -> None:
        try:
            is_folder = entry.is_dir(follow_symlinks=False)
            if is_folder and self._is_output(entry):
                tree.skipped.append(path)
                tree.holds_study = True
            elif self.is_secret(entry.name, path, is_folder):
                tree.secret.append(path)
            elif self.ignores(entry.name, path) or path in self.git_ignored:
                self._add_ignored(tree, entry.name, path, is_folder)
            elif entry.is_symlink():
                tree.symlinks.append((path, os.readlink(entry.path)))
            elif is_folder:
                self._add_folder(tree, entry, path)
            else:
                self._add_file(tree, entry.stat(follow_symlinks=False), path)
        except (FileNotFoundError, NotADirectoryError):
            return  # the entry was deleted after the folder was listed, as an editor's temporary file

    def _is_output(self, entry: os.DirEntry[str]) -> bool:
        """Return whether a folder is the output root or has runs of Assay, also of other roots and studies."""
        if self.excluded and _identity(entry.stat(follow_symlinks=False)) in self.excluded:
            return True
        return is_output_folder(entry.path)

    def _add_file(self, tree: Tree, status: os.stat_result, path: str) -> None:
        if not stat.S_ISREG(status.st_mode) or _identity(status) in self.excluded:
            tree.skipped.append(path)  # sockets, pipes and devices are not code
        elif self._holds_tokens(status, path) or (self.selection.guess and self._is_plot(path)):
            tree.skipped.append(path)
        elif self.selection.link and status.st_size > self.limits.file_bytes:
            tree.linked.append(path)
        else:
            mode = (stat.S_IMODE(status.st_mode) & 0o777) | stat.S_IWUSR  # a private copy may be edited
            tree.files.append(
                FileEntry(path, mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
            )
            tree.count += 1
            tree.bytes += status.st_size

    def _holds_tokens(self, status: os.stat_result, path: str) -> bool:
        """Return whether a private file has tokens of `assay serve`: readers of the page would see them in the code."""
        if status.st_mode & 0o077 or not 0 < status.st_size <= _LARGEST_TOKENS:
            return False
        with suppress(OSError), open(os.path.join(self.source, path), "rb") as file:
            return holds_tokens(file.read())
        return False

    def _is_plot(self, path: str) -> bool:
        """Whether `assay plot` wrote this picture."""
        if not path.endswith(_PICTURES):
            return False
        with suppress(OSError), open(os.path.join(self.source, path), "rb") as file:
            start = file.read(_MARKED)
            file.seek(-min(_MARKED, os.fstat(file.fileno()).st_size), os.SEEK_END)  # in a PDF the mark is at the end
            return layout.PLOT_MARK.encode() in start + file.read()
        return False

    def _add_folder(self, tree: Tree, entry: os.DirEntry[str], path: str) -> None:
        is_known = entry.name in _NEVER_CODE
        if self.selection.guess and (is_known or os.path.lexists(f"{entry.path}/{_ENVIRONMENT_MARK}")):
            self._add_ignored(tree, entry.name, path, is_folder=False)
            return
        if self._asks_git and os.path.lexists(f"{entry.path}/.git"):
            self._ask_git(path)  # an inner repository has its own ignore rules
        folder = self.walk(path)
        folder.mode = stat.S_IMODE(entry.stat(follow_symlinks=False).st_mode) & 0o777
        tree.holds_study |= folder.holds_study
        # a golden is data with checkpoints, however small its files are
        is_golden = self._asks_git and any(file.path.endswith(_GOLDEN_MANIFEST) for file in folder.files)
        if folder.linked == [path] or is_golden:  # the folder is too large as a whole, or is a golden
            tree.linked.append(path)
        elif folder.holds_study and folder.is_empty:  # an output root: without its studies nothing is left
            tree.skipped.append(path)
        else:
            tree.folders.append(folder)
            tree.count += folder.count
            tree.bytes += folder.bytes

    def _add_ignored(self, tree: Tree, name: str, path: str, is_folder: bool) -> None:
        """Link an ignored path if links are allowed. If a folder has studies, only its other parts are linked."""
        linked = self.selection.link and name not in _NEVER_LINKED and not name.endswith(".pyc")
        if not (linked and is_folder and holds_study(f"{self.source}/{path}")):
            (tree.linked if linked else tree.skipped).append(path)
            return
        tree.holds_study = True
        for entry in self._scan(path):
            inner, is_folder = f"{path}/{entry.name}", entry.is_dir(follow_symlinks=False)
            if is_folder and self._is_output(entry):
                tree.skipped.append(inner)
            else:
                self._add_ignored(tree, entry.name, inner, is_folder)

    def _reduce(self, tree: Tree) -> None:
        """Bring a subtree below the limits by linking its largest folders, or the subtree if no folder is the cause."""
        while self._compare_limits(tree.count, tree.bytes) > 1:
            own = self._compare_limits(len(tree.files), sum(file.size for file in tree.files))
            if tree.path and (not tree.folders or own > 1):
                self._link_whole(tree)
            elif tree.folders:
                folder = max(tree.folders, key=lambda each: self._compare_limits(each.count, each.bytes))
                tree.folders.remove(folder)
                tree.count -= folder.count
                tree.bytes -= folder.bytes
                tree.linked.extend(self._find_links(folder))
            else:
                file = max(tree.files, key=lambda each: each.size)
                tree.files.remove(file)
                tree.linked.append(file.path)
                tree.count -= 1
                tree.bytes -= file.size

    def _compare_limits(self, count: int, size: int) -> float:
        """Return the size of a tree relative to the limits; above 1 the tree exceeds a limit."""
        return max(count / self.limits.tree_files, size / self.limits.tree_bytes)

    def _link_whole(self, tree: Tree) -> None:
        """Link a folder as a whole; if the folder has a study, link each other part of the folder instead."""
        apart = tree.holds_study and len(tree.files) <= _MOST_LINKS
        parts = [file.path for file in tree.files] + [part for each in tree.folders for part in self._find_links(each)]
        tree.linked = [*tree.linked, *parts] if apart else [tree.path]
        tree.symlinks = tree.symlinks if apart else []
        tree.files, tree.folders, tree.skipped = [], [], []
        tree.count = tree.bytes = 0

    def _find_links(self, folder: Tree) -> list[str]:
        if not folder.holds_study:
            return [folder.path]
        self._link_whole(folder)
        return folder.linked


def is_output_folder(path: str) -> bool:
    """Return whether this is a study's folder, its `.assay`, or a run's directory, by its content."""
    meta = path if os.path.basename(path) == layout.STUDY_META_DIR else f"{path}/{layout.STUDY_META_DIR}"
    with suppress(OSError):
        names = os.listdir(meta)
        if not names or any(map(layout.is_meta_name, names)):  # an `.assay` with Assay's files, or an empty `.assay`
            return True
    try:
        with open(f"{path}/{layout.JOB_FILE}", "rb", buffering=0) as file:
            return _JOB_MARK in file.read(2048)
    except OSError:
        return False


def holds_study(path: str) -> bool:
    """Return whether a study is in this folder; only the upper levels and the first entries are searched."""
    left, level = _SEARCHED_ENTRIES, [path]
    for _ in range(_SEARCHED_DEPTH):
        inner = []
        for folder in level:
            found, seen = _list_folders(folder, left)
            left -= seen
            if any(is_output_folder(each) for each in found):
                return True
            inner += found
        level = inner
        if left <= 0:
            break
    return False


def _list_folders(path: str, limit: int) -> tuple[list[str], int]:
    """Return the folders among the first entries, and how many entries were read."""
    found, seen = [], 0
    try:
        with os.scandir(path) as entries:
            for seen, entry in enumerate(entries, 1):
                if entry.is_dir(follow_symlinks=False):
                    found.append(entry.path)
                if seen >= limit:
                    break
    except OSError:
        return [], seen
    return found, seen


def build_matcher(patterns: Iterable[str]) -> Callable[[str, str], bool]:
    """Build a matcher of shell patterns with names; a pattern with a slash inside is matched with the relative path."""
    tidy = [pattern.strip().removeprefix("./").rstrip("/") for pattern in patterns]
    by_name = _join_patterns(pattern for pattern in tidy if pattern and "/" not in pattern)
    by_path = _join_patterns(pattern.lstrip("/") for pattern in tidy if "/" in pattern)

    def matches(name: str, path: str) -> bool:
        return bool((by_name and by_name.match(name)) or (by_path and by_path.match(path)))

    return matches


def _join_patterns(patterns: Iterable[str]) -> re.Pattern[str] | None:
    translated = [fnmatch.translate(pattern) for pattern in patterns]
    return re.compile("|".join(translated)) if translated else None


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
