"""`assay.log`: metrics from inside a training script, one line of JSON per call.

<run dir>/metrics/a<attempt>-r<rank>-<host>-<pid>-<start>.jsonl    {"step":100,"time":1700000000.25,"loss":0.25}

Every process has its own file and writes each line at once. A buffer that a thread empties would be twice as fast (730k
calls a second instead of 370k), but lines would be lost when the process is killed, and a thread would disturb a fork.
Outside a run the first call opens `runs/adhoc/<name>/` and prints its path.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping

from assay.values import layout

_RANK_VARIABLES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_RESERVED = {
    "step": "pass it as a keyword: assay.log({...}, step=100)",
    "epoch": "pass it as a keyword: assay.log({...}, epoch=3)",
    "time": "every line has a time already; choose another name, such as 'seconds'",
}
_RETRY_S = 1.0  # the time between two attempts to write to a disk that refused
_BACKLOG_BYTES = 8 << 20  # the most data that is kept in memory until it can be written
_GONE = (errno.EBADF, errno.ESTALE)  # the descriptor was closed by other code, or the file deleted on a server
_KEY_LIMIT = 10_000  # the most names whose JSON is cached

# Modules that only an ad hoc run needs are imported where such a run begins and ends: inside a run they are not loaded.
_clock = time.time
_keys: dict[str, str] = {}  # name -> ',"name":'


def log(
    metrics: Mapping[str, object] | None = None,
    /,
    *,
    step: object = None,
    epoch: object = None,
    **values: object,
) -> None:
    """Record numbers: `assay.log(loss=0.25, step=100)`, or `assay.log({"val/acc": 0.9}, epoch=3)` for any name.

    Numbers are Python's, numpy's, or one-element tensors. A disk that is full or gone is reported once and never
    stops the training; lines that could not be written are tried again later.
    """
    if metrics is not None:
        if not isinstance(metrics, Mapping):
            raise TypeError(
                f"assay.log takes names with numbers, not {_describe(metrics)}: "
                'assay.log(loss=0.25, step=100) or assay.log({"val/acc": 0.9}, step=100)'
            )
        values = {**metrics, **values}
    # whole numbers and finite floats are rendered in place: a call for each would cost a fifth of the speed
    line = "{" if step is None else f'{{"step":{step if type(step) is int else _render_value("step", step)},'
    if epoch is not None:
        line += f'"epoch":{_render_value("epoch", epoch)},'
    line += f'"time":{_clock():.3f}'
    for name, value in values.items():
        text = repr(value) if type(value) is float and value - value == 0.0 else _render_value(name, value)
        line += (_keys.get(name) or _render_key(name)) + text
    if values:
        (_stream or _open_stream()).write(f"{line}}}\n".encode())


# ---------------------------------------------------------------- the content of a line


def _render_key(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise TypeError(f"a metric's name is a text that is not empty, not {name!r}")
    if name in _RESERVED:
        raise ValueError(f"{name!r} cannot be the name of a metric: {_RESERVED[name]}")
    if len(_keys) >= _KEY_LIMIT:
        _keys.clear()
    return _keys.setdefault(name, f",{json.dumps(name)}:")


def _render_value(name: object, value: object) -> str:
    """Render a number as JSON; NaN and Infinity as Python's json writes and reads them."""
    number = build_number(value)
    if number is None:
        raise TypeError(f"assay.log: {name!r} must be a single number, not {_describe(value)}")
    return json.dumps(number)


def build_number(value: object) -> int | float | None:
    """Convert a value to a number; None if it is not one number. Tensors and numpy scalars are known by `item()`."""
    item = getattr(value, "item", None)
    if callable(item):
        try:
            value = item()
        except (ValueError, TypeError, RuntimeError):  # the value has more than one element
            return None
    if isinstance(value, int):  # also a bool
        return int(value) if abs(value) < 1 << 63 else _to_float(value)
    return _to_float(value) if hasattr(value, "__float__") else None


