"""Our dataclasses do what those of the standard library do: every check is made of both."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import pytest

from assay.system import fast_dataclasses

T = TypeVar("T")


def define(module: Any) -> dict[str, Any]:
    dataclass, field = module.dataclass, module.field

    @dataclass(frozen=True, slots=True)
    class Point:
        """A point."""

        x: int
        y: float = 0.5
        tags: tuple[str, ...] = ()
        hidden: str = field(default="", repr=False, compare=False)
        kinds: ClassVar[int] = 3

        @property
        def total(self) -> float:
            return self.x + self.y

    @dataclass(frozen=True, slots=True)
    class Named(Point):
        name: str = "n"
        more: dict[str, int] = field(default_factory=dict)

    @dataclass(slots=True)
    class Basket:
        items: list[int] = field(default_factory=list)
        count: int = field(init=False)
        limit: int = field(default=7, init=False)

        def __post_init__(self) -> None:
            self.count = len(self.items)

    @dataclass(frozen=True, slots=True)
    class Nothing:
        pass

    @dataclass(frozen=True, slots=True)
    class One(Generic[T]):
        value: T

    @dataclass(frozen=True, slots=True)
    class Alike:
        value: int

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Alike)

        def __hash__(self) -> int:
            return 1

        def __repr__(self) -> str:
            return "alike"

    return {name: value for name, value in locals().items() if isinstance(value, type)}


OURS, THEIRS = define(fast_dataclasses), define(dataclasses)

EXPRESSIONS = [
    "Point(1)",
    "Point(1, 2.0, ('a',), 'h')",
    "Point(x=1, tags=('b',))",
    "Point(1) == Point(1, hidden='other')",
    "Point(1) == Point(2)",
    "Point(1) == 1",
    "Point(1) == Named(1)",
    "Point(1) != Point(1)",
    "hash(Point(1)) == hash(Point(1))",
    "{Point(1): 2}[Point(1)]",
    "Point(1).total",
    "Point.kinds",
    "Point.__match_args__",
    "Point.__name__, Point.__qualname__, Point.__doc__, Point.__module__",
    "Named(1)",
    "Named(1).more is Named(1).more",
    "Named(1, name='z').total",
    "Named.__slots__, Point.__slots__",
    "Basket([1, 2])",
    "Basket().items is Basket().items",
    "Basket([1]) == Basket([1])",
    "Basket.__hash__ is None",
    "Nothing()",
    "Nothing() == Nothing()",
    "hash(Nothing()) == hash(())",
    "One(float('nan'))",
    "(lambda v: v == type(v)(v.value))(One(float('nan')))",
    "hash(One(1)) == hash((1,))",
    "Alike(1) == Alike(2), hash(Alike(3)), repr(Alike(1))",
    "dataclasses.asdict(Named(1, more={'a': 1}))",
    "module.asdict(Named(1, tags=(Point(1), [Point(2)]), more={'a': Point(3)}))",
    "[each.name for each in dataclasses.fields(Named)]",
    "[each.name for each in module.fields(Named(1))]",
    "dataclasses.replace(Named(1), name='q')",
    "module.replace(Named(1), name='q')",
    "module.replace(Basket([1, 2]), items=[3])",
    "dataclasses.is_dataclass(Point), module.is_dataclass(Point(1)), module.is_dataclass(int)",
    "hasattr(Point(1), '__dict__')",
    "copy.copy(Point(1)), copy.deepcopy(Named(1, more={'a': 1}))",
    "(lambda match: match)(Point(1).__class__.__init__.__qualname__)",
]


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_the_same_value(text: str) -> None:
    both = [
        eval(text, {**classes, "module": module, "dataclasses": dataclasses, "copy": copy})
        for classes, module in ((OURS, fast_dataclasses), (THEIRS, dataclasses))
    ]
    assert repr(both[0]) == repr(both[1])


@pytest.mark.parametrize(
    "text", ["Point()", "Point(1, 2, 3, 4, 5)", "Point(1, z=2)", "Basket([], 3)", "Point(1) < Point(2)"]
)
def test_the_same_refusal(text: str) -> None:
    for classes in (OURS, THEIRS):
        with pytest.raises(TypeError):
            eval(text, dict(classes))


@pytest.mark.parametrize("classes", [OURS, THEIRS])
def test_what_is_frozen_cannot_be_changed(classes: dict[str, Any]) -> None:
    point = classes["Point"](1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        point.x = 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        del point.x
    with pytest.raises((dataclasses.FrozenInstanceError, TypeError, AttributeError)):
        point.other = 2
    basket = classes["Basket"]()
    basket.limit = 1
    with pytest.raises(AttributeError):
        basket.other = 1


@fast_dataclasses.dataclass(frozen=True, slots=True)
class Kept:
    a: int
    b: tuple[int, ...] = ()


def test_a_pickle() -> None:
    assert pickle.loads(pickle.dumps(Kept(1, (2,)))) == Kept(1, (2,))


def test_a_required_field_after_an_optional_one_is_refused() -> None:
    @fast_dataclasses.dataclass(frozen=True)
    class Wrong:
        a: int = 1
        b: int  # type: ignore[misc]

    with pytest.raises(SyntaxError):
        Wrong(1, 2)


@pytest.mark.parametrize("base", [NamedTuple, fast_dataclasses.NamedTuple], ids=["typing", "ours"])
def test_a_named_tuple(base: Any) -> None:
    class Pair(base):  # type: ignore[misc]
        """Two of them."""

        left: int
        right: str = "b"

        def join(self) -> str:
            return f"{self.left}{self.right}"

    pair = Pair(1)
    assert (repr(pair), pair.join(), pair._replace(right="c")) == ("Pair(left=1, right='b')", "1b", (1, "c"))
    assert (Pair._field_defaults, Pair.__doc__, Pair.__module__) == ({"right": "b"}, "Two of them.", __name__)
    assert not hasattr(pair, "__dict__")
    with pytest.raises(TypeError, match="left"):
        Pair()
