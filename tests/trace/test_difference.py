"""Where two traces begin to differ: pairs, noise, causes, ranks. The traces are files, as the recorder writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.trace_files import UNKNOWN, Program, Writer

from assay.trace.comparing import check_finite, compare, load_recording
from assay.trace.judge.difference import Comparison
from assay.trace.judge.errors import UNITS, WITHIN
from assay.trace.judge.pairing import translate_names

ULP = 2.0**-23
BF16 = np.dtype(ml_dtypes.bfloat16)


def judge(tmp_path: Path, b: Program, a: Program | None = None, noise: int = 0) -> Comparison:
    (a or Program()).write(tmp_path / "a")
    for number in range(noise):
        Program(noise=ULP * (number + 1) / noise).write(tmp_path / "a", f"noise-{number + 1}")
    b.write(tmp_path / "b")
    found, *_ = compare(load_recording(str(tmp_path / "a")), load_recording(str(tmp_path / "b")))
    return found


def test_equal_bits_pass(tmp_path: Path) -> None:
    found = judge(tmp_path, Program())
    assert (found.kind, found.first, found.coverage.fraction) == ("PASS", None, 1.0)
    assert "22 tensors are equal bit for bit" in found.verdict.findings[0].message


def test_the_first_layer_whose_inputs_agree_is_named(tmp_path: Path) -> None:
    found = judge(tmp_path, Program(scale={(2, 1): 1.001}))
    first = found.first
    assert first is not None
    assert (found.kind, first.module, first.step, first.phase) == ("CHANGED", "layers.1", 2, "forward")
    assert (first.error_in, first.inputs, first.source) == (0.0, ("layers.0",), ("model.py:8", "model.py:8"))
    assert first.error_out == pytest.approx(1e-3, rel=0.1)
    assert "it is 1.001 times that of A" in first.text


@pytest.mark.parametrize(
    ("size", "kind"), [(1 + 2 * ULP, "PASS"), (1 + 2 * WITHIN * UNITS * ULP, "INCONCLUSIVE"), (1.001, "FAIL")]
)
def test_with_noise_what_is_within_it_passes(tmp_path: Path, size: float, kind: str) -> None:
    found = judge(tmp_path, Program(scale={(1, 2): size}), noise=3)
    assert found.kind == kind
    assert kind == "PASS" or (found.first is not None and found.first.module == "layers.2")


@pytest.mark.parametrize(
    ("changes", "kind", "name"),
    [
        ({"facts": {"flags": {"tf32": True}}, "scale": {(1, 0): 1.01}}, "flag", "tf32"),
        ({"facts": {"flags": {"threads": 8}}, "scale": {(1, 0): 1.01}}, "module", "output.0"),
        ({"facts": {"groups": [{"weight_decay": 0.5, "parameters": 3}]}, "decay": 0.5}, "group", "optimiser group 0"),
        ({"decay": 0.5}, "optimiser", "weight"),
        ({"shift": 1}, "input", "input.0"),
        ({"swapped": True}, "weights", "layers.1.weight"),
        ({"without_gradient": "layers.1"}, "missing", "weight"),
        ({"facts": {"skipped": True}, "decay": 0.5}, "group", "skipped step"),
    ],
)
def test_what_began_it_is_named(tmp_path: Path, changes: dict[str, Any], kind: str, name: str) -> None:
    facts = {"flags": {"tf32": False, "threads": 2}, "groups": [{"weight_decay": 0.0, "parameters": 3}]}
    b = Program(**changes)
    b.facts = {**facts, **b.facts}
    found = judge(tmp_path, b, Program(facts=facts))
    assert found.first is not None
    assert (found.kind, found.first.kind, found.first.name) == ("CHANGED", kind, name)


def test_a_cause_that_comes_later_is_a_note(tmp_path: Path) -> None:
    """Other groups cannot change what the first step computes before the optimiser."""
    facts = {"groups": [{"lr": 0.1, "parameters": 3}]}
    found = judge(
        tmp_path, Program(scale={(1, 1): 1.01}, facts=facts), Program(facts={"groups": [{"lr": 0.2, "parameters": 3}]})
    )
    assert found.first is not None
    assert found.first.module == "layers.1"
    assert any("lr 0.2 in A, 0.1 in B" in note for note in found.notes)


def test_data_in_another_order_and_rows_in_another_order_are_said(tmp_path: Path) -> None:
    found = judge(tmp_path / "data", Program(shift=1))
    assert found.first is not None
    assert "A saw these data in step 2: another order" in found.first.text
    found = judge(tmp_path / "rows", Program(swapped=True))
    assert found.first is not None
    assert "2 of its 16 rows are in another order" in found.first.text


def test_another_size_of_the_batch_is_inconclusive(tmp_path: Path) -> None:
    found = judge(tmp_path, Program(batch=4), noise=1)
    assert found.first is not None
    assert (found.kind, found.first.phase) == ("INCONCLUSIVE", "input")
    assert "has the shape [16, 8] in A and [16, 4] in B" in found.first.text


@pytest.mark.parametrize(("factor", "is_well"), [(1.004, True), (1.15, False)])
def test_sixteen_bits_hide_rounding_and_no_more(tmp_path: Path, factor: float, is_well: bool) -> None:
    """A unit of bf16 in the first activation is as much as any other rounding does: nothing is multiplied by 8."""
    Program(dtype=BF16).write(tmp_path / "a")
    for number in (1, 2, 3):
        Program(dtype=BF16, noise=2.0**-8 + number * 1e-9).write(tmp_path / "a", f"noise-{number}")
    Program(dtype=BF16, scale={(1, 1): factor}).write(tmp_path / "b")
    found, *_ = compare(load_recording(str(tmp_path / "a")), load_recording(str(tmp_path / "b")))
    assert (found.kind == "PASS") == is_well, found.verdict
    assert is_well or (found.first is not None and found.first.module == "layers.1")


def test_what_a_wrong_layer_makes_of_the_shapes_after_it_is_not_named(tmp_path: Path) -> None:
    """A wrong router sends other rows to the experts of the next layer."""
    found = judge(tmp_path / "wrong", Program(scale={(1, 0): 1.01}, narrow=(1, 1)), noise=1)
    assert found.first is not None
    assert (found.kind, found.first.module) == ("FAIL", "layers.0")
    found = judge(tmp_path / "shapes", Program(narrow=(1, 1)), noise=1)
    assert found.first is not None
    assert (found.kind, found.first.module) == ("INCONCLUSIVE", "layers.1")


@pytest.mark.parametrize(
    ("scale", "forward", "has_noise", "kind", "first"),
    [
        (4.0, 1.0, True, "PASS", None),
        (4.0, 1.0, False, "CHANGED", "loss"),
        (4.0, 1.01, True, "FAIL", "forward"),
        (1.0, 1.0, True, "FAIL", "loss"),
    ],
)
def test_another_scale_of_the_loss_is_no_difference_where_the_gradients_agree(
    tmp_path: Path, scale: float, forward: float, has_noise: bool, kind: str, first: str | None
) -> None:
    """GradScaler's is in the gradients of outputs too. A penalty without a gradient is not: a fault of the loss."""
    x = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
    for name, below in (("a", ""), *([("a", "noise-1")] if has_noise else []), ("b", "")):
        writer = Writer(tmp_path / name, below)
        at = writer.row(1, "forward", "net", x * (forward if name == "b" else 1.0))
        writer.row(1, "loss", "", np.array([4.0 if name == "b" else 1.0], np.float32), at)
        writer.row(1, "backward", "net", x * (scale if name == "b" else 1.0))
        writer.row(1, "gradient", "net", x * 3, name="weight")
        writer.step(1)
        writer.close()
    found, *_ = compare(load_recording(str(tmp_path / "a")), load_recording(str(tmp_path / "b")))
    assert (found.kind, found.first and found.first.phase) == (kind, first)
    is_scaled = scale == 4 and has_noise
    assert any(each.startswith("the loss of B has another scale, 4 times") for each in found.notes) == is_scaled


