"""Archives: what is in them arrives, and nothing of a hostile or damaged one does."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import itertools
import os
import stat
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.compat.perfzero.archive import ArchiveError, ArchiveKind, choose_limit, find_kind, parse_kind, place, unpack
from assay.errors import UsageError

Tree = dict[str, bytes]


def read_tree(folder: Path) -> dict[str, bytes | str]:
    """Files with their bytes, links with `-> target`, empty folders with `/`."""
    found: dict[str, bytes | str] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = f"-> {os.readlink(path)}"
        elif path.is_file():
            found[name] = path.read_bytes()
        elif not any(path.iterdir()):
            found[name] = "/"
    return found


def member(name: str, content: bytes = b"", **more: object) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for key, value in more.items():
        setattr(info, key, value)
    return info, content


def link(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, type=tarfile.SYMTYPE, linkname=target)


def hard_link(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, type=tarfile.LNKTYPE, linkname=target)


def folder(name: str) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, type=tarfile.DIRTYPE, mode=0o755)


def write_tar(path: Path, *members: tuple[tarfile.TarInfo, bytes], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for info, content in members:
            tar.addfile(info, io.BytesIO(content))
    return path


def write_zip(path: Path, tree: Tree) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in tree.items():
            file.writestr(name, content)
    return path


def write_zip_member(path: Path, name: str, mode: int, content: bytes = b"") -> Path:
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as file:
        file.writestr(info, content)
    return path


LINK = stat.S_IFLNK | 0o777


def unpack_to(path: Path, kind: ArchiveKind | None = None) -> Path:
    aside = path.parent / "aside"
    unpack(str(path), kind or parse_kind(path.name) or ArchiveKind.TAR, str(aside), path.name)
    return aside


def test_the_ending_tells_the_kind() -> None:
    names = ["cifar-10-binary.tar.gz", "x.tgz", "x.tar", "x.TAR.BZ2", "x.tar.xz"]
    assert {parse_kind(name) for name in names} == {ArchiveKind.TAR}
    assert (parse_kind("x.zip"), parse_kind("train.csv.gz")) == (ArchiveKind.ZIP, ArchiveKind.GZIP)
    assert {parse_kind(name) for name in ("train.csv", "tar", "gz", "model.gzip.bin")} == {None}


# ---------------------------------------------------------------- good archives


@pytest.mark.parametrize(("ending", "mode"), [("tar", "w"), ("tar.gz", "w:gz"), ("tar.xz", "w:xz")])
def test_a_tar_arrives_whole(tmp_path: Path, ending: str, mode: str) -> None:
    members = (
        folder("data"),
        folder("data/empty"),
        member("data/run.sh", b"#!/bin/sh\n", mode=0o755, mtime=1_500_000_000),
        member("data/deep/er/x.bin", b"x" * 100_000, mode=0o4644),
        link("data/latest", "deep/er/x.bin"),
        hard_link("data/same.sh", "data/run.sh"),
    )
    aside = unpack_to(write_tar(tmp_path / f"a.{ending}", *members, mode=mode))
    assert read_tree(aside) == {
        "data/empty": "/",
        "data/run.sh": b"#!/bin/sh\n",
        "data/same.sh": b"#!/bin/sh\n",
        "data/deep/er/x.bin": b"x" * 100_000,
        "data/latest": "-> deep/er/x.bin",
    }
    status = (aside / "data/run.sh").stat()
    assert status.st_mode & 0o111
    assert status.st_mtime == 1_500_000_000
    assert not (aside / "data/deep/er/x.bin").stat().st_mode & (stat.S_ISUID | 0o111)


def test_a_zip_arrives_whole(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.zip", {"data/x.txt": b"hello", "empty/": b"", "/y": b""})
    write_zip_member(path, "data/link", LINK, b"x.txt")
    assert read_tree(unpack_to(path)) == {"data/x.txt": b"hello", "data/link": "-> x.txt", "empty": "/", "y": b""}


def test_what_is_inside_counts_more_than_the_name(tmp_path: Path) -> None:
    """A plain gzip loses its ending; a tar may only be called .gz, or be compressed in another way than its name says."""
    for name, members in {"train.csv.gz": None, "data.gz": "w:gz", "a.tar.gz": "w:xz"}.items():
        path = tmp_path / name / name
        path.parent.mkdir()
        if members is None:
            path.write_bytes(gzip.compress(b"1"))
        else:
            write_tar(path, member("data/x", b"1"), mode=members)
        assert read_tree(unpack_to(path)) == ({"train.csv": b"1"} if members is None else {"data/x": b"1"})


ODD = {
    "a later member takes the place of an earlier one": (
        [member("x", b"old"), link("y", "x"), member("x", b"new"), member("y", b"file")],
        {"x": b"new", "y": b"file"},
    ),
    "a hard link to a link is that link": (
        [member("x", b"1"), link("y", "x"), hard_link("z", "y"), hard_link("y", "y")],
        {"x": b"1", "y": "-> x", "z": "-> x"},
    ),
    "a link inside is let through": (
        [link("a/up", "../b/./c"), link("later", "not/here"), member("b/c", b"1")],
        {"a/up": "-> ../b/c", "later": "-> not/here", "b/c": b"1"},
    ),
    "an absolute name lands inside": ([member("/etc/x", b"1")], {"etc/x": b"1"}),
}


@pytest.mark.parametrize("case", ODD)
def test_an_odd_tar_arrives(tmp_path: Path, case: str) -> None:
    members, tree = ODD[case]
    assert read_tree(unpack_to(write_tar(tmp_path / "a.tar", *members))) == tree


names = st.text(st.characters(blacklist_characters="/\0", blacklist_categories=("Cs",)), min_size=1, max_size=8).filter(
    lambda name: name not in {".", ".."}
)
trees = st.dictionaries(
    st.lists(names, min_size=1, max_size=3).map("/".join), st.binary(max_size=200), max_size=6
).filter(lambda tree: not any(other.startswith(name + "/") for name in tree for other in tree))


@given(tree=trees, kind=st.sampled_from([ArchiveKind.TAR, ArchiveKind.ZIP]))
def test_whatever_was_packed_comes_out(tree: Tree, kind: ArchiveKind) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "archive"
        if kind is ArchiveKind.ZIP:
            write_zip(path, tree)
        else:
            write_tar(path, *(member(key, value) for key, value in tree.items()), mode="w:gz")
        assert read_tree(unpack_to(path, kind)) == tree


# ---------------------------------------------------------------- hostile ones

HOSTILE = {
    "a name that climbs": ([member("fine", b"1"), member("../evil", b"x")], "outside"),
    "one that climbs and comes back": ([member("a/../../other/x", b"x")], "outside"),
    "an absolute name that climbs": ([member("/../../evil", b"x")], "outside"),
    "a link to an absolute place": ([link("x", "/etc/passwd")], "absolute"),
    "a link that climbs out": ([folder("a"), link("a/x", "../../secret")], "outside"),
    "a link that climbs out and comes back": ([link("x", "../aside/y"), member("y", b"1")], "leaves"),
    "a file behind a link": ([link("x", "a"), folder("a"), member("x/evil", b"x")], "at once"),
    "a link behind a link": ([folder("a"), link("x", "a"), link("x/y", "b")], "a link and a folder at once"),
    "a hard link to a link that leaves from there": (
        [folder("a"), link("a/x", "../y"), hard_link("z", "a/x")],
        "leaves",
    ),
    "links in a circle": ([link("a", "b"), link("b", "a")], "symbolic links"),
    "more links than the system follows": ([link(f"l{n}", f"l{n + 1}") for n in range(50)], "symbolic links"),
    "a hard link outside": ([hard_link("x", "../../etc/passwd")], "outside"),
    "a hard link to an absolute place": ([hard_link("x", "/etc/passwd")], "absolute"),
    "a hard link to nothing": ([hard_link("x", "y"), member("y", b"1")], "does not come before"),
    "a device": ([member("null", type=tarfile.CHRTYPE, devmajor=1, devminor=3)], "special file"),
    "a pipe": ([member("pipe", type=tarfile.FIFOTYPE)], "special file"),
    "a file where a folder has to be": ([member("x", b"1"), member("x/y", b"2")], "a file and a folder at once"),
    "a file under an absolute one": ([member("/x", b"1"), member("/x/y", b"2")], "'x/y' is a file and a folder"),
    "a folder of a file's name": ([member("x", b"1"), folder("x")], "a file and a folder at once"),
    "a folder where a file is": ([folder("x/y"), member("x", b"1")], "a file and a folder at once"),
    "a file without a name": ([member("./", b"1")], "a file and a folder at once"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_nothing_of_a_hostile_tar_is_kept(tmp_path: Path, case: str) -> None:
    members, words = HOSTILE[case]
    (tmp_path / "work").mkdir()
    path = write_tar(tmp_path / "work" / "a.tar", member("before", b"1"), *members)
    with pytest.raises(ArchiveError, match=r"a\.tar was not unpacked: .*" + words) as caught:
        unpack_to(path)
    assert caught.value.exit_code == 2
    assert [entry.name for entry in tmp_path.rglob("*")] == ["work", "a.tar"]


def filter_by_the_library(name: str, mode: int) -> dict[str, int]:
    """The path and mode that the library's filter would give a plain file; empty if it is refused."""
    try:
        found = tarfile.data_filter(member(name, mode=mode)[0], "/aside")
    except tarfile.FilterError:
        return {}
    path = os.path.normpath(os.path.join("/aside", found.name))
    return {} if path == "/aside" or found.mode is None else {os.path.relpath(path, "/aside"): found.mode}


