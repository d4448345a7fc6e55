"""The commands of `assay bench`: those that execute benchmarks, then those that use recorded executions."""

from __future__ import annotations

import os
import re
from functools import partial
from typing import Literal

from assay.bench.commands.options import (
    ExecuteRequest,
    ResultRequest,
    all_option,
    bench_root_option,
    better_option,
    build_again,
    build_request,
    build_run,
    check_folders,
    check_result_options,
    choose_fields,
    effect_option,
    foreign_option,
    most_option,
    parse_since,
    show,
)
from assay.bench.flow.archive import find_location, import_results, load_executions
from assay.bench.flow.bisect import bisect_benchmark
from assay.bench.flow.commits import CommitsQuestion, run_commits
from assay.bench.flow.compare import (
    DEFAULT_TRIALS,
    CompareOptions,
    compare_baseline,
    compare_recorded,
    compare_revisions,
    parse_span,
)
from assay.bench.flow.history import HistoryOptions, confirm_newest, load_changes, load_histories, triage_change
from assay.bench.flow.selftest import WORK, check_gate, run_selftest
from assay.bench.flow.sides import remove_baseline, set_baseline
from assay.bench.flow.tables import build_table, describe_table
from assay.bench.records import Baseline, load_named, load_triage
from assay.bench.report.executions import build_commits_document, build_run_cases, build_run_document
from assay.bench.report.history import (
    build_baselines_document,
    build_bisect_document,
    build_changes_document,
    build_comparison_cases,
    build_comparison_document,
    build_history_cases,
    build_history_document,
    build_selftest_document,
    choose_exit_code,
    render_setups,
)
from assay.bench.values.comparison import ComparisonReport
from assay.bench.values.execution import BenchReport, BenchRequest, ProfileWindow, parse_windows
from assay.errors import ExitCode, UsageError
from assay.launch.api import SideOptions
from assay.show.console import Console, build_same_call
from assay.show.formatting import render_count
from assay.values.document import Document
from assay.values.options import Request, argument, json_option, option, split_commas
from assay.values.series import Direction
from assay.values.verdict import VerdictKind

_MOST_NOTES = 10


class BenchRunRequest(ResultRequest, ExecuteRequest):
    methods: tuple[str, ...] = argument("METHOD...", multiple=True, required=False)
    label: str | None = option("--label", metavar="TEXT", help="Label of each execution, to compare and to group by.")
    profile: tuple[ProfileWindow, ...] | None = option(
        "--profile",
        metavar="START:END",
        parse=lambda text, _flag: parse_windows(text),
        help="Profile this window, in seconds; END may be left out; 2:5,8:9 for two.",
    )
    profiler: Literal["auto", "framework", "py-spy"] = option(
        "--profiler", choices=("auto", "framework", "py-spy"), default="auto", help="Profiler to use."
    )
    commits: str | None = option(
        "--commits", metavar="A..B", help="Run at each commit after A up to B, checked out one by one in random order."
    )
    every: int = option(
        "--every", type=int, minimum=1, default=1, metavar="N", help="With --commits: every Nth, counted back from B."
    )
    skip_existing: bool = option(
        "--skip-existing", default=False, help="With --commits: skip executions that exist for this environment."
    )
    build: str | None = option("--build", metavar="TEXT", help="With --commits: run this in each work tree first.")


def run(request: BenchRunRequest, console: Console) -> int:
    """Run benchmarks: one process for each method and trial.

    A benchmark that raises, crashes, hangs, reports NaN or nothing at all is recorded as failed, and the others still
    run. Exit code 0: all succeeded. Every execution is a run of the study `bench`. METHOD may be the folder or a file
    of an asv suite, or tests with the pytest fixture `benchmark`.

    With --commits your files are not touched. After a kill the same command continues. A commit that cannot be built
    is skipped: exit code 3.
    """
    check_result_options(request)
    for word in request.methods if request.commits is None else ():
        if re.fullmatch(r"[\w-]+", word) and not os.path.exists(word):
            hint = "its module is missing: a benchmark is module.Class.method, a suite is a path"
            raise UsageError(f"there is no benchmark and no suite {word!r}", hint)
    asked = build_request(request.methods, request)
    quieted = console.quieted(request.quiet or request.as_json)
    if request.commits is not None:
        return _run_commits(request, asked, console, quieted)
    if request.every > 1 or request.skip_existing or request.build:
        raise UsageError("--every, --skip-existing and --build are for --commits", "name a range: --commits A..B")
    check_folders(request.first_path)
    report = build_run(quieted)(asked)
    _report_problems(report, console)
    show(request, console, build_run_document(report), build_run_cases(report))
    return int(report.exit_code)


