"""`assay golden validate`: what can be known of a file without running anything."""

from __future__ import annotations

import os
import shlex
import shutil

from assay.errors import UsageError
from assay.golden import manifests
from assay.golden.flow.followers import NO_LINE, NO_STEP_LINE, count_lines, find_unread
from assay.golden.flow.gather import choose_checkpoints
from assay.golden.flow.segments import (
    GoldenContext,
    GoldenOptions,
    build_check_command,
    build_contexts,
    build_gather_command,
    describe_locations,
    hide_command,
    load_file,
    use_same,
)
from assay.golden.recorder import LogReader, RunRecorder
from assay.golden.values import GoldenFile, GoldenTest
from assay.launch.api import first_program
from assay.system.fast_dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Validation:
    """What can be known without running anything."""

    file: GoldenFile
    commands: tuple[tuple[str, str, str], ...]  # test, gather or check, what would run
    notes: tuple[str, ...]
    problems: tuple[str, ...]


def validate_file(options: GoldenOptions, log: str | None = None) -> Validation:
    """The file, its commands, and, with a sample log, what its patterns find there."""
    file = load_file(options, ("gather", "run"))
    data = None
    if log is not None:
        try:
            with open(log, "rb") as sample:
                data = sample.read()
        except OSError as error:
            raise UsageError(f"the log {log} cannot be read: {error.strerror}") from None
    commands: list[tuple[str, str, str]] = []
    notes: list[str] = []
    problems: list[str] = []
    for context in build_contexts(file, options):
        name = context.test.name
        commands += _build_commands(choose_checkpoints(context), notes)
        notes += [f"{name}: {note}" for note in describe_locations(context)]
        program = first_program(build_gather_command(context))
        if program and not _has_program(program, context):
            problems.append(f"{name}: the program {program!r} was not found")
        if data is not None:
            problems += _try_patterns(context.test, data, notes)
    return Validation(file, tuple(commands), tuple(notes), tuple(problems))


def _has_program(program: str, context: GoldenContext) -> bool:
    if os.sep in program:
        return os.access(os.path.join(context.folder, program), os.X_OK)
    return shutil.which(program, path=dict(context.test.env).get("PATH")) is not None


def _build_commands(context: GoldenContext, notes: list[str]) -> list[tuple[str, str, str]]:
    name = context.test.name
    found = [(name, "gather", hide_command(context, build_gather_command(context)))]
    try:
        golden = manifests.load_manifest(context.manifest, name)
    except UsageError:
        notes.append(f"{name}: no golden recording yet; the check's command is an example")
        found.append((name, "check", hide_command(context, build_check_command(context, "CHECKPOINT", 0))))
        return [*found, *_build_same(context)]
    for segment in golden.segments:
        path = manifests.find_checkpoint(context.manifest, segment.checkpoint) or segment.checkpoint
        text = build_check_command(context, path, segment.start_step, golden.steps_beyond or 0)
        found.append((name, "check", hide_command(context, text)))
    return [*found, *_build_same(context)]


def _build_same(context: GoldenContext) -> list[tuple[str, str, str]]:
    """The check of each configuration that must agree, with its variables."""
    found = []
    for each in context.test.same:
        text = hide_command(context, build_check_command(use_same(context, each), "CHECKPOINT", 0))
        variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in each.env)
        found.append((context.test.name, f"same {each.name}", f"{variables} {text}".strip()))
    return found


def _try_patterns(test: GoldenTest, data: bytes, notes: list[str]) -> list[str]:
    """Patterns that match nothing, and metrics that are never on a line that is read."""
    text = data.decode("utf-8", "replace").replace("\r", "\n")
    problems = []
    unread = find_unread(test, data)
    for pattern in test.patterns:
        count = count_lines(pattern, text)
        where = f"{pattern.position}: " if pattern.position else ""
        if count:
            notes.append(f"{test.name} {pattern.metric}: matches {count} lines")
        else:
            problems.append(f"{where}{test.name} {pattern.metric}: {NO_LINE}")
    recorder = RunRecorder(LogReader(test.step, test.metrics, named_groups=not test.same_line), test.same_line)
    recorder.feed(data)
    recorder.finish()
    problems += [f"{test.name}: {problem}" for problem in recorder.values.problems]
    problems += [f"{test.name} {metric}: {why}" for metric, why in unread.items() if why == NO_STEP_LINE]
    return problems
