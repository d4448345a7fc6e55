"""`assay perfzero`: runs Assay's benchmarks in PerfZero's workspace, and writes PerfZero's summaries.

Every execution is an ordinary run of the study `bench`. PerfZero's files are written as soon as the execution ends,
and sent to the configured targets before the next one begins.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import Any

from assay.bench.api import (
    BENCH_REPORT_FILE,
    BenchExecution,
    load_child_report,
    load_execution,
    load_readings,
    run_benchmarks,
    write_execution,
)
from assay.compat.perfzero.download import fetch
from assay.compat.perfzero.profile_data import arrange_profiles
from assay.compat.perfzero.site_packages import check_out_all, load_own_package
from assay.compat.perfzero.summary import (
    build_package,
    build_package_info,
    build_summary,
    render_end,
    render_json,
    render_log_end,
    render_log_head,
    render_process_info,
    render_profile_hint,
    render_summary,
)
from assay.compat.perfzero.uploads import (
    build_row,
    call_upload_method,
    check_target,
    check_upload_method,
    google_key,
    insert_row,
    upload_folder,
)
from assay.compat.perfzero.values import (
    LOG_FILE,
    PROCESS_FILE,
    PROFILE_DIR,
    SUMMARY_FILE,
    Clock,
    PerfzeroJob,
    PerfzeroReport,
)
from assay.errors import AssayError, MissingExtraError, UsageError
from assay.follow.api import Event
from assay.launch.api import RunHooks
from assay.show.console import Console, silence
from assay.show.formatting import render_count
from assay.system.files import list_names, read_end, write_atomic

Facts = Mapping[str, Any]

_LAST_BYTES = 4096  # read from the end of a log, which has the child's own messages


class PerfzeroConsole(Console):
    """A console whose results are the summaries. `quiet` also hides the output of methods."""

    def __init__(self, *, quiet: bool = False, debug: bool = False) -> None:
        super().__init__(quiet=quiet)
        self._debug = debug

    def write(self, text: str) -> None:
        """Write a result. If that fails, as on a full disk, the remaining benchmarks still run, without output."""
        try:
            super().write(text)
        except OSError:
            silence(self.out)

    def detail(self, text: str) -> None:
        """Print a line with --debug only."""
        if self._debug:
            self.error(text)


def run_perfzero(
    job: PerfzeroJob, hooks: RunHooks, console: PerfzeroConsole, version: str = "", command_line: tuple[str, ...] = ()
) -> PerfzeroReport:
    """Download data, check out repositories, run every method of every trial; a failed method does not stop others."""
    clock = Clock()
    with ExitStack() as stack:
        with clock.measure("activate_gcloud_service"):
            stack.enter_context(google_key(job.key_url))
        # refuse impossible targets now, not after hours of benchmarks, and without the network
        if job.bigquery_project and not _is_installed("google.cloud.bigquery"):
            raise MissingExtraError("writing to BigQuery", "bigquery")
        if job.output_url:
            check_target(job.output_url)
        with clock.measure("download_data"):
            for each in job.downloads:
                fetch(each.url, each.path, checksum=each.checksum, notify=console.message)
        with clock.measure("checkout_repository"):
            packages = check_out_all(job.repos, job.site_packages, use_cached=job.use_cached, say=console.message)
        for path in job.bench.python_path:
            # PerfZero ignores missing folders silently, and the import that fails later does not name the cause
            if not os.path.isdir(path):
                names = sorted(list_names(job.site_packages))
                there = ", ".join(name for name in names if not name.startswith("."))
                hint = f"in {job.site_packages} there is {there}" if there else None
                raise UsageError(f"--python_path: there is no folder {path}", hint)
        # the functions are checked after the checkout of repositories, which may contain them
        for name in job.upload_methods:
            console.detail(f"looking for {name}")
            check_upload_method(name, job.bench)
        package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        own = load_own_package(os.path.join(package, "errors.py"))
        harness = {"name": "assay", "version": version, **(build_package(own) if own else {})}
        job = replace(job, packages=packages, harness=harness)
        writer = _ExecutionWriter(job, console)
        request = replace(job.bench, extra=_build_extra(job), command_line=command_line)
        _print_details(job, console)

        def listen(event: Event) -> None:
            hooks.listen(event)
            if event.kind == "ended":
                writer.conclude(event.entry.dir)

        bench = run_benchmarks(request, replace(hooks, listen=listen))
    return PerfzeroReport(bench, tuple(writer.done), clock.seconds, writer.seconds, tuple(writer.problems))


# ---------------------------------------------------------------- before


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # a parent package is missing
        return False


def _print_details(job: PerfzeroJob, console: PerfzeroConsole) -> None:
    console.detail(f"methods: {', '.join(method.text for method in job.bench.methods)}")
    console.detail(f"appended to sys.path: {', '.join(job.bench.python_path) or 'nothing'}")
    for name, package in job.packages.items():
        console.detail(f"{name}: {package.commit} ({package.branch}) of {package.url}{' with edits' * package.dirty}")


def _build_extra(job: PerfzeroJob) -> dict[str, Any]:
    """Return further facts for the history, which distinguish executions of other tools and environments."""
    facts = {
        "command": "perfzero",
        "workspace": job.workspace,
        "platform_name": job.platform_name,
        "system_name": job.system_name,
        "ml_framework_build_label": job.build_label,
        "site_package_info": build_package_info(job),
    }
    return {key: value for key, value in facts.items() if value}


# ---------------------------------------------------------------- after each execution


class _ExecutionWriter:
    """Writes, shows and sends PerfZero's files when an execution has ended."""

    def __init__(self, job: PerfzeroJob, console: PerfzeroConsole) -> None:
        self._job = job
        self._console = console
        self.done: list[BenchExecution] = []
        self.problems: list[str] = []
        self.seconds: dict[tuple[int, str], dict[str, float]] = {}

    def conclude(self, run_dir: str) -> None:
        try:
            execution = load_execution(run_dir)
            if execution is None:  # the directory was removed
                return
            self._report_end(execution)
            execution = self._complete(execution)
            summary = build_summary(execution, self._job)
            write_outputs(execution, summary)
        except (AssayError, OSError) as error:
            self._add_problem(f"{os.path.basename(run_dir)} has no summary: {error}")
            return
        self.done.append(execution)
        self._console.detail(f"{execution.execution_id}: {execution.output_dir}, a run in {run_dir}")
        self._console.write(render_summary(execution, summary))
        if execution.profiles:
            self._console.message(render_profile_hint(execution))
        began = time.monotonic()
        self._send(execution, summary)
        parts = load_parts(execution) | {"log_upload": round(time.monotonic() - began, 3)}
        self.seconds[execution.trial, execution.method] = parts

    def _report_end(self, execution: BenchExecution) -> None:
        """Print how an execution ended, and its notes. With `quiet`, add the child's notes on profiles."""
        shown = execution
        if not self._console.quiet:  # the child has printed some findings, as for an unknown method
            printed = read_end(os.path.join(execution.run_dir, execution.log), _LAST_BYTES).splitlines()
            findings = tuple(found for found in execution.result.findings if f"assay: {found.message}" not in printed)
            shown = replace(execution, result=replace(execution.result, findings=findings))
        (self._console.message if execution.succeeded else self._console.error)(render_end(shown))
        for note in execution.notes:
            self._console.warning(f"{execution.method} trial {execution.trial}: {note}")
        reported = load_child_report(os.path.join(execution.run_dir, BENCH_REPORT_FILE))
        for note in (reported.end or {}).get("profile_notes", ()) if self._console.quiet else ():
            self._console.warning(f"{execution.method} trial {execution.trial}: {note}")

    def _complete(self, execution: BenchExecution) -> BenchExecution:
        """Move and record the profiles, and record the commit of the first repository, if any, as the measured code."""
        folder = os.path.join(execution.output_dir, PROFILE_DIR)
        for problem in arrange_profiles(folder, execution.machine.host or "localhost"):
            self._console.warning(problem)
        profiles = sorted(os.path.join(base, name) for base, _, names in os.walk(folder) for name in names)
        commit = next((package.commit for package in self._job.packages.values()), execution.commit)
        completed = replace(execution, commit=commit, profiles=tuple(profiles))
        if completed != execution:
            write_execution(execution.run_dir, completed)
        return completed

    def _send(self, execution: BenchExecution, summary: Facts) -> None:
        for name, send in _build_deliveries(self._job, execution, summary, self._console):
            try:
                with _stoppable():
                    problem = send()
            except _StoppedError:
                problem = "interrupted"
            except (AssayError, OSError) as error:
                problem = error.render() if isinstance(error, AssayError) else str(error)
            if problem:
                self._add_problem(f"{name} of {execution.execution_id}: {problem}")

    def _add_problem(self, problem: str) -> None:
        self.problems.append(problem)
        self._console.warning(problem)


