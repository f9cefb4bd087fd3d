"""Settings from the environment: what all services share, and the frame of each service's own.

Shared settings are `RELAY_…`; a service's own have its prefix (`RELAY_MATCHER_…`).
"""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


class CommonSettings(BaseSettings):
    """What every service reads; `RELAY_DATABASE_URL` and `RELAY_KAFKA_BOOTSTRAP` are required.

    A service subclasses it with `model_config = own("MATCHER")`; the fields below the line then
    read `RELAY_MATCHER_HTTP_PORT` and so on.
    """

    model_config = SettingsConfigDict(frozen=True, populate_by_name=True, extra="ignore")

    database_url: Annotated[str, Field(validation_alias="RELAY_DATABASE_URL")]
    kafka_bootstrap: Annotated[str, Field(validation_alias="RELAY_KAFKA_BOOTSTRAP")]
    schema_registry_url: Annotated[
        str | None, Field(validation_alias="RELAY_SCHEMA_REGISTRY_URL")
    ] = None
    schema_dir: Annotated[Path | None, Field(validation_alias="RELAY_SCHEMA_DIR")] = None
    access_url: Annotated[str | None, Field(validation_alias="RELAY_ACCESS_URL")] = None
    access_issuer: Annotated[str, Field(validation_alias="RELAY_ACCESS_ISSUER")] = ""
    access_audience: Annotated[str, Field(validation_alias="RELAY_ACCESS_AUDIENCE")] = "relay"
    access_jwks_url: Annotated[str, Field(validation_alias="RELAY_ACCESS_JWKS_URL")] = ""
    outbox_shards: Annotated[int, Field(validation_alias="RELAY_OUTBOX_SHARDS", ge=1, le=64)] = 2
    unsafe_durability: Annotated[bool, Field(validation_alias="RELAY_UNSAFE_DURABILITY")] = False
    log_level: Annotated[str, Field(validation_alias="RELAY_LOG_LEVEL")] = "info"
    group_prefix: Annotated[str, Field(validation_alias="RELAY_GROUP_PREFIX")] = "relay"
    group_protocol: Annotated[
        Literal["classic", "consumer"], Field(validation_alias="RELAY_GROUP_PROTOCOL")
    ] = "classic"
    session_timeout_ms: Annotated[
        int, Field(validation_alias="RELAY_SESSION_TIMEOUT_MS", ge=1_000, le=300_000)
    ] = 10_000  # of the classic protocol; with the other one the broker says
    topic_prefix: Annotated[str, Field(validation_alias="RELAY_TOPIC_PREFIX")] = ""
    cursor_secret: Annotated[
        SecretStr | None, Field(validation_alias="RELAY_CURSOR_SECRET", min_length=16)
    ] = None

    # Of one service, under its own prefix.
    http_host: str = "127.0.0.1"
    http_port: Annotated[int, Field(ge=0, le=65535)] = 8080
    internal_port: Annotated[int, Field(ge=0, le=65535)] = 9090
    http_password: SecretStr | None = None
    stream_password: SecretStr | None = None
    pool_size: Annotated[int, Field(ge=1, le=200)] = 8
    nice: Annotated[int, Field(ge=0, le=19)] = 0  # how far the process steps back for others

    @classmethod
    def read(cls) -> Self:
        """Return the settings that the environment gives. Raises ValidationError naming a fault."""
        return cls.model_validate({})

    def topic(self, name: str) -> str:
        """Return the name of the Relay topic `name` in this installation."""
        return self.topic_prefix + name

    def group(self, name: str) -> str:
        """Return the consumer group of the service `name` in this installation."""
        return f"{self.group_prefix}.{name}"


def own(service: str) -> SettingsConfigDict:
    """Return the configuration by which the own settings of `service` read `RELAY_<SERVICE>_…`."""
    return SettingsConfigDict(
        env_prefix=f"RELAY_{service.upper()}_", frozen=True, populate_by_name=True, extra="ignore"
    )


def password(secret: SecretStr | None) -> str | None:
    """Return the text of `secret`, None when there is none."""
    return None if secret is None else secret.get_secret_value()