def test_the_call_of_a_module_that_is_called_again_is_named(tmp_path: Path) -> None:
    for name, factor in (("a", 1), ("b", 2)):
        writer = Writer(tmp_path / name)
        for call in (0, 1):
            writer.row(1, "forward", "layer", np.ones(8, np.float32) * (factor if call else 1), call=call)
        writer.step(1)
        writer.close()
    found, *_ = compare(load_recording(str(tmp_path / "a")), load_recording(str(tmp_path / "b")))
    assert found.first is not None
    assert found.first.text.startswith("layer (call 2) in step 1 differs by 0.5")


def test_a_program_that_completes_no_step_does_not_pass(tmp_path: Path) -> None:
    for name in ("a", "b"):
        writer = Writer(tmp_path / name)
        writer.row(1, "forward", "layer", np.ones(8, np.float32))
        writer.close()
    found, *_ = compare(load_recording(str(tmp_path / "a")), load_recording(str(tmp_path / "b")))
    assert found.kind == "INCONCLUSIVE"
    assert "no step of A was completed: gradients, parameters and states were not recorded" in str(found.verdict)


def test_another_precision_is_inconclusive(tmp_path: Path) -> None:
    found = judge(tmp_path, Program(dtype=BF16, scale={(1, 1): 1.5}), noise=3)
    assert (found.kind, found.other_precision) == ("INCONCLUSIVE", "bfloat16")
    assert found.first is not None
    assert found.first.module == "layers.1"  # where the error grows most
    found = judge(tmp_path / "missing", Program(dtype=BF16, without_gradient="layers.2"))
    assert found.first is not None
    assert (found.kind, found.first.kind, found.first.module) == ("INCONCLUSIVE", "missing", "layers.2")


