"""Somebody whose run waits is told what it waits for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from assay.cli import patience
from assay.cli.model_options import following
from assay.execute.slots import SlotPool, build_entries


def test_who_holds_a_slot_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "PATIENCE_S", -1.0)
    entries = build_entries(["cpu"])
    pool = SlotPool(entries, str(tmp_path))
    held = pool.acquire()
    assert held is not None
    words = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"]
    env = {**os.environ, "ASSAY_RUN_DIR": "/data/runs/night/lr=3"}
    with subprocess.Popen(words, env=env, pass_fds=held.fds, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        held.let_go()
        assert holder.stdout is not None
        holder.stdout.readline()
        told: list[str] = []
        waiting = patience.Patience(told.append, " (another one: --slots)")
        supervisor: Any = SimpleNamespace(queue=[1], running={}, pool=pool)
        for _ in range(3):
            waiting.look(supervisor)
        holder.communicate()
    (line,) = told  # once
    assert line.startswith(f"waiting for a slot: held by /data/runs/night/lr=3, process {holder.pid}, for ")
    assert line.endswith(" (another one: --slots)")


def test_a_run_that_has_begun_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "PATIENCE_S", -1.0)
    told: list[str] = []
    waiting = patience.Patience(told.append)
    for queue, running in (([1], {2: 3}), ([], {})):
        supervisor: Any = SimpleNamespace(queue=queue, running=running, pool=None)
        for _ in range(3):
            waiting.look(supervisor)
    assert told == []


def test_a_check_of_a_model_says_what_it_waits_for(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(patience, "PATIENCE_S", -1.0)
    with following({"quiet": False, "as_json": False, "explain": False}) as doors:
        supervisor: Any = SimpleNamespace(queue=[1], running={}, pool=None)
        for _ in range(2):
            doors.draw(supervisor)
    assert "waiting for a slot: another study holds it" in capsys.readouterr().err
