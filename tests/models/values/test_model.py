"""When are two failures the same one?"""

from __future__ import annotations

import pytest
from tests.models.report import model_reports as made

from assay.models.values.model import CaseReport, Signature, Step, StepEnding, build_signature, find_same, normalise
from assay.values.verdict import VerdictKind


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("", ""),
        ("no Conv here", "no Conv here"),
        ("'linalg.generic' op has shape's dimension #2 to be 4", "… op has shape's dimension #N to be N"),
        ('/tmp/x-1/model.mlir:5:10: error: "y" is wrong', "…:N: error: … is wrong"),
        ("%3 = tensor<4x97xf32> at 0x7f3a", "… = tensor… at …"),
        ("it's not what isn't", "it's not what isn't"),
        ("input/output of 1,3,8,8", "input/output of N"),
        ("  many\n lines ", "many lines"),
    ],
)
def test_numbers_names_and_paths_are_no_part_of_it(message: str, words: str) -> None:
    assert normalise(message) == words


def test_other_sizes_are_the_same_failure_and_it_is_short() -> None:
    texts = [f"dimension #{size} to be {size}, found '{size}' in /a/{size}/m.mlir" for size in (0, 7, 10**9)]
    assert len({*map(normalise, texts)}) == 1
    assert len(normalise("word " * 100)) <= 200


def test_outputs_that_differ_are_one_failure_wherever() -> None:
    assert build_signature(made.good(0)) is None
    assert build_signature(made.wrong(1)) == build_signature(made.whole(0.4, VerdictKind.FAIL)) == Signature("")
    assert str(Signature("")) == "the outputs differ"


def test_a_step_and_its_end_belong_to_it() -> None:
    found = build_signature(made.failed(3))
    assert found == Signature("compile", "error", "failed to legalize …")
    assert str(found) == "compile error: failed to legalize …"
    assert str(Signature("run", "crash")) == "run crash"
    assert found.resembles(Signature("compile", "error", "something else"))
    assert not found.resembles(Signature("run", "error", "failed to legalize …"))
    assert not found.resembles(None)
    assert not found.resembles(Signature(""))


def refused(number: int, message: str, ending: StepEnding = StepEnding.ERROR) -> CaseReport:
    return made.failed(number, outcome=made.step(Step.COMPILE, ending, message=message))


def test_a_part_that_fails_as_the_whole_does_comes_before_others() -> None:
    reports = [made.good(0), made.wrong(1), refused(2, "no Pad"), refused(3, "no Conv"), refused(4, "no Conv")]
    whole = build_signature(refused(9, "no Conv"))
    assert find_same(reports, whole) is reports[3]
    assert find_same(reports[:3], whole) is reports[2]
    assert find_same(reports[:2], whole) is reports[1]
    assert find_same(reports[:1], whole) is None
    assert find_same(reports, None) is reports[1]
