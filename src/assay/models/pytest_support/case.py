"""One case in one test, and the text of a test that does not pass.

The steps of a case run as fixtures request them; the comparison comes last. A step that fails makes its fixture
fail, which pytest reports as ERROR; outputs that differ make the test fail. The texts of failures contain everything
that is needed to continue, and no traceback of Assay.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import PosixPath
from typing import TYPE_CHECKING, Any

import pytest

from assay.errors import AssayError
from assay.models.pytest_support.options import Given, ModelTestPlan
from assay.system.fast_dataclasses import replace
from assay.values.pytest_names import PROPERTY_PROFILE

if TYPE_CHECKING:
    from assay.models.flow.artifact_builder import Product
    from assay.models.flow.cases import StepFailedError
    from assay.models.flow.stepwise import CaseSteps
    from assay.models.values.model import CaseReport, ModelReport, Target

CACHE_SECTION = "artifact cache"
_ALLOWED = "tolerance = {allow_constant = true} in the model's settings"
_MOST_LINES = 200  # most lines of a tool's output that are shown: its first and last ones
_REASON = "assay_reason"
_SECTION = "models that did not pass"
_NAMES = {"error": "ERROR", "failed": "FAILED"}
_LEAST_WIDTH = 30  # fewer columns of a reason in the short summary would not be readable


class MadePath(PosixPath):
    """A file or folder that a step made for the first sample. `samples` has the paths of all samples."""

    samples: tuple[str, ...] = ()


class Arrays(list[Any]):
    """Tensors in the graph's order, for the first sample. `samples` has the tensors of all samples, by name."""

    def __init__(self, samples: Sequence[dict[str, Any]]) -> None:
        super().__init__(samples[0].values())
        self.samples = samples


def build_path(paths: Sequence[str]) -> MadePath:
    made = MadePath(paths[0])
    made.samples = tuple(paths)
    return made


def read_arrays(value: Any, names: Sequence[str]) -> Any:
    """Return a fixture's result by sample: our samples, with the user's changes in the first one."""
    from assay.models.flow.stepwise import read_samples

    if isinstance(value, Arrays):
        value = [dict(zip(value.samples[0], value, strict=False)), *value.samples[1:]]
    return read_samples(value, names)


