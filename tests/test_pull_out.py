"""Each plug-in can be taken out: without its folder everything else imports and works.

A copy of the package without the folder and the modules that users import from it is used by PYTHONPATH; what is
installed still names the plug-in, as it does after a folder was removed by hand.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.test_architecture import OWNERS, load_sources

import assay

SOURCE = Path(assay.__file__).parent


class Case(NamedTuple):
    plugin: str
    commands: tuple[str, ...]  # that are gone with it
    file: str = ""  # of a study that uses what is gone
    refusal: str = ""  # what `assay run` of that file prints first
    calls: tuple[tuple[str, str], ...] = ()  # a call that uses what is gone, and what it prints


CASES = [
    Case(
        "farms",
        (),
        "command: echo {x}\nparams: {x: [1]}\non: slurm\n",
        ":3:5 on: no installed plug-in submits runs to farms",
    ),
    Case("golden", ("golden", "convergence")),
    Case("bench", ("bench", "perfzero")),
    Case("models", ("model",)),
    Case("web", ("serve", "report")),
    Case(
        "search",
        ("importance",),
        "command: echo {x}\nparams: {x: {uniform: [0, 1]}}\nsearch: {metric: loss, trials: 3}\n",
        "uses.yml:3:1 search: needs a plug-in that is not installed",
        (
            ("run two.yml --search new", "No such option '--search'"),
            ("run two.yml --set stop.rule=asha", "stop: needs a plug-in that is not installed"),
            ("plot two --importance", "importance needs a plug-in that is not installed"),
        ),
    ),
    Case(
        "exchange",
        ("export", "push", "pull", "upload", "perfzero"),
        calls=(
            ("run two.yml --notify none", "No such option '--notify'"),
            ("sum two --tensorboard board", "--tensorboard needs a plug-in that is not installed"),
            ("golden show s3://bucket/golden", "the store s3://bucket/golden needs a plug-in that is not installed"),
            ("index ingest two.yml --as mlflow", "no importer of runs named 'mlflow'"),
            ("model cache push --to there", "there is no command 'push'"),
        ),
    ),
    Case(
        "compat",
        ("runx", "sumx", "mlrunner", "convergence", "perfzero"),
        "CMD: echo\nHPARAMS: {x: [1]}\n",
        "uses.yml:1:1 CMD: needs a plug-in that is not installed: none offers dialects",
        (("index ingest two.yml --as runx", "no importer of runs named 'runx'"),),
    ),
]
NEEDED_BY = {  # plug-ins that go with it, since they need it
    "golden": ("compat/harness", "convergence.py"),
    "bench": ("compat/perfzero",),
    "models": ("compat/torq",),
    "exchange": ("compat/perfzero", "compat/torq", "models/sharing"),
}
STUDY = 'study: two\ncommand: echo "loss {x}"\nparams: {x: [1, 2]}\nmetrics: {loss: "loss ({number})"}\n'
IMPORT_ALL = """
import importlib, sys
failed = []
for name in sys.stdin.read().split():
    try:
        importlib.import_module(name)
    except Exception as error:
        failed.append(f"{name}: {type(error).__name__}: {error}")
print("\\n".join(failed))
"""


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.plugin)
def case(request: pytest.FixtureRequest) -> Case:
    found: Case = request.param
    return found


@pytest.fixture(scope="module")
def tree(case: Case, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of the package, without the plug-in."""
    top = tmp_path_factory.mktemp(case.plugin)
    shutil.copytree(SOURCE, top / "assay", ignore=shutil.ignore_patterns("vendor"))  # with what is compiled already
    shutil.rmtree(top / "assay" / case.plugin)
    for module, owner in OWNERS.items():
        if owner == case.plugin:
            (top / "assay" / f"{module}.py").unlink()
    (top / "work").mkdir()
    (top / "work" / "two.yml").write_text(STUDY)
    done = call(top, "-m", "assay", "run", "two.yml", "-j", "2")
    assert done.returncode == 0, done.stderr
    return top


def call(
    tree: Path, *words: str, given: str | None = None, package: Path | None = None
) -> subprocess.CompletedProcess[str]:
    own = {
        "PYTHONPATH": str(package or tree),
        "ASSAY_SLOTS_DIR": str(tree / "slots"),
        "ASSAY_CACHE_DIR": str(tree / "cache"),
    }
    argv = [sys.executable, *words]
    return subprocess.run(
        argv, cwd=tree / "work", env=os.environ | own, input=given, capture_output=True, text=True, check=False
    )


def list_modules(tree: Path, gone: str) -> Iterator[str]:
    """Those of the copy that must import: not those of plug-ins that need the one that is gone."""
    away = NEEDED_BY.get(gone, ())
    for name in load_sources(tree):
        path = name.replace(".", "/").removeprefix("assay/")
        if any(path == each.removesuffix(".py") or path.startswith(f"{each}/") for each in away):
            continue
        if gone == "web" and name.endswith(".web_pages"):
            continue
        if name.startswith("assay") and not name.endswith("__main__"):
            yield name


