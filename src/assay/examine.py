"""mlrunner's `Examiner`, for notebooks that already use it: applies parsers to a folder's runs, tabulates the results.

    from assay.examine import Examiner, latest_log

    def add_bleu(path, experiment, caches):
        experiment.metric["bleu"] = parse_bleu(latest_log("test", path))

    examiner = Examiner()
    examiner.add(add_bleu)
    examiner.exam(output="output", regex="Norm_new")
    examiner.table()

Folders of mlrunner (`param`) and of Assay (`run.json`) are read alike; uploads that were not adopted are left out.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from assay.errors import FormatError, MissingPackageError, NotFoundError, UsageError
from assay.record.received import is_foreign
from assay.system.files import parse_json
from assay.values import layout


class Experiment(NamedTuple):
    """The data of one run: parsers read and fill all three fields."""

    cache: dict[Any, Any]
    metric: dict[Any, Any]
    param: dict[str, Any]


Exam = Callable[[Path, Experiment, dict[Any, Any]], object]


class Examiner:
    """Collects the results of parsers: `experiments` by folder name, and `caches`, which all parsers share."""

    def __init__(self) -> None:
        self.exams: list[Exam] = []
        self.caches: dict[Any, Any] = {}
        self.experiments: dict[str, Experiment] = {}

    def add(self, func: Exam) -> None:
        """Register `func(path, experiment, caches)`; a registered function is not added a second time."""
        if func not in self.exams:
            self.exams.append(func)

    def exam(
        self, output: str | os.PathLike[str] = "output", regex: str = ".*", verbose: bool = False, workers: int = -1
    ) -> None:
        """Run every parser on every folder in `output` whose name holds a match of `regex`.

        If `workers` is above zero, as many processes run the parsers, and `caches` is empty at each folder's start.
        """
        paths = find_outputs(output, regex)
        if not paths:
            print(f"No folder in {output} matches {regex!r}")
        each = (self._exam_one(path, verbose, self.caches) for path in paths)
        results = _exam_in_processes(self, paths, verbose, workers) if workers > 0 else filter(None, each)
        for name, experiment, caches in results:
            known = self.experiments.setdefault(name, experiment)
            for mine, found in zip(known, experiment, strict=True):
                mine.update(found)
            self.caches.update(caches)

    def _exam_one(self, path: Path, verbose: bool, caches: dict[Any, Any]) -> _Result | None:
        if is_foreign(str(path)):  # a parser might load an uploaded checkpoint
            print(f"It was uploaded and not adopted, skip {path}", flush=True)
            return None
        try:
            params = load_params(path)
        except FormatError as error:  # skip a damaged folder
            print(f"{error.message}, skip {path}", flush=True)
            return None
        if params is None:
            print(f"No '{layout.PARAM_FILE}' or '{layout.RUN_FILE}' found, skip {path}", flush=True)
            return None
        if verbose:
            print(path.name, flush=True)
        experiment = self.experiments.get(path.name) or Experiment({}, {}, {})
        experiment.param.update(params)
        for func in self.exams:
            try:
                func(path, experiment, caches)
            except Exception as error:
                error.add_note(f"while {getattr(func, '__name__', func)!r} examined {path}")
                raise
        return path.name, experiment, caches

    def table(self, concise: bool = True, print_tsv: bool = True) -> Any:
        """Print the table, tab-separated, and return it as a DataFrame (as a list of dicts without pandas).

        The columns are the parameters and the metrics; `concise` leaves out parameters that have only one value.
        """
        headers, rows = build_table(list(self.experiments.values()), concise)
        if print_tsv:
            print(render_tsv(headers, rows))
        try:
            import pandas as pd
        except ImportError:
            return [dict(zip(headers, row, strict=True)) for row in rows]
        return pd.DataFrame(rows, columns=headers)


# ---------------------------------------------------------------- several processes

_Result = tuple[str, Experiment, dict[Any, Any]]
_work: tuple[Examiner, list[Path], bool] | None = None  # inherited by forked workers, so that closures need no pickling


def _exam_in_processes(examiner: Examiner, paths: list[Path], verbose: bool, workers: int) -> Iterator[_Result]:
    global _work  # noqa: PLW0603 inherited through fork
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    _work = (examiner, paths, verbose)
    try:
        with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("fork")) as pool:
            chunk = max(1, len(paths) // (workers * 4))
            yield from filter(None, pool.map(_exam_by_number, range(len(paths)), chunksize=chunk))
    finally:
        _work = None


def _exam_by_number(number: int) -> _Result | None:
    if _work is None:
        raise RuntimeError("a worker that was not forked from the examiner")
    examiner, paths, verbose = _work
    return examiner._exam_one(paths[number], verbose, {})  # noqa: SLF001 the same module


# ---------------------------------------------------------------- folders


def find_outputs(output: str | os.PathLike[str], regex: str) -> list[Path]:
    """Return the folders sorted by name, without links to other folders of the result, which would count twice."""
    folder = Path(output)
    if not folder.is_dir():
        hint = "name the folder that holds the runs' folders: exam(output=...)"
        raise NotFoundError("folder", str(output), hint=hint)
    try:
        pattern = re.compile(regex)
    except re.error as error:
        raise UsageError(f"regex {regex!r} is not a regular expression: {error}") from error
    found: dict[Path, Path] = {}
    for path in sorted(folder.iterdir(), key=lambda path: (path.is_symlink(), path.name)):
        if path.is_dir() and not path.name.startswith(".") and pattern.search(path.name):
            found.setdefault(path.resolve(), path)
    return sorted(found.values(), key=lambda path: path.name)


def load_params(path: Path) -> dict[str, Any] | None:
    """Load the parameters of a run from mlrunner's `param` or Assay's `run.json`; None if the run has neither file."""
    with contextlib.suppress(FileNotFoundError, IsADirectoryError):
        return _parse_param((path / layout.PARAM_FILE).read_text("utf-8", "replace"), path)
    try:
        fields = parse_json((path / layout.RUN_FILE).read_text("utf-8", "surrogateescape"))
        spec = fields.get("spec") or fields
        return {"_name": spec["name"], "_output": str(path), **spec["params"]}
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"{path / layout.RUN_FILE} is damaged: {error}") from error


def _parse_param(text: str, path: Path) -> dict[str, Any]:
    from assay.config.source import parse_yaml_mapping

    problems: list[str] = []
    try:
        params = parse_yaml_mapping(text, str(path / layout.PARAM_FILE), problems)
    except ImportError as error:
        raise MissingPackageError("reading mlrunner's param files", "PyYAML") from error
    if problems or not params:
        raise FormatError(problems[0] if problems else f"{path / layout.PARAM_FILE} contains no parameters")
    return {str(key): value for key, value in params.items()}


def latest_log(command: str, path: str | os.PathLike[str], index: int = -1) -> Path | None:
    """Return the log at `index` of a command's logs in a run's folder, sorted from the oldest to the newest."""
    ours = re.compile(re.escape(command) + r"(?:\.(\d+))?\.log")
    try:
        names = sorted(os.listdir(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    found = [name for name in names if name.startswith(f"log.{command}.")]
    attempts = [(int(match[1] or 1), name) for name in names if (match := ours.fullmatch(name))]
    logs = found + [name for _, name in sorted(attempts)]
    return Path(path) / logs[index] if -len(logs) <= index < len(logs) else None


# ---------------------------------------------------------------- the table


def build_table(experiments: list[Experiment], concise: bool) -> tuple[list[str], list[list[Any]]]:
    values: dict[str, set[object]] = {}
    for experiment in experiments:
        for name, value in experiment.param.items():
            if not name.startswith("_"):
                values.setdefault(name, set()).add(_identify(value))
    params = sorted(name for name, seen in values.items() if not concise or len(seen) > 1)
    metrics = sorted({name for experiment in experiments for name in experiment.metric}, key=str)
    rows = [[e.param.get(name) for name in params] + [e.metric.get(name) for name in metrics] for e in experiments]
    return [*params, *map(str, metrics)], rows


def _identify(value: object) -> object:
    """Return the value if a set can contain it, else its text, as for a list or a dict."""
    try:
        hash(value)
    except TypeError:
        return ("unhashable", repr(value))
    return value


def render_tsv(headers: list[str], rows: list[list[Any]]) -> str:
    return "\n".join("\t".join(re.sub(r"[\t\r\n]+", " ", str(cell)) for cell in line) for line in [headers, *rows])
