"""Unpack archives that come from elsewhere: aside first, then into place, and nothing of one that would write outside.

Names and links are checked here and not by tarfile's filters: those of Python before 3.11.13 and 3.12.11 can be made to
write outside (CVE-2025-4517), and zip archives have none. Links are resolved on paper, against the archive's own links,
and made last, so no file is ever written through one.
"""

from __future__ import annotations

import gzip
import lzma
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from typing import Protocol, Self

from assay.errors import UsageError
from assay.system.files import rename


class _Readable(Protocol):
    def read(self, size: int = ..., /) -> bytes: ...


_CHUNK = 1 << 20
ENV_LIMIT = "ASSAY_UNPACK_LIMIT"
_FREE_BYTES = 2 << 30  # so much any archive may become; beyond that
_MOST_TIMES = 200  # so many times its own size: text packs to a twentieth, a bomb to a thousandth
_MEMBER_BYTES = 1024  # a member without content costs something, too
_MOST_LINK_BYTES = 4096
_MOST_HEADER_BYTES = 1 << 20  # of an extended header: the library holds it in memory
_MOST_HOPS = 40  # what the kernel follows, too
_BLOCK = tarfile.BLOCKSIZE
_DAMAGE = (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError)

Parts = tuple[str, ...]


class Archive(Enum):
    TAR = "tar archive"
    ZIP = "zip archive"
    GZIP = "gzip file"