class FixtureCase:
    def __init__(self, plan: ModelTestPlan, given: Given, steps: CaseSteps, node: Any, keep: str) -> None:
        self.plan = plan
        self.given = given
        self.steps = steps
        self.is_replaced = False  # a user's fixture is in use: a second reference, which has Assay's data, has no vote
        self._node = node
        self._keep = keep

    @property
    def name(self) -> str:
        return self.steps.case.name

    @property
    def model(self) -> str:
        """The file of the case's model."""
        return self.steps.cases.request.model

    @contextmanager
    def reporting(self, fixture: str, note: str = "") -> Iterator[None]:
        """Report errors of a fixture. With -s, print which steps came from the cache: their tools print nothing."""
        before = len(self.steps.steps)
        with reporting(fixture, self.model, note):
            yield
        for step in self.steps.steps[before:] if self.steps.stand.builder.live else ():
            if step.cached:
                print(f"\n{self.given.label} {step.step}: from the cache; --recompute-cache runs the tools")

    def take_inputs(self, value: Any) -> list[Product]:
        return self.steps.write_inputs(read_arrays(value, self.steps.input_names))

    def take_in(self, value: Any, artifact: str = "") -> list[Product]:
        """Return the products of a fixture's result: paths that Assay made, or one of the user's own."""
        paths = getattr(value, "samples", ())
        self.is_replaced |= not paths
        return [self.steps.stand.take_in(path, artifact) for path in paths or (os.fspath(value),)]

    def hand_out(self, products: Sequence[Product]) -> MadePath:
        return build_path([self.steps.stand.hand_out(product) for product in products])

    def hand_out_folders(self, products: Sequence[Product]) -> MadePath:
        """Return the folders of artifacts instead of their files."""
        paths = []
        for each in products:
            folder = each.path if os.path.isdir(each.path) else os.path.dirname(each.path)
            paths.append(self.steps.stand.hand_out(each, folder))
        return build_path(paths)

    def compare(self, reference: Target, target: Target, expected: Any, actual: Any) -> CaseReport:
        """End the test unless all outputs are correct. If the references disagree, that is reported instead of a
        failure; a comparison that proves nothing does not pass."""
        try:
            report, note = self._compare(reference, target, expected, actual)
        except AssayError as error:
            text = error.render()
        else:
            self._record(report)
            if report.verdict.kind == "PASS":
                return report
            text = render_mismatch(self.given.label, reference.name, report) + (f"\n{note}" if note else "")
            if report.verdict.kind == "INCONCLUSIVE" and any(each.verdict.kind == "FAIL" for each in report.local):
                pytest.skip(text)
        raise build_failure(text, text.removeprefix(f"{self.given.label}: "))

    def _compare(self, reference: Target, target: Target, expected: Any, actual: Any) -> tuple[CaseReport, str]:
        """Return the comparison, and why a voter of the settings has no vote."""
        from assay.models.flow.targets import Vote, choose_voter

        assert self.given.model is not None
        tolerances, _ = self.plan.choose(self.given.model)
        self.is_replaced |= not (isinstance(expected, Arrays) and isinstance(actual, Arrays))
        project, vote = self.plan.project, Vote()
        if not self.is_replaced:
            vote = choose_voter(None, project.settings.vote, reference, target, project.folder)
        request = replace(
            self.steps.cases.request, reference=reference, target=target, voter=vote.voter, tolerances=tolerances
        )
        samples = [read_arrays(value, self.steps.case.outputs) for value in (expected, actual)]
        return self.steps.compare(request, self._keep, *samples), vote.note

    def _record(self, report: CaseReport) -> None:
        """Record facts for JUnit files and dashboards, but no time from the cache: an earlier session measured it."""
        times = {f"{step.step}_s": step.elapsed_s for step in report.steps if not step.cached}
        errors = {f"error {each.name}": each.error for each in report.local}
        tools = {"compiler": report.target, "runtime": report.target}
        self._node.user_properties.extend((times | errors | tools).items())
        profiles = [path for step in report.steps for path in step.profiles if path.endswith(".pb")]
        if profiles:
            self._node.user_properties.append((PROPERTY_PROFILE, profiles[-1]))


def clear_keep(plan: ModelTestPlan, label: str, node: Any) -> str:
    """Empty and return the folder for this test's last failure: tensors that differ, files of a failed step."""
    key = hashlib.sha256(node.nodeid.encode("utf-8", "surrogateescape")).hexdigest()[:8]
    folder = plan.find_folder(f"{re.sub(r'[^A-Za-z0-9_.+-]+', '_', label)[:100]}-{key}")
    shutil.rmtree(folder, ignore_errors=True)
    return folder


@contextmanager
def reporting(fixture: str, model: str = "", note: str = "") -> Iterator[None]:
    """End a fixture on an error with a text, without a traceback of ours. `note` is for problems of tools or settings,
    not for what a tool reports about a model."""
    from assay.models.flow.cases import StepFailedError

    try:
        yield
    except StepFailedError as error:
        outcome = error.outcome
        text_of_error = render_failed_step(fixture, error, model)
        reason = f"{outcome.step} {outcome.ending}: {outcome.message or fixture}"
    except AssayError as error:
        lines = [f"{fixture}: {error.message}", _name_model(error.hint or "", model), note]
        text_of_error = "\n  ".join(line for line in lines if line)
        reason = error.message
    else:
        return
    raise build_failure(text_of_error, reason) from None


def render_failed_step(fixture: str, error: StepFailedError, model: str) -> str:
    """Render a failed step with its command line and all of the tool's output."""
    outcome = error.outcome
    parts = [f"{fixture}: {error.message}"]
    if outcome.command:
        parts.append(f"command: {outcome.command}")
    half = _MOST_LINES // 2
    for name, output in (("stdout", outcome.stdout), ("stderr", outcome.stderr)):
        text = output.strip("\n") if output.strip() else "(nothing)"
        lines = text.splitlines()
        if len(lines) > _MOST_LINES:
            text = "\n".join([*lines[:half], f"… {len(lines) - 2 * half} lines left out …", *lines[-half:]])
        parts.append(f"{name}:\n{text}")
    if error.hint:
        parts.append(f"what to do: {_name_model(error.hint, model)}")
    return "\n".join(parts)


