"""How often `assay gate` alarms where nothing has changed: real gates of a small project whose HEAD differs from main
by a comment. Each gate checks a training with new noise, and measures a program's CPU time on both commits.

    python benchmarks/gate.py --gates 200
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path

from measuring import render_share

FILES = {
    "train.py": """
import random
noise, weight = random.Random(), 4.0
for step in range(1, 101):
    weight -= 0.1 * (weight + noise.gauss(0, 0.004))
    print(f"step {step} loss {weight * weight + 0.5:.6f}")
""",
    "golden.yml": r"""
study: train
command: python train.py
metrics: {step: 'step (\d+)', loss: 'loss ({number})'}
golden: {segment: 100}
""",
    "work.py": "total = sum(number * number for number in range(300_000))\n",
    "assay.toml": """
[gate]
checks = [
    "golden check golden.yml",
    "bench compare --git main..HEAD --command 'work=python work.py' --only cpu_time --trials 5 --most-trials 10",
]
""",
    ".gitignore": "runs/\n",
}


def call(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    return subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, check=False)


def build_project(folder: Path) -> None:
    for name, text in FILES.items():
        (folder / name).write_text(text)
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    call(folder, "assay", "golden", "gather", "golden.yml", "-q")
    call(folder, "git", "init", "-q", "-b", "main")
    call(folder, "git", "add", "-A")
    call(folder, "git", *identity, "commit", "-q", "-m", "base")
    call(folder, "git", "checkout", "-q", "-b", "change")
    (folder / "work.py").write_text(FILES["work.py"] + "# a comment\n")
    call(folder, "git", *identity, "commit", "-q", "-a", "-m", "a comment")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gates", type=int, default=200)
    gates = parser.parse_args().gates
    counts: Counter[str] = Counter()
    checks: Counter[tuple[str, str]] = Counter()
    with tempfile.TemporaryDirectory(prefix="gate-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as name:
        folder = Path(name)
        build_project(folder)
        with suppress(KeyboardInterrupt):  # what is there by then counts
            for number in range(gates):
                done = call(folder, "assay", "gate", "--fresh", "--json", "-q", "--root", f"runs/{number}")
                facts = json.loads(done.stdout)
                counts[facts["verdict"]] += 1
                checks.update((" ".join(each["check"].split()[:2]), each["verdict"]) for each in facts["checks"])
                print(f"{number + 1} of {gates}: {dict(counts)}", file=sys.stderr, flush=True)
    gates = counts.total()
    for (check, verdict), count in sorted(checks.items()):
        print(f"{check}: {count} of {gates} {verdict}")
    alarms = counts["FAIL"] + counts["CHANGED"] + counts["ERROR"]
    print(f"A/A gates: {gates}, load {os.getloadavg()[0]:.1f}; {dict(counts)}")
    print(render_share("gates that alarm (FAIL, CHANGED, ERROR); at most 2% wanted", alarms, gates))


if __name__ == "__main__":
    main()
