-- name: due
-- Lock the waitpoints whose deadline has passed and that nobody else is deciding right now; tell where they lie.
select w.ctid, w.id, w.tenant, w.environment, w.event_type, w.correlation_key, w.key_hash, w.waiter, w.kind::text, w.profile, w.condition, w.expires_at,
  w.revision, w.activation, w.deliver_topic, w.default_response, w.opened
from waitpoint w
where w.state in ('open', 'stalled') and w.expires_at <= (select relay.now())
order by w.expires_at
limit %(limit)s
for update of w skip locked;

-- name: expire
-- Expire the waitpoints at these places, which this transaction has locked: a locked row does not move.
update waitpoint w
set state = 'expired', updated_at = %(at)s, closed_at = %(at)s, revision = w.revision + 1
from unnest(%(places)s::tid[]) q (place)
where w.ctid = q.place;

-- name: now
-- Read the clock, in a statement after the locks.
select relay.now();

-- name: longest_retention
-- How long the most patient tenant keeps its events, in seconds.
select greatest(%(default)s::float8, max((s.value #>> '{}')::float8)) from tenant_setting s where s.name = 'retention_seconds';

-- name: drop_slices
-- Drop the slices of the event log that nobody's retention reaches.
select drop_slices(%(longest)s::interval);

-- name: create_slices
-- Create the slices of the event log ahead of need.
select create_slices(%(ahead)s::interval);

-- name: lock_counters
-- Lock the counters of the tenants that have closings to fold, each tenant's own row first, as openings do.
select c.tenant, c.environment from open_counter c
join (select distinct d.tenant, d.environment from (select d.tenant, d.environment from closed_delta d order by d.id limit %(limit)s) d) t
  on t.tenant = c.tenant and t.environment = c.environment
where c.waiter = ''
order by c.tenant, c.environment
for update of c skip locked;

-- name: fold_counters
-- Fold closings into the counters of the tenants whose rows are locked.
with folded as (
  delete from closed_delta d
  where d.id in (
    select f.id from closed_delta f
    join unnest(%(tenants)s::text[], %(environments)s::text[]) q (tenant, environment)
      on q.tenant = f.tenant and q.environment = f.environment
    order by f.id
    limit %(limit)s)
  returning d.tenant, d.environment, d.waiters, d.closed
), each_waiter as materialized (
  select f.tenant, f.environment, n.waiter, n.closed from folded f cross join unnest(f.waiters, f.closed) n (waiter, closed)
), summed as (
  select e.tenant, e.environment, e.waiter, sum(e.closed) as closed from each_waiter e group by e.tenant, e.environment, e.waiter
  union all
  select e.tenant, e.environment, '', sum(e.closed) from each_waiter e group by e.tenant, e.environment
)
update open_counter c set open_count = c.open_count - s.closed
from summed s
where c.tenant = s.tenant and c.environment = s.environment and c.waiter = s.waiter;

-- name: forget_floors
-- Forget floors below which no event is left.
with old as (
  select f.tenant, f.environment, f.key_hash, f.waiter, f.event_type, f.correlation_key from waiter_floor f
  where f.raised_at < (select relay.now()) - %(age)s::interval
  limit %(limit)s
  for update skip locked
)
delete from waiter_floor f using old o
where f.tenant = o.tenant and f.environment = o.environment and f.key_hash = o.key_hash and f.waiter = o.waiter
  and f.event_type = o.event_type and f.correlation_key = o.correlation_key;

-- name: silent
-- Lock the open waitpoints whose waiter has been silent for longer than its heartbeat interval.
select w.id, w.tenant, w.environment, w.event_type, w.correlation_key, w.key_hash, w.waiter, w.kind::text, w.profile, w.condition, w.expires_at,
  w.revision, w.activation, w.deliver_topic, w.default_response, w.opened
from waitpoint w
where w.state = 'open' and w.heartbeat_due is not null and w.heartbeat_due <= (select relay.now()) and w.expires_at > (select relay.now())
order by w.heartbeat_due
limit %(limit)s
for update of w skip locked;

-- name: stall
-- Stall locked open waitpoints.
update waitpoint w
set state = 'stalled', updated_at = %(at)s, revision = w.revision + 1
from unnest(%(tenants)s::text[], %(environments)s::text[], %(ids)s::uuid[]) q (tenant, environment, id)
where w.tenant = q.tenant and w.environment = q.environment and w.id = q.id and w.state = 'open';

-- name: responders
-- Read the responders of waitpoints of any tenant.
select r.waitpoint_id, r.responder, r.relationship
from unnest(%(tenants)s::text[], %(environments)s::text[], %(ids)s::uuid[]) q (tenant, environment, id)
join responder r on r.tenant = q.tenant and r.environment = q.environment and r.waitpoint_id = q.id;

-- name: expire_held_replies
-- Let go of held replies that no waitpoint has opened for within the retention.
update held_reply h set outcome = 'expired', reply = null
where (h.tenant, h.environment, h.id) in (
  select o.tenant, o.environment, o.id from held_reply o
  where o.outcome is null and o.expires_at <= (select relay.now())
  order by o.expires_at
  limit %(limit)s
  for update skip locked);

-- name: forget_waitpoints
-- Forget waitpoints that are over for longer than their tenant keeps them.
select forget_waitpoints(%(usual)s::interval, %(takes)s::interval, %(limit)s);

-- name: forget_held_replies
-- Forget that replies were held for nobody, 30 days after their values went.
delete from held_reply h
where (h.tenant, h.environment, h.id) in (
  select o.tenant, o.environment, o.id from held_reply o
  where o.outcome is not null and o.expires_at < (select relay.now()) - interval '30 days'
    and (select s.waitpoint_id from reply_session s
      where s.tenant = o.tenant and s.environment = o.environment and s.id = o.reply_session) is null
  order by o.expires_at
  limit %(limit)s
  for update skip locked);

-- name: forget_sessions
-- Forget reply sessions that ended a day ago and that nothing rests on.
delete from reply_session s
where (s.tenant, s.environment, s.id) in (
  select o.tenant, o.environment, o.id from reply_session o
  where o.expires_at < (select relay.now()) - interval '1 day'
    and not exists (select from waitpoint w
      where w.tenant = o.tenant and w.environment = o.environment and w.id = o.waitpoint_id and w.reply_session = o.id)
    and not exists (select from held_reply h where h.tenant = o.tenant and h.environment = o.environment and h.reply_session = o.id)
  limit %(limit)s);
