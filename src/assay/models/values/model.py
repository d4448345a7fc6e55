"""Values of models: targets, layers, the steps of a case and how each ended, and the result of a check."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Literal

from assay.errors import ExitCode
from assay.models.values.tensors import TensorComparison, TensorSpec, Tolerance
from assay.system.fast_dataclasses import dataclass, field
from assay.values.verdict import Finding, Verdict, VerdictKind

STUDY = "model"  # every check, bisection and reduction is a run of this study
FULL_MODEL = "full_model"
DEFAULT_GROUPS = (("Conv", "Clip"),)  # operators that form one layer together
SKIPPED = "trivial"
NOT_COMPARED = "not compared"
SIMULATORS = ("sim", "simulator", "simulation", "emulator")  # names of targets whose times are estimates


class Step(StrEnum):
    """The steps of a back end on a model, in this order; a back end without an importer or compiler omits that step."""

    IMPORT = "import"  # ONNX → the back end's own format
    COMPILE = "compile"
    RUN = "run"


class StepEnding(StrEnum):
    """How a step ended. Everything but OK is a recorded outcome of the target, never an exception in Assay."""

    OK = "ok"
    ERROR = "error"  # the tool reported an error
    UNSUPPORTED = "unsupported"  # the tool lacks this operator, type or opset
    TIMEOUT = "timeout"
    CRASH = "crash"  # the tool's process died
    MEMORY = "memory"  # the tool exceeded the memory limit


@dataclass(frozen=True, slots=True)
class Target:
    """A back end with its options, under its name in ids: `iree`, `ort:unoptimized`, `sim`. `options` are the back
    end's own: `device` (iree: llvm-cpu, vmvx), `optimize` (ort), `compile` and `run` (command: templates), `address`,
    `port`, `key` (ssh), `chip`, `hardware`, `env` … Their values are JSON-like."""

    name: str
    backend: str  # key of backends.registry, or module:Class
    options: Mapping[str, Any] = field(default_factory=dict)
    compile_flags: tuple[str, ...] = ()
    run_flags: tuple[str, ...] = ()

    @property
    def is_simulated(self) -> bool:
        """Whether the hardware, or without one the target's name, is a simulator: `sim`, `torq-sim`."""
        hardware = str(self.options.get("hardware") or self.name).lower()
        return any(word in SIMULATORS for word in re.split(r"[^a-z]+", hardware))


@dataclass(frozen=True, slots=True)
class StepLimits:
    """The limits of one step; None means no limit."""

    import_s: float | None = 300.0
    compile_s: float | None = 300.0
    run_s: float | None = 240.0
    memory_bytes: int | None = None  # memory of the worker and all its descendants

    def seconds(self, step: Step) -> float | None:
        return {Step.IMPORT: self.import_s, Step.COMPILE: self.compile_s, Step.RUN: self.run_s}[step]


@dataclass(frozen=True, slots=True)
class Job:
    """One step of one case, in the form that a worker receives: JSON-like, since it is sent to another process."""

    step: Step
    source: str  # path of the model (import; compile without import), else of the previous step's result
    folder: str  # an empty folder that exists: results are written only here
    inputs: str | None = None  # RUN: folder of tensors, see graph.tensorfile
    outputs: tuple[str, ...] = ()  # RUN: names in the graph's order
    output_specs: tuple[TensorSpec, ...] = ()  # empty if unknown: a command's raw files have neither type nor shape
    ir_dir: str | None = None  # dump intermediate representations here; this folder and profile_dir exist
    profile_dir: str | None = None  # write the back end's own profile here
    case: str = ""  # the case's name, for file names and messages
    repeats: int = 1  # RUN: timed executions; the outputs are the first one's


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """How one step of one case ended, with everything that is needed to repeat it by hand."""

    step: Step
    ending: StepEnding
    message: str = ""  # one line
    path: str = ""  # the result: a file or a folder inside Job.folder; RUN: the folder of output tensors
    command: str = ""  # the command line, or its nearest equivalent
    stdout: str = ""
    stderr: str = ""
    elapsed_s: float = 0.0
    times_s: tuple[float, ...] = ()  # RUN: times of the executions, without loading
    profiles: tuple[str, ...] = ()  # profile files
    cached: bool = False
    key: str = ""  # key in the artifact store
    hint: str = ""  # what to do next

    @property
    def is_ok(self) -> bool:
        return self.ending is StepEnding.OK

    @property
    def is_copy(self) -> bool:
        """Whether the step only copied the model, as for a target without a compiler: its time is not a result."""
        return self.step is Step.COMPILE and self.command.startswith("cp ")


