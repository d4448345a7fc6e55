"""`assay rerun RUN NAME=VALUE`: new runs from the kept study file, which record their parent; and checkpoints."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.command_line import Cli
from tests.finished_study import Bench

from assay.errors import UsageError
from assay.follow.locations import FoundRun, StudyLocation
from assay.launch.rerun import find_checkpoint
from assay.record import run_directory

STUDY = """
study: fit
command: bash train.sh {lr} {epochs} {run.dir} [init]
params: {lr: [0.1, 0.01], epochs: 3}
resume: init
metrics: {loss: 'loss ({number})'}
resources: {gpus: 0}
"""
TRAIN = 'echo "loss $2"; mkdir -p "$3/ckpt"; echo x > "$3/ckpt/e$2.pt"; echo "$@" > "$3/words"\n'


@pytest.fixture
def fit(own_bench: Bench) -> Bench:
    own_bench.write("train.sh", TRAIN)
    assert own_bench.run(STUDY).returncode == 0
    return own_bench


def names(bench: Bench, study: str = "fit") -> set[str]:
    return {os.path.basename(path) for path in run_directory.find_run_dirs(str(bench.root / study))}


def record(bench: Bench, name: str, study: str = "fit") -> run_directory.RunRecord:
    return run_directory.load_record(str(bench.root / study / name))


def words(bench: Bench, name: str) -> list[str]:
    return (bench.root / "fit" / name / "words").read_text().split()


def rerun(bench: Bench, *arguments: str, code: int = 0) -> str:
    result = bench.assay("rerun", *arguments, "-j", "2", "--quiet")
    assert result.returncode == code, result.stderr
    return result.stderr


def test_a_changed_run_is_a_new_run_with_the_file_and_the_code_of_its_parent(fit: Bench) -> None:
    fit.write("train.sh", TRAIN + "exit 7\n")
    fit.write("study.yml", STUDY.replace("bash train.sh", "false"))
    rerun(fit, "fit/lr=0.1", "epochs=6,12")
    assert names(fit) == {"lr=0.1", "lr=0.01", "lr=0.1,epochs=6", "lr=0.1,epochs=12"}
    child, parent = record(fit, "lr=0.1,epochs=6"), record(fit, "lr=0.1")
    assert (child.parent, child.overrides) == ("fit/lr=0.1", ("epochs=6,12",))
    assert (child.code_hash, child.file_hash) == (parent.code_hash, parent.file_hash)
    assert child.spec.params == {"lr": 0.1, "epochs": 6}
    assert not list(fit.root.glob("fit/lr=0.1/lease.2"))
    shown = json.loads(fit.assay("show", "fit/lr=0.1", "--json").stdout)
    assert sorted(shown["children"]) == ["fit/lr=0.1,epochs=12", "fit/lr=0.1,epochs=6"]
    assert "fit/lr=0.1" in fit.assay("show", "fit/lr=0.1,epochs=6").stdout
    rerun(fit, "fit/lr=0.1,epochs=6", "lr=0.5")  # a child of a child
    grandchild = record(fit, "lr=0.5,epochs=6")
    assert (grandchild.parent, grandchild.overrides) == ("fit/lr=0.1,epochs=6", ("epochs=6,12", "lr=0.5"))
    rerun(fit, "fit/lr=0.1", "epochs=6")  # this run exists: kept
    assert not list(fit.root.glob("fit/*/lease.2"))
    plain = json.loads(fit.run(STUDY, "--json").stdout)  # a plain call does not know the new runs
    assert [run["name"] for run in plain["runs"]] == ["lr=0.1", "lr=0.01"]


def test_new_code_gives_it_the_current_code(fit: Bench) -> None:
    fit.write("train.sh", TRAIN + 'echo new > "$3/new"\n')
    rerun(fit, "fit/lr=0.1", "epochs=6", "--new-code")
    assert (fit.root / "fit" / "lr=0.1,epochs=6" / "new").exists()
    assert record(fit, "lr=0.1,epochs=6").code_hash != record(fit, "lr=0.1").code_hash


def test_several_parents_and_values(fit: Bench) -> None:
    rerun(fit, "fit", "epochs=6,7")
    assert len(names(fit)) == 6
    rerun(fit, "fit/lr=0.*[01]", "lr=0.7")
    assert {"lr=0.7", "lr=0.1,epochs=6"} <= names(fit)
    assert record(fit, "lr=0.7").parent in ("fit/lr=0.1", "fit/lr=0.01")


def test_a_word_that_names_a_run_is_that_run_as_before(fit: Bench) -> None:
    assert "names a run" in rerun(fit, "lr=0.1", "lr=0.01")
    assert len(list(fit.root.glob("fit/*/lease.2"))) == 2
    rerun(fit, "fit/lr=0.01", "lr=0.1")  # a run that exists, kept
    assert len(list(fit.root.glob("fit/*/lease.*"))) == 4
    rerun(fit, "lr=0.01", "lr=[0.3]")
    assert "lr=0.3" in names(fit)


def test_without_a_kept_copy_the_current_file_is_read(fit: Bench) -> None:
    for path in fit.root.glob("fit/.assay/files/*"):
        path.unlink()
    rerun(fit, "fit/lr=0.1", "epochs=6")
    assert "lr=0.1,epochs=6" in names(fit)
    for path in fit.root.glob("fit/.assay/files/*"):
        path.write_text("damaged")
    (fit.folder / "study.yml").unlink()
    assert "is gone: study.yml" in rerun(fit, "fit/lr=0.1", "epochs=7", code=2)


def test_bad_changes_are_refused(fit: Bench, cli: Cli) -> None:
    before = names(fit)
    for arguments, text in [
        (("epoch=6",), "did you mean 'epochs'?"),
        (("epochs=6,,",), "a value is missing"),
        (("epochs=6", "epochs=7"), "given twice"),
        (("epochs=6", "-c", "run"), "-c chooses commands"),
        (("--from", "nothing"), "checkpoint"),
    ]:
        cli("rerun", "fit/lr=0.1", *arguments).ended(2, text)
    cli("rerun", "fit/nothing", "epochs=6").ended(2)
    assert names(fit) == before


def test_lost_code_is_reported(fit: Bench, cli: Cli) -> None:
    import shutil

    for path in fit.root.glob("fit/.assay/code/*/"):
        shutil.rmtree(path)
    cli("rerun", "fit/lr=0.1", "epochs=6").ended(2, "--new-code")


def test_repeats_keep_their_number(own_bench: Bench) -> None:
    text = "study: fit\ncommand: 'echo {a} {b}'\nparams: {a: 1, b: 2}\nrepeat: 2\ncode: live\n"
    assert own_bench.run(text).returncode == 0
    rerun(own_bench, "fit/a=1,b=2,repeat=1", "b=3")
    assert "b=3,repeat=1" in names(own_bench)
    assert "b=3,repeat=0" not in names(own_bench)


def test_settings_of_the_parent_are_kept(fit: Bench, cli: Cli) -> None:
    assert fit.run(STUDY, "lr=5", "--set", "timeout=2h", "--set", "env.A=b").returncode == 0
    rerun(fit, "fit/lr=5", "epochs=6", "--set", "timeout=1h")
    child = record(fit, "lr=5,epochs=6")
    assert (child.spec.timeout_s, child.spec.env, child.settings) == (3600, (("A", "b"),), ("timeout=1h", "env.A=b"))
    assert "--set=timeout=1h" in fit.assay("show", "fit/lr=5,epochs=6").stdout
    assert fit.run(STUDY, "lr=6", "--set", "env={A_TOKEN: hunter2-hunter2}").returncode == 0
    assert record(fit, "lr=6").settings == ("env={A_TOKEN: ***}",)
    assert "--set env=" in rerun(fit, "fit/lr=6", "epochs=6", code=2)
    rerun(fit, "fit/lr=6", "epochs=6", "--set", "env={A_TOKEN: other-other}")
    assert cli("rerun", "fit/lr=6", "--set", "timeout=1h").code == 2


def test_zip_when_and_subset_of_the_file_are_not_in_the_way(own_bench: Bench) -> None:
    text = (
        "study: fit\ncommand: 'echo {a} {b}'\nparams: {a: [1, 2, 3], b: [4, 5, 6]}\nzip: [a, b]\nwhen: {a: [1, 2]}\n"
        "subset: {count: 1}\ncode: live\n"
    )
    assert own_bench.run(text).returncode == 0
    (name,) = names(own_bench)
    rerun(own_bench, f"fit/{name}", "a=7,8")
    assert len(names(own_bench)) == 3


ITEMS = """study: fit
command: echo {opt} [lr] [beta] [momentum]
params: {lr: 1}
sweep: [{opt: adam, beta: 0.9}, {opt: sgd, momentum: 0.5}]
code: live
"""


def test_a_run_of_one_sweep_item_is_repeated_with_changes(own_bench: Bench) -> None:
    assert own_bench.run(ITEMS).returncode == 0
    before = names(own_bench)
    rerun(own_bench, f"fit/{next(name for name in before if 'sgd' in name)}", "lr=2")
    (new,) = {*names(own_bench)} - {*before}
    assert record(own_bench, new).spec.params == {"lr": 2, "opt": "sgd", "momentum": 0.5}
    refused = own_bench.assay("rerun", f"fit/{new}", "gamma=2")
    assert (refused.returncode, "unknown parameter 'gamma'" in refused.stderr) == (2, True)


# ---------------------------------------------------------------- secrets


SECRET = "study: fit\ncommand: 'echo {x} [api_key] > {run.dir}/words'\nparams: {x: 1, api_key: KEY}\ncode: live\n"


def test_a_secret_comes_from_the_file_again(own_bench: Bench) -> None:
    assert own_bench.run(SECRET.replace("KEY", "hunter2-hunter2")).returncode == 0
    (copy,) = own_bench.root.glob("fit/.assay/files/*")
    assert copy.stat().st_mode & 0o777 == 0o600
    (name,) = names(own_bench)
    rerun(own_bench, f"fit/{name}", "x=2")
    (new,) = names(own_bench) - {name}
    assert "hunter2-hunter2" in (own_bench.root / "fit" / new / "words").read_text()
    assert "hunter2" not in (own_bench.root / "fit" / new / "run.json").read_text()


def test_a_secret_of_an_override_has_to_be_given_again(own_bench: Bench) -> None:
    assert own_bench.run(SECRET.replace("KEY", "null"), "api_key=hunter2-hunter2").returncode == 0
    (name,) = names(own_bench)
    assert "api_key" in rerun(own_bench, f"fit/{name}", "x=2", code=2)
    rerun(own_bench, f"fit/{name}", "x=2", "api_key=other-other-other")
    assert len(names(own_bench)) == 2


# ---------------------------------------------------------------- other tools' files


@pytest.mark.needs(compat=True)
def test_runx(own_bench: Bench) -> None:
    own_bench.write("train.sh", 'echo "$@"\n')
    own_bench.write("sweep.yml", "CMD: bash train.sh\nHPARAMS: {lr: [0.1, 0.2], size: 3}\n")
    assert own_bench.assay("runx", "sweep.yml", "-i", "--tag", "mine").returncode == 0
    first = min(names(own_bench, "sweep"))
    rerun(own_bench, f"sweep/{first}", "size=5,6")
    assert all(name.startswith("mine_") for name in names(own_bench, "sweep"))
    new = [record(own_bench, name, "sweep") for name in names(own_bench, "sweep")]
    children = [each for each in new if each.parent == f"sweep/{first}"]
    assert sorted(each.spec.params["size"] for each in children) == [5, 6]
    assert own_bench.assay("run", "sweep.yml", "--quiet").returncode == 0
    assert len(names(own_bench, "sweep")) == 4
    assert "resume" in rerun(own_bench, f"sweep/{first}", "--from", "checkpoint", code=2)


@pytest.mark.needs(compat=True)
def test_mlrunner(own_bench: Bench) -> None:
    tasks = (
        "template: {train: 'echo [lr] [size] > {_output}/words', test: 'false'}\nresource: [cpu]\ndefault: {size: 3}\n"
    )
    tasks += "---\n_cmd: train\nlr: [1, 2]\n"
    own_bench.write("params.yaml", tasks)
    assert own_bench.assay("mlrunner", "-o", "out").returncode == 0
    rerun(own_bench, "out/Lr_1", "size=5")
    (new,) = {path.name for path in (own_bench.folder / "out").glob("Lr*")} - {"Lr_1", "Lr_2"}
    assert new == "Lr_1-Size_5"
    assert (own_bench.folder / "out" / new / "words").read_text().split() == ["--lr", "1", "--size", "5"]


# ---------------------------------------------------------------- checkpoints


def test_a_run_continues_from_its_parents_checkpoint(fit: Bench) -> None:
    rerun(fit, "fit/lr=0.1", "epochs=6", "--from", "checkpoint")
    path = str(fit.root / "fit" / "lr=0.1" / "ckpt" / "e3.pt")
    assert words(fit, "lr=0.1,epochs=6,init=e3.pt")[-2:] == ["--init", path]
    assert record(fit, "lr=0.1,epochs=6,init=e3.pt").spec.params["init"] == path
    rerun(fit, "fit/lr=0.1,epochs=6,init=e3.pt", "epochs=9", "--from", "checkpoint")
    assert words(fit, "lr=0.1,epochs=9,init=e6.pt")[-1].endswith("epochs=6,init=e3.pt/ckpt/e6.pt")
    rerun(fit, "fit/lr=0.01", "--from", "checkpoint")
    assert "lr=0.01,init=e3.pt" in names(fit)
    assert "leave out one" in rerun(fit, "fit/lr=0.1", "init=x", "--from", "checkpoint", code=2)


def test_without_a_checkpoint_or_a_key_it_is_refused(own_bench: Bench, cli: Cli) -> None:
    own_bench.write("train.sh", "true\n")
    assert own_bench.run(STUDY).returncode == 0
    cli("rerun", "fit/lr=0.1", "--from", "checkpoint").ended(2, "has no checkpoint")
    plain = STUDY.replace("resume: init\n", "").replace(" [init]", "").replace("study: fit", "study: plain")
    assert own_bench.run(plain, file="plain.yml").returncode == 0
    cli("rerun", "plain/lr=0.1", "--from", "checkpoint").ended(2, "has no `resume:` key")


def test_a_key_that_was_added_later_counts(own_bench: Bench) -> None:
    own_bench.write("train.sh", TRAIN)
    assert own_bench.run(STUDY.replace("resume: init\n", "").replace(" [init]", "")).returncode == 0
    own_bench.write("study.yml", STUDY)
    rerun(own_bench, "fit/lr=0.1", "epochs=6", "--from", "checkpoint")
    assert words(own_bench, "lr=0.1,epochs=6,init=e3.pt")[-2] == "--init"


def make(folder: Path, name: str, at: float, text: str = "x") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (at, at))
    return path


def newest(folder: Path, *patterns: str) -> str:
    found = FoundRun(StudyLocation(str(folder.parent), "s"), str(folder))
    path = find_checkpoint(found, patterns) if patterns else find_checkpoint(found)
    return os.path.relpath(path, folder)


def test_the_newest_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no checkpoint"):
        newest(tmp_path)
    make(tmp_path, "a.pt", 100)
    make(tmp_path, "deep/er/b.ckpt", 200)
    assert newest(tmp_path) == "deep/er/b.ckpt"
    for name in ("c.pt.tmp", ".c.pt", "tmpc.pt", "c.tmp.pt", "code/c.pt", "code.1/c.pt", "c.txt"):
        make(tmp_path, name, 900)
    make(tmp_path, "empty.pt", 900, "")
    assert newest(tmp_path) == "deep/er/b.ckpt"
    assert newest(tmp_path, "*.pt") == "a.pt"
    assert newest(tmp_path, "d*/**/*.ckpt") == "deep/er/b.ckpt"
    make(tmp_path, "ep9.pth", 300)
    make(tmp_path, "ep10.pth", 300)  # equally old files: the higher number counts
    assert newest(tmp_path) == "ep10.pth"
    make(tmp_path, "checkpoint-500/model.safetensors", 400)
    make(tmp_path, "checkpoint-500/optimizer.pt", 410)
    make(tmp_path, "checkpoint-1000/model.safetensors", 400)
    assert newest(tmp_path) == "checkpoint-500"
    os.symlink(tmp_path, tmp_path / "loop")
    assert newest(tmp_path) == "checkpoint-500"


@pytest.mark.needs(search=True)
def test_a_trial_of_a_search_can_be_varied(own_bench: Bench, cli: Cli) -> None:
    pytest.importorskip("optuna")
    text = (
        "study: fit\ncommand: 'echo loss {lr} {epochs}'\nparams: {lr: {uniform: [0, 1]}, epochs: 3}\ncode: live\n"
        "metrics: {loss: 'loss ({number})'}\nsearch: {sampler: random, metric: loss, trials: 2, seed: 0}\n"
    )
    assert own_bench.run(text).returncode == 0
    rerun(own_bench, "fit/trial-0000", "epochs=6")
    (new,) = {name for name in names(own_bench) if not name.startswith("trial-")}
    assert record(own_bench, new).spec.params == {**record(own_bench, "trial-0000").spec.params, "epochs": 6}
    assert new.endswith(",epochs=6")
    cli("rerun", "fit/trial-0000", "lr={uniform: [0, 1]}").ended(2, "random")
