"""Dataclasses and named tuples whose definition is six and three times faster than in the standard library.

Each start of `assay run` defines a hundred dataclasses. The standard library compiles up to six methods for each class
and imports `inspect`; here a class has one generated method, `__init__`, and shares the others. All classes have slots.
`dataclasses.fields`, `asdict`, `replace` and `is_dataclass` accept these classes; options that Assay does not use are
missing. A named tuple is made by `collections.namedtuple`: `typing.NamedTuple` first compiles each field's annotation.
Modules that `assay run` and `assay sum`, model checks, benchmarks and golden recordings load use this module; a type
checker sees the classes of the standard library.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

__all__ = ["NamedTuple", "asdict", "dataclass", "field", "fields", "is_dataclass", "replace"]

if TYPE_CHECKING:
    from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
    from typing import NamedTuple

_MISSING: Any = object()
_NOT_COPIED = ("__dict__", "__weakref__")


class Field:
    """The description of one field, with the attribute names of `dataclasses.Field`."""

    __slots__ = ("compare", "default", "default_factory", "init", "name", "repr")

    def __init__(self, default: Any, default_factory: Any, init: bool, repr: bool, compare: bool) -> None:  # noqa: A002
        self.name = ""
        self.default, self.default_factory = default, default_factory
        self.init, self.repr, self.compare = init, repr, compare

    @property
    def _field_type(self) -> Any:
        """The type by which the standard library distinguishes fields from class variables."""
        import dataclasses

        return vars(dataclasses)["_FIELD"]


def _field(
    *,
    default: Any = _MISSING,
    default_factory: Any = _MISSING,
    init: bool = True,
    repr: bool = True,  # noqa: A002
    compare: bool = True,
) -> Any:
    return Field(default, default_factory, init, repr, compare)


def _dataclass(cls: Any = None, /, *, frozen: bool = False, slots: bool = True) -> Any:  # noqa: ARG001 all have slots
    return _build_class(cls, frozen) if cls is not None else lambda inner: _build_class(inner, frozen)


def _fields(value: Any) -> tuple[Field, ...]:
    return tuple(value.__dataclass_fields__.values())


def _is_dataclass(value: Any) -> bool:
    return hasattr(value, "__dataclass_fields__")


def _replace(value: Any, /, **changes: Any) -> Any:
    for name, each in value.__dataclass_fields__.items():
        if each.init and name not in changes:
            changes[name] = getattr(value, name)
    return value.__class__(**changes)


def _asdict(value: Any) -> Any:
    """Return the fields of a dataclass as a dict for JSON; only containers of values are copied."""
    if hasattr(value, "__dataclass_fields__"):
        return {name: _asdict(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, dict):
        return {name: _asdict(inner) for name, inner in value.items()}
    return type(value)(map(_asdict, value)) if type(value) in (list, tuple) else value


class _NamedTupleMeta(type):
    """Builds a named tuple from a class body, including the methods and other attributes in the body."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> Any:  # noqa: ARG004
        names = namespace["__annotations__"]
        defaults = [namespace[each] for each in names if each in namespace]
        built = namedtuple(name, names, defaults=defaults, module=namespace["__module__"])  # type: ignore[misc] # noqa: PYI024
        for key, value in namespace.items():
            if key not in names and key != "__module__":
                setattr(built, key, value)
        return built


if not TYPE_CHECKING:
    NamedTuple = type.__new__(_NamedTupleMeta, "NamedTuple", (), {})
    asdict = _asdict
    dataclass, field, fields, is_dataclass, replace = _dataclass, _field, _fields, _is_dataclass, _replace


