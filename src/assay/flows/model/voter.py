"""The second reference, which is asked where the target differs: one that is neither of the two.

A target that votes for itself always agrees with itself, and nothing could ever fail.
"""

from __future__ import annotations

from dataclasses import dataclass

from assay.config.models import NO_VOTER
from assay.errors import UsageError
from assay.flows.model.targets import load_checked_target
from assay.values.model import Target

_USUAL = ("reference", "ort")  # onnx's own evaluator; onnxruntime where that is the first
_TOLD = ("import", "compile", "run", "env", "chip", "hardware")  # to a program; where it runs makes no other of it
_WITH_TOOLS = ("command", "ssh")


@dataclass(frozen=True, slots=True)
class Vote:
    """Who votes; None: nobody. `note` says why a voter of the settings does not."""

    voter: Target | None = None
    note: str = ""


def choose_voter(flag: str | None, setting: str | None, reference: Target, target: Target, folder: str | None) -> Vote:
    """Raises UsageError for a flag that names one of the two. Settings serve several targets: there it is a note."""
    text = flag or setting
    if text == NO_VOTER:
        return Vote()
    if text is None:
        taken = {reference.backend, target.backend}
        return Vote(next((load_checked_target(name, folder) for name in _USUAL if name not in taken), None))
    voter = load_checked_target(text, folder)
    same = [what for what, each in (("target", target), ("reference", reference)) if is_same_engine(voter, each)]
    if not same:
        return Vote(voter)
    said = f"{text} computes as the {same[0]} does, and would always agree with it"
    if flag:
        raise UsageError(f"--vote {said}", "name another engine, or --vote none")
    return Vote(None, f"nobody votes: vote = {text!r} of the settings: {said}")


def is_same_engine(one: Target, other: Target) -> bool:
    """The same library, whatever its options: its kernels share their faults. Programs, and back ends of somebody's
    own, that are told the same; told something else, one may well compute in another way."""
    are_tools = one.backend in _WITH_TOOLS and other.backend in _WITH_TOOLS
    if not are_tools and one.backend != other.backend:
        return False
    if not are_tools and ":" not in one.backend:
        return True
    names = _TOLD if are_tools else {*one.options, *other.options}
    flags = (one.compile_flags, one.run_flags) == (other.compile_flags, other.run_flags)
    return flags and all(one.options.get(name) == other.options.get(name) for name in names)
