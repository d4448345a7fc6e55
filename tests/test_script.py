"""`assay.log` as training scripts meet it: real processes, real files, a disk that is really full."""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import subprocess
import sys
import threading
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import assay
from assay import script
from assay.values import layout

SRC = str(Path(script.__file__).parents[1])


@pytest.fixture
def run_dir(tmp_path, monkeypatch):
    """Inside a run, with nothing open from an earlier test."""
    monkeypatch.setenv(layout.ENV_RUN_DIR, str(tmp_path / "run"))
    for name in script._RANK_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(script, "_stream", None)
    monkeypatch.setattr(script, "_adhoc_dir", None)
    yield tmp_path / "run"
    if script._stream is not None:
        script._stream.close()


def read_lines(run_dir):
    paths = sorted((run_dir / "metrics").iterdir())
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def run_python(code, cwd, **env):
    """A fresh interpreter, as a user's script has it."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("ASSAY_")}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=cwd,
        env={**clean, "PYTHONPATH": SRC, **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


# ---------------------------------------------------------------- what a line holds


def test_a_line_holds_step_time_and_value(run_dir, monkeypatch):
    monkeypatch.setattr(script, "_clock", lambda: 1700000000.25)
    assay.log(loss=0.25, step=100)
    (path,) = (run_dir / "metrics").iterdir()
    assert path.read_text() == '{"step":100,"time":1700000000.250,"loss":0.25}\n'


def test_names_that_are_no_identifiers_come_in_a_mapping(run_dir):
    assay.log({"val/acc": 0.5, 'a "b"\n': 1}, epoch=3, metrics=2.0, values=4)
    (line,) = read_lines(run_dir)
    assert line.pop("time") > 0
    assert line == {"epoch": 3, "val/acc": 0.5, 'a "b"\n': 1, "metrics": 2.0, "values": 4}


def test_nothing_to_log_creates_nothing(run_dir):
    assay.log({}, step=3)
    assert not run_dir.exists()


class Tensor:
    """What torch's tensors have in common with numpy's arrays."""

    def __init__(self, *values):
        self.values, self.shape = values, (len(values),)

    def item(self):
        if len(self.values) != 1:
            raise RuntimeError("a Tensor with 3 elements cannot be converted to Scalar")
        return self.values[0]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, 1),
        (np.float32(0.5), 0.5),
        (np.float64(1e-300), 1e-300),
        (np.int64(-7), -7),
        (np.bool_(False), 0),
        (np.array(2.5), 2.5),
        (np.array([2.5]), 2.5),
        (Tensor(0.125), 0.125),
        (Decimal("0.5"), 0.5),
        (Fraction(1, 4), 0.25),
        (2**70, float(2**70)),
        pytest.param(10**400, math.inf, id="huge"),
        pytest.param(-(10**400), -math.inf, id="-huge"),
        (math.inf, math.inf),
        (np.float64("-inf"), -math.inf),
    ],
)
def test_numbers_of_every_make(run_dir, value, expected):
    assay.log(x=value)
    (line,) = read_lines(run_dir)
    assert line["x"] == expected
    assert type(line["x"]) is not bool


@pytest.mark.parametrize(("step", "expected"), [(7, 7), (0.5, 0.5), (np.int32(7), 7), (Tensor(7), 7), (True, 1)])
def test_steps_of_every_make(run_dir, step, expected):
    assay.log(x=1.0, step=step, epoch=step)
    (line,) = read_lines(run_dir)
    assert line["step"] == line["epoch"] == expected


def test_nan_is_written_as_python_reads_it(run_dir):
    assay.log(x=math.nan, y=np.float32("nan"))
    (line,) = read_lines(run_dir)
    assert math.isnan(line["x"])
    assert math.isnan(line["y"])


@pytest.mark.parametrize("name", ["a b", 'quo"te', "back\\slash", "\x00\x1f\x7f", "\u2028é\U0001f9ea", "{}[],:"])
def test_every_number_and_name_survives(name):
    for value in (0.1, -0.0, 5e-324, 1.7976931348623157e308, 0, -1, 2**63 - 1, -(2**63) + 1):
        text = f"{{{script._render_key(name)[1:]}{script._render_value(name, value)}}}"
        ((back, found),) = json.loads(text).items()
        assert (back, found, type(found)) == (name, value, type(value))


ODD = ["0.5", None, [1.0], {"a": 1}, 1j, object(), np.array([1.0, 2.0, 3.0]), Tensor(1, 2, 3)]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        *(({"top1": value}, "'top1' must be a single number, not") for value in ODD),
        ({"loss": np.zeros((2, 3))}, r"ndarray of shape \(2, 3\)"),
        *(({name: 1.0}, "a metric's name is a text") for name in ("", 3, None)),
        (0.5, r"assay\.log\(loss=0\.25, step=100\)"),
    ],
)
def test_what_is_not_a_name_and_a_number_is_refused(run_dir, given, text):
    with pytest.raises(TypeError, match=text):
        assay.log(given, step=1)
    with pytest.raises(TypeError, match="'step' must be a single number, not 'ten'"):
        assay.log(loss=0.5, step="ten")
    assert not run_dir.exists()


@pytest.mark.parametrize("name", ["step", "epoch", "time"])
def test_reserved_names_are_refused_with_what_to_do(run_dir, name):
    with pytest.raises(ValueError, match=f"'{name}' cannot be the name of a metric: .*(keyword|another name)"):
        assay.log({name: 1.0})
    with pytest.raises(ValueError, match="such as 'seconds'"):
        assay.log(time=0.3)


def test_many_names_do_not_fill_the_memory(run_dir, monkeypatch):
    monkeypatch.setattr(script, "_KEY_LIMIT", 10)
    monkeypatch.setattr(script, "_keys", {})
    for number in range(100):
        assay.log({f"m{number}": 1.0})
    assert len(script._keys) <= 10
    assert len(read_lines(run_dir)) == 100


# ---------------------------------------------------------------- which file


def test_the_file_is_named_after_attempt_rank_host_and_process(run_dir, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("ASSAY_ATTEMPT_NUMBER", "2")
    assay.log(loss=1.0)
    (path,) = (run_dir / "metrics").iterdir()
    attempt, rank, *host, pid, start = path.stem.split("-")
    assert (attempt, rank, pid) == ("a2", "r3", str(os.getpid()))
    assert host
    assert start.isdecimal()


def test_a_rank_that_is_no_number_counts_as_none(monkeypatch):
    for name in script._RANK_VARIABLES:
        monkeypatch.setenv(name, "../x")
    assert script.build_file_name(5).startswith("a1-r0-")


def test_two_files_never_share_a_name(run_dir, monkeypatch):
    times = iter([1000, 1000, 1000, 2000])
    monkeypatch.setattr(script.time, "time_ns", lambda: next(times))
    first, fd1 = script._open_own_file()
    second, fd2 = script._open_own_file()
    os.close(fd1)
    os.close(fd2)
    assert first != second


def test_threads_lose_nothing_and_mix_nothing(run_dir):
    def work(thread):
        for step in range(500):
            assay.log({f"t{thread}": step / 2}, step=step)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = read_lines(run_dir)
    assert len(list((run_dir / "metrics").iterdir())) == 1
    for number in range(4):
        assert [line["step"] for line in lines if f"t{number}" in line] == list(range(500))


def test_a_forked_child_writes_a_file_of_its_own(tmp_path):
    code = """
