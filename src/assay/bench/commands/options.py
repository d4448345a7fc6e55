"""Options, requests and the display of results, which the commands of `assay bench` share."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import urlsplit

from assay.bench.flow.archive import find_location, load_executions
from assay.bench.flow.compare import CompareOptions, Run
from assay.bench.flow.history import HistoryOptions, parse_date
from assay.bench.flow.run import run_again, run_benchmarks
from assay.bench.report.executions import Cases, build_cases_facts, render_execution
from assay.bench.values.execution import (
    BenchExecution,
    BenchMethod,
    BenchReport,
    BenchRequest,
    parse_method,
)
from assay.errors import InfrastructureError, UsageError
from assay.launch.api import RunHooks
from assay.show.console import Console
from assay.show.formatting import clean, to_json
from assay.show.report_files import STDOUT, ReportFiles, check_targets, write_document
from assay.system.fast_dataclasses import fields
from assay.system.files import parse_json
from assay.system.http_post import is_web_address, post
from assay.values.document import Document
from assay.values.options import (
    Request,
    farm_option,
    jobs_option,
    json_option,
    option,
    quiet_option,
    root_option,
    slots_option,
)
from assay.values.secrets import hide_text
from assay.values.series import Direction, expand_number
from assay.values.units import parse_duration, parse_slot_flags, parse_timeout
from assay.values.verdict import VerdictKind

LEAST_PYTHON = (3, 10)  # for --python: the lowest version that runs our code in the process of a method

_NAMED = re.compile(r"(?P<name>[A-Za-z][\w.-]*)=(?P<text>\S.*)", re.DOTALL)
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
_TIMEOUT_S = 20.0
_Options = TypeVar("_Options", BenchRequest, CompareOptions, HistoryOptions)


def _parse_directions(texts: Sequence[str], flag: str) -> dict[str, Direction]:
    found: dict[str, Direction] = {}
    for text in texts:
        name, _, way = text.rpartition(":")
        if way not in ("min", "max") or not name:
            raise UsageError(f"{flag} {text!r} is not METRIC:min or METRIC:max")
        found[name] = "min" if way == "min" else "max"
    return found


def parse_commands(texts: Sequence[str], _flag: str = "") -> tuple[BenchMethod, ...]:
    """Parse commands: `NAME=TEXT` names a command; otherwise the text is the name, as in `FOO=bar python x.py`."""
    found = []
    for text in map(str.strip, texts):
        if not text:
            raise UsageError("an empty --command", "write --command 'python train.py'")
        match = _NAMED.fullmatch(text)
        if match and not _sets_variable(match["name"], text):
            found.append(BenchMethod(match["text"], match["name"], "command"))
        else:
            found.append(BenchMethod(text, hide_text(text), "command"))
    return tuple(found)


def _sets_variable(name: str, text: str) -> bool:
    """Return whether a text sets a variable before a command: `FOO=bar python x.py`, but not `TRUE=true`."""
    if not _VARIABLE.fullmatch(name):
        return False
    try:
        return len(shlex.split(text)) > 1
    except ValueError:  # an unclosed quote
        return len(text.split()) > 1


def parse_pairs(texts: Sequence[str], flag: str) -> tuple[tuple[str, str], ...]:
    found = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"{flag} {text!r} is not NAME=VALUE")
        found.append((name, value))
    return tuple(found)


def parse_patterns(texts: Sequence[str], flag: str) -> tuple[tuple[str, str], ...]:
    """Parse patterns; `{number}` has the same meaning as in a study's metrics."""
    pairs = parse_pairs(texts, flag)
    for name, regex in pairs:
        try:
            groups = re.compile(expand_number(regex)).groups
        except re.error as error:
            raise UsageError(f"{flag} {f'{name}={regex}'!r}: broken regular expression: {error}") from None
        if groups < 1:
            raise UsageError(
                f"{flag} {f'{name}={regex}'!r} has no group", "put the number into one: loss=loss: ({number})"
            )
    return tuple((name, expand_number(regex)) for name, regex in pairs)


def parse_arguments(text: str | None, _flag: str = "") -> dict[str, Any]:
    if text is None:
        return {}
    problem = "must be a JSON object"
    try:
        found = parse_json(text)
        if isinstance(found, dict):
            return found
    except ValueError as error:
        problem = f"are not JSON: {error}"
    raise UsageError(f"the constructor's arguments {problem}", """such as --args '{"batch": 64}'""")


