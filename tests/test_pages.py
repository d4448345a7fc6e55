"""Pages of the documentation that are run as they are printed."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from urllib.parse import quote

import pytest
from tests.pages import Step, matches, parse_steps, run_page
from tests.slurm_cluster import start_cluster
from tests.ssh_hosts import open_hosts

import assay

pytestmark = pytest.mark.timeout(900)  # a page has up to twenty commands

TOP = Path(__file__).parent.parent
HOW_TO = TOP / "docs" / "how-to"
ALL = {page.stem: page for page in TOP.glob("docs/*/*.md") if "```console\n" in page.read_text(encoding="utf-8")}
# with a service or a check of their own, here or in the tests of what they describe
# each command of check-torch-modules and of trace-a-training imports torch in several processes
LONGER_NAMES = """
    benchmark benchmark-compare benchmark-history benchmark-on-a-busy-machine benchmark-suites check-models
    check-torch-modules coming-from-torq compare-models find-the-first-difference gate-a-change gated-pull-request
    model-inputs model-reports model-targets prove-convergence recipes trace-a-training
"""
APART_NAMES = """
    exchange-with-other-tools find-the-best-run search-and-stop share-an-index submit-to-a-farm use-ray use-slurm
    use-ssh-hosts web-api where write-a-plug-in
"""
LONGER = set(LONGER_NAMES.split())
APART = LONGER | set(APART_NAMES.split())


def test_a_page_whose_output_has_changed_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```text note.txt\nabc\n```\n\n```console\n$ cat note.txt\nabc\n$ false  # exits with 1\n```\n")
    run_page(page, tmp_path)
    page.write_text("```console\n$ cat note.txt\nabd\n```\n")
    with pytest.raises(AssertionError, match="abd"):
        run_page(page, tmp_path)
    page.write_text("```console\n$ false\n```\n")
    with pytest.raises(AssertionError, match="ended with 1"):
        run_page(page, tmp_path)


def test_a_page_may_leave_out_parts_of_lines_and_lines() -> None:
    assert matches(("a … c", "…", "end"), "a b c\nx\ny\nend\n")
    assert not matches(("a … c",), "a b c\nx\n")
    assert parse_steps("$ a \\\n> b\nout\n$ c  # exits with 2\n") == [Step("a \\\nb", ("out",)), Step("c", (), (2,))]


@pytest.mark.parametrize("name", sorted(set(ALL) - APART))
def test_a_page_is_true_from_its_first_line_to_its_last(name: str, tmp_path: Path) -> None:
    run_page(ALL[name], tmp_path)


def test_choosing_runs(tmp_path: Path) -> None:
    """The page's commands, and the table of expressions with the runs that each chooses."""
    page = ALL["where"]
    run_page(page, tmp_path)
    table = page.read_text(encoding="utf-8").partition("| expression |")[2].partition("\n\n")[0]
    rows = [[re.findall(r"`([^`]+)`", cell) for cell in row.strip("|").split(" | ")] for row in table.splitlines()[2:]]
    assert len(rows) > 10
    for (expression,), names in rows:
        found = assay.runs(str(tmp_path / "runs" / "line"), where=expression)
        assert sorted(run.name for run in found) == sorted(names), expression


@pytest.mark.services("kills")
def test_a_plug_in_from_its_first_file_to_its_removal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_NO_BUILD_ISOLATION", "0")  # as pip has it: 0 is without isolation
    page = tmp_path / "page"
    page.mkdir()
    run_page(HOW_TO / "write-a-plug-in.md", page, programs=str(build_environment(tmp_path / "venv")))


def build_environment(folder: Path) -> Path:
    """The programs of a virtual environment to be thrown away, which has all packages of this one."""
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "all.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    programs = folder / "bin"
    for name in ("assay", "pip"):
        script = f"#!{programs}/python\nimport runpy\nrunpy.run_module({name!r}, run_name='__main__', alter_sys=True)\n"
        (programs / name).write_text(script)
        (programs / name).chmod(0o755)
    return programs


