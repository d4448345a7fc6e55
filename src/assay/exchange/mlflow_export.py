"""`assay export mlflow`: studies become experiments, and runs become runs, through MLflow's own client.

A run in MLflow is identified by its tag `assay.uid`, or `assay.key` if it has no uid or was uploaded. Data that MLflow
already has is not sent again, so that a second call completes an interrupted one.
"""

from __future__ import annotations

import glob
import hashlib
import json
import math
import os
import posixpath
import re
import shlex
import traceback
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from assay.errors import AssayError, InfrastructureError, MissingExtraError, UsageError
from assay.exchange.export import ExportedRuns, open_selection
from assay.exchange.importers.mlflow_store import is_store
from assay.exchange.sqlite_file import check_writable
from assay.record import run_directory
from assay.record.importers.sample import Sample
from assay.record.index.base import RunRow
from assay.record.received import describe_facts
from assay.show.console import Console
from assay.show.formatting import render_count
from assay.system.files import list_names
from assay.values import layout
from assay.values.options import Request, argument, option, root_option, where_option
from assay.values.secrets import hide_text
from assay.values.state import State

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

    from assay.values.where import Where

KEY_TAG, UID_TAG, STATE_TAG, TAGS_TAG = "assay.key", "assay.uid", "assay.state", "assay.tags"
PARAMS_TAG = "assay.params"  # parameters as JSON, since MLflow's own parameters are text
EXPORTED_TAG = "assay.exported"  # checksum of the data that was sent last: if it matches, nothing is compared
STATUS = {
    State.QUEUED: "SCHEDULED",
    State.RUNNING: "RUNNING",
    State.DONE: "FINISHED",
    State.STOPPED: "KILLED",
    State.PRUNED: "KILLED",
}  # every other state is FAILED
_MOST_PARAM = 6000  # characters; mlflow.utils.validation defines this limit and the next ones
_MOST_TAG = 8000
_MOST_NAME = 250
_BATCH_METRICS = 1000
_BATCH_PARAMS = 100
_PAGE = 1000
_NOTES_SHOWN = 5
_LARGEST = 1.7976931348623157e308  # MLflow's databases store this number for infinity
EXAMPLE = "for example --to http://localhost:5000 or --to mlflow.db"
_SQLITE = "sqlite:///"
_DATABASE_ENDS = (".db", ".sqlite", ".sqlite3")
_RUN_FILES = (layout.RUN_FILE, layout.ENVIRONMENT_FILE, layout.JOB_FILE, layout.JOB_LOG)
_FOREIGN_FILES = (layout.HPARAMS_FILE, layout.LOGX_LOG_FILE, layout.PARAM_FILE, layout.STAT_FILE)


class MlflowRequest(Request):
    studies: tuple[str, ...] = argument("[STUDY|RUN]...", multiple=True, required=False)
    to: str = option(
        "--to", metavar="URI", required=True, help="Tracking server or SQLite file: http://host:5000, mlflow.db."
    )
    where: Where | None = where_option()
    artifacts: tuple[str, ...] = option(
        "--artifacts",
        multiple=True,
        metavar="GLOB",
        help="Send these files of the run directory as well, such as 'out/*.pt'; may be given again.",
    )
    no_artifacts: bool = option("--no-artifacts", default=False, help="Send no files at all.")
    timeout: int = option(
        "--timeout", type=int, minimum=1, default=30, metavar="S", help="Seconds that a request may take."
    )
    root: str | None = root_option()


