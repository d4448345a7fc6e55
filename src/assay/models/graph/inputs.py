"""Inputs for a model: seeded random numbers that suit each input, arrays from files, or from a user's function.

Each random number depends on the seed, the sample and the input's name alone, not on other inputs or the machine.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from assay.errors import NotFoundError, UsageError
from assay.models.graph.graph import infer_specs
from assay.models.graph.onnx_library import Model
from assay.models.graph.submodel import NON_TENSORS
from assay.models.graph.suggest import Domain, InputGraph, is_whole_type, suggest_domain, suggest_size
from assay.models.graph.tensorfile import (
    LIST_FILE,
    Array,
    load_array,
    load_arrays,
    load_tensors,
    name_dtype,
    parse_dtype,
)
from assay.models.libraries import np
from assay.models.values.model import InputChoice, Outline
from assay.models.values.tensors import TensorSpec
from assay.system.fast_dataclasses import dataclass, replace

Dims = Mapping[str, int | Sequence[int]]  # a symbol's size, or an input's whole shape
_MOST_VALUES = 4  # the most inputs whose values a message describes
_NAMELESS = ("", "?")  # symbols without a meaning: dimensions with the same one may differ


@dataclass(frozen=True, slots=True)
class InputPlan:
    """The way in which an input is filled."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    domain: Domain


def build_samples(
    outline: Outline,
    model: Model,
    choice: InputChoice = InputChoice(),  # noqa: B008 frozen
    least: int = 0,
) -> list[Sample]:
    """Return as many samples as were chosen, or as the files have. Raises UsageError that names all inputs that do not
    fit. Files contain whole samples, or some inputs: the other inputs are random. `least` is the smallest size of an
    open dimension that is only guessed. A user's function gets the specs of the inputs with the sizes that random
    inputs would have; the arrays that it returns may have other sizes."""
    known, files, seed = [spec.name for spec in outline.inputs], parse_files(choice.files), choice.seed
    for name in (*choice.ranges, *(files if isinstance(files, Mapping) else ())):
        if name not in known:
            raise NotFoundError("input of the model", name, known)
    if not isinstance(files, Mapping):
        samples = load_samples(files, outline.inputs)
    elif choice.function is not None:
        given = {"inputs": close_specs(outline, model, choice.dims)}
        numbers = range(choice.samples)
        samples = [call_function(choice.function, n, {**given, "rng": _rng(seed, n, "")}) for n in numbers]
    elif choice.samples < 1:
        raise UsageError(f"{choice.samples} samples are not enough", "ask for one or more")
    else:
        fixed = load_named(files, outline.inputs)
        plans = plan_inputs(outline, model, _fix_shapes(choice, fixed), least)
        samples = [
            {p.name: fixed[p.name] if p.name in fixed else _draw(p, _rng(seed, n, p.name)) for p in plans}
            for n in range(choice.samples)
        ]
    typed = [_convert(outline.inputs, sample) for sample in samples]
    problems = [
        f"sample {number}: {problem}" if len(typed) > 1 else problem
        for number, sample in enumerate(typed)
        for problem in find_problems(outline.inputs, sample)
    ]
    if problems:
        wanted = ", ".join(f"{spec.name}: {describe(spec)}" for spec in outline.inputs)
        raise UsageError("the inputs do not fit the model: " + "; ".join(problems), f"it takes {wanted}")
    return typed


# ---------------------------------------------------------------- random inputs


def _fix_shapes(choice: InputChoice, fixed: Sample) -> InputChoice:
    """Return the choice with the shapes of the given arrays."""
    return replace(choice, dims={**{name: array.shape for name, array in fixed.items()}, **choice.dims})


def plan_inputs(
    outline: Outline,
    model: Model,
    choice: InputChoice = InputChoice(),  # noqa: B008 frozen
    least: int = 0,
) -> tuple[InputPlan, ...]:
    """Return how each input is filled with random numbers, and why."""
    odd = [spec for spec in outline.inputs if spec.dtype in NON_TENSORS or not spec.dtype]
    if odd:
        named = ", ".join(f"{spec.name!r} ({spec.dtype or 'of unknown type'})" for spec in odd)
        raise UsageError(f"no random values can be made for {named}", "give them from a Python function")
    graph = InputGraph(model, infer_specs(model))
    shapes = _resolve_shapes(graph, outline, choice.dims, least)
    graph.specs = {**graph.specs, **{name: TensorSpec(name, "", shape) for name, shape in shapes.items()}}
    return tuple(
        InputPlan(spec.name, spec.dtype, shapes[spec.name], _choose_domain(graph, spec, choice.ranges.get(spec.name)))
        for spec in outline.inputs
    )


