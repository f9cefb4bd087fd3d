"""How the matcher's rate changes with open waitpoints, batch size and recorded history."""

import psycopg

from bench import runs
from bench.database import Database, open_database
from bench.events import make
from bench.figures import Figure
from bench.stage import Stage

RATE = 0.1
PROCESSES = 2
RECORDED = """
insert into matcher.event (
  received_at, key_hash, arrival, event_id, rule_id, tenant, environment, event_type,
  correlation_key, value)
select s.starts_at + (s.ends_at - s.starts_at) * random(), hashint8extended(n, 1), -n,
  gen_random_uuid(), 1, 'acme', 'prod', 'payment.settled', 'past-' || n, repeat('x', 260)::bytea
from generate_series(%(first)s::bigint, %(last)s::bigint) n, matcher.event_slice s
where s.starts_at <= %(at)s and %(at)s < s.ends_at
"""


def open_waitpoints(stage: Stage) -> list[Figure]:
    """Return events per second at 10 % match, by the number of open waitpoints."""
    rates: dict[int, list[float]] = {}
    for size in stage.profile.open_sizes:
        database = open_database(stage, size)
        rates[size] = rates_of(stage, database, {})
    smallest = stage.profile.open_sizes[0]
    base = {f"{smallest:,} open": Figure("", "", "", tuple(rates[smallest])).value}
    return [
        figure(
            "open_waitpoints", f"{size:,} open waitpoints", found, base if size != smallest else {}
        )
        for size, found in rates.items()
    ]


def batch_size(stage: Stage) -> list[Figure]:
    """Return events per second at 10 % match, by batch size."""
    database = open_database(stage, stage.profile.open_default)
    found: list[Figure] = []
    for size in stage.profile.batch_sizes:
        rates = rates_of(stage, database, {"RELAY_MATCHER_BATCH_RECORDS": str(min(size, 4096))})
        found.append(figure("batch_size", f"batches of {min(size, 4096):,}", rates, {}))
    return found


def history(stage: Stage) -> list[Figure]:
    """Return events per second at 10 % match without and with recorded events (profile full)."""
    if not stage.profile.history:
        return []
    database = open_database(stage, stage.profile.open_default)
    without = rates_of(stage, database, {})
    record_past(database, stage.profile.history)
    after = rates_of(stage, database, {}, empty=False)
    base = {"no history": Figure("", "", "", tuple(without)).value}
    what = f"{stage.profile.history:,} recorded events in three slices"
    return [
        figure("history", "no recorded events", without, {}),
        figure("history", what, after, base),
    ]


def rates_of(
    stage: Stage, database: Database, own: dict[str, str], *, empty: bool = True
) -> list[float]:
    """Return the rates of some runs of two matchers."""
    size = min(stage.profile.events, int(database.open_waitpoints / RATE))
    found: list[float] = []
    with runs.matchers(stage, database, PROCESSES, own) as bank:
        for number in range(stage.profile.repetitions):
            batch = make(size, RATE, database.open_waitpoints, f"scale{number}")
            found.append(runs.drive(stage, database, bank, batch, empty=empty).rate)
            if empty:
                runs.verify(database, batch)
    return found


def record_past(database: Database, count: int) -> None:
    """Record `count` events in the current slice and the two before it, a third each."""
    with database.owner() as conn:
        conn.execute("truncate matcher.event")
        older_slice(conn)
        third = count // 3
        for number in range(3):
            at = conn.execute("select relay.now() - %s * interval '6 hours'", (number,)).fetchone()[
                0
            ]
            span = {"first": number * third + 1, "last": (number + 1) * third, "at": at}
            conn.execute(RECORDED, span)
        conn.execute("vacuum (analyze) matcher.event")


def older_slice(conn: psycopg.Connection) -> None:
    """Create the slice before the previous one, which the service has no need for."""
    conn.execute(
        """
        do $$
        declare
          starts timestamptz := matcher.slice_start(relay.now()) - interval '12 hours';
          ends timestamptz := starts + interval '6 hours';
        begin
          if exists (select from matcher.event_slice s where s.starts_at = starts) then
            return;
          end if;
          create table matcher.event_past (like matcher.event including storage);
          create unique index on matcher.event_past (key_hash, event_id);
          create index on matcher.event_past (key_hash, arrival);
          execute format(
            'alter table matcher.event attach partition matcher.event_past'
            ' for values from (%L) to (%L)', starts, ends);
          insert into matcher.event_slice (name, starts_at, ends_at)
          values ('event_past', starts, ends);
        end $$
        """
    )


def figure(section: str, what: str, rates: list[float], beside: dict[str, float]) -> Figure:
    """Return the figure of some runs of two matchers at 10 % match."""
    return Figure(section, what, "events/s", tuple(rates), beside, f"2 processes, {RATE:.0%} match")
