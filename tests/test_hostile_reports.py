"""Reports in which every text is hostile, in every format."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from tests.bench.report.test_executions import CASES
from tests.bench.report.test_history import build_history
from tests.golden.report import golden_reports
from tests.models.report import model_reports

from assay.bench.report.executions import build_bench_document
from assay.bench.report.history import build_history_document
from assay.golden.report.document import build_document as build_golden
from assay.models.report.check import build_model_facts
from assay.show.formatting import UNSAFE, render_facts
from assay.show.html import render_html
from assay.show.junit import render_junit
from assay.show.markdown import render_markdown
from assay.show.terminal_report import render_terminal

TRICKS = "\x1b]0;owned\x07\x1b[2J\x9b1m<script>alert(1)</script>\"'><img src=x onerror=alert(1)>|`x`[l](javascript:1)\u202e\r\n# h"
KEPT = {"min", "max", "loss", ""}  # words that mean something to us
KEPT_FIELDS = {"mode", "direction", "op"}


def poison(value: Any) -> Any:
    """The value with the tricks behind every text."""
    if isinstance(value, str) and not isinstance(value, Enum):
        return value if value in KEPT else f"{value}{TRICKS}"
    if is_dataclass(value) and not isinstance(value, type):
        found = {each.name: poison(getattr(value, each.name)) for each in fields(value) if each.init}
        return replace(value, **{name: each for name, each in found.items() if name not in KEPT_FIELDS})
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(poison, value))
    if isinstance(value, (tuple, list)):
        return type(value)(map(poison, value))
    if isinstance(value, Mapping):
        return {poison(key) if isinstance(key, str) else key: poison(each) for key, each in value.items()}
    return value


GOLDEN, MODEL = build_golden(poison(golden_reports.bad_report())), poison(model_reports.bad_report())
HISTORY = build_history_document(TRICKS, [poison(build_history())])
CASES_DOCUMENT = build_bench_document(TRICKS, poison(CASES), (), None)

TEXTS: dict[str, Callable[[], str]] = {
    "golden": lambda: render_terminal(GOLDEN, width=100),
    "model": lambda: model_reports.show(MODEL, width=100, every=True),
    "history": lambda: render_terminal(HISTORY, width=100),
    "golden json": lambda: render_facts(GOLDEN.facts),
    "model json": lambda: render_facts(build_model_facts(MODEL)),
}
MARKDOWN = {
    "golden": lambda: render_markdown(GOLDEN),
    "model": lambda: model_reports.show_markdown(MODEL),
    "bench": lambda: render_markdown(CASES_DOCUMENT),
}
MARKUP = {"golden": lambda: render_html(GOLDEN), "model": lambda: model_reports.show_page(MODEL)}
JUNIT = {
    "golden": lambda: render_junit(GOLDEN),
    "model": lambda: model_reports.show_junit(MODEL),
    "bench": lambda: render_junit(CASES_DOCUMENT),
}


def build_harmless(build: Callable[[], str]) -> str:
    text = build()
    assert "script" in text
    found = re.search(UNSAFE, text)
    assert found is None, f"{found[0]!r} in {text[max(0, found.start() - 80) : found.end() + 20]!r}"
    return text


@pytest.mark.parametrize("name", [*TEXTS])
def test_terminals_get_nothing_that_they_obey(name: str) -> None:
    text = build_harmless(TEXTS[name])
    if "json" in name:
        json.loads(text)


@pytest.mark.parametrize("name", [*MARKDOWN])
def test_markdown_holds_no_markup_of_others(name: str) -> None:
    text = build_harmless(MARKDOWN[name])
    outside = re.sub(r"(?ms)^(`{3,})\w*\n.*?^\1$", "", text)  # code is shown as it is
    assert not re.search(r"<(?!/?(details|summary|b)>)", outside)
    plain = re.sub(r"<summary>.*?</summary>", "", outside)  # there Markdown has no meaning
    assert not re.search(r"(?<!\\)[`\[](?!.*%)", plain)


@pytest.mark.parametrize("name", [*MARKUP])
def test_pages_hold_no_markup_of_others(name: str) -> None:
    text = build_harmless(MARKUP[name])
    assert not re.search(r"<(script|img)\b|\son\w+=(?![^<]*&gt;)|href=.javascript", re.sub(r"&lt;.*?&gt;", "", text))


@pytest.mark.parametrize("name", [*JUNIT])
def test_xml_is_well_formed_and_clean(name: str) -> None:
    assert not {each.tag for each in ET.fromstring(build_harmless(JUNIT[name])).iter()} & {"script", "img"}
