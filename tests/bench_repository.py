"""A small git repository whose benchmark says what its commits say."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from assay.bench.values.execution import BenchMethod, BenchRequest

COMMAND = BenchMethod("cat figure", "figure", "command")
IGNORED = "runs/\n*.py\n"


class Repository:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._count = 0
        self.git("init", "-q", "-b", "main")
        (folder / ".gitignore").write_text(IGNORED)

    def git(self, *arguments: str, given: str | None = None) -> str:
        words = ["git", "-c", "user.name=somebody", "-c", "user.email=somebody@example.org", *arguments]
        done = subprocess.run(words, cwd=self.folder, capture_output=True, text=True, check=True, input=given)
        return done.stdout.strip()

    def commit(self, text: str, subject: str = "a change") -> str:
        return self.commit_all((text, subject))[0]

    def costs(self, *costs: float) -> list[str]:
        """Make a commit for each cost; `cat figure` prints the cost."""
        return self.commit_all(*((f"cost {cost}\n# {n}\n", f"change {n}") for n, cost in enumerate(costs)))

    def commit_all(self, *commits: tuple[str, str]) -> list[str]:
        """A commit for each text of the file `figure` and subject, by one process of git instead of three for each."""
        parts = []
        for text, subject in commits:
            parent = "from refs/heads/main^0\n" if self._count and not parts else ""
            files = "".join(
                f"M 100644 inline {name}\ndata {len(content.encode())}\n{content}\n"
                for name, content in ((".gitignore", IGNORED), ("figure", text))
            )
            head = f"commit refs/heads/main\ncommitter somebody <somebody@example.org> {int(time.time())} +0000\n"
            parts.append(f"{head}data {len(subject.encode())}\n{subject}\n{parent}{files}")
        self.git("fast-import", "--quiet", given="".join(parts))
        self.git("reset", "-q", "--hard", "main")
        self._count += len(commits)
        return self.git("rev-list", "--reverse", f"-{len(commits)}", "main").split()


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
