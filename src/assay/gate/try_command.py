"""`assay try` and `assay tries`."""

from __future__ import annotations

import math
import os
import re
import sys
from typing import Any

from assay.errors import ExitCode, UsageError
from assay.gate.paired_test import FEWEST, TryQuestion
from assay.gate.tries_ledger import SEED, Metric, Try, load_tries
from assay.launch.api import Budget, SideOptions, check_paths
from assay.show.console import Console
from assay.values.options import (
    Request,
    argument,
    budget_option,
    farm_option,
    jobs_option,
    json_option,
    option,
    quiet_option,
    root_option,
    slots_option,
)
from assay.values.series import expand_number, find_direction
from assay.values.units import parse_slot_flags, parse_timeout


def parse_metric(text: str, flag: str) -> Metric:
    """Parse `NAME`, `NAME:min` or `NAME:max=REGEX`."""
    found = re.fullmatch(r"(?s)(?P<name>[^:=]+)(?::(?P<way>[^=]*))?(?:=(?P<regex>.+))?", text)
    if found is None or found["way"] not in (None, "min", "max"):
        raise UsageError(f"{flag} {text!r} is not NAME:min or NAME:max", f"write for example {flag} val_loss:min")
    name, pattern = found["name"].strip(), found["regex"] or ""
    try:
        groups = re.compile(expand_number(pattern)).groups
    except re.error as error:
        raise UsageError(f"{flag}: {pattern!r} is not a regular expression: {error}") from None
    if pattern and not groups:
        hint = f"put what is to be read into a group: {flag} '{name}:min=loss=({{number}})'"
        raise UsageError(f"{flag}: the pattern {pattern!r} has no group", hint)
    if (way := found["way"] or find_direction(name)) is None:
        message = f"{flag} {text}: the name does not show whether lower or higher is better"
        raise UsageError(message, f"say it: {flag} {name}:min or {flag} {name}:max")
    return Metric(name, "min" if way == "min" else "max", pattern)


