"""`assay golden rebase`: a new golden replaces the old one, with a reason and a record of the drift.

A fresh gathering is staged next to the golden until it is accepted. `--from check` reuses the runs of the last check,
and adds runs until there are as many recordings as before. Artifacts are what CI kept of a check: a root of runs, or
the folder of one study in a root, with reports in `.assay/golden` that state with which golden runs were compared.
"""

from __future__ import annotations

import contextlib
import getpass
import glob
import os
import time
from collections.abc import Mapping, Sequence
from itertools import count, islice, takewhile
from typing import Any

from assay.errors import AssayError, FormatError, InfrastructureError, UsageError
from assay.follow.api import Entry, RetryPolicy, StudyLocation
from assay.golden import manifests
from assay.golden.config import load_golden_file
from assay.golden.flow.blame import blame_test, find_commit
from assay.golden.flow.check import CHECK_PREFIX
from assay.golden.flow.followers import SegmentFollower, describe_end
from assay.golden.flow.gather import gather_test
from assay.golden.flow.runs import (
    Replication,
    add_recordings,
    build_provenance,
    cut_values,
    follow_specs,
    is_whole,
    load_code_marks,
)
from assay.golden.flow.segments import (
    ENDED_WELL,
    STUDY_PREFIX,
    GoldenContext,
    GoldenOptions,
    build_contexts,
    build_stamp,
    choose_golden,
)
from assay.golden.judge.contrasts import measure_shifts
from assay.golden.judge.convergence import count_peers, judge_rules
from assay.golden.judge.evidence import find_dead
from assay.golden.judge.golden import (
    find_creep,
    find_widening,
    measure_drift,
    measure_golden_noise,
    measure_levels,
    summarise_noise,
)
from assay.golden.recorder import Values
from assay.golden.records import list_ids, load_report
from assay.golden.requests import RebaseRequest
from assay.golden.results import BlameReport, Rebased
from assay.golden.values import Golden, GoldenTestReport, Segment
from assay.launch.api import Report, RunHooks
from assay.observe.environment import load_git
from assay.record import run_directory
from assay.record.received import is_foreign
from assay.system.fast_dataclasses import dataclass, replace
from assay.system.files import write_atomic
from assay.system.git import find_git_root
from assay.values.environment import GitState
from assay.values.run import RunSpec, State
from assay.values.verdict import VerdictKind

STAGED_SUFFIX = ".rebase"
_NOT_PASSED = (State.FAILED, State.TIMEOUT, State.STOPPED)  # STOPPED: a check stops runs that have already failed
_PASSED = "it passed in the artifacts"


@dataclass(frozen=True, slots=True)
class CheckRun:
    """A run of a check that logged every step."""

    entry: Entry
    values: Values


def rebase_file(request: RebaseRequest, options: GoldenOptions, hooks: RunHooks | None = None) -> tuple[Rebased, ...]:
    if not request.reason.strip():
        raise UsageError("a rebase needs a reason", 'as in --reason "new optimiser, see the release notes"')
    if request.only_failing and not request.artifacts:
        raise UsageError("--only-failing needs --artifacts", "without it the tests are run: -t NAME chooses one")
    others = {"--environment-only": request.environment_only, "--fresh": request.fresh, "--from": request.source}
    for flag, value in others.items() if request.artifacts else ():
        if value and value != request.OPTIONS["source"].default:
            raise UsageError(f"{flag} is not for --artifacts, with which nothing is run")
    contexts = [choose_golden(each) for each in build_contexts(load_golden_file(options.file), options)]
    befores = [manifests.load_manifest(each.manifest, each.test.name, each.hint_to_gather()) for each in contexts]
    done: list[Rebased] = []
    for context, before in zip(contexts, befores, strict=True):
        done.append(_rebase(context, before, request, hooks or RunHooks()))
        if done[-1].interrupted:
            break
    return tuple(done)


