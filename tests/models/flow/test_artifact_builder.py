"""Artifacts are made once, and only for exactly what they were made from."""

from __future__ import annotations

import json
import os
import shlex
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import onnx
import pytest
from tests.example_models import ORT, faulty, write_chain

from assay.errors import AssayError, InfrastructureError
from assay.models.flow.artifact_builder import ArtifactBuilder, Dumps, Product, Scratch, Wants, Work, load_product
from assay.models.graph.tensorfile import load_tensors, write_tensors
from assay.models.store.artifacts import ArtifactStore
from assay.models.values.model import Step, Target
from assay.system.locks import LOCK_FILE

WANTS = Wants(("y",))


def inputs(tmp_path: Path, value: float = 1.0) -> Product:
    folder = tmp_path / f"inputs{value}"
    refs = write_tensors(folder, {"x": np.full((1, 4), value, np.float32)})
    return Product(str(folder), refs[0].sha)


def product(path: Path) -> Product:
    return load_product(str(path))


@pytest.fixture
def compute(builder: ArtifactBuilder, chain: Path, tmp_path: Path) -> Callable[..., Work]:
    """Compute the chain of layers: `compute(2.0)` with other inputs, `compute(target=…)` on another target."""
    return lambda value=1.0, target=ORT: builder.compute(target, product(chain), inputs(tmp_path, value), WANTS, "case")


def is_cached(work: Work) -> list[bool]:
    return [step.cached for step in work.steps]


def test_what_was_made_is_not_made_again_unless_the_model_or_its_inputs_changed(
    builder: ArtifactBuilder, chain: Path, compute: Callable[..., Work]
) -> None:
    """Every step that was done is a slice, and has a reason."""
    said: list[str] = []
    builder.explain_to = said.append
    first = compute()
    assert [step.step for step in first.steps] == [Step.COMPILE, Step.RUN]
    assert first.failed is None
    assert load_tensors(first.outputs)["y"].shape == (1, 4)
    assert [(each.track, each.name) for each in builder.slices] == [
        (("ort", step), "case") for step in ("compile", "run")
    ]
    assert builder.slices[0].start_ns <= builder.slices[0].end_ns <= builder.slices[1].start_ns + 1_000_000_000
    assert builder.slices[0].args["ending"] == "ok"
    builder.slices.clear()
    second = compute()
    assert builder.slices == []
    assert [line.split(": ")[1] for line in said] == ["miss", "miss", "hit", "hit"]
    other = compute(2.0)
    write_chain(chain, weight=5.0)
    changed = compute()
    assert [*map(is_cached, (first, second, other, changed))] == [
        [False, False], [True, True], [True, False], [False, False],
    ]  # fmt: skip
    values = [load_tensors(work.outputs)["y"].tolist() for work in (first, second, changed)]
    assert values[0] == values[1] != values[2]


@pytest.mark.parametrize(
    "target",
    [Target("ort", "ort", {"optimize": "none"}), Target("ort", "ort", compile_flags=("-O0",)), faulty("scaled", "sum")],
)
def test_another_option_flag_or_tool_is_another_artifact(target: Target, compute: Callable[..., Work]) -> None:
    compute()
    other = compute(target=target)
    assert not other.steps[0].cached


def test_recompute_makes_everything_again_and_once(builder: ArtifactBuilder, compute: Callable[..., Work]) -> None:
    compute()
    builder.slices.clear()
    said: list[str] = []
    builder.recompute, builder.explain_to = True, said.append
    builder.begin_again()
    first, second = compute(), compute()
    assert is_cached(first) == is_cached(second) == [False, False], "and measured now"
    assert [step.key for step in second.steps] == [step.key for step in first.steps]
    assert len(builder.slices) == 2, "once"
    compute(2.0)
    assert [line.partition(": ")[2] for line in said] == [
        *["miss: everything is made again"] * 2, *["hit: made again just now"] * 3, "miss: there is none",
    ]  # fmt: skip


