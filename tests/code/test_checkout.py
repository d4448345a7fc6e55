"""On real repositories; what counts is that the user's own tree is never touched."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from assay.code import checkout as checkouts
from assay.errors import InfrastructureError, UsageError


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def commit(folder: Path, text: str, subject: str = "change", **env: str) -> str:
    (folder / "a.txt").write_text(text)
    git(folder, "add", "-A")
    subprocess.run(["git", "commit", "-qm", subject], cwd=folder, check=True, env={**os.environ, **env})
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def repo(hostile_name: str, tmp_path: Path) -> Path:
    folder = tmp_path / hostile_name
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    return folder


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    folder = tmp_path / "repo"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    return folder


def snapshot(folder: Path) -> dict[str, bytes]:
    """Every file of the work tree and of .git, with its content."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_the_tree_has_the_commit_and_the_users_tree_is_untouched(repo, tmp_path):
    first = commit(repo, "one")
    commit(repo, "two")
    (repo / "a.txt").write_text("not committed")
    (repo / "notes.txt").write_text("untracked")
    before = snapshot(repo)
    tree = checkouts.open_tree(checkouts.find_repository(str(repo)), str(tmp_path / "work" / "tree"))
    checkouts.switch(tree, first)
    assert Path(tree.path, "a.txt").read_text() == "one"
    assert not Path(tree.path, "notes.txt").exists()
    assert snapshot(repo) == before


def test_switching_leaves_nothing_of_the_commit_before(plain, tmp_path):
    first = commit(plain, "one")
    (plain / "extra.py").write_text("x = 1\n")
    (plain / ".gitignore").write_text("*.pyc\nbuilt/\n")
    second = commit(plain, "two")
    tree = checkouts.open_tree(str(plain), str(tmp_path / "tree"))
    checkouts.switch(tree, second)
    for name in ("junk.txt", "__pycache__/extra.pyc", "built/lib.so"):
        Path(tree.path, name).parent.mkdir(exist_ok=True)
        Path(tree.path, name).write_text("old")
    Path(tree.path, "a.txt").write_text("changed by a run")
    checkouts.switch(tree, first)
    assert {path.name for path in Path(tree.path).iterdir()} == {".git", "a.txt"}
    assert Path(tree.path, "a.txt").read_text() == "one"


def test_a_build_keeps_its_outputs_but_no_compiled_python(plain, tmp_path):
    """An interpreter would take the compiled file of another commit when size and second are the same."""
    (plain / ".gitignore").write_text("*.pyc\nbuilt/\n")
    first, second = commit(plain, "one"), commit(plain, "two")
    tree = checkouts.open_tree(str(plain), str(tmp_path / "tree"))
    checkouts.switch(tree, first, keep_ignored=True)
    for name in ("__pycache__/extra.pyc", "built/lib.so"):
        Path(tree.path, name).parent.mkdir(exist_ok=True)
        Path(tree.path, name).write_text("old")
    checkouts.switch(tree, second, keep_ignored=True)
    assert Path(tree.path, "built/lib.so").exists()
    assert not Path(tree.path, "__pycache__/extra.pyc").exists()


def test_opened_again_it_goes_on_even_after_a_kill_and_sees_new_commits(plain, tmp_path):
    first = commit(plain, "one")
    tree = checkouts.open_tree(str(plain), str(tmp_path / "tree"))
    checkouts.switch(tree, first)
    Path(tree.path, ".git", "index.lock").write_text("")  # a kill in the middle of a checkout
    second = commit(plain, "two")
    again = checkouts.open_tree(str(plain), str(tmp_path / "tree"))
    checkouts.switch(again, second)
    assert Path(again.path, "a.txt").read_text() == "two"