# ---------------------------------------------------------------- not finite


def test_what_is_not_finite_is_found_in_one_trace_alone(tmp_path: Path) -> None:
    recording = load_recording(str(Program(poison=(2, 1)).write(tmp_path / "a")))
    verdict, first, _ = check_finite(recording)
    assert first is not None
    assert (verdict.kind, first.module, first.step, first.inputs) == ("FAIL", "layers.1", 2, ("layers.0",))
    assert "1 of 128 values is not finite; what went in is finite (layers.0: largest" in first.text
    assert check_finite(load_recording(str(Program().write(tmp_path / "b"))))[0].kind == "PASS"


def test_a_skipped_step_may_overflow(tmp_path: Path) -> None:
    recording = load_recording(str(Program(poison=(2, 1), facts={"skipped": True}).write(tmp_path / "a")))
    assert check_finite(recording)[0].kind == "PASS"


def test_two_sides_that_are_broken_in_the_same_way_do_not_pass(tmp_path: Path) -> None:
    found = judge(tmp_path, Program(poison=(1, 1)), Program(poison=(1, 1)))
    assert found.kind == "INCONCLUSIVE"
    assert judge(tmp_path / "one", Program(poison=(1, 1)), noise=1).kind == "FAIL"


# ---------------------------------------------------------------- pairs


@pytest.mark.parametrize(
    ("scale", "dtype", "how"),
    [({}, np.float32, "hash"), ({(1, 0): 1.001}, np.float32, "weights"), ({}, BF16, "weights")],
)
def test_other_names_are_paired(tmp_path: Path, scale: Any, dtype: Any, how: str) -> None:
    """By their hashes where they are equal, else by their weights, also in another precision."""
    found = judge(tmp_path, Program(names=["model.h.0", "model.h.1", "model.h.2"], scale=scale, dtype=dtype))
    assert found.coverage.fraction == 1.0
    assert found.coverage.by[how] >= 4
    assert set(found.pairs.how) <= {"hash", "key", "weights"}


