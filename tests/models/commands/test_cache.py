"""The facts about what the artifact store holds."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.example_models import ORT

from assay.models.commands.cache import build_document, clear_cache, load_cache
from assay.models.flow.artifact_builder import ArtifactBuilder, Product, Wants, load_product
from assay.models.graph.tensorfile import write_tensors
from assay.show.formatting import render_facts
from assay.show.terminal_report import render_terminal


def write_inputs(tmp_path: Path, value: float = 1.0) -> Product:
    refs = write_tensors(tmp_path / f"inputs{value}", {"x": np.full((1, 4), value, np.float32)})
    return Product(str(tmp_path / f"inputs{value}"), refs[0].sha)


@pytest.fixture(autouse=True)
def _own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path / "store"))


def test_where_nothing_was_made_there_is_nothing(tmp_path: Path) -> None:
    assert load_cache() == (str(tmp_path / "store"), [])
    assert not (tmp_path / "store").exists()
    assert clear_cache().removed == 0


def test_every_artifact_has_its_facts(chain: Path, tmp_path: Path, builder: ArtifactBuilder) -> None:
    with builder.borrowing():
        builder.compute(ORT, load_product(str(chain)), write_inputs(tmp_path), Wants(("y",)), "chain_layer_Add_1")
    _, entries = load_cache()
    assert ("chain_layer_Add_1", "compile", "ort") in [(e["case"], e["step"], e["backend"]) for e in entries]
    assert [e["used_at"] for e in entries] == sorted(e["used_at"] for e in entries)
    assert all(e["size_bytes"] > 0 and not e["in_use"] and e["made_by"] for e in entries)


def test_what_is_used_stays(chain: Path, tmp_path: Path, builder: ArtifactBuilder) -> None:
    with builder.borrowing():
        model = load_product(str(chain))
        builder.compute(ORT, model, write_inputs(tmp_path), Wants(("y",)), "case")
        with builder.borrowing():
            builder.compute(ORT, model, write_inputs(tmp_path, 2.0), Wants(("y",)), "case")
        used = [entry for entry in load_cache()[1] if entry["in_use"]]
        cleared = clear_cache()
        assert used
        assert cleared.kept == len(used)
        assert cleared.removed > 0
    assert clear_cache().removed == len(used)
    assert load_cache()[1] == []


def test_an_entry_that_cannot_be_read_is_left_out(chain: Path, tmp_path: Path, builder: ArtifactBuilder) -> None:
    builder.compute(ORT, load_product(str(chain)), write_inputs(tmp_path), Wants(("y",)), "case")
    before = len(load_cache()[1])
    next(iter((tmp_path / "store").rglob("manifest.json"))).write_text("{")
    assert len(load_cache()[1]) == before - 1


# ---------------------------------------------------------------- as a document


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


def render(folder: str, entries: list[dict[str, Any]], width: int | None) -> str:
    return render_terminal(build_document(folder, entries), width=width)


def test_an_empty_store_is_one_line() -> None:
    assert render("/c", [], 80) == "0 artifacts, 0 B in /c\n"


def test_every_artifact_is_a_row_and_the_sum_stands_below() -> None:
    text = render("/c", [entry(), entry("net_full_model", step="run", in_use=True)], None)
    head, _, first, second, last = text.splitlines()
    assert head.split() == ["case", "step", "backend", "size", "used"]
    assert first.split() == ["net_layer_Conv_0", "compile", "iree", "2", "KiB", "2", "h", "ago"]
    assert second.endswith("in use")
    assert last == "2 artifacts, 4 KiB in /c"


def test_a_narrow_terminal_gets_what_matters() -> None:
    text = render("/c", [entry(backend="a_very_long_module:AndItsClassName")], 50)
    assert all(len(line) <= 50 for line in text.splitlines())
    assert "net_layer_Conv_0" in text
    assert "2 KiB" in text


def test_a_name_with_control_characters_does_not_reach_the_terminal() -> None:
    assert "\x1b" not in render("/c", [entry("net\x1b[31m")], 80)


def test_facts_are_json() -> None:
    facts = json.loads(render_facts(build_document("/c", [entry(), entry()]).facts))
    assert facts["folder"] == "/c"
    assert facts["size_bytes"] == 4096
    assert [each["case"] for each in facts["artifacts"]] == ["net_layer_Conv_0"] * 2
