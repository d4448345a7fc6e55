"""The report of a model check: the answer first, every number where it belongs, commands that can be pasted."""

from __future__ import annotations

import html
import json
import math
import re
import shlex
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
    render_cosine,
    render_error,
)
from assay.models.values.model import CaseReport, ModelReport, Step, StepEnding
from assay.show.formatting import render_facts
from assay.values.verdict import Finding, Verdict, VerdictKind


def cells_of(text: str, name: str) -> dict[str, str]:
    """The row of a layer by the names over its columns; names and cells are apart by two spaces or more."""
    lines = text.splitlines()
    head = next(line for line in lines if line.startswith("layer "))
    row = next(line for line in lines if re.match(rf"{name}\s", line))
    return dict(zip(re.split(r" {2,}", head), re.split(r" {2,}", row), strict=True))


# ---------------------------------------------------------------- the answer


def test_the_first_wrong_layer_is_the_first_sentence() -> None:
    first = show(made.bad_report()).splitlines()[0]
    assert first == (
        "ERROR m on iree: the first wrong layer is MatMul_1: t2 is off by 0.41 of its scale (3 of 8 elements); "
        "it is also wrong in isolation"
    )


def test_a_layer_that_is_right_by_itself_sends_to_its_neighbours() -> None:
    case = made.good(1, "MatMul")
    inside = (made.comparison("t2", 0.3, VerdictKind.FAIL),)
    report = made.report(replace(case, accumulated=inside), first_wrong=case.name, confirmed=False)
    assert describe_outcome(report) == (
        "the first wrong layer is MatMul_1: inside the model t2 is off by 0.3 of its scale (3 of 8 elements); "
        "in isolation the layer is correct: check its neighbours"
    )


def test_a_group_is_named_whole_with_a_failed_step() -> None:
    case = made.failed(0, "Conv", "Clip")
    report = made.report(case, first_wrong=case.name, confirmed=True)
    assert describe_outcome(report) == (
        "the first wrong layer is Conv_0 (Conv+Clip): compile error: failed to legalize 'onnx.Foo'"
    )


def test_what_has_no_number_is_reported_by_its_finding() -> None:
    case = made.wrong(0, error=math.inf)
    report = made.report(case, first_wrong=case.name)
    assert "t1: 3 of 8 (37.5%) differ by more than 1e-05 of the scale; worst inf" in describe_outcome(report)


@pytest.mark.parametrize(
    ("report", "sentence"),
    [
        (made.good_report(), "2 layers and the full model agree with ort"),
        (made.report(made.good(0)), "1 layer agrees with ort"),
        (made.report(made.whole()), "the full model agrees with ort"),
        (made.report(), "nothing was compared"),
        (made.report(made.good(0), made.whole(0.4, VerdictKind.FAIL)), "full_model logits: 3 of 8 (37.5%) differ"),
        (made.report(made.failed(0)), "Conv_0: compile error: failed to legalize"),
        (
            made.report(made.whole(), findings=(Finding(VerdictKind.INCONCLUSIVE, "m", "the references disagree"),)),
            "the references disagree",
        ),
    ],
)
def test_one_sentence_for_every_end(report: ModelReport, sentence: str) -> None:
    assert describe_outcome(report).startswith(sentence)
    kind = report.verdict.kind
    assert show(report).startswith(f"{kind} m on iree: {sentence}")


def test_nothing_compared_is_never_a_pass() -> None:
    assert show(made.report()).startswith("ERROR ")


# ---------------------------------------------------------------- the table


def test_every_number_stands_in_its_column() -> None:
    text = show(made.bad_report())
    assert cells_of(text, "MatMul_1") == {
        "layer": "MatMul_1",
        "op": "MatMul",
        "outcome": "mismatch",
        "local error": "0.41",
        "accumulated error": "0.41",
        "cosine": "0.998765",
        "SQNR dB": "120.2",
        "compile ms": "1234",
        "run ms": "1.5",
    }
    assert cells_of(text, "Conv_0")["op"] == "Conv+Clip"
    assert cells_of(text, "Relu_2")["accumulated error"] == "0.4"
    failed = cells_of(text, "Conv_3")
    assert failed.pop("outcome") == "compile error"
    assert [failed.pop(name) for name in ("layer", "op")] == ["Conv_3", "Conv"]
    assert set(failed.values()) == {"-"}, "a step that failed has no numbers, nor a time"


