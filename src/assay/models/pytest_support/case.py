"""One case in one test: its steps as fixtures ask for them, and the comparison at the end.

A step that fails fails the fixture, so pytest says ERROR and names it; what differs fails the test.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import PosixPath
from typing import TYPE_CHECKING, Any

import pytest

from assay.models.pytest_support.report import PROPERTY_PROFILE, build_failure
from assay.models.pytest_support.text import render_error, render_failed_step, render_mismatch

if TYPE_CHECKING:
    from assay.models.flow.artifact_builder import Product
    from assay.models.flow.stepwise import CaseSteps
    from assay.models.pytest_support.plan import Given, Plan
    from assay.models.values.model import CaseReport, Target


class MadePath(PosixPath):
    """A file or folder that a step made: that of the first sample. `samples` has those of all of them."""

    samples: tuple[str, ...] = ()


class Arrays(list[Any]):
    """Tensors in the graph's order, of the first sample. `samples` has all of them, by name."""

    samples: tuple[dict[str, Any], ...] = ()


def build_path(paths: Sequence[str]) -> MadePath:
    made = MadePath(paths[0])
    made.samples = tuple(paths)
    return made


def build_arrays(samples: Sequence[dict[str, Any]]) -> Arrays:
    arrays = Arrays(samples[0].values())
    arrays.samples = tuple(samples)
    return arrays


def list_paths(value: Any) -> tuple[str, ...]:
    """Of what a fixture returned, ours or somebody's own."""
    return getattr(value, "samples", None) or (os.fspath(value),)


def list_arrays(value: Any) -> Any:
    """Ours are given back as they were, but for what somebody has done to the first sample in place."""
    if not isinstance(value, Arrays) or not value.samples:
        return value
    first = dict(zip(value.samples[0], value, strict=False))
    return [first, *value.samples[1:]]


# ---------------------------------------------------------------- errors


@contextmanager
def telling(fixture: str, model: str = "", note: str = "") -> Iterator[None]:
    """What goes wrong in a fixture ends it with a text, without a traceback of ours. `note` is for trouble with tools
    or settings, not for what a tool says of a model."""
    from assay.errors import AssayError
    from assay.models.flow.cases import StepFailedError

    try:
        yield
    except StepFailedError as error:
        outcome = error.outcome
        said = render_failed_step(fixture, error, outcome, model)
        reason = f"{outcome.step} {outcome.ending}: {outcome.message or fixture}"
    except AssayError as error:
        said = render_error(fixture, error, model) + (f"\n  {note}" if note else "")
        reason = error.message
    else:
        return
    raise build_failure(said, reason) from None


# ---------------------------------------------------------------- a case


class ModelCase:
    def __init__(self, plan: Plan, given: Given, steps: CaseSteps, node: Any, keep: str) -> None:
        self.plan = plan
        self.given = given
        self.steps = steps
        self.note = ""  # what is to be said beside what differs
        self.is_replaced = False  # somebody's own piece is in it: a second reference, which has ours, has no voice
        self._node = node
        self._keep = keep

    @property
    def name(self) -> str:
        return self.steps.case.name

    @property
    def model(self) -> str:
        """The file that the case is from."""
        return self.steps.cases.source.model

    @contextmanager
    def telling(self, fixture: str, note: str = "") -> Iterator[None]:
        """Also that nothing is heard of a tool, with -s, because it was not called."""
        before = len(self.steps.steps)
        with telling(fixture, self.model, note):
            yield
        for step in self.steps.steps[before:] if self.steps.stand.builder.live else ():
            if step.cached:
                print(f"\n{self.given.label} {step.step}: from the cache; --recompute-cache runs the tools")

    # ------------------------------------------------------------ pieces

    def take_inputs(self, value: Any) -> list[Product]:
        from assay.models.flow.stepwise import read_samples

        return self.steps.write_inputs(read_samples(list_arrays(value), self.steps.input_names))

    def take_in(self, value: Any, artifact: str = "") -> list[Product]:
        self.is_replaced |= not getattr(value, "samples", ())
        return [self.steps.stand.take_in(path, artifact) for path in list_paths(value)]

    def hand_out(self, products: Sequence[Product]) -> MadePath:
        return build_path([self.steps.stand.hand_out(product) for product in products])

    def hand_out_folders(self, products: Sequence[Product]) -> MadePath:
        """The folders that artifacts lie in."""
        places = [each.path if os.path.isdir(each.path) else os.path.dirname(each.path) for each in products]
        pairs = zip(products, places, strict=True)
        return build_path([self.steps.stand.hand_out(product, place) for product, place in pairs])

    # ------------------------------------------------------------ the comparison

    def compare(self, reference: Target, target: Target, expected: Any, actual: Any) -> CaseReport:
        """Ends the test unless all outputs are right."""
        from assay.errors import AssayError

        try:
            report = self._compare(reference, target, expected, actual)
        except AssayError as error:
            said = error.render()
        else:
            self._record(report)
            _judge(self.given.label, reference.name, report, self.note)
            return report
        raise build_failure(said, said)

    def _compare(self, reference: Target, target: Target, expected: Any, actual: Any) -> CaseReport:
        from assay.models.flow.project import choose_project_voter
        from assay.models.flow.stepwise import Comparing, read_samples

        assert self.given.model is not None
        tolerances, _ = self.plan.choose(self.given.model)
        self.is_replaced |= not (isinstance(expected, Arrays) and isinstance(actual, Arrays))
        vote = None if self.is_replaced else choose_project_voter(self.plan.project, reference, target)
        self.note = vote.note if vote is not None else ""
        comparing = Comparing(reference, target, tolerances, vote.voter if vote is not None else None, self._keep)
        names = self.steps.case.outputs
        return self.steps.compare(
            comparing, read_samples(list_arrays(expected), names), read_samples(list_arrays(actual), names)
        )

    def _record(self, report: CaseReport) -> None:
        """For JUnit files, dashboards and other plugins. A time from the cache was measured by an earlier session."""
        times = {f"{step.step}_s": step.elapsed_s for step in report.steps if not step.cached}
        errors = {f"error {each.name}": each.error for each in report.local}
        tools = {"compiler": report.target, "runtime": report.target}
        self._node.user_properties.extend((times | errors | tools).items())
        profiles = [path for step in report.steps for path in step.profiles if path.endswith(".pb")]
        if profiles:
            self._node.user_properties.append((PROPERTY_PROFILE, profiles[-1]))


def clear_keep(plan: Plan, given: Given, node: Any) -> str:
    """The folder for what this test's last failure leaves: tensors that differ, files that a failed step was given."""
    key = hashlib.sha256(node.nodeid.encode("utf-8", "surrogateescape")).hexdigest()[:8]
    folder = plan.find_folder(f"{re.sub(r'[^A-Za-z0-9_.+-]+', '_', given.label)[:100]}-{key}")
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def _judge(label: str, reference: str, report: CaseReport, note: str) -> None:
    """Where the references disagree, that is said instead of failing; what proves nothing is no pass."""
    kinds = {str(each.verdict.kind) for each in report.local}
    if report.verdict.kind == "PASS":
        return
    text = render_mismatch(label, reference, report) + (f"\n{note}" if note else "")
    if report.verdict.kind == "INCONCLUSIVE" and "FAIL" in kinds:
        pytest.skip(text)
    raise build_failure(text, text.removeprefix(f"{label}: "))
