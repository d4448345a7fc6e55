"""What the commands of `assay bench` share: flags, the request that they make, and how a result is shown."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from assay.errors import UsageError
from assay.show.console import tell
from assay.show.console_warnings import say, warn
from assay.show.report_files import STDOUT, prepare_reports, write_text
from assay.values.slots import parse_slot_flags

if TYPE_CHECKING:
    from assay.bench.flow.compare import CompareOptions, Run
    from assay.bench.values.execution import BenchExecution, BenchRequest
    from assay.study.api import Event, RunHooks
    from assay.values.series import Direction
    from assay.values.verdict import Verdict

Options = Callable[..., Any]

root_option = click.option("--root", metavar="DIR", help="Where the runs are.  [default: ./runs]")
json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
all_option = click.option(
    "--all", "everything", is_flag=True, help="Contaminated and profiled executions count as well."
)
better_option = click.option(
    "--better", multiple=True, metavar="METRIC:min|max", help="Which way is better, where the name does not tell."
)
max_wait_option = click.option(
    "--max-wait", metavar="DURATION", help="Limit for waiting for a benchmark or for checks of others.  [default: 1h]"
)
most_option = click.option(
    "--most-trials",
    type=click.IntRange(min=1),
    metavar="N",
    help="Trials of a commit while it is inconclusive.  [default: 30]",
)


def effect_option(default: float | None, text: str) -> Callable[[Options], Options]:
    return click.option(
        "--min-effect",
        type=click.FloatRange(min=0),
        default=default,
        show_default=default is not None,
        metavar="SHARE",
        help=text,
    )


def run_options(function: Options) -> Options:
    """What every command that executes benchmarks takes."""
    options = [
        click.option(
            "--command",
            "commands",
            multiple=True,
            metavar="TEXT",
            help="Measure this command line; NAME=TEXT gives it a name (FOO=bar CMD sets a variable). Repeatable.",
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
            help="Processes for each method.  [default: 1; compare, bisect: 10]",
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
        max_wait_option,
        root_option,
        click.option("--quiet", is_flag=True, help="Say nothing until the end."),
    ]
    return _decorate(function, options)


def report_options(function: Options) -> Options:
    options = [
        json_option,
        click.option("--md", metavar="FILE", help="Write a Markdown report; - for stdout."),
        click.option("--junit", metavar="FILE", help="Write a JUnit report; - for stdout."),
        click.option("--webhook", metavar="URL", help="Send the findings there as JSON when not all is well."),
    ]
    return _decorate(function, options)


def _decorate(function: Options, options: Sequence[Callable[[Options], Options]]) -> Options:
    for option in reversed(options):
        function = option(function)
    return function


# ---------------------------------------------------------------- what is asked for


def build_request(methods: Sequence[str], given: dict[str, Any], **further: Any) -> BenchRequest:
    from assay.bench.flow.options import check_python, parse_arguments, parse_commands, parse_pairs
    from assay.bench.values.execution import BenchRequest, parse_method
    from assay.values.units import parse_timeout

    chosen = (*map(parse_method, methods), *parse_commands(given["commands"]))
    if not chosen:
        raise UsageError("no benchmark is named", "give METHOD (module.Class.method), or --command 'TEXT'")
    return BenchRequest(
        methods=chosen,
        trials=given["trials"] or further.pop("default_trials", 1),
        timeout_s=parse_timeout(given["timeout"]),
        root=given["root"],
        slots=parse_slot_flags(given["slots"], given["jobs"]),
        python=check_python(given["python"]),
        first_path=tuple(given["python_path"]),
        data_dir=given["data_dir"],
        constructor_args=parse_arguments(given["arguments"]),
        env=parse_pairs(given["env"], "--env"),
        patterns=parse_pairs(given["patterns"], "--metric"),
        refuse_contaminated=given["refuse_contaminated"],
        max_wait_s=parse_timeout(given["max_wait"], "--max-wait"),
        foreign_limit=given["foreign_limit"],
        command_line=tuple(sys.argv),
        **{key: value for key, value in further.items() if key != "default_trials"},
    )


def build_hooks(quiet: bool, tell_ends: bool = True) -> RunHooks:
    """`tell_ends`: say of every run that it has ended; those who tell more of it do not want that."""
    from assay.study.api import RunHooks

    hooks = RunHooks(warn=warn, owns_process=True, counts_wait=True, tick_s=0.1)
    if tell_ends and not quiet:
        hooks.listen = _tell_event
    return hooks


def build_run(quiet: bool) -> Run:
    """Runs benchmarks; each is told in a line when it has ended."""
    from assay.bench.flow.observer import tell_nobody
    from assay.bench.flow.run import run_benchmarks

    hooks, told = build_hooks(quiet, tell_ends=False), tell_nobody if quiet else _tell_execution
    return lambda request: run_benchmarks(request, hooks, told)


def _tell_execution(execution: BenchExecution, number: int, total: int) -> None:
    from assay.bench.report.executions import render_execution

    say(render_execution(execution, number, total))


def _tell_event(event: Event) -> None:
    entry = event.entry
    if event.kind != "ended":
        return
    params = entry.spec.params
    label = f" {params['label']}" if "label" in params else ""
    reason = f" ({entry.outcome.reason})" if entry.outcome and entry.outcome.reason else ""
    say(f"{entry.state} {params['method']} trial {params['trial']}{label}{reason}")


def build_compare_options(given: dict[str, Any], build: str | None) -> CompareOptions:
    from assay.bench.flow.compare import DEFAULT_MOST, CompareOptions

    return CompareOptions(
        metrics=tuple(given.get("only") or ()),
        directions=_parse_directions(given["better"]),
        min_effect=given["min_effect"],
        everything=given["everything"],
        across=bool(given.get("across")),
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


# ---------------------------------------------------------------- showing


def prepare(given: dict[str, Any]) -> None:
    """Refuse before anything runs what could not be told after it."""
    from assay.bench.flow.options import check_address

    prepare_reports(given)
    if given["webhook"]:
        check_address(given["webhook"])


def show(
    given: dict[str, Any],
    title: str,
    cases: Sequence[tuple[str, str, Verdict]],
    render: Callable[[bool, int | None], str],
    build_facts: Callable[[], Any],
) -> None:
    """The result on stdout; reports into files; the webhook last, when there is something to say."""
    from assay.bench.flow.options import send_alert
    from assay.bench.report.executions import build_cases_facts, render_cases_junit, render_cases_markdown
    from assay.show.json_text import render_facts
    from assay.system.terminal import terminal_width, use_color
    from assay.values.verdict import VerdictKind

    if given["as_json"]:
        tell(render_facts(build_facts()))
    elif STDOUT not in (given["md"], given["junit"]):
        tell(render(use_color(sys.stdout), terminal_width(sys.stdout)))
    if given["md"] is not None:
        write_text(given["md"], render_cases_markdown(title, cases))
    if given["junit"] is not None:
        write_text(given["junit"], render_cases_junit(title, cases, bool(given.get("allow_changed"))))
    if given["webhook"] and any(verdict.kind is not VerdictKind.PASS for _, _, verdict in cases):
        send_alert(given["webhook"], {"title": title, "cases": json.loads(render_facts(build_cases_facts(cases)))})
