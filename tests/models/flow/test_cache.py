"""What the artifact store holds, as facts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.models.models import ORT, request_for

from assay.models.flow.artifact_builder import ArtifactBuilder
from assay.models.flow.cache import clear_cache, load_cache
from assay.models.flow.check import check_model
from assay.models.store.artifacts import ArtifactStore


@pytest.fixture(autouse=True)
def _own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path / "store"))


def test_where_nothing_was_made_there_is_nothing(tmp_path: Path) -> None:
    assert load_cache() == (str(tmp_path / "store"), [])
    assert not (tmp_path / "store").exists()
    assert clear_cache().removed == 0


def test_every_artifact_says_what_it_is(
    chain: Path, tmp_path: Path, open_builder: Callable[..., ArtifactBuilder]
) -> None:
    builder = open_builder()
    check_model(request_for(chain, ORT, only=("Add_1",)), builder, str(tmp_path / "keep"))
    builder.close()
    _, entries = load_cache()
    assert ("chain_layer_Add_1", "compile", "ort") in [(e["case"], e["step"], e["backend"]) for e in entries]
    assert [e["used_at"] for e in entries] == sorted(e["used_at"] for e in entries)
    assert all(e["size_bytes"] > 0 and not e["in_use"] and e["made_by"] for e in entries)


def test_what_is_used_stays(chain: Path, tmp_path: Path) -> None:
    with ArtifactBuilder(ArtifactStore(str(tmp_path / "store"))) as builder:
        check_model(request_for(chain, ORT), builder, str(tmp_path / "keep"))
        used = [entry for entry in load_cache()[1] if entry["in_use"]]
        cleared = clear_cache()
        assert used
        assert cleared.kept == len(used)
        assert cleared.removed > 0
    assert clear_cache().removed == len(used)
    assert load_cache()[1] == []


def test_an_entry_that_cannot_be_read_is_left_out_and_does_not_hurt(chain: Path, tmp_path: Path) -> None:
    with ArtifactBuilder(ArtifactStore(str(tmp_path / "store"))) as builder:
        check_model(request_for(chain, ORT, only=("Add_1",)), builder, str(tmp_path / "keep"))
    before = len(load_cache()[1])
    next(iter((tmp_path / "store").rglob("manifest.json"))).write_text("{")
    assert len(load_cache()[1]) == before - 1
