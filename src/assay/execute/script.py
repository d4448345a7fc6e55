"""The text of `job.sh`: the commands of a run, one after another, each with its log and its exit marker.

The script is the same for every executor, immutable, relative to itself, and needs only bash. The values that differ
between attempts (number, slot, gate) are environment variables; without them `bash job.sh` is a new attempt by hand.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from functools import lru_cache

from assay.system import processes
from assay.system.fast_dataclasses import dataclass
from assay.values import layout
from assay.values.run import SHELL_WORDS, RunSpec
from assay.values.study import quote_inside

# The reasons for the lines of the script are listed here: comments in `job.sh` would be repeated for every run.
# - `set +eu` and the empty CDPATH: BASH_ENV, SHELLOPTS or a user's CDPATH must not change what this script does.
# - Names of the script start with an underscore: a command is evaluated in a subshell of this shell and sees them.
# - With a gate (local jobs) the script waits for one byte on a pipe; end of file: another supervisor owns the attempt.
# - Without a gate (farms, by hand) the script takes the token by noclobber (O_EXCL); an empty token: nothing ran.
# - Exit code 4: this host cannot use the folder (full, read-only, not mounted), so that later output would be lost.
# - Without a gate a watcher obeys stop.N, since the supervisor cannot reach the process. After a stop the watcher ends
#   job.sh first, since a command that answers TERM with exit 0 must not count as finished, and then the processes that
#   ignore TERM. The watcher does not fork while it waits, since a left-over `sleep` would hold the slot's lock. end.N
#   shows supervisors on other hosts that job.sh has exited or was killed.
# - After a second the watcher starts `_measure`, which must not be taken for a process of the run: `_measure` has no
#   tag, ignores signals to the whole job, and ends with the watcher. A job of milliseconds starts no Python.
# - A farm that takes a job back sends TERM to all processes of the job. job.sh waits a moment for its own TERM before
#   it writes the marker: the exit code of a command that was ended in this way does not count.
# - By hand: a supervisor looks for the token right before it links its lease; the script looks for that lease later.
# - The processes of an attempt are found in plain bash: a `grep` would have the same tag and find itself for ever.
# - Lines that few jobs need come after the `exit`, where bash does not read them: a tenth of a millisecond per job. A
#   job that needs them reads them with `mapfile`, and waits by `read`: a process for it would cost two milliseconds.
# - The exit code is in the marker's name, which is atomic and survives a full disk. Bash 4.4 has no EPOCHREALTIME.
# - `timeout` is used only with a limit, since it costs a process. Exit code 124 alone does not show a timeout: the
#   duration is compared. `timeout` signals only its own group: processes in other sessions are ended by tag later.
# - ASSAY_LAUNCH is a shell function of the executor that starts a command on several nodes, instead of `eval`.
# - ASSAY_WAITED: the run's limit counts from the start of its wait for a slot, if the calling command requests that.
_HEAD = r"""#!/usr/bin/env bash
# {title}
# Written by Assay. `bash job.sh` runs it again by hand, as a new attempt.
set +eu
case $0 in */*) CDPATH= cd -- "${{0%/*}}" || exit 4 ;; esac
export ASSAY_RUN_DIR=$PWD ASSAY_RUN_ID={id} ASSAY_RUN_NAME={name} ASSAY_STUDY={study} PYTHONUNBUFFERED=1
export -n ASSAY_DONE
_n=${{ASSAY_ATTEMPT_NUMBER:-}}
if [ -z "$_n" ]; then
  _hand=1 _n=1; while [ -e "lease.$_n" ] || [ -e "token.$_n" ]; do _n=$((_n + 1)); done
  export ASSAY_ATTEMPT_NUMBER=$_n ASSAY_ATTEMPT={uid}.$_n
fi
[ -n "${{ASSAY_TIME:-}}" ] || printf -v ASSAY_TIME '%(%Y%m%d.%H%M%S)T' -1; export ASSAY_TIME
_s=; [ "$_n" = 1 ] || _s=.$_n
"""

_GATE = r"""
_note() { echo "${EPOCHREALTIME:-$(date +%s.%N)} $*"; }
_more() { local IFS=$'\n' lines; mapfile -t lines < "${0##*/}"; eval "${lines[*]: -{on_demand}}"; }
if [ -n "${ASSAY_GATE:-}" ]; then
  IFS= read -r -N 1 -u "$ASSAY_GATE" _ || exit 0
  exec {ASSAY_GATE}<&-; unset ASSAY_GATE
