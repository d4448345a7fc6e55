"""Where a run was executed: the node and the job, not the machine that submitted it; names of hosts for ssh."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.contracts.executor import Opened
from tests.stand_ins import put_programs

from assay.errors import InfrastructureError, UsageError
from assay.execute.places import Place, build_executor, load_entry, load_place, render_place
from assay.farms.choice import build_engine_farm
from assay.farms.ssh_jobs import HostAddress, HostSlot, parse_slot
from assay.farms.ssh_session import SshSession
from assay.farms.submit import _SHELL, SubmitExecutor
from assay.system import processes
from assay.values.run import JobHandle
from assay.values.study import Farm

HERE = "login"


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    path = tmp_path / "study" / "run"
    path.mkdir(parents=True)
    return path


def build(executor: str, *, native_id: str = "", pid: int = 0, tag: str = "uid.1") -> JobHandle:
    return JobHandle(executor, native_id, HERE, pid, 0, "boot", None, 1, 0.0, tag=tag)


def begin(run_dir: Path, host: str) -> None:
    (run_dir / "token.1").write_text(f"{host} 123 456 boot 1700000000\n")


@pytest.mark.parametrize(("index", "job"), [("5", "slurm 671_5"), ("-", "slurm 671")])
def test_a_run_on_slurm_names_its_node_and_job(run_dir: Path, index: str, job: str) -> None:
    arrays = run_dir.parent / ".assay" / "slurm"
    arrays.mkdir(parents=True)
    (arrays / "0123456789ab.log").write_text("sbatch: a warning of 1 line\n671;cluster\n")
    (run_dir / "submit.log.1").write_text(f"0123456789ab {index}\n")
    handle = build("slurm")
    waiting = load_place(str(run_dir), handle)
    assert waiting == Place(None, job)
    assert render_place(waiting, handle) == f"{job}, submitted on login"
    begin(run_dir, "n2")
    assert render_place(load_place(str(run_dir), handle), handle) == f"n2 ({job})"


def test_a_submit_command_that_printed_a_number(run_dir: Path) -> None:
    begin(run_dir, "n7")
    (run_dir / "submit.log.1").write_text("Your job 4711 has been submitted\n")
    assert load_place(str(run_dir), build("submit")) == Place("n7", "submit 4711")
    shell = build("submit", native_id=_SHELL)  # what it prints is not a job number
    assert load_place(str(run_dir), shell) == Place("n7", "submit")


def test_hosts_of_ssh_and_clusters_of_ray(run_dir: Path) -> None:
    begin(run_dir, "ssh:board-3")
    assert load_place(str(run_dir), build("ssh", native_id=json.dumps({"host": "board-3"}))) == Place("board-3", "ssh")
    begin(run_dir, "n1")
    assert load_place(str(run_dir), build("ray", native_id="10.0.0.1:6379")).job == "ray 10.0.0.1:6379"
    assert load_place(str(run_dir), build("ray", native_id="http://head:8265")).job == "ray assay-uid.1"


@pytest.mark.parametrize("token", ["", "- 0 0 - 1\n", "\0\n"])
def test_a_job_that_never_began_was_nowhere(run_dir: Path, token: str) -> None:
    (run_dir / "token.1").write_text(token)
    assert load_place(str(run_dir), build("submit")).host in (None, "\0")


def test_submit_takes_its_farm(opened: Opened) -> None:
    farm = Farm("here", "generic", "bash")
    executor = opened(build_executor("submit", farm=farm, parallel=3))
    assert isinstance(executor, SubmitExecutor)
    assert executor.farm == farm


# ---------------------------------------------------------------- names of hosts on their way to the system's ssh


@pytest.mark.parametrize("name", ["-oProxyCommand=touch x", "-l", "root@-oProxyCommand=x", "a b", "a\nb"])
def test_a_name_that_ssh_would_take_for_an_option_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="is not a host"):
        build_engine_farm(f"ssh:{name}")
    assert parse_slot(HostSlot(HostAddress(name, "/tmp")).render()) is None  # of a handle that was written elsewhere


@pytest.mark.parametrize(
    "changes", [{"host": None}, {"root": []}, {"options": [1]}, {"options": 5}, {"slot": float("inf")}, {"slot": [1]}]
)
def test_a_slot_in_a_damaged_lease_is_none(changes: dict[str, object]) -> None:
    fields = json.loads(HostSlot(HostAddress("near")).render())
    assert parse_slot(json.dumps({**fields, **changes})) is None
    assert parse_slot("[" * 100_000) is None


@pytest.mark.parametrize("name", ["gpu1", "me@gpu-1", "::1", "ssh://me@gpu1:22", "größe"])
def test_names_of_hosts(name: str) -> None:
    assert parse_slot(HostSlot(HostAddress(name, "/tmp")).render()) is not None


def test_a_session_ends_its_options_before_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = tmp_path / "calls"
    text = f'for word in "$@"; do echo "$word"; done > {calls}\nexit 1'
    monkeypatch.setenv("PATH", put_programs(tmp_path / "bin", ssh=text))
    with pytest.raises(InfrastructureError):
        SshSession(HostAddress("root@b", "/tmp")).connect()
    words = calls.read_text().splitlines()
    assert words[words.index("root@b") - 1] == "--"


@pytest.mark.parametrize(
    ("executor", "host", "line"),
    [
        ("ssh", "ssh:far", "ssh -F 'my config' me@far"),
        ("submit", "n2", "ssh n2"),
        ("ray", "n2", "ssh n2"),
        ("submit", processes.host_name(), ""),
        ("submit", "-oProxyCommand=x", ""),
        ("submit", "-", ""),
        ("slurm", "n2", ""),  # its number is not known
    ],
)
def test_the_line_that_leads_to_a_running_job(tmp_path: Path, executor: str, host: str, line: str) -> None:
    slot = HostSlot(HostAddress("me@far", "/tmp", ("-F", "my config"))).render()
    handle = JobHandle(executor, slot, "here", 0, 0, "", None, 1, 0.0)
    assert load_entry(str(tmp_path), handle) == ""
    (tmp_path / "token.1").write_text(f"{host} 1 2 boot 3\n")
    assert load_entry(str(tmp_path), handle) == line
