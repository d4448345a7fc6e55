"""Object stores through fsspec: S3 (s3fs), Google Cloud Storage (gcsfs), Azure (adlfs).

Credentials, endpoints and the like come from the environment variables that each store's own tools read:
AWS_ENDPOINT_URL, STORAGE_EMULATOR_HOST, AZURE_STORAGE_CONNECTION_STRING. Variables such as FSSPEC_S3_ANON set options.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import logging
import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from assay.errors import AssayError, InfrastructureError, MissingExtraError, UsageError
from assay.exchange.store.transfer import load_listing, load_notes, remove_part, write_notes
from assay.values.notify import Notify, ignore

_EXTRAS = {"s3": "s3", "gs": "gcs", "az": "azure", "abfs": "azure", "abfss": "azure"}
_CREDENTIALS = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or AWS_PROFILE; FSSPEC_S3_ANON=true for public data",
    "gcs": "run `gcloud auth application-default login`, or name a key file in GOOGLE_APPLICATION_CREDENTIALS",
    "azure": "set AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT_NAME with AZURE_STORAGE_ACCOUNT_KEY",
}
_LOUD = ("gcsfs", "s3fs", "adlfs", "fsspec", "azure", "botocore", "aiobotocore")
_BLOCK = 1 << 22
_ANSWER_S = 20.0  # limit of waiting for the first answer; the libraries themselves retry for a minute and longer
_OF_THE_DISK = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG}
)


@dataclass(frozen=True, slots=True)
class StoredObject:
    path: str  # the path in the store, which begins with the bucket
    name: str  # relative to the requested path; "" for an object at the requested path
    bytes: int | None  # None if the store decodes the content when it is read
    version: str | None  # changes with the content


# ---------------------------------------------------------------- downloading


def download(url: str, part: str, notify: Notify = ignore) -> None:
    """Download an object into the file `part`, or all objects below a path that are missing in the folder `part`."""
    with _named(url):
        store, path = _reach(url, notify)
        objects = _list_objects(store, path.rstrip("*/"), asked_folder=url.endswith(("*", "/")))
        if not objects:
            raise FileNotFoundError
        if objects[0].name:
            _bring_folder(store, objects, part, url)
        else:
            remove_part(part)
            _bring(store, objects, [part])


def _list_objects(store: Any, path: str, *, asked_folder: bool) -> list[StoredObject]:
    if "/" in path and not asked_folder:
        info = store.info(path)
        if info["type"] == "file":
            return [_build_object(path, "", info)]
    found = store.find(path, detail=True)
    names = (name for name in sorted(found) if name.startswith(path + "/") and not name.endswith("/"))
    return [_build_object(name, name[len(path) + 1 :], found[name]) for name in names]


def _build_object(path: str, name: str, info: Mapping[str, Any]) -> StoredObject:
    version = info.get("ETag") or info.get("etag") or info.get("md5Hash")
    size = None if info.get("contentEncoding") else int(info["size"])
    return StoredObject(path, name, size, str(version) if version else None)


def _bring_folder(store: Any, objects: Sequence[StoredObject], part: str, url: str) -> None:
    locations = [_find_location(part, item) for item in objects]
    if not os.path.isdir(part):
        remove_part(part)
        os.mkdir(part)
    wanted = {item.name: [item.bytes, item.version] for item in objects}
    found = load_notes(part, url).get("objects")
    notes = found if isinstance(found, dict) else {}
    for file in load_listing(part).files:  # keep only complete files of the same version from an earlier try
        size, version = wanted.get(file.name, (None, None))
        if version is None or size != file.bytes or notes.get(file.name) != [size, version]:
            os.unlink(file.path)
    write_notes(part, url, {"objects": wanted})
    missing = [
        (item, location) for item, location in zip(objects, locations, strict=True) if not os.path.exists(location)
    ]
    _bring(store, [item for item, _ in missing], [location for _, location in missing])


def _find_location(folder: str, item: StoredObject) -> str:
    """Return the path of an object in the folder. Keys are free text: a key that leads outside is refused."""
    parts = [part for part in item.name.split("/") if part not in {"", "."}]
    if item.name.startswith("/") or ".." in parts or "\0" in item.name:
        raise UsageError(f"an object cannot be a file here: its key {item.name!r} leads elsewhere")
    return os.path.join(folder, *parts)


def _bring(store: Any, objects: Sequence[StoredObject], locations: Sequence[str]) -> None:
    if objects:
        store.get([item.path for item in objects], list(locations))
    for item, location in zip(objects, locations, strict=True):
        size = os.path.getsize(location)
        if item.bytes is not None and size != item.bytes:
            raise InfrastructureError(f"{item.path} arrived with {size} of {item.bytes} bytes", "try again")


# ---------------------------------------------------------------- one object at a time


class ObjectRemote:
    """Named objects below an address. The stores guarantee that no object is visible incomplete."""

    def __init__(self, address: str, notify: Notify = ignore) -> None:
        self.address = address.rstrip("/")
        with self._asking():
            self._store, path = _reach(self.address, notify)
        self._base = path.rstrip("/")
        self._extra = _EXTRAS[address.split(":", 1)[0].lower()]
        # by default s3fs requests the size first, to read large objects in parts; objects that `read` gets are small
        self._whole = {"max_concurrency": 1} if self._extra == "s3" and hasattr(self._store, "max_concurrency") else {}

    def read(self, key: str) -> bytes | None:
        content = self._call("cat_file", self._path(key), **self._whole)
        return None if content is None else bytes(content)

    def find(self, prefix: str) -> list[str]:
        found = self._call("find", self._path(prefix)) or ()
        return sorted(name[len(self._base) + 1 :] for name in found if name.startswith(self._path(prefix) + "/"))

    def stat(self, key: str) -> tuple[int, str | None] | None:
        info = self._call("info", self._path(key))
        return (int(info["size"]), _find_md5(info)) if info is not None and info["type"] == "file" else None

    def digest(self, key: str) -> str:
        digest = hashlib.sha256()
        with self._asking(), self._store.open(self._path(key), "rb", cache_type="none") as file:
            while block := file.read(_BLOCK):
                digest.update(block)
        return digest.hexdigest()

    def send(self, content: bytes | str, key: str) -> str | None:
        with self._asking():
            if isinstance(content, bytes):
                answer = self._store.pipe_file(self._path(key), content)
                return _find_md5(answer) if isinstance(answer, Mapping) else None
            self._store.put_file(content, self._path(key))
        return None

    def replace(self, content: bytes, key: str, before: bytes | None) -> bool:
        # the version is requested before reading: the store refuses the write if the object has changed since
        info = self._call("info", self._path(key))
        if self.read(key) != before:
            return False
        with self._asking():
            try:
                self._store.pipe_file(self._path(key), content, **self._build_condition(info))
            except Exception as error:
                if "notimplemented" in _spell(error):  # other servers with S3 may not support conditions
                    self._store.pipe_file(self._path(key), content)
                    return True
                if not _was_outpaced(error):
                    raise
                return False
        return True

    def bring(self, key: str, path: str) -> bool:
        return self._call("get_file", self._path(key), path, absent=False) is not False

    def _call(self, method: str, *arguments: str, absent: Any = None, **options: Any) -> Any:
        """Call a method of the store, and return `absent` if there is no such object."""
        with self._asking():
            try:
                return getattr(self._store, method)(*arguments, **options)
            except FileNotFoundError:
                return absent

    def _build_condition(self, info: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the condition of a write. gcsfs can only require that there is no object yet."""
        if info is None:
            return {"mode": "create"}
        if self._extra == "s3":
            return {"IfMatch": info["ETag"]}
        if self._extra == "azure":
            from azure.core import MatchConditions

            return {"etag": info["etag"], "match_condition": MatchConditions.IfNotModified}
        return {}

    def _path(self, key: str) -> str:
        return f"{self._base}/{key}"

    def _asking(self) -> AbstractContextManager[None]:
        return _named(self.address, InfrastructureError)


