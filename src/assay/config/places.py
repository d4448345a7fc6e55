"""Farms, as files and calls name them. A plug-in knows them; it is asked only where one is named."""

from __future__ import annotations

from collections.abc import Callable

from assay.config.fields import Fields
from assay.config.settings import ENVIRONMENT, Settings
from assay.config.source import Item, Problems
from assay.errors import ConfigError, UsageError
from assay.plugins import load_all
from assay.system.fast_dataclasses import NamedTuple
from assay.values.study import LOCAL, Farm, Problem, Study

_MISSING = "no installed plug-in submits runs to farms"
_HINT = "`assay doctor` lists what is installed"


class Places(NamedTuple):
    """The hook `places`."""

    read_farm: Callable[[Fields, Item, str], Farm | None]  # one section of a file; the problems hold why it is None
    has_farm: Callable[[Study, str, Settings], bool]
    find_farm: Callable[[Study, str, Settings], Farm]  # raises where it is not known, or cannot be used


def find_places() -> Places | None:
    return next((places for _, places in load_all("places")), None)


def read_farm(entry: Item, key: str) -> Farm:
    """One section of a file. What is wrong with it matters only where the farm is used, so it is kept with the farm."""
    places, problems = find_places(), Problems()
    if places is None:
        problems.add(_MISSING, key, entry.position, _HINT)
    farm = places.read_farm(Fields(problems), entry, key) if places is not None else None
    if farm is not None and not problems.found:
        return farm
    return Farm(entry.key, "template", position=entry.position, problems=tuple(problems.found))


def choose_farm(study: Study, asked: str | None, settings: Settings) -> Farm | None:
    """Flag, then environment, the study's own, the settings' where that farm is known. None: here."""
    from_environment = settings.farm if settings.farm_from == ENVIRONMENT["farm"] else None
    name = asked or from_environment or study.farm
    if name is None and settings.farm not in (None, LOCAL):
        usual = str(settings.farm)
        name = usual if _ask_places(study, usual).has_farm(study, usual, settings) else None
    return choose_asked_farm(study, name, settings)


def choose_asked_farm(study: Study, asked: str | None, settings: Settings) -> Farm | None:
    """For measurements and checks, which move to another machine only when the call names one. None: here."""
    return None if asked is None or asked == LOCAL else _ask_places(study, asked).find_farm(study, asked, settings)


def _ask_places(study: Study, name: str) -> Places:
    places = find_places()
    if places is not None:
        return places
    if name not in study.farms:
        raise UsageError(_MISSING, _HINT)
    farm = study.farms[name]  # the file names it
    key = farm.problems[0].key if farm.problems else name
    raise ConfigError([Problem(_MISSING, key, farm.position, _HINT)])
