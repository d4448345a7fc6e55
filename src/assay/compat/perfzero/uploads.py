"""Uploads of results: to a store or another folder, to a table of BigQuery, to functions of the user."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, NamedTuple, cast

from assay.bench.api import BenchRequest
from assay.compat.perfzero.download import fetch
from assay.errors import AssayError, InfrastructureError, MissingExtraError, UsageError, did_you_mean
from assay.exchange.api import (
    STORES,
    DataFile,
    check_installed,
    load_listing,
    open_remote,
    parse_local,
    parse_scheme,
)
from assay.system.files import is_inside, parse_json
from assay.values.notify import Notify, ignore

# ---------------------------------------------------------------- a store, or another folder of this machine

_SCHEMES = (*STORES, "file")
_AT_ONCE = 8


def check_target(url: str) -> None:
    """Raise UsageError for a target that can never be used, without the network, which may work later."""
    scheme = parse_scheme(url, _SCHEMES)
    if scheme in STORES:
        check_installed(url)
        return
    target = parse_local(url, scheme)
    try:
        os.makedirs(target, exist_ok=True)
        if not os.access(target, os.W_OK, effective_ids=True):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise UsageError(f"{target} cannot be written: {error.strerror}", "choose another folder") from error


def upload_folder(folder: str, url: str, notify: Notify = ignore) -> int:
    """Send the files of the folder to the URL under the same names, verify that they arrived, and return their number.
    Existing files are replaced. Empty folders are not sent, since object stores do not have folders."""
    scheme = parse_scheme(url, _SCHEMES)
    if not os.path.isdir(folder):
        raise UsageError(f"there is no folder {folder!r} to send")
    if scheme not in STORES and is_inside(parse_local(url, scheme), folder):
        raise UsageError(f"{folder} cannot be sent into itself ({url})")
    files, remote = load_listing(folder).files, open_remote(url, notify)

    def send(file: DataFile) -> None:
        remote.send(file.path, file.name)
        arrived = remote.stat(file.name)
        if arrived is None or not file.bytes <= arrived[0] <= os.path.getsize(file.path):  # a log may grow
            shown = arrived[0] if arrived else "no"
            raise InfrastructureError(f"{url}/{file.name} has {shown} of {file.bytes} bytes", "try again")

    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="upload") as pool:
        list(pool.map(send, files))
    return len(files)


# ---------------------------------------------------------------- a row in BigQuery
# One row per execution in a BigQuery table; dictionaries are sent as JSON text.
#
# Columns: execution_timestamp TIMESTAMP and execution_id STRING, both required; ml_framework_info, benchmark_result,
# benchmark_info, setup_info, system_info and process_info as STRING.

JSON_COLUMNS = ("ml_framework_info", "benchmark_result", "benchmark_info", "setup_info", "system_info", "process_info")
_TIMEOUT_S = 60.0
_RETRY_S = 120.0  # the library's default of ten minutes would delay the next benchmark
_EMULATOR = "BIGQUERY_EMULATOR_HOST"


def build_row(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Build the row of a summary, with NaN and infinity as strings that CAST(… AS FLOAT64) accepts."""
    moment = datetime.fromtimestamp(summary["execution_timestamp"], UTC).isoformat(timespec="microseconds")
    row = {"execution_id": summary["execution_id"], "execution_timestamp": moment.replace("+00:00", "Z")}
    return row | {name: json.dumps(summary[name], allow_nan=False, sort_keys=True) for name in JSON_COLUMNS}


