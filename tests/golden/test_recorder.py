"""Recordings from a log: which steps, digits and checkpoints they have, in whatever portions the log is read."""

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


def record(text: str, length: int = 3, same_line: bool = True, save: Pattern = SAVE) -> TrainingRecorder:
    recorder = TrainingRecorder(LogReader(STEP, (LOSS,), save), length, same_line)
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


DOCUMENTED = lines("model_0", 0, 1, 2, 3, 4, "model_4:5", 5, 6, 7, 8)
SHORT = "the recording of step 1 ends at step 3, before its 3 steps were complete: the next checkpoint was saved"
EMPTY = "nothing was logged after the checkpoint of step 4: it is left out"


@pytest.mark.parametrize(
    ("text", "starts", "expected", "warnings"),
    [
        (DOCUMENTED, [0, 4], [[0, 1, 2], [5, 6, 7]], []),
        (lines("a", 1, 2, 3, 4, "b", 5, 6, 7, 8), [0, 4], [[1, 2, 3], [5, 6, 7]], []),  # the program counts from 1
        (lines(1, "a", 2, 3, "b", 4, 5, 6, 7), [1, 3], [[2, 3], [4, 5, 6]], [SHORT]),
        (lines(1, "a", 2, 3, 4, "b", 5, 6, 7), [1, 4], [[2, 3, 4], [5, 6, 7]], []),  # it is full at the next save
        (lines(1, "a", 2, 3, 4, "b"), [1, 4], [[2, 3, 4], []], [EMPTY]),
        (lines(1, "a", "b", 2, 3, 4), [1, 1], [[2, 3, 4], [2, 3, 4]], []),  # both recordings get the steps
        (lines(1, "a", "a", 2, 3, 4), [1], [[2, 3, 4]], ["the checkpoint a of step 1 is announced twice"]),
    ],
)
def test_a_recording_begins_at_a_save_line(
    text: str, starts: list[int], expected: list[list[int]], warnings: list[str]
) -> None:
    recorder = record(text)
    assert [recording.start_step for recording in recorder.recordings] == starts
    assert steps(recorder) == expected
    assert recorder.warnings == warnings


def test_steps_count_not_lines_and_the_save_line_may_have_its_own() -> None:
    rare = record(lines("a", 0, 5, 10, 15, 20, 95, "b", 100, 105, 110, 115, 120), length=20)
    assert steps(rare) == [[0, 5, 10, 15], [100, 105, 110, 115]]
    text = "Iteration: 95 Loss: 1\nIteration: 100 Saving model to: a\nIteration: 105 Loss: 1\nIteration: 125 Loss: 2\n"
    same = record(text, 20)
    assert (same.recordings[0].start_step, steps(same)) == (100, [[105]])
    text = "Iteration: 10 Loss: 1\nsaved 12 as x\nIteration: 15 Loss: 1\nIteration: 20 Loss: 1\n"
    named = record(text, save=Pattern("save", r"saved (?P<step>\d+) as (\S+)"), same_line=False)
    (recording,) = named.recordings
    assert (recording.start_step, recording.saved.path, steps(named)) == (12, "x", [[15]])


def test_steps_that_go_back_and_full_recordings_are_reported_and_following_lines_count_in_native_files() -> None:
    for found, problem in (
        ((5, "a", 6, 7, 6, 8), "step 6 is logged after step 7: out of order"),
        ((5, "a", 3, 6, 7, 8), "step 3 is logged after the checkpoint of step 5"),
    ):
        assert record(lines(*found)).recordings[0].values.problems == [problem]
    text = "Iteration: 1\nSaving model to: a\nLoss: 77\nIteration: 2\nLoss: 5\nIteration: 3\nLoss: 6\n"
    assert steps(record(text, same_line=False)) == [[2, 3]], "before the next step a value belongs to neither"
    assert steps(record(text, same_line=True)) == [[]]
    recorder = TrainingRecorder(LogReader(STEP, (LOSS,), SAVE), 2, True)
    fed = [recorder.feed(lines(*part).encode()) for part in ((1, "a", 2, 3), (4,), (5,))]
    assert fed == [False, True, False]


@given(st.lists(st.integers(1, 40), max_size=12))
def test_the_portions_of_a_log_do_not_matter(cuts: list[int]) -> None:
    data = DOCUMENTED.encode()
    whole, parts = record(DOCUMENTED), TrainingRecorder(LogReader(STEP, (LOSS,), SAVE), 3, True)
    at = 0
    for cut in (*cuts, len(data)):
        parts.feed(data[at : at + cut])
        at += cut
    parts.finish()
    assert [(r.start_step, r.values.found) for r in parts.recordings] == [
        (r.start_step, r.values.found) for r in whole.recordings
    ]


def read(text: str, pattern: Pattern = LOSS, named_groups: bool = False) -> list[tuple[str, str, str]]:
    reader = LogReader(STEP, (pattern,), named_groups=named_groups)
    found = [value for line in reader.feed(f"Iteration: 1 {text}\n".encode()) for value in line.values]
    for each in found:
        assert each.value is not None
        assert each.value == float(each.text) or math.isnan(each.value)
    return [(each.metric, each.label, each.text) for each in found]


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
        *((f"Loss: {text} Acc: 1", text) for text in ("nan", "NaN", "-nan", "inf", "-inf", "Infinity")),
    ],
)
def test_numbers_are_read_whole_though_the_pattern_does_not_expect_it(text: str, found: str) -> None:
    assert read(text) == [("loss", "", found)]


