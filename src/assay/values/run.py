"""A run: one execution of one or more commands with one set of parameters, in its own folder."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Literal

from assay.system.fast_dataclasses import NamedTuple, dataclass, field
from assay.system.files import blake2b
from assay.values.state import State as State  # noqa: PLC0414 imported from here by other modules
from assay.values.study import CodePolicy, MetricFile, Params, Pattern, Problem, Resources, Study, Value

LogStream = Literal["both", "stdout", "stderr"]
ELSEWHERE = "elsewhere"  # boot id in the handles of received runs


@dataclass(frozen=True, slots=True)
class Command:
    """One command line of a run; `${ASSAY_RUN_DIR}` in it stands for the run's directory."""

    name: str
    text: str
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class Private:
    """The secrets of a run: in memory, and in one file of its directory that only its owner can read."""

    commands: Mapping[str, str] = field(default_factory=dict)  # name -> text, for commands with a secret
    env: Mapping[str, str] = field(default_factory=dict)
    values: tuple[str, ...] = ()  # secrets of parameters and variables, to be searched in other texts


@dataclass(frozen=True, slots=True)
class Resumption:
    """How a later attempt of a run begins with a checkpoint of an earlier one, by the study's `resume:`."""

    files: tuple[str, ...]  # patterns relative to the run directory
    texts: Mapping[str, str]  # command -> its text with `layout.CHECKPOINT_REFERENCE`, for commands that take the path


@dataclass(frozen=True, slots=True)
class Beginning:
    """The checkpoint with which an attempt of a run with `resume:` begins."""

    files: tuple[str, ...]
    checkpoint: str = ""  # relative to the run directory; empty: the attempt starts over
    newest_ns: int = 0  # when the newest checkpoint at that time was written; 0: there was none


@dataclass(frozen=True, slots=True)
class RunSpec:
    """The definition of a run. The id is a hash of what decides the results: commands, params and ordinal."""

    id: str
    name: str  # the directory's name inside the study
    params: Params
    commands: tuple[Command, ...]
    ordinal: int = 0  # counts repeats of the same spec
    title: str | None = None
    tag: str | None = None  # the beginning of the run's name, if the file or the command line sets it
    resources: Resources = Resources()
    patterns: tuple[Pattern | MetricFile, ...] = ()
    timeout_s: float | None = None
    retries: int = 0
    priority: int = 0
    env: tuple[tuple[str, str], ...] = ()
    pythonpath: str | None = None
    code: CodePolicy = CodePolicy()
    farm_resources: tuple[tuple[str, object], ...] = ()  # resources of the farm for the run
    log_name: str = "{command}{suffix}.log"  # in some dialects with {time}
    log_stream: LogStream = "both"  # the streams in `log_name`; another stream goes to `other_log_name`
    other_log_name: str = "{command}{suffix}.other.log"
    sweep: int = 0  # index of its sweep in the study
    leave_running: bool = False  # do not end processes that outlive a run that is done
    chosen: tuple[str, ...] | None = None  # the commands chosen for this call; None: all
    resume: Resumption | None = None
    private: Private | None = field(default=None, repr=False, compare=False)  # never in run.json


@dataclass(frozen=True, slots=True)
class Plan:
    """Every run of a study, in order, and messages about the runs."""

    study: Study
    runs: Sequence[RunSpec]
    links: tuple[tuple[str, str], ...] = ()  # (folder name, the run whose results it shares)
    warnings: tuple[Problem, ...] = ()
    is_hidden: bool = False  # secrets in the runs are already hidden


class FolderRun(NamedTuple):
    """A run directory that only another tool filled."""

    params: Params
    state: State
    finished: frozenset[str] = frozenset()  # names of commands
    problems: tuple[str, ...] = ()  # descriptions of unreadable parts


# ---------------------------------------------------------------- identity: what a run computes
# A run's hash must be the same in every version of Assay: run directories contain it.

_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, default=str).encode


def canonical(value: Value) -> str:
    """Render JSON in a fixed form: 1, 1.0, true and "1" all differ, the order of keys does not matter."""
    return _encode(value)


def spec_id(commands: Iterable[Command], params: Params, ordinal: int = 0) -> str:
    """Return the hash of commands, params and ordinal; limits, slots, checks and code are not part of it."""
    texts = [[command.name, command.text] for command in commands]
    spelled = _encode({"commands": texts, "ordinal": ordinal, "params": dict(params)})
    return blake2b(spelled.encode("ascii"), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True)
