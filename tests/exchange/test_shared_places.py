"""`assay push` and `assay pull` of runs, golden recordings and the model cache: with each object store, and what goes wrong."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.data_servers import Store
from tests.exchange.commands.test_export import make_run
from tests.finished_study import BAD, GOOD, Bench
from tests.golden_training import Lab, run_in_process

from assay.errors import FormatError
from assay.exchange.shared_folder import shared_folder
from assay.exchange.store.mirror import load_manifest
from assay.exchange.store.remote import FolderRemote, open_remote
from assay.models.store.artifacts import ArtifactStore
from assay.models.store.entry import build_key


def read_tree(folder: Path) -> dict[str, bytes]:
    """All but what says that a run was pulled, and when."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name not in ("received.json", "pulled"))
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    (tmp_path / "lab").mkdir()
    monkeypatch.setenv("ASSAY_CACHE_DIR", str(tmp_path / "cache"))
    run_in_process(monkeypatch)
    return Lab(tmp_path / "lab")


@pytest.fixture
def place(own_bench: Bench) -> Path:
    return own_bench.folder / "place"


# ---------------------------------------------------------------- each store


def test_runs_and_names_that_a_store_might_read_in_its_own_way(cli: Any, own_bench: Bench, store: Store) -> None:
    for name in ("lr=0.1,n=7", "b"):
        make_run(own_bench, name, {"x": name}, [{"step": 1, "loss": 0.5}])
    run, address = own_bench.root / "made/lr=0.1,n=7", store.url("team/with space")
    for name in ("a b", "ü#1?", "100%2F", "x&y=1", "*[a]", "-rf", "'q\"", "\\back"):
        (run / name).mkdir()
        (run / name / name).write_text(name)
    sent = cli("push", "made", "--to", address, "--json")
    assert [each["is_new"] for each in json.loads(sent.out)] == [True] * 3, sent.err
    (run / "job.log").write_text("more\n")
    assert "sent 1 file," in cli("push", "made", "--to", address).out
    assert cli("pull", "made", "--from", address, "--root", "other", "--where", "x!='b'").code == 0
    assert read_tree(own_bench.folder / "other/made" / run.name) == read_tree(run)
    assert sorted(os.listdir(own_bench.folder / "other/made")) == [".assay", run.name]


