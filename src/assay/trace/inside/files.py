"""Writes the files of a trace in the traced process: files are only appended to, and readable after a kill."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import itertools
import json
import os
import struct
from typing import Any

FORMAT = 1
HEAD = struct.Struct("<8I")  # point, step, flags, spare, four inputs
COUNT = struct.Struct("<Q")
ROW_BYTES = 344


class TraceFiles:
    """The folder of one process: `trace.json`, `points.jsonl`, `rows.bin`, `steps.jsonl`, `weights.*`."""

    def __init__(self, parent: str, rank: int, facts: dict[str, Any]) -> None:
        # each process gets a new folder: several processes may have the same rank, one after another
        os.makedirs(parent, exist_ok=True)
        for number in itertools.count(1):
            self.folder = os.path.join(parent, f"rank-{rank}" if number == 1 else f"rank-{rank}.{number}")
            with contextlib.suppress(FileExistsError):
                os.mkdir(self.folder)
                break
        with open(os.path.join(self.folder, "trace.json"), "w", encoding="utf-8") as file:
            file.write(json.dumps({"format": FORMAT, **facts}))

    def append(self, name: str, data: bytes) -> None:
        """Append data with one write: text after a cut is never read. No file stays open: the program may close it."""
        with open(os.path.join(self.folder, name), "ab", buffering=0) as file:
            if file.write(data) != len(data):
                raise OSError(errno.ENOSPC, "only a part was written", name)

    def append_lines(self, name: str, lines: list[Any]) -> None:
        if lines:
            self.append(name, "".join(f"{json.dumps(each)}\n" for each in lines).encode())

    def append_weights(self, found: list[tuple[dict[str, Any], Any]]) -> None:
        """Append hashes of rows, given as tensors of int64, with the facts of their parameters."""
        lines, offset = [], 0
        for facts, hashes in found:
            self.append("weights.bin", ctypes.string_at(hashes.data_ptr(), 8 * len(hashes)))
            lines.append({**facts, "rows": len(hashes), "offset": offset})
            offset += len(hashes)
        self.append_lines("weights.jsonl", lines)


def build_row(point: int, step: int, flags: int, inputs: tuple[int, ...], count: int, digest: bytes) -> bytes:
    """Build one row of `rows.bin`; `digest` is a slot of 304 bytes."""
    head = HEAD.pack(point, step, flags, 0, *(*inputs, 0, 0, 0, 0)[:4])
    return head + digest[:8] + COUNT.pack(count) + digest[8:]
