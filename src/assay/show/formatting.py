"""Renders numbers, durations, sizes and names for people, and knows how wide a text is on a terminal."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Sequence
from typing import Any, TextIO, cast

from assay.errors import check_known
from assay.system.terminal import use_color

_SIZE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_AGE_UNITS = ((86400, "day"), (3600, "h"), (60, "min"), (1, "s"))
# a part that is not wrapped, as users copy it: text in backticks, a command after a colon or at the start of a line
_ATOM = r"`[^`]*`\S*|(?:(?<=: )|^)(?:assay|bash|cd|pip|tensorboard) \S.*?(?=$|; |  | \(|\)|, )\S*|\S+"
_PLAIN_BELOW = 1e15  # larger numbers have an exponent, as many digits are hard to read


def render_number(value: float, digits: int | None = 4) -> str:
    """Render a number with `digits` significant digits, but all digits before the point; None keeps all digits. An
    exponent is used only below 0.0001 and from 1e15 on, where plain digits are hard to read."""
    if isinstance(value, int):
        return str(value)
    if not math.isfinite(value):
        return str(value)
    text = repr(value) if digits is None else f"{value:.{digits}g}"
    if "e" not in text:
        return text
    if 1 <= abs(value) < _PLAIN_BELOW:
        return f"{value:.0f}"
    mantissa, _, exponent = text.partition("e")
    return f"{mantissa}e{int(exponent)}"


def join_first(names: Sequence[str], most: int) -> str:
    """Return a text such as `a, b, c and 4 more`."""
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def render_count(count: int, noun: str, plural: str | None = None) -> str:
    """Return a text such as `1 run` or `3 runs`."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


