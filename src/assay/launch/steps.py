"""The steps that plug-ins add to a call: a step can plan runs, propose more, end some early, and handle events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from assay import plugins
from assay.errors import InfrastructureError
from assay.system.fast_dataclasses import dataclass

if TYPE_CHECKING:
    from assay.execute.slots import SlotPool
    from assay.follow.collect import Collector
    from assay.follow.entry import Entry, Event
    from assay.launch.live_view import BestSoFar
    from assay.launch.prepared import Prepared, Report, StepResult
    from assay.launch.supervise import LoopSettings
    from assay.record.index.stored import Index
    from assay.values.run import RunSpec


@dataclass(frozen=True, slots=True)
class RunContext:
    """The objects that a step may use while the runs are supervised."""

    prepared: Prepared
    index: Index
    entries: Sequence[Entry]
    collector: Collector
    pool: SlotPool | None  # None: on a farm, or if runs are started one by one
    best: BestSoFar | None  # None: the command does not search for the best run
    build_entry: Callable[[RunSpec], Entry]


class RunStep:
    """A part of a call that a plug-in adds. The methods, in the order of calls, do nothing in this base class."""

    def prepare(self, prepared: Prepared) -> Prepared:
        """Change `prepared` before the runs are planned. A step that plans the runs sets `search` and `plan`."""
        return prepared

    def complete(self, prepared: Prepared) -> Prepared:
        """Add the runs that would be proposed during a real call, for a dry run as JSON."""
        return prepared

    def describe_plan(self, _prepared: Prepared) -> Iterable[str]:
        """Return further lines of a dry run."""
        return ()

    def check(self, prepared: Prepared) -> None:
        """Refuse a study that cannot work, before anything is written."""

    def begin(self, _context: RunContext, loop: LoopSettings) -> LoopSettings:
        """Change the settings of the loop just before it begins."""
        return loop

    def listen(self, event: Event) -> None:
        """Handle an event of a run."""

    def describe_end(self, _entries: Sequence[Entry]) -> Iterable[str]:
        """Return notes for the report."""
        return ()

    def build_result(self) -> StepResult | None:
        """Return the value of `Report.result`."""
        return None

    def end(self, _outcome: Report | BaseException) -> Iterable[str]:
        """End the step after the report was printed or the run failed; return warnings."""
        return ()


def find_steps(prepared: Prepared, *names: str) -> list[RunStep]:
    """Return the steps for the study's keys, the given options and these names; no other plug-in is loaded."""
    study = prepared.study
    own = [key for key in ("search", "stop") if getattr(study, key)]
    asked = dict.fromkeys((*own, *study.extras, *prepared.options.extras, *names))
    found = plugins.find_plugins().values() if asked else ()
    steps: list[RunStep] = []
    for text in [each.run_steps[name] for each in found for name in asked if name in each.run_steps]:
        step = plugins.load(text)
        if not (isinstance(step, type) and issubclass(step, RunStep)):
            raise InfrastructureError(f"{text} is not a subclass of assay.launch.steps.RunStep")
        steps.append(step())
    return steps
