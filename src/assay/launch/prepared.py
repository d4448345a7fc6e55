"""The options, plan, checks and dry run of a study, for which nothing is written, and its report at the end."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from assay.config.fields import LoadOptions
from assay.config.settings import Settings
from assay.errors import ConfigError, ExitCode
from assay.execute.places import find_executor, load_liveness
from assay.follow.attempts import Action, RetryPolicy, decide
from assay.follow.entry import Entry
from assay.follow.locations import StudyLocation, check_writable, show_path
from assay.follow.refresh import load_history
from assay.plugins import find_dialect, load
from assay.record import run_directory
from assay.record.checkpoints import find_newer
from assay.record.received import is_foreign
from assay.record.run_directory import Attempt, History
from assay.record.search_file import SearchFile
from assay.system.fast_dataclasses import dataclass, field, replace
from assay.system.files import blake2b, list_names
from assay.values import layout
from assay.values.run import SHELL_WORDS, FolderRun, JobRequest, Plan, RunSpec, State, build_command
from assay.values.secrets import hide_assignment, holds_secrets
from assay.values.state import FAILED
from assay.values.study import Farm, Problem, Study
from assay.values.verdict import Verdict

if TYPE_CHECKING:
    from assay.launch.budget import Budget
    from assay.values.where import Where

_ASSIGNMENT = r"[A-Za-z_]\w*=\S*"
_PLAIN_WORD = r"[\w./+@%,:-]+"
# words that may precede a program, and builtins of bash, which are not looked up as programs
_NOT_PROGRAMS = SHELL_WORDS | {"!", ":", "[", "[[", "echo", "false", "printf", "pwd", "test", "true", "{", "}"}
_BAD = (State.FAILED, State.TIMEOUT, State.LOST, State.STOPPED)
_EXIT_CODES = {**dict.fromkeys(_BAD, ExitCode.FAILED), State.DAMAGED: ExitCode.INTERNAL}


@dataclass(frozen=True, slots=True)
class Again:
    """The parts of a call that the command for its failed runs repeats, which has no --force and output options."""

    words: tuple[str, ...]  # the command, such as `assay run`
    file: str | None = None
    options: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()  # NAME=VALUE; they follow the file
    takes_retry: bool = True  # whether the command has --retry and --new-code; else the same call repeats failed runs

    def build(self, *more: str) -> str:
        operands = [*([self.file] if self.file is not None else []), *self.overrides]
        return build_command(self.words, operands, (*self.options, *more))


@dataclass(frozen=True, slots=True)
class Origin:
    """The run that a new run repeats with changes (`assay rerun RUN NAME=VALUE`), and the code of the new run."""

    parent: str | None  # the key of the repeated run; None: the run repeats no other run, and has code of its own
    overrides: tuple[str, ...] = ()  # the parent's overrides and the new ones, without their secrets
    settings: tuple[str, ...] = ()  # the parent's assignments of --set and the new ones, without their secrets
    code_hash: str | None = None  # the snapshot that the run gets; None: the current code, or live code
    commit: str | None = None  # the commit of the snapshot `code_hash`
    failed_code: str | None = None  # the snapshot of a failed parent, which the current code replaces


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of a command that starts runs."""

    file: str = ""
    root: str | None = None
    study: str | None = None
    slots: tuple[str, ...] | None = None
    on: str | None = None  # a farm; None: the file's default; "local": this machine
    titles: tuple[str, ...] | None = None  # empty or None: all parts of the file
    commands: tuple[str, ...] | None = None  # empty or None: all commands
    where: Where | None = None  # start only the planned runs that match
    sample: int | None = None
    seed: int | None = None
    retry: frozenset[State] = frozenset()
    force: bool = False  # repeat runs that are finished
    names_runs: bool = False  # the call names its runs (`assay rerun`): each choice of runs is another pass of --force
    new_code: bool = False
    old_code: bool = False  # a failed run that is repeated keeps its snapshot, even if the code has changed since
    code: str | None = None  # "live" or "snapshot" instead of the file's
    load: LoadOptions = field(default_factory=LoadOptions)
    tag: str | None = None
    cooldir: bool = True
    keeps_finished: bool = True  # False: if all runs are finished and the dialect counts calls, start new runs
    output: str | None = None  # the study's folder as given in the call
    shares_output: bool = False  # the runs have one folder of results in common
    grace_s: float = 10.0
    command_line: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()  # NAME=VALUE: parameters
    settings: tuple[str, ...] = ()  # KEY=VALUE: other keys of the file (--set)
    from_checkpoint: bool = False  # new runs begin with the newest checkpoint of their parents, by the key `resume:`
    origins: Mapping[str, Origin] = field(default_factory=dict)  # run id -> the run that it repeats
    again: Again | None = None  # for a command that repeats failed runs; None: such a command can only name the runs
    extras: Mapping[str, Any] = field(default_factory=dict)  # the given options of plug-ins
    budget: Budget | None = None


