"""The engines that farms name (`--on slurm|ray|ssh:HOST`), and the keys that a section of each may have.

Readers of files take the keys and their kinds from ENGINES; each executor finds the values in `Farm.options`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from assay.errors import InfrastructureError
from assay.execute.places import find_executor
from assay.plugins import merge
from assay.values.units import parse_duration

# The kinds of values: how a value is written, and what it becomes in `Farm.options`.
# count: whole number from 1; amount: whole number from 0; number: from 0, fractions allowed; text; texts: one or a
# list, a tuple; duration: seconds; size: bytes; switch: true or false; numbers: a mapping of names to numbers;
# counts and amounts: one for all hosts, or a mapping of hosts to them; signal: a text such as USR1@2m;
# devices: an amount, or TYPE:NUMBER; runtime: the runtime of a container
ENGINES: Mapping[str, Mapping[str, str]] = {
    "slurm": {
        "partition": "text",
        "account": "text",
        "qos": "text",
        "constraint": "text",
        "time": "duration",
        "gpus": "devices",
        "cpus": "count",
        "memory": "size",
        "nodes": "count",
        "tasks_per_node": "count",
        "srun_flags": "texts",
        "pack": "count",
        "container": "text",
        "runtime": "runtime",
        "mounts": "texts",
        "throttle": "count",
        "signal": "signal",
        "flags": "texts",
        "lost_after": "duration",
    },
    "ray": {
        "address": "text",
        "gpus": "number",
        "cpus": "number",
        "memory": "size",
        "resources": "numbers",
        "lost_after": "duration",
    },
    "ssh": {
        "hosts": "texts",
        "slots": "counts",
        "gpus": "amounts",
        "root": "text",
        "keep": "switch",
        "lost_after": "duration",
        "ssh_options": "texts",
    },
}
SIGNALS = ("HUP", "INT", "QUIT", "ABRT", "ALRM", "TERM", "USR1", "USR2", "URG", "CONT")  # names for sbatch
MOST_BEFORE_S = 65535  # the longest time before the limit that sbatch accepts
REQUIRED: Mapping[str, tuple[str, ...]] = {"ssh": ("hosts",)}
SSH_PREFIX = "ssh:"
LOST_AFTER_S = 600.0  # how long a host may not answer before its runs are started again elsewhere
APPTAINER, PYXIS = "apptainer", "pyxis"  # runtimes of containers


def parse_signal(text: str) -> tuple[str, int] | None:
    """Parse `USR1@2m`: the signal, and how many seconds before the time limit it is sent; None if it is invalid."""
    name, _, before = text.removeprefix("SIG").partition("@")
    seconds = parse_duration(before)
    return (name, max(1, int(seconds))) if name in SIGNALS and seconds and seconds <= MOST_BEFORE_S else None


def find_engines() -> Mapping[str, Mapping[str, str]]:
    """Return the engines of this plug-in, and the executors of other plug-ins with the keys that they declare."""
    found = dict(ENGINES)
    for name in merge("executors"):
        if name not in (*ENGINES, "submit"):
            with suppress(InfrastructureError):  # `assay doctor` names it
                found[name] = find_executor(name).keys
    return found
