"""Which functions a query for PostgreSQL calls, by its tokens.

A help against mistakes: a read-only transaction keeps a query from writing to tables, not from acting on the server
by a function. What a user may do is decided by the rights of the role alone.
"""

from __future__ import annotations

import re

_SPACE = re.compile(r"\s+|--[^\n\r]*")
_TOKEN = re.compile(
    r"""(?P<escaped>[uU]&")
    | [eE]'(?:[^'\\]|\\.|'')*'
    | '[^']*'
    | \$(?P<tag>(?:[^\W\d]\w*)?)\$.*?\$(?P=tag)\$
    | "(?P<quoted>(?:[^"]|"")*)"
    | (?P<name>[^\W\d][\w$]*)
    | .""",
    re.VERBOSE | re.DOTALL,
)
# They act on the server, its files or other sessions, or execute a text that is given to them.
_ACTING = re.compile(
    r"pg_(?!typeof$|size_pretty$)\w+|lo_\w+|loread|lowrite|dblink\w*|set_config|brin_\w+|gin_clean\w*|ts_stat|ts_rewrite"
    r"|(query|cursor|table|schema|database)_to_xml\w*|crosstab\w*|connectby|xpath_table",
    re.IGNORECASE,
)


def find_acting(statement: str) -> str | None:
    """The first name of a function that may do more than read, as the query has it; else None.

    `name (…)` is a call, whatever stands between the two, and so is `row.name` of a function with one argument.
    """
    tokens = _split(statement)
    texts = ["", "", *(token.group() for token in tokens), ""]
    for i, token in enumerate(tokens, 2):
        if token["escaped"]:
            return token["escaped"]
        name = token["name"] or token["quoted"] or ""
        is_of_row = texts[i - 1] == "." and texts[i - 2].lower() != "pg_catalog"
        if _ACTING.fullmatch(name) and (texts[i + 1] == "(" or is_of_row):
            return name
    return None


def _split(statement: str) -> list[re.Match[str]]:
    """Without comments, which may hold others."""
    tokens, at = [], 0
    while at < len(statement):
        if space := _SPACE.match(statement, at):
            at = space.end()
        elif statement.startswith("/*", at):
            at = _skip_comment(statement, at)
        elif token := _TOKEN.match(statement, at):
            tokens.append(token)
            at = token.end()
    return tokens


def _skip_comment(statement: str, at: int) -> int:
    depth = 0
    for mark in re.compile(r"/\*|\*/").finditer(statement, at):
        depth += 1 if mark.group() == "/*" else -1
        if depth == 0:
            return mark.end()
    return len(statement)
