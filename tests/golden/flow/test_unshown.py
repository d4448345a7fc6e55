"""What a check must not pass in silence: metrics that it does not judge, runs that do not train or begin elsewhere."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.golden_training import Lab, messages, run_in_process

from assay.cli.main import run
from assay.convergence import ConvergenceFailure, do_convergence_test
from assay.errors import ExitCode
from assay.golden.report.document import build_document
from assay.golden.values import GoldenTestReport
from assay.show.html import render_html
from assay.show.junit import render_junit
from assay.show.terminal_report import render_terminal
from assay.values.verdict import VerdictKind

FAIL, PASS, CHANGED = VerdictKind.FAIL, VerdictKind.PASS, VerdictKind.CHANGED
INCONCLUSIVE, ERROR = VerdictKind.INCONCLUSIVE, VerdictKind.ERROR
ACC = {"regex": r"Acc: ([\d\.]+)"}
BOTH = {"regex": r"Loss: (\S+) Acc: (\S+)", "labels": ["MLM", "NSP"]}


def find_texts(report: GoldenTestReport, kind: VerdictKind) -> list[str]:
    return [finding.message for finding in report.verdict.findings if finding.kind is kind]


def paste(report: GoldenTestReport, word: str, lab: Lab) -> int:
    """Execute the command that a note proposes."""
    (line,) = [note for note in report.notes if note.startswith(word)]
    return run([*shlex.split(line.split("assay ", 1)[1]), "--root", str(lab.folder / "runs"), "--quiet"])


def forget_rules(lab: Lab) -> None:
    """Write a manifest as the original does."""
    lab.manifest_path.write_text(json.dumps({"ckpt_logs": lab.logs}))


@pytest.mark.parametrize("is_old", [False, True])
def test_a_metric_dropped_from_the_file_does_not_pass_in_silence(
    lab: Lab, is_old: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(lab.folder)  # `do_convergence_test` puts its runs below the working directory
    lab.test["log_parsing"]["acc"] = ACC
    lab.test["metrics"]["acc"] = {"margin": 0.05, "comparison": ">="}
    lab.write()
    lab.use_golden()
    if is_old:
        forget_rules(lab)
    del lab.test["metrics"]["loss"]
    lab.write()
    lab.change(scale=1.44)
    report = lab.check_one()
    assert report.verdict.kind is INCONCLUSIVE
    assert find_texts(report, INCONCLUSIVE) == ["loss is recorded and not judged"]
    assert len(report.segments[0].runs) == 1, "another run would not show more"
    assert paste(report, "judge a part alone:", lab) == 0
    assert "recorded but not judged: loss" in capsys.readouterr().out
    if is_old:
        return
    with pytest.raises(ConvergenceFailure, match="loss is recorded and not judged"):
        do_convergence_test(lab.store, "convergence_harness_manifest.json", lab.file)
    do_convergence_test(lab.store, "convergence_harness_manifest.json", lab.file, only=["acc"])
    unknown = lab.check(only=("los",))
    assert unknown.exit_code() is ExitCode.USAGE
    assert "no metric named 'los'" in messages(unknown.tests[0])
    lab.test["metrics"] = {"loss": {"margin": 0.05, "comparison": "<="}}
    lab.write()
    assert lab.check_one().verdict.kind is FAIL, "a worse value still fails where something is not judged"


@pytest.mark.parametrize("is_old", [False, True])
def test_a_label_cut_from_the_harness_file_does_not_pass_in_silence(lab: Lab, is_old: bool) -> None:
    lab.test["log_parsing"]["loss"] = BOTH
    lab.write()
    lab.use_golden()
    if is_old:
        forget_rules(lab)
    lab.test["log_parsing"]["loss"] = {"regex": r"Acc: (\S+)", "labels": ["NSP"]}
    lab.write()
    lab.change(scale=1.44)
    report = lab.check_one(is_harness=True)
    assert find_texts(report, INCONCLUSIVE) == ["loss MLM is recorded and not judged"]
    assert report.verdict.kind is INCONCLUSIVE
    assert paste(report, "judge a part alone:", lab) == 0
    assert lab.check_one(only=("loss",)).verdict.kind is INCONCLUSIVE, "the metric is named, not what is left of it"


def test_no_command_is_printed_that_judges_what_the_golden_does_not_have(lab: Lab) -> None:
    lab.test["log_parsing"]["loss"] = BOTH
    lab.write()
    lab.use_golden()
    lab.test["log_parsing"]["loss"] = {**BOTH, "labels": ["other", "NSP"]}
    lab.write()
    (line,) = [note for note in lab.check_one(is_harness=True).notes if note.startswith("judge a part alone:")]
    assert line.endswith("--only 'loss NSP'")
    lab.test["log_parsing"]["new"] = lab.test["log_parsing"].pop("loss")
    lab.test["metrics"] = {"new": lab.test["metrics"]["loss"]}
    lab.write()
    assert not [note for note in lab.check_one().notes if note.startswith("judge a part alone:")]


def test_a_loosened_margin_does_not_pass_until_it_is_accepted(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(lab.folder)
    lab.use_golden()
    lab.test["metrics"]["loss"]["margin"] = 0.5
    lab.write()
    report = lab.check_one()
    assert report.verdict.kind is INCONCLUSIVE
    assert find_texts(report, INCONCLUSIVE) == ["the margin of loss grows from 0.05 to 0.5, since it was recorded"]
    assert lab.check_one(only=("loss",)).verdict.kind is INCONCLUSIVE
    assert paste(report, "accept from now on:", lab) == 0
    assert lab.check_one().verdict.kind is PASS


def test_agreement_of_runs_that_do_not_train_is_no_pass(lab: Lab) -> None:
    lab.change(always="0.693147")
    gathered = lab.gather().tests[0]
    assert "loss is 0.693147 at every step of the recording: nothing shows that it trains" in gathered.warnings
    report = lab.check_one()
    assert report.verdict.kind is INCONCLUSIVE
    (text,) = find_texts(report, INCONCLUSIVE)
    assert text == "loss is 0.693147 at every step of the golden and the check: nothing shows that it trains"
    assert len(report.segments[0].runs) == 1


def test_a_trainer_that_ignores_resume_is_an_error_although_it_logs_the_goldens_steps(lab: Lab) -> None:
    lab.use_golden()
    lab.change(ignores_start=True)
    report = lab.check_one()
    assert report.verdict.kind is ERROR
    (text, *_) = find_texts(report, ERROR)
    assert text == (
        "the check logs step 0, before the checkpoint of step 9: it did not begin there; "
        "does the program follow --load and --start?"
    )
    gathered = lab.gather(replicas=1, manifest_name="other.json").tests[0]
    assert gathered.verdict.kind is ERROR
    assert "a replica logs step 0, before the checkpoint of step 9" in messages(gathered)
    assert not (lab.store / "demo_other.json").exists()


def test_a_log_as_rare_as_the_checkpoints_shows_a_trainer_that_ignores_resume(lab: Lab) -> None:
    """A program that counts from 1 logs only steps 10, 20 and 30: only the checkpoint's own step shows the fault."""
    lab.test["recording"]["steps_to_record_after_save"] = 10
    lab.flags("common", log_every=10)
    lab.change(first=1)
    lab.use_golden()
    assert lab.manifest["repeats_start"] is False
    assert lab.check_one().verdict.kind is PASS
    lab.change(first=1, ignores_start=True)
    report = lab.check_one()
    assert report.verdict.kind is ERROR
    assert "logs step 10, the checkpoint's own" in messages(report)


