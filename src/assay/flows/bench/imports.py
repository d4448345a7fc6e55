"""`assay bench import`: figures of other tools become runs of the study `bench`, as if they had been run here."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from assay.execute.script import JobText, render_job
from assay.flows.bench.archive import find_place
from assay.flows.bench.witness import write_points
from assay.flows.collect import closing_quietly
from assay.flows.ingest import refresh_study
from assay.flows.places import StudyPlace, check_writable
from assay.plan.identity import spec_id
from assay.record import rundir
from assay.record.benchmarks import write_execution
from assay.record.imported import load_foreign
from assay.record.index.sqlite import open_index
from assay.values.benchmark import BenchExecution
from assay.values.run import RunSpec
from assay.values.study import CodePolicy


@dataclass(frozen=True, slots=True)
class Imported:
    new: int
    known: int  # were there already
    methods: tuple[str, ...]


def import_files(
    paths: Sequence[str],
    root: str | None,
    label: str | None = None,
    complain: Callable[[str], None] = lambda _text: None,
) -> Imported:
    """All files are read before the first figure is written: a file that cannot be read adds nothing."""
    found = [execution for path in paths for execution in load_foreign(path)]
    place = find_place(root)
    check_writable(place)
    os.makedirs(os.path.join(place.dir), exist_ok=True)
    new = sum(write_as_run(place, execution, label) for execution in found)
    with closing_quietly(open_index(place.root)) as index:
        refresh_study(index, place, complain)
    return Imported(new, len(found) - new, tuple(sorted({execution.method for execution in found})))


def write_as_run(place: StudyPlace, execution: BenchExecution, label: str | None, kind: str = "import") -> bool:
    """False: it is there already. Nothing is ever overwritten."""
    words = re.sub(r"[^\w.+-]+", "_", ".".join(execution.method.split(".")[-2:]))
    name = f"{execution.execution_id}_{words}"[:150].rstrip("._")
    run_dir = os.path.join(place.dir, name)
    chosen = label or execution.label
    params = {"method": execution.method, "kind": kind, "trial": execution.trial, "source": execution.source}
    if chosen:
        params["label"] = chosen
    spec = RunSpec(
        spec_id((), params), name, params, (), title=execution.execution_id, tag=chosen, code=CodePolicy("live")
    )
    record = rundir.RunRecord(
        spec, place.name, rundir.new_uid(), execution.started_at or time.time(), workdir=".", commit=execution.commit
    )
    job = render_job(spec, JobText(record.uid, record.study, record.workdir))

    def fill(aside: str) -> None:
        from dataclasses import replace

        kept = replace(execution, label=chosen)
        write_execution(aside, kept)
        write_points(aside, kept)

    return rundir.write_run_dir(run_dir, record, job, fill)
