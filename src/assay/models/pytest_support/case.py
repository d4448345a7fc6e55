"""Tests of models: which cases options and settings give, and one case in one test.

The steps of a case run as fixtures request them; the comparison comes last. A step that fails fails the fixture, so
pytest reports ERROR with its name; outputs that differ fail the test.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import PosixPath
from typing import TYPE_CHECKING, Any

import pytest

from assay.models.pytest_support.options import ModelOptions, is_in_cache, read_options
from assay.models.pytest_support.report import (
    PROPERTY_PROFILE,
    build_failure,
    render_error,
    render_failed_step,
    render_mismatch,
)

if TYPE_CHECKING:
    from assay.models.flow.artifact_builder import Product
    from assay.models.flow.discovery import ModelFile, NamedCase
    from assay.models.flow.project import Extras, Project
    from assay.models.flow.stepwise import CaseSteps, Stepwise
    from assay.models.values.model import CaseReport, InputChoice, Target, Tolerances


DEFAULT_HARDWARE = "sim"
CACHE_SECTION = "artifact cache"
_NO_MODEL = "no_model"
_PLAN = pytest.StashKey["Plan"]()


@dataclass(frozen=True, slots=True)
class Given:
    """What one test is given."""

    label: str  # between the brackets of its name
    model: ModelFile | None
    case: NamedCase | None
    middle: str  # the target, or the hardware type
    chip: str
    problem: str = ""


class Plan:
    """What options and settings come to. One for each pytest process; settings are read when a test needs them."""

    TRACERS = ("ort", "iree", "reference")

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self._listener: Callable[[str], None] | None = None
        self.options: ModelOptions = read_options(config)

    @cached_property
    def project(self) -> Project:
        from assay.models.flow.project import load_project

        return load_project(str(self.config.rootpath))

    @cached_property
    def models(self) -> list[ModelFile]:
        from assay.models.flow.project import find_project_models, refuse_strange_names

        found = find_project_models(self.project, self.options.folders)
        if not self.options.folders:  # else these are not the models that the settings speak of
            refuse_strange_names(self.project, found)
        return found

    @cached_property
    def chips(self) -> tuple[str, ...]:
        from assay.models.flow.project import choose_chip_names

        return choose_chip_names(self.project, self.options.chips)

    @cached_property
    def targets(self) -> tuple[str, ...]:
        from assay.models.flow.project import choose_target_names

        return choose_target_names(self.project, self.options.targets)

    @property
    def hardware(self) -> tuple[str, ...]:
        words = (self.options.hardware or DEFAULT_HARDWARE).split(",")
        return tuple(word.strip() for word in words if word.strip()) or (DEFAULT_HARDWARE,)

    @property
    def ir_dir(self) -> str | None:
        return self.find_folder("ir") if is_in_cache(self.options.ir_dir) else self.options.ir_dir

    @cached_property
    def _base(self) -> str:
        cache = getattr(self.config, "cache", None)
        return str(cache.mkdir("assay-models")) if cache is not None else tempfile.mkdtemp(prefix="assay-models-")

    def find_folder(self, name: str) -> str:
        """In pytest's cache; without one, in a folder for temporary files."""
        return os.path.join(self._base, name)

    def build_rows(self, middles: Sequence[str]) -> Iterator[Given]:
        for model in self.models:
            for case in model.cases:
                for middle in middles:
                    for chip in self.chips:
                        label = f"{case.shown}-{middle}-{chip}"
                        yield Given(label, model, case, middle, chip, model.problem)

    def build_empty(self, middle: str) -> Given:
        """No model is not a pass: one case says so."""
        folders = ", ".join(self.options.folders or self.project.folders)
        hint = 'put .onnx files there, or name their folder: [tool.assay.models] folder = "…", or --model-folder'
        problem = f"there is no model in {folders}\n  {hint}"
        return Given(f"{_NO_MODEL}-{middle}-{self.chips[0]}", None, None, middle, self.chips[0], problem)

    # ------------------------------------------------------------ targets

    def build_extras(self, chip: Any = None) -> Extras:
        from assay.models.flow.project import Extras

        asked = self.options
        flags = asked.compile_flags, asked.run_flags
        return Extras(chip or {}, None, *flags, asked.address, asked.port, asked.key)

    def build_reference(self, name: str | None) -> Target:
        from assay.models.flow.project import build_reference

        return build_reference(self.project, name, self.options.llvmcpu_compile_flags, self.options.llvmcpu_run_flags)

    # ------------------------------------------------------------ one model

    def choose(self, model: ModelFile) -> tuple[Tolerances, InputChoice]:
        tolerances, inputs = self.project.settings.choose(model.stem)
        files = tuple(os.path.join(self.project.folder, path) for path in inputs.files)
        asked = self.options.samples
        return tolerances, replace(inputs, files=files, samples=asked or inputs.samples, most=asked if files else None)

    # ------------------------------------------------------------ doing it

    def attend(self, listener: Callable[[str], None]) -> None:
        """Keep what is reported about the cache for the test that runs now."""
        self._listener = listener

    def record(self, text: str) -> None:
        if self._listener is not None:
            self._listener(text)

    def open_stepwise(self, explain: Any) -> Stepwise:
        from assay.models.flow.artifact_builder import Dumps
        from assay.models.flow.project import BuildOptions, open_stepwise
        from assay.models.values.model import Limits

        asked, limits = self.options, Limits()
        limits = replace(limits, compile_s=asked.compile_s or limits.compile_s, run_s=asked.run_s or limits.run_s)
        live = self.config.getoption("capture") == "no"
        dumps = Dumps(self.ir_dir, asked.compile_profile_dir, asked.run_profile_dir)
        return open_stepwise(
            self.project, BuildOptions(limits, asked.recompute, live), dumps, explain if asked.debug_cache else None
        )


