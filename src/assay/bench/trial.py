"""Runs one trial on a node of a farm: `python -m assay child bench-trial RUN_DIR FOLDER WAIT_S COMMAND`.

The trial waits until nothing else is measured on the node, as `assay bench` does on its own machine, observes the node
while COMMAND runs in a shell, and writes its observations into the run directory. WAIT_S: longest wait; `-`: no wait.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time

from assay.bench.flow.machine import (
    BEFORE_S,
    ForeignLoad,
    MachineWatch,
    load_accelerators,
    load_own_cpu_s,
    write_context,
)
from assay.bench.values.execution import ENV_SOURCE
from assay.errors import ExitCode
from assay.execute.machine_lease import MachineLease
from assay.observe.devices import Devices
from assay.observe.environment import load_environment
from assay.plugins import read_child_words
from assay.system.files import require_folder
from assay.values import layout

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_TICK_S = 0.1
_ASK_S = 0.25


def main() -> int:
    run_dir, folder, wait_s, text = read_child_words(
        "bench-trial",
        sys.argv[1:],
        run_dir=require_folder,
        folder=str,
        wait_s=lambda word: None if word == "-" else float(word),
        command=str,
    )
    lease, asked = MachineLease("benchmark") if wait_s is not None else None, time.monotonic()
    while lease is not None and not lease.try_enter():
        if time.monotonic() >= asked + wait_s:
            why = f"this machine was not free within {wait_s:g} s: other benchmarks or checks run here"
            print(f"assay: {why}", file=sys.stderr)
            return int(ExitCode.INTERNAL)
        time.sleep(_ASK_S)
    outlook, began, devices = ForeignLoad(os.cpu_count() or 1), time.monotonic(), Devices()
    outlook.mark()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    gpus = tuple(int(part) for part in visible if part.strip().isdecimal())
    environment = load_environment(folder, (), devices, complain=lambda line: print(line, file=sys.stderr))
    load_accelerators()
    time.sleep(max(0.0, began + BEFORE_S - time.monotonic()))
    env = {**os.environ, **(lease.env if lease else {}), layout.ENV_PYTHON: sys.executable, ENV_SOURCE: SOURCE}
    before = outlook.mark()
    job = subprocess.Popen(["bash", "-c", text], env=env)
    signal.signal(signal.SIGTERM, lambda _number, _frame: None)  # the job gets the signal too: the command decides
    tag = os.environ.get(layout.ENV_ATTEMPT)
    watch = MachineWatch(run_dir, job.pid, tag, environment, devices, gpus, before)
    while True:
        try:
            code = job.wait(_TICK_S)
            break
        except subprocess.TimeoutExpired:
            watch.tick(time.time())
    write_context(run_dir, watch.build_context(load_own_cpu_s(resource.RUSAGE_CHILDREN)))
    return code if code >= 0 else 128 - code