def _find_md5(info: Mapping[str, Any]) -> str | None:
    tag = str(info.get("ETag") or "").strip('"')
    if re.fullmatch("[0-9a-f]{32}", tag):
        return tag
    found = info.get("md5Hash") or info.get("content_md5") or (info.get("content_settings") or {}).get("content_md5")
    if isinstance(found, str):
        return base64.b64decode(found).hex()
    return bytes(found).hex() if found else None


# ---------------------------------------------------------------- the libraries


def check_installed(url: str) -> None:
    """Raise an error if the library for this kind of store is not installed, without using the network."""
    scheme = url.split(":", 1)[0].lower()
    with _libraries(scheme) as fsspec:
        fsspec.get_filesystem_class(scheme)


def _reach(url: str, notify: Notify) -> tuple[Any, str]:
    """Return the store after its first answer. Without a network the search for a login alone may take 15 seconds, and
    gcsfs cannot be configured to retry less often, so a thread connects and this function limits the wait."""
    found: list[tuple[Any, str] | Exception] = []

    def ask() -> None:
        try:
            store, path = _open(url)
            try:
                store.info(path.strip("*/").partition("/")[0])
            except Exception as error:
                # a user may have the right to write, but not the right to read the bucket
                if isinstance(error, FileNotFoundError) or not _is_about_rights(error):
                    raise
            found.append((store, path))
        except Exception as error:  # noqa: BLE001 raised again in the calling thread
            found.append(error)

    notify(f"connecting to {url} (for at most {_ANSWER_S:g} s)")
    thread = threading.Thread(target=ask, daemon=True, name="assay-reach")
    thread.start()
    thread.join(_ANSWER_S)
    if not found:
        hint = "is there a network, and a login?"
        raise InfrastructureError(f"{url} cannot be reached: no answer within {_ANSWER_S:g} s", hint)
    if isinstance(found[0], Exception):
        raise found[0]
    return found[0]


