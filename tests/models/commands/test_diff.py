"""`assay model diff`, as it is typed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np
import pytest

from assay.cli.main import build_cli
from assay.errors import AssayError

BASE = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
Call = Callable[..., tuple[int, str]]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    monkeypatch.chdir(tmp_path)
    wrong = BASE.copy()
    wrong[2, 3] += 1
    np.save("want.npy", BASE)
    np.save("got.npy", wrong)
    np.save("near.npy", BASE * np.float32(1 + 1e-6))
    np.save("empty.npy", BASE[:0])

    def run(*arguments: str) -> tuple[int, str]:
        capsys.readouterr()
        code = build_cli().main(args=["model", "diff", *arguments], standalone_mode=False)
        return int(code), capsys.readouterr().out

    return run


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("want.npy", "want.npy"), 0),
        (("want.npy", "near.npy"), 0),
        (("want.npy", "got.npy"), 1),
        (("empty.npy", "empty.npy"), 3),
        (("want.npy", "near.npy", "--rel", "1e-9"), 1),
        (("want.npy", "near.npy", "--ulp", "1"), 1),
        (("want.npy", "got.npy", "--abs", "1.5"), 0),
        (("want.npy", "got.npy", "--rel", "5"), 0),
        (("want.npy", "got.npy", "--rel", "5", "--top-k", "1"), 1),
        (("want.npy", "got.npy", "--rel", "5", "--min-cosine", "0.9999"), 1),
        (("want.npy", "got.npy", "--rel", "5", "--min-sqnr", "60"), 1),
        (("want.npy", "got.npy", "--allowed-wrong", "0.05"), 0),
        (("want.npy", "got.npy", "--slice", "0:2"), 0),
        (("want.npy", "got.npy", "--channel", "3"), 1),
        (("want.npy", "got.npy", "--channel", "2"), 0),
        (("want.npy", "want.npy", "--transpose", "1,0"), 1),
        (("want.npy", "near.npy", "--op", "Softmax"), 0),
    ],
)
def test_exit_codes(call: Call, arguments: tuple[str, ...], code: int) -> None:
    assert call(*arguments)[0] == code


def test_which_is_which_is_said(call: Call) -> None:
    _, out = call("want.npy", "got.npy")
    assert "expected  want.npy\nactual    got.npy\n" in out
    assert "[2, 3]" in out


def test_worst_elements(call: Call) -> None:
    assert call("want.npy", "near.npy", "--worst", "2")[1].count("\n  [") == 2
    assert "Worst" not in call("want.npy", "near.npy", "--worst", "0")[1]


def test_json(call: Call) -> None:
    code, out = call("want.npy", "got.npy", "--json")
    facts = json.loads(out)
    assert code == 1
    assert facts["verdict"] == "FAIL"
    assert facts["tensors"][0]["worst"][0]["index"] == [2, 3]


def test_a_page(call: Call, tmp_path: Path) -> None:
    code, out = call("want.npy", "got.npy", "--html", "page.html")
    assert code == 1
    assert out.startswith("FAIL")
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    assert [path.name for path in tmp_path.iterdir() if "page" in path.name] == ["page.html"]
    assert call("want.npy", "got.npy", "--html", "-")[1].startswith("<!doctype html>")


def test_other_types(call: Call, tmp_path: Path) -> None:
    np.save("double.npy", BASE.astype(np.float64))
    assert call("want.npy", "double.npy")[0] == 1
    assert call("want.npy", "double.npy", "--ignore-dtype")[0] == 0
    (tmp_path / "raw.bin").write_bytes(BASE.tobytes())
    assert call("want.npy", "raw.bin", "--dtype", "float32")[0] == 1
    assert call("want.npy", "raw.bin", "--dtype", "float32", "--shape", "4,6")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("want.npy", "none.npy"), "there is no file none.npy"),
        (("want.npy", "got.npy", "--html", "-", "--json"), "two reports"),
        (("want.npy", "got.npy", "--html", "no/such/page.html"), "cannot be written"),
        (("want.npy", "got.npy", "--channel", "1", "--slice", "0"), "--channel and --slice"),
        (("want.npy", "got.npy", "--shape", "a"), "is not a shape"),
        (("want.npy", "got.npy", "--rel", "nan"), "is not valid"),
        (("want.npy", "got.npy", "--allowed-wrong", "1"), "allowed_wrong"),
    ],
)
def test_what_is_refused(call: Call, arguments: tuple[str, ...], said: str) -> None:
    with pytest.raises(AssayError) as caught:
        call(*arguments)
    assert said in caught.value.render()
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("arguments", [("want.npy",), ("want.npy", "got.npy", "--abs", "x"), ("a", "b", "--nope")])
def test_what_click_refuses(call: Call, arguments: tuple[str, ...]) -> None:
    with pytest.raises(click.UsageError):
        call(*arguments)
