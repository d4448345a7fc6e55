"""Samples that a user brings: arrays in files and folders, or from a Python function."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any

from assay.errors import UsageError
from assay.models.graph.tensorfile import LIST_FILE, Array, load_array, load_arrays, load_tensors
from assay.models.values.tensors import TensorSpec

Sample = dict[str, Array]
Files = Mapping[str, str] | Sequence[str | os.PathLike[str]]
_ARRAY_SUFFIXES = (".npy", ".pb", ".bin", ".raw")
_NUMBERED = re.compile(r"(?:input|arr|in)_?(\d+)")


def load_samples(files: Sequence[str | os.PathLike[str]], specs: Sequence[TensorSpec]) -> list[Sample]:
    """One sample per archive or folder; single arrays together make one sample, in the order of the inputs."""
    names = [os.fspath(path) for path in files]
    single = [name for name in names if not os.path.isdir(name) and not name.endswith(".npz")]
    if single and len(single) != len(names):
        raise UsageError("give the inputs either as single arrays, or as one archive or folder per sample")
    if single:
        return [_load_row(single, specs)]
    return [sample for name in names for sample in _load_source(name, specs)]


def load_named(files: Mapping[str, str], specs: Sequence[TensorSpec]) -> Sample:
    """Arrays for some inputs by name."""
    return {name: _load_one(path, _find_spec(name, specs)) for name, path in files.items()}


def _find_spec(name: str, specs: Sequence[TensorSpec]) -> TensorSpec | None:
    return next((spec for spec in specs if spec.name == name), None)


def _load_one(path: str, spec: TensorSpec | None) -> Array:
    is_raw = path.endswith((".bin", ".raw"))
    shape = [dim if isinstance(dim, int) else -1 for dim in spec.shape] if spec and spec.shape is not None else None
    if shape is not None and shape.count(-1) > 1:
        shape = None  # raw bytes cannot tell two open dimensions apart: the check of shapes will say so
    return load_array(path, spec.dtype if spec else None, shape if is_raw else None)


def _load_row(paths: Sequence[str], specs: Sequence[TensorSpec]) -> Sample:
    if len(paths) != len(specs):
        wanted = ", ".join(repr(spec.name) for spec in specs)
        raise UsageError(
            f"{len(paths)} files for {len(specs)} inputs: {wanted}", "or name the input: NAME=FILE, others stay random"
        )
    return {spec.name: _load_one(path, spec) for path, spec in zip(paths, specs, strict=True)}


def _load_source(source: str, specs: Sequence[TensorSpec]) -> list[Sample]:
    if not os.path.isdir(source):
        return [_rename(load_arrays(source), specs)]
    if os.path.exists(os.path.join(source, LIST_FILE)):
        return [load_tensors(source)]
    entries = sorted(os.listdir(source), key=_natural)
    folders = [os.path.join(source, entry) for entry in entries if os.path.isdir(os.path.join(source, entry))]
    archives = [os.path.join(source, entry) for entry in entries if entry.endswith(".npz")]
    if folders or archives:
        return [sample for inner in (*folders, *archives) for sample in _load_source(inner, specs)]
    arrays = [entry for entry in entries if entry.endswith(_ARRAY_SUFFIXES) and not entry.startswith("output")]
    if not arrays:
        raise UsageError(f"the folder {source} holds no arrays", f"known are {', '.join((*_ARRAY_SUFFIXES, '.npz'))}")
    return [_load_folder(source, arrays, specs)]


def _load_folder(source: str, entries: Iterable[str], specs: Sequence[TensorSpec]) -> Sample:
    named = {_name_input(os.path.splitext(entry)[0], specs): os.path.join(source, entry) for entry in entries}
    return load_named(named, specs)


def _rename(arrays: Mapping[str, Array], specs: Sequence[TensorSpec]) -> Sample:
    return {_name_input(name, specs): array for name, array in arrays.items()}


def _name_input(name: str, specs: Sequence[TensorSpec]) -> str:
    """`input_0` and numpy's `arr_0` are places, where no input has such a name; `a_b` is `a/b` where a file says so."""
    if any(spec.name == name for spec in specs):
        return name
    match = _NUMBERED.fullmatch(name)
    if match and int(match[1]) < len(specs):
        return specs[int(match[1])].name
    alike = [spec.name for spec in specs if re.sub(r"[^\w.-]", "_", spec.name) == name]
    return alike[0] if len(alike) == 1 else name


def _natural(text: str) -> list[tuple[int, str]]:
    """`set_10` after `set_9`."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", text) if part]


# ---------------------------------------------------------------- a Python function


def call_function(function: str | Callable[..., Any], number: int, given: Mapping[str, Any]) -> Sample:
    """One sample of a user's function, which is handed what its signature names: `sample`, `rng`, `inputs`."""
    found = load_function(function) if isinstance(function, str) else function
    label = function if isinstance(function, str) else getattr(function, "__name__", "the function")
    offered = {"sample": number, **given}
    parameters = inspect.signature(found).parameters.values()
    unknown = [
        p.name for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD and p.name not in offered
    ]
    if unknown:
        raise UsageError(f"{label} asks for {', '.join(unknown)}", f"it can have: {', '.join(offered)}")
    try:
        made = found(**{p.name: offered[p.name] for p in parameters if p.name in offered})
    except Exception as error:
        raise UsageError(f"{label} failed for sample {number}: {type(error).__name__}: {error}") from error
    if not isinstance(made, Mapping):
        raise UsageError(f"{label} returned {type(made).__name__}, not a mapping of input names to arrays")
    return dict(made)


def load_function(name: str) -> Callable[..., Any]:
    """`module:function`, looked for from the working directory, or `path/to/file.py:function`."""
    source, _, attribute = name.rpartition(":")
    if not source or not attribute:
        hint = "write it as module:function or path/to/file.py:function"
        raise UsageError(f"{name!r} does not name a function", hint)
    module = _load_file(source) if source.endswith(".py") else _import_module(source)
    found = getattr(module, attribute, None)
    if not callable(found):
        raise UsageError(f"{source} has no function {attribute!r}")
    return found  # type: ignore[no-any-return]


def _load_file(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(os.path.splitext(os.path.basename(path))[0], path)
    if spec is None or spec.loader is None or not os.path.isfile(path):
        raise UsageError(f"there is no file {path}")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UsageError(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error
    return module


def _import_module(name: str) -> ModuleType:
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise UsageError(f"the module {name} cannot be imported: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(here)
