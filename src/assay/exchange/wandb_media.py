"""Objects other than numbers that scripts log to wandb: pictures, histograms, tables, charts, sound, artifacts.

Objects become files below `files/` of the run directory. No library is needed: arrays have methods that convert them.

files/media/<name>/<step>.png          also .json, .html, .wav; <step>-<n>.png for a list of objects
files/media.jsonl                      a line for each object: step, time, name, kind, file, caption
files/artifacts/<name>/v0/…            the files of an artifact; v0.json describes the artifact

Objects are rendered when they are created, since scripts reuse arrays and figures. `problem` has the error, if any.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import struct
import sys
import tempfile
import time
import warnings
import weakref
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from assay import script
from assay.exchange.script_run import build_name, build_plain
from assay.system.files import copy_file, replacing

Content = bytes | str  # a str is the path of a file
_MEDIA, _ARTIFACTS, _LIST = "media", "artifacts", "media.jsonl"
_COLOURS = {1: 0, 2: 4, 3: 2, 4: 6}  # channels -> PNG's type of colour
_BINS = 64


class _Accepting:
    """Accepts and ignores calls of methods of wandb's own class that a class in this module does not have."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_arguments, **_options: None


class Media(_Accepting):
    """The content of a file to write, or the reason why there is no content."""

    kind = "object"
    suffix = ""
    problem = ""
    content: Content = b""

    def __init__(self, *arguments: Any, caption: Any = None, **options: Any) -> None:
        self.caption = caption
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # ignore warnings, for example about NaN in a picture
                self.suffix, self.content = self.render(*arguments, **options)
        except Exception as error:  # noqa: BLE001 no object of the script may end the training
            self.problem = f"{type(error).__name__}: {error}"

    def render(self, *_arguments: Any, **_options: Any) -> tuple[str, Content]:
        raise TypeError(f"wandb.{type(self).__name__} is not kept")

    def build_content(self, _keep: Callable[[Media], str]) -> Content:
        """Return the content when the object is logged. `keep` stores a nested object and returns its file name."""
        return self.content


def _find_file(value: Any) -> tuple[str, Content] | None:
    """Return suffix and content of a path or an open file, or None for other values."""
    if isinstance(value, str | os.PathLike):
        path = os.path.abspath(os.fspath(value))
        os.stat(path)  # raises an error if the file does not exist
        return os.path.splitext(path)[1], path
    if hasattr(value, "read"):
        data = value.read()
        content = data.encode() if isinstance(data, str) else data
        return os.path.splitext(str(getattr(value, "name", "")))[1], content
    return None


class Image(Media):
    """An image from a file, an array, or an object of PIL or matplotlib."""

    kind = "image"

    def render(self, data: Any, *_arguments: Any, **_options: Any) -> tuple[str, Content]:
        buffer = io.BytesIO()
        if hasattr(data, "savefig"):
            data.savefig(buffer, format="png")
        elif hasattr(data, "getbands"):
            data.save(buffer, "PNG")
        else:
            return _find_file(data) or (".png", _render_array(data))
        return ".png", buffer.getvalue()


def _render_array(data: Any) -> bytes:
    if hasattr(data, "detach"):  # in a tensor of torch channels come first
        data = data.detach().cpu()
        data = (data.permute(1, 2, 0) if data.ndim == 3 else data).numpy()
    shape = tuple(data.shape) if hasattr(data, "shape") else _measure(data)
    height, width, channels = (*shape, 1) if len(shape) == 2 else shape if len(shape) == 3 else (0, 0, 0)
    if channels not in _COLOURS or not height * width:
        raise ValueError(f"an array of shape {shape} is not a picture: (height, width) or (height, width, 1 to 4)")
    return build_png(height, width, channels, _to_bytes(data))


def _measure(data: Any) -> tuple[int, ...]:
    return (len(data), *(_measure(data[0]) if len(data) else ())) if isinstance(data, list | tuple) else ()


def _flatten(data: Any) -> Iterator[float]:
    for each in data.tolist() if hasattr(data, "tolist") else data:
        if isinstance(each, Iterable):
            yield from _flatten(each)
        else:
            yield float(each)


