"""Full and read-only disks, real ones: each command gives an answer or one clear line, and later the study is continued."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.ssh_hosts import has_namespaces

Record = Callable[[str, object], None]
STUDY = r"""
study: fit
command: 'echo "acc {x}"; for i in 1 2 3 4 5 6 7 8; do echo "line $i of a log that grows ...................."; done'
params: {x: [1, 2, 3, 4, 5, 6]}
metrics: {acc: 'acc ({number})'}
resources: {gpus: 0}
"""
# In a mount namespace of its own, as `python -c DISK folder`: the disk is a tmpfs of the size or number of files that a
# line of the standard input names; what each command did is printed.
DISK = r"""
import json, os, subprocess, sys
disk = sys.argv[1]
env = os.environ | {"ASSAY_CACHE_DIR": disk + "/cache", "ASSAY_SLOTS_DIR": disk + "/../slots"}
def mount(options):
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", disk], check=True)
for line in sys.stdin:
    steps, done = json.loads(line), []
    for step in steps:
        if step[0] == "mount":
            mount(step[1])
        else:
            ended = subprocess.run([sys.executable, "-m", "assay", *step], env=env, capture_output=True, text=True, timeout=120)
            done.append([step, ended.returncode, ended.stdout, ended.stderr])
    subprocess.run(["umount", disk], check=True)
    print(json.dumps(done), flush=True)
"""
Done = list[tuple[list[str], int, str, str]]

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not has_namespaces(), reason="mounts of its own need root"),
]


def use_disks(folder: Path, states: list[list[list[str]]]) -> list[Done]:
    (folder / "study.yml").write_text(STUDY)
    (folder / "disk").mkdir()
    done = subprocess.run(
        ["unshare", "--mount", sys.executable, "-c", DISK, str(folder / "disk")],
        cwd=folder,
        input="".join(json.dumps(steps) + "\n" for steps in states),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


RUN = ["run", "study.yml", "--root", "disk/runs", "--slots", "cpu:2", "--quiet"]
TABLE = ["sum", "fit", "--root", "disk/runs", "--json"]
STATES = ["ls", "fit", "--root", "disk/runs", "--json"]
SMALL = (
    ["size=64m"] * 0
    + [f"size={size}k" for size in range(8, 500, 12)]
    + [f"nr_inodes={count}" for count in range(4, 124, 4)]
)


def find_full_problems(done: Done) -> list[str]:
    """On the full disk a run that is called done has its value; with room again all are done, and none is wrong."""
    (full, code, _, said), states, table, *_, (_, last, _, why), (_, _, after, _), (_, _, rows, _) = done
    problems = [f"{full}: {code} {said}"] if code not in (0, 1, 4) else []
    problems += [f"{step}: {err}" for step, _, _, err in done if "bug in Assay" in err or "Traceback" in err]
    if states[1] == table[1] == 0:
        finished = {row["name"] for row in json.loads(states[2]) if row["state"] == "done"}
        wrong = [row for row in json.loads(table[2]) if row["run"] in finished and row.get("acc") != row["x"]]
        problems += [f"done, and wrong: {row}" for row in wrong]
    if last != 0 or [row["state"] for row in json.loads(after)] != ["done"] * 6:
        problems.append(f"with room again: {last} {why} {after}")
    elif sorted((row["x"], row["acc"]) for row in json.loads(rows)) != [(x, x) for x in range(1, 7)]:
        problems.append(f"the table is {rows}")
    return problems


def test_a_disk_that_is_full_at_any_point(tmp_path: Path, record_property: Record) -> None:
    again = [*RUN, "--retry", "failed,lost,stopped"]
    states = [
        [["mount", size], RUN, STATES, TABLE, ["mount", "remount,size=64m,nr_inodes=9999"], again, STATES, TABLE]
        for size in SMALL
    ]
    found = use_disks(tmp_path, states)
    problems = [f"{size}: {each}" for size, done in zip(SMALL, found, strict=True) for each in find_full_problems(done)]
    assert sum(done[0][1] == 4 for done in found) > 20, "the disks were not full"
    record_property("full disks", f"{len(problems)} of {len(found)}")
    assert not problems, "\n".join(problems)


READS = ("ls", "ls fit", "sum fit", "show fit/x=1", "logs fit/x=1", "best fit -m acc", "plot fit", "diff fit/x=1 fit/x=2",
         "export json fit", "report fit -o -", "doctor", "ls fit --json", "sum fit --csv", "run study.yml -n")  # fmt: skip
WRITES = ("run study.yml --force --quiet", "rerun fit/x=1 --quiet", "tag fit/x=1 good", "note fit/x=1 text", "index rebuild",
          "run study.yml x=9 --quiet", "report fit -o disk/page.html", "export csv fit -o disk/t.csv")  # fmt: skip


def test_a_disk_that_is_read_only(tmp_path: Path, record_property: Record) -> None:
    """Whatever reads, works; whatever writes, is refused in a line."""
    commands = [
        [*command.split(), *([] if command == "doctor" else ["--root", "disk/runs"])] for command in (*READS, *WRITES)
    ]
    states = [[["mount", "size=64m"], RUN, *first, ["mount", "remount,ro"], *commands] for first in ([], [TABLE])]
    problems = []
    found = use_disks(tmp_path, states)
    for done in found:
        answers = done[-len(commands) :]
        for (step, code, _, err), command in zip(answers, (*READS, *WRITES), strict=True):
            is_well = code == 0 if command in READS else code in (2, 4) and len(err.strip().splitlines()) <= 3
            if not is_well or "bug in Assay" in err or "Traceback" in err:
                problems.append(f"{' '.join(step)}: {code} {err}")
    record_property("commands on a read-only disk", f"{len(problems)} of {len(commands) * len(found)}")
    assert not problems, "\n".join(problems)