def write_outputs(execution: BenchExecution, summary: Facts) -> None:
    """Write the files of an execution, the summary last: if the summary exists, the other files are complete."""
    folder = execution.output_dir
    os.makedirs(folder, exist_ok=True)
    readings = load_readings(execution.run_dir)
    write_atomic(os.path.join(folder, PROCESS_FILE), render_process_info(readings, execution))
    # the benchmark's output, which may be large, is copied between the log's first and last lines
    with open(os.path.join(execution.output_dir, LOG_FILE), "wb") as log:
        log.write(render_log_head(execution).encode())
        with suppress(FileNotFoundError), open(os.path.join(execution.run_dir, execution.log), "rb") as output:
            shutil.copyfileobj(output, log, 1 << 20)
        log.write(render_log_end(execution, dict(summary)).encode("utf-8", "replace"))
    write_atomic(os.path.join(folder, SUMMARY_FILE), render_json(summary) + "\n")


def load_parts(execution: BenchExecution) -> dict[str, float]:
    """Return the seconds before the method began, and the seconds of the method; {} if the times are unknown."""
    reported = load_child_report(os.path.join(execution.run_dir, BENCH_REPORT_FILE))
    method_s = (reported.end or {}).get("wall_s")
    if execution.started_at is None or execution.ended_at is None:
        return {}
    whole_s = execution.ended_at - execution.started_at
    if method_s is None:
        return {"method_execution": round(whole_s, 3)}
    return {"class_initialization": round(max(0.0, whole_s - method_s), 3), "method_execution": round(method_s, 3)}


