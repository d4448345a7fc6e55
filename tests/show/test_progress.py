from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import termios
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.show import formatting
from assay.show.progress import (
    BestRow,
    EndedRow,
    LiveProgress,
    PlainProgress,
    Progress,
    ProgressView,
    RunningRow,
    choose_progress,
    estimate_eta,
    render_ended,
    render_frame,
    render_heartbeat,
)


def view(**changes):
    running = tuple(RunningRow(f"run-{i}", str(i), 61.0 * i, 1, {"loss": 0.5 / (i + 1)}, 100 * i) for i in range(2))
    base = {"study": "norm", "total": 10, "done": 4, "failed": 1, "running": running, "queued": 3}
    return ProgressView(**{**base, "eta_s": 125.0, "elapsed_s": 62.0, **changes})


def text_of(frame):
    return ["".join(text for text, _ in line) for line in frame]


class FakeClock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.mark.parametrize(
    ("durations", "running", "queued", "slots", "eta"),
    [
        ([], [], 0, 2, 0.0),  # nothing left
        ([], [5.0], 3, 2, None),  # nothing known yet
        ([10.0], [], 4, 2, 20.0),  # two rounds
        ([10.0], [], 5, 2, 30.0),  # an odd one needs a round of its own
        ([10.0], [4.0], 0, 2, 6.0),  # the rest of what runs
        ([10.0], [4.0, 8.0], 1, 2, 12.0),  # the freed slot takes it
        ([10.0], [4.0, 8.0], 0, 1, 6.0),  # more runs than slots: adopted ones
        ([10.0], [10.0], 2, 1, 20.0),
        ([10.0], [], 1, 0, 10.0),  # a farm without known slots
        ([10.0, 30.0], [25.0], 0, 1, 5.0),  # outlived the mean: like those that took longer
        ([10.0, 10.0], [20.0], 0, 1, 2.0),  # outlived all: a little more
    ],
)
def test_eta(durations, running, queued, slots, eta):
    assert estimate_eta(durations, running, queued, slots) == pytest.approx(eta)


@given(
    st.lists(st.floats(0.1, 100), min_size=1),
    st.lists(st.floats(0, 100), max_size=4),
    st.integers(0, 2000),
    st.integers(1, 8),
)
def test_eta_lies_between_perfect_packing_and_one_slot(durations, running, queued, slots):
    eta = estimate_eta(durations, running, queued, slots)
    mean = sum(durations) / len(durations)
    width = max(slots, len(running))
    assert eta >= queued * mean / width - 1e-6
    alone = estimate_eta(durations, [], queued, 1) + sum(estimate_eta(durations, [each], 0, 1) for each in running)
    assert eta <= alone + mean + 1e-6


@given(st.integers(0, 300), st.integers(1, 7), st.integers(0, 5))
def test_eta_by_rounds_is_the_plain_simulation(queued, slots, busy):
    import heapq

    running = [float(elapsed) for elapsed in range(min(busy, slots))]
    ends = [10.0 - elapsed for elapsed in running] + [0.0] * (slots - len(running))
    for _ in range(queued):
        heapq.heapify(ends)
        heapq.heapreplace(ends, ends[0] + 10.0)
    if queued or running:
        assert estimate_eta([10.0], running, queued, slots) == pytest.approx(max(ends))


@pytest.mark.parametrize("width", [40, 79, 139])
@pytest.mark.parametrize("height", [8, 24, 60])
def test_a_frame_fits_its_terminal(width, height):
    rows = tuple(
        RunningRow(
            f"norm_batch-lr_0.{i}-early-stop_T-seed_{i}",
            str(i),
            i * 60.0,
            1 + i % 2,
            {"loss": 0.1, "test.accuracy": 0.9},
            i,
        )
        for i in range(100)
    )
    lines = text_of(
        render_frame(view(running=rows, total=200, messages=("waiting for GPU 3 " * 10,) * 9), width, height)
    )
    assert len(lines) <= height
    assert max(map(formatting.display_width, lines)) <= width
    assert any("more running" in line for line in lines)


def test_a_frame_says_what_matters():
    lines = text_of(render_frame(view(), 79, 24))
    assert lines[0].startswith("norm  ━")
    assert lines[0].endswith("5/10  50%  about 2m 5s left")
    assert lines[1] == "4 done  1 failed  2 running  3 queued  1:02"
    counts = render_frame(view(failed=4, timed_out=2, lost=1, total=13), 79, 24)[1]
    assert "".join(text for text, _ in counts).startswith("4 done  1 failed  2 timed out  1 lost  2 running")
    assert lines[2].split() == ["run", "slot", "time", "step", "loss"]
    assert lines[3].split() == ["run-0", "0", "0:00", "0", "0.50"]
    assert lines[4].split() == ["run-1", "1", "1:01", "100", "0.25"]


def test_a_second_attempt_is_visible():
    lines = text_of(render_frame(view(running=(RunningRow("r", "0", 5.0, 3),)), 79, 24))
    assert "attempt" in lines[2]
    assert lines[3].split() == ["r", "0", "3", "0:05"]


