"""Which framework a benchmark used, with its versions, and the peaks that only the process itself knows.

Nothing is imported: only frameworks that the benchmark has loaded are asked, and errors are ignored.
"""

from __future__ import annotations

import contextlib
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
    """Something that is installed, and not a module of the user's own."""
    return name in _FRAMEWORKS or name in _LIBRARIES


def find_framework() -> dict[str, str] | None:
    """The first of the known frameworks that is loaded."""
    name = next((name for name in _FRAMEWORKS if hasattr(sys.modules.get(name), "__version__")), None)
    if name is None:
        return None
    module: Any = sys.modules[name]
    found = {"name": name, "version": str(module.__version__)}
    versions = _VERSIONS[name](module) if name in _VERSIONS else {}
    return found | {key: str(value) for key, value in versions.items() if value}


def find_packages() -> dict[str, str]:
    """Versions of what the benchmark has loaded and whose version a result may depend on."""
    loaded = {name: getattr(sys.modules.get(name), "__version__", None) for name in (*_FRAMEWORKS, *_LIBRARIES)}
    return {name: str(version) for name, version in loaded.items() if version is not None}


def _torch_versions(torch: Any) -> dict[str, object]:
    return {
        "build_version": _try(lambda: torch.version.git_version),
        "cuda": _try(lambda: torch.version.cuda) or _try(lambda: torch.version.hip),
        "cudnn": _dotted(_try(lambda: torch.backends.cudnn.version() or None)),
    }


def _tensorflow_versions(tensorflow: Any) -> dict[str, object]:
    built = _try(lambda: dict(tensorflow.sysconfig.get_build_info())) or {}
    return {
        "build_version": _try(lambda: tensorflow.__git_version__),
        "cuda": built.get("cuda_version"),
        "cudnn": built.get("cudnn_version"),
    }


def _jax_versions(_jax: Any) -> dict[str, object]:
    return {
        "build_version": _installed("jaxlib"),
        "cuda": _installed("nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime-cu13", "nvidia-cuda-runtime"),
        "cudnn": _installed("nvidia-cudnn-cu12", "nvidia-cudnn-cu13"),
    }


_VERSIONS: dict[str, Callable[[Any], dict[str, object]]] = {
    "torch": _torch_versions,
    "tensorflow": _tensorflow_versions,
    "jax": _jax_versions,
}


def _try(ask: Callable[[], Any]) -> Any:
    with contextlib.suppress(Exception):
        return ask()
    return None


def _dotted(number: object) -> str | None:
    """cuDNN counts 91002 for 9.10.2, and 8902 for 8.9.2."""
    if not isinstance(number, int):
        return None
    major, minor = (10000, 100) if number >= 90000 else (1000, 100)
    return f"{number // major}.{number % major // minor}.{number % minor}"


def _installed(*names: str) -> str | None:
    from importlib import metadata

    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return None


# ---------------------------------------------------------------- peaks


def load_peaks() -> dict[str, int | float]:
    """Exact, however short the benchmark was: the kernel keeps the largest size of a process."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    own = resource.getrusage(resource.RUSAGE_SELF)
    found: dict[str, int | float] = {
        "max_rss": max(load_size("self", "VmHWM") or own.ru_maxrss * 1024, children.ru_maxrss * 1024),
        "max_vms": load_size("self", "VmPeak"),
        "cpu_s": own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime,
    }
    gpu = max((_try(ask) or 0 for ask in (_torch_memory, _tensorflow_memory, _jax_memory)), default=0)
    if gpu:
        found["gpu_memory_bytes"] = int(gpu)
    return found


def _torch_memory() -> int:
    torch: Any = sys.modules.get("torch")
    if torch is None or not (torch.cuda.is_available() and torch.cuda.is_initialized()):
        return 0
    return sum(torch.cuda.max_memory_reserved(index) for index in range(torch.cuda.device_count()))


def _tensorflow_memory() -> int:
    tensorflow: Any = sys.modules.get("tensorflow")
    gpus = tensorflow.config.list_logical_devices("GPU") if tensorflow is not None else []
    return sum(tensorflow.config.experimental.get_memory_info(f"GPU:{index}")["peak"] for index in range(len(gpus)))


def _jax_memory() -> int:
    jax: Any = sys.modules.get("jax")
    devices = [device for device in jax.local_devices() if device.platform != "cpu"] if jax is not None else []
    return sum((device.memory_stats() or {}).get("peak_bytes_in_use", 0) for device in devices)
