"""The fast search over blocks must find what a search line by line finds."""

from __future__ import annotations

import json
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.observe.points import MetricPoint, build_points

from assay.errors import UsageError
from assay.observe import extract
from assay.observe.extract import LINE_LIMIT_BYTES, Extractor, LineRegex
from assay.values.series import NUMBER
from assay.values.study import Pattern, Position

STEP = Pattern("step", r"step (\d+)")
LOSS = Pattern("loss", rf"loss[= ]({NUMBER})")
ACC = Pattern("acc", rf"acc[= ]({NUMBER})")
BOTH = Pattern("any", r"loss (?P<loss>\S+) at (?P<step>\d+)")
EPOCH = Pattern("epoch", r"epoch (\d+)")
IT = Pattern("step", r"it\[(\d+)\]")
NLL = Pattern("loss", r"nll (\S+)")


def run(patterns, text, command=None):
    extractor = Extractor(patterns, command)
    data = text if isinstance(text, bytes) else text.encode()
    return build_points(extractor.feed(data)) + build_points(extractor.finish())


def rows(points):
    return [(point.metric, point.step, point.value) for point in points]


@pytest.mark.parametrize(
    ("patterns", "text", "losses"),
    [
        ([STEP, LOSS], "loss=9\nstep 1 loss=0.5\nstep 2\nloss=0.4\n", [(None, 9.0), (1.0, 0.5), (2.0, 0.4)]),
        # a step to the right counts for its whole line
        ([STEP, LOSS], "step 1\nloss=0.5 step 2\nloss=0.4 (step 3)\n", [(2.0, 0.5), (3.0, 0.4)]),
        # of several steps on a line each counts for the values after it
        ([STEP, LOSS], "loss=0 step 1 loss=1 step 2 loss=2\n", [(1.0, 0.0), (1.0, 1.0), (2.0, 2.0)]),
        # a step and a value in one match belong together
        ([BOTH], "loss 0.5 at 1, loss 0.4 at 2\nx\n", [(1.0, 0.5), (2.0, 0.4)]),
        # an epoch is the position only where there is no step
        ([EPOCH, LOSS], "epoch 3 loss=1\n", [(3.0, 1.0)]),
        ([EPOCH, STEP, LOSS], "epoch 3 step 70 loss=1\n", [(70.0, 1.0)]),
        ([LOSS], "step 1 loss=1\n", [(None, 1.0)]),
        # several patterns for the step, and for one metric, are read in the order of the log
        ([STEP, IT, LOSS], "it[1] loss=1\nstep 2 loss=2\nit[3] loss=3\n", [(1.0, 1.0), (2.0, 2.0), (3.0, 3.0)]),
        ([STEP, LOSS, NLL], "step 1 loss=1 nll 2\nnll 3\nloss=4\n", [(1.0, 1.0), (1.0, 2.0), (1.0, 3.0), (1.0, 4.0)]),
        ([STEP, LOSS], "\r 10%|#    | step 1 loss=0.5\r 20%|██   | step 2 loss=0.4\r\n", [(1.0, 0.5), (2.0, 0.4)]),
        ([STEP, LOSS], b"\xff\xfe step 1 \xc3 loss=0.5\n\x80loss=2\n", [(1.0, 0.5), (1.0, 2.0)]),
    ],
)
def test_the_step_of_a_value(patterns, text, losses):
    assert rows(run(patterns, text)) == [("loss", *each) for each in losses]


def test_each_metric_has_the_last_step():
    assert rows(run([STEP, LOSS, ACC], "step 1 loss=0.5\nacc=0.1\n")) == [("loss", 1.0, 0.5), ("acc", 1.0, 0.1)]


def test_a_step_that_is_not_finite_is_skipped():
    extractor = Extractor([Pattern("step", r"step (\S+)"), LOSS])
    assert rows(build_points(extractor.feed(b"step 1\nstep nan loss=1\n"))) == [("loss", 1.0, 1.0)]
    assert (extractor.skipped, extractor.example) == (1, "step: 'nan'")


@pytest.mark.parametrize(
    ("regex", "labels", "found"),
    [
        (r"(\d) ", (), {"m": 1.0}),
        (r"\d(?= )", (), {"m": 1.0}),
        (r"(\d) ", ("a",), {"m.a": 1.0}),
        (r"(\d) (\d)", ("a", "b"), {"m.a": 1.0, "m.b": 2.0}),
        (r"(\d) (\d)", ("a",), {"m.0": 1.0, "m.1": 2.0}),
        (r"(\d) (\d)", (), {"m.0": 1.0, "m.1": 2.0}),
        (r"(\d) ", ("a", "b"), {"m.0": 1.0}),
        (r"(?P<x>\d) (\d)", (), {"x": 1.0}),
        (r"(1) (?P<loss>\d)", (), {"loss": 2.0}),
    ],
)
def test_names_of_a_patterns_metrics(regex, labels, found):
    assert {each.metric: each.value for each in run([Pattern("m", regex, labels=labels)], "1 2\n")} == found


