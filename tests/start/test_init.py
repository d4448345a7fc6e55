"""`assay init`: flags that are read and not executed, patterns that match, files that run."""

from __future__ import annotations

import os
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from tests.study_processes import until

from assay.cli.main import run
from assay.start.flags import Flags, ScriptFlag, fill_flags, read_flags
from assay.start.init import guess_patterns
from assay.system.processes import process_start

ARGPARSE = """
import argparse, sys
p = argparse.ArgumentParser()
p.add_argument("--lr", "-l", type=float, default=0.1, help="Rate: 5% of {all} [x] # it's")
p.add_argument("--batch_size", default=2 * 4)
p.add_argument("--early-stop", action="store_true")
p.add_argument("--opt", choices=["sgd", "adam"], default="sgd")
p.add_argument("--sizes", nargs="+", type=int, default=[1, 2])
p.add_argument("--a b", default="no name of a parameter")
p.add_argument("--version", action="version", version="1")
a = p.parse_args()
print("read 5000 rows, version 1.2")
for s in range(1, 6):
    print(f"step {s} loss {1 / s:.3f} lr {a.lr} time 0.3s")
    print(f"Epoch [{s}/5]  val loss: {2 / s:.3f}  val_acc={s / 10}")
"""
FOREVER = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"]).pid, file=open("child", "w"))
while True:
    print("it 3 Loss: 2.5e-1", flush=True)
    time.sleep(0.05)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ASSAY_CACHE_DIR", str(tmp_path / ".cache"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def write(folder: Path, text: str, name: str = "train.py") -> str:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return name


# ---------------------------------------------------------------- flags


def shorten(flags: Flags) -> tuple[ScriptFlag, ...]:
    return tuple(ScriptFlag(*flag[:5]) for flag in flags.found)


def test_argparse(here: Path) -> None:
    flags = read_flags(write(here, ARGPARSE))
    assert flags.tool == "argparse"
    assert shorten(flags) == (
        ScriptFlag("lr", "[lr]", 0.1, "Rate: 5% of {all} [x] # it's"),
        ScriptFlag("batch_size", "[batch_size]"),  # a default that is computed
        ScriptFlag("early-stop", "[early-stop]", False),
        ScriptFlag("opt", "[opt]", "sgd", "(sgd, adam)"),
        ScriptFlag("sizes", "--sizes {sizes}", [[1, 2]]),
    )
    for call, expected in (
        ('"data"', ScriptFlag("data", "{data}", None, "", True)),
        ('"--data", required=True', ScriptFlag("data", "--data {data}", None, "", True)),
        ('"-x", default=3', ScriptFlag("x", "-x {x}", 3)),
        ('"--no-bias", action="store_false"', ScriptFlag("no-bias", "[no-bias]", False)),
        ('"--d", default=lambda: 3', ScriptFlag("d", "[d]")),
        ('"--d", nargs="*"', ScriptFlag("d", "[d]")),
        ('"--d", default={"a": 1}', ScriptFlag("d", "[d]")),
        ('"--d", type=bool, default=True', ScriptFlag("d", "[d]")),  # the flag alone would be refused
        ('"--d", action="count", default=0', ScriptFlag("d", "[d]", False)),
        ('"--d", action=argparse.BooleanOptionalAction, default=True', ScriptFlag("no-d", "[no-d]", False)),
        ('"d", nargs="+"', ScriptFlag("d", "{d}", None, "", True)),
        ('"-d", default=0', ScriptFlag("d", "-d {d}", 0)),
    ):
        assert shorten(read_flags(write(here, f"p.add_argument({call})"))) == (expected,)
    for call in ('"d", nargs="?"', '"d", nargs="*"', '"-d"', '"-d", action="store_true"'):  # nothing to leave out by
        assert read_flags(write(here, f"p.add_argument({call})")).found == ()