def test_parts_of_a_fused_weight_are_paired_and_compared_by_their_norm(tmp_path: Path) -> None:
    """Also when every weight is shared by two modules of a side."""
    random = np.random.default_rng(0)
    parts = [random.standard_normal((8, 8)).astype(np.float32) for _ in range(3)]
    ends = [random.standard_normal((4, 8)).astype(np.float32) for _ in range(2)]

    def write(run_dir: Path, names: list[str], weights: list[Any], factor: float = 1.0) -> None:
        writer = Writer(run_dir)
        x = random_input = np.random.default_rng(1).standard_normal((8, 5)).astype(np.float32)
        at = writer.row(1, "input", "", random_input, kind="")
        for name, weight in zip(names, weights, strict=True):
            writer.weight(name, weight)
            writer.row(1, "forward", name, (weight @ x * factor).astype(np.float32), at)
            writer.row(1, "parameter", name, weight, name="weight", kind="")
        writer.weight("tied", ends[0])
        writer.step(1)
        writer.close()

    write(tmp_path / "a", ["in", "b.q", "b.k", "b.v", "out"], [ends[0], *parts, ends[1]])
    write(tmp_path / "b", ["embed", "h.qkv", "head"], [ends[0], np.concatenate(parts), ends[1]])
    a, b = (load_recording(str(tmp_path / name)) for name in "ab")
    found, *_ = compare(a, b)
    assert found.coverage.by["fused weights"] == 6
    assert found.coverage.fraction == 1.0
    assert found.kind == "PASS"
    write(tmp_path / "c", ["embed", "h.qkv", "head"], [ends[0], np.concatenate(parts), ends[1]], factor=1.01)
    found, *_ = compare(a, load_recording(str(tmp_path / "c")))
    assert found.kind == "CHANGED"


def test_names_are_translated_by_patterns() -> None:
    pairs = [("layers.*.attn.*", "h.*.self.*_proj"), ("embed", "wte")]
    assert translate_names(["layers.3.attn.q", "embed", "norm"], pairs) == {
        "layers.3.attn.q": "h.3.self.q_proj",
        "embed": "wte",
    }


def test_an_order_alone_pairs_what_has_no_weights_and_no_equal_hash(tmp_path: Path) -> None:
    for name, middle, factor in (("a", "act", 1.0), ("b", "gelu", 1.0 + 1e-6)):
        writer = Writer(tmp_path / name)
        random = np.random.default_rng(5)
        weights = [random.standard_normal((6, 6)).astype(np.float32) for _ in range(2)]
        x = random.standard_normal((6, 4)).astype(np.float32)
        at = writer.row(1, "input", "", x, kind="")
        for label, value in ((f"{name}.one", weights[0]), (f"{name}.{middle}", None), (f"{name}.two", weights[1])):
            x = (np.tanh(x) if value is None else value @ x).astype(np.float32) * np.float32(factor)
            at = writer.row(1, "forward", label, x, at)
            if value is not None:
                writer.weight(label, value)
        writer.step(1)
        writer.close()
    found, *_ = compare(*(load_recording(str(tmp_path / name)) for name in "ab"))
    assert found.coverage.by == {"key": 1, "weights": 2, "sequence": 1}
    assert any("paired by their order alone" in note for note in found.notes)


def test_few_pairs_are_inconclusive(tmp_path: Path) -> None:
    found = judge(tmp_path, Program(names=["x", "y", "z"], seed=9, shift=50))
    assert found.kind == "INCONCLUSIVE"
    assert any("of the points are paired" in finding.message for finding in found.verdict.findings)


# ---------------------------------------------------------------- ranks


def write_ranks(run_dir: Path, placements: dict[str, Any], *, drift: float = 0.0, factor: float = 1.0) -> None:
    """Two ranks: an activation in halves, a gradient, and a parameter on both; or one process with all of it."""
    random = np.random.default_rng(2)
    x, gradient, weight = (random.standard_normal(shape).astype(np.float32) for shape in ((8, 4), (4, 4), (4, 4)))
    world = 2 if placements else 1
    for rank in range(world):
        writer = Writer(run_dir, rank=rank, world=world)
        part = x[rank * 4 : rank * 4 + 4] if placements else x
        at = writer.row(1, "forward", "layer", part, start=rank * part.size, placement=placements.get("forward"))
        share = gradient * (0.25 if rank else 0.75) if placements.get("gradient") == PARTIAL else gradient
        writer.row(
            1,
            "gradient",
            "layer",
            (share * factor).astype(np.float32),
            UNKNOWN,
            name="weight",
            placement=placements.get("gradient"),
        )
        after = weight + np.float32(drift * rank)
        writer.row(1, "parameter", "layer", after, at, name="weight", placement=placements.get("parameter"))
        writer.weight("layer", weight)
        writer.step(1)
        writer.close()