def test_a_group_that_takes_no_part_says_nothing():
    pattern = Pattern("loss", r"loss (?:(?P<a>\d+)|<(?P<b>\d+)>)")
    extractor = Extractor([pattern])
    assert rows(build_points(extractor.feed(b"loss 1\nloss <2>\n"))) == [("a", None, 1.0), ("b", None, 2.0)]
    assert extractor.skipped == 0


def test_patterns_of_another_command_are_left_out():
    only_test = Pattern("loss", r"loss=(\S+)", command="test")
    assert run([only_test], "loss=1\n", "train") == []
    assert rows(run([only_test], "loss=1\n", "test")) == [("loss", None, 1.0)]
    assert rows(run([only_test], "loss=1\n")) == [("loss", None, 1.0)]


def test_a_broken_expression_says_where_it_stands():
    with pytest.raises(UsageError, match=r"sweep.yml:3:7 metrics.loss: not a regular expression"):
        Extractor([Pattern("loss", "(", position=Position("sweep.yml", 3, 7))])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1.0),
        ("-0.5", -0.5),
        ("+2.5", 2.5),
        (".5", 0.5),
        ("5.", 5.0),
        ("1e-4", 1e-4),
        ("-1.5E+10", -1.5e10),
        ("inf", math.inf),
        ("-inf", -math.inf),
        ("Infinity", math.inf),
        ("-Infinity", -math.inf),
        ("1e999", math.inf),
    ],
)
def test_numbers(text, value):
    assert rows(run([LOSS], f"loss={text} rest\n")) == [("loss", None, value)]


@pytest.mark.parametrize("text", ["nan", "NaN", "NAN", "-nan"])
def test_not_a_number_is_a_value(text):
    (point,) = run([LOSS], f"loss={text}\n")
    assert math.isnan(point.value)


@pytest.mark.parametrize("text", ["1,000", "1_000", "abc", "0.5%", "--", "0x10"])
def test_what_is_not_a_number_is_skipped_and_counted(text):
    extractor = Extractor([Pattern("loss", r"loss=(\S+)")])
    _, values, _ = extractor.feed(f"loss=1\nloss={text}\nloss=other\nloss=2\n".encode())["loss"]
    assert list(values) == [1.0, 2.0]
    assert (extractor.skipped, extractor.example) == (2, f"loss: {text!r}")


@pytest.mark.parametrize("text", ["0,17", "-0,5", "2,35", "1,234", "12,345.5", "3,1415", "1234,567", "1,5e-3"])
@pytest.mark.parametrize("rest", ["", ", acc=1", ".", " it.*"])
def test_a_part_of_a_number_with_commas_is_skipped_and_counted(text, rest):
    for regex in ("loss=({})", "(?m:)loss=({})", "loss=({}).*"):  # the second is searched line by line
        extractor = Extractor([Pattern("loss", regex.format(NUMBER))])
        columns = extractor.feed(f"loss=0.5\nloss={text}{rest}\nloss=2,\n".encode())
        assert list(columns["loss"][1]) == [0.5, 2.0]
        assert (extractor.skipped, extractor.example) == (1, f"loss: {text!r}")


def test_two_numbers_with_a_comma_between_them_are_two():
    pair = Pattern("x", f"x=({NUMBER}),({NUMBER})")
    assert rows(run([pair], "x=0,5\nx=1,234\n")) == [
        ("x.0", None, 0.0), ("x.0", None, 1.0), ("x.1", None, 5.0), ("x.1", None, 234.0)
    ]  # fmt: skip
    for regex in (r"x=(\d+),\d+", r"x=(?P<x>\d+)\D(?P<y>\d+)"):
        assert run([Pattern("x", regex)], "x=2,35\n"), "the pattern names what is between the two"
    assert rows(run([LOSS], "loss=2, 35\nloss=1,2,3\n")) == [("loss", None, 2.0), ("loss", None, 1.0)]


@pytest.mark.parametrize("regex", [r"Genauigkeit für: (\S+)", r"f[üu]r: (\S+)", r"für+: (\S+)", r"\w+ \w+: (\S+)"])
def test_patterns_and_logs_with_other_letters(regex):
    assert rows(run([Pattern("acc", regex)], "Genauigkeit für: 0.5\n")) == [("acc", None, 0.5)]


def test_a_last_line_without_an_end_waits_for_the_rest_or_for_finish():
    extractor = Extractor([LOSS])
    assert extractor.feed(b"loss=0.1") == {}
    assert rows(build_points(extractor.feed(b"5\nloss=2"))) == [("loss", None, 0.15)]
    assert rows(build_points(extractor.finish())) == [("loss", None, 2.0)]
    assert extractor.finish() == {}


def test_a_line_without_an_end_is_cut_at_its_limit_wherever_the_chunks_end():
    data = b"x" * (LINE_LIMIT_BYTES - 9) + b" loss=123" + b"4 loss=5\n"
    whole = run([LOSS], data)
    assert [point.value for point in whole] == [123.0, 5.0]
    extractor = Extractor([LOSS])
    pieces = [data[start : start + 300_000] for start in range(0, len(data), 300_000)]
    assert [point for piece in pieces for point in build_points(extractor.feed(piece))] == whole
    assert len(extractor.state["tail"]) == 0


