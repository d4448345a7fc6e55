"""runx's sets: each finished call of `assay runx FILE` is followed by new runs, an interrupted one is continued.

The names of a set are random, so they are written down once (`.assay/set.N.json`) before the first run starts:
a later call, or a second supervisor, finds the same names.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from assay.errors import FormatError
from assay.flows.standing import load_standing
from assay.record import rundir
from assay.values import layout
from assay.values.run import State

if TYPE_CHECKING:
    from assay.flows.places import StudyPlace
    from assay.flows.prepared import Prepared

_SET_FILE = re.compile(r"set\.(\d+)\.json")


@dataclass(frozen=True, slots=True)
class RunSet:
    number: int
    names: dict[str, str]  # run id -> directory name


def enter_set(prepared: Prepared) -> Prepared:
    """The plan with the names of the set that this call belongs to; writes nothing."""
    last = _load_last(prepared.place)
    ids = {spec.id for spec in prepared.plan.runs}
    if last is not None and not prepared.options.new_set and set(last.names) == ids:
        if prepared.options.keeps_finished or _is_unfinished(prepared.place, last):
            runs = tuple(replace(spec, name=last.names[spec.id]) for spec in prepared.plan.runs)
            return replace(prepared, plan=replace(prepared.plan, runs=runs), set_number=last.number)
    return replace(prepared, set_number=last.number + 1 if last else 1)


def pin(prepared: Prepared) -> Prepared:
    """Write the set down, unless it is; a supervisor that came second takes the names of the first."""
    if prepared.set_number is None:
        return prepared
    names = {spec.id: spec.name for spec in prepared.plan.runs}
    path = _set_path(prepared.place, prepared.set_number)
    if rundir.publish(path, json.dumps({"format": layout.FORMAT_VERSION, "runs": names}, indent=1)):
        return prepared
    pinned = _load(path)
    runs = tuple(replace(spec, name=pinned.get(spec.id, spec.name)) for spec in prepared.plan.runs)
    return replace(prepared, plan=replace(prepared.plan, runs=runs))


def _set_path(place: StudyPlace, number: int) -> str:
    return os.path.join(place.dir, layout.STUDY_META_DIR, f"set.{number}.json")


def _load_last(place: StudyPlace) -> RunSet | None:
    try:
        names = os.listdir(os.path.join(place.dir, layout.STUDY_META_DIR))
    except OSError:
        return None
    numbers = [int(match[1]) for name in names if (match := _SET_FILE.fullmatch(name))]
    if not numbers:
        return None
    return RunSet(max(numbers), _load(_set_path(place, max(numbers))))


def _load(path: str) -> dict[str, str]:
    try:
        with open(path, encoding="utf-8") as file:
            names: dict[str, str] = json.load(file)["runs"]
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(f"{path} is damaged: {error}", "remove it to start a new set of runs") from error
    return names


def _is_unfinished(place: StudyPlace, last: RunSet) -> bool:
    return any(not _is_over(os.path.join(place.dir, name)) for name in last.names.values())


def _is_over(run_dir: str) -> bool:
    if not os.path.isdir(run_dir):
        return False
    standing = load_standing(run_dir)
    last = standing.history.last
    if last is None or not standing.state.is_over:
        return False
    if last.outcome is None:  # nobody has concluded: its supervisor left, or died
        return standing.state not in (State.LOST, State.STOPPED)
    return not (standing.state is State.STOPPED and last.stop is not None and last.stop.kind == "interrupt")
