"""Assay launches machine-learning runs and proves that they still behave.

Importing this package loads nothing but the standard library, so a training script can afford it:

    import assay
    assay.log(loss=0.25, step=100)

Programs that launch and read runs use the names of `__all__`, too (`docs/reference/python.md`); they load on first use.
"""

from __future__ import annotations

__version__ = "0.2.0"
__all__ = [
    "AssayError",
    "Study",
    "__version__",
    "load_study",
    "log",
    "run",
    "runs",
]

TYPE_CHECKING = False  # what `typing.TYPE_CHECKING` is to type checkers, without importing typing
if TYPE_CHECKING:
    from typing import Any

    from assay.api import Study as Study
    from assay.api import load_study as load_study
    from assay.api import run as run
    from assay.errors import AssayError as AssayError
    from assay.runs import runs as runs
    from assay.script import log as log

_HOMES = {
    "AssayError": "assay.errors",
    "Study": "assay.api",
    "load_study": "assay.api",
    "log": "assay.script",
    "run": "assay.api",
    "runs": "assay.runs",
}


def __getattr__(name: str) -> Any:
    """Load a name on first use; later uses find the name in the module. Plug-ins add functions."""
    if name.startswith("_"):
        raise AttributeError(f"module 'assay' has no attribute {name!r}")
    from importlib import import_module

    if name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    else:
        value = None if _is_module(name) else import_module("assay.plugins").find_function(name)
        if value is None:
            raise AttributeError(f"module 'assay' has no attribute {name!r}")
    globals()[name] = value  # `runs` replaces the module of that name, which the import has set
    return value


def _is_module(name: str) -> bool:
    """Whether a name is a module, for which no plug-in is loaded; `from assay import NAME` tries an attribute first."""
    import os

    return any(os.path.exists(os.path.join(folder, name + end)) for folder in __path__ for end in ("", ".py"))


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
