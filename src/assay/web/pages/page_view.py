"""The state of a study's page is its address: this value is read from the query, and written back into links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, Self, get_args
from urllib.parse import quote

from assay.errors import UsageError
from assay.reading.summary import SummaryOptions
from assay.values.options import split_commas
from assay.values.state import State
from assay.values.where import parse_where

Tab = Literal["table", "curves", "scatter", "slices", "parallel", "history", "importance"]
TABS: tuple[Tab, ...] = get_args(Tab)
PER_PAGE = 50
_MOST_PER_PAGE = 500
_LONGEST_WHERE = 4000  # everybody who may read can ask, and each comparison looks at all runs
_MOST_CURVES = 50


class StudyView(NamedTuple):
    """Each field has its name in the address; what has its default is not written there."""

    tab: Tab = "table"
    where: str = ""
    states: tuple[str, ...] = ()
    sort: tuple[str, ...] = ()
    reverse: bool = False  # the rows the other way round; what is best stays
    group: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()  # of the table: which columns; none: the most telling ones
    show: tuple[str, ...] = ()  # columns beside those that the table has by itself
    hide: tuple[str, ...] = ()  # columns that are left out
    page: int = 1
    rows: int = PER_PAGE
    metric: str = ""  # of a chart
    x: str = ""
    smooth: float = 0.0
    log: bool = False
    log_x: bool = False
    best: int = 12  # how many curves
    by: str = ""  # the metric by which these are the best; none: the one that is drawn
    param: str = ""  # of a scatter: a parameter, or another metric
    color: str = ""
    params: tuple[str, ...] = ()  # of slices and parallel coordinates; none: those that differ

    @classmethod
    def from_query(cls, query: Mapping[str, Sequence[str]]) -> Self:
        """Raises UsageError for what makes no sense; names that nobody asked for are passed over."""
        given: dict[str, Any] = {}
        for name, default in cls._field_defaults.items():
            texts = [text for text in query.get(name, ()) if text.strip()]
            if texts:
                given[name] = _read(name, texts, default)
        view = cls(**given)
        if view.tab not in TABS:
            raise UsageError(f"there is no view {view.tab!r}", f"there are {', '.join(TABS)}")
        unknown = set(view.states) - {str(state) for state in State}
        if unknown:
            raise UsageError(f"there is no state {min(unknown)!r}", f"there are {', '.join(map(str, State))}")
        if len(view.where) > _LONGEST_WHERE:
            raise UsageError(
                f"the expression has more than {_LONGEST_WHERE} characters", "choose in several steps: tag runs"
            )
        if view.x not in ("", "step", "epoch", "time"):
            raise UsageError(f"x cannot be {view.x!r}", "it is step, epoch or time")
        if not 0 <= view.smooth < 1:
            raise UsageError(
                f"smooth cannot be {view.smooth:g}", "it is a weight from 0 to less than 1, as in smooth=0.9"
            )
        return view._replace(
            page=max(1, view.page),
            rows=min(max(1, view.rows), _MOST_PER_PAGE),
            best=min(max(1, view.best), _MOST_CURVES),
        )

    def to_query(self, **changes: Any) -> str:
        """`?sort=loss&page=2`, or "" for what everything is by itself. Another order or filter begins on page 1."""
        if changes and "page" not in changes:
            changes["page"] = 1
        fields = zip(self._fields, self._replace(**changes), self._field_defaults.values(), strict=True)
        told = [
            f"{name}={quote(_write(value), safe='', errors='backslashreplace')}"
            for name, value, default in fields
            if value != default
        ]
        return f"?{'&'.join(told)}"

    def build_options(self) -> SummaryOptions:
        return SummaryOptions(
            sort=self.sort,
            reverse=self.reverse,
            group_by=self.group,
            metrics=self.metrics or None,
            ignore=self.hide,
            show=self.show,
            states=frozenset(map(State, self.states)) or None,
            where=parse_where(self.where) if self.where else None,
            limit=self.rows,
            offset=(self.page - 1) * self.rows,
            is_page=True,
        )


def _read(name: str, texts: list[str], default: object) -> object:
    if isinstance(default, bool):
        return texts[-1] not in ("0", "false", "no")
    if isinstance(default, tuple):
        return split_commas(",".join(texts), name)
    if isinstance(default, int | float):
        try:
            number = type(default)(texts[-1])
        except (ValueError, OverflowError):
            raise UsageError(f"{name} is not a number: {texts[-1]!r}") from None
        if number != number or abs(number) > 1e9:  # noqa: PLR0124 NaN
            raise UsageError(f"{name} is not a usable number: {texts[-1]!r}")
        return number
    return texts[-1].strip()


def _write(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return "1" if value is True else str(value)
