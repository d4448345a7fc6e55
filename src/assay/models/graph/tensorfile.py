"""Tensors in files: a folder of `.npy` files with a list of names, and single files of users.

numpy's files support neither bfloat16, nor the 8-bit floats, nor 4-bit integers: such tensors are stored as unsigned
integers of the same width, with the true type in the list. Strings are in JSON files. The list is written last: a
folder without a list is incomplete.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from assay.errors import AssayError, FormatError, MissingExtraError, NotFoundError, UsageError
from assay.models.graph.onnx_library import parse_message
from assay.models.libraries import np, onnx
from assay.models.values.tensors import TensorRef
from assay.system.files import write_atomic

Array = Any  # numpy.ndarray: the library is loaded inside functions only

LIST_FILE = "tensors.json"
VERSION = 1
STRING = "string"
_SUFFIXES = (".npy", ".npz", ".bin", ".raw", ".pb", ".json")


def name_dtype(array: Array) -> str:
    """Return the type of an array as in `TensorSpec.dtype`: numpy's or ml_dtypes' name, or "string"."""
    return STRING if array.dtype.kind in "OUS" else str(array.dtype.name)


def parse_dtype(name: str) -> Any:
    """Return the numpy type of this name. Raises NotFoundError."""
    if name == STRING:
        return np.dtype(object)
    with suppress(TypeError, ValueError, SyntaxError):
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError:
        raise MissingExtraError(f"the type {name}", "models") from None
    found = getattr(ml_dtypes, name, None)
    if isinstance(found, type):
        return np.dtype(found)
    known = [word for word in dir(ml_dtypes) if isinstance(getattr(ml_dtypes, word), type)]
    raise NotFoundError("tensor type", name, [*known, "float32", "float16", "int64", "int32", "uint8", "bool", STRING])


def content_sha(array: Array) -> str:
    """Return a hash of dtype, shape and bytes, equal for equal tensors of any layout in memory."""
    digest = hashlib.sha256(f"{name_dtype(array)}{list(array.shape)}".encode())
    if name_dtype(array) == STRING:
        digest.update(json.dumps(_texts(array)).encode())
    else:
        digest.update(store(np.asarray(array, order="C")).reshape(-1).view(np.uint8))
    return digest.hexdigest()


def store(array: Array) -> Array:
    """Return the array in a type that numpy's files and buffers support, in the machine's byte order."""
    if not array.dtype.isnative:
        return array.astype(array.dtype.newbyteorder("="))
    return array if array.dtype.isbuiltin == 1 else array.view(f"u{array.dtype.itemsize}")


def _texts(array: Array) -> list[str]:
    return [item.decode("utf-8", "surrogateescape") if isinstance(item, bytes) else str(item) for item in array.flat]


def write_tensors(folder: str | os.PathLike[str], arrays: Mapping[str, Array]) -> tuple[TensorRef, ...]:
    """Write all arrays in their order; a missing folder is created, an older list in the folder is replaced."""
    base = os.path.abspath(folder)
    os.makedirs(base, exist_ok=True)
    listed = os.path.join(base, LIST_FILE)
    if os.path.lexists(listed):
        os.remove(listed)  # without the list the folder is incomplete
    refs = tuple(_write_one(base, number, name, array) for number, (name, array) in enumerate(arrays.items()))
    rows = [
        {"name": ref.name, "file": os.path.basename(ref.path), "dtype": ref.dtype, "shape": ref.shape, "sha": ref.sha}
        for ref in refs
    ]
    write_atomic(listed, json.dumps({"version": VERSION, "tensors": rows}, indent=1))
    return refs


def _write_one(folder: str, number: int, name: str, array: Array) -> TensorRef:
    array = np.asarray(array)
    dtype = name_dtype(array)
    path = os.path.join(folder, f"{number}.json" if dtype == STRING else f"{number}.npy")
    if dtype == STRING:
        with open(path, "w", encoding="utf-8") as text:
            json.dump({"shape": array.shape, "texts": _texts(array)}, text)
    else:
        with open(path, "wb") as stream:
            np.save(stream, store(array), allow_pickle=False)
    return TensorRef(name, path, dtype, tuple(array.shape), content_sha(array))


def load_refs(folder: str | os.PathLike[str]) -> tuple[TensorRef, ...]:
    """Return references to the tensors of a folder. Raises FormatError for an incomplete or damaged folder."""
    base = os.path.abspath(folder)
    listed = os.path.join(base, LIST_FILE)
    try:
        with open(listed, encoding="utf-8") as stream:
            content = json.load(stream)
        if content["version"] != VERSION:
            raise FormatError(f"{listed}: version {content['version']} is not known here", "use a newer Assay")
        return tuple(_parse_ref(base, row) for row in content["tensors"])
    except FileNotFoundError:
        raise FormatError(f"{base} contains no finished set of tensors: {LIST_FILE} is missing") from None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise FormatError(f"{listed} is damaged: {error}", "remove the folder and make it again") from error


def _parse_ref(folder: str, row: Mapping[str, Any]) -> TensorRef:
    file = str(row["file"])
    if os.path.basename(file) != file:
        raise ValueError(f"{file!r} is not a plain file name")
    shape = tuple(int(dim) for dim in row["shape"])
    return TensorRef(str(row["name"]), os.path.join(folder, file), str(row["dtype"]), shape, str(row["sha"]))


def load_tensors(folder: str | os.PathLike[str]) -> dict[str, Array]:
    """Load all tensors of a folder by name."""
    return {ref.name: load_ref(ref) for ref in load_refs(folder)}


def load_ref(ref: TensorRef) -> Array:
    """Load a tensor. Raises FormatError if the file does not match the list."""
    try:
        array = load_array(ref.path, ref.dtype)
    except UsageError as error:
        raise FormatError(f"the tensor {ref.name!r} cannot be read: {error.message}") from error
    if name_dtype(array) != ref.dtype or array.shape != ref.shape:
        found = f"{name_dtype(array)}{list(array.shape)}"
        raise FormatError(f"{ref.path} holds {found}, its list says {ref.dtype}{list(ref.shape)}")
    return array


def load_array(path: str | os.PathLike[str], dtype: str | None = None, shape: Sequence[int] | None = None) -> Array:
    """Load one tensor from `.npy`, an `.npz` of one array, raw `.bin`/`.raw` (needs `dtype`), ONNX's `.pb`, or `.json`.
    `dtype` also states what unsigned integers in a file represent (bfloat16 as uint16). Raises UsageError."""
    name = os.fspath(path)
    suffix = os.path.splitext(name)[1].lower()
    if suffix not in _SUFFIXES:
        raise UsageError(f"{name} is not a tensor file", f"known are {', '.join(_SUFFIXES)}")
    try:
        array = _load_raw(name, dtype) if suffix in (".bin", ".raw") else _load_kind(name, suffix)
    except FileNotFoundError:
        raise UsageError(f"there is no file {name}") from None
    except AssayError:
        raise
    except Exception as error:
        # numpy reads headers with Python's tokenizer, and zip files with zlib: each raises errors of its own
        raise UsageError(f"{name} is not a readable {suffix} file: {_one_line(error)}") from error
    array = _typed(array, dtype, name)
    if shape is None:
        return array
    try:
        return array.reshape(tuple(shape))
    except ValueError:
        raise UsageError(f"{name} has {array.size} elements, which do not fill {list(shape)}") from None


def load_arrays(path: str | os.PathLike[str]) -> dict[str, Array]:
    """Load all arrays of an `.npz` file by name, or of a folder that `write_tensors` made."""
    if os.path.isdir(path):
        return load_tensors(path)
    try:
        with open(path, "rb") as stream, np.load(stream, allow_pickle=False) as found:
            return {name: found[name] for name in found.files}
    except FileNotFoundError:
        raise UsageError(f"there is no file {os.fspath(path)}") from None
    except Exception as error:
        raise UsageError(f"{os.fspath(path)} is not a readable .npz file: {_one_line(error)}") from error


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__


def _load_kind(path: str, suffix: str) -> Array:
    if suffix == ".npz":
        arrays = load_arrays(path)
        if len(arrays) != 1:
            raise UsageError(f"{path} holds {len(arrays)} arrays, not one: {', '.join(arrays)}")
        return next(iter(arrays.values()))
    with open(path, "rb") as stream:
        if suffix == ".npy":
            return np.lib.format.read_array(stream, allow_pickle=False)
        content = stream.read()
    if suffix == ".pb":
        return onnx.numpy_helper.to_array(parse_message(onnx.TensorProto(), content))
    texts = json.loads(content)
    return np.array(texts["texts"], dtype=object).reshape(texts["shape"])


def _load_raw(path: str, dtype: str | None) -> Array:
    if dtype is None or dtype == STRING:
        raise UsageError(f"{path} is raw bytes: its type and shape must be given")
    kind = parse_dtype(dtype)
    with open(path, "rb") as stream:
        content = stream.read()
    if len(content) % kind.itemsize:
        raise UsageError(f"{path} has {len(content)} bytes, which is not a multiple of {dtype}'s {kind.itemsize}")
    return np.frombuffer(content, kind).copy()


def _typed(array: Array, dtype: str | None, path: str) -> Array:
    """Return unsigned integers, or the raw bytes of a type that numpy does not know, with their true type."""
    if dtype is None:
        if array.dtype.kind == "V":
            raise UsageError(f"{path} holds a type that numpy's files cannot name", "give its type, such as bfloat16")
        return array
    kind = parse_dtype(dtype)
    if array.dtype != kind and kind.isbuiltin != 1 and array.dtype.kind in "uV":
        if array.dtype.itemsize != kind.itemsize:
            raise UsageError(f"{path} holds elements of {array.dtype.itemsize} bytes, {dtype} has {kind.itemsize}")
        return array.view(kind)
    return array
