"""The names of the files of a study and of a run: the only module that defines them.

<root>/<study>/                 a study
    .assay/                     sets of runs, code snapshots, temporary run directories, supervisors, state of --force
    <run>/                      a run, complete as soon as it has this name
        run.json                the definition of the run (immutable)
        job.sh                  the run's commands, with paths relative to the file; job.N.sh is the job.sh of attempt N
                                if a later attempt has other variables
        environment.json        the machine and the sources of the run
        secrets.sh              secret values, only for job.sh (0600); only if the run has some
        code/                   the run's copy of the code; code.N/: of attempt N, if a later attempt has newer code
        job.log                 messages of job.sh itself
        <command>.log           a command's output; <command>.2.log in the second attempt
        <command>.exit.<code>   a command's exit code, in the name; <command>.2.exit.<code>
        <command>.timeout       marks a command that was ended by its time limit
        lease.N  stop.N  token.N  outcome.N      of attempt N: its process, why it was stopped, its beginning, its end
        warned.N                farms: the time limit of attempt N of a run with `resume:` is near or has ended it
        end.N                   farms: job.sh of attempt N has ended, on any host. For a run that a script opened: the
                                exit status of the script, one byte, twice
        metrics/<process>.jsonl series written by the script, one file per process
        tags.json               tags and notes of people
        received.json           for an uploaded or pulled run: from where, by which token, when, and if it was adopted
        received/               unused files of an adopted run: its job.sh, code/ and checkpoints
        script-config.json      the configuration that a script reported (`assay.wandb`, `.lightning`, `.transformers`)
        wandb.json  files/      summary, tags and files of a script that uses `assay.wandb`
        readings.jsonl          CPU, memory and GPU over time
        benchmark.json          benchmarks: the result, and the state of the machine
        report.jsonl            benchmarks: the reports of the child, line by line
        output/  profile/       benchmarks: the method's own files, and traces
        model.json              models: the results of a check, case by case
        trace.json  .pb  .csv   models: the duration of each step of each case, for Chrome, Perfetto and tables
        tensors/<case>/         models: outputs that differ, and the inputs of a failed step
    .assay/tags.json            tags and notes of the study
    .assay/search.json          the search that the runs trial-0000, trial-0001, … belong to
    .assay/verdicts.jsonl       verdicts: checks of the study, golden and model checks, comparisons
    .assay/golden/              goldens: the report of each gathering and check, with its curves
    .assay/triage.jsonl         benchmarks: people's notes about changes (ack, invalid, wontfix); goldens: nights
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pathlib import Path

FORMAT_VERSION = 1  # the version of run.json, which `assay.log` also writes

RUN_FILE = "run.json"
JOB_FILE = "job.sh"
PLOT_MARK = "Drawn by assay plot"  # in the metadata of a picture that is not code
JOB_LOG = "job.log"
SECRETS_FILE = "secrets.sh"
ENVIRONMENT_FILE = "environment.json"
CODE_DIR = "code"
METRICS_DIR = "metrics"
READINGS_FILE = "readings.jsonl"
TAGS_FILE = "tags.json"  # in a run's directory, and inside .assay for the study
RECEIVED_FILE = "received.json"
RECEIVED_DIR = "received"
CONFIG_FILE = "script-config.json"
WANDB_FILE = "wandb.json"
STUDY_META_DIR = ".assay"
SLURM_DIR = "slurm"  # inside .assay: the job arrays of Slurm
CODES_FILE = "codes.json"  # inside .assay: run id -> hash of the code it was planned with
PLAN_FILE = "plan.json"  # inside .assay: the runs of the last call, until all have a directory and have ended
PLAN_PREFIX = "plan-"  # plans of calls with overrides: a file for each set of overrides
PASS_PREFIX = "pass-"  # inside .assay: name -> last attempt before a --force, until the --force is complete
SEARCH_FILE = "search.json"  # inside .assay: the search that the trials belong to
TRIAL_PREFIX = "trial-"  # followed by the number: the run of a search
VERDICTS_FILE = "verdicts.jsonl"  # inside .assay: verdicts, a line for each call
GOLDEN_DIR = "golden"  # inside .assay: reports of golden checks
FILES_DIR = "files"  # inside .assay: copies of the study's file, <hash>.yml
CODE_STORE_DIR = "code"  # inside .assay: snapshots by content hash
DAMAGED_DIR = "damaged"  # inside .assay: folders that could not be repaired and were rebuilt
TEMPORARY_PREFIX = ".tmp-"
PULL_PREFIX = ".pull-"  # inside .assay: a run that is being fetched (`assay pull`), perhaps by several calls
PRESENCE_FILE = "supervisors.lock"  # inside .assay: every supervisor holds a shared lock on it
SUPERVISOR_LOG = "supervisor.log"  # inside .assay: messages of supervisors without a terminal
SUPERVISOR_PREFIX = "supervisor."  # inside .assay: one file for each running supervisor
NEXT_CODE_PREFIX = "code.next-"  # followed by the snapshot's hash: it replaces code/ before the next attempt
ADHOC_STUDY = "adhoc"
SCRIPT = "script"  # the name in markers for the only command of a run that a script opened
NOT_ENDED = "?!"  # the content of a script's end.1 until the script ends, which writes its exit status, twice
DEFAULT_ROOT = "runs"

# files of runs that other tools made
HPARAMS_FILE = "hparams.json"
SUBMIT_SCRIPT = "submit_cmd.sh"
LOGX_METRICS_FILE = "metrics.csv"
LOGX_LOG_FILE = "logging.log"
PARAM_FILE = "param"
STAT_FILE = "stat"
FOREIGN_MARKS = (HPARAMS_FILE, LOGX_METRICS_FILE, PARAM_FILE)  # a directory with one of these files is a run
# settings files of another tool with its output roots: the tool's plug-in is only used if one of these files exists
FOREIGN_SETTINGS = (".runx", "~/.config/runx.yml")

# variables in the environment of a job
ENV_RUN_DIR = "ASSAY_RUN_DIR"
ENV_RUN_NAME = "ASSAY_RUN_NAME"
ENV_RUN_ID = "ASSAY_RUN_ID"
ENV_STUDY = "ASSAY_STUDY"
ENV_ATTEMPT = "ASSAY_ATTEMPT"  # <run uid>.<attempt>: the tag by which every process of an attempt is found
ENV_ATTEMPT_NUMBER = "ASSAY_ATTEMPT_NUMBER"
ENV_GATE = "ASSAY_GATE"  # the inherited descriptor that job.sh waits on
ENV_DONE = "ASSAY_DONE"  # ":train:avg:": commands that an earlier attempt finished
ENV_TIME = "ASSAY_TIME"  # %Y%m%d.%H%M%S of the attempt, for log names
ENV_SLOT = "ASSAY_SLOT"
ENV_LEASE = "ASSAY_LEASE"  # <pid>.<start>.<boot> of the calling command that holds the machine lease
ENV_LAUNCH = "ASSAY_LAUNCH"  # the command with which job.sh starts a command on several nodes
ENV_PYTHON = "ASSAY_PYTHON"  # an interpreter that has Assay, if the host of a farm's job sees it
ENV_WAITED = "ASSAY_WAITED"  # whole seconds of the time limit that passed while the run waited for its slot

RUN_DIR_REFERENCE = "${ASSAY_RUN_DIR}"  # the run directory in a command's text
CHECKPOINT_REFERENCE = "${ASSAY_CHECKPOINT}"  # in a template of job.sh: replaced before a later attempt begins

_META_NAMES = frozenset(
    (
        *(CODES_FILE, CODE_STORE_DIR, FILES_DIR, PRESENCE_FILE, SEARCH_FILE, VERDICTS_FILE, TAGS_FILE),
        *("triage.jsonl", "golden"),  # files of plug-ins
    )
)
_META_PREFIXES = (SUPERVISOR_PREFIX, TEMPORARY_PREFIX, PULL_PREFIX, PASS_PREFIX, "set.", "environment-", "request-")
_EXIT_MARKER = re.compile(r"(?P<command>[\w-]+)(?:\.(?P<attempt>\d{1,9}))?\.exit\.(?P<code>\d+)")
_TIMEOUT_MARKER = re.compile(r"(?P<command>[\w-]+)(?:\.(?P<attempt>\d{1,9}))?\.timeout")
_SERIES_FILE = re.compile(r"a(\d+)-r(\d+)-")
_LOG_FIELD = re.compile(r"\{(command|suffix|time)\}")
_NUMBERED = re.compile(r"(?P<kind>lease|stop|token|outcome|end|warned)\.(?P<attempt>\d{1,9})")
Numbered = Literal["lease", "stop", "token", "outcome", "end", "warned", "unreachable"]  # files of one attempt
NO_HOST = "-"  # the host in a token that a supervisor took, so that the job never begins
_SUPERVISOR = re.compile(r"supervisor\.(?P<host>.+)\.(?P<pid>\d+)\.(?P<start>\d+)")
_SUBMIT_EXIT = re.compile(r"submit\.exit\.(?P<attempt>\d{1,9})\.(?P<code>\d+)")


def is_meta_name(name: str) -> bool:
    """Whether a name inside `.assay` is one that Assay uses, by which a study's folder is recognised."""
    return name in _META_NAMES or name.startswith(_META_PREFIXES)


