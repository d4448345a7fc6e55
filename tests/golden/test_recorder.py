"""Recordings from a log: which steps, which digits, which checkpoint; whatever portions the log comes in."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.golden.recorder import LogReader, RunRecorder, TrainingRecorder, parse_step
from assay.values.study import Pattern

STEP = Pattern("step_num", r"Iteration:\s+(\d+)")
SAVE = Pattern("model_save", r"Saving model to: ([^\s+]+)")
LOSS = Pattern("loss", r"Loss: ([\d\.]+)")
BOTH = Pattern("both", r"Both: (\S+) (\S+)", ("MLM", "NSP"))


def record(text: str, length: int = 3, same_line: bool = True) -> TrainingRecorder:
    recorder = TrainingRecorder(LogReader(STEP, (LOSS,), SAVE), length, same_line)
    recorder.feed(text.encode())
    recorder.finish()
    return recorder


def steps(recorder: TrainingRecorder) -> list[list[int]]:
    return [sorted(recording.values.steps_of("loss")) for recording in recorder.recordings]


def lines(*found: int | str) -> str:
    return "".join(
        f"Saving model to: {item}\n" if isinstance(item, str) else f"Iteration: {item} Loss: {item}.5\n"
        for item in found
    )


# ---------------------------------------------------------------- which steps


def test_the_documents_example() -> None:
    recorder = record(lines("model_0", 0, 1, 2, 3, 4, "model_4:5", 5, 6, 7, 8))
    assert steps(recorder) == [[0, 1, 2], [5, 6, 7]]
    assert [recording.start_step for recording in recorder.recordings] == [0, 4]
    assert not recorder.warnings


def test_steps_count_not_lines() -> None:
    recorder = record(lines("a", 0, 5, 10, 15, 20, 95, "b", 100, 105, 110, 115, 120), length=20)
    assert steps(recorder) == [[0, 5, 10, 15], [100, 105, 110, 115]]


def test_a_program_that_counts_from_1() -> None:
    assert steps(record(lines("a", 1, 2, 3, 4, "b", 5, 6, 7, 8))) == [[1, 2, 3], [5, 6, 7]]


def test_a_save_line_ends_an_unfinished_recording_with_a_warning() -> None:
    recorder = record(lines(1, "a", 2, 3, "b", 4, 5, 6, 7))
    assert steps(recorder) == [[2, 3], [4, 5, 6]]
    assert recorder.warnings == [
        "the recording of step 1 ends at step 3, before its 3 steps were complete: the next checkpoint was saved"
    ]


def test_a_recording_that_is_full_at_the_next_save_needs_no_warning() -> None:
    recorder = record(lines(1, "a", 2, 3, 4, "b", 5, 6, 7))
    assert steps(recorder) == [[2, 3, 4], [5, 6, 7]]
    assert not recorder.warnings


def test_the_last_checkpoint_of_a_training_is_left_out_with_a_warning() -> None:
    recorder = record(lines(1, "a", 2, 3, 4, "b"))
    assert recorder.recordings[-1].is_empty
    assert recorder.warnings == ["nothing was logged after the checkpoint of step 4: it is left out"]


def test_two_checkpoints_of_one_step_are_both_followed() -> None:
    recorder = record(lines(1, "a", "b", 2, 3, 4))
    assert steps(recorder) == [[2, 3, 4], [2, 3, 4]]
    assert [recording.saved.path for recording in recorder.recordings] == ["a", "b"]


def test_a_checkpoint_that_is_announced_twice_is_one() -> None:
    recorder = record(lines(1, "a", "a", 2, 3, 4))
    assert len(recorder.recordings) == 1
    assert recorder.warnings == ["the checkpoint a of step 1 is announced twice"]


def test_a_step_on_the_save_line_is_its_step() -> None:
    recorder = record(
        "Iteration: 95 Loss: 1.0\nIteration: 100 Saving model to: a\nIteration: 105 Loss: 1\nIteration: 125 Loss: 2\n",
        20,
    )
    assert recorder.recordings[0].start_step == 100
    assert steps(recorder) == [[105]]


def test_a_named_group_of_the_save_pattern_is_its_step() -> None:
    save = Pattern("save", r"saved (?P<step>\d+) as (\S+)")
    recorder = TrainingRecorder(LogReader(STEP, (LOSS,), save), 3, False)
    recorder.feed(b"Iteration: 10 Loss: 1\nsaved 12 as x\nIteration: 15 Loss: 1\nIteration: 20 Loss: 1\n")
    recorder.finish()
    (recording,) = recorder.recordings
    assert (recording.start_step, recording.saved.path) == (12, "x")
    assert steps(recorder) == [[15]]


def test_steps_that_go_back_are_reported() -> None:
    recorder = record(lines(5, "a", 6, 7, 6, 8))
    assert recorder.recordings[0].values.problems == ["step 6 is logged after step 7: out of order"]
    recorder = record(lines(5, "a", 3, 6, 7, 8))
    assert recorder.recordings[0].values.problems == ["step 3 is logged after the checkpoint of step 5"]


def test_a_value_between_the_save_and_the_next_step_belongs_to_neither() -> None:
    text = "Iteration: 1 Loss: 1\nSaving model to: a\nLoss: 77\nIteration: 2 Loss: 2\n"
    assert steps(record(text, same_line=False)) == [[2]]


def test_metrics_on_following_lines_count_in_native_files_only() -> None:
    text = "Iteration: 1\nSaving model to: a\nIteration: 2\nLoss: 5\nIteration: 3\nLoss: 6\n"
    assert steps(record(text, same_line=False)) == [[2, 3]]
    assert steps(record(text, same_line=True)) == [[]]


def test_a_filled_recording_is_reported_at_once() -> None:
    recorder = TrainingRecorder(LogReader(STEP, (LOSS,), SAVE), 2, True)
    assert not recorder.feed(lines(1, "a", 2, 3).encode())
    assert recorder.feed(lines(4).encode())
    assert not recorder.feed(lines(5).encode())


@given(st.lists(st.integers(1, 40), max_size=12))
def test_the_portions_of_a_log_do_not_matter(cuts: list[int]) -> None:
    data = lines("model_0", 0, 1, 2, 3, 4, "model_4:5", 5, 6, 7, 8).encode()
    whole, parts = record(data.decode()), TrainingRecorder(LogReader(STEP, (LOSS,), SAVE), 3, True)
    at = 0
    for cut in cuts:
        parts.feed(data[at : at + cut])
        at += cut
    parts.feed(data[at:])
    parts.finish()
    assert [(r.start_step, r.values.found) for r in parts.recordings] == [
        (r.start_step, r.values.found) for r in whole.recordings
    ]


# ---------------------------------------------------------------- which digits


def read_loss(text: str, pattern: Pattern = LOSS) -> list[tuple[str, float | None]]:
    reader = LogReader(STEP, (pattern,))
    return [
        (value.text, value.value) for line in reader.feed(f"Iteration: 1 {text}\n".encode()) for value in line.values
    ]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Loss: 9.742", "9.742"),
        ("Loss: 9.0e-04", "9.0e-04"),
        ("Loss: 9.0e+03 x", "9.0e+03"),
        ("Loss: 9.0E3,", "9.0E3"),
        ("Loss: 5. next", "5."),
        ("Loss: 5 e 3", "5"),
        ("Loss: 0.12345678901234567890", "0.12345678901234567890"),
    ],
)
def test_numbers_are_read_whole(text: str, found: str) -> None:
    assert read_loss(text) == [(found, float(found))]


@pytest.mark.parametrize("text", ["nan", "NaN", "-nan", "inf", "-inf", "Infinity"])
def test_what_is_not_finite_is_seen_though_the_pattern_does_not_expect_it(text: str) -> None:
    ((found, value),) = read_loss(f"Loss: {text} Acc: 1")
    assert found == text
    assert value is not None
    assert not math.isfinite(value)


def test_a_word_that_begins_like_nan_is_not_one() -> None:
    assert read_loss("Loss: nanometre") == []


def test_a_sign_before_the_group_counts() -> None:
    assert read_loss("Loss: -0.5", Pattern("loss", r"Loss: -?([\d.]+)")) == [("-0.5", -0.5)]
    assert read_loss("Loss: a-0.5", Pattern("loss", r"Loss: a-([\d.]+)")) == [("0.5", 0.5)]


def test_what_is_no_number_is_a_problem() -> None:
    recorder = RunRecorder(LogReader(STEP, (Pattern("loss", r"Loss: (\S+)"),)), True)
    recorder.feed(b"Iteration: 3 Loss: abc\n")
    assert recorder.values.problems == ["loss at step 3 is 'abc', not a number"]
    assert not recorder.values.found


# ---------------------------------------------------------------- labels and steps


def test_labels_name_the_groups() -> None:
    reader = LogReader(STEP, (BOTH,))
    (line,) = reader.feed(b"Iteration: 1 Both: 1.5 2.5\n")
    assert [(value.metric, value.label, value.text) for value in line.values] == [
        ("both", "MLM", "1.5"),
        ("both", "NSP", "2.5"),
    ]


@pytest.mark.parametrize(
    ("regex", "labels", "expected"),
    [
        (r"L: (\S+) (\S+)", (), ["0", "1"]),
        (r"L: (\S+) (\S+)", ("a",), ["0", "1"]),
        (r"L: (\S+) \S+", (), [""]),
        (r"L: (\S+) \S+", ("a",), ["a"]),
        (r"L: (\S+) \S+", ("0",), [""]),
        (r"L: (\S+) \S+", ("a", "b"), [""]),
    ],
)
def test_labels_that_do_not_fit_become_numbers(regex: str, labels: tuple[str, ...], expected: list[str]) -> None:
    (line,) = LogReader(STEP, (Pattern("x", regex, labels),)).feed(b"L: 1 2\n")
    assert [value.label for value in line.values] == expected


def test_named_groups_are_metrics_in_native_files() -> None:
    pattern = Pattern("x", r"(?P<loss>\d+)/(?P<acc>\d+)")
    (line,) = LogReader(STEP, (pattern,), named_groups=True).feed(b"5/6\n")
    assert [(value.metric, value.label, value.text) for value in line.values] == [("loss", "", "5"), ("acc", "", "6")]


@pytest.mark.parametrize(
    ("text", "step"),
    [
        ("5", 5),
        ("0005", 5),
        ("5.0", 5),
        ("1e3", 1000),
        ("5.5", None),
        ("x", None),
        ("nan", None),
        ("", None),
        (None, None),
        ("inf", None),
    ],
)
def test_steps(text: str | None, step: int | None) -> None:
    assert parse_step(text) == step


def test_a_large_step_keeps_its_digits() -> None:
    assert parse_step("9007199254740993") == 9007199254740993


def test_a_step_that_is_no_number_is_a_problem() -> None:
    recorder = RunRecorder(LogReader(Pattern("s", r"Iteration: (\S+)"), (LOSS,)), True)
    recorder.feed(b"Iteration: five Loss: 1\n")
    assert recorder.values.problems == ["the step 'five' is not a whole number"]


def test_the_same_value_twice_is_no_problem_another_one_is() -> None:
    recorder = RunRecorder(LogReader(STEP, (LOSS,)), True)
    recorder.feed(b"Iteration: 1 Loss: 2.0\nIteration: 1 Loss: 2.0\n")
    assert not recorder.values.problems
    recorder.feed(b"Iteration: 1 Loss: 2.1\n")
    assert recorder.values.problems == ["loss at step 1 is logged twice: 2.0 and 2.1"]
    assert recorder.values.tracks("loss")[""].values == (2.0,)


def test_carriage_returns_end_lines_and_a_last_line_needs_no_end() -> None:
    recorder = RunRecorder(LogReader(STEP, (LOSS,)), True)
    recorder.feed(b"Iteration: 1 Loss: 1\rIteration: 2 Loss: 2\r\nIteration: 3 Loss: 3")
    assert recorder.values.tracks("loss")[""].steps == (1, 2)
    recorder.finish()
    assert recorder.values.tracks("loss")[""].steps == (1, 2, 3)


def test_bytes_that_are_no_text_do_no_harm() -> None:
    recorder = RunRecorder(LogReader(STEP, (LOSS,)), True)
    recorder.feed(b"\xff\xfe\x00 Iteration: 1 Loss: 1 \xff\n")
    assert recorder.values.tracks("loss")[""].values == (1.0,)


def test_a_line_without_end_is_cut() -> None:
    recorder = RunRecorder(LogReader(STEP, (LOSS,)), True)
    for _ in range(3):
        recorder.feed(b"x" * (1 << 19))
    recorder.feed(b"\nIteration: 1 Loss: 1\n")
    assert recorder.values.tracks("loss")[""].values == (1.0,)
