"""Commits, lasting changes, baselines, the selftest and suites, as people call them."""

from __future__ import annotations

import functools
import json
import os
import shlex
import sys
from dataclasses import replace
from typing import Any

import pytest
from tests.bench.commands.test_bench import QUIET, STEP
from tests.bench_repository import Repository
from tests.bench_samples import history, run_in_process, write_archive
from tests.finished_study import Bench

from assay.bench.commands import bench as commands
from assay.bench.flow import commits as flow
from assay.bench.values.execution import BenchReport

Cli = Any


@pytest.fixture
def repository(own_bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Repository:
    run_in_process(monkeypatch)
    monkeypatch.setattr(flow, "_load_versions", functools.cache(flow._load_versions))  # of the same Python each time
    return Repository(own_bench.folder)


def test_the_commits_of_a_range_are_a_table(own_bench: Bench, repository: Repository, cli: Cli) -> None:
    commits = repository.costs(1, 2, 3)
    words = ("bench", "run", "--command", "figure=cat figure", "--metric", r"cost=cost ({number})", "--commits")
    result = cli(*words, "main~2..main", "--build", "! grep -q 'cost 2' figure", *QUIET).ended(3)
    rows = [line.split() for line in result.out.splitlines()[2:4]]
    assert [row[:4] for row in rows] == [[commits[1][:12], "change", "1", "-"], [commits[2][:12], "change", "2", "1/1"]]
    assert f"skipped: commit {commits[1][:12]} cannot be built" in result.out
    assert "bench history --changes" not in result.out  # one value is no history
    again = cli(*words, "main~2..main", "--skip-existing", "--root", "other root", *QUIET)
    assert "what changed: `assay bench history --changes --root 'other root'`" in again.out
    nothing = cli(*words, "main~2..main", "--build", "false", "--json", *QUIET)
    assert (nothing.code, json.loads(nothing.out)["exit_code"]) == (3, 3)
    found = json.loads(cli(*words, "main~1..main", "--skip-existing", "--json", *QUIET).out)
    assert (found["exit_code"], found["executions"]) == (0, [])
    assert [(each["sha"], each["known"]) for each in found["commits"]] == [(commits[2], 1)]


def test_revisions_that_are_not_there(own_bench: Bench, repository: Repository, cli: Cli) -> None:
    repository.costs(1, 2)
    for words, message in {
        ("run", "m.f", "--commits", "main..main"): "main..main has no commit",
        ("run", "m.f", "--commits", "mian..main"): "there is no commit 'mian'",
        ("compare", "--git", "main..nowhere", "m.f"): "there is no commit 'nowhere'",
        ("compare", "--git", "main~1..main", "m.f", "--build", "false"): "cannot be built",
        ("compare", "--a-rev", "nowhere", "m.f"): "there is no commit 'nowhere'",
        ("bisect", "m.f", "--good", "main", "--bad", "main~1"): "swap --good and --bad",
    }.items():
        cli("bench", *words).ended(2, message)


# one trial shows the effect, and is not sure of it
ONCE = (
    "--trials",
    "1",
    "--most-trials",
    "1",
    "--no-confirm",
    "--better",
    "cost:min",
    "--only",
    "cost",
    "--json",
    *QUIET,
)
COST = ("--metric", "cost=cost ({number})")


def test_the_files_as_they_are_are_a_side(own_bench: Bench, repository: Repository, cli: Cli) -> None:
    repository.costs(10)
    (repository.folder / "figure").write_text("cost 12\n")
    result = cli("bench", "compare", "--a-rev", "HEAD", "--command", "figure=cat figure", *COST, *ONCE)
    found = json.loads(result.out)
    assert result.code == 3
    assert found["metrics"][0]["finding"]["effect"] == pytest.approx(0.2)
    assert found["head"].endswith(" work tree")
    result = cli("bench", "compare", "--a-rev", "HEAD", "--b-rev", "HEAD", "--command", "f=cat figure", *COST, *ONCE)
    assert json.loads(result.out)["metrics"][0]["finding"]["effect"] == 0.0
    assert repository.git("status", "--porcelain", "--untracked-files=no") == "M figure"


@pytest.mark.parametrize("revisions", [(), ("--a-rev", "HEAD")])
def test_two_environments_are_sides(
    own_bench: Bench, repository: Repository, cli: Cli, revisions: tuple[str, ...]
) -> None:
    """The interpreter of an environment is its own: those methods are real processes."""
    (own_bench.folder / ".gitignore").write_text("runs/\n")
    (own_bench.folder / "work.py").write_text(
        "import os\nfrom assay.bench import report_benchmark\n"
        "def f():\n    print('cost', os.environ.get('COST', 1))\n    report_benchmark(wall_time=1.0)\n"
    )
    repository.git("add", "-A")
    repository.git("commit", "-q", "-m", "one")
    path = f'PATH={os.path.dirname(sys.executable)}:"$PATH"'
    both = ("work.f", "--command", "echoed=echo cost ${COST:-1}", *COST, "--a-env", f"env COST=0.5 {path}")
    result = cli("bench", "compare", *both, *revisions, *ONCE)
    assert result.code == 3, result.err
    found = {each["method"]: each["finding"]["effect"] for each in json.loads(result.out)["metrics"]}
    assert found == pytest.approx({"work.f": 1.0, "echoed": 1.0})


def test_lasting_changes_have_their_size_commits_and_a_command_that_works(own_bench: Bench, cli: Cli) -> None:
    slower = [replace(each, result=replace(each.result, cpu_time=each.result.wall_time)) for each in history(STEP)]
    other = [replace(each, method="m.C.g", execution_id=f"g{each.execution_id}") for each in history([1.0] * 40)]
    back = [
        replace(each, method="m.C.h", execution_id=f"h{each.execution_id}") for each in history([*STEP, *STEP[:20]])
    ]
    short = [replace(each, method="m.C.k", execution_id=f"k{each.execution_id}") for each in history([1.0] * 3)]
    write_archive(own_bench.root, [*slower, *other, *back, *short])
    result = cli("bench", "history", "--changes")
    lines = result.out.splitlines()
    assert result.code == 0
    assert lines[0] == "worse m.C.f: wall_time +20.0%, cpu_time +20.0%"
    assert f"{19:x}".ljust(12, "0") + ".." + f"{20:x}".ljust(12, "0") in lines[1]
    assert lines[-1] == "1 lasting change; 4 histories looked at; 1 history too short"  # what came back does not last
    assert cli(*shlex.split(lines[2])[1:]).code == 1
    assert "0 lasting changes" in cli("bench", "history", "--changes", "--since", "30d").out
    assert "1 lasting change;" in cli("bench", "history", "--changes", "--since", "2001-01-01").out
    assert json.loads(cli("bench", "history", "--changes", "--json").out)["changes"][0]["method"] == "m.C.f"
    assert cli("bench", "history", "wall_time", "--since", "30d").code == 2


def test_a_baseline_is_set_listed_compared_with_and_removed(own_bench: Bench, cli: Cli) -> None:
    write_archive(own_bench.root, history(STEP[:20], label="old"))
    assert cli("bench", "baseline").out.startswith("there is no baseline")
    assert cli("bench", "baseline", "set", "main", "old").out == "main is 20 executions of old\n"
    assert cli("bench", "baseline").out.splitlines()[2].split()[:4] == ["main", "old", "-", "20"]
    newer = [
        replace(each, label="new", execution_id=f"n{each.execution_id}") for each in history(STEP, commit="c" * 40)[20:]
    ]
    write_archive(own_bench.root, newer)
    cli("bench", "compare", "--baseline", "main", "--only", "wall_time").ended(1).printed("+20.0%")
    assert "did you mean 'main'?" in cli("bench", "compare", "--baseline", "mian").err
    assert cli("bench", "baseline", "remove", "main").code == 0
    assert json.loads(cli("bench", "baseline", "--json").out) == {}


def test_a_gate_below_the_selftest_is_refused(own_bench: Bench, repository: Repository, cli: Cli) -> None:
    result = cli("bench", "selftest", "--command", "nothing=true", "--trials", "6", "--json", *QUIET)
    found = json.loads(result.out)
    assert (found["method"], found["trials"]) == ("nothing", 6)
    assert found["kept"] == (result.code in (0, 3))
    if found["kept"]:  # a busy machine may raise a false alarm
        refused = cli("bench", "compare", "--baseline", "x", "--command", "nothing=true", "--min-effect", "0", "--only", "wall_time")  # fmt: skip
        assert refused.code == 2
        assert "--min-effect 0 is too small: 30 trials on each side show no wall_time effect below" in refused.err
        assert (
            "no baseline" in cli("bench", "compare", "--baseline", "x", "--min-effect", "0").err
        )  # of another benchmark
    result = cli("bench", "selftest", "--command", "broken=false", "--trials", "1", *QUIET)
    assert (result.code, result.out.splitlines()[-1]) == (3, "nothing is kept of it: nothing was measured")


def test_a_selftest_on_a_machine_with_a_problem_ends_with_its_code(
    own_bench: Bench, repository: Repository, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = BenchReport((), problem="the disk is full")
    monkeypatch.setattr(commands, "build_run", lambda console: lambda request: found)
    result = cli("bench", "selftest", *QUIET)
    assert (result.code, result.err.splitlines()[0]) == (4, "assay: the disk is full")


def test_a_suite_that_skips_is_neither_good_nor_bad(own_bench: Bench, repository: Repository, cli: Cli) -> None:
    (own_bench.folder / "suite").mkdir()
    (own_bench.folder / "suite" / "a.py").write_text(
        "class A:\n    params = [1, 2]\n    def setup(self, n):\n        if n == 2: raise NotImplementedError('not two')\n"
        "    def track_n(self, n): return n\n"
    )
    cli("bench", "run", "suite", *QUIET).ended(0).printed("skipped a.A.track_n(2): not two")
    assert cli("bench", "run", "suite::a.A.track_n(2)", *QUIET).code == 3
    assert "1 skipped" in cli("bench", "table", "-m", "track_n").err or "skipped" in cli("bench", "table").err


TENSORFLOW = """
import os, struct
class Benchmark:  # what tf.test.Benchmark does with a report: a protobuf in a file of its own
    def report_benchmark(self, iters=None, wall_time=None):
        entry = bytes([2 << 3]) + bytes([iters]) + bytes([4 << 3 | 1]) + struct.pack("<d", wall_time)
        with open(os.environ["TEST_REPORT_FILE_PREFIX"] + type(self).__name__ + ".method", "wb") as file:
            file.write(bytes([1 << 3 | 2, len(entry)]) + entry)
class Theirs(Benchmark):
    def __init__(self, output_dir=None, root_data_dir=None, **kwargs): self.given = (output_dir, root_data_dir, kwargs)
    def method(self): self.report_benchmark(iters=7, wall_time=0.5)
"""


def test_a_report_as_tensorflow_writes_it_is_read(own_bench: Bench, repository: Repository, cli: Cli) -> None:
    (own_bench.folder / "theirs.py").write_text(TENSORFLOW)
    result = cli("bench", "run", "theirs.Theirs.method", "--json", *QUIET)
    assert result.code == 0, result.err
    found = json.loads(result.out)["executions"][0]["result"]
    assert (found["iters"], found["wall_time"]) == (7, 0.5)
