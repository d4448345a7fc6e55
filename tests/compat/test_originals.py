"""The originals' own flags: every one of them, abbreviations and help included, and what they become."""

from __future__ import annotations

import argparse

import pytest

from assay.cli.main import run
from assay.compat.mlrunner import command as mlrunner
from assay.compat.runx import command as runx
from assay.compat.runx import sumx
from assay.values.run import State


def parse(module: object, *arguments: str) -> argparse.Namespace:
    parser: argparse.ArgumentParser = module.build_parser()  # type: ignore[attr-defined]
    return parser.parse_args(arguments)


class TestRunx:
    def test_defaults(self) -> None:
        options = runx.build_options(parse(runx, "sweep.yml"))
        assert options.file == "sweep.yml"
        assert options.load.dialect == "runx"
        assert (options.on, options.tag, options.slots, options.load.farm, options.load.config_file) == (None,) * 5
        assert options.cooldir
        assert not options.keeps_finished, "a finished call is followed by new runs"

    def test_every_flag(self) -> None:
        long = "--exp_name e --tag t --no_cooldir --no_run --interactive --farm f --config_file c --slots 0,1+2"
        parsed = parse(runx, "sweep.yml", *long.split())
        assert parsed.no_run
        options = runx.build_options(parsed)
        assert (options.load.exp_name, options.load.farm, options.load.config_file) == ("e", "f", "c")
        assert (options.tag, options.cooldir, options.on, options.slots) == ("t", False, "local", ("0", "1,2"))

    def test_short_flags_and_abbreviations(self) -> None:
        parsed = parse(runx, "-n", "-i", "-c", "x", "--exp", "name", "sweep.yml")
        assert (parsed.no_run, parsed.interactive, parsed.config_file, parsed.exp_name) == (True, True, "x", "name")
        options = runx.build_options(parse(runx, "sweep.yml", "-i", "--retry", "failed"))
        assert options.keeps_finished
        assert options.retry == {State.FAILED, State.TIMEOUT}

    def test_every_run_is_counted_once_on_leaving(self) -> None:
        running = State.RUNNING
        assert runx.describe_farm([running], "big") == "1 run is with big now"
        mixed = [running, State.DONE, State.FAILED, running]
        assert runx.describe_farm(mixed, "big") == "2 runs are with big now, 2 finished"
        assert runx.describe_farm([running, State.QUEUED], "big") == "1 run is with big now, 1 not submitted"


class TestSumx:
    def test_every_flag(self) -> None:
        parsed = parse(sumx, "a", "b", "--logroot", "r", "--ignore", "x,y", "-s", "acc", "--csv", "out")
        found = parsed.dirs, parsed.logroot, parsed.ignore, parsed.sortwith, parsed.csv
        assert found == (["a", "b"], "r", "x,y", ["acc"], "out")
        assert parse(sumx, "a", "--sortwith", "acc").sortwith == ["acc"]


class TestMlrunner:
    def test_defaults(self) -> None:
        parsed = parse(mlrunner)
        assert (parsed.output, parsed.yaml) == ("output", "params.yaml")
        options = mlrunner.build_options(parsed, "/x/output")
        assert (options.root, options.study, options.load.dialect) == ("/x", "output", "mlrunner")
        assert State.FAILED in options.retry, "what failed is run again"
        assert not options.force

    def test_every_flag(self) -> None:
        short = "-o out -y p.yaml -t title -d -c train test -f -r 0 1,2"
        parsed = parse(mlrunner, *short.split(), "--sample", "3", "--no-subdir", "--dry-run")
        options = mlrunner.build_options(parsed, "/x/out")
        assert (options.titles, options.commands, options.slots) == (("title",), ("train", "test"), ("0", "1,2"))
        assert (options.sample, options.force, parsed.no_subdir, parsed.dry_run) == (3, True, True, True)

    def test_long_names(self) -> None:
        long = "--output o --yaml y --title t --debug --command c --force --resource r"
        parsed = parse(mlrunner, *long.split())
        found = parsed.output, parsed.yaml, parsed.title, parsed.command, parsed.resource
        assert found == ("o", "y", "t", ["c"], ["r"])
        assert mlrunner.build_options(parse(mlrunner, "-d"), "/x/out").force


@pytest.mark.parametrize("program", ["runx", "sumx", "mlrunner"])
def test_every_program_is_listed_and_has_its_help(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([program, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"usage: assay {program} ")
    assert run([program, "x", "--no-such-flag"]) == 2
    assert f"assay {program}: error: unrecognized arguments" in capsys.readouterr().err
    run(["--help"])
    assert f"  {program} " in capsys.readouterr().out


def test_a_missing_experiment_file_is_answered_with_how_to_make_one(
    capsys: pytest.CaptureFixture[str], tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(str(tmp_path))
    assert run(["runx", "nofile.yml"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("assay: there is no file nofile.yml\n")
    assert "CMD: python train.py" in said
