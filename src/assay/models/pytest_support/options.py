"""Options for models: the Torq tests' own spellings beside ours.

A name that somebody else has registered stays theirs, and ours is left out: installing Assay breaks nobody's pytest.
"""

from __future__ import annotations

import argparse
import os
import shlex
from dataclasses import dataclass, field
from typing import Any

import pytest

GROUP = "assay-models"
_PREFIX = "assay_model_"
_CACHE_WORD = "\0cache"  # --debug-ir without a folder


@dataclass(frozen=True, slots=True)
class Option:
    key: str  # of ModelOptions
    names: tuple[str, ...]
    help: str
    how: dict[str, Any] = field(default_factory=dict)

    @property
    def dest(self) -> str:
        return _PREFIX + self.key


def parse_seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no time in seconds")
    return seconds


def parse_count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 on")
    return int(text)


def parse_flags(text: str) -> tuple[str, ...]:
    """Several in one text, as a shell would split them."""
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None


_FLAG: dict[str, Any] = {"action": "store_true"}
_FOLDER: dict[str, Any] = {"metavar": "DIR"}
_WORDS: dict[str, Any] = {"action": "append", "type": parse_flags, "metavar": "FLAGS"}
_SECONDS: dict[str, Any] = {"type": parse_seconds, "metavar": "SECONDS"}
_SEVERAL: dict[str, Any] = {"action": "append"}

OPTIONS = (
    Option(
        "folders", ("--model-folder",), "where .onnx files lie; may be given several times", {**_SEVERAL, **_FOLDER}
    ),
    Option("reference", ("--assay-reference",), "what is right: ort, reference, iree, …", {"metavar": "TARGET"}),
    Option(
        "targets", ("--assay-target",), "what is tested; may be given several times", {**_SEVERAL, "metavar": "TARGET"}
    ),
    Option("samples", ("--samples",), "inputs to try for each model", {"type": parse_count, "metavar": "N"}),
    Option("recompute", ("--recompute-cache",), "make every artifact anew", _FLAG),
    Option("debug_cache", ("--debug-cache",), "say why each artifact was a hit or a miss", _FLAG),
    Option(
        "ir_dir",
        ("--debug-ir",),
        "dump intermediate representations, into a sub-folder for each case",
        {"nargs": "?", "const": _CACHE_WORD, **_FOLDER},
    ),
    Option(
        "compile_profile_dir",
        ("--compile-profile", "--torq-compile-time-profiling-output-dir"),
        "profile compilations, into a sub-folder for each case",
        _FOLDER,
    ),
    Option(
        "run_profile_dir",
        ("--run-profile", "--torq-runtime-profiling-output-dir"),
        "profile runs, into a sub-folder for each case",
        _FOLDER,
    ),
    Option(
        "hardware",
        ("--hardware-type", "--torq-runtime-hw-type"),
        "hardware to run on (default: sim); several with commas",
        {"metavar": "TYPE"},
    ),
    Option("address", ("--board", "--torq-addr"), "a board that ssh reaches: user@host", {"metavar": "ADDRESS"}),
    Option("port", ("--board-port", "--torq-port"), "its port", {"type": parse_count, "metavar": "PORT"}),
    Option("key", ("--board-key", "--torq-private-key"), "the private key for it", {"metavar": "FILE"}),
    Option("chips", ("--chips", "--torq-chips"), "chips to compile for: a,b, all, or a group", {"metavar": "CHIPS"}),
    Option("compile_flags", ("--extra-compiler-options", "--extra-torq-compiler-options"), "of the target", _WORDS),
    Option("run_flags", ("--extra-runtime-options", "--extra-torq-runtime-options"), "of the target", _WORDS),
    Option("llvmcpu_compile_flags", ("--llvmcpu-compiler-options",), "of IREE as the reference", _WORDS),
    Option("llvmcpu_run_flags", ("--llvmcpu-runtime-options",), "of IREE as the reference", _WORDS),
    Option(
        "compile_s", ("--compile-timeout", "--torq-compiler-timeout"), "of one compilation (default: 300)", _SECONDS
    ),
    Option("run_s", ("--run-timeout", "--torq-runtime-timeout"), "of one run (default: 240)", _SECONDS),
    Option("try_xfails", ("--try-xfails",), "run the cases that are expected to fail", _FLAG),
    Option("issue", ("--issue",), "run those whose failure is linked to this issue", {"metavar": "NUMBER"}),
    Option(
        "report_file",
        ("--report-output-file",),
        "keep the results as Torq's dashboard takes them",
        {"metavar": "FILE"},
    ),
)


def add_options(parser: pytest.Parser) -> None:
    """Under the names that are free."""
    taken = _find_taken(parser)
    group = parser.getgroup(GROUP, "models, layer by layer (Assay)")
    for option in OPTIONS:
        free = [name for name in option.names if name not in taken]
        if free:
            group.addoption(*free, dest=option.dest, help=option.help, default=None, **option.how)


def _find_taken(parser: pytest.Parser) -> set[str]:
    groups = [*parser._groups, parser._anonymous]  # noqa: SLF001 pytest has no other way to ask
    return {name for group in groups for option in group.options for name in option.names()}


# ---------------------------------------------------------------- as they were given


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """None and empty: not given. Folders are absolute."""

    folders: tuple[str, ...] = ()
    reference: str | None = None
    targets: tuple[str, ...] = ()
    samples: int | None = None
    recompute: bool = False
    debug_cache: bool = False
    ir_dir: str | None = None
    compile_profile_dir: str | None = None
    run_profile_dir: str | None = None
    hardware: str | None = None
    address: str | None = None
    port: int | None = None
    key: str | None = None
    chips: str | None = None
    compile_flags: tuple[str, ...] = ()
    run_flags: tuple[str, ...] = ()
    llvmcpu_compile_flags: tuple[str, ...] = ()
    llvmcpu_run_flags: tuple[str, ...] = ()
    compile_s: float | None = None
    run_s: float | None = None
    try_xfails: bool = False
    issue: str | None = None
    report_file: str | None = None


def read_options(config: pytest.Config) -> ModelOptions:
    given = {option.key: getattr(config.option, option.dest, None) for option in OPTIONS}
    found = {key: value for key, value in given.items() if value is not None}
    here = str(config.invocation_params.dir)
    for key in ("folders", "targets"):
        if key in found:
            found[key] = tuple(found[key])
    for key in ("compile_flags", "run_flags", "llvmcpu_compile_flags", "llvmcpu_run_flags"):
        if key in found:
            found[key] = tuple(word for words in found[key] for word in words)
    for key in ("ir_dir", "compile_profile_dir", "run_profile_dir", "key", "report_file"):
        if key in found and found[key] != _CACHE_WORD:
            found[key] = os.path.join(here, os.path.expanduser(found[key]))
    if "folders" in found:
        found["folders"] = tuple(os.path.join(here, os.path.expanduser(folder)) for folder in found["folders"])
    return ModelOptions(**found)


def is_in_cache(folder: str | None) -> bool:
    """Whether a dump was asked for without saying where."""
    return folder == _CACHE_WORD
