"""Runs torch modules: the reference as `build()` returns it, compiled, in another precision, on a GPU, or rewritten.

Options: `device` (cpu, cuda), `precision` (float32, bfloat16, float16, float64), `optimize` (compile), `rewrite`
(`module:Class`, which is called with the module and returns another one). The source of a job is a small JSON file that
states which part of the model is computed: see `PartSpec`.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import pickle
import shlex
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from assay.errors import InfrastructureError, UsageError
from assay.models.backends import torch_calls as calls
from assay.models.backends.base import Backend, BackendError, Made, describe_cpu
from assay.models.graph.tensorfile import load_ref, load_refs, write_tensors
from assay.models.libraries import torch
from assay.models.values.model import Job, Step, StepEnding, Target
from assay.show.formatting import join_first
from assay.system.fast_dataclasses import asdict, dataclass
from assay.system.files import write_atomic

PRECISIONS = ("", "float32", "bfloat16", "float16", "float64")
PLAN_FILE, SURVEY_FILE, CALLS_FILE, INPUTS_FILE = "plan.json", "survey.json", "calls.pkl", "inputs.pt"
TF32 = "tf32"
_PLAIN_OPS = ("getitem", "_assert", "sym_", "_guards", "eq", "ge", "le", "gt", "lt")


@dataclass(frozen=True, slots=True)
class PartSpec:
    """The part that a job computes; `grain`: the type to which a single call's inputs and parameters are rounded."""

    model: str
    folder: str
    part: str
    seed: int
    ops: bool = False
    backward: bool = True
    label: str = ""
    grain: str = ""
    grad_outs: tuple[str, ...] = ()
    noise: bool = False  # for a call: add rounding noise of the type `grain` to its inputs, and at calls inside it
    rows: int = 0  # for a part that is kept: how many rows of its inputs; 0: all
    state: str = ""  # the hash of the reference's parameters and buffers


@dataclass(slots=True)
class Opened:
    """A model that is ready to run: `functions` by label; an op is a function, a module stays a module."""

    module: Any
    given: calls.Given
    functions: dict[str, Callable[..., Any]]
    notes: list[str]
    state: str
    path: str  # path of the user's file
    graph: Any = None  # None unless calls of ops are computed