@pytest.mark.parametrize("is_limited", [False, True])
def test_what_failed_is_not_kept(builder: ArtifactBuilder, tmp_path: Path, chain: Path, is_limited: bool) -> None:
    """Also where the target has refused the IR version of another model before."""
    if is_limited:
        newer = onnx.load(chain)
        newer.ir_version = 99
        onnx.save(newer, tmp_path / "newer.onnx")
        assert builder.prepare(ORT, product(tmp_path / "newer.onnx"), "case").failed is None
    before = builder.store.load_entries()
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model at all")
    for _ in range(2):
        work = builder.compute(ORT, Product(str(broken), "broken"), inputs(tmp_path), WANTS, "case")
        assert work.failed is not None
        assert work.failed.step is Step.COMPILE
        assert not work.failed.cached
        assert work.outputs == ""
    assert builder.store.load_entries() == before


def test_dumps_bypass_the_cache_and_have_a_folder_for_each_case(
    builder: ArtifactBuilder, tmp_path: Path, compute: Callable[..., Work]
) -> None:
    compute()
    said: list[str] = []
    builder.explain_to, builder.dumps = said.append, Dumps(run_profile_dir=str(tmp_path / "profiles"))
    assert is_cached(compute()) == [True, False]
    assert list((tmp_path / "profiles" / "case").iterdir())
    assert "compile: hit" in said[0]
    assert said[1].endswith("run: miss: dumps are written only while it is made")
    (tmp_path / "file").write_text("")
    builder.dumps = Dumps(ir_dir=str(tmp_path / "file"))
    with pytest.raises(InfrastructureError, match="cannot be made"):
        compute()


def test_a_target_that_cannot_be_asked_raises_for_each_that_asks(builder: ArtifactBuilder) -> None:
    broken = Target("ort", "ort", {"optimize": "wildly"})
    for ask in (builder.begin, builder.find_tools, builder.find_tools):
        with pytest.raises(AssayError, match="wildly"):
            ask(broken)


def test_after_forgetting_a_target_it_still_works(builder: ArtifactBuilder, compute: Callable[..., Work]) -> None:
    compute()
    builder.forget(ORT)
    assert compute(3.0).failed is None


def count_used(builder: ArtifactBuilder) -> int:
    return sum(entry.in_use for entry in builder.store.load_entries())


def test_what_is_borrowed_may_be_evicted_afterwards_and_what_is_kept_stays(
    builder: ArtifactBuilder, compute: Callable[..., Work]
) -> None:
    with suppress(ZeroDivisionError), builder.borrowing():
        compute()
        assert count_used(builder) == 2
        raise ZeroDivisionError
    assert count_used(builder) == 0
    with builder.borrowing():
        with builder.keeping():
            compute()
        compute(2.0)
        assert count_used(builder) == 3
    assert count_used(builder) == 2


def test_the_size_limit_holds_over_many_cases(tmp_path: Path, compute: Callable[..., Work]) -> None:
    with ArtifactBuilder(ArtifactStore(str(tmp_path / "store"), limit_bytes=8000)) as builder:
        for number in range(8):
            with builder.borrowing():
                compute(float(number))
        assert sum(entry.size_bytes for entry in builder.store.load_entries()) < 12_000


@pytest.mark.parametrize("damage", ["facts", "manifest", "file"])
def test_an_entry_that_cannot_be_read_is_made_again(
    damage: str, builder: ArtifactBuilder, tmp_path: Path, compute: Callable[..., Work]
) -> None:
    with builder.borrowing():
        right = load_tensors(compute().outputs)
    for manifest in (tmp_path / "store").rglob("manifest.json"):
        if damage == "facts":
            content = json.loads(manifest.read_text())
            content["facts"] = {"step": "of a version that nobody knows"}
            manifest.write_text(json.dumps(content))
        elif damage == "manifest":
            manifest.write_bytes(manifest.read_bytes()[:20])
        else:
            for path in (manifest.parent / "files").rglob("*.*"):
                path.write_bytes(b"broken")
    work = compute()
    assert is_cached(work) == [False, False]
    assert load_tensors(work.outputs)["y"].tolist() == right["y"].tolist()
    assert is_cached(compute()) == [True, True]


