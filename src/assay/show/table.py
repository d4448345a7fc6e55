"""Renders tables as text, CSV, Markdown and JSON. Whole columns are formatted at once, as a table may be long."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import Any

from assay.show import formatting
from assay.system import terminal
from assay.system.fast_dataclasses import dataclass
from assay.values.series import find_direction
from assay.values.table import Align, Column, Table

Texts = list[str]

MISSING = "-"
_SMALLEST_TEXT = 10  # a text column is not shortened below this width
_SMALLEST_HEADERS = (6, 4)  # least widths of a name over numbers; the second only if the table is still too wide
_SHORT_NAME = 12  # names up to this width keep the parts that all names share: `trial-0001`
_READABLE_NAME = 32  # a name up to this width stays whole: columns with a rank are dropped first
_READABLE_TEXT = 16  # other texts up to this width stay whole: columns with a rank are dropped first
_READABLE_HEADER = 14
_SEPARATORS = (",", "_", "-")  # separators of the parts of a run's name; the first one that all names contain is used
_EXTRA_DIGITS = 2  # decimals beyond the needed digits that may be shown, so that all values have as many


# ---------------------------------------------------------------- cells


def build_texts(column: Column, values: Sequence[Any]) -> Texts:
    """Render the cells of a column as text; numbers are aligned by their points if that helps."""
    types = set(map(type, values))
    if column.kind == "number":
        if types == {float}:
            return _render_floats(values, column.digits)
        if types == {int}:
            return list(map(str, values))
        return _render_mixed(values, column.digits)
    render = _RENDERERS.get(column.kind)
    if render is None:
        if types <= {str, int}:
            texts = list(map(str, values))
        else:
            texts = _render_exactly(values) if types == {float} else list(map(_render_other, values))
        return texts if "".join(texts).isprintable() else list(map(formatting.clean, texts))
    if not all(isinstance(value, (int, float)) for value in values):
        return [render(value) if isinstance(value, (int, float)) else _render_other(value) for value in values]
    rendered = {value: render(value) for value in set(values)}
    return [rendered[value] for value in values]


_RENDERERS: dict[str, Callable[[float], str]] = {
    "clock": formatting.render_clock,
    "duration": formatting.render_duration,
    "size": formatting.render_size,
    "age": formatting.render_age,
}


def _render_exactly(values: Sequence[float]) -> Texts:
    texts = list(map(repr, values))
    joined = "".join(texts)
    if "e" in joined or "n" in joined:  # an exponent, nan or inf, for which `repr` is not enough
        return [formatting.render_number(value, None) for value in values]
    return texts


def _render_other(value: object) -> str:
    if value is None:
        return MISSING
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return formatting.render_number(value, None)
    if isinstance(value, (list, tuple, dict)):
        return formatting.clean(render_nested(value))
    return formatting.clean(str(value))


def render_nested(value: object) -> str:
    import json

    return json.dumps(value, ensure_ascii=False, default=str)


def _render_mixed(values: Sequence[Any], digits: int | None) -> Texts:
    """Render numbers among words and gaps as in a column of only these numbers."""
    indices = [index for index, value in enumerate(values) if type(value) in (int, float)]
    numbers = [values[index] for index in indices]
    whole = digits is None or all(type(number) is int for number in numbers)
    texts = _align_points([formatting.render_number(number, None) for number in numbers]) if whole else None
    laid_out = dict(zip(indices, texts or _render_floats(list(map(float, numbers)), digits or 4), strict=True))
    return [laid_out[index] if index in laid_out else _render_other(value) for index, value in enumerate(values)]


def _render_floats(values: Sequence[float], digits: int | None) -> Texts:
    if digits is None:
        return _align_points(_render_exactly(values))
    finite = values if math.isfinite(sum(values)) else [value for value in values if math.isfinite(value)]
    if not finite:
        return list(map(str, values))
    short = _format_all(f"%.{digits}g", finite)
    if "e" in "".join(short):
        # without an exponent, `%g` gives the result of render_number
        plain = short if len(short) == len(values) else ["e"] * len(values)
        pairs = zip(values, plain, strict=True)
        return _align_points(
            [formatting.render_number(value, digits) if "e" in text else text for value, text in pairs]
        )
    decimals = max([len(text) - point - 1 for text in short if (point := text.find(".")) >= 0], default=0)
    largest = max(map(abs, finite))
    allowed = max(0, digits - 1 - (math.floor(math.log10(largest)) if largest else 0))
    if decimals - allowed <= _EXTRA_DIGITS:
        texts = _format_all(f"%.{decimals}f", values)
        has_words = len(finite) < len(values)  # nan and inf are aligned with the digits before the point
        return _align_points(texts) if has_words and decimals else texts
    return _align_points([_limit_decimals(text, decimals) for text in _format_all(f"%#.{digits}g", values)])


def _format_all(pattern: str, values: Sequence[float]) -> Texts:
    """Format a whole column in one call, which is several times faster than one call per value."""
    return (f"{pattern} " * len(values) % tuple(values)).split()


def _limit_decimals(text: str, decimals: int) -> str:
    """Cut trailing zeros, so that the text has at most `decimals` decimals."""
    surplus = len(text) - text.find(".") - 1 - decimals if "." in text else 0
    return (text[:-surplus] if surplus > 0 else text).removesuffix(".")


def _align_points(texts: Texts) -> Texts:
    """Pad shorter fractions with spaces, so that points are aligned, unless a text has an exponent."""
    if "e" in "".join(texts):
        return texts
    points = {text: len(text) - text.find(".") if "." in text else 0 for text in set(texts)}
    if len(set(points.values())) < 2:
        return texts
    most = max(points.values())
    padded = {text: text + " " * (most - point) for text, point in points.items()}
    return list(map(padded.__getitem__, texts))


# ---------------------------------------------------------------- layout


@dataclass(slots=True)
class LaidColumn:
    """A column and its texts during layout."""

    column: Column
    name: str
    texts: Texts
    width: int  # width of the widest cell or of the name, whichever is wider
    cell_width: int
    wide: bool  # whether it contains characters that are not one column wide


def lay_out(table: Table, *, names: Sequence[str] | None = None) -> list[LaidColumn]:
    cells = list(zip(*table.rows, strict=True)) if table.rows else [()] * len(table.columns)
    given = names or [formatting.clean(column.name) for column in table.columns]
    laid = []
    for column, name, values in zip(table.columns, given, cells, strict=True):
        texts = build_texts(column, values)
        wide = not "".join(texts).isascii()
        cell_width = max(map(formatting.display_width if wide else len, texts), default=0)
        width = max(cell_width, formatting.display_width(name))
        laid.append(LaidColumn(column, name, texts, width, cell_width, wide))
    return laid


def table_width(table: Table) -> int:
    """Return the width of the table if nothing is shortened."""
    return _total(each.width for each in lay_out(table))


def fit_columns(table: Table, width: int) -> tuple[Table, tuple[Column, ...]]:
    """Return the table without the columns that are dropped to keep the others readable, and the dropped columns."""
    laid = lay_out(table)
    gone: set[int] = set()
    if _total(each.width for each in laid) > width:
        ranks = sorted({column.rank for column in table.columns if column.rank}, reverse=True)
        needs = [_needed(each, is_name=not index) for index, each in enumerate(laid)]
        floors = [_floor(each, _SMALLEST_HEADERS[-1], "…", is_name=not index) for index, each in enumerate(laid)]
        for rank in ranks:
            least = needs if rank > 0 else floors
            if _total(need for index, need in enumerate(least) if index not in gone) <= width:
                continue
            gone.update(index for index, column in enumerate(table.columns) if column.rank == rank)
    return drop_columns(table, gone), tuple(table.columns[index] for index in sorted(gone))


def drop_spare(table: Table, width: int) -> Table:
    """Drop columns that are empty or repeat their metric (`best x`), from the right, until the table fits."""
    needs = [_needed(each, is_name=not index) for index, each in enumerate(lay_out(table))]
    if not table.rows or _total(needs) <= width:
        return table
    gone: set[int] = set()
    keys = [column.key or column.name for column in table.columns]
    cells = dict(zip(keys, zip(*table.rows, strict=True), strict=False))
    for index in range(len(keys) - 1, 0, -1):  # column 0 names the rows
        key = keys[index]
        plain = key.replace("_best", "")
        is_repeated = plain != key and cells[key] == cells.get(plain)
        if is_repeated or all(value is None for value in cells[key]):
            if _total(need for each, need in enumerate(needs) if each not in gone) <= width:
                break
            gone.add(index)
    return drop_columns(table, gone)


def drop_columns(table: Table, gone: set[int]) -> Table:
    if not gone:
        return table
    kept = [index for index in range(len(table.columns)) if index not in gone]
    rows = [[row[index] for index in kept] for row in table.rows]
    return Table(tuple(table.columns[index] for index in kept), rows)


def _total(widths: Iterable[int]) -> int:
    found = list(widths)
    return sum(found) + 2 * (len(found) - 1)


def _needed(laid: LaidColumn, *, is_name: bool) -> int:
    if (is_name or laid.column.cut == "left") and laid.column.can_shorten:
        _drop_common(laid, "…")
        return min(laid.width, max(_READABLE_NAME, _smallest_distinct(laid.texts, "…")))
    if laid.column.can_shorten:
        return min(laid.width, _READABLE_TEXT)
    return max(laid.cell_width, min(laid.width, _READABLE_HEADER))


def fit(laid: list[LaidColumn], width: int, gap: int, mark: str) -> None:
    """Shorten the widest columns first, down to a common level; numbers are not cut, only their names. Column 0 names
    the rows: parts that all its names share are cut first, and different names stay different."""
    room = width - gap * (len(laid) - 1)
    if sum(each.width for each in laid) > room and laid[0].column.can_shorten:
        _drop_common(laid[0], mark)
    floors: list[int] = []
    for header in _SMALLEST_HEADERS:
        floors = [_floor(each, header, mark, is_name=not index) for index, each in enumerate(laid)]
        if sum(floors) <= room:
            break
    level = max((column.width for column in laid), default=0)
    while level > 0 and sum(_limited(*pair, level) for pair in zip(laid, floors, strict=True)) > room:
        level -= 1
    for column, floor in zip(laid, floors, strict=True):
        _narrow(column, _limited(column, floor, level), floor, mark)


def _floor(laid: LaidColumn, header: int, mark: str, *, is_name: bool) -> int:
    if not laid.column.can_shorten:
        return min(laid.width, max(laid.cell_width, header))
    return min(laid.width, _smallest_distinct(laid.texts, mark) if is_name else _SMALLEST_TEXT)


def _limited(laid: LaidColumn, floor: int, level: int) -> int:
    return min(laid.width, max(floor, level))


def _narrow(laid: LaidColumn, width: int, floor: int, mark: str) -> None:
    if width >= laid.width:
        return
    laid.name = formatting.shorten(laid.name, width, mark)
    if laid.cell_width > width:
        # a greater width does not always keep more texts different, but at the floor all texts stay different
        first = 0 if laid.column.cut == "left" else None
        cut = _cut_distinct(laid.texts, width, mark, first) or _cut_distinct(laid.texts, floor, mark, first)
        laid.texts = cut or _cut(laid.texts, width, mark, first)
        laid.cell_width = width
    laid.width = width


def _drop_common(laid: LaidColumn, mark: str) -> None:
    """Drop parts that all names have in the same position. Parts are separated by _SEPARATORS, not by dots."""
    if laid.column.cut == "left" or laid.cell_width <= _SHORT_NAME:
        return
    texts = _drop_parts(laid.texts, mark) or _drop_ends(laid.texts, mark)
    cell_width = max(map(_measure(texts, mark), texts), default=0)
    if cell_width < laid.cell_width and len(set(texts)) == len(set(laid.texts)):
        laid.texts, laid.cell_width = texts, cell_width
        laid.width = max(cell_width, formatting.display_width(laid.name))


def _measure(texts: Texts, mark: str) -> Callable[[str], int]:
    """Return the function that measures these texts: `len` if each character is one column wide, as it is faster."""
    return len if "".join(texts).replace(mark, "").isascii() else formatting.display_width


def _drop_parts(texts: Texts, mark: str) -> Texts:
    """Cut `lr=0.1,norm=batch,seed=1` to `lr=0.1,…,seed=1` if all texts have `norm=batch`; return [] if that fails."""
    for separator in _SEPARATORS:
        rows = [text.split(separator) for text in texts]
        if len(set(map(len, rows))) != 1 or len(rows[0]) < 2:
            continue
        columns = [column if len(set(column)) > 1 else None for column in zip(*rows, strict=True)]
        if None not in columns or not any(columns):
            continue
        shown = [column for index, column in enumerate(columns) if column or not index or columns[index - 1]]
        return [separator.join(row) for row in zip(*(column or [mark] * len(texts) for column in shown), strict=True)]
    return []


def _drop_ends(texts: Texts, mark: str) -> Texts:
    """Cut whole parts with which all texts begin or end, such as a date."""
    unique = set(texts)
    if len(unique) < 2:
        return texts
    head = _count_common(min(unique), max(unique))
    backwards = sorted(text[::-1] for text in unique)
    tail = _count_common(backwards[0], backwards[-1])
    if min(map(len, unique)) < head + tail:
        return texts
    first, last = mark * (head > 1), mark * (tail > 1)
    return [f"{first}{text[head if first else 0 : len(text) - tail if last else None]}{last}" for text in texts]


def _count_common(first: str, last: str) -> int:
    """Return the length of the beginning that two texts share, in whole parts; the first and last of sorted texts."""
    end = next((index for index, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), len(first))
    return max(first.rfind(separator, 0, end) + 1 for separator in _SEPARATORS)


def _smallest_distinct(texts: Texts, mark: str) -> int:
    """Return the smallest width, at least _SMALLEST_TEXT, at which different texts stay different."""
    unique = list(dict.fromkeys(texts))
    low, high = _SMALLEST_TEXT, max(map(_measure(unique, mark), unique), default=0)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _cut_distinct(unique, middle, mark) else (middle + 1, high)
    return low


def _cut_distinct(texts: Texts, width: int, mark: str, first: int | None = None) -> Texts:
    """Cut texts so that they stay different: in the middle (or at `first`), else elsewhere; empty if that fails."""
    wanted = len(set(texts))
    for front in dict.fromkeys((first, None, 0, width, width // 4, width * 3 // 4)):
        cut = _cut(texts, width, mark, front)
        if len(set(cut)) == wanted:
            return cut
    return []


def _cut(texts: Texts, width: int, mark: str, front: int | None) -> Texts:
    if _measure(texts, mark) is not len:
        return [formatting.shorten(text, width, mark, front) for text in texts]
    head = width // 2 if front is None else min(front, width - 1)
    tail = width - 1 - head
    return [text[:head] + mark + text[len(text) - tail :] if len(text) > width else text for text in texts]


def pad_column(laid: LaidColumn, align: Align) -> Texts:
    if laid.wide:
        return [formatting.pad(text, laid.width, align) for text in laid.texts]
    adjust = str.rjust if align == "right" else str.ljust
    return list(map(adjust, laid.texts, repeat(laid.width)))


def _paint_states(padded: Texts) -> Texts:
    painted = {}
    for text in set(padded):
        word = text.split(maxsplit=1)[0] if text.strip() else ""
        style = terminal.STATE_COLORS.get(word)
        painted[text] = terminal.paint(text, style) if style else text
    return [painted[text] for text in padded]


# ---------------------------------------------------------------- looks


def render_table(table: Table, *, width: int | None = None, color: bool = False, plain: bool = False) -> str:
    """Render a table for a terminal: names, a rule, the rows. `plain`: use only ASCII, as far as the values are."""
    laid = lay_out(table)
    if width is not None:
        fit(laid, width, gap=2, mark="~" if plain else "…")
    columns = [pad_column(each, each.column.side) for each in laid]
    if color:
        columns = [
            _paint_states(texts) if each.column.kind == "state" else _paint_best(texts, table, index)
            for index, (texts, each) in enumerate(zip(columns, laid, strict=True))
        ]
    names = "  ".join(formatting.pad(each.name, each.width, each.column.side) for each in laid).rstrip()
    rule = "  ".join(("-" if plain else "─") * each.width for each in laid)
    head = [terminal.paint(names, "bold") if color else names, terminal.paint(rule, "dim") if color else rule]
    return "".join(f"{line}\n" for line in head) + join_rows(columns)


def _paint_best(texts: Texts, table: Table, index: int) -> Texts:
    """Mark the best value of a metric, if the better direction is known from its name; only done runs are compared."""
    column = table.columns[index]
    direction = find_direction(column.metric) if column.role in ("last", "best") else None
    state = next((index for index, each in enumerate(table.columns) if each.kind == "state"), None)
    rows = [row for row in table.rows if state is None or row[state] in ("done", "finished")]
    values = [row[index] for row in rows if isinstance(row[index], int | float) and math.isfinite(row[index])]
    if direction is None or len(set(values)) < 2:
        return texts
    best = min(values) if direction == "min" else max(values)
    chosen = {id(row) for row in rows if row[index] == best}
    return [
        terminal.paint(text, "bold green") if id(row) in chosen else text
        for text, row in zip(texts, table.rows, strict=True)
    ]


def join_rows(columns: list[Texts]) -> str:
    """Join the rows to lines without trailing blanks; one search shows whether any line has such blanks."""
    text = "\n".join([*map("  ".join, zip(*columns, strict=True)), ""])
    return "\n".join([row.rstrip() for row in text.split("\n")]) if " \n" in text else text


def render_csv(table: Table, *, raw: bool = False) -> str:
    """Render the values of a table as CSV: full precision, durations in seconds, an empty cell for a missing value. No
    two columns have the same name. `raw`: do not escape text that a spreadsheet would take for a formula."""
    import csv
    import io

    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(build_csv_row(_build_csv_names(table.columns), raw=raw))
    writer.writerows(build_csv_row(row, raw=raw) for row in table.rows)
    return stream.getvalue()


def _build_csv_names(columns: Sequence[Column]) -> list[str]:
    """Return the headings of columns; an empty or repeated one is replaced by its JSON name (`run`, `loss_sd`)."""
    names = [column.name or column.key or "" for column in columns]
    repeated = {name for name in names if names.count(name) > 1}
    if not repeated:
        return names
    keys = build_keys(columns)
    given = [key if name in repeated else name for name, key in zip(names, keys, strict=True)]
    return given if len(set(given)) == len(given) else keys


def build_csv_row(values: Iterable[Any], *, raw: bool = False) -> list[Any]:
    """Return cells for Python's csv writer. `raw`: do not escape text that a spreadsheet would take for a formula."""
    cells = map(_csv_value, values)
    return list(cells) if raw else [formatting.escape_csv(cell) for cell in cells]