class TorchBackend(Backend):
    steps = (Step.RUN,)

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self._device = self.choose("device", ("", "cpu", "cuda"))
        self._precision = self.choose("precision", PRECISIONS)
        self._is_compiled = self.choose("optimize", ("none", "compile")) == "compile"
        self._rewrite = str(target.options.get("rewrite", ""))
        self._opened: dict[tuple[str, int, bool], Opened] = {}

    def identity(self) -> Mapping[str, str]:
        if self._device == "cuda" and not torch.cuda.is_available():
            reason = "this torch is built without CUDA" if torch.version.cuda is None else "torch finds no GPU"
            raise InfrastructureError(
                f"no CUDA device for the target {self.target.name}: {reason} (torch {torch.__version__})",
                "run it on a machine with an NVIDIA GPU, or choose --target torch-compile or torch-bf16",
            )
        where = torch.cuda.get_device_name() if self._device == "cuda" else describe_cpu()
        return {"torch": str(torch.__version__), "device": where, "threads": str(torch.get_num_threads())}

    def warm_up(self) -> None:
        torch.backends.cudnn.allow_tf32 = False  # build() may have switched it on
        if self._is_compiled:
            torch.use_deterministic_algorithms(True, warn_only=True)
        else:  # unlike use_deterministic_algorithms(), this does not load the compiler, which takes a second
            torch.set_deterministic_debug_mode("warn")

    def perform(self, job: Job) -> Made:
        with open(job.source, encoding="utf-8") as file:
            spec = PartSpec(**json.load(file))
        folder = os.path.join(job.folder, "outputs")
        os.makedirs(folder)
        calls.seed_all(spec.seed)
        tensors, times_s = getattr(self, f"_do_{spec.part}")(spec, job, folder)
        wanted = {name: each for name, each in tensors.items() if not job.outputs or name in set(job.outputs)}
        write_tensors(folder, {name: calls.to_array(each) for name, each in wanted.items()})
        words = ["assay", "model", "check", spec.model, "--target", self.target.name]
        words += [*(["--only", spec.label] if spec.label else []), *(["--ops"] if spec.ops else [])]
        return Made(folder, shlex.join(words), times_s=tuple(times_s))

    def _open(self, spec: PartSpec) -> Opened:
        key = spec.model, spec.seed, spec.ops
        if key not in self._opened:
            self._opened.clear()  # only one is kept, since models are large
            self._opened[key] = self._build(spec)
        return self._opened[key]

    def _build(self, spec: PartSpec) -> Opened:
        module, given = calls.build_model(spec.model, spec.folder, spec.seed)
        # random numbers of a dropout differ between targets
        dropout = torch.nn.modules.dropout._DropoutNd  # noqa: SLF001
        modules = module.named_modules()
        active = [name for name, each in modules if isinstance(each, dropout) and each.training and each.p]
        for name in active:
            module.get_submodule(name).eval()
        notes = [f"switched off, as dropout draws other numbers on each target: {join_first(active, 4)}"] * bool(active)
        state = hash_state(module)
        if spec.state and state != spec.state:
            raise BackendError(
                "build() makes another model in each process: its parameters are not the reference's",
                hint="seed what it draws from; torch, numpy and random are seeded before it is called",
            )
        if self._rewrite:
            module = self._change(module, spec.folder)
        dtype = getattr(torch, self._precision) if self._precision else None
        module.to(device=self._device or None, dtype=dtype)
        given = calls.map_leaves(given, torch.Tensor, lambda _path, each: self._cast(module, each))
        graph = export_ops(module, given) if spec.ops else None
        if graph is None:
            functions = {name: each for name, each in module.named_modules() if name}
        else:
            functions = {node.name: node.target for node in graph.graph.nodes if _is_judged(node)}
        return Opened(module, given, functions, notes, state, spec.model.rpartition(":")[0], graph)

    def _change(self, module: Any, folder: str) -> Any:
        folder = str(self.target.options.get("folder") or folder)
        change = calls.load_attribute(self._rewrite, folder, "class")
        path = os.path.abspath(self._rewrite.rpartition(":")[0])
        with calls.blaming(path, f"{self._rewrite} failed"):
            found = change(copy.deepcopy(module))
        if not isinstance(found, torch.nn.Module):
            text = f"{self._rewrite} returned {type(found).__name__}, not a torch module"
            raise UsageError(text, "it is called with the reference's module and returns the module that is tested")
        return found.train(module.training) if found.training != module.training else found

    def _cast(self, module: Any, tensor: Any) -> Any:
        dtype = find_dtype(module) if self._precision or self._rewrite else None
        device = next((each.device for each in module.parameters()), tensor.device)
        is_float = tensor.is_floating_point() and dtype is not None
        return tensor.detach().to(device=device, dtype=dtype if is_float else None)

    def _grain(self, module: Any) -> str:
        dtype = str(find_dtype(module)).removeprefix("torch.")
        flags = torch.backends.cudnn.allow_tf32 or torch.get_float32_matmul_precision() != "highest"
        return TF32 if dtype == "float32" and flags and self._device == "cuda" else dtype

    def _do_trace(self, spec: PartSpec, _job: Job, folder: str) -> tuple[dict[str, Any], list[float]]:
        """Compute the reference with every call, its tensors and gradients."""
        opened, recorder = self._open(spec), calls.CallRecorder()
        with calls.preserved(opened.module):
            found, notes = run_model(opened, recorder, spec)
        recorder.finish()
        notes += _describe_uncalled(opened, recorder)
        plan = {
            "calls": [asdict(call) for call in recorder.calls],
            "outputs": list(found),
            "notes": [*opened.notes, *notes],
            "state": opened.state,
            "grain": self._grain(opened.module),
        }
        write_atomic(os.path.join(folder, PLAN_FILE), json.dumps(plan))
        with open(os.path.join(folder, CALLS_FILE), "wb") as file:
            pickle.dump(recorder.kept, file)
        return {**recorder.tensors, **found}, []

    def _do_noise(self, spec: PartSpec, _job: Job, _folder: str) -> tuple[dict[str, Any], list[float]]:
        """Compute the reference with parameters rounded to the target's type, and noise in each call's tensors."""
        opened = self._open(spec)
        recorder = calls.CallRecorder(noise=find_noise(spec.grain))
        grain = torch.float16 if spec.grain == TF32 else getattr(torch, spec.grain)
        module = opened.module
        with calls.preserved(module, grain), recorder.rounding(calls.is_closed(module) or not any(module.children())):
            found, _ = run_model(opened, recorder, spec)
        return {**recorder.tensors, **found}, []

    def _do_survey(self, spec: PartSpec, job: Job, folder: str) -> tuple[dict[str, Any], list[float]]:
        """List the reference's calls that the target can make."""
        opened, kept = self._open(spec), load_kept(job)
        labels = {}
        for label, blob in kept.items():
            function = opened.functions.get(calls.find_called(label))
            forward = getattr(function, "forward", function)
            if function is not None and forward is not None and calls.fits_call(forward, blob):
                labels[label] = list(find_params(function))
        observes = "all" if not self._is_compiled else "outputs" if spec.ops else "forward"
        params = {f"{name}:grad": list(each.shape) for name, each in find_params(opened.module).items()}
        survey = {"labels": labels, "params": params, "grain": self._grain(opened.module), "observes": observes}
        write_atomic(os.path.join(folder, SURVEY_FILE), json.dumps(survey))
        return {}, []

    def _do_full(self, spec: PartSpec, job: Job, _folder: str) -> tuple[dict[str, Any], list[float]]:
        opened = self._open(spec)
        function = self._compile(opened.module if opened.graph is None else opened.graph)
        times_s = []
        with calls.preserved(opened.module):
            found, notes = run_model(opened, None, spec, function)
            for _ in range(job.repeats):
                begun = time.perf_counter()
                run_model(opened, None, spec, function)
                times_s.append(time.perf_counter() - begun)
        if self._is_compiled and not torch._dynamo.utils.counters["stats"]["unique_graphs"]:  # noqa: SLF001
            raise BackendError("torch.compile compiled nothing of this model", ending=StepEnding.UNSUPPORTED)
        if any(note.startswith(NO_BACKWARD) for note in notes) and spec.grad_outs:
            raise BackendError(notes[-1])
        return found, times_s

    def _do_marked(self, spec: PartSpec, _job: Job, _folder: str) -> tuple[dict[str, Any], list[float]]:
        """Compute the model on this target and return the tensors of every call in it."""
        opened = self._open(spec)
        with calls.preserved(opened.module):
            if self._is_compiled and opened.graph is not None:
                marked, names = mark_ops(opened.graph)
                with torch.no_grad():
                    values = self._compile(marked)(*_flatten(*calls.split_given(opened.given)))
                return dict(zip(names, values, strict=True)), []
            if self._is_compiled:
                whole = self._compile(opened.module)
                found, seen = calls.record_compiled(opened.module, lambda: run_model(opened, None, spec, whole)[0])
                return {**seen, **found}, []
            recorder = calls.CallRecorder()
            found, _ = run_model(opened, recorder, spec)
        return {**recorder.tensors, **found}, []

    def _do_call(self, spec: PartSpec, job: Job, _folder: str) -> tuple[dict[str, Any], list[float]]:
        """Compute one call alone with the reference's inputs, forward or backward."""
        opened = self._open(spec)
        function = opened.functions[calls.find_called(spec.label)]
        refs = {ref.name: ref for ref in load_refs(job.inputs or "")}
        grain = getattr(torch, spec.grain) if spec.grain not in ("", TF32) else None

        recorder = calls.CallRecorder(noise=find_noise(spec.grain) if spec.noise else 0.0)

        def load(name: str) -> Any:
            tensor = calls.from_array(load_ref(refs[name]))
            if tensor.is_floating_point():
                tensor = tensor.to(grain).to(tensor.dtype) if grain is not None else tensor
                tensor = recorder.perturb(tensor) if spec.noise else tensor
            return self._cast(opened.module, tensor)

        compiled, kept = self._compile(function), load_kept(job)[spec.label]
        ends = spec.grad_outs if spec.backward else None
        times_s: list[float] = []
        found: dict[str, Any] = {}
        with ExitStack() as held:
            if isinstance(function, torch.nn.Module):
                held.enter_context(calls.preserved(function, grain))
                if spec.noise:
                    held.enter_context(calls.hooked(function, recorder.enter_module, recorder.leave))
            held.enter_context(recorder.rounding(spec.noise and calls.is_closed(function)))
            for _ in range(job.repeats + self._is_compiled):
                calls.seed_all(spec.seed)
                made = calls.call_alone(compiled, spec.label, kept, load, find_params(function), ends, times_s)
                found = found or made
        found = {name: recorder.perturb(each) for name, each in found.items()} if spec.noise else found
        return found, times_s[-job.repeats :]

    def _do_keep(self, spec: PartSpec, job: Job, folder: str) -> tuple[dict[str, Any], list[float]]:
        """Write the arguments of a call to a file, cut to `spec.rows` rows along the first axis of the first tensor."""
        refs = {ref.name: ref for ref in load_refs(job.inputs or "")}
        kept = pickle.loads(load_kept(job)[spec.label])  # noqa: S301
        given = calls.map_leaves(kept, calls.TensorName, lambda _path, ref: calls.from_array(load_ref(refs[ref.name])))
        length = next((each.shape[0] for each in calls.find_leaves(given, torch.Tensor).values() if each.ndim), 0)
        rows = spec.rows or length

        def cut(_path: str, tensor: Any) -> Any:
            return tensor[:rows].clone() if tensor.ndim and tensor.shape[0] == length else tensor

        args, kwargs = calls.split_given(calls.map_leaves(given, torch.Tensor, cut))
        torch.save({"args": args, "kwargs": kwargs, "rows": rows}, os.path.join(folder, INPUTS_FILE))
        return {"rows": torch.tensor(rows)}, []

    def _compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Compile a function again for each job: after some modules of one class dynamo leaves others uncompiled."""
        if not self._is_compiled:
            return function
        torch._dynamo.reset()  # noqa: SLF001
        torch._dynamo.utils.counters.clear()  # noqa: SLF001
        if isinstance(function, torch.nn.Module):
            return torch.compile(function)  # type: ignore[no-any-return]

        def call(*args: Any, **kwargs: Any) -> Any:  # ops written in C are not compiled, Python functions are
            return function(*args, **kwargs)

        return torch.compile(call)  # type: ignore[no-any-return]


def find_noise(grain: str) -> float:
    """Return half a unit in the last place of this type, as a fraction."""
    return float(torch.finfo(torch.float16 if grain == TF32 else getattr(torch, grain)).eps) / 2


def hash_state(module: Any) -> str:
    digest = hashlib.sha256()
    for name, each in module.state_dict().items():
        if hasattr(each, "detach"):
            digest.update(f"{name} {each.dtype} {list(each.shape)}".encode())
            digest.update(calls.to_array(each).tobytes())
    return digest.hexdigest()


def find_dtype(module: Any) -> Any:
    """Return the shortest floating-point type of a module's parameters and buffers."""
    found = [each.dtype for each in (*module.parameters(), *module.buffers()) if each.is_floating_point()]
    return min(found, key=lambda dtype: torch.finfo(dtype).bits, default=torch.float32)


