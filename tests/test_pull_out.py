"""Each plug-in can be taken out: without its folder everything else imports and works.

A package of links without the folder and the modules that users import from it is first in the path; what is
installed still names the plug-in, as it does after a folder was removed by hand. One process imports everything of it
and executes all commands, so that a command costs what it does and not what Python costs to start.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import entry_points
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.command_line import Result
from tests.fork_server import call_python
from tests.test_architecture import OWNERS, load_sources

import assay

SOURCE = Path(assay.__file__).parent
PROJECT = Path(__file__).parent.parent


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
    Case("mcp", ("wait", "help", "mcp")),
    Case(
        "bench",
        ("bench", "perfzero"),
        calls=(("golden history two.yml", "assay golden history needs a plug-in that is not installed"),),
    ),
    Case("models", ("model",)),
    Case("web", ("open", "serve", "report")),
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
        ("export", "push", "pull", "upload", "adopt", "perfzero"),
        calls=(
            ("run two.yml --notify none", "No such option '--notify'"),
            ("sum two --tensorboard board", "--tensorboard needs a plug-in that is not installed"),
            ("golden show s3://bucket/golden", "the store s3://bucket/golden needs a plug-in that is not installed"),
            ("index ingest two.yml --as mlflow", "no importer of runs named 'mlflow'"),
            ("model cache push --to there", "there is no command 'push'"),
            (
                "ASSAY_INDEX=postgresql://host/team sum two",
                "an index on a server needs a plug-in that is not installed",
            ),
        ),
    ),
    Case("start", ("demo", "init", "completion")),
    Case("plots", ("plot", "open", "serve", "report")),
    Case("gate", ("try", "tries")),
    Case(
        "trace",
        ("trace",),
        "command: echo {x}\nparams: {x: [1]}\ntrace: {steps: [1]}\n",
        "uses.yml:3:1 trace: ",
        (("golden explain two.yml", "assay golden explain needs a plug-in that is not installed"),),
    ),
    Case(
        "compat",
        ("runx", "sumx", "mlrunner", "convergence", "perfzero"),
        "CMD: echo\nHPARAMS: {x: [1]}\n",
        "uses.yml:1:1 CMD: needs a plug-in that is not installed: none offers dialects",
        (("index ingest two.yml --as runx", "no importer of runs named 'runx'"),),
    ),
]
PLUGINS = {case.plugin for case in CASES}
NEEDED_BY = {  # plug-ins that go with it, since they need it
    "golden": ("compat/harness", "convergence.py", "trace/explain.py"),
    "bench": ("compat/perfzero",),
    "models": ("compat/torq",),
    "exchange": ("compat/perfzero", "compat/torq", "models/sharing"),
    "plots": ("compat/perfzero", "web"),
}
WITHOUT_PAGE = ("web", "plots")
STUDY = 'study: two\ncommand: echo "loss {x}"\nparams: {x: [1, 2]}\nmetrics: {loss: "loss ({number})"}\n'
WORKING = ("run two.yml -j 2", "sum two", "ls", "ls two", "show two/x=1", "logs two/x=1")
REPORTS = ("report two -o -", "report two.yml -o -")

# Called with the folder of the package and a file: the modules to import and the calls. A call is the words of a
# command, perhaps after a variable, or a program; the answers are written to the same file.
DRIVER = r"""
import importlib, json, os, shlex, sys, tempfile, unittest.mock
top, file = sys.argv[1:]
for name in [name for name in sys.modules if name == "assay" or name.startswith("assay.")]:
    del sys.modules[name]
sys.path.insert(0, top)
importlib.invalidate_caches()
with open(file) as stream:
    asked = json.load(stream)
failed = []
for name in asked["modules"]:
    try:
        importlib.import_module(name)
    except Exception as error:
        failed.append(f"{name}: {type(error).__name__}: {error}")

def execute(call):
    if "\n" in call:
        return exec(call, {}) or 0
    words = shlex.split(call)
    name, is_set, value = words[0].partition("=")
    with unittest.mock.patch.dict(os.environ, {name: value} if is_set else {}):
        return run(words[1:] if is_set else words)

def answer(call):
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        before = os.dup(1), os.dup(2)
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        try:
            code = execute(call)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os.dup2(before[0], 1)
            os.dup2(before[1], 2)
        out.seek(0)
        err.seek(0)
        return [code, out.read(), err.read()]

