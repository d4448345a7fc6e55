"""Profiles a window of a benchmark: by the framework itself, by py-spy, or, if neither is available, by a sampling
thread.

A thread waits for the windows and profiles them. A timer signal in the main thread would not work: TensorFlow handles
signals in the middle of its operations, and any handler that runs there corrupts its heap. Every profiler writes a file
that Chrome's about:tracing and ui.perfetto.dev open, except TensorFlow's, whose file is in the folder that
TensorBoard's profile tab reads.

A method may import its framework itself, in the middle of a window: another profiler samples until the import is
complete, then the framework's own profiler takes over.

`python -m assay child command-profile` profiles a command line from outside. command.py starts the profiler with
the command, and closes the profiler's input when the command has ended. The profiler prints a line of JSON: the files,
and why a window has no file. A window waits for Python, which the command may start later or never.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from types import FrameType
from typing import IO, Any, Protocol

from assay.bench.values.execution import ProfileWindow, parse_windows, render_windows
from assay.system import processes
from assay.system.files import list_names, rename

_SAMPLE_S = 0.005  # interval of the samples of the stacks
_MOST_FRAMES = 100  # the most frames of a stack that are recorded
_FRAMEWORKS = ("torch", "tensorflow")
_THREAD = "assay-profile"  # prefix of the names of our own threads
_ANSWER_S = 60.0
_READY_S = 0.02  # interval of the checks for a framework, or for an interpreter
_AGAIN_S = 0.1  # a signal that arrives just before the main thread begins to wait is handled with the next one


class Profiler(Protocol):
    def start(self) -> None: ...
    def stop(self) -> None: ...


class _MainThread:
    """Runs functions in the main thread for another thread."""

    def __init__(self) -> None:
        self._task: Callable[[], None] | None = None
        self._done = threading.Event()
        self._error: Exception | None = None
        self._before: Any = None

    def listen(self) -> None:
        self._before = signal.signal(signal.SIGALRM, self._handle)

    def call(self, task: Callable[[], None]) -> None:
        self._error = None
        self._done.clear()
        self._task = task
        deadline = time.monotonic() + _ANSWER_S
        while time.monotonic() < deadline:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)
            if self._done.wait(_AGAIN_S):
                break
        else:
            raise RuntimeError("the main thread did not answer")
        if self._error is not None:
            raise self._error

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        task, self._task = self._task, None
        if task is None:
            return
        try:
            task()
        except Exception as error:  # noqa: BLE001 `call` raises it
            self._error = error
        finally:
            self._done.set()

    def close(self) -> None:
        signal.signal(signal.SIGALRM, self._before or signal.SIG_DFL)


class Profile:
    """Profiles the windows of one benchmark, one after another."""

    def __init__(self, windows: Sequence[ProfileWindow], kind: str, folder: str, py_spy: str = "") -> None:
        self._windows = windows
        self._kind = kind
        self._folder = folder
        self._py_spy = py_spy
        self._began = 0.0
        self._begun = 0  # number of windows that have begun
        self.notes: list[str] = []  # why a window has no profile
        self._is_profiling = threading.Event()
        self._over = threading.Event()
        self._main = _MainThread()
        self._thread = threading.Thread(target=self._follow, daemon=True, name=_THREAD)

    def start(self) -> None:
        """Start the profile. Wait for the beginning of a window from 0, since the benchmark may end within 1 ms."""
        torch: Any = sys.modules.get("torch") if self._kind != "py-spy" else None
        if torch is not None:  # the first start of torch's profiler takes seconds, which would fill a short window
            with contextlib.suppress(Exception):  # the first window reports the problem
                first = torch.profiler.profile(activities=_choose_activities(torch))
                first.start()
                first.stop()
        self.follow()
        if self._windows and not self._windows[0].begin_s:
            self._is_profiling.wait()

    def follow(self, began: float | None = None) -> None:
        """Start the thread. `began`: when the benchmark began, by the monotonic clock; None: now."""
        os.makedirs(self._folder, exist_ok=True)
        self._main.listen()
        self._began = time.monotonic() if began is None else began
        self._thread.start()

    def _follow(self) -> None:
        for number, window in enumerate(self._windows, 1):
            if self._wait_until(window.begin_s):
                return
            self._begun = number
            try:
                self._profile_window(window, number)
            except Exception as error:  # noqa: BLE001 a profile that fails must not fail the benchmark
                kind = "" if type(error) is RuntimeError else f"{type(error).__name__}: "
                self._note(f"window {number} has no profile: {kind}{error}")
            finally:
                self._is_profiling.set()

    def _profile_window(self, window: ProfileWindow, number: int) -> None:
        framework = find_framework(self._kind) or self._sample(window, number)
        if framework is None:
            return
        profiler = build_profiler(framework, self._folder, number, self._main)
        asked = time.monotonic()
        profiler.start()
        self._is_profiling.set()
        late_s = time.monotonic() - asked  # the window keeps its length, even if the start takes longer
        self._wait_until(None if window.end_s is None else window.end_s + late_s)
        profiler.stop()

    def _sample(self, window: ProfileWindow, number: int) -> str | None:
        """Sample with another profiler until a framework is loaded; return its name, or None at the window's end."""
        stand_in = choose_stand_in(self._kind, self._folder, number, self._py_spy)
        if stand_in is not None:
            stand_in.start()
        self._is_profiling.set()
        framework = None
        while framework is None and not self.is_past(window.end_s, _READY_S):
            framework = find_framework(self._kind)
        if stand_in is None and framework is None:
            begun = next((name for name in _FRAMEWORKS if name in sys.modules), None)
            raise RuntimeError(
                f"{begun} was still being imported" if begun else "neither torch nor tensorflow is loaded"
            )
        with contextlib.suppress(*[Exception] if framework else []):  # a stand-in may end too early for any sample
            if stand_in is not None:
                stand_in.stop()
        return framework

    def is_past(self, end_s: float | None, wait_s: float) -> bool:
        """Wait briefly, and return whether the window or the benchmark has ended."""
        moment_s = time.monotonic() - self._began + wait_s
        if end_s is not None and end_s <= moment_s:
            self._wait_until(end_s)
            return True
        return self._wait_until(moment_s)

    def _wait_until(self, moment_s: float | None) -> bool:
        """Wait until a moment (None: forever) or the benchmark's end; return whether the benchmark has ended."""
        left_s = None if moment_s is None else moment_s - (time.monotonic() - self._began)
        return self._over.wait(None if left_s is None else max(0.0, left_s))

    def finish(self) -> list[str]:
        """End the current profile and omit further windows, as the benchmark has ended. Returns the written files."""
        elapsed_s = time.monotonic() - self._began
        self._over.set()
        self._thread.join()
        self._main.close()
        elapsed = f"{elapsed_s:.1f} s" if elapsed_s >= 1 else f"{elapsed_s:.2g} s"
        for window in self._windows[self._begun :]:
            self._note(f"ended after {elapsed}; the window {render_windows([window])} never began")
        found = [os.path.join(base, name) for base, _, names in os.walk(self._folder) for name in names]
        return sorted(os.path.relpath(path, self._folder) for path in found)

    def _note(self, text: str) -> None:
        """Add a text to the notes, and print it to the log."""
        self.notes.append(text)
        print(f"assay: warning: {text}", file=sys.stderr)