def _rebase(context: GoldenContext, before: Golden, request: RebaseRequest, hooks: RunHooks) -> Rebased:
    record = _from_artifacts if request.artifacts else _from_gathering if request.source == "gather" else _from_check
    outcome = Rebased(context.test.name, context.manifest, before)
    try:
        if request.environment_only:
            moved, interrupted = _find_moved_by_code(context, before, hooks)
            if moved or interrupted:
                return replace(outcome, refusals=tuple(moved), interrupted=interrupted)
        after, problems, interrupted = record(context, before, request, hooks)
    except AssayError as error:
        return replace(outcome, refusals=(error.render(),))
    if after is before:
        return replace(outcome, kept=_PASSED)
    if after is None or problems or interrupted:
        return replace(outcome, after=after, refusals=tuple(problems), interrupted=interrupted)
    wider = tuple(find_widening(before, after))
    if wider and not request.allow_wider:
        how = "this accepts more than before: confirm it with --allow-wider"
        return replace(outcome, after=after, refusals=(*wider, how))
    return _accept(context, outcome, after, request, wider)


def _accept(
    context: GoldenContext, outcome: Rebased, after: Golden, request: RebaseRequest, wider: tuple[str, ...]
) -> Rebased:
    before = outcome.before
    old, new = measure_levels(before), measure_levels(after)
    first = (before.history[-1].get("first_levels") if before.history else None) or old
    effects, since_first = measure_drift(old, new), measure_drift(first, new)
    archived = f"{context.manifest}.{len(before.history) + 1}"  # next to the new manifest, relative paths stay valid
    with open(context.manifest, encoding="utf-8") as file:
        write_atomic(archived, file.read())
    user = None
    with contextlib.suppress(KeyError, OSError):
        user = getpass.getuser()
    entry = {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "by": user,
        "reason": request.reason.strip(),
        "source": "artifacts" if request.artifacts else request.source,
        "from": _build_origin(before),
        "to": _build_origin(after),
        "effects": effects,
        "since_first": since_first,
        "wider": list(wider),
        "archived": os.path.basename(archived),
        "levels": new,
        "first_levels": first,
    }
    after = replace(after, history=(*before.history, entry))
    manifests.write_manifest(context.manifest, after)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(context.manifest + STAGED_SUFFIX)
    gone = [name for name in before.variants if name not in after.variants]
    lost = [f"the new recording lacks the variants {', '.join(gone)}: gather to record them"] if gone else []
    return replace(
        outcome,
        after=after,
        effects=effects,
        since_first=since_first,
        wider=wider,
        creep=(*find_creep(since_first, context.test.rules, len(after.history)), *lost),
        shifts=measure_shifts(before, after, context.test.rules),
        archived=archived,
    )


def _find_signal(report: Report | GoldenTestReport | BlameReport) -> str | None:
    """Return the signal that ended the runs, if any; raise InfrastructureError if a farm, a disk or a service did."""
    if report.problem and not report.interrupted:
        raise InfrastructureError(report.problem)
    return report.interrupted


def _build_origin(golden: Golden) -> dict[str, Any]:
    names = ("gathered_at", "commit", "dirty", "host")
    return {name: golden.provenance[name] for name in names if golden.provenance.get(name) is not None}


def _find_moved_by_code(context: GoldenContext, before: Golden, hooks: RunHooks) -> tuple[list[str], str | None]:
    """Return why the new behaviour is not due to the environment alone: in the same environment the golden's commit and
    the working tree differ, or may differ. Return also the signal that ended the comparison early."""
    commit = find_commit(before, "--environment-only compares with that code: rebase without it")
    report = blame_test(context, before, (commit, None), {"a": ""}, hooks)
    if end := _find_signal(report):
        return [], end
    found = [f"code {cell.code}: {cell.problem}" for cell in report.cells if cell.problem]
    for each in report.effects:
        if each.shift and each.shift.kind == "moved":
            size = f"{each.shift.effect:.3g} since {commit[:12]}"
            found.append(f"the code moved {each.metric} by {size}, in this environment")
        elif each.shift and each.shift.bound > each.allowed:
            found.append(f"the code may have moved {each.metric}: the noise hides up to {100 * each.shift.bound:.2g}%")
    found += ["--environment-only accepts what the environment moved alone: rebase without it"] if found else []
    return found, None


