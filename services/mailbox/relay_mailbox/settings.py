"""Settings of the mailbox service, `RELAY_MAILBOX_…` beside the shared ones."""

from typing import Annotated

from pydantic import Field
from relay_common.settings import CommonSettings, own


class MailboxSettings(CommonSettings):
    """What the mailbox service reads from the environment."""

    model_config = own("MAILBOX")

    http_port: Annotated[int, Field(ge=0, le=65535)] = 8084
    internal_port: Annotated[int, Field(ge=0, le=65535)] = 9084
    batch_records: Annotated[int, Field(ge=1, le=2000)] = 2000
    sweep_seconds: Annotated[float, Field(gt=0)] = 10.0
    hint_seconds: Annotated[float, Field(gt=0)] = 0.25
    fan_out_seconds: Annotated[float, Field(gt=0)] = 0.2
    measure_seconds: Annotated[float, Field(gt=0)] = 30.0
