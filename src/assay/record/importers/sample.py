"""A file or folder to be recognised, read once and only as far as needed; how folders of runs are recognised."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

from assay.record.folders import is_run_dir
from assay.system.files import list_names, parse_json
from assay.values import layout

_HEAD_BYTES = 1 << 16
_MOST_BYTES = 64 << 20  # the largest JSON file that is read only to recognise it


class Sample:
    """A file or folder to be recognised. `text`: its whole content, if the caller has read it already."""

    def __init__(self, path: str, text: str | None = None) -> None:
        self.path = path
        self._text = text

    @cached_property
    def is_folder(self) -> bool:
        return self._text is None and os.path.isdir(self.path)

    @cached_property
    def text(self) -> str:
        """The text of the file; empty for a folder, or if it is unreadable, very large, or does not begin like JSON."""
        if self._text is not None:
            return self._text
        try:
            is_small = os.path.getsize(self.path) <= _MOST_BYTES
        except OSError:
            return ""
        return self._read(-1) if is_small and self.head.lstrip()[:1] in ("{", "[") else ""

    @cached_property
    def head(self) -> str:
        return self._text[:_HEAD_BYTES] if self._text is not None else self._read(_HEAD_BYTES)

    def _read(self, size: int) -> str:
        try:
            with open(self.path, "rb") as file:
                return file.read(size).decode("utf-8-sig", "replace")
        except OSError:
            return ""

    @cached_property
    def first_line(self) -> str:
        return self.head.partition("\n")[0].rstrip("\r")

    @cached_property
    def content(self) -> dict[str, Any]:
        """The JSON object in the file; empty if it contains none."""
        try:
            content = parse_json(self.text) if self.text else None
        except ValueError:
            return {}
        return content if isinstance(content, dict) else {}

    def has_keys(self, *keys: str) -> bool:
        return self.content.keys() >= set(keys)

    @cached_property
    def folders(self) -> tuple[str, ...]:
        """Paths of the visible folders in this folder, by name."""
        return tuple(find_subfolders(self.path)) if self.is_folder else ()


def find_subfolders(path: str) -> Iterator[str]:
    for name in sorted(list_names(path)):
        inner = os.path.join(path, name)
        if not name.startswith(".") and os.path.isdir(inner):
            yield inner


def is_assay(sample: Sample) -> bool:
    studies = (sample.path, *sample.folders)
    return any(holds(folder, layout.STUDY_META_DIR) for folder in studies) or has_runs(sample, is_run_dir)


def has_runs(sample: Sample, is_run: Callable[[str], bool]) -> bool:
    """Whether the folder is a study, or contains studies."""
    return any(is_run(path) or any(map(is_run, find_subfolders(path))) for path in sample.folders)


def holds(path: str, name: str) -> bool:
    return os.path.exists(os.path.join(path, name))
