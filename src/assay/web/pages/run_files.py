"""Reads and searches logs and files for the page of a run; files outside of the run's directory are refused."""

from __future__ import annotations

import json
import os
import re
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice, takewhile
from typing import Any, NamedTuple

from assay.errors import AssayError, FormatError, NotFoundError, UsageError
from assay.reading.logs import find_log
from assay.system.files import parse_json, read_end
from assay.values import layout

LOG_BYTES = 1 << 16  # bytes in one part of a log
_LONGEST_SEARCH_S = 3.0
_MOST_FOUND = 200
_LONGEST_LINE = 4096
_BLOCK = 1 << 20  # bytes that a search reads at once; a longer line is searched in parts
_MOST_FOLDERS = 5000  # folders that are listed
_PRIVATE = (layout.SECRETS_FILE,)
_TEXTS = (
    ".log", ".out", ".err", ".txt", ".md", ".json", ".jsonl", ".yaml", ".yml", ".toml", ".ini", ".csv", ".tsv", ".py",
    ".sh", ".patch", ".diff",
)  # fmt: skip
_IMAGES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}
_SHOWN_ENDS = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".wav")
LARGEST_IMAGE = 32 << 20
_MEDIA = "files/media.jsonl"  # has a line for each picture, sound, table and page that a script logged
_MOST_MEDIA = 16 << 20  # bytes that are read from the end of _MEDIA
_MOST_SHOWN = 24
_TABLE_END, _PAGE_END = ".table.json", ".html"
_CELLS = ".cells"  # end of the name of a folder with pictures of a table
PAGE_KIND = "text/html"  # type of a page, which is shown in a frame without scripts
_MOST_LOGGED = 8  # tables and pages that are shown
_LARGEST_TABLE = 4 << 20
_MOST_ROWS, _MOST_COLUMNS, _LONGEST = 50, 30, 300


class RunFile(NamedTuple):
    name: str  # relative to the run's directory
    size: int

    @property
    def is_text(self) -> bool:
        return self.name.lower().endswith(_TEXTS)

    @property
    def is_shown(self) -> bool:
        return self.name.lower().endswith(_SHOWN_ENDS) and self.size <= LARGEST_IMAGE


class TableCell(NamedTuple):
    text: str
    picture: str = ""  # the name of the picture's file

    @property
    def is_number(self) -> bool:
        return bool(re.fullmatch(r"-?[\d.]+(e[+-]?\d+)?|NaN|-?Infinity", self.text))


class LoggedPage(NamedTuple):
    """A page that a script logged, or the first of the `total` rows of a table."""

    file: RunFile
    title: str
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[TableCell]] = ()
    total: int = 0

    @property
    def is_page(self) -> bool:
        return self.file.name.endswith(_PAGE_END)


# ---------------------------------------------------------------- logs


def choose_log(run_dir: str, file: str | None, command: str | None, attempt: int | None) -> str:
    """Return the path of the file `file`, else of the log of a command; refuse links."""
    if file:
        return find_file(run_dir, file)
    try:
        return find_file(run_dir, os.path.basename(find_log(run_dir, command, attempt)))
    except FormatError as error:  # the commands are unknown, but there may be output
        logs = [each.name for each in list_files(run_dir) if each.name.endswith(".log")]
        if not logs:
            raise NotFoundError("log", "of a damaged run") from error
        return find_file(run_dir, max(logs, key=lambda name: os.path.getmtime(os.path.join(run_dir, name))))


def find_default_log(run_dir: str) -> str:
    """Return the log that is shown first, or "" if there is none."""
    try:
        return os.path.basename(choose_log(run_dir, None, None, None))
    except (AssayError, OSError):
        return ""


