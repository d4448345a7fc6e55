"""`assay bench`: run, compare, history, table, triage, import, bisect."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from assay.cli.run import parse_slot_flags
from assay.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from assay.flows.supervise import Event
    from assay.flows.sweep import Doors
    from assay.values.benchmark import BenchReport, BenchRequest
    from assay.values.verdict import Verdict

Options = Callable[..., Any]


@click.group()
def command() -> None:
    """Is it slower, since when, and is it the code or the machine?

    METHOD is module.Class.method, module.function, or module.Class.filter:REGEX for several methods of a class.
    """


def run_options(function: Options) -> Options:
    """What every command that executes benchmarks takes."""
    options = [
        click.option("--command", "commands", multiple=True, metavar="TEXT", help="Measure this command line; NAME=TEXT gives it a name. Repeatable."),
        click.option("--metric", "patterns", multiple=True, metavar="NAME=REGEX", help="A number in the output; the first group. Repeatable."),
        click.option("--trials", type=click.IntRange(min=1), metavar="N", help="Processes for each method.  [default: 1; compare: 10]"),
        click.option("--timeout", metavar="DURATION", help="Time limit of each execution, as in 90s or 2h."),
        click.option("--slots", metavar="LIST", help="Slots: 0,1 (GPUs), 0+1 (one slot of two), cpu:4. Default: one at a time."),
        click.option("-j", "--jobs", type=click.IntRange(min=1), metavar="N", help="N at once on the CPU: they disturb each other."),
        click.option("--python", metavar="PATH", help="Another interpreter for the methods."),
        click.option("--path", "python_path", multiple=True, metavar="DIR", help="Put first on sys.path. Repeatable."),
        click.option("--data-dir", default="", metavar="DIR", help="Given to constructors as data_dir and root_data_dir."),
        click.option("--args", "arguments", metavar="JSON", help="Further arguments for constructors."),
        click.option("--env", multiple=True, metavar="NAME=VALUE", help="Environment of the methods. Repeatable."),
        click.option("--refuse-contaminated", is_flag=True, help="A figure that may be the fault of others does not count: exit code 3."),
        click.option("--foreign-limit", type=click.FloatRange(0, 1), default=0.1, show_default=True, metavar="SHARE", help="How much of all cores others may use."),
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
@click.option("--profile", metavar="START:END", help="Profile this window, in seconds; END may be left out; 2:5,8:9 for two.")
@click.option("--profiler", type=click.Choice(["auto", "framework", "py-spy"]), default="auto", show_default=True, help="Who takes the profile.")
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

    return Doors(listen=(lambda _event: None) if quiet else _tell_event, tick_s=0.1)


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


__all__ = ["ExitCode", "command"]
