"""Whatever a target does is an outcome, and nothing of it is left."""

from __future__ import annotations

import os
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


def strange(**options):
    return Target("strange", "strange_backend:StrangeBackend", options)


@pytest.fixture
def make(tmp_path):
    """Jobs with a folder of their own."""
    count = iter(range(1000))

    def job(case, step=Step.COMPILE):
        folder = tmp_path / f"job{next(count)}"
        folder.mkdir()
        return Job(step, "model.onnx", str(folder), case=case)

    return job


@pytest.fixture
def worker(tmp_path):
    with WorkerProcess(strange(), folder=str(tmp_path / "worker"), env=ENV) as made:
        yield made


# ---------------------------------------------------------------- ends


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


def test_what_the_back_end_reports_of_a_failure_arrives(worker, make):
    outcome = worker.work(make("refuse"))
    assert (outcome.command, outcome.stderr, outcome.hint) == ("strange x", "Foo?", "no Foo")
    assert worker.work(make("infrastructure")).hint == "switch it on"


@pytest.mark.parametrize(
    ("case", "ending", "command"),
    [
        ("announce_and_hang", StepEnding.TIMEOUT, "strange --case announce_and_hang"),
        ("announce_and_abort", StepEnding.CRASH, "strange --second"),
        ("announce_and_err", StepEnding.ERROR, "strange --err"),
        ("announce_and_refuse", StepEnding.UNSUPPORTED, "strange x"),
        ("hang", StepEnding.TIMEOUT, ""),
    ],
)
def test_the_command_that_was_announced_is_known_whatever_the_end(worker, make, case, ending, command):
    worker.work(make("announce_and_err"))  # nothing of it is left for the next one
    outcome = worker.work(make(case), StepLimits(compile_s=1))
    assert (outcome.ending, outcome.command) == (ending, command)


def test_one_steps_tools_can_be_had_where_anothers_cannot(tmp_path):
    with WorkerProcess(strange(trouble="run"), folder=str(tmp_path / "worker"), env=ENV) as worker:
        assert worker.identity(Step.COMPILE)["step"] == "compile"
        with pytest.raises(InfrastructureError, match="no answer"):
            worker.identity(Step.RUN)
        assert "step" not in worker.identity()


def test_a_step_that_goes_well(worker, make):
    job = make("fine", Step.RUN)
    outcome = worker.work(job)
    assert outcome.is_ok
    assert outcome.step is Step.RUN
    assert outcome.path == os.path.join(job.folder, "artifact")
    assert (outcome.command, outcome.times_s, outcome.message) == ("strange --make", (0.25,), "")
    assert outcome.elapsed_s > 0


def test_one_worker_takes_all_jobs_until_it_dies(worker, make):
    pids = [Path(worker.work(make("fine")).path).read_text() for _ in range(3)]
    assert len(set(pids)) == 1
    worker.work(make("abort"))
    assert Path(worker.work(make("fine")).path).read_text() != pids[0]


def test_a_worker_that_dies_between_jobs_is_replaced_without_a_word(worker, make):
    pid = int(Path(worker.work(make("fine")).path).read_text())
    os.kill(pid, signal.SIGKILL)
    until(lambda: not is_running(pid), "the worker process ended")
    outcome = worker.work(make("fine"))
    assert outcome.is_ok
    assert Path(outcome.path).read_text() != str(pid)


def test_the_last_words_before_a_crash_are_kept(worker, make):
    outcome = worker.work(make("abort"))
    assert "Assertion failed: x > 0" in outcome.stderr
    assert "do_abort" in outcome.stderr, "where in our own code it happened"


# ---------------------------------------------------------------- what tools say


def test_tools_may_report_anything_on_stdout(worker, make):
    outcome = worker.work(make("talk"))
    assert outcome.is_ok
    assert '{"died": 0}' in outcome.stdout
    assert "garbage" in outcome.stdout
    assert "from print" in outcome.stdout
    assert "from a child" in outcome.stdout
    assert outcome.stderr == "to stderr\n"


def test_each_job_has_its_own_output(worker, make):
    worker.work(make("talk"))
    outcome = worker.work(make("fine"))
    assert (outcome.stdout, outcome.stderr) == ("", "")


def test_much_output_is_kept_in_part(worker, make):
    outcome = worker.work(make("flood"))
    assert outcome.is_ok
    assert len(outcome.stdout) < 100_000
    assert "bytes left out" in outcome.stdout
    assert outcome.stderr == "first words\nlast words\n"


def test_a_flood_of_output_is_stopped(tmp_path, make, monkeypatch):
    monkeypatch.setattr("assay.models.worker_process.SAID_BYTES", 8 * MIB)
    with WorkerProcess(strange(mib=100_000), folder=str(tmp_path / "worker"), env=ENV) as worker:
        outcome = worker.work(make("flood"))
    assert outcome.ending is StepEnding.ERROR
    assert "MiB of output" in outcome.message


def test_a_tool_that_asks_gets_nothing(worker, make):
    assert Path(worker.work(make("ask")).path).read_text() == "b''"


def test_output_appears_live_when_asked_for(tmp_path, make, capfd):
    with WorkerProcess(strange(), folder=str(tmp_path / "worker"), live=True, env=ENV) as worker:
        outcome = worker.work(make("talk"))
        worker.work(make("talk"))
    shown = capfd.readouterr()
    assert shown.out == outcome.stdout * 2
    assert shown.err == "to stderr\n" * 2


def test_live_output_is_shown_also_when_the_end_never_comes(tmp_path, make, capfd):
    with WorkerProcess(strange(), folder=str(tmp_path / "worker"), live=True, env=ENV) as worker:
        worker.work(make("talk_and_hang"), StepLimits(compile_s=2.0))
    assert capfd.readouterr().err == "still here\n"


