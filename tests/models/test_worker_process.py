"""Whatever a target does is an outcome, and nothing of it is left."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.example_models import is_running, until

from assay.errors import AssayError, InfrastructureError, MissingExtraError, NotFoundError, UsageError
from assay.models.values.model import Job, Step, StepEnding, StepLimits, Target
from assay.models.worker import build_error
from assay.models.worker_process import WorkerProcess, describe_end, parse_error

HERE = os.path.dirname(__file__)
ENV = {"PYTHONPATH": HERE}
MIB = 1 << 20


def open_strange(folder, live=False, **options):
    target = Target("strange", "strange_backend:StrangeBackend", options)
    return WorkerProcess(target, folder=str(folder / "worker"), live=live, env=ENV)


@pytest.fixture
def make(tmp_path):
    """Jobs with a folder of their own."""
    count = iter(range(1000))

    def job(case, step=Step.COMPILE):
        folder = tmp_path / f"job{next(count)}"
        folder.mkdir()
        return Job(step, "model.onnx", str(folder), case=case)

    return job


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    """One for all tests: no job may spoil the next."""
    with open_strange(tmp_path_factory.mktemp("strange")) as made:
        yield made


def read_pids(job):
    return [int(pid) for pid in Path(job.folder, "pids").read_text().split()]


@pytest.mark.parametrize(
    ("case", "ending", "words"),
    [
        ("refuse", StepEnding.UNSUPPORTED, "no such operator: Foo"),
        ("infrastructure", StepEnding.ERROR, "the board is off"),
        ("bug", StepEnding.ERROR, "ZeroDivisionError: division by zero"),
        ("exit", StepEnding.ERROR, "SystemExit: gone"),
        ("hard_exit", StepEnding.CRASH, "exit code 7"),
        ("abort", StepEnding.CRASH, "SIGABRT"),
        ("segfault", StepEnding.CRASH, "SIGSEGV"),
        ("suicide", StepEnding.CRASH, "SIGKILL"),
        ("half_line", StepEnding.CRASH, "SIGABRT"),
        ("gulp_native", StepEnding.CRASH, "SIGABRT"),  # memory has no limit here
        ("gulp_politely", StepEnding.ERROR, "runner ended with exit code 1"),
        ("elsewhere", StepEnding.ERROR, "outside of its folder"),
        ("nothing", StepEnding.ERROR, "is not there"),
    ],
)
def test_every_end_is_an_outcome_and_the_next_job_goes_on(worker, make, case, ending, words):
    outcome = worker.work(make(case), StepLimits())
    assert (outcome.step, outcome.ending) == (Step.COMPILE, ending)
    assert words in outcome.message
    assert "\n" not in outcome.message
    assert not outcome.is_ok
    assert worker.work(make("fine"), StepLimits()).is_ok


@pytest.mark.parametrize(
    ("case", "ending", "command"),
    [
        ("announce_and_hang", StepEnding.TIMEOUT, "strange --case announce_and_hang"),
        ("announce_and_abort", StepEnding.CRASH, "strange --second"),
        ("announce_and_err", StepEnding.ERROR, "strange --err"),
        ("announce_and_refuse", StepEnding.UNSUPPORTED, "strange x"),
        ("infrastructure", StepEnding.ERROR, ""),
    ],
)
def test_the_command_that_was_announced_is_known_whatever_the_end(worker, make, case, ending, command):
    worker.work(make("announce_and_err"))  # nothing of it is left for the next one
    outcome = worker.work(make(case), StepLimits(compile_s=1))
    assert (outcome.ending, outcome.command) == (ending, command)


def test_what_the_back_end_reports_arrives(worker, make):
    outcome = worker.work(make("refuse"))
    assert (outcome.command, outcome.stderr, outcome.hint) == ("strange x", "Foo?", "no Foo")
    assert worker.work(make("infrastructure")).hint == "switch it on"
    outcome = worker.work(job := make("fine", Step.RUN), StepLimits(run_s=None))
    assert (outcome.step, outcome.ending) == (Step.RUN, StepEnding.OK)
    assert outcome.path == os.path.join(job.folder, "artifact")
    assert (outcome.command, outcome.times_s, outcome.message) == ("strange --make", (0.25,), "")
    assert outcome.elapsed_s > 0


def test_one_worker_takes_all_jobs_until_it_dies_and_is_replaced_without_a_word(worker, make):
    """Also where the thread that started it has ended: Linux' signal on a parent's death goes by the thread."""

    def find_pid():
        return Path(worker.work(make("fine")).path).read_text()

    worker.close()
    worker.close()
    pids = []
    thread = threading.Thread(target=lambda: pids.append(find_pid()))
    thread.start()
    thread.join()
    assert {find_pid(), find_pid()} == set(pids)
    outcome = worker.work(make("abort"))
    assert "Assertion failed: x > 0" in outcome.stderr, "the last lines before a crash are kept"
    assert "do_abort" in outcome.stderr, "where in our own code it happened"
    pids.append(find_pid())
    os.kill(int(pids[-1]), signal.SIGKILL)  # between two jobs
    until(lambda: not is_running(int(pids[-1])), "the worker process ended")
    assert len({*pids, find_pid()}) == 3


def test_tools_may_report_anything_on_stdout_and_each_job_has_its_own_output(worker, make, capfd):
    outcome = worker.work(make("talk"))
    assert outcome.is_ok
    assert all(text in outcome.stdout for text in ('{"died": 0}', "garbage", "from print", "from a child"))
    assert outcome.stderr == "to stderr\n"
    outcome = worker.work(make("ask"))
    assert Path(outcome.path).read_text() == "b''", "a tool that asks gets nothing"
    assert (outcome.stdout, outcome.stderr) == ("", "")
    assert capfd.readouterr() == ("", "")


def test_much_output_is_kept_in_part_and_a_flood_is_stopped(tmp_path, make, monkeypatch):
    with open_strange(tmp_path) as worker:
        outcome = worker.work(make("flood"))
        assert outcome.is_ok
        assert len(outcome.stdout) < 100_000
        assert "bytes left out" in outcome.stdout
        assert outcome.stderr == "first words\nlast words\n"
        monkeypatch.setattr("assay.models.worker_process.OUTPUT_BYTES", 2 * MIB)
        outcome = worker.work(make("flood_without_end"))
    assert outcome.ending is StepEnding.ERROR
    assert "MiB of output" in outcome.message


def test_output_appears_live_when_asked_for_also_where_the_end_never_comes(tmp_path, make, capfd):
    with open_strange(tmp_path, live=True) as worker:
        outcome = worker.work(make("talk"))
        worker.work(make("announce_and_hang"), StepLimits(compile_s=1.0))
    assert capfd.readouterr() == (outcome.stdout, "to stderr\nstill here\n")


@pytest.mark.parametrize(
    ("case", "step", "name", "processes"),
    [
        ("announce_and_hang", Step.IMPORT, "import_s", 1),
        ("hang_deaf", Step.COMPILE, "compile_s", 1),
        ("hang_children", Step.RUN, "run_s", 4),
    ],
)
def test_a_hang_is_a_time_out_by_the_limit_of_its_step_and_no_process_is_left(
    worker, make, case, step, name, processes
):
    outcome = worker.work(job := make(case, step), StepLimits(**{name: 1.5}))
    assert (outcome.step, outcome.ending) == (step, StepEnding.TIMEOUT)
    assert outcome.message == "still running after 1.5 s"
    assert outcome.elapsed_s >= 1.5
    assert [is_running(pid) for pid in read_pids(job)] == [False] * processes
    assert worker.work(make("fine")).is_ok


@pytest.mark.parametrize("case", ["eat", "eat_in_child", "gulp", "gulp_native", "gulp_politely"])
def test_too_much_memory_is_an_outcome(worker, make, case):
    outcome = worker.work(make(case), StepLimits(memory_bytes=300 * MIB))
    assert outcome.ending is StepEnding.MEMORY
    assert "the limit is 300 MiB" in outcome.message or "memory" in outcome.message
    assert worker.work(make("fine"), StepLimits(memory_bytes=300 * MIB)).is_ok


def test_memory_is_limited_for_the_job_that_asks_and_no_other_and_no_core_is_dumped(worker, make):
    pid = int(Path(worker.work(make("fine"), StepLimits(memory_bytes=100 * MIB)).path).read_text())
    assert resource.prlimit(pid, resource.RLIMIT_CORE) == (0, 0)
    assert 100 * MIB <= resource.prlimit(pid, resource.RLIMIT_DATA)[0] < 4 << 30
    assert resource.prlimit(pid, resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY, "address space is cheap"
    worker.work(make("fine"))
    assert resource.prlimit(pid, resource.RLIMIT_DATA)[0] == resource.prlimit(pid, resource.RLIMIT_DATA)[1]


def test_closing_or_a_crash_ends_what_a_job_left_behind(tmp_path, make):
    mark = tmp_path / "closed"
    with open_strange(tmp_path, closed=str(mark)) as worker:
        worker.work(job := make("crash_with_children"))
        assert not any(map(is_running, read_pids(job)))
        left = int(Path(worker.work(make("leave_child")).path).read_text())
        assert is_running(left)
    assert not is_running(left)
    assert mark.read_text() == "closed", "the back end could close its connections"


def test_our_own_death_leaves_no_process(tmp_path, make):
    job = make("hang_children")
    code = (
        "import sys\n"
        "from assay.models.worker_process import WorkerProcess\n"
        "from assay.models.values.model import Job, Step, Target\n"
        "worker = WorkerProcess(Target('s', 'strange_backend:StrangeBackend'), folder=sys.argv[1])\n"
        "worker.work(Job(Step.COMPILE, 'm', sys.argv[2], case='hang_children'))\n"
    )
    argv = [sys.executable, "-c", code, str(tmp_path / "worker"), job.folder]
    with subprocess.Popen(argv, env={**os.environ, **ENV}) as parent:
        until(Path(job.folder, "pids").exists, "the worker has its children")
        pids = read_pids(job)
        assert all(is_running(pid) for pid in pids)
        parent.kill()
    until(lambda: not any(is_running(pid) for pid in pids), "all are gone")


def test_the_identity_is_asked_once(worker, make):
    first = worker.identity()
    assert first["strange"] == "1.0"
    worker.work(make("abort"))
    assert worker.identity() == first


@pytest.mark.parametrize(
    ("trouble", "kind", "words"),
    [
        ("extra", MissingExtraError, "pip install 'assay[strange]'"),
        ("board", InfrastructureError, "no answer from the board\n  switch it on"),
        ("crash", InfrastructureError, "SIGABRT"),
        ("bug", AssayError, "ValueError: a bug of ours"),
    ],
)
def test_trouble_with_the_identity_is_raised_here(tmp_path, trouble, kind, words):
    with open_strange(tmp_path, trouble=trouble) as worker, pytest.raises(kind) as caught:
        worker.identity()
    assert words in str(caught.value)


def test_one_steps_tools_can_be_had_where_anothers_cannot(tmp_path):
    with open_strange(tmp_path, trouble="run") as worker:
        assert worker.identity(Step.COMPILE)["step"] == "compile"
        with pytest.raises(InfrastructureError, match="no answer"):
            worker.identity(Step.RUN)
        assert "step" not in worker.identity()


def test_a_back_end_that_cannot_be_loaded(tmp_path, make):
    with WorkerProcess(Target("x", "no_such_module:Thing"), folder=str(tmp_path)) as worker:
        with pytest.raises(UsageError, match="no back end named 'no_such_module:Thing'"):
            worker.identity()
        outcome = worker.work(make("fine"))
    assert outcome.ending is StepEnding.ERROR
    assert "no_such_module" in outcome.message


def test_options_that_make_no_sense_and_steps_are_known_without_a_worker(tmp_path):
    with pytest.raises(UsageError, match=r"optimize = 'al' is not known\n  did you mean 'all'"):
        WorkerProcess(Target("o", "ort", {"optimize": "al"}), folder=str(tmp_path))
    assert WorkerProcess(Target("i", "iree"), folder=str(tmp_path)).steps == (Step.IMPORT, Step.COMPILE, Step.RUN)
    assert WorkerProcess(Target("o", "ort"), folder=str(tmp_path)).steps == (Step.COMPILE, Step.RUN)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "error",
    [
        MissingExtraError("x", "models"),
        InfrastructureError("a", "b"),
        UsageError("a"),
        NotFoundError("study", "x", ["y"]),
        AssayError("plain"),
    ],
)
def test_errors_travel(error):
    there = parse_error(build_error(error))
    assert isinstance(there, UsageError) == isinstance(error, UsageError)
    assert isinstance(there, MissingExtraError) == isinstance(error, MissingExtraError)
    assert (there.message, there.hint, there.exit_code) == (error.message, error.hint, error.exit_code)
    assert getattr(there, "extra", None) == getattr(error, "extra", None)


def test_ends_in_words():
    for code, words in {
        3: "exit code 3",
        -11: "SIGSEGV (Segmentation fault)",
        -9: "lack of memory",
        -200: "200",
    }.items():
        assert words in describe_end(code)


def test_the_keeper_is_light():
    code = (
        "import sys; import assay.models.worker_process\n"
        "from assay.models.worker_process import WorkerProcess\nfrom assay.models.values.model import Target\n"
        "for name in ('ort', 'iree', 'openvino', 'reference'): WorkerProcess(Target(name, name), folder='x')\n"
        "print([n for n in ('numpy', 'onnx', 'onnxruntime', 'iree', 'openvino', 'ml_dtypes') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