def find_params(function: Any) -> dict[str, Any]:
    if not hasattr(function, "named_parameters"):
        return {}
    return {name: each for name, each in function.named_parameters() if each.requires_grad}


def load_kept(job: Job) -> dict[str, bytes]:
    with open(os.path.join(job.inputs or "", CALLS_FILE), "rb") as file:
        return pickle.load(file)  # type: ignore[no-any-return]  # noqa: S301 - the reference's worker wrote it


def _describe_uncalled(opened: Opened, recorder: calls.CallRecorder) -> list[str]:
    called = {calls.find_called(call.label) for call in recorder.calls}
    containers = (torch.nn.ModuleList, torch.nn.ModuleDict, torch.nn.ParameterList, torch.nn.ParameterDict)
    left = [
        name
        for name, each in opened.functions.items()
        if opened.graph is None and name not in called and not isinstance(each, containers)
    ]
    return [f"not called by the model, and so not judged: {join_first(left, 4)}"] if left else []


NO_BACKWARD = "the backward pass is not judged"


def run_model(
    opened: Opened, recorder: calls.CallRecorder | None, spec: PartSpec, function: Callable[..., Any] | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Run forward, and backward from fixed random gradients of the outputs; return outputs, gradients and notes."""
    calls.seed_all(spec.seed)
    leaves: dict[str, Any] = {}

    def place(path: str, tensor: Any) -> Any:
        if not tensor.is_floating_point() or not spec.backward:
            return tensor.clone()
        leaves[path] = tensor.detach().clone().requires_grad_()
        return leaves[path].clone()

    args, kwargs = calls.split_given(calls.map_leaves(opened.given, torch.Tensor, place))
    for each in opened.module.parameters():
        each.grad = None
    with torch.set_grad_enabled(spec.backward):
        output = _execute(opened, recorder, function, args, kwargs)
    outputs = {calls.name_leaf("output", path): each for path, each in calls.find_leaves(output, torch.Tensor).items()}
    if not outputs:
        raise UsageError(f"the module returns {type(output).__name__} without a tensor: there is nothing to compare")
    ends = {name: each for name, each in outputs.items() if each.requires_grad}
    if not spec.backward or not ends:
        return outputs, [f"{NO_BACKWARD}: no output has a gradient"] if spec.backward else []
    try:
        torch.autograd.backward(list(ends.values()), [_draw_gradient(n, each) for n, each in enumerate(ends.values())])
    except RuntimeError as error:
        return outputs, [f"{NO_BACKWARD}: {' '.join(str(error).split())[:200]}"]
    grads = {f"{name}:grad": each.grad for name, each in opened.module.named_parameters()}
    grads |= {f"input[{path}]:grad": each.grad for path, each in leaves.items()}
    return {**outputs, **{name: each for name, each in grads.items() if each is not None}}, []


def _execute(opened: Opened, recorder: calls.CallRecorder | None, function: Any, args: Any, kwargs: Any) -> Any:
    with calls.blaming(opened.path, "the module fails with its example inputs"):
        if opened.graph is not None and (recorder is not None or function is None):
            interpreter = build_interpreter(opened.graph, recorder)
            return interpreter.run(*_flatten(args, kwargs), enable_io_processing=False)
        if recorder is None:
            return (opened.module if function is None else function)(*args, **kwargs)
        with calls.hooked(opened.module, recorder.enter_module, recorder.leave):
            return opened.module(*args, **kwargs)


def _draw_gradient(number: int, output: Any) -> Any:
    """Return the gradient of an output, equal on every target; that of a loss is 1."""
    if not output.ndim:
        return torch.ones_like(output)
    drawn = torch.randn(output.shape, generator=torch.Generator().manual_seed(number))
    return drawn.to(device=output.device, dtype=output.dtype)


def export_ops(module: Any, given: calls.Given) -> Any:
    """Return the model as a graph of ops. Raises UsageError if torch cannot export it."""
    try:
        return torch.export.export(module, *calls.split_given(given), strict=False).module()
    except Exception as error:
        text = " ".join(str(error).split())[:300]
        raise UsageError(
            f"--ops: torch.export cannot export this model: {type(error).__name__}: {text}",
            "leave --ops out: its modules are judged then",
        ) from error


def _is_judged(node: Any) -> bool:
    name = name_op(node.target)
    return node.op == "call_function" and not name.startswith(_PLAIN_OPS)


def name_op(target: Any) -> str:
    """Return `linear` for `aten.linear.default`."""
    return str(getattr(target, "_opname", "") or getattr(target, "__name__", target)).partition(".")[0]


def build_interpreter(graph: Any, recorder: calls.CallRecorder | None) -> Any:

    class Recording(torch.fx.Interpreter):  # type: ignore[misc]
        def run_node(self, node: Any) -> Any:
            if recorder is None or not _is_judged(node):
                return super().run_node(node)
            given = self.fetch_args_kwargs_from_env(node)
            args, kwargs = recorder.enter(node.name, name_op(node.target), *given)
            return recorder.leave(node.target(*args, **kwargs))

    return Recording(graph)


def mark_ops(graph: Any) -> tuple[Any, list[str]]:
    """Return the graph with every op's tensor as an output, and the names of these outputs."""
    marked = copy.deepcopy(graph)
    marked.graph.set_codegen(torch.fx.graph.CodeGen())
    nodes = [node for node in marked.graph.nodes if _is_judged(node) and hasattr(node.meta.get("val"), "dtype")]
    (end,) = [node for node in marked.graph.nodes if node.op == "output"]
    end.args = (tuple(nodes),)
    marked.recompile()
    return marked, [node.name for node in nodes]


def _flatten(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    found: list[Any] = torch.utils._pytree.tree_flatten((args, kwargs))[0]  # noqa: SLF001
    return found