def test_blocks_do_not_change_the_points(monkeypatch):
    lines = "".join(f"step {n}\nloss={n}\nacc={n} step {n}.5\n" for n in range(200))
    whole = run([STEP, LOSS, ACC], lines)
    monkeypatch.setattr(extract, "SCAN_BYTES", 64)
    assert len(whole) == 400
    assert run([STEP, LOSS, ACC], lines) == whole


PIECES = b"step 1|step 22 |loss=0.5|loss=nan| acc=|0.25|x|\n|\r|\r\n|\n\n|\xc3\xbc|\xff|loss=?".split(b"|")
PATTERNS = [STEP, Pattern("loss", r"loss=(\S+)"), Pattern("acc", r"acc=([^\s]+)"), Pattern("acc", r"[ü ]acc=\s?(\d)")]


@given(st.lists(st.sampled_from(PIECES), max_size=40).map(b"".join), st.data())
def test_any_split_of_the_log_gives_the_same_points_through_saved_states(log, data):
    whole = Extractor(PATTERNS)
    expected = build_points(whole.feed(log)) + build_points(whole.finish())
    cuts = sorted(data.draw(st.lists(st.integers(0, len(log)), max_size=6)))
    found: list[MetricPoint] = []
    extractor = Extractor(PATTERNS)
    for start, end in zip([0, *cuts], [*cuts, len(log)], strict=True):
        state = json.loads(json.dumps(extractor.state))
        extractor = Extractor.restore(PATTERNS, None, state)
        found += build_points(extractor.feed(log[start:end]))
    found += build_points(extractor.finish())
    for metric in ("loss", "acc"):  # repr: nan differs from itself
        mine, theirs = ([each for each in points if each.metric == metric] for points in (found, expected))
        assert repr(mine) == repr(theirs)
    assert extractor.state == whole.state


def test_an_empty_state_is_a_fresh_start():
    extractor = Extractor.restore([LOSS], None, {})
    assert rows(build_points(extractor.feed(b"loss=1\n"))) == [("loss", None, 1.0)]


BULK = [
    *(r"step (\d+)", r"loss:\s+(\S+)", r"loss\W+(\d)", r"a\D*(\d)", r"\[([^]]+)\]", r"a([^,]*),", r"^(\d+)$"),
    *(r"\A(\d+)\Z", r"(?<!\s)a(\d)", r"(?<=\s)a(\d)", r"a(\d)(?!\s)", r"a(\d)(?=\s|$)", r"(?i:LOSS) (\d)"),
    *(r"(a)\1(\d)", r"(?P<x>a+)(?P=x)?(\d)", r"é+(\d)", r"[éa]+(\d)", r"[^\sa]+(\d)", r"[^a-](\d)"),
    *(r"\bloss\b (\d)", r"a{1,2}(\d)", r"(?>a+)(\d)"),
]
BY_LINE = [
    r"a[\s,]*(\d)",
    r"a[\W](\d)",
    r"(?s)a.*?(\d)",
    r"(?x) a \s (\d)",
    r"a\n(\d)",
    r"a\x0a(\d)",
    r"a[\x00-\x20](\d)",
    r"a(?#[^ignored)\s(\d)",
    r"[^-a-](\d)",
]


def find_by_line(regex: str, text: str) -> list[tuple[int, str]]:
    found = []
    for line in re.finditer(r"[^\n]+", text):
        found += [(line.start() + match.start(), match[match.re.groups]) for match in re.finditer(regex, line[0])]
    return found


def find(regex: str, text: str) -> list[tuple[int, str]]:
    compiled = LineRegex(regex)
    found = compiled.find(text)
    return list(zip(found.starts(), found.texts(compiled.regex.groups), strict=True))


@pytest.mark.parametrize("regex", BULK)
def test_expressions_that_cannot_see_a_newline_run_over_blocks(regex):
    assert LineRegex(regex)._bulk is not None


@pytest.mark.parametrize("regex", BY_LINE)
def test_expressions_that_might_see_a_newline_run_by_line(regex):
    assert LineRegex(regex)._bulk is None


@given(
    st.sampled_from(BULK + BY_LINE),
    st.lists(
        st.sampled_from(["a", "aa", "é", " ", "\t", "\n", "\n\n", "1", "23", ",", "[", "]", "-", "loss", ":", "step "]),
        max_size=30,
    ).map("".join),
)
def test_blocks_and_lines_give_the_same_matches(regex, text):
    # a newline at the very end makes no line: an empty match there is ignored by the reader
    assert [pair for pair in find(regex, text + "\n") if pair[1]] == [
        pair for pair in find_by_line(regex, text) if pair[1]
    ]


def test_a_match_never_spans_lines():
    assert find(r"loss\s+(\d+)", "loss\n5\nloss 6\n") == [(7, "6")]
    assert find(r"x([^,]*)", "x1\n2,\n") == [(0, "1")]


def test_a_newline_inside_a_negated_class_that_begins_with_a_bracket():
    assert find(r"[^]]+(\d)", "a]b1\nc2\n") == [(2, "1"), (5, "2")]