def test_the_full_models_error_is_an_accumulated_one() -> None:
    figures = build_case_metrics(made.whole(0.4, VerdictKind.FAIL))
    assert (figures.local, figures.accumulated) == (None, 0.4)
    assert cells_of(show(made.bad_report()), "full_model")["local error"] == "-"


def test_the_worst_output_counts() -> None:
    case = made.good(0)
    several = (
        made.comparison("a", 1e-7, cosine=0.5, sqnr_db=90.0),
        made.comparison("b", 0.2, VerdictKind.FAIL, cosine=0.9, sqnr_db=math.nan),
        made.comparison("c", 0.1, VerdictKind.FAIL, cosine=None, sqnr_db=10.0),
    )
    figures = build_case_metrics(replace(case, local=several))
    assert (figures.local, figures.cosine) == (0.2, 0.5)
    assert figures.sqnr_db is not None
    assert math.isnan(figures.sqnr_db), "NaN is worse than any number"
    broken = replace(several[0], misplaced=1)
    assert build_case_metrics(replace(case, local=(broken,))).local == math.inf
    unknown = replace(several[0], max_rel=math.nan)
    assert build_case_metrics(replace(case, local=(unknown, several[1]))).local == math.inf


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (1.234e-7, "1.2e-7"), (0.41, "0.41"), (12.0, "12"), (5.2e9, "5.2e9"), (math.inf, "inf"), (None, None)],
)
def test_errors_as_people_read_them(value: float | None, text: str | None) -> None:
    assert render_error(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.0, "1.000000"), (1 - 5e-15, "1.000000"), (0.9999989, "0.999999"), (-1.0, "-1.000000"), (math.nan, "nan")],
)
def test_a_cosine_has_six_digits(value: float, text: str) -> None:
    assert render_cosine(value) == text
    assert render_cosine(None) is None


def test_a_narrow_table_keeps_what_matters_most() -> None:
    cells = cells_of(show(made.bad_report(), width=80), "MatMul_1")
    assert cells["outcome"] == "mismatch"
    assert cells["local"] == "0.41"
    assert cells["accum."] == "0.41"
    assert cells["run ms"] == "1.5"
    assert "op" not in cells
    assert "op" in cells_of(show(made.bad_report(), width=140), "MatMul_1")


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


def test_a_small_model_is_shown_whole() -> None:
    report = made.large_report(59, 3)
    assert choose_cases(report) == list(report.cases)
    assert "that are correct" not in show(report)


def test_nothing_that_is_not_right_is_ever_left_out() -> None:
    odd = Verdict.of([Finding(VerdictKind.INCONCLUSIVE, "x", "cannot stand alone")], 0)
    cases = list(made.large_report().cases)
    cases[20] = replace(cases[20], verdict=odd)
    cases[40] = made.failed(40)
    shown = {case.name for case in choose_cases(made.report(*cases))}
    assert {cases[20].name, cases[40].name, cases[150].name, cases[-1].name} <= shown


# ---------------------------------------------------------------- what failed


def test_a_failed_step_has_its_command_and_the_end_of_its_output() -> None:
    text = show(made.bad_report())
    assert "compile error in Conv_3, Gemm_4: failed to legalize 'onnx.Foo'\n" in text
    assert f"\n  $ {made.COMMAND}\n" in text
    assert "  | line 29 <&> \\x1b[31mred" in text
    assert "line 21 " not in text
    assert "convert the model: assay model convert --opset 17" in text
    assert text.count(made.COMMAND) == 1, "one failure of several layers is told once"