def is_plan_name(name: str) -> bool:
    return name == PLAN_FILE or (name.startswith(PLAN_PREFIX) and name.endswith(".json"))


def is_pass_name(name: str) -> bool:
    return name.startswith(PASS_PREFIX) and name.endswith(".json")


def trial_name(number: int) -> str:
    return f"{TRIAL_PREFIX}{number:04d}"


def parse_trial_name(name: str) -> int | None:
    """Parse `trial-0007` → 7."""
    digits = name.removeprefix(TRIAL_PREFIX)
    is_one = digits != name and digits.isascii() and digits.isdecimal() and trial_name(int(digits)) == name
    return int(digits) if is_one else None


def kept_job_name(attempt: int) -> str:
    """Return the name that the job.sh of an attempt gets when a later attempt has another job.sh."""
    return f"job.{attempt}.sh"


def numbered_name(kind: Numbered, attempt: int) -> str:
    return f"{kind}.{attempt}"


def numbered_path(run_dir: str, kind: Numbered, attempt: int) -> str:
    return f"{run_dir}/{numbered_name(kind, attempt)}"


def supervisor_name(host: str, pid: int, start: int) -> str:
    return f"{SUPERVISOR_PREFIX}{host}.{pid}.{start}"


def parse_supervisor(name: str) -> tuple[str, int, int] | None:
    """Parse `supervisor.node7.4711.99` → ("node7", 4711, 99): host, pid and start time of a supervisor."""
    match = _SUPERVISOR.fullmatch(name)
    return (match["host"], int(match["pid"]), int(match["start"])) if match else None


