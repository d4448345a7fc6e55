"""A run that was repeated shows the values of its last attempt, wherever they were logged."""

import json
import subprocess
import sys
from pathlib import Path

STUDY = f"""
study: s
command: {sys.executable} train.py
code: live
"""
TRAIN = """
import assay
for step in range({count}):
    assay.log(loss={loss}, step=step)
"""


def assay(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "assay", *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_repeated_run_shows_its_last_attempt(tmp_path):
    (tmp_path / "s.yml").write_text(STUDY)
    (tmp_path / "train.py").write_text(TRAIN.format(count=50, loss=0.25))
    assay(tmp_path, "run", "s.yml", "--quiet")
    (tmp_path / "train.py").write_text(TRAIN.format(count=20, loss=0.5))
    assay(tmp_path, "run", "s.yml", "--quiet", "--force")
    (row,) = json.loads(assay(tmp_path, "sum", "s", "--json", "--best"))
    assert (row["loss"], row["loss_best"], row["step"]) == (0.5, 0.5, 19)
    assay(tmp_path, "index", "rebuild")
    (again,) = json.loads(assay(tmp_path, "sum", "s", "--json", "--best"))
    assert again == row