def export_mlflow(request: MlflowRequest, console: Console) -> int:
    """Send STUDIES to MLflow: an experiment for each study, a run for each run.

    Send parameters, metrics with steps and times, tags, states and files: logs, run.json, environment.json and job.sh.
    A repeated call sends only what is new.
    """
    check_request(request)
    counts: Counter[str] = Counter()
    notes: dict[str, None] = {}  # notes about values that MLflow cannot store unchanged, each note once
    shown = hide_text(request.to)
    with (
        open_selection(request.studies, request.where, request.root, console) as selection,
        _environment(request),
        warnings.catch_warnings(),
        _explained(shown),
    ):
        warnings.simplefilter("ignore")
        with _explained(shown, is_opening=True):
            client, folder = _open_client(request)
        by_study: dict[str, list[int]] = {}
        for i in selection.chosen:
            by_study.setdefault(selection.table.rows[i].study, []).append(i)
        for study, indexes in by_study.items():
            experiment = _find_experiment(client, study, folder)
            known = _load_known(client, experiment)
            for i in indexes:
                sender = _RunSender(client, selection, i, request, notes)
                how, points, files = sender.send(experiment, known)
                counts.update({how: 1, "points": points, "files": files})
                if how != "unchanged":
                    sent = f"{render_count(points, 'point')}, {render_count(files, 'file')}"
                    console.message(f"{sender.row.key}: {how}, {sent}")
    more = len(notes) - _NOTES_SHOWN
    for note in [*[*notes][:_NOTES_SHOWN], *([f"{more} more such changes"] if more > 0 else [])]:
        console.warning(note)
    hows = ("new", "updated", "unchanged")
    count = render_count(sum(counts[how] for how in hows), "run")
    console.print(
        f"{shown}: {count} ({', '.join(f'{counts[how]} {how}' for how in hows)}), "
        f"{render_count(counts['points'], 'point')}, {render_count(counts['files'], 'file')}"
    )
    return 0


# ---------------------------------------------------------------- the connection


def check_request(request: MlflowRequest) -> None:
    """Raise UsageError for mistakes that can be found without reading any run."""
    if request.artifacts and request.no_artifacts:
        raise UsageError("--artifacts and --no-artifacts contradict each other")
    for pattern in request.artifacts:
        if os.path.isabs(pattern) or ".." in pattern.split("/"):
            hint = "give a pattern inside it: --artifacts 'out/*.pt'"
            raise UsageError(f"--artifacts {pattern} leaves the run directory", hint)
    try:
        parts = urlsplit(request.to)
        is_good = bool(request.to.strip()) and (parts.scheme not in ("http", "https") or bool(parts.hostname))
    except ValueError:
        is_good = False
    if not is_good:
        raise UsageError(f"{hide_text(request.to)!r} is not a tracking URI", EXAMPLE)


def build_tracking_uri(to: str) -> str:
    """Return a URI of MLflow unchanged, or the URI for a path: of a SQLite file, or of `mlflow.db` in a folder."""
    if re.match(r"[a-zA-Z][\w+.-]+:", to) or to == "databricks":  # MLflow reads `a` of `a:b` as a scheme too
        return to
    path = os.path.abspath(to)
    if is_store(Sample(path)):
        target = shlex.join(["mlflow", "migrate-filestore", "--source", to, "--target", _SQLITE + "mlflow.db"])
        hint = f"--to mlflow.db writes a database; `{target}` copies its runs"
        raise UsageError(f"{to} is a store of files, which MLflow does not open since its version 3.13", hint)
    if set("%?") & set(path):  # the meaning of % and ? in a URI depends on the version
        raise UsageError(f"{path}: MLflow cannot open a database with % or ? in its path", EXAMPLE)
    is_folder = os.path.isdir(path) or not (os.path.isfile(path) or os.path.splitext(path)[1] in _DATABASE_ENDS)
    return _SQLITE + (os.path.join(path, "mlflow.db") if is_folder else path)


@contextmanager
def _environment(request: MlflowRequest) -> Iterator[None]:
    """Set options that MLflow reads only from the environment; options that the user has set are not changed.

    MLflow's log is disabled: it reports how a database is made, and prints tracebacks of failures that it retries.
    """
    import logging

    wanted = {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
        "MLFLOW_HTTP_REQUEST_TIMEOUT": str(request.timeout),
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    }
    added = [name for name in wanted if name not in os.environ]
    os.environ.update({name: wanted[name] for name in added})
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(level)
        for name in added:
            os.environ.pop(name, None)


@contextmanager
def _explained(uri: str, *, is_opening: bool = False) -> Iterator[None]:
    try:
        yield
    except AssayError:
        raise
    except ImportError as error:  # MLflow imports the parts of a store on first use
        hint = "install what it needs: pip install 'assay[mlflow]' mlflow"
        raise UsageError(f"{uri}: MLflow cannot use this store: {error}", hint) from error
    except OSError as error:
        raise InfrastructureError(f"{uri}: {error.strerror or error}") from error
    except Exception as error:  # explain an error that MLflow or its database libraries defined or raised
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        origins = (type(error).__module__, str(frame.f_globals.get("__name__", "")))
        if not {"mlflow", "sqlalchemy", "alembic", "sqlite3"} & {origin.split(".")[0] for origin in origins}:
            raise
        raise _explain(uri, error, is_opening) from error