def test_every_other_module_imports(case: Case, tree: Path) -> None:
    names = list(list_modules(tree, case.plugin))
    assert len(names) > 300
    done = call(tree, "-c", IMPORT_ALL, given="\n".join(names))
    assert done.stdout.strip() == "", done.stdout + done.stderr
    assert done.returncode == 0, done.stderr


def test_no_other_module_names_a_module_of_it(case: Case, tree: Path) -> None:
    """Strings that registries load, as well."""
    named = re.compile(rf"""["']assay\.{case.plugin}\.[^"']*""")
    others = set(list_modules(tree, case.plugin))
    found = [
        f"{name}: {each}" for name, text in load_sources(tree).items() if name in others for each in named.findall(text)
    ]
    assert found == []


def test_commands_work_without_it(case: Case, tree: Path) -> None:
    shown = call(tree, "-m", "assay", "--help")
    assert shown.returncode == 0, shown.stderr
    listed = {line.split()[0] for line in shown.stdout.partition("Commands:")[2].splitlines() if line.strip()}
    assert listed.isdisjoint(case.commands)
    assert {"run", "sum", "doctor"} <= listed
    for words in ("run two.yml -j 2", "sum two", "ls", "ls two", "show two/x=1", "logs two/x=1"):
        done = call(tree, "-m", "assay", *words.split())
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), f"{words}: {done.stderr}"
    examined = call(tree, "-m", "assay", "doctor")
    assert examined.returncode == 0, examined.stderr
    assert f"assay.{case.plugin}.plugin" in examined.stdout.replace("\n", "")


@pytest.mark.parametrize("case", [each for each in CASES if each.commands], indirect=True, ids=lambda case: case.plugin)
def test_a_command_of_it_is_refused_in_one_line(case: Case, tree: Path) -> None:
    for word in case.commands:
        done = call(tree, "-m", "assay", word)
        assert done.returncode == 2
        assert f"there is no command {word!r}" in done.stderr


@pytest.mark.parametrize("case", [each for each in CASES if each.file], indirect=True, ids=lambda case: case.plugin)
def test_a_file_that_uses_it_is_refused_in_one_line(case: Case, tree: Path) -> None:
    (tree / "work" / "uses.yml").write_text(case.file)
    done = call(tree, "-m", "assay", "run", "uses.yml")
    assert done.returncode == 2
    assert done.stderr.splitlines()[0].startswith("uses.yml:")
    assert case.refusal in done.stderr.splitlines()[0]
    assert not (tree / "work" / "runs" / "uses").exists()


@pytest.mark.parametrize("case", [each for each in CASES if each.calls], indirect=True, ids=lambda case: case.plugin)
def test_a_call_that_uses_it_is_refused(case: Case, tree: Path) -> None:
    for words, printed in case.calls:
        done = call(tree, "-m", "assay", *words.split())
        assert (done.returncode, printed in done.stderr) == (2, True), f"{words}: {done.stderr}"


@pytest.mark.parametrize("case", [each for each in CASES if each.plugin == "compat"], indirect=True, ids=["compat"])
def test_studies_of_other_tools_are_read_as_far_as_their_directories_are(case: Case, tree: Path) -> None:
    work = tree / "work"
    (work / "sweep.yml").write_text("CMD: echo\nHPARAMS: {x: [1]}\n")
    (work / "params.yaml").write_text("template: {train: 'echo {x}'}\nresource: [0]\n---\nx: [1]\n")
    made = call(tree, "-m", "assay", "run", "sweep.yml", "-j", "1", package=SOURCE.parent)
    assert made.returncode == 0, made.stderr
    (name,) = (path.name for path in (work / "runs" / "sweep").iterdir() if path.name != ".assay")
    (work / "runs" / "theirs" / "a").mkdir(parents=True)
    (work / "runs" / "theirs" / "a" / "hparams.json").write_text('{"x": 1}')
    for words in ("ls sweep", "sum sweep", f"show sweep/{name}", f"rerun sweep/{name}", "sum theirs", "ls theirs"):
        done = call(tree, "-m", "assay", *words.split())
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), f"{words}: {done.stderr}"
    refusals = {
        f"rerun sweep/{name} x=2": "no installed plug-in reads files of runx",
        "run params.yaml": "params.yaml:1:1 template: needs a plug-in that is not installed: none offers dialects",
    }
    for words, printed in refusals.items():
        done = call(tree, "-m", "assay", *words.split())
        assert (done.returncode, printed in done.stderr.splitlines()[0]) == (2, True), f"{words}: {done.stderr}"


PAGE = """
import re
from starlette.testclient import TestClient
from assay.web.app import build_app
from assay.web.site import Site
with TestClient(build_app(Site(("runs",))), base_url="http://127.0.0.1:8666") as page:
    links = re.findall('href="(/[^"]*)"', page.get("/studies").text)  # the navigation is among them
    for path in ("/", "/studies/two", "/studies/two/best", "/studies/two/runs/x=1", "/alarms", "/api/openapi.json", *links):
        print(path, page.get(path).status_code)
"""
SUBJECTS = {"golden": "/goldens", "bench": "/benchmarks", "models": "/models"}