def test_words_signs_and_steps() -> None:
    assert read("Loss: nanometre") == []
    assert read("Loss: -0.5", Pattern("loss", r"Loss: -?([\d.]+)")) == [("loss", "", "-0.5")]
    assert read("Loss: a-0.5", Pattern("loss", r"Loss: a-([\d.]+)")) == [("loss", "", "0.5")]
    known = {"5": 5, "0005": 5, "5.0": 5, "1e3": 1000, "9007199254740993": 9007199254740993}
    unknown = dict.fromkeys(("5.5", "x", "nan", "", None, "inf"))
    assert {text: parse_step(text) for text in (*known, *unknown)} == known | unknown


@pytest.mark.parametrize(
    ("regex", "labels", "expected"),
    [
        (r"L: (\S+) (\S+)", ("MLM", "NSP"), [("x", "MLM", "1.5"), ("x", "NSP", "2.5")]),
        (r"L: (\S+) (\S+)", (), [("x", "0", "1.5"), ("x", "1", "2.5")]),
        (r"L: (\S+) (\S+)", ("a",), [("x", "0", "1.5"), ("x", "1", "2.5")]),
        (r"L: (\S+) \S+", (), [("x", "", "1.5")]),
        (r"L: (\S+) \S+", ("a",), [("x", "a", "1.5")]),
        (r"L: (\S+) \S+", ("0",), [("x", "", "1.5")]),
        (r"L: (\S+) \S+", ("a", "b"), [("x", "", "1.5")]),
    ],
)
def test_labels_name_the_groups_and_those_that_do_not_fit_become_numbers(
    regex: str, labels: tuple[str, ...], expected: list[tuple[str, str, str]]
) -> None:
    assert read("L: 1.5 2.5", Pattern("x", regex, labels)) == expected
    named = Pattern("x", r"L: (?P<loss>\S+) (?P<acc>\S+)")
    assert read("L: 1.5 2.5", named, named_groups=True) == [("loss", "", "1.5"), ("acc", "", "2.5")]


@pytest.mark.parametrize(
    ("data", "values", "problems"),
    [
        (b"Iteration: 3 Loss: abc\n", (), ["loss at step 3 is 'abc', not a number"]),
        (
            b"".join(b"Iteration: %d Loss: x\n" % step for step in range(20)),
            (),
            ["loss at step 0 is 'x', at step 1 is 'x', at step 2 is 'x', not a number (20 such values)"],
        ),
        (b"Iteration: five Loss: 1\n", (), ["the step 'five' is not a whole number"]),
        (b"Iteration: 1 Loss: 2.0\nIteration: 1 Loss: 2.0\n", (2.0,), []),
        (
            b"Iteration: 1 Loss: 2.0\nIteration: 1 Loss: 2.1\n",
            (2.0,),
            ["loss at step 1 is logged twice: 2.0 and 2.1"],
        ),
        (b"Iteration: 1 Loss: 1\rIteration: 2 Loss: 2\r\nIteration: 3 Loss: 3", (1.0, 2.0, 3.0), []),
        (b"\xff\xfe\x00 Iteration: 1 Loss: 1 \xff\n", (1.0,), []),
    ],
)
def test_what_a_log_may_hold(data: bytes, values: tuple[float, ...], problems: list[str]) -> None:
    step, loss = Pattern("step", r"Iteration: (\S+)"), Pattern("loss", r"Loss: (\S+)")
    recorder = RunRecorder(LogReader(step, (loss,)), True)
    recorder.feed(data)
    recorder.finish()
    assert recorder.values.cut("loss", "").values == values
    assert recorder.values.problems == problems


def test_a_pattern_that_reads_a_part_of_a_number_or_a_step_with_commas_is_reported() -> None:
    """Both 1,234.5 and 1,999.5 would be read as 1, and with a decimal comma each loss below 1 as 0."""

    def find(text: str, regex: str) -> list[float | None]:
        reader = LogReader(STEP, (Pattern("loss", regex),))
        return [value.value for line in reader.feed(f"Iteration: 1 {text}\n".encode()) for value in line.values]

    assert find("Loss: 1,234.5", r"Loss: ([\d.]+)") == [None]
    assert find("Loss: 12,345,678 x", r"Loss: (\d+)") == [None]
    for text in ("0,17176508", "-0,17", "12,3456", "1,5e-05", "2,35"):
        for rest in (" x", ", x", "."):
            assert find(f"Loss: {text}{rest}", r"Loss: ([-+\d.]+)") == [None]
            assert find(f"Loss: {text}{rest}", r"Loss: ([-+\d.]+).*") == [None]
    assert find("Loss: 12,345", r"Loss: (\d+),(\d+)") == [12.0, 345.0]  # the pattern declares two numbers
    assert (
        find("Loss: 1,2,300", r"Loss: (\d+)")
        == find("7,1,250", r"7,(\d+)")
        == find("Loss: 1,0.2500", r"Loss: (\d+)")
        == [1.0]
    )  # columns
    recorder = RunRecorder(LogReader(STEP, (LOSS,)), True)
    recorder.feed(b"Iteration: 2 Loss: 1\nIteration: 3,000 Loss: 2\n")
    assert recorder.values.problems == ["the step '3,000' is not a whole number"]
    assert recorder.values.steps == {2}


def test_a_line_without_end_is_cut() -> None:
    recorder = RunRecorder(LogReader(STEP, (LOSS,)), True)
    for _ in range(3):
        recorder.feed(b"x" * (1 << 19))
    recorder.feed(b"\nIteration: 1 Loss: 1")
    assert not recorder.values.found, "a last line without an end is read at the end"
    recorder.finish()
    assert recorder.values.cut("loss", "").values == (1.0,)
