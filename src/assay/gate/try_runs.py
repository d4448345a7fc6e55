"""The runs of tries: one for each side and seed, in the study `try`, and the value of the metric in each."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence

from assay.code.checkout import commit_work_tree, load_commit, open_checkouts
from assay.code.snapshot import take_snapshot
from assay.config.places import choose_farm
from assay.config.settings import Settings, load_settings
from assay.errors import AssayError, ExitCode, InfrastructureError, UsageError, did_you_mean
from assay.follow.api import Entry, Event, Source, StudyLocation, find_sources, show_command
from assay.follow.collect import Follower, Summaries
from assay.follow.log_tails import find_failed_log, load_tail
from assay.gate.tries_ledger import STUDY, Metric, TrySide
from assay.launch.api import Budget, Origin, RunHooks, build_bare_study, find_study_location, run_specs
from assay.observe.extract import POSITIONS, Extractor
from assay.show.console import Console, build_same_call
from assay.show.formatting import render_number
from assay.system.fast_dataclasses import dataclass, field, replace
from assay.values import layout
from assay.values.environment import Commit
from assay.values.run import Command, RunSpec, State, spec_id
from assay.values.series import NUMBER, expand_number
from assay.values.study import CodePolicy, Farm, Pattern, Resources

COMMAND = "train"
_TREE = "side"
_VALUE = "value"  # the metric's name in patterns: its own name may be `step`, which patterns read as a position
_CODE = CodePolicy("snapshot", link_ignored=False)
_FAILED = (State.FAILED, State.TIMEOUT)
_LEFT_OUT = "the files of the work tree that are not committed are on neither side"
_SUBMODULES = "the files of submodules are on neither side"
_LAST_LINES = 200
# text that is printed instead of a number; 0,17 is not a number either
_NO_VALUE = r"(?:(?:none|null|n/?a|undefined|diverged|overflow(?:ed)?)(?![\w.])|[-+]?\d+,\d)"
_NAMED_VALUE = rf"([A-Za-z_][\w./-]*)['\"]?(?:\s*[=:]\s*|\s+){NUMBER}"


class TryInterruptedError(AssayError):
    exit_code = ExitCode.INTERRUPTED


@dataclass(frozen=True, slots=True)
class TryPlace:
    """Where the runs of tries are stored, and how they are started."""

    location: StudyLocation
    settings: Settings
    farm: Farm | None = None
    slots: tuple[str, ...] | None = None
    timeout_s: float | None = None
    budget: Budget | None = None
    command_line: tuple[str, ...] = ()


def build_place(root: str | None, on: str | None, slots: tuple[str, ...] | None) -> TryPlace:
    settings = load_settings(os.getcwd(), os.environ)
    study = build_bare_study(STUDY, "assay try", os.getcwd())
    return TryPlace(find_study_location(STUDY, root, settings), settings, choose_farm(study, on, settings), slots)


def keep_code(place: TryPlace, a_rev: str, b_rev: str | None, console: Console) -> tuple[TrySide, TrySide, list[str]]:
    """Copy the code of both sides; return the sides, without commands, and notes. No `b_rev`: b is the work tree."""
    meta = os.path.join(place.location.dir, layout.STUDY_META_DIR)

    def keep(commit: Commit) -> TrySide:
        """Copy the files of a commit; files that git does not have are not copied."""
        trees.enter(_TREE, commit)
        snapshot = take_snapshot(trees.open(_TREE).path, os.path.join(meta, layout.CODE_STORE_DIR), link=False)
        return TrySide(snapshot.hash, commit.sha, f"{commit.short} {commit.subject}", (), inside=trees.inside[0])

    waiting = "waiting for another try, checking out in"
    with open_checkouts(os.getcwd(), meta, lambda trees: console.message(f"{waiting} {trees}")) as trees:
        base, current = load_commit(trees.repository, a_rev), load_commit(trees.repository, "HEAD")
        secret, notes = place.settings.secrets.file_patterns, []
        work = commit_work_tree(trees.open(_TREE), place.location.root, secret)
        if b_rev is not None:
            notes += [_LEFT_OUT] if work.sha != current.sha else []
            work = current = load_commit(trees.repository, b_rev)
        b = keep(work)
        if work.sha != current.sha:
            b = replace(b, commit=current.sha, title=f"the files on {current.short}")
        a = keep(base)
        notes += [_SUBMODULES] if os.path.exists(os.path.join(trees.open(_TREE).path, ".gitmodules")) else []
        return a, b, notes


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a run. `value` is None if the run failed or has no value of the metric."""

    value: float | None
    state: State
    run_dir: str
    seconds: float
    is_new: bool
    spec: RunSpec
    reason: str  # why the run failed

    @property
    def is_failed(self) -> bool:
        return self.state in _FAILED


