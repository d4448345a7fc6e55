"""The report of a model check: the answer first, every number where it belongs, commands that can be pasted."""

from __future__ import annotations

import html
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from tests.models.report import model_reports as made
from tests.models.report.model_reports import show, show_junit, show_markdown, show_page

from assay.models.report.check import build_model_facts, choose_cases, render_case_line
from assay.models.report.summary import (
    build_case_metrics,
    build_next_steps,
    build_tail,
    describe_outcome,
    describe_surroundings,
    describe_times,
    group_failures,
    join_names,
    render_error,
)
from assay.models.values.model import CaseReport, ModelReport, Step, StepEnding
from assay.show.formatting import render_facts
from assay.values.verdict import Finding, Verdict, VerdictKind

INCONCLUSIVE, FAIL, ERROR = VerdictKind.INCONCLUSIVE, VerdictKind.FAIL, VerdictKind.ERROR


def cells_of(text: str, name: str) -> dict[str, str]:
    """The row of a layer by the names over its columns; names and cells are apart by two spaces or more."""
    lines = text.splitlines()
    head = next(line for line in lines if line.startswith("layer "))
    row = next(line for line in lines if re.match(rf"{name}\s", line))
    return dict(zip(re.split(r" {2,}", head), re.split(r" {2,}", row), strict=True))


BAD = r"""ERROR m on iree: the first wrong layer is MatMul_1: t2 is off by 0.41 of its scale (3 of 8 elements); it is also wrong in isolation

layer       op         outcome        local error  accumulated error    cosine  SQNR dB  compile ms  run ms
──────────  ─────────  ─────────────  ───────────  ─────────────────  ────────  ───────  ──────────  ──────
Conv_0      Conv+Clip  ok                    1e-7               2e-7  0.998765    120.2        1234     1.5
MatMul_1    MatMul     mismatch              0.41               0.41  0.998765    120.2        1234     1.5
Relu_2      Relu       ok                    1e-7                0.4  0.998765    120.2        1234     1.5
Conv_3      Conv       compile error            -                  -         -        -           -       -
Gemm_4      Gemm       compile error            -                  -         -        -           -       -
full_model  -          mismatch                 -                0.4  0.998765    120.2        2000       4

compile error in Conv_3, Gemm_4: failed to legalize 'onnx.Foo'
  $ iree-compile 'my model.mlir' -o out.vmfb
TAIL  convert the model: assay model convert --opset 17

MatMul_1 differs:
  t2: 3 of 8 (37.5%) differ by more than 1e-05 of the scale; worst 0.41

full_model differs:
  logits: 3 of 8 (37.5%) differ by more than 1e-05 of the scale; worst 0.4

FAIL m: hidden by marking
a <note>
times of 2 steps are from the cache, as measured when it was made

show the numbers: assay model diff DIFF
reduce it:        assay model reduce 'models/my model.onnx' --reference ort --target iree

reference ort; iree-base-compiler 3.13.0, 2 samples, 12s
kept in /runs/model/m_1
"""


def test_the_answer_the_table_what_failed_what_to_do_and_what_it_was_made_with() -> None:
    """One failure of several layers is reported once; a step that failed has no numbers, nor a time."""
    report = replace(made.bad_report(), findings=(Finding(FAIL, "m", "hidden by marking"),), run_dir="/runs/model/m_1")
    tail = "".join(rf"  | line {number} <&> \x1b[31mred\x1b[0m" + "\n" for number in range(22, 30))
    assert show(report) == BAD.replace("TAIL", tail).replace("DIFF", f"'{made.DIFF[0]}' '{made.DIFF[1]}'")
    good = show(replace(made.good_report(), run_dir="/runs/model/m_1"))
    assert good.endswith("\nkept in /runs/model/m_1\n")
    assert "assay model" not in good, "all is well asks for nothing"