def _to_bytes(data: Any) -> bytes:
    """Convert values to pixels as wandb does: from 0 to 255 or 0 to 1; a range with negative values is scaled."""
    if str(getattr(data, "dtype", "")) == "uint8":
        return bytes(data.tobytes())
    values = None if hasattr(data, "astype") else [*_flatten(data)]
    low, high = (float(data.min()), float(data.max())) if values is None else (min(values), max(values))
    start = low if low < 0 else 0.0
    scale = 255 / ((high - low) or 1) if low < 0 else 255 if high <= 1 else 1
    if values is None:
        return bytes(((data.astype("float64") - start) * scale).clip(0, 255).astype("uint8").tobytes())
    return bytes(int(min(max((value - start) * scale, 0), 255)) for value in values)


def build_png(height: int, width: int, channels: int, data: bytes) -> bytes:
    def build_chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    stride = width * channels
    lines = b"".join(b"\0" + data[start : start + stride] for start in range(0, height * stride, stride))
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOURS[channels], 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(build_chunk(*chunk) for chunk in chunks)


class Histogram(Media):
    """Counts of numbers (`values`) between edges (`bins`). Numbers that are not finite are not counted."""

    kind = "histogram"

    def render(self, sequence: Any = None, np_histogram: Any = None, num_bins: int = _BINS) -> tuple[str, Content]:
        counts, edges = np_histogram if np_histogram is not None else _count(sequence, num_bins)
        self.histogram, self.bins = [*_flatten(counts)], [*_flatten(edges)]
        return ".json", _to_json({"bins": self.bins, "values": self.histogram})


def _count(sequence: Any, bins: int) -> tuple[Any, Any]:
    numpy = sys.modules.get("numpy")  # numpy is loaded if the script has arrays
    if hasattr(sequence, "detach"):
        sequence = sequence.detach().cpu().float().numpy()
    if numpy is not None:
        values = numpy.asarray(sequence, dtype="float64").ravel()
        return tuple(numpy.histogram(values[numpy.isfinite(values)], bins=bins))
    numbers = [value for value in _flatten(sequence) if value - value == 0.0]
    low, high = min(numbers, default=0.0), max(numbers, default=1.0)
    low, high = (low - 0.5, high + 0.5) if low == high else (low, high)
    counts = [0] * bins
    for value in numbers:
        counts[min(int((value - low) / (high - low) * bins), bins - 1)] += 1
    return counts, [low + (high - low) * number / bins for number in range(bins + 1)]


class Table(Media):
    """A table, whose cells may be pictures. Rows may be added until the table is logged."""

    kind = "table"

    def render(
        self, columns: Any = None, data: Any = None, rows: Any = None, dataframe: Any = None, **_options: Any
    ) -> tuple[str, Content]:
        self.columns: list[Any] = []
        self.data: list[list[Any]] = []
        if dataframe is not None:
            columns, data = list(dataframe.columns), dataframe.values
        found = data if data is not None else rows if rows is not None else []
        self.columns = list(columns) if columns is not None else ["Input", "Output", "Expected"]
        self.data = [list(row) for row in (found.tolist() if hasattr(found, "tolist") else found)]
        return ".table.json", b""

    def add_data(self, *row: Any) -> None:
        self.data.append(list(row))

    add_row = add_data

    def add_column(self, name: str, data: Any) -> None:
        cells = [*data]
        self.columns.append(name)
        self.data = [[*row, cell] for row, cell in zip(self.data or [[] for _ in cells], cells, strict=True)]

    def get_column(self, name: str, **_options: Any) -> list[Any]:
        return [row[self.columns.index(name)] for row in self.data]

    def iterrows(self) -> Iterator[tuple[int, list[Any]]]:
        return iter(enumerate(self.data))

    def build_content(self, keep: Callable[[Media], str]) -> Content:
        return _to_json(_build_plain(self, keep))


class Chart(Media):
    """A chart of `wandb.plot`: its kind and arguments."""

    kind = "chart"

    def render(self, chart: str, *arguments: Any, **options: Any) -> tuple[str, Content]:
        self.given = {"chart": chart, "arguments": arguments, **options}
        return ".chart.json", b""

    def build_content(self, keep: Callable[[Media], str]) -> Content:
        return _to_json(_build_plain(self.given, keep))


class Html(Media):
    kind = "html"

    def render(self, data: Any, *_arguments: Any, **_options: Any) -> tuple[str, Content]:
        is_text = isinstance(data, str) and not data.endswith(".html")
        return ".html", str(data).encode() if is_text else (_find_file(data) or ("", str(data).encode()))[1]


