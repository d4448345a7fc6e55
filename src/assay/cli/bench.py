"""`assay bench`: run, compare, history, table, triage, import, bisect."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from assay.cli.run import parse_slot_flags
from assay.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from assay.flows.bench.compare import CompareOptions
    from assay.flows.supervise import Event, Supervisor
    from assay.flows.sweep import Doors
    from assay.values.bench_history import ComparisonReport
    from assay.values.benchmark import BenchReport, BenchRequest
    from assay.values.series import Direction
    from assay.values.verdict import Verdict

Options = Callable[..., Any]
_PATIENCE_S = 3.0


@click.group()
def command() -> None:
    """Is it slower, since when, and is it the code or the machine?

    METHOD is module.Class.method, module.function, or module.Class.filter:REGEX for several methods of a class.
    """


def run_options(function: Options) -> Options:
    """What every command that executes benchmarks takes."""
    options = [
        click.option(
            "--command",
            "commands",
            multiple=True,
            metavar="TEXT",
            help="Measure this command line; NAME=TEXT gives it a name. Repeatable.",
        ),
        click.option(
            "--metric",
            "patterns",
            multiple=True,
            metavar="NAME=REGEX",
            help="A number in the output; the first group. Repeatable.",
        ),
        click.option(
            "--trials",
            type=click.IntRange(min=1),
            metavar="N",
            help="Processes for each method.  [default: 1; compare: 10]",
        ),
        click.option("--timeout", metavar="DURATION", help="Time limit of each execution, as in 90s or 2h."),
        click.option(
            "--slots", metavar="LIST", help="Slots: 0,1 (GPUs), 0+1 (one slot of two), cpu:4. Default: one at a time."
        ),
        click.option(
            "-j",
            "--jobs",
            type=click.IntRange(min=1),
            metavar="N",
            help="N at once on the CPU: they disturb each other.",
        ),
        click.option("--python", metavar="PATH", help="Another interpreter for the methods."),
        click.option("--path", "python_path", multiple=True, metavar="DIR", help="Put first on sys.path. Repeatable."),
        click.option(
            "--data-dir", default="", metavar="DIR", help="Given to constructors as data_dir and root_data_dir."
        ),
        click.option("--args", "arguments", metavar="JSON", help="Further arguments for constructors."),
        click.option("--env", multiple=True, metavar="NAME=VALUE", help="Environment of the methods. Repeatable."),
        click.option(
            "--refuse-contaminated",
            is_flag=True,
            help="A figure that may be the fault of others does not count: exit code 3.",
        ),
        click.option(
            "--foreign-limit",
            type=click.FloatRange(0, 1),
            default=0.1,
            show_default=True,
            metavar="SHARE",
            help="How much of all cores others may use.",
        ),
        click.option("--root", metavar="DIR", help="Where the runs go.  [default: ./runs]"),
        click.option("--quiet", is_flag=True, help="Say nothing until the end."),
    ]
    return _decorate(function, options)


def report_options(function: Options) -> Options:
    options = [
        click.option("--json", "as_json", is_flag=True, help="Print the result as JSON."),
        click.option("--md", metavar="FILE", help="Write a Markdown report; - for stdout."),
        click.option("--junit", metavar="FILE", help="Write a JUnit report; - for stdout."),
        click.option("--webhook", metavar="URL", help="Send the findings there as JSON when not all is well."),
    ]
    return _decorate(function, options)


def _decorate(function: Options, options: Sequence[Callable[[Options], Options]]) -> Options:
    for option in reversed(options):
        function = option(function)
    return function


# ---------------------------------------------------------------- run


@command.command()
@click.argument("methods", nargs=-1, metavar="METHOD...")
@run_options
@click.option("--label", metavar="TEXT", help="Kept with each execution, to compare and to group by.")
@click.option(
    "--profile", metavar="START:END", help="Profile this window, in seconds; END may be left out; 2:5,8:9 for two."
)
@click.option(
    "--profiler",
    type=click.Choice(["auto", "framework", "py-spy"]),
    default="auto",
    show_default=True,
    help="Who takes the profile.",
)
@report_options
def run(methods: tuple[str, ...], label: str | None, profile: str | None, profiler: str, **given: Any) -> int:
    """Run benchmarks: one process for each method and trial.

    A benchmark that raises, crashes, hangs, reports NaN or nothing at all is a recorded failure, and the others still
    run. Exit code 0: all succeeded. Every execution is a run of the study `bench`.
    """
    from assay.flows.bench.run import run_benchmarks
    from assay.show.bench import build_report_facts, build_run_cases, render_bench_report
    from assay.values.benchmark import parse_windows

    request = build_request(
        methods, given, label=label, profile=parse_windows(profile) if profile else (), profiler=profiler
    )
    report = run_benchmarks(request, build_doors(given["quiet"] or given["as_json"]))
    _say_problems(report)
    show(
        given,
        "assay bench run",
        build_run_cases(report),
        lambda color, width: render_bench_report(report, color=color, width=width),
        lambda: build_report_facts(report),
    )
    return int(report.exit_code)


def build_request(methods: Sequence[str], given: dict[str, Any], **further: Any) -> BenchRequest:
    from assay.flows.bench.options import parse_arguments, parse_commands, parse_pairs, parse_timeout
    from assay.values.benchmark import BenchRequest, parse_method

    chosen = (*map(parse_method, methods), *parse_commands(given["commands"]))
    if not chosen:
        raise UsageError("no benchmark is named", "give METHOD (module.Class.method), or --command 'TEXT'")
    return BenchRequest(
        methods=chosen,
        trials=given["trials"] or further.pop("default_trials", 1),
        timeout_s=parse_timeout(given["timeout"]),
        root=given["root"],
        slots=parse_slot_flags(given["slots"], given["jobs"]),
        python=given["python"],
        first_path=tuple(given["python_path"]),
        data_dir=given["data_dir"],
        constructor_args=parse_arguments(given["arguments"]),
        env=parse_pairs(given["env"], "--env"),
        patterns=parse_pairs(given["patterns"], "--metric"),
        refuse_contaminated=given["refuse_contaminated"],
        foreign_limit=given["foreign_limit"],
        command_line=tuple(sys.argv),
        **{key: value for key, value in further.items() if key != "default_trials"},
    )


def build_doors(quiet: bool) -> Doors:
    from assay.flows.sweep import Doors

    if quiet:
        return Doors(tick_s=0.1)
    return Doors(listen=_tell_event, draw=_Patience().look, tick_s=0.1)


class _Patience:
    """Says once that a benchmark waits for a slot that something else holds."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._said = False

    def look(self, supervisor: Supervisor) -> None:
        now = time.monotonic()
        if not supervisor.queue or supervisor.running:
            self._since = None
        elif self._since is None:
            self._since = now
        elif now - self._since > _PATIENCE_S and not self._said:
            self._said = True
            print("waiting: another study holds the slot (see assay ls; another one: --slots)", file=sys.stderr)


