"""Examiner as mlrunner's notebooks use it, on folders of mlrunner and of Assay."""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay import examine
from assay.errors import NotFoundError, UsageError
from assay.examine import Examiner, Experiment, latest_log
from assay.record.received import Received, write_received


@pytest.fixture
def output(tmp_path):
    """Three folders as mlrunner leaves them."""
    for name, norm, moment, bleu in [
        ("Norm_new-Moment_0.1", "new", 0.1, 30.5),
        ("Norm_new-Moment_0.05", "new", 0.05, 31.0),
        ("Norm_batch-Moment_0.1", "batch", 0.1, 29.0),
    ]:
        folder = tmp_path / "output" / name
        folder.mkdir(parents=True)
        own = {"_name": name, "_output": str(folder), "_scripts": {"test": "python generate.py"}}
        fields = {**own, "norm": norm, "moment": moment, "data": "iwslt14"}
        (folder / "param").write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in sorted(fields.items())))
        (folder / "log.test.20220316.030151").write_text(f"BLEU = {bleu}\n")
    (tmp_path / "output/params.yaml").write_text("template: {}\n")
    return tmp_path / "output"


def add_bleu(path, experiment, caches):
    log = latest_log("test", path)
    if log is not None:
        experiment.metric["test_bleu"] = float(log.read_text().split()[-1])
        caches[path.name] = True


def build_examiner(*funcs):
    examiner = Examiner()
    for func in funcs:
        examiner.add(func)
    return examiner


def test_the_notebook_of_the_document(output, capsys):
    examiner = build_examiner(add_bleu)
    examiner.exam(output=output, regex="new")
    frame = examiner.table()
    assert capsys.readouterr().out == "moment\ttest_bleu\n0.05\t31.0\n0.1\t30.5\n"
    assert list(frame.columns) == ["moment", "test_bleu"]
    assert frame["test_bleu"].tolist() == [31.0, 30.5]


def test_parsers_get_a_path_the_experiment_and_the_caches(output):
    seen = []

    def note(path, experiment, caches):
        assert isinstance(path, Path)
        assert isinstance(experiment, Experiment)
        assert experiment._fields == ("cache", "metric", "param")
        seen.append((path.name, experiment.param["norm"], experiment.param["_name"], len(caches)))
        caches[path.name] = experiment.cache["x"] = 1

    examiner = build_examiner(note)
    examiner.exam(str(output))
    names = ["Norm_batch-Moment_0.1", "Norm_new-Moment_0.05", "Norm_new-Moment_0.1"]
    assert seen == [(name, name[5:].split("-")[0], name, number) for number, name in enumerate(names)]
    assert list(examiner.caches) == list(examiner.experiments) == names


@pytest.mark.parametrize("workers", [-1, 2])
def test_closures_work_in_any_number_of_processes(output, workers):
    offset = 100

    def add(path, experiment, caches):
        experiment.metric["x"] = offset + experiment.param["moment"]
        experiment.cache["name"] = path.name
        caches[path.name] = True

    double = lambda _path, experiment, _caches: experiment.metric.update(y=experiment.metric["x"] * 2)  # noqa: E731
    examiner = build_examiner(add, double)
    examiner.exam(output, workers=workers)
    found = [experiment.metric for experiment in examiner.experiments.values()]
    assert found == [{"x": 100.1, "y": 200.2}, {"x": 100.05, "y": 200.1}, {"x": 100.1, "y": 200.2}]
    assert set(examiner.caches) == set(examiner.experiments)
    assert all(e.cache == {"name": name} for name, e in examiner.experiments.items())


@pytest.mark.parametrize("workers", [0, 1])
def test_a_second_exam_adds_to_the_first(output, workers):
    examiner = build_examiner(add_bleu)
    examiner.exam(output, regex="batch", workers=workers)
    examiner.add(lambda path, experiment, caches: experiment.metric.update(again=experiment.metric.get("test_bleu")))
    examiner.exam(output, workers=workers)
    assert examiner.experiments["Norm_batch-Moment_0.1"].metric == {"test_bleu": 29.0, "again": 29.0}
    assert len(examiner.experiments) == 3