class Plotly(Media):
    kind = "chart"

    def render(self, figure: Any, *_arguments: Any, **_options: Any) -> tuple[str, Content]:
        return ".plotly.json", str(figure.to_json()).encode()


class Audio(Media):
    """Audio from a file, or from numbers between -1 and 1: one channel, or rows with a number for each channel."""

    kind = "audio"

    def render(
        self, data: Any, sample_rate: int | None = None, *_arguments: Any, **_options: Any
    ) -> tuple[str, Content]:
        import wave

        found = _find_file(data)
        if found is not None:
            return found
        shape = tuple(data.shape) if hasattr(data, "shape") else _measure(data)
        numbers = array("h", (int(min(max(value, -1.0), 1.0) * 32767) for value in _flatten(data)))
        buffer = io.BytesIO()
        with wave.open(buffer, "wb") as sound:
            sound.setparams((shape[1] if len(shape) > 1 else 1, 2, int(sample_rate or 44_100), 0, "NONE", ""))
            sound.writeframes(numbers.tobytes())
        return ".wav", buffer.getvalue()


class FromFile(Media):
    """A video, a molecule or a scene in a file of another program. Encoding from data is not supported."""

    kind = "file"

    def render(self, data: Any, *_arguments: Any, **_options: Any) -> tuple[str, Content]:
        found = _find_file(data)
        if found is None:
            raise TypeError(f"wandb.{type(self).__name__} is kept of a file alone: give its path")
        return found


class Video(FromFile):
    kind = "video"


class Object3D(FromFile):
    pass


class Molecule(FromFile):
    pass


def find_media(value: Any) -> Media | None:
    """Return the media object for a logged value: a figure of matplotlib, pyplot or plotly, or a picture of PIL."""
    if isinstance(value, Media):
        return value
    if isinstance(value, int | float | str | Mapping | list | tuple):
        return None
    if hasattr(value, "savefig") or hasattr(value, "getbands"):
        return Image(value)
    return Plotly(value) if hasattr(value, "to_plotly_json") else None


def _to_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")


def _build_plain(value: Any, keep: Callable[[Media], str]) -> Any:
    """Convert a value to types of JSON: tables to their columns and rows, objects to the names of their files."""
    if isinstance(value, Table):
        return {"columns": _build_plain(value.columns, keep), "data": _build_plain(value.data, keep)}
    if isinstance(value, Media):
        return {"file": keep(value)} if not value.problem else None
    if isinstance(value, Mapping):
        return {str(name): _build_plain(each, keep) for name, each in value.items()}
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_build_plain(each, keep) for each in value]
    return build_plain(value)


# ---------------------------------------------------------------- artifacts


class Artifact(_Accepting):
    """A named collection of files, which are copied as a new version each time the artifact is logged."""

    def __init__(
        self,
        name: str = "",
        type: str = "",  # noqa: A002 wandb's name
        description: Any = None,
        metadata: Any = None,
        **_more: Any,
    ) -> None:
        self.name, self.type, self.description, self.metadata = str(name), type, description, dict(metadata or {})
        self.version = ""
        self.files: dict[str, str | Media] = {}  # name in the artifact -> path or object
        self.references: list[str] = []
        self._own = ""  # the folder of files that `new_file` opened

    def add_file(self, local_path: Any, name: str | None = None, **_options: Any) -> None:
        self.files[name or os.path.basename(os.fspath(local_path))] = os.path.abspath(os.fspath(local_path))

    def add_dir(self, local_path: Any, name: str | None = None, **_options: Any) -> None:
        for folder, _, names in os.walk(os.fspath(local_path)):
            for each in names:
                path = os.path.join(folder, each)
                self.files[os.path.join(name or "", os.path.relpath(path, local_path))] = os.path.abspath(path)

    def add(self, value: Any, name: str, **_options: Any) -> None:
        self.files[name] = find_media(value) or Media()

    def add_reference(self, uri: Any, *_arguments: Any, **_options: Any) -> None:
        self.references.append(str(uri))

    @contextmanager
    def new_file(self, name: str, mode: str = "w", encoding: str | None = None) -> Iterator[Any]:
        if not self._own:
            self._own = tempfile.mkdtemp()
            weakref.finalize(self, shutil.rmtree, self._own, ignore_errors=True)
        path = os.path.join(self._own, _build_path(name))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, mode, encoding=encoding if "b" in mode else encoding or "utf-8") as file:
            yield file
        self.add_file(path, name)

    def wait(self, *_arguments: Any, **_options: Any) -> Artifact:
        return self


