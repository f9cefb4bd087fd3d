-- The tables of the matcher service: waitpoints and all that decides them, and the event log.
-- The contract's invariants are constraints here first (design §6); each is named for its rule.
call relay.plumbing('matcher');

create type matcher.waitpoint_kind as enum ('question', 'review', 'event');
create type matcher.waitpoint_state as enum ('open', 'stalled', 'resolved', 'expired', 'cancelled');
create type matcher.evidence_level as enum ('channel_claim', 'relay_session', 'access_aas_ref');

-- Waitpoints ---------------------------------------------------------------------------------------------------------
-- `opened` is the waitpoint as it was opened, rendered once: a JSON object without its closing brace. What may change
-- stands in columns and is appended when it is read, so no reader and no lifecycle event ever parses the rest.
-- What the index by waiter begins with; the column and those who look for it must agree.
create function matcher.hash_of_waiter(tenant text, environment text, waiter text) returns bigint language sql immutable parallel safe as
  $$ select hashtextextended(waiter, hashtextextended(environment, hashtextextended(tenant, 0))) $$;

create table matcher.waitpoint (
  tenant text collate "C" not null constraint waitpoint_tenant_is_short check (octet_length(tenant) between 1 and 256),
  environment text collate "C" not null constraint waitpoint_environment_is_short check (octet_length(environment) between 1 and 256),
  id uuid not null,
  key_hash bigint not null,
  created_at timestamptz not null,
  updated_at timestamptz not null,
  expires_at timestamptz not null,
  heartbeat_due timestamptz,
  closed_at timestamptz,
  responded_at timestamptz,
  event_received_at timestamptz,
  revision int not null default 1 constraint waitpoint_revision_counts_from_one check (revision >= 1),
  activation int not null default 1 constraint waitpoint_activation_counts_from_one check (activation >= 1),
  kind matcher.waitpoint_kind not null,
  state matcher.waitpoint_state not null,
  responder_count int2 not null default 0,
  event_id uuid,
  reply_session uuid,
  waiter text collate "C" not null constraint waitpoint_waiter_is_short check (octet_length(waiter) between 1 and 512),
  waiter_hash bigint not null generated always as (matcher.hash_of_waiter(tenant, environment, waiter)) stored,
  event_type text collate "C" not null constraint waitpoint_event_type_is_short check (octet_length(event_type) between 1 and 512),
  correlation_key text collate "C" not null constraint waitpoint_correlation_key_is_short check (octet_length(correlation_key) between 1 and 512),
  condition text constraint waitpoint_condition_is_not_empty check (condition ~ '\S'),
  heartbeat_interval interval constraint waitpoint_heartbeat_within_limits check (heartbeat_interval between '1 second' and '24 hours'),
  deliver_topic text collate "C",
  profile text constraint waitpoint_profile_is_known check (profile in ('guardian_approval', 'access_approval')),
  subject_digest text collate "C",
  schema_digest bytea,
  responder text collate "C",
  responder_session_identity text collate "C",
  channel text,
  evidence_level matcher.evidence_level,
  reply_subject_digest text collate "C",
  reply_schema_digest bytea,
  reply bytea,
  default_response bytea,
  opened bytea not null,

  constraint waitpoint_deadline_within_30_days check (expires_at - created_at <= interval '720 hours'),
  constraint waitpoint_deadline_after_creation check (expires_at > created_at),
  constraint waitpoint_resolved_before_deadline check (responded_at < expires_at),
  constraint waitpoint_resolution_only_when_resolved check ((state = 'resolved') = (responded_at is not null)),
  constraint waitpoint_closed_when_terminal check ((state in ('resolved', 'expired', 'cancelled')) = (closed_at is not null)),
  constraint waitpoint_event_resolution_names_the_event check (
    (state = 'resolved' and kind = 'event') = (event_id is not null) and (event_id is null) = (event_received_at is null)),
  constraint waitpoint_reply_resolution_is_whole check (
    case when state = 'resolved' and kind <> 'event'
      then responder is not null and responder_session_identity is not null and channel is not null and evidence_level is not null
        and reply_session is not null and reply_subject_digest is not null and reply is not null
      else num_nonnulls(responder, responder_session_identity, channel, evidence_level, reply_session, reply_subject_digest,
        reply_schema_digest, reply) = 0
    end),
  constraint waitpoint_responder_is_not_waiter check (responder <> waiter),
  constraint waitpoint_reply_is_bound_to_subject check (reply_subject_digest = subject_digest),
  constraint waitpoint_reply_was_validated check (state <> 'resolved' or kind = 'event' or reply_schema_digest is not distinct from schema_digest),
  constraint waitpoint_session_is_completed_by_its_identity check (responder_session_identity = responder),
  constraint waitpoint_question_is_whole check (
    case when kind = 'event' then num_nonnulls(subject_digest, schema_digest, profile) = 0 and responder_count = 0
      else num_nonnulls(subject_digest, schema_digest) = 2 and responder_count between 1 and 1000 end),
  constraint waitpoint_silence_is_not_consent check (profile <> 'guardian_approval' or default_response is null),
  constraint waitpoint_profile_is_for_reviews check (profile is null or kind = 'review'),
  constraint waitpoint_profile_closes_with_access check (
    profile is null or evidence_level is null or evidence_level = 'access_aas_ref'),
  constraint waitpoint_stalls_only_with_heartbeat check (
    (heartbeat_interval is null) = (heartbeat_due is null) and (state <> 'stalled' or heartbeat_interval is not null))
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02);