def test_a_plain_file_gets_the_path_and_mode_that_the_library_s_filter_would_give_it(tmp_path: Path) -> None:
    """Its filter looks for links in each part of a path, which takes long; ours must refuse and change the same."""
    names = ["/".join(parts) for parts in itertools.product(["..", ".", "a", ""], repeat=3)]
    files = [*((name, 0o644) for name in names), *(("x", mode) for mode in range(0, 0o10000, 0o111))]
    umask = os.umask(0)
    try:
        for number, (name, mode) in enumerate(files):
            folder = tmp_path / f"{number}" / "deep"
            folder.mkdir(parents=True)
            path = write_tar(folder / "a.tar", member(name, mode=mode))
            with contextlib.suppress(ArchiveError):
                unpack_to(path)
            path.unlink()
            modes = {
                os.path.relpath(each, folder / "aside"): each.stat().st_mode & 0o7777
                for each in folder.parent.rglob("*")
                if each.is_file()
            }
            assert modes == filter_by_the_library(name, mode), (name, oct(mode))
    finally:
        os.umask(umask)


@pytest.mark.parametrize(
    ("name", "mode", "content", "words"),
    [
        ("/../evil", 0, b"x", "outside"),
        ("a/../../evil", 0, b"x", "outside"),
        ("x", LINK, b"../secret", "outside the destination"),
        ("x", LINK, bytes(10_000), "the link 'x' has 10000 bytes"),
        ("x", stat.S_IFIFO | 0o600, b"", "special file"),
    ],
)
def test_nothing_of_a_hostile_zip_is_kept(tmp_path: Path, name: str, mode: int, content: bytes, words: str) -> None:
    (tmp_path / "work").mkdir()
    path = write_zip(tmp_path / "work" / "a.zip", {"before": b"1"})
    with pytest.raises(ArchiveError, match=rf"a\.zip was not unpacked: .*{words}"):
        unpack_to(write_zip_member(path, name, mode, content))
    assert [entry.name for entry in tmp_path.rglob("*")] == ["work", "a.zip"]


