"""The example of a plug-in: installed, used and removed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "plug-in"
STUDY = "study: two\ncommand: echo {x}\nparams: {x: [1, 2]}\nresources: {gpus: 0}\n"
KERAS = "epoch,loss,val_loss\n0,1.5,1.25\n1,0.5,0.75\n"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder that pip has installed the distribution into."""
    top = tmp_path_factory.mktemp("plug-in")
    shutil.copytree(EXAMPLE, top / "source")
    argv = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    subprocess.run([*argv, "--target", top / "site", top / "source"], check=True, capture_output=True)
    (top / "two.yml").write_text(STUDY)
    (top / "history.csv").write_text(KERAS)
    yield top
    shutil.rmtree(top / "site", ignore_errors=True)


def call(top: Path, *words: str) -> subprocess.CompletedProcess[str]:
    own = {
        "ASSAY_SLOTS_DIR": str(top / "slots"),
        "ASSAY_CACHE_DIR": str(top / "cache"),
        "PYTHONPATH": str(top / "site"),
    }
    return subprocess.run(
        [sys.executable, *words], cwd=top, env=os.environ | own, capture_output=True, text=True, check=False
    )


def assay(top: Path, *words: str) -> str:
    done = call(top, "-m", "assay", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_example_is_short() -> None:
    files = [path for path in EXAMPLE.rglob("*") if path.suffix in (".py", ".toml", ".html")]
    assert sum(len(path.read_text().splitlines()) for path in files) <= 150


def test_the_plug_in_from_installation_to_removal(site: Path) -> None:
    assert "longest" in assay(site, "--help")
    assert "Plug-in quiet" in assay(site, "doctor")
    assay(site, "run", "two.yml", "--on", "quiet", "--set", "farms.quiet={kind: quiet, load: 1000}")
    lines = assay(site, "longest", "two", "-n", "1").splitlines()
    assert len(lines) == 1
    assert lines[0].split()[-1] in ("x=1", "x=2")
    assay(site, "index", "ingest", "history.csv")
    assert "0.5" in assay(site, "sum", "keras")
    code = (
        "from starlette.testclient import TestClient; from assay.web.app import build_app; from assay.web.site import Site\n"
        "with TestClient(build_app(Site(('runs',))), base_url='http://127.0.0.1:8666') as page:\n"
        "    print(page.get('/longest/two').text)"
    )
    page = call(site, "-c", code).stdout
    assert "Longest runs of two" in page
    assert "/studies/two/runs/x%3D1" in page
    shutil.rmtree(site / "site")
    gone = call(site, "-m", "assay", "longest", "two")
    assert gone.returncode == 2
    assert "there is no command 'longest'" in gone.stderr
    assert "x=1" in assay(site, "ls", "two")