@dataclass(frozen=True, slots=True)
class Prepared:
    """Everything that is known before anything is written, as a dry run shows it."""

    study: Study
    plan: Plan
    location: StudyLocation
    root_was_asked: bool
    farm: Farm | None
    settings: Settings
    options: RunOptions
    set_number: int | None = None  # the number of this call in a dialect that counts calls
    is_new_set: bool = False  # this call begins the set
    is_beside: bool = False  # runs of an earlier set still run
    search: SearchFile | None = None  # the search that the file asks for; `plan` holds its trials so far
    samples: tuple[RunSpec, ...] = ()  # an example run of each sweep of a search

    @property
    def warnings(self) -> tuple[Problem, ...]:
        return tuple(dict.fromkeys((*self.study.warnings, *self.plan.warnings)))

    @property
    def shown_overrides(self) -> tuple[str, ...]:
        """The overrides of this call without their secrets, as run.json keeps them."""
        return tuple(hide_assignment(text, self.settings.secrets) for text in self.options.overrides)

    @property
    def shown_settings(self) -> tuple[str, ...]:
        """The assignments of --set without their secrets, as run.json keeps them."""
        return tuple(hide_assignment(text, self.settings.secrets) for text in self.options.settings)

    @property
    def plan_key(self) -> tuple[str, ...]:
        """The key of the plan file, which differs between calls with different overrides or parents."""
        parents = {origin.parent for origin in self.options.origins.values() if origin.parent}
        beside = (f"set.{self.set_number}",) if self.is_beside else ()
        return (*self.options.overrides, *parents, *beside)

    @property
    def has_secrets(self) -> bool:
        """Whether the study's file, or a run of this call, has a secret: only the owner may read copies of the file."""
        is_private = any(spec.private is not None for spec in self.plan.runs)
        return is_private or holds_secrets(self.study.text, self.settings.secrets)

    def dir_of(self, spec: RunSpec) -> str:
        return os.path.join(self.location.dir, spec.name)


@dataclass(frozen=True, slots=True)
class StepResult:
    """The part of a report that a step of a plug-in adds."""

    lines: tuple[str, ...]
    warnings: tuple[str, ...]
    exit_code: ExitCode
    facts: Mapping[str, Any]  # added to the output of `--json`


@dataclass(slots=True)
class Report:
    """The state of a study when its supervisor ends."""

    prepared: Prepared
    entries: list[Entry]
    interrupted: str | None = None  # the signal, or `assay stop`
    is_stopped: bool = False  # whether `assay stop` ended a run: the same call alone does not start it again
    left: bool = False
    problem: str | None = None
    verdict: Verdict | None = None  # the verdict of the study's checks on the runs that are done
    notes: list[str] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)  # commands that belong to the notes
    result: StepResult | None = None
    held_back: list[str] = field(default_factory=list)  # runs that did not start: the budget was used

    def count(self, *states: State) -> int:
        return sum(entry.state in states for entry in self.entries)

    @property
    def failed(self) -> list[Entry]:
        return [entry for entry in self.entries if entry.state in FAILED]

    @property
    def exit_code(self) -> ExitCode:
        ended = (entry.state for entry in self.entries if entry.spec.name not in self.held_back)
        codes = {_EXIT_CODES.get(state, ExitCode.OK) for state in ended}
        if self.interrupted:
            codes.add(ExitCode.INTERRUPTED)
        if self.problem:
            codes.add(ExitCode.INTERNAL)
        if self.verdict is not None:
            codes.add(self.verdict.kind.exit_code)
        if self.result is not None:
            codes.add(self.result.exit_code)
        if self.held_back:
            codes.add(ExitCode.INCONCLUSIVE)
        return ExitCode.worst(codes)


def wanted_commands(spec: RunSpec, asked: tuple[str, ...] | None) -> list[str]:
    names = [command.name for command in spec.commands]
    wanted = asked or spec.chosen
    return names if wanted is None else [name for name in names if name in wanted]


def left_commands(prepared: Prepared, spec: RunSpec) -> list[str]:
    """Return the commands that a call would start now: not finished, not running, and not failed without a retry."""
    wanted = wanted_commands(spec, prepared.options.commands)
    run_dir = prepared.dir_of(spec)
    if not os.path.isdir(run_dir) or is_foreign(run_dir):
        return wanted
    if os.path.exists(os.path.join(run_dir, layout.RUN_FILE)):
        finished = _load_finished(prepared, spec, tuple(wanted))
        return [] if finished is None else [name for name in wanted if name not in finished]
    # a directory that the dialect's tool made
    reader = find_dialect(prepared.study.dialect).folder_reader
    run: FolderRun | None = load(reader)(run_dir) if reader and not prepared.options.force else None
    if run is not None and run.state is State.FAILED and State.FAILED not in prepared.options.retry:
        return []
    return [name for name in wanted if run is None or name not in run.finished]


