"""A run's identity: what it computes. The hash is stable for ever; run directories carry it."""

from __future__ import annotations

import json
from collections.abc import Iterable

from assay.system.files import blake2b
from assay.values.run import Command
from assay.values.study import Params, Value

ID_BYTES = 8

_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, default=str).encode


def canonical(value: Value) -> str:
    """JSON in one fixed spelling: 1, 1.0, true and "1" all differ, the order of keys does not matter."""
    return _encode(value)


def spec_id(commands: Iterable[Command], params: Params, ordinal: int = 0) -> str:
    """The hash of commands, params and ordinal; not of limits, slots, checks or code."""
    texts = [[command.name, command.text] for command in commands]
    spelled = _encode({"commands": texts, "ordinal": ordinal, "params": dict(params)})
    return blake2b(spelled.encode("ascii"), digest_size=ID_BYTES).hexdigest()
