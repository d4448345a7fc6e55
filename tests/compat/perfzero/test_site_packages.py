"""Repositories in site-packages, with real git: updated where that is harmless, left alone where a user has worked."""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path

import pytest
from tests.data_servers import taking

from assay.compat.perfzero.site_packages import check_out_all, load_own_package, load_package
from assay.compat.perfzero.values import GitRepo, Package
from assay.errors import AssayError, ExitCode, InfrastructureError, UsageError


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@functools.cache
def build_theirs() -> tuple[Path, str]:
    """A repository with one commit, which each test copies; and that commit."""
    folder = Path(tempfile.mkdtemp(prefix="assay-theirs-"))
    git(folder, "init", "-q", "-b", "main")
    (folder / "code.py").write_text("one")
    git(folder, "add", "code.py")
    git(folder, "commit", "-q", "-m", "one")
    return folder, git(folder, "rev-parse", "HEAD")


@pytest.fixture(scope="module", autouse=True)
def remove_theirs() -> object:
    yield
    shutil.rmtree(build_theirs()[0])
    build_theirs.cache_clear()


class Lab:
    """A repository of another project, and our site-packages."""

    def __init__(self, base: Path) -> None:
        self.theirs = base / "theirs" / "models"
        source, self.first = build_theirs()
        shutil.copytree(source, self.theirs)
        self.folder = base / "site-packages"
        self.said: list[str] = []

    @property
    def ours(self) -> Path:
        return self.folder / "models"

    @property
    def text(self) -> str:
        return (self.ours / "code.py").read_text()

    def publish(self, text: str, branch: str | None = None) -> str:
        if branch:
            git(self.theirs, "checkout", "-q", "-B", branch)
        (self.theirs / "code.py").write_text(text)
        git(self.theirs, "commit", "-q", "-a", "-m", text)
        return git(self.theirs, "rev-parse", "HEAD")

    def check_out(self, branch: str | None = None, commit: str | None = None, *, cached: bool = False) -> Package:
        repo = GitRepo(str(self.theirs), branch, commit)
        return check_out_all([repo], str(self.folder), use_cached=cached, say=self.said.append)["models"]

    def refuse(self, url: str | Path, kind: type[AssayError], words: str, commit: str | None = None) -> AssayError:
        with pytest.raises(kind, match=words) as caught:
            check_out_all([GitRepo(str(url), None, commit)], str(self.folder), use_cached=False, say=print)
        return caught.value


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


# ---------------------------------------------------------------- what leads nowhere


def test_a_ref_that_does_not_exist(lab: Lab) -> None:
    for fields in (("nowhere", None), ("main", "abcdef0"), ("nowhere", "main")):
        for _ in range(2):  # also of a repository that is there
            with pytest.raises(UsageError, match=f"there is no branch, tag or commit .* in {lab.theirs}"):
                lab.check_out(*fields)
            lab.check_out()
        shutil.rmtree(lab.ours)


def test_an_address_where_nothing_is_or_where_nothing_was_committed(lab: Lab, tmp_path: Path) -> None:
    lab.refuse(tmp_path / "absent", UsageError, r"cannot be cloned: fatal: .*does not exist")
    assert [path.name for path in lab.folder.iterdir()] == [".lock"], "a failed clone leaves nothing"
    (tmp_path / "empty").mkdir()
    git(tmp_path / "empty", "init", "-q")
    lab.refuse(tmp_path / "empty", UsageError, "has no commit")


def test_something_else_in_its_place_is_neither_used_nor_changed(lab: Lab, tmp_path: Path) -> None:
    lab.folder.mkdir()
    lab.ours.write_text("mine")
    lab.refuse(lab.theirs, UsageError, "is not a git repository")
    assert lab.ours.read_text() == "mine"
    lab.ours.unlink()
    lab.ours.mkdir()
    (lab.ours / "code.py").write_text("mine")
    lab.refuse(lab.theirs, UsageError, "is not a git repository")
    assert lab.text == "mine"
    shutil.rmtree(lab.ours)
    lab.check_out()
    other = Lab(tmp_path / "second")
    other.folder = lab.folder
    other.refuse(other.theirs, UsageError, r"is a clone of .*not of")
    assert other.check_out(cached=True).commit == lab.first


