"""The worker's own side: its protocol, its limits, and what it makes of answers."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys

import pytest
from tests.models.strange_backend import StrangeBackend

from assay.models.backends.base import BackendError, Made
from assay.models.values.model import Job, Step, Target
from assay.models.worker import check_made, describe, limit_memory
from assay.values.plain import build_plain

HERE = os.path.dirname(__file__)
TARGET = {"target": {"name": "s", "backend": "strange_backend:StrangeBackend", "options": {}}}


def talk(tmp_path, *messages):
    """A worker, spoken to by hand: its answers, its stdout and its exit code."""
    read, write = os.pipe()
    with open(tmp_path / "stderr", "wb") as err:
        process = subprocess.Popen(
            [sys.executable, "-m", "assay.models.worker", str(write)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=err,
            pass_fds=[write],
            env={**os.environ, "PYTHONPATH": HERE},
        )
    os.close(write)
    process.stdin.write(b"".join(json.dumps(each).encode() + b"\n" for each in messages))
    process.stdin.flush()
    with os.fdopen(read) as answers:
        found = [json.loads(line) for line in answers if line.strip()] if messages else []
    out, _ = process.communicate(timeout=60)
    return found, out, process.returncode


def job_of(tmp_path, case):
    return {"job": build_plain(Job(Step.COMPILE, "m", str(tmp_path), case=case))}


def test_answers_do_not_go_to_stdout_and_a_death_is_reported_by_the_guard(tmp_path):
    identity = {"identity": True}
    answers, out, code = talk(tmp_path, identity, TARGET, identity, job_of(tmp_path, "talk"), {"close": True})
    refused, ready, described, begun, done, ended = answers
    assert "no target was named" in refused["error"]["facts"]["message"]
    assert (ready, described["identity"]["strange"], begun) == ({"ready": True}, "1.0", {"begun": True})
    assert (done["outcome"]["ending"], done["outcome"]["path"]) == ("ok", str(tmp_path / "artifact"))
    assert b"from print" in out
    assert b"ready" not in out
    assert (ended, code) == ({"died": 0}, 0)
    answers, _, _ = talk(tmp_path, TARGET, job_of(tmp_path, "abort"))
    assert answers[-1] == {"died": -6}
    assert talk(tmp_path)[2] == 0, "the end of stdin is the end"


def test_what_was_made_has_to_be_there_and_inside(tmp_path):
    job, backend = Job(Step.RUN, "m", str(tmp_path / "job")), StrangeBackend(Target("s", "s"))
    (tmp_path / "job").mkdir()
    (tmp_path / "outside").touch()
    (tmp_path / "job/inside").touch()
    for path in ("job/inside", "job"):  # a file, and a folder full of things
        made = Made(str(tmp_path / path))
        assert check_made(backend, job, made) is made
    for made, message in (
        (Made(str(tmp_path / "outside"), "cmd"), "outside of its folder"),
        (Made(str(tmp_path / "job/none"), "cmd"), "is not there"),
        (None, r"StrangeBackend\.perform returned None, not Made"),
        ("path", "returned a str, not Made"),
    ):
        with pytest.raises(BackendError, match=message) as caught:
            check_made(backend, job, made)
        assert caught.value.command == "cmd" or "Made(path)" in caught.value.hint


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
