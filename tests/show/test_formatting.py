from __future__ import annotations

import io
import json
import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.show import formatting


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (0.12, 4, "0.12"),
        (0.1234567, 4, "0.1235"),
        (0.1234567, None, "0.1234567"),
        (99.0, 4, "99"),
        (123456.789, 4, "123457"),
        (1234567890123.0, 3, "1234567890123"),
        (0.0001, 4, "0.0001"),
        (0.00012345, 4, "0.0001234"),
        (0.00001, 4, "1e-5"),
        (1.5e-7, 4, "1.5e-7"),
        (1e-5, None, "1e-5"),
        (1e20, 4, "1e20"),
        (-0.5, 4, "-0.5"),
        (0.0, 4, "0"),
        (7, 2, "7"),
        (123456789, 2, "123456789"),
        (math.nan, 4, "nan"),
        (-math.inf, 4, "-inf"),
    ],
)
def test_numbers_are_plain_and_short(value, digits, text):
    assert formatting.render_number(value, digits) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_without_a_digit_limit_reads_back_exactly(value):
    assert float(formatting.render_number(value, None)) == value


@given(st.floats(min_value=1e-4, max_value=1e14), st.integers(2, 8))
def test_a_rounded_number_keeps_its_significant_digits_and_has_no_exponent(value, digits):
    text = formatting.render_number(value, digits)
    assert "e" not in text
    assert math.isclose(float(text), value, rel_tol=0.51 * 10.0 ** (1 - digits))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0:00"),
        (311, "5:11"),
        (3723, "1:02:03"),
        (59.6, "1:00"),
        (3599.7, "1:00:00"),
        (-61, "-1:01"),
        (-0.2, "0:00"),
        (360000, "100:00:00"),
        (math.nan, "-"),
    ],
)
def test_clock(seconds, text):
    assert formatting.render_clock(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.0002, "1ms"),
        (0.012, "12ms"),
        (0.8, "0.8s"),
        (9.94, "9.9s"),
        (9.96, "10s"),
        (42.4, "42s"),
        (59.7, "1m"),
        (311, "5m 11s"),
        (3599.8, "1h"),
        (7380, "2h 3m"),
        (86399, "1d"),
        (3 * 86400 + 4 * 3600, "3d 4h"),
        (-5, "-5.0s"),
        (math.inf, "-"),
    ],
)
def test_duration(seconds, text):
    assert formatting.render_duration(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (1024**2 - 1, "1 MiB"),
        (150 * 1024**2, "150 MiB"),
        (1.5 * 1024**3, "1.5 GiB"),
        (-2048, "-2 KiB"),
        (5000 * 1024**5, "5000 PiB"),
    ],
)
def test_size(size, text):
    assert formatting.render_size(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3, "just now"),
        (2, "just now"),
        (42, "42 s ago"),
        (150, "2 min ago"),
        (3600 * 3 + 5, "3 h ago"),
        (86400, "1 day ago"),
        (86400 * 40, "40 days ago"),
    ],
)
def test_age(seconds, text):
    assert formatting.render_age(seconds) == text


def test_count_agrees_in_number():
    assert formatting.render_count(1, "run") == "1 run"
    assert formatting.render_count(3, "run") == "3 runs"
    assert formatting.render_count(0, "run") == "0 runs"
    assert formatting.render_count(2, "entry", "entries") == "2 entries"


def test_clean_makes_one_printable_line():
    assert formatting.clean("a\nb\tc\x1b[31m") == r"a\nb\tc\x1b[31m"
    assert formatting.clean("\udcff.py") == r"\xff.py"
    assert formatting.clean("naïve 数据") == "naïve 数据"


@given(st.text(alphabet=st.characters(codec=None, categories=None)))
def test_clean_is_always_printable_and_encodable(text):
    cleaned = formatting.clean(text)
    assert cleaned.isprintable()
    cleaned.encode("utf-8")


def test_width_of_wide_and_combining_characters():
    assert formatting.display_width("abc") == 3
    assert formatting.display_width("数据") == 4
    assert formatting.display_width("é") == 1
    assert formatting.pad("数", 4) + "|" == "数  |"
    assert formatting.pad("数", 4, "right") == "  数"


def test_shorten_keeps_both_ends():
    assert formatting.shorten("norm_batch-lr_0.1-seed_3", 12) == "norm_b…eed_3"
    assert formatting.shorten("short", 5) == "short"
    assert formatting.shorten("数据数据数据", 7) == "数…数据"
    assert formatting.shorten("abc", 1) == "a"
    assert formatting.shorten("abc", 0) == ""


