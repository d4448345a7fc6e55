"""The values that an option or an argument may have, by its metavar: STUDY, RUN, METRIC …

A plug-in adds a metavar with a function `complete.METAVAR`. Studies and runs are read from the folders, metrics and
parameters from the index, which is not refreshed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from assay.follow.api import find_roots, find_studies, open_index
from assay.plugins import find_function
from assay.record.folders import find_run_dirs
from assay.system.files import index_path

_NAMED = ("studies", "study", "names", "run")  # fields that name studies or runs
_SAMPLE = 300  # number of the newest runs whose metrics and parameters are offered


def list_values(
    metavar: str, incomplete: str, given: Mapping[str, Any], line: Sequence[str], *, is_argument: bool
) -> Iterable[str] | None:
    """Return values to offer; None: the shell offers files. `given`: the fields so far. `line`: the words so far."""
    words = set(re.findall("[A-Z]+", metavar)) if "=" not in metavar else set()
    if words & {"FILE", "PATH", "DIR", "MODEL", "EXPECTED", "ACTUAL"}:
        return None
    if is_argument and words & {"RUN", "FIRST", "SECOND", "NAME"}:
        return _list_runs(given, incomplete, with_studies=bool(words & {"STUDY", "NAME"}))
    if is_argument and words & {"STUDY", "STUDIES"}:
        return (name for _, name in _find_studies(given))
    if metavar in ("A,B", "A,B|all", "NAME[:min|max]", "PARAM") or "METRIC" in words:
        before = incomplete[: incomplete.rfind(",") + 1] if "," in metavar else ""
        return (before + name for name in _list_columns(metavar, given, line))
    further = [find_function(f"complete.{word}") for word in words]
    return [value for each in further if each is not None for value in each()]


def _find_studies(given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for root in find_roots(given.get("root")).all:
        yield from ((root, name) for name in find_studies(root))


def _list_runs(given: Mapping[str, Any], incomplete: str, *, with_studies: bool) -> Iterator[str]:
    """Yield the runs of the study that `incomplete` names before a slash; without a slash, yield the studies."""
    for root, study in _find_studies(given):
        if incomplete.startswith(f"{study}/"):
            yield from (f"{study}/{os.path.basename(path)}" for path in find_run_dirs(os.path.join(root, study)))
        else:
            yield from (f"{study}/", study) if with_studies else (f"{study}/",)


def _list_columns(metavar: str, given: Mapping[str, Any], line: Sequence[str]) -> Iterator[str]:
    """Yield the columns of the studies that the line names; if it names none, the columns of all studies."""
    if not any(field in given for field in _NAMED):  # a command of benchmarks has other metrics than studies
        return
    words = {word.partition("/")[0] for word in line}
    known = list(_find_studies(given))
    named = [(root, study) for root, study in known if study in words]
    for root in {root for root, _ in named or known}:
        if os.path.exists(index_path(root, os.environ)):  # only an existing index of this machine is read
            yield from _ask_index(root, [study for where, study in named if where == root], metavar)


def _ask_index(root: str, studies: Sequence[str], metavar: str) -> Iterator[str]:
    quoted = ", ".join("'" + name.replace("'", "''") + "'" for name in studies)
    chosen = f"WHERE study IN ({quoted})" if studies else ""
    newest = f"SELECT run FROM runs {chosen} ORDER BY run DESC LIMIT {_SAMPLE}"  # noqa: S608 quoted above
    views = {"metric": "metrics"} if metavar != "PARAM" else {}
    if metavar in ("A,B", "NAME[:min|max]", "PARAM"):
        views["parameter"] = "parameters"
    with open_index(root) as index:
        for column, view in views.items():
            statement = f"SELECT DISTINCT {column} FROM {view} WHERE run IN ({newest})"  # noqa: S608
            yield from (str(row[0]) for row in index.query(statement).rows)
