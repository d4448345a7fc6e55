"""The artifact store: what went in decides what comes out, also when processes die, delete files or fill the disk."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import textwrap
import threading
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from assay.errors import InfrastructureError, UsageError
from assay.models.store.artifacts import DEFAULT_LIMIT_BYTES, NO_LIMIT, ArtifactStore, choose_store_folder, parse_limit
from assay.models.store.entry import build_key

PARTS: dict[str, Any] = {
    "what": "compile",
    "case": "m_layer_MatMul_0",
    "source": "12ab" * 16,
    "tools": {"iree": "3.13.0"},
    "flags": ["-O2", "--fast"],
}


@pytest.fixture
def store(tmp_path):
    with ArtifactStore(str(tmp_path / "cache")) as made:
        yield made


def filler(content=b"compiled", facts=None):
    def build(folder):
        Path(folder, "sub").mkdir()
        Path(folder, "model.vmfb").write_bytes(content)
        Path(folder, "sub", "debug.txt").write_bytes(b"about " + content)
        return {} if facts is None else facts

    return build


def build_and_return(fill, facts=()):
    """A builder that does this in its folder."""

    def build(folder):
        fill(folder)
        return dict(facts) if facts is not None else None

    return build


def must_not_build(folder):
    raise AssertionError("it was to come from the store")


def make(store, parts=PARTS, content=b"compiled", **how):
    artifact, made = store.make(build_key(parts), parts, filler(content), **how)
    assert made
    return artifact


def content_of(artifact):
    return Path(artifact.folder, "model.vmfb").read_bytes()


def files_under(folder):
    return sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file())


def list_names(store):
    """Every folder in the folders of keys: entries, and builds that are in progress or were killed."""
    return sorted(str(path.relative_to(Path(store.folder, "v2"))) for path in Path(store.folder, "v2").glob("*/*"))


def name_of(artifact):
    return f"{artifact.key}/{Path(artifact.folder).parent.name}"


def start_python(code, *arguments):
    """In a process of its own that has a store; `go` lets it on from where it reads a line."""
    head = "import os, random, signal, sys\nfrom assay.models.store.artifacts import ArtifactStore, build_key\n"
    command = [sys.executable, "-c", head + textwrap.dedent(code), *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def go(process):
    """Its output, once it has ended well."""
    output, errors = process.communicate("go\n", timeout=120)
    assert process.returncode == 0, errors
    return output


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
some_parts = st.dictionaries(st.text(max_size=6), json_like, max_size=5)


def same_value(one, other):
    """As JSON sees it: 1, 1.0 and True differ, and so do 0.0 and -0.0; a tuple is a list."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_value(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same_value, one, other))
    return type(one) is type(other) and repr(one) == repr(other)


@pytest.mark.parametrize("parts", [{1: "a"}, {"a": {2: "b"}}, {"a": b"bytes"}, {"a": {1, 2}}, {"a": object()}])
def test_what_json_does_not_have_is_no_part(parts):
    with pytest.raises(TypeError):
        build_key(parts)


def test_keys_do_not_change_between_versions_of_assay():
    """Else an update would throw away every cache; the text is that of the docstring: canonical JSON."""
    text = '{"flags":["-O2"],"n":1.5,"what":"größe"}'
    assert build_key({"what": "größe", "flags": ("-O2",), "n": 1.5}) == sha256(text.encode()).hexdigest()
    assert build_key({"a": "\ud83d\ude00"}) != build_key({"a": "\U0001f600"}), "a pair of surrogates is no character"


def test_what_was_made_is_found_by_everybody_with_the_same_facts(store):
    facts = {"times_s": (1.0, float("inf")), "nested": {"a": [None, True]}, "text": "größe\udc80"}
    made, _ = store.make(build_key(PARTS), PARTS, filler(b"bytes", facts))
    other = ArtifactStore(store.folder)
    found = other.load(made.key)
    assert found == made
    assert found.facts == {**facts, "times_s": [1.0, float("inf")]}
    assert files_under(found.folder) == ["model.vmfb", "sub/debug.txt"]
    assert content_of(found) == b"bytes"
    assert other.make(made.key, PARTS, must_not_build) == (made, False)
    with pytest.raises(ValueError, match="not the key"):
        store.make(build_key({**PARTS, "flags": []}), PARTS, must_not_build)