def _csv_value(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    return render_nested(value) if isinstance(value, (list, tuple, dict)) else value


def render_markdown(table: Table) -> str:
    laid = lay_out(table)
    for each in laid:
        each.texts = [formatting.escape_markdown(text) for text in each.texts]
    head = " | ".join(formatting.escape_markdown(each.name) for each in laid)
    rule = " | ".join("---:" if each.column.side == "right" else "---" for each in laid)
    lines = (" | ".join(row) for row in zip(*(each.texts for each in laid), strict=True))
    return "".join(f"| {line} |\n" for line in (head, rule, *lines))


def render_json(table: Table, fields: Sequence[str] = ()) -> str:
    """Render a table as a list of objects. JSON has no NaN: NaN becomes the string "NaN", never a silent null."""
    import json

    rows = formatting.choose_fields(build_rows(table), fields)
    return json.dumps(rows, indent=2, default=str, allow_nan=False) + "\n"


def build_rows(table: Table) -> list[dict[str, Any]]:
    keys = build_keys(table.columns)
    return [{key: formatting.to_json(value) for key, value in zip(keys, row, strict=True)} for row in table.rows]


def build_keys(columns: Sequence[Column]) -> list[str]:
    """Return the unique JSON names of the columns, as a parameter and a metric may have the same name."""
    keys: list[str] = []
    for column in columns:
        wanted = key = column.key or column.name
        number = 2
        while key in keys:
            key, number = f"{wanted}_{number}", number + 1
        keys.append(key)
    return keys
