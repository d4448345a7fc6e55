"""One case in one test: its steps as fixtures ask for them, and the comparison at the end.

A step that fails fails the fixture, so pytest says ERROR and names it; what differs fails the test.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import PosixPath
from typing import TYPE_CHECKING, Any

import pytest

from assay.pytest_plugin.model_text import render_error, render_failed_step, render_mismatch

if TYPE_CHECKING:
    from assay.flows.model.stepwise import CaseSteps
    from assay.flows.model.workshop import Product
    from assay.pytest_plugin.model_plan import Given, Plan
    from assay.values.model import CaseReport, Target

_BUILDING = re.compile(r"/(?:[^/=@]+/)+building/[0-9a-f]{64}\.[0-9a-f]+/files")  # of the artifact store: it is gone now


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
def telling(fixture: str, model: str = "", keep: Callable[[str], str] = str) -> Iterator[None]:
    """What goes wrong in a fixture ends it with a text, without a traceback of ours. `keep` makes a command one that
    can still be run when this process is gone."""
    from assay.errors import AssayError
    from assay.flows.model.cases import StepFailedError

    try:
        yield
    except StepFailedError as error:
        said = render_failed_step(fixture, error, error.outcome, model, keep(error.outcome.command))
    except AssayError as error:
        said = render_error(fixture, error, model)
    else:
        return
    raise pytest.fail.Exception(said, pytrace=False) from None


def keep_command(command: str, scratch: str, folder: str) -> str:
    """The files of `scratch` that a command names, copied to `folder`, and the command with their new names."""
    try:
        words = shlex.split(command)
    except ValueError:
        return command
    return shlex.join([_keep_word(word, scratch, folder) for word in words])


def _keep_word(word: str, scratch: str, folder: str) -> str:
    """Also where the path is only a part of the word: --input=4xf32=@/tmp/…/0.npy."""
    head, found, tail = word.partition(scratch + os.sep)
    if found:
        _copy(os.path.join(scratch, tail), os.path.join(folder, tail))
        return head + os.path.join(folder, tail)
    match = _BUILDING.search(word)
    if match is None:
        return word
    os.makedirs(os.path.join(folder, "made"), exist_ok=True)
    return word[: match.start()] + os.path.join(folder, "made") + word[match.end() :]


def _copy(source: str, target: str) -> None:
    """With what lies beside it: a model may have its weights there."""
    if os.path.exists(source):
        shutil.copytree(os.path.dirname(source), os.path.dirname(target), dirs_exist_ok=True)


# ---------------------------------------------------------------- a case


class ModelCase:
    def __init__(self, plan: Plan, given: Given, steps: CaseSteps, node: Any) -> None:
        self.plan = plan
        self.given = given
        self.steps = steps
        self.is_replaced = False  # somebody's own piece is in it: a second reference, which has ours, has no voice
        self._node = node

    @property
    def name(self) -> str:
        return self.steps.case.name

    @property
    def model(self) -> str:
        """The file that the case is from."""
        return self.steps.cases.source.model

    @property
    def onnx_files(self) -> tuple[str, ...]:
        """The case itself: a layer, cut out, or the whole."""
        return tuple(self.steps.stand.hand_out(product) for product in self.steps.models)

    def telling(self, fixture: str) -> Any:
        scratch = self.steps.stand.workshop.scratch
        return telling(fixture, self.model, lambda command: keep_command(command, scratch, self._make_keep()))

    # ------------------------------------------------------------ pieces

    def take_inputs(self, value: Any) -> list[Product]:
        from assay.flows.model.stepwise import read_samples

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
            _judge(self.given.label, reference.name, report)
            return report
        raise pytest.fail.Exception(said, pytrace=False)

    def _compare(self, reference: Target, target: Target, expected: Any, actual: Any) -> CaseReport:
        from assay.flows.model.project import choose_project_voter
        from assay.flows.model.stepwise import Comparing, read_samples

        assert self.given.model is not None
        tolerances, _ = self.plan.choose(self.given.model)
        self.is_replaced |= not (isinstance(expected, Arrays) and isinstance(actual, Arrays))
        voter = None if self.is_replaced else choose_project_voter(self.plan.project, reference, target)
        comparing = Comparing(reference, target, tolerances, voter, self._make_keep())
        names = self.steps.case.outputs
        return self.steps.compare(
            comparing, read_samples(list_arrays(expected), names), read_samples(list_arrays(actual), names)
        )

    def _make_keep(self) -> str:
        """The tensors of this test's last failure."""
        key = hashlib.sha256(self._node.nodeid.encode("utf-8", "surrogateescape")).hexdigest()[:8]
        folder = self.plan.find_folder(f"{re.sub(r'[^A-Za-z0-9_.+-]+', '_', self.given.label)[:100]}-{key}")
        shutil.rmtree(folder, ignore_errors=True)
        return folder

    def _record(self, report: CaseReport) -> None:
        """For JUnit files and other plugins."""
        times = {f"{step.step}_s": step.elapsed_s for step in report.steps}
        errors = {f"error {each.name}": each.error for each in report.local}
        self._node.user_properties.extend((times | errors).items())


def _judge(label: str, reference: str, report: CaseReport) -> None:
    """Where the references disagree, that is said instead of failing; what proves nothing is no pass."""
    kinds = {str(each.verdict.kind) for each in report.local}
    if report.verdict.kind == "PASS":
        return
    text = render_mismatch(label, reference, report)
    if report.verdict.kind == "INCONCLUSIVE" and "FAIL" in kinds:
        pytest.skip(text)
    if report.verdict.kind == "INCONCLUSIVE":
        text += "\nwhere this is as it should be: tolerance = {allow_constant = true} in the model's settings"
    raise pytest.fail.Exception(text, pytrace=False)