Key = tuple[str, int, Metric]  # the side's key, the seed, the metric


@dataclass(slots=True)
class Runner:
    """Runs each side once with each seed, and reads the metric."""

    place: TryPlace
    console: Console
    results: dict[Key, Result] = field(default_factory=dict)

    def run(self, wanted: Sequence[tuple[TrySide, int, Metric]], titles: Mapping[str, str]) -> str:
        """Execute the wanted runs that have no result. `titles`: side key → name. Raises an error if a run has neither
        succeeded nor failed. Returns why some runs were not started (the budget is used), or an empty string."""
        missing = [each for each in wanted if (each[0].key, *each[1:]) not in self.results]
        jobs = {(spec := build_spec(*each, self.place.timeout_s)).name: (spec, *each) for each in missing}
        study = replace(build_bare_study(STUDY, "assay try", os.getcwd()), resources=Resources(), code=_CODE)
        origins = {spec.id: Origin(None, code_hash=side.code, commit=side.commit) for spec, side, _, _ in jobs.values()}

        def listen(event: Event) -> None:
            if event.kind != "ended":
                return
            _, side, seed, metric = jobs[event.entry.spec.name]
            end = _describe_state(event.entry)
            if event.entry.state is State.DONE:
                value = load_value(event.entry.dir, event.entry.spec, metric)
                end = f"no {metric.name}" if value is None else f"{metric.name} {render_number(value, 6)}"
            self.console.message(f"{titles[side.key]}, seed {seed}: {end}")

        report = run_specs(
            study,
            self.place.location,
            [spec for spec, *_ in jobs.values()],
            RunHooks(listen=listen, console=self.console, owns_process=True, tick_s=0.1),
            slots=self.place.slots,
            farm=self.place.farm,
            settings=self.place.settings,
            command_line=self.place.command_line,
            origins=origins,
            retry=frozenset(_FAILED),  # failed runs of earlier calls: a missing package may be installed now
            budget=self.place.budget,
        )
        if report.interrupted:
            again = f"continue with: {build_same_call()}"
            raise TryInterruptedError(f"interrupted by {report.interrupted}; what is finished is kept", again)
        if report.problem:
            raise InfrastructureError(report.problem)
        for entry in (each for each in report.entries if each.spec.name not in report.held_back):
            _, side, seed, metric = jobs[entry.spec.name]
            self.results[side.key, seed, metric] = _build_result(entry, metric, self.place)
        budget = self.place.budget
        return f"the budget of {budget.text} is used" if budget and report.held_back else ""


def build_spec(side: TrySide, seed: int, metric: Metric, timeout_s: float | None = None) -> RunSpec:
    commands, params = (Command(COMMAND, side.build_command(seed)),), {"code": side.code[:12], "seed": seed}
    params |= {"environment": side.machine[:8]} if side.machine else {}
    return RunSpec(
        id=spec_id(commands, params),
        name=f"{side.code[:8]}-{side.key[:6]}-seed{seed}",
        params=params,
        commands=commands,
        patterns=(replace(build_pattern(metric), metric=metric.name),) if metric.name not in POSITIONS else (),
        timeout_s=timeout_s,
        code=_CODE,
    )


def _build_result(entry: Entry, metric: Metric, place: TryPlace) -> Result:
    """Build a result. A run of an earlier call that took longer than the current time limit has timed out."""
    again = f"run it again: {show_command(['rerun'], place.location, entry.spec.name)}"
    if entry.state is State.STOPPED:
        raise TryInterruptedError(f"{entry.spec.name} was stopped", f"continue with: {build_same_call()}")
    if entry.state is not State.DONE and entry.state not in _FAILED:
        raise InfrastructureError(f"{entry.spec.name} is {_describe_state(entry)}", again)
    if entry.state is State.DONE and not os.path.exists(os.path.join(entry.dir, f"{COMMAND}.log")):
        raise InfrastructureError(f"{entry.spec.name} has lost its output {COMMAND}.log", again)
    outcome, seconds, state = entry.outcome, 0.0, entry.state
    if outcome and outcome.started_at and outcome.ended_at:
        seconds = max(0.0, outcome.ended_at - outcome.started_at)
    if place.timeout_s is not None and seconds > place.timeout_s and not entry.finished_here:
        state = State.TIMEOUT
    value = load_value(entry.dir, entry.spec, metric) if state is State.DONE else None
    reason = outcome.reason if outcome and outcome.reason else str(state)
    return Result(value, state, entry.dir, seconds, entry.finished_here, entry.spec, reason)


