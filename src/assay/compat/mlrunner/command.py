"""`assay mlrunner`: mlrunner's own flags and files."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import cycle
from typing import TYPE_CHECKING

from assay.compat.mlrunner.files import format_time, output_of, render_script
from assay.compat.original_command import Parsed, Parser, call_original, conclude, warn, write_lines
from assay.errors import ExitCode, UsageError
from assay.follow.api import Entry, Event
from assay.launch.api import Prepared, Report, choose_slots, left_commands, wanted_commands
from assay.show.console import Console
from assay.system.files import Tail
from assay.values import layout
from assay.values.run import RunSpec, State
from assay.values.state import RETRY
from assay.values.study import UnusedParameter
from assay.values.units import parse_slot_flags

if TYPE_CHECKING:
    from assay.launch.api import Again, RunOptions


_FAILED = (State.FAILED, State.TIMEOUT, State.LOST, State.DAMAGED)


class MlrunnerMessages:
    """Numbers the tasks of each document and reports their events, as mlrunner does."""

    def __init__(self, prepared: Prepared, say: Callable[[str], None]) -> None:
        self.prepared, self.say = prepared, say
        self.begun: set[tuple[str, int, str]] = set()  # run, attempt and command that another call started
        self.numbers: dict[str, tuple[int, int]] = {}  # run name -> number and total in its document
        # mlrunner counts the tasks of documents with one title together
        documents = {spec.name: spec.title or spec.sweep for spec in self.prepared.plan.runs}
        sizes = Counter(documents.values())
        seen: Counter[object] = Counter()
        for name, document in documents.items():
            seen[document] += 1
            self.numbers[name] = (seen[document], sizes[document])
        self.width = max((len(command.name) for command in self.prepared.study.commands), default=0)

    def open(self) -> None:
        warnings = self.prepared.plan.warnings
        orphans = sorted({problem.key for problem in warnings if isinstance(problem, UnusedParameter)})
        self.say("Orphan params: " + (f"{{{', '.join(map(repr, orphans))}}}" if orphans else "set()"))
        runs, links = self.prepared.plan.runs, self.prepared.plan.links
        count = sum(len(left_commands(self.prepared, spec)) for spec in runs)
        targets = ", ".join(dict.fromkeys(target for _, target in links))
        shared = f" ({len(links)} {'task shares' if len(links) == 1 else 'tasks share'} the results of {targets})"
        self.say(f"Tasks: {len(runs) + len(links)}, commands to run: {count}{shared if links else ''}")

    def build_dry_lines(self) -> Iterator[str]:
        """Yield the lines of a dry run, task by task, with the GPUs as if all tasks took equally long."""
        options, settings = self.prepared.options, self.prepared.settings
        slots = cycle(choose_slots(self.prepared.study, options.slots, settings).labels)
        stamp = format_time(time.time())
        for spec in self.prepared.plan.runs:
            left, output = left_commands(self.prepared, spec), output_of(self.prepared, spec)
            slot = next(slots) if left else "-"
            for command in spec.commands:
                if command.name in left:
                    yield self._render("START", spec, output, slot, command.name)
                    yield render_script(spec, command, output, stamp, slot)
                elif command.name in wanted_commands(spec, options.commands):
                    yield self._render("SKIP", spec, output, slot, command.name)

    def listen(self, event: Event) -> None:
        if event.kind == "adopted":
            self._note_begun(event.entry)
        elif event.kind == "command_started":
            entry = event.entry
            for name in entry.commands[: entry.commands.index(event.command)]:
                if not entry.reported & {f"+{name}", f"={name}"}:  # the command finished in an earlier attempt
                    entry.reported |= {f"={name}"}
                    self._line("SKIP", entry, name)
            if (entry.dir, entry.attempt, event.command) not in self.begun:
                self._line("START", entry, event.command)
        elif event.kind == "command_ended" and event.code != 0:
            self._line("FAIL", event.entry, event.command)

    def _note_begun(self, entry: Entry) -> None:
        """Record the commands that another call started and printed: all up to the first one that has not ended."""
        names = os.listdir(entry.dir)
        ended = {mark[0] for name in names if (mark := layout.parse_exit_marker(name)) and mark[1] == entry.attempt}
        for name in entry.commands:
            if name in entry.skipped and name not in ended:
                continue
            self.begun.add((entry.dir, entry.attempt, name))
            if name not in ended:
                self._line("RUNNING", entry, name)
                return

    def close(self, report: Report) -> None:
        """Print the tasks that were finished before, and those that failed or were stopped."""
        skipped = [entry for entry in report.entries if entry.state is State.DONE and not entry.finished_here]
        for entry in skipped:
            for name in entry.commands:
                self._line("SKIP", entry, name)
        self._list("Skipped", skipped)
        self._list("Failed", [entry for entry in report.entries if entry.state in _FAILED])
        self._list("Stopped", [entry for entry in report.entries if entry.state is State.STOPPED])
        if report.count(State.DONE) == len(report.entries):
            self.say("No task failed.")

    def _list(self, word: str, entries: Sequence[Entry]) -> None:
        if entries:
            self.say(f"{word} tasks: {len(entries)}/{len(self.prepared.plan.runs)}")
            for entry in entries:
                self.say(f"    {os.path.relpath(entry.dir)}")

    def _line(self, word: str, entry: Entry, command: str) -> None:
        slot = entry.handle.slot if entry.handle and entry.handle.slot else "-"
        self.say(self._render(word, entry.spec, os.path.relpath(entry.dir), slot, command))

    def _render(self, word: str, spec: RunSpec, where: str, slot: str, command: str) -> str:
        number, total = self.numbers.get(spec.name, (0, 0))
        return f"{word:8}gpu: {slot}, {command:{self.width}}: {number}/{total:2}, {where}"


class Tee:
    """mlrunner -d: shows the output of each command on the terminal after its line START."""

    def __init__(self, run_dir: str, echo: Callable[[bytes], None]) -> None:
        self._dir = run_dir
        self._echo = echo
        self._before = self._list()
        self._tails: dict[str, Tail] = {}
        self._current: tuple[Entry, str] | None = None

    def listen(self, event: Event) -> None:
        if event.kind == "command_started":
            self._current = (event.entry, event.command)
        elif event.kind == "command_ended":
            self.read()

    def read(self) -> None:
        """Show the output of the running command since the last call."""
        if self._current is None:
            return
        entry, command = self._current
        names = self._list()
        fresh = [name for name, stamp in names.items() if self._before.get(name) != stamp]
        log = layout.find_log(fresh, entry.spec.log_name, command)
        if log is not None:
            tail = self._tails.setdefault(log, Tail(os.path.join(self._dir, log)))
            while data := tail.read():
                self._echo(data)

    def _list(self) -> dict[str, int]:
        """Return names and times of files, which distinguish this start's log from earlier ones."""
        try:
            return {entry.name: entry.stat().st_mtime_ns for entry in os.scandir(self._dir)}
        except FileNotFoundError:
            return {}


