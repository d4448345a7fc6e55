"""Copy one file: share its blocks where the file system can do that safely, move bytes inside the kernel elsewhere."""

from __future__ import annotations

import errno
import fcntl
import os

_FICLONE = 0x40049409  # _IOW(0x94, 9, int) of linux/fs.h
_NOT_HERE = frozenset(
    {errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.ETXTBSY, errno.EBADF}
)
_CHUNK = 1 << 30

_can_clone: dict[tuple[int, int], bool] = {}  # (device of the source, device of the target) -> what the first try said


def copy_file(source: str, target: str, *, mode: int, mtime_ns: int) -> None:
    """A new, private file with these permissions, less what the umask takes away.

    Hard links are out of the question: one run's edits would reach the others.
    """
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


def _clone(reader: int, writer: int) -> bool:
    pair = os.fstat(reader).st_dev, os.fstat(writer).st_dev
    if not _can_clone.get(pair, True):
        return False
    try:
        fcntl.ioctl(writer, _FICLONE, reader)
    except OSError as error:
        if error.errno not in _NOT_HERE:
            raise
        _can_clone[pair] = False
        return False
    _can_clone[pair] = True
    return True


def _copy_bytes(reader: int, writer: int) -> None:
    """copy_file_range makes a true copy; where a pair of file systems refuses it, plain reads and writes do."""
    try:
        while os.copy_file_range(reader, writer, _CHUNK):
            pass
    except OSError as error:
        if error.errno not in _NOT_HERE:
            raise
    while block := os.read(reader, 1 << 20):  # what is left: everything, or nothing
        _write_all(writer, block)


def _write_all(writer: int, block: bytes) -> None:
    view = memoryview(block)
    while view:
        view = view[os.write(writer, view) :]
