"""The whole pipeline of a run: matcher with publisher, mailbox, and tokens they accept."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from relay_devstack.tokens import ISSUER, Grant, SigningKey
from relay_devstack.topics import described

from bench import runs
from bench.database import Database
from bench.processes import Child, running, start
from bench.stage import PARTITIONS, Stage, free_port

TENANT, ENVIRONMENT = "acme", "prod"
SCOPES = (
    "events:write events:read waitpoints:write waitpoints:read waitpoints:reply mailbox:read"
    " mailbox:ack messages:send"
)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Running services, where their HTTP is, and the key that signs tokens for them."""

    stage: Stage
    children: list[Child]
    access_port: int
    matcher_port: int
    mailbox_port: int
    key: SigningKey

    def token(self, sub: str) -> str:
        """Return a token of `sub` with every scope a waiter needs."""
        return self.key.token(Grant(sub, TENANT, ENVIRONMENT, SCOPES))

    def bank(self) -> runs.Bank:
        """Return the matcher's side, to push events at."""
        return runs.Bank(self.children, runs.MATCHER_TOPIC, "matcher.position")


@contextmanager
def running_pipeline(
    stage: Stage,
    database: Database,
    matcher_roles: str = "http,consumer,publisher",
    mailbox_nice: int = 0,
) -> Iterator[Pipeline]:
    """Run matcher, mailbox and the Access stand-in on `database`."""
    with running_mailbox(stage, database, "http,consumer", mailbox_nice) as pipeline:
        port = free_port()
        own = {**access_settings(pipeline.access_port), "RELAY_MATCHER_HTTP_PORT": str(port)}
        matcher, url = runs.service(stage, database, "matcher", matcher_roles, own)
        with running([matcher]):
            runs.until(lambda: runs.ready(matcher, url), "the matcher to be ready")
            children = [*pipeline.children, matcher]
            yield replace(pipeline, children=children, matcher_port=port)


@contextmanager
def running_mailbox(
    stage: Stage, database: Database, roles: str, nice: int = 0
) -> Iterator[Pipeline]:
    """Run the mailbox and the Access stand-in on `database`."""
    topics = [topic.topic for topic in described("bench.", PARTITIONS)]
    runs.forget_topics(stage, database, topics)
    key = SigningKey(stage.folder)
    key.create()
    access_port, port = free_port(), free_port()
    arguments = ("relay_devstack.access", "127.0.0.1", str(access_port), str(stage.folder))
    access = start(arguments, {}, stage.folder / "logs" / "access.log")
    own = {
        **access_settings(access_port),
        "RELAY_MAILBOX_HTTP_PORT": str(port),
        "RELAY_MAILBOX_NICE": str(nice),
    }
    mailbox, url = runs.service(stage, database, "mailbox", roles, own)
    with running([access, mailbox]):
        runs.until(lambda: runs.ready(mailbox, url), "the mailbox to be ready")
        yield Pipeline(stage, [access, mailbox], access_port, 0, port, key)


def access_settings(port: int) -> dict[str, str]:
    """Return what a service has to know of the Access stand-in at `port`."""
    return {
        "RELAY_ACCESS_ISSUER": ISSUER,
        "RELAY_ACCESS_URL": f"http://127.0.0.1:{port}",
        "RELAY_ACCESS_JWKS_URL": f"http://127.0.0.1:{port}/jwks",
    }