def test_a_repository_that_is_gone_is_reported_and_the_cached_one_still_works(lab: Lab) -> None:
    lab.check_out()
    lab.theirs.rename(lab.theirs.parent / "moved")
    error = lab.refuse(lab.theirs, UsageError, "cannot be fetched")
    assert "--use_cached_site_packages" in (error.hint or "")
    assert lab.check_out(cached=True).commit == lab.first
    assert lab.check_out(commit=lab.first).commit == lab.first, "a hash that is here needs nobody"


@pytest.mark.parametrize(
    "url",
    [
        "https://no-such-host.invalid/ssl.git",
        pytest.param("ssh://no-such-host.invalid/x.git", marks=pytest.mark.services("sshd")),
        "git://127.0.0.1:{port}/x.git",
    ],
)
def test_a_server_that_cannot_be_reached_is_no_mistake_of_the_user_s(lab: Lab, url: str, closed_port: int) -> None:
    error = lab.refuse(url.format(port=closed_port), InfrastructureError, "cannot be cloned")
    assert error.exit_code is ExitCode.INTERNAL
    assert "can it be reached from here?" in (error.hint or "")


def test_the_answer_of_a_server_decides_the_exit_code(lab: Lab) -> None:
    with taking(lambda path, _headers, _body: (int(path.split("/")[1]), b"")) as url:
        for status, kind in ((404, UsageError), (403, UsageError), (503, InfrastructureError)):
            lab.refuse(f"{url}/{status}/ssl.git", kind, "cannot be cloned")


def test_a_hash_is_not_missing_where_no_one_could_be_asked(lab: Lab, closed_port: int) -> None:
    lab.check_out()
    url = f"http://127.0.0.1:{closed_port}/models"
    git(lab.ours, "remote", "set-url", "origin", url)
    lab.refuse(url, InfrastructureError, "cannot be fetched", "0" * 40)
    with pytest.raises(InfrastructureError, match="cannot be fetched"):
        check_out_all([GitRepo(url, None, "0" * 40)], str(lab.folder), use_cached=True, say=print)


# ---------------------------------------------------------------- where it is wanted


def test_the_head_of_the_default_branch_and_what_was_published_since(lab: Lab) -> None:
    assert lab.check_out() == Package(str(lab.theirs), "main", lab.first)
    assert lab.text == "one"
    assert any("cloning" in line for line in lab.said)
    second = lab.publish("two")
    assert lab.check_out(cached=True).commit == lab.first
    assert lab.check_out().commit == second
    assert lab.text == "two"
    assert git(lab.ours, "symbolic-ref", "--short", "HEAD") == "main"
    git(lab.theirs, "reset", "-q", "--hard", lab.first)
    rewritten = lab.publish("other two")
    assert lab.check_out() == Package(str(lab.theirs), "main", rewritten), "a branch that was rewritten there"
    assert lab.text == "other two"


def test_a_branch_or_a_tag(lab: Lab) -> None:
    git(lab.theirs, "tag", "v1")
    dev = lab.publish("dev", "dev")
    found = lab.check_out("v1")
    assert (found.commit, found.branch) == (lab.first, "v1")
    assert lab.check_out("dev") == Package(str(lab.theirs), "dev", dev)
    newer = lab.publish("dev 2")
    assert lab.check_out("dev", cached=True).commit == dev
    assert lab.check_out("dev").commit == newer
    assert lab.check_out("main").commit == lab.first


def test_a_hash_and_back(lab: Lab) -> None:
    second = lab.publish("two")
    assert lab.check_out("main", lab.first) == Package(str(lab.theirs), "main", lab.first)
    assert lab.text == "one"
    assert lab.check_out(commit=lab.first[:10]).commit == lab.first
    third = lab.publish("three")
    assert lab.check_out(commit=second).commit == second, "from a detached HEAD to another hash"
    assert lab.check_out(commit=third, cached=True).commit == third, "one that came later is fetched all the same"
    assert lab.check_out().commit == third, "without a hash: the head of the default branch again"


def test_a_commit_on_no_branch_is_fetched_by_its_hash_and_is_no_one_s_own(lab: Lab) -> None:
    hidden = lab.publish("hidden", "temporary")
    git(lab.theirs, "checkout", "-q", "main")
    git(lab.theirs, "update-ref", "refs/pull/1/head", hidden)
    git(lab.theirs, "branch", "-D", "temporary")
    git(lab.theirs, "config", "uploadpack.allowAnySHA1InWant", "true")
    assert lab.check_out(commit=hidden) == Package(str(lab.theirs), "HEAD", hidden)
    assert lab.check_out("refs/pull/1/head").commit == hidden
    assert lab.check_out().commit == lab.first, "our own checkout is not taken for the user's work"


