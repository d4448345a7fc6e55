"""From flags to a request about a torch module, `net.py:build`."""

from __future__ import annotations

import os
from typing import Literal

from assay.errors import UsageError
from assay.models.config.settings import NO_VOTER, parse_tolerance_text
from assay.models.config.targets import list_target_names
from assay.models.flow.discovery import load_project
from assay.models.flow.targets import load_checked_target
from assay.models.values.flags import ModelFlags
from assay.models.values.model import Flags, InputChoice, ModelRequest, StepLimits, Target
from assay.system.fast_dataclasses import replace

BACKEND = "torch"
_RUN_S = 900.0  # torch.compile is a part of it
DEFAULT_REFERENCE = "torch"
FLOAT64 = Target("torch-float64", BACKEND, {"precision": "float64"})  # votes
_OTHERS = (  # what only an ONNX model has
    "inputs function ranges dims keep_dims groups compile_flags run_flags ir_dir compile_profile_dir run_profile_dir "
    "recompute"
)


def build_torch_request(
    flags: ModelFlags, goal: Literal["check", "compare", "bisect", "reduce"], limits: StepLimits
) -> ModelRequest:
    """Raises UsageError for what cannot be meant, before anything runs."""
    path, _, name = flags.model.rpartition(":")
    if not os.path.isfile(path):
        raise UsageError(
            f"there is no file {path}", f"write a file with a function {name}() that returns (module, inputs)"
        )
    strange = [flags.OPTIONS[field].names[0] for field in _OTHERS.split() if getattr(flags, field)]
    if strange:
        raise UsageError(f"{', '.join(strange)}: not for a torch module", "build() returns the module with its inputs")
    settings = load_project(os.getcwd()).settings
    reference = load_torch_target(flags.reference or DEFAULT_REFERENCE)
    target = load_torch_target(flags.target or _refuse_nothing())
    voter = FLOAT64 if flags.vote in (None, NO_VOTER) else load_torch_target(str(flags.vote))
    if flags.ops and "rewrite" in target.options:
        raise UsageError("--ops compares ops of one graph: another implementation has others", "omit --ops")
    tolerances, _ = settings.choose(os.path.splitext(os.path.basename(path))[0])
    for text in flags.tolerances:
        tolerances = parse_tolerance_text(text, tolerances)
    return ModelRequest(
        model=f"{os.path.abspath(path)}:{name}",
        reference=reference,
        target=target,
        voter=None if flags.vote == NO_VOTER else voter,
        goal=goal,
        inputs=InputChoice(samples=flags.samples or 1, seed=InputChoice().seed if flags.seed is None else flags.seed),
        tolerances=tolerances,
        only=flags.only,
        limits=replace(limits, run_s=flags.run_timeout_s or _RUN_S),
        repeats=flags.repeats,
        explain=flags.explain,
        output=os.path.abspath(flags.output) if flags.output else "",
        folder=os.getcwd(),
        manner=build_manner(flags, target),
        origin=tuple(
            (flag, str(value))
            for flag, value in (("--samples", flags.samples), ("--seed", flags.seed))
            if value is not None
        ),
        ops=flags.ops,
        backward=not flags.forward,
    )


def build_manner(flags: ModelFlags, target: Target) -> Flags:
    given = [
        ("--reference", flags.reference),
        ("--target", target.name),
        ("--vote", flags.vote),
        *(("--tolerance", text) for text in flags.tolerances),
    ]
    switches = [("--ops", flags.ops), ("--forward", flags.forward)]
    return (*((flag, value) for flag, value in given if value), *((flag, "") for flag, is_on in switches if is_on))


def is_torch_target(text: str, folder: str) -> bool:
    """Raises NotFoundError for a target that nobody knows."""
    return _is_rewrite(text) or load_checked_target(text, folder).backend == BACKEND


def _is_rewrite(text: str) -> bool:
    return ":" in text and text not in list_target_names()


def load_torch_target(text: str) -> Target:
    """One that computes torch modules, or `module:Class`. Raises NotFoundError, or UsageError for another one."""
    if _is_rewrite(text):
        return Target(text, BACKEND, {"rewrite": _find_file(text), "folder": os.getcwd()})
    target = load_checked_target(text)
    if target.backend != BACKEND:
        known = [name for name in list_target_names() if name.startswith("torch-")]
        raise UsageError(
            f"{text} computes ONNX models, not torch modules", f"choose {', '.join(known)} or module:Class"
        )
    return target


def _find_file(text: str) -> str:
    source, _, name = text.rpartition(":")
    return f"{os.path.abspath(source)}:{name}" if source.endswith(".py") else text


def _refuse_nothing() -> str:
    raise UsageError("which target?", "name one: --target torch-compile, torch-bf16, torch-cuda or module:Class")