def find_framework(kind: str) -> str | None:
    """Find the framework whose own profiler is used: one whose import is complete, since it lacks names before."""
    known = [(name, sys.modules[name]) for name in _FRAMEWORKS if name in sys.modules and kind != "py-spy"]
    return next((name for name, module in known if not getattr(module.__spec__, "_initializing", False)), None)


def build_profiler(framework: str, folder: str, number: int, main: _MainThread) -> Profiler:
    module = sys.modules[framework]
    if framework == "torch":
        return _Torch(module, os.path.join(folder, f"torch-{number}.json"), main)
    return _TensorFlow(module, folder, number)


def choose_stand_in(kind: str, folder: str, number: int, py_spy: str = "") -> Profiler | None:
    """Choose the profiler if no framework is loaded: py-spy, or our own thread. None if a framework is required."""
    if kind == "framework":
        return None
    program = py_spy or shutil.which("py-spy")
    if program is not None:
        return PySpy(program, os.path.join(folder, f"py-spy-{number}.json"), os.getpid())
    if kind == "py-spy":
        raise RuntimeError("there is no py-spy: pip install py-spy")
    return _Sampler(os.path.join(folder, f"python-{number}.json"))


class _Torch:
    """Profiles in the main thread, as torch's GPU library requires. If TensorFlow is loaded, which does not survive a
    signal, torch is profiled from the thread that calls `start`, which a newer torch allows."""

    def __init__(self, torch: Any, path: str, main: _MainThread) -> None:
        self._path = path
        activities = _choose_activities(torch)
        if "tensorflow" not in sys.modules:
            self._call: Callable[[Callable[[], None]], None] = main.call
            self._profile = torch.profiler.profile(activities=activities)
            return
        config = _build_all_threads_config()
        if config is None:
            raise RuntimeError("this torch must be started by a signal, which TensorFlow does not survive")
        self._call = lambda task: task()
        self._profile = torch.profiler.profile(activities=activities, experimental_config=config)

    def start(self) -> None:
        self._call(self._profile.start)

    def stop(self) -> None:
        self._call(self._profile.stop)
        self._profile.export_chrome_trace(self._path)