def _explain(uri: str, error: Exception, is_opening: bool) -> AssayError:
    message = hide_text(" ".join(str(error).partition("[SQL:")[0].split())[:400])
    if "failed with exception" in message or "timed out" in message.lower():
        hint = f"check that it runs and can be reached ({message})"
        return InfrastructureError(f"the MLflow server {uri} does not answer", hint)
    if is_opening and ("404" in message or "unsupported URI" in message):
        return UsageError(f"{uri}: {message}", EXAMPLE)
    if "database schema" in message or "Can't locate revision" in message:
        from mlflow.version import VERSION

        hint = f"install its version here, or adapt a copy: mlflow db upgrade {shlex.quote(build_tracking_uri(uri))}"
        return UsageError(f"{uri} was made by another version of MLflow than {VERSION}, the one installed here", hint)
    if "maintenance mode" in message:
        return UsageError(f"{uri} is a store of files, which MLflow does not open since its version 3.13", EXAMPLE)
    return InfrastructureError(f"MLflow at {uri} refused: {message}")


def _open_client(request: MlflowRequest) -> tuple[MlflowClient, str | None]:
    """Return the client, and for a SQLite file the folder for artifacts: MLflow would use the current folder."""
    try:
        from mlflow.tracking import MlflowClient
    except ImportError as error:
        raise MissingExtraError("assay export mlflow", "mlflow") from error
    uri = build_tracking_uri(request.to)
    path = os.path.abspath(uri.removeprefix(_SQLITE)) if uri.startswith(_SQLITE) and uri != _SQLITE else None
    if path is not None:
        check_writable(path, "experiments", request.timeout)
        os.makedirs(os.path.dirname(path), exist_ok=True)
    client = MlflowClient(uri)
    client.search_experiments(max_results=1)
    return client, os.path.join(os.path.dirname(path), "mlartifacts") if path is not None else None


def _find_experiment(client: MlflowClient, study: str, folder: str | None) -> str:
    found = client.get_experiment_by_name(study)
    if found is None:
        return str(client.create_experiment(study, Path(folder, study).as_uri() if folder else None))
    if found.lifecycle_stage != "active":
        hint = f"restore it: mlflow experiments restore --experiment-id {found.experiment_id}"
        raise UsageError(f"the MLflow experiment {study!r} has been deleted", hint)
    return str(found.experiment_id)


def _load_known(client: MlflowClient, experiment: str) -> dict[str, Run]:
    """Load the runs of the experiment that Assay made, by uid or key."""
    known: dict[str, Run] = {}
    token: str | None = None
    while True:
        page = client.search_runs([experiment], max_results=_PAGE, page_token=token)
        for run in page:
            mark = run.data.tags.get(UID_TAG) or run.data.tags.get(KEY_TAG)
            if mark:
                known[mark] = run
        token = page.token
        if not token:
            return known


# ---------------------------------------------------------------- one run


