"""What must hold after every run, however much was killed in it (I1, I2, I4, I6-I9, I11, I12).

Each checker reads the database as its superuser, the dump of the topics and the clients' history,
and yields one sentence for each violation. They share no code with the services.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import psycopg

from tests.integration.clients import Call, History
from tests.integration.ids import derived, raw_id
from tests.integration.tap import Tap

TERMINAL = {"resolved", "expired", "cancelled"}
STATE_AFTER = {
    "waitpoint.created": "open",
    "waitpoint.stalled": "stalled",
    "waitpoint.reopened": "open",
    "waitpoint.resolved": "resolved",
    "waitpoint.expired": "expired",
    "waitpoint.cancelled": "cancelled",
}
EDGES = {
    (None, "open"),
    *(("open", to) for to in ("stalled", *TERMINAL)),
    *(("stalled", to) for to in ("open", *TERMINAL)),
}
LATEST_EXPIRY_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Expected:
    """What a test knows: (source, id) of each event that a broker acknowledged, by tenant."""

    named: dict[str, list[tuple[str, str, str]]] = field(
        default_factory=lambda: defaultdict(list)
    )  # tenant → (environment, source, id)


@dataclass(frozen=True, slots=True)
class Evidence:
    """All there is to look at."""

    conn: psycopg.Connection[tuple[Any, ...]]
    tap: Tap
    history: History
    expected: Expected


def violations(evidence: Evidence) -> list[str]:
    """Return every violation, as sentences."""
    return [sentence for check in CHECKS for sentence in check(evidence)]


# ---- waitpoints -------------------------------------------------------------------------------


def lifecycles_follow_the_contract(evidence: Evidence) -> Iterator[str]:
    """I1: revisions 1, 2, 3 … each once, only the contract's edges, at most one end."""
    stored = {
        waitpoint: (state, revision)
        for waitpoint, state, revision in evidence.conn.execute(
            "select id, state::text, revision from matcher.waitpoint"
        ).fetchall()
    }
    told = lifecycles(evidence.tap)
    for waitpoint, revisions in told.items():
        yield from edges(waitpoint, revisions)
    for waitpoint, (state, revision) in stored.items():
        found = told.get(waitpoint.bytes, {})
        if sorted(found) != list(range(1, revision + 1)):
            yield f"I12 waitpoint {waitpoint}: revision {revision}, announced {sorted(found)}"
        elif found[revision]["state"] != state:
            yield f"I1 waitpoint {waitpoint} is {state}, announced {found[revision]['state']}"
    for phantom in set(told) - {waitpoint.bytes for waitpoint in stored}:
        yield f"I12 waitpoint {phantom.hex()} is announced, but there is none"


def lifecycles(tap: Tap) -> dict[bytes, dict[int, dict[str, Any]]]:
    """Return waitpoint → revision → the record first seen for it."""
    told: dict[bytes, dict[int, dict[str, Any]]] = defaultdict(dict)
    for seen in tap.of("relay.waitpoints"):
        record = seen.record
        told[raw_id(str(record["waitpoint_id"]), "wp_")].setdefault(record["revision"], record)
    return told


def edges(waitpoint: bytes, revisions: dict[int, dict[str, Any]]) -> Iterator[str]:
    """Yield every step of one waitpoint that the contract does not know."""
    before: str | None = None
    for revision in sorted(revisions):
        kind = str(revisions[revision]["type"])
        after = STATE_AFTER.get(kind)
        if after is None:
            continue
        if (before, after) not in EDGES:
            yield f"I1 waitpoint {waitpoint.hex()}: {before} → {after} at revision {revision}"
        before = after


def repeats_are_equal(evidence: Evidence) -> Iterator[str]:
    """I12: a message that comes twice comes with the same bytes; first ones come in order."""
    first: dict[tuple[str, object, bytes], bytes | None] = {}
    newest: dict[bytes, int] = {}
    for topic in ("relay.waitpoints", "relay.mailbox"):
        for seen in evidence.tap.of(topic):
            record = seen.record
            name = (topic, seen.key, record["message_id"])
            if first.setdefault(name, seen.value) != seen.value:
                yield f"I12 message {name[2].hex()} of {topic} has two values"
    for seen in evidence.tap.of("relay.waitpoints"):
        record = seen.record
        waitpoint = raw_id(str(record["waitpoint_id"]), "wp_")
        if record["revision"] > newest.get(waitpoint, 0) + 1:
            yield f"I12 waitpoint {waitpoint.hex()}: revision {record['revision']} came too early"
        newest[waitpoint] = max(newest.get(waitpoint, 0), record["revision"])


