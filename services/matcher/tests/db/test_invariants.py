"""The seven invariants, tried with plain SQL around the application, as the service's own roles."""

import uuid
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import errors, sql
from relay_common.testing.databases import Clock, Database, Template

SCOPE = {"tenant": "acme", "environment": "test"}
RESOLVE = """
select new_revision
from resolve_by_reply(relay.now(), array[%(id)s::uuid], array[%(session)s::uuid],
  array[%(responder)s], array[%(channel)s], array[%(evidence)s],
  array[%(subject)s], array[%(schema)s::bytea],
  array['{"ok":true}'::bytea])
"""


class Rows:
    """Puts rows in as the HTTP role may, in a transaction that is rolled back."""

    def __init__(self, conn: psycopg.Connection[Any]) -> None:
        self.conn = conn

    def insert(self, table: str, **values: Any) -> None:
        """Insert one row."""
        columns = sql.SQL(", ").join(map(sql.Identifier, values))
        marks = sql.SQL(", ").join(sql.Placeholder() * len(values))
        statement = sql.SQL("insert into {} ({}) values ({})")
        self.conn.execute(
            statement.format(sql.Identifier(table), columns, marks), list(values.values())
        )

    def question(self, **given: Any) -> uuid.UUID:
        """Put an open question to ann and bob there."""
        at = self.conn.execute("select relay.now()").fetchone()[0]  # type: ignore[index]
        row = {
            **SCOPE,
            "id": uuid.uuid4(),
            "key_hash": uuid.uuid4().int % 2**62,
            "created_at": at,
            "updated_at": at,
            "expires_at": at + timedelta(hours=1),
            "kind": "question",
            "state": "open",
            "waiter": "agent:a",
            "event_type": "t",
            "correlation_key": "k",
            "responder_count": 2,
            "subject_digest": "sha-256:x",
            "schema_digest": b"schema",
            "opened": b"{",
            **given,
        }
        self.insert("waitpoint", **row)
        if row["kind"] != "event":
            for responder in ("subscriber:ann", "subscriber:bob"):
                self.responder(row["id"], responder)
        return row["id"]

    def event(self, **given: Any) -> uuid.UUID:
        """Put an open event waitpoint there."""
        none = {"responder_count": 0, "subject_digest": None, "schema_digest": None}
        return self.question(**{"kind": "event", **none, **given})

    def responder(self, waitpoint: uuid.UUID, responder: str) -> None:
        """List a responder."""
        self.insert(
            "responder", **SCOPE, waitpoint_id=waitpoint, responder=responder, waiter="nobody"
        )

    def held(self, **given: Any) -> uuid.UUID:
        """Hold a reply of ann for agent:a."""
        session, identifier = self.session(None), uuid.uuid4()
        at = self.conn.execute("select relay.now()").fetchone()[0]  # type: ignore[index]
        row = {
            **SCOPE,
            "id": identifier,
            "key_hash": 1,
            "waiter": "agent:a",
            "event_type": "t",
            "correlation_key": "k",
            "subject_digest": "sha-256:x",
            "responder": "subscriber:ann",
            "channel": "inbox",
            "evidence_level": "relay_session",
            "reply_session": session,
            "part": "response",
            "reply": b"1",
            "held_at": at,
            "expires_at": at + timedelta(days=7),
            **given,
        }
        self.insert("held_reply", **row)
        return identifier

    def session(self, waitpoint: uuid.UUID | None, identity: str = "subscriber:ann") -> uuid.UUID:
        """Open a reply session."""
        at = self.conn.execute("select relay.now()").fetchone()[0]  # type: ignore[index]
        identifier = uuid.uuid4()
        self.insert(
            "reply_session",
            **SCOPE,
            id=identifier,
            waitpoint_id=waitpoint,
            identity=identity,
            channel="inbox",
            evidence_level="relay_session",
            subject_digest="sha-256:x",
            expires_at=at + timedelta(minutes=5),
        )
        return identifier

    def resolve(self, waitpoint: uuid.UUID, **given: Any) -> Any:
        """Resolve through the one function; return the revision or None."""
        values = {
            "id": waitpoint,
            "responder": "subscriber:ann",
            "channel": "inbox",
            "evidence": "relay_session",
            "subject": "sha-256:x",
            "schema": b"schema",
            **given,
        }
        if "session" not in values:
            values["session"] = self.session(waitpoint)
        found = self.conn.execute(RESOLVE, values).fetchone()
        return None if found is None else found[0]

    def change(self, waitpoint: uuid.UUID, assignment: str) -> None:
        """Update a waitpoint by hand."""
        statement = f"update waitpoint set {assignment} where id = %s"
        self.conn.execute(statement, (waitpoint,))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def shared(database_template: Template) -> Iterator[Database]:
    """One database: every test rolls back."""
    with database_template.clone() as fresh:
        Clock(fresh)
        yield fresh


