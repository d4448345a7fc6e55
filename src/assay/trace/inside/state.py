"""The other state that a program depends on: versions, torch's flags, random states, the values of parameter groups."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from typing import Any

from assay.trace.inside.placement import find_group

_RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_WORLDS = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


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
