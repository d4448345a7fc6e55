"""The originals' own flags: every one of them, abbreviations and help included, and what they become."""

from __future__ import annotations

import argparse

import pytest

from assay.cli.main import run
from assay.compat.mlrunner import command as mlrunner
from assay.compat.runx import command as runx
from assay.values.run import State


def parse(module: object, *arguments: str) -> argparse.Namespace:
    parser: argparse.ArgumentParser = module.build_parser()  # type: ignore[attr-defined]
    return parser.parse_args(arguments)


class TestRunx:
    def test_every_flag(self) -> None:
        long = "--exp_name e --tag t --no_cooldir --no_run --interactive --farm f --config_file c --slots 0,1+2"
        parsed = parse(runx, "sweep.yml", *long.split())
        assert parsed.no_run
        options = runx.build_options(parsed)
        assert (options.load.exp_name, options.load.farm, options.load.config_file) == ("e", "f", "c")
        assert (options.tag, options.cooldir, options.on, options.slots) == ("t", False, "local", ("0", "1,2"))

    def test_every_run_is_counted_once_on_leaving(self) -> None:
        running = State.RUNNING
        assert runx.describe_farm([running], "big") == "1 run is with big now"
        mixed = [running, State.DONE, State.FAILED, running]
        assert runx.describe_farm(mixed, "big") == "2 runs are with big now, 2 finished"
        assert runx.describe_farm([running, State.QUEUED], "big") == "1 run is with big now, 1 not submitted"


class TestMlrunner:
    def test_every_flag(self) -> None:
        short = "-o out -y p.yaml -t title -d -c train test -f -r 0 1,2"
        parsed = parse(mlrunner, *short.split(), "--sample", "3", "--no-subdir", "--dry-run")
        options = mlrunner.build_options(parsed, "/x/out")
        assert (options.titles, options.commands, options.slots) == (("title",), ("train", "test"), ("0", "1,2"))
        assert (options.sample, options.force, parsed.no_subdir, parsed.dry_run) == (3, True, True, True)


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