def rows_of(shared: Database, role: str) -> Iterator[Rows]:
    """Yield rows of `role` in a transaction of the tenant."""
    conn = shared.connect(role)
    with conn.transaction(force_rollback=True):
        conn.execute(
            "select set_config('relay.tenant', 'acme', true),"
            " set_config('relay.environment', 'test', true)"
        )
        yield Rows(conn)


@pytest.fixture
def http(shared: Database) -> Iterator[Rows]:
    """What the HTTP role may do."""
    yield from rows_of(shared, "relay_matcher_http")


@pytest.fixture
def stream(shared: Database) -> Iterator[Rows]:
    """What the stream role may do."""
    yield from rows_of(shared, "relay_matcher_stream")


def rule_of(caught: pytest.ExceptionInfo[psycopg.Error]) -> str | None:
    """Return the name of the rule that was violated."""
    return caught.value.diag.constraint_name


def test_a_whole_reply_resolves(http: Rows) -> None:
    assert http.resolve(http.question()) == 2


@pytest.mark.spec("WP-INV-1")
def test_waiter_is_never_a_responder(http: Rows) -> None:
    question = http.question(responder_count=3)
    with pytest.raises(errors.CheckViolation) as caught:
        http.responder(question, "agent:a")
    assert rule_of(caught) == "responder_is_not_waiter"


@pytest.mark.spec("WP-INV-2")
def test_responder_set_is_the_producers(http: Rows) -> None:
    question = http.question()
    with pytest.raises(errors.CheckViolation) as caught, http.conn.transaction():
        http.responder(question, "subscriber:eve")
    assert rule_of(caught) == "responder_set_is_fixed"
    for statement in ("delete from responder", "update responder set responder = 'subscriber:eve'"):
        with pytest.raises(errors.InsufficientPrivilege), http.conn.transaction():
            http.conn.execute(statement)
    with pytest.raises(errors.ForeignKeyViolation) as stranger:
        http.session(question, "subscriber:eve")
    assert rule_of(stranger) == "reply_session_is_of_a_responder"


@pytest.mark.spec("WP-INV-2")
def test_session_is_completed_by_the_identity_that_opened_it(http: Rows) -> None:
    question, other = http.question(), http.question(correlation_key="other")
    anns = http.session(question)
    assert http.resolve(question, session=anns, responder="subscriber:bob") is None
    assert http.resolve(other, session=anns) is None
    assert http.resolve(question, session=uuid.uuid4()) is None
    assert http.resolve(question, session=anns, evidence="channel_claim") is None
    with pytest.raises(errors.CheckViolation) as caught:
        http.conn.execute("update reply_session set identity = 'subscriber:bob'")
    assert rule_of(caught) == "reply_session_identity_is_fixed"


@pytest.mark.spec("WP-INV-3")
def test_expired_is_not_resolved(http: Rows, shared: Database) -> None:
    question = http.question()
    session = http.session(question)
    late = "update relay.test_clock set shift = shift + interval '1 hour'"
    shared.owner.execute(late)
    try:
        assert http.resolve(question, session=session) is None
        at = "(select relay.now())"
        by_hand = f"state = 'resolved', responded_at = {at}, closed_at = {at}"
        with pytest.raises(errors.CheckViolation), http.conn.transaction():
            http.change(question, by_hand)
        http.change(question, f"state = 'expired', closed_at = {at}")
        with pytest.raises(errors.CheckViolation) as caught:
            http.change(question, "state = 'open', closed_at = null")
        assert rule_of(caught) == "waitpoint_terminal_is_immutable"
    finally:
        shared.owner.execute(late.replace("+ interval", "- interval"))


@pytest.mark.spec("WP-INV-3")
def test_event_waitpoint_resolves_only_by_the_clock(http: Rows) -> None:
    event = http.event()
    by = "state = 'resolved', closed_at = relay.now(), event_id = gen_random_uuid(),"
    times = "event_received_at = relay.now(), responded_at = relay.now()"
    for when in ("- interval '1 minute'", "+ interval '1 minute'"):
        with pytest.raises(errors.CheckViolation) as caught, http.conn.transaction():
            http.change(event, f"{by} {times} {when}")
        assert rule_of(caught) == "waitpoint_responded_at_is_server_time"
    http.change(event, f"{by} {times}")


