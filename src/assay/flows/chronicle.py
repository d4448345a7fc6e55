"""mlrunner's own lines: START, SKIP, FAIL and the counts around them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from assay.flows.prepared import Prepared, Report, wanted_commands
from assay.flows.supervise import Entry, Event
from assay.values.run import State

Say = Callable[[str], None]


@dataclass(slots=True)
class Chronicle:
    """Numbers the tasks of each document and says what happens to them, as mlrunner does."""

    prepared: Prepared
    say: Say
    numbers: dict[str, tuple[int, int]] = field(default_factory=dict)  # run name -> i, n of its document
    width: int = 0

    def __post_init__(self) -> None:
        runs = self.prepared.plan.runs
        sizes = Counter(spec.title or spec.sweep for spec in runs)
        seen: Counter[object] = Counter()
        for spec in runs:
            group = spec.title or spec.sweep
            seen[group] += 1
            self.numbers[spec.name] = (seen[group], sizes[group])
        self.width = max((len(command.name) for command in self.prepared.study.commands), default=0)

    def open(self) -> None:
        orphans = sorted({problem.key for problem in self.prepared.plan.warnings if "no command uses" in problem.message})
        self.say("Orphan params: " + (f"{{{', '.join(map(repr, orphans))}}}" if orphans else "set()"))
        runs, links = self.prepared.plan.runs, self.prepared.plan.links
        shared = ""
        if links:
            targets = ", ".join(dict.fromkeys(target for _, target in links))
            shared = f" ({len(links)} {'task shares' if len(links) == 1 else 'tasks share'} the results of {targets})"
        self.say(f"Tasks: {len(runs) + len(links)}, commands to run: {self._count_commands()}{shared}")

    def _count_commands(self) -> int:
        asked = self.prepared.options.commands
        return sum(len(wanted_commands(spec, asked)) for spec in self.prepared.plan.runs)

    def listen(self, event: Event) -> None:
        if event.kind == "command_started":
            for name in self._skipped_before(event):
                self._line("SKIP", event.entry, name)
            self._line("START", event.entry, event.command)
        elif event.kind == "command_ended" and event.code != 0:
            self._line("FAIL", event.entry, event.command)

    def _skipped_before(self, event: Event) -> Iterator[str]:
        entry = event.entry
        names = [command.name for command in entry.spec.commands]
        for name in names[: names.index(event.command)]:
            if name in entry.done_before and name in entry.skipped and f"={name}" not in entry.reported:
                entry.reported.add(f"={name}")
                yield name

    def skip_finished(self, entries: list[Entry]) -> None:
        for entry in entries:
            if entry.state is State.DONE and not entry.finished_here:
                for name in entry.commands:
                    self._line("SKIP", entry, name)

    def close(self, report: Report) -> None:
        self.skip_finished(report.entries)
        failed = [e for e in report.entries if e.state in (State.FAILED, State.TIMEOUT, State.LOST)]
        if not failed:
            self.say("No task failed." if not report.count(State.STOPPED) else f"Stopped tasks: {report.count(State.STOPPED)}")
            return
        self.say(f"Failed tasks: {len(failed)}/{len(report.entries)}")
        for entry in failed:
            self.say(f"  {self._folder(entry)}: {entry.outcome.reason if entry.outcome else ''}")

    def _line(self, word: str, entry: Entry, command: str) -> None:
        number, total = self.numbers.get(entry.spec.name, (0, 0))
        slot = entry.handle.slot if entry.handle and entry.handle.slot else "-"
        self.say(f"{word:8}gpu: {slot}, {command:{self.width}}: {number}/{total:2}, {self._folder(entry)}")

    def _folder(self, entry: Entry) -> str:
        return os.path.relpath(entry.dir)

