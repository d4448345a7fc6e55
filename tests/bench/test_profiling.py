"""Windows of a benchmark, taken by a thread; in which thread each profiler is asked; what a broken one gets."""

from __future__ import annotations

import json
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from assay.bench import profiling
from assay.bench.profiling import Profile, PySpy, _MainThread, build_profiler, choose_stand_in
from assay.bench.values.execution import parse_windows


@pytest.fixture(autouse=True)
def no_frameworks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Other tests of this process may have loaded them."""
    for name in ("torch", "tensorflow"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setenv("PATH", "/nowhere")  # no py-spy
    before = signal.getsignal(signal.SIGALRM)
    yield
    assert signal.getsignal(signal.SIGALRM) == before, "the handler of others is back"
    assert [t.name for t in threading.enumerate() if t.name.startswith("assay-profile")] == []


def spin(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(500))


def spin_until(condition: Any) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        spin(0.005)


def begin(windows: str, folder: Path, kind: str = "auto") -> Profile:
    profile = Profile(parse_windows(windows), kind, str(folder))
    profile.start()
    return profile


def names_in(path: Path) -> set[str]:
    return {event["name"].split(" ")[0] for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "X"}


def test_two_windows_and_an_open_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No signal is sent without need: TensorFlow does not survive one."""
    heard: list[int] = []
    samplers: list[Any] = []
    build = profiling._Sampler
    monkeypatch.setattr(profiling, "_Sampler", lambda path: samplers.append(build(path)) or samplers[-1])
    profile = Profile(parse_windows("0:0.1,0.15:"), "auto", str(tmp_path))
    profile._main._handle = lambda number, _frame: heard.append(number)  # type: ignore[method-assign]
    profile.start()
    spin_until(lambda: len(samplers) == 2 and len(samplers[1]._samples) > 1)
    assert profile.finish() == ["python-1.json", "python-2.json"]
    assert all("spin_until" in names_in(tmp_path / name) for name in ("python-1.json", "python-2.json"))
    assert "Profile._follow" not in names_in(tmp_path / "python-2.json"), "our own threads are left out"
    assert heard == []


def test_a_window_from_the_start_is_taken_however_short_the_benchmark_is(tmp_path: Path) -> None:
    for _ in range(10):
        assert begin("0:", tmp_path).finish() == ["python-1.json"]


def test_windows_after_the_end_are_left_out(tmp_path: Path) -> None:
    profile = begin("0:0.01,100.5:200,300:", tmp_path)
    spin(0.03)
    assert profile.finish() == ["python-1.json"]
    ends = [note.partition("; ")[2] for note in profile.notes]
    assert ends == ["the window 100.5:200 never began", "the window 300: never began"]
    assert all(re.match(r"ended after [\d.]+ s;", note) for note in profile.notes)


