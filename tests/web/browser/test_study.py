"""The page of a study says what `assay sum` says: cells, order, counts, filters."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page
from tests.web.browser.conftest import Opener
from tests.web.browser.exhibits import SWEEP, Exhibits

pytestmark = pytest.mark.services("browser")


def read_table(page: Page) -> list[dict[str, str]]:
    """The rows of the table as they stand there, by the names of their columns."""
    return page.locator("#part table").evaluate("""(table) => {
        const names = [...table.tHead.rows[0].cells].map((cell) => cell.innerText.replace(/[↑↓]/g, "").trim());
        return [...table.tBodies[0].rows].map((row) =>
            Object.fromEntries([...row.cells].map((cell, n) => [names[n], cell.innerText.trim()])));
    }""")


def test_the_table_is_that_of_the_command(open_page: Opener, shown: Exhibits) -> None:
    page = open_page(f"/studies/{SWEEP}")
    rows, said = read_table(page), shown.sum(SWEEP)
    assert [row["run"] for row in rows] == [row["run"] for row in said]
