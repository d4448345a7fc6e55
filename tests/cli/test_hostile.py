"""A study whose names, values, messages and logs are hostile goes through every command and format.

The commands are called without the guard that the program puts around its streams: each writer has to do its part.
"""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from xml.etree import ElementTree as ET

import pytest
from tests.finished_study import Bench

from assay.show.formatting import UNSAFE

TRICKS = (
    "\x1b]0;owned\x07\x1b[2J\x9b31m<script>alert(1)</script><img src=x onerror=alert(1)>|`x`[l](javascript:1)\u202e"
)
FORMULA = "=cmd|'/c calc'!A1"

EMIT = f"""
import sys, assay
names = {[TRICKS, "=m+1", "@loss" + chr(9)]!r}
for step in (1, 2):
    assay.log({{name: 3.0 - step for name in names}}, step=step)
print("log line", names)
sys.exit({TRICKS!r} if sys.argv[1] == "bad" else 0)
"""


def build_study(bench: Bench) -> str:
    values = json.dumps({TRICKS: [TRICKS, FORMULA], "=p": "@x", "minus": "-2+3", "number": "-1", "end": "good"})
    return (
        f"study: hostile\ncommand: {json.dumps(f'{sys.executable} {bench.folder}/emit.py ' + '{end} # ' + TRICKS[:16])}\n"
        f"params: {values}\nsweep:\n  - {{end: good, minus: [-2+3, +4+x]}}\n  - {{end: bad, number: -7}}\n"
        "resources: {gpus: 0}\n"
    )


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    bench = Bench(tmp_path_factory.mktemp("bench"))
    bench.write("emit.py", EMIT)
    result = bench.run(build_study(bench))
    assert result.returncode == 1, result.stderr
    assert_harmless(result.stdout + result.stderr)
    foreign = bench.folder / "logs" / "sweep"
    for number, name in enumerate(("=run", "-x\x1b[2J\u202e<script>|`y`")):
        (foreign / name).mkdir(parents=True)
        (foreign / name / "hparams.json").write_text(json.dumps({"lr": number, "=p": TRICKS, TRICKS: FORMULA * number}))
        metric = TRICKS.replace(",", "")
        (foreign / name / "metrics.csv").write_text(f"val,{metric},{number}.5,epoch,1,timestamp,1580998740.0\n")
    imported = {"benchmarks": [{"name": TRICKS, "fullname": f"t::{TRICKS}", "stats": {"data": [0.1, 0.2], "min": 0.1}}]}
    imported |= {"machine_info": {"node": TRICKS, "cpu": {"brand_raw": TRICKS}}, "commit_info": {"id": TRICKS}}
    imported |= {"datetime": "2026-01-01T00:00:00", "version": "4.0.0"}
    bench.write("bench.json", json.dumps(imported))
    return bench


def assert_harmless(text: str) -> None:
    found = re.search(UNSAFE, text)
    assert found is None, f"{found[0]!r} in {text[max(0, found.start() - 60) : found.end() + 20]!r}"


def find_run(cli, state: str) -> str:
    rows = json.loads(cli("ls", "hostile", "--json").out)
    return next(f"hostile/{row['name']}" for row in rows if row["state"] == state)


COMMANDS = [
    ("ls",),
    ("ls", "hostile"),
    ("ls", "hostile", "--json"),
    ("ls", "logs/sweep"),
    ("sum", "hostile"),
    ("sum", "hostile", "--json"),
    ("sum", "hostile", "--md"),
    ("sum", "hostile", "--csv"),
    ("sum", "hostile", "-g", "end"),
    ("sum", "hostile", "-s", TRICKS + "x"),
    ("sum", "logs/sweep"),
    ("sumx", "logs/sweep"),
    ("sumx", "logs/sweep", "-s", TRICKS),
    ("plot", "hostile"),
    ("plot", "hostile", "-m", TRICKS, "-g", "end"),
    ("plot", "hostile", "-g", "nothing"),
    ("plot", "hostile", "--scatter", TRICKS, "-m", TRICKS),
    ("plot", "hostile", "--scatter", "end", "--color", TRICKS),
    ("plot", "hostile", "--scatter", TRICKS + "x"),
    ("plot", "hostile", "--slices"),
    ("plot", "hostile", "--history", "-m", TRICKS),
    ("plot", "logs/sweep"),
    ("stop", "hostile"),
    ("index", "status"),
    ("index", "reparse", "hostile"),
    ("index", "ingest", "logs"),
    ("index", "rebuild"),
    ("doctor",),
    ("run", "study.yml", "-n"),
    ("run", "study.yml", "-n", "--json"),
    ("run", "broken.yml", "-n"),
    ("runx", "broken.yml", "-n"),
    ("mlrunner", "-n", "-y", "broken.yml"),
    ("golden", "check", "broken.yml"),
    ("convergence", "--config", "broken.yml"),
    ("bench", "import", "bench.json"),
    ("bench", "import", "broken.yml"),
    ("bench", "table"),
    ("bench", "table", "--md"),
    ("bench", "history", "wall_time"),
    ("model", "layers", "broken.yml"),
]