from assay.cli.main import run
from assay import __file__ as used
from assay.cli import doctor
doctor._get_output = lambda words: "9.9"  # other programs take longer to print their versions than all calls
with open(file, "w") as stream:
    json.dump({"package": used, "failed": failed, "answers": {call: answer(call) for call in asked["calls"]}}, stream)
"""


class Answers(NamedTuple):
    failed: list[str]  # imports
    of: Mapping[str, Result]  # calls


def build_tree(case: Case, top: Path) -> Path:
    """A folder with the package, without the plug-in."""
    gone = {case.plugin, *(f"{module}.py" for module, owner in OWNERS.items() if owner == case.plugin)}
    (top / "assay").mkdir(parents=True)
    for path in SOURCE.iterdir():
        if path.name not in gone:
            (top / "assay" / path.name).symlink_to(path)
    (top / "work").mkdir()
    (top / "work" / "two.yml").write_text(STUDY)
    (top / "work" / "uses.yml").write_text(case.file)
    return top


def ask(tree: Path, calls: Sequence[str], modules: Sequence[str] = (), package: Path | None = None) -> Answers:
    """Without the plug-in, but for another package."""
    own = {"ASSAY_SLOTS_DIR": str(tree / "slots"), "ASSAY_CACHE_DIR": str(tree / "cache")}
    driver, asked, top = tree / "driver.py", tree / "asked.json", package or tree
    driver.write_text(DRIVER)
    asked.write_text(json.dumps({"modules": modules, "calls": calls}))
    done = call_python([str(driver), str(top), str(asked)], cwd=tree / "work", env=os.environ | own)
    assert done.returncode == 0, done.stderr
    found = json.loads(asked.read_text())
    assert Path(found["package"]).parent.parent == top
    return Answers(found["failed"], {call: Result(*answer) for call, answer in found["answers"].items()})


@functools.cache
def load_package() -> dict[str, str]:
    return load_sources(SOURCE.parent)


def list_modules(gone: str) -> Iterator[str]:
    """Those that must import: not those of plug-ins that need the one that is gone."""
    away = (gone, *(module for module, owner in OWNERS.items() if owner == gone), *NEEDED_BY.get(gone, ()))
    for name in load_package():
        path = name.replace(".", "/").removeprefix("assay/")
        if any(path == each.removesuffix(".py") or path.startswith(f"{each}/") for each in away):
            continue
        if gone in WITHOUT_PAGE and name.endswith(".web_pages"):
            continue
        if name.startswith("assay") and not name.endswith("__main__"):
            yield name


@pytest.mark.parametrize("gone", [case.plugin for case in CASES])
def test_no_other_module_names_a_module_of_it(gone: str) -> None:
    """Strings that registries load, as well."""
    named = re.compile(rf"""["']assay\.{gone}\.[^"']*""")
    found = [f"{name}: {each}" for name in list_modules(gone) for each in named.findall(load_package()[name])]
    assert found == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.plugin)
def test_everything_else_imports_and_works_without_it(case: Case, tmp_path: Path) -> None:
    tree, names = build_tree(case, tmp_path / "tree"), list(list_modules(case.plugin))
    assert len(names) > 300
    calls = [*WORKING, "--help", "doctor", *case.commands, *(words for words, _ in case.calls)]
    calls += ["run uses.yml"] if case.file else []
    calls += [*REPORTS, PAGE] if case.plugin not in WITHOUT_PAGE else []
    answers = ask(tree, calls, names)
    assert answers.failed == []
    check_commands(case, answers)
    for words, printed in case.calls:
        done = answers.of[words]
        assert (done.code, printed in done.err) == (2, True), f"{words}: {done.err}"
    if case.file:
        code, _, printed = answers.of["run uses.yml"]
        first = printed.splitlines()[0]
        assert (code, first.startswith("uses.yml:"), case.refusal in first) == (2, True, True), printed
        assert not (tree / "work" / "runs" / "uses").exists()
    if case.plugin not in WITHOUT_PAGE:
        check_page(case, answers)
    if case.plugin == "compat":
        check_studies_of_other_tools(tree)


