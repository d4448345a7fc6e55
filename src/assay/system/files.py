"""Write files under a temporary name and rename them, append lines, follow files that grow, and copy files with shared
blocks if the file system can do that."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Iterator, Mapping

from assay.errors import InfrastructureError

TYPE_CHECKING = False  # `typing`, which has this name too, takes milliseconds to load
if TYPE_CHECKING:
    import threading
    from hashlib import blake2b as blake2b  # noqa: PLC0414 imported from here by other modules
    from typing import Any
else:
    try:
        from _blake2 import blake2b  # does not load OpenSSL, as hashlib does
    except ImportError:
        from hashlib import blake2b

TEMPORARY_SUFFIX = ".tmp"  # the suffix of a file that is being written
ENV_CACHE_DIR = "ASSAY_CACHE_DIR"
_PIECE = 1 << 20
_MAX_PIECES = 256  # a link to /dev/zero must not fill the memory


# ---------------------------------------------------------------- atomic writes


def write_new(path: str, content: str | bytes, mode: int = 0o666) -> None:
    """Create a file; raise FileExistsError if the name is taken."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        data = content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content
        while data:  # a full disk may accept a part of the data, and refuses the next part
            data = data[os.write(fd, data) :]
    except OSError as error:
        error.filename = path  # `os.write` does not set the name
        raise
    finally:
        os.close(fd)


def write_atomic(path: str, content: str | bytes, mode: int = 0o666, repair: bool = False) -> None:
    """Replace a file: readers see the old or the new content, never a part. `repair`, for Assay's own files in a run
    directory: rename a folder of that name, which is damage. Without `repair` a folder of that name is a user's, and
    IsADirectoryError is raised. A device or a pipe, such as /dev/null, is written directly."""
    if not repair and is_special(path):
        with open(path, "wb") as file:
            file.write(content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content)
        return
    with _temporary(path) as aside:
        write_new(aside, content, mode)
        try:
            os.replace(aside, path)
        except IsADirectoryError:
            if not repair:
                raise
            keep_damaged(path)
            os.replace(aside, path)


@contextlib.contextmanager
def replacing(path: str, suffix: str = TEMPORARY_SUFFIX) -> Iterator[str]:
    """Yield the name of a temporary file next to `path`, which replaces `path` when the block ends without an error.
    The temporary file is removed unless the process is killed. A device or a pipe, such as /dev/null, is written
    directly: to replace a device would damage the machine."""
    if not is_special(path):
        with _temporary(path, suffix) as aside:
            yield aside
            os.replace(aside, path)
        return
    import shutil
    import tempfile

    with tempfile.TemporaryDirectory() as folder, _temporary(os.path.join(folder, "output"), suffix) as aside:
        yield aside
        with open(aside, "rb") as source, open(path, "wb") as target:
            shutil.copyfileobj(source, target)


def is_special(path: str) -> bool:
    """Whether the path exists and is neither a file nor a folder, also if /dev/stdout or the like leads to a file."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)) or path.startswith(("/dev/std", "/dev/fd/", "/proc/"))


@contextlib.contextmanager
def _temporary(path: str, suffix: str = TEMPORARY_SUFFIX) -> Iterator[str]:
    aside = f"{path}.{os.urandom(4).hex()}{suffix}"
    try:
        yield aside
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(aside)


def publish(target: str, text: str) -> bool:
    """Create a file with its whole content by link(2); return True for exactly one caller."""
    with _temporary(target) as aside:
        write_new(aside, text)
        try:
            os.link(aside, target)
        except FileExistsError:
            return False
        return True


def rename(source: str, target: str) -> None:
    """Rename atomically: readers find the old name or the new. An existing file or an empty folder is replaced."""
    os.rename(source, target)


def keep_damaged(path: str) -> None:
    """Rename a path of the wrong kind, so that the name is free and nothing is lost."""
    os.rename(path, f"{path}.damaged-{os.urandom(6).hex()}")


# ---------------------------------------------------------------- on the disk


def flush_folder(folder: str) -> None:
    """Flush everything that was written in this folder's file system: one call for any number of files."""
    import ctypes  # for syncfs(2), which Python does not have; os.sync would wait for every disk

    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        ctypes.CDLL(None).syncfs(fd)
    finally:
        os.close(fd)


