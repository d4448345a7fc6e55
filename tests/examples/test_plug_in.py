"""The example of a plug-in: installed, used and removed. `docs/how-to/write-a-plug-in.md` lets pip install a smaller one."""

from __future__ import annotations

import shutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.web_client import open_client

from assay import plugins
from assay.cli.main import run
from assay.record.importers.registry import find_importers

EXAMPLE = Path(__file__).parents[2] / "examples" / "plug-in"
STUDY = "study: two\ncommand: echo {x}\nparams: {x: [1, 2]}\nresources: {gpus: 0}\n"
KERAS = "epoch,loss,val_loss\n0,1.5,1.25\n1,0.5,0.75\n"


def forget_plugins() -> None:
    for cached in (plugins._load_plugins, plugins.find_dialects, find_importers):
        cached.cache_clear()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path, as pip leaves it."""
    site = tmp_path / "site"
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    shutil.copytree(EXAMPLE / "src", site)
    info = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    named = "".join(f"{key} = {value}\n" for key, value in project["entry-points"]["assay.plugins"].items())
    (info / "entry_points.txt").write_text(f"[assay.plugins]\n{named}")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("assay.cli.doctor._get_output", lambda _words: "9.9")
    forget_plugins()
    yield site
    forget_plugins()
    for name in [name for name in sys.modules if name.partition(".")[0] == "assay_quiet"]:
        del sys.modules[name]


def test_the_example_is_short() -> None:
    files = [path for path in EXAMPLE.rglob("*") if path.suffix in (".py", ".toml", ".html")]
    assert sum(len(path.read_text().splitlines()) for path in files) <= 150


@pytest.mark.needs(exchange=True, farms=True)
def test_the_plug_in_from_installation_to_removal(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def assay(*words: str, code: int = 0) -> str:
        capsys.readouterr()
        assert run(words) == code
        printed = capsys.readouterr()
        return printed.err if code else printed.out

    Path("two.yml").write_text(STUDY)
    Path("history.csv").write_text(KERAS)
    assert "longest" in assay("--help")
    assert "Plug-in quiet" in assay("doctor")
    assay("run", "two.yml", "--on", "quiet", "--set", "farms.quiet={kind: quiet, load: 1000}")
    (line,) = assay("longest", "two", "-n", "1").splitlines()
    assert line.split()[-1] in ("x=1", "x=2")
    assay("index", "ingest", "history.csv")
    assert "0.5" in assay("sum", "keras")
    with open_client(Path("runs")) as page:
        text = page.get("/longest/two").text
    assert "Longest runs of two" in text
    assert "/studies/two/runs/x%3D1" in text
    shutil.rmtree(site)
    forget_plugins()
    assert "there is no command 'longest'" in assay("longest", "two", code=2)
    assert "x=1" in assay("ls", "two")