def render_size(size_bytes: float) -> str:
    """Return a text such as `512 B` or `1.5 GiB`."""
    amount, unit = float(min(abs(size_bytes), 1 << 1000)), 0  # an integer may be larger than every float
    while amount >= 1023.5 and unit < len(_SIZE_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    text = f"{amount:.0f}" if unit == 0 or amount >= 99.95 else f"{amount:.3g}"
    return f"{'-' if size_bytes < 0 else ''}{text} {_SIZE_UNITS[unit]}"


def render_clock(seconds: float) -> str:
    """Return a text such as `5:11` or `1:02:03`, for columns, where durations are compared by eye."""
    if not math.isfinite(seconds):
        return "-"
    whole = math.floor(abs(seconds) + 0.5)
    sign = "-" if seconds < 0 and whole else ""
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{sign}{minutes}:{rest:02d}"
    return f"{sign}{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def render_duration(seconds: float) -> str:
    """Return a text such as `12ms`, `0.8s`, `42s`, `5m 11s`, `2h 3m` or `3d 4h`, for sentences."""
    if not math.isfinite(seconds):
        return "-"
    if seconds < 0:
        return f"-{render_duration(-seconds)}"
    if seconds < 9.95:
        short = f"{max(1, round(seconds * 1000))}ms" if seconds < 0.0995 else f"{seconds:.1f}s"
        return short if seconds else "0s"
    for unit_s, most, per, large, small in _DURATION_UNITS:
        count = math.floor(seconds / unit_s + 0.5)
        parts = (count // per, large), (count % per, small)
        if count < most:
            break
    return " ".join(f"{amount}{unit}" for amount, unit in parts if amount)


# for each line: seconds of the smaller unit, how many of it are used, how many make the larger one, names of both
_DURATION_UNITS = ((1, 3600, 60, "m", "s"), (60, 24 * 60, 60, "h", "m"), (3600, math.inf, 24, "d", "h"))


def render_age(seconds: float) -> str:
    """Return a text such as `just now`, `42 s ago` or `1 day ago`; clocks of two hosts may differ by a few seconds."""
    if seconds < 5:
        return "just now"
    unit_s, unit = next(each for each in _AGE_UNITS if seconds >= each[0])
    amount = int(seconds // unit_s)
    return f"{render_count(amount, 'day')} ago" if unit == "day" else f"{amount} {unit} ago"


def clean(text: str) -> str:
    """Return one printable line: names may contain newlines, escape sequences and undecodable bytes."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape(char) for char in text)


def clean_lines(text: str) -> str:
    """Return several lines that are printable: each is cleaned by `clean`; line ends and tabs stay."""
    return text if text.isprintable() else re.sub(_LINE_PARTS, lambda part: clean(part[0]), text)


_LINE_PARTS = r"[^\n\t]+"


def _escape(char: str) -> str:
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is not UTF-8, as os.fsdecode represents it
        return f"\\x{code - 0xDC00:02x}"
    return char.encode("unicode_escape").decode("ascii")


def display_width(text: str) -> int:
    """Return the columns of a printable text: East Asian wide characters have two, combining characters none."""
    return len(text) if text.isascii() else sum(map(_char_width, text))


def _char_width(char: str) -> int:
    if unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def shorten(text: str, width: int, mark: str = "…", front: int | None = None) -> str:
    """Cut a text to `width` columns, `front` of them from its start; by default half, as names differ at both ends."""
    if display_width(text) <= width:
        return text
    room = width - display_width(mark)
    if room <= 0:
        return _take_columns(text, max(width, 0))
    head = _take_columns(text, room - room // 2 if front is None else min(front, room))
    tail = _take_columns(text[::-1], room - display_width(head))[::-1]
    return head + mark + tail


def _take_columns(text: str, width: int) -> str:
    used = 0
    for position, char in enumerate(text):
        used += _char_width(char)
        if used > width:
            return text[:position]
    return text


def pad(text: str, width: int, align: str = "left") -> str:
    gap = " " * (width - display_width(text))
    return gap + text if align == "right" else text + gap


def wrap(text: str, width: int | None, indent: str = "") -> str:
    """Wrap prose between words; every line but the first begins with `indent`. If `width` is None, return it unchanged.
    Commands and words stay whole, even if they are longer than a line: a terminal rejoins lines that it breaks."""
    if width is None:
        return text
    return "\n".join(_wrap_line(line, width, indent) for line in text.split("\n"))


def _wrap_line(line: str, width: int, indent: str) -> str:
    if display_width(line) <= width:
        return line
    margin = line[: len(line) - len(line.lstrip(" "))]
    lines, current = [], margin
    for atom in re.finditer(_ATOM, line.strip(" ")):
        gap = " " * bool(current.strip())
        if gap and display_width(current) + 1 + display_width(atom[0]) > width:
            lines.append(current)
            current, gap = margin + indent, ""
        current += gap + atom[0]
    return "\n".join((*lines, current))


# ---------------------------------------------------------------- text in other formats
# There is one function for each format into which text of users' files, logs and programs is written.


def escape_markdown(text: str) -> str:
    """Return one line that Markdown shows unchanged, also in headings and tables: no markup, link, mention or HTML."""
    one = clean(" ".join(text.split()))
    for char, shown in _MARKUP.items():
        one = one.replace(char, shown)
    return re.sub(_MARKDOWN, r"\\\g<0>", one)


_MARKUP = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_MARKDOWN = r"[\\`*_\[\]|~$]|^#|^[-+](?= )|(?<=^\d)[.)](?= )"


def escape_html(value: object) -> str:
    """Escape text or an attribute's value in HTML and in SVG."""
    import html

    return html.escape(clean(str(value)))


def escape_xml(text: str) -> str:
    """Clean text for an XML library, which escapes markup: control characters and lone surrogates are invalid."""
    return clean_lines(text)


def escape_csv(value: Any) -> Any:
    """Return a cell that a spreadsheet shows as text. A text that looks like a formula gets an apostrophe in front;
    numbers stay unchanged, also as texts (`-1`, `+3e-4`)."""
    if not isinstance(value, str):
        return value
    text = make_safe(value)
    # a spreadsheet ignores leading blanks and line ends, and also accepts the wide forms of the signs
    is_formula = text.lstrip(" \n").startswith(_FORMULA) and not re.fullmatch(_NUMERIC, text)
    return f"'{text}" if is_formula else text


_FORMULA = ("=", "+", "-", "@", "\t", "\uff1d", "\uff0b", "\uff0d", "\uff20")
_NUMERIC = r"(?ai)[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|inf(?:inity)?|nan)"


def make_safe(text: str) -> str:
    """Escape characters that a terminal interprets or that cannot be encoded."""
    return re.sub(UNSAFE, lambda found: _escape(found[0]), text)


def escape_json(text: str) -> str:
    """Escape characters in JSON that a terminal interprets or that cannot be encoded; strings alone contain them."""
    return re.sub(UNSAFE, lambda found: f"\\u{ord(found[0]):04x}", text)


def render_facts(value: Any, fields: Sequence[str] = ()) -> str:
    """Render a value as JSON for scripts, valid for every parser and without loss."""
    import json

    chosen = choose_fields(to_json(value), fields)
    return escape_json(json.dumps(chosen, indent=2, ensure_ascii=False, default=str, allow_nan=False)) + "\n"


def to_json(value: Any) -> Any:
    """Convert a value to JSON values. JSON has no NaN: NaN becomes the string "NaN", never a silent null."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {str(key): to_json(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(each) for each in value]
    return value


def choose_fields(facts: Any, fields: Sequence[str]) -> Any:
    """Return these fields of an object, or of each object in a list: a missing field is null."""
    if not fields:
        return facts
    rows = [_flatten(row) for row in (facts if isinstance(facts, list) else [facts])]
    check_known("field", fields if rows else (), {name for row in rows for name in row})
    chosen = [{name: row.get(name) for name in fields} for row in rows]
    return chosen if isinstance(facts, list) else chosen[0]


def _flatten(facts: dict[str, Any], before: str = "") -> dict[str, Any]:
    """Return all fields; nested fields have names such as `metrics.loss`."""
    found = {f"{before}{key}": value for key, value in facts.items()}
    inner = (_flatten(value, f"{before}{key}.") for key, value in facts.items() if isinstance(value, dict))
    return {**found, **{name: value for each in inner for name, value in each.items()}}


# matches control characters except tabs and line ends, direction marks, line separators, lone surrogates
UNSAFE = "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"


class GuardedStream:
    """A standard stream that never passes on control characters of terminals, in whatever text they are written.

    Names and messages are cleaned where they are rendered. This class cleans texts that were forgotten, and escapes
    text that cannot be encoded, so that it does not end a command. Colours stay if colours are used. `buffer` is not
    guarded: the logs of runs are printed byte for byte.
    """

    def __init__(self, stream: TextIO) -> None:
        self.unguarded = stream
        self._has_color = use_color(stream)

    def write(self, text: str) -> int:
        if not text.replace("\n", "").isprintable() and re.search(UNSAFE, text):
            parts = re.split(_COLOR, text) if self._has_color else [text]  # every second part is a colour code
            parts[::2] = map(make_safe, parts[::2])
            text = "".join(parts)
        return self.unguarded.write(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unguarded, name)


_COLOR = r"(\x1b\[[0-9;]*m)"


def guard(stream: TextIO) -> TextIO:
    """Return a guarded stream; for a missing stream (`>&-`), None."""
    return stream if stream is None or isinstance(stream, GuardedStream) else cast("TextIO", GuardedStream(stream))


def unguard(stream: TextIO) -> TextIO:
    """Return the unguarded stream, for the live view, which moves the cursor and cleans its texts itself."""
    return stream.unguarded if isinstance(stream, GuardedStream) else stream
