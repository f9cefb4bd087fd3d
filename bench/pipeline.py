"""The whole pipeline of a run: matcher with publisher, mailbox, and tokens they accept."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

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
    stage: Stage, database: Database, matcher_roles: str = "http,consumer,publisher"
) -> Iterator[Pipeline]:
    """Run matcher, mailbox and the Access stand-in on `database`."""
    topics = [topic.topic for topic in described("bench.", PARTITIONS)]
    runs.forget_topics(stage, database, topics)
    key = SigningKey(stage.folder)
    key.create()
    ports = {name: free_port() for name in ("access", "matcher", "mailbox")}
    own = {
        "RELAY_ACCESS_ISSUER": ISSUER,
        "RELAY_ACCESS_URL": f"http://127.0.0.1:{ports['access']}",
        "RELAY_ACCESS_JWKS_URL": f"http://127.0.0.1:{ports['access']}/jwks",
    }
    arguments = ("relay_devstack.access", "127.0.0.1", str(ports["access"]), str(stage.folder))
    access = start(arguments, {}, stage.folder / "logs" / "access.log")
    matcher = runs.service(
        stage,
        database,
        "matcher",
        matcher_roles,
        {**own, "RELAY_MATCHER_HTTP_PORT": str(ports["matcher"])},
    )
    mailbox = runs.service(
        stage,
        database,
        "mailbox",
        "http,consumer",
        {**own, "RELAY_MAILBOX_HTTP_PORT": str(ports["mailbox"])},
    )
    children = [access, matcher[0], mailbox[0]]
    with running(children):
        for child, url in (matcher, mailbox):
            runs.until(
                lambda child=child, url=url: runs.ready(child, url), "the services to be ready"
            )
        yield Pipeline(stage, children, ports["matcher"], ports["mailbox"], key)
