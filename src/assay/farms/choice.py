"""Which farm the runs are submitted to, and whether it can be used: asked before anything is written."""

from __future__ import annotations

from assay.config.settings import ENVIRONMENT, Settings
from assay.errors import ConfigError, NotFoundError, did_you_mean
from assay.farms.config import build_engine_farm, describe_farms, read_farm_settings
from assay.farms.engines import ENGINES, REQUIRED, SSH_PREFIX
from assay.system.fast_dataclasses import replace
from assay.values.study import Farm, Problem, Study

LOCAL = "local"


def choose_farm(study: Study, asked: str | None, settings: Settings) -> Farm | None:
    """Flag, then environment, the study's own, the settings' where that farm is known. None: here."""
    from_environment = settings.farm if settings.farm_from == ENVIRONMENT["farm"] else None
    name = asked or from_environment or study.farm
    if name is None and settings.farm not in (None, LOCAL) and _find_farm(study, str(settings.farm), settings):
        name = settings.farm
    return None if name is None or name == LOCAL else find_farm(study, name, settings)


def choose_asked_farm(study: Study, asked: str | None, settings: Settings) -> Farm | None:
    """For measurements and checks, which move to another machine only when the call says so. None: here."""
    return None if asked is None or asked == LOCAL else find_farm(study, asked, settings)


def find_farm(study: Study, name: str, settings: Settings) -> Farm:
    """The study's farm of this name, else the settings', else the engine itself. Raises where it cannot be used."""
    farm = _find_farm(study, name, settings)
    if farm is None:
        raise _build_not_found(study, name, settings)
    if farm.problems:  # in nobody's way until the farm is used
        raise ConfigError(farm.problems)
    return _fill_in(farm, study) if farm.is_engine else farm


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
        close = did_you_mean(name, [*known, *(engine for engine in ENGINES if engine not in REQUIRED), LOCAL]) or ""
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
    known = ENGINES[farm.kind]
    given = {key: value for key, value in needs.items() if value is not None and key in known}
    return replace(farm, options={**given, **farm.options})
