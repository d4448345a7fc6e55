"""Names of modules and parameters: paths in the model, which are the same at every level and under wrappers."""

from __future__ import annotations

import gc
import re
import weakref
from collections.abc import Iterator
from typing import Any

from assay.trace.inside.placement import Placements

_WRAPPERS = re.compile(r"(?:^|(?<=\.))(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)(?:\.|$)")
_PARALLEL = ("DistributedDataParallel", "DataParallel")


class Names:
    """Paths of modules and parameters. The largest model has no prefix; the prefix of another model is its class."""

    def __init__(self, placements: Placements) -> None:
        self._placements = placements
        self._modules: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._parameters: dict[int, tuple[Any, str, str]] = {}
        self._versions: weakref.WeakKeyDictionary[Any, dict[str, int]] = weakref.WeakKeyDictionary()
        self._prefixes: dict[str, int] = {}
        self._has_main = False

    def find_module(self, module: Any) -> str:
        if module not in self._modules:
            self._scan()
        return self._modules[module] if module in self._modules else self._add(module)

    def find_parameter(self, parameter: Any, otherwise: str) -> tuple[str, str]:
        """Return the module and name of a parameter. `otherwise`: the name if the parameter is in no module."""
        if not self._is_known(parameter):
            self._scan()
        if not self._is_known(parameter):
            self._parameters[id(parameter)] = (weakref.ref(parameter), "", otherwise)
        return self._parameters[id(parameter)][1:]

    def list_parameters(self, root: Any) -> list[tuple[Any, str, str]]:
        return [(each, *self.find_parameter(each, f"parameter.{i}")) for i, each in enumerate(root.parameters())]

    def list_buffers(self) -> Iterator[tuple[str, str, Any]]:
        """Yield buffers that were written to since the last call; none for DDP and FSDP, since ranks may differ."""
        for module, path in [] if self._placements.is_parallel else list(self._modules.items()):
            seen = self._versions.setdefault(module, {}) if module._buffers else {}  # noqa: SLF001
            for name, buffer in module._buffers.items():  # noqa: SLF001
                if buffer is not None and not buffer.is_inference() and buffer._version > seen.get(name, 0):  # noqa: SLF001
                    seen[name] = buffer._version  # noqa: SLF001
                    yield path, name, buffer

    def list_known(self) -> Iterator[tuple[str, str, Any]]:
        """Yield module, name and parameter, for all parameters that were found and have values."""
        from torch.nn.parameter import is_lazy

        for reference, module, name in list(self._parameters.values()):
            parameter = reference()
            if parameter is not None and not is_lazy(parameter) and not parameter.is_meta:
                yield module, name, parameter

    def forget(self) -> None:
        """Forget all names: a module that was called while its model was built was named as a model of its own."""
        self._modules.clear()
        self._parameters.clear()
        self._prefixes.clear()
        self._has_main = False

    def list_modules(self) -> list[tuple[Any, str]]:
        self._scan()
        return list(self._modules.items())

    def _scan(self) -> None:
        """Find new models among all objects: modules that are not part of another module, the largest first."""
        from torch.nn import Module

        found = [each for each in gc.get_objects() if issubclass(type(each), Module) and each not in self._modules]
        inner = {id(child) for each in found for child in each._modules.values()}  # noqa: SLF001
        roots = [each for each in found if id(each) not in inner]
        for root in sorted(roots, key=_count_parameters, reverse=True):
            self._add(root)
        for module, path in list(self._modules.items()):
            self._add_parameters(module, path)  # a program may give other parameters to a module

    def _add(self, root: Any) -> str:
        prefix = ""
        if self._has_main or not _count_parameters(root)[1]:
            kind = type(root).__name__
            number = self._prefixes[kind] = self._prefixes.get(kind, 0) + 1
            prefix = kind if number == 1 else f"{kind}#{number}"
        else:
            self._has_main = True
        is_parallel = type(root).__name__ in _PARALLEL
        self._placements.is_parallel |= type(root).__name__ == "DistributedDataParallel"
        for wrapped, module in root.named_modules():
            path = _WRAPPERS.sub("", wrapped).rstrip(".")
            if is_parallel and path.partition(".")[0] == "module":
                path = path.partition(".")[2]
            if module not in self._modules:
                self._modules[module] = f"{prefix}.{path}" if prefix and path else prefix or path
                self._placements.is_parallel |= any(each.__name__ == "FSDPModule" for each in type(module).__mro__)
                self._add_parameters(module, self._modules[module])
        return self._modules[root]

    def _add_parameters(self, module: Any, path: str) -> None:
        """Add a module's parameters, but not tensors that replace them in a call (`torch.func.functional_call`)."""
        from torch.nn import Parameter

        for name, parameter in module._parameters.items():  # noqa: SLF001
            if isinstance(parameter, Parameter) and not self._is_known(parameter):
                self._parameters[id(parameter)] = (weakref.ref(parameter), path, name)

    def _is_known(self, parameter: Any) -> bool:
        known = self._parameters.get(id(parameter))
        return known is not None and known[0]() is parameter


def _count_parameters(root: Any) -> tuple[int, int]:
    """Count the trained parameters, and all parameters: a copy with averages has the model's parameters, untrained."""
    from torch.nn.parameter import is_lazy

    found = [each for each in root.parameters() if not is_lazy(each)]
    return sum(each.numel() for each in found if each.requires_grad), sum(each.numel() for each in found)