def _build_class(cls: Any, frozen: bool) -> Any:
    namespace = {name: value for name, value in vars(cls).items() if name not in _NOT_COPIED}
    inherited = [vars(base).get("__dataclass_fields__", {}) for base in reversed(cls.__mro__[1:])]
    own = {}
    for name, annotation in namespace.get("__annotations__", {}).items():
        if not str(annotation).startswith("ClassVar"):  # a slot and a class variable cannot have the same name
            value = namespace.pop(name, _MISSING)
            own[name] = value if isinstance(value, Field) else Field(value, _MISSING, True, True, True)
            own[name].name = name
    known: dict[str, Field] = {name: each for fields in (*inherited, own) for name, each in fields.items()}
    namespace["__slots__"] = tuple(own)
    namespace["__dataclass_fields__"] = known
    namespace["__match_args__"] = tuple(name for name, each in known.items() if each.init)
    namespace["_compared"] = staticmethod(_build_key([name for name, each in known.items() if each.compare]))
    for name, method in (("__repr__", _repr), ("__eq__", _eq), *(_FROZEN.items() if frozen else ())):
        namespace.setdefault(name, method)
    if namespace.get("__hash__") is None:
        namespace["__hash__"] = _hash if frozen else None
    built = type(cls)(cls.__name__, cls.__bases__, namespace)
    built.__qualname__ = cls.__qualname__
    if "__init__" not in namespace:
        # `__init__` is compiled for the first instance: a command uses only half of the classes that it loads
        def __init__(self: Any, *values: Any, **named: Any) -> None:  # noqa: N807 becomes the method of the class
            built.__init__ = _build_init(built, known, frozen)
            built.__init__(self, *values, **named)

        built.__init__ = __init__
    return built


def _build_init(cls: Any, known: dict[str, Field], frozen: bool) -> Callable[..., None]:
    parameters, lines = ["self"], []
    names: dict[str, Any] = {"__name__": cls.__module__, "_MISSING": _MISSING}
    for name, each in known.items():
        value = name
        if each.default_factory is not _MISSING:
            names[f"_make_{name}"] = each.default_factory
            value = f"_make_{name}() if {name} is _MISSING else {name}" if each.init else f"_make_{name}()"
            names[f"_default_{name}"] = _MISSING
        elif each.default is not _MISSING:
            names[f"_default_{name}"] = each.default
            value = name if each.init else f"_default_{name}"
        elif not each.init:
            continue  # __post_init__ sets this field
        if each.init:
            parameters.append(f"{name}=_default_{name}" if f"_default_{name}" in names else name)
        if frozen:
            names[f"_set_{name}"] = getattr(cls, name).__set__
        lines.append(f"_set_{name}(self, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    body = "\n    ".join(lines) or "pass"
    exec(f"def __init__({', '.join(parameters)}):\n    {body}", names)  # noqa: S102 as the standard library does
    init: Callable[..., None] = names["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    return init


def _build_key(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) > 1:
        return attrgetter(*names)
    return lambda value: tuple(getattr(value, name) for name in names)


def _repr(self: Any) -> str:
    shown = (f"{name}={getattr(self, name)!r}" for name, each in self.__dataclass_fields__.items() if each.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _eq(self: Any, other: Any) -> Any:
    if other.__class__ is not self.__class__:
        return NotImplemented
    return self._compared(self) == self._compared(other)


def _hash(self: Any) -> int:
    return hash(self._compared(self))


def _refuse(self: Any, name: str, *_value: object) -> None:
    from dataclasses import FrozenInstanceError

    if "__dataclass_fields__" in vars(type(self)) or name in self.__dataclass_fields__:
        raise FrozenInstanceError(f"cannot change field {name!r}")
    object.__setattr__(self, name, *_value) if _value else object.__delattr__(self, name)


def _get_state(self: Any) -> list[Any]:
    return [getattr(self, name) for name in self.__dataclass_fields__]


def _set_state(self: Any, state: list[Any]) -> None:
    for name, value in zip(self.__dataclass_fields__, state, strict=True):
        object.__setattr__(self, name, value)


_FROZEN = {"__setattr__": _refuse, "__delattr__": _refuse, "__getstate__": _get_state, "__setstate__": _set_state}
