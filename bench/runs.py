"""One throughput run: processes wait, events lie in the topic, the gate opens, the clock runs."""

import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import psutil
import psycopg
from confluent_kafka import Consumer, KafkaException, TopicPartition
from relay_devstack.topics import described

from bench import database as databases
from bench.database import Database, Found
from bench.events import Batch, push
from bench.processes import Child, running, start
from bench.stage import PARTITIONS, Stage, free_port

READY_SECONDS = 60.0
RUN_SECONDS = 180.0
TICK = 0.02
CONSUMERS = "RELAY_MATCHER_CONSUMERS"  # loops of one process, each a member of the group
MATCHER_TOPIC = "bench.relay.events"


@dataclass(frozen=True, slots=True)
class Bank:
    """Processes that do the same job on one topic, and where they write down how far they are."""

    children: Sequence[Child]
    topic: str
    positions: str

    def check(self) -> None:
        """Raise RuntimeError when one of them has died."""
        for child in self.children:
            child.check()


@dataclass(frozen=True, slots=True)
class Run:
    """What one run came to."""

    events: int
    seconds: float
    processor_seconds: float = 0.0

    @property
    def cost(self) -> float:
        """Processor time of the processes and their backends, microseconds an event."""
        return self.processor_seconds / self.events * 1e6

    @property
    def rate(self) -> float:
        """Events per second."""
        return self.events / self.seconds


def settings(stage: Stage, database: Database) -> dict[str, str]:
    """Return what every service process of a run reads."""
    return {
        **databases.login(database.url),
        **database.passwords(),
        "RELAY_KAFKA_BOOTSTRAP": stage.bootstrap,
        "RELAY_TOPIC_PREFIX": "bench.",
        "RELAY_GROUP_PREFIX": f"bench.{database.name}",
        "RELAY_LOG_LEVEL": "warning",
        "RELAY_ACCESS_ISSUER": "https://access.bench.localhost",
        "RELAY_ACCESS_JWKS_URL": "http://127.0.0.1:9/jwks",
        "RELAY_CURSOR_SECRET": "bench-bench-bench-bench",
    }


def service(
    stage: Stage, database: Database, name: str, roles: str, own: dict[str, str], number: int = 0
) -> tuple[Child, str]:
    """Start one service process; return it and where it says that it is ready."""
    prefix = f"RELAY_{name.upper()}"
    internal = free_port()
    environment = {
        **settings(stage, database),
        f"{prefix}_HTTP_PORT": str(free_port()),
        f"{prefix}_INTERNAL_PORT": str(internal),
        **own,
    }
    log = stage.folder / "logs" / f"{name}-{roles.replace(',', '-')}-{number}.log"
    child = start((f"relay_{name}", "--roles", roles), environment, log)
    return child, f"http://127.0.0.1:{internal}/readyz"


@contextmanager
def matchers(
    stage: Stage, database: Database, count: int, own: dict[str, str] | None = None
) -> Iterator[Bank]:
    """Run `count` matcher processes, consumers only; ready when each has its partitions."""
    stage.create_topics([topic.topic for topic in described("bench.", PARTITIONS)])
    skip_backlog(stage, database)
    started = [service(stage, database, "matcher", "consumer", own or {}, n) for n in range(count)]
    with running([child for child, _ in started]) as children:
        for child, url in started:
            until(lambda child=child, url=url: ready(child, url), "the matcher to be ready")
        members = count * int((own or {}).get(CONSUMERS, "1"))
        group = f"bench.{database.name}.matcher"
        until(lambda: balanced(stage, group, members), "partitions to settle")
        yield Bank(children, MATCHER_TOPIC, "matcher.position")


@contextmanager
def ceilings(stage: Stage, database: Database, kind: str, count: int, batch: int) -> Iterator[Bank]:
    """Run `count` processes of the ceiling `kind`."""
    topic = f"bench.{kind}"
    stage.create_topics([topic])
    group = f"bench.{kind}.{database.name}"
    arguments = (kind, database.url, stage.bootstrap, topic, group, str(batch))
    logs = stage.folder / "logs"
    children = [
        start(("bench.ceiling", *arguments), {}, logs / f"{kind}-{n}.log") for n in range(count)
    ]
    with running(children):
        until(lambda: all_alive(children) and balanced(stage, group, count), f"{kind} to be ready")
        yield Bank(children, topic, "ceiling.position")