def test_nothing_is_there_before_anything_is_made_and_looking_leaves_no_trace(tmp_path):
    store = ArtifactStore(str(tmp_path / "cache"))
    assert store.load(build_key(PARTS)) is None
    assert store.explain(PARTS) == "miss: nothing similar is stored"
    assert store.load_entries() == []
    assert store.clear().removed == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [None, ConnectionRefusedError("the board")])
def test_a_builder_that_fails_leaves_nothing_and_its_exception_comes_out(store, error):
    def build(folder):
        Path(folder, "half.vmfb").write_bytes(b"half")
        if error is not None:
            raise error

    with pytest.raises(ConnectionRefusedError) if error else contextlib.nullcontext():
        assert store.make(build_key(PARTS), PARTS, build) == (None, False)
    assert files_under(store.folder) == ["v2/lock"]
    make(store)


def test_paths_in_facts_lead_to_where_the_files_are_now(store):
    def build(folder):
        path = Path(folder, "model.vmfb")
        path.write_bytes(b"x")
        return {"path": str(path), "command": f"compile -o {path} in.onnx", "all": [str(path)]}

    made, _ = store.make(build_key(PARTS), PARTS, build)
    moved = store.folder + " moved"
    shutil.copytree(store.folder, moved)
    for artifact in (made, ArtifactStore(store.folder).load(build_key(PARTS)), ArtifactStore(moved).load(made.key)):
        assert Path(artifact.facts["path"]).read_bytes() == b"x"
        assert artifact.facts["command"] == f"compile -o {artifact.folder}/model.vmfb in.onnx"
        assert artifact.facts["all"] == [artifact.facts["path"]]


def test_recompute_replaces_and_readers_of_the_old_one_go_on(store):
    old = make(store, content=b"old")
    new = make(store, content=b"new", recompute=True)
    assert content_of(old) == b"old"
    assert content_of(new) == b"new"
    assert content_of(ArtifactStore(store.folder).load(old.key)) == b"new"
    assert len(store.load_entries()) == 1
    assert list_names(store) == sorted([name_of(old), name_of(new)]), "the old version stays while it is used"
    old.close()
    newest = make(store, recompute=True)
    assert list_names(store) == sorted([name_of(new), name_of(newest)])
    assert store.load(new.key) == newest


def test_recomputing_that_is_interrupted_keeps_the_old_one_and_one_that_fails_does_not(store):
    old = make(store)

    def interrupt(folder):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.make(old.key, PARTS, interrupt, recompute=True)
    assert content_of(store.load(old.key)) == b"compiled"
    assert store.make(old.key, PARTS, lambda _folder: None, recompute=True) == (None, False)
    assert store.load(old.key) is None
    assert content_of(old) == b"compiled", "for those that use it"
    store.close()
    assert store.clear().removed == 1


def test_odd_names(tmp_path, hostile_name):
    store = ArtifactStore(str(tmp_path / hostile_name))

    def build(folder):
        Path(folder, hostile_name).mkdir()
        Path(folder, hostile_name, hostile_name).write_text("odd")
        return {"name": hostile_name}

    store.make(build_key(PARTS), PARTS, build)
    found = ArtifactStore(store.folder).load(build_key(PARTS))
    assert Path(found.folder, found.facts["name"], hostile_name).read_text() == "odd"


def test_a_link_inside_is_kept_and_one_that_leads_outside_is_refused(store, tmp_path):
    def link(folder):
        Path(folder, "model.1").write_bytes(b"x")
        os.symlink("model.1", f"{folder}/model")

    artifact, _ = store.make(build_key(PARTS), PARTS, build_and_return(link))
    assert Path(artifact.folder, "model").read_bytes() == b"x"
    for target in (str(tmp_path), "..", "../manifest.json", "a/../../manifest.json"):
        leak = build_and_return(lambda folder, target=target: os.symlink(target, f"{folder}/leak"))
        with pytest.raises(InfrastructureError, match="leak leads outside"):
            store.make(build_key({"target": target}), {"target": target}, leak)
    with pytest.raises(InfrastructureError, match="pipe is not a file"):
        store.make(build_key({}), {}, build_and_return(lambda folder: os.mkfifo(f"{folder}/pipe")))


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
def test_a_miss_reports_what_changed(store, change, reason):
    make(store)
    assert store.explain({**PARTS, **change}) == reason


