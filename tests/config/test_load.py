"""A file on disk → Study: the dialect is recognised by what is in the file."""

from __future__ import annotations

from dataclasses import replace

import pytest

from assay.config.load import LoadOptions, detect_dialect, load_study
from assay.config.source import parse_documents
from assay.errors import ConfigError, UsageError


def write(folder, text: str, name: str = "f.yml") -> LoadOptions:
    (folder / name).write_text(text)
    return LoadOptions(cwd=str(folder), home=str(folder))


def test_a_missing_file_is_answered_with_how_to_make_one(tmp_path):
    with pytest.raises(UsageError) as caught:
        load_study("gone.yml", LoadOptions(cwd=str(tmp_path)))
    shown = caught.value.render()
    assert "there is no file gone.yml" in shown
    example = "\n".join(line.strip() for line in shown.splitlines() if ": " in line and "`" not in line)
    assert load_study("f.yml", write(tmp_path, example)).name == "demo"


@pytest.mark.parametrize(
    ("asked", "hint"),
    [
        ("fak.yml", "did you mean 'fake.yml'?"),
        ("./fak.yml", "did you mean './fake.yml'?"),
        ("fake", "did you mean 'fake.yml'?"),
        ("sub/stdy.yml", "did you mean 'sub/study.yaml'?"),
        ("other.yml", "a smallest file:"),
        ("trian.yml", "a smallest file:"),  # train.py is not a study file
        ("fake.yml/a.yml", "a smallest file:"),
    ],
)
def test_a_missing_file_is_answered_with_a_similar_one(tmp_path, asked: str, hint: str) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("fake.yml", "train.py", "sub/study.yaml"):
        (tmp_path / name).write_text("command: x")
    with pytest.raises(UsageError) as caught:
        load_study(asked, LoadOptions(cwd=str(tmp_path)))
    assert caught.value.render().splitlines()[:2] == [f"there is no file {asked}", f"  {hint}"]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("train.py", "import sys\nprint(sys.argv)\n", "train.py is a Python script, not a study file"),
        ("train.py", '"""Trains: a model."""\nx = {1: 2}\n', "is a Python script"),
        ("a.ipynb", '{"cells": []}', "is a notebook"),
    ],
)
def test_another_kind_of_file_is_named(tmp_path, name: str, text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        load_study(name, write(tmp_path, text, name))
    assert "command: python train.py" in caught.value.render()


def test_a_study_may_have_any_ending(tmp_path) -> None:
    assert load_study("s.py", write(tmp_path, "command: x", "s.py")).commands


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('command: x\nmetrics: {epoch: "epoch (\\d+)"}\n', "single quotes"),
        ("command: x [resume]\nparams: {a: 1}\n", "resume: resume"),
        ("command: x\nparams:\n  lr: interval(0.1, 1)\n", "write {uniform: [0.1, 1]}"),
    ],
)
def test_what_to_write_instead_is_said(tmp_path, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_study("f.yml", write(tmp_path, text))
    assert words in str(caught.value)


@pytest.mark.needs(compat=True)
@pytest.mark.parametrize("dialect", [None, "runx", "mlrunner"])
def test_the_answer_to_an_empty_file_holds_one_that_works(tmp_path, dialect):
    options = replace(write(tmp_path, "# nothing\n"), dialect=dialect)
    with pytest.raises(ConfigError) as caught:
        load_study("f.yml", options)
    lines = [line.removeprefix("      ") for line in caught.value.render().splitlines() if line.startswith("      ")]
    study = load_study("g.yml", replace(write(tmp_path, "\n".join(lines), "g.yml"), dialect=dialect))
    assert study.dialect == (dialect or "native")
    assert study.sweeps


@pytest.mark.needs(compat=True)
@pytest.mark.parametrize(
    ("text", "dialect"),
    [
        ("command: a", "native"),
        ("commands: {template: x}", "native"),
        ("study: x", "native"),
        ("anything: x", "native"),
        ("CMD: a\nHPARAMS: {b: 1}", "runx"),
        ("cmd: a\nhparams: {b: 1}", "runx"),
        ("CMD: a", "runx"),
        ("HPARAMS: {b: 1}", "runx"),
        ("template: {train: a}\nresource: [0]\n---\nb: 1", "mlrunner"),
        ("---\n---\ntemplate: {train: a}", "mlrunner"),
        ("command: a\ntemplate: b", "native"),
        ("command: a\ncmd: b", "native"),
        ("command: a\nCMD: b", "runx"),
        ("template: {train: a}\nCMD: b", "mlrunner"),
    ],
)
def test_dialects_are_recognised_by_content(text, dialect):
    assert detect_dialect(parse_documents(text, "f.yml")).name == dialect


@pytest.mark.needs(compat=True)
def test_each_dialect_is_loaded_by_its_own_reader(tmp_path):
    native = load_study("a.yml", write(tmp_path, "command: echo {x}\nparams: {x: [1e-4, no]}\n", "a.yml"))
    runx = load_study("b.yml", write(tmp_path, "CMD: echo\nHPARAMS: {x: [1e-4, no]}\n", "b.yml"))
    text = "template: {train: 'echo {x}'}\nresource: [0]\n---\nx: [1e-4, no]\n"
    mlrunner = load_study("c.yml", write(tmp_path, text, "c.yml"))
    assert [study.dialect for study in (native, runx, mlrunner)] == ["native", "runx", "mlrunner"]
    assert native.sweeps[0].axes["x"].values == (1e-4, "no")
    assert runx.sweeps[0].axes["x"].values == mlrunner.sweeps[0].axes["x"].values == ("1e-4", False)


def test_a_dialect_that_was_asked_for_is_not_guessed(tmp_path):
    options = write(tmp_path, "CMD: echo\nHPARAMS: {x: 1}\n")
    with pytest.raises(ConfigError, match="CMD: unknown key"):
        load_study("f.yml", LoadOptions(dialect="native", cwd=options.cwd))


def test_the_path_is_shown_as_the_user_wrote_it(tmp_path):
    (tmp_path / "sub").mkdir()
    write(tmp_path / "sub", "comand: x\n")
    with pytest.raises(ConfigError, match=r"^sub/f.yml:1:1"):
        load_study("sub/f.yml", LoadOptions(cwd=str(tmp_path)))


@pytest.mark.parametrize("name", ["a b.yml", "it's.yml", "ü\n.yml", '"q".yml'])
def test_odd_file_names_are_read(tmp_path, name):
    assert load_study(name, write(tmp_path, "study: x\ncommand: a\n", name)).source == name
