"""The artifact store: what went in decides what comes out, also when processes die, delete files or fill the disk."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from assay.errors import InfrastructureError, UsageError
from assay.models.store.artifacts import (
    DEFAULT_LIMIT_BYTES,
    NO_LIMIT,
    ArtifactStore,
    StoredArtifact,
    choose_limit,
    choose_store_folder,
    parse_limit,
)
from assay.models.store.entry import build_key

PARTS: dict[str, Any] = {
    "what": "compile",
    "case": "m_layer_MatMul_0",
    "source": "12ab" * 16,
    "tools": {"iree": "3.13.0"},
    "flags": ["-O2", "--fast"],
}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ArtifactStore]:
    with ArtifactStore(str(tmp_path / "cache")) as made:
        yield made


def filler(content: bytes = b"compiled", facts: Mapping[str, Any] | None = None) -> Callable[[str], Mapping[str, Any]]:
    def build(folder: str) -> Mapping[str, Any]:
        Path(folder, "sub").mkdir()
        Path(folder, "model.vmfb").write_bytes(content)
        Path(folder, "sub", "debug.txt").write_bytes(b"about " + content)
        return {} if facts is None else facts

    return build


def must_not_build(folder: str) -> Mapping[str, Any]:
    raise AssertionError("it was to come from the store")


def make(
    store: ArtifactStore, parts: Mapping[str, Any] = PARTS, content: bytes = b"compiled", **how: Any
) -> StoredArtifact:
    artifact, made = store.make(build_key(parts), parts, filler(content), **how)
    assert artifact is not None
    assert made
    return artifact


def content_of(artifact: StoredArtifact | None) -> bytes:
    assert artifact is not None
    return Path(artifact.folder, "model.vmfb").read_bytes()


def files_under(folder: str | Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file())


def list_names(store: ArtifactStore) -> list[str]:
    """Every folder in the folders of keys: entries, and builds that are in progress or were killed."""
    return sorted(str(path.relative_to(Path(store.folder, "v2"))) for path in Path(store.folder, "v2").glob("*/*"))


def name_of(artifact: StoredArtifact) -> str:
    return f"{artifact.key}/{Path(artifact.folder).parent.name}"


def run_python(code: str, *arguments: str, timeout: float = 120.0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(code), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)


# ---------------------------------------------------------------- keys

json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
some_parts = st.dictionaries(st.text(max_size=6), json_like, max_size=5)


def same_value(one: Any, other: Any) -> bool:
    """As JSON sees it: 1, 1.0 and True differ, and so do 0.0 and -0.0; a tuple is a list."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_value(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same_value, one, other))
    return type(one) is type(other) and repr(one) == repr(other)


@given(some_parts, some_parts)
def test_parts_have_the_same_key_only_when_they_are_the_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert (build_key(one) == build_key(other)) == same_value(one, other)


@pytest.mark.parametrize("parts", [{1: "a"}, {"a": {2: "b"}}, {"a": b"bytes"}, {"a": {1, 2}}, {"a": object()}])
def test_what_json_does_not_have_is_no_part(parts: Any) -> None:
    with pytest.raises(TypeError):
        build_key(parts)


def test_keys_do_not_change_between_versions_of_assay() -> None:
    """Else an update would throw away every cache; the text is that of the docstring: canonical JSON."""
    text = '{"flags":["-O2"],"n":1.5,"what":"größe"}'
    assert build_key({"what": "größe", "flags": ("-O2",), "n": 1.5}) == sha256(text.encode()).hexdigest()
    assert build_key({"a": "\ud83d\ude00"}) != build_key({"a": "\U0001f600"}), "a pair of surrogates is no character"


# ---------------------------------------------------------------- making and finding


def test_what_was_made_is_found_by_everybody(store: ArtifactStore) -> None:
    made = make(store, content=b"bytes")
    other = ArtifactStore(store.folder)
    found = other.load(made.key)
    assert found is not None
    assert found == made
    assert files_under(found.folder) == ["model.vmfb", "sub/debug.txt"]
    assert content_of(found) == b"bytes"
    again, was_made = other.make(made.key, PARTS, must_not_build)
    assert again == made
    assert not was_made


def test_nothing_is_there_before_anything_is_made_and_looking_leaves_no_trace(tmp_path: Path) -> None:
    store = ArtifactStore(str(tmp_path / "cache"))
    assert store.load(build_key(PARTS)) is None
    assert store.explain(PARTS) == "miss: nothing similar is stored"
    assert store.load_entries() == []
    assert store.clear().removed == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [None, ConnectionRefusedError("the board")])
def test_a_builder_that_fails_leaves_nothing_and_its_exception_comes_out(
    store: ArtifactStore, error: Exception | None
) -> None:
    def build(folder: str) -> None:
        Path(folder, "half.vmfb").write_bytes(b"half")
        if error is not None:
            raise error

    with pytest.raises(ConnectionRefusedError) if error else contextlib.nullcontext():
        assert store.make(build_key(PARTS), PARTS, build) == (None, False)
    assert files_under(store.folder) == ["v2/lock"]
    make(store)


