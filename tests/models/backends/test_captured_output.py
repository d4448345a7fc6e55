"""What programs and libraries say: kept, bounded, passed on."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.models.backends.captured_output import KEPT_BYTES, Excerpt, capture_stderr, load_excerpt, run_program


@given(st.lists(st.binary(max_size=40), max_size=10), st.integers(2, 60))
def test_an_excerpt_is_the_head_and_the_tail(chunks, limit):
    excerpt = Excerpt(limit)
    for chunk in chunks:
        excerpt.add(chunk)
    whole, half = b"".join(chunks), limit // 2
    text = excerpt.render()
    if len(whole) <= 2 * half:
        assert text == whole.decode("utf-8", "replace")
    else:
        assert text.startswith(whole[:half].decode("utf-8", "replace"))
        assert text.endswith(whole[-half:].decode("utf-8", "replace"))
        assert f"{len(whole) - 2 * half} bytes left out" in text


def test_an_excerpt_of_a_file(tmp_path):
    half = "a" * (KEPT_BYTES // 2)
    (tmp_path / "x").write_text(half + "b" * 90 + half)
    assert load_excerpt(str(tmp_path / "x")) == f"{half}\n… 90 bytes left out …\n{half}"
    assert load_excerpt(str(tmp_path / "none")) == ""


def test_the_output_of_a_program_is_kept_and_passed_on(capfd):
    speech = run_program(["sh", "-c", "echo out; echo err >&2; exit 3"])
    assert (speech.code, speech.stdout, speech.stderr) == (3, "out\n", "err\n")
    assert capfd.readouterr() == ("out\n", "err\n")


def test_a_signal_is_a_negative_code():
    assert run_program(["sh", "-c", "kill -SEGV $$"]).code == -11


def test_much_output_does_not_block(capfd):
    speech = run_program(
        [sys.executable, "-c", "import sys; sys.stdout.write('x' * 5_000_000); sys.stderr.write('y' * 5_000_000)"]
    )
    assert len(speech.stdout) < 70_000
    assert len(capfd.readouterr().out) == 5_000_000


def test_a_grandchild_that_holds_the_stream_does_not_hold_us(monkeypatch, tmp_path):
    monkeypatch.setattr("assay.models.backends.captured_output._DRAIN_S", 0.1)
    speech = run_program(["sh", "-c", f"echo said; sleep 1000 & echo $! > {tmp_path / 'pid'}"])
    os.kill(int((tmp_path / "pid").read_text()), 9)
    assert (speech.code, speech.stdout) == (0, "said\n")


def test_a_program_gets_no_input():
    assert run_program(["cat"]).code == 0


# ---------------------------------------------------------------- libraries

OVERHEAR = """
import os, sys
from assay.models.backends.captured_output import capture_stderr
os.write(2, b"before\\n")
with capture_stderr() as heard:
    os.write(2, b"from C\\n"); print("from Python", file=sys.stderr)
    if len(sys.argv) > 1: os.abort()
os.write(1, heard.text.encode())
"""


@pytest.mark.parametrize("kind", ["file", "pipe"])
def test_the_output_of_a_library_is_kept_and_passed_on(tmp_path, kind):
    log = tmp_path / "log"
    with open(log, "wb") as stream:
        err = stream if kind == "file" else subprocess.PIPE
        done = subprocess.run([sys.executable, "-c", OVERHEAR], stdout=subprocess.PIPE, stderr=err, check=True)
    assert done.stdout.decode() == "from C\nfrom Python\n"
    whole = log.read_bytes() if kind == "file" else done.stderr
    assert whole.decode() == "before\nfrom C\nfrom Python\n"


def test_a_crash_loses_nothing_where_stderr_is_a_file(tmp_path):
    log = tmp_path / "log"
    with open(log, "wb") as stream:
        subprocess.run([sys.executable, "-c", OVERHEAR, "crash"], stdout=subprocess.PIPE, stderr=stream, check=False)
    assert log.read_text().startswith("before\nfrom C\nfrom Python\n")


def test_overhearing_in_this_process(capfd):
    with capture_stderr() as heard:
        os.write(2, b"x\n")
    assert heard.text == "x\n"
    assert capfd.readouterr().err == "x\n"
