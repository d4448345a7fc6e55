"""Calls of torch modules and ops: recorded inside a model, with their gradients, and executed again alone.

A recorded call keeps its arguments with a name in place of each tensor, so that another process can make the same call.
Each use of a tensor is an alias of it, so that the gradient of this use alone is recorded. Inputs are copied before a
call, since a module may work in place.
"""

from __future__ import annotations

import copy
import dataclasses
import importlib.util
import inspect
import os
import pickle
import random
import re
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import import_module
from typing import Any

from assay.errors import UsageError, did_you_mean
from assay.models.libraries import np, torch
from assay.system.fast_dataclasses import dataclass, field

Tensor = Any  # torch.Tensor
Module = Any  # torch.nn.Module
Given = Mapping[int | str, Any]  # the arguments of a call, by position or keyword
Change = Callable[[str, Any], Any]
_SMALL = ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")  # types unknown to numpy
_RECURRENT = ("aten.lstm", "aten.gru", "aten.rnn_")  # prefixes of recurrent ops
_RETURNS = "return (module, inputs): inputs are a tensor, a tuple of arguments, or a dict of keyword arguments"


@dataclass(frozen=True, slots=True)
class TensorName:
    """A placeholder for a tensor in kept arguments."""

    name: str
    has_gradient: bool = False


def map_leaves(value: Any, kind: type, change: Change, path: str = "") -> Any:
    """Return a structure of the same form with each leaf of this type changed; other leaves stay."""
    if isinstance(value, kind):
        return change(path, value)
    if isinstance(value, Mapping):
        changed = {key: map_leaves(each, kind, change, _join(path, key)) for key, each in value.items()}
        if type(value) is dict:
            return changed
        same = copy.copy(value)  # such as a ModelOutput or an OrderedDict
        for key, each in changed.items():
            same[key] = each  # type: ignore[index]
        return same
    if isinstance(value, list | tuple):
        made = [map_leaves(each, kind, change, _join(path, number)) for number, each in enumerate(value)]
        return type(value)(*made) if hasattr(value, "_fields") else type(value)(made)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        made_of = copy.copy(value)
        for each in dataclasses.fields(value):
            leaf = map_leaves(getattr(value, each.name), kind, change, _join(path, each.name))
            object.__setattr__(made_of, each.name, leaf)
        return made_of
    return value


def find_leaves(value: Any, kind: type) -> dict[str, Any]:
    """Return the leaves of this type in a structure, by path."""
    found: dict[str, Any] = {}
    map_leaves(value, kind, found.setdefault)
    return found