def _load_finished(prepared: Prepared, spec: RunSpec, wanted: tuple[str, ...]) -> set[str] | None:
    """Return the commands that earlier attempts finished; None if a call would not start an attempt of the run."""
    run_dir = prepared.dir_of(spec)
    history = load_history(run_dir)
    last, again = history.last, prepared.options.retry
    base = last.number if last else 0
    if prepared.options.force:
        repeat = find_repeat(prepared, spec, last, run_directory.load_pass(find_pass(prepared)))
        if repeat.begun == repeat.last:  # an interrupted --force has not begun an attempt of this run
            return set()
        again, base = frozenset(State), repeat.base
    policy = RetryPolicy(spec.retries, again, base).begin(history)
    liveness, newer = partial(load_liveness, run_dir=run_dir), partial(find_newer, run_dir)
    decision = decide(history, wanted, liveness, policy, newer)
    is_again = decision.action is Action.START
    if not is_again and last is not None and decision.outcome is not None:
        ended = replace(last, outcome=decision.outcome)
        is_again = policy.wants_another(History((*history.attempts[:-1], ended)))
    return history.finished_commands() if is_again else None


# ---------------------------------------------------------------- --force: a pass that may be interrupted


@dataclass(frozen=True, slots=True)
class Repeat:
    """The attempts of a run that count for a --force."""

    begun: int  # the last attempt before the --force
    base: int  # the last attempt that does not count
    last: int

    @property
    def is_kept(self) -> bool:
        """Whether the --force has already repeated the run."""
        return self.base == self.begun < self.last


def find_pass(
    prepared: Prepared, *, new_code: bool | None = None, codes: Mapping[str, str] = MappingProxyType({})
) -> str:
    """Return the path of the file about a --force, which is the same for the same call. `codes`: run name -> hash of
    the code that the run's next attempt gets, if that is not the code that the run has."""
    options = prepared.options
    key: list[object] = [sorted(options.commands or ()), options.new_code if new_code is None else new_code]
    if options.names_runs:
        key += sorted((s.name, codes.get(s.name) or _load_code_hash(prepared, s) or "") for s in prepared.plan.runs)
    name = blake2b(json.dumps(key).encode(), digest_size=6).hexdigest()
    return os.path.join(prepared.location.dir, layout.STUDY_META_DIR, f"{layout.PASS_PREFIX}{name}.json")


def find_repeat(
    prepared: Prepared, spec: RunSpec, last: Attempt | None, begun: Mapping[str, int], code: str | None = None
) -> Repeat:
    """Find the attempts that count for a --force. `code`: with --new-code, the only code whose repetitions count."""
    if last is None:
        return Repeat(0, 0, 0)
    before = min(begun.get(spec.name, last.number), last.number)
    if before < last.number and code is not None and _load_code_hash(prepared, spec) not in (None, code):
        before = last.number
    again = {State.STOPPED, State.LOST, *prepared.options.retry}
    is_again = last.outcome is not None and last.outcome.state in again
    return Repeat(before, last.number if is_again else before, last.number)


def _load_code_hash(prepared: Prepared, spec: RunSpec) -> str | None:
    record = run_directory.try_record(prepared.dir_of(spec))
    return record.code_hash if record else None


def describe_kept(prepared: Prepared, kept: int, path: str) -> str:
    runs = f"{kept} of {len(prepared.plan.runs)} runs {'has' if kept == 1 else 'have'}"
    first = build_command(("rm",), [show_path(path)])
    are = "is" if kept == 1 else "are"
    return f"continues an unfinished --force: {runs} been repeated and {are} kept (to repeat all, first: {first})"


def describe_unfinished(prepared: Prepared, last: Mapping[str, int]) -> list[tuple[str, str]]:
    """Describe the runs that an interrupted --force has not repeated, with the command that repeats them."""
    again, found = prepared.options.again, []
    if prepared.options.force or again is None or again.words != ("assay", "run"):
        return []
    for new_code in (False, True):
        path = find_pass(prepared, new_code=new_code)
        left = [name for name, number in run_directory.load_pass(path).items() if last.get(name, number + 1) <= number]
        if left:
            runs = "1 run has" if len(left) == 1 else f"{len(left)} runs have"
            drop = build_command(("rm",), [show_path(path)])
            note = f"{runs} not been repeated yet by a --force that was interrupted (to leave it so: {drop})"
            found.append((note, again.build("--force", *(("--new-code",) if new_code else ()))))
    return found


