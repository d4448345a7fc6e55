"""`assay gate`: executes all checks of a project, and reports one table and one exit code."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence

from assay.config.settings import load_settings
from assay.errors import AssayError, ExitCode, InfrastructureError, UsageError
from assay.follow.locations import choose_root
from assay.gate.check_execution import INTERRUPTED, CheckOutcome, execute
from assay.gate.gate_settings import GateCheck, find_judging_request, load_gate
from assay.gate.passes import CheckPlan, Passes
from assay.launch.api import build_side_command
from assay.show.console import Console
from assay.show.formatting import render_count, render_duration
from assay.show.markdown import render_markdown
from assay.show.report_files import ReportFiles, check_targets, write_document
from assay.values import document as doc
from assay.values.options import Group, farm_option, json_option, option, quiet_option, root_option
from assay.values.table import Column, Table
from assay.values.units import parse_timeout
from assay.values.verdict import Finding, VerdictKind, find_worst

_SUMMARY = "GITHUB_STEP_SUMMARY"
_COLUMNS = (Column("verdict", "state"), Column("check"), Column("time", "duration", rank=2), Column("result", rank=1))


class GateRequest(ReportFiles):
    budget: float | None = option(
        "--budget", metavar="DURATION", parse=parse_timeout, help="Time limit for all checks, as in 20m."
    )
    on: str | None = farm_option()
    root: str | None = root_option("Where the runs of the checks go.")
    explain: bool = option("--explain", default=False, help="Show what would be executed, and why; execute nothing.")
    fresh: bool = option("--fresh", default=False, help="Do not reuse a PASS of an earlier gate.")
    quiet: bool = quiet_option()
    as_json: bool = json_option("Print the result as JSON.")


def gate(request: GateRequest, console: Console, group: Group) -> int:
    """Execute all checks of the project's settings: one table, one exit code.

    \b
    [gate]
    checks = ["golden check train.yml", "bench compare main HEAD", "model check net.onnx --target sim"]

    A check is a command line of Assay that judges. A PASS is used again where code, environment and declared data
    (gate.data) are equal. Exit code 0: all passed. 1: a check failed. 3: a check is inconclusive or changed.
    """
    takes_stdout = check_targets(request.md, request.junit, as_json=request.as_json)
    settings = load_settings()
    chosen = load_gate(settings)
    root, _ = choose_root(request.root, None, settings)
    flags = {check: _list_flags(check, request, group) for check in chosen.checks}
    more = ("--farm", request.on) if request.on else ()
    passes = Passes(root, chosen)
    plans = [passes.plan(check, more, flags[check], is_fresh=request.fresh) for check in chosen.checks]
    if request.explain:
        console.write_document(_build_plan(plans), as_json=request.as_json)
        return int(ExitCode.OK)
    budget_s = request.budget or chosen.budget_s
    outcomes = list(_execute_all(plans, more, passes, budget_s, console.quieted(request.quiet)))
    environment = f"env ASSAY_ROOT={shlex.quote(root)}" if request.root else ""
    inside = os.path.relpath(chosen.folder)
    repeats = {
        check: build_side_command(("assay", *check.words, *more), environment, inside) for check in chosen.checks
    }
    document = build_document(outcomes, repeats)
    write_document(document, request)
    console.on_stderr(takes_stdout).write_document(document, as_json=request.as_json)
    _write_summary(document)
    return int(ExitCode.worst(outcome.code for outcome in outcomes))


def _list_flags(check: GateCheck, request: GateRequest, group: Group) -> frozenset[str]:
    """List all flags of a check's command. Raises UsageError for a check that a gate cannot execute."""
    found = find_judging_request(check, group)
    if found is GateRequest:
        raise UsageError(f"{check.position}: a gate cannot be a check of a gate", "name its checks here")
    flags = frozenset(flag for each in found.OPTIONS.values() for flag in each.names)
    if "--" in check.words:
        raise UsageError(f"{check.position}: the gate adds options to a check: it cannot have --", "leave it out")
    if any(word.partition("=")[0] == "--junit" for word in check.words):
        raise UsageError(f"{check.position}: a check of a gate has no --junit of its own", "assay gate --junit FILE")
    if request.on and "--farm" not in flags:
        raise UsageError(f"{check.position}: `assay {check.line}` cannot run on a farm", "leave --on out")
    return flags


