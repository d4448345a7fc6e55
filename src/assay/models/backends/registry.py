"""Back ends by name, loaded when they are needed, and hashes of the code of users' own back ends.

A user's own back end, `module:Class`, has no version and changes while it is written, so its code is hashed: the
module, the modules next to it that are imported anywhere in its code, and the modules of its base classes. Of an
installed module only its own package is hashed. Other packages are not read: `identity` reports whatever else results
depend on.
"""

from __future__ import annotations

import ast
import hashlib
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from importlib.util import cache_from_source, find_spec
from itertools import product

from assay.errors import NotFoundError
from assay.models.backends.base import Backend
from assay.models.values.model import Target
from assay.system.fast_dataclasses import dataclass

BACKENDS: dict[str, str] = {
    "ort": "assay.models.backends.ort:OrtBackend",
    "reference": "assay.models.backends.onnx_backend:ReferenceBackend",
    "openvino": "assay.models.backends.openvino_backend:OpenvinoBackend",
    "iree": "assay.models.backends.iree_backend:IreeBackend",
    "command": "assay.models.backends.command:CommandBackend",
    "ssh": "assay.models.backends.ssh:SshBackend",
    "torch": "assay.models.backends.torch_backend:TorchBackend",
}


def locate(target: Target) -> tuple[str, str]:
    """Return the module and the class of a target's back end; afterwards the module can be imported."""
    name = BACKENDS.get(target.backend, target.backend)
    module, colon, attribute = name.partition(":")
    if not colon:
        raise NotFoundError("back end", target.backend, BACKENDS)
    folder = str(target.options.get("folder", ""))
    if folder and folder not in sys.path:
        sys.path.append(folder)  # the settings' folder is last, since it may contain an onnx.py
    return module, attribute


def build_backend(target: Target) -> Backend:
    """Return the back end of a target: one of ours, or a user's own as `module:Class`."""
    module, attribute = locate(target)
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise NotFoundError("back end", target.backend, BACKENDS, hint=f"it cannot be loaded: {error}") from error
    backend: Backend = found(target)
    return backend


PREFIX = "code "  # prefix of names in an identity: `code my_backend.py`
_INSTALLED = ("site-packages", "dist-packages")


class OwnCode:
    """Hashes of a back end's code, built before it is imported, in the process that runs it."""

    def __init__(self, module: str) -> None:
        self._module = module
        files: set[str] = set()
        parts = module.split(".")
        for depth in range(1, len(parts) + 1):  # finding a module loads the packages that it is in
            files = find_files(".".join(parts[:depth]))
            forget_stale(files)
        self._hashes = hash_files(files, module)

    def identify(self, kind: type) -> dict[str, str]:
        """Return hashes of the code of the class `kind`, including modules that were loaded since, by any import."""
        return {**hash_files(find_loaded(self._module, kind), self._module), **self._hashes}


def find_files(module: str) -> set[str]:
    """Return the module's file, and the files next to it that its imports name; the code is read, not run."""
    location = _find_location(module)
    if location is None:
        return set()
    found: set[str] = set()
    waiting = [location.origin]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting.extend(each for each in _find_imported(path, location.root) if location.holds(each))
    return found


def find_loaded(module: str, kind: type) -> set[str]:
    """Return the files of loaded modules that are next to `module`, or contain base classes of the back end."""
    location = _find_location(module)
    bases = {each.__module__ for each in kind.__mro__}
    found = set()
    for name, loaded in list(sys.modules.items()):
        path = getattr(loaded, "__file__", None)
        if not isinstance(path, str) or not _is_others(name):
            continue
        real = os.path.realpath(path)
        if name in bases or (location is not None and location.holds(real)):
            found.add(real)
    return found


def hash_files(files: set[str], module: str) -> dict[str, str]:
    """Return the hash of each file by its path relative to the module, so that the location makes no difference."""
    location = _find_location(module)
    base = location.root if location is not None else os.sep
    return {f"{PREFIX}{os.path.relpath(path, base)}": _hash(path) for path in sorted(files)}


def forget_stale(files: set[str]) -> None:
    """Remove stale compiled code, so that the code that runs is what was hashed: Python uses compiled code if its
    source has the recorded mtime in seconds and length, even if the source was written later."""
    for path in files:
        with suppress(OSError, NotImplementedError):
            compiled = cache_from_source(path)
            if os.stat(path).st_mtime_ns >= os.stat(compiled).st_mtime_ns:
                os.unlink(compiled)


@dataclass(frozen=True, slots=True)
class _CodeLocation:
    origin: str  # the module's file
    root: str  # the folder that its imports begin in
    bounds: str  # the folder of its own code: the root; of an installed module its package, or its file

    def holds(self, path: str) -> bool:
        if path != self.bounds and not path.startswith(f"{self.bounds}{os.sep}"):
            return False
        return self.bounds != self.root or not _is_installed(path)


def _find_location(module: str) -> _CodeLocation | None:
    """Return where a module's code is; None if the module is ours, or does not exist, which the import reports."""
    try:
        spec = find_spec(module)
    except (ImportError, AttributeError, ValueError):
        return None
    if spec is None or not spec.has_location or spec.origin is None or not _is_others(module):
        return None
    origin = os.path.realpath(spec.origin)
    is_package = os.path.basename(origin) == "__init__.py"
    root = _climb(origin, 1 + module.count(".") + is_package)
    if not _is_installed(origin):
        return _CodeLocation(origin, root, root)
    top = os.path.join(root, module.partition(".")[0])
    return _CodeLocation(origin, root, top if is_package or "." in module else origin)


def _climb(path: str, levels: int) -> str:
    return os.path.normpath(os.path.join(path, *[os.pardir] * levels))


def _is_others(name: str) -> bool:
    """Return whether a module is neither ours nor in the standard library, which both have versions."""
    top = name.partition(".")[0]
    return top != "assay" and top not in sys.stdlib_module_names


def _is_installed(path: str) -> bool:
    return any(part in _INSTALLED for part in path.split(os.sep))


def _find_imported(path: str, root: str) -> Iterator[str]:
    try:
        with open(path, "rb") as file:
            tree = ast.parse(file.read(), path)
    except (OSError, SyntaxError, ValueError):
        return  # an extension module, or a module that cannot be loaded: the import reports it
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names, begin = [alias.name for alias in node.names], [root, os.path.dirname(path)]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" if node.module else alias.name for alias in node.names]
            begin = [_climb(path, node.level) if node.level else root]
        else:
            continue
        for folder, name in product(begin, names):  # each name that may be a module
            yield from _resolve(folder, name)


def _resolve(folder: str, name: str) -> Iterator[str]:
    """Yield the files of a module and of the packages that it is in."""
    location = folder
    for part in name.split("."):
        location = os.path.join(location, part)
        for path in (f"{location}.py", os.path.join(location, "__init__.py")):
            if os.path.isfile(path):
                yield os.path.realpath(path)


def _hash(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return "gone"
