"""Two tensors on a terminal, as JSON and as a page."""

from __future__ import annotations

import json
import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from assay.models.report.tensor_diff import (
    build_diff_facts,
    build_document,
    describe_axes,
    describe_tolerance,
    list_bars,
    list_numbers,
)
from assay.models.values.tensors import Element, ErrorHistogram, Heat, TensorComparison, TensorDiff, Tolerance
from assay.show.formatting import render_facts
from assay.show.html import render_html
from assay.show.terminal_report import render_terminal
from assay.values.verdict import Finding, Verdict, VerdictKind

FAILED = Finding(VerdictKind.FAIL, "y", "2 of 12 (16.7%) differ by more than 0.0002 of the scale; worst at [0, 3]")
FOUND = TensorComparison(
    "y",
    Verdict.of([FAILED], 12),
    ("float32", "float32"),
    ((1, 3, 4), (1, 3, 4)),
    count=12,
    wrong=2,
    max_abs=0.25,
    mean_abs=0.03125,
    max_rel=0.5,
    max_ulp=4194304,
    scale=1.5,
    cosine=0.99,
    sqnr_db=21.5,
    nan=(0, 1),
    misplaced=1,
    flags=("actual is all zero at 2 of axis 1 (1 of 3)",),
    worst=(Element((0, 1, 3), 1.0, "nan", math.inf, math.inf), Element((0, 2, 0), 0.5, 0.25, 0.25, 0.5)),
    tolerance=Tolerance(abs=1.2e-38, rel=2e-4),
)
HISTOGRAM = ErrorHistogram((1e-3, 1e-2, 1e-1, 1.0), (1, 0, 400), zero=9, broken=1)
HEAT = Heat((1, 2), (3, 4), ((0.0, 0.5, 1.0, 1.5), (10.5, 150.0, math.inf, 0.0), (0.0, 0.0, 0.0, 0.0)))
DIFF = TensorDiff(FOUND, "want.npy", "got.npy", HISTOGRAM, HEAT)
PASSED = TensorDiff(
    replace(FOUND, name="z", verdict=Verdict.of((), 12), wrong=0, misplaced=0, nan=(0, 0), flags=(), max_abs=1e-7),
    "want.npy", "got.npy", HISTOGRAM, HEAT,
)  # fmt: skip


def render(*diffs: TensorDiff, findings: tuple[Finding, ...] = (), **look: Any) -> str:
    every = [*(each for diff in diffs for each in diff.comparison.verdict.findings), *findings]
    return render_terminal(build_document(diffs, Verdict.of(every, 12)), **look)


def render_page(diffs: Sequence[TensorDiff], verdict: Verdict) -> str:
    return render_html(build_document(diffs, verdict))


WHOLE = """FAIL: the tensors differ

expected  want.npy
actual    got.npy
part      slice 0,:; indices below count inside it

FAIL: 2 of 12 (16.7%) differ by more than 0.0002 of the scale; worst at [0, 3]
note: actual is all zero at 2 of axis 1 (1 of 3)

Numbers
  shape            (1, 3, 4)
  dtype            float32
  elements         12, 2 outside the tolerance (16.7%)
  tolerance        0.0002 * max(|expected|, scale)
  max abs error    0.25
  mean abs error   0.03125
  max rel error    0.5 of max(|expected|, scale)
  scale            1.5
  max ULP error    4194304
  cosine           0.99
  signal to noise  21.5 dB
  NaN              0 expected, 1 actual
  infinite         0 expected, 0 actual; 1 out of place

Worst elements
  index      expected  actual  abs error  rel error
  ─────────  ────────  ──────  ─────────  ─────────
  [0, 1, 3]         1     nan        inf        inf
  [0, 2, 0]       0.5    0.25       0.25        0.5

Absolute errors
            equal ▉                                    9
   1e-03 to 1e-02 ▏                                    1
   1e-02 to 1e-01                                      0
   1e-01 to 1e+00 ████████████████████████████████████ 400
  NaN or infinite ▏                                    1

Where: axis 1 (3) down, axis 2 (4) across
  0 ···░░░░░░▒▒▒
  1 ▓▓▓███XXX···
  2 ············
  · equal   ░ within the tolerance   ▒ up to 10 times the tolerance
  ▓ up to 100 times the tolerance   █ more than that
  X NaN or infinite on one side
"""


def test_one_tensor() -> None:
    """Bars show whatever is there, however little it is; what is well is reported in few words."""
    assert render(replace(DIFF, part="slice 0,:"), width=80) == WHOLE
    text = render(PASSED, width=80)
    assert text.startswith("PASS: the tensors are the same within the tolerance")
    assert "Where" not in text
    equal = replace(PASSED, comparison=replace(PASSED.comparison, max_abs=0.0))
    assert render(equal).startswith("PASS: the tensors are equal")
    shaped = TensorComparison("y", Verdict.of([FAILED], 0), ("float32", "float32"), ((4, 1), (1, 4)))
    text = render(TensorDiff(shaped, "a", "b"), width=80)
    assert "shape  (4, 1) expected, (1, 4) actual" in text
    assert "Worst" not in text
    assert "elements" not in text