def _to_float(value: object) -> float | None:
    try:
        return float(value)  # type: ignore[arg-type]
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")  # type: ignore[operator]
    except (ValueError, TypeError, RuntimeError):
        return None


def _describe(value: object) -> str:
    shape = getattr(value, "shape", None)
    if shape is not None:
        return f"a {type(value).__name__} of shape {tuple(shape) if isinstance(shape, Iterable) else shape}"
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"


# ---------------------------------------------------------------- the file of metrics


class Stream:
    """A file to which lines are appended. Lines that the disk refuses are kept in memory, in order, for a later call.
    `who`: the name in messages; `open_file` returns a path and its open descriptor, and is called again if it fails."""

    def __init__(self, who: str, open_file: Callable[[], tuple[str, int]]) -> None:
        self.path: str | None = None  # None until the file is open
        self._who = who
        self._open_file = open_file
        self._fd = -1
        self._backlog: list[bytes] = []
        self._waiting_bytes = 0
        self._lost = 0
        self._retry_at = 0.0
        self._warned = False
        self._lock = threading.RLock()  # a signal handler may log during a call
        _streams.add(self)

    def write(self, data: bytes) -> None:
        """Write a line by one system call, which the kernel does not mix with those of other threads."""
        if self._fd < 0 or self._backlog:
            with self._lock:
                self._keep(data)
                if time.monotonic() >= self._retry_at:
                    self.retry()
            return
        try:
            written = os.write(self._fd, data)
        except OSError as error:
            self._refused(data, error)
        else:
            if written < len(data):
                self._refused(data[written:], None)

    def _refused(self, rest: bytes, error: OSError | None) -> None:
        with self._lock:
            self._keep(rest)
            self._postpone(error)

    def _keep(self, data: bytes) -> None:
        if self._waiting_bytes + len(data) > _BACKLOG_BYTES:
            self._lost += 1
            return
        self._backlog.append(data)
        self._waiting_bytes += len(data)

    def retry(self) -> None:
        """Open the file if it is not open, and write the lines that are kept in memory."""
        with self._lock:
            data = b"".join(self._backlog)
            try:
                if self._fd < 0:
                    self.path, self._fd = self._open_file()
                while data:
                    data = data[os.write(self._fd, data) :]
            except OSError as error:
                if error.errno in _GONE:
                    self._fd = -1
                self._postpone(error)
            self._backlog = [data] if data else []
            self._waiting_bytes = len(data)

    def _postpone(self, error: OSError | None) -> None:
        self._retry_at = time.monotonic() + _RETRY_S
        if self._warned:
            return
        self._warned = True
        import atexit

        reason = (error.strerror or str(error)) if error else "the disk is full"
        where = self.path or (error and error.filename) or "its file"
        say(f"{self._who} cannot write {where}: {reason}. The script goes on; it is tried again later.")
        atexit.register(self._give_up)

    def _give_up(self) -> None:
        if self._backlog:
            self.retry()
        if self._backlog or self._lost:
            waiting = sum(data.count(b"\n") for data in self._backlog)
            say(f"{self._who} lost {self._lost + waiting} lines that could not be written.")

    def close(self) -> None:
        """Write the lines that are kept in memory and close the file; a later line opens the file again."""
        if self._backlog:
            self.retry()
        self.forget()

    def forget(self) -> None:
        """Drop the descriptor and the kept lines, which belong to the parent in a forked child."""
        self._lock = threading.RLock()
        self._backlog, self._waiting_bytes, self._lost = [], 0, 0
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):  # the script may have closed every descriptor it found
                os.close(fd)


_streams: weakref.WeakSet[Stream] = weakref.WeakSet()
_stream: Stream | None = None  # the stream of `log`
_opening = threading.RLock()


def _open_stream() -> Stream:
    global _stream  # noqa: PLW0603 there is one stream per process
    with _opening:
        if _stream is None:
            _stream = Stream("assay.log", _open_own_file)
        return _stream


def close_stream() -> None:
    """Close the file of `log`: later calls open a new file."""
    if _stream is not None:
        _stream.close()


