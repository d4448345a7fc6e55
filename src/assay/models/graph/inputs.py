"""Inputs for a model: seeded random numbers that suit each input, arrays from files, or a function's.

Each number depends on the seed, the sample and the input's name alone: another input, another process or another
machine changes nothing.
"""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from assay.errors import NotFoundError, UsageError
from assay.models.graph.graph import infer_specs, load_model
from assay.models.graph.onnx_library import Model
from assay.models.graph.sample_files import Files, Sample, call_function, load_named, load_samples
from assay.models.graph.submodel import NON_TENSORS
from assay.models.graph.suggest import Domain, Graph, is_whole_type, suggest_domain, suggest_size
from assay.models.graph.tensorfile import Array, import_numpy, name_dtype, parse_dtype
from assay.models.values.model import Outline
from assay.models.values.tensors import Dim, TensorSpec

DEFAULT_SEED = 1234
Range = tuple[float, float] | float  # one number: always this
Dims = Mapping[str, int | Sequence[int]]  # a symbol's size, or an input's whole shape
_MOST_VALUES = 4  # inputs whose values a message describes
_NAMELESS = ("", "?")  # symbols that stand for nothing: two of them need not be equal


@dataclass(frozen=True, slots=True)
class InputPlan:
    """How an input is filled."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    domain: Domain


def build_samples(
    outline: Outline,
    *,
    count: int = 1,
    seed: int = DEFAULT_SEED,
    ranges: Mapping[str, Range] | None = None,
    files: Files | None = None,
    function: str | Callable[..., Any] | None = None,
    dims: Dims | None = None,
    model: Model | None = None,
) -> list[Sample]:
    """`count` samples, or as many as the files hold. Raises UsageError, naming all that does not fit.

    `files` are whole samples, or a mapping from some inputs' names to their files: the others stay random.
    `model` is only needed for an outline that was not made from a file. A function sees the inputs with their open
    dimensions closed, as random ones would have them; what it returns may have others.
    """
    _check_known(outline, (*(ranges or {}), *(files if isinstance(files, Mapping) else ())))
    if files is not None and not isinstance(files, Mapping):
        samples = load_samples(files, outline.inputs)
    elif function is not None:
        given = {"inputs": close_specs(outline, dims, model)}
        samples = [call_function(function, n, {**given, "rng": _rng(seed, n, "")}) for n in range(count)]
    else:
        samples = _draw_all(outline, count, seed, ranges, dims, model, files)
    typed = [_convert(outline.inputs, sample) for sample in samples]
    _check_all(outline.inputs, typed)
    return typed


def _check_known(outline: Outline, names: Iterable[str]) -> None:
    known = [spec.name for spec in outline.inputs]
    for name in names:
        if name not in known:
            raise NotFoundError("input of the model", name, known)


# ---------------------------------------------------------------- random ones


def plan_inputs(
    outline: Outline, *, ranges: Mapping[str, Range] | None = None, dims: Dims | None = None, model: Model | None = None
) -> tuple[InputPlan, ...]:
    """What the inputs would be filled with, and why."""
    odd = [spec for spec in outline.inputs if spec.dtype in NON_TENSORS or not spec.dtype]
    if odd:
        named = ", ".join(f"{spec.name!r} ({spec.dtype or 'of unknown type'})" for spec in odd)
        raise UsageError(f"no random values can be made for {named}", "give them from a Python function")
    graph = _build_graph(outline, model)
    shapes = _resolve_shapes(graph, outline, dims or {})
    graph.specs = {**graph.specs, **{name: TensorSpec(name, "", shape) for name, shape in shapes.items()}}
    return tuple(
        InputPlan(spec.name, spec.dtype, shapes[spec.name], _choose_domain(graph, spec, (ranges or {}).get(spec.name)))
        for spec in outline.inputs
    )


def describe_invented(
    outline: Outline, *, ranges: Mapping[str, Range], dims: Dims, given: Iterable[str] = (), model: Model | None = None
) -> str:
    """What nobody asked for in the random inputs, and the flags that ask for something else; empty: nothing."""
    held = set(given)
    sizes, values, flags = list[str](), list[str](), dict[str, None]()
    for plan, spec in zip(plan_inputs(outline, ranges=ranges, dims=dims, model=model), outline.inputs, strict=True):
        if plan.name in held:
            continue
        for axis, dim in enumerate(spec.shape or ()):
            if isinstance(dim, int) or spec.name in dims or dim in dims:
                continue
            is_named = dim is not None and dim not in _NAMELESS
            sizes.append(f"{dim}={plan.shape[axis]}" if is_named else f"axis {axis} of {spec.name}={plan.shape[axis]}")
            flags[f"--dim {dim}=N" if is_named else f"--dim {spec.name}={','.join(map(str, plan.shape))}"] = None
        if plan.name not in ranges and plan.dtype != "string":
            values.append(f"{plan.name} from {plan.domain.low:g} to {plan.domain.high:g} ({plan.domain.why})")
            flags[f"--range {shlex.quote(plan.name)}=LOW:HIGH"] = None
        flags[f"--input {shlex.quote(plan.name)}=FILE.npy"] = None
    invented = [f"dimensions {', '.join(dict.fromkeys(sizes))}"] if sizes else []
    invented += (
        [f"values of {', '.join(values[:_MOST_VALUES])}{', …' if len(values) > _MOST_VALUES else ''}"] if values else []
    )
    if not invented:
        return ""
    return f"the reference got invented {' and '.join(invented)}; if they do not suit the model: {' '.join(flags)}"


def close_specs(outline: Outline, dims: Dims | None = None, model: Model | None = None) -> tuple[TensorSpec, ...]:
    """The inputs with numbers for their open dimensions; others (unknown rank, not a tensor) stay as they are."""
    shapes = _resolve_shapes(_build_graph(outline, model), outline, dims or {})
    return tuple(spec if spec.shape is None else replace(spec, shape=shapes[spec.name]) for spec in outline.inputs)


def _build_graph(outline: Outline, model: Model | None) -> Graph:
    known = model if model is not None else load_model(outline.path, weights=False)
    return Graph(known, infer_specs(known))


def _choose_domain(graph: Graph, spec: TensorSpec, given: Range | None) -> Domain:
    if given is None:
        return suggest_domain(graph, spec)
    low, high = given if isinstance(given, tuple) else (given, given)
    if not low <= high:
        raise UsageError(f"the range {low:g}:{high:g} for {spec.name!r} is empty")
    is_whole = is_whole_type(spec.dtype)
    if is_whole and [low, high] != [_as_type(low, spec.dtype), _as_type(high, spec.dtype)]:
        raise UsageError(f"{low:g}:{high:g} are no values of {spec.dtype}, which {spec.name!r} is")
    return Domain(low, high, "as given", whole=is_whole)


def _as_type(number: float, dtype: str) -> float:
    """What is left of a number in a type of whole numbers."""
    return float(import_numpy().array(int(number)).astype(parse_dtype(dtype)))


def _draw_all(
    outline: Outline,
    count: int,
    seed: int,
    ranges: Mapping[str, Range] | None,
    dims: Dims | None,
    model: Model | None,
    files: Mapping[str, str] | None,
) -> list[Sample]:
    if count < 1:
        raise UsageError(f"{count} samples are not enough", "ask for one or more")
    fixed = load_named(files or {}, outline.inputs)
    shapes = {**{name: array.shape for name, array in fixed.items()}, **(dims or {})}
    plans = plan_inputs(outline, ranges=ranges, dims=shapes, model=model)
    return [
        {plan.name: fixed[plan.name] if plan.name in fixed else _draw(plan, _rng(seed, n, plan.name)) for plan in plans}
        for n in range(count)
    ]


def _rng(seed: int, sample: int, name: str) -> Any:
    digest = hashlib.sha256(f"{seed}/{sample}/{name}".encode()).digest()
    return import_numpy().random.Generator(import_numpy().random.PCG64(int.from_bytes(digest[:16], "little")))


def _draw(plan: InputPlan, rng: Any) -> Array:
    np, domain = import_numpy(), plan.domain
    if plan.dtype == "string":
        words = rng.integers(ord("a"), ord("z") + 1, (*plan.shape, 6)).reshape(-1, 6)
        return np.array(["".join(map(chr, word)) for word in words], dtype=object).reshape(plan.shape)
    if domain.is_mask:
        drawn = np.asarray(rng.random(plan.shape) < 0.75)
        drawn[(..., slice(1)) if plan.shape else ()] = True  # a row without any would make a softmax of nothing
    elif domain.whole:
        drawn = rng.integers(int(domain.low), int(domain.high), plan.shape, endpoint=True)
    else:
        drawn = rng.uniform(domain.low, domain.high, plan.shape)
    kind = parse_dtype(plan.dtype)
    if kind.kind == "c":
        drawn = drawn + 1j * rng.uniform(domain.low, domain.high, plan.shape)
    return np.asarray(drawn).astype(kind)


# ---------------------------------------------------------------- open dimensions


def _resolve_shapes(graph: Graph, outline: Outline, dims: Dims) -> dict[str, tuple[int, ...]]:
    """Every input's shape; a symbol means the same size wherever it stands."""
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
            sizes.update(_bind(spec, shapes[spec.name], sizes))
    for spec in outline.inputs:
        if spec.name not in shapes:
            shapes[spec.name] = tuple(_resolve(graph, spec, axis, sizes) for axis in range(len(spec.shape or ())))
    return shapes


