"""`assay run --notify`: the step that reports events of the study to the receivers."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from assay.errors import AssayError
from assay.exchange.notify import Notifier, build_best, check_receivers, drop_flag
from assay.follow.entry import Event
from assay.launch.live_view import Leader
from assay.launch.prepared import Prepared, Report
from assay.launch.report import describe_outcome
from assay.launch.steps import RunContext, RunStep
from assay.launch.supervise import LoopSettings, Supervisor
from assay.system.fast_dataclasses import replace
from assay.values.state import State


class NotifyStep(RunStep):
    _notifier: Notifier | None = None
    _context: RunContext
    _began: float

    def prepare(self, prepared: Prepared) -> Prepared:
        """Remove receivers from the recorded command line, since the address of a webhook is enough to write to it."""
        options = prepared.options
        return replace(prepared, options=replace(options, command_line=drop_flag(options.command_line)))

    def check(self, prepared: Prepared) -> None:
        _choose_receivers(prepared)

    def begin(self, context: RunContext, loop: LoopSettings) -> LoopSettings:
        location, rules = context.prepared.location, context.prepared.settings.secrets
        notifier = Notifier(_choose_receivers(context.prepared), location.name, location.dir, rules)
        self._notifier, self._context, self._began = notifier, context, time.time()
        draw = loop.draw

        def draw_too(supervisor: Supervisor) -> None:
            draw(supervisor)
            notifier.send_best(self._leader)

        return replace(loop, draw=draw_too)

    def listen(self, event: Event) -> None:
        if self._notifier is not None:
            self._notifier.listen(event)

    def end(self, outcome: Report | BaseException) -> Iterable[str]:
        if self._notifier is None:
            return ()
        try:
            if isinstance(outcome, Report):
                return self._notifier.finish(*self._describe(outcome))
            if isinstance(outcome, AssayError):
                study = self._context.prepared.location.name
                return self._notifier.finish(f"{study}: {outcome.message}", int(outcome.exit_code))
            return ()
        finally:
            self._notifier.close()

    @property
    def _leader(self) -> Leader | None:
        return self._context.best.leader if self._context.best is not None else None

    def _describe(self, report: Report) -> tuple[str, int, dict[str, Any]]:
        leader, elapsed_s = self._leader, time.time() - self._began
        text = describe_outcome(report, elapsed_s)
        text += f"; interrupted by {report.interrupted}" if report.interrupted else ""
        text += f"; {report.problem}" if report.problem else ""
        text += f"; best: {leader.run} {leader.render_value()}" if leader else ""
        more = {
            "states": {str(state): count for state in State if (count := report.count(state))},
            "elapsed_s": elapsed_s,
            "interrupted": report.interrupted,
            "best": build_best(leader) if leader else None,
        }
        return text, int(report.exit_code), more


def _choose_receivers(prepared: Prepared) -> tuple[str, ...]:
    """Return the receivers of the option, else those of the settings."""
    asked, settings = prepared.options.extras.get("notify"), prepared.settings
    return check_receivers(asked or settings.notify, "--notify" if asked else f"notify in {settings.notify_from}")
