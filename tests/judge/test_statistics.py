from __future__ import annotations

import sys

import pytest

from assay.errors import MissingExtraError
from assay.judge.statistics import load_numpy, normal_quantile, t_quantile


@pytest.mark.parametrize(
    ("freedom", "tail", "value"),
    [(4, 0.01, 3.7469), (4, 0.001, 7.1732), (9, 0.005, 3.2498), (1, 0.01, 31.8205), (4, 1e-6, 41.5779)],
)
def test_quantiles_of_student_s_t(freedom, tail, value):
    assert t_quantile(freedom, tail) == pytest.approx(value, rel=1e-4)


def test_quantiles_of_the_normal_distribution():
    assert normal_quantile(0.025) == pytest.approx(1.959964, rel=1e-6)
    assert t_quantile(10**9, 0.01) == pytest.approx(normal_quantile(0.01), rel=1e-6)


@pytest.mark.parametrize(("module", "call"), [("numpy", load_numpy), ("scipy.special", lambda: t_quantile(4, 0.01))])
def test_without_the_libraries_it_says_what_to_install(monkeypatch, module, call):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError) as caught:
        call()
    assert "pip install 'assay[stats]'" in caught.value.render()