_ENDINGS = {
    (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz"): Archive.TAR,
    (".zip",): Archive.ZIP,
    (".gz",): Archive.GZIP,
}


class ArchiveError(UsageError):
    """Damaged, not what its name says, or with members that would land elsewhere."""


class _LeavesError(Exception):
    """A path that ends outside."""


def parse_kind(name: str) -> Archive | None:
    """By the ending, as the user sees it."""
    lower = name.lower()
    return next((kind for endings, kind in _ENDINGS.items() if lower.endswith(endings)), None)


def find_kind(path: str) -> Archive | None:
    """By the content. A tar archive alone: what is a zip inside is often something else, such as saved weights."""
    try:
        with tarfile.open(path, tarinfo=_CheckedInfo) as tar:
            return Archive.TAR if tar.next() is not None else None  # zeros pass for an archive of nothing
    except ArchiveError:
        return Archive.TAR  # one that will be refused
    except _DAMAGE:
        return None


def _is_tar(path: str) -> bool:
    try:
        with tarfile.open(path, tarinfo=_CheckedInfo):
            return True
    except ArchiveError:
        return True
    except _DAMAGE:
        return False


# ---------------------------------------------------------------- names


def parse_member(name: str) -> Parts:
    """A relative name as its parts; one that is absolute or climbs is refused, wherever it would end."""
    if name.startswith("/"):
        raise ArchiveError(f"{name!r} is an absolute name")
    if "\0" in name:
        raise ArchiveError(f"{name!r} has a zero byte in its name")
    parts = tuple(part for part in name.split("/") if part not in {"", "."})
    if ".." in parts:
        raise ArchiveError(f"{name!r} climbs out with '..'")
    return parts


def resolve_link(at: Parts, links: Mapping[Parts, str]) -> Parts:
    """Where the link at this place ends, followed through all other links. Raises for one that leaves."""
    place: list[str] = []
    ahead = list(reversed(at))
    hops = 0
    while ahead:
        part = ahead.pop()
        if part == "..":
            if not place:
                raise _LeavesError
            place.pop()
        elif part not in {"", "."}:
            place.append(part)
            if (target := links.get(tuple(place))) is not None:
                hops += 1
                if target.startswith("/") or hops > _MOST_HOPS:
                    raise _LeavesError
                place.pop()
                ahead.extend(reversed(target.split("/")))
    return tuple(place)


# ---------------------------------------------------------------- unpacking aside


def unpack(archive: str, kind: Archive, aside: str, name: str) -> None:
    """Everything into the new folder `aside`, which is gone again when anything is wrong.

    `name` is what the archive is called: the file inside a plain gzip takes its name from it.
    """
    os.mkdir(aside)
    try:
        with _damage_named(name, kind):
            _check_filled(archive)
            folder = _Aside(aside, choose_limit(os.path.getsize(archive), os.environ))
            if kind is Archive.ZIP:
                _unpack_zip(archive, folder)
            elif kind is Archive.TAR or _is_tar(archive):
                _unpack_tar(archive, folder)
            else:
                _unpack_gzip(archive, folder, name)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def choose_limit(size: int, env: Mapping[str, str]) -> int | None:
    """How many bytes may come out of an archive of this size; None: no limit. ASSAY_UNPACK_LIMIT: a number, or none."""
    text = env.get(ENV_LIMIT, "").strip().lower()
    if not text:
        return max(_FREE_BYTES, _MOST_TIMES * size)
    if text == "none":
        return None
    if not text.isdecimal():
        raise UsageError(f"{ENV_LIMIT}={text} is not a number of bytes", "for example 500000000000, or none")
    return int(text)


def _check_filled(archive: str) -> None:
    """An empty file would pass for the gzip file of one."""
    if os.path.getsize(archive) == 0:
        raise EOFError("it is empty")


@contextmanager
def _damage_named(name: str, kind: Archive) -> Iterator[None]:
    try:
        yield
    except ArchiveError as error:
        raise ArchiveError(f"{name} was not unpacked: {error.message}", "nothing of it was kept") from None
    except _DAMAGE as error:
        raise ArchiveError(f"{name} is not a readable {kind.value}: {error or type(error).__name__}") from error
    except RuntimeError as error:  # zipfile: encrypted, or an unknown compression
        raise ArchiveError(f"{name} cannot be unpacked: {error}") from error
    except OSError as error:
        if error.errno is not None:
            raise  # of the disk
        raise ArchiveError(f"{name} is not a readable {kind.value}: {error}") from error  # from bz2


class _Aside:
    """The folder that is being filled. Links come last: until then, no file can be written through one."""

    def __init__(self, folder: str, limit: int | None = None) -> None:
        self.folder = folder
        self.links: dict[Parts, str] = {}
        self._limit = limit
        self._left = limit

    def add_folder(self, name: str) -> None:
        self._count(_MEMBER_BYTES)
        self._make_folder(parse_member(name))

    def _count(self, size: int) -> None:
        if self._left is None:
            return
        self._left -= size
        if self._left < 0:
            raise ArchiveError(f"more than {self._limit} bytes would come out of it; {ENV_LIMIT}=none lifts this limit")

    def add_file(self, name: str, reader: _Readable, mode: int, mtime_s: float | None) -> None:
        path = self._claim(name)
        # the umask is applied as everywhere; set-user-id bits never arrive, and we can always read and write
        writer = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, (mode & 0o777) | 0o600)
        with open(writer, "wb") as file:
            while block := reader.read(_CHUNK):
                self._count(len(block))
                file.write(block)
        if mtime_s is not None:
            os.utime(path, (mtime_s, mtime_s))

    def add_link(self, name: str, target: str) -> None:
        self._claim(name)
        self.links[parse_member(name)] = target

    def add_hard_link(self, name: str, target: str) -> None:
        source = parse_member(target)
        if source in self.links:
            self.add_link(name, self.links[source])
        elif not os.path.isfile(self._path(source)):
            raise ArchiveError(f"{name!r} links to {target!r}, which does not come before it")
        elif source != parse_member(name):
            os.link(self._path(source), self._claim(name))

    def finish(self) -> None:
        for parts in self.links:
            self._check_link(parts)
        for parts, target in self.links.items():
            os.symlink(target, self._path(parts))

    def _check_link(self, parts: Parts) -> None:
        name = "/".join(parts)
        try:
            resolve_link(parts, self.links)
        except _LeavesError:
            raise ArchiveError(f"the link {name!r} -> {self.links[parts]!r} leaves the folder") from None
        if os.path.lexists(self._path(parts)):
            raise ArchiveError(f"{name!r} is a link and a folder at once")

    def _claim(self, name: str) -> str:
        """The path of a member that is not a folder; a later one of the same name replaces it, as with tar."""
        self._count(_MEMBER_BYTES)
        parts = parse_member(name)
        if not parts:
            raise ArchiveError(f"{name!r} does not name a file")
        path = self._path(parts)
        self.links.pop(parts, None)
        self._make_folder(parts[:-1])
        if os.path.isdir(path):
            raise ArchiveError(f"{name!r} is a file and a folder at once")
        if os.path.lexists(path):
            os.unlink(path)
        return path

    def _make_folder(self, parts: Parts) -> None:
        try:
            os.makedirs(self._path(parts), exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise ArchiveError(f"{'/'.join(parts)!r} is a file and a folder at once") from None

    def _path(self, parts: Parts) -> str:
        return os.path.join(self.folder, *parts)


class _CheckedInfo(tarfile.TarInfo):
    """Refuses an extended header that would fill the memory before its member is known."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        member = super().frombuf(buf, encoding, errors)
        if member.type in _EXTENDED and member.size > _MOST_HEADER_BYTES:
            raise ArchiveError(f"an extended header has {member.size} bytes")
        return member


_EXTENDED = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)


def _unpack_tar(archive: str, aside: _Aside) -> None:
    with tarfile.open(archive, "r:*", tarinfo=_CheckedInfo) as tar:
        while (member := tar.next()) is not None:
            _add_tar_member(tar, member, aside)
            vars(tar)["members"].clear()  # a million members need not stay in memory
        _check_end(tar)
    aside.finish()


def _add_tar_member(tar: tarfile.TarFile, member: tarfile.TarInfo, aside: _Aside) -> None:
    if member.isdir():
        aside.add_folder(member.name)
    elif member.issym():
        aside.add_link(member.name, member.linkname)
    elif member.islnk():
        aside.add_hard_link(member.name, member.linkname)
    elif member.isfile():
        reader = tar.extractfile(member)
        assert reader is not None  # it is for files
        with reader:
            aside.add_file(member.name, reader, member.mode, member.mtime)
    else:
        raise ArchiveError(f"{member.name!r} is a device or a pipe")


def _check_end(tar: tarfile.TarFile) -> None:
    """The library takes a damaged header in the middle for the end of the archive; the end is zeros, or the file's."""
    assert tar.fileobj is not None
    tar.fileobj.seek(tar.offset)
    block = tar.fileobj.read(_BLOCK)
    if block.strip(b"\0") or 0 < len(block) < _BLOCK:
        raise tarfile.ReadError(f"damaged at byte {tar.offset}")


def _unpack_zip(archive: str, aside: _Aside) -> None:
    with zipfile.ZipFile(archive) as file:
        for member in file.infolist():
            mode = member.external_attr >> 16
            if member.is_dir():
                aside.add_folder(member.filename)
            elif stat.S_ISLNK(mode) and member.file_size > _MOST_LINK_BYTES:
                raise ArchiveError(f"the link {member.filename!r} has {member.file_size} bytes")
            elif stat.S_ISLNK(mode):
                aside.add_link(member.filename, os.fsdecode(file.read(member)))
            elif stat.S_IFMT(mode) not in {0, stat.S_IFREG}:
                raise ArchiveError(f"{member.filename!r} is a device or a pipe")
            else:
                with file.open(member) as reader:
                    aside.add_file(member.filename, reader, stat.S_IMODE(mode) or 0o666, None)
    aside.finish()


def _unpack_gzip(archive: str, aside: _Aside, name: str) -> None:
    inner = name[:-3] if name.lower().endswith(".gz") else name
    with gzip.open(archive) as reader:
        aside.add_file(inner, reader, 0o666, None)


# ---------------------------------------------------------------- into place


def place(aside: str, parent: str, last: str, reserved: frozenset[str] = frozenset()) -> None:
    """Move what was unpacked into the parent; folders that are there already are filled up, files replaced.

    All obstacles are found before anything moves. `last` is the name whose presence means that all others are there.
    """
    if taken := sorted(reserved & set(os.listdir(aside))):
        raise UsageError(f"the archive has {taken[0]!r} at its top, which is a name that the download needs")
    if obstacle := next(_find_obstacles(aside, parent), None):
        raise UsageError(
            f"nothing was unpacked: {obstacle} is in the way", "a folder would replace a file, or a file a folder"
        )
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
    if _is_folder(source) and os.path.isdir(target):  # a folder that the user has linked in is filled where it is
        for name in sorted(os.listdir(source)):
            _move(os.path.join(source, name), os.path.join(target, name))
        os.rmdir(source)
    else:
        rename(source, target)


def _is_folder(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)
