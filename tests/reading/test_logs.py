"""Finding logs, and their last lines."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.errors import NotFoundError, UsageError
from assay.follow.log_tails import find_errors
from assay.reading import logs
from assay.record import run_directory
from assay.values.run import Command, RunSpec


def make_run(folder: Path, files: dict[str, str], log_name: str = "{command}{suffix}.log") -> str:
    spec = RunSpec("id", "run", {}, (Command("train", ""), Command("test", "")), log_name=log_name)
    path = folder / "run"
    path.mkdir(exist_ok=True)
    (path / "run.json").write_text(run_directory.render_record(run_directory.RunRecord(spec, "study", "uid", 1.0)))
    for name, text in files.items():
        (path / name).write_text(text)
    return str(path)


def name_of(path: str) -> str:
    return os.path.basename(path)


def test_the_failed_commands_newest_log(tmp_path: Path) -> None:
    files = ["train.log", "train.exit.1", "train.2.log", "train.2.exit.1", "test.log"]
    run = make_run(tmp_path, dict.fromkeys(files, ""))
    assert name_of(logs.find_log(run)) == "train.2.log"
    assert name_of(logs.find_log(run, attempt=1)) == "train.log"
    assert name_of(logs.find_log(run, command="test")) == "test.log"


def test_mlrunners_names(tmp_path: Path) -> None:
    files = ["log.train.20220101.000000", "log.train.20220102.000000", "train.exit.1", "train.2.exit.0"]
    run = make_run(tmp_path, dict.fromkeys(files, ""), "log.{command}.{time}")
    assert name_of(logs.find_log(run)) == "log.train.20220102.000000"
    assert name_of(logs.find_log(run, attempt=1)) == "log.train.20220101.000000"
    assert name_of(logs.find_log(run, "train", 2)) == "log.train.20220102.000000"


def test_what_is_not_there(tmp_path: Path) -> None:
    run = make_run(tmp_path, {})
    with pytest.raises(UsageError, match="no output yet"):
        logs.find_log(run)
    with pytest.raises(NotFoundError):
        logs.find_log(run, "tests")
    with pytest.raises(UsageError, match="no attempt 1"):
        logs.find_log(run, attempt=1)


@given(text=st.lists(st.binary(max_size=6), max_size=12).map(b"\n".join), count=st.integers(0, 15))
def test_last_lines_are_those_of_the_whole_file(
    tmp_path_factory: pytest.TempPathFactory, text: bytes, count: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "log"
    path.write_bytes(text)
    lines = text.split(b"\n")
    ended = lines.pop() if lines[-1] == b"" else None
    wanted = b"\n".join(lines[max(0, len(lines) - count) :] if count else [])
    if ended is not None and count and lines:
        wanted += b"\n"
    assert text[logs.find_last_lines(str(path), count) :] == (wanted if count else b"")


def test_last_lines_across_blocks(tmp_path: Path) -> None:
    path = tmp_path / "log"
    lines = [b"x" * 1000 + str(i).encode() for i in range(500)]
    path.write_bytes(b"\n".join(lines) + b"\n")
    out: list[bytes] = []
    logs.copy_log(str(path), 300, out.append)
    assert b"".join(out) == b"\n".join(lines[-300:]) + b"\n"


def test_a_follower_goes_from_log_to_log(tmp_path: Path) -> None:
    run = make_run(tmp_path, {"train.log": "one\n"})
    follower = logs.RunFollower(run)
    assert b"".join(follower.read()) == b"one\n"
    Path(run, "train.log").write_text("one\ntwo\n")
    Path(run, "test.log").write_text("tested\n")
    assert b"".join(follower.read()) == b"two\ntested\n"
    Path(run, "train.2.log").write_text("again\n")
    assert b"".join(follower.read()) == b"again\n"
    assert b"".join(follower.read()) == b""


def test_a_follower_begins_at_the_newest_log(tmp_path: Path) -> None:
    run = make_run(tmp_path, {"train.log": "old\n", "train.2.log": "a\nb\nc\n"})
    assert b"".join(logs.RunFollower(run, lines=2).read()) == b"b\nc\n"
    assert b"".join(logs.RunFollower(run, command="test").read()) == b""


# ---------------------------------------------------------------- --errors

TRACE = """{0}Traceback (most recent call last):
{0}  File "train.py", line {1}, in <module>
{0}    main()
{0}{2}: rank failed
"""


def write_log(folder: Path, text: str) -> str:
    path = folder / "train.log"
    path.write_text(text)
    return str(path)


def test_what_matters_of_a_log(tmp_path: Path) -> None:
    steps = "".join(f"step {i} loss 0.{i} error 0.{i}\n" for i in range(200))
    trace = TRACE.format("", 3, "ValueError")
    text = steps + trace + steps + "CUDA error: out of memory\n" + "epoch 9 done\n" * 3
    shown = find_errors(write_log(tmp_path, text), 2)
    assert shown == [*trace.splitlines(), "…", "CUDA error: out of memory", "…", *["epoch 9 done"] * 2]
    assert find_errors(write_log(tmp_path, "step 1\n" + trace)) == trace.splitlines(), "its end is shown once"


def test_tracebacks_of_several_ranks_and_repeated_lines(tmp_path: Path) -> None:
    text = TRACE.format("[rank0]: ", 3, "OSError") + TRACE.format("[rank1]: ", 3, "OSError")
    text += "".join(f"step {i} loss nan\n" for i in range(100))
    trace = TRACE.format("[rank0]: ", 3, "OSError").splitlines()
    assert find_errors(write_log(tmp_path, text), 1) == [*trace, "…", "step 0 loss nan", "…", "step 99 loss nan"]


def test_a_log_without_errors_has_its_end_and_a_huge_one_stays_small(tmp_path: Path) -> None:
    assert find_errors(write_log(tmp_path, "a\nb\nc\n"), 2) == ["b", "c"]
    assert find_errors(write_log(tmp_path, "")) == []
    many = "".join(f"{chr(97 + i % 26)}{chr(97 + i // 26)} error\n" for i in range(600)) + "x" * 100_000 + "\n"
    shown = find_errors(write_log(tmp_path, many))
    assert (len(shown), max(map(len, shown))) == (20 * 2 + 1, 1000)
    deep = "Traceback (most recent call last):\n" + "  File x\n" * 5000 + "RecursionError\n"
    assert len(find_errors(write_log(tmp_path, deep))) == 61


def test_the_command_shows_them(cli) -> None:
    assert cli("logs", "fit/lr=0.5,n=7", "--errors", "-n", "1").out == "step 3 loss 1.7 lr 0.5\n"
    refused = cli("logs", "fit/lr=0.5,n=7", "--errors", "-f")
    assert (refused.code, refused.out) == (2, "")
