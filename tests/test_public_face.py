"""The public face: every name that programs may rely on, with its signature. Adding one is a decision.

Whatever is not here is private by convention and may change with any version.
"""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import assay
from assay import api
from assay.plugins import merge

TOP = Path(__file__).parent.parent
PAGES = [TOP / "docs" / "reference" / "python.md", TOP / "docs" / "reference" / "script-api.md"]

SIGNATURES = {
    "log": "(metrics: 'Mapping[str, object] | None' = None, /, *, step: 'object' = None, epoch: 'object' = None,"
    " **values: 'object') -> 'None'",
    "runs": "(study: 'str', root: 'str | None' = None, *, where: 'str | None' = None) -> 'Runs'",
    "load_study": "(file: 'Path | Study', *, root: 'Path | None' = None, study: 'str | None' = None,"
    " titles: 'Sequence[str]' = (), where: 'str | None' = None, sample: 'int | None' = None,"
    " seed: 'int | None' = None, settings: 'Mapping[str, Any] | None' = None,"
    " overrides: 'Mapping[str, Any] | None' = None, **params: 'Any') -> 'StudyPlan'",
    "run": "(file: 'Path | Study', *, root: 'Path | None' = None, study: 'str | None' = None,"
    " slots: 'str | int | None' = None,"
    " jobs: 'int | None' = None, on: 'str | None' = None, titles: 'Sequence[str]' = (),"
    " commands: 'Sequence[str]' = (), where: 'str | None' = None, sample: 'int | None' = None,"
    " seed: 'int | None' = None, retry: 'Sequence[str]' = (), force: 'bool' = False, code: 'str | None' = None,"
    " new_code: 'bool' = False, old_code: 'bool' = False, settings: 'Mapping[str, Any] | None' = None,"
    " overrides: 'Mapping[str, Any] | None' = None, **params: 'Any') -> 'StudyHandle'",
    "check_golden": "(file: 'Path', store: 'Path' = 'golden', *, tests: 'Sequence[str]' = (),"
    " root: 'Path | None' = None, slots: 'str | None' = None, jobs: 'int | None' = None, on: 'str | None' = None,"
    " timeout_s: 'float | None' = None, allow_changed: 'bool' = False) -> 'Judgement'",
    "compare_benchmarks": "(base: 'str', head: 'str', *, method: 'str | None' = None, root: 'Path | None' = None,"
    " metrics: 'Sequence[str]' = (), min_effect: 'float' = 0.05, everything: 'bool' = False) -> 'Judgement'",
    "check_model": "(model: 'Path', *, target: 'str | None' = None, reference: 'str | None' = None,"
    " only: 'Sequence[str]' = (), samples: 'int | None' = None, seed: 'int | None' = None,"
    " tolerances: 'Sequence[str]' = (), root: 'Path | None' = None, timeout_s: 'float | None' = None) -> 'Judgement'",
}

# What each class of the face offers beside these functions.
MEMBERS = {
    "Judgement": "exit_code findings ok text verdict",
    "PlannedRun": "commands dir id left name params",
    "RunOutcome": "checks exit_code messages ok states",
    "Study": "name plan run save",
    "StudyPlan": "dir name runs warnings",
    "StudyHandle": "best dir is_running name root runs stop table wait watch",
    "Run": "attempt best dir id log metrics name params reason seconds state tags note ended_at received",
    "Runs": "pareto root rows series study to_pandas where",
    "Series": "steps times values",
}

