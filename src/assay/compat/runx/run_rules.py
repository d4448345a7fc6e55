"""The launch of runx's runs: in sets, each with its own names, and with runx's files in their directories.

Each call of `assay runx FILE` starts new runs, or continues the runs of the previous call if that was interrupted.

The names of a set are random, so a file (`.assay/set.N.json`) records them before the first run starts: a later
call, or a second supervisor, reads the same names. A supervisor holds a shared lock on the file of its set.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from typing import TYPE_CHECKING, Any, Literal

from assay.compat import originals
from assay.compat.runx.planner import LazyRuns
from assay.compat.runx.study_file import TAG
from assay.errors import FormatError, UsageError
from assay.follow.locations import show_command
from assay.follow.run_status import load_status
from assay.launch.prepared import Prepared
from assay.launch.run_rules import RunRules
from assay.record.formats import Format, build_damage, read_versioned, stamp
from assay.record.received import is_foreign
from assay.record.run_directory import RunRecord
from assay.system.fast_dataclasses import dataclass, replace
from assay.system.files import list_names, publish, read_text
from assay.system.locks import try_lock_file
from assay.values import layout
from assay.values.run import RunSpec, State, build_command
from assay.values.study import Problem

if TYPE_CHECKING:
    from assay.follow.locations import StudyLocation

FORMATS = {"set": Format(1, "delete the file: the next `assay runx` begins a new set")}
_SET_FILE = r"set\.(\d+)\.json"


class RunxRules(RunRules):
    def name_runs(self, prepared: Prepared) -> Prepared:
        """Return the plan with the names of the set that this call belongs to, without writing anything."""
        options = prepared.options
        tag, numbers = options.tag, _list_numbers(prepared.location)
        # only `assay runx` gives a tag: `assay run`, and --retry without a tag, accept sets with any tag
        sets = (_load(prepared.location, number) for number in reversed(numbers))
        ours = (each for each in sets if each.overrides == prepared.shown_overrides)
        last = next((each for each in ours if each.tag == tag or (options.keeps_finished and tag is None)), None)
        is_same = last is not None and last.names.keys() == {spec.id for spec in prepared.plan.runs}
        if last is not None and is_same and (options.keeps_finished or _is_interrupted(prepared.location, last)):
            runs = tuple(replace(spec, name=last.names[spec.id]) for spec in prepared.plan.runs)
            return replace(prepared, plan=replace(prepared.plan, runs=runs), set_number=last.number)
        if options.retry and options.load.dialect == "runx":  # `assay runx --retry` never starts new runs
            raise _refuse_retry(prepared, numbers)
        known: dict[str, str] = {}
        for number in numbers if options.keeps_finished else ():
            known |= _load(prepared.location, number).names  # a run of several sets has its newest name
        return _begin_set(prepared, numbers, known)

    @contextmanager
    def hold(self, prepared: Prepared) -> Iterator[Prepared]:
        pinned = pin(prepared)
        with held(pinned):
            yield pinned

    def write_files(self, prepared: Prepared, aside: str, spec: RunSpec, run_dir: str) -> None:
        """Write the files that runx and logx write when they create the directory."""
        del prepared
        originals.write_hparams(aside, spec.params, run_dir)
        _write_submit_script(aside, spec, run_dir)

    def load_params(self, record: RunRecord) -> dict[str, Any]:
        tag = {TAG: record.spec.tag} if record.spec.tag else {}
        return {**record.spec.params, **tag}

    def choose_varied(self, runs: Sequence[RunSpec], record: RunRecord) -> list[RunSpec]:
        del record
        return list(runs)


def _write_submit_script(aside: str, spec: RunSpec, run_dir: str) -> None:
    """Write submit_cmd.sh, with which a user can repeat the training in the run's own copy of the code."""
    code = shlex.quote(os.path.join(run_dir, layout.CODE_DIR))
    path = layout.show_command(f'"{spec.pythonpath or ""}"', run_dir)
    hidden = spec.private.env if spec.private is not None else {}
    exports = "".join(f"export {key}={shlex.quote(value)}; " for key, value in spec.env if key not in hidden)
    training = layout.show_command(spec.commands[0].text, run_dir)
    if spec.private is not None:
        exports += f"export {layout.ENV_RUN_DIR}={shlex.quote(run_dir)}; "
        exports += f". {shlex.quote(os.path.join(run_dir, layout.SECRETS_FILE))} || exit 1; "
        training = 'eval "$_text_0"' if spec.commands[0].name in spec.private.commands else training
    with open(os.path.join(aside, layout.SUBMIT_SCRIPT), "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(f"cd {code} || exit 1; {exports}export PYTHONPATH={path}; {training}\n")


# ---------------------------------------------------------------- sets


@dataclass(frozen=True, slots=True)
class RunSet:
    number: int
    names: dict[str, str]  # run id -> directory name
    overrides: tuple[str, ...] = ()
    tag: str | None = None


def _refuse_retry(prepared: Prepared, numbers: Sequence[int]) -> UsageError:
    if not numbers:
        return UsageError(f"{prepared.location.name} has no runs to repeat", "leave out --retry")
    overrides = _load(prepared.location, numbers[-1]).overrides
    if tuple(overrides) == tuple(prepared.shown_overrides):
        return UsageError(
            f"{prepared.study.source} describes other runs than the newest ones of {prepared.location.name}",
            f"leave out --retry to run them; repeat a run by its name with: assay rerun {prepared.location.name}/RUN",
        )
    words = build_command(("assay", "runx"), [prepared.study.source, *overrides], ("--retry", "failed"))
    begun = f"with {' '.join(overrides)}" if overrides else "without overrides"
    return UsageError(f"the newest runs of {prepared.location.name} were begun {begun}", f"repeat them: {words}")


def _begin_set(prepared: Prepared, numbers: Sequence[int], known: Mapping[str, str]) -> Prepared:
    """Begin a set that keeps `known` names. Other runs get names that no directory has: --no_cooldir repeats names."""
    location, taken, living = prepared.location, list_names(prepared.location.dir), 0
    if not prepared.options.keeps_finished:
        taken = taken.union(*_list_names(location, numbers))
        living = _count_living(location, numbers)
    runs = LazyRuns(_name_freely(prepared.plan.runs, known, taken))
    warnings = prepared.plan.warnings
    if living:
        are = "1 run of an earlier call is" if living == 1 else f"{living} runs of earlier calls are"
        text = f"{are} still waiting or running, and this call starts new ones"
        warnings = (*warnings, Problem(text, "", None, f"those go on: {show_command(['ls'], location)}"))
    plan = replace(prepared.plan, runs=runs, warnings=warnings)
    return replace(prepared, plan=plan, set_number=max(numbers, default=0) + 1, is_new_set=True, is_beside=living > 0)


def _list_names(location: StudyLocation, numbers: Sequence[int]) -> Iterator[Iterable[str]]:
    """Yield the names of the runs of each set, also of runs without a directory."""
    for number in numbers:
        try:
            yield _load(location, number).names.values()
        except FormatError:  # names in a damaged file are not in use
            yield ()


def _name_freely(runs: Iterable[RunSpec], known: Mapping[str, str], present: set[str]) -> Iterator[RunSpec]:
    taken = present.union(known.values())
    for spec in runs:
        name = known.get(spec.id) or spec.name
        if spec.id not in known and name in taken:
            name = next(each for number in count(2) if (each := f"{spec.name}_{number}") not in taken)
        taken.add(name)
        yield spec if name == spec.name else replace(spec, name=name)


def pin(prepared: Prepared) -> Prepared:
    """Write the file of the set if it does not exist. If another call of `assay runx` was faster, begin another set; a
    second supervisor of the same set uses the names in the file."""
    if prepared.set_number is None:
        return prepared
    names = {spec.id: spec.name for spec in prepared.plan.runs}
    path = _set_path(prepared.location, prepared.set_number)
    more = {"overrides": list(prepared.shown_overrides), "tag": prepared.options.tag}
    fields = {"runs": names, **{key: value for key, value in more.items() if value}}
    if publish(path, json.dumps(stamp(fields, "set", FORMATS), indent=1)):
        return prepared
    if prepared.is_new_set and not prepared.options.keeps_finished:
        return pin(_begin_set(prepared, _list_numbers(prepared.location), {}))
    pinned = _load(prepared.location, prepared.set_number).names
    runs = tuple(replace(spec, name=pinned.get(spec.id, spec.name)) for spec in prepared.plan.runs)
    return replace(prepared, plan=replace(prepared.plan, runs=runs))


@contextmanager
def held(prepared: Prepared) -> Iterator[None]:
    """Lock the set as supervised, so that it does not count as interrupted, if the file system supports locks."""
    fd = None
    if prepared.set_number is not None:
        with suppress(OSError):
            fd = try_lock_file(_set_path(prepared.location, prepared.set_number), shared=True)
    try:
        yield
    finally:
        if fd is not None:
            os.close(fd)


def _is_supervised(location: StudyLocation, number: int) -> bool:
    with suppress(OSError):
        fd = try_lock_file(_set_path(location, number))
        if fd is not None:
            os.close(fd)
        return fd is None
    return False


def _set_path(location: StudyLocation, number: int) -> str:
    return os.path.join(location.dir, layout.STUDY_META_DIR, f"set.{number}.json")


def _list_numbers(location: StudyLocation) -> list[int]:
    names = list_names(os.path.join(location.dir, layout.STUDY_META_DIR))
    return sorted(int(match[1]) for name in names if (match := re.fullmatch(_SET_FILE, name)))


def _load(location: StudyLocation, number: int) -> RunSet:
    path = _set_path(location, number)
    fields = read_versioned(read_text(path), "set", path, FORMATS)
    try:
        names = {str(id_): _check_name(name) for id_, name in fields["runs"].items()}
        overrides, tag = fields.get("overrides", []), fields.get("tag") or ""
        if not isinstance(overrides, list) or not all(isinstance(word, str) for word in (*overrides, tag)):
            raise ValueError("its overrides or its tag are not strings")  # noqa: TRY301 reported below like any other
        return RunSet(number, names, tuple(overrides), tag or None)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise build_damage(path, str(error), FORMATS["set"]) from error


def _check_name(name: str) -> str:
    """Refuse a name that leads to another folder: `assay pull` may have fetched the file."""
    if "/" in name or name.startswith(".") or not name:
        raise ValueError(f"{name!r} is not the name of a run")
    return name


def _is_interrupted(location: StudyLocation, last: RunSet) -> bool:
    """Return whether runs of the set are left and the set has no supervisor. Runs that a farm has do not count."""
    rests = (_find_rest(os.path.join(location.dir, name)) for name in last.names.values())
    return not _is_supervised(location, last.number) and "left" in rests


def _count_living(location: StudyLocation, numbers: Sequence[int]) -> int:
    """Count runs of earlier sets that go on without this call: running, on a farm, or queued by a live supervisor.
    There may be hundreds of sets, so counting stops at the newest set without living runs."""
    living = 0
    for number, names in zip(reversed(numbers), _list_names(location, numbers[::-1]), strict=True):
        words = ("running", "left") if _is_supervised(location, number) else ("running",)
        here = sum(_find_rest(os.path.join(location.dir, name)) in words for name in names)
        living += here
        if not here:
            break
    return living


def _find_rest(run_dir: str) -> Literal["", "left", "running"]:
    """Return "running" for a run that goes on, "left" if it must still be run or continued, else ""."""
    if not os.path.isdir(run_dir) or is_foreign(run_dir):
        return "left"
    status = load_status(run_dir)
    last = status.history.last
    if last is None or not status.state.is_over:
        return "left" if last is None else "running"
    if last.outcome is None:  # no outcome: the run's supervisor exited or died
        return "left" if status.state in (State.LOST, State.STOPPED) else ""
    return "left" if status.state is State.STOPPED and last.stop is not None and last.stop.kind == "interrupt" else ""
