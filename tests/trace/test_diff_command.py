"""`assay trace diff`: exit codes, reports, and what bad input gets."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.command_line import Cli
from tests.trace_files import Program

Diff = Callable[..., Any]


@pytest.fixture
def diff(tmp_path: Path, cli: Cli) -> Diff:
    """Writes the two programs and compares them; returns exit code, JSON and the text of stderr."""

    def call(a: Program, b: Program, *options: str) -> Any:
        a.write(tmp_path / "a")
        b.write(tmp_path / "b")
        result = cli("trace", "diff", str(tmp_path / "a"), str(tmp_path / "b"), "--json", *options)
        return result.code, json.loads(result.out) if result.out else {}, result.err

    return call


def test_the_answer_is_printed_and_written_as_one_page(tmp_path: Path, cli: Cli) -> None:
    Program().write(tmp_path / "a")
    Program(noise=1e-7).write(tmp_path / "a", "noise-1")
    Program(scale={(1, 1): 1.01}).write(tmp_path / "b")
    page = tmp_path / "page.html"
    result = cli("trace", "diff", str(tmp_path / "a"), str(tmp_path / "b" / "trace"), "--html", str(page)).ended(1)
    assert result.out.startswith("FAIL: layers.1 in step 1 differs by 0.0095")
    assert "what went in (layers.0) by 0" in result.out
    assert "source    model.py:8" in result.out
    assert "growth " in result.out
    html = page.read_text()
    assert html.count("<svg") == 2  # over depth, over steps
    assert 'class="band"' in html
    assert "<script" not in html


def test_json_has_verdict_first_and_coverage(diff: Diff) -> None:
    code, facts, _ = diff(Program(), Program(scale={(2, 0): 1.01}))
    assert (code, facts["verdict"]) == (3, "CHANGED")
    assert [facts["first"][name] for name in ("module", "step", "phase")] == ["layers.0", 2, "forward"]
    assert facts["coverage"]["fraction"] == 1.0
    assert facts["coverage"]["by"] == {"key": 11}
    assert [each["step"] for each in facts["growth"]] == [1, 2]
    assert all(each["how"] == "key" for each in facts["points"])


def test_one_trace_alone_says_where_it_stops_being_finite(tmp_path: Path, cli: Cli) -> None:
    Program(poison=(1, 2)).write(tmp_path / "a")
    result = cli("trace", "diff", str(tmp_path / "a")).ended(1)
    assert result.out.startswith("FAIL: layers.2 in step 1: 1 of 128 values is not finite; what went in is finite")


def test_other_precisions_name_the_command_that_decides(tmp_path: Path, cli: Cli) -> None:
    Program().write(tmp_path / "a")
    Program(dtype=np.dtype(ml_dtypes.bfloat16)).write(tmp_path / "b")
    result = cli("trace", "diff", str(tmp_path / "a"), str(tmp_path / "b")).ended(3)
    assert "INCONCLUSIVE" in result.out
    assert "assay model check net.py:build --target torch-bf16" in result.out


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"meta": {"level": "step"}}, "level: module in A, step in B"),
        ({"meta": {"torch": "2.14"}}, "torch: 2.13 in A, 2.14 in B"),
        ({"steps": (1,)}, "steps: 1, 2 in A, 1 in B"),
    ],
)
def test_traces_of_another_kind_are_compared_where_they_can_be(diff: Diff, changes: Any, note: str) -> None:
    code, facts, _ = diff(Program(), Program(**changes))
    assert (code, facts["verdict"]) == (0, "PASS")
    assert note in facts["notes"]


@pytest.mark.parametrize(
    ("changes", "rows", "text"),
    [
        ({"steps": (7,)}, 0, "only 0% of the points are paired"),
        ({"names": ["x"], "steps": (9,)}, 0, "only 0% of the points are paired"),
        ({"end": False, "steps": (1,)}, 11, "the trace of B ends before its program did: compared up to there"),
        ({"meta": {"steps": [1, 2]}, "steps": (1,)}, 11, "B ended before step 2, which the other side has"),
        ({"facts": {"rows": 23}}, 22, "the trace of B ends before its program did: compared up to there"),
    ],
)
def test_nothing_in_common_and_a_crashed_run_never_pass(diff: Diff, changes: Any, rows: int, text: str) -> None:
    code, facts, _ = diff(Program(), Program(**changes))
    assert (code, facts["verdict"], facts["coverage"]["rows"]) == (3, "INCONCLUSIVE", rows)
    assert text in str(facts["findings"])


def test_a_trace_that_is_cut_off_is_compared_up_to_there(tmp_path: Path, cli: Cli) -> None:
    Program().write(tmp_path / "a")
    Program().write(tmp_path / "b")
    rows = tmp_path / "b" / "trace" / "rank-0" / "rows.bin"
    os.truncate(rows, 344 * 15 + 100)
    (tmp_path / "b" / "trace" / "rank-0" / "steps.jsonl").write_text('{"step": 1, "groups": [], "fl')
    result = cli("trace", "diff", str(tmp_path / "a"), str(tmp_path / "b"), "--json")
    assert (result.code, json.loads(result.out)["coverage"]["rows"]) == (3, 15)
    shown = cli("trace", "diff", str(tmp_path / "a"), str(tmp_path / "b")).out
    assert shown.startswith("INCONCLUSIVE"), "the verdict is the first word, whatever is equal"


@pytest.mark.needs(exchange=True)
def test_a_trace_goes_along_with_its_run(cli: Cli, tmp_path: Path) -> None:
    """`assay push` here, `assay pull` into another root: the verdict is that of the original."""
    Path("fit.yml").write_text("study: fit\ncommand: echo {x}\nparams: {x: [1]}\n")
    assert cli("run", "fit.yml", "--quiet").code == 0
    Program().write(Path("runs/fit/x=1"))
    assert cli("push", "fit", "--to", str(tmp_path / "shared")).code == 0
    assert cli("pull", "fit", "--from", str(tmp_path / "shared"), "--root", "others").code == 0
    found = cli("trace", "diff", "runs/fit/x=1", "others/fit/x=1", "--json")
    assert (found.code, json.loads(found.out)["verdict"]) == (0, "PASS")


@pytest.mark.parametrize(
    ("name", "line", "said"),
    [
        ("points.jsonl", None, "is not the record of a trace: IsADirectoryError"),
        ("points.jsonl", "{}", "is not the record of a trace"),
        ("weights.jsonl", '{"offset": "x"}', "is not the record of a trace"),
        ("steps.jsonl", '{"step": []}', "is not the record of a trace"),
        ("trace.json", "[]", "is not the record of a trace"),
        ("trace.json", '{"format": 9}', "has format 9; this version reads format 1"),
    ],
)
def test_a_damaged_trace_is_refused(tmp_path: Path, cli: Cli, name: str, line: str | None, said: str) -> None:
    """So is one of which the system refuses a file: `line` is None for a folder in its place."""
    Program().write(tmp_path / "a")
    file = tmp_path / "a" / "trace" / "rank-0" / name
    if line is None:
        file.unlink()
        file.mkdir()
    else:
        file.write_text(f"{line}\n")
    result = cli("trace", "diff", str(tmp_path / "a"), str(tmp_path / "a"))
    assert (result.code, f"rank-0 {said}" in result.err, "Traceback" in result.err) == (4, True, False)


def test_what_is_not_a_trace_is_refused(tmp_path: Path, cli: Cli) -> None:
    Program().write(tmp_path / "a")
    hint = "record one: assay trace run -- python train.py\n"  # -o refuses a folder that has files, such as this one
    cli("trace", "diff", str(tmp_path / "a"), str(tmp_path)).ended(2, "has no trace", hint)
    cli("trace", "diff", str(tmp_path / "a"), "nowhere").ended(2, "no run or folder named 'nowhere'")


def test_names_pair_what_nothing_else_does(tmp_path: Path, cli: Cli, diff: Diff) -> None:
    names = tmp_path / "names.txt"
    names.write_text("# ours = theirs\nlayers.* = h.*\n")
    other = Program(names=["h.0", "h.1", "h.2"], seed=1, shift=9)
    code, facts, _ = diff(Program(), other, "--names", str(names))
    assert (code, facts["coverage"]["by"]) == (3, {"names": 9, "key": 2})
    names.write_text("layers.* = g.*\nlayer.1 = h.1\nnonsense\n")
    result = cli("trace", "diff", str(tmp_path / "a"), str(tmp_path / "b"), "--names", str(names)).ended(2)
    assert "names.txt:1:1: B has no module 'g.0'" in result.err
    assert "names.txt:2:1: A has no module 'layer.1'; did you mean 'layers.1'" in result.err
    assert "names.txt:3:1: is not NAME = NAME" in result.err
    assert cli("trace", "diff", str(tmp_path / "a"), "--names", str(names)).code == 2