def _open_own_file() -> tuple[str, int]:
    """Create a file that no other process shares, earlier or on another host: appending needs no lock."""
    folder = os.path.join(find_run_dir(), layout.METRICS_DIR)
    os.makedirs(folder, exist_ok=True)
    while True:
        path = os.path.join(folder, build_file_name(time.time_ns() // 1000))
        with contextlib.suppress(FileExistsError):
            return path, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)


def _after_fork_in_child() -> None:
    global _opening  # noqa: PLW0603
    _opening = threading.RLock()
    for stream in _streams:
        stream.forget()


os.register_at_fork(after_in_child=_after_fork_in_child)


def build_file_name(start: int) -> str:
    host = re.sub(r"[^\w.]", "_", os.uname().nodename)
    attempt = os.environ.get(layout.ENV_ATTEMPT_NUMBER, "")
    return f"a{attempt if attempt.isdecimal() else 1}-r{find_rank()}-{host}-{os.getpid()}-{start}.jsonl"


def find_rank() -> int:
    """Return the rank of this process among the processes that train one model."""
    return next((int(os.environ[name]) for name in _RANK_VARIABLES if os.environ.get(name, "").isdecimal()), 0)


def say(text: str) -> None:
    # a broken or full stderr must not stop the training
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)


# ---------------------------------------------------------------- outside a run

_adhoc_dir: str | None = None
_owner_pid = 0  # the process that opened the run: a forked child shares the run and does not end it
_began_at = 0.0
_unfinished = ""  # why the run would have failed if it ended now


def find_run_dir() -> str:
    """Return the directory of the run that started this process, or of an ad hoc run, shared with forked children."""
    inside = os.environ.get(layout.ENV_RUN_DIR)
    if inside:
        return os.path.abspath(inside)
    if _adhoc_dir is None:
        path = begin_adhoc_run(layout.ADHOC_STUDY, f"{time.strftime('%Y%m%d-%H%M%S')}-{build_random_name()}")
        say(f"assay.log: not inside a run, so metrics go to {path}")
        return path
    return _adhoc_dir


def begin_adhoc_run(study: str, name: str) -> str:
    """Open an ad hoc run for everything that this process logs to files that are opened later; return the run's
    folder. A name that is taken gets a number. An earlier ad hoc run of this process is ended."""
    global _adhoc_dir, _owner_pid, _began_at, _unfinished
    root = os.environ.get("ASSAY_ROOT") or layout.DEFAULT_ROOT
    folder = os.path.join(os.path.abspath(root), study)
    path, number = os.path.join(folder, name), 1
    while os.path.exists(path) or not _write_adhoc_run(path, study):
        number += 1
        path = os.path.join(folder, f"{name}-{number}")
    _conclude(find_code(sys.exc_info()[1]))
    _adhoc_dir, _owner_pid, _began_at, _unfinished = path, os.getpid(), time.time(), ""
    import atexit

    atexit.unregister(_leave)
    atexit.register(_leave)
    multiprocessing = sys.modules.get("multiprocessing.process")
    if multiprocessing is not None and multiprocessing.parent_process() is not None:
        from multiprocessing.util import Finalize  # a forked worker ends without `atexit`

        Finalize(None, end_adhoc_run, [path], exitpriority=-100)
    return path


def build_random_name() -> str:
    import random

    from assay.values.random_names import ADJECTIVES, ANIMALS

    chance = random.SystemRandom()  # the script's random state has no effect and is not changed
    return f"{chance.choice(ADJECTIVES)}-{chance.choice(ANIMALS)}"