def test_facts_are_the_same_whether_made_or_found(store: ArtifactStore) -> None:
    facts = {"times_s": (1.0, float("inf")), "nested": {"a": [None, True]}, "text": "größe\udc80"}
    made, _ = store.make(build_key(PARTS), PARTS, filler(facts=facts))
    found = ArtifactStore(store.folder).load(build_key(PARTS))
    assert made is not None
    assert found is not None
    assert made.facts == found.facts == {**facts, "times_s": [1.0, float("inf")]}


def test_paths_in_facts_lead_to_where_the_files_are_now(store: ArtifactStore) -> None:
    def build(folder: str) -> Mapping[str, Any]:
        path = Path(folder, "model.vmfb")
        path.write_bytes(b"x")
        return {"path": str(path), "command": f"compile -o {path} in.onnx", "all": [str(path)]}

    made, _ = store.make(build_key(PARTS), PARTS, build)
    moved = store.folder + " moved"
    shutil.copytree(store.folder, moved)
    for artifact in (made, ArtifactStore(store.folder).load(build_key(PARTS)), ArtifactStore(moved).load(made.key)):
        assert artifact is not None
        assert Path(artifact.facts["path"]).read_bytes() == b"x"
        assert artifact.facts["command"] == f"compile -o {artifact.folder}/model.vmfb in.onnx"
        assert artifact.facts["all"] == [artifact.facts["path"]]


def test_a_key_that_is_not_of_these_parts_is_refused(store: ArtifactStore) -> None:
    with pytest.raises(ValueError, match="not the key"):
        store.make(build_key({**PARTS, "flags": []}), PARTS, must_not_build)


def test_recompute_replaces_and_readers_of_the_old_one_go_on(store: ArtifactStore) -> None:
    old = make(store, content=b"old")
    new = make(store, content=b"new", recompute=True)
    assert content_of(old) == b"old"
    assert content_of(new) == b"new"
    assert content_of(ArtifactStore(store.folder).load(old.key)) == b"new"
    assert len(store.load_entries()) == 1


def test_a_session_recomputes_each_key_once(store: ArtifactStore) -> None:
    before = make(store, content=b"before")
    session = before.made_at + 1e-6
    first = make(store, content=b"first", made_since=session)
    again, made = store.make(first.key, PARTS, must_not_build, made_since=session)
    assert (again, made) == (first, False)


def test_recomputing_that_is_interrupted_keeps_the_old_one(store: ArtifactStore) -> None:
    make(store, content=b"old")

    def build(folder: str) -> Mapping[str, Any]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.make(build_key(PARTS), PARTS, build, recompute=True)
    assert content_of(store.load(build_key(PARTS))) == b"old"


@pytest.mark.parametrize("how", ["file names", "store"])
def test_odd_names(tmp_path: Path, hostile_name: str, how: str) -> None:
    store = ArtifactStore(str(tmp_path / (hostile_name if how == "store" else "cache")))

    def build(folder: str) -> Mapping[str, Any]:
        Path(folder, hostile_name).mkdir()
        Path(folder, hostile_name, hostile_name).write_text("odd")
        return {"name": hostile_name}

    store.make(build_key(PARTS), PARTS, build)
    found = ArtifactStore(store.folder).load(build_key(PARTS))
    assert found is not None
    assert Path(found.folder, found.facts["name"], hostile_name).read_text() == "odd"


def test_a_link_inside_is_kept_and_one_that_leads_outside_is_refused(store: ArtifactStore, tmp_path: Path) -> None:
    def build(folder: str) -> Mapping[str, Any]:
        Path(folder, "model.1").write_bytes(b"x")
        os.symlink("model.1", f"{folder}/model")
        return {}

    artifact, _ = store.make(build_key(PARTS), PARTS, build)
    assert artifact is not None
    assert Path(artifact.folder, "model").read_bytes() == b"x"
    for target in (str(tmp_path), "..", "../manifest.json", "a/../../manifest.json"):

        def leak(folder: str, target: str = target) -> Mapping[str, Any]:
            os.symlink(target, f"{folder}/leak")
            return {}

        with pytest.raises(InfrastructureError, match="leak leads outside"):
            store.make(build_key({"target": target}), {"target": target}, leak)

    def pipe(folder: str) -> Mapping[str, Any]:
        os.mkfifo(f"{folder}/pipe")
        return {}

    with pytest.raises(InfrastructureError, match="pipe is not a file"):
        store.make(build_key({}), {}, pipe)


