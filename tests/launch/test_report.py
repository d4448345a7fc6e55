from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from assay.config.settings import Settings
from assay.follow.attempts import RetryPolicy
from assay.follow.entry import Entry
from assay.follow.locations import StudyLocation
from assay.follow.log_tails import split_log
from assay.launch.prepared import Again, Prepared, Report, RunOptions
from assay.launch.report import render_report
from assay.launch.runner import build_bare_study
from assay.system.fast_dataclasses import replace
from assay.values.run import Command, JobHandle, Outcome, Plan, RunSpec, State


class Study:
    """Runs of a study `s` under ./runs; a failed one has a log."""

    def __init__(self, folder: Path) -> None:
        study = build_bare_study("s", "s.yml", str(folder))
        location = StudyLocation(str(folder / "runs"), "s")
        prepared = Prepared(study, Plan(study, ()), location, True, None, Settings(str(folder)), RunOptions("s.yml"))
        self.report = Report(prepared, [])

    def add(self, *states: State, kept: bool = False, **outcome: object) -> Study:
        for state in states:
            name = f"r{len(self.report.entries)}"
            folder = Path(self.report.prepared.location.dir) / name
            entry = Entry(RunSpec(name, name, {}, (Command("train", "true"),)), str(folder), RetryPolicy(), state, 1)
            entry.finished_here = state is State.DONE and not kept
            if state in (State.FAILED, State.TIMEOUT):
                facts = {"reason": "train: exit code 3", "codes": {"train": 3}, **outcome}
                entry.outcome = Outcome(state, 1, **facts)  # type: ignore[arg-type]
                self.write_log(entry, "boom\n")
            self.report.entries.append(entry)
        return self

    def write_log(self, entry: Entry, text: str) -> None:
        Path(entry.dir).mkdir(parents=True, exist_ok=True)
        (Path(entry.dir) / "train.log").write_text(text)

    def render(self, *, color: bool = False, width: int | None = None) -> str:
        return render_report(self.report, 311, color=color, width=width)


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    monkeypatch.chdir(tmp_path)
    return Study(tmp_path)


def test_the_name_of_a_folder_makes_no_lines_of_its_own(study: Study) -> None:
    study.report.prepared = replace(study.report.prepared, location=StudyLocation(os.path.abspath("a\nb"), "s"))
    study.add(State.FAILED)
    assert [line for line in study.render().splitlines() if line.startswith("b")] == []
    assert "a\\nb/s/r0/train.log" in study.render()


def test_all_runs_are_done(study: Study) -> None:
    study.add(State.DONE, kept=True).add(State.DONE)
    said = "s: 2 runs: 2 done (1 of them earlier) after 5m 11s, in runs/s\nnext: assay sum runs/s\n"
    assert study.render() == said
    study.report.advice.append("assay demo")
    assert study.render() == f"{said}      assay demo\n"


def test_a_failed_run_is_named_with_reason_log_and_its_end(study: Study) -> None:
    study.add(State.DONE, State.FAILED)
    study.write_log(study.report.entries[1], "".join(f"line {number}\n" for number in range(30)))
    assert study.render() == (
        "FAILED r1: train: exit code 3\n"
        "  runs/s/r1/train.log\n" + "".join(f"  | line {number}\n" for number in range(20, 30)) + "\n"
        "s: 2 runs: 1 done, 1 failed after 5m 11s, in runs/s\n"
        "next: assay logs runs/s/r1\n"
        "      assay rerun runs/s/r1\n"
        "      assay sum runs/s\n"
    )


def test_attempts_are_counted(study: Study) -> None:
    study.add(State.TIMEOUT, reason="train ran into its time limit")
    study.report.entries[0].attempt = 3
    text = study.render()
    assert text.startswith("TIMEOUT r0: train ran into its time limit, 3 attempts\n")
    assert "s: 1 run: 1 timed out after" in text


@pytest.mark.parametrize(("log", "shown"), [("", "(the log is empty)"), (None, "FAILED r0: train: exit code 3\n\ns:")])
def test_a_log_that_is_empty_or_missing(study: Study, log: str | None, shown: str) -> None:
    entry = study.add(State.FAILED).report.entries[0]
    study.write_log(entry, log or "")
    if log is None:
        (Path(entry.dir) / "train.log").unlink()
    assert shown in study.render()
    study.write_log(entry, "x" * 5000)  # long lines are shortened
    assert max(map(len, study.render().splitlines())) < 210


def test_many_failures_do_not_fill_the_screen(study: Study) -> None:
    text = study.add(*[State.FAILED] * 300).render()
    assert len(text.splitlines()) < 60
    assert text.count("| boom") == 3
    assert "FAILED r19:" in text
    assert "FAILED r20:" not in text
    assert "and 280 more that failed" in text
    assert "300 failed" in text
    assert "runs/s/r19/train.log" in text, "a path instead of a command with a place to fill in"


def test_the_command_that_repeats_many_failed_runs_names_them_all(study: Study) -> None:
    study.add(*[State.FAILED] * 10)
    assert "assay rerun runs/s/r0 runs/s/r1 " in study.render()
    assert "runs/s/r9\n" in study.render()
    study.add(State.FAILED, State.TIMEOUT)
    assert study.render().endswith("assay rerun runs/s --where 'state==failed or state==timeout'\n")


def test_every_state_is_counted(study: Study) -> None:
    assert "s: 0 runs: nothing ran" in study.render()
    study.add(*State)
    said = "9 runs: 1 done, 1 pruned, 2 failed, 1 timed out, 1 lost, 1 stopped, 1 still running, 1 not started after"
    assert said in study.render()


def test_notes_are_warnings_that_are_broken_between_words(study: Study) -> None:
    study.report.notes.append("the code has changed " * 5)
    assert "warning: the code has changed" in study.render()
    assert max(map(len, study.render(width=40).splitlines()[:-1])) <= 40
    assert study.render(width=40).split() == study.render().split()


def test_log_lines_look_as_on_a_terminal() -> None:
    text = " 10%|#\r 50%|##\r100%|###\n\x1b[31mred\x1b[0m\tx\r\n\udcff\x07\n\n\n"
    assert split_log(text) == ["100%|###", "red x", r"\xff\x07"]
    assert split_log("") == []


def test_colour_is_only_colour(study: Study) -> None:
    assert study.add(State.DONE).render(color=True).startswith("\x1b[1m\x1b[32m")
    study.add(State.FAILED)
    assert "\x1b" not in study.render()
    assert re.sub(r"\x1b\[\d+m", "", study.render(color=True)) == study.render()


def test_what_another_host_may_run_is_not_retried(study: Study) -> None:
    """`--retry lost` would start the run a second time."""
    prepared = study.add(State.LOST, State.LOST).report.prepared
    study.report.prepared = replace(prepared, options=replace(prepared.options, again=Again(("assay", "run"), "s.yml")))
    for entry in study.report.entries:
        entry.handle = JobHandle("local", "1", "other", 1, 1, "b", None, 1, 0.0)
    assert study.render().endswith("next: assay ls runs/s\n")
    study.report.entries[0].outcome = Outcome(State.LOST, 1, {}, "its process is gone")
    assert "next: assay rerun runs/s/r0\n      assay ls runs/s\n" in study.render()
    study.report.entries[1].outcome = Outcome(State.LOST, 1, {}, "its process is gone")
    assert study.render().endswith("next: assay run s.yml --retry lost\n")
