"""The plugin as users run it: in a pytest of its own, on a small training with a golden."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from assay.cli.main import run
from assay.golden import pytest_plugin

LIGHT = ("-pno:schemathesis", "-pno:hypothesispytest")  # the two slowest of the plug-ins that are installed here
# Shell and awk start ten times as fast as Python.
TRAIN = r"""
while [ $# -gt 0 ]; do
  case $1 in --start) start=$2;; --steps) last=$2;; --out) out=$2;; esac
  shift 2
done
awk -v first="$start" -v last="${last:-30}" -v out="$out" -v worse="${WORSE:-1}" 'BEGIN {
  for (step = first + 1; step <= last; step++) {
    printf "step %d loss %.15g\n", step, worse * 10 / step
    if (out && step == 10) { system("mkdir -p " out "; echo 10 > " out "/c10"); print "saved " out "/c10" }
  }
}'
"""

STUDY = r"""
study: little
command: sh train.sh
metrics: {step: 'step (\d+)', loss: 'loss ({number})'}
golden:
  segment: 12
  save: 'saved (\S+)'
  checkpoint: --out
  resume: --from
  start: --start
  length: --steps
  replicas: 2
resources: {gpus: 0}
"""


@pytest.fixture(scope="module")
def gathered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a program, its golden, and a golden with a single recording."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "train.sh").write_text(TRAIN)
    (folder / "golden.yml").write_text(STUDY)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for store, replicas in (("store", "2"), ("single", "1")):
            words = ["golden", "gather", "golden.yml", "-s", store, "-j", "2", "--quiet", "--replicas", replicas]
            assert run(words) == 0
    shutil.rmtree(folder / "runs")
    return folder


def run_pytest(folder: Path, *arguments: str, **env: str) -> tuple[dict[str, str], str]:
    """The outcome of each test, and the output."""
    own = {"ASSAY_SLOTS_DIR": str(folder / ".slots"), "ASSAY_CACHE_DIR": str(folder / ".cache"), "COLUMNS": "250"}
    words = [sys.executable, "-m", "pytest", "-rA", f"--basetemp={folder / 'basetemp'}", *arguments]
    done = subprocess.run(
        words, cwd=folder, env={**os.environ, **own, **env}, capture_output=True, text=True, check=False
    )
    found = re.findall(r"^(PASSED|FAILED|XFAIL|ERROR) \S+?::(\w+)", done.stdout, re.MULTILINE)
    return {name: word for word, name in found}, done.stdout + done.stderr


def mark(name: str, more: str = "", store: str = "store", given: str = "", body: str = "pass") -> str:
    marker = f'@pytest.mark.convergence(config="golden.yml", store="{store}"{more})'
    return f"{marker}\ndef test_{name}({given}):\n    {body}\n\n\n"


WORSE = ', env={"WORSE": "1.1"}'
WRONG = {
    'config="golden.yml"': "golden/little_convergence_harness_manifest.json",  # the store if none is given
    'store="store"': "needs config",
    'store="store", confg="x"': "takes no confg",
    '"golden.yml", "store"': "named arguments only",
    'config="golden.yml", store="store", inconclusive="pass"': "inconclusive must be one of",
    'config="gone.yml", store="store"': "gone.yml",
    'config="golden.yml", store="empty"': "there is no golden recording",
}
HELPER = """
from assay.convergence import do_convergence_test

def test_the_originals_helper(monkeypatch):
    monkeypatch.setenv("WORSE", "1.1")
    do_convergence_test('store', 'convergence_harness_manifest.json', 'golden.yml')
"""
FIXTURE = """
    report = convergence(config="golden.yml", store="store", slots="cpu:2")
    assert report.kind == "PASS"
    assert report.tests[0].verdict.comparisons == 12
"""
OWN_FIXTURE = """
import pytest

@pytest.fixture
def convergence():
    return 3

def test_a_users_fixture(convergence):
    assert convergence == 3
"""
INNER = """
import os
HERE = os.getcwd()

def test_beside(convergence):
    convergence(config='inner.yml', store='inner_store')
    assert os.getcwd() == HERE