def test_every_report_names_the_steps_that_are_not_covered(lab: Lab) -> None:
    lab.use_golden()
    lab.change(until=60)
    report = lab.check()
    assert report.kind is PASS
    assert "segment 9: the check went on to step 59; its segment ends at step 14" in report.tests[0].notes
    document = build_document(report)
    words = "not covered by a segment: steps up to 9, 14 to 19, after 23"
    assert words in render_terminal(document, width=120)
    assert words in render_html(document)
    facts: Any = document.facts
    assert facts["tests"][0]["golden"]["not_covered"] == ["up to 9", "14 to 19", "after 23"]


def test_fewer_digits_than_the_golden_has_are_named_as_the_cause(native: Lab) -> None:
    native.use_golden()
    native.change(digits=3)
    report = native.check_one()
    assert report.verdict.kind is CHANGED
    cause = "the check logs fewer digits than the golden has, 0.182 instead of 0.181818: log as many"
    assert cause in messages(report)
    native.change(digits=3, scale=1.2)
    assert "fewer digits" not in messages(native.check_one()), "that is another cause"


def test_a_failure_names_what_else_differs_from_the_recording(lab: Lab) -> None:
    lab.use_golden()
    lab.change(scale=1.2)
    assert lab.check_one().differs == ("code: change.py is new",)
    manifest = lab.manifest
    manifest["provenance"]["python"] = "3.1.4"
    manifest["provenance"]["packages"] = {"torch": "0.1"}
    manifest["provenance"]["hardware"]["cpu"] = "abacus"
    lab.manifest_path.write_text(json.dumps(manifest))
    lab.flags("common", x="seven")
    report = lab.check()
    differs = report.tests[0].differs
    assert differs[0] == "command python3 training.py --x seven instead of python3 training.py"
    assert differs[1].startswith("configuration: the text of ")
    assert any(text.startswith("python 3.") and text.endswith(" instead of 3.1.4") for text in differs)
    assert any(text.startswith("cpu ") and text.endswith(" instead of abacus") for text in differs)
    document = build_document(report)
    for shown in (render_terminal(document, width=400), render_html(document), render_junit(document)):
        assert "differs from the recording: command python3 training.py --x seven" in shown
    lab.change()
    assert lab.check_one().differs == (), "a PASS needs no cause"
    lab.edit("2.0 /", "2.4 /")
    (lab.folder / "notes.txt").write_text("no code")
    assert "code: training.py has changed, change.py is new" in lab.check_one().differs