def check_commands(case: Case, answers: Answers) -> None:
    shown = answers.of["--help"]
    assert shown.code == 0, shown.err
    listed = {line.split()[0] for line in shown.out.partition("Start:")[2].splitlines() if line.startswith("  ")}
    assert listed.isdisjoint(case.commands)
    assert {"run", "sum", "doctor"} <= listed
    for words in (*WORKING, "doctor"):
        done = answers.of[words]
        assert (done.code, "Traceback" in done.err) == (0, False), f"{words}: {done.err}"
    assert f"assay.{case.plugin}.plugin" in answers.of["doctor"].out.replace("\n", "")
    for word in case.commands:
        assert answers.of[word].code == 2
        assert f"there is no command {word!r}" in answers.of[word].err


def check_studies_of_other_tools(tree: Path) -> None:
    """They are read as far as their directories are."""
    work = tree / "work"
    (work / "sweep.yml").write_text("CMD: echo\nHPARAMS: {x: [1]}\n")
    (work / "params.yaml").write_text("template: {train: 'echo {x}'}\nresource: [0]\n---\nx: [1]\n")
    made = ask(tree, ["run sweep.yml -j 1"], package=SOURCE.parent).of["run sweep.yml -j 1"]
    assert made.code == 0, made.err
    (name,) = (path.name for path in (work / "runs" / "sweep").iterdir() if path.name != ".assay")
    (work / "runs" / "theirs" / "a").mkdir(parents=True)
    (work / "runs" / "theirs" / "a" / "hparams.json").write_text('{"x": 1}')
    read = ("ls sweep", "sum sweep", f"show sweep/{name}", f"rerun sweep/{name}", "sum theirs", "ls theirs")
    refusals = {
        f"rerun sweep/{name} x=2": "no installed plug-in reads files of runx",
        "run params.yaml": "params.yaml:1:1 template: needs a plug-in that is not installed: none offers dialects",
    }
    answers = ask(tree, [*read, *refusals])
    for words in read:
        done = answers.of[words]
        assert (done.code, "Traceback" in done.err) == (0, False), f"{words}: {done.err}"
    for words, printed in refusals.items():
        done = answers.of[words]
        assert (done.code, printed in done.err.splitlines()[0]) == (2, True), f"{words}: {done.err}"


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


def check_page(case: Case, answers: Answers) -> None:
    """The page of `assay serve`, and reports."""
    done = answers.of[PAGE]
    codes = dict(line.split() for line in done.out.splitlines())
    assert set(codes.values()) == {"200"}, done.out + done.err
    others = {path for plugin, path in SUBJECTS.items() if plugin != case.plugin}
    assert {"/studies", "/profiles", *others} <= set(codes)
    assert SUBJECTS.get(case.plugin) not in codes
    done, named = (answers.of[words] for words in REPORTS)
    assert done.code == 0, done.err
    assert "<title>two</title>" in done.out
    assert named.code == 2  # of a file: golden knows which are verdicts
    assert "two.yml is " in named.err.splitlines()[0]


# ---------------------------------------------------------------- the tests of all others


def find_concerned(tests: Path, case: Case) -> set[str]:
    """Test modules that are about the plug-in: they import it, also through helpers, or are in its folder."""
    gone = [f"assay.{case.plugin}", *(f"assay.{name}" for name, owner in OWNERS.items() if owner == case.plugin)]
    gone += [f"assay.{each.removesuffix('.py').replace('/', '.')}" for each in NEEDED_BY.get(case.plugin, ())]
    texts = {f"tests.{name}": text for name, text in load_sources(tests).items() if not name.startswith("formats.")}
    imported = re.compile("|".join(map(re.escape, gone)))
    found = {name for name, text in texts.items() if imported.search(text)}
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