def describe_invented(outline: Outline, model: Model, choice: InputChoice) -> str:
    """Describe what was invented in the random inputs, and the flags that change it; empty if nothing was."""
    files = parse_files(choice.files)
    if choice.function or not isinstance(files, Mapping):
        return ""
    choice = _fix_shapes(choice, load_named(files, outline.inputs))
    sizes, values, flags = list[str](), list[str](), dict[str, None]()
    for plan, spec in zip(plan_inputs(outline, model, choice), outline.inputs, strict=True):
        if plan.name in files:
            continue
        for axis, dim in enumerate(spec.shape or ()):
            if isinstance(dim, int) or spec.name in choice.dims or dim in choice.dims:
                continue
            is_named = dim is not None and dim not in _NAMELESS
            sizes.append(f"{dim}={plan.shape[axis]}" if is_named else f"axis {axis} of {spec.name}={plan.shape[axis]}")
            given = f"{dim}=N" if is_named else f"{spec.name}={','.join(map(str, plan.shape))}"
            flags[f"--dim {shlex.quote(given)}"] = None
        if plan.name not in choice.ranges and plan.dtype != "string":
            values.append(f"{plan.name} from {plan.domain.low:g} to {plan.domain.high:g} ({plan.domain.why})")
            flags[f"--range {shlex.quote(plan.name)}=LOW:HIGH"] = None
        flags[f"--input {shlex.quote(plan.name)}=FILE.npy"] = None
    invented = [f"dimensions {', '.join(dict.fromkeys(sizes))}"] if sizes else []
    if values:
        values[_MOST_VALUES:] = ["…"] if len(values) > _MOST_VALUES else []
        invented.append(f"values of {', '.join(values)}")
    if not invented:
        return ""
    return f"the reference got invented {' and '.join(invented)}; if they do not suit the model: {' '.join(flags)}"


def close_specs(outline: Outline, model: Model, dims: Dims) -> tuple[TensorSpec, ...]:
    """Return the inputs with numbers for their open dimensions; inputs without a shape stay unchanged."""
    shapes = _resolve_shapes(InputGraph(model, infer_specs(model)), outline, dims)
    return tuple(spec if spec.shape is None else replace(spec, shape=shapes[spec.name]) for spec in outline.inputs)


def _choose_domain(graph: InputGraph, spec: TensorSpec, given: tuple[float, float] | None) -> Domain:
    if given is None:
        return suggest_domain(graph, spec)
    low, high = given
    if not low <= high:
        raise UsageError(f"the range {low:g}:{high:g} for {spec.name!r} is empty")
    is_whole = is_whole_type(spec.dtype)
    if is_whole and [low, high] != [float(np.array(int(each)).astype(parse_dtype(spec.dtype))) for each in (low, high)]:
        raise UsageError(f"{low:g}:{high:g} are not values of {spec.dtype}, the type of {spec.name!r}")
    return Domain(low, high, "as given", whole=is_whole)


def _rng(seed: int, sample: int, name: str) -> Any:
    digest = hashlib.sha256(f"{seed}/{sample}/{name}".encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "little")))


def _draw(plan: InputPlan, rng: Any) -> Array:
    domain = plan.domain
    try:
        np.empty(plan.shape)
    except (MemoryError, ValueError):  # numpy raises either of them for a too large array
        sizes = " x ".join(map(str, plan.shape))
        raise UsageError(f"the input {plan.name!r} of {sizes} {plan.dtype} is too large for this machine") from None
    if plan.dtype == "string":
        words = rng.integers(ord("a"), ord("z") + 1, (*plan.shape, 6)).reshape(-1, 6)
        return np.array(["".join(map(chr, word)) for word in words], dtype=object).reshape(plan.shape)
    if domain.is_mask:
        drawn = np.asarray(rng.random(plan.shape) < 0.75)
        drawn[(..., slice(1)) if plan.shape else ()] = True  # a mask of zeros would leave a softmax no elements
    elif domain.whole:
        drawn = rng.integers(int(domain.low), int(domain.high), plan.shape, endpoint=True)
    else:
        drawn = rng.uniform(domain.low, domain.high, plan.shape)
    kind = parse_dtype(plan.dtype)
    if kind.kind == "c":
        drawn = drawn + 1j * rng.uniform(domain.low, domain.high, plan.shape)
    return np.asarray(drawn).astype(kind)


# ---------------------------------------------------------------- open dimensions


