"""A step's profile in two files whose names do not depend on the tool: `<case>_compile.csv` and `.pb`, or `_runtime`.

The CSV is the tool's own where it wrote one that we can read; the `.pb` opens in Perfetto. A tool that tells nothing
about its inside gets a profile all the same: how long the step took.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import replace

from assay.errors import InfrastructureError
from assay.models.profiles import load_profile
from assay.models.report.trace import render_perfetto, render_slices_csv
from assay.models.values.model import Job, Step, StepOutcome
from assay.models.values.trace import Slice

_KINDS = {Step.COMPILE: "compile", Step.RUN: "runtime"}


def finish_profiles(job: Job, outcome: StepOutcome) -> StepOutcome:
    """Write both files into the job's folder of profiles; the outcome names all that lie there."""
    if job.profile_dir is None or job.step not in _KINDS:
        return outcome
    base = os.path.join(job.profile_dir, f"{job.case}_{_KINDS[job.step]}")
    slices, tables = _read(_select(job, outcome.profiles))
    try:
        _write_table(f"{base}.csv", tables, slices or _build_slices(outcome))
        _write(f"{base}.pb", render_perfetto(slices or _build_slices(outcome)))
    except OSError as error:
        raise InfrastructureError(f"the profile {base} cannot be written: {error.strerror}") from error
    return replace(outcome, profiles=tuple(dict.fromkeys((*outcome.profiles, f"{base}.csv", f"{base}.pb"))))


def _select(job: Job, paths: Sequence[str]) -> list[str]:
    """Without those of the other step: both may share a folder."""
    others = tuple(f"{job.case}_{kind}" for step, kind in _KINDS.items() if step is not job.step)
    return [path for path in paths if not os.path.basename(path).startswith(others)]


def _read(paths: Sequence[str]) -> tuple[list[Slice], list[str]]:
    """What the tool tells, and its tables."""
    slices: list[Slice] = []
    tables = []
    for path in paths:
        found = load_profile(path)
        if found is not None and found.slices:
            slices += found.slices
            tables += [path] if path.endswith(".csv") else []
    return slices, tables


def _build_slices(outcome: StepOutcome) -> list[Slice]:
    """Of the step's own times."""
    slices, begun_ns = [], 0
    for number, elapsed_s in enumerate(outcome.times_s or (outcome.elapsed_s,)):
        end_ns = begun_ns + round(elapsed_s * 1e9)
        slices.append(Slice(("assay", str(outcome.step)), f"{outcome.step} {number}", begun_ns, end_ns))
        begun_ns = end_ns
    return slices


def _write_table(path: str, tables: Sequence[str], slices: Sequence[Slice]) -> None:
    if path in tables:
        return  # the tool has given it this name itself
    if len(tables) == 1:
        shutil.copyfile(tables[0], f"{path}.{os.getpid()}")
        os.replace(f"{path}.{os.getpid()}", path)
    else:
        _write(path, render_slices_csv(slices).encode())


def _write(path: str, content: bytes) -> None:
    aside = f"{path}.{os.getpid()}"
    with open(aside, "wb") as stream:
        stream.write(content)
    os.replace(aside, path)
