"""Which files of a folder are code: the walk that obeys ignore patterns, exclusions and size limits."""

from __future__ import annotations

import fnmatch
import os
import re
import stat
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from assay.errors import UsageError

NEVER_CODE = frozenset({".git", "__pycache__", "node_modules"})
_NEVER_LINKED = frozenset({".git", "__pycache__"})  # a run must not write into the original's
_GIVE_UP_FACTOR = 5  # a folder is not read further once it holds this many times the allowed files
_ENVIRONMENT_MARK = "pyvenv.cfg"


@dataclass(frozen=True, slots=True)
class Limits:
    """What is larger than this is linked instead of copied, where links are allowed."""

    file_bytes: int = 10_000_000
    tree_bytes: int = 500_000_000
    tree_files: int = 20_000


@dataclass(frozen=True, slots=True)
class Selection:
    """What to take. `guess` leaves out what never is code; `link` allows links instead of large copies."""

    ignore: tuple[str, ...] = ()
    exclude: tuple[Path, ...] = ()
    guess: bool = True
    link: bool = True
    limits: Limits = Limits()


@dataclass(frozen=True, slots=True)
class FileEntry:
    path: str  # relative to the source
    executable: bool
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int


@dataclass(slots=True)
class Tree:
    """One folder with everything below it that is to be copied."""

    path: str  # relative; "" is the source itself
    files: list[FileEntry] = field(default_factory=list)
    symlinks: list[tuple[str, str]] = field(default_factory=list)  # path, target as it stands in the source
    folders: list[Tree] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)  # not copied, and not linked either
    linked: list[str] = field(default_factory=list)  # not copied, to be linked
    count: int = 0  # files in the whole subtree
    bytes: int = 0

    @property
    def is_empty(self) -> bool:
        return not (self.files or self.symlinks or self.folders or self.linked)

    def walk(self) -> Iterable[Tree]:
        yield self
        for folder in self.folders:
            yield from folder.walk()


def load_tree(source: Path, selection: Selection) -> Tree:
    """Walk the source. Raises UsageError for a folder that is missing or holds what cannot be read."""
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
    return UsageError(
        f"the code cannot be copied: {named}{more} cannot be read",
        "make them readable, or add them to the ignore patterns",
    )