def test_a_parser_added_twice_runs_once(output, capsys):
    calls = []
    note = lambda path, experiment, caches: calls.append(path)  # noqa: E731
    build_examiner(note, note).exam(output, regex="batch", verbose=True)
    assert len(calls) == 1
    assert capsys.readouterr().out == "Norm_batch-Moment_0.1\n"


def test_an_error_of_a_parser_says_where(output):
    def broken(path, experiment, caches):
        raise KeyError("bleu")

    with pytest.raises(KeyError) as caught:
        build_examiner(broken).exam(output)
    assert caught.value.__notes__ == [f"while 'broken' examined {output / 'Norm_batch-Moment_0.1'}"]
    with pytest.raises(KeyError):
        build_examiner(broken).exam(output, workers=1)
    with pytest.raises(BrokenProcessPool):  # a worker that dies is not waited for
        build_examiner(lambda path, experiment, caches: os._exit(9)).exam(output, workers=1)


def test_folders_without_parameters_are_skipped_and_said(output, capsys):
    (output / "plots").mkdir()
    (output / ".assay").mkdir()
    examiner = Examiner()
    examiner.exam(output)
    assert capsys.readouterr().out == f"No 'param' or 'run.json' found, skip {output / 'plots'}\n"
    assert "plots" not in examiner.experiments
    Examiner().exam(output, regex="powernorm")
    assert capsys.readouterr().out == f"No folder in {output} matches 'powernorm'\n"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("param", "{", "param: not YAML ("),
        ("param", "", "contains no parameters"),
        ("param", "- a", "param: a mapping was expected"),
        ("run.json", "{", "is damaged"),
        ("run.json", "[]", "is damaged"),
        ("run.json", '{"spec": {}}', "is damaged"),
        ("param", "x: !!python/object/apply:os.getcwd []\n", "param: not YAML ("),
        ("param", "x: !!int ''\n", "param: not YAML ("),
        ("param", "x: !!timestamp x\n", "param: not YAML ("),
        ("param", "x: " + "[" * 100_000, "nested too deeply"),
    ],
)
def test_one_damaged_folder_does_not_cost_the_table(output, capsys, name, text, message):
    (output / "bad").mkdir()
    (output / "bad" / name).write_text(text)
    examiner = Examiner()
    examiner.exam(output)
    assert message in (said := capsys.readouterr().out)
    assert f"skip {output / 'bad'}" in said
    assert len(examiner.experiments) == 3


def test_tuples_and_bytes_that_are_not_utf_8_are_read(tmp_path):
    (tmp_path / "param").write_bytes(b"shape: !!python/tuple\n- 1\n- 2\nnote: gr\xfcn\n")
    assert examine.load_params(tmp_path) == {"shape": [1, 2], "note": "gr\ufffdn"}


def test_a_missing_folder_or_a_bad_regex_is_an_error(output, tmp_path):
    with pytest.raises(NotFoundError, match="no folder named"):
        Examiner().exam(tmp_path / "nowhere")
    with pytest.raises(UsageError, match=r"regex '\(' is not a regular expression"):
        Examiner().exam(output, regex="(")


def test_a_folder_that_shares_anothers_results_counts_once(output):
    (output / "A_link").symlink_to("Norm_batch-Moment_0.1")
    names = sorted(path.name for path in output.glob("Norm_*"))
    for regex, expected in {".*": names, "link": ["A_link"]}.items():
        examiner = Examiner()
        examiner.exam(output, regex=regex)
        assert list(examiner.experiments) == expected


# ---------------------------------------------------------------- folders of Assay


@pytest.mark.parametrize("workers", [-1, 1])
def test_an_upload_that_was_not_adopted_is_given_to_no_parser(output, capfd, workers):
    write_received(str(output / "Norm_new-Moment_0.1"), Received("upload"))
    write_received(str(output / "Norm_new-Moment_0.05"), Received("pull"))
    examiner = build_examiner(lambda path, experiment, caches: experiment.metric.update(x=1))
    examiner.exam(str(output), workers=workers)
    assert list(examiner.experiments) == ["Norm_batch-Moment_0.1", "Norm_new-Moment_0.05"]
    assert "It was uploaded and not adopted, skip" in capfd.readouterr().out


