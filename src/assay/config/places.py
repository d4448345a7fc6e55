"""Farms, as files and calls name them. The plug-in that defines them is asked only if one is named."""

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
    """The hook `places`."""

    read_farm: Callable[[Fields, Item, str], Farm | None]  # one section of a file; the problems hold why it is None
    has_farm: Callable[[Study, str, Settings], bool]
    find_farm: Callable[[Study, str, Settings], Farm]  # raises for an unknown or unusable farm


def find_places() -> Places | None:
    return next((places for _, places in load_all("places")), None)


def read_farm(entry: Item, key: str) -> Farm:
    """Read one section of a file. Its problems are kept with the farm, since they matter only if the farm is used."""
    places, problems = find_places(), Problems()
    if places is None:
        problems.add(_MISSING, key, entry.position, DOCTOR_HINT)
    farm = places.read_farm(Fields(problems), entry, key) if places is not None else None
    if farm is not None and not problems.found:
        return farm
    return Farm(entry.key, "template", position=entry.position, problems=tuple(problems.found))


def choose_farm(study: Study, asked: str | None, settings: Settings) -> Farm | None:
    """Choose by flag, then environment, the study's own, the settings' farm if that farm is known. None: here."""
    from_environment = settings.farm if settings.farm_from == ENVIRONMENT["farm"] else None
    name = asked or from_environment or study.farm
    if name is None and settings.farm not in (None, LOCAL):
        usual = str(settings.farm)
        name = usual if _ask_places(study, usual).has_farm(study, usual, settings) else None
    return choose_asked_farm(study, name, settings)


def choose_asked_farm(study: Study, asked: str | None, settings: Settings) -> Farm | None:
    """Choose a farm for measurements and checks, which only leave this machine if the call names one. None: here."""
    return None if asked is None or asked == LOCAL else _ask_places(study, asked).find_farm(study, asked, settings)


def _ask_places(study: Study, name: str) -> Places:
    places = find_places()
    if places is not None:
        return places
    if name not in study.farms:
        raise UsageError(_MISSING, DOCTOR_HINT)
    farm = study.farms[name]  # the file defines it
    key = farm.problems[0].key if farm.problems else name
    raise ConfigError([Problem(_MISSING, key, farm.position, DOCTOR_HINT)])
