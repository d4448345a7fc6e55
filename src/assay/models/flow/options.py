"""Builds a request from flags and settings: a flag overrides the project's settings."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from typing import Literal

from assay.errors import UsageError
from assay.models.config.settings import DEFAULT_REFERENCE, NO_VOTER, ModelSettings, parse_tolerance_texts
from assay.models.config.targets import list_target_names
from assay.models.flow.discovery import (
    KnownNames,
    Project,
    find_models,
    find_unknown_stems,
    join_names,
    list_names,
    list_stems,
    load_project,
    refuse_unknown_flags,
    refuse_unknown_of_all,
    refuse_unknown_of_model,
)
from assay.models.flow.targets import choose_voter, load_checked_target, load_reference
from assay.models.graph.graph import build_outline
from assay.models.store.artifacts import choose_store_folder, parse_limit
from assay.models.values.flags import ModelFlags
from assay.models.values.model import (
    DEFAULT_GROUPS,
    Flags,
    InputChoice,
    ModelRequest,
    StepLimits,
    Target,
    Tolerances,
    is_torch_model,
)
from assay.models.values.tensors import Tolerance
from assay.system.fast_dataclasses import fields, replace

Goal = Literal["check", "compare", "bisect", "reduce"]
TORCH = "torch"  # the back end of torch modules, and the name of their reference
FLOAT64 = Target("torch-float64", TORCH, {"precision": "float64"})  # the second reference for torch modules
_TORCH_RUN_S = 900.0  # includes the time of torch.compile
_OTHERS = (  # flags that only apply to ONNX models
    "inputs function ranges dims keep_dims groups compile_flags run_flags ir_dir compile_profile_dir run_profile_dir "
    "recompute"
)


def build_request(flags: ModelFlags, goal: Goal) -> ModelRequest:
    """Build the request. Raises UsageError for invalid flags before anything runs."""
    _check_flags(flags, goal)
    if is_torch_model(flags.model):
        return build_torch_request(flags, goal)
    project = load_project(os.getcwd())
    settings = project.settings
    stem = os.path.splitext(os.path.basename(flags.model))[0]
    tolerances, inputs = settings.choose(stem)
    reference = load_reference(flags.reference or settings.reference or DEFAULT_REFERENCE)
    target = _choose_target(flags, settings)
    held = parse_tolerance_texts(flags.tolerances, tolerances)
    groups = choose_groups(flags.groups, settings.groups)
    known = list_names(build_outline(flags.model, groups=groups)) if held.by_op or held.by_tensor else KnownNames()
    others = list_stems(project.folders) if settings.models else []
    notes = [*_judge_names(flags, project, stem, known), *find_unknown_stems(settings, [stem, *others])]
    vote = choose_voter(flags.vote, settings.vote, reference, target, None)
    is_own = tolerances != settings.tolerances  # tolerances of the model's own table do not apply to another file
    # tolerances for names of other models, which settings may contain, are left out
    kept = [text for text in render_tolerances(held) if known.covers(parse_tolerance_texts([text]))]
    return replace(
        _begin_request(flags, goal, reference, target, held, StepLimits()),
        voter=vote.voter,
        inputs=_choose_inputs(flags, inputs),
        groups=groups,
        store=choose_store_folder(os.environ, os.getcwd()),
        manner=build_manner(flags, reference.name, target, kept if is_own else flags.tolerances),
        notes=(*notes, *([vote.note] if vote.note else [])),
    )


def _begin_request(
    flags: ModelFlags, goal: Goal, reference: Target, target: Target, tolerances: Tolerances, limits: StepLimits
) -> ModelRequest:
    """Build the common part of requests for ONNX models and for torch modules."""
    words = flags.render_words(("samples", "seed", "inputs", "ranges", "dims", "groups", "function"))
    switches = [("--keep-dims", "")] if flags.keep_dims else []
    return ModelRequest(
        os.path.abspath(flags.model),
        reference,
        target,
        goal=goal,
        tolerances=tolerances,
        limits=replace(
            limits,
            compile_s=flags.compile_timeout_s or limits.compile_s,
            run_s=flags.run_timeout_s or limits.run_s,
            memory_bytes=_parse_memory(flags.memory) if flags.memory else None,
        ),
        output=_absolute(flags.output) or "",
        folder=os.getcwd(),
        origin=(*zip(words[::2], words[1::2], strict=True), *switches),
        backward=not flags.forward,
        ir_dir=_absolute(flags.ir_dir),
        compile_profile_dir=_absolute(flags.compile_profile_dir),
        run_profile_dir=_absolute(flags.run_profile_dir),
        **{name: getattr(flags, name) for name in ("only", "repeats", "recompute", "explain", "ops")},
    )


def check_file(path: str) -> None:
    if path.endswith(".py"):
        raise UsageError(f"{path} is not an ONNX model", f"name the function too: {path}:build")
    if not os.path.exists(path):
        raise UsageError(f"there is no model {path}", "give the path of an ONNX file")
    if not os.path.isfile(path):
        raise UsageError(f"{path} is a folder, not a model", "give the path of an ONNX file")
    if not os.path.getsize(path):
        raise UsageError(f"{path} is not an ONNX model: the file is empty", "export or download it again")


def _check_flags(flags: ModelFlags, goal: Goal) -> None:
    if not is_torch_model(flags.model):
        if flags.ops or flags.forward:
            raise UsageError("--ops and --forward are for a torch module", "give it as net.py:build")
        check_file(flags.model)
    if flags.only and goal not in ("check", "compare"):
        raise UsageError(f"--only is for check: {goal} looks for the layer itself", "omit it")
    if flags.function and flags.inputs:
        raise UsageError("inputs come from files or from a function, not from both", "give --input or --function")


def _judge_names(flags: ModelFlags, project: Project, stem: str, known: KnownNames) -> tuple[str, ...]:
    """Raise UsageError for tolerances of unknown names. Names in the settings for all models may be in any model of the
    project; if the project has no other models, a note about unknown names is returned."""
    settings = project.settings
    refuse_unknown_flags(flags.tolerances, known)
    refuse_unknown_of_model(settings, stem, known)
    others = [] if known.covers(settings.tolerances) else find_models(project.folders, settings.groups)
    try:
        refuse_unknown_of_all(settings, join_names([known, *(each.names for each in others)]))
    except UsageError as error:
        if others:
            raise
        return (error.render().replace("\n  ", "; "),)
    return ()


def build_split_request(flags: ModelFlags) -> ModelRequest:
    """Build a request in which the reference is its own target, so that no other target runs."""
    name = flags.reference or load_project(os.getcwd()).settings.reference or DEFAULT_REFERENCE
    return build_request(flags.replace(target=name, vote=NO_VOTER), "check")


def _choose_target(flags: ModelFlags, settings: ModelSettings) -> Target:
    text = flags.target or (settings.targets[0] if settings.targets else None)
    if text is None:
        raise UsageError(
            "which target?", 'name one with --target, or in the settings: [tool.assay.models] targets = ["iree"]'
        )
    target = load_checked_target(text)
    if target.backend == TORCH:
        raise UsageError(f"{text} computes torch modules, not ONNX models", "give the model as net.py:build")
    return replace(
        target,
        compile_flags=(*target.compile_flags, *flags.compile_flags),
        run_flags=(*target.run_flags, *flags.run_flags),
    )


def _choose_inputs(flags: ModelFlags, base: InputChoice) -> InputChoice:
    files = tuple(map(_absolute_input, flags.inputs)) or base.files
    return InputChoice(
        samples=flags.samples or base.samples,
        seed=base.seed if flags.seed is None else flags.seed,
        ranges={**base.ranges, **dict(map(parse_range, flags.ranges))},
        dims={**base.dims, **dict(map(parse_dim, flags.dims))},
        files=files,
        function=flags.function or base.function,
        most=flags.samples if files else None,
        keep_dims=flags.keep_dims or base.keep_dims,
    )


def build_torch_request(flags: ModelFlags, goal: Goal) -> ModelRequest:
    """Build the request for a torch module. Raises UsageError for invalid flags before anything runs."""
    path, _, name = flags.model.rpartition(":")
    if not os.path.isfile(path):
        raise UsageError(
            f"there is no file {path}", f"write a file with a function {name}() that returns (module, inputs)"
        )
    strange = [flags.OPTIONS[field].names[0] for field in _OTHERS.split() if getattr(flags, field)]
    if strange:
        raise UsageError(f"{', '.join(strange)}: not for a torch module", "build() returns the module with its inputs")
    settings = load_project(os.getcwd()).settings
    reference = load_torch_target(flags.reference or TORCH)
    if flags.target is None:
        raise UsageError("which target?", "name one: --target torch-compile, torch-bf16, torch-cuda or module:Class")
    target = load_torch_target(flags.target)
    voter = FLOAT64 if flags.vote in (None, NO_VOTER) else load_torch_target(str(flags.vote))
    if flags.ops and "rewrite" in target.options:
        raise UsageError("--ops compares ops of one graph: another implementation has others", "omit --ops")
    tolerances, _ = settings.choose(os.path.splitext(os.path.basename(path))[0])
    held = parse_tolerance_texts(flags.tolerances, tolerances)
    return replace(
        _begin_request(flags, goal, reference, target, held, StepLimits(run_s=_TORCH_RUN_S)),
        voter=None if flags.vote == NO_VOTER else voter,
        inputs=_choose_inputs(flags, InputChoice()),
        manner=build_manner(flags, flags.reference, target, flags.tolerances),
    )


def is_torch_target(text: str, folder: str) -> bool:
    """Return whether the target computes torch modules. Raises NotFoundError for an unknown target."""
    return _is_rewrite(text) or load_checked_target(text, folder).backend == TORCH


def _is_rewrite(text: str) -> bool:
    return ":" in text and text not in list_target_names()


def load_torch_target(text: str) -> Target:
    """Load a target for torch modules, or `module:Class`. Raises NotFoundError, or UsageError for ONNX targets."""
    if _is_rewrite(text):
        source, _, name = text.rpartition(":")
        place = f"{os.path.abspath(source)}:{name}" if source.endswith(".py") else text
        return Target(text, TORCH, {"rewrite": place, "folder": os.getcwd()})
    target = load_checked_target(text)
    if target.backend != TORCH:
        known = [name for name in list_target_names() if name.startswith("torch-")]
        raise UsageError(
            f"{text} computes ONNX models, not torch modules", f"choose {', '.join(known)} or module:Class"
        )
    return target


def build_manner(flags: ModelFlags, reference: str | None, target: Target, tolerances: Sequence[str]) -> Flags:
    """Return flags that make the same request for another model."""
    limits = (("--compile-timeout", flags.compile_timeout_s), ("--run-timeout", flags.run_timeout_s))
    given = [
        ("--reference", reference),
        ("--target", target.name),
        ("--vote", flags.vote),
        *(("--tolerance", text) for text in tolerances),
        *((flag, f"{seconds:g}s") for flag, seconds in limits if seconds is not None),
        ("--memory", flags.memory),
        ("--compiler-options=", shlex.join(flags.compile_flags)),
        ("--runtime-options=", shlex.join(flags.run_flags)),
    ]
    switches = [("--ops", flags.ops), ("--forward", flags.forward)]
    return (*((flag, value) for flag, value in given if value), *((flag, "") for flag, is_on in switches if is_on))


def render_tolerances(tolerances: Tolerances) -> list[str]:
    """Return the values of `--tolerance` that give these tolerances; defaults are left out."""
    texts = [("", tolerances.model), *tolerances.by_op.items()]
    texts += [(f"tensor={name}", each) for name, each in tolerances.by_tensor.items()]
    default = Tolerance()
    rendered = []
    for head, each in texts:
        given = [(field.name, getattr(each, field.name), getattr(default, field.name)) for field in fields(each)]
        pairs = ",".join(f"{name}={str(value).lower()}" for name, value, usual in given if value != usual)
        rendered += [f"{head}:{pairs}" if head else pairs] if pairs else []
    return rendered


def parse_range(text: str) -> tuple[str, tuple[float, float]]:
    match = re.fullmatch(r"(?P<name>.+)=(?P<low>[^:=]+):(?P<high>[^:=]+)", text)
    try:
        pair = (float(match["low"]), float(match["high"])) if match else None
    except ValueError:
        pair = None
    if match is None or pair is None or not pair[0] <= pair[1]:
        raise UsageError(f"--range {text} is not a range", "write NAME=LOW:HIGH, as in image=0:255")
    return match["name"], pair


def parse_dim(text: str) -> tuple[str, int | tuple[int, ...]]:
    name, equals, sizes = text.rpartition("=")
    numbers = re.split(r"[,x]", sizes)
    if not equals or not name or not all(number.isdecimal() for number in numbers):
        raise UsageError(
            f"--dim {text} is not a size", "write batch=4 for an open dimension, image=1,3,48,192 for a whole input"
        )
    return name, int(sizes) if len(numbers) == 1 else tuple(map(int, numbers))


def choose_groups(
    texts: Sequence[str], default: tuple[tuple[str, ...], ...] = DEFAULT_GROUPS
) -> tuple[tuple[str, ...], ...]:
    groups = tuple(tuple(op.strip() for op in text.split(",")) for text in texts)
    for text, group in zip(texts, groups, strict=True):
        if len(group) < 2 or not all(group):
            raise UsageError(f"--group {text}: a group has at least two operators", "as in --group Conv,Relu")
    return groups or default


def _parse_memory(text: str) -> int:
    try:
        return parse_limit(text)
    except UsageError:
        raise UsageError(f"--memory {text} is not a size", "for example 8GB or 512MiB") from None


def _absolute_input(text: str) -> str:
    """Make the path in `PATH` absolute, or in `NAME=PATH` if there is no file of that name."""
    name, equals, path = text.rpartition("=")
    if not equals or os.path.exists(text):
        name, equals, path = "", "", text
    if not os.path.exists(path):
        raise UsageError(f"--input {text}: there is no {path}", "give a .npy or .npz file, or a folder of them")
    return f"{name}{equals}{os.path.abspath(path)}"


def _absolute(path: str | None) -> str | None:
    return None if path is None else os.path.abspath(path)
