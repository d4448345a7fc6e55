"""One layer next to others of its kind, one row next to the others of its tensor."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from assay.models.judge.peers import (
    COMPOSITE_FACTOR,
    FACTOR,
    TypicalError,
    find_floor,
    find_odd_slice,
    judge_peers,
    judge_slices,
    measure_typical,
)
from assay.models.judge.tensors import compare_tensors
from assay.models.values.model import CaseReport, Layer
from assay.models.values.tensors import Tolerance
from assay.values.verdict import VerdictKind

FLOOR = find_floor("bfloat16")


def draw(noise: float = 1.7e-3, shape: tuple[int, ...] = (64, 1024)) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A tensor, the same with rounding on the target, and with the reference's own noise."""
    rng = np.random.default_rng(5)
    exact = rng.normal(size=shape)
    return exact, exact * (1 + noise * rng.normal(size=shape)), exact * (1 + 2 * noise * rng.normal(size=shape))


def test_one_wrong_row_of_a_thousand_is_named() -> None:
    exact, target, noisy = draw()
    assert find_odd_slice(exact, target, noisy, FLOOR) is None
    target[:, 517] *= 1.05
    odd = find_odd_slice(exact, target, noisy, FLOOR)
    assert odd is not None
    assert (odd.axis, odd.index, odd.count, odd.length) == (1, 517, 1, 1024)
    assert odd.error == pytest.approx(0.05, rel=0.1)
    compared = judge_slices(compare_tensors("y", exact, target, Tolerance(rel=0.2)), exact, target, noisy, FLOOR)
    assert compared.verdict.kind is VerdictKind.FAIL
    assert "1 of 1024 slices along axis 1 is off, [517] by 0.05 of its size" in compared.verdict.findings[0].message


def test_a_row_that_noise_moves_as_far_is_not_odd() -> None:
    """A value near a threshold, inside the layer, goes the other way with any rounding."""
    exact, target, noisy = draw()
    target[:, 517] *= 1.05
    noisy[:, 3] *= 1.04
    assert find_odd_slice(exact, target, noisy, FLOOR) is None


def test_rows_that_are_large_or_that_cancel_are_not_odd() -> None:
    exact, target, noisy = draw()
    exact[:, 7], target[:, 7], noisy[:, 7] = (
        100 * each[:, 7] for each in (exact, target, noisy)
    )  # same relative error
    exact[:, 9] *= 1e-3  # small numbers with the absolute error of the others
    target[:, 9], noisy[:, 9] = exact[:, 9] + 1.7e-3 * np.random.default_rng(6).normal(size=64), exact[:, 9]
    assert find_odd_slice(exact, target, noisy, FLOOR) is None


@pytest.mark.parametrize("damage", ["integers", "shape", "nan", "few"])
def test_what_cannot_be_divided_into_rows_has_no_odd_one(damage: str) -> None:
    exact, target, noisy = draw(shape=(4, 4) if damage == "few" else (64, 64))
    target[:, 1] *= 2
    if damage == "integers":
        exact, target, noisy = (each.astype(int) for each in (exact, target, noisy))
    elif damage == "shape":
        target = target[:-1]
    elif damage == "nan":
        target[0, 0] = np.nan
    assert find_odd_slice(exact, target, noisy, FLOOR) is None


def test_a_few_huge_elements_do_not_make_the_typical_error() -> None:
    exact, target, _ = draw()
    usual = measure_typical(exact, target)
    exact[3, 5] = 1e6
    target[3, 5] = 1e6 * (1 + 2**-8)
    assert usual is not None
    assert measure_typical(exact, target) == pytest.approx(usual, rel=0.05)
    assert measure_typical(np.arange(3), np.arange(3)) is None
    assert measure_typical(np.zeros((4, 32)), np.zeros((4, 32))) is None


def build_report(number: int, kind: str = "Linear", error: float = 1.7e-3) -> CaseReport:
    exact, target, _ = draw(error, (64, 64))
    compared = compare_tensors(f"l{number}", exact, target, Tolerance(rel=0.2))
    layer = Layer(f"net_layer_l{number}", number, (kind,), (number,), (), (f"l{number}",), path=f"l{number}")
    return CaseReport(layer.name, "target", compared.verdict, layer, local=(compared,))


def judge(reports: list[CaseReport], errors: list[TypicalError]) -> list[VerdictKind]:
    known = {(report.name, report.local[0].name): error for report, error in zip(reports, errors, strict=True)}
    return [report.verdict.kind for report in judge_peers(reports, known, FLOOR)]


USUAL = TypicalError(1.7e-3, 3e-3)
CONV = replace(USUAL, shapes="[1, 32, 8, 8]")


@pytest.mark.parametrize(
    ("kinds", "errors", "wrong"),
    [
        ("L L L L L", [USUAL] * 5, []),
        ("L L L L L", [*[USUAL] * 4, TypicalError(1.7e-3 * FACTOR * 1.2, 3e-3)], [4]),
        ("L L L L L", [*[USUAL] * 4, TypicalError(5.1e-3, 9e-3)], []),  # each is next to its own noise
        ("L L L L L", [*[USUAL] * 4, TypicalError(3.4e-3, 3e-3, COMPOSITE_FACTOR)], []),  # a call of others
        ("L L N N N", [TypicalError(each, 3e-3) for each in (1.7e-3, 1e-2, 5e-3, 5e-3, 5e-3)], []),  # two are no peers
        ("C C C C C", [TypicalError(2.6e-3, 3e-3, shapes="[1, 3, 8, 8]"), *[CONV] * 4], []),  # nor with other inputs
    ],
)
def test_a_layer_that_is_further_off_than_its_peers_fails(
    kinds: str, errors: list[TypicalError], wrong: list[int]
) -> None:
    reports = [build_report(number, kind) for number, kind in enumerate(kinds.split())]
    found = judge(reports, errors)
    assert found == [VerdictKind.FAIL if number in wrong else VerdictKind.PASS for number in range(5)]


def test_errors_below_the_rounding_of_sums_are_no_fault() -> None:
    reports = [build_report(number, error=1e-7) for number in range(5)]
    errors = [*[TypicalError(0.0, 6e-8)] * 4, TypicalError(1e-6, 6e-8)]
    known = {(report.name, report.local[0].name): error for report, error in zip(reports, errors, strict=True)}
    assert [each.verdict.kind for each in judge_peers(reports, known, find_floor("float32"))] == [VerdictKind.PASS] * 5
    errors[4] = TypicalError(1e-5, 6e-8)
    known[reports[4].name, "l4"] = errors[4]
    assert judge_peers(reports, known, find_floor("float32"))[4].verdict.kind is VerdictKind.FAIL
