"""The reference page of the command line has the options that the commands declare."""

from __future__ import annotations

from tests.reference_page import COMMAND, PAGES, render_meaning, render_names, render_options, render_page

from assay.values.options import option


def test_the_tables_are_those_of_the_declarations() -> None:
    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    assert sum(text.count("<!-- options: ") for text in texts) > 30
    assert [render_page(text) for text in texts] == texts, f"write the pages again: {COMMAND}"


def test_a_change_of_a_table_is_seen() -> None:
    (page,) = [page for page in PAGES if page.stem == "commands-run"]
    text = page.read_text(encoding="utf-8").replace("| `--force` |", "| `--forse` |")
    assert render_page(text) != text


def test_rows() -> None:
    declared = option("-s", "--sort", metavar="NAME[:min|max]", multiple=True, help="Sort by a metric.")
    assert render_names(declared) == "`-s`, `--sort NAME[:min\\|max]`"
    assert render_meaning(declared) == "Sort by a metric. Repeatable."
    assert render_meaning(option("--n", type=int, default=3, help="How many.")) == "How many. Default: 3."
    assert render_meaning(option("--n", help="How many.  [default: all]")) == "How many. Default: all."
    assert render_names(option("--code", choices=("a", "b"), help="")) == "`--code a\\|b`"


def test_a_group_has_one_row_for_an_option_that_commands_share() -> None:
    rows = [row for row in render_options("golden") if "`--manifest-name NAME`" in row]
    assert [row.split(" | ")[1] for row in rows] == [
        "gather, check, explain, validate, import, show, rebase, selftest, blame, bisect"
    ]
    assert any(row.startswith("| `--good COMMIT` | bisect |") for row in render_options("golden"))
