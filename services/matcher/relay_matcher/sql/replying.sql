-- name: lock_targets
-- Lock the waitpoints that replies are for, in id order; who may not see one finds nothing. Locking one by one is a fence, and so is
-- the subquery for one value: the planner would rather read all waitpoints of the tenant and hash all responders.
select w.id, k.place, w.waiter, w.kind::text, w.profile, w.condition, w.expires_at, w.revision, w.activation, w.deliver_topic,
  w.default_response, w.opened, w.event_type, w.correlation_key, w.key_hash, w.state::text, w.subject_digest, w.schema_digest,
  (select true from responder r where r.tenant = w.tenant and r.environment = w.environment and r.waitpoint_id = w.id
    and r.responder = k.responder) is not null
from (
  select * from unnest(%(ids)s::uuid[], %(callers)s::text[], %(responders)s::text[], %(sees_all)s::bool[])
    with ordinality k (id, caller, responder, sees_all, place)
  order by k.id) k
cross join lateral (
  select p.* from waitpoint p
  where p.tenant = current_setting('relay.tenant') and p.environment = current_setting('relay.environment') and p.id = k.id
    and (k.sees_all or p.waiter = k.caller or (
      select true from responder r
      where r.tenant = p.tenant and r.environment = p.environment and r.waitpoint_id = p.id and r.responder = k.responder))
  for update) w;

-- name: lock_targets_by_key
-- Lock the newest question or review of each waiter and key, for replies by match key (design D19); who may not see it finds nothing.
with newest as materialized (
  select k.place, k.caller, k.responder, k.sees_all, c.id
  from unnest(%(key_hashes)s::bigint[], %(event_types)s::text[], %(correlation_keys)s::text[], %(waiters)s::text[], %(callers)s::text[],
      %(responders)s::text[], %(sees_all)s::bool[])
    with ordinality k (key_hash, event_type, correlation_key, waiter, caller, responder, sees_all, place)
  cross join lateral (
    select n.id from waitpoint n
    where n.tenant = current_setting('relay.tenant') and n.environment = current_setting('relay.environment')
      and n.key_hash = k.key_hash and n.waiter = k.waiter and n.event_type = k.event_type and n.correlation_key = k.correlation_key
      and n.kind <> 'event'
    order by n.created_at desc, n.id desc
    limit 1) c
  order by c.id)
select w.id, k.place, w.waiter, w.kind::text, w.profile, w.condition, w.expires_at, w.revision, w.activation, w.deliver_topic,
  w.default_response, w.opened, w.event_type, w.correlation_key, w.key_hash, w.state::text, w.subject_digest, w.schema_digest,
  (select true from responder r where r.tenant = w.tenant and r.environment = w.environment and r.waitpoint_id = w.id
    and r.responder = k.responder) is not null
from newest k
cross join lateral (
  select p.* from waitpoint p
  where p.tenant = current_setting('relay.tenant') and p.environment = current_setting('relay.environment') and p.id = k.id
    and (k.sees_all or p.waiter = k.caller or (
      select true from responder r
      where r.tenant = p.tenant and r.environment = p.environment and r.waitpoint_id = p.id and r.responder = k.responder))
  for update) w;

-- name: sessions
-- Read reply sessions, in a statement after the row locks.
select s.id, s.waitpoint_id, s.identity, s.channel, s.evidence_level::text, s.expires_at
from reply_session s
where s.tenant = current_setting('relay.tenant') and s.environment = current_setting('relay.environment') and s.id = any(%(ids)s::uuid[]);

-- name: insert_sessions
-- Open reply sessions; a row checks that its identity is a responder of its waitpoint.
insert into reply_session (tenant, environment, id, waitpoint_id, identity, channel, evidence_level, subject_digest, created_at, expires_at)
select current_setting('relay.tenant'), current_setting('relay.environment'), q.id, q.waitpoint_id, q.identity, q.channel,
  q.evidence_level::evidence_level, q.subject_digest, %(at)s, q.expires_at
from unnest(%(ids)s::uuid[], %(waitpoint_ids)s::uuid[], %(identities)s::text[], %(channels)s::text[], %(evidence_levels)s::text[],
  %(subject_digests)s::text[], %(expires_ats)s::timestamptz[]) q (id, waitpoint_id, identity, channel, evidence_level, subject_digest, expires_at);

-- name: bind_sessions
-- Bind the sessions of held replies to the waitpoint that has opened.
update reply_session s set waitpoint_id = q.waitpoint_id
from unnest(%(ids)s::uuid[], %(waitpoint_ids)s::uuid[]) q (id, waitpoint_id)
where s.tenant = current_setting('relay.tenant') and s.environment = current_setting('relay.environment') and s.id = q.id;

