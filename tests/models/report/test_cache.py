"""What the artifact store holds, told."""

from __future__ import annotations

import json
import time
from typing import Any

from assay.models.report.cache import build_cache_facts, render_cache
from assay.show.json_text import render_facts


def entry(case: str = "net_layer_Conv_0", **more: Any) -> dict[str, Any]:
    base = {
        "case": case,
        "step": "compile",
        "backend": "iree",
        "size_bytes": 2048,
        "made_at": 0.0,
        "used_at": time.time() - 7200,
        "made_by": "me@here",
        "in_use": False,
        "key": "0" * 64,
    }
    return {**base, **more}


def test_an_empty_store_is_one_line() -> None:
    assert render_cache("/c", [], 80) == "0 artifacts, 0 B in /c\n"


def test_every_artifact_is_a_row_and_the_sum_stands_below() -> None:
    text = render_cache("/c", [entry(), entry("net_full_model", step="run", in_use=True)], None)
    head, _, first, second, last = text.splitlines()
    assert head.split() == ["case", "step", "backend", "size", "used"]
    assert first.split() == ["net_layer_Conv_0", "compile", "iree", "2", "KiB", "2", "h", "ago"]
    assert second.endswith("in use")
    assert last == "2 artifacts, 4 KiB in /c"


def test_a_narrow_terminal_gets_what_matters() -> None:
    text = render_cache("/c", [entry(backend="a_very_long_module:AndItsClassName")], 50)
    assert all(len(line) <= 50 for line in text.splitlines())
    assert "net_layer_Conv_0" in text
    assert "2 KiB" in text


def test_a_name_with_control_characters_does_not_reach_the_terminal() -> None:
    assert "\x1b" not in render_cache("/c", [entry("net\x1b[31m")], 80)


def test_facts_are_json() -> None:
    facts = json.loads(render_facts(build_cache_facts("/c", [entry(), entry()])))
    assert facts["folder"] == "/c"
    assert facts["size_bytes"] == 4096
    assert [each["case"] for each in facts["artifacts"]] == ["net_layer_Conv_0"] * 2
