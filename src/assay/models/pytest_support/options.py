"""Options for models: the Torq tests' own spellings next to ours.

A name that somebody else has registered stays theirs, and ours is left out: installing Assay breaks nobody's pytest.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from assay.errors import UsageError
from assay.models.values.flags import ModelFlags, split_words
from assay.system.fast_dataclasses import replace
from assay.values.options import Option, Request, option

GROUP = "assay-models"
_PREFIX = "assay_model_"
_IN_CACHE = "\0cache"  # --debug-ir without a folder
_PATHS = ("ir_dir", "compile_profile_dir", "run_profile_dir", "key", "report_file")


def _share(field: str, *names: str, **changes: Any) -> Any:
    """An option of `assay model check`, under the names that it has in pytest."""
    return replace(ModelFlags.OPTIONS[field], names=names, **changes)


def _split_all(texts: tuple[str, ...], flag: str) -> tuple[str, ...]:
    return tuple(word for text in texts for word in split_words(text, flag))


_WORDS: Mapping[str, Any] = {"multiple": True, "parse": _split_all, "metavar": "FLAGS"}


class ModelOptions(Request):
    """None and empty: not given. Folders are absolute."""

    folders: tuple[str, ...] = option(
        "--model-folder", multiple=True, metavar="DIR", help="Where .onnx files are; may be given several times."
    )
    reference: str | None = _share("reference", "--assay-reference")
    targets: tuple[str, ...] = _share(
        "target", "--assay-target", multiple=True, default=(), help="What is tested; may be given several times."
    )
    samples: int | None = _share("samples", "--samples")
    recompute: bool = _share("recompute", "--recompute-cache")
    debug_cache: bool = _share("explain", "--debug-cache")
    ir_dir: str | None = _share("ir_dir", "--debug-ir")
    compile_profile_dir: str | None = _share(
        "compile_profile_dir", "--compile-profile", "--torq-compile-time-profiling-output-dir"
    )
    run_profile_dir: str | None = _share("run_profile_dir", "--run-profile", "--torq-runtime-profiling-output-dir")
    hardware: str | None = option(
        "--hardware-type",
        "--torq-runtime-hw-type",
        metavar="TYPE",
        help="Hardware to run on; several with commas.  [default: sim]",
    )
    address: str | None = option("--board", "--torq-addr", metavar="ADDRESS", help="A board for ssh: user@host.")
    port: int | None = option(
        "--board-port", "--torq-port", type=int, minimum=1, metavar="PORT", help="The port of its ssh server."
    )
    key: str | None = option("--board-key", "--torq-private-key", metavar="FILE", help="The private key for it.")
    chips: str | None = option(
        "--chips", "--torq-chips", metavar="CHIPS", help="Chips to compile for: a,b, all, or a group."
    )
    compile_flags: tuple[str, ...] = _share(
        "compile_flags", "--extra-compiler-options", "--extra-torq-compiler-options", **_WORDS
    )
    run_flags: tuple[str, ...] = _share(
        "run_flags", "--extra-runtime-options", "--extra-torq-runtime-options", **_WORDS
    )
    llvmcpu_compile_flags: tuple[str, ...] = option(
        "--llvmcpu-compiler-options", help="More flags for IREE's compiler as the reference.", **_WORDS
    )
    llvmcpu_run_flags: tuple[str, ...] = option(
        "--llvmcpu-runtime-options", help="More flags for IREE's runtime as the reference.", **_WORDS
    )
    compile_s: float | None = _share("compile_timeout_s", "--compile-timeout", "--torq-compiler-timeout")
    run_s: float | None = _share("run_timeout_s", "--run-timeout", "--torq-runtime-timeout")
    try_xfails: bool = option("--try-xfails", default=False, help="Run the cases that are expected to fail.")
    issue: str | None = option("--issue", metavar="NUMBER", help="Run those whose failure is linked to this issue.")
    report_file: str | None = option(
        "--report-output-file", metavar="FILE", help="Keep the results as Torq's dashboard takes them."
    )


def add_options(parser: pytest.Parser) -> None:
    """Under the names that are free."""
    taken = _find_taken(parser)
    group = parser.getgroup(GROUP, "models, layer by layer (Assay)")
    for field, declared in ModelOptions.OPTIONS.items():
        free = [name for name in declared.names if name not in taken]
        if free:
            how = _build_arguments(field, declared)
            group.addoption(*free, dest=_PREFIX + field, help=declared.help, default=None, **how)


def _find_taken(parser: pytest.Parser) -> set[str]:
    groups = [*parser._groups, parser._anonymous]  # noqa: SLF001 pytest has no other way to ask
    return {name for group in groups for option in group.options for name in option.names()}


def _build_arguments(field: str, declared: Option) -> dict[str, Any]:
    """What argparse has to know of an option."""
    if declared.is_flag:
        return {"action": "store_true"}
    how: dict[str, Any] = {"metavar": declared.metavar, "type": _build_check(declared)}
    if declared.multiple:
        how["action"] = "append"
    if field == "ir_dir":
        how |= {"nargs": "?", "const": _IN_CACHE}
    return how


def _build_check(declared: Option) -> Callable[[str], Any]:
    """Refuses a bad value at once, as argparse reports it; the value is parsed when it is read."""

    def check(text: str) -> Any:
        if declared.type is int:
            if not text.isdecimal() or int(text) < (declared.minimum or 0):
                raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {declared.minimum or 0} on")
            return int(text)
        try:
            if declared.parse is not None:
                declared.parse((text,) if declared.multiple else text, declared.name)
        except UsageError as error:
            raise argparse.ArgumentTypeError(f"{error.message}; {error.hint}") from None
        return text

    return check


def read_options(config: pytest.Config) -> ModelOptions:
    given = {field: getattr(config.option, _PREFIX + field, None) for field in ModelOptions.OPTIONS}
    found = ModelOptions.from_command_line(given)
    here = str(config.invocation_params.dir)
    paths = {field: getattr(found, field) for field in _PATHS}
    absolute = {
        field: os.path.join(here, os.path.expanduser(path))
        for field, path in paths.items()
        if path is not None and path != _IN_CACHE
    }
    folders = tuple(os.path.join(here, os.path.expanduser(folder)) for folder in found.folders)
    return found.replace(**absolute, folders=folders)


def is_in_cache(folder: str | None) -> bool:
    """Whether a dump was asked for without a folder."""
    return folder == _IN_CACHE
