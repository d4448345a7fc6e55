from __future__ import annotations

import json
import os
import socket
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.code import snapshot as snapshots
from assay.code.snapshot import list_changes, load_snapshot, place_code, take_snapshot
from assay.code.tree import Limits
from assay.errors import FormatError, InfrastructureError, UsageError


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "project"
    write(folder, {"train.py": "print(1)\n", "lib/model.py": "x = 1\n", "lib/data.txt": "d"})
    return folder


@pytest.fixture
def store(tmp_path):
    return tmp_path / "store"


def write(folder, files):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def hash_code(source, ignore=(), **options):
    """The hash of a snapshot that is taken without a store that has seen the files."""
    with tempfile.TemporaryDirectory() as store:
        return take_snapshot(source, Path(store), ignore, **options).hash


def listing(folder):
    """Every path below with its content, link target or `dir`."""
    found = {}
    for base, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            path = os.path.join(base, name)
            key = os.path.relpath(path, folder)
            if os.path.islink(path):
                found[key] = f"-> {os.readlink(path)}"
            elif os.path.isdir(path):
                found[key] = "dir"
            else:
                found[key] = Path(path).read_bytes().decode("utf-8", "surrogateescape")
    return found


def later():
    """A clock for which the files were written long ago, so that they may be remembered."""
    return time.time_ns() + 60 * 10**9


@contextmanager
def powerless():
    """Root may read everything: become another user for a while."""
    root = os.geteuid() == 0
    if root:
        os.setegid(65534)
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
            os.setegid(0)


def test_a_missing_source_and_a_store_that_cannot_be_written_are_said(source, tmp_path, store):
    (tmp_path / "file").write_text("")
    for name in ("nowhere", "file"):
        with pytest.raises(UsageError, match="does not exist"):
            take_snapshot(tmp_path / name, store)
    with pytest.raises(InfrastructureError, match="Not a directory"):
        take_snapshot(source, tmp_path / "file" / "store")