# ---------------------------------------------------------------- checks before a start


def check_prepared(prepared: Prepared) -> None:
    """Refuse a study that could not be started, before a command prints where its runs are written."""
    check_writable(prepared.location, find_dialect(prepared.study.dialect).root_hint)
    plan = prepared.plan
    check_executables(prepared.study, replace(plan, runs=prepared.samples) if prepared.samples else plan)
    if prepared.farm is not None:
        check_farm(prepared.farm, prepared.study)


def check_executables(study: Study, plan: Plan) -> None:
    """Refuse a command whose program is missing: one problem for each program."""
    problems = {}
    path = dict(study.env).get("PATH")
    for program, name in _list_programs(plan):
        if program not in problems and not _exists(program, study.folder, path):
            position = next((template.position for template in study.commands if template.name == name), None)
            hint = "install it, correct the name, or give its full path"
            key = find_dialect(study.dialect).command_key.format(name=name)
            problems[program] = Problem(f"the program {program!r} was not found", key, position, hint)
    if problems:
        raise ConfigError(list(problems.values()))


def check_farm(farm: Farm, study: Study) -> None:
    """Refuse an engine that cannot be used, or a submit command whose program is missing."""
    executor = find_executor(farm.executor)
    executor.check(farm)
    program = executor.find_program(farm)
    if program is None or program in _NOT_PROGRAMS or _exists(program, os.getcwd(), os.environ.get("PATH")):
        return
    dialect = find_dialect(study.dialect)
    where = dialect.farm_key.format(name=farm.name)
    hint = f"install it, correct the name, or give its full path; {dialect.farm_hint}"
    raise ConfigError([Problem(f"the program {program!r} that submits was not found", where, farm.position, hint)])


def _list_programs(plan: Plan) -> Iterator[tuple[str, str]]:
    seen = set()
    for spec in plan.runs:
        for index, command in enumerate(spec.commands):
            program = first_program(command.text)
            if program and index and os.sep in program and not os.path.isabs(program):
                continue  # an earlier command may build the program
            if program and (program, command.name) not in seen:
                seen.add((program, command.name))
                yield program, command.name


def first_program(text: str) -> str | None:
    """Return the program that a command starts with; None if only the shell can find it."""
    for word in text.split():
        if re.fullmatch(_ASSIGNMENT, word):
            continue
        return word if re.fullmatch(_PLAIN_WORD, word) and word not in _NOT_PROGRAMS else None
    return None


def _exists(program: str, folder: str, path: str | None) -> bool:
    if os.sep in program:
        return os.access(os.path.join(folder, program), os.X_OK)
    return shutil.which(program, path=path) is not None


# ---------------------------------------------------------------- a dry run


def build_dry_lines(prepared: Prepared) -> Iterator[str]:
    """Yield every command line that would be started, with the run directory filled in, as the shell executes it."""
    kept = 0
    folder = prepared.location.dir
    present = list_names(folder)
    for spec in prepared.plan.runs:
        is_new = spec.name not in present
        left = wanted_commands(spec, prepared.options.commands) if is_new else left_commands(prepared, spec)
        kept += not left
        for command in (command for command in spec.commands if command.name in left):
            yield build_line(prepared, spec, command.text, run_dir=f"{folder}/{spec.name}")
    if kept:
        runs = f"{kept} of {len(prepared.plan.runs)} runs"
        yield f"# {runs} {'is' if kept == 1 else 'are'} kept: finished, running, failed, or stopped by `assay stop`"


def build_line(prepared: Prepared, spec: RunSpec, text: str, attempt: int = 1, run_dir: str = "") -> str:
    """Return a run's command line; with a farm, the command line that submits it, which names a tagged run."""
    run_dir, farm = run_dir or prepared.dir_of(spec), prepared.farm
    if farm is None:
        return layout.show_command(text, run_dir)
    name, label = f"{prepared.location.name}_{spec.name}", spec.name if spec.tag else ""
    request = JobRequest(run_dir, name, attempt, farm_resources=spec.farm_resources, label=label)
    return find_executor(farm.executor).render_line(farm, request, text)


def build_dry_rows(prepared: Prepared) -> list[dict[str, Any]]:
    return [
        {
            "name": spec.name,
            "id": spec.id,
            "dir": prepared.dir_of(spec),
            "params": dict(spec.params),
            "overrides": list(prepared.shown_overrides),
            "commands": {c.name: layout.show_command(c.text, prepared.dir_of(spec)) for c in spec.commands},
            "left": left_commands(prepared, spec),
        }
        for spec in prepared.plan.runs
    ]
