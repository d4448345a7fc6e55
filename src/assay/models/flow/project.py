"""What a project says about its models: where they lie, what they are tested on, with which chip and on which board."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from assay.config.settings import load_settings
from assay.errors import UsageError, did_you_mean
from assay.models.config.chips import choose_chips, load_chip, name_chip, read_flags
from assay.models.config.settings import DEFAULT_REFERENCE, ModelSettings, read_model_settings
from assay.models.config.targets import build_board_target, read_target_tables
from assay.models.flow.artifact_builder import ArtifactBuilder, Dumps
from assay.models.flow.discovery import ModelFile, find_models
from assay.models.flow.options import find_settings_folder
from assay.models.flow.stepwise import Stepwise
from assay.models.flow.targets import Vote, choose_voter, load_checked_target
from assay.models.flow.tolerance_names import find_strange_stems, join_names, refuse_general, refuse_own
from assay.models.store.artifacts import ArtifactStore, choose_store_folder
from assay.models.values.model import Limits, Target

CHIPS = "chips"  # the folder next to that of the models
LLVM_CPU = "iree"  # the reference of the Torq spellings
TORQ = "torq"  # their target, where the project has none of the hardware's name
_WITH_TOOLS = ("command", "ssh")


@dataclass(frozen=True, slots=True)
class Project:
    folder: str  # of its settings, else where it was looked for
    settings: ModelSettings
    targets: tuple[str, ...] = ()  # that its settings describe

    @property
    def folders(self) -> tuple[str, ...]:
        return tuple(os.path.join(self.folder, each) for each in self.settings.folders)

    @property
    def chip_folder(self) -> str:
        return os.path.join(os.path.dirname(self.folders[0]), CHIPS)


@dataclass(frozen=True, slots=True)
class Extras:
    """What a target gets next to its own settings. An absent value changes nothing."""

    chip: Mapping[str, Any] = field(default_factory=dict)
    hardware: str | None = None
    compile_flags: tuple[str, ...] = ()
    run_flags: tuple[str, ...] = ()
    address: str | None = None
    port: int | None = None
    key: str | None = None


def load_project(folder: str) -> Project:
    """Raises UsageError for settings that are wrong."""
    settings = load_settings(folder, os.environ)
    return Project(find_settings_folder(folder), read_model_settings(settings), tuple(read_target_tables(settings)))


def find_project_models(project: Project, folders: Sequence[str] = ()) -> list[ModelFile]:
    return find_models(tuple(folders) or project.folders, project.settings.groups)


def find_strange_models(project: Project, models: Sequence[ModelFile]) -> list[str]:
    """What the settings say of models that are not there: one that was put aside may come back."""
    return find_strange_stems(project.settings, [model.stem for model in models])


def refuse_strange_names(project: Project, models: Sequence[ModelFile]) -> None:
    """Tolerances of the settings for what no model has. Raises UsageError. One that cannot be read may have it all."""
    if not models or any(model.problem for model in models):
        return
    for model in models:
        refuse_own(project.settings, model.stem, model.names)
    refuse_general(project.settings, join_names(model.names for model in models))


def choose_target_names(project: Project, given: Sequence[str]) -> tuple[str, ...]:
    """Flags, then `targets` of the settings, then every target that they describe. Raises UsageError."""
    names = tuple(given) or project.settings.targets or project.targets
    for name in names:
        load_checked_target(name, project.folder)
    if not names:
        raise UsageError(
            "there is no target to test the models on",
            'name one in the settings, [tool.assay.models] targets = ["iree"], or with --assay-target',
        )
    return names


def choose_chip_names(project: Project, text: str | None) -> tuple[str, ...]:
    return choose_chips(text, project.chip_folder)


def load_project_chip(project: Project, name: str) -> dict[str, Any]:
    return load_chip(name, project.chip_folder)


# ---------------------------------------------------------------- targets


def build_target(project: Project, name: str, extras: Extras) -> Target:
    return load_checked_target(name, project.folder, lambda target: _equip(target, extras))


def build_hardware_target(project: Project, hardware: str, extras: Extras) -> Target:
    """The project's own target of this name; else Torq's tools, told the name of the hardware."""
    own = hardware in project.targets
    with_hardware = replace(extras, hardware=hardware)
    found = load_checked_target(hardware if own else TORQ, project.folder, lambda target: _equip(target, with_hardware))
    return replace(found, name=hardware)


def explain_hardware(project: Project, hardware: str) -> str:
    """For when Torq's own tools fail: perhaps a target of the project was meant."""
    if hardware in project.targets:
        return ""
    known = did_you_mean(hardware, project.targets)
    return f"no target {hardware!r} in the settings, so Torq's own tools are called" + (f"; {known}" if known else "")


def build_reference(
    project: Project, name: str | None, compile_flags: Sequence[str], run_flags: Sequence[str]
) -> Target:
    """Flags are for the compiler of a reference: onnxruntime has none."""
    found = load_checked_target(name or project.settings.reference or DEFAULT_REFERENCE, project.folder)
    if found.backend != "iree":
        return found
    return replace(
        found, compile_flags=(*found.compile_flags, *compile_flags), run_flags=(*found.run_flags, *run_flags)
    )


def choose_project_voter(project: Project, reference: Target, target: Target) -> Vote:
    return choose_voter(None, project.settings.vote, reference, target, project.folder)


def _equip(target: Target, extras: Extras) -> Target:
    chip = name_chip(extras.chip)
    has_tools = target.backend in _WITH_TOOLS
    if chip and not (has_tools and _knows_chips(target, extras.chip)):
        raise UsageError(
            f"the target {target.name} does not use chips", "name {chip} in its commands, or leave --torq-chips out"
        )
    with_hardware = {"chip": chip, "hardware": extras.hardware} if has_tools else {}
    found = replace(
        target,
        options={**target.options, **{name: value for name, value in with_hardware.items() if value}},
        compile_flags=(*target.compile_flags, *read_flags(extras.chip, "compile_flags"), *extras.compile_flags),
        run_flags=(*target.run_flags, *read_flags(extras.chip, "run_flags"), *extras.run_flags),
    )
    if extras.address is None:
        return found
    return build_board_target(found, extras.address, port=extras.port, key=extras.key)


def _knows_chips(target: Target, chip: Mapping[str, Any]) -> bool:
    """One that gets no chip would compute the same for all of them, and every test would pass for the wrong
    chip."""
    with_hardware = str([target.options.get(name) for name in ("import", "compile", "run")])
    return "{chip}" in with_hardware or bool(chip.get("compile_flags") or chip.get("run_flags"))


# ---------------------------------------------------------------- the place of work


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """How work is done."""

    limits: Limits = field(default_factory=Limits)
    recompute: bool = False
    live: bool = False


def open_stepwise(project: Project, build_options: BuildOptions, dumps: Dumps, explain_to: Any = None) -> Stepwise:
    """With the artifact store that every command of this user shares."""
    store = ArtifactStore(choose_store_folder(os.environ, project.folder))
    builder = ArtifactBuilder(
        store, build_options.limits, recompute=build_options.recompute, live=build_options.live, explain_to=explain_to
    )
    return Stepwise(builder, dumps)