@pytest.mark.parametrize(
    ("words", "given", "rest"),
    [
        ("--lr 0.1 --fast x", {"lr": 0.1, "fast": True, "data": "x"}, ""),
        ("--lr=-0.1 -n3 --sizes 1 2", {"lr": -0.1, "n": 3, "sizes": [[1, 2]]}, ""),
        ("-b 03 a=b --lr 1e-3 -n 0.10", {"batch-size": "03", "data": "a=b", "lr": "1e-3", "n": "0.10"}, ""),
        ("x y --other=3 z", {"data": "x"}, "y --other=3 z"),
        ("--lr 1 --other 3 x", {"lr": 1}, "--other 3 x"),  # whether 3 belongs to --other is not known
        ("--lr 1 --lr 2", {}, "--lr 1 --lr 2"),
        ("x --lr", {}, "x --lr"),
    ],
)
def test_arguments_become_values_of_flags(here: Path, words: str, given: dict[str, Any], rest: str) -> None:
    calls = ('"--lr"', '"--fast", action="store_true"', '"-n", default=1', '"-b", "--batch-size"', '"data"')
    text = "".join(f"p.add_argument({call})\n" for call in (*calls, '"--sizes", nargs="+"'))
    before = read_flags(write(here, text))
    flags, others = fill_flags(before, words.split())
    assert {flag.name: flag.default for flag in flags.found if flag not in before.found} == given
    assert " ".join(others) == rest


@pytest.mark.parametrize(
    ("text", "words", "command"),
    [
        ("import sys", ["0.1", "{lr} [x]"], "python train.py 0.1 '{lr} [x]'"),
        (ARGPARSE, ["--lr", "1e-3", "--sizes", "3", "4"], "--lr 1e-3 --opt sgd --sizes 3 4"),
        ('p.add_argument("--data", required=True)', ["--data", "a b", "-v"], "--data 'a b' -v"),
    ],
)
def test_the_first_run_is_the_call_with_the_arguments(
    here: Path, text: str, words: list[str], command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["init", write(here, text), "--no-run", "--", *words]) == 0
    assert "fill in" not in capsys.readouterr().out
    assert run(["run", "train.yml", "-n"]) == 0
    assert capsys.readouterr().out.rstrip().endswith(command)


def test_click(here: Path) -> None:
    text = """
        import click
        @click.command()
        @click.option("--lr", default=0.1, help="rate")
        @click.option("--shout/--no-shout", default=False)
        @click.option("--cache/--no-cache", default=True)
        @click.option("--tag", multiple=True, default=("a", "b"))
        @click.option("-n", "--layers", type=int, required=True)
        @click.argument("data")
        def main(lr, shout, layers, data): pass
    """
    flags = read_flags(write(here, text))
    assert flags.tool == "click"
    assert shorten(flags) == (
        ScriptFlag("lr", "[lr]", 0.1, "rate"),
        ScriptFlag("shout", "[shout]", False),
        ScriptFlag("no-cache", "[no-cache]", False),
        ScriptFlag("tag", "[tag]"),
        ScriptFlag("layers", "--layers {layers}", None, "", True),
        ScriptFlag("data", "{data}", None, "", True),
    )


def test_hydra(here: Path) -> None:
    groups = (
        "defaults: [x, net: small, _self_, override hydra/launcher: basic]\nhydra: {sweeper: {params: {lr: '1,2'}}}\n"
    )
    rest = "lr: 0.1\nopt: {name: adam, betas: [1, 2]}\ndata: ???\nout: ${x}\nnet: {width: 8}\n"
    write(here, groups + rest, "conf/base.yaml")
    text = '@hydra.main(version_base=None, config_path="conf", config_name="base")\ndef main(c): pass\n'
    flags = read_flags(write(here, text))
    assert (flags.tool, flags.file) == ("Hydra", "conf/base.yaml")
    filled, rest = fill_flags(flags, ["data=x", "net.width=9", "+a=1", "-m"])
    assert [flag.default for flag in filled.found] == ["small", 0.1, "adam", "x", 9]
    assert rest == ["+a=1", "-m"]
    assert [(flag.words, flag.default, flag.is_required) for flag in flags.found] == [
        ("net={net}", "small", False),
        ("lr={lr}", 0.1, False),
        ("opt.name={opt.name}", "adam", False),
        ("data={data}", None, True),
        ("net.width={net.width}", 8, False),
    ]