@pytest.mark.parametrize(
    "header", [{"path": "a\0b"}, {"mtime": "1e300"}, {"mtime": "nan"}, {"linkpath": "a\0b"}], ids=str
)
def test_what_no_file_can_have_is_refused(tmp_path: Path, header: dict[str, str]) -> None:
    kind = {"type": tarfile.SYMTYPE} if "linkpath" in header else {}
    path = write_tar(tmp_path / "a.tar", member("x", **kind, pax_headers=header))
    with pytest.raises(ArchiveError, match=r"a\.tar cannot be unpacked"):
        unpack_to(path)
    assert not (tmp_path / "aside").exists()


steps = st.sampled_from(["a", "b", "c", "..", ".", "a/b", "../..", "../a", "a/..", "../aside"])
link_lists = st.lists(
    st.tuples(
        st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=3).map("/".join),
        st.lists(steps, min_size=1, max_size=4).map("/".join),
    ),
    min_size=1,
    max_size=5,
)


@given(links=link_lists, behind=st.sampled_from(["a/f", "b/f", "a/b/f"]))
def test_no_link_leaves_whatever_the_others_are(links: list[tuple[str, str]], behind: str) -> None:
    """In any order, and where the archive lies in the end: every one that was not refused ends inside."""
    with tempfile.TemporaryDirectory() as name:
        work = Path(name).resolve() / "1" / "2" / "3"
        (work / "data").mkdir(parents=True)
        path = write_tar(work / "x.tar", *(link(*each) for each in links), member(behind, b"1"))
        try:
            aside = unpack_to(path)
        except ArchiveError:
            return
        place(str(aside), str(work / "data"), "a")
        for found in (work / "data").rglob("*"):
            assert found.resolve().is_relative_to(work / "data"), os.readlink(found)


