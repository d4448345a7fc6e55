"""From `module.Class.method` to something that can be called."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from assay.errors import did_you_mean

_ASV_HINT = (
    "it looks like a suite of asv, whose `params` and `setup` are not used here: write a method for each value that "
    "prepares itself, or run asv and import its results with `assay bench import`"
)


class NoSuchBenchmarkError(Exception):
    """The name does not exist; the message lists what does."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """Arguments that a constructor may take."""

    output_dir: str = ""
    data_dir: str = ""
    tpu: str | None = None
    further: Mapping[str, Any] = field(default_factory=dict)
    only_further: bool = False  # class_type tf_benchmark: the constructor gets only these


@dataclass(frozen=True, slots=True)
class Target:
    """A benchmark that was found: a method of a class that is not yet instantiated, or a function."""

    owner: type | None
    name: str
    function: Callable[..., Any] | None = None

    def build(self, arguments: Arguments) -> Callable[..., Any]:
        """What to call; creates the object, which may raise."""
        if self.owner is None:
            assert self.function is not None
            _check_arguments(self.function, self.name, self.function)
            return self.function
        method = getattr(build_object(self.owner, arguments), self.name, None)
        if not callable(method):
            raise NoSuchBenchmarkError(f"{self.owner.__name__}.{self.name} cannot be called")
        found: Callable[..., Any] = method
        _check_arguments(found, f"{self.owner.__name__}.{self.name}", self.owner)
        return found


def _check_arguments(call: Callable[..., Any], name: str, owner: Any) -> None:
    """Benchmarks are called without arguments. asv's have their values in `params`."""
    try:
        parameters = inspect.signature(call).parameters.values()
    except (TypeError, ValueError):  # written in C
        return
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    wanted = [each.name for each in parameters if each.kind in kinds and each.default is each.empty]
    if wanted:
        text = f"{name} needs {', '.join(map(repr, wanted))}, but a benchmark is called without arguments"
        raise TypeError(_join(text, _ASV_HINT if hasattr(owner, "params") else None))


def find_target(text: str) -> Target:
    """`module.Class.method`, `module.Class:method` or `module.function`."""
    module, names = load_module(text.replace(":", "."))
    if not names:
        raise NoSuchBenchmarkError(f"{text!r} is a module: name a function or Class.method in it")
    found: Any = module
    for index, name in enumerate(names):
        if index == len(names) - 1 and isinstance(found, type):
            return _find_method(found, name)
        found = _attribute(found, name, module)
    if isinstance(found, type):
        hint = did_you_mean("benchmark", list_methods(found)) or f"or {text}.filter:REGEX for several"
        raise NoSuchBenchmarkError(f"{text!r} is a class: name one of its methods; {hint}")
    if not callable(found):
        raise NoSuchBenchmarkError(f"{text!r} is not a function but {found!r}"[:300])
    return Target(None, names[-1], found)


def _attribute(owner: Any, name: str, module: ModuleType) -> Any:
    try:
        return getattr(owner, name)
    except AttributeError:
        where = f"module {module.__name__}" if owner is module else owner.__name__
        known = [key for key, value in vars(owner).items() if callable(value) and not key.startswith("_")]
        raise NoSuchBenchmarkError(_join(f"{where} has no {name!r}", did_you_mean(name, known))) from None


def _find_method(owner: type, name: str) -> Target:
    if not callable(getattr(owner, name, None)) and not hasattr(owner, "__getattr__"):
        hint = did_you_mean(name, list_methods(owner))
        raise NoSuchBenchmarkError(_join(f"{owner.__name__} has no method {name!r}", hint))
    return Target(owner, name)


def _join(text: str, hint: str | None) -> str:
    return f"{text}; {hint}" if hint else text


def load_module(path: str) -> tuple[ModuleType, list[str]]:
    """The longest part that is a module, and the names after it. An error inside a module is passed on unchanged."""
    parts = path.split(".")
    module: ModuleType | None = None
    for count in range(1, len(parts) + 1):
        name = ".".join(parts[:count])
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise  # something that the module itself imports
            break
    if module is None:
        raise NoSuchBenchmarkError(
            f"there is no module {parts[0]!r}; modules are found in the working directory and on PYTHONPATH"
        )
    return module, parts[len(module.__name__.split(".")) :]


def list_methods(owner: type) -> list[str]:
    """What a benchmark may be called: everything that its class and its bases define and that can be called."""
    plain = set(dir(object)) | {"report_benchmark", "measure"}
    return [
        name
        for name in dir(owner)
        if name not in plain and not name.startswith("_") and callable(getattr(owner, name, None))
    ]


def find_matches(text: str, arguments: Arguments) -> list[str]:
    """Full names of the methods that `module.Class.filter:REGEX` matches.

    The class is instantiated once, since its constructor may add methods; if that fails, the class itself is used.
    """
    path, _, pattern = text.partition(".filter:")
    module, names = load_module(path)
    owner: Any = module
    for name in names:
        owner = _attribute(owner, name, module)
    if not isinstance(owner, type):
        raise NoSuchBenchmarkError(f"{path!r} is not a class")
    try:
        listed = list_methods(build_object(owner, arguments))
    except Exception:  # noqa: BLE001 a constructor may want what only a real execution has
        listed = list_methods(owner)
    found = [name for name in listed if re.match(pattern, name)]
    if not found:
        raise NoSuchBenchmarkError(f"no method of {path} matches {pattern!r}; it has: {', '.join(listed) or 'none'}")
    return [f"{path}.{name}" for name in found]


# ---------------------------------------------------------------- constructors


def build_object(owner: type, arguments: Arguments) -> Any:
    """The constructor is given what its signature takes."""
    if arguments.only_further:
        return owner(**arguments.further)
    offered = {
        "output_dir": arguments.output_dir,
        "data_dir": arguments.data_dir,
        "root_data_dir": arguments.data_dir,
        "tpu": arguments.tpu,
        **arguments.further,
    }
    try:
        parameters = inspect.signature(owner).parameters.values()
    except (TypeError, ValueError):  # a constructor written in C
        return owner(**arguments.further)
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return owner(**offered)
    taken = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    unknown = [name for name in arguments.further if name not in taken]
    if unknown:
        raise TypeError(f"the constructor of {owner.__name__} takes no {', '.join(map(repr, unknown))}")
    return owner(**{name: value for name, value in offered.items() if name in taken})
