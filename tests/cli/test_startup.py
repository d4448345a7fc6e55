"""What `assay run` and `assay sum` load: libraries that cost more than they give at every start stay out.

Times are measured by benchmarks/startup.py; what is checked here cannot depend on the machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

STUDY = 'study: two\ncommand: echo "loss {x}"\nparams: {x: [1, 2]}\nmetrics: {loss: "loss ({number})"}\n'
CODE = """
import json, sys
from assay.cli.main import run
sys.argv = ["assay", *sys.argv[1:]]
code = run()
print(json.dumps([code, sorted(sys.modules)]), file=sys.stderr)
"""

# Each with what it costs: milliseconds of CPU beside what is loaded anyway.
NEVER = {
    "click": 25,
    "dataclasses": 14,  # and inspect; assay.system.fast_dataclasses defines them
    "inspect": 12,
    "numpy": 60,
    "jinja2": 30,
    "argparse": 6,
    "asyncio": 40,
    "logging": 5,
    "importlib.metadata": 15,
    "urllib.request": 20,
    "multiprocessing": 6,
    "difflib": 2,
    "_hashlib": 3,
    "ast": 2,
    "tomllib": 4,
    "pathlib": 3,  # and urllib.parse and ipaddress
    "tempfile": 1,
    "textwrap": 1,
    "csv": 1,
    "assay.observe.events": 2,
    "assay.golden": 1,
    "assay.bench": 1,
    "assay.models": 1,
    "assay.compat": 1,
    "assay.farms": 2,
    "assay.search": 2,
    "assay.exchange": 2,
    "assay.web": 2,
}
NOT_TO_READ = {
    "yaml": 15,
    "subprocess": 6,
    "assay.launch.sweep": 20,
    "assay.execute.local": 5,
    "assay.code": 1,
    "shutil": 2,
}
NOT_TO_READ |= {"assay.values.secrets": 3, "assay.record.run_directory": 8}
MOST_OF_OURS = {"run": 110, "sum": 49}  # modules of Assay; more is a decision


def load_modules(folder: Path, *words: str) -> set[str]:
    own = {"ASSAY_SLOTS_DIR": str(folder / "s"), "ASSAY_CACHE_DIR": str(folder / "c"), "HOME": str(folder)}
    argv = [sys.executable, "-c", CODE, *words]
    done = subprocess.run(argv, cwd=folder, env=os.environ | own, capture_output=True, text=True, check=True)
    code, modules = json.loads(done.stderr.splitlines()[-1])
    assert code == 0, done.stderr
    return set(modules)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    (folder / "two.yml").write_text(STUDY + "resources: {gpus: 0}\n")
    load_modules(folder, "run", "two.yml", "-j", "2", "--quiet")
    return folder


@pytest.mark.parametrize("words", ["run two.yml -j 2 --quiet --force", "run two.yml -j 2", "sum two"])
def test_what_a_command_loads(words: str, folder: Path) -> None:
    loaded = load_modules(folder, *words.split())
    command = words.split(maxsplit=1)[0]
    refused = NEVER | (NOT_TO_READ if command == "sum" else {})
    assert {name: cost for name, cost in refused.items() if name in loaded} == {}
    assert len([name for name in loaded if name.startswith("assay")]) <= MOST_OF_OURS[command]


def test_what_is_loaded_is_seen(folder: Path) -> None:
    loaded = load_modules(folder, "run", "two.yml", "-j2", "--quiet")  # click reads joined options
    assert {"click", "yaml", "assay.launch.sweep"} <= loaded