def set_plan(config: pytest.Config) -> None:
    config.stash[_PLAN] = Plan(config)


def get_plan(config: pytest.Config) -> Plan:
    return config.stash[_PLAN]


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
def reporting(fixture: str, model: str = "", note: str = "") -> Iterator[None]:
    """What goes wrong in a fixture ends it with a text, without a traceback of ours. `note` is for trouble with tools
    or settings, not for what a tool says of a model."""
    from assay.errors import AssayError
    from assay.models.flow.cases import StepFailedError

    try:
        yield
    except StepFailedError as error:
        outcome = error.outcome
        text_of_error = render_failed_step(fixture, error, outcome, model)
        reason = f"{outcome.step} {outcome.ending}: {outcome.message or fixture}"
    except AssayError as error:
        text_of_error = render_error(fixture, error, model) + (f"\n  {note}" if note else "")
        reason = error.message
    else:
        return
    raise build_failure(text_of_error, reason) from None


# ---------------------------------------------------------------- a case


class ModelCase:
    def __init__(self, plan: Plan, given: Given, steps: CaseSteps, node: Any, keep: str) -> None:
        self.plan = plan
        self.given = given
        self.steps = steps
        self.note = ""  # what is to be said next to what differs
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
    def reporting(self, fixture: str, note: str = "") -> Iterator[None]:
        """Also that nothing is heard of a tool, with -s, because it was not called."""
        before = len(self.steps.steps)
        with reporting(fixture, self.model, note):
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
        """The folders of artifacts."""
        source_dirs = [each.path if os.path.isdir(each.path) else os.path.dirname(each.path) for each in products]
        pairs = zip(products, source_dirs, strict=True)
        return build_path([self.steps.stand.hand_out(product, source_dir) for product, source_dir in pairs])

    # ------------------------------------------------------------ the comparison

    def compare(self, reference: Target, target: Target, expected: Any, actual: Any) -> CaseReport:
        """Ends the test unless all outputs are correct."""
        from assay.errors import AssayError

        try:
            report = self._compare(reference, target, expected, actual)
        except AssayError as error:
            text_of_error = error.render()
        else:
            self._record(report)
            _judge(self.given.label, reference.name, report, self.note)
            return report
        raise build_failure(text_of_error, text_of_error)

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
    """Where the references disagree, that is reported instead of failing; what proves nothing is not a pass."""
    kinds = {str(each.verdict.kind) for each in report.local}
    if report.verdict.kind == "PASS":
        return
    text = render_mismatch(label, reference, report) + (f"\n{note}" if note else "")
    if report.verdict.kind == "INCONCLUSIVE" and "FAIL" in kinds:
        pytest.skip(text)
    raise build_failure(text, text.removeprefix(f"{label}: "))
