-- name: lock_waitpoints
-- Find the active event waitpoints of each full key by the one index (stage 1), then lock them in id order, where they lie.
-- Each step is fenced (limit, for update), so that no statistics make the planner turn the join round and scan the table. Active is
-- `closed_at is null` here: the same rows, but it offers the planner no index of all active ones while the table is still empty.
-- What moved between finding and locking comes without a place, and is to be looked for again.
with waiting as materialized (
  select k.place, c.ctid, c.id
  from unnest(%(tenants)s::text[], %(environments)s::text[], %(key_hashes)s::bigint[], %(event_types)s::text[], %(correlation_keys)s::text[])
    with ordinality k (tenant, environment, key_hash, event_type, correlation_key, place)
  cross join lateral (
    select w.ctid, w.id from waitpoint w
    where w.key_hash = k.key_hash and w.tenant = k.tenant and w.environment = k.environment and w.event_type = k.event_type
      and w.correlation_key = k.correlation_key and w.state in ('open', 'stalled') and w.kind = 'event'
    limit 1000000) c
  order by c.id)
select w.ctid, q.place, w.id, w.waiter, w.kind::text, w.profile, w.condition, w.expires_at, w.revision, w.activation, w.deliver_topic,
  w.default_response, w.opened
from waiting q
left join lateral (
  select p.ctid, p.* from waitpoint p
  where p.ctid = q.ctid and p.closed_at is null
  for update) w on true;

-- name: read_clock
-- Read the clock after the locks, take a block of arrival numbers after the clock, and tell where slices begin and end.
with c as materialized (select relay.now() as at)
select c.at, nextval('event_arrival'),
  exists (select from event_slice s where s.starts_at <= c.at and c.at < s.ends_at)
from c;

-- name: create_slices
-- Create the missing slices of the event log, ahead of need.
select create_slices(%(ahead)s::interval);

-- name: repeated_events
-- Tell which events the current or the previous slice has already (design D17). The bounds are scalar subqueries, so that the other
-- slices are pruned when the statement starts.
select k.place
from unnest(%(key_hashes)s::bigint[], %(event_ids)s::uuid[]) with ordinality k (key_hash, event_id, place)
where exists (
  select from event e
  where e.key_hash = k.key_hash and e.event_id = k.event_id
    and e.received_at >= (select slice_start(relay.now()) - interval '6 hours')
    and e.received_at < (select slice_start(relay.now()) + interval '6 hours'));

-- name: taken_before
-- Tell which waiters took which events long ago: those the log no longer deduplicates (design D2, D17).
select q.place
from unnest(%(tenants)s::text[], %(environments)s::text[], %(key_hashes)s::bigint[], %(event_ids)s::uuid[], %(waiters)s::text[])
  with ordinality q (tenant, environment, key_hash, event_id, waiter, place)
where exists (
  select from waitpoint t
  where t.key_hash = q.key_hash and t.event_id = q.event_id and t.waiter = q.waiter and t.tenant = q.tenant and t.environment = q.environment);

-- name: resolve_by_event
-- Resolve locked waitpoints, each by its event. The lock keeps each row where and as it was found; a condition on the state would
-- only offer the planner an index to scan.
update waitpoint w
set state = 'resolved', updated_at = %(at)s, closed_at = %(at)s, responded_at = %(at)s, revision = w.revision + 1, event_id = q.event_id,
  event_received_at = %(at)s
from unnest(%(places)s::tid[], %(event_ids)s::uuid[]) q (place, event_id)
where w.ctid = q.place;

-- name: record_events
-- Record every event of the batch once.
copy event (received_at, key_hash, arrival, event_id, rule_id, tenant, environment, event_type, correlation_key, recipient, reason, value)
from stdin (format binary);

-- name: batch_context
-- Read what reading a batch needs: the ids of its topics, and the sources that tenants accept (design D17, D21).
select
  (select json_object_agg(p.topic, p.topic_id) from (select distinct topic, topic_id from position) p),
  (select json_agg(json_build_array(s.tenant, s.environment, s.value)) from tenant_setting s where s.name = 'event_sources');
