"""Separate work trees with other commits of a user's repository.

A tree is a clone that borrows the repository's objects: nothing in the user's work tree, index, branches or `.git` is
written, and none of the user's hooks runs.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from assay.code.tree import Selection, load_tree
from assay.errors import InfrastructureError, UsageError
from assay.system.files import write_atomic
from assay.system.git import GitError, build_environment, call_git, run_git
from assay.system.locks import hold
from assay.values.environment import Commit as Commit  # noqa: PLC0414 imported from here by other modules

COMMIT_FIELDS = "%H%x00%s%x00%an%x00%aI"
_AUTHOR = ("user.name=assay", "user.email=assay@localhost")


@dataclass(frozen=True, slots=True)
class Checkout:
    """A work tree of Assay's own, which may be changed."""

    path: str
    repository: str


@dataclass(frozen=True, slots=True)
class Checkouts:
    """Work trees of one repository, by name, besides the user's: the sides of a comparison, or the tree of a search."""

    repository: str
    folder: str  # the folder of the trees
    inside: tuple[str, ...] = (".",)  # working directories, relative to the repository
    build: str | None = None  # the user's build command, which runs in the first folder of `inside`
    build_timeout_s: float | None = None

    def enter(self, name: str, commit: Commit) -> str:
        """Return the first folder in the tree of this name, built at this commit; raise UsageError if that fails."""
        tree = self.open(name)
        switch(tree, commit.sha, keep_ignored=self.build is not None)
        for each in self.inside:
            if not os.path.isdir(os.path.join(tree.path, each)):
                raise UsageError(f"commit {commit.short} has no folder {each}")
        folder = os.path.normpath(os.path.join(tree.path, self.inside[0]))
        problem = build(tree, self.build, folder, self.build_timeout_s) if self.build else None
        if problem:
            raise UsageError(f"commit {commit.short} cannot be built: {problem}")
        return folder

    def open(self, name: str) -> Checkout:
        return open_tree(self.repository, os.path.join(self.folder, name))


@contextmanager
def open_checkouts(
    folder: str, meta: str, wait: Callable[[str], None], build_command: str | None = None
) -> Iterator[Checkouts]:
    """Open the trees of the folder's repository in `meta`. Only one call at a time, since two would check out different
    commits in the same tree: a second call runs `wait` with the trees' folder, and waits."""
    repository = find_repository(folder)
    key = hashlib.blake2b(repository.encode("utf-8", "surrogateescape"), digest_size=4).hexdigest()
    trees = os.path.join(meta, "trees", key)
    with hold(trees, None, lambda: wait(trees)):
        yield Checkouts(repository, trees, (find_inside(folder, repository),), build_command)


def find_inside(folder: str, repository: str) -> str:
    """Return the path of a folder relative to its repository."""
    relative = os.path.relpath(os.path.realpath(folder), os.path.realpath(repository))
    if relative.startswith(os.pardir):
        raise UsageError(f"{folder} is outside of the repository {repository}", "run it inside")
    return relative


def find_repository(folder: str) -> str:
    """Return the top of the work tree that a folder is in."""
    try:
        return _git(folder, "rev-parse", "--show-toplevel").strip("\n")
    except GitError as error:
        raise UsageError(f"{folder} is not in a git repository", error.message) from None


def load_commit(repository: str, name: str) -> Commit:
    """Return the commit of a branch, tag or hash, as git resolves it."""
    try:
        sha = _git(repository, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}").strip()
        fields = _git(repository, "log", "-1", f"--format={COMMIT_FIELDS}", sha).rstrip("\n").split("\0")
    except GitError:
        raise UsageError(f"there is no commit {name!r} in {repository}", "list them: git log") from None
    return Commit(*fields)


def load_parents(repository: str, good: str, bad: str) -> Mapping[str, tuple[str, ...]]:
    """Return each commit from good to bad, both included, with its parents, ancestors first. Good must precede bad."""
    if good == bad:
        raise UsageError("the good and the bad end are the same commit", "name two")
    if not is_ancestor(repository, good, bad):
        if is_ancestor(repository, bad, good):
            raise UsageError("the good end comes after the bad end", "swap --good and --bad")
        base = run_git(repository, "merge-base", good, bad).stdout.strip()
        hint = f"their common ancestor is {base[:12]}: try it as the good end" if base else "they share no history"
        raise UsageError("the good end is not an ancestor of the bad end", hint)
    lines = _git(repository, "rev-list", "--topo-order", "--reverse", "--parents", f"{good}..{bad}").splitlines()
    return {good: (), **{words[0]: tuple(words[1:]) for words in (line.split() for line in lines)}}


