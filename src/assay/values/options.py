"""Options of a command, declared once on its request, for `cli`, pytest and the reference page.

    class StopRequest(Request):
        names: tuple[str, ...] = argument("NAME...", multiple=True)
        grace: float = option("--grace", type=float, minimum=0, default=10.0, metavar="S", help="Seconds …")
        as_json: bool = json_option()

An option whose default is False is a flag. An option that is `multiple` is a tuple. `parse` gets the text (for a
`multiple` option the tuple of texts) and the option's name, and raises UsageError with this name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Self, dataclass_transform

from assay.system.fast_dataclasses import dataclass

Parse = Callable[[Any, str], Any]


@dataclass(frozen=True, slots=True)
class Option:
    """The declaration of a request's field. A field without names is an argument, known by its position."""

    names: tuple[str, ...]
    help: str
    default: Any = None
    metavar: str | None = None
    type: type = str
    multiple: bool = False
    required: bool = False
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    parse: Parse | None = None

    @property
    def is_flag(self) -> bool:
        return self.default is False

    @property
    def name(self) -> str:
        """The long name, by which messages name the option."""
        return self.names[-1] if self.names else ""


def option(*names: str, help: str, default: Any = None, multiple: bool = False, **further: Any) -> Any:  # noqa: A002
    """Declare an option; parameters are named as in click, argparse and pytest, `further` are other fields."""
    return Option(names, help, () if multiple and default is None else default, multiple=multiple, **further)


def argument(
    metavar: str | None = None, *, multiple: bool = False, required: bool = True, choices: tuple[str, ...] = ()
) -> Any:
    """Declare a word of the command line without a name: FILE, STUDY…"""
    return option(help="", metavar=metavar, multiple=multiple, required=required, choices=choices)


@dataclass_transform(frozen_default=True)
class Request:
    """A frozen dataclass of options, without generated code, since every start of a command defines several. A plain
    value in a subclass replaces an option of its base: the field has that value, and the option is not offered."""

    OPTIONS: ClassVar[Mapping[str, Option]] = {}
    EXTRAS: ClassVar[tuple[str, ...]] = ()  # fields that belong to plug-ins

    def __init_subclass__(cls) -> None:
        own = {name: value for name, value in vars(cls).items() if isinstance(value, Option)}
        inherited = {
            name: each for base in reversed(cls.__mro__[1:]) for name, each in vars(base).get("OPTIONS", {}).items()
        }
        offered = {name: each for name, each in inherited.items() if isinstance(getattr(cls, name), Option)}
        cls.OPTIONS = {**offered, **own}

    def __init__(self, *values: Any, **named: Any) -> None:
        given = {**dict(zip(self.OPTIONS, values, strict=False)), **named}
        missing = [name for name, each in self.OPTIONS.items() if each.required and name not in given]
        unknown = [name for name in given if name not in self.OPTIONS]
        if missing or unknown or len(values) > len(self.OPTIONS):
            raise TypeError(f"{type(self).__name__}: missing {missing}, unknown {unknown}")
        for name, each in self.OPTIONS.items():
            object.__setattr__(self, name, given.get(name, each.default))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} is read-only")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(tuple(vars(self).items()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    def replace(self, **changes: Any) -> Self:
        return type(self)(**{**vars(self), **changes})

    @property
    def extras(self) -> dict[str, Any]:
        """The options of plug-ins that differ from their defaults."""
        values = {name: getattr(self, name) for name in self.EXTRAS}
        return {name: value for name, value in values.items() if value != self.OPTIONS[name].default}

    def render_words(self, fields: Iterable[str]) -> list[str]:
        """Render the options among `fields` that have a value as words of a command line."""
        words: list[str] = []
        for name in fields:
            declared, value = self.OPTIONS[name], getattr(self, name)
            for each in value if type(value) is tuple else (value,):  # a NamedTuple is one value
                if each is not None:
                    words += [declared.names[0], str(each)]
        return words

    @classmethod
    def extend(cls, others: Iterable[type[Request]]) -> type[Self]:
        """Return this request with the options of others after its own, without those that have a mistake."""
        extended = cls
        for other in others:
            if not find_option_mistake(extended, other):
                further = {name: each for name, each in other.OPTIONS.items() if name not in extended.OPTIONS}
                extended = type(cls.__name__, (extended,), {**further, "EXTRAS": (*extended.EXTRAS, *further)})
        return extended

    @classmethod
    def from_command_line(cls, given: Mapping[str, Any]) -> Self:
        """Build a request from the texts of a command line; raise UsageError if a text is not valid for its option."""
        values: dict[str, Any] = {}
        for name, each in cls.OPTIONS.items():
            value = tuple(given[name] or ()) if each.multiple else given[name]
            if value is None:
                value = each.default
            if each.parse is not None and (each.multiple or isinstance(value, str)):
                value = each.parse(value, each.name)
            values[name] = value
        return cls(**values)