@dataclass(frozen=True, slots=True)
class Layer:
    """A part of a model that is tested in isolation: one node, or a group that must stay together."""

    name: str  # "<stem>_layer_<Op>_<number>": the case's name
    number: int  # number of the part, from 0, without constants
    ops: tuple[str, ...]  # operators of its nodes
    nodes: tuple[int, ...]  # positions of the nodes in the graph
    inputs: tuple[str, ...]  # activations; initialisers and constants do not count
    outputs: tuple[str, ...]  # tensors that are used outside, or outputs of the graph
    node_names: tuple[str, ...] = ()  # names of the nodes as in other viewers; "" for a node without one
    path: str = ""  # path of a call inside a torch module: `layers.0.attn`, `layers.0.attn:backward`

    @property
    def title(self) -> str:
        """The nodes' own names joined, if they have any."""
        return "+".join(name for name in self.node_names if name)

    @property
    def label(self) -> str:
        """The name without the model's: `Conv_3`, or the path of a call."""
        return self.path or f"{self.ops[0]}_{self.number}"


@dataclass(frozen=True, slots=True)
class Outline:
    """A model as its graph describes it, without executing anything or reading a weight."""

    stem: str
    path: str
    opset: int
    inputs: tuple[TensorSpec, ...]  # without initialisers that are listed as inputs
    outputs: tuple[TensorSpec, ...]
    layers: tuple[Layer, ...]
    tensors: tuple[TensorSpec, ...] = ()  # intermediate tensors, if shape inference knows them

    @property
    def full_name(self) -> str:
        return f"{self.stem}_{FULL_MODEL}"

    @property
    def cases(self) -> tuple[str, ...]:
        return (*(layer.name for layer in self.layers), self.full_name)

    def choose(self, names: Sequence[str]) -> list[Layer]:
        """Return the layers of these names, in the model's order."""
        wanted = set(names)
        return [layer for layer in self.layers if layer.name in wanted]


@dataclass(frozen=True, slots=True)
class Tolerances:
    """The allowed differences, of which the most specific one applies: tensor, then operator, then model."""

    model: Tolerance = field(default_factory=Tolerance)
    by_op: Mapping[str, Tolerance] = field(default_factory=dict)
    by_tensor: Mapping[str, Tolerance] = field(default_factory=dict)

    def choose(self, tensor: str, op: str | None = None) -> Tolerance:
        return self.by_tensor.get(tensor) or self.by_op.get(op or "") or self.model


@dataclass(frozen=True, slots=True)
class InputChoice:
    """The source of a model's inputs: files, else a function, else seeded random numbers in fitting ranges."""

    samples: int = 1
    seed: int = 1234
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # input → range
    dims: Mapping[str, int | tuple[int, ...]] = field(default_factory=dict)  # "batch" → size, or an input → its shape
    files: tuple[str, ...] = ()
    function: str | None = None  # "module:function"
    most: int | None = None  # how many of the samples in the files to use, if limited
    keep_dims: bool = False  # do not set open dimensions to the sample's sizes, for a second view of the model


def is_torch_model(text: str) -> bool:
    """Return whether a text is `net.py:build` and not the path of an ONNX file."""
    return re.search(r"\.py:\w+$", text) is not None


