"""What searches and early stopping do in a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

from assay.errors import AssayError, UsageError
from assay.follow.entry import Entry
from assay.follow.refresh import refresh_study
from assay.launch.prepared import Prepared, StepResult
from assay.launch.steps import RunContext, RunStep
from assay.launch.supervise import LoopSettings
from assay.search.early_stop import EarlyStop
from assay.search.source import SearchSource, add_next_trial, begin_search, build_dry_search, prepare_search
from assay.system.fast_dataclasses import replace
from assay.values.units import CPU


class SearchStep(RunStep):
    _source: SearchSource | None = None

    def prepare(self, prepared: Prepared) -> Prepared:
        if prepared.study.search is None:
            raise UsageError(f"{prepared.study.source} has no search", "leave out --search")
        return prepare_search(prepared)

    def complete(self, prepared: Prepared) -> Prepared:
        return add_next_trial(prepared)

    def describe_plan(self, prepared: Prepared) -> Iterable[str]:
        return build_dry_search(prepared)

    def begin(self, context: RunContext, loop: LoopSettings) -> LoopSettings:
        prepared, collector = context.prepared, context.collector
        if prepared.search is None:  # trials that are repeated
            return loop

        def settle() -> bool:
            collector.flush()
            return collector.failure is None

        begin_search(prepared)
        self._source = SearchSource(prepared, context.index, context.entries, loop.create, context.build_entry, settle)
        # a farm takes any number of jobs; a search that proposes all of them at once would search nothing
        most = len(prepared.options.slots or prepared.study.slots or (CPU,)) if context.pool is None else None
        return replace(loop, source=self._source, limit=loop.limit or most)

    def build_result(self) -> StepResult | None:
        return self._source.build_result() if self._source is not None else None


class StopStep(RunStep):
    _early_stop: EarlyStop

    def begin(self, context: RunContext, loop: LoopSettings) -> LoopSettings:
        prepared = context.prepared
        with suppress(AssayError, OSError):  # of what cannot be read now, less is known to compare with
            refresh_study(context.index, prepared.location)  # runs of earlier calls that a new index has not read yet
        self._early_stop = EarlyStop(prepared.study.stop, context.index, prepared.location)
        context.collector.listen = self._early_stop.note
        return replace(loop, prune=self._early_stop.prune)

    def describe_end(self, entries: Sequence[Entry]) -> Iterable[str]:
        return self._early_stop.describe_missing(entries)
