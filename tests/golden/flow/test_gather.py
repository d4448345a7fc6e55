"""From recordings to segments: values from the log and from files, and the checkpoint that a save line means."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.golden_training import Lab

from assay.golden.config import load_golden_file
from assay.golden.flow.gather import SegmentBuilder
from assay.golden.flow.segments import GoldenContext, build_contexts
from assay.golden.recorder import Saved, SegmentRecording, Values
from assay.golden.values import Track
from assay.show.console import CollectingConsole


@pytest.fixture
def context(tmp_path: Path) -> GoldenContext:
    lab = Lab(tmp_path)
    lab.store.mkdir()
    return build_contexts(load_golden_file(str(lab.file)), lab.options())[0]


def values(metric: str = "loss", *steps: int) -> Values:
    return Values({(metric, ""): {step: (float(step), str(step)) for step in steps}})


def recording(path: str | Path, *, rest: str = "", found: Values | None = None) -> SegmentRecording:
    return SegmentRecording(Saved(str(path), rest, 10), 10, 4, 14, values("loss", 11, 12) if found is None else found)


def save(folder: str | Path, name: str = "model_10.bin") -> Path:
    path = Path(folder, name)
    path.write_text("weights")
    return path


def test_a_segment_has_its_values_and_its_checkpoint(context: GoldenContext) -> None:
    console = CollectingConsole()
    segment = SegmentBuilder(context, console).build(recording(save(context.store)), Values())
    assert segment is not None
    assert (segment.start_step, segment.checkpoint) == (10, "model_10.bin")
    assert segment.tracks == {"loss": {"": (Track((11, 12), (11.0, 12.0), ("11", "12")),)}}
    assert segment.checkpoint_sha
    assert console.lines == []
    path = save(context.folder)  # a checkpoint elsewhere is kept by its whole path
    segment = SegmentBuilder(context, console).build(recording(path), Values())
    assert segment is not None
    assert segment.checkpoint == str(path)
    assert len(console.lines) == 1
    assert "is outside the store" in console.lines[0]


def test_without_values_or_checkpoint_or_order_there_is_no_segment(context: GoldenContext) -> None:
    builder, path = SegmentBuilder(context, pytest.fail), save(context.store)
    assert builder.build(recording(path, found=Values()), Values()) is None
    assert builder.build(recording(path.with_name("gone.bin")), Values()) is None
    assert builder.build(recording(path, found=Values({("loss", ""): {}}, ["out of order"])), Values()) is None


def test_values_in_files_of_the_same_steps_are_taken_too(context: GoldenContext) -> None:
    files = values("loss", 10, 11, 14, 15)
    segment = SegmentBuilder(context, pytest.fail).build(recording(save(context.store), found=Values()), files)
    assert segment is not None
    assert segment.tracks["loss"][""][0].steps == (11, 14)
    other = values("unasked", 11)
    assert SegmentBuilder(context, pytest.fail).build(recording(save(context.store), found=Values()), other) is None


def test_a_pattern_that_cuts_the_path_short_is_helped_out(context: GoldenContext) -> None:
    for file, named, rest in (
        ("m.bin", "m.bin", ""),
        ("m.bin", "m", ".bin and more"),
        ("m.bin", "m.bin", " done"),
        ("m.bin", "m.bin", "."),
        ("my model.bin", "my", " model.bin"),
    ):
        path = save(context.store, file)
        found = SegmentBuilder(context, pytest.fail).find_saved(recording(Path(context.store, named), rest=rest))
        assert found == str(path)