def resolutions_stay(evidence: Evidence) -> Iterator[str]:
    """I2: a resolution looks the same whenever it is read; it is there exactly when resolved."""
    first: dict[str, object] = {}
    for call in evidence.history.calls:
        for waitpoint in waitpoints_in(call):
            state, resolution = waitpoint["state"], waitpoint["resolution"]
            if (state == "resolved") != (resolution is not None):
                yield f"I2 {waitpoint['id']} is {state} with resolution {resolution}"
            if (
                resolution is not None
                and first.setdefault(waitpoint["id"], resolution) != resolution
            ):
                yield f"I2 {waitpoint['id']} changed its resolution"


def waitpoints_in(call: Call) -> list[dict[str, Any]]:
    """Return the waitpoints in an answer."""
    if call.status not in (200, 201) or not call.path.startswith("/v1/waitpoints"):
        return []
    answer = json.loads(call.text)
    return [w for w in answer.get("items", [answer]) if "resolution" in w]


def no_acknowledged_opening_is_lost(evidence: Evidence) -> Iterator[str]:
    """I6: whatever was answered 201 is there, however soon the lights went out."""
    stored = evidence.conn.execute("select id from matcher.waitpoint").fetchall()
    known = {waitpoint.bytes for (waitpoint,) in stored}
    for call in evidence.history.calls:
        if (call.method, call.path, call.status) == ("POST", "/v1/waitpoints", 201):
            waitpoint = json.loads(call.text)["id"]
            if raw_id(waitpoint, "wp_") not in known:
                yield f"I6 {waitpoint} was opened, but is not there"


def deadlines_hold(evidence: Evidence) -> Iterator[str]:
    """I4: nothing is resolved at or after its deadline, nothing expires before it or very late."""
    rows = evidence.conn.execute(
        """
        select id, state::text, expires_at, closed_at from matcher.waitpoint
        where (state = 'resolved' and closed_at >= expires_at)
          or (state = 'expired' and closed_at < expires_at)
          or (state in ('open', 'stalled')
            and expires_at < clock_timestamp() - make_interval(secs => %s))
        """,
        (LATEST_EXPIRY_SECONDS,),
    ).fetchall()
    for waitpoint, state, expires_at, closed_at in rows:
        yield f"I4 waitpoint {waitpoint} is {state}: deadline {expires_at}, closed {closed_at}"


# ---- events -----------------------------------------------------------------------------------


def no_acknowledged_event_is_lost(evidence: Evidence) -> Iterator[str]:
    """I6: whatever was acknowledged is recorded, or in the dead letter topic."""
    recorded = {
        event.bytes
        for (event,) in evidence.conn.execute("select event_id from matcher.event").fetchall()
    }
    for call in evidence.history.calls:
        if (call.method, call.path, call.status) != ("POST", "/v1/events", 202):
            continue
        for accepted in json.loads(call.text)["accepted"]:
            if raw_id(accepted, "ev_")[8:] not in recorded:
                yield f"I6 {accepted} was accepted, but is not recorded"
    for tenant, names in evidence.expected.named.items():
        for environment, source, number in names:
            if derived("event", tenant, environment, source, number) not in recorded:
                yield f"I6 {tenant}/{source}/{number} is on the topic, but not recorded"


def every_record_of_the_topic_is_accounted_for(evidence: Evidence) -> Iterator[str]:
    """I6: records read = records recorded once + repeats + dead letters."""
    dead = Counter(
        (seen.header("relay_source_partition"), seen.header("relay_source_offset"))
        for seen in evidence.tap.of("relay.events.dlq")
    )
    known = {(str(s.partition), str(s.offset)) for s in evidence.tap.of("relay.events")}
    for place in set(dead) - known:
        yield f"I6 the dead letter of {place} names a record that never was"
    duplicates = evidence.conn.execute(
        """
        select tenant, event_id, count(*) from matcher.event
        group by tenant, environment, key_hash, event_id having count(*) > 1
        """
    ).fetchall()
    for tenant, event, count in duplicates:
        yield f"I6 event {event} of {tenant} is recorded {count} times"


