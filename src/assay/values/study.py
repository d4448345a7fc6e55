"""A study: what a study file requests, in the same form for each dialect."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from typing import Any, Literal

from assay.system.fast_dataclasses import dataclass, field

Value = Any  # a JSON-like value: None, bool, int, float, str, list, dict
Params = Mapping[str, Value]

OUTPUT_REFERENCE = "${ASSAY_OUTPUT}"  # a placeholder for the run's folder until the folder is known


STUDY_NAME_RULE = (
    "the name becomes a folder: no slash, no control character, no leading dot, dash or space, at most 100 characters"
)
_STUDY_NAME_CHARACTERS, _STUDY_NAME_BYTES = 100, 200  # a file name has 255 bytes; the rest is for prefixes and suffixes


def is_study_name(name: str, *, from_file: bool = False) -> bool:
    """Whether a study may have this name: one visible folder directly under the root. `from_file`: the name of
    a file may begin with a dash or a space; printed commands then contain `--`."""
    if not name or name.startswith(".") or (not from_file and name.startswith(("-", " "))):
        return False
    if len(name) > _STUDY_NAME_CHARACTERS or len(name.encode("utf-8", "surrogatepass")) > _STUDY_NAME_BYTES:
        return False
    return not any(char == "/" or unicodedata.category(char) in _NOT_IN_NAMES for char in name)


_NOT_IN_NAMES = ("Cc", "Cf", "Zl", "Zp")  # control and formatting characters, separators of lines and paragraphs


@dataclass(frozen=True, slots=True)
class Position:
    """A location in a user's file; line and column count from 1. Line 0: `file` is a word of the command line."""

    file: str  # empty: keyword arguments of a program instead of a file
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else f"{self.file} (column {self.column})"


@dataclass(frozen=True, slots=True)
class Problem:
    """A message about a user's file: an error, or a warning, which stops nothing."""

    message: str
    key: str = ""  # dotted path inside the file, such as HPARAMS.lr
    position: Position | None = None
    hint: str | None = None

    def __str__(self) -> str:
        where = f"{self.position} " if self.position and self.position.file else ""
        key = f"{self.key}: " if self.key else ""
        hint = f"\n    {self.hint}" if self.hint else ""
        return f"{where}{key}{self.message}{hint}"


@dataclass(frozen=True, slots=True)
class UnknownParameter(Problem):
    """An override whose name is not a parameter of the study."""

    name: str = ""
    known: tuple[str, ...] = ()  # the study's parameters


@dataclass(frozen=True, slots=True)
class UnusedParameter(Problem):
    """A parameter that no command of its run uses; its name is the key."""


Quote = Literal["bare", "single", "double"]


@dataclass(frozen=True, slots=True)
class ShellText:
    """Shell text, used unchanged."""

    text: str


@dataclass(frozen=True, slots=True)
class Placeholder:
    """`{name}`: a parameter's value, or one of the run's own values such as `run.dir`. `quote` is the shell quoting
    around the placeholder, which decides how the value is escaped."""

    name: str
    quote: Quote = "bare"


@dataclass(frozen=True, slots=True)
class Flag:
    """`[name]`: `--name value`; only `--name` for true; nothing for false or null."""

    name: str
    quote: Quote = "bare"


@dataclass(frozen=True, slots=True)
class AllFlags:
    """Every parameter in order as a flag, values unquoted; native study files do not have it."""


Piece = ShellText | Placeholder | Flag | AllFlags


@dataclass(frozen=True, slots=True)
class CommandTemplate:
    name: str
    pieces: tuple[Piece, ...]
    timeout_s: float | None = None
    position: Position | None = None


@dataclass(frozen=True, slots=True)
class Choices:
    """An axis with listed values; each repeated value is another run."""

    values: tuple[Value, ...]
    position: Position | None = None


RandomKind = Literal["uniform", "log_uniform", "int", "log_int"]


@dataclass(frozen=True, slots=True)
class Random:
    """An axis drawn for each run of a subset or search; `int` and `log_int` give integers, both bounds included."""

    kind: RandomKind
    low: float
    high: float
    position: Position | None = None


