"""Which farm is meant by a name, and whether it can be used: asked before anything is written."""

from __future__ import annotations

from assay.config.places import Places
from assay.config.settings import Settings
from assay.errors import ConfigError, NotFoundError, did_you_mean
from assay.farms.config import build_engine_farm, describe_farms, read_farm, read_farm_settings
from assay.farms.engines import REQUIRED, SSH_PREFIX, find_engines
from assay.system.fast_dataclasses import replace
from assay.values.study import LOCAL, Farm, Problem, Study


def find_farm(study: Study, name: str, settings: Settings) -> Farm:
    """The study's farm of this name, else the settings', else the engine itself. Raises where it cannot be used."""
    farm = _find_farm(study, name, settings)
    if farm is None:
        raise _build_not_found(study, name, settings)
    if farm.problems:  # they matter only where the farm is used
        raise ConfigError(farm.problems)
    return _fill_in(farm, study) if farm.is_engine else farm


def has_farm(study: Study, name: str, settings: Settings) -> bool:
    return _find_farm(study, name, settings) is not None


def _find_farm(study: Study, name: str, settings: Settings) -> Farm | None:
    own = study.farms.get(name)
    if own is not None and own.kind != "missing":
        return own
    return read_farm_settings(settings).get(name) or build_engine_farm(name)


def _build_not_found(study: Study, name: str, settings: Settings) -> NotFoundError | ConfigError:
    defined = [farm for farm in study.farms.values() if farm.kind != "missing"]
    known = {farm.name: farm.position for farm in (*read_farm_settings(settings).values(), *defined)}
    listed = f"known: {describe_farms(known)}"
    if name in REQUIRED or name == SSH_PREFIX:  # an engine that needs more than its name
        close = f"did you mean '{SSH_PREFIX}HOST', with the name of a host?"
    else:
        close = (
            did_you_mean(name, [*known, *(engine for engine in find_engines() if engine not in REQUIRED), LOCAL]) or ""
        )
    missing = study.farms.get(name)
    if missing is None:
        hint = f"{close}; {listed}" if close.startswith("did you mean") else listed
        return NotFoundError("farm", name, known, hint)
    said = missing.problems[0]  # the file names it: say where
    first = close if said.hint is None or said.hint.startswith("known") or name in REQUIRED else said.hint
    return ConfigError([Problem(said.message, said.key, said.position, f"{first}; {listed}" if first else listed)])


def _fill_in(farm: Farm, study: Study) -> Farm:
    """What the study says of one run's needs holds where the farm's section says nothing else."""
    needs = {"gpus": study.resources.gpus, "cpus": study.resources.cpus if study.resources.cpus > 1 else None}
    known = find_engines()[farm.kind]
    given = {key: value for key, value in needs.items() if value is not None and key in known}
    return replace(farm, options={**given, **farm.options})


PLACES = Places(read_farm, has_farm, find_farm)