# ---------------------------------------------------------------- why


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"flags": ["-O3", "--fast"]}, "miss: flags changed: -O2 → -O3"),
        ({"flags": ["-O2", "--fast", "-v"]}, "miss: flags changed: with -v"),
        ({"flags": ["-O2"]}, "miss: flags changed: without --fast"),
        ({"flags": ["--fast", "-O2"]}, "miss: flags changed: another order"),
        ({"flags": ["-O2", "-O2", "--fast"]}, "miss: flags changed: -O2 --fast → -O2 -O2 --fast"),
        ({"source": "34cd" * 16}, "miss: the model changed (sha 12ab… → 34cd…)"),
        ({"tools": {"iree": "3.14.0"}}, "miss: tools.iree changed: 3.13.0 → 3.14.0"),
        ({"tools": {"iree": "3.13.0", "lld": "18"}}, "miss: tools.lld is new: 18"),
        ({"tools": {}}, "miss: tools.iree was removed: 3.13.0"),
        ({"inputs": "77" * 32}, "miss: inputs is new: 7777…"),
        (
            {"tools": {"iree": "3.13.0", "code lib/mine.py": "ab" * 32}},
            "miss: the back end's code changed: lib/mine.py",
        ),
        ({"case": "m_layer_Conv_1"}, "miss: nothing similar is stored"),
        ({"what": "import"}, "miss: nothing similar is stored"),
        (
            {"flags": [], "source": None, "tools": {"iree": "4", "lld": "18"}},
            "miss: flags changed: without -O2 --fast; source changed: 12ab… → None; tools.iree changed: 3.13.0 → 4, and 1 more",
        ),
    ],
)
def test_a_miss_reports_what_changed(store: ArtifactStore, change: dict[str, Any], reason: str) -> None:
    make(store)
    assert store.explain({**PARTS, **change}) == reason


def test_a_hit_reports_when_and_by_whom(store: ArtifactStore) -> None:
    make(store)
    assert re.fullmatch(r"hit: made \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC by \S+@\S+", store.explain(PARTS))


def test_another_back_end_is_nothing_like_it(store: ArtifactStore) -> None:
    make(store, {**PARTS, "backend": "iree"})
    assert store.explain({**PARTS, "backend": "command"}) == "miss: nothing similar is stored"
    assert store.explain({**PARTS, "backend": "iree", "flags": []}) == "miss: flags changed: without -O2 --fast"


def test_what_a_run_is_given_is_no_model(store: ArtifactStore) -> None:
    make(store, {**PARTS, "what": "run"})
    reason = store.explain({**PARTS, "what": "run", "source": "34cd" * 16})
    assert reason == "miss: the output of the previous step changed (sha 12ab… → 34cd…)"


def test_the_nearest_of_several_is_compared_with(store: ArtifactStore) -> None:
    make(store, {**PARTS, "flags": ["-O0"], "tools": {"iree": "1"}})
    make(store, {**PARTS, "flags": ["-O1"]})
    make(store, {**PARTS, "source": "99" * 32, "flags": ["-O0"], "tools": {"iree": "2"}})
    assert store.explain(PARTS) == "miss: flags changed: -O1 → -O2 --fast"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(some_parts, some_parts)
def test_every_miss_has_a_reason_in_one_line(tmp_path: Path, old: dict[str, Any], new: dict[str, Any]) -> None:
    store = ArtifactStore(str(tmp_path / "cache"))
    old, new = {"what": "x", **old}, {"what": "x", **new}
    store.clear()
    store.make(build_key(old), old, lambda _folder: {})
    text = store.explain(new)
    store.close()
    assert text.startswith("hit: " if same_value(old, new) else "miss: ")
    assert text != "miss: "
    assert len(text.splitlines()) == 1


# ---------------------------------------------------------------- damage


def entry_of(artifact: StoredArtifact) -> Path:
    return Path(artifact.folder).parent


def damage_file(name: str, content: bytes | None) -> Callable[[StoredArtifact], None]:
    def damage(artifact: StoredArtifact) -> None:
        path = entry_of(artifact) / name
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content)

    return damage


def change_manifest(**change: Any) -> Callable[[StoredArtifact], None]:
    def damage(artifact: StoredArtifact) -> None:
        path = entry_of(artifact) / "manifest.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | change))

    return damage


def turn_into_folder(artifact: StoredArtifact) -> None:
    path = Path(artifact.folder, "model.vmfb")
    path.unlink()
    path.mkdir()


def turn_into_pipe(artifact: StoredArtifact) -> None:
    path = Path(artifact.folder, "model.vmfb")
    path.unlink()
    os.mkfifo(path)


def turn_into_link(artifact: StoredArtifact) -> None:
    path = Path(artifact.folder, "model.vmfb")
    path.rename(entry_of(artifact) / "moved")
    path.symlink_to("../moved")


def empty_folder(artifact: StoredArtifact) -> None:
    Path(artifact.folder, "sub", "debug.txt").unlink()
    Path(artifact.folder, "sub").rmdir()