def test_several_tensors_have_a_table_and_details_of_what_is_wrong() -> None:
    missing = Finding(VerdictKind.FAIL, "gone", "the output is missing")
    text = render(PASSED, DIFF, findings=(missing,), width=80)
    assert text.startswith("FAIL: 2 tensors compared, 1 different")
    assert re.search(r"PASS +z +\(1, 3, 4\) +0 +1e-07", text)
    assert re.search(r"FAIL +y +\(1, 3, 4\) +2 +0.25 +inf", text)
    assert "FAIL gone: the output is missing" in text
    assert text.count("Numbers") == 1
    assert "\ny\n  expected  want.npy" in text
    nothing = render(findings=(missing,), width=80)
    assert nothing.startswith("FAIL: 0 tensors compared, 0 different")
    assert "gone" in nothing


def test_axes_are_named() -> None:
    assert describe_axes(HEAT, (1, 3, 4)) == "axis 1 (3) down, axis 2 (4) across"
    assert describe_axes(HEAT, (2, 3, 4)) == "axis 1 (3) down, axis 2 (4) across, the largest error along the others"
    assert describe_axes(Heat((0,), (1, 9), ((0.0,),)), (9,)) == "axis 0 (9) across"


def test_errors_below_what_is_shown_are_one_bar() -> None:
    assert list_bars(ErrorHistogram((0.0, 1.0), (3,))) == [("equal", 0), ("below 1e+00", 3)]


@pytest.mark.parametrize(
    ("dtype", "tolerance", "text"),
    [
        ("float32", Tolerance(abs=0.5, rel=0.1), "0.5 + 0.1 * max(|expected|, scale)"),
        ("int64", Tolerance(int_abs=0), "exact"),
        ("int8", Tolerance(int_abs=1, int_share=0.25), "up to 1 in 25% of elements"),
        ("int8", Tolerance(int_abs=2, int_share=1.0), "up to 2"),
        ("bool", Tolerance(int_abs=2, int_share=1.0), "exact"),
        ("string", Tolerance(), "exact"),
        (
            "float32",
            Tolerance(abs=0, rel=0.1, ulp=3, allowed_wrong=0.01, min_cosine=0.9, min_sqnr_db=20.0, top_k=5),
            (
                "0.1 * max(|expected|, scale), 3 ULP, 1% of elements may be beyond, cosine at least 0.9, "
                "signal to noise at least 20 dB, the same 5 largest in each row"
            ),
        ),
    ],
)
def test_tolerances_in_words(dtype: str, tolerance: Tolerance, text: str) -> None:
    assert describe_tolerance(replace(FOUND, dtype=(dtype, dtype), tolerance=tolerance)) == text


def test_numbers_that_not_every_tensor_has() -> None:
    facts = dict(list_numbers(replace(FOUND, top_k=0.5, tolerance=replace(FOUND.tolerance, top_k=3))))
    assert facts["top 3"] == "the same in 50% of rows"
    assert dict(list_numbers(replace(FOUND, sqnr_db=math.inf)))["signal to noise"] == "infinite: equal"
    assert dict(list_numbers(replace(FOUND, dtype=("int32", "float32"))))["dtype"] == "int32 expected, float32 actual"


def test_json_has_everything_and_no_nan() -> None:
    facts = json.loads(render_facts(build_diff_facts([DIFF], FOUND.verdict)))
    assert facts["verdict"] == "FAIL"
    (tensor,) = facts["tensors"]
    assert tensor["files"] == {"expected": "want.npy", "actual": "got.npy"}
    assert tensor["nan"] == {"expected": 0, "actual": 1}
    assert tensor["worst"][0] == {
        "index": [0, 1, 3], "expected": 1.0, "actual": "nan", "abs_error": "Infinity", "rel_error": "Infinity",
    }  # fmt: skip
    assert tensor["heat"]["cells"][1][2] == "Infinity"
    assert tensor["histogram"]["counts"] == [1, 0, 400]
    assert tensor["tolerance"]["rel"] == 2e-4
    assert tensor["findings"] == [FAILED.message]


def test_a_page_stands_alone() -> None:
    page = render_page([DIFF, PASSED], FOUND.verdict)
    assert "<script" not in page
    assert not re.search(r"(src|href)=", page)
    assert page.count("<svg") == 4
    for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        ET.fromstring(svg)
    assert 'class="badge FAIL"' in page
    for word in ("want.npy", "got.npy", "0.0002 * max(|expected|, scale)", "[0, 2, 0]", "axis 1 (3) down"):
        assert word in page


def test_cells_of_a_page_report_how_wrong_they_are() -> None:
    titles = re.findall(r"<title>(axis.*?)</title>", render_page([DIFF], FOUND.verdict))
    assert titles == [
        "axis 1: 0, axis 2: 3: 1.5 times the tolerance",
        "axis 1: 1, axis 2: 0: 10.5 times the tolerance",
        "axis 1: 1, axis 2: 1: 150 times the tolerance",
        "axis 1: 1, axis 2: 2: NaN or infinite on one side",
    ]


def test_a_page_of_a_tensor_that_is_wrong_everywhere_stays_small() -> None:
    heat = Heat((0, 1), (480, 1600), tuple(tuple(2.0 + column % 2 * 20 for column in range(160)) for _ in range(48)))
    flat = Heat((0, 1), (480, 1600), tuple((5.0,) * 160 for _ in range(48)))
    assert len(render_page([replace(DIFF, heat=heat)], FOUND.verdict)) < 2_000_000
    page = render_page([replace(DIFF, heat=flat)], FOUND.verdict)
    assert page.count("<rect") < 100
    assert "axis 0: 0 to 9, axis 1: 0 to 1599: 5 times the tolerance" in page
