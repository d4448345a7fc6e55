"""What the commands of `assay bench` share: options, the request that they make, and how a result is shown."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from assay.bench.flow.options import check_address, check_python, parse_arguments, parse_commands, parse_pairs
from assay.errors import UsageError
from assay.show.console import Console
from assay.show.report_files import STDOUT, ReportFiles, check_targets, write_document
from assay.values.options import Request, jobs_option, json_option, option, quiet_option, root_option, slots_option
from assay.values.units import parse_slot_flags, parse_timeout

if TYPE_CHECKING:
    from assay.bench.flow.compare import Run
    from assay.bench.report.executions import Cases
    from assay.bench.values.execution import BenchExecution, BenchMethod, BenchRequest, ProfileWindow
    from assay.study.api import Event, RunHooks
    from assay.values.document import Document
    from assay.values.series import Direction


def bench_root_option() -> str | None:
    found: str | None = root_option("Where the runs are.  [default: ./runs]")
    return found


def all_option() -> bool:
    found: bool = option("--all", default=False, help="Contaminated and profiled executions count as well.")
    return found


def better_option() -> dict[str, Direction]:
    found: dict[str, Direction] = option(
        "--better",
        multiple=True,
        metavar="METRIC:min|max",
        parse=_parse_directions,
        help="Which direction is better, where the name does not tell.",
    )
    return found


def effect_option(default: float | None, text: str) -> Any:
    return option("--min-effect", type=float, minimum=0, default=default, metavar="FRACTION", help=text)


def most_option() -> int | None:
    found: int | None = option(
        "--most-trials",
        type=int,
        minimum=1,
        metavar="N",
        help="Trials of a commit while it is inconclusive.  [default: 30]",
    )
    return found


def _parse_directions(texts: Sequence[str], flag: str) -> dict[str, Direction]:
    found: dict[str, Direction] = {}
    for text in texts:
        name, _, way = text.rpartition(":")
        if way not in ("min", "max") or not name:
            raise UsageError(f"{flag} {text!r} is not METRIC:min or METRIC:max")
        found[name] = "min" if way == "min" else "max"
    return found


class ExecuteRequest(Request):
    """Of every command that executes benchmarks."""

    commands: tuple[BenchMethod, ...] = option(
        "--command",
        multiple=True,
        metavar="TEXT",
        parse=lambda texts, _flag: parse_commands(texts),
        help="Measure this command line; NAME=TEXT gives it a name (FOO=bar CMD sets a variable). Repeatable.",
    )
    patterns: tuple[tuple[str, str], ...] = option(
        "--metric",
        multiple=True,
        metavar="NAME=REGEX",
        parse=parse_pairs,
        help="A number in the output; the first group. Repeatable.",
    )
    trials: int | None = option(
        "--trials",
        type=int,
        minimum=1,
        metavar="N",
        help="Processes for each method.  [default: 1; compare, bisect: 10]",
    )
    timeout: float | None = option(
        "--timeout", metavar="DURATION", parse=parse_timeout, help="Time limit of each execution, as in 90s or 2h."
    )
    slots: str | None = slots_option("one at a time")
    jobs: int | None = jobs_option("N at once on the CPU: they disturb each other.")
    python: str | None = option(
        "--python",
        metavar="PATH",
        parse=lambda path, _flag: check_python(path),
        help="Another interpreter for the methods.",
    )
    first_path: tuple[str, ...] = option(
        "--path", multiple=True, metavar="DIR", help="Put first on sys.path. Repeatable."
    )
    data_dir: str = option(
        "--data-dir", default="", metavar="DIR", help="Given to constructors as data_dir and root_data_dir."
    )
    arguments: dict[str, Any] | None = option(
        "--args",
        metavar="JSON",
        parse=lambda text, _flag: parse_arguments(text),
        help="Further arguments for constructors.",
    )
    env: tuple[tuple[str, str], ...] = option(
        "--env",
        multiple=True,
        metavar="NAME=VALUE",
        parse=parse_pairs,
        help="Environment of the methods. Repeatable.",
    )
    refuse_contaminated: bool = option(
        "--refuse-contaminated",
        default=False,
        help="A result that other processes may have disturbed does not count: exit code 3.",
    )
    foreign_limit: float = option(
        "--foreign-limit",
        type=float,
        minimum=0,
        maximum=1,
        default=0.1,
        metavar="FRACTION",
        help="How much of all cores others may use.",
    )
    max_wait: float | None = option(
        "--max-wait",
        metavar="DURATION",
        parse=parse_timeout,
        help="Limit for waiting for a benchmark or for checks of others.  [default: 1h]",
    )
    root: str | None = bench_root_option()
    quiet: bool = quiet_option()


class ResultRequest(ReportFiles):
    """Of every command that judges: the result in several forms."""

    as_json: bool = json_option("Print the result as JSON.")
    webhook: str | None = option(
        "--webhook", metavar="URL", help="Send the findings there as JSON when not everything passed."
    )


# ---------------------------------------------------------------- the request


def build_request(
    methods: Sequence[str],
    request: ExecuteRequest,
    default_trials: int = 1,
    label: str | None = None,
    profile: tuple[ProfileWindow, ...] = (),
    profiler: Any = "auto",
) -> BenchRequest:
    from assay.bench.values.execution import BenchRequest, parse_method

    chosen = (*map(parse_method, methods), *request.commands)
    if not chosen:
        raise UsageError("no benchmark is named", "give METHOD (module.Class.method), or --command 'TEXT'")
    return BenchRequest(
        methods=chosen,
        trials=request.trials or default_trials,
        timeout_s=request.timeout,
        label=label,
        root=request.root,
        slots=parse_slot_flags(request.slots, request.jobs),
        python=request.python,
        first_path=request.first_path,
        data_dir=request.data_dir,
        constructor_args=request.arguments or {},
        env=request.env,
        profile=profile,
        profiler=profiler,
        patterns=request.patterns,
        refuse_contaminated=request.refuse_contaminated,
        max_wait_s=request.max_wait,
        foreign_limit=request.foreign_limit,
        command_line=tuple(sys.argv),
    )


def build_hooks(console: Console, reports_ends: bool = True) -> RunHooks:
    """`reports_ends`: a line for every run that has ended; callers that report more of it leave it out."""
    from assay.study.api import RunHooks

    def listen(event: Event) -> None:
        entry = event.entry
        if event.kind != "ended":
            return
        params = entry.spec.params
        label = f" {params['label']}" if "label" in params else ""
        reason = f" ({entry.outcome.reason})" if entry.outcome and entry.outcome.reason else ""
        console.message(f"{entry.state} {params['method']} trial {params['trial']}{label}{reason}")

    hooks = RunHooks(console=console, owns_process=True, counts_wait=True, tick_s=0.1)
    if reports_ends:
        hooks.listen = listen
    return hooks


def build_run(console: Console) -> Run:
    """Runs benchmarks, with a message when each has ended."""
    from assay.bench.flow.run import run_benchmarks
    from assay.bench.report.executions import render_execution

    def report_execution(execution: BenchExecution, number: int, total: int) -> None:
        console.message(render_execution(execution, number, total))

    hooks = build_hooks(console, reports_ends=False)
    return lambda request: run_benchmarks(request, hooks, report_execution)


# ---------------------------------------------------------------- the result


def check_result_options(request: ResultRequest) -> None:
    """Refuse before anything runs what could not be reported after it."""
    check_targets(request.md, request.junit, as_json=request.as_json)
    if request.webhook:
        check_address(request.webhook)


def show(request: ResultRequest, console: Console, document: Document, cases: Cases) -> None:
    """The result on stdout; reports into files; the webhook last, when something did not pass."""
    from assay.bench.flow.options import send_alert
    from assay.bench.report.executions import build_cases_facts
    from assay.show.formatting import to_json
    from assay.values.verdict import VerdictKind

    if request.as_json or STDOUT not in (request.md, request.junit):
        console.write_document(document, as_json=request.as_json)
    write_document(document, request)
    if request.webhook and any(verdict.kind is not VerdictKind.PASS for _, _, verdict in cases):
        send_alert(request.webhook, {"title": document.title, "cases": to_json(build_cases_facts(cases))})
