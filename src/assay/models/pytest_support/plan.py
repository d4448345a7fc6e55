"""What options and settings come to for tests of models: which there are, and what each of them is given."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pytest

from assay.models.pytest_support.options import ModelOptions, is_in_cache, read_options

if TYPE_CHECKING:
    from assay.models.flow.discovery import ModelFile, NamedCase
    from assay.models.flow.project import Extras, Project
    from assay.models.flow.stepwise import Stepwise
    from assay.models.values.model import InputChoice, Target, Tolerances

DEFAULT_HARDWARE = "sim"
CACHE_SECTION = "artifact cache"
_NO_MODEL = "no_model"
_PLAN = pytest.StashKey["Plan"]()


@dataclass(frozen=True, slots=True)
class Given:
    """What one test is given."""

    label: str  # between the brackets of its name
    model: ModelFile | None
    case: NamedCase | None
    middle: str  # the target, or the hardware type
    chip: str
    problem: str = ""


class Plan:
    """What options and settings come to. One for each pytest process; settings are read when a test needs them."""

    TRACERS = ("ort", "iree", "reference")

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self._listener: Callable[[str], None] | None = None
        self.options: ModelOptions = read_options(config)

    @cached_property
    def project(self) -> Project:
        from assay.models.flow.project import load_project

        return load_project(str(self.config.rootpath))

    @cached_property
    def models(self) -> list[ModelFile]:
        from assay.models.flow.project import find_project_models, refuse_strange_names

        found = find_project_models(self.project, self.options.folders)
        if not self.options.folders:  # else these are not the models that the settings speak of
            refuse_strange_names(self.project, found)
        return found

    @cached_property
    def chips(self) -> tuple[str, ...]:
        from assay.models.flow.project import choose_chip_names

        return choose_chip_names(self.project, self.options.chips)

    @cached_property
    def targets(self) -> tuple[str, ...]:
        from assay.models.flow.project import choose_target_names

        return choose_target_names(self.project, self.options.targets)

    @property
    def hardware(self) -> tuple[str, ...]:
        words = (self.options.hardware or DEFAULT_HARDWARE).split(",")
        return tuple(word.strip() for word in words if word.strip()) or (DEFAULT_HARDWARE,)

    @property
    def ir_dir(self) -> str | None:
        return self.find_folder("ir") if is_in_cache(self.options.ir_dir) else self.options.ir_dir

    @cached_property
    def _base(self) -> str:
        cache = getattr(self.config, "cache", None)
        return str(cache.mkdir("assay-models")) if cache is not None else tempfile.mkdtemp(prefix="assay-models-")

    def find_folder(self, name: str) -> str:
        """In pytest's cache; without one, in a folder for temporary files."""
        return os.path.join(self._base, name)

    def build_rows(self, middles: Sequence[str]) -> Iterator[Given]:
        for model in self.models:
            for case in model.cases:
                for middle in middles:
                    for chip in self.chips:
                        label = f"{case.shown}-{middle}-{chip}"
                        yield Given(label, model, case, middle, chip, model.problem)

    def build_empty(self, middle: str) -> Given:
        """No model is no pass: one case says so."""
        folders = ", ".join(self.options.folders or self.project.folders)
        hint = 'put .onnx files there, or say where they are: [tool.assay.models] folder = "…", or --model-folder'
        problem = f"there is no model in {folders}\n  {hint}"
        return Given(f"{_NO_MODEL}-{middle}-{self.chips[0]}", None, None, middle, self.chips[0], problem)

    # ------------------------------------------------------------ targets

    def build_extras(self, chip: Any = None) -> Extras:
        from assay.models.flow.project import Extras

        asked = self.options
        flags = asked.compile_flags, asked.run_flags
        return Extras(chip or {}, None, *flags, asked.address, asked.port, asked.key)

    def build_reference(self, name: str | None) -> Target:
        from assay.models.flow.project import build_reference

        return build_reference(self.project, name, self.options.llvmcpu_compile_flags, self.options.llvmcpu_run_flags)

    # ------------------------------------------------------------ one model

    def choose(self, model: ModelFile) -> tuple[Tolerances, InputChoice]:
        tolerances, inputs = self.project.settings.choose(model.stem)
        files = tuple(os.path.join(self.project.folder, path) for path in inputs.files)
        asked = self.options.samples
        return tolerances, replace(inputs, files=files, samples=asked or inputs.samples, most=asked if files else None)

    # ------------------------------------------------------------ doing it

    def attend(self, listener: Callable[[str], None]) -> None:
        """The test that runs now hears what is said about the cache."""
        self._listener = listener

    def hear(self, text: str) -> None:
        if self._listener is not None:
            self._listener(text)

    def open_stand(self, say: Any) -> Stepwise:
        from assay.models.flow.artifact_builder import Dumps
        from assay.models.flow.project import Manner, open_stand
        from assay.models.values.model import Limits

        asked, limits = self.options, Limits()
        limits = replace(limits, compile_s=asked.compile_s or limits.compile_s, run_s=asked.run_s or limits.run_s)
        live = self.config.getoption("capture") == "no"
        dumps = Dumps(self.ir_dir, asked.compile_profile_dir, asked.run_profile_dir)
        return open_stand(
            self.project, Manner(limits, asked.recompute, live), dumps, say if asked.debug_cache else None
        )


def set_plan(config: pytest.Config) -> None:
    config.stash[_PLAN] = Plan(config)


def get_plan(config: pytest.Config) -> Plan:
    return config.stash[_PLAN]
