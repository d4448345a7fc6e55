"""Targets by name, checked before anything runs, and the second reference that votes where a target differs.

The second reference is neither the target nor the first reference: a target that votes for itself always agrees with
itself, and nothing could ever fail. An evaluator that computes an operator wrong would excuse whatever a target does to
it: before a vote counts, the operators concerned are tested with ordinary numbers, against their definition in float64,
or against the other reference if there is no formula for them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from assay.config.settings import Settings, load_settings
from assay.errors import ConfigError, MissingExtraError, UsageError
from assay.models.backends.registry import BACKENDS, build_backend
from assay.models.config.settings import NO_VOTER
from assay.models.config.targets import TargetTable, parse_target, read_target_tables
from assay.models.flow.artifact_builder import ArtifactBuilder, Wants
from assay.models.flow.cases import Case, Cases, Tensors
from assay.models.graph.graph import load_model
from assay.models.graph.onnx_library import find_opset
from assay.models.graph.operators import Magnitudes, compute_model_float64, draw_ordinary, identify_use, is_finite
from assay.models.judge.tensors import judge_outputs
from assay.models.values.model import Target, Tolerances
from assay.models.values.tensors import Tolerance
from assay.values.study import Problem
from assay.values.verdict import VerdictKind

_MESSAGE = re.compile(r"target [^:]+: (?:(?P<key>\w+)(?P<rest>\b.*)|.*)", re.DOTALL)


def load_checked_target(
    text: str, folder: str | None = None, equip: Callable[[Target], Target] = lambda target: target
) -> Target:
    """The target of this name, in this folder. Raises NotFoundError, or ConfigError for a table that is wrong.

    What `equip` makes of it is looked at: a board's address turns a target of commands into one that ssh reaches.
    A user's own back end is only loaded where it runs.
    """
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


def _build_problem(target: Target, settings: Settings, error: UsageError) -> Problem:
    """Back ends say `target npu: compile: …`; what is before the text says the place."""
    match = _MESSAGE.fullmatch(error.message)
    key = match["key"] if match and match["key"] in target.options else ""
    text = error.message.removeprefix(f"target {target.name}: ")
    table = _find_table(settings, target.name, key)
    name = f"targets.{table.name}.{key}" if key else f"targets.{table.name}"
    return Problem(text.removeprefix(f"{key}: ") if key else text, name, table.find(key), error.hint)


def _find_table(settings: Settings, name: str, key: str) -> TargetTable:
    """The one that says it: a target may be like another one."""
    tables = read_target_tables(settings)
    own = table = tables[name]
    while key not in table.content and table.content.get("like") in tables:
        table = tables[str(table.content["like"])]  # no circle: the target could be read
    return table if key in table.content else own


# ---------------------------------------------------------------- the second reference

_USUAL = ("reference", "ort")  # onnx's own evaluator; onnxruntime where that is the first
_COMMAND_OPTIONS = (
    "import",
    "compile",
    "run",
    "env",
    "chip",
    "hardware",
)  # to a program; where it runs makes no other of it
_WITH_TOOLS = ("command", "ssh")


@dataclass(frozen=True, slots=True)
class Vote:
    """Who votes; None: nobody. `note` says why a voter of the settings does not."""

    voter: Target | None = None
    note: str = ""


def choose_voter(flag: str | None, setting: str | None, reference: Target, target: Target, folder: str | None) -> Vote:
    """Raises UsageError for a flag that names one of the two. Settings serve several targets: there it is a note."""
    text = flag or setting
    if text == NO_VOTER:
        return Vote()
    if text is None:
        taken = {reference.backend, target.backend}
        return Vote(next((load_checked_target(name, folder) for name in _USUAL if name not in taken), None))
    voter = load_checked_target(text, folder)
    same = [what for what, each in (("target", target), ("reference", reference)) if is_same_engine(voter, each)]
    if not same:
        return Vote(voter)
    reason = f"{text} computes as the {same[0]} does, and would always agree with it"
    if flag:
        raise UsageError(f"--vote {reason}", "name another engine, or --vote none")
    return Vote(None, f"no second reference votes: vote = {text!r} of the settings: {reason}")


def is_same_engine(one: Target, other: Target) -> bool:
    """The same library, whatever its options: its kernels share their faults. Programs, and users' own back ends, that
    get the same commands; with others, one may well compute in another way."""
    are_tools = one.backend in _WITH_TOOLS and other.backend in _WITH_TOOLS
    if not are_tools and one.backend != other.backend:
        return False
    if not are_tools and ":" not in one.backend:
        return True
    names = _COMMAND_OPTIONS if are_tools else {*one.options, *other.options}
    flags = (one.compile_flags, one.run_flags) == (other.compile_flags, other.run_flags)
    return flags and all(one.options.get(name) == other.options.get(name) for name in names)


# ---------------------------------------------------------------- who may vote


@dataclass(slots=True)
class VoterTests:
    """Which operators the references compute right. Each use of an operator is tried once; the store keeps what an
    evaluator made of it until its version changes."""

    builder: ArtifactBuilder
    cases: Cases
    _known: dict[tuple[str, str], str] = field(default_factory=dict)

    def find_fault(self, engine: Target, case: Case) -> str:
        """The first operator of the case that this reference computes wrong, and by how much; "": none is known."""
        parts = [case] if case.layer is not None else self._choose_layers(case)
        return next((fault for part in parts if (fault := self._try_once(engine, part))), "")

    def _choose_layers(self, case: Case) -> Iterator[Case]:
        """Of a case of several layers: one for each use of an operator that is in it."""
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

    def _try_once(self, engine: Target, case: Case) -> str:
        model = load_model(case.trials[0].model.path)
        nodes = [node for node in model.graph.node if node.op_type != "Constant"]
        key = repr(engine), identify_use(nodes, find_opset(model))
        if key not in self._known:
            self._known[key] = self._try(engine, case, model)
        return self._known[key]

    def _try(self, engine: Target, case: Case, model: Any) -> str:
        given = dict(Tensors(case.trials[0].inputs.path))
        for positive in (False, True):
            inputs = draw_ordinary(given, positive=positive)
            exact = compute_model_float64(model, inputs)
            right = exact if exact is not None else self._compute(self.cases.source.reference, case, inputs)
            if right is not None and is_finite(right):
                whose = "float64" if exact is not None else self.cases.source.reference.name
                return self._compare(engine, case, model, inputs, right, whose)
        return ""

    def _compare(
        self, engine: Target, case: Case, model: Any, inputs: Mapping[str, Any], right: Mapping[str, Any], whose: str
    ) -> str:
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

    def _compute(self, engine: Target, case: Case, inputs: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """None: it cannot."""
        product = self.cases.write_inputs(inputs)
        wants = Wants(case.outputs, case.trials[0].specs or case.specs)
        with self.builder.forgetting():
            work = self.builder.compute(engine, case.trials[0].model, product, wants, f"{case.op}_ordinary")
        return None if work.failed is not None else Tensors(work.outputs)