def load_log(path: str, start: int | None) -> dict[str, Any]:
    """Return the part of the log from `start` on, or its end if `start` is None, in whole lines if possible. Bytes that
    are not UTF-8 are replaced. The result is a `LogPart` of the JSON interface."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        begin = max(0, size - LOG_BYTES) if start is None else min(max(0, start), size)
        file.seek(begin)
        data = file.read(LOG_BYTES)
    if start is None and begin and b"\n" in data[:-1]:  # do not begin in the middle of a line
        cut = data.index(b"\n") + 1
        begin, data = begin + cut, data[cut:]
    end = begin + len(data)
    if end < size and b"\n" in data:
        end = begin + data.rindex(b"\n") + 1
        data = data[: end - begin]
    elif end < size:  # do not end in the middle of a character
        cut = next((n for n in range(1, 4) if len(data) > n and data[-n] >= 0xC0), 0)
        end, data = (end - cut, data[:-cut]) if cut else (end, data)
    text = data.decode("utf-8", "replace")
    return {"name": os.path.basename(path), "text": text, "start": begin, "end": end, "size": size}


def search_log(path: str, words: str, start: int = 0) -> dict[str, Any]:
    """Return the lines that contain `words`, ignoring case, each with its offset. Large logs are searched for some
    seconds up to the offset `searched`, from where the next call continues. The result is a `LogMatches` of the API."""
    if not words.strip():
        raise UsageError("search for what?")
    pattern = re.compile(re.escape(words.encode("utf-8", "surrogateescape")), re.IGNORECASE)
    deadline = time.monotonic() + _LONGEST_SEARCH_S
    found: list[dict[str, Any]] = []
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        offset = min(start, size)
        file.seek(offset)
        while offset < size and len(found) < _MOST_FOUND and time.monotonic() < deadline:
            block = file.read(_BLOCK)
            if not block:
                break
            if len(block) == _BLOCK and (end := block.rfind(b"\n") + 1):
                file.seek(offset + end)
                block = block[:end]
            at, seen = 0, len(block)
            while hit := pattern.search(block, at):
                begin = block.rfind(b"\n", 0, hit.start()) + 1
                end = block.find(b"\n", hit.end())
                end = len(block) if end < 0 else end
                if hit.start() - begin > _LONGEST_LINE // 2:  # of a long line only the part around the match is shown
                    begin = hit.start() - 80
                line = block[begin : min(end, begin + _LONGEST_LINE)].decode("utf-8", "replace").rstrip()
                found.append({"offset": offset + begin, "line": line})
                at = end + 1
                if len(found) >= _MOST_FOUND:
                    seen = min(at, len(block))
                    break
            offset += seen
    return {"matches": found, "start": start, "searched": offset, "size": size, "is_whole": offset >= size}


# ---------------------------------------------------------------- files


def list_files(run_dir: str, most: int = 2000) -> list[RunFile]:
    """List the regular files of the run without its copy of the code, links and secret files."""
    return list(islice(_walk(run_dir), most))


def _walk(run_dir: str) -> Iterator[RunFile]:
    for folder, folders, names in islice(os.walk(run_dir), _MOST_FOLDERS):
        folders[:] = sorted(name for name in folders if name != layout.CODE_DIR or folder != run_dir)
        for name in sorted(names):
            path = os.path.join(folder, name)
            try:
                info = os.lstat(path)
            except OSError:  # the file was removed
                continue
            if stat.S_ISREG(info.st_mode) and name not in _PRIVATE:
                yield RunFile(os.path.relpath(path, run_dir), info.st_size)


def list_shown(run_dir: str, files: Sequence[RunFile]) -> list[tuple[RunFile, str]]:
    """List pictures and sounds with their titles, the newest logged one first, without pictures in cells of tables."""
    logged = _load_media(run_dir)
    alone = [file for file in files if file.is_shown and not os.path.dirname(file.name).endswith(_CELLS)]
    found = [(file, logged.get(file.name, (-1, file.name))) for file in alone]
    found.sort(key=lambda each: -each[1][0])
    return [(file, title) for file, (_, title) in found[:_MOST_SHOWN]]


def list_logged(run_dir: str, files: Sequence[RunFile]) -> list[LoggedPage]:
    """List the newest logged table or page of each name; files that are too large or damaged are left out."""
    media, pictures = _load_media(run_dir), {file.name for file in files if file.is_shown}
    known = [file for file in files if file.name in media and file.name.endswith((_TABLE_END, _PAGE_END))]
    newest = {os.path.dirname(file.name): file for file in sorted(known, key=lambda file: media[file.name][0])}
    found = []
    for file in islice(reversed(newest.values()), _MOST_LOGGED):
        logged = LoggedPage(file, media[file.name][1])
        if logged.is_page and file.size <= LARGEST_IMAGE:
            found.append(logged)
        elif not logged.is_page and file.size <= _LARGEST_TABLE:
            with suppress(AssayError, OSError, ValueError, KeyError, TypeError):
                found.append(_load_table(run_dir, logged, pictures))
    return found


def _load_table(run_dir: str, logged: LoggedPage, pictures: set[str]) -> LoggedPage:
    with open(find_file(run_dir, logged.file.name), "rb") as file:
        table = parse_json(file.read(_LARGEST_TABLE))
    columns = [_build_cell(each, set()).text for each in table["columns"][:_MOST_COLUMNS]]
    rows = [[_build_cell(each, pictures) for each in row[: len(columns)]] for row in table["data"][:_MOST_ROWS]]
    return logged._replace(columns=columns, rows=rows, total=len(table["data"]))


def _build_cell(value: Any, pictures: set[str]) -> TableCell:
    name = f"files/{value['file']}" if isinstance(value, dict) and isinstance(value.get("file"), str) else ""
    value = float(f"{value:.6g}") if isinstance(value, float) and abs(value) < 1e5 else value
    text = value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)
    return TableCell(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…", name if name in pictures else "")


def _load_media(run_dir: str) -> dict[str, tuple[int, str]]:
    """Return the line number and the title of each logged file. Lines that are damaged or incomplete are left out."""
    found, text = {}, ""
    with suppress(AssayError):
        text = read_end(find_file(run_dir, _MEDIA), _MOST_MEDIA)
    for number, line in enumerate(text.split("\n")):
        with suppress(ValueError, KeyError, TypeError):
            each = parse_json(line)
            caption = f": {each['caption']}" if each["caption"] else ""
            found[f"files/{each['file']}"] = number, f"{each['name']}, step {each['step']}{caption}"
    return found


def find_file(run_dir: str, name: str) -> str:
    """Return the path of a file of the run. Refuse paths outside of the run's directory, links and secret files."""
    path = os.path.join(run_dir, name.replace("\0", "?"))
    try:
        inside = os.path.realpath(path) == os.path.join(os.path.realpath(run_dir), os.path.normpath(name))
        is_file = inside and stat.S_ISREG(os.lstat(path).st_mode)
    except (OSError, ValueError):  # the name is too long or invalid
        is_file = False
    if os.path.isabs(name) or not is_file or os.path.basename(path) in _PRIVATE:
        raise NotFoundError("file", name, [each.name for each in list_files(run_dir, 200)])
    return path


