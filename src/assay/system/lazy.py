"""Names of a module that load on first use (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def build_getattr(module: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """Build a module's `__getattr__`. `homes`: defining module → its names, separated by spaces."""
    home_of = {name: home for home, names in homes.items() for name in names.split()}

    def get(name: str) -> object:
        if name not in home_of:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        value = getattr(import_module(home_of[name]), name)
        setattr(sys.modules[module], name, value)  # later uses find the value in the module
        return value

    return get