def _run_commits(request: BenchRunRequest, asked: BenchRequest, console: Console, quieted: Console) -> int:
    question = CommitsQuestion(request.commits or "", request.every, request.skip_existing, request.build)
    found = run_commits(question, asked, build_run(quieted), quieted)
    _report_problems(found.report, console)
    show(request, console, build_commits_document(found, request.root), build_run_cases(found.report))
    if found.end.interrupted or found.end.problem:
        left = found.total - len(found.outcomes)
        console.error(f"{render_count(left, 'commit')} left; continue with: {build_same_call()}")
    return int(found.exit_code)


def _report_problems(report: BenchReport, console: Console) -> None:
    if report.problem:
        console.error(f"assay: {report.problem}")
    if report.interrupted:
        console.error(f"interrupted by {report.interrupted}; what was finished is kept")
    for execution in report.executions:
        for note in execution.profile_notes:
            console.warning(f"{execution.method} trial {execution.trial}: {note}")


# ---------------------------------------------------------------- compare


class CompareRequest(ResultRequest, ExecuteRequest):
    what: tuple[str, ...] = argument("BASE HEAD | METHOD...", multiple=True, required=False)
    span: str | None = option("--git", metavar="BASE..HEAD", help="Check out both commits and run METHOD... in turns.")
    a_rev: str | None = SideOptions.a_rev
    b_rev: str | None = SideOptions.b_rev
    a_env: str = SideOptions.a_env
    b_env: str = SideOptions.b_env
    build: str | None = option("--build", metavar="TEXT", help="For checkouts: run this in each work tree first.")
    method: str | None = option("--method", metavar="METHOD", help="Compare only this benchmark of BASE and HEAD.")
    metrics: tuple[str, ...] = option("--only", multiple=True, metavar="METRIC", help="Only these metrics. Repeatable.")
    directions: dict[str, Direction] = better_option()
    min_effect: float = effect_option(0.05, "Ignore smaller differences.")
    most: int | None = most_option()
    across: bool = option(
        "--across-setups",
        default=False,
        help="Also judge executions of different environments (machines, drivers, versions).",
    )
    allow_changed: bool = option(
        "--allow-changed", default=False, help="Exit with 0 also if the result is better than expected."
    )
    baseline: str | None = option(
        "--baseline", metavar="NAME", help="Use this baseline as BASE; HEAD is METHOD... run now, or the newest code."
    )
    no_confirm: bool = option("--no-confirm", default=False, help="With --git: report FAIL without running again.")
    everything: bool = all_option()


def compare(request: CompareRequest, console: Console) -> int:
    """Compare labels, commits, folders or files.

    Only executions of the same environment (processor, accelerator, driver, versions) are judged; where BASE and HEAD
    have no environment in common, code and machine cannot be separated, and the verdict is INCONCLUSIVE.

    With --git both commits are checked out into separate trees and run in turns; a metric that looks worse is measured
    again before the verdict is FAIL. --a-rev and --b-rev name the commits one by one; --a-rev alone compares its commit
    with the files as they are. --a-env and --b-env run the sides in two environments; without commits both sides are
    the files as they are. Exit code 0: not worse. 1: worse. 3: inconclusive. 2: --min-effect is smaller than the effect
    that this machine can show, by its last `assay bench selftest`.
    """
    check_result_options(request)
    methods = [*request.what, *(method.name for method in request.commands)]
    options = choose_fields(CompareOptions, request, confirm=not request.no_confirm)
    check_gate(request.min_effect, request.metrics, methods, options.most, request.root)
    revisions = _choose_revisions(request)
    quieted = console.quieted(request.quiet or request.as_json)
    if request.baseline is not None:
        if revisions is not None:
            raise UsageError("--baseline names the base, as --git, --a-rev and --a-env do", "give one of them")
        named = (*request.what, *request.commands)
        asked = build_request(request.what, request, default_trials=DEFAULT_TRIALS) if named else BenchRequest(())
        now = partial(build_run(quieted), asked) if named else None
        report = compare_baseline(request.baseline, now, request.method, request.root, options, console, asked.methods)
    elif revisions is not None:
        asked = build_request(request.what, request, default_trials=DEFAULT_TRIALS)
        environments = (request.a_env, request.b_env) if request.a_env or request.b_env else (None, None)
        report = compare_revisions(*revisions, asked, options, build_run(quieted), quieted, environments)
    else:
        if len(request.what) != 2:
            raise UsageError(
                f"BASE and HEAD are two, not {len(request.what)}",
                "name two labels, commits or files; or --git base..head METHOD",
            )
        base, head = request.what
        report = compare_recorded(base, head, request.method, request.root, options, console)
    document = build_comparison_document(report, allow_changed=request.allow_changed)
    changed = ExitCode.OK if request.allow_changed else VerdictKind.CHANGED.exit_code
    return _show_comparison(report, document, request, console, changed)