Axis = Choices | Random


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition of `when:`, which keeps a combination if the parameter has one of these values."""

    param: str
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Sweep:
    """One grid. Axes are in the file's order; the last varies fastest. A zip group is axes that advance together."""

    axes: Mapping[str, Axis]
    zips: tuple[tuple[str, ...], ...] = ()
    when: tuple[Condition, ...] = ()
    title: str | None = None
    commands: tuple[str, ...] | None = None  # some of the study's commands; None: all
    named: tuple[str, ...] | None = None  # the axes in a run's name; None: naming decides
    position: Position | None = None


@dataclass(frozen=True, slots=True)
class Subset:
    """A seeded random part of the grid; `per_sweep` draws it from each sweep separately (`--sample`)."""

    count: int
    seed: int = 0
    per_sweep: bool = False


AT = ("last", "best", "min", "max", "mean")
At = Literal["last", "best", "min", "max", "mean"]  # the value of a series by which a run is judged
Sampler = Literal["tpe", "random", "cmaes", "qmc", "grid"]


@dataclass(frozen=True, slots=True)
class Objective:
    """A metric that a search minimises or maximises."""

    metric: str
    direction: Literal["min", "max"]


@dataclass(frozen=True, slots=True)
class Search:
    """Runs that are proposed one by one, from the results of earlier runs; several objectives give a Pareto set."""

    sampler: Sampler
    objectives: tuple[Objective, ...]
    trials: int | None  # None: every combination (grid)
    seed: int = 0
    at: At = "best"  # the value that counts, also in tables and `assay best`
    position: Position | None = None


@dataclass(frozen=True, slots=True)
class Pattern:
    """A regular expression over log lines. `metric` names the value of the first group; named groups name themselves;
    `labels` name several groups. The pattern whose metric is `step` or `epoch` sets the position for the lines that
    follow."""

    metric: str
    regex: str
    labels: tuple[str, ...] = ()
    command: str | None = None  # only this command's log
    position: Position | None = None


@dataclass(frozen=True, slots=True)
class MetricFile:
    """A file in the run directory that contains metrics."""

    kind: Literal["jsonl", "csv", "tensorboard"]
    path: str  # relative to the run directory; may be a glob
    step: str | None = None  # the column or key that counts steps
    position: Position | None = None


@dataclass(frozen=True, slots=True)
class Resources:
    """The resources that one run occupies."""

    gpus: int | None = None  # None: one if the machine has GPUs, else none
    cpus: int = 1
    gpu_memory_bytes: int | None = None  # free memory that a GPU must have
    runs_per_gpu: int = 1


@dataclass(frozen=True, slots=True)
class Check:
    """A bound on a metric of a finished run."""

    metric: str
    at: At = "last"
    min: float | None = None
    max: float | None = None
    position: Position | None = None


CHECKPOINT_FILES = ("**/*.pt", "**/*.pth", "**/*.ckpt", "**/*.safetensors", "**/checkpoint-*")


@dataclass(frozen=True, slots=True)
class Resume:
    """How a run continues from another run's checkpoint."""

    param: str  # the parameter with the path, which a command takes
    files: tuple[str, ...] = CHECKPOINT_FILES  # patterns relative to the run directory
    position: Position | None = None


@dataclass(frozen=True, slots=True)
class StopRule:
    """One rule of `stop:`, which ends runs early. The rule decides which fields are used. `asha` and `median` compare
    runs at rungs: the steps `at`, or `first`, `first * factor`, … below `until` (asha) and `first`, `first + every`, …
    (median). `patience` and `bounds` judge each run alone."""

    rule: Literal["asha", "median", "patience", "bounds"]
    metric: str
    direction: Literal["min", "max"]
    at: tuple[float, ...] | None = None
    first: float = 2
    factor: float = 2  # asha: one of this many runs continues
    until: float | None = None
    every: float = 1
    runs: int = 6  # runs that must have reached a rung before a run is ended at this rung
    patience: float = 10
    min_delta: float = 0
    min: float | None = None
    max: float | None = None
    finite: bool = True
    target: float | None = None
    position: Position | None = None