def write_long_chain(path: Path) -> Path:
    """CVE-2025-4517: the real path of l0/l1/…/l15 is longer than PATH_MAX, and Python's realpath stops resolving there."""
    members, at, names = [], "", "abcdefghijklmnop"
    for letter in names:
        members += [folder(f"{at}{'d' * 247}"), link(f"{at}{letter}", "d" * 247)]
        at += "d" * 247 + "/"
    chain = "/".join(names)
    members.append(link(f"{chain}/{'l' * 254}", "../" * len(names)))
    members.append(link("escape", f"{chain}/{'l' * 254}/../../evil"))
    # Python 3.11.7's filter alone writes `evil` beside `aside`
    return write_tar(path, *members, member("escape", b"x"))


def test_a_chain_of_links_that_is_too_long_to_follow_does_not_lead_outside(tmp_path: Path) -> None:
    work = tmp_path / "1" / "2" / "3"
    work.mkdir(parents=True)
    path = write_long_chain(work / "a.tar")
    with pytest.raises(ArchiveError, match="at once"):
        unpack_to(path)
    assert [entry.name for entry in tmp_path.rglob("*")] == ["1", "2", "3", "a.tar"]


@pytest.mark.parametrize("first", [0, 1])
def test_links_that_would_leave_only_together_stay_inside(tmp_path: Path, first: int) -> None:
    pair = [link("d/e/f/up", "../../.."), link("out", "d/e/f/up/../..")]
    aside = unpack_to(write_tar(tmp_path / "a.tar", pair[first], pair[1 - first]))
    assert (aside / "d/e/f/up").resolve() == aside
    assert (aside / "out").resolve() == aside / "d" / "e"


# ---------------------------------------------------------------- damaged ones


