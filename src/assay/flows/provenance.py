"""Where a golden comes from: the commit, the packages, the machine, the seeds and the command."""

from __future__ import annotations

import re
import time
from typing import Any

from assay.flows.segments import Scene
from assay.flows.supervise import Entry
from assay.judge.drift import build_rule_facts
from assay.record import rundir

_SEED = re.compile(r"(?:^|\s)-{0,2}([\w.-]*seed[\w.-]*)[= ](\S+)", re.IGNORECASE)


def build_provenance(scene: Scene, entry: Entry) -> dict[str, object]:
    """Where a golden comes from: enough to tell why a later one differs."""
    environment = _load_environment(entry.dir)
    git = environment.get("git") or {}
    text = entry.spec.commands[0].text
    return {
        "gathered_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": git.get("commit"),
        "branch": git.get("branch"),
        "dirty": git.get("dirty"),
        "packages": environment.get("job_packages") or environment.get("packages") or {},
        "python": environment.get("python"),
        "host": environment.get("host"),
        "os": environment.get("os"),
        "hardware": {
            "cpu": environment.get("cpu"),
            "cpu_count": environment.get("cpu_count"),
            "gpus": environment.get("gpus"),
            "driver": environment.get("driver"),
        },
        "fingerprint": environment.get("fingerprint"),
        "seeds": {name.lstrip("-"): value for name, value in _SEED.findall(text)},
        "config": scene.options.file,
        "config_hash": scene.config_hash,
        "rules": build_rule_facts(scene.test.rules),
        "variants": {variant.name: variant.title for variant in scene.test.variants},
        "command": text,
        "run": entry.dir,
    }


def _load_environment(run_dir: str) -> dict[str, Any]:
    return rundir.load_environment(run_dir) or {}