def test_hooks_of_the_user_do_not_run(plain, tmp_path):
    first = commit(plain, "one")
    hook = plain / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch '{tmp_path / 'hooked'}'\n")
    hook.chmod(0o755)
    template = tmp_path / "template" / "hooks"
    template.mkdir(parents=True)
    (template / "post-checkout").write_text(hook.read_text())
    (template / "post-checkout").chmod(0o755)
    git(plain, "config", "--global", "init.templateDir", str(template.parent))
    try:
        checkouts.switch(checkouts.open_tree(str(plain), str(tmp_path / "tree")), first)
    finally:
        git(plain, "config", "--global", "--unset", "init.templateDir")
    assert not (tmp_path / "hooked").exists()


def test_a_commit_has_subject_author_and_date_also_inside_a_hook_of_another_repository(plain, tmp_path, monkeypatch):
    dated = {"GIT_AUTHOR_NAME": "Zoë", "GIT_AUTHOR_DATE": "2026-02-03T04:05:06+02:00"}
    sha = commit(plain, "one", 'speed up "everything" äöü', **dated)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    found = checkouts.load_commit(checkouts.find_repository(str(plain)), "main")
    assert (found.sha, found.subject) == (sha, 'speed up "everything" äöü')
    assert (found.author, found.authored_at) == ("Zoë", "2026-02-03T04:05:06+02:00")


def test_the_range_is_listed_ancestors_first_with_merges(plain):
    base = commit(plain, "base")
    git(plain, "checkout", "-qb", "side")
    side = commit(plain, "side")
    git(plain, "checkout", "-q", "main")
    (plain / "b.txt").write_text("x")
    git(plain, "add", "-A")
    git(plain, "commit", "-qm", "other")
    other = git(plain, "rev-parse", "HEAD")
    git(plain, "merge", "-q", "--no-edit", "side")
    merge = git(plain, "rev-parse", "HEAD")
    parents = checkouts.load_parents(str(plain), base, merge)
    assert next(iter(parents)) == base
    assert list(parents)[-1] == merge
    assert set(parents) == {base, side, other, merge}
    assert set(parents[merge]) == {side, other}


def test_ends_that_are_no_range_are_refused(plain):
    first, second = commit(plain, "one"), commit(plain, "two")
    git(plain, "checkout", "-q", "--orphan", "alone")
    alone = commit(plain, "three")
    with pytest.raises(UsageError, match="same commit"):
        checkouts.load_parents(str(plain), first, first)
    with pytest.raises(UsageError, match="comes after") as caught:
        checkouts.load_parents(str(plain), second, first)
    assert "swap" in str(caught.value.hint)
    with pytest.raises(UsageError, match="not an ancestor") as caught:
        checkouts.load_parents(str(plain), alone, second)
    assert "share no history" in str(caught.value.hint)
    git(plain, "checkout", "-q", "-b", "side", first)
    side = commit(plain, "side")
    with pytest.raises(UsageError) as caught:
        checkouts.load_parents(str(plain), side, second)
    assert first[:12] in str(caught.value.hint), "the common ancestor"


@pytest.mark.parametrize("name", ["no-such-branch", "", "--all", "HEAD:a.txt"])
def test_a_name_that_is_no_commit_is_refused(plain, name):
    commit(plain, "one")
    with pytest.raises(UsageError, match="there is no commit"):
        checkouts.load_commit(str(plain), name)


def test_a_folder_without_git_and_a_commit_that_is_not_there_are_refused(plain, tmp_path):
    with pytest.raises(UsageError, match="not in a git repository"):
        checkouts.find_repository(str(tmp_path))
    with pytest.raises(UsageError, match="is outside of the repository"):
        checkouts.find_inside(str(tmp_path), str(plain))
    commit(plain, "one")
    tree = checkouts.open_tree(str(plain), str(tmp_path / "tree"))
    with pytest.raises(InfrastructureError, match="cannot be checked out"):
        checkouts.switch(tree, "0" * 40)


