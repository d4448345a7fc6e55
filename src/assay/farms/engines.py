"""The engines that farms name (`--on slurm|ray|ssh:HOST`), and the keys that a section of each may have.

One table: readers of files take the keys and their kinds from it, each executor finds the values in `Farm.options`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from assay.execute.registry import find_executor
from assay.plugins import merge

# how a value is written, and what it becomes in `Farm.options`:
# count: whole number from 1; amount: whole number from 0; number: from 0, fractions allowed; text; texts: one or a
# list, a tuple; duration: seconds; size: bytes; switch: true or false; numbers: a mapping of names to numbers;
# counts and amounts: one for all hosts, or a mapping of hosts to them
KeyKind = Literal[
    "count", "amount", "number", "text", "texts", "duration", "size", "switch", "numbers", "counts", "amounts"
]

ENGINES: Mapping[str, Mapping[str, KeyKind]] = {
    "slurm": {
        "partition": "text",
        "account": "text",
        "qos": "text",
        "constraint": "text",
        "time": "duration",
        "gpus": "amount",
        "cpus": "count",
        "memory": "size",
        "nodes": "count",
        "throttle": "count",
        "signal": "text",
        "flags": "texts",
    },
    "ray": {
        "address": "text",
        "gpus": "number",
        "cpus": "number",
        "memory": "size",
        "resources": "numbers",
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
REQUIRED: Mapping[str, tuple[str, ...]] = {"ssh": ("hosts",)}
SSH_PREFIX = "ssh:"


def find_engines() -> Mapping[str, Mapping[str, Any]]:
    """Ours, and the executors of other plug-ins with the keys that they declare."""
    others = [name for name in merge("executors") if name not in (*ENGINES, "submit")]
    return {**ENGINES, **{name: find_executor(name).keys for name in others}}