def insert_row(project: str, table: str, row: Mapping[str, Any]) -> None:
    """Insert a row into `dataset.table` of the project. An execution that is sent twice in a minute counts once."""
    try:
        from google.auth.credentials import AnonymousCredentials
        from google.cloud import bigquery
    except ImportError as error:
        raise MissingExtraError("writing to BigQuery", "bigquery") from error
    full_name, anonymous = f"{project}.{table}", cast("Any", AnonymousCredentials)
    try:
        # An emulator has no logins. The client reads the emulator's address from the same variable.
        credentials = anonymous() if os.environ.get(_EMULATOR) else None
        with closing(bigquery.Client(project=project, credentials=credentials)) as client:
            retry = bigquery.DEFAULT_RETRY.with_timeout(_RETRY_S)
            ids = [row["execution_id"]]
            problems = client.insert_rows_json(full_name, [dict(row)], row_ids=ids, retry=retry, timeout=_TIMEOUT_S)
    except Exception as error:
        cause = getattr(error, "cause", None)  # the error of the last retry
        raise _classify(full_name, cause if isinstance(cause, Exception) else error) from error
    if problems:
        details = [detail for problem in problems for detail in problem.get("errors", [])]
        texts = [f"{each.get('location') or 'row'}: {each.get('message') or each.get('reason')}" for each in details]
        raise InfrastructureError(f"BigQuery refused the row for {full_name}: {'; '.join(texts) or list(problems)}")


def _classify(full_name: str, error: Exception) -> AssayError:
    """Turn Google's errors into one-line errors: a mistake of the user, missing rights, a failing service."""
    code, answer = getattr(error, "code", None), getattr(error, "message", None) or str(error) or type(error).__name__
    first = str(answer).strip().splitlines()[0]
    if code == 404:
        hint = f"create it: {render_make_command(full_name)}"
        return UsageError(f"there is no BigQuery table {full_name}: {first}", hint)
    kind = type(error)
    is_about_login = kind.__module__ == "google.auth.exceptions" and kind.__name__ != "TransportError"  # network error
    if code in {401, 403} or is_about_login:
        hint = "run `gcloud auth application-default login`, or name a key file in GOOGLE_APPLICATION_CREDENTIALS"
        return UsageError(f"BigQuery does not let us write to {full_name}: {first}", hint)
    return InfrastructureError(f"BigQuery did not take the row for {full_name}: {first}")


def render_make_command(full_name: str) -> str:
    """Return the command that creates the table with its documented columns. `bq` has a colon after the project."""
    columns = ["execution_timestamp:TIMESTAMP", "execution_id:STRING", *(f"{name}:STRING" for name in JSON_COLUMNS)]
    return f"bq mk --table {full_name.replace('.', ':', 1)} {','.join(columns)}"


# ---------------------------------------------------------------- a key for Google's services, for the time of one call

VARIABLE = "GOOGLE_APPLICATION_CREDENTIALS"


@contextmanager
def google_key(url: str | None) -> Iterator[None]:
    """Fetch the key into a private folder, set it in the environment of this process, and remove it at the end. The key
    is never written into a workspace, and gcloud's own accounts do not change."""
    if url is None:
        yield
        return
    before = {VARIABLE: os.environ[VARIABLE]} if VARIABLE in os.environ else {}
    with tempfile.TemporaryDirectory(prefix="assay-key-", ignore_cleanup_errors=True) as folder:  # mode 0700
        path = os.path.join(folder, "key.json")
        fetch(url, path, decompress=False)
        is_key = False
        with suppress(OSError, ValueError), open(path, encoding="utf-8") as file:
            is_key = isinstance(parse_json(file.read()), dict)
        if not is_key:  # it may be a login page, which Google's libraries would report only after the benchmarks
            raise InfrastructureError(f"--gcloud_key_file_url: what {url.partition('?')[0]} gives is not a key file")
        os.chmod(path, 0o600)
        os.environ[VARIABLE] = path
        try:
            yield
        finally:
            os.environ.pop(VARIABLE, None)
            os.environ.update(before)


# ---------------------------------------------------------------- the user's own functions
# Each function is called with the summary in a process of its own. Another process checks that the function exists
# before the benchmarks, which may take hours.