@pytest.mark.parametrize(
    "arguments",
    COMMANDS,
    ids=lambda arguments: (
        " ".join(arguments)[:30].encode("ascii", "replace").decode().replace("\x1b", "~").replace("\x07", "~")
    ),
)
def test_no_command_prints_what_a_terminal_obeys(cli, bench: Bench, arguments: tuple[str, ...]) -> None:
    bench.write(
        "broken.yml",
        'study: x\ncommand: "{gone} \\e[2J"\n"\\e]0;owned\\a<script>": [1, "\\e[2J\\u202e"]\nnot a mapping\n',
    )
    if arguments[:2] in (("bench", "table"), ("bench", "history")):
        cli("bench", "import", "bench.json")
    result = cli(*arguments)
    assert "bug in Assay" not in result.err
    assert result.out + result.err
    assert_harmless(result.out + result.err)


@pytest.mark.parametrize("arguments", [("show",), ("show", "--json"), ("diff",), ("diff", "--json")])
def test_no_command_about_a_run_does(cli, bench: Bench, arguments: tuple[str, ...]) -> None:
    good, bad = find_run(cli, "done"), find_run(cli, "failed")
    for runs in [(good, bad)] if arguments[0] == "diff" else [(good,), (bad,)]:
        result = cli(arguments[0], *runs, *arguments[1:])
        assert result.code in (0, 3), result.err
        assert_harmless(result.out + result.err)


def test_logs_are_printed_byte_for_byte(cli, bench: Bench) -> None:
    """As `cat` does; the file is the user's, and colours in it are meant."""
    out, _ = bench.start("logs", find_run(cli, "failed")).communicate(timeout=60)
    assert "\x1b]0;owned\x07" in out


def test_markdown_holds_no_markup(cli, bench: Bench) -> None:
    text = cli("sum", "hostile", "--md").out
    assert "<" not in text
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in text.splitlines()}) == 1
    assert not re.search(r"(?<!\\)[`\[]", text)


def is_formula(cell: str) -> bool:
    return cell[:1] in ("=", "+", "@", "\t", "\r") or (cell[:1] == "-" and not re.fullmatch(r"-[\d.e-]+", cell))


@pytest.mark.parametrize("more", [(), ("-g", "end")])
def test_csv_holds_no_formula(cli, bench: Bench, more: tuple[str, ...]) -> None:
    rows = list(csv.reader(io.StringIO(cli("sum", "hostile", "--csv", "-m", "all", *more).out)))
    assert [cell for row in rows for cell in row if is_formula(cell)] == []
    assert "-7" in {cell for row in rows for cell in row} or more
    assert len(set(rows[0])) == len(rows[0])
    raw = list(csv.reader(io.StringIO(cli("sum", "hostile", "--csv-raw", "-m", "all", *more).out)))
    assert FORMULA in {cell for row in raw for cell in row}
    assert {"=m+1", "@loss\t"} <= set(raw[0])


@pytest.mark.needs(compat=True)
def test_csv_of_sumx_holds_no_formula(cli, bench: Bench) -> None:
    cli("sumx", "logs/sweep", "--csv", "safe")
    cli("sumx", "logs/sweep", "--csv", "raw", "--csv-raw")
    safe, raw = (list(csv.reader(io.StringIO((bench.folder / f"{name}.csv").read_text()))) for name in ("safe", "raw"))
    assert [cell for row in safe for cell in row if is_formula(cell)] == []
    assert "=run" in {row[0] for row in raw}


@pytest.mark.needs(plots=True)
def test_a_picture_holds_no_script(cli, bench: Bench) -> None:
    result = cli("plot", "hostile", "-m", TRICKS, "-o", "p.svg")
    assert result.code == 0, result.err
    text = (bench.folder / "p.svg").read_text()
    tags = {element.tag.rpartition("}")[2] for element in ET.fromstring(text).iter()}
    assert not tags & {"script", "image", "a"}
    assert "<script" not in text
    assert_harmless(text)
    assert cli("plot", "hostile", "-m", TRICKS, "-o", "p.png").code == 0


@pytest.mark.needs(plots=True)
@pytest.mark.parametrize(
    "form", [("-m", TRICKS), ("--scatter", TRICKS), ("--slices",), ("--parallel",), ("--history",)]
)
def test_a_page_and_a_picture_of_parameters_hold_no_script(cli, bench: Bench, form: tuple[str, ...]) -> None:
    for name in ("p.html", "p.svg"):
        result = cli("plot", "hostile", *form, "-o", name)
        assert result.code == 0, result.err
        text = (bench.folder / name).read_text()
        assert "<script" not in text
        assert "<img" not in text
        assert_harmless(text)


def test_the_program_guards_its_streams(bench: Bench) -> None:
    """Also what no writer has cleaned: here an argument that the parser of the command line repeats."""
    result = bench.assay("sum", "--\x1b[2Jx\u202e")
    assert result.returncode == 2
    assert "\\x1b[2J" in result.stderr
    assert_harmless(result.stdout + result.stderr)