DAMAGES: dict[str, tuple[Callable[[StoredArtifact], None], str]] = {
    "deleted": (damage_file("files/model.vmfb", None), "model.vmfb is missing"),
    "truncated": (damage_file("files/model.vmfb", b"comp"), "model.vmfb has 4 bytes instead of 8"),
    "empty": (damage_file("files/model.vmfb", b""), "model.vmfb has 0 bytes instead of 8"),
    "changed": (damage_file("files/model.vmfb", b"COMPILED"), "model.vmfb has changed (sha256 "),
    "added": (damage_file("files/other.so", b"x"), "other.so was added later"),
    "folder": (turn_into_folder, "model.vmfb is of another kind"),
    "pipe": (turn_into_pipe, "model.vmfb is of another kind"),
    "link": (turn_into_link, "model.vmfb is of another kind"),
    "folder gone": (empty_folder, "sub is missing"),
    "manifest empty": (damage_file("manifest.json", b""), "its manifest is damaged"),
    "manifest torn": (damage_file("manifest.json", b'{"key": "'), "its manifest is damaged"),
    "manifest binary": (damage_file("manifest.json", b"\xff\x00"), "its manifest is damaged"),
    "manifest a list": (damage_file("manifest.json", b"[]"), "its manifest is damaged"),
    "manifest deep": (damage_file("manifest.json", b"[" * 100_000), "its manifest is damaged"),
    "manifest's files": (change_manifest(files=[1]), "its manifest is damaged"),
    "manifest's sizes": (change_manifest(files={"model.vmfb": [float("inf"), "0"]}), "its manifest is damaged"),
    "manifest's others": (change_manifest(others=[[1]]), "its manifest is damaged"),
    "manifest's kinds": (change_manifest(others={"a": 1}), "its manifest is damaged"),
    "manifest's origin": (change_manifest(built_in=7), "its manifest is damaged"),
    "manifest's parts": (change_manifest(parts={"what": "other"}), "its manifest does not belong to its key"),
    "manifest of another": (change_manifest(parts={}, key=build_key({})), "its manifest belongs to another key"),
}


@pytest.mark.parametrize("kind", DAMAGES)
@pytest.mark.parametrize("seen_before", [False, True], ids=["fresh", "seen"])
def test_a_damaged_entry_counts_as_missing_and_is_made_again(
    store: ArtifactStore, kind: str, seen_before: bool
) -> None:
    damage, reason = DAMAGES[kind]
    made = make(store)
    made.close()
    reader = ArtifactStore(store.folder)
    if seen_before:
        found = reader.load(made.key)
        assert found is not None
        found.close()
    damage(made)
    assert reader.explain(PARTS).startswith(f"miss: the entry was damaged: {reason}")
    assert reader.load(made.key) is None
    assert reader.damaged[made.key].startswith(reason)
    again = make(reader)
    assert content_of(again) == b"compiled"
    assert reader.damaged == {}
    assert reader.explain(PARTS).startswith("hit: ")
    assert list_names(store) == [name_of(again)]


def test_an_older_version_of_a_key_stays_while_it_is_used(store: ArtifactStore) -> None:
    old = make(store)
    new = make(store, recompute=True)
    assert list_names(store) == sorted([name_of(old), name_of(new)])
    old.close()
    newest = make(store, recompute=True)
    assert list_names(store) == sorted([name_of(new), name_of(newest)])
    assert store.load(new.key) == newest


def test_what_cannot_be_made_again_is_not_served_while_the_old_one_is_used(store: ArtifactStore) -> None:
    old = make(store)
    assert store.make(old.key, PARTS, lambda _folder: None, recompute=True) == (None, False)
    assert store.load(old.key) is None
    assert content_of(old) == b"compiled"
    old.close()
    assert store.clear().removed == 1


def test_a_damaged_entry_that_others_use_is_no_longer_served_and_goes_when_they_are_done(store: ArtifactStore) -> None:
    user = ArtifactStore(store.folder)
    make(store).close()
    used = user.load(build_key(PARTS))
    assert used is not None
    Path(used.folder, "sub", "debug.txt").unlink()
    assert store.load(used.key) is None
    assert content_of(used) == b"compiled"
    user.close()
    assert store.clear().removed == 1
    assert not os.path.exists(used.folder)


def test_files_that_look_as_before_are_not_read_again(store: ArtifactStore) -> None:
    """What makes repeated loads cheap, and its price: a change that keeps size and time is seen by the next process."""
    made = make(store)
    path = Path(made.folder, "model.vmfb")
    status = path.stat()
    path.write_bytes(b"COMPILED")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert store.load(made.key) == made
    assert ArtifactStore(store.folder).load(made.key) is None


def test_a_process_without_descriptors_does_not_take_good_entries_for_bad(store: ArtifactStore) -> None:
    made = make(store)
    store.close()
    reader = ArtifactStore(store.folder)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)  # the lowest number: the limit is one of numbers, and earlier tests may have left gaps below it
    os.close(free)
    outcomes: set[str] = set()
    limit = free
    while "found" not in outcomes:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        try:
            outcomes.add("found" if reader.load(made.key) else "missing")
        except InfrastructureError as error:
            outcomes.add("refused" if "Too many open files" in str(error) else str(error))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        limit += 1  # which need not be one descriptor more: other numbers above the lowest may be taken
    reader.close()
    assert outcomes == {"found", "refused"}
    assert ArtifactStore(store.folder).load(made.key) == made