def test_errors_on_stdout_are_shown_where_stderr_is_silent() -> None:
    outcome = made.step(Step.RUN, StepEnding.CRASH, message="killed by SIGSEGV", stdout="a\n\tb\n", stderr=" \n")
    assert build_tail(outcome, 8) == ["a", "        b"]
    assert build_tail(made.step(Step.RUN, StepEnding.TIMEOUT), 8) == []
    long = made.step(Step.RUN, StepEnding.ERROR, stderr="x" * 5000)
    assert len(build_tail(long, 8)[0]) == 400


def test_different_failures_are_separate_and_many_are_listed() -> None:
    endings = [
        made.step(Step.RUN, StepEnding.ERROR, message=f"trouble {number}", command="tool") for number in range(5)
    ]
    report = made.report(*(made.failed(number, outcome=outcome) for number, outcome in enumerate(endings)))
    assert [group.cases for group in group_failures(report)] == [(f"Conv_{number}",) for number in range(5)]
    text = show(report)
    assert text.count("  $ tool") == 3
    for number in range(5):
        assert f"run error in Conv_{number}: trouble {number}" in text


def test_the_failure_of_the_whole_is_reported_in_full_and_what_to_do_once() -> None:
    """However many layers fail in other ways before it."""
    hint = "convert the model: assay model convert m.onnx --opset 17"
    endings = [
        made.step(
            Step.IMPORT, StepEnding.ERROR, message=f"trouble {number}", command=f"tool {number}", hint=hint[:-1] + "8"
        )
        for number in range(5)
    ]
    odd = made.step(Step.IMPORT, StepEnding.ERROR, message="something else", command="tool", hint=hint)
    last = made.step(
        Step.IMPORT, StepEnding.ERROR, message="no shape", command="tool of the whole", hint=hint[:-1] + "9"
    )
    layers = [made.failed(number, outcome=outcome) for number, outcome in enumerate([*endings, odd, odd])]
    whole = replace(made.failed(9, outcome=last), name="m_full_model", layer=None)
    report = made.report(*layers, whole, first_wrong=layers[3].name)
    assert [group.step.message for group in group_failures(report)][:2] == ["trouble 3", "no shape"]
    text = show(report)
    assert "tool of the whole" in text
    assert text.count(hint) == 1, "of what is not told in full"
    assert text.count(hint[:-1] + "8") == 2, "told in full twice, and not again"


def test_failures_without_a_message_are_distinguished_by_their_output() -> None:
    said = [made.step(Step.RUN, StepEnding.ERROR, stderr=text) for text in ("one", "two", "two")]
    report = made.report(*(made.failed(number, outcome=outcome) for number, outcome in enumerate(said)))
    assert [group.cases for group in group_failures(report)] == [("Conv_0",), ("Conv_1", "Conv_2")]


def test_another_class_is_reported_of_a_model_that_is_right() -> None:
    flag = "the largest element is another one in 1 of 8 (12.5%) rows; first in row [5]: 2 instead of 1"
    whole = made.whole()
    flagged = replace(whole, local=(replace(whole.local[0], flags=("expected is constant", flag)),))
    report = made.report(made.good(0), flagged)
    assert f"\n{whole.local[0].name}: {flag}\n" in show(report)
    assert "the largest element is another one in" in show_markdown(report)
    assert "expected is constant" not in show(report)


def test_names_are_joined() -> None:
    assert join_names(["a", "b"]) == "a, b"
    assert join_names([str(number) for number in range(20)]) == "0, 1, 2, 3, 4 and 15 more"


def test_the_first_wrong_layer_is_reported_before_other_mismatches() -> None:
    cases = (made.wrong(0, error=0.1), made.wrong(1), made.whole(0.4, VerdictKind.FAIL))
    text = show(made.report(*cases, first_wrong=cases[1].name))
    assert text.index("Conv_1 differs:") < text.index("full_model differs:") < text.index("Conv_0 differs:")
    assert "  t2: 3 of 8 (37.5%) differ by more than 1e-05 of the scale; worst 0.41" in text


def test_many_mismatches_are_named() -> None:
    report = made.report(*(made.wrong(number) for number in range(6)))
    text = show(report)
    assert text.count(" differs:") == 3
    assert "the same applies to Conv_3, Conv_4, Conv_5" in text


# ---------------------------------------------------------------- what to do next