else
  _more; _take_token
fi
"""

_TAIL = r"""
exit 0
#:on-demand: without a gate, and after a time limit
"""
_ON_DEMAND = r"""_finish() {  # TERM to all of them, KILL to what is left after five seconds
  local round=0; _find "$@"; [ -z "$_pids" ] || kill -TERM $_pids
  while _find "$@"; [ -n "$_pids" ] && [ $((round += 1)) -le 60 ]; do
    [ $round -le 20 ] || kill -KILL $_pids; sleep 0.25
  done 2>/dev/null
}
_watch() {  # until stop.N is there, or job.sh has died and nothing of it is left
  local round=0 self=$BASHPID; trap '' TERM INT HUP
  until [ -e "stop.$_n" ]; do
    read -r -t 0.5 -u "$_nap" _; [ $? -gt 128 ] || sleep 0.5
    if [ $((round += 1)) = 2 ]; then _measure "$self" & fi
    kill -0 $$ || { _find $BASHPID; [ -n "$_pids" ] || break; }
  done
  [ ! -e "stop.$_n" ] || { kill -TERM $$; _finish $BASHPID; }
  : > "end.$_n"
}
_measure() {  # readings.jsonl: by Assay, where a Python of this host has it
  local python tag=$ASSAY_ATTEMPT; unset ASSAY_ATTEMPT; trap '' QUIT USR1 USR2 ALRM
  for python in "${ASSAY_PYTHON:-}" python3; do
    "$python" -P -m assay child readings && kill -0 $$ && exec "$python" -P -m assay child readings "$1" $$ "$tag"
  done
  local reason="Assay is not installed for python3 on ${HOSTNAME//[^[:alnum:].-]/}"
  [ -s readings.jsonl ] || echo "{\"absent\":\"$reason\"}" > readings.jsonl
}
_settle() {  # a TERM to all of the job may reach the command a moment before it reaches us
  read -r -t 0.02 -u "$_nap" _; [ $? -gt 128 ] || sleep 0.02
}
_leave() {  # after a stop the watcher has the last word
  [ -e "stop.$_n" ] || { kill -KILL $_watcher; : > "end.$_n"; } 2>/dev/null
}
_take_token() {
  local stat boot host now
"""
_TAKE_TOKEN = r"""  printf -v now '%(%s)T' -1
  set -C; { echo "${host:-$HOSTNAME} $$ ${stat[21]:-0} ${boot:--} $now" > "token.$_n"; } 2>/dev/null || {
    [ -e "token.$_n" ]; exit $((4 * $?))
  }
  set +C
  if [ -n "${_hand:-}" ] && sleep 0.2 && [ -e "lease.$_n" ]; then
    echo "a supervisor has just started attempt $_n" >&2; exit 4
  fi
  [ -t 1 ] || exec >> job.log 2>&1
  exec {_nap}<> <(:)
  _watch > /dev/null 2>&1 < /dev/null &
  _watcher=$!; trap _leave EXIT
}
"""
_END = _TAIL + processes.BASH_FIND_TAGGED + _ON_DEMAND + processes.BASH_READ_IDENTITY + _TAKE_TOKEN


@dataclass(frozen=True, slots=True)
class JobText:
    """The values of `job.sh` that are not in the spec."""

    uid: str
    study: str
    workdir: str  # `code`, or an absolute folder


def render_job(spec: RunSpec, job: JobText) -> str:
    head = _HEAD.format(
        title=_one_line(f"run {job.study}/{spec.name}"),
        id=spec.id,
        name=shlex.quote(spec.name),
        study=shlex.quote(job.study),
        uid=job.uid,
    )
    limits = _LIMITS.format(run_limit=_seconds(spec.timeout_s)) if _has_limit(spec) else ""
    secrets = ""
    if spec.private is not None:
        first = spec.commands[0].name
        secrets = _SECRETS.format(file=layout.SECRETS_FILE, name=first, log=_log_name(spec.log_name, first))
    hidden = spec.private.env if spec.private is not None else {}
    pairs = [(key, value) for key, value in spec.env if key not in hidden]
    if spec.pythonpath is not None:
        pairs.append(("PYTHONPATH", spec.pythonpath))
    exports = secrets + _render_exports(pairs)
    body = "".join(_render_command(spec, index, job.workdir) for index in range(len(spec.commands)))
    gate = _GATE.replace("{on_demand}", str(_END.removeprefix(_TAIL).count("\n")))
    return head + gate + exports + limits + body + _END


def is_whole_job(text: str) -> bool:
    """Return whether a `job.sh` has its end: after a power cut it may be empty, cut short or full of zeros."""
    return "\n_take_token() {" in text and text.endswith("\n}\n") and "\0" not in text


def render_secrets(spec: RunSpec) -> str | None:
    """Return `secrets.sh`: the variables and commands that `job.sh` must not show; None if there are none."""
    if spec.private is None:
        return None
    texts = [
        f"_text_{index}={quote_text(spec.private.commands[command.name])}\n"  # the command's name may have a dash
        for index, command in enumerate(spec.commands)
        if command.name in spec.private.commands
    ]
    return _SECRETS_HEAD + _render_exports(spec.private.env.items()) + "".join(texts) + "_has_secrets=1\n"


_SECRETS_HEAD = """\
# Written by Assay: the secret values of this run, for job.sh alone. Keep the permissions of this file (0600).
"""

# A run cannot start without its secrets: the marker makes this a failure with a reason, not a lost attempt. The last
# line of the secrets shows that the file is complete: an empty file would make empty commands, which succeed.
_SECRETS = r"""
_has_secrets=; [ ! -r {file} ] || . ./{file}
if [ -z "$_has_secrets" ]; then
  echo "{file} cannot be read or is damaged: it has the secret values of this run, for its owner" | tee -a "{log}" >&2
  : > "{name}$_s.exit.126"; exit 126
