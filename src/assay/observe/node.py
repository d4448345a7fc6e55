"""Readings of a run on the host where a farm runs it: `python -m assay child readings WATCHER JOB TAG`.

Started by the watcher of `job.sh` in the run's directory, and gone when that process is. Without arguments it does
nothing: job.sh asks so whether Assay is installed for an interpreter.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress

from assay.observe.devices import Devices
from assay.observe.readings import TreeSampler, render_reading
from assay.system.processes import die_with_parent
from assay.values import layout
from assay.values.series import READING_S


def main() -> int:
    if len(sys.argv) == 1:
        return 0
    watcher, job, tag = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    sampler = TreeSampler(job, tag, ignored=os.getpid())
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    gpus, devices = [int(part) for part in visible if part.strip().isdecimal()], Devices()
    with suppress(OSError):  # an old kernel, a full disk, or a directory that was removed
        die_with_parent(watcher)
        stop = layout.stop_name(int(tag.rpartition(".")[2]))  # once it is there, another attempt may have its place
        while os.getppid() == watcher and not os.path.exists(stop):
            reading = sampler.sample(time.time(), devices.read(gpus) if gpus else None)
            if reading is None:
                break
            with open(layout.READINGS_FILE, "a", encoding="ascii") as file:
                file.write(render_reading(reading))
            time.sleep(READING_S)
    return 0