def test_external_data_is_next_to_the_model_wherever_we_are(
    builder: ArtifactBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model" / "chain.onnx"
    path.parent.mkdir()
    model = onnx.load(write_chain(tmp_path / "inner.onnx"))
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    monkeypatch.chdir(tmp_path)
    before = load_product(str(path))
    assert builder.compute(ORT, before, inputs(tmp_path), WANTS, "case").failed is None
    data = path.parent / "weights.bin"
    data.write_bytes(bytes(reversed(data.read_bytes())))
    assert load_product(str(path)).sha != before.sha


def test_the_command_of_a_failure_names_files_from_wherever_it_is_pasted(
    builder: ArtifactBuilder, chain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The place where it is kept may be given relative to where we are."""
    monkeypatch.chdir(tmp_path)
    refuse = [sys.executable, "-c", "raise SystemExit(3)", "{model}"]
    target = Target("sim", "command", {"compile": refuse, "run": "x", "version": False})
    builder.failure_dir = "kept"
    failed = builder.prepare(target, product(chain), "case").failed
    assert failed is not None
    assert shlex.split(failed.command)[-1] == str(tmp_path / "kept" / "case" / "compile-sim" / chain.name)
    assert os.path.isfile(shlex.split(failed.command)[-1])


DUMPER = """
import shutil, sys
model, artifact, folder, count = sys.argv[1:]
shutil.copyfile(model, artifact)
for number in range(int(count)):
    open(f"{folder}/{number}_pass.txt", "w").write("ir")
"""


def test_a_dump_is_not_mixed_with_the_one_before(chain: Path, tmp_path: Path) -> None:
    (tmp_path / "dumper.py").write_text(DUMPER)
    words = [sys.executable, "dumper.py", "{model}", "{artifact}", "{ir_dir}", "{compile_flags}"]
    options = {"compile": words, "run": "x", "version": False, "folder": str(tmp_path)}
    for count in ("5", "2"):
        target = Target("sim", "command", options, compile_flags=(count,))
        with ArtifactBuilder(ArtifactStore(str(tmp_path / "store")), dumps=Dumps(str(tmp_path / "ir"))) as builder:
            assert builder.build(target, Step.COMPILE, product(chain), "case").is_ok
        assert builder.notes == []
    assert sorted(path.name for path in (tmp_path / "ir" / "case").glob("*.txt")) == ["0_pass.txt", "1_pass.txt"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["cp", "{model}", "{artifact}"], ": there is no {ir_dir} in its compile command"),
        (["cp", "{model}", "{artifact}", ["-S", "{ir_dir}"]], ""),
    ],
)
def test_a_target_that_dumps_nothing_is_named_once(chain: Path, tmp_path: Path, words: list[object], why: str) -> None:
    target = Target("sim", "command", {"compile": words, "run": "x", "version": False})
    with ArtifactBuilder(ArtifactStore(str(tmp_path / "store")), dumps=Dumps(str(tmp_path / "ir"))) as builder:
        for case in ("one", "two"):
            assert builder.build(target, Step.COMPILE, product(chain), case).is_ok
    assert builder.notes == [f"--debug-ir: sim wrote no intermediate representation{why}"]


def test_scratch_of_a_killed_process_is_removed_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder without our file may be the user's."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "assay-model-examples").mkdir()
    abandoned = tmp_path / "assay-model-killed"
    (abandoned / "worker").mkdir(parents=True)
    (abandoned / LOCK_FILE).touch()
    with Scratch() as first, Scratch() as second:
        assert not abandoned.exists()
        assert os.path.isdir(first)
        assert {each.name for each in tmp_path.iterdir()} == {
            "assay-model-examples",
            *map(os.path.basename, (first, second)),
        }
    assert [each.name for each in tmp_path.iterdir()] == ["assay-model-examples"]