def drive(stage: Stage, database: Database, bank: Bank, batch: Batch, *, empty: bool = True) -> Run:
    """Push `batch` while everybody waits at the gate, open it, and time until all is committed."""
    databases.restore(database)
    target = ends(stage, bank.topic) + len(batch)
    with psycopg.connect(database.url, autocommit=True) as conn:
        with databases.held(database, empty=empty):
            push(stage.bootstrap, bank.topic, batch.messages)
        begun, used = time.perf_counter(), processor_seconds(conn, bank)
        while done(conn, bank) < target:
            bank.check()
            if time.perf_counter() - begun > RUN_SECONDS:
                raise RuntimeError(
                    f"expected {target} records of {bank.topic}, found {done(conn, bank)}"
                )
            time.sleep(TICK)
        seconds = time.perf_counter() - begun
        return Run(len(batch), seconds, processor_seconds(conn, bank) - used)


def processor_seconds(conn: psycopg.Connection, bank: Bank) -> float:
    """Return the processor time that the processes of `bank` and their backends have used."""
    query = (
        "select pid from pg_stat_activity where datname = current_database() and pid <> %s"
        " and backend_type = 'client backend'"
    )
    backends = [pid for (pid,) in conn.execute(query, (conn.info.backend_pid,)).fetchall()]
    times = [psutil.Process(pid).cpu_times() for pid in backends]
    return sum(child.cpu_seconds() for child in bank.children) + sum(
        t.user + t.system for t in times
    )


def done(conn: psycopg.Connection, bank: Bank) -> int:
    """Return the sum of the committed positions."""
    query = f"select coalesce(sum(next_offset), 0)::bigint from {bank.positions} where topic = %s"
    return conn.execute(query, (bank.topic,)).fetchone()[0]


def raw_consume(stage: Stage, topic: str, count: int) -> Run:
    """Time one plain consumer over the newest `count` records of `topic`, first to last."""
    client = Consumer(
        {
            "bootstrap.servers": stage.bootstrap,
            "group.id": "bench.consume",
            "queued.min.messages": 100_000,
            "fetch.queue.backoff.ms": 5,
            "enable.auto.commit": False,
        }
    )
    places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    behind = count // PARTITIONS
    for place in places:
        low, high = client.get_watermark_offsets(place, 10)
        place.offset = max(low, high - behind)
    client.assign(places)
    got, begun = len(client.consume(2000, 10)), time.perf_counter()
    while got < behind * PARTITIONS * 0.99:
        got += len(client.consume(2000, 0.2))
    seconds = time.perf_counter() - begun
    client.close()
    return Run(got - 2000, seconds)


def ends(stage: Stage, topic: str) -> int:
    """Return the sum of the ends of all partitions of `topic`."""
    client = Consumer(
        {"bootstrap.servers": stage.bootstrap, "group.id": "bench.ends", "log_level": 0}
    )
    try:
        places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        return sum(client.get_watermark_offsets(place, 10)[1] for place in places)
    finally:
        client.close()


def skip_backlog(stage: Stage, database: Database) -> None:
    """Forget the positions of an earlier matcher run and the topic with it: both begin anew."""
    forget_topics(stage, database, [MATCHER_TOPIC])


def forget_topics(stage: Stage, database: Database, topics: list[str]) -> None:
    """Delete `topics` and the positions in them, and make them again."""
    stage.delete_topics(topics)
    with database.owner() as conn:
        for schema in ("matcher", "mailbox"):
            conn.execute(f"delete from {schema}.position where topic = any(%s)", (topics,))
    # The broker lists a deleted topic for a moment: one that is still listed would not be made.
    until(lambda: not stage.existing(topics), "the topics to be gone")
    stage.create_topics(topics)


def ready(child: Child, url: str) -> bool:
    """Return whether the process answers its readiness with 200. Raises when it has died."""
    child.check()
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


def all_alive(children: Sequence[Child]) -> bool:
    """Return true. Raises RuntimeError when one has died."""
    for child in children:
        child.check()
    return True


def balanced(stage: Stage, group: str, members: int) -> bool:
    """Return whether all partitions are spread evenly over `members` of `group`."""
    try:
        found = stage.admin.describe_consumer_groups([group])[group].result(10)
    except KafkaException:  # the coordinator is just being found
        return False
    sizes = [len(member.assignment.topic_partitions) for member in found.members]
    return sorted(sizes) == [PARTITIONS // members] * members


def until(condition: Callable[[], bool], what: str, seconds: float = READY_SECONDS) -> None:
    """Return when `condition` holds. Raises TimeoutError naming `what`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:.0f} s for {what}")
        time.sleep(0.1)


def verify(database: Database, batch: Batch) -> Found:
    """Check that nothing was lost or doubled. Raises AssertionError with what differs."""
    found = databases.find(database)
    expected = Found(
        recorded=len(batch),
        matched=batch.matching,
        resolved=batch.matching,
        closed=batch.matching,
        announced={}
        if not batch.matching
        else {"bench.relay.waitpoints": batch.matching, "bench.relay.mailbox": batch.matching},
    )
    if found != expected:
        raise AssertionError(f"expected {expected}, found {found}")
    return found
