"""What is kept of a study in memory, and for how long."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from assay.record.index.base import Table
from assay.study.api import StudyLocation
from assay.web import snapshots
from assay.web.snapshots import Snapshot, Snapshots


def test_answers_are_kept_for_the_next_and_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "_MOST_BYTES", 10)
    held = Snapshots((str(tmp_path),))
    snapshot = Snapshot("s", StudyLocation(str(tmp_path), "s"), Table([], {}), 1)
    assert held.answer(snapshot, "a", lambda: b"first") == held.answer(snapshot, "a", lambda: b"other") == b"first"
    later = dataclasses.replace(snapshot, version=2)
    assert held.answer(later, "a", lambda: b"again") == b"again"
    held.answer(later, "b", lambda: b"longer than all")
    assert held.answer(later, "a", lambda: b"new") == b"new"
