"""Artifacts are made once, and only for exactly what they were made from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from assay.errors import AssayError, NotFoundError
from assay.flows.model.workshop import Dumps, Product, Wants, Workshop, hash_model
from assay.probe.tensorfile import load_tensors, write_tensors
from assay.values.model import Ending, Limits, Step, Target
from tests.flows.model.models import ORT, faulty, write_chain

WANTS = Wants(("y",))


def inputs(tmp_path: Path, value: float = 1.0) -> Product:
    folder = tmp_path / f"inputs{value}"
    refs = write_tensors(folder, {"x": np.full((1, 4), value, np.float32)})
    return Product(str(folder), refs[0].sha)


def product(path: Path) -> Product:
    return Product(str(path), hash_model(str(path)))


def test_a_model_is_compiled_and_run(workshop: Workshop, chain: Path, tmp_path: Path) -> None:
    work = workshop.compute(ORT, product(chain), inputs(tmp_path), WANTS, "case")
    assert [step.step for step in work.steps] == [Step.COMPILE, Step.RUN]
    assert work.failed is None
    assert load_tensors(work.outputs)["y"].shape == (1, 4)


def test_what_was_made_is_not_made_again(open_workshop: Callable[..., Workshop], chain: Path, tmp_path: Path) -> None:
    first = open_workshop().compute(ORT, product(chain), inputs(tmp_path), WANTS, "case")
    second = open_workshop().compute(ORT, product(chain), inputs(tmp_path), WANTS, "case")
    assert [step.cached for step in first.steps] == [False, False]
    assert [step.cached for step in second.steps] == [True, True]
    assert load_tensors(first.outputs)["y"].tolist() == load_tensors(second.outputs)["y"].tolist()


def test_a_changed_model_is_never_served_from_the_cache(workshop: Workshop, chain: Path, tmp_path: Path) -> None:
    before = workshop.compute(ORT, product(chain), inputs(tmp_path), WANTS, "case")
    write_chain(chain, weight=5.0)
    after = workshop.compute(ORT, product(chain), inputs(tmp_path), WANTS, "case")
    assert not any(step.cached for step in after.steps)
    assert load_tensors(before.outputs)["y"].tolist() != load_tensors(after.outputs)["y"].tolist()


def test_other_inputs_are_run_and_not_compiled_again(workshop: Workshop, chain: Path, tmp_path: Path) -> None:
    workshop.compute(ORT, product(chain), inputs(tmp_path), WANTS, "case")
    other = workshop.compute(ORT, product(chain), inputs(tmp_path, 2.0), WANTS, "case")
    assert [step.cached for step in other.steps] == [True, False]


@pytest.mark.parametrize(
    "target",
    [
        Target("ort", "ort", {"optimize": "none"}),
        Target("ort", "ort", compile_flags=("-O0",)),
        faulty("scaled", "sum"),
    ],
)
def test_another_option_flag_or_tool_is_another_artifact(
    workshop: Workshop, chain: Path, tmp_path: Path, target: Target
) -> None:
    workshop.compute(ORT, product(chain), inputs(tmp_path), WANTS, "case")
    other = workshop.compute(target, product(chain), inputs(tmp_path), WANTS, "case")
    assert not other.steps[0].cached


def test_recompute_makes_everything_anew_and_once(
    open_workshop: Callable[..., Workshop], chain: Path, tmp_path: Path
) -> None:
    open_workshop().compute(ORT, product(chain), inputs(tmp_path), WANTS, "case")
    again = open_workshop(recompute=True)
    first = again.compute(ORT, product(chain), inputs(tmp_path), WANTS, "case")
    second = again.compute(ORT, product(chain), inputs(tmp_path), WANTS, "case")
    assert [step.cached for step in first.steps] == [False, False]
    assert [step.cached for step in second.steps] == [True, True]


def test_what_failed_is_not_kept(workshop: Workshop, tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model at all")
    for _ in range(2):
        work = workshop.compute(ORT, product(broken), inputs(tmp_path), WANTS, "case")
        assert work.failed is not None
        assert work.failed.step is Step.COMPILE
        assert not work.failed.cached
        assert work.outputs == ""
    assert workshop.store.load_entries() == []


def test_a_step_that_takes_too_long_is_a_recorded_outcome(
    open_workshop: Callable[..., Workshop], chain: Path, tmp_path: Path
) -> None:
    hasty = open_workshop(limits=Limits(compile_s=0.0))
    work = hasty.compute(ORT, product(chain), inputs(tmp_path), WANTS, "case")
    assert work.failed is not None
    assert work.failed.ending is Ending.TIMEOUT


def test_dumps_bypass_the_cache_and_have_a_folder_for_each_case(
    open_workshop: Callable[..., Workshop], chain: Path, tmp_path: Path
) -> None:
    open_workshop().compute(ORT, product(chain), inputs(tmp_path), WANTS, "case")
    profiling = open_workshop(dumps=Dumps(run_profile_dir=str(tmp_path / "profiles")))
    work = profiling.compute(ORT, product(chain), inputs(tmp_path), WANTS, "case")
    assert [step.cached for step in work.steps] == [True, False]
    assert list((tmp_path / "profiles" / "case").iterdir())


def test_it_says_why_each_artifact_was_a_hit_or_a_miss(
    open_workshop: Callable[..., Workshop], chain: Path, tmp_path: Path
) -> None:
    said: list[str] = []
    open_workshop(say=said.append).compute(ORT, product(chain), inputs(tmp_path), WANTS, "case")
    assert [line.split(": ")[1] for line in said] == ["miss", "miss"]
    said.clear()
    open_workshop(say=said.append).compute(ORT, product(chain), inputs(tmp_path), WANTS, "case")
    assert [line.split(": ")[1] for line in said] == ["hit", "hit"]


def test_a_back_end_that_is_not_there_is_named(workshop: Workshop, chain: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="did you mean 'ort'"):
        workshop.compute(Target("x", "orrt"), product(chain), inputs(tmp_path), WANTS, "case")


def test_a_target_that_cannot_be_asked_raises_for_each_who_asks(workshop: Workshop) -> None:
    broken = Target("ort", "ort", {"optimize": "wildly"})
    for ask in (workshop.begin, workshop.find_tools, workshop.find_tools):
        with pytest.raises(AssayError, match="wildly"):
            ask(broken)


def test_after_forgetting_a_target_it_still_works(workshop: Workshop, chain: Path, tmp_path: Path) -> None:
    workshop.compute(ORT, product(chain), inputs(tmp_path), WANTS, "case")
    workshop.forget(ORT)
    work = workshop.compute(ORT, product(chain), inputs(tmp_path, 3.0), WANTS, "case")
    assert work.failed is None


def test_external_data_is_part_of_what_a_model_is_made_of(tmp_path: Path) -> None:
    model, data = tmp_path / "m.onnx", tmp_path / "m.data"
    model.write_bytes(b"model")
    data.write_bytes(b"one")
    before = hash_model(str(model), (str(data),))
    data.write_bytes(b"two")
    assert hash_model(str(model), (str(data),)) != before
    assert hash_model(str(model)) not in (before, hash_model(str(model), (str(data),)))
