"""The decisions of a dialect about the runs of a study."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from assay import plugins
from assay.follow.entry import Event
from assay.follow.locations import StudyLocation
from assay.launch.prepared import Prepared
from assay.record import run_directory
from assay.record.received import is_foreign
from assay.record.run_directory import RunRecord
from assay.system.fast_dataclasses import replace
from assay.values import layout
from assay.values.run import Plan, RunSpec
from assay.values.study import Problem

Listen = Callable[[Event], None]


class RunRules:
    """The rules for native studies; a dialect's class overrides some rules. Methods are in the order of calls."""

    shares_dirs = False  # a dialect's tool finds the same directories by parameters: edited commands change none

    def name_runs(self, prepared: Prepared) -> Prepared:
        """Give planned runs that are already on disk the names of their directories."""
        return replace(prepared, plan=self.find_known(prepared.plan, prepared.location))

    def find_known(self, plan: Plan, location: StudyLocation) -> Plan:
        """Rename planned runs that are on disk under another name, which an earlier version of the file gave them."""
        if not os.path.isdir(location.dir):
            return plan
        by_id: dict[str, str] | None = None
        names: dict[str, str] = {}
        for spec in plan.runs:
            path = os.path.join(location.dir, spec.name)
            taken_by = _id_of(path)
            if taken_by == spec.id:
                continue
            if by_id is None:
                found = ((_id_of(path), os.path.basename(path)) for path in run_directory.find_run_dirs(location.dir))
                by_id = {run_id: name for run_id, name in found if run_id is not None}
            is_free = taken_by is None and not self.holds_another(path, spec)
            names[spec.name] = by_id.get(spec.id) or (spec.name if is_free else f"{spec.name}~{spec.id[:8]}")
        changed = [new for old, new in names.items() if new.startswith(f"{old}~")]
        added = [name for name in changed if _id_of(os.path.join(location.dir, name)) is None]
        if added:  # commands are a part of a run's identity: changed commands make another run
            runs = "1 run has" if len(added) == 1 else f"{len(added)} runs have"
            hint = f"the new runs are next to the old ones, as {added[0]}{' …' if len(added) > 1 else ''}"
            problem = Problem(f"{runs} the parameters of an earlier run and another command", "", None, hint)
            plan = replace(plan, warnings=(*plan.warnings, problem))
        renamed = tuple(replace(spec, name=names.get(spec.name, spec.name)) for spec in plan.runs)
        links = tuple((name, names.get(target, target)) for name, target in plan.links)
        return replace(plan, runs=renamed, links=links)

    def holds_another(self, _run_dir: str, _spec: RunSpec) -> bool:
        """Whether the tool itself filled this directory with other parameters."""
        return False

    def complete(self, prepared: Prepared) -> Prepared:
        """Fill in values that depend on the names of the runs."""
        return prepared

    @contextmanager
    def hold(self, prepared: Prepared) -> Iterator[Prepared]:
        """Return the context in which runs are supervised; a dialect may write names first, and yields the new plan."""
        yield prepared

    def adopt_dir(self, run_dir: str, record: RunRecord, job: str) -> None:
        """Adopt a directory that the tool created, if `shares_dirs` is set; `job` is the text of job.sh."""

    def write_files(self, prepared: Prepared, aside: str, spec: RunSpec, run_dir: str) -> None:
        """Write further files into a new directory, at its temporary path `aside`."""

    def listen(self, _prepared: Prepared, listen: Listen) -> Listen:
        """Return the listener for the runs' events; a dialect may wrap it to update the tool's own files."""
        return listen

    def load_params(self, record: RunRecord) -> dict[str, Any]:
        """Return the parameters of a run that is to be varied, in the form that its file would give them."""
        return dict(record.spec.params)

    def choose_varied(self, runs: Sequence[RunSpec], record: RunRecord) -> list[RunSpec]:
        """Return the planned runs that vary the recorded run."""
        return [spec for spec in runs if spec.ordinal == record.spec.ordinal]


def find_rules(dialect: str) -> RunRules:
    own = plugins.find_dialect(dialect).run_rules
    rules: type[RunRules] = plugins.load(own) if own else RunRules
    return rules()


def _id_of(run_dir: str) -> str | None:
    """Return the id of the run in this directory, from job.sh if run.json is damaged; None for an upload, which is not
    a run of the study's file, and empty for a run without a command."""
    if is_foreign(run_dir):
        return None
    record = run_directory.try_record(run_dir)
    if record is not None:
        return record.spec.id if record.spec.commands else ""
    return run_directory.load_job_field(run_dir, layout.ENV_RUN_ID)
