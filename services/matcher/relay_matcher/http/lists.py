"""Lists: `{"items": […], "next_cursor": …}`, spliced from items that are JSON already."""

from collections.abc import Sequence

import orjson
from fastapi import Request
from relay_common.combiner import Answer
from relay_common.cursors import Cursors
from relay_common.errors import Json
from relay_common.tokens import Caller

from relay_matcher.operations.lifecycle import JSON_TYPE
from relay_matcher.operations.reading import OPERATOR


def listed(items: Sequence[bytes], next_cursor: str | None, more: bytes = b"") -> Answer:
    """Return one page; `more` is further members as JSON, each with its comma before it."""
    body = b'{"items":[' + b",".join(items) + b'],"next_cursor":' + orjson.dumps(next_cursor)
    return Answer(200, body + more + b"}", JSON_TYPE)


def list_scope(request: Request, who: Caller) -> tuple[str, ...]:
    """Return all that makes this list this list: a cursor of another one is refused."""
    query = sorted(
        (name, value)
        for name, value in request.query_params.multi_items()
        if name not in ("cursor", "limit")
    )
    filters = tuple(text for pair in query for text in pair)
    path = request.url.path
    sees = "all" if OPERATOR in who.scopes else "own"
    return (who.tenant, who.environment, path, who.sub, sees, *filters)


def page_of(cursors: Cursors, scope: tuple[str, ...], cursor: str | None) -> list[Json]:
    """Return the position in `cursor`, nothing for the first page. Raises CursorInvalid."""
    return [] if cursor is None else cursors.read(scope, cursor)