import os, assay
assay.log(parent=1.0)
pid = os.fork()
assay.log({"child" if pid == 0 else "parent": 2.0})
if pid:
    os.waitpid(pid, 0)
    assay.log(parent=3.0)
"""
    assert run_python(code, tmp_path, ASSAY_RUN_DIR=str(tmp_path / "run")).stderr == ""
    contents = sorted(path.read_text().count("parent") for path in (tmp_path / "run/metrics").iterdir())
    assert contents == [0, 3]
    assert len(read_lines(tmp_path / "run")) == 4


def test_a_child_does_not_repeat_what_waits_in_its_parent(tmp_path):
    """The parent's lines that the disk refused are the parent's."""
    code = """
import os, sys, assay
from assay import script
assay.log(a=1.0)
stream = script._stream
os.close(stream._fd)                # every write fails from now on
assay.log(a=2.0)
pid = os.fork()
if pid == 0:
    assay.log(b=1.0)
    sys.exit(0)
os.waitpid(pid, 0)
stream._fd = os.open(stream.path, os.O_WRONLY | os.O_APPEND)
"""
    done = run_python(code, tmp_path, ASSAY_RUN_DIR=str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    lines = read_lines(tmp_path / "run")
    assert sorted((*line.items(),)[-1] for line in lines) == [("a", 1.0), ("a", 2.0), ("b", 1.0)]


# ---------------------------------------------------------------- ends of processes


@pytest.mark.parametrize("end", ["os._exit(0)", "os.kill(os.getpid(), 9)", "raise SystemExit", "1 / 0"])
def test_nothing_is_lost_however_the_script_ends(tmp_path, end):
    code = f"import os, assay\nfor i in range(1000): assay.log(loss=i / 2, step=i)\n{end}"
    run_python(code, tmp_path, ASSAY_RUN_DIR=str(tmp_path / "run"))
    assert [line["step"] for line in read_lines(tmp_path / "run")] == list(range(1000))


def test_a_signal_handler_may_log(tmp_path):
    code = """