# ---------------------------------------------------------------- what a user has done


@pytest.mark.parametrize("staged", [False, True])
def test_edits_are_used_and_recorded(lab: Lab, staged: bool) -> None:
    lab.check_out()
    lab.publish("dev", "dev")
    git(lab.theirs, "checkout", "-q", "main")
    second = lab.publish("two")
    (lab.ours / "code.py").write_text("edited")
    if staged:
        git(lab.ours, "add", "code.py")
    for wanted in ((None, None), ("dev", None), (None, second)):
        found = lab.check_out(*wanted)
        assert (found.commit, found.dirty) == (lab.first, True)
        assert lab.text == "edited"
        assert "models: 1 changed files (code.py); it is used as it is" in lab.said


def test_commits_of_one_s_own_are_used_and_counted(lab: Lab) -> None:
    lab.publish("dev", "dev")
    git(lab.theirs, "checkout", "-q", "main")
    lab.check_out("dev")
    (lab.ours / "code.py").write_text("mine")
    git(lab.ours, "commit", "-q", "-a", "-m", "mine")
    mine = git(lab.ours, "rev-parse", "HEAD")
    lab.publish("two")
    found = lab.check_out()
    assert (found.commit, found.local_commits, found.dirty) == (mine, 1, False)
    assert lab.text == "mine"
    git(lab.ours, "checkout", "-q", "--detach", lab.first)
    assert lab.check_out("dev").commit == mine, "its branch is used when it is asked for"
    assert git(lab.ours, "rev-parse", "dev") == mine


def test_a_branch_of_one_s_own_is_left_where_it_is(lab: Lab) -> None:
    lab.check_out()
    git(lab.ours, "checkout", "-q", "-b", "mine")
    lab.publish("two")
    assert lab.check_out() == Package(str(lab.theirs), "mine", lab.first)


def test_files_that_git_does_not_know_are_recorded_and_never_replaced(lab: Lab) -> None:
    lab.check_out()
    (lab.ours / "__pycache__").mkdir()
    (lab.ours / "__pycache__" / "code.cpython-311.pyc").write_bytes(b"x")
    assert not lab.check_out().dirty, "compiled files are no edits"
    (lab.ours / "new.py").write_text("mine")
    second = lab.publish("two")
    found = lab.check_out()
    assert (found.commit, found.dirty) == (second, True)
    (lab.theirs / "new.py").write_text("theirs")
    git(lab.theirs, "add", "new.py")
    lab.publish("with a new file")
    found = lab.check_out()
    assert (found.commit, found.dirty) == (second, True)
    assert (lab.ours / "new.py").read_text() == "mine"
    assert any("it is used as it is" in line for line in lab.said)


# ---------------------------------------------------------------- the rest


def test_two_at_once_wait_for_each_other_and_nothing_wanted_makes_nothing(lab: Lab) -> None:
    assert check_out_all([], str(lab.folder), use_cached=False, say=print) == {}
    assert not lab.folder.exists()
    found: list[Package] = []
    threads = [threading.Thread(target=lambda: found.append(lab.check_out())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [package.commit for package in found] == [lab.first] * 2


def test_hostile_paths(lab: Lab, hostile_path: Path) -> None:
    theirs = hostile_path / "models"
    lab.theirs.rename(theirs)
    lab.theirs, lab.folder = theirs, hostile_path / "site packages"
    assert lab.check_out().commit == lab.first
    if "\n" not in hostile_path.name:  # git names remotes in lines: such a one is cloned, and then stays as it is
        assert lab.check_out().commit == lab.first


def test_what_is_recorded_of_a_repository(lab: Lab) -> None:
    own = load_own_package(str(lab.theirs / "code.py"))
    assert own is not None
    assert (own.commit, own.branch, own.url) == (lab.first, "main", "")
    (lab.theirs / "installed.py").write_text("")
    assert load_own_package(str(lab.theirs / "installed.py")) is None, "a file that git does not keep"
    assert load_own_package(str(lab.theirs.parent / "other.py")) is None
    git(lab.theirs, "remote", "add", "origin", "https://token@example.invalid/models.git")
    found = load_package(str(lab.theirs))
    assert found is not None
    assert found.url == "https://***@example.invalid/models.git"