_CALL_TIMEOUT_S = 600.0
_FRAMES = 3
# Any interpreter can run _PROGRAM, which imports nothing of Assay. The working directory is first on the program's
# path. Without a summary the program only checks that the function exists.
_PROGRAM = """
import importlib, json, os, sys, traceback
name, summary, answer = sys.argv[1], sys.stdin.buffer.read(), {}
sys.path.extend(json.loads(sys.argv[2]))
module, _, function = name.rpartition(".")
try:
    found = importlib.import_module(module)
    answer["known"] = [key for key, value in vars(found).items() if callable(value) and not key.startswith("_")]
    answer["there"] = hasattr(found, function)
    answer["callable"] = callable(getattr(found, function, None))
    if summary:
        getattr(found, function)(json.loads(summary))
except Exception as error:
    foreign = ("<string>", "<frozen", importlib.__file__)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(foreign)]
    text = "".join(traceback.format_exception_only(type(error), error)).strip().splitlines()
    answer["error"] = text[-1], ["%s:%s in %s" % (os.path.relpath(f.filename), f.lineno, f.name) for f in frames]
    answer["absent"] = getattr(error, "name", None)
with os.fdopen(int(sys.argv[3]), "w") as out:
    json.dump(answer, out, default=str)
sys.exit("error" in answer)
"""


def check_upload_method(name: str, bench: BenchRequest) -> None:
    """Raise UsageError if the function does not exist. The function is not called, since there is no summary yet."""
    done = _run(name, b"", bench)
    answer, module = done.answer, name.rpartition(".")[0]
    what = f"--result_upload_methods: {name}"
    if done.is_late:  # the import is slow: the later call of the function shows whether it works
        return
    if not answer:
        raise UsageError(f"{what} cannot be called: importing {module} ends the process with exit code {done.code}")
    if "error" in answer:
        is_absent = answer["absent"] is not None and f"{module}.".startswith(f"{answer['absent']}.")
        hint = "modules are looked for in the working directory, in --python_path and on PYTHONPATH"
        raise UsageError(f"{what} cannot be called: {_describe(answer['error'])}", hint if is_absent else None)
    if not answer["there"]:
        attribute = name.rpartition(".")[2]
        raise UsageError(f"{what}: module {module} has no {attribute!r}", did_you_mean(attribute, answer["known"]))
    if not answer["callable"]:
        raise UsageError(f"{what} is not a function", "write module.function")


def call_upload_method(
    name: str, summary: Mapping[str, Any], bench: BenchRequest, print_line: Callable[[str], None]
) -> str | None:
    """Call `module.function` with the summary and print its output; return why it failed, or None."""
    done = _run(name, json.dumps(summary).encode(), bench)
    for line in done.lines:
        print_line(line)
    if done.is_late:
        return f"{name} took longer than {_CALL_TIMEOUT_S:g} s"
    if done.code == 0:
        return None
    last = done.lines[-1][-300:] if done.lines else f"it ended with exit code {done.code}"
    return f"{name}: {_describe(done.answer['error']) if 'error' in done.answer else last}"


def _describe(error: Sequence[Any]) -> str:
    """Return the error, and the lines of the user's own files where it was raised, the innermost first."""
    text, frames = error
    return f"{text[-300:]} ({', called from '.join(reversed(frames[-_FRAMES:]))})" if frames else text[-300:]


class _CallResult(NamedTuple):
    code: int
    lines: Sequence[str]  # the function's output
    answer: Mapping[str, Any]  # the report of _PROGRAM
    is_late: bool = False


def _run(name: str, content: bytes, bench: BenchRequest) -> _CallResult:
    """Run _PROGRAM in the folder of the benchmarks, with the benchmarks' interpreter and path."""
    with tempfile.TemporaryFile() as answer:
        words = [bench.python or sys.executable, "-c", _PROGRAM, name, json.dumps(bench.python_path)]
        with subprocess.Popen(
            [*words, str(answer.fileno())],
            cwd=bench.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=(answer.fileno(),),
        ) as process:
            try:
                output, _ = process.communicate(content, _CALL_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                return _CallResult(-1, (), {}, is_late=True)
            finally:  # also kills processes that the program left behind
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        answer.seek(0)
        lines = [line.rstrip() for line in output.decode("utf-8", "replace").splitlines() if line.strip()]
        return _CallResult(process.returncode, lines, json.loads(answer.read() or b"{}"))