def _resolve_shapes(graph: InputGraph, outline: Outline, dims: Dims, least: int = 0) -> dict[str, tuple[int, ...]]:
    """Return every input's shape; a symbol means the same size everywhere."""
    symbols = {dim for spec in outline.inputs for dim in spec.shape or () if isinstance(dim, str)}
    names = {spec.name for spec in outline.inputs}
    for name in dims:
        if name not in symbols | names:
            raise NotFoundError("input or open dimension", name, symbols | names)
    sizes = {name: size for name, size in dims.items() if isinstance(size, int)}
    shapes: dict[str, tuple[int, ...]] = {}
    for spec in outline.inputs:
        given = dims.get(spec.name)
        if given is not None and not isinstance(given, int):
            shapes[spec.name] = tuple(given)
            for dim, size in zip(spec.shape or (), given, strict=False):
                if isinstance(dim, str) and dim not in _NAMELESS:
                    sizes.setdefault(dim, size)
    for spec in outline.inputs:
        if spec.name not in shapes:
            shapes[spec.name] = tuple(
                _resolve(graph, spec, axis, sizes, least) for axis in range(len(spec.shape or ()))
            )
    return shapes


def _resolve(graph: InputGraph, spec: TensorSpec, axis: int, sizes: dict[str, int], least: int) -> int:
    assert spec.shape is not None
    dim = spec.shape[axis]
    if isinstance(dim, int):
        return dim
    if dim is None or dim in _NAMELESS:
        return suggest_size(graph, spec, axis, least)
    if dim not in sizes:
        parts = [part.strip() for part in dim.split("+")]  # exporters write sums: `past_length + sequence_length`
        if len(parts) > 1 and all(part.isdigit() or part in sizes for part in parts):
            sizes[dim] = sum(int(part) if part.isdigit() else sizes[part] for part in parts)
        else:
            sizes[dim] = suggest_size(graph, spec, axis, least)
    return sizes[dim]


def _convert(specs: Sequence[TensorSpec], sample: Mapping[str, Any]) -> Sample:
    """Return arrays in the order of the inputs; plain numbers and lists get the input's type, tensors of other
    libraries keep their own. Raises UsageError."""
    types = {spec.name: spec.dtype for spec in specs}
    arrays: Sample = {}
    for name in [*(name for name in types if name in sample), *(name for name in sample if name not in types)]:
        value = arrays[name] = sample[name]
        if types.get(name) in (None, "", *NON_TENSORS) or isinstance(value, np.ndarray | np.generic):
            continue
        try:
            arrays[name] = np.asarray(value, None if hasattr(value, "dtype") else parse_dtype(types[name]))
        except Exception as error:
            text = f"the value of {name!r} is not an array of {types[name]}: {type(error).__name__}: {error}"
            raise UsageError(text, "return numpy arrays") from error
    return arrays


def find_problems(specs: Sequence[TensorSpec], sample: Mapping[str, Array]) -> list[str]:
    """Describe everything that a model would refuse: inputs that are missing, unknown, or of a wrong type or shape."""
    known = {spec.name for spec in specs}
    problems = [f"{spec.name!r} is missing" for spec in specs if spec.name not in sample]
    problems += [f"{name!r} is not an input of the model" for name in sample if name not in known]
    sizes: dict[str, int] = {}
    for spec in specs:
        if spec.name in sample and spec.dtype not in NON_TENSORS:
            array = sample[spec.name]
            if not _fits(spec, array, sizes):
                found = f"{name_dtype(array)}{list(array.shape)}"
                problems.append(f"{spec.name!r} is {found}, not {describe(spec)}")
    return problems


def _fits(spec: TensorSpec, array: Array, sizes: dict[str, int]) -> bool:
    if spec.dtype and name_dtype(array) != spec.dtype:
        return False
    if spec.shape is None:
        return True
    if len(spec.shape) != array.ndim:
        return False
    for dim, size in zip(spec.shape, array.shape, strict=True):
        wanted = sizes.setdefault(dim, size) if isinstance(dim, str) and dim not in _NAMELESS else dim
        if isinstance(wanted, int) and wanted != size:
            return False
    return True


def describe(spec: TensorSpec) -> str:
    """Render a spec as `float32[batch, 3, ?]`."""
    dims = "" if spec.shape is None else ", ".join("?" if dim is None else str(dim) for dim in spec.shape)
    return f"{spec.dtype or 'unknown'}[{dims if spec.shape is not None else '…'}]"


def parse_files(texts: Sequence[str]) -> Mapping[str, str] | list[str]:
    """Parse `NAME=FILE` for some inputs, or plain paths for whole samples; a mixture is an error."""
    named = [text for text in texts if "=" in text and not os.path.exists(text)]
    if named and len(named) != len(texts):
        raise UsageError("give the inputs either as NAME=FILE, or as whole samples")
    pairs = {}
    for text in named:
        name, _, value = text.rpartition("=")
        if not name or not value:
            raise UsageError(f"{text!r} is not NAME=VALUE")
        pairs[name] = value
    return pairs if named or not texts else list(texts)


