"""What `assay runx` and `assay mlrunner` add to the originals: overrides, -j, --root, --detach, --retry."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.command_line import Cli
from tests.finished_study import Bench, until

from assay.compat.mlrunner import command as mlrunner
from assay.compat.original_command import Parser
from assay.compat.runx import command as runx
from assay.record import run_directory

RUNX_FLAGS = ["--exp_name", "--tag", "--no_cooldir", "--no_run", "--interactive", "--farm", "--config_file"]
MLRUNNER_FLAGS = ["--output", "--yaml", "--title", "--debug", "--dry-run", "--command", "--force", "--resource"]
MLRUNNER_FLAGS += ["--sample", "--no-subdir"]
SWEEP = "CMD: bash train.sh\nHPARAMS: {lr: [0.1, 0.2], size: 3}\n"
TASKS = """
template: {train: 'echo [lr] [size] > {_output}/words', test: 'true'}
resource: [cpu]
default: {size: 3}
---
lr: [1, 2]
"""


def abbreviations(flags: list[str]) -> dict[str, str]:
    """What the original takes for each flag: everything that begins no other one of its flags."""
    known = (*flags, "--help")
    starts = {(flag[:end], flag) for flag in flags for end in range(3, len(flag) + 1)}
    return {begin: flag for begin, flag in starts if begin == flag or sum(x.startswith(begin) for x in known) == 1}


@pytest.mark.parametrize(
    ("build", "flags", "rest"),
    [(runx.build_parser, RUNX_FLAGS, ["e.yml"]), (mlrunner.build_parser, MLRUNNER_FLAGS, [])],
)
def test_no_addition_takes_a_name_of_the_original(build, flags: list[str], rest: list[str]) -> None:
    for start, flag in abbreviations(flags).items():
        parser: Parser = build()
        action = parser._option_string_actions[flag]
        before = vars(parser.parse_args(rest))
        after = vars(parser.parse_args([*rest, start, *["1"] * (action.nargs != 0)]))
        assert {key for key in after if after[key] != before[key]} == {action.dest}, (start, flag)


def test_overrides_are_found_among_the_words() -> None:
    parsed = runx.build_parser().parse_args(["e.yml", "--tag", "a=b", "lr=1,2", "-i", "x= y", "name=--flag"])
    assert (parsed.tag, parsed.overrides) == ("a=b", ("lr=1,2", "x= y", "name=--flag"))
    parsed = mlrunner.build_parser().parse_args(["-c", "train", "test", "lr=1", "-f", "size=2"])
    assert (parsed.command, parsed.force, sorted(parsed.overrides)) == (["train", "test"], True, ["lr=1", "size=2"])


def test_other_words_are_refused_as_before(capsys: pytest.CaptureFixture[str]) -> None:
    """An option that needs a word does not take an override."""
    for more in (["other.yml"], ["--lr=1"], ["=1"], ["-j", "0"]):
        with pytest.raises(SystemExit):
            runx.build_parser().parse_args(["e.yml", *more])
        assert "error" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        mlrunner.build_parser().parse_args(["-c", "lr=1"])
    assert "expected at least one argument" in capsys.readouterr().err


def params(folder: Path) -> list[dict[str, object]]:
    return [dict(run_directory.load_record(path).spec.params) for path in run_directory.find_run_dirs(str(folder))]


def test_runx_with_overrides_in_another_root(own_bench: Bench) -> None:
    own_bench.write("train.sh", "[ -e good ]\n")
    own_bench.write(".runx", "LOGROOT: logs\nFARM: null\n")
    own_bench.write("sweep.yml", SWEEP)
    assert own_bench.assay("runx", "sweep.yml", "lr=0.5", "--root", "there", "-j", "2").returncode == 1
    there = own_bench.folder / "there" / "sweep"
    assert params(there) == [{"lr": 0.5, "size": 3}]
    assert not (own_bench.folder / "logs").exists()
    own_bench.write("good", "")
    own_bench.write("train.sh", "true\n")
    code = own_bench.assay("runx", "sweep.yml", "lr=0.5", "--root", "there", "--retry", "failed").returncode
    assert code == 1  # this run again, with its own code
    assert len(params(there)) == 1
    assert len(list(there.glob("*/lease.2"))) == 1


def test_runx_with_retry_repeats_the_newest_set_of_the_same_overrides_and_starts_nothing_new(own_bench: Bench) -> None:
    own_bench.write("train.sh", "exit 1\n")
    own_bench.write("sweep.yml", SWEEP)
    none = own_bench.assay("runx", "sweep.yml", "--retry", "failed")
    assert (none.returncode, "no runs to repeat" in none.stderr) == (2, True)
    assert own_bench.assay("runx", "sweep.yml", "lr=7").returncode == 1
    other = own_bench.assay("runx", "sweep.yml", "--retry", "failed")
    assert other.returncode == 2
    assert "repeat them: assay runx sweep.yml lr=7 --retry failed" in other.stderr
    assert own_bench.assay("runx", "sweep.yml", "lr=7", "--retry", "failed").returncode == 1
    assert len(list(own_bench.root.glob("sweep/*/lease.2"))) == 1
    assert own_bench.assay("runx", "sweep.yml").returncode == 1
    assert own_bench.assay("runx", "sweep.yml", "lr=7").returncode == 1
    assert own_bench.assay("runx", "sweep.yml", "--retry", "failed").returncode == 1
    found = [run_directory.load_record(path) for path in run_directory.find_run_dirs(str(own_bench.root / "sweep"))]
    assert sorted(len(record.overrides) for record in found) == [0, 0, 1, 1]
    attempts = {path.parent.name for path in own_bench.root.glob("sweep/*/lease.2")}
    assert attempts >= {record.spec.name for record in found if not record.overrides}
    assert len(attempts) == 3


def test_mlrunner_with_overrides_in_another_root(own_bench: Bench) -> None:
    own_bench.write("params.yaml", TASKS)
    result = own_bench.assay("mlrunner", "-o", "a/out", "--root", "there", "-j", "2", "-c", "train", "lr=5", "size=7,8")
    assert result.returncode == 0, result.stderr
    words = {path.parent.name: path.read_text().split() for path in own_bench.folder.glob("there/out/*/words")}
    assert words == {f"Lr_5-Size_{size}": ["--lr", "5", "--size", str(size)] for size in (7, 8)}
    assert not (own_bench.folder / "a").exists()


@pytest.mark.parametrize(
    ("command", "file", "study"), [("runx", "sweep.yml", "runs/sweep"), ("mlrunner", "", "output")]
)
def test_detach(own_bench: Bench, command: str, file: str, study: str) -> None:
    own_bench.write("train.sh", "true\n")
    own_bench.write("sweep.yml", SWEEP)
    own_bench.write("params.yaml", TASKS)
    result = own_bench.assay(command, *([file] if file else []), "--detach")
    assert result.returncode == 0, result.stderr
    assert "runs in the background" in result.stdout
    folder = own_bench.folder / study

    def is_done() -> bool:
        rows = json.loads(own_bench.assay("ls", study, "--json").stdout or "[]") if folder.exists() else []
        return len(rows) == 2 and all(row["state"] == "done" for row in rows)

    until(is_done, "both runs to end", 60)
    until(lambda: not list(folder.glob(".assay/supervisor.*.*.*")), "the supervisor to leave", 60)
    assert (folder / ".assay" / "supervisor.log").exists()


def test_additions_that_contradict_are_refused(own_bench: Bench, cli: Cli) -> None:
    own_bench.write("params.yaml", TASKS)
    own_bench.write("sweep.yml", SWEEP)
    own_bench.write("train.sh", "true\n")
    for words in (("mlrunner", "-d", "--detach"), ("mlrunner", "-r", "0", "-j", "2"), ("runx", "sweep.yml", "lrr=1")):
        result = cli(*words).ended(2)
        assert "Traceback" not in result.err
    assert not os.path.exists(own_bench.folder / "output")


def test_mlrunner_repeats_only_what_is_asked_for(own_bench: Bench) -> None:
    own_bench.write("params.yaml", TASKS.replace("test: 'true'", "test: 'false'"))
    assert own_bench.assay("mlrunner").returncode == 1
    assert own_bench.assay("mlrunner", "--retry", "lost").returncode == 1
    assert not list(own_bench.folder.glob("output/*/lease.2"))
    assert own_bench.assay("mlrunner", "--retry", "failed").returncode == 1
    assert len(list(own_bench.folder.glob("output/*/lease.2"))) == 2
