"""Runs for TensorBoard: what its HParams tab can hold, and what `assay sum --tensorboard` writes."""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.finished_study import GOOD, Bench, build_bench
from tests.observe.points import build_points

from assay.errors import MissingExtraError
from assay.exchange.export import build_hparams, write_board_run, write_hparams_events
from assay.follow.locations import StudyLocation
from assay.observe.events import parse_events_columns
from assay.reading.summary import SummaryOptions
from assay.record.index.base import Series
from assay.record.index.sqlite import SqliteIndex
from assay.record.index.stored import Index


@pytest.fixture(autouse=True)
def known_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRC32C_SW_MODE", "auto")  # tensorboardX sets it on import, and would leave it behind
    for name in ("torch", "boto3", "google.cloud.storage"):  # it imports them where they are, for two seconds
        if name not in sys.modules:
            monkeypatch.setitem(sys.modules, name, None)


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


# ---------------------------------------------------------------- `assay sum --tensorboard`


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return build_bench(tmp_path_factory.mktemp("bench"))


@pytest.fixture
def index() -> Iterator[Index]:
    with SqliteIndex(":memory:") as index:
        yield index


def write(index: Index, bench: Bench, folder: Path) -> int:
    return write_hparams_events(index, [StudyLocation(str(bench.root), "fit")], str(folder), SummaryOptions())


def test_tensorboard_and_our_own_reader_find_what_was_written(index: Index, bench: Bench, tmp_path: Path) -> None:
    """Written again, it is replaced; files of others stay."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import plugin_data_pb2

    assert write(index, bench, tmp_path) == 4
    (tmp_path / GOOD / "notes.txt").write_text("mine")
    write(index, bench, tmp_path)
    file, notes = sorted((tmp_path / GOOD).iterdir())
    assert notes.name == "notes.txt"
    assert not list(tmp_path.glob(".tmp-*"))
    points = build_points(parse_events_columns(file.read_bytes(), {})[0])
    loss = [(point.step, round(point.value, 4)) for point in points if point.metric == "loss"]
    board = EventAccumulator(str(tmp_path / GOOD))
    board.Reload()
    assert loss == [(event.step, round(event.value, 4)) for event in board.Scalars("loss")]
    assert loss == [(1, 3.7), (2, 2.7), (3, 1.7)]
    assert [round(event.value, 4) for event in board.Scalars("test.acc")] == [0.7]
    content = board.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    start = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info
    assert {name: value.number_value for name, value in start.hparams.items()} == {"lr": 0.1, "n": 7}
    content = board.summary_metadata["_hparams_/experiment"].plugin_data.content
    experiment = plugin_data_pb2.HParamsPluginData.FromString(content).experiment
    assert {metric.name.tag for metric in experiment.metric_infos} == {"loss", "test.acc"}


def test_without_tensorboardX(index: Index, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(MissingExtraError, match="optional part") as caught:
        write(index, bench, tmp_path)
    assert caught.value.hint == "install it: pip install 'assay[tensorboard]'"
