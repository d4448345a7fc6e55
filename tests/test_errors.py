"""What errors say in a program of the user's own."""

import pytest

from assay.errors import (
    AssayError,
    ConfigError,
    InfrastructureError,
    MissingExtraError,
    MissingPackageError,
    NotFoundError,
    UsageError,
)
from assay.values.study import Position, Problem


def test_a_hint_is_part_of_the_text():
    error = InfrastructureError("it broke", "mend it")
    assert str(error) == error.render() == "it broke\n  mend it"
    assert error.message == "it broke"
    assert str(AssayError("alone")) == "alone"
    assert str(NotFoundError("study", "zz", ["za"])) == "no study named 'zz'\n  known: za"


def test_a_config_error_says_each_hint_once():
    error = ConfigError([Problem("bad", "a", Position("f", 1, 2), "do this"), Problem("worse", "b")])
    assert str(error) == "f:1:2 a: bad\n    do this\nb: worse"


@pytest.mark.parametrize("error", [MissingExtraError("a plot", "plot"), MissingPackageError("saving", "torch")])
def test_a_missing_part_is_an_import_error(error):
    assert isinstance(error, ImportError)
    assert isinstance(error, UsageError)
    assert "pip install" in str(error)
    assert error.exit_code == 2


@pytest.mark.needs(compat=True)
def test_logx_without_torch(monkeypatch, tmp_path):
    from assay import checkpoint

    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(ImportError, match="saving a model needs torch, which is not installed"):
        checkpoint._import_torch("saving a model")
