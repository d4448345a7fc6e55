"""What runx, logx and mlrunner wrote, read from sample trees; and what we write in their place."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml

from assay.compat.originals import (
    fill_logdir,
    find_newest_time,
    load_hparams,
    load_mlrunner_params,
    load_mlrunner_stat,
    write_hparams,
    write_mlrunner_param,
    write_mlrunner_stat,
)

SAMPLES = Path(__file__).parents[1] / "formats" / "originals"
SWEEP = SAMPLES / "runx" / "logs" / "sweep"
OUTPUT = SAMPLES / "mlrunner" / "output"


# ---------------------------------------------------------------- hparams.json


def read_hparams(folder: Path) -> tuple[dict[str, Any], list[str]]:
    problems: list[str] = []
    return load_hparams(str(folder), problems), problems


def test_hparams_of_the_original_and_others(tmp_path):
    cases = {"athletic-wallaby": True, "quiet-otter": False, "damaged-lobster": False}
    for name, is_there in cases.items():
        (folder,) = SWEEP.glob(f"{name}_*")
        found, problems = read_hparams(folder)
        assert (found.items() >= {"lr": 0.01, "solver": "sgd"}.items()) is bool(found) is is_there
        assert [text.startswith("hparams.json: not JSON") for text in problems] == [True] * name.startswith("damaged")
        assert load_hparams(str(folder)) == found
    (tmp_path / "hparams.json").write_text("[1]")
    assert read_hparams(tmp_path) == ({}, ["hparams.json: a mapping was expected"])
    (tmp_path / "hparams.json").unlink()
    (tmp_path / "hparams.json").mkdir()
    found, (problem,) = read_hparams(tmp_path)
    assert found == {}
    assert problem.startswith("hparams.json: ")


def test_hparams_are_written_as_logx_writes_them(tmp_path):
    params = {"lr": 0.01, "solver": "sgd", "logdir": "LOGDIR/x", "deep": ["LOGDIR", {"a": "LOGDIR"}], "no": None}
    write_hparams(str(tmp_path), params, "/logs/run")
    text = (tmp_path / "hparams.json").read_text()
    expected = {**params, "logdir": "/logs/run/x", "deep": ["/logs/run", {"a": "/logs/run"}]}
    assert text == json.dumps(expected, indent=4)
    assert load_hparams(str(tmp_path)) == expected
    write_hparams(str(tmp_path), {"lr": 2}, "/logs/run")
    assert load_hparams(str(tmp_path)) == expected, "never over another"
    others = {"a": 1, "b": None, "c": True, "d": 0.5}
    assert fill_logdir(others, "/x") == others


# ---------------------------------------------------------------- mlrunner directories


def read_run(folder: Path) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    problems: list[str] = []
    return load_mlrunner_params(str(folder), problems), dict(load_mlrunner_stat(str(folder), problems)), problems


def test_runs_of_mlrunner():
    params, _, problems = read_run(OUTPUT / "Norm_new-Moment_0.1")
    assert params == {"data": "iwslt14", "early-stop": False, "moment": 0.1, "norm": "new"}
    assert problems == []
    assert find_newest_time(str(OUTPUT / "Norm_new-Moment_0.1")) == "20220317.101010"
    assert {folder.name: read_run(folder)[1] for folder in OUTPUT.iterdir() if folder.is_dir()} == {
        "Norm_new-Moment_0.1": {"train": "finished", "test": "finished"},
        "Norm_new-Moment_0.05": {"train": "finished", "test": "failed"},
        "Norm_batch-Moment_0.1": {"train": "running"},
        "Norm_batch-Moment_0.05": {"train": "finished", "test": "running"},
        "Norm_batch-EaStop_T": {},
    }
    assert read_run(OUTPUT / "Norm_batch-EaStop_T") == ({}, {}, [])


def test_logs_without_subdirectories_carry_the_name(tmp_path):
    for name in ("log.train.20220316.030151.Norm_new-Moment_0.1", "log.a.b.20220316.030152", "log.txt", "catalog.x"):
        (tmp_path / name).touch()
    assert find_newest_time(str(tmp_path)) == "20220316.030152"
    (tmp_path / "log.a.b.20220316.030152").unlink()
    assert find_newest_time(str(tmp_path)) == "20220316.030151"
    assert find_newest_time(str(tmp_path / "missing")) == ""


@pytest.mark.parametrize("text", ["train: [\n", "- a\n", "\x00", "x: !!int ''\n", "x: !!timestamp x\n"])
def test_a_damaged_param_and_a_word_that_is_no_state_are_problems(tmp_path, text):
    (tmp_path / "param").write_text(text)
    (tmp_path / "stat").write_text("train: done\ntest: failed\n")
    params, stat, problems = read_run(tmp_path)
    assert (params, stat) == ({}, {"test": "failed"})
    assert problems[0].startswith("param: ")
    assert problems[1:] == ["stat: train: 'done' is not a state"]


def test_tuples_of_the_original_are_read_and_other_objects_not_built(tmp_path):
    (tmp_path / "param").write_text("shape: !!python/tuple\n- 1\n- 2\n")
    assert read_run(tmp_path)[0] == {"shape": [1, 2]}
    (tmp_path / "param").write_text("x: !!python/object/apply:os.system ['false']\n")
    assert "not YAML" in read_run(tmp_path)[2][0]


# ---------------------------------------------------------------- writing param and stat


def write_param(folder: Path, name: str = "P_1", **more: object) -> None:
    values = {"output": f"output/{name}", "time": "20220316.030151", "scripts": {"train": "run 1"}, "params": {"p": 1}}
    write_mlrunner_param(str(folder), name=name, **(values | more))


def test_param_is_written_as_the_original_writes_it(tmp_path):
    sample = (OUTPUT / "Norm_new-Moment_0.1" / "param").read_text()
    own = {key: yaml.safe_load(sample)[f"_{key}"] for key in ("name", "output", "time", "scripts")}
    write_mlrunner_param(str(tmp_path), **own, params=read_run(OUTPUT / "Norm_new-Moment_0.1")[0])
    assert (tmp_path / "param").read_text() == sample


def test_a_second_start_keeps_the_scripts_of_other_commands(tmp_path):
    write_param(tmp_path, params={"p": 1, "old": True})
    write_param(tmp_path, scripts={"test": "check 1"}, time="20220317.000000", params={"p": 2})
    param = yaml.safe_load((tmp_path / "param").read_text())
    assert param["_scripts"] == {"train": "run 1", "test": "check 1"}
    assert param["_time"] == "20220317.000000"
    assert read_run(tmp_path)[0] == {"p": 2, "old": True}
    (tmp_path / "param").write_text("{")
    write_param(tmp_path)
    assert read_run(tmp_path)[0] == {"p": 1}, "a damaged one is written again"


def test_a_script_of_many_lines_and_letters_survives(tmp_path):
    script = "cd 'größe 数据' &&\n  python x.py: # {a} [b] > 'log' 2>&1" + " x" * 500
    write_param(tmp_path, scripts={"train": script}, params={"p": None, "q": [1, [2]], "r": "1e-4"})
    assert yaml.safe_load((tmp_path / "param").read_text())["_scripts"] == {"train": script}
    assert read_run(tmp_path)[0] == {"p": None, "q": [1, [2]], "r": "1e-4"}


def test_stat_is_written_as_the_original_writes_it(tmp_path):
    write_mlrunner_stat(str(tmp_path), {"train": "finished", "avg": "running"})
    assert (tmp_path / "stat").read_text() == "avg: running\ntrain: finished\n"
    write_mlrunner_stat(str(tmp_path), {"avg": "failed"})
    assert load_mlrunner_stat(str(tmp_path)) == {"train": "finished", "avg": "failed"}, "other words are kept"


@pytest.mark.parametrize("name", ["no", "1", "a: b", "#é", "-", "~"])
def test_any_command_name_survives_in_stat(tmp_path, name):
    """YAML reads some names as numbers, truth values or comments."""
    write_mlrunner_stat(str(tmp_path), {name: "running", "plain": "finished"})
    assert load_mlrunner_stat(str(tmp_path)) == {name: "running", "plain": "finished"}
    assert yaml.safe_load((tmp_path / "stat").read_text()) == {name: "running", "plain": "finished"}


def test_two_writers_lose_no_word(tmp_path):
    def write(command: str) -> None:
        for word in ("running", "failed", "finished"):
            write_mlrunner_stat(str(tmp_path), {command: word})

    threads = [threading.Thread(target=write, args=(f"c{i}",)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert load_mlrunner_stat(str(tmp_path)) == {f"c{i}": "finished" for i in range(8)}