_TASKS = ".tasks"  # --no-subdir: the folder with each task's own files
_AGAIN = frozenset({State.FAILED, State.TIMEOUT, State.LOST, State.STOPPED})


def build_parser() -> Parser:
    parser = Parser(command.__doc__)
    add = parser.add_argument
    add("-o", "--output", default="output", help="output folder (default: output)")
    add("-y", "--yaml", default="params.yaml", help="parameter file (default: params.yaml)")
    add("-t", "--title", help="only the documents with this _title")
    add("-d", "--debug", action="store_true", help="only the first task, its output on the terminal, finished or not")
    add("--dry-run", action="store_true", help="print what would run; nothing is written")
    add("-c", "--command", nargs="+", help="only these commands")
    add("-f", "--force", action="store_true", help="run finished commands again")
    add("-r", "--resource", nargs="+", help="GPUs instead of those in the file; 1,2 is one worker with two")
    add("--sample", type=int, help="a random part of each document")
    add("--no-subdir", action="store_true", help="logs of all tasks side by side in the output folder")
    again = "of the tasks that have ended badly, run only these again instead of all"
    parser.add_ours("--retry", action="append", choices=tuple(RETRY), help=again)
    parser.add_supervision()
    return parser


def run(parsed: Parsed) -> int:
    from assay.launch.api import check_prepared, go_to_background, prepare

    if parsed.root is not None:
        parsed.output = os.path.join(parsed.root, os.path.basename(os.path.abspath(parsed.output)))
    if parsed.detach and parsed.debug:
        raise UsageError("-d shows the output of the first task, which --detach would not", "leave out one of them")
    output = os.path.abspath(parsed.output)
    prepared = prepare(build_options(parsed, os.path.join(output, _TASKS) if parsed.no_subdir else output))
    if parsed.debug:
        prepared = replace(prepared, plan=replace(prepared.plan, runs=prepared.plan.runs[:1], links=()))
    # `messages.open` prints unused parameters
    warn(problem for problem in prepared.warnings if not isinstance(problem, UnusedParameter))
    messages = MlrunnerMessages(prepared, Console().print)
    messages.open()
    if parsed.dry_run:
        write_lines(messages.build_dry_lines())
        return int(ExitCode.OK)
    check_prepared(prepared)
    if parsed.detach and not go_to_background(prepared.location, Console()):
        return int(ExitCode.OK)
    return _run_tasks(prepared, messages, parsed)