def _tell_event(event: Event) -> None:
    entry = event.entry
    if event.kind != "ended":
        return
    params = entry.spec.params
    label = f" {params['label']}" if "label" in params else ""
    reason = f" ({entry.outcome.reason})" if entry.outcome and entry.outcome.reason else ""
    print(f"{entry.state} {params['method']} trial {params['trial']}{label}{reason}", file=sys.stderr)


def _say_problems(report: BenchReport) -> None:
    if report.problem:
        print(f"assay: {report.problem}", file=sys.stderr)
    if report.interrupted:
        print(f"interrupted by {report.interrupted}; what was finished is kept", file=sys.stderr)


# ---------------------------------------------------------------- compare, bisect


@command.command()
@click.argument("what", nargs=-1, metavar="BASE HEAD | METHOD...")
@run_options
@click.option("--git", "span", metavar="BASE..HEAD", help="Check out both commits and run METHOD... in turns.")
@click.option("--build", metavar="TEXT", help="With --git: run this in each work tree first.")
@click.option("--method", metavar="METHOD", help="Only this benchmark of BASE and HEAD.")
@click.option("--only", multiple=True, metavar="METRIC", help="Only these metrics. Repeatable.")
@click.option(
    "--better", multiple=True, metavar="METRIC:min|max", help="Which way is better, where the name does not tell."
)
@click.option(
    "--min-effect",
    type=click.FloatRange(min=0),
    default=0.05,
    show_default=True,
    metavar="SHARE",
    help="Smaller differences do not matter.",
)
@click.option(
    "--most-trials",
    type=click.IntRange(min=1),
    metavar="N",
    help="With --git: trials on each side while it is inconclusive.  [default: 30]",
)
@click.option("--allow-changed", is_flag=True, help="Better than expected is good enough: exit code 0.")
@click.option("--no-confirm", is_flag=True, help="With --git: say FAIL without running again.")
@click.option("--all", "everything", is_flag=True, help="Contaminated executions count as well.")
@report_options
def compare(what: tuple[str, ...], span: str | None, build: str | None, method: str | None, **given: Any) -> int:
    """Compare two sets of executions: labels, commits, folders or files.

    With --git both commits are checked out into trees of our own and run in turns; what looks worse is run again
    before it is called a FAIL. Exit code 0: not worse. 1: worse. 3: inconclusive.
    """
    from assay.flows.bench.compare import DEFAULT_TRIALS, compare_git, compare_recorded

    options = build_compare_options(given, build)
    if span is not None:
        request = build_request(what, given, default_trials=DEFAULT_TRIALS)
        doors = build_doors(given["quiet"] or given["as_json"])
        report = compare_git(span, request, options, doors, lambda line: print(line, file=sys.stderr))
    else:
        if len(what) != 2:
            raise UsageError(
                f"BASE and HEAD are two, not {len(what)}",
                "name two labels, commits or files; or --git base..head METHOD",
            )
        report = compare_recorded(what[0], what[1], method, given["root"], options)
    return _show_comparison(report, given)