@pytest.fixture
def public():
    """A folder that every user can reach: pytest's own are closed to others."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


def test_unreadable_files_are_named(public):
    write(public, {"ok.py": "", "secret.py": "", "locked/x.py": ""})
    hash_code(public)  # imports what a user without rights may not be able to read
    (public / "secret.py").chmod(0)
    (public / "locked").chmod(0)
    with powerless():
        if not os.access(public, os.R_OK, effective_ids=True):
            pytest.skip("the folder for temporary files is closed to others")
        with pytest.raises(UsageError, match="'locked' cannot be read") as caught:
            hash_code(public)
        assert "ignore patterns" in caught.value.render()
        with pytest.raises(UsageError, match=r"'secret\.py' cannot be read"):
            hash_code(public, ["locked"])
        assert hash_code(public, ["locked", "secret.py"])
    (public / "locked").chmod(0o755)


def test_a_target_that_exists_is_refused(source, store, tmp_path):
    snapshot = take_snapshot(source, store)
    (tmp_path / "run").mkdir()
    with pytest.raises(InfrastructureError, match="File exists"):
        place_code(snapshot, tmp_path / "run")


def test_damaged_and_missing_snapshots_are_said(source, store):
    snapshot = take_snapshot(source, store)
    with pytest.raises(UsageError, match="no copy of the code"):
        load_snapshot(store, "0" * 32)
    manifest = store / snapshot.hash / "manifest.json"
    manifest.write_text('{"format": 99}')
    with pytest.raises(FormatError, match="another version"):
        load_snapshot(store, snapshot.hash)
    manifest.write_text("{")
    with pytest.raises(FormatError, match="damaged"):
        load_snapshot(store, snapshot.hash)


def test_files_of_two_snapshots_that_cannot_be_compared_have_changed(source, store):
    first = take_snapshot(source, store)
    write(source, {"train.py": "print(2)\n", "new.py": ""})
    second = take_snapshot(source, store)
    for each in (first, second):
        manifest = store / each.hash / "manifest.json"
        fields = json.loads(manifest.read_text())
        manifest.write_text(json.dumps({**fields, "files": [*fields["files"], ["no\0name", 0o644, 0]]}))
    os.unlink(f"{second.path}/lib/data.txt")
    changes = list_changes(store, first.hash, second.hash)
    assert [each.name for each in changes] == ["lib/data.txt", "new.py", "no\0name", "train.py"]
    assert [each.name for each in changes if each.is_new] == ["new.py"]


def test_a_run_gets_the_code(source, store, tmp_path):
    (source / "empty").mkdir()
    write(store, {".tmp-dead/tree/train.py": "left by a process that died"})
    snapshot = take_snapshot(source, store)
    place_code(snapshot, tmp_path / "run")
    assert listing(tmp_path / "run") == listing(source)
    assert (snapshot.files, snapshot.bytes, snapshot.linked) == (3, 16, ())
    assert snapshot.path == str(store / snapshot.hash / "tree")


def test_x_bit_and_times_are_kept(source, store, tmp_path):
    (source / "train.py").chmod(0o755)
    (source / "lib/model.py").chmod(0o400)
    os.utime(source / "train.py", ns=(10**18, 10**18 + 123))
    place_code(take_snapshot(source, store), tmp_path / "run")
    placed = (tmp_path / "run/train.py").stat()
    assert placed.st_mode & 0o100
    assert placed.st_mtime_ns == 10**18 + 123
    assert not (tmp_path / "run/lib/model.py").stat().st_mode & 0o111
    assert (tmp_path / "run/lib/model.py").stat().st_mode & 0o200  # a private copy may be edited


@pytest.mark.parametrize("size", [10, 100_000, 5_000_000])
def test_one_runs_edits_reach_nobody_else(source, store, tmp_path, size):
    (source / "blob").write_bytes(b"a" * size)
    snapshot = take_snapshot(source, store)
    for name in ("one", "two"):
        place_code(snapshot, tmp_path / name)
    with open(tmp_path / "one/blob", "r+b") as stream:
        stream.write(b"changed")
    for folder in (tmp_path / "one", source):
        (folder / "train.py").write_text("edited")
    assert (tmp_path / "two/blob").read_bytes() == b"a" * size
    assert (source / "blob").read_bytes() == b"a" * size
    place_code(snapshot, tmp_path / "three")
    assert (tmp_path / "three/train.py").read_text() == "print(1)\n"
    assert (tmp_path / "three/blob").read_bytes() == b"a" * size


def test_the_same_code_is_kept_once(source, store):
    first = take_snapshot(source, store)
    assert take_snapshot(source, store) == first
    (source / "train.py").write_text("print(2)\n")
    second = take_snapshot(source, store)
    assert second.hash != first.hash
    kept = {name for name in os.listdir(store) if os.path.isdir(store / name)}
    assert kept == {first.hash, second.hash}


@pytest.mark.parametrize("name", ["manifest.json", "tree/train.py"])
def test_a_snapshot_of_which_a_power_cut_took_something_is_taken_again(source, store, name):
    write(source, {"train.py": "print(1)"})
    taken = take_snapshot(source, store)
    whole = listing(store)
    for spoil in (Path.unlink, lambda path: path.write_text("")):
        spoil(store / taken.hash / name)
        assert take_snapshot(source, store).hash == taken.hash
        assert listing(store) == whole


def test_concurrent_takers_agree(source, store):
    write(source, {f"m{i}.py": str(i) * 1000 for i in range(50)})
    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(lambda _: take_snapshot(source, store), range(16)))
    assert len({snapshot.hash for snapshot in taken}) == 1
    assert sorted(name for name in os.listdir(store) if name != "seen.json") == [taken[0].hash]


def test_what_changes_the_hash_and_what_does_not(source, tmp_path):
    first = hash_code(source)
    os.utime(source / "train.py", ns=(1, 1))
    assert hash_code(source) == first  # a touch is no change
    (source / "train.py").chmod(0o755)
    executable = hash_code(source)
    (source / "empty").mkdir()
    with_folder = hash_code(source)
    (source / "link").symlink_to("train.py")
    with_link = hash_code(source)
    (source / "link").unlink()
    (source / "link").symlink_to("lib")
    other_link = hash_code(source)
    (source / "lib/model.py").rename(source / "lib/model2.py")
    renamed = hash_code(source)
    assert len({first, executable, with_folder, with_link, other_link, renamed}) == 6


def test_the_place_of_the_source_and_ignored_files_do_not_matter(source, tmp_path):
    before = hash_code(source, ["*.log"])
    (source / "out.log").write_text("x")
    source.rename(tmp_path / "elsewhere")
    assert hash_code(tmp_path / "elsewhere", ["*.log"]) == before


NAMES = st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=8)


@given(st.dictionaries(NAMES, st.binary(max_size=20), min_size=1, max_size=4), st.data())
def test_any_change_of_any_file_is_noticed(tmp_path_factory, files, data):
    folder = tmp_path_factory.mktemp("h")
    files = {name: content for name, content in files.items() if name not in (".", "..", ".git", "__pycache__")}
    if not files:
        return
    for name, content in files.items():
        (folder / name).write_bytes(content)
    before = hash_code(folder)
    chosen = data.draw(st.sampled_from(sorted(files)))
    (folder / chosen).write_bytes(files[chosen] + b"!")
    assert hash_code(folder) != before
    (folder / chosen).write_bytes(files[chosen])
    assert hash_code(folder) == before


def test_names_cannot_imitate_another_tree(tmp_path):
    write(tmp_path / "a", {"x": "1", "y": "2"})
    write(tmp_path / "b", {"x": "1y2"})
    write(tmp_path / "c", {"x\ny": "12"})
    assert len({hash_code(tmp_path / name) for name in "abc"}) == 3


def test_unchanged_files_are_not_read_again(source, store, monkeypatch):
    first = take_snapshot(source, store, clock=later)
    seen = json.loads((store / "seen.json").read_text())
    assert set(seen) == {"train.py", "lib/model.py", "lib/data.txt"}
    read = []
    hash_file = snapshots._hash_file
    monkeypatch.setattr(snapshots, "_hash_file", lambda path: read.append(path) or hash_file(path))
    assert take_snapshot(source, store, clock=later).hash == first.hash
    assert read == []
    (source / "train.py").write_text("print(1)\n")  # equal bytes, another time
    assert take_snapshot(source, store).hash == first.hash
    assert read == [str(source / "train.py")]


def test_a_file_written_just_now_is_never_trusted(source, store):
    take_snapshot(source, store)  # within the second in which the files were written
    seen = store / "seen.json"
    assert not seen.exists() or json.loads(seen.read_text()) == {}


def test_an_edit_that_keeps_size_and_mtime_is_noticed(source, store):
    status = (source / "train.py").stat()
    first = take_snapshot(source, store, clock=later)
    (source / "train.py").write_text("print(7)\n")
    os.utime(source / "train.py", ns=(status.st_mtime_ns, status.st_mtime_ns))
    assert take_snapshot(source, store).hash != first.hash


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"train.py": 5}', '{"train.py": [1]}'])
def test_a_damaged_memory_is_no_memory(source, store, damage):
    first = take_snapshot(source, store)
    (store / "seen.json").write_text(damage)
    assert take_snapshot(source, store) == first


def test_what_never_is_code_is_left_out(source, store, tmp_path):
    write(
        source,
        {
            ".git/HEAD": "ref",
            "lib/__pycache__/model.pyc": "x",
            "node_modules/a/index.js": "x",
            "env/pyvenv.cfg": "home = /usr",
            "env/bin/python": "x",
        },
    )
    snapshot = take_snapshot(source, store)
    assert set(listing(snapshot.path)) == {"train.py", "lib", "lib/model.py", "lib/data.txt"}
    assert set(snapshot.linked) == {"node_modules", "env"}  # reachable, but .git and __pycache__ are not
    place_code(snapshot, tmp_path / "run")
    assert (tmp_path / "run/env/bin/python").read_text() == "x"
    assert not os.path.lexists(tmp_path / "run/.git")


def test_runx_takes_its_patterns_as_given(source, store, tmp_path):
    write(
        source,
        {".git/HEAD": "ref", "tests/t.py": "", "docs1/a": "", "lib/x.pyc": "", "env/pyvenv.cfg": "", "w.pth": ""},
    )
    snapshot = take_snapshot(source, store, [".git", "*.pyc", "docs*", "test*", "*.pth"], guess=False, link=False)
    place_code(snapshot, tmp_path / "run", link=False)
    assert set(listing(tmp_path / "run")) == {
        "train.py",
        "lib",
        "lib/model.py",
        "lib/data.txt",
        "env",
        "env/pyvenv.cfg",
    }
    assert snapshot.linked == ()


def test_patterns_with_a_slash_mean_a_path(source, store):
    write(source, {"data/raw/a": "", "data/code.py": "", "lib/data/keep.py": "", "sub/lib/model.py": ""})
    snapshot = take_snapshot(source, store, ["data/raw/", "./lib/model.py", ""])
    files = set(listing(snapshot.path))
    assert not {"data/raw", "lib/model.py"} & files
    assert {"data/code.py", "lib/data/keep.py", "sub/lib/model.py"} <= files
    assert set(snapshot.linked) == {"data/raw", "lib/model.py"}


def test_ignored_entries_are_reachable_by_absolute_links(source, store, tmp_path):
    write(source, {"lib/cache/big.bin": "payload"})
    snapshot = take_snapshot(source, store, ["cache"])
    place_code(snapshot, tmp_path / "with")
    place_code(snapshot, tmp_path / "without", link=False)
    assert os.readlink(tmp_path / "with/lib/cache") == str(source / "lib/cache")
    assert (tmp_path / "with/lib/cache/big.bin").read_text() == "payload"
    assert not os.path.lexists(tmp_path / "without/lib/cache")


def test_an_output_root_inside_the_source_is_never_entered(source, tmp_path):
    root = source / "out" / "runs"
    store = root / "study" / ".assay" / "code"
    write(root, {"study/old/log": "x"})
    (tmp_path / "alias").symlink_to(root)
    for exclude in (root, tmp_path / "alias", source / "lib" / ".." / "out" / "runs"):
        snapshot = take_snapshot(source, store, exclude=[exclude])
        files = listing(snapshot.path)
        assert "out/runs" not in files
        assert "out" not in files  # nothing else was in it
        assert snapshot.linked == ()
    place_code(snapshot, root / "study" / "new")
    assert hash_code(source, exclude=[root]) == snapshot.hash


def test_the_store_itself_is_never_copied(source):
    store = source / ".store"
    first = take_snapshot(source, store)
    assert take_snapshot(source, store).hash == first.hash
    assert ".store" not in listing(first.path)


@pytest.mark.parametrize(
    ("text", "mode", "is_taken"),
    [
        ("write WRITE-0123456789\n# for CI\nupload:ci- UP-0123456789\n", 0o600, False),
        ("write WRITE-0123456789\n", 0o644, True),  # the server would refuse it
        ("read the docs first\n", 0o600, True),
        ("# only a comment\n", 0o600, True),
    ],
)
def test_tokens_of_the_server_are_not_code(source, store, tmp_path, text, mode, is_taken):
    (source / "mine").write_text(text)
    (source / "mine").chmod(mode)
    place_code(take_snapshot(source, store), tmp_path / "code")
    assert (tmp_path / "code" / "mine").exists() is is_taken


def test_sockets_and_pipes_are_skipped(source, store):
    os.mkfifo(source / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        here = os.getcwd()
        os.chdir(source)  # the address has a length limit
        try:
            server.bind("sock")
        finally:
            os.chdir(here)
        snapshot = take_snapshot(source, store)
    assert not {"pipe", "sock"} & set(listing(snapshot.path))
    assert snapshot.linked == ()


def test_links_inside_stay_inside_and_links_outside_stay_valid(source, store, tmp_path):
    write(tmp_path / "data", {"set.bin": "outside"})
    (source / "inner").symlink_to("lib/model.py")
    (source / "lib/up").symlink_to("../train.py")
    (source / "absolute").symlink_to(source / "lib")
    (source / "outer").symlink_to("../data")
    (source / "lib/outer2").symlink_to(tmp_path / "data" / "set.bin")
    (source / "dangling").symlink_to("nowhere")
    (source / "loop").symlink_to(".")
    write(source, {"runs/best/ckpt": "weights"})
    (source / "latest").symlink_to("runs/best")  # leads into what is left out
    (tmp_path / "deep").mkdir()
    run = tmp_path / "deep/run"
    place_code(take_snapshot(source, store, exclude=[source / "runs"]), run)
    assert (run / "latest/ckpt").read_text() == "weights"
    assert os.readlink(run / "inner") == "lib/model.py"
    assert os.readlink(run / "lib/up") == "../train.py"
    assert os.readlink(run / "absolute") == "lib"  # the run's own copy, not the live one
    assert (run / "outer/set.bin").read_text() == "outside"
    assert (run / "lib/outer2").read_text() == "outside"
    assert os.readlink(run / "dangling") == "nowhere"
    assert os.readlink(run / "loop") == "."


def test_a_large_file_is_linked_where_links_are_allowed(source, store, tmp_path):
    (source / "lib/weights.bin").write_bytes(b"w" * 5000)
    limits = Limits(file_bytes=4000)
    snapshot = take_snapshot(source, store, limits=limits)
    assert snapshot.linked == ("lib/weights.bin",)
    place_code(snapshot, tmp_path / "run")
    assert os.path.islink(tmp_path / "run/lib/weights.bin")
    copied = take_snapshot(source, store, link=False, limits=limits)
    assert copied.linked == ()
    place_code(copied, tmp_path / "run2", link=False)
    assert (tmp_path / "run2/lib/weights.bin").read_bytes() == b"w" * 5000


SIZES = {
    "many files": (
        dict.fromkeys((*(f"data/set/{i}" for i in range(60)), "data/x"), 1),
        {"tree_files": 40},
        ["data/set"],
    ),
    "large ones": ({f"data/{n}/{i}": n for n in (10, 100) for i in range(10)}, {"tree_bytes": 500}, ["data/100"]),
    "largest first": ({f"d{n}/{i}": 1 for n in range(4) for i in range(10 + n)}, {"tree_files": 30}, ["d2", "d3"]),
    "as a whole": ({f"data/{n}/{i}": 1 for n in range(30) for i in range(4)}, {"tree_files": 10}, ["data"]),
}


@pytest.mark.parametrize("case", SIZES)
def test_folders_that_are_too_large_are_linked_and_the_rest_is_copied(source, store, case):
    sizes, limits, linked = SIZES[case]
    write(source, {name: "x" * size for name, size in sizes.items()})
    snapshot = take_snapshot(source, store, limits=Limits(**limits))
    assert sorted(snapshot.linked) == linked
    left = [name for name in sizes if not name.startswith(tuple(f"{each}/" for each in linked))]
    assert snapshot.files == 3 + len(left)
    assert set(left) <= listing(snapshot.path).keys()


def test_a_flat_source_that_is_too_large_links_its_largest_files(tmp_path, store):
    write(tmp_path / "flat", {"a": "x" * 90, "b": "x" * 50, "c": "x"})
    snapshot = take_snapshot(tmp_path / "flat", store, limits=Limits(tree_bytes=60))
    assert snapshot.linked == ("a",)
    assert set(listing(snapshot.path)) == {"b", "c"}


HOSTILE = [
    *("new\nline.py", "quote'\".py", "数据.py", "sp ace", "-rf", "$(x)`y`", "\udcff\udc80.bin", "back\\slash"),
    *("*.py", "tab\t"),
]


def test_hostile_names(tmp_path, store):
    source = tmp_path / "it's a\nfolder \udcfe"
    for number, name in enumerate(HOSTILE):
        path = os.path.join(source, f"d{number}{name}", name)
        os.makedirs(os.path.dirname(path))
        Path(path).write_text(str(number))
    os.symlink("\udcff", os.path.join(source, "l\nink\udcfd"))
    snapshot = take_snapshot(source, store, ["sp ace"])
    place_code(snapshot, tmp_path / "run \udcfc\n")
    placed = listing(tmp_path / "run \udcfc\n")
    expected = listing(source)
    del expected["d3sp ace/sp ace"]
    assert placed.pop("d3sp ace/sp ace") == f"-> {source}/d3sp ace/sp ace"
    assert placed == expected
    assert load_snapshot(store, snapshot.hash) == snapshot


def test_a_file_that_changes_during_the_copy_names_the_snapshot_by_what_was_copied(source, store):
    """Hammered: whatever the store holds under a hash has exactly that hash."""
    stop = False

    def edit():
        number = 0
        while not stop:
            (source / "train.py").write_text(f"print({number})\n" * 50)
            number += 1

    with ThreadPoolExecutor(1) as pool:
        editing = pool.submit(edit)
        try:
            taken = [take_snapshot(source, store) for _ in range(30)]
        finally:
            stop = True
        editing.result()
    for snapshot in taken:
        assert hash_code(snapshot.path) == snapshot.hash


def write_study(folder):
    """A study of ours with one run, as little as it is recognised by."""
    write(
        folder, {".assay/codes.json": "{}", "r/run.json": "{}", "r/job.sh": "#!/bin/bash\n# x\n# Written by Assay.\n"}
    )


def git(folder, *arguments):
    subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True)


@pytest.mark.parametrize("place", ["runs2/s", "a/b/runs3/s", "s", "lib/s"])
@pytest.mark.parametrize("guess", [True, False])
def test_a_study_is_never_part_of_a_snapshot_wherever_it_is(source, store, tmp_path, place, guess):
    before = hash_code(source, guess=guess)
    write_study(source / place)
    snapshot = take_snapshot(source, store, guess=guess)
    place_code(snapshot, tmp_path / "run")
    assert sorted(listing(tmp_path / "run")) == ["lib", "lib/data.txt", "lib/model.py", "train.py"]
    assert snapshot.hash == before


def test_a_run_directory_without_its_study_is_left_out(source, store):
    write(source, {"copied/job.sh": "#!/usr/bin/env bash\n# run\n# Written by Assay.\n", "copied/run.json": "{}"})
    write(source, {"mine/job.sh": "sbatch train.sh\n", "tool/.assay/notes.txt": "a folder that only has this name"})
    files = listing(take_snapshot(source, store).path)
    assert "copied" not in files
    assert {"mine/job.sh", "tool/.assay/notes.txt"} <= files.keys()


@pytest.mark.parametrize("by", ["pattern", "git", "size"])
def test_a_folder_with_a_study_in_it_is_linked_without_the_study(source, store, tmp_path, by):
    write(source, {"out/data/a.bin": "a", "out/b.bin": "b"})
    write_study(source / "out/deep/runs/s")
    limits = Limits(tree_files=3) if by == "size" else None
    if by == "git":
        git(source, "init")
        write(source, {".gitignore": "out/\n"})
    snapshot = take_snapshot(source, store, ["out"] if by == "pattern" else [], limits=limits)
    place_code(snapshot, tmp_path / "run")
    placed = tmp_path / "run"
    assert (placed / "out/b.bin").read_text() == "b"
    assert (placed / "out/data/a.bin").read_text() == "a"
    assert not list(placed.rglob("job.sh"))
    assert not (placed / "out/deep/runs/s").exists()
    assert not (placed / "out").is_symlink()


def test_what_git_ignores_is_linked_and_everything_else_is_copied(source, store, tmp_path):
    git(source, "init")
    write(source, {".gitignore": "data/\n*.log\n", "data/x/a.bin": "1", "lib/a.log": "l", "forced.log": "f"})
    write(source, {"lib/inner/.gitignore": "*.tmp\n", "lib/inner/b.tmp": "t", "new.py": "untracked"})
    git(source, "add", "-f", "forced.log", "train.py")
    git(source / "lib/inner", "init")
    snapshot = take_snapshot(source, store)
    place_code(snapshot, tmp_path / "run")
    assert set(snapshot.linked) == {"data", "lib/a.log", "lib/inner/b.tmp"}
    assert (tmp_path / "run/data/x/a.bin").read_text() == "1"
    assert (tmp_path / "run/lib/inner/b.tmp").is_symlink()
    assert not (tmp_path / "run/new.py").is_symlink()
    assert not (tmp_path / "run/forced.log").is_symlink()
    assert take_snapshot(source / "lib", store / "2").linked == ("a.log", "inner/b.tmp")


def test_when_git_is_not_asked_and_a_golden_recording_is_linked(source, store):
    git(source, "init")
    write(source, {".gitignore": "data/\n", "data/a.bin": "1"})
    for way in ({"guess": False}, {"link": False}):
        assert "data/a.bin" in listing(take_snapshot(source, store, **way).path)
    assert "a.bin" in listing(take_snapshot(source / "data", store).path)  # code in a folder that git ignores
    write(source, {"gold/demo_convergence_harness_manifest.json": "{}", "gold/ckpts/1.pt": "w"})
    assert take_snapshot(source, store).linked == ("data", "gold")


def test_a_copy_is_never_open_to_more_people_than_the_original(source, store, tmp_path):
    write(source, {"safe/open.txt": "x", "key.txt": "k"})
    (source / "safe").chmod(0o700)
    (source / "key.txt").chmod(0o600)
    (source / "lib/model.py").chmod(0o640)
    snapshot = take_snapshot(source, store)
    place_code(snapshot, tmp_path / "run")
    for tree in (snapshot.path, tmp_path / "run"):
        modes = {
            name: os.stat(f"{tree}/{name}").st_mode & 0o777 for name in ("safe", "key.txt", "lib/model.py", "train.py")
        }
        assert modes == {"safe": 0o700, "key.txt": 0o600, "lib/model.py": 0o640, "train.py": 0o644}
    (source / "train.py").chmod(0o600)
    assert os.stat(f"{take_snapshot(source, store).path}/train.py").st_mode & 0o077 == 0


def test_other_files_of_the_store_follow_the_umask(source, store):
    take_snapshot(source, store, clock=later)
    assert {path.name: path.stat().st_mode & 0o777 for path in store.iterdir()}["seen.json"] == 0o644


@pytest.mark.parametrize("link", [True, False])
def test_what_looks_like_a_secret_is_linked_and_never_copied(source, store, tmp_path, link):
    write(source, {".env": "A=1", "conf/Prod.PEM": "p", "lib/credentials.py": "x", ".ssh/id": "s", "a.key": "k"})
    patterns = (".env", "*.pem", "*credentials*", ".ssh/", "*.key", "!a.key")
    snapshot = take_snapshot(source, store, link=link, secret=patterns)
    place_code(snapshot, tmp_path / "run", link=link)
    assert set(snapshot.secret) == {".env", "conf/Prod.PEM", ".ssh"}
    assert (tmp_path / "run/.env").readlink() == source / ".env"
    assert (tmp_path / "run/conf/Prod.PEM").is_symlink()
    assert not (tmp_path / "run/lib/credentials.py").is_symlink()
    assert not (tmp_path / "run/a.key").is_symlink()
    assert not {"A=1", "p", "s"} & set(listing(snapshot.path).values())
    assert load_snapshot(store, snapshot.hash) == snapshot