# Loaded by pytest. With FOUND it writes which tests there are and what their marks name, with CHOSEN only those are executed.
CHOICE = r"""
import json, os

def pytest_collection_finish(session):
    if "FOUND" in os.environ:
        needs = {item.nodeid: [name for mark in item.iter_markers("needs") for name in mark.kwargs] for item in session.items}
        with open(os.environ["FOUND"], "w") as stream:
            json.dump(needs, stream)

def pytest_collection_modifyitems(items):
    if "CHOSEN" in os.environ:
        with open(os.environ["CHOSEN"]) as stream:
            chosen = set(json.load(stream))
        items[:] = [item for item in items if item.nodeid in chosen]
        missing = chosen - {item.nodeid for item in items}
        assert not missing, f"cannot be collected: {sorted(missing)}"
"""
SHORT = "not services and not long"


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_each_test_passes_with_the_plug_ins_that_it_needs_alone(tmp_path: Path) -> None:
    """Stricter than to take out one after another, and each test is executed once. With `-s` one sees how far it is."""
    (tmp_path / "choice.py").write_text(CHOICE)
    groups = group_tests(tmp_path)
    assert sum(map(len, groups.values())) > 10_000
    with ThreadPoolExecutor(3) as pool:  # the largest first
        sessions = sorted(groups.items(), key=lambda group: -len(group[1]))
        failed = [text for text in pool.map(lambda group: run_alone(tmp_path, *group), sessions) if text]
    assert failed == [], "\n".join(failed)


def group_tests(top: Path) -> dict[frozenset[str], list[str]]:
    """By what they need: their modules import it, or their marks name it."""
    env = os.environ | {"FOUND": str(top / "found.json"), "PYTHONPATH": str(top)}
    argv = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "choice", "-m", SHORT]
    subprocess.run(argv, cwd=PROJECT, env=env, check=True, stdout=subprocess.DEVNULL)
    concerned = {case.plugin: find_concerned(PROJECT / "tests", case) for case in CASES}
    groups: dict[frozenset[str], list[str]] = {}
    for test, marks in json.loads((top / "found.json").read_text()).items():
        module = test.partition(".py::")[0].replace("/", ".")
        if module in ABOUT_THE_WHOLE:
            continue
        needed = {plugin for plugin, modules in concerned.items() if module in modules} | set(marks)
        needed |= {plugin for plugin, parts in NEEDED_BY.items() if needed & set(parts)}
        groups.setdefault(frozenset(needed), []).append(test)
    return groups


def run_alone(top: Path, needed: frozenset[str], tests: Sequence[str]) -> str:
    """What pytest printed, where it failed."""
    name = "-".join(sorted(needed)) or "core"
    folder = Path(tempfile.mkdtemp(dir=top))  # a short path, as others' are
    copy, chosen = folder / "project", folder / "chosen.json"
    copy_project(copy, needed)
    chosen.write_text(json.dumps(tests))
    pytests = {each.name: each.value.split(".")[1] for each in entry_points(group="pytest11") if "assay" in each.value}
    options = " ".join(f"-p no:{each}" for each, plugin in pytests.items() if plugin in PLUGINS - needed)
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(copy / "src"), str(top)]),
        "PYTEST_ADDOPTS": options,  # of a pytest that a test starts, too
        "CHOSEN": str(chosen),
    }
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "choice", "-p", "no:cacheprovider", "-m", SHORT]
    argv += [f"--basetemp={folder / 'tmp'}"]  # several clean up at once
    argv += sorted({test.partition("::")[0] for test in tests})
    done = subprocess.run(argv, cwd=copy, env=env, check=False, capture_output=True, text=True)
    print(f"{name}: {done.stdout.rstrip().rpartition(chr(10))[2]}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    return f"--- with {name} alone:\n{done.stdout}{done.stderr}" if done.returncode else ""


def copy_project(copy: Path, needed: frozenset[str]) -> None:
    """Copies: a link's target would lead tests to the whole."""
    for name in ("tests", "examples", "docs", "benchmarks"):
        shutil.copytree(PROJECT / name, copy / name, ignore=shutil.ignore_patterns("runs"))
    for pattern in ("*.toml", "*.md", "*.yml", "Makefile", "hatch_build.py", "constraints.txt"):
        for path in PROJECT.glob(pattern):
            shutil.copy(path, copy)
    gone = PLUGINS - needed
    modules = {f"{module}.py" for module, owner in OWNERS.items() if owner in gone}
    away = {SOURCE: gone | modules, SOURCE / "web": {"vendor"}}
    shutil.copytree(SOURCE, copy / "src" / "assay", ignore=lambda folder, _: away.get(Path(folder), set()))


_WHOLE = "architecture budget contributing docs frozen pages plugins project public_face pull_out"
_WHOLE += " release site wording"
ABOUT_THE_WHOLE = {f"tests.test_{name}" for name in _WHOLE.split()}  # the distribution as it is installed