def parse_effect(text: str, flag: str) -> float:
    """Parse `0.5%` or `0.005`, a fraction of the base."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        hint = f"write for example {flag} 0.5% or {flag} 0.005"
        raise UsageError(f"{flag} {text!r} is not a fraction from 0 to below 100%", hint)
    return value


def seeds_option(text: str, default: int | None = None) -> Any:
    return option("--seeds", type=int, minimum=FEWEST, maximum=1000, default=default, metavar="N", help=text)


class TryRequest(SideOptions):
    idea: str = argument("IDEA")
    command: tuple[str, ...] = argument("-- COMMAND...", multiple=True, required=False)
    a_rev: str = option("--a-rev", "--base", default="HEAD", metavar="REV", help="Compare the idea with this commit.")
    metric: Metric = option(
        "--metric",
        required=True,
        metavar="NAME:min|max[=REGEX]",
        parse=parse_metric,
        help="Metric that decides, by its last value: logged, printed, or found in the output by REGEX.",
    )
    seeds: int = seeds_option("At most this many pairs of runs.", default=20)
    min_effect: float | None = option(
        "--min-effect", metavar="FRACTION", parse=parse_effect, help="Ignore smaller changes.  [default: 0.5%]"
    )
    min_change: float | None = option(
        "--min-change", type=float, minimum=0, metavar="X", help="--min-effect as an absolute value; needed near zero."
    )
    timeout_s: float | None = option(
        "--timeout", metavar="DURATION", parse=parse_timeout, help="Time limit of each run, as in 90s or 2h."
    )
    budget: str | None = budget_option()
    slots: str | None = slots_option()
    jobs: int | None = jobs_option()
    root: str | None = root_option("Output root.  [default: ./runs]")
    quiet: bool = quiet_option()
    as_json: bool = json_option("Print the result as JSON.")


def try_command(request: TryRequest, console: Console) -> int:
    """Show whether an IDEA is better than the base: both run with the same seeds, until a verdict is reached.

    \b
    assay try "halve the batch" --metric val_loss:min -- python train.py --seed {seed}

    The idea is the files as they are now, the base is HEAD; both run from copies, so you can go on working. Files that
    git does not have are on neither side. The verdict is `better`, `worse`, `same` or `undecided`, by a paired t-test
    whose boundary allows for looking several times; it needs 6 to --seeds pairs. Existing runs are used again.

    Exit code 0: better. 1: worse. 3: same or undecided. 2: the call is wrong, or the base does not run.
    """
    from assay.gate.passes import digest_command, digest_environment
    from assay.gate.try_report import build_try_document
    from assay.gate.try_runs import build_place, keep_code
    from assay.gate.trying import try_idea
    from assay.system.fast_dataclasses import replace

    question = _build_question(request)
    if not (words := request.command):
        raise UsageError("there is no command", f"write it last: -- python train.py --seed {SEED}")
    if not any(SEED in word for word in words):
        message = f"the command has no {SEED}: every run would be the same"
        raise UsageError(message, f"say where the seed goes: -- {' '.join(words)} --seed {SEED}")
    quieted = console.quieted(request.quiet or request.as_json)
    place = build_place(request.root, request.on, parse_slot_flags(request.slots, request.jobs))
    budget = Budget(request.budget) if request.budget is not None else None
    place = replace(place, timeout_s=request.timeout_s, budget=budget, command_line=tuple(sys.argv))
    check_paths(words, os.getcwd())
    *codes, notes = keep_code(place, request.a_rev, request.b_rev, quieted)
    machine = digest_environment(os.getcwd())
    a, b = (
        replace(code, words=words, environment=prefix, machine=digest_command(machine, prefix, words))
        for code, prefix in zip(codes, (request.a_env, request.b_env), strict=True)
    )
    farm = place.farm.name if place.farm else ""
    asked = Try(request.idea, request.metric, question, a, b, request.seeds, farm, request.timeout_s)
    found = try_idea(replace(asked, notes=tuple(notes)), place, quieted)
    console.write_document(build_try_document(found, place.location), as_json=request.as_json)
    exits = {"better": ExitCode.OK, "worse": ExitCode.FAILED}
    return int(exits.get(found.verdict, ExitCode.INCONCLUSIVE))


def _build_question(request: TryRequest) -> TryQuestion:
    if request.min_effect is not None and request.min_change is not None:
        raise UsageError("--min-effect and --min-change set the same thing", "give one of them")
    if request.min_change is not None and not math.isfinite(request.min_change):
        raise UsageError(f"--min-change {request.min_change:g} is not an amount", "write for example --min-change 0.01")
    given = {} if request.min_effect is None else {"effect": request.min_effect}
    return TryQuestion(request.metric.direction, change=request.min_change, **given)


class TriesRequest(Request):
    confirm: bool = option(
        "--confirm",
        default=False,
        help="Repeat each `better` with fresh seeds on both sides, and choose those to keep.",
    )
    seeds: int | None = seeds_option("Pairs of each confirmation.  [default: as tried]")
    on: str | None = farm_option()
    slots: str | None = slots_option()
    jobs: int | None = jobs_option()
    root: str | None = root_option()
    quiet: bool = quiet_option()
    as_json: bool = json_option()


def tries(request: TriesRequest, console: Console) -> int:
    """List the ideas that were tried with `assay try`, and their verdicts.

    The best of many tries is often only lucky, and all of them share the runs of one base. --confirm therefore repeats
    each `better` with fresh seeds on both sides; by Benjamini and Hochberg at most a tenth of the kept ideas are wrong.
    """
    from assay.gate.try_report import build_tries_document
    from assay.gate.try_runs import build_place
    from assay.gate.trying import confirm_tries

    place = build_place(request.root, request.on, parse_slot_flags(request.slots, request.jobs))
    if request.seeds is not None and not request.confirm:
        raise UsageError("--seeds is for --confirm", "give both, or none")
    if request.confirm:
        found = confirm_tries(place, request.seeds, console.quieted(request.quiet or request.as_json))
    else:
        found = load_tries(place.location)
    console.write_document(build_tries_document(found, place.location), as_json=request.as_json)
    return int(ExitCode.OK)
