"""Lists: `{"items": […], "next_cursor": …}`, spliced from items that are JSON already."""

from collections.abc import Sequence

import orjson
from relay_common.combiner import Answer
from relay_common.cursors import Cursors
from relay_common.errors import Json

from relay_matcher.operations.lifecycle import JSON_TYPE


def listed(items: Sequence[bytes], next_cursor: str | None, more: bytes = b"") -> Answer:
    """Return one page; `more` is further members as JSON, each with its comma before it."""
    body = b'{"items":[' + b",".join(items) + b'],"next_cursor":' + orjson.dumps(next_cursor)
    return Answer(200, body + more + b"}", JSON_TYPE)


def page_of(cursors: Cursors, scope: tuple[str, ...], cursor: str | None) -> list[Json]:
    """Return the position in `cursor`, nothing for the first page. Raises CursorInvalid."""
    return [] if cursor is None else cursors.read(scope, cursor)