fi
"""


def _render_exports(pairs: Iterable[tuple[str, str]]) -> str:
    """Render variables; in a value the shell expands the reference to the run directory."""
    texts = "".join(f"export {key}={quote_text(value)}\n" for key, value in pairs)
    return texts.replace(layout.RUN_DIR_REFERENCE, f"'\"{layout.RUN_DIR_REFERENCE}\"'")


_LIMITS = r"""
_run_limit={run_limit}
SECONDS=${{ASSAY_WAITED:-0}}
_limit() {{  # the smaller of the command's own limit and what is left of the run's; 0 is none
  _allowed=$1; [ "$_run_limit" -gt 0 ] || return 0
  local left=$((_run_limit - SECONDS + (SECONDS > 0))); [ "$left" -ge 1 ] || left=1  # SECONDS may tick at once
  if [ "$_allowed" = 0 ] || [ "$left" -lt "$_allowed" ]; then _allowed=$left; fi
}}
"""

_PLAIN = r"""
case "${{ASSAY_DONE:-}}" in *:{name}:*) ;; *)
  _note {name} start
  ( cd -- {workdir} && ${{ASSAY_LAUNCH:-eval}} {text} ) {streams} < /dev/null
  _code=$?; ${{_watcher:+_settle}}
  : > "{name}$_s.exit.$_code" || exit 4; _note {name} exit $_code; [ $_code = 0 ] || exit $_code ;;
