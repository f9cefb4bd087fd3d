"""The peers: how each is given the job, how durable it is, and what else it does."""

from dataclasses import dataclass

from bench.peers import jobs
from bench.peers.jobs import Job

RELAY = "Relay"
DBOS = "DBOS recv and send"
RESTATE = "Restate awakeables"
RELAY_DURABILITY = (
    "PostgreSQL, fsync and synchronous_commit on; events come through one Kafka broker, acks=all,"
    " which leaves syncing to the operating system"
)


@dataclass(frozen=True, slots=True)
class Peer:
    """One way to do the job. `name` is what `--only` takes; `pins` are in its folder here."""

    name: str
    title: str
    job: Job
    durability: str
    default: str
    besides: str


PEERS = (
    Peer(
        "dbos",
        DBOS,
        jobs.dbos("recv"),
        "the same PostgreSQL, each step its own transaction",
        "the same",
        "runs and journals the waiter's code; one Python process starts, sends and waits",
    ),
    Peer(
        "dbos",
        "DBOS set_event and get_event",
        jobs.dbos("get_event"),
        "the same PostgreSQL, each step its own transaction",
        "the same",
        "as above; a workflow of its own gives each event, because only a workflow can",
    ),
    Peer(
        "restate",
        RESTATE,
        jobs.restate,
        "its own log, synced by batch (RocksDB WAL), one node",
        "the same",
        "runs and journals the waiter's code in a Python process; opened means that it waits;"
        " the limit of concurrent invocations is raised above the number of waits",
    ),
    Peer(
        "temporal",
        "Temporal development server, signals",
        jobs.temporal,
        "SQLite file, journal_mode=WAL, synchronous=FULL",
        "SQLite in memory: nothing survives",
        "runs and journals the waiter's code; not meant for production use by its makers",
    ),
    Peer(
        "nats",
        "NATS JetStream, synced",
        jobs.nats("always"),
        "file store, synced for each message",
        "synced every two minutes",
        "upper reference: no waits, matching, deduplication or SQL; published 32 at a time, pulled"
        " in 500s, each acked; its Python client is its limit",
    ),
    Peer(
        "nats",
        "NATS JetStream, as it comes",
        jobs.nats('"2m"'),
        "file store, synced every two minutes: an ack does not survive a power cut",
        "the same",
        "as above",
    ),
)