class Flusher:
    """Flushes a folder once for each batch of writes, in a thread, so that no caller waits for the disk."""

    def __init__(self, folder: str, gather_s: float = 1.0, pause_s: float = 10.0) -> None:
        self._folder, self._gather_s, self._pause_s = folder, gather_s, pause_s
        self._due: float | None = None  # when the current batch is flushed; None: nothing to flush
        self._rests_until = 0.0
        self._thread: threading.Thread | None = None
        self.count = 0

    def note(self) -> None:
        """Note that something was written."""
        if self._due is None:
            self._due = max(time.monotonic() + self._gather_s, self._rests_until)

    def tick(self) -> None:
        """Begin a flush if one is due and none is running; called regularly."""
        now = time.monotonic()
        if self._due is None or now < self._due or (self._thread is not None and self._thread.is_alive()):
            return
        self._due, self._rests_until = None, now + self._pause_s
        import threading

        self._thread = threading.Thread(target=self._flush, daemon=True)
        self._thread.start()

    def _flush(self) -> None:
        with contextlib.suppress(OSError, AttributeError):  # the folder is gone, or the C library has no syncfs
            flush_folder(self._folder)
            self.count += 1

    def wait(self) -> None:
        """Wait for the end of a running flush."""
        if self._thread is not None:
            self._thread.join()


# ---------------------------------------------------------------- reading