def check_python(path: str | None, _flag: str = "") -> str | None:
    """Check that an interpreter, given by path or by name on PATH, is new enough to run our code in the child."""
    if path is None:
        return None
    if shutil.which(path) is None:
        raise UsageError(f"--python {path}: there is no such program", "name an interpreter by its path")
    version: tuple[int, ...] = ()  # empty for a program that is not a Python: the first execution reports that better
    with suppress(OSError, ValueError, subprocess.TimeoutExpired):
        code = "import sys; print('%d %d' % sys.version_info[:2])"
        done = subprocess.run([path, "-c", code], capture_output=True, text=True, timeout=30, check=False)
        version = tuple(map(int, done.stdout.split()[-2:])) if done.returncode == 0 else ()
    if len(version) == len(LEAST_PYTHON) and version < LEAST_PYTHON:
        found, least = (".".join(map(str, each)) for each in (version, LEAST_PYTHON))
        hint = "measure an older one from outside: assay bench run --command 'COMMAND'"
        raise UsageError(f"--python {path} is Python {found}; methods need Python {least} or newer", hint)
    return path


def parse_since(text: str | None, flag: str) -> float | None:
    """Parse a duration before now, or a date, into seconds since the epoch."""
    if text is None:
        return None
    date, duration = parse_date(text), parse_duration(text)
    if date is None and not duration:
        raise UsageError(
            f"{flag} {text!r} is neither a duration nor a date", f"write for example {flag} 1y, 6w, 30d or 2026-01-31"
        )
    return date if date is not None else time.time() - (duration or 0.0)


def check_folders(paths: Sequence[str]) -> None:
    for path in paths:
        if not os.path.isdir(path):
            raise UsageError(f"--path {path}: there is no such folder")


# ---------------------------------------------------------------- the options of several commands


def bench_root_option() -> Any:
    return root_option("Where the runs are.  [default: ./runs]")


def all_option() -> Any:
    return option("--all", default=False, help="Count contaminated and profiled executions as well.")


def better_option() -> Any:
    help_text = "Which direction is better, where the name does not show it."
    return option("--better", multiple=True, metavar="METRIC:min|max", parse=_parse_directions, help=help_text)


def effect_option(default: float | None, text: str) -> Any:
    return option("--min-effect", type=float, minimum=0, default=default, metavar="FRACTION", help=text)


def foreign_option(text: str) -> Any:
    return option("--foreign-limit", type=float, minimum=0, maximum=1, default=0.1, metavar="FRACTION", help=text)


def most_option() -> Any:
    help_text = "Most trials of a commit that stays inconclusive.  [default: 30]"
    return option("--most-trials", type=int, minimum=1, metavar="N", help=help_text)


class ExecuteRequest(Request):
    """Options of every command that executes benchmarks."""

    commands: tuple[BenchMethod, ...] = option(
        "--command",
        multiple=True,
        metavar="TEXT",
        parse=parse_commands,
        help="Measure this command line; NAME=TEXT gives it a name (FOO=bar CMD sets a variable). Repeatable.",
    )
    patterns: tuple[tuple[str, str], ...] = option(
        "--metric",
        multiple=True,
        metavar="NAME=REGEX",
        parse=parse_patterns,
        help="Read a number from the output: {number}, or the first group. Repeatable.",
    )
    trials: int | None = option(
        "--trials",
        type=int,
        minimum=1,
        metavar="N",
        help="Processes for each method.  [default: 1; compare, bisect: 10]",
    )
    timeout_s: float | None = option(
        "--timeout", metavar="DURATION", parse=parse_timeout, help="Time limit of each execution, as in 90s or 2h."
    )
    slots: str | None = slots_option("one at a time")
    jobs: int | None = jobs_option("Run N at once on the CPU; they disturb each other.")
    farm: str | None = farm_option("--farm")  # not --on, which names a metric in `assay bench bisect`
    python: str | None = option(
        "--python", metavar="PATH", parse=check_python, help="Run the methods with this interpreter."
    )
    first_path: tuple[str, ...] = option(
        "--path", multiple=True, metavar="DIR", help="Put this folder first on sys.path. Repeatable."
    )
    data_dir: str = option(
        "--data-dir", default="", metavar="DIR", help="Pass this folder to constructors as data_dir and root_data_dir."
    )
    constructor_args: dict[str, Any] = option(
        "--args", metavar="JSON", parse=parse_arguments, help="Pass further arguments to constructors."
    )
    env: tuple[tuple[str, str], ...] = option(
        "--env", multiple=True, metavar="NAME=VALUE", parse=parse_pairs, help="Environment variable. Repeatable."
    )
    refuse_contaminated: bool = option(
        "--refuse-contaminated",
        default=False,
        help="Do not count results that other processes may have disturbed: exit code 3.",
    )
    foreign_limit: float = foreign_option("Fraction of all cores that other processes may use.")
    max_wait_s: float | None = option(
        "--max-wait",
        metavar="DURATION",
        parse=parse_timeout,
        help="Time limit for waiting until other benchmarks and model checks have ended.  [default: 1h]",
    )
    root: str | None = bench_root_option()
    quiet: bool = quiet_option()