def find_media_kind(path: str) -> str | None:
    """Return the MIME type of a page by its name, of a picture or sound by its first bytes; None for other files."""
    if os.path.getsize(path) > LARGEST_IMAGE:
        return None
    if path.endswith(_PAGE_END):
        return PAGE_KIND
    with open(path, "rb") as file:
        head = file.read(16)
    if head[:4] == b"RIFF":
        return {b"WEBP": "image/webp", b"WAVE": "audio/wav"}.get(head[8:12])
    return next((kind for mark, kind in _IMAGES.items() if head.startswith(mark)), None)


# ---------------------------------------------------------------- differences


def split_diff(text: str, most: int = 5000) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the files of a unified diff, each with its lines, each line with its mark: `+`, `-`, `@` or nothing."""
    lines = text.splitlines()
    found: list[tuple[str, list[tuple[str, str]]]] = []
    is_head = False
    for line, after in zip(lines[:most], [*lines[1:], ""], strict=False):
        if line.startswith("diff --git "):
            found.append((line.rpartition(" b/")[2] or line, []))
            is_head = True
        elif line.startswith("--- ") and after.startswith("+++ "):
            if not is_head:
                found.append((_find_name(line, after), []))
            is_head = True
        elif line.startswith("@@"):
            is_head = False
        if not found:
            found.append(("", []))
        if not is_head:
            found[-1][1].append((line[:1] if line[:1] in ("+", "-", "@") else "", line))
        elif not line.startswith(("diff --git ", "--- ", "+++ ", "index ")):
            found[-1][1].append(("", line))
    if len(lines) > most:
        found.append((f"{len(lines) - most} more lines", []))
    return found


def _find_name(before: str, after: str) -> str:
    """Return the common end of two paths: `train.py` for `a/train.py` and `b/train.py`."""
    left, right = (line[4:].partition("\t")[0].strip() for line in (before, after))
    pairs = zip(reversed(left.split("/")), reversed(right.split("/")), strict=False)
    common = [one for one, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)]
    return "/".join(reversed(common)) or right
