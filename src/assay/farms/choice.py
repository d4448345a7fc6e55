"""Find the farm that a name means, and whether it can be used, before anything is written."""

from __future__ import annotations

import os

from assay.config.places import Places
from assay.config.settings import Settings, load_settings
from assay.errors import ConfigError, NotFoundError, did_you_mean, suggest
from assay.farms.config import build_engine_farm, describe_farms, read_farm, read_farm_settings
from assay.farms.engines import REQUIRED, SSH_PREFIX, find_engines
from assay.system.fast_dataclasses import replace
from assay.values.study import LOCAL, Farm, Study


def find_farm(study: Study, name: str, settings: Settings) -> Farm:
    """Return the farm of this name: the study's, else the settings', else the engine. Raise if it cannot be used."""
    farm = _find_farm(study, name, settings)
    if farm is None:
        raise _build_not_found(study, name, settings)
    if farm.problems:  # the problems of a farm that is not used do not matter
        raise ConfigError(farm.problems)
    if not farm.is_engine:
        return farm
    # the study's resources of one run count where the farm's section has no others
    needs = {"gpus": study.resources.gpus, "cpus": study.resources.cpus if study.resources.cpus > 1 else None}
    known = find_engines()[farm.kind]
    given = {key: value for key, value in needs.items() if value is not None and key in known}
    return replace(farm, options={**given, **farm.options})


def list_farm_names() -> list[str]:
    """Return the names that the shell completes after `--on`."""
    known = read_farm_settings(load_settings(os.getcwd(), os.environ))
    return [*known, *(f"{name}:" if name in REQUIRED else name for name in find_engines()), LOCAL]


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
    names = [*known, *(engine for engine in find_engines() if engine not in REQUIRED), LOCAL]
    # some engines need more than their name
    needs_host = (
        f"did you mean '{SSH_PREFIX}HOST', with the name of a host?" if name in (*REQUIRED, SSH_PREFIX) else None
    )
    missing = study.farms.get(name)
    if missing is None:
        close = needs_host or suggest(name, names)
        return NotFoundError("farm", name, known, f"{close}; {listed}" if close else listed)
    close = needs_host or did_you_mean(name, names)
    problem = missing.problems[0]  # it names the place in the file
    first = close if problem.hint is None or problem.hint.startswith("known") or name in REQUIRED else problem.hint
    return ConfigError([replace(problem, hint=f"{first}; {listed}" if first else listed)])


PLACES = Places(read_farm, has_farm, find_farm)
