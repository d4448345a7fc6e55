"""Options: both spellings, and what comes of them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from assay.models.pytest_support.options import ModelOptions, ModelTestPlan, add_options, read_options

SEED = (
    "--recompute-cache", "--debug-cache", "--debug-ir", "--torq-compile-time-profiling-output-dir",
    "--torq-runtime-profiling-output-dir", "--torq-runtime-hw-type", "--torq-addr", "--torq-port",
    "--torq-private-key", "--torq-chips", "--extra-torq-compiler-options", "--extra-torq-runtime-options",
    "--llvmcpu-compiler-options", "--llvmcpu-runtime-options", "--torq-compiler-timeout", "--torq-runtime-timeout",
    "--try-xfails", "--issue",
)  # fmt: skip


def configure(*arguments: str, taken: tuple[str, ...] = ()) -> SimpleNamespace:
    """As pytest's own parser leaves it."""
    parser = pytest.Parser(_ispytest=True)
    for name in taken:
        parser.addoption(name)
    add_options(parser)
    found = parser.parse_known_args(list(arguments))
    cache = SimpleNamespace(mkdir=lambda name: f"/cache/{name}")
    here = SimpleNamespace(dir="/here")
    return SimpleNamespace(option=found, invocation_params=here, cache=cache, stash=pytest.Stash())


def parse(*arguments: str, taken: tuple[str, ...] = ()) -> ModelOptions:
    return read_options(configure(*arguments, taken=taken))


def test_all_spellings_of_the_guide_are_known():
    names = [name for option in ModelOptions.OPTIONS.values() for name in option.names]
    assert set(SEED) <= set(names)
    assert len(names) == len(set(names)), "no name is given twice"
    assert parse() == ModelOptions()


@pytest.mark.parametrize(
    ("arguments", "key", "value"),
    [
        (("--torq-runtime-profiling-output-dir=p",), "run_profile_dir", "/here/p"),
        (("--run-profile", "/abs/p"), "run_profile_dir", "/abs/p"),
        (("--debug-ir", "ir"), "ir_dir", "/here/ir"),
        (("--torq-port", "2222"), "port", 2222),
        (
            ("--extra-torq-compiler-options", "--a 'b c'", "--extra-compiler-options=-d"),
            "compile_flags",
            ("--a", "b c", "-d"),
        ),
        (("--assay-target", "a", "--assay-target=b"), "targets", ("a", "b")),
        (("--model-folder", "m"), "folders", ("/here/m",)),
        (("--torq-compiler-timeout", "1.5"), "compile_s", 1.5),
        (("--recompute-cache",), "recompute", True),
    ],
)
def test_values(arguments, key, value):
    assert getattr(parse(*arguments), key) == value


def test_a_dump_without_a_folder_goes_to_the_cache():
    assert ModelTestPlan(configure("--debug-ir")).ir_dir == "/cache/assay-models/ir"
    assert ModelTestPlan(configure("--debug-ir=x")).ir_dir == "/here/x"
    assert ModelTestPlan(configure()).ir_dir is None


def test_a_name_that_is_taken_is_left_to_its_owner():
    assert parse("--samples", "3", taken=("--samples",)).samples is None
    assert parse("--torq-chips", "x", "--chips", "y", taken=("--torq-chips",)).chips == "y"


@pytest.mark.parametrize(
    "option", ["--run-timeout=soon", "--torq-compiler-timeout=-1", "--board-port=0", "--samples=x"]
)
def test_values_that_make_no_sense(option, capsys):
    with pytest.raises((SystemExit, pytest.UsageError)):
        parse(option)
