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
from pathlib import Path

import pytest
from tests import training_with_checkpoints
from tests.contracts.executor import STOP, until
from tests.models.backends.loopback import NEEDS_SSHD
from tests.ssh_hosts import Hosts, find_programs, open_hosts

from assay.execute.process import AttemptProcesses, find_members
from assay.record import run_directory
from assay.record.run_directory import load_history
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
sleep 0.$((RANDOM % 9)); echo "loss 0.0$1"; echo out > "$ASSAY_RUN_DIR/result"; echo "$1" >> "$HOME/ended"
"""


@pytest.fixture
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with open_hosts(tmp_path_factory.mktemp("hosts"), "near", "far") as made:
        yield made
        for pid in find_programs(made):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def write_study(hosts: Hosts, count: int, lost_after: str = "60s", names: str = "near, far") -> None:
    values = ", ".join(map(str, range(1, count + 1)))
    text = STUDY.format(values=values, config=hosts.config, lost_after=lost_after).replace("near, far", names)
    (hosts.client / "s.yml").write_text(text if "near" in names else text.replace("{near: 2}", "2"))
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


def hold(hosts: Hosts, *, is_held: bool = True) -> None:
    """Whether jobs wait for their end."""
    for name in hosts.boards:
        (hosts.home(name) / "wait").touch() if is_held else (hosts.home(name) / "wait").unlink()


def load_ran(hosts: Hosts, file: str = "ran") -> list[int]:
    """What jobs have noted on their hosts, once for each that began, or ended."""
    files = [hosts.home(name) / file for name in hosts.boards]
    return sorted(int(word) for file in files if file.exists() for word in file.read_text().split())


def check_all(hosts: Hosts, count: int) -> None:
    assert load_ran(hosts) == list(range(1, count + 1)), "each once"
    check_ended(hosts, count)


def check_ended(hosts: Hosts, count: int) -> None:
    assert load_ran(hosts, "ended") == list(range(1, count + 1)), "each once"
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


def lose_host(hosts: Hosts, count: int, names: str = "near, far") -> tuple[int, str, str]:
    """Run a study while the host far goes away with a job on it: the exit code, the output, and that run."""
    write_study(hosts, count, "2s", names)
    (hosts.home("far") / "wait").touch()
    with start(hosts, "run", "s.yml") as process:
        ran = hosts.home("far") / "ran"
        until(lambda: ran.exists() and ran.read_text().strip(), "a job has begun there")
        lost = ran.read_text().split()[0]
        hosts.stop("far")
        said, _ = process.communicate(timeout=120)
    return process.returncode, said, f"a={lost}"


@pytest.mark.parametrize("has_ended", [False, True])
def test_a_host_that_is_gone_is_given_up_and_changes_nothing_when_it_is_back(hosts: Hosts, has_ended: bool) -> None:
    """Its run is started again elsewhere. The first copy goes on until the next call that reaches it, or has ended."""
    code, said, lost = lose_host(hosts, 5)
    assert code == 0, said
    assert said.count("what runs there is given up after 2.0s, and it is tried again") == 1
    assert lost.removeprefix("a=") in (hosts.home("near") / "ran").read_text().split()
    run = hosts.client / "runs/s" / lost
    first = json.loads((run / "outcome.1").read_text())
    assert (first["state"], "the host far has not answered for 2.0s" in first["reason"]) == ("lost", True)
    assert find_programs(hosts), "the first copy goes on"
    before = load_all(hosts, lost)
    if has_ended:
        (hosts.home("far") / "wait").unlink()
        until((hosts.home("far") / "ended").exists, "the first copy came to its end")
        (hosts.home("far") / "ended").unlink()
    hosts.boards["far"].start()
    code, said = call(hosts, "run", "s.yml", "--quiet")
    assert (code, find_programs(hosts)) == (0, set()), said
    assert load_all(hosts, lost) == before
    assert (run / "end.1").exists()
    assert not (run / "lease.3").exists()
    check_ended(hosts, 5)


@pytest.mark.parametrize("kills", [4, pytest.param(12, marks=pytest.mark.long)])
def test_supervisors_that_are_killed_while_a_host_is_silent(hosts: Hosts, kills: int) -> None:
    """At every instant of giving up its run: nothing is lost, and the first copy comes to no end of its own."""
    chance = random.Random(9)
    write_study(hosts, 4, "0.5s")
    (hosts.home("far") / "wait").touch()
    with start(hosts, "run", "s.yml", "--quiet") as process:
        until((hosts.home("far") / "ran").exists, "a job has begun there")
        hosts.stop("far")
        time.sleep(chance.uniform(0.0, 1.0))
        process.kill()
    for turn in range(kills):
        if turn == kills - 1:
            hosts.boards["far"].start()
        with start(hosts, "run", "s.yml", "--quiet") as process:
            time.sleep(chance.uniform(0.5, 2.0))
            process.kill()
    with start(hosts, "run", "s.yml", "--quiet") as process:
        runs = hosts.client / "runs/s"
        until(lambda: all(end_exists(path) for path in runs.glob("*/stop.*")), "what was given up has been ended")
        (hosts.home("far") / "wait").unlink()
        said, _ = process.communicate(timeout=120)
    assert process.returncode == 0, said
    check_ended(hosts, 4)


def end_exists(stop: Path) -> bool:
    return stop.with_name(stop.name.replace("stop", "end")).exists()


def test_a_command_whose_files_are_on_a_silent_host_is_repeated_elsewhere(hosts: Hosts) -> None:
    """Its exit marker is here already, what it wrote is not."""
    write_study(hosts, 1, "2s")
    study = (hosts.client / "s.yml").read_text()
    commands = "commands:\n  train: echo model > {run.dir}/model\n  test: cat {run.dir}/model && bash job.bash {a}\n"
    (hosts.client / "s.yml").write_text(study.replace("command: bash job.bash {a}\n", commands))
    hold(hosts)
    with start(hosts, "run", "s.yml") as process:
        until(lambda: list((hosts.client / "runs/s").glob("*/train.exit.0")) and load_ran(hosts), "it runs")
        (lost,) = [name for name in hosts.boards if (hosts.home(name) / "ran").exists()]
        hosts.stop(lost)
        until(lambda: len(load_ran(hosts)) == 2, "it runs elsewhere")
        (hosts.home({"near": "far", "far": "near"}[lost]) / "wait").unlink()
        said, _ = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert [path.name for path in (hosts.client / "runs/s").glob("*/train*.exit.0")] == ["train.2.exit.0"]
    assert load_ran(hosts, "ended") == [1]


def load_all(hosts: Hosts, name: str) -> tuple[object, ...]:
    """What Assay says of the study, and what it reads of a run."""
    run = hosts.client / "runs/s" / name
    said = [call(hosts, *words)[1] for words in (("sum", "runs/s", "--csv"), ("ls", "runs/s", "--json"))]
    return *said, load_history(str(run)), *[path.read_text() for path in sorted(run.glob("*.log"))]


def test_where_no_other_host_is_the_first_copy_is_followed_when_its_host_is_back(hosts: Hosts) -> None:
    code, said, lost = lose_host(hosts, 1, "far")
    assert code != 0
    assert "1 lost" in said
    listed = json.loads(call(hosts, "ls", "runs/s", "--json")[1])
    assert [row["name"] for row in listed if row["state"] == "lost"] == [lost]
    (hosts.home("far") / "wait").unlink()
    hosts.boards["far"].start()
    code, said = call(hosts, "run", "s.yml", "--quiet")
    assert code == 0, said
    assert load_ran(hosts) == [1]


def test_a_run_that_a_host_has_lost_waits_for_another_one(hosts: Hosts) -> None:
    """The host is back soon, and has a free slot; the other one is full."""
    write_study(hosts, 3, "2s")
    hold(hosts)
    with start(hosts, "run", "s.yml") as process:
        until(lambda: len(load_ran(hosts)) == 3, "all have begun")
        hosts.stop("far")
        until(lambda: list((hosts.client / "runs/s").glob("*/outcome.1")), "its run was given up")
        hosts.boards["far"].start()
        until(lambda: list((hosts.client / "runs/s").glob("*/end.1")), "the first copy was ended")
        (hosts.home("near") / "wait").unlink()
        said, _ = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert [len((hosts.home(name) / "ran").read_text().split()) for name in ("near", "far")] == [3, 1]
    assert "on the host far, which was given up, has been ended" in said


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
    hold(hosts)
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


def find_state(hosts: Hosts) -> dict[str, object]:
    """Of the only run."""
    (row,) = json.loads(call(hosts, "ls", "runs/s", "--json")[1])
    return row


def check_nothing_left(hosts: Hosts) -> None:
    assert find_programs(hosts) == set()
    assert [list((hosts.jobs(name, "assay-runs") / "runs").iterdir()) for name in hosts.boards] == [[], []]


def find_copy(hosts: Hosts) -> Path:
    """Of the only run, on its host."""
    (found,) = [path for name in hosts.boards for path in (hosts.jobs(name, "assay-runs") / "runs").iterdir()]
    return found


def test_a_program_that_a_person_ends_on_its_host_has_failed(hosts: Hosts) -> None:
    write_study(hosts, 1)
    hold(hosts)
    with start(hosts, "run", "s.yml") as process:
        until(lambda: load_ran(hosts), "it runs")
        programs = [pid for pid in find_programs(hosts) if read_command(pid)[:2] == ["bash", "job.bash"]]
        program = min(programs)  # a fork of it, before it is another program, has the same command
        os.kill(program, signal.SIGTERM)
        said, _ = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "exit code 143 (SIGTERM)" in said
    assert load_ran(hosts) == [1], "once"
    check_nothing_left(hosts)


def read_command(pid: int) -> list[str]:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    return []


@pytest.mark.parametrize("way", ["kill -9", "reboot"])
def test_a_run_whose_processes_are_gone_from_its_host_is_started_again(hosts: Hosts, way: str) -> None:
    write_study(hosts, 1)
    hold(hosts)
    with start(hosts, "run", "s.yml") as process:
        until(lambda: load_ran(hosts) and list((hosts.client / "runs/s").glob("*/token.1")), "it runs")
        (name,) = [name for name in hosts.boards if (hosts.home(name) / "ran").exists()]
        if way == "reboot":
            hosts.stop(name)
        for number in (signal.SIGSTOP, signal.SIGKILL):  # at once: none sees another one's end
            for pid in find_members([AttemptProcesses(0, 0, f"{find_copy(hosts).name}.1")]):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        hold(hosts, is_held=False)
        if way == "reboot":  # a process of the same number has begun at the same time since
            token = find_copy(hosts) / "token.1"
            words = token.read_text().split()
            words[1:4] = [str(os.getpid()), str(processes.process_start(os.getpid())), "another-boot"]
            token.write_text(" ".join(words) + "\n")
            hosts.boards[name].start()
        said, _ = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert (load_ran(hosts), load_ran(hosts, "ended")) == ([1, 1], [1])
    check_nothing_left(hosts)


@pytest.mark.parametrize("limit", ["timeout: 1s", "commands: {run: {run: 'bash job.bash {a}', timeout: 1s}}"])
def test_a_time_limit_is_final(hosts: Hosts, limit: str) -> None:
    write_study(hosts, 1)
    study = (hosts.client / "s.yml").read_text()
    has_commands = limit.startswith("commands")
    text = study.replace("command: bash job.bash {a}", limit) if has_commands else study + limit + "\n"
    (hosts.client / "s.yml").write_text(text)
    hold(hosts)
    code, said = call(hosts, "run", "s.yml")
    assert (code, find_state(hosts)["state"]) == (1, "timeout"), said
    check_nothing_left(hosts)
    hold(hosts, is_held=False)
    code, said = call(hosts, "run", "s.yml")
    assert (load_ran(hosts), load_ran(hosts, "ended")) == ([1], []), said


@pytest.mark.parametrize("way", ["the supervisor", "the next one", "stop again", "the next one, given up", "given up"])
def test_a_stop_of_a_run_whose_host_is_silent_is_carried_out_when_it_answers(hosts: Hosts, way: str) -> None:
    """By the first process that reaches the host. Until then the run is not listed as stopped."""
    write_study(hosts, 3, "2s" if "given up" in way else "5m")
    hold(hosts)
    with start(hosts, "run", "s.yml") as process:
        until(lambda: len(load_ran(hosts)) == 3, "all run")
        far = (hosts.home("far") / "ran").read_text().strip()
        run = hosts.client / "runs/s" / f"a={far}"
        until((run / "token.1").exists, "its supervisor knows")
        hosts.stop("far")
        run_directory.write_stop(str(run), 1, STOP)  # as `assay stop` does, before it waits for the host
        if "given up" in way:
            until((run / "unreachable.1").exists, "it was given up")
        if way not in ("the supervisor", "given up"):
            process.kill()
        listed = json.loads(call(hosts, "ls", "runs/s", "--json")[1])
        (row,) = [row for row in listed if row["name"] == run.name]
        assert row["state"] == ("lost" if "given up" in way else "running")
        assert "has not confirmed it" in row["reason"]
        hosts.boards["far"].start()
        if way == "stop again":
            code, said = call(hosts, "stop", f"s/{run.name}")
            assert (code, "stopped after" in said) == (0, True), said
        with start(hosts, *(("run", "s.yml", "--quiet") if "next" in way else ("ls", "runs/s"))) as other:
            until((run / "end.1").exists, "it was ended there")
            hold(hosts, is_held=False)
            other.communicate(timeout=120)
        process.communicate(timeout=120)
    code, said = call(hosts, "run", "s.yml", "--quiet")
    assert {row["state"] for row in json.loads(call(hosts, "ls", "runs/s", "--json")[1])} == {"done", "stopped"}, said
    assert load_ran(hosts, "ended") == sorted({1, 2, 3} - {int(far)}), "once, for good"
    check_nothing_left(hosts)


def test_a_run_that_died_goes_on_from_its_checkpoint(hosts: Hosts) -> None:
    """What the first attempt wrote was fetched, and is sent with the next one. Of ten checkpoints that are fetched at once
    the one that was written last is the newest, by the clock of its host."""
    section = f"{{kind: ssh, hosts: [near, far], ssh_options: [-F, '{hosts.config}']}}"
    run_dir = training_with_checkpoints.write_study(
        hosts.client, "--die-at 11", f"on: pool\nfarms:\n  pool: {section}\n"
    )
    code, said = call(hosts, "run", "s.yml")
    assert code == 0, said
    assert "attempt 2, continues from step 10" in said
    assert training_with_checkpoints.load_steps(run_dir) == [*range(1, 12), 11, 12]