@given(st.text(alphabet="ab数é́…", max_size=30), st.integers(0, 20))
def test_shorten_never_exceeds_the_width_and_keeps_what_fits(text, width):
    short = formatting.shorten(text, width)
    assert formatting.display_width(short) <= width
    if formatting.display_width(text) <= width:
        assert short == text


PROSE = "The program and the study are in assay-demo/charlm: it trains a small language model with numpy."


@given(st.text(alphabet="ab c`:", max_size=80), st.integers(5, 40))
def test_wrapping_loses_nothing_but_spaces(text, width):
    assert formatting.wrap(text, width).split() == text.split()


@pytest.mark.parametrize("width", [30, 45, 200])
def test_prose_is_broken_between_words(width):
    lines = formatting.wrap(PROSE, width, "  ").split("\n")
    assert max(map(len, lines)) <= width
    assert " ".join(line.strip() for line in lines) == PROSE
    assert all(line.startswith("  ") for line in lines[1:])


def test_what_people_copy_stays_in_one_piece():
    command = "assay index reparse my-study --file study.yml --root somewhere/else"
    text = f"say where they are, then read the logs again with it: {command}"
    assert command in formatting.wrap(text, 40).split("\n")
    assert "`assay run sweep.yml`" in formatting.wrap("kill the supervisor, then call `assay run sweep.yml` again", 40)
    assert formatting.wrap(f"  {command}", 40) == f"  {command}"


def test_without_a_width_nothing_is_wrapped():
    assert formatting.wrap(PROSE, None) == PROSE


def test_each_line_is_wrapped_with_its_own_margin():
    assert formatting.wrap("one\n    two three four", 14) == "one\n    two three\n    four"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("a_b*c", "a\\_b\\*c"),
        ("two\n lines", "two lines"),
        ("<b>|`x`", "&lt;b&gt;\\|\\`x\\`"),
        ("\\", "\\\\"),
    ],
)
def test_markdown_shows_words_as_they_are(text, shown):
    assert formatting.escape_markdown(text) == shown


@pytest.mark.parametrize("text", ["=1+1", "+x", "@SUM(A1)", "\t=9", "-2+3", "--flag", "=", "-", " =1", "\uff1d1"])
def test_a_spreadsheet_takes_no_text_for_a_formula(text):
    assert formatting.escape_csv(text) == f"'{text}"


@pytest.mark.parametrize(
    "value", ["plain", "-1", "+3e-4", "-.5", "a=b", "", "-inf", -1, -0.5, None, True, float("nan")]
)
def test_numbers_and_plain_texts_are_no_formulas(value):
    assert formatting.escape_csv(value) is value or formatting.escape_csv(value) == value


def test_json_keeps_its_values_and_holds_nothing_that_a_terminal_obeys():
    value = {"a\x9b": "b\u202e\ud800ü\x1b"}
    text = formatting.escape_json(json.dumps(value, ensure_ascii=False))
    assert not re.search(formatting.UNSAFE, text)
    assert json.loads(text) == value


def test_several_lines_stay_several_lines():
    assert formatting.clean_lines("a\x1b[2J\n\tb\rc\u202e\n") == "a\\x1b[2J\n\tb\\rc\\u202e\n"


def test_a_guarded_stream_passes_on_colours_only_where_colours_are_used(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    colored = io.StringIO()
    formatting.guard(colored).write("\x1b[31mred\x1b[0m \x1b[2J\x9b\r\n")
    assert colored.getvalue() == "\x1b[31mred\x1b[0m \\x1b[2J\\x9b\\r\n"
    monkeypatch.setenv("NO_COLOR", "1")
    plain = io.StringIO()
    guarded = formatting.guard(plain)
    print("\x1b[31mred", file=guarded)
    assert plain.getvalue() == "\\x1b[31mred\n"
    assert formatting.unguard(guarded) is plain
    assert formatting.guard(guarded) is guarded


def test_what_is_not_finite_becomes_a_word() -> None:
    value = {"a": math.nan, "b": [math.inf, (-math.inf,)], 3: Path("/x")}
    assert json.loads(formatting.render_facts(value)) == {"a": "NaN", "b": ["Infinity", ["-Infinity"]], "3": "/x"}


@given(st.recursive(st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(), st.lists))
def test_everything_else_stays(value: object) -> None:
    assert formatting.to_json(value) == value
    assert json.loads(formatting.render_facts(value)) == value