def test_refusals_name_what_is_missing_and_no_secret(
    cli: Any, own_bench: Bench, lab: Lab, s3: Store, monkeypatch: pytest.MonkeyPatch, closed_port: int
) -> None:
    own_bench.add_finished()
    lab.use_golden()
    secret = "geheim-0123456789"
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")

    def refuse(said: str, *words: str) -> None:
        result = cli(*words)
        assert (result.code in (2, 4), said in result.err) == (True, True), result
        assert not [word for word in (secret, "Traceback") if word in result.out + result.err]

    gone = "s3://no-such-bucket/x"
    refuse("no-such-bucket", "push", "fit", "--to", gone)
    refuse("no-such-bucket", "golden", "check", str(lab.file), "-s", f"{gone}/golden")
    refuse("no-such-bucket", "model", "cache", "pull", "--from", gone)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{closed_port}")
    refuse("cannot be reached", "push", "fit", "--to", s3.url("team"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    refuse("AWS_ACCESS_KEY_ID", "push", "fit", "--to", s3.url("team"))


# ---------------------------------------------------------------- what is damaged


def test_damaged_manifests_do_not_keep_other_runs_from_coming(cli: Any, own_bench: Bench, place: Path) -> None:
    own_bench.add_finished()
    assert cli("push", "fit", "--to", str(place)).code == 0
    paths = sorted((place / "studies/fit/runs").iterdir())
    good = json.loads(paths[0].read_text())
    said = {
        "{": "is damaged",
        '{"format": 1}': "it has no 'files'",
        json.dumps({**good, "files": {}}): "contains no run.json, so it is not a run",
        json.dumps({"format": 1, "kind": "run"}): "it has no 'files'",
        "[]": "its fields are not those of a manifest",
    }
    for number, (text, words) in enumerate(said.items()):
        paths[0].write_text(text)
        pulled = cli("pull", "fit", "--from", str(place), "--root", f"other-{number}")
        assert (pulled.code, "(3 runs)" in pulled.out) == (4, True), pulled
        assert words in pulled.err
        assert paths[0].name in pulled.err
        assert "Error" not in pulled.err
        there = {path.name for path in (own_bench.folder / f"other-{number}/fit").iterdir()} - {".assay"}
        assert there == {path.stem for path in paths[1:]}
    others = cli("pull", f"fit/{paths[1].stem}", "fit/*n=8", "--from", str(place), "--root", "third")
    assert paths[0].name not in others.err, "it was not asked for"
    assert cli("pull", f"fit/{paths[0].stem}", "--from", str(place)).code == 4


@pytest.mark.parametrize("kind", ["study", "folder"])
def test_no_file_of_a_supervisor_comes_from_a_store(cli: Any, own_bench: Bench, place: Path, kind: str) -> None:
    """`assay stop` would interrupt the process that its name states."""
    own_bench.add_finished()
    assert cli("push", "fit", "--to", str(place)).code == 0
    (path,) = (place / "studies/fit").glob("study*.json")
    manifest = json.loads(path.read_text())
    entry = next(iter(manifest["files"].values()))
    files = {**manifest["files"], "supervisor.here.1.1": entry}
    path.write_text(json.dumps({**manifest, "kind": kind, "files": files}))
    cli("pull", "fit", "--from", str(place), "--root", "other")
    there = {each.name for each in (own_bench.folder / "other/fit/.assay").iterdir()}
    assert not [name for name in there if name.startswith("supervisor")]
    assert (own_bench.folder / "other/fit").is_dir()


def test_all_damaged_objects_are_named_and_whole_runs_come(cli: Any, own_bench: Bench, place: Path) -> None:
    """Also what cannot be read, as the files of a colleague that others may not read."""
    own_bench.add_finished()
    assert cli("push", "fit", "--to", str(place)).code == 0
    manifest = json.loads((place / "studies/fit/runs" / f"{GOOD}.json").read_text())
    hashes = [manifest["files"][name][1] for name in ("run.json", "job.sh", "job.log")]
    damaged = [place / "objects" / sha256[:2] / sha256 for sha256 in hashes]
    damaged[0].write_bytes(b"other")
    damaged[1].unlink()
    unreadable = [damaged[2], place / "studies/fit/runs" / f"{BAD}.json"]
    for path in unreadable:
        path.unlink()
        path.symlink_to(path)  # so not even root can read it
    (place / "studies/fit/study.json").write_bytes(b"[]")
    pulled = cli("pull", "fit", "--from", str(place), "--root", "other").ended(4)
    assert [path.name for path in damaged if path.name not in pulled.err] == []
    assert all(f"{path} cannot be read" in pulled.err for path in unreadable)
    assert pulled.err.count("study.json is damaged") == 1
    for name in ("fit", f"fit/{GOOD}"):  # each hint can be pasted
        assert f"assay push {name} --to {place} --check\n" in pulled.err
    assert {path.name for path in (own_bench.folder / "other/fit").glob("lr=*")} == {"lr=0.1,n=8", "lr=0.5,n=8"}
    as_json = cli("pull", "fit", "--from", str(place), "--root", "third", "--json")
    assert (as_json.code, len(json.loads(as_json.out))) == (4, 2)


def test_a_study_whose_newest_run_is_not_listed_yet(
    cli: Any, own_bench: Bench, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a listing does not show is fetched by its name, and by the next call."""
    own_bench.add_finished()
    cli("push", "fit", "--to", str(place))
    real = FolderRemote.find
    with monkeypatch.context() as late:
        late.setattr(FolderRemote, "find", lambda self, prefix: [k for k in real(self, prefix) if GOOD not in k])
        assert "3 runs" in cli("pull", "fit", "--from", str(place), "--root", "other").out
        assert "1 run" in cli("pull", f"fit/{GOOD}", "--from", str(place), "--root", "named").out
    assert "4 runs" in cli("pull", "fit", "--from", str(place), "--root", "other").out


# ---------------------------------------------------------------- the model cache


def test_the_model_cache(cli: Any, own_bench: Bench, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not what its name says is refused."""
    here, there = own_bench.folder / "here", own_bench.folder / "there"
    keys = make_artifacts(here, 3)
    monkeypatch.setenv("ASSAY_CACHE", str(here))
    for count in (3, 0):
        assert f"sent {count} artifacts" in cli("model", "cache", "push", "--to", str(place)).out
    monkeypatch.setenv("ASSAY_CACHE", str(there))
    for count in (3, 0):
        assert f"fetched {count} artifacts" in cli("model", "cache", "pull", "--from", str(place)).out
    with ArtifactStore(str(there)) as store:
        for i, key in enumerate(keys):
            artifact = store.load(key)
            assert Path(artifact.facts["file"]).read_bytes() == b"compiled %d" % i
            assert artifact.facts["file"].startswith(str(there))
    monkeypatch.setenv("ASSAY_CACHE", str(own_bench.folder / "small"))
    monkeypatch.setenv("ASSAY_CACHE_LIMIT", "25")
    pulled = cli("model", "cache", "pull", "--from", str(place))
    assert "fetched 2 artifacts" in pulled.out
    assert "no room for 1 more" in pulled.err
    monkeypatch.delenv("ASSAY_CACHE_LIMIT")
    monkeypatch.setenv("ASSAY_CACHE", str(own_bench.folder / "none"))
    manifest = min((place / "caches/models").glob("*.json"))
    good = manifest.read_text()
    for name, change in (("parts", {"case": "another"}), ("facts", {"path": "@folder@/../../x"})):
        content = json.loads(good)
        content["facts"][name] |= change
        manifest.write_text(json.dumps(content))
        cli("model", "cache", "pull", "--from", str(place)).ended(4, "not what its name says")
        with ArtifactStore(str(own_bench.folder / "none")) as store:
            assert manifest.stem not in [entry.key for entry in store.load_entries()]


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


def test_damaged_artifacts_do_not_keep_others_from_coming(
    cli: Any, own_bench: Bench, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = make_artifacts(own_bench.folder / "here", 4)
    monkeypatch.setenv("ASSAY_CACHE", str(own_bench.folder / "here"))
    cli("model", "cache", "push", "--to", str(place))
    manifests = [place / "caches/models" / f"{key}.json" for key in keys]
    manifests[0].write_text("{")
    manifests[1].write_text(manifests[2].read_text())
    (content,) = (path for path in place.rglob("*") if path.is_file() and path.read_bytes() == b"compiled 3")
    content.write_bytes(b"damaged")
    monkeypatch.setenv("ASSAY_CACHE", str(own_bench.folder / "there"))
    for count in (1, 0):
        pulled = cli("model", "cache", "pull", "--from", str(place))
        assert (pulled.code, f"fetched {count} artifact" in pulled.out) == (4, True), pulled
        assert all(words in pulled.err for words in (keys[0], keys[1], content.name)), pulled.err


# ---------------------------------------------------------------- a golden store that is an address


@pytest.mark.needs(compat=True)
def test_every_command_of_a_golden_store_at_an_address(cli: Any, own_bench: Bench, lab: Lab, place: Path) -> None:
    address, file, manifest = f"{place.as_uri()}/golden", str(lab.file), place / "folders" / "golden.json"
    assert cli("golden", "check", file, "-s", "s3://bucket").code == 2
    assert cli("golden", "gather", file, "-s", address).code == 0
    assert not (place / "golden").exists()
    assert cli("golden", "validate", file, "-s", address).code == 0
    before = manifest.read_bytes()
    assert cli("golden", "check", file, "-s", address).code == 0
    assert manifest.read_bytes() == before
    lab.change(scale=1.01)
    done = cli("golden", "rebase", file, "-s", address, "--from", "check", "--reason", "other numbers")
    assert done.code == 0, done.out + done.err
    assert manifest.read_bytes() != before
    shutil.rmtree(lab.folder.parent / "cache")  # as on another machine
    assert "other numbers" in json.dumps(json.loads(cli("golden", "show", address, "--json").out))
    assert cli("convergence", "-t", file, "-s", address).code == 0
    lab.change(scale=3.0)
    failed = cli("golden", "check", file, "-s", address).ended(1)
    assert str(lab.folder.parent / "cache") not in failed.out


def test_a_copy_on_this_machine(
    cli: Any, own_bench: Bench, lab: Lab, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is up to date costs one look; several commands read it at once; a damaged object is never used."""
    lab.use_golden()
    cli("push", str(lab.store), "--to", str(place))
    manifest = json.loads((place / "folders/store.json").read_text())
    name, (size, sha256, *_) = next((n, f) for n, f in manifest["files"].items() if n.endswith(".bin"))
    damaged = place / "objects" / sha256[:2] / sha256
    damaged.write_bytes(b"x" * size)
    for words in (["check", str(lab.file), "-s", f"{place.as_uri()}/store"], ["show", f"{place.as_uri()}/store"]):
        refused = cli("golden", *words)
        assert (refused.code, sha256 in refused.err, name in refused.err) == (4, True, True), refused.err
    assert not list((lab.folder.parent / "cache").rglob(os.path.basename(name)))
    assert "sent 1 file" in cli("push", str(lab.store), "--to", str(place), "--check").out
    asked: list[tuple[str, str]] = []
    for method in ("read", "find", "stat", "digest", "bring", "send", "replace"):
        real = getattr(FolderRemote, method)

        def call(self: FolderRemote, first: Any, *others: Any, _name: str = method, _real: Any = real) -> Any:
            asked.append((_name, first))
            return _real(self, first, *others)

        monkeypatch.setattr(FolderRemote, method, call)
    assert cli("golden", "show", f"{place.as_uri()}/store").code == 0
    assert [key for call, key in asked if call == "bring"] == [f"objects/{sha256[:2]}/{sha256}"]  # the others had come
    asked.clear()
    with shared_folder(f"{place.as_uri()}/store", writes=False) as copy:
        assert asked == [("read", "folders/store.json")]
        assert cli("golden", "show", f"{place.as_uri()}/store").code == 0
        assert os.listdir(copy)
    with shared_folder(f"{place.as_uri()}/store", writes=True):
        cli("golden", "gather", str(lab.file), "-s", f"{place.as_uri()}/store").ended(2, "another command")


def test_reports_of_golden_checks_go_with_their_study(cli: Any, own_bench: Bench, lab: Lab, place: Path) -> None:
    """Those that another machine added stay, and nothing here is replaced."""
    lab.use_golden()
    words = ("golden", "check", str(lab.file), "-s", str(lab.store), "--root")
    assert cli(*words, "one").code == 0
    (study,) = os.listdir(own_bench.folder / "one")
    there, here = (own_bench.folder / root / study / ".assay/golden" for root in ("other", "one"))

    def go(source: str, target: str) -> None:
        assert cli("push", study, "--to", str(place), "--root", source).code == 0
        assert cli("pull", study, "--from", str(place), "--root", target).code == 0
        assert read_tree(there) == read_tree(here)

    go("one", "other")
    assert len(os.listdir(there)) == 1
    assert cli(*words, "other").code == 0
    go("other", "one")
    assert len(os.listdir(here)) == 2


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


# ---------------------------------------------------------------- runs, studies and folders


@pytest.fixture
def own(own_bench: Bench) -> Bench:
    return own_bench.add_finished()


def test_a_study_goes_there_and_comes_back(cli: Any, own: Bench) -> None:
    (own.root / "fit" / GOOD / "secrets.sh").write_text("export TOKEN=geheim\n")
    cli("tag", "fit", "mine")
    facts = json.loads(cli("push", "fit", "--to", "shared", "--json").out)
    assert [each["kind"] for each in facts] == ["code", "study", "run", "run", "run", "run"]
    assert not any(b"geheim" in content for content in read_tree(own.folder / "shared").values())
    assert "sent 0 files" in cli("push", "fit", "--to", "shared").out
    assert cli("pull", "fit", "--from", "shared", "--root", "other").code == 0
    for name in (GOOD, BAD):
        expected = read_tree(own.root / "fit" / name)
        expected.pop("secrets.sh", None)
        assert read_tree(own.folder / "other" / "fit" / name) == expected
    (code,) = (own.root / "fit/.assay/code").glob("*/manifest.json")
    assert (own.folder / "other/fit/.assay/code" / code.parent.name / "manifest.json").is_file()
    columns = ("run", "loss", "lr")
    here, there = (json.loads(cli("sum", "fit", "--root", root, "--json").out) for root in ("runs", "other"))
    assert [[row.get(k) for k in columns] for row in here] == [[row.get(k) for k in columns] for row in there]
    assert "mine" in cli("tag", "fit", "--root", "other").out
    assert "fetched 0 files" in cli("pull", "fit", "--from", "shared", "--root", "other").out


def test_some_runs_by_name_pattern_and_expression(cli: Any, own: Bench) -> None:
    sent = json.loads(cli("push", "fit", "--to", "shared", "--where", "lr==0.1", "--json").out)
    assert sorted(each["name"] for each in sent if each["kind"] == "run") == ["fit/lr=0.1,n=7", "fit/lr=0.1,n=8"]
    cli("push", f"fit/{BAD}", "--to", "shared")

    def pull(*words: str) -> list[str]:
        return sorted(each["name"] for each in json.loads(cli("pull", *words, "--from", "shared", "--json").out))

    assert pull("fit", "--root", "a") == sorted(["fit/lr=0.1,n=7", "fit/lr=0.1,n=8", f"fit/{BAD}"])
    assert pull("fit/lr=0.1*", "--root", "b") == ["fit/lr=0.1,n=7", "fit/lr=0.1,n=8"]
    assert pull(f"fit/{BAD}", "--root", "c", "--dry-run") == [f"fit/{BAD}"]
    assert not (own.folder / "c").exists()
    assert pull("fit", "--root", "d", "--where", "n==8 and state==done") == ["fit/lr=0.1,n=8"]
    for words in (["pull", "nope"], ["pull", "fit/nope"], ["pull", "fit", "--where", "n==99"]):
        assert cli(*words, "--from", "shared").code == 2
    assert cli("push", "nope", "--to", "shared").code == 2
    assert cli("pull", "fit", "--from", "empty").code == 2
    assert cli("push", "fit", "--to", "s4://x").code == 2


def test_only_an_earlier_state_of_the_same_run_is_replaced(cli: Any, own: Bench) -> None:
    cli("push", "fit", "--to", "shared")
    cli("pull", "fit", "--from", "shared", "--root", "other")
    run, copy = own.root / "fit" / GOOD, own.folder / "other" / "fit" / GOOD
    with (run / "job.log").open("a") as file:
        file.write("more\n")
    (run / "new.txt").write_text("new")
    assert "sent 2 files" in cli("push", f"fit/{GOOD}", "--to", "shared").out
    assert "fetched 2 files" in cli("pull", "fit", "--from", "shared", "--root", "other").out
    assert read_tree(copy) == read_tree(run)
    (copy / "own.txt").write_text("made here")
    refused = cli("pull", "fit", "--from", "shared", "--root", "other").ended(2)
    assert "own.txt is not in the store" in refused.err
    assert f"(assay push other/fit/{GOOD} --to {own.folder}/shared)" in refused.err
    (copy / "own.txt").unlink()
    record = json.loads((copy / "run.json").read_text())
    (copy / "run.json").write_text(json.dumps({**record, "uid": "0123456789ab"}))
    cli("pull", f"fit/{GOOD}", "--from", "shared", "--root", "other").ended(2, "another run of the same name")
    cli("push", f"fit/{GOOD}", "--to", "shared", "--root", "other").ended(2, "holds another run")
    (copy / "run.json").write_text(json.dumps(record))
    with (run / "job.log").open("a") as file:
        file.write("and more\n")
    for root in ("runs", "other"):  # the older copy does not replace what is newer
        cli("push", "fit", "--to", "shared", "--root", root)
    shutil.rmtree(own.folder / "other")
    cli("pull", "fit", "--from", "shared", "--root", "other")
    assert (copy / "job.log").read_text().endswith("and more\n")


def change_manifest(path: Path, **changes: object) -> None:
    content = json.loads(path.read_text())
    facts = content["facts"] | changes.pop("facts", {})  # type: ignore[operator]
    path.write_text(json.dumps({**content, "facts": facts, **changes}))


def read_everything(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


HOSTILE: list[dict[str, object]] = [
    *({"facts": {"uid": uid}} for uid in ("x/../../../../victim", "../../victim", "..", "0123456789ag", 5, None)),
    *({"facts": {"code": code}} for code in ("../../../victim", 7, ["a"])),
    {"facts": {"stamp": "later"}},
    {"facts": {"state": "fine"}},
    {"facts": {"metrics": []}},
    *({"name": name} for name in ("fit/../../victim", "../victim", "fit/.assay", "fit/a/b", "fit", "other/x", 5)),
    {"kind": "folder", "name": "victim"},
    {"kind": "study", "name": "fit"},
]


def test_a_hostile_manifest_is_not_loaded_and_changes_nothing(cli: Any, own: Bench) -> None:
    cli("push", "fit", "--to", "shared")
    for name in ("thesis", "deep/x"):
        (own.folder / "victim" / name).parent.mkdir(parents=True, exist_ok=True)
        (own.folder / "victim" / name).write_text("precious")
    key = f"studies/fit/runs/{GOOD}.json"
    remote, manifest = open_remote(str(own.folder / "shared")), own.folder / "shared" / key
    good = manifest.read_text()
    assert load_manifest(remote, key) is not None
    for change in HOSTILE:
        manifest.write_text(good)
        change_manifest(manifest, **change)
        with pytest.raises(FormatError):
            load_manifest(remote, key)
        if change not in (HOSTILE[0], {"name": "fit/../../victim"}):
            continue
        before = read_everything(own.folder)
        for words in (["pull", f"fit/{GOOD}"], ["pull", "fit"], ["pull", "fit", "--where", "n==8"]):
            refused = cli(*words, "--from", "shared", "--root", "other")
            assert (refused.code, bool(refused.err), "Traceback" in refused.err) == (4, True, False)
        assert not (own.folder / "other/fit" / GOOD).exists(), "the others are whole, and come"
        shutil.rmtree(own.folder / "other", ignore_errors=True)
        assert read_everything(own.folder) == before
    assert cli("push", "fit", "--to", "shared").code == 0
    assert cli("pull", "fit", "--from", "shared", "--root", "other").code == 0


def test_a_study_brings_its_own_files_alone(cli: Any, own: Bench) -> None:
    cli("push", "fit", "--to", "shared")
    manifest = own.folder / "shared/studies/fit/study.json"
    (entry,) = list(json.loads(manifest.read_text())["files"].values())[:1]
    for name in ("code/x.py", "supervisor.log", "files/a/b", ".tmp-1", "../x"):
        change_manifest(manifest, files={name: entry})
        assert cli("pull", "fit", "--from", "shared", "--root", "other").code == 4
        assert not os.path.lexists(own.folder / "other/fit/.assay" / name)


def test_a_run_whose_names_change_their_kind(cli: Any, own: Bench) -> None:
    run, copy = own.root / "fit" / GOOD, own.folder / "other" / "fit" / GOOD
    (run / "last").symlink_to("job.log")
    (run / "out").write_text("a")
    (run / "dir").mkdir()
    (run / "dir" / "f").write_text("a")
    for _ in range(2):
        cli("push", f"fit/{GOOD}", "--to", "shared")
        assert cli("pull", f"fit/{GOOD}", "--from", "shared", "--root", "other").code == 0
        assert (read_tree(copy), (copy / "last").is_symlink()) == (read_tree(run), (run / "last").is_symlink())
        if (run / "last").is_symlink():
            (run / "last").unlink()
            (run / "last").write_text("b")
            (run / "out").unlink()
            (run / "out").mkdir()
            (run / "out" / "f").write_text("b")
            shutil.rmtree(run / "dir")
            (run / "dir").symlink_to("out")
    assert (copy / "dir").readlink() == Path("out")
    assert "fetched 0 files" in cli("pull", f"fit/{GOOD}", "--from", "shared", "--root", "other").out


def test_a_folder(cli: Any, own: Bench) -> None:
    (own.folder / "golden" / "ckpts").mkdir(parents=True)
    (own.folder / "golden" / "ckpts" / "a.bin").write_bytes(b"1")
    assert "1 folder" in cli("push", "golden", "--to", "shared").out
    cli("pull", "golden", "--from", "shared", "--into", "there")
    assert (own.folder / "there" / "ckpts" / "a.bin").read_bytes() == b"1"
    assert cli("pull", "fit", "--from", "shared", "--into", "there").code == 2