"""


@pytest.fixture(scope="module")
def session(gathered: Path) -> tuple[dict[str, str], str]:
    """One run of pytest for all cases; none of them depends on another."""
    small = ', env={"WORSE": "1.001"}, most_checks=1, inconclusive='
    tests = [
        mark("worse", WORSE),
        mark("fixture_not_called", WORSE, given="convergence"),
        mark("called_once", given="convergence", body="convergence()"),
        mark("fails_by_itself", body="assert 1 == 2"),
        mark("better", ', env={"WORSE": "0.9"}'),
        mark("better_allowed", ', env={"WORSE": "0.9"}, allow_changed=True'),
        *(mark(f"inconclusive_{wish}", f'{small}"{wish}"', store="single") for wish in ("fail", "skip", "xfail")),
        *(f"@pytest.mark.convergence({text})\ndef test_wrong_{n}():\n    pass\n" for n, text in enumerate(WRONG)),
        f"def test_fixture(convergence):{FIXTURE}",
        HELPER,
    ]
    (gathered / "test_it.py").write_text("import pytest\n\n" + "\n".join(tests))
    (gathered / "test_own.py").write_text(OWN_FIXTURE)
    inner = gathered / "inner"
    inner.mkdir()
    shutil.copy(gathered / "golden.yml", inner / "inner.yml")
    shutil.copy(gathered / "train.sh", inner / "train.sh")
    shutil.copytree(gathered / "store", inner / "inner_store")
    (inner / "test_inner.py").write_text(INNER)
    # With this plug-in named, and without the others that are installed, pytest starts in half the time.
    return run_pytest(gathered, "-passay.golden.pytest_plugin", PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")


PASSING = ("called_once", "better_allowed", "fixture", "a_users_fixture", "beside")
FAILING = ("worse", "fixture_not_called", "fails_by_itself", "better", "inconclusive_fail", "the_originals_helper")


def test_only_what_is_good_enough_passes(session: tuple[dict[str, str], str]) -> None:
    """A fixture that is not called does not pass in silence; a marker decides about INCONCLUSIVE and CHANGED; a user's
    fixture of the same name is used; paths next to the test's file come first, and the working directory stays."""
    outcomes, text = session
    wrong = [f"wrong_{number}" for number in range(len(WRONG))]
    expected = {f"test_{name}": "PASSED" for name in PASSING} | {
        f"test_{name}": "FAILED" for name in (*FAILING, *wrong)
    }
    expected |= {"test_inconclusive_xfail": "XFAIL"}
    assert {name: word for name, word in outcomes.items() if name in expected} == expected, text
    assert "1 skipped" in text


def test_the_findings_and_wrong_markers_are_readable_also_by_the_originals_helper(
    session: tuple[dict[str, str], str],
) -> None:
    _, text = session
    assert re.search(r"segment +metric .*verdict +effect", text)
    assert "FAIL segment 10 loss: +10%" in text
    assert re.search(r"^FAILED \S+::test_worse - Failed: little: FAIL, loss \+10% from step 11", text, re.MULTILINE)
    assert "CHANGED" in text
    assert "assert 1 == 2" in text, "a function that fails by itself is not hidden"
    assert "Traceback" not in text
    shown = [line for line in text.splitlines() if "pytest_plugin.py" in line]
    assert all(line.startswith("SKIPPED") for line in shown), "pytest names where a test was skipped, and no more"
    page = next(line.split("curves: ")[1] for line in text.splitlines() if "curves: " in line)
    assert "<svg" in Path(page.strip()).read_text()
    assert [words for words in WRONG.values() if words not in text] == []
    assert "During handling" not in text, "printed once"
    assert re.search(r">.*do_convergence_test\('store'", text)
    assert re.search(r"^FAILED \S+helper - .*ConvergenceFailure: little: FAIL, loss", text, re.MULTILINE)
    assert "raise ConvergenceFailure" not in text


def test_a_check_is_made_once_when_the_function_makes_it(gathered: Path, session: object) -> None:
    counts = [len(list(path.glob("check-*"))) for path in gathered.glob(".pytest_cache/d/assay/*/golden-little")]
    assert set(counts) == {1}, session


LEFT_ALONE = """
import sys

def test_left_alone():
    ours = sorted(name for name in sys.modules if name.startswith("assay"))
    parts = ("pytest_plugin", "pytest_support", "pytest_session", "errors", "api", "system", "flags")
    parts += ("values.options", "values.units", "values.pytest_names")
    packages = ("assay", "assay.compat", "assay.compat.torq", "assay.golden", "assay.models", "assay.values")
    packages += ("assay.exchange", "assay.models.values")
    assert all(name in packages or any(f".{part}" in name for part in parts) for name in ours), ours
"""


def test_the_installed_plugin_is_found_also_under_python_O_and_leaves_other_tests_alone(
    gathered: Path, tmp_path: Path
) -> None:
    """Until a check runs, only the plugin and what plug-ins offer it are imported from Assay."""
    shutil.copytree(gathered, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("test_*", ".*", "basetemp"))
    (tmp_path / "test_it.py").write_text(f"{LEFT_ALONE}\n\nimport pytest\n\n{mark('good')}{mark('worse', WORSE)}")
    named = () if list(entry_points(group="pytest11", name="assay-golden")) else ("-passay.golden.pytest_plugin",)
    strict = ("--strict-markers", "-Werror", "-Wignore::pytest.PytestConfigWarning")  # pytest itself warns of python -O
    outcomes, text = run_pytest(tmp_path, *named, *LIGHT, *strict, "-pno:cacheprovider", PYTHONOPTIMIZE="1")
    assert outcomes == {"test_left_alone": "PASSED", "test_good": "PASSED", "test_worse": "FAILED"}, text
    assert not hasattr(pytest_plugin, "pytest_addoption"), "no option is added"
