"""Records the requested steps of a torch program. On other steps only the counter of steps is registered."""

from __future__ import annotations

import atexit
import functools
import hashlib
import os
import platform
import signal
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

from assay.trace.inside.compiled import count_graphs, hide_from_dynamo, watch_compiler, watch_inside
from assay.trace.inside.files import TraceFiles
from assay.trace.inside.imports import call_after_import
from assay.trace.inside.modules import ModuleHooks, find_tensors
from assay.trace.inside.naming import Names
from assay.trace.inside.ops import build_mode, push_below, remove_mode
from assay.trace.inside.placement import Placements, find_group
from assay.trace.inside.rows import Rows

Note = Callable[..., None]
_RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_WORLDS = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


class Recorder:
    """The recorder of a process. `settings`: steps, level, in, keep, inside, perturbed. `note` receives problems."""

    def __init__(self, parent: str, settings: dict[str, Any], note: Note) -> None:
        self.step, self.is_active = 1, False
        self._parent, self._settings, self._note = os.path.abspath(parent), settings, note
        self._lock = threading.RLock()
        self._level = settings.get("level", "module")
        self._steps = frozenset(settings.get("steps", (1,)))
        self._skip = (os.path.dirname(os.path.abspath(__file__)), os.path.dirname(sys.modules["torch"].__file__ or ""))
        self._pid = os.getpid()
        self._files: TraceFiles | None = None
        placements = Placements([(str(pattern), str(text)) for pattern, text in settings.get("placement") or ()])
        self._names = Names(placements)
        self._rows = Rows(self._open_files, placements)
        self._hooks = ModuleHooks(self._rows, self._names, settings, self._skip)
        self._hooks.on_begin, self._hooks.on_end = self._note_random, self._on_outermost
        self._mode: Any = None
        self._optimisers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._idle: weakref.WeakSet[Any] = weakref.WeakSet()  # optimisers that never step
        self._stepped: set[int] = set()
        self._last_stepped = 0
        self._groups: list[dict[str, Any]] = []
        self._random = ""
        self._has_weights, self._is_whole = False, True
        self._undo: list[Callable[[], None]] = []
        self._failure = getattr(sys, "last_value", None)  # an exception of an earlier cell, in a notebook
        self._root: Callable[[], Any] = lambda: None  # the outermost module of a program that only infers
        self._root_hook: Any = None

    # ------------------------------------------------------------ beginning and end

    def install(self) -> Recorder:
        """Count steps of optimisers; everything else is registered when a traced step begins."""
        import torch
        from torch.optim import optimizer

        guard = self._guard
        handles = [
            optimizer.register_optimizer_step_pre_hook(guard(self._before_optimiser)),
            optimizer.register_optimizer_step_post_hook(guard(self._after_optimiser)),
        ]
        self._undo += [handle.remove for handle in handles]
        self._wrap(optimizer.Optimizer, "__init__", lambda args, _: self._on_new_optimiser(args[0]))
        self._wrap(torch.amp.GradScaler, "step", lambda args, kwargs: self._on_scaler([*args, *kwargs.values()][1]))
        os.register_at_fork(after_in_child=self.abandon)
        atexit.register(self.close)
        call_after_import("torch._dynamo", lambda: self._undo.append(watch_compiler()))
        if self._settings.get("inside") and self._level != "step":
            self._undo.append(watch_inside(self._rows, self._names, self._hooks, guard))
        self._begin_step()
        return self

    def _wrap(self, owner: Any, name: str, after: Callable[[Any, Any], None]) -> None:
        """Wrap a method: each time that it has returned, `after` is called with the method's arguments."""
        plain, guarded = getattr(owner, name), self._guard(after)

        @functools.wraps(plain)
        def call(*args: Any, **kwargs: Any) -> Any:
            result = plain(*args, **kwargs)
            guarded(args, kwargs)
            return result

        hide_from_dynamo(call, is_deep=False)
        setattr(owner, name, call)
        self._undo.append(lambda: setattr(owner, name, plain))

    def _guard(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Guard a hook: an error in it ends recording, never the program; operations of the hook are not recorded."""
        import torch

        find_tracing, no_transforms = torch._C._get_tracing_state, torch._C._DisableFuncTorch  # noqa: SLF001

        def call(*args: Any, **kwargs: Any) -> None:
            if self._pid != os.getpid():
                return
            if find_tracing() is not None:  # operations of the hook would become a part of the graph
                self._rows.problem = self._rows.problem or "what torch.jit.trace called in a traced step"
                return
            apart = torch._C._DisableTorchDispatch if self._mode is not None else nullcontext  # noqa: SLF001
            # buffers that are created in a program's inference mode could not be written to after it
            plain = torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext()
            try:
                with self._lock, apart(), plain, no_transforms(), torch.no_grad():
                    function(*args, **kwargs)
            except BaseException as error:  # any exception, also one from a signal handler
                self._fail(error)
                if not isinstance(error, Exception) or _is_of_signal(error):
                    raise

        hide_from_dynamo(call)
        return call

    def _fail(self, error: BaseException) -> None:
        self._leave()
        self._steps, self._is_whole = frozenset(), False
        self._note("problem", step=self.step, text=f"{type(error).__name__}: {error}")

    def abandon(self) -> None:
        """Stop recording in a forked child."""
        self._leave()
        self._steps, self._files, self._pid = frozenset(), None, 0

    def close(self) -> None:
        """Write the remaining rows, and remove all hooks."""
        if self._pid != os.getpid():
            return
        has_failed = getattr(sys, "last_value", None) is not self._failure or sys.exc_info()[0] is not None
        is_open = bool(self._optimisers) and self._rows.loss is not None  # no optimiser ended the step
        self._is_whole &= not (self.is_active and (has_failed or is_open))
        self._leave()
        for undo in self._undo:
            undo()
        self._undo, self._steps = [], frozenset()
        atexit.unregister(self.close)
        try:
            if self._files is not None or self._rows.count:
                self._rows.write()
                self._open_files().append_lines("steps.jsonl", [{"end": self._is_whole, "graphs": count_graphs()}])
        except Exception as error:  # noqa: BLE001 a full disk, a broken device
            self._note("problem", step=self.step, text=f"{type(error).__name__}: {error}")
        if self._rows.problem:
            self._note("left out", text=self._rows.problem)
        self._pid = 0

    def _open_files(self) -> TraceFiles:
        if self._files is None:
            facts = describe_program(self._settings)
            self._files = TraceFiles(self._parent, facts["rank"], facts)
        return self._files

    # ------------------------------------------------------------ steps

    def _begin_step(self) -> None:
        is_wanted = self.step in self._steps
        is_noisy = self._settings.get("perturbed") is not None and bool(self._steps) and self.step <= max(self._steps)
        if not (is_wanted or is_noisy):
            self._watch_root()
            return
        self.is_active, self._rows.step, self._random = is_wanted, self.step, hash_random()
        self._rows.is_silent = not is_wanted
        if self._level != "step" or not self._optimisers or is_noisy:
            self._hooks.watch_modules(self._guard)
        self._hooks.watch_backward(self._guard)
        if self._level == "op" and is_wanted:
            self._mode = build_mode(self._rows, self._hooks, self._guard, self._fail, self._skip)
            push_below(self._mode)

    def _leave(self) -> None:
        self.is_active = False
        self._hooks.remove()
        if self._mode is not None:
            remove_mode(self._mode)
            self._mode = None
        self._forget_root()

    def _end_step(self, *, skipped: bool | None = False) -> None:
        was_active = self.is_active
        self._leave()
        if was_active:
            # record parameters without an optimiser: averages of weights, frozen ones, ones that the program changes
            groups = [group for each in self._optimisers for group in each.param_groups]
            trained = {id(parameter) for group in groups for parameter in group["params"]}
            self._rows.begin_batch()
            for module, name, parameter in self._names.list_known() if groups else ():
                if id(parameter) not in trained and self._hooks.is_wanted(module):
                    self._rows.add(("parameter", module, "", name, 0, None), parameter)
            self._rows.end_batch()
            facts = {"groups": self._groups, "random": self._random, "flags": load_flags(), "skipped": skipped}
            self._rows.end_step(facts)
        self.step += 1
        self._stepped, self._groups = set(), []
        self._begin_step()

    def _note_random(self) -> None:
        """Note the random state at the first call of the outermost module: the program may have set it in this step."""
        if not self._hooks.count("random"):
            self._random = hash_random()

    # ------------------------------------------------------------ optimisers

    def _on_new_optimiser(self, optimiser: Any) -> None:
        self._optimisers.add(optimiser)
        if self.step == 1 and not self._stepped:
            self._names.forget()
        if self._level == "step" and self._settings.get("perturbed") is None:
            self._hooks.remove_modules()
        self._forget_root()

    def _before_optimiser(self, optimiser: Any, _args: Any, _kwargs: Any) -> None:
        if not self.is_active:
            return
        if self._mode is not None:
            remove_mode(self._mode)  # the optimiser's results are recorded as parameters and states
        self._rows.begin_batch()
        for module, name, parameter in self._list_parameters(optimiser):
            if parameter.grad is not None:
                self._rows.add(("gradient", module, "", name, len(self._stepped), None), parameter.grad)
        self._rows.end_batch()
        self._groups += [describe_group(each) for each in optimiser.param_groups]
        for each in self._optimisers:
            self._list_parameters(each)  # gives a name to parameters that are in no module
        known = self._names.list_known()
        self._add_weights([(each, *found) for *found, each in known if self._hooks.is_wanted(found[0])])

    def _after_optimiser(self, optimiser: Any, _args: Any, _kwargs: Any) -> None:
        if self.is_active:
            call = len(self._stepped)
            self._rows.begin_batch()
            for module, name, parameter in self._list_parameters(optimiser):
                self._rows.add(("parameter", module, "", name, call, None), parameter)
                for key, value in optimiser.state.get(parameter, {}).items():
                    for index, tensor in enumerate(find_tensors(value)):
                        label = f"{name}.{key}{f'.{index}' if index else ''}"
                        self._rows.add(("optimiser", module, "", label, call, None), tensor)
            for module, name, buffer in self._names.list_buffers():
                if self._hooks.is_wanted(module):
                    self._rows.add(("buffer", module, "", name, call, None), buffer)
            self._rows.end_batch()
            if self._mode is not None:
                push_below(self._mode)
        self._count_step(optimiser, skipped=None if getattr(optimiser, "found_inf", None) is not None else False)

    def _on_scaler(self, optimiser: Any) -> None:
        """Count a step of an optimiser that GradScaler has skipped, since a skipped step ends as well."""
        if self._last_stepped != id(optimiser):
            self._before_optimiser(optimiser, (), {})
            self._count_step(optimiser, skipped=True)
        self._last_stepped = 0

    def _count_step(self, optimiser: Any, *, skipped: bool | None) -> None:
        """Count a step of an optimiser; the program's step ends when each optimiser that ever steps has stepped."""
        self._optimisers.add(optimiser)
        self._idle.discard(optimiser)
        self._last_stepped = id(optimiser)
        if id(optimiser) in self._stepped:  # an optimiser that has not stepped before the second time is idle
            self._idle.update(each for each in self._optimisers if id(each) not in self._stepped)
        self._stepped.add(id(optimiser))
        if all(id(each) in self._stepped for each in self._optimisers if each not in self._idle):
            self._end_step(skipped=skipped)

    def _list_parameters(self, optimiser: Any) -> list[tuple[str, str, Any]]:
        """Return module, name and parameter for each parameter of an optimiser that is in a selected module."""
        found = (parameter for group in optimiser.param_groups for parameter in group["params"])
        named = [(*self._names.find_parameter(each, f"parameter.{index}"), each) for index, each in enumerate(found)]
        return [each for each in named if self._hooks.is_wanted(each[0])]

    def _add_weights(self, parameters: list[tuple[Any, str, str]]) -> None:
        if not self._has_weights:
            self._has_weights = True
            self._rows.add_weights(parameters)

    # ------------------------------------------------------------ programs that only infer

    def _on_outermost(self, module: Any, _args: Any, result: Any) -> None:
        """Count a call of the outermost module as a step if there is no optimiser and nothing is trained."""
        if self._optimisers or any(each.requires_grad for each in find_tensors(result)):
            return
        self._root = self._root if self._root() is not None else weakref.ref(module)
        if self._root() is not module:
            return
        if self.is_active:
            self._add_weights(self._names.list_parameters(module))
        self._end_step()

    def _watch_root(self) -> None:
        """Count calls of the outermost module, on steps that are not traced, while there is no optimiser."""
        if self._optimisers or not self._steps or self.step > max(self._steps):
            return
        from torch.nn.modules import module

        root = self._root()
        if root is not None:
            self._root_hook = root.register_forward_hook(self._guard(self._on_outermost))
        else:
            self._root_hook = module.register_module_forward_pre_hook(self._guard(self._find_root))

    def _find_root(self, module: Any, _args: Any) -> None:
        """Take the first module that is called as the outermost module; from then on only this module has a hook."""
        self._forget_root()
        self._root = weakref.ref(module)
        self._root_hook = module.register_forward_hook(self._guard(self._on_outermost))

    def _forget_root(self) -> None:
        if self._root_hook is not None:
            self._root_hook.remove()
            self._root_hook = None


def _is_of_signal(error: BaseException) -> bool:
    """Return whether an error in a hook was raised by a signal handler of the program, as for a time limit."""
    handlers = {getattr(signal.getsignal(each), "__code__", None) for each in signal.valid_signals()}
    found = error.__traceback__
    while found is not None and found.tb_frame.f_code not in handlers:
        found = found.tb_next
    return found is not None


# ---------------------------------------------------------------- the state that a program depends on


def describe_program(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of `trace.json`."""
    import torch

    rank, world = find_group() or (_find_number(_RANKS, 0), _find_number(_WORLDS, 1))
    return {
        "level": settings.get("level", "module"),
        "steps": sorted(settings.get("steps", (1,))),
        "rank": rank,
        "world": world,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name() if _uses_cuda() else platform.processor() or platform.machine(),
        "flags": load_flags(),
        "inside": bool(settings.get("inside")),
        "perturbed": settings.get("perturbed"),
        "graphs": {},
    }


def _uses_cuda() -> bool:
    import torch

    return bool(torch.cuda.is_available() and torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _find_number(names: tuple[str, ...], otherwise: int) -> int:
    return next((int(text) for name in names if (text := os.environ.get(name, "")).isdigit()), otherwise)


def load_flags() -> dict[str, Any]:
    import torch

    inductor = sys.modules.get("torch._inductor.config")
    own = {} if inductor is None else {"fallback_random": bool(inductor.fallback_random)}
    return own | {
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "matmul": torch.get_float32_matmul_precision(),
        "tf32": torch.backends.cuda.matmul.allow_tf32,
        "cudnn_tf32": torch.backends.cudnn.allow_tf32,
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "threads": torch.get_num_threads(),
        "default_dtype": str(torch.get_default_dtype()).removeprefix("torch."),
    }


def describe_group(group: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a parameter group that JSON can represent."""
    known = {name: _build_plain(value) for name, value in group.items() if name != "params"}
    return {**{name: value for name, value in known.items() if value is not None}, "parameters": len(group["params"])}


def _build_plain(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [_build_plain(each) for each in value]
    if isinstance(value, (bool, int, float, str)):
        return value
    is_number = hasattr(value, "item") and value.numel() == 1 and value.device.type == "cpu"
    return value.item() if is_number else None


def hash_random() -> str:
    """Return one hash of torch's random states: the CPU's, and that of each GPU in use."""
    import torch

    state = hashlib.blake2b(bytes(torch.get_rng_state().tolist()), digest_size=8)
    if _uses_cuda():
        for each in torch.cuda.get_rng_state_all():
            state.update(bytes(each.tolist()))
    return state.hexdigest()


@contextmanager
def record(
    folder: str | os.PathLike[str],
    *,
    steps: Iterable[int] = (1,),
    level: str = "module",
    only: Iterable[str] = (),
    keep: Iterable[str] = (),
    inside: bool = False,
    placement: Mapping[str, str] | None = None,
) -> Iterator[None]:
    """Record some steps of the block, counted from 1 at its beginning, in `FOLDER/trace/rank-R/`.

    `level`: step, module or op. `only` and `keep`: patterns of the module paths that are recorded, and of those whose
    whole tensors are stored. `placement`: patterns, and how ranks share what matches: S(0), I(0), R, P(sum), P(avg).
    `assay trace show FOLDER` and `assay trace diff FOLDER OTHER` read the record.
    """
    if level not in ("step", "module", "op"):
        raise ValueError(f"level {level!r} is not one of step, module, op")
    problems: list[str] = []

    def note(event: str, **facts: Any) -> None:
        problems.extend([f"{event}: {facts.get('text')}"])

    settings = {"steps": list(steps), "level": level, "in": list(only), "keep": list(keep), "inside": inside}
    settings["placement"] = list((placement or {}).items())
    recorder = Recorder(os.path.join(os.fspath(folder), "trace"), settings, note).install()
    try:
        yield
    finally:
        recorder.close()
        for each in problems:
            warnings.warn(f"assay.trace: {each}", stacklevel=3)
