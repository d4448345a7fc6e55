"""Inputs that suit the model: seeded, in range, of the right shape; and everything that does not fit is named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from tests.example_models import assert_equal, parse, run

from assay.errors import NotFoundError, UsageError
from assay.models.graph.graph import build_outline
from assay.models.graph.inputs import build_samples, describe, find_problems, parse_files, plan_inputs
from assay.models.graph.tensorfile import content_sha, write_tensors
from assay.models.values.model import InputChoice
from assay.models.values.tensors import TensorSpec

TWO = "g (float[n,3] x, int64[n] t) => (float[n,3] y) <float[5,3] table = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15}> { e = Gather(table, t)  y = Add(x, e) }"


def draw(model: onnx.ModelProto, files: Any = (), function: Any = None, **options: Any) -> list[dict[str, Any]]:
    if callable(function):
        globals()["given_function"], function = function, f"{__name__}:given_function"
    texts = [f"{name}={path}" for name, path in files.items()] if isinstance(files, dict) else map(str, files)
    return build_samples(build_outline(model), model, InputChoice(files=tuple(texts), function=function, **options))


@pytest.mark.parametrize("sizes", ["4000000,4000000", "4611686018427387904,4611686018427387904"])
def test_what_does_not_fit_into_memory_is_refused(sizes: str) -> None:
    with pytest.raises(UsageError, match=r"the input 'x' of \d+ x \d+ float32 is too large for this machine"):
        draw(parse(f"g (float[{sizes}] x) => (float[{sizes}] y) {{ y = Relu(x) }}"))


def test_the_same_seed_gives_the_same_numbers_and_another_gives_others() -> None:
    """Neither the count of samples nor another input changes anything."""
    model = parse(TWO)
    first, again, other = (draw(model, seed=seed)[0]["x"] for seed in (1, 1, 2))
    assert_equal(first, again)
    assert first.tolist() != other.tolist()
    three = draw(model, samples=3)
    assert len({sample["x"].tobytes() for sample in three}) == 3
    assert_equal(draw(model, samples=1)[0]["x"], three[0]["x"])
    alone = parse("g (float[2,3] x) => (float[2,3] y) { y = Relu(x) }")
    beside = parse("g (float[7] first, float[2,3] x) => (float[2,3] y, float[7] z) { y = Relu(x)  z = Neg(first) }")
    assert_equal(draw(alone)[0]["x"], draw(beside)[0]["x"])
    with pytest.raises(UsageError, match="0 samples are not enough"):
        draw(model, samples=0)


def test_the_numbers_are_the_same_in_every_process(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(parse(TWO).SerializeToString())
    code = (
        "import sys; from assay.models.graph.graph import build_outline, load_model\n"
        "from assay.models.graph.inputs import build_samples; from assay.models.graph.tensorfile import content_sha\n"
        "found = build_samples(build_outline(sys.argv[1]), load_model(sys.argv[1]))[0]\n"
        "print([content_sha(a) for a in found.values()])"
    )
    env = os.environ | {"PYTHONHASHSEED": "1"}
    words = [sys.executable, "-c", code, tmp_path / "m.onnx"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str([content_sha(array) for array in draw(parse(TWO))[0].values()])


def bounds(body: str, name: str = "x", **options: Any) -> tuple[float, float]:
    model = parse(body, **options)
    plans = {plan.name: plan.domain for plan in plan_inputs(build_outline(model), model)}
    return plans[name].low, plans[name].high


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("g (float[4] x) => (float[4] y) { y = Relu(x) }", (-1, 1)),
        ("g (uint8[4] x) => (float[4] y) { y = Cast<to = 1>(x) }", (0, 255)),
        ("g (int8[4] x) => (float[4] y) { y = Cast<to = 1>(x) }", (-128, 127)),
        ("g (int32[4] x) => (int32[4] y) { y = Neg(x) }", (0, 9)),
        ("g (int64[4] x) => (float[4,2] y) <float[3,2] w = {1,2,3,4,5,6}> { y = Gather(w, x) }", (0, 2)),
        ("g (int64[4] x) => (float[3,4] y) <float[3,2] w = {1,2,3,4,5,6}> { y = Gather<axis = 1>(w, x) }", (0, 1)),
        ("g (int32[4] x) => (float[4,2] y) <float[3,2] w = {1,2,3,4,5,6}> { a = Cast<to = 7>(x)  y = Gather(w, a) }", (0, 2)),
        ("g (int64[4] x) => (float[4,7] y) <int64 d = {7}, float[2] v = {0, 1}> { y = OneHot(x, d, v) }", (0, 6)),
        ("g (float[4] x) => (float[4] y) { y = Log(x) }", (0.1, 2)),
        ("g (float[4] x) => (float[4] y) { a = Identity(x)  y = Sqrt(a) }", (0.1, 2)),
        ("g (float[4] z, float[4] x) => (float[4] y) { y = Div(z, x) }", (0.1, 2)),
        ("g (int32[4] z, int32[4] x) => (int32[4] y) { y = Div(z, x) }", (1, 9)),
        ("g (float[4] x) => (float[4] y) <float e = {2}> { y = Pow(x, e) }", (-1, 1)),
        ("g (float[4] x) => (float[4] y) <float e = {0.5}> { y = Pow(x, e) }", (0.1, 2)),
        ("g (float[4] x) => (float[4] y) <float b = {2}> { y = Pow(b, x) }", (0, 2)),
        ("g (float[4] x) => (float[4] y) { y = Acos(x) }", (-0.9, 0.9)),
        ("g (float[4] x) => (float[4] y) { y = Acosh(x) }", (1.1, 3)),
        ("g (float[4] x) => (float[4] y) { a = Log(x)  b = Acos(x)  y = Add(a, b) }", (0.1, 0.9)),
        ("g (float[4] x) => (float[4] y) { a = Log(x)  b = Acosh(x)  y = Add(a, b) }", (1.1, 2)),
        ("g (float[4] x) => (int64[4] y) { y = Cast<to = 7>(x) }", (0, 9)),
        ("g (float[4] x) => (bool[4] y) { y = Cast<to = 9>(x) }", (0, 1)),
        ("g (float[4] x) => (int64[1,n] y) { y = NonZero(x) }", (0, 1)),
        ("g (int64 x, bool b) => (bool y) <int64 k = {16000}> { y = Equal(x, k) }", (16000, 16000)),
        ("g (int64[4] x) => (bool[4] y) <int64 k = {16000}> { y = Equal(x, k) }", (0, 9)),
        ("g (float[4] x) => (uint8[4] y) <float s = {0.5}, uint8 z = {128}> { y = QuantizeLinear(x, s, z) }", (-64, 63.5)),
        ("g (float[4] x) => (uint8[4] y) <float s = {0.5}> { y = QuantizeLinear(x, s) }", (0, 127.5)),
        ("g (float[4] x) => (uint16[4] y) <float s = {2}, uint16 z = {1}> { y = QuantizeLinear(x, s, z) }", (-2, 131068)),
        ("g (float[4] z, int64[1] x) => (float[1] y, int64[1] i) { y, i = TopK(z, x) }", (1, 1)),
    ],
)  # fmt: skip
def test_the_range_suits_the_readers(body: str, expected: tuple[float, float]) -> None:
    assert bounds(body) == pytest.approx(expected)


@pytest.mark.parametrize(("number", "kind", "expected"), [(22, "int4", (-4, 3.5)), (3, "int8", (-64, 63.5))])
def test_a_quantiser_without_a_zero_point_names_its_type(number: int, kind: str, expected: tuple[float, float]) -> None:
    text = f"""<ir_version: 10, opset_import: ["" : 21]>
        g (float[64] x) => ({kind}[64] y) <float s = {{0.5}}> {{ y = QuantizeLinear<output_dtype = {number}>(x, s) }}"""
    model = onnx.parser.parse_model(text)
    (plan,) = plan_inputs(build_outline(model), model)
    assert (plan.domain.low, plan.domain.high) == expected


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("attention_mask", "int64[4]", (0, 1)),
        ("mask", "float[4]", (0, 1)),
        ("sr", "int64", (16000, 16000)),
        ("sampling_rate", "int32", (16000, 16000)),
        ("x_lengths", "int64[1]", (1, 1)),
        ("h0", "float[4]", (-0.1, 0.1)),
        ("past_key", "float[4]", (-0.1, 0.1)),
        ("past_tokens", "int64[4]", (0, 9)),
    ],
)
def test_names_show_what_the_graph_does_not(name: str, kind: str, expected: tuple[float, float]) -> None:
    assert bounds(f"g ({kind} {name}) => ({kind} y) {{ y = Neg({name}) }}", name) == expected


def test_states_of_recurrent_nodes_are_small_and_their_lengths_whole() -> None:
    body = """g (float[seq,1,2] x, int32[1] n, float[1,1,3] h, float[1,1,3] c) => (float[seq,1,1,3] y)
        { y = LSTM<hidden_size = 3>(x, w, r, , n, h, c) }"""
    weights = {"w": np.zeros((1, 12, 2), np.float32), "r": np.zeros((1, 12, 3), np.float32)}
    assert bounds(body, "h", weights=weights) == (-0.1, 0.1)
    assert bounds(body, "c", weights=weights) == (-0.1, 0.1)
    assert bounds(body, "n", weights=weights) == (16, 16)  # what `seq` became


def test_a_mask_never_hides_everything() -> None:
    (found,) = draw(parse("g (int64[2,50] mask) => (int64[2,50] y) { y = Neg(mask) }"))
    assert set(found["mask"].flat) == {0, 1}
    assert found["mask"][:, 0].tolist() == [1, 1]
    scalar = parse("g (bool mask) => (bool y) { y = Not(mask) }")
    assert draw(scalar)[0]["mask"].shape == ()


@pytest.mark.parametrize("number", [n for n in TensorProto.DataType.values() if n])
def test_every_type_can_be_drawn(number: int) -> None:
    ends = [helper.make_tensor_value_info(name, number, [2, 50]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", ends[:1], ends[1:])
    (found,) = draw(helper.make_model(graph))
    assert found["x"].shape == (2, 50)
    assert str(found["x"].dtype) == str(np.dtype(helper.tensor_dtype_to_np_dtype(number)))
    assert len(set(map(str, found["x"].flat))) > 1


def test_given_ranges_win() -> None:
    (found,) = draw(parse(TWO), ranges={"x": (5, 6), "t": (3, 3)})
    assert found["x"].min() >= 5
    assert found["x"].max() <= 6
    assert found["t"].tolist() == [3]


@pytest.mark.parametrize(
    ("body", "ranges", "complaint"),
    [
        (TWO, {"x": (2, 1)}, "range 2:1 for 'x' is empty"),
        (TWO, {"t": (0.5, 2)}, "not values of int64"),
        (TWO, {"tt": 1}, "no input of the model named 'tt'"),
        ("g (uint8[4] x) => (uint8[4] y) { y = Identity(x) }", {"x": (-1, 5)}, "not values of uint8"),
    ],
)
def test_ranges_that_cannot_be_are_reported(body: str, ranges: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        draw(parse(body), ranges=ranges)


@given(
    low=st.floats(-100, 100), width=st.floats(0, 100), seed=st.integers(0, 2**64),
    dtype=st.sampled_from(["float", "double", "int32", "int64"]),
)  # fmt: skip
def test_whatever_is_drawn_is_within(low: float, width: float, seed: int, dtype: str) -> None:
    if dtype.startswith("int"):
        low, width = round(low), round(width)
    model = parse(f"g ({dtype}[20] x) => ({dtype}[20] y) {{ y = Identity(x) }}")
    found = draw(model, seed=seed, ranges={"x": (low, low + width)})[0]["x"].astype(np.float64)
    slack = 1e-5 * (abs(low) + width) + 1e-30  # single floats round, the smallest ones to zero
    assert found.min() >= low - slack
    assert found.max() <= low + width + slack


def shapes(body: str, **options: Any) -> dict[str, tuple[int, ...]]:
    weights = options.pop("weights", None)
    return {name: value.shape for name, value in draw(parse(body, weights=weights), **options)[0].items()}


def test_a_symbol_is_the_same_everywhere() -> None:
    body = "g (float[batch,seq] x, float[seq,batch] z) => (float[batch,batch] y) { y = MatMul(x, z) }"
    assert shapes(body) == {"x": (1, 16), "z": (16, 1)}
    assert shapes(body, dims={"batch": 4, "seq": 2}) == {"x": (4, 2), "z": (2, 4)}
    assert shapes(body, dims={"x": (3, 5)}) == {"x": (3, 5), "z": (5, 3)}
    with pytest.raises(NotFoundError, match="'bacth'") as caught:
        shapes(body, dims={"bacth": 2})
    assert "batch" in str(caught.value)


@pytest.mark.parametrize(
    ("dims", "node", "weight", "shape"),
    [
        ("N,3,height,width", "Relu(x)", None, (1, 3, 64, 64)),
        ("a,b,c,d", "Relu(x)", None, (1, 3, 64, 64)),
        ("N", "Relu(x)", None, (1,)),
        ("batch,samples", "Relu(x)", None, (1, 16000)),
        ("a,b,c,d", "Conv(x, w)", (4, 5, 1, 1), (1, 5, 64, 64)),
        ("a,b,c,d", "Conv<group = 5>(x, w)", (5, 1, 1, 1), (1, 5, 64, 64)),
        ("a,b", "MatMul(x, w)", (7, 2), (1, 7)),
        ("a,b", "Gemm(x, w)", (7, 2), (1, 7)),
        ("a,b", "Gemm<transB = 1>(x, w)", (2, 7), (1, 7)),
    ],
)
def test_open_dimensions_have_sensible_sizes(dims: str, node: str, weight: Any, shape: tuple[int, ...]) -> None:
    """By their names, or as the weights demand."""
    weights = {"w": np.zeros(weight, np.float32)} if weight else None
    made = ",".join(f"m{axis}" for axis in range(len(shape)))
    assert shapes(f"g (float[{dims}] x) => (float[{made}] y) {{ y = {node} }}", weights=weights) == {"x": shape}


def test_nameless_dimensions_need_not_be_equal() -> None:
    body = "g (float[?,3,?,?] x) => (float[?,3,?,?] y) { y = Relu(x) }"
    model = parse("g (float[1,3,4,4] x) => (float[1,3,4,4] y) { y = Relu(x) }")
    for value in (model.graph.input[0], model.graph.output[0]):
        for axis in (0, 2, 3):
            value.type.tensor_type.shape.dim[axis].dim_param = "?"
    assert draw(model)[0]["x"].shape == (1, 3, 64, 64), body
    assert draw(model, dims={"x": (2, 3, 8, 16)})[0]["x"].shape == (2, 3, 8, 16)


def test_sums_of_symbols_are_added_up() -> None:
    model = parse("g (float[p] x, float[q] z, float[r] s) => (float[p] y) { y = Relu(x) }")
    names = ("past_len", "seq_len", "past_len + seq_len + 1")
    for value, name in zip(model.graph.input, names, strict=True):
        value.type.tensor_type.shape.dim[0].dim_param = name
    found = draw(model, dims={"past_len": 5, "seq_len": 2})[0]
    assert [array.shape for array in found.values()] == [(5,), (2,), (8,)]


def save(folder: Path, name: str, array: np.ndarray) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / name, array)
    return str(folder / name)


X, T = np.full((2, 3), 7, np.float32), np.array([1, 2])


def test_single_files_come_in_order_or_by_name(tmp_path: Path) -> None:
    (found,) = draw(parse(TWO), files=[save(tmp_path, "b.npy", X), save(tmp_path, "a.npy", T)])
    assert_equal(found["x"], X)
    assert_equal(found["t"], T)
    named = draw(parse(TWO), files={"x": save(tmp_path, "x.npy", X)}, samples=2)
    assert_equal(named[1]["x"], X)
    assert named[0]["t"].shape == (2,)  # as many as x has rows
    assert named[0]["t"].tolist() != named[1]["t"].tolist()


@pytest.mark.parametrize("names", [("x", "t"), ("arr_0", "arr_1"), ("input_0", "input_1")])
def test_an_archive_is_a_sample(tmp_path: Path, names: tuple[str, str]) -> None:
    np.savez(tmp_path / "s.npz", **dict(zip(names, (X, T), strict=True)))
    np.savez(tmp_path / "r.npz", x=X + 1, t=T)
    found = draw(parse(TWO), files=[tmp_path / "s.npz", tmp_path / "r.npz"])
    assert_equal(found[0]["x"], X)
    assert_equal(found[1]["x"], X + 1)


def test_folders_of_every_kind_are_samples(tmp_path: Path) -> None:
    write_tensors(tmp_path / "ours", {"x": X, "t": T})
    save(tmp_path / "named", "x.npy", X)
    save(tmp_path / "named", "t.npy", T)
    for number in (0, 1, 10, 2):
        location = tmp_path / "sets" / f"test_data_set_{number}"
        location.mkdir(parents=True)
        for input_number, array in enumerate((X + number, T)):
            (location / f"input_{input_number}.pb").write_bytes(onnx.numpy_helper.from_array(array).SerializeToString())
        (location / "output_0.pb").write_bytes(onnx.numpy_helper.from_array(X).SerializeToString())
    (tmp_path / "raw").mkdir()
    X.tofile(tmp_path / "raw" / "x.bin")
    T.tofile(tmp_path / "raw" / "t.bin")
    for kind in ("ours", "named", "raw"):
        (found,) = draw(parse(TWO), files=[tmp_path / kind])
        assert list(found) == ["x", "t"]
        assert_equal(found["x"], X)
    assert [sample["x"][0, 0] for sample in draw(parse(TWO), files=[tmp_path / "sets"])] == [7, 8, 9, 17]


def test_types_that_numpy_lacks_and_names_with_slashes_come_from_files(tmp_path: Path) -> None:
    model = parse("g (bfloat16[2] x) => (bfloat16[2] y) { y = Identity(x) }")
    array = np.array([1, 2], ml_dtypes.bfloat16)
    (found,) = draw(model, files=[save(tmp_path, "x.npy", array)])
    assert_equal(found["x"], array)
    model.graph.input[0].name = model.graph.node[0].input[0] = "enc/x:0"
    save(tmp_path / "s", "enc_x_0.npy", array)
    (found,) = draw(model, files=[tmp_path / "s"])
    assert list(found) == ["enc/x:0"]


def test_all_that_does_not_fit_is_named_at_once(tmp_path: Path) -> None:
    np.savez(tmp_path / "s.npz", x=X.astype(np.float64), other=T)
    with pytest.raises(UsageError) as caught:
        draw(parse(TWO), files=[tmp_path / "s.npz"])
    text = str(caught.value)
    assert "'t' is missing" in text
    assert "'other' is not an input of the model" in text
    assert "'x' is float64[2, 3], not float32[n, 3]" in text
    assert "it takes x: float32[n, 3], t: int64[n]" in text


@pytest.mark.parametrize(
    ("x", "t", "complaint"),
    [
        (X[:, :2], T, r"'x' is float32\[2, 2\]"),
        (X[0], T, r"'x' is float32\[3\]"),
        (X, T[:1], r"'t' is int64\[1\], not int64\[n\]"),  # n is 2 already
        (X, T.astype(np.int32), r"'t' is int32\[2\]"),
    ],
)
def test_shapes_that_do_not_fit_are_reported(tmp_path: Path, x: np.ndarray, t: np.ndarray, complaint: str) -> None:
    np.savez(tmp_path / "bad.npz", x=x, t=t)
    np.savez(tmp_path / "good.npz", x=X, t=T)
    with pytest.raises(UsageError, match=f"sample 1: {complaint}"):
        draw(parse(TWO), files=[tmp_path / "good.npz", tmp_path / "bad.npz"])


def test_files_that_cannot_be_samples_are_reported(tmp_path: Path) -> None:
    one = save(tmp_path, "x.npy", X)
    np.savez(tmp_path / "s.npz", x=X, t=T)
    (tmp_path / "empty").mkdir()
    cases: list[tuple[Any, str]] = [
        ([one], "1 files for 2 inputs: 'x', 't'"),
        ([one, tmp_path / "s.npz"], "either as single arrays"),
        ([tmp_path / "empty"], "contains no arrays"),
        ([tmp_path / "gone.npz"], "there is no file"),
        ({"x": str(tmp_path / "gone.npy")}, "there is no file"),
        ({"xx": one}, "no input of the model named 'xx'"),
        ([save(tmp_path, "p.npy", X), str(tmp_path / "thing.txt")], "is not a tensor file"),
    ]
    for files, complaint in cases:
        with pytest.raises(UsageError, match=complaint):
            draw(parse(TWO), files=files)


def test_a_function_makes_samples_from_what_it_asks_for() -> None:
    def make(sample: int, rng: np.random.Generator, inputs: tuple[TensorSpec, ...]) -> dict[str, Any]:
        assert [spec.name for spec in inputs] == ["x", "t"]
        return {"t": [0, sample], "x": rng.uniform(size=(2, 3)).astype(np.float32)}

    found = draw(parse(TWO), function=make, samples=2)
    assert [sample["t"].tolist() for sample in found] == [[0, 0], [0, 1]]
    assert found[0]["t"].dtype == np.int64
    assert found[0]["x"].tolist() != found[1]["x"].tolist()
    assert list(found[0]) == ["x", "t"]
    assert_equal(draw(parse(TWO), function=make)[0]["x"], found[0]["x"])


def test_tensors_of_other_libraries_become_arrays_of_their_own_type() -> None:
    class Foreign:
        dtype = "other.float64"

        def __array__(self, *_: Any, **__: Any) -> np.ndarray:
            return np.ones((2, 3))

    with pytest.raises(UsageError, match=r"'x' is float64\[2, 3\], not float32"):
        draw(parse(TWO), function=lambda: {"x": Foreign(), "t": [0, 1]})


def test_a_function_is_found_by_module_or_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "import numpy as np\ndef make():\n    return {'x': np.ones((2, 3), np.float32), 't': np.array([1, 2])}\n"
    (tmp_path / "my_inputs_of_this_test.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    for name in ("my_inputs_of_this_test:make", f"{tmp_path}/my_inputs_of_this_test.py:make"):
        assert draw(parse(TWO), function=name)[0]["x"].sum() == 6
    assert os.getcwd() not in sys.path


@pytest.mark.parametrize(
    ("source", "name", "complaint"),
    [
        ("", "make", "does not name a function"),
        ("", "gone.py:make", "there is no file"),
        ("", "no_such_module_at_all:make", "cannot be imported: ModuleNotFoundError"),
        ("make = 1", "f.py:make", "has no function 'make'"),
        ("raise RuntimeError('at home')", "f.py:make", "cannot be loaded: RuntimeError: at home"),
        ("def make(): return 1 / 0", "f.py:make", "failed for sample 0: ZeroDivisionError"),
        ("def make(): return [1]", "f.py:make", "returned list, not a mapping"),
        ("def make(model): return {}", "f.py:make", "asks for model"),
        ("def make(**rest): return {}", "f.py:make", "'x' is missing; 't' is missing"),
        ("def make(): return {'x': 'one', 't': [1, 2]}", "f.py:make", "'x' is not an array of float32: ValueError"),
        ("def make(): return {'t': [1, [2]]}", "f.py:make", "'t' is not an array of int64: ValueError"),
    ],
)
def test_functions_that_do_not_work_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, name: str, complaint: str
) -> None:
    (tmp_path / "f.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=complaint):
        draw(parse(TWO), function=name)


def test_sequences_need_a_function() -> None:
    model = parse("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    model.graph.input[0].CopyFrom(helper.make_tensor_sequence_value_info("x", TensorProto.FLOAT, [2]))
    with pytest.raises(UsageError, match=r"no random values can be made for 'x' \(sequence\)"):
        draw(model)
    (found,) = draw(model, function=lambda: {"x": [np.ones(2, np.float32)]})
    assert isinstance(found["x"], list)


def test_problems_can_be_asked_for_alone() -> None:
    specs = (TensorSpec("x", "float32", ("n", None)), TensorSpec("t", "", None))
    assert find_problems(specs, {"x": np.zeros((1, 9), np.float32), "t": np.zeros(3)}) == []
    assert [*map(describe, specs)] == ["float32[n, ?]", "unknown[…]"]


def test_words_become_files(tmp_path: Path) -> None:
    assert parse_files(["x=a.npy", "t=b.npy"]) == {"x": "a.npy", "t": "b.npy"}
    assert parse_files(["a.npz", "b"]) == ["a.npz", "b"]
    odd = save(tmp_path, "k=v.npy", X)
    assert parse_files([odd]) == [odd]
    for texts, complaint in ((["x=a.npy", "b.npz"], "either as NAME=FILE"), (["x="], "not NAME=VALUE")):
        with pytest.raises(UsageError, match=complaint):
            parse_files(texts)


def test_the_plan_reports_why() -> None:
    model = parse(TWO)
    plans = {plan.name: plan for plan in plan_inputs(build_outline(model), model, InputChoice(ranges={"x": (0, 1)}))}
    assert plans["t"].domain.why == "indices of Gather into 5 rows"
    assert plans["x"].domain.why == "as given"
    assert (plans["x"].dtype, plans["x"].shape) == ("float32", (1, 3))
    assert run(model, draw(model)[0])


@pytest.mark.parametrize(
    ("dims", "shapes"),
    [({}, {"x": (1, 16), "z": (1, 3)}), ({"n": 5}, {"x": (5, 16), "z": (5, 3)}), ({"x": (2, 7)}, {"x": (2, 7), "z": (2, 3)})],
)  # fmt: skip
def test_a_function_sees_closed_shapes_and_may_choose_others(dims: dict[str, Any], shapes: dict[str, Any]) -> None:
    model = parse("g (float[n,m] x, float[n,3] z) => (float[n,m] y) { y = Relu(x) }")
    seen: dict[str, tuple[int, ...]] = {}

    def make(inputs: Any) -> dict[str, Any]:
        seen.update({spec.name: spec.shape for spec in inputs})
        return {"x": np.ones((9, 4), np.float32), "z": np.ones((9, 3), np.float32)}

    (found,) = draw(model, function=make, dims=dims)
    assert seen == shapes
    assert found["x"].shape == (9, 4)
    with pytest.raises(NotFoundError, match="'k'"):
        draw(model, function=dict, dims={"k": 2})


@pytest.mark.parametrize(
    ("nodes", "weights", "size"),
    [
        ('u = Unsqueeze(x, one)  y = Pad<mode = "reflect">(u, pads)', {"one": [1], "pads": [0, 0, 200] * 2}, 201),
        ("a = Abs(x)  y = Gather<axis = 1>(a, many)", {"many": [3, 99]}, 100),
        ("y = Gather<axis = 1>(x, many)", {"many": [-80]}, 80),
        ("y = Reshape(x, shape)", {"shape": [2, 5, 7]}, 70),
        ("y = Reshape(x, shape)", {"shape": [-1, 40]}, 40),
        ("y = Add(x, row)", {"row": np.full((1, 33), 0.5, np.float32)}, 33),
        ("y = Abs(x)", {}, 16),
    ],
)
def test_an_open_dimension_is_as_large_as_its_readers_need(nodes: str, weights: dict[str, Any], size: int) -> None:
    model = parse(f"g (float[1,t] x) => (float y) {{ {nodes} }}", weights=weights)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    (plan,) = plan_inputs(build_outline(model), model)
    assert plan.shape == (1, size)