def build_options(parsed: Parsed, folder: str) -> RunOptions:
    from assay.config.fields import LoadOptions
    from assay.launch.api import RunOptions

    if parsed.resource and parsed.jobs is not None:
        raise UsageError("-r and -j set the same thing", "give one of them")
    return RunOptions(
        file=parsed.yaml,
        overrides=parsed.overrides,
        root=os.path.dirname(folder),
        study=os.path.basename(folder),
        slots=tuple(parsed.resource) if parsed.resource else parse_slot_flags(None, parsed.jobs),
        titles=(parsed.title,) if parsed.title else None,
        commands=tuple(parsed.command) if parsed.command else None,
        sample=parsed.sample,
        retry=frozenset(state for name in parsed.retry for state in RETRY[name]) if parsed.retry else _AGAIN,
        force=parsed.force or parsed.debug,
        load=LoadOptions(dialect="mlrunner"),
        output=parsed.output,
        shares_output=parsed.no_subdir,
        command_line=tuple(sys.argv),
        again=_build_again(parsed),
    )


def _build_again(parsed: Parsed) -> Again | None:
    """Return the call without -f; None for a random sample, which differs each time: runs are repeated by name then."""
    from assay.launch.api import Again

    if parsed.sample is not None:
        return None
    given = [("-o", parsed.output, "output"), ("-y", parsed.yaml, "params.yaml"), ("-t", parsed.title, None)]
    words = []
    for flag, value, usual in given:
        if value != usual:  # argparse reads a separate value with a leading dash as a flag
            words += [flag + value] if value.startswith("-") else [flag, value]
    words += [word for word, is_on in (("-d", parsed.debug), ("--no-subdir", parsed.no_subdir)) if is_on]
    words += ["-c", *parsed.command] if parsed.command else []
    words += ["-r", *parsed.resource] if parsed.resource else []
    words += ["-j", str(parsed.jobs)] if parsed.jobs is not None else []
    return Again(("assay", "mlrunner"), None, tuple(words), parsed.overrides, takes_retry=False)


def _run_tasks(prepared: Prepared, messages: MlrunnerMessages, parsed: Parsed) -> int:
    """Run the tasks, report their events, and keep mlrunner's files next to Assay's."""
    from assay.launch.api import RunHooks, run_study

    began = time.time()
    tee = Tee(prepared.dir_of(prepared.plan.runs[0]), Console().write_bytes) if parsed.debug else None

    def listen(event: Event) -> None:
        if event.kind == "started":
            _copy_yaml(prepared, parsed)
        if tee is not None:
            tee.listen(event)
        messages.listen(event)
        if parsed.no_subdir and event.kind == "command_ended":  # the log is linked in the folder of all tasks
            entry, output = event.entry, os.path.abspath(parsed.output)
            if log := layout.find_log(os.listdir(entry.dir), entry.spec.log_name, event.command):
                target = os.path.relpath(os.path.join(entry.dir, log), output)
                with contextlib.suppress(FileExistsError):
                    os.symlink(target, os.path.join(output, f"{log}.{entry.spec.name}"))

    hooks = RunHooks(
        listen=listen,
        draw=lambda _: tee.read() if tee is not None else None,
        console=Console(),
        owns_process=True,
        tick_s=0.1,
    )
    report = run_study(prepared, hooks)
    _copy_yaml(prepared, parsed)
    messages.close(report)
    return conclude(report, began, is_shown=bool(report.exit_code))


def _copy_yaml(prepared: Prepared, parsed: Parsed) -> None:
    """Copy the file of parameters into the output folder, readable for its owner only if it has secrets."""
    title = f".{parsed.title}" if parsed.title else ""
    target = os.path.join(parsed.output, os.path.basename(parsed.yaml) + title.replace("/", "_"))
    with contextlib.suppress(shutil.SameFileError):
        if any(spec.private is not None for spec in prepared.plan.runs):
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
            os.chmod(target, 0o600)  # a copy of an earlier call may have another mode
            shutil.copyfile(parsed.yaml, target)
        else:
            shutil.copy(parsed.yaml, target)  # this keeps the permissions


def command(words: Sequence[str]) -> int:
    """Run params.yaml with mlrunner's own flags and files."""
    return call_original("mlrunner", build_parser(), words, run)
