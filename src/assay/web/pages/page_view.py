"""The state of a study's page, which is read from the query of its address and written into links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, Self, cast, get_args, get_origin, get_type_hints
from urllib.parse import quote

from assay.errors import UsageError
from assay.reading.summary import SummaryOptions
from assay.values.options import split_commas
from assay.values.state import State
from assay.values.where import parse_where
from assay.web.routes import TEXT, Schema, UrlParam

Tab = Literal["table", "curves", "scatter", "slices", "parallel", "history", "importance"]
XAxis = Literal["", "step", "epoch", "time"]
Names = tuple[str, ...]
TABS: tuple[Tab, ...] = get_args(Tab)
PER_PAGE = 50
_LONGEST_WHERE = 4000  # every reader can send an expression, and each comparison reads all runs
_ORDER = "metrics, parameters or time, each with or without :min or :max, separated by commas"
COUNTERS = frozenset({"step", "global_step", "epoch", "iteration", "iter"})  # metrics that have no chart of their own
METRIC = UrlParam("metric", "which metric", needed=True)
_MOST = {"page": 1_000_000, "rows": 500, "best": 50}  # the largest values; the smallest are 1


class StudyView(NamedTuple):
    """The view of a study. A field that differs from its default is in the address under its name. Annotations
    describe the fields in the OpenAPI document."""

    tab: Annotated[Tab, "which view of the study's page"] = "table"
    where: Annotated[str, "only runs for which this holds, as `--where` of the commands"] = ""
    states: Annotated[Names, "only runs in these states, separated by commas"] = ()
    sort: Annotated[Names, _ORDER] = ()
    reverse: Annotated[bool, "the rows in reverse; the best value of a metric stays the same"] = False
    group: Annotated[Names, "one row for runs that differ only in these parameters: mean and standard deviation"] = ()
    metrics: Annotated[Names, "which metrics are columns, separated by commas; all: every one"] = ()
    show: Annotated[Names, "parameters and metrics in addition to the default columns"] = ()
    hide: Annotated[Names, "parameters and metrics that are left out"] = ()
    page: Annotated[int, "which page; without page and rows the answer holds all rows"] = 1
    rows: Annotated[int, "how many rows a page has"] = PER_PAGE
    metric: Annotated[str, "which metric"] = ""
    x: Annotated[XAxis, "step, epoch or time"] = ""
    smooth: Annotated[float, "0 to less than 1: how much of the mean so far stays in each point"] = 0.0
    log: Annotated[bool, "a logarithmic axis"] = False
    log_x: Annotated[bool, "a logarithmic horizontal axis"] = False
    best: Annotated[int, "how many curves"] = 12
    zoom: Annotated[str, "FROM,TO: only the points between FROM and TO, and the next point on each side"] = ""
    by: Annotated[str, "the metric that ranks the curves; without it the metric that is drawn"] = ""
    param: Annotated[str, "which parameter or metric"] = ""
    color: Annotated[str, "a parameter or metric that colours points"] = ""
    params: Annotated[Names, "which parameters are drawn, separated by commas"] = ()

    @classmethod
    def from_query(cls, query: Mapping[str, Sequence[str]]) -> Self:
        """Parse a query; raise UsageError for invalid values and ignore unknown names."""
        given = {name: [text for text in query.get(name, ()) if text.strip()] for name in cls._fields}
        values = {name: _read(name, texts, cls._field_defaults[name]) for name, texts in given.items() if texts}
        view = cls(**values)
        if view.tab not in TABS:
            raise UsageError(f"there is no view {view.tab!r}", f"there are {', '.join(TABS)}")
        unknown = set(view.states) - {str(state) for state in State}
        if unknown:
            raise UsageError(f"there is no state {min(unknown)!r}", f"there are {', '.join(map(str, State))}")
        if len(view.where) > _LONGEST_WHERE:
            message = f"the expression has more than {_LONGEST_WHERE} characters"
            raise UsageError(message, "choose in several steps: tag runs")
        read_x(view.x)
        if not 0 <= view.smooth < 1:
            hint = "it is a weight from 0 to less than 1, as in smooth=0.9"
            raise UsageError(f"smooth cannot be {view.smooth:g}", hint)
        return view._replace(**{name: min(max(1, getattr(view, name)), most) for name, most in _MOST.items()})

    def to_query(self, **changes: Any) -> str:
        """Return a query such as `?sort=loss&page=2`, without defaults. Changes reset `page` unless they contain it."""
        if changes and "page" not in changes:
            changes["page"] = 1
        told = []
        for name, value in zip(self._fields, self._replace(**changes), strict=True):
            if value != self._field_defaults[name]:
                text = ",".join(map(str, value)) if isinstance(value, tuple) else "1" if value is True else str(value)
                told.append(f"{name}={quote(text, safe='', errors='backslashreplace')}")
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


def read_x(text: str) -> XAxis:
    if text not in get_args(XAxis):
        raise UsageError(f"x cannot be {text[:40]!r}", "it is step, epoch or time")
    return cast("XAxis", text)


def view_params(*names: str) -> tuple[UrlParam, ...]:
    """Return the URL parameters of the fields `names`, in the order of the fields, for the OpenAPI document."""
    hints = get_type_hints(StudyView, include_extras=True)
    found = ((name, hints[name]) for name in StudyView._fields if name in names)
    return tuple(UrlParam(name, hint.__metadata__[0], _describe(name, hint.__origin__)) for name, hint in found)


def _describe(name: str, kind: Any) -> Schema:
    if name in _MOST:
        return {"type": "integer", "minimum": 1, "maximum": _MOST[name]}
    if kind is float:
        return {"type": "number", "minimum": 0, "exclusiveMaximum": 1}
    if kind is bool:
        return {"enum": ["0", "1"]}
    return {"enum": list(get_args(kind))} if get_origin(kind) is Literal else TEXT


def _read(name: str, texts: list[str], default: object) -> Any:
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
