"""What programs and libraries say: kept, bounded, passed on."""

from __future__ import annotations

import io
import os
import tempfile

from hypothesis import given
from hypothesis import strategies as st

from assay.models.backends import captured_output
from assay.models.backends.captured_output import KEPT_BYTES, begin_output, load_excerpt, run_program


@given(st.binary(max_size=9), st.binary(max_size=200), st.integers(2, 60))
def test_an_excerpt_is_the_head_and_the_tail(before, whole, limit):
    with tempfile.TemporaryFile() as stream:
        stream.write(before + whole)
        stream.seek(len(before))
        text, half = captured_output._read_excerpt(stream, limit), limit // 2
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


def test_an_excerpt_ends_although_its_file_grows(tmp_path):
    path = tmp_path / "x"
    path.write_text("first")

    class Growing(io.FileIO):
        def read(self, size=-1):
            if path.stat().st_size < 10_000:
                with path.open("a") as file:
                    file.write("later")
            return super().read(size)

    with Growing(path) as stream:
        assert captured_output._read_excerpt(stream) == "first"


def test_the_output_of_a_program_is_kept_and_passed_on(capfd):
    speech = run_program(["sh", "-c", "echo out; echo err >&2; exit 3"])
    assert (speech.code, speech.stdout, speech.stderr) == (3, "out\n", "err\n")
    assert capfd.readouterr() == ("out\n", "err\n")
    assert run_program(["sh", "-c", "kill -SEGV $$"]).code == -11
    assert run_program(["cat"]).code == 0, "a program gets no input"


def test_much_output_does_not_block(capfd):
    speech = run_program(["sh", "-c", "head -c 5000000 /dev/zero; head -c 5000000 /dev/zero >&2"])
    assert len(speech.stdout) < 70_000
    assert len(capfd.readouterr().out) == 5_000_000


def test_a_grandchild_that_holds_the_stream_does_not_hold_us(tmp_path):
    speech = run_program(["sh", "-c", f"echo said; sleep 1000 & echo $! > {tmp_path / 'pid'}"])
    os.kill(int((tmp_path / "pid").read_text()), 9)
    assert (speech.code, speech.stdout) == (0, "said\n")


def test_the_output_of_a_library_is_read_from_the_file_that_stderr_is(tmp_path):
    writer, before = os.open(tmp_path / "log", os.O_RDWR | os.O_CREAT | os.O_APPEND), os.dup(2)
    os.dup2(writer, 2)
    try:
        os.write(2, b"before\n")
        read = begin_output(2)
        os.write(2, b"from C\n")
        assert read() == "from C\n"
    finally:
        os.dup2(before, 2)
        for fd in (before, writer):
            os.close(fd)
    assert (tmp_path / "log").read_text() == "before\nfrom C\n"
