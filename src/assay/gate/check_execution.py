"""Executes one check as a command in its own process, and judges it by its exit code and JUnit report."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from operator import itemgetter
from xml.etree import ElementTree as ET

from assay.errors import ExitCode
from assay.gate.gate_settings import GateCheck
from assay.show.formatting import clean, render_count, render_duration
from assay.show.junit import ALLOWED
from assay.system.fast_dataclasses import dataclass
from assay.system.files import read_end
from assay.system.processes import find_descendants, signal_all
from assay.values.verdict import SEVERITY, VerdictKind

_GRACE_S = 30.0  # the time that a check has to stop its runs
_LOG_BYTES = 20_000
INTERRUPTED = "the gate was interrupted"
_KINDS = {0: VerdictKind.PASS, 1: VerdictKind.FAIL, 3: VerdictKind.INCONCLUSIVE}


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    check: GateCheck
    kind: VerdictKind
    text: str  # one sentence about the result
    seconds: float | None = 0.0  # None: a PASS of an earlier gate is reused
    code: ExitCode = ExitCode.OK
    cases: int = 0  # cases that were judged
    log: str = ""  # the end of the check's output
    is_reused: bool = False


def execute(
    check: GateCheck, more: Sequence[str], folder: str, environment: Mapping[str, str], limit_s: float | None
) -> CheckOutcome:
    """Execute a check. `more`: words after the check's own. After `limit_s` the check and its runs are stopped."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="assay-gate-") as place:
        junit, log = os.path.join(place, "report.xml"), os.path.join(place, "log")
        with open(log, "wb") as file:
            program = subprocess.Popen(
                [sys.executable, "-P", "-m", "assay", *check.words, *more, "--junit", junit],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches only this process, which stops the check
            )
        try:
            program.wait(limit_s)
        except (subprocess.TimeoutExpired, KeyboardInterrupt) as error:
            _stop(program)
            why, code = INTERRUPTED, ExitCode.INTERRUPTED
            if isinstance(error, subprocess.TimeoutExpired):
                why, code = "the budget is used up", ExitCode.INCONCLUSIVE
            seconds = time.monotonic() - began
            text = f"it was stopped after {render_duration(seconds)}: {why}"
            return CheckOutcome(check, VerdictKind.INCONCLUSIVE, text, seconds, code)
        finally:
            _stop(program)
        return _judge(check, program.returncode, junit, read_end(log, _LOG_BYTES), time.monotonic() - began)


def _stop(program: subprocess.Popen[bytes]) -> None:
    """Stop a check by SIGTERM (background scripts ignore SIGINT); kill the processes left after `_GRACE_S`."""
    if program.poll() is not None:
        return
    program.send_signal(signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        program.wait(_GRACE_S)
        return
    signal_all([*find_descendants(program.pid), program.pid], signal.SIGKILL)
    program.wait()


def _judge(check: GateCheck, code: int, junit: str, log: str, seconds: float) -> CheckOutcome:
    """Judge a check by its exit code; a PASS also needs a report in which a case was judged."""
    report = _read_report(junit)
    cases, kinds, worst = report or (0, frozenset(), "")
    kind = _KINDS.get(code, VerdictKind.ERROR)
    ending = ExitCode(code) if code in list(ExitCode) else ExitCode.INTERNAL
    if report is None or kind is VerdictKind.ERROR:
        lines = [line for line in log.splitlines() if line.strip()]
        last = ([line for line in lines if line.startswith("assay: ")] or lines or [""])[-1]
        message = worst or clean(last.removeprefix("assay: "))
        text = message or f"it ended with code {code} and said nothing"
        text = f"it was killed by signal {-code}" if code < 0 else text
        return CheckOutcome(check, VerdictKind.ERROR, text, seconds, ending or ExitCode.FAILED, log=log)
    doubt = "" if cases else "nothing was compared"
    doubt = f"it ended with code 0, but its report has {worst}" if kinds - {VerdictKind.PASS} else doubt
    if kind is VerdictKind.PASS and doubt:
        return CheckOutcome(check, VerdictKind.ERROR, doubt, seconds, ExitCode.FAILED, log=log)
    if kind is VerdictKind.FAIL and VerdictKind.FAIL not in kinds:
        kind = VerdictKind.ERROR
    if kind is VerdictKind.INCONCLUSIVE and VerdictKind.INCONCLUSIVE not in kinds:
        kind = VerdictKind.CHANGED
    text = worst or f"{render_count(cases, 'case')} passed"
    return CheckOutcome(check, kind, text, seconds, ending, cases, log)


def _read_report(path: str) -> tuple[int, frozenset[VerdictKind], str] | None:
    """Return the number of judged cases in a JUnit report of Assay, the verdicts of the cases that have a message, and
    the first message of the worst verdict; None if the report cannot be read."""
    try:
        cases = list(ET.parse(path).getroot().iter("testcase"))  # noqa: S314 our child process wrote the file
    except (OSError, ET.ParseError):
        return None
    judged, bad = 0, list[tuple[int, str]]()
    for case in cases:
        kind, message = _read_case(case)
        judged += kind is not VerdictKind.INCONCLUSIVE
        if message:
            bad.append((SEVERITY.index(kind), f"{case.get('name')}: {message.splitlines()[0]}"))
    more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
    _, worst = min(bad, key=itemgetter(0), default=(0, ""))
    return judged, frozenset(SEVERITY[rank] for rank, _ in bad), clean(worst) + more


def _read_case(case: ET.Element) -> tuple[VerdictKind, str]:
    """Return the verdict of a case as `show/junit.py` writes it, and its message, which is empty for a plain PASS."""
    for element in case:
        message = element.get("message") or "no message"
        if element.tag == "error":
            return VerdictKind.ERROR, message
        if element.tag == "failure":
            is_changed = element.get("type") == VerdictKind.CHANGED
            return VerdictKind.CHANGED if is_changed else VerdictKind.FAIL, message
        if element.tag == "skipped":  # an allowed change counts as PASS
            return VerdictKind.PASS if message.startswith(ALLOWED) else VerdictKind.INCONCLUSIVE, message
    return VerdictKind.PASS, ""