class _Walker:
    def __init__(self, source: str, selection: Selection) -> None:
        self.source = source
        self.selection = selection
        self.limits = selection.limits
        self.ignores = build_matcher(selection.ignore)
        self.excluded = _load_identities(selection.exclude)
        self.unreadable: list[str] = []

    def walk(self, path: str) -> Tree:
        tree = Tree(path)
        for entry in self._scan(path):
            self._take(tree, entry, f"{path}/{entry.name}" if path else entry.name)
            if self.selection.link and path and tree.count > _GIVE_UP_FACTOR * self.limits.tree_files:
                self._link_whole(tree)
                break
        if self.selection.link:
            self._slim(tree)
        return tree

    def _scan(self, path: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(f"{self.source}/{path}") as entries:
                return sorted(entries, key=lambda entry: os.fsencode(entry.name))
        except PermissionError:
            self.unreadable.append(path or self.source)
            return []

    def _take(self, tree: Tree, entry: os.DirEntry[str], path: str) -> None:
        try:
            if self.ignores(entry.name, path):
                self._leave(tree, entry.name, path)
            elif entry.is_symlink():
                tree.symlinks.append((path, os.readlink(entry.path)))
            elif entry.is_dir(follow_symlinks=False):
                self._take_folder(tree, entry, path)
            else:
                self._take_file(tree, entry.stat(follow_symlinks=False), path)
        except (FileNotFoundError, NotADirectoryError):
            return  # gone since the folder was listed: editors' temporary files do that

    def _take_file(self, tree: Tree, status: os.stat_result, path: str) -> None:
        if not stat.S_ISREG(status.st_mode) or _identity(status) in self.excluded:
            tree.skipped.append(path)  # sockets, pipes and devices are nobody's code
        elif self.selection.link and status.st_size > self.limits.file_bytes:
            tree.linked.append(path)
        else:
            executable = bool(status.st_mode & stat.S_IXUSR)
            tree.files.append(
                FileEntry(path, executable, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
            )
            tree.count += 1
            tree.bytes += status.st_size

    def _take_folder(self, tree: Tree, entry: os.DirEntry[str], path: str) -> None:
        if self.excluded and _identity(entry.stat(follow_symlinks=False)) in self.excluded:
            tree.skipped.append(path)
        elif self.selection.guess and self._is_no_code(entry):
            self._leave(tree, entry.name, path)
        else:
            folder = self.walk(path)
            if folder.linked == [path]:  # too large as a whole
                tree.linked.append(path)
                return
            tree.folders.append(folder)
            tree.count += folder.count
            tree.bytes += folder.bytes

    def _is_no_code(self, entry: os.DirEntry[str]) -> bool:
        return entry.name in NEVER_CODE or os.path.lexists(f"{entry.path}/{_ENVIRONMENT_MARK}")

    def _leave(self, tree: Tree, name: str, path: str) -> None:
        linked = self.selection.link and name not in _NEVER_LINKED and not name.endswith(".pyc")
        (tree.linked if linked else tree.skipped).append(path)

    def _slim(self, tree: Tree) -> None:
        """Bring a subtree below the limits by linking its largest folders, or itself when they are not the cause."""
        while self._is_too_large(tree):
            if tree.path and (not tree.folders or self._is_flat_too_large(tree)):
                self._link_whole(tree)
            elif tree.folders:
                self._drop_folder(tree, max(tree.folders, key=self._weight))
            else:
                self._drop_file(tree, max(tree.files, key=lambda file: file.size))

    def _is_too_large(self, tree: Tree) -> bool:
        return tree.count > self.limits.tree_files or tree.bytes > self.limits.tree_bytes

    def _is_flat_too_large(self, tree: Tree) -> bool:
        size = sum(file.size for file in tree.files)
        return len(tree.files) > self.limits.tree_files or size > self.limits.tree_bytes

    def _weight(self, tree: Tree) -> float:
        return max(tree.count / self.limits.tree_files, tree.bytes / self.limits.tree_bytes)

    def _link_whole(self, tree: Tree) -> None:
        tree.files, tree.symlinks, tree.folders, tree.skipped = [], [], [], []
        tree.count = tree.bytes = 0
        tree.linked = [tree.path]

    def _drop_folder(self, tree: Tree, folder: Tree) -> None:
        tree.folders.remove(folder)
        tree.linked.append(folder.path)
        tree.count -= folder.count
        tree.bytes -= folder.bytes

    def _drop_file(self, tree: Tree, file: FileEntry) -> None:
        tree.files.remove(file)
        tree.linked.append(file.path)
        tree.count -= 1
        tree.bytes -= file.size


def build_matcher(patterns: Iterable[str]) -> Callable[[str, str], bool]:
    """Shell patterns per name, as runx has them; one with a slash inside is held against the relative path."""
    tidy = [pattern.strip().removeprefix("./").rstrip("/") for pattern in patterns]
    by_name = _join_patterns(pattern for pattern in tidy if pattern and "/" not in pattern)
    by_path = _join_patterns(pattern.lstrip("/") for pattern in tidy if "/" in pattern)

    def matches(name: str, path: str) -> bool:
        return bool((by_name and by_name.match(name)) or (by_path and by_path.match(path)))

    return matches


def _join_patterns(patterns: Iterable[str]) -> re.Pattern[str] | None:
    translated = [fnmatch.translate(pattern) for pattern in patterns]
    return re.compile("|".join(translated)) if translated else None


def _load_identities(paths: Iterable[Path]) -> set[tuple[int, int]]:
    """Device and inode: the same folder whichever way it is spelt. One that does not exist cannot be entered."""
    found = set()
    for path in paths:
        try:
            found.add(_identity(os.stat(path)))
        except OSError:
            continue
    return found


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
