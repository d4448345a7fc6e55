"""How a run that a script opened itself stands: while the script runs, and however it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from assay.cli.main import run
from assay.values import layout

OPEN = {
    "log": "import assay\nassay.log(loss=1.0, step=1)\n",
    "wandb": "import assay.wandb as wandb\nwandb.init(project='adhoc', name='x')\nwandb.log({'loss': 1.0})\n",
}


class Place(NamedTuple):
    """A folder in which scripts are started, and the command line that looks at their runs."""

    folder: Path
    env: dict[str, str]
    call: Callable[..., tuple[int, str]]

    def start(self, text: str, **options: Any) -> subprocess.Popen[str]:
        (self.folder / "train.py").write_text(text)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        command = [sys.executable, "train.py"]
        return subprocess.Popen(command, cwd=self.folder, env=self.env, text=True, **pipes, **options)  # type: ignore[call-overload, no-any-return]

    def finish(self, text: str) -> int:
        script = self.start(text)
        script.communicate(timeout=60)
        return int(script.returncode)

    def list(self) -> dict[str, dict[str, Any]]:
        code, out = self.call("ls", "adhoc", "--json")
        assert code == 0
        return {row["name"]: row for row in json.loads(out)}

    def one(self) -> tuple[str, int | None]:
        """The state of the only run, as the table and its page have it, and its exit code."""
        ((name, row),) = self.list().items()
        shown = json.loads(self.call("show", f"adhoc/{name}", "--json")[1])
        assert (row["state"], row["exit_code"]) == (shown["state"], shown["exit_code"])
        return row["state"], row["exit_code"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Place:
    for name in [name for name in os.environ if name.startswith(("ASSAY_", "WANDB_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("ASSAY_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str]:
        capsys.readouterr()
        code = run(arguments)
        said = capsys.readouterr()
        return code, said.out if code == 0 else said.out + said.err

    return Place(tmp_path, dict(os.environ), call)


ENDS = {
    "its last line": ("pass", "done", 0),
    "sys.exit": ("import sys; sys.exit(3)", "failed", 3),
    "exit": ("exit(3)", "failed", 3),
    "SystemExit": ("raise SystemExit(3)", "failed", 3),
    "SystemExit with nothing": ("raise SystemExit", "done", 0),
    "a SystemExit that was caught": ("try: exit(3)\nexcept SystemExit: pass", "done", 0),
    "a message": ("raise SystemExit('no data')", "failed", 1),
    "a negative code": ("import sys; sys.exit(-1)", "failed", 255),
    "an exception": ("1 / 0", "failed", 1),
    "Ctrl-C": ("raise KeyboardInterrupt", "failed", 130),
    "an exception at exit": ("import atexit; atexit.register(exit, 5)", "done", 0),
    "kill -9": ("import os; os.kill(os.getpid(), 9)", "lost", None),
    "SIGTERM": ("import os; os.kill(os.getpid(), 15)", "lost", None),
    "os._exit": ("import os; os._exit(0)", "lost", None),
    "a forked child that fails": ("import os\nif os.fork() == 0: exit(7)\nos.wait()", "done", 0),
    "a worker that fails": (
        "import multiprocessing as m; p = m.get_context('fork').Process(target=exit, args=(7,)); p.start(); p.join()",
        "done",
        0,
    ),
    "a thread that fails": ("import threading; threading.Thread(target=lambda: 1 / 0).start()", "done", 0),
}


SHORT = ("its last line", "sys.exit", "an exception", "Ctrl-C", "kill -9", "a forked child that fails")


@pytest.mark.parametrize(
    ("opened", "how"),
    [
        pytest.param(opened, how, marks=() if opened == "log" or how in SHORT else pytest.mark.long)
        for opened in OPEN
        for how in ENDS
    ],
)
def test_a_run_that_a_script_opened_ends_as_the_script_does(place: Place, opened: str, how: str) -> None:
    end, state, code = ENDS[how]
    place.finish(OPEN[opened] + end)
    assert place.one() == (state, code)


def test_a_run_is_running_while_its_script_runs(place: Place) -> None:
    script = place.start(OPEN["log"] + "print('open', flush=True)\ninput()\nassay.log(loss=2.0, step=2)\n")
    assert script.stdout is not None
    script.stdout.readline()
    assert place.one() == ("running", None)
    name = next(iter(place.list()))
    code, said = place.call("stop", f"adhoc/{name}")
    assert (code != 0, f"kill {script.pid}" in said) == (True, True)
    code, said = place.call("rerun", f"adhoc/{name}")
    assert (code, "opened by a script itself" in said) == (2, True)
    code, said = place.call("logs", f"adhoc/{name}")
    assert (code, "no output here" in said, "--follow" in said) == (2, True, False)
    assert script.poll() is None
    script.communicate("\n", timeout=60)
    assert place.one() == ("done", 0)
    points = json.loads(place.call("sum", "adhoc", "--json")[1])
    assert "2.0" in json.dumps(points)  # what was logged after the first look
    assert "was not running (done)" in place.call("stop", f"adhoc/{name}")[1]


FINISHED = {
    "finish": ("wandb.finish()", "done", 0),
    "finish with a code": ("wandb.finish(exit_code=1)", "failed", 1),
    "finish with a text": ("wandb.finish(exit_code='failed')", "failed", 1),
    "finish with a code beyond a byte": ("wandb.finish(exit_code=256)", "failed", 1),
    "finish during an exception": (
        "try:\n  try: 1 / 0\n  finally: wandb.finish()\nexcept Exception: pass",
        "failed",
        1,
    ),
    "a block": ("with wandb.run: pass", "done", 0),
    "a block that raises": ("try:\n  with wandb.run: 1 / 0\nexcept Exception: pass", "failed", 1),
    "the next run": ("import assay\nwandb.init(project='other', reinit=True)", "done", 0),
}


@pytest.mark.parametrize("how", FINISHED)
def test_a_run_is_over_while_its_script_goes_on(place: Place, how: str) -> None:
    end, state, code = FINISHED[how]
    script = place.start(f"{OPEN['wandb']}{end}\nprint('over', flush=True)\ninput()\nexit(9)\n")
    assert script.stdout is not None
    assert script.stdout.readline() == "over\n"
    assert place.one() == (state, code)
    script.communicate("\n", timeout=60)
    assert place.one() == (state, code)


TRAINER = """
from dataclasses import dataclass
from types import SimpleNamespace
from assay.transformers import _Logging
@dataclass
class Arguments:
    def to_sanitized_dict(self): return {}
