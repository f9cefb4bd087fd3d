-- name: lock_by_id
-- Lock waitpoints in id order, one by one, for their waiter or an operator; tell also whether the caller replies only.
select w.id, k.place, w.waiter, w.kind::text, w.profile, w.condition, w.expires_at, w.revision, w.activation, w.deliver_topic,
  w.default_response, w.opened, w.event_type, w.correlation_key, w.key_hash, w.state::text, k.sees_all or w.waiter = k.caller
from (
  select * from unnest(%(ids)s::uuid[], %(callers)s::text[], %(sees_all)s::bool[]) with ordinality k (id, caller, sees_all, place)
  order by k.id) k
cross join lateral (
  select p.* from waitpoint p
  where p.tenant = current_setting('relay.tenant') and p.environment = current_setting('relay.environment') and p.id = k.id
    and (k.sees_all or p.waiter = k.caller or (
      select true from responder r
      where r.tenant = p.tenant and r.environment = p.environment and r.waitpoint_id = p.id and r.responder = k.caller))
  for update) w;

-- name: now
-- Read the clock, in a statement after the locks.
select relay.now();

-- name: cancel
-- Cancel locked active waitpoints.
update waitpoint w
set state = 'cancelled', updated_at = %(at)s, closed_at = %(at)s, revision = w.revision + 1
from unnest(%(ids)s::uuid[]) q (id)
where w.tenant = current_setting('relay.tenant') and w.environment = current_setting('relay.environment') and w.id = q.id
  and w.state in ('open', 'stalled');

-- name: record_heartbeats
-- Note that the waiters of locked waitpoints are alive; a stalled one is open again, in a new activation (design D7).
update waitpoint w
set state = 'open', heartbeat_due = %(at)s::timestamptz + w.heartbeat_interval, updated_at = %(at)s,
  activation = w.activation + case w.state when 'stalled' then 1 else 0 end,
  revision = w.revision + case w.state when 'stalled' then 1 else 0 end
from unnest(%(ids)s::uuid[]) q (id)
where w.tenant = current_setting('relay.tenant') and w.environment = current_setting('relay.environment') and w.id = q.id
  and w.state in ('open', 'stalled') and w.heartbeat_interval is not null;