REPLICATE, SHARD, PARTIAL = {"placements": ["R"]}, {"placements": ["S(0)"], "global": True}, {"placements": ["P(sum)"]}


@pytest.mark.parametrize(
    ("gradient", "changes", "kind", "first"),
    [
        (REPLICATE, {}, "PASS", None),
        (PARTIAL, {}, "PASS", None),
        (REPLICATE, {"factor": 2.0}, "CHANGED", "gradient"),
        (REPLICATE, {"drift": 0.1}, "CHANGED", "ranks"),
    ],
)
def test_ranks_add_up_to_one_process(
    tmp_path: Path, gradient: Any, changes: dict[str, float], kind: str, first: Any
) -> None:
    write_ranks(tmp_path / "a", {})
    write_ranks(tmp_path / "b", {"forward": SHARD, "gradient": gradient, "parameter": REPLICATE}, **changes)
    found, *_ = compare(*(load_recording(str(tmp_path / name)) for name in "ab"))
    assert found.kind == kind, found.verdict
    assert (found.first.kind if found.first else None) == first
    if "factor" in changes:
        assert found.first is not None
        assert "2 times that of A" in found.first.text


@pytest.mark.parametrize("placement", [None, {"placements": ["S(0)"]}])
def test_an_unknown_placement_is_inconclusive(tmp_path: Path, placement: Any) -> None:
    """Also that of shards whose indices are their own."""
    write_ranks(tmp_path / "a", {})
    write_ranks(tmp_path / "b", {"forward": placement, "gradient": None, "x": None}, drift=0.1)
    found, *_ = compare(*(load_recording(str(tmp_path / name)) for name in "ab"))
    assert (found.kind, found.coverage.unplaced) == ("INCONCLUSIVE", 2)
    assert any("the placement of 2 points on the ranks is not known" in each.message for each in found.verdict.findings)


def test_as_many_ranks_are_compared_one_by_one(tmp_path: Path) -> None:
    for name, drift in (("a", 0.0), ("b", 0.0), ("c", 0.1)):
        write_ranks(tmp_path / name, {"forward": None, "gradient": None, "x": None}, drift=drift)
    a, b, c = (load_recording(str(tmp_path / name)) for name in "abc")
    assert compare(a, b)[0].kind == "PASS"
    assert compare(a, c)[0].kind == "CHANGED"


def _write_backward(folder: Path, *, loss: float = 1.0, clip: float = 1.0, wrong: str = "", cut: str = "") -> None:
    """One step of two layers and an embedding. `wrong`: has another gradient; `cut`: has none, nor its output."""
    random = np.random.default_rng(3)
    values = {name: random.standard_normal((4, 4)).astype(np.float32) for name in ("emb", "layers.0", "layers.1")}
    writer = Writer(folder)
    at = writer.row(1, "input", "", values["emb"], kind="")
    for name, each in values.items():
        writer.weight(name, each)
        at = writer.row(1, "forward", name, each, at)
    writer.row(1, "loss", "", np.array([loss], np.float32), at, kind="")
    for name in reversed([name for name in values if name != cut]):
        shift = 0.5 if cut and name == "layers.0" else 0.0
        writer.row(1, "backward", name, (values[name] + shift).astype(np.float32))
    for name in (name for name in values if name != cut):
        gradient = values[name].T * (-1.0 if name == wrong else clip)
        writer.row(1, "gradient", name, gradient.astype(np.float32), name="weight", kind="")
    for name in [*values, *(["head"] if wrong else [])]:
        writer.row(1, "parameter", name, values.get(name, values["emb"]) * 0.9, name="weight", kind="")
    writer.step(1)
    writer.close()


