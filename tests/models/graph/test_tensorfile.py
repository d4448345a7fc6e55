"""Tensors survive the way through files: every type, every shape, odd names; damaged folders say so."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from assay.errors import FormatError, UsageError
from assay.models.graph import tensorfile
from assay.models.graph.tensorfile import content_sha, load_array, load_arrays, load_refs, load_tensors, write_tensors

PLAIN = ["float32", "float64", "float16", "int8", "uint8", "int64", "uint64", "bool", "complex64", "complex128"]
SMALL = [
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e8m0fnu",
    "float4_e2m1fn",
    "int4",
    "uint4",
    "int2",
]


def make_array(dtype: str, shape: tuple[int, ...] = (2, 3)) -> np.ndarray:
    kind = tensorfile.parse_dtype(dtype)
    return (np.arange(int(np.prod(shape))) % 2).reshape(shape).astype(kind)


def assert_same(one: np.ndarray, other: np.ndarray) -> None:
    assert one.dtype == other.dtype
    assert one.shape == other.shape
    assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("dtype", PLAIN + SMALL)
def test_every_type_comes_back_as_it_was(tmp_path: Path, dtype: str) -> None:
    before = {"x": make_array(dtype), "scalar": make_array(dtype, ()), "none": make_array(dtype, (0, 3))}
    if dtype == "float64":
        before["odd"] = np.array([np.nan, -np.nan, np.inf, -np.inf, -0.0, 5e-324])
    refs = write_tensors(tmp_path, before)
    assert {ref.dtype for ref in refs} == {dtype}
    after = load_tensors(tmp_path)
    assert list(after) == list(before)
    for name, array in before.items():
        assert_same(after[name], array)


def test_the_files_are_numpys_own_and_the_list_names_the_true_type(tmp_path: Path) -> None:
    write_tensors(tmp_path, {"a/b": np.ones((1, 2), ml_dtypes.bfloat16), "": np.zeros(1, np.int32)})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.npy", "1.npy", "tensors.json"]
    assert np.load(tmp_path / "0.npy").dtype == np.uint16
    first, second = load_refs(tmp_path)
    assert (first.name, first.dtype, first.shape) == ("a/b", "bfloat16", (1, 2))
    assert first.path == str(tmp_path / "0.npy")
    assert second.name == ""
    listed = json.loads((tmp_path / "tensors.json").read_text())["tensors"][0]
    assert (listed["shape"], listed["file"]) == ([1, 2], "0.npy")


@pytest.mark.parametrize(
    "texts", [np.array(["a", "größe\0", ""], dtype=object), np.array([[b"ab"], [b"\xff"]], dtype=object), np.array("x")]
)
def test_texts_come_back(tmp_path: Path, texts: np.ndarray) -> None:
    (ref,) = write_tensors(tmp_path, {"texts": texts})
    assert ref.dtype == "string"
    after = load_tensors(tmp_path)["texts"]
    assert after.shape == texts.shape
    expected = [item.decode(errors="surrogateescape") if isinstance(item, bytes) else item for item in texts.flat]
    assert list(after.flat) == expected


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    names=st.lists(st.sampled_from(["", "a/b:0", "größe", "名", " ", "../x"]), unique=True, max_size=4),
    shape=st.lists(st.integers(0, 4), max_size=4),
    dtype=st.sampled_from(PLAIN + SMALL),
)
def test_any_names_and_shapes_come_back(tmp_path: Path, names: list[str], shape: list[int], dtype: str) -> None:
    before = {name: make_array(dtype, tuple(shape)) for name in names}
    write_tensors(tmp_path / "set", before)
    after = load_tensors(tmp_path / "set")
    assert list(after) == names
    for name in names:
        assert_same(after[name], before[name])


def test_how_an_array_is_in_memory_does_not_matter(tmp_path: Path) -> None:
    plain = np.arange(6, dtype=np.float32).reshape(2, 3)
    others = [np.asfortranarray(plain), plain.astype(">f4"), np.arange(12, dtype=np.float32)[::2].reshape(2, 3) / 2]
    assert {content_sha(other) for other in others} == {content_sha(plain)}
    write_tensors(tmp_path, {"x": others[1], "y": others[2]})
    assert_same(load_tensors(tmp_path)["x"], plain)


def test_the_hash_distinguishes_type_shape_and_content() -> None:
    arrays = [
        np.zeros(4, np.float32), np.zeros((2, 2), np.float32), np.zeros(4, np.int32), np.zeros(2, np.float64),
        np.array([0, 0, 0, 1], np.float32), np.zeros(4, ml_dtypes.bfloat16), np.zeros(4, np.uint16),
        np.array(["a", "b"], dtype=object), np.array(["ab", ""], dtype=object), np.array([-0.0, 0, 0, 0], np.float32),
    ]  # fmt: skip
    assert len({content_sha(array) for array in arrays}) == len(arrays)


def test_a_second_set_replaces_the_first_and_an_interrupted_write_leaves_no_list(tmp_path: Path) -> None:
    class Broken:
        dtype = np.dtype(np.float32)

        def __array__(self, *_: object, **__: object) -> np.ndarray:
            raise RuntimeError("the device is gone")

    write_tensors(tmp_path, {"a": np.zeros(2), "b": np.ones(2)})
    write_tensors(tmp_path, {"c": np.full(3, 7)})
    assert [(name, array.tolist()) for name, array in load_tensors(tmp_path).items()] == [("c", [7, 7, 7])]
    with pytest.raises(RuntimeError, match="the device is gone"):
        write_tensors(tmp_path, {"a": np.zeros(3), "b": Broken()})
    with pytest.raises(FormatError, match=r"no finished set of tensors: tensors\.json is missing"):
        load_tensors(tmp_path)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "damaged"),
        ("[]", "damaged"),
        ('{"version": 1}', "damaged"),
        ('{"version": 1, "tensors": [{"name": "x"}]}', "damaged"),
        ('{"version": 99, "tensors": []}', "version 99"),
        (
            '{"version": 1, "tensors": [{"name": "x", "file": "../x.npy", "dtype": "int8", "shape": [], "sha": ""}]}',
            "plain",
        ),
    ],
)
def test_a_damaged_list_is_reported(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "tensors.json").write_text(text)
    with pytest.raises(FormatError, match=complaint):
        load_refs(tmp_path)


def test_a_file_that_is_missing_cut_or_another_is_reported(tmp_path: Path) -> None:
    write_tensors(tmp_path, {"a": np.zeros((2, 2), np.float32)})
    np.save(tmp_path / "0.npy", np.zeros((4,), np.float32))
    with pytest.raises(FormatError, match=r"float32\[4\], its list says float32\[2, 2\]"):
        load_tensors(tmp_path)
    (tmp_path / "0.npy").write_bytes((tmp_path / "0.npy").read_bytes()[:-3])
    with pytest.raises(FormatError, match="'a' cannot be read"):
        load_tensors(tmp_path)
    (tmp_path / "0.npy").unlink()
    with pytest.raises(FormatError, match="there is no file"):
        load_tensors(tmp_path)


def test_an_array_file_is_read_whatever_its_kind(tmp_path: Path) -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.save(tmp_path / "a.npy", array)
    np.savez(tmp_path / "a.npz", only=array)
    array.tofile(tmp_path / "a.bin")
    (tmp_path / "a.pb").write_bytes(onnx.numpy_helper.from_array(array).SerializeToString())
    for name in ("a.npy", "a.npz", "a.pb"):
        assert_same(load_array(tmp_path / name), array)
    assert_same(load_array(tmp_path / "a.bin", "float32", (2, 3)), array)
    assert_same(load_array(tmp_path / "a.npy", "float32", (3, 2)), array.reshape(3, 2))


def test_a_type_that_numpy_does_not_know_is_named_by_the_caller(tmp_path: Path) -> None:
    array = np.arange(4).astype(ml_dtypes.bfloat16)
    np.save(tmp_path / "nameless.npy", array)
    np.save(tmp_path / "uint.npy", array.view(np.uint16))
    array.tofile(tmp_path / "raw.raw")
    for name in ("nameless.npy", "uint.npy", "raw.raw"):
        assert_same(load_array(tmp_path / name, "bfloat16"), array)
    with pytest.raises(UsageError, match="cannot name"):
        load_array(tmp_path / "nameless.npy")
    with pytest.raises(UsageError, match="elements of 2 bytes"):
        load_array(tmp_path / "uint.npy", "float8_e4m3fn")
    np.save(tmp_path / "a.npy", np.ones(2, np.float64))
    for kind in ("float32", "bfloat16"):
        assert load_array(tmp_path / "a.npy", kind).dtype == np.float64, "numbers are never converted"


def test_files_that_cannot_be_read_report_why(tmp_path: Path) -> None:
    np.savez(tmp_path / "two.npz", a=np.zeros(1), b=np.zeros(1))
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object))
    for name in ("text.npy", "text.npz", "text.pb", "text.json"):
        (tmp_path / name).write_text("not a tensor at all")
    (tmp_path / "odd.bin").write_bytes(b"123")
    cases = [
        ("two.npz", None, "holds 2 arrays, not one: a, b"),
        ("objects.npy", None, "not a readable .npy file"),
        ("text.npy", None, "not a readable .npy file"),
        ("text.npz", None, "not a readable .npz file"),
        ("text.pb", None, "not a readable .pb file"),
        ("text.json", None, "not a readable .json file"),
        ("odd.bin", None, "type and shape must be given"),
        ("odd.bin", "float32", "not a multiple of float32's 4"),
        ("gone.npy", None, "there is no file"),
        ("gone.npz", None, "there is no file"),
        ("picture.png", None, "is not a tensor file"),
    ]
    for name, dtype, complaint in cases:
        with pytest.raises(UsageError, match=complaint):
            load_array(tmp_path / name, dtype)
    with pytest.raises(UsageError, match="do not fill"):
        load_array(_save(tmp_path), None, (7,))


def _save(folder: Path) -> Path:
    np.save(folder / "plain.npy", np.zeros(6))
    return folder / "plain.npy"


def test_many_arrays_come_from_an_archive_or_a_folder(tmp_path: Path) -> None:
    arrays = {"a": np.zeros(2), "b": np.ones(3, np.int32)}
    np.savez(tmp_path / "all.npz", **arrays)
    write_tensors(tmp_path / "set", arrays)
    for place in (tmp_path / "all.npz", tmp_path / "set"):
        found = load_arrays(place)
        assert list(found) == ["a", "b"]
        assert_same(found["b"], arrays["b"])
    with pytest.raises(UsageError, match="not a readable"):
        load_arrays(_save(tmp_path))
    with pytest.raises(UsageError, match="there is no file"):
        load_arrays(tmp_path / "gone.npz")