def test_the_commands_can_be_pasted() -> None:
    lines = show(made.bad_report(), width=80).splitlines()
    diff = next(line for line in lines if line.startswith("show the numbers:"))
    assert shlex.split(diff.partition(": ")[2]) == ["assay", "model", "diff", *made.DIFF]
    reduce = next(line for line in lines if line.startswith("reduce it:"))
    assert shlex.split(reduce.partition(":")[2]) == [
        "assay", "model", "reduce", "models/my model.onnx", "--reference", "ort", "--target", "iree",
    ]  # fmt: skip
    assert sum("assay model diff" in line for line in lines) == 1


def test_all_is_well_asks_for_nothing() -> None:
    text = show(made.good_report())
    assert "assay model" not in text


def test_diffs_of_several_outputs_are_all_there() -> None:
    case = replace(made.wrong(0), diffs=(made.DIFF, ("/e 2.npy", "/a2.npy")))
    text = show(made.report(case))
    assert "  assay model diff '/e 2.npy' /a2.npy\n" in text
    assert text.count("assay model diff") == 2


# ---------------------------------------------------------------- further notes


def test_times_report_what_they_are() -> None:
    assert describe_times(made.report(made.good(0))) == ""
    assert describe_times(made.good_report()) == "times of 2 steps are from the cache, as measured when it was made"
    estimate = replace(made.good_report(), is_estimate=True)
    assert describe_times(estimate).startswith("times are a simulator's estimates; ")
    assert "run ms (estimate)" in show(estimate)
    assert "simulator's estimates" in show(estimate)


def test_tools_samples_notes_and_findings_are_there() -> None:
    report = replace(made.bad_report(), findings=(Finding(VerdictKind.FAIL, "m", "hidden by marking"),))
    text = show(report)
    assert text.endswith("reference ort; iree-base-compiler 3.13.0, 2 samples, 12s\n")  # after what to do
    assert text.splitlines()[2].split()[0] == "layer"  # the table follows the verdict
    assert "\na <note>\n" in text
    assert "\nFAIL m: hidden by marking\n" in text


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


# ---------------------------------------------------------------- one line per case

MISMATCH_LINE = (
    "mismatch       m_layer_Conv_1  error 0.41, compile 1234 ms, run 1.5 ms: "
    "t2: 3 of 8 (37.5%) differ by more than 1e-05 of the scale; worst 0.41"
)


@pytest.mark.parametrize(
    ("case", "line"),
    [
        (made.good(0), "ok             m_layer_Conv_0  error 1e-7, compile 1234 ms, run 1.5 ms"),
        (made.wrong(1), MISMATCH_LINE),
        (made.failed(2), "compile error  m_layer_Conv_2: failed to legalize 'onnx.Foo'"),
        (made.whole(), "ok             m_full_model  error 3e-7, compile 2000 ms, run 4 ms"),
        (
            CaseReport("x", "t", Verdict.of([Finding(VerdictKind.INCONCLUSIVE, "x", "cannot\nstand alone")], 0)),
            "inconclusive   x: cannot\\nstand alone",
        ),
    ],
)
def test_a_case_is_one_line(case: CaseReport, line: str) -> None:
    assert render_case_line(case) == line


# ---------------------------------------------------------------- facts


def test_facts_hold_everything_and_are_json() -> None:
    report = made.bad_report()
    broken = replace(report.cases[1], local=(replace(report.cases[1].local[0], max_abs=math.nan, sqnr_db=-math.inf),))
    facts = json.loads(render_facts(build_model_facts(replace(report, cases=(report.cases[0], broken)))))
    assert facts["verdict"] == "FAIL"
    assert facts["exit_code"] == 1
    assert facts["first_wrong"] == "m_layer_MatMul_1"
    assert facts["summary"].startswith("the first wrong layer is MatMul_1")
    assert facts["next"][0].startswith("assay model diff")
    case = facts["cases"][1]
    assert (case["outcome"], case["is_wrong"], case["local"][0]["max_abs"]) == ("mismatch", True, "NaN")
    assert (case["local_error"], case["accumulated_error"], case["sqnr_db"]) == (0.41, 0.41, "-Infinity")
    assert (case["import_s"], case["compile_s"], case["run_s"]) == (0.25, 1.234, 0.0015)
    assert case["diff_commands"] == facts["next"][:1]
    assert case["steps"][1]["step"] == "compile"
    assert case["layer"]["ops"] == ["MatMul"]


