"""The commands of docs/how-to/exchange-with-other-tools.md work as printed, one after another."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.command_line import Cli
from tests.exchange.commands.test_export import make_run
from tests.exchange.test_importing import CHART, CREATE, TABLE, TRIAL, write_store
from tests.finished_study import Bench
from tests.test_docs import assay_calls

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "exchange-with-other-tools.md"


@pytest.mark.filterwarnings("ignore")
def test_the_page(cli: Cli, own_bench: Bench, mlflow_database: Path) -> None:
    pytest.importorskip("pyarrow")
    make_run(own_bench, "a", {"lr": 0.1}, [{"step": 1, "loss": 0.5}], study="study")
    shutil.copy(mlflow_database, own_bench.folder / "mlflow.db")
    write_store(own_bench.folder / "old")
    own_bench.write("project.csv", TABLE)
    own_bench.write("chart.csv", CHART)
    own_bench.write("journal.log", CREATE + TRIAL)
    calls = assay_calls(PAGE.read_text(encoding="utf-8"))
    assert {" ".join(call[:2]) for call in calls} == {
        *("export csv", "export json", "export parquet", "export mlflow"),
        *("index ingest", "sum project"),
    }
    for call in calls:
        if "http://localhost:5000" in call or any("trackio" in word for word in call):  # neither is here
            continue
        result = cli(*call)
        assert result.code == 0, (call, result.err)
    assert {path.name for path in own_bench.root.iterdir()} == {"study", "my_exp", "project", "s"}
    for name in ("runs.json", "runs.parquet", "series.csv", "series.parquet"):
        assert (own_bench.folder / name).stat().st_size > 0