def test_names_give_way_before_numbers_do():
    metrics = {f"metric_{i}": i / 7 for i in range(8)}
    lines = text_of(render_frame(view(running=(RunningRow("x" * 200, "0", 1.0, 1, metrics, 12345),)), 79, 24))
    assert "12345" in lines[3]
    assert "…" in lines[3]
    assert "metric_0" in lines[2]
    assert "metric_7" not in lines[2]


def test_pruned_runs_are_finished_and_no_failures():
    seen = view(total=10, done=4, pruned=3, failed=0, stopped=0, queued=3)
    assert seen.finished == 7
    text = render_heartbeat(seen)
    assert "7/10 finished" in text
    assert "3 pruned" in text
    row = EndedRow("lr=1", "pruned", 2.0, "asha rung 8, 41st of 60")
    assert render_ended(row) == "pruned   lr=1 after 2.0s: asha rung 8, 41st of 60"


def test_the_bar_shows_each_share():
    (bar, *_) = render_frame(view(total=1000, done=500, failed=1, stopped=0, queued=497), 79, 24)
    cells = {style: len(text) for text, style in bar[2:8]}
    assert cells["red"] == 1  # one failure among a thousand is seen
    assert cells["green"] == pytest.approx(sum(cells.values()) / 2, abs=1)


def test_plain_frames_are_ascii_and_empty_studies_draw():
    "".join(text_of(render_frame(view(study="x" * 90), 60, 20, plain=True))).encode("ascii")
    assert text_of(render_frame(ProgressView("s", 0), 60, 20))[1] == "0 done  0 running  0:00"


def test_kept_runs_are_told_apart():
    assert "4 done (3 earlier)" in text_of(render_frame(view(kept=3), 79, 24))[1]


def test_one_line_per_event():
    stream, clock = io.StringIO(), FakeClock()
    progress = PlainProgress(stream, clock=clock)
    progress.update(view())
    progress.update(view())  # nothing new, nothing printed
    ended = (
        EndedRow("run-0", "done", 62.0, metrics={"loss": 0.125}),
        EndedRow("run-1", "failed", 3.0, "train: exit code 1"),
    )
    progress.update(view(running=(RunningRow("run-1", "1", 0.0, 2),), ended=ended))
    progress.message("two\nlines")
    assert stream.getvalue().splitlines() == [
        *("started  run-0  slot 0", "started  run-1  slot 1", "finished run-0 after 1m 2s  loss 0.125"),
        *("failed   run-1 after 3.0s: train: exit code 1", "started  run-1  slot 1  attempt 2", "two", "lines"),
    ]


def test_a_heartbeat_every_half_minute():
    stream, clock = io.StringIO(), FakeClock()
    progress = PlainProgress(stream, clock=clock)
    progress.update(view(running=()))
    assert stream.getvalue() == ""
    clock.now = 31.0
    progress.update(view(running=()))
    progress.update(view(running=()))
    assert stream.getvalue() == render_heartbeat(view(running=())) + "\n"
    clock.now = 62.0
    progress.update(view(running=()))
    assert len(stream.getvalue().splitlines()) == 2


def test_heartbeat_has_counts_and_eta():
    assert render_heartbeat(view()) == (
        "norm: 5/10 finished: 4 done, 1 failed, 2 running, 3 queued, 1:02, about 2m 5s left"
    )


def test_finish_says_the_end_once():
    stream = io.StringIO()
    progress = PlainProgress(stream, clock=FakeClock())
    last = view(running=(), ended=(EndedRow("z", "timeout", 5.0, "train: took longer than 5s"),))
    progress.finish(last)
    progress.finish(last)
    assert stream.getvalue() == "timeout  z after 5.0s: train: took longer than 5s\n"  # the report has the counts


def test_hostile_names_and_poor_encodings():
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    progress = PlainProgress(stream, clock=FakeClock())
    progress.update(view(running=(RunningRow("数据\n\udcff", None, 0.0),)))
    assert raw.getvalue() == b"started  \\u6570\\u636e\\n\\xff\n"
    assert render_ended(EndedRow("a\nb", "lost")) == r"lost     a\nb"


class Terminal:
    """A real pseudo-terminal whose output is gathered."""

    def __init__(self, columns, rows):
        self.leader, follower = pty.openpty()
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.stream = os.fdopen(follower, "w", encoding="utf-8")
        self.chunks = []
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    def _read(self):
        while True:
            try:
                chunk = os.read(self.leader, 65536)
            except OSError:  # the other end is closed
                return
            if not chunk:
                return
            self.chunks.append(chunk)

    def close(self):
        self.stream.close()
        self.reader.join()
        os.close(self.leader)
        return b"".join(self.chunks).decode()


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "CI", "COLUMNS", "LINES", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    return Terminal(80, 24)


def strip(text):
    return re.sub(r"\x1b\[[0-?]*[ -/]*[@-~]", "", text)