def test_a_failure_names_uncommitted_changes_outside_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_in_process(monkeypatch)
    (tmp_path / "work").mkdir()
    lab = Lab(tmp_path / "work")
    lab.test["directory"] = "work"  # in a repository the path is from its top
    lab.write()
    program, library = lab.folder / "training.py", tmp_path / "library.py"
    text = program.read_text().replace("change = {}", "change = {}; exec(open(here + '/../library.py').read())")
    program.write_text(text.replace("2.0 /", "2.0 * scale /"))
    library.write_text("scale = 1.0")
    (tmp_path / ".gitignore").write_text("store\nruns\ncalls\n")
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "x"]):
        subprocess.run(["git", "-C", tmp_path, "-c", "user.name=x", "-c", "user.email=x@y", *words], check=True)
    lab.use_golden()
    library.write_text("scale = 1.2")
    [line] = lab.check_one().differs
    assert re.fullmatch("uncommitted changes [0-9a-f]{16} instead of none", line)


def test_a_failure_without_a_known_cause_names_what_was_not_compared(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    program, variable = lab.folder / "training.py", 'change = {"scale": float(os.environ.get("SCALE", "1"))}'
    program.write_text(program.read_text().replace("change = {}", variable))
    lab.use_golden()
    monkeypatch.setenv("SCALE", "1.2")
    same = "unknown: code, packages, Python, command, configuration and device are those of the recording; "
    assert lab.check_one().differs == (f"{same}code elsewhere, data and environment variables were not compared",)
    manifest = lab.manifest
    del manifest["provenance"]["files"]  # as in a manifest of an earlier version
    lab.manifest_path.write_text(json.dumps(manifest))
    [line] = lab.check_one().differs
    assert line.startswith("unknown: packages, ")
    assert line.endswith("; code files, data and environment variables were not compared")


def use_rare_metric(lab: Lab) -> None:
    """`val` is logged from step 20 on: the segment after step 10 has none."""
    lab.test["log_parsing"]["val"] = {"regex": r"Iteration: 2\d Loss: ([\d\.]+)"}
    lab.test["metrics"]["val"] = {"margin": 0.05, "comparison": "<="}
    lab.write()


def test_a_metric_that_only_some_segments_have_is_judged_in_those(lab: Lab) -> None:
    use_rare_metric(lab)
    lab.use_golden()
    report = lab.check_one()
    assert report.verdict.kind is PASS, messages(report)
    first, second = report.segments
    assert [metric.metric for metric in first.metrics] == ["loss"]
    assert [metric.metric for metric in second.metrics] == ["loss", "val"]
    assert f"val was not recorded after step {first.start_step}, and is not judged there" in report.notes
    assert len(lab.check_one(only=("val",)).segments) == 1


def test_a_gap_of_a_recording_counts_for_its_own_metric(lab: Lab) -> None:
    """A metric whose name is a word of the message is not the one that the message is about."""
    lab.test["log_parsing"] |= {"value": ACC, "other": ACC}
    lab.test["metrics"] |= {
        "value": {"margin": 0.05, "comparison": "<="},
        "other": {"margin": 0.05, "comparison": "<="},
    }
    lab.write()
    lab.use_golden()
    logs = lab.logs
    logs["9"]["results"]["11"]["other"] = None
    lab.manifest_path.write_text(json.dumps({"ckpt_logs": logs}))
    assert lab.check_one(only=("loss", "value")).verdict.kind is PASS
    assert "the golden has no value of other at step 11" in messages(lab.check_one(only=("other",)))