class ResultRequest(ReportFiles):
    """Options of every command that judges: the result in several forms."""

    as_json: bool = json_option("Print the result as JSON.")
    webhook: str | None = option(
        "--webhook", metavar="URL", help="Send the findings to URL as JSON unless everything passed."
    )


# ---------------------------------------------------------------- the request


def choose_fields(kind: type[_Options], request: Request, **further: Any) -> _Options:
    """Build a value from the options that have the names of its fields. A field without an option keeps its default."""
    given = {name: value for name, value in vars(request).items() if value is not None} | further
    return kind(**{each.name: given[each.name] for each in fields(kind) if each.name in given})


def build_request(methods: Sequence[str], request: ExecuteRequest, default_trials: int = 1) -> BenchRequest:
    chosen = (*map(parse_method, methods), *request.commands)
    if not chosen:
        raise UsageError("no benchmark is named", "give METHOD (module.Class.method), or --command 'TEXT'")
    slots, trials = parse_slot_flags(request.slots, request.jobs), request.trials or default_trials
    own = {"methods": chosen, "trials": trials, "slots": slots, "command_line": tuple(sys.argv)}
    return choose_fields(BenchRequest, request, **own)


def build_hooks(console: Console) -> RunHooks:
    return RunHooks(console=console, owns_process=True, counts_wait=True, tick_s=0.1)


def build_run(console: Console) -> Run:
    """Return a function that runs benchmarks and reports each execution as it ends."""
    return lambda request: run_benchmarks(request, build_hooks(console), _build_listener(console))


def build_again(console: Console, root: str | None, foreign_limit: float) -> Callable[[str, str], BenchReport]:
    """Return a function that runs an execution of a method once more, and reports when it has ended."""
    request = BenchRequest((), root=root, foreign_limit=foreign_limit, command_line=tuple(sys.argv))

    def again(method: str, execution_id: str) -> BenchReport:
        found = [e for e in load_executions(find_location(root), method) if e.execution_id == execution_id]
        return run_again(found[-1], request, build_hooks(console), _build_listener(console))

    return again


def _build_listener(console: Console) -> Callable[[BenchExecution, int, int], None]:
    return lambda execution, number, total: console.message(render_execution(execution, number, total))


# ---------------------------------------------------------------- the result


def check_result_options(request: ResultRequest) -> None:
    """Refuse, before anything runs, a result that could not be reported afterwards."""
    check_targets(request.md, request.junit, as_json=request.as_json)
    if request.webhook:
        check_address(request.webhook)


def show(request: ResultRequest, console: Console, document: Document, cases: Cases) -> None:
    """Show the result on stdout, and write reports into files; last, call the webhook if something did not pass."""
    if request.as_json or STDOUT not in (request.md, request.junit):
        console.write_document(document, as_json=request.as_json)
    write_document(document, request)
    if request.webhook and any(verdict.kind is not VerdictKind.PASS for _, _, verdict in cases):
        send_alert(request.webhook, {"title": document.title, "cases": to_json(build_cases_facts(cases))})


def check_address(url: str) -> None:
    if not is_web_address(url):
        raise UsageError(f"--webhook {url} is not a valid address", "such as https://example.org/hook")


def send_alert(url: str, content: Mapping[str, Any]) -> None:
    """Send an alert to a webhook by POST. Raises InfrastructureError if the alert cannot be delivered."""
    check_address(url)
    try:
        status, _ = post(url, json.dumps(content).encode(), {"Content-Type": "application/json"}, _TIMEOUT_S)
        problem = "" if status // 100 == 2 else f"it answered {status}"
    except OSError as error:
        problem = clean(str(error)) or type(error).__name__
    if problem:
        raise InfrastructureError(f"the alert could not be sent to {urlsplit(url).hostname}: {problem}")