def _describe_state(entry: Entry) -> str:
    return f"{entry.state}" + (f" ({entry.outcome.reason})" if entry.outcome and entry.outcome.reason else "")


def build_pattern(metric: Metric) -> Pattern:
    """Build the pattern that finds the metric: the user's pattern, or `NAME VALUE`, `NAME=VALUE` or `NAME: VALUE`."""
    named = rf"{_build_name(metric)}({NUMBER})(?!\d|[,/]\d|[\w.]*[A-Za-z_])"
    return Pattern(_VALUE, expand_number(metric.pattern) if metric.pattern else named)


def _build_name(metric: Metric) -> str:
    return rf"(?<![\w./-]){re.escape(metric.name)}['\"]?(?:[ \t]*[=:][ \t]*|[ \t]+)"


def load_value(run_dir: str, spec: RunSpec, metric: Metric) -> float | None:
    """Load the last logged value of the metric, or else the last printed one; with a pattern, printed values alone
    count. Returns NaN if the last line with the metric has no number, as in `val_loss: diverged`."""
    printed = ((build_pattern(metric),), _VALUE)
    for patterns, name in (printed,) if metric.pattern else (((), metric.name), printed):
        for source in find_sources(run_dir, replace(spec, patterns=patterns)):
            found, path = _load_last(run_dir, source), os.path.join(run_dir, source.name)
            if name == _VALUE and _ends_without_value(metric, load_tail(path, _LAST_LINES)):
                return math.nan
            if name in found:
                return found[name]
    return None


def _ends_without_value(metric: Metric, lines: Sequence[str]) -> bool:
    """Return whether the last line with the metric has a word or a number with a comma instead of a value."""
    if not metric.pattern:
        last = next((line for line in reversed(lines) if re.search(_build_name(metric), line)), "")
        return re.search(f"{_build_name(metric)}(?i:{_NO_VALUE})", last) is not None
    for line in reversed(lines):
        extractor = Extractor((build_pattern(metric),))
        if extractor.feed(line.encode("utf-8", "surrogateescape") + b"\n") or extractor.skipped:
            return extractor.skipped > 0
    return False


def _load_last(run_dir: str, source: Source) -> dict[str, float]:
    """Return the last value of each metric of a file."""
    stored = Summaries()
    follower = Follower(stored, "", run_dir, source)
    follower.read(stored, final=True)
    return {name: value for name, (_, value) in follower.last.items()}


def refuse_missing(metric: Metric, result: Result, title: str, location: StudyLocation) -> None:
    """Raise UsageError for a metric that no run of a side has: its name is probably wrong."""
    look = f"see what it prints: {show_command(['logs'], location, os.path.basename(result.run_dir))}"
    if metric.pattern:
        message = f"the first group of the pattern of {metric.name} finds no number in what {title} prints"
        raise UsageError(message, look)
    sources = find_sources(result.run_dir, replace(result.spec, patterns=()))
    known = {name for source in sources for name in _load_last(result.run_dir, source)}
    log = find_failed_log(result.run_dir, result.spec.log_name, (COMMAND,))
    lines = load_tail(log, _LAST_LINES) if log else ()
    known |= {found for line in lines for found in re.findall(_NAMED_VALUE, line)}
    if metric.name in known:
        pattern = f"--metric '{metric.name}:{metric.direction}=REGEX'"
        message = f"what {title} prints after {metric.name} is not a plain number"
        raise UsageError(message, f"say where the number is: {pattern}, with ({{number}}) in it; {look}")
    hint = did_you_mean(metric.name, known)
    raise UsageError(f"{title} has no metric {metric.name}", "\n  ".join(filter(None, (hint, look))))


def describe_failure(result: Result, location: StudyLocation) -> tuple[str, str]:
    """Return the last line that a failed run printed, and the command that shows its output."""
    log = find_failed_log(result.run_dir, result.spec.log_name, (COMMAND,))
    last = next(iter(load_tail(log, 1)), "") if log else ""
    if result.state is State.TIMEOUT:
        last = f"it took longer than its limit, and printed last: {last}"
    return last or result.reason, show_command(["logs"], location, os.path.basename(result.run_dir))
