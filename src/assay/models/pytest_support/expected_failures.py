"""Cases that are expected to fail: `<module>-xfails.txt` beside the test file, or the file that the settings name.

    # a comment
    test_onnx_model[net_layer_Conv_3-sim-default] owner/repo#12

A line names a test by its name, its whole node id, or what stands between the brackets, and may link an issue. The case
is not run; when it is, with --try-xfails or --issue, and passes, that is a failure: the list is out of date.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest

_LINE = re.compile(
    r"(?P<name>\S.*?)(?:\s+\[?(?P<issue>[\w.-]+/[\w.-]+#\d+|#\d+|https?://\S+?/\d+)\]?)?(?:\s+#(?:\s.*)?)?\s*"
)


@dataclass(frozen=True, slots=True)
class Entry:
    name: str
    issue: str | None
    path: str  # of the list
    line: int

    @property
    def where(self) -> str:
        return f"{os.path.basename(self.path)}:{self.line}"

    @property
    def reason(self) -> str:
        return f"expected to fail ({self.where})" + (f": {self.issue}" if self.issue else "")

    @property
    def label(self) -> str:
        """Between the brackets."""
        match = re.search(r"\[(.*)\]$", self.name)
        return match[1] if match else self.name

    def is_linked(self, issue: str) -> bool:
        """`12`, `#12` or `owner/repo#12`."""
        if self.issue is None:
            return False
        number = re.split(r"[#/]", self.issue)[-1]
        return issue == self.issue or issue.removeprefix("#") == number


def parse_entries(text: str, path: str) -> Iterator[Entry]:
    for number, line in enumerate(text.splitlines(), start=1):
        match = _LINE.fullmatch(line.strip())
        if match is not None and not line.lstrip().startswith("#"):
            yield Entry(match["name"], match["issue"], path, number)


def load_entries(path: str) -> tuple[Entry, ...]:
    """Nothing where there is no such file. Raises UsageError for one that cannot be read: it is not passed over."""
    from assay.errors import UsageError

    try:
        with open(path, encoding="utf-8") as stream:
            text = stream.read()
    except FileNotFoundError:
        return ()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the list of expected failures {path} cannot be read: {error}") from error
    return tuple(parse_entries(text, path))


class Lists:
    """The lists that hold for a session, each read once."""

    def __init__(self, common: str | None, folder: str) -> None:
        self._loaded: dict[str, tuple[Entry, ...]] = {}
        self._common = os.path.join(folder, common) if common else None
        if self._common is not None and not os.path.exists(self._common):
            from assay.errors import UsageError

            raise UsageError(f"the list of expected failures {self._common} does not exist")

    def find(self, item: pytest.Item) -> Entry | None:
        spelled = (item.name, item.nodeid, find_label(item.name))
        names = {name for each in spelled for name in (each, _unescape(each, item))}
        return next((entry for entry in self._entries_of(item) if entry.name in names), None)

    def _entries_of(self, item: pytest.Item) -> Iterator[Entry]:
        beside = f"{os.path.splitext(str(item.path))[0]}-xfails.txt"
        for path in (beside, self._common):
            if path is not None:
                if path not in self._loaded:
                    self._loaded[path] = load_entries(path)
                yield from self._loaded[path]

    def find_strange(self, cases: Sequence[str]) -> list[Entry]:
        """Entries of no case, whatever the hardware and the chip: mistyped, or of a model that is gone."""
        entries = [entry for entries in self._loaded.values() for entry in entries]
        spelled = [name for case in cases for name in (case, case.encode("unicode_escape").decode())]
        return [entry for entry in entries if not any(entry.label.startswith(f"{case}-") for case in spelled)]


def _unescape(name: str, item: pytest.Item) -> str:
    """With the case's name as the file spells it: pytest writes letters beyond ASCII as `\\xe9`."""
    params = getattr(getattr(item, "callspec", None), "params", {})
    label = getattr(params.get("assay_case"), "label", None)
    return name if label is None else name.replace(find_label(item.name), label)


def find_label(name: str) -> str:
    match = re.search(r"\[(.*)\]$", name)
    return match[1] if match else name