def build_compare_options(given: dict[str, Any], build: str | None) -> CompareOptions:
    from assay.flows.bench.compare import DEFAULT_MOST, CompareOptions

    return CompareOptions(
        metrics=tuple(given.get("only") or ()),
        directions=_parse_directions(given["better"]),
        min_effect=given["min_effect"],
        everything=given["everything"],
        confirm=not given.get("no_confirm"),
        build=build,
        most=given.get("most_trials") or DEFAULT_MOST,
    )


def _parse_directions(texts: Sequence[str]) -> dict[str, Direction]:
    found: dict[str, Direction] = {}
    for text in texts:
        name, _, way = text.rpartition(":")
        if way not in ("min", "max") or not name:
            raise UsageError(f"--better {text!r} is no METRIC:min or METRIC:max")
        found[name] = "min" if way == "min" else "max"
    return found


def _show_comparison(report: ComparisonReport, given: dict[str, Any]) -> int:
    from assay.show.bench_history import build_comparison_cases, render_comparison
    from assay.values.verdict import VerdictKind

    if report.problem:
        print(f"assay: {report.problem}", file=sys.stderr)
    show(
        given,
        f"assay bench compare {report.base} {report.head}",
        build_comparison_cases(report),
        lambda color, width: render_comparison(report, color=color, width=width),
        lambda: dataclass_facts(report),
    )
    kind = report.verdict.kind
    codes = {ExitCode.OK if given["allow_changed"] and kind is VerdictKind.CHANGED else kind.exit_code}
    codes |= {ExitCode.INTERRUPTED} if report.interrupted else set()
    codes |= {ExitCode.INTERNAL} if report.problem else set()
    return int(ExitCode.worst(codes))


def dataclass_facts(value: Any) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(value)