@dataclass(frozen=True, slots=True)
class CodePolicy:
    """The source of a run's code: a copy taken when the study starts, or the live folder."""

    kind: Literal["snapshot", "live"] = "snapshot"
    ignore: tuple[str, ...] = ()
    link_ignored: bool = True  # files that are not copied are linked; False: they are missing


LOCAL = "local"  # the name of this machine in --on and as a handle's executor
# `missing`: the study file names the farm without defining it; settings may define the farm
FarmKind = str  # generic, draco, ngc, template, missing; else the name of an executor


@dataclass(frozen=True, slots=True)
class Farm:
    """A target for jobs: a command that submits, a built-in template, or an engine that Assay calls directly."""

    name: str
    kind: FarmKind
    submit: str = ""  # SUBMIT_CMD, or the whole template
    resources: tuple[tuple[str, Value], ...] = ()
    workspace: str | None = None
    remote_root: str | None = None  # NGC_LOGROOT: the folder in which the job, and later Assay, finds the run
    cancel: str | None = None
    position: Position | None = None
    problems: tuple[Problem, ...] = ()  # why the farm cannot be used; raised when it is chosen
    options: Mapping[str, Any] = field(default_factory=dict)  # the study file's keys for an engine

    @property
    def is_engine(self) -> bool:
        return self.kind not in ("generic", "draco", "ngc", "template", "missing")

    @property
    def executor(self) -> str:
        return self.kind if self.is_engine else "submit"


@dataclass(frozen=True, slots=True)
class Study:
    name: str
    dialect: str  # the name of a Dialect
    source: str  # the file, as the user wrote its path
    folder: str  # absolute folder that relative paths and the live code refer to
    commands: tuple[CommandTemplate, ...]
    sweeps: tuple[Sweep, ...]
    defaults: Params = field(default_factory=dict)  # parameters that are filled in after runs are named
    aliases: Mapping[str, Mapping[str, Params]] = field(default_factory=dict)  # param -> case -> its parameters
    subset: Subset | None = None
    search: Search | None = None
    repeat: int = 1  # repeats of each run, ordinal 0, 1, …
    metrics: tuple[Pattern | MetricFile, ...] = ()
    resources: Resources = Resources()
    slots: tuple[str, ...] | None = None  # the labels of slots: "0", "1,2", "cpu"
    timeout_s: float | None = None
    retries: int = 0
    leave_running: bool = False  # do not end processes that outlive a run that is done
    priority: int = 0
    env: tuple[tuple[str, str], ...] = ()
    pythonpath: str | None = None
    checks: tuple[Check, ...] = ()
    stop: tuple[StopRule, ...] = ()
    code: CodePolicy = CodePolicy()
    root: str | None = None  # the output root that the file sets, absolute
    farms: Mapping[str, Farm] = field(default_factory=dict)
    farm: str | None = None  # the default of --on
    resume: Resume | None = None  # how `assay rerun --from checkpoint` passes a checkpoint
    overrides: Mapping[str, Axis] = field(default_factory=dict)  # from the command line, already part of the sweeps
    name_params: tuple[str, ...] = ()  # with overrides: parameters in a run's name besides those that differ
    warnings: tuple[Problem, ...] = ()
    extras: Mapping[str, Any] = field(default_factory=dict)  # keys of plug-ins
    text: str = field(default="", repr=False, compare=False)  # the content of the file


def same_value(left: Value, right: Value) -> bool:
    """Whether two values are equal; true is not equal to 1, unlike in Python."""
    return bool(left == right) and isinstance(left, bool) == isinstance(right, bool)


def quote_inside(text: str, quote: Quote) -> str:
    """Escape a text for bash, for a position without quotes, inside '…' or inside "…"."""
    if quote == "single":
        return text.replace("'", "'\\''")
    if quote == "double":
        return re.sub(r'([\\"$`])', r"\\\1", text)
    import shlex

    return shlex.quote(text)
