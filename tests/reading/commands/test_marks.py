"""`assay tag` and `assay note`, and where tags and notes are shown."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing

import pytest
from tests.finished_study import BAD, GOOD, Bench

import assay
from assay.system.files import index_path


@pytest.fixture
def own(own_bench: Bench) -> Bench:
    own_bench.add_finished()
    return own_bench


def test_tags_of_runs_are_shown_everywhere(cli, own_bench: Bench, own: Bench) -> None:
    assert "tags" not in cli("ls", "fit").out + cli("sum", "fit").out
    assert cli("tag", f"fit/{GOOD}", "good", "paper") == (0, f"fit/{GOOD}: good, paper\n", "")
    assert cli("tag", "fit/lr=0.5*", "bad").out == "".join(f"fit/lr=0.5,n={n}: bad\n" for n in (7, 8))
    assert "good,paper" in cli("ls", "fit").out
    tags = {row["run"]: row["tags"] for row in json.loads(cli("sum", "fit", "--json").out)}
    assert tags == {GOOD: "good,paper", "lr=0.1,n=8": "", BAD: "bad", "lr=0.5,n=8": "bad"}
    assert "tags" not in cli("sum", "fit", "--ignore", "tags").out
    assert "tags     good, paper\n" in cli("show", GOOD).out
    assert json.loads(cli("show", GOOD, "--json").out)["tags"] == ["good", "paper"]
    (row,) = [row for row in json.loads(cli("ls", "fit", "--json").out) if row["name"] == GOOD]
    assert (row["tags"], row["note"], row["tag"]) == (["good", "paper"], "", None)
    runs = assay.runs("fit")
    assert (runs[GOOD].tags, runs["lr=0.1,n=8"].tags) == (("good", "paper"), ())


def test_tags_and_notes_are_in_the_index_and_survive_it(cli, own_bench: Bench, own: Bench) -> None:
    cli("tag", f"fit/{GOOD}", "good")
    cli("note", f"fit/{GOOD}", "converged", "early")
    cli("sum", "fit")
    with closing(sqlite3.connect(index_path(own.root, os.environ | own.extra))) as db:
        assert db.execute("SELECT key, tag FROM tags").fetchall() == [(f"fit/{GOOD}", "good")]
        assert db.execute("SELECT note FROM runs WHERE name = ?", (GOOD,)).fetchall() == [("converged early",)]
    cli("index", "rebuild")
    assert assay.runs("fit")[GOOD].note == "converged early"


def test_a_removed_tag_leaves_the_table(cli, own_bench: Bench, own: Bench) -> None:
    cli("tag", f"fit/{GOOD}", "good")
    assert "good" in cli("sum", "fit").out
    assert cli("tag", f"fit/{GOOD}", "--remove", "good").out == f"fit/{GOOD}: no tags\n"
    assert "good" not in cli("sum", "fit").out


def test_runs_chosen_by_an_expression(cli, own_bench: Bench, own: Bench) -> None:
    assert cli("tag", "fit", "good", "--where", "lr<0.3 and n==8").out == "fit/lr=0.1,n=8: good\n"
    assert cli("note", "fit", "--where", "tag==good", "seen").out.startswith("fit/lr=0.1,n=8:\n")
    assert cli("sum", "fit", "--where", "tag==good", "--csv").out.splitlines()[1].startswith('"lr=0.1,n=8"')
    assert cli("tag", "fit", "good", "--where", "lr>3").code == 2


def test_a_study_has_tags_of_its_own(cli, own_bench: Bench, own: Bench) -> None:
    cli("tag", "fit", "paper")
    cli("tag", f"fit/{GOOD}", "good")
    assert cli("tag", "fit").out == f"fit: paper\nfit/{GOOD}: good\n"
    assert "paper" in cli("ls").out
    assert "paper" not in cli("ls", "fit").out
    (study,) = json.loads(cli("ls", "--json").out)
    assert (study["tags"], study["note"]) == (["paper"], "")
    assert [each["kind"] for each in json.loads(cli("tag", "fit", "--json").out)] == ["study", *["run"] * 4]


def test_notes(cli, own_bench: Bench, own: Bench) -> None:
    assert cli("note", "fit").out == "fit: no notes\n"
    cli("note", f"fit/{GOOD}", "first")
    cli("note", f"fit/{GOOD}", "two\nlines")
    lines = cli("note", f"fit/{GOOD}").out.splitlines()
    assert [line.split()[-1] for line in lines] == [f"fit/{GOOD}:", "first", "two", "lines"]
    assert cli("show", GOOD).out.count("note  ") == 2
    assert [note["text"] for note in json.loads(cli("show", GOOD, "--json").out)["notes"]] == ["first", "two\nlines"]
    cli("note", f"fit/{GOOD}", "--clear", "only this")
    assert assay.runs("fit")[GOOD].note == "only this"
    cli("note", f"fit/{GOOD}", "--clear")
    assert assay.runs("fit")[GOOD].note == ""


def test_a_folder_that_runx_made_can_be_tagged(cli, own_bench: Bench) -> None:
    for name, files in {"a": ("hparams.json", "metrics.csv"), "b": ("hparams.json",)}.items():
        for file in files:
            path = own_bench.root / "old" / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text('{"lr": 0.1}' if file.endswith("json") else "val,loss,0.5,epoch,1,timestamp,5\n")
    cli("sum", "old")
    for name in "ab":
        assert cli("tag", f"old/{name}", f"of-{name}").code == 0
    assert {run.name: run.tags for run in assay.runs("old")} == {"a": ("of-a",), "b": ("of-b",)}
    assert cli("tag", "old").out == "old/a: of-a\nold/b: of-b\n"


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        (("tag", "fit/lr=0.1,n=9", "x"), ("no run named", "did you mean")),
        (("tag", "fitt", "x"), ("no study or run named", "did you mean 'fit'")),
        (("tag", "fit", "a b"), ("not a valid tag",)),
        (("tag", "fit", ""), ("a tag is empty",)),
        (("tag", "fit", "x", "--remove", "x"), ("added and removed",)),
        (("tag", "fit", "--remove", "x"), ("no tag named 'x'",)),
        (("note", "fit", " "), ("the note is empty",)),
    ],
)
def test_bad_input(cli, bench: Bench, arguments: tuple[str, ...], texts: tuple[str, ...]) -> None:
    result = cli(*arguments)
    assert (result.code, result.out) == (2, "")
    assert all(text in result.err for text in texts)


def test_a_damaged_file_is_named_in_tables_and_by_the_command(cli, own_bench: Bench, own: Bench) -> None:
    path = own.root / "fit" / GOOD / "tags.json"
    path.write_text("{")
    assert "tags.json is damaged" in cli("ls", "fit").out
    assert "tags.json is damaged" in cli("show", GOOD).out
    cli("tag", f"fit/{GOOD}", "good").ended(4, "move the file away")
    assert "is damaged" in cli("tag", f"fit/{GOOD}").err
    path.unlink()
    assert cli("tag", f"fit/{GOOD}", "good").code == 0
    assert "damaged" not in cli("ls", "fit").out
    (own.root / "fit" / ".assay" / "tags.json").write_text("{")
    assert "fit: tags.json is damaged" in cli("ls").err