import os, signal, assay
signal.signal(signal.SIGUSR1, lambda *_: assay.log(inside=1.0))
for i in range(2000):
    assay.log(outside=1.0)
    if i % 100 == 0: os.kill(os.getpid(), signal.SIGUSR1)
"""
    done = run_python(code, tmp_path, ASSAY_RUN_DIR=str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    assert sum("inside" in line for line in read_lines(tmp_path / "run")) == 20


# ---------------------------------------------------------------- disks that refuse


def test_a_full_disk_is_reported_once_and_nothing_is_lost_when_it_has_room_again(run_dir, capsys, monkeypatch):
    """A file size limit gives the same short writes and errors as a full disk."""
    monkeypatch.setattr(script, "_RETRY_S", 0.0)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
        for step in range(100):
            assay.log(loss=step / 2, step=step)
        (path,) = (run_dir / "metrics").iterdir()
        assert path.stat().st_size == 1000  # the last line is cut
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assay.log(loss=0.5, step=100)
    assert [line["step"] for line in read_lines(run_dir)] == list(range(101))
    said = capsys.readouterr().err
    assert said.count("assay.log cannot write") == 1
    assert "The script goes on" in said


def test_between_two_tries_the_disk_is_left_alone(run_dir, monkeypatch):
    tries = []

    def refuse():
        tries.append(1)
        raise PermissionError(13, "Permission denied", "/nowhere")

    stream = script.Stream("test", refuse)
    for _ in range(50):
        stream.write(b"line\n")
    assert len(tries) == 1
    assert stream._waiting_bytes == 250
    stream.forget()


def test_a_descriptor_that_the_script_closed_is_replaced(run_dir, monkeypatch, capsys):
    """Programs that become daemons close every descriptor they find."""
    monkeypatch.setattr(script, "_RETRY_S", 0.0)
    assay.log(a=1.0)
    os.close(script._stream._fd)
    for value in (2.0, 3.0, 4.0):
        assay.log(a=value)
    assert [line["a"] for line in read_lines(run_dir)] == [1.0, 2.0, 3.0, 4.0]


def test_the_backlog_has_a_limit_and_the_loss_is_reported(run_dir, monkeypatch, capsys):
    monkeypatch.setattr(script, "_BACKLOG_BYTES", 50)

    def refuse():
        raise OSError(28, "No space left on device", "/full")

    stream = script.Stream("test", refuse)
    for _ in range(50):
        stream.write(b"line\n")
    assert stream._waiting_bytes == 50
    stream._give_up()
    assert "test cannot write /full: No space left on device" in (said := capsys.readouterr().err)
    assert "test lost 50 lines" in said
    stream.forget()


@pytest.mark.parametrize("begin", ["pass", "sys.stderr.close()"])
def test_a_run_directory_that_cannot_be_made_does_not_stop_the_training(tmp_path, begin):
    (tmp_path / "file").write_text("")
    code = f"import sys, assay\n{begin}\nfor i in range(3): assay.log(loss=1.0)\nprint('trained')"
    done = run_python(code, tmp_path, ASSAY_RUN_DIR=str(tmp_path / "file" / "run"))
    assert (done.returncode, done.stdout) == (0, "trained\n")
    if begin == "pass":
        assert done.stderr.count("assay.log cannot write") == 1
        assert "assay.log lost 3 lines" in done.stderr


# ---------------------------------------------------------------- outside a run


@pytest.mark.parametrize("root", ["runs", "other root"])
def test_outside_a_run_an_adhoc_run_is_opened_and_reported_once_and_describes_itself(tmp_path, root):
    env = {} if root == "runs" else {"ASSAY_ROOT": root}
    done = run_python("import assay\nassay.log(loss=1.0)\nassay.log(loss=2.0)", tmp_path, **env)
    (run,) = [path for path in (tmp_path / root / "adhoc").iterdir() if path.name != layout.STUDY_META_DIR]
    assert done.stderr == f"assay.log: not inside a run, so metrics go to {run}\n"
    assert [line["loss"] for line in read_lines(run)] == [1.0, 2.0]
    assert not list((tmp_path / root / "adhoc" / layout.STUDY_META_DIR).iterdir())
    fields = json.loads((run / "run.json").read_text())
    assert fields["format"] == layout.FORMAT_VERSION
    assert (fields["kind"], fields["study"], fields["name"]) == ("adhoc", "adhoc", run.name)
    assert (fields["params"], fields["commands"], fields["command_line"]) == ({}, [], ["-c"])
    assert fields["process"]["pid"] > 0
    assert fields["process"]["start"] > 0
    assert fields["process"]["boot"]


def test_forked_children_share_the_adhoc_run(tmp_path):
    code = """