def _open(url: str) -> tuple[Any, str]:
    """Open a new instance of the store: fsspec's cached instances keep old listings, endpoints and credentials."""
    scheme = url.split(":", 1)[0].lower()
    for name in _LOUD:  # these loggers print tracebacks of errors that Assay reports in one line
        logging.getLogger(name).addHandler(logging.NullHandler())
    # an emulator has no logins; Google's own libraries also skip the login with an emulator
    options = {"token": "anon"} if scheme == "gs" and os.environ.get("STORAGE_EMULATOR_HOST") else {}
    with _libraries(scheme) as fsspec:
        store, path = fsspec.url_to_fs(url, skip_instance_cache=True, use_listings_cache=False, **options)
    return store, str(path)


@contextmanager
def _libraries(scheme: str) -> Iterator[Any]:
    try:
        import fsspec

        # gcsfs' newer class requests the kind of each bucket from a second service: a minute if a firewall drops that
        fsspec.register_implementation("gs", "gcsfs.core.GCSFileSystem", clobber=True)
        yield fsspec
    except ImportError as error:
        raise MissingExtraError(f"{scheme}://", _EXTRAS[scheme]) from error


@contextmanager
def _named(url: str, refused: type[AssayError] = UsageError) -> Iterator[None]:
    """Turn any error of the libraries (some forty types of five packages) into a one-line error. `refused` is the type
    of the error if rights are missing."""
    try:
        yield
    except AssayError:
        raise
    except FileNotFoundError as error:
        raise UsageError(f"there is nothing at {url}", "check the bucket and the path") from error
    except Exception as error:
        # errors from the stores have no file name
        if isinstance(error, OSError) and (error.errno in _OF_THE_DISK or error.filename is not None):
            raise  # an error of this machine's disk, which the caller explains
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        if _is_about_rights(error):
            extra = _EXTRAS[url.split(":", 1)[0].lower()]
            raise refused(f"{url} may not be used: {reason}", _CREDENTIALS[extra]) from error
        raise InfrastructureError(f"{url} cannot be reached: {reason}") from error


def _spell(error: BaseException) -> str:
    """Return type and message of an error, and the original error if s3fs has translated the error."""
    return f"{type(error).__name__} {error} {error.__cause__ or ''}".lower()


def _was_outpaced(error: Exception) -> bool:
    status = getattr(error, "status_code", None) or getattr(error, "code", None)
    return (
        isinstance(error, FileExistsError)
        or str(status) == "412"
        or any(word in _spell(error) for word in ("preconditionfailed", "conditionalrequestconflict"))
    )


def _is_about_rights(error: Exception) -> bool:
    status = getattr(error, "status_code", None) or getattr(error, "code", None)
    words = f"{type(error).__name__} {error}".lower()
    return (
        isinstance(error, PermissionError)
        or str(status) in {"401", "403"}
        or any(word in words for word in ("credential", "forbidden", "accessdenied", "authenticationerror"))
    )
