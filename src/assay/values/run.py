"""A run: one execution of one or more commands with one set of parameters, in a folder of its own."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Literal

from assay.system.fast_dataclasses import NamedTuple, dataclass, field
from assay.system.files import blake2b
from assay.values.state import State as State  # noqa: PLC0414 imported from here
from assay.values.study import CodePolicy, MetricFile, Params, Pattern, Problem, Resources, Study, Value

LogStream = Literal["both", "stdout", "stderr"]


@dataclass(frozen=True, slots=True)
class Command:
    """One command line of a run; `${ASSAY_RUN_DIR}` in it stands for the run's directory."""

    name: str
    text: str
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class Private:
    """The secrets of a run: in memory, and in one file of its directory that only its owner can read."""

    commands: Mapping[str, str] = field(default_factory=dict)  # name -> text, of the commands that hold a secret
    env: Mapping[str, str] = field(default_factory=dict)
    values: tuple[str, ...] = ()  # of parameters and variables, to be looked for elsewhere


@dataclass(frozen=True, slots=True)
class Resumption:
    """How a later attempt of a run begins with a checkpoint of an earlier one; by the study's `resume:`."""

    files: tuple[str, ...]  # patterns relative to the run directory
    texts: Mapping[str, str]  # command -> its text with `layout.CHECKPOINT_REFERENCE`, of those that take the path


@dataclass(frozen=True, slots=True)
class Beginning:
    """What an attempt of a run with `resume:` begins with."""

    files: tuple[str, ...]
    checkpoint: str = ""  # relative to the run directory; empty: it starts over
    newest_ns: int = 0  # when the newest checkpoint was written that was there then; 0: there was none


@dataclass(frozen=True, slots=True)
class RunSpec:
    """What a run is. The id is a hash of commands, params and ordinal: of what it computes, not of how it is run."""

    id: str
    name: str  # the directory's name inside the study
    params: Params
    commands: tuple[Command, ...]
    ordinal: int = 0  # counts repeats of the same spec
    title: str | None = None
    tag: str | None = None  # by which its name begins, where the file or the call gives one
    resources: Resources = Resources()
    patterns: tuple[Pattern | MetricFile, ...] = ()
    timeout_s: float | None = None
    retries: int = 0
    priority: int = 0
    env: tuple[tuple[str, str], ...] = ()
    pythonpath: str | None = None
    code: CodePolicy = CodePolicy()
    farm_resources: tuple[tuple[str, object], ...] = ()  # what the run asks its farm for
    log_name: str = "{command}{suffix}.log"  # or with {time}, where the dialect has it so
    log_stream: LogStream = "both"  # what goes into that log; the other stream goes to `other_log_name`
    other_log_name: str = "{command}{suffix}.other.log"
    sweep: int = 0  # which of the study's sweeps it comes from
    leave_running: bool = False  # processes that outlive a run that is done are left alone
    chosen: tuple[str, ...] | None = None  # the commands asked for this time; None is all
    resume: Resumption | None = None
    private: Private | None = field(default=None, repr=False, compare=False)  # never in run.json


@dataclass(frozen=True, slots=True)
class Plan:
    """Every run of a study, in order, and the messages about it."""

    study: Study
    runs: Sequence[RunSpec]
    links: tuple[tuple[str, str], ...] = ()  # (folder name, the run whose results it shares)
    warnings: tuple[Problem, ...] = ()
    is_hidden: bool = False  # the runs show no secrets any more


class FolderRun(NamedTuple):
    """A run directory that another tool filled without us."""

    params: Params
    state: State
    finished: frozenset[str] = frozenset()  # commands
    problems: tuple[str, ...] = ()  # what could not be read


# ---------------------------------------------------------------- identity: what a run computes
# The hash is stable for ever; run directories carry it.

_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, default=str).encode


def canonical(value: Value) -> str:
    """JSON in one fixed spelling: 1, 1.0, true and "1" all differ, the order of keys does not matter."""
    return _encode(value)


def spec_id(commands: Iterable[Command], params: Params, ordinal: int = 0) -> str:
    """The hash of commands, params and ordinal; not of limits, slots, checks or code."""
    texts = [[command.name, command.text] for command in commands]
    spelled = _encode({"commands": texts, "ordinal": ordinal, "params": dict(params)})
    return blake2b(spelled.encode("ascii"), digest_size=8).hexdigest()


# ---------------------------------------------------------------- execution


@dataclass(frozen=True, slots=True)
class JobRequest:
    """Everything an executor needs to start `job.sh` once; it knows nothing of what the run means."""

    dir: str  # absolute run directory
    name: str  # study/run, for the farm's job name
    attempt: int
    env: Mapping[str, str] = field(default_factory=dict)  # set on top of the supervisor's own
    slot: str | None = None
    slot_fds: tuple[int, ...] = ()  # locks that the job holds as long as it lives
    tag: str = ""  # <run uid>.<attempt>, in the environment of everything the job starts
    command_line: str = ""  # for people: what the job will run
    farm_resources: tuple[tuple[str, object], ...] = ()
    label: str = ""  # what a tagged run is called, on farms that have no form of their own
    begins: Beginning | None = None  # None: the study has no `resume:`


