"""One study file is run here and over ssh; nothing is lost and nothing repeated, whatever is killed at whatever instant."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from tests.contracts.executor import until
from tests.models.backends.loopback import NEEDS_SSHD
from tests.ssh_hosts import Hosts, find_programs, open_hosts

from assay.system import processes

pytestmark = NEEDS_SSHD

STUDY = """
study: s
command: bash job.bash {{a}}
params: {{a: [{values}]}}
metrics: {{loss: 'loss ({{number}})'}}
on: pool
farms:
  pool: {{kind: ssh, hosts: [near, far], slots: {{near: 2}}, lost_after: {lost_after}, ssh_options: [-F, '{config}']}}
"""
JOB = """
echo "$1" >> "$HOME/ran"; echo "loss 0.$1"
while [ -e "$HOME/wait" ]; do sleep 0.05; done
sleep 0.$((RANDOM % 9)); echo "loss 0.0$1"; echo out > "$ASSAY_RUN_DIR/result"
"""


@pytest.fixture
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with open_hosts(tmp_path_factory.mktemp("hosts"), "near", "far") as made:
        yield made
        for pid in find_programs(made):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def write_study(hosts: Hosts, count: int, lost_after: str = "60s") -> None:
    values = ", ".join(map(str, range(1, count + 1)))
    (hosts.client / "s.yml").write_text(STUDY.format(values=values, config=hosts.config, lost_after=lost_after))
    (hosts.client / "job.bash").write_text(JOB)


def start(hosts: Hosts, *words: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "assay", *words]
    return subprocess.Popen(
        argv, cwd=hosts.client, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def call(hosts: Hosts, *words: str) -> tuple[int, str]:
    with start(hosts, *words) as process:
        said, _ = process.communicate(timeout=120)
    return process.returncode, said


def load_ran(hosts: Hosts) -> list[int]:
    """What jobs have noted on their hosts, once for each that began."""
    files = [hosts.home(name) / "ran" for name in hosts.boards]
    return sorted(int(word) for file in files if file.exists() for word in file.read_text().split())


def check_all(hosts: Hosts, count: int) -> None:
    assert load_ran(hosts) == list(range(1, count + 1)), "each once"
    assert len(list((hosts.client / "runs/s").glob("*/result"))) == count
    for name in hosts.boards:
        assert list((hosts.jobs(name, "assay-runs") / "runs").iterdir()) == [], "nothing is left there"
        assert len(list((hosts.jobs(name, "assay-runs") / "code").iterdir())) <= 1, "the code was sent once"
    assert find_programs(hosts) == set()


@pytest.mark.parametrize("kills", [5, pytest.param(20, marks=pytest.mark.long)])
def test_a_supervisor_that_is_killed(hosts: Hosts, kills: int) -> None:
    count, chance = 2 * kills, random.Random(7)
    write_study(hosts, count)
    for _ in range(kills):
        with start(hosts, "run", "s.yml", "--quiet") as process:
            time.sleep(chance.uniform(0.2, 1.5))
            process.kill()
    code, said = call(hosts, "run", "s.yml", "--quiet")
    assert code == 0, said
    check_all(hosts, count)
    code, said = call(hosts, "run", "s.yml", "--on", "local", "--root", "here", "--quiet")
    assert code == 0, said
    tables = [
        {row["run"]: row["loss"] for row in json.loads(call(hosts, "sum", f"{root}/s", "--json")[1])}
        for root in ("runs", "here")
    ]
    assert len(tables[0]) == count
    assert tables[0] == tables[1]


@pytest.mark.parametrize("drops", [5, pytest.param(20, marks=pytest.mark.long)])
def test_connections_that_drop(hosts: Hosts, drops: int) -> None:
    """Either end of the connection is killed, or the daemon is gone for a while."""
    count, chance = 3 * drops, random.Random(8)
    write_study(hosts, count)
    with start(hosts, "run", "s.yml", "--quiet") as process:
        until(lambda: load_ran(hosts), "the first job has begun")
        for turn in range(drops):
            time.sleep(chance.uniform(0.0, 0.6))
            name = chance.choice(("near", "far"))
            if turn % 5 == 4:
                hosts.stop(name)
                time.sleep(1.0 if drops < 20 else 5.0)
                hosts.boards[name].start()
            elif turn % 2:
                hosts.cut(name)
            else:
                for pid in processes.find_descendants(process.pid):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
        said, _ = process.communicate(timeout=120)
    assert process.returncode == 0, said
    check_all(hosts, count)


def test_a_host_that_is_gone_for_good(hosts: Hosts) -> None:
    write_study(hosts, 5, "3s")
    (hosts.home("far") / "wait").touch()
    with start(hosts, "run", "s.yml") as process:
        until((hosts.home("far") / "ran").exists, "a job has begun there")
        lost = (hosts.home("far") / "ran").read_text().strip()
        hosts.stop("far")
        said, _ = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "4 done" in said
    assert "1 lost" in said
    assert "the host far" in said
    listed = json.loads(call(hosts, "ls", "runs/s", "--json")[1])
    assert [row["name"] for row in listed if row["state"] == "lost"] == [f"a={lost}"]
    code, said = call(hosts, "run", "s.yml", "--retry", "lost", "--quiet")
    assert code == 0, said
    assert lost in (hosts.home("near") / "ran").read_text().split()
    assert len(list((hosts.client / "runs/s").glob("*/result"))) == 5


@pytest.mark.long
def test_a_host_that_comes_back_after_it_was_given_up(hosts: Hosts) -> None:
    write_study(hosts, 3, "3s")
    (hosts.home("far") / "wait").touch()
    with start(hosts, "run", "s.yml", "--quiet") as process:
        until((hosts.home("far") / "ran").exists, "a job has begun there")
        hosts.stop("far")
        process.communicate(timeout=120)
    (hosts.home("far") / "wait").unlink()
    hosts.boards["far"].start()
    code, said = call(hosts, "run", "s.yml", "--quiet")
    assert code == 0, said
    check_all(hosts, 3)


def test_a_run_ended_when_it_did_not_when_somebody_looked(hosts: Hosts) -> None:
    """Sent 1000 s ago by our clock, by a supervisor that died then; ended 990 s ago by the host's."""
    write_study(hosts, 1)
    with start(hosts, "run", "s.yml", "--quiet") as process:
        until(lambda: load_ran(hosts), "it has begun")
        process.kill()
    folders = [hosts.jobs(name, "assay-runs") for name in hosts.boards]
    until(lambda: any(list(folder.glob("runs/*/end.1")) for folder in folders), "it has ended")
    (lease,) = (hosts.client / "runs/s").glob("*/lease.1")
    began, now = json.loads(lease.read_text()), time.time()
    lease.write_text(json.dumps({**began, "started_at": now - 1000}))
    os.utime(lease, (now - 1000, now - 1000))
    lease.with_name("token.1").unlink(missing_ok=True)
    for path in [path for folder in folders for path in folder.glob("runs/*/end.1")]:
        os.utime(path, (now - 990, now - 990))
    code, said = call(hosts, "run", "s.yml", "--quiet")
    assert code == 0, said
    (outcome,) = (hosts.client / "runs/s").glob("*/outcome.1")
    times = json.loads(outcome.read_text())
    assert now - 1000 <= times["started_at"] <= times["ended_at"] < now - 500


@pytest.mark.parametrize("way", ["interrupt", "stop"])
def test_nothing_is_left_running(hosts: Hosts, way: str) -> None:
    write_study(hosts, 3)
    for name in hosts.boards:
        (hosts.home(name) / "wait").touch()
    with start(hosts, "run", "s.yml") as process:
        until(lambda: len(load_ran(hosts)) == 3, "all have begun")
        if way == "interrupt":
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        else:
            code, said = call(hosts, "stop", "s")
            assert code == 0, said
        said, _ = process.communicate(timeout=120)
    assert "warning" not in said
    assert find_programs(hosts) == set()
    logs = [path.read_text() for path in (hosts.client / "runs/s").glob("*/run.log")]
    assert sorted(logs) == ["loss 0.1\n", "loss 0.2\n", "loss 0.3\n"], "what they had written is here"