def _choose_activities(torch: Any) -> list[Any]:
    kinds = torch.profiler.ProfilerActivity
    return [kinds.CPU, kinds.CUDA] if torch.cuda.is_available() else [kinds.CPU]


def _build_all_threads_config() -> Any:
    """Return the setting by which torch profiles all threads; None if torch has no such setting."""
    from importlib import import_module

    try:
        return import_module("torch._C._profiler")._ExperimentalConfig(profile_all_threads=True)  # noqa: SLF001
    except (ImportError, AttributeError, TypeError):
        return None


class _TensorFlow:
    def __init__(self, tensorflow: Any, folder: str, number: int) -> None:
        self._profiler = tensorflow.profiler.experimental
        self._folder = folder
        self._number = number
        self._before: set[str] = set()

    def start(self) -> None:
        self._before = self._list_sessions()
        self._profiler.start(self._folder)

    def stop(self) -> None:
        self._profiler.stop()
        for name in self._list_sessions() - self._before:  # named by the second, in which two windows may end
            path = os.path.join(self._folder, "plugins", "profile", name)
            rename(path, f"{path}_tensorflow-{self._number}")

    def _list_sessions(self) -> set[str]:
        return list_names(os.path.join(self._folder, "plugins", "profile"))


class PySpy:
    """A process of py-spy that samples another process, if the kernel allows it."""

    _output: IO[bytes]  # `start` sets both fields
    _process: subprocess.Popen[bytes]

    def __init__(self, program: str, path: str, pid: int) -> None:
        self._path = path
        self._command = [program, "record", "--format", "chrometrace", "--output", path, "--pid", str(pid)]
        self._command += ["--duration", "unlimited", "--nonblocking"]
        if pid != os.getpid():
            self._command.append("--subprocesses")  # a shell starts programs; our children include py-spy itself

    def start(self) -> None:
        processes.allow_tracing()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 kept open, never shown: py-spy names a file that is moved
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.DEVNULL, stdout=self._output, stderr=subprocess.STDOUT
        )

    def stop(self) -> None:
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise RuntimeError("py-spy did not end") from None
        with self._output:
            self._output.seek(0)
            lines = self._output.read().decode("utf-8", "replace").splitlines()
        if not os.path.exists(self._path):
            raise RuntimeError(f"py-spy wrote none: {find_error(lines)}")
        with open(self._path, "rb") as file:
            begin = b"".join(file.read(64).split())  # a trace may be large
        if begin in (b"", b"[]"):
            os.remove(self._path)  # the trace would be empty
            raise RuntimeError("py-spy found nothing running on a CPU: only idle threads, or too short a window")


def find_error(lines: Sequence[str]) -> str:
    """Return the error of py-spy, which it prints before its own traceback."""
    texts = [line.strip() for line in lines if line.strip()]
    return next((line for line in texts if line.startswith("Error")), texts[-1] if texts else "it printed nothing")