# ---------------------------------------------------------------- Markdown


def test_markdown_has_the_answer_the_table_and_the_commands() -> None:
    text = show_markdown(made.bad_report())
    assert text.startswith("## ❌ m on iree: ERROR\n\nthe first wrong layer is MatMul\\_1: t2 is off by")
    assert "| MatMul\\_1 | MatMul | mismatch | 0.41 |" in text
    assert "<details><summary>compile error in Conv_3, Gemm_4" in text
    assert f"$ {made.COMMAND}" in text
    assert "```sh\n# show the numbers\nassay model diff" in text
    assert "- a &lt;note&gt;" in text
    assert show_markdown(made.good_report()).startswith("## ✅ m on iree: PASS")


def test_markdown_of_a_large_model_stays_short() -> None:
    text = show_markdown(made.large_report())
    assert len(text.splitlines()) < 40
    assert "293 layers more, all correct." in text


# ---------------------------------------------------------------- JUnit


def test_junit_distinguishes_failures_from_errors() -> None:
    top = ET.fromstring(show_junit(made.bad_report()))
    assert {name: top.get(name) for name in ("tests", "failures", "errors")} == {
        "tests": "6", "failures": "2", "errors": "2",
    }  # fmt: skip
    (suite,) = top
    assert suite.get("name") == "m on iree"
    cases = {case.get("name"): case for case in suite.iter("testcase")}
    assert list(cases) == [case.name for case in made.bad_report().cases]
    failure = cases["m_layer_MatMul_1"].find("failure")
    assert failure is not None
    assert failure.get("type") == "mismatch"
    assert "assay model diff" in (failure.text or "")
    error = cases["m_layer_Conv_3"].find("error")
    assert error is not None
    assert error.get("type") == "compile error"
    assert f"$ {made.COMMAND}" in (error.text or "")
    assert "line 29" in (error.text or "")
    assert cases["m_layer_Conv_0"].find("failure") is None
    assert cases["m_layer_Conv_0"].find("error") is None
    properties = {each.get("name"): each.get("value") for each in cases["m_layer_MatMul_1"].iter("property")}
    assert properties["local_error"] == "0.41"
    assert properties["run_s"] == "0.0015"


def test_junit_counts_times_that_were_measured_now() -> None:
    top = ET.fromstring(show_junit(made.good_report()))
    times = {case.get("name"): case.get("time") for case in top.iter("testcase")}
    assert times["m_layer_Conv_0"] == "1.734"
    assert times["m_full_model"] == "0.000"


@pytest.mark.parametrize(("kind", "name"), [(VerdictKind.INCONCLUSIVE, "skipped"), (VerdictKind.CHANGED, "failures")])
def test_junit_never_passes_what_is_not_shown_to_be_good(kind: VerdictKind, name: str) -> None:
    odd = Verdict.of([Finding(kind, "x", "odd")], 1)
    top = ET.fromstring(show_junit(made.report(replace(made.good(0), verdict=odd))))
    assert top.get(name) == top[0].get(name) == "1"
    findings = (Finding(kind, "m", "about the whole"),)
    top = ET.fromstring(show_junit(replace(made.good_report(), findings=findings)))
    assert (top.get("tests"), top.get(name)) == ("4", "1")
    assert sum(int(top.get(each, 0)) for each in ("failures", "errors", "skipped")) == 1
    assert ET.fromstring(show_junit(made.report())).get("errors") == "1"


# ---------------------------------------------------------------- what never was computed, or is not decided