def test_our_own_runs_are_read(tmp_path):
    (tmp_path / "runs/lr-0.1").mkdir(parents=True)
    fields = {"format": 1, "spec": {"name": "lr-0.1", "params": {"lr": 0.1, "layers": [1, 2]}, "commands": []}}
    (tmp_path / "runs/lr-0.1/run.json").write_text(json.dumps(fields))
    examiner = Examiner()
    examiner.exam(tmp_path / "runs")
    own = {"_name": "lr-0.1", "_output": str(tmp_path / "runs/lr-0.1")}
    assert examiner.experiments["lr-0.1"].param == {**own, "lr": 0.1, "layers": [1, 2]}
    (tmp_path / "run.json").write_text(json.dumps({"format": 1, "name": "x", "params": {}, "commands": []}))
    assert examine.load_params(tmp_path) == {"_name": "x", "_output": str(tmp_path)}, "an adhoc run"


# ---------------------------------------------------------------- latest_log


def test_the_latest_log_by_time(tmp_path):
    ends = ("test.20220316.030151", "test.20230101.000000", "test.20211231.235959", "testing.20240101.000000")
    for end in (*ends, "train.20240101.000000", "a*.1", "ab.2"):
        (tmp_path / f"log.{end}").write_text("")
    assert latest_log("test", tmp_path) == tmp_path / "log.test.20230101.000000"
    assert latest_log("test", str(tmp_path), index=0) == tmp_path / "log.test.20211231.235959"
    assert latest_log("test", tmp_path, -3) == tmp_path / "log.test.20211231.235959"
    assert latest_log("test", tmp_path, 3) is latest_log("test", tmp_path, -4) is latest_log("avg", tmp_path) is None
    assert latest_log("a*", tmp_path) == tmp_path / "log.a*.1", "odd characters are taken literally"
    assert latest_log("a*", tmp_path / "nowhere") is None


def test_the_latest_log_by_attempt(tmp_path):
    names = ["test.log", "test.2.log", "test.10.log"]
    for name in (*names, "test.x.log", "atest.log", "test.log.bak"):
        (tmp_path / name).write_text("")
    assert [latest_log("test", tmp_path, index) for index in range(4)] == [*(tmp_path / name for name in names), None]


# ---------------------------------------------------------------- table


def fill(*pairs):
    examiner = Examiner()
    examiner.experiments = {str(number): Experiment({}, metric, param) for number, (param, metric) in enumerate(pairs)}
    return examiner


def test_params_with_one_value_are_left_out_unless_asked_for(capsys):
    examiner = fill(({"b": 1, "a": 2, "_name": "x"}, {"m": 1}), ({"b": 2, "a": 2, "_name": "y"}, {"m": 2}))
    assert list(examiner.table().columns) == ["b", "m"]
    assert list(examiner.table(concise=False).columns) == ["a", "b", "m"]


def test_any_value_fits_into_the_table(capsys):
    """B30"""
    examiner = fill(({"layers": [1, 2], "opt": {"a": 1}}, {}), ({"layers": [1, 3], "opt": {"a": 1}}, {}))
    frame = examiner.table(print_tsv=False)
    assert capsys.readouterr().out == ""
    assert list(frame.columns) == ["layers"]
    assert frame["layers"].tolist() == [[1, 2], [1, 3]]
    fill(({}, {"b": 1}), ({}, {"a": "x\ty\nz"})).table(print_tsv=True)
    assert capsys.readouterr().out == "a\tb\nNone\t1\nx y z\tNone\n"


def test_without_pandas_the_table_is_a_list_of_rows(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert fill(({"a": 1}, {"m": 0.5}), ({"a": 2}, {})).table() == [{"a": 1, "m": 0.5}, {"a": 2, "m": None}]


def test_without_pyyaml_param_files_say_what_is_missing(output, monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(UsageError, match="needs PyYAML, which is not installed here: pip install PyYAML"):
        Examiner().exam(output)


VALUES = st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.integers(), max_size=3)


@given(st.lists(st.dictionaries(st.text(min_size=1), VALUES, max_size=4), max_size=6), st.booleans())
def test_every_row_has_every_column(params, concise):
    experiments = [Experiment({}, {}, param) for param in params]
    headers, rows = examine.build_table(experiments, concise)
    assert len(rows) == len(params)
    assert all(len(row) == len(headers) for row in rows)
    assert headers == sorted(headers)
    assert not any(name.startswith("_") for name in headers)
    assert len(examine.render_tsv(headers, rows).split("\n")) == len(rows) + 1