-- One index finds what an event matches and carries D8: one active waitpoint per waiter and match key. The hash of all four parts
-- stands first: an event's probe then compares integers instead of tenant and environment at every step (a third of its cost).
create unique index waitpoint_one_active_per_waiter_and_key
  on matcher.waitpoint (key_hash, tenant, environment, event_type, correlation_key, waiter) where state in ('open', 'stalled');
-- A waiter takes an event at most once (D2). What a waitpoint was resolved by is the take: there is no table of takes.
create unique index waitpoint_takes_an_event_once
  on matcher.waitpoint (key_hash, event_id, waiter, tenant, environment) where event_id is not null;
-- By a hash, because every closing adds an entry: three texts compared at each step down an index cost it 3 us. Readers name the texts too.
create index waitpoint_by_waiter on matcher.waitpoint (waiter_hash, id);
create index waitpoint_active_by_deadline on matcher.waitpoint (expires_at) where state in ('open', 'stalled');
create index waitpoint_open_by_heartbeat on matcher.waitpoint (heartbeat_due) where state = 'open' and heartbeat_due is not null;
-- An early reply asks for the newest waitpoint of a waiter and key (D19), by the one clock; events have no replies.
create index waitpoint_replied_by_key on matcher.waitpoint (tenant, environment, key_hash, waiter, created_at, id) where kind <> 'event';

-- Last: while the table is empty other indexes cost the same for a probe by key, and the planner keeps the latest.
alter table matcher.waitpoint add primary key (tenant, environment, id);

create table matcher.waitpoint_tag (
  tenant text collate "C" not null,
  environment text collate "C" not null,
  name text collate "C" not null,
  value text collate "C" not null,
  waitpoint_id uuid not null,
  primary key (tenant, environment, name, value, waitpoint_id),
  constraint tag_belongs_to_a_waitpoint foreign key (tenant, environment, waitpoint_id) references matcher.waitpoint
);

-- The set of recipients allowed to reply; the producer owns it, so nobody may change it after the opening.
create table matcher.responder (
  tenant text collate "C" not null,
  environment text collate "C" not null,
  waitpoint_id uuid not null,
  responder text collate "C" not null constraint responder_is_short check (octet_length(responder) between 1 and 512),
  waiter text collate "C" not null,
  -- What the waiter was to the responder, as Access said at the opening.
  relationship text collate "C" constraint responder_relationship_is_short check (octet_length(relationship) between 1 and 512),
  primary key (tenant, environment, waitpoint_id, responder),
  constraint responder_is_not_waiter check (responder <> waiter),
  constraint responder_belongs_to_a_waitpoint foreign key (tenant, environment, waitpoint_id) references matcher.waitpoint
);
create index responder_by_name on matcher.responder (tenant, environment, responder, waitpoint_id);