esac
"""

# A plain program call cannot change the shell that makes it and needs no subshell, which saves a process for every run.
_BARE = r"""
case "${{ASSAY_DONE:-}}" in *:{name}:*) ;; *)
  _note {name} start
  {{ cd -- {workdir} && ${{ASSAY_LAUNCH:-eval}} {text}; }} {streams} < /dev/null
  _code=$?; ${{_watcher:+_settle}}; cd -- "$ASSAY_RUN_DIR" || exit 4
  : > "{name}$_s.exit.$_code" || exit 4; _note {name} exit $_code; [ $_code = 0 ] || exit $_code ;;
esac
"""
_PLAIN_CALL = r"[\w./+-]+(?: +[\w./=:,@%+-]+)*"

_LIMITED = r"""
case "${{ASSAY_DONE:-}}" in *:{name}:*) ;; *)
  _note {name} start
  _limit {limit}; _began=$SECONDS
  ( cd -- {workdir} && exec timeout -k 10 "$_allowed" \
    bash -c ${{ASSAY_LAUNCH:+'$ASSAY_LAUNCH "$1"' bash}} {text} ) {streams} < /dev/null
  _code=$?; _took=$((SECONDS - _began)); ${{_watcher:+_settle}}
  if [ "$_allowed" -gt 0 ] && [ $_took -ge "$_allowed" ] && {{ [ $_code = 124 ] || [ $_code = 137 ]; }}; then
    : > "{name}$_s.timeout"; _more; _finish $$ "${{_watcher:-}}"
  fi
  : > "{name}$_s.exit.$_code" || exit 4; _note {name} exit $_code; [ $_code = 0 ] || exit $_code ;;
esac
"""
_LONG = "'eval \"$(cat <&9)\" 9<&-' 9< <(printf %s {})"  # the kernel limits an argument to 128 KiB
_LONG_CHARACTERS = 2**15  # characters of at most four bytes each

# One log for both streams, or a file for each: the other stream must not break lines that are parsed.
_STREAMS = {"both": '> "{log}" 2>&1', "stdout": '> "{log}" 2> "{other}"', "stderr": '2> "{log}" > "{other}"'}


def _render_command(spec: RunSpec, index: int, workdir: str) -> str:
    command = spec.commands[index]
    name = command.name
    is_secret = spec.private is not None and name in spec.private.commands
    template = _LIMITED if _has_limit(spec) else _BARE if is_plain_call(command.text) and not is_secret else _PLAIN
    shown = f"# {_one_line(command.text)}\n" if is_secret else ""
    text = f'"$_text_{index}"' if is_secret else quote_text(command.text)
    log, other = (_log_name(each, name) for each in (spec.log_name, spec.other_log_name))
    return shown + template.format(
        name=name,
        workdir=shlex.quote(workdir if workdir.startswith("/") else f"./{workdir}"),  # `./` is safe from CDPATH
        text=_LONG.format(text) if template is _LIMITED and len(command.text) > _LONG_CHARACTERS else text,
        streams=_STREAMS[spec.log_stream].format(log=log, other=other),
        limit=_seconds(command.timeout_s),
    )


@lru_cache(64)  # the name is usually equal for all runs of a call
def _log_name(template: str, command: str) -> str:
    # a dialect may put a run's name into the name of the log
    return layout.fill_log_name(quote_inside(template, "double"), command, "$_s", "$ASSAY_TIME")


def is_plain_call(text: str) -> bool:
    """Return whether a text is one program with plain words, as in `python train.py --lr 0.1`."""
    return re.fullmatch(_PLAIN_CALL, text) is not None and text.split(maxsplit=1)[0] not in SHELL_WORDS


def quote_text(text: str) -> str:
    """Quote always with single quotes, so that a command is readable in the script."""
    return "'" + text.replace("'", "'\\''") + "'"


def _has_limit(spec: RunSpec) -> bool:
    return spec.timeout_s is not None or any(command.timeout_s is not None for command in spec.commands)


def _seconds(limit_s: float | None) -> int:
    """Return a limit in whole seconds, rounded up; 0 means no limit."""
    return 0 if limit_s is None else max(1, -int(-limit_s // 1))


def _one_line(text: str) -> str:
    return " ".join(text.split()) if text.isprintable() else repr(text)
