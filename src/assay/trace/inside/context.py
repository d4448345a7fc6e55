"""`with record("trace-a"):` in a program of your own."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any


@contextmanager
def record(
    folder: str | os.PathLike[str],
    *,
    steps: Iterable[int] = (1,),
    level: str = "module",
    only: Iterable[str] = (),
    keep: Iterable[str] = (),
    inside: bool = False,
    placement: Mapping[str, str] | None = None,
) -> Iterator[None]:
    """Record these steps of what the block does, counted from its beginning, in `FOLDER/trace/rank-R/`.

    `level`: step, module or op. `only` and `keep`: patterns of module paths: what is recorded, what is kept as whole
    tensors. `placement`: patterns, and how ranks share what matches: S(0), I(0), R, P(sum), P(avg).
    `assay trace show FOLDER` and `assay trace diff FOLDER OTHER` read it.
    """
    from assay.trace.inside.recorder import start_recorder

    if level not in ("step", "module", "op"):
        raise ValueError(f"level {level!r} is not one of step, module, op")
    problems: list[str] = []

    def note(event: str, **facts: Any) -> None:
        problems.extend([f"{event}: {facts.get('text')}"])

    settings = {"steps": list(steps), "level": level, "in": list(only), "keep": list(keep), "inside": inside}
    settings["placement"] = list((placement or {}).items())
    recorder = start_recorder(os.path.join(os.fspath(folder), "trace"), settings, note)
    try:
        yield
    finally:
        recorder.close()
        for each in problems:
            warnings.warn(f"assay.trace: {each}", stacklevel=3)