def _from_artifacts(context: GoldenContext, before: Golden, request: RebaseRequest, _hooks: RunHooks) -> NewGolden:
    """Build the golden from artifacts; return `before` if it passed and --only-failing is given."""
    kind, kept = load_artifacts(context, before, request.artifacts or "")
    if request.only_failing and kind is VerdictKind.PASS:
        return before, (), None
    wanted = _count_wanted(context, before)
    if context.changes_seeds:  # checks of one golden have the same seeds: the newest run of each seed is kept
        kept = {
            at: list({_find_number(run.entry.spec): run for run in runs[::-1]}.values()) for at, runs in kept.items()
        }
    after, problems = _build_golden(context, before, {at: runs[:wanted] for at, runs in kept.items()}, {})
    if after is None:
        return None, problems, None
    problems = [*manifests.find_not_finite(after, after.metrics), *find_dead(after)]
    noise = {} if problems else summarise_noise(measure_golden_noise(context.test.rules, after))
    return replace(after, noise=noise), problems, None


# the new golden, the reasons to refuse the golden, the signal that interrupted the recording
NewGolden = tuple[Golden | None, Sequence[str], str | None]


def _from_gathering(context: GoldenContext, before: Golden, request: RebaseRequest, hooks: RunHooks) -> NewGolden:
    staged = context.manifest + STAGED_SUFFIX
    if not request.fresh and not request.environment_only:
        with contextlib.suppress(UsageError, FormatError):
            found = manifests.load_manifest(staged, context.test.name)
            is_measured = found.complete and (found.noise or not context.test.replicas)
            if is_measured and found.provenance.get("config_hash") == context.config_hash:
                hooks.console.message(f"using the recording in {staged}; gather again with --fresh")
                return found, (), None
    # the folder's name is the same after an interruption
    folder = os.path.join(context.checkpoints, f"rebase-{len(before.history) + 1}")
    report = gather_test(replace(context, manifest=staged, checkpoints=folder), hooks)
    if end := _find_signal(report):
        return None, (), end
    bad = [finding.message for finding in report.verdict.findings if finding.kind is not VerdictKind.PASS]
    if bad := list(dict.fromkeys([*bad, *(find_dead(report.golden) if report.golden else ())])):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(staged)  # an invalid recording must not stay staged
    return report.golden, bad, None


def _from_check(context: GoldenContext, before: Golden, request: RebaseRequest, hooks: RunHooks) -> NewGolden:
    """Keep the checkpoints; the values that a check of the current code logs after them become the golden's."""
    context.load_golden()
    if before.steps_beyond is None and before.segments:
        work = Replication(context, before, 0)
        if end := _find_signal(work.learn(hooks)):
            return None, (), end
        before = work.golden
    wanted = _count_wanted(context, before)
    git = load_git(context.folder)
    code, is_known = (git.commit, git.diff) if git else None, git is not None and not _find_new(context, git)
    last = {} if request.fresh else _find_last_check(context, before, code)
    if failures := [] if request.allow_failed else _find_failures(context, before, last):
        return None, [*failures, "the last check did not pass: accept it with --allow-failed"], None
    runs: dict[int, list[CheckRun]] = {index: [] for index in range(len(before.segments))}
    for index, entries in last.items() if is_known else ():  # no run of unknown code is reused
        done = [entry for entry in entries if entry.state in ENDED_WELL]
        runs[index] = load_whole(done, before.segments[index], context)[:wanted]
    if reused := sum(map(len, runs.values())):
        hooks.console.message(f"{reused} runs of the last check are reused")
    else:
        unknown = "the code of a check is unknown where git does not have all of it: "
        why = "no run of a check was made with the current code: " if is_known else unknown
        hooks.console.message(f"{'' if request.fresh else why}all recordings are made again")
    if (interrupted := _run_missing(context, before, runs, wanted, hooks)) is not None:
        return None, (), interrupted
    after, missing = _build_golden(context, before, runs, load_code_marks(context))
    if after is None:
        return None, missing, None
    problems: list[str] = [] if request.allow_failed else find_dead(after)
    if context.test.variants:  # run the variants that the file has now, from the same checkpoints
        work = Replication(context, after, 0)
        report = work.run(hooks)
        after, interrupted = work.golden, report.interrupted
        problems += [finding.message for finding in work.findings] + ([report.problem] if report.problem else [])
    return replace(after, noise=summarise_noise(measure_golden_noise(context.test.rules, after))), problems, interrupted