def test_output_stays_quiet_otherwise(worker, make, capfd):
    worker.work(make("talk"))
    assert capfd.readouterr() == ("", "")


# ---------------------------------------------------------------- time


@pytest.mark.parametrize("case", ["hang", "hang_deaf"])
def test_a_hang_is_a_time_out_and_the_worker_is_gone(worker, make, case):
    job = make(case)
    outcome = worker.work(job, StepLimits(compile_s=1.0))
    assert outcome.ending is StepEnding.TIMEOUT
    assert outcome.message == "still running after 1 s"
    assert outcome.elapsed_s >= 1.0
    assert not is_running(int(Path(job.folder, "pid").read_text()))
    assert worker.work(make("fine")).is_ok


def test_a_time_out_takes_all_children_along(worker, make):
    job = make("hang_children", Step.RUN)
    assert worker.work(job, StepLimits(run_s=3.0)).ending is StepEnding.TIMEOUT
    pids = Path(job.folder, "pids").read_text().split()
    assert len(pids) == 4
    assert [pid for pid in pids if is_running(int(pid))] == []


@pytest.mark.parametrize(
    ("step", "name"), [(Step.IMPORT, "import_s"), (Step.COMPILE, "compile_s"), (Step.RUN, "run_s")]
)
def test_each_step_has_its_own_limit(worker, make, step, name):
    outcome = worker.work(make("hang", step), StepLimits(**{name: 0.5}))
    assert (outcome.step, outcome.ending) == (step, StepEnding.TIMEOUT)


def test_no_limit(worker, make):
    assert worker.work(make("fine"), StepLimits(compile_s=None)).is_ok


# ---------------------------------------------------------------- memory


@pytest.mark.parametrize("case", ["eat", "eat_in_child"])
def test_too_much_memory_is_an_outcome(worker, make, case):
    outcome = worker.work(make(case), StepLimits(memory_bytes=300 * MIB))
    assert outcome.ending is StepEnding.MEMORY
    assert "the limit is 300 MiB" in outcome.message or "memory" in outcome.message
    assert worker.work(make("fine"), StepLimits(memory_bytes=300 * MIB)).is_ok


@pytest.mark.parametrize("case", ["gulp", "gulp_native", "gulp_politely"])
def test_memory_that_cannot_be_had_is_an_outcome(worker, make, case):
    assert worker.work(make(case), StepLimits(memory_bytes=300 * MIB)).ending is StepEnding.MEMORY


def test_an_abort_is_a_crash_where_memory_has_no_limit(worker, make):
    assert worker.work(make("gulp_native")).ending is StepEnding.CRASH
    assert worker.work(make("gulp_politely")).ending is StepEnding.ERROR


# ---------------------------------------------------------------- no process is left


def test_closing_ends_the_worker_and_what_it_left_behind(tmp_path, make):
    mark = tmp_path / "closed"
    with WorkerProcess(strange(closed=str(mark)), folder=str(tmp_path / "worker"), env=ENV) as worker:
        left = int(Path(worker.work(make("leave_child")).path).read_text())
        assert is_running(left)
    assert not is_running(left)
    assert mark.read_text() == "closed", "the back end could close its connections"


def test_a_crash_takes_the_children_along(worker, make):
    job = make("crash_with_children")
    worker.work(job)
    assert not is_running(int(Path(job.folder, "pid").read_text()))


def test_closing_twice_and_closing_unused(tmp_path):
    worker = WorkerProcess(strange(), folder=str(tmp_path), env=ENV)
    worker.close()
    worker.close()


def test_a_keeper_works_again_after_closing(worker, make):
    worker.work(make("fine"))
    worker.close()
    assert worker.work(make("fine")).is_ok


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
        pids = [int(pid) for pid in Path(job.folder, "pids").read_text().split()]
        assert all(is_running(pid) for pid in pids)
        parent.kill()
    until(lambda: not any(is_running(pid) for pid in pids), "all are gone")


def test_the_thread_that_started_a_worker_may_end(worker, make):
    """Linux' signal on a parent's death goes by the thread: it must not be what ties a worker to us."""
    first = []
    thread = threading.Thread(target=lambda: first.append(worker.work(make("fine"))))
    thread.start()
    thread.join()
    again = worker.work(make("fine"))
    assert again.is_ok
    assert Path(again.path).read_text() == Path(first[0].path).read_text()


# ---------------------------------------------------------------- identity


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
    with (
        WorkerProcess(strange(trouble=trouble), folder=str(tmp_path), env=ENV) as worker,
        pytest.raises(kind) as caught,
    ):
        worker.identity()
    assert words in str(caught.value)


def test_a_back_end_that_cannot_be_loaded(tmp_path, make):
    with WorkerProcess(Target("x", "no_such_module:Thing"), folder=str(tmp_path)) as worker:
        with pytest.raises(UsageError, match="no back end named 'no_such_module:Thing'"):
            worker.identity()
        outcome = worker.work(make("fine"))
    assert outcome.ending is StepEnding.ERROR
    assert "no_such_module" in outcome.message


def test_an_option_that_makes_no_sense_is_refused_at_once(tmp_path):
    with pytest.raises(UsageError, match=r"optimize = 'al' is not known\n  did you mean 'all'"):
        WorkerProcess(Target("o", "ort", {"optimize": "al"}), folder=str(tmp_path))


def test_the_steps_are_known_without_a_worker(tmp_path):
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


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "exit code 0"),
        (3, "exit code 3"),
        (-11, "SIGSEGV (Segmentation fault)"),
        (-9, "lack of memory"),
        (-200, "200"),
    ],
)
def test_ends_in_words(code, words):
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