@pytest.mark.parametrize(
    ("report", "sentence"),
    [
        (made.good_report(), "2 layers and the full model agree with ort"),
        (made.report(made.good(0)), "1 layer agrees with ort"),
        (made.report(made.whole()), "the full model agrees with ort"),
        (made.report(), "nothing was compared"),
        (made.report(made.good(0), made.whole(0.4, FAIL)), "full_model logits: 3 of 8 (37.5%) differ"),
        (made.report(made.failed(0)), "Conv_0: compile error: failed to legalize"),
        (
            made.report(made.whole(), findings=(Finding(INCONCLUSIVE, "m", "the references disagree"),)),
            "the references disagree",
        ),
    ],
)
def test_one_sentence_for_every_end(report: ModelReport, sentence: str) -> None:
    kind = report.verdict.kind if report.cases else ERROR
    assert describe_outcome(report).startswith(sentence)
    assert show(report).startswith(f"{kind} m on iree: {sentence}")


def alone(number: int, op: str, text: str) -> CaseReport:
    """A layer that could not be judged in isolation."""
    case = made.good(number, op)
    verdict = Verdict.of([Finding(INCONCLUSIVE, case.name, text)], 0)
    return replace(case, verdict=verdict, steps=(), local=(), accumulated=())


def without_size(message: str, **more: object) -> CaseReport:
    verdict = Verdict.of([Finding(FAIL, "t1", message)], 8)
    compared = made.comparison("t1", 0.0, FAIL, verdict=verdict, wrong=0, **more)
    return replace(made.wrong(0), verdict=verdict, local=(compared,), accumulated=())


INSIDE = replace(made.good(1, "MatMul"), accumulated=(made.comparison("t2", 0.3, FAIL),))
REFUSED = replace(made.failed(0), name="m_full_model", layer=None)
ISOLATED = "it is also wrong in isolation"