class _RunSender:
    """Sends one run, or only the data of the run that is new."""

    def __init__(
        self, client: MlflowClient, selection: ExportedRuns, i: int, request: MlflowRequest, notes: dict[str, None]
    ) -> None:
        self.client, self.selection, self.i, self.request, self.notes = client, selection, i, request, notes
        self.row: RunRow = selection.table.rows[i]
        self.dir = os.path.join(selection.root, self.row.key)
        self.record = run_directory.try_record(self.dir)
        self.metrics = selection.find_metrics(i)

    def send(self, experiment: str, known: Mapping[str, Run]) -> tuple[str, int, int]:
        """Send the run; return `new`, `updated` or `unchanged`, and the number of points and files that were sent."""
        # an upload may have the uid of another run
        mark = (self.record.uid if self.record and not self.row.is_foreign else "") or self.row.key
        run = known.get(mark)
        stamp = self._build_stamp()
        if run is not None and run.data.tags.get(EXPORTED_TAG) == stamp:
            return "unchanged", 0, 0
        is_new = run is None
        if run is None:
            tags = {KEY_TAG: self.row.key, UID_TAG: mark} if mark != self.row.key else {KEY_TAG: self.row.key}
            run = self.client.create_run(
                experiment, start_time=_to_ms(self._started_at), tags=tags, run_name=self.row.name
            )
        self._send_params(run)
        points = self._send_points(run, is_new)
        files = self._send_files(run, is_new)
        status = STATUS.get(self.row.state, "FAILED")
        if self.row.state.is_over:
            self.client.set_terminated(run.info.run_id, status, _to_ms(self.row.ended_at or self._started_at))
        elif run.info.status != status:
            self.client.update_run(run.info.run_id, status=status)
        # the checksum is sent last, since a run with this checksum is not compared again
        self._send_tags(run, {**self._build_tags(), EXPORTED_TAG: stamp})
        return "new" if is_new else "updated", points, files

    @property
    def _started_at(self) -> float:
        return self.row.started_at or self.row.created_at or 0.0

    def _build_stamp(self) -> str:
        """Return a checksum of the data of the run that is sent."""
        counts = {name: self.selection.table.metrics[name].count[self.i] for name in self.metrics}
        row = self.row._replace(stamp=0.0)
        files = [(name, os.path.getsize(os.path.join(self.dir, name))) for name in self._find_files()]
        content = json.dumps([row, counts, files, not self.request.no_artifacts], default=str, sort_keys=True)
        return hashlib.blake2b(content.encode("utf-8", "replace"), digest_size=8).hexdigest()

    def _send_params(self, run: Run) -> None:
        from mlflow.entities import Param

        given = self.row.params.items()
        texts = {n: v if isinstance(v, str) else json.dumps(v, ensure_ascii=False, default=str) for n, v in given}
        for name, text in texts.items():
            if len(text) > _MOST_PARAM:
                self._note(f"parameter {name!r} has {len(text)} characters and is cut to {_MOST_PARAM}")
        names = self._name_all("parameter", texts)
        params = [Param(names[name], text[:_MOST_PARAM]) for name, text in texts.items()]
        missing = [param for param in params if param.key not in run.data.params]
        for start in range(0, len(missing), _BATCH_PARAMS):
            self.client.log_batch(run.info.run_id, params=missing[start : start + _BATCH_PARAMS])

    def _send_points(self, run: Run, is_new: bool) -> int:
        from mlflow.entities import Metric

        count, names = 0, self._name_all("metric", self.metrics)
        for metric in self.metrics:
            name = names[metric]
            sent: set[tuple[int, int, float | str]] = set()
            if not is_new and name in run.data.metrics:
                history = self.client.get_metric_history(run.info.run_id, name)
                sent = {_identify(point.step, point.timestamp, point.value) for point in history}
            missing = {_identify(*point): point for point in self._load_points(metric)}
            points = [
                Metric(name, value, time, step) for mark, (step, time, value) in missing.items() if mark not in sent
            ]
            for start in range(0, len(points), _BATCH_METRICS):
                self.client.log_batch(run.info.run_id, metrics=points[start : start + _BATCH_METRICS])
            count += len(points)
        return count

    def _load_points(self, metric: str) -> Iterator[tuple[int, int, float]]:
        """Yield the points as MLflow requires them: each has a step, which is an integer, and a time."""
        series = self.selection.index.load_series(self.row.key, metric)
        for number, (step, value, time) in enumerate(zip(series.steps, series.values, series.times, strict=True)):
            if math.isfinite(step) and not step.is_integer():
                self._note(f"metric {metric!r} has fractional steps; MLflow has integers, so they are rounded down")
            yield (
                math.floor(step) if math.isfinite(step) else number,
                _to_ms(time if math.isfinite(time) else self._started_at),
                value,
            )

    def _build_tags(self) -> dict[str, str]:
        row, record = self.row, self.record
        tags = {
            KEY_TAG: row.key,
            STATE_TAG: str(row.state),
            TAGS_TAG: ",".join(row.tags),
            "assay.reason": row.reason,
            "assay.received": describe_facts(row.received),
            "mlflow.note.content": row.note,
            "mlflow.source.git.commit": row.commit or "",
            "mlflow.source.name": record.source if record else "",
        }
        params = json.dumps(dict(row.params), default=str)
        if len(params) <= _MOST_TAG:
            tags[PARAMS_TAG] = params
        return tags

    def _send_tags(self, run: Run, tags: Mapping[str, str]) -> None:
        from mlflow.entities import RunTag

        had = run.data.tags
        changed = [
            RunTag(name, text[:_MOST_TAG]) for name, text in tags.items() if had.get(name, "") != text[:_MOST_TAG]
        ]
        if changed:
            self.client.log_batch(run.info.run_id, tags=changed)

    # ------------------------------------------------------------ names

    def _name_all(self, kind: str, names: Iterable[str]) -> dict[str, str]:
        """Return a unique name that MLflow accepts for each of `names`; no name is a folder of another name."""
        given: dict[str, str] = {}  # name in MLflow -> name in Assay
        every = set(names)
        for name in sorted(every):
            clean = _clean_name(name, every)
            chosen, number = clean, 2
            while chosen in given:
                chosen, number = f"{clean[: _MOST_NAME - 4]}_{number}", number + 1
            given[chosen] = name
            if chosen != name:
                self._note(f"{kind} {name[:80]!r} is named {chosen[:80]!r} in MLflow")
        return {name: chosen for chosen, name in given.items()}

    def _note(self, text: str) -> None:
        self.notes[text] = None

    # ------------------------------------------------------------ files

    def _find_files(self) -> list[str]:
        """Return logs, files that describe the run, and requested files, except secrets and files outside the run."""
        if self.request.no_artifacts:
            return []
        present = list_names(self.dir)
        found = {name for name in (*_RUN_FILES, *_FOREIGN_FILES) if name in present}
        if self.record is not None:
            spec = self.record.spec
            for command in spec.commands:
                for template in (spec.log_name, spec.other_log_name):
                    found |= set(layout.find_logs(present, template, command.name))
        for pattern in self.request.artifacts:  # a pattern that matches a folder includes all files in it
            for name in glob.iglob(pattern, root_dir=self.dir, recursive=True):
                inner = os.path.join(glob.escape(name), "**")
                found |= {name, *glob.iglob(inner, root_dir=self.dir, recursive=True)}
        inside = os.path.realpath(self.dir) + os.sep
        paths = {name: os.path.join(self.dir, name) for name in found if os.path.basename(name) != layout.SECRETS_FILE}
        return sorted(
            name for name, path in paths.items() if os.path.isfile(path) and os.path.realpath(path).startswith(inside)
        )

    def _send_files(self, run: Run, is_new: bool) -> int:
        names = self._find_files()
        sizes: dict[str, dict[str, int | None]] = {}
        count = 0
        for name in names:
            folder = os.path.dirname(name)
            if folder not in sizes:
                known = [] if is_new else self.client.list_artifacts(run.info.run_id, folder or None)
                sizes[folder] = {each.path: each.file_size for each in known}
            path = os.path.join(self.dir, name)
            if sizes[folder].get(name) != os.path.getsize(path) or name == layout.RUN_FILE:
                self.client.log_artifact(run.info.run_id, path, folder or None)
                count += 1
        return count


def _clean_name(name: str, every: set[str]) -> str:
    clean = re.sub(r"[^/\w.\- :]", "_", name) or "_"
    parts = clean.split("/")
    has_folder = any("/".join(parts[:end]) in every for end in range(1, len(parts)))
    if has_folder or posixpath.normpath(clean) != clean or clean[0] == "/":
        clean = clean.replace("/", "_")
    clean = re.sub(r"^\.(?=\.|$)", "_", clean)  # a name must not lead out of a folder
    if len(clean) <= _MOST_NAME:
        return clean
    return f"{clean[: _MOST_NAME - 9]}-{hashlib.blake2b(name.encode('utf-8', 'replace'), digest_size=4).hexdigest()}"


def _identify(step: int, time: int, value: float) -> tuple[int, int, float | str]:
    """Return a key that is equal for a point and MLflow's copy of the point: NaN != NaN, and infinities may be cut."""
    if math.isnan(value):
        return step, time, "nan"
    return step, time, min(max(value, -_LARGEST), _LARGEST)


def _to_ms(seconds: float) -> int:
    with suppress(OverflowError, ValueError):
        return max(0, round(seconds * 1000))
    return 0