def _find_new(context: GoldenContext, git: GitState) -> list[str]:
    """List untracked files other than runs and recordings: the content of untracked files is not recorded."""
    top = find_git_root(os.path.realpath(context.folder)) or ""
    ours = [os.path.relpath(os.path.realpath(path), top) for path in (context.location.root, context.store)]
    return [name for name in git.untracked if not any(f"{name}/".startswith(f"{path}/") for path in ours)]


def _count_wanted(context: GoldenContext, before: Golden) -> int:
    further = context.options.replicas
    return max(1, before.recordings) if further is None else further + 1


def _build_golden(
    context: GoldenContext, before: Golden, runs: Mapping[int, Sequence[CheckRun]], marks: Mapping[str, str]
) -> tuple[Golden | None, list[str]]:
    """Return the golden with `runs` as its recordings; or None, and the reasons why there is no golden."""
    segments = [
        add_recordings(replace(segment, variants={}), [run.values for run in runs[index]], keep=False)
        for index, segment in enumerate(before.segments)
    ]
    missing = [f"segment {segment.start_step} has no complete run" for segment in segments if not segment.replicas]
    if missing or not segments:
        return None, missing or ["the golden recording has no segment"]
    provenance = build_provenance(context, runs[0][0].entry, marks)
    if context.changes_seeds:
        provenance["check_runs"] = max(_find_number(run.entry.spec) for each in runs.values() for run in each)
    return replace(before, segments=tuple(segments), version=2, provenance=provenance, complete=True, gaps=()), []


def _find_last_check(context: GoldenContext, golden: Golden, code: tuple[str, str] | None) -> dict[int, list[Entry]]:
    """Return the runs of the last check that used the current command and `code`, by segment."""
    found: dict[int, list[Entry]] = {}
    for entry in load_checks(context.location.dir):
        index, number = _find_segment(entry.spec, context, golden), _find_number(entry.spec)
        recorded = context.count_recorded_checks(golden)
        if index is None or number <= recorded:  # a recording of the golden has this seed
            continue
        if number == recorded + 1:
            found[index] = []  # a later check begins
        git = (run_directory.load_environment(entry.dir) or {}).get("git")
        if ((git.get("commit"), git.get("diff", "")) if git else None) == code:
            found.setdefault(index, []).append(entry)
    return found


def _find_failures(context: GoldenContext, golden: Golden, last: Mapping[int, Sequence[Entry]]) -> list[str]:
    """Describe why the last check did not pass: runs that did not end well, and metrics that fail their rules."""
    failures = []
    for index, entries in sorted(last.items()):
        segment = golden.segments[index]
        if (bad := next((entry for entry in entries if entry.state in _NOT_PASSED), None)) is not None:
            name = f"segment {segment.start_step}"
            failures.append(f"{name}: the last check's run {bad.spec.name} is {bad.state}, not done")
            continue
        tracks = [cut_values(segment, run.values) for run in load_whole(entries, segment, context)]
        verdict = judge_rules(context.test.rules, segment, tracks, peers=count_peers(context.test.rules, golden))
        failed = [found for found in verdict.findings if found.kind is VerdictKind.FAIL and tracks]
        failures += [f"{found.subject}: {found.message}" for found in failed]
    return failures


def _find_number(spec: RunSpec) -> int:
    return int(spec.params.get("replica") or 1)