def _choose_revisions(request: CompareRequest) -> tuple[str | None, str | None] | None:
    """Return the sides to check out; a side that is None is the user's files. None: compare recorded executions."""
    if request.python and (request.a_env or request.b_env):
        raise UsageError("--python and --a-env or --b-env choose the same interpreter", "give one of them")
    if request.span is not None:
        if request.a_rev or request.b_rev:
            raise UsageError("--git and --a-rev or --b-rev name the same sides", "give one of them")
        return parse_span(request.span)
    if request.b_rev and not request.a_rev:
        raise UsageError("--b-rev needs a side to compare with", f"name it: --a-rev main --b-rev {request.b_rev}")
    if not request.a_rev and request.a_env == request.b_env:
        if request.a_env:
            raise UsageError("both sides have the same code and environment", "name two, as in --a-env old --b-env new")
        return None
    return request.a_rev, request.b_rev


def _show_comparison(
    report: ComparisonReport, document: Document, request: ResultRequest, console: Console, if_changed: ExitCode
) -> int:
    """Show the report. Return the exit code of the verdict (`if_changed` for CHANGED), or a worse one if the comparison
    was interrupted, or the machine or a farm had a problem."""
    if report.problem:
        console.error(f"assay: {report.problem}")
    show(request, console, document, build_comparison_cases(report))
    kind = report.verdict.kind
    codes = {if_changed if kind is VerdictKind.CHANGED else kind.exit_code}
    codes |= {ExitCode.INTERRUPTED} if report.interrupted else set()
    codes |= {ExitCode.INTERNAL} if report.problem else set()
    return int(ExitCode.worst(codes))


# ---------------------------------------------------------------- bisect


class BenchBisectRequest(ExecuteRequest):
    methods: tuple[str, ...] = argument("METHOD", multiple=True, required=False)
    good: str = option("--good", required=True, metavar="COMMIT", help="A commit at which the metric was still good.")
    bad: str = option("--bad", default="HEAD", metavar="COMMIT", help="A commit at which the metric is worse.")
    metric: str = option("--on", default="wall_time", metavar="METRIC", help="The metric that got worse.")
    directions: dict[str, Direction] = better_option()
    min_effect: float = effect_option(0.05, "Ignore smaller differences.")
    most: int | None = most_option()
    build: str | None = option(
        "--build", metavar="TEXT", help="Run this in each work tree first; commits where it fails are skipped."
    )
    fresh: bool = option("--fresh", default=False, help="Ignore what an earlier call of the same search found.")
    everything: bool = all_option()
    as_json: bool = json_option("Print the result as JSON.")


def bisect(request: BenchBisectRequest, console: Console) -> int:
    """Find the commit that made a metric worse.

    Each commit runs in turns with the good commit, in separate trees. The bad commit is tried first: it has to be
    worse. The first worse commit and the commit before it are tried twice before the search ends. Every result is
    recorded: after a kill the same command continues. Exit code 0: found. 3: not found; the report says why.
    """
    methods = [*request.methods, *(method.name for method in request.commands)]
    options = choose_fields(CompareOptions, request)
    check_gate(request.min_effect, (request.metric,), methods, options.most, request.root)
    found = bisect_benchmark(
        (request.good, request.bad),
        request.metric,
        build_request(request.methods, request, default_trials=DEFAULT_TRIALS),
        options,
        build_run(console.quieted()),
        console.quieted(request.quiet or request.as_json),
        fresh=request.fresh,
    )
    console.write_document(build_bisect_document(found), as_json=request.as_json)
    if found.interrupted:
        console.error(f"interrupted by {found.interrupted}; continue with: {build_same_call()}")
    return int(choose_exit_code(found))


# ---------------------------------------------------------------- history


