"""pytest's entry point for a convergence check as one test function: the marker and the fixture `convergence`.

    @pytest.mark.convergence(config="golden.yml")
    def test_training_still_converges():
        pass

The check runs when the function has returned. With the fixture the function runs the check itself and gets the report:

    def test_training_still_converges(convergence):
        report = convergence(config="golden.yml")
        assert report.tests[0].saved_steps == 0

Paths are those of the test's file, else of pytest's root folder; a native study's command runs in its own folder. The
store is `golden` unless `store` is given. Only PASS passes. FAIL and ERROR fail. INCONCLUSIVE fails unless
`inconclusive="skip"` or `"xfail"` is given, CHANGED fails unless `allow_changed=True`. Other tests are left alone:
nothing is collected, no option is added, and nothing but the plugin itself is imported until a check runs.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

import pytest

from assay.values.pytest_names import RUNS

if TYPE_CHECKING:
    from pathlib import Path

    from assay.golden.values import GoldenReport

__all__ = ["convergence", "pytest_runtest_call", "pytest_runtest_makereport"]

MARKER = "convergence"
_HELPER = "assay.convergence"
_CHECKED = "_assay_convergence_checked"
_PATHS = ("config", "store")
_OPTIONS = ("manifest_name", "tests", "slots", "most_checks", "early_stop", "timeout_s", "env", "only")
_OURS = ("allow_changed", "inconclusive")
_INCONCLUSIVE = ("fail", "skip", "xfail")


def pytest_configure(config: pytest.Config) -> None:
    options = "config, store='golden', allow_changed=False, inconclusive='fail'"
    config.addinivalue_line("markers", f"{MARKER}({options}): check the training against its golden")


@pytest.hookimpl(trylast=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Check after the test function, if the test has the marker and the function has checked nothing."""
    if item.get_closest_marker(MARKER) is not None and not getattr(item, _CHECKED, False):
        Convergence(item)()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:  # noqa: ARG001
    """Make a failure of `do_convergence_test` begin with what is wrong, and show the test's lines, not Assay's."""
    found = call.excinfo
    if found is None or found.type.__module__ != _HELPER or not hasattr(found.value, "report"):
        return
    from assay.golden.report.rows import describe_headline

    headline, text = describe_headline(found.value.report), str(found.value)
    if not text.startswith(headline):
        found.value.args = (f"{headline}\n{text.lstrip()}",)
    ours = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
    entry, last = found.value.__traceback__, None  # the traceback shall end with the last line that is not Assay's
    while entry is not None:
        if not os.path.abspath(entry.tb_frame.f_code.co_filename).startswith(ours):
            last = entry
        entry = entry.tb_next
    if last is not None:
        last.tb_next = None


@pytest.fixture
def convergence(request: pytest.FixtureRequest) -> Convergence:
    """Return a function that checks; call it with `config`, unless the marker has `config`."""
    return Convergence(request.node)


class Convergence:
    """Runs checks for one test; every verdict that is not good enough ends the test, with its findings."""

    def __init__(self, item: pytest.Item) -> None:
        self._item = item

    def __call__(self, **given: Any) -> GoldenReport:
        setattr(self._item, _CHECKED, True)
        marker = self._item.get_closest_marker(MARKER)
        arguments = _check_arguments({**(marker.kwargs if marker else {}), **given}, marker.args if marker else ())
        folder = _choose_root(self._item)
        setattr(self._item, RUNS, folder)
        report = self._run(arguments, folder)
        _judge(report, arguments, folder)
        return report

    def _run(self, arguments: dict[str, Any], root: str) -> GoldenReport:
        from assay.errors import AssayError
        from assay.golden.commands import store_here
        from assay.golden.flow.each_test import check_file
        from assay.golden.flow.segments import GoldenOptions
        from assay.golden.values import DEFAULT_STORE
        from assay.launch.api import RunHooks
        from assay.values.notify import ignore

        config = self._resolve(arguments["config"])
        address = str(arguments.get("store") or DEFAULT_STORE)
        store_or_address = address if "://" in address else self._resolve(address)
        options = {name: arguments[name] for name in _OPTIONS if arguments.get(name) is not None}
        if isinstance(options.get("slots"), str):
            from assay.values.units import parse_slots

            options["slots"] = parse_slots(options["slots"])
        if isinstance(options.get("only"), str):
            options["only"] = (options["only"],)
        if "env" in options:
            options["env"] = tuple(dict(options["env"]).items())
        try:
            with store_here(store_or_address, ignore) as store, contextlib.chdir(os.path.dirname(config)):
                return check_file(GoldenOptions(config, store or "", root=root, **options), RunHooks(tick_s=0.1))
        except AssayError as error:
            message = error.render()
        # pytest.fail is outside of the handler: pytest would print the error a second time as the cause
        pytest.fail(message, pytrace=False)

    def _resolve(self, path: str | Path) -> str:
        """Return the absolute path, next to the test's file, else under pytest's root folder."""
        near = os.path.join(os.path.dirname(str(self._item.path)), path)
        below = os.path.join(str(self._item.config.rootpath), path)
        return os.path.abspath(near if os.path.exists(near) or not os.path.exists(below) else below)


def _check_arguments(arguments: dict[str, Any], args: tuple[Any, ...]) -> dict[str, Any]:
    known = (*_PATHS, *_OPTIONS, *_OURS)
    unknown = [name for name in arguments if name not in known]
    if args or unknown:
        what = f"takes no {unknown[0]}" if unknown else "takes named arguments only"
        pytest.fail(f"{MARKER} {what}; known: {', '.join(known)}", pytrace=False)
    if not arguments.get("config"):
        pytest.fail(f'{MARKER} needs config, as in @pytest.mark.{MARKER}(config="golden.yml")', pytrace=False)
    if arguments.get("inconclusive", "fail") not in _INCONCLUSIVE:
        pytest.fail(f"inconclusive must be one of {', '.join(_INCONCLUSIVE)}", pytrace=False)
    return arguments


def _choose_root(item: pytest.Item) -> str:
    """Return the folder of this test's runs: in pytest's cache, with only the last runs, or a temporary folder."""
    import hashlib
    import shutil
    import tempfile

    if (cache := getattr(item.config, "cache", None)) is None:
        return tempfile.mkdtemp(prefix="assay-")
    key = hashlib.sha256(item.nodeid.encode("utf-8", "surrogateescape")).hexdigest()[:12]
    folder = os.path.join(str(cache.mkdir("assay")), key)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    return folder


def _judge(report: GoldenReport, arguments: dict[str, Any], folder: str) -> None:
    from assay.errors import ExitCode
    from assay.values.verdict import VerdictKind

    if report.interrupted:
        raise KeyboardInterrupt
    if report.exit_code(bool(arguments.get("allow_changed"))) is ExitCode.OK:
        return
    from assay.golden.report.document import build_document
    from assay.golden.report.rows import describe_headline
    from assay.show.html import render_html
    from assay.show.terminal_report import render_terminal

    path = os.path.join(folder, "report.html")
    document = build_document(report)
    with open(path, "w", encoding="utf-8") as file:
        file.write(render_html(document))
    text = f"{describe_headline(report)}\n{render_terminal(document, width=80)}curves: {path}\nruns: {folder}"
    wish = arguments.get("inconclusive", "fail")
    if report.kind is VerdictKind.INCONCLUSIVE and wish == "skip":
        pytest.skip(text)
    if report.kind is VerdictKind.INCONCLUSIVE and wish == "xfail":
        pytest.xfail(text)
    pytest.fail(text, pytrace=False)
