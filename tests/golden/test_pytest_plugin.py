"""The plugin as users run it: in a pytest of its own, on a little training with a golden."""

from __future__ import annotations

import os
import shutil
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from tests.fork_server import call_assay, call_python

pytest_plugins = ["pytester"]

TRAIN = r"""
import os, sys
def flag(name, default):
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default
start = int(flag("--start", 0)); last = int(flag("--steps", 30)); folder = flag("--out", None)
worse = float(os.environ.get("WORSE", "1"))
for step in range(start + 1, last + 1):
    print(f"step {step} loss {worse * 10 / step!r}", flush=True)
    if folder and step == 10:
        os.makedirs(folder, exist_ok=True)
        open(os.path.join(folder, "c10"), "w").write("10")
        print("saved " + os.path.join(folder, "c10"), flush=True)
"""

STUDY = rf"""
study: little
command: {sys.executable} train.py
metrics: {{step: 'step (\d+)', loss: 'loss ({{number}})'}}
golden:
  segment: 12
  save: 'saved (\S+)'
  checkpoint: --out
  resume: --from
  start: --start
  length: --steps
  replicas: 2
resources: {{gpus: 0}}
"""

MARKED = """
import pytest

@pytest.mark.convergence(config="golden.yml", store="store")
def test_training_still_converges():
    pass
"""


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """Named: without the other plugins that are installed here a pytest starts in half the time."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    return (
        "-p",
        "assay.golden.pytest_plugin",
        "-p",
        "assay.models.pytest_plugin",
        "-p",
        "assay.exchange.pytest_plugin",
    )


@pytest.fixture
def installed() -> tuple[str, ...]:
    """Installed, pytest finds it by itself; before that it is named."""
    return () if list(entry_points(group="pytest11", name="assay-golden")) else ("-p", "assay.golden.pytest_plugin")


@pytest.fixture(scope="module")
def gathered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a program, its golden, and one of a single recording."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "train.py").write_text(TRAIN)
    (folder / "golden.yml").write_text(STUDY)
    for store, replicas in (("store", "2"), ("single", "1")):
        arguments = ["golden", "gather", "golden.yml", "-s", store, "-j", "2", "--quiet", "--replicas", replicas]
        done = call_assay(arguments, cwd=folder, env=os.environ, timeout=240)
        assert done.returncode == 0, done.stdout + done.stderr
    shutil.rmtree(folder / "runs")
    return folder


@pytest.fixture
def project(gathered: Path, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ASSAY_SLOTS_DIR", str(pytester.path / ".slots"))
    monkeypatch.setenv("ASSAY_CACHE_DIR", str(pytester.path / ".cache"))
    shutil.copytree(gathered, pytester.path, dirs_exist_ok=True)
    return pytester.path


def run_pytest(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    """As `pytester.runpytest_subprocess`."""
    basetemp = f"--basetemp={pytester.path / 'basetemp'}"
    done = call_python(["-m", "pytest", basetemp, *arguments], cwd=pytester.path, timeout=240)
    return pytest.RunResult(done.returncode, done.stdout.splitlines(), done.stderr.splitlines(), 0.0)


def test_a_marked_function_is_a_whole_check(pytester, project, installed):
    pytester.makepyfile(MARKED)
    result = pytester.runpytest_subprocess(*installed, "--strict-markers")
    result.assert_outcomes(passed=1)


def test_a_worse_training_fails_and_the_findings_are_readable(pytester, project, plugin, monkeypatch):
    monkeypatch.setenv("WORSE", "1.1")
    monkeypatch.setenv("COLUMNS", "250")
    pytester.makepyfile(MARKED)
    result = run_pytest(pytester, *plugin)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*segment*metric*verdict*effect*", "*FAIL segment 10 loss: +10%*", "*curves: *report.html"]
    )
    result.stdout.fnmatch_lines(["FAILED *Failed: little: FAIL, loss +10% from step 11*"])
    assert "Traceback" not in result.stdout.str()
    assert "pytest_plugin.py" not in result.stdout.str()
    page = next(line.split("curves: ")[1] for line in result.outlines if "curves: " in line)
    assert "<svg" in Path(page.strip()).read_text()


def test_the_check_fails_under_python_O_as_well(pytester, project, plugin, monkeypatch):
    monkeypatch.setenv("WORSE", "1.1")
    monkeypatch.setenv("PYTHONOPTIMIZE", "1")
    pytester.makepyfile(MARKED)
    run_pytest(pytester, *plugin).assert_outcomes(failed=1)


def test_the_fixture_gives_the_report(pytester, project, plugin):
    pytester.makepyfile(
        """
        def test_it(convergence):
            report = convergence(config="golden.yml", store="store", slots="cpu:2")
            assert report.kind == "PASS"
            assert report.tests[0].verdict.comparisons == 12
        """
    )
    run_pytest(pytester, *plugin).assert_outcomes(passed=1)


def test_a_fixture_that_is_not_called_does_not_pass_in_silence(pytester, project, plugin, monkeypatch):
    monkeypatch.setenv("WORSE", "1.1")
    pytester.makepyfile(MARKED.replace("converges()", "converges(convergence)"))
    run_pytest(pytester, *plugin).assert_outcomes(failed=1)


def test_a_check_is_made_once_when_the_function_makes_it(pytester, project, plugin):
    pytester.makepyfile(MARKED.replace("converges()", "converges(convergence)").replace("pass", "convergence()"))
    result = run_pytest(pytester, *plugin)
    result.assert_outcomes(passed=1)
    runs = list(pytester.path.glob(".pytest_cache/d/assay/*/golden-little/check-*"))
    assert len(runs) == 1


def test_a_function_that_fails_by_itself_is_not_hidden(pytester, plugin):
    pytester.makepyfile(MARKED.replace("pass", "assert 1 == 2"))
    result = run_pytest(pytester, *plugin)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*assert 1 == 2*"])


def test_a_better_training_fails_unless_it_is_allowed(pytester, project, plugin, monkeypatch):
    monkeypatch.setenv("WORSE", "0.9")
    pytester.makepyfile(
        MARKED + MARKED.replace("def test_", "def test_2_").replace('store"', 'store", allow_changed=True')
    )
    result = run_pytest(pytester, *plugin)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*CHANGED*"])


def test_an_inconclusive_check_does_what_the_marker_says(pytester, project, plugin, monkeypatch):
    """A golden of one recording cannot tell a small difference from noise."""
    monkeypatch.setenv("WORSE", "1.001")
    mark = '@pytest.mark.convergence(config="golden.yml", store="single", most_checks=1, inconclusive="{0}")'
    tests = [f"{mark.format(wish)}\ndef test_{wish}():\n    pass\n" for wish in ("fail", "skip", "xfail")]
    pytester.makepyfile("import pytest\n" + "\n".join(tests))
    run_pytest(pytester, *plugin).assert_outcomes(failed=1, skipped=1, xfailed=1)


WRONG = {
    'config="golden.yml"': "needs store",
    'store="store", confg="x"': "takes no confg",
    '"golden.yml", "store"': "named arguments only",
    'config="golden.yml", store="store", inconclusive="pass"': "inconclusive must be one of",
    'config="gone.yml", store="store"': "gone.yml",
    'config="golden.yml", store="empty"': "there is no golden recording",
}


def test_a_wrong_marker_fails_and_says_so(pytester, project, plugin):
    tests = [f"@pytest.mark.convergence({mark})\ndef test_{n}():\n    pass\n" for n, mark in enumerate(WRONG)]
    pytester.makepyfile("import pytest\n" + "\n".join(tests))
    result = run_pytest(pytester, *plugin)
    result.assert_outcomes(failed=len(WRONG))
    assert [words for words in WRONG.values() if words not in result.stdout.str()] == []
    assert "During handling" not in result.stdout.str(), "said once"


def test_a_failure_of_the_originals_helper_says_what_is_wrong_and_shows_the_test(
    pytester, project, plugin, monkeypatch
):
    monkeypatch.setenv("WORSE", "1.1")
    monkeypatch.setenv("COLUMNS", "250")
    pytester.makepyfile(
        "from assay.convergence import do_convergence_test\n"
        "def test_it():\n"
        "    do_convergence_test('store', 'convergence_harness_manifest.json', 'golden.yml')\n"
    )
    result = run_pytest(pytester, *plugin)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*>*do_convergence_test('store'*",
            "*FAIL segment 10 loss: +10%*",
            "FAILED *ConvergenceFailure: little: FAIL, loss*",
        ]
    )
    assert "raise ConvergenceFailure" not in result.stdout.str()


def test_paths_beside_the_test_file_come_first_and_the_working_directory_stays(pytester, project, plugin):
    inner = pytester.mkdir("inner")
    for name in ("golden.yml", "train.py", "store"):
        (project / name).rename(inner / name)
    (inner / "test_it.py").write_text(
        "import os\nHERE = os.getcwd()\ndef test_it(convergence):\n"
        "    convergence(config='golden.yml', store='store')\n    assert os.getcwd() == HERE\n"
    )
    run_pytest(pytester, *plugin).assert_outcomes(passed=1)


def test_it_works_without_the_cache(pytester, project, plugin):
    pytester.makepyfile(MARKED)
    run_pytest(pytester, *plugin, "-p", "no:cacheprovider").assert_outcomes(passed=1)


def test_other_tests_are_left_alone(pytester, installed):
    """Nothing is collected; of ours only the plugin and what the products offer it are imported."""
    pytester.makepyfile(
        """
        import sys
        def test_it():
            ours = sorted(name for name in sys.modules if name.startswith("assay"))
            parts = ("pytest_plugin", "pytest_support", "pytest_session", "errors", "api", "system", "flags")
            parts += ("values.options", "values.units", "values.pytest_names")
            packages = ("assay", "assay.compat", "assay.compat.torq", "assay.golden", "assay.models", "assay.values")
            packages += ("assay.exchange", "assay.models.values")
            assert all(name in packages or any(f".{part}" in name for part in parts) for name in ours), ours
        """
    )
    result = pytester.runpytest_subprocess(*installed, "--strict-markers", "-W", "error")
    result.assert_outcomes(passed=1)
    assert not (pytester.path / ".pytest_cache" / "d").exists()
    with_us = pytester.runpytest_subprocess(*installed, "--help").stdout.str()
    assert "convergence" not in with_us.replace("@pytest.mark.convergence", "")


def test_a_fixture_of_the_user_with_the_same_name_wins(pytester, plugin):
    pytester.makepyfile(
        "import pytest\n@pytest.fixture\ndef convergence():\n    return 3\ndef test_it(convergence):\n    assert convergence == 3\n"
    )
    run_pytest(pytester, *plugin).assert_outcomes(passed=1)
