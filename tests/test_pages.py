"""Pages of the documentation that are run as they are printed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest
from tests.pages import Step, matches, parse_steps, run_page

import assay

HOW_TO = Path(__file__).parent.parent / "docs" / "how-to"


def test_a_page_whose_output_has_changed_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```text note.txt\nabc\n```\n\n```console\n$ cat note.txt\nabc\n$ false  # exits with 1\n```\n")
    run_page(page, tmp_path)
    page.write_text("```console\n$ cat note.txt\nabd\n```\n")
    with pytest.raises(AssertionError, match="abd"):
        run_page(page, tmp_path)
    page.write_text("```console\n$ false\n```\n")
    with pytest.raises(AssertionError, match="ended with 1"):
        run_page(page, tmp_path)


def test_a_page_may_leave_out_parts_of_lines_and_lines() -> None:
    assert matches(("a … c", "…", "end"), "a b c\nx\ny\nend\n")
    assert not matches(("a … c",), "a b c\nx\n")
    assert parse_steps("$ a \\\n> b\nout\n$ c  # exits with 2\n") == [Step("a \\\nb", ("out",)), Step("c", (), 2)]


def test_scripts_of_other_tools(tmp_path: Path) -> None:
    run_page(HOW_TO / "use-with-wandb-lightning-transformers.md", tmp_path)


def test_a_study_of_a_notebook(tmp_path: Path) -> None:
    run_page(HOW_TO / "use-in-a-notebook.md", tmp_path)


def test_overrides_and_reruns(tmp_path: Path) -> None:
    run_page(HOW_TO / "override-and-rerun.md", tmp_path)


def test_choosing_runs(tmp_path: Path) -> None:
    """The page's commands, and the table of expressions with the runs that each chooses."""
    page = HOW_TO.parent / "reference" / "where.md"
    run_page(page, tmp_path)
    table = page.read_text(encoding="utf-8").partition("| expression |")[2].partition("\n\n")[0]
    rows = [[re.findall(r"`([^`]+)`", cell) for cell in row.strip("|").split(" | ")] for row in table.splitlines()[2:]]
    assert len(rows) > 10
    for (expression,), names in rows:
        found = assay.runs(str(tmp_path / "runs" / "line"), where=expression)
        assert sorted(run.name for run in found) == sorted(names), expression


@pytest.mark.services("kills")
def test_from_twelve_runs_to_the_best_one(tmp_path: Path) -> None:
    run_page(HOW_TO / "search-and-stop.md", tmp_path)


@pytest.mark.services("postgres")
def test_one_index_for_a_team(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.postgres import PASSWORD, run_postgres

    with run_postgres() as server:
        monkeypatch.setenv("ASSAY_INDEX", server.address())
        run_page(HOW_TO / "share-an-index.md", tmp_path)
        shown = subprocess.run(
            [sys.executable, "-m", "assay", "index", "status"], cwd=tmp_path, capture_output=True, check=True
        )
        stored = server.sql("SELECT query FROM pg_stat_activity")
    kept = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    for secret in (PASSWORD.encode(), quote(PASSWORD, safe="").encode()):
        assert secret not in b"".join([*kept, shown.stdout, shown.stderr, repr(stored).encode()])


def test_the_sweep_of_the_readme(tmp_path: Path) -> None:
    text = (HOW_TO.parent.parent / "README.md").read_text(encoding="utf-8")
    sections = "".join(text.partition("## A first study")[2].partition("## Does it still converge?")[0])
    page = tmp_path / "page.md"
    text = sections.replace("```yaml study\n", "```yaml study.yml\n").replace("\n...\n", "\n…\n").replace("80ms", "…")
    for end in ("  0:00", "  time", "────"):  # a busy machine has a column more
        text = text.replace(f"{end}\n", f"{end.replace('0:00', '')}…\n")
    page.write_text(text, encoding="utf-8")
    run_page(page, tmp_path)


def test_runs_are_shared(tmp_path: Path) -> None:
    run_page(HOW_TO / "share-runs.md", tmp_path)