def train(name, fails):
    callback, state = _Logging("adhoc", name), SimpleNamespace(is_world_process_zero=True, global_step=1)
    callback.on_train_begin(Arguments(), state, None)
    callback.on_log(Arguments(), state, None, {"loss": 1.0})
    if fails: raise RuntimeError("out of memory")
    callback.on_train_end(Arguments(), state, None)
"""
LIGHTNING = """
from assay.lightning import _Logging
def train(name, fails):
    logger = _Logging("adhoc", name)
    logger.log_metrics({"loss": 1.0}, 1)
    logger.finalize("failed" if fails else "success")
    if fails: raise RuntimeError("out of memory")
"""


@pytest.mark.parametrize("trainer", [TRAINER, LIGHTNING], ids=["transformers", "lightning"])
def test_a_training_that_failed_stays_failed_where_the_script_goes_on(place: Place, trainer: str) -> None:
    """As a loop over learning rates does that survives one which does not fit into memory."""
    loop = "for n, fails in enumerate([True, False, True]):\n  try: train(f'x{n}', fails)\n  except RuntimeError: pass"
    assert place.finish(trainer + loop) == 0
    assert {name: row["state"] for name, row in place.list().items()} == {"x0": "failed", "x1": "done", "x2": "failed"}


def test_finish_as_the_interpreter_ends_leaves_the_exit_code_to_decide(place: Place) -> None:
    place.finish("import atexit, assay.wandb\natexit.register(assay.wandb.finish)\n" + OPEN["wandb"] + "exit(3)")
    assert place.one() == ("failed", 3)


@pytest.mark.parametrize(
    ("start", "end", "state"),
    [("fork", "pass", "done"), ("fork", "exit(3)", "failed"), ("spawn", "pass", "done"), ("spawn", "1 / 0", "failed")],
)
def test_a_run_that_a_worker_opened_ends_with_the_worker(place: Place, start: str, end: str, state: str) -> None:
    body = "".join(f"    {line}\n" for line in [*OPEN["log"].splitlines(), end])
    main = f"    p = multiprocessing.get_context({start!r}).Process(target=f); p.start(); p.join()\n"
    place.finish(f"import multiprocessing\ndef f():\n{body}if __name__ == '__main__':\n{main}")
    assert place.one()[0] == state


def test_a_child_of_torchrun_that_is_ended_is_lost_and_the_one_that_failed_has_failed(place: Place) -> None:
    """As torchrun does: each rank is a process; when one fails, the others get SIGTERM."""
    place.env["RANK"] = "0"
    first = place.start(OPEN["log"] + "print('open', flush=True)\ninput()")
    assert first.stdout is not None
    first.stdout.readline()
    place.env["RANK"] = "1"
    assert place.finish(OPEN["log"] + "1 / 0") == 1
    first.terminate()
    first.communicate(timeout=60)
    assert sorted(row["state"] for row in place.list().values()) == ["failed", "lost"]


def test_a_run_that_crashed_is_not_the_best(place: Place) -> None:
    for name, loss, end in (("good", 2.0, "pass"), ("killed", 0.5, "import os; os._exit(0)"), ("bad", 0.1, "exit(1)")):
        opened = f"import assay.wandb as wandb\nwandb.init(project='adhoc', name={name!r})\n"
        place.finish(f"{opened}wandb.log({{'loss': {loss}}})\n{end}")
    states = {name: row["state"] for name, row in place.list().items()}
    assert states == {"good": "done", "killed": "lost", "bad": "failed"}
    code, out = place.call("best", "adhoc", "--metric", "loss:min")
    assert (code, "run   good" in out, "killed is lost and does not count" in out) == (0, True, True), out


@pytest.mark.parametrize("host", ["elsewhere", os.uname().nodename])
def test_a_run_on_another_host_is_not_judged_by_its_process(place: Place, host: str) -> None:
    """Its exit code is believed, and looked for again; also where a container has the name of this host, and the number
    of another process."""
    place.finish(OPEN["log"])
    (folder,) = (place.folder / "runs" / "adhoc").glob("[!.]*")
    lease = json.loads((folder / "lease.1").read_text())
    (folder / "lease.1").write_text(json.dumps({**lease, "host": host, "pid": os.getpid()}))
    end = (folder / "end.1").read_bytes()
    (folder / "end.1").write_text(layout.NOT_ENDED)
    assert place.one() == ("lost", None)
    said = place.call("stop", f"adhoc/{folder.name}")[1]
    assert ("opened it itself on elsewhere" if host == "elsewhere" else "was not running (lost)") in said
    (folder / "end.1").write_bytes(end)  # changes no time of the folder
    assert place.one() == ("done", 0)


def test_a_disk_that_refuses_the_end_does_not_stop_the_script(place: Place) -> None:
    assert place.finish(OPEN["wandb"] + "import os; os.rename('runs/adhoc/x', 'gone')\nwandb.finish()\n") == 0
    assert place.finish(OPEN["log"] + "import shutil; shutil.rmtree('runs')\n") == 0


def test_what_is_logged_after_the_end_is_another_run(place: Place) -> None:
    place.finish(OPEN["wandb"] + "import assay, time\nwandb.finish()\nassay.log(loss=9.0)\n")
    runs = place.list()
    assert len(runs) == 2
    assert {row["state"] for row in runs.values()} == {"done"}
    assert time.time() - runs["x"]["ended_at"] < 600


def test_a_run_that_is_sent_elsewhere_keeps_its_duration(place: Place) -> None:
    """Its end is known by the time of a file, which a copy does not have."""
    from assay.exchange.upload import OutgoingRun, _choose_files
    from assay.record.run_directory import load_outcome

    assert place.finish("import assay\nassay.log(loss=1.0, step=1)\n") == 0
    (run_dir,) = (path.parent for path in place.folder.glob("runs/adhoc/*/run.json"))
    assert load_outcome(str(run_dir), 1) is None
    _choose_files(OutgoingRun("adhoc", str(run_dir)), [])
    outcome = load_outcome(str(run_dir), 1)
    assert outcome is not None
    os.utime(run_dir / layout.numbered_name("end", 1), (0, 0))
    (row,) = place.list().values()
    assert row["elapsed_s"] == pytest.approx(outcome.ended_at - outcome.started_at)
