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


def test_what_is_listed_and_cleared(chain: Path, tmp_path: Path, builder: ArtifactBuilder) -> None:
    """What is used stays; an entry that cannot be read is left out."""
    assert load_cache() == (str(tmp_path / "store"), [])
    assert not (tmp_path / "store").exists()
    assert clear_cache().removed == 0
    with builder.borrowing():
        model = load_product(str(chain))
        builder.compute(ORT, model, write_inputs(tmp_path), Wants(("y",)), "chain_layer_Add_1")
        with builder.borrowing():
            builder.compute(ORT, model, write_inputs(tmp_path, 2.0), Wants(("y",)), "case")
        _, entries = load_cache()
        assert ("chain_layer_Add_1", "compile", "ort") in [(e["case"], e["step"], e["backend"]) for e in entries]
        assert [e["used_at"] for e in entries] == sorted(e["used_at"] for e in entries)
        assert all(e["size_bytes"] > 0 and e["made_by"] for e in entries)
        used = [entry for entry in entries if entry["in_use"]]
        cleared = clear_cache()
        assert (len(used), cleared.kept, cleared.removed) == (2, 2, len(entries) - 2)
    next(iter((tmp_path / "store").rglob("manifest.json"))).write_text("{")
    assert len(load_cache()[1]) == 1
    clear_cache()
    assert load_cache()[1] == []


def entry(case: str = "net_layer_Conv_0", **more: Any) -> dict[str, Any]:
    names = {"case": case, "step": "compile", "backend": "iree", "made_by": "me@here", "key": "0" * 64}
    return {**names, "size_bytes": 2048, "made_at": 0.0, "used_at": time.time() - 7200, "in_use": False, **more}


def render(folder: str, entries: list[dict[str, Any]], width: int | None) -> str:
    return render_terminal(build_document(folder, entries), width=width)


def test_every_artifact_is_a_row_and_the_sum_stands_below() -> None:
    assert render("/c", [], 80) == "0 artifacts, 0 B in /c\n"
    entries = [entry(), entry("net_full\x1b[31m", step="run", in_use=True)]
    text = render("/c", entries, None)
    head, _, first, second, last = text.splitlines()
    assert head.split() == ["case", "step", "backend", "size", "used"]
    assert first.split() == ["net_layer_Conv_0", "compile", "iree", "2", "KiB", "2", "h", "ago"]
    assert second.endswith("in use")
    assert last == "2 artifacts, 4 KiB in /c"
    assert "\x1b" not in text
    narrow = render("/c", [entry(backend="a_very_long_module:AndItsClassName")], 50)
    assert all(len(line) <= 50 for line in narrow.splitlines())
    assert "net_layer_Conv_0" in narrow
    assert "2 KiB" in narrow
    facts = json.loads(render_facts(build_document("/c", entries).facts))
    assert (facts["folder"], facts["size_bytes"], len(facts["artifacts"])) == ("/c", 4096, 2)