def _find_segment(spec: RunSpec, context: GoldenContext, golden: Golden) -> int | None:
    """Return the index of the segment whose check would now have exactly the command of `spec`."""
    for index, segment in enumerate(golden.segments):
        if context.find_checkpoint(segment) is None or spec.params.get("start_step") != segment.start_step:
            continue
        check = context.build_segment_spec("", segment, beyond=golden.steps_beyond, number=_find_number(spec))
        if spec.commands[0].text == context.hide_command(check.commands[0].text):
            return index
    return None


def _run_missing(
    context: GoldenContext, golden: Golden, runs: dict[int, list[CheckRun]], wanted: int, hooks: RunHooks
) -> str | None:
    """Run the segments that have too few runs. Return the signal or problem that ended the runs early, if any."""
    stamp = build_stamp()
    specs: dict[str, tuple[RunSpec, Segment]] = {}
    indices: dict[str, int] = {}
    for index, have in runs.items():
        segment, used = golden.segments[index], {_find_number(run.entry.spec) for run in have}
        unused = (number for number in count(context.count_recorded_checks(golden) + 1) if number not in used)
        numbers = list(islice(unused, max(0, wanted - len(have))))
        if numbers and (problem := context.find_checkpoint_problem(segment)):
            raise UsageError(problem, "gather it again: --from gather")
        for number in numbers:
            # the name is that of a check's run, so that the next call finds the run
            name = f"{CHECK_PREFIX}{stamp}-{index}-s{segment.start_step}-{number}"
            spec = context.build_segment_spec(name, segment, beyond=golden.steps_beyond, number=number)
            specs[name], indices[name] = (spec, segment), index
    if not specs:
        return None
    report, logged = follow_specs(context, specs, hooks)
    if end := _find_signal(report):
        return end
    for entry in report.entries:
        name, (_, segment) = entry.spec.name, specs[entry.spec.name]
        if entry.state not in ENDED_WELL:
            raise UsageError(f"segment {segment.start_step} failed: {describe_end(entry)}")
        if is_whole(segment, logged[name]):
            runs[indices[name]].append(CheckRun(entry, logged[name]))
    return None


# ---------------------------------------------------------------- runs of checks, of this study or from artifacts


def load_whole(entries: Sequence[Entry], segment: Segment, context: GoldenContext) -> list[CheckRun]:
    """Return the runs that logged every step of the segment, with their values."""
    runs = []
    for entry in entries:
        follower = SegmentFollower(context.test, segment.last_step)
        follower.read(entry, final=True)
        if is_whole(segment, follower.values):
            runs.append(CheckRun(entry, follower.values))
    return runs


def load_checks(study_dir: str, foreign: bool = False) -> list[Entry]:
    """Return the runs of checks that have begun, by the time of their creation, because names show only the second.
    `foreign`: return pulled runs, too."""
    found = []
    for path in run_directory.find_run_dirs(study_dir):
        if not os.path.basename(path).startswith(CHECK_PREFIX) or (is_foreign(path) and not foreign):
            continue
        try:
            record = run_directory.load_record(path)
        except (OSError, FormatError):
            continue
        history = run_directory.load_history(path)
        if record.spec.params.get("mode") == "check" and history.last is not None:
            entry = Entry(record.spec, path, RetryPolicy(), history.state, history.last.number)
            found.append((record.created_at, path, entry))
    return [entry for _, _, entry in sorted(found, key=lambda run: run[:2])]