# ---------------------------------------------------------------- samples in the user's files and folders

Sample = dict[str, Array]
_ARRAY_SUFFIXES = (".npy", ".pb", ".bin", ".raw")
_NUMBERED = re.compile(r"(?:input|arr|in)_?(\d+)")


def load_samples(names: Sequence[str], specs: Sequence[TensorSpec]) -> list[Sample]:
    """Load one sample per archive or folder; single arrays together are one sample, in the order of the inputs."""
    single = [name for name in names if not os.path.isdir(name) and not name.endswith(".npz")]
    if single and len(single) != len(names):
        raise UsageError("give the inputs either as single arrays, or as one archive or folder per sample")
    if not single:
        return [sample for name in names for sample in _load_source(name, specs)]
    if len(single) != len(specs):
        wanted = ", ".join(repr(spec.name) for spec in specs)
        raise UsageError(
            f"{len(single)} files for {len(specs)} inputs: {wanted}", "or name the input: NAME=FILE, others stay random"
        )
    return [{spec.name: _load_one(path, spec) for path, spec in zip(single, specs, strict=True)}]


def load_named(files: Mapping[str, str], specs: Sequence[TensorSpec]) -> Sample:
    """Load arrays for some inputs by name."""
    known = {spec.name: spec for spec in specs}
    return {name: _load_one(path, known.get(name)) for name, path in files.items()}


def _load_one(path: str, spec: TensorSpec | None) -> Array:
    is_raw = path.endswith((".bin", ".raw"))
    shape = [dim if isinstance(dim, int) else -1 for dim in spec.shape] if spec and spec.shape is not None else None
    if shape is not None and shape.count(-1) > 1:
        shape = None  # the size of raw bytes does not determine two open dimensions: the check of shapes reports it
    return load_array(path, spec.dtype if spec else None, shape if is_raw else None)


def _load_source(source: str, specs: Sequence[TensorSpec]) -> list[Sample]:
    if not os.path.isdir(source):
        return [{_name_input(name, specs): array for name, array in load_arrays(source).items()}]
    if os.path.exists(os.path.join(source, LIST_FILE)):
        return [load_tensors(source)]
    entries = sorted(os.listdir(source), key=_order_naturally)
    folders = [os.path.join(source, entry) for entry in entries if os.path.isdir(os.path.join(source, entry))]
    archives = [os.path.join(source, entry) for entry in entries if entry.endswith(".npz")]
    if folders or archives:
        return [sample for inner in (*folders, *archives) for sample in _load_source(inner, specs)]
    arrays = [entry for entry in entries if entry.endswith(_ARRAY_SUFFIXES) and not entry.startswith("output")]
    if not arrays:
        raise UsageError(
            f"the folder {source} contains no arrays", f"known are {', '.join((*_ARRAY_SUFFIXES, '.npz'))}"
        )
    named = {_name_input(os.path.splitext(entry)[0], specs): os.path.join(source, entry) for entry in arrays}
    return [load_named(named, specs)]


def _order_naturally(text: str) -> list[tuple[int, str]]:
    """Return a key that sorts `set_10` after `set_9`."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", text) if part]


def _name_input(name: str, specs: Sequence[TensorSpec]) -> str:
    """Return the input that a file is named for: `input_0`, `arr_0` (numpy's) may be indices, `a_b` may be `a/b`."""
    if any(spec.name == name for spec in specs):
        return name
    match = _NUMBERED.fullmatch(name)
    if match and int(match[1]) < len(specs):
        return specs[int(match[1])].name
    alike = [spec.name for spec in specs if re.sub(r"[^\w.-]", "_", spec.name) == name]
    return alike[0] if len(alike) == 1 else name


def call_function(label: str, number: int, given: Mapping[str, Any]) -> Sample:
    """Call a user's function for one sample with the arguments of its signature: `sample`, `rng`, `inputs`."""
    found = load_function(label)
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
    """Load `module:function`, with the working directory on the import path, or `path/to/file.py:function`."""
    source, _, attribute = name.rpartition(":")
    if not source or not attribute:
        hint = "write it as module:function or path/to/file.py:function"
        raise UsageError(f"{name!r} does not name a function", hint)
    if source.endswith(".py"):
        module = _load_file(source)
    else:
        here = os.getcwd()
        sys.path.insert(0, here)
        try:
            module = importlib.import_module(source)
        except Exception as error:
            text = f"the module {source} cannot be imported: {type(error).__name__}: {error}"
            raise UsageError(text) from error
        finally:
            sys.path.remove(here)
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
