"""Unpack downloaded archives into a temporary folder, then move the content; refuse archives that would write outside.

`tarfile.data_filter` decides about members, also those of zip archives. Links are created last and only in real
folders, so that no file is ever written through a link. The filters of Python before 3.11.13 and 3.12.11 let chains of
links lead outside (CVE-2025-4517): this module makes every target a normalised path inside, so chains stay inside too.
"""

from __future__ import annotations

import errno
import gzip
import lzma
import os
import shutil
import stat
import tarfile
import time
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from typing import IO, Self

from assay.errors import UsageError
from assay.system.files import rename

_Readable = IO[bytes] | gzip.GzipFile

_CHUNK = 1 << 20
ENV_LIMIT = "ASSAY_UNPACK_LIMIT"
_FREE_BYTES = 2 << 30  # unpacked bytes that any archive may have
_MOST_TIMES = 200  # limit in times the archive's size, if higher: text compresses to 1/20, a zip bomb to 1/1000
_MEMBER_BYTES = 1024  # bytes that each member counts, even an empty one
_MOST_LINK_BYTES = 4096
_MOST_HEADER_BYTES = 1 << 20  # largest extended header, which the library reads into memory
_DAMAGE = (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError)


class ArchiveKind(Enum):
    TAR = "tar archive"
    ZIP = "zip archive"
    GZIP = "gzip file"