def test_a_hit_reports_when_and_by_whom(store):
    make(store)
    assert re.fullmatch(r"hit: made \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC by \S+@\S+", store.explain(PARTS))


def test_the_nearest_of_several_of_one_back_end_and_step_is_compared_with(store):
    make(store, {**PARTS, "flags": ["-O0"], "tools": {"iree": "1"}})
    make(store, {**PARTS, "flags": ["-O1"]})
    make(store, {**PARTS, "source": "99" * 32, "flags": ["-O0"], "tools": {"iree": "2"}})
    assert store.explain(PARTS) == "miss: flags changed: -O1 → -O2 --fast"
    assert store.explain({**PARTS, "backend": "command"}) == "miss: nothing similar is stored"
    make(store, {**PARTS, "what": "run"})
    reason = store.explain({**PARTS, "what": "run", "source": "34cd" * 16})
    assert reason == "miss: the output of the previous step changed (sha 12ab… → 34cd…)"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(some_parts, some_parts)
def test_parts_have_one_key_only_when_they_are_the_same_and_every_miss_has_a_reason_in_one_line(tmp_path, old, new):
    assert (build_key(old) == build_key(new)) == same_value(old, new)
    store = ArtifactStore(str(tmp_path / "cache"))
    old, new = {"what": "x", **old}, {"what": "x", **new}
    store.clear()
    store.make(build_key(old), old, lambda _folder: {})
    text = store.explain(new)
    store.close()
    assert text.startswith("hit: " if same_value(old, new) else "miss: ")
    assert text != "miss: "
    assert len(text.splitlines()) == 1


def entry_of(artifact):
    return Path(artifact.folder).parent


def damage_file(name, content):
    def damage(artifact):
        path = entry_of(artifact) / name
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content)

    return damage


def change_manifest(**change):
    def damage(artifact):
        path = entry_of(artifact) / "manifest.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | change))

    return damage


def turn_into(make):
    def damage(artifact):
        path = Path(artifact.folder, "model.vmfb")
        path.rename(entry_of(artifact) / "moved")
        make(path)

    return damage


def empty_folder(artifact):
    Path(artifact.folder, "sub", "debug.txt").unlink()
    Path(artifact.folder, "sub").rmdir()


