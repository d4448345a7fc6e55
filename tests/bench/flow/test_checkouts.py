"""Trees beside the user's own: one call at a time, and nothing of the user's is touched."""

from __future__ import annotations

import fcntl
import threading
import time
from pathlib import Path

import pytest
from tests.bench.repository import Repository, ask

from assay.bench.flow.checkouts import open_workshop
from assay.errors import UsageError
from assay.stage.checkout import load_commit


@pytest.fixture
def repository(lab: Path) -> Repository:
    found = Repository(lab)
    found.costs(10, 11)
    return found


def test_a_commit_is_checked_out_beside_the_user_s_tree(repository: Repository) -> None:
    (repository.folder / "figure").write_text("the user is working on this\n")
    with open_workshop(ask(), None) as checkouts:
        variant = checkouts.check_out("base", load_commit(checkouts.repository, "main~1"))
    assert Path(variant.folder or "", "figure").read_text().startswith("cost 10")
    assert variant.commit == repository.git("rev-parse", "main~1")
    assert (repository.folder / "figure").read_text() == "the user is working on this\n"
    assert repository.git("worktree", "list").count("\n") == 0


def test_a_second_comparison_waits_for_the_first(repository: Repository) -> None:
    said: list[str] = []
    order: list[str] = []

    def come_second() -> None:
        with open_workshop(ask(), None, said.append) as checkouts:
            order.append(checkouts.inside)

    second = threading.Thread(target=come_second)
    with open_workshop(ask(), None):
        second.start()
        while not said:
            time.sleep(0.01)
        order.append("first")
    second.join()
    assert order == ["first", "."]
    assert "waiting for another comparison or search, at work in" in said[0]


def test_the_lock_goes_with_its_owner(repository: Repository) -> None:
    with open_workshop(ask(), None) as checkouts:
        folder = checkouts.folder
    with open(f"{folder}/lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_folder_inside_the_repository_stays_inside(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = repository.folder / "sub"
    inner.mkdir()
    (inner / "file").write_text("x")
    sha = repository.commit("cost 12\n")
    monkeypatch.chdir(inner)
    with open_workshop(ask(root=str(repository.folder / "runs")), None) as checkouts:
        assert checkouts.inside == "sub"
        variant = checkouts.check_out("head", load_commit(checkouts.repository, sha))
        assert Path(variant.folder or "", "file").read_text() == "x"
        with pytest.raises(UsageError, match="has no folder sub"):
            checkouts.check_out("head", load_commit(checkouts.repository, "main~1"))


def test_a_build_runs_in_the_tree_and_its_failure_is_said(repository: Repository) -> None:
    with open_workshop(ask(), "cp figure built") as checkouts:
        variant = checkouts.check_out("base", load_commit(checkouts.repository, "main"))
        assert Path(variant.folder or "", "built").read_text().startswith("cost 11")
    with (
        open_workshop(ask(), "false") as checkouts,
        pytest.raises(UsageError, match="cannot be built"),
    ):
        checkouts.check_out("base", load_commit(checkouts.repository, "main"))


def test_a_place_that_cannot_be_made(repository: Repository) -> None:
    (repository.folder / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be made"), open_workshop(ask(root="file"), None):
        pass


def test_outside_a_repository(lab: Path) -> None:
    with pytest.raises(UsageError, match="in no git repository"), open_workshop(ask(), None):
        pass