@command.command()
@click.argument("methods", nargs=-1, metavar="METHOD")
@run_options
@click.option("--good", required=True, metavar="COMMIT", help="Where it was still good.")
@click.option("--bad", default="HEAD", show_default=True, metavar="COMMIT", help="Where it is worse.")
@click.option(
    "--on", "metric", default="wall_time", show_default=True, metavar="METRIC", help="The metric that got worse."
)
@click.option(
    "--better", multiple=True, metavar="METRIC:min|max", help="Which way is better, where the name does not tell."
)
@click.option(
    "--min-effect",
    type=click.FloatRange(min=0),
    default=0.05,
    show_default=True,
    metavar="SHARE",
    help="Smaller differences do not matter.",
)
@click.option("--build", metavar="TEXT", help="Run this in each work tree first.")
@click.option("--all", "everything", is_flag=True, help="Contaminated executions count as well.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def bisect(methods: tuple[str, ...], good: str, bad: str, metric: str, build: str | None, **given: Any) -> int:
    """Find the commit that made a metric worse. Each commit runs in turns with the good one, in trees of our own."""
    from assay.flows.bench.bisect import Question, bisect_benchmark
    from assay.flows.bench.compare import DEFAULT_TRIALS
    from assay.show.bench_history import render_bisect
    from assay.show.json_text import render_facts

    request = build_request(methods, given, default_trials=DEFAULT_TRIALS)
    doors = build_doors(True)
    say = (lambda _line: None) if given["quiet"] else (lambda line: print(line, file=sys.stderr))
    found = bisect_benchmark(Question(good, bad, metric), request, build_compare_options(given, build), doors, say)
    facts = dataclass_facts(found)
    sys.stdout.write(render_facts(facts) if given["as_json"] else render_bisect(facts))
    if found.interrupted:
        return int(ExitCode.INTERRUPTED)
    return int(ExitCode.OK if found.culprit else ExitCode.INCONCLUSIVE)


# ---------------------------------------------------------------- history, triage, table, import


@command.command()
@click.argument("metric")
@click.argument("method", required=False)
@click.option("--label", metavar="TEXT", help="Only executions with this label.")
@click.option(
    "--min-effect",
    type=click.FloatRange(min=0),
    default=0.01,
    show_default=True,
    metavar="SHARE",
    help="Smaller changes are not spoken of.",
)
@click.option(
    "--recent",
    type=click.IntRange(min=1),
    metavar="N",
    help="Only changes within the last N executions raise an alarm.",
)
@click.option("--better", type=click.Choice(["min", "max"]), help="Which way is better, where the name does not tell.")
@click.option("--all", "everything", is_flag=True, help="Contaminated executions count as well.")
@click.option("--root", metavar="DIR", help="Where the runs are.  [default: ./runs]")
@report_options
def history(metric: str, method: str | None, **given: Any) -> int:
    """Where METRIC changed: by how much, between which commits, and whether the environment changed as well.

    METHOD may be the end of a name; without it every benchmark that reports METRIC is looked at. Exit code 1: it got
    worse, stayed so, and nobody has said anything about it (`assay bench triage`). 3: the set-up changed as well.
    """
    from assay.flows.bench.history import HistoryOptions, load_histories
    from assay.show.bench_history import build_history_cases, render_history

    options = HistoryOptions(
        given["root"], given["label"], given["min_effect"], given["recent"], given["everything"], given["better"]
    )
    found = load_histories(metric, method, options)
    show(
        given,
        f"assay bench history {metric}",
        build_history_cases(found),
        lambda color, width: "".join(render_history(each, color=color, width=width) for each in found),
        lambda: [dataclass_facts(each) for each in found],
    )
    return int(ExitCode.worst({each.verdict.kind.exit_code for each in found}))


@command.command()
@click.argument("metric")
@click.argument("method")
@click.argument("change")
@click.argument("judgement", type=click.Choice(["ack", "invalid", "wontfix", "open"]))
@click.option("--note", default="", metavar="TEXT", help="Why; kept and shown.")
@click.option("--all", "everything", is_flag=True, help="Contaminated executions count as well.")
@click.option("--root", metavar="DIR", help="Where the runs are.  [default: ./runs]")
def triage(metric: str, method: str, change: str, judgement: str, note: str, everything: bool, root: str | None) -> int:
    """Say something about a change of METRIC that later verdicts respect.

    CHANGE is the execution where it begins, a commit of its range, or `last`. ack: seen, no alarm. wontfix: the new
    level is meant. invalid: the executions of that level do not count. open: take an earlier word back.
    """
    from assay.flows.bench.triage import Word, say_about

    print(say_about(Word(metric, method, change, judgement, note), root, everything))
    return int(ExitCode.OK)


@command.command()
@click.argument("method", required=False)
@click.option(
    "--by",
    default="label",
    show_default=True,
    metavar="A,B",
    help="Columns to group by: accelerator_model, framework, cudnn, label, commit, …",
)
@click.option("-m", "--metrics", metavar="A,B", help="Which metrics to show.")
@click.option("--all", "everything", is_flag=True, help="Contaminated executions count as well.")
@click.option("--csv", "as_csv", is_flag=True, help="Comma-separated values.")
@click.option("--json", "as_json", is_flag=True, help="JSON.")
@click.option("--md", "as_markdown", is_flag=True, help="A Markdown table.")
@click.option("--root", metavar="DIR", help="Where the runs are.  [default: ./runs]")
def table(
    method: str | None,
    by: str,
    metrics: str | None,
    everything: bool,
    as_csv: bool,
    as_json: bool,
    as_markdown: bool,
    root: str | None,
) -> int:
    """Set-ups of METHOD side by side: the median of each metric, and its spread."""
    from assay.flows.bench.tables import load_table
    from assay.show.bench_history import render_setups

    if sum((as_csv, as_json, as_markdown)) > 1:
        raise UsageError("choose one of --csv, --json and --md")
    found = load_table(method, by.split(","), metrics.split(",") if metrics else None, root, everything)
    form = "csv" if as_csv else "json" if as_json else "md" if as_markdown else "text"
    sys.stdout.write(
        render_setups(found.by, found.metrics, [(row.keys, row.count, row.values) for row in found.rows], form)
    )
    if found.left_out and form == "text":
        print(f"({found.left_out} executions failed or were contaminated: --all)", file=sys.stderr)
    return int(ExitCode.OK)


@command.command("import")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--label", metavar="TEXT", help="Kept with each execution.")
@click.option("--root", metavar="DIR", help="Where the runs go.  [default: ./runs]")
def import_files(files: tuple[str, ...], label: str | None, root: str | None) -> int:
    """Take figures of other tools into the history.

    PerfZero summaries, asv results, pytest-benchmark and google-benchmark JSON, MLPerf :::MLLOG lines. A file that
    cannot be read adds nothing; one that was imported before adds nothing new.
    """
    from assay.flows.bench.imports import import_files as take

    found = take(files, root, label, warn)
    print(f"{found.new} executions imported, {found.known} were known: {', '.join(found.methods)}")
    return int(ExitCode.OK)


# ---------------------------------------------------------------- showing


def show(
    given: dict[str, Any],
    title: str,
    cases: Sequence[tuple[str, str, Verdict]],
    render: Callable[[bool, int | None], str],
    build_facts: Callable[[], Any],
) -> None:
    """The result on stdout; reports into files; the webhook last, when there is something to say."""
    from assay.flows.bench.alerts import send_alert
    from assay.show.bench import build_cases_facts, render_cases_junit, render_cases_markdown
    from assay.show.json_text import render_facts
    from assay.show.terminal import terminal_width, use_color
    from assay.values.verdict import VerdictKind

    if [given["md"], given["junit"]].count("-") + bool(given["as_json"]) > 1:
        raise UsageError("two reports cannot both go to stdout", "give one of them a file")
    if given["as_json"]:
        sys.stdout.write(render_facts(build_facts()))
    elif "-" not in (given["md"], given["junit"]):
        sys.stdout.write(render(use_color(sys.stdout), terminal_width(sys.stdout)))
    _write(given["md"], render_cases_markdown(title, cases))
    _write(given["junit"], render_cases_junit(title, cases))
    if given["webhook"] and any(verdict.kind is not VerdictKind.PASS for _, _, verdict in cases):
        send_alert(given["webhook"], {"title": title, "cases": json.loads(render_facts(build_cases_facts(cases)))})


def _write(path: str | None, text: str) -> None:
    from assay.errors import InfrastructureError

    if path is None:
        return
    if path == "-":
        sys.stdout.write(text)
        return
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise InfrastructureError(f"the report {path} cannot be written: {error.strerror}") from error


def warn(line: str) -> None:
    print(f"warning: {line}", file=sys.stderr)
