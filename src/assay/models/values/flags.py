"""The flags of a model check as the user gave them; a flag that was not given is None or empty."""

from __future__ import annotations

import shlex
from typing import Any

from assay.errors import UsageError
from assay.values.options import Request, argument, farm_option, option, root_option
from assay.values.units import parse_timeout

_TARGETS = (
    "ort, ort:unoptimized, reference, openvino, iree, iree:vmvx, torq, or one of your settings; for a torch module "
    "torch-compile, torch-bf16, torch-cuda, or module:Class"
)


def split_words(text: str, flag: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"{flag} {text!r}: {error}", "quotes must be closed") from None


def group_option() -> Any:
    text = "Operators that stay together.  [default: Conv,Clip]"
    return option("--group", multiple=True, metavar="OP,OP", help=text)


def only_option() -> Any:
    text = "Only these cases: names, Conv_3, or shell patterns."
    return option("--only", multiple=True, metavar="CASE", help=text)


def tolerance_option() -> Any:
    text = "rel=1e-3,abs=1e-5; Conv:rel=1e-2 for an operator; tensor=logits:top_k=5 for a tensor."
    return option("--tolerance", multiple=True, metavar="BOUNDS", help=text)


def _duration_option(flag: str, text: str) -> Any:
    return option(flag, metavar="DURATION", parse=parse_timeout, help=text)


class RunFlags(Request):
    """Flags for the run of a check, a bisection or a reduction."""

    label: str | None = option(
        "--label", metavar="TEXT", help="Label of the run, and of its times in assay bench history."
    )
    root: str | None = root_option("Where the runs go.  [default: ./runs]")
    timeout: float | None = _duration_option("--timeout", "Time limit of the whole run, as in 90s or 2h.")
    jobs: int | None = option(
        "--jobs", type=int, minimum=1, metavar="N", help="Checks at once on this machine.  [default: one per core]"
    )
    max_wait: float | None = _duration_option(
        "--max-wait", "Time limit for waiting until benchmarks and other checks have ended.  [default: 1h]"
    )
    on: str | None = farm_option()


class InputFlags(Request):
    model: str = argument()
    reference: str | None = option(
        "--reference", metavar="TARGET", help="The reference.  [default: ort; for a torch module: torch]"
    )
    samples: int | None = option(
        "--samples", type=int, minimum=1, metavar="N", help="Samples of the inputs.  [default: 1]"
    )
    seed: int | None = option(
        "--seed", type=int, minimum=0, metavar="N", help="Seed of random inputs.  [default: 1234]"
    )
    inputs: tuple[str, ...] = option(
        "--input",
        multiple=True,
        metavar="PATH",
        help="Inputs from .npy, .npz or a folder of them, one for each sample; NAME=PATH for one input.",
    )
    function: str | None = option("--function", metavar="MODULE:NAME", help="Inputs from a Python function.")
    ranges: tuple[str, ...] = option("--range", multiple=True, metavar="NAME=LOW:HIGH", help="Range of a random input.")
    dims: tuple[str, ...] = option(
        "--dim", multiple=True, metavar="NAME=SIZE", help="An open dimension (batch=4), or a shape (x=1,3,8,8)."
    )
    keep_dims: bool = option("--keep-dims", default=False, help="Leave open dimensions open in every view of a model.")
    groups: tuple[str, ...] = group_option()
    recompute: bool = option("--recompute-cache", default=False, help="Make every artifact again.")


class ModelFlags(InputFlags):
    """Flags for the model and its inputs, the target, the comparison, and the output files."""

    target: str | None = option("--target", metavar="TARGET", help=f"Target to test: {_TARGETS}.")
    only: tuple[str, ...] = only_option()
    vote: str | None = option(
        "--vote", metavar="TARGET", help="A second reference, which votes where the target differs; or none."
    )
    tolerances: tuple[str, ...] = tolerance_option()
    ops: bool = option("--ops", default=False, help="For a torch module: compute each op of its exported graph.")
    forward: bool = option("--forward", default=False, help="For a torch module: compute no gradients.")
    repeats: int = option(
        "--repeats", type=int, minimum=1, default=1, metavar="N", help="Timed executions of each case."
    )
    compile_timeout_s: float | None = _duration_option(
        "--compile-timeout", "Time limit of compiling one case.  [default: 300s]"
    )
    run_timeout_s: float | None = _duration_option("--run-timeout", "Time limit of running one case.  [default: 240s]")
    memory: str | None = option("--memory", metavar="SIZE", help="Stop a target that takes more memory, as in 8GB.")
    compile_flags: tuple[str, ...] = option(
        "--compiler-options",
        default=(),
        metavar="TEXT",
        parse=split_words,
        help="More flags for the target's compiler.",
    )
    run_flags: tuple[str, ...] = option(
        "--runtime-options", default=(), metavar="TEXT", parse=split_words, help="More flags for the target's runtime."
    )
    explain: bool = option("--debug-cache", default=False, help="Report why each artifact was a hit or a miss.")
    ir_dir: str | None = option(
        "--debug-ir", metavar="DIR", help="Dump intermediate representations, a folder per case."
    )
    compile_profile_dir: str | None = option(
        "--compile-profile", metavar="DIR", help="Write profiles of the compiler, a folder per case."
    )
    run_profile_dir: str | None = option(
        "--run-profile", metavar="DIR", help="Write profiles of the runtime, a folder per case."
    )
    output: str | None = option(
        "-o", "--output", metavar="FILE", help="Where the smallest model goes.  [default: into the run]"
    )