# ---------------------------------------------------------------- disks that refuse


@contextlib.contextmanager
def as_root() -> Iterator[None]:
    """Where `forbidden_dir` took root's rights away; for other users nothing changes."""
    before = os.geteuid()
    if os.getuid() == 0:
        os.seteuid(0)
    yield
    os.seteuid(before)


def test_a_read_only_store_serves_what_it_has_and_reports_that_it_cannot_make(forbidden_dir: Path) -> None:
    with as_root():
        forbidden_dir.chmod(0o777)
        with ArtifactStore(str(forbidden_dir / "cache")) as writer:
            make(writer, {"what": "x"})
        for path in (*forbidden_dir.rglob("*"), forbidden_dir):
            path.chmod(0o555 if path.is_dir() else 0o444)
    store = ArtifactStore(str(forbidden_dir / "cache"))
    found = store.load(build_key({"what": "x"}))
    assert found is not None
    assert store.make(found.key, {"what": "x"}, must_not_build)[1] is False
    assert store.explain({"what": "x"}).startswith("hit: ")
    assert [entry.in_use for entry in store.load_entries()] == [True]
    with pytest.raises(
        InfrastructureError, match=r"cannot write in the artifact cache .*: Permission denied"
    ) as caught:
        store.make(build_key(PARTS), PARTS, must_not_build)
    assert "set ASSAY_CACHE" in str(caught.value)
    with pytest.raises(InfrastructureError):
        store.clear()
    store.close()


def test_a_store_whose_place_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")
    store = ArtifactStore(str(tmp_path / "cache"))
    assert store.load(build_key(PARTS)) is None
    with pytest.raises(InfrastructureError, match="set ASSAY_CACHE"):
        store.make(build_key(PARTS), PARTS, must_not_build)


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file of this process can grow beyond 4 KiB: a real refusal of the kernel, like that of a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.usefixtures("small_files")
def test_a_disk_that_is_full_while_building(store: ArtifactStore) -> None:
    with pytest.raises(InfrastructureError, match=r"cannot write in the artifact cache") as caught:
        store.make(build_key(PARTS), PARTS, filler(b"x" * 10_000))
    assert "assay model cache clear" in str(caught.value)
    assert store.load(build_key(PARTS)) is None
    assert files_under(store.folder) == ["v2/lock"]


@pytest.mark.usefixtures("small_files")
def test_a_disk_that_is_full_when_the_manifest_is_written(store: ArtifactStore) -> None:
    with pytest.raises(InfrastructureError, match="cannot write in the artifact cache"):
        store.make(build_key(PARTS), PARTS, filler(facts={"stderr": "x" * 10_000}))
    assert files_under(store.folder) == ["v2/lock"]


def test_read_only_folders_that_a_tool_makes_are_removed_too(forbidden_dir: Path) -> None:
    """As a user that the modes bind: root may delete anything."""
    with as_root():
        forbidden_dir.chmod(0o777)
    store = ArtifactStore(str(forbidden_dir / "cache"))

    def build(folder: str) -> None:
        Path(folder, "sub").mkdir()
        Path(folder, "sub", "file").write_text("x")
        Path(folder, "sub").chmod(0o555)

    store.make(build_key(PARTS), PARTS, build)
    assert files_under(store.folder) == ["v2/lock"]


# ---------------------------------------------------------------- several at once

BUILD_ONCE = """
import os, sys
from assay.models.store.artifacts import ArtifactStore, build_key
folder, log, place = sys.argv[1:]
parts = {"what": "compile"}
def build(folder):
    with open(log, "a") as file:
        file.write(f"{os.getpid()}\\n")
    sys.stdin.readline()  # until all others are at `make` as well
    for number in range(20):
        with open(f"{folder}/{number}", "w") as file:
            file.write("x" * 1000)
    return {"pid": os.getpid()}
print("ready", flush=True)
artifact, made = ArtifactStore(folder).make(build_key(parts), parts, build)
assert sorted(os.listdir(artifact.folder)) == sorted(map(str, range(20)))
print(made, artifact.facts["pid"])
"""