def refused_report() -> ModelReport:
    """As it is where the reference cannot compute the model."""
    why = Finding(VerdictKind.ERROR, "m", "the reference ort cannot compute this model: compile error: no")
    left = Finding(VerdictKind.ERROR, "m_layer_Conv_0", "the reference failed: ort cannot compute the model")
    own = replace(made.failed(0), name="m_reference", layer=None, target="ort")
    case = replace(made.good(0), steps=(), local=(), accumulated=(), verdict=Verdict.of([left], 0))
    return made.report(own, case, findings=(why,))


def test_a_reference_that_fails_is_reported_once_and_nothing_is_offered() -> None:
    text = show(refused_report())
    assert text.startswith("ERROR m on iree: the reference ort cannot compute this model")
    assert text.count("cannot compute this model") == 1
    assert "differs" not in text
    assert "reduce it" not in text
    assert made.COMMAND in text


def test_a_layer_that_is_not_decided_does_not_differ() -> None:
    finding = Finding(VerdictKind.INCONCLUSIVE, "m_layer_Conv_0", "this layer cannot be computed alone: it is an If")
    case = replace(made.good(0), steps=(), local=(), verdict=Verdict.of([finding], 0))
    text = show(made.report(case, made.whole()))
    assert "Conv_0 is not decided:" in text
    assert "differs" not in text


# ---------------------------------------------------------------- how to get there again


def test_what_is_offered_asks_for_the_same() -> None:
    report = made.report(
        made.wrong(1), manner="--reference ort --target iree --tolerance rel=0.1", origin="--dim x=1,2"
    )
    assert dict(build_next_steps(report))["reduce it"] == (
        "assay model reduce 'models/my model.onnx' --reference ort --target iree --tolerance rel=0.1 --dim x=1,2"
    )


def test_a_reduction_offers_its_own_command() -> None:
    report = made.report(made.wrong(1), command="assay model check small.onnx --target iree")
    steps = dict(build_next_steps(report))
    assert steps["reproduce it"] == "assay model check small.onnx --target iree"
    assert "reduce it" not in steps
    assert describe_outcome(report).startswith("the smallest model that fails is one Conv, Conv_1: t2 is off by 0.41")
    several = made.report(replace(made.whole(0.4, VerdictKind.FAIL), name="m_reduced"), command="assay …")
    assert describe_outcome(several).startswith("the smallest model that fails is made of several nodes: ")


def test_versions_are_short_for_people() -> None:
    tools = {"onnxruntime": "1.31.1 ORT Build Info: x", "cpu": "AMD EPYC 0c31", "optimize": "none"}
    tools |= {"run: words": "/opt/run -O2", "run: /opt/run": "7c5ec3c514ada708", "run: version": "run 1.0"}
    found = describe_surroundings(made.report(tools=tools))
    assert found == "onnxruntime 1.31.1, optimize none, run: version run 1.0, 12s"


# ---------------------------------------------------------------- what only the whole shows


def test_a_layer_that_is_right_where_the_whole_is_wrong_is_reported_by_the_whole() -> None:
    """Nothing that the layer shows is wrong: beginnings of the model with it are."""
    case = replace(made.good(3, "Relu"), accumulated=())
    whole = made.whole(0.05, VerdictKind.FAIL)
    report = made.report(case, whole, first_wrong=case.name, confirmed=False)
    assert describe_outcome(report) == (
        "the model is wrong with Relu_3: logits is off by 0.05 of its scale (3 of 8 elements); "
        "correct in isolation: suspect a fusion"
    )


def test_a_layer_that_cannot_stand_alone_is_reported_by_the_failure_of_the_whole() -> None:
    alone = made.good(2, "ConcatFromSequence")
    finding = Finding(VerdictKind.INCONCLUSIVE, alone.name, "this layer cannot be computed alone: 'q' is not a tensor")
    case = replace(alone, verdict=Verdict.of([finding], 0), steps=(), local=(), accumulated=())
    full = replace(made.failed(0), name="m_full_model", layer=None)
    report = made.report(case, full, first_wrong=case.name, confirmed=None)
    assert describe_outcome(report) == (
        "the model is wrong with ConcatFromSequence_2: compile error: failed to legalize 'onnx.Foo'; "
        "this layer cannot be computed alone: 'q' is not a tensor"
    )