def test_live_view_draws_tells_failures_and_leaves_the_counts_to_the_report(terminal):
    progress = choose_progress(terminal.stream)
    assert isinstance(progress, LiveProgress)
    progress.message("root: ./runs [bold]")
    progress.update(view())
    progress.finish(view(done=9, running=(), queued=0, ended=(EndedRow("bad", "failed", 3.0, "train: exit code 1"),)))
    progress.finish(view())  # again: harmless
    progress.update(view())
    output = terminal.close()
    plain = strip(output)
    assert "root: ./runs [bold]" in plain  # no markup of ours in users' texts
    assert "run-1" in plain
    assert "failed   bad after 3.0s: train: exit code 1" in plain
    assert "9 done" not in plain
    assert output.endswith("\x1b[?25h")
    assert output.rindex("\x1b[?25h") > output.rindex("\x1b[?25l")  # the cursor is back


def test_live_view_is_drawn_at_most_ten_times_a_second(terminal):
    clock = FakeClock()
    progress = LiveProgress(terminal.stream, clock=clock)
    for tick in range(100):
        clock.now = tick / 100
        progress.update(view(done=tick, total=200))
    progress.finish(view(done=100, total=200, running=()))
    clock.now += 1
    progress.update(view(total=777))
    drawn = strip(terminal.close())
    assert drawn.count("queued") <= 12
    assert "777" not in drawn, "nothing is drawn after the end"


def test_a_flood_of_failures_is_cut_short(terminal):
    progress = LiveProgress(terminal.stream, clock=FakeClock())
    for number in range(50):
        progress.update(view(ended=(EndedRow(f"bad-{number}", "failed"),)))
    progress.finish(view())
    plain = strip(terminal.close())
    assert "bad-19" in plain
    assert "bad-20" not in plain
    assert plain.count("further failures") == 1


def test_who_gets_what(terminal):
    assert isinstance(choose_progress(terminal.stream), LiveProgress)
    assert isinstance(choose_progress(terminal.stream, plain=True), PlainProgress)
    terminal.close()
    assert isinstance(choose_progress(io.StringIO()), PlainProgress)
    assert type(choose_progress(io.StringIO(), quiet=True)) is Progress


@pytest.mark.parametrize(("name", "value"), [("TERM", "dumb"), ("TERM", ""), ("CI", "true")])
def test_terminals_without_a_person_get_lines(terminal, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    assert isinstance(choose_progress(terminal.stream), PlainProgress)
    terminal.close()


def test_a_run_that_was_found_is_not_started_again():
    stream = io.StringIO()
    progress = PlainProgress(stream)
    progress.update(
        ProgressView("s", 2, running=(RunningRow("old", None, 9.0, was_found=True), RunningRow("new", None, 0.0)))
    )
    assert stream.getvalue() == "started  new\n"


def test_every_start_is_reported_however_short_the_run_was():
    stream = io.StringIO()
    progress = PlainProgress(stream)
    first, second = RunningRow("a", "0", 0.0), RunningRow("a", "0", 0.0, 2)
    failed, done = EndedRow("a", "failed", 1.0), EndedRow("a", "done", 1.0)
    progress.update(ProgressView("s", 1, running=(second,), ended=(failed,), news=(first, failed, second)))
    progress.finish(ProgressView("s", 1, done=1, ended=(done,), news=(done,)))
    lines = stream.getvalue().splitlines()
    assert [line.split()[:2] for line in lines[:4]] == [
        ["started", "a"],
        ["failed", "a"],
        ["started", "a"],
        ["finished", "a"],
    ]
    assert "attempt 2" in lines[2]


def test_a_standing_notice_is_said_once():
    stream = io.StringIO()
    progress = PlainProgress(stream)
    for _ in range(3):
        progress.update(ProgressView("s", 2, queued=2, messages=("waiting for a slot",)))
    assert stream.getvalue() == "waiting for a slot\n"


def test_the_best_run_so_far_has_a_line_and_its_value_is_never_cut():
    best = BestRow("lr=0.1,a_rather_long_name=12345", "loss 0.25 (min)")
    assert "best of this call: lr=0.1,a_rather_long_name=12345 loss 0.25 (min)" in text_of(
        render_frame(view(best=best), 80, 24)
    )
    (line,) = [line for line in text_of(render_frame(view(best=best), 45, 24)) if line.startswith("best")]
    assert line.endswith(" loss 0.25 (min)")
    assert len(line) <= 45
    assert not any(line.startswith("best") for line in text_of(render_frame(view(), 80, 24)))


def test_lines_name_a_new_best_run_once():
    stream = io.StringIO()
    progress = PlainProgress(stream, clock=FakeClock())
    best, ended = BestRow("a", "loss 1 (min)"), (EndedRow("a", "done"),)
    progress.update(view(running=(), ended=ended, best=best, is_new_best=True))
    progress.update(view(running=(), best=best))
    assert stream.getvalue() == "finished a\nbest of this call: a loss 1 (min)\n"
