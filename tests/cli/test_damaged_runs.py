"""Run directories as a power cut, a full disk or a careless hand leaves them: one never blocks the others."""

from __future__ import annotations

import json
import os
import random
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.finished_study import Bench

from assay.record.run_directory import load_record

STUDY = """
study: fit
command: 'echo "acc {x}"'
params: {x: [1, 2, 3]}
metrics: {acc: 'acc ({number})'}
resources: {gpus: 0}
"""
WIDE = STUDY.replace("study: fit", "study: wide").replace("[1, 2, 3]", "{range: 10}")
HURT = "x=1"


def _write(text: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(text)


_empty, _list, _number = _write(""), _write("[1, {}]"), _write("0.5\n")


def _remove(path: Path) -> None:
    path.unlink()


def _cut(path: Path) -> None:
    text = path.read_text()
    path.write_text(text[: len(text) // 2])


def _zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "inside").touch()


def _dangling(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def _numbers(path: Path) -> None:
    """The right keys with values of another type."""
    path.write_text(json.dumps(dict.fromkeys(json.loads(path.read_text()), 7)))


def _series_of_folders(path: Path) -> None:
    (path / "a1-r0-host-1-1.jsonl").mkdir(parents=True)


_ANY = (_empty, _remove, _cut, _zeros, _folder, _dangling, _pipe, _list)
DAMAGE = {  # the file, and what happens to it: in a run of its own each
    "run.json": (*_ANY, _numbers),
    "job.sh": _ANY,
    "lease.1": (*_ANY, _numbers),
    "outcome.1": (*_ANY, _numbers),
    "environment.json": (_folder, _remove, _pipe, _zeros, _numbers),
    "job.log": (_folder, _remove, _pipe, _zeros),
    "run.log": (_folder, _pipe, _dangling, _loop),
    "lease.99999999999999999999": (_number,),  # of no attempt
    "run.99999999999999999999.exit.1": (_number,),
    "metrics": (_number, _series_of_folders),
}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    bench = Bench(tmp_path_factory.mktemp("done"))
    assert bench.run(STUDY).returncode == 0
    assert bench.run(WIDE, file="wide.yml").returncode == 0
    return bench


@pytest.fixture
def own_bench(done: Bench, tmp_path: Path) -> Bench:
    """The finished studies once more, for this test to damage."""
    bench = Bench(tmp_path)
    shutil.copytree(done.folder, bench.folder, dirs_exist_ok=True, symlinks=True)
    for path in bench.root.glob("*/*/run.json"):
        path.write_text(path.read_text().replace(str(done.folder), str(bench.folder)))
    return bench


def _states(cli: Callable, study: str = "fit") -> dict[str, str]:
    result = cli("ls", study, "--json")
    assert result.code == 0, result.err
    return {row["name"]: row["state"] for row in json.loads(result.out)}


@pytest.mark.needs(plots=True)
@pytest.mark.parametrize("file", DAMAGE)
def test_damaged_files_of_some_runs_block_nothing(cli, own_bench: Bench, file: str) -> None:
    """Every reading command answers, and the study runs to its end: all runs are done, and can be repeated."""
    names = [f"x={number}" for number in range(10)]
    hurt = [f"wide/{name}" for name, _ in zip(names, DAMAGE[file], strict=False)]
    for name, damage in zip(hurt, DAMAGE[file], strict=True):
        damage(own_bench.root / name / file)
    reads = [["ls"], ["sum", "wide"], ["plot", "wide"]]
    for name in hurt:
        reads += [["show", name], ["diff", name, "wide/x=9"]]
        if file == "run.log":
            result = cli("logs", name)
            assert (result.code, "no output" in result.err) == (2, True), (name, result.err)
    for arguments in reads:
        result = cli(*arguments)
        assert result.code == 0, (arguments, result.err)
        assert "bug in Assay" not in result.err
    assert sorted(_states(cli, "wide")) == names
    again = cli("run", "wide.yml", "-j", "2", "--quiet", "--retry", "lost")
    assert again.code == 0, again.err
    assert _states(cli, "wide") == dict.fromkeys(names, "done")
    assert cli("rerun", *hurt, "-j", "2", "--quiet").code == 0


CUTS = (_empty, _remove, _cut, _zeros)  # what a file can be that the disk had not got yet
READS = ("ls", "ls wide", "sum wide", "show wide/x=0", "plot wide", "best wide -m acc", "export json wide")


def _cut_power(root: Path, chance: random.Random) -> set[str]:
    """Some files of some runs, and of the study's own, were not on the disk; the runs."""
    runs = {f"x={number}" for number in chance.sample(range(10), chance.randint(1, 10))}
    folders = [root / "wide" / name for name in sorted(runs)] + [root / "wide" / ".assay"] * chance.randint(0, 1)
    for folder in folders:
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        for path in chance.sample(files, chance.randint(1, len(files))):
            chance.choice(CUTS)(path)
    return runs


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_hundreds_of_states_after_a_power_cut(
    cli, own_bench: Bench, done: Bench, record_property: Callable[[str, object], None]
) -> None:
    """CUTS is how many. Each is read, then continued: every run is done, an untouched one is not executed again, and no
    table has a value that its run did not print."""
    count, problems = int(os.environ.get("CUTS", "500")), []
    for number in range(count):
        shutil.rmtree(own_bench.root)
        shutil.rmtree(own_bench.extra["ASSAY_CACHE_DIR"], ignore_errors=True)
        shutil.copytree(done.root, own_bench.root, symlinks=True)
        cli("sum", "wide")  # the index knows them as they were
        hurt = _cut_power(own_bench.root, random.Random(number))
        problems += [f"state {number}: {each}" for each in _find_problems(cli, own_bench.root / "wide", hurt)]
    record_property("states after a power cut", f"{len(problems)} of {count}")
    assert not problems, "\n".join(problems)


def _find_problems(cli: Callable, study: Path, hurt: set[str]) -> Iterator[str]:
    for command in (*READS, "run wide.yml -j 4 --quiet --retry lost", "sum wide --json"):
        result = cli(*command.split())
        if "bug in Assay" in result.err or result.code not in ((0, 2) if command in READS else (0,)):
            yield f"{command}: {result.code} {result.err}"
    values, states = {row["run"]: row.get("acc") for row in json.loads(result.out)}, _states(cli, "wide")
    if states != {f"x={number}": "done" for number in range(10)}:
        yield f"the runs are {states}"
    for name, value in values.items():
        if value != int(name[2:]) and not (name in hurt and value is None):
            yield f"{name} has acc {value}"
        if name not in hurt and (study / name / "lease.2").exists():
            yield f"{name} was executed again"


@pytest.mark.parametrize("damage", [_empty, _remove, _folder], ids=["empty", "removed", "a folder"])
def test_a_damaged_run_is_listed_with_a_reason_and_a_command_that_repairs_it(
    cli, own_bench: Bench, damage: Callable[[Path], None]
) -> None:
    damage(own_bench.root / "fit" / HURT / "run.json")
    (row,) = [row for row in json.loads(cli("ls", "fit", "--json").out) if row["name"] == HURT]
    assert row["state"] == "damaged"
    assert row["reason"].startswith("run.json ")
    command = row["reason"].partition("repair it: ")[2]
    assert "damaged: run.json " in cli("show", f"fit/{HURT}").out
    assert "damaged" in cli("sum", "fit").out
    program, *arguments = shlex.split(command)
    assert program == "assay"
    assert cli(*arguments, "--quiet").code == 0
    assert _states(cli)[HURT] == "done"
    assert load_record(str(own_bench.root / "fit" / HURT)).spec.params == {"x": 1}


def test_damage_within_run_json_is_listed_although_the_index_knew_the_run(cli, own_bench: Bench) -> None:
    """Emptied in place: nothing changes in the folder itself."""
    assert _states(cli)[HURT] == "done"
    _empty(own_bench.root / "fit" / HURT / "run.json")
    assert _states(cli) == {HURT: "damaged", "x=2": "done", "x=3": "done"}


def test_a_finished_run_whose_run_json_is_lost_keeps_its_result(cli, own_bench: Bench) -> None:
    _empty(own_bench.root / "fit" / HURT / "run.json")
    result = cli("run", "study.yml", "-j", "2").ended(0)
    assert "x=1: run.json is damaged: it is empty; run.json was written again from the study file" in result.err
    assert not (own_bench.root / "fit" / HURT / "lease.2").exists()


def test_a_run_that_had_not_begun_is_built_again(cli, own_bench: Bench) -> None:
    run_dir = own_bench.root / "fit" / HURT
    for name in ("lease.1", "outcome.1", "run.exit.0", "run.log"):
        (run_dir / name).unlink()
    _empty(run_dir / "run.json")
    result = cli("run", "study.yml", "-j", "2")
    assert result.code == 0, result.err
    assert "it had not run and is built again" in result.err
    assert (run_dir / "run.exit.0").exists()


def test_a_run_of_which_nothing_is_left_but_its_results_is_repeated_and_they_are_kept(cli, own_bench: Bench) -> None:
    run_dir = own_bench.root / "fit" / HURT
    _empty(run_dir / "run.json")
    _empty(run_dir / "job.sh")
    result = cli("run", "study.yml", "-j", "2")
    assert result.code == 0, result.err
    assert "it is run again" in result.err
    (kept,) = (own_bench.root / "fit" / ".assay" / "damaged").iterdir()
    assert (kept / "outcome.1").exists()


def test_another_run_of_the_same_name_is_not_mistaken_for_the_damaged_one(cli, own_bench: Bench) -> None:
    _empty(own_bench.root / "fit" / HURT / "run.json")
    own_bench.write("study.yml", STUDY.replace("acc {x}", "acc {x}0"))
    assert cli("run", "study.yml", "-j", "2", "--quiet").code == 0
    assert (own_bench.root / "fit" / HURT / "run.json").read_text() == ""
    assert _states(cli)[HURT] == "damaged"


def test_a_file_where_a_run_belongs_is_moved_away(cli, own_bench: Bench) -> None:
    shutil.rmtree(own_bench.root / "fit" / HURT)
    (own_bench.root / "fit" / HURT).write_text("no folder")
    assert cli("run", "study.yml", "-j", "2", "--quiet").code == 0
    assert _states(cli)[HURT] == "done"


def test_a_folder_of_which_nothing_is_left_is_built_again(cli, own_bench: Bench) -> None:
    shutil.rmtree(own_bench.root / "fit" / HURT)
    (own_bench.root / "fit" / HURT / "code").mkdir(parents=True)
    result = cli("run", "study.yml", "-j", "2", "--quiet")
    assert result.code == 0, result.err
    assert "x=1: run.json is missing; it had not run and is built again" in result.err
    assert _states(cli)[HURT] == "done"


def test_rerun_goes_on_with_the_runs_that_can_be_read(cli, own_bench: Bench) -> None:
    _empty(own_bench.root / "fit" / HURT / "run.json")
    result = cli("rerun", "fit", "-j", "2", "--quiet").ended(4)
    assert "fit/x=1 is damaged: run.json is damaged: it is empty; repair it: assay run study.yml" in result.err
    assert (own_bench.root / "fit" / "x=2" / "outcome.2").exists()
    assert cli("rerun", f"fit/{HURT}").code == 4


def test_the_index_is_rebuilt_around_a_damaged_run(cli, own_bench: Bench) -> None:
    _numbers(own_bench.root / "fit" / HURT / "run.json")
    cli("index", "rebuild").ended(0).printed("13 runs read")
    assert _states(cli) == {"x=1": "damaged", "x=2": "done", "x=3": "done"}
    assert cli("index", "reparse", "fit").code == 0


def test_a_run_that_cannot_be_repaired_is_named_and_the_others_run(cli, own_bench: Bench) -> None:
    """The folder of damaged runs cannot be made: a file has its name."""
    run_dir = own_bench.root / "fit" / HURT
    _empty(run_dir / "run.json")
    for name in ("lease.1", "outcome.1", "run.exit.0"):
        (run_dir / name).unlink()
    (own_bench.root / "fit" / ".assay" / "damaged").write_text("")
    shutil.rmtree(own_bench.root / "fit" / "x=2")
    cli("run", "study.yml", "-j", "2").ended(4, "x=1: run.json is damaged: it is empty, and it cannot be repaired")
    assert _states(cli) == {"x=1": "damaged", "x=2": "done", "x=3": "done"}