def test_one_that_fails_is_reported_and_the_next_is_tried(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    profile = begin("0:0.01,0.02:", tmp_path, "framework")
    spin_until(lambda: profile._begun == 2)
    assert profile.finish() == []
    lines = capfd.readouterr().err.splitlines()
    assert [line.partition(" has ")[0] for line in lines] == [f"assay: warning: window {n}" for n in (1, 2)]
    assert profile.notes == [line.removeprefix("assay: warning: ") for line in lines]
    assert all("neither torch nor tensorflow is loaded" in line for line in lines)


# ---------------------------------------------------------------- frameworks


class FakeTorch(ModuleType):
    """Records the threads that start and stop its profiler."""

    def __init__(self, has_gpu: bool = False) -> None:
        super().__init__("torch")
        self.threads: list[str] = []
        self.configs: list[object] = []
        torch = self

        class Recorder:
            def __init__(self, activities: list[str], experimental_config: object = None) -> None:
                self.activities = activities
                torch.configs.append(experimental_config)

            def start(self) -> None:
                torch.threads.append(threading.current_thread().name)

            stop = start

            def export_chrome_trace(self, path: str) -> None:
                Path(path).write_text(json.dumps({"traceEvents": self.activities}))

        self.profiler = SimpleNamespace(ProfilerActivity=SimpleNamespace(CPU="cpu", CUDA="cuda"), profile=Recorder)
        self.cuda = SimpleNamespace(is_available=lambda: has_gpu)


def test_torch_is_asked_in_the_main_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = FakeTorch()
    monkeypatch.setitem(sys.modules, "torch", torch)
    profile = begin("0:0.02,0.03:", tmp_path)
    spin_until(lambda: len(torch.threads) >= 5)  # the second window has begun
    assert profile.finish() == ["torch-1.json", "torch-2.json"]
    assert torch.threads == ["MainThread"] * 6  # the warm-up, and two windows
    assert json.loads((tmp_path / "torch-1.json").read_text())["traceEvents"] == ["cpu"]


@pytest.mark.parametrize(("has_gpu", "kinds"), [(True, ["cpu", "cuda"]), (False, ["cpu"])])
def test_torch_is_warmed_up_before_the_clock_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_gpu: bool, kinds: list[str]
) -> None:
    torch = FakeTorch(has_gpu)
    monkeypatch.setitem(sys.modules, "torch", torch)
    profile = begin("100:", tmp_path)
    assert torch.threads == ["MainThread"] * 2
    assert profile.finish() == [], "the warm-up leaves nothing"
    profile = begin("0:", tmp_path)
    assert profile.finish() == ["torch-1.json"]
    assert json.loads((tmp_path / "torch-1.json").read_text())["traceEvents"] == kinds
    torch.profiler.profile = None  # type: ignore[assignment]
    profile = begin("100:", tmp_path / "none")
    assert profile.finish() == [], "a warm-up that fails fails nothing"


def test_beside_tensorflow_no_signal_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = FakeTorch()
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "tensorflow", ModuleType("tensorflow"))
    monkeypatch.setattr(profiling, "_build_all_threads_config", lambda: "all threads")
    assert begin("0:", tmp_path).finish() == ["torch-1.json"]
    assert torch.configs == [None, "all threads"]  # the warm-up comes first, before there is a signal to send
    assert torch.threads == ["MainThread"] * 2 + ["assay-profile"] * 2
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch._C._profiler", None)  # another test may have loaded the real one
    monkeypatch.setitem(sys.modules, "tensorflow", ModuleType("tensorflow"))
    with pytest.raises(RuntimeError, match="TensorFlow does not survive"):  # an older torch
        build_profiler("torch", str(tmp_path), 1, _MainThread())


# ---------------------------------------------------------------- a method that imports its framework itself


class Gate(ModuleType):
    """What a module waits for in the middle of its import."""

    def __init__(self) -> None:
        super().__init__("gate")
        self.halfway, self.open = threading.Event(), threading.Event()
        self.torch = FakeTorch()


@pytest.fixture
def importing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """Another thread is in the middle of `import torch`."""
    gate = Gate()
    (tmp_path / "torch.py").write_text(
        "import gate\ngate.halfway.set()\nassert gate.open.wait(60)\nprofiler, cuda = gate.torch.profiler, gate.torch.cuda\n"
    )
    monkeypatch.setitem(sys.modules, "gate", gate)
    monkeypatch.syspath_prepend(str(tmp_path))
    thread = threading.Thread(target=lambda: __import__("torch"))
    thread.start()
    assert gate.halfway.wait(60)
    yield gate
    gate.open.set()
    thread.join()
    sys.modules.pop("torch")


@pytest.mark.parametrize(
    ("windows", "kind", "files"),
    [
        ("0:", "auto", ["python-1.json", "torch-1.json"]),
        ("0.01:", "auto", ["python-1.json", "torch-1.json"]),
        ("0:100", "framework", ["torch-1.json"]),
    ],
)
def test_a_framework_takes_over_when_its_import_is_complete(
    tmp_path: Path, importing: Gate, windows: str, kind: str, files: list[str]
) -> None:
    profile = begin(windows, tmp_path / "p", kind)
    spin_until(profile._is_profiling.is_set)
    assert importing.torch.threads == []
    importing.open.set()
    spin_until(lambda: importing.torch.threads)
    assert profile.finish() == files
    assert profile.notes == []
    assert importing.torch.threads == ["MainThread"] * 2