class _Sampler:
    """A thread that samples the stacks of all other threads every few milliseconds, and once more when it ends."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._samples: list[tuple[float, dict[int, tuple[str, ...]]]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True, name=f"{_THREAD}-sampler")

    def start(self) -> None:
        self._thread.start()

    def _sample(self) -> None:
        ours = {thread.ident for thread in threading.enumerate() if thread.name.startswith(_THREAD)}
        is_over = False
        while not is_over:
            is_over = self._over.wait(_SAMPLE_S)
            stacks = {ident: _name_calls(frame) for ident, frame in sys._current_frames().items() if ident not in ours}  # noqa: SLF001
            self._samples.append((time.perf_counter(), stacks))

    def stop(self) -> None:
        self._over.set()
        self._thread.join()
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        with open(self._path, "w", encoding="utf-8") as file:
            json.dump({"traceEvents": list(_build_events(self._samples, names)), "displayTimeUnit": "ms"}, file)


def _name_calls(frame: FrameType | None) -> tuple[str, ...]:
    names: list[str] = []
    while frame is not None and len(names) < _MOST_FRAMES:
        code = frame.f_code
        names.append(f"{code.co_qualname} ({os.path.basename(code.co_filename)}:{code.co_firstlineno})")
        frame = frame.f_back
    return tuple(reversed(names))


def _build_events(
    samples: Sequence[tuple[float, dict[int, tuple[str, ...]]]], names: dict[int | None, str]
) -> Iterator[dict[str, Any]]:
    """Build events. A call lasts from its first sample to the first sample without it, or to the last sample."""
    for thread in {thread for _, stacks in samples for thread in stacks}:
        base = {"pid": os.getpid(), "tid": thread}
        yield {**base, "name": "thread_name", "ph": "M", "args": {"name": names.get(thread, str(thread))}}
        calls: list[tuple[str, float]] = []  # calls that have not ended, and their start times
        for at, stacks in (*samples, (samples[-1][0], {})):
            stack = stacks.get(thread, ())
            pairs = zip(calls, stack, strict=False)
            same = len(list(takewhile(lambda pair: pair[0][0] == pair[1], pairs)))
            for name, since in calls[same:]:
                yield {**base, "name": name, "ph": "X", "ts": since * 1e6, "dur": (at - since) * 1e6}
            calls[same:] = [(name, at) for name in stack[same:]]


# ---------------------------------------------------------------- profiles of a command line


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m assay child command-profile")
    for flag in ("--profile", "--profile-dir", "--py-spy"):
        parser.add_argument(flag, required=True)
    parser.add_argument("--pid", type=int, required=True)
    parser.add_argument("--began", type=float, help="by the monotonic clock, which all processes share")
    options = parser.parse_args(arguments)
    profile = CommandProfile(parse_windows(options.profile), options.profile_dir, options.py_spy, options.pid)
    profile.follow(options.began)
    sys.stdin.buffer.read()  # the end of the input is the end of the command
    files = profile.finish()
    print(json.dumps({"profiles": files, "profile_notes": profile.notes}))
    return 0


class CommandProfile(Profile):
    """Profiles another process and the processes that it starts."""

    def __init__(self, windows: Sequence[ProfileWindow], folder: str, py_spy: str, pid: int) -> None:
        super().__init__(windows, "py-spy", folder, py_spy)
        self._pid = pid

    def _profile_window(self, window: ProfileWindow, number: int) -> None:
        while not has_python(self._pid):
            if self.is_past(window.end_s, _READY_S):
                raise RuntimeError("no Python ran in it, and py-spy supports nothing else")
        spy = PySpy(self._py_spy, os.path.join(self._folder, f"py-spy-{number}.json"), self._pid)
        spy.start()
        self._wait_until(window.end_s)
        spy.stop()


def has_python(pid: int) -> bool:
    """Return whether a process or a descendant runs Python, by its program or by libpython in another program."""
    return any(
        os.path.basename(processes.find_program(each)).startswith(("python", "pypy"))
        or b"/libpython" in processes.load_maps(each)
        for each in (pid, *processes.find_descendants(pid))
    )


if __name__ == "__main__":
    sys.exit(main())