DAMAGES = {
    "deleted": (damage_file("files/model.vmfb", None), "model.vmfb is missing"),
    "truncated": (damage_file("files/model.vmfb", b"comp"), "model.vmfb has 4 bytes instead of 8"),
    "changed": (damage_file("files/model.vmfb", b"COMPILED"), "model.vmfb has changed (sha256 "),
    "added": (damage_file("files/other.so", b"x"), "other.so was added later"),
    "folder": (turn_into(Path.mkdir), "model.vmfb is of another kind"),
    "pipe": (turn_into(os.mkfifo), "model.vmfb is of another kind"),
    "link": (turn_into(lambda path: path.symlink_to("../moved")), "model.vmfb is of another kind"),
    "folder gone": (empty_folder, "sub is missing"),
    "manifest empty": (damage_file("manifest.json", b""), "its manifest is damaged"),
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
def test_a_damaged_entry_counts_as_missing_and_is_made_again(store, kind):
    damage, reason = DAMAGES[kind]
    for reader in (store, ArtifactStore(store.folder)):  # the first one has found it intact
        made = make(store, recompute=True)
        made.close()
        damage(made)
        assert reader.explain(PARTS).startswith(f"miss: the entry was damaged: {reason}")
        assert reader.load(made.key) is None
        assert reader.damaged[made.key].startswith(reason)
        again = make(reader)
        assert content_of(again) == b"compiled"
        assert reader.damaged == {}
        assert reader.explain(PARTS).startswith("hit: ")
        assert list_names(store) == [name_of(again)]
        again.close()


def test_a_damaged_entry_that_others_use_is_no_longer_served_and_goes_when_they_are_done(store):
    user = ArtifactStore(store.folder)
    make(store).close()
    used = user.load(build_key(PARTS))
    Path(used.folder, "sub", "debug.txt").unlink()
    assert store.load(used.key) is None
    assert content_of(used) == b"compiled"
    user.close()
    assert store.clear().removed == 1
    assert not os.path.exists(used.folder)


def test_files_that_look_as_before_are_not_read_again(store):
    """What makes repeated loads cheap, and its price: a change that keeps size and time is seen by the next process."""
    made = make(store)
    path = Path(made.folder, "model.vmfb")
    status = path.stat()
    path.write_bytes(b"COMPILED")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert store.load(made.key) == made
    assert ArtifactStore(store.folder).load(made.key) is None


def test_a_process_without_descriptors_does_not_take_good_entries_for_bad(store):
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


@contextlib.contextmanager
def as_root():
    """Where `forbidden_dir` took root's rights away; for other users nothing changes."""
    before = os.geteuid()
    if os.getuid() == 0:
        os.seteuid(0)
    yield
    os.seteuid(before)


def test_a_read_only_store_serves_what_it_has_and_reports_that_it_cannot_make(forbidden_dir):
    with as_root():
        forbidden_dir.chmod(0o777)
        with ArtifactStore(str(forbidden_dir / "cache")) as writer:
            make(writer, {"what": "x"})
        for path in (*forbidden_dir.rglob("*"), forbidden_dir):
            path.chmod(0o555 if path.is_dir() else 0o444)
    store = ArtifactStore(str(forbidden_dir / "cache"))
    found = store.load(build_key({"what": "x"}))
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


def test_a_store_whose_place_is_a_file(tmp_path):
    (tmp_path / "cache").write_text("")
    store = ArtifactStore(str(tmp_path / "cache"))
    assert store.load(build_key(PARTS)) is None
    with pytest.raises(InfrastructureError, match="set ASSAY_CACHE"):
        store.make(build_key(PARTS), PARTS, must_not_build)


@pytest.fixture
def small_files():
    """No file of this process can grow beyond 4 KiB: a real refusal of the kernel, like that of a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.usefixtures("small_files")
@pytest.mark.parametrize(
    "build", [filler(b"x" * 10_000), filler(facts={"stderr": "x" * 10_000})], ids=["building", "writing the manifest"]
)
def test_a_disk_that_is_full(store, build):
    with pytest.raises(InfrastructureError, match=r"cannot write in the artifact cache") as caught:
        store.make(build_key(PARTS), PARTS, build)
    assert "assay model cache clear" in str(caught.value)
    assert store.load(build_key(PARTS)) is None
    assert files_under(store.folder) == ["v2/lock"]


def test_read_only_folders_that_a_tool_makes_are_removed_too(forbidden_dir):
    """As a user that the modes bind: root may delete anything."""
    with as_root():
        forbidden_dir.chmod(0o777)
    store = ArtifactStore(str(forbidden_dir / "cache"))

    def fill(folder):
        filler()(folder)
        Path(folder, "sub").chmod(0o555)

    store.make(build_key(PARTS), PARTS, build_and_return(fill, None))
    assert files_under(store.folder) == ["v2/lock"]


BUILD_ONCE = """
folder, log = sys.argv[1:]
parts = {"what": "compile"}
def build(folder):
    with open(log, "a") as file:
        file.write(f"{os.getpid()}\\n")
    sys.stdin.readline()  # until all others are at `make` as well
    open(f"{folder}/made", "w").close()
    return {"pid": os.getpid()}
print("ready", flush=True)
artifact, made = ArtifactStore(folder).make(build_key(parts), parts, build)
assert os.listdir(artifact.folder) == ["made"]
print(made, artifact.facts["pid"])
"""


def test_several_processes_build_once(store, tmp_path):
    children = [start_python(BUILD_ONCE, store.folder, tmp_path / "log") for _ in range(4)]
    assert [child.stdout.readline() for child in children] == ["ready\n"] * 4
    for child in children:
        child.stdin.write("go\n")
        child.stdin.flush()
    answers = [go(child).split() for child in children]
    builder = (tmp_path / "log").read_text().split()
    assert len(builder) == 1
    assert sorted(made for made, _ in answers) == ["False"] * 3 + ["True"]
    assert {pid for _, pid in answers} == set(builder)


def test_eight_threads_build_once(store):
    built, found, entered = [], [], threading.Semaphore(0)

    def build(folder):
        built.append(folder)
        for _ in range(8):
            entered.acquire()
        return filler(b"x" * 100_000)(folder)

    def work():
        entered.release()
        found.append(store.make(build_key(PARTS), PARTS, build)[0].folder)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(built), len(found), len(set(found))) == (1, 8, 1)


# Each child counts what it asks of the system from the beginning of `make` on, and kills itself at the n-th request.
KILLED = """
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
def test_a_kill_at_any_moment_leaves_nothing_that_counts(tmp_path, mode, seen):
    assert go(start_python(KILLED, tmp_path / "cache", mode)).endswith(f" {seen}\n")


def test_a_waiting_process_builds_itself_when_the_builder_is_killed(store):
    code = """
    def build(folder):
        open(folder + "/half", "w").close()
        print("building", flush=True)
        sys.stdin.readline()
    parts = {"what": "compile"}
    ArtifactStore(sys.argv[1]).make(build_key(parts), parts, build)
    """
    with start_python(code, store.folder) as child:
        assert child.stdout.readline() == "building\n"
        made = []
        waiter = threading.Thread(target=lambda: made.append(make(store, {"what": "compile"})))
        waiter.start()
        child.kill()
        waiter.join(timeout=60)
    assert files_under(made[0].folder) == ["model.vmfb", "sub/debug.txt"]
    make(store)
    assert len(list_names(store)) == 2


def sized(number):
    return {"what": "sized", "number": number}


def make_sized(store, number):
    artifact, _ = store.make(build_key(sized(number)), sized(number), filler(b"%d" % number * 1000))
    return artifact


def numbers_in(store):
    return sorted(entry.parts["number"] for entry in store.load_entries())


@pytest.fixture
def small_store(tmp_path):
    """Room for three artifacts of about 2.5 KB."""
    with ArtifactStore(str(tmp_path / "small"), limit_bytes=9_000) as store:
        yield store


def use_at(store, number, when):
    (entry,) = Path(store.folder, "v2", build_key(sized(number))).iterdir()
    os.utime(entry, (when, when))


def test_the_least_recently_used_leave_and_what_was_just_made_stays_however_large_it_is(small_store):
    for number in range(3):
        make_sized(small_store, number).close()
        use_at(small_store, number, 1000.0 + number)
    small_store.load(build_key(sized(0))).close()  # used just now, so 1 is the oldest
    make_sized(small_store, 3).close()
    assert numbers_in(small_store) == [0, 2, 3]
    assert len(list_names(small_store)) == 3
    tiny = ArtifactStore(small_store.folder, limit_bytes=10)
    for number in range(4, 6):
        artifact = make_sized(tiny, number)
        assert content_of(artifact)
        artifact.close()
        assert numbers_in(tiny) == [number]


def test_what_was_held_until_the_end_leaves_then(small_store):
    """A check holds the reference's activations, the largest things, as long as it lasts."""
    for number in range(6):
        make_sized(small_store, number)
        use_at(small_store, number, 1000.0 + number)
    assert len(numbers_in(small_store)) == 6, "all are in use"
    small_store.close()
    assert numbers_in(small_store) == [3, 4, 5]


def test_a_reader_evicts_nothing(tmp_path):
    with ArtifactStore(str(tmp_path / "cache")) as store:
        for number in range(3):
            make_sized(store, number).close()
    with ArtifactStore(str(tmp_path / "cache"), limit_bytes=1) as looking:
        assert looking.load(build_key(sized(0)))
    assert numbers_in(looking) == [0, 1, 2]


def test_what_is_in_use_stays_and_closing_twice_lets_go_once(small_store):
    user = ArtifactStore(small_store.folder)
    make_sized(small_store, 0).close()
    used = user.load(build_key(sized(0)))
    own = small_store.load(build_key(sized(0)))
    use_at(small_store, 0, 1000.0)
    for number in range(1, 6):
        make_sized(small_store, number).close()
    assert content_of(used) == b"0" * 1000
    assert 0 in numbers_in(small_store)
    assert len(numbers_in(small_store)) == 3
    user.close()
    other = small_store.load(build_key(sized(0)))
    use_at(small_store, 0, 1000.0)
    for _ in range(2):  # the second time it lets go of nothing: it is used by another one
        own.close()
    make_sized(small_store, 6).close()
    assert content_of(other) == b"0" * 1000
    other.close()
    use_at(small_store, 0, 1000.0)
    make_sized(small_store, 7).close()
    assert 0 not in numbers_in(small_store)


@pytest.mark.parametrize("how", ["killed", "left", "forked"])
def test_what_a_process_used_is_free_when_it_is_gone_and_a_child_of_it_does_not_let_it_go(small_store, how):
    code = """
    store = ArtifactStore(sys.argv[1])
    used = store.load(sys.argv[2])
    if sys.argv[3] == "forked" and os.fork() == 0:
        used.close()
        store.close()
        os._exit(0)
    os.wait() if sys.argv[3] == "forked" else None
    print("have it", flush=True)
    sys.stdin.readline()
    """
    make_sized(small_store, 0).close()
    with start_python(code, small_store.folder, build_key(sized(0)), how) as child:
        assert child.stdout.readline() == "have it\n"
        assert [entry.in_use for entry in small_store.load_entries()] == [True]
        assert small_store.clear().kept == 1
        child.kill() if how == "killed" else go(child)
    assert [entry.in_use for entry in small_store.load_entries()] == [False]
    assert small_store.clear().removed == 1


CROWD = """
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
def test_eviction_under_concurrent_use(tmp_path, rounds):
    folder = str(tmp_path / "cache")
    children = [start_python(CROWD, folder, seed, rounds) for seed in range(4)]
    counts = [list(map(int, go(child).split())) for child in children]
    hits, made = map(sum, zip(*counts, strict=True))
    assert hits
    assert made > 20  # more than there are keys: some were evicted or replaced, and made again
    store = ArtifactStore(folder, 30_000)
    make_sized(store, 99)
    assert sum(entry.size_bytes for entry in store.load_entries()) <= 30_000
    assert sum(int(name.rpartition(".")[2]) for name in list_names(store)) <= 30_000


def test_entries_are_listed_most_recently_used_first(store):
    for number in range(3):
        make_sized(store, number).close()
        use_at(store, number, 1000.0 + number)
    held = store.load(build_key(sized(1)))
    entries = store.load_entries()
    assert [entry.parts["number"] for entry in entries] == [1, 2, 0]
    assert [entry.in_use for entry in entries] == [True, False, False]
    assert entries[1].used_at == 1002.0
    assert entries[1].size_bytes == 1000 + len(b"about ") + 1000
    assert entries[1].made_by == held.made_by


def test_clear_takes_what_is_not_used_and_nothing_of_other_versions_and_other_people(store):
    for number in range(3):
        make_sized(store, number).close()
    other = Path(store.folder, "v3", "entries", "x")
    other.mkdir(parents=True)
    Path(store.folder, "notes.txt").write_text("mine")
    held = store.load(build_key(sized(1)))
    cleared = store.clear()
    assert (cleared.removed, cleared.kept) == (2, 1)
    assert cleared.freed_bytes > 4000
    assert numbers_in(store) == [1]
    assert content_of(held) == b"1" * 1000
    store.close()
    assert store.clear().removed == 1
    assert files_under(store.folder) == ["notes.txt", "v2/lock"]
    assert other.is_dir()


def test_the_limit_comes_from_the_surroundings(tmp_path, monkeypatch):
    assert ArtifactStore(str(tmp_path)).limit_bytes == DEFAULT_LIMIT_BYTES == 10 * 2**30
    limits = {"3MB": 3_000_000, "20 GiB": 20 * 2**30, "1.5g": 1_500_000_000}
    limits |= {"none": NO_LIMIT, "99999999999TB": NO_LIMIT}
    for text, size in limits.items():
        monkeypatch.setenv("ASSAY_CACHE_LIMIT", text)
        assert ArtifactStore(str(tmp_path)).limit_bytes == size
    assert ArtifactStore(str(tmp_path), 5).limit_bytes == 5
    with pytest.raises(UsageError, match="is not a size") as caught:
        parse_limit("10 GBB")
    assert "20GB" in str(caught.value)


def test_the_place(tmp_path):
    home = {"HOME": "/home/u"}
    assert choose_store_folder(home, "/start") == "/home/u/.cache/assay/artifacts"
    assert choose_store_folder({**home, "XDG_CACHE_HOME": "/x"}, "/start") == "/x/assay/artifacts"
    assert choose_store_folder({**home, "ASSAY_CACHE_DIR": "/y"}, "/start") == "/y/artifacts"
    assert choose_store_folder({**home, "ASSAY_CACHE": "/big/cache"}, "/start") == "/big/cache"
    assert choose_store_folder({**home, "ASSAY_CACHE": "cache"}, "/start") == "/start/cache"
    assert choose_store_folder({**home, "ASSAY_CACHE": ""}, "/start") == "/home/u/.cache/assay/artifacts"