def nobody_waits_for_what_is_there(evidence: Evidence) -> Iterator[str]:
    """I7, I8: no open waitpoint has a recorded event that it would have taken."""
    rows = evidence.conn.execute(
        """
        select w.id, e.event_id, e.rule_id from matcher.waitpoint w
        join matcher.event e on e.key_hash = w.key_hash and e.tenant = w.tenant
          and e.environment = w.environment and e.event_type = w.event_type
          and e.correlation_key = w.correlation_key
        where w.state in ('open', 'stalled') and w.kind = 'event' and w.condition is null
          and w.expires_at > clock_timestamp()
          and (e.recipient is null or e.recipient = w.waiter)
          and position('accept_events_since' in convert_from(w.opened, 'UTF8')) = 0
          and not exists (select from matcher.waitpoint t where t.tenant = w.tenant
            and t.environment = w.environment and t.key_hash = w.key_hash
            and t.event_id = e.event_id and t.waiter = w.waiter)
        """
    ).fetchall()
    for waitpoint, event, rule in rows:
        yield f"I7 waitpoint {waitpoint} waits although event {event} is held (rule {rule})"


def waiters_take_an_event_once(evidence: Evidence) -> Iterator[str]:
    """D2: no two waitpoints of a waiter were resolved by the same event of a key."""
    rows = evidence.conn.execute(
        """
        select tenant, environment, waiter, event_id, count(*) from matcher.waitpoint
        where event_id is not null
        group by tenant, environment, key_hash, waiter, event_id
        having count(*) > 1
        """
    ).fetchall()
    for *_, waiter, event, times in rows:
        yield f"D2 {waiter} took event {event} {times} times"


# ---- mailboxes --------------------------------------------------------------------------------


def mailboxes_are_dense(evidence: Evidence) -> Iterator[str]:
    """I9: sequences are oldest … head without a gap, in the order of their time."""
    rows = evidence.conn.execute(
        """
        select m.owner, m.oldest, m.head, count(r.seq), min(r.seq), max(r.seq)
        from mailbox.mailbox m left join mailbox.record r on r.tenant = m.tenant
          and r.environment = m.environment and r.mailbox_id = m.id
        group by m.id, m.owner, m.oldest, m.head
        having count(r.seq) <> m.head - m.oldest + 1 or coalesce(max(r.seq), m.head) <> m.head
          or coalesce(min(r.seq), m.oldest) <> m.oldest
        """
    ).fetchall()
    for owner, oldest, head, count, least, most in rows:
        yield f"I9 mailbox {owner}: {oldest}..{head}, but {count} records {least}..{most}"
    backwards = evidence.conn.execute(
        """
        select mailbox_id, seq from (
          select mailbox_id, seq, appended_at,
            lag(appended_at) over (partition by tenant, environment, mailbox_id order by seq) before
          from mailbox.record) r
        where before > appended_at
        """
    ).fetchall()
    for mailbox, seq in backwards:
        yield f"I9 mailbox {mailbox}: record {seq} is older than the one before it"


def records_are_what_was_announced(evidence: Evidence) -> Iterator[str]:
    """I12: every message on relay.mailbox is one record of its owner, and there are no others."""
    announced: set[tuple[str, str, str, bytes]] = set()
    for seen in evidence.tap.of("relay.mailbox"):
        r = seen.record
        announced.add((r["tenant"], r["environment"], r["owner"], r["message_id"]))
    rows = evidence.conn.execute(
        """
        select m.tenant, m.environment, m.owner, r.message_id, r.type
        from mailbox.mailbox m join mailbox.record r on r.tenant = m.tenant
          and r.environment = m.environment and r.mailbox_id = m.id
        where r.type <> 'mailbox.record_dead_lettered'
        """
    ).fetchall()
    stored = Counter((tenant, env, owner, number.bytes) for tenant, env, owner, number, _ in rows)
    for name, count in stored.items():
        if count > 1:
            yield f"I12 message {name[3].hex()} is {count} times in the mailbox of {name[2]}"
    for name in announced - set(stored):
        yield f"I12 message {name[3].hex()} never reached the mailbox of {name[2]}"
    for name in set(stored) - announced:
        yield f"I12 the mailbox of {name[2]} holds {name[3].hex()}, which nobody announced"


