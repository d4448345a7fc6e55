"""Repositories in site-packages, with real git: updated where that is harmless, left alone where a user has worked."""

from __future__ import annotations

import socket
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from assay.compat.perfzero.site_packages import check_out_all, load_own_package, load_package
from assay.compat.perfzero.values import GitRepo, Package
from assay.errors import AssayError, ExitCode, InfrastructureError, UsageError


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


class Lab:
    """A repository of another project, and our site-packages."""

    def __init__(self, base: Path) -> None:
        self.theirs = base / "theirs" / "models"
        self.theirs.mkdir(parents=True)
        git(self.theirs, "init", "-q", "-b", "main")
        self.first = self.publish("one")
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
        git(self.theirs, "add", "code.py")
        git(self.theirs, "commit", "-q", "-m", text)
        return git(self.theirs, "rev-parse", "HEAD")

    def check_out(self, branch: str | None = None, commit: str | None = None, *, cached: bool = False) -> Package:
        repo = GitRepo(str(self.theirs), branch, commit)
        return check_out_all([repo], str(self.folder), use_cached=cached, say=self.said.append)["models"]


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


# ---------------------------------------------------------------- what leads nowhere


@pytest.mark.parametrize("fields", [("nowhere", None), (None, "0" * 40), ("main", "abcdef0"), ("nowhere", "main")])
@pytest.mark.parametrize("again", [False, True])
def test_a_ref_that_does_not_exist(lab: Lab, fields: tuple[str | None, str | None], again: bool) -> None:
    if again:
        lab.check_out()
    with pytest.raises(UsageError, match="there is no branch, tag or commit") as caught:
        lab.check_out(*fields)
    assert str(lab.theirs) in caught.value.message


def test_an_address_where_nothing_is(lab: Lab, tmp_path: Path) -> None:
    repo = GitRepo(str(tmp_path / "absent"))
    with pytest.raises(UsageError, match=r"cannot be cloned: fatal: .*does not exist"):
        check_out_all([repo], str(lab.folder), use_cached=False, say=print)
    assert [path.name for path in lab.folder.iterdir()] == [".lock"], "a failed clone leaves nothing"


