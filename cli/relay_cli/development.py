"""Commands about the development stack of this clone (or of RELAY_STATE_DIR)."""

from typing import Annotated

import typer
from relay_devstack.addresses import running_addresses
from relay_devstack.layout import state_dir
from relay_devstack.tokens import DEFAULT_LIFETIME_SECONDS, Grant, SigningKey

PRINTED = ("RELAY_URL", "RELAY_KAFKA_BOOTSTRAP", "RELAY_DATABASE_URL")


def env() -> None:
    """Print the addresses of the running stack as KEY=VALUE lines."""
    known = running_addresses(state_dir())
    for name in PRINTED:
        print(f"{name}={known[name]}")


def token(
    sub: Annotated[str, typer.Option(help="Whom it speaks for, such as client:shop.")],
    tenant: Annotated[str, typer.Option(help="The tenant, such as acme.")],
    environment: Annotated[str, typer.Option(help="The environment, such as prod.")],
    scope: Annotated[str, typer.Option(help="Scopes, space separated: 'events:write …'.")] = "",
    lifetime: Annotated[
        int, typer.Option(help="Seconds until it expires.", min=1)
    ] = DEFAULT_LIFETIME_SECONDS,
) -> None:
    """Print a development token that the services of this stack accept."""
    print(SigningKey(state_dir()).token(Grant(sub, tenant, environment, scope, lifetime)))