# ---------------------------------------------------------------- the folder `files/` of a run


class MediaFiles:
    """The folder `files/` of a run. No error is raised: `report` gets a topic and the reason for each failure."""

    def __init__(self, run_dir: str, report: Callable[[str, str], None]) -> None:
        self.dir, self._report = os.path.join(run_dir, "files"), report

    def keep(self, name: str, media: Media, step: int, number: str = "") -> str:
        """Write an object; return the name of its file below `files/`, or "" if it was not kept."""
        if media.problem:
            self._report(f"{type(media).__name__} {media.problem[:40]}", f"{name}: {media.problem}; it is not kept")
            return ""
        rank = f"-r{script.find_rank()}" if script.find_rank() else ""
        counted = iter(range(sys.maxsize))
        file = os.path.join(_MEDIA, _build_path(name), f"{step}{number}{rank}")

        def keep_inner(inner: Media) -> str:
            return self.keep(f"{name}.cells", inner, step, f"{number}-{next(counted)}")

        def write() -> None:
            self._write_file(file + media.suffix, media.build_content(keep_inner))
            fields = {"step": step, "time": time.time(), "name": name, "kind": media.kind, "file": file + media.suffix}
            with open(os.path.join(self.dir, _LIST), "ab") as lines:
                lines.write(_to_json({**fields, "caption": build_plain(media.caption)}) + b"\n")

        return file + media.suffix if self._try(name, write) else ""

    def keep_artifact(self, artifact: Artifact, aliases: Any = None) -> None:
        def write() -> None:
            folder = os.path.join(_ARTIFACTS, _build_path(artifact.name))
            number = 0
            while os.path.lexists(os.path.join(self.dir, folder, f"v{number}.json")):
                number += 1
            artifact.version = f"v{number}"
            for name, value in artifact.files.items():
                self._keep_part(artifact.name, os.path.join(folder, artifact.version, _stay_inside(name)), value)
            facts = {
                name: getattr(artifact, name) for name in ("name", "type", "description", "metadata", "references")
            }
            content = build_plain({**facts, "aliases": aliases, "at": time.time()})
            self._write_file(os.path.join(folder, f"{artifact.version}.json"), _to_json(content))

        if script.find_rank() == 0:
            self._try(f"artifact {artifact.name}", write)

    def _keep_part(self, artifact: str, file: str, value: str | Media) -> None:
        """Write one file of an artifact. A failure is reported, and the other files are kept."""
        if isinstance(value, Media) and value.problem:
            self._report(f"part {value.problem[:40]}", f"artifact {artifact}: {value.problem}; it is not kept")
            return
        content = value.build_content(lambda _inner: "") if isinstance(value, Media) else value
        target = file + value.suffix if isinstance(value, Media) and not file.endswith(value.suffix) else file
        self._try(f"artifact {artifact}", lambda: self._write_file(target, content))

    def _write_file(self, file: str, content: Content) -> None:
        path = os.path.join(self.dir, file)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with replacing(path) as aside:
            if isinstance(content, str):
                found = os.stat(content)
                copy_file(content, aside, mode=found.st_mode & 0o777, mtime_ns=found.st_mtime_ns)
                return
            with open(aside, "wb") as target:
                target.write(content)

    def _try(self, what: str, write: Callable[[], None]) -> bool:
        try:
            write()
        except OSError as error:
            place = f" ({error.filename})" if error.filename else ""
            self._report(
                f"write {error.errno}", f"{what} cannot be kept: {error.strerror or error}{place}. The script goes on."
            )
        except Exception as error:  # noqa: BLE001 an object of the script that cannot be rendered
            self._report(f"render {type(error).__name__}", f"{what} cannot be kept: {error}. The script goes on.")
        else:
            return True
        return False


def _build_path(name: str) -> str:
    """Return a path for a name: `a/b` becomes b in the folder a. A part that is not a valid file name gets a hash."""
    folders = []
    for part in name.split("/"):
        folder, digest = build_name(part), zlib.crc32(part.encode("utf-8", "backslashreplace"))
        folders.append(folder if folder == part else f"{folder}~{digest:08x}")
    return os.path.join(*folders)


def _stay_inside(name: str) -> str:
    return os.path.join("", *(part for part in name.split(os.sep) if part not in ("", ".", ".."))) or "unnamed"