def test_an_empty_repository(lab: Lab, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    git(empty, "init", "-q")
    with pytest.raises(UsageError, match="has no commit"):
        check_out_all([GitRepo(str(empty))], str(lab.folder), use_cached=False, say=print)


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_something_else_stands_in_its_place(lab: Lab, kind: str) -> None:
    lab.folder.mkdir()
    if kind == "file":
        lab.ours.write_text("mine")
    else:
        lab.ours.mkdir()
        (lab.ours / "code.py").write_text("mine")
    with pytest.raises(UsageError, match="is not a git repository"):
        lab.check_out()
    assert (lab.ours if kind == "file" else lab.ours / "code.py").read_text() == "mine"


def test_another_repository_of_the_same_name_is_not_measured_in_silence(lab: Lab, tmp_path: Path) -> None:
    lab.check_out()
    other = Lab(tmp_path / "second")
    other.folder = lab.folder
    with pytest.raises(UsageError, match=r"is a clone of .*not of"):
        other.check_out()
    assert other.check_out(cached=True).commit == lab.first


def test_a_repository_that_is_gone_is_reported_and_the_cached_one_still_works(lab: Lab) -> None:
    lab.check_out()
    lab.theirs.rename(lab.theirs.parent / "moved")
    with pytest.raises(UsageError, match="cannot be fetched") as caught:
        lab.check_out()
    assert "--use_cached_site_packages" in (caught.value.hint or "")
    assert lab.check_out(cached=True).commit == lab.first
    assert lab.check_out(commit=lab.first).commit == lab.first, "a hash that is here needs nobody"


def find_closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize(
    "url",
    [
        "https://no-such-host.invalid/ssl.git",
        pytest.param("ssh://no-such-host.invalid/x.git", marks=pytest.mark.services("sshd")),
        "http://127.0.0.1:{port}/x.git",
        "git://127.0.0.1:{port}/x.git",
    ],
)
def test_a_server_that_cannot_be_reached_is_no_mistake_of_the_user_s(lab: Lab, url: str) -> None:
    repo = GitRepo(url.format(port=find_closed_port()))
    with pytest.raises(InfrastructureError, match="cannot be cloned") as caught:
        check_out_all([repo], str(lab.folder), use_cached=False, say=print)
    assert caught.value.exit_code is ExitCode.INTERNAL
    assert "can it be reached from here?" in (caught.value.hint or "")


@pytest.mark.parametrize(("status", "kind"), [(404, UsageError), (403, UsageError), (503, InfrastructureError)])
def test_the_answer_of_a_server_decides_the_exit_code(lab: Lab, status: int, kind: type[AssayError]) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(status)

        def log_message(self, *_words: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            repo = GitRepo(f"http://127.0.0.1:{server.server_port}/ssl.git")
            with pytest.raises(kind, match="cannot be cloned"):
                check_out_all([repo], str(lab.folder), use_cached=False, say=print)
        finally:
            server.shutdown()
            thread.join()


def test_a_hash_is_not_missing_where_no_one_could_be_asked(lab: Lab) -> None:
    lab.check_out()
    url = f"http://127.0.0.1:{find_closed_port()}/models"
    git(lab.ours, "remote", "set-url", "origin", url)
    repo = GitRepo(url, None, "0" * 40)
    with pytest.raises(InfrastructureError, match="cannot be fetched"):
        check_out_all([repo], str(lab.folder), use_cached=False, say=print)
    with pytest.raises(InfrastructureError, match="cannot be fetched"):
        check_out_all([repo], str(lab.folder), use_cached=True, say=print)


# ---------------------------------------------------------------- where it is wanted


def test_a_fresh_clone_is_the_head_of_the_default_branch(lab: Lab) -> None:
    found = lab.check_out()
    assert found == Package(str(lab.theirs), "main", lab.first)
    assert lab.text == "one"
    assert any("cloning" in line for line in lab.said)


def test_the_next_call_takes_what_was_published_since(lab: Lab) -> None:
    lab.check_out()
    second = lab.publish("two")
    assert lab.check_out(cached=True).commit == lab.first
    assert lab.check_out().commit == second
    assert lab.text == "two"
    assert git(lab.ours, "symbolic-ref", "--short", "HEAD") == "main"


def test_a_branch(lab: Lab) -> None:
    lab.check_out()
    dev = lab.publish("dev", "dev")
    assert lab.check_out("dev") == Package(str(lab.theirs), "dev", dev)
    newer = lab.publish("dev 2")
    assert lab.check_out("dev", cached=True).commit == dev
    assert lab.check_out("dev").commit == newer
    assert lab.check_out("main").commit == lab.first


def test_a_tag(lab: Lab) -> None:
    git(lab.theirs, "tag", "v1")
    lab.publish("two")
    found = lab.check_out("v1")
    assert (found.commit, found.branch) == (lab.first, "v1")


def test_a_hash_and_back(lab: Lab) -> None:
    second = lab.publish("two")
    found = lab.check_out("main", lab.first)
    assert found == Package(str(lab.theirs), "main", lab.first)
    assert lab.text == "one"
    assert lab.check_out(commit=lab.first[:10]).commit == lab.first
    third = lab.publish("three")
    assert lab.check_out(commit=second).commit == second, "from a detached HEAD to another hash"
    assert lab.check_out().commit == third, "without a hash: the head of the default branch again"


def test_a_hash_that_came_later_is_fetched_also_from_the_cache(lab: Lab) -> None:
    lab.check_out()
    second = lab.publish("two")
    assert lab.check_out(commit=second, cached=True).commit == second


def test_a_commit_on_no_branch_is_fetched_by_its_hash_and_is_no_one_s_own(lab: Lab) -> None:
    hidden = lab.publish("hidden", "temporary")
    git(lab.theirs, "checkout", "-q", "main")
    git(lab.theirs, "update-ref", "refs/pull/1/head", hidden)
    git(lab.theirs, "branch", "-D", "temporary")
    git(lab.theirs, "config", "uploadpack.allowAnySHA1InWant", "true")
    assert lab.check_out(commit=hidden) == Package(str(lab.theirs), "HEAD", hidden)
    assert lab.check_out("refs/pull/1/head").commit == hidden
    assert lab.check_out().commit == lab.first, "our own checkout is not taken for the user's work"


def test_a_branch_that_was_rewritten_there(lab: Lab) -> None:
    lab.publish("two")
    lab.check_out()
    git(lab.theirs, "reset", "-q", "--hard", lab.first)
    rewritten = lab.publish("other two")
    found = lab.check_out()
    assert found == Package(str(lab.theirs), "main", rewritten)
    assert lab.text == "other two"


# ---------------------------------------------------------------- what a user has done


@pytest.mark.parametrize("wanted", [(None, None), ("main", None), ("dev", None), (None, "hash")])
@pytest.mark.parametrize("staged", [False, True])
def test_edits_are_used_and_recorded(lab: Lab, wanted: tuple[str | None, str | None], staged: bool) -> None:
    lab.check_out()
    lab.publish("dev", "dev")
    git(lab.theirs, "checkout", "-q", "main")
    second = lab.publish("two")
    (lab.ours / "code.py").write_text("edited")
    if staged:
        git(lab.ours, "add", "code.py")
    found = lab.check_out(wanted[0], second if wanted[1] else None)
    assert (found.commit, found.dirty) == (lab.first, True)
    assert lab.text == "edited"
    assert any("1 changed files (code.py); it is used as it is" in line for line in lab.said)


def test_commits_of_one_s_own_are_used_and_counted(lab: Lab) -> None:
    lab.check_out()
    (lab.ours / "code.py").write_text("mine")
    git(lab.ours, "commit", "-q", "-a", "-m", "mine")
    lab.publish("two")
    found = lab.check_out()
    assert (found.commit, found.local_commits, found.dirty) == (git(lab.ours, "rev-parse", "HEAD"), 1, False)
    assert lab.text == "mine"


def test_a_branch_with_commits_of_one_s_own_is_used_when_it_is_asked_for(lab: Lab) -> None:
    lab.publish("dev", "dev")
    git(lab.theirs, "checkout", "-q", "main")
    lab.check_out("dev")
    (lab.ours / "code.py").write_text("mine")
    git(lab.ours, "commit", "-q", "-a", "-m", "mine")
    mine = git(lab.ours, "rev-parse", "HEAD")
    git(lab.ours, "checkout", "-q", "--detach", lab.first)
    assert lab.check_out("dev").commit == mine
    assert git(lab.ours, "rev-parse", "dev") == mine


def test_a_branch_of_one_s_own_is_left_where_it_is(lab: Lab) -> None:
    lab.check_out()
    git(lab.ours, "checkout", "-q", "-b", "mine")
    lab.publish("two")
    found = lab.check_out()
    assert (found.branch, found.commit) == ("mine", lab.first)


def test_files_that_git_does_not_know_are_recorded_and_in_no_one_s_way(lab: Lab) -> None:
    lab.check_out()
    (lab.ours / "new.py").write_text("mine")
    second = lab.publish("two")
    found = lab.check_out()
    assert (found.commit, found.dirty) == (second, True)
    assert (lab.ours / "new.py").read_text() == "mine"


def test_a_new_file_of_theirs_does_not_take_the_place_of_one_s_own(lab: Lab) -> None:
    lab.check_out()
    (lab.ours / "new.py").write_text("mine")
    (lab.theirs / "new.py").write_text("theirs")
    git(lab.theirs, "add", "new.py")
    git(lab.theirs, "commit", "-q", "-m", "new")
    found = lab.check_out()
    assert (found.commit, found.dirty) == (lab.first, True)
    assert (lab.ours / "new.py").read_text() == "mine"
    assert any("it is used as it is" in line for line in lab.said)


def test_compiled_files_are_no_edits(lab: Lab) -> None:
    lab.check_out()
    (lab.ours / "__pycache__").mkdir()
    (lab.ours / "__pycache__" / "code.cpython-311.pyc").write_bytes(b"x")
    assert not lab.check_out().dirty


# ---------------------------------------------------------------- the rest


def test_nothing_wanted_makes_nothing(tmp_path: Path) -> None:
    assert check_out_all([], str(tmp_path / "site-packages"), use_cached=False, say=print) == {}
    assert not (tmp_path / "site-packages").exists()


def test_two_at_once_wait_for_each_other(lab: Lab) -> None:
    found: list[Package] = []
    threads = [threading.Thread(target=lambda: found.append(lab.check_out())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {package.commit for package in found} == {lab.first}
    assert len(found) == 4


def test_hostile_paths(lab: Lab, hostile_path: Path) -> None:
    theirs = hostile_path / "models"
    lab.theirs.rename(theirs)
    lab.theirs, lab.folder = theirs, hostile_path / "site packages"
    assert lab.check_out().commit == lab.first
    if "\n" not in hostile_path.name:  # git names remotes in lines: such a one is cloned, and then stays as it is
        second = lab.publish("two")
        assert lab.check_out().commit == second


def test_a_token_is_not_recorded(lab: Lab) -> None:
    lab.check_out()
    git(lab.ours, "remote", "set-url", "origin", "https://token@example.invalid/models.git")
    found = load_package(str(lab.ours))
    assert found is not None
    assert found.url == "https://***@example.invalid/models.git"


def test_only_a_file_that_git_keeps_belongs_to_a_repository(lab: Lab) -> None:
    own = load_own_package(str(lab.theirs / "code.py"))
    assert own is not None
    assert (own.commit, own.branch, own.url) == (lab.first, "main", "")
    (lab.theirs / "installed.py").write_text("")
    assert load_own_package(str(lab.theirs / "installed.py")) is None
    assert load_own_package(str(lab.theirs.parent / "other.py")) is None
