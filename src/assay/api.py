"""The functions for Python programs: load a study, run it, read its runs. Plug-ins add functions (`check_golden`).

    import assay

    with assay.run("study.yml", jobs=4) as study:
        outcome = study.wait()
    print(outcome.exit_code, study.table())

The names of `__all__` and everything that `docs/reference/python.md` lists are stable. Everything else in Assay is
private and may change with any version. Errors are raised as `AssayError`, with the message of the command line.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from assay.config.definition import render_assignments, render_definition
from assay.config.load import LoadOptions
from assay.config.load import load_study as load
from assay.errors import ConfigError, NotFoundError, UsageError
from assay.handle import Expected, RunOutcome, StudyHandle, build_texts
from assay.launch.api import build_dry_rows, check_prepared, prepare
from assay.launch.commands.run import RunRequest, build_options
from assay.plugins import find_dialect, find_function, load_all
from assay.record.run_directory import find_file, keep_file
from assay.runs import Run, Runs, Series, runs
from assay.system.fast_dataclasses import replace
from assay.system.files import write_atomic
from assay.values.state import State
from assay.values.study import UnknownParameter
from assay.values.verdict import Finding, Judgement, VerdictKind

if TYPE_CHECKING:
    from assay.launch.api import Prepared
    from assay.values.options import Option

__all__ = [
    "Finding",
    "Judgement",
    "PlannedRun",
    "Run",
    "RunOutcome",
    "Runs",
    "Series",
    "Study",
    "StudyHandle",
    "StudyPlan",
    "VerdictKind",
    "load_study",
    "run",
    "runs",
]

Path = str | os.PathLike[str]


class PlannedRun(NamedTuple):
    """One run that a study file describes."""

    name: str
    id: str  # a hash of the parameters and commands
    dir: str  # the run directory, which may not exist yet
    params: Mapping[str, Any]
    commands: Mapping[str, str]  # name -> text for the shell
    left: tuple[str, ...]  # the commands that `assay.run` would start: none if the run is finished


class StudyPlan(NamedTuple):
    """The runs that a study file describes; nothing has been written or started."""

    name: str
    dir: str
    runs: tuple[PlannedRun, ...]
    warnings: tuple[str, ...]


class Study:
    """A study that a program defines: the content of a study file as keyword arguments.

        study = assay.Study("line", command="python train.py --lr {lr}", params={"lr": [0.1, 0.01]})
        handle = study.run(jobs=2)

    The keywords are the keys of a study file, with the same meaning. Values may also be numpy values, ranges, tuples
    and paths. Raises ConfigError with every mistake, by keyword.
    """

    name: str

    def __init__(self, name: str | None = None, **keys: object) -> None:
        if name is not None:
            keys = {"study": name, **keys}
        if isinstance(root := keys.get("root"), str | os.PathLike):  # the study's file is kept elsewhere
            keys["root"] = os.path.abspath(os.path.expanduser(root))
        self._text = render_definition(keys)
        self.name = load("", LoadOptions(text=self._text)).name

    def plan(self, **options: Any) -> StudyPlan:
        """Return what would run, without writing or starting anything. The options are those of `assay.load_study`."""
        return load_study(self, **options)

    def run(self, **options: Any) -> StudyHandle:
        """Start the runs that are not finished, and return at once. The options are those of `assay.run`."""
        return run(self, **options)

    def save(self, file: Path) -> None:
        """Write the study file: `assay run FILE` in the current folder starts the same runs."""
        write_atomic(os.fspath(file), self._text)

    def __repr__(self) -> str:
        return f"<study {self.name!r}>\n{self._text}".rstrip()


def load_study(
    file: Path | Study,
    *,
    root: Path | None = None,
    study: str | None = None,
    titles: Sequence[str] = (),
    where: str | None = None,
    sample: int | None = None,
    seed: int | None = None,
    settings: Mapping[str, Any] | None = None,
    overrides: Mapping[str, Any] | None = None,
    **params: Any,
) -> StudyPlan:
    """Read a study file and expand it, as `assay run --dry-run` does. Raises ConfigError with every problem.

    Further keywords are values of parameters, as in `assay.run`.
    """
    given = {"root": _text(root), "study": study, "titles": titles, "where": where, "sample": sample, "seed": seed}
    _, prepared = _prepare(file, {**given, "settings": _render(settings)}, overrides, params)
    rows = [{name: row[name] for name in PlannedRun._fields} for row in build_dry_rows(prepared)]
    planned = tuple(PlannedRun(**{**row, "left": tuple(row["left"])}) for row in rows)
    return StudyPlan(prepared.location.name, prepared.location.dir, planned, tuple(map(str, prepared.warnings)))


def run(
    file: Path | Study,
    *,
    root: Path | None = None,
    study: str | None = None,
    slots: str | int | None = None,
    jobs: int | None = None,
    on: str | None = None,
    titles: Sequence[str] = (),
    commands: Sequence[str] = (),
    where: str | None = None,
    sample: int | None = None,
    seed: int | None = None,
    retry: Sequence[str] = (),
    force: bool = False,
    code: str | None = None,
    new_code: bool = False,
    old_code: bool = False,
    settings: Mapping[str, Any] | None = None,
    overrides: Mapping[str, Any] | None = None,
    **params: Any,
) -> StudyHandle:
    """Start the runs of a study that are not finished, and return at once. The arguments are the options of
    `assay run`, also those of plug-ins: `search`, `notify`.

    Further keywords replace the file's values of parameters: `assay.run("study.yml", lr=[0.1, 0.01])`. `overrides`
    has parameters whose names are options or not valid in Python; `settings` is `--set`.

    A separate process supervises the runs: they go on when this program ends, and this program's signal handlers,
    working directory and threads stay the same. Another call watches running runs and continues the others.
    """
    import random
    import warnings

    if new_code and old_code:
        raise UsageError("new_code and old_code contradict each other", "leave out one of them")
    if isinstance(slots, int) and jobs is None:
        slots, jobs = None, slots
    if sample is not None and seed is None:
        seed = random.randrange(1 << 31)  # passed on: the supervisor draws the same runs
    given: dict[str, Any] = {"root": _text(root), "study": study, "slots": slots, "jobs": jobs, "on": on}
    given |= {"titles": titles, "commands": commands, "where": where, "sample": sample, "settings": _render(settings)}
    given |= {"retry": retry, "force": force, "code": code, "new_code": new_code, "old_code": old_code, "seed": seed}
    words, prepared = _prepare(file, given, overrides, params)
    check_prepared(prepared)
    is_ignored = sample is None and seed is not None and any("seed" in spec.params for spec in prepared.plan.runs)
    ignored = [f"seed={seed} is ignored: {_SEED_HINT}"] if is_ignored else []
    for warning in (*prepared.warnings, *ignored):
        warnings.warn(str(warning), stacklevel=3 if isinstance(file, Study) else 2)  # shown at the caller
    # the supervisor builds the names of other tools' runs again, and a search plans its runs later
    is_known = find_dialect(prepared.study.dialect).is_ours and prepared.search is None
    expected = Expected(
        frozenset(spec.name for spec in prepared.plan.runs) if is_known else None,
        frozenset(State) if force else frozenset((State.STOPPED, *prepared.options.retry)),
        prepared.study.retries,
    )
    location = prepared.location
    path = _keep_definition(prepared) if isinstance(file, Study) else os.fspath(file)
    return StudyHandle(location.name, location.root, [*words, "--", path, *prepared.options.overrides], expected)


_OPTIONS = tuple(run.__kwdefaults__ or ())
_SEED_HINT = "seed goes with sample; for the parameter `seed` write overrides={'seed': …}"


def _prepare(
    file: Path | Study, given: Mapping[str, Any], overrides: Mapping[str, Any] | None, further: Mapping[str, Any]
) -> tuple[list[str], Prepared]:
    """Return the options as words for `assay run`, with which the supervisor is called, and the prepared study.

    `further`: parameters and options of plug-ins, which may be misspelled.
    """
    kind = RunRequest.extend(each for _, each in load_all("options", "run")) if further else RunRequest
    params = {name: value for name, value in further.items() if name not in kind.EXTRAS}
    values, words = _read_options({**given, **{name: further[name] for name in further.keys() - params}}, kind.OPTIONS)
    path, text = ("", file._text) if isinstance(file, Study) else (os.fspath(file), None)  # noqa: SLF001
    options = build_options(kind(path, _render(overrides, params), **values))
    try:  # without a command line the hints are in terms of Python
        return words, prepare(replace(options, load=LoadOptions(text=text), again=None, command_line=()))
    except ConfigError as error:
        unknown = [each for each in error.problems if isinstance(each, UnknownParameter) and each.name in params]
        if not unknown:
            raise
        known = [*unknown[0].known, *_OPTIONS, *kind.EXTRAS]
        raise NotFoundError("parameter or option", unknown[0].name, known) from None


def _read_options(given: Mapping[str, Any], declared: Mapping[str, Option]) -> tuple[dict[str, Any], list[str]]:
    """Return the given values and their words for a command line; raise an error for a value that is not valid."""
    values: dict[str, Any] = {}
    words: list[str] = []
    for name, value in given.items():
        option = declared[name]
        each = build_texts(value) if option.multiple else () if value is None or value is False else (value,)
        for wrong in [word for word in each if option.choices and word not in option.choices]:
            raise NotFoundError(f"value of {name}", str(wrong), option.choices)
        if option.type is int and value is not None and not hasattr(value, "__index__"):
            raise UsageError(f"{name}={value!r} is not a number", _SEED_HINT if name == "seed" else None)
        if option.minimum is not None and each and value < option.minimum:
            raise UsageError(f"{name}={value}: it must be at least {option.minimum}")
        if each or option.multiple:
            read = each if option.multiple else value
            values[name] = option.parse(read, name) if option.parse is not None else read
        words += [option.name if option.is_flag else f"{option.name}={word}" for word in each]
    return values, words


def _render(*values: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Render values as words of the command line."""
    given: dict[str, Any] = {}
    for name, value in (item for each in values if each for item in each.items()):
        if name in given:
            raise UsageError(f"{name} is given twice", "as a keyword or in `overrides`, not in both")
        given[name] = value
    return render_assignments(given) if given else ()


def _keep_definition(prepared: Prepared) -> str:
    """Write a definition to a file for the supervisor and return its path; the name depends on the content."""
    folder = prepared.location.dir
    path = find_file(folder, keep_file(folder, prepared.study.text, is_secret=prepared.has_secrets))
    return os.path.relpath(path) if os.path.commonpath((path, os.getcwd())) == os.getcwd() else path


def _text(path: Path | None) -> str | None:
    return None if path is None else os.fspath(path)


def __getattr__(name: str) -> Any:
    """Return a function of a plug-in, such as `check_golden`, `compare_benchmarks` or `check_model`."""
    found = None if name.startswith("_") else find_function(name)
    if found is None:
        raise AttributeError(f"module 'assay.api' has no attribute {name!r}")
    return found
