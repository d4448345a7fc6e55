"""Loads targets by name and checks them before anything runs; chooses a project's targets, and the second reference,
which votes if a target differs.

The second reference is neither the target nor the first reference: a target always agrees with itself, so with its own
vote nothing could ever fail. A second reference that computes an operator wrong would excuse any fault of a target in
it. Before a vote counts, the case's operators are therefore tested with ordinary numbers, against their definition in
float64, or against the first reference if there is no formula for an operator.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from assay.config.settings import Settings, load_settings
from assay.errors import ConfigError, MissingExtraError, UsageError, did_you_mean
from assay.models.backends.registry import BACKENDS, build_backend
from assay.models.config.settings import DEFAULT_REFERENCE, NO_VOTER
from assay.models.config.targets import build_board_target, name_chip, parse_target, read_flags, read_target_tables
from assay.models.flow.artifact_builder import ArtifactBuilder
from assay.models.flow.cases import Arrays, Cases, ModelCase, Tensors
from assay.models.flow.discovery import Project
from assay.models.graph.graph import load_model
from assay.models.graph.onnx_library import find_opset
from assay.models.graph.operators import Magnitudes, compute_model_float64, draw_ordinary, identify_use, is_finite
from assay.models.judge.tensors import judge_outputs
from assay.models.values.model import Target, Tolerances
from assay.models.values.tensors import Tolerance
from assay.system.fast_dataclasses import dataclass, field, replace
from assay.values.study import Problem
from assay.values.verdict import VerdictKind

LLVM_CPU = "iree"  # the reference of the Torq spellings
TORQ = "torq"  # the target of the Torq spellings, if no target of the project has the hardware's name
_WITH_TOOLS = ("command", "ssh")
_MESSAGE = re.compile(r"target [^:]+: (?:(?P<key>\w+)(?P<rest>\b.*)|.*)", re.DOTALL)


def load_checked_target(
    text: str, folder: str | None = None, equip: Callable[[Target], Target] = lambda target: target
) -> Target:
    """Load the target of this name from this folder. Raises NotFoundError, or ConfigError for an invalid table. `equip`
    may change the target before it is checked: a board's address turns a command target into an ssh target. A user's
    own back end is loaded only by its worker, so it is not checked."""
    settings = load_settings(folder or os.getcwd(), os.environ)
    named = parse_target(text, settings)
    target = equip(named)
    if target.backend not in BACKENDS:
        return target
    try:
        build_backend(target)
    except MissingExtraError:
        raise
    except UsageError as error:
        if named.name not in read_target_tables(settings):
            raise
        raise ConfigError([_build_problem(named, settings, error)]) from None
    return target


def load_reference(text: str, folder: str | None = None) -> Target:
    """Return the reference of this name. As a reference, onnxruntime does not optimise unless its table requests it:
    with optimisations it computes int4 weights in 8 bits, and is up to 2% off."""
    found = load_checked_target(text, folder)
    if found.backend != "ort" or "optimize" in found.options:
        return found
    return replace(found, options={**found.options, "optimize": "none"})


def _build_problem(target: Target, settings: Settings, error: UsageError) -> Problem:
    """Build the problem of an error such as `target npu: compile: …`, with the position of the key, which may be in the
    table of a target that this target is `like`."""
    match = _MESSAGE.fullmatch(error.message)
    key = match["key"] if match and match["key"] in target.options else ""
    text = error.message.removeprefix(f"target {target.name}: ")
    tables, name = read_target_tables(settings), target.name
    while not tables[name].find(key) and (like := tables[name].find("like")) and like.value in tables:
        name = str(like.value)  # `like` is not circular, since the target could be read
    name = name if tables[name].find(key) else target.name
    place = f"targets.{name}.{key}" if key else f"targets.{name}"
    position = (tables[name].find(key) or tables[name]).position
    return Problem(text.removeprefix(f"{key}: ") if key else text, place, position, error.hint)


@dataclass(frozen=True, slots=True)
class Extras:
    """Settings that a target gets in addition to its own; None or an empty value changes nothing."""

    chip: Mapping[str, Any] = field(default_factory=dict)
    hardware: str | None = None
    compile_flags: tuple[str, ...] = ()
    run_flags: tuple[str, ...] = ()
    address: str | None = None
    port: int | None = None
    key: str | None = None


def choose_target_names(project: Project, given: Sequence[str]) -> tuple[str, ...]:
    """Return the given targets, else every target of the settings. Raises UsageError."""
    names = tuple(given) or project.targets
    for name in names:
        load_checked_target(name, project.folder)
    if not names:
        raise UsageError(
            "there is no target to test the models on",
            'name one in the settings, [tool.assay.models] targets = ["iree"], or with --assay-target',
        )
    return names


def build_target(project: Project, name: str, extras: Extras) -> Target:
    return load_checked_target(name, project.folder, lambda target: _equip(target, extras))


def build_hardware_target(project: Project, hardware: str, extras: Extras) -> Target:
    """Return the project's target with the name of the hardware, else the target `torq` for this hardware."""
    name = hardware if hardware in project.targets else TORQ
    return replace(build_target(project, name, replace(extras, hardware=hardware)), name=hardware)