# The number is last in the names of a submission's files, which must differ from those of a command called "submit".


def submit_log_name(attempt: int) -> str:
    return f"submit.log.{attempt}"


def submit_script_name(attempt: int) -> str:
    return f"submit.sh.{attempt}"


def submit_exit_name(attempt: int, code: int) -> str:
    return f"submit.exit.{attempt}.{code}"


def parse_submit_exit(name: str) -> tuple[int, int] | None:
    """Parse `submit.exit.2.1` → (2, 1): the submit command of attempt 2 ended with code 1."""
    match = _SUBMIT_EXIT.fullmatch(name)
    return (int(match["attempt"]), int(match["code"])) if match else None


def attempt_suffix(attempt: int) -> str:
    """Return the attempt's part of a name: empty for the first, as most runs have only one."""
    return "" if attempt == 1 else f".{attempt}"


def log_name(template: str, command: str, attempt: int, time: str) -> str:
    """Return the name of a command's log. `template`: `RunSpec.log_name`, `time`: the attempt's %Y%m%d.%H%M%S."""
    return fill_log_name(template, command, attempt_suffix(attempt), time)


def fill_log_name(template: str, command: str, suffix: str, time: str) -> str:
    """Fill in `{command}`, `{suffix}` and `{time}`, and nothing else: run.json may come from elsewhere."""
    given = {"command": command, "suffix": suffix, "time": time}
    return _LOG_FIELD.sub(lambda match: given[match[1]], template)