@pytest.mark.services("kills")
def test_from_twelve_runs_to_the_best_one(tmp_path: Path) -> None:
    run_page(HOW_TO / "search-and-stop.md", tmp_path)


@pytest.mark.services("backends")
@pytest.mark.parametrize("name", sorted(LONGER))
def test_a_page_whose_commands_take_longer(name: str, tmp_path: Path) -> None:
    run_page(ALL[name], tmp_path)


@pytest.mark.services("slurm")
@pytest.mark.parametrize("name", ["submit-to-a-farm", "use-slurm"])
def test_a_cluster_with_slurm(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with start_cluster(cpus=4) as cluster:
        for variable in ("SLURM_CONF", "PATH"):
            monkeypatch.setenv(variable, cluster.env[variable])
        run_page(ALL[name], tmp_path)


@pytest.mark.services("sshd")
def test_machines_reached_by_ssh(tmp_path: Path) -> None:
    """Ports and keys are in a file of the test's: ssh looks for the user's own one wherever HOME is."""
    with open_hosts(tmp_path / "hosts", "gpu1", "gpu2") as hosts:
        programs = build_environment(tmp_path / "venv")
        (programs / "ssh").write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {hosts.config} "$@"\n')
        (programs / "ssh").chmod(0o755)
        run_page(ALL["use-ssh-hosts"], hosts.client, programs=str(programs))


@pytest.mark.services("web")
def test_servers_that_the_page_starts(tmp_path: Path) -> None:
    """At ports that are free now."""
    page, work = tmp_path / "page.md", tmp_path / "work"
    text = ALL["web-api"].read_text(encoding="utf-8")
    with socket.socket() as first, socket.socket() as second:
        for port, listener in (("8666", first), ("8667", second)):
            listener.bind(("127.0.0.1", 0))
            text = text.replace(port, str(listener.getsockname()[1]))
    page.write_text(text, encoding="utf-8")
    work.mkdir()
    try:
        run_page(page, work)
    finally:
        for path in work.glob("*.pid"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(path.read_text()), signal.SIGKILL)


@pytest.mark.services("ray")
def test_a_ray_cluster(tmp_path: Path) -> None:
    run_page(ALL["use-ray"], tmp_path)


@pytest.mark.services("postgres")
def test_one_index_for_a_team(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.postgres import PASSWORD, run_postgres

    with run_postgres() as server:
        monkeypatch.setenv("ASSAY_INDEX", server.address())
        run_page(HOW_TO / "share-an-index.md", tmp_path)
        shown = subprocess.run(
            [sys.executable, "-m", "assay", "index", "status"], cwd=tmp_path, capture_output=True, check=True
        )
        stored = server.sql("SELECT query FROM pg_stat_activity")
    kept = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    for secret in (PASSWORD.encode(), quote(PASSWORD, safe="").encode()):
        assert secret not in b"".join([*kept, shown.stdout, shown.stderr, repr(stored).encode()])


def test_the_sweep_of_the_readme(tmp_path: Path) -> None:
    run_page(write_readme(tmp_path, "## A first study", "## Does it still converge?"), tmp_path)


@pytest.mark.services("backends")
def test_the_examples_of_the_readme(tmp_path: Path) -> None:
    shutil.copytree(
        TOP / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("runs", "testdata", "golden")
    )
    run_page(write_readme(tmp_path, "## Does it still converge?", "## What you type today"), tmp_path)


def write_readme(folder: Path, begin: str, end: str) -> Path:
    """A part of the README, with the file that it shows; of what is printed times and noise count for nothing."""
    part = (TOP / "README.md").read_text(encoding="utf-8").partition(begin)[2].partition(end)[0]
    text = part.replace("```yaml study\n", "```yaml study.yml\n").replace("\n...\n", "\n…\n")
    text = re.sub(r"\b(80ms|1\.6s|INCONCLUSIVE)\b", "…", text)
    for last in ("  0:00", "  time", "────"):  # a busy machine has a column more
        text = text.replace(f"{last}\n", f"{last.replace('0:00', '')}…\n")
    page = folder / "page.md"
    page.write_text(text, encoding="utf-8")
    return page
