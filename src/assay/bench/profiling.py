"""Profiles of a window of a benchmark: by the framework itself, by py-spy, or, where there is neither, by looking.

The windows begin and end in the main thread, by an interval timer: a framework's profiler sees the thread that starts
it. Every profiler leaves a file that Chrome's about:tracing and ui.perfetto.dev open, TensorFlow's in the folders where
TensorBoard's profile tab looks for it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from types import FrameType
from typing import Any, Protocol

from assay.values.benchmark import ProfileWindow

_LOOK_S = 0.005
_DEEPEST = 100


class Profiler(Protocol):
    def start(self) -> None: ...
    def stop(self) -> None: ...


class Profile:
    """The windows of one benchmark, one after another."""

    def __init__(self, windows: Sequence[ProfileWindow], kind: str, folder: str) -> None:
        self._moments = [
            moment for w in windows for moment in ((w.begin_s, True), (w.end_s, False)) if moment[0] is not None
        ]
        self._kind = kind
        self._folder = folder
        self._began = 0.0
        self._running: Profiler | None = None
        self._count = 0
        self._problems: list[str] = []
        self._handler: Any = None

    def start(self) -> None:
        os.makedirs(self._folder, exist_ok=True)
        self._began = time.monotonic()
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("a profile is taken in the main thread")
        self._handler = signal.signal(signal.SIGALRM, self._ring)
        self._ring(signal.SIGALRM, None)

    def _ring(self, _number: int, _frame: FrameType | None) -> None:
        """Every moment that has come; then the timer is set for the next."""
        while self._moments:
            at, begins = self._moments[0]
            left = float(at or 0) - (time.monotonic() - self._began)
            if left > 0.001:
                signal.setitimer(signal.ITIMER_REAL, left)
                return
            self._moments.pop(0)
            self._begin() if begins else self._end()

    def _begin(self) -> None:
        self._count += 1
        try:
            self._running = choose_profiler(self._kind, self._folder, self._count)
            self._running.start()
        except Exception as error:  # noqa: BLE001 a profile that fails must not fail the benchmark
            self._running = None
            self._complain(error)

    def _end(self) -> None:
        profiler, self._running = self._running, None
        if profiler is None:
            return
        try:
            profiler.stop()
        except Exception as error:  # noqa: BLE001
            self._complain(error)

    def _complain(self, error: Exception) -> None:
        print(f"assay: window {self._count} has no profile: {type(error).__name__}: {error}", file=sys.stderr)

    def finish(self) -> list[str]:
        """The benchmark is over: what runs is ended, what had not begun is left out. The files, inside the folder."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        self._moments.clear()
        self._end()
        signal.signal(signal.SIGALRM, self._handler or signal.SIG_DFL)
        found = [os.path.join(base, name) for base, _, names in os.walk(self._folder) for name in names]
        return sorted(os.path.relpath(path, self._folder) for path in found)


def choose_profiler(kind: str, folder: str, number: int) -> Profiler:
    """`framework`: torch's or TensorFlow's own; `py-spy`: that one; `auto`: the first of them that is there."""
    if kind in ("auto", "framework"):
        if "torch" in sys.modules:
            return _Torch(sys.modules["torch"], os.path.join(folder, f"torch-{number}.json"))
        if "tensorflow" in sys.modules:
            return _TensorFlow(sys.modules["tensorflow"], folder)
        if kind == "framework":
            raise RuntimeError("neither torch nor tensorflow is loaded")
    program = shutil.which("py-spy")
    if program is not None:
        return _PySpy(program, os.path.join(folder, f"py-spy-{number}.json"))
    if kind == "py-spy":
        raise RuntimeError("py-spy is not on PATH: pip install py-spy")
    return _Looker(os.path.join(folder, f"python-{number}.json"))


class _Torch:
    def __init__(self, torch: Any, path: str) -> None:
        self._path = path
        kinds = torch.profiler.ProfilerActivity
        has_cuda = torch.cuda.is_available()
        self._profile = torch.profiler.profile(activities=[kinds.CPU, kinds.CUDA] if has_cuda else [kinds.CPU])

    def start(self) -> None:
        self._profile.start()

    def stop(self) -> None:
        self._profile.stop()
        self._profile.export_chrome_trace(self._path)


class _TensorFlow:
    def __init__(self, tensorflow: Any, folder: str) -> None:
        self._profiler = tensorflow.profiler.experimental
        self._folder = folder

    def start(self) -> None:
        self._profiler.start(self._folder)

    def stop(self) -> None:
        self._profiler.stop()


class _PySpy:
    """Another process that looks at this one; the kernel must be told that it may."""

    def __init__(self, program: str, path: str) -> None:
        self._command = [program, "record", "--format", "chrometrace", "--output", path, "--pid", str(os.getpid())]
        self._command += ["--duration", "unlimited", "--nonblocking"]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        _allow_tracing()
        self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=sys.stderr, stderr=sys.stderr)

    def stop(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise RuntimeError("py-spy did not end") from None


def _allow_tracing() -> None:
    import contextlib
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1 & 0xFFFFFFFFFFFFFFFF), 0, 0, 0)  # PR_SET_PTRACER, anybody


class _Looker:
    """A thread that looks at the stacks of all the others, every few milliseconds."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._looks: list[tuple[float, dict[int, tuple[str, ...]]]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look_on, daemon=True, name="assay-profile")

    def start(self) -> None:
        self._thread.start()

    def _look_on(self) -> None:
        me = threading.get_ident()
        while not self._over.wait(_LOOK_S):
            stacks = {thread: _stack(frame) for thread, frame in sys._current_frames().items() if thread != me}  # noqa: SLF001
            self._looks.append((time.perf_counter(), stacks))

    def stop(self) -> None:
        self._over.set()
        self._thread.join()
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        with open(self._path, "w", encoding="utf-8") as file:
            json.dump({"traceEvents": list(_build_events(self._looks, names)), "displayTimeUnit": "ms"}, file)


def _stack(frame: FrameType | None) -> tuple[str, ...]:
    names: list[str] = []
    while frame is not None and len(names) < _DEEPEST:
        code = frame.f_code
        names.append(f"{code.co_qualname} ({os.path.basename(code.co_filename)}:{code.co_firstlineno})")
        frame = frame.f_back
    return tuple(reversed(names))


def _build_events(
    looks: Sequence[tuple[float, dict[int, tuple[str, ...]]]], names: dict[int | None, str]
) -> list[dict[str, Any]]:
    """A call lasts from the first look that saw it to the first that did not."""
    pid = os.getpid()
    threads = {thread for _, stacks in looks for thread in stacks}
    events: list[dict[str, Any]] = [
        {"name": "thread_name", "ph": "M", "pid": pid, "tid": thread, "args": {"name": names.get(thread, str(thread))}}
        for thread in threads
    ]
    for thread in threads:
        open_calls: list[tuple[str, float]] = []
        last = looks[-1][0]
        for at, stacks in looks:
            stack = stacks.get(thread, ())
            same = next(
                (i for i, (a, b) in enumerate(zip(open_calls, stack, strict=False)) if a[0] != b),
                min(len(open_calls), len(stack)),
            )
            events += [_event(pid, thread, name, since, at) for name, since in open_calls[same:]]
            open_calls = [*open_calls[:same], *((name, at) for name in stack[same:])]
        events += [_event(pid, thread, name, since, last) for name, since in open_calls]
    return events


def _event(pid: int, thread: int, name: str, since: float, until: float) -> dict[str, Any]:
    return {"name": name, "ph": "X", "pid": pid, "tid": thread, "ts": since * 1e6, "dur": (until - since) * 1e6}
