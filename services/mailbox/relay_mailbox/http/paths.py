"""Names in paths: owners, senders, topics and readers may hold anything, slashes too.

Servers hand a path over decoded, and then `a%2Fb` looks like two segments. Here routes match the
path as it was sent, and each name is decoded on its own.
"""

from typing import Annotated
from urllib.parse import quote, unquote

from fastapi import Path
from starlette.convertors import Convertor, register_url_convertor
from starlette.types import ASGIApp, Receive, Scope, Send

Sender = Annotated[str, Path(min_length=1, max_length=512)]
Topic = Annotated[str, Path(min_length=1, max_length=512)]
ReaderName = Annotated[str, Path(min_length=1, max_length=128)]


class NameConvertor(Convertor[str]):
    """One segment of a path, percent-encoded outside and decoded inside."""

    regex = "[^/]+"

    def convert(self, value: str) -> str:
        """Return the name that a segment means; none has a NUL, which PostgreSQL refuses."""
        return unquote(value).replace("\0", "\ufffd")

    def to_string(self, value: str) -> str:
        """Return the segment for a name."""
        return quote(value, safe="")


register_url_convertor("name", NameConvertor())


class AsSent:
    """Lets the routes of `app` see the path as the client sent it."""

    def __init__(self, app: ASGIApp) -> None:
        """Stand before `app`."""
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] == "http" and scope.get("raw_path"):
            scope["path"] = scope["raw_path"].decode("latin-1")
        await self.app(scope, receive, send)