class HistoryRequest(ResultRequest):
    metric: str | None = argument(required=False)
    method: str | None = argument(required=False)
    label: str | None = option("--label", metavar="TEXT", help="Only executions with this label.")
    min_effect: float | None = effect_option(
        None,
        "Do not report smaller changes; PASS means that no change is this large.  [default: 0.01; PASS: 0.05]",
    )
    recent: int | None = option(
        "--recent", type=int, minimum=1, metavar="N", help="Only changes within the last N executions raise an alarm."
    )
    since: float | None = option(
        "--since", metavar="TIME", parse=parse_since, help="Only executions since TIME: 1y or 6w ago, or a date."
    )
    changes: bool = option(
        "--changes", default=False, help="List each lasting change of every benchmark and metric: exit code 0."
    )
    direction: Literal["min", "max"] | None = option(
        "--better", choices=("min", "max"), help="Which direction is better, where the name does not show it."
    )
    confirm: bool = option(
        "--confirm", default=False, help="Execute benchmarks again if the newest executions are outliers, and judge."
    )
    foreign_limit: float = foreign_option("With --confirm: fraction of all cores that other processes may use.")
    everything: bool = all_option()
    root: str | None = bench_root_option()


def history(request: HistoryRequest, console: Console) -> int:
    """Show where METRIC changed, and by how much.

    The report names the commits of each change, and whether the environment changed as well. METHOD may be the end of a
    name; without METHOD every benchmark that reports METRIC is judged. Exit code 1: the metric got worse, stayed worse,
    and has no judgement (`assay bench triage`); it gets gradually worse; or the newest execution failed. 3: the
    environment or the label changed as well; there are too few executions (fewer than 6; in a new environment fewer
    than 4); the newest are outliers (--confirm executes the benchmark again); the newest was disturbed and does not
    count; the metric got twice as good or better; or the executions are too noisy to show a change of --min-effect. 2:
    a single execution is not a history; imported results cannot be confirmed.
    """
    check_result_options(request)
    options = choose_fields(HistoryOptions, request)
    if request.changes:
        document = build_changes_document(
            "assay bench history --changes", *load_changes(request.metric, request.method, options, console)
        )
        show(request, console, document, ())
        return int(ExitCode.OK)
    if request.metric is None:
        raise UsageError("no METRIC is named", "such as wall_time; or --changes, which looks at all of them")
    metric = request.metric
    found, codes = load_histories(metric, request.method, options, console), set()
    if request.confirm:
        again = build_again(console.quieted(request.as_json), request.root, request.foreign_limit)
        found, ended = confirm_newest(found, lambda: load_histories(metric, request.method, options), again)
        if ended:
            _report_problems(ended, console)
            codes = {ended.exit_code}
    document = build_history_document(f"assay bench history {metric}", found)
    show(request, console, document, build_history_cases(found))
    return int(ExitCode.worst({*codes, *(each.verdict.kind.exit_code for each in found)}))


# ---------------------------------------------------------------- baseline, selftest


class BaselineRequest(Request):
    action: Literal["list", "set", "remove"] | None = argument(required=False, choices=("list", "set", "remove"))
    name: str | None = argument(required=False)
    rev: str | None = argument(required=False)
    as_json: bool = json_option("Print the list as JSON.")
    root: str | None = bench_root_option()


def baseline(request: BaselineRequest, console: Console) -> int:
    """Name executions as a baseline to compare with.

    `set NAME [REV]` names the executions that a label or commit has now; REV is HEAD by default. `assay bench compare
    --baseline NAME` compares with these executions, also when there are newer ones. `remove NAME` removes the name.
    """
    if request.action in ("set", "remove") and request.name is None:
        raise UsageError("no NAME is given", f"such as: assay bench baseline {request.action} main")
    if request.action == "set" and request.name:
        made = set_baseline(request.name, request.rev or "HEAD", request.root, console)
        count = render_count(len(made.runs), "execution")
        console.print(f"{request.name} is {count} of {made.what}{f' ({made.commit[:12]})' if made.commit else ''}")
    elif request.action == "remove" and request.name:
        remove_baseline(request.name, request.root)
    else:
        known = load_named(find_location(request.root).dir, Baseline)
        console.write_document(build_baselines_document(known), as_json=request.as_json)
    return int(ExitCode.OK)


class BenchSelftestRequest(ResultRequest, ExecuteRequest):
    methods: tuple[str, ...] = argument("METHOD", multiple=True, required=False)