def test_flags_of_a_module_next_to_the_script(here: Path) -> None:
    write(here, 'p.add_argument("--lr", default=1)', "options.py")
    flags = read_flags(write(here, "import os\nfrom options import p\n"))
    assert (flags.file, [flag.name for flag in flags.found]) == ("options.py", ["lr"])
    for encoding, line in (("utf-8-sig", ""), ("latin-1", "# coding: latin-1\n")):
        Path("options.py").write_text(
            f'{line}import argparse\nargparse.ArgumentParser("caf\xe9").add_argument("--lr")', encoding
        )
        assert [flag.name for flag in read_flags("options.py").found] == ["lr"]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["step 1 loss 0.5", "step 2 loss 0.4"], {"step": r"step (\d+)", "loss": "loss ({number})"}),
        (["Epoch [1/9] Loss: 0.5"], {"epoch": r"Epoch \[(\d+)", "loss": "Loss: ({number})"}),
        (['{"iter": 1, "acc": 1}'], {"step": r'iter": (\d+)', "acc": 'acc": ({number})'}),
        (["loss=1e-3 val_loss=2.0"], {"loss": "(?<!val_)loss=({number})", "val_loss": "val_loss=({number})"}),
        (["train loss 1.0 val loss 2.0"], {"train_loss": "train loss ({number})", "val_loss": "val loss ({number})"}),
        (["Loaded 5000 rows", "took 3.5 s", "lr 0.1", "python 3.11.4"], {}),
    ],
)
def test_guesses(lines: list[str], expected: dict[str, str]) -> None:
    assert {each.metric: each.pattern for each in guess_patterns(lines, ["lr"])} == expected


# ---------------------------------------------------------------- the command


def test_of_a_long_line_is_shown_what_a_pattern_matches() -> None:
    line = f"Epoch 1/10 {'-' * 40} train_loss=0.5 | val_loss=0.4 {'-' * 40}"
    assert [each.line[:8] for each in guess_patterns([line], [])] == ["Epoch 1/", "train_lo", "val_loss"]


def test_the_file_runs_and_its_metrics_are_captured(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["init", write(here, ARGPARSE)]) == 0
    printed = capsys.readouterr().out
    assert "running it for at most 10 s, to see what it prints: python train.py\n" in printed
    assert "val_loss     Epoch [1/5]  val loss: 2.000  val_acc=0.1 (and 4 more lines)" in printed
    assert "lr: 0.1  # Rate: 5% of {all} [x] # it's" in (here / "train.yml").read_text()
    assert run(["run", "train.yml", "-j", "1", "--quiet", "lr=0.1,0.2"]) == 0
    capsys.readouterr()
    assert run(["sum", "train", "--csv"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert {"loss", "val_loss", "val_acc"} <= set(head.split(","))
    assert len(rows) == 2
    assert {path.name for path in here.iterdir()} == {".cache", "runs", "train.py", "train.yml"}


def test_a_script_that_runs_for_ever_is_ended_with_its_children(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("assay.start.init._GRACE_S", 0.2)
    assert run(["init", write(here, FOREVER), "--seconds", "1"]) == 0
    printed = capsys.readouterr().out
    assert "it was stopped after" in printed
    assert "loss         it 3 Loss: 2.5e-1" in printed
    child = int((here / "child").read_text())
    until(lambda: process_start(child) is None, "it is gone")


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        ("raise RuntimeError('CUDA: none')", [], "it failed with exit code 1: RuntimeError: CUDA: none"),
        ("print('hello')", [], "nothing that looks like a metric was printed"),
        ("print('hello')", ["--no-run"], "no argparse, click or Hydra flags in train.py"),
        ("p = argparse.ArgumentParser()\np.add_argument('data')", [], "it was not run, since it needs data"),
        ("open('ran', 'w')", ["--no-run"], "it was not run"),
        ("import sys\nprint(sys.argv[1], '0.5')", ["--", "loss"], "python train.py loss\n"),
    ],
)
def test_what_is_guessed_and_what_cannot_be(
    here: Path, text: str, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["init", write(here, text), *words]) == 0
    assert message in capsys.readouterr().out
    assert ("\n  loss: 'loss ({number})'" in (here / "train.yml").read_text()) == ("loss" in words)
    assert not (here / "ran").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing.py"], "there is no file nothing.py"),
        (["bad.py"], "bad.py:1 is not a Python script: invalid syntax"),
        (["latin.py"], "latin.py:1 is not a Python script: (unicode error) 'utf-8' codec can't decode byte 0xe9"),
        (["../other.py"], "../other.py is outside of this folder"),
        (["train.py", "-o", "taken.yml"], "taken.yml is there already"),
        (["train.py", "-o", "no/where.yml"], "no/where.yml cannot be written"),
        (["train.py", "--seconds", "0"], "--seconds"),
    ],
)
def test_bad_input(here: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = here / "project"
    folder.mkdir()
    os.chdir(folder)
    (here / "other.py").write_text("")
    for name, text in {"train.py": "", "bad.py": "def (", "latin.py": "'caf\xe9'", "taken.yml": "mine"}.items():
        (folder / name).write_text(text, encoding="latin-1")
    before: dict[str, Any] = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert run(["init", *words]) == 2
    assert message in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