def explain_hardware(project: Project, hardware: str) -> str:
    """Return a hint for failures of Torq's own tools, in case a target of the project was meant."""
    if hardware in project.targets:
        return ""
    known = did_you_mean(hardware, project.targets)
    return f"no target {hardware!r} in the settings, so Torq's own tools are called" + (f"; {known}" if known else "")


def build_reference(
    project: Project, name: str | None, compile_flags: Sequence[str], run_flags: Sequence[str]
) -> Target:
    """Return the reference of this name; only a reference that compiles gets the flags."""
    found = load_reference(name or project.settings.reference or DEFAULT_REFERENCE, project.folder)
    if found.backend != "iree":
        return found
    return replace(
        found, compile_flags=(*found.compile_flags, *compile_flags), run_flags=(*found.run_flags, *run_flags)
    )


def _equip(target: Target, extras: Extras) -> Target:
    chip = name_chip(extras.chip)
    has_tools = target.backend in _WITH_TOOLS
    commands = str([target.options.get(name) for name in ("import", "compile", "run")])
    has_flags = extras.chip.get("compile_flags") or extras.chip.get("run_flags")
    if chip and not (has_tools and ("{chip}" in commands or has_flags)):
        # the target would compute the same for all chips, and every test would pass for the wrong chip
        raise UsageError(
            f"the target {target.name} does not use chips", "name {chip} in its commands, or leave --torq-chips out"
        )
    with_hardware = {"chip": chip, "hardware": extras.hardware} if has_tools else {}
    found = replace(
        target,
        options={**target.options, **{name: value for name, value in with_hardware.items() if value}},
        compile_flags=(*target.compile_flags, *read_flags(extras.chip, "compile_flags"), *extras.compile_flags),
        run_flags=(*target.run_flags, *read_flags(extras.chip, "run_flags"), *extras.run_flags),
    )
    if extras.address is None:
        return found
    return build_board_target(found, extras.address, port=extras.port, key=extras.key)


_USUAL = ("reference", "ort")  # default second references: onnx's evaluator, else onnxruntime
_COMMAND_OPTIONS = ("import", "compile", "run", "env", "chip", "hardware")  # options other than the location


@dataclass(frozen=True, slots=True)
class Vote:
    """The target that votes, if any; `note` is why the voter in the settings does not vote."""

    voter: Target | None = None
    note: str = ""


def choose_voter(flag: str | None, setting: str | None, reference: Target, target: Target, folder: str | None) -> Vote:
    """Choose the voter. Raises UsageError if a flag names the engine of `reference` or `target`; a setting may."""
    text = flag or setting
    if text == NO_VOTER:
        return Vote()
    if text is None:
        taken = {reference.backend, target.backend}
        return Vote(next((load_reference(name, folder) for name in _USUAL if name not in taken), None))
    voter = load_reference(text, folder)
    same = [what for what, each in (("target", target), ("reference", reference)) if is_same_engine(voter, each)]
    if not same:
        return Vote(voter)
    reason = f"{text} computes as the {same[0]} does, and would always agree with it"
    if flag:
        raise UsageError(f"--vote {reason}", "name another engine, or --vote none")
    return Vote(None, f"no second reference votes: vote = {text!r} of the settings: {reason}")