def test_a_window_that_ends_before_the_import_has_the_samples_until_then(tmp_path: Path, importing: Gate) -> None:
    profile = begin("0:0.02,0.04:", tmp_path / "p")
    spin_until((tmp_path / "p" / "python-1.json").exists)
    importing.open.set()
    spin_until(lambda: importing.torch.threads)
    assert (
        {"python-1.json", "torch-2.json"} <= set(profile.finish()) <= {"python-1.json", "python-2.json", "torch-2.json"}
    )


def test_an_import_that_outlasts_the_window_is_reported(tmp_path: Path, importing: Gate) -> None:
    profile = begin("0:0.03", tmp_path / "p", "framework")
    spin_until(lambda: profile.notes)
    assert profile.finish() == []
    assert profile.notes == ["window 1 has no profile: torch was still being imported"]
    assert importing.torch.threads == []


def test_a_framework_whose_import_begins_later_takes_over_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = FakeTorch()
    profile = begin("0:", tmp_path)
    monkeypatch.setitem(sys.modules, "torch", torch)
    spin_until(lambda: torch.threads)
    assert profile.finish() == ["python-1.json", "torch-1.json"]


# ---------------------------------------------------------------- py-spy


def test_the_profiler_where_there_is_no_framework(tmp_path: Path) -> None:
    assert choose_stand_in("framework", str(tmp_path), 1, "/somewhere/py-spy") is None
    assert isinstance(choose_stand_in("auto", str(tmp_path), 1, "/somewhere/py-spy"), PySpy)
    assert not isinstance(choose_stand_in("auto", str(tmp_path), 1), PySpy)
    with pytest.raises(RuntimeError, match="pip install py-spy"):
        choose_stand_in("py-spy", str(tmp_path), 1)
    for lines, said in (
        (
            ["Error: No python processes found", "", "Stack backtrace:", "   0: main"],
            "Error: No python processes found",
        ),
        (["Permission Denied: try sudo", " "], "Permission Denied: try sudo"),
        ([], "it printed nothing"),
    ):
        assert profiling.find_error(lines) == said


def test_sessions_of_tensorflow_that_end_in_one_second_stay_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders: list[str] = []

    def stop() -> None:
        session = Path(folders[-1], "plugins", "profile", "2026_01_01_00_00_00")
        session.mkdir(parents=True)
        (session / "host.xplane.pb").write_bytes(b"x")

    tensorflow: Any = ModuleType("tensorflow")
    tensorflow.profiler = SimpleNamespace(experimental=SimpleNamespace(start=folders.append, stop=stop))
    monkeypatch.setitem(sys.modules, "tensorflow", tensorflow)
    profile = begin("0:0.01,0.02:", tmp_path)
    spin_until(lambda: len(folders) == 2)
    assert profile.finish() == [
        f"plugins/profile/2026_01_01_00_00_00_tensorflow-{number}/host.xplane.pb" for number in (1, 2)
    ]


def test_the_main_thread_passes_errors_on_and_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    main = _MainThread()
    main.listen()
    found: list[BaseException] = []

    def ask(task: Any) -> None:
        try:
            main.call(task)
        except RuntimeError as error:
            found.append(error)

    def fail() -> None:
        raise RuntimeError("broken")

    try:
        thread = threading.Thread(target=ask, args=(fail,))
        thread.start()
        thread.join()
    finally:
        main.close()
    assert [str(error) for error in found] == ["broken"]
    monkeypatch.setattr(profiling, "_ANSWER_S", 0.05)
    before = signal.signal(signal.SIGALRM, signal.SIG_IGN)  # the benchmark has taken the signal for itself
    try:
        with pytest.raises(RuntimeError, match="did not answer"):
            main.call(fail)
    finally:
        signal.signal(signal.SIGALRM, before)