create table matcher.reply_session (
  tenant text collate "C" not null,
  environment text collate "C" not null,
  id uuid not null,
  waitpoint_id uuid,
  identity text collate "C" not null,
  channel text not null,
  evidence_level matcher.evidence_level not null,
  subject_digest text collate "C" not null,
  created_at timestamptz not null default relay.now(),
  expires_at timestamptz not null,
  primary key (tenant, environment, id),
  constraint reply_session_identity unique (tenant, environment, waitpoint_id, id, identity),
  constraint reply_session_is_of_a_responder foreign key (tenant, environment, waitpoint_id, identity) references matcher.responder
);
create index reply_session_by_age on matcher.reply_session (expires_at);

alter table matcher.waitpoint
  add constraint waitpoint_responder_is_listed foreign key (tenant, environment, id, responder) references matcher.responder,
  add constraint waitpoint_reply_has_its_session foreign key (tenant, environment, id, reply_session, responder_session_identity)
    references matcher.reply_session (tenant, environment, waitpoint_id, id, identity);

-- Rejected replies: who and why, never the value.
create table matcher.rejection (
  tenant text collate "C" not null,
  environment text collate "C" not null,
  id uuid not null,
  waitpoint_id uuid not null,
  reason text not null,
  responder text collate "C" not null,
  channel text not null,
  rejected_at timestamptz not null,
  pointers jsonb not null default '[]',
  primary key (tenant, environment, waitpoint_id, id),
  constraint rejection_belongs_to_a_waitpoint foreign key (tenant, environment, waitpoint_id) references matcher.waitpoint
);

-- Replies before their waitpoint (D19). The value lives here and nowhere else, and only while it may still be used.
create table matcher.held_reply (
  tenant text collate "C" not null,
  environment text collate "C" not null,
  id uuid not null,
  key_hash bigint not null,
  waiter text collate "C" not null,
  event_type text collate "C" not null,
  correlation_key text collate "C" not null,
  subject_digest text collate "C" not null,
  responder text collate "C" not null,
  channel text not null,
  evidence_level matcher.evidence_level not null,
  reply_session uuid not null,
  part text not null constraint held_reply_part_is_known check (part in ('response', 'decision')),
  reply bytea,
  held_at timestamptz not null,
  expires_at timestamptz not null,
  outcome text constraint held_reply_outcome_is_known check (outcome in ('taken', 'rejected', 'expired')),
  primary key (tenant, environment, id),
  constraint held_reply_keeps_its_value_only_while_held check ((outcome is null) = (reply is not null)),
  constraint held_reply_is_not_from_the_waiter check (responder <> waiter),
  constraint held_reply_has_its_session foreign key (tenant, environment, reply_session) references matcher.reply_session
);
create index held_reply_by_key on matcher.held_reply (tenant, environment, key_hash, waiter, id) where outcome is null;
create index held_reply_by_deadline on matcher.held_reply (expires_at) where outcome is null;
create index held_reply_settled_by_age on matcher.held_reply (expires_at) where outcome is not null;
create index held_reply_by_session on matcher.held_reply (tenant, environment, reply_session);

-- Events -------------------------------------------------------------------------------------------------------------
create table matcher.rule (id int2 primary key, name text not null unique);
insert into matcher.rule (id, name) values
  (0, 'exact_key'), (1, 'no_waitpoint'), (2, 'recipient_other'), (3, 'condition_false'), (4, 'condition_error'), (5, 'deadline_passed');

-- One sequence orders the events of a key independent of the clock: a batch takes one block after its key locks.
create sequence matcher.event_arrival increment by 4096 minvalue 4096 start with 4096;

-- The event log: every event once, never updated, in slices of time that are dropped whole.
create table matcher.event (
  received_at timestamptz not null,
  key_hash bigint not null,
  arrival bigint not null,
  event_id uuid not null,
  rule_id int2 not null,
  tenant text collate "C" not null,
  environment text collate "C" not null,
  event_type text collate "C" not null,
  correlation_key text collate "C" not null,
  recipient text collate "C",
  reason text,
  value bytea not null
) partition by range (received_at);
alter table matcher.event alter column value set storage external;

create table matcher.event_slice (name text primary key, starts_at timestamptz not null unique, ends_at timestamptz not null);