def is_same_engine(one: Target, other: Target) -> bool:
    """Return whether both targets are the same library, with any options, since its kernels share their faults.
    Programs, and users' own back ends, are the same engine only if their options and flags are equal."""
    are_tools = one.backend in _WITH_TOOLS and other.backend in _WITH_TOOLS
    if not are_tools and one.backend != other.backend:
        return False
    if not are_tools and ":" not in one.backend:
        return True
    names = _COMMAND_OPTIONS if are_tools else {*one.options, *other.options}
    flags = (one.compile_flags, one.run_flags) == (other.compile_flags, other.run_flags)
    return flags and all(one.options.get(name) == other.options.get(name) for name in names)


@dataclass(slots=True)
class VoterTests:
    """Tests which operators the references compute correctly. Each use of an operator is tested once; the store keeps
    a reference's result until the reference's version changes."""

    builder: ArtifactBuilder
    cases: Cases
    _known: dict[tuple[str, str], str] = field(default_factory=dict)

    def find_fault(self, engine: Target, case: ModelCase) -> str:
        """Return the first operator of the case that this reference computes wrong, with the error; empty if none."""
        parts = [case] if case.layer is not None else self._choose_layers(case)
        for part in parts:
            model = load_model(part.trials[0].model.path)
            nodes = [node for node in model.graph.node if node.op_type != "Constant"]
            key = repr(engine), identify_use(nodes, find_opset(model))
            if key not in self._known:
                self._known[key] = self._try(engine, part, model)
            if self._known[key]:
                return self._known[key]
        return ""

    def _choose_layers(self, case: ModelCase) -> Iterator[ModelCase]:
        """Yield one layer for each use of an operator in a case of several layers."""
        nodes = self.cases.proto.graph.node
        ops = {node.op_type for node in load_model(case.trials[0].model.path, weights=False).graph.node}
        chosen: dict[str, str] = {}
        for layer in self.cases.outline.layers:
            if ops >= set(layer.ops):
                use = identify_use([nodes[index] for index in layer.nodes], self.cases.outline.opset)
                chosen.setdefault(use, layer.name)
        for part in self.cases.iterate(list(chosen.values())) if chosen else ():
            if not part.problem:
                yield part
            self.cases.discard(part)

    def _try(self, engine: Target, case: ModelCase, model: Any) -> str:
        given = dict(Tensors(case.trials[0].inputs.path))
        for positive in (False, True):
            inputs = draw_ordinary(given, positive=positive)
            exact = compute_model_float64(model, inputs)
            right = exact if exact is not None else self._compute(self.cases.request.reference, case, inputs)
            if right is not None and is_finite(right):
                whose = "float64" if exact is not None else self.cases.request.reference.name
                return self._compare(engine, case, model, inputs, right, whose)
        return ""

    def _compare(self, engine: Target, case: ModelCase, model: Any, inputs: Arrays, right: Arrays, whose: str) -> str:
        found = self._compute(engine, case, inputs)
        if found is None:
            return ""
        magnitudes = Magnitudes(model, inputs)
        names = [name for name in case.outputs if name in right and name in found]
        verdict, compared = judge_outputs(
            {name: right[name] for name in names},
            {name: found[name] for name in names},
            Tolerances(Tolerance(check_dtype=False)),
            op=case.op,
            reach=lambda name: magnitudes.find(name, len(model.graph.node)),
        )
        if verdict.kind is not VerdictKind.FAIL:
            return ""
        worst = max(each.error for each in compared)
        off = f"off by {worst:.2g} of the scale" if worst < float("inf") else "of another shape, or not finite,"
        return f"{engine.name} computes {case.op} (opset {find_opset(model)}) wrong: {off} from {whose}"

    def _compute(self, engine: Target, case: ModelCase, inputs: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return a reference's outputs for these inputs; None if it cannot compute the case."""
        product, trial = self.cases.write_inputs(inputs), case.trials[0]
        with self.builder.forgetting():
            work = self.builder.compute(engine, trial.model, product, case.build_wants(trial), f"{case.op}_ordinary")
        return None if work.failed is not None else Tensors(work.outputs)