def _bind(spec: TensorSpec, shape: Sequence[int], sizes: Mapping[str, int]) -> dict[str, int]:
    """What a given shape says of the symbols in it, where nothing was said yet."""
    invented = zip(spec.shape or (), shape, strict=False)
    return {dim: size for dim, size in invented if isinstance(dim, str) and dim not in (*_NAMELESS, *sizes)}


def _resolve(graph: Graph, spec: TensorSpec, axis: int, sizes: dict[str, int]) -> int:
    assert spec.shape is not None
    dim = spec.shape[axis]
    if isinstance(dim, int):
        return dim
    if dim is None or dim in _NAMELESS:
        return suggest_size(graph, spec, axis)
    if dim not in sizes:
        total = _add_up(dim, sizes)
        sizes[dim] = suggest_size(graph, spec, axis) if total is None else total
    return sizes[dim]


def _add_up(symbol: str, sizes: Mapping[str, int]) -> int | None:
    """`past_length + sequence_length`, as exporters write it; None for anything else."""
    parts = [part.strip() for part in symbol.split("+")]
    if len(parts) < 2 or not all(part.isdigit() or part in sizes for part in parts):
        return None
    return sum(int(part) if part.isdigit() else sizes[part] for part in parts)


# ---------------------------------------------------------------- what does not fit


