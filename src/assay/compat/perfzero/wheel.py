"""Pack the running Assay, editable or not, as a wheel, without network and build tools."""

from __future__ import annotations

import base64
import hashlib
import os
import zipfile
from importlib import metadata

from assay.errors import UsageError
from assay.system.files import replacing

_PACKAGE = "assay"
_SHARED = "share/assay/"  # the examples, which `assay demo` runs
_EPOCH = (1980, 1, 1, 0, 0, 0)  # a fixed time, so that equal files give equal wheels
_WHEEL = "Wheel-Version: 1.0\nGenerator: assay\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_KEPT_METADATA = ("METADATA", "entry_points.txt", "licenses/LICENSE")


def build_wheel_name() -> str:
    """Return `assay-VERSION-py3-none-any.whl`."""
    return f"{_stem(_distribution())}-py3-none-any.whl"


def write_wheel(folder: str) -> str:
    """Write a wheel of the installed files into `folder` and return its path."""
    found = _distribution()
    path, info = os.path.join(folder, build_wheel_name()), f"{_stem(found)}.dist-info"
    record: list[str] = []
    with replacing(path) as aside, zipfile.ZipFile(aside, "w", zipfile.ZIP_DEFLATED) as archive:

        def add(name: str, data: bytes) -> None:
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(data)}")

        package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        paths = (os.path.join(base, name) for base, _, names in os.walk(package) for name in names)
        files = {os.path.relpath(path, os.path.dirname(package)): path for path in paths if _is_source(path)}
        for name, file in sorted((files | _shared_files(found)).items()):
            with open(file, "rb") as stream:
                add(name, stream.read())
        for name in _KEPT_METADATA:
            text = found.read_text(name)
            if text is not None:
                add(f"{info}/{name}", text.encode())
        add(f"{info}/WHEEL", _WHEEL.encode())
        add(f"{info}/RECORD", "\n".join([*record, f"{info}/RECORD,,", ""]).encode())
    return path


def _distribution() -> metadata.Distribution:
    try:
        return metadata.distribution(_PACKAGE)
    except metadata.PackageNotFoundError:
        raise UsageError(
            "Assay runs here without being installed, so it cannot be packed for another machine",
            "install it: pip install assay, or pip install -e . in its source tree",
        ) from None


def _stem(found: metadata.Distribution) -> str:
    return f"{_PACKAGE}-{found.version.replace('-', '_')}"


def _shared_files(found: metadata.Distribution) -> dict[str, str]:
    files = {}
    for file in found.files or ():
        _, marker, rest = file.as_posix().partition(_SHARED)
        path = str(found.locate_file(file))
        if marker and _is_source(path) and os.path.isfile(path):
            files[f"{_stem(found)}.data/data/{_SHARED}{rest}"] = path
    return files


def _is_source(path: str) -> bool:
    return not path.endswith(".pyc") and "__pycache__" not in path.split(os.sep)
