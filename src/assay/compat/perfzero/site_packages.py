"""Repositories that benchmarks need, checked out next to each other in a folder where users may edit them.

Users' changes in these repositories, committed or not, are used: nothing is reset, overwritten or rebased. Commits
that this module checks out are recorded as `refs/assay/used`, so that they do not count as the user's own later.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Sequence

from assay.compat.perfzero.values import GitRepo, Package, hide_secrets
from assay.errors import AssayError, InfrastructureError, UsageError
from assay.system.files import rename
from assay.system.git import GitError, call_git, run_git
from assay.system.locks import hold

Say = Callable[[str], None]

_USED = "refs/assay/used"
_LOCK = ".lock"
_COMPILED = re.compile(r"(?:^|/)__pycache__/|\.pyc$|\.egg-info/")


def check_out_all(repos: Sequence[GitRepo], folder: str, *, use_cached: bool, say: Say) -> dict[str, Package]:
    """Check out each repository in `<folder>/<name>` and return its state by name. A lock excludes other calls."""
    if not repos:
        return {}
    with hold(folder, None, lambda: say(f"waiting: another call works in {folder}"), _LOCK):
        return {repo.name: check_out(repo, os.path.join(folder, repo.name), use_cached, say) for repo in repos}


def check_out(repo: GitRepo, path: str, use_cached: bool, say: Say) -> Package:
    is_new = not os.path.lexists(path)
    if is_new:
        say(f"cloning {hide_secrets(repo.url)} into {path}")
        _clone(repo, path)
    else:
        _check_origin(repo, path, use_cached)
    if not is_new and (why := _find_edits(path)):
        say(f"{repo.name}: {why}; it is used as it is")
    # without a branch or hash, a new clone is at the right commit, and a cached clone keeps its commit
    elif bool(repo.branch or repo.commit) or not (is_new or use_cached):
        _move(repo, path, fetches=not is_new and not use_cached, say=say)
    found = load_package(path, repo.branch)
    if found is None:
        raise UsageError(f"--git_repos: {hide_secrets(repo.url)} has no commit")
    return found


def load_package(path: str, branch: str | None = None) -> Package | None:
    """Return the current state of a repository, or None without a commit. `branch` names a detached HEAD."""
    commit, default = _resolve(path, "HEAD"), _default_branch(path)
    if commit is None:
        return None
    # a detached HEAD gets the name of the default branch if HEAD is the newest commit of this branch
    named = default if default and _remote_branch(path, default) == commit else "HEAD"
    return Package(
        url=hide_secrets(_ask(path, "remote", "get-url", "origin")),
        branch=_ask(path, "symbolic-ref", "--quiet", "--short", "HEAD") or branch or named,
        commit=commit,
        dirty=bool(_list_changes(path)),
        local_commits=_count_own_commits(path, "HEAD"),
    )


def load_own_package(file: str) -> Package | None:
    """Return the state of the repository that tracks this file, or None if the file was installed."""
    folder = os.path.dirname(file)
    if not _ask(folder, "ls-files", "--error-unmatch", "--", file):
        return None
    return load_package(folder)


# ---------------------------------------------------------------- clones


def _clone(repo: GitRepo, path: str) -> None:
    """Clone into a temporary folder and rename it, so that an interrupted clone is not mistaken for a complete one."""
    with tempfile.TemporaryDirectory(prefix=".tmp-", dir=os.path.dirname(path), ignore_cleanup_errors=True) as aside:
        try:
            _git(None, "clone", "--quiet", "--", repo.url, os.path.join(aside, "clone"))
            rename(os.path.join(aside, "clone"), path)
        except GitError as error:
            hint = "check the address, and that you may read it without being asked for a password"
            raise _refuse(repo, "cloned", error, hint) from None


def _check_origin(repo: GitRepo, path: str, use_cached: bool) -> None:
    """Refuse another repository of the same name, which would be measured without notice."""
    top = _ask(path, "rev-parse", "--show-toplevel") if os.path.isdir(path) else ""
    if os.path.realpath(top or "/") != os.path.realpath(path):
        raise UsageError(f"--git_repos: {path} is not a git repository", "move it away, or choose another --workspace")
    origin = _ask(path, "remote", "get-url", "origin")
    if not use_cached and _plain(origin) != _plain(repo.url):
        raise UsageError(
            f"--git_repos: {path} is a clone of {hide_secrets(origin) or 'nothing'}, not of {hide_secrets(repo.url)}",
            "choose another --workspace, or --use_cached_site_packages to use it all the same",
        )


def _plain(url: str) -> str:
    """Return a normal form of the address, in which different spellings are equal."""
    bare = hide_secrets(url.removeprefix("file://").rstrip("/").removesuffix(".git").rstrip("/"))
    return os.path.realpath(bare) if os.path.exists(bare) or os.path.exists(f"{bare}.git") else bare.replace("***@", "")


def _find_edits(path: str) -> str | None:
    """Describe changes of a user that must not be lost, or return None. Untracked files do not count."""
    if changed := [line for line in _list_changes(path) if not line.startswith("?? ")]:
        return f"{len(changed)} changed files ({changed[0][3:]}{', …' if len(changed) > 1 else ''})"
    if count := _count_own_commits(path, "HEAD"):
        return f"{count} commits of your own"
    return None


def _list_changes(path: str) -> list[str]:
    lines = _ask(path, "status", "--porcelain", "--untracked-files=all").splitlines()
    return [line for line in lines if not (line.startswith("?? ") and _COMPILED.search(line))]


def _count_own_commits(path: str, name: str) -> int:
    known = [f"^{_USED}"] if _resolve(path, _USED) else []
    found = _ask(path, "rev-list", "--count", name, *known, "--not", "--remotes", "--tags")
    return int(found) if found.isdecimal() else 0


# ---------------------------------------------------------------- checking out


def _move(repo: GitRepo, path: str, *, fetches: bool, say: Say) -> None:
    """Check out the hash, else the newest commit of the named branch, else the newest one of the current branch."""
    branch = repo.branch or _ask(path, "symbolic-ref", "--quiet", "--short", "HEAD") or _default_branch(path)
    wanted = _resolve(path, repo.commit) if repo.commit else None  # a known hash never changes
    has_own = bool(branch and _count_own_commits(path, f"refs/heads/{branch}"))  # a fetch may rewrite the branch
    if fetches and wanted is None:
        say(f"updating {path}")
        _fetch(repo, path)
    if repo.commit:
        sha = wanted or _find(repo, path, repo.commit)
        if repo.branch is not None:
            _find(repo, path, repo.branch)
    else:
        if branch is None or (repo.branch is None and _remote_branch(path, branch) is None):
            return  # the branch is the user's own
        sha = _find(repo, path, branch)
    try:
        _switch(path, None if repo.commit else branch, sha, has_own)
    except GitError as error:
        say(f"{repo.name}: {error.message}; it is used as it is")


def _default_branch(path: str) -> str | None:
    return _ask(path, "symbolic-ref", "--quiet", "--short", "refs/remotes/origin/HEAD").removeprefix("origin/") or None


def _remote_branch(path: str, name: str) -> str | None:
    return _resolve(path, f"refs/remotes/origin/{name}")


def _fetch(repo: GitRepo, path: str, *name: str) -> bool:
    """Fetch everything from the server, or only `name`. Return False if the server does not have the name."""
    try:
        _git(path, "fetch", "--quiet", "origin", *name)
    except GitError as error:
        if name and not error.is_unreachable:
            return False
        hint = "--use_cached_site_packages uses what is there"
        hint = f"there is no {name[0]!r} in what was fetched before" if name else hint
        raise _refuse(repo, "fetched", error, hint) from None
    return True


def _refuse(repo: GitRepo, what: str, error: GitError, hint: str) -> AssayError:
    """Return the error about a repository: InfrastructureError if it is unreachable, UsageError if it is missing."""
    words = f"--git_repos: {hide_secrets(repo.url)} cannot be {what}: {error.message}"
    if error.is_unreachable:
        return InfrastructureError(words, f"can it be reached from here? {hint}")
    return UsageError(words, hint)


def _find(repo: GitRepo, path: str, name: str) -> str:
    """Return the commit of a remote branch, a tag or a hash; fetch the name from the server if it is unknown here."""
    found = _remote_branch(path, name) or _resolve(path, f"refs/tags/{name}") or _resolve(path, name)
    if found is None and _fetch(repo, path, name):
        found = _resolve(path, "FETCH_HEAD")
    if found is None:
        hint = "git ls-remote lists them"
        raise UsageError(f"--git_repos: there is no branch, tag or commit {name!r} in {hide_secrets(repo.url)}", hint)
    return found


def _switch(path: str, branch: str | None, sha: str, has_own: bool) -> None:
    """Check out the commit on its branch if this is a fast-forward, else as a detached HEAD, so that no branch of the
    user moves otherwise."""
    local = _resolve(path, f"refs/heads/{branch}") if branch else None
    if branch and local is None and _remote_branch(path, branch) == sha:
        _git(path, "checkout", "--quiet", "--track", "-b", branch, f"origin/{branch}")
    elif branch and local is not None and (has_own or _is_ancestor(path, local, sha)):
        _git(path, "checkout", "--quiet", branch)
        if _is_ancestor(path, local, sha):
            _git(path, "merge", "--quiet", "--ff-only", sha)
    else:
        _git(path, "checkout", "--quiet", "--detach", sha)
        _git(path, "update-ref", _USED, sha)


def _is_ancestor(path: str, one: str, other: str) -> bool:
    return run_git(path, "merge-base", "--is-ancestor", one, other).returncode == 0


def _resolve(path: str, name: str) -> str | None:
    found = _ask(path, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    return found or None


# ---------------------------------------------------------------- git

_SETTINGS = ("core.quotePath=false",)


def _git(folder: str | None, *arguments: str) -> str:
    try:
        return call_git(folder, *arguments, settings=_SETTINGS)
    except GitError as error:
        raise GitError(hide_secrets(error.message), error.is_unreachable) from None


def _ask(folder: str, *arguments: str) -> str:
    """Return the output of git, or "" if git fails. Leading spaces are kept: they are the state of a file."""
    done = run_git(folder, *arguments, settings=_SETTINGS)
    return done.stdout.strip("\n") if done.returncode == 0 else ""
