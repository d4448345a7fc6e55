"""The worker's own side: its protocol, its limits, and what it makes of answers."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys

import pytest

from assay.errors import InfrastructureError, MissingExtraError
from assay.models.backends.base import BackendError, Made
from assay.models.values.model import Job, Step, StepEnding
from assay.models.worker import build_error, build_outcome, check_made, describe, limit_memory
from assay.values.plain import build_plain

HERE = os.path.dirname(__file__)
TARGET = {"target": {"name": "s", "backend": "strange_backend:StrangeBackend", "options": {}}}


class Talk:
    """A worker, spoken to by hand."""

    def __init__(self, tmp_path):
        read, write = os.pipe()
        with open(tmp_path / "stderr", "wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "assay.models.worker", str(write)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=err,
                pass_fds=[write],
                env={**os.environ, "PYTHONPATH": HERE},
            )
        os.close(write)
        self.answers = os.fdopen(read)

    def say(self, message):
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def ask(self, message):
        self.say(message)
        if "job" in message:  # it is taken before it is done
            assert json.loads(self.answers.readline()) == {"begun": True}
        return json.loads(self.answers.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()
        self.answers.close()


@pytest.fixture
def talk(tmp_path):
    made = Talk(tmp_path)
    yield made
    made.close()


def job_of(tmp_path, case):
    return {"job": build_plain(Job(Step.COMPILE, "m", str(tmp_path), case=case))}


def test_a_conversation(talk, tmp_path):
    """Answers do not go to stdout, no core is dumped, and memory is limited for the job that asks and no other."""
    assert "no target was named" in talk.ask({"identity": True})["error"]["message"]
    assert talk.ask(TARGET) == {"ready": True}
    identity = talk.ask({"identity": True})["identity"]
    assert identity["strange"] == "1.0"
    pid = int(identity["pid"])
    assert resource.prlimit(pid, resource.RLIMIT_CORE) == (0, 0)
    outcome = talk.ask({**job_of(tmp_path, "talk"), "memory_bytes": 100 << 20})["outcome"]
    assert (outcome["ending"], outcome["path"]) == ("ok", str(tmp_path / "artifact"))
    assert 100 << 20 <= resource.prlimit(pid, resource.RLIMIT_DATA)[0] < 4 << 30
    assert resource.prlimit(pid, resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY, "address space is cheap"
    talk.ask(job_of(tmp_path, "fine"))
    assert resource.prlimit(pid, resource.RLIMIT_DATA)[0] == resource.prlimit(pid, resource.RLIMIT_DATA)[1]
    talk.say({"close": True})
    assert talk.process.wait(30) == 0
    assert b"ready" not in talk.process.stdout.read()


def test_a_death_is_reported_by_the_guard(talk, tmp_path):
    talk.ask(TARGET)
    talk.say(job_of(tmp_path, "abort"))
    lines = [line for line in talk.answers.read().splitlines() if line]
    assert json.loads(lines[-1]) == {"died": -6}


def test_the_end_of_stdin_is_the_end(talk):
    talk.process.stdin.close()
    assert talk.process.wait(30) == 0


# ---------------------------------------------------------------- outcomes and errors


def test_what_was_made_has_to_be_there_and_inside(tmp_path):
    job = Job(Step.RUN, "m", str(tmp_path / "job"))
    (tmp_path / "job").mkdir()
    (tmp_path / "outside").touch()
    (tmp_path / "job/inside").touch()
    made = {
        name: build_outcome(job, Made(str(tmp_path / name), "cmd")) for name in ("outside", "job/none", "job/inside")
    }
    assert [each.ending for each in made.values()] == [StepEnding.ERROR, StepEnding.ERROR, StepEnding.OK]
    assert "outside of its folder" in made["outside"].message
    assert "is not there" in made["job/none"].message
    assert build_outcome(job, Made(str(tmp_path / "job"))).is_ok, "a folder full of things"


def test_errors_as_messages():
    assert build_error(InfrastructureError("a", "b")) == {
        "kind": "InfrastructureError",
        "message": "a",
        "hint": "b",
        "extra": None,
    }
    assert build_error(MissingExtraError("x", "iree"))["extra"] == "iree"


@pytest.mark.parametrize(
    ("error", "text"),
    [(ValueError("a\nb"), "ValueError: a"), (ValueError(), "ValueError"), (KeyError("k"), "KeyError: 'k'")],
)
def test_exceptions_in_one_line(error, text):
    assert describe(error) == text


def test_no_limit_is_the_hard_limit():
    before = resource.getrlimit(resource.RLIMIT_DATA)
    try:
        limit_memory(None)
        assert resource.getrlimit(resource.RLIMIT_DATA) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


@pytest.mark.parametrize(("made", "said"), [(None, "returned None, not Made"), ("path", "returned a str, not Made")])
def test_a_step_that_returns_something_else_reports_so(made, said):
    class Forgetful:
        pass

    with pytest.raises(BackendError, match=said) as caught:
        check_made(Forgetful(), made)
    assert "Forgetful.perform" in caught.value.message
    assert "Made(path)" in caught.value.hint
    assert check_made(Forgetful(), Made("x")) == Made("x")