class JobRequest:
    """Everything that an executor needs to start `job.sh` once, without the meaning of the run."""

    dir: str  # absolute run directory
    name: str  # study/run, for the farm's job name
    attempt: int
    env: Mapping[str, str] = field(default_factory=dict)  # variables in addition to the supervisor's environment
    slot: str | None = None
    slot_fds: tuple[int, ...] = ()  # locks that the job holds as long as it lives
    tag: str = ""  # <run uid>.<attempt>, in the environment of every process of the job
    command_line: str = ""  # for people: the job's commands
    farm_resources: tuple[tuple[str, object], ...] = ()
    label: str = ""  # the name of a tagged run, on farms without their own form
    begins: Beginning | None = None  # None: the study has no `resume:`


@dataclass(frozen=True, slots=True)
class JobHandle:
    """The data to find a started job again, also from another process; written into `lease.N`."""

    executor: str
    native_id: str
    host: str
    pid: int
    start: int  # the kernel's start time of the pid, in clock ticks since boot
    boot: str
    slot: str | None
    attempt: int
    started_at: float  # seconds since the epoch
    supervisor_pid: int = 0  # of the supervisor that started the job; while it is alive, other supervisors only watch
    supervisor_start: int = 0
    tag: str = ""  # ASSAY_ATTEMPT of every process that the job starts
    skips: str | None = None  # ASSAY_DONE of the attempt: commands that it leaves out; None: unknown
    farm_root: str = ""  # NGC_LOGROOT: the folder of the job's files, instead of the run directory
    image: str = ""  # the image of the job's container, as the farm names it, with the digest
    begins: Beginning | None = None  # None: the study has no `resume:`

    @property
    def is_elsewhere(self) -> bool:
        """Whether the attempt came with a received run: no host, engine or process is contacted because of it."""
        return self.boot == ELSEWHERE


@dataclass(frozen=True, slots=True)
class Usage:
    """The resources that a finished job used, as measured by the kernel, exact even for short jobs."""

    cpu_s: float
    peak_rss_bytes: int  # of the job's largest process; 0: unknown


class Liveness(StrEnum):
    ALIVE = "alive"
    GONE = "gone"
    UNKNOWN = "unknown"  # on another host, or not yet started by its farm


# final: a rule of `stop:` ended the run because it stopped improving, or had reached its target
Cause = Literal["", "death", "taken back", "out of time", "final"]


class Ending(NamedTuple):
    """The reason why a rule ends a run."""

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
    checkpoint: str = ""  # the newest checkpoint of the attempt, for a run with `resume:` that is not done
    cause: Cause = ""  # what the state does not show: whether another attempt follows, or if the values are final

    @property
    def exit_code(self) -> int | None:
        """The exit code that decided the outcome: the first that is not zero, else the last."""
        bad = [code for code in self.codes.values() if code != 0]
        return bad[0] if bad else (0 if self.codes else None)


# interrupt: the supervisor was asked to end; rule: a rule of `stop:` ended the run; fence: a farm's attempt was given
# up and replaced by another attempt, and may still run
StopKind = Literal["user", "interrupt", "early", "rule", "fence"]


@dataclass(frozen=True, slots=True)
class Stop:
    """The content of `stop.N`: a deliberate end, written before any process is killed."""

    who: str
    why: str
    kind: StopKind = "user"
    at: float = 0.0
    cause: Cause = ""  # the cause of the outcome, if a rule ends the attempt


# commands of bash that act on the shell itself
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
    """Return a quoted command line to be pasted, with `--` before operands that begin with a dash."""
    if any(operand.startswith("-") for operand in operands):
        return " ".join(map(quote_word, (*words, *options, "--", *operands)))
    return " ".join(map(quote_word, (*words, *operands, *options)))


def quote_word(word: str) -> str:
    """Quote a word for bash; a word with line breaks or unprintable bytes is written as $'…'."""
    if word.isprintable():
        import shlex

        return shlex.quote(word)
    data = word.encode("utf-8", "surrogateescape")
    plain = (chr(byte) if 32 <= byte < 127 and byte not in b"\\'" else f"\\x{byte:02x}" for byte in data)
    return "$'" + "".join(plain) + "'"