def is_ancestor(repository: str, one: str, other: str) -> bool:
    return run_git(repository, "merge-base", "--is-ancestor", one, other).returncode == 0


def open_tree(repository: str, path: str) -> Checkout:
    """Return the tree at `path`; a missing tree is cloned, an existing tree borrows new objects as well."""
    if not os.path.isdir(os.path.join(path, ".git")):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        try:
            # git lists borrowed objects in a file of lines: if the path has a newline, objects are copied
            kind = "--local" if "\n" in repository else "--shared"
            _git(os.path.dirname(path), "clone", "--quiet", kind, "--no-checkout", "--", repository, path)
        except GitError as error:
            raise InfrastructureError(f"no work tree could be made of {repository}: {error.message}") from None
    return Checkout(path, repository)


def switch(tree: Checkout, sha: str, keep_ignored: bool = False) -> None:
    """Check out this commit and remove local changes and untracked files; ignored ones stay if a build needs them.
    Compiled Python files are always removed: two commits may have a source of the same size and second, and an
    interpreter would use the old one's compiled file."""
    try:
        for lock in ("index.lock", "HEAD.lock"):  # locks of killed processes; no other process works in this tree
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(tree.path, ".git", lock))
        _git(tree.path, "checkout", "--quiet", "--force", "--detach", sha)
        _git(tree.path, "clean", "--quiet", "-ffd" if keep_ignored else "-ffdx")
        for base, folders, names in os.walk(tree.path):
            if ".git" in folders:
                folders.remove(".git")
            for name in names:
                if name.endswith(".pyc"):
                    os.unlink(os.path.join(base, name))
    except GitError as error:
        raise InfrastructureError(f"commit {sha[:12]} cannot be checked out: {error.message}") from None


def commit_work_tree(tree: Checkout, root: str, secret: Sequence[str] = ()) -> Commit:
    """Commit the user's files to this tree: HEAD, the changes since, and new files that are code. Code is what a
    snapshot would copy: no files that git ignores, no large files, studies, files below the output root `root`, or
    names that match `secret`. Without changes the result is HEAD."""
    head, listed = load_commit(tree.repository, "HEAD"), os.path.join(tree.path, ".git", "assay-new-files")
    git = ("--git-dir", os.path.join(tree.path, ".git"), "--work-tree", tree.repository)
    try:
        _git(tree.repository, *git, "read-tree", head.sha)
        _git(tree.repository, *git, "add", "--update", "--", ".")
        untracked = set(_git(tree.repository, "ls-files", "--others", "--exclude-standard", "-z").split("\0"))
        selection = Selection(exclude=(root,), secret=tuple(secret))
        folders = list(load_tree(tree.repository, selection).walk()) if untracked != {""} else []
        code = [path for each in folders for path in (*(file.path for file in each.files), *dict(each.symlinks))]
        if new := [f":(literal){path}" for path in code if path in untracked]:
            write_atomic(listed, os.fsencode("\0".join(new)))
            _git(tree.repository, *git, "add", f"--pathspec-from-file={listed}", "--pathspec-file-nul")
        state = _git(tree.repository, *git, "write-tree").strip()
        if state == _git(tree.path, "rev-parse", f"{head.sha}^{{tree}}").strip():
            return head
        return load_commit(tree.path, _git(tree.path, "commit-tree", state, "-p", head.sha, "-m", "work tree").strip())
    except GitError as error:
        raise InfrastructureError(f"the work tree {tree.repository} cannot be copied: {error.message}") from None


def build(tree: Checkout, command: str, folder: str, timeout_s: float | None = None) -> str | None:
    """Run the user's build command; return why it failed, or None. The output goes to `build.log` next to the tree."""
    log = os.path.join(os.path.dirname(tree.path), "build.log")
    with open(log, "ab") as file:
        try:
            done = subprocess.run(  # noqa: S602 the user's own command line
                command,
                shell=True,
                executable="/bin/bash",
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=timeout_s,
                env=build_environment(),
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"the build took longer than {timeout_s:g} s (see {log})"
    return f"the build ended with exit code {done.returncode} (see {log})" if done.returncode else None


def _git(folder: str, *arguments: str) -> str:
    return call_git(folder, *arguments, settings=("gc.auto=0", *_AUTHOR))
