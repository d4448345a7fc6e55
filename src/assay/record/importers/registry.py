"""The importers: the files and folders of other tools that are known, and their readers.

`assay index ingest` takes folders and runs, `assay bench import` takes results; each names the other command for a
file that belongs there. Plug-ins offer importers by the hook `importers`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, Literal

from assay.plugins import PluginProblem, load, load_all
from assay.record.importers.sample import Sample
from assay.system.fast_dataclasses import NamedTuple

Gives = Literal["folders", "runs", "results"]
_ORDER: tuple[Gives, ...] = ("results", "runs", "folders")


class Importer(NamedTuple):
    name: str
    title: str  # what the importer reads, for messages
    gives: Gives  # folders are read where they are, runs become run directories, results become benchmark executions
    recognise: str  # `module:function`, called with a Sample
    load: str = ""  # of runs: called with a path, returns ImportedRuns; of results: with a Sample, yields executions


OWN = (Importer("assay", "studies of Assay", "folders", "assay.record.importers.sample:is_assay"),)


@cache
def find_importers() -> tuple[Importer, ...]:
    """Return Assay's importers and those of plug-ins in the order of recognition: results, runs, folders."""
    found = {each.name: each for each in OWN}
    for _, each in _list_offers():
        if isinstance(each, Importer) and isinstance(each.name, str) and each.gives in _ORDER:
            found.setdefault(each.name, each)
    return tuple(sorted(found.values(), key=lambda each: _ORDER.index(each.gives)))


def find_importer_problems() -> list[PluginProblem]:
    """Describe offers of plug-ins that are not valid importers."""
    rule = f"must be an Importer with a name of its own that gives {', '.join(_ORDER)}"
    ids = set(map(id, find_importers()))
    return [PluginProblem(name, f"importers: {each!r} {rule}") for name, each in _list_offers() if id(each) not in ids]


def _list_offers() -> Iterator[tuple[str, Any]]:
    for plugin, offered in load_all("importers"):
        yield from ((plugin.name, each) for each in (offered if isinstance(offered, tuple | list) else (offered,)))


def choose_importer(sample: Sample, gives: Iterable[Gives]) -> Importer | None:
    """Return the first importer of these kinds that recognises the content."""
    among = set(gives)
    return next((each for each in find_importers() if each.gives in among and _recognises(each, sample)), None)


def _recognises(importer: Importer, sample: Sample) -> bool:
    """Return whether the importer recognises the file. An error in a plug-in's importer counts as not recognised."""
    try:
        return bool(load(importer.recognise)(sample))
    except (Exception, SystemExit):
        if importer.recognise.startswith("assay."):
            raise
        return False


def describe_known(gives: Iterable[Gives]) -> str:
    """Return `known: …` for a message about a file that was not recognised."""
    among = set(gives)
    return "known: " + ", ".join(each.title for each in find_importers() if each.gives in among)