def flip_in_the_middle(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes(byte ^ 0xFF for byte in content[middle : middle + 64]) + content[middle + 64 :]


HARMS: dict[str, Callable[[bytes], bytes]] = {
    "another page": lambda _: b"<html><body>Please log in</body></html>" * 30,
    "cut in half": lambda content: content[: len(content) // 2],
    "without its beginning": lambda content: content[100:],
    "flipped": flip_in_the_middle,
    "empty": lambda _: b"",
}


def build_samples(folder: Path) -> Iterator[Path]:
    noise = os.urandom(20_000)
    for ending, mode in [("tar.gz", "w:gz"), ("tar.bz2", "w:bz2"), ("tar.xz", "w:xz")]:
        yield write_tar(folder / f"a.{ending}", member("x", noise), member("y", noise), mode=mode)
    yield write_zip(folder / "a.zip", {"x": noise, "y": noise})
    (folder / "a.csv.gz").write_bytes(gzip.compress(noise))
    yield folder / "a.csv.gz"


def test_a_damaged_archive_is_named_and_nothing_is_kept(tmp_path: Path) -> None:
    for path in build_samples(tmp_path):
        content = path.read_bytes()
        for harm in HARMS.values():
            path.write_bytes(harm(content))
            with pytest.raises(ArchiveError, match=path.name):
                unpack_to(path)
            assert not (tmp_path / "aside").exists()


def test_a_tar_that_is_damaged_or_cut_inside_a_header_is_not_taken_for_a_short_one(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", member("x", b"1"), member("y", b"2"), member("z", b"3"))
    content = path.read_bytes()
    flipped = bytearray(content)
    flipped[1024 + 20] ^= 0xFF  # inside the header of y
    for damaged in (flipped, content[: 1024 + 100]):
        path.write_bytes(damaged)
        with pytest.raises(ArchiveError, match="damaged at byte 1024"):
            unpack_to(path)


def test_bz2_that_is_damaged_says_so_without_a_number(tmp_path: Path) -> None:
    """The library raises a bare OSError, which must not pass for a full disk."""
    path = tmp_path / "a.tar.bz2"
    write_tar(tmp_path / "b.tar", member("x", os.urandom(300_000)))
    content = bytearray(bz2.compress((tmp_path / "b.tar").read_bytes(), 1))
    content[250_000] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(ArchiveError, match="not a readable tar archive"):
        unpack_to(path)


def test_an_encrypted_zip_says_so(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.zip", {"x": b"secret"})
    content = bytearray(path.read_bytes())
    content[6] |= 1  # the flag in the local header and in the directory
    content[content.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(content)
    with pytest.raises(ArchiveError, match="encrypted"):
        unpack_to(path)


def test_a_full_disk_is_not_a_damaged_archive(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", member("n" * 250 + "x" * 250, b"1"))
    with pytest.raises(OSError, match="too long"):
        unpack_to(path)
    assert not (tmp_path / "aside").exists()


# ---------------------------------------------------------------- into place


def fill(folder: Path, tree: Tree) -> Path:
    for name, content in tree.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def test_folders_are_filled_up_and_files_replaced(tmp_path: Path) -> None:
    aside = fill(tmp_path / "aside", {"data/b": b"new", "data/c/d": b"1", "top": b"2"})
    parent = fill(tmp_path / "parent", {"data/a": b"kept", "data/b": b"old"})
    with pytest.raises(UsageError, match="'top' at its top, which is a name that the download needs"):
        place(str(aside), str(parent), "data", frozenset({"top"}))
    assert read_tree(parent) == {"data/a": b"kept", "data/b": b"old"}
    place(str(aside), str(parent), "data")
    assert read_tree(parent) == {"data/a": b"kept", "data/b": b"new", "data/c/d": b"1", "top": b"2"}
    assert not aside.exists()


def test_what_says_that_all_is_there_comes_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[str] = []
    real = os.rename

    def rename(source: str, target: str) -> None:
        moved.append(os.path.basename(target))
        real(source, target)

    monkeypatch.setattr(os, "rename", rename)
    aside = fill(tmp_path / "aside", {"b": b"", "a": b"", "c": b""})
    (tmp_path / "parent").mkdir()
    place(str(aside), str(tmp_path / "parent"), "a")
    assert moved == ["b", "c", "a"]


@pytest.mark.parametrize(
    ("new", "old"), [({"x/y": b""}, {"x": b""}), ({"x": b""}, {"x/y": b""}), ({"a/b/c": b"", "z": b""}, {"a/b": b""})]
)
def test_an_obstacle_is_seen_before_anything_moves(tmp_path: Path, new: Tree, old: Tree) -> None:
    aside, parent = fill(tmp_path / "aside", {"0": b"first", **new}), fill(tmp_path / "parent", old)
    with pytest.raises(UsageError, match="is in the way"):
        place(str(aside), str(parent), "x")
    assert read_tree(parent) == old


def test_a_folder_that_the_user_linked_in_is_filled_where_it_lies(tmp_path: Path) -> None:
    big = fill(tmp_path / "big", {"old": b"1"})
    parent = tmp_path / "parent"
    parent.mkdir()
    (parent / "data").symlink_to(big)
    place(str(fill(tmp_path / "aside", {"data/new": b"2"})), str(parent), "data")
    assert read_tree(big) == {"old": b"1", "new": b"2"}
    assert (parent / "data").is_symlink()


# ---------------------------------------------------------------- bombs


@pytest.mark.parametrize("kind", list(ArchiveKind))
def test_an_archive_that_becomes_too_large_is_refused_and_nothing_is_kept(
    tmp_path: Path, kind: ArchiveKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, content = tmp_path / "bomb", b"0" * 3_000_000
    if kind is ArchiveKind.ZIP:
        write_zip(path, {"zeros": content})
    elif kind is ArchiveKind.GZIP:
        path.write_bytes(gzip.compress(content, 1))
    else:
        write_tar(path, member("small"), member("zeros", content), mode="w:xz")
    monkeypatch.setenv("ASSAY_UNPACK_LIMIT", "2000000")
    with pytest.raises(ArchiveError, match=r"more than 2000000 bytes would come out of it; ASSAY_UNPACK_LIMIT=none"):
        unpack_to(path, kind)
    assert not (tmp_path / "aside").exists()
    monkeypatch.setenv("ASSAY_UNPACK_LIMIT", "none")
    assert sum(file.stat().st_size for file in unpack_to(path, kind).iterdir()) == 3_000_000


def test_the_limit_counts_members_without_content_and_grows_with_the_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_zip(tmp_path / "many.zip", {str(number): b"" for number in range(200)})
    monkeypatch.setenv("ASSAY_UNPACK_LIMIT", "100000")
    with pytest.raises(ArchiveError, match="more than 100000 bytes"):
        unpack_to(tmp_path / "many.zip")
    assert choose_limit(1000, {}) == 2 << 30
    assert choose_limit(10**9, {}) == 200 * 10**9
    with pytest.raises(UsageError, match="is not a number of bytes"):
        choose_limit(1, {"ASSAY_UNPACK_LIMIT": "lots"})


@pytest.mark.parametrize("kind", [ArchiveKind.TAR, ArchiveKind.GZIP])
def test_an_extended_header_that_would_fill_the_memory_is_refused(tmp_path: Path, kind: ArchiveKind) -> None:
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, 1 << 40
    path = tmp_path / "a.tar.gz"
    path.write_bytes(gzip.compress(info.tobuf(tarfile.GNU_FORMAT)))
    assert find_kind(str(path)) is ArchiveKind.TAR
    with pytest.raises(ArchiveError, match="an extended header has"):
        unpack(str(path), kind, str(tmp_path / "aside"), "a.tar.gz")
