-- name: raise_counters
-- Count the openings at tenant ('') and waiter, tenant first; return the counts they would come to.
insert into open_counter as c (tenant, environment, waiter, open_count)
select current_setting('relay.tenant'), current_setting('relay.environment'), q.waiter, q.opening
from unnest(%(waiters)s::text[], %(opening)s::bigint[]) q (waiter, opening)
order by q.waiter collate "C"
on conflict (tenant, environment, waiter) do update set open_count = c.open_count + excluded.open_count
returning c.waiter, c.open_count;

-- name: fold_tenant
-- Fold the closings of this tenant into its counters, whose rows are locked; return the counts.
with folded as (
  delete from closed_delta d returning d.waiters, d.closed
), each_waiter as materialized (
  select n.waiter, n.closed from folded f cross join unnest(f.waiters, f.closed) n (waiter, closed)
), summed as (
  select e.waiter, sum(e.closed) as closed from each_waiter e group by e.waiter
  union all
  select '', sum(e.closed) from each_waiter e having count(*) > 0
)
update open_counter c set open_count = c.open_count - s.closed
from summed s
where c.tenant = current_setting('relay.tenant') and c.environment = current_setting('relay.environment') and c.waiter = s.waiter
returning c.waiter, c.open_count;

-- name: lower_counters
-- Take back what was counted for openings that did not stay open.
update open_counter c set open_count = c.open_count - q.closed
from unnest(%(waiters)s::text[], %(closed)s::bigint[]) q (waiter, closed)
where c.tenant = current_setting('relay.tenant') and c.environment = current_setting('relay.environment') and c.waiter = q.waiter;

-- name: lock_own
-- Find and lock the active waitpoints that the waiters have on these keys already (design D8), in id order. Each step is fenced
-- (limit, for update): without statistics the planner would rather read all waitpoints of the tenant.
with own as materialized (
  select k.place, c.id
  from unnest(%(key_hashes)s::bigint[], %(event_types)s::text[], %(correlation_keys)s::text[], %(waiters)s::text[])
    with ordinality k (key_hash, event_type, correlation_key, waiter, place)
  cross join lateral (
    select w.id from waitpoint w
    where w.tenant = current_setting('relay.tenant') and w.environment = current_setting('relay.environment')
      and w.key_hash = k.key_hash and w.waiter = k.waiter and w.event_type = k.event_type and w.correlation_key = k.correlation_key
      and w.state in ('open', 'stalled')
    limit 1) c
  order by c.id)
select w.id, o.place, w.waiter, w.kind::text, w.profile, w.condition, w.expires_at, w.revision, w.activation, w.deliver_topic, w.default_response, w.opened
from own o
cross join lateral (
  select p.* from waitpoint p
  where p.tenant = current_setting('relay.tenant') and p.environment = current_setting('relay.environment') and p.id = o.id
    and p.closed_at is null
  for update) w;

-- name: read_clock
-- Read the clock after the locks, and the last arrival number given out; plan the look-back once, not for each opening.
with c as materialized (select relay.now() as at)
select c.at, a.last_value, set_config('plan_cache_mode', 'force_generic_plan', true) from c, event_arrival a;

-- name: waiting_on_keys
-- Count the active waitpoints on each key, no further than the limit.
select k.place, (
  select count(*) from (
    select from waitpoint w
    where w.tenant = current_setting('relay.tenant') and w.environment = current_setting('relay.environment')
      and w.key_hash = k.key_hash and w.event_type = k.event_type and w.correlation_key = k.correlation_key
      and w.state in ('open', 'stalled')
    limit %(most)s) active)
from unnest(%(key_hashes)s::bigint[], %(event_types)s::text[], %(correlation_keys)s::text[])
  with ordinality k (key_hash, event_type, correlation_key, place);

-- name: look_back
-- For each opening a page of the recorded events it may take, in order of arrival from the waiter's floor (design D2, D3).
select o.place, e.event_id, e.arrival, e.received_at, e.value, coalesce(f.arrival, 0)
from unnest(%(places)s::int[], %(key_hashes)s::bigint[], %(event_types)s::text[], %(correlation_keys)s::text[], %(waiters)s::text[],
  %(afters)s::bigint[], %(sinces)s::timestamptz[], %(pages)s::int[])
  o (place, key_hash, event_type, correlation_key, waiter, after, since, page)
left join waiter_floor f on f.tenant = current_setting('relay.tenant') and f.environment = current_setting('relay.environment')
  and f.key_hash = o.key_hash and f.waiter = o.waiter and f.event_type = o.event_type and f.correlation_key = o.correlation_key
cross join lateral (
  select e.event_id, e.arrival, e.received_at, e.value
  from event e
  where e.key_hash = o.key_hash and e.arrival > greatest(o.after, coalesce(f.arrival, 0)) and e.received_at >= o.since
    and e.tenant = current_setting('relay.tenant') and e.environment = current_setting('relay.environment')
    and e.event_type = o.event_type and e.correlation_key = o.correlation_key
    and (e.recipient is null or e.recipient = o.waiter)
    and not exists (
      select from waitpoint t
      where t.tenant = e.tenant and t.environment = e.environment and t.key_hash = e.key_hash and t.event_id = e.event_id
        and t.waiter = o.waiter)
  order by e.arrival
  limit o.page) e