@pytest.mark.parametrize(
    ("cases", "confirmed", "sentence"),
    [
        (
            [INSIDE], False,
            ("the first wrong layer is MatMul_1: inside the model t2 is off by 0.3 of its scale (3 of 8 elements); "
            "in isolation the layer is correct: check its neighbours"),
        ),
        (
            [made.failed(0, "Conv", "Clip")], True,
            "the first wrong layer is Conv_0 (Conv+Clip): compile error: failed to legalize 'onnx.Foo'",
        ),
        (
            [made.wrong(0, error=math.inf)], None,
            "the first wrong layer is Conv_0: t1: 3 of 8 (37.5%) differ by more than 1e-05 of the scale; worst inf",
        ),
        (  # nothing that the layer shows is wrong: beginnings of the model with it are
            [replace(made.good(3, "Relu"), accumulated=()), made.whole(0.05, FAIL)], False,
            ("the model is wrong with Relu_3: logits is off by 0.05 of its scale (3 of 8 elements); "
            "correct in isolation: suspect a fusion"),
        ),
        (
            [alone(2, "ConcatFromSequence", "this layer cannot be computed alone: 'q' is not a tensor"), REFUSED], None,
            ("the model is wrong with ConcatFromSequence_2: compile error: failed to legalize 'onnx.Foo'; "
            "this layer cannot be computed alone: 'q' is not a tensor"),
        ),
        (
            [without_size("dtype int32 instead of int64", dtype=("int64", "int32"))], True,
            f"the first wrong layer is Conv_0: t1: dtype int32 instead of int64; {ISOLATED}",
        ),
        (
            [without_size("shape [4, 2] instead of [2, 4]", shape=((2, 4), (4, 2)), count=0)], True,
            f"the first wrong layer is Conv_0: t1: shape [4, 2] instead of [2, 4]; {ISOLATED}",
        ),
        (
            [without_size("2 are NaN where a number is expected", misplaced=2, nan=(0, 2))], True,
            f"the first wrong layer is Conv_0: t1: 2 are NaN where a number is expected; {ISOLATED}",
        ),
        (
            [without_size("cosine 0.5, at least 0.9 is required")], True,
            f"the first wrong layer is Conv_0: t1: cosine 0.5, at least 0.9 is required; {ISOLATED}",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_with_the_first_layer(cases: list[CaseReport], confirmed: bool | None, sentence: str) -> None:
    assert describe_outcome(made.report(*cases, first_wrong=cases[0].name, confirmed=confirmed)) == sentence


@pytest.mark.parametrize(
    ("unseen", "said"),
    [
        (1, "Relu_2 is wrong: compile error: failed to legalize 'onnx.Foo'; the layer before it was not requested"),
        (2, "Relu_2 is wrong: compile error: failed to legalize 'onnx.Foo'; 2 layers before it were not requested"),
    ],
)
def test_the_first_that_was_tried_is_not_called_the_first(unseen: int, said: str) -> None:
    report = made.report(made.failed(2, "Relu"), first_wrong="m_layer_Relu_2", unseen=unseen, confirmed=True)
    assert describe_outcome(report) == said


def test_the_worst_output_counts_and_that_of_the_full_model_is_accumulated() -> None:
    numbers = build_case_metrics(made.whole(0.4, FAIL))
    assert (numbers.local, numbers.accumulated) == (None, 0.4)
    case = made.good(0)
    several = (
        made.comparison("a", 1e-7, cosine=0.5, sqnr_db=90.0),
        made.comparison("b", 0.2, FAIL, cosine=0.9, sqnr_db=math.nan),
        made.comparison("c", 0.1, FAIL, cosine=None, sqnr_db=10.0),
    )
    numbers = build_case_metrics(replace(case, local=several))
    assert (numbers.local, numbers.cosine) == (0.2, 0.5)
    assert numbers.sqnr_db is not None
    assert math.isnan(numbers.sqnr_db), "NaN is worse than any number"
    broken, unknown = replace(several[0], misplaced=1), replace(several[0], max_rel=math.nan)
    for found in ((broken,), (unknown, several[1])):
        assert build_case_metrics(replace(case, local=found)).local == math.inf


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (1.234e-7, "1.2e-7"), (0.41, "0.41"), (12.0, "12"), (5.2e9, "5.2e9"), (math.inf, "inf"), (None, None)],
)
def test_errors_as_people_read_them(value: float | None, text: str | None) -> None:
    assert render_error(value) == text


def test_columns_are_left_out_where_they_have_nothing_or_no_room() -> None:
    cells = cells_of(show(made.bad_report(), width=80), "MatMul_1")
    assert (cells["outcome"], cells["local"], cells["accum."], cells["run ms"]) == ("mismatch", "0.41", "0.41", "1.5")
    assert "op" not in cells
    assert "op" in cells_of(show(made.bad_report(), width=140), "MatMul_1")
    assert "run ms" not in show(made.report(made.failed(0), made.failed(1)))
    case = made.good(0)
    copied = tuple(replace(each, command="cp m.onnx") if each.step is Step.COMPILE else each for each in case.steps)
    assert "compile ms" in show(made.report(case))
    assert "compile ms" not in show(made.report(replace(case, steps=copied))), "a copy is not a compilation"


def test_nodes_are_shown_by_their_own_names_where_there_is_room() -> None:
    names = ("/enc/conv", "/enc/clip")
    named = replace(made.good(0, "Conv", "Clip"), layer=replace(made.layer(0, "Conv", "Clip"), node_names=names))
    report = made.report(named, made.good(1), made.whole())
    assert cells_of(show(report, 140), "Conv_0")["node"] == "/enc/conv+/enc/clip"
    assert "/enc" not in show(report, 80)
    assert "node" not in show(made.good_report(), 140)
    assert "/enc/conv+/enc/clip" in show_page(report)
    assert build_model_facts(report)["cases"][0]["layer"]["node_names"] == names


def test_of_a_large_model_what_is_right_is_left_out_and_counted() -> None:
    report = made.large_report()
    text = show(report, width=80)
    assert "… 148 layers that are correct" in text
    assert "… 145 layers that are correct" in text
    assert "(--all shows every layer)" in text
    assert [case.name for case in choose_cases(report)] == [
        *(f"m_layer_Conv_{number}" for number in (148, 149, 150, 151, 152, 298, 299)),
        "m_full_model",
    ]
    whole = show(report, width=80, every=True)
    assert "that are correct" not in whole
    assert "--all" not in whole
    assert sum(line.startswith("Conv_") for line in whole.splitlines()) == 300 + len(["differs:"])
    short = made.large_report(59, 3)
    assert choose_cases(short) == list(short.cases)
    markdown = show_markdown(report)
    assert len(markdown.splitlines()) < 40
    assert "293 layers more, all correct." in markdown


def test_nothing_that_is_not_right_is_ever_left_out() -> None:
    cases = list(made.large_report().cases)
    cases[20] = replace(cases[20], verdict=Verdict.of([Finding(INCONCLUSIVE, "x", "cannot stand alone")], 0))
    cases[40] = made.failed(40)
    shown = {case.name for case in choose_cases(made.report(*cases))}
    assert {cases[20].name, cases[40].name, cases[150].name, cases[-1].name} <= shown


def test_the_end_of_a_tool_s_output() -> None:
    """Of stdout where stderr is silent; where Python itself died, the innermost frames."""
    outcome = made.step(Step.RUN, StepEnding.CRASH, message="killed by SIGSEGV", stdout="a\n\tb\n", stderr=" \n")
    assert build_tail(outcome, 8) == ["a", "        b"]
    assert build_tail(made.step(Step.RUN, StepEnding.TIMEOUT), 8) == []
    assert len(build_tail(made.step(Step.RUN, StepEnding.ERROR, stderr="x" * 5000), 8)[0]) == 400
    ours = [f'  File "/assay/probe/worker.py", line {number} in f{number}' for number in range(20)]
    trace = ["Fatal Python error: Aborted", "", "Current thread 0x1 (most recent call first):"]
    said = "\n".join(["before", *trace, '  File "/home/mine.py", line 7 in perform', *ours, "Extension modules: a, b"])
    shown = build_tail(made.step(Step.COMPILE, StepEnding.CRASH, stderr=said), 8)
    assert shown[0] == "Fatal Python error: Aborted"
    assert '  File "/home/mine.py", line 7 in perform' in shown
    assert len(shown) == 8
    assert build_tail(made.step(Step.COMPILE, StepEnding.CRASH, stderr="\n".join(ours)), 8)[-1] == ours[-1]


def test_failures_are_grouped_by_message_or_output_and_that_of_the_whole_is_reported_in_full() -> None:
    """However many layers fail in other ways before it; what to do is reported once."""
    said = [made.step(Step.RUN, StepEnding.ERROR, stderr=text) for text in ("one", "1\nline", "2\nline")]
    report = made.report(*(made.failed(number, outcome=outcome) for number, outcome in enumerate(said)))
    assert [names for _, names in group_failures(report)] == [["Conv_0"], ["Conv_1", "Conv_2"]]
    hint = "convert the model: assay model convert m.onnx --opset 17"

    def refuse(message: str, command: str, end: str) -> object:
        return made.step(Step.IMPORT, StepEnding.ERROR, message=message, command=command, hint=hint[:-1] + end)

    endings = [refuse(f"trouble {number}", f"tool {number}", "8") for number in range(5)]
    odd = refuse("something else", "tool", "7")
    layers = [made.failed(number, outcome=outcome) for number, outcome in enumerate([*endings, odd, odd])]
    last = refuse("no shape", "tool of the whole", "9")
    whole = replace(made.failed(9, outcome=last), name="m_full_model", layer=None)
    report = made.report(*layers, whole, first_wrong=layers[3].name)
    assert [step.message for step, _ in group_failures(report)][:2] == ["trouble 3", "no shape"]
    text = show(report)
    assert text.count("  $ tool") == 3, "the others have a line each"
    assert "tool of the whole" in text
    for number in range(5):
        assert f"import error in Conv_{number}: trouble {number}" in text
    assert text.count(hint) == 1, "of what is not reported in full"
    assert text.count(hint[:-1] + "8") == 2, "reported in full twice, and not again"


def test_another_class_is_reported_of_a_model_that_is_right() -> None:
    flag = "the largest element is another one in 1 of 8 (12.5%) rows; first in row [5]: 2 instead of 1"
    whole = made.whole()
    flagged = replace(whole, local=(replace(whole.local[0], flags=("expected is constant", flag)),))
    report = made.report(made.good(0), flagged)
    assert f"\n{whole.local[0].name}: {flag}\n" in show(report)
    assert "the largest element is another one in" in show_markdown(report)
    assert "expected is constant" not in show(report)


def test_of_many_mismatches_the_first_and_the_whole_are_reported_with_all_their_commands() -> None:
    pairs = tuple((f"/t/{number}/e 2.npy", f"/t/{number}/a.npy") for number in range(3))
    whole = replace(made.whole(0.4, FAIL), diffs=pairs)
    text = show(made.report(*(made.wrong(number) for number in range(6)), whole, first_wrong="m_layer_Conv_1"))
    assert text.index("Conv_1 differs:") < text.index("full_model differs:") < text.index("Conv_0 differs:")
    assert text.count(" differs:") == 3
    for expected, actual in pairs:
        assert f"  assay model diff '{expected}' {actual}\n" in text
    assert "the same applies to Conv_2, Conv_3, Conv_4, Conv_5 (--json has the commands that show them)" in text
    assert join_names([str(number) for number in range(20)]) == "0, 1, 2, 3, 4 and 15 more"


def test_a_reference_that_fails_is_reported_once_and_nothing_is_offered() -> None:
    why = Finding(ERROR, "m", "the reference ort cannot compute this model: compile error: no")
    left = Finding(ERROR, "m_layer_Conv_0", "the reference failed: ort cannot compute the model")
    own = replace(made.failed(0), name="m_reference", layer=None, target="ort")
    case = CaseReport("m_layer_Conv_0", "iree", Verdict.of([left], 0), made.layer(0))
    text = show(made.report(own, case, findings=(why,)))
    assert text.startswith("ERROR m on iree: the reference ort cannot compute this model")
    assert text.count("cannot compute this model") == 1
    assert "differs" not in text
    assert "reduce it" not in text
    assert made.COMMAND in text
    assert cells_of(text, "Conv_0")["outcome"] == "not compared"


def test_a_layer_that_is_not_decided_does_not_differ() -> None:
    text = show(made.report(alone(0, "Conv", "this layer cannot be computed alone: it is an If"), made.whole()))
    assert "Conv_0 is not decided:" in text
    assert "differs" not in text


def test_what_is_offered_asks_for_the_same_where_it_is_typed() -> None:
    report = made.report(made.wrong(1), manner="--target iree --tolerance rel=0.1", origin="--dim x=1,2")
    offered = "assay model reduce 'models/my model.onnx' --target iree --tolerance rel=0.1 --dim x=1,2"
    assert dict(build_next_steps(report))["reduce it"] == offered
    there = replace(report, folder="/my project", model="/my project/models/a b.onnx")
    offered = "cd '/my project' && assay model reduce 'models/a b.onnx' --target iree --tolerance rel=0.1 --dim x=1,2"
    assert dict(build_next_steps(there))["reduce it"] == offered
    elsewhere = dict(build_next_steps(replace(there, model="/other/m.onnx")))["reduce it"]
    assert "assay model reduce /other/m.onnx " in elsewhere
    reduced = replace(there, command="assay model check small.onnx --target iree")
    steps = dict(build_next_steps(reduced))
    assert steps["reproduce it"] == "cd '/my project' && assay model check small.onnx --target iree"
    assert "reduce it" not in steps
    assert describe_outcome(reduced).startswith("the smallest model that fails is one Conv, Conv_1: t2 is off by 0.41")
    several = made.report(replace(made.whole(0.4, FAIL), name="m_reduced"), command="assay …")
    assert describe_outcome(several).startswith("the smallest model that fails is made of several nodes: ")


def test_a_terminal_is_advised_from_its_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    folder = str(tmp_path)
    report = replace(made.bad_report(), folder=folder, model=f"{folder}/m.onnx", run_dir=f"{folder}/runs/model/a")
    text = show(report)
    assert "kept in runs/model/a\n" in text
    assert "assay model reduce m.onnx " in text
    assert folder not in text
    monkeypatch.chdir("/")
    assert f"cd {folder} && assay model reduce m.onnx" in show(report)


def test_times_report_what_they_are() -> None:
    assert describe_times(made.report(made.good(0))) == ""
    estimate = replace(made.good_report(), is_estimate=True)
    assert describe_times(estimate).startswith("times are a simulator's estimates; ")
    assert "run ms (estimate)" in show(estimate)
    assert "simulator's estimates" in show(estimate)


def test_versions_are_short_for_people() -> None:
    said = "GNU bash, version 5.2.15(1)-release (x86_64-pc-linux-gnu) Copyright (C) 2022 Free Software Foundation, Inc."
    tools = {"onnxruntime": "1.31.1 ORT Build Info: x", "cpu": "AMD EPYC 0c31", "optimize": "none", "long": "x" * 300}
    tools |= {"run: words": "/opt/run -O2", "run: /opt/run": "7c5ec3c514ada708", "run: version": said}
    found = describe_surroundings(made.report(tools=tools))
    assert found.startswith("onnxruntime 1.31.1, optimize none, long xxx")
    assert found.endswith(", run: version GNU bash, version 5.2.15(1)-release (x86_64-pc-linux-gnu), 12s")
    assert "x" * 100 not in found


FAR = made.comparison("far", math.inf, FAIL, shape=((2, 4), (4, 2)))
TWO = (made.comparison("near", 0.1, FAIL), FAR)
BEYOND = "3 of 8 (37.5%) differ by more than 1e-05 of the scale; worst"


@pytest.mark.parametrize(
    ("case", "line"),
    [
        (made.good(0), "ok             m_layer_Conv_0  error 1e-7, compile 1234 ms, run 1.5 ms"),
        (
            made.wrong(1),
            f"mismatch       m_layer_Conv_1  error 0.41, compile 1234 ms, run 1.5 ms: t2: {BEYOND} 0.41",
        ),
        (
            replace(
                made.wrong(0), local=TWO, verdict=Verdict.of([f for each in TWO for f in each.verdict.findings], 2)
            ),
            f"mismatch       m_layer_Conv_0  error inf, compile 1234 ms, run 1.5 ms: far: {BEYOND} inf",
        ),
        (made.failed(2), "compile error  m_layer_Conv_2: failed to legalize 'onnx.Foo'"),
        (made.whole(), "ok             m_full_model  error 3e-7, compile 2000 ms, run 4 ms"),
        (
            CaseReport("x", "t", Verdict.of([Finding(INCONCLUSIVE, "x", "cannot\nstand alone")], 0)),
            "inconclusive   x: cannot\\nstand alone",
        ),
        (
            CaseReport("x", "t", Verdict.of([Finding(ERROR, "x", "the reference failed")], 0)),
            "not compared   x: the reference failed",
        ),
    ],
)
def test_a_case_is_one_line(case: CaseReport, line: str) -> None:
    assert render_case_line(case) == line


def test_facts_hold_everything_and_are_json() -> None:
    report = made.bad_report()
    broken = replace(report.cases[1], local=(replace(report.cases[1].local[0], max_abs=math.nan, sqnr_db=-math.inf),))
    facts = json.loads(render_facts(build_model_facts(replace(report, cases=(report.cases[0], broken)))))
    assert (facts["verdict"], facts["exit_code"], facts["first_wrong"]) == ("FAIL", 1, "m_layer_MatMul_1")
    assert facts["summary"].startswith("the first wrong layer is MatMul_1")
    assert facts["next"][0].startswith("assay model diff")
    case = facts["cases"][1]
    assert (case["outcome"], case["is_wrong"], case["local"][0]["max_abs"]) == ("mismatch", True, "NaN")
    assert (case["local_error"], case["accumulated_error"], case["sqnr_db"]) == (0.41, 0.41, "-Infinity")
    assert (case["import_s"], case["compile_s"], case["run_s"]) == (0.25, 1.234, 0.0015)
    assert case["diff_commands"] == facts["next"][:1]
    assert case["steps"][1]["step"] == "compile"
    assert case["layer"]["ops"] == ["MatMul"]


def test_markdown_has_the_answer_the_table_and_the_commands() -> None:
    text = show_markdown(made.bad_report())
    assert text.startswith("## ❌ m on iree: ERROR\n\nthe first wrong layer is MatMul\\_1: t2 is off by")
    assert "| MatMul\\_1 | MatMul | mismatch | 0.41 |" in text
    assert "<details><summary>compile error in Conv_3, Gemm_4" in text
    assert "```sh\n# show the numbers\nassay model diff" in text
    assert "- a &lt;note&gt;" in text
    assert show_markdown(made.good_report()).startswith("## ✅ m on iree: PASS")


@pytest.mark.parametrize(
    "line",
    [">>> openvino.Core().compile_model('m.onnx', 'CPU', {})", "$ iree-compile 'a (1).mlir' -o x", "$ cd /x && ./run"],
)
def test_a_command_reports_where_it_is_to_be_pasted(line: str) -> None:
    outcome = replace(made.COMPILE_ERROR, command=line.partition(" ")[2])
    report = made.report(made.failed(0, outcome=outcome))
    assert f"  {line}\n" in show(report)
    assert f"\n{line}\n" in show_markdown(report)
    assert line in html.unescape(show_junit(report))
    assert line in html.unescape(show_page(report))


def test_junit_distinguishes_failures_from_errors_and_counts_times_that_were_measured_now() -> None:
    top = ET.fromstring(show_junit(made.bad_report()))
    assert [top.get(name) for name in ("tests", "failures", "errors")] == ["6", "2", "2"]
    (suite,) = top
    assert suite.get("name") == "m on iree"
    cases = {case.get("name"): case for case in suite.iter("testcase")}
    assert list(cases) == [case.name for case in made.bad_report().cases]
    failure, error = cases["m_layer_MatMul_1"].find("failure"), cases["m_layer_Conv_3"].find("error")
    assert failure is not None
    assert error is not None
    assert (failure.get("type"), error.get("type")) == ("mismatch", "compile error")
    assert "assay model diff" in (failure.text or "")
    assert f"$ {made.COMMAND}" in (error.text or "")
    assert "line 29" in (error.text or "")
    assert all(cases["m_layer_Conv_0"].find(each) is None for each in ("failure", "error"))
    properties = {each.get("name"): each.get("value") for each in cases["m_layer_MatMul_1"].iter("property")}
    assert (properties["local_error"], properties["run_s"]) == ("0.41", "0.0015")
    assert [cases[name].get("time") for name in ("m_layer_Conv_0", "m_full_model")] == ["1.734", "0.000"]


@pytest.mark.parametrize(("kind", "name"), [(INCONCLUSIVE, "skipped"), (VerdictKind.CHANGED, "failures")])
def test_junit_never_passes_what_is_not_shown_to_be_good(kind: VerdictKind, name: str) -> None:
    odd = Verdict.of([Finding(kind, "x", "odd")], 1)
    top = ET.fromstring(show_junit(made.report(replace(made.good(0), verdict=odd))))
    assert top.get(name) == top[0].get(name) == "1"
    findings = (Finding(kind, "m", "about the whole"),)
    top = ET.fromstring(show_junit(replace(made.good_report(), findings=findings)))
    assert (top.get("tests"), top.get(name)) == ("4", "1")
    assert sum(int(top.get(each, 0)) for each in ("failures", "errors", "skipped")) == 1
    assert ET.fromstring(show_junit(made.report())).get("errors") == "1"