# Modules that programs import by name, with what is public there.
MODULES = {
    "assay": "AssayError Study __version__ load_study log run runs",
    "assay.api": "Finding Judgement PlannedRun Run RunOutcome Runs Series Study StudyHandle StudyPlan VerdictKind"
    " load_study run runs",
    "assay.bench": "Benchmark Timing measure report_benchmark synchronize",
    "assay.convergence": "ConvergenceFailure MissingConfigurationOptionException MissingMandatoryFlagException"
    " do_convergence_test",
    "assay.models": "test_onnx_model test_onnx_model_llvmcpu_torq test_torch_module",
    "assay.runs": "Run Runs Series runs",
}
NAMED = {  # modules without a list of their own: what the documents name there
    "assay.errors": "AssayError ConfigError ExitCode FormatError InfrastructureError MissingExtraError"
    " MissingPackageError NotFoundError UsageError",
    "assay.examine": "Examiner latest_log",
    "assay.logx": "logx",
    "assay.checkpoint": "",
    "assay.script": "log",
    "assay.lightning": "",  # AssayLogger loads the library
    "assay.transformers": "",  # AssayCallback as well
    "assay.wandb": "init log define_metric finish login watch save alert log_artifact Artifact Image Table Settings",
    "assay.models.backends.base": "Backend BackendError Made",
    "assay.cli.main": "main",
    "assay.golden.pytest_plugin": "",
    "assay.models.pytest_plugin": "",
    "assay.exchange.pytest_plugin": "",
    "assay.compat.torq.pytest_plugin": "",
}


@pytest.mark.parametrize("name", MODULES)
def test_the_names_of_a_public_module(name: str) -> None:
    module = importlib.import_module(name)
    assert sorted(module.__all__) == sorted(MODULES[name].split())
    for each in module.__all__:
        assert getattr(module, each) is not None


def test_a_documented_import_works() -> None:
    for name, words in NAMED.items():
        module = importlib.import_module(name)
        assert [each for each in words.split() if not hasattr(module, each)] == [], name


@pytest.mark.parametrize("name", SIGNATURES)
def test_a_signature(name: str) -> None:
    function = getattr(importlib.import_module("assay.runs"), name) if name == "runs" else getattr(assay, name)
    assert str(inspect.signature(function)) == SIGNATURES[name]
    assert function.__doc__


def test_every_function_of_the_face_has_its_signature_here() -> None:
    functions = {name for name in assay.__all__ if inspect.isfunction(getattr(assay, name))}
    of_plugins = {name for name in merge("functions") if "." not in name}  # services have names with a dot
    assert functions | {"runs"} | of_plugins == set(SIGNATURES)
    assert {name for name in api.__all__ if inspect.isfunction(getattr(api, name))} <= set(SIGNATURES)


@pytest.mark.parametrize("name", MEMBERS)
def test_the_members_of_a_class(name: str) -> None:
    own = {each for each in dir(getattr(api, name)) if not each.startswith("_")} - set(dir(tuple))
    own |= set(inspect.get_annotations(getattr(api, name)))
    assert own == set(MEMBERS[name].split())


def test_no_name_hides_a_package() -> None:
    parts = {path.stem for path in (TOP / "src" / "assay").iterdir()}
    assert parts & set(assay.__all__) == {"runs"}  # the module is callable


def test_the_face_shows_its_names_and_refuses_others() -> None:
    assert set(assay.__all__) <= set(dir(assay))
    with pytest.raises(AttributeError, match="module 'assay' has no attribute 'lunch'"):
        _ = assay.lunch  # type: ignore[attr-defined]


# ---------------------------------------------------------------- the page


def test_every_name_is_described() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    described = set(re.findall(r"`(?:assay\.|runs\.)?([A-Za-z_]\w*)", text))
    wanted = {*assay.__all__, *api.__all__, *(word for words in MEMBERS.values() for word in words.split())}
    assert wanted - described - {"__version__"} == set()
    assert {name for name in (*MODULES, *NAMED) if name not in text} == set()


PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_examples_run(tmp_path: Path) -> None:
    """In order, in one folder with the study of the page."""
    text = PAGES[0].read_text(encoding="utf-8")
    (study,) = re.findall(r"^```yaml study\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "study.yml").write_text(study)
    code = "\n".join(PYTHON.findall(text))
    env = {"PATH": "/usr/bin:/bin", "ASSAY_SLOTS_DIR": str(tmp_path / "s"), "ASSAY_CACHE_DIR": str(tmp_path / "c")}
    argv = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[:2] == ["lr=0.1,seed=0 ('run',)", "lr=0.1,seed=1 ('run',)"]
    assert "0 4\n" in done.stdout
    assert done.stdout.endswith("lr=0.4,seed=7 done 0.47\n")
