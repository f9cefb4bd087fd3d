"""The settings of one tenant and environment."""

from collections.abc import Mapping

import orjson
from relay_common import queries
from relay_common.db import AsyncConnection
from relay_common.errors import Json

SQL = queries.load("relay_matcher", "settings")


async def read_settings(conn: AsyncConnection) -> dict[str, Json]:
    """Return what this tenant has set."""
    return dict(await (await conn.execute(SQL["settings"])).fetchall())


async def replace_settings(conn: AsyncConnection, chosen: Mapping[str, Json]) -> None:
    """Set what is in `chosen`; everything else takes its default again."""
    await conn.execute(SQL["forget_settings"])
    values = [orjson.dumps(value).decode() for value in chosen.values()]
    await conn.execute(SQL["store_settings"], {"names": list(chosen), "values": values})
