"""The convergence harness's users come over: their file, their flags, their manifest; and what was broken works.

Each test is named after what the user sees. The numbers in comments are those of the list of defects.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.golden_training import Lab, messages, run_in_process

from assay.cli.main import run
from assay.values.verdict import VerdictKind


@pytest.fixture
def real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A lab for tests of processes and pipes: every training is a job, as it is for users."""
    monkeypatch.setenv("ASSAY_ROOT", str(tmp_path / "runs"))
    return Lab(tmp_path)


@pytest.fixture
def lab(real: Lab, monkeypatch: pytest.MonkeyPatch) -> Lab:
    run_in_process(monkeypatch)
    return real


def call(lab: Lab, *arguments: str) -> int:
    """`assay convergence` as a user types it."""
    return run(["convergence", "-t", str(lab.file), "-s", str(lab.store), "--slots", "cpu:2", "--quiet", *arguments])


# ---------------------------------------------------------------- what is kept


def test_gather_then_check_passes_with_short_and_long_options(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(lab, "-g", "--manifest-name", "mine.json") == 0
    assert (lab.store / "demo_mine.json").exists()
    long = ["--test-config-path", str(lab.file), "--storage-path", str(lab.store), "--slots", "cpu:2"]
    assert run(["convergence", *long, "--manifest-name", "mine.json"]) == 0
    assert "demo: PASS" in capsys.readouterr().out
    assert call(lab) == 2, "there is none of the other name"
    out = capsys.readouterr().out
    assert "the same command with -g" in out
    assert "--manifest-name mine.json" in out
    for text in ("", "{}\n", "# nothing\n"):
        lab.file.write_text(text)
        assert call(lab) == 2
        error = capsys.readouterr().err
        assert "examples/convergence/demo_config.yml" in error, "hints are those of this call"
        assert "assay run" not in error


def test_arguments_come_in_the_originals_order(lab: Lab) -> None:
    lab.flags("common", log_every=1)
    lab.flags("gather", until=12, save_every=5)
    lab.flags("run", x=7)
    assert call(lab, "-g") == 0
    assert call(lab) == 0
    gather, *checks = lab.calls()
    assert gather == ["--ckpt", str(lab.store / "ckpts"), "--until", "12", "--save-every", "5", "--log-every", "1"]
    first = checks[0] if checks[0][3] == "4" else checks[1]
    checkpoint = str(lab.store / "ckpts" / "model_5.bin")
    # run_for is the steps to record and the start step together
    assert first == ["--load", checkpoint, "--start", "4", "--until", "8", "--x", "7", "--log-every", "1"]


def test_the_example_with_two_tests_and_two_labels_on_stderr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_in_process(monkeypatch)
    monkeypatch.setenv("ASSAY_ROOT", str(tmp_path / "runs"))
    example = Path(__file__).parents[3] / "examples" / "convergence" / "demo_config.yml"
    common = ["convergence", "-t", str(example), "-s", str(tmp_path / "store"), "--slots", "cpu:2", "--quiet"]
    assert run([*common, "-g"]) == 0
    manifest = tmp_path / "store" / "pretrain_large_convergence_harness_manifest.json"
    logs = json.loads(manifest.read_text())["ckpt_logs"]
    assert list(logs["20"]["results"]) == ["22", "24", "26", "28", "30"]
    assert set(logs["20"]["results"]["22"]["loss"]) == {"MLM", "NSP"}
    assert run(common) == 0


# ---------------------------------------------------------------- the defects


def test_set_in_script_false_keeps_the_flag(lab: Lab) -> None:  # 03
    lab.test["flags"]["common"]["x"] = {"key": "--x", "value": 7, "set_in_script": False}
    lab.write()
    assert call(lab, "-g") == 0
    assert lab.calls()[0][2:] == ["--x", "7"]


def test_two_hundred_lines_at_once_are_all_read(real: Lab) -> None:  # 04, 05
    real.test["recording"]["steps_to_record_after_save"] = 200
    real.flags("gather", first_save=None, save_every=500, until=200)
    assert call(real, "-g") == 0
    assert len(real.logs["0"]["results"]) == 200
    real.change(loss={str(step): "9999" for step in range(150, 200)})
    assert call(real) == 1


def test_a_crash_of_the_program_fails(lab: Lab) -> None:  # 06
    lab.change(exit=3)
    assert call(lab, "-g") == 1
    assert list(lab.partial["ckpt_logs"]) == ["9", "19"], "what was recorded is kept"
    assert lab.partial["complete"] is False
    assert call(lab) == 2
    lab.change()
    assert call(lab, "-g") == 0
    lab.change(exit=3)
    report = lab.check_one()
    assert report.verdict.kind is VerdictKind.ERROR
    assert "exit code 3" in messages(report)
    assert call(lab) == 1


def test_two_checkpoints_of_one_step_are_both_kept(lab: Lab) -> None:  # 15
    lab.change(saves=["model", "ema"], relative=True)  # a relative path is the program's own
    assert call(lab, "-g") == 0
    found = [entry["checkpoint"] for entry in lab.logs.values()]
    assert found[:2] == ["ckpts/model_10.bin", "ckpts/ema_10.bin"]
    assert [entry["start_step"] for entry in lab.logs.values()][:2] == [9, 9]
    report = lab.check_one()
    assert report.verdict.kind is VerdictKind.PASS
    assert [segment.checkpoint for segment in report.segments][:2] == found[:2]


@pytest.mark.parametrize("first", [0, 1])
def test_20_steps_logged_every_5_record_exactly_4_values_and_compare_4(lab: Lab, first: int) -> None:  # 17
    lab.test["recording"]["steps_to_record_after_save"] = 20
    lab.flags("common", log_every=5)
    lab.flags("gather", first_save=None, save_every=100, until=200)
    lab.change(first=first)
    assert call(lab, "-g") == 0
    assert [len(entry["results"]) for entry in lab.logs.values()] == [4, 4]
    report = lab.check_one()
    assert report.verdict.kind is VerdictKind.PASS, messages(report)
    assert [segment.verdict.comparisons for segment in report.segments] == [4, 4]
    for segment, entry in zip(report.segments, lab.logs.values(), strict=True):
        last = list(entry["results"])[-1]
        lab.change(first=first, loss={last: "9999"})
        kinds = {found.start_step: found.verdict.kind for found in lab.check_one().segments}
        assert kinds[segment.start_step] is VerdictKind.FAIL


def test_a_value_that_is_missing_never_passes(lab: Lab) -> None:  # 18
    lab.change(without=[11])
    assert call(lab, "-g") == 0
    assert list(lab.logs["9"]["results"]) == ["10", "12", "13"], "a step line without its metric uses no slot"
    lab.change()
    assert call(lab, "-g") == 0
    lab.change(without=[11])
    report = lab.check_one()
    assert report.verdict.kind is VerdictKind.ERROR
    assert "no value at step 11" in messages(report)
    lab.change()
    logs = lab.logs
    logs["9"]["results"]["11"]["loss"] = None
    lab.manifest_path.write_text(json.dumps({"ckpt_logs": logs}))
    report = lab.check_one()
    assert report.verdict.kind is VerdictKind.ERROR, "a null in an old manifest"
    assert "no value of loss at step 11" in messages(report)


def test_a_program_that_writes_much_or_closes_its_output_and_lives_on_is_waited_for(lab: Lab) -> None:  # 08, 22
    lab.change(noise=300_000)
    assert call(lab, "-g") == 0
    assert call(lab) == 0
    lab.change(close=True)
    assert call(lab, "-g") == 0
    assert list(lab.logs["9"]["results"]) == ["10", "11", "12", "13"]


def test_a_relative_folder_of_the_second_test_is_resolved_like_the_first(lab: Lab) -> None:  # 24
    inner = lab.folder / "app"
    inner.mkdir()
    (lab.folder / "training.py").rename(inner / "training.py")
    lab.test["directory"] = "app"
    lab.config["second"] = lab.test
    lab.write()
    assert call(lab, "-g") == 0
    assert call(lab) == 0
    assert (lab.store / "second_convergence_harness_manifest.json").exists()


def test_the_folder_is_looked_for_at_the_git_root_first(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:  # 24
    inner = lab.folder / "configs"
    inner.mkdir()
    (lab.folder / ".git").mkdir()
    lab.file = inner / "config.yml"
    lab.write()
    assert call(lab, "-g") == 0
    assert "(the git root of the file)" in capsys.readouterr().out


def test_the_second_test_runs_when_the_first_cannot(lab: Lab) -> None:
    lab.config = {"broken": {**lab.test, "executable": ["no-such-program"]}, "demo": lab.test}
    lab.write()
    report = lab.gather()
    assert [test.verdict.kind for test in report.tests] == [VerdictKind.ERROR, VerdictKind.PASS]
    assert lab.manifest_path.exists()
    assert report.exit_code() == 2


# ---------------------------------------------------------------- bad files


def test_a_metric_without_a_parser_warns_and_cannot_pass(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    lab.test["metrics"]["accuracy"] = {"margin": 0.1, "comparison": ">="}
    lab.write()
    assert call(lab, "-g") == 3
    assert "no parser reads this metric" in capsys.readouterr().err
    assert call(lab) == 1


def test_a_time_limit_can_be_given_in_three_ways(lab: Lab) -> None:
    from assay.convergence import ConvergenceFailure, do_convergence_test

    assert call(lab, "-g", "--manifest-name", "m.json") == 0
    lab.change(hold_at=12)
    assert call(lab, "--timeout", "0.3s", "--manifest-name", "m.json") == 1
    with pytest.raises(ConvergenceFailure, match="time limit"):
        do_convergence_test(lab.store, "m.json", lab.file, timeout_s=0.3)
    lab.test["timeout"] = "0.3s"
    lab.write()
    assert "time limit" in messages(lab.check_one(manifest_name="m.json"))


def test_run_for_can_count_the_steps_of_the_segment(lab: Lab) -> None:
    lab.test["flags"]["run"]["run_for"]["counts"] = "segment"
    lab.write()
    assert call(lab, "-g") == 0
    call(lab)
    assert {call[call.index("--until") + 1] for call in lab.calls()[1:]} <= {"4", "5"}


def test_an_executable_in_one_text_is_refused_with_the_list(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    lab.test["executable"] = "python3 training.py"
    lab.write()
    assert call(lab, "-g") == 2
    assert "executable: [python3, training.py]" in capsys.readouterr().err


def test_the_help_names_the_originals_flags(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["convergence", "--help"]) == 0
    out = capsys.readouterr().out
    assert all(flag in out for flag in ("-g, --gather", "-t TEST_CONFIG_PATH", "-s STORAGE_PATH", "--manifest-name"))
