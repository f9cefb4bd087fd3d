"""Named queries: SQL lives in `sql/<noun>.sql` of a package and is typed as literal text."""

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import LiteralString, cast

NAME = re.compile(r"^-- name: ([a-z][a-z0-9_]*)[ \t]*$", re.MULTILINE)


class BadQueryFileError(Exception):
    """A file of named queries is not in the form the loader reads."""


@cache
def load(package: str, noun: str) -> Mapping[str, LiteralString]:
    """Return the queries of `sql/<noun>.sql` in `package`, by name.

    Each is a line `-- name: open_waitpoints`, a comment line with its purpose, then the statement
    with `%(name)s` parameters. Raises BadQueryFileError for a name used twice, a missing purpose or
    an empty statement.
    """
    text = (files(package) / "sql" / f"{noun}.sql").read_text(encoding="utf-8")
    pieces = NAME.split(text)
    found: dict[str, LiteralString] = {}
    for name, body in zip(pieces[1::2], pieces[2::2], strict=True):
        if name in found:
            raise BadQueryFileError(f"expected one query {name} in {noun}.sql, found two")
        # The repository's own files are the one place where statements come from text.
        found[name] = cast(LiteralString, statement(noun, name, body))
    return MappingProxyType(found)


def statement(noun: str, name: str, body: str) -> str:
    """Return `body` without its purpose line and the final semicolon."""
    purpose, _, sql = body.strip().partition("\n")
    if not purpose.startswith("-- "):
        raise BadQueryFileError(f"expected a purpose comment after {name} in {noun}.sql")
    if not sql.strip():
        raise BadQueryFileError(f"expected a statement for {name} in {noun}.sql, found none")
    return sql.strip().removesuffix(";")
