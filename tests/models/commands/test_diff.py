"""`assay model diff`: tensors from files and folders, whole or in part, and the command as it is typed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import ml_dtypes
import numpy as np
import pytest

from assay.cli.main import build_cli
from assay.errors import AssayError, UsageError
from assay.models.commands.diff import TensorsRequest, build_tolerance, diff_tensors, parse_index
from assay.models.graph.tensorfile import write_tensors
from assay.models.values.tensors import TensorDiff
from assay.values.verdict import Verdict, VerdictKind

BASE = np.random.default_rng(0).normal(size=(2, 3, 4, 5)).astype(np.float32)
TABLE = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
PASS, FAIL, INCONCLUSIVE = VerdictKind.PASS, VerdictKind.FAIL, VerdictKind.INCONCLUSIVE
Call = Callable[..., tuple[int, str]]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def diff(expected: str, actual: str, **more: Any) -> tuple[Verdict, tuple[TensorDiff, ...]]:
    return diff_tensors(TensorsRequest(expected, actual, **more))


def save(name: str, array: np.ndarray) -> str:
    np.save(name, array)
    return name


def test_two_files() -> None:
    wrong = BASE.copy()
    wrong[1, 2, 3, 4] += 1
    verdict, (found,) = diff(save("want.npy", BASE), save("got.npy", wrong))
    assert verdict.kind is FAIL
    assert (found.expected, found.actual, found.comparison.name) == ("want.npy", "got.npy", "want")
    assert found.comparison.worst[0].index == (1, 2, 3, 4)
    assert found.histogram is not None
    assert found.histogram.zero == 119
    assert found.heat is not None
    assert found.heat.axes == (2, 3)
    np.savez("one.npz", logits=BASE)
    verdict, (found,) = diff("want.npy", "one.npz")
    assert verdict.kind is PASS, "one array is compared whatever it is called"
    assert (found.expected, found.actual) == ("want.npy", "one.npz"), "it is not called `want` there"
    with pytest.raises(UsageError, match=r"one.npz \[logits\]: 0,1 is not an order of its axes"):
        diff("want.npy", "one.npz", transpose="0,1")


def test_files_of_several_arrays_are_paired_by_name() -> None:
    np.savez("want.npz", a=BASE, b=np.arange(4), c=np.ones(2))
    np.savez("got.npz", b=np.array([0, 1, 2, 4]), a=BASE, d=np.ones(2))
    verdict, found = diff("want.npz", "got.npz")
    assert [(each.comparison.name, each.comparison.verdict.kind) for each in found] == [("a", PASS), ("b", FAIL)]
    assert found[1].expected == "want.npz [b]"
    assert {each.subject for each in verdict.findings} == {"b", "c", "d"}
    verdict, _ = diff("want.npz", save("a.npy", BASE))
    assert (verdict.kind, [each.subject for each in verdict.findings]) == (FAIL, ["b", "c"])


def test_folders_that_a_check_wrote_and_of_plain_files(tmp_path: Path) -> None:
    small = BASE.astype(ml_dtypes.bfloat16)
    write_tensors("want", {"y": small, "names": np.array(["a", "b"], object), "ids": np.arange(3)})
    write_tensors("got", {"y": small, "names": np.array(["a", "c"], object), "ids": np.arange(3)})
    verdict, found = diff("want", "got")
    assert [each.comparison.dtype[0] for each in found] == ["bfloat16", "string", "int64"]
    assert [each.subject for each in verdict.findings] == ["names"]
    assert found[1].heat is None
    for folder in ("plain", "other"):
        (tmp_path / folder).mkdir()
        np.save(f"{folder}/a.npy", BASE)
        np.save(f"{folder}/b.npy", np.arange(3) + (folder == "other"))
    verdict, found = diff("plain", "other")
    assert (verdict.kind, [each.comparison.name for each in found]) == (FAIL, ["a", "b"])


def test_raw_files_and_types_that_numpy_does_not_know(tmp_path: Path) -> None:
    small = BASE.astype(ml_dtypes.bfloat16)
    (tmp_path / "raw.bin").write_bytes(small.tobytes())
    save("as_uint.npy", small.view(np.uint16))
    verdict, (found,) = diff("as_uint.npy", "raw.bin", dtype="bfloat16", shape=(2, 3, 4, 5))
    assert (verdict.kind, found.comparison.dtype) == (PASS, ("bfloat16", "bfloat16"))


def test_a_part_and_another_order_of_axes() -> None:
    wrong = BASE.copy()
    wrong[1, 2, 0, 0] += 1
    want, got = save("want.npy", BASE), save("got.npy", wrong)
    for more, kind in (({"part": "0"}, PASS), ({"channel": 1}, PASS), ({"channel": -1}, FAIL)):
        assert diff(want, got, **more)[0].kind is kind
    verdict, (found,) = diff(want, got, part="1, :, 0:2")
    assert (verdict.kind, found.part) == (FAIL, "slice 1, :, 0:2")
    assert found.comparison.shape[0] == (3, 2, 5)
    assert found.comparison.worst[0].index == (2, 0, 0)
    save("nhwc.npy", BASE.transpose(0, 2, 3, 1))
    assert diff(want, "nhwc.npy")[0].kind is FAIL
    verdict, (found,) = diff(want, "nhwc.npy", transpose="0,3,1,2")
    assert (verdict.kind, found.part) == (PASS, "actual transposed by 0,3,1,2")
    assert diff(save("v.npy", np.arange(3)), "v.npy", channel=2)[1][0].comparison.count == 1


@pytest.mark.parametrize(
    ("text", "index"),
    [
        ("0", (0,)), ("-1,:", (-1, slice(None))), ("[0, 1:3, ::2]", (0, slice(1, 3), slice(None, None, 2))),
        ("...,0", (Ellipsis, 0)), *((text, None) for text in ("", "a", "0,,1", "1:2:3:4", "::0", "1:x")),
    ],
)  # fmt: skip
def test_indices_as_numpy_writes_them(text: str, index: tuple[Any, ...] | None) -> None:
    if index is not None:
        assert parse_index(text) == index
        return
    with pytest.raises(UsageError, match="is not an index"):
        parse_index(text)


def test_an_absolute_bound_is_for_integers_too_and_zeros_are_equal() -> None:
    assert build_tolerance(TensorsRequest("a", "b", abs_bound=2.5)).int_abs == 2
    assert build_tolerance(TensorsRequest("a", "b", abs_bound=0.5)).int_abs is None
    want, got = save("want.npy", np.arange(4)), save("got.npy", np.arange(4) + 1)
    assert diff(want, got)[0].kind is FAIL
    assert diff(want, got, abs_bound=1.0)[0].kind is PASS
    zeros = save("zeros.npy", np.zeros(4, np.float32))
    verdict, (found,) = diff(zeros, zeros)
    assert (verdict.kind, "actual is all zero" in found.comparison.flags) == (PASS, True)


@pytest.mark.parametrize(
    ("make", "more", "said"),
    [
        (lambda: Path("t.npy").write_text("hello") and "t.npy", {}, "t.npy is not a readable .npy file"),
        (lambda: Path("t.bin").write_bytes(b"12345") and "t.bin", {"dtype": "float32"}, "not a multiple"),
        (lambda: Path("empty").mkdir() or "empty", {}, "empty contains no tensor"),
        (lambda: save("a.npy", BASE), {"dtype": "bfloat61"}, "no tensor type named 'bfloat61'"),
        (lambda: save("a.npy", BASE), {"part": "9"}, "its shape is (2, 3, 4, 5)"),
        (lambda: save("a.npy", BASE), {"channel": 3}, "there is no such part"),
        (lambda: save("a.npy", np.float32(3)), {"channel": 0}, "there is no such part"),
        (lambda: save("a.npy", BASE), {"transpose": "0,1"}, "its 4 axes are 0, 1, 2, 3"),
        (lambda: save("a.npy", BASE), {"transpose": "a"}, "is not an order of the axes"),
        (lambda: save("a.npy", BASE), {"shape": (7,)}, "do not fill [7]"),
    ],
)
def test_what_cannot_be_compared(make: Any, more: dict[str, Any], said: str) -> None:
    path = make()
    with pytest.raises(AssayError) as caught:
        diff(path, path, **more)
    assert said in caught.value.render()


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    wrong = TABLE.copy()
    wrong[2, 3] += 1
    arrays = {"want": TABLE, "got": wrong, "near": TABLE * np.float32(1 + 1e-6), "empty": TABLE[:0]}
    for name, array in {**arrays, "double": TABLE.astype(np.float64)}.items():
        np.save(f"{name}.npy", array)
    Path("raw.bin").write_bytes(TABLE.tobytes())

    def run(*arguments: str) -> tuple[int, str]:
        capsys.readouterr()
        code = build_cli().main(args=["model", "diff", *arguments], standalone_mode=False)
        return int(code), capsys.readouterr().out

    return run


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("want.npy near.npy", 0),
        ("want.npy got.npy", 1),
        ("empty.npy empty.npy", 3),
        ("want.npy near.npy --rel 1e-9", 1),
        ("want.npy near.npy --ulp 1", 1),
        ("want.npy got.npy --abs 1.5", 0),
        ("want.npy got.npy --rel 5", 0),
        ("want.npy got.npy --rel 5 --top-k 1", 1),
        ("want.npy got.npy --rel 5 --min-cosine 0.9999", 1),
        ("want.npy got.npy --rel 5 --min-sqnr 60", 1),
        ("want.npy got.npy --allowed-wrong 0.05", 0),
        ("want.npy got.npy --slice 0:2", 0),
        ("want.npy got.npy --channel 3", 1),
        ("want.npy got.npy --channel 2", 0),
        ("want.npy want.npy --transpose 1,0", 1),
        ("want.npy near.npy --op Softmax", 0),
        ("want.npy double.npy", 1),
        ("want.npy double.npy --ignore-dtype", 0),
        ("want.npy raw.bin --dtype float32", 1),
        ("want.npy raw.bin --dtype float32 --shape 4,6", 0),
    ],
)
def test_exit_codes(call: Call, arguments: str, code: int) -> None:
    assert call(*arguments.split())[0] == code


def test_what_is_printed(call: Call, tmp_path: Path) -> None:
    code, out = call("want.npy", "got.npy", "--html", "page.html")
    assert code == 1
    assert out.startswith("FAIL")
    assert "expected  want.npy\nactual    got.npy\n" in out
    assert "[2, 3]" in out
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    assert [path.name for path in tmp_path.iterdir() if "page" in path.name] == ["page.html"]
    assert call("want.npy", "got.npy", "--html", "-")[1].startswith("<!doctype html>")
    facts = json.loads(call("want.npy", "got.npy", "--json")[1])
    assert (facts["verdict"], facts["tensors"][0]["worst"][0]["index"]) == ("FAIL", [2, 3])
    assert call("want.npy", "near.npy", "--worst", "2")[1].count("\n  [") == 2
    assert "Worst" not in call("want.npy", "near.npy", "--worst", "0")[1]
    empty = call("empty.npy", "empty.npy")[1]
    assert empty.startswith("INCONCLUSIVE: the tensors have no elements to compare\n")
    assert "both tensors have no elements (shape (0, 6))" in empty


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("want.npy none.npy", "there is no file none.npy"),
        ("want.npy got.npy --html - --json", "two reports"),
        ("want.npy got.npy --html no/such/page.html", "cannot be written"),
        ("want.npy got.npy --channel 1 --slice 0", "--channel and --slice"),
        ("want.npy got.npy --shape a", "is not a shape"),
        ("want.npy got.npy --allowed-wrong 1", "allowed_wrong"),
    ],
)
def test_what_is_refused(call: Call, arguments: str, said: str) -> None:
    with pytest.raises(AssayError) as caught:
        call(*arguments.split())
    assert said in caught.value.render()
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("arguments", ["want.npy", "want.npy got.npy --abs x", "a b --nope"])
def test_what_click_refuses(call: Call, arguments: str) -> None:
    with pytest.raises(click.UsageError):
        call(*arguments.split())