@pytest.mark.spec("WP-INV-4")
def test_resolved_is_immutable(http: Rows) -> None:
    question = http.question()
    http.resolve(question)
    for assignment in (
        "state = 'open', closed_at = null, responded_at = null",
        "updated_at = relay.now() + interval '1 s'",
        "responded_at = responded_at - interval '1 microsecond'",
        "revision = 1",
        "activation = 2",
    ):
        with pytest.raises(errors.CheckViolation) as caught, http.conn.transaction():
            http.change(question, assignment)
        assert rule_of(caught) == "waitpoint_terminal_is_immutable"
    assert http.resolve(question, session=http.session(question, "subscriber:bob")) is None
    http.change(question, "revision = revision + 1")


@pytest.mark.spec("WP-INV-4")
@pytest.mark.parametrize("role", ["http", "stream"])
def test_no_role_writes_a_reply_or_deletes_a_waitpoint(http: Rows, stream: Rows, role: str) -> None:
    rows = http if role == "http" else stream
    forbidden = (
        "update waitpoint set reply = '{}'",
        "update waitpoint set responder = 'subscriber:ann'",
        "update waitpoint set expires_at = expires_at + interval '1 day'",
        "update waitpoint set subject_digest = 'sha-256:y'",
        "update waitpoint set waiter = 'agent:b'",
        "update waitpoint set opened = '{'",
        "insert into waitpoint (tenant, reply) values ('acme', '{}')",
        "delete from waitpoint",
        "delete from rejection",
        "update rejection set reason = 'x'",
        "update event set rule_id = 0",
        "delete from event",
        "select * from pg_authid",
    )
    for statement in forbidden:
        with pytest.raises(errors.InsufficientPrivilege), rows.conn.transaction():
            rows.conn.execute(statement)  # type: ignore[arg-type]


@pytest.mark.spec("WP-DEADLINE-FIXED")
def test_even_the_owner_does_not_move_a_deadline(shared: Database, http: Rows) -> None:
    at = "created_at + interval '2 hours'"
    with shared.owner.transaction(force_rollback=True):
        shared.owner.execute("set local search_path = matcher, relay")
        rows = Rows(shared.owner)
        question = rows.question()
        with pytest.raises(errors.CheckViolation) as caught, shared.owner.transaction():
            rows.change(question, f"expires_at = {at}")
        assert rule_of(caught) == "waitpoint_deadline_is_fixed"
        with pytest.raises(errors.CheckViolation) as kept, shared.owner.transaction():
            shared.owner.execute("delete from waitpoint")
        assert rule_of(kept) == "waitpoint_is_kept"
    late = http.conn.execute("select relay.now() + interval '721 hours'").fetchone()
    assert late is not None
    with pytest.raises(errors.CheckViolation) as far:
        http.question(expires_at=late[0])
    assert rule_of(far) == "waitpoint_deadline_within_30_days"


@pytest.mark.spec("WP-INV-5")
def test_reply_names_the_schema_it_was_validated_against(http: Rows) -> None:
    question = http.question()
    for schema in (b"another", None):
        with pytest.raises(errors.CheckViolation) as caught, http.conn.transaction():
            http.resolve(question, schema=schema)
        assert rule_of(caught) == "waitpoint_reply_was_validated"


@pytest.mark.spec("WP-INV-6")
def test_reply_names_the_subject(http: Rows) -> None:
    question = http.question()
    with pytest.raises(errors.CheckViolation) as caught:
        http.resolve(question, subject="sha-256:y")
    assert rule_of(caught) == "waitpoint_reply_is_bound_to_subject"


@pytest.mark.spec("WP-GUARDIAN-SILENCE", "WP-GUARDIAN-LEVEL", "WP-GUARDIAN-DEADLINE")
def test_guardian_approval_in_the_database(http: Rows) -> None:
    profile = {"kind": "review", "profile": "guardian_approval"}
    with pytest.raises(errors.CheckViolation) as silence, http.conn.transaction():
        http.question(**profile, default_response=b"{}")
    assert rule_of(silence) == "waitpoint_silence_is_not_consent"
    with pytest.raises(errors.CheckViolation) as level:
        http.resolve(http.question(**profile))
    assert rule_of(level) == "waitpoint_profile_closes_with_access"


@pytest.mark.spec("WP-INV-4")
def test_a_held_reply_is_what_was_given_until_its_value_goes(http: Rows) -> None:
    held = http.held()
    for assignment in (
        "reply = 'true'",
        "responder = 'subscriber:bob'",
        "subject_digest = 'sha-256:y'",
        "evidence_level = 'access_aas_ref'",
        "waiter = 'agent:b', reply = null, outcome = 'taken'",
    ):
        with pytest.raises(errors.CheckViolation) as caught, http.conn.transaction():
            http.conn.execute(f"update held_reply set {assignment}")  # type: ignore[arg-type]
        assert rule_of(caught) == "held_reply_is_fixed"
    settle = "update held_reply set reply = null, outcome = 'taken' where id = %s"
    assert http.conn.execute(settle, (held,)).rowcount == 1
    with pytest.raises(errors.CheckViolation) as again:
        http.conn.execute("update held_reply set outcome = 'rejected'")
    assert rule_of(again) == "held_reply_is_fixed"


