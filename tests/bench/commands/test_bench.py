"""`assay bench` as people call it."""

from __future__ import annotations

import json
import shutil
import signal
import sys
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from tests.bad_servers import RecordingServer
from tests.bench_repository import Repository
from tests.bench_samples import execution, history, run_in_process, write_archive, write_module
from tests.finished_study import Bench, until

from assay.bench.records import load_execution, write_execution
from assay.judge.statistics import np
from assay.record import run_directory

Cli = Any
QUIET = ("--foreign-limit", "1", "--quiet")


@pytest.fixture
def lab(own_bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    write_module(own_bench.folder)
    run_in_process(monkeypatch)
    return own_bench


def multiply_run(lab: Bench, count: int) -> None:
    """Write earlier executions of what was run last: its record with other names and times."""
    path = str(max((lab.root / "bench").glob("*/benchmark.json")).parent)
    record, last = run_directory.load_record(path), load_execution(path)
    assert last is not None
    for number in range(count):
        name = f"{number:04d}"
        copy = replace(last, execution_id=name, started_at=1e9 + number, ended_at=1e9 + number)
        copied = replace(record, spec=replace(record.spec, name=name, title=name), uid=run_directory.new_uid())
        target = shutil.copytree(path, lab.root / "bench" / name)
        (target / "run.json").write_text(run_directory.render_record(copied))
        write_execution(str(target), copy)


STEP = [10.0 + 0.01 * (n % 3) for n in range(20)] + [12.0 + 0.01 * (n % 3) for n in range(20)]


def test_run_prints_a_table_and_everything_that_failed_as_it_ends(lab: Bench, cli: Cli) -> None:
    words = ("mod.B.good", "mod.B.raises", "mod.B.nan", "--trials", "2", "--md", "r.md", "--junit", "r.xml")
    result = cli("bench", "run", *words, "--foreign-limit", "1").ended(1)
    assert "mod.B.good" in result.out
    assert "2/2" in result.out
    assert "ERROR mod.B.raises: ValueError: no luck (mod.py:16) (trial 1, 2)" in result.out
    assert "[3/6] mod.B.nan trial 1: FAIL: wall_time is nan" in result.err
    assert "[5/6] mod.B.raises trial 2: ERROR: ValueError: no luck" in result.err
    (log,) = [line.partition(": ")[2] for line in result.out.splitlines() if line.startswith("log of mod.B.raises: ")]
    assert "Traceback" in (lab.folder / log).read_text()
    assert "| FAIL | mod.B.nan | trial 1 | wall\\_time is nan |" in (lab.folder / "r.md").read_text()
    suite = ET.parse(lab.folder / "r.xml").getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("6", "2", "2")
    result = cli("bench", "run", "mod.B.good", "mod.B.nan", "--json", "--root", "elsewhere", *QUIET)
    facts = json.loads(result.out)
    assert (facts["exit_code"], result.err) == (1, "")
    assert [execution["succeeded"] for execution in facts["executions"]] == [True, False]
    assert facts["executions"][1]["result"]["wall_time"] == "NaN"
    assert "mod.B.good" in cli("bench", "table", "--root", "elsewhere").out


def test_a_command_that_does_not_say_what_was_asked_for_is_no_figure(lab: Bench, cli: Cli) -> None:
    words = ("--command", "talk=cat said", "--metric", r"speed=speed ([\d.]+)", *QUIET)
    (lab.folder / "said").write_text("speed 3.5")
    (found,) = json.loads(cli("bench", "run", *words, "--json").out)["executions"]
    assert (found["method"], found["numbers"]["speed"], found["succeeded"]) == ("talk", 3.5, True)
    (lab.folder / "said").write_text("nothing")
    assert cli("bench", "run", *words).code == 1
    result = cli("bench", "table", "talk", "-m", "wall_time,speed")
    assert result.out.splitlines()[2].split()[:2] == ["-", "1"]
    assert "(left out: 1 failed)" in result.err
    assert cli("bench", "history", "wall_time", "talk").code == 2  # one execution is no history


REFUSED: dict[tuple[str, ...], str] = {
    ("run",): "no benchmark is named",
    ("run", "justafunction"): "its module is missing",
    ("run", "m.C.filter:("): "broken regular expression",
    ("run", "m.f", "--profile", "5:2"): "ends before it begins",
    ("run", "m.f", "--timeout", "soon"): "is not a duration",
    ("run", "m.f", "--args", "{"): "are not JSON",
    ("run", "m.f", "--env", "NAME"): "is not NAME=VALUE",
    ("run", "m.f", "--metric", "x=("): "broken regular expression",
    ("run", "--command", " "): "empty --command",
    ("run", "--command", "a=echo 1", "--command", "a=echo 2"): "two commands are named 'a'",
    ("run", "--command", "x=true", "--profile", "0:", "--profiler", "framework"): "works inside a METHOD",
    ("run", "m.f", "--md", "-", "--json"): "cannot both go to stdout",
    ("run", "m.f", "--md", "no/where.md"): "cannot be written",
    ("run", "m.f", "--webhook", "nonsense"): "is not a valid address",
    ("run", "m.f", "--python", "nosuchpython"): "there is no such program",
    ("run", "m.f", "--path", "nowhere"): "there is no such folder",
    ("run", "m.f", "--commits", "main"): "--commits 'main' does not name two commits",
    ("run", "m.f", "--commits", "a..b", "--every", "0"): "--every",
    ("run", "m.f", "--every", "2"): "--every, --skip-existing and --build are for --commits",
    ("bisect", "m.f"): "--good",
    ("bisect", "m.f", "--good", "main"): "not in a git repository",
    ("bisect", "--good", "main"): "no benchmark is named",
    ("bisect", "m.f", "m.g", "--good", "main"): "for one benchmark",
    ("bisect", "m.f", "--good", "main", "--better", "x:up"): "is not METRIC:min or METRIC:max",
    ("compare", "--git", "a..b", "m.f"): "not in a git repository",
    ("compare", "--git", "main", "m.f"): "does not name two commits",
    ("compare", "a", "b", "c"): "are two, not 3",
    ("compare", "--b-rev", "main", "m.f"): "name it: --a-rev main --b-rev main",
    ("compare", "--git", "main~1..main", "--a-rev", "main", "m.f"): "name the same sides",
    ("compare", "--a-env", "nice", "--b-env", "nice", "m.f"): "the same code and environment",
    ("compare", "--a-env", "no/where", "m.f"): "neither a folder nor a program 'no/where'",
    ("compare", "--a-env", "nice", "--python", sys.executable, "m.f"): "choose the same interpreter",
    ("compare", "--a-env", "nice", "--baseline", "main"): "--baseline names the base",
    ("compare", "--a-env", "nice"): "no benchmark is named",
    ("compare", "--baseline", "mian"): "there is no benchmark under",
    ("table", "--csv", "--json"): "choose one of",
    ("import", "nowhere.json"): "nowhere.json cannot be read",
    ("history",): "no METRIC is named",
    ("history", "wall_time"): "there is no benchmark",
    ("history", "wall_time", "--junit", "-", "--json"): "cannot both go to stdout",
    ("history", "--changes", "--since", "yesterday"): "--since 'yesterday' is neither a duration nor a date",
    ("baseline", "set"): "no NAME is given",
    ("selftest", "m.f", "m.g"): "a selftest is of one benchmark",
}


def test_bad_calls_are_refused_before_anything_runs(lab: Bench, cli: Cli) -> None:
    for words, message in REFUSED.items():
        result = cli("bench", *words)
        assert (result.code, words) == (2, words)
        assert message in result.err
        assert result.err.count("\n") <= 4
        assert "Traceback" not in result.err
    assert not (lab.root / "bench").exists()


# ---------------------------------------------------------------- history and triage


def test_history_tells_triage_silences(lab: Bench, cli: Cli, hook: RecordingServer) -> None:
    write_archive(lab.root, history(STEP))
    result = cli("bench", "history", "wall_time", "--webhook", f"{hook.url}/hook").ended(1)
    assert "FAIL +19" in result.out.replace("+20", "+19")
    assert "commits " in result.out
    assert cli("bench", "history", "wall_time", "--min-effect", "0.5", "--webhook", hook.url).code == 0
    (alert,) = hook.messages  # nothing is sent when all is well
    assert alert["cases"][0]["verdict"] == "FAIL"
    assert alert["cases"][0]["findings"][0]["effect"] == pytest.approx(0.2, abs=0.01)
    assert cli("bench", "history", "wall_time", "--webhook", "http://127.0.0.1:9/none").code == 4
    assert ET.fromstring(cli("bench", "history", "wall_time", "--junit", "-").out).get("failures") == "1"
    assert cli("bench", "triage", "wall_time", "C.f", "last", "wontfix", "--note", "meant").code == 0
    cli("bench", "history", "wall_time", "C.f").ended(0).printed("wontfix: meant")
    assert cli("bench", "triage", "wall_time", "C.f", "e0020", "open").code == 0
    assert cli("bench", "history", "wall_time").code == 1
    assert cli("bench", "triage", "wall_time", "C.f", "last", "invalid").code == 0
    assert cli("bench", "history", "wall_time").code == 0
    result = cli("bench", "table", "C.f", "--all")
    assert result.out.splitlines()[2].split()[:2] == ["-", "20"]
    assert "(left out: 20 declared invalid)" in result.err
    cli("bench", "triage", "wall_time", "C.f", "last", "ack").ended(2, "has no change")
    assert cli("bench", "triage", "wall_time", "C.f", "last", "open").code == 0
    assert cli("bench", "history", "wall_time").code == 1
    assert cli("bench", "table", "C.f").out.splitlines()[2].split()[:2] == ["-", "40"]
    (lab.root / "bench" / "e0003_C.f" / "benchmark.json").write_text("{}")
    for arguments in (("history", "wall_time"), ("table",)):
        assert "warning: " in cli("bench", *arguments).err, "a damaged execution is reported"


def test_another_machine_is_inconclusive_unless_across_setups(lab: Bench, cli: Cli) -> None:
    for first, label, level, model in ((0, "old", 10.0, "V100"), (20, "new", 13.0, "T4")):
        values = [level + n / 99 for n in range(12)]
        write_archive(lab.root, history(values, first, label=label, setup={"gpu": model}))
    cli("bench", "compare", "old", "new").ended(3).printed("gpu V100 → T4")
    assert cli("bench", "compare", "old", "new", "--across-setups").code == 1


@pytest.mark.parametrize("library", ["numpy", "scipy.special"])
def test_a_missing_library_is_asked_for_by_what_was_called(
    lab: Bench, cli: Cli, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    write_archive(lab.root, history(STEP))
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.setattr(np, "__dict__", {})  # what was loaded before
    result = cli("bench", "history", "wall_time").ended(2)
    assert "judging the history of a benchmark needs an optional part of Assay" in result.err
    assert "pip install 'assay[stats]'" in result.err


VARIABLE = """
from assay.bench import Benchmark
class V(Benchmark):
    def f(self): self.report_benchmark(wall_time=float(open("value.txt").read()))
"""


def run_variable(lab: Bench, cli: Cli, value: float, *options: str) -> None:
    (lab.folder / "variable.py").write_text(VARIABLE)
    (lab.folder / "value.txt").write_text(str(value))
    assert cli("bench", "run", "variable.V.f", "--label", "night", "--env", "MARK=1", *options, *QUIET).code == 0


@pytest.mark.parametrize(("value", "count", "code", "verdict"), [(1.0, 12, 0, "PASS"), (3.0, 13, 1, "FAIL")])
def test_confirm_executes_it_again_until_the_newest_are_a_level_or_an_outlier(
    lab: Bench, cli: Cli, value: float, count: int, code: int, verdict: str
) -> None:
    run_variable(lab, cli, 1.0)
    multiply_run(lab, 9)
    run_variable(lab, cli, 3.0)
    result = cli("bench", "history", "wall_time").ended(3).printed("newest +200.0%")
    assert "run it again (--confirm does)" in " ".join(result.out.split())
    facts = json.dumps(json.loads(cli("bench", "history", "wall_time", "--json").out))
    assert "INCONCLUSIVE" in facts
    assert "newest" in facts
    assert "skipped" in cli("bench", "history", "wall_time", "--junit", "-").out
    assert "INCONCLUSIVE" in cli("bench", "history", "wall_time", "--md", "-").out
    (lab.folder / "value.txt").write_text(str(value))
    result = cli("bench", "history", "wall_time", "--confirm", "--foreign-limit", "1")
    assert result.code == code, result.out
    assert f"{verdict} variable.V.f wall_time (lower is better): {count} executions" in result.out
    records = [json.loads(path.read_text()) for path in sorted((lab.root / "bench").glob("*/run.json"))]
    assert {(each["spec"]["tag"], each["workdir"]) for each in records} == {("night", records[0]["workdir"])}
    assert all(["MARK", "1"] in each["spec"]["env"] for each in records)
    assert cli("bench", "history", "wall_time", "--confirm").code == code, "nothing is open, nothing is executed"
    assert len(list((lab.root / "bench").glob("*/run.json"))) == count


def test_what_cannot_be_executed_again_is_not_confirmed(lab: Bench, cli: Cli) -> None:
    write_archive(lab.root, history([1.0] * 20 + [3.0]))
    cli("bench", "history", "wall_time", "--confirm").ended(2, "cannot be executed again: no command was recorded")
    imported = replace(execution(20, 3.0), source="asv")
    write_execution(str(lab.root / "bench" / "e0020_C.f"), imported)
    assert "import the result" in " ".join(cli("bench", "history", "wall_time").out.split())
    cli("bench", "history", "wall_time", "--confirm").ended(2, "was imported from asv: it cannot be executed here")


def test_a_secret_of_the_newest_execution_is_taken_from_the_environment_or_asked_for(
    lab: Bench, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_variable(lab, cli, 1.0)
    multiply_run(lab, 9)
    run_variable(lab, cli, 3.0, "--env", "MY_TOKEN=abcdef123456")
    (lab.folder / "value.txt").write_text("1")
    cli("bench", "history", "wall_time", "--confirm", "--foreign-limit", "1").ended(2, "MY_TOKEN is a secret")
    monkeypatch.setenv("MY_TOKEN", "abcdef123456")
    assert cli("bench", "history", "wall_time", "--confirm", "--foreign-limit", "1").code == 0


def test_history_s_bad_input(lab: Bench, cli: Cli) -> None:
    write_archive(lab.root, history([1.0]))
    cli("bench", "history", "wall_time").ended(2, "1 execution with wall_time: too few for a history")
    assert "did you mean 'wall_time'" in cli("bench", "history", "wal_time").err
    assert "no benchmark named 'C.g'" in cli("bench", "history", "wall_time", "C.g").err


def test_ctrl_c_keeps_what_was_finished_and_does_not_turn_a_history_red(lab: Bench, cli: Cli) -> None:
    (lab.folder / "wait.py").write_text(
        "import os, time\nfrom assay.bench import report_benchmark\n"
        "def one():\n    report_benchmark(wall_time=1.0)\n    time.sleep(1000 if os.path.exists('hold') else 0)\n"
        "def two():\n    report_benchmark(wall_time=2.0)\n    open('hold', 'w').close()\n"
    )
    assert cli("bench", "run", "wait.one", *QUIET).code == 0
    multiply_run(lab, 5)
    known = set(lab.root.glob("bench/*"))
    supervisor = lab.start("bench", "run", "wait.two", "wait.one", "--trials", "9", "--junit", "r.xml", *QUIET)
    try:
        until(lambda: len(set(lab.root.glob("bench/*/report.jsonl"))) == 8, "the second has begun")
    finally:
        supervisor.send_signal(signal.SIGINT)
        out, _ = supervisor.communicate(timeout=60)
    assert supervisor.returncode == 130
    assert "interrupted wait.one: SIGINT to the supervisor" in out
    assert "ERROR" not in out
    found = [load_execution(str(path)) for path in sorted(set(lab.root.glob("bench/*")) - known)]
    assert [(e.method, e.succeeded, e.void, e.result.wall_time) for e in found if e] == [
        ("wait.two", True, "", 2.0),
        ("wait.one", False, "interrupted", 1.0),  # reported before it was stopped
    ]
    suites = ET.parse(lab.folder / "r.xml").getroot()
    assert [suites.get(name) for name in ("tests", "failures", "errors", "skipped")] == ["2", "0", "0", "1"]
    cli("bench", "history", "wall_time", "one").ended(0).printed("1 execution left out: interrupted")
    assert "(left out: 1 interrupted)" in cli("bench", "table", "one").err


def test_profiled_executions_count_only_when_all_do(lab: Bench, cli: Cli) -> None:
    """The profile needs a real process, and is of one window that is never reached."""
    assert cli("bench", "run", "mod.B.environment", "--trials", "2", *QUIET).code == 0
    result = cli("bench", "run", "mod.B.environment", "--profile", "500:", *QUIET).ended(0)
    (line,) = result.err.splitlines()
    assert line.startswith("warning: mod.B.environment trial 1: ended"), "however quiet it is to be"
    assert line.endswith("the window 500: never began")
    result = cli("bench", "table", "environment", "-m", "wall_time")
    assert result.out.splitlines()[2].split()[:2] == ["-", "2"]
    assert "(left out: 1 profiled; --all takes profiled ones)" in result.err
    everything = cli("bench", "table", "environment", "-m", "wall_time", "--all")
    assert everything.out.splitlines()[2].split()[:2] == ["-", "3"]
    assert everything.err == ""
    shown = cli("bench", "history", "wall_time", "environment").out
    assert "left out: profiled (include them with --all)" in shown
    assert "left out" not in cli("bench", "history", "wall_time", "environment", "--all").out


# ---------------------------------------------------------------- table, compare, import


def test_table_and_compare_of_labels(lab: Bench, cli: Cli) -> None:
    write_archive(lab.root, [execution(n, 2.0, label="one" if n < 5 else "two") for n in range(11)])
    result = cli("bench", "table", "C.f", "--by", "label,python", "--json")
    rows = json.loads(result.out)
    assert [(row["label"], row["n"], row["wall_time.median"]) for row in rows] == [("one", 5, 2.0), ("two", 6, 2.0)]
    assert "two" in cli("bench", "table", "--by", "label").out
    assert json.loads(cli("bench", "table", "--json").out)[0]["benchmark"] == "m.C.f"
    cli("bench", "table", "--by", "cudn").ended(2, "no column named 'cudn'")
    assert cli("bench", "table", "--metrics", "nothing").code == 2
    cli("bench", "compare", "one", "two", "--only", "wall_time").ended(0).printed("PASS")
    markdown = cli("bench", "compare", "one", "two", "--only", "wall_time", "--md", "-").out
    assert markdown.startswith("## ✅ assay bench compare: base one, head two: PASS")
    for words in (("one",), ("one", "tow"), ("one", "two", "--better", "wall_time")):
        assert cli("bench", "compare", *words).code == 2


def test_import(lab: Bench, cli: Cli) -> None:
    google = {"context": {}, "benchmarks": [{"name": "BM", "real_time": 1, "cpu_time": 1, "time_unit": "ms"}]}
    (lab.folder / "g.json").write_text(json.dumps(google))
    assert "1 execution imported, 0 were known: BM" in cli("bench", "import", "g.json").out
    assert "0 executions imported, 1 was known" in cli("bench", "import", "g.json").out
    (lab.folder / "bad.json").write_text("{}")
    google["benchmarks"][0]["name"] = "BM2"
    (lab.folder / "g2.json").write_text(json.dumps(google))
    result = cli("bench", "import", "g2.json", "bad.json").ended(2)
    assert "bad.json cannot be imported" in result.err
    assert "1 execution imported" in result.out
    assert "BM2" in cli("bench", "table", "--by", "method").out  # a bad file holds up no other
    results = {f"time_{n}": float("nan") for n in range(12)} | {"time_good": 1.0, "time_broken": None}
    (lab.folder / "a.json").write_text(json.dumps({"commit_hash": "c", "results": results}))
    result = cli("bench", "import", "a.json").ended(0)
    assert "2 executions imported" in result.out
    assert "failed when they were run: time_broken" in result.out
    assert "time_0 was skipped by asv" in result.err
    assert "and 2 more of this kind" in result.err


def test_a_search_as_people_see_it(lab: Bench, cli: Cli) -> None:
    repository = Repository(lab.folder)
    commits = repository.costs(10, 11, 11)
    words = ("--command", "figure=cat figure", "--metric", r"cost=cost ([\d.]+)", "--on", "cost")
    flags = ("--better", "cost:min", "--trials", "5", "--foreign-limit", "1")
    ends = ("--good", commits[0], "--bad", commits[1])
    result = cli("bench", "bisect", *words, *ends, *flags).ended(0)
    assert f"culprit: {commits[1][:12]} 'change 1'" in result.out
    assert "figure cost: +10.00%" in result.out
    assert "2 commits from" in result.err
    again = cli("bench", "bisect", *words, *ends, *flags, "--json")
    facts = json.loads(again.out)
    assert (facts["exit_code"], facts["culprit"]["sha"], facts["metric"]) == (0, commits[1], "cost")
    assert facts["resumed"] == len(facts["answers"])
    assert again.err == ""
    same = cli("bench", "bisect", *words, "--good", commits[1], *flags).ended(3)
    assert "not found: the two ends do not differ" in same.out
