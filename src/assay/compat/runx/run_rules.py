"""How runx's runs are launched: in sets, each with its own names, and with its files in their directories.

Each call of `assay runx FILE` starts new runs, unless the one before was interrupted: it is continued.

The names of a set are random, so they are written down once (`.assay/set.N.json`) before the first run starts:
a later call, or a second supervisor, finds the same names. A supervisor holds a shared lock on the file of its set.
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
from assay.record.formats import Format, stamp
from assay.record.received import is_foreign
from assay.record.run_directory import RunRecord
from assay.system.fast_dataclasses import dataclass, replace
from assay.system.files import list_names, parse_json, publish, read_text
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
        """The plan with the names of the set that this call belongs to; writes nothing."""
        options = prepared.options
        numbers = _list_numbers(prepared.location)
        last = _load_last(prepared, numbers)
        is_same = last is not None and last.names.keys() == {spec.id for spec in prepared.plan.runs}
        if last is not None and is_same and (options.keeps_finished or _is_interrupted(prepared.location, last)):
            runs = tuple(replace(spec, name=last.names[spec.id]) for spec in prepared.plan.runs)
            return replace(prepared, plan=replace(prepared.plan, runs=runs), set_number=last.number)
        if options.retry and options.load.dialect == "runx":  # `assay runx --retry` starts nothing new
            raise _refuse_retry(prepared, numbers)
        known: dict[str, str] = {}
        for number in numbers if options.keeps_finished else ():
            known |= _load(prepared.location, number).names  # of a run that several sets ran, the newest
        return _begin_set(prepared, numbers, known)

    @contextmanager
    def hold(self, prepared: Prepared) -> Iterator[Prepared]:
        pinned = pin(prepared)
        with held(pinned):
            yield pinned

    def write_files(self, prepared: Prepared, aside: str, spec: RunSpec, run_dir: str) -> None:
        """What runx and logx write when they make the directory."""
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
    """`bash submit_cmd.sh` repeats the training by hand, inside the run's own copy of the code."""
    code = shlex.quote(os.path.join(run_dir, layout.CODE_DIR))
    path = layout.show_command(f'"{spec.pythonpath or ""}"', run_dir)
    hidden = spec.private.env if spec.private is not None else {}
    exports = "".join(f"export {key}={shlex.quote(value)}; " for key, value in spec.env if key not in hidden)
    training = layout.show_command(spec.commands[0].text, run_dir)
    if spec.private is not None:
        exports += f"export {layout.ENV_RUN_DIR}={shlex.quote(run_dir)}; "
        exports += f". {shlex.quote(os.path.join(run_dir, layout.SECRETS_FILE))} || exit 1; "
        training = 'eval "$_text_0"' if spec.commands[0].name in spec.private.commands else training
    text = f"cd {code} || exit 1; {exports}export PYTHONPATH={path}; {training}\n"
    with open(os.path.join(aside, layout.SUBMIT_SCRIPT), "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)


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
    """`known`: runs of earlier sets that are kept. The others get names that no directory has: --no_cooldir repeats."""
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
    """Names that belong to runs of a set, also where they have no directory yet."""
    for number in numbers:
        try:
            yield _load(location, number).names.values()
        except FormatError:  # a damaged one blocks nothing here
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
    """Write the set down, unless it is. A call of `assay runx` that came second has a set of its own; another
    supervisor of the same set takes the names of the first."""
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
    """While a supervisor is inside, the set is not interrupted. A file system without locks knows nothing of it."""
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
    try:
        names = os.listdir(os.path.join(location.dir, layout.STUDY_META_DIR))
    except OSError:
        return []
    return sorted(int(match[1]) for name in names if (match := re.fullmatch(_SET_FILE, name)))


def _load_last(prepared: Prepared, numbers: Sequence[int]) -> RunSet | None:
    """The newest set with the overrides and the tag of this call: those with others do not count.

    Only `assay runx` gives a tag: `assay run`, and a --retry without one, take the newest.
    """
    tag, keeps = prepared.options.tag, prepared.options.keeps_finished
    for number in reversed(numbers):
        found = _load(prepared.location, number)
        if found.overrides == prepared.shown_overrides and (found.tag == tag or (keeps and tag is None)):
            return found
    return None


def _load(location: StudyLocation, number: int) -> RunSet:
    path = _set_path(location, number)
    try:
        fields = parse_json(read_text(path))
        names = {str(id_): _check_name(name) for id_, name in fields["runs"].items()}
        return RunSet(number, names, tuple(fields.get("overrides", ())), fields.get("tag"))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"{path} is damaged: {error}", "remove it to start a new set of runs") from error


def _check_name(name: str) -> str:
    """The file may have come with `assay pull`: a name leads nowhere else."""
    if "/" in name or name.startswith(".") or not name:
        raise ValueError(f"{name!r} is not the name of a run")
    return name


def _is_interrupted(location: StudyLocation, last: RunSet) -> bool:
    """Whether it has no supervisor, and runs of it have not ended; what a farm has is not interrupted."""
    if _is_supervised(location, last.number):
        return False
    return any(_find_rest(os.path.join(location.dir, name)) == "left" for name in last.names.values())


def _count_living(location: StudyLocation, numbers: Sequence[int]) -> int:
    """Runs of earlier sets that go on without this call: under way, with a farm, or waiting for a living supervisor.

    The newest sets are looked at, up to the first of which nothing goes on: there may be hundreds.
    """
    living = 0
    for number, names in zip(reversed(numbers), _list_names(location, numbers[::-1]), strict=True):
        words = ("running", "left") if _is_supervised(location, number) else ("running",)
        here = sum(_find_rest(os.path.join(location.dir, name)) in words for name in names)
        living += here
        if not here:
            break
    return living


def _find_rest(run_dir: str) -> Literal["", "left", "running"]:
    """What is still to come of a run: nothing, all or a part of it that waits, or what is under way."""
    if not os.path.isdir(run_dir) or is_foreign(run_dir):
        return "left"
    status = load_status(run_dir)
    last = status.history.last
    if last is None or not status.state.is_over:
        return "left" if last is None else "running"
    if last.outcome is None:  # it is not concluded: its supervisor left, or died
        return "left" if status.state in (State.LOST, State.STOPPED) else ""
    return "left" if status.state is State.STOPPED and last.stop is not None and last.stop.kind == "interrupt" else ""