order by o.place, e.arrival;

-- name: first_on_keys
-- The first recorded event above each waiter's floor, taken or not: what lies before the first to take can be skipped for good.
select o.place, e.arrival
from unnest(%(places)s::int[], %(key_hashes)s::bigint[], %(event_types)s::text[], %(correlation_keys)s::text[], %(waiters)s::text[],
  %(sinces)s::timestamptz[])
  o (place, key_hash, event_type, correlation_key, waiter, since)
left join waiter_floor f on f.tenant = current_setting('relay.tenant') and f.environment = current_setting('relay.environment')
  and f.key_hash = o.key_hash and f.waiter = o.waiter and f.event_type = o.event_type and f.correlation_key = o.correlation_key
cross join lateral (
  select e.arrival from event e
  where e.key_hash = o.key_hash and e.arrival > coalesce(f.arrival, 0) and e.received_at >= o.since
    and e.tenant = current_setting('relay.tenant') and e.environment = current_setting('relay.environment')
  order by e.arrival
  limit 1) e;

-- name: raise_floors
-- Remember up to where a waiter has nothing left to take on a key.
insert into waiter_floor as f (tenant, environment, key_hash, waiter, event_type, correlation_key, arrival, raised_at)
select current_setting('relay.tenant'), current_setting('relay.environment'), q.key_hash, q.waiter, q.event_type, q.correlation_key, q.arrival, %(at)s
from unnest(%(key_hashes)s::bigint[], %(waiters)s::text[], %(event_types)s::text[], %(correlation_keys)s::text[], %(arrivals)s::bigint[])
  q (key_hash, waiter, event_type, correlation_key, arrival)
on conflict (tenant, environment, key_hash, waiter, event_type, correlation_key)
  do update set arrival = greatest(f.arrival, excluded.arrival), raised_at = excluded.raised_at;

-- name: insert_waitpoints
-- Store the openings; one that found its event is resolved from the start.
insert into waitpoint (tenant, environment, id, key_hash, created_at, updated_at, expires_at, heartbeat_due, closed_at, responded_at,
  event_received_at, revision, kind, state, responder_count, event_id, waiter, event_type, correlation_key, condition,
  heartbeat_interval, deliver_topic, profile, subject_digest, schema_digest, default_response, opened)
select current_setting('relay.tenant'), current_setting('relay.environment'), q.id, q.key_hash, %(at)s, %(at)s, q.expires_at,
  %(at)s::timestamptz + q.heartbeat_interval, case when q.event_id is not null then %(at)s::timestamptz end, case when q.event_id is not null then %(at)s::timestamptz end,
  q.event_received_at, case when q.event_id is null then 1 else 2 end, q.kind::waitpoint_kind,
  (case when q.event_id is null then 'open' else 'resolved' end)::waitpoint_state, q.responder_count, q.event_id, q.waiter, q.event_type,
  q.correlation_key, q.condition, q.heartbeat_interval, q.deliver_topic, q.profile, q.subject_digest, q.schema_digest, q.default_response, q.opened
from unnest(%(ids)s::uuid[], %(key_hashes)s::bigint[], %(expires_ats)s::timestamptz[], %(heartbeat_intervals)s::interval[],
  %(event_received_ats)s::timestamptz[], %(kinds)s::text[], %(responder_counts)s::int2[], %(event_ids)s::uuid[], %(waiters)s::text[],
  %(event_types)s::text[], %(correlation_keys)s::text[], %(conditions)s::text[], %(deliver_topics)s::text[], %(profiles)s::text[],
  %(subject_digests)s::text[], %(schema_digests)s::bytea[], %(default_responses)s::bytea[], %(openeds)s::bytea[])
  q (id, key_hash, expires_at, heartbeat_interval, event_received_at, kind, responder_count, event_id, waiter, event_type, correlation_key,
    condition, deliver_topic, profile, subject_digest, schema_digest, default_response, opened);

-- name: insert_tags
-- Store the tags of the openings.
insert into waitpoint_tag (tenant, environment, name, value, waitpoint_id)
select current_setting('relay.tenant'), current_setting('relay.environment'), q.name, q.value, q.waitpoint_id
from unnest(%(names)s::text[], %(values)s::text[], %(waitpoint_ids)s::uuid[]) q (name, value, waitpoint_id);

-- name: insert_responders
-- Store the responders of the openings; the rows check that none is the waiter.
insert into responder (tenant, environment, waitpoint_id, responder, waiter, relationship)
select current_setting('relay.tenant'), current_setting('relay.environment'), q.waitpoint_id, q.responder, q.waiter, q.relationship
from unnest(%(waitpoint_ids)s::uuid[], %(responders)s::text[], %(waiters)s::text[], %(relationships)s::text[])
  q (waitpoint_id, responder, waiter, relationship);

