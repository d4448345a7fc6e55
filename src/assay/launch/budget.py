"""`--budget 2gpuh`: the hours of GPUs, cores or runs after which a command starts nothing more."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence

from assay.errors import UsageError
from assay.follow.entry import Entry
from assay.show.formatting import join_first, render_count
from assay.values.study import Study
from assay.values.units import CPU

UNITS = {"gpuh": "GPU hours", "cpuh": "core hours", "h": "hours of runs"}
_MOST_NAMED = 10


class Budget:
    """A budget, and the time that ended runs have used of it; one budget may serve several calls."""

    def __init__(self, text: str, flag: str = "--budget") -> None:
        match = re.fullmatch(rf"(\d+(?:\.\d+)?)\s*({'|'.join(UNITS)})", text.strip())
        if match is None or not float(match[1]):
            kinds = ", ".join(f"2{unit} ({name})" for unit, name in UNITS.items())
            raise UsageError(f"{flag} {text!r} is not a budget", f"write for example {kinds}")
        self.text, self.unit, self.limit_s, self.used_s = text, match[2], float(match[1]) * 3600, 0.0

    def check(self, study: Study, slots: Sequence[str]) -> None:
        if self.unit == "gpuh" and not study.resources.gpus and all(label == CPU for label in slots):
            hint = "declare them in a file (resources: {gpus: 1}) or by --slots 0, or count hours of runs: --budget "
            raise UsageError(f"--budget {self.text}: {study.name} does not declare GPUs", f"{hint}{self.text[:-4]}h")

    def add(self, entry: Entry) -> None:
        """Count an attempt that has ended."""
        if entry.outcome is not None and entry.outcome.started_at and entry.outcome.ended_at:
            self.used_s += self._weigh(entry) * max(0.0, entry.outcome.ended_at - entry.outcome.started_at)

    def measure_s(self, running: Iterable[Entry] = ()) -> float:
        """Return the time used so far by attempts that have ended and by the attempts of `running`."""
        begun = [entry for entry in running if entry.handle and entry.is_mine and not entry.is_waiting]
        spans = ((each, time.time() - (each.begun_at or each.handle.started_at)) for each in begun if each.handle)
        return self.used_s + sum(self._weigh(each) * max(0.0, span_s) for each, span_s in spans)

    def _weigh(self, entry: Entry) -> int:
        slot, resources = entry.handle.slot if entry.handle else None, entry.spec.resources
        if self.unit != "gpuh":
            return resources.cpus if self.unit == "cpuh" else 1
        return len(slot.split(",")) if slot and slot != CPU else resources.gpus or 0

    def describe(self, names: Sequence[str]) -> str:
        """Describe how much time was used, and the runs that did not start. `names`: names of these runs."""
        runs = f"{render_count(len(names), 'run')} did not start: {join_first(names, _MOST_NAMED)}"
        return f"the budget of {self.text} is used ({self.used_s / 3600:.3g} {UNITS[self.unit]}), so {runs}"
