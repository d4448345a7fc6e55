"""What TensorBoard's HParams tab can hold."""

from __future__ import annotations

import math
from array import array
from pathlib import Path

import pytest
from tests.observe.points import build_points

from assay.exchange.tensorboard import build_hparams, write_board_run
from assay.observe.events import parse_events_columns
from assay.record.index.base import Series


@pytest.fixture(autouse=True)
def known_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRC32C_SW_MODE", "auto")  # tensorboardX sets it on import, and would leave it behind


def test_values_become_numbers_words_or_truth() -> None:
    params = {"a": 1, "b": 0.5, "c": True, "d": "x", "e": None, "f": [1, 2], "g": {"k": 1}}
    assert build_hparams(params) == {"a": 1, "b": 0.5, "c": True, "d": "x", "e": "none", "f": "[1, 2]", "g": "{'k': 1}"}


def test_points_without_step_or_time(tmp_path: Path) -> None:
    points = Series(array("d", [math.nan, math.nan]), array("d", [3.0, 2.0]), array("d", [math.nan, 100.0]))
    write_board_run(str(tmp_path / "run"), {}, {"loss": 2.0}, [("loss", points)])
    (file,) = (tmp_path / "run").iterdir()
    found = build_points(parse_events_columns(file.read_bytes(), {})[0])
    assert [(point.metric, point.step, point.value) for point in found] == [("loss", 1, 3.0), ("loss", 2, 2.0)]
    assert found[1].time == 100.0
