"""pytest's options for models, also under the Torq tests' names, and the tests that options and settings select.

A name that another plugin has registered keeps its meaning, and is not registered here: Assay must not break pytest.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest

from assay.errors import UsageError
from assay.models.values.flags import ModelFlags, split_words
from assay.system.fast_dataclasses import dataclass, replace
from assay.values.options import Option, Request, option

if TYPE_CHECKING:
    from assay.models.flow.discovery import ModelFile, NamedCase, Project
    from assay.models.flow.stepwise import Stepwise
    from assay.models.flow.targets import Extras
    from assay.models.values.model import InputChoice, ModelRequest, Target, Tolerances

DEFAULT_HARDWARE = "sim"
GROUP = "assay-models"
_PREFIX = "assay_model_"
_IN_CACHE = "\0cache"  # the value of --debug-ir without a folder
_NO_MODEL = "no_model"
_PLAN = pytest.StashKey["ModelTestPlan"]()
_PATHS = ("ir_dir", "compile_profile_dir", "run_profile_dir", "key", "report_file")


def _borrow(field: str, *names: str, **changes: Any) -> Any:
    """Return an option of `assay model check` under its names in pytest."""
    return replace(ModelFlags.OPTIONS[field], names=names, **changes)


def _split_all(texts: tuple[str, ...], flag: str) -> tuple[str, ...]:
    return tuple(word for text in texts for word in split_words(text, flag))


_WORDS: Mapping[str, Any] = {"multiple": True, "parse": _split_all, "metavar": "FLAGS"}


class ModelOptions(Request):
    """Our options. None or empty means that an option was not given; folders are absolute."""

    folders: tuple[str, ...] = option(
        "--model-folder", multiple=True, metavar="DIR", help="Where .onnx files are; may be given several times."
    )
    reference: str | None = _borrow("reference", "--assay-reference")
    targets: tuple[str, ...] = _borrow(
        "target", "--assay-target", multiple=True, default=(), help="What is tested; may be given several times."
    )
    samples: int | None = _borrow("samples", "--samples")
    recompute: bool = _borrow("recompute", "--recompute-cache")
    debug_cache: bool = _borrow("explain", "--debug-cache")
    ir_dir: str | None = _borrow("ir_dir", "--debug-ir")
    compile_profile_dir: str | None = _borrow(
        "compile_profile_dir", "--compile-profile", "--torq-compile-time-profiling-output-dir"
    )
    run_profile_dir: str | None = _borrow("run_profile_dir", "--run-profile", "--torq-runtime-profiling-output-dir")
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
    compile_flags: tuple[str, ...] = _borrow(
        "compile_flags", "--extra-compiler-options", "--extra-torq-compiler-options", **_WORDS
    )
    run_flags: tuple[str, ...] = _borrow(
        "run_flags", "--extra-runtime-options", "--extra-torq-runtime-options", **_WORDS
    )
    llvmcpu_compile_flags: tuple[str, ...] = option(
        "--llvmcpu-compiler-options", help="More flags for IREE's compiler as the reference.", **_WORDS
    )
    llvmcpu_run_flags: tuple[str, ...] = option(
        "--llvmcpu-runtime-options", help="More flags for IREE's runtime as the reference.", **_WORDS
    )
    compile_s: float | None = _borrow("compile_timeout_s", "--compile-timeout", "--torq-compiler-timeout")
    run_s: float | None = _borrow("run_timeout_s", "--run-timeout", "--torq-runtime-timeout")
    try_xfails: bool = option("--try-xfails", default=False, help="Run the cases that are expected to fail.")
    issue: str | None = option("--issue", metavar="NUMBER", help="Run those whose failure is linked to this issue.")
    report_file: str | None = option(
        "--report-output-file", metavar="FILE", help="Keep the results as Torq's dashboard takes them."
    )


def add_options(parser: pytest.Parser) -> None:
    groups = [*parser._groups, parser._anonymous]  # noqa: SLF001 pytest has no public list of options
    taken = {name for each in groups for option in each.options for name in option.names()}
    group = parser.getgroup(GROUP, "models, layer by layer (Assay)")
    for field, declared in ModelOptions.OPTIONS.items():
        free = [name for name in declared.names if name not in taken]
        if free:
            how = _build_arguments(field, declared)
            group.addoption(*free, dest=_PREFIX + field, help=declared.help, default=None, **how)


def _build_arguments(field: str, declared: Option) -> dict[str, Any]:
    if declared.is_flag:
        return {"action": "store_true"}
    how: dict[str, Any] = {"metavar": declared.metavar, "type": _build_check(declared)}
    if declared.multiple:
        how["action"] = "append"
    if field == "ir_dir":
        how |= {"nargs": "?", "const": _IN_CACHE}
    return how


def _build_check(declared: Option) -> Callable[[str], Any]:
    """Return a function by which argparse reports a bad value at once; values are parsed later."""

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


@dataclass(frozen=True, slots=True)
class Given:
    label: str  # the text between the brackets of the test's name
    model: ModelFile | None
    case: NamedCase | None
    middle: str  # the target, or the hardware type
    chip: str
    problem: str = ""


class ModelTestPlan:
    """The tests that options and settings select. Each process has one plan; settings are read when needed."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.options: ModelOptions = read_options(config)

    @cached_property
    def project(self) -> Project:
        from assay.models.flow.discovery import load_project

        return load_project(str(self.config.rootpath))

    @cached_property
    def models(self) -> list[ModelFile]:
        from assay.models.flow.discovery import find_models, refuse_unknown_names

        settings = self.project.settings
        found = find_models(self.options.folders or self.project.folders, settings.groups)
        if not self.options.folders:  # otherwise the settings are for other models
            refuse_unknown_names(settings, found)
        return found

    @cached_property
    def chips(self) -> tuple[str, ...]:
        from assay.models.config.targets import choose_chips

        return choose_chips(self.options.chips, self.project.chip_folder)

    @cached_property
    def targets(self) -> tuple[str, ...]:
        from assay.models.flow.targets import choose_target_names

        return choose_target_names(self.project, self.split_targets()[0])

    def split_targets(self) -> tuple[list[str], list[str]]:
        """Return the targets of the flags, else of the settings: those for ONNX models, and those for torch modules."""
        from assay.models.flow.options import is_torch_target

        settings = self.project.settings
        names = self.options.targets or settings.targets
        torch = [name for name in names if settings.modules and is_torch_target(name, self.project.folder)]
        return [name for name in names if name not in torch], torch

    @cached_property
    def modules(self) -> dict[str, ModelRequest]:
        """Return the settings' torch modules on each target, by name of the test. Raises UsageError."""
        from assay.models.flow.options import build_request

        named, targets = self.project.settings.modules, self.split_targets()[1]
        if not named or not targets:
            text = 'in the settings: [tool.assay.models] modules = ["net.py:build"], targets = ["torch-bf16"]'
            raise UsageError(f"there is no torch {'target' if named else 'module'} to test", f"name one {text}")
        found = {}
        for path in named:
            model = os.path.join(self.project.folder, path)
            for target in targets:
                flags = ModelFlags(model=model, target=target, samples=self.options.samples)
                found[f"{path.replace('/', '_')}-{target}"] = build_request(flags, "check")
        return found

    @property
    def hardware(self) -> tuple[str, ...]:
        words = (self.options.hardware or DEFAULT_HARDWARE).split(",")
        return tuple(word.strip() for word in words if word.strip()) or (DEFAULT_HARDWARE,)

    @property
    def ir_dir(self) -> str | None:
        return self.find_folder("ir") if self.options.ir_dir == _IN_CACHE else self.options.ir_dir

    @cached_property
    def _base(self) -> str:
        cache = getattr(self.config, "cache", None)
        return str(cache.mkdir("assay-models")) if cache is not None else tempfile.mkdtemp(prefix="assay-models-")

    def find_folder(self, name: str) -> str:
        """Return a folder in pytest's cache; without a cache, one in a folder for temporary files."""
        return os.path.join(self._base, name)

    def build_rows(self, middles: Sequence[str]) -> Iterator[Given]:
        for model in self.models:
            for case, middle, chip in product(model.cases, middles, self.chips):
                yield Given(f"{case.shown}-{middle}-{chip}", model, case, middle, chip, model.problem)

    def build_empty(self, middle: str) -> Given:
        """Build a case that fails: a test without a model must not pass."""
        folders = ", ".join(self.options.folders or self.project.folders)
        hint = 'put .onnx files there, or name their folder: [tool.assay.models] folder = "…", or --model-folder'
        problem = f"there is no model in {folders}\n  {hint}"
        return Given(f"{_NO_MODEL}-{middle}-{self.chips[0]}", None, None, middle, self.chips[0], problem)

    def build_extras(self, chip: Mapping[str, Any]) -> Extras:
        from assay.models.flow.targets import Extras

        asked = self.options
        return Extras(chip, None, asked.compile_flags, asked.run_flags, asked.address, asked.port, asked.key)

    def build_reference(self, name: str | None) -> Target:
        from assay.models.flow.targets import build_reference

        return build_reference(self.project, name, self.options.llvmcpu_compile_flags, self.options.llvmcpu_run_flags)

    def choose(self, model: ModelFile) -> tuple[Tolerances, InputChoice]:
        tolerances, inputs = self.project.settings.choose(model.stem)
        files = tuple(os.path.join(self.project.folder, path) for path in inputs.files)
        asked = self.options.samples
        return tolerances, replace(inputs, files=files, samples=asked or inputs.samples, most=asked if files else None)

    def open_stepwise(self) -> Stepwise:
        """Open the driver of all cases, with the artifact store that every command of this user shares."""
        from assay.models.flow.artifact_builder import ArtifactBuilder, Dumps
        from assay.models.flow.stepwise import Stepwise
        from assay.models.store.artifacts import ArtifactStore, choose_store_folder
        from assay.models.values.model import StepLimits

        asked, limits = self.options, StepLimits()
        limits = replace(limits, compile_s=asked.compile_s or limits.compile_s, run_s=asked.run_s or limits.run_s)
        builder = ArtifactBuilder(
            ArtifactStore(choose_store_folder(os.environ, self.project.folder)),
            limits,
            recompute=asked.recompute,
            live=self.config.getoption("capture") == "no",
        )
        return Stepwise(builder, Dumps(self.ir_dir, asked.compile_profile_dir, asked.run_profile_dir))


def get_plan(config: pytest.Config) -> ModelTestPlan:
    if _PLAN not in config.stash:
        config.stash[_PLAN] = ModelTestPlan(config)
    return config.stash[_PLAN]