def _join(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def join_given(args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> Given:
    return dict(enumerate(args)) | dict(kwargs or {})


def split_given(given: Given) -> tuple[tuple[Any, ...], dict[str, Any]]:
    args = tuple(each for key, each in given.items() if isinstance(key, int))
    return args, {key: each for key, each in given.items() if isinstance(key, str)}


def name_leaf(label: str, path: str) -> str:
    return f"{label}[{path}]" if path else label


def to_array(tensor: Tensor) -> Any:
    """Convert a tensor to an array; types that numpy lacks are those of ml_dtypes."""
    tensor = tensor.detach()
    tensor = tensor.dequantize() if tensor.is_quantized else tensor.to_dense() if tensor.is_sparse else tensor
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in _SMALL:
        return tensor.cpu().resolve_conj().resolve_neg().numpy()
    types = import_module("ml_dtypes")
    width = {1: torch.uint8, 2: torch.uint16}[tensor.element_size()]
    return tensor.cpu().contiguous().view(width).numpy().view(getattr(types, name))


def from_array(array: Any) -> Tensor:
    if array.dtype.name not in _SMALL:
        return torch.from_numpy(array.copy())
    return torch.from_numpy(array.view(f"u{array.dtype.itemsize}").copy()).view(getattr(torch, array.dtype.name))


# ---------------------------------------------------------------- the user's own code


def load_attribute(text: str, folder: str, what: str) -> Any:
    """Load `file.py:name` or `module:name`. Raises UsageError with the line of the user's file that fails."""
    source, _, name = text.rpartition(":")
    is_file = source.endswith(".py")
    for each in {os.path.dirname(source) if is_file else folder}:
        if each not in sys.path:
            sys.path.insert(0, each)
    with blaming(source if is_file else "", f"{source} cannot be loaded"):
        module = _load_file(source) if is_file else import_module(source)
    found = getattr(module, name, None)
    if callable(found):
        return found
    known = [each for each, value in vars(module).items() if callable(value) and not each.startswith("_")]
    raise UsageError(f"{source} has no {what} {name!r}", did_you_mean(name, known) or f"define {name} in it")


def _load_file(path: str) -> Any:
    loaded = next((each for each in sys.modules.values() if getattr(each, "__file__", None) == path), None)
    if loaded is not None:
        return loaded  # loading the file again would create other classes
    stem = os.path.splitext(os.path.basename(path))[0]
    name = stem if stem not in sys.modules else f"assay_model_{stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # classes of the file are looked up by their module's name
    spec.loader.exec_module(module)
    return module


@contextmanager
def blaming(path: str, what: str) -> Iterator[None]:
    """Convert exceptions of the user's code to UsageError, with the line of the file `path` where they happen."""
    try:
        yield
    except UsageError:
        raise
    except SyntaxError as error:
        raise UsageError(f"{error.filename}:{error.lineno}:{error.offset}: {error.msg}") from error
    except Exception as error:
        frames = [each for each in traceback.extract_tb(error.__traceback__) if os.path.abspath(each.filename) == path]
        where = f"{path}:{frames[-1].lineno}: " if frames else ""
        text = " ".join(str(error).split())[:400]
        traceback.print_exc()
        raise UsageError(f"{where}{what}: {type(error).__name__}: {text}") from error


def build_model(text: str, folder: str, seed: int) -> tuple[Module, Given]:
    """Build the module of the user's function, with every generator seeded, and its inputs. Raises UsageError."""
    path = text.rpartition(":")[0]
    build = load_attribute(text, folder, "function")
    seed_all(seed)
    with blaming(path, f"{text.rpartition(':')[2]}() failed"):
        returned = build()
    what = f"{os.path.basename(text)} returned"
    if isinstance(returned, torch.nn.Module):
        raise UsageError(f"{what} a module without example inputs", _RETURNS)
    if not isinstance(returned, tuple) or not 2 <= len(returned) <= 3 or not isinstance(returned[0], torch.nn.Module):
        kinds = [type(each).__name__ for each in returned] if isinstance(returned, tuple) else type(returned).__name__
        raise UsageError(f"{what} {kinds}", _RETURNS)
    module, *inputs = returned
    given = inputs[0]
    if isinstance(given, Mapping) and len(inputs) == 1:
        return module, dict(given)
    args = given if isinstance(given, list | tuple) or len(inputs) == 2 else (given,)
    return module, join_given(args, *inputs[1:])


def seed_all(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


# ---------------------------------------------------------------- recording


@dataclass(slots=True)
class ModuleCall:
    """One call of a module or op. `order` numbers the beginnings; calls are listed in the order of their ends."""

    label: str
    kind: str
    order: int
    is_leaf: bool = True
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    grad_outs: list[str] = field(default_factory=list)
    grad_ins: list[str] = field(default_factory=list)
    params: list[str] = field(default_factory=list)
    problem: str = ""  # why the call cannot be made alone
    draws: bool = False  # whether the call draws random numbers


class CallRecorder:
    """Records every call with its tensors. `noise`: each output and each gradient is changed by up to this fraction."""

    def __init__(self, *, noise: float = 0.0) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.calls: list[ModuleCall] = []
        self.kept: dict[str, bytes] = {}  # label → arguments of the call
        self._noise = noise
        self._names: dict[tuple[int, int], str] = {}
        self._alive: list[Tensor] = []  # keeps tensors alive: the id of a freed tensor may be used again
        self._counts: Counter[str] = Counter()
        self._open: list[tuple[ModuleCall, Any]] = []

    def enter_module(self, name: str, module: Module, args: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        params = [key for key, value in module.named_parameters() if value.requires_grad]
        return self.enter(name, type(module).__name__, args, kwargs, params)

    def enter(
        self, name: str, kind: str, args: Sequence[Any], kwargs: Mapping[str, Any], params: Sequence[str] = ()
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Begin a call. Returns the arguments for it."""
        label = _number(name, self._counts)
        call = ModuleCall(label, kind, len(self.calls) + len(self._open), params=list(params))
        for outer, _ in self._open:
            outer.is_leaf = False
        given = join_given(args, kwargs)
        tree = map_leaves(given, torch.Tensor, lambda path, each: self._note_input(call, path, each))
        try:
            self.kept[label] = pickle.dumps(tree)
        except Exception as error:  # noqa: BLE001 - any object may be an argument
            call.problem = f"its arguments cannot be kept: {type(error).__name__}: {error}"
        self._open.append((call, _load_generator_state()))
        changed = map_leaves(given, torch.Tensor, lambda path, each: self._alias(call, path, each))
        return split_given(changed)

    def leave(self, output: Any) -> Any:
        """End the innermost call. Returns the output that the model continues with."""
        call, state = self._open.pop()
        call.draws = not torch.equal(state, _load_generator_state())
        self.calls.append(call)
        return map_leaves(output, torch.Tensor, lambda path, each: self._note_output(call, path, each))

    def _note_input(self, call: ModuleCall, path: str, tensor: Tensor) -> TensorName:
        key = (id(tensor), tensor._version)  # noqa: SLF001 - torch has no other name for it
        name = self._names.get(key)
        if name is None:
            name = self._names[key] = f"{call.label}<{path}>"
            self._keep(name, tensor)
        call.inputs.append(name)
        return TensorName(name, bool(tensor.requires_grad))

    def _alias(self, call: ModuleCall, path: str, tensor: Tensor) -> Tensor:
        if not tensor.requires_grad:
            return tensor
        alias = tensor.view_as(tensor)
        alias.register_hook(lambda grad: self._keep_gradient(f"{call.label}:grad_in[{path}]", grad))
        return alias

    def _note_output(self, call: ModuleCall, path: str, tensor: Tensor) -> Tensor:
        name = name_leaf(call.label, path)
        if self._noise:
            tensor = self.perturb(tensor)
        self._keep(name, tensor)
        self._names[id(tensor), tensor._version] = name  # noqa: SLF001
        call.outputs.append(name)
        if tensor.requires_grad:
            tensor.register_hook(lambda grad: self._keep_gradient(f"{call.label}:grad_out[{path}]", grad))
        return tensor

    def perturb(self, tensor: Tensor) -> Tensor:
        """Return a tensor with each element changed by up to the noise; gradients pass through."""
        if not tensor.is_floating_point():
            return tensor
        return tensor + (tensor.detach() * (torch.rand_like(tensor) * 2 - 1) * self._noise)

    @contextmanager
    def rounding(self, is_wanted: bool) -> Iterator[None]:
        """Change the result of each operation, forward and backward, to show the rounding inside of a call."""
        if not is_wanted:
            yield
            return
        with warnings.catch_warnings(), ExitStack() as held:
            warnings.simplefilter("ignore")  # warnings about flags that this version of torch ignores
            for library in (torch.backends.mkldnn, torch.backends.cudnn):  # both have one kernel for a whole sequence
                held.enter_context(library.flags(enabled=False))
            held.enter_context(_build_noise_mode(self.perturb))
            yield

    def _keep(self, name: str, tensor: Tensor) -> None:
        self._alive.append(tensor)
        self.tensors[name] = tensor.detach().clone().cpu() if tensor.device.type == "cpu" else tensor.detach().cpu()

    def _keep_gradient(self, name: str, grad: Tensor) -> Tensor:
        grad = self.perturb(grad) if self._noise else grad
        self.tensors[name] = grad.detach().clone().cpu()
        return grad

    def finish(self) -> None:
        """Record the gradients of each call after the backward pass."""
        for call in self.calls:
            for found, word in ((call.grad_outs, "grad_out"), (call.grad_ins, "grad_in")):
                found += [name for name in self.tensors if name.startswith(f"{call.label}:{word}[")]


def _load_generator_state() -> Tensor:
    on_gpu = [torch.cuda.get_rng_state()] if torch.cuda.is_initialized() else []
    return torch.cat([torch.random.get_rng_state(), *on_gpu])


def is_closed(function: Any) -> bool:
    """Return whether a call rounds several times without a recorded tensor in between: a recurrent module or op, or a
    module of the user that calls no other module."""
    if not isinstance(function, torch.nn.Module):
        return str(function).startswith(_RECURRENT)
    return any(
        isinstance(each, torch.nn.RNNBase) or not (any(each.children()) or type(each).__module__.startswith("torch."))
        for each in function.modules()
    )


def _build_noise_mode(perturb: Callable[[Tensor], Tensor]) -> Any:
    """Return a dispatch mode of torch that changes the result of each operation."""
    base = import_module("torch.utils._python_dispatch").TorchDispatchMode

    class NoiseMode(base):  # type: ignore[misc,valid-type]
        def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            if func.is_view:
                return result
            if func._schema.is_mutable:  # noqa: SLF001 such an op returns the tensor that it wrote to
                return map_leaves(result, torch.Tensor, lambda _path, each: each.copy_(perturb(each)))
            return map_leaves(result, torch.Tensor, lambda _path, each: perturb(each))

    return NoiseMode()


def _number(name: str, counts: Counter[str]) -> str:
    """Return the label of a module's next call, with its number if the module's name itself ends like a label."""
    counts[name] += 1
    return name if counts[name] == 1 and find_called(name) == name else f"{name}#{counts[name]}"


def find_called(label: str) -> str:
    """Return the name of the module whose call has this label."""
    return re.sub(r"#[0-9]+\Z", "", label)


@contextmanager
def hooked(module: Module, enter: Callable[..., Any], leave: Callable[[Any], Any]) -> Iterator[None]:
    """Hook each call of every module but the outermost one: `enter` gets its name, the module and the arguments,
    `leave` the output; their return values replace arguments and output."""
    handles = []
    for name, each in module.named_modules():
        if each is not module:
            handles.append(each.register_forward_pre_hook(partial(enter, name), with_kwargs=True))
            handles.append(each.register_forward_hook(lambda _this, _args, output: leave(output)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def preserved(module: Module, round_to: Any = None) -> Iterator[None]:
    """Restore buffers at the end; `round_to`: the type that parameters are rounded to until then."""
    params = [each for each in module.parameters() if each.is_floating_point()] if round_to is not None else []
    held = [*module.buffers(), *params]
    before = [each.detach().clone() for each in held]
    with torch.no_grad():
        for each in params:
            each.copy_(each.to(round_to))
    try:
        yield
    finally:
        with torch.no_grad():
            for each, value in zip(held, before, strict=True):
                each.set_(value) if each.shape != value.shape else each.copy_(value)


# ---------------------------------------------------------------- inside a compiled graph


def record_compiled(module: Module, run: Callable[[], Any]) -> tuple[Any, dict[str, Tensor]]:
    """Return the result of `run`, and the inputs and outputs of every module, by hooks that dynamo traces."""
    seen: list[tuple[str, Any]] = []

    def clone(value: Any) -> Any:
        return map_leaves(value, torch.Tensor, lambda _path, each: each.detach().clone())

    def enter(name: str, _this: Module, args: Any, kwargs: Any) -> None:
        seen.append((name, clone(join_given(args, kwargs))))

    def leave(output: Any) -> None:
        seen.append(("", clone(output)))

    with hooked(module, enter, leave):
        output = run()
    found: dict[str, Tensor] = {}
    counts: Counter[str] = Counter()
    labels: list[str] = []  # labels of the calls that have not ended
    for name, value in seen:
        leaves = find_leaves(value, torch.Tensor)
        if name:
            labels.append(_number(name, counts))
            found |= {f"{labels[-1]}<{path}>": each for path, each in leaves.items()}
        else:
            label = labels.pop()
            found |= {name_leaf(label, path): each for path, each in leaves.items()}
    return output, found


def call_alone(
    function: Callable[..., Any], label: str, kept: bytes, load: Callable[[str], Tensor], params: Mapping[str, Tensor],
    grad_outs: Sequence[str] | None, times_s: list[float],
) -> dict[str, Tensor]:  # fmt: skip
    """Return outputs by name; with `grad_outs`, gradients of inputs and parameters. Appends seconds to `times_s`."""
    leaves: dict[str, Tensor] = {}

    def place(path: str, ref: TensorName) -> Tensor:
        tensor = load(ref.name)
        if grad_outs is None or not ref.has_gradient:
            return tensor
        leaves[path] = tensor.requires_grad_()
        return leaves[path].clone()  # a module that works in place cannot take a leaf

    given = map_leaves(pickle.loads(kept), TensorName, place)  # noqa: S301 - we wrote it
    args, kwargs = split_given(given)
    begun = time.perf_counter()
    with torch.set_grad_enabled(grad_outs is not None):
        output = function(*args, **kwargs)
    found = find_leaves(output, torch.Tensor)
    times_s.append(time.perf_counter() - begun)
    if grad_outs is None:
        return {name_leaf(label, path): each for path, each in found.items()}
    wanted = {path: f"{label}:grad_out[{path}]" for path, each in found.items() if each.requires_grad}
    ends = {path: load(name).to(found[path].dtype) for path, name in wanted.items() if name in grad_outs}
    if not ends:
        return {}
    starts = {f"{label}:grad_in[{path}]": each for path, each in leaves.items()}
    starts |= {f"{label}:grad.{name}": each for name, each in params.items()}
    begun = time.perf_counter()
    grads = torch.autograd.grad(
        [found[path] for path in ends], list(starts.values()), list(ends.values()), allow_unused=True
    )
    times_s[-1] += time.perf_counter() - begun
    return {name: grad for name, grad in zip(starts, grads, strict=True) if grad is not None}


def fits_call(function: Callable[..., Any], kept: bytes) -> bool:
    """Return whether the function accepts the kept arguments."""
    args, kwargs = split_given(pickle.loads(kept))  # noqa: S301
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        return False
    except ValueError:  # functions of C have no signature
        return True
    return True
