"""`assay push` and `assay pull`: runs, studies, folders, and golden stores that are an address."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from tests.finished_study import BAD, GOOD, Bench

from assay.errors import FormatError
from assay.exchange.store.mirror import load_manifest
from assay.exchange.store.remote import open_remote


@pytest.fixture
def own(own_bench: Bench) -> Bench:
    own_bench.add_finished()
    return own_bench


def read_run(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in _find(folder) if path.is_file()}


def _find(folder: Path) -> list[Path]:
    """All but what says that a run was pulled, and when."""
    return [path for path in folder.rglob("*") if path.name not in ("received.json", "pulled")]


def test_a_study_goes_there_and_comes_back(cli, own_bench: Bench, own: Bench) -> None:
    (own.root / "fit" / GOOD / "secrets.sh").write_text("export TOKEN=geheim\n")
    cli("tag", "fit", "mine")
    facts = json.loads(cli("push", "fit", "--to", "shared", "--json").out)
    assert [each["kind"] for each in facts] == ["code", "study", "run", "run", "run", "run"]
    assert not any(b"geheim" in content for content in read_run(own.folder / "shared").values())
    assert "sent 0 files" in cli("push", "fit", "--to", "shared").out
    assert cli("pull", "fit", "--from", "shared", "--root", "other").code == 0
    for name in (GOOD, BAD):
        expected = read_run(own.root / "fit" / name)
        expected.pop("secrets.sh", None)
        assert read_run(own.folder / "other" / "fit" / name) == expected
    (code,) = (own.root / "fit/.assay/code").glob("*/manifest.json")
    assert (own.folder / "other/fit/.assay/code" / code.parent.name / "manifest.json").is_file()
    columns = ("run", "loss", "lr")
    here, there = (json.loads(cli("sum", "fit", "--root", root, "--json").out) for root in ("runs", "other"))
    assert [[row.get(k) for k in columns] for row in here] == [[row.get(k) for k in columns] for row in there]
    assert "mine" in cli("tag", "fit", "--root", "other").out
    assert "fetched 0 files" in cli("pull", "fit", "--from", "shared", "--root", "other").out


def test_some_runs_by_name_pattern_and_expression(cli, own_bench: Bench, own: Bench) -> None:
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


def test_only_an_earlier_state_of_the_same_run_is_replaced(cli, own_bench: Bench, own: Bench) -> None:
    cli("push", "fit", "--to", "shared")
    cli("pull", "fit", "--from", "shared", "--root", "other")
    run, copy = own.root / "fit" / GOOD, own.folder / "other" / "fit" / GOOD
    with (run / "job.log").open("a") as file:
        file.write("more\n")
    (run / "new.txt").write_text("new")
    assert "sent 2 files" in cli("push", f"fit/{GOOD}", "--to", "shared").out
    assert "fetched 2 files" in cli("pull", "fit", "--from", "shared", "--root", "other").out
    assert read_run(copy) == read_run(run)
    (copy / "own.txt").write_text("made here")
    refused = cli("pull", "fit", "--from", "shared", "--root", "other")
    assert refused.code == 2
    assert "own.txt is not in the store" in refused.err
    assert f"(assay push other/fit/{GOOD} --to {own.folder}/shared)" in refused.err
    (copy / "own.txt").unlink()
    record = json.loads((copy / "run.json").read_text())
    (copy / "run.json").write_text(json.dumps({**record, "uid": "0123456789ab"}))
    refused = cli("pull", f"fit/{GOOD}", "--from", "shared", "--root", "other")
    assert (refused.code, "another run of the same name" in refused.err) == (2, True)
    refused = cli("push", f"fit/{GOOD}", "--to", "shared", "--root", "other")
    assert (refused.code, "holds another run" in refused.err) == (2, True)
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


def test_a_hostile_manifest_is_not_loaded_and_changes_nothing(cli, own_bench: Bench, own: Bench) -> None:
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


def test_a_study_brings_its_own_files_alone(cli, own_bench: Bench, own: Bench) -> None:
    cli("push", "fit", "--to", "shared")
    manifest = own.folder / "shared/studies/fit/study.json"
    (entry,) = list(json.loads(manifest.read_text())["files"].values())[:1]
    for name in ("code/x.py", "supervisor.log", "files/a/b", ".tmp-1", "../x"):
        change_manifest(manifest, files={name: entry})
        assert cli("pull", "fit", "--from", "shared", "--root", "other").code == 4
        assert not os.path.lexists(own.folder / "other/fit/.assay" / name)


def test_a_run_whose_names_change_their_kind(cli, own_bench: Bench, own: Bench) -> None:
    run, copy = own.root / "fit" / GOOD, own.folder / "other" / "fit" / GOOD
    (run / "last").symlink_to("job.log")
    (run / "out").write_text("a")
    (run / "dir").mkdir()
    (run / "dir" / "f").write_text("a")
    for _ in range(2):
        cli("push", f"fit/{GOOD}", "--to", "shared")
        assert cli("pull", f"fit/{GOOD}", "--from", "shared", "--root", "other").code == 0
        assert (read_run(copy), (copy / "last").is_symlink()) == (read_run(run), (run / "last").is_symlink())
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


def test_a_folder(cli, own_bench: Bench, own: Bench) -> None:
    (own.folder / "golden" / "ckpts").mkdir(parents=True)
    (own.folder / "golden" / "ckpts" / "a.bin").write_bytes(b"1")
    assert "1 folder" in cli("push", "golden", "--to", "shared").out
    cli("pull", "golden", "--from", "shared", "--into", "there")
    assert (own.folder / "there" / "ckpts" / "a.bin").read_bytes() == b"1"
    assert cli("pull", "fit", "--from", "shared", "--into", "there").code == 2
