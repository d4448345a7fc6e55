"""`assay push` and `assay pull` of runs, golden recordings and the model cache, with each object store and a file: address."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.data_servers import Store, open_store
from tests.finished_study import BAD, GOOD, Bench
from tests.golden_training import Lab

from assay.exchange.store.object_store import ObjectRemote
from assay.models.store.artifacts import ArtifactStore
from assay.models.store.entry import build_key

ANY = ["file", "s3", "gcs", pytest.param("azure", marks=pytest.mark.services("azurite"))]


def read_tree(folder: Path) -> dict[str, bytes]:
    """All but what says that a run was pulled, and when."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name not in ("received.json", "pulled"))
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture(params=ANY)
def address(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    if request.param == "file":
        return (tmp_path / "shared").as_uri()
    return open_store(request.param, request, monkeypatch).url("team")


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    (tmp_path / "lab").mkdir()
    monkeypatch.setenv("ASSAY_CACHE_DIR", str(tmp_path / "cache"))
    return Lab(tmp_path / "lab")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What is asked of an object store."""
    calls: list[tuple[str, str]] = []

    def watch(name: str) -> None:
        real = getattr(ObjectRemote, name)

        def call(self: ObjectRemote, first: Any, *others: Any) -> Any:
            calls.append((name, first))
            return real(self, first, *others)

        monkeypatch.setattr(ObjectRemote, name, call)

    for name in ("read", "find", "stat", "digest", "bring", "send", "replace"):
        watch(name)
    return calls


# ---------------------------------------------------------------- each kind, each store


def test_runs(cli: Any, own_bench: Bench, address: str) -> None:
    own_bench.add_finished()
    sent = cli("push", "fit", "--to", address, "--json")
    assert [each["is_new"] for each in json.loads(sent.out)] == [True] * 6, sent.err
    assert "sent 0 files, 0 B" in cli("push", "fit", "--to", address).out
    assert cli("pull", "fit", "--from", address, "--root", "other", "--where", "n==7").code == 0
    for name in (GOOD, BAD):
        assert read_tree(own_bench.folder / "other/fit" / name) == read_tree(own_bench.root / "fit" / name)
    assert sorted(os.listdir(own_bench.folder / "other/fit")) == sorted([".assay", GOOD, BAD])
    with (own_bench.root / "fit" / GOOD / "job.log").open("a") as file:
        file.write("more\n")
    assert "sent 1 file," in cli("push", "fit", "--to", address).out
    assert "fetched 1 file," in cli("pull", f"fit/{GOOD}", "--from", address, "--root", "other").out


def test_one_damaged_manifest_does_not_keep_other_runs_from_coming(cli: Any, own_bench: Bench) -> None:
    own_bench.add_finished()
    place = own_bench.folder / "place"
    assert cli("push", "fit", "--to", str(place)).code == 0
    names = [path.name for path in sorted((place / "studies/fit/runs").iterdir())]
    (place / "studies/fit/runs" / names[0]).write_bytes(b"{")
    (place / "studies/fit/runs" / names[1]).write_bytes(b'{"format": 1}')
    pulled = cli("pull", "fit", "--from", str(place), "--root", "other")
    assert pulled.code == 4
    assert names[0] in pulled.err
    assert names[1] in pulled.err
    assert "fetched" in pulled.out
    there = sorted(path.name for path in (own_bench.folder / "other/fit").iterdir() if path.name != ".assay")
    assert there == sorted(name.removesuffix(".json") for name in names[2:])
    others = cli("pull", f"fit/{there[0]}", "fit/*n=8", "--from", str(place), "--root", "third")
    assert names[0] not in others.err, "it was not asked for"
    assert cli("pull", f"fit/{names[0].removesuffix('.json')}", "--from", str(place)).code == 4


def test_a_manifest_of_a_run_that_lost_its_files_or_its_fields_is_damaged(cli: Any, own_bench: Bench) -> None:
    own_bench.add_finished()
    place = own_bench.folder / "place"
    assert cli("push", "fit", "--to", str(place)).code == 0
    paths = sorted((place / "studies/fit/runs").iterdir())
    fields = json.loads(paths[0].read_text())
    paths[0].write_text(json.dumps({**fields, "files": {}}))
    paths[1].write_text(json.dumps({"format": 1, "kind": "run"}))
    paths[2].write_text("[]")
    pulled = cli("pull", "fit", "--from", str(place), "--root", "other")
    assert pulled.code == 4
    assert "(1 run)" in pulled.out
    said = ["holds no run.json, so it is not a run", "it has no 'files'", "its fields are not those of a manifest"]
    assert [words in pulled.err for words in said] == [True] * 3, pulled.err
    assert "Error" not in pulled.err
    assert not (own_bench.folder / "other" / "fit" / paths[0].stem).exists()


def test_all_damaged_objects_are_named_and_whole_runs_come(cli: Any, own_bench: Bench) -> None:
    own_bench.add_finished()
    place = own_bench.folder / "place"
    assert cli("push", "fit", "--to", str(place)).code == 0
    manifest = json.loads((place / "studies/fit/runs" / f"{GOOD}.json").read_text())
    damaged = []
    for name in ("run.json", "job.sh"):
        sha256 = manifest["files"][name][1]
        damaged.append(place / "objects" / sha256[:2] / sha256)
    damaged[0].write_bytes(b"other")
    damaged[1].unlink()
    (place / "studies/fit/study.json").write_bytes(b"[]")
    pulled = cli("pull", "fit", "--from", str(place), "--root", "other")
    assert pulled.code == 4
    for path in damaged:
        assert path.name in pulled.err
    assert pulled.err.count("study.json is damaged") == 1
    there = {path.name for path in (own_bench.folder / "other/fit").iterdir()}
    assert len(there) == 4
    assert GOOD not in there
    as_json = cli("pull", "fit", "--from", str(place), "--root", "third", "--json")
    assert (as_json.code, len(json.loads(as_json.out))) == (4, 3)


def test_what_cannot_be_read_in_a_shared_folder_does_not_keep_other_runs_from_coming(
    cli: Any, own_bench: Bench
) -> None:
    """As the files of a colleague that others may not read."""
    own_bench.add_finished()
    place = own_bench.folder / "place"
    assert cli("push", "fit", "--to", str(place)).code == 0
    manifest = place / "studies/fit/runs" / f"{BAD}.json"
    sha256 = json.loads((place / "studies/fit/runs" / f"{GOOD}.json").read_text())["files"]["run.json"][1]
    unreadable = [manifest, place / "objects" / sha256[:2] / sha256]
    for path in unreadable:
        path.unlink()
        path.symlink_to(path)  # so not even root can read it
    pulled = cli("pull", "fit", "--from", str(place), "--root", "other")
    assert pulled.code == 4
    assert all(f"{path} cannot be read" in pulled.err for path in unreadable)
    assert {path.name for path in (own_bench.folder / "other/fit").glob("lr=*")} == {"lr=0.1,n=8", "lr=0.5,n=8"}


def test_names_that_stores_might_read_in_their_own_way(cli: Any, own_bench: Bench, address: str) -> None:
    names = ["a b", "ü#1?", "100%2F", "x&y=1", "..", "*[a]", "-rf", "'q\"", "\\back"]
    folder = own_bench.folder / "odd é%20 #?*"
    for name in names[:4] + names[5:]:
        (folder / name).mkdir(parents=True)
        (folder / name / name).write_text(name)
    assert cli("push", folder.name, "--to", f"{address}/with space").code == 0
    assert cli("pull", folder.name, "--from", f"{address}/with space", "--into", "there").code == 0
    assert read_tree(own_bench.folder / "there") == read_tree(folder)


def test_golden_recordings(cli: Any, own_bench: Bench, lab: Lab, address: str) -> None:
    lab.use_golden()
    assert "1 folder" in cli("push", str(lab.store), "--to", address).out
    checked = cli("golden", "check", str(lab.file), "-s", f"{address}/store", "-j", "2")
    assert (checked.code, checked.err.count("Traceback")) == (0, 0), checked.err
    assert cli("golden", "show", f"{address}/store").code == 0


def test_reports_of_golden_checks_go_with_their_study(cli: Any, own_bench: Bench, lab: Lab) -> None:
    """Those that another machine added stay, and nothing here is replaced."""
    lab.use_golden()
    address = str(own_bench.folder / "place")
    words = ("golden", "check", str(lab.file), "-s", str(lab.store), "-j", "2", "--root")
    assert cli(*words, "one").code == 0
    (study,) = os.listdir(own_bench.folder / "one")
    assert cli("push", study, "--to", address, "--root", "one").code == 0
    assert cli("pull", study, "--from", address, "--root", "other").code == 0
    there, here = (own_bench.folder / root / study / ".assay/golden" for root in ("other", "one"))
    assert read_tree(there) == read_tree(here)
    assert len(os.listdir(there)) == 1
    assert cli(*words, "other").code == 0
    assert cli("push", study, "--to", address, "--root", "other").code == 0
    assert cli("pull", study, "--from", address, "--root", "one").code == 0
    assert read_tree(there) == read_tree(here)
    assert len(os.listdir(here)) == 2


def test_the_model_cache(cli: Any, own_bench: Bench, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = make_artifacts(own_bench.folder / "here", 3)
    monkeypatch.setenv("ASSAY_CACHE", str(own_bench.folder / "here"))
    assert "sent 3 artifacts" in cli("model", "cache", "push", "--to", address).out
    assert "sent 0 artifacts" in cli("model", "cache", "push", "--to", address).out
    monkeypatch.setenv("ASSAY_CACHE", str(own_bench.folder / "there"))
    assert "fetched 3 artifacts" in cli("model", "cache", "pull", "--from", address).out
    assert "fetched 0 artifacts" in cli("model", "cache", "pull", "--from", address).out
    with ArtifactStore(str(own_bench.folder / "there")) as store:
        for i, key in enumerate(keys):
            artifact = store.load(key)
            assert artifact is not None
            assert Path(artifact.facts["file"]).read_bytes() == b"compiled %d" % i
            assert artifact.facts["file"].startswith(str(own_bench.folder / "there"))


def make_artifacts(folder: Path, count: int) -> list[str]:
    def build(number: int) -> Callable[[str], dict[str, Any]]:
        def fill(inside: str) -> dict[str, Any]:
            Path(inside, "model.vmfb").write_bytes(b"compiled %d" % number)
            return {"file": os.path.join(inside, "model.vmfb"), "seconds": 0.5}

        return fill

    keys = []
    with ArtifactStore(str(folder)) as store:
        for i in range(count):
            parts = {"what": "compile", "case": f"case{i}", "backend": "sim"}
            keys.append(build_key(parts))
            store.make(keys[-1], parts, build(i))
    return keys


# ---------------------------------------------------------------- the model cache, in detail


def test_a_cache_fetches_no_more_than_it_has_room_for(
    cli: Any, own_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_artifacts(own_bench.folder / "here", 3)
    monkeypatch.setenv("ASSAY_CACHE", str(own_bench.folder / "here"))
    cli("model", "cache", "push", "--to", "shared")
    monkeypatch.setenv("ASSAY_CACHE", str(own_bench.folder / "there"))
    monkeypatch.setenv("ASSAY_CACHE_LIMIT", "25")
    pulled = cli("model", "cache", "pull", "--from", "shared")
    assert "fetched 2 artifacts" in pulled.out
    assert "no room for 1 more" in pulled.err


@pytest.mark.parametrize("change", [{"parts": {"case": "another"}}, {"facts": {"path": "@folder@/../../x"}}], ids=str)
def test_an_artifact_that_is_not_what_its_name_says_is_refused(
    cli: Any, own_bench: Bench, monkeypatch: pytest.MonkeyPatch, change: dict[str, dict[str, str]]
) -> None:
    make_artifacts(own_bench.folder / "here", 1)
    monkeypatch.setenv("ASSAY_CACHE", str(own_bench.folder / "here"))
    cli("model", "cache", "push", "--to", "shared")
    (manifest,) = (own_bench.folder / "shared/caches/models").glob("*.json")
    content = json.loads(manifest.read_text())
    for name, changes in change.items():
        content["facts"][name] |= changes
    manifest.write_text(json.dumps(content))
    monkeypatch.setenv("ASSAY_CACHE", str(own_bench.folder / "there"))
    refused = cli("model", "cache", "pull", "--from", "shared")
    assert (refused.code, "not what its name says" in refused.err) == (4, True)
    with ArtifactStore(str(own_bench.folder / "there")) as store:
        assert store.load_entries() == []


# ---------------------------------------------------------------- a golden store that is an address


@pytest.mark.needs(compat=True)
def test_every_command_of_a_golden_store_at_an_address(cli: Any, own_bench: Bench, lab: Lab, s3: Store) -> None:
    address, file = s3.url("team/golden"), str(lab.file)
    assert cli("golden", "gather", file, "-s", address, "-j", "2").code == 0
    assert cli("golden", "validate", file, "-s", address).code == 0
    before = s3.read("team/folders/golden.json")
    assert cli("golden", "check", file, "-s", address, "-j", "2").code == 0
    assert s3.read("team/folders/golden.json") == before
    lab.change(scale=1.01)
    assert cli("golden", "check", file, "-s", address, "-j", "2").code == 0
    done = cli("golden", "rebase", file, "-s", address, "--from", "check", "--reason", "other numbers", "-j", "2")
    assert done.code == 0, done.out + done.err
    assert s3.read("team/folders/golden.json") != before
    shutil.rmtree(lab.folder.parent / "cache")  # as on another machine
    shown = json.loads(cli("golden", "show", address, "--json").out)
    assert "other numbers" in json.dumps(shown)
    assert cli("convergence", "-t", file, "-s", address).code == 0
    lab.change(scale=3.0)
    failed = cli("golden", "check", file, "-s", address, "-j", "2")
    assert failed.code == 1
    assert str(lab.folder.parent / "cache") not in failed.out


def test_a_copy_that_is_up_to_date_costs_one_look(
    cli: Any, own_bench: Bench, lab: Lab, s3: Store, asked: list[Any]
) -> None:
    lab.use_golden()
    cli("push", str(lab.store), "--to", s3.url("team"))
    asked.clear()
    assert cli("golden", "show", s3.url("team/store")).code == 0
    assert sum(call == "bring" for call, _ in asked) > 3
    asked.clear()
    assert cli("golden", "show", s3.url("team/store")).code == 0
    assert asked == [("read", "folders/store.json")]


def test_two_commands_use_the_copy_at_once(cli: Any, own_bench: Bench, lab: Lab, s3: Store) -> None:
    from assay.exchange.shared_folder import shared_folder

    lab.use_golden()
    cli("push", str(lab.store), "--to", s3.url("team"))
    with shared_folder(s3.url("team/store"), writes=False) as copy:
        assert cli("golden", "show", s3.url("team/store")).code == 0
        assert os.listdir(copy)
    with shared_folder(s3.url("team/store"), writes=True):
        refused = cli("golden", "gather", str(lab.file), "-s", s3.url("team/store"))
        assert (refused.code, "another command" in refused.err) == (2, True)


# ---------------------------------------------------------------- what goes wrong


def test_a_damaged_object_is_named_and_never_used(cli: Any, own_bench: Bench, lab: Lab, s3: Store) -> None:
    lab.use_golden()
    cli("push", str(lab.store), "--to", s3.url("team"))
    manifest = json.loads(s3.read("team/folders/store.json"))
    name, (size, sha256, *_) = next((n, f) for n, f in manifest["files"].items() if n.endswith(".bin"))
    s3.put(f"team/objects/{sha256[:2]}/{sha256}", b"x" * size)
    for words in (
        ["golden", "check", str(lab.file), "-s", s3.url("team/store")],
        ["golden", "show", s3.url("team/store")],
    ):
        refused = cli(*words)
        assert (refused.code, sha256 in refused.err, name in refused.err) == (4, True, True), refused.err
    assert not list((lab.folder.parent / "cache").rglob(os.path.basename(name)))
    assert "sent 1 file" in cli("push", str(lab.store), "--to", s3.url("team"), "--check").out
    assert cli("golden", "show", s3.url("team/store")).code == 0


def test_refusals_name_what_is_missing_and_no_secret(
    cli: Any, own_bench: Bench, lab: Lab, s3: Store, monkeypatch: pytest.MonkeyPatch, closed_port: int
) -> None:
    own_bench.add_finished()
    lab.use_golden()
    file, secret = str(lab.file), "geheim-0123456789"
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")

    def call_all(address: str) -> list[str]:
        calls = (
            ("push", "fit", "--to", address),
            ("golden", "check", file, "-s", f"{address}/golden"),
            ("model", "cache", "pull", "--from", address),
        )
        results = [cli(*words) for words in calls]
        assert all(each.code in (2, 4) for each in results), results
        assert not any(secret in each.out + each.err or "Traceback" in each.err for each in results)
        return [each.err for each in results]

    assert all("no-such-bucket" in each for each in call_all("s3://no-such-bucket/x"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{closed_port}")
    assert all("cannot be reached" in each for each in call_all(s3.url("team")))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    assert all("AWS_ACCESS_KEY_ID" in each for each in call_all(s3.url("team")))


def test_a_run_that_is_not_finished_is_sent_as_it_is(cli: Any, own_bench: Bench, s3: Store) -> None:
    own_bench.add_finished()
    run = own_bench.root / "fit" / GOOD
    done = threading.Event()

    def write() -> None:
        for i in range(100_000):
            with (run / "job.log").open("a") as file:
                file.write(f"line {i}\n")
            if done.wait(0.001):
                return

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(2):
            assert cli("push", f"fit/{GOOD}", "--to", s3.url("team")).code == 0
            shutil.rmtree(own_bench.folder / "other", ignore_errors=True)
            assert cli("pull", "fit", "--from", s3.url("team"), "--root", "other").code == 0
    finally:
        done.set()
        writer.join()
    text = (own_bench.folder / "other/fit" / GOOD / "job.log").read_text()
    assert (run / "job.log").read_text().startswith(text)
    cli("push", f"fit/{GOOD}", "--to", s3.url("team"))
    cli("pull", "fit", "--from", s3.url("team"), "--root", "other")
    assert read_tree(own_bench.folder / "other/fit" / GOOD) == read_tree(run)


def test_a_study_whose_newest_run_is_not_listed_yet(
    cli: Any, own_bench: Bench, s3: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a listing does not show is fetched by its name, and by the next call."""
    own_bench.add_finished()
    cli("push", "fit", "--to", s3.url("team"))
    real = ObjectRemote.find
    with monkeypatch.context() as late:
        late.setattr(ObjectRemote, "find", lambda self, prefix: [k for k in real(self, prefix) if GOOD not in k])
        assert "3 runs" in cli("pull", "fit", "--from", s3.url("team"), "--root", "other").out
        assert "1 run" in cli("pull", f"fit/{GOOD}", "--from", s3.url("team"), "--root", "named").out
    assert "4 runs" in cli("pull", "fit", "--from", s3.url("team"), "--root", "other").out


# ---------------------------------------------------------------- kills


def kill_at(want: int, count: Callable[[], int], command: list[str], folder: Path) -> bool:
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline and count() < want:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    return process.wait() == -signal.SIGKILL


@pytest.mark.parametrize(
    "kills", [pytest.param(5, marks=pytest.mark.services("kills")), pytest.param(20, marks=pytest.mark.long)]
)
def test_push_and_pull_are_killed(cli: Any, own_bench: Bench, s3: Store, kills: int) -> None:
    """In the middle of the transfer, each of them: nothing half is taken for whole, and the same call goes on."""
    own_bench.add_finished()
    run, there, chance = own_bench.root / "fit" / GOOD, own_bench.folder / "there/fit", random.Random(kills)
    address = s3.url("team")
    push = [sys.executable, "-m", "assay", "push", f"fit/{GOOD}", "--to", address, "--quiet"]
    pull = [sys.executable, "-m", "assay", "pull", "fit", "--from", address, "--root", "there", "--quiet"]

    def count_sent() -> int:
        return len(s3.filesystem().find(f"{s3.bucket}/team/objects"))

    def count_fetched() -> int:
        return len(list(there.glob(".assay/.pull-*/data*")))

    states = []  # of the run, as it was sent
    killed = 0
    for _ in range(kills):
        for i in range(40):
            (run / f"data{i}").write_bytes(os.urandom(2000))
        states.append(read_tree(run))
        want = count_sent() + chance.randrange(1, 40)
        killed += kill_at(want, count_sent, push, own_bench.folder)
        seen = cli("pull", f"fit/{GOOD}", "--from", address, "--root", "seen")
        assert seen.code in (0, 2), seen.err  # 2: nothing is there yet
        assert seen.code == 2 or read_tree(own_bench.folder / "seen/fit" / GOOD) in states
    assert cli("push", f"fit/{GOOD}", "--to", address).code == 0
    for _ in range(kills):
        shutil.rmtree(there / GOOD, ignore_errors=True)
        killed += kill_at(chance.randrange(1, 40), count_fetched, pull, own_bench.folder)
        assert not (there / GOOD).exists() or read_tree(there / GOOD) == states[-1]
    assert cli("pull", "fit", "--from", address, "--root", "there").code == 0
    assert read_tree(there / GOOD) == states[-1]
    assert not list(there.glob(".assay/.pull-*"))
    assert killed >= kills  # of twice as many