def test_eight_processes_build_once(store: ArtifactStore, tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = [sys.executable, "-c", BUILD_ONCE, store.folder, str(log)]
    children = [
        subprocess.Popen([*command, str(index)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for index in range(8)
    ]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    answers = [child.communicate(timeout=60)[0].split() for child in children]
    builder = log.read_text().split()
    assert len(builder) == 1
    assert sorted(made for made, _ in answers) == ["False"] * 7 + ["True"]
    assert {pid for _, pid in answers} == set(builder)


def test_eight_threads_build_once(store: ArtifactStore) -> None:
    built: list[int] = []
    entered = threading.Semaphore(0)

    def build(folder: str) -> Mapping[str, Any]:
        built.append(threading.get_ident())
        for _ in range(8):
            entered.acquire()
        Path(folder, "model.vmfb").write_bytes(b"x" * 100_000)
        return {}

    def work(found: list[StoredArtifact | None]) -> None:
        entered.release()
        found.append(store.make(build_key(PARTS), PARTS, build)[0])

    found: list[StoredArtifact | None] = []
    threads = [threading.Thread(target=work, args=(found,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == 1
    assert len(found) == 8
    assert len({artifact.folder for artifact in found if artifact}) == 1


# Each child counts what it asks of the system from the beginning of `make` on, and kills itself at the n-th request.
KILLED = """
import os, signal, sys
from assay.models.store.artifacts import ArtifactStore, build_key
folder, mode = sys.argv[1:]
parts = {"what": "compile", "flags": ["-O2"]}
key = build_key(parts)
asked = 0
def build(content):
    def fill(folder):
        os.mkdir(folder + "/sub")
        for name in ("a", "sub/b"):
            with open(f"{folder}/{name}", "w") as file:
                file.write(content)
        return {"content": content}
    return fill
def content_of(artifact):
    texts = {open(os.path.join(artifact.folder, name)).read() for name in ("a", "sub/b")}
    assert texts == {artifact.facts["content"]}, texts
    return texts.pop()
def child(number):
    global asked
    store = ArtifactStore(folder, 1 if mode == "evict" else None)
    def hook(event, arguments):
        global asked
        asked += 1
        if asked == number:
            os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)
    store.make(key, parts, build("new"), recompute=mode == "recompute")
    os._exit(0)
number, killed, seen = 0, True, set()
while killed and number < 500:
    number += 1
    ArtifactStore(folder).clear()
    if mode != "make":
        other = {"what": "other", "number": number} if mode == "evict" else parts
        with ArtifactStore(folder) as store:
            store.make(build_key(other), other, build("old"))
    pid = os.fork()
    if pid == 0:
        child(number)
    killed = os.WIFSIGNALED(os.waitpid(pid, 0)[1])
    store = ArtifactStore(folder)
    found = store.load(key)
    assert store.damaged == {}, (number, store.damaged)
    seen.add(content_of(found) if found else None)
    if mode == "recompute":
        assert found is not None, number
    artifact, made = store.make(key, parts, build("again"))
    assert made == (found is None)
    content_of(artifact)
    store.close()
    store = ArtifactStore(folder)
    store.make(key, parts, build("once more"), recompute=True)
    store.close()
    left = [name for key in os.listdir(folder + "/v2") if key != "lock" for name in os.listdir(f"{folder}/v2/{key}")]
    assert left and "building" not in left, (number, left)
    assert len(os.listdir(f"{folder}/v2/{key}")) == 1, number
assert 15 < number < 500, number
print(number, sorted(map(str, seen)))
"""


@pytest.mark.parametrize(
    ("mode", "seen"), [("make", ["None", "new"]), ("recompute", ["new", "old"]), ("evict", ["None", "new"])]
)
def test_a_kill_at_any_moment_leaves_nothing_that_counts(tmp_path: Path, mode: str, seen: list[str]) -> None:
    result = run_python(KILLED, str(tmp_path / "cache"), mode)
    assert result.returncode == 0, result.stderr
    assert result.stdout.endswith(f" {seen}\n")


def test_a_waiting_process_builds_itself_when_the_builder_is_killed(store: ArtifactStore) -> None:
    code = """
    import sys
    from assay.models.store.artifacts import ArtifactStore, build_key
    def build(folder):
        open(folder + "/half", "w").close()
        print("building", flush=True)
        sys.stdin.readline()
    parts = {"what": "compile"}
    ArtifactStore(sys.argv[1]).make(build_key(parts), parts, build)
    """
    command = [sys.executable, "-c", textwrap.dedent(code), store.folder]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "building\n"
        made: list[StoredArtifact] = []
        waiter = threading.Thread(target=lambda: made.append(make(store, {"what": "compile"})))
        waiter.start()
        child.send_signal(signal.SIGKILL)
        waiter.join(timeout=60)
    assert files_under(made[0].folder) == ["model.vmfb", "sub/debug.txt"]
    make(store)
    assert len(list_names(store)) == 2


# ---------------------------------------------------------------- the limit


def sized(number: int) -> dict[str, Any]:
    return {"what": "sized", "number": number}


def make_sized(store: ArtifactStore, number: int) -> StoredArtifact:
    artifact, _ = store.make(build_key(sized(number)), sized(number), filler(b"%d" % number * 1000))
    assert artifact is not None
    return artifact


def numbers_in(store: ArtifactStore) -> list[int]:
    return sorted(entry.parts["number"] for entry in store.load_entries())


@pytest.fixture
def small_store(tmp_path: Path) -> Iterator[ArtifactStore]:
    """Room for three artifacts of about 2.5 KB."""
    with ArtifactStore(str(tmp_path / "small"), limit_bytes=9_000) as store:
        yield store


def use_at(store: ArtifactStore, number: int, when: float) -> None:
    (entry,) = Path(store.folder, "v2", build_key(sized(number))).iterdir()
    os.utime(entry, (when, when))


def test_the_least_recently_used_leave(small_store: ArtifactStore) -> None:
    for number in range(3):
        make_sized(small_store, number).close()
        use_at(small_store, number, 1000.0 + number)
    found = small_store.load(build_key(sized(0)))  # used just now, so 1 is the oldest
    assert found is not None
    found.close()
    make_sized(small_store, 3).close()
    assert numbers_in(small_store) == [0, 2, 3]
    assert len(list_names(small_store)) == 3


def test_what_was_held_until_the_end_leaves_then(tmp_path: Path) -> None:
    """A check holds the reference's activations, the largest things, as long as it lasts."""
    store = ArtifactStore(str(tmp_path / "small"), limit_bytes=9_000)
    for number in range(6):
        make_sized(store, number)
        use_at(store, number, 1000.0 + number)
    assert len(numbers_in(store)) == 6, "all are in use"
    store.close()
    assert numbers_in(store) == [3, 4, 5]


def test_a_reader_evicts_nothing(tmp_path: Path) -> None:
    with ArtifactStore(str(tmp_path / "cache")) as store:
        for number in range(3):
            make_sized(store, number).close()
    with ArtifactStore(str(tmp_path / "cache"), limit_bytes=1) as looking:
        found = looking.load(build_key(sized(0)))
        assert found is not None
    assert numbers_in(looking) == [0, 1, 2]


def test_what_is_in_use_stays(small_store: ArtifactStore) -> None:
    user = ArtifactStore(small_store.folder)
    make_sized(small_store, 0).close()
    used = user.load(build_key(sized(0)))
    use_at(small_store, 0, 1000.0)
    for number in range(1, 6):
        make_sized(small_store, number).close()
    assert content_of(used) == b"0" * 1000
    assert 0 in numbers_in(small_store)
    assert len(numbers_in(small_store)) == 3
    use_at(small_store, 0, 1000.0)
    user.close()
    make_sized(small_store, 6).close()
    assert 0 not in numbers_in(small_store)


def test_what_this_process_uses_stays_and_closing_twice_lets_go_once(small_store: ArtifactStore) -> None:
    first, second = make_sized(small_store, 0), make_sized(small_store, 0)
    use_at(small_store, 0, 1000.0)
    first.close()
    first.close()
    for number in range(1, 6):
        make_sized(small_store, number).close()
    assert content_of(second) == b"0" * 1000


def test_what_was_just_made_stays_however_large_it_is(tmp_path: Path) -> None:
    store = ArtifactStore(str(tmp_path / "cache"), limit_bytes=10)
    for number in range(3):
        artifact = make_sized(store, number)
        assert content_of(artifact)
        artifact.close()
        assert numbers_in(store) == [number]


@pytest.mark.parametrize("how", ["killed", "left"])
def test_what_a_process_used_is_free_when_it_is_gone(small_store: ArtifactStore, how: str) -> None:
    code = """
    import os, signal, sys
    from assay.models.store.artifacts import ArtifactStore
    store = ArtifactStore(sys.argv[1])
    assert store.load(sys.argv[2])
    print("have it", flush=True)
    sys.stdin.readline()
    if sys.argv[3] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    """
    make_sized(small_store, 0).close()
    command = [sys.executable, "-c", textwrap.dedent(code), small_store.folder, build_key(sized(0)), how]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "have it\n"
        assert [entry.in_use for entry in small_store.load_entries()] == [True]
        assert small_store.clear().kept == 1
        child.communicate("go\n", timeout=60)
    assert [entry.in_use for entry in small_store.load_entries()] == [False]
    assert small_store.clear().removed == 1


def test_a_forked_child_does_not_let_go_what_its_parent_uses(small_store: ArtifactStore) -> None:
    code = """
    import os, sys
    from assay.models.store.artifacts import ArtifactStore
    store = ArtifactStore(sys.argv[1])
    used = store.load(sys.argv[2])
    pid = os.fork()
    if pid == 0:
        used.close()
        store.close()
        os._exit(0)
    os.waitpid(pid, 0)
    assert ArtifactStore(sys.argv[1]).clear().kept == 1
    used.close()
    assert ArtifactStore(sys.argv[1]).clear().removed == 1
    """
    make_sized(small_store, 0).close()
    result = run_python(code, small_store.folder, build_key(sized(0)))
    assert result.returncode == 0, result.stderr


CROWD = """
import os, random, sys
from assay.models.store.artifacts import ArtifactStore, build_key
folder, seed, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
choose = random.Random(seed)
store = ArtifactStore(folder, 30_000)
counts = [0, 0]
for _ in range(rounds):
    number = choose.randrange(20)
    parts = {"what": "sized", "number": number}
    content = f"{number:04d}" * choose.choice([10, 500, 1000])
    def build(folder):
        for name in "ab":
            with open(f"{folder}/{name}", "w") as file:
                file.write(content)
        return {"length": len(content)}
    artifact, made = store.make(build_key(parts), parts, build, recompute=choose.random() < 0.2)
    counts[made] += 1
    with artifact:
        for name in "ab":
            with open(os.path.join(artifact.folder, name)) as file:
                text = file.read()
            assert text == f"{number:04d}" * (artifact.facts["length"] // 4), (number, text[:20])
assert store.damaged == {}, store.damaged
print(*counts)
"""


@pytest.mark.parametrize("rounds", [60, pytest.param(600, marks=pytest.mark.long)])
def test_eviction_under_concurrent_use(tmp_path: Path, rounds: int) -> None:
    folder = str(tmp_path / "cache")
    command = [sys.executable, "-c", CROWD, folder]
    children = [
        subprocess.Popen([*command, str(seed), str(rounds)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for seed in range(4)
    ]
    hits = made = 0
    for child in children:
        output, errors = child.communicate(timeout=120)
        assert child.returncode == 0, errors
        hits, made = hits + int(output.split()[0]), made + int(output.split()[1])
    assert hits
    assert made > 20  # more than there are keys: some were evicted or replaced, and made again
    store = ArtifactStore(folder, 30_000)
    make_sized(store, 99)
    assert sum(entry.size_bytes for entry in store.load_entries()) <= 30_000
    assert sum(int(name.rpartition(".")[2]) for name in list_names(store)) <= 30_000


# ---------------------------------------------------------------- looking and clearing


def test_entries_are_listed_most_recently_used_first(store: ArtifactStore) -> None:
    for number in range(3):
        make_sized(store, number).close()
        use_at(store, number, 1000.0 + number)
    held = store.load(build_key(sized(1)))
    assert held is not None
    entries = store.load_entries()
    assert [entry.parts["number"] for entry in entries] == [1, 2, 0]
    assert [entry.in_use for entry in entries] == [True, False, False]
    assert entries[1].used_at == 1002.0
    assert entries[1].size_bytes == 1000 + len(b"about ") + 1000
    assert entries[1].made_by == held.made_by


def test_clear_takes_what_is_not_used(store: ArtifactStore) -> None:
    for number in range(3):
        make_sized(store, number).close()
    held = store.load(build_key(sized(1)))
    cleared = store.clear()
    assert (cleared.removed, cleared.kept) == (2, 1)
    assert cleared.freed_bytes > 4000
    assert numbers_in(store) == [1]
    assert content_of(held) == b"1" * 1000
    store.close()
    assert store.clear().removed == 1
    assert files_under(store.folder) == ["v2/lock"]


def test_clear_leaves_what_other_versions_and_other_people_keep_there(store: ArtifactStore) -> None:
    make(store).close()
    other = Path(store.folder, "v3", "entries", "x")
    other.mkdir(parents=True)
    Path(store.folder, "notes.txt").write_text("mine")
    store.clear()
    assert files_under(store.folder) == ["notes.txt", "v2/lock"]
    assert other.is_dir()


def test_the_limit_comes_from_the_surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ArtifactStore(str(tmp_path)).limit_bytes == DEFAULT_LIMIT_BYTES == 10 * 2**30
    monkeypatch.setenv("ASSAY_CACHE_LIMIT", "3MB")
    assert ArtifactStore(str(tmp_path)).limit_bytes == 3_000_000
    assert ArtifactStore(str(tmp_path), 5).limit_bytes == 5


# ---------------------------------------------------------------- where it is, how large it may become


def test_the_place(tmp_path: Path) -> None:
    home = {"HOME": "/home/u"}
    assert choose_store_folder(home, "/start") == "/home/u/.cache/assay/artifacts"
    assert choose_store_folder({**home, "XDG_CACHE_HOME": "/x"}, "/start") == "/x/assay/artifacts"
    assert choose_store_folder({**home, "ASSAY_CACHE_DIR": "/y"}, "/start") == "/y/artifacts"
    assert choose_store_folder({**home, "ASSAY_CACHE": "/big/cache"}, "/start") == "/big/cache"
    assert choose_store_folder({**home, "ASSAY_CACHE": "cache"}, "/start") == "/start/cache"
    assert choose_store_folder({**home, "ASSAY_CACHE": ""}, "/start") == "/home/u/.cache/assay/artifacts"


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("20 GiB", 20 * 2**30),
        ("1.5g", 1_500_000_000),
        ("none", NO_LIMIT),
        ("99999999999TB", NO_LIMIT),
    ],
)
def test_a_limit(text: str, size: int) -> None:
    assert parse_limit(text) == size
    assert choose_limit({"ASSAY_CACHE_LIMIT": text}) == size


def test_a_limit_that_is_none() -> None:
    with pytest.raises(UsageError, match="is not a size") as caught:
        parse_limit("10 GBB")
    assert "20GB" in str(caught.value)