Flags = tuple[tuple[str, str], ...]  # (flag, value): `--vote`, `ort`; `--compiler-options=`, `-O3`; `--keep-dims`, ``


def render_flags(flags: Flags) -> str:
    """Render the flags for a shell. A flag that ends with `=` is one word with its value, which may begin with `-`."""
    pairs = ((flag + value,) if flag.endswith("=") or not value else (flag, value) for flag, value in flags)
    return shlex.join([word for pair in pairs for word in pair])


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """The request of a command: JSON-like throughout, since it is sent to the process that does the work."""

    model: str  # absolute path
    reference: Target
    target: Target
    voter: Target | None = None  # a second reference, used if the target differs
    goal: Literal["check", "compare", "bisect", "reduce"] = "check"
    other: str = ""  # compare: the second model, which the target computes; absolute path
    inputs: InputChoice = field(default_factory=InputChoice)
    tolerances: Tolerances = field(default_factory=Tolerances)
    groups: tuple[tuple[str, ...], ...] = DEFAULT_GROUPS
    only: tuple[str, ...] = ()  # cases by name or shell pattern; empty: all
    limits: StepLimits = field(default_factory=StepLimits)
    repeats: int = 1
    recompute: bool = False
    explain: bool = False  # report why each artifact was a hit or a miss
    ir_dir: str | None = None
    compile_profile_dir: str | None = None
    run_profile_dir: str | None = None
    store: str = ""  # folder of the artifact store
    keep_outputs: str = ""  # folder for the tensors of both sides
    output: str = ""  # reduce: where the smallest model goes
    folder: str = ""  # working directory of the caller, where functions of inputs are found
    manner: Flags = ()  # flags of a command for the same request of another model: targets, tolerances, limits
    origin: Flags = ()  # flags for the source of the inputs
    notes: tuple[str, ...] = ()  # further messages of the command
    ops: bool = False  # for a torch module: test each op of its exported graph instead of each module
    backward: bool = True  # for a torch module: test gradients too

    @property
    def is_torch(self) -> bool:
        return is_torch_model(self.model)


@dataclass(frozen=True, slots=True)
class CaseReport:
    """One layer, or the full model, on one target."""

    name: str
    target: str
    verdict: Verdict
    layer: Layer | None = None  # None: the full model
    steps: tuple[StepOutcome, ...] = ()  # steps of the target, in order; the last one shows where the case ended
    local: tuple[TensorComparison, ...] = ()  # outputs computed with the reference's inputs
    accumulated: tuple[TensorComparison, ...] = ()  # outputs as computed inside the model on the target
    diffs: tuple[tuple[str, str], ...] = ()  # (expected file, actual file) of each output that differs
    skipped: str = ""  # why a layer that is correct inside the model was not computed alone
    matched: str = ""  # compare: how the two layers were paired

    @property
    def failed_step(self) -> StepOutcome | None:
        return next((step for step in self.steps if not step.is_ok), None)

    @property
    def outcome(self) -> str:
        """The outcome in one word: ok, mismatch, or how and where the target failed: `compile error`, `run crash`. A
        case that the target does not compute, since the reference has no result for it, is `not compared`; a layer of
        shapes and constants that is correct inside the model is `trivial`."""
        failed = self.failed_step
        if failed is not None:
            return f"{failed.step} {failed.ending}"
        if self.verdict.kind is VerdictKind.ERROR and not self.local:
            return NOT_COMPARED
        if self.skipped:
            return SKIPPED
        words = {VerdictKind.PASS: "ok", VerdictKind.FAIL: "mismatch"}
        return words.get(self.verdict.kind, str(self.verdict.kind).lower())

    def seconds(self, step: Step) -> float | None:
        found = [outcome for outcome in self.steps if outcome.step is step and not outcome.is_copy]
        if not found:
            return None
        return min(found[-1].times_s) if found[-1].times_s else found[-1].elapsed_s


