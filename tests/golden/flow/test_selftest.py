from __future__ import annotations

import pytest
from tests.golden_training import NATIVE, Lab, run_in_process

from assay.errors import ExitCode, UsageError
from assay.golden.flow.selftest import build_arguments, choose_segment, selftest_file
from assay.golden.report.other_commands import build_selftest_document
from assay.golden.results import Injected, SelftestReport
from assay.golden.values import Fault, Golden, Segment, SegmentReport
from assay.values.verdict import Finding, Verdict, VerdictKind


@pytest.fixture
def lab(tmp_path, monkeypatch):
    run_in_process(monkeypatch)
    monkeypatch.chdir(tmp_path)
    return Lab(tmp_path)


COMMAND = "python train.py --lr 0.01 --beta=0.9 --name 'a b' --lr 0.02 --bare"


def test_what_is_put_after_the_command_and_which_segment_is_tried():
    for name, value, words in (
        ("--lr", "x0.9", ("--lr", "0.018")),
        ("--lr", "*2", ("--lr", "0.04")),
        ("--beta", "x1e-1", ("--beta", "0.09")),
        ("--beta=", "x0.5", ("--beta=0.45",)),
        ("--lr", "0.5", ("--lr", "0.5")),
        ("--name", "xylophone", ("--name", "xylophone")),
        ("--broken", "", ("--broken",)),
    ):
        assert build_arguments(Fault("flag", name, value), COMMAND) == words
    with pytest.raises(UsageError, match="does not have --wd"):
        build_arguments(Fault("flag", "--wd", "x2"), COMMAND)
    with pytest.raises(UsageError, match="is not a number and cannot be scaled"):
        build_arguments(Fault("flag", "--name", "x2"), COMMAND)
    assert choose_segment(golden(100, 200, 300), None).start_step == 200
    assert choose_segment(golden(100, 200, 300), 300).start_step == 300
    with pytest.raises(UsageError, match="no segment begins at step 7") as caught:
        choose_segment(golden(100, 200), 7)
    assert "100, 200" in str(caught.value.hint)
    with pytest.raises(UsageError, match="has no segment"):
        choose_segment(golden(), None)


def golden(*starts):
    return Golden("t", tuple(Segment(start, f"c{start}", {}) for start in starts))


def segment(kind):
    return SegmentReport(100, "c", Verdict(kind, (Finding(kind, "x", "y"),), 5))


@pytest.mark.parametrize(
    ("control", "kinds", "code"),
    [
        ("PASS", ("FAIL", "CHANGED"), ExitCode.OK),
        ("PASS", ("FAIL", "PASS"), ExitCode.FAILED),
        ("PASS", ("FAIL", "INCONCLUSIVE"), ExitCode.FAILED),
        ("PASS", ("FAIL", "ERROR"), ExitCode.FAILED),
        ("FAIL", ("FAIL", "FAIL"), ExitCode.FAILED),
    ],
)
def test_only_a_passing_control_and_no_missed_fault_are_a_success(control, kinds, code):
    injected = tuple(Injected(Fault("env", "X", kind), segment(VerdictKind(kind))) for kind in kinds)
    assert SelftestReport("t", 100, segment(VerdictKind(control)), injected).exit_code is code
    words = {"FAIL": "caught", "CHANGED": "caught", "ERROR": "not tried"}
    assert [each.word for each in injected] == [words.get(kind, "missed") for kind in kinds]


def test_a_fault_that_changes_nothing_has_no_effect(lab):
    lab.write_native(
        NATIVE.replace(
            "  metrics: {loss",
            "  selftest: {env: {UNREAD: [a]}, flags: {--seed: ['3'], --log-every: ['2']}}\n  metrics: {loss",
        )
    )
    assert lab.gather().exit_code() is ExitCode.OK
    (report,) = selftest_file(lab.options())
    assert [(each.fault.title, each.word) for each in report.injected][:2] == [
        ("UNREAD=a", "no effect: equal bit for bit"),
        ("--seed 3", "no effect: equal bit for bit"),
    ]
    assert not report.injected[2].is_idle
    assert "no effect: equal bit for bit: UNREAD=a" in repr(build_selftest_document([report]))
    assert report.exit_code is ExitCode.FAILED
