"""The importers: which tools' files and folders are known, and what reads them.

`assay index ingest` takes folders and runs, `assay bench import` takes results; each knows what the other takes, and
names the other command where a file belongs there. A reader of results belongs to the product that keeps them, which
has its reader under the importer's name. Plug-ins offer importers by the hook `importers`.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Literal, NamedTuple

from assay.plugins import load, load_all
from assay.record.importers.sample import Sample

Gives = Literal["folders", "runs", "results"]
_ORDER: tuple[Gives, ...] = ("results", "runs", "folders")


class Importer(NamedTuple):
    name: str
    title: str  # for messages
    gives: Gives  # folders are read where they are, runs become run directories, results become benchmark executions
    recognise: str  # `module:function`, called with a Sample
    load: str = ""  # of runs: `module:function`, called with a path; gives ImportedRuns


OWN = (Importer("assay", "studies of Assay", "folders", "assay.record.importers.recognisers:is_assay"),)


@cache
def find_importers() -> tuple[Importer, ...]:
    """Ours and those of the plug-ins, in the order in which they are asked: of results, of runs, of folders."""
    found = [*OWN, *(each for _, offered in load_all("importers") for each in offered)]
    return tuple(sorted(found, key=lambda each: _ORDER.index(each.gives)))


def choose_importer(sample: Sample, gives: Iterable[Gives]) -> Importer | None:
    """By content, among those that give one of these: the first that recognises it."""
    among = set(gives)
    return next((each for each in find_importers() if each.gives in among and load(each.recognise)(sample)), None)


def describe_known(gives: Iterable[Gives]) -> str:
    """`known: …`, for a message about a file that was not recognised."""
    among = set(gives)
    return "known: " + ", ".join(each.title for each in find_importers() if each.gives in among)
