"""What the site of the documents needs beyond mkdocs: `mkdocs.yml` names this file as its hook.

The pages are written for a code forge and for the tests that execute them. Here a fence that names its file gets the
name as a title, files of the repository that a page links to become part of the site, what code forges take for an
escape in a table is one here too, and the one script that the theme's offline search would fetch from outside is a file
of the site.
"""

from __future__ import annotations

import html
import os
import posixpath
import re
import shutil
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

TOP = Path(__file__).parent.parent
ROOT_PAGES = {
    "README.md": "about.md",
    "CHANGELOG.md": "changes.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "benchmarks/README.md": "measured.md",
}
WORKER = TOP / ".tools" / "docs" / "iframe-worker" / "shim" / "index.js"
WORKER_IN_SITE = "assets/javascripts/iframe-worker-shim.js"

FENCE = re.compile(r"^( *)(```+)(\w+) +([^\s`{=]+)$", re.MULTILINE)
ROW = re.compile(r"^\|.*\\[|<].*$", re.MULTILINE)
CODE_WITH_BARS = re.compile(r"`([^`]*\\\|[^`]*)`")
OUTSIDE = re.compile(r"\]\(((?:\.\./)+)(?!\.\.)([^)\s#]+)")


def on_config(config: Any) -> Any:
    config.extra["polyfills"] = [WORKER_IN_SITE]  # before it the theme has put an address of the network there
    return config


def on_files(files: Files, config: Any) -> Files:
    for name, page in ROOT_PAGES.items():
        files.append(File.generated(config, page, content=(TOP / name).read_text(encoding="utf-8")))
    files.append(File.generated(config, "LICENSE", content=(TOP / "LICENSE").read_bytes()))
    linked = {path for page in Path(config.docs_dir).rglob("*.md") for path in find_linked(page)}
    for path in sorted(linked):
        files.append(File.generated(config, path.as_posix(), content=(TOP / path).read_bytes()))
    return files


def find_linked(page: Path) -> list[Path]:
    """Files of the repository outside of docs/ that the page links to, seen from the top."""
    targets = [(page.parent / (up + rest)).resolve() for up, rest in OUTSIDE.findall(page.read_text(encoding="utf-8"))]
    outside = [target.relative_to(TOP) for target in targets if not target.is_relative_to(TOP / "docs")]
    return [path for path in outside if (TOP / path).is_file() and path.as_posix() not in ROOT_PAGES]


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    markdown = FENCE.sub(r'\1\2\3 title="\4"', markdown.replace("```yaml study\n", "```yaml\n"))  # a kind, not a file
    markdown = ROW.sub(lambda row: render_escapes(row[0]), markdown)
    if page.file.src_uri == "comparison.md":  # its tables need the whole width
        page.meta["hide"] = ["navigation", "toc"]
    folder = posixpath.dirname(page.file.src_uri)
    if page.file.src_uri in ROOT_PAGES.values():  # their links are seen from the top of the repository
        for name, title in ROOT_PAGES.items():
            markdown = markdown.replace(f"]({name}", f"]({title}")
        return re.sub(r'(\]\(|src="|srcset=")docs/', r"\1", markdown)
    return OUTSIDE.sub(lambda match: "](" + _inside(folder, match[1] + match[2]), markdown)


def render_escapes(row: str) -> str:
    r"""The row of a table with `a\|b` in code and `\<` in text, which Markdown for Python would show as they are."""

    def render_code(match: re.Match[str]) -> str:
        return f"<code>{html.escape(match[1].replace(chr(92) + '|', '|')).replace('|', '&#124;')}</code>"

    return CODE_WITH_BARS.sub(render_code, row).replace("\\<", "&lt;")


def _inside(folder: str, target: str) -> str:
    """The link as the site has it: the top of the repository is the top of the site there."""
    path = posixpath.normpath(posixpath.join("docs", folder, target))
    return posixpath.relpath(ROOT_PAGES.get(path, path).removeprefix("docs/"), folder or ".")


def on_post_build(config: Any) -> None:
    target = os.path.join(config.site_dir, WORKER_IN_SITE)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    shutil.copyfile(WORKER, target)