def _name_model(hint: str, model: str) -> str:
    """Name the model's file, not that of a layer cut out of it, so that the command in a hint can be pasted."""
    return hint.replace(" MODEL ", f" {shlex.quote(model)} ")


def render_mismatch(label: str, reference: str, report: CaseReport) -> str:
    """Render a comparison that failed, with its numbers and the command that shows them."""
    from assay.models.report.summary import build_diff_commands, describe_finding, find_bad
    from assay.models.report.tensor_diff import build_document
    from assay.models.values.tensors import ALLOW_CONSTANT, TensorDiff
    from assay.show.terminal_report import render_terminal

    bad = [each for each in report.local if each.verdict.kind != "PASS"]
    found = "; ".join(describe_finding(finding, report) for finding in find_bad(report))
    differs = any(each.verdict.kind == "FAIL" for each in bad) or report.verdict.kind != "INCONCLUSIVE"
    verb = "differs from" if differs else "cannot be distinguished from"
    lines = [f"{label}: {report.target} {verb} {reference}: {found}"]
    files = dict(zip([each.name for each in bad], report.diffs, strict=False))
    diffs = [TensorDiff(each, *files.get(each.name, ("-", "-"))) for each in bad]
    if diffs:
        lines.append(render_terminal(build_document(diffs, report.verdict), width=110, plain=True).rstrip())
    lines += [f"show it: {command}" for command in build_diff_commands(report)]
    return "\n".join(lines).replace(ALLOW_CONSTANT, _ALLOWED)


def judge_report(label: str, report: ModelReport) -> None:
    """End the test of a whole model unless all of it is correct."""
    from assay.models.report.check import build_document
    from assay.models.report.summary import describe_outcome
    from assay.show.terminal_report import render_terminal

    if report.verdict.kind != "PASS":
        text = render_terminal(build_document(report), width=110, plain=True)
        raise build_failure(f"{label}:\n{text}", describe_outcome(report))


def build_failure(text: str, reason: str) -> BaseException:
    """Build an exception with the whole text for the report, and the reason alone."""
    error: BaseException = pytest.fail.Exception(text, pytrace=False)
    setattr(error, _REASON, reason.partition("\n")[0])
    return error


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the reason to the report: pytest shows no reason in its summary for an error without a traceback."""
    report = yield
    reason = getattr(call.excinfo.value, _REASON, None) if call.excinfo is not None else None
    if call.excinfo is None or reason is None:
        return report
    setattr(report, _REASON, reason)  # pytest keeps attributes that it does not know, between processes too
    shown: Any = report.longrepr
    crash = call.excinfo.getrepr(style="short", chain=False).reprcrash
    if crash is not None and getattr(shown, "chain", None):
        crash.path, crash.lineno, crash.message = str(item.path), (report.location[1] or 0) + 1, reason
        report.longrepr = type(shown)([*shown.chain[:-1], (shown.chain[-1][0], crash, shown.chain[-1][2])])
    return report


def report_reasons(reporter: Any) -> None:
    """Print the reasons of tests whose names are too long for them in pytest's own summary."""
    width: int = reporter._tw.fullwidth  # noqa: SLF001 pytest has no other way to ask
    lines = [
        f"{word} {find_label(report.nodeid)}: {getattr(report, _REASON)}"
        for kind, word in _NAMES.items()
        for report in reporter.stats.get(kind, ())
        if hasattr(report, _REASON) and len(report.nodeid) + _LEAST_WIDTH > width
    ]
    if lines:
        reporter.section(_SECTION)
    for line in lines:
        reporter.write_line(line)


def find_label(name: str) -> str:
    """Return the part of a test's name between the brackets."""
    match = re.search(r"\[(.*)\]$", name)
    return match[1] if match else name