def read_text(path: str, errors: str = "surrogateescape") -> str:
    """Read a small file; raise OSError if it is not a file. A pipe is not waited for and reads as empty."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        pieces = []
        while piece := os.read(fd, _PIECE):
            pieces.append(piece)
            if len(pieces) > _MAX_PIECES:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
    finally:
        os.close(fd)
    return b"".join(pieces).decode("utf-8", errors)


def try_text(path: str, errors: str = "surrogateescape") -> str:
    """Return the text of a small file; empty if the file cannot be read."""
    try:
        return read_text(path, errors)
    except OSError:
        return ""


def is_inside(path: str, folder: str) -> bool:
    """Whether a path is in a folder, or is the folder itself; links are followed."""
    real = os.path.realpath(folder)
    return os.path.commonpath([real, os.path.realpath(path)]) == real


def require_folder(path: str) -> str:
    """Return `path`; raise OSError if it is not the path of a readable folder."""
    os.scandir(path).close()
    return path


def list_names(folder: str) -> set[str]:
    """Return all names in a folder with one call; empty if it cannot be read."""
    try:
        return set(os.listdir(folder))
    except OSError:
        return set()


def read_end(path: str, size: int) -> str:
    """Read the last `size` bytes of a text, perhaps from the middle of a line; empty if it cannot be read."""
    if is_special(path):
        return ""  # reading a pipe would wait for a writer
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - size))
            return file.read(size).decode("utf-8", "replace")
    except OSError:
        return ""


class Tail:
    """Reads what was appended since `offset`. A file that became shorter or was replaced is read again from its start.
    `restarts` counts how often that happened: a caller that keeps a state with the offset forgets the state when
    `restarts` changes. A missing file reads as empty, and so does a folder, a pipe or a link to itself."""

    def __init__(self, path: str | os.PathLike[str], offset: int = 0) -> None:
        self.path = os.fspath(path)
        self.offset = offset
        self.inode: int | None = None  # the inode of the file to which `offset` refers
        self.restarts = 0

    def read(self, limit: int = 1 << 20) -> bytes:
        """Read at most `limit` new bytes; empty if there are none."""
        try:
            status = os.stat(self.path)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise
            return b""
        if not stat.S_ISREG(status.st_mode):
            return b""
        is_other = self.inode is not None and status.st_ino != self.inode
        self.inode = status.st_ino
        if is_other or status.st_size < self.offset:
            self.restarts += 1 if self.offset else 0
            self.offset = 0
        if status.st_size <= self.offset:
            return b""  # usually polls end here, without opening the file
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return b""
        try:
            data = os.pread(fd, limit, self.offset)
        finally:
            os.close(fd)
        self.offset += len(data)
        return data


# ---------------------------------------------------------------- JSON lines: a kill costs at most one line


def append_line(path: str, fields: Mapping[str, Any]) -> None:
    """Append a line and wait until it is on the disk. A torn last line is ended first: the new line stays readable."""
    import json

    start = b"" if read_end(path, 1) in ("", "\n") else b"\n"
    try:
        with open(path, "ab") as file:
            file.write(start + json.dumps(fields).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise InfrastructureError(f"{path} cannot be written: {error.strerror}") from error


def parse_json(text: str | bytes) -> Any:
    """Parse JSON; raise ValueError if it is invalid, or nested more deeply than Python can follow."""
    import json

    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def load_lines(path: str) -> list[dict[str, Any]]:
    """Return every line that is a JSON object, in order; nothing if the file does not exist."""
    found = []
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        return []
    for line in lines:
        with contextlib.suppress(ValueError):
            fields = parse_json(line)
            if isinstance(fields, dict):
                found.append(fields)
    return found


# ---------------------------------------------------------------- copying

_FICLONE = 0x40049409  # _IOW(0x94, 9, int) of linux/fs.h
_UNSUPPORTED = frozenset(
    {errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.ETXTBSY, errno.EBADF}
)
_can_clone: dict[tuple[int, int], bool] = {}  # (device of the source, device of the target) -> result of the first try


def copy_file(source: str, target: str, *, mode: int, mtime_ns: int) -> None:
    """Copy to a new, private file with these permissions, reduced by the umask. Blocks are shared if the file system
    can do that. The copy is never a hard link: the edits of one run would then reach the others."""
    reader = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        writer = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            if not _clone(reader, writer):
                _copy_bytes(reader, writer)
            os.utime(writer, ns=(mtime_ns, mtime_ns))
        finally:
            os.close(writer)
    finally:
        os.close(reader)


def can_clone(folder: str) -> bool:
    """Whether files in this folder can share blocks, found by trying it with two temporary files."""
    import tempfile

    try:
        with tempfile.TemporaryFile(dir=folder) as source, tempfile.TemporaryFile(dir=folder) as target:
            source.write(b"assay")
            source.flush()
            return _clone(source.fileno(), target.fileno())
    except OSError:
        return False


def _clone(reader: int, writer: int) -> bool:
    import fcntl

    pair = os.fstat(reader).st_dev, os.fstat(writer).st_dev
    if not _can_clone.get(pair, True):
        return False
    try:
        fcntl.ioctl(writer, _FICLONE, reader)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        _can_clone[pair] = False
        return False
    _can_clone[pair] = True
    return True


def _copy_bytes(reader: int, writer: int) -> None:
    """Copy by copy_file_range, or by reads and writes if the two file systems refuse that."""
    try:
        while os.copy_file_range(reader, writer, 1 << 30):
            pass
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
    while block := os.read(reader, _PIECE):  # reads the whole file if copy_file_range was refused, else nothing
        view = memoryview(block)
        while view:
            view = view[os.write(writer, view) :]


# ---------------------------------------------------------------- the user's cache


def cache_dir(env: Mapping[str, str]) -> str:
    """Return the cache folder. Empty and relative values count as unset, as the XDG specification requires."""
    if env.get(ENV_CACHE_DIR):
        return os.path.abspath(env[ENV_CACHE_DIR])
    base = env.get("XDG_CACHE_HOME", "")
    home = env.get("HOME") or os.path.expanduser("~")
    return os.path.join(base if os.path.isabs(base) else os.path.join(home, ".cache"), "assay")


def index_path(root: str | os.PathLike[str], env: Mapping[str, str]) -> str:
    """Return the index of an output root: one file for all paths to the root. The index is in the cache, since
    SQLite's WAL does not work on network file systems."""
    digest = blake2b(os.fsencode(os.path.realpath(root)), digest_size=16).hexdigest()
    return os.path.join(cache_dir(env), "index", f"{digest}.sqlite3")