def _write_adhoc_run(path: str, study: str) -> bool:
    """Write the files of an ad hoc run; return False if another process has taken the name."""
    from assay.system.files import rename, write_new
    from assay.values.secrets import hide_arguments

    uid, began_at = os.urandom(6).hex(), time.time()
    aside = os.path.join(os.path.dirname(path), layout.STUDY_META_DIR, layout.TEMPORARY_PREFIX + uid)
    os.makedirs(aside)
    process = {"host": os.uname().nodename, "pid": os.getpid(), **_read_process_identity()}
    fields = {
        "format": layout.FORMAT_VERSION,
        "kind": "adhoc",
        "study": study,
        "name": os.path.basename(path),
        "id": uid,
        "uid": uid,
        "created_at": began_at,
        "params": {},
        "commands": [],
        "source": "",
        "command_line": hide_arguments(sys.argv),
        "process": process,
    }
    lease = {"executor": "local", "native_id": str(os.getpid()), "slot": None, "attempt": 1, "started_at": began_at}
    files = {
        layout.RUN_FILE: json.dumps(fields, ensure_ascii=False) + "\n",
        layout.numbered_name("lease", 1): json.dumps({**lease, **process}),
        layout.numbered_name("end", 1): layout.NOT_ENDED,
    }
    for name, text in files.items():
        write_new(os.path.join(aside, name), text)
    try:
        rename(aside, path)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        for name in files:
            os.remove(os.path.join(aside, name))
        os.rmdir(aside)
        return False
    return True


def _read_process_identity() -> dict[str, object]:
    """Return the values that distinguish this process from a later process with the same pid."""
    from assay.system import processes

    try:
        return {"start": processes.own_start(), "boot": processes.boot_id()}
    except OSError:  # /proc is not mounted
        return {"start": 0, "boot": ""}


# ---------------------------------------------------------------- the end of an ad hoc run


def note_training(run_dir: str, *, is_over: bool) -> None:
    """Note that a training has begun or ended: a run with an unfinished training fails, even if the script goes on."""
    global _unfinished  # noqa: PLW0603
    if run_dir == _adhoc_dir:
        _unfinished = "" if is_over else "its training did not finish"


def end_adhoc_run(run_dir: str, code: int | None = None) -> None:
    """End an ad hoc run of this process, whatever the process does next. Without `code` the run has ended well, unless
    an exception is being handled. Later calls of `log` open another run."""
    if run_dir != _adhoc_dir or (code is None and not threading.main_thread().is_alive()):
        return  # the run has ended, or the interpreter is exiting, and the exit code of the process counts
    close_stream()
    _conclude(find_code(sys.exc_info()[1]) if code is None else code)


def _conclude(code: int = 0) -> None:
    """Write how the ad hoc run of this process ended; a disk that refuses does not stop the script."""
    global _adhoc_dir, _unfinished
    path, missing = _adhoc_dir, _unfinished
    if path is None or _owner_pid != os.getpid():
        return
    _adhoc_dir, _unfinished = None, ""
    code = code % 256 or int(code != 0 or missing != "")
    from assay.system.files import publish, write_new

    with contextlib.suppress(OSError):
        write_new(os.path.join(path, layout.exit_marker_name(layout.SCRIPT, 1, code)), "")
        outcome = {
            "state": "failed" if code else "done",
            "attempt": 1,
            "codes": {layout.SCRIPT: code},
            "reason": missing or (f"{layout.SCRIPT} ended with exit code {code}" if code else ""),
            "started_at": _began_at,
            "ended_at": time.time(),
        }
        publish(layout.numbered_path(path, "outcome", 1), json.dumps(outcome))


def find_code(error: object) -> int:
    """Return the exit code with which Python ends after this error."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    return 0 if error is None else 130 if isinstance(error, KeyboardInterrupt) else 1


def _leave() -> None:
    """End the run at the interpreter's exit. The exit code is not known yet, except after Ctrl-C, which is a signal."""
    if _adhoc_dir is None or _owner_pid != os.getpid():
        return
    is_interrupted = getattr(sys, "last_type", None) is KeyboardInterrupt and not hasattr(sys, "ps1")
    if is_interrupted or _unfinished:
        _conclude(130 if is_interrupted else 1)
        return
    from assay.system.processes import write_status_at_exit

    write_status_at_exit(layout.numbered_path(_adhoc_dir, "end", 1))