@dataclass(frozen=True, slots=True)
class JobHandle:
    """How to find a started job again, also from another process; written into `lease.N`."""

    executor: str
    native_id: str
    host: str
    pid: int
    start: int  # the kernel's start time of the pid, in clock ticks since boot
    boot: str
    slot: str | None
    attempt: int
    started_at: float  # seconds since the epoch
    supervisor_pid: int = 0  # of the supervisor that started it; while it lives, others only watch
    supervisor_start: int = 0
    tag: str = ""  # ASSAY_ATTEMPT of everything it starts
    skips: str | None = None  # ASSAY_DONE of the attempt: commands that it leaves out; None: not known
    farm_root: str = ""  # NGC_LOGROOT: the job's files appear under it, not in the run directory
    image: str = ""  # of its container, as the farm names it, and the digest
    begins: Beginning | None = None  # None: the study has no `resume:`


@dataclass(frozen=True, slots=True)
class Usage:
    """What a finished job used, according to the kernel: exact, however short it was."""

    cpu_s: float
    peak_rss_bytes: int  # of its largest process; 0: not known


class Liveness(StrEnum):
    ALIVE = "alive"
    GONE = "gone"
    UNKNOWN = "unknown"  # on another host, or not yet started by its farm


# final: a rule of `stop:` ended the run when it got no better, or had reached its target
Cause = Literal["", "death", "taken back", "out of time", "final"]


class Ending(NamedTuple):
    """Why a rule ends a run."""

    why: str
    cause: Cause = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt ended; written once into `outcome.N`."""

    state: State
    attempt: int
    codes: Mapping[str, int] = field(default_factory=dict)  # command -> exit code, for commands that ended
    reason: str = ""
    started_at: float | None = None
    ended_at: float | None = None
    peak_rss_bytes: int | None = None
    cpu_s: float | None = None
    checkpoint: str = ""  # of a run with `resume:` that is not done: one that this attempt wrote, the newest
    cause: Cause = ""  # of a state that alone does not say whether another attempt follows, or the values are final

    @property
    def exit_code(self) -> int | None:
        """The code of the command that decided the outcome: the first that is not zero, else the last."""
        bad = [code for code in self.codes.values() if code != 0]
        return bad[0] if bad else (0 if self.codes else None)


# interrupt: the supervisor was asked to end; rule: `stop:`; fence: a farm's attempt was given up and another takes its
# place, whatever the first one still does
StopKind = Literal["user", "interrupt", "early", "rule", "fence"]


@dataclass(frozen=True, slots=True)
class Stop:
    """`stop.N`: a deliberate end, written before any kill."""

    who: str
    why: str
    kind: StopKind = "user"
    at: float = 0.0
    cause: Cause = ""  # what the outcome's becomes, where a rule ends the attempt


# ---------------------------------------------------------------- shell


# bash does these itself, and does them to the shell that it is called from
SHELL_WORDS = frozenset(
    (
        *(".", "alias", "bg", "bind", "break", "builtin", "caller", "case", "cd", "command", "compgen"),
        *("complete", "compopt", "continue", "coproc", "declare", "dirs", "disown", "do", "done", "elif"),
        *("else", "enable", "esac", "eval", "exec", "exit", "export", "fc", "fg", "fi", "for", "function"),
        *("getopts", "hash", "help", "history", "if", "in", "jobs", "kill", "let", "local", "logout"),
        *("mapfile", "popd", "pushd", "read", "readarray", "readonly", "return", "select", "set", "shift"),
        *("shopt", "source", "suspend", "then", "time", "times", "trap", "type", "typeset", "ulimit"),
        *("umask", "unalias", "unset", "until", "wait", "while"),
    )
)


def build_command(words: Sequence[str], operands: Sequence[str] = (), options: Sequence[str] = ()) -> str:
    """A command line that works when it is pasted: quoted, and with `--` before operands that begin with a dash."""
    if any(operand.startswith("-") for operand in operands):
        return " ".join(map(quote_word, (*words, *options, "--", *operands)))
    return " ".join(map(quote_word, (*words, *operands, *options)))


def quote_word(word: str) -> str:
    """A word for bash; one with line breaks or bytes that no terminal shows is written as $'…'."""
    if word.isprintable():
        import shlex

        return shlex.quote(word)
    data = word.encode("utf-8", "surrogateescape")
    plain = (chr(byte) if 32 <= byte < 127 and byte not in b"\\'" else f"\\x{byte:02x}" for byte in data)
    return "$'" + "".join(plain) + "'"
