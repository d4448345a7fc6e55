"""The judgement of a person on a change is kept and shown."""

from __future__ import annotations

import getpass
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.bench_samples import history

from assay.bench.flow import history as histories
from assay.bench.flow.history import triage_change
from assay.bench.records import load_triage
from assay.bench.values.execution import BenchExecution
from assay.errors import NotFoundError, UsageError

STEP = [10.0 + 0.01 * (n % 3) for n in range(20)] + [12.0 + 0.01 * (n % 3) for n in range(20)]


@pytest.fixture
def place(lab: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A history with one change, at e0020."""
    given = history(STEP)

    def load(*_: object) -> Sequence[BenchExecution]:
        return given

    monkeypatch.setattr(histories, "load_executions", load)
    return lab / "runs" / "bench"


def say(change: str, judgement: str = "ack", note: str = "", **fields: Any) -> str:
    return triage_change("wall_time", "m.C.f", change, judgement, note, "runs", **fields)


@pytest.mark.parametrize("change", ["last", "e0020", "14" + "0" * 38, "1300"])
def test_by_its_execution_a_commit_or_as_the_last(place: Path, change: str) -> None:
    """e0020 is at commit 14000…, the one before at 13000…."""
    assert say(change, "wontfix", "meant") == "m.C.f wall_time: the change at e0020 is wontfix"
    (word,) = load_triage(str(place))
    assert (word.execution_id, word.until, word.judgement, word.note) == ("e0020", "e0039", "wontfix", "meant")
    assert word.at > 1e9


def test_a_change_that_is_not_there(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotFoundError, match=r"(?s)e0021.*changes: e0020, or last"):
        say("e0021")
    with pytest.raises(NotFoundError):
        say("14")  # too short for a commit
    monkeypatch.setattr(histories, "load_executions", lambda *_: history([5.0] * 20))
    with pytest.raises(UsageError, match="has no change"):
        say("last")
    assert load_triage(str(place)) == []


def test_an_invalid_change_can_be_taken_back_although_it_is_not_seen_any_more(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    say("last", "invalid")
    with pytest.raises(UsageError, match="has no change"):
        say("last")
    assert say("e0020", "open").endswith("is open")
    assert say("last", "open") == "m.C.f wall_time: the change at e0020 is open"  # it is seen again
    say("last", "invalid")
    monkeypatch.setattr(histories, "load_executions", lambda *_: history([5.0]))  # what is left is no history
    assert triage_change("wall_time", "C.f", "last", "open", "", "runs").endswith("is open")
    found = [(word.execution_id, word.judgement) for word in load_triage(str(place))]
    assert found == [("e0020", word) for word in ("invalid", "open", "open", "invalid", "open")]


def test_a_user_without_a_name(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container the user's number may have no entry."""

    def fail() -> str:
        raise KeyError("uid not found")

    monkeypatch.setattr(getpass, "getuser", fail)
    say("last")
    assert load_triage(str(place))[0].who == ""
