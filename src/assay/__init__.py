"""Assay launches machine-learning runs and proves that they still behave.

Importing this package loads nothing but the standard library, so a training script can afford it:

    import assay
    assay.log(loss=0.25, step=100)
"""

from __future__ import annotations

__version__ = "0.1.0"
__all__ = ["__version__", "log", "runs"]

TYPE_CHECKING = False  # what `typing.TYPE_CHECKING` is to type checkers, without importing typing
if TYPE_CHECKING:
    from assay.runs import runs as runs
    from assay.script import log as log

_HOMES = {"log": "assay.script", "runs": "assay.runs"}


def __getattr__(name: str) -> object:
    """Fetch `log` and `runs` on first use; later uses find them here without passing this way."""
    if name not in _HOMES:
        raise AttributeError(f"module 'assay' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value  # for `runs` also instead of the module of that name, which the import has put here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
