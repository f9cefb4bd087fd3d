"""Settings of the matcher."""

from typing import Annotated

from pydantic import Field
from relay_common.settings import CommonSettings, own


class MatcherSettings(CommonSettings):
    """The shared settings, the own ones under `RELAY_MATCHER_…`."""

    model_config = own("matcher")

    consumers: Annotated[int, Field(ge=1, le=16)] = 1  # loops, each with partitions of its own
    batch_records: Annotated[int, Field(ge=1, le=4096)] = 2000
    batch_bytes: Annotated[int, Field(ge=1024)] = 8 << 20
    sweep_seconds: Annotated[float, Field(gt=0)] = 0.5
    tidy_seconds: Annotated[float, Field(gt=0)] = 60.0
