"""runx's sets: each finished call of `assay runx FILE` is followed by new runs, an interrupted one is continued.

The names of a set are random, so they are written down once (`.assay/set.N.json`) before the first run starts:
a later call, or a second supervisor, finds the same names.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING

from assay.errors import FormatError, UsageError
from assay.record.formats import stamp
from assay.record.received import is_foreign
from assay.study.prepared import Prepared
from assay.study.run_status import load_status
from assay.system.fast_dataclasses import dataclass, replace
from assay.system.files import list_names, parse_json, publish
from assay.values import layout
from assay.values.run import LazyRuns, RunSpec, State, build_command

if TYPE_CHECKING:
    from assay.study.locations import StudyLocation

_SET_FILE = r"set\.(\d+)\.json"


@dataclass(frozen=True, slots=True)
class RunSet:
    number: int
    names: dict[str, str]  # run id -> directory name


def enter_set(prepared: Prepared) -> Prepared:
    """The plan with the names of the set that this call belongs to; writes nothing."""
    options = prepared.options
    numbers = _list_numbers(prepared.location)
    last = _load_last(prepared, numbers)
    is_same = last is not None and last.names.keys() == {spec.id for spec in prepared.plan.runs}
    if last is not None and is_same and (options.keeps_finished or _is_unfinished(prepared.location, last)):
        runs = tuple(replace(spec, name=last.names[spec.id]) for spec in prepared.plan.runs)
        return replace(prepared, plan=replace(prepared.plan, runs=runs), set_number=last.number)
    if options.retry and options.load.dialect == "runx":  # `assay runx --retry` starts nothing new
        raise _refuse_retry(prepared, numbers)
    return _begin_set(prepared, numbers, _load_known(prepared.location, numbers) if options.keeps_finished else {})


def _refuse_retry(prepared: Prepared, numbers: Sequence[int]) -> UsageError:
    if not numbers:
        return UsageError(f"{prepared.location.name} has no runs to repeat", "leave out --retry")
    _, overrides = _load(_set_path(prepared.location, numbers[-1]))
    if tuple(overrides) == tuple(prepared.shown_overrides):
        return UsageError(
            f"{prepared.study.source} describes other runs than the newest ones of {prepared.location.name}",
            f"leave out --retry to run them; repeat a run by its name with: assay rerun {prepared.location.name}/RUN",
        )
    words = build_command(("assay", "runx"), [prepared.study.source, *overrides], ("--retry", "failed"))
    begun = f"with {' '.join(overrides)}" if overrides else "without overrides"
    return UsageError(f"the newest runs of {prepared.location.name} were begun {begun}", f"repeat them: {words}")


def _begin_set(prepared: Prepared, numbers: Sequence[int], known: Mapping[str, str]) -> Prepared:
    """`known`: runs of earlier sets that are kept. The others get names that no directory has: --no_cooldir repeats."""
    runs = LazyRuns(_name_freely(prepared.plan.runs, known, list_names(prepared.location.dir)))
    number = max(numbers, default=0) + 1
    return replace(prepared, plan=replace(prepared.plan, runs=runs), set_number=number)


def _name_freely(runs: Iterable[RunSpec], known: Mapping[str, str], present: set[str]) -> Iterator[RunSpec]:
    taken = present.union(known.values())
    for spec in runs:
        name = known.get(spec.id) or spec.name
        if spec.id not in known and name in taken:
            name = next(each for number in count(2) if (each := f"{spec.name}_{number}") not in taken)
        taken.add(name)
        yield spec if name == spec.name else replace(spec, name=name)


def pin(prepared: Prepared) -> Prepared:
    """Write the set down, unless it is; a supervisor that came second takes the names of the first."""
    if prepared.set_number is None:
        return prepared
    names = {spec.id: spec.name for spec in prepared.plan.runs}
    path = _set_path(prepared.location, prepared.set_number)
    overrides = {"overrides": list(prepared.shown_overrides)} if prepared.shown_overrides else {}
    if publish(path, json.dumps(stamp({"runs": names, **overrides}, "set"), indent=1)):
        return prepared
    pinned = _load(path)[0]
    runs = tuple(replace(spec, name=pinned.get(spec.id, spec.name)) for spec in prepared.plan.runs)
    return replace(prepared, plan=replace(prepared.plan, runs=runs))


def _set_path(location: StudyLocation, number: int) -> str:
    return os.path.join(location.dir, layout.STUDY_META_DIR, f"set.{number}.json")


def _list_numbers(location: StudyLocation) -> list[int]:
    try:
        names = os.listdir(os.path.join(location.dir, layout.STUDY_META_DIR))
    except OSError:
        return []
    return sorted(int(match[1]) for name in names if (match := re.fullmatch(_SET_FILE, name)))


def _load_last(prepared: Prepared, numbers: Sequence[int]) -> RunSet | None:
    """The newest set with the overrides of this call: those with others are in nobody's way."""
    for number in reversed(numbers):
        names, overrides = _load(_set_path(prepared.location, number))
        if overrides == prepared.shown_overrides:
            return RunSet(number, names)
    return None


def _load_known(location: StudyLocation, numbers: Sequence[int]) -> dict[str, str]:
    """Every run of every set; of one that several sets ran, the newest."""
    known: dict[str, str] = {}
    for number in numbers:
        known |= _load(_set_path(location, number))[0]
    return known


def _load(path: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """The names and the overrides of a set."""
    try:
        with open(path, encoding="utf-8") as file:
            fields = parse_json(file.read())
        names: dict[str, str] = fields["runs"]
        return names, tuple(fields.get("overrides", ()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"{path} is damaged: {error}", "remove it to start a new set of runs") from error


def _is_unfinished(location: StudyLocation, last: RunSet) -> bool:
    return any(not _is_over(os.path.join(location.dir, name)) for name in last.names.values())


def _is_over(run_dir: str) -> bool:
    if not os.path.isdir(run_dir) or is_foreign(run_dir):
        return False
    status = load_status(run_dir)
    last = status.history.last
    if last is None or not status.state.is_over:
        return False
    if last.outcome is None:  # nobody has concluded: its supervisor left, or died
        return status.state not in (State.LOST, State.STOPPED)
    return not (status.state is State.STOPPED and last.stop is not None and last.stop.kind == "interrupt")
