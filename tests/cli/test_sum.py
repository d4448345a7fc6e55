"""`assay sum --tensorboard`; the tables themselves are tested with the flow."""

from __future__ import annotations

import pytest
from tests.flows.workbench import GOOD, Bench


def test_a_study_for_tensorboard(cli, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRC32C_SW_MODE", "auto")  # tensorboardX sets it on import
    result = cli("sum", "fit", "--tensorboard", "board")
    assert (result.code, result.out) == (0, "4 runs written; look at them: tensorboard --logdir board\n")
    assert list((bench.folder / "board" / GOOD).iterdir())