def _execute_all(
    plans: Sequence[CheckPlan], more: Sequence[str], passes: Passes, budget_s: float | None, console: Console
) -> Iterator[CheckOutcome]:
    """Execute checks in the order of the settings; checks beyond the budget or after an interrupt are INCONCLUSIVE."""
    ended = ""
    deadline = time.monotonic() + budget_s if budget_s else None
    environment = os.environ | {"ASSAY_ROOT": passes.root}
    for number, plan in enumerate(plans, 1):
        left_s = None if deadline is None else deadline - time.monotonic()
        if left_s is not None and left_s <= 0:
            ended = ended or f"the budget of {render_duration(budget_s or 0)} is used up"
        if plan.passed is not None:
            yield plan.passed
        elif ended:
            text = f"it was not begun: {ended}"
            yield CheckOutcome(plan.check, VerdictKind.INCONCLUSIVE, text, code=ExitCode.INCONCLUSIVE)
        else:
            console.message(f"{number} of {len(plans)}: assay {plan.check.line}")
            outcome = execute(plan.check, more, passes.settings.folder, environment, left_s)
            if outcome.kind is VerdictKind.INCONCLUSIVE and outcome.code is ExitCode.INTERRUPTED:
                ended = INTERRUPTED
            try:
                passes.keep(plan, outcome)
            except (OSError, AssayError) as error:
                console.warning(f"this PASS is not kept for the next gate: {error}")
            yield outcome


def build_document(outcomes: Sequence[CheckOutcome], repeats: Mapping[GateCheck, str]) -> doc.Document:
    """Build the report. `repeats`: check → the command that executes only this check."""
    kind = find_worst(outcome.kind for outcome in outcomes)
    rows = [[doc.Span(each.kind, each.kind), each.check.line, each.seconds, each.text] for each in outcomes]
    bad = [each for each in outcomes if each.kind is not VerdictKind.PASS]
    counts = [(sum(each.kind is of for each in outcomes), of) for of in VerdictKind]
    shown = ", ".join(f"{count} {of}" for count, of in counts if count)
    reused = sum(each.is_reused for each in outcomes)
    shown += f"; {reused} of an earlier gate" if reused else ""
    answer = doc.Text(("gate: ", doc.Span(kind, kind), f", {render_count(len(outcomes), 'check')}: {shown}"))
    commands = doc.Commands([("", repeats[each.check]) for each in bad])
    reasons = [Finding(each.kind, each.check.line, each.text) for each in bad]  # the table may cut these texts
    logs = [
        doc.Details((doc.Span(each.kind, each.kind), f" {each.check.line}"), (doc.Code(each.log),))
        for each in bad
        if each.log
    ]
    blocks = (
        doc.Heading("Gate", kind, level=2),
        doc.TableBlock(Table(_COLUMNS, rows), roles=[str(each.kind) for each in outcomes], hint="--json has all"),
        doc.Section((doc.Only(("terminal",), (doc.Findings(reasons),)), answer)),
        *([doc.Section((commands,), title="Run one alone")] if bad else ()),
        doc.Only(("markdown", "html"), logs),
    )
    cases = [doc.Case("gate", each.check.line, each.kind, each.text, each.log, each.seconds) for each in outcomes]
    facts = [
        {
            "check": each.check.line,
            "verdict": str(each.kind),
            "text": each.text,
            "seconds": round(each.seconds or 0.0, 3),
            "exit_code": int(each.code),
            "cases": each.cases,
            "reused": each.is_reused,
        }
        for each in outcomes
    ]
    facts_of_all = {"verdict": str(kind), "checks": facts}
    return doc.Document(f"{kind} gate", blocks, (doc.Suite("gate", cases),), facts=facts_of_all)


def _build_plan(plans: Sequence[CheckPlan]) -> doc.Document:
    columns = (Column("check"), Column("would be"), Column("why", rank=1))
    rows = [[each.check.line, "reused" if each.passed else "executed", each.reason] for each in plans]
    facts = [{"check": check, "executed": word == "executed", "why": why} for check, word, why in rows]
    return doc.Document("gate", (doc.TableBlock(Table(columns, rows), hint="--json has all"),), facts={"checks": facts})


def _write_summary(document: doc.Document) -> None:
    """Append the report to the page that GitHub shows for a job."""
    if not (path := os.environ.get(_SUMMARY)):
        return
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(render_markdown(document))
    except OSError as error:
        raise InfrastructureError(f"{_SUMMARY}: {path} cannot be written: {error.strerror}") from error