def mailboxes_tell_a_story_in_order(evidence: Evidence) -> Iterator[str]:
    """W6: what happened to a waitpoint stands in its waiter's mailbox in the order it happened."""
    rows = evidence.conn.execute(
        """
        select waitpoint_id, array_agg((convert_from(body, 'UTF8')::jsonb ->> 'revision')::int
          order by seq)
        from mailbox.record where kind = 'waitpoint_event' group by mailbox_id, waitpoint_id
        """
    ).fetchall()
    for waitpoint, revisions in rows:
        if revisions != sorted(revisions):
            yield f"W6 {waitpoint}: the mailbox tells revisions {revisions}"


def waiters_are_told_everything(evidence: Evidence) -> Iterator[str]:
    """W5: a waitpoint and its records in the waiter's mailbox tell the same story."""
    mailboxes: dict[bytes, set[bytes]] = defaultdict(set)
    for seen in evidence.tap.of("relay.mailbox"):
        record = seen.record
        if record["kind"] == "waitpoint_event":
            waitpoint = raw_id(str(record["waitpoint_id"]), "wp_")
            mailboxes[waitpoint].add(record["message_id"])
    for waitpoint, revisions in lifecycles(evidence.tap).items():
        public = {r["message_id"] for r in revisions.values() if not r["internal"]}
        if public != mailboxes[waitpoint]:
            missing = len(public - mailboxes[waitpoint])
            yield f"W5 waitpoint {waitpoint.hex()}: {missing} lifecycle events not in the mailbox"


def leases_are_exclusive(evidence: Evidence) -> Iterator[str]:
    """I11: a record is acknowledged by one lease only, and never handed out again after it."""
    acked: dict[tuple[str, str, int], float] = {}
    for call in sorted(evidence.history.calls, key=lambda c: c.invoked):
        place = (call.tenant, call.identity)
        if call.status == 200 and call.path.endswith("/acks"):
            for result in json.loads(call.text)["results"]:
                name = (*place, result["seq"])
                if (
                    result["result"] == "acked"
                    and acked.setdefault(name, call.answered) < call.invoked
                ):
                    yield f"I11 record {name} is acked twice"
    for call in evidence.history.calls:
        if call.status == 201 and call.path.endswith("/leases"):
            for record in json.loads(call.text)["records"]:
                done = acked.get((call.tenant, call.identity, record["seq"]))
                if done is not None and done < call.invoked:
                    yield f"I11 record {record['seq']} of {call.identity} leased after its ack"
    held = evidence.conn.execute(
        "select seq from mailbox.delivery where state = 'held' and (leasable or deliveries > 0)"
    ).fetchall()
    for (seq,) in held:
        yield f"I11 held record {seq} was handed out"


# ---- plumbing ---------------------------------------------------------------------------------


def outboxes_are_empty(evidence: Evidence) -> Iterator[str]:
    """I12: everything was published, nothing was refused for good."""
    for service in ("intake", "matcher", "escalation", "mailbox"):
        for table in ("outbox", "outbox_dead"):
            (count,) = evidence.conn.execute(f"select count(*) from {service}.{table}").fetchone()
            if count:
                yield f"I12 {count} rows left in {service}.{table}"


CHECKS = (
    outboxes_are_empty,
    lifecycles_follow_the_contract,
    repeats_are_equal,
    resolutions_stay,
    no_acknowledged_opening_is_lost,
    deadlines_hold,
    no_acknowledged_event_is_lost,
    every_record_of_the_topic_is_accounted_for,
    nobody_waits_for_what_is_there,
    waiters_take_an_event_once,
    mailboxes_are_dense,
    records_are_what_was_announced,
    mailboxes_tell_a_story_in_order,
    waiters_are_told_everything,
    leases_are_exclusive,
)
