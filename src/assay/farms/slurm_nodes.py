"""Nodes of Slurm that do not answer, those that a run avoids, and jobs that Slurm starts again by itself.

An attempt on a node that does not answer cannot be seen or ended. It is given up after `lost_after`, or as soon as
Slurm ended or requeued its job: a `stop.N` of the kind `fence` is written, which the first copy obeys when it wakes up
and sees the folder, and the next attempt starts on another node.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from assay.farms.slurm_queue import call, load_nodes
from assay.show.formatting import render_duration
from assay.system.fast_dataclasses import dataclass, field

REQUEUED_BY = "Slurm, which started it again"  # in `stop.N`, if a second copy of the attempt's own job wrote it
_MOST_NAMED = 3
_EXCLUDE = r"(?:--exclude=?|-x=?)(?P<nodes>.*)"


@dataclass(slots=True)
class SilentNodes:
    """How long nodes have not answered. Each is reported when it stops answering and when it answers again."""

    lost_after_s: float
    messages: list[str]
    _since: dict[str, float] = field(default_factory=dict)

    def note(self, down: Mapping[str, str], runs: Mapping[str, Sequence[str]]) -> None:
        """Record which nodes do not answer (`down`); `runs`: names of runs by the host that has begun them."""
        for host in [host for host in self._since if host not in down]:
            del self._since[host]
            self.messages.append(f"the node {host} answers Slurm again")
        for host in (host for host in runs if host in down and host not in self._since):
            self._since[host] = time.monotonic()
            shown = ", ".join(runs[host][:_MOST_NAMED]) + (", …" if len(runs[host]) > _MOST_NAMED else "")
            self.messages.append(
                f"the node {host} does not answer Slurm; what runs there ({shown}) is started again elsewhere when "
                f"Slurm has ended its job, or after {render_duration(self.lost_after_s)}"
            )

    def has_lost(self, host: str) -> bool:
        """Return whether the node has not answered for so long that its runs are started again elsewhere."""
        since = self._since.get(host)
        return since is not None and time.monotonic() - since >= self.lost_after_s


def build_exclusion(flags: Sequence[str], hosts: Iterable[str]) -> list[str]:
    """Return `--exclude` for the farm's excluded nodes and those on which a run was lost; nothing if no other node
    could run it. sbatch takes the last of several such options."""
    nodes = [name for host, name in load_nodes("%N").items() if host in set(hosts)]
    if not nodes:
        return []
    option = f"--exclude={','.join([*_find_excluded(flags), *nodes])}"
    answer = call(("sbatch", "--test-only", "--output=/dev/null", *flags, option, "--wrap=true"))
    return [option] if answer.returncode == 0 else []


def _find_excluded(flags: Sequence[str]) -> list[str]:
    """Return the value of the last `--exclude` or `-x`, which may be the next argument."""
    found: list[str] = []
    for flag, following in pairwise([*flags, ""]):
        if match := re.fullmatch(_EXCLUDE, flag):
            found = [match["nodes"] or following]
    return found


# What Slurm starts again runs as the next attempt, where no supervisor has begun that one: `lease.N` is linked by one
# of both. It does nothing where the run was stopped, concluded, taken back or has failed, and where its next attempt
# has to begin with a checkpoint; what had not begun just begins. The first copy may live on, out of Slurm's reach: it
# is fenced, and has another job.log from now on.
REQUEUED = r"""
_raise() {  # PLACE: in the run's directory; makes the task that of the next attempt, or ends the job
  local first uid n m host lease done= left name text pattern now=${EPOCHREALTIME:-$(date +%s.%N)}
  pattern='ASSAY_ATTEMPT=([0-9a-f]+)\.([0-9]+)'; [[ ${_task[1]} =~ $pattern ]] || return
  uid=${BASH_REMATCH[1]} first=${BASH_REMATCH[2]} n=$first
  while [ -e "lease.$((n + 1))" ]; do
    n=$((n + 1)); read -r name < "submit.log.$n"; [ "$name" = "$1" ] || exit 0  # a supervisor has submitted it
  done
  lease=$(< "lease.$n") m=$n
  pattern='"skips": "([^"]*)"'; [[ $lease =~ $pattern ]] && done=${BASH_REMATCH[1]}
  if [ -s "token.$n" ]; then
    m=$((n + 1)); read -r host _ < "token.$n"
    [ "$host" != - ] && [ ! -e "stop.$n" ] && [ ! -e "outcome.$n" ] || exit 0
    [ -z "${_task[2]}" ] || exit 0  # a supervisor chooses the checkpoint that it goes on with
    pattern='^([A-Za-z0-9_-]+)\.exit\.([0-9]+)$'; [ "$n" = 1 ] || pattern=${pattern/.exit/.$n\\.exit}
    for name in *.exit.*; do
      [[ $name =~ $pattern ]] || continue
      [ "${BASH_REMATCH[2]}" = 0 ] || exit 0
      done+=:${BASH_REMATCH[1]}:
    done
    pattern='in \*:([A-Za-z0-9_-]+):\*\)' left=
    while IFS= read -r text; do
      [[ $text =~ $pattern ]] && [[ $done != *":${BASH_REMATCH[1]}:"* ]] && left=1
    done < job.sh
    [ -n "$left" ] || exit 0  # all commands have ended well
    text="\"why\": \"Slurm started its job again on $HOSTNAME\", \"kind\": \"fence\", \"at\": ${now/,/.}"
    _publish "stop.$n" "{\"who\": \"{by}\", $text}" || exit 0
    cp job.log ".tmp-log.$m" 2>/dev/null && mv -f ".tmp-log.$m" job.log
    _exchange '"attempt": [0-9]+' "\"attempt\": $m"
    _exchange '"tag": "[^"]*"' "\"tag\": \"$uid.$m\""
    _exchange '"skips": (null|"[^"]*")' "\"skips\": \"$done\""
    _exchange '"started_at": [0-9.]+' "\"started_at\": ${now/,/.}"
    _publish "lease.$m" "$lease" || exit 0
    echo "$1" > "submit.log.$m"
  fi
  text="ASSAY_TIME= ASSAY_DONE='$done' ASSAY_ATTEMPT=$uid.$m ASSAY_ATTEMPT_NUMBER=$m"
  [ "$m" = "$first" ] || _task[1]=${_task[1]/ exec bash / "$text" exec bash }
}
_exchange() { [[ $lease =~ $1 ]] && lease=${lease/"${BASH_REMATCH[0]}"/"$2"}; }
_publish() {
  echo "$2" > ".tmp-$1.$$" && ln ".tmp-$1.$$" "$1" 2>/dev/null
  local code=$?; rm -f ".tmp-$1.$$"; return $code
}
_requeue() {  # SUFFIX of its place: ends the shell where the run goes on without it
  [ "${SLURM_RESTART_COUNT:-0}" != 0 ] || return
  cd -- "${_task[0]}" || exit 4
  _raise "{id} ${SLURM_ARRAY_TASK_ID:--}$1"
}
"""
