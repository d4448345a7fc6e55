"""A small git repository whose benchmark says what its commits say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from assay.bench.values.execution import BenchMethod, BenchRequest

COMMAND = BenchMethod("cat figure", "figure", "command")


class Repository:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.git("init", "-q", "-b", "main")
        (folder / ".gitignore").write_text("runs/\n*.py\n")

    def git(self, *arguments: str) -> str:
        words = ["git", "-c", "user.name=somebody", "-c", "user.email=somebody@example.org", *arguments]
        return subprocess.run(words, cwd=self.folder, capture_output=True, text=True, check=True).stdout.strip()

    def commit(self, text: str, subject: str = "a change") -> str:
        (self.folder / "figure").write_text(text)
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", subject)
        return self.git("rev-parse", "HEAD")

    def costs(self, *costs: float) -> list[str]:
        """A commit for each; `cat figure` prints the cost."""
        return [self.commit(f"cost {cost}\n# {n}\n", f"change {n}") for n, cost in enumerate(costs)]


def ask(**fields: object) -> BenchRequest:
    given: dict[str, object] = {
        "trials": 5,
        "foreign_limit": 1.0,
        "root": "runs",
        "patterns": (("cost", r"cost ([\d.]+|nan)"),),
        "python": sys.executable,
        **fields,
    }
    return BenchRequest((COMMAND,), **given)  # type: ignore[arg-type]