def test_a_build_says_why_it_failed_and_keeps_its_words(plain, tmp_path):
    sha = commit(plain, "one")
    tree = checkouts.open_tree(str(plain), str(tmp_path / "work" / "tree"))
    checkouts.switch(tree, sha)
    assert checkouts.build(tree, "cp a.txt b.txt", tree.path) is None
    assert Path(tree.path, "b.txt").exists()
    problem = checkouts.build(tree, "echo broken; exit 3", tree.path)
    assert problem is not None
    assert "exit code 3" in problem
    assert "broken" in (tmp_path / "work" / "build.log").read_text()
    assert "took longer" in str(checkouts.build(tree, "sleep 30", tree.path, timeout_s=0.05))


def list_files(folder: str) -> set[str]:
    found = {str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file()}
    return {name for name in found if not name.startswith(".git/")}


def test_the_users_files_become_a_commit_of_our_tree_alone(repo, tmp_path):
    (repo / "gone.txt").write_text("will be deleted")
    first = commit(repo, "one")
    (repo / "gone.txt").unlink()
    (repo / "a.txt").write_text("changed")
    (repo / "sub").mkdir()
    (repo / "sub" / "*new [x].py").write_text("new")
    (repo / "run.sh").write_text("new")
    (repo / "run.sh").chmod(0o755)
    (repo / "link").symlink_to("a.txt")
    before = snapshot(repo)
    tree = checkouts.open_tree(checkouts.find_repository(str(repo)), str(tmp_path / "work" / "tree"))
    made = checkouts.commit_work_tree(tree, str(tmp_path / "runs"))
    assert snapshot(repo) == before
    assert made.sha != first
    checkouts.switch(tree, made.sha)
    assert list_files(tree.path) == {"a.txt", "link", "sub/*new [x].py", "run.sh"}
    assert Path(tree.path, "a.txt").read_text() == "changed"
    assert os.access(Path(tree.path, "run.sh"), os.X_OK)


def test_without_changes_the_users_files_are_head(plain, tmp_path):
    head = commit(plain, "one")
    tree = checkouts.open_tree(str(plain), str(tmp_path / "tree"))
    assert checkouts.commit_work_tree(tree, str(tmp_path / "runs")).sha == head
    (plain / "a.txt").write_text("other")
    assert checkouts.commit_work_tree(tree, str(tmp_path / "runs")).sha != head
    (plain / "a.txt").write_text("one")
    os.utime(plain / "a.txt", (1, 1))
    assert checkouts.commit_work_tree(tree, str(tmp_path / "runs")).sha == head


def test_what_is_ignored_secret_or_of_a_study_is_left_out(plain, tmp_path):
    (plain / ".gitignore").write_text("*.log\n")
    commit(plain, "one")
    (plain / ".git" / "info" / "exclude").write_text("mine\n")
    new = ("x.log", "mine", ".env", "keys/id_rsa", "runs/a/out", "old/s/.assay/codes.json", "old/s/run1/out", "b.txt")
    for name in new:
        (plain / name).parent.mkdir(parents=True, exist_ok=True)
        (plain / name).write_text(name)
    (plain / "weights.bin").write_bytes(bytes(10_000_001))
    tree = checkouts.open_tree(str(plain), str(tmp_path / "tree"))
    checkouts.switch(tree, checkouts.commit_work_tree(tree, str(plain / "runs"), [".env", "keys/"]).sha)
    assert list_files(tree.path) == {".gitignore", "a.txt", "b.txt"}


def test_the_sides_are_trees_of_one_repository(plain, tmp_path):
    first = checkouts.load_commit(str(plain), commit(plain, "one"))
    (plain / "sub").mkdir()
    (plain / "sub" / "file").write_text("x")
    second = checkouts.load_commit(str(plain), commit(plain, "two"))
    with checkouts.open_checkouts(
        str(plain / "sub"), str(tmp_path / "meta"), pytest.fail, "cp ../a.txt built"
    ) as found:
        assert Path(found.enter("b", second), "built").read_text() == "two"
        with pytest.raises(UsageError, match="has no folder sub"):
            found.enter("a", first)
    whole = checkouts.Checkouts(found.repository, found.folder, (".", "."), "false")
    with pytest.raises(UsageError, match="cannot be built: the build ended with exit code 1"):
        whole.enter("a", first)