-- Where a waiter's look-back on a key begins: every event up to here is taken or can never be (D2).
create table matcher.waiter_floor (
  tenant text collate "C" not null,
  environment text collate "C" not null,
  key_hash bigint not null,
  waiter text collate "C" not null,
  event_type text collate "C" not null,
  correlation_key text collate "C" not null,
  arrival bigint not null,
  raised_at timestamptz not null,
  primary key (tenant, environment, key_hash, waiter, event_type, correlation_key)
) with (fillfactor = 70);
create index waiter_floor_by_age on matcher.waiter_floor using brin (raised_at);

-- Limits and settings ------------------------------------------------------------------------------------------------
-- Open waitpoints of a tenant (waiter '') and of each waiter. Openings raise it; closings only append, and are folded later.
create table matcher.open_counter (
  tenant text collate "C" not null,
  environment text collate "C" not null,
  waiter text collate "C" not null,
  open_count bigint not null,
  primary key (tenant, environment, waiter)
) with (fillfactor = 50);

create table matcher.closed_delta (
  id bigint generated always as identity primary key,
  tenant text collate "C" not null,
  environment text collate "C" not null,
  waiters text[] collate "C" not null,
  closed bigint[] not null,
  constraint closed_delta_counts_each_waiter check (cardinality(waiters) = cardinality(closed) and 0 < all (closed))
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
alter table matcher.closed_delta alter column waiters set storage external, alter column closed set storage external;
create index closed_delta_by_tenant on matcher.closed_delta (tenant, environment, id);

create table matcher.tenant_setting (
  tenant text collate "C" not null,
  environment text collate "C" not null,
  name text not null,
  value jsonb not null,
  updated_at timestamptz not null default relay.now(),
  primary key (tenant, environment, name)
);

do $$
declare
  tenant_table text;
begin
  foreach tenant_table in array array['waitpoint', 'waitpoint_tag', 'responder', 'reply_session', 'rejection', 'held_reply', 'event',
      'waiter_floor', 'open_counter', 'closed_delta', 'tenant_setting'] loop
    call relay.protect(format('matcher.%I', tenant_table)::regclass);
  end loop;
end $$;

-- Rules that a constraint cannot reach -------------------------------------------------------------------------------
create function matcher.refuse_change() returns trigger language plpgsql as $$
begin
  raise exception using errcode = 'check_violation', constraint = tg_argv[0], table = tg_table_name,
    message = format('%s: refused by rule %s', tg_table_name, tg_argv[0]);
end $$;

-- The revision alone still counts after the end: a rejected late reply is an event of its own.
create trigger waitpoint_terminal_is_immutable before update on matcher.waitpoint for each row
  when (old.state in ('resolved', 'expired', 'cancelled') and (
    new.state <> old.state or new.closed_at <> old.closed_at or new.updated_at <> old.updated_at or new.activation <> old.activation
    or new.responded_at is distinct from old.responded_at or new.event_id is distinct from old.event_id
    or new.reply is distinct from old.reply or new.responder is distinct from old.responder
    or new.heartbeat_due is distinct from old.heartbeat_due or new.revision < old.revision))
  execute function matcher.refuse_change('waitpoint_terminal_is_immutable');
create trigger waitpoint_deadline_is_fixed before update on matcher.waitpoint for each row
  when (new.expires_at <> old.expires_at) execute function matcher.refuse_change('waitpoint_deadline_is_fixed');
create trigger waitpoint_request_is_fixed before update on matcher.waitpoint for each row
  when (new.kind <> old.kind or new.waiter <> old.waiter or new.event_type <> old.event_type or new.correlation_key <> old.correlation_key
    or new.key_hash <> old.key_hash or new.subject_digest is distinct from old.subject_digest
    or new.schema_digest is distinct from old.schema_digest or new.opened <> old.opened or new.created_at <> old.created_at
    or new.responder_count <> old.responder_count or new.profile is distinct from old.profile)
  execute function matcher.refuse_change('waitpoint_request_is_fixed');
create trigger waitpoint_is_kept before delete on matcher.waitpoint for each row
  when (old.closed_at is null or current_setting('relay.forgetting', true) is distinct from 'on')
  execute function matcher.refuse_change('waitpoint_is_kept');

-- `responded_at` is the clock of the transaction that resolves: not before it began, not after now. One reading, after the
-- row lock, serves the deadline and the stamp alike.
create trigger waitpoint_responded_at_is_server_time_on_insert before insert on matcher.waitpoint for each row
  when (new.responded_at is not null and (new.responded_at > relay.now()
    or new.responded_at < relay.now() - (clock_timestamp() - transaction_timestamp())))
  execute function matcher.refuse_change('waitpoint_responded_at_is_server_time');
create trigger waitpoint_responded_at_is_server_time before update on matcher.waitpoint for each row
  when (new.responded_at is not null and old.responded_at is null and (new.responded_at > relay.now()
    or new.responded_at < relay.now() - (clock_timestamp() - transaction_timestamp())))
  execute function matcher.refuse_change('waitpoint_responded_at_is_server_time');
create trigger waitpoint_expires_only_after_deadline before update on matcher.waitpoint for each row
  when (new.state = 'expired' and old.state <> 'expired' and relay.now() < new.expires_at)
  execute function matcher.refuse_change('waitpoint_expires_only_after_deadline');

-- A held reply is what was given, until it is settled and its value goes.
create trigger held_reply_is_fixed before update on matcher.held_reply for each row
  when (old.outcome is not null or new.reply is not null or new.outcome is null or new.responder <> old.responder or new.channel <> old.channel
    or new.evidence_level <> old.evidence_level or new.subject_digest <> old.subject_digest or new.reply_session <> old.reply_session
    or new.waiter <> old.waiter or new.event_type <> old.event_type or new.correlation_key <> old.correlation_key)
  execute function matcher.refuse_change('held_reply_is_fixed');

create function matcher.list_responder() returns trigger language plpgsql as $$
declare
  opened record;
begin
  select w.waiter, w.responder_count into opened from matcher.waitpoint w
    where w.tenant = new.tenant and w.environment = new.environment and w.id = new.waitpoint_id;
  if found then
    new.waiter := opened.waiter;
    if (select count(*) from matcher.responder r where r.tenant = new.tenant and r.environment = new.environment
        and r.waitpoint_id = new.waitpoint_id) >= opened.responder_count then
      raise exception using errcode = 'check_violation', constraint = 'responder_set_is_fixed', table = 'responder',
        message = 'responder: refused by rule responder_set_is_fixed';
    end if;
  end if;
  return new;
end $$;
create trigger responder_set_is_fixed before insert on matcher.responder for each row execute function matcher.list_responder();
create trigger responder_set_is_kept before update on matcher.responder for each row
  execute function matcher.refuse_change('responder_set_is_fixed');
create trigger responder_is_kept before delete on matcher.responder for each row
  when (current_setting('relay.forgetting', true) is distinct from 'on') execute function matcher.refuse_change('responder_set_is_fixed');
create trigger rejection_is_fixed before update on matcher.rejection for each row
  execute function matcher.refuse_change('rejection_is_kept');
create trigger rejection_is_kept before delete on matcher.rejection for each row
  when (current_setting('relay.forgetting', true) is distinct from 'on') execute function matcher.refuse_change('rejection_is_kept');
create trigger reply_session_identity_is_fixed before update on matcher.reply_session for each row
  when (new.identity <> old.identity or new.subject_digest <> old.subject_digest or new.expires_at > old.expires_at
    or (old.waitpoint_id is not null and new.waitpoint_id is distinct from old.waitpoint_id))
  execute function matcher.refuse_change('reply_session_identity_is_fixed');

-- The one door for replies (invariants 2 to 6): it demands the digest of the schema a reply was validated against, and the
-- constraints above check the rest. Returns the waitpoints it resolved: none that is not active, whose deadline has passed, or whose
-- reply is not in a running session of its own. One update for all: the constraints are made ready once, not for each reply.
create function matcher.resolve_by_reply(
  p_at timestamptz, p_ids uuid[], p_sessions uuid[], p_responders text[], p_channels text[], p_evidence text[], p_subject_digests text[],
  p_schema_digests bytea[], p_replies bytea[]
) returns table (waitpoint_id uuid, new_revision int) language sql security definer set search_path = matcher, relay, pg_temp
set plan_cache_mode = force_generic_plan as $$
  update matcher.waitpoint w
  set state = 'resolved', updated_at = p_at, closed_at = p_at, responded_at = p_at, revision = w.revision + 1,
    reply_session = q.session, responder = q.responder, responder_session_identity = q.responder, channel = q.channel,
    evidence_level = q.evidence::evidence_level, reply_subject_digest = q.subject_digest, reply_schema_digest = q.schema_digest, reply = q.reply
  from (
    select p.ctid as place, k.*
    from unnest(p_ids, p_sessions, p_responders, p_channels, p_evidence, p_subject_digests, p_schema_digests, p_replies)
      k (id, session, responder, channel, evidence, subject_digest, schema_digest, reply)
    cross join lateral (
      select o.ctid from waitpoint o
      where o.tenant = current_setting('relay.tenant') and o.environment = current_setting('relay.environment') and o.id = k.id
      limit 1) p
    where k.session = (
      select s.id from reply_session s
      where s.tenant = current_setting('relay.tenant') and s.environment = current_setting('relay.environment') and s.id = k.session
        and s.waitpoint_id = k.id and s.identity = k.responder and s.channel = k.channel
        and k.evidence in (s.evidence_level::text, 'access_aas_ref') and s.expires_at > p_at)) q
  where w.ctid = q.place and w.id = q.id and w.closed_at is null and w.expires_at > p_at
  returning w.id, w.revision
$$;
revoke execute on function matcher.resolve_by_reply from public;
grant execute on function matcher.resolve_by_reply to relay_matcher_http;

revoke insert, update, delete on matcher.waitpoint from relay_matcher_http, relay_matcher_stream;
grant insert (tenant, environment, id, key_hash, created_at, updated_at, expires_at, heartbeat_due, closed_at, responded_at, event_received_at,
  revision, activation, kind, state, responder_count, event_id, waiter, event_type, correlation_key, condition, heartbeat_interval,
  deliver_topic, profile, subject_digest, schema_digest, default_response, opened) on matcher.waitpoint to relay_matcher_http;
grant update (state, updated_at, closed_at, responded_at, event_received_at, event_id, revision, activation, heartbeat_due)
  on matcher.waitpoint to relay_matcher_http, relay_matcher_stream;
revoke update, delete on matcher.responder, matcher.rejection from relay_matcher_http, relay_matcher_stream;
revoke update, delete on matcher.event from relay_matcher_http, relay_matcher_stream;
revoke insert, update, delete on matcher.rule, matcher.event_slice from relay_matcher_http, relay_matcher_stream;
grant select on sequence matcher.event_arrival to relay_matcher_http;

-- Forgets up to `wanted` waitpoints that have been closed for longer than their tenant keeps them (`usual` where it has not chosen), with all
-- that hangs on them; returns how many. One that an event resolved is the take of that event: it stays for at least `takes` (D2). A wait lasts 30 days at most, so whatever was opened 30 days earlier than that is over: ids
-- begin with the time, and the oldest stand first in the primary key. Only this deletes a waitpoint; no role may.
create function matcher.forget_waitpoints(usual interval, takes interval, wanted int) returns int language sql security definer
set search_path = matcher, relay, pg_temp set relay.forgetting = 'on' as $$
  with kept as materialized (
    select c.tenant, c.environment, relay.now() - coalesce(
      (select make_interval(secs => (s.value #>> '{}')::float8) from tenant_setting s
        where s.tenant = c.tenant and s.environment = c.environment and s.name = 'closed_waitpoint_seconds'), usual) as since, relay.now() - takes as taken_since
    from open_counter c where c.waiter = ''
  ), old as materialized (
    select o.tenant, o.environment, o.id
    from kept k
    cross join lateral (
      select w.tenant, w.environment, w.id from waitpoint w
      where w.tenant = k.tenant and w.environment = k.environment and w.closed_at < k.since
        and (w.event_id is null or w.closed_at < k.taken_since)
        and w.id < rpad(lpad(to_hex((extract(epoch from k.since - interval '30 days') * 1000)::bigint), 12, '0'), 32, '0')::uuid
      order by w.id
      limit wanted
      for update skip locked) o
    limit wanted
  ), tags as (
    delete from waitpoint_tag t using old o where t.tenant = o.tenant and t.environment = o.environment and t.waitpoint_id = o.id
  ), rejections as (
    delete from rejection r using old o where r.tenant = o.tenant and r.environment = o.environment and r.waitpoint_id = o.id
  ), held as (
    delete from held_reply h using reply_session s, old o
    where s.tenant = o.tenant and s.environment = o.environment and s.waitpoint_id = o.id
      and h.tenant = s.tenant and h.environment = s.environment and h.reply_session = s.id
  ), sessions as (
    delete from reply_session s using old o where s.tenant = o.tenant and s.environment = o.environment and s.waitpoint_id = o.id
  ), responders as (
    delete from responder r using old o where r.tenant = o.tenant and r.environment = o.environment and r.waitpoint_id = o.id
  ), waitpoints as (
    delete from waitpoint w using old o where w.tenant = o.tenant and w.environment = o.environment and w.id = o.id returning 1
  )
  select count(*)::int from waitpoints
$$;
revoke execute on function matcher.forget_waitpoints from public;
grant execute on function matcher.forget_waitpoints to relay_matcher_stream;

-- Slices of the event log --------------------------------------------------------------------------------------------
create function matcher.slice_start(at timestamptz) returns timestamptz language sql immutable parallel safe as
  $$ select date_bin('6 hours', at, timestamptz '1970-01-01 00:00:00+00') $$;

-- Creates the slices from the previous one until `ahead` from now; returns how many were missing. Attaching takes a lock that
-- readers and writers of the log do not notice.
create function matcher.create_slices(ahead interval) returns int language plpgsql security definer set search_path = matcher, relay, pg_temp as $$
declare
  starts timestamptz := matcher.slice_start(relay.now()) - interval '6 hours';
  last_start timestamptz := matcher.slice_start(relay.now() + ahead);
  slice text;
  created int := 0;
begin
  perform pg_advisory_xact_lock(1296389187, 1);
  while starts <= last_start loop
    slice := 'event_' || to_char(starts at time zone 'UTC', 'YYYYMMDD_HH24');
    if not exists (select from matcher.event_slice s where s.name = slice) then
      execute format('create table matcher.%I (like matcher.event including storage)', slice);
      -- In this order: while a slice is empty both cost the same for a probe by key and id, and the planner keeps the later one.
      execute format('create index on matcher.%I (key_hash, arrival)', slice);
      execute format('create unique index on matcher.%I (key_hash, event_id)', slice);
      execute format('create index on matcher.%I using brin (received_at) with (pages_per_range = 16)', slice);
      execute format('revoke all on matcher.%I from relay_matcher_http, relay_matcher_stream', slice);
      execute format('alter table matcher.event attach partition matcher.%I for values from (%L) to (%L)', slice, starts, starts + interval '6 hours');
      insert into matcher.event_slice (name, starts_at, ends_at) values (slice, starts, starts + interval '6 hours');
      created := created + 1;
    end if;
    starts := starts + interval '6 hours';
  end loop;
  return created;
end $$;

-- Drops, oldest first, the slices that even the longest retention of a tenant does not reach; returns how many.
create function matcher.drop_slices(longest interval) returns int language plpgsql security definer set search_path = matcher, relay, pg_temp as $$
declare
  slice record;
  dropped int := 0;
begin
  set local lock_timeout = '2s';
  perform pg_advisory_xact_lock(1296389187, 1);
  for slice in select s.name from matcher.event_slice s where s.ends_at < relay.now() - longest order by s.starts_at loop
    execute format('drop table matcher.%I', slice.name);
    delete from matcher.event_slice s where s.name = slice.name;
    dropped := dropped + 1;
  end loop;
  return dropped;
end $$;
revoke execute on function matcher.create_slices, matcher.drop_slices from public;
grant execute on function matcher.create_slices, matcher.drop_slices to relay_matcher_stream;
select matcher.create_slices('24 hours');

-- Nested loops over the one index are right at every size; a plan flip on fresh statistics costs 2 to 20 times as much, and a plan
-- made for an empty slice would be kept while it fills.
do $$
declare
  setting text;
  role_name text;
begin
  foreach role_name in array array['relay_matcher_http', 'relay_matcher_stream'] loop
    foreach setting in array array['enable_hashjoin', 'enable_mergejoin', 'enable_seqscan', 'enable_material', 'jit'] loop
      execute format('alter role %I in database %I set %s = off', role_name, current_database(), setting);
    end loop;
  end loop;
  execute format('alter role relay_matcher_stream in database %I set plan_cache_mode = force_generic_plan', current_database());
  -- A plan made while the tables were empty serves until they are analysed: it must not scan them then.
  execute format('alter role relay_matcher_stream in database %I set enable_seqscan = off', current_database());
end $$;