def selftest(request: BenchSelftestRequest, console: Console) -> int:
    """Show the smallest effect that can be seen on this machine.

    METHOD, or a built-in benchmark, is compared with itself, in turns. The result is kept: `assay bench compare`
    refuses a smaller --min-effect. Exit code 0: equal code is judged as equal. 1: equal code is judged as different, a
    false alarm. 3: the comparison is inconclusive.
    """
    check_result_options(request)
    quieted = console.quieted(request.quiet or request.as_json)
    is_own = not (request.methods or request.commands)
    asked = build_request((WORK.text,) if is_own else request.methods, request, default_trials=DEFAULT_TRIALS)
    if len(asked.methods) != 1 or asked.methods[0].is_filter:
        raise UsageError("a selftest is of one benchmark", "name one METHOD, or one --command, or none")
    found = run_selftest(asked, build_run(quieted))
    return _show_comparison(found.report, build_selftest_document(found), request, console, ExitCode.FAILED)


# ---------------------------------------------------------------- triage


class TriageRequest(Request):
    metric: str = argument()
    method: str = argument()
    change: str = argument()
    judgement: Literal["ack", "invalid", "wontfix", "open"] = argument(choices=("ack", "invalid", "wontfix", "open"))
    note: str = option("--note", default="", metavar="TEXT", help="Reason for the judgement, kept and shown.")
    everything: bool = all_option()
    root: str | None = bench_root_option()


def triage(request: TriageRequest, console: Console) -> int:
    """Record a judgement about a change of METRIC.

    Later verdicts respect the judgement. CHANGE is the execution where the change begins, a commit of its range, or
    `last`. ack: seen, no alarm. wontfix: the new level is intended. invalid: the executions of that level do not count.
    open: withdraw an earlier judgement.
    """
    meant = request.metric, request.method, request.change
    console.print_lines(triage_change(*meant, request.judgement, request.note, request.root, request.everything))
    return int(ExitCode.OK)


# ---------------------------------------------------------------- table


class BenchTableRequest(Request):
    method: str | None = argument(required=False)
    by: tuple[str, ...] = option(
        "--by",
        multiple=True,
        metavar="A,B",
        parse=split_commas,
        help="Columns to group by: accelerator_model, framework, cudnn, label, commit, …  [default: label]",
    )
    metrics: tuple[str, ...] = option(
        "-m", "--metrics", multiple=True, metavar="A,B", parse=split_commas, help="Which metrics to show."
    )
    everything: bool = all_option()
    as_csv: bool = option("--csv", default=False, help="Comma-separated values.")
    as_json: bool = json_option("JSON.")
    as_markdown: bool = option("--md", default=False, help="A Markdown table.")
    root: str | None = bench_root_option()


def table(request: BenchTableRequest, console: Console) -> int:
    """Compare environments side by side: medians with their spread.

    ± is half the distance between the quartiles, in percent of the median. METHOD may be the end of a name; without
    METHOD every benchmark has its own rows.
    """
    if request.as_csv + request.as_json + request.as_markdown > 1:
        raise UsageError("choose one of --csv, --json and --md")
    by, metrics = request.by or ("label",), request.metrics or None
    location = find_location(request.root)
    executions = load_executions(location, request.method, console)
    found = build_table(executions, load_triage(location.dir), request.method, by, metrics, request.everything)
    form = "csv" if request.as_csv else "json" if request.as_json else "md" if request.as_markdown else "text"
    console.write(render_setups(found, form, console.width))
    if found.left_out and form == "text":
        console.error(f"({describe_table(found)})")
    return int(ExitCode.OK)


# ---------------------------------------------------------------- import


class ImportRequest(Request):
    files: tuple[str, ...] = argument("FILE...", multiple=True)
    label: str | None = option("--label", metavar="TEXT", help="Label of each execution.")
    root: str | None = bench_root_option()


def import_files(request: ImportRequest, console: Console) -> int:
    """Import results of other tools into the history.

    FILE has PerfZero summaries, asv results, pytest-benchmark or google-benchmark JSON, or MLPerf :::MLLOG lines. A
    result that a tool recorded as failed becomes a failed execution. Executions that were imported before are not added
    again. If a file cannot be read, the others are imported, and the exit code is 2.
    """
    found = import_results(request.files, request.root, request.label, console)
    known = f"{found.known} {'was' if found.known == 1 else 'were'} known"
    console.print(f"{render_count(found.new, 'execution')} imported, {known}: {', '.join(found.methods)}")
    if found.failed:
        console.print(f"failed when they were run: {', '.join(found.failed)}")
    for note in found.notes[:_MOST_NOTES]:
        console.error(note)
    if len(found.notes) > _MOST_NOTES:
        console.error(f"… and {len(found.notes) - _MOST_NOTES} more of this kind")
    for problem in found.problems:
        console.warning(problem)
    return int(ExitCode.USAGE if found.problems else ExitCode.OK)
