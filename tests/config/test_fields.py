"""Durations and sizes, and what a value is called in a message."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.config.fields import describe
from assay.config.source import parse_documents
from assay.values.units import parse_duration, parse_size


@pytest.mark.parametrize("text", ["", "soon", "h", "1x", "-1s", "1h soon", "1..5s", "1,5h", "h1"])
def test_no_durations(text):
    assert parse_duration(text) is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("90s", 90),
        ("2h", 7200),
        ("1h30m", 5400),
        ("1h 30min", 5400),
        ("1.5d", 129600),
        ("500ms", 0.5),
        (" 3m ", 180),
    ],
)
def test_durations(text, seconds):
    assert parse_duration(text) == pytest.approx(seconds)


@given(st.integers(0, 99), st.integers(0, 59), st.integers(0, 59))
def test_durations_add_up(hours, minutes, seconds):
    assert parse_duration(f"{hours}h{minutes}m{seconds}s") == hours * 3600 + minutes * 60 + seconds


@pytest.mark.parametrize("text", ["", "lots", "GB", "-1GB", "1XB", "1 G B"])
def test_no_sizes(text):
    assert parse_size(text) is None


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("512", 512),
        ("10GB", 10**10),
        ("10 GiB", 10 * 2**30),
        ("1.5k", 1500),
        ("1Mi", 2**20),
        ("2tb", 2 * 10**12),
    ],
)
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "words"),
    [("[1]", "a list"), ("{a: 1}", "a mapping"), ("", "nothing"), ("x", "the text 'x'"), ("1.50", "1.50")],
)
def test_values_are_described_as_written(text, words):
    assert describe(parse_documents(f"a: {text}\n", "f.yml")[0].items()[0].node) == words