def load_artifacts(
    context: GoldenContext, golden: Golden, folder: str
) -> tuple[VerdictKind, dict[int, list[CheckRun]]]:
    """Return the verdict of the last check and, by segment, the runs of this check and of earlier checks with the same
    verdict, code and environment. Raises if artifacts are damaged, incomplete, or of another study or golden."""
    location = _find_study(context, folder)
    reports = [load_report(location, each)[1] for each, mode in list_ids(location) if mode == "check"]
    if not reports:
        raise UsageError(f"{location.dir} has no report of a check", "keep the whole folder of runs, hidden files too")
    _check_golden(context, reports[0], golden)
    entries = {os.path.basename(entry.dir): entry for entry in load_checks(location.dir, foreign=True)}
    segments = {(each.start_step, each.checkpoint): index for index, each in enumerate(golden.segments)}
    runs: dict[int, list[CheckRun]] = {index: [] for index in range(len(golden.segments))}
    origin, ends = None, dict[int, str]()
    kind = reports[0].verdict.kind
    for report in takewhile(lambda each: _is_of(each, golden) and each.verdict.kind is kind, reports):
        for each in report.segments:
            index = segments[each.start_step, each.checkpoint]
            for run in each.runs:
                entry = entries.get(name := os.path.basename(run.dir))
                if report is not reports[0] and (entry is None or origin is None or _load_origin(entry) != origin):
                    continue  # the earlier check has another code or environment, or unknown ones
                if entry is None:
                    raise FormatError(f"{location.dir} lacks the run {name}, or it is damaged", "keep the whole folder")
                origin = origin or _load_origin(entry)
                done = [entry] if entry.state in ENDED_WELL else []
                runs[index] += load_whole(done, golden.segments[index], context)
                ends.setdefault(index, "" if run.state in ENDED_WELL else f": {run.stopped_early or run.reason}")
    for index, found in runs.items():
        if not found:
            what = f"segment {golden.segments[index].start_step} has no complete run in the artifacts"
            raise UsageError(what + ends.get(index, ""), f"let CI run it to its end: {_build_check(context)}")
    return kind, runs


def _find_study(context: GoldenContext, folder: str) -> StudyLocation:
    """Find the study: `folder` itself, or a folder in the root of runs `folder`, or in a root of runs in `folder`."""
    name, top = context.location.name, os.path.abspath(folder)
    if not os.path.isdir(top):
        raise UsageError(f"there is no folder {folder}", "name what CI kept: the folder of its runs")
    if os.path.basename(top) == name:
        return StudyLocation(os.path.dirname(top), name)
    roots = [top, *(entry.path for entry in os.scandir(top) if entry.is_dir())]
    found = sorted({path for root in roots for path in glob.glob(f"{glob.escape(root)}/{STUDY_PREFIX}*")})
    if len(mine := [path for path in found if os.path.basename(path) == name]) == 1:
        return StudyLocation(os.path.dirname(mine[0]), name)
    has = f"it has {', '.join(found)}" if found else "name the folder of runs that CI kept"
    raise UsageError(f"{folder} has {'several folders' if mine else 'no runs'} of {name}", has)


def _check_golden(context: GoldenContext, report: GoldenTestReport, golden: Golden) -> None:
    if report.test != context.test.name:
        raise UsageError(f"the artifacts are of the test {report.test}, not of {context.test.name}")
    if not _is_of(report, golden):
        when = report.golden.provenance.get("gathered_at") if report.golden else None
        message = f"the check in the artifacts was of another golden, recorded {when or 'at an unknown time'}"
        raise UsageError(message, f"check with the one in the store: {_build_check(context)}")


def _is_of(report: GoldenTestReport, golden: Golden) -> bool:
    return report.golden is not None and _build_mark(report.golden) == _build_mark(golden)


def _build_check(context: GoldenContext) -> str:
    return f"assay golden check {context.options.build_arguments()} --no-early-stop"


def _build_mark(golden: Golden) -> list[Any]:
    """Build a value that is equal for equal recordings. Logged texts are left out, because reports do not keep them."""
    walked = [found for each in golden.segments for found in each.walk()]
    tracks = [(name, label, run.steps, run.values) for name, label, runs in walked for run in runs]
    return [repr(tracks), [(each.start_step, each.checkpoint, each.checkpoint_sha) for each in golden.segments]]


def _load_origin(entry: Entry) -> tuple[Any, ...] | None:
    """Return the code and environment of a run; None if the code is unknown."""
    environment = run_directory.load_environment(entry.dir) or {}
    git = environment.get("git")
    return (git.get("commit"), git.get("diff"), environment.get("fingerprint")) if git else None