# ---------------------------------------------------------------- sending


def _build_deliveries(
    job: PerfzeroJob, execution: BenchExecution, summary: Facts, console: PerfzeroConsole
) -> Iterator[tuple[str, Callable[[], str | None]]]:
    """Yield name and function of each delivery, the upload of the output folder last."""
    project, table = job.bigquery_project, job.bigquery_table
    if project and table:
        yield f"the row in BigQuery's {table}", lambda: insert_row(project, table, build_row(summary))
    for method in job.upload_methods:
        yield "--result_upload_methods", partial(call_upload_method, method, summary, job.bench, console.message)
    if job.output_url:
        url = f"{job.output_url}/{execution.execution_id}"

        def upload() -> None:
            count = upload_folder(execution.output_dir, url, console.message)
            console.message(f"{render_count(count, 'file')} sent to {url}/")

        yield f"the upload to {job.output_url}", upload


class _StoppedError(Exception):
    """A signal arrived during an upload."""


@contextmanager
def _stoppable() -> Iterator[None]:
    """Let SIGINT and SIGTERM end an upload; raise the signals again, since the loop handles them between executions."""
    caught: list[int] = []

    def stop(number: int, _frame: FrameType | None) -> None:
        caught.append(number)
        raise _StoppedError

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for caught_number in caught:
            os.kill(os.getpid(), caught_number)
