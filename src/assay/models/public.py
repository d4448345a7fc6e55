"""Implements `assay.check_model`."""

from __future__ import annotations

import os
from collections.abc import Sequence

from assay.values.verdict import Judgement, build_judgement

Path = str | os.PathLike[str]


def check_model(
    model: Path,
    *,
    target: str | None = None,
    reference: str | None = None,
    only: Sequence[str] = (),
    samples: int | None = None,
    seed: int | None = None,
    tolerances: Sequence[str] = (),
    root: Path | None = None,
    timeout_s: float | None = None,
) -> Judgement:
    """Compute every layer of an ONNX model, or of a torch module, `net.py:build`, on a target and on the reference, as
    `assay model check` does."""
    from assay.models.flow.options import build_request
    from assay.models.flow.run import run_model
    from assay.models.report.check import build_document
    from assay.models.values.flags import ModelFlags, RunFlags
    from assay.show.terminal_report import render_terminal

    flags = ModelFlags(
        model=os.fspath(model),
        target=target,
        reference=reference,
        samples=samples,
        seed=seed,
        tolerances=tuple(tolerances),
        only=tuple(only),
    )
    run_flags = RunFlags(root=os.fspath(root) if root is not None else None, timeout=timeout_s)
    finished = run_model(build_request(flags, "check"), run_flags)
    if finished.report is None:
        raise KeyboardInterrupt
    return build_judgement(finished.report.verdict, render_terminal(build_document(finished.report)))