@pytest.mark.spec("WP-INV-1")
def test_the_waiter_holds_no_reply_for_itself(http: Rows) -> None:
    with pytest.raises(errors.CheckViolation) as caught:
        http.held(waiter="subscriber:ann")
    assert rule_of(caught) == "held_reply_is_not_from_the_waiter"


@pytest.mark.spec("WP-ONE-ACTIVE")
def test_one_active_waitpoint_of_a_waiter_on_a_key(http: Rows) -> None:
    http.question(key_hash=7)
    with pytest.raises(errors.UniqueViolation) as caught, http.conn.transaction():
        http.event(key_hash=7)
    assert rule_of(caught) == "waitpoint_one_active_per_waiter_and_key"
    http.event(key_hash=7, waiter="agent:b")
    http.event(key_hash=7, correlation_key="other")


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ({"kind": "question", "subject_digest": None}, "waitpoint_question_is_whole"),
        ({"kind": "question", "responder_count": 0}, "waitpoint_question_is_whole"),
        ({"kind": "question", "profile": "guardian_approval"}, "waitpoint_profile_is_for_reviews"),
        ({"state": "stalled"}, "waitpoint_stalls_only_with_heartbeat"),
        ({"state": "expired"}, "waitpoint_closed_when_terminal"),
        ({"condition": " "}, "waitpoint_condition_is_not_empty"),
        ({"waiter": ""}, "waitpoint_waiter_is_short"),
        ({"correlation_key": "x" * 513}, "waitpoint_correlation_key_is_short"),
    ],
)
def test_impossible_waitpoints(http: Rows, given: dict[str, Any], rule: str) -> None:
    with pytest.raises(errors.CheckViolation) as caught:
        http.question(**given)
    violated = rule_of(caught)
    assert violated == rule


def test_waiter_takes_an_event_once(http: Rows) -> None:
    """Two waitpoints of a waiter on a key, one after the other, and the same event (design D2)."""
    by = (
        "update waitpoint set state = 'resolved', closed_at = relay.now(), event_id = %s,"
        " event_received_at = relay.now(), responded_at = relay.now() where id = %s"
    )
    event = uuid.uuid4()
    http.conn.execute(by, (event, http.event(key_hash=7)))
    http.conn.execute(by, (event, http.event(key_hash=7, waiter="agent:b")))
    with pytest.raises(errors.UniqueViolation) as caught:
        http.conn.execute(by, (event, http.event(key_hash=7)))
    assert rule_of(caught) == "waitpoint_takes_an_event_once"


def test_other_tenants_rows_are_out_of_reach(http: Rows) -> None:
    http.question()
    http.conn.execute("select set_config('relay.tenant', 'other', true)")
    for table in ("waitpoint", "responder", "event", "held_reply", "rejection"):
        assert http.conn.execute(f"select count(*) from {table}").fetchone() == (0,)  # type: ignore[arg-type]
    with pytest.raises(errors.InsufficientPrivilege):
        http.question()


def test_slices_of_the_event_log_are_reached_through_it_only(http: Rows, stream: Rows) -> None:
    slice_name = "select name from event_slice order by starts_at limit 1"
    name = stream.conn.execute(slice_name).fetchone()[0]  # type: ignore[index]
    for rows in (http, stream):
        with pytest.raises(errors.InsufficientPrivilege), rows.conn.transaction():
            rows.conn.execute(f"select * from {name}")  # type: ignore[arg-type]


@pytest.mark.spec("WP-OBJ-STATE")
def test_states_and_rules_are_the_same_in_both_languages(shared: Database) -> None:
    from relay_matcher.domain.rules import Rule  # noqa: PLC0415
    from relay_matcher.domain.waitpoint import TRANSITIONS  # noqa: PLC0415

    rules = shared.owner.execute("select id, name from matcher.rule").fetchall()
    assert dict(rules) == {rule.value: rule.name for rule in Rule}
    states = shared.owner.execute(
        "select enumlabel from pg_enum e join pg_type t on t.oid = e.enumtypid"
        " where typname = 'waitpoint_state'"
    ).fetchall()
    assert {state for (state,) in states} == set(TRANSITIONS)