# ---------------------------------------------------------------- what has no size


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"dtype": ("int64", "int32")}, "dtype int32 instead of int64"),
        ({"shape": ((2, 4), (4, 2)), "count": 0}, "shape [4, 2] instead of [2, 4]"),
        ({"misplaced": 2, "nan": (0, 2)}, "2 are NaN where a number is expected"),
        ({}, "cosine 0.5, at least 0.9 is required"),
    ],
)
def test_what_is_no_matter_of_size_is_reported_in_words(more: dict[str, object], message: str) -> None:
    verdict = Verdict.of([Finding(VerdictKind.FAIL, "t1", message)], 8)
    compared = made.comparison("t1", 0.0, VerdictKind.FAIL, verdict=verdict, wrong=0, **more)
    case = replace(made.wrong(0), verdict=verdict, local=(compared,), accumulated=())
    report = made.report(case, first_wrong=case.name, confirmed=True)
    assert describe_outcome(report).startswith(f"the first wrong layer is Conv_0: t1: {message}")


def test_the_line_of_a_case_is_about_the_output_whose_error_it_shows() -> None:
    near = made.comparison("near", 0.1, VerdictKind.FAIL)
    far = made.comparison("far", math.inf, VerdictKind.FAIL, shape=((2, 4), (4, 2)))
    found = (*near.verdict.findings, *far.verdict.findings)
    line = render_case_line(replace(made.wrong(0), verdict=Verdict.of(found, 2), local=(near, far)))
    assert "error inf" in line
    assert ": far: 3 of 8" in line
    assert "near" not in line


def test_of_many_mismatches_the_whole_is_reported_with_all_its_commands() -> None:
    pairs = tuple((f"/t/{number}/e.npy", f"/t/{number}/a.npy") for number in range(3))
    whole = replace(made.whole(0.4, VerdictKind.FAIL), diffs=pairs)
    text = show(made.report(*(made.wrong(number) for number in range(6)), whole, first_wrong="m_layer_Conv_0"))
    for expected, actual in pairs:
        assert f"assay model diff {expected} {actual}" in text
    assert "the same applies to Conv_2, Conv_3, Conv_4, Conv_5 (--json has the commands that show them)" in text


# ---------------------------------------------------------------- small words


@pytest.mark.parametrize(
    ("command", "line"),
    [
        (
            "openvino.Core().compile_model('m.onnx', 'CPU', {})",
            ">>> openvino.Core().compile_model('m.onnx', 'CPU', {})",
        ),
        ("onnxruntime.InferenceSession('m.onnx')", ">>> onnxruntime.InferenceSession('m.onnx')"),
        ("iree-compile 'a (1).mlir' -o x", "$ iree-compile 'a (1).mlir' -o x"),
        ("cd /x && ./run", "$ cd /x && ./run"),
    ],
)
def test_a_command_reports_where_it_is_to_be_pasted(command: str, line: str) -> None:
    outcome = replace(made.COMPILE_ERROR, command=command)
    report = made.report(made.failed(0, outcome=outcome))
    assert f"  {line}\n" in show(report)
    assert f"\n{line}\n" in show_markdown(report)
    assert line in html.unescape(show_junit(report))
    assert line in html.unescape(show_page(report))


def test_a_program_s_notice_is_cut_before_its_licence() -> None:
    said = "GNU bash, version 5.2.15(1)-release (x86_64-pc-linux-gnu) Copyright (C) 2022 Free Software Foundation, Inc."
    text = show(made.report(made.good(0), tools={"run: version": said, "long": "x" * 300}))
    assert "run: version GNU bash, version 5.2.15(1)-release (x86_64-pc-linux-gnu)," in text
    assert "Free Software" not in text
    assert "x" * 100 not in text


def test_the_run_is_named_whatever_the_verdict() -> None:
    for report in (made.good_report(), made.bad_report()):
        assert show(replace(report, run_dir="/runs/model/m_1")).endswith("\nkept in /runs/model/m_1\n")