@pytest.mark.parametrize(
    "case", [each for each in CASES if each.plugin != "web"], indirect=True, ids=lambda case: case.plugin
)
def test_the_page_works_without_it(case: Case, tree: Path) -> None:
    assert call(tree, "-m", "assay", "run", "two.yml").returncode == 0
    done = call(tree, "-c", PAGE)
    answers = dict(line.split() for line in done.stdout.splitlines())
    assert set(answers.values()) == {"200"}, done.stdout + done.stderr
    others = {path for plugin, path in SUBJECTS.items() if plugin != case.plugin}
    assert {"/studies", "/traces", *others} <= set(answers)
    assert SUBJECTS.get(case.plugin) not in answers


@pytest.mark.parametrize(
    "case", [each for each in CASES if each.plugin != "web"], indirect=True, ids=lambda case: case.plugin
)
def test_a_report_works_without_it(case: Case, tree: Path) -> None:
    assert call(tree, "-m", "assay", "run", "two.yml").returncode == 0
    done = call(tree, "-m", "assay", "report", "two", "-o", "-")
    assert done.returncode == 0, done.stderr
    assert "<title>two</title>" in done.stdout
    named = call(tree, "-m", "assay", "report", "two.yml", "-o", "-")  # a file: golden knows which are verdicts
    assert named.returncode == 2
    assert "two.yml is " in named.stderr.splitlines()[0]


# ---------------------------------------------------------------- the tests of all others


def find_concerned(tests: Path, case: Case) -> set[str]:
    """Test modules that are about the plug-in: they import it, also through helpers, or call its commands."""
    gone = [f"assay.{case.plugin}", *(f"assay.{name}" for name, owner in OWNERS.items() if owner == case.plugin)]
    gone += [f"assay.{each.removesuffix('.py').replace('/', '.')}" for each in NEEDED_BY.get(case.plugin, ())]
    texts = {f"tests.{name}": text for name, text in load_sources(tests).items() if not name.startswith("formats.")}
    words = re.compile("|".join([*map(re.escape, gone), *(rf"""["'( ]{word}["' ,)]""" for word in case.commands)]))
    found = {name for name, text in texts.items() if words.search(text)}
    found |= {name for name in texts if name.startswith(f"tests.{case.plugin}.")}
    while True:
        ways = [
            rf"{re.escape(each)}|from {re.escape(each[: each.rfind('.')])} import .*\b{each[each.rfind('.') + 1 :]}"
            for each in found
        ]
        named = re.compile(rf"\b({'|'.join(ways)})\b")
        folders = tuple(
            each.removesuffix("conftest") for each in found - {"tests.conftest"} if each.endswith(".conftest")
        )
        more = {name for name, text in texts.items() if named.search(text) or name.startswith(folders)}
        if more <= found:
            return found
        found |= more


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_the_tests_of_all_others_pass(case: Case, tree: Path) -> None:
    top = Path(__file__).parent.parent
    for name in ("tests", "examples", "docs", "benchmarks"):
        shutil.copytree(top / name, tree / name, ignore=shutil.ignore_patterns("__pycache__", "runs"))
    (tree / "src").mkdir()
    (tree / "assay").rename(tree / "src" / "assay")
    (tree / "assay").symlink_to("src/assay")
    for path in (
        *top.glob("*.toml"),
        *top.glob("*.md"),
        top / "Makefile",
        top / "hatch_build.py",
        top / "constraints.txt",
    ):
        shutil.copy(path, tree)
    left_out = sorted(find_concerned(tree / "tests", case) | ABOUT_THE_WHOLE)
    paths = [
        f"{name.replace('.', '/')}.py".removesuffix("/conftest.py") for name in left_out if name != "tests.conftest"
    ]
    ignored = [f"--ignore={path}" for path in paths]
    gone = [each.name for each in entry_points(group="pytest11") if each.value.startswith(f"assay.{case.plugin}.")]
    chosen = f"not services and not long and not needs({case.plugin}=True)"
    argv = ["-m", "pytest", "-q", "-n", "2", "-m", chosen, "-p", "no:cacheprovider", *ignored]
    argv += [word for name in gone for word in ("-p", f"no:{name}")]
    env = os.environ | {"PYTHONPATH": str(tree / "src")}
    done = subprocess.run([sys.executable, *argv], cwd=tree, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:]


ABOUT_THE_WHOLE = {  # tests about the distribution as it is installed
    f"tests.test_{name}"
    for name in [
        "architecture",
        "budget",
        "build",
        "contributing",
        "docs",
        "docs_examples",
        "frozen",
        "pages",
        "plugins",
        "project",
        "public_face",
        "pull_out",
        "reference_page",
        "wording",
    ]
}