_ENDINGS = {
    (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz"): ArchiveKind.TAR,
    (".zip",): ArchiveKind.ZIP,
    (".gz",): ArchiveKind.GZIP,
}


class ArchiveError(UsageError):
    """The archive is damaged, is of another kind than its name, or has members that would be written elsewhere."""


def parse_kind(name: str) -> ArchiveKind | None:
    """Return the kind of an archive by the ending of its name, or None."""
    lower = name.lower()
    return next((kind for endings, kind in _ENDINGS.items() if lower.endswith(endings)), None)


def find_kind(path: str) -> ArchiveKind | None:
    """Return the kind by the content, only for tar archives: zip files are often something else, as saved weights."""
    try:
        with tarfile.open(path, tarinfo=_CheckedInfo) as tar:
            return ArchiveKind.TAR if tar.next() is not None else None  # zeros are an empty archive
    except ArchiveError:
        return ArchiveKind.TAR  # a later step refuses the archive
    except _DAMAGE:
        return None


# ---------------------------------------------------------------- unpacking aside


def unpack(archive: str, kind: ArchiveKind, aside: str, name: str) -> None:
    """Unpack an archive into the new folder `aside`, which is removed after an error. `name`: the archive's name, which
    without its ending is the name of the file in a plain gzip."""
    size = os.path.getsize(archive)
    if size == 0:  # gzip would read the archive as an empty file
        raise ArchiveError(f"{name} is not a readable {kind.value}: it is empty")
    os.mkdir(aside)
    try:
        with _damage_named(name, kind):
            folder = _Aside(aside, choose_limit(size, os.environ))
            if kind is ArchiveKind.ZIP:
                _unpack_zip(archive, folder)
            elif kind is ArchiveKind.TAR or find_kind(archive):
                _unpack_tar(archive, folder)
            else:
                inner = name[:-3] if name.lower().endswith(".gz") else name
                with gzip.open(archive) as reader:
                    folder.add(_build_member(inner, 0o666), reader)
            folder.finish()
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def choose_limit(size: int, env: Mapping[str, str]) -> int | None:
    """Return how many bytes an archive of this size may unpack to, or ASSAY_UNPACK_LIMIT if set; None for no limit."""
    text = env.get(ENV_LIMIT, "").strip().lower()
    if not text:
        return max(_FREE_BYTES, _MOST_TIMES * size)
    if text == "none":
        return None
    if not text.isdecimal():
        raise UsageError(f"{ENV_LIMIT}={text} is not a number of bytes", "for example 500000000000, or none")
    return int(text)


@contextmanager
def _damage_named(name: str, kind: ArchiveKind) -> Iterator[None]:
    try:
        yield
    except (ArchiveError, tarfile.FilterError) as error:
        reason = error.message if isinstance(error, ArchiveError) else error
        raise ArchiveError(f"{name} was not unpacked: {reason}", "nothing of it was kept") from None
    except _DAMAGE as error:
        raise ArchiveError(f"{name} is not a readable {kind.value}: {error or type(error).__name__}") from error
    except (RuntimeError, ValueError, OverflowError) as error:  # encryption, a NUL in a name, an invalid time
        raise ArchiveError(f"{name} cannot be unpacked: {error}") from error
    except OSError as error:
        # bz2 raises OSError without a number, and zipfile looks for members at impossible positions
        if error.errno is not None and (error.errno != errno.EINVAL or error.filename):
            raise  # the error is of the disk
        raise ArchiveError(f"{name} is not a readable {kind.value}: {error}") from error


class _Aside:
    """The folder to unpack into. Links are created last, so that no file can be written through one."""

    def __init__(self, folder: str, limit: int | None) -> None:
        self.folder = os.path.realpath(folder)
        self._links: dict[str, str] = {}
        self._limit = limit
        self._bytes = 0

    def add(self, member: tarfile.TarInfo, reader: _Readable | None = None) -> None:
        self.count(_MEMBER_BYTES)
        given, name = member, member.name.lstrip("/")
        # The library's filter slowly checks each part of a path for links, but no link exists yet: for a regular file
        # it is enough to check the name, and to set the mode by the filter's rules.
        if member.isreg() and os.path.normpath(name).split("/")[0] != "..":
            member.name = name
            member.mode = member.mode & (0o755 if member.mode & 0o100 else 0o644) | 0o600
        else:
            member = tarfile.data_filter(member, self.folder)
        path = self._path(member.name)
        try:
            if member.isdir():
                os.makedirs(path, exist_ok=True)
            elif member.issym():
                self._claim(path)
                self._links[path] = member.linkname
            elif member.islnk():
                self._add_hard_link(path, self._path(member.linkname))
            elif reader:
                self._add_file(path, reader, member)
        except (FileExistsError, NotADirectoryError):
            raise ArchiveError(f"{given.name!r} is a file and a folder at once") from None

    def finish(self) -> None:
        for path, given in self._links.items():
            name, target = self._name(path), os.path.normpath(given)
            end = os.path.normpath(os.path.join(os.path.dirname(name), target))
            if end.split("/")[0] in {"", ".."}:
                raise ArchiveError(f"the link {name!r} -> {target!r} leaves the folder")
            try:
                os.symlink(target, path)
            except FileExistsError:
                raise ArchiveError(f"{name!r} is a link and a folder at once") from None
        for path in self._links:
            try:
                os.stat(path)
            except (FileNotFoundError, NotADirectoryError):
                pass  # the target may come with another archive
            except OSError as error:
                raise ArchiveError(f"the link {self._name(path)!r} is broken: {error.strerror}") from None

    def count(self, size: int) -> None:
        """Count bytes that come out of the archive; refuse the archive if they exceed its limit."""
        self._bytes += size
        if self._limit is not None and self._bytes > self._limit:
            raise ArchiveError(f"more than {self._limit} bytes would come out of it; {ENV_LIMIT}=none lifts this limit")

    def _add_file(self, path: str, reader: _Readable, member: tarfile.TarInfo) -> None:
        self._links.pop(path, None)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            writer = os.open(path, flags, member.mode)  # the umask applies
        except (FileNotFoundError, FileExistsError):
            self._claim(path)
            writer = os.open(path, flags, member.mode)
        with open(writer, "wb") as file:
            while block := reader.read(_CHUNK):
                self.count(len(block))
                file.write(block)
        os.utime(path, (member.mtime, member.mtime))

    def _add_hard_link(self, path: str, source: str) -> None:
        target = self._links.get(source)
        if target is None and not os.path.isfile(source):
            raise ArchiveError(f"{self._name(path)!r} links to {self._name(source)!r}, which does not come before it")
        if source == path:
            return
        self._claim(path)
        if target is None:
            os.link(source, path)
        else:
            self._links[path] = target

    def _claim(self, path: str) -> None:
        """Remove an earlier member at this path, as tar does, and create the folders above it."""
        self._links.pop(path, None)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if os.path.isdir(path):
            raise FileExistsError(path)
        if os.path.lexists(path):
            os.unlink(path)

    def _path(self, name: str) -> str:
        return os.path.normpath(os.path.join(self.folder, name))

    def _name(self, path: str) -> str:
        return os.path.relpath(path, self.folder)


class _CheckedInfo(tarfile.TarInfo):
    """A member that refuses an extended header so large that reading it would fill the memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        member = super().frombuf(buf, encoding, errors)
        if member.type in _EXTENDED and member.size > _MOST_HEADER_BYTES:
            raise ArchiveError(f"an extended header has {member.size} bytes")
        return member


_PAX = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)
_EXTENDED = (*_PAX, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)


def _unpack_tar(archive: str, aside: _Aside) -> None:
    with tarfile.open(archive, "r:*", tarinfo=_CheckedInfo) as tar:
        while (member := tar.next()) is not None:
            aside.add(member, tar.extractfile(member) if member.isfile() else None)
            vars(tar)["members"].clear()  # do not keep a million members in memory
        # the library reads a damaged header as the end of the archive; a real end is zeros, or the end of the file
        assert tar.fileobj is not None
        tar.fileobj.seek(tar.offset)
        block = tar.fileobj.read(tarfile.BLOCKSIZE)
        if block.strip(b"\0") or 0 < len(block) < tarfile.BLOCKSIZE:
            raise tarfile.ReadError(f"damaged at byte {tar.offset}")
        while block := tar.fileobj.read(_CHUNK):  # gzip checks its checksum at the end
            aside.count(len(block))


def _unpack_zip(archive: str, aside: _Aside) -> None:
    with zipfile.ZipFile(archive) as file:
        for info in file.infolist():
            mode = info.external_attr >> 16
            member = _build_member(info.filename, stat.S_IMODE(mode) or 0o666)
            if info.is_dir():
                member.type = tarfile.DIRTYPE
            elif stat.S_ISLNK(mode) and info.file_size > _MOST_LINK_BYTES:
                raise ArchiveError(f"the link {info.filename!r} has {info.file_size} bytes")
            elif stat.S_ISLNK(mode):
                member.type, member.linkname = tarfile.SYMTYPE, os.fsdecode(file.read(info))
            elif stat.S_IFMT(mode) not in {0, stat.S_IFREG}:
                member.type = tarfile.FIFOTYPE  # also for devices: the filter refuses it
            with file.open(info) as reader:
                aside.add(member, reader)


def _build_member(name: str, mode: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.mode, member.mtime = mode, time.time()
    return member


# ---------------------------------------------------------------- into place


def place(aside: str, parent: str, last: str, reserved: frozenset[str] = frozenset()) -> None:
    """Move the unpacked content into the folder `parent`; existing folders are merged, files are replaced. All
    obstacles are found before anything is moved. `last` is moved last: if it exists, all other names do too."""
    if taken := sorted(reserved & set(os.listdir(aside))):
        raise UsageError(f"the archive has {taken[0]!r} at its top, which is a name that the download needs")
    if obstacle := next(_find_obstacles(aside, parent), None):
        hint = "a folder would replace a file, or a file a folder"
        raise UsageError(f"nothing was unpacked: {obstacle} is in the way", hint)
    for name in sorted(os.listdir(aside), key=lambda name: (name == last, name)):
        _move(os.path.join(aside, name), os.path.join(parent, name))
    os.rmdir(aside)


def _find_obstacles(source: str, target: str) -> Iterator[str]:
    for name in sorted(os.listdir(source)):
        new, old = os.path.join(source, name), os.path.join(target, name)
        if not os.path.lexists(old):
            continue
        if _is_folder(new) and os.path.isdir(old):
            yield from _find_obstacles(new, old)
        elif _is_folder(new) or _is_folder(old):
            yield old


def _move(source: str, target: str) -> None:
    if _is_folder(source) and os.path.isdir(target):  # also for a user's link to a folder
        for name in sorted(os.listdir(source)):
            _move(os.path.join(source, name), os.path.join(target, name))
        os.rmdir(source)
    else:
        rename(source, target)


def _is_folder(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)
