"""Detects which framework a benchmark used, its versions, and the peaks that only the process itself can measure.

No framework is imported: only frameworks that the benchmark has loaded are queried, and errors are ignored.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import sys
from collections.abc import Callable
from typing import Any

from assay.system.processes import load_size

_FRAMEWORKS = ("tensorflow", "torch", "jax", "paddle", "mindspore", "mxnet", "cupy", "onnxruntime", "sklearn", "numpy")

_LIBRARIES = (
    *("scipy", "pandas", "numba", "transformers", "triton", "tensorrt", "torchvision", "flax", "keras", "onnx"),
    "openvino",
)


def is_library(name: str) -> bool:
    """Return whether a loaded module is a framework or library, and not the user's own."""
    return name in _FRAMEWORKS or name in _LIBRARIES


def add_path_hint(message: str) -> str:
    """Add a hint to a message if the module that was not found is in the folder `src`, which is not on the path."""
    found = re.search(r"No module named '(\w+)", message)
    paths = [f"src/{found[1]}", f"src/{found[1]}.py"] if found else []
    return f"{message}; it is in src: give --path src" if any(map(os.path.exists, paths)) else message


def find_framework() -> dict[str, str] | None:
    """Return the name and versions of the first known framework that is loaded."""
    name = next((name for name in _FRAMEWORKS if hasattr(sys.modules.get(name), "__version__")), None)
    if name is None:
        return None
    module: Any = sys.modules[name]
    found = {"name": name, "version": str(module.__version__)}
    versions = {key: _try(ask, module) for key, ask in _VERSIONS.get(name, {}).items()}
    return found | {key: str(value) for key, value in versions.items() if value}


def find_packages() -> dict[str, str]:
    """Return the versions of loaded packages on which a result may depend."""
    loaded = {name: getattr(sys.modules.get(name), "__version__", None) for name in (*_FRAMEWORKS, *_LIBRARIES)}
    return {name: str(version) for name, version in loaded.items() if version is not None}


_VERSIONS: dict[str, dict[str, Callable[[Any], object]]] = {
    "torch": {
        "build_version": lambda torch: torch.version.git_version,
        "cuda": lambda torch: torch.version.cuda or torch.version.hip,
        "cudnn": lambda torch: _dotted(torch.backends.cudnn.version()),
    },
    "tensorflow": {
        "build_version": lambda tensorflow: tensorflow.__git_version__,
        "cuda": lambda tensorflow: tensorflow.sysconfig.get_build_info()["cuda_version"],
        "cudnn": lambda tensorflow: tensorflow.sysconfig.get_build_info()["cudnn_version"],
    },
    "jax": {
        "build_version": lambda _: _installed("jaxlib"),
        "cuda": lambda _: _installed("nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime-cu13", "nvidia-cuda-runtime"),
        "cudnn": lambda _: _installed("nvidia-cudnn-cu12", "nvidia-cudnn-cu13"),
    },
}


def _try(ask: Callable[[Any], Any], module: Any) -> Any:
    with contextlib.suppress(Exception):
        return ask(module)
    return None


def _dotted(number: object) -> str | None:
    """Return a version of cuDNN with dots: 9.10.2 for the number 91002, and 8.9.2 for 8902."""
    if not isinstance(number, int) or not number:
        return None
    major = 10000 if number >= 90000 else 1000
    return f"{number // major}.{number % major // 100}.{number % 100}"


def _installed(*names: str) -> str | None:
    from importlib import metadata

    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return None


# ---------------------------------------------------------------- peaks


def load_peaks() -> dict[str, int | float]:
    """Return the peaks of this process and its children: exact, since the kernel records the peak of a process."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    own = resource.getrusage(resource.RUSAGE_SELF)
    found: dict[str, int | float] = {
        "max_rss": max(load_size("self", "VmHWM") or own.ru_maxrss * 1024, children.ru_maxrss * 1024),
        "max_vms": load_size("self", "VmPeak"),
        "cpu_s": own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime,
    }
    loaded = [(sys.modules[name], ask) for name, ask in _GPU_MEMORY.items() if name in sys.modules]
    gpu = max((_try(ask, module) or 0 for module, ask in loaded), default=0)
    if gpu:
        found["gpu_memory_bytes"] = int(gpu)
    return found


def _torch_memory(torch: Any) -> int:
    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):
        return 0
    return sum(torch.cuda.max_memory_reserved(index) for index in range(torch.cuda.device_count()))


def _tensorflow_memory(tensorflow: Any) -> int:
    gpus = tensorflow.config.list_logical_devices("GPU")
    return sum(tensorflow.config.experimental.get_memory_info(f"GPU:{index}")["peak"] for index in range(len(gpus)))


def _jax_memory(jax: Any) -> int:
    devices = [device for device in jax.local_devices() if device.platform != "cpu"]
    return sum((device.memory_stats() or {}).get("peak_bytes_in_use", 0) for device in devices)


_GPU_MEMORY: dict[str, Callable[[Any], int]] = {
    "torch": _torch_memory, "tensorflow": _tensorflow_memory, "jax": _jax_memory,
}  # fmt: skip