def _convert(specs: Sequence[TensorSpec], sample: Mapping[str, Any]) -> Sample:
    """Arrays in the order of the inputs; plain numbers and lists take the input's type."""
    np = import_numpy()
    types = {spec.name: spec.dtype for spec in specs}
    arrays: Sample = {}
    for name in [*(name for name in types if name in sample), *(name for name in sample if name not in types)]:
        value = sample[name]
        is_plain = not hasattr(value, "dtype") and types.get(name) not in (None, "", *NON_TENSORS)
        arrays[name] = np.asarray(value, dtype=parse_dtype(types[name])) if is_plain else value
    return arrays


def _check_all(specs: Sequence[TensorSpec], samples: Sequence[Sample]) -> None:
    problems = [
        f"sample {number}: {problem}" if len(samples) > 1 else problem
        for number, sample in enumerate(samples)
        for problem in find_problems(specs, sample)
    ]
    if problems:
        wanted = ", ".join(f"{spec.name}: {describe(spec)}" for spec in specs)
        raise UsageError("the inputs do not fit the model: " + "; ".join(problems), f"it takes {wanted}")


def find_problems(specs: Sequence[TensorSpec], sample: Mapping[str, Array]) -> list[str]:
    """Everything that a model would refuse: inputs that are missing or unknown, other types, other shapes."""
    known = {spec.name for spec in specs}
    problems = [f"{spec.name!r} is missing" for spec in specs if spec.name not in sample]
    problems += [f"{name!r} is not an input of the model" for name in sample if name not in known]
    sizes: dict[str, int] = {}
    for spec in specs:
        if spec.name in sample and spec.dtype not in NON_TENSORS:
            problems += _find_misfit(spec, sample[spec.name], sizes)
    return problems


def _find_misfit(spec: TensorSpec, array: Array, sizes: dict[str, int]) -> list[str]:
    found = f"{name_dtype(array)}{list(array.shape)}"
    if spec.dtype and name_dtype(array) != spec.dtype:
        return [f"{spec.name!r} is {found}, not {describe(spec)}"]
    if spec.shape is None:
        return []
    if len(spec.shape) != array.ndim:
        return [f"{spec.name!r} is {found}, not {describe(spec)}"]
    wrong = [_is_other(dim, size, sizes) for dim, size in zip(spec.shape, array.shape, strict=True)]
    return [f"{spec.name!r} is {found}, not {describe(spec)}"] if any(wrong) else []


def _is_other(dim: Dim, size: int, sizes: dict[str, int]) -> bool:
    if isinstance(dim, int):
        return dim != size
    return dim is not None and dim not in _NAMELESS and sizes.setdefault(dim, size) != size


def describe(spec: TensorSpec) -> str:
    """`float32[batch, 3, ?]`"""
    dims = "" if spec.shape is None else ", ".join("?" if dim is None else str(dim) for dim in spec.shape)
    return f"{spec.dtype or 'unknown'}[{dims if spec.shape is not None else '…'}]"


# ---------------------------------------------------------------- from the command line


def parse_files(texts: Iterable[str]) -> Files:
    """`NAME=FILE` for some inputs, or plain paths for whole samples; not both."""
    texts = list(texts)
    named = [text for text in texts if "=" in text and not os.path.exists(text)]
    if named and len(named) != len(texts):
        raise UsageError("give the inputs either as NAME=FILE, or as whole samples")
    return dict(_parse_pair(text) for text in named) if named else texts


def _parse_pair(text: str) -> tuple[str, str]:
    name, sign, value = text.rpartition("=")
    if not sign or not name or not value:
        raise UsageError(f"{text!r} is not NAME=VALUE")
    return name, value
