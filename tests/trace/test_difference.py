"""Where two traces begin to differ: pairs, noise, causes, ranks. The traces are files, as the recorder writes them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.trace_files import UNKNOWN, Program, Writer, compare_folders

from assay.trace.comparing import load_recording
from assay.trace.judge.difference import Comparison, judge_finite
from assay.trace.judge.errors import UNITS, WITHIN
from assay.trace.judge.pairing import translate_names
from assay.trace.judge.sides import build_side

ULP = 2.0**-23
BF16 = np.dtype(ml_dtypes.bfloat16)
X = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)


def judge(tmp_path: Path, b: Program, a: Program | None = None, noise: int = 0) -> Comparison:
    (a or Program()).write(tmp_path / "a")
    for number in range(noise):
        Program(noise=ULP * (number + 1) / noise).write(tmp_path / "a", f"noise-{number + 1}")
    b.write(tmp_path / "b")
    return compare_folders(tmp_path)


def judge_rows(
    tmp_path: Path, write: Callable[[Writer, bool], object], *, noise: bool = False, step: bool = True
) -> Comparison:
    """`write` adds the rows of a side, B or not. `step`: it is completed."""
    for name, below in (("a", ""), *([("a", "noise-1")] if noise else []), ("b", "")):
        writer = Writer(tmp_path / name, below)
        write(writer, name == "b")
        if step:
            writer.step(1)
        writer.close()
    return compare_folders(tmp_path)


def test_equal_bits_pass(tmp_path: Path) -> None:
    found = judge(tmp_path, Program())
    assert (found.kind, found.first, found.coverage.fraction) == ("PASS", None, 1.0)
    assert "22 tensors are equal bit for bit" in found.verdict.findings[0].message


def test_the_first_layer_whose_inputs_agree_is_named(tmp_path: Path) -> None:
    found = judge(tmp_path, Program(scale={(2, 1): 1.001}))
    first = found.first
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
    assert kind == "PASS" or found.first.module == "layers.2"


@pytest.mark.parametrize(
    ("changes", "kind", "name"),
    [
        ({"facts": {"flags": {"tf32": True}}, "scale": {(1, 0): 1.01}}, "flag", "tf32"),
        ({"facts": {"flags": {"threads": 8}}, "scale": {(1, 0): 1.01}}, "module", "output.0"),
        ({"facts": {"groups": [{"weight_decay": 0.5, "parameters": 3}]}, "decay": 0.5}, "group", "optimiser group 0"),
        # other groups cannot change what the first step computes before the optimiser
        ({"facts": {"groups": [{"weight_decay": 0.5, "parameters": 3}]}, "scale": {(1, 1): 2}}, "module", "output.0"),
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
    assert (found.kind, found.first.kind, found.first.name) == ("CHANGED", kind, name)
    is_later = "groups" in changes.get("facts", {}) and kind == "module"
    assert any("weight_decay 0 in A, 0.5 in B" in note for note in found.notes) == is_later
    texts = {"shift": "A saw these data in step 2: another order", "swapped": "2 of its 16 rows are in another order"}
    assert all(text in found.first.text for change, text in texts.items() if change in changes)


@pytest.mark.parametrize("noise", [0, 1])
@pytest.mark.parametrize(
    ("values", "kind"), [({"momentum": 0.8}, "CHANGED"), ({"fused": True}, "PASS"), ({"decoupled": False}, "PASS")]
)
def test_a_value_of_the_optimiser_that_no_tensor_shows_yet_is_named(
    tmp_path: Path, values: dict[str, Any], kind: str, noise: int
) -> None:
    """In the first step a momentum changes nothing."""
    a, b = ({"groups": [{"momentum": 0.9, "parameters": 3, **own}]} for own in ({}, values))
    found = judge(tmp_path, Program(facts=b), Program(facts=a), noise)
    assert (found.kind, found.first is None) == (kind, kind == "PASS")
    assert kind == "PASS" or "has momentum 0.9 in A, 0.8 in B; no tensor shows it" in found.first.text


def test_what_one_side_alone_trains_is_inconclusive(tmp_path: Path) -> None:
    """An additional bias is 0 at first: nothing that both have differs."""

    def write(writer: Writer, is_b: bool) -> None:
        writer.row(1, "forward", "layer", X)
        for name in ("weight", "bias")[: 1 + is_b]:
            writer.row(1, "gradient", "layer", X + 1, name=name)
            writer.row(1, "parameter", "layer", X, name=name)

    found = judge_rows(tmp_path, write)
    assert (found.kind, "B alone trains layer.bias" in str(found.verdict)) == ("INCONCLUSIVE", True)


def test_another_size_of_the_batch_is_inconclusive(tmp_path: Path) -> None:
    found = judge(tmp_path, Program(batch=4), noise=1)
    assert (found.kind, found.first.phase) == ("INCONCLUSIVE", "input")
    assert "has the shape [16, 8] in A and [16, 4] in B" in found.first.text


@pytest.mark.parametrize(("factor", "is_well"), [(1.004, True), (1.15, False)])
def test_sixteen_bits_hide_rounding_and_no_more(tmp_path: Path, factor: float, is_well: bool) -> None:
    """A unit of bf16 in the first activation is as much as any other rounding does: nothing is multiplied by 8."""
    Program(dtype=BF16).write(tmp_path / "a")
    for number in (1, 2, 3):
        Program(dtype=BF16, noise=2.0**-8 + number * 1e-9).write(tmp_path / "a", f"noise-{number}")
    Program(dtype=BF16, scale={(1, 1): factor}).write(tmp_path / "b")
    found = compare_folders(tmp_path)
    assert (found.kind == "PASS") == is_well, found.verdict
    assert is_well or found.first.module == "layers.1"


@pytest.mark.parametrize(
    ("scale", "kind", "module"), [({(1, 0): 1.01}, "FAIL", "layers.0"), ({}, "INCONCLUSIVE", "layers.1")]
)
def test_what_a_wrong_layer_makes_of_the_shapes_after_it_is_not_named(
    tmp_path: Path, scale: Any, kind: str, module: str
) -> None:
    """A wrong router sends other rows to the experts of the next layer."""
    found = judge(tmp_path, Program(scale=scale, narrow=(1, 1)), noise=1)
    assert (found.kind, found.first.module) == (kind, module)


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

    def write(writer: Writer, is_b: bool) -> None:
        at = writer.row(1, "forward", "net", X * (forward if is_b else 1.0))
        writer.row(1, "loss", "", np.array([4.0 if is_b else 1.0], np.float32), at)
        writer.row(1, "backward", "net", X * (scale if is_b else 1.0))
        writer.row(1, "gradient", "net", X * 3, name="weight")

    found = judge_rows(tmp_path, write, noise=has_noise)
    assert (found.kind, found.first and found.first.phase) == (kind, first)
    is_scaled = scale == 4 and has_noise
    assert any(each.startswith("the loss of B has another scale, 4 times") for each in found.notes) == is_scaled


def test_the_call_of_a_module_that_is_called_again_is_named(tmp_path: Path) -> None:
    def write(writer: Writer, is_b: bool) -> None:
        for call in (0, 1):
            writer.row(1, "forward", "layer", X * (2 if call and is_b else 1), call=call)

    assert judge_rows(tmp_path, write).first.text.startswith("layer (call 2) in step 1 differs by 0.5")


def test_a_program_that_completes_no_step_does_not_pass(tmp_path: Path) -> None:
    found = judge_rows(tmp_path, lambda writer, _: writer.row(1, "forward", "layer", X), step=False)
    assert found.kind == "INCONCLUSIVE"
    assert "no step of A was completed: gradients, parameters and states were not recorded" in str(found.verdict)


@pytest.mark.parametrize(
    ("changes", "noise", "kind", "module"),
    [
        ({"scale": {(1, 1): 1.5}}, 3, "module", "layers.1"),  # where the error grows most
        ({"without_gradient": "layers.2"}, 0, "missing", "layers.2"),
    ],
)
def test_another_precision_is_inconclusive(
    tmp_path: Path, changes: dict[str, Any], noise: int, kind: str, module: str
) -> None:
    found = judge(tmp_path, Program(dtype=BF16, **changes), noise=noise)
    assert (found.kind, found.other_precision) == ("INCONCLUSIVE", "bfloat16")
    assert (found.first.kind, found.first.module) == (kind, module)


# ---------------------------------------------------------------- not finite


def test_what_is_not_finite_is_found_in_one_trace_alone(tmp_path: Path) -> None:
    def check(**changes: Any) -> Any:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        return judge_finite(build_side(load_recording(str(Program(**changes).write(folder))).ranks))

    verdict, first = check(poison=(2, 1))
    assert (verdict.kind, first.module, first.step, first.inputs) == ("FAIL", "layers.1", 2, ("layers.0",))
    assert "1 of 128 values is not finite; what went in is finite (layers.0: largest" in first.text
    assert check()[0].kind == "PASS"
    assert check(poison=(2, 1), facts={"skipped": True})[0].kind == "PASS"  # a skipped step may overflow


def test_two_sides_that_are_broken_in_the_same_way_do_not_pass(tmp_path: Path) -> None:
    assert judge(tmp_path, Program(poison=(1, 1)), Program(poison=(1, 1))).kind == "INCONCLUSIVE"
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


@pytest.mark.parametrize(("factor", "kind"), [(1.0, "PASS"), (1.01, "CHANGED")])
def test_parts_of_a_fused_weight_are_paired_and_compared_by_their_norm(
    tmp_path: Path, factor: float, kind: str
) -> None:
    """Also when every weight is shared by two modules of a side."""
    random = np.random.default_rng(0)
    parts = [random.standard_normal((8, 8)).astype(np.float32) for _ in range(3)]
    ends = [random.standard_normal((4, 8)).astype(np.float32) for _ in range(2)]
    sides = (
        dict(zip(("in", "b.q", "b.k", "b.v", "out"), (ends[0], *parts, ends[1]), strict=True)),
        {"embed": ends[0], "h.qkv": np.concatenate(parts), "head": ends[1]},
    )

    def write(writer: Writer, is_b: bool) -> None:
        at = writer.row(1, "input", "", X, kind="")
        for name, weight in sides[is_b].items():
            writer.weight(name, weight)
            writer.row(1, "forward", name, (weight @ X * (factor if is_b else 1)).astype(np.float32), at)
            writer.row(1, "parameter", name, weight, name="weight", kind="")
        writer.weight("tied", ends[0])

    found = judge_rows(tmp_path, write)
    assert (found.kind, found.coverage.by["fused weights"], found.coverage.fraction) == (kind, 6, 1.0)


def test_names_are_translated_by_patterns() -> None:
    pairs = [("layers.*.attn.*", "h.*.self.*_proj"), ("embed", "wte")]
    found = translate_names(["layers.3.attn.q", "embed", "norm"], pairs)
    assert found == {"layers.3.attn.q": "h.3.self.q_proj", "embed": "wte"}


def test_an_order_alone_pairs_what_has_no_weights_and_no_equal_hash(tmp_path: Path) -> None:
    def write(writer: Writer, is_b: bool) -> None:
        random = np.random.default_rng(5)
        first, last = (random.standard_normal((6, 6)).astype(np.float32) for _ in range(2))
        x = random.standard_normal((6, 4)).astype(np.float32)
        at = writer.row(1, "input", "", x, kind="")
        for label, value in ((f"{is_b}.one", first), ("gelu" if is_b else "act", None), (f"{is_b}.two", last)):
            x = (np.tanh(x) if value is None else value @ x).astype(np.float32) * np.float32(1 + 1e-6 * is_b)
            at = writer.row(1, "forward", label, x, at)
            if value is not None:
                writer.weight(label, value)

    found = judge_rows(tmp_path, write)
    assert found.coverage.by == {"key": 1, "weights": 2, "sequence": 1}
    assert any("paired by their order alone" in note for note in found.notes)


def test_few_pairs_are_inconclusive(tmp_path: Path) -> None:
    found = judge(tmp_path, Program(names=["x", "y", "z"], seed=9, shift=50))
    assert found.kind == "INCONCLUSIVE"
    assert any("of the points are paired" in finding.message for finding in found.verdict.findings)


# ---------------------------------------------------------------- ranks

REPLICATE, SHARD, PARTIAL = {"placements": ["R"]}, {"placements": ["S(0)"], "global": True}, {"placements": ["P(sum)"]}


def write_ranks(run_dir: Path, placements: dict[str, Any], *, drift: float = 0.0, factor: float = 1.0) -> None:
    """Two ranks: an activation in halves, a gradient, and a parameter on both; or one process with all of it."""
    random = np.random.default_rng(2)
    x, gradient, weight = (random.standard_normal(shape).astype(np.float32) for shape in ((8, 4), (4, 4), (4, 4)))
    world = 2 if placements else 1
    for rank in range(world):
        writer = Writer(run_dir, rank=rank, world=world)
        part = x[rank * 4 : rank * 4 + 4] if placements else x
        at = writer.row(1, "forward", "layer", part, start=rank * part.size, placement=placements.get("forward"))
        placement = placements.get("gradient")
        share = gradient * np.float32(factor * (0.25 if rank else 0.75) if placement == PARTIAL else factor)
        writer.row(1, "gradient", "layer", share, UNKNOWN, name="weight", placement=placement)
        after = weight + np.float32(drift * rank)
        writer.row(1, "parameter", "layer", after, at, name="weight", placement=placements.get("parameter"))
        writer.weight("layer", weight)
        writer.step(1)
        writer.close()


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
    found = compare_folders(tmp_path)
    assert (found.kind, found.first and found.first.kind) == (kind, first), found.verdict
    assert "factor" not in changes or "2 times that of A" in found.first.text


@pytest.mark.parametrize("placement", [None, {"placements": ["S(0)"]}])
def test_an_unknown_placement_is_inconclusive(tmp_path: Path, placement: Any) -> None:
    """Also that of shards whose indices are their own."""
    write_ranks(tmp_path / "a", {})
    write_ranks(tmp_path / "b", {"forward": placement, "gradient": None, "x": None}, drift=0.1)
    found = compare_folders(tmp_path)
    assert (found.kind, found.coverage.unplaced) == ("INCONCLUSIVE", 2)
    assert any("the placement of 2 points on the ranks is not known" in each.message for each in found.verdict.findings)


def test_as_many_ranks_are_compared_one_by_one(tmp_path: Path) -> None:
    for name, drift in (("a", 0.0), ("b", 0.0), ("c", 0.1)):
        write_ranks(tmp_path / name, {"forward": None, "gradient": None, "x": None}, drift=drift)
    assert compare_folders(tmp_path).kind == "PASS"
    assert compare_folders(tmp_path, b="c").kind == "CHANGED"


# ---------------------------------------------------------------- after the outputs of the model


@pytest.mark.parametrize(
    ("changes", "kind", "module", "text"),
    [
        ({"loss": 2.0}, "module", "(model)", "the outputs of the model agree: its targets, or the code"),
        ({"loss": 1.0001}, "module", "(model)", "it is 1.0001 times that of A"),
        ({"clip": 1.001, "wrong": "layers.0"}, "gradient", "layers.0", "the gradient of layers.0.weight in step 1"),
        ({"clip": 1.001}, "gradient", "emb", "every gradient of this step is 1.001 times that of A"),
        ({"cut": "layers.1"}, "missing", "layers.1", "layers.1.weight has no gradient in B"),
    ],
)
def test_losses_and_gradients(tmp_path: Path, changes: dict[str, Any], kind: str, module: str, text: str) -> None:
    """One step of two layers and an embedding. `wrong`: has another gradient; `cut`: has none, nor its output."""
    random = np.random.default_rng(3)
    values = {name: random.standard_normal((4, 4)).astype(np.float32) for name in ("emb", "layers.0", "layers.1")}

    def write(writer: Writer, is_b: bool) -> None:
        own = changes if is_b else {}
        at = writer.row(1, "input", "", values["emb"], kind="")
        for name, each in values.items():
            writer.weight(name, each)
            at = writer.row(1, "forward", name, each, at)
        writer.row(1, "loss", "", np.array([own.get("loss", 1.0)], np.float32), at, kind="")
        left = [name for name in values if name != own.get("cut")]
        for name in reversed(left):
            writer.row(
                1, "backward", name, values[name] + np.float32(0.5 if "cut" in own and name == "layers.0" else 0)
            )
        for name in left:
            factor = -1.0 if name == own.get("wrong") else own.get("clip", 1.0)
            writer.row(1, "gradient", name, values[name].T * np.float32(factor), name="weight", kind="")
        for name in [*values, *(["head"] if "wrong" in own else [])]:
            writer.row(1, "parameter", name, values.get(name, values["emb"]) * 0.9, name="weight", kind="")

    found = judge_rows(tmp_path, write)
    assert (found.first.kind, found.first.module) == (kind, module)
    assert text in found.first.text
    assert ("parameters of B alone: head.weight" in found.notes) == ("wrong" in changes)


def test_a_gradient_that_is_noise_alone_is_not_named(tmp_path: Path) -> None:
    def write(writer: Writer, is_b: bool) -> None:
        is_noise = writer.folder.parent.name == "noise-1"
        for name, of_b, of_noise in (("wrong", 1.001, 1.0), ("bias", 1.5, 1.9)):
            factor = of_b if is_b else of_noise if is_noise else 1.0
            writer.row(1, "backward", name, X)
            writer.row(1, "gradient", name, X * np.float32(factor), name="weight")

    assert judge_rows(tmp_path, write, noise=True).first.module == "wrong"


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
    for name in ("a", "b"):
        is_compiled = name == "b"
        writer = Writer(tmp_path / name, flags=flags if is_compiled else {})
        for step in (1, 2):
            at = writer.row(step, "input", "", X, kind="")
            if not is_compiled:
                at = writer.row(step, "forward", "drop", X * 1.25 if active else X, at, kind="Dropout")
            writer.row(step, "forward", "", X * (1.5 if is_compiled else 1.25), at, kind="Net")
            if not is_compiled:
                writer.row(step, "backward", "drop", X * 0.5, at, kind="Dropout")  # a gradient is never what went in
            writer.step(step, random=later if is_compiled and step == 2 else "0")
        writer.steps.append({"end": True, "graphs": {"graphs": int(is_compiled)}})
        writer.close(end=False)
    found = compare_folders(tmp_path)
    assert (found.first.kind, found.kind) == (kind, "INCONCLUSIVE" if kind == "random" else "CHANGED")
    assert ("fallback_random = True" in found.first.text) == (kind == "random")
    assert ("record both sides with --inside" in found.first.text) == (kind == "module")


def test_values_whose_squares_are_lost_have_a_norm(tmp_path: Path) -> None:
    """The second moment of a gradient that is rounding alone: in float32 its squares are 0."""

    def write(writer: Writer, is_b: bool) -> None:
        writer.row(1, "optimiser", "k", X * np.float32(1.5e-25 if is_b else 1e-25), name="bias.exp_avg_sq")
        writer.rows[0]["sumsq"] = 0.0

    assert judge_rows(tmp_path, write).first.error_out == pytest.approx(1 / 3, rel=0.01)


@pytest.mark.parametrize("unread", [1, 3])
def test_what_could_not_be_read_is_not_equal(tmp_path: Path, unread: int) -> None:
    """Rows of functorch's tensors are all zeros on both sides."""

    def write(writer: Writer, _is_b: bool) -> None:
        for number in range(4):
            writer.row(1, "forward", f"layers.{number}", X * 0 if number < unread else X)
            writer.rows[-1]["flags"] = 2 * (number < unread)

    found = judge_rows(tmp_path, write)
    assert (found.kind, found.coverage.rows) == ("INCONCLUSIVE", 4 - unread)
    assert any("could not be read when recording: not compared" in each.message for each in found.verdict.findings)
