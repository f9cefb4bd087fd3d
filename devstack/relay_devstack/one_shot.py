"""`python -m relay_devstack.one_shot migrate|topics`: the jobs that `docker compose` runs once."""

import os
import sys

from relay_devstack import database, topics
from relay_devstack.errors import DevstackError


def migrate() -> None:
    """Migrate RELAY_DATABASE_URL and give the roles the passwords that the services will use."""
    for name in database.prepare(os.environ["RELAY_DATABASE_URL"], passwords()):
        print(f"applied {name}")


def passwords() -> dict[str, str]:
    """Return each role's password; RELAY_MATCHER_HTTP_PASSWORD is that of relay_matcher_http."""
    return {role: os.environ[f"{role.upper()}_PASSWORD"] for role in database.ROLES}


def create_topics() -> None:
    """Create the missing topics on RELAY_KAFKA_BOOTSTRAP."""
    for name in topics.create(os.environ["RELAY_KAFKA_BOOTSTRAP"], os.environ):
        print(f"created {name}")


if __name__ == "__main__":
    try:
        {"migrate": migrate, "topics": create_topics}[sys.argv[1]]()
    except DevstackError as error:
        sys.exit(str(error))