def test_nodes_are_shown_by_their_own_names_where_there_is_room() -> None:
    case = made.good(0, "Conv", "Clip")
    named = replace(case, layer=replace(made.layer(0, "Conv", "Clip"), node_names=("/enc/conv", "/enc/clip")))
    report = made.report(named, made.good(1), made.whole())
    assert cells_of(show(report, 140), "Conv_0")["node"] == "/enc/conv+/enc/clip"
    assert "/enc" not in show(report, 80)
    assert "node" not in show(made.good_report(), 140)
    assert "/enc/conv+/enc/clip" in show_page(report)
    assert build_model_facts(report)["cases"][0]["layer"]["node_names"] == ("/enc/conv", "/enc/clip")


def test_a_model_that_is_only_copied_has_no_compile_time() -> None:
    case = made.good(0)
    steps = tuple(replace(each, command="cp m.onnx") if each.step is Step.COMPILE else each for each in case.steps)
    assert "compile ms" in show(made.report(case))
    assert "compile ms" not in show(made.report(replace(case, steps=steps)))


# ---------------------------------------------------------------- what was not asked for, and where it is typed


@pytest.mark.parametrize(
    ("unseen", "said"),
    [
        (0, "the first wrong layer is Relu_2: compile error: failed to legalize 'onnx.Foo'"),
        (1, "Relu_2 is wrong: compile error: failed to legalize 'onnx.Foo'; the layer before it was not requested"),
        (2, "Relu_2 is wrong: compile error: failed to legalize 'onnx.Foo'; 2 layers before it were not requested"),
    ],
)
def test_the_first_that_was_tried_is_not_called_the_first(unseen: int, said: str) -> None:
    report = made.report(made.failed(2, "Relu"), first_wrong="m_layer_Relu_2", unseen=unseen, confirmed=True)
    assert describe_outcome(report) == said


def test_of_a_crash_of_python_the_innermost_frames_are_shown() -> None:
    ours = [f'  File "/assay/probe/worker.py", line {number} in f{number}' for number in range(20)]
    trace = ["Fatal Python error: Aborted", "", "Current thread 0x1 (most recent call first):"]
    said = "\n".join(["before", *trace, '  File "/home/mine.py", line 7 in perform', *ours, "Extension modules: a, b"])
    shown = build_tail(made.step(Step.COMPILE, StepEnding.CRASH, stderr=said), 8)
    assert shown[0] == "Fatal Python error: Aborted"
    assert '  File "/home/mine.py", line 7 in perform' in shown
    assert len(shown) == 8
    assert build_tail(made.step(Step.COMPILE, StepEnding.CRASH, stderr="\n".join(ours)), 8)[-1] == ours[-1]


def test_commands_go_where_they_are_to_be_typed_first() -> None:
    report = replace(made.bad_report(), folder="/my project", model="/my project/models/a b.onnx", origin="--input x")
    (command,) = [text for what, text in build_next_steps(report) if what == "reduce it"]
    assert command == (
        "cd '/my project' && assay model reduce 'models/a b.onnx' --reference ort --target iree --input x"
    )
    elsewhere = dict(build_next_steps(replace(report, model="/other/m.onnx")))["reduce it"]
    assert "assay model reduce /other/m.onnx " in elsewhere
    small = dict(build_next_steps(replace(report, command="assay model check small.onnx")))
    assert small["reproduce it"] == "cd '/my project' && assay model check small.onnx"


def test_a_case_without_a_reference_is_not_compared() -> None:
    left = Finding(VerdictKind.ERROR, "m_layer_Conv_0", "the reference failed: ort cannot compute the model")
    case = CaseReport("m_layer_Conv_0", "iree", Verdict.of([left], 0), made.layer(0))
    assert case.outcome == "not compared"
    line = render_case_line(case)
    assert line == "not compared   m_layer_Conv_0: the reference failed: ort cannot compute the model"
    assert cells_of(show(made.report(case)), "Conv_0")["outcome"] == "not compared"


def test_columns_that_nothing_has_are_left_out() -> None:
    text = show(made.report(made.failed(0), made.failed(1)))
    assert "run ms" not in text
    assert "compile error" in text
    assert "run ms" in show(made.report(made.failed(0), made.good(1)))