-- name: resolve_by_reply
-- Resolve locked waitpoints by their replies, through the one function that may; those are missing where a rule stood against it.
select r.waitpoint_id
from resolve_by_reply(%(at)s, %(ids)s::uuid[], %(sessions)s::uuid[], %(responders)s::text[], %(channels)s::text[], %(evidence_levels)s::text[],
  %(subject_digests)s::text[], %(schema_digests)s::bytea[], %(replies)s::bytea[]) r;

-- name: insert_rejections
-- Record rejected replies: who, why and where, never the value.
insert into rejection (tenant, environment, id, waitpoint_id, reason, responder, channel, rejected_at, pointers)
select current_setting('relay.tenant'), current_setting('relay.environment'), q.id, q.waitpoint_id, q.reason, q.responder, q.channel, %(at)s,
  q.pointers::jsonb
from unnest(%(ids)s::uuid[], %(waitpoint_ids)s::uuid[], %(reasons)s::text[], %(responders)s::text[], %(channels)s::text[], %(pointers)s::text[])
  q (id, waitpoint_id, reason, responder, channel, pointers);

-- name: raise_revisions
-- Count the rejections into the revisions of their waitpoints.
update waitpoint w set revision = q.revision
from unnest(%(ids)s::uuid[], %(revisions)s::int[]) q (id, revision)
where w.tenant = current_setting('relay.tenant') and w.environment = current_setting('relay.environment') and w.id = q.id;

-- name: responders
-- Read the responders of waitpoints.
select r.waitpoint_id, r.responder, r.relationship from responder r
where r.tenant = current_setting('relay.tenant') and r.environment = current_setting('relay.environment')
  and r.waitpoint_id = any(%(ids)s::uuid[])
order by r.waitpoint_id, r.responder;

-- name: rejections
-- Read a page of the rejected replies of one waitpoint, oldest first.
select r.id, r.reason, r.responder, r.channel, r.rejected_at, r.pointers from rejection r
where r.tenant = current_setting('relay.tenant') and r.environment = current_setting('relay.environment')
  and r.waitpoint_id = %(waitpoint_id)s and r.id > %(after)s
order by r.id
limit %(limit)s;

-- name: hold_replies
-- Hold replies that came before their waitpoint.
insert into held_reply (tenant, environment, id, key_hash, waiter, event_type, correlation_key, subject_digest, responder, channel,
  evidence_level, reply_session, part, reply, held_at, expires_at)
select current_setting('relay.tenant'), current_setting('relay.environment'), q.id, q.key_hash, q.waiter, q.event_type, q.correlation_key,
  q.subject_digest, q.responder, q.channel, q.evidence_level::evidence_level, q.reply_session, q.part, q.reply, %(at)s, %(expires_at)s
from unnest(%(ids)s::uuid[], %(key_hashes)s::bigint[], %(waiters)s::text[], %(event_types)s::text[], %(correlation_keys)s::text[],
  %(subject_digests)s::text[], %(responders)s::text[], %(channels)s::text[], %(evidence_levels)s::text[], %(reply_sessions)s::uuid[],
  %(parts)s::text[], %(replies)s::bytea[])
  q (id, key_hash, waiter, event_type, correlation_key, subject_digest, responder, channel, evidence_level, reply_session, part, reply);

-- name: count_held
-- Count the replies held for each waiter and key, no further than the limit; the locks of the keys keep others from holding more.
select k.place, (
  select count(*) from (
    select from held_reply h
    where h.tenant = current_setting('relay.tenant') and h.environment = current_setting('relay.environment')
      and h.key_hash = k.key_hash and h.waiter = k.waiter and h.event_type = k.event_type and h.correlation_key = k.correlation_key
      and h.outcome is null
    limit %(most)s) held)
from unnest(%(key_hashes)s::bigint[], %(event_types)s::text[], %(correlation_keys)s::text[], %(waiters)s::text[])
  with ordinality k (key_hash, event_type, correlation_key, waiter, place);

-- name: held_replies
-- Find the replies held for waiters and keys that open now, oldest first.
select k.place, h.id, h.subject_digest, h.responder, h.channel, h.evidence_level::text, h.reply_session, h.part, h.reply
from unnest(%(key_hashes)s::bigint[], %(event_types)s::text[], %(correlation_keys)s::text[], %(waiters)s::text[])
  with ordinality k (key_hash, event_type, correlation_key, waiter, place)
join held_reply h on h.tenant = current_setting('relay.tenant') and h.environment = current_setting('relay.environment')
  and h.key_hash = k.key_hash and h.waiter = k.waiter and h.event_type = k.event_type and h.correlation_key = k.correlation_key
where h.outcome is null and h.expires_at > %(at)s
order by k.place, h.held_at, h.id
for update of h;

-- name: settle_held_replies
-- Settle held replies: whatever became of one, its value goes.
update held_reply h set outcome = q.outcome, reply = null
from unnest(%(ids)s::uuid[], %(outcomes)s::text[]) q (id, outcome)
where h.tenant = current_setting('relay.tenant') and h.environment = current_setting('relay.environment') and h.id = q.id;