def exit_marker_name(command: str, attempt: int, code: int) -> str:
    return f"{command}{attempt_suffix(attempt)}.exit.{code}"


def parse_exit_marker(name: str) -> tuple[str, int, int] | None:
    """Parse `train.2.exit.1` → ("train", 2, 1)."""
    match = _EXIT_MARKER.fullmatch(name)
    return (match["command"], int(match["attempt"] or 1), int(match["code"])) if match else None


def parse_timeout_marker(name: str) -> tuple[str, int] | None:
    """Parse `train.2.timeout` → ("train", 2): the command was ended by its time limit."""
    match = _TIMEOUT_MARKER.fullmatch(name)
    return (match["command"], int(match["attempt"] or 1)) if match else None


def parse_numbered(name: str) -> tuple[str, int] | None:
    """Parse `lease.3` → ("lease", 3)."""
    match = _NUMBERED.fullmatch(name)
    return (match["kind"], int(match["attempt"])) if match else None


def show_command(text: str, run_dir: str | Path) -> str:
    """Return a command's text for people, with the run directory filled in."""
    return fill_reference(text, RUN_DIR_REFERENCE, str(run_dir))


def fill_reference(text: str, reference: str, value: str) -> str:
    """Replace `"${NAME}"`, or `${NAME}` between double quotes, in a command's text by a value."""
    if reference not in text:
        return text
    import shlex

    inner = re.sub(r'([\\"$`])', r"\\\1", value)
    return text.replace(f'"{reference}"', shlex.quote(value)).replace(reference, inner)


def find_log(names: Iterable[str], template: str, command: str) -> str | None:
    """Return the newest log of a command among the names in a run directory, of any attempt."""
    logs = find_logs(names, template, command)
    return logs[-1] if logs else None


def find_logs(names: Iterable[str], template: str, command: str) -> list[str]:
    """Return all logs of a command, oldest first."""
    pattern = _log_pattern(template, command)
    marks = ((match["mark"].split("."), name) for name in names if (match := pattern.fullmatch(name)))
    found = [(tuple(int(part) for part in mark if part), name) for mark, name in marks]
    return [name for _, name in sorted(found)]


def split_series(names: Iterable[str], continued: Iterable[int] = ()) -> tuple[list[str], list[str]]:
    """Split the files of `metrics/` into those that count and others: earlier attempts that the newest one does not
    continue, and ranks other than the lowest."""
    found = sorted((parse_series_name(name), name) for name in names if name.endswith(".jsonl"))
    newest = max((mark[0] for mark, _ in found), default=1)
    lowest = {mark[0]: mark[1] for mark, _ in reversed(found)}
    marks = {(number, lowest.get(number, 0)) for number in (*continued, newest)}
    return [name for mark, name in found if mark in marks], [name for mark, name in found if mark not in marks]


def parse_series_name(name: str) -> tuple[int, int]:
    """Return attempt and rank: `a2-r0-host-4711-1.jsonl` → (2, 0). Other names count as attempt 1."""
    match = _SERIES_FILE.match(name)
    return (int(match[1]), int(match[2])) if match else (1, 0)


def is_series_file(name: str) -> bool:
    """Whether a name is the name of a process's series."""
    return name.endswith(".jsonl") and _SERIES_FILE.match(name) is not None


@cache
def _log_pattern(template: str, command: str) -> re.Pattern[str]:
    text = re.escape(template.replace("{command}", command))
    text = text.replace(re.escape("{suffix}"), r"(?P<mark>(?:\.\d+)?)").replace(
        re.escape("{time}"), r"(?P<mark>[\d.]+)"
    )
    return re.compile(text if "(?P<mark>" in text else f"(?P<mark>){text}")