import os, assay
assay.log(loss=1.0)
if os.fork() == 0:
    assay.log(loss=2.0)
    os._exit(0)
os.wait()
"""
    done = run_python(code, tmp_path)
    (run,) = (tmp_path / "runs/adhoc").glob("[0-9]*")
    assert done.stderr.count("not inside a run") == 1
    assert sorted(line["loss"] for line in read_lines(run)) == [1.0, 2.0]


def test_the_scripts_own_random_numbers_are_not_disturbed(tmp_path):
    code = "import random, assay\nrandom.seed(1)\nassay.log(loss=1.0)\nprint(random.random())"
    one, two = run_python(code, tmp_path), run_python("import random\nrandom.seed(1)\nprint(random.random())", tmp_path)
    assert one.stdout == two.stdout


# ---------------------------------------------------------------- the import


def test_importing_assay_loads_nothing_but_the_standard_library(tmp_path):
    code = """
import sys
before = set(sys.modules)
import assay
first = set(sys.modules) - before
assay.log
import assay.logx, assay.examine
print(sorted(first))
print(sorted({name.partition(".")[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)))
"""
    done = run_python(code, tmp_path)
    assert done.stdout.splitlines() == ["['__future__', 'assay']", "['assay']"]
    assert done.stderr == ""


def test_log_is_kept():
    assert assay.log is assay.log is script.log
    assert vars(assay)["log"] is script.log