@dataclass(frozen=True, slots=True)
class ModelReport:
    model: str  # path of the model
    stem: str
    reference: str
    target: str
    cases: tuple[CaseReport, ...]
    first_wrong: str | None = None  # name of the first case whose outputs are wrong although its inputs are correct
    confirmed: bool | None = None  # whether first_wrong is also wrong in isolation; None: not known
    findings: tuple[Finding, ...] = ()  # about the whole model: references that disagree, a marking that hides a fault
    samples: int = 1
    tools: Mapping[str, str] = field(default_factory=dict)  # tool → version
    elapsed_s: float = 0.0
    run_dir: str = ""
    notes: tuple[str, ...] = ()
    is_estimate: bool = False  # whether the times are a simulator's: estimates never raise an alarm
    manner: str = ""  # `ModelRequest.manner` as a shell takes it
    origin: str = ""
    command: str = ""  # for a reduction: the command that shows its result again, without a new search
    folder: str = ""  # the folder to run commands in: settings and the user's own code are found from there
    unseen: int = 0  # layers before first_wrong that were not requested: an earlier one may be wrong
    other: str = ""  # path of the second model, if two were compared
    coverage: str = ""  # how many layers of the two models were paired, and how

    @property
    def verdict(self) -> Verdict:
        found = [finding for case in self.cases for finding in case.verdict.findings]
        verdict = Verdict.of((*found, *self.findings), sum(case.verdict.comparisons for case in self.cases))
        return verdict.review(case.verdict for case in self.cases)

    @property
    def exit_code(self) -> ExitCode:
        return self.verdict.kind.exit_code


WRONG = (VerdictKind.FAIL, VerdictKind.ERROR)
_LONGEST = 200


@dataclass(frozen=True, slots=True)
class Signature:
    """How a case fails: the step, its ending and its message, or outputs that differ."""

    step: str  # "": all steps succeeded, and the outputs differ
    ending: str = ""
    words: str = ""  # the message, without numbers, names and paths

    def __str__(self) -> str:
        if not self.step:
            return "the outputs differ"
        return f"{self.step} {self.ending}: {self.words}" if self.words else f"{self.step} {self.ending}"

    def resembles(self, other: Signature | None) -> bool:
        """Return whether both signatures have the same step and ending; their messages may differ."""
        return other is not None and (self.step, self.ending) == (other.step, other.ending)


def build_signature(report: CaseReport) -> Signature | None:
    """Build the signature of a case; None if nothing is wrong."""
    failed = report.failed_step
    if failed is not None:
        return sign_failure(failed)
    return Signature("") if report.verdict.kind in WRONG else None


def sign_failure(failed: StepOutcome) -> Signature:
    return Signature(str(failed.step), str(failed.ending), normalise(failed.message))


def normalise(message: str) -> str:
    """Remove numbers, quoted names and paths from a message: these belong to a model, not to the failure."""
    text = re.sub(r"\"[^\"]*\"|(?<!\w)'[^']*'(?!\w)|`[^`]*`|%\w+|@\w+|<[^<>]*>", "…", message)
    text = re.sub(r"(?<!\w)(?:~|\.{1,2})?(?:/[\w.+@-]+)+/?|0x[0-9a-fA-F]+", "…", text)
    text = re.sub(r"\d+(?:[x.:,]\d+)*", "N", text)
    return " ".join(text.split())[:_LONGEST]


def find_same(reports: Sequence[CaseReport], wanted: Signature | None) -> CaseReport | None:
    """Find the first case that fails as the full model does: with the same message, else in the same step and way. A
    layer may fail in isolation for a reason that does not occur in the full model, so any other wrong case is returned
    only if no case resembles the full model's failure."""
    wrong = [report for report in reports if report.verdict.kind in WRONG]
    exact = (report for report in wrong if wanted is not None and build_signature(report) == wanted)
    alike = (report for report in wrong if wanted is not None and wanted.resembles(build_signature(report)))
    return next(iter((*exact, *alike, *wrong)), None)