@pytest.mark.parametrize(
    ("changes", "kind", "module", "text"),
    [
        ({"loss": 2.0}, "module", "(model)", "the outputs of the model agree: its targets, or the code"),
        ({"loss": 2.0}, "module", "(model)", "it is 2 times that of A"),
        ({"clip": 1.001, "wrong": "layers.0"}, "gradient", "layers.0", "the gradient of layers.0.weight in step 1"),
        ({"clip": 1.001}, "gradient", "emb", "every gradient of this step is 1.001 times that of A"),
        ({"cut": "layers.1"}, "missing", "layers.1", "layers.1.weight has no gradient in B"),
    ],
)
def test_behind_the_outputs_of_the_model(
    tmp_path: Path, changes: dict[str, Any], kind: str, module: str, text: str
) -> None:
    _write_backward(tmp_path / "a")
    _write_backward(tmp_path / "b", **changes)
    found, *_ = compare(load_recording(str(tmp_path / "a")), load_recording(str(tmp_path / "b")))
    assert found.first is not None
    assert (found.first.kind, found.first.module) == (kind, module)
    assert text in found.first.text
    assert ("parameters of B alone: head.weight" in found.notes) == ("wrong" in changes)


@pytest.mark.parametrize(
    ("active", "flags", "later", "kind"),
    [
        (True, {}, "0", "random"),
        (False, {}, "0", "module"),  # in evaluation a dropout does nothing
        (False, {}, "1", "random"),  # F.dropout: only the random state shows it
        (True, {"fallback_random": True}, "0", "module"),
    ],
)
def test_dropout_in_a_compiled_region_is_inconclusive(
    tmp_path: Path, active: bool, flags: dict[str, bool], later: str, kind: str
) -> None:
    x = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
    for name in ("a", "b"):
        is_compiled = name == "b"
        writer = Writer(tmp_path / name, flags=flags if is_compiled else {})
        for step in (1, 2):
            at = writer.row(step, "input", "", x, kind="")
            if not is_compiled:
                at = writer.row(step, "forward", "drop", x * 1.25 if active else x, at, kind="Dropout")
            writer.row(step, "forward", "", x * (1.5 if is_compiled else 1.25), at, kind="Net")
            if not is_compiled:
                writer.row(step, "backward", "drop", x * 0.5, at, kind="Dropout")  # a gradient is never what went in
            writer.step(step, random=later if is_compiled and step == 2 else "0")
        writer.steps.append({"end": True, "graphs": {"graphs": int(is_compiled)}})
        writer.close(end=False)
    found, *_ = compare(load_recording(str(tmp_path / "a")), load_recording(str(tmp_path / "b")))
    assert found.first is not None
    assert (found.first.kind, found.kind) == (kind, "INCONCLUSIVE" if kind == "random" else "CHANGED")
    assert ("fallback_random = True" in found.first.text) == (kind == "random")
    assert ("record both sides with --inside" in found.first.text) == (kind == "module")


def test_values_whose_squares_are_lost_have_a_norm(tmp_path: Path) -> None:
    """The second moment of a gradient that is rounding alone: in float32 its squares are 0."""
    x = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
    for name, factor in (("a", 1e-25), ("b", 1.5e-25)):
        writer = Writer(tmp_path / name)
        writer.row(1, "optimiser", "k", (x * factor).astype(np.float32), name="bias.exp_avg_sq")
        writer.rows[0]["sumsq"] = 0.0
        writer.step(1)
        writer.close()
    found, *_ = compare(load_recording(str(tmp_path / "a")), load_recording(str(tmp_path / "b")))
    assert found.first is not None
    assert found.first.error_out == pytest.approx(1 / 3, rel=0.01)


@pytest.mark.parametrize("unread", [1, 3])
def test_what_could_not_be_read_is_not_equal(tmp_path: Path, unread: int) -> None:
    """Rows of functorch's tensors are all zeros on both sides."""
    for name in ("a", "b"):
        writer = Writer(tmp_path / name)
        for number in range(4):
            values = np.zeros((2, 2), np.float32) if number < unread else np.full((2, 2), 1.5, np.float32)
            writer.row(1, "forward", f"layers.{number}", values)
            writer.rows[-1]["flags"] = 2 * (number < unread)
        writer.step(1)
        writer.close()
    found, *_ = compare(load_recording(str(tmp_path / "a")), load_recording(str(tmp_path / "b")))
    assert (found.kind, found.coverage.rows) == ("INCONCLUSIVE", 4 - unread)
    assert any("could not be read when recording: not compared" in each.message for each in found.verdict.findings)