def find_option_mistake(known: type[Request], further: Any) -> str:
    """Return why a command cannot also have these options; empty if it can. The command's option of a field is kept."""
    if not (isinstance(further, type) and issubclass(further, Request)):
        return f"{further!r} is not a subclass of assay.values.options.Request"
    flags = {"-h", "--help", *(flag for each in known.OPTIONS.values() for flag in each.names)}
    for name, each in further.OPTIONS.items():
        if name in known.OPTIONS:
            continue
        if hasattr(known, name):
            return f"{name} is an attribute of every request: the field needs another name"
        if each.required or not each.names:
            return f"{name} must be an option that can be left out"
        bad = [flag for flag in each.names if flag in flags or flag[:1] != "-" or not flag.replace("-", "").isalnum()]
        if bad:
            return f"{name}: {bad[0]!r} is already an option of the command, or not a valid name of an option"
        flags.update(each.names)
    return ""


@dataclass(frozen=True, slots=True)
class Group:
    """Commands under one word. `commands`: name → (`module:handler`, description); handlers are loaded when called.

    A handler is a function `(request, console) -> exit code`, and the type of its first argument is the request; or a
    function `(words) -> exit code`. The help text is the handler's docstring. A third text of a command is the heading
    of its section in the help. `sections`: the headings that come first.
    """

    help: str
    commands: Mapping[str, tuple[str, ...]]
    sections: tuple[str, ...] = ()


def find_request(handler: Any) -> type[Request] | None:
    """Return the type of the argument `request`, annotated as a class or as text; None if there is none."""
    found = getattr(handler, "__annotations__", {}).get("request")
    if isinstance(found, str):
        found = getattr(handler, "__globals__", {}).get(found)
    return found if isinstance(found, type) and issubclass(found, Request) else None


def reads_words(handler: Any) -> bool:
    """Whether a handler's first argument is the words of the command line, for which it has its own parser."""
    return next(iter(getattr(handler, "__annotations__", ())), "") == "words"


def root_option(text: str = "Output root.  [default: ./runs]") -> Any:
    return option("--root", metavar="DIR", help=text)


def json_option(text: str = "Print JSON.") -> Any:
    return option("--json", default=False, help=text)


def quiet_option() -> Any:
    return option("-q", "--quiet", default=False, help="Print nothing until the end.")


def where_option(text: str = "Only the runs that match, as in 'lr<0.1 and best(loss)<0.3 and state==done'.") -> Any:
    """Declare --where; if it is given several times, all must match."""
    return option("--where", multiple=True, metavar="EXPR", parse=_parse_where, help=text)


def _parse_where(texts: tuple[str, ...], _flag: str) -> Any:
    if not texts:
        return None
    from assay.values.where import parse_where  # imported here, since most commands have no --where

    found = [parse_where(text) for text in texts]  # each text is parsed alone: an error shows only the wrong one
    return found[0] if len(found) == 1 else parse_where(" and ".join(f"({text})" for text in texts))


def slots_option(default: str = "all found") -> Any:
    text = f"Slots: 0,1 (GPUs), 0+1 (one slot of two), cpu:4. Default: {default}."
    return option("--slots", metavar="LIST", help=text)


def jobs_option(text: str = "N runs at once on the CPU: --slots cpu:N.") -> Any:
    return option("-j", "--jobs", type=int, minimum=1, metavar="N", help=text)


def budget_option() -> Any:
    """Declare --budget, which `assay.launch.budget.Budget` parses."""
    text = "Start no more runs after this many hours: 2gpuh of GPUs, 8cpuh of cores, 3h of runs."
    return option("--budget", metavar="HOURS", help=text)


def farm_option(*names: str) -> Any:
    """Declare `--farm`, for every command that runs something, and `--on` if that name is free."""
    help_text = "Submit to a farm: a name, slurm, ray or ssh:HOST; local: here."
    return option(*(names or ("--on", "--farm")), metavar="FARM", help=help_text)


def split_commas(value: Any, _flag: str) -> tuple[str, ...]:
    """Split `A,B`, or each of several such texts."""
    texts = (value,) if isinstance(value, str) else value
    return tuple(part for text in texts for part in text.split(","))
