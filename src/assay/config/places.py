"""Farms by the names in files and on the command line. The plug-in for farms is loaded only if a farm is named."""

from __future__ import annotations

from collections.abc import Callable

from assay.config.fields import Fields
from assay.config.settings import ENVIRONMENT, Settings
from assay.config.source import Item, Problems
from assay.errors import ConfigError, UsageError
from assay.plugins import DOCTOR_HINT, load_all
from assay.system.fast_dataclasses import NamedTuple
from assay.values.study import LOCAL, Farm, Problem, Study

_MISSING = "no installed plug-in submits runs to farms"


class Places(NamedTuple):
    """The functions that a plug-in offers for the hook `places`."""

    read_farm: Callable[[Fields, Item, str], Farm | None]  # reads a section of a file; None: see the problems
    has_farm: Callable[[Study, str, Settings], bool]
    find_farm: Callable[[Study, str, Settings], Farm]  # raises an error for an unknown or unusable farm


def find_places() -> Places | None:
    return next((places for _, places in load_all("places")), None)


def read_farm(entry: Item, key: str) -> Farm:
    """Read one section of a file. Problems are kept with the farm, since they matter only if the farm is used."""
    places, problems = find_places(), Problems()
    if places is None:
        problems.add(_MISSING, key, entry.position, DOCTOR_HINT)
    farm = places.read_farm(Fields(problems), entry, key) if places is not None else None
    if farm is not None and not problems.found:
        return farm
    return Farm(entry.key, "template", position=entry.position, problems=tuple(problems.found))


def choose_farm(study: Study, asked: str | None, settings: Settings) -> Farm | None:
    """Choose the farm of the flag, else of the environment, the study or, if known, the settings; None: no farm."""
    from_environment = settings.farm if settings.farm_from == ENVIRONMENT["farm"] else None
    name = asked or from_environment or study.farm
    if name is None and settings.farm not in (None, LOCAL):
        usual = str(settings.farm)
        name = usual if _ask_places(study, usual).has_farm(study, usual, settings) else None
    return choose_asked_farm(study, name, settings)


def choose_asked_farm(study: Study, asked: str | None, settings: Settings) -> Farm | None:
    """Choose a farm for measurements and checks, which leave this machine only if `asked` names a farm; else None."""
    return None if asked is None or asked == LOCAL else _ask_places(study, asked).find_farm(study, asked, settings)


def _ask_places(study: Study, name: str) -> Places:
    places = find_places()
    if places is not None:
        return places
    if name not in study.farms:
        raise UsageError(_MISSING, DOCTOR_HINT)
    farm = study.farms[name]  # the file defines the farm
    key = farm.problems[0].key if farm.problems else name
    raise ConfigError([Problem(_MISSING, key, farm.position, DOCTOR_HINT)])
